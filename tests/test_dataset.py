"""The dataset as a sequence, and its views."""

import gc
import os
import pickle
from collections.abc import Sequence
from functools import partial
from itertools import chain
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

import mmapds


class Sample(msgspec.Struct):
    """What a typed decoder makes of a record."""

    id: int


decode_typed = partial(msgspec.json.decode, type=Sample)


def refuse(record):
    raise KeyError(record)


@pytest.fixture
def ds(opened):
    return opened([{"id": i} for i in range(1000)])


def ids(dataset):
    return [sample["id"] for sample in dataset]


# ---- a sequence ---------------------------------------------------------------------------------------------


def test_it_is_a_sequence(ds):
    assert isinstance(ds, Sequence)
    assert len(ds) == 1000
    assert (ds[0], ds[-1], ds[999], ds[np.int64(5)], ds[np.array(7)]) == tuple({"id": i} for i in (0, 999, 999, 5, 7))
    assert ids(ds) == list(range(1000))
    assert ids(reversed(ds))[:3] == [999, 998, 997]
    assert {"id": 77} in ds
    assert {"id": 1000} not in ds
    assert ds.index({"id": 500}) == 500
    assert ds.count({"id": 3}) == 1


@pytest.mark.parametrize("wrong", ["a", 1.5, None])
def test_what_is_no_integer_among_positions_is_named(ds, wrong):
    for decode in ("json", mmapds.Fields({"id": "int64"})):
        with pytest.raises(IndexError, match=f"^positions\\[2\\]: expected an integer, found {wrong!r}$"):
            mmapds.open(ds.sources[0], decode=decode).take([0, 1, wrong])


@pytest.mark.parametrize("number", [2**63, 2**64 - 1, 2**70, -(2**63) - 1])
def test_the_message_shows_numbers_that_no_integer_of_the_core_holds(ds, number):
    for dataset in (ds, ds[:]):
        with pytest.raises(IndexError, match=f"^index {number} is out of range for 1000 records$"):
            dataset[number]
    with pytest.raises(IndexError, match=f"^index {number} is out of range for 1000 records$"):
        ds.take([0, number])


def test_an_empty_dataset(opened):
    empty = opened(b"\n \n")
    assert len(empty) == 0
    assert list(empty) == []
    assert empty.__getitems__([]) == []
    assert [len(part) for part in empty.split([0.5, 0.5])] == [0, 0]
    assert len(empty[:][[]]) == 0
    with pytest.raises(IndexError, match="index 0 is out of range for 0 records"):
        empty[0]


# ---- views --------------------------------------------------------------------------------------------------


def test_a_view_holds_no_positions_where_a_range_says_it_all(opened):
    small = opened([{"id": i} for i in range(1000)])
    for view in (small[10:900:3][5:], small[::-1], small.split([0.5, 0.5], seed=1)[0][3:40]):
        assert len(pickle.dumps(view)) < 1024


def test_split_covers_everything_once_and_depends_on_the_seed(ds):
    parts = ds.split([0.8, 0.15, 0.05], seed=3)
    assert [len(part) for part in parts] == [800, 150, 50]
    assert sorted(chain.from_iterable(map(ids, parts))) == list(range(1000))
    assert ids(parts[0]) != ids(ds.split([0.8, 0.15, 0.05], seed=4)[0])
    assert ids(parts[0]) == ids(ds.split([0.8, 0.15, 0.05], seed=3)[0])
    assert list(map(ids, ds.split([0.5, 0.5], seed=None))) == [list(range(500)), list(range(500, 1000))]


@pytest.mark.parametrize("fractions", [[], [0.5], [0.5, 0.6], [1.5, -0.5], [float("nan"), 1], [[0.5, 0.5]], ["a"], 0.9])
def test_split_refuses_fractions_that_are_none(ds, fractions):
    with pytest.raises(mmapds.Error, match="expected numbers from 0 to 1 that add up to 1"):
        ds.split(fractions)


