"""Read numbers of many files as one array: columns of indexes, and record numbers sorted by length.

Indexes store such an order. For other lengths, one rank sorts them for all ranks of a machine.
"""

import operator
import os
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64

from .. import _native
from ..arrays.values import masked_count
from ..errors import ColumnError, Error, FormatError, OrderError, shortened
from ..storage.index_file import LENGTH_SECTIONS
from ..storage.lock import locked
from ..storage.numbers import BY_DTYPE, EXACT, as_numbers, scratch, sort_lengths
from ..storage.sections import MALFORMED, SectionFile
from ..storage.sources import StrPath, reason
from ..storage.writer import SectionWriter

Int64s = NDArray[np.int64]
Uint64s = NDArray[np.uint64]
_CACHE = b"\x89MMO\r\n\x1a\n"  # the first bytes of a cache file
_ANY = 2**64 - 1  # the largest number there is
_AT_ONCE = 1 << 20  # lengths of indexes that are merged at a time
Tables = tuple[NDArray[Any], NDArray[np.uint32], NDArray[Any]]
"""For each run: its first number, the piece of memory that holds it, and its place there."""


class Numbers:
    """A column of one or many indexes, concatenated. It is read in place, or copied if integers become floats."""

    def __init__(self, arrays: Sequence[NDArray[Any]], name: str = "length") -> None:
        self._arrays = [np.ascontiguousarray(array) for array in arrays]
        self.dtype = _common_type(self._arrays, name)  # of the whole column
        if self.dtype.kind == "f" and any(array.dtype.kind != "f" for array in self._arrays):
            self._arrays = [self.array]  # integers of 64 bits or less have the same bits in any type
        self._starts = list(accumulate(map(len, self._arrays), initial=0))
        count = len(self._arrays)
        tables = np.array(self._starts[:-1], np.uint64), np.arange(count, dtype=np.uint32), np.zeros(count, np.uint64)
        self._runs = _runs([(array, array.itemsize, 0, _ANY, 0) for array in self._arrays], tables, len(self))

    def __len__(self) -> int:
        return self._starts[-1]

    def at(self, positions: Int64s) -> NDArray[Any]:
        """Return the numbers at positions, which must be in range; unsigned ones as u64."""
        out = np.empty(len(positions), np.uint64)
        self._runs.at(np.ascontiguousarray(positions), out)
        return out if self.dtype.kind == "u" else out.view(self.dtype)

    @property
    def array(self) -> NDArray[Any]:
        """The whole column: mapped if one file holds it; otherwise a copy, above 16 MB in a scratch file."""
        if len(self._arrays) == 1:
            return self._arrays[0]
        count = sum(map(len, self._arrays))
        whole = np.frombuffer(scratch(count * self.dtype.itemsize), self.dtype, count)
        return np.concatenate(self._arrays, out=whole, casting="unsafe")


def _common_type(arrays: Sequence[NDArray[Any]], name: str) -> np.dtype[Any]:
    """Return the type of a column in a single index of all records; raise ColumnError if it rounds an integer."""
    types = {array.dtype for array in arrays}
    kinds = {each.kind for each in types}
    if len(types) == 1:
        return types.pop()
    if kinds == {"u"}:
        return np.dtype(np.uint64)
    wide = [array for array in arrays if array.dtype == np.uint64]
    if "f" not in kinds and all(_native.cells_largest(array) < 2**63 for array in wide):
        return np.dtype(np.int64)
    for array in arrays:
        if array.dtype.kind != "f" and array.itemsize == 8:
            at = _native.cells_inexact(array, BY_DTYPE[array.dtype.str].cell)
            if at >= 0:
                raise ColumnError(f"column {name!r}: expected {EXACT} found {int(array[at])} in one of several indexes")
    return np.dtype(np.float64)


def _runs(pieces: Iterable[tuple[Any, int, int, int, int]], tables: Tables, total: int) -> _native.Runs:
    """Return pieces of memory as one array of numbers, read run by run."""
    begins, which, places = tables
    widths = {"begin_width": begins.itemsize, "place_width": places.itemsize}
    return _native.Runs(pieces=tuple(pieces), begins=begins, which=which, places=places, total=total, **widths)


# ---- orders of lengths -------------------------------------------------------------------------------------------


