"""Saved views, and the columns, length orders and block starts of a view, read from its indexes."""

import os
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .. import __version__, _native
from ..compression.blocks import BlockTable
from ..errors import Error, StaleIndexError
from ..index.lengths import FileOrder, LengthOrder, Numbers
from ..index.verify import Findings, place_beside
from ..storage.current import check_now
from ..storage.index_file import LENGTH_SECTIONS, Base, Index, SavedView, mark_of
from ..storage.lock import locked
from ..storage.numbers import BY_DTYPE, U64, order_type, scratch
from ..storage.places import relative_to_index
from ..storage.sections import COLUMN
from ..storage.sources import Io, StrPath
from ..storage.writer import ViewWriter
from .views import ArrayRows, BitRows, ChainedRows, Int64s, NestedRows, RangeRows, Rows, ascends, pieces

_MOST_CUT = 16  # most partly used indexes in a length order; each needs searches
_PIECE = 1 << 20  # records whose bounds are read at a time


class SavedRows(Rows):
    """The records of a saved view, read from its file."""

    def __init__(self, file: SavedView) -> None:
        self.file = file
        self._held: ArrayRows | BitRows | None = None  # None for a mapped array
        if file.is_bits:
            words, before = (np.frombuffer(file.section(name), np.uint64) for name in ("row_bits", "row_ranks"))
            self._held = BitRows(words, file.total, before, file.map if file.map.is_mapped else None)
        elif not file.map.is_mapped:
            self._held = ArrayRows(np.frombuffer(file.section("rows"), file.sections["rows"].dtype))

    def __len__(self) -> int:
        return self.file.records

    def many(self, positions: Int64s) -> Int64s:
        try:
            if self._held is not None:
                found = self._held.many(positions)
            else:
                found, section = np.empty(len(positions), np.int64), self.file.sections["rows"]
                place = section.offset, BY_DTYPE[section.dtype].width, section.items
                self.file.map.take(*place, np.ascontiguousarray(positions), found)
        except ValueError:
            raise self.file.damaged("section 'row_ranks': expected the counts of 'row_bits', found others") from None
        except EOFError:
            raise self.file.cut_short() from None
        if len(found) and (largest := int(found.view(np.uint64).max())) >= self.file.total:
            raise self.file.damaged(f"section 'rows': record {largest} is out of range for {self.file.total} records")
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopened, (self.file.absolute(self.file.path), self.file.checksum, self.file.io)


def _reopened(path: str, checksum: int, io: Io) -> SavedRows:
    """Map the file of a pickled view again. The dataset opens its bases, so this follows none of its paths."""
    file = SavedView(path, io=io)
    if file.checksum != checksum:
        raise StaleIndexError(f"{path}: not the saved view of the pickled dataset; open the dataset again")
    return SavedRows(file)


