"""Token budgets: every batch within budget, every sample once, little padding, and other batches every epoch."""

import re
from collections import UserList
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import Subset

from mmapds import OrderError, StateError, TokenBudgetBatchSampler, orders
from tests.support import messages
from tests.support.budgets import check, flat, hard, log_normal, ranks

ALONE = {"num_replicas": 1, "rank": 0}
PLANNERS = ["bucket", "window"]
OPTIONS = {
    "planner": PLANNERS,
    "max_batch_size": [None, 1, 8, 50],
    "batch_size_multiple": [1, 2, 3, 8],
    "quadratic_length": [None, 1, 10, 1000],
    "round_to": [1, 2, 8, 64, 1000],
    "cost": ["padded", "sum"],
    "group_size": [None, 1, 2, 5],
    "sort_window": [1, 5, 8192],
    "shuffle": [False, True],
    "seed": range(6),
}


def up(length, step):
    """A length, rounded up."""
    return -(-int(length) // step) * step


@st.composite
def problems(draw):
    """Lengths, a budget, a number of ranks, options, and what a sample costs."""
    kinds = st.integers(1, 40) | st.integers(1, 2**28), st.integers(1, 3), st.integers(1, 300)
    lengths = draw(
        st.one_of([st.lists(kind, min_size=1, max_size=most) for kind, most in zip(kinds, (40, 150, 300), strict=True)])
    )
    options = {name: draw(st.sampled_from(values)) for name, values in OPTIONS.items()}
    quadratic = options["quadratic_length"]

    def cost(length):
        width = up(length, options["round_to"])
        return width + (-(-width * width // quadratic) if quadratic else 0)

    budget = max(cost(length) for length in lengths) * draw(st.sampled_from([1, 2, 5, 30])) + draw(st.integers(0, 5))
    world = draw(st.integers(1, min(len(lengths), 7)) | st.integers(1, min(len(lengths), 40)))
    return lengths, budget, world, options, cost


def check_plan(lengths, budget, world, options, cost, epochs=(0, 1)):
    """Hold what docs/samplers.md promises of the batches, and of how the last step is shared."""
    n, multiple = len(lengths), options["batch_size_multiple"]
    group_size = options["group_size"] or world
    sampler = TokenBudgetBatchSampler(lengths, budget, num_replicas=world, rank=world - 1, **options)
    plan, alone = (TokenBudgetBatchSampler(lengths, budget, **ALONE, **options, drop_last=last) for last in (0, 1))
    plan.load_state_dict(sampler.state_dict(step=0))
    for epoch in epochs:
        for each in (sampler, plan):
            each.set_epoch(epoch)
        batches, steps = list(plan), [sampler.indices_at(step) for step in range(len(sampler))]
        check(lengths, [batches, *steps], cost, budget, options["max_batch_size"] or n)
        assert sorted(flat([batches])) == list(range(n))
        assert list(sampler) == [step[-1].tolist() for step in steps]
        assert {len(step) for step in steps} == {world}
        assert all(len(batch) < multiple or len(batch) % multiple == 0 for step in [batches, *steps] for batch in step)
        whole = len(batches) // world
        assert [batch.tolist() for step in steps[:whole] for batch in step] == batches[: whole * world]
        last, left = flat(steps[whole:]), batches[whole * world :]
        assert (set(last), len(last)) == (set(flat([left])), max(len(flat([left])), world) if left else 0)
        for batch in left:
            parts = [len(part) for part in steps[-1] if part[0] in batch]
            assert max(parts) - min(parts) <= multiple
        if left and multiple == 1 and len(last) == len(flat([left])):
            enough = (size for size in range(1, n + 1) if sum(-(-len(batch) // size) for batch in left) <= world)
            assert max(map(len, steps[-1])) == next(enough), "none is larger than it has to be"
    assert len(plan) == min(up(len(alone), group_size), n), "no more batches than the last group needs"
    if len(set(lengths)) == 1 and multiple == 1:
        sizes = sorted(map(len, batches))
        assert sizes[2:] == [] or sizes[2] >= sizes[-1] // 2, "but for the rest, none is split more than others"
    return sampler, steps


@given(problems(), st.integers(0, 3), st.data())
def test_every_sample_once_within_budget_in_equal_steps_and_any_world_goes_on_from_any_step(problem, epoch, data):
    lengths, budget, world, options, cost = problem
    sampler, steps = check_plan(*problem, (0, 1, epoch))
    summary = sampler.summary()
    assert summary.samples + summary.repeated == len(flat(steps))
    assert (summary.steps, summary.batches) == (len(steps), world * len(steps))
    stop, other = data.draw(st.integers(0, len(steps) - 1)), data.draw(st.integers(1, min(len(lengths), 7)))
    rest = ranks(lengths, budget, other, state=sampler.state_dict(step=stop), **options)
    check(lengths, rest, cost, budget)
    read, rest = set(flat(steps[:stop])), set(flat(rest))
    assert (read | rest, read & rest) == (set(range(len(lengths))), set())


def test_plans_of_few_lengths_of_multiples_and_of_worlds_that_are_hard_to_fill():
    for number in range(240):
        check_plan(*hard(number), int)


def test_target_lengths_are_within_the_budget_too():
    rng = np.random.default_rng(0)
    source, target = rng.integers(1, 50, 3000), rng.integers(1, 50, 3000)
    steps = ranks(source, 500, 2, target_lengths=target)
    for lengths in (source, target):
        check(lengths, steps, int, 500)
    assert len(flat(steps)) == 3000


@pytest.mark.parametrize("planner", PLANNERS)
@pytest.mark.parametrize(
    ("options", "kept", "too_short", "too_long", "over"),
    [
        ({"oversize": "drop", "round_to": 16}, [0, 1, 3, 4, 5], 0, 3, 0),
        ({"oversize": "single"}, range(8), 0, 0, 2),
        ({"oversize": "single", "max_length": 1500}, [0, 1, 3, 4, 5, 6, 7], 0, 1, 1),
        ({"min_length": 5, "max_length": 100}, [0, 3, 4, 5], 1, 3, 0),
    ],
)
def test_samples_that_are_left_out_or_over_the_budget(planner, options, kept, too_short, too_long, over):
    lengths = [5, 1, 2000, 30, 100, 7, 1500, 999]
    sampler = TokenBudgetBatchSampler(lengths, 1000, planner=planner, **options, **ALONE)
    batches = list(sampler)
    assert sorted(flat([batches])) == list(kept)
    assert all(len(batch) == 1 for batch in batches if max(lengths[record] for record in batch) > 1000)
    summary = sampler.summary()
    assert (summary.too_short, summary.too_long, summary.over, summary.cut_tokens) == (too_short, too_long, over, 0)


def test_lengths_are_taken_in_many_forms():
    array = np.array([3, 1, 2] * 50)
    wanted = list(TokenBudgetBatchSampler(array.tolist(), 10))
    narrow, column = array.astype(np.uint8), UserList(array.tolist())  # which is neither a list nor an array
    for lengths in (array, narrow, np.ma.array(array), tuple(array.tolist()), torch.from_numpy(array), column):
        assert list(TokenBudgetBatchSampler(lengths, 10)) == wanted
    assert len(list(TokenBudgetBatchSampler(range(1, 20), 50)))
    around = range(2**20 - 1, 2**20 + 2)  # longer ones are in no table
    assert sorted(flat([TokenBudgetBatchSampler(around, 2**21, planner="window")])) == [0, 1, 2]


def test_a_state_of_another_plan_is_refused_and_changes_nothing():
    own = {"dataset_or_lengths": log_normal(500), "max_tokens": 4096, **ALONE}
    for saved, options, message in [
        ({}, {"dataset_or_lengths": log_normal(500, seed=1)}, "dataset: expected "),
        ({"num_replicas": 8}, {"group_size": 3}, "order: expected group_size = 3, found 8; "),
        ({"group_size": 2**62}, {}, "order: expected group_size = 1, found 4611"),
        ({}, {"planner": "window"}, "order: expected order = 'token budget, windows', found"),
        ({"planner": "window"}, {"planner": "window", "sort_window": 99}, "order: expected sort_window = 99, found"),
    ]:
        state = TokenBudgetBatchSampler(**own | saved).state_dict(step=3)
        sampler = TokenBudgetBatchSampler(**own | options, start_step=5)
        with pytest.raises(StateError, match=f"^state: of another {message}") as error:
            sampler.load_state_dict(state)
        messages.check(str(error.value))
        assert list(sampler) == list(TokenBudgetBatchSampler(**own | options, start_step=5))


BUDGET = 16_384


def alone(lengths, epoch=0, **options):
    sampler = TokenBudgetBatchSampler(lengths, BUDGET, **ALONE, **options)
    sampler.set_epoch(epoch)
    return list(sampler)


@pytest.mark.parametrize(
    ("planner", "n", "round_to", "padding", "fill", "imbalance"),
    [
        ("bucket", 200_000, 1, 0.003, 0.975, 1.005),
        ("bucket", 20_000, 64, 0.1, 0.85, 1.015),
        ("window", 200_000, 1, 0.012, 0.975, 1.025),
        ("window", 20_000, 64, 0.1, 0.85, 1.025),
    ],
)
def test_little_padding_full_batches_equal_costs(planner, n, round_to, padding, fill, imbalance):
    lengths, options = log_normal(n), {"planner": planner, "round_to": round_to}
    summary = TokenBudgetBatchSampler(lengths, BUDGET, num_replicas=8, rank=0, **options).summary()
    whole = ranks(lengths, BUDGET, 8, **options)[: summary.planned // 8]  # then comes a step of split batches
    real = sum(int(lengths[batch].sum()) for step in whole for batch in step)
    costs = [[up(lengths[batch].max(), round_to) * len(batch) for batch in step] for step in whole]
    assert summary.padding == pytest.approx(1 - real / np.sum(costs))
    assert summary.fill == pytest.approx(lengths.sum() / (summary.planned * BUDGET))
    assert summary.imbalance == pytest.approx(np.mean(np.max(costs, axis=1) / np.mean(costs, axis=1)))
    assert (summary.padding <= padding, summary.fill >= fill, summary.imbalance <= imbalance) == (True, True, True)


@pytest.mark.parametrize(("planner", "n"), [("bucket", 300), ("bucket", 20_000), ("window", 30_000)])
def test_batches_and_their_order_are_others_in_the_next_epoch_if_shuffled(planner, n):
    lengths = log_normal(n)
    batches = [{frozenset(batch) for batch in alone(lengths, epoch, planner=planner)} for epoch in range(4)]
    assert len({len(epoch) for epoch in batches}) == 1
    assert not any(one & other for one, other in pairwise(batches))
    assert len(batches[0] & batches[2]) <= 1 + len(batches[0]) // 40
    assert alone(lengths, planner=planner, seed=1) != alone(lengths, planner=planner)
    assert alone(lengths, planner=planner, shuffle=False) == alone(lengths, 1, planner=planner, shuffle=False)


def test_windows_follow_their_order():
    n, lengths = 50_000, log_normal(50_000)
    order = orders.Chunked(n, 500, mix_chunks=4)
    place = np.argsort(order.at(0, np.arange(n)))
    batches = alone(lengths, planner="window", sort_window=2000, order=order)
    assert np.concatenate([place[batch].max() - place[batch] for batch in batches]).mean() < 3000


ONE_EACH = "lengths: expected integers of 1 or more, one for each record, found"


def test_what_cannot_be_lengths_is_named():
    for lengths, message in [
        ([3, 0, 0], "lengths[1] = 0, expected 1 or more; drop such samples with min_length=1 (samples of length"),
        ([3, -1], "lengths[1] = -1, expected 1 or more"),
        ([3.5], f"{ONE_EACH} list (type float64"),
        (torch.ones(2, requires_grad=True), f"{ONE_EACH} Tensor (Can't call"),
        (np.ma.array([3, 4], mask=[0, 1]), f"{ONE_EACH} MaskedArray (masked; give array.filled"),
        ([], "lengths: expected one sample or more, found 0"),
        (Subset([{"n": 3}], [0]), f"{ONE_EACH} Subset"),
        ("34", "dataset_or_lengths = '34', expected a dataset; open it first: mmapds.open('34')"),
    ]:
        with pytest.raises(OrderError, match=f"^{re.escape(message)}") as error:
            TokenBudgetBatchSampler(lengths, 10)
        messages.check(str(error.value))


OVER = "drop such samples with oversize='drop' or max_length=N (samples over the limit: 2)"
REPEATS = "order: expected one with every record once an epoch, found {}; give mmapds"
WINDOW = {"planner": "window"}
POSITIVE = ("max_tokens", "max_batch_size", "batch_size_multiple", "quadratic_length", "round_to", "sort_window")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_tokens": 2}, f"max_tokens = 2, expected 4 or more, the cost of lengths[1] = 4; {OVER}"),
        (
            {"max_tokens": 9, "quadratic_length": 3, "round_to": 4},
            f"max_tokens = 9, expected 10 or more, the cost of lengths[1] = 4; {OVER}",
        ),
        (
            {"min_length": 9},
            "lengths: expected samples within min_length = 9, max_length = None and max_tokens = 10, found 2",
        ),
        ({"num_replicas": 3}, "num_replicas = 3, expected 1 to 2, the number of samples"),
        *((WINDOW | {name: 0}, f"{name} = 0, expected an integer of 1 or more") for name in POSITIVE),
        ({"seed": 1.5}, "seed = 1.5, expected an integer"),
        ({"oversize": "skip"}, "oversize = 'skip', expected 'error' or 'drop' or 'single'"),
        ({"target_lengths": [1]}, "target_lengths: expected 2, one for each length, found 1"),
        ({"order": orders.Sequential(2)}, "order: expected None with planner='bucket', found an order"),
        (WINDOW | {"order": orders.Sequential(3)}, "order: expected 2 positions, one for each record, found 3"),
        (WINDOW | {"order": orders.Resampled(2)}, REPEATS.format("Resampled")),
        (WINDOW | {"order": orders.Mixture([1, 1], [1, 0], epoch_size=2)}, REPEATS.format("Mixture")),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(OrderError, match=f"^{re.escape(message)}") as error:
        TokenBudgetBatchSampler([3, 4], **{"max_tokens": 10, **ALONE, **options})
    messages.check(str(error.value))


def test_an_order_that_is_no_bijection_is_noticed():
    for lengths, change, found in [
        (log_normal(2000), lambda records: records // 2, "one twice or out of range"),
        (log_normal(2000), lambda records: records * 2, "one twice or out of range"),
        ([50, 1] * 1000, lambda records: records | 1, "only some of them"),  # those of length 1 are not planned
    ]:
        order = orders.Sequential(2000)
        order.at = lambda _, positions, change=change: change(positions)
        sampler = TokenBudgetBatchSampler(lengths, 4000, min_length=2, planner="window", order=order)
        with pytest.raises(OrderError, match=f"^order: expected each of 2000 records once, found {found}"):
            list(sampler)
