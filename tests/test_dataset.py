"""The dataset as a sequence: samples by position, batches, the keys that users give, and the errors of decoders."""

import gc
import itertools
import os
import pickle
import tracemalloc
from collections.abc import Sequence
from functools import partial

import msgspec
import numpy as np
import orjson
import pytest
import torch

import mmapds
from tests.support.compressed import many_frames

N = 300  # more than uint8 can count


class Sample(msgspec.Struct):
    """What a typed decoder makes of a record."""

    id: int


decode_typed = partial(msgspec.json.decode, type=Sample)


class Failure(BaseException):
    pass


def raising(error):
    def decode(_):
        raise error

    return decode


@mmapds.takes_view
def viewed(record):
    assert type(record) is memoryview
    return bytes(record)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    found = tmp_path_factory.mktemp("dataset") / "train.jsonl"
    found.write_text("".join(f'{{"id": {i}}}\n' for i in range(N)))
    mmapds.build(found)
    mmapds.add_column(found, "ok", lambda sample: sample["id"] % 3 == 0)
    return str(found)


@pytest.fixture(scope="module")
def ds(path):
    return mmapds.open(path)


def ids(dataset):
    return [sample["id"] for sample in dataset]


def kinds(ds):
    """Datasets of every kind, whose samples are those of one."""
    skipping = mmapds.open(ds.sources[0], on_error="skip")
    return ds, skipping, ds[::-1], ds.map(dict), ds.map(list, batched=True), mmapds.zip(a=ds, b=ds), ds[:9] + ds[9:]


# ---- samples -------------------------------------------------------------------------------------------------------


def test_it_is_a_sequence(ds):
    assert isinstance(ds, Sequence)
    assert ids(ds) == ids(reversed(ds))[::-1] == list(range(N))
    assert {"id": 77} in ds
    assert {"id": N} not in ds
    assert (len(ds), ds.index({"id": 50}), ds.count({"id": 3})) == (N, 50, 1)
    assert repr(ds[1:]) == f"<mmapds.Dataset {ds.sources[0]}: 299 of 300 records, decode='json'>"


def test_an_empty_dataset(opened):
    empty = opened(b"\n \n")
    assert len(empty) == 0
    assert list(empty) == empty.take([]) == list(empty[:][[]]) == []
    assert [len(part) for part in empty.split([0.5, 0.5])] == [0, 0]
    with pytest.raises(IndexError, match="index 0 is out of range for 0 records"):
        empty[0]


@pytest.mark.parametrize(
    ("decode", "third"),
    [
        ("json", {"id": 3}),
        ("text", '{"id": 3}'),
        ("bytes", b'{"id": 3}'),
        (viewed, b'{"id": 3}'),
        (len, 9),
        (decode_typed, Sample(id=3)),
    ],
)
def test_every_way_to_a_sample_gives_the_same(path, decode, third):
    for io in ("mmap", "pread"):
        ds = mmapds.open(path, decode=decode, io=io)
        samples = list(ds)
        assert samples[3] == third
        for number in (*range(-5, 20), N - 1, -N):
            for key in (number, np.int64(number), np.array(number), torch.tensor(number)):
                assert ds[key] == samples[number]
                assert type(ds[key]) is type(samples[number])
        assert list(ds.take(range(N))) == list(ds[::1]) == list(pickle.loads(pickle.dumps(ds))) == samples


@pytest.mark.parametrize("decode", ["json", "text", len, viewed])
def test_a_batch_of_several_sources_has_their_samples_in_turn(write, decode):
    """In any order, with repeats; cold batches ask for pages, warm ones do not."""
    mixed = [write([{"n": number} for number in range(20)], f"{name}.jsonl") for name in "abc"]
    mixed.append(write(many_frames(b'{"n":1}\n' * 20), "d.jsonl.zst"))
    for paths, access in itertools.product((mixed[:3], mixed, mixed[3:]), ("auto", "sequential")):
        io = "pread" if access == "sequential" else "mmap"
        ds = mmapds.open(paths, decode=decode, access=access, io=io, build=True)
        for count in (0, 1, 16, 17, 100):
            positions = np.random.default_rng(0).integers(-len(ds), len(ds), count)
            samples = [ds[int(position)] for position in positions]
            for given in (positions, positions.tolist(), tuple(positions.tolist()), positions.astype(np.int16)):
                assert ds.take(given) == ds.__getitems__(given) == samples
            assert ds[::1].take(positions) == samples