class FileOrder(NamedTuple):
    """The length order of one file, restricted to its records `begin` to `end`."""

    order: NDArray[Any]
    """u32 or u64: the numbers of all records of the file, the longest first, equally long ones ascending."""
    values: Uint64s  # the distinct lengths, falling
    counts: Uint64s  # how many records have each of them
    begin: int
    end: int
    damaged: Callable[[str], Error]  # makes the error for a file whose order or lengths do not fit its records

    @property
    def is_whole(self) -> bool:
        return self.begin == 0 and self.end == len(self.order)

    def check(self) -> None:
        """Raise the error of `damaged` unless lengths fall, and their counts are positive and add up to all records."""
        values, counts, records = self.values, self.counts, len(self.order)
        if not (values[1:] < values[:-1]).all():
            raise self.damaged("section 'length_values': expected numbers that fall, found others")
        if (counts == 0).any() or (counts > records).any() or counts.sum() != records:
            raise self.damaged(f"section 'length_counts': expected counts that add up to {records}, found others")

    def histogram(self) -> tuple[Uint64s, Uint64s, Int64s | None]:
        """Return the lengths of records `begin` to `end`, the count of each, and where each begins in the order.

        The last is None if each length begins where the previous one ends.
        """
        if self.is_whole:
            return self.values, self.counts, None
        self.check()
        ends = np.cumsum(self.counts).astype(np.int64)
        begins = ends - self.counts.astype(np.int64)
        # Records of one length ascend, so records `begin` to `end` are neighbours there.
        first, last = (_first_at_least(self.order, begins, ends, place) for place in (self.begin, self.end))
        kept = last > first
        return self.values[kept], (last - first)[kept].astype(np.uint64), first[kept]


class LengthOrder:
    """Record numbers sorted by length, of one or many files, read in place.

    Many files have the order of a single index of all their sources. In it, each length is a run of records from each
    file in turn. Only a table of these runs is built, with an entry for each distinct length of each file.

    The constructor raises FormatError if the lengths of a part do not fit its records. A pickle stores `remake`, if
    given: a function that makes the order again, and its arguments.
    """

    def __init__(self, parts: Sequence[FileOrder], lengths: Numbers, remake: tuple[Any, ...] | None = None) -> None:
        self.lengths = lengths
        self._remake, self._parts = remake, parts
        if len(parts) == 1 and parts[0].is_whole:
            parts[0].check()
            self.values, self.counts = parts[0].values, parts[0].counts
            tables = np.zeros(1, np.uint64), np.zeros(1, np.uint32), np.zeros(1, np.uint64)
        else:
            self.values, self.counts, tables = _merged(parts)
        pieces, first = [], 0
        for part in parts:
            size = part.end - part.begin
            pieces.append((part.order, part.order.itemsize, part.begin, max(size, 1) - 1, first))
            first += size
        self._runs = _runs(pieces, tables, len(lengths))

    def __len__(self) -> int:
        return len(self.lengths)

    def at(self, ranks: Int64s) -> Int64s:
        """Return the records at places of the order, which must be in range."""
        records = np.empty(len(ranks), np.int64)
        try:
            self._runs.at(np.ascontiguousarray(ranks), records)
        except ValueError:
            wrong = (part for part in self._parts if part.order.max(initial=0) >= len(part.order))
            part = next(wrong, self._parts[0])
            what = f"section 'length_order': expected record numbers below {len(part.order)}, found others"
            raise part.damaged(what) from None
        return records

    def __reduce__(self) -> tuple[Any, ...]:
        part = self._parts[0]
        return self._remake or (_order_of, ((part.order, part.values, part.counts), self.lengths.array))


def _order_of(arrays: Sequence[NDArray[Any]], lengths: NDArray[Any]) -> LengthOrder:
    """Return the order of lengths without an index, from the first three fields of a `FileOrder`."""
    order, values, counts = arrays
    return LengthOrder([FileOrder(order, values, counts, 0, len(order), Error)], Numbers([lengths]))


def _merged(parts: Sequence[FileOrder]) -> tuple[Uint64s, Uint64s, Tables]:
    """Return the distinct lengths of all parts, the count of each, and the tables of their runs."""
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


def _first_at_least(numbers: NDArray[Any], low: Int64s, high: Int64s, wanted: int) -> Int64s:
    """Return, for each range [low, high) of ascending numbers, the first place with `wanted` or more; else high."""
    for _ in range(int((high - low).max(initial=0)).bit_length()):
        middle = (low + high) // 2
        below = (low < high) & (numbers[np.minimum(middle, len(numbers) - 1)] < wanted)
        low, high = np.where(below, middle + 1, low), np.where(below, high, middle)
    return low


# ---- lengths given to a sampler ----------------------------------------------------------------------------------


