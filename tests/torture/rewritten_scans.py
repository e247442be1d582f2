"""Files that another process writes to at every moment while the core scans their maps.

A byte that is read twice may be another one the second time. Whatever the core finds, it finds no more than there is
room for, writes nothing beyond that, and comes to an end.
"""

import os
import tempfile
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np

from mmapds import _native
from mmapds.storage.numbers import scratch, sort_lengths
from tests.support.compressed import bgzf, frames, text
from tests.support.forged import one_member, small_tar
from tests.support.rewriting import written_to
from tests.support.torture import repeat

SECONDS = 0.3
"""How long one file is written to."""
BEHIND = 0x5EA1ED5EA1ED5EA1
"""A word that stands behind all memory that a scan is given."""


class Rooms:
    """Memory that is handed to a scan, with words behind it that must stay as they are."""

    def __init__(self):
        self._rooms = []

    def __call__(self, words):
        room = np.full(words + 8, BEHIND, np.uint64)
        self._rooms.append((room, words))
        return room[:words]

    def check(self):
        for room, words in self._rooms:
            assert (room[words:] == BEHIND).all(), f"wrote beyond the {words} words that it was given"


def lines(rooms, data, _path, variant):
    room = rooms(len(data) // 2 + 2)
    count, _, _ = _native.scan_lines(variant, data, 0, 0, room)
    assert count <= len(room)


def measured(rooms, data, _path, skip_bad):
    fields = (_native.MEASURE_NUMBER, (b"n",)), (_native.MEASURE_CHARS, (b"text",))
    measuring = _native.Measuring(fields=fields, missing=0, fill=(0, 0), validate=True, skip_bad=skip_bad)
    size = len(data) // 2 + 2
    _, kept, *_ = measuring.lines(data, 0, 0, len(data), rooms(size), (rooms(size), rooms(size)))
    assert kept <= size


def framed(rooms, data, path, framing):
    room, sizes = rooms(len(data) + 2), rooms(len(data) + 2)
    _native.frames_scan(data, framing, 0, len(data), room, sizes)
    _native.frames_scan(_native.Map(path), framing, 0, len(data), room, sizes)


def archived(rooms, data, path):
    scanner, view, at = _native.TarScanner(path), memoryview(_native.Map(path)), 0
    for _ in range(len(data) // 512):
        status, _, at, *_ = scanner.scan(view[at:], len(view), True, rooms(3), rooms(3), rooms(3))
        if status != _native.TAR_OK:
            break


def members(_rooms, data, _path):
    _native.tar_members(data, 2**62)


def sorted_by_length(_rooms, data, _path, width):
    with suppress(ValueError):  # the sort says that they changed
        sort_lengths(data[: len(data) // 8 * 8], width, scratch)


def inflated(rooms, _data, path):
    inflater, out = _native.Inflater(_native.Map(path)), rooms(8192)
    for _ in range(100):
        status, *_ = inflater.read(out.view(np.uint8), 0, 4096)
        if status:
            break


def walked(rooms, data, path):
    state = np.zeros(7, np.uint64)
    _native.zstd_walk(_native.Map(path), len(data), 1 << 27, state, rooms(20), rooms(20))


JSON = b"".join(b'{"n": %d, "text": "%s"}\n' % (k, b"\\u00e9x" * (k % 9)) for k in range(300))
PREFIXED = b"".join(len(text).to_bytes(4, "little") + text for text in JSON.splitlines())
FRAMINGS = [getattr(_native, f"FRAMING_{name}") for name in ("U32LE", "U32BE", "U64LE", "VARINT", "TFRECORD")]
VARIANTS = [None, *_native.simd_variants()]
SCANS = [
    *((partial(lines, variant=variant), data) for variant in VARIANTS for data in (b"\n \n" * 999, b"a\n" * 999, JSON)),
    *((partial(measured, skip_bad=skip), data) for skip in (False, True) for data in (b"7\n" * 999, JSON)),
    *((partial(framed, framing=framing), PREFIXED) for framing in FRAMINGS),
    (archived, small_tar(30)),
    (members, small_tar(1)),
    *((partial(sorted_by_length, width=width), bytes(8000)) for width in (4, 8)),
    *((partial(sorted_by_length, width=width), np.arange(2000, dtype="<u4").tobytes()) for width in (4, 8)),
    (inflated, one_member(text(60))),
    (inflated, bgzf(text(60), 1700)),
    (walked, b"".join(frames(text(60), 1100))),
]


def one(random):
    scan, data = random.choice(SCANS)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a")
        path.write_bytes(data)
        shared = np.memmap(path, np.uint8, "r")
        with written_to(random, os.fspath(path)):
            end = time.monotonic() + SECONDS
            while time.monotonic() < end:
                rooms = Rooms()
                scan(rooms, shared, os.fspath(path))
                rooms.check()


def run(seconds, seed):
    """Scan until the time is over; see tests/support/torture.py."""
    return f"{repeat(one, seconds, seed):,} files written to while they were scanned: in bounds, to the end"
