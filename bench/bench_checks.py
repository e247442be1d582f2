"""What it costs to compare sources with their index, to hash them, and to keep the index of a copy."""

import os
import shutil
import warnings
from pathlib import Path

import pytest
from xxhash import xxh3_128

import mmapds
from bench.support.data import DATA, GB, drop_cached, jsonl
from bench.support.indexing import count_lines
from bench.support.timing import timed
from mmapds.storage.current import fingerprint
from mmapds.storage.index_file import Index

SOURCES = 1000


@pytest.fixture(scope="module")
def shards():
    """One index of a thousand sources of 300 KB, of which a fingerprint is a sample."""
    directory = DATA / "checks"
    directory.mkdir(parents=True, exist_ok=True)
    paths = [str(directory / f"{number}.jsonl") for number in range(SOURCES)]
    for number, path in enumerate(paths):
        Path(path).write_bytes(b'{"n":%d}\n' % number * (300_000 // len(b'{"n":%d}\n' % number)))
    out = str(directory / "all.mmx")
    mmapds.build(paths, out=out, hash=True, force=True)
    yield out, paths
    for path in [*paths, out]:
        os.unlink(path)


@pytest.fixture(scope="module")
def large():
    """A copy of 1 GB of JSONL, as its time is changed; and no index."""
    path = str(DATA / "checks.jsonl")
    shutil.copyfile(jsonl(GB), path)
    yield path
    os.unlink(path)
    os.unlink(f"{path}.mmx")


def a_source(seconds):
    return f"{seconds / SOURCES * 1e6:.0f} us a source"


@pytest.mark.parametrize("check", ["none", "stat", "sample", "full"])
def test_open(row, shards, check):
    out, _ = shards
    assert len(mmapds.open(out, check=check)) == Index(out).records
    seconds = min(timed(lambda: mmapds.open(out, check=check)) for _ in range(9))
    row(
        f"open 1,000 sources of 300 KB, check={check!r}, warm",
        "",
        a_source(seconds),
        "<= 2 ms" if check == "sample" else "",
    )


def test_open_touched(row, shards):
    out, paths = shards
    for path in paths:
        os.utime(path, ns=(5, 5))

    def opened():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            mmapds.open(out)

    row("the same, all sources touched, check='stat'", "", a_source(min(timed(opened) for _ in range(9))), "<= 2 ms")

    def cold():
        drop_cached(*paths)
        return timed(opened)

    row("the same, cold", "", a_source(min(cold() for _ in range(3))), "")


def test_fingerprint_of_a_large_source(row, large):
    path = large
    mmapds.build(path)
    assert len(fingerprint(path).hex) == 16
    row(
        "fingerprint of 1 GB, warm",
        "",
        f"{min(timed(lambda: fingerprint(path)) for _ in range(99)) * 1e6:.0f} us",
        "<= 2 ms",
    )


@pytest.mark.parametrize("hashed", [True, False], ids=["hash", "fingerprint"])
def test_index(compare, large, hashed):
    def ours():
        mmapds.build(large, hash=hashed, force=True)

    if os.path.exists(f"{large}.mmx"):
        os.unlink(f"{large}.mmx")  # which would say whether to hash
    ours()
    found = xxh3_128(Path(large).read_bytes()).hexdigest() if hashed else ""
    assert Index(f"{large}.mmx").sources[0].xxh3_128 == found
    what = f"index 1 GB of JSONL, hash={hashed}"
    compare(what, ours, "wc -l", lambda: count_lines(large), "", rounds=5)


@pytest.mark.parametrize("how", ["a scan", "its hash"])
def test_touched(compare, large, how):
    if how == "its hash":
        mmapds.build(large, hash=True)
    times = iter(range(10**18, 2 * 10**18, 10**9))

    def touched():
        time = next(times)
        os.utime(large, ns=(time, time))
        mmapds.build(large)
        assert Index(f"{large}.mmx").sources[0].mtime_ns == time

    compare(f"build after 1 GB of JSONL was touched: {how}", touched, "wc -l", lambda: count_lines(large), "", rounds=5)
