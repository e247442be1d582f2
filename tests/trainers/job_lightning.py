"""Lightning's Trainer, and Fabric, over datasets, samplers and loaders of mmapds."""

import itertools
import sys
import warnings

import lightning.pytorch as pl
import torch
from lightning.fabric import Fabric
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import mmapds
from mmapds.integrations.lightning import ResumeAtAnyWorldSize
from tests.support.trainers import BATCH, EPOCHS, KINDS, PROCESSES, Job, Model, ids_of, loader_options, train

LOADERS = {"plain": DataLoader, "ours": mmapds.DataLoader, "stateful": StatefulDataLoader}
RESUMED = ("ours", "stateful", "stateful with workers")
# Worlds, and the steps that parts end after: at the end of an epoch of 26 steps of two ranks, or within it.
PARTS = [([2, 2, 2], [26, 30]), ([3, 2, 3, 2], [4, 9, 20])]
FABRIC = [2, 3], [33]


class Learner(pl.LightningModule):
    """Records the batches that it trains on."""

    def __init__(self, job, name, part):
        super().__init__()
        self.model = Model()
        self.job, self.name, self.part = job, name, part

    def training_step(self, ids):
        self.job.read(self.name, self.current_epoch, ids, self.part)
        return self.model(ids)

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), 0.1)
        if self.name.startswith("batch"):
            return optimizer
        steps = 2 * self.trainer.estimated_stepping_batches  # which sets up the loaders; worlds differ in steps
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Interrupted(Exception):  # noqa: N818 - nothing is wrong
    """The end of a part."""


class Stop(pl.Callback):
    """Saves a checkpoint after some steps, and ends the job there, as a crash would."""

    def __init__(self, path, step):
        self.path, self.step = path, step

    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step == self.step:
            trainer.save_checkpoint(self.path)
            raise Interrupted


def fit(job, name, loader, *, part=0, stop=None, resume=None, flag=False):
    """Train for some epochs, or until a step; the flag is `use_distributed_sampler`."""
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    callbacks = [*([ResumeAtAnyWorldSize()] if part else []), *([Stop(*stop)] if stop else [])]
    options = {"use_distributed_sampler": flag, "max_epochs": EPOCHS, "num_sanity_val_steps": 0, "callbacks": callbacks}
    devices = {"accelerator": "cpu", "devices": torch.distributed.get_world_size(), "strategy": "ddp"}
    trainer = pl.Trainer(**quiet, **options, **devices)
    try:
        trainer.fit(Learner(job, name, part), loader, ckpt_path=resume)
    except Interrupted:
        assert stop


def loader_of(job, kind, loader):
    """Return a loader over a sampler of a kind, and the sampler."""
    sampler, options = loader_options(kind, job.ds)
    workers = 1 if "workers" in loader else 0
    return LOADERS[loader.split()[0]](job.ds, collate_fn=ids_of, num_workers=workers, **options), sampler


def fit_all_ways(job):
    for loader in ("plain", "ours"):
        for flag, kind in itertools.product((True, False), KINDS):
            name = f"{kind}, {loader}, {flag}"
            with job.refused(name, mmapds.OrderError, TypeError):  # ours, or Lightning's own
                fit(job, name, loader_of(job, kind, loader)[0], flag=flag)
        shuffled = LOADERS[loader](job.ds, BATCH, shuffle=True, collate_fn=ids_of)  # for Lightning's own sampler
        fit(job, f"dataset, {loader}, True", shuffled, flag=True)


def resume(job):
    """Jobs that are interrupted after some steps; most have a schedule, which asks how many steps there are."""
    for loader, kind, (worlds, stops) in itertools.product(RESUMED, KINDS, PARTS):
        name = f"{kind}, {loader}, {worlds}, {stops}"
        for part, _, stop, before, path in job.parts(name, worlds, stops):
            fit(job, name, loader_of(job, kind, loader)[0], part=part, stop=(path, stop), resume=before)


def fabric(job):
    """Fabric's loop over loaders as they are; those that it sets up count epochs from 0."""
    for kind in KINDS:
        name = f"{kind}, fabric"
        for part, world, stop, before, path in job.parts(name, *FABRIC):
            fabric = Fabric(accelerator="cpu", devices=world, strategy="ddp")
            fabric.launch()
            model = Model()
            model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), 0.1))
            loader, sampler = loader_of(job, kind, "ours")
            state = {"model": model, "optimizer": optimizer, "loader": loader}
            if part:
                fabric.load(before, state)
                with job.refused(f"{name}, set up", UserWarning):
                    for ids in fabric.setup_dataloaders(loader, use_distributed_sampler=False):
                        job.read(f"{name}, set up", 0, ids)
            train(job, name, model, optimizer, loader, sampler, backward=fabric.backward, part=part, stop=stop)
            fabric.save(path, state)


def main(folder):
    warnings.filterwarnings("ignore", module="lightning")
    job = Job(folder)
    if job.join(PROCESSES):
        fit_all_ways(job)
    fabric(job)
    resume(job)
    job.write("job_lightning")


if __name__ == "__main__":
    main(*sys.argv[1:])
