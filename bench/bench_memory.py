"""10^8 records: what opening takes, and what a DataLoader worker holds."""

import os
import statistics
import subprocess
import sys

import numpy as np
import pytest

import mmapds
from bench.support.data import DATA
from bench.support.memory import READS, WORKERS, worker_memory
from mmapds.index.write import BoundsWriter
from mmapds.storage.sections import IndexedSource
from mmapds.storage.writer import IndexWriter

RECORDS = 10**8
SIZE = 16


def sparse():
    """An index of 10^8 records over a sparse source."""
    path = DATA / "sparse.jsonl"
    if not path.exists():
        DATA.mkdir(parents=True, exist_ok=True)
        path.touch()
        os.truncate(path, RECORDS * SIZE)
        with IndexWriter(f"{path}.mmx") as writer:
            bounds = BoundsWriter(writer)
            for begin in range(0, RECORDS, 10**6):
                bounds.append(memoryview(np.arange(begin, begin + 10**6, dtype=np.uint64) * SIZE))
            (width, *_), size = bounds.finish(RECORDS * SIZE), RECORDS * SIZE
            source = IndexedSource(
                path.name, size, path.stat().st_mtime_ns, "", RECORDS, RECORDS, SIZE, SIZE, 0, 0, width=width
            )
            writer.commit({"format": "jsonl", "sources": [source.describe()]}, RECORDS)
    return str(path)


def test_open(row):
    path = sparse()
    assert len(mmapds.open(path)) == RECORDS
    code = f"""
import time, mmapds
mmapds.open
begin = time.perf_counter()
mmapds.open({path!r})
print(time.perf_counter() - begin)
"""
    first = [
        float(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout) for _ in range(9)
    ]
    row("first `open` of 10^8 records in a process", "", f"{statistics.median(first) * 1e3:.2f} ms", "<= 2 ms")


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers(row, method):
    ds = mmapds.open(sparse(), decode="bytes")
    plain = worker_memory(range(RECORDS), RECORDS, method)
    ours = worker_memory(ds, RECORDS, method)
    difference = max(ours) - max(plain)
    row(
        f"anonymous memory of a worker after {READS:,} reads in {WORKERS} workers, {method}",
        "the same over range(10**8)",
        f"{difference / 1e6:+.2f} MB (of {max(plain) / 1e6:.0f} MB)",
        "within 1 MB",
    )
