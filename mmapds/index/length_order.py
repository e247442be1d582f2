"""Records in order of their length, which is all that planning batches by a budget needs; sorted once, in the core."""

from typing import TYPE_CHECKING

from ..errors import ColumnError
from ..storage.sort import order_bytes, sort

if TYPE_CHECKING:
    from ..storage.index_file import IndexWriter


def write_length_order(writer: "IndexWriter") -> None:
    """Append to an index, which has a column of lengths, the sections that samplers read instead of sorting:

      length_order    u32 or u64: record numbers, the longest first, equally long ones in ascending order
      length_values   u64: the lengths there are, falling
      length_counts   u64: how many records have each

    Raises:
      ColumnError: the column is not one of lengths.
    """
    dtype, data = writer.column("length")
    if dtype not in ("<u4", "<u8"):
        what = "negative" if dtype == "<i8" else "fractional or negative"
        raise ColumnError(
            f"lengths are integers of 0 or more, but column 'length' has {what} numbers; name it otherwise"
        )
    width = int(dtype[-1])
    count = len(data) // width
    order_width = order_bytes(count)
    if count:
        order, spare = (writer.scratch(count * order_width) for _ in range(2))
        values, counts = sort(data, width, order, order_width, spare)
        writer.write_array("length_order", f"<u{order_width}", order)
    else:
        values, counts = b"", b""
        writer.write_array("length_order", f"<u{order_width}", b"")
    writer.write_array("length_values", "<u8", values)
    writer.write_array("length_counts", "<u8", counts)
