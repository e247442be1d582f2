"""Which records a view has: the keys that users give, and small immutable selections of records, which compose."""

import operator
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .. import _native
from ..arrays.values import masked_count
from ..errors import plain_counted, shortened
from ..orders.permutation import Permutation
from ..storage.index_file import BITS_BLOCK, Index, SavedView

Int64s = NDArray[np.int64]
_PIECE = 1 << 20  # positions at a time


class Part(NamedTuple):
    """Neighbouring records of an index, or of a saved view."""

    of: Index | SavedView
    begin: int
    end: int

    @property
    def is_whole(self) -> bool:
        return self.begin == 0 and self.end == self.of.records


class Parts:
    """Parts one after another; positions count all of their records."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts
        self._starts = list(accumulate((part.end - part.begin for part in parts), initial=0))

    def cut(self, begin: int, end: int) -> list[Part]:
        """Return the parts that lie at the positions from `begin` to `end`, without those before and after."""
        found, number = [], bisect_right(self._starts, begin) - 1
        while begin < end:
            of, low, _ = self._parts[number]
            first, stop = self._starts[number], min(end, self._starts[number + 1])
            if begin < stop:
                found.append(Part(of, low + begin - first, low + stop - first))
            begin, number = stop, number + 1
        return found


# ---- selections -----------------------------------------------------------------------------------------------------


class Rows(ABC):
    """The numbers of the records of a view. Positions are in range and not negative; the caller checks them."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def many(self, positions: Int64s) -> Int64s:
        """Return the numbers of the records at some positions."""

    def one(self, position: int) -> int:
        """Return the number of the record at a position."""
        return int(self.many(np.array([position], np.int64))[0])

    def part(self, positions: range) -> "Rows":
        """Return the selection at a range of positions, in constant time."""
        return NestedRows(self, RangeRows(positions))

    def numbers(self) -> Iterator[tuple[int, NDArray[Any]]]:
        """Yield all numbers, some at a time and of any type of integers, each time with the first position."""
        return pieces(self)

    def positions(self, record: int) -> list[int]:
        """Return every position that shows a record."""
        return [begin + k for begin, numbers in self.numbers() for k in np.flatnonzero(numbers == record).tolist()]

    def parts(self, indexes: Parts, first: int = 0) -> list[Part] | None:
        """Return the parts of some indexes that the selection is made of, where these are few; else None.

        Args:
          first: the position there of record 0.
        """
        return None

    @property
    def rises(self) -> bool:
        """Whether each record has a larger number than the one before it; False where that is not known."""
        last = -1
        for _, numbers in self.numbers():
            if int(numbers[0]) <= last or not (numbers[1:] > numbers[:-1]).all():
                return False
            last = int(numbers[-1])
        return True


class RangeRows(Rows):
    """Records at equal distances, rising or falling."""

    def __init__(self, rows: range) -> None:
        if len(rows) < 2:  # their step may be of any size
            rows = range(rows[0], rows[0] + 1) if rows else range(0)
        self.range = rows
        self.one = rows.__getitem__  # type: ignore[assignment, method-assign]

    def __len__(self) -> int:
        return len(self.range)

    def many(self, positions: Int64s) -> Int64s:
        return self.range.start + self.range.step * positions

    def part(self, positions: range) -> "RangeRows":
        start, step = self.range.start, self.range.step
        return RangeRows(range(start + step * positions.start, start + step * positions.stop, step * positions.step))

    def positions(self, record: int) -> list[int]:
        return [self.range.index(record)] if record in self.range else []

    def parts(self, indexes: Parts, first: int = 0) -> list[Part] | None:
        return indexes.cut(first + self.range.start, first + self.range.stop) if self.range.step == 1 else None

    @property
    def rises(self) -> bool:
        return len(self.range) < 2 or self.range.step > 0

    def __reduce__(self) -> tuple[type, tuple[range]]:
        return RangeRows, (self.range,)


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

    def positions(self, record: int) -> list[int]:
        return [self._permutation.native.one(record, True)] if record < len(self) else []

    @property
    def rises(self) -> bool:
        return len(self) < 2


class ArrayRows(Rows):
    """Any records in any order; takes as many bytes for each as the largest needs."""

    def __init__(self, array: NDArray[Any]) -> None:
        self.array = array

    def __len__(self) -> int:
        return len(self.array)

    def one(self, position: int) -> int:
        return int(self.array[position])

    def many(self, positions: Int64s) -> Int64s:
        return self.array[positions].astype(np.int64)

    def numbers(self) -> Iterator[tuple[int, NDArray[Any]]]:
        return ((begin, self.array[begin : begin + _PIECE]) for begin in range(0, len(self), _PIECE))

    def part(self, positions: range) -> "ArrayRows":
        stop = positions.stop if positions.stop >= 0 else None
        return ArrayRows(self.array[positions.start : stop : positions.step] if positions else self.array[:0])


