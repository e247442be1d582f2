"""DistributedDataParallel in an own loop, until a process is killed; started again, it goes on from its checkpoint."""

import json
import os
import signal
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import mmapds
from tests.support.trainers import EPOCHS, KINDS, Job, Model, ids_of, loader_options

EVERY = 5  # steps between checkpoints


def checkpoint(path, state, seen):
    """Write the state, and what all ranks have trained on: the samples that are in the model, one could say."""
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, seen)
    if dist.get_rank() == 0:
        with open(f"{path}.new", "w") as file:
            json.dump({"state": state, "seen": everyone}, file)
        os.replace(f"{path}.new", path)
    dist.barrier()


def load(path):
    """Return the state of the checkpoint, and what was trained on before it, in the form that rank 0 goes on with."""
    if not os.path.exists(path):
        return None, []
    with open(path) as file:
        saved = json.load(file)
    return saved["state"], [each for rank in saved["seen"] for each in rank] if dist.get_rank() == 0 else []


def train(job, kind, ours, stop):
    """Train as an own loop does; return after `stop` steps, between two checkpoints, if that is not None."""
    path = os.path.join(job.folder, f"{kind}{'-threads' if ours else ''}.checkpoint")
    model = DistributedDataParallel(Model())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    sampler, options = loader_options(kind, job.ds)
    make = mmapds.DataLoader if ours else DataLoader
    loader = make(job.ds, num_workers=1, collate_fn=ids_of, **options)
    state, seen = load(path)
    if state is not None:
        (loader if ours else sampler).load_state_dict(state)
    done = 0
    for epoch in range(sampler.epoch, EPOCHS):
        sampler.set_epoch(epoch)
        step = sampler.first_step
        for ids in loader:
            optimizer.zero_grad()
            model(ids).backward()  # the ranks wait for each other
            optimizer.step()
            seen.append((epoch, ids.tolist()))
            step += len(ids) if kind == "sampler" else 1
            done += 1
            if done % EVERY == 0:
                checkpoint(path, loader.state_dict() if ours else sampler.state_dict(step=step), seen)
            if done == stop:
                if (kind, ours) == (KINDS[-1], True) and job.rank == 1:
                    os.kill(
                        os.getpid(), signal.SIGKILL
                    )  # its loader has workers, and the others wait for its gradients
                if (kind, ours) != (KINDS[-1], True):
                    return
    for epoch, ids in seen:
        job.read(f"{kind}, {'threads' if ours else 'processes'}", epoch, ids)


def main(folder, stop):
    job = Job(folder)
    job.join(job.launched)
    for ours in (False, True):
        for kind in KINDS:
            train(job, kind, ours, int(stop))
    job.write("job_ddp")


if __name__ == "__main__":
    main(*sys.argv[1:])
