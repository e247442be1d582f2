"""Streams: against the sampler's own order, and shared by ranks and workers."""

import pickle
import warnings
from itertools import islice

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import mmapds
from mmapds import orders
from tests.support.messages import check
from tests.support.streams import KINDS, PROCESSES, N, ids, loader_of, streamed


@pytest.fixture
def ds(write):
    return streamed(write)


def flat(items):
    """The ids of samples, or of the samples of batches."""
    return [each["id"] for item in items for each in (item if isinstance(item, list) else [item])]


def test_a_stream_is_in_file_order(ds):
    stream = ds.stream()
    assert flat(stream) == flat(stream) == list(range(N))
    assert len(stream) == N
    assert isinstance(stream, torch.utils.data.IterableDataset)
    assert flat(ds[::-2].stream()) == list(range(N))[::-2]


def test_a_stream_takes_any_order_and_any_sampler(ds):
    order = orders.Chunked(N, 10, mix_chunks=2, seed=5)
    assert flat(ds.stream(order=order)) == list(mmapds.DistributedSampler(ds, order=order))
    shuffled = ds.stream(shuffle=True, seed=3)
    assert flat(shuffled) == list(mmapds.DistributedSampler(ds, seed=3))
    budget = mmapds.TokenBudgetBatchSampler(ds, max_tokens=30)
    assert [ids(batch) for batch in ds.stream(budget)] == list(mmapds.TokenBudgetBatchSampler(ds, max_tokens=30))
    batches = ds.stream(batch_size=4)
    assert [ids(batch) for batch in batches] == [list(range(k, min(k + 4, N))) for k in range(0, N, 4)]
    assert len(batches) == len(DataLoader(batches, batch_size=None)) == 51


@pytest.mark.parametrize(("world", "workers"), [(1, 2), (2, 1), (3, 0), (3, 2)])
@pytest.mark.parametrize("kind", KINDS)
def test_ranks_and_workers_share_a_stream(ds, world, kind, workers):
    read = []
    for rank in range(world):
        stream = ds.stream(shuffle=True, num_replicas=world, rank=rank, pad=False, **KINDS[kind])
        read += [each for batch in loader_of(stream, kind, workers) for each in batch]
    assert sorted(read) == list(range(N))


@pytest.mark.parametrize("workers", [1, 2])
def test_batches_come_in_the_same_order_with_any_number_of_workers(ds, workers):
    stream = ds.stream(shuffle=True, num_replicas=2, rank=1, batch_size=4)
    loader = loader_of(stream, "batches", workers)
    for epoch in range(2):
        stream.set_epoch(epoch)
        expected = mmapds.DistributedBatchSampler(ds, 4, 2, 1)
        expected.set_epoch(epoch)
        assert list(loader) == list(expected)


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_of_one_process_counts_what_it_yields(ds, kind):
    whole = list(ds.stream(shuffle=True, **KINDS[kind]))
    for stop in range(1, len(whole), 7):
        stream = ds.stream(shuffle=True, **KINDS[kind])
        iterator = iter(stream)
        assert [next(iterator) for _ in range(stop)] == whole[:stop]
        again = ds.stream(shuffle=True, **KINDS[kind])
        again.load_state_dict(stream.state_dict())
        assert list(again) == whole[stop:]
    stream.set_epoch(1)
    assert stream.state_dict()["position"] == 0


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_goes_on_with_other_ranks_and_workers(ds, workers):
    read, steps = [], 5
    for rank in range(2):
        stream = ds.stream(shuffle=True, batch_size=4, num_replicas=2, rank=rank)
        for step, batch in enumerate(loader_of(stream, "batches", workers), stream.first_step + 1):
            read += batch
            if step == steps:
                state = stream.state_dict(step=step)
                break
    for rank in range(3):
        stream = ds.stream(shuffle=True, batch_size=7, num_replicas=3, rank=rank, pad=False)
        stream.load_state_dict(state)
        assert stream.epoch == 0
        read += [each for batch in loader_of(stream, "batches", 2 - workers) for each in batch]
    assert sorted(read) == list(range(N))


