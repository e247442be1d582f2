"""Lightning's Trainer over datasets, samplers and loaders of mmapds, at one and the other `use_distributed_sampler`."""

import os
import random
import sys
import warnings

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import mmapds
from mmapds.integrations.lightning import ResumeAtAnyWorldSize
from tests.support.stacks import BATCH, EPOCHS, KINDS, Job, Model, N, ids_of, loader_options

PROCESSES, LAUNCHED = 2, 3
STOPS = (7, 26, 33)  # of 26 steps with batches of a fixed size: within an epoch, at its end, and within the next
COUNTED = (7, 25, 26)  # an epoch of single samples ends after 25 batches, or after 26 with the smaller one
OFTEN = (("ours", 2), ("ours", 5), ("stateful", 2), ("stateful", 5))  # how often a job over a loader is interrupted
LOADERS = {"plain": DataLoader, "ours": mmapds.DataLoader, "stateful": StatefulDataLoader}


class Learner(pl.LightningModule):
    """Records the batches that it trains on and is validated with."""

    def __init__(self, job, name, part=0):
        super().__init__()
        self.model = Model()
        self.job, self.name, self.part = job, name, part

    def training_step(self, ids):
        self.job.read(self.name, self.current_epoch, ids, self.part)
        return self.model(ids)

    def validation_step(self, ids):
        self.job.read(f"{self.name}, validation", self.current_epoch, ids, self.part)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


class Count(Callback):
    """Notes the numbers that batches have, and when validation runs."""

    def __init__(self):
        self.noted = []

    def on_train_batch_start(self, trainer, module, batch, number):
        self.noted.append([module.current_epoch, number])

    def on_validation_start(self, trainer, module):
        self.noted.append([module.current_epoch, "validation"])


class Interrupted(Exception):  # noqa: N818 - nothing is wrong
    """The end of a part."""


class Stop(Callback):
    """Saves a checkpoint after some steps, and ends the job there, as a crash would."""

    def __init__(self, path, step):
        self.path, self.step = path, step

    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step == self.step:
            trainer.save_checkpoint(self.path)
            raise Interrupted


def fit(job, name, loader, *, part=0, stop=None, resume=None, validation=None, callbacks=(), **options):
    """Train for some epochs, or until a step."""
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=torch.distributed.get_world_size(),
        strategy="ddp",
        max_epochs=EPOCHS,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        callbacks=[*callbacks, *([Stop(*stop)] if stop else [])],
        **options,
    )
    try:
        trainer.fit(Learner(job, name, part), loader, validation, ckpt_path=resume)
    except Interrupted:
        assert stop


def fit_all_ways(job):
    for flag in (True, False):
        for loader in ("plain", "ours"):
            for kind in KINDS:
                name = f"{kind}, {loader}, {flag}"
                _, options = loader_options(kind, job.ds)
                try:
                    fit(job, name, LOADERS[loader](job.ds, collate_fn=ids_of, **options), use_distributed_sampler=flag)
                except (mmapds.OrderError, TypeError) as error:  # ours, or Lightning's own
                    job.say(name, str(error))
            if flag:  # Lightning's own sampler
                name = f"dataset, {loader}, {flag}"
                fit(job, name, LOADERS[loader](job.ds, BATCH, shuffle=True, collate_fn=ids_of))


def interrupt(job):
    for loader in ("ours", "stateful", "stateful with workers"):
        for kind in KINDS:
            for stop in STOPS:
                name = f"{kind}, {loader}, interrupted after {stop}"
                path = os.path.join(job.folder, f"{name}.ckpt")
                for part in range(2):
                    _, options = loader_options(kind, job.ds)
                    workers = 0 if loader == "stateful" else 1
                    made = LOADERS[loader.split()[0]](job.ds, collate_fn=ids_of, num_workers=workers, **options)
                    more = {"resume": path} if part else {"stop": (path, stop)}
                    fit(job, name, made, part=part, use_distributed_sampler=False, **more)


def change_worlds(job):
    """Checkpoints that another number of processes goes on with."""
    for loader in ("ours", "stateful"):
        for kind in KINDS:
            for before, after in ((2, 3), (3, 2)):
                for stop in STOPS:
                    name = f"{kind}, {loader}, {before} to {after}, interrupted after {stop}"
                    path = os.path.join(job.folder, f"{name}.ckpt")
                    for part, world in enumerate((before, after)):
                        if job.join(world):
                            go_on(job, name, loader, kind, part, path, None if part else stop)


def change_worlds_often(job):
    """Jobs that are interrupted at random steps, each time for a world of any size."""
    for loader, times in OFTEN:
        for kind in KINDS:
            name = f"{kind}, {loader}, interrupted {times} times"
            chance = random.Random(name)
            step = 0
            for part in range(times + 1):
                step = step + chance.randrange(1, 10) if part < times else None
                path = os.path.join(job.folder, f"{name}.ckpt")
                if job.join(chance.choice((2, 3))):
                    go_on(job, name, loader, kind, part, path, step)


def go_on(job, name, loader, kind, part, path, stop):
    """Train from the checkpoint, if it is not the first part, and write it after `stop` steps in all, if that comes."""
    _, options = loader_options(kind, job.ds)
    made = LOADERS[loader](job.ds, collate_fn=ids_of, **options)
    more = {"resume": path, "callbacks": [ResumeAtAnyWorldSize()]} if part else {}
    fit(job, name, made, part=part, stop=(path, stop), use_distributed_sampler=False, **more)


def count(job):
    """Checkpoints of loaders that keep a last batch which is smaller, or leave it out."""
    for loader in ("ours", "stateful"):
        for drop_last in (False, True):
            for stop in COUNTED:
                name = f"counted, {loader}, {drop_last}, interrupted after {stop}"
                path = os.path.join(job.folder, f"{name}.ckpt")
                noted = Count()
                for more in ({"stop": (path, stop)}, {"resume": path}):
                    _, options = loader_options("sampler", job.ds)
                    made = LOADERS[loader](job.ds, collate_fn=ids_of, drop_last=drop_last, **options)
                    validation = DataLoader(job.ds, N, collate_fn=ids_of)
                    fit(job, name, made, validation=validation, callbacks=[ResumeAtAnyWorldSize(), noted], **more)
                job.say(name, noted.noted)


def validate(job):
    for flag, kind in ((True, "sampler"), (False, "batch")):
        _, options = loader_options(kind, job.ds)
        exact = mmapds.DistributedSampler(job.ds, shuffle=False, pad=False)
        validation = DataLoader(job.ds, BATCH, sampler=exact, collate_fn=ids_of)
        loader = DataLoader(job.ds, collate_fn=ids_of, **options)
        fit(job, f"exact, {flag}", loader, validation=validation, use_distributed_sampler=flag)


def main(folder):
    warnings.filterwarnings("ignore", module="lightning")
    job = Job(folder)
    if job.join(PROCESSES):
        fit_all_ways(job)
        interrupt(job)
        count(job)
        validate(job)
    change_worlds(job)
    change_worlds_often(job)
    job.write("job_lightning")


if __name__ == "__main__":
    main(*sys.argv[1:])
