"""Grain: a data source whose checkpoints hold no path, and a sampler with the orders of mmapds."""

import operator
import sys
from collections.abc import Sequence
from typing import Any, SupportsIndex

import grain
import numpy as np

from ..dataset.dataset import Dataset
from ..errors import Error, shortened
from ..orders.basic import Order, check_is_order, integer, records_at, size_of_epoch


class DataSource:
    """A dataset as a source of grain, for `grain.DataLoader` and `grain.MapDataset.source`.

    A checkpoint of `grain.DataLoader` holds its `repr`: records and their fingerprint, not paths.

    Args:
      dataset: a dataset of `mmapds.open`, or a view of one; not with `on_error="skip"`, as grain needs a sample for
        every position.
    Raises:
      Error: `dataset` is something else.
    """

    def __init__(self, dataset: Dataset) -> None:
        if not isinstance(dataset, Dataset):
            raise Error(f"dataset: expected a dataset of mmapds.open, found {type(dataset).__name__}")
        if dataset._on_error == "skip":
            raise Error("dataset: expected a sample at every position, found on_error='skip'; open it without")
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, position: SupportsIndex) -> Any:
        return self.dataset[operator.index(position)]

    def _getitems(self, positions: Sequence[int]) -> Sequence[Any]:
        """Return the samples at `positions`; grain calls this once for a batch."""
        return self.dataset.take(positions)

    def __repr__(self) -> str:
        return f"DataSource(records={len(self)}, fingerprint={self.dataset.fingerprint})"


class OrderSampler:
    """A sampler of grain over any order of `mmapds.orders`, epoch after epoch.

    `sampler[i]` is the record at position `i % epoch_size` of epoch `i // epoch_size`, computed on access. All shards
    have equally many records: the last step is padded from the beginning of the last epoch, or dropped with
    `drop_remainder`.

    Args:
      order: the order of the records, of `mmapds.orders` or your own.
      shard_options: the shard of this process; give the same to the DataLoader, or none.
      num_epochs: number of epochs; endless by default, as with grain's `IndexSampler`.
      epoch_size: positions of the order in an epoch, over all shards; all by default.
      seed: seed of grain's random transforms, with one generator for each record.
    Raises:
      OrderError: an argument is out of range, or not an order.
    """

    def __init__(
        self,
        order: Order,
        shard_options: grain.sharding.ShardOptions | None = None,
        *,
        num_epochs: int | None = None,
        epoch_size: int | None = None,
        seed: int | None = None,
    ) -> None:
        check_is_order(order)
        self._order, self._size = order, size_of_epoch(order, epoch_size)
        # grain.DataLoader reads this attribute if it gets no shard options.
        self._shard_options = grain.sharding.NoSharding() if shard_options is None else shard_options
        self._num_epochs = None if num_epochs is None else integer("num_epochs", num_epochs, 1)
        self._seed = None if seed is None else integer("seed", seed, 0)
        self._length, self._last = sys.maxsize, sys.maxsize
        if self._num_epochs is not None:
            self._last = self._num_epochs * self._size
            shards = self._shard_options.shard_count
            steps = self._last // shards if self._shard_options.drop_remainder else -(-self._last // shards)
            self._length = steps * shards

    def __len__(self) -> int:
        """Return the records of all epochs and shards; `sys.maxsize` without an end."""
        return self._length

    def __getitem__(self, index: SupportsIndex) -> grain.RecordMetadata:
        """Return the record at a place, counted over all epochs and shards.

        Raises:
          IndexError: the place is out of range.
        """
        number = operator.index(index)
        if not 0 <= number < self._length:
            raise IndexError(f"index {shortened(number)} is out of range for {self._length} places")
        size = self._size
        epoch, position = divmod(number, size)
        if number >= self._last:  # padding of the last step
            epoch, position = (self._last - 1) // size, (number - self._last) % size
        record = int(records_at(self._order, epoch, np.array([position]))[0])
        rng = None if self._seed is None else np.random.Generator(np.random.Philox(key=self._seed + number))
        return grain.RecordMetadata(index=number, record_key=record, rng=rng)

    def __repr__(self) -> str:
        """Return the text that grain's checkpoints compare."""
        return (
            f"OrderSampler({self._order.describe()}, {self._shard_options!r}, num_epochs={self._num_epochs}, "
            f"epoch_size={self._size}, seed={self._seed})"
        )
