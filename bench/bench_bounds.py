"""Bounds in groups of a cache line, against bounds of 8 bytes a record: a commit that had these."""

from bench.support.commits import FOLDER, ratios
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


def test_times_and_size(row):
    found = ratios(BEFORE)
    for path, target in TARGETS.items():
        row(path, f"commit {BEFORE}", found[path], target)
    sizes = [(FOLDER / f"{name}-lines.mmx").stat().st_size for name in ("ours", BEFORE)]
    ours, theirs = (size / Index(str(FOLDER / "ours-lines.mmx")).records for size in sizes)
    row("bytes a record in the index, lines of 340 bytes", f"commit {BEFORE}", f"{ours:.2f} to {theirs:.2f}", "<= 2.7")
