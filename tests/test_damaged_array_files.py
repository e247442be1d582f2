"""Array files that are damaged or cut short: nothing but errors that say where, and what is left can be read."""

import os
import pickle
import re
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import mmapds
from tests.support.array_files import store, utterances
from tests.support.commands import SECONDS, command
from tests.support.files import patched
from tests.support.index_file import rewrite


@pytest.mark.parametrize(
    ("word", "value", "message"),
    [
        (0, 2**64 - 1, "its size does not fit its fields"),
        (0, 0, "field 'x' does not fit the record's"),
        (0, 33, "field 't' does not fit"),
        (1, 6, "field 'x' does not fit"),
        (1, 4, "its size does not fit its fields"),
        (1, 2**62, "field 'x' does not fit"),
        (1, 2**63, "field 'x' does not fit"),
        (1, 2**64 - 1, "field 'x' does not fit"),
        (2, 2**64 - 1, "field 't' does not fit"),
        (2, 2**63 - 1, "field 't' does not fit"),
        (3, 2, "field 'j' does not fit|field 'j': expected JSON|its size"),
    ],
)
def test_a_damaged_record_is_named(tmp_path, word, value, message):
    records = [{"x": np.ones((5, 3)), "t": "text", "j": {"a": 1}}] * 3
    path = store(tmp_path, records)
    ds = mmapds.open(path)
    at = ds.where(1).offset
    patched(path, at + 8 * word, value.to_bytes(8, "little"))
    for decode in (None, "torch"):
        ds = mmapds.open(path, decode=decode)
        assert ds[0]["t"] == ds[2]["t"] == "text"
        for read in (
            lambda ds=ds: ds[1],
            lambda ds=ds: list(ds.__getitems__([0, 1])),
            lambda ds=ds: mmapds.pad_collate(ds.__getitems__([0, 1])),
            lambda ds=ds: list(ds[::-1].take([0, -2])),
        ):
            with pytest.raises(mmapds.FormatError, match=message) as damaged:
                read()
            assert str(damaged.value).startswith(f"{path}: record 1 (byte {at}): ")


def as_it_is(batch):
    return batch


def within_a_dict(batch):
    return {"samples": batch}


@pytest.mark.parametrize("context", ["fork", "spawn"])
@pytest.mark.parametrize("collate", [as_it_is, within_a_dict])
def test_a_batch_that_a_worker_sends_as_it_is_raises_where_it_is_read(tmp_path, context, collate):
    """A batch makes its samples when it is sent, by a thread that drops what it can't send."""
    path = store(tmp_path, [{"n": n, "j": {"n": n}} for n in range(10)])
    patched(path, Path(path).read_bytes().index(b'{"n":7}'), b"(")
    message = r"record 7 \(byte \d+\): field 'j': expected JSON, found damaged bytes"
    workers = {"num_workers": 1, "multiprocessing_context": context, "timeout": 60}
    for dataset in (mmapds.open(path), mmapds.zip(a=mmapds.open(path))):
        found = list(DataLoader(dataset, 2, collate_fn=collate, **workers))
        batches = [each["samples"] if isinstance(each, dict) else each for each in found]
        assert [len(list(batch)) for number, batch in enumerate(batches) if number != 3] == [2, 2, 2, 2]
        for read in (list, lambda batch: batch[0]):
            with pytest.raises(mmapds.FormatError, match=message):
                read(batches[3])


def test_a_queue_without_torch_gives_the_error_to_whoever_waits(tmp_path):
    path = store(tmp_path, [{"j": {"n": 1}}])
    patched(path, Path(path).read_bytes().index(b'{"n":1}'), b"(")
    script = f"""
import multiprocessing, sys
from concurrent.futures import ProcessPoolExecutor
import mmapds
batch = mmapds.open({path!r}).take([0])
queue = multiprocessing.Queue()
queue.put(batch)
with ProcessPoolExecutor(1) as pool:
    errors = [pool.submit(len, batch).exception() for _ in range(2)]
assert all(type(error) is mmapds.FormatError for error in errors), errors
found = queue.get(timeout=60)
for look in (len, list, lambda samples: samples[0]):
    try:
        look(found)
    except mmapds.FormatError as error:
        print("torch" in sys.modules, error)
"""
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=SECONDS, check=True)
    line = r"False .*: record 0 \(byte \d+\): field 'j': expected JSON, found damaged bytes.*\n"
    assert re.fullmatch(f"({line}){{3}}", found.stdout)
    received = pickle.loads(pickle.dumps(mmapds.open(path).take([0])))
    with pytest.raises(mmapds.FormatError, match="expected JSON"):
        received[0]


