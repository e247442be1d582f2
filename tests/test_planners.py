"""Planners: little padding, full batches, equal costs, and other batches every epoch, however few they are."""

from collections import Counter

import numpy as np
import pytest

from mmapds import TokenBudgetBatchSampler, orders
from tests.support.budgets import flat, log_normal, ranks

# Tests read passes of one epoch again, on purpose.
pytestmark = pytest.mark.filterwarnings("ignore:epoch = .*in a second pass")

PLANNERS = ["bucket", "window"]
BUDGET = 16_384


def alone(lengths, **options):
    return TokenBudgetBatchSampler(lengths, BUDGET, num_replicas=1, rank=0, **options)


def epochs_of(sampler, count):
    for epoch in range(count):
        sampler.set_epoch(epoch)
        yield list(sampler)


@pytest.mark.parametrize(
    ("planner", "n", "round_to", "padding", "fill", "imbalance"),
    [
        ("bucket", 200_000, 1, 0.003, 0.975, 1.005),
        ("bucket", 20_000, 1, 0.01, 0.97, 1.015),
        ("bucket", 20_000, 64, 0.1, 0.85, 1.015),
        ("window", 200_000, 1, 0.012, 0.975, 1.025),
        ("window", 20_000, 64, 0.1, 0.85, 1.025),
    ],
)
def test_little_padding_full_batches_equal_costs(planner, n, round_to, padding, fill, imbalance):
    lengths = log_normal(n)
    options = {"planner": planner, "round_to": round_to}
    sampler = TokenBudgetBatchSampler(lengths, BUDGET, num_replicas=8, rank=0, **options)
    whole = ranks(lengths, BUDGET, 8, **options)[: len(sampler._contents) // 8]  # then comes a step of split batches
    real = sum(int(lengths[batch].sum()) for step in whole for batch in step)
    costs = [[-(-lengths[batch].max() // round_to) * round_to * len(batch) for batch in step] for step in whole]
    summary = sampler.summary()
    assert summary.padding == pytest.approx(1 - real / np.sum(costs))
    assert summary.fill == pytest.approx(lengths.sum() / (len(sampler._contents) * BUDGET))
    assert summary.imbalance == pytest.approx(np.mean(np.max(costs, axis=1) / np.mean(costs, axis=1)))
    assert summary.padding <= padding
    assert summary.fill >= fill
    assert summary.imbalance <= imbalance


@pytest.mark.parametrize("n", [600, 1250, 5000, 20_000, 50_000])
def test_buckets_pad_no_more_than_windows(n):
    padding = {}
    for planner in PLANNERS:
        sampler = alone(log_normal(n, seed=1), planner=planner)
        padding[planner] = np.mean([sampler.summary().padding for _ in epochs_of(sampler, 2)])
    assert padding["bucket"] <= padding["window"]


# ---- order -----------------------------------------------------------------------------------------------------


def repeated_mates(one, other):
    """The share of pairs of samples that have a batch in common in one epoch, and in the other too."""
    batch_of = {record: number for number, batch in enumerate(other) for record in batch}
    pairs = again = 0
    for batch in one:
        pairs += len(batch) * (len(batch) - 1)
        again += sum(count * (count - 1) for count in Counter(batch_of[record] for record in batch).values())
    return again / pairs


@pytest.mark.parametrize(
    ("planner", "n", "mates"),
    [
        *(("bucket", n, 0.45) for n in (300, 1100, 4000, 5000, 20_000, 50_000)),
        *(("window", n, 0.5) for n in (3000, 30_000, 50_000)),
    ],
)
def test_batches_and_their_order_are_others_in_the_next_epoch(planner, n, mates):
    lengths = log_normal(n)
    sampler = alone(lengths, planner=planner)
    epochs = list(epochs_of(sampler, 4))
    assert {len(epoch) for epoch in epochs} == {len(sampler)}
    batches = [{frozenset(batch) for batch in epoch} for epoch in epochs]
    for at in range(3):
        assert not batches[at] & batches[at + 1]
        assert repeated_mates(epochs[at], epochs[at + 1]) < mates
    assert len(batches[0] & batches[2]) <= 1 + len(sampler) // 40
    assert list(alone(lengths, planner=planner, seed=1)) != epochs[0]


@pytest.mark.parametrize("planner", PLANNERS)
def test_when_and_where_a_batch_comes_says_nothing_of_its_length(planner):
    lengths, longest = log_normal(100_000), []
    for rank in range(4):
        sampler = TokenBudgetBatchSampler(lengths, BUDGET, num_replicas=4, rank=rank, planner=planner)
        longest.append([[lengths[batch].max() for batch in epoch] for epoch in epochs_of(sampler, 2)])
    longest = np.array(longest)
    epochs = longest.reshape(8, -1)
    steps = np.arange(epochs.shape[1])
    assert abs(np.mean([np.corrcoef(epoch, steps)[0, 1] for epoch in epochs])) < 4 / np.sqrt(epochs.size)
    assert all(abs(np.corrcoef(epoch[1:], epoch[:-1])[0, 1]) < 0.2 for epoch in epochs)
    shares = (longest == longest.max(axis=0)).mean(axis=(1, 2))  # of steps in which no other rank has a longer one
    assert np.ptp(shares) < 0.1


@pytest.mark.parametrize("planner", PLANNERS)
def test_without_shuffling_all_epochs_are_alike_and_buckets_begin_with_the_longest(planner):
    lengths = log_normal(5000)
    first, second = epochs_of(alone(lengths, planner=planner, shuffle=False), 2)
    assert second == first
    longest = [lengths[batch].max() for batch in first]
    assert planner == "window" or longest == sorted(longest, reverse=True)


def test_windows_follow_their_order():
    lengths = log_normal(50_000)
    order = orders.Chunked(50_000, 500, mix_chunks=4)
    sampler = alone(lengths, planner="window", sort_window=2000, order=order)
    place = np.empty(50_000, np.int64)
    place[order.at(0, np.arange(50_000))] = np.arange(50_000)
    waits = np.concatenate([place[batch].max() - place[batch] for batch in sampler])
    assert waits.mean() < 3000
    assert sorted(flat([sampler])) == list(range(50_000))


def test_a_mixture_in_the_proportions_of_its_datasets_is_planned():
    order = orders.Mixture([20, 30], [2, 3], epoch_size=50)
    assert sorted(flat([alone([3] * 50, planner="window", order=order)])) == list(range(50))
