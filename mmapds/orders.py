"""Orders: from a position in an epoch to a record number, computed where it is asked for and stored nowhere.

An order is a pure function of (seed, epoch, position). That is why a sampler can resume at any step at once, and go on
with another number of replicas: there is no state but the position.

Write your own with three methods and pass it to any sampler as `order=`:

  len(order)                    positions in an epoch
  order.at(epoch, positions)    int64 record numbers at an int64 array of positions, each in [0, len(order))
  order.describe()              what tells it from other orders: a dict that JSON can hold

An order may also have `positions_of(epoch, records)`, the positions of some records in no particular order; samplers
that are told to exclude records then need not search the epoch for them.
"""

import operator
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Protocol, SupportsIndex, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import _native
from .errors import OrderError
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


def _count(name: str, value: SupportsIndex, least: int = 1) -> int:
    count = operator.index(value) if hasattr(value, "__index__") else -1
    if not least <= count < 2**63:
        raise OrderError(f"{name} = {value!r}, expected an integer of {least} or more")
    return count


def integer(name: str, value: SupportsIndex) -> int:
    """Return an argument as an int, whatever kind of integer it is.

    Raises:
      OrderError: it is none.
    """
    if not hasattr(value, "__index__"):
        raise OrderError(f"{name} = {value!r}, expected an integer")
    return operator.index(value)


def _positions(positions: ArrayLike) -> Int64s:
    return np.ascontiguousarray(positions, dtype=np.int64)


@lru_cache(maxsize=16)
def _permutation(n: int, seed: int, epoch: int, stream: int = 0) -> Permutation:
    return Permutation(n, seed, epoch, stream)


class Sequential:
    """Record i at position i."""

    def __init__(self, n: int) -> None:
        self._n = _count("n", n)

    def __len__(self) -> int:
        return self._n

    def at(self, epoch: int, positions: Int64s) -> Int64s:  # noqa: ARG002 - every epoch is the same
        """Return the positions themselves."""
        return _positions(positions).copy()

    def positions_of(self, epoch: int, records: Int64s) -> Int64s:  # noqa: ARG002
        """Return where records stand."""
        return _positions(records).copy()

    def describe(self) -> dict[str, Any]:
        """Return what tells this order from others."""
        return {"order": "sequential", "version": VERSION, "n": self._n}


class Shuffled:
    """All records, each once, in an order that (seed, epoch) choose. See `mmapds.Permutation`."""

    def __init__(self, n: int, seed: int = 0) -> None:
        self._n = _count("n", n)
        self._seed = integer("seed", seed)

    def __len__(self) -> int:
        return self._n

    def at(self, epoch: int, positions: Int64s) -> Int64s:
        """Return the records at `positions`."""
        return _permutation(self._n, self._seed, epoch)[_positions(positions)]

    def positions_of(self, epoch: int, records: Int64s) -> Int64s:
        """Return where records stand."""
        return _permutation(self._n, self._seed, epoch).inverse(_positions(records))

    def describe(self) -> dict[str, Any]:
        """Return what tells this order from others."""
        return {"order": "shuffled", "version": VERSION, "n": self._n, "seed": self._seed}


