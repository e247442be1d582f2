"""Plans of an epoch: batches under a token budget, packs or batches of one size; and the part of it that is read."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, NamedTuple

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
from ..storage.runs import LengthOrder

BATCH_SIZE = 32
"""The default where no plan is asked for."""

_SORT_WINDOW = 8192  # the default of TokenBudgetBatchSampler
_MANY_LENGTHS = 4096  # above this, packs use rounded lengths, so that the plan stays small
_ANY_SIZE = 2**31
_LONGEST = 2**32  # tokens of a record; so the tokens of any batch fit into 63 bits
_DIGITS = 19  # of the largest number in 63 bits
_BLOCKS = 201  # odd, so that one lies in the middle
_BLOCK_RECORDS = 4096  # enough gaps for a distribution that can be told from another


class Wanted(NamedTuple):
    """The options of a plan; at most one of the first three is given."""

    max_tokens: int | None = None
    pack: int | None = None
    batch_size: int | None = None
    chunk_size: int | None = None
    """Shuffle chunks of this many neighbours, instead of all records."""
    ranks: int = 8
    seed: int = 0

    @classmethod
    def of(cls, **options: Any) -> Wanted:
        """Return a plan of checked options.

        Raises:
          OrderError: an option is out of range, or two exclude each other.
        """
        given = {name: value for name, value in options.items() if value is not None}
        checked = {name: integer(name, value, 0 if name == "seed" else 1) for name, value in given.items()}
        limits = [name for name in cls._fields[:3] if name in checked]
        if len(limits) > 1:
            name = limits[1]
            raise OrderError(f"{name} = {checked[name]}, expected None beside {limits[0]}; give one of the two")
        return cls(**checked)

    @classmethod
    def parse(cls, text: str, first: Wanted) -> Wanted:
        """Return the plan of a text such as `pack=4096,ranks=16`; ranks and seed default to those of the first plan.

        Raises:
          OrderError: the text has another form.
        """
        if not isinstance(text, str):
            raise OrderError(f"compare = {shortened(text)}, expected a plan such as 'pack=4096,ranks=16'")
        options: dict[str, Any] = {"ranks": first.ranks, "seed": first.seed}
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
        """The name of the plan for people."""
        if self.max_tokens is not None:
            what = f"token budget {self.max_tokens:,}"
        elif self.pack is not None:
            what = f"packs of {self.pack:,}"
        else:
            what = f"batches of {self.batch_size or BATCH_SIZE:,}"
        return f"{what}, chunks of {self.chunk_size:,}" if self.chunk_size else what


def wanted_plans(compare: Iterable[str] | str, **options: Any) -> list[Wanted]:
    """Return the plan of these options, and the plans to compare with it.

    Raises:
      OrderError: as `Wanted.of` and `Wanted.parse`.
    """
    first = Wanted.of(**options)
    others = compare if isinstance(compare, Iterable) and not isinstance(compare, str) else [compare]
    return [first, *(Wanted.parse(text, first) for text in others)]


class Read(NamedTuple):
    """The part of an epoch that was read: blocks of whole steps, in order of steps and ranks."""

    records: list[Int64s]
    """Of each block."""
    sizes: list[Int64s]
    """Of each block, the number of records in each batch."""
    steps: Int64s
    """The step of each batch of all blocks."""
    all_steps: int
    """Whole steps of the epoch."""
    is_whole: bool
    """Whether all of these were read."""


class EpochPlan(NamedTuple):
    """The batches of an epoch of all ranks. The batch of a rank in a step is number `step * ranks + rank`."""

    wanted: Wanted
    kind: str
    """"budget", "packs" or "fixed"."""
    limit: int
    """Most tokens of a batch, or its number of records where the size is fixed."""
    batches: Any
    """A plan of the samplers, with a length and a reader."""
    records: int
    left_out: dict[str, int]
    """How many records are not planned, by the reason."""
    selection: Selection | None
    """The planned records in order of length; None without lengths."""

    @property
    def tokens(self) -> int | None:
        """Tokens in the epoch; None without lengths."""
        if self.selection is None:
            return None
        return int(self.selection.values.astype(np.float64) @ self.selection.counts.astype(np.float64))

    @property
    def steps(self) -> int:
        """Steps in an epoch, with a last one that is not full."""
        return -(-len(self.batches) // self.wanted.ranks)

    def lengths(self, records: Int64s) -> NDArray[Any]:
        """Return the tokens of records, 2**32 at most."""
        assert self.selection is not None
        found: NDArray[Any] = np.minimum(self.selection.by_length.lengths.at(records), np.uint64(_LONGEST))
        return found.astype(np.int64)

    def read(self) -> Read:
        """Read the whole steps of epoch 0: all of a short epoch, otherwise blocks from the first step to the last.

        An epoch without a whole step is one block.
        """
        ranks, batches = self.wanted.ranks, len(self.batches)
        steps = max(batches // ranks, 1)
        size = min(max(int(min(_BLOCK_RECORDS, self.records / 64) * steps / self.records), 1), steps)
        count = min(-(-steps // size), _BLOCKS)
        is_whole = count * size >= steps
        firsts = np.arange(count) * size if is_whole else np.linspace(0, steps - size, count).astype(np.int64)
        read, records, sizes, positions = self.batches.reader(0), [], [], []
        for first in firsts.tolist():
            positions.append(np.arange(first * ranks, min(first + size, steps) * ranks, dtype=np.int64)[:batches])
            found, ends = read(positions[-1])
            records.append(found)
            sizes.append(np.diff(ends, prepend=0))
        return Read(records, sizes, np.concatenate(positions) // ranks, steps, is_whole)


def plan_epoch(dataset: Dataset, by_length: LengthOrder | None, wanted: Wanted) -> EpochPlan:
    """Return the epoch of a sampler with these options.

    Args:
      by_length: the lengths of the dataset and their order; None where it has none.
    Raises:
      OrderError: no record is left, or there are fewer records than ranks.
      ColumnError: the plan needs lengths, and the dataset has none.
    """
    limit = wanted.pack or wanted.max_tokens
    if limit is None:
        planned = _of_one_size(dataset, by_length, wanted, wanted.batch_size or BATCH_SIZE)
    else:
        by_length = read_lengths(dataset, None, None) if by_length is None else by_length
        planned = _by_length(dataset, by_length, wanted, limit)
    if planned.records < wanted.ranks:
        raise OrderError(f"ranks = {wanted.ranks}, expected 1 to {planned.records}, the number of records")
    return planned


def _by_length(dataset: Dataset, by_length: LengthOrder, wanted: Wanted, limit: int) -> EpochPlan:
    is_pack, size = wanted.pack is not None, wanted.chunk_size
    limits: Any = PackLimits(limit, None, 1) if is_pack else Budget(limit, _ANY_SIZE, 1, 0)
    selection, left_out = select(by_length, limits, 1, None, "drop")
    shape: dict[str, Any] = {"ranks": wanted.ranks, "seed": wanted.seed, "shuffle": True}
    groups = {**shape, "group_size": wanted.ranks}
    plan: Any
    if size is not None:
        chunks = Chunked(dataset, size, seed=wanted.seed)
        if is_pack:
            plan = PackWindowPlan(selection, PackedChunks(selection, limits, chunks), **groups)
        else:
            plan = WindowPlan(selection, limits, order=chunks, sort_window=_SORT_WINDOW, **shape)
    elif is_pack:
        is_many = len(selection.values) > _MANY_LENGTHS
        round_to = next((step for step in (16, 8, 4, 2) if is_many and limit % step == 0), 1)
        plan = PackPlan(selection, limits._replace(round_to=round_to), **groups)
    else:
        plan = BucketPlan(selection, limits, **groups)
    reasons = {"empty": left_out.too_short}
    reasons["longer than a pack" if is_pack else "over the budget"] = left_out.too_long
    return EpochPlan(wanted, "packs" if is_pack else "budget", limit, plan, selection.records, reasons, selection)


def _of_one_size(dataset: Dataset, by_length: LengthOrder | None, wanted: Wanted, size: int) -> EpochPlan:
    records, ranks, seed = len(dataset), wanted.ranks, wanted.seed
    order = Shuffled(records, seed) if wanted.chunk_size is None else Chunked(dataset, wanted.chunk_size, seed=seed)
    plan = _FixedBatches(order, min(size, -(-records // ranks)), ranks)  # no batch of a rank can be larger
    selection = None if by_length is None else Selection(by_length, 0, slice(None))
    return EpochPlan(wanted, "fixed", size, plan, records, {}, selection)


class _FixedBatches:
    """The batches of a `DistributedBatchSampler`: a last step is smaller, and is filled from the start of the epoch."""

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
