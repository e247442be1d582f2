"""Indexes and array files that are forged: any field is any value, and every checksum is right."""

import json
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import reduce
from operator import getitem
from pathlib import Path
from unittest.mock import patch

import numpy as np
import xxhash

import mmapds
from mmapds.compression import gzip, zstd
from mmapds.compression.blocks import packed_point, unpacked_point
from mmapds.storage.index_file import Index
from mmapds.storage.sections import POINT_BOUNDS, POINTS
from tests.support.compressed import bgzf, frames, text
from tests.support.formats import write_source
from tests.support.index_file import FIELDS, HEADER, arrays, verify
from tests.support.tars import archive

ODD = [None, True, -1, 0, 1, 5, 2**31, 2**63, 2**64, 1.5, "", "x", "<u8", "|u1", "<f8", [], [1], {}, {"a": 1}]
ODD += ["../a.jsonl", "\udc80", "\0", "03f4", "a" * 300, "fixed", "jsonl", "tar", "bytes()"]
ODD += [{"names": ["a"], "formats": ["i4"], "offsets": [2**70]}]
OBJECTS = ["|O", "O", "T", "O,O", "i4,O", "2O"]
"""Types whose values are pointers, alone or beside numbers."""
ODD += OBJECTS
NUMBERS = [0, 1, 2, 7, 8, 63, 64, 65, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40]
NUMBERS += [2**63 - 1, 2**63, 2**64 - 1]
KINDS = ["jsonl", "fixed", "npy", "prefixed", "tfrecord", "tar", "megatron", "mds", "mma"]
OPTIONS = {
    "jsonl": {"length": "n", "columns": {"size": "bytes()", "i": "i", "f": "f", "u": "u"}},
    "fixed": {"format": "fixed", "dtype": "u8", "shape": (1, 3), "length": "bytes()"},
    "prefixed": {"format": "prefixed", "length": "bytes()"},
    "megatron": {"format": "megatron"},
}
MANY = 60
"""Records, whose bounds take more than one group."""
COMPRESSED = ["jsonl.zst", "jsonl.gz", "jsonl.bgz", "tar.zst", "tar.gz"]
"""Of many blocks each, inside `small_blocks()`: frames, parts of one member, members, frames, parts of one member."""


@contextmanager
def small_blocks() -> Iterator[None]:
    """Let blocks be small, so that small compressed files have several."""
    with patch.object(zstd, "SMALLEST", 64), patch.multiple(gzip, SMALLEST=64, SPACING=1500):
        yield


def compress(data, kind):
    """Compress data as a source of this kind is."""
    if kind.endswith(".gz"):  # a member of many blocks of deflate, so that it has many access points
        packer = zlib.compressobj(6, zlib.DEFLATED, 31, 1)
        return packer.compress(data) + packer.flush()
    return bgzf(data, 1700) if kind.endswith(".bgz") else b"".join(frames(data, 1100))


def make_source(folder, kind):
    """Write a small source of a format, and its index with what an index of it can have; return its path."""
    path = folder / f"a.{kind}"
    if kind == "jsonl":
        line = b'{"n":%d,"text":"%s","i":%d,"f":%.1f,"u":%d}\n'
        path.write_bytes(b"".join(line % (i % 4, b"x" * (i % 6), i - 2, i / 2, 2**63 + i) for i in range(MANY)))
    elif kind == "fixed":
        path.write_bytes(bytes(range(240)))
    elif kind in ("npy", "prefixed", "tfrecord", "megatron", "mds"):
        path = Path(write_source(folder, kind, MANY if kind == "prefixed" else 6, 9)[0])
    elif kind == "tar":
        path.write_bytes(small_tar(4))
    elif kind in COMPRESSED:
        path.write_bytes(compress(small_tar(12) if kind.startswith("tar") else text(60, longest=200), kind))
    else:
        with mmapds.Writer(path) as writer:
            for i in range(4):
                sample = {"a": np.arange(i, dtype="f4"), "n": i, "s": "é" * i, "j": {"a": [i]}}
                writer.write(sample | {"i": i - 2, "f": i / 2, "u": np.uint64(2**63 + i)})
        return path
    mmapds.build(path, **OPTIONS.get(kind, {"length": "bytes()"} if kind in COMPRESSED else {}))
    if kind == "jsonl":
        mmapds.add_column(path, "computed", [1.5] * MANY)
    return path


def small_tar(samples):
    """A tar of some samples of two members each."""
    data = json.dumps({"a": 1}).encode()
    return archive([(f"k{i}.{e}", b) for i in range(samples) for e, b in (("txt", b"x" * i), ("json", data))])