def test_damaged_text(tmp_path):
    path = store(tmp_path, [{"t": "text", "j": {"a": 1}}])
    at = mmapds.open(path).where(0).offset
    patched(path, at + 24, b"\xff")
    with pytest.raises(
        mmapds.FormatError, match=r"record 0 \(byte \d+\): field 't': expected UTF-8, found damaged .*'utf-8'"
    ):
        mmapds.open(path)[0]
    patched(path, at + 24, b"text?")
    with pytest.raises(mmapds.FormatError, match=r"field 'j': expected JSON, found damaged bytes \(unexpected char"):
        mmapds.open(path)[0]


@pytest.mark.parametrize("text", [b'7,"b":456', b"1}     \n", b'{"a":124]', b'["\xff", 11]', b"         "])
@pytest.mark.parametrize("wanted", ["j", "j.a"])
def test_damaged_json_of_fields_that_are_wanted(tmp_path, text, wanted):
    """Text that ends the object around it, and begins another field of it, is not JSON either."""
    path = store(tmp_path, [{"j": {"a": 123}}, {"j": {"a": 124}}])
    patched(path, mmapds.open(path).where(1).offset + 16, text)
    ds = mmapds.open(path, decode=mmapds.Fields({wanted: "int64"}, defaults={wanted: 0}))
    for read in (lambda: ds[1], lambda: ds.take([0, 1])[1], lambda: mmapds.pad_collate(ds.take([1]))):
        with pytest.raises(mmapds.FormatError, match=r"record 1 \(byte \d+\): field 'j': expected JSON, found damaged"):
            read()


def test_damaged_text_of_fields_that_are_wanted(tmp_path):
    path = store(tmp_path, [{"t": "text", "u": "more"}] * 2)
    patched(path, mmapds.open(path).where(1).offset + 24, b"\xff")
    ds = mmapds.open(path, decode=mmapds.Fields({"t": "str"}))
    message = r"a\.mma: record 1 \(byte \d+\): field 't': expected UTF-8, found damaged bytes \('utf-8' codec .*\)"
    for read in (lambda: ds[1], lambda: ds.take([0, 1])[1], lambda: mmapds.pad_collate(ds.take([0, 1]))):
        with pytest.raises(mmapds.FormatError, match=message):
            read()
    skipping = mmapds.open(path, decode=mmapds.Fields({"t": "str"}), on_error="skip")  # not a damaged array file
    with pytest.raises(mmapds.FormatError, match=message):
        list(skipping.take([0, 1]))
    assert mmapds.open(path, decode=mmapds.Fields({"u": "str"}))[1] == {"u": "more"}


@settings(max_examples=150)
@given(st.data())
def test_damage_anywhere_gives_errors_at_most(tmp_path_factory, data):
    path = store(tmp_path_factory.mktemp("damage"), utterances(4), length="feats")
    size = os.path.getsize(path)
    at = data.draw(st.integers(0, size - 8) | st.integers(0, 64) | st.integers(size - 600, size - 8))
    patched(path, at, data.draw(st.binary(min_size=1, max_size=8) | st.just(struct.pack("<q", -1))))
    for work in (
        lambda: list(mmapds.open(path)),
        lambda: mmapds.build(path, force=True),
        lambda: list(mmapds.open(path)),
    ):
        try:
            work()
        except mmapds.Error as error:
            assert path in str(error)  # noqa: PT017 - whether it raises depends on the damage


