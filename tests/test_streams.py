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


@pytest.fixture(scope="module")
def ds(tmp_path_factory):
    path = tmp_path_factory.mktemp("streams") / "train.jsonl"
    path.write_text("".join(f'{{"id": {i}, "n": {1 + i % 7}}}\n' for i in range(N)))
    mmapds.build(path, length="n")
    return mmapds.open(path)


def ids(batch):
    return [sample["id"] for sample in batch]


def loader_of(stream, kind, workers, make=DataLoader):
    return make(stream, batch_size=None if kind == "batches" else 4, num_workers=workers, collate_fn=ids)


def flat(items):
    """The ids of samples, or of the samples of batches."""
    return [each["id"] for item in items for each in (item if isinstance(item, list) else [item])]


def test_a_stream_is_in_file_order_or_in_any_other(ds):
    stream = ds.stream()
    assert flat(stream) == flat(pickle.loads(pickle.dumps(stream))) == list(range(N))
    assert (len(stream), isinstance(stream, torch.utils.data.IterableDataset)) == (N, True)
    assert flat(ds[::-2].stream()) == list(range(N))[::-2]
    order = orders.Chunked(N, 10, mix_chunks=2, seed=5)
    assert flat(ds.stream(order=order)) == list(mmapds.DistributedSampler(ds, order=order))
    assert flat(ds.stream(shuffle=True, seed=3)) == list(mmapds.DistributedSampler(ds, seed=3))
    budget = mmapds.TokenBudgetBatchSampler(ds, max_tokens=30)
    assert [ids(batch) for batch in ds.stream(budget)] == list(mmapds.TokenBudgetBatchSampler(ds, max_tokens=30))
    batches = ds.stream(batch_size=4)
    assert [ids(batch) for batch in batches] == [list(range(k, min(k + 4, N))) for k in range(0, N, 4)]
    assert len(batches) == len(DataLoader(batches, batch_size=None)) == 51
    assert repr(batches).startswith("<mmapds stream of batches: <DistributedBatchSampler: 203 samples, ")


@pytest.mark.parametrize(("kind", "world", "workers"), [("samples", 2, 2), ("samples", 3, 0), ("batches", 3, 2)])
def test_ranks_and_workers_share_a_stream(ds, world, kind, workers):
    options = {"shuffle": True, "num_replicas": world, "pad": False, **KINDS[kind]}
    streams = [ds.stream(rank=rank, **options) for rank in range(world)]
    for epoch in range(2):
        read = []
        for rank, stream in enumerate(streams):
            stream.set_epoch(epoch)
            batches = list(loader_of(stream, kind, workers))
            if kind == "batches":
                expected = mmapds.DistributedBatchSampler(ds, 4, world, rank, pad=False)
                expected.set_epoch(epoch)
                assert batches == list(expected), "in the same order with any number of workers"
            read += [each for batch in batches for each in batch]
        assert sorted(read) == list(range(N))


@pytest.mark.parametrize(("kind", "workers"), [("samples", 2), ("batches", 2), ("batches", 1)])
def test_persistent_workers_go_on_to_the_next_epoch(ds, kind, workers):
    stream, sampler = ds.stream(shuffle=True, **KINDS[kind]), mmapds.DistributedSampler(ds)
    loader = DataLoader(
        stream, None if kind == "batches" else 4, num_workers=workers, collate_fn=ids, persistent_workers=True
    )
    for epoch in range(3):
        stream.set_epoch(epoch)
        read = [each for batch in loader for each in batch]
        assert sorted(read) == list(range(N))
        if kind == "batches":
            sampler.set_epoch(epoch)
            assert read == list(sampler)


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_of_one_process_counts_what_it_yields(ds, kind):
    whole = list(ds.stream(shuffle=True, **KINDS[kind]))
    for stop in (1, 7, len(whole) - 1, len(whole)):
        stream, again = (ds.stream(shuffle=True, **KINDS[kind]) for _ in range(2))
        iterator = iter(stream)
        assert [next(iterator) for _ in range(stop)] == whole[:stop]
        again.load_state_dict(stream.state_dict())
        assert again.epoch == stop // len(whole)
        assert stop == len(whole) or list(again) == whole[stop:]
    stream.set_epoch(3)
    next(iterator, None)
    assert (stream.state_dict()["epoch"], stream.state_dict()["position"]) == (3, 0), "as chosen within a loop"


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_goes_on_with_other_ranks_and_workers(ds, workers):
    read = []
    for rank in range(2):
        stream = ds.stream(shuffle=True, batch_size=4, num_replicas=2, rank=rank, start_step=2)
        for step, batch in enumerate(loader_of(stream, "batches", workers), stream.first_step + 1):
            read += batch
            if step == 5:
                state = stream.state_dict(step=step)
                break
    for rank in range(3):
        stream = ds.stream(shuffle=True, batch_size=7, num_replicas=3, rank=rank, pad=False)
        stream.load_state_dict(state)
        assert stream.epoch == 0
        read += [each for batch in loader_of(stream, "batches", 2 - workers) for each in batch]
    started = mmapds.DistributedSampler(ds, 1, 0, start_step=16)
    assert sorted(read) == sorted(started)


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


def test_what_a_stream_refuses(ds):
    sampler = mmapds.DistributedSampler(ds)
    for refused, message in [
        (lambda: ds.stream(sampler, seed=1, batch_size=4), "no other arguments beside it, found seed, batch_size; "),
        (lambda: ds.stream(range(3)), "sampler: expected a sampler of mmapds, found range"),
        (lambda: ds[::-1].stream(sampler), "sampler: expected a sampler of the 203 samples of the dataset, found"),
        # Several workers may have read them.
        (lambda: ds.stream().state_dict(step=20), "step = 20, expected a stream of batches, found one of samples"),
    ]:
        with pytest.raises(mmapds.Error, match=message):
            refused()
    begin = ds.stream().state_dict()
    own = {"worker": 0, "num_workers": 1, "num_replicas": 1, "batch_size": 1, "given": 0, "sampler": begin}
    worker_states = [own | {key: value} for key, value in (("worker", 1), ("worker", np.array([0, 1])), ("given", -1))]
    for state in (sampler.state_dict(), *worker_states):
        stream = ds.stream(start_step=5)
        before = stream.state_dict()
        with pytest.raises(mmapds.StateError, match=r"state.*expected") as error:
            stream.load_state_dict(state)
        check(str(error.value))
        assert stream.state_dict() == before, "nothing of it was loaded"
