"""All ranks together read every sample once an epoch, by every planner, if each step has a sample for each rank."""

from itertools import combinations_with_replacement

import numpy as np
import pytest

from mmapds import PackingBatchSampler, TokenBudgetBatchSampler
from mmapds.orders.basic import Chunked
from tests.support.budgets import log_normal


def budgets(lengths, limit, world, **options):
    return [TokenBudgetBatchSampler(lengths, limit, num_replicas=world, rank=rank, **options) for rank in range(world)]


def packs(lengths, limit, world, **options):
    return [PackingBatchSampler(lengths, limit, num_replicas=world, rank=rank, **options) for rank in range(world)]


def buckets(lengths, limit, world):
    return budgets(lengths, limit, world)


def buckets_of_fewer_ranks(lengths, limit, world):
    return budgets(lengths, limit, world, group_size=max(world // 2, 1))


def sorted_buckets(lengths, limit, world):
    return budgets(lengths, limit, world, shuffle=False)


def windows(lengths, limit, world):
    return budgets(lengths, limit, world, planner="window")


def short_windows(lengths, limit, world):
    return budgets(lengths, limit, world, planner="window", sort_window=64)


def windows_of_multiples(lengths, limit, world):
    return budgets(lengths, limit, world, planner="window", batch_size_multiple=4)


def all_packs(lengths, limit, world):
    return packs(lengths, limit, world)


def packs_of_chunks(lengths, limit, world):
    return packs(lengths, limit, world, planner="window", order=Chunked(len(lengths), 300, mix_chunks=3))


PLANS = [
    buckets,
    buckets_of_fewer_ranks,
    sorted_buckets,
    windows,
    short_windows,
    windows_of_multiples,
    all_packs,
    packs_of_chunks,
]


SEEDS = [1, 28, 685, 737, 1374]  # in all of them a planner has a last step that is hard to fill


def check(samplers, n):
    """In epochs of both kinds every sample comes once, and again only as many as ranks and steps need."""
    steps = len(samplers[0])
    for epoch in (0, 1):
        for sampler in samplers:
            sampler.set_epoch(epoch)
        batches = [batch for sampler in samplers for batch in sampler]
        assert len(batches) == steps * len(samplers)
        times = np.bincount([record for batch in batches for record in batch], minlength=n)
        assert times.min() >= 1
        assert times.sum() == max(n, len(batches))
    assert samplers[0].summary().repeated == max(len(batches) - n, 0)


@pytest.mark.parametrize("plan", PLANS)
def test_all_datasets_of_few_samples(plan):
    for n in range(1, 7):
        for lengths in combinations_with_replacement((1, 2, 4), n):
            for world in range(1, min(n, 5) + 1):
                check(plan(lengths, 4, world), n)


def some_lengths(rng, n):
    return log_normal(n, seed=rng, width=1) if rng.random() < 0.5 else rng.integers(1, 500, n)


@pytest.mark.parametrize("plan", PLANS)
def test_random_datasets_of_hundreds_of_samples(plan):
    rng = np.random.default_rng(0)
    for _ in range(150):
        n = int(rng.integers(17, 300))
        lengths, world = some_lengths(rng, n), int(rng.choice([2, 3, 5, 8]))
        check(plan(lengths, int(lengths.max() * rng.choice([1, 2, 4])), world), n)


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("seed", SEEDS)
def test_random_datasets_of_thousands_of_samples_on_many_ranks(plan, seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1000, 5000))
    lengths, world = some_lengths(rng, n), int(rng.choice([7, 16, 32, 64]))
    check(plan(lengths, int(lengths.max() * rng.choice([1, 2, 4])), world), n)
