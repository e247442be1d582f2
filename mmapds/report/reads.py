"""The section on reads: what a step asks of the disk."""

from collections.abc import Callable
from typing import Any

import numpy as np

from ..dataset.location import Location
from .blocks import Blocks
from .numbers import Array
from .plans import EpochPlan

PAGE = 4096
_STEPS = 24  # that are looked at
_RECORDS = 60_000  # of all of them


def read_facts(
    plan: EpochPlan, read: Blocks, where: Callable[[int], Location], starts: Array, record_bytes: float
) -> dict[str, Any]:
    """Return what steps read.

    Args:
      where: where a record lies.
      starts: the first record of each source, and how many records there are.
      record_bytes: mean size of a record, for the epoch.
    """
    steps = _some_steps(plan, read)
    found = [step_facts([where(int(record)) for record in step]) for step in steps]
    names = ("records", "bytes", "pages", "sources")
    mean = {name: float(np.mean([each[name] for each in found])) for name in names}
    windows = [len(np.unique(np.searchsorted(starts, block.records, side="right"))) for block in read.blocks]
    return {
        "measured": {"steps": len(found)},
        "steps": found,
        "mean": mean,
        "amplification": mean["pages"] * PAGE / mean["bytes"] if mean["bytes"] else 0.0,
        "pages_of_a_record": mean["pages"] / mean["records"] if mean["records"] else 0.0,
        "epoch_bytes": plan.records * record_bytes,
        "sources": len(starts) - 1,
        "sources_of_some_steps": {
            "steps": len(read.blocks[0].ends) // plan.wanted.ranks,
            "mean": float(np.mean(windows)),
            "max": int(max(windows)),
        },
    }


def _some_steps(plan: EpochPlan, read: Blocks) -> list[Array]:
    """Return the records of some steps: the first ones of blocks, spread evenly."""
    ranks = plan.wanted.ranks
    in_a_step = max(plan.records // max(read.steps, 1), 1)
    count = max(min(_STEPS, _RECORDS // in_a_step, len(read.blocks)), 1)
    chosen = np.linspace(0, len(read.blocks) - 1, count).astype(np.int64).tolist()
    blocks = [read.blocks[at] for at in chosen]
    return [block.records[: block.ends[min(ranks, len(block.ends)) - 1]] for block in blocks]


def step_facts(locations: list[Location]) -> dict[str, int]:
    """Return what the records of one step are on the disk: their bytes, and the different pages and sources.

    Pages are counted as ranges, as an index may claim records of any size.
    """
    ranges: dict[str, list[tuple[int, int]]] = {}
    for each in locations:
        last = (each.offset + max(each.size, 1) - 1) // PAGE
        ranges.setdefault(each.source, []).append((each.offset // PAGE, last + 1))
    return {
        "records": len(locations),
        "bytes": sum(each.size for each in locations),
        "pages": sum(int(np.diff(_merged(np.array(own, np.int64))).sum()) for own in ranges.values()),
        "sources": len(ranges),
    }


def _merged(ranges: Array) -> Array:
    """Return the union of ranges, shape (k, 2), as ranges in ascending order that do not touch: shape (m, 2)."""
    ranges = ranges[ranges[:, 0] < ranges[:, 1]]
    ranges = ranges[np.argsort(ranges[:, 0], kind="stable")]
    reach = np.maximum.accumulate(ranges[:, 1])  # the largest end so far
    first = np.concatenate([[True], ranges[1:, 0] > reach[:-1]])[: len(ranges)]
    last = np.concatenate([first[1:], [True]])[: len(ranges)]
    return np.stack([ranges[first, 0], reach[last]], axis=1)
