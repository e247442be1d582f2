"""The types of numbers that a section may hold, how to get from one to another, and a radix sort.

The core measures records into cells of 64 bits and says how to read them (`NUMBER_U64`, `NUMBER_I64`, `NUMBER_F64`); a
section holds the narrowest type that fits all of its numbers.
"""

import mmap
import operator
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from .. import _native

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class NumberType(NamedTuple):
    """A type of numbers, and its name in each place that has one."""

    dtype: str
    """What a section calls it; NumPy too."""
    width: int
    """Bytes."""
    code: Literal["B", "I", "Q", "q", "d"]
    """What `memoryview.cast`, `array` and `struct` call it."""
    cell: int
    """How the core reads a number of this type once it is widened to 64 bits."""


U8 = NumberType("|u1", 1, "B", _native.NUMBER_U64)
"""Plain bytes; not for columns."""
U32 = NumberType("<u4", 4, "I", _native.NUMBER_U64)
U64 = NumberType("<u8", 8, "Q", _native.NUMBER_U64)
I64 = NumberType("<i8", 8, "q", _native.NUMBER_I64)
F64 = NumberType("<f8", 8, "d", _native.NUMBER_F64)
COLUMN_TYPES = (U32, U64, I64, F64)
BY_DTYPE = {number_type.dtype: number_type for number_type in (U8, *COLUMN_TYPES)}
_DIGIT = 16  # bits sorted at a time
_AT_ONCE = 20  # lengths of up to so many bits are sorted in one pass: 8 MB of counters
_PLAIN_KINDS = "biufcmMSUV"
"""What NumPy calls the kinds of types whose values are all in the array: numbers, times, strings of one size."""
BY_CELL = {number_type.cell: number_type for number_type in (U64, I64, F64)}


def plain_dtype(given: Any) -> "np.dtype[Any]":
    """Return the dtype that a file names; every such name comes here before bytes of a file become an array.

    NumPy makes an array of objects of any bytes, and follows them as pointers when an entry is looked at.

    Args:
      given: a name, or a dtype.
    Raises:
      ValueError: NumPy has no such type, or its values are neither plain numbers nor strings of one size.
    """
    import numpy as np  # which indexing does without

    try:
        dtype: np.dtype[Any] | None = None if given is None else np.dtype(given)  # NumPy takes None for float64
    except (TypeError, ValueError, SyntaxError, OverflowError):
        dtype = None
    if dtype is None:
        raise ValueError(f"dtype = {given!r}, expected a name that NumPy knows, such as 'uint16'")
    if dtype.hasobject or dtype.fields or dtype.subdtype or dtype.kind not in _PLAIN_KINDS:
        raise ValueError(f"dtype = {given!r}, expected plain numbers, or strings of one size")
    return dtype


def as_numbers(values: Any) -> "NDArray[Any]":
    """Return numbers as an array; integers of 64 bits stay integers, which NumPy turns into floats in mixed lists."""
    import numpy as np  # which indexing does without

    found: NDArray[Any] = np.asarray(values)
    if found.dtype.kind == "f" and isinstance(values, list | tuple):
        with suppress(TypeError, OverflowError, ValueError):
            return np.asarray([operator.index(value) for value in values], np.uint64)
    return found


def first_rounded(values: Any, found: "NDArray[Any]") -> tuple[int, int] | None:
    """Return where the first integer stands that is rounded in an array of them, and the integer; None without one.

    Args:
      values: what the array `found` was made of.
    """
    if found.dtype.kind == "f" and isinstance(values, list | tuple):
        for at, value in enumerate(values):
            if hasattr(value, "__index__"):  # else a float, as most are: an error for each takes ten times as long
                with suppress(TypeError):  # an array or a tensor of one float
                    if (number := operator.index(value)) != int(float(number)):
                        return at, number
    return None


EXACT = "an integer that float64 holds exactly, as the column has floats or negative numbers, too,"
"""What is expected in the place of an integer that is rounded, as messages say it."""
APART = "add the column with mmapds.add_column as floats, which are rounded, or as two columns"
"""What to do about such an integer."""


def narrowed(cells: memoryview) -> memoryview:
    """Return cells that all fit 32 bits as the bytes of U32."""
    out = memoryview(bytearray(len(cells) * U32.width))
    _native.cells_narrow(cells, out)
    return out


def converted(data: memoryview, own: NumberType, to: NumberType) -> memoryview:
    """Return the bytes of numbers as another type of 64 bits that holds them."""
    cells = memoryview(bytearray(len(data) // own.width * to.width))
    if own is U32:
        _native.cells_widen(data, cells)
    else:
        cells[:] = data
    _native.cells_convert(cells, own.cell, to.cell)
    return cells


# ---- sorting record numbers -------------------------------------------------------------------------------------


def order_type(records: int) -> NumberType:
    """Return the type of record numbers in an order."""
    return U32 if records <= 2**32 else U64


def sort_digits(numbers: Any, width: int, bits: int, order: Any, order_width: int, spare: Any) -> None:
    """Sort record numbers by numbers of up to `bits` bits, the largest first, equal ones ascending."""
    digit = memoryview(bytearray(8 << _DIGIT)).cast("Q")
    passes = -(-bits // _DIGIT)
    buffers = [order, spare] if passes % 2 else [spare, order]
    native, previous = _native.Lengths(numbers, width), None
    for number in range(passes):
        native.sort_digits(number * _DIGIT, digit, previous, buffers[number % 2], order_width)
        previous = buffers[number % 2]


class SortedLengths(NamedTuple):
    """The sections that samplers read instead of sorting, each with the type and the bytes of its numbers."""

    length_order: tuple[str, mmap.mmap | bytes]
    """u32 or u64: record numbers, the longest first, equally long ones in ascending order"""
    length_values: tuple[str, bytes]
    """u64: the distinct lengths, falling"""
    length_counts: tuple[str, bytes]
    """u64: how many records have each"""


def sort_lengths(lengths: Any, width: int, scratch: Callable[[int], mmap.mmap]) -> SortedLengths:
    """Sort record numbers by their lengths.

    Args:
      lengths: a buffer of unsigned integers of `width` bytes, 4 or 8.
      scratch: returns memory of some bytes, for the order and, where lengths have more than 20 bits, for a second one.
    """
    count = memoryview(lengths).nbytes // width
    order_dtype, order_width, *_ = order_type(count)
    if not count:
        return SortedLengths((order_dtype, b""), (U64.dtype, b""), (U64.dtype, b""))
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
    return SortedLengths((order_dtype, order), *((U64.dtype, each) for each in runs))
