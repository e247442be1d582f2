"""Record numbers sorted by a number of each record: a radix sort in the core."""

from typing import Any

from .. import _native
from .numbers import U32, U64, NumberType

_DIGIT = 16  # bits sorted at a time
AT_ONCE = 20  # numbers of up to so many bits are sorted in one pass: 8 MB of counters


def order_type(records: int) -> NumberType:
    """Return the type of record numbers in an order."""
    return U32 if records <= 2**32 else U64


def order_bytes(records: int) -> int:
    """Return the bytes that a record number takes in an order."""
    return order_type(records).width


def sort(lengths: Any, width: int, order: Any, order_width: int, spare: Any) -> tuple[bytes, bytes]:
    """Sort record numbers by their lengths, the longest first, equally long ones in ascending order.

    Args:
      lengths: a buffer of unsigned integers of `width` bytes, 4 or 8.
      order: a buffer of the same number of integers of `order_width` bytes; filled.
      spare: a second such buffer; overwritten where lengths have more than 20 bits.
    Returns:
      The distinct lengths, falling, and how many records have each, both as bytes of u64.
    """
    native = _native.Lengths(lengths, width)
    largest = native.largest()
    bits = max(largest.bit_length(), 1)
    if bits <= AT_ONCE:
        counts = memoryview(bytearray(8 * (largest + 1))).cast("Q")
        native.sort(counts, order, order_width)
        # After sorting, the counters hold where the run of each length ends.
        return _native.lengths_runs_of(counts)
    sort_digits(lengths, width, bits, order, order_width, spare)
    return native.runs(order, order_width)


def sort_digits(numbers: Any, width: int, bits: int, order: Any, order_width: int, spare: Any) -> None:
    """Sort record numbers by numbers of up to `bits` bits, falling, as `sort` does; one pass for each 16 bits."""
    digit = memoryview(bytearray(8 << _DIGIT)).cast("Q")
    passes = -(-bits // _DIGIT)
    buffers = [order, spare] if passes % 2 else [spare, order]
    native, previous = _native.Lengths(numbers, width), None
    for number in range(passes):
        native.sort_digits(number * _DIGIT, digit, previous, buffers[number % 2], order_width)
        previous = buffers[number % 2]
