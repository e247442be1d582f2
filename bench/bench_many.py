"""A corpus in many indexes, its views, and views that are saved: what opening and sampling take, beside one index.

`MMAPDS_BENCH_RECORDS=200000000` measures the size that the targets are for; it wants 8 GB below `MMAPDS_BENCH_DIR`.
"""

import json
import os
import shutil
import struct
import subprocess
import sys

import numpy as np
import pytest
from xxhash import xxh3_64

import mmapds
from bench.support.data import DATA
from bench.support.memory import WORKERS, worker_memory
from mmapds.index.write import BoundsWriter
from mmapds.storage.sections import IndexedSource
from mmapds.storage.writer import IndexWriter

RECORDS = int(os.environ.get("MMAPDS_BENCH_RECORDS", 2 * 10**7))
INDEXES = 100
SMALL = 10**4  # indexes, and records in each
SIZE = 10  # bytes of a record
AT_ONCE = 10**6  # bounds that are written at a time
FOLDER = DATA / f"many-{RECORDS}"
ALL, CLEAN = FOLDER / "all.mmx", FOLDER / "clean.mmx"
TITLE = f"{RECORDS:,} records in {INDEXES} indexes"
PARTS = str(FOLDER / "part*.jsonl")


def sparse_source(path, records):
    """Make a sparse file; return it as an index describes it."""
    path.touch()
    os.truncate(path, records * SIZE)
    os.utime(path, ns=(10**18, 10**18))
    return IndexedSource(path.name, records * SIZE, 10**18, "", records, records, SIZE, SIZE, 0, 0)


def write_index(path, sources, lengths):
    """Write an index of sparse sources, with lengths."""
    with IndexWriter(str(path)) as writer:
        bounds = BoundsWriter(writer)
        widths = [write_bounds(bounds, source.records) for source in sources]
        writer.begin_section("column:length", "<u4")
        for part in lengths:
            writer.write(part.data.cast("B"))
        writer.write_length_order()
        described = [source._replace(width=width).describe() for source, width in zip(sources, widths, strict=True)]
        writer.commit({"format": "jsonl", "sources": described}, sum(source.records for source in sources))


def write_bounds(bounds, records):
    """Write where records of one size begin; return the width of their groups."""
    for begin in range(0, records, AT_ONCE):
        numbers = np.arange(begin, min(begin + AT_ONCE, records), dtype=np.uint64)
        bounds.append(memoryview(numbers * np.uint64(SIZE)))
    return bounds.finish(records * SIZE)[0]


def log_normal(seed, count):
    return np.clip(np.random.default_rng(seed).lognormal(6, 0.8, count), 1, 4000).astype(np.uint32)


@pytest.fixture(scope="module")
def corpus():
    """Sources with an index each, one index of all, and a saved view of four fifths of it."""
    if not ALL.exists():
        shutil.rmtree(FOLDER, ignore_errors=True)
        FOLDER.mkdir(parents=True)
        each = RECORDS // INDEXES
        sources = [sparse_source(FOLDER / f"part{k:03}.jsonl", each) for k in range(INDEXES)]
        for k, source in enumerate(sources):
            write_index(FOLDER / f"{source.path}.mmx", [source], [log_normal(k, each)])
        write_index(ALL, sources, (log_normal(k, each) for k in range(INDEXES)))


@pytest.fixture(scope="module")
def small():
    """10^4 indexes of 10^4 records, all alike but for the names in them."""
    folder = DATA / f"many-small-{SMALL}"
    if not folder.exists():
        part = DATA / f"many-small-{SMALL}.part"
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        write_index(part / "00000.jsonl.mmx", [sparse_source(part / "00000.jsonl", SMALL)], [log_normal(0, SMALL)])
        whole = (part / "00000.jsonl.mmx").read_bytes()
        offset, size = struct.unpack_from("<QQ", whole, 24)
        for k in range(1, SMALL):
            sparse_source(part / f"{k:05}.jsonl", SMALL)
            text = whole[offset : offset + size].replace(b"00000.jsonl", b"%05d.jsonl" % k)
            mark = xxh3_64(whole[:56] + text).intdigest()
            (part / f"{k:05}.jsonl.mmx").write_bytes(whole[:56] + struct.pack("<Q", mark) + whole[64:offset] + text)
        part.rename(folder)
    return folder


