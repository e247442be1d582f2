"""Facts of an epoch: how full and equal its batches are, how random its order is, and what its steps read."""

from collections.abc import Callable
from typing import Any

import numpy as np

from ..dataset.location import Location
from .lengths import Array, Facts, spread
from .plans import EpochPlan, Read

PAGE = 4096
_STRIP = 48  # steps whose costs are given
_COLUMNS, _ROWS = 48, 32  # of the picture of an epoch and a dataset
_CURVE = np.linspace(0, 6, 61)
_ONCE_IN_20 = 1.36  # Kolmogorov: the distance of k random gaps exceeds this over the root of k once in 20 times
_STEPS, _RECORDS = 24, 60_000  # whose pages are counted


def batch_facts(plan: EpochPlan, read: Read) -> Facts:
    """Return how full, how large and how equal the batches of an epoch are."""
    sizes = np.concatenate(read.sizes)
    facts: Facts = {
        "kind": plan.kind,
        "limit": plan.limit,
        "ranks": plan.wanted.ranks,
        "seed": plan.wanted.seed,
        "steps": plan.steps,
        "batches": len(plan.batches),
        "records": plan.records,
        "tokens": plan.tokens,
        "left_out": plan.left_out,
        "measured": {"batches": len(sizes), "is_whole": read.is_whole},
        "sizes": spread(sizes),
    }
    if plan.selection is None:
        return facts
    lengths, begins = plan.lengths(np.concatenate(read.records)), np.cumsum(sizes) - sizes
    tokens = np.add.reduceat(lengths, begins)
    facts["tokens_of_batches"] = spread(tokens)
    if plan.kind == "packs":
        costs = np.add.reduceat(lengths.astype(np.float64) ** 2, begins)
    else:
        padded = np.maximum.reduceat(lengths, begins) * sizes
        costs = padded.astype(np.float64)
        facts["padding"] = float(1 - tokens.sum() / costs.sum()) if costs.sum() else 0.0
        facts["padded_of_batches"] = spread(padded)
        values, counts = plan.selection.values[::-1], plan.selection.counts[::-1]
        facts["random_padding"] = random_padding(values, counts, plan.records / len(plan.batches))
    if plan.kind != "fixed" and plan.tokens is not None:
        facts["fill"] = plan.tokens / (len(plan.batches) * plan.limit)
    facts["cost"] = _cost_facts(costs, plan.wanted.ranks)
    return facts


