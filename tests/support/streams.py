"""A dataset whose streams tests read, and loaders over them."""

from importlib import import_module

from torch.utils.data import DataLoader

import mmapds

N = 203
import_module("numpy.random")  # as workers of torch would, which fails in Python 3.11 where garbage imports too

KINDS = {
    "samples": {},
    "batches": {"batch_size": 4},
}
PROCESSES = [(0, None), (1, "fork"), (2, "fork"), (2, "spawn")]
"""How many workers there are, and how they are made."""


def streamed(write):
    path = write([{"id": i, "n": 1 + i % 7} for i in range(N)])
    mmapds.build(path, length="n")
    return mmapds.open(path)


def ids(batch):
    return [sample["id"] for sample in batch]


def loader_of(stream, kind, workers, make=DataLoader, **options):
    size = None if kind == "batches" else 4
    return make(stream, batch_size=size, num_workers=workers, collate_fn=ids, **options)
