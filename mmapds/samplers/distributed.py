"""Samplers for torch's DataLoader: constant memory, no wait at the start of an epoch, and resume at any step at once.

They use only the length of a dataset.
"""

from __future__ import annotations  # help() shows them as they are written

from collections.abc import Iterator, Mapping, Sequence, Sized
from typing import Any, Literal, TypeGuard

import numpy as np
import torch.utils.data.distributed
from numpy.typing import NDArray

from ..errors import OrderError, counted, names_its_arguments, plain_counted, shortened
from ..orders.basic import Order, Sequential, Shuffled, check_is_order, integer
from ..orders.chunked import Chunked
from ..orders.mixture import Mixture
from .contents import OrderedRecords, records_of
from .data import Chain, SampledData
from .epoch import EpochProgress
from .exclusions import Exclude
from .passes import Pass, Sharding
from .resumable import ResumableSampler, refuse_injected, refuse_injected_dataset, refuse_path
from .world import World


class DistributedSampler(ResumableSampler, torch.utils.data.distributed.DistributedSampler[Any]):
    """A drop-in replacement for torch's DistributedSampler, without its list of all indices.

    Its first six arguments, counts, padding and public attributes are those of torch's; so are its indices with
    `shuffle=False`. Without torch.distributed and without RANK and WORLD_SIZE, it is the sampler of a single process.

    Args:
      dataset: anything with a length.
      num_replicas, rank: default to those of torch.distributed, else of the environment, else to 1 and 0.
      shuffle: a new order every epoch (see `set_epoch`), the default; else the order of the dataset.
      seed: chooses the orders; the same on all ranks; 0 by default.
      drop_last: leave out a last step that is not full, instead of padding it from the beginning of the epoch.
      order: an order of your own (see `mmapds.orders`), instead of `shuffle` and `seed`; of as many records as the
        dataset has.
      epoch_size: positions of the order in an epoch, over all ranks; all by default.
      start_step: where the first pass begins, in steps (a step is one sample on every rank).
      exclude: what is left out: `{"steps": [(1200, 1300)], "records": [17, (500, 600)]}`, in numbers or half-open
        ranges; steps of the first pass, records of all. Everything else keeps its order. Steps count as without the
        exclusion.
      pad: False leaves a last step that is not full as it is, for exact evaluation: every sample comes once over all
        ranks, and ranks may differ by one sample; `len()` is that of this rank.
    Warns:
      UserWarning: it is made for one process under SLURM with several tasks, or under a torch.distributed that is
        initialised later; or a second whole pass begins in the same epoch.
    Raises:
      OrderError: an argument is out of range; or, before the first sample of a pass, a rank of torch.distributed has
        another sampler, or did not come; it is also a ValueError.
    """

    @names_its_arguments("mmapds.DistributedSampler", error=OrderError)
    def __init__(
        self,
        dataset: Sized,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool | None = None,
        seed: int | None = None,
        drop_last: bool = False,
        *,
        order: Order | None = None,
        epoch_size: int | None = None,
        start_step: int = 0,
        exclude: Exclude | None = None,
        pad: bool = True,
    ) -> None:
        refuse_path("dataset", dataset)
        world = World.of(num_replicas, rank)
        num_replicas, rank = world.num_replicas, world.rank
        if order is not None:
            _check_order(order, dataset, shuffle=shuffle, seed=seed)
        shuffle, seed = shuffle is None or bool(shuffle), 0 if seed is None else seed
        drop_last, pad = bool(drop_last), bool(pad)
        if order is None:
            _check_not_empty(dataset)
            order = Shuffled(len(dataset), seed) if shuffle else Sequential(len(dataset))
        self._records = OrderedRecords(order, epoch_size)
        self._assumed = world.assumed
        sharding = Sharding(num_replicas, rank, 1, drop_last, pad)
        self._progress = EpochProgress(
            self._records, sharding, start_step=start_step, exclude=exclude, assumed=world.assumed
        )
        super().__init__(dataset, num_replicas, rank, shuffle, seed, drop_last)  # type: ignore[arg-type]
        self._progress.agenda.forget_choice()  # torch's constructor sets epoch 0
        self._data = SampledData(dataset)
        self.num_samples = len(self._progress)
        self.total_size = self.num_samples * num_replicas if pad else len(self._records)

    def __iter__(self) -> Iterator[int]:
        """Return an iterator over a pass, which begins, and reads the epoch, with its first index."""
        # A generator: nothing happens before the first next(), as a DataLoader may make two and use one.
        self._compare_ranks()
        begun, records = self._progress.begin(), self._records
        yield from begun.map(lambda _, positions: records.at(begun.epoch, positions[:, 0]).tolist())

    def _what(self) -> str:
        return f"{counted(len(self._records), 'sample')}, seed {self.seed}"

    @property
    def sampled(self) -> Any:
        return self.dataset

    def indices_at(self, step: int) -> NDArray[np.int64]:
        """Return the records in a step of this epoch, one for each rank that has one: shape (num_replicas,)."""
        positions = self._progress.positions_at(integer("step", step))[:, 0]
        return self._records.at(self.epoch, positions[positions >= 0])


