"""Samplers of every kind, over 200 samples."""

import numpy as np
import pytest

from mmapds import (
    ChunkedSampler,
    DistributedBatchSampler,
    DistributedSampler,
    MixtureSampler,
    PackingBatchSampler,
    TokenBudgetBatchSampler,
    orders,
)

N = 200
LENGTHS = np.arange(N) % 13 + 1
KINDS = {
    "index": lambda n=N, **options: DistributedSampler(range(n), **options),
    "chunked": lambda n=N, **options: ChunkedSampler(range(n), 7, **options),
    "lanes": lambda n=N, **options: ChunkedSampler(range(n), 7, mix_chunks=2, lanes=3, **options),
    "mixture": lambda n=N, **options: MixtureSampler([n - 80, 80], [3, 2], epoch_size=n, **options),
    "batch": lambda n=N, size=4, **options: DistributedBatchSampler(range(n), size, **options),
    "bucket": lambda n=N, budget=40, **options: TokenBudgetBatchSampler(LENGTHS[:n], budget, **options),
    "window": lambda n=N, **options: TokenBudgetBatchSampler(LENGTHS[:n], 40, planner="window", **options),
    "packs": lambda size=1, budget=40, **options: PackingBatchSampler(LENGTHS, budget, packs_per_batch=size, **options),
    "packs in windows": lambda **options: PackingBatchSampler(
        LENGTHS, 40, planner="window", order=orders.Chunked(N, 7, mix_chunks=3), **options
    ),
}
every_kind = pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
WORLD = {"num_replicas": 2, "rank": 1}
SIZED = (KINDS["batch"], KINDS["packs"])


def ranks_of(make, world, size=None):
    """The samplers of all ranks; `size` is that of batches, of kinds that have one."""
    sized = {"size": size} if size is not None and make in SIZED else {}
    return [make(num_replicas=world, rank=rank, **sized) for rank in range(world)]


def records_in(steps):
    """The records of steps of an index or a batch sampler."""
    return [record for step in steps for record in (step if isinstance(step, list) else [step])]


def union(samplers):
    """What all ranks get, in the order of the steps."""
    return [each for step in zip(*samplers, strict=True) for each in step]


def epoch_of(make, epoch, **options):
    """The steps of an epoch of a sampler that is never interrupted."""
    sampler = make(**options)
    sampler.set_epoch(epoch)
    return list(sampler)
