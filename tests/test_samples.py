"""Where the core calls the decoder, for `ds[i]` and batches: the same samples and errors as by any other way."""

import gc
import itertools
import os
import sys
import tracemalloc
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import mmapds
from mmapds._native import Samples
from tests.support.compressed import many_frames

RECORDS = [{"n": number} for number in range(20)]


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


@pytest.fixture
def path(write):
    found = write(RECORDS)
    mmapds.build(found)
    return found


@pytest.mark.parametrize("decode", ["json", "bytes", len])
@pytest.mark.parametrize("io", ["mmap", "pread"])
def test_every_way_to_a_sample_gives_the_same(path, decode, io):
    ds = mmapds.open(path, decode=decode, io=io)
    samples = list(ds)
    assert len(samples) == len(RECORDS)
    for number in range(-len(RECORDS), len(RECORDS)):
        for key in (number, np.int64(number), np.array(number), np.array([number], np.int32)[0]):
            assert ds[key] == samples[number]
            assert type(ds[key]) is type(samples[number])
    assert list(ds.take(range(20))) == list(ds[::1]) == samples


@pytest.mark.parametrize("error", [ValueError("no"), KeyError("n"), StopIteration(3), mmapds.DecodeError("no")])
def test_the_error_of_a_decoder_is_that_of_a_view(path, error):
    ds = mmapds.open(path, decode=raising(error))
    found = []
    for dataset, key in itertools.product((ds, ds[::1]), (3, np.int64(3))):
        with pytest.raises(RuntimeError if isinstance(error, StopIteration) else type(error)) as raised:
            dataset[key]
        found.append((str(raised.value), getattr(raised.value, "__notes__", [])[-1:]))
        assert raised.traceback[-1].name in ("decode", "_raise_at")
    assert all(each == found[0] for each in found)
    assert "train.jsonl:4" in str(found[0])


def test_a_dataset_that_leads_to_itself_is_freed(path):
    class Decoder:
        def __call__(self, _):
            return self.dataset

    decode = Decoder()
    decode.dataset = ds = mmapds.open(path, decode=decode)
    assert ds[0] is ds
    gone = weakref.ref(ds)
    del ds, decode
    gc.collect()
    assert gone() is None


def test_references_do_not_add_up(path):
    sample = object()
    ds = mmapds.open(path, decode=lambda _: sample)
    failing = mmapds.open(path, decode=raising(error := ValueError("no")))
    before = sys.getrefcount(sample)
    for number in range(20):
        assert ds[number] is sample
        with pytest.raises(ValueError, match="no"):
            failing[number]
    error.__traceback__ = None
    gc.collect()
    assert sys.getrefcount(sample) == before
    assert sys.getrefcount(error) < 20


def test_records_and_decoder_may_go_while_they_are_used():
    class Asking(Samples):
        pass

    class Going:
        def __getitem__(self, key):
            del bare._records
            gc.collect()
            return key

        def __call__(self, record):
            del bare._decode_record
            gc.collect()
            return record + 1

    bare = Asking()
    bare._records, bare._decode_record = Going(), Going()
    assert bare[3] == 4


def test_what_lacks_its_records_asks_python():
    class Asking(Samples):
        def _at(self, key):
            return key

    bare = Asking()
    assert bare[3] == 3
    bare._decode_record = None
    assert bare[4] == 4
    bare._records = [b"a", b"b"]
    assert bare[1] == b"b"
    assert bare[True] is True
    del bare._decode_record
    assert bare[1] == 1
    with pytest.raises(AttributeError, match="_at"):
        Samples()[0]
    refusing = Asking()
    refusing._records, refusing._decode_record = [b"a"], int
    with pytest.raises(AttributeError, match="_raise_at"):
        refusing[0]
    refusing._raise_at = lambda *_: None
    with pytest.raises(SystemError, match="_raise_at: expected an exception, found none"):
        refusing[0]


# ---- batches -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("decode", ["json", "text", len, viewed])
@pytest.mark.parametrize("io", ["mmap", "pread"])
@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 100])
def test_a_batch_of_several_sources_has_their_samples_in_turn(write, decode, io, count):
    for name in "abc":
        write(RECORDS, f"{name}.jsonl")
    packed = write(many_frames(b'{"n":1}\n' * 20), "d.jsonl.zst")
    mixed = [write(RECORDS, f"{name}.jsonl") for name in "abc"] + [packed]
    for paths in (mixed[:3], mixed, [packed]):
        for path in paths:
            mmapds.build(path)
        ds = mmapds.open(paths, decode=decode, io=io)
        positions = np.random.default_rng(0).integers(-len(ds), len(ds), count)
        samples = [ds[int(position)] for position in positions]
        assert ds.take(positions) == ds.take(positions.tolist()) == ds[::1].take(positions) == samples


