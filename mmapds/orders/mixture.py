"""Several datasets in fixed proportions."""

from __future__ import annotations  # help() shows them as they are written

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from .. import _native
from ..errors import OrderError, names_its_arguments
from .basic import VERSION, Int64s, as_positions, integer
from .permutation import word


class Mixture:
    """Mixes datasets in fixed proportions: up to any position, each has its share to within one sample.

    Record numbers count through the datasets in order, as those of `mmapds.concat` do. Each dataset is shuffled on its
    own, and again each time all of it has been read. Proportions repeat with a period of `sum(order.weights)`
    positions; a table of one period is all that is stored.

    Args:
      sizes: records in each dataset.
      weights: share of each, on any scale. Shares that are fractions with a common denominator of up to 65,536 are
        exact; others are rounded to 65,536ths. `order.weights` has the integers in use.
      seed: chooses the orders.
      stop: "first" ends an epoch when one dataset has been read whole, "longest" when all have.
      epoch_size: positions in an epoch, instead of `stop`.
      shuffle: False reads each dataset in its own order.
    Raises:
      OrderError: an argument is out of range.
    """

    LONGEST_PERIOD = 65_536

    @names_its_arguments("orders.Mixture", error=OrderError)
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
        if len(sizes) != len(weights):
            raise OrderError(f"weights: expected {len(sizes)}, one for each dataset, found {len(weights)}")
        if stop not in ("first", "longest"):
            raise OrderError(f"stop = {stop!r}, expected 'first' or 'longest'")
        self.weights = _integer_weights(weights, self.LONGEST_PERIOD)
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
            which = self.members_at(np.arange(sum(self.weights)))
            ends = [self._end(d, which) for d, weight in enumerate(self.weights) if weight]
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

    def _end(self, member: int, which: Int64s) -> int:
        """Return the positions after which a dataset has been read whole; `which` are the members of a period."""
        period, rank = divmod(self._sizes[member] - 1, self.weights[member])
        return period * len(which) + int(np.flatnonzero(which == member)[rank]) + 1

    def __len__(self) -> int:
        return self._epoch_size

    @property
    def records(self) -> int:
        """How many records the datasets have together."""
        return sum(self._sizes)

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


def _integer_weights(weights: Sequence[float], longest: int) -> list[int]:
    """Return integers in the proportions of `weights`, with a sum of at most `longest`."""
    values = np.asarray(weights, float)
    if values.ndim != 1 or not len(values):
        raise OrderError(f"weights = {weights}, expected one number for each dataset")
    if not np.isfinite(values).all() or (values < 0).any() or not values.any():
        raise OrderError(f"weights = {list(weights)}, expected finite numbers of 0 or more, not all 0")
    total = sum(Fraction(weight) for weight in values.tolist())
    shares = [Fraction(weight) / total for weight in values.tolist()]
    simple = [share.limit_denominator(longest) for share in shares]
    denominator = int(np.lcm.reduce([share.denominator for share in simple], dtype=object))
    exact = all(abs(near - share) <= share / 2**40 for near, share in zip(simple, shares, strict=True))
    if exact and sum(simple) == 1 and denominator <= longest:
        return [int(share * denominator) for share in simple]
    # Largest remainders: whole parts first, then one more for those that lost most. A weight above 0 keeps 1 or more.
    whole = [max(int(share * longest), 1 if share else 0) for share in shares]
    lost = sorted(range(len(shares)), key=lambda d: shares[d] * longest - whole[d], reverse=True)
    for d in lost[: max(longest - sum(whole), 0)]:
        whole[d] += 1
    return whole
