"""JSON Lines in zstd and gzip against the tools of these names: indexing, shuffled epochs, random records, memory of a
worker.

They must be installed: apt-get install zstd gzip. bench_seekable.py has what writing such files costs.
"""

import os
import random
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

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
READS = 10_000


def whole(source, path):
    """One frame, as the tool writes it."""
    subprocess.run(["zstd", "-q", "-3", source, "-o", path], check=True)


def seekable(source, path):
    mmapds.seekable(source, path, index=False)


def one_member(source, path):
    """One member, as the tool writes it."""
    with open(path, "wb") as out:
        subprocess.run(["gzip", "-6c", source], stdout=out, check=True)


class Kind(NamedTuple):
    """What a compressed file is."""

    tool: str
    suffix: str
    write: Callable[..., None]
    index: str
    """The most that indexing may take, against the tool."""
    epoch: str
    """The same of an epoch."""
    record: str
    """The most that a random record may take."""


KINDS = {
    "one frame": Kind("zstd", ".zst", whole, "<= 1.43x", "", ""),
    "frames of 256 KiB": Kind("zstd", ".zst", seekable, "<= 1.43x", "<= 1.25x", "<= 0.35 ms"),
    "one member of gzip": Kind("gzip", ".gz", one_member, "<= 0.67x", "", ""),
}
RANDOM = ["frames of 256 KiB", "one member of gzip"]
"""Those that are read in any order."""


def compressed(kind):
    """Such a file, made once."""
    tool, suffix, write = KINDS[kind][:3]
    assert shutil.which(tool), f"run: apt-get install {tool}"
    source = text("source code", SIZE)
    path = source.with_name(f"{source.stem}.{kind.replace(' ', '-')}.jsonl{suffix}")
    if not path.exists():
        part = path.with_name(f"{path.stem}.part{suffix}")
        write(source, part)
        part.rename(path)
    return str(path)


@pytest.fixture(scope="module", params=RANDOM)
def packed(request):
    """A file that is read in any order, which has an index."""
    path = compressed(request.param)
    mmapds.build(path)
    return request.param, path


def decode(tool, path):
    """Run `zstd -dc` or `gzip -dc`, to nowhere."""
    with open(os.devnull, "wb") as nowhere:
        subprocess.run([tool, "-dcq", path], stdout=nowhere, check=True)


def decode_and_count(tool, path):
    """Run the same, and `wc -l`."""
    return int(subprocess.run(f"{tool} -dcq '{path}' | wc -l", shell=True, capture_output=True, check=True).stdout)


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
    path, tool = compressed(kind), KINDS[kind].tool
    index(path)
    assert Index(f"{path}.mmx").records == decode_and_count(tool, path)
    what = f"index 512 MB of source code in {kind}, the whole command"
    ours, rival = (lambda: index(path)), (lambda: decode_and_count(tool, path))
    in_turn(what, ours, f"`{tool} -dc \\| wc -l`", rival, KINDS[kind].index, rounds=rounds(kind))


def rounds(kind):
    """How often things are compared: of gzip, each takes several seconds."""
    return 5 if KINDS[kind].tool == "zstd" else 3


def epoch(ds):
    """Read a shuffled epoch in chunks of blocks; return its bytes.

    It is the same one each time, so that the cache, which has the last eighth of it, is of no use to the next.
    """
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


@pytest.mark.parametrize("which", ["a shuffled epoch", "opening and the first shuffled epoch"])
def test_shuffled_epoch(in_turn, packed, cores, which):
    kind, path = packed
    tool, size = KINDS[kind].tool, os.path.getsize(text("source code", SIZE))
    ds = mmapds.open(path, decode="bytes")
    assert epoch(ds) == size - count_lines(text("source code", SIZE))
    what = f"{which} of 512 MB in {kind}, in chunks of blocks, batches of {BATCH}, {cores}"
    ours = partial(epoch, ds) if which.startswith("a ") else lambda: epoch(mmapds.open(path, decode="bytes"))
    in_turn(what, ours, f"`{tool} -dc`", lambda: decode(tool, path), KINDS[kind].epoch, rounds(kind))


def test_random_records(row, packed, cores):
    kind, path = packed

    generator = random.Random(0)

    def batch():
        """Read one, in milliseconds a record: of time, and of all cores."""
        ds = mmapds.open(path, decode="bytes")
        rows = [generator.randrange(len(ds)) for _ in range(BATCH)]
        ds.take(rows[:1])
        begin = time.process_time()
        seconds = timed(lambda: ds.take(rows))
        return seconds * 1e3 / BATCH, (time.process_time() - begin) * 1e3 / BATCH

    found = list(zip(*(batch() for _ in range(3 * rounds(kind))), strict=True))
    what = f"a random record of {kind}, in batches of {BATCH}, its block not in the cache, {cores}"
    row(what, "", milliseconds(found[0]), KINDS[kind].record)
    row("time of all cores for that", "", milliseconds(found[1]), KINDS[kind].record)


def milliseconds(found):
    return f"{statistics.median(found):.2f} ms ({min(found):.2f} to {max(found):.2f})"


def test_worker(row, packed):
    """The worker is spawned, so that it has no memory of this process."""
    kind, path = packed
    plain = str(text("source code", SIZE))
    mmapds.build(plain)
    records, memory = len(mmapds.open(path)), []
    for source in (path, plain):
        ds = mmapds.open(source, decode="bytes", block_cache=CACHE)
        memory += worker_memory(ds, records, "spawn", workers=1, reads=READS)
    ours, rival = memory
    row(
        f"anonymous memory of a worker after {READS:,} random reads of {kind}, less the cache of {CACHE >> 20} MiB",
        "the same over the plain file",
        f"{(ours - rival - CACHE) / 1e6:+.2f} MB (of {rival / 1e6:.0f} MB)",
        "<= +2 MB",
    )
