"""Budgets of batches whose width is rounded up: they hold for what is padded, and all else is as exact as without."""

import json
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mmapds
from mmapds import OrderError, PackingBatchSampler, StateError, TokenBudgetBatchSampler, pack_collate, pad_collate
from mmapds.samplers.lengths import classes, rounded_up
from mmapds.samplers.plan import Budget
from tests.support.budgets import flat, log_normal, ranks
from tests.support.messages import check

# Tests read passes of one epoch again, on purpose.
pytestmark = pytest.mark.filterwarnings("ignore:epoch = .*in a second pass")

ALONE = {"num_replicas": 1, "rank": 0}


def up(length, step):
    """A length, rounded up."""
    return -(-int(length) // step) * step


@st.composite
def problems(draw):
    step = draw(st.sampled_from([1, 2, 8, 64, 1000]))
    lengths = draw(
        st.one_of(
            st.lists(st.integers(1, 40), min_size=1, max_size=200),
            st.lists(st.sampled_from([1, 7, 8, 9, 63, 64, 65]), min_size=1, max_size=300),
            st.lists(st.integers(1, 2**28), min_size=1, max_size=40),
        )
    )
    options = {
        "round_to": step,
        "planner": draw(st.sampled_from(["bucket", "window"])),
        "max_batch_size": draw(st.sampled_from([None, 1, 3, 8])),
        "batch_size_multiple": draw(st.sampled_from([1, 2, 8])),
        "quadratic_length": draw(st.sampled_from([None, 10, 1000])),
        "shuffle": draw(st.booleans()),
        "seed": draw(st.integers(0, 5)),
    }
    quadratic = options["quadratic_length"]

    def cost(length):
        width = up(length, step)
        return width + (-(-width * width // quadratic) if quadratic else 0)

    budget = max(cost(length) for length in lengths) * draw(st.integers(1, 9)) + draw(st.integers(0, 5))
    return lengths, budget, draw(st.integers(1, min(len(lengths), 7))), options, cost


@settings(max_examples=300)
@given(problems(), st.integers(0, 3))
def test_every_sample_once_and_no_padded_batch_over_the_budget(problem, epoch):
    lengths, budget, world, options, cost = problem
    steps = ranks(lengths, budget, world, epoch, **options)
    for step in steps:
        for batch in step:
            assert 1 <= len(batch) <= (options["max_batch_size"] or 2**31)
            assert max(cost(lengths[record]) for record in batch) * len(batch) <= budget
    seen = flat(steps)
    assert set(seen) == set(range(len(lengths)))
    assert len(seen) == len(lengths) or len(seen) - len(lengths) < world
    sampler = TokenBudgetBatchSampler(lengths, budget, num_replicas=world, rank=0, **options)
    sampler.set_epoch(epoch)
    assert len(sampler) == len(steps)
    for k, step in enumerate(steps):
        assert [batch.tolist() for batch in sampler.indices_at(k)] == [list(batch) for batch in step]


@settings(max_examples=200)
@given(problems(), st.integers(0, 3))
def test_batches_have_the_sizes_of_those_of_lengths_rounded_by_hand(problem, epoch):
    lengths, budget, world, options, _ = problem
    step = options.pop("round_to")
    rounded = [up(length, step) for length in lengths]
    by_hand = ranks(rounded, budget, world, epoch, **options)
    steps = ranks(lengths, budget, world, epoch, round_to=step, **options)
    assert len(steps) == len(by_hand)
    if options["planner"] == "bucket":
        assert [[len(batch) for batch in step] for step in steps] == [
            [len(batch) for batch in step] for step in by_hand
        ]


@settings(max_examples=150)
@given(problems(), st.data())
def test_any_world_goes_on_from_any_step(problem, data):
    lengths, budget, world, options, _ = problem
    epoch, seen, state = data.draw(st.integers(0, 2)), [], None
    for _ in range(3):
        samplers = [
            TokenBudgetBatchSampler(lengths, budget, num_replicas=world, rank=rank, **options) for rank in range(world)
        ]
        for sampler in samplers:
            if state is None:
                sampler.set_epoch(epoch)
            else:
                sampler.load_state_dict(json.loads(json.dumps(state)))
        first = samplers[0].first_step
        steps = list(zip(*samplers, strict=True))
        stop = data.draw(st.integers(0, max(len(steps) - 1, 0)))
        state = samplers[0].state_dict(step=first + stop)
        seen += flat(steps[:stop])
        rest = flat(steps[stop:])
        world = data.draw(st.integers(1, min(len(lengths), 7)))
    assert set(seen + rest) == set(range(len(lengths)))
    assert len(seen) == len(set(seen))
    assert not set(seen) & set(rest)


@given(
    st.lists(st.integers(1, 2**64 - 1) | st.integers(1, 300), min_size=1, max_size=50, unique=True),
    st.integers(1, 2**63 - 1) | st.integers(1, 100),
)
def test_rounding_is_exact_up_to_what_64_bits_hold(lengths, step):
    lengths.sort(reverse=True)
    counts = np.arange(1, len(lengths) + 1, dtype=np.uint64)
    expected = [min(up(length, step), 2**64 - 1) for length in lengths]
    found = rounded_up(np.array(lengths, np.uint64), step)
    assert found.tolist() == expected
    values, numbers = classes(found, counts)
    assert values.tolist() == sorted(set(expected), reverse=True)
    assert numbers.tolist() == [
        sum(count for count, each in enumerate(expected, 1) if each == value) for value in values.tolist()
    ]
    budget = Budget(2**63, 1, 1, 0, step)
    assert all(budget.cost(length) == up(length, step) for length in lengths)


def test_an_empty_sample_stays_empty():
    assert rounded_up(np.array([9, 0], np.uint64), 8).tolist() == [16, 0]


@pytest.mark.parametrize("planner", ["bucket", "window"])
def test_the_summary_counts_padding_as_it_is_padded(planner):
    lengths = log_normal(20_000)
    sampler = TokenBudgetBatchSampler(lengths, 16_384, planner=planner, round_to=64, **ALONE)
    summary = sampler.summary()
    real = padded = 0
    for batch in sampler:
        real += int(lengths[batch].sum())
        padded += up(lengths[batch].max(), 64) * len(batch)
    assert summary.padding == pytest.approx(1 - real / padded, abs=1e-4)
    assert summary.fill == pytest.approx(real / (len(sampler) * 16_384))


def test_what_pad_collate_makes_is_within_the_budget(write):
    path = write([{"tokens": list(range(1 + i * 7919 % 61))} for i in range(1500)])
    mmapds.build(path, length="items(tokens)")
    ds = mmapds.open(path)
    collate = partial(pad_collate, pad_to_multiple_of=8)

    def largest(**options):
        sampler = TokenBudgetBatchSampler(ds, 256, **options, **ALONE)
        return max(collate([ds[record] for record in batch])["tokens"].numel() for batch in sampler)

    assert largest() > 256
    assert largest(round_to=8) <= 256
    assert largest(round_to=8, planner="window") <= 256


def test_a_state_belongs_to_one_rounding():
    state = TokenBudgetBatchSampler(log_normal(300), 4096, **ALONE).state_dict()
    sampler = TokenBudgetBatchSampler(log_normal(300), 4096, round_to=8, **ALONE)
    with pytest.raises(StateError, match="state: of another order: expected round_to = 8, found 1; ") as error:
        sampler.load_state_dict(state)
    check(str(error.value))


def test_a_sample_over_the_budget_once_it_is_rounded():
    with pytest.raises(OrderError) as error:
        TokenBudgetBatchSampler([3, 50], 50, round_to=8, **ALONE)
    assert str(error.value).startswith(
        "max_tokens = 50, expected 56 or more, the cost of lengths[1] = 50 with round_to = 8; leave such samples out"
    )
    check(str(error.value))
    assert list(TokenBudgetBatchSampler([3, 50], 50, round_to=8, oversize="drop", **ALONE)) == [[0]]
    with pytest.raises(OrderError, match="round_to = 0, expected an integer of 1 or more"):
        TokenBudgetBatchSampler([3, 50], 50, round_to=0, **ALONE)


KINDS = {
    "pad_to_multiple_of": (TokenBudgetBatchSampler, pad_collate),
    "round_to": (PackingBatchSampler, partial(pack_collate, layout="megatron")),
}


@pytest.mark.parametrize("name", KINDS)
def test_a_loader_warns_where_only_the_collate_function_rounds(recwarn, name):
    kind, collate = KINDS[name]
    samples = [{"tokens": [1] * 8}, {"tokens": [1] * 16}]
    rounding = partial(collate, **{name: 8})
    samplers = {step: kind([8, 16], 64, round_to=step, **ALONE) for step in (1, 4, 8, 16)}
    for step in (8, 16):
        mmapds.DataLoader(samples, batch_sampler=samplers[step], collate_fn=rounding)
    mmapds.DataLoader(samples, batch_sampler=samplers[1], collate_fn=collate)
    mmapds.DataLoader(samples, batch_size=2, collate_fn=rounding)
    assert not recwarn.list
    for step in (1, 4):
        with pytest.warns(UserWarning, match=f"^collate_fn: expected {name} to divide {step}, the ") as found:
            mmapds.DataLoader(samples, batch_sampler=samplers[step], collate_fn=rounding)
        check(str(found[0].message))
        assert found[0].filename == __file__
        assert str(found[0].message).partition("; give the sampler ")[2].startswith("round_to=8 (")
