"""Records that cannot be decoded: left out of batches by `on_error="skip"`, while positions and states stay exact."""

import json
import pickle
import warnings
import zlib
from functools import partial
from itertools import islice

import pytest
import torch.utils.data

import mmapds
from mmapds.dataset import payloads
from tests.support.tars import archive

BAD = {3, 10, 11, 12, 40, 99}
N = 100
GOOD = [n for n in range(N) if n not in BAD]

pytestmark = pytest.mark.filterwarnings("ignore:.*; skipped:RuntimeWarning")


@pytest.fixture
def path(write):
    """A hundred records, some of which are not JSON."""
    lines = [b'{"n": %d, "te' % n if n in BAD else b'{"n": %d}' % n for n in range(N)]
    found = write(b"\n".join(lines))
    mmapds.build(found)
    return found


@pytest.fixture
def ds(path):
    return mmapds.open(path, on_error="skip")


def number(sample):
    return sample["n"]


def numbers(batches):
    return [list(map(number, batch)) for batch in batches]


# ---- what is left out -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("decode", [None, mmapds.Fields({"n": "int64"})], ids=["json", "fields"])
def test_a_bad_record_is_left_out_of_a_batch_and_nothing_else_changes(path, decode):
    ds = mmapds.open(path, decode=decode, on_error="skip")
    assert len(ds) == N
    samples, kept = ds.take_kept([1, 3, -1, 40, 5, 1])
    assert (numbers([samples, ds.take([1, 3, -1, 40, 5, 1])]), kept.tolist()) == ([[1, 5, 1]] * 2, [0, 4, 5])
    assert ds[2] == {"n": 2}
    assert list(map(number, ds)) == list(map(number, ds.stream())) == GOOD
    with pytest.raises(mmapds.DecodeError, match=r"train.jsonl:4 \(byte 27\): not JSON: .* \(ds\[3\]\)$"):
        ds[3]
    with pytest.raises(IndexError):
        ds.take([1, 100])
    samples, kept = mmapds.open(path).take_kept([1, 2])
    assert (numbers([samples]), kept.tolist(), mmapds.open(path).skipped) == ([[1, 2]], [0, 1], [])


def test_all_are_counted_and_the_first_is_named(ds, path):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ds.take([3, 4, 3])
        ds[2:].take([1, 0, 8])
        ds[::-1].take([N - 1 - 3, 0, 1])
    (said,) = [str(warning.message) for warning in caught]
    assert said.startswith(f"{path}:4 (byte 27): not JSON: unexpected end of data")
    assert said.endswith("; skipped; ds.skipped lists it and all later ones, which give no warning")
    assert [each.skipped for each in (ds, ds[2:], ds[[3, 5, 3]])] == [[3, 10, 99], [1, 8, 97], [0, 2]]


def test_a_batch_of_which_nothing_is_left_is_an_error(ds):
    for dataset in (ds, ds.map(number), ds.map(lambda batch: batch, batched=True), mmapds.zip(a=ds)):
        with pytest.raises(mmapds.DecodeError, match=r"train.jsonl:11 \(byte \d+\): not JSON"):
            dataset.take([10, 11])
        samples, kept = dataset.take_kept([10, 11])
        assert (len(dataset.take([])), len(samples), kept.tolist()) == (0, 0, [])


@pytest.mark.parametrize("records", [5, 300])
@pytest.mark.parametrize("decode", [mmapds.Fields({"none": "int64"}), "tf_example"], ids=["fields", "by name"])
def test_a_decoder_that_fits_no_record_is_an_error_and_one_that_fits_one_is_none(write, decode, records):
    path = write([{"n": n} for n in range(records)])
    for read in (
        list,
        lambda ds: list(ds.map(number).stream()),
        lambda ds: [ds.take_kept([n]) for n in range(records)],
    ):
        ds = mmapds.open(path, build=True, decode=decode, on_error="skip")
        with pytest.raises(mmapds.DecodeError, match=r"train.jsonl:\d+ \(byte \d+\): "):
            read(ds)
        assert len(ds.skipped) <= 128
    mmapds.build(write(b'{"n": 1}\n' + b'{"n"\n' * records), format="jsonl")
    ds = mmapds.open(path, on_error="skip")
    assert list(ds) == list(ds.stream()) == [{"n": 1}]
    assert len(ds.skipped) == records


def test_views_maps_and_pickles_keep_it(ds):
    half, both = ds.split([0.5, 0.5], seed=None)[0], mmapds.concat([ds, ds[:5]])
    for dataset in (ds[1:], ds.map(number), pickle.loads(pickle.dumps(ds)), half, both):
        assert len(dataset.take([1, 2, 3, 4])) == 3
    for mapped in (ds.map(number), ds.map(lambda batch: [sample["n"] for sample in batch], batched=True)):
        assert mapped.take([2, 3, 4]) == [2, 4]
        assert list(mapped) == GOOD
        assert mapped.skipped == sorted(BAD)


