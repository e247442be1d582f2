"""How maps are advised, and what is read ahead: `access=` of `mmapds.open`."""

import os
import re
import sys
from pathlib import Path

import pytest

import mmapds
from tests.support.commands import run
from tests.support.samples import write_tfrecords


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
@pytest.mark.parametrize(("access", "flag"), [("auto", "rr"), ("random", "rr"), ("sequential", "sr")])
def test_maps_are_advised_of_how_they_will_be_read(write, access, flag):
    """The kernel lists "rr" for a map that is read at random and "sr" for one that is read in order: proc(5)."""
    path = write([{"id": number} for number in range(100)])
    ds = mmapds.open(path, access=access, build=True)
    assert ds[0] == {"id": 0}
    flags, name = {}, ""
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            name = line.split(maxsplit=5)[5] if line.count(" ") > 5 else ""
        elif line.startswith("VmFlags:"):
            flags.setdefault(name, []).extend(line.split()[1:])
    for mapped in (path, f"{path}.mmx"):
        assert flag in flags[os.path.realpath(mapped)]
        assert {"rr", "sr"} & set(flags[os.path.realpath(mapped)]) == {flag}


@pytest.mark.skipif(sys.platform != "linux", reason="drops pages from memory")
@pytest.mark.parametrize("name", ["jsonl", "fixed", "tfrecord"])
def test_reads_in_file_order_read_ahead(tmp_path, name):
    """The payloads of framed records do not touch each other, but their order is that of the file all the same."""
    path = tmp_path / f"a.{name}"
    if name == "tfrecord":
        write_tfrecords(path, ({"text": (bytes([k % 255]) * 500, "byte")} for k in range(8000)))
    else:
        path.write_bytes(b'{"text": "%s"}\n' % (b"x" * 495) * 8000)
    options = {"format": "fixed", "record_bytes": 100} if name == "fixed" else {}
    mmapds.build(path, **options)

    def waits(access):
        """How often a new process waits for the disk while it reads all of the file, in order, from a cold start."""
        with open(path, "rb") as file:
            os.fsync(file)
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        read = "import mmapds, resource, sys; ds = mmapds.open(sys.argv[1], decode='bytes', access=sys.argv[2]); ds[0]"
        count = "before = {0}; [ds[k] for k in range(len(ds))]; print({0} - before)"
        usage = "resource.getrusage(resource.RUSAGE_SELF).ru_majflt"
        return int(run("-c", f"{read}; {count.format(usage)}", path, access, check=True).stdout)

    random = waits("random")
    if random < 500:
        pytest.skip(f"pages of this file system stay in memory: {random} waits")
    assert waits("auto") < random / 5
