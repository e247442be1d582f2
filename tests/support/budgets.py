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