class Chunked:
    """Shuffled enough for training, near enough in the file for disks: chunks of neighbours, mixed some at a time.

    An epoch takes the chunks in keyed order, `mix_chunks` of them together, and the records of each such mix in keyed
    order. While a mix lasts, reads stay within `mix_chunks * chunk_size` records. Every record comes once an epoch; a
    chunk holds records of one source only, so the last chunk of a source may be short.

    Args:
      n: number of records, or the record numbers at which sources begin followed by the number of records
        (`Dataset.source_starts`); pass a plain number to let chunks cross sources.
      chunk_size: consecutive records in a chunk.
      mix_chunks: chunks that are mixed; 1 shuffles inside each chunk alone.
      seed: chooses the orders.
    """

    def __init__(self, n: int | ArrayLike, chunk_size: int, *, mix_chunks: int = 16, seed: int = 0) -> None:
        starts: Int64s = np.asarray([0, n] if np.ndim(n) == 0 else n).astype(np.int64)
        if starts.ndim != 1 or len(starts) < 2 or starts[0] != 0 or (starts[1:] < starts[:-1]).any():
            raise OrderError("expected record numbers that begin with 0 and never fall")
        self._n = _count("n", int(starts[-1]))
        sizes = starts[1:] - starts[:-1]
        # A chunk is never larger than a source, and a mix has no more chunks than there are.
        self._chunk_size = min(_count("chunk_size", chunk_size), int(sizes.max()))
        chunks = -(-sizes // self._chunk_size)
        self._mix_chunks = min(_count("mix_chunks", mix_chunks), int(chunks.sum()))
        self._seed = integer("seed", seed)
        self._first_record = starts.astype(np.uint64)
        self._first_chunk = np.concatenate([[0], np.cumsum(chunks)]).astype(np.uint64)
        short = sizes % self._chunk_size != 0
        self._short = self._first_chunk[1:][short].astype(np.int64) - 1
        self._missing = (self._chunk_size - sizes % self._chunk_size)[short]
        self._epoch: tuple[int, _native.Chunks] | None = None

    def __len__(self) -> int:
        return self._n

    def at(self, epoch: int, positions: Int64s) -> Int64s:
        """Return the records at `positions`."""
        positions = _positions(positions)
        out = np.empty_like(positions)
        self._chunks(epoch).at(positions, out)
        return out

    def _chunks(self, epoch: int) -> _native.Chunks:
        """One epoch: where its short chunks stand, at most one for each source, and the order of all chunks."""
        if self._epoch is None or self._epoch[0] != epoch:
            order = Permutation(int(self._first_chunk[-1]), self._seed, epoch, stream=1)
            slots = order.inverse(self._short)
            by_slot = np.argsort(slots)
            slots = slots[by_slot]
            missing = np.concatenate([[0], np.cumsum(self._missing[by_slot])]).astype(np.int64)
            ends = (slots + 1) * self._chunk_size - missing[1:]
            chunks = _native.Chunks(
                chunk_size=self._chunk_size,
                mix_chunks=self._mix_chunks,
                seed=self._seed & _WORD,
                epoch=epoch & _WORD,
                first_chunk=self._first_chunk,
                first_record=self._first_record,
                short_slots=slots.astype(np.uint64),
                short_ends=ends.astype(np.uint64),
                short_missing=missing.astype(np.uint64),
                order=order.native,
            )
            self._epoch = epoch, chunks
            return chunks
        return self._epoch[1]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_epoch": None}

    def describe(self) -> dict[str, Any]:
        """Return what tells this order from others."""
        return {
            "order": "chunked",
            "version": VERSION,
            "n": self._n,
            "sources": len(self._first_record) - 1,
            "starts": blake2b(self._first_record.tobytes(), digest_size=8).hexdigest(),
            "chunk_size": self._chunk_size,
            "mix_chunks": self._mix_chunks,
            "seed": self._seed,
        }


class Resampled:
    """Records drawn with replacement: an epoch is as long as you like, and a record may come again or not at all."""

    def __init__(self, n: int, epoch_size: int | None = None, seed: int = 0) -> None:
        self._n = _count("n", n)
        self._epoch_size = _count("epoch_size", n if epoch_size is None else epoch_size)
        self._seed = integer("seed", seed)

    def __len__(self) -> int:
        return self._epoch_size

    def at(self, epoch: int, positions: Int64s) -> Int64s:
        """Return the records at `positions`."""
        positions = _positions(positions)
        out = np.empty_like(positions)
        _native.draw(self._n, self._seed & _WORD, epoch & _WORD, positions, out)
        return out

    def describe(self) -> dict[str, Any]:
        """Return what tells this order from others."""
        described = {"order": "resampled", "version": VERSION, "n": self._n, "epoch_size": self._epoch_size}
        return {**described, "seed": self._seed}


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
        self._sizes = [_count(f"sizes[{d}]", n, 1 if self.weights[d] else 0) for d, n in enumerate(sizes)]
        self._seed = integer("seed", seed)
        self._shuffle = bool(shuffle)
        self._native = self._made()
        if epoch_size is None:
            which = self.members_at(np.arange(sum(self.weights)))
            ends = [self._end(d, which) for d, weight in enumerate(self.weights) if weight]
            self._epoch_size = min(ends) if stop == "first" else max(ends)
        else:
            self._epoch_size = _count("epoch_size", epoch_size)

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
        positions = _positions(positions)
        out = np.empty_like(positions)
        self._native.which(positions % sum(self.weights), out)
        return out

    def at(self, epoch: int, positions: Int64s) -> Int64s:
        """Return the records at `positions`."""
        positions = _positions(positions)
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
