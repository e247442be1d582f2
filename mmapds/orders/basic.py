"""The protocol of orders, the orders: sequential, shuffled, with replacement, chunked, mixed; and random numbers."""

from __future__ import annotations  # help() shows them as they are written

import operator
from abc import ABC, abstractmethod
from collections.abc import Sequence, Sized
from copy import copy
from fractions import Fraction
from functools import lru_cache
from hashlib import blake2b
from math import lcm
from typing import Any, Literal, Protocol, SupportsIndex, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .. import _native
from ..errors import OrderError, shortened
from .permutation import Permutation, word

Int64s = NDArray[np.int64]
VERSION = 1
"""Increased when an order changes for the same arguments, so that old states are refused, not misread."""
_CHUNKS = 1  # stream of the permutation of chunks
_CACHED = 1 << 15  # positions computed at a time: their arrays fit the cache of a core
_PERIOD = 65_536  # longest period of the proportions, for up to 1,024 datasets
_POSITIONS = 64  # positions of a period for each dataset, for more datasets


@runtime_checkable
class Order(Protocol):
    """The protocol of an order of your own.

        import hashlib


        class ByScore:
            def __init__(self, scores):
                self.ranked = np.argsort(-scores.astype(np.int64), kind="stable")

            def __len__(self):
                return len(self.ranked)

            def at(self, epoch, positions):
                return self.ranked[positions]

            def describe(self):
                return {"order": "by score", "ranked": hashlib.sha256(self.ranked).hexdigest()}


        sampler = mmapds.DistributedSampler(ds, order=ByScore(ds.lengths))

    Positions and records are int64 arrays of the same shape. A state holds the description alone: without the hash, a
    job with other scores would resume from it, and repeat and lose samples. An order may have an attribute `records`,
    the number of records of its dataset: samplers refuse datasets of another length. An order that repeats records may
    have `is_bijection = False`: planners that read every record once refuse it.
    """

    def __len__(self) -> int: ...

    def at(self, epoch: int, positions: Int64s) -> Int64s:
        """Return the records at `positions`."""
        ...

    def describe(self) -> dict[str, Any]:
        """Return the identity of this order for states: a dict for JSON."""
        ...


def check_is_order(order: Any) -> None:
    """Raise OrderError unless an object has the methods of an order, and a description that states can compare."""
    if not isinstance(order, Order):
        raise OrderError(
            f"order: expected an order with at(), describe() and a length, found {type(order).__name__} (see "
            "mmapds.orders)"
        )
    described = order.describe()
    if not isinstance(described, dict) or not all(is_same(value, value) for value in described.values()):
        raise OrderError(
            f"order: expected describe() of {type(order).__name__} to return a dict that JSON can hold, found "
            f"{shortened(described)}"
        )


def is_same(found: Any, expected: Any) -> bool:
    """Whether a value of a state equals the expected one; an array or a tensor of several numbers never does."""
    try:
        return bool(found == expected)
    except (ValueError, RuntimeError):
        return False


def records_at(order: Order, epoch: int, positions: Int64s) -> Int64s:
    """Return the records at `positions`, shape (n,), as int64; raise OrderError if a user's order returns others."""
    found = order.at(epoch, positions)
    if isinstance(found, np.ndarray) and found.dtype.kind in "iu" and found.shape == positions.shape:
        return found.astype(np.int64, copy=False)
    raise OrderError(
        f"order: expected at() of {type(order).__name__} to return an int64 array of shape {positions.shape}, found "
        f"{getattr(found, 'dtype', type(found).__name__)} of shape {getattr(found, 'shape', None)}"
    )


def size_of_epoch(order: Order, epoch_size: int | None) -> int:
    """Return the number of positions in an epoch: `epoch_size`, or by default all of the order."""
    most = len(order)
    size = most if epoch_size is None else integer("epoch_size", epoch_size)
    if not 1 <= size <= most:
        raise OrderError(f"epoch_size = {shortened(size)}, expected 1 to {most}")
    return size


