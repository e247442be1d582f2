"""The protocol of orders, and the plain ones: sequential, shuffled, with replacement."""

import operator
from functools import lru_cache
from typing import Any, Protocol, SupportsIndex, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .. import _native
from ..errors import OrderError, shortened
from .permutation import Permutation, word

Int64s = NDArray[np.int64]
VERSION = 1
"""Increased when an order changes for the same arguments, so that old states are refused, not misread."""


@runtime_checkable
class Order(Protocol):
    """What samplers need of an order; see `mmapds.orders`."""

    def __len__(self) -> int: ...
    def at(self, epoch: int, positions: Int64s) -> Int64s: ...
    def describe(self) -> dict[str, Any]: ...


def check_is_order(order: Any) -> None:
    """Raise OrderError for what lacks a method that orders have, or has no description that states can compare."""
    if not isinstance(order, Order):
        raise OrderError(
            f"order: expected an order with at(), describe() and a length, found {type(order).__name__} (see "
            "mmapds.orders)"
        )
    expected = f"order: expected describe() of {type(order).__name__} to return a dict that JSON can hold"
    described = order.describe()
    if not isinstance(described, dict):
        raise OrderError(f"{expected}, found {shortened(described)}")
    for key, value in described.items():
        if not is_same(value, value):
            raise OrderError(
                f"{expected}, found {type(value).__name__} at {shortened(key)}; give numbers, text or lists"
            )


def is_same(found: Any, expected: Any) -> bool:
    """Whether a value of a state is what it should be; an array or a tensor of several numbers never is."""
    try:
        return bool(found == expected)
    except (ValueError, RuntimeError):
        return False


def records_at(order: Order, epoch: int, positions: Int64s) -> Int64s:
    """Return the record numbers that an order has at positions, shape (n,), as int64.

    Raises:
      OrderError: `at` of the order, which may be a user's own, returns something else.
    """
    found = order.at(epoch, positions)
    if isinstance(found, np.ndarray) and found.dtype.kind in "iu" and found.shape == positions.shape:
        return found.astype(np.int64, copy=False)
    what = f"one of {found.dtype} and shape {found.shape}" if isinstance(found, np.ndarray) else type(found).__name__
    expected = f"at() of {type(order).__name__} to return an int64 array of shape {positions.shape}"
    raise OrderError(f"order: expected {expected}, found {what}")


def size_of_epoch(order: Order, epoch_size: int | None) -> int:
    """Return how many positions of an order an epoch has: all by default.

    Raises:
      OrderError: the order has fewer.
    """
    most = len(order)
    size = most if epoch_size is None else integer("epoch_size", epoch_size)
    if not 1 <= size <= most:
        hint = "; use orders.Resampled for longer epochs" if size > most else ""
        raise OrderError(f"epoch_size = {shortened(size)}, expected 1 to {most}{hint}")
    return size


def integer(name: str, value: SupportsIndex, least: int | None = None) -> int:
    """Return an integer of any type as an int.

    Args:
      name: what to call the value in an error.
      least: smallest value allowed; values must then be below 2**63.
    Raises:
      OrderError: the value is not an integer, or out of range.
    """
    expected = f"expected an integer{'' if least is None else f' of {least} or more'}"
    if hasattr(type(value), "source_starts"):
        raise OrderError(f"{name}: {expected}, found a dataset; give the number of its records, len(dataset)")
    is_integer = hasattr(type(value), "__index__") and not isinstance(value, bool) and not getattr(value, "ndim", 0)
    try:
        number = operator.index(value) if is_integer else None
    except TypeError:  # an array of a fraction, whose type has integers
        number = None
    if number is not None and (least is None or least <= number < 2**63):
        return number
    if number is not None and number >= 2**63:
        expected = "expected an integer below 2**63"
    raise OrderError(f"{name} = {shortened(value)}, {expected}")


def as_positions(positions: ArrayLike) -> Int64s:
    """Return positions, or record numbers, as the core takes them: a contiguous int64 array."""
    return np.ascontiguousarray(positions, dtype=np.int64)


@lru_cache(maxsize=16)
def _permutation(n: int, seed: int, epoch: int, stream: int = 0) -> Permutation:
    return Permutation(n, seed, epoch, stream)


class OfRecords:
    """What orders of a number of records share."""

    _n: int

    def __len__(self) -> int:
        return self._n

    @property
    def records(self) -> int:
        """How many records the dataset has."""
        return self._n


class Sequential(OfRecords):
    """Record i stands at position i."""

    def __init__(self, n: int) -> None:
        self._n = integer("n", n, 1)

    def at(self, epoch: int, positions: Int64s) -> Int64s:
        """Return the records at `positions`: the same numbers."""
        return as_positions(positions).copy()

    def describe(self) -> dict[str, Any]:
        """Return what identifies this order, for states."""
        return {"order": "sequential", "version": VERSION, "records": self._n}


class Shuffled(OfRecords):
    """Every record once, in an order chosen by (seed, epoch). See `mmapds.Permutation`."""

    def __init__(self, n: int, seed: int = 0) -> None:
        self._n = integer("n", n, 1)
        self._seed = integer("seed", seed)

    def at(self, epoch: int, positions: Int64s) -> Int64s:
        """Return the records at `positions`."""
        return _permutation(self._n, self._seed, epoch)[as_positions(positions)]

    def describe(self) -> dict[str, Any]:
        """Return what identifies this order, for states."""
        return {"order": "shuffled", "version": VERSION, "records": self._n, "seed": self._seed}


class Resampled(OfRecords):
    """Records drawn with replacement. An epoch has any length; a record may come several times in it, or never."""

    is_bijection = False
    """Every record comes once an epoch: true of orders that do not say so."""

    def __init__(self, n: int, epoch_size: int | None = None, seed: int = 0) -> None:
        self._n = integer("n", n, 1)
        self._epoch_size = integer("epoch_size", n if epoch_size is None else epoch_size, 1)
        self._seed = integer("seed", seed)

    def __len__(self) -> int:
        return self._epoch_size

    def at(self, epoch: int, positions: Int64s) -> Int64s:
        """Return the records at `positions`."""
        positions = as_positions(positions)
        out = np.empty_like(positions)
        _native.draw(self._n, word(self._seed), word(epoch), positions, out)
        return out

    def describe(self) -> dict[str, Any]:
        """Return what identifies this order, for states."""
        described = {"order": "resampled", "version": VERSION, "records": self._n, "epoch_size": self._epoch_size}
        return {**described, "seed": self._seed}
