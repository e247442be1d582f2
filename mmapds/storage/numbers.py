"""Numbers of sections: their types, a radix sort, and the spool that holds them until their type is known.

The core measures records into cells of 64 bits and says how to read them (`NUMBER_U64`, `NUMBER_I64`, `NUMBER_F64`); a
section holds the narrowest type that fits all of its numbers.
"""

import errno
import mmap
import operator
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from tempfile import SpooledTemporaryFile, TemporaryFile
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from .. import _native
from ..errors import ColumnError, either

if TYPE_CHECKING:
    from numpy.typing import NDArray


class NumberType(NamedTuple):
    """A type of numbers, and its name in each place that has one."""

    dtype: str  # its name in a section, and in NumPy
    width: int  # bytes
    code: Literal["B", "I", "Q", "q", "d"]  # its name in `memoryview.cast`, `array` and `struct`
    cell: int  # how the core reads a number of this type once it is widened to 64 bits


U8 = NumberType("|u1", 1, "B", _native.NUMBER_U64)  # plain bytes; not for columns
U32 = NumberType("<u4", 4, "I", _native.NUMBER_U64)
U64 = NumberType("<u8", 8, "Q", _native.NUMBER_U64)
I64 = NumberType("<i8", 8, "q", _native.NUMBER_I64)
F64 = NumberType("<f8", 8, "d", _native.NUMBER_F64)
COLUMN_TYPES = (U32, U64, I64, F64)
BY_DTYPE = {number_type.dtype: number_type for number_type in (U8, *COLUMN_TYPES)}
_COPY = 1 << 20  # bytes read at a time, a multiple of every width
_IN_MEMORY = 16 << 20  # bytes
_DIGIT = 16  # bits sorted at a time
_AT_ONCE = 20  # lengths of up to this many bits are sorted in one pass: 8 MB of counters
BY_CELL = {number_type.cell: number_type for number_type in (U64, I64, F64)}


def not_a_length(number: object, record: int) -> ColumnError:
    """Return the error to raise for a number in the column 'length'."""
    way = f"keep it by {either('--column', 'columns=')} under another name, or round it by add_column"
    found = f"found {number}; {way} (record {record} of the index)"
    return ColumnError(f"column 'length': expected integers of 0 or more, {found}")


def as_numbers(values: Any, first: int = 0) -> "NDArray[Any]":
    """Return numbers as an array; raise ColumnError if NumPy would round an integer of a list that has floats too.

    The message counts records from `first` on.
    """
    import numpy as np  # start-up time: indexing does not need it

    found: NDArray[Any] = np.asarray(values)
    if found.dtype.kind != "f" or not isinstance(values, list | tuple):
        return found
    with suppress(TypeError, OverflowError, ValueError):
        return np.asarray([operator.index(value) for value in values], np.uint64)
    for at, value in enumerate(values):
        with suppress(TypeError):  # an array or a tensor of one float
            if hasattr(value, "__index__") and (number := operator.index(value)) != int(float(number)):
                raise ColumnError(f"expected {EXACT} found {number} at record {first + at}")
    return found


EXACT = "an integer that float64 holds exactly, as the column has floats or negative numbers, too,"
"""What messages expect in place of an integer that would be rounded."""


# ---- sorting record numbers -------------------------------------------------------------------------------------


def order_type(records: int) -> NumberType:
    """Return the type of record numbers in an order."""
    return U32 if records <= 2**32 else U64


def sort_digits(numbers: Any, width: int, bits: int, scratch: Callable[[int], mmap.mmap]) -> mmap.mmap:
    """Return record numbers sorted by `numbers`, of 1 to `bits` bits: largest first, equal ones ascending."""
    count = memoryview(numbers).nbytes // width
    order_width = order_type(count).width
    order, spare = (scratch(count * order_width) for _ in range(2))
    digit = memoryview(bytearray(8 << _DIGIT)).cast("Q")
    native, previous = _native.Lengths(numbers, width), None
    for shift in range(0, bits, _DIGIT) if count else ():
        native.sort_digits(shift, digit, previous, order, order_width)
        order, spare, previous = spare, order, order
    return spare


def sort_lengths(
    lengths: Any, width: int, scratch: Callable[[int], mmap.mmap]
) -> dict[str, tuple[str, mmap.mmap | bytes]]:
    """Return the type and the bytes of each section of the length order: see docs/index-file.md.

    Args:
      lengths: a buffer of unsigned integers of `width` bytes, 4 or 8.
      scratch: returns memory of some bytes.
    """
    count = memoryview(lengths).nbytes // width
    dtype, order_width, *_ = order_type(count)
    native = _native.Lengths(lengths, width)
    order: mmap.mmap | bytes = b""
    values, counts = b"", b""
    if count and (largest := native.largest()) < 1 << _AT_ONCE:
        order, ends = scratch(count * order_width), memoryview(bytearray(8 * (largest + 1))).cast("Q")
        native.sort(ends, order, order_width)  # afterwards the counters hold the end of each length's run
        values, counts = _native.lengths_runs_of(ends)
    elif count:
        order = sort_digits(lengths, width, largest.bit_length(), scratch)
        values, counts = native.runs(order, order_width)
    return {"length_order": (dtype, order), "length_values": (U64.dtype, values), "length_counts": (U64.dtype, counts)}


# ---- numbers on their way into a file --------------------------------------------------------------------------


