"""accelerate's `prepare`: samplers of one process, which it shares out, and loaders that stay as they are."""

import random
import sys

import torch
from accelerate import Accelerator, DataLoaderConfiguration, skip_first_batches
from accelerate.state import AcceleratorState, GradientState
from torch.utils.data import DataLoader

import mmapds
from tests.support.stacks import BATCH, EPOCHS, KINDS, Job, Model, ids_of, loader_options

PROCESSES, LAUNCHED = 2, 3
TIMES = (1, 2, 5)
CUTTING = {  # ways in which accelerate cuts batches
    "dispatched": {"dispatch_batches": True},
    "split": {"split_batches": True},
    "dispatched and split": {"dispatch_batches": True, "split_batches": True},
}
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


def cut(job, how):
    """Prepared loaders that cut batches: of one process that reads for all, of every process, or both."""
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**CUTTING[how]))
    for kind in KINDS:
        for loader in LOADERS:
            name = f"{how}, {kind}, {loader}"
            sampler, options = options_of(job, kind, **WHOLE)
            try:
                prepared = accelerator.prepare(LOADERS[loader](job.ds, collate_fn=ids_of, **options))
                train(job, name, accelerator, prepared, sampler, gather=True)
            except ValueError as error:  # ours, or accelerate's own
                job.say(name, str(error))


def interrupt_often(job):
    """Prepared loaders that go on from random steps, in other worlds too where the sampler has the state."""
    for way in ("skip", "state"):
        for kind in KINDS:
            for times in TIMES:
                name = f"{way}, {kind}, {times} times"
                chance = random.Random(name)
                at = None
                for part in range(times + 1):
                    world = chance.choice((2, 3)) if way == "state" and kind != "tokens" else 2
                    stop = chance.randrange(1, 10) if part < times else 0
                    after = go_on(job, name, way, kind, part, at, stop) if join(job, world) else None
                    at = job.share(f"{name}, {part}", after)


def join(job, world):
    """Make a world of that size; return whether this process is in it."""
    GradientState._reset_state()
    AcceleratorState._reset_state(reset_partial_state=True)
    return job.join(world)


def go_on(job, name, way, kind, part, at, stop):
    """Train for `stop` steps, from where the last part ended; return where this one does."""
    sampler, options = options_of(job, kind, **WHOLE)
    if at is not None and way == "state":
        sampler.load_state_dict(at["state"])
    first, skip = (at["epoch"], at["steps"]) if at is not None and way == "skip" else (sampler.epoch, 0)
    accelerator = Accelerator(cpu=True)
    loader = accelerator.prepare(DataLoader(job.ds, collate_fn=ids_of, **options))
    model = accelerator.prepare(Model())
    for epoch in range(first, EPOCHS):
        loader.set_epoch(epoch)
        begun = sampler.first_step
        for done, ids in enumerate(skip_first_batches(loader, skip) if skip else loader, skip + 1):
            accelerator.backward(model(ids))  # the processes wait for each other
            job.read(name, epoch, ids, part)
            if done - skip == stop:
                # The sampler is that of one process, with the steps of all: samples, or batches.
                step = begun + done * accelerator.num_processes * (BATCH if kind == "sampler" else 1)
                state = sampler.state_dict(step=min(step, len(sampler))) if way == "state" else None
                return {"epoch": epoch, "steps": done, "state": state}
        stop -= done - skip
        skip = 0
    return None


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
    if job.join(PROCESSES):
        in_two_processes(job)
    interrupt_often(job)
    job.write("job_accelerate")


def in_two_processes(job):
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
            if kind == "batch":  # of a sampler the first process alone is asked, while the others wait
                dispatching = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(dispatch_batches=True))
                share_twice(job, dispatching, "dispatched", kind, loader)
    for how in CUTTING:
        cut(job, how)


if __name__ == "__main__":
    main(*sys.argv[1:])
