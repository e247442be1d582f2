"""Sources, array files, indexes and saved views that another process writes to at every moment while they are read,
sorted, verified or indexed.

What comes out is some bytes of the file, or an error: nothing ends the process, and nothing is read or written outside
its memory, which `make test-asan` would see.
"""

import itertools
import os
import subprocess
import sys
import time
import warnings
from contextlib import contextmanager, suppress

import mmapds
from mmapds.storage.index_file import Index
from tests.support.forged import COMPRESSED, KINDS, make_source, small_blocks
from tests.support.index_file import verify

EACH = 1
SAYS = "files written to while they were read or indexed: bytes of the file, or an error"
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

WRITER = """
import mmap, os, random, sys
path, seed, begin, parent = sys.argv[1], *map(int, sys.argv[2:])
random = random.Random(seed)
with open(path, "r+b") as file:
    mapped = mmap.mmap(file.fileno(), 0)
good = bytes(mapped)
ODD = b'\\n\\r "\\\\[]{},:-019eu.x/\\0\\x01\\x7f\\x80\\xe2\\xff'
print(flush=True)
while os.getppid() == parent:
    places = [random.randrange(begin, len(good)) for _ in range(random.choice([1, 4, 32]))]
    if random.random() < 0.5:
        places = range(places[0], min(places[0] + random.choice([2, 8, 64]), len(good)))
    others = [random.choice([random.choice(ODD), random.randrange(256), good[at] ^ 1]) for at in places]
    if random.random() < 0.5:
        others = others[:1] * len(others)
    for _ in range(random.choice([1, 30, 300])):
        for at, other in zip(places, others):
            mapped[at] = other
        for at in places:
            mapped[at] = good[at]
    if random.random() < 0.2:
        mapped[places[0]] = others[0]  # which stays
    if random.random() < 0.02:
        mapped[:] = good
"""


@contextmanager
def written_to(random, path, begin=0):
    """Let another process write any bytes to a file, from byte `begin` on, and mostly the first ones again."""
    command = [sys.executable, "-c", WRITER, path, str(random.randrange(2**32)), str(begin), str(os.getpid())]
    writer = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        writer.stdout.readline()
        yield
    finally:
        writer.kill()
        writer.wait()
        writer.stdout.close()


def read(random, ds):
    """Read a dataset in one of many ways."""
    positions = [random.randrange(len(ds)) for _ in range(random.choice([1, 8, 64]))]
    ways = [
        lambda: repr([ds[position] for position in positions]),
        lambda: repr(list(ds.take(positions))),
        lambda: repr([(ds.raw(position), ds.place(position)) for position in positions]),
        lambda: ds.find(random.choice(["k1", "nothing"])),
        lambda: mmapds.pad_collate(ds.take(positions)),
        lambda: repr(list(ds[::3])),
        lambda: list(itertools.islice(mmapds.TokenBudgetBatchSampler(ds, 1000, min_length=0), 20)),
    ]
    with suppress(TypeError):  # samples of some decoders cannot be made a batch of
        random.choice(ways)()


def decoder(random, kind):
    """Something to decode records of this kind by."""
    stored = {"a": "float64", "n": "int32", "s": "str", "j.a": "int64", "i": "int64", "f": "float32", "none": "int8"}
    known = {
        "jsonl": ["json", "text", "bytes", mmapds.Fields({"n": "int64", "text": "str"})],
        "tar": ["files", "wds", "bytes"],
        "mma": [None, "bytes", mmapds.Fields(stored, defaults={"j.a": [], "none": [1]})],
    }
    return random.choice(known.get(kind.partition(".")[0], [None, "bytes"]))


@small_blocks()
def one(random, folder):
    """Index, verify, open and read for a while."""
    kind, io = random.choice([*KINDS, *COMPRESSED]), random.choice(["mmap", "mmap", "pread"])
    path, view = str(make_source(folder, kind)), str(folder / "view.mmx")
    mmapds.open(path)[random.choice([slice(None, None, 2), [3, 1, 1, 0, 2]])].save(view)
    victim = random.choice([path, path, path, f"{path}.mmx", view])
    opened, is_index = view if victim == view else path, victim.endswith(".mmx")
    # Where an index changes after it was checked, whoever uses its numbers may refuse them.
    refused = (mmapds.Error, *((ValueError, IndexError, OverflowError) if is_index else ()))
    written = written_to(random, victim, HEADER if is_index or kind == "mma" else 0)
    with warnings.catch_warnings(action="ignore"), written, suppress(*refused):
        decode, end = decoder(random, kind), time.monotonic() + SECONDS
        ds = mmapds.open(opened, decode=decode, io=io, check="none")
        while time.monotonic() < end:
            with suppress(*refused):
                match random.randrange(5):
                    case 0 if victim == path:
                        options = OPTIONS.get(kind, {"length": "bytes()"}) | {"workers": random.choice([1, 2])}
                        mmapds.build(path, out=f"{path}.again.mmx", force=True, **options)
                    case 1:
                        verify(Index(f"{path}.mmx"))
                    case 2:
                        ds = mmapds.open(opened, decode=decode, io=io, check="none")
                    case _:
                        read(random, ds)
