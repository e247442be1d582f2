"""Which record stands at a position of an epoch, and which one is read instead where `exclude=` names it."""

import operator
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import OrderError, shortened
from ..orders.basic import Int64s, Order, records_at, size_of_epoch

Exclude = Iterable[Any]
"""What a sampler's `exclude=` takes: record numbers and half-open ranges (begin, end)."""
_COMPARED = 64  # positions by which the orders of two epochs are compared
_SEARCH = 1 << 16  # positions searched at a time for a replacement


class Excluded:
    """The records that a sampler excludes.

    Args:
      given: record numbers and half-open ranges of them.
      records: how many records there are; None if that is unknown.
    Raises:
      OrderError: they cannot be understood, or do not exist.
    """

    def __init__(self, given: Exclude | None, records: int | None) -> None:
        ranges: list[tuple[int, int]] = []
        if given is not None:
            expected = "expected record numbers and ranges, as in [17, (500, 600)]"
            is_several = isinstance(given, Iterable) and not isinstance(given, Mapping | str | bytes)
            if not is_several or not getattr(given, "ndim", 1):
                raise OrderError(f"exclude = {shortened(given)}, {expected}")
            if str(getattr(given, "dtype", "")).endswith("bool"):
                raise OrderError(f"exclude: {expected}, found a mask; give np.flatnonzero(mask)")
            ranges = [_range(f"exclude[{i}]", each, records) for i, each in enumerate(given)]
        self._begins, self._ends = np.sort(np.array(ranges, np.int64).reshape(-1, 2), axis=0).T.copy()

    def __bool__(self) -> bool:
        return bool(len(self._begins))

    def holds(self, records: Int64s) -> NDArray[np.bool_]:
        """Return whether each of some records is excluded."""
        # Of the ranges that begin at a record or before it, fewer have ended.
        begun, ended = (np.searchsorted(each, records, side="right") for each in (self._begins, self._ends))
        found: NDArray[np.bool_] = begun > ended
        return found

    def describe(self) -> str | None:
        """Return what ranks compare."""
        return blake2b(self._begins.tobytes() + self._ends.tobytes(), digest_size=8).hexdigest() if self else None


def _range(name: str, given: Any, records: int | None) -> tuple[int, int]:
    """Return a record number, or a pair of begin and end, as a range."""
    try:
        pair = (given, operator.index(given) + 1) if hasattr(type(given), "__index__") else given
        begin, end = map(operator.index, pair)
    except (TypeError, ValueError):
        begin, end = -1, -1
    if isinstance(given, bool) or not 0 <= begin <= end < 2**63:
        raise OrderError(f"{name} = {shortened(given)}, expected a number, or (begin, end) with 0 <= begin <= end")
    if records is not None and end > records:
        raise OrderError(f"{name} = {shortened(given)}, expected records below {records}, those of the dataset")
    return begin, end


class OrderedRecords:
    """Records in an order, the first `epoch_size` positions of it.

    Args:
      exclude: records that are not read; others are read instead.
    Raises:
      OrderError: the order has fewer positions, or the exclusion cannot be understood.
    """

    def __init__(self, order: Order, epoch_size: int | None, exclude: Exclude | None = None) -> None:
        self._order = order
        self.describe = order.describe
        self._size = size_of_epoch(order, epoch_size)
        self.excluded = Excluded(exclude, getattr(order, "records", None))

    def __len__(self) -> int:
        return self._size

    def at(self, epoch: int, positions: Int64s) -> Int64s:
        """Return the records at positions, in the shape of these."""
        found = records_at(self._order, epoch, positions.ravel())
        if self.excluded and (wrong := self.excluded.holds(found)).any():
            found = found.copy()
            found[wrong] = [self._replacement(epoch, position) for position in positions.ravel()[wrong].tolist()]
        return found.reshape(positions.shape)

    def _replacement(self, epoch: int, position: int) -> int:
        """Return the record half an epoch after a position; where that is excluded too, the next one that is not."""
        first, begin, count = position + self._size // 2, 0, 1
        while begin < self._size:
            places = np.arange(first + begin, first + min(begin + count, self._size), dtype=np.uint64)
            found = records_at(self._order, epoch, (places % np.uint64(self._size)).astype(np.int64))
            left = found[~self.excluded.holds(found)]
            if len(left):
                return int(left[0])
            begin, count = begin + count, min(2 * count, _SEARCH)
        raise OrderError(f"exclude: expected records that are left in epoch {epoch}, found all excluded")

    def changes_after(self, epoch: int) -> bool:
        """Return whether the next epoch has another order."""
        first = np.arange(min(self._size, _COMPARED), dtype=np.int64)
        one, other = (records_at(self._order, each, first) for each in (epoch, epoch + 1))
        return not np.array_equal(one, other)
