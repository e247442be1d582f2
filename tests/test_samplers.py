"""Samplers: torch's counts and rules, the life of a pass, what is left out, and bad input."""

import json
import math
import os
import re
from functools import partial
from itertools import islice

import numpy as np
import pytest
import torch.distributed
import torch.utils.data
from hypothesis import assume, given
from hypothesis import strategies as st
from torch.utils.data.distributed import DistributedSampler as TorchSampler

import mmapds
from mmapds import (
    ChunkedSampler,
    DistributedBatchSampler,
    DistributedSampler,
    MixtureSampler,
    OrderError,
    TokenBudgetBatchSampler,
    orders,
)
from tests.support.messages import check
from tests.support.samplers import every_sampler, flat, make_samplers, union

# Tests read passes of one epoch again, on purpose.
pytestmark = pytest.mark.filterwarnings("ignore:epoch = .*in a second pass")

WORLDS = [1, 2, 3, 5, 8, 40]


# ---- torch's own rules ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("drop_last", [False, True])
def test_counts_padding_and_order_are_torchs(world, drop_last):
    for n in range(1, 42):
        for rank in range(world):
            for shuffle in (False, True):
                ours = DistributedSampler(range(n), world, rank, shuffle, 0, drop_last)
                theirs = TorchSampler(range(n), world, rank, shuffle, 0, drop_last)
                assert (len(ours), ours.num_samples, ours.total_size) == (
                    len(theirs),
                    theirs.num_samples,
                    theirs.total_size,
                )
                if not shuffle:
                    assert list(ours) == list(theirs)
        if not drop_last:
            everyone = union([DistributedSampler(range(n), world, rank, True, 1) for rank in range(world)])
            first = everyone[:n]
            assert sorted(first) == list(range(n))
            assert everyone == (first * math.ceil(len(everyone) / n))[: len(everyone)], "filled up from the beginning"


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("drop_last", [False, True])
def test_batches_are_those_of_a_batch_sampler_over_the_sampler(world, drop_last):
    for n in range(1, 30):
        for batch in (1, 2, 3, 7, 40):
            if drop_last and n < world * batch:
                continue
            for rank in range(world):
                ours = DistributedBatchSampler(range(n), batch, world, rank, drop_last=drop_last)
                inner = DistributedSampler(range(n), world, rank)
                theirs = list(torch.utils.data.BatchSampler(inner, batch, drop_last=False))
                if drop_last:
                    theirs = theirs[: n // (world * batch)]
                assert list(ours) == theirs
                assert len(ours) == len(theirs)


def test_public_attributes_and_classes():
    sampler = DistributedSampler(range(10), 2, 1, seed=5)
    assert isinstance(sampler, TorchSampler)
    assert (sampler.num_replicas, sampler.rank, sampler.epoch, sampler.seed) == (2, 1, 0, 5)
    assert (sampler.shuffle, sampler.drop_last, sampler.dataset) == (True, False, range(10))
    batches = DistributedBatchSampler(range(10), 4)
    assert isinstance(batches, torch.utils.data.BatchSampler)
    assert (batches.batch_size, batches.drop_last) == (4, False)
    assert isinstance(batches.sampler, DistributedSampler)
    assert not hasattr(batches, "generator")


def test_a_batch_samplers_sampler_drives_it():
    batches = DistributedBatchSampler(range(100), 10, seed=1)
    first = list(batches)
    batches.sampler.set_epoch(3)
    assert batches.epoch == 3
    assert list(batches) != first
    batches.set_epoch(0)
    assert batches.sampler.epoch == 0
    assert list(batches) == first
    assert flat(first) == list(batches.sampler)
    wrapped = DistributedBatchSampler(DistributedSampler(range(100), 2, 1, seed=1), 10)
    assert (wrapped.sampler.num_replicas, wrapped.sampler.rank) == (2, 1)
    assert flat(wrapped) == flat(first)[1::2]


def test_a_single_process_gets_the_global_sequence():
    whole = list(DistributedSampler(range(100), 1, 0, seed=2))
    assert union([DistributedSampler(range(100), 4, rank, seed=2) for rank in range(4)]) == whole


# ---- which world ---------------------------------------------------------------------------------------------


def test_the_world_comes_from_the_environment(monkeypatch):
    assert (DistributedSampler(range(9)).num_replicas, DistributedSampler(range(9)).rank) == (1, 0)
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "3")
    found = DistributedSampler(range(9))
    assert (found.num_replicas, found.rank) == (4, 3)
    assert DistributedSampler(range(9), rank=0).rank == 0, "0 is a rank, not an omission"
    assert DistributedSampler(range(9), num_replicas=5).rank == 3


