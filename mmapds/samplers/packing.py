"""Batches of sequences packed into rows of one length: planned once, for all epochs."""

from __future__ import annotations  # help() shows them as they are written

from collections.abc import Mapping, Sized
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..errors import OrderError, counted, names_its_arguments
from ..orders.basic import Order, integer
from ..orders.chunked import Chunked
from ..storage.sources import StrPath
from .exclusions import Exclude
from .pack_plan import PackLimits, PackPlan, select_packed
from .pack_windows import PackedChunks, PackWindowPlan
from .planned import PlannedBatchSampler, known_size, one_of
from .summary import PackingSummary, fullest_and_imbalance


class PackingBatchSampler(PlannedBatchSampler):
    """Packs: samples that together fill one row of `pack_length` tokens; a batch is one of them.

    `pack_collate` lays the samples of a batch one after another, with what attention needs to keep them apart. Packs
    are those of best-fit decreasing. With an index that has a length column the sampler starts at once, at any step.
    Every sample comes exactly once an epoch, whole, with other mates than the epoch before; `len()` is exact and the
    same in every epoch. The packs of a step cost about the same on all ranks. docs/packing.md describes the plan.

    Args:
      dataset_or_lengths: an mmapds dataset with a column "length", or the lengths: an array or list of integers.
      pack_length: most tokens in a pack, in the unit of the lengths.
      max_sequences: most samples in a pack, 2 or more.
      round_to: a sample takes its length rounded up to a multiple of this, which divides `pack_length`. It makes plans
        smaller and mates more various where few samples have the same length.
      min_length, max_length: samples outside are left out.
      oversize: what to do with a sample longer than `pack_length`: raise an "error", "drop" it, or "truncate" it, which
        means to count it as a whole pack, and leaves the cut to `pack_collate(max_length=pack_length)`, without which
        `mmapds.DataLoader` refuses it.
      packs_per_batch: packs in a batch of one rank. States hold for any number.
      planner: "global" packs any samples together; "window" those of each mix of the chunks of an order, so that reads
        stay near one another.
      group_size: neighbouring packs that shuffling keeps together, by default the number of replicas. States have it.
      num_replicas, rank: default to those of torch.distributed, else of the environment, else to 1 and 0.
      shuffle: other packs in another order every epoch (see `set_epoch`); else from the largest cost to the smallest.
      seed: chooses the orders; the same on all ranks.
      drop_last: leave out a last step that is not full. Otherwise some packs are halved, so that every rank has packs
        in every step.
      start_step: where the first pass begins, in batches.
      order: for "window": the order to follow, an `mmapds.orders.Chunked`.
      exclude: steps that the first pass leaves out, and records that all do; see `DistributedSampler`.
      order_cache: a file to keep the order of lengths that are not an index's, for all ranks of a machine.
      sampler: for trainers that want to shard the epoch again; only None is accepted.
    Warns:
      UserWarning: see `DistributedSampler`.
    Raises:
      OrderError: an argument or a length is out of range, or no sample is left; ranks differ, as in
        `DistributedSampler`; it is also a ValueError.
      ColumnError: the dataset has no lengths; the message has the command that adds them.
    """

    _plan: PackPlan | PackWindowPlan
    _block = 64  # fewer than elsewhere: the samples of each pack lie on many pages of the order

    @names_its_arguments("mmapds.PackingBatchSampler", error=OrderError)
    def __init__(
        self,
        dataset_or_lengths: Sized | ArrayLike,
        pack_length: int,
        *,
        max_sequences: int | None = None,
        round_to: int = 1,
        min_length: int | None = None,
        max_length: int | None = None,
        oversize: str = "error",
        packs_per_batch: int = 1,
        planner: str = "global",
        group_size: int | None = None,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        start_step: int = 0,
        order: Order | None = None,
        exclude: Exclude | None = None,
        order_cache: StrPath | None = None,
        sampler: None = None,
    ) -> None:
        one_of("oversize", oversize, ("error", "drop", "truncate"))
        one_of("planner", planner, ("global", "window"))
        _check_order(planner, order)
        self._limits = _limits(pack_length, max_sequences, round_to)
        packs_per_batch = integer("packs_per_batch", packs_per_batch, 1)
        self.cut_length = self._limits.pack_length if oversize == "truncate" else None
        """What collate functions have to cut samples to, if anything."""
        self.round_to = self._limits.round_to
        """What collate functions may round samples up to."""
        self.max_sequences = self._limits.max_sequences
        """How many samples collate functions may put into a row, if that is limited."""
        self._group_size = None if group_size is None else integer("group_size", group_size, 1)
        low = 0 if min_length is None else integer("min_length", min_length, 0)
        high = None if max_length is None else integer("max_length", max_length, 1)
        super().__init__(
            dataset_or_lengths,
            None,
            num_replicas=num_replicas,
            rank=rank,
            shuffle=shuffle,
            seed=seed,
            drop_last=drop_last,
            order_cache=order_cache,
            sampler=sampler,
        )
        self._selection, self._left_out = select_packed(self._by_length, self._limits.pack_length, low, high, oversize)
        self._chunks = self._packed_chunks(order) if isinstance(order, Chunked) else None
        plan = self._new_plan(self._group_size or self.num_replicas, self._planned_ranks)
        self._check_steps(len(plan), packs_per_batch)
        self._begin_with(plan, packs_per_batch, start_step, exclude)

    def _packed_chunks(self, order: Chunked) -> PackedChunks:
        records = len(self._by_length)
        if len(order) != records:
            raise OrderError(f"order: expected {records} positions, one for each record, found {len(order)}")
        return PackedChunks(self._selection, self._limits, order)

    def _new_plan(self, group_size: int, ranks: int) -> PackPlan | PackWindowPlan:
        sizes = {"group_size": group_size, "ranks": ranks}
        if self._chunks is None:
            return PackPlan(self._selection, self._limits, **sizes, seed=self.seed, shuffle=self.shuffle)
        return PackWindowPlan(self._selection, self._chunks, **sizes, seed=self.seed, shuffle=self.shuffle)

    def _check_steps(self, packs: int, packs_per_batch: int) -> None:
        """Raise OrderError if some rank would have nothing to do in so many packs."""
        samples, needed = self._selection.records, self.num_replicas * packs_per_batch
        if samples < self.num_replicas:
            raise OrderError(f"num_replicas = {self.num_replicas}, expected 1 to {samples}, the number of samples")
        if self.drop_last and packs < needed:
            raise OrderError(
                f"drop_last: expected {needed} packs or more, {packs_per_batch} for each replica, found {packs}; give "
                "a smaller pack_length, or drop_last=False"
            )

    def _what(self) -> str:
        samples = f"{counted(self._selection.records, 'sample')} in {counted(len(self._plan), 'pack')}"
        windows = "" if self._chunks is None else ", planner 'window'"
        return f"{samples}, pack_length {self._limits.pack_length:,}{windows}, seed {self.seed}"

    def _plan_like(self, saved: Mapping[str, Any]) -> PackPlan | PackWindowPlan:
        plan = self._plan
        group_size = self._group_size or known_size(saved.get("group_size"), plan.group_size)
        ranks = known_size(saved.get("ranks"), plan.ranks)
        if (group_size, ranks) == (plan.group_size, plan.ranks):
            return plan
        return self._new_plan(group_size, ranks)

    def summary(self) -> PackingSummary:
        """Print and return statistics of this epoch; the imbalance may be that of some steps only."""
        plan, limits = self._plan, self._limits
        batches, dropped, repeated = self._last_step()
        most, imbalance = fullest_and_imbalance(plan, self.epoch, self._batch_size, self.num_replicas)
        values = np.minimum(self._selection.values, np.uint64(limits.pack_length)).astype(object)
        tokens = int((values * self._selection.counts.astype(object)).sum())
        summary = PackingSummary(
            samples=self._selection.records - dropped,
            **self._left_out._asdict(),
            dropped=dropped,
            repeated=repeated,
            packs=len(plan),
            batches=batches,
            steps=len(self),
            fill=tokens / (len(plan) * limits.pack_length),
            mean_sequences=self._selection.records / len(plan),
            most_sequences=most,
            imbalance=imbalance,
        )
        print(summary)
        return summary


def _check_order(planner: str, order: Order | None) -> None:
    """Refuse an order that does not go with the planner."""
    found = "None" if order is None else type(order).__name__
    if planner == "global" and order is not None:
        raise OrderError("order: expected None with planner='global', found an order; give planner='window' too")
    if planner == "window" and not isinstance(order, Chunked):
        raise OrderError(
            f"order: expected an mmapds.orders.Chunked with planner='window', found {found}; give "
            "order=mmapds.orders.Chunked(ds, 4096, mix_chunks=16)"
        )


def _limits(pack_length: int, max_sequences: int | None, round_to: int) -> PackLimits:
    pack_length = integer("pack_length", pack_length, 1)
    round_to = integer("round_to", round_to, 1)
    if pack_length % round_to:
        raise OrderError(f"round_to = {round_to}, expected a divisor of pack_length = {pack_length}")
    if max_sequences is not None:
        max_sequences = integer("max_sequences", max_sequences, 1)
    if max_sequences == 1:
        raise OrderError("max_sequences = 1, expected 2 or more; use DistributedSampler for single samples")
    return PackLimits(pack_length, max_sequences, round_to)