class Spool:
    """The numbers of a column, until its type is known: append all, then read `chunks`.

    The first 16 MB stay in memory; more go to an unnamed scratch file. Numbers of other files are not copied.

    Args:
      directory: where the scratch file may be made.
      writing: returns a context that turns an OSError of that file into a clearer error.
    """

    def __init__(
        self, directory: str, writing: Callable[[], AbstractContextManager[object]] = nullcontext[None]
    ) -> None:
        self.count = 0  # how many numbers there are
        self._file = SpooledTemporaryFile(_IN_MEMORY, dir=directory)  # noqa: SIM115 - closed with the spool
        self._size = 0  # bytes in the file
        self._writing = writing
        # Runs of numbers of one type: their bytes in the file, or a function that yields them.
        self._runs: list[tuple[NumberType, range | Callable[[], Iterator[bytes]]]] = []

    def append(self, cell: int, cells: memoryview) -> None:
        """Append 64-bit cells of one type of the core, such as `NUMBER_U64`."""
        if not len(cells):
            return
        number_type = BY_CELL[cell]
        if number_type is U64 and _native.cells_largest(cells) < 2**32:
            narrow = memoryview(bytearray(len(cells) * U32.width))
            _native.cells_narrow(cells, narrow)
            self.append_bytes(narrow, U32)
        else:
            self.append_bytes(cells.cast("B"), number_type)

    def append_bytes(self, data: "memoryview | bytes | bytearray", number_type: NumberType = U8) -> None:
        """Append the bytes of numbers; do not mix plain bytes (u8) with numbers."""
        with self._writing():
            self._file.write(data)
            self._file.flush()  # otherwise a forked child would write its copy of the buffer too
        begin, self._size = self._size, self._size + len(data)
        if self._runs and self._runs[-1][0] is number_type and isinstance(last := self._runs[-1][1], range):
            begin = last.start
            self._runs.pop()
        self._runs.append((number_type, range(begin, self._size)))
        self.count += len(data) // number_type.width

    def append_stored(self, number_type: NumberType, count: int, pieces: Callable[[], Iterator[bytes]]) -> None:
        """Append numbers of another file. `chunks` reads them: each call of `pieces` yields whole numbers."""
        if count:
            self._runs.append((number_type, pieces))
            self.count += count

    @property
    def number_type(self) -> NumberType:
        """The type of the column: the smallest of u32, u64, i64 and f64 that holds every number; u8 for bytes."""
        types = {number_type for number_type, _ in self._runs}
        if U8 in types:
            return U8
        if types <= {U32, U64}:
            return U64 if U64 in types else U32
        unsigned = (piece.cast("Q") for number_type, piece in self._pieces() if number_type is U64)
        return I64 if F64 not in types and max(map(_native.cells_largest, unsigned), default=0) < 2**63 else F64

    def chunks(self) -> Iterator[memoryview]:
        """Yield the column's bytes in pieces; raise ColumnError for an integer that would be rounded to a float."""
        wanted, done = self.number_type, 0
        for number_type, piece in self._pieces():
            if wanted is F64 and number_type in (U64, I64):
                at = _native.cells_inexact(piece.cast("Q"), number_type.cell)
                if at >= 0:
                    found = piece.cast(number_type.code)[at]
                    raise ColumnError(f"expected {EXACT} found {found} (record {done + at} of the index)")
            yield piece if number_type is wanted else _converted(piece, number_type, wanted)
            done += len(piece) // number_type.width

    def _pieces(self) -> Iterator[tuple[NumberType, memoryview]]:
        """Yield the column's bytes in pieces of whole numbers of one type."""
        for number_type, place in self._runs:
            for piece in self._read(place) if isinstance(place, range) else place():
                yield number_type, memoryview(piece)

    def _read(self, place: range) -> Iterator[bytes]:
        for at in range(place.start, place.stop, _COPY):
            with self._writing():
                self._file.seek(at)
                piece = self._file.read(min(place.stop - at, _COPY))
                if len(piece) < min(place.stop - at, _COPY):
                    raise OSError(errno.EIO, os.strerror(errno.EIO))
            yield piece

    def __del__(self, suppress: type[suppress] = suppress) -> None:  # when Python exits, globals are None
        with suppress(OSError, AttributeError):  # a full disk; no file, as its directory is missing
            self._file.close()


def _converted(data: memoryview, own: NumberType, to: NumberType) -> memoryview:
    """Return the bytes of numbers converted to a 64-bit type that holds them."""
    cells = memoryview(bytearray(len(data) // own.width * to.width))
    if own is U32:
        _native.cells_widen(data, cells)
    else:
        cells[:] = data
    _native.cells_convert(cells, own.cell, to.cell)
    return cells


# ---- scratch memory ---------------------------------------------------------------------------------------------


def scratch(size: int, directory: str | None = None) -> mmap.mmap:
    """Return scratch memory, all zeros; above 16 MB it is an unnamed file, which the kernel may write out.

    Args:
      directory: of the file; by default that for temporary files (`TMPDIR`), or memory if that is full.
    """
    if size > _IN_MEMORY:
        try:
            with TemporaryFile(dir=directory) as file:
                if hasattr(os, "posix_fallocate"):  # reserve blocks: otherwise a full disk means SIGBUS
                    os.posix_fallocate(file.fileno(), 0, size)
                else:
                    file.truncate(size)
                return mmap.mmap(file.fileno(), size)
        except OSError:
            if directory is not None:
                raise
    # Memory of this process; a child that is forked has a copy.
    return mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
