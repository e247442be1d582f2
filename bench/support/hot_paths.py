"""The hot paths of one build of mmapds: `hot_paths.py DIRECTORY NAME`, which bench_against.py starts for each build.

Each line on stdin is a path to take; the answer on stdout is the seconds that it took, the best of some times.
"""

import gzip
import itertools
import os
import random
import subprocess
import sys
import time
from collections import deque
from functools import partial
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import mmapds

READS = 4096
BATCH = 256


def seconds(work, times):
    """The best time of some."""
    found = []
    for _ in range(times):
        begin = time.perf_counter()
        work()
        found.append(time.perf_counter() - begin)
    return min(found)


def one_by_one(ds, order):
    for i in order:
        ds[i]


def batches(ds, order):
    for at in range(0, READS, BATCH):
        ds.take(order[at : at + BATCH])


def cold(out, reads, batch):
    """Read records that are not in the page cache, nor are their bounds. No other dataset may map them."""
    for path in (out, mmapds.open(out).where(0)[0]):
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)
    ds = mmapds.open(out, decode="bytes")
    order = random.Random(0).choices(range(len(ds)), k=reads)
    for at in range(0, reads, batch):
        ds.take(order[at : at + batch]) if batch > 1 else ds[order[at]]


def index(path, out, **options):
    mmapds.build(path, out=out, force=True, **options)


def paths_of_views(ds, what, out):
    """Records of saved views: every third, which a file keeps as bits, and every second from the last, as an array."""
    made = {}
    for kept, rows in {"bits": slice(None, None, 3), "an array": slice(None, None, -2)}.items():
        path = out.replace(".mmx", f"-{kept[-4:]}.mmx")
        ds[rows].save(path)
        view = mmapds.open(path, decode="bytes")
        order = random.Random(0).choices(range(len(view)), k=READS)
        made[f"`take` of 256, {what}, a view as {kept}"] = partial(batches, view, order), 30
    return made


def epoch(batches, epochs):
    """Go through the next of many epochs."""
    batches.set_epoch(next(epochs))
    deque(batches, maxlen=0)


def first_batches(sampler, epochs):
    for _ in range(100):
        sampler.set_epoch(next(epochs))
        next(iter(sampler))


def paths_of_samplers(out):
    """Epochs of samplers, their first batches, and loaders over 100,000 records of JSON."""
    count, ds = 1_000_000, mmapds.open(out)
    lengths = np.clip(np.random.default_rng(0).lognormal(5.5, 0.8, count), 1, 2048).astype(np.int64)
    samplers = {
        "`DistributedSampler`": mmapds.DistributedSampler(range(count), 1, 0),
        "`DistributedBatchSampler`": mmapds.DistributedBatchSampler(range(count), 32, 1, 0),
        "`TokenBudgetBatchSampler`": mmapds.TokenBudgetBatchSampler(lengths, 16_384, num_replicas=1, rank=0),
        "`PackingBatchSampler`": mmapds.PackingBatchSampler(lengths, 4096, num_replicas=1, rank=0),
    }
    made = {}
    for what, sampler in samplers.items():
        made[f"{what}, an epoch of 1,000,000"] = partial(epoch, sampler, itertools.count()), 3
        made[f"{what}, 100 first batches"] = partial(first_batches, sampler, itertools.count()), 5
    for workers in ("threads", "processes"):
        sampler = mmapds.DistributedBatchSampler(ds, BATCH, 1, 0)
        loader = mmapds.DataLoader(ds, batch_sampler=sampler, num_workers=2, collate_fn=len, workers=workers)
        made[f"`DataLoader`, 2 {workers}, 100,000 records"] = partial(epoch, loader, itertools.count()), 3
    return made


def command(*arguments):
    subprocess.run([sys.executable, "-P", "-m", "mmapds.index", *arguments], check=True, stdout=subprocess.DEVNULL)


def paths_of_indexes(directory, name):
    """Many indexes opened and merged, one verified, and the start of the command."""
    many = sorted(map(str, Path(directory, "many").glob("*.jsonl")))
    large = str(Path(directory, f"{name}-verified.mmx"))
    mmapds.build(str(Path(directory, "large.jsonl")), out=large, length="n")
    out, small = str(Path(directory, "many", f"{name}.mmx")), str(Path(directory, f"{name}-small.mmx"))
    return {
        "open 10,000 indexes": (partial(mmapds.open, many), 1),
        "merge 1,000 indexes": (partial(mmapds.merge, many[:1000], out=out), 1),
        "verify JSON lines, `length='n'`": (partial(command, large, "--verify"), 1),
        "start of the command": (partial(command, many[0], "-o", small, "--force", "--quiet"), 5),
    }


