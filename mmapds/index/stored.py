"""Records that an index has already, on their way into another one: nothing is scanned for them."""

from collections.abc import Iterator
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from .. import _native
from ..storage.index_file import Index, IndexedSource
from ..storage.numbers import BY_DTYPE, U32, U64
from ..storage.sections import COLUMN
from ..storage.spool import Spool
from .keys import hashes_by_record

if TYPE_CHECKING:
    from ..storage.index_file import IndexWriter

_PIECE = 1 << 18  # hashes of keys that are read at a time


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
    """Of these records of the one source; None where all records of the sources are meant."""
    size: int = 0
    """Bytes of the source in which these lie."""
    end: int | None = None
    """The byte where they end, if they are the last of the one source."""

    @classmethod
    def of(cls, index: Index, sources: range) -> "Stored":
        """Return all records of some sources."""
        firsts = list(accumulate((source.records for source in index.sources), initial=0))
        return cls(index, sources, range(firsts[sources.start], firsts[sources.stop]))

    def bounds(self) -> Iterator[bytes]:
        """Yield the bounds of the records, u64; without `totals`, where the last record of each source ends, too."""
        begin = self.records.start + self.sources.start
        end = begin + len(self.records) + (len(self.sources) if self.totals is None else 0)
        return self.base.checked_pieces("offsets", begin * U64.width, end * U64.width)

    def numbers(self, section: str) -> Iterator[bytes]:
        """Yield the numbers of the records in a section that has one for each."""
        width = BY_DTYPE[self.base.sections[section].dtype].width
        return self.base.checked_pieces(section, self.records.start * width, self.records.stop * width)

    def add_column(self, name: str, spool: Spool) -> None:
        """Append the numbers of a column to those of another index."""
        number_type = BY_DTYPE[self.base.sections[COLUMN + name].dtype]
        spool.append_stored(number_type, len(self.records), partial(self.numbers, COLUMN + name))

    def add_keys(self, writer: "IndexWriter", spool: Spool) -> None:
        """Append the hash of every record's key to those of another index.

        Args:
          writer: of that index.
        """
        hashes = memoryview(hashes_by_record(writer, self.base))
        for begin in range(self.records.start, self.records.stop, _PIECE):
            piece = hashes[begin * U32.width : min(begin + _PIECE, self.records.stop) * U32.width]
            cells = memoryview(bytearray(len(piece) // U32.width * U64.width)).cast("Q")
            _native.cells_widen(piece, cells)
            spool.append(U64.cell, cells)
