"""Numbers on their way into a file, whose type is known only at the end; and scratch memory."""

import errno
import mmap
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from io import BytesIO
from typing import IO, NamedTuple

from .. import _native
from .numbers import BY_CELL, F64, I64, U8, U32, U64, NumberType, converted, narrowed

_COPY = 1 << 20  # bytes read at a time, a multiple of every width
_IN_MEMORY = 16 << 20  # bytes


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
            self._hold(number_type, len(cells), narrowed(cells) if number_type is U32 else cells.cast("B"))

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
        self._runs.append(_Run(found, (lambda: map(narrowed, map(_cells, pieces()))) if is_narrowed else pieces))
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
            yield piece if number_type is wanted else converted(piece, number_type, wanted)

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