def read_lengths(given: Any, targets: Any, cache: StrPath | None) -> LengthOrder:
    """Return lengths, of a dataset or given, with their order: the stored one if the indexes have it.

    With target lengths, the larger of both counts for each record. A cache keeps an order that had to be sorted.
    """
    if hasattr(type(given), "length_order"):
        stored: LengthOrder | None = given.length_order if targets is None and len(given) else None
        if stored is not None:
            return stored
        given = given.lengths
    lengths = _as_lengths("lengths", given)
    if not len(lengths):
        raise OrderError("lengths: expected one sample or more, found 0 (the dataset or the view is empty)")
    if targets is not None:
        second = _as_lengths("target_lengths", targets)
        if len(second) != len(lengths):
            raise OrderError(f"target_lengths: expected {len(lengths)}, one for each length, found {len(second)}")
        lengths = np.maximum(lengths, second)
    return sorted_lengths(lengths, cache)


def _as_lengths(name: str, given: Any) -> NDArray[Any]:
    """Return an array or list of lengths as u32, or u64 where one needs it."""
    try:
        if masked_count(given):
            raise ValueError("masked; give array.filled(NUMBER)")
        if not isinstance(given, list | tuple) and not hasattr(given, "__array__"):
            operator.index(given[0])  # fail early, before reading all
            given = given[:]  # such as a column of Hugging Face's datasets
        values = as_numbers(given)
        if values.ndim != 1 or (values.dtype.kind not in "iu" and values.size):
            raise ValueError(f"type {values.dtype} of shape {values.shape}")
    except (TypeError, ValueError, RuntimeError, LookupError, AttributeError) as error:  # such as lists of tokens
        expected = "expected integers of 1 or more, one for each record"
        raise OrderError(f"{name}: {expected}, found {type(given).__name__} ({error})") from None
    if values.min(initial=0) < 0:
        at = int(np.argmax(values < 0))
        raise OrderError(f"{name}[{at}] = {values[at]}, expected 1 or more")
    return np.ascontiguousarray(values, np.uint32 if values.max(initial=0) < 2**32 else np.uint64)


def sorted_lengths(values: NDArray[Any], order_cache: StrPath | None = None) -> LengthOrder:
    """Sort lengths, given as u32 or u64.

    With a path, one process of a machine sorts and writes the order there. Other processes wait, then all map it.
    A damaged cache, or a cache of other lengths, is replaced.
    """
    if order_cache is None:
        return _order_of(_sort(values), values)
    if not isinstance(order_cache, str | os.PathLike):
        raise OrderError(f"order_cache = {shortened(order_cache)}, expected the path of a file")
    cache, mark = os.fspath(order_cache), xxh3_64(values.data).hexdigest()
    try:
        found = _cached(cache, len(values), mark)
        if found is None:
            with locked(cache):
                found = _cached(cache, len(values), mark) or _made(cache, values, mark)
    except OSError as error:
        raise OrderError(f"order_cache = {cache!r}, expected a path that can be used ({reason(error)})") from None
    return _order_of(found, values)


def _sort(values: NDArray[Any]) -> Sequence[NDArray[Any]]:
    """Return an order of records, the distinct lengths, and how many records have each; see `FileOrder`."""
    return [np.frombuffer(data, dtype) for dtype, data in sort_lengths(values, values.itemsize, scratch).values()]


def _made(cache: str, values: NDArray[Any], mark: str) -> Sequence[NDArray[Any]]:
    """Sort lengths, write the cache and map it."""
    arrays = _sort(values)
    with _CacheWriter(cache) as writer:
        for name, array in zip(LENGTH_SECTIONS, arrays, strict=True):
            writer.write_array(name, array.dtype.str, array.view(np.uint8).data)
        writer.commit({"lengths": mark}, len(values))
    return _cached(cache, len(values), mark) or arrays


def _cached(path: str, records: int, mark: str) -> Sequence[NDArray[Any]] | None:
    """Return the arrays of a cache; None if it is missing, damaged, or belongs to other lengths."""
    try:
        opened = _native.Map(path)
    except FileNotFoundError:
        return None
    except ValueError:
        raise OrderError(f"order_cache = {path!r}, expected a regular file, found another") from None
    if memoryview(opened)[: len(_CACHE)] != _CACHE:
        raise OrderError(f"order_cache = {path!r}, expected an order cache or a new path, found another file")
    try:
        file = _Cache(path, opened)
        if file.records != records or file.metadata.get("lengths") != mark:
            return None
        file.verify_sections()
        fits = all(file.sections[name].dtype in types for name, types in LENGTH_SECTIONS.items())
        found = [np.frombuffer(file.section(name), file.sections[name].dtype) for name in LENGTH_SECTIONS]
    except (FormatError, *MALFORMED):
        return None
    return found if fits and len(found[0]) == records and len(found[1]) == len(found[2]) else None


class _CacheWriter(SectionWriter):
    MAGIC, SUFFIX, NAME = _CACHE, "", "the order cache"


class _Cache(SectionFile):
    MAGIC, NAME = _CACHE, "AN ORDER CACHE"
