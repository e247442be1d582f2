"""Lightning's Trainer over datasets, samplers and loaders of mmapds, at one and the other `use_distributed_sampler`."""

import os
import sys
import warnings

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import mmapds
from mmapds.integrations.lightning import ResumeAtAnyWorldSize
from tests.support.trainers import BATCH, EPOCHS, KINDS, Job, Model, ids_of, loader_options

PROCESSES, LAUNCHED = 2, 3
RESUMED = ("ours", "stateful", "stateful with workers")
PARTS = [  # worlds, and the steps that parts end after: within an epoch of 26 steps of two ranks, or at its end
    ([2, 2], [7]),
    ([2, 2, 2], [26, 30]),
    ([2, 3], [33]),
    ([3, 2, 3, 2], [4, 9, 20]),
]
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


def resume(job):
    """Jobs that are interrupted after some steps, each part in a world of its own."""
    for loader in RESUMED:
        for kind in KINDS:
            for worlds, stops in PARTS:
                name, path = f"{kind}, {loader}, {worlds}, {stops}", None
                for part, (world, stop) in enumerate(zip(worlds, [*stops, None], strict=True)):
                    before, path = path, os.path.join(job.folder, f"{name}-{part}.ckpt")
                    if job.join(world):
                        _, options = loader_options(kind, job.ds)
                        workers = 1 if "workers" in loader else 0
                        made = LOADERS[loader.split()[0]](job.ds, collate_fn=ids_of, num_workers=workers, **options)
                        more = {"resume": before, "callbacks": [ResumeAtAnyWorldSize()]} if part else {}
                        fit(job, name, made, part=part, stop=(path, stop), use_distributed_sampler=False, **more)


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
        validate(job)
    resume(job)
    job.write("job_lightning")


if __name__ == "__main__":
    main(*sys.argv[1:])