def places(value, path=()):
    """Every place in metadata, outermost first."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, (*path, key))


def changed(metadata, path, change):
    """A copy in which the value at a place is another one, or gone."""
    copy = json.loads(json.dumps(metadata))
    holder = value_at(copy, path[:-1])
    if change == "gone":
        del holder[path[-1]]
    else:
        holder[path[-1]] = change
    return copy


def value_at(metadata, path):
    """The value at a place."""
    return reduce(getitem, path, metadata)


class Forgery:
    """A file of sections that is being forged.

    Args:
      data: the bytes of a good one.
    """

    def __init__(self, data):
        self._data = bytearray(data)
        self.header = dict(zip(FIELDS, HEADER.unpack_from(data), strict=True))
        begin = self.header["offset"]
        self.metadata = json.loads(self._data[begin : begin + self.header["length"]])
        del self._data[begin:]

    def change(self, random):
        """Change something; return what, for messages."""
        once = [self._swapped, self._retyped, self._point, self._field]
        with suppress(Exception):  # what it changes is not there, or forged already
            return random.choice([*once, *[self._numbers] * 2, *[self._value] * 3])(random)
        return "nothing"

    def _value(self, random):
        place = random.choice(list(places(self.metadata))[1:])
        now = value_at(self.metadata, place)
        choices = [*ODD, "gone"]
        if isinstance(now, int):
            choices += [now + 1, now - 1, now * 2, now + 64, *NUMBERS] * 2
        if isinstance(now, str):
            choices += [now[::-1], now.upper(), now + "x", "u2", "<i8", "<u4", "text", "json"]
        choices += [value_at(self.metadata, random.choice(list(places(self.metadata))[1:]))]
        value = random.choice(choices)
        self.metadata = changed(self.metadata, place, value)
        return f"{place} = {value!r}"

    def _field(self, random):
        name = random.choice([name for name in FIELDS if name not in ("magic", "checksum")])
        value = random.choice([*NUMBERS, self.header[name] + 1, self.header[name] - 1]) % 2**64
        self.header[name] = value % 2**32 if name in ("version", "header_size") else value
        return f"header {name} = {value}"

    def _numbers(self, random):
        name = random.choice(sorted(self.metadata["sections"]))
        begin, before, numbers = self.metadata["sections"][name]["offset"], self.section(name), self.section(name)
        at, other = random.randrange(len(numbers)), random.randrange(len(numbers))
        words = numbers.view(f"<u{numbers.itemsize}")
        near = (int(words[other]) + n for n in (0, 0, -64, -8, -1, 1, 8, 64))
        words[at] = random.choice([*NUMBERS, *near]) % 256**numbers.itemsize
        if random.random() < 0.3:
            numbers[[at, other]] = before[[other, at]]
        elif random.random() < 0.3:
            numbers[at:-1] = before[at + 1 :]  # one is left out
        elif random.random() < 0.3:
            numbers.view(np.uint8)[random.randrange(numbers.nbytes)] ^= random.randrange(256)
        self._data[begin : begin + numbers.nbytes] = numbers.tobytes()
        return f"{name}[{at}] = {numbers[at]}"

    def _swapped(self, random):
        sections = self.metadata["sections"]
        one, other = random.sample(sorted(sections), 2)
        sections[one], sections[other] = sections[other], sections[one]
        return f"sections {one} and {other} swapped"

    def _retyped(self, random):
        """Let a section be numbers of another type, with the same bytes."""
        name = random.choice(sorted(self.metadata["sections"]))
        section = self.metadata["sections"][name]
        section["dtype"] = random.choice(["<u8", "<i8", "<f8"] if section["dtype"][2:] == "8" else ["<u4", "|u1"])
        return f"section {name} of {section['dtype']}"

    def _point(self, random):
        """Change an access point: its checksum, its window, or both, deflated again."""
        bounds, points = self.section(POINT_BOUNDS), self.section(POINTS).tobytes()
        at = random.choice([k for k in range(len(bounds) - 1) if bounds[k] < bounds[k + 1]])
        begin, end = bounds[at : at + 2].tolist()
        crc, window = unpacked_point(points[begin:end])
        crc = random.choice([crc, crc, 0, crc ^ 1])
        window = random.choice([window, window[1:], window[:-1], bytes(len(window)), window * 40, b"", b"x" + window])
        packed = random.choice([packed_point(crc, window), crc.to_bytes(4, "little") + window, points[:begin], b""])
        moved = bounds.astype(np.int64)
        moved[at + 1 :] += len(packed) - (end - begin)
        self.replace(POINTS, np.frombuffer(points[:begin] + packed + points[end:], np.uint8))
        self.replace(POINT_BOUNDS, moved.astype(bounds.dtype))
        if random.random() < 0.8:
            self.metadata["sources"][0]["compression"]["points"] = int(moved[-1])
        return f"access point {at} of {len(window)} bytes, checksum {crc}, as {len(packed)} bytes"

    def section(self, name):
        """The numbers of a section."""
        section = self.metadata["sections"][name]
        return np.frombuffer(bytes(self._data), section["dtype"], section["shape"][0], section["offset"]).copy()

    def replace(self, name, numbers):
        """Let a section be other numbers, behind all others."""
        self._data += bytes(-len(self._data) % 64)
        self.metadata["sections"][name] |= {"offset": len(self._data), "shape": [len(numbers)]}
        self._data += numbers.tobytes()

    def bytes(self):
        """The whole file, every checksum right that can be."""
        sections = self.metadata.get("sections")
        for section in sections.values() if isinstance(sections, dict) else ():
            with suppress(Exception):
                size = section["shape"][0] * int(section["dtype"][2:])
                held = self._data[section["offset"] : section["offset"] + size]
                section["xxh3"] = xxhash.xxh3_64(bytes(held)).hexdigest()
        text = json.dumps(self.metadata).encode()
        header = dict(self.header)
        original = header["offset"], header["length"], header["file_size"]
        if original[0] + original[1] == original[2]:  # not forged, so they follow what was written
            header |= {"offset": len(self._data), "length": len(text), "file_size": len(self._data) + len(text)}
        packed = HEADER.pack(*header.values())[:-8]
        packed += struct.pack("<Q", xxhash.xxh3_64(packed + text).intdigest())
        return bytes(packed + self._data[len(packed) :] + text)


REFUSED = object()
MOST_ALONE = 60
"""Records that are read one by one, as bytes: each is right or refused, whatever others are."""


def attempt(action):
    """Return what an action gives, or REFUSED if it raises one of mmapds's errors."""
    try:
        return action()
    except mmapds.Error:
        return REFUSED