class BitRows(Rows):
    """Records in ascending order: takes a bit for each record that there is, and 3 % for a directory.

    Args:
      words: u64: bit i % 64 of words[i // 64] says whether record i is one of them.
      before: u64, the directory; see `_native.bits_count`. By default it is made.
      records: how many there are.
      file: the one that has both, if one does: lookups raise EOFError where it was cut short.
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

    def positions(self, record: int) -> list[int]:
        rank = self._bits.rank(record)
        return [] if rank is None else [rank]

    @property
    def rises(self) -> bool:
        return True

    def __reduce__(self) -> tuple[Any, ...]:
        return BitRows, (self.words, self._records, self.before)


class NestedRows(Rows):
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
        return [found for at in self._outer.positions(record) for found in self._inner.positions(at)]

    def parts(self, indexes: Parts, first: int = 0) -> list[Part] | None:
        outer = self._outer.parts(indexes, first)
        return None if outer is None else self._inner.parts(Parts(outer))

    @property
    def rises(self) -> bool:
        return self._outer.rises and self._inner.rises


class ChainedRows(Rows):
    """Selections one after another; each comes with the number that its record 0 has here."""

    def __init__(self, chained: Iterable[tuple[int, Rows]]) -> None:
        self._chained = [(first, rows) for first, rows in chained if len(rows)]
        self._ends = np.cumsum([len(rows) for _, rows in self._chained], dtype=np.int64)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def one(self, position: int) -> int:
        part = bisect_right(self._ends, position)
        first, rows = self._chained[part]
        return first + rows.one(position - (int(self._ends[part - 1]) if part else 0))

    def many(self, positions: Int64s) -> Int64s:
        out = np.empty_like(positions)
        parts = np.searchsorted(self._ends, positions, side="right")
        for part in sorted(set(parts.tolist())):
            here = parts == part
            first, rows = self._chained[part]
            begin = self._ends[part - 1] if part else 0
            out[here] = first + rows.many(positions[here] - begin)
        return out

    def positions(self, record: int) -> list[int]:
        begins = [0, *self._ends.tolist()]
        return [
            begin + found
            for begin, (first, rows) in zip(begins, self._chained, strict=False)
            if record >= first
            for found in rows.positions(record - first)
        ]

    def parts(self, indexes: Parts, first: int = 0) -> list[Part] | None:
        found: list[Part] = []
        for begin, rows in self._chained:
            own = rows.parts(indexes, first + begin)
            if own is None:
                return None
            found += own
        return found

    @property
    def rises(self) -> bool:
        return all(rows.rises for _, rows in self._chained)  # records of a later one have larger numbers


def of_mask(mask: NDArray[np.bool_]) -> Rows:
    """Return the selection of the records for which a mask has True: as bits, or as an array where that is smaller."""
    records, count = len(mask), int(np.count_nonzero(mask))
    if _array_is_smaller(count, records):
        return ArrayRows(np.flatnonzero(mask).astype(_smallest(records)))
    words = np.zeros(-(-records // 64), np.uint64)
    packed = np.packbits(mask, bitorder="little")
    words.view(np.uint8)[: len(packed)] = packed
    return BitRows(words, records)


def of_positions(positions: Int64s, records: int) -> Rows:
    """Return the selection of some of so many records: ascending ones, each once, as bits if that is smaller."""
    if _array_is_smaller(len(positions), records) or not ArrayRows(positions).rises:
        return ArrayRows(positions.astype(_smallest(records)))
    words = np.zeros(-(-records // 64), np.uint64)
    _native.bits_set(words, records, np.ascontiguousarray(positions))
    return BitRows(words, records)


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
    return BitRows(words, records)


def pieces(rows: Rows) -> Iterator[tuple[int, Int64s]]:
    """Yield the numbers that rows select, some at a time, each with its first position."""
    for begin in range(0, len(rows), _PIECE):
        yield begin, rows.many(np.arange(begin, min(begin + _PIECE, len(rows)), dtype=np.int64))


def _smallest(records: int) -> np.dtype[Any]:
    """Return the smallest type of unsigned integers that holds the number of each of so many records."""
    return np.min_scalar_type(max(records - 1, 0))


def _array_is_smaller(count: int, records: int) -> bool:
    return count * _smallest(records).itemsize <= -(-records // 8)


# ---- keys and positions that users give -----------------------------------------------------------------------------


def is_position(key: Any) -> bool:
    """Whether a key of `ds[key]` is a position, and not that of a view."""
    # Arrays and tensors have both.
    return isinstance(key, int | np.bool_) or (hasattr(key, "__index__") and not getattr(key, "ndim", False))


def as_position(key: Any) -> int:
    """Return a position as an int, which may be out of range.

    Raises:
      IndexError: it is a bool, which Python takes for 0 or 1.
      TypeError: it is not a number at all.
    """
    if isinstance(key, bool | np.bool_) or str(getattr(key, "dtype", "")) in ("bool", "torch.bool"):
        raise IndexError(
            f"index = {bool(key)}, expected an integer, found a bool; give {int(key)} for that record, or ds[mask] a "
            "bool for each record"
        )
    return operator.index(key)


def rows_of(key: Any, length: int) -> Rows:
    """Return the rows of so many that a slice, an array of ints, or a mask selects.

    Raises:
      IndexError: it is something else, or a position is out of range.
    """
    if isinstance(key, slice):
        return RangeRows(range(length)[key])
    if isinstance(key, tuple) and len(key) == 1 and np.ndim(key[0]) == 1:  # as NumPy's nonzero and where return
        raise IndexError(
            "index: expected an array of positions, found a tuple of one, as np.nonzero returns; use "
            "ds[np.flatnonzero(mask)], or ds[mask]"
        )
    positions = _as_array("index", key)
    if positions.ndim != 1 or (positions.size and positions.dtype.kind not in "iub"):
        raise IndexError(
            f"index: expected an int, a slice, or a one-dimensional array of ints or bools, found "
            f"{type(key).__name__} of dtype {positions.dtype} and shape {positions.shape}"
        )
    if positions.dtype.kind == "b":
        if len(positions) != length:
            raise IndexError(f"mask: expected {length} items, one for each record, found {len(positions)}")
        return of_mask(positions)
    refuse_mask(positions, length)
    return of_positions(checked(positions, length), length)


def checked(given: Any, length: int) -> Int64s:
    """Return positions of so many records as int64, not negative.

    Raises:
      IndexError: they are not integers, or one is out of range.
    """
    positions = _as_array("positions", given)
    if not positions.size:
        return positions.astype(np.int64, copy=False)
    if positions.dtype.kind not in "iu" or int(positions.max()) > 2**63 - 1:
        numbers = [number for number in positions.ravel().tolist() if isinstance(number, int | float)]
        up_to = f" up to {shortened(max(numbers))}" if len(numbers) == positions.size else ""
        raise IndexError(f"positions: expected integers below 2^63, found {positions.dtype}{up_to}")
    lowest, highest = int(positions.min()), int(positions.max())
    found = positions.astype(np.int64, copy=False)
    if lowest < -length or highest >= length:
        at = int(np.argmax((found < -length) | (found >= length)))
        raise IndexError(f"index[{at}] = {found[at]} is out of range for {plain_counted(length, 'record')}")
    return np.where(found < 0, found + length, found) if lowest < 0 else found


def _as_array(name: str, given: Any) -> NDArray[Any]:
    """Return what is given for positions as an array; raise IndexError where NumPy makes none, or some are masked."""
    if masked_count(given):
        raise IndexError(f"{name}: expected no entries behind a mask, found a masked array; give array.compressed()")
    try:
        return np.asarray(given)
    except ValueError:
        raise IndexError(f"{name}: expected integers of one axis, found lists of different lengths") from None
    except (TypeError, RuntimeError) as error:
        raise IndexError(f"{name}: expected integers of one axis, found {type(given).__name__} ({error})") from None


def refuse_mask(positions: Any, length: int) -> None:
    """Raise IndexError for what is not a list or an array of integers, and for a mask, of bools or of zeros and ones.

    A list of zeros and ones is a batch: of few records, samplers give some again and again.
    """
    if not isinstance(positions, list | tuple | np.ndarray):
        if isinstance(positions, int | np.integer | slice):
            one = "ds[index]"
            if not isinstance(positions, slice):
                one = f"ds[{shortened(int(positions))}] for one, ds[:n] for the first n"
            raise IndexError(f"positions = {shortened(positions)}, expected a list of integers; use {one}")
        if isinstance(positions, str | bytes | bytearray | Mapping) or not hasattr(positions, "__getitem__"):
            raise IndexError(f"positions: expected a list of integers, found {type(positions).__name__}")
        return
    if isinstance(positions, np.ndarray):
        if masked_count(positions):
            _as_array("positions", positions)  # which raises
        if positions.ndim != 1:
            raise IndexError(f"positions: expected integers of one axis, found an array of shape {positions.shape}")
    if not len(positions):
        return
    if isinstance(positions[0], bool | np.bool_):
        raise IndexError("positions: expected integers, found bools; use ds[mask] for the records where a mask is True")
    if isinstance(positions[0], list | tuple):
        raise IndexError(
            "positions: expected integers, found a list in a list; a DataLoader takes a sampler of batches as "
            "batch_sampler=, not as sampler="
        )
    if not isinstance(positions, np.ndarray) or positions.dtype.kind not in "iu":
        return
    if len(positions) != length or length < 3:  # of two records, zeros and ones are positions
        return
    lowest, highest = int(positions.min()), int(positions.max())
    not_zero = int(np.iinfo(positions.dtype).max) if positions.dtype.kind == "u" else -1
    for first, found, bools in (
        (0, "zeros and ones", "np.asarray(mask) == 1"),
        (not_zero - 1, "zeros and ones that ~ inverted", "np.asarray(mask) == 0"),
    ):
        if first <= lowest and highest <= first + 1:
            raise IndexError(
                f"index: expected positions, or a mask of bools, found {length} {found}, one for each record; use "
                f"ds[{bools}] (to repeat the records 0 and 1, use ds[:2][index])"
            )