def test_concat(ds, opened, write):
    other = opened([{"id": -1}, {"id": -2}], "other.jsonl")
    both = mmapds.concat([other, ds])
    assert ids(both)[:3] == [-1, -2, 0]
    assert both.source_starts.tolist() == [0, 2, 1002]
    mixed = mmapds.concat([ds[995:], other, ds[[3, 1]], other[:0]])
    assert ids(mixed) == [995, 996, 997, 998, 999, -1, -2, 3, 1]
    assert ids(mixed[::-2]) == [1, -2, 999, 997, 995]
    assert ids(mixed.__getitems__([8, 0, -4])) == [1, 995, -1]
    assert ids(pickle.loads(pickle.dumps(mixed))) == ids(mixed)
    assert mixed.where(5).source.endswith("other.jsonl")
    with pytest.raises(mmapds.Error, match="datasets: expected one dataset or more, found 0"):
        mmapds.concat([])
    with pytest.raises(
        mmapds.Error, match=r"datasets\[1\]: expected decode, access, io, check and on_error as of datasets\[0\]"
    ):
        mmapds.concat([ds, mmapds.open(write([1], "third.jsonl"), decode="text", build=True)])


def test_plus_is_concat(ds, opened):
    other = opened([{"id": -1}, {"id": -2}], "other.jsonl")
    both = other + ds[:2] + other
    assert isinstance(both, mmapds.Dataset)
    assert ids(both) == [-1, -2, 0, 1, -1, -2]
    assert ids(torch.utils.data.TensorDataset(torch.zeros(0)) + other) == [-1, -2]  # torch's is a ConcatDataset


# ---- batches ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("access", ["auto", "random", "sequential"])
def test_getitems_in_any_order_with_repeats(opened, access):
    ds = opened([{"id": i} for i in range(1000)], access=access)
    wanted = np.random.default_rng(0).integers(-1000, 1000, 300)
    expected = [int(i) % 1000 for i in wanted]
    for positions in (wanted, wanted.tolist(), tuple(wanted.tolist()), wanted.astype(np.int16)):
        for _ in range(2):  # cold batches ask for pages, warm ones do not
            assert ids(ds.__getitems__(positions)) == expected
    assert ids(ds[::-1].__getitems__([0, 999])) == [999, 0]


# ---- provenance, decoders and their errors ---------------------------------------------------------------------


def test_where_and_raw(opened):
    ds = opened(b'\xef\xbb\xbf{"a":1}\r\n\n  {"b":2}  \n')
    assert ds.raw(0) == b'{"a":1}'
    assert ds.raw(-1) == b'  {"b":2}  '
    assert ds.where(0)[1:] == (3, 7)
    source, offset, size = ds.where(1)
    with open(source, "rb") as file:
        file.seek(offset)
        assert file.read(size) == ds.raw(1)
    assert ds.sources == [source]


def test_decoders(write):
    path = write(b'{"id":1}\n{"id":2}\n')
    mmapds.build(path)
    assert mmapds.open(path, decode="text")[0] == '{"id":1}'
    assert mmapds.open(path, decode="bytes")[1] == b'{"id":2}'
    typed = mmapds.open(path, decode=decode_typed)
    assert typed[1] == pickle.loads(pickle.dumps(typed))[1] == Sample(id=2)
    assert mmapds.open(path, decode=len)[0] == 8
    with pytest.raises(mmapds.Error, match=r"decode = 'xml', expected 'json', 'text', .* or a callable"):
        mmapds.open(path, decode="xml")
    with pytest.raises(mmapds.Error, match="access = 'fast', expected one of 'auto', 'random', 'sequential'"):
        mmapds.open(path, access="fast")


@pytest.mark.parametrize("blank", [b"", b"\n\n"])
def test_a_record_that_is_not_json_is_named(opened, blank):
    ds = opened(b'{"a":1}\n' + blank + b'{"a":}\n[1]\n')
    line = 2 + len(blank)
    for read in (lambda: ds[1], lambda: ds[-2], lambda: ds.__getitems__([0, 1]), lambda: ds[::-1][1]):
        with pytest.raises(
            mmapds.DecodeError, match=rf"train.jsonl:{line} \(byte {8 + len(blank)}\): not JSON: .*column"
        ):
            read()
    assert ds[2] == [1]


