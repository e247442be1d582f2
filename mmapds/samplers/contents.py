"""What stands at the positions of an epoch: the contract, and records in an order."""

from typing import Any, Protocol

import numpy as np

from ..errors import OrderError, shortened
from ..orders.basic import Int64s, InvertibleOrder, Order, Sequential, integer, records_at
from .exclusions import LARGEST, Ranges, clipped, members, merged, runs_of_numbers

_SEARCH = 1 << 20  # positions searched at a time for excluded records
_COMPARED = 64  # positions by which orders of two epochs are compared


class EpochContents(Protocol):
    """What stands at the positions of every epoch: records in an order, or the batches of a plan."""

    def __len__(self) -> int:
        """Return the positions in an epoch."""

    def describe(self) -> dict[str, Any]:
        """Return what identifies the contents, for states."""

    @property
    def records(self) -> int | None:
        """How many records the dataset has, in the epoch or not; None where that is unknown."""

    def positions_holding(self, epoch: int, records: Ranges) -> Int64s:
        """Return the positions that hold nothing but these records, as ranges: shape (k, 2)."""

    def changes_after(self, epoch: int) -> bool:
        """Return whether the next epoch has another order."""


class OrderedRecords:
    """Records in an order, the first `epoch_size` positions of it.

    Raises:
      OrderError: the order has fewer positions.
    """

    def __init__(self, order: Order, epoch_size: int | None) -> None:
        self._order = order
        self.describe = order.describe
        most = len(order)
        self._size = most if epoch_size is None else integer("epoch_size", epoch_size)
        if not 1 <= self._size <= most:
            hint = "; use orders.Resampled for longer epochs" if self._size > most else ""
            raise OrderError(f"epoch_size = {shortened(self._size)}, expected 1 to {most}{hint}")

    def __len__(self) -> int:
        return self._size

    @property
    def records(self) -> int | None:
        """How many records the dataset has; None for an order that does not say."""
        return records_of(self._order)

    def at(self, epoch: int, positions: Int64s) -> Int64s:
        """Return the records at positions, in the shape of these."""
        return records_at(self._order, epoch, positions.ravel()).reshape(positions.shape)

    def changes_after(self, epoch: int) -> bool:
        """Return whether the next epoch has another order."""
        first = np.arange(min(self._size, _COMPARED), dtype=np.int64)
        return not np.array_equal(self.at(epoch, first), self.at(epoch + 1, first))

    def positions_holding(self, epoch: int, records: Ranges) -> Int64s:
        """Return where these records stand: from the order's `positions_of`, else by a search of the epoch."""
        if type(self._order) is Sequential:  # a class derived from it may have another order
            return clipped(records, self._size)
        if isinstance(self._order, InvertibleOrder):
            wanted = members(records, len(self._order))
            found = self._order.positions_of(epoch, wanted) if len(wanted) else wanted
            return runs_of_numbers(found[found < self._size])
        bounds = merged(clipped(records, LARGEST)).ravel()
        parts = []
        for first in range(0, self._size, _SEARCH):
            positions = np.arange(first, min(first + _SEARCH, self._size), dtype=np.int64)
            # A record is in a range where an odd number of bounds is not above it.
            before = np.searchsorted(bounds, records_at(self._order, epoch, positions), side="right")
            parts.append(positions[before % 2 == 1])
        return runs_of_numbers(np.concatenate(parts))


def records_of(order: Order) -> int | None:
    """Return how many records the dataset has that an order is for; None if it does not say."""
    records: int | None = getattr(order, "records", len(order) if isinstance(order, InvertibleOrder) else None)
    return records
