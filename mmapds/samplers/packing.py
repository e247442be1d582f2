"""Plans of packs: best-fit decreasing over all samples, or inside windows, the mixed chunks of an order."""

from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .. import _native
from ..errors import OrderError
from ..orders.basic import Chunked, Int64s, integer
from ..orders.permutation import word
from .plan import Groups, Plan, Reader, Selection, Uint64s, classes, rounded_up

_ANY = 2**63 - 1  # sequences in a pack, without a limit
_ROWS = 1 << 24  # most rows of patterns while planning; more would take gigabytes
_WINDOWS = 1 << 60  # stream of the permutation of the first window; later windows have the streams after it
_AT_ONCE = 1 << 18  # records whose lengths are sorted at a time
_KEPT = 2  # windows that a reader caches


class PackLimits(NamedTuple):
    """The limits of a pack."""

    pack_length: int
    max_sequences: int | None
    round_to: int
    """Lengths are rounded up to a multiple of this, which divides the pack length."""
    quadratic_length: int = 0
    """A sequence of length L costs L * L for attention, and this times L for all else."""

    @classmethod
    def of(
        cls, pack_length: int, max_sequences: int | None, round_to: int, quadratic_length: int | None
    ) -> "PackLimits":
        """Return the limits that a user gave; raise OrderError for one that is out of range."""
        found = cls(
            integer("pack_length", pack_length, 1),
            None if max_sequences is None else integer("max_sequences", max_sequences, 2),
            integer("round_to", round_to, 1),
            0 if quadratic_length is None else integer("quadratic_length", quadratic_length, 1),
        )
        if pack_length % round_to:
            raise OrderError(f"round_to = {round_to}, expected a divisor of pack_length = {pack_length}")
        return found

    def cost(self, length: int) -> int:
        """Return the cost of one sequence, for comparison with the pack length."""
        return length

    def taken(self, lengths: Uint64s) -> Uint64s:
        """Return the tokens that a sequence of each length takes in a pack, truncated to the pack length."""
        return rounded_up(np.minimum(lengths, np.uint64(self.pack_length)), self.round_to)

    def compute(self, taken: Uint64s) -> NDArray[np.float64]:
        """Return what sequences cost to train on."""
        each = taken.astype(np.float64)
        return each * (each + self.quadratic_length)


