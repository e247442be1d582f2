"""The numbers of a report: lengths, batches, shuffle and reads, as plain dicts that JSON can hold.

Distributions are `values`, the distinct numbers, rising, and `counts`, how often each occurs.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..dataset.catalog import Location
from ..dataset.dataset import Dataset
from .plans import Epoch

Array = NDArray[Any]
Facts = dict[str, Any]

PAGE = 4096
QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 0.999)

_BINS = 40
_NARROWEST = 60  # most bins of one width; more are too narrow to be seen
_WIDE = 12  # from this ratio of the 99.9th to the 1st percentile, the widths of bins grow with the numbers
_BUDGETS, _BUDGET_CURVE = 8, 60
_LONGEST = 2**32  # tokens of a record; so the tokens of any batch fit into 63 bits
_STRIP = 48  # steps whose costs are given
_COLUMNS, _ROWS = 48, 32  # of the picture of an epoch and a dataset
_GAPS = np.linspace(0, 6, 61)
_ONCE_IN_20 = 1.36  # Kolmogorov: the distance of k random gaps exceeds this over the root of k once in 20 times
_STEPS, _RECORDS = 24, 60_000  # whose pages are counted


def quantiles(values: Array, counts: Array) -> Facts:
    """Return the extremes, the mean and the quantiles: the smallest numbers that these shares of all do not exceed."""
    ends = np.cumsum(counts, dtype=np.int64)
    places = [max(int(np.ceil(share * int(ends[-1]))), 1) for share in QUANTILES]
    found = values[np.searchsorted(ends, places)].tolist()
    named = {f"{share * 100:g} %": value for share, value in zip(QUANTILES, found, strict=True)}
    return {"min": values[0].item(), **named, "max": values[-1].item(), "mean": _total(values, counts) / int(ends[-1])}


def _total(values: Array, counts: Array) -> float:
    return float((values.astype(np.float64) * counts).sum())


def edges_of(values: Array, counts: Array) -> list[int]:
    """Return the edges of bins, which contain their lower edge; the first and the last are as wide as extremes need."""
    found = quantiles(values, counts)
    low, high = int(found["1 %"]), int(found["99.9 %"])
    first, end = int(values[0]), int(values[-1]) + 1
    if high > _WIDE * max(low, 1):
        grown = np.rint(np.geomspace(float(max(low, 1)), float(high + 1), _BINS + 1)).tolist()
        return sorted({first, *(min(max(int(edge), first), end) for edge in grown), end})
    step = max((high - low) // _BINS, (end - first) // _NARROWEST, 1)
    inner = range(high + 1, low - step, -step)  # from above: most batches are nearly full
    return sorted({first, *(edge for edge in inner if first + step <= edge <= end - step), end})


def _in_bins(values: Array, weights: Array, edges: list[int]) -> Array:
    """Return the sum of the weights in each bin."""
    bins = np.searchsorted(np.array(edges[:-1], values.dtype), values, side="right") - 1
    found: Array = np.bincount(bins, weights, len(edges) - 1)
    return found


def length_facts(values: Array, counts: Array, unit: str, chosen: list[int]) -> Facts:
    """Return how lengths are distributed, and what a largest length costs.

    Args:
      unit: "tokens", or "bytes" where the sizes of records stand for lengths.
      chosen: budgets for the table, besides powers of two.
    """
    found, edges, tokens = quantiles(values, counts), edges_of(values, counts), values.astype(np.float64) * counts
    last = max(found["max"] - 1, 1).bit_length()  # the power of two that cuts nothing off
    first = max(min(max(found["50 %"], 1).bit_length(), last), last - _BUDGETS + 1)
    budgets = sorted({2**power for power in range(first, last + 1)} | set(chosen))
    curve = np.unique(np.rint(np.geomspace(max(edges[0], 1.0), max(edges[-1] - 1, 1.0), _BUDGET_CURVE)))
    return {
        "unit": unit,
        "records": int(counts.sum()),
        "total": int(tokens.sum()),
        "distinct": len(values),
        "quantiles": found,
        "histogram": {
            "edges": edges,
            "records": _in_bins(values, counts, edges).astype(np.int64).tolist(),
            "share_of_total": (_in_bins(values, tokens, edges) / max(tokens.sum(), 1)).tolist(),
        },
        "budgets": [_cut_off(values, counts, budget) for budget in budgets],
        "curve": [_cut_off(values, counts, int(budget)) for budget in curve],
    }


def _cut_off(values: Array, counts: Array, budget: int) -> Facts:
    """Return the records above a largest length, and the tokens lost if they are dropped or cut."""
    total, is_over = max(_total(values, counts), 1), values > budget
    above, times = values[is_over].astype(np.float64), counts[is_over]
    return {
        "budget": budget,
        "over": int(times.sum()),
        "over_share": int(times.sum()) / int(counts.sum()),
        "dropped_share": _total(above, times) / total,
        "truncated_share": _total(above - budget, times) / total,
    }


def batch_facts(epoch: Epoch) -> Facts:
    """Return how full, how large and how equal the batches of an epoch are."""
    ranks, sizes = epoch.wanted.ranks, np.concatenate(epoch.sizes)
    facts: Facts = {
        "kind": epoch.kind,
        "limit": epoch.limit,
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
    if epoch.selection is None:
        return facts
    values, counts = epoch.selection.values[::-1], epoch.selection.counts[::-1]
    lengths = epoch.selection.by_length.lengths.at(np.concatenate(epoch.blocks))
    lengths = np.minimum(lengths, np.uint64(_LONGEST)).astype(np.int64)
    begins = np.cumsum(sizes) - sizes
    tokens = np.add.reduceat(lengths, begins)
    facts |= {"tokens": int(_total(values, counts)), "tokens_of_batches": _spread(tokens)}
    if epoch.kind == "packs":
        costs = np.add.reduceat(lengths.astype(np.float64) ** 2, begins)
    else:
        padded = np.maximum.reduceat(lengths, begins) * sizes
        costs = padded.astype(np.float64)
        facts["padding"] = float(1 - tokens.sum() / costs.sum()) if costs.any() else 0.0
        facts["padded_of_batches"] = _spread(padded)
        facts["random_padding"] = random_padding(values, counts, epoch.records / epoch.batches)
    if epoch.kind != "fixed":
        facts["fill"] = facts["tokens"] / (epoch.batches * epoch.limit)
    facts["cost"] = _cost_facts(costs, ranks)
    return facts


def _spread(numbers: Array) -> Facts:
    """Return quantiles and a histogram of a number of each batch."""
    values, counts = np.unique(numbers, return_counts=True)
    edges = edges_of(values, counts)
    bins = _in_bins(values, counts, edges).astype(np.int64).tolist()
    return {"quantiles": quantiles(values, counts), "edges": edges, "batches": bins}


def _cost_facts(costs: Array, ranks: int) -> Facts | None:
    """Return how equal the ranks of a step are; None where no whole step costs anything.

    `waiting` is the share of all ranks' time that they wait for the slowest one. Otherwise the mean of a step is 1.
    """
    steps = costs[: len(costs) // ranks * ranks].reshape(-1, ranks)
    steps = steps[steps.mean(axis=1) > 0]
    if not len(steps):
        return None
    relative = steps / steps.mean(axis=1, keepdims=True)
    most = relative.max(axis=1)
    rare = float(np.quantile(most, 0.99, method="inverted_cdf"))
    chosen = np.linspace(0, len(relative) - 1, min(len(relative), _STRIP)).astype(np.int64)
    return {
        "steps": len(relative),
        "imbalance": {"mean": float(most.mean()), "99 %": rare, "max": float(most.max())},
        "waiting": float(1 - steps.sum() / (steps.max(axis=1).sum() * ranks)),
        "by_rank": relative.mean(axis=0).tolist(),
        "strip": relative[chosen].round(4).tolist(),
    }


def random_padding(values: Array, counts: Array, size: float) -> float:
    """Return the share of padding in random batches of a size: the baseline for plans by length.

    The expected maximum of `size` random lengths follows from the distribution of one.
    """
    total = float(counts.sum())
    below = np.cumsum(counts, dtype=np.float64) / total
    longest = float((values * np.diff(below ** max(size, 1.0), prepend=0.0)).sum())
    return 1 - _total(values, counts) / total / longest if longest else 0.0


def shuffle_facts(epoch: Epoch, records: int) -> Facts:
    """Return whether the parts of an epoch are random choices of a dataset of so many records."""
    blocks, order = epoch.blocks, np.concatenate(epoch.blocks)
    positions = np.repeat(epoch.steps, np.concatenate(epoch.sizes)) / epoch.whole_steps
    jumps = np.concatenate([np.abs(np.diff(block)) for block in blocks])
    windows = {"start": blocks[0], "middle": blocks[len(blocks) // 2], "end": blocks[-1]}
    return {
        "measured": {"records": len(order), "is_whole": epoch.is_whole},
        "density": density(positions, order / records, min(_COLUMNS, len(blocks))),
        "gaps": {name: gaps(window, records) for name, window in windows.items()},
        "jump": float(jumps.mean() / records) if len(jumps) else None,
    }


def density(positions: Array, records: Array, columns: int) -> Facts:
    """Return how many records each part of an epoch has from each part of the dataset, where a random order has 1.

    `dispersion` is the variance of these counts over that of a random order, so 1 is random, and clumps give more.

    Args:
      positions, records: in the epoch and in the dataset, from 0 to 1.
      columns: parts of the epoch.
    """
    at = np.minimum((positions * columns).astype(np.int64), columns - 1)
    rows = np.minimum((records * _ROWS).astype(np.int64), _ROWS - 1)
    counts = np.bincount(at * _ROWS + rows, minlength=columns * _ROWS).reshape(columns, _ROWS)
    expected = counts.sum(axis=1, keepdims=True) * counts.sum(axis=0) / len(records)
    some = np.where(expected > 0, expected, 1.0)  # a part of the dataset may be left out
    free = (columns - 1) * (_ROWS - 1)
    dispersion = float(((counts - expected) ** 2 / some).sum() / free) if free else 1.0
    return {"columns": columns, "rows": _ROWS, "cells": (counts / some).round(3).tolist(), "dispersion": dispersion}


def gaps(window: Array, records: int) -> Facts:
    """Return the gaps, in file order, between consecutive records of an epoch, compared with those of a random order.

    The gaps of k random records out of n have the exponential distribution with mean n / k. `distance` is
    Kolmogorov's between the two, and `bound` what a random order exceeds once in 20 times. `curve` is the share of gaps
    above each multiple of the mean.
    """
    found = np.unique(window)
    if len(found) < 3:
        return {"records": len(found), "distance": None, "bound": None, "curve": []}
    lengths = np.sort(np.diff(found))
    chance = min(len(found) / records, 1 - 1e-12)
    grid, counts = np.unique(lengths, return_counts=True)
    shares = np.cumsum(counts) / len(lengths)
    before = np.concatenate([[0.0], shares[:-1]])
    # The geometric distribution: gaps are whole numbers. It is nearly exponential where k is much less than n.
    upper, lower = (1 - (1 - chance) ** each for each in (grid, grid - 1))
    above = 1 - np.searchsorted(lengths, _GAPS / chance, side="right") / len(lengths)
    return {
        "records": len(found),
        "distance": float(max(np.abs(shares - upper).max(), np.abs(before - lower).max())),
        "bound": float(_ONCE_IN_20 / np.sqrt(len(lengths))),
        "curve": np.column_stack([_GAPS.round(2), above.round(5)]).tolist(),
    }


def read_facts(epoch: Epoch, dataset: Dataset, record_bytes: float) -> Facts:
    """Return what steps read from the disk, where records have so many bytes on average."""
    ranks, blocks, starts = epoch.wanted.ranks, epoch.blocks, dataset.source_starts
    count = max(min(_STEPS, _RECORDS // max(epoch.records // epoch.whole_steps, 1), len(blocks)), 1)
    steps = []
    for at in np.linspace(0, len(blocks) - 1, count).astype(np.int64).tolist():
        first = blocks[at][: epoch.sizes[at][:ranks].sum()]
        steps.append(step_facts([dataset.where(record) for record in first.tolist()]))
    mean: dict[str, float] = {name: float(np.mean([each[name] for each in steps])) for name in steps[0]}
    sources = [len(np.unique(np.searchsorted(starts, block, side="right"))) for block in blocks]
    of_blocks = {"steps": len(epoch.sizes[0]) // ranks, "mean": float(np.mean(sources)), "max": max(sources)}
    return {
        "measured": {"steps": len(steps)},
        "steps": steps,
        "mean": mean,
        "amplification": mean["pages"] * PAGE / mean["bytes"] if mean["bytes"] else 0.0,
        "pages_of_a_record": mean["pages"] / mean["records"],
        "epoch_bytes": epoch.records * record_bytes,
        "sources": len(starts) - 1,
        "sources_of_some_steps": of_blocks,
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
