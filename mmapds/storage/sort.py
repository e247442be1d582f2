"""Record numbers in order of a number that each has: a radix sort in the core."""

from typing import Any

from .. import _native

_DIGIT = 16  # bits sorted at a time
AT_ONCE = 20  # bits that are one digit when there are no more: 8 MB of counters


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