def test_the_world_comes_from_torch_distributed_before_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "3")
    torch.distributed.init_process_group("gloo", f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    try:
        found = DistributedSampler(range(9))
        assert (found.num_replicas, found.rank) == (1, 0)
    finally:
        torch.distributed.destroy_process_group()


def test_a_world_without_a_rank(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(
        mmapds.OrderError, match=r"rank = None, expected 0 to 1 .*; pass rank=, set RANK, or initialise"
    ):
        mmapds.DistributedSampler(range(10), num_replicas=2)
    monkeypatch.setenv("RANK", "1")
    assert mmapds.DistributedSampler(range(10), num_replicas=2).rank == 1


# ---- the life of a pass ----------------------------------------------------------------------------------------


@every_sampler
def test_python_ints_and_fresh_lists(kind):
    for found in make_samplers()[kind]:
        assert type(found) is (list if kind == 3 else int)
    if kind == 3:
        sampler = make_samplers()[kind]
        batch = next(iter(sampler))
        expected = list(batch)
        batch.clear()
        assert next(iter(sampler)) == expected


@every_sampler
def test_iterators_are_lazy(kind):
    sampler = make_samplers(start_step=4)[kind]
    whole = list(make_samplers()[kind])
    unused = iter(sampler)
    sampler.set_epoch(0)
    used = iter(sampler)
    assert list(used) == whole[4:]
    assert list(sampler) == whole, "only the first pass begins late"
    sampler.set_epoch(9)
    assert list(unused) == list(sampler), "the epoch is read when the first index is asked for"


@every_sampler
def test_start_step_waits_for_the_first_pass_whatever_its_epoch(kind):
    sampler = make_samplers(start_step=5)[kind]
    sampler.set_epoch(2)
    plain = make_samplers()[kind]
    plain.set_epoch(2)
    whole = list(plain)
    assert list(sampler) == whole[5:]
    assert list(sampler) == whole


@every_sampler
def test_length_is_that_of_a_whole_epoch_always(kind):
    sampler = make_samplers(start_step=3)[kind]
    length = len(make_samplers()[kind])
    assert len(sampler) == length
    for epoch in range(3):
        sampler.set_epoch(epoch)
        assert len(sampler) == length
        passed = len(list(sampler))
        assert passed == length - 3 * (epoch == 0)


@every_sampler
def test_an_early_break_forgets_nothing_and_keeps_nothing(kind):
    sampler = make_samplers()[kind]
    whole = list(make_samplers()[kind])
    for _ in range(3):
        assert list(islice(iter(sampler), 4)) == whole[:4]
    assert list(sampler) == whole


# ---- exclude and indices_at ----------------------------------------------------------------------------------------


@every_sampler
def test_indices_at_says_what_made_up_a_step(kind):
    for epoch in (0, 3):
        samplers = [make_samplers(num_replicas=3, rank=rank)[kind] for rank in range(3)]
        for sampler in samplers:
            sampler.set_epoch(epoch)
        for step, each in enumerate(zip(*samplers, strict=True)):
            assert samplers[0].indices_at(step).tolist() == list(each)
    with pytest.raises(IndexError, match=rf"step {step + 1} is out of range for the {step + 1} steps"):
        samplers[0].indices_at(step + 1)
    with pytest.raises(IndexError):
        samplers[0].indices_at(-1)


def test_indices_at_after_a_resume_with_another_world():
    two = DistributedSampler(range(100), 2, 0)
    list(islice(iter(two), 9))  # 18 positions, which are no whole steps of 4
    four = DistributedSampler(range(100), 4, 0)
    four.load_state_dict(two.state_dict())
    whole = list(DistributedSampler(range(100), 1, 0))
    assert four.indices_at(4).tolist() == whole[18:22]
    assert four.indices_at(1).tolist() == whole[4:8]
    assert next(iter(four)) == whole[18]


@every_sampler
@pytest.mark.parametrize("world", [1, 3])
def test_excluded_steps_are_left_out_and_the_rest_keeps_its_order(kind, world):
    def everyone(**options):
        found = union([make_samplers(num_replicas=world, rank=rank, **options)[kind] for rank in range(world)])
        return found if kind < 3 else flat(found)

    whole = [make_samplers(num_replicas=world, rank=0)[kind].indices_at(step).tolist() for step in range(6)]
    bad = set(range(2, 4))
    kept = [row for step, row in enumerate(whole) if step not in bad]
    found = everyone(exclude={"steps": [(2, 4)]})
    head = flat(kept) if kind < 3 else flat(flat(kept))
    assert found[: len(head)] == head


@pytest.mark.parametrize("world", [1, 3])
@pytest.mark.parametrize("order", ["shuffled", "own"])
def test_excluded_records_are_left_out_and_the_rest_keeps_its_order(world, order):
    class Backwards:
        def __len__(self):
            return 100

        def at(self, epoch, positions):
            return (99 - positions + epoch) % 100

        def describe(self):
            return {"order": "backwards"}

    options = {"order": Backwards()} if order == "own" else {}
    whole = list(DistributedSampler(range(100), 1, 0, **options))
    exclude = {"records": [17, (50, 60)], "steps": [3]}
    samplers = [DistributedSampler(range(100), world, rank, exclude=exclude, **options) for rank in range(world)]
    gone = {17, *range(50, 60), *whole[3 * world : 4 * world]}
    expected = [record for record in whole if record not in gone]
    found = union(samplers)
    assert found[: len(expected)] == expected
    assert len(found) - len(expected) < world
    every = [record for record in whole if record not in {17, *range(50, 60)}]
    assert union(samplers)[: len(every)] == every, "records in every pass, steps in the first"


def test_an_exclusion_travels_in_the_state():
    first = DistributedSampler(range(100), 2, 0, exclude={"records": [(0, 30)], "steps": [(10, 12)]})
    iterator = iter(first)
    list(islice(iterator, 5))
    others = [DistributedSampler(range(100), 3, rank) for rank in range(3)]
    for other in others:
        other.load_state_dict(first.state_dict())
    whole = list(DistributedSampler(range(100), 1, 0))
    kept = [r for p, r in enumerate(whole) if r >= 30 and p not in range(20, 24)]
    assert union(others)[: len(kept) - 10] == kept[10:]


def test_records_are_left_out_for_as_long_as_they_are_named():
    def made(*records):
        sampler = DistributedSampler(range(100), 1, 0, exclude={"records": records})
        sampler.set_epoch(1)
        return sampler

    whole = list(made())
    one, other = whole[50], whole[60]
    before = made(one)
    list(islice(iter(before), 10))
    for records in ((one,), (one, other), (other,), ()):
        sampler = made(*records)
        sampler.load_state_dict(before.state_dict())
        assert list(sampler) == [record for record in whole[10:] if record not in {one, *records}]
        sampler.set_epoch(2)
        assert set(range(100)) - set(sampler) == set(records), "of the next epoch, only what is named"


def test_a_restart_after_a_spike():
    """Load a state from before it, leave the bad steps out, and go on as if they had never been there."""
    bad = DistributedBatchSampler(range(200), 5, 2, 0)
    iterator = iter(bad)
    list(islice(iterator, 8))
    state = bad.state_dict(step=4)
    resumed = DistributedBatchSampler(range(200), 5, 2, 0, exclude={"steps": [(5, 8)]})
    resumed.load_state_dict(state)
    whole = list(DistributedBatchSampler(range(200), 5, 2, 0))
    assert list(resumed) == [whole[4], *whole[8:]]
    again = DistributedBatchSampler(range(200), 5, 2, 0, exclude={"steps": [(5, 8)]})
    more = DistributedBatchSampler(range(200), 5, 2, 0, exclude={"steps": [(5, 8), (5, 8)]})
    for sampler in (again, more):
        sampler.load_state_dict(resumed.state_dict(step=5))
    assert list(again) == whole[8:]
    assert list(more) == whole[11:], "the next steps have the numbers of those that are gone"
    more.load_state_dict(state)
    assert list(more) == [whole[4], *whole[11:]]


@given(st.data())
def test_the_steps_that_were_shown_are_those_that_are_excluded(data):
    """Whatever world the state comes from, and whatever was excluded before."""
    records, drop_last = data.draw(st.integers(1, 200), "records"), data.draw(st.booleans(), "drop_last")
    (world, size), (next_world, next_size) = (
        (data.draw(st.integers(1, 3), f"{of} world"), data.draw(st.integers(1, 5), f"{of} size"))
        for of in ("the", "next")
    )
    earlier = data.draw(st.lists(st.integers(0, max(records // (world * size) - 1, 0)), max_size=2), "earlier")

    def made(world, size, *new):
        options = {"drop_last": drop_last, "exclude": {"steps": [*earlier, *new]}}
        return [DistributedBatchSampler(range(records), size, world, rank, **options) for rank in range(world)]

    before = made(world, size)[0]
    assume(records >= world * size)
    list(islice(iter(before), data.draw(st.integers(0, 60), "done")))
    state = before.state_dict()
    shown = made(next_world, next_size)[0]
    shown.load_state_dict(state)
    steps = range(shown.first_step, shown.first_step + len(list(shown)) - 1)  # the last may be filled up with others
    shown.load_state_dict(state)
    assume(shown.epoch == 0 and len(steps) > 0)
    rows = {step: set(np.ravel(shown.indices_at(step)).tolist()) for step in steps}
    new = data.draw(
        st.lists(st.sampled_from(steps).filter(lambda step: step not in earlier), max_size=3, unique=True), "new"
    )
    resumed = made(next_world, next_size, *new)
    for sampler in resumed:
        sampler.load_state_dict(state)
    found = {record for sampler in resumed for batch in sampler for record in batch}
    assert not found & {record for step in new for record in rows[step]}
    rest = {record for step in steps if step not in new for record in rows[step]}
    assert len(rest - found) <= (next_world * next_size if drop_last else 0)


@pytest.mark.parametrize("size", [10, 2**62])
def test_the_state_of_a_pass_without_its_last_step_can_be_loaded(size):
    sampler = DistributedBatchSampler(range(20), size, 4, 1, exclude={"steps": [0]})
    state = json.loads(json.dumps(sampler.state_dict()))
    assert state["exclude"]["positions"] == [[0, 20]]
    resumed = DistributedBatchSampler(range(20), 2, 2, 0)
    resumed.load_state_dict(state)
    assert (list(sampler), resumed.epoch) == ([], 1)


def test_the_error_of_new_steps_names_them_and_not_those_of_a_larger_world():
    larger = DistributedBatchSampler(range(100), 1, 1, 0, exclude={"steps": [(50, 60)]})
    smaller = DistributedBatchSampler(range(100), 5, 1, 0, exclude={"steps": [(50, 60), (25, 26)]})
    with pytest.raises(mmapds.OrderError, match=r"^exclude\['steps'\]\[1\] = 25, expected steps below 20"):
        smaller.load_state_dict(larger.state_dict())


def test_a_batch_that_no_memory_has_room_for_is_refused():
    with pytest.raises(mmapds.OrderError, match=rf"batch_size = {2**61}, expected up to {2**40} samples in a step"):
        next(iter(DistributedBatchSampler(range(2**63 - 1), 2**61, 1, 0)))


@pytest.mark.parametrize("shuffle", [False, True])
def test_records_beyond_a_short_epoch_may_be_excluded(shuffle):
    whole = list(DistributedSampler(range(1000), 1, 0, shuffle, epoch_size=100))
    for begin, end, records in ((0, 500, [(0, 500)]), (600, 1000, [(600, 1000), 700])):
        sampler = DistributedSampler(range(1000), 1, 0, shuffle, epoch_size=100, exclude={"records": records})
        assert list(sampler) == [record for record in whole if not begin <= record < end]


def test_records_may_be_excluded_whose_numbers_are_larger_than_the_epoch():
    def mixed(**options):
        return MixtureSampler([1000, 1000], [1, 1], 1, 0, epoch_size=100, **options)

    def drawn(**options):
        return DistributedSampler(range(1000), 1, 0, order=orders.Resampled(1000, 50), **options)

    for make, end in ((mixed, 1500), (drawn, 1000)):
        kept = [record for record in make() if not 400 <= record < end]
        assert list(make(exclude={"records": [(400, 700), 600, (650, end)]})) == kept


def test_everything_may_be_excluded():
    assert list(DistributedSampler(range(10), 2, 0, exclude={"records": [(0, 10)]})) == []


def test_much_can_be_excluded_at_once():
    n = 1_000_000
    sampler = DistributedSampler(range(n), 2, 0, exclude={"records": [(0, 900_000), 950_000, np.int64(950_001)]})
    mine = list(sampler)
    assert len(mine) == (100_000 - 2) // 2
    assert min(mine) >= 900_000
    assert not {950_000, 950_001} & set(mine)
    assert len(json.dumps(sampler.state_dict())) < 1000


# ---- sizes and orders of one's own -----------------------------------------------------------------------------------


def test_epoch_size_takes_the_head_of_each_epochs_order():
    sampler = DistributedSampler(range(1000), 2, 1, epoch_size=101)
    assert len(sampler) == 51
    whole = list(DistributedSampler(range(1000), 1, 0))[:101]
    assert list(sampler) == [*whole[1::2], whole[0]]
    resampled = DistributedSampler(range(10), order=orders.Resampled(10, 35))
    assert len(list(resampled)) == 35


@pytest.mark.parametrize("instead", [{"seed": 7}, {"seed": 0}, {"shuffle": True}, {"shuffle": False}])
@pytest.mark.parametrize("make", [DistributedSampler, partial(DistributedBatchSampler, batch_size=2)])
def test_an_order_stands_beside_no_arguments_that_make_one(make, instead):
    with pytest.raises(
        OrderError, match=r"= \w+, expected None beside an order, which has its own; give it to the order"
    ):
        make(range(10), order=orders.Resampled(10, 5), **instead)
    with pytest.raises(OrderError, match="beside a sampler; give it to the sampler"):
        DistributedBatchSampler(DistributedSampler(range(10)), 2, **instead)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"exclude": {"records": [1]}}, "exclude = {'records': [(1, 2)]} in the sampler, expected None"),
        ({"exclude": {"steps": [2]}}, "exclude = {'steps': [(2, 3)]} in the sampler, expected None"),
        ({"drop_last": True}, "drop_last = True in the sampler, expected False"),
        ({"pad": False}, "pad = False in the sampler, expected True"),
        ({"start_step": 4}, "dataset: expected a sampler at the beginning of an epoch, found one at step 4"),
    ],
)
def test_a_batch_sampler_refuses_a_sampler_with_arguments_that_it_would_not_use(options, message):
    kinds = [DistributedSampler(range(21), 2, 1, **options)]
    if "pad" not in options:
        kinds += [ChunkedSampler(range(21), 5, 2, 1, **options), MixtureSampler([9, 12], [3, 4], 2, 1, **options)]
    for sampler in kinds:
        with pytest.raises(OrderError, match=f"^{re.escape(message)}; give .* to the batch sampler$"):
            DistributedBatchSampler(sampler, 2)
    alike = {name: value for name, value in options.items() if name in ("drop_last", "pad")}
    batches = DistributedBatchSampler(DistributedSampler(range(21), 2, 1, **alike), 2, **options)
    assert list(batches) == list(DistributedBatchSampler(range(21), 2, 2, 1, **options))


def test_a_sampler_with_a_state_gives_it_to_the_batch_sampler():
    sampler = DistributedSampler(range(20), 1, 0)
    sampler.load_state_dict(sampler.state_dict(step=8))
    with pytest.raises(OrderError, match="found one at step 8; give start_step, in batches, or the state to the batch"):
        DistributedBatchSampler(sampler, 4)
    batches = DistributedBatchSampler(DistributedSampler(range(20), 1, 0, exclude={}), 4)
    batches.load_state_dict(sampler.state_dict())
    assert flat(batches) == list(sampler)


def test_an_order_is_of_as_many_records_as_the_dataset():
    class Whole(orders.Sequential):
        @property
        def records(self):
            raise AttributeError  # as of an order of somebody's own, without it

    fitting = [orders.Sequential(10), orders.Shuffled(10), orders.Chunked(10, 3), orders.Mixture([4, 6], [1, 1])]
    fitting += [orders.Resampled(10, 3), orders.Resampled(10, 300), Whole(10)]
    for order in fitting:
        assert len(list(DistributedSampler(range(10), order=order))) == len(order)
        for other in (9, 11):
            with pytest.raises(
                OrderError, match=f"expected one of {other} records, as the dataset has, found one of 10"
            ):
                DistributedSampler(range(other), order=order)


def test_chunks_follow_the_sources_of_a_dataset(write):
    for shard, size in enumerate([5, 17, 0, 8]):
        write(list(range(size)), f"d/{shard}.jsonl")
    ds = mmapds.open(os.path.dirname(write([], "d/9.jsonl")), build=True)
    sampler = ChunkedSampler(ds, 4, mix_chunks=1)
    found = list(sampler)
    assert sorted(found) == list(range(30))
    source = np.searchsorted(ds.source_starts, found, side="right")
    sizes = np.diff(np.flatnonzero(np.diff(source, prepend=-1, append=-1)))
    assert sizes.max() <= 30
    crossing = ChunkedSampler(ds, 4, mix_chunks=1, cross_sources=True)
    pairs = [set(list(crossing)[at : at + 4]) for at in range(0, 28, 4)]
    assert any({4, 5} <= pair for pair in pairs) or {28, 29} <= set(list(crossing)[:2])
    mixed = MixtureSampler(mmapds.concat([ds]), [1, 1, 0, 1, 0])
    assert set(np.searchsorted(ds.source_starts, list(mixed), side="right")) <= {1, 2, 4}


def test_no_shuffle():
    assert list(ChunkedSampler(range(10), 3, shuffle=False)) == list(range(10))
    assert list(MixtureSampler([2, 2], [1, 1], shuffle=False, epoch_size=4)) in ([0, 2, 1, 3], [2, 0, 3, 1])


# ---- bad input -------------------------------------------------------------------------------------------------------


class Described(orders.Sequential):
    """An order that describes itself in some way."""

    def __init__(self, described):
        super().__init__(10)
        self._described = described

    def describe(self):
        return self._described


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DistributedSampler(range(10), 2, 2), r"^rank = 2, expected 0 to 1 \(num_replicas = 2\)$"),
        (lambda: DistributedSampler(range(10), 2, -1), "rank = -1, expected 0 to 1"),
        (lambda: DistributedSampler(range(10), 0, 0), "num_replicas = 0"),
        (
            lambda: DistributedSampler([]),
            r"dataset: expected one sample or more, found 0 .the dataset or the view is empty",
        ),
        (lambda: DistributedSampler(range(10), 2, 0, start_step=-1), "start_step = -1, expected 0 to 5"),
        (lambda: DistributedSampler(range(10), 2, 0, start_step=6), "start_step = 6, expected 0 to 5"),
        (lambda: DistributedSampler(range(10), epoch_size=0), "epoch_size = 0, expected 1 to 10"),
        (lambda: DistributedSampler(range(10), epoch_size=11), "expected 1 to 10; use orders.Resampled for"),
        (
            lambda: TokenBudgetBatchSampler([1, 2], 9, planner="window", order=[0, 1]),
            r"order: expected an order with at\(\), describe\(\) and a length, found list",
        ),
        (
            lambda: MixtureSampler([np.int64(5), 2**64], [1, 1]),
            r"sizes\[1\] = 18446744073709551616, expected an integer",
        ),
        (lambda: MixtureSampler([None, 3], [1, 1]), r"sizes\[0\] = None, expected an integer of 0 or more"),
        (lambda: MixtureSampler([np.array([3]), np.array(2.5)], [1, 1]), r"sizes\[1\] = .*2\.5.*, expected an integer"),
        (lambda: DistributedSampler(range(10), order=[1, 2]), r"order: expected an order with at\(\), .*, found list"),
        (lambda: DistributedSampler(range(10), exclude={"days": [1]}), "'steps' and 'records', found 'days'"),
        (
            lambda: DistributedSampler(range(10), exclude={"steps": [(3, 2)]}),
            r"\['steps'\]\[0\] = \(3, 2\), expected a number or 0 <=",
        ),
        (lambda: ChunkedSampler(range(10), 0), "chunk_size = 0"),
        (lambda: MixtureSampler([10], []), "weights: expected 1, one for each dataset, found 0"),
        (lambda: MixtureSampler([10], [-1]), "expected finite numbers of 0 or more"),
        (lambda: MixtureSampler([10], [float("nan")]), "expected finite numbers of 0 or more"),
        (lambda: MixtureSampler({1, 2}, [1]), "expected a list of datasets or sizes, found set"),
        (lambda: DistributedBatchSampler(range(10), 0), "batch_size = 0, expected an integer of 1 or more"),
        (lambda: DistributedBatchSampler(range(10), 2.0), "batch_size = 2.0"),
        (lambda: MixtureSampler([10, 5], None), "^weights = None, expected one number for each dataset$"),
        (lambda: MixtureSampler([10, 5], 5), "^weights = 5, expected one number for each dataset$"),
        (lambda: MixtureSampler([10, 5], np.array(3)), r"^weights = array\(3\), expected one number for each dataset$"),
        (lambda: orders.Mixture(15, [1]), "^sizes = 15, expected one number for each dataset$"),
        (lambda: ChunkedSampler(range(10), np.array([1, 2])), r"^chunk_size = array\(\[1, 2\]\), expected an integer"),
        (lambda: orders.Chunked(10, np.array([1, 2])), r"^chunk_size = array\(\[1, 2\]\), expected an integer"),
        (
            lambda: DistributedSampler(range(10), order=Described(5)),
            "^order: expected describe.. of Described .*, found 5$",
        ),
        (
            lambda: TokenBudgetBatchSampler([1] * 10, 9, planner="window", order=Described({"a": np.arange(2)})),
            "^order: expected describe.. of Described to return a dict that JSON can hold, found ndarray at 'a'; give ",
        ),
    ],
)
def test_bad_arguments(make, message):
    with pytest.raises(OrderError, match=message) as caught:
        make()
    assert isinstance(caught.value, ValueError)
    check(str(caught.value))


