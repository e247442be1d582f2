"""Where the blocks of compressed sources begin, in records: what is decoded together."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..errors import Error
from ..storage.blocks import BlockTable
from .views import RangeRows, Rows

if TYPE_CHECKING:
    from ..storage.index_file import Index
    from .catalog import Catalog

_PIECE = 1 << 20  # records whose bounds are looked at at a time


def block_starts(catalog: "Catalog", rows: Rows | None) -> NDArray[np.int64]:
    """Return the position of the first record that begins in each block, and the length: shape (blocks + 1,).

    Args:
      rows: of a view.
    Raises:
      Error: a source is not compressed, or the view is not a run of neighbours.
    """
    for index, number in catalog.members:
        if index.sources[number].compression is None:
            raise Error(f"{index.source_path(number)}: expected a compressed source, which has blocks, found another")
    parts = [
        first + _of_source(index, number)
        for (index, number), first in zip(catalog.members, catalog.starts.astype(np.int64), strict=False)
    ]
    starts = np.concatenate([*parts, catalog.starts[-1:].astype(np.int64)])
    if rows is None:
        return starts
    if not isinstance(rows, RangeRows) or rows.range.step != 1:
        raise Error("block_starts: expected all records or a slice of neighbours, found another view; give the whole")
    begin, end = rows.range.start, rows.range.start + len(rows)
    inside = starts[(starts > begin) & (starts < end)]
    return np.concatenate([[begin], inside, [end]]).astype(np.int64) - begin


def _of_source(index: "Index", number: int) -> NDArray[np.int64]:
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
