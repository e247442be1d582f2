"""Lengths as data sets have them, and the batches of all ranks."""

from functools import partial

import numpy as np

from mmapds import TokenBudgetBatchSampler


def log_normal(n, longest=2048, seed=0, middle=5.5, width=0.8):
    lengths = np.exp(np.random.default_rng(seed).normal(middle, width, n))
    return np.clip(lengths, 1, longest).astype(np.int64)


def steps_of(kind, lengths, limit, world, epoch=0, state=None, **options):
    """The batches of samplers of a kind, in an epoch or after a state: of each step, those of all ranks."""
    samplers = [kind(lengths, limit, num_replicas=world, rank=rank, **options) for rank in range(world)]
    for sampler in samplers:
        sampler.set_epoch(epoch) if state is None else sampler.load_state_dict(state)
    steps = list(zip(*samplers, strict=True))
    if "exclude" not in options and state is None:
        assert all(len(sampler) == len(steps) for sampler in samplers)
    return steps


ranks = partial(steps_of, TokenBudgetBatchSampler)


def flat(steps):
    return [record for step in steps for batch in step for record in batch]


def check(lengths, steps, cost, budget, largest=2**31):
    """Every batch holds something, and is within budget."""
    for step in steps:
        for batch in step:
            assert 1 <= len(batch) <= largest
            assert max(cost(int(lengths[record])) for record in batch) * len(batch) <= budget


def hard(number):
    """Few lengths, a budget, a world whose last step hardly has a sample for each rank, and options."""
    chance = np.random.Generator(np.random.PCG64(number))
    n, multiple, kinds = (int(chance.choice(among)) for among in ((3, 20, 60, 300), (1, 1, 2, 3, 8), (1, 2, 3, 40)))
    lengths = chance.choice(chance.integers(1, 60, kinds), n)
    budget = int(lengths.max() * chance.choice([1, 2, 5, 11, multiple, 2 * multiple + 1]))
    options = {"planner": ("bucket", "window")[number % 2], "batch_size_multiple": multiple, "shuffle": number % 5 > 0}
    batches = len(TokenBudgetBatchSampler(lengths, budget, num_replicas=1, rank=0, **options))
    world = max(batches // int(chance.integers(1, 4)) - int(chance.integers(0, 3)), 1)
    group_size = max(world + int(chance.integers(-1, 3)), 1) if number % 6 == 0 else None
    return lengths, budget, world, {**options, "group_size": group_size, "max_batch_size": None}
