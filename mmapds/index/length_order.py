"""Records in order of length, which is all that a plan of batches needs; sorted once, in the core."""

from typing import TYPE_CHECKING

from ..errors import ColumnError
from ..storage.numbers import BY_DTYPE, I64, U32, U64
from ..storage.sort import order_type, sort

if TYPE_CHECKING:
    from ..storage.index_file import IndexWriter


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
