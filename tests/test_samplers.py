"""Samplers: torch's counts and rules, and resume that neither repeats nor loses a sample."""

import copy
import json
import math
import os
from itertools import islice

import numpy as np
import pytest
import torch.distributed
import torch.utils.data
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler as TorchSampler
from torchdata.stateful_dataloader import StatefulDataLoader

import mmapds
from mmapds import (
    ChunkedSampler,
    DistributedBatchSampler,
    DistributedSampler,
    MixtureSampler,
    OrderError,
    StateError,
    orders,
)

WORLDS = [1, 2, 3, 5, 8, 40]


def union(samplers):
    """What all ranks get, in the order of the steps."""
    return [record for step in zip(*samplers, strict=True) for record in step]


def flat(batches):
    return [record for batch in batches for record in batch]


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


# ---- the life of a pass ----------------------------------------------------------------------------------------


def make_samplers(**options):
    mixture = {key: value for key, value in options.items() if key != "n"}
    return [
        DistributedSampler(range(100), **options),
        ChunkedSampler(range(100), 7, **options),
        MixtureSampler([60, 40], [3, 2], **mixture),
        DistributedBatchSampler(range(100), 6, **options),
    ]


every_sampler = pytest.mark.parametrize("kind", range(4), ids=["index", "chunked", "mixture", "batch"])


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
@pytest.mark.parametrize("stop", [0, 1, 7, 16])
def test_save_anywhere_and_get_exactly_the_rest(kind, stop):
    sampler = make_samplers(seed=3)[kind]
    sampler.set_epoch(2)
    iterator = iter(sampler)
    begun = list(islice(iterator, stop))
    state = json.loads(json.dumps(sampler.state_dict()))
    rest = list(iterator)
    other = make_samplers(seed=3)[kind]
    kept = copy.deepcopy(state)
    for _ in range(2):
        other.load_state_dict(state)
    assert state == kept
    assert other.epoch == 2
    assert other.state_dict() == state
    assert begun + list(other) == begun + rest
    assert list(other) == begun + rest, "the pass after it is whole"


@every_sampler
def test_a_second_resume_in_one_epoch(kind):
    whole = list(make_samplers()[kind])
    seen, state = [], None
    while len(seen) < len(whole):
        sampler = make_samplers()[kind]
        if state:
            sampler.load_state_dict(state)
        seen += islice(iter(sampler), 5)
        state = sampler.state_dict()
    assert seen == whole


@every_sampler
def test_the_state_of_a_step_the_trainer_has_finished(kind):
    sampler = make_samplers()[kind]
    whole = list(make_samplers()[kind])
    iterator = iter(sampler)
    list(islice(iterator, 12))  # a loader that prefetches
    state = sampler.state_dict(step=5)
    assert next(iterator) == whole[12]
    other = make_samplers()[kind]
    other.load_state_dict(state)
    assert other.state_dict(step=5) == state, "steps go on counting after a resume"
    resumed = iter(other)
    assert next(resumed) == whole[5]
    list(islice(resumed, 3))
    again = make_samplers()[kind]
    again.load_state_dict(other.state_dict(step=7))
    assert next(iter(again)) == whole[7]
    with pytest.raises(StateError, match=r"step = 4, expected 5 to \d+"):
        other.state_dict(step=4)
    with pytest.raises(StateError, match="step = 1000, expected 5 to"):
        other.state_dict(step=1000)


@every_sampler
def test_an_exhausted_state_begins_a_full_pass(kind):
    sampler = make_samplers()[kind]
    whole = list(sampler)
    other = make_samplers()[kind]
    other.load_state_dict(sampler.state_dict())
    assert list(other) == whole


@every_sampler
def test_load_then_set_epoch(kind):
    sampler = make_samplers()[kind]
    sampler.set_epoch(4)
    list(islice(iter(sampler), 6))
    state = sampler.state_dict()
    whole = {}
    for epoch in (4, 5):
        plain = make_samplers()[kind]
        plain.set_epoch(epoch)
        whole[epoch] = list(plain)
    same, other = make_samplers()[kind], make_samplers()[kind]
    same.load_state_dict(state)
    same.set_epoch(4)
    assert list(same) == whole[4][6:]
    other.load_state_dict(state)
    other.set_epoch(5)
    assert list(other) == whole[5]


