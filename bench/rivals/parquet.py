"""Parquet beside other readers of the same file: `python -m bench.rivals.parquet`, in the environment of `make rivals`.

Each reader has processes of its own, and all take turns, so that a noisy machine is noisy for all. Batches are arrays:
the tokens of 256 rows, and their texts.
"""

import argparse
import itertools
import shutil
import statistics
import time
from importlib.metadata import version

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.support.data import DATA
from bench.support.memory import anonymous
from bench.support.results import RESULTS, described

from .process import JobError, Limits, run
from .tables import NONE, duration, size, table

ROWS, GROUP, BATCH, CHUNK = 400_000, 2000, 256, 4096
ROUNDS, SECONDS = 3, 10
FOLDER = DATA / "parquet"
LIMITS = Limits(seconds=120)


def write_source(folder):
    """Write a file of texts and tokens, unless it is there."""
    path = folder / "data.parquet"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        random = np.random.default_rng(0)
        schema = pa.schema({"id": pa.int64(), "text": pa.string(), "tokens": pa.list_(pa.int32())})
        with pq.ParquetWriter(path, schema) as writer:
            for begin in range(0, ROWS, GROUP):
                lengths = random.integers(20, 200, GROUP).tolist()
                tokens = pa.array([random.integers(0, 50_000, length) for length in lengths], pa.list_(pa.int32()))
                texts = ["word " * length for length in lengths]
                rows = {"id": np.arange(begin, begin + GROUP), "text": texts, "tokens": tokens}
                writer.write_table(pa.table(rows, schema), row_group_size=GROUP)
    return path


# ---- readers -----------------------------------------------------------------------------------------------------


class Reader:
    """A reader of the file; methods that it lacks are not measured.

    Attributes:
      title, package: its names.
      copies: whether `prepare` writes the rows again.
    """

    title = package = ""
    copies = "nothing"

    def __init__(self, folder):
        self.path, self.own = str(folder / "data.parquet"), folder / type(self).__name__.lower()

    def prepare(self):
        """Do what is done once."""

    def open(self):
        """Do what each process does."""


class Ours(Reader):
    title, package, copies = "mmapds", "mmap-datasets", "an index"

    def prepare(self):
        import mmapds

        mmapds.build(self.path, length="items(tokens)", force=True)

    def open(self):
        import mmapds

        self.dataset = mmapds.open(self.path)

    def row(self, number):
        return self.dataset[number]

    def batch(self, rows):
        return [(each["tokens"], each["text"]) for each in self.dataset.take(rows)]

    def epoch(self):
        import mmapds

        chunks = mmapds.ChunkedSampler(self.dataset, "block", num_replicas=1, rank=0, mix_chunks=8)
        for rows in mmapds.DistributedBatchSampler(chunks, BATCH):
            yield self.batch(rows)


class Lazily(Ours):
    title = "mmapds, rows made on access"

    def batch(self, rows):
        return self.dataset.take(rows)


class Cached(Lazily):
    title = "mmapds, a block cache of all content"

    def open(self):
        import mmapds

        self.dataset = mmapds.open(self.path, block_cache=1 << 30)


class Datasets(Reader):
    title, package, copies = "datasets", "datasets", "an Arrow copy"

    def prepare(self):
        import datasets

        datasets.disable_progress_bars()
        datasets.Dataset.from_parquet(self.path, cache_dir=str(self.own))

    def open(self):
        self.prepare()  # of the cache
        import datasets

        self.dataset = datasets.Dataset.from_parquet(self.path, cache_dir=str(self.own)).with_format("numpy")

    def row(self, number):
        return self.dataset[number]

    def batch(self, rows):
        found = self.dataset[rows]
        return list(zip(found["tokens"], found["text"], strict=True))

    def epoch(self):
        order = np.random.default_rng(0).permutation(ROWS)
        for begin in range(0, ROWS, BATCH):
            yield self.batch(order[begin : begin + BATCH].tolist())


class Streaming(Reader):
    title, package = "datasets, streaming", "datasets"

    def open(self):
        import datasets

        found = datasets.load_dataset("parquet", data_files=self.path, split="train", streaming=True)
        self.dataset = found.shuffle(seed=0, buffer_size=8 * GROUP).with_format("numpy")

    def epoch(self):
        for found in self.dataset.iter(BATCH):
            yield list(zip(found["tokens"], found["text"], strict=True))


class Lance(Reader):
    title, package, copies = "Lance", "pylance", "a Lance table"

    def prepare(self):
        import lance

        shutil.rmtree(self.own, ignore_errors=True)
        lance.write_dataset(pq.ParquetFile(self.path).iter_batches(GROUP), self.own, schema=pq.read_schema(self.path))

    def open(self):
        import lance

        self.dataset = lance.dataset(self.own)

    def row(self, number):
        return self.batch([number])[0]

    def batch(self, rows):
        found = self.dataset.take(rows)
        return list(zip(_arrays(found["tokens"].combine_chunks()), found["text"].to_pylist(), strict=True))

    def epoch(self):
        order = np.random.default_rng(0).permutation(ROWS)
        for begin in range(0, ROWS, BATCH):
            yield self.batch(order[begin : begin + BATCH])


class LitData(Reader):
    title, package, copies = "LitData", "litdata", "an index"

    def prepare(self):
        import litdata

        self.own.mkdir(exist_ok=True)
        shutil.copy(self.path, self.own)
        litdata.index_parquet_dataset(str(self.own))

    def open(self):
        import litdata
        from litdata.streaming.item_loader import ParquetLoader

        self.dataset = litdata.StreamingDataset(str(self.own), item_loader=ParquetLoader(), shuffle=True)

    def row(self, number):
        found = self.dataset[number]
        return np.asarray(found["tokens"]), found["text"]

    def epoch(self):
        rows = iter(self.dataset)
        while batch := list(itertools.islice(rows, BATCH)):
            yield [(np.asarray(each["tokens"]), each["text"]) for each in batch]


