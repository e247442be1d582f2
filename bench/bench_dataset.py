"""Reading, against what the same records cost when they lie in RAM as a list; and cold, against one page at a time."""

import random

import orjson
import pytest

import mmapds
from bench.support.data import drop_cached, jsonl
from bench.support.timing import timed

READS = 200_000
BATCH = 256


@pytest.fixture(scope="module")
def ds():
    return mmapds.open(jsonl(340 * 10**6), build=True)


@pytest.fixture(scope="module")
def lines(ds):
    return [ds.raw(i) for i in range(len(ds))]


@pytest.fixture(scope="module")
def order(ds):
    return random.Random(0).choices(range(len(ds)), k=READS)


def test_one_sample(compare, ds, lines, order):
    def ours():
        for i in order:
            ds[i]

    def rival():
        for i in order:
            orjson.loads(lines[i])

    assert [ds[i] for i in order[:1000]] == [orjson.loads(lines[i]) for i in order[:1000]]
    compare("`ds[i]`, random, warm", ours, "orjson.loads of a list in RAM", rival, "<= 1.25x")


def test_a_batch(compare, ds, lines, order):
    batches = [order[at : at + BATCH] for at in range(0, READS, BATCH)]

    def ours():
        for batch in batches:
            ds.take(batch)

    def rival():
        for batch in batches:
            [orjson.loads(lines[i]) for i in batch]

    assert ds.take(batches[0]) == [orjson.loads(lines[i]) for i in batches[0]]
    compare("`take` of 256, random, warm", ours, "orjson.loads of a list in RAM", rival, "<= 1.15x")


def test_raw(compare, ds, lines, order):
    def ours():
        for i in order:
            ds.raw(i)

    def rival():
        for i in order:
            bytes(memoryview(lines[i]))

    assert all(ds.raw(i) == lines[i] for i in order[:1000])
    compare("`raw(i)`, random, warm", ours, "bytes(memoryview(line)) of a list in RAM", rival, "<= 1.4x")


def seconds_a_read(path, access, reads, batch):
    """Mean time of a random read from a file that is not in the page cache."""
    drop_cached(path, path + ".mmx")
    ds = mmapds.open(path, access=access, decode="bytes")
    wanted = random.Random(reads).choices(range(len(ds)), k=reads)
    if batch == 1:
        return timed(lambda: [ds[i] for i in wanted]) / reads
    return timed(lambda: [ds.take(wanted[at : at + batch]) for at in range(0, reads, batch)]) / reads


def test_cold(row):
    path = str(jsonl(4 * 10**9))
    mmapds.build(path)
    rival = seconds_a_read(path, "sequential", 600, 1)
    for what, access, reads, batch in [
        ("one by one", "random", 3000, 1),
        (f"{BATCH} at once", "auto", 20 * BATCH, BATCH),
    ]:
        ours = seconds_a_read(path, access, reads, batch)
        row(f"cold random record, {what}", "map with the default advice", f"{ours / rival:.3f}x", "")
