"""Readers of the same JSON Lines for bench/rivals/zephon.py: mmapds, and Zephon over shards of different kinds."""

import itertools
import json
import random
import shutil
import time
import uuid
from abc import ABC, abstractmethod
from pathlib import Path

import mmapds
from bench.support.data import DATA

BATCH, RANKS, SEED = 64, 8, 7
LARGE_SHARD, SMALL_SHARD = 200_000, 1_000  # records: 64 MB, as Zephon's documentation has it, and 0.3 MB
TEXTS = 20_000
FETCH = CHUNK = 16384  # records that Zephon reads at once, and of its chunks: better than 64, 1,024 and 4,096
ORDERS = {"global": {"shuffle_block_size": "global"}, "auto": {"shuffle_block_size": "auto"}, "default": {}}
COLUMNS = {"id": "int", "source": "str", "source_len": "int", "target": "str"}


# ---- the data ----------------------------------------------------------------------------------------------------


def texts_of_records():
    """Return texts of 40 to 420 characters, and lengths."""
    generator = random.Random(0)
    letters = "abcdefghijklmnopqrstuvwxyz     "
    texts = ["".join(generator.choices(letters, k=generator.randint(40, 420))) for _ in range(TEXTS)]
    return [(text, generator.randint(50, 2000)) for text in texts]


def is_right(record, texts):
    """Whether a record is the one of its number."""
    number = record["id"]
    text, length = texts[number % TEXTS]
    wanted = {"id": number, "source": f"corpus/{number:08}.wav", "source_len": length, "target": text}
    return type(record) is dict and record == wanted


def folder(n):
    return DATA / "zephon" / str(n)


def write_source(n):
    """Write n records of JSON Lines in shards of 64 MB, unless they are there."""
    place = folder(n) / "large"
    if not place.exists():
        part = place.with_name("large.part")
        part.mkdir(parents=True, exist_ok=True)
        ends = [b'%d, "target": %s}\n' % (length, json.dumps(text).encode()) for text, length in texts_of_records()]
        head = b'{"id": %d, "source": "corpus/%08d.wav", "source_len": %s'
        for shard, begin in enumerate(range(0, n, LARGE_SHARD)):
            numbers = range(begin, min(begin + LARGE_SHARD, n))
            lines = b"".join(head % (number, number, ends[number % TEXTS]) for number in numbers)
            (part / f"{shard:05}.jsonl").write_bytes(lines)
        part.rename(place)
    return place


def sources(n):
    """Return the shards, in order."""
    return sorted((folder(n) / "large").glob("*.jsonl"))


def written(place):
    """Return the bytes of all files of a folder."""
    return sum(path.stat().st_size for path in Path(place).rglob("*") if path.is_file())


# ---- readers -----------------------------------------------------------------------------------------------------


class Reader(ABC):
    """A reader of the records.

    Attributes:
      title: its name in tables.
      orders: the orders that are measured.
      seconds: after which an epoch is ended; long where many records are on their way at the end.
    """

    title = ""
    orders = tuple(ORDERS)
    seconds = 3

    def __init__(self, n):
        self.n = n

    def load(self):  # noqa: B027 - ours needs nothing
        """Import what preparing needs."""

    @abstractmethod
    def prepare(self):
        """Do what is done once; return the bytes that are written, and the seconds of an index alone."""

    @abstractmethod
    def epoch(self, order):
        """Yield the batches of rank 0, as lists of dicts."""


class Ours(Reader):
    title = "mmapds"
    orders = ("global",)

    def prepare(self):
        begin = time.perf_counter()
        mmapds.build([str(path) for path in sources(self.n)], force=True)
        found = sum(Path(f"{path}.mmx").stat().st_size for path in sources(self.n))
        return {"written": found, "index": time.perf_counter() - begin}

    def loader(self, ranks=RANKS, rank=0):
        """Return the loader of a rank."""
        dataset = mmapds.open([str(path) for path in sources(self.n)])
        sampler = mmapds.DistributedBatchSampler(dataset, BATCH, ranks, rank, seed=SEED, pad=False)
        return mmapds.DataLoader(dataset, batch_sampler=sampler, num_workers=2, collate_fn=list)

    def epoch(self, order):
        yield from self.loader()


