"""The section on the shuffle: whether any part of an epoch has records from anywhere in the dataset."""

from typing import Any

import numpy as np

from .blocks import Block, Blocks
from .numbers import Array
from .plans import EpochPlan

_COLUMNS, _ROWS = 48, 32  # of the picture of positions and records
_CURVE = np.linspace(0, 6, 61)
_ONCE_IN_20 = 1.36  # Kolmogorov's: this over the root of k is exceeded once in 20 times


def shuffle_facts(plan: EpochPlan, read: Blocks, records: int) -> dict[str, Any]:
    """Return how records of the dataset are spread over an epoch.

    Args:
      records: how many the dataset has.
    """
    steps = np.repeat(read.steps_of_batches(plan.wanted.ranks), read.sizes)
    order = read.records
    where = {"start": read.blocks[0], "middle": read.blocks[len(read.blocks) // 2], "end": read.blocks[-1]}
    return {
        "measured": {"records": len(order), "is_whole": read.is_whole},
        "density": density(steps / max(read.steps, 1), order / records, min(_COLUMNS, len(read.blocks))),
        "gaps": {name: gaps(block.records, records) for name, block in where.items()},
        "jump": _jump(read.blocks, records),
    }


def density(positions: Array, records: Array, columns: int) -> dict[str, Any]:
    """Return how many records of each part of the dataset each part of an epoch has.

    Args:
      positions: in the epoch, from 0 to 1.
      records: in the dataset, from 0 to 1.
    Returns:
      A dict: `cells`, a list for each part of the epoch with the number of records of each part of the dataset, as
      multiples of what it would have of each if all had the same; `dispersion`, the variance of the numbers in terms
      of that of random ones: 1 for a random order, more where records come in clumps.
    """
    at = np.minimum((positions * columns).astype(np.int64), columns - 1)
    rows = np.minimum((records * _ROWS).astype(np.int64), _ROWS - 1)
    counts = np.bincount(at * _ROWS + rows, minlength=columns * _ROWS).reshape(columns, _ROWS)
    share = counts.sum(axis=0) / max(len(records), 1)  # of each part of the dataset, as some may be left out
    expected = counts.sum(axis=1, keepdims=True) * share
    cells = np.divide(counts, expected, out=np.zeros_like(expected), where=expected > 0)
    free = max((columns - 1) * (_ROWS - 1), 1)
    squares = np.divide((counts - expected) ** 2, expected, out=np.zeros_like(expected), where=expected > 0)
    return {
        "columns": columns,
        "rows": _ROWS,
        "cells": cells.round(3).tolist(),
        "dispersion": float(squares.sum() / free) if columns > 1 else 1.0,
    }


def gaps(window: Array, records: int) -> dict[str, Any]:
    """Return how far apart, in the dataset, the records are that an epoch has near one place.

    Of k records drawn at random out of n, the gaps in file order are spread as the exponential distribution is, with
    mean n / k. Records that come in clumps have many short gaps and a few long ones.

    Args:
      window: records that follow one another in an epoch.
      records: how many the dataset has.
    Returns:
      A dict: `distance`, Kolmogorov's, the largest difference of the two distributions; `bound`, which a random order
      stays below 19 times in 20; `curve`, the share of gaps above each multiple of their mean; None without two gaps.
    """
    found = np.unique(window)
    if len(found) < 3:
        return {"records": len(found), "distance": None, "bound": None, "curve": []}
    lengths = np.sort(np.diff(found))
    chance = min(len(found) / records, 1 - 1e-12)
    grid, counts = np.unique(lengths, return_counts=True)
    shares = np.cumsum(counts) / len(lengths)
    ideal = 1 - (1 - chance) ** grid  # of whole numbers: nearly the exponential one, where k is much less than n
    before = np.concatenate([[0.0], shares[:-1]])
    distance = max(np.abs(shares - ideal).max(), np.abs(before - (1 - (1 - chance) ** (grid - 1))).max())
    above = 1 - np.searchsorted(lengths, _CURVE / chance, side="right") / len(lengths)
    return {
        "records": len(found),
        "distance": float(distance),
        "bound": float(_ONCE_IN_20 / np.sqrt(len(lengths))),
        "curve": [[round(float(x), 2), round(float(y), 5)] for x, y in zip(_CURVE, above, strict=True)],
    }


def _jump(blocks: list[Block], records: int) -> float | None:
    """Return how far apart records are that are read one after another, as a share of the dataset; 1/3 ideally."""
    jumps = [np.abs(np.diff(block.records)) for block in blocks if len(block.records) > 1]
    return float(np.concatenate(jumps).mean() / records) if jumps else None
