"""Numbers that lie in many files, read as one array: columns of indexes, and their records in order of length."""

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .. import _native
from ..errors import ColumnError, Error
from .numbers import APART, BY_DTYPE, EXACT, scratch

Int64s = NDArray[np.int64]
Uint64s = NDArray[np.uint64]
_ANY = 2**64 - 1  # the largest number there is
_AT_ONCE = 1 << 20  # lengths of indexes that are merged at a time


class Numbers:
    """A column of one index or of many, one after another, read where it lies.

    Args:
      arrays: its parts, of any types that a column may have, one part or more.
      name: of the column, for errors.
    Raises:
      ColumnError: the smallest type that all parts have in common does not hold an integer of one of them.
    """

    def __init__(self, arrays: Sequence[NDArray[Any]], name: str = "length") -> None:
        self._arrays = [np.ascontiguousarray(array) for array in arrays]
        types = {array.dtype for array in arrays}
        self.dtype: np.dtype[Any] = next(iter(types)) if len(types) == 1 else _common_type(self._arrays, name)
        """Of the whole column."""
        self.starts = np.fromiter(accumulate(map(len, arrays), initial=0), np.uint64, len(arrays) + 1)
        """Where each part begins, and how many numbers there are."""
        self._kinds: NDArray[Any] | None = None
        """Of each part, where they differ and are not all integers of 64 bits or less, whose bits are the same."""
        if len(types) > 1 and self.dtype.kind == "f":
            self._kinds = np.array([array.dtype.kind for array in arrays], "U1")
        self._runs = runs_of(
            [(array, array.dtype.itemsize, 0, _ANY, 0) for array in self._arrays],
            (self.starts[:-1], np.arange(len(arrays), dtype=np.uint32), np.zeros(len(arrays), np.uint64)),
            len(self),
        )

    def __len__(self) -> int:
        return int(self.starts[-1])

    def at(self, positions: Int64s) -> NDArray[Any]:
        """Return the numbers at some positions, which are in range; unsigned ones as u64."""
        out = np.empty(len(positions), np.uint64)
        self._runs.at(np.ascontiguousarray(positions), out)
        if self._kinds is not None:
            kinds = self._kinds[np.searchsorted(self.starts, positions.astype(np.uint64), side="right") - 1]
            of_own_type = [out.view(np.float64), out.view(np.int64).astype(np.float64)]
            return np.select([kinds == "f", kinds == "i"], of_own_type, out.astype(np.float64))
        return out if self.dtype.kind == "u" else out.view(self.dtype)

    @property
    def array(self) -> NDArray[Any]:
        """The whole column: mapped if it lies in one file; else a copy, above 16 MB in a scratch file."""
        if len(self._arrays) == 1:
            return self._arrays[0]
        whole = np.frombuffer(scratch(len(self) * self.dtype.itemsize), self.dtype, len(self))
        at = 0
        for part in self._arrays:
            whole[at : at + len(part)] = part
            at += len(part)
        return whole


def _common_type(arrays: Sequence[NDArray[Any]], name: str) -> np.dtype[Any]:
    """Return the type of a column whose parts have several; see `Numbers`.

    It is the one that an index of all their sources would have.
    """
    kinds = {array.dtype.kind for array in arrays}
    if kinds == {"u"}:
        return np.dtype(np.uint64)
    if kinds == {"u", "i"} and all(
        _native.cells_largest(array) < 2**63 for array in arrays if array.dtype == np.uint64
    ):
        return np.dtype(np.int64)
    before = 0
    for array in arrays:
        if array.dtype.kind != "f" and array.itemsize == 8:
            at = _native.cells_inexact(array, BY_DTYPE[array.dtype.str].cell)
            if at >= 0:
                number = int(array[at])
                raise ColumnError(
                    f"column {name!r}: expected {EXACT} found {number}; {APART} (record {before + at} of all "
                    "indexes together)"
                )
        before += len(array)
    return np.dtype(np.float64)


