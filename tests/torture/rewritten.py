"""Sources, array files, indexes and saved views that another process writes to at every moment while they are read,
sorted, verified or indexed.

What comes out is some bytes of the file, or an error: nothing ends the process, and nothing is read or written outside
its memory, which `make test-asan` would see.
"""

import itertools
import os
import tempfile
import time
import warnings
from contextlib import contextmanager, suppress
from pathlib import Path

import mmapds
from mmapds.storage.index_file import Index
from tests.support.forged import COMPRESSED, KINDS, make_source, small_blocks
from tests.support.index_file import verify
from tests.support.rewriting import written_to
from tests.support.torture import repeat

SECONDS = 0.5
"""How long one file is written to."""
HEADER = 64
"""Bytes of an index or an array file that are left alone, else hardly any could be opened."""
OPTIONS = {
    "jsonl": {"length": "n", "columns": {"chars": "chars(text)"}, "bad": "skip"},
    "fixed": {"format": "fixed", "dtype": "u2", "shape": (3, 4)},
    "prefixed": {"format": "prefixed", "length": "bytes()"},
    "megatron": {"format": "megatron"},
    "mma": {"length": "n"},
}
"""How a source is indexed; others with the size of their records."""
NUMBERS_CHANGED = (ValueError, IndexError, OverflowError)


@contextmanager
def refused(victim):
    """Let what is done be refused by an error of mmapds's, or, where an index changes after it was checked, by one of
    whoever uses its numbers.
    """
    with suppress(mmapds.Error, *(NUMBERS_CHANGED if victim.endswith(".mmx") else ())):
        yield


def read(random, ds):
    """Read a dataset in one of many ways."""
    positions = [random.randrange(len(ds)) for _ in range(random.choice([1, 8, 64]))]
    match random.randrange(8):
        case 0:
            repr([ds[position] for position in positions])
        case 1:
            repr(list(ds.take(positions)))
        case 2:
            repr([ds.raw(position) for position in positions])
        case 3:
            ds.find(random.choice(["k1", "nothing"]))
        case 4:
            with suppress(TypeError):  # samples of some decoders cannot be made a batch of
                mmapds.pad_collate(ds.take(positions))
        case 5:
            repr(list(ds[::3]))
        case 6:
            repr([ds.place(position) for position in positions])
        case _:
            sampler = mmapds.TokenBudgetBatchSampler(ds, 1000, min_length=0, seed=random.randrange(9))
            list(itertools.islice(sampler, 20))


def decoder(random, kind):
    """Something to decode records of this kind by."""
    fields = mmapds.Fields({"n": "int64", "text": "str", "f": "float32"}, defaults={"f": 0})
    wanted = {"a": "float64", "n": "int32", "s": "str", "j.a": "int64", "i": "int64", "f": "float32", "none": "int8"}
    stored = mmapds.Fields(wanted, defaults={"j.a": [], "none": [1]})
    known = {
        "jsonl": ["json", "text", "bytes", fields],
        "tar": ["files", "wds", "bytes"],
        "mma": [None, "bytes", stored],
    }
    return random.choice(known.get(kind.partition(".")[0], [None, "bytes"]))


def use(random, kind, path, opened, victim):
    """Index, verify, open and read for a while."""
    io = random.choice(["mmap", "mmap", "pread"])
    ds, end = mmapds.open(opened, decode=decoder(random, kind), io=io, check="none"), time.monotonic() + SECONDS
    while time.monotonic() < end:
        with refused(victim):
            match random.randrange(5):
                case 0 if victim == path:
                    workers, options = random.choice([1, 2]), OPTIONS.get(kind, {"length": "bytes()"})
                    mmapds.build(path, out=f"{path}.again.mmx", force=True, workers=workers, **options)
                case 1:
                    verify(Index(f"{path}.mmx"))
                case 2:
                    ds = mmapds.open(opened, decode=decoder(random, kind), io=io, check="none")
                case _:
                    read(random, ds)


def one(random):
    kind = random.choice([*KINDS, *COMPRESSED])
    with tempfile.TemporaryDirectory() as folder, small_blocks(), warnings.catch_warnings(action="ignore"):
        path = str(make_source(Path(folder), kind))
        view = os.path.join(folder, "view.mmx")
        mmapds.open(path)[random.choice([slice(None, None, 2), [3, 1, 1, 0, 2]])].save(view)
        victim = random.choice([path, path, path, f"{path}.mmx", view])
        begin = HEADER if victim.endswith((".mmx", ".mma")) else 0
        with written_to(random, victim, begin), refused(victim):
            use(random, kind, path, view if victim == view else path, victim)


def run(seconds, seed):
    """Write to files until the time is over; see tests/support/torture.py."""
    return f"{repeat(one, seconds, seed):,} files written to while they were read: bytes of the file, or an error"