def collated(ds, order, collate):
    for at in range(0, READS, BATCH):
        collate(ds.take(order[at : at + BATCH]))


def paths_of_batches(directory, name):
    """Samples and batches of tokens: of JSON, of JSON by `Fields`, and of an array file."""
    source, out = str(Path(directory, "tokens.jsonl")), str(Path(directory, f"{name}-tokens.mmx"))
    stored = str(Path(directory, f"{name}-tokens.mma"))
    fields = mmapds.Fields({"tokens": "int32", "id": "int64", "score": "float32"})
    mmapds.build(source, out=out)
    mmapds.convert.convert(source, stored, decode=fields, force=True)
    opened = {
        "JSON of tokens": mmapds.open(out),
        "`Fields`": mmapds.open(out, decode=fields),
        "an array file": mmapds.open(stored),
        "`Fields` of an array file": mmapds.open(stored, decode=mmapds.Fields({"tokens": "int64", "id": "int64"})),
    }
    made = {}
    for what, ds in opened.items():
        order = random.Random(0).choices(range(len(ds)), k=READS)
        made[f"`ds[i]`, {what}"] = partial(one_by_one, ds, order), 10
        made[f"`take` of 256, {what}"] = partial(collated, ds, order, list), 10
        made[f"`pad_collate` of 256, {what}"] = partial(collated, ds, order, mmapds.pad_collate), 10
        made[f"`pack_collate` of 256, {what}"] = partial(collated, ds, order, mmapds.pack_collate), 10
    return made


def paths_of_compressed(directory, name):
    """Lines of compressed sources: of blocks that are in the cache, and of each block in turn."""
    made = {}
    for suffix in ("gz", "zst"):
        out = str(Path(directory, f"{name}-{suffix}.mmx"))
        mmapds.build(str(Path(directory, f"a.jsonl.{suffix}")), out=out)
        ds = mmapds.open(out, decode="bytes")
        order = random.Random(0).choices(range(len(ds)), k=READS)
        made[f"`ds[i]`, .{suffix} in the cache"] = partial(one_by_one, ds, order), 5
        made[f"`take` of 256, .{suffix} in the cache"] = partial(batches, ds, order), 10
        made[f"`take` of 256, .{suffix} in file order"] = partial(in_file_order, out), 3
    return made


def in_file_order(path):
    ds = mmapds.open(path, decode="bytes")  # anew, so that no block is in its cache
    for at in range(0, len(ds), BATCH):
        ds.take(range(at, min(at + BATCH, len(ds))))


def paths_of_conversions(directory, name):
    out = str(Path(directory, f"{name}-converted.mma"))
    convert = partial(mmapds.convert.convert, out=out, force=True)
    return {
        "convert Parquet": (partial(convert, str(Path(directory, "tokens.parquet"))), 3),
        "convert Parquet, row by row": (partial(convert, str(Path(directory, "nulls.parquet")), missing="skip"), 1),
        "convert HDF5": (partial(convert, str(Path(directory, "rows.h5"))), 1),
        "convert JSON lines": (partial(convert, str(Path(directory, "short-tokens.jsonl"))), 1),
    }


def paths(directory, name):
    """What can be timed, by name: a call, and how often it is made."""
    made = {}
    opened = {
        "JSON": ("a.jsonl", {}, {}),
        "raw bytes": ("a.jsonl", {}, {"decode": "bytes"}),
        "arrays of one size": ("a.bin", {"format": "fixed", "dtype": "<f4", "shape": "64"}, {}),
    }
    for what, (source, options, how) in opened.items():
        out = str(Path(directory, f"{name}-{source}.mmx"))
        mmapds.build(str(Path(directory, source)), out=out, **options)
        ds = mmapds.open(out, **how)
        order = random.Random(0).choices(range(len(ds)), k=READS)
        made[f"`ds[i]`, {what}"] = partial(one_by_one, ds, order), 30
        made[f"`take` of 256, {what}"] = partial(batches, ds, order), 30
    made |= paths_of_samplers(str(Path(directory, f"{name}-a.jsonl.mmx")))
    made |= paths_of_indexes(directory, name)
    made |= paths_of_batches(directory, name)
    made |= paths_of_compressed(directory, name)
    made |= paths_of_conversions(directory, name)
    large, out = str(Path(directory, "large.jsonl")), str(Path(directory, f"{name}-built.mmx"))
    made["index JSON lines"] = partial(index, large, out), 3
    made["index JSON lines, `length='n'`"] = partial(index, large, out, length="n"), 3
    short, out = str(Path(directory, "short.jsonl")), str(Path(directory, f"{name}-short.mmx"))
    made["index lines of 8 bytes"] = partial(index, short, out), 1
    lines, out = str(Path(directory, "lines.jsonl")), str(Path(directory, f"{name}-lines.mmx"))
    mmapds.build(lines, out=out)
    ds = mmapds.open(out, decode="bytes")
    if hasattr(ds, "save"):
        made |= paths_of_views(ds, "lines of 340 bytes", out)
    order = random.Random(0).choices(range(len(ds)), k=READS)
    made["`ds[i]`, lines of 340 bytes"] = partial(one_by_one, ds, order), 30
    made["`take` of 256, lines of 340 bytes"] = partial(batches, ds, order), 30
    lines, out = str(Path(directory, "cold.jsonl")), str(Path(directory, f"{name}-cold.mmx"))
    mmapds.build(lines, out=out)
    os.sync()
    made["`ds[i]`, lines of 340 bytes, cold"] = partial(cold, out, 512, 1), 1
    made["`take` of 256, lines of 340 bytes, cold"] = partial(cold, out, 16 * BATCH, BATCH), 1
    return made