def runs_of(
    pieces: Iterable[tuple[Any, int, int, int, int]],
    tables: tuple[NDArray[Any], NDArray[np.uint32], NDArray[Any]],
    total: int,
) -> _native.Runs:
    """Return numbers in runs; see `_native.Runs`.

    Args:
      tables: of each run, where it begins, its piece, and its place there.
    """
    begins, which, places = tables
    return _native.Runs(
        pieces=tuple(pieces),
        begins=begins,
        begin_width=begins.itemsize,
        which=which,
        places=places,
        place_width=places.itemsize,
        total=total,
    )


class FileOrder(NamedTuple):
    """The length order of one file, and the part of its records that is meant, which are neighbours."""

    order: NDArray[Any]
    """u32 or u64: the numbers of all records of the file, the longest first, equally long ones ascending."""
    values: Uint64s
    """The distinct lengths, falling."""
    counts: Uint64s
    """How many records have each of them."""
    begin: int
    end: int
    damaged: Callable[[str], Error]
    """Makes the error for a file whose order or lengths are not those of its records."""

    @property
    def is_whole(self) -> bool:
        return self.begin == 0 and self.end == len(self.order)

    def check(self) -> None:
        """Raise what `damaged` makes unless lengths fall, and each is that of a record or more, of all together."""
        values, counts, records = self.values, self.counts, len(self.order)
        if not (values[1:] < values[:-1]).all():
            raise self.damaged("section 'length_values': expected numbers that fall, found others")
        if (counts == 0).any() or (counts > records).any() or counts.sum() != records:
            raise self.damaged(f"section 'length_counts': expected counts that add up to {records}, found others")

    def histogram(self) -> tuple[Uint64s, Uint64s, Int64s | None]:
        """Return the lengths that are meant, how many records have each, and where these begin in the order.

        The last is None where one length begins where the one before ends.
        """
        if self.is_whole:
            return self.values, self.counts, None
        self.check()
        ends = np.cumsum(self.counts).astype(np.int64)
        begins = ends - self.counts.astype(np.int64)
        # Records of one length ascend, so those that are meant are neighbours there, too.
        first, last = (bisect(self.order.__getitem__, begins, ends, place) for place in (self.begin, self.end))
        kept = last > first
        return self.values[kept], (last - first)[kept].astype(np.uint64), first[kept]


class LengthOrder:
    """Records in order of their length, of one file or of many: read where it lies, part by part.

    The order of many is that of one index of all their sources: the records of one length are a run of each file, in
    turn. So a table of these runs is all there is to make; it has an entry for each distinct length of each file.

    Args:
      parts: one file or more, in the order in which their records are numbered.
      lengths: of all records.
      remake: a function and its arguments that make it again in another process, for pickles.
    Raises:
      FormatError: the lengths of a part are not those of its records.
    """

    def __init__(
        self,
        parts: Sequence[FileOrder],
        lengths: Numbers,
        remake: tuple[Callable[..., Any], tuple[Any, ...]] | None = None,
    ) -> None:
        self.lengths = lengths
        self.values: Uint64s
        """The distinct lengths, falling."""
        self.counts: Uint64s
        """How many records have each of them."""
        self._remake = remake
        self._parts = parts
        if len(parts) == 1 and parts[0].is_whole:
            parts[0].check()
            self.values, self.counts = parts[0].values, parts[0].counts
            tables = np.zeros(1, np.uint64), np.zeros(1, np.uint32), np.zeros(1, np.uint64)
        else:
            self.values, self.counts, tables = _merged(parts)
        self._tables = tables
        firsts = accumulate((part.end - part.begin for part in parts), initial=0)
        pieces = [
            (part.order, part.order.itemsize, part.begin, max(part.end - part.begin, 1) - 1, first)
            for part, first in zip(parts, firsts, strict=False)
        ]
        self._runs = runs_of(pieces, tables, len(lengths))

    def __len__(self) -> int:
        return len(self.lengths)

    def at(self, ranks: Int64s) -> Int64s:
        """Return the records at some places of the order, which are in range.

        Raises:
          FormatError: the order has another number there.
        """
        records = np.empty(len(ranks), np.int64)
        try:
            self._runs.at(np.ascontiguousarray(ranks), records)
        except ValueError:
            raise self._damaged(ranks) from None
        return records

    def _damaged(self, ranks: Int64s) -> Error:
        """Return the error for the first of some places that has no record."""
        out = np.empty(1, np.int64)
        for rank in ranks:
            try:
                self._runs.at(np.array([rank], np.int64), out)
            except ValueError:
                break
        begins, which, _ = self._tables
        part: FileOrder = self._parts[int(which[np.searchsorted(begins, rank, side="right") - 1])]
        return part.damaged(f"section 'length_order': expected record numbers below {len(part.order)}, found others")

    def __reduce__(self) -> tuple[Any, ...]:
        if self._remake is not None:
            return self._remake
        (part,) = self._parts
        return LengthOrder.of_arrays, (part.order, part.values, part.counts, self.lengths.array)

    @classmethod
    def of_arrays(
        cls,
        order: NDArray[Any],
        values: Uint64s,
        counts: Uint64s,
        lengths: NDArray[Any],
    ) -> "LengthOrder":
        """Return the order of lengths that are not those of an index."""
        return cls([FileOrder(order, values, counts, 0, len(order), Error)], Numbers([lengths]))


