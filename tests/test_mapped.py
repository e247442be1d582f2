"""Mapped datasets: the samples of a dataset through a function, and everything else as it was."""

import json
import multiprocessing
from collections import UserDict
from functools import partial
from itertools import chain

import numpy as np
import pytest
import torch

import mmapds
from mmapds import DataLoader, DistributedBatchSampler, DistributedSampler, TokenBudgetBatchSampler, pad_collate
from tests.support.array_files import equal, store, utterances
from tests.support.index_file import arrays
from tests.support.loading import KINDS
from tests.support.transforms import (
    as_list,
    doubled,
    doubled_each,
    fails_at_11,
    fails_at_11_of_a_batch,
    identifier,
    identifiers,
    next_of,
)

N = 103
WAYS = {"samples": (identifier, False), "batches": (identifiers, True)}
every_way = pytest.mark.parametrize(("function", "batched"), WAYS.values(), ids=WAYS)


@pytest.fixture(scope="module")
def ds(tmp_path_factory):
    path = tmp_path_factory.mktemp("mapped") / "train.jsonl"
    path.write_bytes(b"".join(b'{"id": %d, "n": %d}\n' % (i, 1 + i * 7919 % 50) for i in range(N)))
    mmapds.build(path, length="n")
    return mmapds.open(path)


# ---- samples -------------------------------------------------------------------------------------------------


@every_way
def test_samples_are_what_the_function_makes_of_them(ds, function, batched):
    mapped = ds.map(function, batched=batched)
    assert len(mapped) == N
    assert [mapped[0], mapped[-1], mapped[np.int64(5)], mapped[torch.tensor(7)]] == [0, N - 1, 5, 7]
    assert list(mapped) == list(range(N))
    assert mapped.take([3, -1, 3]) == mapped.__getitems__([3, -1, 3]) == [3, N - 1, 3]
    assert mapped.take(torch.tensor([4, 2])) == mapped.take(np.array([4, 2])) == mapped.take(range(4, 0, -2)) == [4, 2]
    assert mapped.take([]) == []
    assert 50 in mapped
    assert mapped.index(50) == 50


@every_way
def test_everything_else_is_that_of_the_dataset(ds, function, batched):
    mapped = ds.map(function, batched=batched)
    assert isinstance(mapped, mmapds.Dataset)
    for plain, view in [(ds, mapped), (ds[20:60:3], mapped[20:60:3])]:
        assert [view.raw(3), view.where(3), view.place(3)] == [plain.raw(3), plain.where(3), plain.place(3)]
        assert (view.sources, view.indexes, view.columns) == (plain.sources, plain.indexes, plain.columns)
        assert view.fingerprint == plain.fingerprint
        assert view.source_starts.tolist() == plain.source_starts.tolist()
        assert view.lengths.tolist() == view.column("length").tolist() == plain.lengths.tolist()
        assert (view.length_order is None) == (plain.length_order is None)
    assert all(np.array_equal(*pair) for pair in zip(arrays(mapped.length_order), arrays(ds.length_order), strict=True))
    for position in (N, -N - 1):
        for read in (mapped.__getitem__, mapped.raw, lambda i: mapped.take([0, i])):
            with pytest.raises(IndexError, match=f"index.* {position} is out of range for {N} records"):
                read(position)


def test_maps_of_maps_compose_and_a_view_may_stand_between(ds):
    twice = ds.map(doubled)[10:20].map(identifier)
    assert list(twice) == [2 * i for i in range(10, 20)]
    assert list(twice.map(partial(next_of, step=5))[::-1]) == [2 * i + 5 for i in range(19, 9, -1)]
    assert list(ds.map(doubled_each, batched=True).map(identifier)[:3]) == [0, 2, 4]
    assert list(ds.map(identifier).map(lambda numbers: np.array(numbers) + 1, batched=True)[:3]) == [1, 2, 3]


# ---- array files ---------------------------------------------------------------------------------------------


def clipped(record):
    return {**record, "feats": record["feats"][:3]}


def clipped_each(records):
    return [clipped(record) for record in records]


@pytest.mark.parametrize(("function", "batched"), [(clipped, False), (clipped_each, True)])
def test_array_files_are_mapped_too_though_plain_batches_are_filled_without_samples(tmp_path, function, batched):
    records = utterances(30, shortest=1)
    mapped = mmapds.open(store(tmp_path, records)).map(function, batched=batched)
    found = mapped.take(range(30))
    assert all(equal(sample, clipped(record)) for sample, record in zip(found, records, strict=True))
    loaded = list(DataLoader(mapped, batch_size=10, num_workers=2, collate_fn=pad_collate))
    assert [batch["feats"].shape[1] for batch in loaded] == [3, 3, 3]
    wanted = pad_collate([clipped(record) for record in records[:10]])
    assert torch.equal(loaded[0]["feats"], wanted["feats"])
    assert torch.equal(loaded[0]["feats_lengths"], wanted["feats_lengths"])


# ---- errors --------------------------------------------------------------------------------------------------


def check_error(error, note):
    assert error.args == ("no such label",)
    assert isinstance(error.__cause__, ZeroDivisionError)
    assert error.__notes__ == [note]


