"""The selections of records behind views, small and immutable, and the keys of `ds[key]` that make them."""

import operator
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import _native
from ..arrays.values import masked_count
from ..errors import Error, plain_counted
from ..formats.filters import Filter
from ..orders.permutation import Permutation
from ..storage.index_file import BITS_BLOCK
from ..storage.numbers import scratch
from ..storage.sources import StrPath
from .sums import Sums

Int64s = NDArray[np.int64]
_PIECE = 1 << 20  # positions at a time
_MOST = 1 << 31  # how often a record may come


class Rows(ABC):
    """The numbers of the records of a view. The caller checks that positions are in range and not negative."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def many(self, positions: Int64s) -> Int64s:
        """Return the numbers of the records at `positions`."""

    def one(self, position: int) -> int:
        return int(self.many(np.array([position], np.int64))[0])

    def part(self, positions: range) -> "Rows":
        """Return the selection at a range of positions, in constant time."""
        return NestedRows(self, RangeRows(positions))


class RangeRows(Rows):
    """Records at equal distances, rising or falling."""

    def __init__(self, rows: range) -> None:
        if len(rows) < 2:  # the step may exceed 64 bits
            rows = range(rows[0], rows[0] + 1) if rows else range(0)
        self.range = rows

    def __len__(self) -> int:
        return len(self.range)

    def one(self, position: int) -> int:
        return self.range[position]

    def many(self, positions: Int64s) -> Int64s:
        return self.range.start + self.range.step * positions

    def part(self, positions: range) -> "RangeRows":
        start, step = self.range.start, self.range.step
        return RangeRows(range(start + step * positions.start, start + step * positions.stop, step * positions.step))


class PermutedRows(Rows):
    """All records in a shuffled order, in constant memory."""

    def __init__(self, permutation: Permutation) -> None:
        self._permutation = permutation

    def __len__(self) -> int:
        return len(self._permutation)

    def one(self, position: int) -> int:
        return self._permutation.native.one(position, False)

    def many(self, positions: Int64s) -> Int64s:
        return self._permutation[positions]


class ArrayRows(Rows):
    """Any records in any order."""

    def __init__(self, array: NDArray[Any]) -> None:
        self.array = array

    def __len__(self) -> int:
        return len(self.array)

    def one(self, position: int) -> int:
        return int(self.array[position])

    def many(self, positions: Int64s) -> Int64s:
        return self.array[positions].astype(np.int64)

    def part(self, positions: range) -> "ArrayRows":
        stop = positions.stop if positions.stop >= 0 else None
        return ArrayRows(self.array[positions.start : stop : positions.step] if positions else self.array[:0])


class BitRows(Rows):
    """Records in ascending order: a bit for each record of the dataset, and 3 % more for a directory, `before`.

    Bit i % 64 of words[i // 64] tells whether record i is selected. If both lie in a file that was cut short, lookups
    raise EOFError.
    """

    def __init__(
        self,
        words: NDArray[np.uint64],
        records: int,
        before: NDArray[np.uint64] | None = None,
        file: "_native.Map | None" = None,
    ) -> None:
        if before is None:
            before = np.empty(-(-records // BITS_BLOCK) + 1, np.uint64)
            _native.bits_count(words, before)
        self.words, self.before, self._records = words, before, records
        self._bits = _native.Bits(words, before, records, file)

    def __len__(self) -> int:
        return int(self.before[-1])

    def many(self, positions: Int64s) -> Int64s:
        out = np.empty(len(positions), np.int64)
        self._bits.select(np.ascontiguousarray(positions), out)
        return out

    def __reduce__(self) -> tuple[Any, ...]:
        return BitRows, (self.words, self._records, self.before)


class RepeatedRows(Rows):
    """Each record several times in a row; the sums are those of how often each one comes."""

    def __init__(self, sums: Sums) -> None:
        self._sums = sums

    def __len__(self) -> int:
        return self._sums.total

    def many(self, positions: Int64s) -> Int64s:
        return self._sums.records_at(positions)

    @classmethod
    def of(cls, counts: Any, length: int, saved: StrPath | None = None) -> "RepeatedRows":
        """Return the rows of `length` records that come so often each; one count stands for all."""
        given = np.asarray(counts)
        if given.dtype.kind not in "iu" or given.shape not in ((), (length,)):
            found = f"{given.dtype} of shape {given.shape}"
            hint = "; give fractions to orders.Weighted(..., replacement=False)" * (given.dtype.kind == "f")
            raise Error(
                f"counts: expected integers, one for each of {plain_counted(length, 'record')}, found {found}{hint}"
            )
        for begin in range(0, given.size, _PIECE):
            own = given.reshape(-1)[begin : begin + _PIECE]
            if (wrong := (own < 0) | (own >= _MOST)).any():
                at = int(wrong.argmax())
                raise Error(f"counts[{begin + at}] = {own[at]}, expected 0 to {_MOST - 1:,}")
        return cls(Sums.of(given, lambda own: own, saved) if given.ndim else Sums.even(int(given), length))


class NestedRows(Rows):
    """A selection of a selection, if no simpler form exists."""

    def __init__(self, outer: Rows, inner: Rows) -> None:
        self.outer = outer
        self.inner = inner

    def __len__(self) -> int:
        return len(self.inner)

    def one(self, position: int) -> int:
        return self.outer.one(self.inner.one(position))

    def many(self, positions: Int64s) -> Int64s:
        return self.outer.many(self.inner.many(positions))

    def part(self, positions: range) -> "NestedRows":
        return NestedRows(self.outer, self.inner.part(positions))


class ChainedRows(Rows):
    """Selections one after another; each comes with the number of its record 0 in the whole."""

    def __init__(self, chained: Iterable[tuple[int, Rows]]) -> None:
        self.chained = [(first, rows) for first, rows in chained if len(rows)]
        self._ends = np.cumsum([len(rows) for _, rows in self.chained], dtype=np.int64)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def one(self, position: int) -> int:
        part = bisect_right(self._ends, position)
        first, rows = self.chained[part]
        return first + rows.one(position - (int(self._ends[part - 1]) if part else 0))

    def many(self, positions: Int64s) -> Int64s:
        out = np.empty_like(positions)
        parts = np.searchsorted(self._ends, positions, side="right")
        for part in np.unique(parts).tolist():
            here = parts == part
            first, rows = self.chained[part]
            begin = self._ends[part - 1] if part else 0
            out[here] = first + rows.many(positions[here] - begin)
        return out


def pieces(rows: Rows) -> Iterator[tuple[int, Int64s]]:
    """Yield the numbers of `rows` in pieces, each with its first position."""
    for begin in range(0, len(rows), _PIECE):
        yield begin, rows.many(np.arange(begin, min(begin + _PIECE, len(rows)), dtype=np.int64))


def positions_of(rows: Rows, records: Sequence[int]) -> Iterator[int]:
    """Yield the positions of `records` in `rows`, ascending."""
    for begin, numbers in pieces(rows):
        yield from (begin + np.flatnonzero(np.isin(numbers, records))).tolist()


def ascends(rows: Rows) -> bool:
    """Whether record numbers strictly ascend."""
    last = -1
    for _, numbers in pieces(rows):
        if numbers[0] <= last or not (numbers[1:] > numbers[:-1]).all():
            return False
        last = int(numbers[-1])
    return True


def held(rows: Rows, records: int) -> Rows:
    """Return a selection as bits if it ascends and bits are smaller, or else as an array; `records` is the total."""
    if _array_is_smaller(len(rows), records) or not ascends(rows):
        array = np.empty(len(rows), _smallest(records))
        for begin, numbers in pieces(rows):
            array[begin : begin + len(numbers)] = numbers
        return ArrayRows(array)
    words = np.zeros(-(-records // 64), np.uint64)
    for _, numbers in pieces(rows):
        _native.bits_set(words, records, numbers)
    return BitRows(words, records)


def of_mask(mask: NDArray[np.bool_]) -> Rows:
    """Return the selection of the records for which a mask has True."""
    records = len(mask)
    if _array_is_smaller(int(np.count_nonzero(mask)), records):
        return ArrayRows(np.flatnonzero(mask).astype(_smallest(records)))
    words = np.zeros(-(-records // 64), np.uint64)
    packed = np.packbits(mask, bitorder="little")
    words.view(np.uint8)[: len(packed)] = packed
    return BitRows(words, records)


def rows_where(text: str, column: Callable[[str], NDArray[Any]], length: int) -> Rows:
    """Return the rows for which a filter holds, such as `length <= 4096 and not score == 0`.

    Columns are read piece by piece, and the rows are bits in scratch memory.

    Args:
      text: comparisons of columns and numbers, joined by and, or, not and parentheses, as in Python.
      column: returns a column by name, shape (length,).
    """
    words, holds = np.frombuffer(scratch(8 * -(-length // 64)), np.uint64, -(-length // 64)), Filter(text, column)
    for begin in range(0, max(length, 1), _PIECE):
        piece = slice(begin, min(begin + _PIECE, length))
        packed = np.packbits(np.broadcast_to(holds(piece), piece.stop - begin), bitorder="little")
        words.view(np.uint8)[begin // 8 :][: len(packed)] = packed
    return BitRows(words, length)


def composed(outer: Rows | None, inner: Rows, records: int) -> Rows:
    """Return the selection `inner` of the selection `outer` (None for all) of `records` records."""
    if outer is None:
        return inner
    if isinstance(inner, RangeRows):
        return outer.part(inner.range)
    nested = NestedRows(outer, inner)
    return held(nested, records) if isinstance(inner, ArrayRows | BitRows) else nested


def _smallest(records: int) -> np.dtype[Any]:
    """Return the smallest unsigned dtype for the numbers of `records` records."""
    return np.min_scalar_type(max(records - 1, 0))


def _array_is_smaller(count: int, records: int) -> bool:
    return count * _smallest(records).itemsize <= -(-records // 8)


# ---- keys and positions that users give -----------------------------------------------------------------------------


def is_position(key: Any) -> bool:
    """Whether a key of `ds[key]` is a single position, not the key of a view."""
    # Arrays and tensors have __index__ too, but also ndim.
    return isinstance(key, int | np.bool_) or (hasattr(key, "__index__") and not getattr(key, "ndim", False))


def as_position(key: Any) -> int:
    """Return a position as an int, which may be out of range; raise IndexError for a bool, an int in Python."""
    if isinstance(key, bool | np.bool_) or str(getattr(key, "dtype", "")) in ("bool", "torch.bool"):
        raise IndexError(f"index = {bool(key)}, expected an integer, found a bool")
    return operator.index(key)


def rows_of(key: Any, length: int) -> Rows:
    """Return the rows that a slice, an array of ints, or a mask selects of `length` rows."""
    if isinstance(key, slice):
        return RangeRows(range(length)[key])
    positions = _as_array(key, "iub")
    if positions.dtype.kind == "b":
        if len(positions) != length:
            raise IndexError(f"mask: expected {length} items, one for each record, found {len(positions)}")
        return of_mask(positions)
    _refuse_zeros_and_ones(positions, length)
    return held(ArrayRows(checked(positions, length)), length)


def batch_of(positions: Any, length: int) -> Any:
    """Return the positions of a batch for the core, which checks their range and the items of lists."""
    if not isinstance(positions, list | tuple | range):
        positions = _as_array(positions, "iu")
        _refuse_zeros_and_ones(positions, length)
    elif positions and isinstance(positions[0], bool | np.bool_):
        raise IndexError("positions: expected integers, found bools")
    return positions


def checked(given: Any, length: int) -> Int64s:
    """Return positions as int64, not negative; raise IndexError if one is out of range for `length` records."""
    positions = _as_array(given, "iu")
    found = positions.astype(np.int64, copy=False)
    if not np.count_nonzero(found.view(np.uint64) >= length):  # a negative one is large without its sign
        return found
    lowest, highest = int(positions.min()), int(positions.max())
    if lowest < -length or highest >= length:
        at = int(np.argmax(positions >= length if highest >= length else positions < -length))
        raise IndexError(f"index[{at}] = {positions[at]} is out of range for {plain_counted(length, 'record')}")
    return np.where(found < 0, found + length, found)


def _as_array(given: Any, kinds: str) -> NDArray[Any]:
    """Return positions as an array of one axis, empty or with a dtype among `kinds`; or raise IndexError."""
    if masked_count(given):
        raise IndexError("positions: expected no entries behind a mask, found a masked array")
    try:
        array = np.asarray(given)
    except (ValueError, TypeError, RuntimeError) as error:
        raise IndexError(f"positions: expected integers of one axis, found {type(given).__name__} ({error})") from None
    if array.ndim != 1 or (array.dtype.kind not in kinds and len(array)):
        raise IndexError(
            f"positions: expected integers of one axis{', or bools' * ('b' in kinds)}, found {type(given).__name__} of "
            f"dtype {array.dtype} and shape {array.shape}"
        )
    return array


def _refuse_zeros_and_ones(positions: NDArray[Any], length: int) -> None:
    """Raise IndexError for a mask of integers, also inverted by ~: it would select two records again and again."""
    if len(positions) != length or length < 3 or positions.dtype.kind not in "iu":  # below 3, they may be positions
        return
    signed = positions.astype(f"i{positions.itemsize}", copy=False)  # ~ makes 255 and 254 of unsigned masks
    lowest, highest = int(signed.min()), int(signed.max())
    if (lowest >= 0 and highest <= 1) or (lowest >= -2 and highest < 0):
        raise IndexError(
            f"index: expected positions, or a mask of bools, found {length} zeros and ones, one for each record"
        )
