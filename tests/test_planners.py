"""Planners: little padding, full batches, equal costs, and other batches every epoch, however few they are."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmapds import OrderError, TokenBudgetBatchSampler, orders
from tests.support.budgets import flat, log_normal, ranks

# Tests read passes of one epoch again, on purpose.
pytestmark = pytest.mark.filterwarnings("ignore:epoch = .*in a second pass")

PLANNERS = ["bucket", "window"]


# ---- what it is for ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("planner", "n", "padding", "fill", "imbalance"),
    [
        ("bucket", 200_000, 0.003, 0.975, 1.005),
        ("bucket", 20_000, 0.01, 0.97, 1.015),
        ("window", 200_000, 0.012, 0.975, 1.025),
    ],
)
def test_little_padding_full_batches_equal_costs(planner, n, padding, fill, imbalance):
    lengths = log_normal(n)
    summary = TokenBudgetBatchSampler(lengths, 16_384, num_replicas=8, rank=0, planner=planner).summary()
    assert summary.padding <= padding
    assert summary.fill >= fill
    assert summary.imbalance <= imbalance
    steps = ranks(lengths, 16_384, 8, planner=planner)[:-1]  # the last one may be of batches that were split
    real = sum(int(lengths[batch].sum()) for step in steps for batch in step)
    padded = sum(int(lengths[batch].max()) * len(batch) for step in steps for batch in step)
    assert summary.padding == pytest.approx(1 - real / padded, abs=1e-3)


@pytest.mark.parametrize("planner", PLANNERS)
def test_mates_and_order_differ_from_epoch_to_epoch(planner):
    lengths = log_normal(50_000)
    sampler = TokenBudgetBatchSampler(lengths, 16_384, num_replicas=1, rank=0, planner=planner)
    epochs = []
    for epoch in range(3):
        sampler.set_epoch(epoch)
        epochs.append(list(sampler))
    mates = [{frozenset(pair) for batch in epoch for pair in pairwise(batch)} for epoch in epochs]
    for one, other in ((0, 1), (1, 2), (0, 2)):
        assert len(mates[one] & mates[other]) < 0.1 * len(mates[one])
        assert sum(a == b for a, b in zip(epochs[one], epochs[other], strict=True)) < 0.01 * len(epochs[one])
    again = TokenBudgetBatchSampler(lengths, 16_384, num_replicas=1, rank=0, planner=planner)
    again.set_epoch(1)
    assert list(again) == epochs[1]
    other_seed = TokenBudgetBatchSampler(lengths, 16_384, num_replicas=1, rank=0, planner=planner, seed=1)
    assert list(other_seed) != epochs[0]


@pytest.mark.parametrize("planner", PLANNERS)
def test_when_a_batch_comes_says_nothing_of_its_length(planner):
    lengths = log_normal(100_000)
    sampler = TokenBudgetBatchSampler(lengths, 16_384, num_replicas=4, rank=1, planner=planner)
    correlations = []
    for epoch in range(8):
        sampler.set_epoch(epoch)
        longest = [lengths[batch].max() for batch in sampler]
        correlations.append(np.corrcoef(longest, np.arange(len(longest)))[0, 1])
        neighbours = np.corrcoef(longest[1:], longest[:-1])[0, 1]
        assert abs(neighbours) < 0.2
    assert abs(np.mean(correlations)) < 4 / np.sqrt(8 * len(longest))


def test_no_rank_has_the_longest_batches():
    lengths = log_normal(100_000)
    means = [
        np.mean([lengths[batch].max() for batch in TokenBudgetBatchSampler(lengths, 16_384, num_replicas=4, rank=rank)])
        for rank in range(4)
    ]
    assert max(means) / min(means) < 1.01


def test_without_shuffling_the_longest_come_first():
    lengths = log_normal(5000)
    sampler = TokenBudgetBatchSampler(lengths, 16_384, num_replicas=1, rank=0, shuffle=False)
    longest = [lengths[batch].max() for batch in sampler]
    assert longest == sorted(longest, reverse=True)
    epoch = list(sampler)
    sampler.set_epoch(5)
    assert list(sampler) == epoch


def test_windows_follow_their_order():
    lengths = log_normal(50_000)
    order = orders.Chunked(50_000, 500, mix_chunks=4)
    sampler = TokenBudgetBatchSampler(
        lengths, 16_384, num_replicas=1, rank=0, planner="window", sort_window=2000, order=order
    )
    place = np.empty(50_000, np.int64)
    place[order.at(0, np.arange(50_000))] = np.arange(50_000)
    waits = np.concatenate([place[batch].max() - place[batch] for batch in sampler])
    assert waits.mean() < 3000
    assert set(flat([sampler])) == set(range(50_000))


@pytest.mark.parametrize("n", [3000, 30_000])
def test_small_datasets_in_windows_have_other_mates_too(n):
    sampler = TokenBudgetBatchSampler(log_normal(n), 16_384, num_replicas=1, rank=0, planner="window")
    first = {frozenset(batch) for batch in sampler}
    sampler.set_epoch(1)
    assert len(first & {frozenset(batch) for batch in sampler}) < 0.1 * len(first)


# ---- few batches -----------------------------------------------------------------------------------------------


def epochs_of(sampler, count):
    found = []
    for epoch in range(count):
        sampler.set_epoch(epoch)
        found.append(list(sampler))
    return found


def repeated_mates(one, other):
    """The share of pairs of samples that have a batch in common in one epoch, and in the other too."""
    batch_of = {record: number for number, batch in enumerate(other) for record in batch}
    pairs = again = 0
    for batch in one:
        pairs += len(batch) * (len(batch) - 1)
        again += sum(count * (count - 1) for count in Counter(batch_of[record] for record in batch).values())
    return again / pairs


def real_tokens(lengths, batches):
    return sum(map(int, lengths)) / sum(max(int(lengths[record]) for record in batch) * len(batch) for batch in batches)


@pytest.mark.parametrize("n", [300, 1100, 4000, 5000, 20_000])
def test_few_batches_are_others_in_the_next_epoch(n):
    lengths = log_normal(n)
    sampler = TokenBudgetBatchSampler(lengths, 16_384, num_replicas=1, rank=0)
    epochs = epochs_of(sampler, 4)
    for one, other in pairwise(epochs):
        assert not {frozenset(batch) for batch in one} & {frozenset(batch) for batch in other}
        assert repeated_mates(one, other) < 0.5
    assert np.mean([repeated_mates(one, other) for one, other in pairwise(epochs)]) < 0.45
    assert {len(epoch) for epoch in epochs} == {len(sampler)}


@pytest.mark.parametrize("n", [600, 1250, 5000, 20_000, 50_000])
def test_buckets_pad_no_more_than_windows(n):
    real = {}
    for planner in PLANNERS:
        lengths = log_normal(n, seed=1)
        sampler = TokenBudgetBatchSampler(lengths, 16_384, num_replicas=1, rank=0, planner=planner)
        real[planner] = np.mean([real_tokens(lengths, epoch) for epoch in epochs_of(sampler, 2)])
    assert real["bucket"] >= real["window"]


# ---- the last batches ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("planner", PLANNERS)
def test_a_multiple_holds_for_the_last_batches(planner):
    lengths = [5] * 3
    (batches,) = [
        [len(batch) for batch in TokenBudgetBatchSampler(lengths, 20, batch_size_multiple=2, planner=planner)]
    ]
    assert sorted(batches) == [1, 2]


@settings(max_examples=200)
@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=300),
    planner=st.sampled_from(PLANNERS),
    multiple=st.integers(2, 9),
    world=st.integers(1, 5),
    epoch=st.integers(0, 1),
)
def test_every_batch_of_a_multiple_or_more_is_a_multiple(lengths, planner, multiple, world, epoch):
    world = min(world, len(lengths))
    steps = ranks(lengths, 200, world, epoch, planner=planner, batch_size_multiple=multiple)
    assert all(len(batch) < multiple or len(batch) % multiple == 0 for step in steps for batch in step)
    assert set(flat(steps)) == set(range(len(lengths)))


@pytest.mark.parametrize("planner", PLANNERS)
@pytest.mark.parametrize("world", [3, 7, 64, 100])
@pytest.mark.parametrize("n", [100, 129, 1000, 4000, 4321])
def test_no_sample_comes_twice_while_batches_can_be_split(planner, world, n):
    lengths = log_normal(n)
    sampler = TokenBudgetBatchSampler(lengths, 16_384, num_replicas=world, rank=0, planner=planner)
    for epoch in (0, 1):
        steps = ranks(lengths, 16_384, world, epoch, planner=planner)
        assert len(flat(steps)) == max(n, len(steps) * world)
    assert sampler.summary().repeated == max(len(steps) * world - n, 0)


@pytest.mark.parametrize("planner", PLANNERS)
def test_a_state_keeps_the_batches_of_the_world_that_saved_it(planner):
    lengths = log_normal(4321)
    options = {"max_tokens": 16_384, "planner": planner}
    first = ranks(lengths, options["max_tokens"], 64, planner=planner)
    state = TokenBudgetBatchSampler(lengths, **options, num_replicas=64, rank=0).state_dict(step=1)
    everyone = [TokenBudgetBatchSampler(lengths, **options, num_replicas=3, rank=rank) for rank in range(3)]
    for each in everyone:
        each.load_state_dict(state)
    rest = flat(zip(*everyone, strict=True))
    assert sorted(flat(first[:1]) + rest) == list(range(4321))


def test_with_drop_last_batches_are_left_out_rather_than_split():
    sampler = TokenBudgetBatchSampler(log_normal(4000), 16_384, num_replicas=64, rank=0, drop_last=True)
    assert len(sampler) == 1
    assert sampler.summary().dropped > 0
    with pytest.raises(OrderError, match="drop_last"):
        TokenBudgetBatchSampler(log_normal(100), 16_384, num_replicas=64, rank=0, drop_last=True)


@pytest.mark.parametrize("seed", [5, 46, 139, 304, 371, 379])
def test_windows_of_few_samples_for_many_ranks_repeat_none(seed):
    """No budget gives as many batches as are wanted, so some batches are split."""
    rng = np.random.RandomState(0)
    for _ in range(seed + 1):
        lengths = rng.randint(1, 60, rng.randint(30, 400))
        world, limit = int(rng.choice([2, 3, 4, 8])), int(rng.choice([100, 300, 1000]))
    options = {"planner": "window", "num_replicas": world, "seed": seed}
    samplers = [TokenBudgetBatchSampler(lengths, limit, rank=rank, **options) for rank in range(world)]
    assert len({len(sampler) for sampler in samplers}) == 1
    assert samplers[0].summary().repeated == 0
    assert sorted(i for sampler in samplers for batch in sampler for i in batch) == list(range(len(lengths)))
