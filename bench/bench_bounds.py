"""Bounds in groups of a cache line, against bounds of 8 bytes a record: a commit that had these."""

import pytest

from bench.support.commits import FOLDER, both, ratio
from mmapds.storage.index_file import Index

BEFORE = "daf5ff238931"
TARGETS = {
    "`ds[i]`, raw bytes": "<= 1.03x",
    "`take` of 256, raw bytes": "<= 1.03x",
    "`ds[i]`, lines of 340 bytes": "<= 1.03x",
    "`take` of 256, lines of 340 bytes": "<= 1.03x",
    "`ds[i]`, lines of 340 bytes, cold": "<= 1.03x",
    "`take` of 256, lines of 340 bytes, cold": "<= 1.03x",
    "index JSON lines": "",
    "index lines of 8 bytes": "<= 0.6x",
}
ROUNDS = 15


@pytest.fixture(scope="module")
def builds():
    with both(BEFORE) as started:
        yield started


@pytest.mark.usefixtures("builds")
def test_size(row):
    sizes = [(FOLDER / f"{name}-lines.mmx").stat().st_size for name in ("ours", BEFORE)]
    ours, theirs = (size / Index(str(FOLDER / "ours-lines.mmx")).records for size in sizes)
    row("bytes a record in the index, lines of 340 bytes", f"commit {BEFORE}", f"{ours:.2f} to {theirs:.2f}", "<= 2.7")


@pytest.mark.parametrize("path", TARGETS)
def test_time(row, builds, path):
    row(path, f"commit {BEFORE}", ratio(*builds, path, ROUNDS), TARGETS[path])
