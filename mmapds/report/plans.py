"""Plans of an epoch: batches under a token budget, packs or batches of one size; and the blocks of it that are read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..dataset.dataset import Dataset
from ..errors import OrderError, did_you_mean, shortened
from ..index.lengths import read_lengths
from ..orders.basic import Int64s, Order, Shuffled, integer
from ..orders.chunked import Chunked
from ..samplers.bucket import BucketPlan, Budget
from ..samplers.lengths import Selection, select
from ..samplers.packing import PackedChunks, PackLimits, PackPlan, PackWindowPlan
from ..samplers.plan import Plan, Reader
from ..samplers.window import WindowPlan
from ..storage.runs import LengthOrder

BATCH_SIZE = 32
"""The default where no plan is asked for."""

_SORT_WINDOW, _ANY_SIZE = 8192, 2**31  # defaults of TokenBudgetBatchSampler
_LONGEST = 2**32  # tokens of a record; so the tokens of any batch fit into 63 bits
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
        options: dict[str, Any] = {"ranks": first.ranks, "seed": first.seed}
        for part in text.split(","):
            name, _, value = (each.strip() for each in part.partition("="))
            name = name.replace("-", "_")
            if name not in cls._fields:
                known = ", ".join(cls._fields)
                raise OrderError(f"compare: expected {known}, found {name!r}{did_you_mean(name, cls._fields)}")
            try:
                options[name] = int(value)
            except ValueError:
                raise OrderError(f"compare: {name}: expected an integer, found {shortened(value)}") from None
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
    return [first, *(Wanted.parse(text, first) for text in ([compare] if isinstance(compare, str) else compare))]


class Blocks(NamedTuple):
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


class Epoch(NamedTuple):
    """The batches of an epoch of all ranks. The batch of a rank in a step is number `step * ranks + rank`."""

    wanted: Wanted
    kind: str
    """"budget", "packs" or "fixed"."""
    limit: int
    """Most tokens of a batch, or its number of records where the size is fixed."""
    batches: int
    reader: Reader
    """Reads batches by their numbers."""
    records: int
    left_out: dict[str, int]
    """How many records are not planned, by the reason."""
    selection: Selection | None
    """The planned records in order of length; None without lengths."""

    def lengths(self, records: Int64s) -> NDArray[Any]:
        """Return the tokens of records, 2**32 at most."""
        assert self.selection is not None
        found: NDArray[Any] = np.minimum(self.selection.by_length.lengths.at(records), np.uint64(_LONGEST))
        return found.astype(np.int64)

    def read(self) -> Blocks:
        """Read the whole steps of epoch 0: all of a short epoch, otherwise blocks from the first step to the last.

        An epoch without a whole step is one block.
        """
        ranks, steps = self.wanted.ranks, max(self.batches // self.wanted.ranks, 1)
        size = min(max(int(min(_BLOCK_RECORDS, self.records / 64) * steps / self.records), 1), steps)
        count = min(-(-steps // size), _BLOCKS)
        is_whole = count * size >= steps
        firsts = np.arange(count) * size if is_whole else np.linspace(0, steps - size, count).astype(np.int64)
        records, sizes, numbers = [], [], []
        for first in firsts.tolist():
            numbers.append(np.arange(first * ranks, min(min(first + size, steps) * ranks, self.batches)))
            found, ends = self.reader(numbers[-1])
            records.append(found)
            sizes.append(np.diff(ends, prepend=0))
        return Blocks(records, sizes, np.concatenate(numbers) // ranks, steps, is_whole)


def plan_epoch(dataset: Dataset, by_length: LengthOrder | None, wanted: Wanted) -> Epoch:
    """Return the epoch of a sampler with these options.

    Args:
      by_length: the lengths of the dataset and their order; None where it has none.
    Raises:
      OrderError: no record is left, or there are fewer records than ranks.
      ColumnError: the plan needs lengths, and the dataset has none.
    """
    limit, chunk_size, seed = wanted.pack or wanted.max_tokens, wanted.chunk_size, wanted.seed
    chunks = None if chunk_size is None else Chunked(dataset, chunk_size, seed=seed)
    if limit is None:
        size, records = wanted.batch_size or BATCH_SIZE, len(dataset)
        batches, reader = _of_one_size(chunks or Shuffled(records, seed), size, wanted.ranks)
        selection = None if by_length is None else Selection(by_length, 0, slice(None))
        planned = Epoch(wanted, "fixed", size, batches, reader, records, {}, selection)
    else:
        by_length = read_lengths(dataset, None, None) if by_length is None else by_length
        planned = _by_length(by_length, wanted, limit, chunks)
    if planned.records < wanted.ranks:
        raise OrderError(f"ranks = {wanted.ranks}, expected 1 to {planned.records}, the number of records")
    return planned


def _by_length(by_length: LengthOrder, wanted: Wanted, limit: int, chunks: Chunked | None) -> Epoch:
    is_pack = wanted.pack is not None
    limits: Any = PackLimits(limit, None, 1) if is_pack else Budget(limit, _ANY_SIZE, 1, 0)
    selection, left_out = select(by_length, limits, 1, None, "drop")
    shape: dict[str, Any] = {"ranks": wanted.ranks, "seed": wanted.seed, "shuffle": True}
    plan: Plan
    if chunks is not None and not is_pack:
        plan = WindowPlan(selection, limits, order=chunks, sort_window=_SORT_WINDOW, **shape)
    elif chunks is not None:
        plan = PackWindowPlan(selection, PackedChunks(selection, limits, chunks), group_size=wanted.ranks, **shape)
    else:
        plan = (PackPlan if is_pack else BucketPlan)(selection, limits, group_size=wanted.ranks, **shape)
    kind, reason = ("packs", "longer than a pack") if is_pack else ("budget", "over the budget")
    reasons = {"empty": left_out.too_short, reason: left_out.too_long}
    return Epoch(wanted, kind, limit, len(plan), plan.reader(0), selection.records, reasons, selection)


def _of_one_size(order: Order, size: int, ranks: int) -> tuple[int, Reader]:
    """Return how many batches a `DistributedBatchSampler` has, and what reads them.

    Batches of a last step are smaller, and filled from the start of the epoch.
    """
    records = len(order)
    size = min(size, -(-records // ranks))  # no batch of a rank can be larger

    def read(batches: Int64s) -> tuple[Int64s, Int64s]:
        steps, rank = np.divmod(batches, ranks)
        begins = steps * size * ranks
        sizes = np.minimum(-(-(records - begins) // ranks), size)
        ends = np.cumsum(sizes)
        within = np.arange(int(ends[-1])) - np.repeat(ends - sizes, sizes)
        return order.at(0, (np.repeat(begins + rank, sizes) + within * ranks) % records), ends

    return -(-records // (size * ranks)) * ranks, read