class Patterns:
    """Patterns of packs: all packs of a pattern hold the same lengths.

    Args:
      rows: u64, shape (patterns, 2): the number of packs, and the number of parts of each pack.
      parts: u64, shape (parts, 2): the number of a length, and how many sequences of it; pattern by pattern.
    """

    def __init__(self, rows: Uint64s, parts: Uint64s) -> None:
        self.rows = rows
        self.parts = parts
        self._firsts = np.cumsum(rows[:, 1]) - rows[:, 1]  # first part of each pattern
        self.sequences = np.add.reduceat(parts[:, 1], self._firsts.astype(np.int64)).astype(np.int64)

    @classmethod
    def of(cls, values: Uint64s, counts: Uint64s, limits: PackLimits) -> "Patterns":
        """Pack sequences.

        Raises:
          OrderError: they need too many patterns of packs.
        """
        try:
            found = _native.pack_lengths(limits.pack_length, limits.max_sequences or _ANY, _ROWS, values, counts)
        except ValueError:
            raise OrderError(
                f"round_to = {limits.round_to}: expected up to {_ROWS:,} patterns of packs, found more for "
                f"{len(values):,} different lengths; give a larger round_to"
            ) from None
        patterns, parts = (np.frombuffer(each, np.uint64).reshape(-1, 2) for each in found)
        return cls(patterns, parts)

    @property
    def packs(self) -> Int64s:
        return self.rows[:, 0].astype(np.int64)

    def reader(self, counts: Uint64s, seed: int, epoch: int, shuffle: bool) -> Reader:
        """Return a reader of packs by number; it returns the ranks of their sequences in the order of all lengths.

        Args:
          counts: how many sequences have each length.
        """
        native = _native.Packs(kinds=self.rows, parts=self.parts, counts=counts)
        last_packs = np.cumsum(self.packs)

        def read(packs: Int64s) -> tuple[Int64s, Int64s]:
            sizes = self.sequences[np.searchsorted(last_packs, packs, side="right")]
            ranks, ends = np.empty(int(sizes.sum()), np.int64), np.empty_like(packs)
            native.ranks(word(seed), word(epoch), shuffle, packs, ranks, ends)
            return ranks, ends

        return read

    def by_cost(self, of_lengths: NDArray[np.float64]) -> "Patterns":
        """Return the patterns by falling cost, from the cost of a sequence of each length."""
        costs = of_lengths[self.parts[:, 0].astype(np.int64)] * self.parts[:, 1]
        return self._taken(np.argsort(-np.add.reduceat(costs, self._firsts.astype(np.int64)), kind="stable"))

    def _taken(self, order: Int64s) -> "Patterns":
        rows = self.rows[order]
        sizes = rows[:, 1].astype(np.int64)
        before = np.cumsum(sizes) - sizes
        places = np.arange(sizes.sum()) + np.repeat(self._firsts[order].astype(np.int64) - before, sizes)
        return Patterns(rows, self.parts[places])

    def halved(self, more: int) -> "Patterns":
        """Return patterns with `more` more packs, at most one for each sequence: halve packs with most sequences."""
        order = np.argsort(-self.sequences, kind="stable")
        order = order[self.sequences[order] > 1]
        if not more or not len(order):
            return self
        order = order[: int(np.searchsorted(np.cumsum(self.packs[order]), more)) + 1]
        rows, halves, left = self.rows.copy(), [], more
        for pattern in order.tolist():
            packs = min(left, int(rows[pattern, 0]))
            rows[pattern, 0] -= np.uint64(packs)
            left -= packs
            first, count = int(self._firsts[pattern]), int(rows[pattern, 1])
            halves += [(packs, half) for half in _halves(self.parts[first : first + count])]
        kept = Patterns(rows, self.parts)._taken(np.flatnonzero(rows[:, 0]))
        made = np.array([(packs, len(half)) for packs, half in halves], np.uint64)
        parts = np.concatenate([kept.parts, *(half for _, half in halves)])
        return Patterns(np.concatenate([kept.rows, made]), parts).halved(left)


def _halves(parts: Uint64s) -> tuple[Uint64s, Uint64s]:
    """Split the parts of a pack of two or more sequences into two packs of about equal size."""
    each = parts[:, 1]
    odd = each % np.uint64(2)
    extra = odd * (np.cumsum(odd) % np.uint64(2))  # every other odd one goes to the first half
    first = each // np.uint64(2) + extra
    halves = (np.stack([parts[:, 0], half], axis=1) for half in (first, each - first))
    one, other = (half[half[:, 1] > 0] for half in halves)
    return one, other


class _Packed(Plan):
    """The base of both plans of packs."""

    cuts = True
    limits: PackLimits

    def measured(self, records: Int64s, begins: Int64s, sizes: Int64s) -> tuple[Int64s, Int64s, NDArray[Any]]:
        """Measure packs; see `Plan.measured`. The cost of a pack is that of its sequences."""
        lengths = self.selection.by_length.lengths.at(records)
        taken = self.limits.taken(lengths.astype(np.uint64))
        real = np.minimum(lengths, self.limits.pack_length).astype(np.int64)
        spaces = np.full(len(begins), self.limits.pack_length, np.int64)
        return np.add.reduceat(real, begins), spaces, np.add.reduceat(self.limits.compute(taken), begins)


