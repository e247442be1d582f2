"""Token budgets: every batch within budget, every sample once, every rank as many steps, at any step of any world."""

import copy
import json
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Subset
from torchdata.stateful_dataloader import StatefulDataLoader

import mmapds
from mmapds import OrderError, StateError, TokenBudgetBatchSampler, _native, orders
from mmapds.samplers.lengths import sorted_lengths
from mmapds.samplers.plan import Budget
from tests.support.budgets import check, flat, log_normal, ranks
from tests.support.index_file import arrays

# Tests read passes of one epoch again, on purpose.
pytestmark = pytest.mark.filterwarnings("ignore:epoch = .*in a second pass")

PLANNERS = ["bucket", "window"]


@st.composite
def problems(draw):
    lengths = draw(
        st.one_of(
            st.lists(st.integers(1, 40), min_size=1, max_size=200),
            st.lists(st.sampled_from([1, 2, 3, 30, 31]), min_size=1, max_size=400),
            st.lists(st.integers(1, 2**28), min_size=1, max_size=40),
        )
    )
    world = draw(st.integers(1, min(len(lengths), 7)))
    options = {
        "planner": draw(st.sampled_from(PLANNERS)),
        "max_batch_size": draw(st.sampled_from([None, 1, 3, 8])),
        "batch_size_multiple": draw(st.sampled_from([1, 2, 8])),
        "quadratic_length": draw(st.sampled_from([None, 1, 10, 1000])),
        "cost": draw(st.sampled_from(["padded", "sum"])),
        "shuffle": draw(st.booleans()),
        "seed": draw(st.integers(0, 5)),
    }
    if options["planner"] == "bucket":
        options["group_size"] = draw(st.sampled_from([None, 1, 2, 5]))
    else:
        options["sort_window"] = draw(st.sampled_from([1, 5, 8192]))
    quadratic = options["quadratic_length"]

    def cost(length):
        return length + (-(-length * length // quadratic) if quadratic else 0)

    budget = max(cost(length) for length in lengths) * draw(st.integers(1, 9)) + draw(st.integers(0, 5))
    return lengths, budget, world, options, cost


@settings(max_examples=300)
@given(problems(), st.integers(0, 3))
def test_every_sample_once_within_budget_and_as_many_steps_everywhere(problem, epoch):
    lengths, budget, world, options, cost = problem
    steps = ranks(lengths, budget, world, epoch, **options)
    check(lengths, steps, cost, budget, options["max_batch_size"] or 2**31)
    seen = flat(steps)
    assert set(seen) == set(range(len(lengths)))
    assert len(seen) == len(lengths) or len(seen) - len(lengths) < world  # only a last step fills up
    other = TokenBudgetBatchSampler(lengths, budget, num_replicas=world, rank=0, **options)
    assert len(other) == len(steps)
    assert [[batch.tolist() for batch in _at(other, epoch, step)] for step in range(len(steps))] == [
        [list(batch) for batch in step] for step in steps
    ]
    summary = other.summary()
    assert summary.samples + summary.repeated == len(seen)
    assert summary.steps == len(steps)
    assert summary.batches == world * len(steps)


def _at(sampler, epoch, step):
    sampler.set_epoch(epoch)
    return sampler.indices_at(step)


@settings(max_examples=200)
@given(problems(), st.data())
def test_a_last_step_repeats_only_where_samples_are_fewer_than_ranks(problem, data):
    lengths, budget, _, options, _ = problem
    world = data.draw(st.integers(1, len(lengths)))
    steps = ranks(lengths, budget, world, **options)
    assert len(set(flat(steps[:-1]))) == len(flat(steps[:-1]))
    last = flat(steps[-1:])
    assert len(last) == len(set(last)) or len(set(last)) < world


@settings(max_examples=200)
@given(problems(), st.data())
def test_any_world_goes_on_from_any_step(problem, data):
    lengths, budget, world, options, cost = problem
    budget = max(cost(length) for length in lengths) * 2
    epoch = data.draw(st.integers(0, 2))
    seen, state = [], None
    for _ in range(3):
        samplers = [
            TokenBudgetBatchSampler(lengths, budget, num_replicas=world, rank=rank, **options) for rank in range(world)
        ]
        for sampler in samplers:
            if state is None:
                sampler.set_epoch(epoch)
            else:
                sampler.load_state_dict(json.loads(json.dumps(state)))
                assert sampler.epoch == epoch
        batches = len(samplers[0]._plan)
        assert len(samplers[0]) == -(-batches // world)
        steps = list(zip(*samplers, strict=True))
        stop = data.draw(st.integers(0, max(len(steps) - 1, 0)))
        check(lengths, steps, cost, budget)
        first = len(samplers[0]) - len(steps) if state is None else samplers[0]._progress.current().first_step
        state = samplers[0].state_dict(step=first + stop)
        seen += flat(steps[:stop])
        rest = flat(steps[stop:])
        world = data.draw(st.integers(1, min(len(lengths), 7)))
    assert set(seen + rest) == set(range(len(lengths)))
    assert len(seen) == len(set(seen))
    assert not set(seen) & set(rest)


@settings(max_examples=300)
@given(
    length=st.integers(1, 2**40) | st.integers(1, 3000),
    budget=st.builds(
        Budget,
        max_tokens=st.integers(1, 2**62) | st.integers(1, 10_000),
        largest=st.sampled_from([1, 7, 2**31]),
        multiple=st.sampled_from([1, 8, 1000]),
        quadratic=st.integers(0, 3) | st.integers(1, 2**40),
        round_to=st.sampled_from([1, 2, 8, 1000]),
    ),
)
def test_the_core_cuts_batches_by_the_cost_of_a_record(length, budget):
    size = min(budget.max_tokens // budget.cost(length), budget.largest)
    if size >= budget.multiple:
        size -= size % budget.multiple
    lengths, records = budget.widths(np.array([length], np.uint64)), np.array([2**40], np.uint64)
    found = np.frombuffer(_native.plan_buckets(budget.native, lengths, records, (1, 1, 0), False), np.uint64)
    assert found[3] == max(size, 1)


# ---- options -------------------------------------------------------------------------------------------------


def test_target_lengths_are_within_the_budget_too():
    rng = np.random.default_rng(0)
    source, target = rng.integers(1, 50, 3000), rng.integers(1, 50, 3000)
    steps = ranks(source, 500, 2, target_lengths=target)
    for lengths in (source, target):
        check(lengths, steps, int, 500)
    assert len(flat(steps)) == 3000
    with pytest.raises(OrderError, match="target_lengths: expected 3000, one for each length, found 2"):
        TokenBudgetBatchSampler(source, 500, target_lengths=[1, 2])


def test_batch_sizes():
    lengths = log_normal(5000)
    steps = ranks(lengths, 16_384, 1, max_batch_size=50, batch_size_multiple=8)
    sizes = [len(batch) for (batch,) in steps]
    assert max(sizes) == 48
    assert sum(size % 8 != 0 for size in sizes if size > 8) <= 1


def test_samples_that_are_left_out():
    lengths = [5, 1, 2000, 30, 100, 7, 1500]
    for planner in PLANNERS:
        common = {"num_replicas": 1, "rank": 0, "planner": planner}
        with pytest.raises(OrderError) as over:
            TokenBudgetBatchSampler(lengths, 1000, **common)
        assert str(over.value) == (
            "max_tokens = 1000, expected 2000 or more, the cost of lengths[2] = 2000; leave such samples out "
            "with max_length=N or oversize='drop', or give each a batch of its own with oversize='single' (samples "
            "over the budget: 2)"
        )
        dropped = TokenBudgetBatchSampler(lengths, 1000, oversize="drop", **common)
        assert sorted(flat([dropped])) == [0, 1, 3, 4, 5]
        assert dropped.summary().too_long == 2
        single = TokenBudgetBatchSampler(lengths, 1000, oversize="single", **common)
        assert sorted(flat([single])) == list(range(7))
        assert all(len(batch) == 1 for batch in single if max(lengths[record] for record in batch) > 1000)
        assert single.summary().single == 2
        some = TokenBudgetBatchSampler(lengths, 1000, min_length=5, max_length=100, **common)
        assert sorted(flat([some])) == [0, 3, 4, 5]
        assert (some.summary().too_short, some.summary().too_long) == (1, 2)


@pytest.mark.parametrize("planner", PLANNERS)
def test_drop_last(planner):
    lengths = log_normal(3000)
    steps = ranks(lengths, 4000, 7, planner=planner, drop_last=True)
    sampler = TokenBudgetBatchSampler(lengths, 4000, num_replicas=7, rank=0, planner=planner, drop_last=True)
    assert len(steps) == len(sampler._plan) // 7
    assert len(set(flat(steps))) == len(flat(steps)) == 3000 - sampler.summary().dropped


@pytest.mark.parametrize("planner", PLANNERS)
def test_exclude(planner):
    lengths = log_normal(3000)
    common = {"num_replicas": 2, "rank": 0, "planner": planner}
    whole = TokenBudgetBatchSampler(lengths, 4000, **common)
    steps = [[batch.tolist() for batch in whole.indices_at(step)] for step in range(len(whole))]
    gone = set(flat(steps[5:7]))
    rest = ranks(lengths, 4000, 2, planner=planner, exclude={"steps": [(5, 7)]})
    assert rest == [tuple(step) for step in steps[:5] + steps[7:]]
    batch = steps[3][0]
    records = ranks(lengths, 4000, 2, planner=planner, exclude={"records": [*batch, (0, 100)]})
    assert set(flat(records)) == set(range(100, 3000)) - set(batch)
    assert all(each for step in records for each in step)
    sampler = TokenBudgetBatchSampler(lengths, 4000, exclude={"steps": [(5, 7)], "records": [(0, 10)]}, **common)
    again = TokenBudgetBatchSampler(lengths, 4000, **common)
    again.load_state_dict(sampler.state_dict(step=2))
    seen = [record for batch in again for record in batch]
    assert not set(seen) & (set(range(10)) | gone)


@pytest.mark.parametrize("planner", PLANNERS)
def test_start_step(planner):
    lengths = log_normal(3000)
    common = {"num_replicas": 2, "rank": 1, "planner": planner}
    whole = list(TokenBudgetBatchSampler(lengths, 4000, **common))
    sampler = TokenBudgetBatchSampler(lengths, 4000, start_step=7, **common)
    assert len(sampler) == len(whole)
    assert list(sampler) == whole[7:]
    assert list(sampler) == whole


# ---- as trainers use it --------------------------------------------------------------------------------------


@pytest.mark.parametrize("planner", PLANNERS)
@pytest.mark.parametrize("workers", [0, 2])
def test_a_stateful_loader_goes_on(planner, workers):
    lengths = log_normal(3000)

    def loader():
        sampler = TokenBudgetBatchSampler(lengths, 4000, num_replicas=1, rank=0, planner=planner)
        return StatefulDataLoader(range(3000), batch_sampler=sampler, num_workers=workers, collate_fn=list)

    whole = list(loader())
    first = loader()
    begun = iter(first)
    head = [next(begun) for _ in range(5)]
    state = copy.deepcopy(first.state_dict())
    second = loader()
    second.load_state_dict(state)
    assert head + list(second) == whole


def test_what_trainers_look_for():
    sampler = TokenBudgetBatchSampler([3] * 100, 30, num_replicas=2, rank=1)
    assert isinstance(sampler, torch.utils.data.BatchSampler)
    assert sampler.drop_last is False
    assert not hasattr(sampler, "batch_size"), "trainers ask for it, and say what to do where there is none"
    assert not hasattr(sampler, "generator")
    sampler.sampler.set_epoch(3)
    assert sampler.epoch == sampler.sampler.epoch == 3
    one, other = iter(sampler), iter(sampler)
    assert next(one) == next(other)
    batch = next(one)
    batch.clear()
    assert sorted(sampler.sampler) == sorted(record for batch in sampler for record in batch)
    assert all(type(record) is int for batch in sampler for record in batch)
    assert len(sampler.sampler) == 50


def test_states_that_do_not_belong():
    lengths = log_normal(500)
    state = TokenBudgetBatchSampler(lengths, 4000, num_replicas=1, rank=0).state_dict(step=3)
    for other, options in (
        (log_normal(500, seed=1), {}),
        (lengths[:-1], {}),
        (lengths, {"seed": 1}),
        (lengths, {"planner": "window"}),
        (lengths, {"max_batch_size": 5}),
        (lengths, {"shuffle": False}),
        (lengths, {"group_size": 3}),
    ):
        sampler = TokenBudgetBatchSampler(other, 4000, num_replicas=1, rank=0, **options)
        with pytest.raises(StateError, match=r"state: of (another order|other lengths): expected"):
            sampler.load_state_dict(state)
    with pytest.raises(StateError):
        TokenBudgetBatchSampler(lengths, 4000).load_state_dict([1])


def test_with_a_dataset_and_padding(write):
    rng = np.random.default_rng(0)
    records = [{"id": i, "tokens": rng.integers(0, 9, rng.integers(1, 60)).tolist()} for i in range(500)]
    path = write(records)
    mmapds.build(path, length="items(tokens)")
    ds = mmapds.open(path)
    sampler = TokenBudgetBatchSampler(ds, 300)
    assert np.shares_memory(sampler._plan.selection.by_length.order, ds.length_order.order)
    loader = DataLoader(ds, batch_sampler=sampler, collate_fn=mmapds.pad_collate, num_workers=2)
    seen = []
    for batch in loader:
        assert batch["tokens"].numel() <= 300
        assert batch["tokens"].shape[1] == batch["tokens_lengths"].max()
        seen += batch["id"].tolist()
    assert sorted(seen) == list(range(500))
    view = ds[ds.lengths < 20]
    assert sorted(flat([TokenBudgetBatchSampler(view, 300)])) == list(range(len(view)))
    pickle.loads(pickle.dumps(ds))


@pytest.mark.parametrize("largest", [1, 2**20 - 1, 2**20, 2**40])
def test_sorting_lengths(largest):
    lengths = np.random.default_rng(0).integers(0, largest, 5000, endpoint=True)
    unsigned = lengths.astype(np.uint32 if largest < 2**32 else np.uint64)
    order, values, counts = arrays(sorted_lengths(unsigned))
    assert order.tolist() == np.argsort(-lengths, kind="stable").tolist()
    wanted, numbers = np.unique(lengths, return_counts=True)
    assert (values.tolist(), counts.tolist()) == (wanted[::-1].tolist(), numbers[::-1].tolist())


# ---- bad input -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lengths", "options", "message"),
    [
        ([3, -1], {}, r"lengths\[1\] = -1, expected 1 or more"),
        (
            [3, 0, 0],
            {},
            r"lengths\[1\] = 0, expected 1 or more; leave such .* with min_length=1 \(samples of length 0: 2\)",
        ),
        ([3.0, float("nan")], {}, r"lengths\[1\] = nan, expected an integer"),
        ([3.5], {}, "lengths: expected integers of 1 or more, found type float64"),
        ([[1, 2]], {}, r"lengths: expected one dimension, found shape \(1, 2\)"),
        ([[1, 2], [3]], {}, r"lengths: expected integers of 1 or more, found list \(setting an array element"),
        ([3, 4], {"target_lengths": [[1, 2], [3]]}, "target_lengths: expected integers of 1 or more, found list"),
        (torch.ones(2, requires_grad=True), {}, r"lengths: expected integers of 1 or more, found Tensor \(Can't call"),
        (torch.ones(2, dtype=int, device="meta"), {}, "lengths: expected integers of 1 or more, found Tensor"),
        (np.ma.array([3, 4], mask=[0, 1]), {}, "lengths: expected a length for each record, found a masked array"),
        (["a"], {}, "lengths: expected integers of 1 or more, found type <U1"),
        ([], {}, "lengths: expected one sample or more, found 0"),
        (7, {}, "expected an mmapds dataset, or an array or list of integers, found int"),
        ({3: 4}, {}, "expected an mmapds dataset, or an array or list of integers, found dict"),
        ("34", {}, r"dataset_or_lengths = '34', expected a dataset; open it first: mmapds.open\('34'\)"),
        (Subset([{"n": 3}], [0]), {}, "expected an mmapds dataset, or an array or list of integers, found Subset"),
        ([3, 4], {"max_tokens": 2}, r"max_tokens = 2, expected 4 or more, the cost of lengths\[1\] = 4; .*: 2\)"),
        ([3, 4], {"max_tokens": 2, "oversize": "drop"}, "max_tokens = 2, found 2 samples of lengths 3 to 4"),
        ([3, 4], {"min_length": 9}, "lengths: expected samples within min_length = 9, .*found 2 samples"),
        ([3, 4], {"max_length": 2}, "lengths: expected samples within .*max_length = 2 .*found 2 samples"),
        ([3, 4], {"num_replicas": 3, "rank": 0}, "num_replicas = 3, expected 1 to 2, the number of samples"),
        (
            [3, 4],
            {"num_replicas": 2, "rank": 0, "drop_last": True},
            "drop_last: expected 2 batches or more, one for each replica, found 1; give",
        ),
        ([3, 4], {"num_replicas": 2, "rank": 2}, "rank = 2, expected 0 to 1"),
        ([3, 4], {"max_tokens": 0}, "max_tokens = 0, expected an integer of 1 or more"),
        ([3, 4], {"max_tokens": 10.5}, "max_tokens = 10.5, expected an integer"),
        ([3, 4], {"max_batch_size": 0}, "max_batch_size = 0"),
        ([3, 4], {"batch_size_multiple": 0}, "batch_size_multiple = 0"),
        ([3, 4], {"quadratic_length": 0}, "quadratic_length = 0"),
        ([3, 4], {"group_size": 0}, "group_size = 0"),
        ([3, 4], {"sort_window": 0, "planner": "window"}, "sort_window = 0"),
        ([3, 4], {"cost": "max"}, "cost = 'max', expected 'padded' or 'sum'"),
        ([3, 4], {"oversize": "skip"}, "oversize = 'skip'"),
        ([3, 4], {"planner": "greedy"}, "planner = 'greedy'"),
        ([3, 4], {"order": orders.Sequential(2)}, "order: expected None with planner='bucket', found an order"),
        ([3, 4], {"group_size": 2, "planner": "window"}, "has no groups"),
        ([3, 4], {"order": orders.Sequential(3), "planner": "window"}, "order: expected 2 positions, .*, found 3"),
        ([3, 4], {"start_step": 2}, "start_step = 2"),
        ([3, 4], {"seed": 1.5}, "seed"),
    ],
)
def test_bad_input_is_named(lengths, options, message):
    with pytest.raises(OrderError, match=message):
        TokenBudgetBatchSampler(lengths, **{"max_tokens": 10, **options})


class Twice(orders.Sequential):
    """Not a bijection."""

    def at(self, epoch, positions):
        return super().at(epoch, positions) // 2


def test_an_order_that_is_no_bijection_is_noticed():
    lengths = log_normal(2000)
    sampler = TokenBudgetBatchSampler(lengths, 4000, planner="window", order=Twice(2000))
    with pytest.raises(OrderError, match="expected each of"):
        list(sampler)


@pytest.mark.parametrize(
    "order", [orders.Resampled(50), orders.Resampled(50, 40), orders.Mixture([20, 30], [1, 1], epoch_size=50)]
)
def test_an_order_that_is_known_to_repeat_records_is_refused(order):
    message = f"order: expected one with every record once an epoch, found {type(order).__name__}; give mmapds"
    with pytest.raises(OrderError, match=message):
        TokenBudgetBatchSampler([3] * 50, 10, planner="window", order=order)


def test_a_mixture_in_the_proportions_of_its_datasets_is_planned():
    sampler = TokenBudgetBatchSampler(
        [3] * 50, 10, planner="window", order=orders.Mixture([20, 30], [2, 3], epoch_size=50)
    )
    assert sorted(i for batch in sampler for i in batch) == list(range(50))


def test_lengths_are_taken_in_many_forms():
    wanted = list(TokenBudgetBatchSampler([3, 1, 2] * 50, 10))
    array = np.array([3, 1, 2] * 50)
    for lengths in (
        array,
        array.astype(np.uint8),
        array[::1],
        np.ma.array(array),
        tuple(array.tolist()),
        torch.from_numpy(array),
        Column(array.tolist()),
        Subset(array.tolist(), range(150)),
    ):
        assert list(TokenBudgetBatchSampler(lengths, 10)) == wanted
    assert len(list(TokenBudgetBatchSampler(range(1, 20), 50)))


class Column:
    """A column as Hugging Face's datasets give it: neither a list nor an array."""

    def __init__(self, values):
        self.values = values

    def __len__(self):
        return len(self.values)

    def __getitem__(self, key):
        return self.values[key]


def test_a_subset_of_a_dataset_is_refused_with_the_way_that_works(write):
    path = write([{"n": 1 + i % 7} for i in range(100)])
    mmapds.build(path, length="n")
    ds = mmapds.open(path)
    subset = Subset(ds, [5, 3, 8])
    with pytest.raises(OrderError, match=r"found torch's Subset of one; use the view ds\[subset.indices\], here"):
        TokenBudgetBatchSampler(subset, 30)
    assert sorted(flat([TokenBudgetBatchSampler(ds[subset.indices], 30)])) == [0, 1, 2]


# ---- what goes wrong in use -------------------------------------------------------------------------------------


@pytest.mark.parametrize("planner", PLANNERS)
def test_excluding_nothing_and_everything(planner):
    common = {"num_replicas": 1, "rank": 0, "planner": planner}
    for nothing in ([], [(4, 4)], [(5, 5)], [(np.int64(0), np.int64(0))]):
        assert len(flat([TokenBudgetBatchSampler([3] * 5, 100, exclude={"records": nothing}, **common)])) == 5
    none = TokenBudgetBatchSampler([3] * 5, 100, exclude={"records": [(0, 5)]}, **common)
    state = none.state_dict()
    assert list(none) == []
    again = TokenBudgetBatchSampler([3] * 5, 100, exclude={"records": [(0, 5)]}, **common)
    again.load_state_dict(state)
    assert list(again) == []


def test_a_refused_state_changes_nothing():
    lengths = log_normal(3000)
    other = TokenBudgetBatchSampler(lengths, 4000, num_replicas=8, rank=0, seed=1).state_dict(step=3)
    sampler = TokenBudgetBatchSampler(lengths, 4000, num_replicas=2, rank=0, start_step=5)
    with pytest.raises(StateError):
        sampler.load_state_dict(other)
    other["order"]["group_size"] = 10**30
    with pytest.raises(StateError):
        sampler.load_state_dict(other)
    assert list(sampler) == list(TokenBudgetBatchSampler(lengths, 4000, num_replicas=2, rank=0, start_step=5))


def test_views_with_steps(write):
    path = write([{"n": 1 + i % 7} for i in range(100)])
    mmapds.build(path, length="n")
    ds = mmapds.open(path)
    for view in (ds[::2], ds[::-1], ds[[5, 5, 3]]):
        assert sorted(flat([TokenBudgetBatchSampler(view, 30)])) == list(range(len(view)))


def test_an_exclusion_holds_once():
    lengths = log_normal(20_000)
    exclude = {"steps": [(10, 20)]}

    def resumed(state, world=2):
        sampler = TokenBudgetBatchSampler(lengths, 4000, num_replicas=world, rank=0, exclude=exclude)
        sampler.load_state_dict(json.loads(json.dumps(state)))
        return sampler

    sampler = TokenBudgetBatchSampler(lengths, 4000, num_replicas=2, rank=0, exclude=exclude)
    first = list(sampler)
    assert len(first) == len(sampler) - 10
    assert list(resumed(sampler.state_dict(step=15))) == first[15:]
    wide = resumed(sampler.state_dict(step=16), world=8)
    assert len(list(wide)) == -(-(len(sampler._plan) - 2 * 26) // 8)
    after = resumed(sampler.state_dict(step=15))
    next(iter(after))
    assert list(resumed(after.state_dict(step=16))) == first[16:]
    sampler.set_epoch(1)
    assert len(list(resumed(sampler.state_dict(step=5)))) == len(sampler) - 5
