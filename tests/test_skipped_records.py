"""Records that cannot be decoded: left out of batches by `on_error="skip"`, while positions and states stay exact."""

import json
import os
import pickle
import warnings
import zlib
from itertools import islice

import orjson
import pytest
import torch.utils.data

import mmapds
from mmapds.dataset import payloads
from tests.support.tars import archive

BAD = {3, 10, 11, 12, 40, 99}
N = 100

pytestmark = pytest.mark.filterwarnings("ignore:.*; left out:RuntimeWarning")


@pytest.fixture
def path(write):
    """A hundred records, some of which are not JSON; what `plain` gives of the others."""
    lines = [b'{"n": %d, "te' % n if n in BAD else b'{"n": %d}' % n for n in range(N)]
    found = write(b"\n".join(lines))
    mmapds.build(found)
    return found


def numbers(batches):
    return [[sample["n"] for sample in batch] for batch in batches]


def number(sample):
    return sample["n"]


def plain(batches):
    """What batches of positions give once the bad ones are left out of each."""
    return [[position for position in batch if position not in BAD] for batch in batches]


# ---- what is left out -----------------------------------------------------------------------------------------------


def test_a_bad_record_is_left_out_of_a_batch_and_nothing_else_changes(path):
    ds = mmapds.open(path, on_error="skip")
    assert len(ds) == N
    assert [sample["n"] for sample in ds.take([1, 3, -1, 40, 5, 1])] == [1, 5, 1]
    samples, kept = ds.take_kept([1, 3, -1, 40, 5, 1])
    assert ([sample["n"] for sample in samples], kept.tolist()) == ([1, 5, 1], [0, 4, 5])
    assert ds[2]["n"] == 2
    assert [sample["n"] for sample in ds] == [n for n in range(N) if n not in BAD]
    with pytest.raises(mmapds.DecodeError, match=r"train.jsonl:4 \(byte 27\): not JSON: "):
        ds[3]
    with pytest.raises(IndexError):
        ds.take([1, 100])
    samples, kept = mmapds.open(path).take_kept([1, 2])
    assert (numbers([samples]), kept.tolist()) == ([[1, 2]], [0, 1])


def test_all_are_counted_and_the_first_is_named(path):
    ds = mmapds.open(path, on_error="skip")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ds.take([3, 4, 3])
        ds[2:].take([1, 0, 8])
        ds[::-1].take([N - 1 - 3, 0, 1])
    said = [str(warning.message) for warning in caught]
    assert len(said) == 1
    assert said[0].startswith(f"{path}:4 (byte 27): not JSON: unexpected end of data")
    assert said[0].endswith("; left out; ds.skipped has it and all others that will be, without a warning")
    assert ds.skipped == [3, 10, 99]
    assert ds[2:].skipped == [1, 8, 97]
    assert ds[[3, 5, 3]].skipped == [0, 2]
    assert mmapds.open(path).skipped == []


READERS = {
    "one by one": list,
    "mapped": lambda ds: ds.map(len).take(range(len(ds))),
    "loader of torch": lambda ds: list(torch.utils.data.DataLoader(ds, batch_size=4, collate_fn=list)),
    "loader": lambda ds: list(mmapds.DataLoader(ds, batch_size=4, collate_fn=list)),
    "stream": lambda ds: list(ds.stream()),
}


@pytest.mark.parametrize("read", READERS)
def test_the_warning_is_at_the_line_of_the_user(path, read):
    with pytest.warns(RuntimeWarning, match="left out") as caught:
        READERS[read](mmapds.open(path, on_error="skip"))
    assert {each.filename for each in caught} == {__file__}


def test_a_batch_of_which_nothing_is_left_is_an_error(path):
    ds = mmapds.open(path, on_error="skip")
    for dataset in (ds, ds.map(number), ds.map(lambda batch: batch, batched=True)):
        with pytest.raises(mmapds.DecodeError, match=r"train.jsonl:11 \(byte \d+\): not JSON"):
            dataset.take([10, 11])
        assert len(dataset.take([])) == 0
        samples, kept = dataset.take_kept([10, 11])
        assert (len(samples), kept.tolist()) == (0, [])


