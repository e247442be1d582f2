"""Samplers of every kind, and the loaders that read them, for tests of states and epochs."""

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler
from torchdata.stateful_dataloader import StatefulDataLoader

import mmapds
from mmapds import (
    ChunkedSampler,
    DistributedBatchSampler,
    DistributedSampler,
    MixtureSampler,
    PackingBatchSampler,
    TokenBudgetBatchSampler,
)

N, BATCH = 200, 6
LENGTHS = np.arange(N) % 13 + 1
KINDS = {
    "index": lambda **options: DistributedSampler(range(N), **options),
    "chunked": lambda **options: ChunkedSampler(range(N), 7, **options),
    "mixture": lambda **options: MixtureSampler([120, 80], [3, 2], epoch_size=N, **options),
    "batch": lambda **options: DistributedBatchSampler(range(N), BATCH, **options),
    "bucket": lambda **options: TokenBudgetBatchSampler(LENGTHS, 40, **options),
    "window": lambda **options: TokenBudgetBatchSampler(LENGTHS, 40, planner="window", **options),
    "packs": lambda **options: PackingBatchSampler(LENGTHS, 40, **options),
    "packs in windows": lambda **options: PackingBatchSampler(
        LENGTHS, 40, planner="window", order=mmapds.orders.Chunked(N, 7, mix_chunks=3), **options
    ),
}
every_kind = pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
WORLD = {"num_replicas": 2, "rank": 1}


def epochs_of(make, epochs, **options):
    """What a sampler that is never interrupted yields in some epochs."""
    sampler, found = make(**options), []
    for epoch in epochs:
        sampler.set_epoch(epoch)
        found.append(list(sampler))
    return found


def loader_over(sampler, cls=StatefulDataLoader, **options):
    batched = isinstance(sampler, BatchSampler)
    own = {"batch_sampler": sampler} if batched else {"sampler": sampler, "batch_size": BATCH}
    return cls(range(N), collate_fn=list, **own, **options)


def batches_of(make, epochs):
    """The batches of some epochs, as a loader gives them."""
    sampler = make()
    loader, found = loader_over(sampler, torch.utils.data.DataLoader), []
    for epoch in epochs:
        sampler.set_epoch(epoch)
        found.append(list(loader))
    return found


LOADERS = {
    "torchdata": lambda sampler: loader_over(sampler),
    "torchdata, 2 workers": lambda sampler: loader_over(sampler, num_workers=2),
    "torchdata, 2 persistent workers": lambda sampler: loader_over(sampler, num_workers=2, persistent_workers=True),
    "torchdata, 2 workers, rare snapshots": lambda s: loader_over(s, num_workers=2, snapshot_every_n_steps=7),
    "ours": lambda sampler: loader_over(sampler, mmapds.DataLoader),
    "ours, 2 threads": lambda sampler: loader_over(sampler, mmapds.DataLoader, num_workers=2),
}
# Starting processes takes longest, so they serve two kinds only.
PAIRS = [(kind, each) for each in LOADERS for kind in KINDS if "workers" not in each or kind in ("index", "bucket")]
every_pair = pytest.mark.parametrize(
    ("make", "load"),
    [(KINDS[kind], LOADERS[each]) for kind, each in PAIRS],
    ids=[f"{kind}, {each}" for kind, each in PAIRS],
)
