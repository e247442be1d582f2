"""Streams: against the sampler's own order, and shared by ranks and workers."""

import pickle
from itertools import islice

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import mmapds
from mmapds import orders
from tests.support.messages import check

N = 203
KINDS = {"samples": {}, "batches": {"batch_size": 4}}


@pytest.fixture
def ds(write):
    path = write([{"id": i, "n": 1 + i % 7} for i in range(N)])
    mmapds.build(path, length="n")
    return mmapds.open(path)


def ids(batch):
    return [sample["id"] for sample in batch]


def loader_of(stream, kind, workers, make=DataLoader, **options):
    size = None if kind == "batches" else 4
    return make(stream, batch_size=size, num_workers=workers, collate_fn=ids, **options)


def flat(items):
    """The ids of samples, or of the samples of batches."""
    return [each["id"] for item in items for each in (item if isinstance(item, list) else [item])]


def test_a_stream_is_in_file_order_or_in_any_other(ds):
    stream = ds.stream()
    assert flat(stream) == flat(stream) == list(range(N))
    assert (len(stream), isinstance(stream, torch.utils.data.IterableDataset)) == (N, True)
    assert flat(ds[::-2].stream()) == list(range(N))[::-2]
    order = orders.Chunked(N, 10, mix_chunks=2, seed=5)
    assert flat(ds.stream(order=order)) == list(mmapds.DistributedSampler(ds, order=order))
    shuffled = ds.stream(shuffle=True, seed=3)
    assert flat(shuffled) == list(mmapds.DistributedSampler(ds, seed=3))
    budget = mmapds.TokenBudgetBatchSampler(ds, max_tokens=30)
    assert [ids(batch) for batch in ds.stream(budget)] == list(mmapds.TokenBudgetBatchSampler(ds, max_tokens=30))
    batches = ds.stream(batch_size=4)
    assert [ids(batch) for batch in batches] == [list(range(k, min(k + 4, N))) for k in range(0, N, 4)]
    assert len(batches) == len(DataLoader(batches, batch_size=None)) == 51


@pytest.mark.parametrize(("kind", "world", "workers"), [("samples", 2, 2), ("samples", 3, 0), ("batches", 3, 2)])
def test_ranks_and_workers_share_a_stream(ds, world, kind, workers):
    read = []
    for rank in range(world):
        stream = ds.stream(shuffle=True, num_replicas=world, rank=rank, pad=False, **KINDS[kind])
        read += [each for batch in loader_of(stream, kind, workers) for each in batch]
    assert sorted(read) == list(range(N))


def test_batches_come_in_the_same_order_with_any_number_of_workers(ds):
    stream = ds.stream(shuffle=True, num_replicas=2, rank=1, batch_size=4)
    loader = loader_of(stream, "batches", 2)
    for epoch in range(2):
        stream.set_epoch(epoch)
        expected = mmapds.DistributedBatchSampler(ds, 4, 2, 1)
        expected.set_epoch(epoch)
        assert list(loader) == list(expected)


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_of_one_process_counts_what_it_yields(ds, kind):
    whole = list(ds.stream(shuffle=True, **KINDS[kind]))
    for stop in (1, 7, len(whole) - 1):
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


@pytest.mark.parametrize("workers", [0, 2])
def test_a_start_step_and_a_state_are_of_one_epoch(ds, workers):
    def epochs_of(stream, epochs):
        loader = loader_of(stream, "batches", workers)
        for epoch in epochs:
            stream.set_epoch(epoch)
            yield list(loader)

    whole = list(epochs_of(ds.stream(batch_size=10, shuffle=True), range(3)))
    assert list(map(len, whole)) == [21] * 3
    started = ds.stream(batch_size=10, shuffle=True, start_step=6)
    assert list(epochs_of(started, range(3))) == [whole[0][6:], *whole[1:]]
    after = ds.stream(batch_size=10, shuffle=True)
    after.load_state_dict(started.state_dict(step=21))
    assert next(epochs_of(after, [3])) not in whole


@pytest.mark.parametrize(("kind", "workers"), [("samples", 2), ("batches", 1), ("batches", 2)])
def test_workers_go_on_where_torchdata_saved_them(ds, kind, workers):
    def loader():
        return loader_of(ds.stream(shuffle=True, **KINDS[kind]), kind, workers, StatefulDataLoader)

    whole = list(loader())
    for had in (3, len(whole) - 1):
        first, second = loader(), loader()
        assert list(islice(first, had)) == whole[:had]
        second.load_state_dict(first.state_dict())
        assert list(second) == whole[had:]


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
    with pytest.raises(mmapds.StateError, match="state: of another order"):
        ds.stream().load_state_dict(sampler.state_dict())
    with pytest.raises(mmapds.StateError, match="step = 20, expected a stream of batches, found one of samples"):
        ds.stream(shuffle=True).state_dict(step=20)  # several workers may have read them
    said = "<mmapds stream of batches: <DistributedBatchSampler: 203 samples, "
    assert repr(ds.stream(batch_size=4)).startswith(said)


def test_what_a_stream_refuses_of_the_state_of_a_worker(ds):
    begin = ds.stream().state_dict()
    own = {"worker": 0, "num_workers": 1, "num_replicas": 1, "batch_size": 1, "given": 0, "sampler": begin}
    for key, value in [("worker", 1), ("worker", np.array([0, 1])), *(("given", x) for x in ("x", None, -1, True))]:
        stream = ds.stream(start_step=5)
        before = stream.state_dict()
        with pytest.raises(mmapds.StateError, match=r"state.*expected") as error:
            stream.load_state_dict({**own, key: value})
        check(str(error.value))
        assert stream.state_dict() == before, "nothing of it was loaded"
