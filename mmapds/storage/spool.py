"""Numbers on their way into a file, whose type is known only at the end; and scratch memory."""

import errno
import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from io import FileIO
from typing import NamedTuple

from .. import _native
from .numbers import BY_CELL, F64, I64, U8, U32, U64, NumberType, converted, narrowed

_COPY = 1 << 20  # bytes read at a time, a multiple of every width
_IN_MEMORY = 16 << 20  # bytes


class _Run(NamedTuple):
    """Consecutive numbers of one type."""

    number_type: NumberType
    items: int
    elsewhere: Callable[[], Iterator[bytes | memoryview]] | None = None
    """Yields their bytes, where they lie in another file."""


def _smallest_type(number_type: NumberType, pieces: Iterator[bytes]) -> NumberType:
    """Return the smallest type that holds integers which have another one; floats stay floats, also whole ones."""
    if number_type not in (U64, I64):
        return number_type
    largest = max((_native.cells_largest(_cells(piece)) for piece in pieces), default=0)
    if number_type is I64 and largest >= 2**63:  # the bits of a negative number
        return I64
    return U32 if largest < 2**32 else U64


def _cells(piece: bytes) -> memoryview:
    return memoryview(piece).cast("Q")


class Spool:
    """The numbers of a column on their way into a file.

    The first 16 MB stay in memory; more go to a scratch file.

    Args:
      path: where the scratch file may be made; it is unlinked once it is open, so that nothing is left behind.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._file: FileIO | None = None
        self._spilled = 0  # bytes in the file
        self._pieces: list[bytes] = []  # what follows, each of one run
        self._size = 0  # bytes of the pieces
        self._runs: list[_Run] = []
        self._largest = 0

    @property
    def count(self) -> int:
        """How many numbers there are."""
        return sum(run.items for run in self._runs)

    def append(self, cell: int, cells: memoryview) -> None:
        """Append 64-bit cells, all of them of one type of the core (`NUMBER_U64` and so on)."""
        if not len(cells):
            return
        number_type = BY_CELL[cell]
        data = cells.cast("B")
        if number_type is U64:
            largest = _native.cells_largest(cells)
            self._largest = max(self._largest, largest)
            if largest < 2**32:
                number_type, data = U32, narrowed(cells)
        self._append(number_type, len(cells), bytes(data))

    def append_bytes(self, data: bytes) -> None:
        """Append plain bytes; a spool of these holds nothing else."""
        self._append(U8, len(data), data)

    def _append(self, number_type: NumberType, items: int, data: bytes) -> None:
        last = self._runs[-1] if self._runs else None
        if last and last.number_type is number_type and last.elsewhere is None:
            self._runs[-1] = _Run(number_type, last.items + items)
        else:
            self._runs.append(_Run(number_type, items))
        self._pieces.append(data)
        self._size += len(data)
        if self._size > _IN_MEMORY:
            self._spill()

    def append_stored(
        self, number_type: NumberType, count: int, elsewhere: Callable[[], Iterator[bytes]], *, is_part: bool = False
    ) -> None:
        """Append numbers that lie in another file; they are read at the end.

        Args:
          number_type: their type there.
          elsewhere: yields their bytes, in pieces of whole numbers; called up to three times.
          is_part: whether there are others beside them, for which the type may be wider than these need.
        """
        if not count:
            return
        smallest = _smallest_type(number_type, elsewhere()) if is_part else number_type
        if smallest is U32 and number_type is not U32:
            self._runs.append(_Run(U32, count, lambda: (narrowed(_cells(piece)) for piece in elsewhere())))
        else:
            self._runs.append(_Run(smallest, count, elsewhere))

    def _spill(self) -> None:
        if self._file is None:
            self._file = unlinked(self._path)
        for piece in self._pieces:
            left = memoryview(piece)
            while left:  # a write may take only a part
                left = left[self._file.write(left) :]
        self._pieces.clear()
        self._spilled += self._size
        self._size = 0

    @property
    def number_type(self) -> NumberType:
        """The type of the column: the smallest of u32, u64, i64 and f64 that holds every number; of bytes, u8."""
        found = {run.number_type for run in self._runs}
        if found == {U8}:
            return U8
        if found <= {U32}:
            return U32
        if found <= {U32, U64}:
            return U64
        return I64 if F64 not in found and self._largest_of_all() < 2**63 else F64

    def _largest_of_all(self) -> int:
        """Return the largest number of type U64; where such numbers lie elsewhere, this reads them."""
        stored = (run.elsewhere() for run in self._runs if run.elsewhere and run.number_type is U64)
        largest = (_native.cells_largest(memoryview(piece).cast("Q")) for pieces in stored for piece in pieces)
        return max(self._largest, *largest, 0)

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
        if not integers & {run.number_type for run in self._runs} or self.number_type is not F64:
            return None
        before = 0
        for number_type, piece in self._in_pieces():
            if number_type in integers:
                cells = piece.cast("Q")
                at = _native.cells_inexact(cells, number_type.cell)
                if at >= 0:
                    return before + at, int(piece.cast(number_type.code)[at])
            before += len(piece) // number_type.width
        return None

    def _in_pieces(self) -> Iterator[tuple[NumberType, memoryview]]:
        """Yield the column's bytes in pieces of whole numbers of one type."""
        kept, at = iter(self._pieces), 0
        for number_type, items, elsewhere in self._runs:
            if elsewhere is not None:
                yield from ((number_type, memoryview(data)) for data in elsewhere())
                continue
            end = at + items * number_type.width
            while at < end:
                piece = next(kept) if at >= self._spilled else self._read(at, min(end, self._spilled))
                at += len(piece)
                yield number_type, memoryview(piece)

    def _read(self, begin: int, end: int) -> bytes:
        """Return the first bytes of a part of the scratch file, which holds whole numbers."""
        assert self._file is not None
        piece = os.pread(self._file.fileno(), min(end - begin, _COPY), begin)
        if len(piece) < min(end - begin, _COPY):
            raise OSError(errno.EIO, os.strerror(errno.EIO), self._path)
        return piece

    def close(self) -> None:
        """Drop the numbers, and the scratch file."""
        self._pieces.clear()
        if self._file is not None:
            self._file.close()


