"""The records at the positions of an order, with replacements for excluded ones."""

import operator
from collections.abc import Iterable, Mapping
from contextlib import suppress
from copy import copy
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import OrderError, shortened
from ..orders.basic import Chunked, Int64s, Mixture, Order, integer, records_at, size_of_epoch
from ..orders.drawn import Parts
from ..orders.schedule import Changing

Exclude = Iterable[Any]
"""What a sampler's `exclude=` takes: record numbers and half-open ranges (begin, end)."""
_SEARCH = 1 << 16  # positions searched at a time for a replacement


class Excluded:
    """The records that a sampler excludes: numbers and half-open ranges, below `records` unless that is None."""

    def __init__(self, given: Exclude | None, records: int | None) -> None:
        ranges: list[tuple[int, int]] = []
        if given is not None:
            is_several = isinstance(given, Iterable) and not isinstance(given, Mapping | str | bytes)
            is_mask = str(getattr(given, "dtype", "")).endswith("bool")
            if not is_several or not getattr(given, "ndim", 1) or is_mask:
                found = "a mask" if is_mask else shortened(given)
                raise OrderError(f"exclude = {found}, expected record numbers and ranges, as in [17, (500, 600)]")
            ranges = [_range(f"exclude[{i}]", each, records) for i, each in enumerate(given)]
        self._begins, self._ends = np.sort(np.array(ranges, np.int64).reshape(-1, 2), axis=0).T.copy()

    def __bool__(self) -> bool:
        return bool(len(self._begins))

    def holds(self, records: Int64s) -> NDArray[np.bool_]:
        """Return a mask of the excluded ones among `records`."""
        # A record is excluded if more ranges have begun than ended there.
        begun, ended = (np.searchsorted(each, records, side="right") for each in (self._begins, self._ends))
        found: NDArray[np.bool_] = begun > ended
        return found

    def describe(self) -> str | None:
        """Return a hash that ranks compare."""
        return blake2b(self._begins.tobytes() + self._ends.tobytes(), digest_size=8).hexdigest() if self else None


def _range(name: str, given: Any, records: int | None) -> tuple[int, int]:
    """Return the range of a record number, or of a pair (begin, end)."""
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
    """The records at the first positions of an order, with replacements for excluded ones."""

    def __init__(self, order: Order, epoch_size: int | None, exclude: Exclude | None = None) -> None:
        self.order = order
        self._size = size_of_epoch(order, epoch_size)
        self.excluded = Excluded(exclude, getattr(order, "records", None))
        self.members: list[str] = []
        """Fingerprints of the datasets of a mixture, if they are known."""

    def __len__(self) -> int:
        return self._size

    def describe(self) -> dict[str, Any]:
        """Return the identity of the order."""
        return self.order.describe()

    def of_state(self, saved: object) -> "OrderedRecords":
        """Return these records with what a state keeps of its order: lanes, or weights that a job changed."""
        found = copy(self)
        if isinstance(saved, Mapping):
            with suppress(OrderError):  # the comparison with the state names the difference
                if isinstance(self.order, Chunked):
                    found.order = self.order._with_lanes(saved.get("lanes", 1), saved.get("lane_ranks", 1))
                if isinstance(self._whole, Mixture | Changing) and saved.get("order") == Changing._name:
                    found._set_whole(Changing._of(self._whole)._of_state(saved))
        return found

    @property
    def _whole(self) -> Order:
        """The order of a whole pass."""
        return self.order.order if isinstance(self.order, Parts) else self.order

    def _set_whole(self, order: Order) -> None:
        self.order = Parts(order, len(self.order)) if isinstance(self.order, Parts) else order

    def continue_from(self, state: Mapping[str, Any]) -> tuple[int, int]:
        """Follow another mixture as far as a state of it; return the epoch and the position there.

        Raises:
          OrderError: one of them is no mixture, or their seeds or datasets differ.
        """
        saved, whole, dataset = state["order"], self._whole, state["dataset"] or {}
        if not isinstance(whole, Mixture | Changing):
            raise OrderError(f"continue_from: expected a mixture, found {type(whole).__name__}")
        epoch, position = (integer(f"state[{key!r}]", state[key], 0) for key in ("epoch", "position"))
        if "part_size" in saved:
            epoch, position = divmod(epoch * saved["part_size"] + position, saved["epoch_size"])
        elif position == state["epoch_size"]:
            epoch, position = epoch + 1, 0
        changed = Changing._of(whole)._after(saved, epoch, position)
        self._check_members(dataset.get("members", "").split(), changed.unchanged(saved))
        self._set_whole(changed)
        if isinstance(self.order, Parts):
            return divmod(epoch * len(changed) + position, len(self.order))
        self._size = len(changed)
        return epoch, position

    def _check_members(self, saved: list[str], unchanged: list[bool]) -> None:
        """Raise OrderError if a dataset is another one than that of the state, though it has as many records."""
        for d, (before, now, is_same) in enumerate(zip(saved, self.members, unchanged, strict=False)):
            if is_same and before != now:
                raise OrderError(
                    f"datasets[{d}]: expected {before}, that of the state, found {now}; give the datasets of the "
                    "state in its order, and new ones behind them"
                )

    def at(self, epoch: int, positions: Int64s) -> Int64s:
        """Return the records at `positions`, in the same shape."""
        found = records_at(self.order, epoch, positions.ravel())
        if self.excluded and (wrong := self.excluded.holds(found)).any():
            found = found.copy()
            found[wrong] = [self._replacement(epoch, position) for position in positions.ravel()[wrong].tolist()]
        return found.reshape(positions.shape)

    def _replacement(self, epoch: int, position: int) -> int:
        """Return the record half an epoch after a position, or the next one that is not excluded."""
        first, begin, count = position + self._size // 2, 0, 1
        while begin < self._size:
            places = np.arange(first + begin, first + min(begin + count, self._size), dtype=np.uint64)
            found = records_at(self.order, epoch, (places % np.uint64(self._size)).astype(np.int64))
            left = found[~self.excluded.holds(found)]
            if len(left):
                return int(left[0])
            begin, count = begin + count, min(2 * count, _SEARCH)
        raise OrderError(f"exclude: expected records to read in epoch {epoch}, found all excluded")
