"""Views: small immutable selections of records, in any order, that compose."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ..orders.permutation import Permutation

if TYPE_CHECKING:
    from ..storage.view_file import SavedView

Int64s = NDArray[np.int64]


class Stretch(NamedTuple):
    """Neighbouring records, begin to end; or positions of a saved view."""

    begin: int
    end: int
    saved: "SavedView | None" = None


class Rows(Protocol):
    """The interface of every selection. Positions are in range and not negative; the caller checks them."""

    def __len__(self) -> int: ...

    def one(self, position: int) -> int:
        """Return the number of the record at a position."""

    def many(self, positions: Int64s) -> Int64s:
        """Return the numbers of the records at some positions."""

    def part(self, positions: range) -> "Rows":
        """Return the selection at a range of positions, in constant time."""

    def positions(self, record: int) -> list[int]:
        """Return every position that shows a record."""

    def stretches(self) -> list[Stretch] | None:
        """Return the stretches of neighbours that the selection is made of, where these are few; else None."""

    @property
    def rises(self) -> bool:
        """Whether each record has a larger number than the one before it; False where that is not known."""


def with_small_step(rows: range) -> range:
    """Return the same numbers; of one or none, with a step of 1, as the step given may be of any size."""
    return rows if len(rows) > 1 else range(rows[0], rows[0] + 1) if rows else range(0)


def _compose(outer: range, inner: range) -> range:
    """Return the members of `outer` at the positions in `inner`."""
    start, step = outer.start, outer.step
    return with_small_step(range(start + step * inner.start, start + step * inner.stop, step * inner.step))


class RangeRows:
    """Records at equal distances, rising or falling."""

    def __init__(self, rows: range) -> None:
        self.range = rows
        self.one = rows.__getitem__

    def __len__(self) -> int:
        return len(self.range)

    def many(self, positions: Int64s) -> Int64s:
        return self.range.start + self.range.step * positions

    def part(self, positions: range) -> "RangeRows":
        return RangeRows(_compose(self.range, positions))

    def positions(self, record: int) -> list[int]:
        return [self.range.index(record)] if record in self.range else []

    def stretches(self) -> list[Stretch] | None:
        if len(self.range) < 2 or self.range.step == 1:
            return [Stretch(each, each + len(self.range)) for each in self.range[:1]]
        return None

    @property
    def rises(self) -> bool:
        return len(self.range) < 2 or self.range.step > 0

    def __reduce__(self) -> tuple[type, tuple[range]]:
        return RangeRows, (self.range,)


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

    def part(self, positions: range) -> "PermutedRows":
        return PermutedRows(self._permutation, _compose(self._positions, positions))

    def positions(self, record: int) -> list[int]:
        if record >= len(self._permutation):
            return []
        place = self._permutation.native.one(record, True)
        return [self._positions.index(place)] if place in self._positions else []

    def stretches(self) -> None:
        return None

    @property
    def rises(self) -> bool:
        return len(self) < 2


class NestedRows:
    """A selection of a selection, where the two do not make a simpler one."""

    def __init__(self, outer: Rows, inner: Rows) -> None:
        self._outer = outer
        self._inner = inner

    def __len__(self) -> int:
        return len(self._inner)

    def one(self, position: int) -> int:
        return self._outer.one(self._inner.one(position))

    def many(self, positions: Int64s) -> Int64s:
        return self._outer.many(self._inner.many(positions))

    def part(self, positions: range) -> "NestedRows":
        return NestedRows(self._outer, self._inner.part(positions))

    def positions(self, record: int) -> list[int]:
        return [found for place in self._outer.positions(record) for found in self._inner.positions(place)]

    def stretches(self) -> list[Stretch] | None:
        outer, inner = self._outer.stretches(), self._inner.stretches()
        if outer is None or inner is None:
            return None
        return [part for wanted in inner for part in _within(outer, wanted)]

    @property
    def rises(self) -> bool:
        return self._outer.rises and self._inner.rises


class ChainedRows:
    """Selections one after another; each comes with the number that its record 0 has here."""

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
        for part in sorted(set(parts.tolist())):
            here = parts == part
            first, rows = self._parts[part]
            begin = self._ends[part - 1] if part else 0
            out[here] = first + rows.many(positions[here] - begin)
        return out

    def part(self, positions: range) -> "NestedRows":
        return NestedRows(self, RangeRows(positions))

    def positions(self, record: int) -> list[int]:
        begins = [0, *self._ends.tolist()]
        return [
            begin + found
            for begin, (first, rows) in zip(begins, self._parts, strict=False)
            if record >= first
            for found in rows.positions(record - first)
        ]

    def stretches(self) -> list[Stretch] | None:
        found: list[Stretch] = []
        for first, rows in self._parts:
            own = rows.stretches()
            if own is None:
                return None
            found += [each if each.saved else Stretch(first + each.begin, first + each.end) for each in own]
        return found

    @property
    def rises(self) -> bool:
        return all(rows.rises for _, rows in self._parts)


def _within(stretches: list[Stretch], wanted: Stretch) -> Iterator[Stretch]:
    """Yield what stretches, one after another, have at the positions `wanted`."""
    position = 0
    for begin, end, saved in stretches:
        low, high = max(wanted.begin - position, 0), min(wanted.end - position, end - begin)
        if low < high:
            yield Stretch(begin + low, begin + high, saved)
        position += end - begin
