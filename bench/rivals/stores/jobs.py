"""What is asked of a store, each in a process of its own; sources and folders are paths, as jobs are plain JSON."""

import itertools
import random
import time
from importlib.metadata import version
from pathlib import Path

import orjson
from xxhash import xxh3_64, xxh3_64_intdigest

from bench.support.memory import anonymous, worker_memory

from ..job import rival
from .store import BATCH

ASKED = 2_000  # records whose content is compared
PIECE = 64  # records between looks at the clock


def store(name, source, folder):
    """Return a store that is not open yet."""
    return rival("stores", name).Store(Path(source), Path(folder))


def described(name):
    """Return what the table says of a store."""
    found = rival("stores", name).Store
    return {
        "title": found.title,
        "how": found.how,
        "version": found.package and version(found.package),
        "cannot": found.cannot,
    }


def prepare(name, source, folder):
    """Write what is read; return the seconds, and the bytes on the disk."""
    made = store(name, source, folder)
    begin = time.perf_counter()
    made.prepare()
    seconds = time.perf_counter() - begin
    return {"seconds": seconds, "bytes": sum(each.stat().st_size for each in _files(folder))}


def _files(folder):
    return [each for each in Path(folder).rglob("*") if each.is_file()]


def canonical(record):
    """Return a record as bytes that are the same for all stores."""
    return orjson.dumps(record, option=orjson.OPT_SORT_KEYS)


def rows(records, seed=0):
    """Yield record numbers at random, the same for all stores."""
    generator = random.Random(seed)
    return (generator.randrange(records) for _ in itertools.count())


def expected(source, has_epoch):
    """Return the answers that are right, from the lines themselves."""
    lines = Path(source).read_bytes().splitlines()
    asked = list(itertools.islice(rows(len(lines)), ASKED))
    found = {"records": len(lines), "read": _digest(orjson.loads(lines[row]) for row in asked)}
    found["batch"] = found["read"]
    return found | ({"epoch": _sum(map(orjson.loads, lines))} if has_epoch else {})


def answers(name, source, folder, records, has_epoch):
    """Return digests of random records, one by one and in batches, and of a whole epoch in any order."""
    opened = store(name, source, folder)
    opened.open()
    asked = list(itertools.islice(rows(records), ASKED))
    found = {}
    if "read" not in opened.cannot:
        found["records"] = len(opened)
        found["read"] = _digest(map(opened.read, asked))
    if "batch" not in opened.cannot:
        parts = (asked[begin : begin + BATCH] for begin in range(0, ASKED, BATCH))
        found["batch"] = _digest(itertools.chain.from_iterable(map(opened.batch, parts)))
    if has_epoch and "epoch" not in opened.cannot:
        found["epoch"] = _sum(opened.epoch(0))
    return {"answers": found} | described(name)


def _digest(records):
    """Return a digest of records in their order."""
    digest = xxh3_64()
    for record in records:
        digest.update(canonical(record))
    return digest.hexdigest()


def _sum(records):
    """Return a digest of records in any order, and how many there are."""
    total = count = 0
    for record in records:
        total = (total + xxh3_64_intdigest(canonical(record))) % 2**64
        count += 1
    return [count, f"{total:016x}"]


def measure(name, places, records, seconds):
    """Return the time and the memory that opening takes, and the rate of each way to read, for some seconds each.

    Args:
      places: source and folder of a small store, which is opened first, so that modules are loaded; those of the large
        one, which is measured.
    """
    small, made = (store(name, *place) for place in places)
    for path in [made.source, *_files(made.folder)]:
        path.read_bytes()  # so that all are in memory
    small.open()
    _first(small)
    next(iter(small.epoch(0)))
    before, begin = anonymous(), time.perf_counter()
    made.open()
    found = {"open": time.perf_counter() - begin}
    _first(made)
    found["memory"] = anonymous() - before
    if "read" not in made.cannot:
        found["read"] = _rate(_reads(made, rows(records)), seconds)
    if "batch" not in made.cannot:
        found["batch"] = _rate(_batches(made, rows(records)), seconds)
    if "epoch" not in made.cannot:
        begin = time.perf_counter()
        epoch = iter(made.epoch(1))
        next(epoch)
        found["first"] = time.perf_counter() - begin
        found["epoch"] = _rate(_pieces(epoch), seconds)
    return found


def _first(store):
    """Read one record, by its number or as the first of an epoch."""
    return next(iter(store.epoch(0))) if "read" in store.cannot else store.read(0)


def _rate(counts, seconds):
    """Return the records a second of an iterator over numbers of records, for some seconds or to its end."""
    total, begin = 0, time.perf_counter()
    for count in counts:
        total += count
        passed = time.perf_counter() - begin
        if passed >= seconds:
            break
    return total / passed


def _reads(store, asked):
    while True:
        for row in itertools.islice(asked, PIECE):
            store.read(row)
        yield PIECE


def _batches(store, asked):
    while True:
        store.batch(list(itertools.islice(asked, BATCH)))
        yield BATCH


def _pieces(records):
    while count := sum(1 for _ in itertools.islice(records, PIECE)):
        yield count


def workers(name, source, folder, count):
    """Return the anonymous memory of each worker of a loader, at its end."""
    made = store(name, source, folder)
    made.open()
    return {"workers": made.memory_of_workers(count)}


def workers_without_data(records, count):
    """Return the same of workers that read nothing."""
    return {"workers": worker_memory(range(records), records, "spawn", count)}
