"""What a loader delivers to a trainer that computes without the GIL for as long as a batch takes, and what it holds."""

import statistics
import subprocess
import sys
import time
import zlib
from functools import partial

import numpy as np
import pytest
import torch.utils.data
from torchdata import nodes

import mmapds
from bench.support.data import DATA, jsonl
from mmapds import DataLoader, DistributedBatchSampler, Fields, pad_collate

BATCH = 256
BATCHES = 500
SKIPPED = 100  # batches at the start, so that starting processes is not measured
ROUNDS = 9
RECORDS = 200_000


def as_it_is(samples):
    """Collate to the samples themselves."""
    return samples


def json_dicts():
    """Records of JSON, decoded to dicts."""
    return mmapds.open(str(jsonl(200_000_000)), build=True), as_it_is


def json_fields():
    """The same records, read into arrays and strings."""
    fields = Fields({"id": "int64", "source": "str", "source_len": "int32", "target": "str"})
    return mmapds.open(str(jsonl(200_000_000)), decode=fields, build=True), pad_collate


def token_arrays():
    """Records of an array file, padded."""
    path = DATA / "tokens.mma"
    if not path.exists():
        generator = np.random.default_rng(0)
        with mmapds.Writer(path, {"id": "int64", "tokens": ("int32", (None,))}) as writer:
            for i in range(RECORDS):
                size = int(generator.integers(20, 401))
                writer.write({"id": i, "tokens": generator.integers(0, 32_000, size, np.int32)})
    return mmapds.open(path), pad_collate


DATASETS = {
    "JSON dicts": json_dicts,
    "JSON by `Fields`, `pad_collate`": json_fields,
    "an array file, `pad_collate`": token_arrays,
}


def sampler(ds):
    return DistributedBatchSampler(ds, BATCH, epoch_size=BATCH * BATCHES if len(ds) > BATCH * BATCHES else None)


def threads(ds, collate, workers=2):
    return DataLoader(ds, batch_sampler=sampler(ds), collate_fn=collate, num_workers=workers)


def processes(ds, collate, workers=2):
    return torch.utils.data.DataLoader(ds, batch_sampler=sampler(ds), collate_fn=collate, num_workers=workers)


def torchdata_threads(ds, collate):
    """The same of torchdata's nodes."""
    read = nodes.ParallelMapper(
        nodes.SamplerWrapper(sampler(ds)), lambda rows: collate(ds.take(rows)), num_workers=2, max_concurrent=2
    )
    return nodes.Loader(nodes.Prefetcher(read, 4))


def step_like_a_batch(ds, collate):
    """Return a trainer's step: computing without the GIL for as long as making a batch takes, in the median."""
    rows = list(sampler(ds))
    for each in rows:  # the first pass finds pages that nobody has read
        ds.take(each)
    again, data = iter(rows), bytes(1_000_000)
    batch = typical_seconds(lambda: collate(ds.take(next(again))))
    return partial(zlib.crc32, bytes(int(len(data) * batch / typical_seconds(lambda: zlib.crc32(data)))))


def typical_seconds(do):
    """How long a call takes, in the median of many: one that the machine interrupts does not count."""

    def seconds():
        begin = time.perf_counter()
        do()
        return time.perf_counter() - begin

    return statistics.median(seconds() for _ in range(200))


def rate(loader, step):
    """Records a second that a trainer is given."""
    count = 0
    for _ in loader:
        step()
        count += 1
        if count == SKIPPED:
            begin = time.perf_counter()
    return (count - SKIPPED) * BATCH / (time.perf_counter() - begin)


@pytest.mark.parametrize("kind", DATASETS)
def test_delivery(row, kind):
    ds, collate = DATASETS[kind]()
    step = step_like_a_batch(ds, collate)
    ways = {
        "torch's DataLoader, 2 processes": processes,
        "2 threads of `torchdata.nodes`": torchdata_threads,
        "`num_workers=0`": partial(threads, workers=0),
        "1 thread": partial(threads, workers=1),
    }
    targets = {"torch's DataLoader, 2 processes": ">= 3x" if kind.startswith("an array file") else ">= 2x"}
    found = {way: [] for way in ways}
    for _ in range(ROUNDS):
        for way, make in ways.items():
            ours = rate(threads(ds, collate), step)
            found[way].append(ours / rate(make(ds, collate), step))
    row(f"{kind}, batches of {BATCH}: 2 threads", "", f"{ours / 1e3:,.0f} k records/s", "")
    for way, ratios in found.items():
        figure = f"{statistics.median(ratios):.3g}x ({min(ratios):.3g} to {max(ratios):.3g})"
        row(f"{kind}, batches of {BATCH}: records/s of 2 threads", way, figure, targets.get(way, ""))


JOB = """
import multiprocessing, os
from bench.bench_loader import DATASETS, processes, threads
from bench.support.memory import anonymous
loader = {way}(*DATASETS[{kind!r}]())
for number, _ in enumerate(loader):
    if number == 300:
        pids = [os.getpid(), *(each.pid for each in multiprocessing.active_children())]
        print(sum(anonymous(pid, "Pss_Anon") for pid in pids))
        break
"""


@pytest.mark.parametrize("kind", DATASETS)
def test_memory(row, kind):
    """Of the whole job: the trainer, who only imports torch here, and the workers."""
    DATASETS[kind]()

    def job(way):
        command = [sys.executable, "-c", JOB.format(way=way, kind=kind)]
        return int(subprocess.run(command, capture_output=True, check=True).stdout)

    ours, theirs = job("threads"), job("processes")
    row(
        f"{kind}: own memory of the job (Pss_Anon), 2 threads",
        "torch's DataLoader, 2 processes",
        f"{ours / theirs:.2f}x ({ours / 1e6:.0f} MB of {theirs / 1e6:.0f} MB)",
        "<= 0.5x",
    )


def test_a_stall_report_costs_next_to_nothing(row):
    loader = DataLoader(range(10**6), batch_sampler=[[0]] * 20_000, collate_fn=as_it_is)
    plain = torch.utils.data.DataLoader(range(10**6), batch_sampler=[[0]] * 20_000, collate_fn=as_it_is)

    def seconds(loader):
        begin = time.perf_counter()
        for _ in loader:
            pass
        return (time.perf_counter() - begin) / 20_000

    ours, theirs = (min(seconds(each) for _ in range(5)) for each in (loader, plain))
    row(
        "a batch of one int, waits and delivery counted",
        "torch's DataLoader, in its process too",
        f"{(ours - theirs) * 1e6:+.1f} us ({ours * 1e6:.1f} us of {theirs * 1e6:.1f} us)",
        "",
    )
