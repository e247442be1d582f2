"""accelerate's `prepare`: samplers of one process, which it shares out, and loaders that stay as they are."""

import itertools
import json
import sys
from pathlib import Path

import torch
from accelerate import Accelerator, DataLoaderConfiguration, skip_first_batches
from torch.utils.data import DataLoader

import mmapds
from tests.support.trainers import BATCH, KINDS, PROCESSES, Job, Model, ids_of, loader_options, train

CONFIGURATIONS = {
    "plain": {},
    "stateful": {"use_stateful_dataloader": True},
    "dispatched": {"dispatch_batches": True},
    "split": {"split_batches": True},
}
TWICE = [("plain", "sampler"), ("plain", "tokens"), ("stateful", "batch"), ("dispatched", "batch")]
LOADERS = {"torch's": DataLoader, "ours": mmapds.DataLoader}
RESUMED = [("skip", [2, 2]), ("state", [3, 2])]
STEPS = 5  # until a job is interrupted


def make(job, kind, loader="torch's", *, is_whole=True):
    """Return a loader and its sampler: that of one process if it is whole, which accelerate shares out."""
    world = {"num_replicas": 1, "rank": 0} if is_whole else {}
    if kind == "tokens" and is_whole:
        world["group_size"] = PROCESSES
    sampler, options = loader_options(kind, job.ds, **world)
    return LOADERS[loader](job.ds, collate_fn=ids_of, **options), sampler


def accelerator_of(configuration):
    return Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**CONFIGURATIONS[configuration]))


def fit(job, name, accelerator, loader, sampler, *, skip=0, stop=None, part=0, gather=False):
    """Train from the sampler's epoch on, and gather what was read, as metrics are."""
    model = Model()
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1))

    def gather_ids(epoch, ids):
        gathered = accelerator.gather_for_metrics(ids)
        if job.rank == 0:
            job.read(f"{name}, gathered", epoch, gathered)

    options = {"part": part, "stop": stop, "after": gather_ids if gather else None}
    options["first"] = skip_first_batches(loader, skip) if skip else None
    train(job, name, model, optimizer, loader, sampler, backward=accelerator.backward, **options)


def prepare(job):
    """Prepared loaders over samplers of one process, and over those that share out the samples themselves."""
    for configuration, kind, each in itertools.product(CONFIGURATIONS, KINDS, LOADERS):
        accelerator, name = accelerator_of(configuration), f"{configuration}, {kind}, {each}"
        with job.refused(name, ValueError):  # ours, or accelerate's own
            loader, sampler = make(job, kind, each)
            fit(job, name, accelerator, accelerator.prepare(loader), sampler, gather=kind != "tokens")
        if (configuration, kind) in TWICE:
            with job.refused(f"twice, {name}", mmapds.OrderError):
                for ids in accelerator.prepare(make(job, kind, each, is_whole=False)[0]):
                    job.read(f"twice, {name}", 0, ids)
    for kind in KINDS:
        loader, sampler = make(job, kind, "ours", is_whole=False)
        fit(job, f"not prepared, {kind}", accelerator_of("plain"), loader, sampler)


def resume(job):
    """Jobs that go on within an epoch: by skipping batches, and by the state of the sampler in any world."""
    for (way, worlds), kind in itertools.product(RESUMED, KINDS):
        name = f"{way}, {kind}, {worlds}"
        for part, world, stop, before, path in job.parts(name, worlds, [STEPS]):
            loader, sampler = make(job, kind)
            if part and way == "state":
                sampler.load_state_dict(json.loads(Path(before).read_text()))
            accelerator = accelerator_of("plain")
            skip = STEPS if part and way == "skip" else 0
            fit(job, name, accelerator, accelerator.prepare(loader), sampler, skip=skip, stop=stop, part=part)
            # The sampler is that of one process, with the steps of all: samples, or batches.
            state = sampler.state_dict(step=STEPS * world * (BATCH if kind == "sampler" else 1))
            if job.rank == 0:
                Path(path).write_text(json.dumps(state))


def main(folder):
    job = Job(folder)
    if job.join(PROCESSES):
        prepare(job)
    resume(job)
    job.write("job_accelerate")


if __name__ == "__main__":
    main(*sys.argv[1:])
