"""What is stored of the records of a dataset: columns and length orders, read where they lie.

A dataset of whole indexes, or of some runs of neighbours in them, needs nothing of its own: its columns are theirs, and
its length order is made of theirs.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..storage.index_file import LENGTH_SECTIONS, Index
from ..storage.runs import FileOrder, LengthOrder, Numbers
from ..storage.spool import scratch
from ..storage.view_file import SavedView
from .chosen import pieces
from .views import Rows, Stretch

_MOST_CUT = 16  # parts of indexes whose records of each length are searched for


class Part(NamedTuple):
    """Neighbouring records of an index, or of a saved view."""

    of: Index | SavedView
    begin: int
    end: int

    @property
    def is_whole(self) -> bool:
        return self.begin == 0 and self.end == self.of.records


def parts_of(indexes: Sequence[Index], rows: Rows | None) -> list[Part] | None:
    """Return the parts of indexes that a selection of all their records is made of, in turn; None if it is not."""
    if rows is None:
        return [Part(index, 0, index.records) for index in indexes]
    stretches = rows.stretches()
    if stretches is None:
        return None
    starts = list(accumulate((index.records for index in indexes), initial=0))
    found: list[Part] = []
    for stretch in stretches:
        if stretch.saved is None:
            found += _within(indexes, starts, stretch)
        else:
            found.append(Part(stretch.saved, stretch.begin, stretch.end))
    return found


def _within(indexes: Sequence[Index], starts: list[int], stretch: Stretch) -> Iterator[Part]:
    """Yield the parts of indexes that a stretch of all records goes through."""
    begin, number = stretch.begin, bisect_right(starts, stretch.begin) - 1
    while begin < stretch.end:
        end = min(stretch.end, starts[number + 1])
        if end > begin:
            yield Part(indexes[number], begin - starts[number], end - starts[number])
        begin, number = end, number + 1


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


def whole(indexes: Sequence[Index], name: str) -> Numbers:
    """Return a column of whole indexes; raises as `numbers` does."""
    return numbers([Part(index, 0, index.records) for index in indexes], name)


def gathered(column: Numbers, rows: Rows) -> NDArray[Any]:
    """Return the numbers of some rows of a column: a copy, above 16 MB in a scratch file."""
    found = np.frombuffer(scratch(len(rows) * column.dtype.itemsize), column.dtype, len(rows))
    for begin, records in pieces(rows):
        found[begin : begin + len(records)] = column.at(records)
    return found


def length_order(parts: Sequence[Part], dataset: Any) -> LengthOrder | None:
    """Return the length order of parts of indexes; None where one has none, or they are cut too often.

    Args:
      dataset: of these parts, which a pickle has instead.
    Raises:
      FormatError: an index is damaged.
    """
    if sum(not part.is_whole for part in parts) > _MOST_CUT:
        return None
    parts = [part for part in parts if part.begin < part.end] or parts[:1]  # a run has a record or more
    ordered = []
    for index, begin, end in parts:
        column = index.columns.get("length")
        if column is None or column.dtype[1] != "u" or not all(name in index.sections for name in LENGTH_SECTIONS):
            return None
        order, values, counts = (
            np.frombuffer(index.section(name), index.sections[name].dtype) for name in LENGTH_SECTIONS
        )
        ordered.append(FileOrder(order, values, counts, begin, end, index.damaged))
    return LengthOrder(ordered, numbers(parts, "length"), (order_of, (dataset,))) if ordered else None


def order_of(dataset: Any) -> LengthOrder:
    """Return the length order of a dataset that has one: what a pickle of it calls."""
    found: LengthOrder = dataset.length_order
    return found
