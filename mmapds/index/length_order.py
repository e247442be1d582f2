"""Records in order of length, which is all that a plan of batches needs; sorted once, in the core."""

from typing import TYPE_CHECKING

from ..errors import ColumnError
from ..storage.numbers import BY_DTYPE, I64, U32, U64
from ..storage.sections import COLUMN
from ..storage.sort import order_type, sort

if TYPE_CHECKING:
    from ..storage.index_file import Index, IndexWriter

_PIECE = 1 << 20  # records checked at a time


def write_length_order(writer: "IndexWriter") -> None:
    """Append to an index that has a column 'length' the sections that samplers read instead of sorting:

      length_order    u32 or u64: record numbers, the longest first, equally long ones in ascending order
      length_values   u64: the distinct lengths, falling
      length_counts   u64: how many records have each

    Raises:
      ColumnError: the column has negative or fractional numbers.
    """
    dtype, data = writer.column("length")
    number_type = BY_DTYPE[dtype]
    if number_type not in (U32, U64):
        what = "negative" if number_type is I64 else "fractional or negative"
        raise ColumnError(
            f"column 'length': expected integers of 0 or more, found {what} numbers; give the column another name"
        )
    count = len(data) // number_type.width
    order_dtype, order_width, *_ = order_type(count)
    if count:
        order, spare = (writer.scratch(count * order_width) for _ in range(2))
        values, counts = sort(data, number_type.width, order, order_width, spare)
        writer.write_array("length_order", order_dtype, order)
    else:
        values, counts = b"", b""
        writer.write_array("length_order", order_dtype, b"")
    writer.write_array("length_values", U64.dtype, values)
    writer.write_array("length_counts", U64.dtype, counts)


def check_length_order(index: "Index") -> None:
    """Compare the sections above with the column of lengths.

    An order in which lengths fall, and record numbers rise where lengths are equal, has every record once.

    Raises:
      FormatError: they differ.
    """
    import numpy as np  # start-up time: building an index does without

    if "length_order" not in index.sections:
        return
    order, values, counts, lengths = (
        np.frombuffer(index.section(name), index.sections[name].dtype)
        for name in ("length_order", "length_values", "length_counts", COLUMN + "length")
    )
    ends = np.cumsum(counts, dtype=np.uint64)
    if int(counts.sum(dtype=object) if len(counts) else 0) != index.records or (values[1:] >= values[:-1]).any():
        raise index.damaged(
            f"length_values and length_counts: expected falling lengths of {index.records} records, found {values[:8]} "
            f"and {counts[:8]}"
        )
    for begin in range(0, index.records, _PIECE):
        records = order[begin : begin + _PIECE]
        if (wrong := np.flatnonzero(records >= index.records)).size:
            at = begin + int(wrong[0])
            raise index.damaged(f"length_order[{at}] = {order[at]} is out of range for {index.records} records")
        places = np.arange(begin, begin + len(records), dtype=np.uint64)
        expected = values[np.searchsorted(ends, places, side="right")]
        if (wrong := np.flatnonzero(lengths[records] != expected)).size:
            at = int(wrong[0])
            raise index.damaged(
                f"length_order[{begin + at}]: expected a record of length {expected[at]}, found record {records[at]} "
                f"of length {lengths[records[at]]}"
            )
        before = order[max(begin - 1, 0) : begin + len(records)]
        rises = (before[1:] > before[:-1]) | (lengths[before[1:]] < lengths[before[:-1]])
        if not rises.all():
            at = max(begin, 1) + int(np.argmin(rises))
            raise index.damaged(
                f"length_order[{at}]: expected a record after {order[at - 1]} or a shorter one, found {order[at]}"
            )