def write_sources(directory):
    """Write the sources that all builds read."""
    Path(directory).mkdir(parents=True, exist_ok=True)
    text = "a record of some words, as they are " * 5
    lines = [b'{"n":%d,"text":"%s"}\n' % (n, text[: 50 + n % 100].encode()) for n in range(100_000)]
    Path(directory, "a.jsonl").write_bytes(b"".join(lines))
    Path(directory, "large.jsonl").write_bytes(b"".join(lines) * 10)
    with open(Path(directory, "short.jsonl"), "wb") as file:
        for _ in range(300):
            file.write(b"".join(b"%d\n" % n for n in range(1_000_000, 1_100_000)))
    record = b'{"n":%d,"text":"' + b"x" * 316 + b'"}\n'
    for name in ("lines.jsonl", "cold.jsonl"):
        with open(Path(directory, name), "wb") as file:
            for begin in range(10**6, 10**6 + 1_500_000, 10_000):
                file.write(b"".join(record % n for n in range(begin, begin + 10_000)))
    many = Path(directory, "many")
    many.mkdir(exist_ok=True)
    for number in range(10_000):
        (many / f"{number:05}.jsonl").write_bytes(b"".join(lines[:3]))
    mmapds.build(str(many))
    np.arange(64 * 50_000, dtype=np.float32).tofile(Path(directory, "a.bin"))
    Path(directory, "a.jsonl.gz").write_bytes(gzip.compress(b"".join(lines), 6, mtime=0))
    mmapds.seekable(str(Path(directory, "a.jsonl")), str(Path(directory, "a.jsonl.zst")), index=False, force=True)
    write_tokens(Path(directory))


def write_tokens(directory):
    """Write records of an integer, 20 to 180 tokens and a number: as JSON, Parquet and HDF5."""
    generator = np.random.default_rng(0)
    tokens = [generator.integers(0, 50_000, int(n)).tolist() for n in generator.integers(20, 181, 10_000)]
    lines = [b'{"id":%d,"tokens":%s,"score":%.3f}\n' % (n, str(each).encode(), n / 7) for n, each in enumerate(tokens)]
    Path(directory, "tokens.jsonl").write_bytes(b"".join(lines))
    Path(directory, "short-tokens.jsonl").write_bytes(b"".join(lines[:5000]))
    table = {
        "id": range(10_000),
        "tokens": pa.array(tokens, pa.list_(pa.int32())),
        "text": [str(n) for n in range(10_000)],
    }
    pq.write_table(pa.table(table), Path(directory, "tokens.parquet"), row_group_size=2000)
    holes = pa.array([None if n % 100 == 0 else n / 7 for n in range(10_000)])
    pq.write_table(pa.table(table | {"score": holes}), Path(directory, "nulls.parquet"), row_group_size=2000)
    with h5py.File(Path(directory, "rows.h5"), "w") as file:
        file["id"] = np.arange(10_000)
        file["feats"] = np.arange(10_000 * 64, dtype=np.float32).reshape(10_000, 64)
        file["text"] = table["text"]


def main():
    made = paths(*sys.argv[1:])
    print(*made, sep="\t", flush=True)
    for line in sys.stdin:
        print(seconds(*made[line.rstrip("\n")]), flush=True)


if __name__ == "__main__":
    main()
