"""The blocks of compressed sources as an index holds them: where each begins, and what decoding it there needs."""

import struct
import zlib
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from ..errors import FormatError
from .index_file import Index
from .numbers import BY_DTYPE, U64
from .sections import (
    BLOCK_BEGINS,
    BLOCK_BOUNDS,
    BLOCK_SECTIONS,
    POINT_BOUNDS,
    POINTS,
    WINDOW,
    Compression,
)
from .writer import SectionWriter

SMALLEST = 64 << 10
"""Bytes of content that a block has at least, unless it is the last one."""
BITS = {"zstd": 1, "gzip": 8}
"""Parts of a byte that blocks begin at, by codec."""
RANGE = struct.Struct("<QQ")
"""Where some bytes of the content begin and end."""
_NUMBERS = BLOCK_BEGINS, BLOCK_BOUNDS, POINT_BOUNDS
_CRC = 4  # bytes of an access point before its window
_LARGEST_POINT = _CRC + WINDOW + 64  # bytes: deflate adds less to what it cannot make smaller
_LEVEL = 1  # of the compression of access points
_PIECE = 1 << 17  # numbers that are copied at a time
_PAGE = 1 << 10  # blocks whose bounds are held in memory, to find some of them


class BlockError(Exception):
    """A block cannot be decoded; its message is the reason."""


def not_decoded(path: str, block: int, begin: int, codec: str, error: BlockError) -> FormatError:
    """Return the error to raise for a block that begins at a byte of the file."""
    return FormatError(f"{path}: block {block} (byte {begin}): not {codec}: {error}; copy the file again")


def pieces_of(read: Callable[[], bytes], size: int | None) -> Iterator[bytes]:
    """Yield what `read` returns until it is empty; raise BlockError unless it is so many bytes, if that is known."""
    found = 0
    while piece := read():
        found += len(piece)
        if size is not None and found > size:
            raise BlockError(f"expected {size} bytes of content, found more than {size}")
        yield piece
    if size not in (None, found):
        raise BlockError(f"expected {size} bytes of content, found {found}")


class BlockStart(NamedTuple):
    """Where a block begins."""

    file: int
    """Byte of the file; of gzip, bit."""
    content: int
    """Byte of the content."""
    point: bytes = b""
    """What the index has of its access point, see `packed_point`; empty if it begins with a frame or a member."""


class Place(NamedTuple):
    """Where a block lies."""

    begin: int
    end: int
    """Bytes of the file."""
    content: int
    content_end: int
    """Bytes of the content."""

    @property
    def size(self) -> int:
        """Bytes of content."""
        return self.content_end - self.content


class Edges(NamedTuple):
    """How a block of gzip is cut off from those beside it, where it does not begin and end with a member."""

    window: bytes = b""
    """The last bytes of the member's content before it, 1 to `WINDOW`; none if it begins with a member."""
    crc: int = 0
    """CRC-32 of the member's content before it."""
    bit: int = 0
    """Where it begins in its first byte, from 0 for the lowest bit."""
    end_crc: int | None = None
    """CRC-32 of the member's content up to its end; None if it ends with a member."""


def packed_point(crc: int, window: "bytes | memoryview") -> bytes:
    """Return an access point as an index holds it."""
    return crc.to_bytes(_CRC, "little") + zlib.compress(window, _LEVEL)


def unpacked_point(packed: bytes) -> tuple[int, bytes] | None:
    """Return the checksum and the window of an access point as an index holds it; None if it is damaged."""
    decoder = zlib.decompressobj()
    try:
        window = decoder.decompress(packed[_CRC:], WINDOW + 1)
    except zlib.error:
        return None
    crc = int.from_bytes(packed[:_CRC], "little")
    return (crc, window) if 0 < len(window) <= WINDOW and decoder.eof else None


class _Numbers:
    """Numbers of a section, read when they are asked for, as the file may be cut short meanwhile."""

    def __init__(self, index: Index, name: str, first: int) -> None:
        section = index.sections[name]
        kind = BY_DTYPE[section.dtype]
        self._index, self._width, self._code = index, kind.width, kind.code
        self._begin = section.offset + first * kind.width

    def __getitem__(self, at: int) -> int:
        return int(self.read(at, at + 1)[0])

    def read(self, begin: int, end: int) -> "memoryview[Any]":
        """Return a copy of some neighbours, u32 or u64, shape (end - begin,)."""
        data = self._index.read(self._begin + begin * self._width, (end - begin) * self._width)
        return memoryview(data).cast(self._code)