def _check_order(order: Any, dataset: Sized, **instead: object) -> None:
    """Raise OrderError for an order beside arguments that make one, or for one of other records than the dataset's."""
    check_is_order(order)
    for name, value in instead.items():
        if value is not None:
            raise OrderError(
                f"{name} = {value!r}, expected None beside an order, which has its own; give it to the order"
            )
    records = records_of(order)
    if records not in (None, len(dataset)):
        expected = plain_counted(len(dataset), "record")
        raise OrderError(f"order: expected one of {expected}, as the dataset has, found one of {records}")


def _check_not_empty(dataset: Sized) -> None:
    if len(dataset) == 0:
        raise OrderError("dataset: expected one sample or more, found 0 (the dataset or the view is empty)")


class ChunkedSampler(DistributedSampler):
    """Shuffles chunks of neighbouring records, some at a time: nearly sequential reads for disks and network files.

    Args:
      dataset: anything with a length. Chunks do not cross the sources of an mmapds dataset.
      chunk_size: consecutive records in a chunk; or "block": a chunk for each block of compressed sources, so that an
        epoch decodes each about once, if those of `mix_chunks` chunks fit the `block_cache` of the dataset.
      mix_chunks: chunks that are shuffled together; reads stay within `mix_chunks * chunk_size` records for as many
        positions.
      cross_sources: let chunks cross sources.
    The other arguments are those of `DistributedSampler`.
    """

    @names_its_arguments("mmapds.ChunkedSampler", error=OrderError)
    def __init__(
        self,
        dataset: Sized,
        chunk_size: int | Literal["block"],
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
        refuse_path("dataset", dataset)
        _check_not_empty(dataset)
        is_block = isinstance(chunk_size, str) and chunk_size == "block"  # an array compares item by item
        has_bounds = is_block or (hasattr(type(dataset), "source_starts") and not cross_sources)
        chunked = Chunked(dataset if has_bounds else len(dataset), chunk_size, mix_chunks=mix_chunks, seed=seed)
        super().__init__(
            dataset,
            num_replicas,
            rank,
            drop_last=drop_last,
            order=chunked if shuffle else Sequential(len(dataset)),
            epoch_size=epoch_size,
            start_step=start_step,
            exclude=exclude,
        )
        self.shuffle, self.seed = shuffle, seed


class MixtureSampler(DistributedSampler):
    """Mixes datasets in fixed proportions. Each is shuffled on its own, and again each time it has been read whole.

    Indices count through the datasets in order, as those of `mmapds.concat` do. A loader of mmapds refuses such a
    sampler over other records, or in another order; of sizes nothing can be compared but their sum.

    Args:
      datasets: datasets or their sizes, or one mmapds dataset, whose sources are then mixed.
      weights: share of each; `orders.Mixture` says which are exact.
      stop: "first" ends an epoch when one dataset has been read whole, "longest" when all have.
      epoch_size: positions in an epoch over all ranks, instead of `stop`.
    The other arguments are those of `DistributedSampler`.
    """

    @names_its_arguments("mmapds.MixtureSampler", error=OrderError)
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
        refuse_path("datasets", datasets)
        self._chain: Chain | None = None
        starts = getattr(datasets, "source_starts", None)
        if starts is not None:
            sizes = np.diff(starts).tolist()
        elif isinstance(datasets, Sequence):
            for d, each in enumerate(datasets):
                refuse_path(f"datasets[{d}]", each)
            sizes = [len(each) if _is_sized(each) else each for each in datasets]  # of any integer type
        else:
            raise OrderError(f"datasets: expected a list of datasets or sizes, found {type(datasets).__name__}")
        order = Mixture(sizes, weights, seed=seed, stop=stop, epoch_size=epoch_size, shuffle=shuffle)
        if starts is None and isinstance(datasets, Sequence):
            self._chain = Chain(list(datasets), list(map(int, sizes)))
        super().__init__(
            range(order.records) if starts is None else datasets,
            num_replicas,
            rank,
            drop_last=drop_last,
            order=order,
            start_step=start_step,
            exclude=exclude,
        )
        self.shuffle, self.seed = shuffle, seed
        self._data = SampledData(datasets)

    @property
    def sampled(self) -> Any:
        return self._chain or self.dataset


def _is_sized(found: Any) -> TypeGuard[Sized]:
    """Whether something has a length; an array of one number has not, though its type says so."""
    return isinstance(found, Sized) and bool(getattr(found, "ndim", True))


class DistributedBatchSampler(ResumableSampler, torch.utils.data.BatchSampler):
    """Batches of a fixed size, as many on every rank.

    The batches are those of a BatchSampler over a `DistributedSampler`, but states count in batches. Its attribute
    `sampler` is such a sampler: `set_epoch` on either one is for both, as Lightning and accelerate need.

    Args:
      dataset: anything with a length, or a `DistributedSampler`, whose order, epoch size, num_replicas and rank are
        then used; what else it can leave out or begin with is for the batch sampler: `exclude`, `start_step`,
        `drop_last`, `pad` and states.
      batch_size: samples in a batch of one rank.
      drop_last: leave out a last step that is not full on every rank; else its batches are smaller, all of one size.
      start_step: where the first pass begins, in batches.
      pad: False leaves the last step as it is: its batches differ by up to one sample, and ranks by up to one batch.
      sampler: for trainers that want to shard the epoch again; only None is accepted.
    The other arguments are those of `DistributedSampler`.
    """

    sampler: DistributedSampler

    @names_its_arguments("mmapds.DistributedBatchSampler", error=OrderError)
    def __init__(
        self,
        dataset: Sized,
        batch_size: int,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool | None = None,
        seed: int | None = None,
        drop_last: bool = False,
        *,
        order: Order | None = None,
        epoch_size: int | None = None,
        start_step: int = 0,
        exclude: Exclude | None = None,
        pad: bool = True,
        sampler: None = None,
    ) -> None:
        refuse_injected(sampler)
        batch_size = integer("batch_size", batch_size, 1)
        drop_last, pad = bool(drop_last), bool(pad)
        if isinstance(dataset, DistributedSampler):
            for name, value in {"shuffle": shuffle, "seed": seed, "order": order, "epoch_size": epoch_size}.items():
                if value is not None:
                    raise OrderError(f"{name} = {value!r}, expected None beside a sampler; give it to the sampler")
            _refuse_what_batches_decide(dataset, drop_last, pad)
            indices = dataset
        else:
            refuse_injected_dataset(dataset)
            indices = DistributedSampler(
                dataset, num_replicas, rank, shuffle, seed, drop_last, order=order, epoch_size=epoch_size, pad=pad
            )
        super().__init__(indices, batch_size, drop_last)
        self._data = indices._data
        self._records = indices._records
        sharding = Sharding(indices.num_replicas, indices.rank, batch_size, drop_last, pad)
        self._progress = EpochProgress(
            self._records, sharding, start_step=start_step, exclude=exclude, assumed=indices._assumed
        )
        chosen = indices._progress.agenda
        self._progress.agenda.epoch = chosen.epoch
        if chosen.chosen is not None:
            self._progress.set_epoch(chosen.epoch)
        self._choices = chosen.choices  # those that are known here

    def _synchronised(self) -> EpochProgress:
        chosen = self.sampler._progress.agenda
        if self._choices != chosen.choices:
            self._choices, epoch = chosen.choices, chosen.epoch
            self._follow_workers()
            chosen.epoch = epoch
            self._progress.set_epoch(epoch)
        return self._progress

    def _choose_epoch(self, epoch: int) -> None:
        self.sampler.set_epoch(epoch)
        self._synchronised()

    def __iter__(self) -> Iterator[list[int]]:
        """Return an iterator over a pass, which begins, and reads the epoch, with its first batch."""
        self._refuse_second_sharding()
        return self._batches()

    def _batches(self) -> Iterator[list[int]]:
        self._compare_ranks()
        begun, records = self._synchronised().begin(), self._records
        yield from begun.map(lambda _, positions: records.at(begun.epoch, positions).tolist())

    def _what(self) -> str:
        return f"{counted(len(self._records), 'sample')}, batch size {self.batch_size}, seed {self.sampler.seed}"

    @property
    def sampled(self) -> Any:
        return self.sampler.sampled

    def indices_at(self, step: int) -> NDArray[np.int64] | list[NDArray[np.int64]]:
        """Return the records in a step of this epoch, a row for each rank: shape (num_replicas, batch).

        With `pad=False`, the last step is a list of an array for each rank, as they may differ in size.
        """
        positions = self._synchronised().positions_at(integer("step", step))
        if (positions >= 0).all():
            return self._records.at(self.epoch, positions)
        return [self._records.at(self.epoch, row[row >= 0]) for row in positions]

    @names_its_arguments("sampler.state_dict")
    def state_dict(self, step: int | None = None) -> dict[str, Any]:
        """Return where the epoch is, and the batch size; see `DistributedSampler`."""
        return {**super().state_dict(step), "batch_size": self.batch_size}

    def _state_before(self, of: Pass) -> dict[str, Any]:
        return {**super()._state_before(of), "batch_size": self.batch_size}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Begin the next pass where a state was saved, also with another batch size; see `DistributedSampler`."""
        self._synchronised()
        super().load_state_dict(state_dict)
        chosen = self.sampler._progress.agenda
        chosen.epoch = self._progress.epoch
        chosen.forget_choice()
        chosen.choices += 1  # which other batch samplers over it take over
        self._choices = chosen.choices


def _refuse_what_batches_decide(sampler: DistributedSampler, drop_last: bool, pad: bool) -> None:
    """Refuse a sampler with arguments that the batch sampler over it would not use.

    Args:
      drop_last, pad: of the batch sampler.
    Raises:
      OrderError: it has such arguments, or goes on within an epoch.
    """
    exclude = {kind: list(ranges) for kind, ranges in sampler._progress.exclude.items() if ranges}
    sharding = sampler._progress.sharding
    for name, value, accepted in (
        ("exclude", exclude or None, [None]),
        ("drop_last", sharding.drop_last, [False, drop_last]),
        ("pad", sharding.pad, [True, pad]),
    ):
        if value not in accepted:
            raise OrderError(
                f"{name} = {shortened(value)} in the sampler, expected {accepted[0]}; give it to the batch sampler"
            )
    step = sampler._progress.coming().first_step
    if step:
        raise OrderError(
            f"dataset: expected a sampler at the beginning of an epoch, found one at step {step}; give start_step, "
            "in batches, or the state to the batch sampler"
        )
