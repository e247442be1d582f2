"""What an order is, and the orders that are one permutation, or none."""

import operator
from functools import lru_cache
from typing import Any, Protocol, SupportsIndex, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .. import _native
from ..errors import OrderError
from .permutation import Permutation

Int64s = NDArray[np.int64]
VERSION = 1
"""Raised when an order changes for the same arguments, so that an old state is refused and not misread."""
_WORD = 2**64 - 1


@runtime_checkable
class Order(Protocol):
    """The face of every order."""

    def __len__(self) -> int: ...
    def at(self, epoch: int, positions: Int64s) -> Int64s: ...
    def describe(self) -> dict[str, Any]: ...


def integer(name: str, value: SupportsIndex, least: int | None = None) -> int:
    """Return an argument as an int, whatever kind of integer it is; with `least`, from there to 2**63.

    Raises:
      OrderError: it is not one.
    """
    number = operator.index(value) if hasattr(value, "__index__") else None
    if number is not None and (least is None or least <= number < 2**63):
        return number
    raise OrderError(f"{name} = {value!r}, expected an integer{'' if least is None else f' of {least} or more'}")


def as_positions(positions: ArrayLike) -> Int64s:
    return np.ascontiguousarray(positions, dtype=np.int64)


@lru_cache(maxsize=16)
def _permutation(n: int, seed: int, epoch: int, stream: int = 0) -> Permutation:
    return Permutation(n, seed, epoch, stream)


class Sequential:
    """Record i at position i."""

    def __init__(self, n: int) -> None:
        self._n = integer("n", n, 1)

    def __len__(self) -> int:
        return self._n

    def at(self, epoch: int, positions: Int64s) -> Int64s:
        """Return the positions themselves."""
        return as_positions(positions).copy()

    def positions_of(self, epoch: int, records: Int64s) -> Int64s:
        """Return where records stand."""
        return as_positions(records).copy()

    def describe(self) -> dict[str, Any]:
        """Return what tells this order from others."""
        return {"order": "sequential", "version": VERSION, "n": self._n}


class Shuffled:
    """All records, each once, in an order that (seed, epoch) choose. See `mmapds.Permutation`."""

    def __init__(self, n: int, seed: int = 0) -> None:
        self._n = integer("n", n, 1)
        self._seed = integer("seed", seed)

    def __len__(self) -> int:
        return self._n

    def at(self, epoch: int, positions: Int64s) -> Int64s:
        """Return the records at `positions`."""
        return _permutation(self._n, self._seed, epoch)[as_positions(positions)]

    def positions_of(self, epoch: int, records: Int64s) -> Int64s:
        """Return where records stand."""
        return _permutation(self._n, self._seed, epoch).inverse(as_positions(records))

    def describe(self) -> dict[str, Any]:
        """Return what tells this order from others."""
        return {"order": "shuffled", "version": VERSION, "n": self._n, "seed": self._seed}


class Resampled:
    """Records drawn with replacement: an epoch is as long as you like, and a record may come again or not at all."""

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
        _native.draw(self._n, self._seed & _WORD, epoch & _WORD, positions, out)
        return out

    def describe(self) -> dict[str, Any]:
        """Return what tells this order from others."""
        described = {"order": "resampled", "version": VERSION, "n": self._n, "epoch_size": self._epoch_size}
        return {**described, "seed": self._seed}
