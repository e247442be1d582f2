"""The numbers of a report: lengths, and batches, shuffle and reads of a plan, as plain dicts that JSON can hold.

Distributions are `values`, the distinct numbers, rising, and `counts`, how often each occurs.
"""

import os
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from ..dataset.catalog import Location
from ..dataset.dataset import Dataset
from ..errors import OrderError, shortened
from ..index.lengths import LengthOrder, read_lengths
from ..orders.basic import Chunked, Int64s, Mixture, Order, Shuffled, integer
from ..orders.schedule import Course, Segment
from ..samplers.budget import BucketPlan, Budget, WindowPlan
from ..samplers.packing import PackedChunks, PackLimits, PackPlan, PackWindowPlan
from ..samplers.plan import Plan, Reader, Selection, select

Array = NDArray[Any]
Facts = dict[str, Any]

BATCH_SIZE = 32  # the default where no plan is asked for
PAGE = 4096
QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 0.999)

_SORT_WINDOW, _ANY_SIZE = 8192, 2**31  # defaults of TokenBudgetBatchSampler
_BLOCKS = 201  # odd, so that one lies in the middle
_BLOCK_RECORDS = 4096  # enough gaps for a distribution that can be told from another
_BINS = 40
_WIDE = 12  # from this ratio of the 99.9th to the 1st percentile, the widths of bins grow with the numbers
_BUDGETS, _BUDGET_CURVE = 8, 60
_LONGEST = 2**32  # tokens of a record; so the tokens of any batch fit into 63 bits
_STRIP = 48  # steps whose costs are given
_COLUMNS, _ROWS = 48, 32  # of the picture of an epoch and a dataset
_GAPS = np.linspace(0, 6, 61)
_ONCE_IN_20 = 1.36  # Kolmogorov: the distance of k random gaps exceeds this over the root of k once in 20 times
_STEPS, _RECORDS = 24, 60_000  # whose pages are counted


class Wanted(NamedTuple):
    """The options of a plan; at most one of the first three is given."""

    max_tokens: int | None = None
    pack: int | None = None
    batch_size: int | None = None
    chunk_size: int | Literal["block"] | None = None  # shuffle chunks of this many neighbours, instead of all records
    mix_chunks: int | None = None  # for chunks alone; `with_defaults` makes it 16
    ranks: int = 8
    seed: int = 0
    mix: tuple[float, ...] | None = None  # shares of the datasets of a mixture

    @classmethod
    def of(cls, mix: tuple[float, ...] | None = None, **options: Any) -> Self:
        """Return a plan of checked options; raise OrderError if one is out of range, or two exclude each other."""
        given = {name: value for name, value in options.items() if value is not None}
        checked = {name: integer(name, value, 0 if name == "seed" else 1) for name, value in given.items()}
        limits = [name for name in cls._fields[:3] if name in checked]
        if len(limits) > 1:
            raise OrderError(f"{limits[1]} = {checked[limits[1]]}, expected None beside {limits[0]}")
        if mix is not None and "chunk_size" in checked:
            raise OrderError(f"chunk_size = {checked['chunk_size']}, expected None beside mix")
        return cls(**checked, mix=mix)

    def with_defaults(self) -> Self:
        """Return the same plan with a number of mixed chunks; raise OrderError if it has one without chunks."""
        if self.chunk_size is None and self.mix_chunks is not None:
            raise OrderError(f"mix_chunks = {self.mix_chunks}, expected chunk_size with it")
        return self._replace(mix_chunks=self.mix_chunks or 16)

    @property
    def kind(self) -> str:
        """What its batches are."""
        return "budget" if self.max_tokens is not None else "packs" if self.pack is not None else "fixed"

    @property
    def limit(self) -> int:
        """Most tokens of a batch, or its number of records where the size is fixed."""
        return self.max_tokens or self.pack or self.batch_size or BATCH_SIZE

    @property
    def title(self) -> str:
        """The name of the plan for people."""
        what = {"budget": "token budget", "packs": "packs of", "fixed": "batches of"}[self.kind]
        chunks = "blocks" if self.chunk_size == "block" else f"{self.chunk_size:,}" if self.chunk_size else None
        mixed = "" if self.mix is None else f", mixed {':'.join(f'{each:g}' for each in self.mix)}"
        return f"{what} {self.limit:,}" + (f", chunks of {chunks}" if chunks else "") + mixed