@pytest.mark.parametrize("records", [5, 300])
@pytest.mark.parametrize("decode", [mmapds.Fields({"none": "int64"}), "tf_example"], ids=["fields", "by name"])
@pytest.mark.parametrize(
    "read",
    [
        list,
        lambda ds: list(ds.stream()),
        lambda ds: list(ds.map(number).stream(shuffle=True)),
        lambda ds: [ds[::-1].take_kept([n]) for n in range(len(ds))],
    ],
    ids=["loop", "stream", "mapped", "view"],
)
def test_a_decoder_that_fits_no_record_is_an_error(write, read, decode, records):
    ds = mmapds.open(write([{"n": n} for n in range(records)]), build=True, decode=decode, on_error="skip")
    with pytest.raises(mmapds.DecodeError, match=r"train.jsonl:\d+ \(byte \d+\): "):
        read(ds)
    assert len(ds.skipped) <= 128


def test_a_hundred_bad_records_are_left_out_once_one_was_read(write):
    path = write(b'{"n": 1}\n' + b'{"n"\n' * 300)
    mmapds.build(path, format="jsonl")
    ds = mmapds.open(path, on_error="skip")
    assert list(ds) == list(ds.stream()) == [{"n": 1}]
    assert len(ds.skipped) == 300


def test_a_damaged_sample_of_a_tar(tmp_path):
    path = tmp_path / "a.tar"
    path.write_bytes(archive([(f"{n}.json", b'{"n": 1' if n == 1 else b'{"n": %d}' % n) for n in range(3)]))
    ds = mmapds.open(path, build=True, decode="wds", on_error="skip")
    with pytest.warns(RuntimeWarning, match=r"a.tar: record 1 \(byte \d+\): .*; left out"):
        assert [sample["json"]["n"] for sample in ds.take([0, 1, 2])] == [0, 2]


def test_views_maps_and_pickles_keep_it(path):
    ds = mmapds.open(path, on_error="skip")
    both = mmapds.concat([ds, ds[:5]])
    for dataset in (ds[1:], ds.map(number), pickle.loads(pickle.dumps(ds)), ds.split([0.5, 0.5], seed=None)[0], both):
        assert len(dataset.take([1, 2, 3, 4])) == 3
    assert pickle.loads(pickle.dumps(ds)).skipped == []
    assert ds.map(number).take([2, 3, 4]) == [2, 4]
    assert ds.map(lambda batch: [sample["n"] for sample in batch], batched=True).take([2, 3, 4]) == [2, 4]
    assert list(ds.map(number)) == [n for n in range(N) if n not in BAD]
    assert ds.map(number).skipped == sorted(BAD)
    with pytest.raises(mmapds.Error, match=r"datasets\[1\]: expected decode, access, io, check and on_error as of"):
        mmapds.concat([ds, mmapds.open(path)])
    with pytest.raises(mmapds.Error, match="on_error = 'ignore', expected one of 'raise', 'skip'"):
        mmapds.open(path, on_error="ignore")


def test_zipped_datasets_leave_out_what_one_of_them_leaves_out(path, write):
    other = write([{"m": n} if n % 7 else "bad" for n in range(N)], "b.jsonl")
    good = mmapds.open(other, build=True)
    ds = mmapds.open(path, on_error="skip")
    for zipped in (mmapds.zip(a=ds, b=good), mmapds.zip(b=good, a=ds), mmapds.zip(a=ds.map(number), b=ds)):
        samples, kept = zipped.take_kept([2, 3, 4, 40, 5])
        assert kept.tolist() == [0, 2, 4]
        assert list(samples) == zipped.take([2, 3, 4, 40, 5]) == [zipped[2], zipped[4], zipped[5]]
        assert len(list(zipped)) == N - len(BAD)
        assert zipped.skipped == sorted(BAD)
        with pytest.raises(mmapds.DecodeError):
            zipped.take([10, 11])
    sevens = mmapds.open(other, decode=none_of_text, on_error="skip")
    both = mmapds.zip(a=ds, b=sevens)
    assert [sample["b"]["m"] for sample in both] == [n for n in range(N) if n not in BAD and n % 7]
    with pytest.raises((mmapds.DecodeError, ValueError)):  # each has one record of the batch, and not the same
        both.take([3, 7])


