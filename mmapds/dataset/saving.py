"""Saved views: a selection of records as an index of its own, written by `ds.save` and opened by `mmapds.open`."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .. import __version__, _native
from ..errors import Error, StaleIndexError
from ..index.length_order import write_length_order
from ..index.verify import Findings, place_beside
from ..storage.files import Io
from ..storage.index_file import LENGTH_SECTIONS, Index, relative_to_index
from ..storage.lock import locked
from ..storage.numbers import BY_DTYPE, U32, U64, NumberType
from ..storage.runs import Numbers
from ..storage.sections import COLUMN
from ..storage.sources import StrPath
from ..storage.view_file import BITS_BLOCK, SavedView, check_source_of_view, mark_of
from ..storage.writer import ViewWriter
from . import stored
from .chosen import ArrayRows, BitRows, pieces
from .views import ChainedRows, Int64s, NestedRows, RangeRows, Rows, Stretch

if TYPE_CHECKING:
    from .indexed import IndexedDataset


class _MappedRows:
    """Records as an array in a file, which may be cut short: EOFError, or FormatError, then."""

    def __init__(self, file: SavedView) -> None:
        self._file = file
        section = file.sections["rows"]
        self._place = section.offset, BY_DTYPE[section.dtype].width, section.items

    def many(self, positions: Int64s) -> Int64s:
        out = np.empty(len(positions), np.int64)
        self._file.map.take(*self._place, np.ascontiguousarray(positions), out)
        return out

    def positions(self, record: int) -> list[int]:
        found: list[int] = []
        for begin, piece in self._pieces():
            found += (np.flatnonzero(piece == record) + begin).tolist()
        return found

    @property
    def rises(self) -> bool:
        last = -1
        for _, piece in self._pieces():
            if int(piece[0]) <= last or not (piece[1:] > piece[:-1]).all():
                return False
            last = int(piece[-1])
        return True

    def _pieces(self) -> Iterator[tuple[int, NDArray[Any]]]:
        """Yield the records, some at a time, each with its first position."""
        begin = 0
        for data in self._file.pieces("rows"):
            piece = np.frombuffer(data, self._file.sections["rows"].dtype)
            yield begin, piece
            begin += len(piece)


class SavedRows:
    """The records of a saved view, read where they lie."""

    def __init__(self, file: SavedView) -> None:
        self.file = file
        self._inner: ArrayRows | BitRows | _MappedRows
        if file.is_bits:
            words, before = (np.frombuffer(file.section(name), np.uint64) for name in ("row_bits", "row_ranks"))
            self._inner = BitRows(words, before, file.total, file.map if file.map.is_mapped else None)
        elif file.map.is_mapped:
            self._inner = _MappedRows(file)
        else:
            self._inner = ArrayRows(np.frombuffer(file.section("rows"), file.sections["rows"].dtype))

    def __len__(self) -> int:
        return self.file.records

    def one(self, position: int) -> int:
        return int(self.many(np.array([position], np.int64))[0])

    def many(self, positions: Int64s) -> Int64s:
        try:
            numbers = self._inner.many(positions)
        except ValueError:
            raise self.file.damaged("section 'row_ranks': expected the counts of 'row_bits', found others") from None
        except EOFError:
            raise self.file.cut_short() from None
        if len(numbers) and int(numbers.view(np.uint64).max()) >= self.file.total:
            found = int(numbers.view(np.uint64).max())
            raise self.file.damaged(f"section 'rows': record {found} is out of range for {self.file.total} records")
        return numbers

    def part(self, positions: range) -> NestedRows:
        return NestedRows(self, RangeRows(positions))

    def positions(self, record: int) -> list[int]:
        try:
            found = self._inner.positions(record)
        except EOFError:
            raise self.file.cut_short() from None
        if any(position >= len(self) or self.one(position) != record for position in found):
            raise self.file.damaged("section 'row_ranks': expected the counts of 'row_bits', found others")
        return found

    def stretches(self) -> list[Stretch]:
        return [Stretch(0, len(self), self.file)]

    @property
    def rises(self) -> bool:
        return self._inner.rises

    def __reduce__(self) -> tuple[Any, ...]:
        file = self.file
        return _reopened, (os.getcwd(), file.absolute(file.path), file.checksum, file.io)


def _reopened(directory: str, path: str, checksum: int, io: Io) -> SavedRows:
    """Map the file of a pickled view again; its bases are opened by the dataset, so nothing here follows its paths."""
    file = SavedView(os.path.join(directory, path), io=io)
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


def save(dataset: "IndexedDataset", indexes: Sequence[Index], rows: Rows | None, path: StrPath) -> None:
    """Write a saved view; see `Dataset.save`."""
    target = os.fspath(path)
    _check_target(target)
    rows = RangeRows(range(len(dataset))) if rows is None else rows
    with _writer(target) as writer:
        records = sum(index.records for index in indexes)
        as_bits = rows.rises and len(rows) * _row_type(records).width > -(-records // 8)
        _write_sections(writer, indexes, rows, dataset.columns, as_bits=as_bits)
        bases = [
            {
                "path": relative_to_index(index.absolute(index.path), writer.target),
                "records": index.records,
                "mark": mark_of(index, dataset.columns),
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
                    check_source_of_view(bases[-1], source)
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
    _write_rows(writer, rows, sum(index.records for index in indexes), as_bits=as_bits)
    for name in columns:
        _write_column(writer, name, stored.whole(indexes, name), rows)
    if "length" in columns and all(name in index.sections for index in indexes for name in LENGTH_SECTIONS):
        write_length_order(writer)


@contextmanager
def _writer(target: str) -> Iterator[ViewWriter]:
    with locked(target):
        _check_target(target)  # again, as another process may have built an index there meanwhile
        with ViewWriter(target) as writer:
            yield writer


def _check_target(path: str) -> None:
    """Raise Error where a file that is not a saved view would be replaced."""
    if not os.path.lexists(path):
        return
    try:
        SavedView(path)
    except Error as error:
        raise Error(f"{path}: expected a new path, or a saved view to replace, found another file ({error})") from None


def _row_type(total: int) -> NumberType:
    return U32 if total <= 2**32 else U64


def _write_rows(writer: ViewWriter, rows: Rows, total: int, *, as_bits: bool) -> None:
    number_type = _row_type(total)
    if not as_bits:
        writer.begin_section("rows", number_type.dtype)
        for _, numbers in pieces(rows):
            writer.write(numbers.astype(number_type.dtype).data.cast("B"))
        return
    count = -(-total // 64)
    words = np.frombuffer(writer.scratch(8 * count), np.uint64)
    for _, numbers in pieces(rows):
        _native.bits_set(words, total, numbers)
    before = np.empty(-(-total // BITS_BLOCK) + 1, np.uint64)
    _native.bits_count(words, before)
    writer.write_array("row_bits", U64.dtype, words.data.cast("B"))
    writer.write_array("row_ranks", U64.dtype, before.data.cast("B"))


def _write_column(writer: ViewWriter, name: str, column: Numbers, rows: Rows) -> None:
    writer.begin_section(COLUMN + name, column.dtype.str)
    for _, numbers in pieces(rows):
        writer.write(column.at(numbers).astype(column.dtype).data.cast("B"))