def integer(name: str, value: SupportsIndex, least: int | None = None) -> int:
    """Return an integer of any type as an int; with `least`, check that it is from `least` to 2**63 - 1."""
    is_integer = hasattr(type(value), "__index__") and not isinstance(value, bool) and not getattr(value, "ndim", 0)
    try:
        number = operator.index(value) if is_integer else None
    except TypeError:  # an array of floats: its type has __index__, which raises
        number = None
    if number is not None and (least is None or least <= number < 2**63):
        return number
    expected = f"expected an integer{'' if least is None else f' of {least} or more, below 2**63'}"
    raise OrderError(f"{name} = {shortened(value)}, {expected}")


_permutation = lru_cache(maxsize=16)(Permutation)


class ComputedOrder(ABC):
    """The base of the orders of this module."""

    _name: str
    _n: int
    _arguments: dict[str, Any]  # those that identify the order
    _core: Any = None  # the object of the C core; made when needed, as it cannot be pickled

    def __len__(self) -> int:
        return self._n

    @property
    def records(self) -> int:
        """How many records the dataset has."""
        return self._n

    def at(self, epoch: int, positions: Int64s) -> Int64s:
        """Return the records at `positions`."""
        positions = np.ascontiguousarray(positions, dtype=np.int64)
        out = np.empty_like(positions)
        self._fill(out, epoch, positions)
        return out

    @abstractmethod
    def _fill(self, out: Int64s, epoch: int, positions: Int64s) -> None: ...

    def describe(self) -> dict[str, Any]:
        """Return the identity of this order for states."""
        return {"order": self._name, "version": VERSION, **self._arguments}

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_core"}


class Sequential(ComputedOrder):
    """Record i stands at position i.

        order = mmapds.orders.Sequential(len(ds))

    Args:
      n: how many records there are.
    """

    _name = "sequential"

    def __init__(self, n: int) -> None:
        self._n = integer("n", n, 1)
        self._arguments = {"records": self._n}

    def _fill(self, out: Int64s, epoch: int, positions: Int64s) -> None:
        out[...] = positions


class Shuffled(ComputedOrder):
    """Every record once, in an order chosen by (seed, epoch).

    See `mmapds.Permutation`.

        records = mmapds.orders.Shuffled(len(ds), seed=7).at(epoch=0, positions=np.arange(10))

    Args:
      n: how many records there are.
      seed: chooses the order.
    """

    _name = "shuffled"

    def __init__(self, n: int, seed: int = 0) -> None:
        self._n, self._seed = integer("n", n, 1), integer("seed", seed)
        self._arguments = {"records": self._n, "seed": self._seed}

    def _fill(self, out: Int64s, epoch: int, positions: Int64s) -> None:
        _permutation(self._n, self._seed, epoch).native.array(positions, out, False)


class Resampled(ComputedOrder):
    """Draws records with replacement; an epoch has any length.

        order = mmapds.orders.Resampled(len(ds), 10_000, seed=7)

    Args:
      n: how many records there are.
      epoch_size: positions in an epoch; `n` by default.
      seed: chooses the draws.
    """

    _name = "resampled"
    is_bijection = False
    """Whether every record comes once an epoch; True for orders without this attribute."""

    def __init__(self, n: int, epoch_size: int | None = None, seed: int = 0) -> None:
        self._n, self._seed = integer("n", n, 1), integer("seed", seed)
        self._epoch_size = integer("epoch_size", n if epoch_size is None else epoch_size, 1)
        self._arguments = {"records": self._n, "epoch_size": self._epoch_size, "seed": self._seed}

    def __len__(self) -> int:
        return self._epoch_size

    def _fill(self, out: Int64s, epoch: int, positions: Int64s) -> None:
        _native.draw(self._n, word(self._seed), word(epoch), positions, out)


# ---- chunks ----------------------------------------------------------------------------------------------------


