"""Records that memory has no room for, which errors name, and how maps are advised and read ahead."""

import gzip
import json
import os
import re
import sys
from pathlib import Path

import numpy as np
import orjson
import pytest

import mmapds
from mmapds.compression.reader import BlockReader
from mmapds.dataset import catalog
from tests.support.commands import run
from tests.support.compressed import one_frame
from tests.support.messages import check
from tests.support.samples import write_tfrecords
from tests.support.sanitizers import limits_memory

pytestmark = [pytest.mark.skipif(sys.platform != "linux", reason="limits, /proc and dropping pages are Linux's")]

LARGE = 256 << 20  # bytes of a record
ROOM = 96 << 20  # more than this process has, when it reads that record
READ = """
import json, resource, sys
import mmapds

options, reads = json.loads(sys.argv[2]), sys.argv[4:]
if "fields" in options:
    options["decode"] = mmapds.Fields(options.pop("fields"))
ds = mmapds.open(sys.argv[1], **options)
ds[0], ds.take([0, 2])
with open("/proc/self/statm") as file:
    used = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + int(sys.argv[3]), resource.RLIM_INFINITY))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
found = []
for read in reads:
    try:
        eval(read)
    except MemoryError as error:
        found.append(str(error))
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
print(json.dumps({"found": found, "grown": grown << 10, "others": len(ds.take([0, 2]))}))
"""
READS = ["ds[1]", "ds.raw(1)", "ds[1:][0]", "list(ds)", "ds.take([1])", "ds.take([0, 1, 2])"]


@pytest.fixture(scope="module")
def lines(tmp_path_factory):
    """Three lines, of which the second is large; its file has a hole there."""
    path = tmp_path_factory.mktemp("large") / "a.jsonl"
    with open(path, "wb") as file:
        file.write(b'{"n": 0}\n"')
        file.seek(LARGE - 3, 1)
        file.write(b'"\n{"n": 2}\n')
    mmapds.build(path)
    return path


def messages(path, options, reads, place=":2 (byte 9)", room=ROOM):
    ran = run("-c", READ, path, json.dumps(options), room, *reads)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert found["others"] == 2
    assert len(found["found"]) == len(reads)
    for message in found["found"]:
        check(message)
        assert message.startswith(f"{path}{place}: expected room in memory for ")
    return found


@limits_memory
@pytest.mark.parametrize(
    "options",
    [
        {"io": "mmap"},
        {"io": "pread", "on_error": "skip"},
        {"io": "pread", "decode": "text"},
        {"fields": {"n": "int32"}, "on_error": "skip"},
    ],
)
def test_a_record_that_memory_has_no_room_for_is_named(lines, options):
    one, *_, together = messages(lines, options, READS)["found"]
    assert "for a record of 268435" in one
    assert "for 3 records of 268435" in together


LATE = [
    "ds.take([1])[0]",
    "ds.take([0, 1])[-1]",
    "list(ds.take([0, 1, 2]))",
    "ds.take([0, 1]).values('text')",
    "ds.map(len).take([0, 1])",
    "list(mmapds.zip(a=ds).take([0, 1]))",
]
"""Reads whose samples are made when they are asked for."""
LOADERS = ["list(ds.stream(shuffle=False))", "list(mmapds.DataLoader(ds, batch_size=2, collate_fn=list))"]
"""The same, where torch is loaded before room is short."""


