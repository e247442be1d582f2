"""Samplers for torch's DataLoader: constant memory, no wait at the start of an epoch, and resume at any step at once.

They take a dataset for its length alone, and know nothing of what is in it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any

import numpy as np
import torch.utils.data.distributed
from numpy.typing import NDArray

from ..errors import OrderError
from ..orders.basic import Order, Sequential, Shuffled
from ..orders.chunked import Chunked
from ..orders.mixture import Mixture
from .epoch import Deal, Progress, world

Exclude = Mapping[str, Iterable[Any]]


class DistributedSampler(torch.utils.data.distributed.DistributedSampler[Any]):
    """torch's DistributedSampler, which it can replace as it stands, without its list of all indices.

    Its first six arguments, its counts, its padding and its public attributes are those of torch's; so are its indices
    with `shuffle=False`. Without torch.distributed and without RANK and WORLD_SIZE, it serves a single process.

    Args:
      dataset: anything with a length.
      num_replicas, rank: default to those of torch.distributed, else of the environment, else to 1 and 0.
      shuffle: a new order every epoch (see `set_epoch`), else the order of the dataset.
      seed: chooses the orders; the same on all ranks.
      drop_last: leave out the tail that does not go round, instead of filling it up from the start of the epoch.
      order: an order of your own (see `mmapds.orders`), instead of `shuffle` and `seed`.
      epoch_size: positions of the order in an epoch, over all ranks; all by default.
      start_step: where the first pass begins, in steps (a step is one sample on every rank).
      exclude: what the first pass leaves out, everything else keeping its order: `{"steps": [(1200, 1300)], "records":
        [17, (500, 600)]}`, in numbers or half-open ranges. Steps count as they do without the exclusion.
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
        self._progress = Progress(
            order,
            Deal(num_replicas, rank, 1, drop_last),
            epoch_size=epoch_size,
            start_step=start_step,
            exclude=exclude,
        )
        super().__init__(dataset, num_replicas, rank, shuffle, seed, drop_last)  # type: ignore[arg-type]
        self.num_samples = len(self._progress)
        self.total_size = self.num_samples * num_replicas

    @property
    def epoch(self) -> int:
        """The epoch that the next pass is of."""
        return self._progress.epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self._progress.set_epoch(epoch)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next pass; any but a restored state's own clears the position it restored."""
        self._progress.set_epoch(epoch)

    def __len__(self) -> int:
        """Steps in a whole epoch: the same on every rank, in every epoch, and wherever a pass begins."""
        return self.num_samples

    def __iter__(self) -> Iterator[int]:
        """Return a pass that begins, and reads the epoch, when its first index is asked for."""
        # A generator: nothing happens before the first next(), as a DataLoader may make two and use one.
        yield from self._progress.begin().samples()

    def indices_at(self, step: int) -> NDArray[np.int64]:
        """Return the records that make up a step of this epoch, one for each rank: shape (num_replicas,)."""
        return self._progress.records_at(step)[:, 0]

    def state_dict(self, step: int | None = None) -> dict[str, Any]:
        """Return where the epoch is, in a small dict that JSON can hold, the same on every rank.

        Args:
          step: steps of the epoch that the trainer has finished; by default those handed out, which workers that
            prefetch let run ahead of the trainer.
        """
        return self._progress.state_dict(step)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a state in the next pass, at any number of replicas; an exhausted one starts a full pass.

        Raises:
          StateError: the state is of another dataset size, seed, order or version, or none at all.
        """
        self._progress.load_state_dict(state_dict)


class ChunkedSampler(DistributedSampler):
    """Shuffles chunks of neighbouring records, some at a time: nearly sequential reads for disks and network files.

    Args:
      dataset: anything with a length. Chunks do not cross the sources of an mmapds dataset.
      chunk_size: consecutive records in a chunk.
      mix_chunks: chunks that are shuffled together; reads stay within `mix_chunks * chunk_size` records for as long.
      cross_sources: let chunks cross sources.
    The others are those of `DistributedSampler`.
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
    """Mixes datasets in fixed proportions, each shuffled by itself and again whenever it is used up.

    Indices count through the datasets in order, as those of `mmapds.concat` do.

    Args:
      datasets: datasets or their sizes, or one mmapds dataset, whose sources are then mixed.
      weights: share of each; see `orders.Mixture` for which are exact.
      stop: "first" ends an epoch when the first dataset has been seen whole, "longest" when all have.
      epoch_size: positions in an epoch over all ranks, instead of `stop`.
    The others are those of `DistributedSampler`.
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
            sizes = [each if isinstance(each, int) else len(each) for each in datasets]
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


class DistributedBatchSampler(torch.utils.data.BatchSampler):
    """Batches of a fixed size straight from an order, the same number on every rank.

    It gives the batches that a BatchSampler over a `DistributedSampler` gives, and keeps its place in batches. That
    sampler is its `sampler`: `set_epoch` on either drives both, which is how Lightning and accelerate reach it.

    Args:
      dataset: anything with a length, or a `DistributedSampler` whose order and world it then takes.
      batch_size: samples in a batch of one rank.
      drop_last: leave out a last step that is not full on every rank; else its batches are smaller, equally on all.
      start_step: where the first pass begins, in batches.
    The others are those of `DistributedSampler`.
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
        if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
            raise OrderError(f"batch_size = {batch_size!r}, expected an integer of 1 or more")
        if isinstance(dataset, DistributedSampler):
            sampler = dataset
        else:
            sampler = DistributedSampler(
                dataset, num_replicas, rank, shuffle, seed, drop_last, order=order, epoch_size=epoch_size
            )
        super().__init__(sampler, batch_size, drop_last)
        self._own = Progress(
            sampler._progress.order,
            Deal(sampler.num_replicas, sampler.rank, batch_size, drop_last),
            epoch_size=sampler._progress.total,
            start_step=start_step,
            exclude=exclude,
        )

    @property
    def _progress(self) -> Progress:
        self._own.set_epoch(self.sampler.epoch)
        return self._own

    @property
    def epoch(self) -> int:
        """The epoch that the next pass is of: its sampler's."""
        return self._progress.epoch

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next pass; any but a restored state's own clears the position it restored."""
        self.sampler.set_epoch(epoch)

    def __len__(self) -> int:
        """Batches in a whole epoch: the same on every rank, in every epoch, and wherever a pass begins."""
        return len(self._own)

    def __iter__(self) -> Iterator[list[int]]:
        """Return a pass that begins, and reads the epoch, when its first batch is asked for."""
        yield from self._progress.begin()

    def indices_at(self, step: int) -> NDArray[np.int64]:
        """Return the records that make up a step of this epoch, a row for each rank: shape (num_replicas, batch)."""
        return self._progress.records_at(step)

    def state_dict(self, step: int | None = None) -> dict[str, Any]:
        """Return where the epoch is; see `DistributedSampler.state_dict`. Steps are batches."""
        return self._progress.state_dict(step)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a state, also one of another batch size; see `DistributedSampler.load_state_dict`."""
        self._own.load_state_dict(state_dict)
        self.sampler.set_epoch(self._own.epoch)
