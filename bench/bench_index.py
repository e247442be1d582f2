"""Indexing against `wc -l`: the whole command, interpreter start and fsync included, page cache warm."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import DATA, anonymous, jsonl

from mmapds.storage.index_file import Index

GB = 10**9


def index(path, *options):
    forget(path)
    subprocess.run([sys.executable, "-m", "mmapds.index", "--quiet", "--force", *options, path], check=True)


def forget(path):
    """Remove the index of a source: one that is there would have its columns measured again."""
    Path(f"{path}.mmx").unlink(missing_ok=True)


def count_lines(path):
    return int(subprocess.run(["wc", "-l", path], capture_output=True, check=True).stdout.split()[0])


@pytest.mark.parametrize("size", [GB, 4 * GB, 8 * GB], ids=["1GB", "4GB", "8GB"])
def test_whole_command(compare, size):
    path = str(jsonl(size))
    index(path)
    assert Index(path + ".mmx").records == count_lines(path)
    compare(
        f"index {size // GB} GB of JSONL",
        lambda: index(path),
        "wc -l",
        lambda: count_lines(path),
        "<= 1.3x",
        rounds=7,
    )


def peak_anonymous(*arguments):
    """The most anonymous memory that an indexing process is seen to have, sampled every few milliseconds."""
    forget(arguments[0])
    process = subprocess.Popen([sys.executable, "-m", "mmapds.index", "--quiet", "--force", *arguments])
    peak = 0
    while process.poll() is None:
        try:
            peak = max(peak, anonymous(process.pid))
        except (FileNotFoundError, ProcessLookupError, RuntimeError):
            break
        time.sleep(0.002)
    assert process.wait() == 0
    return peak


def test_peak_memory(row):
    row("peak anonymous memory, 8 GB of JSONL", "", f"{peak_anonymous(str(jsonl(8 * GB))) / 1e6:.0f} MB", "<= 150 MB")
    densest = DATA / "densest.jsonl"
    densest.write_bytes(b"1\n" * (GB // 4))
    peak = max(peak_anonymous(str(densest)), peak_anonymous(str(densest), "--workers", "64"))
    row("peak anonymous memory, two-byte records, 2 and 64 workers", "", f"{peak / 1e6:.0f} MB", "<= 150 MB")
    densest.unlink()
