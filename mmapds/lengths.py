"""Records in order of their length, which is all that planning batches by a budget needs; sorted once, in the core."""

from typing import TYPE_CHECKING, Any

from . import _native
from .errors import ColumnError

if TYPE_CHECKING:
    from .store import IndexWriter

_DIGIT = 16  # bits sorted at a time
AT_ONCE = 20  # bits that are one digit when there are no more: 8 MB of counters


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


def order_bytes(records: int) -> int:
    """Bytes that a record number takes in an order."""
    return 4 if records <= 2**32 else 8


def sort(lengths: Any, width: int, order: Any, order_width: int, spare: Any) -> tuple[bytes, bytes]:
    """Sort record numbers by their lengths, the longest first, equally long ones in ascending order.

    Args:
      lengths: a buffer of unsigned integers of `width` bytes, 4 or 8.
      order: a buffer of as many of `order_width` bytes, which is filled.
      spare: another, which is written to where lengths are many bits long.
    Returns:
      The lengths there are, falling, and how many records have each, as bytes of u64.
    """
    native = _native.Lengths(lengths, width)
    largest = native.largest()
    bits = max(largest.bit_length(), 1)
    if bits <= AT_ONCE:
        counts = memoryview(bytearray(8 * (largest + 1))).cast("Q")
        native.sort(counts, order, order_width)
        # Sorting leaves where the run of each length ends, the longest run first.
        return _native.lengths_runs_of(counts)
    sort_digits(lengths, width, bits, order, order_width, spare)
    return native.runs(order, order_width)


def sort_digits(numbers: Any, width: int, bits: int, order: Any, order_width: int, spare: Any) -> None:
    """Sort record numbers by numbers of up to `bits` bits, as `sort` does, whatever the numbers are."""
    digit = memoryview(bytearray(8 << _DIGIT)).cast("Q")
    passes = -(-bits // _DIGIT)
    buffers = [order, spare] if passes % 2 else [spare, order]
    native, previous = _native.Lengths(numbers, width), None
    for number in range(passes):
        native.sort_digits(number * _DIGIT, digit, previous, buffers[number % 2], order_width)
        previous = buffers[number % 2]