class PyArrow(Reader):
    title, package = "pyarrow, in file order", "pyarrow"

    def open(self):
        self.dataset = pq.ParquetFile(self.path)

    def epoch(self):
        yield from self.dataset.iter_batches(BATCH)


READERS = {each.__name__: each for each in (Ours, Lazily, Cached, Datasets, Streaming, Lance, LitData, PyArrow)}


def _arrays(lists):
    values, offsets = lists.values.to_numpy(), lists.offsets.to_numpy()
    return [values[begin:end] for begin, end in itertools.pairwise(offsets)]


# ---- jobs --------------------------------------------------------------------------------------------------------


def prepare(name):
    """Do what is done once; return how long it took."""
    begin = time.perf_counter()
    READERS[name](FOLDER).prepare()
    return {"seconds": time.perf_counter() - begin}


def check(name):
    """Compare some rows with those of pyarrow."""
    reader = READERS[name](FOLDER)
    reader.open()
    if hasattr(reader, "batch"):
        rows = [5, 70_000, 399_999]
        whole = pq.ParquetFile(reader.path).read(["tokens", "text"])
        for row, (tokens, text) in zip(rows, map(_pair, reader.batch(rows)), strict=True):
            wanted = whole.slice(row, 1).to_pylist()[0]
            assert (np.asarray(tokens).tolist(), str(text)) == (wanted["tokens"], wanted["text"]), row
    return {}


def _pair(row):
    return (row["tokens"], row["text"]) if isinstance(row, dict) else row


def read(name):
    """Measure what a process does: rows, batches and an epoch, or as much of it as fits some seconds."""
    import torch  # noqa: F401 - imports are not measured

    reader, random = READERS[name](FOLDER), np.random.default_rng(1)
    reader.open()
    next(iter(reader.epoch()))
    before, begin = anonymous(), time.perf_counter()
    reader = READERS[name](FOLDER)
    reader.open()
    epoch = iter(reader.epoch())
    next(epoch)
    found = {"first": time.perf_counter() - begin}
    begin, batches = time.perf_counter(), 0
    for _ in epoch:
        batches += 1
        if time.perf_counter() - begin > SECONDS:
            break
    found |= {"epoch": batches * BATCH / (time.perf_counter() - begin), "memory": anonymous() - before}
    if hasattr(reader, "row"):
        rows = random.integers(0, ROWS, 100).tolist()
        begin = time.perf_counter()
        for row in rows:
            reader.row(row)
        found["row"] = (time.perf_counter() - begin) / len(rows)
    if hasattr(reader, "batch"):
        begin, batches = time.perf_counter(), 0
        for rows in np.split(random.permutation(ROWS)[: ROWS // BATCH * BATCH], ROWS // BATCH):
            reader.batch(rows.tolist())
            batches += 1
            if time.perf_counter() - begin > SECONDS:
                break
        found["full"] = batches * BATCH / (time.perf_counter() - begin)
        begin, many = time.perf_counter(), 400
        for chunk in range(many):
            rows = chunk * BATCH // CHUNK * CHUNK + random.permutation(CHUNK)[:BATCH]
            reader.batch(rows.tolist())
        found["batch"] = many * BATCH / (time.perf_counter() - begin)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("readers", nargs="*", default=list(READERS), metavar="READER", help=", ".join(READERS))
    names = parser.parse_args().readers
    source = write_source(FOLDER)
    once, found = {}, {name: [] for name in names}
    for name in names:
        once[name] = run("bench.rivals.parquet:prepare", LIMITS, name=name)
        run("bench.rivals.parquet:check", LIMITS, name=name)
    for _ in range(ROUNDS):
        for name in names:
            try:
                found[name].append(run("bench.rivals.parquet:read", LIMITS, name=name))
            except JobError as error:
                print(name, error)
    head = ["", "prepared once in", "writes", "first batch", "a shuffled epoch", "a full shuffle", "a random row"]
    head += ["256 rows of a chunk", "own memory"]
    made = table(head, (_cells(name, once[name], found[name]) for name in names))
    what = f"{ROWS:,} rows of texts and tokens, {size(source.stat().st_size)}, row groups of {GROUP:,} rows"
    how = f"Medians of {ROUNDS} runs in turn, each in one process with the file in memory."
    order = (
        "An epoch of mmapds and of streaming is shuffled by chunks, of datasets and Lance by all rows. A full shuffle "
        "is batches of 256 of all rows, for up to 10 seconds."
    )
    text = f"# Parquet\n\n{described()} Made by `python -m bench.rivals.parquet`.\n\n{what}. {how}\n{order}\n\n"
    (RESULTS / "parquet.md").write_text(f"{text}{made}\n")
    print(made)


def _cells(name, once, runs):
    """Return the cells of a row of the table."""
    reader = READERS[name]

    def median(key, show):
        values = [each[key] for each in runs if key in each]
        return show(statistics.median(values)) if values else NONE

    yield f"{reader.title} {version(reader.package)}"
    yield duration(once["seconds"]) if once["seconds"] > 0.01 else NONE
    yield reader.copies
    yield median("first", duration)
    yield median("epoch", lambda rate: f"{rate:,.0f} rows/s")
    yield median("full", lambda rate: f"{rate:,.0f} rows/s")
    yield median("row", duration)
    yield median("batch", lambda rate: f"{rate:,.0f} rows/s")
    yield median("memory", size)


if __name__ == "__main__":
    main()