def test_an_error_keeps_its_type_and_names_the_record(ds):
    place = ds.place(11)
    assert "train.jsonl:12 (byte " in place
    mapped, batches = ds.map(fails_at_11), ds.map(fails_at_11_of_a_batch, batched=True)
    for read, note in [
        (lambda: mapped[11], f"while mapping {place}"),
        (lambda: mapped.take([3, 11, 4]), f"while mapping {place}"),
        (lambda: mapped[::-1].take([0, N - 12]), f"while mapping {place}"),
        (lambda: batches[11], f"while mapping a batch of 1, the first at {place}"),
        (lambda: batches.take([5, 11]), f"while mapping a batch of 2, the first at {ds.place(5)}"),
    ]:
        with pytest.raises(KeyError) as caught:
            read()
        check_error(caught.value, note)


@pytest.mark.parametrize("options", KINDS.values(), ids=KINDS)
def test_an_error_in_a_worker_reaches_the_trainer_with_its_place(ds, options):
    batches = iter(DataLoader(ds.map(fails_at_11), batch_size=5, collate_fn=as_list, **options))
    assert [next(batches), next(batches)] == [list(range(5)), list(range(5, 10))]
    with pytest.raises(KeyError) as caught:
        next(batches)
    said = str(caught.value) + "".join(getattr(caught.value, "__notes__", []))
    assert "no such label" in said
    assert f"while mapping {ds.place(11)}" in said
    assert next(batches) == list(range(15, 20))


def test_a_stop_iteration_in_a_function_does_not_end_the_dataset(ds):
    with pytest.raises(RuntimeError, match="StopIteration"):
        list(ds.map(lambda _: next(iter([]))))


@pytest.mark.parametrize(
    ("returned", "found"),
    [
        (lambda samples: samples[1:], "list of 3"),
        (lambda _: np.zeros((2, 9)), "ndarray of 2"),
        (lambda _: UserDict(id=[1, 2, 3, 4]), "UserDict of 1"),
        (lambda _: "abcd", "str of 4"),
        (lambda samples: (sample for sample in samples), "generator"),
        (lambda _: {1, 2, 3, 4}, "set of 4"),
    ],
)
def test_a_function_of_batches_returns_as_many_samples(ds, returned, found):
    message = rf"function '.*<lambda>': expected a list of 4 samples for a batch, found {found} \(the first at .*:9 \("
    with pytest.raises(mmapds.Error, match=message):
        ds.map(returned, batched=True).take([8, 1, 2, 3])


@pytest.mark.parametrize(
    ("batched", "message"),
    [
        (False, r"expected a sample, found None \(of "),
        (True, r"expected a list of 1 samples for a batch, found NoneType \(the first at "),
    ],
)
def test_a_function_that_returns_nothing_is_an_error(ds, batched, message):
    for read in (lambda mapped: mapped[1], lambda mapped: mapped.take([1])):
        with pytest.raises(mmapds.Error, match=rf"{message}.*train\.jsonl:2 \(byte "):
            read(ds.map(lambda _: None, batched=batched))


# ---- one after another ---------------------------------------------------------------------------------------


def test_mapped_datasets_of_one_function_are_put_one_after_another(ds):
    one, other = ds[:3].map(partial(next_of, step=1)), ds[5:7].map(partial(next_of, step=1))
    assert [each["id"] for each in (ds[:3].map(doubled) + ds[5:7].map(doubled))] == [0, 2, 4, 10, 12]
    assert len(one + other) == 5
    with pytest.raises(mmapds.Error, match=r"datasets\[1\]: expected function next_of\(step=1\), as in datasets\[0\]"):
        one + ds.map(partial(next_of, step=2))
    with pytest.raises(mmapds.Error, match=r"found identifiers \(batched\)$"):
        ds.map(identifiers) + ds.map(identifiers, batched=True)
    with pytest.raises(
        mmapds.Error,
        match=r"datasets\[1\]: expected IndexedDataset, as in datasets\[0\], found MappedDataset$",
    ):
        ds + ds.map(doubled)


# ---- pickles and workers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fork", "spawn"])
@every_way
def test_torchs_workers_map(ds, method, function, batched):
    loader = torch.utils.data.DataLoader(
        ds.map(function, batched=batched)[::-1],
        batch_size=40,
        num_workers=2,
        collate_fn=as_list,
        multiprocessing_context=multiprocessing.get_context(method),
    )
    assert list(chain.from_iterable(loader)) == list(range(N - 1, -1, -1))


# ---- samplers and states -------------------------------------------------------------------------------------

SAMPLERS = {
    "samples": lambda ds: DistributedSampler(ds, 2, 0, seed=1),
    "batches": lambda ds: DistributedBatchSampler(ds, 6, 2, 0, seed=1),
    "budget": lambda ds: TokenBudgetBatchSampler(ds, 200, num_replicas=2, rank=0, seed=1),
}
every_sampler = pytest.mark.parametrize("kind", SAMPLERS)


@every_sampler
def test_a_state_of_the_plain_dataset_is_one_of_the_mapped_one(ds, kind):
    plain, mapped = SAMPLERS[kind](ds), SAMPLERS[kind](ds.map(identifier))
    whole = list(plain)
    assert list(mapped) == whole
    for stop in (1, 3):
        for save, load in [(plain, ds.map(identifier)), (mapped, ds)]:
            other = SAMPLERS[kind](load)
            other.load_state_dict(json.loads(json.dumps(save.state_dict(step=stop))))
            assert list(other) == whole[stop:]


def test_streams_map(ds):
    assert list(ds.map(identifier).stream()) == list(range(N))
    stream = ds.map(identifiers, batched=True).stream(batch_size=10, shuffle=True, seed=0)
    plain = ds.stream(batch_size=10, shuffle=True, seed=0)
    assert list(stream) == [identifiers(batch) for batch in plain]