def test_more_replicas_than_samples():
    found = [list(DistributedSampler(range(3), 8, rank)) for rank in range(8)]
    assert all(len(each) == 1 for each in found)
    assert set(flat(found)) == {0, 1, 2}
    assert all(len(list(DistributedBatchSampler(range(3), 2, 8, rank))) == 1 for rank in range(8))


@pytest.mark.parametrize(
    "exclude",
    [
        5,
        [("records", 1)],
        {"records": 5},
        {"records": None},
        {"records": np.array(3)},
        {"records": [1.5]},
        {"records": ["a"]},
        {"records": [[1, 2, 3]]},
        {"records": [(-5, 3)]},
        {"records": [(5, 3)]},
        {"steps": [(None, 2)]},
        {"positions": [1]},
    ],
)
def test_exclusions_that_cannot_be_understood(exclude):
    with pytest.raises(mmapds.OrderError, match=r"^exclude"):
        mmapds.DistributedSampler(range(10), 1, 0, exclude=exclude)
    with pytest.raises(mmapds.OrderError, match=r"^exclude"):
        mmapds.TokenBudgetBatchSampler([3] * 10, 10, num_replicas=1, rank=0, exclude=exclude)


@pytest.mark.parametrize("make", [mmapds.DistributedSampler, partial(mmapds.TokenBudgetBatchSampler, max_tokens=10)])
@pytest.mark.parametrize("wrong", [10, (9, 11), 2**70, (9, 2**63), (2**64, 2**65)])
def test_records_that_do_not_exist_cannot_be_excluded(make, wrong):
    with pytest.raises(
        mmapds.OrderError, match=r"^exclude\['records'\]\[1\] = .*, expected records below 10, those"
    ) as e:
        make([3] * 10, num_replicas=1, rank=0, exclude={"records": [(3, 10), wrong]})
    check(str(e.value))


