"""Batches of samples of different length under a budget of tokens or frames: planned once, for all epochs."""

from __future__ import annotations  # help() shows them as they are written

from collections.abc import Iterator, Mapping, Sized
from itertools import pairwise
from typing import Any

import numpy as np
import torch.utils.data
from numpy.typing import ArrayLike, NDArray
from xxhash import xxh3_64

from ..errors import FormatError, OrderError
from ..orders.basic import Int64s, Order, Sequential, Shuffled, integer
from ..storage.sources import build_command
from .bucket import BucketPlan
from .epoch import EpochProgress, Exclude, Pass, Sharding
from .lengths import read_lengths
from .plan import Budget, Reader, select
from .ranks import fingerprint_of
from .resumable import ResumableSampler, refuse_injected, refuse_path
from .summary import BudgetSummary, padding_and_imbalance
from .window import WindowPlan
from .world import World

_BLOCK = 256  # batches of a rank that are read at a time


class TokenBudgetBatchSampler(ResumableSampler, torch.utils.data.BatchSampler):
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
      order: for "window": the order to follow, a bijection of the records (see `mmapds.orders`).
      exclude: steps and records that the first pass leaves out; see `DistributedSampler`.
      order_cache: a file to keep the order of lengths that are not an index's, for all ranks of a machine.
      sampler: for trainers that want to shard the epoch again; only None is accepted.
    Warns:
      UserWarning: see `DistributedSampler`.
    Raises:
      OrderError: an argument or a length is out of range, or no sample is left; ranks differ, as in
        `DistributedSampler`; it is also a ValueError.
      ColumnError: the dataset has no lengths; the message has the command that adds them.
    """

    _lengths_mark: str | None = None  # made when ranks are compared

    _has_equal_batches = False

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
        order_cache: str | None = None,
        sampler: None = None,
    ) -> None:
        refuse_injected(sampler)
        refuse_path("dataset_or_lengths", dataset_or_lengths)
        self.num_replicas, self.rank, self._assumed = World.of(num_replicas, rank)
        self.drop_last = drop_last
        self.shuffle = shuffle
        self.seed = integer("seed", seed)
        _one_of("cost", cost, ("padded", "sum"))
        _one_of("oversize", oversize, ("error", "drop", "single"))
        _one_of("planner", planner, ("bucket", "window"))
        if planner == "bucket" and order is not None:
            raise OrderError("order: expected None with planner='bucket', found an order; give planner='window' too")
        if planner == "window" and group_size is not None:
            raise OrderError(f"group_size = {group_size!r}, expected None with planner='window', which has no groups")
        self._budget = _budget(max_tokens, max_batch_size, batch_size_multiple, quadratic_length)
        self._lengths, by_length = read_lengths(dataset_or_lengths, target_lengths, order_cache)
        self._indexes: list[str] = getattr(dataset_or_lengths, "indexes", [])  # for messages
        self._order_cache = order_cache  # for messages
        self._dataset = dataset_or_lengths if self._indexes else None
        low = 0 if min_length is None else integer("min_length", min_length, 0)
        high = None if max_length is None else integer("max_length", max_length, 1)
        self._selection, self._left_out = select(by_length, self._budget, low, high, oversize)
        self._group_size = None if group_size is None else integer("group_size", group_size, 1)
        self._plan: BucketPlan | WindowPlan
        self._order, self._sort_window = order, integer("sort_window", sort_window, 1)
        ranks = 1 if drop_last else self.num_replicas  # with drop_last, what is no whole step is left out instead
        if planner == "bucket":
            self._plan = self._bucket_plan(self._group_size or self.num_replicas, ranks)
        else:
            self._plan = self._window_plan(ranks)
        self._check_steps()
        self._exclude = {kind: list(ranges) for kind, ranges in (exclude or {}).items()}
        self._progress = self._new_progress(self._plan, start_step, self._exclude)
        self.sampler = _Samples(self)

    def _bucket_plan(self, group_size: int, ranks: int) -> BucketPlan:
        return BucketPlan(
            self._selection,
            self._lengths,
            self._budget,
            group_size=group_size,
            ranks=ranks,
            seed=self.seed,
            shuffle=self.shuffle,
        )

    def _window_plan(self, ranks: int) -> WindowPlan:
        records, order = len(self._lengths), self._order
        if order is None:
            order = Shuffled(records, self.seed) if self.shuffle else Sequential(records)
        if len(order) != records:
            raise OrderError(f"order: expected {records} positions, one for each record, found {len(order)}")
        return WindowPlan(
            self._selection,
            self._lengths,
            self._budget,
            order=order,
            sort_window=self._sort_window,
            ranks=ranks,
            seed=self.seed,
            shuffle=self.shuffle,
        )

    def _check_steps(self) -> None:
        """Raise OrderError if some rank would have nothing to do."""
        samples, batches = self._selection.records, len(self._plan)
        if samples < self.num_replicas:
            raise OrderError(f"num_replicas = {self.num_replicas}, expected 1 to {samples}, the number of samples")
        if self.drop_last and batches < self.num_replicas:
            raise OrderError(
                f"drop_last: expected {self.num_replicas} batches or more, one for each replica, found {batches}; give "
                "a smaller max_tokens, or drop_last=False"
            )

    def _new_progress(self, plan: BucketPlan | WindowPlan, start_step: int, exclude: Exclude) -> EpochProgress:
        sharding = Sharding(self.num_replicas, self.rank, 1, self.drop_last)
        return EpochProgress(
            plan, sharding, start_step=start_step, exclude=exclude, assumed=self._assumed, block_size=_BLOCK
        )

    @property
    def sampled(self) -> Any:
        return self._lengths if self._dataset is None else self._dataset

    def _fingerprint(self) -> str | None:
        if self._lengths_mark is None:
            self._lengths_mark = fingerprint_of(self._dataset) or xxh3_64(self._lengths.data).hexdigest()
        return self._lengths_mark

    def _what(self) -> str:
        planner = "bucket" if isinstance(self._plan, BucketPlan) else "window"
        samples = f"{self._selection.records:,} samples"
        return f"{samples}, max_tokens {self._budget.max_tokens:,}, planner {planner!r}, seed {self.seed}"

    def __iter__(self) -> Iterator[list[int]]:
        """Return an iterator over a pass, which begins, and reads the epoch, with its first batch."""
        self._refuse_second_sharding()
        return self._batches()

    def _batches(self) -> Iterator[list[int]]:
        self._compare_ranks()
        begun = self._progress.begin()
        reader = self._plan.reader(begun.epoch)
        excluded = _ExcludedRecords(begun)

        def make(first: int, positions: Int64s) -> list[list[int]]:
            last = begun.remainder(first)
            if len(last) and not self.drop_last:
                batches = excluded.removed(_cut(*self._read(reader, last)))
                return [self._shared(batches)[self.rank].tolist()]
            out, ends = self._read(reader, positions.ravel())
            if excluded:
                return [batch.tolist() for batch in excluded.removed(_cut(out, ends))]
            records = out.tolist()  # at once, and not batch by batch: twice as fast
            return [records[begin:end] for begin, end in pairwise([0, *ends.tolist()])]

        yield from begun.map(make)

    def indices_at(self, step: int) -> list[NDArray[np.int64]]:
        """Return the records in a step of this epoch: the batch of each rank, in order of ranks."""
        found = self._progress.pass_at(step)
        last = found.remainder(step - found.first_step)
        whole = found.positions(step - found.first_step, 1, range(self.num_replicas)).ravel()
        read = self._read(self._plan.reader(found.epoch), last if len(last) else whole)
        batches = _ExcludedRecords(found).removed(_cut(*read))
        return self._shared(batches) if len(last) else batches

    def _shared(self, batches: list[Int64s]) -> list[Int64s]:
        """Return a batch for each rank, out of a last step that has fewer batches."""
        return _split(batches, self.num_replicas, self._budget.multiple)

    def _read(self, reader: Reader, positions: Int64s) -> tuple[Int64s, Int64s]:
        try:
            return reader.read(positions)
        except OrderError:
            raise
        except ValueError as error:
            if not self._indexes:
                raise FormatError(f"order_cache = {self._order_cache!r}: DAMAGED: {error}; delete it") from None
            command = build_command(self._indexes, "--force")
            raise FormatError(f"{self._indexes[0]}: DAMAGED: {error}; run: {command}") from None

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Begin the next pass where a state was saved, at any number of replicas: the same batches follow.

        Raises:
          StateError: the state belongs to other lengths, another budget, seed, planner or version, or is not a state.
        """
        plan, progress = self._plan, self._progress
        order = state_dict.get("order") if isinstance(state_dict, Mapping) else None
        saved = order if isinstance(order, Mapping) else {}
        ranks = _known(saved.get("ranks"), plan.ranks)
        if isinstance(plan, BucketPlan):
            group_size = self._group_size or _known(saved.get("group_size"), plan.group_size)
            if (group_size, ranks) != (plan.group_size, plan.ranks):
                plan = self._bucket_plan(group_size, ranks)
        elif ranks != plan.ranks:
            plan = self._window_plan(ranks)
        if plan is not self._plan:
            progress = self._new_progress(plan, 0, self._exclude)
        progress.load_state_dict(state_dict)  # an error leaves the sampler as it was
        self._plan, self._progress = plan, progress

    def summary(self) -> BudgetSummary:
        """Print and return statistics of this epoch; those of padding and imbalance may be of some steps only."""
        planned = len(self._plan)
        full, rest = divmod(planned, self.num_replicas)
        batches, dropped, repeated = full * self.num_replicas, 0, 0
        if rest:
            positions = np.arange(batches, planned, dtype=np.int64)
            last = _cut(*self._read(self._plan.reader(self.epoch), positions))
            samples = sum(map(len, last))
            if self.drop_last:
                dropped = samples
            else:
                repeated = sum(map(len, self._shared(last))) - samples
                batches += self.num_replicas
        values, counts = self._selection.values.astype(object), self._selection.counts.astype(object)
        padding, imbalance = padding_and_imbalance(self._plan, self._lengths, self.epoch, self.num_replicas)
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
            fill=int((values * counts).sum()) / (planned * self._budget.max_tokens),
            imbalance=imbalance,
        )
        print(summary)
        return summary


