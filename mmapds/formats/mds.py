"""Shards of MosaicML's streaming (`MDSWriter`): samples of named fields. A record is a sample.

A shard is: u32 n; u32[n + 1] offsets from its first byte, where samples begin and the last one ends; JSON with the
names and encodings of the fields; the samples. All numbers are little-endian. A sample is a u32 size for each field
whose encoding has no fixed size, then the values, in the order of the names. `index.json` beside the shards says the
same, so it is not read.

The layout is that of streaming/base/format/mds/writer.py, version 2. A shard may be compressed as a whole.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any

from ..compression.blocks import Data
from ..compression.content import Part, opened
from ..errors import FormatError, option, plain_counted, shortened
from .expressions import Measuring
from .format import (
    PLAIN_OR_COMPRESSED,
    TRUNCATED,
    EncodedOf,
    End,
    Format,
    Parameters,
    Piece,
    Sample,
    Sources,
    Walk,
    walked,
)

NUMBERS = {f"{kind}{bits}": bits // 8 for kind in ("int", "uint", "float") for bits in (8, 16, 32, 64)}
"""Types of numbers, and their bytes."""
del NUMBERS["float8"]
IMAGES = {"pil", "jpeg", "png", "jpegarray", "jpeg_array", "list[pil]", "list[jpeg]", "list[png]"}
OTHERS = {"bytes", "str", "json", "str_int", "str_float", "str_decimal"}
_NDARRAY = re.compile(rf"ndarray(?::({'|'.join(NUMBERS)})(?::([1-9]\d{{0,18}}(?:,[1-9]\d{{0,18}})*))?)?")
_ROOM = 1 << 16  # samples in a piece of a scan
_MOST_JSON = 16 << 20  # bytes that describe the fields
_MOST_SAMPLES = 1 << 26  # in a compressed shard, whose offsets must be held


class Mds(Format):
    """Samples in shards of MosaicML's streaming."""

    name = "mds"
    suffixes = (".mds",)
    codecs = PLAIN_OR_COMPRESSED
    options = TRUNCATED
    decoders = ("pil", "bytes")

    def parameters(self, given: Mapping[str, Any], sources: Sequence[str]) -> dict[str, Any]:
        """Return `encodings`, field to encoding, which all sources must share, and `truncated`."""
        return {**self.shared(sources, lambda path: {"encodings": _encodings(path)}), **self.truncated(given)}

    def decoder(self, parameters: Parameters) -> Sample:
        encodings = parameters["encodings"]
        if not isinstance(encodings, dict):
            raise ValueError(f"encodings = {shortened(encodings)}, expected an object")
        for encoding in encodings.values():
            fixed_size(encoding)
        return EncodedOf(encodings)

    def scan(self, sources: Sources, parameters: Parameters, measuring: Measuring, *, workers: int) -> Iterator[Piece]:
        """Yield the start and the size of every sample of every source, from the header; check all its numbers."""
        yield from walked(sources, parameters, measuring, workers, _ROOM, ShardWalk)