def test_damage_outside_the_records_is_found_when_indexing(tmp_path):
    path = store(tmp_path, utterances(20))
    good = Path(path).read_bytes()

    def build(at, data):
        with open(path, "wb") as file:
            file.write(good[:at] + data + good[at + len(data) :])
        return mmapds.build(path, force=True)

    for at, data, message in (
        (0, b"x", r"NOT AN ARRAY FILE: expected b.* at byte 0 of 80 bytes or more, found b"),
        (8, b"\2", "VERSION: expected format 1, found 2; upgrade mmapds"),
        (16, b"\1", "DAMAGED: header and metadata do not match their checksum"),
        (40, b"\1", r"DAMAGED: expected \d+ bytes, as the header says, found \d+"),
        (64, b"\xff" * 8, f"DAMAGED: expected a schema of {2**64 - 1} bytes .*, found {len(good) - 80} bytes"),
        (90, b"\xff", "DAMAGED: expected a schema .* checksum 0x[0-9a-f]{16}, found .* 0x[0-9a-f]{16}; copy or"),
        (len(good) - 3, b"x", "DAMAGED: header and metadata do not match"),
    ):
        with pytest.raises(mmapds.FormatError, match=message):
            build(at, data)
    offsets = good.rindex(b'"offsets"')
    where = int(good[offsets:].split(b'"offset": ')[1].split(b",")[0])
    with pytest.raises(mmapds.FormatError, match="DAMAGED: section 'offsets' does not match its checksum"):
        build(where + 4, b"\7")


def test_verify_reads_the_records(tmp_path):
    records = [{"x": np.zeros(100_000)}, {"x": np.ones(100_000)}]  # the fingerprint does not see the middle
    path = store(tmp_path, records)
    assert command("--verify", path).returncode == 0
    patched(path, os.path.getsize(path) // 2, b"\1")
    found = command("--verify", path).stderr
    wanted = r"DAMAGED: section 'records' does not match its checksum: expected \w{16}, found \w{16}"
    assert re.search(wanted, found), found


def test_a_file_that_is_cut_short(tmp_path):
    path = store(tmp_path, utterances(20), length="feats")
    good, places = Path(path).read_bytes(), mmapds.open(path)
    for size in (places.where(12).offset + 8, places.where(12).offset, len(good) - 1):
        Path(path).write_bytes(good[:size])
        with pytest.raises(mmapds.StaleIndexError):
            mmapds.open(path)
        with pytest.raises(mmapds.FormatError, match=f"expected a file of {len(good)} bytes, found {size}$"):
            mmapds.build(path)
        with pytest.raises(mmapds.FormatError, match="truncated = 'drop', expected no options for format 'arrays'"):
            mmapds.build(path, truncated="drop")
    Path(path).write_bytes(good[:70])
    with pytest.raises(mmapds.FormatError, match=r"NOT AN ARRAY FILE: expected .* of 80 bytes or more, found .* of 70"):
        mmapds.build(path)


def test_what_is_no_array_file(write):
    for content in (b"", b"abc", bytes(200), b"\x89MMA\r\n\x1a\n" + bytes(200)):
        with pytest.raises(mmapds.FormatError, match=r"x.mma: (NOT AN ARRAY FILE|VERSION)"):
            mmapds.build(write(content, "x.mma"))


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("records", None, "expected a section 'records', found none"),
        ("offsets", None, "section 'offsets': expected 3 numbers of type <u4 or <u8, found none"),
        ("column:n", None, "section 'column:n': expected 3 numbers of type <u4 or <u8 or <i8, found none"),
        ("offsets", {"shape": [2]}, "section 'offsets': expected 3 numbers of type <u4 or <u8, found 2 of type <u4"),
        (
            "column:x_length",
            {"shape": [4]},
            "section 'column:x_length': expected 3 numbers of type <u4 or <u8 or <i8, found 4 of type <u4",
        ),
        (
            "offsets",
            {"dtype": "|u1"},
            "section 'offsets': expected 3 numbers of type <u4 or <u8, found 3 of type \\|u1",
        ),
        (
            "column:n",
            {"dtype": "|u1"},
            "section 'column:n': expected 3 numbers of type <u4 or <u8 or <i8, found 3 of type \\|u1",
        ),
        ("column:n", {"xxh3": "0"}, "section 'column:n' does not match its checksum: expected 0, found [0-9a-f]{16}"),
    ],
)
def test_a_section_that_does_not_fit_is_named(tmp_path, name, change, message):
    schema = {"x": ("float32", (None,)), "n": "int64"}
    path = store(tmp_path, [{"x": np.ones(i, np.float32), "n": i} for i in range(3)], schema, index=False)

    def changed(metadata):
        sections = metadata["sections"]
        assert name in sections
        if change is None:
            del sections[name]
        else:
            sections[name] |= change
        return metadata

    rewrite(path, metadata=changed)
    with pytest.raises(mmapds.FormatError) as refused:
        mmapds.build(path)
    assert re.fullmatch(f"{re.escape(path)}: DAMAGED: {message}", str(refused.value))
