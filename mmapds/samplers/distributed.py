"""Samplers for torch's DataLoader: constant memory, no wait at the start of an epoch, and resume at any step at once.

They use only the length of a dataset.
"""

from collections.abc import Iterator, Mapping, Sequence, Sized
from typing import Any

import numpy as np
import torch.utils.data.distributed
from numpy.typing import NDArray

from ..errors import OrderError
from ..orders.basic import Order, Sequential, Shuffled, integer
from ..orders.chunked import Chunked
from ..orders.mixture import Mixture
from .epoch import EpochProgress, Exclude, OrderedRecords, Sharding, world
from .resumable import ResumableSampler


class DistributedSampler(ResumableSampler, torch.utils.data.distributed.DistributedSampler[Any]):
    """A drop-in replacement for torch's DistributedSampler, without its list of all indices.

    Its first six arguments, counts, padding and public attributes are those of torch's; so are its indices with
    `shuffle=False`. Without torch.distributed and without RANK and WORLD_SIZE, it is the sampler of a single process.

    Args:
      dataset: anything with a length.
      num_replicas, rank: default to those of torch.distributed, else of the environment, else to 1 and 0.
      shuffle: a new order every epoch (see `set_epoch`), else the order of the dataset.
      seed: chooses the orders; the same on all ranks.
      drop_last: leave out a last step that is not full, instead of padding it from the beginning of the epoch.
      order: an order of your own (see `mmapds.orders`), instead of `shuffle` and `seed`.
      epoch_size: positions of the order in an epoch, over all ranks; all by default.
      start_step: where the first pass begins, in steps (a step is one sample on every rank).
      exclude: what the first pass leaves out: `{"steps": [(1200, 1300)], "records": [17, (500, 600)]}`, in numbers or
        half-open ranges. Everything else keeps its order. Steps count as without the exclusion.
    Raises:
      OrderError: an argument is out of range; it is also a ValueError.
    """

    def __init__(
        self,
        dataset: Sized,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        *,
        order: Order | None = None,
        epoch_size: int | None = None,
        start_step: int = 0,
        exclude: Exclude | None = None,
    ) -> None:
        num_replicas, rank = world(num_replicas, rank)
        if order is None:
            order = Shuffled(len(dataset), seed) if shuffle else Sequential(len(dataset))
        elif not isinstance(order, Order):
            found = type(order).__name__
            raise OrderError(
                f"order: expected an order with at(), describe() and a length, found {found} (see mmapds.orders)"
            )
        self._records = OrderedRecords(order, epoch_size)
        sharding = Sharding(num_replicas, rank, 1, drop_last)
        self._progress = EpochProgress(self._records, sharding, start_step=start_step, exclude=exclude)
        super().__init__(dataset, num_replicas, rank, shuffle, seed, drop_last)  # type: ignore[arg-type]
        self.num_samples = len(self._progress)
        self.total_size = self.num_samples * num_replicas

    def __iter__(self) -> Iterator[int]:
        """Return an iterator over a pass, which begins, and reads the epoch, with its first index."""
        # A generator: nothing happens before the first next(), as a DataLoader may make two and use one.
        begun, records = self._progress.begin(), self._records
        yield from begun.map(lambda _, positions: records.at(begun.epoch, positions[:, 0]).tolist())

    def indices_at(self, step: int) -> NDArray[np.int64]:
        """Return the records in a step of this epoch, one for each rank: shape (num_replicas,)."""
        return self._records.at(self.epoch, self._progress.positions_at(step)[:, 0])


class ChunkedSampler(DistributedSampler):
    """Shuffles chunks of neighbouring records, some at a time: nearly sequential reads for disks and network files.

    Args:
      dataset: anything with a length. Chunks do not cross the sources of an mmapds dataset.
      chunk_size: consecutive records in a chunk.
      mix_chunks: chunks that are shuffled together; reads stay within `mix_chunks * chunk_size` records for as many
        positions.
      cross_sources: let chunks cross sources.
    The other arguments are those of `DistributedSampler`.
    """

    def __init__(
        self,
        dataset: Sized,
        chunk_size: int,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        *,
        mix_chunks: int = 16,
        cross_sources: bool = False,
        epoch_size: int | None = None,
        start_step: int = 0,
        exclude: Exclude | None = None,
    ) -> None:
        starts = None if cross_sources else getattr(dataset, "source_starts", None)
        chunked = Chunked(len(dataset) if starts is None else starts, chunk_size, mix_chunks=mix_chunks, seed=seed)
        super().__init__(
            dataset,
            num_replicas,
            rank,
            shuffle,
            seed,
            drop_last,
            order=chunked if shuffle else None,
            epoch_size=epoch_size,
            start_step=start_step,
            exclude=exclude,
        )


