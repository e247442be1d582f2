"""A script for DistributedDataParallel as many have it, with torch's sampler and loader, and with ours instead."""

import sys

from tests.support.stacks import EPOCHS, Job, Model, ids_of

PROCESSES = 2
SCRIPT = """
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler


def train(ds, model, collate, epochs, read):
    model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    sampler = DistributedSampler(ds, shuffle=True, seed=3)
    loader = DataLoader(ds, batch_size=4, sampler=sampler, num_workers=1, pin_memory=False, collate_fn=collate)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for batch in loader:
            loss = model(batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            read(epoch, batch)
    return len(sampler), len(loader)
"""
TWO_LINES = {
    "from torch.utils.data import DataLoader": "from mmapds import DataLoader",
    "from torch.utils.data.distributed import DistributedSampler": "from mmapds import DistributedSampler",
}


def main(folder):
    job = Job(folder)
    job.join(PROCESSES)
    script = SCRIPT
    for name in ("torch's", "ours"):
        names = {}
        exec(script, names)
        steps = names["train"](
            job.ds, Model(), ids_of, EPOCHS, lambda epoch, ids, name=name: job.read(name, epoch, ids)
        )
        job.say(name, steps)
        for line, other in TWO_LINES.items():
            script = script.replace(line, other)
    job.write("job_script")


if __name__ == "__main__":
    main(*sys.argv[1:])
