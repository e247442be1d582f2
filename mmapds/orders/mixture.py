"""Several datasets in fixed proportions."""

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from .. import _native
from ..errors import OrderError
from .basic import _WORD, VERSION, Int64s, as_positions, integer


class Mixture:
    """Several datasets in fixed proportions: at any position, each has had its share to within one sample.

    Record numbers count through the datasets in order, as `mmapds.concat` does. Each is shuffled by a key of its own,
    and anew whenever it is used up. Proportions repeat with a period of `sum(order.weights)` positions; the table of
    one period is all that is kept.

    Args:
      sizes: records in each dataset.
      weights: share of each; they need not add up to anything. Shares that are fractions with a common denominator of
        up to 65,536 are kept exactly, others are rounded to 65,536ths: `order.weights` has the integers in use.
      stop: "first" ends an epoch when the first dataset has been seen whole, "longest" when all have.
      epoch_size: positions in an epoch, instead of `stop`.
      shuffle: False reads each dataset in its own order.
    """

    LONGEST_PERIOD = 65_536

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
            raise OrderError(f"{len(weights)} weights for {len(sizes)} datasets, expected one each")
        if stop not in ("first", "longest"):
            raise OrderError(f"stop={stop!r}, expected 'first' or 'longest'")
        self.weights = _integer_weights(weights, self.LONGEST_PERIOD)
        self._sizes = [integer(f"sizes[{d}]", n, 1 if self.weights[d] else 0) for d, n in enumerate(sizes)]
        self._seed = integer("seed", seed)
        self._shuffle = bool(shuffle)
        self._native = self._made()
        if epoch_size is None:
            which = self.members_at(np.arange(sum(self.weights)))
            ends = [self._end(d, which) for d, weight in enumerate(self.weights) if weight]
            self._epoch_size = min(ends) if stop == "first" else max(ends)
        else:
            self._epoch_size = integer("epoch_size", epoch_size, 1)

    def _made(self) -> _native.Mixture:
        weights, sizes = (np.array(each, np.uint64) for each in (self.weights, self._sizes))
        return _native.Mixture(weights=weights, sizes=sizes, seed=self._seed & _WORD, shuffle=self._shuffle)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_native"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._native = self._made()

    def _end(self, member: int, which: Int64s) -> int:
        """The position after the one where a dataset has been seen whole; `which` are the members of a period."""
        period, rank = divmod(self._sizes[member] - 1, self.weights[member])
        return period * len(which) + int(np.flatnonzero(which == member)[rank]) + 1

    def __len__(self) -> int:
        return self._epoch_size

    def members_at(self, positions: Int64s) -> Int64s:
        """Return which dataset each position takes a sample of; the same in every epoch."""
        positions = as_positions(positions)
        out = np.empty_like(positions)
        self._native.which(positions % sum(self.weights), out)
        return out

    def at(self, epoch: int, positions: Int64s) -> Int64s:
        """Return the records at `positions`."""
        positions = as_positions(positions)
        out = np.empty_like(positions)
        self._native.at(epoch & _WORD, positions, out)
        return out

    def describe(self) -> dict[str, Any]:
        """Return what tells this order from others."""
        return {
            "order": "mixture",
            "version": VERSION,
            "sizes": self._sizes,
            "weights": self.weights,
            "epoch_size": self._epoch_size,
            "shuffle": self._shuffle,
            "seed": self._seed,
        }


def _integer_weights(weights: Sequence[float], longest: int) -> list[int]:
    """Integers in the proportions of `weights` that add up to at most `longest`."""
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
    # Largest remainders: whole parts first, then one more to those that lose most; what has weight keeps some.
    whole = [max(int(share * longest), 1 if share else 0) for share in shares]
    lost = sorted(range(len(shares)), key=lambda d: shares[d] * longest - whole[d], reverse=True)
    for d in lost[: max(longest - sum(whole), 0)]:
        whole[d] += 1
    return whole
