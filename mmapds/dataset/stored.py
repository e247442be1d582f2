"""What is stored of the records of a dataset: columns, length orders and blocks, read where they lie.

A dataset of whole indexes, or of some runs of neighbours in them, needs nothing of its own: its columns are theirs, and
its length order is made of theirs.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import Error
from ..storage.blocks import BlockTable
from ..storage.index_file import LENGTH_SECTIONS, Index
from ..storage.numbers import scratch
from ..storage.runs import FileOrder, LengthOrder, Numbers
from .views import Part, Parts, RangeRows, Rows, pieces

_MOST_CUT = 16  # parts of indexes whose records of each length are searched for
_PIECE = 1 << 20  # records whose bounds are looked at at a time


def whole(indexes: Sequence[Index]) -> list[Part]:
    """Return all records of some indexes."""
    return [Part(index, 0, index.records) for index in indexes]


def parts_of(indexes: Sequence[Index], rows: Rows | None) -> list[Part] | None:
    """Return the parts of indexes that a selection of all their records is made of, in turn; None if it is not."""
    return whole(indexes) if rows is None else rows.parts(Parts(whole(indexes)))


def numbers(parts: Sequence[Part], name: str) -> Numbers:
    """Return a column of parts of indexes.

    Raises:
      ColumnError: an index does not have it, or its numbers have no type in common.
    """
    arrays = []
    for index, begin, end in parts:
        dtype, data = index.column(name)
        arrays.append(np.frombuffer(data, dtype)[begin:end])
    return Numbers(arrays, name)


def column(indexes: Sequence[Index], rows: Rows | None, name: str) -> NDArray[Any]:
    """Return the numbers of some rows of a column, mapped where they lie together; else a copy.

    Above 16 MB, the copy is in a scratch file. Raises as `numbers` does.
    """
    parts = parts_of(indexes, rows)
    if parts and all(name in part.of.columns for part in parts):
        return numbers(parts, name).array
    every = numbers(whole(indexes), name)
    if rows is None or not len(rows):
        return np.empty(0, every.dtype)
    if isinstance(rows, RangeRows) and len(indexes) == 1:
        wanted = rows.range
        return every.array[wanted.start : wanted.stop if wanted.stop >= 0 else None : wanted.step]
    found = np.frombuffer(scratch(len(rows) * every.dtype.itemsize), every.dtype, len(rows))
    for begin, records in pieces(rows):
        found[begin : begin + len(records)] = every.at(records)
    return found


def length_order(indexes: Sequence[Index], rows: Rows | None, dataset: Any) -> LengthOrder | None:
    """Return the length order of some rows; None where an index has none, or they are cut too often.

    Args:
      dataset: of these rows, which a pickle has instead.
    Raises:
      FormatError: an index is damaged.
    """
    parts = parts_of(indexes, rows)
    if not parts or sum(not part.is_whole for part in parts) > _MOST_CUT:
        return None
    parts = [part for part in parts if part.begin < part.end] or parts[:1]  # a run has a record or more
    ordered = []
    for index, begin, end in parts:
        lengths = index.columns.get("length")
        if lengths is None or lengths.dtype[1] != "u" or not all(name in index.sections for name in LENGTH_SECTIONS):
            return None
        order, values, counts = (
            np.frombuffer(index.section(name), index.sections[name].dtype) for name in LENGTH_SECTIONS
        )
        ordered.append(FileOrder(order, values, counts, begin, end, index.damaged))
    return LengthOrder(ordered, numbers(parts, "length"), (order_of, (dataset,)))


def order_of(dataset: Any) -> LengthOrder:
    """Return the length order of a dataset that has one: what a pickle of it calls."""
    found: LengthOrder = dataset.length_order
    return found


def block_starts(indexes: Sequence[Index], rows: Rows | None) -> NDArray[np.int64]:
    """Return the position of the first record that begins in each block, and the length: shape (blocks + 1,).

    Raises:
      Error: a source is not compressed, or the rows are not all, or a run of neighbours.
    """
    found, first = [], 0
    for index in indexes:
        for number, source in enumerate(index.sources):
            if source.compression is None:
                path = index.source_path(number)
                raise Error(f"{path}: expected a compressed source, which has blocks, found another")
            found.append(first + _block_starts(index, number))
            first += source.records
    starts = np.concatenate([*found, [first]]).astype(np.int64)
    if rows is None:
        return starts
    if not isinstance(rows, RangeRows) or rows.range.step != 1:
        raise Error("block_starts: expected all records or a slice of neighbours, found another view; give the whole")
    begin, end = rows.range.start, rows.range.stop
    return np.concatenate([[begin], starts[(starts > begin) & (starts < end)], [end]]).astype(np.int64) - begin


def _block_starts(index: Index, number: int) -> NDArray[np.int64]:
    """Return the first record that begins in each block of a source, counted in the source."""
    table, records = BlockTable(index, number), index.sources[number].records
    bounds = np.asarray(table.bounds.read(0, table.count))
    found, done = np.full(len(bounds), records, np.int64), 0
    for begin in range(0, records, _PIECE):
        starts = np.frombuffer(index.bounds(number, begin, min(begin + _PIECE, records)), np.uint64)
        end = int(np.searchsorted(bounds, starts[-1], "right"))
        found[done:end] = begin + np.searchsorted(starts, bounds[done:end])
        done = end
    return found
