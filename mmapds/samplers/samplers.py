"""Samplers for torch's DataLoader: constant memory, no wait at the start of an epoch, and instant resume at any step.

They need only the length of a dataset.
"""

from __future__ import annotations  # help() shows them as they are written

from collections.abc import Mapping, Sequence, Sized
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch.utils.data.distributed
from numpy.typing import ArrayLike, NDArray

from ..errors import OrderError, StateError, counted, plain_counted
from ..orders.basic import Chunked, Int64s, Mixture, Order, Sequential, Shuffled, check_is_order, integer
from ..orders.drawn import Parts, ResampledChunks, order_by_weight
from ..orders.schedule import Changing, is_schedule
from .cursor import Make, Sharding, Span
from .ordered import Exclude, OrderedRecords
from .ranks import World
from .resumable import ResumableSampler, refuse_injected
from .sampled import are_ours, joined, refuse_path
from .summary import Summary, of_order


class OrderSampler(ResumableSampler):
    """Yields records in an order: a record or a batch for each step."""

    _contents: OrderedRecords
    _in_batches = False

    def _sample(self, dataset: Any, records: OrderedRecords, sharding: Sharding, world: World, start_step: int) -> None:
        """Store the dataset, the records and the ranks; set up the first iterator."""
        if not sharding.pad and sharding.drop_last:
            raise OrderError("drop_last = True, expected False with pad=False, which drops no sample")
        if not sharding.pad and records.excluded:
            raise OrderError(
                "exclude: expected None with pad=False, which reads every sample once; drop records with a view, as "
                "in ds[mask]"
            )
        self._contents, self._exclude, self._sharding, self._world = records, records.excluded, sharding, world
        self.sampled = dataset
        self._cursor = self._new_cursor(start_step)

    def _load(self, state: Mapping[str, Any], contents: Any) -> None:
        found = contents.of_state(state.get("order") if isinstance(state, Mapping) else None)
        super()._load(state, found)
        contents.order, self._contents = found.order, contents  # a batch sampler shares them with its sampler

    def _maker(self, span: Span) -> Make:
        records, in_batches = self._contents, self._in_batches
        return lambda _, positions: records.at(span.epoch, positions if in_batches else positions[:, 0]).tolist()

    def continue_from(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a state of a mixture with other weights, with more datasets, or with datasets that grew.

            sampler = mmapds.MixtureSampler([ds, ds], weights=[0.5, 0.5], epoch_size=10_000)
            sampler.continue_from(state)  # instead of load_state_dict, of the loader, too

        From the position of the state on, this mixture's weights hold. Datasets go on where they were, in the same
        order; new ones come behind them. One that grew begins anew. States keep the change, so later jobs of this
        mixture load them as usual.

        Raises:
          StateError: the state is not of a mixture; it has another seed, more datasets, or another dataset of the same
            size in the place of one.
        """
        try:
            epoch, position = self._contents.continue_from(state_dict)
        except (OrderError, KeyError, TypeError) as error:
            raise StateError(str(error) if isinstance(error, OrderError) else f"state: without {error}") from None
        self._cursor.load(epoch, position)

    def indices_at(self, step: int) -> NDArray[np.int64] | list[NDArray[np.int64]]:
        """Return the records in a step of this epoch: one for each rank, or rows of shape (num_replicas, batch).

        With `pad=False`, the last step of a batch sampler is a list of arrays, as batches may differ in size.
        """
        span = self._span_at(step)
        positions = span.positions(int(step) - span.first_step, 1, range(span.sharding.num_replicas))[0].T
        if not self._in_batches:
            return self._contents.at(span.epoch, positions[positions >= 0])
        if (positions >= 0).all():
            return self._contents.at(span.epoch, positions)
        return [self._contents.at(span.epoch, row[row >= 0]) for row in positions]

    def _batches_in(self, span: Span, steps: range) -> tuple[Int64s, Int64s]:
        sharding = span.sharding
        begin, end = (span.start + step * sharding.stride for step in (steps.start, steps.stop))
        positions = np.arange(begin, min(end, span.total), dtype=np.int64)
        if sharding.pad and end > span.total:
            padding = np.arange(span.total, span.total + -len(positions) % sharding.num_replicas)
            positions = np.append(positions, padding % span.total)
        records = self._contents.at(span.epoch, positions)
        return records, np.zeros(1, np.int64)

    def summary(self) -> Summary:
        """Return statistics of this epoch; `print` shows them.

        Padding and imbalance, of batches, need the lengths in an index. In a long epoch, they are those of the first
        steps.
        """
        order = getattr(self.sampled, "length_order", None) if self._in_batches else None
        span = Span(self._sharding, len(self._contents), self.epoch, 0)
        return of_order(self._contents, span, order and order.lengths)


class DistributedSampler(OrderSampler, torch.utils.data.distributed.DistributedSampler[Any]):
    """A drop-in replacement for torch's DistributedSampler, without its list of all indices.

        sampler = mmapds.DistributedSampler(ds, seed=7)
        loader = mmapds.DataLoader(ds, batch_size=32, sampler=sampler)

    The first six arguments, the number of samples, the padding and the public attributes match torch's; with
    `shuffle=False` the indices match too. Without torch.distributed, RANK and WORLD_SIZE it serves a single process.

    Args:
      dataset: anything with a length.
      num_replicas, rank: default to torch.distributed, then to WORLD_SIZE and RANK, then to 1 and 0.
      shuffle: a new order every epoch (see `set_epoch`), the default; False keeps the order of the dataset.
      seed: chooses the orders; the same on all ranks; 0 by default.
      drop_last: drop a partial last step, instead of padding it from the beginning of the epoch.
      order: an order of your own (see `mmapds.orders`), instead of `shuffle` and `seed`, for as many records as the
        dataset has.
      epoch_size: positions of the order in an epoch, over all ranks; all by default.
      start_step: where the first iterator begins, in steps (a step is one sample on every rank).
      exclude: numbers and half-open ranges of records to skip: `[17, (500, 600)]`. The record half an epoch later
        replaces each, so steps, lengths and states do not change.
      pad: False does not pad a partial last step, for exact evaluation: every sample comes once over all ranks, and
        ranks may differ by one sample; `len()` counts the samples of this rank.
      weights: draw by these weights, with replacement: numbers, or the name of a column; `epoch_size` draws are an
        epoch. `mmapds.orders.Weighted` draws without replacement.
      part_size: samples of an epoch, over all ranks. It begins where the last one ended, so every record comes once a
        pass over the dataset.
      mesh: a DeviceMesh or a ProcessGroup of torch.distributed: the data-parallel ranks, instead of `num_replicas` and
        `rank`. Ranks with the same place in it share their batches, and all ranks are compared (docs/parallel.md).
    Warns:
      UserWarning: the sampler serves one process, but SLURM runs several tasks, or torch.distributed was initialised
        after it was made; or an iterator follows a broken loop of torch's workers, which had drawn ahead.
    Raises:
      OrderError: an argument is out of range; or, before the first sample, a rank of torch.distributed is missing or
        has another sampler; it is also a ValueError.
    """

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
        mesh: Any = None,
        weights: ArrayLike | str | None = None,
        part_size: int | None = None,
    ) -> None:
        refuse_path("dataset", dataset)
        world = World.of(num_replicas, rank, mesh)
        if order is not None:
            _check_order(order, dataset, shuffle=shuffle, seed=seed, weights=weights)
        # torch's constructor would only set these attributes, so it is not called.
        self.dataset: Any = dataset
        self.num_replicas, self.rank = world.num_replicas, world.rank
        self.shuffle, self.seed = shuffle is None or bool(shuffle), 0 if seed is None else seed
        self.drop_last = bool(drop_last)
        if weights is not None:
            if not self.shuffle:
                raise OrderError("shuffle = False, expected True with weights=, which draw")
            order, epoch_size = order_by_weight(dataset, weights, epoch_size, self.seed), None
        elif order is None:
            order = order_of(dataset, self.shuffle, self.seed)
        if part_size is not None:
            check_part(epoch_size, self.drop_last)
            order = Parts(order, integer("part_size", part_size, 1))
        sharding = Sharding(world.num_replicas, world.rank, 1, self.drop_last, bool(pad))
        self._sample(dataset, OrderedRecords(order, epoch_size, exclude), sharding, world, start_step)
        self.num_samples = len(self)
        self.total_size = self.num_samples * self.num_replicas if pad else len(self._contents)

    def _what(self) -> str:
        return f"{counted(len(self._contents), 'sample')}, seed {self.seed}"


def check_part(epoch_size: int | None, drop_last: bool) -> None:
    """Raise OrderError for arguments that would leave out samples of each part."""
    for name, value, expected in (("epoch_size", epoch_size, None), ("drop_last", drop_last, False)):
        if value != expected:
            raise OrderError(f"{name} = {value}, expected {expected} with part_size=, which reads every record")


def order_of(dataset: Sized, shuffle: bool, seed: int) -> Order:
    """Return the order of all records of a dataset.

    Raises:
      OrderError: the dataset is empty.
    """
    if len(dataset) == 0:
        raise OrderError("dataset: expected one sample or more, found 0 (the dataset or the view is empty)")
    return Shuffled(len(dataset), seed) if shuffle else Sequential(len(dataset))


def _check_order(order: Any, dataset: Sized, **instead: object) -> None:
    """Raise OrderError for an order together with `shuffle` or `seed`, or for another number of records."""
    check_is_order(order)
    for name, value in instead.items():
        if value is not None:
            way = "give orders.Weighted as the order" if name == "weights" else "give it to the order"
            raise OrderError(f"{name} = {value!r}, expected None together with order=; {way}")
    records = getattr(order, "records", None)
    if records not in (None, len(dataset)):
        expected = plain_counted(len(dataset), "record")
        raise OrderError(f"order: expected one of {expected}, as the dataset has, found one of {records}")


class ChunkedSampler(DistributedSampler):
    """Shuffles chunks of neighbours, some at a time: nearly sequential reads.

        sampler = mmapds.ChunkedSampler(ds, chunk_size=64, mix_chunks=16, seed=7)

    Args:
      dataset: anything with a length. Chunks do not cross the sources of an mmapds dataset.
      chunk_size: consecutive records in a chunk; or "block": a chunk for each block of compressed sources. An epoch
        then decodes each block about once, if `mix_chunks` blocks fit the `block_cache` of the dataset.
      mix_chunks: chunks that are shuffled together: an epoch reads all records of `mix_chunks` chunks before those of
        the next ones.
      cross_sources: let chunks cross sources.
      lanes: parts of an epoch with chunks of their own. With the number of nodes, each chunk is read by one node, but
        for some at the edges of lanes. A state keeps its lanes, for any number of ranks.
      resample: draw chunks with replacement, `epoch_size` samples an epoch, so that a small cache is enough; with
        `mix_chunks=0`, each is read in order. See `mmapds.orders.ResampledChunks`.
    The other arguments are those of `DistributedSampler`.
    """

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
        lanes: int = 1,
        epoch_size: int | None = None,
        start_step: int = 0,
        exclude: Exclude | None = None,
        mesh: Any = None,
        part_size: int | None = None,
        resample: bool = False,
    ) -> None:
        refuse_path("dataset", dataset)
        in_order = order_of(dataset, False, seed)
        is_block = isinstance(chunk_size, str) and chunk_size == "block"  # an array compares item by item
        has_bounds = is_block or (hasattr(type(dataset), "source_starts") and not cross_sources)
        bounds = dataset if has_bounds else len(dataset)
        order: Any = in_order
        if resample:
            if not shuffle:
                raise OrderError("shuffle = False, expected True with resample=True, which draws")
            order = ResampledChunks(bounds, chunk_size, mix_chunks=mix_chunks, epoch_size=epoch_size, seed=seed)
            epoch_size = None
        elif shuffle:
            order = chunked = Chunked(bounds, chunk_size, mix_chunks=mix_chunks, seed=seed, lanes=lanes)
        if integer("lanes", lanes, 1) > 1 and (resample or part_size is not None):
            raise OrderError(f"lanes = {lanes}, expected 1 with resample=True or part_size=")
        super().__init__(
            dataset,
            num_replicas,
            rank,
            drop_last=drop_last,
            order=order,
            epoch_size=epoch_size,
            start_step=start_step,
            exclude=exclude,
            mesh=mesh,
            part_size=part_size,
        )
        self.shuffle, self.seed = shuffle, seed
        if lanes > 1 and shuffle:
            self._contents.order = chunked._with_lanes(chunked.lanes, max(self.num_replicas // chunked.lanes, 1))


class MixtureSampler(DistributedSampler):
    """Mixes datasets by weights; each is shuffled again after a pass over it.

        sampler = mmapds.MixtureSampler([ds, more], weights=[0.7, 0.3], seed=7)
        loader = mmapds.DataLoader(mmapds.concat([ds, more]), batch_size=32, sampler=sampler)

    Indices count through the datasets in order, like those of `mmapds.concat`. `mmapds.DataLoader` refuses this sampler
    for a dataset of other records or another order; if `datasets` are sizes, it compares only their sum.

    Each epoch begins every dataset anew; what `first` or `epoch_size` left unread is not carried over. For each sample
    once before it repeats use `stop="longest"`, or one long epoch.

    Args:
      datasets: datasets or their sizes; or one mmapds dataset, to mix its sources.
      weights: share of each; `orders.Mixture` says which are exact. Or a schedule, with an `epoch_size`: pairs of a
        number of samples, over all ranks, and the weights from there on: `[(0, [0.7, 0.3]), (1_000_000, [0.5, 0.5])]`.
      stop: "first" ends an epoch when one dataset has been read whole, "longest" when all have.
      epoch_size: positions in an epoch over all ranks, instead of `stop`.
      ramps: change the weights of a schedule linearly from each entry to the next one.
    The other arguments are those of `DistributedSampler`.
    """

    _way_on = "to go on with other datasets or weights, call sampler.continue_from(state)"
    _way_out = f" ({_way_on})"

    def __init__(
        self,
        datasets: Sequence[Sized | int] | Sized,
        weights: Sequence[float] | Sequence[tuple[int, Sequence[float]]],
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
        mesh: Any = None,
        part_size: int | None = None,
        ramps: bool = False,
    ) -> None:
        refuse_path("datasets", datasets)
        sampled: Any = datasets
        sizes: list[Any]
        starts = getattr(datasets, "source_starts", None)
        if starts is not None:
            sizes = np.diff(starts).tolist()
            if len(sizes) == 1 < np.size(weights):
                raise OrderError(
                    f"datasets: expected {np.size(weights)} sources, one for each weight, found 1; give a list of "
                    "datasets or views (a view counts as one source)"
                )
        elif isinstance(datasets, Sequence):
            for d, each in enumerate(datasets):
                refuse_path(f"datasets[{d}]", each)
            # An array of one number is a Sized, but has no length.
            sizes = [
                len(each) if isinstance(each, Sized) and getattr(each, "ndim", True) else each for each in datasets
            ]
        else:
            raise OrderError(f"datasets: expected a list of datasets or sizes, found {type(datasets).__name__}")
        order = _mixture_of(sizes, weights, stop, epoch_size, ramps, seed=seed, shuffle=shuffle)
        if starts is None:
            parts, sampled = sampled, range(order.records)
            if are_ours(parts):
                sampled = joined(list(parts))
        else:
            parts = [sampled[begin:end] for begin, end in pairwise(starts.tolist())]
        super().__init__(
            sampled,
            num_replicas,
            rank,
            drop_last=drop_last,
            order=order,
            start_step=start_step,
            exclude=exclude,
            mesh=mesh,
            part_size=part_size,
        )
        self.shuffle, self.seed = shuffle, seed
        self._contents.members = [part.fingerprint for part in parts] if are_ours(parts) else []


def _mixture_of(
    sizes: Sequence[Any], weights: Any, stop: str, epoch_size: int | None, ramps: bool, **options: Any
) -> Mixture | Changing:
    """Return a mixture of constant weights, or of a schedule."""
    if not is_schedule(weights):
        if ramps:
            raise OrderError("ramps = True, expected False without a schedule of weights")
        return Mixture(sizes, weights, stop=stop, epoch_size=epoch_size, **options)
    if epoch_size is None:
        raise OrderError("epoch_size = None, expected a number of samples with a schedule of weights")
    return Changing(sizes, weights, epoch_size=epoch_size, ramps=ramps, **options)


class DistributedBatchSampler(OrderSampler, torch.utils.data.BatchSampler):
    """Batches of a fixed size, as many on every rank.

        batches = mmapds.DistributedBatchSampler(ds, batch_size=32, seed=7)
        loader = mmapds.DataLoader(ds, batch_sampler=batches)

    It yields the batches of a BatchSampler over a `DistributedSampler`, but a step is a batch. Its attribute `sampler`
    is that sampler and shares its epoch and position: `set_epoch` on either one sets both.

    Args:
      dataset: anything with a length; or a `DistributedSampler`, to use its order, epoch size, excluded records,
        num_replicas and rank.
      batch_size: samples in a batch of one rank.
      drop_last: drop a partial last step; otherwise its batches are smaller, of one size on all ranks.
      start_step: where the first iterator begins, in batches.
      pad: False does not pad the last step: its batches differ by up to one sample, and ranks by up to one batch.
      sampler: for trainers that want to shard the epoch again; only None is accepted.
    The other arguments are those of `DistributedSampler`.
    """

    sampler: DistributedSampler
    _in_batches = True

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
        mesh: Any = None,
        weights: ArrayLike | str | None = None,
        part_size: int | None = None,
        sampler: None = None,
    ) -> None:
        refuse_injected(sampler)
        batch_size = integer("batch_size", batch_size, 1)
        drop_last, pad = bool(drop_last), bool(pad)
        of_samples: dict[str, Any] = {"shuffle": shuffle, "seed": seed, "order": order, "epoch_size": epoch_size}
        of_samples |= {"exclude": exclude, "mesh": mesh, "weights": weights, "part_size": part_size}
        if isinstance(dataset, DistributedSampler):
            indices = dataset
            for name, value in of_samples.items():
                if value is not None:
                    raise OrderError(f"{name}: expected None beside a sampler; give it to the sampler")
            for name, own, expected in (
                ("num_replicas", num_replicas, indices.num_replicas),
                ("rank", rank, indices.rank),
            ):
                if own not in (None, expected):
                    raise OrderError(f"{name} = {own}, expected {expected}, as in the sampler; give it to the sampler")
            if indices.drop_last and not drop_last:
                raise OrderError("drop_last = True in the sampler, expected False; give it to the batch sampler")
            if pad and not indices._sharding.pad:
                raise OrderError("pad = False in the sampler, expected True; give it to the batch sampler")
        else:
            if isinstance(dataset, torch.utils.data.Sampler):
                refuse_injected(dataset)  # Lightning makes the batch sampler anew, with its own sampler as `dataset`
            indices = DistributedSampler(dataset, num_replicas, rank, drop_last=drop_last, pad=pad, **of_samples)
        torch.utils.data.BatchSampler.__init__(self, indices, batch_size, drop_last)
        sharding = Sharding(indices.num_replicas, indices.rank, batch_size, drop_last, pad)
        self._sample(indices.sampled, indices._contents, sharding, indices._world, start_step)
        if start_step:
            epoch, indices._cursor = indices.epoch, self._cursor
            if epoch:
                self.set_epoch(epoch)
        self._cursor = indices._cursor

    def _what(self) -> str:
        return f"{counted(len(self._contents), 'sample')}, batch size {self.batch_size}, seed {self.sampler.seed}"
