"""Several datasets in fixed proportions."""

from __future__ import annotations  # help() shows them as they are written

from collections.abc import Sequence
from fractions import Fraction
from math import lcm
from typing import Any

import numpy as np

from .. import _native
from ..errors import OrderError, shortened
from .basic import VERSION, Int64s, as_positions, integer
from .permutation import word

_PERIOD = 65_536  # positions after which proportions repeat, at most, where datasets are few
_POSITIONS = 64  # of a period for each dataset, where they are many


class Mixture:
    """Mixes datasets in fixed proportions: up to any position, each has its share to within one sample.

    Record numbers count through the datasets in order, as those of `mmapds.concat` do. Each dataset is shuffled on its
    own, and again each time all of it has been read. Proportions repeat with a period of `sum(order.weights)`
    positions; a table of one period is all that is stored.

    Args:
      sizes: records in each dataset.
      weights: share of each, on any scale. Shares that are fractions with a common denominator of up to 65,536, or 64
        times the number of datasets if that is more, are exact; others are rounded to parts of such a period. A share
        that is smaller than one of these is one, at the cost of the others. `order.weights` has the integers in use.
      seed: chooses the orders.
      stop: "first" ends an epoch when one dataset has been read whole, "longest" when all have.
      epoch_size: positions in an epoch, instead of `stop`.
      shuffle: False reads each dataset in its own order.
    Raises:
      OrderError: an argument is out of range.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        weights: Sequence[float],
        *,
        seed: int = 0,
        stop: str = "first",
        epoch_size: int | None = None,
        shuffle: bool = True,
    ) -> None:
        if not hasattr(sizes, "__len__") or not getattr(sizes, "ndim", 1):
            raise OrderError(f"sizes = {shortened(sizes)}, expected one number for each dataset")
        if stop not in ("first", "longest"):
            raise OrderError(f"stop = {stop!r}, expected 'first' or 'longest'")
        self.weights = _integer_weights(weights, len(sizes))
        self._sizes = [integer(f"sizes[{d}]", n, 0) for d, n in enumerate(sizes)]
        for d, size in enumerate(self._sizes):
            if self.weights[d] and not size:
                raise OrderError(
                    f"sizes[{d}] = 0, expected 1 or more records in a dataset that has a share; give it the weight 0"
                )
        if self.records >= 2**63:
            raise OrderError(f"sizes: expected fewer than 2**63 records together, found {self.records}")
        self._seed = integer("seed", seed)
        self._shuffle = bool(shuffle)
        self._native = self._made()
        if epoch_size is None:
            ends = self._ends()
            self._epoch_size = min(ends) if stop == "first" else max(ends)
            if self._epoch_size >= 2**63:
                raise OrderError(
                    f"epoch_size: expected an epoch of fewer than 2**63 samples, found {self._epoch_size} until the "
                    f"{stop} dataset ends; give epoch_size"
                )
        else:
            self._epoch_size = integer("epoch_size", epoch_size, 1)

    def _made(self) -> _native.Mixture:
        weights, sizes = (np.array(each, np.uint64) for each in (self.weights, self._sizes))
        return _native.Mixture(weights=weights, sizes=sizes, seed=word(self._seed), shuffle=self._shuffle)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_native"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._native = self._made()

    def _ends(self) -> list[int]:
        """Return the positions after which each dataset that has a share has been read whole."""
        total = sum(self.weights)
        positions = np.argsort(self.members_at(np.arange(total)), kind="stable")  # those of each dataset together
        ends, first = [], 0
        for size, weight in zip(self._sizes, self.weights, strict=True):
            if weight:
                period, rank = divmod(size - 1, weight)
                ends.append(period * total + int(positions[first + rank]) + 1)
            first += weight
        return ends

    def __len__(self) -> int:
        return self._epoch_size

    @property
    def records(self) -> int:
        """How many records the datasets have together."""
        return sum(self._sizes)

    @property
    def is_bijection(self) -> bool:
        """Whether every record comes once an epoch: where the weights are in the proportions of the sizes."""
        read = sum(size for size, weight in zip(self._sizes, self.weights, strict=True) if weight)
        return read == self.records == self._epoch_size == max(self._ends())

    def members_at(self, positions: Int64s) -> Int64s:
        """Return the dataset that each position reads; the same in every epoch."""
        positions = as_positions(positions)
        out = np.empty_like(positions)
        self._native.which(positions % sum(self.weights), out)
        return out

    def at(self, epoch: int, positions: Int64s) -> Int64s:
        """Return the records at `positions`."""
        positions = as_positions(positions)
        out = np.empty_like(positions)
        self._native.at(word(epoch), positions, out)
        return out

    def describe(self) -> dict[str, Any]:
        """Return what identifies this order, for states."""
        return {
            "order": "mixture",
            "version": VERSION,
            "sizes": list(self._sizes),
            "weights": list(self.weights),
            "epoch_size": self._epoch_size,
            "shuffle": self._shuffle,
            "seed": self._seed,
        }


def _integer_weights(weights: Sequence[float], datasets: int) -> list[int]:
    """Return integers in the proportions of `weights`."""
    try:
        values = np.asarray(weights, float)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # the last one of tensors that require gradients
        values = np.empty(())
    if values.ndim != 1 or not datasets:
        raise OrderError(f"weights = {shortened(weights)}, expected one number for each dataset")
    if len(values) != datasets:
        raise OrderError(f"weights: expected {datasets}, one for each dataset, found {len(values)}")
    if not np.isfinite(values).all() or (values < 0).any() or not values.any():
        raise OrderError(f"weights = {shortened(list(weights))}, expected finite numbers of 0 or more, not all 0")
    parts = [Fraction(weight) for weight in values.tolist()]
    total = sum(parts)
    shares = [part / total for part in parts]
    longest = max(_PERIOD, _POSITIONS * int((values > 0).sum()))
    near, period = [], 1
    for share in shares:
        near.append(share.limit_denominator(longest))
        period = lcm(period, near[-1].denominator)
        if period > longest or abs(near[-1] - share) * 2**40 > share:
            return _rounded(shares, longest)
    return [int(share * period) for share in near] if sum(near) == 1 else _rounded(shares, longest)


def _rounded(shares: list[Fraction], longest: int) -> list[int]:
    """Return integers with the sum `longest`, by largest remainders; a share above 0 has 1 or more."""
    whole, left, rest = [0] * len(shares), longest, Fraction(1)
    rising = sorted((share, d) for d, share in enumerate(shares) if share)
    while rising[0][0] * left < rest:
        share, d = rising.pop(0)
        whole[d], left, rest = 1, left - 1, rest - share
    exact = {d: share * left / rest for share, d in rising}
    for d, each in exact.items():
        whole[d] = int(each)
    by_remainder = sorted(exact, key=lambda d: (-(exact[d] % 1), d))
    for d in by_remainder[: longest - sum(whole)]:
        whole[d] += 1
    return whole