def wanted_plans(compare: Iterable[str] | str, **options: Any) -> list[Wanted]:
    """Return the plan of these options, and plans to compare with it, such as `pack=4096,ranks=16`."""
    plans = [Wanted.of(**options)]
    for text in [compare] if isinstance(compare, str) else compare:
        others: dict[str, Any] = {"ranks": plans[0].ranks, "seed": plans[0].seed, "mix": plans[0].mix}
        for part in text.split(","):
            name, _, value = (each.strip() for each in part.replace("-", "_").partition("="))
            if name not in Wanted._fields[:-1] or not value.isdecimal() or len(value) > 19:
                known = ", ".join(Wanted._fields[:-1])
                raise OrderError(f"compare = {shortened(part)}, expected NAME=NUMBER with one of {known}")
            others[name] = int(value)
        plans.append(Wanted.of(**others))
    return plans


class Member(NamedTuple):
    """A dataset of a mixture."""

    name: str
    dataset: Dataset
    by_length: LengthOrder | None  # its lengths and their order; None where it has none


def plan_facts(
    dataset: Dataset,
    by_length: LengthOrder | None,
    wanted: Wanted,
    record_bytes: float | None,
    members: Sequence[Member] = (),
) -> Facts:
    """Return what a plan makes of a dataset.

    Args:
      record_bytes: the mean of a record; None says nothing of reads.
      members: the datasets of a mixture, which together are `dataset`.
    """
    epoch = plan_epoch(dataset, by_length, wanted, members)
    shuffle = shuffle_facts(epoch, len(dataset))
    if wanted.chunk_size is not None:  # batches planned by length are not even without chunks either
        whole = plan_epoch(dataset, by_length, wanted._replace(chunk_size=None))
        shuffle["density"]["expected"] = shuffle_facts(whole, len(dataset))["density"]["dispersion"]
    return {
        "title": wanted.title,
        "options": wanted._asdict(),
        "mixture": [_share(*each) for each in zip(members, wanted.mix or (), epoch.passes, strict=True)] or None,
        "batches": batch_facts(epoch),
        "shuffle": shuffle,
        "reads": None if record_bytes is None else read_facts(epoch, dataset, record_bytes),
    }


class Epoch(NamedTuple):
    """Epoch 0 of all ranks, and what was read of it: blocks of whole steps, in order of steps and ranks."""

    wanted: Wanted
    batches: int
    records: int
    left_out: dict[str, int]  # records that are not planned, by the reason
    by_length: LengthOrder | None
    lengths: tuple[Array, Array]  # of the planned records, rising, and how often each comes
    passes: Array  # of each dataset of a mixture: how often it is read
    chunks: int | None  # of the order; None for one of single records
    whole_steps: int  # those with a batch on every rank; an epoch without any counts as one
    is_whole: bool  # whether all of these were read
    steps: Int64s  # of each batch that was read
    sizes: list[Int64s]  # of each block, the number of records in each batch
    blocks: list[Int64s]  # the records of each block