def unfolded(members: Sequence[Index | SavedView]) -> tuple[list[Index], Rows | None]:
    """Replace saved views by their indexes; return all indexes and the selected rows, None for all records."""
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
    target = os.fspath(path)
    with locked(target):
        if os.path.lexists(target):
            try:
                SavedView(target)
            except Error as error:
                found = f"found another file ({error})"
                raise Error(f"{target}: expected a new path, or a saved view to replace, {found}") from None
        with ViewWriter(target) as writer:
            writer.restrict(index.path for index in indexes)
            records = sum(index.records for index in indexes)
            as_bits = len(rows) * order_type(records).width > -(-records // 8) and ascends(rows)
            _write_sections(writer, indexes, rows, columns, as_bits=as_bits)
            bases = []
            for index in indexes:
                path = relative_to_index(index.absolute(index.path), writer.target)
                bases.append(Base(path, index.records, mark_of(index, columns))._asdict())
            writer.commit({"bases": bases, "builder": f"mmapds {__version__}"}, len(rows))


def examine_view(view: SavedView) -> Findings:
    """Check the checksums of a saved view and its indexes; then save its rows again, and compare."""
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
        column = _numbers(_whole(indexes), name)
        writer.begin_section(COLUMN + name, column.dtype.str)
        for _, numbers in pieces(rows):
            writer.write(column.at(numbers).astype(column.dtype).data.cast("B"))
    if "length" in columns and all(name in index.sections for index in indexes for name in LENGTH_SECTIONS):
        writer.write_length_order()


# ---- columns, length orders and blocks ------------------------------------------------------------------------------


class _Part(NamedTuple):
    """Neighbouring records of an index, or of a saved view."""

    of: Index | SavedView
    begin: int
    end: int


def _whole(indexes: Sequence[Index]) -> list[_Part]:
    return [_Part(index, 0, index.records) for index in indexes]


def _runs(indexes: Sequence[Index], rows: Rows, first: int = 0) -> list[_Part] | None:
    """Return the runs of neighbours that make up `rows`, with their record 0 at `first`; None if they are not runs."""
    if isinstance(rows, SavedRows):
        return [_Part(rows.file, 0, len(rows))]
    if isinstance(rows, ChainedRows):
        every = [_runs(indexes, each, first + begin) for begin, each in rows.chained]
        return None if None in every else [run for runs in every for run in runs or ()]
    parts: list[_Part] | None = _whole(indexes)
    if isinstance(rows, NestedRows):
        parts, rows, first = _runs(indexes, rows.outer, first), rows.inner, 0
    if parts is None or not isinstance(rows, RangeRows) or rows.range.step != 1:
        return None
    begin, end = first + rows.range.start, first + rows.range.stop
    starts = list(accumulate((part.end - part.begin for part in parts[:-1]), initial=0))
    here = slice(bisect_right(starts, begin) - 1, max(bisect_left(starts, end), bisect_right(starts, begin)))
    return [
        _Part(of, low + max(begin - start, 0), min(low + end - start, high))
        for (of, low, high), start in zip(parts[here], starts[here], strict=False)
    ]


def _numbers(parts: Sequence[_Part], name: str) -> Numbers:
    arrays = []
    for index, begin, end in parts:
        dtype, data = index.column(name)
        arrays.append(np.frombuffer(data, dtype)[begin:end])
    return Numbers(arrays, name)


def column(indexes: Sequence[Index], rows: Rows, name: str) -> NDArray[Any]:
    parts = _runs(indexes, rows)
    if parts and all(name in part.of.columns for part in parts):
        return _numbers(parts, name).array
    every = _numbers(_whole(indexes), name)
    found = np.frombuffer(scratch(len(rows) * every.dtype.itemsize), every.dtype, len(rows))
    for begin, records in pieces(rows):
        found[begin : begin + len(records)] = every.at(records)
    return found


def length_order(indexes: Sequence[Index], rows: Rows, dataset: Any) -> LengthOrder | None:
    """Return the length order of `rows`, which pickles by `dataset`; see `Dataset.length_order`."""
    runs = _runs(indexes, rows) or ()
    parts = [run for run in runs if run.begin < run.end] or [run for run in runs if not run.of.records][:1]
    if not parts or sum(end - begin < of.records for of, begin, end in parts) > _MOST_CUT:
        return None
    ordered = []
    for index, begin, end in parts:
        lengths = index.columns.get("length")
        if lengths is None or lengths.dtype[1] != "u" or not all(name in index.sections for name in LENGTH_SECTIONS):
            return None
        order, values, counts = (
            np.frombuffer(index.section(name), index.sections[name].dtype) for name in LENGTH_SECTIONS
        )
        ordered.append(FileOrder(order, values, counts, begin, end, index.damaged))
    return LengthOrder(ordered, _numbers(parts, "length"), (attrgetter("length_order"), (dataset,)))


def block_starts(indexes: Sequence[Index], rows: Rows) -> NDArray[np.int64]:
    """Return the position of the first record that begins in each block, and the length; see `Dataset.block_starts`."""
    found, first = [], 0
    for index in indexes:
        for number, source in enumerate(index.sources):
            if source.compression is None:
                path = index.source_path(number)
                raise Error(
                    f"{path}: expected a compressed source, which has blocks, found another; give a number of records "
                    "as chunk_size, as in ChunkedSampler(ds, 1000)"
                )
            found.append(first + _block_starts(index, number))
            first += source.records
    starts = np.concatenate([*found, [first]]).astype(np.int64)
    if isinstance(rows, RangeRows) and rows.range.step == 1:
        begin, end = rows.range.start, rows.range.stop
        inside = starts[(starts > begin) & (starts < end)]
        return starts if len(rows) == first else np.concatenate([[begin], inside, [end]]).astype(np.int64) - begin
    changes, last = [], -1
    for begin, records in pieces(rows):
        blocks = np.searchsorted(starts, records, "right")
        changes.append(begin + np.flatnonzero(np.diff(blocks, prepend=last)))
        last = int(blocks[-1])
    return np.concatenate([*changes, [len(rows)]]).astype(np.int64)


def _block_starts(index: Index, number: int) -> NDArray[np.int64]:
    """Return the number in its source of the first record that begins in each block."""
    table, records = BlockTable(index, number), index.sources[number].records
    bounds = np.asarray(table.bounds(0, table.count))
    found, done = np.full(len(bounds), records, np.int64), 0
    for begin in range(0, records, _PIECE):
        starts = np.frombuffer(index.bounds(number, begin, min(begin + _PIECE, records)), np.uint64)
        end = int(np.searchsorted(bounds, starts[-1], "right"))
        found[done:end] = begin + np.searchsorted(starts, bounds[done:end])
        done = end
    return found
