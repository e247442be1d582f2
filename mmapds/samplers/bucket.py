"""The bucket planner: batches of records of about one length, shuffled anew every epoch."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .. import _native
from ..orders.basic import Int64s
from ..orders.permutation import word
from .plan import Groups, Plan, Reader, Selection, Uint64s, classes, rounded_up

_REGION = 4  # a batch more is made out of this many


class Budget(NamedTuple):
    """What a batch may hold. The size of a batch follows from its longest record: see mds_batch_size in csrc/plan.c."""

    max_tokens: int
    """Largest cost of the longest record times the number of records, in the unit of the lengths."""
    max_batch_size: int
    batch_size_multiple: int
    """Batches of at least this many records have a multiple of it."""
    quadratic_length: int
    """A record of length L costs L + L^2 / quadratic_length; with 0, it costs L."""
    round_to: int = 1
    """A batch is as wide as its longest record, rounded up to a multiple of this; so L is, too."""

    def cost(self, length: int) -> int:
        """Return what one record costs; the same rule as in mds_batch_size, and a test compares them."""
        width = -(-length // self.round_to) * self.round_to
        return width + (-(-width * width // self.quadratic_length) if self.quadratic_length else 0)


Cut = tuple[int, int, int]
"""Least and most batches of a bucket, and by how many thousandths lengths may fall in it: see mds_cut in csrc."""


def batches_in(buckets: Uint64s) -> int:
    """Return how many batches there are in buckets."""
    return int(buckets[-1, 1] + buckets[-1, 2])


class BudgetPlan(Plan):
    """What both planners of budgets share."""

    limits: Budget

    def _cut_buckets(self, cut: Cut, *, between: bool = False, budget: Budget | None = None) -> Uint64s:
        """Return rows of (first rank, first batch, batches, size); `between` cuts in the middle of the others."""
        values, counts = classes(rounded_up(self.selection.values, self.limits.round_to), self.selection.counts)
        # The core is given lengths that are rounded already.
        found = _native.plan_buckets((budget or self.limits)[:4], values, counts, cut, between)
        return np.frombuffer(found, np.uint64).reshape(-1, 4)

    def measured(self, lengths: NDArray[Any], begins: Int64s, sizes: Int64s) -> tuple[Int64s, Int64s, NDArray[Any]]:
        """Return what batches hold; the cost of one is its padded size."""
        widths = rounded_up(np.maximum.reduceat(lengths, begins).astype(np.uint64), self.limits.round_to)
        spaces = widths.astype(np.int64) * sizes
        return np.add.reduceat(lengths.astype(np.int64), begins), spaces, spaces


# A bucket of one batch would give its records the same company in every epoch, which is worse than some padding. Eight
# are enough, and buckets of more than two have lengths within 0.8 %: see bench/results/bench_planners.md.
_CUT = (2, 8, 8)


class BucketPlan(BudgetPlan):
    """Cuts records in order of length into buckets of whole batches, once.

    Every epoch permutes the records inside each bucket, and the groups of neighbouring batches. Every other one has
    buckets that lie between those of the others, so that records share batches with others where a bucket has few
    batches. All epochs have the same number of batches: some in buckets of short records are made smaller for it. Only
    the buckets are stored.
    """

    kind = "token budget, buckets"

    def __init__(self, selection: Selection, budget: Budget, **shape: Any) -> None:
        super().__init__(selection, budget, **shape)
        cut = [self._cut_buckets(_CUT, between=between) for between in ((False, True) if self.shuffle else (False,))]
        most = max(map(batches_in, cut))
        for wanted in (most, min(-(-most // self.ranks) * self.ranks, selection.records)):
            self._tables = [_with_more_batches(each, wanted, budget.batch_size_multiple) for each in cut]
            if all(map(self._last_step_can_be_split, self._tables)):
                break
        self._groups = Groups(len(self), self.group_size, self.seed, self.shuffle)

    def _last_step_can_be_split(self, buckets: Uint64s) -> bool:
        """Return whether the batches of the last step have a sample for each rank, whichever batches these are."""
        rest = batches_in(buckets) % self.ranks
        smallest = rest * int(buckets[:, 3].min()) >= self.ranks
        if not rest or smallest or self.group_size != self.ranks:
            return not rest or smallest
        # The group that is not whole is always the last one, and has the shortest records.
        batches, sizes = buckets[-rest:, 2].astype(np.int64), buckets[-rest:, 3].astype(np.int64)
        return int(np.repeat(sizes, np.minimum(batches, rest))[-rest:].sum()) >= self.ranks

    def __len__(self) -> int:
        return batches_in(self._tables[0])

    def reader(self, epoch: int) -> Reader:
        """Return what reads the batches of an epoch, in any order, at no cost for going back."""
        buckets = self._tables[epoch % len(self._tables)]
        first_batches, sizes = buckets[:, 1].astype(np.int64), buckets[:, 3].astype(np.int64)
        native = _native.Plan(
            buckets=buckets,
            first_rank=self.selection.first,
            seed=word(self.seed),
            epoch=word(epoch),
            shuffle=self.shuffle,
        )

        def read(positions: Int64s) -> tuple[Int64s, Int64s]:
            batches = self._groups.batches_at(epoch, positions)
            of_batches = sizes[np.searchsorted(first_batches, batches, side="right") - 1]
            out, ends = np.empty(int(of_batches.sum()), np.int64), np.empty_like(batches)
            native.batches(batches, out, ends)
            return self.selection.by_length.at(out), ends

        return read


def _with_more_batches(buckets: Uint64s, wanted: int, multiple: int) -> Uint64s:
    """Return buckets of the same records that have `wanted` batches, at most one for each record.

    Batches of the shortest records are made smaller, `_REGION` of them for each one more if there are so many, so
    that they still cost about the same.
    """
    more = wanted - batches_in(buckets)
    if not more:
        return buckets
    before = np.maximum(batches_in(buckets) - _REGION * more, 0)
    first = int(np.searchsorted(buckets[:, 1].astype(np.int64), before, side="right")) - 1
    batches, sizes = buckets[first:, 2].astype(np.int64), buckets[first:, 3].astype(np.int64)
    room = batches * (sizes - 1)
    if room.sum() < more and first:
        first, batches, sizes = 0, buckets[:, 2].astype(np.int64), buckets[:, 3].astype(np.int64)
        room = batches * (sizes - 1)
    share = np.minimum(np.diff(np.cumsum(batches) * more // batches.sum(), prepend=0), room)
    spare = np.cumsum((room - share)[::-1])[::-1]  # what is missing goes to the shortest records
    missing = int(more - share.sum())
    share += np.minimum(room - share, np.maximum(missing - (spare - (room - share)), 0))
    rows = [(int(m), int(size)) for m, size in buckets[:first, 2:]]
    for m, size, extra in zip(batches.tolist(), sizes.tolist(), share.tolist(), strict=True):
        parts, records = m + extra, m * size
        unit = multiple if size % multiple == 0 and records // multiple >= parts else 1
        each, larger = divmod(records // unit, parts)
        rows += [(larger, (each + 1) * unit)] * (larger > 0) + [(parts - larger, each * unit)]
    made = np.array(rows, np.uint64).reshape(-1, 2)
    records_of, batches_of = made[:, 0] * made[:, 1], made[:, 0]
    return np.stack([np.cumsum(records_of) - records_of, np.cumsum(batches_of) - batches_of, *made.T], axis=1)
