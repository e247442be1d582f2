"""A keyed permutation: the shuffled order of an epoch, in constant memory."""

from __future__ import annotations  # help() shows them as they are written

import operator
from typing import Any, SupportsIndex, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .. import _native


def word(value: SupportsIndex) -> int:
    """Return an integer modulo 2**64, as the core takes seeds and epochs."""
    return operator.index(value) & (2**64 - 1)


def _number(name: str, value: Any) -> int:
    """Return one position or value as an int; raise IndexError for a bool, which Python takes for 0 or 1."""
    if isinstance(value, bool | np.bool_) or str(getattr(value, "dtype", "")) in ("bool", "torch.bool"):
        raise IndexError(f"{name} = {bool(value)}, expected an integer, found a bool; give {int(value)}")
    return operator.index(value)


class Permutation:
    """A random order of [0, n), chosen by (seed, epoch); nothing is stored.

        order = mmapds.Permutation(10**9, seed=7, epoch=3)
        record = order[0]
        position = order.inverse(record)

    The same arguments give the same permutation on every machine. csrc/permute.c has the construction and its source;
    it is not cryptographic: whoever sees enough values may predict others.

    Args:
      n: size of the domain, 1 <= n < 2**63.
      seed: any integer; taken modulo 2**64.
      epoch: any integer; hashed with the seed, so that (0, 1) and (1, 0) have nothing in common.
      stream: chooses independent permutations of the same seed and epoch.
    Raises:
      ValueError: n is out of range.
    """

    def __init__(self, n: int, seed: int = 0, epoch: int = 0, stream: int = 0) -> None:
        n = operator.index(n)
        if not 1 <= n < 2**63:
            raise ValueError(f"n = {n}, expected 1 <= n < 2**63")
        self.n, self.seed, self.epoch, self.stream = n, seed, epoch, stream
        self.native = _native.Permutation(n, word(seed), word(epoch), word(stream))

    def __len__(self) -> int:
        return self.n

    @overload
    def __getitem__(self, positions: int) -> int: ...
    @overload
    def __getitem__(self, positions: slice | ArrayLike) -> NDArray[np.int64]: ...
    def __getitem__(self, positions: Any) -> Any:
        """Return the value at a position; an int64 array for a slice or an array.

        Negative ints and slices count as in a list; the values of an array must lie in [0, n).

        Raises:
          IndexError: a position is out of range.
        """
        if isinstance(positions, slice):
            return self.range(range(self.n)[positions])
        if np.ndim(positions) == 0:
            position = _number("positions", positions)
            if not -self.n <= position < self.n:
                raise IndexError(f"position {position} is out of range for a permutation of {self.n}")
            return self.native.one(position % self.n, False)
        return self._array(positions, inverse=False)

    def range(self, positions: range) -> NDArray[np.int64]:
        """Return the values at a range of positions, fastest."""
        out = np.empty(len(positions), np.int64)
        self.native.range(positions.start, positions.step, out)
        return out

    @overload
    def inverse(self, values: int) -> int: ...
    @overload
    def inverse(self, values: ArrayLike) -> NDArray[np.int64]: ...
    def inverse(self, values: Any) -> Any:
        """Return the positions of `values` below n: `p.inverse(p[i]) == i`."""
        if np.ndim(values) == 0:
            return self.native.one(_number("values", values), True)
        return self._array(values, inverse=True)

    def _array(self, values: ArrayLike, *, inverse: bool) -> NDArray[np.int64]:
        given = np.asarray(values)
        if given.size and given.dtype.kind not in "iu":
            name = "values" if inverse else "positions"
            raise IndexError(f"{name}: expected an array of integers, found dtype {given.dtype}")
        given = np.ascontiguousarray(given, dtype=np.int64)
        out = np.empty_like(given)
        self.native.array(given, out, inverse)
        return out

    def __repr__(self) -> str:
        stream = f", stream={self.stream}" if self.stream else ""
        return f"Permutation({self.n}, seed={self.seed}, epoch={self.epoch}{stream})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Permutation, (self.n, self.seed, self.epoch, self.stream)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Permutation) and self.__reduce__() == other.__reduce__()

    def __hash__(self) -> int:
        return hash(self.__reduce__()[1])
