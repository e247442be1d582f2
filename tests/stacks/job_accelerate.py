"""accelerate's `prepare`: samplers of one process, which it shares out, and loaders that stay as they are."""

import sys

import torch
from accelerate import Accelerator, DataLoaderConfiguration, skip_first_batches
from torch.utils.data import DataLoader

import mmapds
from tests.support.stacks import BATCH, EPOCHS, KINDS, Job, Model, ids_of, loader_options

PROCESSES = 2
WHOLE = {"num_replicas": 1, "rank": 0}  # of one process: accelerate shares out its batches
LOADERS = {"plain": DataLoader, "ours": mmapds.DataLoader}


def options_of(job, kind, **world):
    """Return the arguments of a sampler's loader; neighbouring batches of a budget are as many as there are ranks."""
    return loader_options(kind, job.ds, **world, **({"group_size": PROCESSES} if kind == "tokens" else {}))


def step(model, optimizer, ids, accelerator):
    optimizer.zero_grad()
    accelerator.backward(model(ids))
    optimizer.step()


def train(job, name, accelerator, loader, sampler, *, first=0, skip=0, stop=None, part=0, gather=False):
    """Train for some epochs; return after `stop` steps of an epoch."""
    model = Model()
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1))
    for epoch in range(first, EPOCHS):
        # A prepared loader counts epochs, and tells the sampler: where it is not told, it begins with epoch 0.
        (loader if hasattr(loader, "set_epoch") else sampler).set_epoch(epoch)
        of_epoch = skip_first_batches(loader, skip) if skip and epoch == first else loader
        for done, ids in enumerate(of_epoch, 1):
            step(model, optimizer, ids, accelerator)
            job.read(name, epoch, ids, part)
            if gather:
                gathered = accelerator.gather_for_metrics(ids)
                if job.rank == 0:
                    job.read(f"{name}, gathered", epoch, gathered)
            if stop == (epoch, done):
                return


def prepare(job, accelerator, stateful):
    """Prepared loaders, over samplers of one process."""
    for kind in KINDS:
        for loader in LOADERS:
            name = f"prepared, {kind}, {loader}{', stateful' if stateful else ''}"
            sampler, options = options_of(job, kind, **WHOLE)
            prepared = accelerator.prepare(LOADERS[loader](job.ds, collate_fn=ids_of, **options))
            train(job, name, accelerator, prepared, sampler, gather=kind != "tokens")


def resume(job, accelerator):
    """Prepared loaders that go on within the second epoch: by skipping batches, and by the state of the sampler."""
    for way in ("skip", "state"):
        for kind in KINDS:
            name = f"resumed by {way}, {kind}"
            sampler, options = options_of(job, kind, **WHOLE)
            prepared = accelerator.prepare(DataLoader(job.ds, collate_fn=ids_of, **options))
            train(job, name, accelerator, prepared, sampler, stop=(1, 5))
            # The sampler is that of one process, with the steps of all: samples, or batches.
            state = sampler.state_dict(step=5 * PROCESSES * (BATCH if kind == "sampler" else 1))
            sampler, options = options_of(job, kind, **WHOLE)
            if way == "state":
                sampler.load_state_dict(state)
            prepared = accelerator.prepare(DataLoader(job.ds, collate_fn=ids_of, **options))
            skip = 5 if way == "skip" else 0
            train(job, name, accelerator, prepared, sampler, first=1, skip=skip, part=1)


def keep(job, accelerator):
    """Loaders that are not prepared, over samplers that share out the samples."""
    for kind in KINDS:
        for loader in LOADERS:
            sampler, options = loader_options(kind, job.ds)
            made = LOADERS[loader](job.ds, collate_fn=ids_of, num_workers=1, **options)
            train(job, f"not prepared, {kind}, {loader}", accelerator, made, sampler)


def share_twice(job, accelerator, how, kind, loader):
    name = f"twice, {how}, {kind}, {loader}"
    _, options = loader_options(kind, job.ds)
    try:
        for ids in accelerator.prepare(LOADERS[loader](job.ds, collate_fn=ids_of, **options)):
            job.read(name, 0, ids)
    except mmapds.OrderError as error:
        job.say(name, str(error))


def main(folder):
    job = Job(folder)
    job.join(PROCESSES)
    plain = Accelerator(cpu=True)
    stateful = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(use_stateful_dataloader=True))
    prepare(job, plain, False)
    prepare(job, stateful, True)
    resume(job, plain)
    keep(job, plain)
    for kind in KINDS:
        for loader in LOADERS:
            share_twice(job, plain, "prepare", kind, loader)
            share_twice(job, stateful, "stateful", kind, loader)
    job.write("job_accelerate")


if __name__ == "__main__":
    main(*sys.argv[1:])
