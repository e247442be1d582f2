"""The blocks of compressed sources in an index: where each begins, and what a decoder needs to begin there."""

import struct
import zlib
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple, TypeVar

from ..errors import FormatError
from ..storage.index_file import Index
from ..storage.numbers import BY_DTYPE, U32, U64
from ..storage.sections import BLOCK_BEGINS, BLOCK_BOUNDS, BLOCK_SECTIONS, POINT_BOUNDS, POINTS, WINDOW, Compression
from ..storage.writer import SectionWriter

SMALLEST = 64 << 10  # bytes of content in a block, at least; the last one may have fewer
BITS = {"zstd": 1, "gzip": 8, "parquet": 1}  # units of a byte in which blocks begin, by codec: gzip counts bits
RANGE = struct.Struct("<QQ")  # begin and end of a range of the content
_NUMBERS = BLOCK_BEGINS, BLOCK_BOUNDS, POINT_BOUNDS
_CRC = 4  # bytes before the window in an access point
_LARGEST_POINT = _CRC + WINDOW + 64  # bytes: deflate expands a window by less than 64
_LEVEL = 1  # compression level of access points
_PIECE = 1 << 17  # numbers copied at a time
_PAGE = 1 << 10  # blocks whose bounds are cached for lookups


Data = bytes | memoryview
_Piece = TypeVar("_Piece", bytes, Data)


class BlockError(Exception):
    """A block cannot be decoded; the message is the reason."""


def not_decoded(path: str, block: int, begin: int, codec: str, error: BlockError) -> FormatError:
    """Return the error for a block that cannot be decoded; `begin` is its byte in the file."""
    return FormatError(f"{path}: block {block} (byte {begin}): not {codec}: {error}; copy the file again")


def pieces_of(content: Iterable[_Piece], size: int | None) -> Iterator[_Piece]:
    """Yield the pieces of a block; raise BlockError unless they have `size` bytes in all, if that is known."""
    found = 0
    for piece in content:
        found += len(piece)
        if size is not None and found > size:
            raise BlockError(f"expected {size} bytes of content, found more than {size}")
        yield piece
    if size not in (None, found):
        raise BlockError(f"expected {size} bytes of content, found {found}")


class BlockStart(NamedTuple):
    """Where a block begins."""

    file: int  # byte of the file; for gzip, bit
    content: int  # byte of the content
    point: bytes = b""  # its access point, see `packed_point`; empty at the begin of a frame or a member


class Extent(NamedTuple):
    """Where a block lies."""

    begin: int  # bytes of the file
    end: int
    content: int  # bytes of the content
    content_end: int

    @property
    def size(self) -> int:
        """Bytes of content."""
        return self.content_end - self.content


class Edges(NamedTuple):
    """What a block of gzip needs at its edges if it begins or ends inside a member."""

    window: bytes = b""  # the member's content before the block, 1 to `WINDOW` bytes; none at the begin of a member
    crc: int = 0  # CRC-32 of the member's content before the block
    bit: int = 0  # where it begins in its first byte, from 0 for the lowest bit
    end_crc: int | None = None  # CRC-32 of the member's content up to the end of the block; None at the end of a member


def packed_point(crc: int, window: "bytes | memoryview") -> bytes:
    """Pack an access point for an index."""
    return crc.to_bytes(_CRC, "little") + zlib.compress(window, _LEVEL)


def unpacked_point(packed: bytes) -> tuple[int, bytes] | None:
    """Return the checksum and the window of a packed access point; None if it is damaged."""
    decoder = zlib.decompressobj()
    try:
        window = decoder.decompress(packed[_CRC:], WINDOW + 1)
    except zlib.error:
        return None
    crc = int.from_bytes(packed[:_CRC], "little")
    return (crc, window) if 0 < len(window) <= WINDOW and decoder.eof else None