def _merged(
    parts: Sequence[FileOrder],
) -> tuple[Uint64s, Uint64s, tuple[NDArray[Any], NDArray[np.uint32], NDArray[Any]]]:
    """Return the lengths of all parts, how many records have each, and the tables of their runs."""
    histograms = [part.histogram() for part in parts]
    values = _distinct([own for own, _, _ in histograms])
    runs, records = np.zeros((2, len(values)), np.uint64)
    for part, (own, counts, _) in zip(parts, histograms, strict=True):
        try:
            _native.runs_count(values, part.end - part.begin, own, counts, runs, records)
        except ValueError:
            part.check()
            raise
    total, count = sum(part.end - part.begin for part in parts), int(runs.sum())
    width = 4 if total < 2**32 else 8
    place_width = 4 if all(len(part.order) < 2**32 for part in parts) else 8
    begins, which, places = (
        np.frombuffer(scratch(count * each), f"<u{each}", count) for each in (width, 4, place_width)
    )
    next_run, next_rank = np.cumsum(runs) - runs, np.cumsum(records) - records
    tables = begins, width, which, places, place_width
    for number, histogram in enumerate(histograms):
        _native.runs_place(values, histogram, number, next_run, next_rank, tables)
    return values, records, (begins, which, places)


def _distinct(histograms: list[Uint64s]) -> Uint64s:
    """Return all lengths that occur, falling."""
    found, waiting, size = np.empty(0, np.uint64), [], 0
    for number, own in enumerate(histograms, 1):
        waiting.append(own)
        size += len(own)
        if size >= _AT_ONCE or number == len(histograms):
            found, waiting, size = np.unique(np.concatenate([found, *waiting])), [], 0
    return np.ascontiguousarray(found[::-1])


def bisect(at: Callable[[Int64s], Any], low: Int64s, high: Int64s, wanted: Any) -> Int64s:
    """Return the first place in each range [low, high) whose number is not below the one wanted; high if all are.

    Args:
      at: returns the numbers at places; they ascend within each range.
      wanted: a number, or one for each range.
    """
    low, high = low.copy(), high.copy()
    wanted = np.broadcast_to(wanted, low.shape)
    open_ = np.flatnonzero(low < high)
    while len(open_):
        middle = (low[open_] + high[open_]) // 2
        below = at(middle) < wanted[open_]
        low[open_[below]] = middle[below] + 1
        high[open_[~below]] = middle[~below]
        open_ = open_[low[open_] < high[open_]]
    return low