def _cost_facts(costs: Array, ranks: int) -> Facts | None:
    """Return how equal the ranks of a step are; None where no whole step costs anything.

    Args:
      costs: of batches, in order of steps and ranks.
    Returns:
      A dict: `imbalance`, the largest cost in a step over the mean; `waiting`, the share of all ranks' time that they
      wait for the slowest one; `by_rank`, the mean cost of each rank where the mean of its step is 1; `strip`, the
      costs of all ranks in some steps, in this unit.
    """
    steps = costs[: len(costs) // ranks * ranks].reshape(-1, ranks)
    steps = steps[steps.mean(axis=1) > 0]
    if not len(steps):
        return None
    relative = steps / steps.mean(axis=1, keepdims=True)
    most = relative.max(axis=1)
    chosen = np.linspace(0, len(relative) - 1, min(len(relative), _STRIP)).astype(np.int64)
    return {
        "steps": len(relative),
        "imbalance": {
            "mean": float(most.mean()),
            "99 %": float(np.quantile(most, 0.99, method="inverted_cdf")),
            "max": float(most.max()),
        },
        "waiting": float(1 - steps.sum() / (steps.max(axis=1).sum() * ranks)),
        "by_rank": relative.mean(axis=0).tolist(),
        "strip": relative[chosen].round(4).tolist(),
    }


def random_padding(values: Array, counts: Array, size: float) -> float:
    """Return the share of padding in random batches of a size: the baseline for plans by length.

    The expected maximum of `size` random lengths follows from the distribution of one.

    Args:
      values: the distinct lengths, rising.
      counts: how many records have each.
    """
    total = float(counts.sum())
    below = np.cumsum(counts, dtype=np.float64) / total
    longest = float((values * np.diff(below ** max(size, 1.0), prepend=0.0)).sum())
    mean = float((values.astype(np.float64) * counts).sum() / total)
    return 1 - mean / longest if longest else 0.0


def shuffle_facts(read: Read, records: int) -> Facts:
    """Return whether the parts of an epoch are random choices of a dataset of so many records."""
    blocks, order = read.records, np.concatenate(read.records)
    steps = np.repeat(read.steps, np.concatenate(read.sizes))
    jumps = np.concatenate([np.abs(np.diff(block)) for block in blocks])
    ends = {"start": blocks[0], "middle": blocks[len(blocks) // 2], "end": blocks[-1]}
    return {
        "measured": {"records": len(order), "is_whole": read.is_whole},
        "density": density(steps / max(read.all_steps, 1), order / records, min(_COLUMNS, len(blocks))),
        "gaps": {name: gaps(block, records) for name, block in ends.items()},
        "jump": float(jumps.mean() / records) if len(jumps) else None,
    }


def density(positions: Array, records: Array, columns: int) -> Facts:
    """Return how many records each part of an epoch has from each part of the dataset.

    Args:
      positions: in the epoch, from 0 to 1.
      records: in the dataset, from 0 to 1.
      columns: parts of the epoch.
    Returns:
      A dict: `cells`, for each part of the epoch the counts of all parts of the dataset, divided by the expected ones;
      `dispersion`, the variance of the counts over that of a random order, so 1 is random, and clumps give more.
    """
    at = np.minimum((positions * columns).astype(np.int64), columns - 1)
    rows = np.minimum((records * _ROWS).astype(np.int64), _ROWS - 1)
    counts = np.bincount(at * _ROWS + rows, minlength=columns * _ROWS).reshape(columns, _ROWS)
    expected = counts.sum(axis=1, keepdims=True) * counts.sum(axis=0) / max(len(records), 1)
    some = np.where(expected > 0, expected, 1.0)  # a part of the dataset may be left out
    free = max((columns - 1) * (_ROWS - 1), 1)
    return {
        "columns": columns,
        "rows": _ROWS,
        "cells": (counts / some).round(3).tolist(),
        "dispersion": float(((counts - expected) ** 2 / some).sum() / free) if columns > 1 else 1.0,
    }


def gaps(window: Array, records: int) -> Facts:
    """Return the gaps, in file order, between records that an epoch reads at about one time.

    The gaps of k random records out of n have the exponential distribution with mean n / k. Clumps of neighbours have
    many short gaps and a few long ones.

    Args:
      window: consecutive records of an epoch.
      records: how many the dataset has.
    Returns:
      A dict: `distance`, Kolmogorov's between the two distributions; `bound`, which a random order exceeds once in 20
      times; `curve`, the share of gaps above each multiple of the mean. With fewer than two gaps, None and [].
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
    distance = max(
        np.abs(shares - (1 - (1 - chance) ** grid)).max(), np.abs(before - (1 - (1 - chance) ** (grid - 1))).max()
    )
    above = 1 - np.searchsorted(lengths, _CURVE / chance, side="right") / len(lengths)
    return {
        "records": len(found),
        "distance": float(distance),
        "bound": float(_ONCE_IN_20 / np.sqrt(len(lengths))),
        "curve": [[round(float(x), 2), round(float(y), 5)] for x, y in zip(_CURVE, above, strict=True)],
    }


def read_facts(
    plan: EpochPlan, read: Read, where: Callable[[int], Location], starts: Array, record_bytes: float
) -> Facts:
    """Return what steps read from the disk.

    Args:
      where: returns where a record lies.
      starts: the first record of each source, and the number of records.
      record_bytes: mean size of a record.
    """
    found = [step_facts([where(int(record)) for record in step]) for step in _some_steps(plan, read)]
    mean: dict[str, float] = {name: float(np.mean([each[name] for each in found])) for name in found[0]}
    sources = [len(np.unique(np.searchsorted(starts, block, side="right"))) for block in read.records]
    return {
        "measured": {"steps": len(found)},
        "steps": found,
        "mean": mean,
        "amplification": mean["pages"] * PAGE / mean["bytes"] if mean["bytes"] else 0.0,
        "pages_of_a_record": mean["pages"] / mean["records"] if mean["records"] else 0.0,
        "epoch_bytes": plan.records * record_bytes,
        "sources": len(starts) - 1,
        "sources_of_some_steps": {
            "steps": len(read.sizes[0]) // plan.wanted.ranks,
            "mean": float(np.mean(sources)),
            "max": int(max(sources)),
        },
    }


def _some_steps(plan: EpochPlan, read: Read) -> list[Array]:
    """Return the records of some steps: the first steps of evenly spread blocks."""
    in_a_step = max(plan.records // max(read.all_steps, 1), 1)
    count = max(min(_STEPS, _RECORDS // in_a_step, len(read.records)), 1)
    chosen = np.linspace(0, len(read.records) - 1, count).astype(np.int64).tolist()
    return [read.records[at][: read.sizes[at][: plan.wanted.ranks].sum()] for at in chosen]


def step_facts(locations: list[Location]) -> dict[str, Any]:
    """Return how many records a step has, their bytes, and how many pages and sources they lie in."""
    pages, reach = 0, ("", 0)
    for source, begin, size in sorted(locations):
        first, end = begin // PAGE, (begin + max(size, 1) - 1) // PAGE + 1
        known = reach[1] if reach[0] == source else 0  # pages below are counted
        pages += max(end - max(first, known), 0)
        reach = (source, max(end, known))
    return {
        "records": len(locations),
        "bytes": sum(each.size for each in locations),
        "pages": pages,
        "sources": len({each.source for each in locations}),
    }