class BlockTable:
    """The blocks of one source. Numbers are read and checked on use, as the file may be cut short.

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
        self._page = 0, memoryview(b""), 0, 0  # cached: first block, bounds, and their first and last value
        if (found := self.bounds(self.count)[0]) != compression.size:
            raise index.damaged(
                f"blocks of {index.source_path(number)}: expected {compression.size} bytes of content, found {found}"
            )

    def bounds(self, begin: int, count: int = 1, name: str = BLOCK_BOUNDS) -> "memoryview[Any]":
        """Return a copy of `count` numbers from block `begin` on, by default content bounds: u32 or u64."""
        section = self._index.sections[name]
        kind = BY_DTYPE[section.dtype]
        first = self._index.start("block_bounds", self._number) + begin
        return memoryview(self._index.read(section.offset + first * kind.width, count * kind.width)).cast(kind.code)

    def starts(self) -> Iterator[BlockStart]:
        """Yield where each block begins, then where the last one ends, unchecked."""
        for begin in range(0, self.count + 1, _PIECE):
            count = min(_PIECE, self.count + 1 - begin)
            points = map(self._point, range(begin, begin + count))
            yield from map(BlockStart, self.bounds(begin, count, BLOCK_BEGINS), self.bounds(begin, count), points)

    def find(self, offset: int) -> int:
        """Return the block that holds a byte of the content; any block if the table is damaged."""
        first, bounds, begin, end = self._page
        if not begin <= offset < end:
            firsts = range(0, max(self.count, 1), _PAGE)
            first = firsts[max(bisect_right(firsts, offset, key=lambda block: self.bounds(block)[0]) - 1, 0)]
            bounds = self.bounds(first, min(_PAGE, self.count - first) + 1)
            self._page = first, bounds, bounds[0], bounds[-1]
        return first + max(min(bisect_right(bounds, offset), len(bounds) - 1) - 1, 0)

    def find_all(self, wanted: bytes) -> Sequence[int]:
        """Return the blocks that hold any of the wanted bytes, ascending.

        Args:
          wanted: bounds of ranges of the content, uint64 in pairs, ascending.
        """
        if len(wanted) == RANGE.size:
            begin, end = RANGE.unpack(wanted)
            return range(self.find(begin), self.find(end - 1) + 1) if begin < end else ()
        import numpy as np  # start-up time: only batches need it

        begins, ends = np.frombuffer(wanted, np.uint64).reshape(-1, 2).T
        begins, ends = begins[begins < ends], ends[begins < ends]
        if not len(begins):
            return ()
        self.find(int(begins[0]))
        first, page, page_begin, page_end = self._page
        if page_begin <= begins[0] and ends.max() <= page_end:  # another thread may have replaced the page
            bounds = np.asarray(page)
            firsts, stops = bounds.searchsorted(begins, "right") - 1, bounds.searchsorted(ends, "left")
        else:
            first = 0
            firsts, stops = (np.array([self.find(at) for at in each.tolist()]) for each in (begins, ends - 1))
            stops += 1
        blocks = set(firsts.tolist())
        is_longer = firsts + 1 < stops
        for begin, end in zip(firsts[is_longer].tolist(), stops[is_longer].tolist(), strict=True):
            blocks.update(range(begin, end))
        return [first + block for block in sorted(blocks)]

    def place(self, block: int) -> Extent:
        """Return where a block lies; raise FormatError if that is outside the source."""
        (begin, end), (content, content_end) = self.bounds(block, 2, BLOCK_BEGINS), self.bounds(block, 2)
        size, largest = self._compression.size, self._compression.largest
        place = Extent(begin // self._bits, -(-end // self._bits), content, content_end)
        fits = begin <= end <= self._index.sources[self._number].size * self._bits and content_end <= size
        if not fits or not 0 <= place.size <= largest:
            raise self.damaged(block, f"up to {largest} bytes of {size}, found {tuple(place)}")
        return place

    def edges(self, block: int) -> Edges:
        """Return the edges of a block; raise FormatError if the table is damaged."""
        packed, after = self._point(block), self._point(block + 1)
        end_crc = int.from_bytes(after[:_CRC], "little") if after else None
        if not packed:
            return Edges(end_crc=end_crc)
        found = unpacked_point(packed)
        if found is None:
            raise self.damaged(block, f"a window of 1 to {WINDOW} bytes, found {len(packed) - _CRC} others")
        crc, window = found
        return Edges(window, crc, self.bounds(block, 1, BLOCK_BEGINS)[0] % self._bits, end_crc)

    def _point(self, block: int) -> bytes:
        """Return the packed access point of a block; empty after the last one."""
        points = self._compression.points
        if not points or block == self.count:
            return b""
        begin, end = self.bounds(block, 2, POINT_BOUNDS)
        if not begin <= end <= points or 0 < end - begin <= _CRC or end - begin > _LARGEST_POINT:
            expected = f"an access point of up to {_LARGEST_POINT} bytes in {points}"
            raise self.damaged(block, f"{expected}, found one in {begin} to {end}")
        first = self._index.sections[POINTS].offset + self._index.start("points", self._number)
        return self._index.read(first + begin, end - begin)

    def damaged(self, block: int, expected: str) -> FormatError:
        """Return the error for a damaged entry of the table."""
        return self._index.damaged(f"block {block} of {self._index.source_path(self._number)}: expected {expected}")


class BlocksWriter:
    """Writes the sections of blocks. Spools hold them until all sources are written."""

    def __init__(self, writer: SectionWriter) -> None:
        self._writer = writer
        self._spools = {name: writer.spool() for name in BLOCK_SECTIONS}
        self._count = self._largest = self._content = self._points = 0  # of the current source

    def append(self, starts: Sequence[BlockStart]) -> None:
        """Append where the next blocks of the current source begin."""
        if not starts:
            return
        contents = [start.content for start in starts]
        for content in contents:
            self._largest, self._content = max(self._largest, content - self._content), content
        *bounds, self._points = accumulate((len(start.point) for start in starts), initial=self._points)
        for name, values in zip(_NUMBERS, ([start.file for start in starts], contents, bounds), strict=True):
            self._spools[name].append(U64.cell, memoryview(array("Q", values)))
        self._spools[POINTS].append_bytes(b"".join(start.point for start in starts))
        self._count += len(starts)

    def finish(self, codec: str, size: int, content: int) -> Compression:
        """End the current source, of `size` bytes and `content` bytes of text; return its compression for the index."""
        self.append((BlockStart(size * BITS[codec], content),))  # the end of the last block
        found = Compression(codec, content, self._count - 1, self._largest, self._points)
        self._count = self._largest = self._content = self._points = 0
        return found

    def copy(self, index: Index, sources: range) -> None:
        """Append the blocks of consecutive sources of another index."""
        for name in BLOCK_SECTIONS:
            what = "points" if name == POINTS else "block_bounds"
            begin, end = (index.start(what, number) for number in (sources.start, sources.stop))
            kind, pieces = U32, partial(_zeros, end - begin)  # without points, all point bounds are zero
            if name in index.sections:
                kind = BY_DTYPE[index.sections[name].dtype]
                pieces = partial(index.pieces, name, begin * kind.width, end * kind.width)
            self._spools[name].append_stored(kind, end - begin, pieces)

    def write(self) -> None:
        """Append the sections, if any source is compressed; those of access points only if there are points."""
        for name, spool in self._spools.items():
            if spool.count and (name != POINT_BOUNDS or self._spools[POINTS].count):
                self._writer.write_spool(name, spool)


def _zeros(count: int) -> Iterator[bytes]:
    for at in range(0, count, _PIECE):
        yield bytes(U32.width * min(_PIECE, count - at))
