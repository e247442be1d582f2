"""Plans of an epoch: batches under a token budget, packs or batches of one size; and the steps of it that are read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from ..dataset.dataset import Dataset
from ..errors import OrderError, did_you_mean, shortened
from ..index.lengths import read_lengths
from ..orders.basic import Chunked, Int64s, Order, Shuffled, integer
from ..samplers.bucket import BucketPlan, Budget
from ..samplers.cursor import Sharding, Span
from ..samplers.packing import PackedChunks, PackLimits, PackPlan, PackWindowPlan
from ..samplers.plan import Plan, Reader, Selection, select
from ..samplers.window import WindowPlan
from ..storage.runs import LengthOrder

BATCH_SIZE = 32
"""The default where no plan is asked for."""

_SORT_WINDOW, _ANY_SIZE = 8192, 2**31  # defaults of TokenBudgetBatchSampler
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
        """Return a plan of checked options; raise OrderError if one is out of range, or two exclude each other."""
        given = {name: value for name, value in options.items() if value is not None}
        checked = {name: integer(name, value, 0 if name == "seed" else 1) for name, value in given.items()}
        limits = [name for name in cls._fields[:3] if name in checked]
        if len(limits) > 1:
            name = limits[1]
            raise OrderError(f"{name} = {checked[name]}, expected None beside {limits[0]}; give one of the two")
        return cls(**checked)

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
    """Return the plan of these options, and the plans to compare with it; raise OrderError as `Wanted.of` does."""
    first = Wanted.of(**options)
    return [first, *(_parsed(text, first) for text in ([compare] if isinstance(compare, str) else compare))]


def _parsed(text: str, first: Wanted) -> Wanted:
    """Return the plan of a text such as `pack=4096,ranks=16`; ranks and seed default to those of the first plan."""
    options: dict[str, Any] = {"ranks": first.ranks, "seed": first.seed}
    for part in text.split(","):
        name, _, value = (each.strip() for each in part.partition("="))
        name = name.replace("-", "_")
        if name not in Wanted._fields:
            known = ", ".join(Wanted._fields)
            raise OrderError(f"compare: expected {known}, found {name!r}{did_you_mean(name, Wanted._fields)}")
        try:
            options[name] = int(value)
        except ValueError:
            raise OrderError(f"compare: {name}: expected an integer, found {shortened(value)}") from None
    return Wanted.of(**options)


class Epoch(NamedTuple):
    """Epoch 0 of all ranks, and what was read of it: blocks of whole steps, in order of steps and ranks."""

    wanted: Wanted
    kind: str
    """"budget", "packs" or "fixed"."""
    limit: int
    """Most tokens of a batch, or its number of records where the size is fixed."""
    batches: int
    records: int
    left_out: dict[str, int]
    """How many records are not planned, by the reason."""
    selection: Selection | None
    """The planned records in order of length; None without lengths."""
    whole_steps: int
    """Those with a batch on every rank; an epoch without any counts as one."""
    is_whole: bool
    """Whether all of these were read."""
    steps: Int64s
    """The step of each batch that was read."""
    sizes: list[Int64s]
    """Of each block, the number of records in each batch."""
    blocks: list[Int64s]
    """The records of each block."""


def plan_epoch(dataset: Dataset, by_length: LengthOrder | None, wanted: Wanted) -> Epoch:
    """Return the epoch of a sampler with these options. Of a long one, blocks from the first step to the last are read.

    Args:
      by_length: the lengths of the dataset and their order; None where it has none.
    Raises:
      OrderError: no record is left, or there are fewer records than ranks.
      ColumnError: the plan needs lengths, and the dataset has none.
    """
    ranks, limit, records = wanted.ranks, wanted.pack or wanted.max_tokens, len(dataset)
    left_out: dict[str, int] = {}
    chunks = None if wanted.chunk_size is None else Chunked(dataset, wanted.chunk_size, seed=wanted.seed)
    if limit is None:
        kind, limit = "fixed", wanted.batch_size or BATCH_SIZE
        batches, reader = _of_one_size(chunks or Shuffled(records, wanted.seed), limit, ranks)
        selection = None if by_length is None else Selection(by_length, 0, slice(None))
    else:
        kind = "packs" if wanted.pack else "budget"
        plan, left_out = _by_length(by_length or read_lengths(dataset, None, None), wanted, limit, chunks)
        batches, reader, selection, records = len(plan), plan.reader(0), plan.selection, plan.selection.records
    if records < ranks:
        raise OrderError(f"ranks = {ranks}, expected 1 to {records}, the number of records")
    steps = max(batches // ranks, 1)
    size = min(max(int(min(_BLOCK_RECORDS, records / 64) * steps / records), 1), steps)
    count = min(-(-steps // size), _BLOCKS)
    is_whole = count * size >= steps
    firsts = np.arange(count) * size if is_whole else np.linspace(0, steps - size, count).astype(np.int64)
    numbers = [np.arange(at * ranks, min(min(at + size, steps) * ranks, batches)) for at in firsts.tolist()]
    blocks, ends = zip(*map(reader, numbers), strict=True)
    sizes = [np.diff(each, prepend=0) for each in ends]
    read = (is_whole, np.concatenate(numbers) // ranks, sizes, list(blocks))
    return Epoch(wanted, kind, limit, batches, records, left_out, selection, steps, *read)


def _by_length(
    by_length: LengthOrder, wanted: Wanted, limit: int, chunks: Chunked | None
) -> tuple[Plan, dict[str, int]]:
    """Return the plan of budgets or packs, and how many records it leaves out, by the reason."""
    limits: Any = PackLimits(limit, None, 1) if wanted.pack else Budget(limit, _ANY_SIZE, 1, 0)
    selection, left_out = select(by_length, limits, 1, None, "drop")
    shape: dict[str, Any] = {"ranks": wanted.ranks, "seed": wanted.seed, "shuffle": True}
    reasons = {
        "empty": left_out.too_short,
        "longer than a pack" if wanted.pack else "over the budget": left_out.too_long,
    }
    if chunks is not None and not wanted.pack:
        return WindowPlan(selection, limits, order=chunks, sort_window=_SORT_WINDOW, **shape), reasons
    shape["group_size"] = wanted.ranks
    if chunks is not None:
        return PackWindowPlan(selection, PackedChunks(selection, limits, chunks), **shape), reasons
    return (PackPlan if wanted.pack else BucketPlan)(selection, limits, **shape), reasons


def _of_one_size(order: Order, size: int, ranks: int) -> tuple[int, Reader]:
    """Return how many batches a `DistributedBatchSampler` has, and what reads whole steps of them."""
    span = Span(Sharding(ranks, 0, size, drop_last=False), len(order), 0, 0)

    def read(batches: Int64s) -> tuple[Int64s, Int64s]:
        first, last = int(batches[0]) // ranks, int(batches[-1]) // ranks
        # The last step of the epoch may be smaller than the others, so it is read by itself.
        steps = [span.positions(first, last - first, range(ranks)), span.positions(last, 1, range(ranks))]
        found = order.at(0, np.concatenate([each.transpose(0, 2, 1).ravel() for each in steps]))
        return found, np.cumsum(np.repeat([each.shape[1] for each in steps], [len(each) * ranks for each in steps]))

    return span.steps * ranks, read
