"""The section on lengths: how they are spread, and what each budget cuts off."""

from typing import Any

import numpy as np

from .numbers import Array, bins_of, edges_of, histogram, quantiles

_BUDGETS = 8
_CURVE = 60


def length_facts(values: Array, counts: Array, unit: str, chosen: list[int]) -> dict[str, Any]:
    """Return how lengths are spread.

    Args:
      values: the different lengths, rising.
      counts: how many records have each.
      unit: "tokens", or "bytes" where records are measured by their size.
      chosen: budgets that are asked for, which the table has besides powers of two.
    """
    edges = edges_of(values, counts)
    tokens = values.astype(np.float64) * counts
    bins = histogram(values, counts, edges)
    weights = np.bincount(bins_of(values, edges), tokens, minlength=len(edges) - 1)
    records, total = int(counts.sum()), int((values.astype(object) * counts.astype(object)).sum())
    return {
        "unit": unit,
        "records": records,
        "total": total,
        "distinct": len(values),
        "quantiles": quantiles(values, counts),
        "histogram": {"edges": edges, "records": bins, "share_of_total": (weights / max(total, 1)).tolist()},
        "budgets": [cut_off(values, counts, budget) for budget in _budgets(values, counts, chosen)],
        "curve": [cut_off(values, counts, budget) for budget in _curve(edges)],
    }


def cut_off(values: Array, counts: Array, budget: int) -> dict[str, Any]:
    """Return what a largest length costs: the records over it, left out whole or cut off at it, as shares too."""
    over = values > budget
    records, total = int(counts.sum()), int((values.astype(object) * counts.astype(object)).sum())
    above, tokens = (part[over].astype(object) for part in (counts, values))
    longer, dropped = int(above.sum()), int((above * tokens).sum())
    truncated = dropped - longer * budget
    return {
        "budget": budget,
        "over": longer,
        "over_share": longer / records,
        "dropped_share": dropped / total if total else 0.0,
        "truncated_share": truncated / total if total else 0.0,
    }


def _budgets(values: Array, counts: Array, chosen: list[int]) -> list[int]:
    """Return powers of two from about the median to where nothing is cut off, and those that were chosen."""
    median, most = int(quantiles(values, counts)["50 %"]), int(values[-1])
    last = max(most - 1, 1).bit_length()
    first = max(min(max(median, 1).bit_length(), last), last - _BUDGETS + 1, 0)
    return sorted({2**power for power in range(first, last + 1)} | set(chosen))


def _curve(edges: list[int]) -> list[int]:
    """Return budgets from the shortest length to the longest, as far apart as bins are."""
    low, high = float(max(edges[0], 1)), float(max(edges[-1] - 1, 1))
    return [int(each) for each in np.unique(np.rint(np.geomspace(low, high, _CURVE)))]