class BlockTable:
    """The blocks of one source; numbers are checked when they are used.

    Args:
      number: of the source, a compressed one.
    Raises:
      FormatError: the blocks do not have as much content as the index says.
    """

    def __init__(self, index: Index, number: int) -> None:
        compression = index.sources[number].compression
        assert compression is not None
        self._index, self._number, self._compression = index, number, compression
        self.count, self._bits = compression.blocks, BITS[compression.codec]
        first = index.start("block_bounds", number)
        self._begins, self.bounds = (_Numbers(index, name, first) for name in (BLOCK_BEGINS, BLOCK_BOUNDS))
        self._page = 0, memoryview(b""), 0, 0  # the first block whose bound is held, the bounds, and their ends
        if compression.points:
            self._point_bounds = _Numbers(index, POINT_BOUNDS, first)
            self._points_at = index.sections[POINTS].offset + index.start("points", number)
        if (found := self.bounds[self.count]) != compression.size:
            raise index.damaged(
                f"blocks of {index.source_path(number)}: expected {compression.size} bytes of content, found {found}"
            )

    def starts(self) -> Iterator[BlockStart]:
        """Yield where the blocks begin, and where the last one ends, as the table has them."""
        for begin in range(0, self.count + 1, _PIECE):
            end = min(begin + _PIECE, self.count + 1)
            points = map(self._point, range(begin, end))
            yield from map(BlockStart, self._begins.read(begin, end), self.bounds.read(begin, end), points)

    def find(self, offset: int) -> int:
        """Return the block that holds a byte of the content; any block where the table is damaged."""
        first, bounds, begin, end = self._page
        if not begin <= offset < end:
            firsts = range(0, max(self.count, 1), _PAGE)
            first = firsts[max(bisect_right(firsts, offset, key=self.bounds.__getitem__) - 1, 0)]
            bounds = self.bounds.read(first, min(first + _PAGE, self.count) + 1)
            self._page = first, bounds, bounds[0], bounds[-1]
        return first + max(min(bisect_right(bounds, offset), len(bounds) - 1) - 1, 0)

    def find_all(self, wanted: bytes) -> Sequence[int]:
        """Return the blocks that have some of the wanted bytes, ascending.

        Args:
          wanted: bounds of ranges of the content, uint64 in pairs, ascending.
        """
        if len(wanted) == RANGE.size:
            begin, end = RANGE.unpack(wanted)
            return range(self.find(begin), self.find(end - 1) + 1) if begin < end else ()
        import numpy as np  # batches alone need it

        begins, ends = np.frombuffer(wanted, np.uint64).reshape(-1, 2).T
        is_full = begins < ends
        begins, ends = begins[is_full], ends[is_full]
        if not len(begins):
            return ()
        self.find(int(begins[0]))
        first, page, page_begin, page_end = self._page
        if page_begin <= begins[0] and ends.max() <= page_end:  # another thread may have read another page meanwhile
            bounds = np.asarray(page)
            firsts, lasts = bounds.searchsorted(begins, "right") - 1, bounds.searchsorted(ends, "left") - 1
        else:
            first = 0
            firsts, lasts = (np.array([self.find(at) for at in each.tolist()]) for each in (begins, ends - 1))
        blocks = set(firsts.tolist())
        is_longer = firsts < lasts
        if is_longer.any():
            for pair in zip(firsts[is_longer].tolist(), (lasts[is_longer] + 1).tolist(), strict=True):
                blocks.update(range(*pair))
        return [first + block for block in sorted(blocks)]

    def place(self, block: int) -> Place:
        """Return where a block lies; raise FormatError where that is not in the source."""
        (begin, end), (content, content_end) = (each.read(block, block + 2) for each in (self._begins, self.bounds))
        size, largest = self._compression.size, self._compression.largest
        place = Place(begin // self._bits, -(-end // self._bits), content, content_end)
        fits = begin <= end <= self._index.sources[self._number].size * self._bits and content_end <= size
        if not fits or not 0 <= place.size <= largest:
            raise self.damaged(block, f"up to {largest} bytes of {size}, found {tuple(place)}")
        return place

    def edges(self, block: int) -> Edges:
        """Return how a block is cut off from those beside it; raise FormatError where the table is damaged."""
        packed, after = self._point(block), self._point(block + 1)
        end_crc = int.from_bytes(after[:_CRC], "little") if after else None
        if not packed:
            return Edges(end_crc=end_crc)
        found = unpacked_point(packed)
        if found is None:
            raise self.damaged(block, f"a window of 1 to {WINDOW} bytes, found {len(packed) - _CRC} others")
        crc, window = found
        return Edges(window, crc, self._begins[block] % self._bits, end_crc)

    def _point(self, block: int) -> bytes:
        """Return what the index has of the access point of a block; nothing behind the last one."""
        points = self._compression.points
        if not points or block == self.count:
            return b""
        begin, end = self._point_bounds.read(block, block + 2)
        if not begin <= end <= points or 0 < end - begin <= _CRC or end - begin > _LARGEST_POINT:
            expected = f"an access point of up to {_LARGEST_POINT} bytes in {points}"
            raise self.damaged(block, f"{expected}, found one in {begin} to {end}")
        return self._index.read(self._points_at + begin, end - begin)

    def damaged(self, block: int, expected: str) -> FormatError:
        """Return the error to raise for what the table has of a block."""
        return self._index.damaged(f"block {block} of {self._index.source_path(self._number)}: expected {expected}")


class BlocksWriter:
    """Writes the sections of blocks, once all sources are written; they stay on the side until then."""

    def __init__(self, writer: SectionWriter) -> None:
        self._writer = writer
        self._spools = {name: writer.spool() for name in BLOCK_SECTIONS}
        self._count = self._largest = self._content = self._points = 0  # of the source at hand

    def append(self, starts: Sequence[BlockStart]) -> None:
        """Append where the next blocks of the source at hand begin."""
        if starts:
            self._add(starts)
            self._count += len(starts)

    def finish(self, codec: str, size: int, content: int) -> Compression:
        """End the source at hand, which has so many bytes, and bytes of content; return what the index says of it."""
        self._add((BlockStart(size * BITS[codec], content),))
        found = Compression(codec, content, self._count, self._largest, self._points)
        self._count = self._largest = self._content = self._points = 0
        return found

    def _add(self, starts: Sequence[BlockStart]) -> None:
        contents = [start.content for start in starts]
        self._largest = max(self._largest, *(end - begin for begin, end in pairwise((self._content, *contents))))
        self._content = contents[-1]
        *bounds, self._points = accumulate((len(start.point) for start in starts), initial=self._points)
        with self._writer.writing():
            for name, values in zip(_NUMBERS, ([start.file for start in starts], contents, bounds), strict=True):
                self._spools[name].append(U64.cell, memoryview(array("Q", values)))
            self._spools[POINTS].append_bytes(b"".join(start.point for start in starts))

    def copy(self, index: Index, sources: range) -> None:
        """Append the blocks of sources of another index, which are neighbours there."""
        begin, end = (index.start("block_bounds", number) for number in (sources.start, sources.stop))
        for name in _NUMBERS:
            if name in index.sections:
                self._copy(index, name, begin, end)
            else:
                self._add_zeros(name, end - begin)
        if POINTS in index.sections:
            self._copy(index, POINTS, index.start("points", sources.start), index.start("points", sources.stop))

    def _copy(self, index: Index, name: str, begin: int, end: int) -> None:
        kind = BY_DTYPE[index.sections[name].dtype]
        pieces = partial(index.pieces, name, begin * kind.width, end * kind.width)
        self._spools[name].append_stored(kind, end - begin, pieces)

    def _add_zeros(self, name: str, count: int) -> None:
        for at in range(0, count, _PIECE):
            with self._writer.writing():
                self._spools[name].append(U64.cell, memoryview(bytes(8 * min(_PIECE, count - at))).cast("Q"))

    def write(self) -> None:
        """Append the sections, if a source is compressed; those of access points if there are some."""
        for name, spool in self._spools.items():
            if spool.count and (name != POINT_BOUNDS or self._spools[POINTS].count):
                self._writer.write_spool(name, spool)