def plan_epoch(
    dataset: Dataset, by_length: LengthOrder | None, wanted: Wanted, members: Sequence[Member] = ()
) -> Epoch:
    """Return the epoch of a sampler with these options. Of a long one, blocks from the first step to the last are read.

    Args:
      by_length: the lengths of the dataset and their order; None where it has none.
      members: the datasets of a mixture.
    """
    ranks, limit, records = wanted.ranks, wanted.limit, len(dataset)
    left_out: dict[str, int] = {}
    chunks, passes = None, np.zeros(0)
    if wanted.chunk_size is not None:
        chunks = Chunked(dataset, wanted.chunk_size, mix_chunks=wanted.mix_chunks or 16, seed=wanted.seed)
    selections = [] if by_length is None else [Selection(by_length, 0, slice(None))]
    if wanted.kind == "fixed":
        order: Order = chunks or Shuffled(records, wanted.seed)
        if members:
            order, passes = _mixed_order(members, wanted)
            selections = [Selection(each.by_length, 0, slice(None)) for each in members if each.by_length is not None]
            records = len(order)
        batches, steps = -(-records // (limit * ranks)) * ranks, records // (limit * ranks)
        read = _fixed(order, max(min(limit, records // ranks), 1), ranks)
    else:
        by_length = by_length or read_lengths(dataset, None, None)
        if members:
            plan: Any = _mixed_plan(members, wanted)
            totals, selections, passes = plan.totals(), plan.selections, plan.passes
            records, left_out = totals.samples, _reasons(wanted, totals.too_short, totals.too_long)
        else:
            plan, left_out = _planned(by_length, wanted, chunks)
            selections, records = [plan.selection], plan.selection.records
        batches, steps, read = len(plan), len(plan) // ranks, plan.reader(0)
    if records < ranks:
        raise OrderError(f"dataset: expected {ranks} records or more, one for each rank, found {records}")
    steps = max(steps, 1)
    size = min(max(int(min(_BLOCK_RECORDS, records / 64) * steps / records), 1), steps)
    count = -(-steps // size)
    chosen = np.linspace(0, count - 1, min(count, _BLOCKS)).astype(np.int64).tolist()
    bounds = [(at * steps // count * ranks, (at + 1) * steps // count * ranks) for at in chosen]
    numbers = [np.arange(begin, min(end, batches)) for begin, end in bounds]
    blocks, ends = zip(*map(read, numbers), strict=True)
    sizes = [np.diff(each, prepend=0) for each in ends]
    steps_read, is_whole = np.concatenate(numbers) // ranks, count <= _BLOCKS
    number = None if chunks is None else chunks.number_of_chunks
    lengths = _lengths_of(selections, passes if members else np.ones(1, np.int64))
    what = wanted, batches, records, left_out, by_length, lengths, passes
    return Epoch(*what, number, steps, is_whole, steps_read, sizes, list(blocks))


def _lengths_of(selections: Sequence[Selection], times: Array) -> tuple[Array, Array]:
    """Return the lengths of datasets that are read so many times each, rising, and how often each comes."""
    if not selections:
        return np.zeros(0), np.zeros(0)
    found = np.concatenate([each.values for each in selections])
    counts = np.concatenate(
        [each.counts.astype(times.dtype) * own for each, own in zip(selections, times, strict=True)]
    )
    values, places = np.unique(found, return_inverse=True)
    sums = np.zeros(len(values), counts.dtype)
    np.add.at(sums, places, counts)
    return values, sums


def _mixed_order(members: Sequence[Member], wanted: Wanted) -> tuple[Order, Array]:
    """Return the order of a mixture of samples, and how often it reads each dataset."""
    sizes = [len(each.dataset) for each in members]
    order = Mixture(sizes, wanted.mix or (), seed=wanted.seed)
    drawn = Course([Segment(0, order.weights, sizes)]).counts(len(order))
    return order, drawn / np.maximum(sizes, 1)


def _mixed_plan(members: Sequence[Member], wanted: Wanted) -> Any:
    """Return the plan of a mixture of batches, by shares of tokens."""
    from ..samplers.mixture import MixedPlan  # needs torch
    from ..samplers.planned import PackingBatchSampler, TokenBudgetBatchSampler

    kind: Any = PackingBatchSampler if wanted.kind == "packs" else TokenBudgetBatchSampler
    own = {"num_replicas": 1, "rank": 0, "seed": wanted.seed, "oversize": "drop"}
    return MixedPlan([kind(each.dataset, wanted.limit, **own) for each in members], wanted.mix or ())


def _share(member: Member, weight: float, passes: float) -> Facts:
    """Return what an epoch of a mixture has of a dataset."""
    records = len(member.dataset)
    return {"name": member.name, "weight": weight, "records": records, "passes": float(passes)}


def _fixed(order: Order, size: int, ranks: int) -> Reader:
    """Return what reads batches of whole steps, whose ranks take turns."""

    def read(numbers: Int64s) -> tuple[Int64s, Int64s]:
        firsts = numbers // ranks * (size * ranks) + numbers % ranks
        positions = firsts.reshape(-1, 1) + np.arange(size) * ranks
        return order.at(0, positions.ravel()), np.arange(1, len(numbers) + 1) * size

    return read


def _planned(by_length: LengthOrder, wanted: Wanted, chunks: Chunked | None) -> tuple[Plan, dict[str, int]]:
    """Return the plan of budgets or packs, and how many records it leaves out, by the reason."""
    is_pack = wanted.kind == "packs"
    limits: Any = PackLimits(wanted.limit, None, 1) if is_pack else Budget(wanted.limit, _ANY_SIZE, 1, 0)
    selection = select(by_length, limits, 1, None, "drop")
    shape: dict[str, Any] = {"group_size": wanted.ranks, "fills": True, "seed": wanted.seed, "shuffle": True}
    reasons = _reasons(wanted, selection.too_short, selection.first)
    if chunks is not None and not is_pack:
        return WindowPlan(selection, limits, order=chunks, sort_window=_SORT_WINDOW, **shape), reasons
    if chunks is not None:
        return PackWindowPlan(selection, PackedChunks(selection, limits, chunks), **shape), reasons
    return (PackPlan if is_pack else BucketPlan)(selection, limits, **shape), reasons


def _reasons(wanted: Wanted, too_short: int, too_long: int) -> dict[str, int]:
    """Return how many records are left out, by the reason."""
    return {"empty": too_short, "longer than a pack" if wanted.kind == "packs" else "over the budget": too_long}


# ---- distributions


def quantiles(values: Array, counts: Array) -> Facts:
    """Return the extremes, the mean and the quantiles: the smallest numbers that these shares of all do not exceed."""
    ends = np.cumsum(counts, dtype=np.int64)
    places = [max(int(np.ceil(share * int(ends[-1]))), 1) for share in QUANTILES]
    found = values[np.searchsorted(ends, places)].tolist()
    named = {f"{share * 100:g} %": value for share, value in zip(QUANTILES, found, strict=True)}
    mean = float(np.average(values, weights=counts))
    return {"min": values[0].item(), **named, "max": values[-1].item(), "mean": mean}


def edges_of(values: Array, counts: Array) -> list[int]:
    """Return the edges of bins, which contain their lower edge; the first and the last are as wide as extremes need.

    They are no narrower than the bins beside them, so that a bar of lengths that were cut to a limit can be seen.
    """
    found = quantiles(values, counts)
    low, high = float(max(found["1 %"], 1)), float(found["99.9 %"] + 1)
    first, end = int(values[0]), int(values[-1]) + 1
    space = np.geomspace if high > _WIDE * low else np.linspace
    inner = [int(edge) for edge in np.rint(space(low, high, _BINS + 1)).tolist()]
    if end - inner[-1] < inner[-1] - inner[-2]:
        inner.pop()
    if inner[0] - first < inner[1] - inner[0]:
        inner.pop(0)
    return sorted({first, *(edge for edge in inner if first < edge < end), end})


def _in_bins(values: Array, weights: Array, edges: list[int]) -> Array:
    return np.histogram(values, np.array(edges, np.float64), weights=weights)[0]


def length_facts(values: Array, counts: Array, unit: str, chosen: list[int]) -> Facts:
    """Return how lengths are distributed, and what a largest length costs: powers of two, and those that are chosen."""
    found, edges, tokens = quantiles(values, counts), edges_of(values, counts), values.astype(np.float64) * counts
    last = max(found["max"] - 1, 1).bit_length()  # the power of two that cuts nothing off
    first = max(min(max(found["50 %"], 1).bit_length(), last), last - _BUDGETS + 1)
    budgets = sorted({2**power for power in range(first, last + 1)} | set(chosen))
    curve = np.unique(np.rint(np.geomspace(max(edges[0], 1.0), max(edges[-1] - 1, 1.0), _BUDGET_CURVE)))
    records, total = int(counts.sum()), float(max(tokens.sum(), 1))

    def cut_off(budget: int) -> Facts:
        """Return the records above a largest length, and the tokens lost if they are dropped or cut."""
        is_over = values > budget
        over, dropped = int(counts[is_over].sum()), float(tokens[is_over].sum())
        return {
            "budget": budget,
            "over": over,
            "over_share": over / records,
            "dropped_share": dropped / total,
            "truncated_share": max(dropped - over * budget, 0.0) / total,
        }

    return {
        "unit": unit,
        "records": records,
        "total": int(tokens.sum()),
        "quantiles": found,
        "histogram": {
            "edges": edges,
            "records": _in_bins(values, counts, edges).astype(np.int64).tolist(),
            "share_of_total": (_in_bins(values, tokens, edges) / total).tolist(),
        },
        "budgets": [cut_off(budget) for budget in budgets],
        "curve": [cut_off(int(budget)) for budget in curve],
    }


# ---- of a plan


def batch_facts(epoch: Epoch) -> Facts:
    """Return how full, how large and how equal the batches of an epoch are."""
    ranks, sizes = epoch.wanted.ranks, np.concatenate(epoch.sizes)
    facts: Facts = {
        "kind": epoch.wanted.kind,
        "limit": epoch.wanted.limit,
        "ranks": ranks,
        "seed": epoch.wanted.seed,
        "steps": -(-epoch.batches // ranks),
        "batches": epoch.batches,
        "records": epoch.records,
        "tokens": None,
        "left_out": epoch.left_out,
        "measured": {"batches": len(sizes), "is_whole": epoch.is_whole},
        "sizes": _spread(sizes),
    }
    if epoch.by_length is None:
        return facts
    values, counts = epoch.lengths
    lengths = epoch.by_length.lengths.at(np.concatenate(epoch.blocks))
    lengths = np.minimum(lengths, np.uint64(_LONGEST)).astype(np.int64)
    begins = np.cumsum(sizes) - sizes
    tokens = np.add.reduceat(lengths, begins)
    facts |= {"tokens": round(float(values.astype(np.float64) @ counts)), "longest": int(values[-1])}
    facts["tokens_of_batches"] = _spread(tokens)
    if epoch.wanted.kind == "packs":
        costs = np.add.reduceat(lengths.astype(np.float64) ** 2, begins)
    else:
        padded = np.maximum.reduceat(lengths, begins) * sizes
        costs = padded.astype(np.float64)
        facts["padding"] = float(1 - tokens.sum() / costs.sum()) if costs.any() else 0.0
        facts["padded_of_batches"] = _spread(padded)
        facts["random_padding"] = random_padding(values, counts, epoch.records / epoch.batches)
    if epoch.wanted.kind != "fixed":
        facts["fill"] = facts["tokens"] / (epoch.batches * epoch.wanted.limit)
    facts["cost"] = _cost_facts(costs, ranks)
    return facts


def _spread(numbers: Array) -> Facts:
    """Return quantiles and a histogram of a number of each batch."""
    values, counts = np.unique(numbers, return_counts=True)
    edges = edges_of(values, counts)
    bins = _in_bins(values, counts, edges).astype(np.int64).tolist()
    return {"quantiles": quantiles(values, counts), "edges": edges, "batches": bins}


def _cost_facts(costs: Array, ranks: int) -> Facts | None:
    """Return how equal the ranks of a step are, whose mean is 1; None for one rank, or if no whole step costs."""
    steps = costs[: len(costs) // ranks * ranks].reshape(-1, ranks)
    steps = steps[steps.mean(axis=1) > 0]
    if ranks == 1 or not len(steps):
        return None
    relative = steps / steps.mean(axis=1, keepdims=True)
    most = relative.max(axis=1)
    chosen = np.linspace(0, len(relative) - 1, min(len(relative), _STRIP)).astype(np.int64)
    return {
        "steps": len(relative),
        "imbalance": {"mean": float(most.mean()), "max": float(most.max())},
        "waiting": float(1 - steps.sum() / (steps.max(axis=1).sum() * ranks)),
        "strip": relative[chosen].round(4).tolist(),
    }


def random_padding(values: Array, counts: Array, size: float) -> float:
    """Return the padding of random batches; their expected maximum follows from the distribution of lengths."""
    below = np.cumsum(counts, dtype=np.float64) / float(counts.sum())
    longest = float(values @ np.diff(below ** max(size, 1.0), prepend=0.0))
    return float(1 - np.average(values, weights=counts) / longest) if longest else 0.0


def shuffle_facts(epoch: Epoch, records: int) -> Facts:
    """Return whether the parts of an epoch are random choices of a dataset of so many records."""
    blocks, order = epoch.blocks, np.concatenate(epoch.blocks)
    # The middle of a step and of a record, so that rounding moves neither into the column or the row beside its own.
    positions = (np.repeat(epoch.steps, np.concatenate(epoch.sizes)) + 0.5) / epoch.whole_steps
    jumps = np.concatenate([np.abs(np.diff(block)) for block in blocks])
    windows = {"start": blocks[0], "middle": blocks[len(blocks) // 2], "end": blocks[-1]}
    return {
        "measured": {"records": len(order), "is_whole": epoch.is_whole},
        "chunks": epoch.chunks,
        "density": density(positions, (order + 0.5) / records, min(_COLUMNS, len(blocks))),
        # Records of a mixture are not drawn evenly, so their gaps have no one distribution.
        "gaps": {name: gaps(window[: 0 if len(epoch.passes) else None], records) for name, window in windows.items()},
        "jump": float(jumps.mean() / records) if len(jumps) else None,
    }


def density(positions: Array, records: Array, columns: int) -> Facts:
    """Return how many records each part of an epoch has from each part of the dataset, where a random order has 1.

    `dispersion` is the variance of these counts over that of a random order, and `expected` that of the same plan
    without chunks. Positions are from 0 to 1.
    """
    counts, _, _ = np.histogram2d(positions, records, (columns, _ROWS), ((0, 1), (0, 1)))
    expected = np.maximum(counts.sum(axis=1, keepdims=True) * counts.sum(axis=0) / len(records), 1e-300)
    free = (columns - 1) * (_ROWS - 1)
    dispersion = float(((counts - expected) ** 2 / expected).sum() / free) if free else 1.0
    cells = (counts / expected).round(3).tolist()
    return {"columns": columns, "rows": _ROWS, "cells": cells, "dispersion": dispersion, "expected": 1.0}


def gaps(window: Array, records: int) -> Facts:
    """Return the gaps, in file order, between consecutive records of an epoch, compared with those of a random order.

    `distance` is Kolmogorov's, and `bound` what a random order exceeds once in 20 times. `curve` is the share of gaps
    above each multiple of the mean.
    """
    found = np.unique(window)
    if len(found) < 3:
        return {"records": len(found), "distance": None, "bound": None, "curve": []}
    chance = min(len(found) / records, 1 - 1e-12)
    lengths, counts = np.unique(np.diff(found), return_counts=True)
    shares = np.cumsum(counts) / counts.sum()
    # The geometric distribution: gaps are whole numbers. It is nearly exponential where k is much less than n.
    upper, lower = (1 - (1 - chance) ** each for each in (lengths, lengths - 1))
    above = 1 - np.append(0.0, shares)[np.searchsorted(lengths, _GAPS / chance, side="right")]
    return {
        "records": len(found),
        "distance": float(max(np.abs(shares - upper).max(), np.abs(np.append(0.0, shares[:-1]) - lower).max())),
        "bound": float(_ONCE_IN_20 / np.sqrt(counts.sum())),
        "curve": np.column_stack([_GAPS.round(2), above.round(5)]).tolist(),
    }


def read_facts(epoch: Epoch, dataset: Dataset, record_bytes: float) -> Facts:
    """Return what steps read from the disk, where records have so many bytes on average."""
    blocks = epoch.blocks
    count = max(min(_STEPS, _RECORDS // max(epoch.records // epoch.whole_steps, 1), len(blocks)), 1)
    steps = []
    for at in np.linspace(0, len(blocks) - 1, count).astype(np.int64).tolist():
        first = blocks[at][: epoch.sizes[at][: epoch.wanted.ranks].sum()]
        steps.append(step_facts([dataset.where(record) for record in first.tolist()]))
    # The shares of a record are measured, and the records of a step are counted.
    measured, of_a_step = sum(each["records"] for each in steps), epoch.records * epoch.wanted.ranks / epoch.batches
    mean = {name: sum(each[name] for each in steps) * of_a_step / measured for name in ("records", "bytes", "pages")}
    mean["sources"] = float(np.mean([each["sources"] for each in steps]))
    return {
        "measured": {"steps": len(steps)},
        "steps": steps,
        "mean": mean,
        "amplification": mean["pages"] * PAGE / mean["bytes"] if mean["bytes"] else 0.0,
        "pages_of_a_record": mean["pages"] / mean["records"],
        "epoch_bytes": epoch.records * record_bytes,
        "fits": epoch.records * record_bytes < os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2,
        "sources": len(dataset.source_starts) - 1,
    }


def step_facts(locations: Sequence[Location]) -> Facts:
    """Return how many records a step has, their bytes, and how many pages and sources they lie in."""
    pages, last, end = 0, "", 0
    for source, begin, size in sorted(locations):
        known = end if source == last else 0  # pages below are counted
        last, end = source, max((begin + max(size, 1) - 1) // PAGE + 1, known)
        pages += end - max(begin // PAGE, known)
    total, sources = sum(each.size for each in locations), len({each.source for each in locations})
    return {"records": len(locations), "bytes": total, "pages": pages, "sources": sources}
