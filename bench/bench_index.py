"""Indexing against `wc -l`: the whole command, interpreter start and fsync included, page cache warm."""

import pytest

from bench.support.data import DATA, GB, jsonl
from bench.support.indexing import count_lines, index
from bench.support.memory import peak_of_indexing
from mmapds.storage.index_file import Index


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


def test_peak_memory(row):
    row("peak anonymous memory, 8 GB of JSONL", "", f"{peak_of_indexing(str(jsonl(8 * GB))) / 1e6:.0f} MB", "<= 150 MB")
    densest = DATA / "densest.jsonl"
    densest.write_bytes(b"1\n" * (GB // 4))
    peak = max(peak_of_indexing(str(densest)), peak_of_indexing(str(densest), "--workers", "64"))
    row("peak anonymous memory, two-byte records, 2 and 64 workers", "", f"{peak / 1e6:.0f} MB", "<= 150 MB")
    densest.unlink()
