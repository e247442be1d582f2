"""Packs inside mixes of chunks: for data that are read chunk by chunk."""

from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import _native
from ..orders.basic import Int64s
from ..orders.chunked import Chunked
from ..orders.permutation import word
from ..storage.numbers import distinct
from .groups import Groups
from .lengths import Selection, Uint64s
from .pack_plan import Kinds, PackLimits, falling
from .plan import Plan

_WINDOWS = 1 << 60  # stream of the permutation of the first window; the others have the streams after it
_AT_ONCE = 1 << 18  # records whose lengths are sorted at a time
_KEPT = 2  # windows that a plan keeps


class PackedChunks:
    """What each chunk of an order takes by itself: planned once, for all epochs."""

    def __init__(self, selection: Selection, limits: PackLimits, order: Chunked) -> None:
        self.order = order
        self.limits = limits
        self.starts = order.chunk_starts
        self._selection = selection
        self.records = np.zeros(len(self.starts) - 1, np.int64)
        """Samples of each chunk that are packed."""
        self.packs = np.zeros_like(self.records)
        """Packs that these fill."""
        together = max(_AT_ONCE // max(int(np.diff(self.starts).max()), 1), 1)
        for first in range(0, len(self.packs), together):
            self._count(np.arange(first, min(first + together, len(self.packs))))

    def _count(self, chunks: Int64s) -> None:
        """Plan some chunks that follow one another."""
        records, taken = self.read(chunks)
        ends = np.searchsorted(records, self.starts[chunks[1:]])
        bounds = [0, *ends.tolist(), len(records)]
        for chunk, (begin, end) in zip(chunks.tolist(), pairwise(bounds), strict=True):
            if begin < end:
                self.records[chunk] = end - begin
                self.packs[chunk] = Kinds.of(*falling(np.sort(taken[begin:end])[::-1]), self.limits).packs.sum()

    def read(self, chunks: Int64s) -> tuple[Int64s, Uint64s]:
        """Return the samples of some chunks that are packed, chunk by chunk, and what each takes in a pack."""
        spans = [np.arange(self.starts[chunk], self.starts[chunk + 1]) for chunk in chunks.tolist()]
        records = np.concatenate(spans)
        lengths = self._selection.by_length.lengths.at(records)
        values = self._selection.values
        kept = (lengths >= values[-1]) & (lengths <= values[0])
        return records[kept], self.limits.taken(lengths[kept])


class PackWindowPlan(Plan):
    """Packs the samples of each mix of chunks by best-fit decreasing; such a mix is a window.

    Every epoch mixes other chunks, and mixes need more packs or fewer. But a mix never needs more than its chunks do
    one by one. So it has as many packs as these, and where it needs fewer, packs of many sequences are halved. That
    gives every epoch the same number of packs, and where a window begins is a sum over chunks. So a reader goes to any
    position at once, and plans only the windows that it reads.

    Args:
      chunks: those of the order to follow.
      group_size, ranks, shuffle: see `PackPlan`; groups are those of one window, and what is left at its two ends has
        about the median cost.
    """

    def __init__(
        self,
        selection: Selection,
        chunks: PackedChunks,
        *,
        group_size: int,
        ranks: int,
        seed: int,
        shuffle: bool,
    ) -> None:
        super().__init__(selection, seed)
        self.chunks = chunks
        self.limits = chunks.limits
        self._shape: dict[str, Any] = {"group_size": group_size, "ranks": ranks, "seed": seed, "shuffle": shuffle}
        self.group_size = group_size
        self.ranks = ranks
        self.shuffle = shuffle
        self._packs = _with_whole_steps(chunks, ranks)
        self._total = int(self._packs.sum())
        self._epoch: tuple[int, Int64s, Int64s] | None = None
        self._read: tuple[tuple[tuple[int, int], _Window], ...] = ()  # the last windows that were read

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(PackWindowPlan, **self._shape), (self.selection, self.chunks)

    def __len__(self) -> int:
        return self._total

    def describe(self) -> dict[str, Any]:
        """Return what identifies this plan, for states."""
        what = {"order": "packs, windows", "shuffle": self.shuffle, "group_size": self.group_size, "ranks": self.ranks}
        return {**what, "of": self.chunks.order.describe(), **super().describe()}

    def _limits(self) -> dict[str, Any]:
        return self.limits._asdict()

    def changes_after(self, epoch: int) -> bool:
        """Return whether the next epoch has other packs."""
        return True

    def reader(self, epoch: int) -> "_WindowReader":
        """Return a reader of an epoch; it reads packs in any order, and plans each window that it comes to."""
        return _WindowReader(self, epoch)

    def costs_at(self, epoch: int, positions: Int64s) -> NDArray[np.float64]:
        """Return the cost of the pack at each position: the sum of the squares of its lengths."""
        found = [window.costs_at(places) for window, places in self.at(epoch, positions)]
        return np.concatenate(found).astype(np.float64)

    def most_sequences(self, epoch: int, positions: Int64s) -> int:
        """Return how many sequences the fullest pack of the windows has that hold these positions."""
        return max(int(window.sequences.max()) for window, _ in self.at(epoch, positions))

    def positions_of(self, epoch: int, records: Int64s) -> Int64s:
        """Return the positions of the packs that hold only some of these records: plans the windows that hold them."""
        chunks, ends = self._windows(epoch)
        mixes = np.empty_like(chunks)
        mixes[chunks] = np.arange(len(chunks)) // self.chunks.order.mix_chunks
        holding = distinct(mixes[np.searchsorted(self.chunks.starts, records, side="right") - 1])
        reader, found = self.reader(epoch), [np.empty(0, np.int64)]
        for number in holding.tolist():
            positions = np.arange(ends[number - 1] if number else 0, ends[number])
            if len(positions):
                out, last = reader.read(positions)
                begins = np.concatenate([[0], last[:-1]])
                found.append(positions[np.logical_and.reduceat(np.isin(out, records), begins)])
        return np.concatenate(found)

    def at(self, epoch: int, positions: Int64s) -> Iterator[tuple["_Window", Int64s]]:
        """Yield windows and places in them, which are together the positions."""
        _, ends = self._windows(epoch)
        numbers = np.searchsorted(ends, positions, side="right")
        for begin, end in pairwise([0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(positions)]):
            number = int(numbers[begin])
            first = int(ends[number - 1]) if number else 0
            yield self._window(epoch, number, first, int(ends[number])), positions[begin:end] - first

    def _windows(self, epoch: int) -> tuple[Int64s, Int64s]:
        """Return the chunks in the order of an epoch, and where each window ends in it, in packs."""
        known = self._epoch
        if known is not None and known[0] == epoch:
            return known[1:]
        order = self.chunks.order
        chunks = order.chunks(epoch)
        lasts = np.arange(order.mix_chunks, len(chunks) + order.mix_chunks, order.mix_chunks)
        ends = np.cumsum(self._packs[chunks])[np.minimum(lasts, len(chunks)) - 1]
        self._epoch = epoch, chunks, ends
        return chunks, ends

    def _window(self, epoch: int, number: int, begin: int, end: int) -> "_Window":
        read, key = self._read, (epoch, number)
        for known, window in read:
            if known == key:
                return window
        mix = self.chunks.order.mix_chunks
        chunks = self._windows(epoch)[0][number * mix : (number + 1) * mix]
        window = _Window(self, chunks, epoch, number, begin, end)
        self._read = (*read, (key, window))[-_KEPT:]  # at once, as threads may read one plan
        return window


def _with_whole_steps(chunks: PackedChunks, ranks: int) -> Int64s:
    """Return the packs of each chunk, of which those with most samples to spare get more for a whole last step."""
    packs, spare = chunks.packs, chunks.records - chunks.packs
    more = min(-int(packs.sum()) % ranks, int(spare.sum()))
    by_spare = np.argsort(-spare, kind="stable")
    before = np.cumsum(spare[by_spare]) - spare[by_spare]
    given = np.zeros_like(packs)
    given[by_spare] = np.clip(more - before, 0, spare[by_spare])
    found: Int64s = packs + given
    return found


class _WindowReader:
    def __init__(self, plan: PackWindowPlan, epoch: int) -> None:
        self._plan = plan
        self._epoch = epoch

    def read(self, positions: Int64s) -> tuple[Int64s, Int64s]:
        found = [window.read(places) for window, places in self._plan.at(self._epoch, positions)]
        sizes = [np.diff(ends, prepend=0) for _, ends in found]
        return np.concatenate([out for out, _ in found]), np.cumsum(np.concatenate(sizes))


class _Window:
    """The packs of one mix of chunks.

    Args:
      chunks: of the mix.
      number: which of the epoch.
      begin, end: its positions there.
    """

    def __init__(self, plan: PackWindowPlan, chunks: Int64s, epoch: int, number: int, begin: int, end: int) -> None:
        records, taken = plan.chunks.read(chunks)
        by_length = np.argsort(np.uint64(plan.limits.pack_length) - taken, kind="stable")
        self._records = records[by_length]  # in order of length, falling
        values, counts = falling(taken[by_length])
        kinds = Kinds.of(values, counts, plan.limits)
        if int(kinds.packs.sum()) > end - begin:  # best-fit decreasing is not always better with more to choose from
            kinds = _one_by_one(plan.chunks, chunks, values)
        kinds = kinds.halved(end - begin - int(kinds.packs.sum())).by_cost(values)
        self.sequences = kinds.sequences
        self._costs = kinds.costs(values)
        self._ends = np.cumsum(kinds.packs)
        self._native = _native.Packs(kinds=kinds.rows, parts=kinds.parts, counts=counts)
        self._key = word(plan.seed), word(epoch), plan.shuffle
        self._epoch, self._shuffle, size = epoch, plan.shuffle, plan.group_size
        self._before = min(-begin % size, end - begin)  # packs before the first group
        self._grouped = (end - begin - self._before) // size * size
        self._others = end - begin - self._grouped
        self._middle = self._grouped // size // 2 * size  # those of median cost, which are in no group, begin here
        which = {"stream": _WINDOWS + number, "first": -(-begin // size)}
        self._groups = Groups(self._grouped, size, plan.seed, plan.shuffle, **which)

    def read(self, places: Int64s) -> tuple[Int64s, Int64s]:
        """Return the records of the packs at some places, one after another, and where each ends."""
        packs = self._packs_at(places)
        ranks = np.empty(int(self.sequences[self._kinds_of(packs)].sum()), np.int64)
        ends = np.empty_like(packs)
        self._native.ranks(*self._key, packs, ranks, ends)
        return self._records[ranks], ends

    def costs_at(self, places: Int64s) -> Uint64s:
        """Return the cost of the pack at each place."""
        found: Uint64s = self._costs[self._kinds_of(self._packs_at(places))]
        return found

    def _kinds_of(self, packs: Int64s) -> Int64s:
        return np.searchsorted(self._ends, packs, side="right")

    def _packs_at(self, places: Int64s) -> Int64s:
        """Return the number of the pack at each place, where packs are numbered in order of their cost."""
        if not self._shuffle:
            return np.ascontiguousarray(places)
        grouped = (places >= self._before) & (places < self._before + self._grouped)
        packs = self._middle + np.where(places < self._before, places, places - self._grouped)
        found = self._groups.batches_at(self._epoch, places[grouped] - self._before)
        packs[grouped] = np.where(found < self._middle, found, found + self._others)
        return packs


def _one_by_one(chunks: PackedChunks, numbers: Int64s, values: Uint64s) -> Kinds:
    """Return packs for the lengths of each chunk by itself; samples of one length trade places between chunks.

    Args:
      values: what samples of all these chunks take, falling.
    """
    rows, parts = [], []
    for number in numbers[chunks.packs[numbers] > 0]:
        _, taken = chunks.read(np.array([number]))
        own, counts = falling(np.sort(taken)[::-1])
        kinds = Kinds.of(own, counts, chunks.limits)
        places = len(values) - 1 - np.searchsorted(values[::-1], own)
        rows.append(kinds.rows)
        parts.append(
            np.stack([places[kinds.parts[:, 0].astype(np.int64)].astype(np.uint64), kinds.parts[:, 1]], axis=1)
        )
    return Kinds(np.concatenate(rows), np.concatenate(parts))
