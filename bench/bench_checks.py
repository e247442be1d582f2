"""What it costs to compare sources with their index, to hash them, and to keep the index of a copy."""

import os
import warnings
from pathlib import Path

import pytest
from xxhash import xxh3_128

import mmapds
from bench.support.data import DATA, GB, drop_cached, jsonl
from bench.support.indexing import count_lines
from bench.support.timing import timed
from mmapds.storage.fingerprints import fingerprint
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


def test_fingerprint_of_a_large_source(row):
    path = str(jsonl(GB))
    count_lines(path)
    assert len(fingerprint(path).hex) == 16
    row(
        "fingerprint of 1 GB, warm",
        "",
        f"{min(timed(lambda: fingerprint(path)) for _ in range(99)) * 1e6:.0f} us",
        "<= 2 ms",
    )


def test_hash(compare):
    path = str(jsonl(GB))
    mmapds.build(path, hash=True, force=True)
    assert Index(f"{path}.mmx").sources[0].xxh3_128 == xxh3_128(Path(path).read_bytes()).hexdigest()

    def hashed():
        mmapds.build(path, hash=True, force=True)

    def plain():
        mmapds.build(path, force=True)

    os.unlink(f"{path}.mmx")
    compare("index 1 GB of JSONL with --hash", hashed, "wc -l", lambda: count_lines(path), "")
    os.unlink(f"{path}.mmx")
    compare("index 1 GB of JSONL, fingerprint alone", plain, "wc -l", lambda: count_lines(path), "")


@pytest.mark.parametrize("hashed", [False, True], ids=["scanned", "hashed"])
def test_touched(compare, hashed):
    path = str(jsonl(GB))
    mmapds.build(path, hash=hashed, force=True)
    times = iter(range(10**9, 10**10, 10**6))

    def touched():
        time = next(times)
        os.utime(path, ns=(time, time))
        mmapds.build(path)

    how = "by its hash" if hashed else "by a scan"
    compare(
        f"build with 1 GB of JSONL that was touched: settled {how}", touched, "wc -l", lambda: count_lines(path), ""
    )
    os.unlink(f"{path}.mmx")
