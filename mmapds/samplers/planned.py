"""Batch samplers that plan once, for all epochs: batches under a token budget, and packs."""

from __future__ import annotations  # help() shows them as they are written

from collections.abc import Callable, Mapping, Sequence, Sized
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch.utils.data
from numpy.typing import ArrayLike, NDArray

from ..errors import OrderError, counted
from ..index.lengths import LengthOrder, read_lengths
from ..orders.basic import Chunked, Int64s, Order, Sequential, Shuffled, check_is_order, integer
from ..orders.drawn import Sorted
from ..storage.sources import StrPath
from .budget import BucketPlan, Budget, WindowPlan
from .cursor import Make, Sharding, Span
from .kinds import KindsPlan, kinds_of, limits_of_kind
from .ordered import Exclude, Excluded
from .packing import PackedChunks, PackLimits, PackPlan, PackWindowPlan
from .plan import PartPlan, Plan, Reader, Selection, pieces, select
from .ranks import World
from .resumable import ResumableSampler, refuse_injected
from .sampled import refuse_path
from .summary import Summary, of_plan

_MOST = 2**31  # size of a group in a state


class Lengths(NamedTuple):
    """The lengths that a planner sees."""

    by_length: LengthOrder
    sampled: Any
    """The dataset that has them, or else `by_length`."""
    own: NDArray[Any] | None
    """The lengths of all samples, unless a dataset has them."""

    @classmethod
    def of(cls, given: Sized | ArrayLike, targets: ArrayLike | None, cache: StrPath | None) -> Lengths:
        """Return the lengths of a dataset, or lengths that the user gave."""
        refuse_path("dataset_or_lengths", given)
        if isinstance(given, torch.utils.data.Sampler):
            raise OrderError(
                f"dataset_or_lengths: expected a dataset, found a {type(given).__name__}; give the dataset and an "
                "order=, or mix batches with MixtureBatchSampler"
            )
        by_length, is_dataset = read_lengths(given, targets, cache), hasattr(type(given), "length_order")
        own = by_length.lengths.array if targets is not None or not is_dataset else None
        return cls(by_length, given if is_dataset else by_length, own)

    def selected(
        self, limits: Any, min_length: int | None, max_length: int | None, oversize: str, world: World
    ) -> Selection:
        """Return the samples within the limits: at least one for each rank."""
        low = 0 if min_length is None else integer("min_length", min_length, 0)
        high = None if max_length is None else integer("max_length", max_length, 1)
        found = select(self.by_length, limits, low, high, oversize)
        if found.records < world.num_replicas:
            raise OrderError(
                f"num_replicas = {world.num_replicas}, expected 1 to {found.records}, the number of samples"
            )
        return found

    def in_order(self, seed: int | None) -> Order:
        """Return an order of the samples, shuffled with a seed."""
        return Sequential(len(self.by_length)) if seed is None else Shuffled(len(self.by_length), seed)

    def plan_of_kinds(
        self,
        kind: Any,
        limits_of: Callable[[int], Any],
        plan: Callable[..., Any],
        min_length: int | None,
        max_length: int | None,
        oversize: str,
    ) -> Callable[..., KindsPlan]:
        """Return what makes a plan of batches of one kind each; its arguments are those of `Plan`.

        Args:
          kind: integers, or the name of a column.
          limits_of: returns the limits of a kind.
        """
        if isinstance(kind, str) and not hasattr(self.sampled, "column"):
            raise OrderError(f"kind = {kind!r}, expected integers, or a column of a dataset of mmapds")
        values = self.sampled.column(kind) if isinstance(kind, str) else kind
        kinds, plans = kinds_of(values, len(self.by_length)), []
        for each in kinds:
            limits, own = limits_of(each.value), Lengths.of(self.by_length.lengths.at(each.records), None, None)
            try:
                selection = own.selected(limits, min_length, max_length, oversize, World(1, 0, "given"))
            except OrderError as error:
                raise OrderError(f"{error} (of kind {each.value})") from None
            plans.append(partial(plan, selection, limits))
        return partial(KindsPlan, kinds, plans, records=len(self.by_length))


def _check_kind(planner: str, drop_last: bool) -> None:
    """Raise OrderError for arguments that batches of one kind do not have."""
    if planner == "window":
        raise OrderError("planner = 'window', expected the other one with kind=, which plans each kind alone")
    if drop_last:
        raise OrderError("drop_last = True, expected False with kind=, whose steps are whole")


