"""The section on batches: how full they are, how large, and how equal the ranks of a step."""

from typing import Any

import numpy as np

from .blocks import Blocks
from .numbers import Array, distinct, edges_of, histogram, quantiles
from .plans import EpochPlan

_STRIP = 48  # steps of which each rank's cost is given


def batch_facts(plan: EpochPlan, read: Blocks) -> dict[str, Any]:
    """Return how the batches of an epoch are; what is measured is of the batches that were read."""
    sizes, ranks = read.sizes, plan.wanted.ranks
    facts: dict[str, Any] = {
        "kind": plan.kind,
        "limit": plan.limit,
        "ranks": ranks,
        "seed": plan.wanted.seed,
        "steps": plan.steps,
        "batches": len(plan.batches),
        "records": plan.records,
        "tokens": plan.tokens,
        "left_out": plan.left_out,
        "measured": {"batches": len(sizes), "is_whole": read.is_whole},
        "sizes": _spread(sizes),
    }
    if plan.lengths is None:
        return facts
    lengths = exact(plan.lengths(read.records))
    facts |= fill_facts(lengths, sizes, plan.kind)
    if plan.kind != "fixed" and plan.tokens is not None:
        facts["fill"] = plan.tokens / (len(plan.batches) * plan.limit)
    facts["cost"] = cost_facts(costs_of(lengths, sizes, plan.kind), ranks)
    return facts


def _spread(numbers: Array) -> dict[str, Any]:
    values, counts = distinct(numbers)
    edges = edges_of(values, counts)
    return {"quantiles": quantiles(values, counts), "edges": edges, "batches": histogram(values, counts, edges)}


def exact(lengths: Array) -> Array:
    """Return lengths as integers whose sums, and products with numbers of records, are exact: of Python, if large."""
    is_small = int(lengths.max(initial=0)) * len(lengths) < 2**63
    return lengths.astype(np.int64 if is_small else object)


def _begins(sizes: Array) -> Array:
    ends = np.cumsum(sizes)
    begins: Array = ends - sizes
    return begins


def fill_facts(lengths: Array, sizes: Array, kind: str) -> dict[str, Any]:
    """Return how much of batches is tokens.

    Args:
      lengths: of the records, batch after batch.
      sizes: how many records each batch has.
      kind: packs have no padding inside; else a batch is as wide as its longest record.
    """
    tokens = np.add.reduceat(lengths, _begins(sizes))
    facts: dict[str, Any] = {"tokens_of_batches": _spread(tokens)}
    if kind != "packs":
        padded = np.maximum.reduceat(lengths, _begins(sizes)) * sizes
        places = int(padded.sum())
        facts["padding"] = 1 - int(tokens.sum()) / places if places else 0.0
        facts["padded_of_batches"] = _spread(padded)
    return facts


def costs_of(lengths: Array, sizes: Array, kind: str) -> Array:
    """Return what each batch costs: the size of its padded tensor; of a pack, the sum of its squared lengths."""
    begins = _begins(sizes)
    if kind == "packs":
        costs: Array = np.add.reduceat(lengths.astype(np.float64) ** 2, begins)
        return costs
    padded: Array = np.maximum.reduceat(lengths, begins) * sizes
    return padded.astype(np.float64)


def cost_facts(costs: Array, ranks: int) -> dict[str, Any] | None:
    """Return how equal the ranks of a step are; None without a whole step of some cost.

    Args:
      costs: of batches, each step's in order of ranks.
    Returns:
      A dict: `imbalance`, the largest cost of a step divided by the mean, as mean over steps, 99th percentile and
      largest; `waiting`, the share of all ranks' time that they wait for the slowest one; `by_rank`, the mean cost of
      each rank in terms of its step's; `strip`, some steps, each with the cost of its ranks in these terms.
    """
    whole = len(costs) // ranks * ranks
    steps = costs[:whole].reshape(-1, ranks)
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
    """Return the share of padding that random batches of a size have: what planning by length saves.

    The longest of `size` lengths drawn at random is expected to be the sum over lengths of the chance to reach each.

    Args:
      values: the different lengths, rising.
      counts: how many records have each.
    """
    below = np.cumsum(counts, dtype=np.float64) / float(counts.sum())
    powers = below ** max(size, 1.0)
    longest = float((values * np.diff(powers, prepend=0.0)).sum())
    mean = float((values.astype(np.float64) * counts).sum() / float(counts.sum()))
    return 1 - mean / longest if longest else 0.0
