"""Batches of samples of different length under a budget of tokens or frames: planned once, for all epochs."""

from __future__ import annotations  # help() shows them as they are written

from collections.abc import Mapping, Sized
from typing import Any

from numpy.typing import ArrayLike

from ..errors import OrderError, counted, names_its_arguments
from ..orders.basic import Order, Sequential, Shuffled, check_is_order, integer
from ..storage.sources import StrPath
from .bucket import BucketPlan
from .exclusions import Exclude
from .plan import Budget, select
from .planned import PlannedBatchSampler, known_size, one_of
from .summary import BudgetSummary, padding_and_imbalance
from .window import WindowPlan


class TokenBudgetBatchSampler(PlannedBatchSampler):
    """Batches of samples of similar length, within a budget, as many on every rank.

    With an index that has a length column it starts at once, at any step. Every sample comes exactly once an epoch; no
    batch is empty or over the budget; `len()` is exact and the same in every epoch. The batches of a step cost about
    the same on all ranks. docs/samplers.md describes both planners.

    Args:
      dataset_or_lengths: an mmapds dataset with a column "length", or the lengths: an array or list of integers.
      max_tokens: the budget of a batch of one rank, in the unit of the lengths.
      target_lengths: second lengths, of the targets of encoder-decoder data; of each sample, the larger one counts.
      max_batch_size: most samples in a batch.
      batch_size_multiple: batches of at least this many samples have a multiple of it.
      cost: "padded" is the longest length times the number of samples, the size of a padded tensor; "sum" is for models
        that pack samples without padding, and has the same bound.
      quadratic_length: a sample of length L costs L + L^2 / quadratic_length, for quadratic attention.
      round_to: a batch is as wide as its longest sample, rounded up to a multiple of this, as by
        `pad_collate(pad_to_multiple_of=...)`: lengths count as rounded up.
      min_length, max_length: samples outside are left out.
      oversize: what to do with a sample that alone exceeds the budget: raise an "error", "drop" it, or make it a
        "single" batch over the budget.
      planner: "bucket" plans by length alone; "window" follows an order, for chunked reads or fully random batches.
      sort_window: for "window": positions of the order that a record waits for its batch, on average.
      group_size: for "bucket": neighbouring batches that shuffling keeps together, by default the number of replicas.
        States have it, so that a job resumed with another number of replicas keeps the same sequence.
      num_replicas, rank: default to those of torch.distributed, else of the environment, else to 1 and 0.
      shuffle: other batches in another order every epoch (see `set_epoch`); else from the longest to the shortest.
      seed: chooses the orders; the same on all ranks.
      drop_last: leave out a last step that has fewer batches than ranks, instead of splitting its batches.
      start_step: where the first pass begins, in batches.
      order: for "window": the order to follow, with every record once an epoch (see `mmapds.orders`).
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

    _plan: BucketPlan | WindowPlan

    @names_its_arguments("mmapds.TokenBudgetBatchSampler", error=OrderError)
    def __init__(
        self,
        dataset_or_lengths: Sized | ArrayLike,
        max_tokens: int,
        *,
        target_lengths: ArrayLike | None = None,
        max_batch_size: int | None = None,
        batch_size_multiple: int = 1,
        cost: str = "padded",
        quadratic_length: int | None = None,
        round_to: int = 1,
        min_length: int | None = None,
        max_length: int | None = None,
        oversize: str = "error",
        planner: str = "bucket",
        sort_window: int = 8192,
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
        one_of("cost", cost, ("padded", "sum"))
        one_of("oversize", oversize, ("error", "drop", "single"))
        one_of("planner", planner, ("bucket", "window"))
        if planner == "bucket" and order is not None:
            raise OrderError("order: expected None with planner='bucket', found an order; give planner='window' too")
        if planner == "window" and group_size is not None:
            raise OrderError(f"group_size = {group_size!r}, expected None with planner='window', which has no groups")
        self._budget = _budget(max_tokens, max_batch_size, batch_size_multiple, quadratic_length, round_to)
        self.round_to = self._budget.round_to
        """What collate functions may round the width of a batch up to."""
        self._multiple = self._budget.multiple
        self._group_size = None if group_size is None else integer("group_size", group_size, 1)
        self._order, self._sort_window = order, integer("sort_window", sort_window, 1)
        low = 0 if min_length is None else integer("min_length", min_length, 0)
        high = None if max_length is None else integer("max_length", max_length, 1)
        super().__init__(
            dataset_or_lengths,
            target_lengths,
            num_replicas=num_replicas,
            rank=rank,
            shuffle=shuffle,
            seed=seed,
            drop_last=drop_last,
            order_cache=order_cache,
            sampler=sampler,
        )
        self._selection, self._left_out = select(self._by_length, self._budget, low, high, oversize)
        self._is_bucketed = planner == "bucket"
        plan = self._new_plan(self._group_size or self.num_replicas, self._planned_ranks)
        self._check_steps(len(plan))
        self._begin_with(plan, 1, start_step, exclude)

    def _new_plan(self, group_size: int, ranks: int) -> BucketPlan | WindowPlan:
        return self._bucket_plan(group_size, ranks) if self._is_bucketed else self._window_plan(ranks)

    def _bucket_plan(self, group_size: int, ranks: int) -> BucketPlan:
        return BucketPlan(
            self._selection,
            self._budget,
            group_size=group_size,
            ranks=ranks,
            seed=self.seed,
            shuffle=self.shuffle,
        )

    def _window_plan(self, ranks: int) -> WindowPlan:
        records, order = len(self._by_length), self._order
        if order is None:
            order = Shuffled(records, self.seed) if self.shuffle else Sequential(records)
        check_is_order(order)
        if not getattr(order, "is_bijection", True):
            raise OrderError(
                f"order: expected one with every record once an epoch, found {type(order).__name__}; give "
                "mmapds.orders.Shuffled or Chunked"
            )
        if len(order) != records:
            raise OrderError(f"order: expected {records} positions, one for each record, found {len(order)}")
        return WindowPlan(
            self._selection,
            self._budget,
            order=order,
            sort_window=self._sort_window,
            ranks=ranks,
            seed=self.seed,
            shuffle=self.shuffle,
        )

    def _check_steps(self, batches: int) -> None:
        """Raise OrderError if some rank would have nothing to do in so many batches."""
        samples = self._selection.records
        if samples < self.num_replicas:
            raise OrderError(f"num_replicas = {self.num_replicas}, expected 1 to {samples}, the number of samples")
        if self.drop_last and batches < self.num_replicas:
            raise OrderError(
                f"drop_last: expected {self.num_replicas} batches or more, one for each replica, found {batches}; give "
                "a smaller max_tokens, or drop_last=False"
            )

    def _what(self) -> str:
        planner = "bucket" if self._is_bucketed else "window"
        samples = counted(self._selection.records, "sample")
        return f"{samples}, max_tokens {self._budget.max_tokens:,}, planner {planner!r}, seed {self.seed}"

    def _plan_like(self, saved: Mapping[str, Any]) -> BucketPlan | WindowPlan:
        plan = self._plan
        ranks = known_size(saved.get("ranks"), plan.ranks)
        group_size = plan.group_size if isinstance(plan, BucketPlan) else 1
        wanted = self._group_size or known_size(saved.get("group_size"), group_size)
        same = ranks == plan.ranks and (wanted == group_size or not self._is_bucketed)
        return plan if same else self._new_plan(wanted, ranks)

    def summary(self) -> BudgetSummary:
        """Print and return statistics of this epoch; those of padding and imbalance may be of some steps only."""
        batches, dropped, repeated = self._last_step()
        values, counts = self._selection.values.astype(object), self._selection.counts.astype(object)
        padding, imbalance = padding_and_imbalance(self._plan, self.epoch, self.num_replicas)
        samples = self._selection.records - dropped
        summary = BudgetSummary(
            samples=samples,
            **self._left_out._asdict(),
            dropped=dropped,
            repeated=repeated,
            batches=batches,
            steps=len(self),
            mean_batch_size=(samples + repeated) / batches,
            padding=padding,
            fill=int((values * counts).sum()) / (len(self._plan) * self._budget.max_tokens),
            imbalance=imbalance,
        )
        print(summary)
        return summary


def _budget(
    max_tokens: int,
    max_batch_size: int | None,
    batch_size_multiple: int,
    quadratic_length: int | None,
    round_to: int,
) -> Budget:
    most = 2**31
    return Budget(
        integer("max_tokens", max_tokens, 1),
        most if max_batch_size is None else min(integer("max_batch_size", max_batch_size, 1), most),
        integer("batch_size_multiple", batch_size_multiple, 1),
        0 if quadratic_length is None else integer("quadratic_length", quadratic_length, 1),
        integer("round_to", round_to, 1),
    )
