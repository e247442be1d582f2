"""Selections that hold their records: as arrays, or as a bit for each record that there is."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import _native
from ..storage.view_file import BITS_BLOCK
from .views import Int64s, NestedRows, RangeRows, Rows

_PIECE = 1 << 20  # positions at a time


class ArrayRows:
    """Any records in any order; takes as many bytes for each as the largest needs."""

    def __init__(self, rows: NDArray[Any]) -> None:
        self.array = rows

    @classmethod
    def of(cls, rows: Int64s, records: int) -> "ArrayRows":
        """Return the selection of some of so many records."""
        return cls(rows.astype(_smallest(records)))

    def __len__(self) -> int:
        return len(self.array)

    def one(self, position: int) -> int:
        return int(self.array[position])

    def many(self, positions: Int64s) -> Int64s:
        return self.array[positions].astype(np.int64)

    def part(self, positions: range) -> "ArrayRows":
        stop = positions.stop if positions.stop >= 0 else None
        return ArrayRows(self.array[positions.start : stop : positions.step] if positions else self.array[:0])

    def positions(self, record: int) -> list[int]:
        found: list[int] = np.flatnonzero(self.array == record).tolist()
        return found

    def stretches(self) -> None:
        return None

    @property
    def rises(self) -> bool:
        return all(bool((piece[1:] > piece[:-1]).all()) for piece in _overlapping(self.array))

    def __reduce__(self) -> tuple[Any, ...]:
        return ArrayRows, (self.array,)


class BitRows:
    """Records in ascending order: takes a bit for each record that there is, and 3 % for a directory.

    Args:
      words: u64: bit i % 64 of words[i // 64] says whether record i is one of them.
      before: u64, the directory; see `_native.bits_count`.
      records: how many there are.
      file: the one that has both, if one does: lookups raise EOFError where it was cut short.
    """

    def __init__(
        self, words: NDArray[np.uint64], before: NDArray[np.uint64], records: int, file: "_native.Map | None" = None
    ) -> None:
        self.words = words
        self.before = before
        self.records = records
        self._bits = _native.Bits(words, before, records, file)

    @classmethod
    def of(cls, words: NDArray[np.uint64], records: int) -> "BitRows":
        """Return the selection by some bits, after counting them."""
        before = np.empty(-(-records // BITS_BLOCK) + 1, np.uint64)
        _native.bits_count(words, before)
        return cls(words, before, records)

    def __len__(self) -> int:
        return int(self.before[-1])

    def one(self, position: int) -> int:
        return int(self.many(np.array([position], np.int64))[0])

    def many(self, positions: Int64s) -> Int64s:
        out = np.empty(len(positions), np.int64)
        self._bits.select(np.ascontiguousarray(positions), out)
        return out

    def part(self, positions: range) -> NestedRows:
        return NestedRows(self, RangeRows(positions))

    def positions(self, record: int) -> list[int]:
        rank = self._bits.rank(record)
        return [] if rank is None else [rank]

    def stretches(self) -> None:
        return None

    @property
    def rises(self) -> bool:
        return True

    def __reduce__(self) -> tuple[Any, ...]:
        return BitRows, (self.words, self.before, self.records)


def of_mask(mask: NDArray[np.bool_]) -> Rows:
    """Return the selection of the records for which a mask has True: as bits, or as an array where that is smaller."""
    records, count = len(mask), int(np.count_nonzero(mask))
    if _array_is_smaller(count, records):
        return ArrayRows.of(np.flatnonzero(mask), records)
    words = np.zeros(-(-records // 64), np.uint64)
    packed = np.packbits(mask, bitorder="little")
    words.view(np.uint8)[: len(packed)] = packed
    return BitRows.of(words, records)


def of_positions(positions: Int64s, records: int) -> Rows:
    """Return the selection of some of so many records: ascending ones, each once, as bits if that is smaller."""
    if _array_is_smaller(len(positions), records) or not ArrayRows(positions).rises:
        return ArrayRows.of(positions, records)
    words = np.zeros(-(-records // 64), np.uint64)
    _native.bits_set(words, records, np.ascontiguousarray(positions))
    return BitRows.of(words, records)


def composed(outer: Rows | None, inner: Rows, records: int) -> Rows:
    """Return the rows that `inner` selects of those that `outer` selects of so many records; of all, if it is None."""
    if outer is None:
        return inner
    if isinstance(inner, RangeRows):
        return outer.part(inner.range)
    if not isinstance(inner, ArrayRows | BitRows):
        return NestedRows(outer, inner)
    if not (outer.rises and inner.rises) or _array_is_smaller(len(inner), records):
        array = np.empty(len(inner), _smallest(records))
        for begin, positions in pieces(inner):
            array[begin : begin + len(positions)] = outer.many(positions)
        return ArrayRows(array)
    words = np.zeros(-(-records // 64), np.uint64)
    for _, positions in pieces(inner):
        _native.bits_set(words, records, outer.many(positions))
    return BitRows.of(words, records)


def pieces(rows: Rows) -> Iterator[tuple[int, Int64s]]:
    """Yield the numbers that rows select, some at a time, each with its first position."""
    for begin in range(0, len(rows), _PIECE):
        yield begin, rows.many(np.arange(begin, min(begin + _PIECE, len(rows)), dtype=np.int64))


def _overlapping(array: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Yield an array in pieces, each of which begins with the last number of the one before."""
    for begin in range(0, len(array), _PIECE):
        yield array[max(begin - 1, 0) : begin + _PIECE]


def _smallest(records: int) -> np.dtype[Any]:
    """Return the smallest type of unsigned integers that holds the number of each of so many records."""
    return np.min_scalar_type(max(records - 1, 0))


def _array_is_smaller(count: int, records: int) -> bool:
    return count * _smallest(records).itemsize <= -(-records // 8)
