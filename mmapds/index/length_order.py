"""Records in order of length, which is all that a plan of batches needs; sorted once, in the core."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import _native
from ..errors import ColumnError
from ..storage.numbers import BY_DTYPE, U32, U64, order_type, sort_digits

if TYPE_CHECKING:
    import mmap

    from ..storage.writer import SectionWriter

_AT_ONCE = 20  # lengths of up to so many bits are sorted in one pass: 8 MB of counters


class Sorted(NamedTuple):
    """The sections that samplers read instead of sorting, each with the type and the bytes of its numbers."""

    length_order: tuple[str, "mmap.mmap | bytes"]
    """u32 or u64: record numbers, the longest first, equally long ones in ascending order"""
    length_values: tuple[str, bytes]
    """u64: the distinct lengths, falling"""
    length_counts: tuple[str, bytes]
    """u64: how many records have each"""


def sort(lengths: Any, width: int, scratch: "Callable[[int], mmap.mmap]") -> Sorted:
    """Sort record numbers by their lengths.

    Args:
      lengths: a buffer of unsigned integers of `width` bytes, 4 or 8.
      scratch: returns memory of some bytes, for the order and, where lengths have more than 20 bits, for a second one.
    """
    count = memoryview(lengths).nbytes // width
    order_dtype, order_width, *_ = order_type(count)
    if not count:
        return Sorted((order_dtype, b""), (U64.dtype, b""), (U64.dtype, b""))
    native, order = _native.Lengths(lengths, width), scratch(count * order_width)
    largest = native.largest()
    if largest < 1 << _AT_ONCE:
        counts = memoryview(bytearray(8 * (largest + 1))).cast("Q")
        native.sort(counts, order, order_width)
        # After sorting, the counters hold where the run of each length ends.
        runs = _native.lengths_runs_of(counts)
    else:
        sort_digits(lengths, width, largest.bit_length(), order, order_width, scratch(count * order_width))
        runs = native.runs(order, order_width)
    return Sorted((order_dtype, order), *((U64.dtype, each) for each in runs))


def write_length_order(writer: "SectionWriter") -> None:
    """Append the sections of `Sorted` to an index that has a column 'length'.

    Raises:
      ColumnError: the column has negative or fractional numbers.
    """
    dtype, data = writer.column("length")
    number_type = BY_DTYPE[dtype]
    if number_type not in (U32, U64):
        raise _not_lengths(data.cast(number_type.code))
    for name, section in sort(data, number_type.width, writer.scratch)._asdict().items():
        writer.write_array(name, *section)


def _not_lengths(numbers: Iterable[float]) -> ColumnError:
    """Return the error to raise for a column of signed integers or floats."""
    for record, number in enumerate(numbers):
        if not number >= 0 or number % 1:
            return ColumnError(
                f"column 'length': expected integers of 0 or more, found {number}; give a field of integers, compute "
                "them with mmapds.add_column, as milliseconds, or give the column another name "
                f"(record {record} of the index)"
            )
    return ColumnError(
        "column 'length': expected integers, found whole numbers with a fraction or an exponent, as 5.0 for 5; write "
        "them as integers, or add the column with mmapds.add_column, which takes whole floats"
    )
