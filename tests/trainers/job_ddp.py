"""DistributedDataParallel in an own loop, until a process is killed; started again, it goes on from its checkpoint."""

import json
import os
import signal
import sys
from collections import Counter
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import mmapds
from tests.support.trainers import KINDS, Job, Model, ids_of, loader_options, train

EVERY = 5  # steps between checkpoints
NAMES = [f"{kind}, {workers}" for workers in ("processes", "threads") for kind in KINDS]


def checkpoint(path, state, seen):
    """Write the state, and what all ranks have trained on: the samples that are in the model, one could say."""
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, seen)
    if dist.get_rank() == 0:
        new = Path(f"{path}.new")
        new.write_text(json.dumps({"state": state, "seen": [each for rank in everyone for each in rank]}))
        new.replace(path)
    dist.barrier()


def fit(job, name, stop):
    """Train as an own loop does; return after `stop` steps, between two checkpoints. Then a rank of the last dies."""
    kind, workers = name.split(", ")
    path = Path(job.folder, f"{name}.checkpoint")
    model = DistributedDataParallel(Model())
    sampler, options = loader_options(kind, job.ds)
    is_ours, seen = workers == "threads", []
    loader = (mmapds.DataLoader if is_ours else DataLoader)(job.ds, num_workers=1, collate_fn=ids_of, **options)
    if path.exists():
        saved = json.loads(path.read_text())
        (loader if is_ours else sampler).load_state_dict(saved["state"])
        seen = saved["seen"] if job.rank == 0 else []
    in_epoch = Counter({sampler.epoch: sampler.first_step})  # steps, of samples where the sampler has those

    def save(epoch, ids, step):
        seen.append((epoch, ids.tolist()))
        in_epoch[epoch] += len(ids) if kind == "sampler" else 1
        if step % EVERY == 0:
            checkpoint(path, loader.state_dict() if is_ours else sampler.state_dict(step=in_epoch[epoch]), seen)
        if step == stop and name == NAMES[-1] and job.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)  # its loader has workers, and the others wait for its gradients

    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    stop_here = stop if name != NAMES[-1] else None
    train(
        job,
        f"{name}, since",
        model,
        optimizer,
        loader,
        sampler,
        backward=torch.Tensor.backward,
        after=save,
        stop=stop_here,
    )
    for epoch, ids in seen:
        job.read(name, epoch, ids)


def main(folder, stop):
    job = Job(folder)
    job.join(job.launched)
    for name in NAMES:
        fit(job, name, int(stop))
    job.write("job_ddp")


if __name__ == "__main__":
    main(*sys.argv[1:])
