"""Plans of an epoch as a report looks at them: batches under a budget, packs, or batches of one size."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ..dataset.dataset import Dataset
from ..errors import OrderError, did_you_mean, shortened
from ..index.lengths import read_lengths
from ..orders.basic import Int64s, Order, Shuffled, integer, records_at
from ..orders.chunked import Chunked
from ..samplers.bucket import BucketPlan, Budget
from ..samplers.lengths import Selection, select
from ..samplers.packing import PackedChunks, PackLimits, PackPlan, PackWindowPlan
from ..samplers.plan import Reader
from ..samplers.window import WindowPlan

BATCH_SIZE = 32
"""Where no plan is asked for."""

_SORT_WINDOW = 8192  # the default of TokenBudgetBatchSampler
_MANY_LENGTHS = 4096  # from which on packs are planned with rounded lengths
_ANY_SIZE = 2**31
_DIGITS = 19  # of the largest number in 63 bits


class Wanted(NamedTuple):
    """A plan that is asked for: at most one of the first three."""

    max_tokens: int | None = None
    pack: int | None = None
    batch_size: int | None = None
    chunk_size: int | None = None
    """Follow chunks of so many neighbours, instead of a shuffle of all records."""
    ranks: int = 8
    seed: int = 0

    @classmethod
    def of(cls, **options: Any) -> Wanted:
        """Return a plan of checked options.

        Raises:
          OrderError: one is out of range, or two contradict each other.
        """
        checked = {
            name: integer(name, value, 0 if name == "seed" else 1)
            for name, value in options.items()
            if value is not None
        }
        given = [name for name in cls._fields[:3] if name in checked]
        if len(given) > 1:
            raise OrderError(f"{given[1]} = {checked[given[1]]}, expected None beside {given[0]}; give one of the two")
        return cls(**checked)

    @classmethod
    def parse(cls, text: str, others: Wanted) -> Wanted:
        """Return the plan that a text such as `pack=4096,ranks=16` means; ranks and seed default to those of another.

        Raises:
          OrderError: it means none.
        """
        if not isinstance(text, str):
            raise OrderError(f"compare = {shortened(text)}, expected a plan such as 'pack=4096,ranks=16'")
        options: dict[str, Any] = {"ranks": others.ranks, "seed": others.seed}
        for part in text.split(","):
            name, _, value = (each.strip() for each in part.partition("="))
            name = name.replace("-", "_")
            if name not in cls._fields:
                known = ", ".join(cls._fields)
                raise OrderError(f"compare: expected {known}, found {name!r}{did_you_mean(name, cls._fields)}")
            if not value.isascii() or not value.isdecimal() or len(value) > _DIGITS:
                raise OrderError(f"compare: {name}: expected an integer below 2**63, found {shortened(value)}")
            options[name] = int(value)
        return cls.of(**options)

    @property
    def title(self) -> str:
        """What people call the plan."""
        if self.max_tokens is not None:
            what = f"token budget {self.max_tokens:,}"
        elif self.pack is not None:
            what = f"packs of {self.pack:,}"
        else:
            what = f"batches of {self.batch_size or BATCH_SIZE:,}"
        return f"{what}, chunks of {self.chunk_size:,}" if self.chunk_size else what


class _Batches(Protocol):
    """What a plan must answer; those of samplers do."""

    def __len__(self) -> int: ...
    def reader(self, epoch: int) -> Reader: ...


class EpochPlan(NamedTuple):
    """The batches of an epoch of all ranks. Batch `step * ranks + rank` is that of a rank in a step."""

    wanted: Wanted
    kind: str
    """"budget", "packs" or "fixed"."""
    limit: int
    """Most tokens of a batch, or its number of records where the size is fixed."""
    batches: _Batches
    records: int
    """How many the epoch has."""
    left_out: dict[str, int]
    """Records that are not planned, by the reason."""
    selection: Selection | None
    """Those that are, by their lengths; None without lengths."""

    @property
    def tokens(self) -> int | None:
        """How many tokens the epoch has; None without lengths."""
        if self.selection is None:
            return None
        return int((self.selection.values.astype(object) * self.selection.counts.astype(object)).sum())

    @property
    def lengths(self) -> Callable[[Int64s], NDArray[Any]] | None:
        """What returns the lengths of records; None without lengths."""
        return None if self.selection is None else self.selection.by_length.lengths.at

    @property
    def steps(self) -> int:
        """How many steps an epoch has; a last one that is not full counts."""
        return -(-len(self.batches) // self.wanted.ranks)


def plan_epoch(dataset: Dataset, wanted: Wanted) -> EpochPlan:
    """Return the epoch that a sampler with these options would have.

    Raises:
      OrderError: no record is left, or there are fewer than ranks.
      ColumnError: the plan needs lengths that the dataset lacks.
    """
    if wanted.max_tokens is not None:
        planned = _under_a_budget(dataset, wanted, wanted.max_tokens)
    elif wanted.pack is not None:
        planned = _in_packs(dataset, wanted, wanted.pack)
    else:
        planned = _of_one_size(dataset, wanted, wanted.batch_size or BATCH_SIZE)
    if planned.records < wanted.ranks:
        raise OrderError(f"ranks = {wanted.ranks}, expected 1 to {planned.records}, the number of records")
    return planned


def _under_a_budget(dataset: Dataset, wanted: Wanted, max_tokens: int) -> EpochPlan:
    by_length, budget = read_lengths(dataset, None, None), Budget(max_tokens, _ANY_SIZE, 1, 0)
    selection, left_out = select(by_length, budget, 1, None, "drop")
    common: dict[str, Any] = {"ranks": wanted.ranks, "seed": wanted.seed, "shuffle": True}
    plan: BucketPlan | WindowPlan
    if wanted.chunk_size is None:
        plan = BucketPlan(selection, budget, group_size=wanted.ranks, **common)
    else:
        plan = WindowPlan(selection, budget, order=_order(dataset, wanted), sort_window=_SORT_WINDOW, **common)
    found = {"empty": left_out.too_short, "over the budget": left_out.too_long}
    return EpochPlan(wanted, "budget", max_tokens, plan, selection.records, found, selection)


def _in_packs(dataset: Dataset, wanted: Wanted, length: int) -> EpochPlan:
    by_length = read_lengths(dataset, None, None)
    selection, left_out = select(by_length, PackLimits(length, None, 1), 1, None, "drop")
    shape: dict[str, Any] = {"group_size": wanted.ranks, "ranks": wanted.ranks, "seed": wanted.seed, "shuffle": True}
    plan: PackPlan | PackWindowPlan
    if wanted.chunk_size is None:
        steps = [step for step in (16, 8, 4, 2) if length % step == 0] if len(selection.values) > _MANY_LENGTHS else []
        plan = PackPlan(selection, PackLimits(length, None, steps[0] if steps else 1), **shape)
    else:
        chunks = PackedChunks(selection, PackLimits(length, None, 1), _chunks(dataset, wanted, wanted.chunk_size))
        plan = PackWindowPlan(selection, chunks, **shape)
    found = {"empty": left_out.too_short, "longer than a pack": left_out.too_long}
    return EpochPlan(wanted, "packs", length, plan, selection.records, found, selection)


def _of_one_size(dataset: Dataset, wanted: Wanted, size: int) -> EpochPlan:
    if not len(dataset):
        raise OrderError("dataset: expected one sample or more, found 0 (the dataset or the view is empty)")
    most = -(-len(dataset) // wanted.ranks)  # of a rank: a larger batch has no more, but products beyond 64 bits
    plan = _FixedBatches(_order(dataset, wanted), min(size, most), wanted.ranks)
    selection = None
    if "length" in dataset.columns and dataset.lengths.dtype.kind == "u":
        selection = Selection(read_lengths(dataset, None, None), 0, slice(None))
    return EpochPlan(wanted, "fixed", size, plan, len(dataset), {}, selection)


def _order(dataset: Dataset, wanted: Wanted) -> Order:
    if wanted.chunk_size is None:
        return Shuffled(len(dataset), wanted.seed)
    return _chunks(dataset, wanted, wanted.chunk_size)


def _chunks(dataset: Dataset, wanted: Wanted, size: int) -> Chunked:
    return Chunked(dataset, size, seed=wanted.seed)


class _FixedBatches:
    """The batches of a `DistributedBatchSampler`: those of a last step are smaller, and begin the epoch again."""

    def __init__(self, order: Order, size: int, ranks: int) -> None:
        self._order = order
        self._size = size
        self._ranks = ranks

    def __len__(self) -> int:
        return -(-len(self._order) // (self._size * self._ranks)) * self._ranks

    def reader(self, epoch: int) -> Reader:
        """Return what reads the batches of an epoch."""
        return partial(self._read, epoch)

    def _read(self, epoch: int, positions: Int64s) -> tuple[Int64s, Int64s]:
        steps, ranks = np.divmod(positions, self._ranks)
        begins = steps * (self._size * self._ranks)
        sizes = np.minimum(-(-(len(self._order) - begins) // self._ranks), self._size)
        ends = np.cumsum(sizes)
        within = np.arange(int(sizes.sum())) - np.repeat(ends - sizes, sizes)
        places = np.repeat(begins + ranks, sizes) + within * self._ranks
        return records_at(self._order, epoch, places % len(self._order)), ends
