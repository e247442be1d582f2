"""Zipped datasets: several of equal length side by side."""

import json
import multiprocessing
import pickle
from collections.abc import Sequence
from itertools import chain

import numpy as np
import pytest
import torch

import mmapds
from mmapds import ChunkedSampler, DataLoader, DistributedBatchSampler, StateError, TokenBudgetBatchSampler, pad_collate
from tests.support.array_files import store, utterances
from tests.support.index_file import arrays
from tests.support.transforms import as_list, doubled, fails_at_11, identifier, total

N = 103


def numbers(folder, name, count=N, length=None):
    """An indexed file of records {"id": ..., "n": ...}."""
    path = folder / f"{name}.jsonl"
    path.write_bytes(b"".join(b'{"id": %d, "n": %d}\n' % (i, 1 + i * 7919 % 50) for i in range(count)))
    mmapds.build(path, length=length)
    return mmapds.open(path)


@pytest.fixture(scope="module")
def a(tmp_path_factory):
    return numbers(tmp_path_factory.mktemp("a"), "a", length="n")


@pytest.fixture(scope="module")
def b(tmp_path_factory):
    return numbers(tmp_path_factory.mktemp("b"), "b")[::-1]


@pytest.fixture(scope="module")
def pairs(a, b):
    return mmapds.zip(a=a, b=b)


def pair(i):
    """The numbers of the records of a sample."""
    return i, N - 1 - i


def found(samples):
    return [(sample["a"]["id"], sample["b"]["id"]) for sample in samples]


# ---- samples -------------------------------------------------------------------------------------------------


def test_samples_are_dicts_of_the_samples(pairs, a, b):
    assert isinstance(pairs, mmapds.Dataset)
    assert len(pairs) == N
    assert pairs[3] == pairs[3 - N] == {"a": a[3], "b": b[3]}
    assert list(pairs[3]) == ["a", "b"]
    assert found(pairs) == [pair(i) for i in range(N)]
    assert type(pairs.take([1, -1])) is list
    assert found(pairs.take([1, -1])) == found(pairs.take(torch.tensor([1, N - 1]))) == [pair(1), pair(N - 1)]
    assert pairs.take([]) == []
    with pytest.raises(IndexError, match=f"index {N} is out of range for {N} records"):
        pairs[N]
    with pytest.raises(IndexError, match=f"index.* {N} is out of range for {N} records"):
        pairs.take([0, N])


def test_records_and_places_are_those_of_all(pairs, a, b):
    assert pairs.raw(3) == {"a": a.raw(3), "b": b.raw(3)}
    assert pairs.where(3) == {"a": a.where(3), "b": b.where(3)}
    assert pairs.place(3) == f"{a.place(3)} and {b.place(3)}"
    assert pairs.sources == [*a.sources, *b.sources]
    assert pairs.indexes == [*a.indexes, *b.indexes]
    assert pairs.source_starts.tolist() == a.source_starts.tolist()
    assert repr(pairs) == f"<mmapds.zip a={a!r}, b={b!r}>"
    assert repr(pairs.map(total)) == f"<mmapds.zip a={a!r}, b={b!r}, map=total>"


def test_the_fingerprint_is_of_names_and_records(pairs, a, b):
    assert len(pairs.fingerprint) == 16
    assert pairs.fingerprint == mmapds.zip(a=a, b=b).fingerprint == pairs.map(total).fingerprint
    others = [mmapds.zip(a=a, c=b), mmapds.zip(a=a, b=b[::-1]), mmapds.zip(b=b, a=a), pairs[::-1], pairs[1:]]
    assert len({pairs.fingerprint, *(other.fingerprint for other in others)}) == 6


def test_mapped_and_zipped_datasets_can_be_zipped(pairs, a):
    nested = mmapds.zip(both=pairs, ids=a.map(identifier))
    assert nested[2] == {"both": pairs[2], "ids": 2}
    assert nested.take([2]) == [nested[2]]
    assert nested.columns == ["both.a.length", "ids.length"]
    assert nested.column("a.length").tolist() == a.lengths.tolist()