class PackPlan(_Packed):
    """Packs sequences by best-fit decreasing, all sequences of one length at a time.

    Packs that hold the same lengths share a pattern; the plan stores only patterns. A keyed permutation, new in every
    epoch, assigns the sequences of a length to its slots. Packs are numbered by falling cost. Packs with many sequences
    are halved until the last group is full.
    """

    kind = "packs"

    def __init__(self, selection: Selection, limits: PackLimits, **shape: Any) -> None:
        super().__init__(selection, limits, **shape)
        values, self._counts = classes(limits.taken(selection.values), selection.counts)
        patterns = Patterns.of(values, self._counts, limits)
        packs = int(patterns.packs.sum())
        self._patterns = patterns.halved(self.filled(packs) - packs).by_cost(limits.compute(values))
        self._groups = Groups(len(self), self.group_size, self.seed, self.shuffle)

    def __len__(self) -> int:
        return int(self._patterns.packs.sum())

    def reader(self, epoch: int) -> Reader:
        """Return a reader of the packs of an epoch; positions may come in any order."""
        ranks_of = self._patterns.reader(self._counts, self.seed, epoch, self.shuffle)

        def read(positions: Int64s) -> tuple[Int64s, Int64s]:
            ranks, ends = ranks_of(self._groups.batches_at(epoch, positions))
            return self.selection.by_length.at(ranks + self.selection.first), ends

        return read


