"""Plans: how an epoch is cut into batches under a budget. Made once from the lengths, read batch by batch.

A plan has a batch at every position of an epoch, as an order has a record. `plan.reader(epoch)` reads the batches.
"""

from abc import ABC, abstractmethod
from bisect import bisect_left
from hashlib import blake2b
from typing import Any, NamedTuple, Protocol

import numpy as np

from .. import _native
from ..errors import OrderError, counted
from ..orders.basic import Int64s
from ..storage.runs import LengthOrder
from .exclusions import Ranges, members, runs_of_numbers
from .lengths import Selection, Uint64s, classes, rounded_up

VERSION = 2
"""Increased when a plan changes for the same arguments, so that old states are refused, not misread."""


class Budget(NamedTuple):
    """What a batch may hold. The size of a batch follows from its longest record: see mds_batch_size in csrc/plan.c."""

    max_tokens: int
    """Largest cost of the longest record times the number of records, in the unit of the lengths."""
    largest: int
    """Most records in a batch."""
    multiple: int
    """Batches of at least this many records have a multiple of it."""
    quadratic: int
    """A record of length L costs L + L^2 / quadratic; with 0, it costs L."""
    round_to: int = 1
    """A batch is as wide as its longest record, rounded up to a multiple of this; so L is, too."""

    @property
    def native(self) -> tuple[int, int, int, int]:
        """What the core takes, which is given lengths that are rounded already."""
        return self.max_tokens, self.largest, self.multiple, self.quadratic

    def cost(self, length: int) -> int:
        """Return what one record costs; the same rule as in mds_batch_size, and a test compares them."""
        width = -(-length // self.round_to) * self.round_to
        return width + (-(-width * width // self.quadratic) if self.quadratic else 0)

    def widths(self, lengths: Uint64s) -> Uint64s:
        """Return how wide a batch is whose longest record has each of some lengths."""
        return rounded_up(lengths, self.round_to)


class Cut(NamedTuple):
    """How many batches a bucket has: see mds_cut in csrc/sampling.h."""

    least: int
    most: int
    per_mille: int


def batches_in(buckets: Uint64s) -> int:
    """Return how many batches there are in buckets."""
    return int(buckets[-1, 1] + buckets[-1, 2])


def pieces(batch: Int64s, parts: int, multiple: int) -> list[Int64s]:
    """Return a batch in some parts of about the same size, which are multiples where none is smaller than one."""
    whole = len(batch) - len(batch) % multiple
    rest = [batch[whole:]] if whole < len(batch) else []
    if parts > 1 and whole // multiple >= parts - len(rest):
        units = np.array_split(np.arange(0, whole, multiple), parts - len(rest))
        return [batch[unit[0] : unit[-1] + multiple] for unit in units] + rest
    return np.array_split(batch, parts)


class LeftOut(NamedTuple):
    """How many samples are not planned, or exceed the budget alone; see `BudgetSummary`."""

    too_short: int
    too_long: int
    single: int


def first_of(by_length: LengthOrder, value: int) -> int:
    """Return the first record of one of the distinct lengths, given by its place."""
    return int(by_length.at(np.array([int(by_length.counts[:value].sum())]))[0])


def within(by_length: LengthOrder, min_length: int, max_length: int | None) -> tuple[int, int]:
    """Return the first of the distinct lengths that is planned, and the first after it that is not.

    Raises:
      OrderError: a length that is planned is 0.
    """
    values, counts = by_length.values, by_length.counts
    begin = 0 if max_length is None else int((values > np.uint64(max_length)).sum())
    end = max(int((values >= np.uint64(min_length)).sum()), begin)
    if end > begin and values[end - 1] == 0:
        raise OrderError(
            f"lengths[{first_of(by_length, end - 1)}] = 0, expected 1 or more; leave such samples out with "
            f"min_length=1 (samples of length 0: {int(counts[end - 1]):,})"
        )
    return begin, end


def select(
    by_length: LengthOrder, budget: Budget, min_length: int, max_length: int | None, oversize: str
) -> tuple[Selection, LeftOut]:
    """Return the samples to plan, and how many are left out.

    Raises:
      OrderError: a length is 0, a sample exceeds the budget and `oversize` is "error", or no sample is left.
    """
    values, counts = by_length.values, by_length.counts
    begin, end = within(by_length, min_length, max_length)
    fits = bisect_left(range(end), True, begin, key=lambda i: budget.cost(int(values[i])) <= budget.max_tokens)
    over = int(counts[begin:fits].sum())
    if over and oversize == "error":
        record, longest = first_of(by_length, begin), int(values[begin])
        rounded = f" with round_to = {budget.round_to}" if budget.round_to > 1 else ""
        raise OrderError(
            f"max_tokens = {budget.max_tokens}, expected {budget.cost(longest)} or more, the cost of lengths[{record}] "
            f"= {longest}{rounded}; leave such samples out with max_length=N or oversize='drop', or give each a batch "
            f"of its own with oversize='single' (samples over the budget: {over:,})"
        )
    if oversize == "drop":
        begin = fits
    if begin == end:
        raise OrderError(
            f"lengths: expected samples within min_length = {min_length}, max_length = {max_length} and max_tokens = "
            f"{budget.max_tokens}, found {counted(int(counts.sum()), 'sample')} of lengths {int(values[-1])} to "
            f"{int(values[0])}"
        )
    left_out = LeftOut(int(counts[end:].sum()), int(counts[:begin].sum()), over if oversize == "single" else 0)
    return Selection(by_length, int(counts[:begin].sum()), slice(begin, end)), left_out


class Reader(Protocol):
    """Reads the batches of one epoch."""

    def read(self, positions: Int64s) -> tuple[Int64s, Int64s]:
        """Return the records of the batches at ascending positions, one after another, and where each batch ends."""


class Plan(ABC):
    """What all planners share. A plan is the contents of an epoch (see `contents.EpochContents`), in batches."""

    def __init__(self, selection: Selection, seed: int) -> None:
        self.records = len(selection.by_length)
        """Number of records in the dataset, planned or not."""
        self.selection = selection
        self.seed = seed

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of batches in an epoch."""

    @abstractmethod
    def positions_of(self, epoch: int, records: Int64s) -> Int64s:
        """Return the positions of the batches that hold only some of these records, which ascend."""

    def positions_holding(self, epoch: int, records: Ranges) -> Int64s:
        """Return the positions of the batches that hold only records in these ranges, as ranges: shape (k, 2)."""
        wanted = members(records, self.records)
        return runs_of_numbers(self.positions_of(epoch, wanted) if len(wanted) else wanted)

    def ranks_of(self, records: Int64s) -> Int64s:
        """Return the ranks of ascending records in the planned part of the length order; the others are left out."""
        ranks = self.selection.by_length.ranks_of(records) - self.selection.first
        return ranks[(ranks >= 0) & (ranks < self.selection.records)]

    @abstractmethod
    def changes_after(self, epoch: int) -> bool:
        """Return whether the next epoch has other batches."""

    @abstractmethod
    def reader(self, epoch: int) -> Reader:
        """Return a reader of the batches of an epoch."""

    def describe(self) -> dict[str, Any]:
        """Return what identifies this plan, for states."""
        digest = blake2b(self.selection.values.tobytes() + self.selection.counts.tobytes(), digest_size=8).hexdigest()
        return {
            "version": VERSION,
            "n": self.records,
            "shortest planned": int(self.selection.values[-1]),
            "longest planned": int(self.selection.values[0]),
            "lengths": digest,
            "planned": [self.selection.first, self.selection.records],
            **self._limits(),
            "seed": self.seed,
        }

    @abstractmethod
    def _limits(self) -> dict[str, int]:
        """Return what bounds a batch, for states."""


class BudgetPlan(Plan):
    """What both planners of budgets share."""

    def __init__(self, selection: Selection, budget: Budget, cut: Cut, seed: int) -> None:
        super().__init__(selection, seed)
        self._budget = budget
        self._cut = cut

    def _cut_buckets(self, *, between: bool = False, budget: Budget | None = None) -> Uint64s:
        """Return rows of (first rank, first batch, batches, size); `between` cuts in the middle of the others."""
        values, counts = classes(self._budget.widths(self.selection.values), self.selection.counts)
        found = _native.plan_buckets((budget or self._budget).native, values, counts, self._cut, between)
        return np.frombuffer(found, np.uint64).reshape(-1, 4)

    def widths(self, longest: Uint64s) -> Uint64s:
        """Return how wide batches are, given the longest record of each."""
        return self._budget.widths(longest)

    def _limits(self) -> dict[str, int]:
        return self._budget._asdict()