def _checked_order(order: Order | None, planner: str, default: Order) -> Order | None:
    """Return the order of a window planner, or else None; raise OrderError if the planner cannot follow it."""
    if order is None:
        return default if planner == "window" else None
    check_is_order(order)
    if not getattr(order, "is_bijection", True):
        raise OrderError(
            f"order: expected one with every record once an epoch, found {type(order).__name__}; give "
            "mmapds.orders.Chunked and planner='window', or mix batches with MixtureBatchSampler"
        )
    if planner != "window" and (isinstance(order, Chunked) or planner == "bucket"):
        raise OrderError(f"order: expected None with planner={planner!r}, found an order; give planner='window' too")
    if isinstance(order, Chunked) and order.lanes > 1:
        raise OrderError(f"order: expected lanes = 1 with a planner, found {order.lanes}")
    if len(order) != len(default):
        raise OrderError(f"order: expected {len(default)} positions, one for each record, found {len(order)}")
    return order


class PlannedBatchSampler(ResumableSampler, torch.utils.data.BatchSampler):
    """Batches of a plan, for the rank of this process; `TokenBudgetBatchSampler` explains the arguments."""

    _contents: Plan
    _has_equal_batches = False
    _block = 256  # batches of a rank that are read at a time
    _unit: str  # the name of the plan's batches in messages
    _limit: str  # the argument that decides how many batches there are
    _refills = False  # whether other records of a batch stand in for excluded ones, so that it keeps its size
    _multiple = 1  # parts of a split batch have a multiple of this many samples
    _latest: tuple[int, Any, Reader] | None = None  # an epoch of a plan, and the reader that looked at its steps

    def __init__(
        self,
        world: World,
        lengths: Lengths,
        new_plan: Callable[..., Any],
        exclude: Exclude | None,
        shuffle: bool,
        seed: int,
        drop_last: bool,
        group_size: int | None,
        packs_per_batch: int,
        start_step: int,
        part_size: int | None,
    ) -> None:
        if part_size is not None and drop_last:
            raise OrderError("drop_last = True, expected False with part_size=, which reads every sample")
        self._part_size = None if part_size is None else integer("part_size", part_size, 1)
        self._world, self._plan_of = world, new_plan
        self.num_replicas, self.rank = world.num_replicas, world.rank
        self.drop_last, self.shuffle, self.seed = bool(drop_last), bool(shuffle), seed
        self.sampled, self._by_length, self._lengths = lengths.sampled, lengths.by_length, lengths.own
        self._group_size = None if group_size is None else integer("group_size", group_size, 1)
        self._contents = self._new_plan(self._group_size or self.num_replicas, not self.drop_last)
        self._exclude = Excluded(exclude, self._contents.records)
        self.packs_per_batch, count = packs_per_batch, len(self._contents)
        self._sharding = Sharding(self.num_replicas, self.rank, packs_per_batch, self.drop_last)
        if self.drop_last and count < self._sharding.stride:
            raise OrderError(
                f"drop_last: expected {self._sharding.stride} {self._unit} or more, {packs_per_batch} for each "
                f"replica, found {count}; give a smaller {self._limit}, or drop_last=False"
            )
        self._cursor = self._new_cursor(start_step)
        self.sampler = _Epochs(self)

    def _new_plan(self, group_size: int, fills: bool) -> Any:
        """Return a plan with groups of this many batches."""
        plan = self._plan_of(group_size=group_size, fills=fills, seed=self.seed, shuffle=self.shuffle)
        return plan if self._part_size is None else PartPlan(plan, self._part_size)

    # ---- batches -----------------------------------------------------------------------------------------------

    def reader(self, epoch: int, plan: Plan) -> Reader:
        """Return a reader of an epoch of a plan, without excluded records."""
        excluded, read = self._exclude, plan.reader(epoch)

        def read_others(positions: Int64s) -> tuple[Int64s, Int64s]:
            out, ends = read(positions)
            if not excluded.holds(out).any():
                return out, ends
            each = zip(positions.tolist(), cut(out, ends), strict=True)
            batches = [self._replaced(plan, epoch, position, batch) for position, batch in each]
            return np.concatenate(batches), np.cumsum([len(batch) for batch in batches])

        return read_others if excluded else read

    def _replaced(self, plan: Plan, epoch: int, position: int, batch: Int64s) -> Int64s:
        """Return a batch without its excluded records; if all are excluded, the nearest batch with other records.

        With `_refills`, other records of the batch come twice instead.
        """
        read, count = plan.reader(epoch), len(plan)
        both_ways = ((position + distance, position - distance) for distance in range(count))
        for near in (near for pair in both_ways for near in pair if 0 <= near < count):
            batch = batch if near == position else read(np.array([near]))[0]
            wrong = self._exclude.holds(batch)
            kept = batch[~wrong]
            if len(kept) and self._refills:
                batch = batch.copy()
                batch[wrong] = np.resize(kept, int(wrong.sum()))
                return batch
            if len(kept):
                return kept
        raise OrderError(f"exclude: expected records to read in epoch {epoch}, found all excluded")

    def _maker(self, span: Span) -> Make:
        read, rank = self.reader(span.epoch, self._contents), self.rank
        replicas, multiple, drop_last = self.num_replicas, self._multiple, self.drop_last

        def make(first: int, positions: Int64s) -> list[list[int]]:
            last = span.remainder(first)
            if len(last) and not drop_last:
                return [_dealt(cut(*read(last)), replicas, multiple)[rank].tolist()]
            out, ends = read(positions.ravel())
            ends = ends[positions.shape[1] - 1 :: positions.shape[1]]
            records = out.tolist()  # one call for all batches is twice as fast
            return [records[begin:end] for begin, end in pairwise([0, *ends.tolist()])]

        return make

    def indices_at(self, step: int) -> list[NDArray[np.int64]]:
        """Return the records of a step of this epoch: a batch for each rank."""
        span = self._span_at(step)
        at = int(step) - span.first_step
        positions = span.remainder(at)
        if not len(positions):
            positions = span.positions(at, 1, range(self.num_replicas)).ravel()
        return _dealt(cut(*self._read(span.epoch, positions)), self.num_replicas, self._multiple)

    def _read(self, epoch: int, positions: Int64s) -> tuple[Int64s, Int64s]:
        """Read batches with the latest reader, as one of windows reads an epoch from its beginning."""
        if self._latest is None or self._latest[:2] != (epoch, self._contents):
            self._latest = epoch, self._contents, self.reader(epoch, self._contents)
        return self._latest[2](positions)

    def _batches_in(self, span: Span, steps: range) -> tuple[Int64s, Int64s]:
        stride, last = self._sharding.stride, span.remainder(steps.stop - 1)
        full = range(steps.start, steps.stop - bool(len(last)))
        batches: list[Int64s] = []
        if full:
            positions = np.arange(full.start * stride, full.stop * stride) + span.start
            batches = cut(*self._read(span.epoch, positions))
        if len(last):
            batches += _dealt(cut(*self._read(span.epoch, last)), self.num_replicas, self._multiple)
        return np.concatenate(batches), np.cumsum([0, *map(len, batches)])[:-1]

    def _sum(self, records: Int64s, begins: Int64s, column: str) -> Any:
        if column != "length":
            return super()._sum(records, begins, column)
        sizes = np.diff(np.append(begins, len(records)))
        return int(self._contents.measured(records, begins, sizes)[0].sum())

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_latest": None}  # native code has no pickle

    def limit_of(self, records: Sequence[int]) -> tuple[str, int]:
        """Return the argument that limits the batch of these records, and its most tokens."""
        plan = self._contents
        limits = plan.limits_of(records) if isinstance(plan, KindsPlan) else plan.limits
        return limits._fields[0], limits[0] * self.packs_per_batch

    def lengths_of(self, records: Sequence[int]) -> NDArray[Any]:
        """Return the lengths of records, as planned."""
        return self._by_length.lengths.at(np.array(records, np.int64))

    # ---- states and statistics ---------------------------------------------------------------------------------

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Resume from a state, with any number of replicas: the same batches follow.

        Raises:
          StateError: the state has another dataset, view, lengths, limits, seed, planner or version, or is not a state.
        """
        order = state_dict.get("order") if isinstance(state_dict, Mapping) else None
        saved, plan = order if isinstance(order, Mapping) else {}, self._contents
        group_size = self._group_size or _known_size(saved.get("group_size"), plan.group_size)
        fills = saved["fills"] if isinstance(saved.get("fills"), bool) else plan.fills
        if (group_size, fills) != (plan.group_size, plan.fills):
            plan = self._new_plan(group_size, fills)
        self._load(state_dict, plan)

    def summary(self) -> Summary:
        """Return statistics of this epoch; `print` shows them. In a long epoch, some are those of the first steps."""
        plan, stride = self._contents, self._sharding.stride
        dropped = dropped_tokens = repeated = 0
        if len(plan) % stride:
            last = cut(*plan.reader(self.epoch)(np.arange(len(plan) // stride * stride, len(plan))))
            samples = sum(map(len, last))
            if self.drop_last:
                dropped, sizes = samples, np.array([*map(len, last)])
                tokens, _, _ = plan.measured(np.concatenate(last), np.cumsum(sizes) - sizes, sizes)
                dropped_tokens = int(tokens.sum())
            else:
                repeated = sum(map(len, _dealt(last, self.num_replicas, self._multiple))) - samples
        if isinstance(plan, KindsPlan):
            repeated += plan.repeated(self.epoch)
        return of_plan(plan, self._sharding, self.epoch, dropped, dropped_tokens, repeated)


class _Epochs(torch.utils.data.Sampler[int]):
    """The attribute `sampler` that trainers expect of a batch sampler; they only set its epoch."""

    def __init__(self, batches: PlannedBatchSampler) -> None:
        self._batches = batches

    @property
    def epoch(self) -> int:
        return self._batches.epoch

    def set_epoch(self, epoch: int) -> None:
        self._batches.set_epoch(epoch)


def cut(out: Int64s, ends: Int64s) -> list[Int64s]:
    """Split the result of a reader into one array for each batch."""
    return [out[begin:end] for begin, end in pairwise([0, *ends.tolist()])]


def _dealt(batches: list[Int64s], replicas: int, multiple: int) -> list[Int64s]:
    """Return a batch for each rank from the batches of a step, in order of their positions.

    With fewer batches than ranks, large batches are split first. With fewer samples than ranks, some ranks get the same
    batch.
    """
    if len(batches) >= replicas:
        return [np.concatenate(batches[rank::replicas]) for rank in range(replicas)]
    parts = [1] * len(batches)
    for _ in range(replicas - len(batches)):
        sizes = [len(batch) / part if part < len(batch) else 0 for batch, part in zip(batches, parts, strict=True)]
        largest = int(np.argmax(sizes))
        if not sizes[largest]:
            break
        parts[largest] += 1
    found = [piece for batch, part in zip(batches, parts, strict=True) for piece in pieces(batch, part, multiple)]
    return [found[rank % len(found)] for rank in range(replicas)]


def _known_size(saved: object, own: int) -> int:
    """Return the size in a state, or the sampler's own if the state has no valid one."""
    return saved if type(saved) is int and 1 <= saved < _MOST else own