def test_steps_that_do_not_exist_cannot_be_excluded():
    for sampler in (
        mmapds.DistributedSampler(range(11), 2, 0, exclude={"steps": [(4, 7)]}),
        mmapds.DistributedBatchSampler(range(60), 5, 2, 0, exclude={"steps": [(4, 7)]}),
    ):
        with pytest.raises(
            mmapds.OrderError,
            match=r"^exclude\['steps'\]\[0\] = \(4, 7\), expected steps below 6, those of an epoch",
        ) as e:
            list(sampler)
        check(str(e.value))
    list(mmapds.DistributedSampler(range(11), 2, 0, exclude={"steps": [(4, 6)]}))
    # A job that goes on with more ranks has fewer steps than those that its arguments still name.
    wide = mmapds.DistributedSampler(range(100), 10, 0, exclude={"steps": [(40, 50)]})
    wide.load_state_dict(mmapds.DistributedSampler(range(100), 2, 0, exclude={"steps": [(40, 50)]}).state_dict(step=10))
    assert len(list(wide)) == 6


def test_too_many_exclusions_are_an_error_with_another_way():
    sampler = mmapds.DistributedSampler(range(2**62), 1, 0, exclude={"records": [(0, 2**61)]})
    with pytest.raises(
        mmapds.OrderError, match=r"expected up to \d+ records, found 2305843009213693952; sample a view"
    ):
        next(iter(sampler))


