"""Numbers on their way into a file; their type is known only at the end."""

import os
from collections.abc import Iterator
from io import FileIO

from .. import _native
from .numbers import BY_CELL, F64, I64, U32, U64, NumberType, converted, narrowed

_COPY = 1 << 20  # bytes read at a time, a multiple of every width
_IN_MEMORY = 16 << 20  # bytes of a column


class Spool:
    """The numbers of a column on their way into a file.

    The first 16 MB stay in memory; more go to a scratch file.

    Args:
      path: where the scratch file may be made; it is unlinked once it is open, so that nothing is left behind.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._file: FileIO | None = None
        self._pieces: list[bytes] = []
        self._size = 0
        self._runs: list[tuple[NumberType, int]] = []  # (type, how many) of consecutive numbers
        self._largest = 0

    @property
    def count(self) -> int:
        """How many numbers there are."""
        return sum(count for _, count in self._runs)

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
        if self._runs and self._runs[-1][0] is number_type:
            self._runs[-1] = number_type, self._runs[-1][1] + len(cells)
        else:
            self._runs.append((number_type, len(cells)))
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
            while left:  # a write may take only a part
                left = left[self._file.write(left) :]
        self._pieces.clear()
        self._size = 0

    @property
    def number_type(self) -> NumberType:
        """The type of the column: the smallest of u32, u64, i64 and f64 that holds every number."""
        found = {number_type for number_type, _ in self._runs}
        if found <= {U32}:
            return U32
        if found <= {U32, U64}:
            return U64
        return I64 if F64 not in found and self._largest < 2**63 else F64

    def chunks(self) -> Iterator[memoryview]:
        """Yield the column's bytes in pieces."""
        wanted = self.number_type
        stored = self._stored()
        rest = memoryview(b"")
        for number_type, count in self._runs:
            left = count * number_type.width
            while left:
                rest = rest or memoryview(next(stored))
                piece, rest = rest[:left], rest[left:]
                left -= len(piece)
                yield piece if number_type is wanted else converted(piece, number_type, wanted)

    def _stored(self) -> Iterator[bytes]:
        at = 0
        while self._file is not None and (piece := os.pread(self._file.fileno(), _COPY, at)):
            at += len(piece)
            yield piece
        yield from self._pieces

    def close(self) -> None:
        """Drop the numbers, and the scratch file."""
        self._pieces.clear()
        if self._file is not None:
            self._file.close()