def test_it_is_found_again_from_another_directory_and_through_a_link(write, tmp_path, monkeypatch):
    path = write([1, 2])
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    ds = mmapds.open("train.jsonl", build=True)
    monkeypatch.chdir(tmp_path / "elsewhere")
    os.symlink(path, "link.jsonl")
    for each in (ds, pickle.loads(pickle.dumps(ds)), mmapds.open("link.jsonl")):
        assert list(each) == [1, 2]


# ---- keys ----------------------------------------------------------------------------------------------------------

WRONG = "positions: expected "
REFUSED = {
    "float": (5.5, WRONG),
    "text": ("ab", WRONG),
    "tensor of floats": (torch.tensor([1.0]), WRONG),
    "two axes": (np.array([[1]]), WRONG),
    "behind a mask": (np.ma.array([0, 1, 2], mask=[0, 1, 0]), WRONG),
    "text among them": ([0, 1, "a"], r"positions\[2\]: expected an integer, found 'a'|" + WRONG),
    "beyond": ([0, N], r"^index(\[1\] =)? 300 is out of range for 300 records"),
    "below": ([0, -N - 1], r"^index(\[1\] =)? -301 is out of range for 300 records"),
    "beyond int64, of NumPy": (np.full(3, 2**64 - 1, np.uint64), "index.* is out of range for 300 records"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_an_array_of_positions_is_refused(ds, name):
    given, message = REFUSED[name]
    for dataset in kinds(ds):
        for read in (dataset.take, dataset.__getitem__):
            with pytest.raises((IndexError, TypeError), match=message):
                read(given)


def test_what_is_not_one_position_is_refused(ds):
    fields = mmapds.open(ds.sources[0], decode=mmapds.Fields({"id": "int64"}))
    for dataset in (*kinds(ds), fields):
        for read in (dataset.__getitem__, dataset.raw, dataset.where, dataset.place):
            for number in (N, -N - 1, 2**63, 2**70, -(2**63) - 1):
                with pytest.raises(IndexError, match=f"^index {number} is out of range for 300 records$"):
                    read(number)
            for given in (True, np.array(False), torch.tensor(True)):
                with pytest.raises(IndexError, match=f"^index = {bool(given)}, expected an integer, found a bool$"):
                    read(given)
    for wrong in ("a", 1.5, None):
        with pytest.raises(IndexError, match=f"^positions\\[2\\]: expected an integer, found {wrong!r}$"):
            fields.take([0, 1, wrong])


def test_masks_are_of_bools(ds):
    """Zeros and ones, which a column of bools has, would select two records again and again."""
    ok = ds.column("ok")
    for mask in (ok == 1, (ok == 1).tolist(), torch.tensor(ok == 1)):
        assert ids(ds[mask]) == list(range(0, N, 3))
    inverted = [~ok.astype(dtype) for dtype in (np.int8, np.uint8, ">u2")]
    for dataset in kinds(ds):
        for mask in (ok, torch.tensor(ok.astype(np.int64)), np.ones(N, int), *inverted):
            for read in (dataset.__getitem__, dataset.take, dataset.take_kept):
                with pytest.raises(IndexError, match="expected positions, or a mask of bools, found 300 zeros and one"):
                    read(mask)
        with pytest.raises(IndexError, match="zeros and ones"):
            dataset[ok.tolist()]
        for mask in (ok == 1, [True, False]):
            with pytest.raises(IndexError, match="positions: expected integers"):
                dataset.take(mask)
        with pytest.raises(IndexError, match="mask: expected 300 items, one for each record, found 299"):
            dataset[(ok == 1)[1:]]
    with pytest.raises(IndexError, match="found 3 zeros and ones"):
        ds[:3][[0, 1, 1]]


def test_zeros_and_ones_are_positions_where_they_can_be_meant(ds):
    ones = np.array([0, 1, 1, 0])
    assert ids(ds[ones]) == ids(ds[:2][np.tile(ones, 75)][:4]) == [0, 1, 1, 0]  # fewer than records; of two records
    assert ids(ds[:2][[1, 0]]) == [1, 0]
    for few in (ds[:4], ds[:4][::-1][::-1]):  # a batch of a sampler that draws with replacement
        assert ids(few.take([0, 1, 1, 0])) == ids(few.take_kept([0, 1, 1, 0])[0]) == [0, 1, 1, 0]


# ---- errors of decoders --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (ValueError("no"), ValueError, "while decoding {place} (ds[3])"),
        (StopIteration(3), RuntimeError, "{place}: the decoder raised StopIteration (ds[3])"),
        (mmapds.DecodeError("no"), mmapds.DecodeError, "{place}: no (ds[3])"),
        (Failure("no"), Failure, "no"),
    ],
)
def test_an_error_of_a_decoder_keeps_its_type_and_names_the_record(path, error, kind, message):
    ds = mmapds.open(path, decode=raising(error))
    for read in (lambda: ds[3], lambda: ds[::1][np.int64(3)], lambda: ds.take([3, 5]), lambda: ds[:9].take([-6])):
        with pytest.raises(kind) as raised:
            read()
        said = [str(raised.value), *getattr(raised.value, "__notes__", [])][-1]
        assert said == message.format(place=f"{path}:4 (byte 30)")
        assert raised.traceback[-1].name in ("decode", "_raise_at")


