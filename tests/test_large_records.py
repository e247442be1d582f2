"""Records that memory has no room for, which errors name."""

import json
import sys

import numpy as np
import orjson
import pytest

import mmapds
from tests.support.array_files import store
from tests.support.commands import run
from tests.support.compressed import one_frame
from tests.support.messages import check
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
    [{}, {"io": "pread", "decode": "text", "on_error": "skip"}, {"fields": {"n": "int32"}, "on_error": "skip"}],
)
def test_a_record_that_memory_has_no_room_for_is_named(lines, options):
    one, *_, together = messages(lines, options, READS)["found"]
    assert "for a record of 268435" in one
    assert "for 3 records of 268435" in together


LATE = ["ds.take([1])[0]", "ds.take([0, 1])[-1]", "list(ds.take([0, 1, 2]))", "ds.take([0, 1]).values('text')"]
LATE += ["ds.map(len).take([0, 1])", "list(mmapds.zip(a=ds).take([0, 1]))"]
"""Reads whose samples are made when they are asked for."""
LOADERS = ["list(ds.stream(shuffle=False))", "list(mmapds.DataLoader(ds, batch_size=2, collate_fn=list))"]
"""The same, where torch is loaded before room is short."""


@limits_memory
def test_so_is_one_of_named_arrays_whose_sample_is_made_late(tmp_path):
    path = store(tmp_path, ({"x": np.zeros(2, np.float32), "text": "b" * size} for size in (1, LARGE // 2, 1)))
    place = f": record 1 (byte {mmapds.open(path).where(1).offset})"
    messages(path, {"decode": "torch"}, ["ds[1]", *LATE, *LOADERS], place)
    messages(path, {"fields": {"text": "str"}, "on_error": "skip"}, ["ds[1]", *LATE], place)


@limits_memory
@pytest.mark.filterwarnings("ignore:.*a block of over 8 MiB is read in file order only")
def test_so_is_one_of_a_compressed_source(tmp_path, lines):
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(one_frame(lines.read_bytes()))
    mmapds.build(path)
    messages(path, {"access": "sequential"}, ["ds[1]"])


@limits_memory
def test_a_batch_without_room_for_its_records_is_refused_before_they_are_read(lines):
    assert messages(lines, {}, ["ds.take([1, 1])", "ds.take([0, 1])"])["grown"] < LARGE // 4


NO_ROOM = {
    "memory": MemoryError(),
    "orjson": orjson.JSONDecodeError("Not enough memory to allocate buffer for parsing", "", 0),
    "a result": SystemError("<built-in function loads> returned a result with an exception set"),
}


@pytest.mark.parametrize("on_error", ["raise", "skip"])
@pytest.mark.parametrize("lack", NO_ROOM)
def test_so_is_one_that_memory_has_no_room_to_decode(write, lack, on_error):
    def decode(record):
        if b"1" in record:
            raise NO_ROOM[lack] from MemoryError() if lack == "a result" else None
        return record

    ds = mmapds.open(write([{"n": n} for n in range(3)]), build=True, decode=decode, on_error=on_error)
    for read in ("ds[1]", "ds[1:][0]", "ds.take_kept([0, 1])", "list(ds)", *LOADERS):
        with pytest.raises(MemoryError) as refused:
            eval(read, {"mmapds": mmapds, "ds": ds})
        check(str(refused.value))
        place = f"{ds.sources[0]}:2 (byte 9)"
        assert str(refused.value).startswith(f"{place}: expected room in memory for decoding a record of ")
    assert not ds.skipped
