"""The bucket planner: batches of records of about one length, shuffled anew every epoch."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import _native
from ..orders.basic import Int64s
from ..orders.permutation import Permutation, word
from .lengths import Selection
from .plan import Budget, Plan

_GROUPS = 2  # stream of the permutation of groups; records and chunks have 0 and 1
_ENOUGH = 8  # batches that a bucket should have, so that records can change places


class BucketPlan(Plan):
    """Cuts records in order of length into buckets of whole batches, once.

    Every epoch has the same number of batches, of the same sizes. It permutes the records inside each bucket, and the
    groups of neighbouring batches. Only the buckets are stored.

    Args:
      values: u32 or u64, shape (records,): the lengths.
      group_size: neighbouring batches that stay together, to be the batches of one step on all ranks.
      shuffle: False reads the batches from the longest to the shortest, the same ones every epoch.
    """

    def __init__(
        self,
        selection: Selection,
        values: NDArray[Any],
        budget: Budget,
        *,
        group_size: int,
        seed: int,
        shuffle: bool,
    ) -> None:
        super().__init__(selection, len(values), budget, _ENOUGH, True, seed)
        self._lengths = values
        self.group_size = group_size
        self._shuffle = shuffle
        self._batches = int(self.buckets[-1, 1] + self.buckets[-1, 2])
        self._groups = self._batches // group_size  # without the last one, if it is smaller

    def __len__(self) -> int:
        return self._batches

    def describe(self) -> dict[str, Any]:
        """Return what identifies this plan, for states."""
        what = {"order": "token budget, buckets", "shuffle": self._shuffle, "group_size": self.group_size}
        return {**what, **super().describe()}

    def changes_after(self, epoch: int) -> bool:
        """Return whether the next epoch has other batches."""
        return self._shuffle

    def reader(self, epoch: int) -> "_BucketReader":
        """Return a reader of an epoch; it reads batches in any order, at no cost for going back."""
        return _BucketReader(self, epoch)

    def batches_at(self, epoch: int, positions: Int64s) -> Int64s:
        """Return the number, by length, of the batch at each position."""
        if not self._shuffle:
            return positions
        groups, places = np.divmod(positions, self.group_size)
        whole = groups < self._groups
        if self._groups:
            groups[whole] = self._permutation(epoch)[groups[whole]]
        # Each group is rotated by a random number, so that no rank always has the longest batch.
        sizes = np.where(whole, self.group_size, max(self._batches % self.group_size, 1))
        batches: Int64s = groups * self.group_size + (places + self._rotations(epoch, groups)) % sizes
        return batches

    def positions_of_batches(self, epoch: int, batches: Int64s) -> Int64s:
        """Return the positions of batches, given by their numbers; the inverse of `batches_at`."""
        if not self._shuffle:
            return batches
        groups, places = np.divmod(batches, self.group_size)
        whole = groups < self._groups
        sizes = np.where(whole, self.group_size, max(self._batches % self.group_size, 1))
        places = (places - self._rotations(epoch, groups)) % sizes
        if self._groups:
            groups[whole] = self._permutation(epoch).inverse(groups[whole])
        positions: Int64s = groups * self.group_size + places
        return positions

    def positions_of(self, epoch: int, records: Int64s) -> Int64s:
        """Return the positions of the batches that hold only some of these records, which ascend."""
        ranks = self._ranks(records)
        batches = np.empty_like(ranks)
        self.native(epoch).find(ranks, batches)
        found, counts = np.unique(batches, return_counts=True)
        return self.positions_of_batches(epoch, found[counts == self.sizes(found)])

    def _ranks(self, records: Int64s) -> Int64s:
        """Return the ranks of records in the planned part of the length order; records outside it are left out."""
        selection, starts = self.selection, self.selection.starts
        lengths = self._lengths[records]
        ranks = [np.empty(0, np.int64)]
        for length in np.unique(lengths):
            value = int(np.count_nonzero(selection.values > length))
            if value == len(selection.values) or selection.values[value] != length:
                continue
            first = selection.first + int(starts[value])
            same = selection.by_length.order[first : first + int(selection.counts[value])]  # ascending records
            places = np.searchsorted(same, records[lengths == length])
            ranks.append(starts[value] + places[places < len(same)])
        return np.concatenate(ranks).astype(np.int64)

    def _permutation(self, epoch: int) -> Permutation:
        return Permutation(self._groups, self.seed, epoch, stream=_GROUPS)

    def _rotations(self, epoch: int, groups: Int64s) -> Int64s:
        rotations = np.empty_like(groups)
        _native.draw(self.group_size, word(self.seed), word(epoch), np.ascontiguousarray(groups), rotations)
        return rotations

    def sizes(self, batches: Int64s) -> Int64s:
        """Return the number of records in batches, given by their numbers."""
        firsts = self.buckets[:, 1].astype(np.int64)
        sizes: Int64s = self.buckets[np.searchsorted(firsts, batches, side="right") - 1, 3].astype(np.int64)
        return sizes

    def native(self, epoch: int) -> _native.Plan:
        """One epoch of the plan, as the core reads it."""
        order = self.selection.by_length.order
        return _native.Plan(
            buckets=self.buckets,
            order=order,
            order_width=order.itemsize,
            first_rank=self.selection.first,
            records=self.records,
            seed=word(self.seed),
            epoch=word(epoch),
            shuffle=self._shuffle,
        )


class _BucketReader:
    def __init__(self, plan: BucketPlan, epoch: int) -> None:
        self._plan = plan
        self._epoch = epoch
        self._native = plan.native(epoch)

    def read(self, positions: Int64s) -> tuple[Int64s, Int64s]:
        batches = np.ascontiguousarray(self._plan.batches_at(self._epoch, positions.copy()))
        out = np.empty(int(self._plan.sizes(batches).sum()), np.int64)
        ends = np.empty_like(batches)
        self._native.batches(batches, out, ends)
        return out, ends
