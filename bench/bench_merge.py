"""Merging indexes against `cat` of the same files and a flush; indexing the end of what grew against indexing all.

What grew has its index written again as a whole, so that it is the one of a build: nothing is faster than a copy of it.
"""

import os
import shutil
import statistics
import subprocess
from contextlib import suppress

import numpy as np
import pytest

import mmapds
from bench.support.data import DATA, GB, drop_cached, jsonl
from bench.support.timing import timed
from mmapds.storage.index_file import Index

PARTS = 100


def parts(records):
    """Indexes of 100 sources of records of one byte, with a length each; their paths."""
    directory = DATA / f"parts-{records}"
    paths = [directory / f"{number:03}.bin" for number in range(PARTS)]
    if not paths[-1].with_suffix(".bin.mmx").exists():
        directory.mkdir(parents=True, exist_ok=True)
        rng = np.random.default_rng(0)
        for path in paths:
            path.write_bytes(b"\1x" * (records // PARTS))
            mmapds.build(path, format="prefixed", prefix="varint")
            mmapds.add_column(path, "length", np.minimum(rng.lognormal(6, 1, records // PARTS), 8192).astype(np.uint32))
    return [f"{path}.mmx" for path in paths]


def copy(paths, out):
    """What merging cannot beat: the bytes of the files, in one file, on the disk."""
    subprocess.run(["sh", "-c", 'cat "$@" > "$0" && sync "$0"', out, *paths], check=True)


@pytest.mark.parametrize("records", [10**7, 10**8], ids=["10M", "100M"])
def test_merge(compare, records):
    paths = parts(records)
    out = os.path.join(os.path.dirname(paths[0]), "all.mmx")
    mmapds.merge(paths, out=out)
    assert Index(out).records == records
    compare(
        f"merge 100 indexes of {records:,} records with lengths",
        lambda: mmapds.merge(paths, out=out),
        "cat, and sync",
        lambda: copy(paths, f"{out}.copy"),
        "<= 1.5x",
        rounds=5,
    )
    os.unlink(out)
    os.unlink(f"{out}.copy")


@pytest.mark.parametrize("size", [GB, 4 * GB], ids=["1GB", "4GB"])
@pytest.mark.parametrize("options", [{}, {"length": "chars(target)"}], ids=["plain", "lengths"])
def test_append(row, size, options):
    source = jsonl(size)
    grown = DATA / "grown.jsonl"
    index, before, copied = (f"{grown}{suffix}" for suffix in (".mmx", ".before.mmx", ".copy"))
    shutil.copy(source, grown)
    with open(grown, "rb") as file:
        file.seek(os.path.getsize(grown) * 99 // 100)
        file.readline()
        begin = file.tell()
        rest = file.read()
    os.truncate(grown, begin)
    mmapds.build(grown, **options)
    os.replace(index, before)
    with open(grown, "ab") as file:
        file.write(rest)

    def build_all():
        mmapds.build(grown, force=True)

    def from_disk():
        drop_cached(grown)

    for against, rival, prepare, target in (
        ("index all, from the page cache", build_all, lambda: None, "<= 0.03x"),
        ("index all, from the disk", build_all, from_disk, "<= 0.03x"),
        ("cat of the index, and sync", lambda: copy([index], copied), lambda: None, ""),
    ):
        found = []
        for _ in range(5):
            with suppress(FileNotFoundError):
                os.unlink(index)
            os.link(before, index)  # the index of what was there before; a build writes another file
            prepare()
            ours = timed(lambda: mmapds.build(grown))
            assert Index(index).sources[0].size == os.path.getsize(grown)
            prepare()
            found.append(ours / timed(rival))
        figure = f"{statistics.median(found):.3g}x ({min(found):.3g} to {max(found):.3g})"
        what = f"index 1 % that was appended to {size // GB} GB of JSONL{' with lengths' if options else ''}"
        row(what, against, figure, target)
    for path in (grown, before, index, copied):
        os.unlink(path)
