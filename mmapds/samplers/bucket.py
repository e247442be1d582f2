"""The bucket planner: batches of records of about one length, shuffled anew every epoch."""

from typing import Any

import numpy as np

from .. import _native
from ..orders.basic import Int64s
from ..orders.permutation import word
from ..storage.numbers import distinct_counts
from .groups import Groups
from .lengths import Selection, Uint64s
from .plan import Budget, BudgetPlan, Cut, batches_in

# A bucket of one batch would give its records the same mates in every epoch, which is worse than some padding. Eight
# are enough, and buckets of more than two have lengths within 0.8 %: see bench/results/bench_planners.md.
_CUT = Cut(2, 8, 8)
_REGION = 4  # a batch more is made out of this many


class BucketPlan(BudgetPlan):
    """Cuts records in order of length into buckets of whole batches, once.

    Every epoch permutes the records inside each bucket, and the groups of neighbouring batches. Every other one has
    buckets that lie between those of the others, so that records get other mates where a bucket has few batches. All
    epochs have the same number of batches: some in buckets of short records are made smaller for it. Only the buckets
    are stored.

    Args:
      group_size: neighbouring batches that stay together, to be the batches of one step on all ranks.
      ranks: of how many a step is. Where the batches of a last step that is not full would hold fewer samples than
        this, there are so many more batches that it is full.
      shuffle: False reads the batches from the longest to the shortest, the same ones every epoch.
    """

    def __init__(
        self,
        selection: Selection,
        budget: Budget,
        *,
        group_size: int,
        ranks: int,
        seed: int,
        shuffle: bool,
    ) -> None:
        super().__init__(selection, budget, _CUT, seed)
        self.group_size = group_size
        self.ranks = ranks
        self._shuffle = shuffle
        cut = [self._cut_buckets(between=between) for between in ((False, True) if shuffle else (False,))]
        self._tables = _alike(cut, max(map(batches_in, cut)), budget.multiple)
        if not all(map(self._last_step_can_be_split, self._tables)):
            whole = -(-len(self) // ranks) * ranks
            self._tables = _alike(cut, min(whole, selection.records), budget.multiple)
        self.groups = Groups(len(self), group_size, seed, shuffle)

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

    def describe(self) -> dict[str, Any]:
        """Return what identifies this plan, for states."""
        what = {"order": "token budget, buckets", "shuffle": self._shuffle, "group_size": self.group_size}
        what["ranks"] = self.ranks
        return {**what, **super().describe()}

    def changes_after(self, epoch: int) -> bool:
        """Return whether the next epoch has other batches."""
        return self._shuffle

    def reader(self, epoch: int) -> "_BucketReader":
        """Return a reader of an epoch; it reads batches in any order, at no cost for going back."""
        return _BucketReader(self, epoch)

    def positions_of(self, epoch: int, records: Int64s) -> Int64s:
        """Return the positions of the batches that hold only some of these records, which ascend."""
        ranks = self.ranks_of(records)
        batches = np.empty_like(ranks)
        self.native(epoch).find(ranks, batches)
        found, counts = distinct_counts(batches)
        return self.groups.positions_of(epoch, found[counts == self.sizes(epoch, found)])

    def buckets(self, epoch: int) -> Uint64s:
        """Return the buckets of an epoch: rows of (first rank, first batch, batches, size)."""
        return self._tables[epoch % len(self._tables)]

    def sizes(self, epoch: int, batches: Int64s) -> Int64s:
        """Return the number of records in batches of an epoch, given by their numbers."""
        buckets = self.buckets(epoch)
        sizes: Int64s = buckets[np.searchsorted(buckets[:, 1].astype(np.int64), batches, side="right") - 1, 3].astype(
            np.int64
        )
        return sizes

    def native(self, epoch: int) -> _native.Plan:
        """One epoch of the plan, as the core reads it."""
        return _native.Plan(
            buckets=self.buckets(epoch),
            first_rank=self.selection.first,
            seed=word(self.seed),
            epoch=word(epoch),
            shuffle=self._shuffle,
        )


def _alike(cut: list[Uint64s], batches: int, multiple: int) -> list[Uint64s]:
    """Return the buckets of each kind of epoch with so many batches."""
    return [_with_more_batches(buckets, batches, multiple) for buckets in cut]


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


class _BucketReader:
    def __init__(self, plan: BucketPlan, epoch: int) -> None:
        self._plan = plan
        self._epoch = epoch
        self._native = plan.native(epoch)

    def read(self, positions: Int64s) -> tuple[Int64s, Int64s]:
        batches = np.ascontiguousarray(self._plan.groups.batches_at(self._epoch, positions.copy()))
        out = np.empty(int(self._plan.sizes(self._epoch, batches).sum()), np.int64)
        ends = np.empty_like(batches)
        self._native.batches(batches, out, ends)
        return self._plan.selection.by_length.at(out), ends
