"""The blocks of compressed sources as an index holds them: where each begins in the file, and in the content."""

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from .numbers import BY_DTYPE, U32, U64
from .sources import CODECS
from .spool import Spool

if TYPE_CHECKING:
    from .index_file import Index
    from .sections import SectionWriter

BEGINS, BOUNDS = "block_begins", "block_bounds"
BLOCK_SECTIONS: dict[str, tuple[str, ...]] = {
    BEGINS: (U32.dtype, U64.dtype),
    BOUNDS: (U32.dtype, U64.dtype),
}
"""What these sections hold, in an index of compressed sources."""
LARGEST_BLOCK = 8 << 20
"""Bytes of content: what a block of more has is read in order alone."""
_MOST_TIMES = 1 << 17  # what a byte of a file can be the content of, at most
_PIECE = 1 << 17  # numbers that are copied at a time


class Compression(NamedTuple):
    """How a source is compressed."""

    codec: str
    """One of `sources.CODECS`."""
    size: int
    """Bytes of content: what the source is without compression."""
    blocks: int
    """How many; each is decoded on its own."""
    largest: int
    """Bytes of content in the largest block."""

    @classmethod
    def parse(cls, fields: Any, size: int) -> "Compression":
        """Read it from its JSON object.

        Args:
          size: of the file.
        Raises:
          KeyError, TypeError: a field is missing, or has the wrong type or range.
        """
        found = cls(fields["codec"], fields["size"], fields["blocks"], fields["largest"])
        numbers = found[1:]
        if found.codec not in CODECS or {*map(type, numbers)} != {int} or min(numbers) < 0:
            raise TypeError(
                f"compression of a source: expected {' or '.join(CODECS)}, and integers of 0 or more, found {fields}"
            )
        few = found.largest > found.size or found.blocks > found.size or (found.size and not found.blocks)
        if few or found.size > size * _MOST_TIMES:
            raise TypeError(f"compression of a source: expected what a file of {size} bytes can hold, found {fields!r}")
        return found

    @property
    def is_random(self) -> bool:
        """Whether its records can be read in any order, as no block is too large for that."""
        return self.largest <= LARGEST_BLOCK


class BlockStart(NamedTuple):
    """Where a block begins."""

    file: int
    """Byte of the file."""
    content: int
    """Byte of the content."""


class _Numbers:
    """Numbers of a section, read when they are asked for, as the file may be cut short meanwhile."""

    def __init__(self, index: "Index", name: str, first: int, count: int) -> None:
        section = index.sections[name]
        kind = BY_DTYPE[section.dtype]
        self._index, self._count = index, count
        self._width = kind.width
        self._code: Literal["I", "Q"] = "I" if kind is U32 else "Q"
        self._begin = section.offset + first * kind.width

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, at: int) -> int:
        return int.from_bytes(self._index.read(self._begin + at * self._width, self._width), "little")

    def read(self, begin: int, end: int) -> memoryview:
        """Return a copy of some neighbours, u32 or u64, shape (end - begin,)."""
        data = self._index.read(self._begin + begin * self._width, (end - begin) * self._width)
        return memoryview(data).cast(self._code)


class BlockTable:
    """The blocks of one source; numbers are checked when they are used.

    Args:
      number: of the source, a compressed one.
    """

    def __init__(self, index: "Index", number: int) -> None:
        compression = index.sources[number].compression
        assert compression is not None
        self._index, self._number, self.count = index, number, compression.blocks
        first = index.blocks_at(number)
        self._begins, self.bounds = (_Numbers(index, name, first, self.count + 1) for name in (BEGINS, BOUNDS))

    def starts(self, first: int) -> Iterator[BlockStart]:
        """Yield where the blocks from one on begin, and where the last one ends, as the table has them."""
        for begin in range(first, self.count + 1, _PIECE):
            end = min(begin + _PIECE, self.count + 1)
            yield from map(BlockStart, self._begins.read(begin, end), self.bounds.read(begin, end))

    def find(self, offset: int) -> int:
        """Return the block that holds a byte of the content."""
        return max(min(bisect_right(self.bounds, offset), self.count) - 1, 0)

    def place(self, block: int) -> "Place":
        """Return where a block lies.

        Raises:
          FormatError: the table is damaged.
        """
        place = Place(*self._begins.read(block, block + 2), *self.bounds.read(block, block + 2))
        source = self._index.sources[self._number]
        assert source.compression is not None
        fits = place.begin <= place.end <= source.size and place.content <= place.content_end <= source.compression.size
        if not fits or place.size > source.compression.largest:
            raise self._index.damaged(
                f"block {block} of {self._index.source_path(self._number)}: expected up to "
                f"{source.compression.largest} bytes of {source.compression.size}, in {source.size} of the file, found "
                f"{place.content} to {place.content_end}, in {place.begin} to {place.end}"
            )
        return place


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


class BlockTally:
    """Totals over the blocks of one source."""

    def __init__(self) -> None:
        self.count = 0
        self._largest = self._last = 0

    def add(self, starts: Iterable[BlockStart]) -> None:
        """Take in where the next blocks begin."""
        for start in starts:
            if self.count:
                self._largest = max(self._largest, start.content - self._last)
            self.count, self._last = self.count + 1, start.content

    def finish(self, codec: str, end: BlockStart) -> Compression:
        """Return what the index says of the source.

        Args:
          end: where the last block ends.
        """
        largest = max(self._largest, end.content - self._last) if self.count else 0
        return Compression(codec, end.content, self.count, largest)


class BlocksWriter:
    """Writes the sections of blocks, once all sources are written; they stay on the side until then."""

    def __init__(self, writer: "SectionWriter") -> None:
        self._writer = writer
        self._spools: dict[str, Spool] = {}
        self._held = {name: array("Q") for name in (BEGINS, BOUNDS)}  # on their way into the spools
        self._tally = BlockTally()

    def append(self, starts: Sequence[BlockStart]) -> None:
        """Append where the next blocks of the source at hand begin."""
        self._tally.add(starts)
        for start in starts:
            self._add(start)

    def finish(self, codec: str, end: BlockStart) -> Compression:
        """End the source at hand, where its last block ends; return what the index says of it."""
        self._add(end)
        found = self._tally.finish(codec, end)
        self._tally = BlockTally()
        return found

    def _add(self, start: BlockStart) -> None:
        for name, value in zip((BEGINS, BOUNDS), start, strict=True):
            self._held[name].append(value)
        if len(self._held[BOUNDS]) >= _PIECE:
            self._flush()

    def _flush(self) -> None:
        for name, held in self._held.items():
            with self._writer.writing():
                if held:
                    self._spool(name).append(U64.cell, memoryview(held))
            self._held[name] = array("Q")

    def _spool(self, name: str) -> Spool:
        if name not in self._spools:
            self._spools[name] = self._writer.spool()
        return self._spools[name]

    def copy(self, index: "Index", sources: range) -> None:
        """Append the blocks of sources of another index, which are neighbours there."""
        before, end = index.blocks_at(sources.start), index.blocks_at(sources.stop)
        self._flush()
        for name in (BEGINS, BOUNDS) if end > before else ():
            kind = BY_DTYPE[index.sections[name].dtype]
            pieces = partial(index.checked_pieces, name, before * kind.width, end * kind.width)
            self._spool(name).append_stored(kind, end - before, pieces)

    def write(self) -> None:
        """Append the sections, if a source is compressed."""
        self._flush()
        for name, spool in self._spools.items():
            self._writer.write_spool(name, spool)
