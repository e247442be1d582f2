"""Orders that decide how often, and when, a record comes: by weight, in parts of a pass, by a score, chunk by chunk."""

from __future__ import annotations  # help() shows them as they are written

import os
from collections.abc import Sized
from hashlib import blake2b
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from .. import _native
from ..errors import OrderError, shortened
from ..storage.numbers import order_type, scratch
from ..storage.sources import StrPath
from .basic import Chunked, ComputedOrder, Int64s, Order, check_is_order, integer, records_at
from .permutation import Permutation, word
from .weights import Sums

_ROUNDED = 0x5DEECE66D2B79F8B  # keeps the roundings apart from the permutation of the same seed
_WINDOWS = 1 << 61  # stream of the permutation of the first window; later windows have the streams after it


class Weighted(ComputedOrder):
    """Draws records by weight.

        order = mmapds.orders.Weighted(ds.lengths, size=100_000, seed=7)
        sampler = mmapds.DistributedBatchSampler(ds, batch_size=32, order=order)

    Without replacement, a record comes as often as its expected number in an epoch says, rounded up or down at random:
    an expected number of 2.25 means 2 times in three epochs of four, and 3 times in the other. Integer weights with
    their sum as `size` come exactly so often. The order needs 8 bytes a record, and finds a record in O(log n).

    Args:
      weights: of all records, shape (records,): finite numbers of 0 or more, not all 0; or the path of a file of
        `save_weights`, which all processes of a node map.
      size: draws in an epoch; by default as many as there are records.
      replacement: draw each time anew.
      seed: chooses the draws.
    Raises:
      OrderError: an argument is out of range.
    """

    _name = "weighted"
    is_bijection = False

    def __init__(
        self, weights: ArrayLike | StrPath, size: int | None = None, *, replacement: bool = True, seed: int = 0
    ) -> None:
        self._sums = Sums.of(weights)
        self._path = os.path.abspath(weights) if isinstance(weights, str | os.PathLike) else None
        self._n, self._seed = len(self._sums.ends), integer("seed", seed)
        self._size = integer("size", self._n if size is None else size, 1)
        self._replacement = bool(replacement)

    def __len__(self) -> int:
        return self._size

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | ({} if self._path is None else {"_sums": None})

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._sums = self._sums or Sums.of(self._path)

    def describe(self) -> dict[str, Any]:
        """Return the identity of this order for states, with a hash of the weights."""
        self._sums = self._sums.marked()
        self._arguments = {
            "records": self._n,
            "weights": self._sums.mark,
            "size": self._size,
            "replacement": self._replacement,
            "seed": self._seed,
        }
        return super().describe()

    def _fill(self, out: Int64s, epoch: int, positions: Int64s) -> None:
        draws, seed = np.ascontiguousarray(positions.ravel()), self._seed
        if not self._replacement:
            draws, seed = Permutation(self._size, seed, epoch)[draws], seed ^ _ROUNDED
        found, is_rounded = np.empty_like(draws), not self._replacement
        sums = self._sums.ends, self._sums.coarse
        _native.weighted(sums, self._size, is_rounded, (word(seed), word(epoch)), draws, found)
        out[...] = found.reshape(out.shape)


class Parts:
    """Another order in parts: an epoch reads the next `size` positions, and each pass goes on where an epoch ended.

        order = mmapds.orders.Parts(mmapds.orders.Shuffled(len(ds), seed=7), size=10_000)

    Every record comes once a pass. Samplers make it for `part_size=`.

    Args:
      order: whose epochs are the passes.
      size: positions in an epoch.
    Raises:
      OrderError: an argument is out of range, or not an order.
    """

    is_bijection = False

    def __init__(self, order: Order, size: int) -> None:
        check_is_order(order)
        self.order, self._size = order, integer("size", size, 1)
        self.records = getattr(order, "records", len(order))

    def __len__(self) -> int:
        return self._size

    def at(self, epoch: int, positions: Int64s) -> Int64s:
        """Return the records at `positions`."""
        passes, first = divmod(epoch * self._size, len(self.order))
        begun, places = np.divmod(positions.ravel() + first, len(self.order))
        out = np.empty_like(places)
        for each in np.unique(begun).tolist():
            own = begun == each
            out[own] = records_at(self.order, passes + each, places[own])
        return out.reshape(positions.shape)

    def spans(self, epoch: int) -> Int64s:
        """Return rows (begin, end, first, stop) for the chunks of all passes, in reading order: see `Chunked.spans`."""
        order: Any = self.order
        number, first = divmod(epoch * self._size, len(order))
        found, at = [], -first
        while at < self._size:
            rows = np.add(order.spans(number), [0, 0, at, at])
            found.append(rows[(rows[:, 3] > 0) & (rows[:, 2] < self._size)])
            number, at = number + 1, at + len(order)
        every = np.concatenate(found)
        every[:, 2:] = np.clip(every[:, 2:], 0, self._size)
        return every

    def describe(self) -> dict[str, Any]:
        """Return the identity of this order for states."""
        return {**self.order.describe(), "part_size": self._size}