@every_sampler
def test_an_early_break_forgets_nothing_and_keeps_nothing(kind):
    sampler = make_samplers()[kind]
    whole = list(make_samplers()[kind])
    for _ in range(3):
        assert list(islice(iter(sampler), 4)) == whole[:4]
    assert list(sampler) == whole


@every_sampler
def test_a_state_is_small_and_fresh(kind):
    sampler = make_samplers()[kind]
    state = sampler.state_dict()
    state["order"]["seed"] = 99
    state["exclude"]["positions"].append([0, 1])
    assert sampler.state_dict() != state
    assert len(json.dumps(sampler.state_dict())) < 500


# ---- StatefulDataLoader -------------------------------------------------------------------------------------------


def loader_over(kind, workers):
    sampler = make_samplers(seed=1)[kind]
    if kind == 3:
        return StatefulDataLoader(range(100), batch_sampler=sampler, num_workers=workers), sampler
    return StatefulDataLoader(range(100), batch_size=6, sampler=sampler, num_workers=workers), sampler


@every_sampler
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("stop", [1, 5, 16])
def test_stateful_data_loader_resumes_exactly(kind, workers, stop):
    loader, _ = loader_over(kind, workers)
    iterator = iter(loader)
    for _ in range(stop):
        next(iterator)
    state = loader.state_dict()
    rest = [batch.tolist() for batch in iterator]
    resumed, _ = loader_over(kind, workers)
    resumed.load_state_dict(state)
    assert [batch.tolist() for batch in resumed] == rest


@pytest.mark.parametrize("workers", [0, 2])
def test_plain_data_loader_with_the_trainers_own_step(workers):
    def loader(sampler):
        return DataLoader(range(100), batch_sampler=sampler, num_workers=workers)

    sampler = DistributedBatchSampler(range(100), 6)
    batches = [batch.tolist() for batch in loader(sampler)]
    iterator = iter(loader(sampler))
    for _ in range(5):
        next(iterator)
    other = DistributedBatchSampler(range(100), 6)
    other.load_state_dict(sampler.state_dict(step=5))
    assert [batch.tolist() for batch in loader(other)] == batches[5:]


# ---- elastic -------------------------------------------------------------------------------------------------------


@settings(max_examples=200)
@given(
    n=st.integers(1, 120),
    lives=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 6), st.integers(0, 12)), min_size=1, max_size=4),
    kind=st.sampled_from(["index", "chunked", "batch"]),
)
def test_any_world_goes_on_from_any_other(n, lives, kind):
    """W -> W' -> W'' ...: everything exactly once, what is filled up at the end aside."""

    def make(world, rank, batch):
        if kind == "index":
            return DistributedSampler(range(n), world, rank, seed=1)
        if kind == "chunked":
            return ChunkedSampler(range(n), 7, world, rank, seed=1)
        return DistributedBatchSampler(range(n), batch, world, rank, seed=1)

    seen, state = [], None
    for life, (world, batch, steps) in enumerate(lives):
        samplers = [make(world, rank, batch) for rank in range(world)]
        for sampler in samplers:
            if state is not None:
                sampler.load_state_dict(state)
        iterators = [iter(sampler) for sampler in samplers]
        last = life == len(lives) - 1
        for step in zip(*(it if last else islice(it, steps) for it in iterators), strict=True):
            if kind == "batch":
                assert len({len(batch) for batch in step}) == 1, "ranks have batches of one size"
                step = [record for row in zip(*step, strict=True) for record in row]
            seen += step
        states = [sampler.state_dict() for sampler in samplers]
        assert all(other == states[0] for other in states), "the state is the same on every rank"
        state = states[0]
        if state["position"] == n:
            break
    if state["position"] == n:
        assert sorted(seen[:n]) == list(range(n))
        assert len(seen) < n + lives[life][0]
    else:
        raise AssertionError("the last life runs to the end")


def test_a_state_may_change_the_batch_size():
    big = DistributedBatchSampler(range(100), 10)
    iterator = iter(big)
    begun = flat(islice(iterator, 3))
    small = DistributedBatchSampler(range(100), 4, 1, 0)
    small.load_state_dict(big.state_dict())
    assert begun + flat(small) == flat(big)


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
    assert union(samplers)[:100] == whole, "only the pass that was told"


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