@pytest.mark.parametrize("bad", [0, 16, 39])
def test_the_error_of_a_batch_names_its_record(write, bad):
    lines = [b'{"n":1}'] * 40
    lines[bad] = b'{"n":'
    path = write(b"\n\n" + b"\n".join(lines))
    mmapds.build(path, validate=False)
    ds = mmapds.open(path)
    for read in (
        lambda: ds[bad],
        lambda: ds.take(range(40)),
        lambda: ds[::-1].take([39 - bad]),
        lambda: mmapds.open(path, decode=orjson.loads).take(range(40)),
    ):
        with pytest.raises(ValueError, match=r"unexpected|not JSON: .*column") as raised:
            read()
        said = [str(raised.value), *getattr(raised.value, "__notes__", [])][-1]
        assert f"train.jsonl:{bad + 3} (byte {2 + 8 * bad})" in said


@pytest.mark.parametrize("error", [None, ValueError("a record without its end")])
def test_an_error_of_a_source_is_not_the_decoders(write, error):
    """One that grew, one that was cut short while a batch is decoded, and one that is gone."""

    def decode(record):
        os.truncate(path, 4096)
        if error:
            raise error
        return len(record)

    path = write([{"n": number, "s": "x" * 10_000} for number in range(40)])
    mmapds.build(path)
    ds, cut = mmapds.open(path), mmapds.open(path, decode=decode, io="mmap")
    for read in (lambda: cut.take(range(40)), lambda: ds[0]):
        with pytest.raises(mmapds.StaleIndexError, match=r"STALE: train\.jsonl was \d+ bytes") as raised:
            read()
        assert not hasattr(raised.value, "__notes__")
    os.unlink(path)
    with pytest.raises(mmapds.SourceError, match=r"no such file or directory \(a source of"):
        ds[0]


# ---- memory and threads: the core calls the decoder ----------------------------------------------------------------


def test_few_records_of_a_batch_are_held_at_a_time_and_none_after_it(write):
    path = write([{"n": number, "s": "x" * 20_000} for number in range(200)])
    mmapds.build(path)

    def decode(record):
        if record[:8] == b'{"n": 17':
            raise ValueError("no")
        return len(record)

    for decoder in (decode, mmapds.takes_view(lambda record: decode(record))):
        ds, held = mmapds.open(path, decode=decoder, io="mmap"), []
        ds.take([0])
        tracemalloc.start()
        ds.take([*range(17)] * 10)
        assert tracemalloc.get_traced_memory()[1] < 40 * 20_000
        for _ in range(2):
            for read, key in [(ds.take, range(200)), (ds.__getitem__, 17)] * 5:
                with pytest.raises(ValueError, match="no"):
                    read(key)
            gc.collect()  # errors, whose frames hold them
            held.append(tracemalloc.get_traced_memory()[0])
        tracemalloc.stop()
        assert held[1] - held[0] < 20_000


def test_a_decoder_may_keep_records_take_batches_and_drop_its_dataset(path):
    kept, raw = [], mmapds.open(path, decode="bytes")

    def decode(record):
        kept.append(record)
        if len(kept) % 20 == 0 and len(kept) < 100:
            return held[0].take(range(99, 60, -1))
        if len(kept) == 100:
            held.clear()
            gc.collect()
        return record

    held = [mmapds.open(path, decode=decode)]
    found = held[0].take(range(50))
    assert not held
    assert [sample for sample in found if isinstance(sample, bytes)][-1] == raw[49]
    assert (len(found), {type(record) for record in kept}) == (50, {bytes})
    assert all(record in raw for record in kept)
