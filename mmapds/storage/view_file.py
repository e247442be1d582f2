"""The .mmx file of a saved view: some records of other indexes, in any order. See docs/index-file.md."""

import json
from collections.abc import Sequence
from typing import NamedTuple

from xxhash import xxh3_64

from ..errors import Error, StaleIndexError, counted
from .current import check_source, stat_source
from .files import Io
from .index_file import LENGTH_SECTIONS, RECORD_NUMBERS, Index, IndexFile, SavedViewFoundError
from .numbers import U64
from .sections import COLUMN, COUNT, TEXT, Fields
from .sources import INDEX_SUFFIX, Roots

BITS_BLOCK = 2048
"""Records that an entry of the directory of bits is for."""
_SECTION_TYPES = {**LENGTH_SECTIONS, "rows": RECORD_NUMBERS, "row_bits": (U64.dtype,), "row_ranks": (U64.dtype,)}
_BASE = Fields(" of a base", {"path": TEXT, "records": COUNT, "mark": TEXT})


class Base(NamedTuple):
    """An index whose records a view has, as it was when the view was saved."""

    path: str
    """Relative to the directory that holds the view."""
    records: int
    mark: str
    """See `mark_of`."""


def mark_of(index: Index, columns: Sequence[str]) -> str:
    """Return what identifies the records of an index, their numbers, and some of its columns: 16 hex digits.

    An index that is built again of the same sources has the same mark, also with more columns.
    """
    mark = xxh3_64(json.dumps([index.format, index.parameters], sort_keys=True).encode())
    for source in index.sources:
        mark.update(f" {source.fingerprint} {source.size} {source.records} {source.first}".encode())
    kept = {name for name in index.sections if not name.startswith((COLUMN, "length_", "key_"))}
    for name in sorted(kept | {COLUMN + column for column in columns}):
        section = index.sections.get(name)
        mark.update(f" {name} {section and (section.dtype, section.items, section.xxh3)}".encode())
    return mark.hexdigest()


class SavedView(IndexFile):
    """An open file of a saved view.

    Args:
      path: of the file.
      roots: where the indexes that it names, and their sources, may lie besides its own directory.
      io: how its sections are read.
    Raises:
      IndexMissingError: the file does not exist.
      FormatError: it is not a saved view, is damaged, or needs a newer mmapds.
    """

    NAME, KINDS = "A SAVED VIEW", (1,)
    AGAIN = "save the view again with ds.save(...)"
    LEADS_TO = "indexes"

    def __init__(self, path: str, roots: Roots | None = None, io: Io = "mmap") -> None:
        self.io = io
        super().__init__(path, roots, io)
        with self.reporting_malformed_metadata():
            bases = [_BASE.read(base) for base in self.metadata["bases"]]
        self.bases = [Base(base["path"], base["records"], base["mark"]) for base in bases]
        self.total = sum(base.records for base in self.bases)
        """Records of all bases, which rows are numbers of."""
        if not self.bases or self.total >= 2**63:
            raise self.damaged(f"expected 1 to 2**63 - 1 records of 1 base or more, found {self.total}")
        words, blocks = -(-self.total // 64), -(-self.total // BITS_BLOCK)
        rows = {"row_bits": words, "row_ranks": blocks + 1} if self.is_bits else {"rows": self.records}
        self._check_sections(_SECTION_TYPES, rows)
        if self.is_bits:
            ones = int.from_bytes(self.read(self.sections["row_ranks"].offset + 8 * blocks, 8), "little")
            if ones != self.records or ones > self.total:
                raise self.damaged(
                    f"section 'row_ranks': expected {self.records} records of {self.total} at its end, found {ones}"
                )

    @property
    def is_bits(self) -> bool:
        """Whether its rows are bits; else they are an array."""
        return "row_bits" in self.sections

    def base_path(self, number: int) -> str:
        """Return where a base is, as messages say it; nothing has checked where it leads."""
        return self.path_of(self.bases[number].path)

    def open_bases(self) -> list[Index]:
        """Open the indexes whose records the view has; see `open_base`."""
        return [self.open_base(number) for number in range(len(self.bases))]

    def open_base(self, number: int) -> Index:
        """Open one of them.

        Raises:
          SourceError: it lies outside the directory of the view, and the user has not allowed it.
          IndexMissingError, FormatError: it is missing, or damaged.
          StaleIndexError: it was built again of other sources, or its columns changed.
        """
        path, base = self.base_path(number), self.bases[number]
        self.check_reach(path)
        index = Index(path, self.roots, self.io)
        if index.records != base.records or mark_of(index, list(self.columns)) != base.mark:
            raise StaleIndexError(
                f"{self.path}: STALE: {path} has other records or columns than when the view was saved "
                f"({counted(base.records, 'record')} then, {index.records:,} now); {self.AGAIN}"
            )
        return index


def check_source_of_view(base: Index, number: int) -> None:
    """Raise StaleIndexError or SourceError where opening a view would, for a source of one of its indexes."""
    base.readable_path(number)
    found = stat_source(base, number)
    check_source(base, number, found.st_size, found.st_mtime_ns)


def is_saved_view(path: str) -> bool:
    """Whether a path is that of a saved view."""
    if not path.endswith(INDEX_SUFFIX):
        return False
    try:
        Index(path)
    except SavedViewFoundError:
        return True
    except Error:
        pass
    return False