def test_zips_of_the_same_names_are_put_one_after_another(pairs, a, b):
    assert found(pairs[:2] + pairs[5:6]) == [pair(0), pair(1), pair(5)]
    assert list(pairs[:2].map(total) + pairs[5:6].map(total)) == [N - 1] * 3
    with pytest.raises(mmapds.Error, match=r"datasets\[1\]: expected names \['a', 'b'\], as .* found \['a', 'c'\]"):
        pairs + mmapds.zip(a=a, c=b)
    with pytest.raises(
        mmapds.Error, match=rf"datasets\['b'\]: expected {N} records, as in datasets\['a'\], found {N - 1}"
    ):
        mmapds.zip(a=a, b=b[1:])
    with pytest.raises(mmapds.Error, match=r"expected ZippedDataset, as in datasets\[0\], found IndexedDataset"):
        pairs + a


# ---- columns -------------------------------------------------------------------------------------------------


def test_columns_have_the_names_of_their_datasets(pairs, a):
    assert pairs.columns == ["a.length"]
    for name in ("a.length", "length"):
        assert pairs.column(name).tolist() == a.lengths.tolist()
    assert pairs.lengths.tolist() == a.lengths.tolist()
    assert all(np.array_equal(*each) for each in zip(arrays(pairs.length_order), arrays(a.length_order), strict=True))
    assert pairs[::2].length_order is None


def test_a_name_that_several_datasets_have_is_refused(a):
    both = mmapds.zip(x=a, y=a[::-1])
    assert both.columns == ["x.length", "y.length"]
    assert both.column("y.length").tolist() == a.lengths.tolist()[::-1]
    message = r"column 'length': expected one of \['x.length', 'y.length'\], found 2 of that name"
    with pytest.raises(mmapds.ColumnError, match=message):
        _ = both.lengths
    with pytest.raises(mmapds.ColumnError, match=message):
        TokenBudgetBatchSampler(both, 100)
    sampler = TokenBudgetBatchSampler(both.column("x.length"), 100, target_lengths=both.column("y.length"))
    assert sorted(chain.from_iterable(sampler)) == list(range(N))


def test_a_short_name_is_all_of_a_name_and_not_its_end(pairs, a, tmp_path):
    path = numbers(tmp_path, "c").sources[0]
    mmapds.build(path, columns={"of.length": "n", "of.n": "n"})
    nested = mmapds.zip(p=pairs.map(dict), c=mmapds.open(path))
    assert nested.columns == ["p.a.length", "c.of.length", "c.of.n"]
    assert nested.lengths.tolist() == nested.column("a.length").tolist() == a.lengths.tolist()
    assert nested.length_order is not None
    assert nested.column("of.n").tolist() == a.lengths.tolist()
    with pytest.raises(mmapds.ColumnError, match=r"column 'n': expected one of .*, found 0 of that name"):
        nested.column("n")


@pytest.mark.parametrize("name", ["b.length", "none", "lenght"])
def test_a_column_that_is_missing_is_an_error_that_names_those_there_are(pairs, name):
    with pytest.raises(mmapds.ColumnError, match=rf"^column '{name}': expected one of \['a.length'\], found 0 of that"):
        pairs.column(name)


# ---- what is refused -----------------------------------------------------------------------------------------


def test_an_error_names_the_record_of_its_dataset(a, b, tmp_path):
    path = tmp_path / "broken.jsonl"
    path.write_bytes(b"".join(b'{"id": %d}\n' % i if i != 5 else b"{oops}\n" for i in range(N)))
    mmapds.build(path)
    broken = mmapds.zip(a=a, b=mmapds.open(path))
    for read in (lambda: broken[5], lambda: broken.take([4, 5])):
        with pytest.raises(mmapds.DecodeError, match=r"broken.jsonl:6 \(byte \d+\): not JSON"):
            read()
    with pytest.raises(KeyError) as caught:
        mmapds.zip(a=a.map(fails_at_11), b=b)[11]
    assert caught.value.__notes__ == [f"while mapping {a.place(11)}"]
    with pytest.raises(KeyError) as caught:
        mmapds.zip(a=a, b=b).map(lambda sample: fails_at_11(sample["a"]))[11]
    assert caught.value.__notes__ == [f"while mapping {a.place(11)} and {b.place(11)}"]


