"""Everything that writes, where room ends at any byte: by a limit of the size of files, or in a small file system.

It succeeds, or raises an error of mmapds's that says so. The file that it replaces is the old one or the new one,
whole, and nothing else is left.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import mmapds
from mmapds.arrays.array_file import ArrayFile, Head
from mmapds.convert import convert
from mmapds.storage import current
from mmapds.storage.index_file import Index
from mmapds.storage.sources import Roots
from tests.support.engines import Inline, small_tasks
from tests.support.files import ROOT, largest_file
from tests.support.index_file import verify
from tests.support.tars import archive, members_of
from tests.support.torture import HANGS, is_refused, repeat

LIMITS = 12
"""In a case, of one operation."""
RECORDS = 3000


def write_array_file(folder):
    with mmapds.Writer(folder / "out.mma", {"n": "int64", "x": ("float32", (None,))}) as writer:
        for number in range(RECORDS // 10):
            writer.write({"n": number, "x": np.ones(number % 50, np.float32)})


OPERATIONS = {
    "index": lambda folder: mmapds.build(folder / "a.jsonl", out=folder / "out.mmx", force=True),
    "columns": lambda folder: mmapds.build(
        folder / "a.jsonl", out=folder / "out.mmx", length="n", columns={"size": "bytes()"}, force=True
    ),
    "keys": lambda folder: mmapds.build(folder / "a.tar", out=folder / "out.mmx", force=True),
    "fixed": lambda folder: mmapds.build(
        folder / "a.jsonl", out=folder / "out.mmx", format="fixed", record_bytes=1, length="bytes()", force=True
    ),
    "add_column": lambda folder: mmapds.add_column(folder / "b.jsonl", "c", np.arange(RECORDS)),
    "writer": write_array_file,
    "convert": lambda folder: convert(folder / "b.jsonl", folder / "out.mma", force=True),
    "parts of an index": lambda folder: mmapds.build(
        [folder / "a.jsonl", folder / "b.jsonl"],
        out=folder / "out.mmx",
        length="n",
        force=True,
        executor=Inline(),
        parts=folder / PARTS,
    ),
    "parts of arrays": lambda folder: convert(
        [folder / "a.jsonl", folder / "b.jsonl"],
        folder / "out.mma",
        force=True,
        schema={"n": "int64", "s": "str"},
        executor=Inline(),
        parts=folder / PARTS,
    ),
    "order_cache": lambda folder: list(
        mmapds.TokenBudgetBatchSampler(np.arange(1, RECORDS), 10**6, order_cache=str(folder / "out.order"))
    ),
}


PARTS = "parts"
"""The directory in which tasks leave what they wrote."""


def make_inputs(folder):
    """Write what the operations read."""
    for name in ("a.jsonl", "b.jsonl"):
        (folder / name).write_bytes(b"".join(b'{"n":%d,"s":"%s"}\n' % (n % 97, b"x" * (n % 7)) for n in range(RECORDS)))
    (folder / "a.tar").write_bytes(archive(members_of(30)))
    mmapds.build(folder / "b.jsonl")


def contents(folder):
    """What lies in a folder: name to size and time, as a file that is replaced has another time."""
    files = (each for each in folder.iterdir() if each.name != PARTS)
    return {each.name: (each.stat().st_size, each.stat().st_mtime_ns) for each in files}


def check(folder, operation, before, refused):
    """Check what is left after an operation."""
    after = contents(folder)
    is_of_arrays = operation in ("writer", "convert", "parts of arrays")
    made = {"add_column": {"b.jsonl.mmx"}, "order_cache": {"out.order"}}
    wanted = {"out.mma", "out.mma.mmx"} if is_of_arrays else made.get(operation, {"out.mmx"})
    assert after.keys() - before.keys() <= wanted, f"left: {sorted(after.keys() - before.keys() - wanted)}"
    check_parts(folder / PARTS, refused)
    if refused and not is_of_arrays:  # of these, the array file may be there without its index
        assert after == before, "it was changed, though an error said otherwise"
    with tempfile.TemporaryDirectory(dir="/var/tmp") as room:  # to verify an index is to write another
        copied = shutil.copytree(folder, Path(room, "copied"))
        for name in after:
            if name.endswith(".mmx") and not is_refused(lambda name=name: current.check([Index(str(copied / name))])):
                verify(Index(str(copied / name)))


def check_parts(folder, refused):
    """Check that parts are whole, and that none is left but by an error."""
    parts = list(folder.iterdir()) if folder.exists() else []
    assert refused or not parts, f"left: {parts}"
    for path in parts:
        if path.suffix == ".mma":
            ArrayFile(Head(str(path))).check_records()
        else:
            verify(Index(str(path), Roots(folder.parent)))


def by_limit(random, folder):
    """Do one thing with many limits."""
    operation = random.choice(sorted(OPERATIONS))
    make_inputs(folder)
    if random.random() < 0.5:
        OPERATIONS[operation](folder)
    for _ in range(LIMITS):
        limit = random.choice([random.randrange(200), random.randrange(5000), random.randrange(200_000)])
        before = contents(folder)

        def act(limit=limit):
            with largest_file(limit), small_tasks(30_000):
                OPERATIONS[operation](folder)

        try:
            check(folder, operation, before, is_refused(act))
        except Exception as error:
            raise AssertionError(f"{operation} with files of up to {limit} bytes: {error!r}") from error


def in_small_file_system(random, folder):
    """Do one thing in a tmpfs, if this machine lets one mount it; else do nothing."""
    namespace = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]
    if shutil.which("unshare") is None or subprocess.run([*namespace, "true"], check=False).returncode != 0:
        return
    pages = random.choice([random.randrange(20, 60), random.randrange(60, 300)])
    script = f'mount -t tmpfs -o size={4 * pages}k tmpfs "$0" && exec "$@"'
    operation = random.choice(sorted(OPERATIONS))
    command = [sys.executable, "-m", "tests.torture.full_disks", operation, str(folder)]
    ran = subprocess.run(
        [*namespace, "sh", "-c", script, str(folder), *command],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=HANGS,
    )  # fmt: skip
    assert ran.returncode == 0, f"{operation} in {pages} pages: status {ran.returncode}: {ran.stderr[-2000:]}"


def main(operation, folder):
    """Do one thing in a folder that fills up; the process fails where something is wrong."""
    try:
        make_inputs(folder)
    except (OSError, mmapds.Error):
        return  # no room for these already
    before = contents(folder)
    with small_tasks(30_000):
        check(folder, operation, before, is_refused(lambda: OPERATIONS[operation](folder)))


def one(random):
    with tempfile.TemporaryDirectory() as folder:
        (in_small_file_system if random.random() < 0.2 else by_limit)(random, Path(folder))


def run(seconds, seed):
    """Fill disks until the time is over; see tests/support/torture.py."""
    return f"{repeat(one, seconds, seed):,} rounds with little room: the old file or the new one, and nothing else"


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
