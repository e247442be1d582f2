"""Sources, array files, indexes and saved views that another process writes to at every moment while they are read,
sorted, verified or indexed.

What comes out is some bytes of the file, or an error: nothing ends the process, and nothing is read or written outside
its memory. `make test-asan` would see that; a scan of the core finds no more than there is room for, leaves the words
behind its room as they were, and comes to an end.
"""

import itertools
import time
import warnings
from contextlib import suppress

import numpy as np

import mmapds
from mmapds import _native
from mmapds.storage.index_file import Index
from mmapds.storage.numbers import scratch, sort_lengths
from tests.support.compressed import bgzf, frames, text
from tests.support.forged import COMPRESSED, KINDS, make_source, one_member, small_blocks, small_tar
from tests.support.index_file import verify
from tests.support.rewriting import written_to

EACH = 1
SAYS = "files written to while they were read or scanned: bytes of the file in its bounds, or an error"
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


def use(random, folder):
    """Index, verify, open and read for a while."""
    kind, io = random.choice([*KINDS, *COMPRESSED]), random.choice(["mmap", "mmap", "pread"])
    path, view = str(make_source(folder, kind)), str(folder / "view.mmx")
    mmapds.open(path)[random.choice([slice(None, None, 2), [3, 1, 1, 0, 2]])].save(view)
    victim = random.choice([path, path, path, f"{path}.mmx", view])
    opened, is_index = view if victim == view else path, victim.endswith(".mmx")
    # Where an index changes after it was checked, whoever uses its numbers may refuse them.
    refused = (mmapds.Error, *((ValueError, IndexError, OverflowError) if is_index else ()))
    with written_to(random, victim, HEADER if is_index or kind == "mma" else 0), suppress(*refused):
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


# ---- scans of the core -----------------------------------------------------------------------------------------

BEHIND = 0x5EA1ED5EA1ED5EA1
"""A word that stands behind all memory that a scan is given."""
JSON = b"".join(b'{"n": %d, "text": "%s"}\n' % (k, b"\\u00e9x" * (k % 9)) for k in range(300))
PREFIXED = b"".join(len(line).to_bytes(4, "little") + line for line in JSON.splitlines())
FRAMINGS = [getattr(_native, f"FRAMING_{name}") for name in ("U32LE", "U32BE", "U64LE", "VARINT", "TFRECORD")]
FIELDS = (_native.MEASURE_NUMBER, (b"n",)), (_native.MEASURE_CHARS, (b"text",))


def lines(random, room, data, _map, _path):
    found = room(len(data) // 2 + 2)
    assert _native.scan_lines(random.choice([None, *_native.simd_variants()]), data, 0, 0, found)[0] <= len(found)


def measured(random, room, data, _map, _path):
    bad, size = random.random() < 0.5, len(data) // 2 + 2
    measuring = _native.Measuring(fields=FIELDS, missing=0, fill=(0, 0), validate=True, skip_bad=bad)
    assert measuring.lines(data, 0, 0, len(data), room(size), (room(size), room(size)))[1] <= size


def framed(random, room, data, source, _path):
    where = random.choice([data, source])
    _native.frames_scan(where, random.choice(FRAMINGS), 0, len(data), room(len(data) + 2), room(len(data) + 2))


def archived(_random, room, data, source, path):
    scanner, view, at, status = _native.TarScanner(path), memoryview(source), 0, _native.TAR_OK
    for _ in range(len(data) // 512):
        if status == _native.TAR_OK:
            status, _, at, *_ = scanner.scan(view[at:], len(view), True, room(3), room(3), room(3))
    _native.tar_members(data, 2**62)


def sorted_by_length(random, _room, data, _map, _path):
    with suppress(ValueError):  # the sort says that they changed
        sort_lengths(data[: len(data) // 8 * 8], random.choice([4, 8]), scratch)


def inflated(_random, room, _data, source, _path):
    inflater, out = _native.Inflater(source), room(8192)
    for _ in range(100):
        if inflater.read(out.view(np.uint8), 0, 4096)[0]:
            break


def walked(_random, room, data, source, _path):
    _native.zstd_walk(source, len(data), 1 << 27, np.zeros(7, np.uint64), room(20), room(20))


SCANS = [
    *((scan, data) for scan in (lines, measured) for data in (b"\n \n" * 999, b"7\n" * 999, JSON)),
    (framed, PREFIXED),
    (archived, small_tar(30)),
    *((sorted_by_length, data) for data in (bytes(8000), np.arange(2000, dtype="<u4").tobytes())),
    *((inflated, data) for data in (one_member(text(60)), bgzf(text(60), 1700))),
    (walked, b"".join(frames(text(60), 1100))),
]


def scan(random, folder):
    """Scan a map for a while."""
    (scans, data), path, rooms = random.choice(SCANS), folder / "a", []

    def room(words):
        rooms.append((np.full(words + 8, BEHIND, np.uint64), words))
        return rooms[-1][0][:words]

    path.write_bytes(data)
    with written_to(random, str(path)):
        shared, end = np.memmap(path, np.uint8, "r"), time.monotonic() + SECONDS
        while time.monotonic() < end:
            scans(random, room, shared, _native.Map(str(path)), str(path))
            assert all((given[words:] == BEHIND).all() for given, words in rooms), "wrote behind its room"
            rooms.clear()


def one(random, folder):
    with small_blocks(), warnings.catch_warnings(action="ignore"):
        random.choice([use, use, scan])(random, folder)