def test_a_range_of_any_length_is_excluded_from_a_sequential_order():
    n = 2**62
    exclude = {"records": [(3, 10), (5, n - 4), n - 2]}
    for world in (1, 2):
        samplers = [DistributedSampler(range(n), world, rank, shuffle=False, exclude=exclude) for rank in range(world)]
        assert [n for step in zip(*samplers, strict=True) for n in step] == [0, 1, 2, n - 4, n - 3, n - 1]
    short = DistributedSampler(range(n), 1, 0, shuffle=False, epoch_size=6, exclude={"records": [(1, 3), (5, n)]})
    assert list(short) == [0, 3, 4]


def test_an_order_derived_from_the_sequential_one_may_be_another():
    class Backwards(mmapds.orders.Sequential):
        def at(self, epoch, positions):
            return len(self) - 1 - positions

        def positions_of(self, epoch, records):
            return len(self) - 1 - records

    sampler = DistributedSampler(range(6), 1, 0, order=Backwards(6), exclude={"records": [(0, 2)]})
    assert list(sampler) == [5, 4, 3, 2]


@pytest.mark.parametrize("records", [[[-5, 3]], [[5, 3]], [[0, 2**63]], [[1.5, 2]], [[1, 2, 3]], [["a", 1]], 5, None])
def test_a_state_whose_exclusions_are_malformed_is_refused(records):
    state = mmapds.DistributedSampler(range(10), 1, 0).state_dict()
    state["exclude"]["records"] = records
    with pytest.raises(mmapds.StateError, match="malformed"):
        mmapds.DistributedSampler(range(10), 1, 0).load_state_dict(state)


