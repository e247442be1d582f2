"""Numbers of sections: their types, a radix sort, and the spool in which they wait until their type is known.

The core measures records into cells of 64 bits and says how to read them (`NUMBER_U64`, `NUMBER_I64`, `NUMBER_F64`); a
section holds the narrowest type that fits all of its numbers.
"""

import errno
import mmap
import operator
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from io import BytesIO
from typing import IO, TYPE_CHECKING, Any, Literal, NamedTuple

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
_COPY = 1 << 20  # bytes read at a time, a multiple of every width
_IN_MEMORY = 16 << 20  # bytes
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


# ---- numbers on their way into a file --------------------------------------------------------------------------


class _Run(NamedTuple):
    """Consecutive numbers of one type."""

    number_type: NumberType
    place: range | Callable[[], Iterator[bytes | memoryview]]
    """The bytes of the scratch file that hold them; or what yields them, in pieces of whole numbers."""


class Spool:
    """The numbers of a column on their way into a file; they are read when all are appended.

    The first 16 MB stay in memory; more go to a scratch file without a name. Numbers of other files stay there.

    Args:
      directory: where the scratch file may be made.
    """

    def __init__(self, directory: str) -> None:
        self.count = 0
        """How many numbers there are."""
        self._directory = directory
        self._file: IO[bytes] = BytesIO()
        self._size = 0  # bytes in the file
        self._runs: list[_Run] = []

    def append(self, cell: int, cells: memoryview) -> None:
        """Append 64-bit cells, all of them of one type of the core (`NUMBER_U64` and so on)."""
        if len(cells):
            number_type = _narrowest(U64, [cells]) if cell == U64.cell else BY_CELL[cell]
            self._hold(number_type, len(cells), _narrowed(cells) if number_type is U32 else cells.cast("B"))

    def append_bytes(self, data: "bytes | bytearray") -> None:
        """Append plain bytes; a spool of these holds nothing else."""
        self._hold(U8, len(data), data)

    def _hold(self, number_type: NumberType, count: int, data: "memoryview | bytes | bytearray") -> None:
        self._file.write(data)
        begin, self._size = self._size, self._size + len(data)
        if self._size > _IN_MEMORY and isinstance(self._file, BytesIO):
            in_memory, self._file = self._file, unnamed_file(self._directory)
            self._file.write(in_memory.getbuffer())
        self._file.flush()  # else a forked child that ends would write what it has of the buffer, too
        last = self._runs[-1] if self._runs else None
        if last and last.number_type is number_type and isinstance(last.place, range):
            begin = last.place.start
            self._runs.pop()
        self._runs.append(_Run(number_type, range(begin, self._size)))
        self.count += count

    def append_stored(
        self, number_type: NumberType, count: int, pieces: Callable[[], Iterator[bytes]], *, is_part: bool = False
    ) -> None:
        """Append numbers that lie in another file; they are read at the end.

        Args:
          number_type: their type there.
          pieces: yields their bytes, in pieces of whole numbers, whenever it is called.
          is_part: whether other numbers lie there too, for which the type may be wider than these need.
        """
        if not count:
            return
        found = number_type
        if is_part and number_type in (U64, I64):
            found = _narrowest(number_type, map(_cells, pieces()))
        is_narrowed = found is U32 and number_type is not U32
        self._runs.append(_Run(found, (lambda: map(_narrowed, map(_cells, pieces()))) if is_narrowed else pieces))
        self.count += count

    @property
    def _types(self) -> set[NumberType]:
        return {run.number_type for run in self._runs}

    @property
    def number_type(self) -> NumberType:
        """The type of the column: the smallest of u32, u64, i64 and f64 that holds every number; of bytes, u8."""
        if U8 in self._types:
            return U8
        if self._types <= {U32}:
            return U32
        if self._types <= {U32, U64}:
            return U64
        unsigned = (_cells(piece) for run in self._runs if run.number_type is U64 for piece in self._read(run.place))
        return I64 if F64 not in self._types and max(map(_native.cells_largest, unsigned), default=0) < 2**63 else F64

    def chunks(self) -> Iterator[memoryview]:
        """Yield the column's bytes in pieces."""
        wanted = self.number_type
        for number_type, piece in self._in_pieces():
            yield piece if number_type is wanted else _converted(piece, number_type, wanted)

    def rounded(self) -> tuple[int, int] | None:
        """Return the first integer that the type of the column does not hold, and where it stands; None without one.

        Only a column of f64 that also has integers of 64 bits is read for this.
        """
        integers = {U64, I64}
        if not integers & self._types or self.number_type is not F64:
            return None
        before = 0
        for number_type, piece in self._in_pieces():
            if number_type in integers:
                at = _native.cells_inexact(piece.cast("Q"), number_type.cell)
                if at >= 0:
                    return before + at, int(piece.cast(number_type.code)[at])
            before += len(piece) // number_type.width
        return None

    def _in_pieces(self) -> Iterator[tuple[NumberType, memoryview]]:
        """Yield the column's bytes in pieces of whole numbers of one type."""
        for number_type, place in self._runs:
            for piece in self._read(place):
                yield number_type, memoryview(piece)

    def _read(self, place: range | Callable[[], Iterator[bytes | memoryview]]) -> Iterator[bytes | memoryview]:
        """Yield the bytes of a run."""
        if not isinstance(place, range):
            yield from place()
            return
        for at in range(place.start, place.stop, _COPY):
            self._file.seek(at)
            piece = self._file.read(min(place.stop - at, _COPY))
            if len(piece) < min(place.stop - at, _COPY):
                raise OSError(errno.EIO, os.strerror(errno.EIO), self._directory)
            yield piece

    def close(self) -> None:
        """Drop the numbers, and the scratch file."""
        self._runs = []
        with suppress(OSError):  # a full disk
            self._file.close()