class ShardWalk(Walk):
    """A walk that holds the header, and finds the samples when it has seen the end of the shard."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._header = bytearray()
        self._samples = self._kept = 0

    def scan(self, part: Part, data: Data) -> Iterator[None]:
        import numpy as np  # start-up time: other formats do not need it

        self.size = part.end
        for _ in range(2):  # the number of samples, then their offsets
            begin, end = len(self._header), self._wanted()
            self._header += data[begin - part.begin : end - part.begin] if begin < end else b""
        if not part.is_last:
            return
        bounds = self._bounds()
        self._kept = int(np.searchsorted(bounds[1:], self.size, side="right"))
        if self._kept < self._samples and not self.drop:
            begin, end = bounds[self._kept : self._kept + 2]
            raise FormatError(
                f"{self.source.path}: record {self._kept} (byte {begin}): expected {end - begin} bytes, found "
                f"{max(self.size - int(begin), 0)}; leave it out, and all after it, with {option('truncated', 'drop')}"
            )
        if self._kept == self._samples and bounds[-1] != self.size:
            raise FormatError(
                f"{self.source.path}: expected {bounds[-1]} bytes, as its header says, found {self.size}; "
                "copy the file again"
            )
        starts, sizes, _ = (np.frombuffer(words, np.uint64) for words in self.slot)
        for begin in range(0, self._kept, len(starts)):
            if begin:
                yield
            found = bounds[begin : min(begin + len(starts), self._kept) + 1]
            self.found, self.at = len(found) - 1, int(found[-1])
            starts[: self.found], sizes[: self.found] = found[:-1], np.diff(found)
        self.at = int(bounds[self._kept])

    def end(self) -> tuple[End, int]:
        content = self.size if self.source.codec else 0
        return End(self._kept, self.at, content=content), self._samples - self._kept

    def _wanted(self) -> int:
        """Return how many bytes the header has up to the end of the offsets, as far as is known."""
        if len(self._header) < 4:
            return 4
        self._samples = int.from_bytes(self._header[:4], "little")
        if self.source.codec and self._samples > _MOST_SAMPLES:
            raise FormatError(
                f"{self.source.path}: expected up to {_MOST_SAMPLES} samples in a compressed shard, found "
                f"{self._samples}; decompress it"
            )
        return _header_size(self._samples)

    def _bounds(self) -> Any:
        """Return where each sample begins, and the last one ends: uint32, shape (samples + 1,)."""
        import numpy as np  # start-up time: other formats do not need it

        if len(self._header) < (wanted := self._wanted()):
            raise FormatError(f"{self.source.path}: expected a header of {wanted} bytes, found {self.size} in all")
        bounds = np.frombuffer(self._header, "<u4", offset=4)
        falls = np.flatnonzero(bounds[1:] < bounds[:-1])
        if len(falls):
            number = int(falls[0])
            raise FormatError(
                f"{self.source.path}: record {number} (byte {bounds[number]}): expected its end there or later, found "
                f"byte {bounds[number + 1]}; copy the file again"
            )
        return bounds


def _header_size(samples: int) -> int:
    """Return the bytes of the number of samples and of their offsets."""
    return 4 + 4 * (samples + 1)


def _encodings(path: str) -> dict[str, str]:
    """Return the encoding of each field, by its name, as a shard says."""
    with opened(path) as file:
        samples, first = (int.from_bytes(file.read(4), "little") for _ in range(2))
        at, found = _header_size(samples), b""
        if 0 < first - at <= _MOST_JSON:
            file.seek(at)
            found = file.read(first - at)
    if not found or len(found) < first - at:
        what = f"{plain_counted(samples, 'sample')}, the first at byte {first}"
        raise FormatError(
            f"{path}: expected a shard of MDSWriter, with up to {_MOST_JSON} bytes of JSON from byte {at} on, found "
            f"{what}; copy the file again"
        )
    try:
        config = json.loads(found)
        kind, version = config["format"], config["version"]
        names, encodings, sizes = (config[f"column_{key}"] for key in ("names", "encodings", "sizes"))
        if not len(names) == len(encodings) == len(sizes) == len(set(names)) or not all(
            isinstance(each, str) for each in names
        ):
            raise ValueError(f"expected a name, an encoding and a size for each column, found {shortened(names)}")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise FormatError(f"{path}: not JSON of an MDS shard from byte {at} on: {error!r}") from None
    if (kind, version) != ("mds", 2):
        raise FormatError(f"{path}: expected format 'mds' of version 2, found {kind!r} of version {version!r}")
    for name, encoding, size in zip(names, encodings, sizes, strict=True):
        try:
            wanted = fixed_size(encoding)
        except ValueError as error:
            raise FormatError(f"{path}: field {name!r}: {error}") from None
        if size != wanted:
            raise FormatError(
                f"{path}: field {name!r}: expected size {wanted} for {encoding!r}, found {shortened(size)}"
            )
    return dict(zip(names, encodings, strict=True))


def fixed_size(encoding: Any) -> int | None:
    """Return the bytes of each value of an encoding, None if they vary; raise ValueError for another encoding."""
    if encoding == "pkl":
        raise ValueError("expected values that are read without running code, found 'pkl'; write it as another type")
    if isinstance(encoding, str):
        if encoding == "int":
            return 8
        if encoding in NUMBERS:
            return NUMBERS[encoding]
        if encoding in IMAGES or encoding in OTHERS:
            return None
        if _NDARRAY.fullmatch(encoding):
            dtype, shape = array_type(encoding)
            return None if dtype is None or shape is None else NUMBERS[dtype] * prod(shape)
    raise ValueError(f"expected an encoding of MDSWriter, found {shortened(encoding)}")


def array_type(encoding: str) -> tuple[str | None, tuple[int, ...] | None]:
    """Return the dtype and the shape of an encoding `ndarray[:DTYPE[:SIZE,...]]`; None for what each value says."""
    found = _NDARRAY.fullmatch(encoding)
    assert found is not None
    dtype, shape = found.groups()
    return dtype, tuple(map(int, shape.split(","))) if shape else None
