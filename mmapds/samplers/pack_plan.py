"""The plan of packs: best-fit decreasing on the histogram of lengths, once, and other mates in every epoch."""

from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .. import _native
from ..errors import OrderError, counted
from ..orders.basic import Int64s
from ..orders.permutation import word
from ..storage.numbers import distinct_counts
from ..storage.runs import LengthOrder
from .groups import Groups
from .lengths import Selection, Uint64s, classes, rounded_up
from .plan import Plan, first_of, within

_ANY = 2**63 - 1  # sequences
_ROWS = 1 << 24  # of kinds of packs while a plan is made; more would take gigabytes


class PackLimits(NamedTuple):
    """What a pack may hold."""

    pack_length: int
    max_sequences: int | None
    round_to: int
    """A sequence takes its length, rounded up to a multiple of this, which divides the pack length."""

    def classes(self, selection: Selection) -> tuple[Uint64s, Uint64s]:
        """Return what sequences take in a pack, falling, and how many take so much; longer ones are truncated."""
        return classes(self.taken(selection.values), selection.counts)

    def taken(self, lengths: Uint64s) -> Uint64s:
        """Return what a sequence of each length takes."""
        return rounded_up(np.minimum(lengths, np.uint64(self.pack_length)), self.round_to)


def falling(taken: Uint64s) -> tuple[Uint64s, Uint64s]:
    """Return the distinct numbers of some that fall, and how often each occurs."""
    firsts = np.flatnonzero(np.diff(taken, prepend=0))
    return np.ascontiguousarray(taken[firsts]), np.diff(firsts, append=len(taken)).astype(np.uint64)


class PackLeftOut(NamedTuple):
    """What is left out or cut off; see `PackingSummary`."""

    too_short: int
    too_long: int
    too_long_tokens: int
    truncated: int
    truncated_tokens: int


def select_packed(
    by_length: LengthOrder, pack_length: int, min_length: int, max_length: int | None, oversize: str
) -> tuple[Selection, PackLeftOut]:
    """Return the samples to pack, and what is left out.

    Raises:
      OrderError: a length is 0, a sample exceeds the pack length and `oversize` is "error", or no sample is left.
    """
    values, counts = by_length.values, by_length.counts
    begin, end = within(by_length, min_length, max_length)
    fits = max(int((values > np.uint64(pack_length)).sum()), begin)
    over = int(counts[begin:fits].sum())
    if over and oversize == "error":
        record, longest = first_of(by_length, begin), int(values[begin])
        raise OrderError(
            f"pack_length = {pack_length}, expected {longest} or more, that of lengths[{record}] = {longest}; leave "
            f"such samples out with oversize='drop' or max_length=N, or cut them with oversize='truncate' and "
            f"pack_collate(max_length={pack_length}) (samples "
            f"over the pack length: {over:,})"
        )
    longer = _tokens(by_length, begin, fits)
    if oversize == "drop":
        begin, over, longer = fits, 0, 0
    if begin >= end:
        raise OrderError(
            f"lengths: expected samples within min_length = {min_length}, max_length = {max_length} and pack_length = "
            f"{pack_length}, found {counted(int(counts.sum()), 'sample')} of lengths {int(values[-1])} to "
            f"{int(values[0])}"
        )
    left_out = PackLeftOut(
        int(counts[end:].sum()),
        int(counts[:begin].sum()),
        _tokens(by_length, 0, begin),
        over,
        longer - over * pack_length,
    )
    return Selection(by_length, int(counts[:begin].sum()), slice(begin, end)), left_out


def _tokens(by_length: LengthOrder, begin: int, end: int) -> int:
    """Return the tokens of all samples of some of the distinct lengths."""
    values, counts = by_length.values[begin:end].astype(object), by_length.counts[begin:end].astype(object)
    return int((values * counts).sum())


