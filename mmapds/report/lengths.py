"""Distributions of whole numbers: quantiles, histograms, and what a largest length costs."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Facts = dict[str, Any]

QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 0.999)
_BINS = 40
_NARROWEST = 60  # most bins of one width; more are too narrow to be seen
_WIDE = 12  # from this ratio of the 99.9th to the 1st percentile, the widths of bins grow with the numbers
_BUDGETS = 8
_CURVE = 60


def quantiles(values: Array, counts: Array) -> Facts:
    """Return the smallest number, the quantiles, the largest number and the mean.

    A quantile is the smallest number that at least this share of all numbers does not exceed.

    Args:
      values: the distinct numbers, rising.
      counts: how often each occurs.
    """
    ends = np.cumsum(counts, dtype=np.int64)
    places = [max(int(np.ceil(share * int(ends[-1]))), 1) for share in QUANTILES]
    found = values[np.searchsorted(ends, places)].tolist()
    named = {f"{share * 100:g} %": value for share, value in zip(QUANTILES, found, strict=True)}
    mean = float((values.astype(np.float64) * counts).sum() / int(ends[-1]))
    return {"min": values[0].item(), **named, "max": values[-1].item(), "mean": mean}


def spread(numbers: Array) -> Facts:
    """Return quantiles and a histogram of a number of each batch."""
    values, counts = np.unique(numbers, return_counts=True)
    edges = edges_of(values, counts)
    return {"quantiles": quantiles(values, counts), "edges": edges, "batches": _histogram(values, counts, edges)}


def edges_of(values: Array, counts: Array) -> list[int]:
    """Return the edges of bins; a bin contains its lower edge.

    The first and the last bin hold the extremes, and are as wide as these need.
    """
    found = quantiles(values, counts)
    low, high = int(found["1 %"]), int(found["99.9 %"])
    first, end = int(values[0]), int(values[-1]) + 1
    if high > _WIDE * max(low, 1):
        grown = np.rint(np.geomspace(float(max(low, 1)), float(high + 1), _BINS + 1)).tolist()
        return sorted({first, *(min(max(int(edge), first), end) for edge in grown), end})
    step = max((high - low) // _BINS, (end - first) // _NARROWEST, 1)
    inner = range(high + 1, low - step, -step)  # from above: most batches are nearly full
    return sorted({first, *(edge for edge in inner if first + step <= edge <= end - step), end})


def _bins_of(values: Array, edges: list[int]) -> Array:
    bins: Array = np.searchsorted(np.array(edges[:-1], values.dtype), values, side="right") - 1
    return bins


def _histogram(values: Array, counts: Array, edges: list[int]) -> list[int]:
    found = np.zeros(len(edges) - 1, np.int64)
    np.add.at(found, _bins_of(values, edges), counts.astype(np.int64))
    return [int(count) for count in found]


def length_facts(values: Array, counts: Array, unit: str, chosen: list[int]) -> Facts:
    """Return how lengths are distributed.

    Args:
      values: the distinct lengths, rising.
      counts: how many records have each.
      unit: "tokens", or "bytes" where the sizes of records stand for lengths.
      chosen: budgets for the table, besides powers of two.
    """
    edges = edges_of(values, counts)
    tokens = values.astype(np.float64) * counts
    total = tokens.sum()
    shares = np.bincount(_bins_of(values, edges), tokens, minlength=len(edges) - 1) / max(total, 1)
    median, longest = quantiles(values, counts)["50 %"], int(values[-1])
    last = max(longest - 1, 1).bit_length()  # the power of two that cuts nothing off
    first = max(min(max(median, 1).bit_length(), last), last - _BUDGETS + 1)
    budgets = sorted({2**power for power in range(first, last + 1)} | set(chosen))
    low, high = float(max(edges[0], 1)), float(max(edges[-1] - 1, 1))
    curve = [int(each) for each in np.unique(np.rint(np.geomspace(low, high, _CURVE)))]
    return {
        "unit": unit,
        "records": int(counts.sum()),
        "total": int(total),
        "distinct": len(values),
        "quantiles": quantiles(values, counts),
        "histogram": {
            "edges": edges,
            "records": _histogram(values, counts, edges),
            "share_of_total": shares.tolist(),
        },
        "budgets": [_cut_off(values, counts, budget) for budget in budgets],
        "curve": [_cut_off(values, counts, budget) for budget in curve],
    }


def _cut_off(values: Array, counts: Array, budget: int) -> Facts:
    """Return the cost of a largest length: the records above it, and the tokens lost if they are dropped or cut."""
    records, total = int(counts.sum()), float((values.astype(np.float64) * counts).sum())
    above, times = values[values > budget].astype(np.float64), counts[values > budget]
    over, dropped = int(times.sum()), float((above * times).sum())
    return {
        "budget": budget,
        "over": over,
        "over_share": over / records,
        "dropped_share": dropped / total if total else 0.0,
        "truncated_share": float(((above - budget) * times).sum()) / total if total else 0.0,
    }