def test_zipped_datasets_leave_out_what_one_of_them_leaves_out(ds, write):
    other = write([{"m": n} if n % 7 else {} for n in range(N)], "b.jsonl")
    good = mmapds.open(other, build=True)
    for zipped in (mmapds.zip(a=ds, b=good), mmapds.zip(b=good, a=ds), mmapds.zip(a=ds.map(number), b=ds)):
        samples, kept = zipped.take_kept([2, 3, 4, 40, 5])
        assert kept.tolist() == [0, 2, 4]
        assert list(samples) == zipped.take([2, 3, 4, 40, 5]) == [zipped[2], zipped[4], zipped[5]]
        assert (len(list(zipped)), zipped.skipped) == (len(GOOD), sorted(BAD))
    sevens = mmapds.open(other, decode=mmapds.Fields({"m": "int64"}), on_error="skip")
    both = mmapds.zip(a=ds, b=sevens)
    assert [sample["b"]["m"] for sample in both] == [n for n in GOOD if n % 7]
    for read in (lambda: both.take([3, 7]), lambda: list(mmapds.zip(a=ds[[3, 4]], b=sevens[[8, 7]]))):
        with pytest.raises(mmapds.DecodeError):  # each has one of the two records, and not the same
            read()


# ---- what is not the record's fault ---------------------------------------------------------------------------------


def recurses(record):
    return recurses(record) if record == b'{"n": 3}' else json.loads(record)


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_record_that_the_stack_is_too_short_for_is_not_left_out(write, on_error):
    """Nor is one that memory is too short for: see test_large_records."""
    ds = mmapds.open(write([{"n": 3}, {"n": 4}]), build=True, decode=recurses, on_error=on_error)
    for read in (lambda: ds[0], lambda: ds.take([0, 1]), lambda: list(ds)):
        with pytest.raises(RecursionError) as raised:
            read()
        assert raised.value.__notes__[0].startswith(f"while decoding {ds.sources[0]}:1 (byte 0)")
    assert ds.skipped == []


@pytest.mark.parametrize("error", [MemoryError("Unable to allocate 200. MiB"), zlib.error("Error -4 while decompres")])
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_only_a_member_that_memory_is_too_short_for_is_not_left_out(write, monkeypatch, error, on_error):
    def lacks(_):
        raise error

    path = write(archive([("0.txt", b"0"), ("1.npy", b"1"), ("2.cls", str(error).encode())]), "a.tar")
    monkeypatch.setitem(payloads._DECODERS, "npy", lacks)
    ds = mmapds.open(path, build=True, decode="wds", on_error=on_error)
    for read in (lambda: ds[1], lambda: ds.take([0, 1, 2]), lambda: list(ds)):
        with pytest.raises(MemoryError, match=r"a.tar: record 1 \(byte \d+\): expected room in memory"):
            read()
    with pytest.raises(mmapds.DecodeError, match=str(error)):
        ds[2]
    assert (ds.skipped, len(mmapds.open(path, decode="wds", on_error="skip").take([0, 2]))) == ([], 1)


# ---- exact resume ---------------------------------------------------------------------------------------------------

WORKERS = {
    "trainer": {"num_workers": 0},
    "threads": {"num_workers": 2},
    "processes": {"num_workers": 2, "workers": "processes", "multiprocessing_context": "fork"},
}


@pytest.fixture(params=[*WORKERS, "stream", "stream of batches"])
def make(request, ds):
    """What makes a pass of its kind."""
    if request.param.startswith("stream"):
        size = 8 if "batches" in request.param else None
        return partial(ds.stream, batch_size=size, shuffle=True, seed=5, num_replicas=1, rank=0)
    sampler = partial(mmapds.DistributedBatchSampler, ds, 8, num_replicas=2, rank=1, seed=3)
    return lambda: mmapds.DataLoader(ds, batch_sampler=sampler(), collate_fn=list, **WORKERS[request.param])


def test_a_pass_resumes_exactly_where_records_are_left_out(make):
    """Its samples, and those after a resume at each step, are those of the plain dataset without the bad records."""
    planned = list(getattr(make(), "batch_sampler", None) or make().sampler)
    if isinstance(planned[0], list):
        items, wanted = numbers, [[n for n in batch if n not in BAD] for batch in planned]
    else:
        items, wanted = lambda found: list(map(number, found)), [n for n in planned if n not in BAD]
    assert items(make()) == wanted
    for stop in (1, 3, len(wanted) - 1):
        stopped, again = make(), make()
        assert items(islice(stopped, stop)) == wanted[:stop]
        again.load_state_dict(stopped.state_dict())
        assert items(again) == wanted[stop:]


def test_workers_share_a_stream_of_which_records_are_left_out(ds):
    shared = ds.stream(shuffle=True, seed=5, num_replicas=1, rank=0)
    found = torch.utils.data.DataLoader(shared, batch_size=None, num_workers=2)
    assert sorted(map(number, found)) == GOOD