def plain(value):
    """A sample as values that compare, made by a look at every entry."""
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject:  # without assert, as pytest would look at them, which ends the process
            raise AssertionError(f"{value.dtype} of bytes of a file")
        repr(value)
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return repr(value) if isinstance(value, float) else value


def observe(path):
    """What is read by way of an index: by name, REFUSED where that is an error of mmapds's."""
    ds = attempt(lambda: mmapds.open(path))
    if ds is REFUSED:
        return {}
    found = {
        "records": attempt(lambda: plain(list(ds))),
        "batch": attempt(lambda: plain(list(ds.take(range(len(ds))[::-1])))),
        "places": attempt(lambda: [tuple(ds.where(i)) for i in range(len(ds))]),
        "view": attempt(lambda: plain(list(ds[::2]))),
        "found": attempt(lambda: ds.find("k1")),
        "length order": attempt(lambda: REFUSED if ds.length_order is None else plain(list(arrays(ds.length_order)))),
    }
    attempt(lambda: (ds.sources, repr(ds), ds.fingerprint))
    names = attempt(lambda: list(ds.columns))
    for name in [] if names is REFUSED else names:
        found[f"column {name}"] = attempt(lambda name=name: plain(ds.column(name)))
    raw = attempt(lambda: mmapds.open(path, decode="bytes"))
    for row in range(min(len(ds), MOST_ALONE)):
        found[f"record {row}"] = attempt(lambda row=row: REFUSED if raw is REFUSED else raw[row])
    if "column length" in found and found["column length"] is not REFUSED:
        sampler = attempt(lambda: list(mmapds.TokenBudgetBatchSampler(ds, 1000, min_length=0, seed=1)))
        found["batches"] = sampler if sampler is REFUSED else sorted(each for batch in sampler for each in batch)
    return found


def is_verified(index):
    """Whether --verify passes over an index."""
    return attempt(lambda: verify(Index(index))) is None


def wrong(path, index, good):
    """Names of what is read wrongly, though --verify passes.

    Columns computed in Python have only a checksum, and so has the order of lengths where these were.
    """
    found = observe(path)
    differing = [name for name, value in found.items() if value is not REFUSED and value != good.get(name)]
    if not differing or not is_verified(index):
        return []
    computed = {f"column {name}" for name in Index(index).computed_columns}
    computed |= {"length order", "batches"} if "column length" in computed else set()
    return [name for name in differing if name not in computed]