def _narrowest(number_type: NumberType, pieces: Iterable[memoryview]) -> NumberType:
    """Return the narrowest type that holds integers of 64 bits."""
    largest = max(map(_native.cells_largest, pieces), default=0)
    if number_type is I64 and largest >= 2**63:  # the bits of a negative number
        return I64
    return U32 if largest < 2**32 else U64


def _cells(piece: "bytes | memoryview") -> memoryview:
    return memoryview(piece).cast("Q")


def _narrowed(cells: memoryview) -> memoryview:
    """Return cells that all fit 32 bits as the bytes of U32."""
    out = memoryview(bytearray(len(cells) * U32.width))
    _native.cells_narrow(cells, out)
    return out


def _converted(data: memoryview, own: NumberType, to: NumberType) -> memoryview:
    """Return the bytes of numbers as another type of 64 bits that holds them."""
    cells = memoryview(bytearray(len(data) // own.width * to.width))
    if own is U32:
        _native.cells_widen(data, cells)
    else:
        cells[:] = data
    _native.cells_convert(cells, own.cell, to.cell)
    return cells


# ---- scratch memory ---------------------------------------------------------------------------------------------


def scratch(size: int, directory: str | None = None) -> mmap.mmap:
    """Return scratch memory, all zeros; above 16 MB it is a file without a name, which the kernel may write out.

    Args:
      directory: of the file; by default the one for temporary files (`TMPDIR`), and memory where that has no room.
    Raises:
      OSError: the file cannot be made in the given directory.
    """
    if size > _IN_MEMORY:
        try:
            with unnamed_file(directory) as file:
                if hasattr(os, "posix_fallocate"):  # without blocks, a store ends in SIGBUS where the disk is full
                    os.posix_fallocate(file.fileno(), 0, size)
                else:
                    file.truncate(size)
                return mmap.mmap(file.fileno(), size)
        except OSError:
            if directory is not None:
                raise
    # Memory of this process; a child that is forked has a copy.
    return mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def unnamed_file(directory: str | None) -> IO[bytes]:
    """Return a new file that nobody else sees, so that nothing is left behind.

    Raises:
      OSError: it cannot be made.
    """
    from tempfile import TemporaryFile  # start-up time: few need it

    return TemporaryFile(dir=directory)