def test_integers_of_numpy_are_taken_everywhere():
    two = np.int64(2)
    lengths = np.arange(1, 100)
    assert list(mmapds.TokenBudgetBatchSampler(lengths, np.int64(200), num_replicas=two, rank=np.int64(1)))
    sizes = [np.int64(5), np.int64(7)]
    assert list(mmapds.MixtureSampler(sizes, [1, 2], two, np.int64(0))) == list(
        mmapds.MixtureSampler([5, 7], [1, 2], 2, 0)
    )
    plain = mmapds.DistributedBatchSampler(range(20), 2, 2, 1, start_step=2, epoch_size=18)
    assert list(
        mmapds.DistributedBatchSampler(range(20), two, two, np.int64(1), start_step=two, epoch_size=np.int64(18))
    ) == list(plain)


@pytest.mark.parametrize("integers", [np.int8, np.uint8, np.int16, np.uint64])
def test_steps_that_are_shown_may_be_of_any_integer_type(integers):
    n, world = 1_000_000, {"num_replicas": 2, "rank": 0}
    lengths = np.arange(1, 501)
    samplers = [
        DistributedSampler(range(n), **world),
        DistributedSampler(range(2**60), **world),
        ChunkedSampler(range(n), 100, **world),
        MixtureSampler([n, 5], [1, 2], stop="longest", **world),
        DistributedBatchSampler(range(n), 32, **world),
        mmapds.TokenBudgetBatchSampler(lengths, 1000, **world),
        mmapds.PackingBatchSampler(lengths, 1000, **world),
    ]
    for sampler in samplers:
        for step in (0, 3, min(len(sampler), 128) - 1):
            shown, expected = sampler.indices_at(integers(step)), sampler.indices_at(step)
            assert len(shown) == len(expected)
            assert all(map(np.array_equal, shown, expected))


