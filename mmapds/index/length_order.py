"""Records in order of length, which is all that a plan of batches needs; sorted once, in the core."""

from typing import TYPE_CHECKING

from ..errors import ColumnError
from ..storage.numbers import BY_DTYPE, I64, U32, U64
from ..storage.sections import COLUMN
from ..storage.sort import order_type, sort

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ..storage.index_file import IndexWriter
    from .findings import Findings

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


def check_length_order(findings: "Findings") -> None:
    """Compare the sections above with the column of lengths.

    An order in which lengths fall, and record numbers rise where lengths are equal, has every record once.
    """
    import numpy as np  # start-up time: building an index does without

    index = findings.index
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

    def expected(places: "NDArray[np.uint64]") -> "NDArray[np.uint64]":
        return values[np.searchsorted(ends, places, side="right")]

    def out_of_range(at: int) -> tuple[str, int]:
        return f"length_order[{at}] = {order[at]} is out of range for {index.records} records", int(order[at])

    def of_other_length(at: int) -> tuple[str, int]:
        record, length = int(order[at]), expected(np.array([at], np.uint64))[0]
        found = f"found record {record} of length {lengths[record]}"
        return f"length_order[{at}]: expected a record of length {length}, {found}", record

    def out_of_order(at: int) -> tuple[str, int]:
        before, record = order[at - 1], int(order[at])
        return f"length_order[{at}]: expected a record after {before} or a shorter one, found {record}", record

    for begin in range(0, index.records, _PIECE):
        # With the one before, but for the first piece: its successor must not come before it.
        records = order[max(begin - 1, 0) : begin + _PIECE]
        places = np.arange(max(begin - 1, 0), max(begin - 1, 0) + len(records), dtype=np.uint64)
        outside = records >= index.records
        found = lengths[np.where(outside, 0, records)]
        other = ~outside & (found != expected(places))
        right = ~outside & ~other
        rises = (records[1:] > records[:-1]) | (found[1:] < found[:-1])
        again = np.concatenate([[False], ~rises & right[1:] & right[:-1]])
        for wrong, describe in ((outside, out_of_range), (other, of_other_length), (again, out_of_order)):
            found_at = places[wrong]
            findings.add_each("length_order", found_at[found_at >= begin].tolist(), describe)
