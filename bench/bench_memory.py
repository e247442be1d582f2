"""10^8 records: what opening takes, and what a DataLoader worker holds."""

import statistics
import subprocess
import sys

import pytest

import mmapds
from bench.support.data import DATA, sparse_jsonl
from bench.support.memory import READS, WORKERS, worker_memory

RECORDS = 10**8
SIZE = 16


def sparse():
    return sparse_jsonl(DATA / "sparse.jsonl", RECORDS, SIZE)


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
