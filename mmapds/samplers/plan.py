"""Plans: how an epoch is cut into batches under a budget. Made once from the lengths, read batch by batch.

A plan numbers the batches of an epoch by position, as an order does records; a reader of an epoch tells what is in
them.
"""

from hashlib import blake2b
from typing import Any, NamedTuple, Protocol

import numpy as np

from .. import _native
from .lengths import Int64s, Selection

VERSION = 1
"""Raised when a plan changes for the same arguments, so that an old state is refused and not misread."""
_WORD = 2**64 - 1


class Budget(NamedTuple):
    """What a batch may hold."""

    max_tokens: int
    """Most that the longest length times the number of records may be, in the unit of the lengths."""
    largest: int
    """Most records."""
    multiple: int
    """Sizes of at least this many records are multiples of it."""
    quadratic: int
    """A record of length L costs L + L^2 / quadratic; 0: L."""

    def cost(self, length: int) -> int:
        """What one record costs."""
        return length + (-(-length * length // self.quadratic) if self.quadratic else 0)


class Reader(Protocol):
    """Reads the batches of one epoch."""

    def read(self, positions: Int64s) -> tuple[Int64s, Int64s]:
        """The records of the batches at ascending positions, one after another; and where each batch ends."""


class Plan:
    """What plans have in common: an order of batches (see `mmapds.orders.Order`)."""

    def __init__(self, selection: Selection, records: int, budget: Budget, wanted: int, close: bool, seed: int) -> None:
        self.records = records
        """In the dataset: record numbers are below."""
        self.selection = selection
        self.seed = seed
        self._budget = budget
        values, counts = (np.ascontiguousarray(each) for each in (selection.values, selection.counts))
        found = _native.plan_buckets(budget, values, counts, wanted, close)
        self.buckets = np.frombuffer(found, np.uint64).reshape(-1, 4)
        """Rows of (first rank, first batch, batches, size)."""

    def at(self, epoch: int, positions: Int64s) -> Int64s:
        """Return the positions: what stands at one is known to a reader alone."""
        return positions

    def describe(self) -> dict[str, Any]:
        """Return what tells this plan from others."""
        digest = blake2b(self.selection.values.tobytes() + self.selection.counts.tobytes(), digest_size=8).hexdigest()
        return {
            "version": VERSION,
            "n": self.records,
            "lengths": digest,
            "planned": [self.selection.first, self.selection.records],
            **self._budget._asdict(),
            "seed": self.seed,
        }