class _Samples(torch.utils.data.Sampler[int]):
    """The `sampler` that trainers expect of a batch sampler: has `set_epoch`, and yields the samples of its rank."""

    def __init__(self, batches: TokenBudgetBatchSampler) -> None:
        self._batches = batches

    @property
    def epoch(self) -> int:
        return self._batches.epoch

    def set_epoch(self, epoch: int) -> None:
        self._batches.set_epoch(epoch)

    def __len__(self) -> int:
        """Return about how many samples a rank has in an epoch; the exact number depends on its batches."""
        return -(-self._batches._selection.records // self._batches.num_replicas)

    def __iter__(self) -> Iterator[int]:
        for batch in self._batches:
            yield from batch


class _ExcludedRecords:
    """The records that a pass excludes. Batches that hold nothing else are not in the pass at all."""

    def __init__(self, of: Pass) -> None:
        self._ranges = of.start.records

    def __bool__(self) -> bool:
        return bool(self._ranges)

    def removed(self, batches: list[Int64s]) -> list[Int64s]:
        """Return batches without these records."""
        for begin, end in self._ranges:
            batches = [batch[(batch < begin) | (batch >= end)] for batch in batches]
        return batches


def _cut(out: Int64s, ends: Int64s) -> list[Int64s]:
    """Return the records that a reader read as one array for each batch."""
    return [out[begin:end] for begin, end in pairwise([0, *ends.tolist()])]


def _split(batches: list[Int64s], replicas: int, multiple: int) -> list[Int64s]:
    """Return a batch for each rank, where there are fewer batches than ranks.

    Those with many samples are split most. Where there are fewer samples than ranks, some ranks have the same batch.
    """
    parts = [1] * len(batches)
    for _ in range(replicas - len(batches)):
        sizes = [len(batch) / part if part < len(batch) else 0 for batch, part in zip(batches, parts, strict=True)]
        largest = int(np.argmax(sizes))
        if not sizes[largest]:
            break
        parts[largest] += 1
    found = [piece for batch, part in zip(batches, parts, strict=True) for piece in _pieces(batch, part, multiple)]
    return [found[rank % len(found)] for rank in range(replicas)]


def _pieces(batch: Int64s, parts: int, multiple: int) -> list[Int64s]:
    """Return a batch in some parts of about the same size, which are multiples where none is smaller than one."""
    whole = len(batch) - len(batch) % multiple
    rest = [batch[whole:]] if whole < len(batch) else []
    if parts > 1 and whole // multiple >= parts - len(rest):
        units = np.array_split(np.arange(0, whole, multiple), parts - len(rest))
        return [batch[unit[0] : unit[-1] + multiple] for unit in units] + rest
    return np.array_split(batch, parts)


def _budget(
    max_tokens: int, max_batch_size: int | None, batch_size_multiple: int, quadratic_length: int | None
) -> Budget:
    most = 2**31
    return Budget(
        integer("max_tokens", max_tokens, 1),
        most if max_batch_size is None else min(integer("max_batch_size", max_batch_size, 1), most),
        integer("batch_size_multiple", batch_size_multiple, 1),
        0 if quadratic_length is None else integer("quadratic_length", quadratic_length, 1),
    )


def _known(saved: object, own: int) -> int:
    """Return a size that a state has, or the sampler's own where it has none."""
    return saved if type(saved) is int and 1 <= saved < 2**31 else own


def _one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise OrderError(f"{name} = {value!r}, expected {' or '.join(map(repr, known))}")