# ---- array files ---------------------------------------------------------------------------------------------


@pytest.fixture
def spoken(tmp_path):
    """Array files beside JSONL."""
    path = store(tmp_path, utterances(30, shortest=1), length="feats")
    return mmapds.zip(audio=mmapds.open(path), label=numbers(tmp_path, "labels", 30))


def test_array_files_are_batched_without_making_samples(spoken, monkeypatch):
    positions = [3, 0, 29, -5]
    batch = spoken.take(positions)
    assert isinstance(batch, Sequence)
    assert not isinstance(batch, list)
    monkeypatch.setattr(type(batch), "__getitem__", None)
    monkeypatch.setattr(type(batch.parts["audio"]), "__getitem__", None)
    padded = pad_collate(batch)
    monkeypatch.undo()
    wanted = pad_collate([spoken[i] for i in positions])
    assert padded.keys() == wanted.keys() == {"audio", "label"}
    assert padded["audio"].keys() == wanted["audio"].keys()
    for name, value in wanted["audio"].items():
        same = torch.equal(padded["audio"][name], value) if isinstance(value, torch.Tensor) else None
        assert same or padded["audio"][name] == value, name
    assert torch.equal(padded["label"]["id"], wanted["label"]["id"])
    assert padded["label"]["id"].tolist() == [3, 0, 29, 25]


def test_such_a_batch_is_a_sequence_of_samples(spoken):
    batch = spoken.take(range(4))
    assert len(batch) == 4
    assert [sample["label"]["id"] for sample in batch] == [0, 1, 2, 3]
    assert [sample["label"]["id"] for sample in batch[1:3]] == [1, 2]
    assert batch[-1]["audio"]["text"] == spoken[3]["audio"]["text"]
    assert [each["label"] for each in pickle.loads(pickle.dumps(batch))] == [each["label"] for each in batch]
    assert type(pickle.loads(pickle.dumps(batch))) is list
    texts = spoken.map(lambda sample: sample["audio"]["text"])
    assert texts.take([2, 1]) == [spoken[2]["audio"]["text"], spoken[1]["audio"]["text"]]
    nested = mmapds.zip(deep=spoken).take([1])
    assert pad_collate(nested)["deep"]["label"]["id"].tolist() == [1]


# ---- workers and states --------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_torchs_workers_read_zips(pairs, method):
    loader = torch.utils.data.DataLoader(
        pairs,
        batch_size=40,
        num_workers=2,
        collate_fn=as_list,
        multiprocessing_context=multiprocessing.get_context(method),
    )
    assert found(chain.from_iterable(loader)) == [pair(i) for i in range(N)]


def test_a_state_of_a_plain_dataset_goes_on_over_the_zip(pairs, a):
    plain, resumed, joined = (DistributedBatchSampler(each, 6, 1, 0, seed=1) for each in (a, a, pairs))
    state = json.loads(json.dumps(plain.state_dict(step=4)))
    with pytest.raises(StateError, match=r"expected those of 'a\.jsonl, b\.jsonl', found those of 'a\.jsonl';"):
        joined.load_state_dict(state)
    resumed.load_state_dict(state)
    batches = list(DataLoader(pairs, batch_sampler=resumed, collate_fn=as_list))
    assert [[sample["a"]["id"] for sample in batch] for batch in batches] == list(plain)[4:]


def test_chunks_follow_the_sources_of_the_first_dataset(tmp_path, a):
    parts = [numbers(tmp_path, name, count) for name, count in [("x", 40), ("y", N - 40)]]
    sharded = mmapds.concat(parts)
    assert mmapds.zip(a=sharded, b=a).source_starts.tolist() == [0, 40, N]
    chunked = ChunkedSampler(mmapds.zip(a=sharded, b=a), 7, 1, 0, seed=1)
    assert list(chunked) == list(ChunkedSampler(sharded, 7, 1, 0, seed=1))


def test_streams_and_maps_of_zips(pairs):
    assert [found(batch) for batch in pairs[:4].stream(batch_size=2)] == [[pair(0), pair(1)], [pair(2), pair(3)]]
    assert pairs.map(lambda sample: {name: doubled(each) for name, each in sample.items()})[1]["a"]["id"] == 2