@limits_memory
def test_so_is_one_of_named_arrays_whose_sample_is_made_late(tmp_path):
    path = tmp_path / "a.mma"
    with mmapds.Writer(path) as writer:
        for size in (1, LARGE // 2, 1):
            writer.write({"x": np.zeros(2, np.float32), "text": "b" * size})
    place = f": record 1 (byte {mmapds.open(path).where(1).offset})"
    messages(path, {"decode": "torch"}, ["ds[1]", *LATE, *LOADERS], place)
    messages(path, {"fields": {"text": "str"}, "on_error": "skip"}, ["ds[1]", *LATE], place)


@limits_memory
def test_so_is_one_of_a_compressed_source(tmp_path, lines):
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(one_frame(lines.read_bytes()))
    mmapds.build(path)
    messages(path, {"access": "sequential"}, ["ds[1]"])


@limits_memory
def test_a_batch_without_room_for_its_records_is_refused_before_they_are_read(lines):
    assert messages(lines, {}, ["ds.take([1, 1])", "ds.take([0, 1])"])["grown"] < LARGE // 4


def no_room(record):
    if b"1" in record:
        raise MemoryError
    return record


def no_room_for_orjson(record):
    if b"1" in record:
        raise orjson.JSONDecodeError("Not enough memory to allocate buffer for parsing", "", 0)
    return record


def no_room_for_a_result(record):
    try:
        return no_room(record)
    except MemoryError as error:
        raise SystemError("<built-in function loads> returned a result with an exception set") from error


NO_ROOM = [(no_room, "raise"), (no_room_for_orjson, "skip"), (no_room_for_a_result, "skip")]
READERS = {
    "ds[1]": lambda ds: ds[1],
    "view": lambda ds: ds[1:][0],
    "take": lambda ds: ds.take([0, 1]),
    "take_kept": lambda ds: ds.take_kept([0, 1]),
    "list": list,
    "stream": lambda ds: list(ds.stream(shuffle=False)),
    "loader": lambda ds: list(mmapds.DataLoader(ds, batch_size=2, collate_fn=list)),
}


@pytest.mark.parametrize(("decode", "on_error"), NO_ROOM)
def test_so_is_one_that_memory_has_no_room_to_decode(write, decode, on_error):
    path = write([{"n": n} for n in range(3)])
    ds = mmapds.open(path, build=True, decode=decode, on_error=on_error)
    for read in READERS.values():
        with pytest.raises(MemoryError) as refused:
            read(ds)
        check(str(refused.value))
        assert str(refused.value).startswith(f"{path}:2 (byte 9): expected room in memory for decoding a record of ")
    assert not ds.skipped


@pytest.mark.parametrize("blank", [b"", b"\n"])
@pytest.mark.parametrize("suffix", ["gz", "zst"])
def test_a_block_that_memory_has_no_room_for_names_the_record(tmp_path, monkeypatch, suffix, blank):
    """Its line too, unless that must be counted, as a blank line makes lines others than records."""

    def without_room(*_):
        raise MemoryError("Unable to allocate output buffer.")

    path = tmp_path / f"a.jsonl.{suffix}"
    path.write_bytes({"gz": gzip.compress, "zst": one_frame}[suffix](b'{"n": 0}\n' + blank + b'{"n": 1}\n'))
    ds = mmapds.open(path, build=True)
    monkeypatch.setattr(BlockReader, "blocks", without_room)
    monkeypatch.setattr(catalog, "line_number", without_room)
    place = f"{path}: record 1 (byte 10)" if blank else f"{path}:2 (byte 9)"
    for read in (lambda: ds[1], lambda: ds.take([1]), lambda: ds.raw(1)):
        with pytest.raises(MemoryError) as refused:
            read()
        check(str(refused.value))
        assert str(refused.value).startswith(f"{place}: expected room in memory for a record of ")


# ---- `access=` ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("access", "flag"), [("auto", "rr"), ("random", "rr"), ("sequential", "sr")])
def test_maps_are_advised_of_how_they_will_be_read(write, access, flag):
    """The kernel lists "rr" for a map that is read at random and "sr" for one that is read in order: proc(5)."""
    path = os.path.realpath(write([{"id": number} for number in range(100)]))
    ds = mmapds.open(path, access=access, build=True)
    assert ds[0] == {"id": 0}
    maps = re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text(), flags=re.MULTILINE)
    for mapped in (path, f"{path}.mmx"):
        (found,) = [each for each in maps if each.partition("\n")[0].endswith(f" {mapped}")]
        assert {"rr", "sr"} & set(found.partition("VmFlags:")[2].split()) == {flag}


WAITS = """
import mmapds, resource, sys
ds = mmapds.open(sys.argv[1], decode="bytes", access=sys.argv[2])
ds[0]
before = resource.getrusage(resource.RUSAGE_SELF).ru_majflt
for k in range(len(ds)):
    ds[k]
print(resource.getrusage(resource.RUSAGE_SELF).ru_majflt - before)
"""


def waits(path, access):
    """How often a new process waits for the disk while it reads all of a file, in order, from a cold start."""
    with open(path, "rb") as file:
        os.fsync(file)
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return int(run("-c", WAITS, path, access, check=True).stdout)


def test_reads_in_file_order_read_ahead(tmp_path):
    """The payloads of framed records do not touch each other, but their order is that of the file all the same."""
    path = tmp_path / "a.tfrecord"
    write_tfrecords(path, ({"text": (bytes([k % 255]) * 500, "byte")} for k in range(8000)))
    mmapds.build(path)
    random = waits(path, "random")
    if random < 500:
        pytest.skip(f"pages of this file system stay in memory: {random} waits")
    assert waits(path, "auto") < random / 5
