"""Numbers on their way into a file, whose type is known only at the end."""

import os
from collections.abc import Iterator
from io import FileIO

from .. import _native
from .numbers import DTYPES, WIDTHS, converted

_COPY = 1 << 20  # bytes; whole numbers of every type
_IN_MEMORY = 16 << 20  # bytes of a column


class Spool:
    """The numbers of a column on their way into an index: their type is known only at the end.

    Many of them are kept in a file, not in memory.

    Args:
      path: where the file may be; it has no name once it is open, so that nothing is left behind.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._file: FileIO | None = None
        self._pieces: list[bytes] = []
        self._size = 0
        self._runs: list[tuple[str, int]] = []  # (type, how many) of consecutive numbers
        self._largest = 0

    @property
    def count(self) -> int:
        """How many numbers there are."""
        return sum(count for _, count in self._runs)

    def append(self, kind: int, cells: memoryview) -> None:
        """Append 64-bit cells of one type."""
        if not len(cells):
            return
        dtype = DTYPES[kind]
        data = cells.cast("B")
        if kind == _native.NUMBER_U64:
            largest = _native.cells_largest(cells)
            self._largest = max(self._largest, largest)
            if largest < 2**32:
                dtype = "<u4"
                data = memoryview(bytearray(len(data) // 2))
                _native.cells_narrow(cells, data)
        if self._runs and self._runs[-1][0] == dtype:
            self._runs[-1] = dtype, self._runs[-1][1] + len(cells)
        else:
            self._runs.append((dtype, len(cells)))
        self._pieces.append(bytes(data))
        self._size += len(data)
        if self._size > _IN_MEMORY:
            self._spill()

    def _spill(self) -> None:
        if self._file is None:
            self._file = FileIO(self._path, "x+")
            os.unlink(self._path)
        for piece in self._pieces:
            left = memoryview(piece)
            while left:  # a raw file may take less than all
                left = left[self._file.write(left) :]
        self._pieces.clear()
        self._size = 0

    @property
    def dtype(self) -> str:
        """The type of the column: the smallest of u32, u64, i64 and f64 that holds every number."""
        found = {dtype for dtype, _ in self._runs}
        if found <= {"<u4"}:
            return "<u4"
        if found <= {"<u4", "<u8"}:
            return "<u8"
        return "<i8" if "<f8" not in found and self._largest < 2**63 else "<f8"

    def chunks(self) -> Iterator[memoryview]:
        """Yield the column's bytes in pieces."""
        dtype = self.dtype
        stored = self._stored()
        rest = memoryview(b"")
        for kind, count in self._runs:
            left = count * WIDTHS[kind]
            while left:
                rest = rest or memoryview(next(stored))
                piece, rest = rest[:left], rest[left:]
                left -= len(piece)
                yield piece if kind == dtype else converted(piece, kind, dtype)

    def _stored(self) -> Iterator[bytes]:
        at = 0
        while self._file is not None and (piece := os.pread(self._file.fileno(), _COPY, at)):
            at += len(piece)
            yield piece
        yield from self._pieces

    def close(self) -> None:
        """Give up the numbers."""
        self._pieces.clear()
        if self._file is not None:
            self._file.close()