def one_of(name: str, value: str, *known: str) -> None:
    """Raise OrderError unless `value` is in `known`."""
    if value not in known:
        raise OrderError(f"{name} = {value!r}, expected {' or '.join(map(repr, known))}")


class TokenBudgetBatchSampler(PlannedBatchSampler):
    """Buckets samples of similar length into batches within a budget of tokens.

        batches = mmapds.TokenBudgetBatchSampler(ds, max_tokens=16_384, seed=7)
        print(batches.summary())

    With a length column in the index, it starts and resumes without a delay. Every sample comes exactly once an epoch;
    no batch is empty or over the budget; `len()` is exact and the same in every epoch. With the planner "bucket", the
    batches of a step cost about the same on all ranks. docs/samplers.md describes both planners.

    Args:
      dataset_or_lengths: an mmapds dataset with a column "length", or the lengths: an array or list of integers.
      max_tokens: the budget of a batch of one rank, in the unit of the lengths.
      target_lengths: lengths of the targets of encoder-decoder data; the larger length of each sample counts.
      max_batch_size: most samples in a batch.
      batch_size_multiple: batches of at least this many samples have a multiple of it.
      cost: "padded" is the longest length times the number of samples, the size of a padded tensor. "sum" is for models
        that pack samples without padding; it makes the same batches.
      quadratic_length: a sample of length L costs L + L^2 / quadratic_length, for quadratic attention.
      round_to: round lengths up to a multiple of this, as `pad_collate(pad_to_multiple_of=...)` rounds the width.
      min_length, max_length: drop samples outside these lengths.
      oversize: what to do with a sample that alone exceeds the budget: raise an "error", "drop" it, or make it a
        "single" batch over the budget.
      planner: "bucket" plans by length alone; "window" follows an order, for chunked reads or fully random batches.
      sort_window: for "window": positions of the order that a record waits for its batch, on average.
      group_size: batches of an optimizer step: replicas times accumulated batches; by default the number of replicas.
        The plan makes whole groups, and the batches of a group are alike with the planner "bucket". States have it, so
        that a job resumed with another number of replicas keeps the same sequence.
      num_replicas, rank: default to torch.distributed, then to WORLD_SIZE and RANK, then to 1 and 0.
      shuffle: make other batches in another order every epoch (see `set_epoch`); False sorts by falling length, or with
        the planner "window" keeps the order. Batches of an `orders.Sorted` always do.
      seed: chooses the orders; the same on all ranks.
      drop_last: drop a last step that has fewer batches than ranks, instead of making more batches.
      start_step: where the first iterator begins, in batches.
      order: for "window": the order to follow, with every record once an epoch (see `mmapds.orders`).
      exclude: numbers and ranges of records to skip; another record of the batch replaces each.
      order_cache: a file that caches the order of lengths given as an array, for all ranks of a machine.
      mesh: the data-parallel ranks, as in `DistributedSampler`.
      kind: a batch holds samples of one kind, an integer: the name of a column, or integers of shape (samples,). All
        batches of a group have the same one, so all ranks of a step do. A kind of few samples repeats them to fill a
        step. `max_tokens` may be a dict of budgets by kind. For batches of a fixed size, give ones as lengths.
      part_size: batches of an epoch, over all ranks. It begins where the last one ended, so every sample comes once a
        pass. A multiple of `group_size` keeps all steps whole.
      sampler: for trainers that want to shard the epoch again; only None is accepted.
    Warns:
      UserWarning: see `DistributedSampler`.
    Raises:
      OrderError: an argument or a length is out of range, no sample is left, or ranks differ, as in
        `DistributedSampler`; it is also a ValueError.
      ColumnError: the dataset has no lengths; the message has the command that adds them.
    """

    _contents: BucketPlan | WindowPlan
    _unit, _limit, _refills = "batches", "max_tokens", True

    def __init__(
        self,
        dataset_or_lengths: Sized | ArrayLike,
        max_tokens: int | Mapping[int, int],
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
        mesh: Any = None,
        part_size: int | None = None,
        kind: ArrayLike | str | None = None,
        sampler: None = None,
    ) -> None:
        one_of("cost", cost, "padded", "sum")
        one_of("oversize", oversize, "error", "drop", "single")
        one_of("planner", planner, "bucket", "window")
        integer("sort_window", sort_window, 1)
        budgets: Any = max_tokens.values() if kind is not None and isinstance(max_tokens, Mapping) else [max_tokens]
        largest = max(integer("max_tokens", each, 1) for each in budgets)
        self._budget = Budget.of(largest, max_batch_size, batch_size_multiple, quadratic_length, round_to)
        self.round_to = self._budget.round_to
        """Collate functions may round the width of a batch up to a multiple of this."""
        self._multiple = self._budget.batch_size_multiple
        refuse_injected(sampler)
        world, seed = World.of(num_replicas, rank, mesh), integer("seed", seed)
        lengths = Lengths.of(dataset_or_lengths, target_lengths, order_cache)
        self._order = _checked_order(order, planner, lengths.in_order(seed if shuffle else None))
        shuffle = shuffle and not isinstance(order, Sorted)  # whose batches come in its order
        within = min_length, max_length, oversize
        if kind is not None:
            _check_kind(planner, drop_last)
            limits_of = partial(limits_of_kind, self._budget, "max_tokens", max_tokens)
            new_plan: Callable[..., Any] = lengths.plan_of_kinds(kind, limits_of, BucketPlan, *within)
        else:
            limits = lengths.selected(self._budget, *within, world), self._budget
            new_plan = partial(BucketPlan, *limits)
            if self._order is not None:
                new_plan = partial(WindowPlan, *limits, order=self._order, sort_window=sort_window)
        shape = group_size, 1, start_step, part_size
        super().__init__(world, lengths, new_plan, exclude, shuffle, seed, drop_last, *shape)

    def _what(self) -> str:
        planner = "bucket" if self._order is None else "window"
        samples = counted(self._contents.totals().samples, "sample")
        return f"{samples}, max_tokens {self._budget.max_tokens:,}, planner {planner!r}, seed {self.seed}"


