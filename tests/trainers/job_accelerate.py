"""accelerate's `prepare`: samplers of one process, which it shares out, and loaders that stay as they are."""

import sys

import torch
from accelerate import Accelerator, DataLoaderConfiguration, skip_first_batches
from accelerate.state import AcceleratorState, GradientState
from torch.utils.data import DataLoader

import mmapds
from tests.support.trainers import BATCH, EPOCHS, KINDS, Job, Model, ids_of, loader_options

PROCESSES, LAUNCHED = 2, 3
CONFIGURATIONS = {
    "plain": {},
    "stateful": {"use_stateful_dataloader": True},
    "dispatched": {"dispatch_batches": True},
    "split": {"split_batches": True},
    "dispatched and split": {"dispatch_batches": True, "split_batches": True},
}
WHOLE = {"num_replicas": 1, "rank": 0}  # of one process: accelerate shares out its batches
LOADERS = {"torch's": DataLoader, "ours": mmapds.DataLoader}


def accelerator_of(configuration):
    return Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**CONFIGURATIONS[configuration]))


def options_of(job, kind, **world):
    """Return the arguments of a sampler's loader; neighbouring batches of a budget are as many as there are ranks."""
    return loader_options(kind, job.ds, **world, **({"group_size": PROCESSES} if kind == "tokens" else {}))


def train(job, name, accelerator, loader, sampler, *, skip=0, stop=None, part=0, gather=False):
    """Train from the sampler's epoch on; return after `stop` steps of the first epoch, if that is given."""
    model, optimizer = Model(), None
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1))
    begun = sampler.epoch
    for epoch in range(begun, EPOCHS):
        # A prepared loader counts epochs, and tells the sampler: where it is not told, it begins with epoch 0.
        (loader if hasattr(loader, "set_epoch") else sampler).set_epoch(epoch)
        for done, ids in enumerate(skip_first_batches(loader, skip) if skip and epoch == begun else loader, 1):
            optimizer.zero_grad()
            accelerator.backward(model(ids))  # the processes wait for each other
            optimizer.step()
            job.read(name, epoch, ids, part)
            if gather:
                gathered = accelerator.gather_for_metrics(ids)
                if job.rank == 0:
                    job.read(f"{name}, gathered", epoch, gathered)
            if done == stop:
                return


def prepare(job):
    """Prepared loaders, over samplers of one process; and loaders that are not prepared, over samplers of all."""
    for configuration in CONFIGURATIONS:
        accelerator = accelerator_of(configuration)
        for kind in KINDS:
            for loader, make in LOADERS.items():
                name = f"{configuration}, {kind}, {loader}"
                sampler, options = options_of(job, kind, **WHOLE)
                try:
                    prepared = accelerator.prepare(make(job.ds, collate_fn=ids_of, **options))
                    train(job, name, accelerator, prepared, sampler, gather=kind != "tokens")
                except ValueError as error:  # ours, or accelerate's own
                    job.say(name, str(error))
    for kind in KINDS:
        sampler, options = loader_options(kind, job.ds)
        made = mmapds.DataLoader(job.ds, collate_fn=ids_of, num_workers=1, **options)
        train(job, f"not prepared, {kind}", accelerator_of("plain"), made, sampler)


def share_twice(job):
    """Loaders that are prepared though their samplers share out the samples themselves."""
    for configuration in ("plain", "stateful", "dispatched"):
        accelerator = accelerator_of(configuration)
        # Where batches are dispatched, the first process alone asks a sampler, while the others wait.
        for kind in ("batch",) if configuration == "dispatched" else KINDS:
            for loader, make in LOADERS.items():
                name = f"twice, {configuration}, {kind}, {loader}"
                _, options = loader_options(kind, job.ds)
                try:
                    for ids in accelerator.prepare(make(job.ds, collate_fn=ids_of, **options)):
                        job.read(name, 0, ids)
                except mmapds.OrderError as error:
                    job.say(name, str(error))


def resume(job):
    """Jobs that go on within an epoch: by skipping batches, and by the state of the sampler in any world."""
    for way, worlds in (("skip", [2, 2]), ("state", [2, 2]), ("state", [2, 3]), ("state", [3, 2])):
        for kind in KINDS:
            name, state, steps = f"resumed by {way}, {kind}, {worlds}", None, 5
            for part, world in enumerate(worlds):
                GradientState._reset_state()
                AcceleratorState._reset_state(reset_partial_state=True)
                if job.join(world):
                    sampler, options = options_of(job, kind, **WHOLE)
                    if state is not None:
                        sampler.load_state_dict(state)
                    accelerator = accelerator_of("plain")
                    prepared = accelerator.prepare(DataLoader(job.ds, collate_fn=ids_of, **options))
                    skip = steps if part and way == "skip" else 0
                    train(job, name, accelerator, prepared, sampler, skip=skip, stop=None if part else steps, part=part)
                    if way == "state":
                        # The sampler is that of one process, with the steps of all: samples, or batches.
                        state = sampler.state_dict(step=steps * world * (BATCH if kind == "sampler" else 1))
                state = job.share(f"{name}, {part}", state)


def main(folder):
    job = Job(folder)
    if job.join(PROCESSES):
        prepare(job)
        share_twice(job)
    resume(job)
    job.write("job_accelerate")


if __name__ == "__main__":
    main(*sys.argv[1:])
