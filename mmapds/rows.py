"""Which records a dataset shows, in which order: small immutable selections that compose.

All have one face: `len(rows)`, `rows.one(i)` for a position already in range, `rows.many(positions)` for an int64 array
of them, `rows.slice(s)` for a selection of the same kind, in constant time where that can be.
"""

from bisect import bisect_right
from collections.abc import Iterable
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .permutation import Permutation

Int64s = NDArray[np.int64]
Slice: TypeAlias = slice


class Rows(Protocol):
    """The face that every selection has."""

    def __len__(self) -> int: ...
    def one(self, position: int) -> int: ...
    def many(self, positions: Int64s) -> Int64s: ...
    def slice(self, key: Slice) -> "Rows": ...


class RangeRows:
    """Records at equal distances, forwards or backwards."""

    def __init__(self, rows: range) -> None:
        self._rows = rows
        self.one = rows.__getitem__

    def __len__(self) -> int:
        return len(self._rows)

    def many(self, positions: Int64s) -> Int64s:
        return self._rows.start + self._rows.step * positions

    def slice(self, key: Slice) -> "RangeRows":
        return RangeRows(self._rows[key])

    def as_slice(self) -> Slice:
        """The slice that selects the same from a sequence that is long enough."""
        start, stop, step = self._rows.start, self._rows.stop, self._rows.step
        return slice(start, stop if stop >= 0 else None, step)

    def __reduce__(self) -> tuple[type, tuple[range]]:
        return RangeRows, (self._rows,)


class ArrayRows:
    """Any records in any order: eight bytes each."""

    def __init__(self, rows: Int64s) -> None:
        self.array = rows

    def __len__(self) -> int:
        return len(self.array)

    def one(self, position: int) -> int:
        return int(self.array[position])

    def many(self, positions: Int64s) -> Int64s:
        return self.array[positions]

    def slice(self, key: Slice) -> "ArrayRows":
        return ArrayRows(self.array[key])


class PermutedRows:
    """Part of a shuffled order, in constant memory."""

    def __init__(self, permutation: Permutation, positions: range) -> None:
        self._permutation = permutation
        self._positions = positions

    def __len__(self) -> int:
        return len(self._positions)

    def one(self, position: int) -> int:
        return self._permutation[self._positions[position]]

    def many(self, positions: Int64s) -> Int64s:
        return self._permutation[self._positions.start + self._positions.step * positions]

    def slice(self, key: Slice) -> "PermutedRows":
        return PermutedRows(self._permutation, self._positions[key])


class NestedRows:
    """A selection of a selection that cannot be told more simply."""

    def __init__(self, outer: Rows, inner: Rows) -> None:
        self._outer = outer
        self._inner = inner

    def __len__(self) -> int:
        return len(self._inner)

    def one(self, position: int) -> int:
        return self._outer.one(self._inner.one(position))

    def many(self, positions: Int64s) -> Int64s:
        return self._outer.many(self._inner.many(positions))

    def slice(self, key: Slice) -> "NestedRows":
        return NestedRows(self._outer, self._inner.slice(key))


class ChainedRows:
    """Selections one after another, each counted from its own first record."""

    def __init__(self, parts: Iterable[tuple[int, Rows]]) -> None:
        self._parts = [(first, rows) for first, rows in parts if len(rows)]
        self._ends = np.cumsum([len(rows) for _, rows in self._parts], dtype=np.int64)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def one(self, position: int) -> int:
        part = bisect_right(self._ends, position)
        first, rows = self._parts[part]
        return first + rows.one(position - (int(self._ends[part - 1]) if part else 0))

    def many(self, positions: Int64s) -> Int64s:
        out = np.empty_like(positions)
        parts = np.searchsorted(self._ends, positions, side="right")
        for part in np.unique(parts):
            here = parts == part
            first, rows = self._parts[part]
            begin = self._ends[part - 1] if part else 0
            out[here] = first + rows.many(positions[here] - begin)
        return out

    def slice(self, key: Slice) -> "NestedRows":
        return NestedRows(self, RangeRows(range(len(self))[key]))
