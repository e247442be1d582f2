"""Objects of a store: bytes, requests, waits and memory, against the fewest possible and other libraries.

The store is on loopback. Other libraries need the environment of bench/rivals: `build/rivals/bin/python -m pytest`.
"""

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch.utils.data

import mmapds
from bench.rivals import remote as rivals
from bench.support.remote import Store, belady, corpus, lru, tars
from bench.support.results import ROOT

EPOCHS = 3
OBJECTS, RECORDS = 512, 8  # of 1 KB each, for counts of bytes
NODES, SMALL = 4, 1000
SHARDS, SHARD_RECORDS, RECORD, BANDWIDTH = 48, 256, 16_384, 40e6  # for seconds: 201 MB in 48 shards
START_RECORDS = 1280  # 21 MB: half a second
BATCH = 32
WARM_UP, LONG_WAIT = 20, 0.005  # steps, seconds
CHILD = 40e6  # bytes of the process that downloads, at most


def opened(store, folder, bucket, name="cache", **options):
    """Open a bucket by a local index, with an empty cache."""
    index, cache = folder / f"{bucket}.mmx", folder / name
    if not index.exists():
        mmapds.build(f"s3://{bucket}/part-*.jsonl", out=index, storage_options=store.options)
    shutil.rmtree(cache, ignore_errors=True)
    return mmapds.open(index, roots=f"s3://{bucket}/", cache=cache, storage_options=store.options, **options)


# ---- bytes ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def counted():
    """A store of many small objects, a folder in memory for caches, and the bytes of an object."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        folder = Path(name)
        size = corpus(folder / "store" / "counted", OBJECTS, RECORDS, 1024)
        corpus(folder / "store" / "small", SMALL, RECORDS, 96)
        with Store(folder / "store") as store:
            yield store, folder, size


def read(loader, sampler):
    """Return the objects of all records, in reading order, after a check that each record came once an epoch."""
    reads, records = [], Counter()
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for batch in loader:
            reads += [sample["shard"] for sample in batch]
            records.update((sample["shard"], sample["number"]) for sample in batch)
    assert len(records) == OBJECTS * RECORDS
    assert set(records.values()) == {EPOCHS}
    return reads


@pytest.mark.parametrize("mix_chunks", [1, 4])
@pytest.mark.parametrize("fraction", [0.25, 0.5, 0.75, 1])
def test_bytes_of_three_epochs(row, counted, fraction, mix_chunks):
    store, folder, size = counted
    room = int(fraction * OBJECTS)

    def fetched(make):
        """Return the copies of the corpus that are fetched, and the objects in reading order."""
        ds = opened(store, folder, "counted", cache_bytes=room * size)
        sampler = mmapds.ChunkedSampler(ds, RECORDS, mix_chunks=mix_chunks, seed=3)
        store.take()
        reads = read(make(ds, sampler), sampler)
        return sum(store.sent().values()) / size / OBJECTS, reads

    def ours(ds, sampler):
        return mmapds.DataLoader(ds, RECORDS, sampler=sampler, num_workers=1, collate_fn=list)

    def torch_s(ds, sampler):
        return torch.utils.data.DataLoader(ds, RECORDS, sampler=sampler, collate_fn=list)

    found, reads = fetched(ours)
    best, least_recent = belady(reads, room) / OBJECTS, lru(reads, room) / OBJECTS
    figure = f"{found:.3f} corpora, {found / best - 1:+.1%}; LRU {least_recent:.3f} simulated"
    if (fraction, mix_chunks) == (0.5, 1):
        figure += f", {fetched(torch_s)[0]:.3f} with torch's DataLoader"
    row(
        f"bytes of {EPOCHS} epochs, {OBJECTS} objects, cache of {fraction:.0%}, mix_chunks={mix_chunks}",
        f"Belady's optimum: {best:.3f} corpora",
        figure,
        "within 1%",
    )


def test_bytes_with_validation(row, counted):
    """Training over most objects, a validation over the last ones every so many steps, a cache of half of all."""
    store, folder, size = counted
    held_out, room, every = 16, OBJECTS // 2, 50
    ds = opened(store, folder, "counted", cache_bytes=room * size)
    cut = (OBJECTS - held_out) * RECORDS
    train, held = ds[:cut], ds[cut:]
    sampler = mmapds.ChunkedSampler(train, RECORDS, mix_chunks=1, seed=3, cross_sources=True)
    loader = mmapds.DataLoader(train, RECORDS, sampler=sampler, num_workers=1, collate_fn=list)
    validation = mmapds.DataLoader(held, RECORDS, num_workers=1, collate_fn=list)
    store.take()
    reads, both = [], []
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for step, batch in enumerate(loader):
            shards = [sample["shard"] for sample in batch]
            reads, both = reads + shards, both + shards
            if step % every == every - 1:
                both += [sample["shard"] for found in validation for sample in found]
    sent = store.sent()
    of_training = sum(count for name, count in sent.items() if name < f"counted/part-{OBJECTS - held_out:04}") / size
    best, alone = belady(both, room), belady(reads, room - held_out)
    row(
        f"objects of {EPOCHS} epochs, cache of half of {OBJECTS}, a validation over {held_out} every {every} steps",
        f"Belady's optimum for both: {best:,}; for training, with the validation kept: {alone:,}",
        f"{sum(sent.values()) / size:,.0f}, {sum(sent.values()) / size / best - 1:+.1%}; training {of_training:,.0f}",
        "within 1%",
    )


TWO = """
import json, sys
import mmapds
index, options, records, seed, epochs = json.loads(sys.argv[1])
ds = mmapds.open(index, **options)
sampler = mmapds.ChunkedSampler(ds, records, mix_chunks=1, seed=seed)
loader = mmapds.DataLoader(ds, records, sampler=sampler, num_workers=1, collate_fn=list)
for epoch in loader.epochs(epochs):
    for batch in loader:
        print(batch[0]["shard"])