# ---- scratch memory ---------------------------------------------------------------------------------------------


def scratch(size: int) -> mmap.mmap:
    """Return scratch memory, all zeros.

    Above 16 MB it is a file in the directory for temporary files (`TMPDIR`), unlinked at once; in memory where there is
    no room for it.
    """
    if size > _IN_MEMORY:
        import tempfile  # start-up time: few need it

        with suppress(OSError), tempfile.TemporaryFile(prefix="mmapds-") as file:
            allocate(file.fileno(), size)
            return mmap.mmap(file.fileno(), size)
    return anonymous(size)


def scratch_beside(path: str, size: int) -> mmap.mmap:
    """Return scratch memory that, above 16 MB, is a file called `path`, unlinked at once.

    Raises:
      OSError: the file cannot be made.
    """
    if size <= _IN_MEMORY:
        return anonymous(size)
    with unlinked(path) as file:
        allocate(file.fileno(), size)
        return mmap.mmap(file.fileno(), size)


def unlinked(path: str) -> FileIO:
    """Return a new file that is unlinked at once, so that nothing is left behind.

    Raises:
      OSError: it cannot be made.
    """
    file = FileIO(path, "x+")
    os.unlink(path)
    return file


def anonymous(size: int) -> mmap.mmap:
    """Return memory of this process; a child that is forked has a copy."""
    return mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def allocate(fd: int, size: int) -> None:
    """Give an empty file all its blocks; without them, a store to its map ends in SIGBUS where the disk is full.

    Raises:
      OSError: the disk is full.
    """
    if hasattr(os, "posix_fallocate"):  # glibc writes zeros where a file system lacks the call
        os.posix_fallocate(fd, 0, size)
    else:
        os.truncate(fd, size)
