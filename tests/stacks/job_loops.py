"""Own loops with DistributedDataParallel, interrupted at random steps, and continued by other numbers of processes."""

import random
import sys

from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import mmapds
from tests.support.stacks import EPOCHS, KINDS, Job, Model, ids_of, loader_options

PROCESSES = 3
LOADERS = ("plain", "stateful", "stateful with workers", "threads")
TIMES = (1, 2, 5)


def scenarios():
    """Return the name, the loader, the kind of sampler, and the number of interruptions of each scenario."""
    return [
        (f"{loader}, {kind}, {times} times", loader, kind, times)
        for loader in LOADERS
        for kind in KINDS
        for times in TIMES
        if loader != "stateful with workers" or times == 2  # starting workers takes longest
    ]


def train(job, name, loader_name, kind, part, state, stop):
    """Train from a state, for some steps at most; return the state after them, or None at the end."""
    model = DistributedDataParallel(Model())
    sampler, options = loader_options(kind, job.ds, seed=5)
    options["collate_fn"] = ids_of
    first = 0
    if loader_name == "threads":
        loader = mmapds.DataLoader(job.ds, num_workers=1, **options)
    elif loader_name == "plain":
        loader = DataLoader(job.ds, **options)
    else:
        loader = StatefulDataLoader(job.ds, num_workers=2 if "workers" in loader_name else 0, **options)
    if state is not None:
        (sampler if loader_name == "plain" else loader).load_state_dict(state["loader"])
        first = state["epoch"] if "stateful" in loader_name else sampler.epoch
    for epoch in range(first, EPOCHS):
        (loader if loader_name == "threads" else sampler).set_epoch(epoch)
        step = sampler.first_step if loader_name == "plain" else 0
        for ids in loader:
            model(ids).backward()  # the processes wait for each other
            job.read(name, epoch, ids, part)
            step += len(ids) if kind == "sampler" else 1
            stop -= 1
            if stop == 0 and loader_name == "plain":
                return {"loader": sampler.state_dict(step=step)}
            if stop == 0 and loader_name == "threads":
                return {"loader": loader.state_dict()}
            if stop == 0:
                return {"loader": loader.state_dict(), "epoch": epoch}
    return None


def main(folder):
    job = Job(folder)
    for name, loader, kind, times in scenarios():
        chance = random.Random(name)
        state = None
        for part in range(times + 1):
            world = chance.choice((1, 2, 3)) if part else 2
            stop = chance.randrange(1, 14) if part < times else 0
            after = train(job, name, loader, kind, part, state, stop) if job.join(world) else None
            state = job.share(f"{name}, {part}", after)
    job.write("job_loops")


if __name__ == "__main__":
    main(*sys.argv[1:])
