"""Where the core calls the decoder, for `ds[i]` and batches: the same samples and errors as by any other way."""

import gc
import itertools
import sys
import weakref

import numpy as np
import pytest

import mmapds
from mmapds._native import Samples, decode_all

RECORDS = [{"n": number} for number in range(20)]


class Failure(BaseException):
    pass


def raising(error):
    def decode(_):
        raise error

    return decode


@pytest.fixture
def path(write):
    found = write(RECORDS)
    mmapds.build(found)
    return found


@pytest.mark.parametrize("decode", ["json", "bytes", "text", len, list])
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


@pytest.mark.parametrize("key", [20, -21, 2**63, -(2**70)])
def test_an_int_out_of_range_is_refused_as_by_a_view(path, key):
    for ds in (mmapds.open(path), mmapds.open(path, decode="bytes"), mmapds.open(path)[::1]):
        with pytest.raises(IndexError):
            ds[key]


@pytest.mark.parametrize("error", [ValueError("no"), KeyError("n"), StopIteration(3), mmapds.DecodeError("no")])
def test_the_error_of_a_decoder_is_that_of_a_view(path, error):
    ds = mmapds.open(path, decode=raising(error))
    found = []
    for dataset, key in itertools.product((ds, ds[::1]), (3, np.int64(3))):
        with pytest.raises(type(error)) as raised:
            dataset[key]
        found.append((str(raised.value), getattr(raised.value, "__notes__", [])[-1:]))
        assert raised.traceback[-1].name in ("decode", "raise_at")
    assert all(each == found[0] for each in found)
    assert "train.jsonl:4" in str(found[0])


def test_json_that_is_not_has_its_cause(write):
    bad = write(b'{"n":1}\n{"n":\n')
    mmapds.build(bad, validate=False)
    with pytest.raises(mmapds.DecodeError, match=r"train\.jsonl:2") as raised:
        mmapds.open(bad)[1]
    assert isinstance(raised.value.__cause__, ValueError)


def test_what_ends_a_program_is_left_alone(path):
    ended = Failure()
    with pytest.raises(Failure) as raised:
        mmapds.open(path, decode=raising(ended))[0]
    assert raised.value is ended
    assert not hasattr(ended, "__notes__")


def test_a_decoder_that_drops_its_own_dataset(path):
    held = []

    def decode(record):
        held.clear()
        gc.collect()
        return record

    held.append(mmapds.open(path, decode=decode))
    assert mmapds.open(path, decode="bytes")[3] == held[0][3]
    assert not held


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


def test_a_batch_has_the_samples_before_the_one_that_fails():
    records, samples = [b"1", b"2", b"x", b"3"], []
    with pytest.raises(ValueError, match="invalid literal"):
        decode_all(int, records, samples)
    assert (records, samples) == ([b"1", b"2", b"x", b"3"], [1, 2])
    with pytest.raises(StopIteration):
        decode_all(raising(StopIteration()), records, [])
    with pytest.raises(TypeError):
        decode_all(int, tuple(records), [])
    growing = [b"1"]
    decode_all(lambda record: growing.clear() if record == b"9" else growing.append(b"9"), growing, found := [])
    assert (growing, found) == ([], [None, None])


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
