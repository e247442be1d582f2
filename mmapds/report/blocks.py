"""Blocks of neighbouring steps, spread evenly over an epoch: what a report reads of a plan."""

from typing import NamedTuple

import numpy as np

from ..orders.basic import Int64s
from .plans import EpochPlan

_BLOCKS = 201  # odd, so that one lies in the middle
_RECORDS = 4096  # of a block, at least; gaps between so many have a distribution that can be told from another


class Block(NamedTuple):
    """Batches of steps that follow one another, each step's in order of ranks."""

    first_step: int
    records: Int64s
    """Of all batches, one after another."""
    ends: Int64s
    """Where each batch ends."""


class Blocks(NamedTuple):
    """What was read of an epoch."""

    blocks: list[Block]
    steps: int
    """Whole steps of the epoch."""
    is_whole: bool
    """Whether all of these were read."""

    @property
    def records(self) -> Int64s:
        """All records, block after block."""
        return np.concatenate([block.records for block in self.blocks])

    @property
    def sizes(self) -> Int64s:
        """The number of records in each batch."""
        return np.concatenate([np.diff(block.ends, prepend=0) for block in self.blocks])

    def steps_of_batches(self, ranks: int) -> Int64s:
        """Return the step that each batch is in."""
        parts = [block.first_step + np.arange(len(block.ends)) // ranks for block in self.blocks]
        return np.concatenate(parts)


def read_blocks(plan: EpochPlan, epoch: int = 0) -> Blocks:
    """Read blocks of whole steps: all of a short epoch, else some, of which the first and the last are its ends.

    An epoch that has no whole step is a block of what there is.
    """
    ranks, batches = plan.wanted.ranks, len(plan.batches)
    steps = max(batches // ranks, 1)
    in_a_step = max(plan.records / steps, 1)
    size = min(max(int(min(_RECORDS, plan.records / 64) / in_a_step), 1), steps)
    count = min(-(-steps // size), _BLOCKS)
    is_whole = count * size >= steps
    firsts = np.arange(count) * size if is_whole else np.linspace(0, steps - size, count).astype(np.int64)
    read, found = plan.batches.reader(epoch), []
    for first in firsts.tolist():
        positions = np.arange(first * ranks, min((first + min(size, steps - first)) * ranks, batches), dtype=np.int64)
        found.append(Block(first, *read(positions)))
    return Blocks(found, steps, is_whole)