"""


@pytest.mark.parametrize("seeds", [(3, 3), (3, 4)])
def test_bytes_of_two_jobs(row, counted, seeds):
    """Two jobs of one node at a time, in one order or in two, through one cache of half of the objects."""
    store, folder, size = counted
    room = OBJECTS // 2
    opened(store, folder, "counted")
    options = {"roots": "s3://counted/", "cache": str(folder / "two"), "storage_options": store.options}
    options["cache_bytes"] = room * size
    shutil.rmtree(folder / "two", ignore_errors=True)
    store.take()
    given = [json.dumps([str(folder / "counted.mmx"), options, RECORDS, seed, EPOCHS]) for seed in seeds]
    jobs = [subprocess.Popen([sys.executable, "-c", TWO, each], stdout=subprocess.PIPE, cwd=ROOT) for each in given]
    reads = [list(map(int, job.communicate()[0].split())) for job in jobs]
    assert [len(set(each)) for each in reads] == [OBJECTS] * 2
    found, best = sum(store.sent().values()) / size, [belady(each, room) for each in reads]
    in_step = belady([each for pair in zip(*reads, strict=True) for each in pair], room)
    what = "one order" if seeds[0] == seeds[1] else "two orders"
    row(
        f"objects of two jobs at a time, {EPOCHS} epochs in {what}, one cache of half of {OBJECTS}",
        f"Belady's optimum: {best[0]:,} for one job alone, {in_step:,} for both in step",
        f"{found:,.0f}: {found / in_step - 1:+.1%}",
        "",
    )


@pytest.mark.parametrize("lanes", [1, NODES])
def test_bytes_of_nodes(row, counted, lanes):
    """Each node has a cache of its own."""
    store, folder, _ = counted
    records = Counter()
    total = 0
    for rank in range(NODES):
        ds = opened(store, folder, "small")
        options = {"mix_chunks": 4, "seed": 3, "num_replicas": NODES, "rank": rank}
        sampler = mmapds.ChunkedSampler(ds, RECORDS, lanes=lanes, **options)
        store.take()
        for batch in mmapds.DataLoader(ds, RECORDS, sampler=sampler, num_workers=1, collate_fn=list):
            records.update((sample["shard"], sample["number"]) for sample in batch)
        total += sum(store.sent().values())
    assert len(records) == SMALL * RECORDS
    assert set(records.values()) == {1}
    what = f"bytes of an epoch of {NODES} nodes, {SMALL:,} objects, lanes={lanes}"
    row(what, "", f"{total / (SMALL * RECORDS * 96):.3f} corpora", f"{1 if lanes == NODES else NODES}.00")


# ---- seconds -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def limited(tmp_path_factory):
    """A store with a limit of bytes a second, and a folder for caches; other libraries find the corpus in it, too."""
    folder = tmp_path_factory.mktemp("limited")
    corpus(folder / "store" / "limited", SHARDS, SHARD_RECORDS, RECORD)
    corpus(folder / "store" / "start", 3, START_RECORDS, RECORD)
    if find_spec("litdata"):
        for library in rivals.READERS:
            rivals.prepare(library, folder / "store", SHARD_RECORDS)
    with Store(folder / "store", BANDWIDTH) as store:
        yield store, folder


def waits(loader, seconds):
    """Return how long a trainer with steps of some seconds waits for each batch."""
    found, batches = [], iter(loader)
    while True:
        begin = time.perf_counter()
        if next(batches, None) is None:
            return np.array(found)
        found.append(time.perf_counter() - begin)
        time.sleep(seconds)


@pytest.mark.parametrize("mix_chunks", [1, 4])
def test_waits(row, limited, mix_chunks):
    store, folder = limited
    step = BATCH * RECORD / (0.8 * BANDWIDTH)

    def shown(loader):
        first, found = np.split(waits(loader, step), [WARM_UP])
        return found, f"longest {found.max() * 1e3:.1f} ms, sum {found.sum():.2f} s (before: {first.sum():.2f} s)"

    ds = opened(store, folder, "limited")
    sampler = mmapds.ChunkedSampler(ds, SHARD_RECORDS, mix_chunks=mix_chunks, seed=3)
    loader = mmapds.DataLoader(ds, BATCH, sampler=sampler, num_workers=2, collate_fn=list)
    found, figure = shown(loader)
    _, warm = shown(loader)
    late = f"{(found > LONG_WAIT).sum()} above {LONG_WAIT * 1e3:g} ms"
    ds = opened(store, folder, "limited")
    _, plain = shown(torch.utils.data.DataLoader(ds, BATCH, sampler=sampler, collate_fn=list))
    row(
        f"waits for batches, demand of 0.8 of the bandwidth, after {WARM_UP} steps, mix_chunks={mix_chunks}",
        f"the same from a full cache: {warm}; torch's DataLoader: {plain}",
        f"{figure}; {late}",
        f"<= {LONG_WAIT * 1e3:g} ms",
    )


def test_large_objects(row, tmp_path):
    """A cache of four of them, two of which are mixed at a time; the order is known, so a step seldom waits."""
    shards, records, size = 6, 4096, 146_484
    total = corpus(tmp_path / "store" / "large", shards, records, size) * shards
    with Store(tmp_path / "store") as store:
        ds = opened(store, tmp_path, "large", cache_bytes=4 * records * size)
        sampler = mmapds.ChunkedSampler(ds, 10**9, mix_chunks=2, seed=3)
        loader = mmapds.DataLoader(ds, BATCH, sampler=sampler, num_workers=2, collate_fn=list)
        store.take()
        begin = time.perf_counter()
        found, second = waits(loader, 0.02), waits(loader, 0.02)
        seconds = time.perf_counter() - begin
        fetched = sum(store.sent().values()) / total
    steps = shards * records // BATCH
    row(
        f"2 epochs of {shards} objects of 600 MB, {records:,} samples each, cache of 4, mix_chunks=2, steps of 20 ms",
        f"{2 * steps * 0.02:.0f} s of steps; at least {1 + 2 / shards:.2f} corpora",
        f"{seconds:.0f} s, {fetched:.2f} corpora; after {WARM_UP} steps, waits of {found[WARM_UP:].sum():.1f} s, then "
        f"{second.sum():.1f} s; the longest {max(found[WARM_UP:].max(), second.max()):.2f} s",
        "",
    )


def test_resampled_objects(row, tmp_path):
    """Shards drawn with replacement: beside WebDataset, which keeps none and reads each draw over the network."""
    webdataset = pytest.importorskip("webdataset", reason="make build/trainers/installed")
    shards, records, size, draws, step = 4, 4096, 146_484, 8, 0.02
    one = corpus(tmp_path / "store" / "drawn", shards, records, size)
    tars(tmp_path / "store" / "drawn", tmp_path / "store" / "tars", records, size)
    with Store(tmp_path / "store") as store:
        ds = opened(store, tmp_path, "drawn", cache_bytes=3 * one)
        sampler = mmapds.ChunkedSampler(ds, 10**9, resample=True, mix_chunks=1, epoch_size=draws * records, seed=3)
        loader = mmapds.DataLoader(ds, BATCH, sampler=sampler, num_workers=2, collate_fn=list)
        store.take()
        begin = time.perf_counter()
        found = waits(loader, step)
        ours = time.perf_counter() - begin, sum(store.sent().values()) / one, found[WARM_UP:]
        urls = [f"{store.options['endpoint']}/tars/part-{shard:04}.tar" for shard in range(shards)]
        read = webdataset.WebDataset(urls, resampled=True, shardshuffle=False).shuffle(1000).decode()
        rival = webdataset.WebLoader(read.batched(BATCH, collation_fn=list), batch_size=None, num_workers=2)
        begin = time.perf_counter()
        found = waits(rival.slice(draws * records // BATCH), step)
        theirs = time.perf_counter() - begin, sum(store.sent().values()) / one, found[WARM_UP:]

    def told(seconds, fetched, waited):
        figures = f"{waited.sum():.1f} s, the longest {waited.max():.2f} s"
        return f"{seconds:.0f} s, {fetched:.1f} shards fetched; waits after {WARM_UP} steps {figures}"

    row(
        f"{draws} draws of {shards} shards of 600 MB, {records:,} samples each, steps of {step * 1e3:g} ms",
        f"WebDataset, resampled=True: {told(*theirs)}",
        f"resample=True, cache of 3 shards: {told(*ours)}",
        "",
    )


START = """
import json, sys, time
import mmapds
index, cache, options, records, batch = json.loads(sys.argv[1])
mmapds.DataLoader([0])
for turn in range(2):
    begin = time.perf_counter()
    ds = mmapds.open(index, roots="s3://start/", cache=f"{cache}-{turn}", storage_options=options)
    sampler = mmapds.ChunkedSampler(ds, records, mix_chunks=1)
    batches = iter(mmapds.DataLoader(ds, batch, sampler=sampler, num_workers=2, collate_fn=list))
    next(batches)
    print(time.perf_counter() - begin)
    time.sleep(2)  # what it fetches ahead