@pytest.mark.parametrize("bad", [0, 16, 39])
def test_the_error_of_a_batch_names_its_record(write, bad):
    lines = [b'{"n":1}'] * 40
    lines[bad] = b'{"n":'
    path = write(b"\n".join(lines))
    mmapds.build(path, validate=False)
    seen = []

    def decode(record):
        seen.append(record)
        if len(record) == 5:
            raise error
        return record

    with pytest.raises(mmapds.DecodeError, match=rf"train\.jsonl:{bad + 1} .*not JSON") as raised:
        mmapds.open(path).take(range(40))
    assert isinstance(raised.value.__cause__, ValueError)
    error = ValueError("no")
    with pytest.raises(ValueError, match="no") as raised:
        mmapds.open(path, decode=decode).take(range(40))
    assert raised.value is error
    assert len(error.__notes__) == 1
    assert f"train.jsonl:{bad + 1} " in error.__notes__[0]
    assert raised.traceback[-1].name == "decode"
    error = StopIteration(3)
    with pytest.raises(RuntimeError, match=rf"train\.jsonl:{bad + 1} .*raised StopIteration") as raised:
        mmapds.open(path, decode=decode).take(range(40))
    assert raised.value.__cause__ is error
    error = Failure()
    with pytest.raises(Failure) as raised:
        mmapds.open(path, decode=decode).take(range(40))
    assert not hasattr(error, "__notes__")
    assert seen == lines[: bad + 1] * 3
    with pytest.warns(RuntimeWarning, match="left out"):
        assert len(mmapds.open(path, on_error="skip").take(range(40))) == 39


@pytest.mark.parametrize("view", [False, True])
def test_few_records_of_a_batch_are_held_at_a_time_and_none_after_it(write, view):
    path = write([{"n": number, "s": "x" * 20_000} for number in range(200)])
    mmapds.build(path)

    def decode(record):
        if record[:8] == b'{"n": 17':
            raise ValueError("no")
        return len(record)

    def fail():
        for _ in range(10):
            with pytest.raises(ValueError, match="no"):
                ds.take(range(200))
        gc.collect()  # errors, whose frames hold them
        return tracemalloc.get_traced_memory()[0]

    ds = mmapds.open(path, decode=mmapds.takes_view(decode) if view else decode, io="mmap")
    ds.take([0])
    tracemalloc.start()
    try:
        ds.take([*range(17)] * 10)
        assert tracemalloc.get_traced_memory()[1] < 40 * 20_000
        before = fail()
        assert fail() - before < 20_000
    finally:
        tracemalloc.stop()


def test_a_decoder_may_keep_its_records_and_take_batches_of_its_own(write):
    path = write([{"n": number} for number in range(100)])
    mmapds.build(path)
    kept = []

    def decode(record):
        kept.append(record)
        if len(kept) % 20 == 0 and len(kept) < 100:
            return ds.take(range(99, 60, -1))
        return record

    ds = mmapds.open(path, decode=decode)
    raw = mmapds.open(path, decode="bytes")
    found = ds.take(range(50))
    flat = [record for sample in found for record in (sample if isinstance(sample, list) else [sample])]
    assert len(found) == 50
    assert {type(record) for record in kept} == {bytes}
    assert all(record in raw for record in kept)
    assert [sample for sample in found if isinstance(sample, bytes)][-1] == raw[49]
    assert len(flat) > 80


def test_threads_take_batches_of_one_dataset(write):
    path = write([{"n": number, "s": "x" * (number % 100)} for number in range(1000)])
    mmapds.build(path)
    ds = mmapds.open(path)

    def take(seed):
        positions = np.random.default_rng(seed).integers(0, 1000, 300)
        return [sample["n"] for sample in ds.take(positions)] == positions.tolist()

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(take, range(100)))


def test_a_decoder_that_drops_the_dataset_of_its_batch(path):
    def decode(record):
        held.clear()
        gc.collect()
        return record

    held = [mmapds.open(path, decode=decode)]
    assert held[0].take(range(20)) == mmapds.open(path, decode="bytes").take(range(20))
    assert not held


def test_a_source_cut_short_while_its_batch_is_decoded_is_not_the_decoders_error(write):
    path = write([{"n": number, "s": "x" * 10_000} for number in range(40)])
    mmapds.build(path)

    def decode(record):
        os.truncate(path, 4096)
        return len(record)

    with pytest.raises(mmapds.StaleIndexError, match=r"STALE: train\.jsonl was \d+ bytes") as raised:
        mmapds.open(path, decode=decode, io="mmap").take(range(40))
    assert not hasattr(raised.value, "__notes__")


def test_what_takes_the_errors_of_a_batch_must_raise_one(path):
    records = mmapds.open(path)._records
    refused = []
    with pytest.raises(SystemError, match="refused: expected an exception, found none"):
        records.decode([3, 4], raising(KeyError(1)), lambda *what: refused.append(what))
    assert [(k, type(error)) for k, error in refused] == [(0, KeyError)]
    assert records.decode((), None, None) == []
    with pytest.raises(IndexError):
        records.decode([0, 20], len, None)
    with pytest.raises(TypeError):
        records.decode(3, len, None)
