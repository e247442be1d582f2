"""What samplers and orders give, frozen: states that users saved would otherwise name other samples.

`python -m tests.support.vectors` writes the file anew, where an order or a plan changes together with its version.
"""

import json
from hashlib import blake2b
from itertools import product

import numpy as np

from mmapds import (
    ChunkedSampler,
    DistributedBatchSampler,
    DistributedSampler,
    MixtureSampler,
    PackingBatchSampler,
    TokenBudgetBatchSampler,
    orders,
)
from tests.support.budgets import hard
from tests.support.files import ROOT

PATH = ROOT / "tests" / "data" / "samplers-v1.json"
N = 53
LENGTHS = np.arange(N) * 7 % 13 + 1
KINDS = {
    "index": lambda **options: DistributedSampler(range(N), **options),
    "chunked": lambda **options: ChunkedSampler(range(N), 7, mix_chunks=3, **options),
    "mixture": lambda **options: MixtureSampler([30, 23], [3, 2], epoch_size=N, **options),
    "batch": lambda **options: DistributedBatchSampler(range(N), 4, **options),
    "bucket": lambda **options: TokenBudgetBatchSampler(LENGTHS, 40, **options),
    "packs": lambda **options: PackingBatchSampler(LENGTHS, 40, **options),
}
SEEDS, WORLDS, EPOCHS, HARD = (0, 1, 2**63 + 5), (1, 2, 3), (0, 1), 240

LONG = np.prod(np.random.Generator(np.random.PCG64(5)).integers(1, 46, (2, 20_011)), axis=0)  # from 1 to 2,025
PLANS = {
    "bucket": lambda **world: TokenBudgetBatchSampler(LONG, 16_384, **world),
    "bucket, sums of squares": lambda **world: TokenBudgetBatchSampler(
        LONG, 16_384, cost="sum", quadratic_length=512, batch_size_multiple=8, max_batch_size=64, **world
    ),
    "bucket, left out": lambda **world: TokenBudgetBatchSampler(
        LONG, 1_000, oversize="drop", round_to=8, min_length=20, drop_last=True, group_size=4, **world
    ),
    "bucket, single": lambda **world: TokenBudgetBatchSampler(LONG, 1_000, oversize="single", shuffle=False, **world),
    "window": lambda **world: TokenBudgetBatchSampler(LONG, 16_384, planner="window", sort_window=1_000, **world),
    "window, chunks": lambda **world: TokenBudgetBatchSampler(
        LONG, 16_384, planner="window", order=orders.Chunked(len(LONG), 100, seed=3), batch_size_multiple=4, **world
    ),
    "packs": lambda **world: PackingBatchSampler(LONG, 2_048, **world),
    "packs, limited": lambda **world: PackingBatchSampler(
        LONG, 1_024, oversize="truncate", max_sequences=8, round_to=16, packs_per_batch=3, **world
    ),
    "packs in windows": lambda **world: PackingBatchSampler(
        LONG, 2_048, planner="window", order=orders.Chunked(len(LONG), 64, mix_chunks=8), **world
    ),
}
SIZES = (1, 2, 3, 7, 64, 65, 127, 1_023, 65_537)
ORDERS = {
    "sequential": orders.Sequential,
    "shuffled": lambda n: orders.Shuffled(n, seed=9),
    "resampled": lambda n: orders.Resampled(n, 2 * n + 1, seed=9),
    "chunked": lambda n: orders.Chunked(n, 5, mix_chunks=3, seed=9),
    "lanes": lambda n: orders.Chunked(n, 5, mix_chunks=3, seed=9, lanes=min(3, -(-n // 5)), lane_ranks=2),
    "mixture": lambda n: orders.Mixture([n, 3], [0.7, 0.3], seed=9),
}


def digest(numbers):
    """A short name for any nesting of integers."""
    return blake2b(json.dumps(numbers).encode(), digest_size=8).hexdigest()


def steps_of(make, world, epoch, **options):
    """The steps of an epoch, of all ranks."""
    samplers = [make(num_replicas=world, rank=rank, **options) for rank in range(world)]
    for sampler in samplers:
        sampler.set_epoch(epoch)
    return [list(step) for step in zip(*samplers, strict=True)]


def compute():
    """Return all vectors, by name."""
    vectors = {}
    for kind, seed, world, epoch in product(KINDS, SEEDS, WORLDS, EPOCHS):
        vectors[f"{kind}, seed {seed}, world {world}, epoch {epoch}"] = steps_of(KINDS[kind], world, epoch, seed=seed)
    for kind, world, epoch in product(PLANS, (1, 3), (0, 1, 7)):
        steps = steps_of(PLANS[kind], world, epoch)
        vectors[f"plan {kind}, world {world}, epoch {epoch}"] = [len(steps), digest(steps), steps[0][0][:5]]
    for number in range(HARD):
        lengths, budget, world, options = hard(number)
        sampler, found = TokenBudgetBatchSampler(lengths, budget, num_replicas=world, rank=0, **options), []
        for epoch in EPOCHS:
            sampler.set_epoch(epoch)
            found += [[each.tolist() for each in sampler.indices_at(step)] for step in range(len(sampler))]
        vectors[f"plan that is hard, {number}"] = [len(found), digest(found)]
    for kind, n, epoch in product(ORDERS, SIZES, (0, 1, 2**40)):
        order = ORDERS[kind](n)
        found = order.at(epoch, np.arange(len(order))).tolist()
        vectors[f"order {kind}, n {n}, epoch {epoch}"] = [len(found), digest(found), found[:5]]
    return vectors


def write():
    """Write the file of the vectors, one a line."""
    lines = [f"{json.dumps(name)}: {json.dumps(found, separators=(',', ':'))}" for name, found in compute().items()]
    PATH.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    write()
