"""Batches of records alike in length, with other mates every epoch."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import _native
from ..orders.permutation import Permutation
from .lengths import Int64s, Selection
from .plan import _WORD, Budget, Plan

_GROUPS = 2  # stream of the permutation of groups; records and chunks have 0 and 1
_ENOUGH = 8  # batches in which the records of a bucket can change places


class BucketPlan(Plan):
    """Batches of records that are alike in length, the same ones in number and size every epoch, with other mates.

    Records in order of length are cut into buckets of whole batches. An epoch permutes the records of each bucket, and
    the groups of neighbouring batches; nothing is kept but the buckets.

    Args:
      values: u32 or u64, shape (records,): the lengths.
      group_size: batches that stay together, to be the batches of one step on all ranks.
      shuffle: False reads batches from the longest to the shortest, and the same ones every epoch.
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
        self._groups = self._batches // group_size  # whole ones

    def __len__(self) -> int:
        return self._batches

    def describe(self) -> dict[str, Any]:
        """Return what tells this plan from others."""
        what = {"order": "token budget, buckets", "shuffle": self._shuffle, "group_size": self.group_size}
        return {**what, **super().describe()}

    def reader(self, epoch: int) -> "_BucketReader":
        """Return a reader of an epoch, which takes positions in any order."""
        return _BucketReader(self, epoch)

    def batches_at(self, epoch: int, positions: Int64s) -> Int64s:
        """Return which batch of the plan stands at each position."""
        if not self._shuffle:
            return positions
        groups, places = np.divmod(positions, self.group_size)
        whole = groups < self._groups
        if self._groups:
            groups[whole] = self._permutation(epoch)[groups[whole]]
        # In its group every batch takes turns, so that no rank has the longest all the time.
        sizes = np.where(whole, self.group_size, max(self._batches % self.group_size, 1))
        batches: Int64s = groups * self.group_size + (places + self._turns(epoch, groups)) % sizes
        return batches

    def positions_of_batches(self, epoch: int, batches: Int64s) -> Int64s:
        """Return where batches of the plan stand."""
        if not self._shuffle:
            return batches
        groups, places = np.divmod(batches, self.group_size)
        whole = groups < self._groups
        sizes = np.where(whole, self.group_size, max(self._batches % self.group_size, 1))
        places = (places - self._turns(epoch, groups)) % sizes
        if self._groups:
            groups[whole] = self._permutation(epoch).inverse(groups[whole])
        positions: Int64s = groups * self.group_size + places
        return positions

    def positions_of(self, epoch: int, records: Int64s) -> Int64s:
        """Return where the batches stand that hold nothing but `records`, which are ascending."""
        ranks = self._ranks(records)
        batches = np.empty_like(ranks)
        self.native(epoch).find(ranks, batches)
        found, counts = np.unique(batches, return_counts=True)
        return self.positions_of_batches(epoch, found[counts == self.sizes(found)])

    def _ranks(self, records: Int64s) -> Int64s:
        """Where records stand in the planned part of the length order, those that do: a search for each length."""
        selection, starts = self.selection, self.selection.starts
        lengths = self._lengths[records]
        ranks = [np.empty(0, np.int64)]
        for length in np.unique(lengths):
            value = int(np.count_nonzero(selection.values > length))
            if value == len(selection.values) or selection.values[value] != length:
                continue
            first = selection.first + int(starts[value])
            run = selection.by_length.order[first : first + int(selection.counts[value])]
            places = np.searchsorted(run, records[lengths == length])
            ranks.append(starts[value] + places[places < len(run)])
        return np.concatenate(ranks).astype(np.int64)

    def _permutation(self, epoch: int) -> Permutation:
        return Permutation(self._groups, self.seed, epoch, stream=_GROUPS)

    def _turns(self, epoch: int, groups: Int64s) -> Int64s:
        turns = np.empty_like(groups)
        _native.draw(self.group_size, self.seed & _WORD, epoch & _WORD, np.ascontiguousarray(groups), turns)
        return turns

    def sizes(self, batches: Int64s) -> Int64s:
        """Records in batches of the plan."""
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
            seed=self.seed & _WORD,
            epoch=epoch & _WORD,
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