def none_of_text(record):
    if record == b'"bad"':
        raise ValueError("bad")
    return json.loads(record)


def test_an_error_in_a_mapped_function_names_the_right_record(path):
    def refuse(sample):
        if sample["n"] == 5:
            raise ValueError("five")
        return sample

    with pytest.raises(ValueError, match="five") as error:
        mmapds.open(path, on_error="skip").map(refuse).take([3, 4, 5])
    assert "train.jsonl:6 " in error.value.__notes__[0]


def test_what_is_not_a_matter_of_decoding_is_an_error(path):
    ds = mmapds.open(path, on_error="skip")
    with open(path, "a") as file:
        file.write("1\n")
    with pytest.raises(mmapds.StaleIndexError):
        mmapds.open(path, on_error="skip")
    with pytest.raises(mmapds.StaleIndexError):
        ds.take([1])


def lacks_memory(record):
    if record == b'{"n": 1}':
        raise orjson.JSONDecodeError("Not enough memory to allocate buffer for parsing", "", 0)
    return orjson.loads(record)


def test_a_record_that_memory_is_too_short_for_is_not_left_out(write):
    """orjson raises the error of damaged records."""
    path = write([{"n": n} for n in range(3)])
    for on_error in ("raise", "skip"):
        ds = mmapds.open(path, build=True, decode=lacks_memory, on_error=on_error)
        for read in (lambda ds: ds[1], lambda ds: ds.take([0, 1, 2]), list):
            with pytest.raises(MemoryError, match="expected room in memory"):
                read(ds)
        assert not ds.skipped


def test_the_end_of_a_file_that_was_cut_short_is_not_left_out(write):
    path = write([{"n": n} for n in range(3)])

    def ends(record):
        if record == b'{"n": 1}':
            os.truncate(path, size)
            raise EOFError
        return record

    size = os.path.getsize(path)
    ds = mmapds.open(path, build=True, decode=ends, on_error="skip")
    with pytest.warns(RuntimeWarning, match="EOFError: ?; left out"):
        assert len(ds.take([0, 1, 2])) == 2
    size = 12
    with pytest.raises(mmapds.StaleIndexError, match=r"train\.jsonl was 27 bytes when indexed and is 12 now"):
        ds.take([0, 1, 2])


def recurses(record):
    return recurses(record) if record == b'{"n": 1}' else record


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_record_that_a_decoder_recurses_too_deep_for_is_named_and_not_left_out(write, on_error):
    ds = mmapds.open(write([{"n": n} for n in range(3)]), build=True, decode=recurses, on_error=on_error)
    for read in (lambda ds: ds[1], lambda ds: ds.take([0, 1, 2]), list):
        with pytest.raises(RecursionError) as raised:
            read(ds)
        assert "while decoding" in raised.value.__notes__[0]
        assert "train.jsonl:2 (byte 9)" in raised.value.__notes__[0]
    assert not ds.skipped


SHORT = ["Not enough memory", "Error -4 while "]


@pytest.mark.parametrize("text", SHORT)
def test_a_record_that_speaks_of_memory_is_left_out_as_others_are(tmp_path, text):
    path = tmp_path / "a.tar"
    path.write_bytes(archive([(f"{n}.cls", text.encode() if n == 1 else b"%d" % n) for n in range(3)]))
    ds = mmapds.open(path, build=True, decode="wds", on_error="skip")
    assert [sample["cls"] for sample in ds.take([0, 1, 2])] == [0, 2]
    with pytest.raises(mmapds.DecodeError, match=text):
        ds[1]


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("Unable to allocate 200. MiB for an array"),
        zlib.error("Error -4 while decompressing data"),
    ],
)
def test_a_member_that_memory_is_too_short_for_is_not_left_out(tmp_path, monkeypatch, error):
    def lacks(_):
        raise error

    path = tmp_path / "a.tar"
    path.write_bytes(archive([("0.txt", b"0"), ("1.npy", b"1"), ("2.txt", b"2")]))
    monkeypatch.setitem(payloads._DECODERS, "npy", lacks)
    for on_error in ("raise", "skip"):
        ds = mmapds.open(path, build=True, decode="wds", on_error=on_error)
        for read in (lambda ds: ds[1], lambda ds: ds.take([0, 1, 2]), list):
            with pytest.raises(MemoryError) as raised:
                read(ds)
            assert f"a.tar: record 1 (byte {ds.where(1).offset}): expected room in memory" in str(raised.value)
        assert not ds.skipped