@pytest.mark.parametrize("shuffle", [False, True])
def test_records_beyond_a_short_epoch_may_be_excluded(shuffle):
    whole = list(DistributedSampler(range(1000), 1, 0, shuffle, epoch_size=100))
    for begin, end, records in ((0, 500, [(0, 500)]), (600, 1000, [(600, 10**30), 700])):
        sampler = DistributedSampler(range(1000), 1, 0, shuffle, epoch_size=100, exclude={"records": records})
        assert list(sampler) == [record for record in whole if not begin <= record < end]


def test_records_may_be_excluded_whose_numbers_are_larger_than_the_epoch():
    def mixed(**options):
        return MixtureSampler([1000, 1000], [1, 1], 1, 0, epoch_size=100, **options)

    def drawn(**options):
        return DistributedSampler(range(1000), 1, 0, order=orders.Resampled(1000, 50), **options)

    for make in (mixed, drawn):
        kept = [record for record in make() if not 400 <= record < 1500]
        assert list(make(exclude={"records": [(400, 700), 600, (650, 1500)]})) == kept


def test_everything_may_be_excluded():
    assert list(DistributedSampler(range(10), 2, 0, exclude={"records": [(0, 10)]})) == []


# ---- sizes and orders of one's own -----------------------------------------------------------------------------------


def test_epoch_size_takes_the_head_of_each_epochs_order():
    sampler = DistributedSampler(range(1000), 2, 1, epoch_size=101)
    assert len(sampler) == 51
    whole = list(DistributedSampler(range(1000), 1, 0))[:101]
    assert list(sampler) == [*whole[1::2], whole[0]]
    resampled = DistributedSampler(range(10), order=orders.Resampled(10, 35))
    assert len(list(resampled)) == 35


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


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DistributedSampler(range(10), 2, 2), r"^rank = 2, expected 0 to 1 \(num_replicas = 2\)$"),
        (lambda: DistributedSampler(range(10), 2, -1), "rank = -1, expected 0 to 1"),
        (lambda: DistributedSampler(range(10), 0, 0), "num_replicas = 0"),
        (lambda: DistributedSampler([]), "n = 0, expected an integer of 1 or more"),
        (lambda: DistributedSampler(range(10), 2, 0, start_step=-1), "start_step = -1, expected 0 to 5"),
        (lambda: DistributedSampler(range(10), 2, 0, start_step=6), "start_step = 6, expected 0 to 5"),
        (lambda: DistributedSampler(range(10), epoch_size=0), "epoch_size = 0, expected 1 to 10"),
        (lambda: DistributedSampler(range(10), epoch_size=11), "expected 1 to 10; use orders.Resampled for"),
        (lambda: DistributedSampler(range(10), order=[1, 2]), r"order: expected at\(\), .*, found list"),
        (lambda: DistributedSampler(range(10), exclude={"days": [1]}), "'steps' and 'records', found 'days'"),
        (
            lambda: DistributedSampler(range(10), exclude={"steps": [(3, 2)]}),
            r"\['steps'\]\[0\] = \(3, 2\), expected 0 <=",
        ),
        (lambda: ChunkedSampler(range(10), 0), "chunk_size = 0"),
        (lambda: MixtureSampler([10], []), "weights: expected 1, one for each dataset, found 0"),
        (lambda: MixtureSampler([10], [-1]), "expected finite numbers of 0 or more"),
        (lambda: MixtureSampler([10], [float("nan")]), "expected finite numbers of 0 or more"),
        (lambda: MixtureSampler({1, 2}, [1]), "expected a list of datasets or sizes, found set"),
        (lambda: DistributedBatchSampler(range(10), 0), "batch_size = 0, expected an integer of 1 or more"),
        (lambda: DistributedBatchSampler(range(10), 2.0), "batch_size = 2.0"),
    ],
)
def test_bad_arguments(make, message):
    with pytest.raises(OrderError, match=message) as caught:
        make()
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda _: None, "expected the dict that state_dict\\(\\) returned, found NoneType"),
        (lambda _: {}, "found one without epoch, epoch_size, exclude, order, position, version"),
        (lambda s: s | {"version": 2}, r"state\['version'\] = 2, expected 1"),
        (lambda s: s | {"position": -1}, r"state\['position'\] = -1, expected 0 to 100"),
        (lambda s: s | {"position": 101}, r"state\['position'\] = 101, expected 0 to 100"),
        (lambda s: s | {"order": s["order"] | {"n": 99}}, "state: of another order: expected n = 100, found 99"),
        (lambda s: s | {"order": s["order"] | {"seed": 1}}, "expected seed = 0, found 1"),
        (lambda s: s | {"order": s["order"] | {"version": 9}}, "expected version = 1, found 9"),
        (lambda s: s | {"order": {"order": "sequential"}}, "expected order = 'shuffled', found 'sequential'"),
        (lambda s: s | {"epoch_size": 50}, "expected epoch_size = 100, found 50"),
    ],
)
def test_a_state_that_is_not_this_samplers_is_refused(change, message):
    for sampler in (DistributedSampler(range(100)), DistributedBatchSampler(range(100), 3)):
        state = sampler.state_dict()
        with pytest.raises(StateError, match=message):
            sampler.load_state_dict(change(state))
        assert sampler.state_dict() == state, "a refused state changes nothing"