@pytest.mark.parametrize(("workers", "context"), PROCESSES)
def test_what_is_for_the_first_pass_of_a_stream_is_for_none_after_it(ds, workers, context):
    steps = 21

    def epochs_of(stream, epochs):
        loader = loader_of(stream, "batches", workers, multiprocessing_context=context)
        for epoch in epochs:
            stream.set_epoch(epoch)
            batches = list(loader)
            assert len(batches) == steps - stream.first_step - len(stream.state_dict()["exclude"]["positions"]) * 3
            yield batches

    whole = list(epochs_of(ds.stream(batch_size=10, shuffle=True), range(4)))
    started = ds.stream(batch_size=10, shuffle=True, start_step=6)
    assert list(epochs_of(started, range(3))) == [whole[0][6:], *whole[1:3]]
    without = {"steps": [(2, 5)]}
    excluding = ds.stream(batch_size=10, shuffle=True, exclude=without)
    assert list(epochs_of(excluding, range(3))) == [whole[0][:2] + whole[0][5:], *whole[1:3]]
    before = ds.stream(batch_size=10, shuffle=True)
    list(before)
    after = ds.stream(batch_size=10, shuffle=True, exclude=without)
    after.load_state_dict(before.state_dict())
    assert list(epochs_of(after, range(1, 4))) == [whole[1][:2] + whole[1][5:], *whole[2:4]]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_pass_that_was_only_peeked_at_begins_where_it_began(ds, workers):
    before = ds.stream(batch_size=10)
    list(islice(before, 4))
    stream = ds.stream(batch_size=10)
    stream.load_state_dict(before.state_dict())
    loader = loader_of(stream, "batches", workers)
    next(iter(loader))
    stream.set_epoch(0)
    assert stream.first_step == 4
    assert [batch[0] for batch in loader] == [*range(40, N, 10)]


def test_workers_speak_to_the_sampler_of_a_stream(ds):
    def epochs_of(choose, make):
        for epoch in range(3):
            choose(epoch)
            yield len(list(loader_of(make(), "batches", 2)))

    sampler = mmapds.DistributedBatchSampler(ds, 10, start_step=6)
    stream = ds.stream(sampler)
    assert list(epochs_of(sampler.set_epoch, lambda: stream)) == [15, 21, 21]
    sampler = mmapds.DistributedBatchSampler(ds, 10, start_step=6)
    assert list(epochs_of(sampler.set_epoch, lambda: ds.stream(sampler))) == [15, 21, 21]
    sampler.load_state_dict(mmapds.DistributedBatchSampler(ds, 10).state_dict(step=4))
    assert list(epochs_of(sampler.set_epoch, lambda: ds.stream(sampler))) == [17, 21, 21], "a rollback"


@pytest.mark.parametrize("workers", [0, 2])
def test_the_end_of_an_epoch_that_workers_read_begins_the_next(ds, workers):
    before = ds.stream(batch_size=10)
    list(before)
    stream = ds.stream(batch_size=10)
    stream.set_epoch(0)
    list(loader_of(stream, "batches", workers))
    stream.load_state_dict(before.state_dict())
    assert stream.epoch == 1


@pytest.mark.parametrize("had", [12, 13, 14, 15])
def test_a_loop_that_is_given_up_near_its_end_leaves_all_workers_in_one_pass(ds, had):
    """One of the workers may have come to the end of the pass, ahead of the loop."""
    stream = ds.stream(batch_size=10, start_step=6)
    loader = loader_of(stream, "batches", 2)
    list(islice(loader, had))
    assert [batch[0] for batch in loader] == [*range(60, N, 10)]


@pytest.mark.parametrize(("workers", "context"), PROCESSES)
def test_a_loop_that_always_chooses_one_epoch_of_a_stream_is_told(ds, workers, context):
    """In one process the rest was read; of workers nobody knows whether the trainer had all of it."""
    stream = ds.stream(batch_size=10, start_step=6)
    loader, found = loader_of(stream, "batches", workers, multiprocessing_context=context), []
    stream.set_epoch(0)
    found.append(len(list(loader)))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        stream.set_epoch(0)
    found.append(len(list(loader)))
    assert found == [15, 15 if workers else 21]
    assert len(said) == (workers > 0)
    for each in said:
        check(str(each.message))
        assert "expected a new one after workers have begun the rest of this one, from step 6; " in str(each.message)
    stream.set_epoch(1)
    assert len(list(loader)) == 21


@pytest.mark.parametrize("make", [DataLoader, StatefulDataLoader])
@pytest.mark.parametrize("workers", [0, 1, 2])
def test_a_loop_given_up_near_its_end_leaves_out_its_steps_again(ds, workers, make):
    stream = ds[:120].stream(batch_size=30, exclude={"steps": [1]})
    loader = loader_of(stream, "batches", workers, make)
    for had in (2, 3):
        stream.set_epoch(0)
        assert [batch[0] for batch in islice(loader, had)] == [0, 60, 90][:had]  # workers may have drawn all of it
    stream.set_epoch(1)
    assert len(list(loader)) == 4