# ---- ways out of an error -------------------------------------------------------------------------------------------


def test_the_message_names_the_position_which_a_sampler_excludes(path):
    ds = mmapds.open(path)
    view = ds[[0, 1, 3, 4]]
    for dataset, position in ((ds, 3), (view, 2), (view, -2), (ds.map(number), 3)):
        for read in (lambda d, p: d[p], lambda d, p: d.take([0, p])):
            with pytest.raises(mmapds.DecodeError) as error:
                read(dataset, position)
            message = str(error.value)
            assert message.startswith(f"{path}:4 (byte 27): not JSON: ")
            assert message.endswith(f" (ds[{position % len(dataset)}])")
    sampler = mmapds.DistributedBatchSampler(ds, 7, shuffle=False, exclude=sorted(BAD))
    assert {n for batch in numbers(map(ds.take, sampler)) for n in batch} == {n for n in range(N) if n not in BAD}


# ---- exact resume ---------------------------------------------------------------------------------------------------

WORKERS = [
    {"num_workers": 0},
    {"num_workers": 2},
    {"num_workers": 2, "workers": "processes", "multiprocessing_context": "fork"},
]


def budget(ds):
    return mmapds.TokenBudgetBatchSampler([1 + n % 5 for n in range(len(ds))], 40, num_replicas=1, rank=0, seed=3)


SAMPLERS = {
    "one of two ranks": lambda ds: mmapds.DistributedBatchSampler(ds, 8, num_replicas=2, rank=1, seed=3),
    "budgets": budget,
}


@pytest.mark.parametrize("how", WORKERS, ids=["trainer", "threads", "processes"])
@pytest.mark.parametrize("name", SAMPLERS)
def test_a_loader_resumes_exactly_where_records_are_left_out(path, how, name):
    """Batches, and those after a resume at each step, are those of the plain dataset without the bad records."""
    ds, make = mmapds.open(path, on_error="skip"), SAMPLERS[name]
    wanted = plain(make(ds))
    assert all(wanted)
    loader = mmapds.DataLoader(ds, batch_sampler=make(ds), collate_fn=list, **how)
    assert numbers(loader) == wanted
    for stop in (1, 3, len(wanted) - 1):
        loader = mmapds.DataLoader(ds, batch_sampler=make(ds), collate_fn=list, **how)
        begun = iter(loader)
        assert numbers(islice(begun, stop)) == wanted[:stop]
        state = loader.state_dict()
        del begun
        again = mmapds.DataLoader(ds, batch_sampler=make(ds), collate_fn=list, **how)
        again.load_state_dict(state)
        assert numbers(again) == wanted[stop:]
        assert state["position"] == mmapds.DataLoader(
            mmapds.open(path, decode="bytes"), batch_sampler=resumed(make(ds), stop), collate_fn=list
        ).batch_sampler.state_dict(stop)["position"]  # fmt: skip


def resumed(sampler, step):
    """A sampler of which some steps were done."""
    list(islice(sampler, step))
    return sampler


@pytest.mark.parametrize("batch_size", [None, 8])
@pytest.mark.parametrize("num_workers", [2])
def test_a_stream_resumes_exactly_where_records_are_left_out(path, batch_size, num_workers):
    ds = mmapds.open(path, on_error="skip")

    def stream():
        return ds.stream(batch_size=batch_size, shuffle=True, seed=5, num_replicas=1, rank=0)

    order = list(stream().sampler)
    wanted = [n for n in order if n not in BAD] if batch_size is None else plain(order)

    def items(found):
        return [sample["n"] for sample in found] if batch_size is None else numbers(found)

    assert items(torch.utils.data.DataLoader(stream(), batch_size=None, num_workers=num_workers)) is not None
    assert items(stream()) == wanted
    for stop in (1, 5, len(wanted) - 1):
        first = stream()
        begun = iter(first)
        assert items(islice(begun, stop)) == wanted[:stop]
        again = stream()
        again.load_state_dict(first.state_dict())
        assert items(again) == wanted[stop:]