class Sorted(ComputedOrder):
    """Every record once, by a score, shuffled in windows: a curriculum.

        order = mmapds.orders.Sorted(ds.lengths, window=1000, epochs=1)  # short ones first; then shuffled epochs

    Args:
      key: the score of each record, shape (records,); records of equal score keep their order.
      window: neighbours that are shuffled together; 1 shuffles nothing.
      reverse: begin with the largest score.
      epochs: how many epochs are sorted, the first ones; later ones are shuffled whole. By default all are sorted.
      seed: chooses the shuffles.
    Raises:
      OrderError: an argument is out of range, or a score is not a number.
    """

    _name = "sorted"

    def __init__(
        self, key: ArrayLike, window: int = 1, *, reverse: bool = False, epochs: int | None = None, seed: int = 0
    ) -> None:
        scores = np.asarray(key)
        if scores.ndim != 1 or scores.dtype.kind not in "biuf" or not len(scores):
            raise OrderError(f"key: expected one number or more, of one axis, found {scores.dtype}, {scores.shape}")
        if scores.dtype.kind == "f" and np.isnan(scores).any():
            raise OrderError(f"key[{int(np.isnan(scores).argmax())}] = nan, expected a number")
        self._n, self._seed = len(scores), integer("seed", seed)
        self._window = min(integer("window", window, 1), self._n)
        self._epochs = None if epochs is None else integer("epochs", epochs, 0)
        kind = order_type(self._n)
        self._ranked = np.frombuffer(scratch(kind.width * self._n), kind.dtype, self._n)
        by_score = np.argsort(scores, kind="stable")
        self._ranked[:] = by_score[::-1] if reverse else by_score
        self._arguments = {
            "records": self._n,
            "key": blake2b(self._ranked.data, digest_size=8).hexdigest(),
            "window": self._window,
            "epochs": self._epochs,
            "seed": self._seed,
        }

    def _fill(self, out: Int64s, epoch: int, positions: Int64s) -> None:
        if self._epochs is not None and epoch >= self._epochs:
            out[...] = Permutation(self._n, self._seed, epoch)[positions.ravel()].reshape(out.shape)
            return
        windows, places = np.divmod(positions, self._window)
        if self._window > 1:
            for window in np.unique(windows).tolist():
                own, size = windows == window, min(self._window, self._n - window * self._window)
                places[own] = Permutation(size, self._seed, epoch, stream=_WINDOWS + window)[places[own]]
        out[...] = self._ranked[windows * self._window + places]


class ResampledChunks(ComputedOrder):
    """Draws chunks with replacement, and reads the records of each in order or mixed: few chunks are needed at a time.

        order = mmapds.orders.ResampledChunks(ds, 4096, mix_chunks=2, seed=7)

    Every draw has `chunk_size` positions, so a shorter chunk is read again from its beginning. A chunk is drawn in
    proportion to its records, so each record is as likely as any other.

    Args:
      n, chunk_size: as in `Chunked`; chunks do not cross the sources of a dataset.
      mix_chunks: draws that are shuffled together; 0 reads each chunk in order.
      epoch_size: positions in an epoch; by default as many as there are records.
      seed: chooses the draws.
    Raises:
      OrderError: an argument is out of range.
    """

    _name = "resampled chunks"
    is_bijection = False

    def __init__(
        self,
        n: int | ArrayLike | Sized,
        chunk_size: int | Literal["block"],
        *,
        mix_chunks: int = 16,
        epoch_size: int | None = None,
        seed: int = 0,
    ) -> None:
        chunked = Chunked(n, chunk_size, mix_chunks=1, seed=seed)
        self._n, self._seed, self._starts = chunked.records, integer("seed", seed), chunked.chunk_starts
        self._chunk_size = int(np.diff(self._starts).max())
        self.mix_chunks = integer("mix_chunks", mix_chunks, 0)
        self._together = max(self.mix_chunks, 1) * self._chunk_size
        self._epoch_size = integer("epoch_size", self._n if epoch_size is None else epoch_size, 1)
        self._arguments = {
            "records": self._n,
            "starts": blake2b(self._starts.tobytes(), digest_size=8).hexdigest(),
            "mix_chunks": self.mix_chunks,
            "epoch_size": self._epoch_size,
            "seed": self._seed,
        }

    def __len__(self) -> int:
        return self._epoch_size

    def _drawn(self, epoch: int, draws: Int64s) -> Int64s:
        """Return the chunk of each draw."""
        records = np.empty_like(draws)
        _native.draw(self._n, word(self._seed), word(epoch), draws, records)
        found: Int64s = np.searchsorted(self._starts, records, side="right") - 1
        return found

    def _fill(self, out: Int64s, epoch: int, positions: Int64s) -> None:
        mixes, places = np.divmod(positions, self._together)
        if self.mix_chunks:
            for mix in np.unique(mixes).tolist():
                own = mixes == mix
                places[own] = Permutation(self._together, self._seed, epoch, stream=_WINDOWS + mix)[places[own]]
        draws, within = np.divmod(mixes * self._together + places, self._chunk_size)
        chunks = self._drawn(epoch, draws)
        out[...] = self._starts[chunks] + within % (self._starts[chunks + 1] - self._starts[chunks])

    def spans(self, epoch: int) -> Int64s:
        """Return rows (begin, end, first, stop) for the drawn chunks, in reading order, as `Chunked.spans` does."""
        draws = np.arange(-(-self._epoch_size // self._together) * max(self.mix_chunks, 1))
        chunks, mixes = self._drawn(epoch, draws), draws // max(self.mix_chunks, 1)
        first = mixes * self._together
        stop = np.minimum(first + self._together, self._epoch_size)
        return np.stack([self._starts[chunks], self._starts[chunks + 1], first, stop], axis=1)


def order_by_weight(dataset: Any, weights: Any, size: int | None, seed: int) -> Weighted:
    """Return an order that draws the records of a dataset by weight.

    Args:
      weights: numbers, or the name of a column.
    Raises:
      OrderError: there is another number of weights.
    """
    if isinstance(weights, str) and not hasattr(dataset, "column"):
        raise OrderError(f"weights = {shortened(weights)}, expected numbers, or a column of a dataset of mmapds")
    order = Weighted(dataset.column(weights) if isinstance(weights, str) else weights, size, seed=seed)
    if order.records != len(dataset):
        raise OrderError(f"weights: expected {len(dataset):,}, one for each record, found {order.records:,}")
    return order