@pytest.mark.parametrize("kind", KINDS)
def test_an_epoch_that_is_chosen_within_a_loop_begins_at_its_begin(ds, kind):
    stream = ds.stream(shuffle=True, **KINDS[kind])
    iterator = iter(stream)
    next(iterator)
    stream.set_epoch(1)
    for _ in range(2):
        state = stream.state_dict()
        assert (state["epoch"], state["position"]) == (1, 0)
        next(iterator)
    assert len(list(stream)) == len(stream)


def test_a_stream_travels_to_spawned_workers(ds):
    stream = ds.stream(batch_size=50)
    next(iter(stream))
    assert flat(pickle.loads(pickle.dumps(stream))) == list(range(N))
    loader = loader_of(stream, "batches", 1, multiprocessing_context="spawn")
    assert [each for batch in loader for each in batch] == list(range(N))


def test_what_a_stream_refuses(ds):
    sampler = mmapds.DistributedSampler(ds)
    for options, given in [({"batch_size": 4}, "batch_size"), ({"seed": 1}, "seed"), ({"shuffle": True}, "shuffle")]:
        with pytest.raises(mmapds.OrderError, match=f"sampler: expected no other arguments beside it, found {given}; "):
            ds.stream(sampler, **options)
    with pytest.raises(mmapds.OrderError, match="sampler: expected a sampler of mmapds, found range"):
        ds.stream(range(3))
    with pytest.raises(mmapds.OrderError, match="found 0 "):
        ds[:0].stream()
    for other in (ds[::-1], ds[:-1]):
        with pytest.raises(mmapds.OrderError, match=r"sampler: expected one of the \d+ samples of the dataset, found"):
            other.stream(sampler)
    own = {"worker": 0, "num_workers": 1, "num_replicas": 1, "batch_size": 1, "given": 0}
    state = {**own, "sampler": sampler.state_dict(), "worker": 1, "num_workers": 2, "given": 3}
    with pytest.raises(mmapds.StateError, match=r"state: expected one of worker 0 of 1, .*, found one of worker 1 of "):
        ds.stream(sampler).load_state_dict(state)
    for key, value in (
        ("worker", np.array([0, 1])),
        ("given", "x"),
        ("given", None),
        ("given", -1),
        ("given", True),
    ):
        begun = ds.stream(sampler).state_dict()
        stream = ds.stream(seed=2, start_step=5)
        before = stream.state_dict()
        with pytest.raises(mmapds.StateError, match="state"):
            stream.load_state_dict({**own, "sampler": begun, key: value})
        assert stream.state_dict() == before  # nothing of it was loaded
    with pytest.raises(mmapds.StateError, match="state: of another order"):
        ds.stream().load_state_dict(sampler.state_dict())


def test_a_stream_says_what_it_is(ds):
    assert repr(ds.stream(batch_size=4)).startswith(
        "<mmapds stream of batches: <DistributedBatchSampler: 203 samples, "
    )


@pytest.mark.parametrize("looks", ["none", "here", "in a loader", "meanwhile"])
def test_samples_that_several_workers_read_are_no_place_whatever_else_reads_them(ds, looks):
    """Nor where the second worker has not begun yet: the loader's first batch is all of the first one."""
    stream = ds.stream()
    stream.set_epoch(0)
    if looks == "here":
        next(iter(stream))
    elif looks == "in a loader":
        next(iter(DataLoader(stream)))
    batches = iter(DataLoader(stream, batch_size=100, num_workers=2, collate_fn=ids))
    assert next(batches) == [*range(64), *range(128, 164)]
    if looks == "meanwhile":
        next(iter(stream))
    with pytest.raises(mmapds.StateError, match="step = 100, expected a stream of batches where "):
        stream.state_dict(step=100)
    del batches  # and its workers, which say as they begin that they read
    stream.set_epoch(0)
    assert len(list(islice(stream, 100))) == 100
    assert stream.state_dict(step=100)["position"] == 100


def test_a_number_of_samples_that_several_workers_read_is_no_place_in_the_epoch(ds):
    stream = ds.stream(shuffle=True)
    loader = loader_of(stream, "samples", 2)
    read = list(islice(loader, 5))
    with pytest.raises(mmapds.StateError, match="step = 20, expected a stream of batches where ") as error:
        stream.state_dict(step=20)
    check(str(error.value))
    stream.set_epoch(1)
    assert (stream.state_dict(step=0)["epoch"], len(read)) == (1, 5)
    assert sum(map(len, loader)) == N
    assert stream.state_dict(step=N)["position"] == N