class Chunked(ComputedOrder):
    """Shuffles chunks of consecutive records, and the records of `mix_chunks` chunks together.

        order = mmapds.orders.Chunked(ds, 64, seed=7)

    An epoch shuffles the chunks, takes `mix_chunks` of them at a time, and shuffles their records. So it reads all
    records of `mix_chunks` chunks before those of the next ones. Every record comes once an epoch. A chunk holds
    records of one source only, so the last chunk of a source may be short.

    Lanes let each node read its own chunks. An epoch is cut into `lanes` equal parts, and positions are dealt to them
    in turn, `lane_ranks` at a time. Only the mixed chunks at the edges of a lane belong to two lanes.

    Args:
      n: a dataset of mmapds, whose sources chunks do not cross; or the number of records; or boundaries that chunks do
        not cross, from 0 to the number of records, such as `Dataset.source_starts` or `Dataset.block_starts`.
      chunk_size: consecutive records in a chunk; or "block": a chunk for each block of a dataset of compressed sources.
      mix_chunks: chunks that are mixed; 1 shuffles only inside each chunk.
      seed: chooses the orders.
      lanes: parts of an epoch, at most one for each chunk: the number of nodes.
      lane_ranks: consecutive positions in a lane: the ranks of a node.
    Raises:
      OrderError: an argument is out of range.
    """

    _name = "chunked"

    def __init__(
        self,
        n: int | ArrayLike | Sized,
        chunk_size: int | Literal["block"],
        *,
        mix_chunks: int = 16,
        seed: int = 0,
        lanes: int = 1,
        lane_ranks: int = 1,
    ) -> None:
        if isinstance(chunk_size, str) and chunk_size == "block":  # an array compares item by item
            dataset: Any = n
            if not hasattr(type(dataset), "block_starts"):
                raise OrderError(f"chunk_size = 'block', expected a dataset of mmapds, found {type(n).__name__}")
            starts = _starts(dataset.block_starts)
            chunk_size = int(np.diff(starts).max())
        else:
            starts = _starts(getattr(n, "source_starts", n))
        self._n = integer("n", int(starts[-1]), 1)
        sizes = starts[1:] - starts[:-1]
        # Both are cut to the largest useful size, so that their product fits 64 bits.
        self._chunk_size = min(integer("chunk_size", chunk_size, 1), int(sizes.max()))
        chunks = -(-sizes // self._chunk_size)
        self.number_of_chunks = int(chunks.sum())
        self.mix_chunks = min(integer("mix_chunks", mix_chunks, 1), self.number_of_chunks)
        self._seed = integer("seed", seed)
        self._first_record = starts.astype(np.uint64)
        self._first_chunk = np.concatenate([[0], np.cumsum(chunks)]).astype(np.uint64)
        short = sizes % self._chunk_size != 0
        self._short = self._first_chunk[1:][short].astype(np.int64) - 1
        self._missing = (self._chunk_size - sizes % self._chunk_size)[short]
        self._arguments = {
            "records": self._n,
            "sources": len(sizes),
            "starts": blake2b(self._first_record.tobytes(), digest_size=8).hexdigest(),
            "chunk_size": self._chunk_size,
            "mix_chunks": self.mix_chunks,
            "seed": self._seed,
        }
        self._set_lanes(lanes, lane_ranks)

    def _set_lanes(self, lanes: int, lane_ranks: int) -> None:
        self.lanes = integer("lanes", lanes, 1)
        if self.lanes > self.number_of_chunks:
            raise OrderError(f"lanes = {lanes}, expected at most {self.number_of_chunks}, the number of chunks")
        self.lane_ranks = min(integer("lane_ranks", lane_ranks, 1), self._n // self.lanes)
        turns, rest = divmod(self._n, self.lanes * self.lane_ranks)
        lane = np.arange(self.lanes + 1) * self.lane_ranks
        self._lane_starts = lane * turns + np.minimum(lane, rest)  # in the order without lanes
        if self.lanes > 1:
            self._arguments |= {"lanes": self.lanes, "lane_ranks": self.lane_ranks}

    def _with_lanes(self, lanes: int, lane_ranks: int) -> Chunked:
        """Return this order with other lanes."""
        other = copy(self)
        other._arguments = {key: value for key, value in self._arguments.items() if not key.startswith("lane")}
        other._set_lanes(lanes, lane_ranks)
        return other

    def lanes_at(self, positions: Int64s) -> Int64s:
        """Return the lane of each position."""
        return positions // self.lane_ranks % self.lanes

    def spans(self, epoch: int, lane: int = 0) -> Int64s:
        """Return rows (begin, end, first, stop) for the chunks of a lane, in reading order.

        A chunk has the records `begin` to `end - 1`. The lane reads them at positions `first` to `stop - 1`; chunks
        that are mixed have the same positions. The shape is (chunks, 4).

        Raises:
          IndexError: there is no such lane.
        """
        chunks, starts, lane = self.chunks(epoch), self.chunk_starts, range(self.lanes)[lane]
        # As in `_without_lanes`, a lane is a range of the order without lanes, and so is a mix of chunks.
        ends = np.append(0, np.cumsum(starts[chunks + 1] - starts[chunks]))
        first = np.arange(len(chunks)) // self.mix_chunks * self.mix_chunks
        mixes = np.stack([ends[first], ends[np.minimum(first + self.mix_chunks, len(chunks))]])
        begin, end = self._lane_starts[lane : lane + 2]
        is_read = (mixes[0] < end) & (mixes[1] > begin)
        outermost = np.clip(mixes[:, is_read], begin, end) - begin - [[0], [1]]  # the first and the last in the lane
        turns, rank = np.divmod(outermost, self.lane_ranks)
        positions = (turns * self.lanes + lane) * self.lane_ranks + rank + [[0], [1]]
        return np.stack([starts[chunks[is_read]], starts[chunks[is_read] + 1], *positions], axis=1)

    @property
    def chunk_starts(self) -> Int64s:
        """Where each chunk begins, then the number of records."""
        chunks = self._first_chunk.astype(np.int64)
        source = np.repeat(np.arange(len(chunks) - 1), chunks[1:] - chunks[:-1])
        within = np.arange(chunks[-1]) - chunks[source]
        return np.append(self._first_record.astype(np.int64)[source] + within * self._chunk_size, self._n)

    def chunks(self, epoch: int) -> Int64s:
        """Return the chunks in the order of an epoch; every `mix_chunks` of them are shuffled together."""
        count = int(self._first_chunk[-1])
        return self._permutation(epoch).range(range(count))

    def _permutation(self, epoch: int) -> Permutation:
        return Permutation(int(self._first_chunk[-1]), self._seed, epoch, stream=_CHUNKS)

    def _fill(self, out: Int64s, epoch: int, positions: Int64s) -> None:
        made = self._core
        if made is None or made[0] != epoch:
            self._core = made = epoch, self._of_epoch(epoch)
        positions, out = positions.reshape(-1), out.reshape(-1)
        for first in range(0, len(positions), _CACHED):
            block = slice(first, first + _CACHED)
            made[1].at(self._without_lanes(positions[block]), out[block])

    def _without_lanes(self, positions: Int64s) -> Int64s:
        """Return the positions of the same records in the order without lanes: a lane is a range there."""
        if self.lanes == 1 or int(positions.view(np.uint64).max()) >= self._n:
            return positions  # the core names the one that is out of range
        turns = positions // (self.lanes * self.lane_ranks)
        lane = positions // self.lane_ranks - turns * self.lanes
        shifts = self._lane_starts - np.arange(self.lanes + 1) * self.lane_ranks
        found: Int64s = positions - turns * ((self.lanes - 1) * self.lane_ranks) + shifts[lane]
        return found

    def _of_epoch(self, epoch: int) -> _native.Chunks:
        """Return the order of the chunks of an epoch, and the places of short chunks: at most one for each source."""
        order = self._permutation(epoch)
        slots = order.inverse(self._short)
        by_slot = np.argsort(slots)
        slots = slots[by_slot]
        missing = np.concatenate([[0], np.cumsum(self._missing[by_slot])]).astype(np.int64)
        ends = (slots + 1) * self._chunk_size - missing[1:]
        return _native.Chunks(
            chunk_size=self._chunk_size,
            mix_chunks=self.mix_chunks,
            seed=word(self._seed),
            epoch=word(epoch),
            first_chunk=self._first_chunk,
            first_record=self._first_record,
            short_slots=slots.astype(np.uint64),
            short_ends=ends.astype(np.uint64),
            short_missing=missing.astype(np.uint64),
            order=order.native,
        )


def _starts(n: Any) -> Int64s:
    """Return the record number at which each source begins, then the number of records."""
    if not isinstance(n, list | tuple) and not getattr(n, "ndim", 0):
        return np.array([0, integer("n", n, 1)], np.int64)
    given = np.asarray(n)
    if given.dtype.kind not in "iu" or given.ndim != 1 or len(given) < 2:
        raise OrderError(f"n: expected integers of shape (sources + 1,), found {given.dtype} of shape {given.shape}")
    starts = given.astype(np.int64, copy=False)
    if starts[0] != 0 or (starts[1:] < starts[:-1]).any():
        raise OrderError(
            f"n = {shortened(starts.tolist())}, expected starts of sources: 0, then numbers that never fall"
        )
    return starts


# ---- mixtures --------------------------------------------------------------------------------------------------


class Mixture(ComputedOrder):
    """Mixes datasets by weights; each has its share at any position, within one sample.

        order = mmapds.orders.Mixture([700, 300], weights=[0.5, 0.5], seed=7)

    Record numbers count through the datasets in order, like those of `mmapds.concat`. Each dataset is shuffled on its
    own, and again after each pass over it. Proportions repeat with a period of `sum(order.weights)` positions; the
    order stores only a table of one period.

    Args:
      sizes: records in each dataset.
      weights: share of each, on any scale. A period has up to 65,536 positions, or 64 for each dataset if that is more.
        Shares with a common denominator up to that length are exact. Other shares are rounded to whole positions of the
        longest period, at least one each. `order.weights` has the integers in use.
      seed: chooses the orders.
      stop: "first" ends an epoch when one dataset has been read whole, "longest" when all have.
      epoch_size: positions in an epoch, instead of `stop`.
      shuffle: False reads each dataset in its own order.
    Raises:
      OrderError: an argument is out of range.
    """

    _name = "mixture"
    _core: _native.Mixture | None = None

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
        if stop not in ("first", "longest"):
            raise OrderError(f"stop = {stop!r}, expected 'first' or 'longest'")
        self.weights = _integer_weights(weights, len(sizes))
        self._sizes = [integer(f"sizes[{d}]", n, 0) for d, n in enumerate(sizes)]
        for d, size in enumerate(self._sizes):
            if self.weights[d] and not size:
                raise OrderError(f"sizes[{d}] = 0, expected 1 or more records in a dataset of weight above 0")
        self._n = integer("records", sum(self._sizes), 1)
        self._seed, self._shuffle = integer("seed", seed), bool(shuffle)
        if epoch_size is None:
            epoch_size = (min if stop == "first" else max)(self._ends())
        self._epoch_size = integer("epoch_size", epoch_size, 1)
        self._arguments = {
            "sizes": list(self._sizes),
            "weights": list(self.weights),
            "epoch_size": self._epoch_size,
            "shuffle": self._shuffle,
            "seed": self._seed,
        }

    @property
    def _mixture(self) -> _native.Mixture:
        if self._core is None:
            weights, sizes = (np.array(each, np.uint64) for each in (self.weights, self._sizes))
            seed = word(self._seed)
            self._core = _native.Mixture(weights=weights, sizes=sizes, seed=seed, shuffle=self._shuffle)
        return self._core

    def _ends(self) -> list[int]:
        """Return the position at which each dataset with a share has been read whole."""
        total = sum(self.weights)
        positions = np.argsort(self.members_at(np.arange(total)), kind="stable")  # grouped by dataset
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
    def is_bijection(self) -> bool:
        """Whether every record comes once an epoch.

        That needs weights in proportion to the sizes.
        """
        read = sum(size for size, weight in zip(self._sizes, self.weights, strict=True) if weight)
        return read == self._n == self._epoch_size == max(self._ends())

    def members_at(self, positions: Int64s) -> Int64s:
        """Return the dataset that each position reads; the same in every epoch."""
        positions = np.ascontiguousarray(positions, dtype=np.int64)
        out = np.empty_like(positions)
        self._mixture.which(positions % sum(self.weights), out)
        return out

    def _fill(self, out: Int64s, epoch: int, positions: Int64s) -> None:
        self._mixture.at(word(epoch), positions, out)


def _integer_weights(weights: Sequence[float], datasets: int) -> list[int]:
    """Return integers in the proportions of `weights`."""
    try:
        values = np.asarray(weights, float)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # RuntimeError: a tensor that requires gradients
        values = np.empty(())
    if values.shape != (datasets,):
        raise OrderError(f"weights = {shortened(weights)}, expected one number for each of {datasets} datasets")
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
    """Return integers with the sum `longest`, by the method of largest remainders; a share above 0 gets 1 or more."""
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