@pytest.mark.parametrize("value", [1.5, "a", 0, -1, True])
def test_worlds_that_are_not_integers_of_one_or_more(value, monkeypatch):
    with pytest.raises(mmapds.OrderError, match="num_replicas = "):
        mmapds.DistributedSampler(range(10), value, 0)
    monkeypatch.setenv("WORLD_SIZE", "two")
    with pytest.raises(mmapds.OrderError, match="WORLD_SIZE = 'two' in the environment, expected an integer"):
        mmapds.DistributedSampler(range(10))


FLAGGED = {
    "index": lambda **flags: DistributedSampler(range(100), **flags),
    "chunked": lambda **flags: ChunkedSampler(range(100), 7, **flags),
    "mixture": lambda **flags: MixtureSampler([60, 40], [3, 2], **flags),
    "batch": lambda **flags: DistributedBatchSampler(range(100), 6, **flags),
    "budget": lambda **flags: mmapds.TokenBudgetBatchSampler(range(1, 101), 200, **flags),
    "packs": lambda **flags: mmapds.PackingBatchSampler(range(1, 101), 200, **flags),
}


@pytest.mark.parametrize("name", ["shuffle", "drop_last"])
@pytest.mark.parametrize("kind", FLAGGED)
def test_a_flag_is_true_or_false_and_no_text(kind, name):
    with pytest.raises(OrderError, match=f"^{name} = 'no', expected True or False$"):
        FLAGGED[kind](**{name: "no"})