class Zephon(Reader):
    """Zephon over the shards as they are, with its default settings."""

    title = "Zephon, shards of 64 MB"
    orders = ("global", "default")  # 8 shards are all
    place, format, fetch, options = "large", "jsonl", None, {}

    def load(self):
        import zephon.build_index  # noqa: F401

    def prepare(self):
        return self._index()

    def _index(self):
        from zephon.build_index import build_index

        begin = time.perf_counter()
        index = build_index(self.format, folder(self.n) / self.place, progress=False)
        return {"written": Path(index).stat().st_size, "index": time.perf_counter() - begin}

    def pipeline(self, order, ranks=RANKS, rank=0, chunk=CHUNK, **options):
        """Return the pipeline of a rank."""
        from zephon import Pipeline
        from zephon.io import Dataset
        from zephon.work import MixtureSpec, StaticMixtureWorkSource

        dataset = Dataset.from_path("data", str(folder(self.n) / self.place), fmt=self.format)
        source = StaticMixtureWorkSource(
            [dataset], MixtureSpec({"data": 1.0}), chunk, SEED, exhausted_policy="redistribute", **ORDERS[order]
        )
        made = Pipeline(source)
        if self.fetch:
            made = made.fetch(max_batch=self.fetch)
        shared = {"aggregate_dir": str(folder(self.n) / "checkpoints"), "run_id": uuid.uuid4().hex}
        given = {"world_size": ranks, "global_rank": rank} | shared | self.options | options
        return made.batch(BATCH, drop_last=False).options(**given)

    def epoch(self, order):
        chunk = CHUNK if self.n > 10**5 else 100  # a small data set has a chunk for each rank, too
        for batch in self.pipeline(order, chunk=chunk):
            yield payloads(batch)


class Fetching(Zephon):
    title = f"the same, {FETCH:,} records fetched at once"
    fetch, seconds = FETCH, 30


class Small(Fetching):
    """Zephon over shards of 1,000 records, which are made of the others."""

    title = f"Zephon, shards of 1,000 records, {FETCH:,} at once"
    place, orders = "small", tuple(ORDERS)

    def prepare(self):
        place = folder(self.n) / self.place
        place.mkdir(exist_ok=True)
        shard = 0
        for path in sources(self.n):
            with open(path, "rb") as file:
                while lines := list(itertools.islice(file, SMALL_SHARD)):
                    (place / f"{shard:06}.jsonl").write_bytes(b"".join(lines))
                    shard += 1
        return self._index() | {"written": written(place)}


class Apart(Small):
    """The same in a process of its own, which Zephon advises for production runs."""

    title = "the same, its engine in another process"
    orders = ("global",)
    options = {"mtp_mode": True, "mtp_auto_checkpoint": False, "aggregate_timeout_s": 1}  # no other ranks run


class Mds(Zephon):
    """Zephon over shards of MDS, since it prefers binary formats."""

    title = "Zephon, a copy in MDS"
    place, format, orders = "mds", "mds", tuple(ORDERS)

    def load(self):
        from . import mds  # noqa: F401

    def prepare(self):
        from .mds import streaming

        place = folder(self.n) / self.place
        shutil.rmtree(place, ignore_errors=True)
        with streaming.MDSWriter(out=str(place), columns=COLUMNS) as writer:
            for path in sources(self.n):
                with open(path, "rb") as file:
                    for line in file:
                        writer.write(json.loads(line))
        return {"written": written(place), "index": 0.0}

    def pipeline(self, *arguments, **options):
        from . import mds  # noqa: F401 - Zephon imports what this makes importable

        return super().pipeline(*arguments, **options)


READERS = {each.__name__: each for each in (Ours, Zephon, Fetching, Small, Apart, Mds)}


def payloads(batch):
    """Return the records of a batch of Zephon."""
    return [record.payload for record in batch.records]
