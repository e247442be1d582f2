"""Merging indexes against `cat` of the same files and a flush; indexing the end of what grew against indexing all."""

import os
import shutil
import subprocess

import numpy as np
import pytest

import mmapds
from bench.support.data import DATA, GB, jsonl
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
def test_append(compare, size):
    source = jsonl(size)
    grown = DATA / "grown.jsonl"
    shutil.copy(source, grown)
    whole = os.path.getsize(grown)
    with open(grown, "rb") as file:
        file.seek(whole * 99 // 100)
        file.readline()
        begin = file.tell()
        rest = file.read()
    before = f"{grown}.before.mmx"
    with open(grown, "r+b") as file:
        file.truncate(begin)
    mmapds.build(grown, length="chars(target)")
    os.replace(f"{grown}.mmx", before)
    with open(grown, "ab") as file:
        file.write(rest)

    def append():
        os.replace(before, f"{grown}.mmx")
        os.link(f"{grown}.mmx", before)  # which the build leaves, as it writes another file
        mmapds.build(grown)

    append()
    assert Index(f"{grown}.mmx").sources[0].size == whole
    compare(
        f"index 1 % that was appended to {size // GB} GB of JSONL with lengths",
        append,
        "index all",
        lambda: mmapds.build(grown, force=True),
        "<= 0.03x",
        rounds=5,
    )
    for path in (grown, before, f"{grown}.mmx"):
        os.unlink(path)