@pytest.mark.parametrize("kind", [np.uint8, np.array, torch.tensor])
def test_sizes_of_a_mixture_may_be_of_any_integer_type(kind):
    sizes = 200, 100
    expected = list(mmapds.MixtureSampler(sizes, [1, 1]))
    assert list(mmapds.MixtureSampler([kind(size) for size in sizes], [1, 1])) == expected
    assert list(mmapds.MixtureSampler([kind(200), 100], [1, 1])) == expected


def test_large_sizes_of_a_mixture_are_not_rounded():
    sampler = mmapds.MixtureSampler([np.uint64(2**53 + 1), 4], [1, 1])
    assert len(sampler.sampled) == len(sampler.dataset) == 2**53 + 5


@pytest.mark.parametrize("wrong", ["1", 1.5, None])
def test_epochs_and_steps_are_integers(wrong):
    sampler = DistributedSampler(range(10), 1, 0)
    with pytest.raises(OrderError, match=r"^epoch = .*, expected an integer"):
        sampler.set_epoch(wrong)
    with pytest.raises(OrderError, match=r"^step = .*, expected an integer"):
        sampler.indices_at(wrong)
    if wrong is not None:
        with pytest.raises(OrderError, match=r"^step = .*, expected an integer"):
            sampler.state_dict(wrong)