"""


def test_cold_start(row, limited):
    store, folder = limited
    opened(store, folder, "start")
    shard = START_RECORDS * RECORD / BANDWIDTH
    found = []
    for turn in range(3):
        cache = str(folder / f"start-{turn}")
        given = json.dumps([str(folder / "start.mmx"), cache, store.options, START_RECORDS, BATCH])
        printed = subprocess.run([sys.executable, "-c", START, given], capture_output=True, check=True, cwd=ROOT).stdout
        found.append([float(each) for each in printed.split()])
    first, second = map(statistics.median, zip(*found, strict=True))
    what = "seconds until the first batch, empty cache, mix_chunks=1"
    against = f"one shard at the bandwidth: {shard:.2f} s"
    row(what, against, f"{second:.2f} s: {second / shard:.2f}x", "<= 1.3x")
    row(f"{what}, first in a process", against, f"{first:.2f} s: {first - second:+.2f} s for the child process", "")


# ---- memory --------------------------------------------------------------------------------------------------------

MEMORY = """
import json, sys
from pathlib import Path
import mmapds
from bench.rivals.process import family
from bench.support.memory import anonymous
index, options = json.loads(sys.argv[1])
ds = mmapds.open(index, decode="bytes", **options)
sampler = mmapds.ChunkedSampler(ds, 512, mix_chunks=4)
loader = mmapds.DataLoader(ds, 32, sampler=sampler, num_workers=2, collate_fn=list)
total = sum(sum(map(len, batch)) for batch in loader)
print(total, anonymous(), *(anonymous(pid) for pid in family("self")[1:]))
"""


def test_memory_of_a_worker(row, limited):
    store, folder = limited
    opened(store, folder, "limited")
    local = folder / "store" / "limited"
    remote = {"roots": "s3://limited/", "cache": str(folder / "memory"), "storage_options": store.options}

    def memory(name, options):
        given = json.dumps([str(folder / name), options])
        printed = subprocess.run(
            [sys.executable, "-c", MEMORY, given], capture_output=True, check=True, cwd=ROOT
        ).stdout.split()
        return [int(each) for each in printed]

    mmapds.build([str(each) for each in sorted(local.iterdir())], out=folder / "local.mmx")
    (size, ours, child), (same, plain) = memory("limited.mmx", remote), memory("local.mmx", {})
    assert size == same
    row(
        f"anonymous memory of a process after it read {SHARDS} objects of 4.2 MB",
        f"the same files on the disk: {plain / 1e6:.1f} MB",
        f"{(ours - plain) / 1e6:+.1f} MB",
        "<= +5 MB",
    )
    row("anonymous memory of the child process that downloads", "", f"{child / 1e6:.1f} MB", f"<= {CHILD / 1e6:g} MB")


# ---- other libraries -----------------------------------------------------------------------------------------------


@pytest.mark.skipif(not find_spec("litdata"), reason="needs the environment of bench/rivals")
@pytest.mark.parametrize("fraction", [None, 0.5])
def test_other_libraries(row, limited, fraction):
    store, folder = limited
    opened(store, folder, "limited")
    corpus_size = SHARDS * SHARD_RECORDS * RECORD
    limit = fraction and int(fraction * corpus_size)
    answers = set()
    for library in rivals.READERS:
        store.take()
        figures = []
        for seconds, answer in rivals.epochs(library, store.options, folder, limit, SHARD_RECORDS):
            asked = store.take()
            sent = sum(each[2] for each in asked)
            answers.add(tuple(answer))
            figures.append(
                f"{seconds:.1f} s, {sent / corpus_size:.2f} corpora in {len(asked)} requests, "
                f"{answer[0] / seconds:,.0f} samples/s"
            )
        figures += [f"> {rivals.LIMIT} s"] * (2 - len(figures))
        cache = f"cache of {fraction:.0%}" if fraction else "no limit"
        what = f"{rivals.TITLES[library]}, {cache}, epochs 1; 2"
        row(what, f"{corpus_size / BANDWIDTH:.1f} s at the bandwidth", "; ".join(figures), "")
    assert len(answers) == 1