class PackPlan(Plan):
    """Packs sequences by best-fit decreasing, as many at a time as have one length.

    Packs that hold the same lengths are a kind. Which sequence of a length takes which of its slots is a keyed
    permutation, another one every epoch, so only the kinds are stored. Packs are numbered in order of their cost, the
    sum of the squares of their lengths, the largest first.

    Args:
      group_size: neighbouring packs that stay together, to be the packs of one step on all ranks.
      ranks: of how many a step is: packs with many sequences are halved until a multiple of it is reached.
      shuffle: False reads the packs in order of their cost, the same ones every epoch.
    """

    def __init__(
        self,
        selection: Selection,
        limits: PackLimits,
        *,
        group_size: int,
        ranks: int,
        seed: int,
        shuffle: bool,
    ) -> None:
        super().__init__(selection, seed)
        self.limits = limits
        self._shape: dict[str, Any] = {"group_size": group_size, "ranks": ranks, "seed": seed, "shuffle": shuffle}
        self.group_size = group_size
        self.ranks = ranks
        self._shuffle = shuffle
        values, counts = limits.classes(selection)
        kinds = Kinds.of(values, counts, limits)
        packs = int(kinds.packs.sum())
        kinds = kinds.halved(min(-(-packs // ranks) * ranks, selection.records) - packs).by_cost(values)
        self.sequences = kinds.sequences
        """How many each pack of a kind holds."""
        self._costs = kinds.costs(values)
        self._ends = np.cumsum(kinds.packs)
        self._native = _native.Packs(kinds=kinds.rows, parts=kinds.parts, counts=counts)
        self.groups = Groups(len(self), group_size, seed, shuffle)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(PackPlan, **self._shape), (self.selection, self.limits)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def describe(self) -> dict[str, Any]:
        """Return what identifies this plan, for states."""
        what = {"order": "packs", "shuffle": self._shuffle, "group_size": self.group_size, "ranks": self.ranks}
        return {**what, **super().describe()}

    def _limits(self) -> dict[str, Any]:
        return self.limits._asdict()

    def changes_after(self, epoch: int) -> bool:
        """Return whether the next epoch has other packs."""
        return self._shuffle

    def costs_at(self, epoch: int, positions: Int64s) -> NDArray[np.float64]:
        """Return the cost of the pack at each position: the sum of the squares of its lengths."""
        kinds = self._kinds_of(self.groups.batches_at(epoch, positions.copy()))
        return self._costs[kinds].astype(np.float64)

    def most_sequences(self, epoch: int, positions: Int64s) -> int:
        """Return how many sequences the fullest pack has."""
        return int(self.sequences.max())

    def _kinds_of(self, packs: Int64s) -> Int64s:
        return np.searchsorted(self._ends, packs, side="right")

    def reader(self, epoch: int) -> "_PackReader":
        """Return a reader of an epoch; it reads packs in any order, at no cost for going back."""
        return _PackReader(self, epoch)

    def read(self, epoch: int, packs: Int64s) -> tuple[Int64s, Int64s]:
        """Return the records of packs, given by their numbers, one after another, and where each ends."""
        ranks = np.empty(int(self.sequences[self._kinds_of(packs)].sum()), np.int64)
        ends = np.empty_like(packs)
        self._native.ranks(word(self.seed), word(epoch), self._shuffle, packs, ranks, ends)
        return self.selection.by_length.at(ranks + self.selection.first), ends

    def positions_of(self, epoch: int, records: Int64s) -> Int64s:
        """Return the positions of the packs that hold only some of these records, which ascend."""
        ranks = self.ranks_of(records)
        packs = np.empty_like(ranks)
        self._native.find(word(self.seed), word(epoch), self._shuffle, ranks, packs)
        found, counts = distinct_counts(packs)
        return self.groups.positions_of(epoch, found[counts == self.sequences[self._kinds_of(found)]])


class _PackReader:
    def __init__(self, plan: PackPlan, epoch: int) -> None:
        self._plan = plan
        self._epoch = epoch

    def read(self, positions: Int64s) -> tuple[Int64s, Int64s]:
        packs = self._plan.groups.batches_at(self._epoch, positions.copy())
        return self._plan.read(self._epoch, np.ascontiguousarray(packs))


class Kinds:
    """Packs that hold the same lengths.

    Args:
      rows: u64, shape (kinds, 2): how many packs, and how many parts each has.
      parts: u64, shape (parts, 2): which length, and how many sequences of it, one kind after another.
    """

    def __init__(self, rows: Uint64s, parts: Uint64s) -> None:
        self.rows = rows
        self.parts = parts
        self._firsts = np.cumsum(rows[:, 1]) - rows[:, 1]  # part of each kind
        self.sequences = np.add.reduceat(parts[:, 1], self._firsts.astype(np.int64)).astype(np.int64)

    @classmethod
    def of(cls, values: Uint64s, counts: Uint64s, limits: PackLimits) -> "Kinds":
        """Pack sequences.

        Raises:
          OrderError: they need too many kinds of packs.
        """
        try:
            found = _native.pack_lengths(limits.pack_length, limits.max_sequences or _ANY, _ROWS, values, counts)
        except ValueError:
            raise OrderError(
                f"round_to = {limits.round_to}: expected up to {_ROWS:,} kinds of packs, found more for "
                f"{len(values):,} different lengths; give a larger round_to"
            ) from None
        kinds, parts = (np.frombuffer(each, np.uint64).reshape(-1, 2) for each in found)
        return cls(kinds, parts)

    @property
    def packs(self) -> Int64s:
        return self.rows[:, 0].astype(np.int64)

    def costs(self, values: Uint64s) -> Uint64s:
        """Return the sum of the squares of the lengths in a pack of each kind; integers are alike on all machines."""
        lengths = values[self.parts[:, 0].astype(np.int64)]
        costs: Uint64s = np.add.reduceat(lengths * lengths * self.parts[:, 1], self._firsts.astype(np.int64))
        return costs

    def by_cost(self, values: Uint64s) -> "Kinds":
        """Return the kinds in order of their cost, the largest first."""
        return self._taken(np.argsort(-self.costs(values).astype(np.int64), kind="stable"))

    def _taken(self, order: Int64s) -> "Kinds":
        rows = self.rows[order]
        sizes = rows[:, 1].astype(np.int64)
        before = np.cumsum(sizes) - sizes
        places = np.arange(sizes.sum()) + np.repeat(self._firsts[order].astype(np.int64) - before, sizes)
        return Kinds(rows, self.parts[places])

    def halved(self, more: int) -> "Kinds":
        """Return kinds with so many packs more, at most one for each sequence: those with most sequences are halved."""
        order = np.argsort(-self.sequences, kind="stable")
        order = order[self.sequences[order] > 1]
        if not more or not len(order):
            return self
        order = order[: int(np.searchsorted(np.cumsum(self.packs[order]), more)) + 1]
        rows, halves, left = self.rows.copy(), [], more
        for kind in order.tolist():
            packs = min(left, int(rows[kind, 0]))
            rows[kind, 0] -= np.uint64(packs)
            left -= packs
            first, count = int(self._firsts[kind]), int(rows[kind, 1])
            halves += [(packs, half) for half in _halves(self.parts[first : first + count])]
        kept = Kinds(self.rows, self.parts)._taken(np.flatnonzero(rows[:, 0]))
        made = np.array([(packs, len(half)) for packs, half in halves], np.uint64)
        together = np.concatenate([np.stack([rows[rows[:, 0] > 0, 0], kept.rows[:, 1]], axis=1), made])
        return Kinds(together, np.concatenate([kept.parts, *(half for _, half in halves)])).halved(left)


def _halves(parts: Uint64s) -> tuple[Uint64s, Uint64s]:
    """Return the parts of two packs that hold the sequences of one, about half each; it has two or more."""
    each = parts[:, 1]
    odd = each % np.uint64(2)
    extra = odd * (np.cumsum(odd) % np.uint64(2))  # every other odd one goes to the first half
    first = each // np.uint64(2) + extra
    halves = (np.stack([parts[:, 0], half], axis=1) for half in (first, each - first))
    one, other = (half[half[:, 1] > 0] for half in halves)
    return one, other