def test_more_replicas_than_samples():
    found = [list(DistributedSampler(range(3), 8, rank)) for rank in range(8)]
    assert all(len(each) == 1 for each in found)
    assert set(flat(found)) == {0, 1, 2}
    assert all(len(list(DistributedBatchSampler(range(3), 2, 8, rank))) == 1 for rank in range(8))


# ---- the ends of an epoch ----------------------------------------------------------------------------------------


def test_an_exhausted_pass_that_dropped_its_tail_restores_as_a_full_one():
    sampler = DistributedSampler(range(103), 4, 0, drop_last=True)
    assert len(list(sampler)) == 25
    again = DistributedSampler(range(103), 4, 0, drop_last=True)
    again.load_state_dict(sampler.state_dict())
    assert len(list(again)) == 25


def test_too_little_left_for_a_step_of_the_new_world_is_exhausted():
    one = DistributedSampler(range(103), 1, 0, drop_last=True)
    wide = DistributedSampler(range(103), 50, 0, drop_last=True)
    wide.load_state_dict(one.state_dict(step=60))
    assert len(list(wide)) == 2


@pytest.mark.parametrize(
    "damage",
    [
        {"position": "7"},
        {"epoch": None},
        {"exclude": []},
        {"exclude": {"positions": [[1]], "records": []}},
        {"order": 3},
        {"position": -1},
    ],
)
def test_a_damaged_state_is_refused(damage):
    sampler = DistributedSampler(range(10), 1, 0)
    with pytest.raises(StateError):
        sampler.load_state_dict(sampler.state_dict(step=3) | damage)


def test_numbers_of_numpy_leave_a_state_that_json_holds():
    sampler = DistributedSampler(range(10), 1, 0, seed=np.int64(3))
    sampler.set_epoch(np.int64(2))
    assert json.loads(json.dumps(sampler.state_dict()))["epoch"] == 2
    with pytest.raises(OrderError, match=r"seed = 1.5, expected an integer"):
        DistributedSampler(range(10), 1, 0, seed=1.5)


def test_much_can_be_excluded_at_once():
    n = 1_000_000
    sampler = DistributedSampler(range(n), 2, 0, exclude={"records": [(0, 900_000), 950_000, np.int64(950_001)]})
    mine = list(sampler)
    assert len(mine) == (100_000 - 2) // 2
    assert min(mine) >= 900_000
    assert not {950_000, 950_001} & set(mine)
    assert len(json.dumps(sampler.state_dict())) < 1000


def test_a_world_without_a_rank(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(
        mmapds.OrderError, match=r"rank = None, expected 0 to 1 .*; pass rank=, set RANK, or initialise"
    ):
        mmapds.DistributedSampler(range(10), num_replicas=2)
    monkeypatch.setenv("RANK", "1")
    assert mmapds.DistributedSampler(range(10), num_replicas=2).rank == 1