class PackedChunks:
    """The number of samples and packs of each chunk of an order; computed once, for all epochs."""

    def __init__(self, selection: Selection, limits: PackLimits, order: Chunked) -> None:
        self.order = order
        self.limits = limits
        self.starts = order.chunk_starts
        self._selection = selection
        self.records = np.zeros(len(self.starts) - 1, np.int64)
        """Planned samples of each chunk."""
        self.packs = np.zeros_like(self.records)
        """Packs of each chunk, if packed alone."""
        together = max(_AT_ONCE // max(int(np.diff(self.starts).max()), 1), 1)
        for first in range(0, len(self.packs), together):
            chunks = np.arange(first, min(first + together, len(self.packs)))
            records, taken = self.read(chunks)
            bounds = [0, *np.searchsorted(records, self.starts[chunks[1:]]).tolist(), len(records)]
            for chunk, (begin, end) in zip(chunks.tolist(), pairwise(bounds), strict=True):
                if begin < end:
                    self.records[chunk] = end - begin
                    self.packs[chunk] = Patterns.of(*classes(np.sort(taken[begin:end])[::-1]), limits).packs.sum()

    def read(self, chunks: Int64s) -> tuple[Int64s, Uint64s]:
        """Return the planned samples of `chunks`, chunk by chunk, and the tokens that each takes in a pack."""
        spans = [np.arange(self.starts[chunk], self.starts[chunk + 1]) for chunk in chunks.tolist()]
        records = np.concatenate(spans)
        lengths = self._selection.by_length.lengths.at(records)
        values = self._selection.values
        kept = (lengths >= values[-1]) & (lengths <= values[0])
        return records[kept], self.limits.taken(lengths[kept])


class PackWindowPlan(_Packed):
    """Packs the samples of each window, `mix_chunks` chunks of the order, by best-fit decreasing.

    Every epoch mixes other chunks, so the packs that a window needs vary. It never needs more than its chunks need when
    packed alone. So every window gets that number of packs: if it needs fewer, packs of many sequences are halved. Then
    every epoch has the same number of packs, and the start of a window is a sum over chunks. A reader can start at any
    position, and plans only the windows that it reads.

    Groups stay inside a window. The packs before its first and after its last whole group have about the median cost.
    """

    kind = "packs, windows"

    def __init__(self, selection: Selection, chunks: PackedChunks, **shape: Any) -> None:
        super().__init__(selection, chunks.limits, **shape)
        self.chunks = chunks
        packs = int(chunks.packs.sum())
        self._packs = _with_more(chunks, self.filled(packs) - packs)
        self._total = int(self._packs.sum())

    def __len__(self) -> int:
        return self._total

    def _shape(self) -> dict[str, Any]:
        return {"of": self.chunks.order.describe()}

    def reader(self, epoch: int) -> Reader:
        """Return a reader of the packs of an epoch, in any order; it plans each window that it reads."""
        chunks, mix = self.chunks.order.chunks(epoch), self.chunks.order.mix_chunks
        lasts = np.minimum(np.arange(mix, len(chunks) + mix, mix), len(chunks)) - 1
        ends = np.cumsum(self._packs[chunks])[lasts]

        @lru_cache(_KEPT)
        def window(number: int) -> tuple[int, Reader]:
            begin = int(ends[number - 1]) if number else 0
            own = chunks[number * mix : (number + 1) * mix]
            return begin, self._window(own, epoch, number, begin, int(ends[number]))

        def read(positions: Int64s) -> tuple[Int64s, Int64s]:
            numbers, found = np.searchsorted(ends, positions, side="right"), []
            for first, last in pairwise([0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(positions)]):
                begin, read_packs = window(int(numbers[first]))
                found.append(read_packs(positions[first:last] - begin))
            sizes = [np.diff(each, prepend=0) for _, each in found]
            return np.concatenate([out for out, _ in found]), np.cumsum(np.concatenate(sizes))

        return read

    def _window(self, chunks: Int64s, epoch: int, number: int, begin: int, end: int) -> Reader:
        """Return a reader of the packs of one window, by their places in it.

        Args:
          number: number of the window in the epoch.
          begin, end: positions of the window in the epoch.
        """
        records, taken = self.chunks.read(chunks)
        by_length = np.argsort(np.uint64(self.limits.pack_length) - taken, kind="stable")
        records = records[by_length]
        values, counts = classes(taken[by_length])
        count, patterns = end - begin, Patterns.of(values, counts, self.limits)
        if int(patterns.packs.sum()) > count:  # best-fit decreasing may need more packs for all chunks together
            patterns = _one_by_one(self.chunks, chunks, values)
        patterns = patterns.halved(count - int(patterns.packs.sum())).by_cost(self.limits.compute(values))
        ranks_of = patterns.reader(counts, self.seed, epoch, self.shuffle)

        size = self.group_size
        before = min(-begin % size, count)  # packs before the first group
        grouped = (count - before) // size * size
        middle = grouped // size // 2 * size  # the packs of median cost, which belong to no group, begin here
        which = {"stream": _WINDOWS + number, "first": -(-begin // size)}
        groups = Groups(grouped, size, self.seed, self.shuffle, **which)

        def read(places: Int64s) -> tuple[Int64s, Int64s]:
            packs = np.ascontiguousarray(places)  # numbered by falling cost
            if self.shuffle:
                is_grouped = (places >= before) & (places < before + grouped)
                packs = middle + np.where(places < before, places, places - grouped)
                found = groups.batches_at(epoch, places[is_grouped] - before)
                packs[is_grouped] = np.where(found < middle, found, found + count - grouped)
            ranks, ends = ranks_of(packs)
            return records[ranks], ends

        return read


def _with_more(chunks: PackedChunks, more: int) -> Int64s:
    """Return the packs of each chunk, and `more`; chunks with many spare samples get those."""
    packs, spare = chunks.packs, chunks.records - chunks.packs
    by_spare = np.argsort(-spare, kind="stable")
    before = np.cumsum(spare[by_spare]) - spare[by_spare]
    given = np.zeros_like(packs)
    given[by_spare] = np.clip(more - before, 0, spare[by_spare])
    found: Int64s = packs + given
    return found


def _one_by_one(chunks: PackedChunks, numbers: Int64s, values: Uint64s) -> Patterns:
    """Pack the lengths of each chunk alone; samples of one length may still trade places between chunks.

    Args:
      values: the distinct lengths that samples of all chunks take, falling.
    """
    rows, parts = [], []
    for number in numbers[chunks.packs[numbers] > 0]:
        _, taken = chunks.read(np.array([number]))
        own, counts = classes(np.sort(taken)[::-1])
        patterns = Patterns.of(own, counts, chunks.limits)
        places = len(values) - 1 - np.searchsorted(values[::-1], own)
        rows.append(patterns.rows)
        parts.append(
            np.stack([places[patterns.parts[:, 0].astype(np.int64)].astype(np.uint64), patterns.parts[:, 1]], axis=1)
        )
    return Patterns(np.concatenate(rows), np.concatenate(parts))