class MixtureSampler(DistributedSampler):
    """Mixes datasets in fixed proportions. Each is shuffled on its own, and again each time it has been read whole.

    Indices count through the datasets in order, as those of `mmapds.concat` do.

    Args:
      datasets: datasets or their sizes, or one mmapds dataset, whose sources are then mixed.
      weights: share of each; `orders.Mixture` says which are exact.
      stop: "first" ends an epoch when one dataset has been read whole, "longest" when all have.
      epoch_size: positions in an epoch over all ranks, instead of `stop`.
    The other arguments are those of `DistributedSampler`.
    """

    def __init__(
        self,
        datasets: Sequence[Sized | int] | Sized,
        weights: Sequence[float],
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        *,
        stop: str = "first",
        epoch_size: int | None = None,
        start_step: int = 0,
        exclude: Exclude | None = None,
    ) -> None:
        starts = getattr(datasets, "source_starts", None)
        if starts is not None:
            sizes = np.diff(starts).tolist()
        elif isinstance(datasets, Sequence):
            sizes = [len(each) if isinstance(each, Sized) else each for each in datasets]
        else:
            raise OrderError(f"datasets: expected a list of datasets or sizes, found {type(datasets).__name__}")
        order = Mixture(sizes, weights, seed=seed, stop=stop, epoch_size=epoch_size, shuffle=shuffle)
        super().__init__(
            range(sum(sizes)),
            num_replicas,
            rank,
            shuffle,
            seed,
            drop_last,
            order=order,
            start_step=start_step,
            exclude=exclude,
        )


class DistributedBatchSampler(ResumableSampler, torch.utils.data.BatchSampler):
    """Batches of a fixed size, as many on every rank.

    The batches are those of a BatchSampler over a `DistributedSampler`, but states count in batches. Its attribute
    `sampler` is such a sampler: `set_epoch` on either one is for both, as Lightning and accelerate need.

    Args:
      dataset: anything with a length, or a `DistributedSampler`, whose order, epoch size, num_replicas and rank are
        then used.
      batch_size: samples in a batch of one rank.
      drop_last: leave out a last step that is not full on every rank; else its batches are smaller, all of one size.
      start_step: where the first pass begins, in batches.
    The other arguments are those of `DistributedSampler`.
    """

    sampler: DistributedSampler

    def __init__(
        self,
        dataset: Sized,
        batch_size: int,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        *,
        order: Order | None = None,
        epoch_size: int | None = None,
        start_step: int = 0,
        exclude: Exclude | None = None,
    ) -> None:
        batch_size = integer("batch_size", batch_size, 1)
        if isinstance(dataset, DistributedSampler):
            sampler = dataset
        else:
            sampler = DistributedSampler(
                dataset, num_replicas, rank, shuffle, seed, drop_last, order=order, epoch_size=epoch_size
            )
        super().__init__(sampler, batch_size, drop_last)
        self._records = sampler._records
        sharding = Sharding(sampler.num_replicas, sampler.rank, batch_size, drop_last)
        self._progress = EpochProgress(self._records, sharding, start_step=start_step, exclude=exclude)

    def _synchronised(self) -> EpochProgress:
        self._progress.set_epoch(self.sampler.epoch)
        return self._progress

    def _choose_epoch(self, epoch: int) -> None:
        self.sampler.set_epoch(epoch)

    def __iter__(self) -> Iterator[list[int]]:
        """Return an iterator over a pass, which begins, and reads the epoch, with its first batch."""
        begun, records = self._synchronised().begin(), self._records
        yield from begun.map(lambda _, positions: records.at(begun.epoch, positions).tolist())

    def indices_at(self, step: int) -> NDArray[np.int64]:
        """Return the records in a step of this epoch, a row for each rank: shape (num_replicas, batch)."""
        return self._records.at(self.epoch, self._synchronised().positions_at(step))

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Begin the next pass where a state was saved, also with another batch size; see `DistributedSampler`."""
        super().load_state_dict(state_dict)
        self._choose_epoch(self._progress.epoch)
