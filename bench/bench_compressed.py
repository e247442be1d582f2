"""JSON Lines in zstd against the tool `zstd`: indexing, shuffled epochs, random records, and a worker's memory.

It must be installed: apt-get install zstd. bench_seekable.py has what writing such files costs.
"""

import os
import random
import shutil
import statistics
import subprocess
import time

import numpy as np
import pytest

import mmapds
from bench.support.indexing import count_lines, index
from bench.support.memory import worker_memory
from bench.support.texts import text
from bench.support.timing import processor_ratios, timed
from mmapds.storage.index_file import Index

SIZE = 512_000_000
BATCH = 256
CACHE = 64 << 20


def whole(source, path):
    """One frame, as the tool writes it."""
    subprocess.run(["zstd", "-q", "-3", source, "-o", path], check=True)


def seekable(source, path):
    mmapds.seekable(source, path, index=False)


KINDS = {"one frame": whole, "frames of 256 KiB": seekable}


def compressed(kind):
    """Such a file, made once."""
    assert shutil.which("zstd"), "run: apt-get install zstd"
    source = text("source code", SIZE)
    path = source.with_name(f"{source.stem}.{kind.replace(' ', '-')}.jsonl.zst")
    if not path.exists():
        part = path.with_name(f"{path.stem}.part.zst")
        KINDS[kind](source, part)
        part.rename(path)
    return str(path)


@pytest.fixture(scope="module")
def frames():
    """A file of frames of 256 KiB, and its index."""
    path = compressed("frames of 256 KiB")
    mmapds.build(path)
    return path


def decode(path):
    """Run `zstd -dc`, to nowhere."""
    with open(os.devnull, "wb") as nowhere:
        subprocess.run(["zstd", "-dcq", path], stdout=nowhere, check=True)


def decode_and_count(*paths):
    """Run `zstd -dc | wc -l`."""
    names = " ".join(f"'{path}'" for path in paths)
    return int(subprocess.run(f"zstd -dcq {names} | wc -l", shell=True, capture_output=True, check=True).stdout)


@pytest.fixture
def in_turn(compare, row):
    """Compare seconds, and seconds of all cores, with those of a rival."""

    def in_turn(what, ours, against, rival, target, rounds=5):
        compare(what, ours, against, rival, target, rounds=rounds)
        found = processor_ratios(ours, rival, rounds)
        row("time of all cores for that", "the same", spread(found), target)

    return in_turn


def spread(found):
    return f"{statistics.median(found):.3g}x ({min(found):.3g} to {max(found):.3g})"


@pytest.mark.parametrize("kind", KINDS)
def test_indexing(in_turn, kind):
    path = compressed(kind)
    index(path)
    assert Index(f"{path}.mmx").records == decode_and_count(path)
    what = f"index 512 MB of source code in {kind}, the whole command"
    in_turn(what, lambda: index(path), "`zstd -dc \\| wc -l`", lambda: decode_and_count(path), "<= 1.43x")


def epoch(path):
    """Read a shuffled epoch in chunks of blocks, nothing in the cache; return its bytes."""
    ds = mmapds.open(path, decode="bytes")
    rows = np.fromiter(mmapds.ChunkedSampler(ds, "block", num_replicas=1, rank=0), np.int64)
    return sum(sum(map(len, ds.take(rows[at : at + BATCH]))) for at in range(0, len(rows), BATCH))


@pytest.fixture(params=["one core", "all cores"])
def cores(request):
    """What this process and those that it starts run on."""
    before = os.sched_getaffinity(0)
    if request.param == "one core":
        os.sched_setaffinity(0, {min(before)})
    yield request.param
    os.sched_setaffinity(0, before)


def test_shuffled_epoch(in_turn, frames, cores):
    size = os.path.getsize(text("source code", SIZE))
    assert epoch(frames) == size - count_lines(text("source code", SIZE))
    what = f"a shuffled epoch of 512 MB in chunks of blocks, batches of {BATCH}, {cores}"
    in_turn(what, lambda: epoch(frames), "`zstd -dc`", lambda: decode(frames), "<= 1.25x")


def test_random_records(row, frames, cores):
    generator = random.Random(0)

    def batch():
        """Read one, in milliseconds a record: of time, and of all cores."""
        ds = mmapds.open(frames, decode="bytes")
        rows = [generator.randrange(len(ds)) for _ in range(BATCH)]
        ds.take(rows[:1])
        begin = time.process_time()
        seconds = timed(lambda: ds.take(rows))
        return seconds * 1e3 / BATCH, (time.process_time() - begin) * 1e3 / BATCH

    found = list(zip(*(batch() for _ in range(15)), strict=True))
    what = f"a random record, in batches of {BATCH}, its block not in the cache, {cores}"
    row(what, "", milliseconds(found[0]), "<= 0.35 ms")
    row("time of all cores for that", "", milliseconds(found[1]), "<= 0.35 ms")


def milliseconds(found):
    return f"{statistics.median(found):.2f} ms ({min(found):.2f} to {max(found):.2f})"


def test_worker(row, frames):
    """The worker is spawned, so that it has no memory of this process."""
    plain = str(text("source code", SIZE))
    mmapds.build(plain)
    records, memory = len(mmapds.open(frames)), []
    for path in (frames, plain):
        ds = mmapds.open(path, decode="bytes", block_cache=CACHE)
        memory += worker_memory(ds, records, "spawn", workers=1, reads=10_000)
    ours, rival = memory
    row(
        f"anonymous memory of a worker after 10,000 random reads, less the cache of {CACHE >> 20} MiB",
        "the same over the plain file",
        f"{(ours - rival - CACHE) / 1e6:+.2f} MB (of {rival / 1e6:.0f} MB)",
        "<= +2 MB",
    )