def test_an_error_of_the_users_decoder_stays_what_it_is(opened):
    with pytest.raises(KeyError) as caught:
        opened([1], decode=refuse)[0]
    assert caught.value.__notes__ == [f"while decoding {opened([1]).sources[0]}:1 (byte 0) (ds[0])"]


# ---- indexes that are missing or stale --------------------------------------------------------------------------


def test_a_missing_index_names_the_command(write, tmp_path):
    path = write([1], "with space.jsonl")
    with pytest.raises(mmapds.IndexMissingError) as caught:
        mmapds.open(path)
    command = f"python -m mmapds.index '{path}'"
    assert str(caught.value) == f"{path}: not indexed yet; run: {command}"
    write([2], "b.jsonl")
    with pytest.raises(
        mmapds.IndexMissingError, match=r"and 1 more: not indexed yet; run: python -m mmapds.index '.*jsonl'"
    ):
        mmapds.open(f"{tmp_path}/*.jsonl")
    with pytest.raises(mmapds.SourceError, match="no such file"):
        mmapds.open(tmp_path / "missing.jsonl")


def test_a_stale_index_names_what_changed_and_the_command(write):
    path = write([1, 2])
    mmapds.build(path)
    write([1, 2, 3])
    message = (
        f"{path}.mmx: STALE: train.jsonl was 4 bytes when indexed and is 6 now; run: python -m mmapds.index {path}"
    )
    with pytest.raises(mmapds.StaleIndexError) as caught:
        mmapds.open(path)
    assert str(caught.value) == message
    assert len(mmapds.open(path, build=True)) == 3
    write([4, 5, 6])
    os.utime(path, (1, 1))
    with pytest.raises(mmapds.StaleIndexError, match=r"has other content \(same size, another time"):
        mmapds.open(path)


def test_a_source_that_changes_after_open_is_noticed_when_it_is_mapped(write):
    path = write([1, 2])
    ds = mmapds.open(path, build=True)
    write([1, 2, 3])
    with pytest.raises(mmapds.StaleIndexError):
        ds[0]
    os.unlink(path)
    with pytest.raises(mmapds.SourceError, match=r"no such file or directory \(a source of"):
        ds[0]


# ---- what users do to it ---------------------------------------------------------------------------------------


def test_a_relative_path_outlives_a_change_of_directory(write, tmp_path, monkeypatch):
    write([1, 2])
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    ds = mmapds.open("train.jsonl", build=True)
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert list(ds) == list(pickle.loads(pickle.dumps(ds))) == [1, 2]


def test_a_link_has_the_index_of_what_it_leads_to(write, tmp_path):
    path = write([1, 2], "real/train.jsonl")
    mmapds.build(path)
    (tmp_path / "link.jsonl").symlink_to(path)
    assert list(mmapds.open(tmp_path / "link.jsonl")) == [1, 2]


def test_tensors_are_positions(ds):
    assert ds[torch.tensor(3)] == {"id": 3}
    assert ids(ds[torch.tensor([3, -1])]) == [3, 999]
    assert ids(ds[torch.arange(1000) < 2]) == [0, 1]


def test_maps_go_with_the_dataset(opened):
    gc.disable()
    try:
        ds = opened([1])
        path = ds.where(0).source
        assert path in Path("/proc/self/maps").read_text()
        del ds
        assert path not in Path("/proc/self/maps").read_text()
    finally:
        gc.enable()


def test_an_error_in_a_source_that_is_gone_still_has_a_place(write):
    path = write(b"\n{\n[\n")
    mmapds.build(path, format="jsonl")
    ds = mmapds.open(path)
    ds.raw(0)
    os.unlink(path)
    with pytest.raises(mmapds.DecodeError, match=r"train.jsonl: record 0 \(byte 1\): not JSON"):
        ds[0]
