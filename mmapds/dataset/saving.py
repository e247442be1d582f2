"""Saved views: a selection of records as an index of its own, written by `ds.save` and opened by `mmapds.open`."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import __version__, _native
from ..errors import Error, StaleIndexError
from ..index.verify import Findings, place_beside
from ..storage.current import check_now
from ..storage.files import Io
from ..storage.index_file import LENGTH_SECTIONS, Index, SavedView, mark_of, relative_to_index
from ..storage.lock import locked
from ..storage.numbers import BY_DTYPE, U64, order_type
from ..storage.sections import COLUMN
from ..storage.sources import StrPath
from ..storage.writer import ViewWriter
from . import stored
from .views import ArrayRows, BitRows, ChainedRows, Int64s, Part, Parts, RangeRows, Rows, pieces

_PIECE = 1 << 20  # bytes of numbers that are searched at a time
_DIRECTORY = "section 'row_ranks': expected the counts of 'row_bits', found others"


class SavedRows(Rows):
    """The records of a saved view, read where they lie."""

    def __init__(self, file: SavedView) -> None:
        self.file = file
        self._held: ArrayRows | BitRows | None = None  # None: an array that is mapped
        if file.is_bits:
            words, before = (np.frombuffer(file.section(name), np.uint64) for name in ("row_bits", "row_ranks"))
            self._held = BitRows(words, file.total, before, file.map if file.map.is_mapped else None)
        elif not file.map.is_mapped:
            self._held = ArrayRows(np.frombuffer(file.section("rows"), file.sections["rows"].dtype))

    def __len__(self) -> int:
        return self.file.records

    def many(self, positions: Int64s) -> Int64s:
        with self._reporting_damage():
            if self._held is not None:
                found = self._held.many(positions)
            else:
                found, section = np.empty(len(positions), np.int64), self.file.sections["rows"]
                place = section.offset, BY_DTYPE[section.dtype].width, section.items
                self.file.map.take(*place, np.ascontiguousarray(positions), found)
        if len(found) and (largest := int(found.view(np.uint64).max())) >= self.file.total:
            raise self.file.damaged(f"section 'rows': record {largest} is out of range for {self.file.total} records")
        return found

    def numbers(self) -> Iterator[tuple[int, NDArray[Any]]]:
        if self._held is not None:
            yield from self._held.numbers()
            return
        section, width = self.file.sections["rows"], BY_DTYPE[self.file.sections["rows"].dtype].width
        for at in range(0, section.size, _PIECE):
            data = self.file.read(section.offset + at, min(_PIECE, section.size - at))
            yield at // width, np.frombuffer(data, section.dtype)

    def positions(self, record: int) -> list[int]:
        if not isinstance(self._held, BitRows):
            return super().positions(record)
        with self._reporting_damage():
            found = self._held.positions(record)
        if any(position >= len(self) or self.one(position) != record for position in found):
            raise self.file.damaged(_DIRECTORY)
        return found

    def parts(self, indexes: Parts, first: int = 0) -> list[Part]:
        return [Part(self.file, 0, len(self))]

    @property
    def rises(self) -> bool:
        return isinstance(self._held, BitRows) or super().rises

    @contextmanager
    def _reporting_damage(self) -> Iterator[None]:
        try:
            yield
        except ValueError:
            raise self.file.damaged(_DIRECTORY) from None
        except EOFError:
            raise self.file.cut_short() from None

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopened, (self.file.absolute(self.file.path), self.file.checksum, self.file.io)


def _reopened(path: str, checksum: int, io: Io) -> SavedRows:
    """Map the file of a pickled view again; its bases are opened by the dataset, so nothing here follows its paths."""
    file = SavedView(path, io=io)
    if file.checksum != checksum:
        raise StaleIndexError(f"{path}: not the saved view of the pickled dataset; open the dataset again")
    return SavedRows(file)


def unfolded(members: Sequence[Index | SavedView]) -> tuple[list[Index], Rows | None]:
    """Return the indexes behind some indexes and saved views, and the rows of all their records that these have.

    Raises:
      as `SavedView.open_bases`.
    """
    indexes = [member for member in members if isinstance(member, Index)]
    if len(indexes) == len(members):
        return indexes, None
    indexes.clear()
    parts: list[tuple[int, Rows]] = []
    first = 0
    for member in members:
        bases = member.open_bases() if isinstance(member, SavedView) else [member]
        parts.append((first, SavedRows(member) if isinstance(member, SavedView) else RangeRows(range(member.records))))
        indexes += bases
        first += sum(base.records for base in bases)
    return indexes, parts[0][1] if len(parts) == 1 else ChainedRows(parts)


def save(path: StrPath, indexes: Sequence[Index], rows: Rows, columns: Sequence[str]) -> None:
    """Write a saved view of some rows of indexes; see `Dataset.save`."""
    target = os.fspath(path)
    _check_target(target)
    with locked(target):
        _check_target(target)  # again, as another process may have built an index there meanwhile
        with ViewWriter(target) as writer:
            records = sum(index.records for index in indexes)
            as_bits = rows.rises and len(rows) * order_type(records).width > -(-records // 8)
            _write_sections(writer, indexes, rows, columns, as_bits=as_bits)
            bases = [
                {
                    "path": relative_to_index(index.absolute(index.path), writer.target),
                    "records": index.records,
                    "mark": mark_of(index, columns),
                }
                for index in indexes
            ]
            writer.commit({"bases": bases, "builder": f"mmapds {__version__}"}, len(rows))


def examine_view(view: SavedView) -> Findings:
    """Check the checksums of a saved view, and the indexes that it is of; then save its rows again, and compare."""
    findings = Findings(view)
    findings.check_sections()
    bases: list[Index] = []
    for number in range(len(view.bases)):
        with findings.catching("indexes", view.base_path(number)):
            bases.append(view.open_base(number))
            for source in range(len(bases[-1].sources)):
                with findings.catching("sources", bases[-1].source_path(source)):
                    check_now(bases[-1], source)
    if len(bases) < len(view.bases):
        findings.not_checked.append("rows and columns, as the indexes are not what they were")
    else:
        with findings.catching("rows"), place_beside(view) as place, ViewWriter(place) as writer:
            _write_sections(writer, bases, SavedRows(view), list(view.columns), as_bits=view.is_bits)
            findings.compare(SavedView(writer.complete({"bases": view.metadata["bases"]}, view.records)))
    findings.not_checked.append("whether the records lie where the indexes say; their own verify compares them")
    return findings


def _write_sections(
    writer: ViewWriter, indexes: Sequence[Index], rows: Rows, columns: Sequence[str], *, as_bits: bool
) -> None:
    """Write the rows, their columns, and the order of their lengths."""
    total = sum(index.records for index in indexes)
    if as_bits:
        words = np.frombuffer(writer.scratch(8 * -(-total // 64)), np.uint64)
        for _, numbers in pieces(rows):
            _native.bits_set(words, total, numbers)
        writer.write_array("row_bits", U64.dtype, words.data.cast("B"))
        writer.write_array("row_ranks", U64.dtype, BitRows(words, total).before.data.cast("B"))
    else:
        dtype = order_type(total).dtype
        writer.begin_section("rows", dtype)
        for _, numbers in pieces(rows):
            writer.write(numbers.astype(dtype).data.cast("B"))
    for name in columns:
        column = stored.numbers(stored.whole(indexes), name)
        writer.begin_section(COLUMN + name, column.dtype.str)
        for _, numbers in pieces(rows):
            writer.write(column.at(numbers).astype(column.dtype).data.cast("B"))
    if "length" in columns and all(name in index.sections for index in indexes for name in LENGTH_SECTIONS):
        writer.write_length_order()


def _check_target(path: str) -> None:
    """Raise Error where a file that is not a saved view would be replaced."""
    if not os.path.lexists(path):
        return
    try:
        SavedView(path)
    except Error as error:
        raise Error(f"{path}: expected a new path, or a saved view to replace, found another file ({error})") from None
