"""Records that an index has already, on their way into another one: nothing is scanned for them."""

from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from typing import NamedTuple

from .. import _native
from ..storage.index_file import Index
from ..storage.numbers import BY_DTYPE, U32, U64
from ..storage.sections import BOUNDS, COLUMN, GROUP, IndexedSource, records_in_group, unpacked
from ..storage.spool import Spool

_PIECE = 1 << 18  # hashes of keys, or bounds, that are read at a time


class Stored(NamedTuple):
    """Records that an index has: all of some consecutive sources, or consecutive ones of a single source.

    Its sections are checked against their checksums as they are read.
    """

    base: Index
    """The index that has them."""
    sources: range
    """Numbers of their sources there."""
    records: range
    """Their numbers there."""
    totals: IndexedSource | None = None
    """Of these records of the one source, with the sizes of all but the last; None where all records of the sources are
    meant."""
    size: int = 0
    """Bytes of the source in which these lie."""
    end: int | None = None
    """The byte where they end, if they are the last of the one source."""

    @classmethod
    def of(cls, index: Index, sources: range) -> "Stored":
        """Return all records of some sources."""
        return cls(index, sources, range(index.firsts[sources.start], index.firsts[sources.stop]))

    @property
    def is_whole(self) -> bool:
        """Whether they are all that the index has."""
        return len(self.records) == self.base.records

    def groups(self) -> Iterator[bytes]:
        """Yield the groups of the bounds of all records of the sources."""
        return self._groups(self.base.bounds_at(self.sources.start), self.base.bounds_at(self.sources.stop))

    def _groups(self, begin: int, end: int) -> Iterator[bytes]:
        first = self.base.sections[BOUNDS].offset
        return self.base.checked_pieces(BOUNDS, begin - first, end - first)

    def ends(self) -> tuple[memoryview, memoryview]:
        """Return where the first of the records of the one source begins, and where the last one does, uint64 each."""
        number = self.sources.start
        before = self.base.firsts[number]
        first, last = self.records.start - before, self.records.stop - before - 1
        return self.base.bounds(number, first, first + 1), self.base.bounds(number, last, last + 1)

    def starts(self) -> Iterator[memoryview]:
        """Yield where the records of the one source begin, uint64."""
        number = self.sources.start
        before = self.base.firsts[number]
        begin, end = self.records.start - before, self.records.stop - before
        width, groups_at = self.base.sources[number].width, self.base.bounds_at(number)
        each = records_in_group(width)
        at = begin // each * each  # the record that the next piece begins with
        for piece in self._groups(groups_at + begin // each * GROUP, groups_at + -(-end // each) * GROUP):
            bounds = unpacked(width, piece)
            yield bounds[max(begin - at, 0) : end - at]
            at += len(bounds)

    def numbers(self, section: str) -> Iterator[bytes]:
        """Yield the numbers of the records in a section that has one for each."""
        width = BY_DTYPE[self.base.sections[section].dtype].width
        return self.base.checked_pieces(section, self.records.start * width, self.records.stop * width)

    def add_column(self, name: str, spool: Spool) -> None:
        """Append the numbers of a column to those of another index."""
        number_type, numbers = BY_DTYPE[self.base.sections[COLUMN + name].dtype], partial(self.numbers, COLUMN + name)
        spool.append_stored(number_type, len(self.records), numbers, is_part=not self.is_whole)

    def add_keys(self, hashes: memoryview, spool: Spool) -> None:
        """Append the hash of every record's key to those of another index.

        Args:
          hashes: of the keys of all records of the base, u32.
        """
        for begin in range(self.records.start, self.records.stop, _PIECE):
            piece = hashes[begin * U32.width : min(begin + _PIECE, self.records.stop) * U32.width]
            cells = memoryview(bytearray(len(piece) // U32.width * U64.width)).cast("Q")
            _native.cells_widen(piece, cells)
            spool.append(U64.cell, cells)


def sizes_before_last(index: Index, number: int, records: int) -> tuple[int, int]:
    """Return the smallest and the largest size of the first records of a source, without the last of these.

    The last one ends where the next record begins, which may be another one in the source as it is now.
    """
    source = index.sources[number]
    others = pairwise(index.bounds(number, max(records - 1, 0), source.records + 1))
    if all(source.smallest < end - begin < source.largest for begin, end in others):
        return source.smallest, source.largest
    smallest, largest, previous = 2**64 - 1, 0, None
    for begin in range(0, records, _PIECE):
        bounds = index.bounds(number, begin, min(begin + _PIECE, records))
        smallest, largest = _native.record_sizes(bounds, previous, smallest, largest)
        previous = bounds[-1]
    return smallest, largest