def measure(setup, work, path=ALL):
    """Run some lines in a new process, after the same on another file; return seconds and own memory that they took."""
    code = f"""
import json, sys, time
import numpy as np, mmapds
from mmapds import TokenBudgetBatchSampler
from bench.support.memory import anonymous
def run(path, final):
    {setup}
    before, begin = anonymous(), time.perf_counter()
    {work}
    seconds = time.perf_counter() - begin
    if final:
        print(json.dumps([seconds, anonymous() - before]))
run(sys.argv[2], False)
run(sys.argv[1], True)
"""
    warm = str(DATA / f"many-small-{SMALL}" / "00000.jsonl")
    found = []
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", code, str(path), warm], capture_output=True, check=True, text=True)
        found.append(json.loads(done.stdout))
    return min(seconds for seconds, _ in found), max(memory for _, memory in found)


OPEN = "ds = mmapds.open(path)"
FIRST = "sampler = TokenBudgetBatchSampler(ds, 65536); next(iter(sampler))"
MASK = "mask = ds.lengths <= 900"


def shown(found):
    seconds, memory = found
    return f"{seconds * 1e3:.1f} ms, {memory / 1e6:+.1f} MB"


@pytest.mark.usefixtures("corpus")
def test_many_indexes(row, small):
    for what, path, target in (
        (TITLE, PARTS, "<= 100 ms, <= 20 MB"),
        ("the same in one index", ALL, ""),
        (f"{SMALL:,} indexes of {SMALL:,} records", small / "*.jsonl", ""),
    ):
        row(f"{what}: open, sampler and first batch", "", shown(measure("", f"{OPEN}; {FIRST}", path)), target)
    target = "<= 1 s, <= 50 MB"
    row(f"{SMALL:,} indexes of {SMALL:,} records: open", "", shown(measure("", OPEN, small / "*.jsonl")), target)


@pytest.mark.usefixtures("corpus", "small")
def test_views(row):
    row(
        f"a mask of {RECORDS:,} records: ds[mask]", "", shown(measure(f"{OPEN}; {MASK}", "view = ds[mask]")), "<= 40 MB"
    )
    work = "view = ds[1000:-1000]; " + FIRST.replace("(ds", "(view")
    row("a slice of neighbours: sampler and first batch", "", shown(measure(OPEN, work, PARTS)), "")


@pytest.mark.usefixtures("corpus", "small")
def test_saved_views(row):
    CLEAN.unlink(missing_ok=True)
    found = measure(
        f"{OPEN}; {MASK}; view = ds[mask]; target = {str(CLEAN)!r} if final else {str(CLEAN) + '.mmx'!r}",
        "view.save(target)",
    )
    row(f"saving {RECORDS:,} records filtered by a mask", "", shown(found), "")
    row("the saved view: open", "", shown(measure("", OPEN, CLEAN)), "<= 2 ms")
    row("the saved view: sampler and first batch", "", shown(measure(OPEN, FIRST, CLEAN)), "<= 10 ms")


@pytest.mark.usefixtures("corpus")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers(row, method):
    one = mmapds.open(ALL, decode="bytes")
    if not CLEAN.exists():
        one[one.lengths <= 900].save(CLEAN)
    rivals = {
        TITLE: mmapds.open(PARTS, decode="bytes"),
        "a view by a mask": one[one.lengths <= 900],
        "a saved view": mmapds.open(CLEAN, decode="bytes"),
    }
    plain = max(worker_memory(one, len(one) // 2, method))
    for what, ds in rivals.items():
        growth = max(worker_memory(ds, len(one) // 2, method)) - plain
        against = "the same over one index"
        row(f"{what}: own memory of one of {WORKERS} workers, {method}", against, f"{growth / 1e6:+.2f} MB", "<= 1 MB")