class PackingBatchSampler(PlannedBatchSampler):
    """Packs of samples that fill one row of `pack_length` tokens; a batch is one pack.

        packs = mmapds.PackingBatchSampler(tokens, pack_length=4096, seed=7)
        loader = mmapds.DataLoader(tokens, batch_sampler=packs, collate_fn=mmapds.pack_collate)

    `pack_collate` puts the samples of a batch one after another, with the bounds that attention needs. The plan is
    best-fit decreasing. With a length column in the index, the sampler starts and resumes without a delay. Every sample
    comes exactly once an epoch, whole; packs change from epoch to epoch; `len()` is exact and the same in every epoch.
    The packs of a step cost about the same on all ranks. docs/packing.md describes the plan.

    Args:
      dataset_or_lengths: an mmapds dataset with a column "length", or the lengths: an array or list of integers.
      pack_length: most tokens in a pack, in the unit of the lengths.
      max_sequences: most samples in a pack, 2 or more.
      quadratic_length: a sample of length L costs L + L^2 / quadratic_length, for packs that cost alike; by default,
        attention alone counts, L^2.
      round_to: round lengths up to a multiple of this, which divides `pack_length`. If few samples have the same
        length, plans become smaller and packs vary more.
      min_length, max_length: drop samples outside these lengths.
      oversize: what to do with a sample longer than `pack_length`: raise an "error", "drop" it, or "truncate" it. With
        "truncate" the sample counts as a whole pack, and `pack_collate(max_length=pack_length)` cuts it;
        `mmapds.DataLoader` refuses `pack_collate` without it.
      packs_per_batch: packs in a batch of one rank. A state can be loaded with any number.
      planner: "global" packs any samples together; "window" packs the samples of `mix_chunks` chunks of an order, so
        that reads stay near one another.
      group_size: packs of an optimizer step; by default the number of replicas. The plan makes whole groups of packs
        that cost about the same. States have it.
      shuffle: make other packs in another order every epoch (see `set_epoch`); False sorts by falling cost.
      drop_last: drop a partial last step. Otherwise some packs are halved, so that all groups are whole.
      order: for "window": the order to follow, an `mmapds.orders.Chunked`.
      exclude: numbers and ranges of records to skip; the nearest other pack replaces a pack with only such records.
    The other arguments, the warnings and the errors are those of `TokenBudgetBatchSampler`.
    """

    _contents: PackPlan | PackWindowPlan
    _unit, _limit = "packs", "pack_length"
    _block = 64  # fewer than for budgets: the samples of each pack lie on many pages of the order

    def __init__(
        self,
        dataset_or_lengths: Sized | ArrayLike,
        pack_length: int,
        *,
        max_sequences: int | None = None,
        quadratic_length: int | None = None,
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
        mesh: Any = None,
        part_size: int | None = None,
        kind: ArrayLike | str | None = None,
        sampler: None = None,
    ) -> None:
        one_of("oversize", oversize, "error", "drop", "truncate")
        one_of("planner", planner, "global", "window")
        self._pack = PackLimits.of(pack_length, max_sequences, round_to, quadratic_length)
        packs_per_batch = integer("packs_per_batch", packs_per_batch, 1)
        self.cut_length = self._pack.pack_length if oversize == "truncate" else None
        """Collate functions must cut samples to this length; None for no cut."""
        self.round_to = self._pack.round_to
        """Collate functions may round samples up to a multiple of this."""
        self.max_sequences = self._pack.max_sequences
        """Most samples that collate functions may put into a row; None for no limit."""
        refuse_injected(sampler)
        world, seed = World.of(num_replicas, rank, mesh), integer("seed", seed)
        lengths = Lengths.of(dataset_or_lengths, None, order_cache)
        order = order and _checked_order(order, planner, lengths.in_order(None))
        if (planner == "window" or order is not None) and not isinstance(order, Chunked):
            raise OrderError(
                f"order: expected an mmapds.orders.Chunked with planner='window', found {type(order).__name__}; give "
                "order=mmapds.orders.Chunked(ds, 4096, mix_chunks=16)"
            )
        self._order = order
        new_plan: Callable[..., Any]
        within = min_length, max_length, oversize
        if kind is not None:
            _check_kind(planner, drop_last)
            new_plan = lengths.plan_of_kinds(kind, lambda _: self._pack, PackPlan, *within)
        else:
            selection = lengths.selected(self._pack, *within, world)
            new_plan = partial(PackPlan, selection, self._pack)
            if isinstance(order, Chunked):
                new_plan = partial(PackWindowPlan, selection, PackedChunks(selection, self._pack, order))
        shape = group_size, packs_per_batch, start_step, part_size
        super().__init__(world, lengths, new_plan, exclude, shuffle, seed, drop_last, *shape)

    def _what(self) -> str:
        samples = f"{counted(self._contents.totals().samples, 'sample')} in {counted(len(self._contents), 'pack')}"
        windows = "" if self._order is None else ", planner 'window'"
        return f"{samples}, pack_length {self._pack.pack_length:,}{windows}, seed {self.seed}"
