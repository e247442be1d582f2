"""What batch samplers with a plan share: the batches of a rank, step by step, and how a last step is shared out."""

from __future__ import annotations  # help() shows them as they are written

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sized
from itertools import pairwise
from typing import Any

import numpy as np
import torch.utils.data
from numpy.typing import ArrayLike, NDArray

from ..errors import OrderError
from ..orders.basic import Int64s, integer
from ..storage.sources import StrPath
from .data import SampledData
from .epoch import EpochProgress
from .exclusions import LARGEST, Exclude, clipped, merged, parse_exclude
from .lengths import read_lengths
from .passes import Pass, Sharding
from .plan import Plan, pieces
from .resumable import ResumableSampler, refuse_injected, refuse_path
from .world import World


class PlannedBatchSampler(ResumableSampler, torch.utils.data.BatchSampler):
    """Batches of a plan, for the rank of this process; `TokenBudgetBatchSampler` explains the arguments."""

    _plan: Plan
    _multiple = 1  # which sizes of batches keep where one is split

    _has_equal_batches = False
    _block = 256  # batches of a rank that are read at a time

    def __init__(
        self,
        dataset_or_lengths: Sized | ArrayLike,
        target_lengths: ArrayLike | None,
        *,
        num_replicas: int | None,
        rank: int | None,
        shuffle: bool,
        seed: int,
        drop_last: bool,
        order_cache: StrPath | None,
        sampler: None,
    ) -> None:
        refuse_injected(sampler)
        refuse_path("dataset_or_lengths", dataset_or_lengths)
        self.num_replicas, self.rank, self._assumed = World.of(num_replicas, rank)
        self.drop_last = bool(drop_last)
        self.shuffle = bool(shuffle)
        self.seed = integer("seed", seed)
        self._by_length = read_lengths(dataset_or_lengths, target_lengths, order_cache)
        self._dataset = dataset_or_lengths if hasattr(type(dataset_or_lengths), "length_order") else None
        is_known = self._dataset is not None and target_lengths is None
        self._data = SampledData(self._dataset, None if is_known else self._by_length.lengths.array)

    def _begin_with(self, plan: Plan, batch_size: int, start_step: int, exclude: Exclude | None) -> None:
        """Take the plan, of which a rank has `batch_size` batches in a step."""
        self._plan = plan
        self._batch_size = batch_size
        self._exclude = parse_exclude(exclude)
        self._progress = self._new_progress(plan, start_step, self._exclude)
        self.sampler = _Samples(self)

    @property
    def _planned_ranks(self) -> int:
        """Of how many ranks a step is; with drop_last, what is no whole step is left out instead."""
        return 1 if self.drop_last else self.num_replicas

    def _new_progress(self, plan: Plan, start_step: int, exclude: Exclude) -> EpochProgress:
        sharding = Sharding(self.num_replicas, self.rank, self._batch_size, self.drop_last)
        return EpochProgress(
            plan, sharding, start_step=start_step, exclude=exclude, assumed=self._assumed, block_size=self._block
        )

    @property
    def sampled(self) -> Any:
        return self._by_length if self._dataset is None else self._dataset

    def __iter__(self) -> Iterator[list[int]]:
        """Return an iterator over a pass, which begins, and reads the epoch, with its first batch."""
        self._refuse_second_sharding()
        return self._batches()

    def _batches(self) -> Iterator[list[int]]:
        self._compare_ranks()
        begun = self._progress.begin()
        reader = self._plan.reader(begun.epoch)
        excluded = _ExcludedRecords(begun)

        def make(first: int, positions: Int64s) -> list[list[int]]:
            last = begun.remainder(first)
            if len(last) and not self.drop_last:
                batches = excluded.removed(_cut(*reader.read(last)))
                return [self._shared(batches)[self.rank].tolist()]
            out, ends = reader.read(positions.ravel())
            ends = ends[positions.shape[1] - 1 :: positions.shape[1]]
            if excluded:
                return [batch.tolist() for batch in excluded.removed(_cut(out, ends))]
            records = out.tolist()  # at once, and not batch by batch: twice as fast
            return [records[begin:end] for begin, end in pairwise([0, *ends.tolist()])]

        yield from begun.map(make)

    def indices_at(self, step: int) -> list[NDArray[np.int64]]:
        """Return the records in a step of this epoch: the batch of each rank, in order of ranks."""
        step = integer("step", step)
        found = self._progress.pass_at(step)
        last = found.remainder(step - found.first_step)
        whole = found.positions(step - found.first_step, 1, range(self.num_replicas)).ravel()
        read = self._plan.reader(found.epoch).read(last if len(last) else whole)
        return self._shared(_ExcludedRecords(found).removed(_cut(*read)))

    def _shared(self, batches: list[Int64s]) -> list[Int64s]:
        """Return a batch for each rank, out of those of a step in order of their positions."""
        if len(batches) < self.num_replicas:
            return _split(batches, self.num_replicas, self._multiple)
        return [np.concatenate(batches[rank :: self.num_replicas]) for rank in range(self.num_replicas)]

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Begin the next pass where a state was saved, at any number of replicas: the same batches follow.

        Raises:
          StateError: the state belongs to other files, another view of them or other lengths, to other limits, another
            seed, planner or version, or is not a state.
        """
        self._follow_workers()
        order = state_dict.get("order") if isinstance(state_dict, Mapping) else None
        plan = self._plan_like(order if isinstance(order, Mapping) else {})
        progress = self._progress
        if plan is not self._plan:
            progress = self._new_progress(plan, 0, self._exclude)
            progress.take_over(self._progress)
        progress.load_state_dict(state_dict, self._data)  # an error leaves the sampler as it was
        self._plan, self._progress = plan, progress

    @abstractmethod
    def _plan_like(self, saved: Mapping[str, Any]) -> Plan:
        """Return the plan with the sizes of another world that a state has; that in use if it has the same."""

    def _last_step(self) -> tuple[int, int, int]:
        """Return the batches of all ranks in an epoch, and the samples that the last step drops and repeats."""
        planned, stride = len(self._plan), self.num_replicas * self._batch_size
        full, rest = divmod(planned, stride)
        batches = full * self.num_replicas
        if not rest:
            return batches, 0, 0
        positions = np.arange(full * stride, planned, dtype=np.int64)
        last = _cut(*self._plan.reader(self.epoch).read(positions))
        samples = sum(map(len, last))
        if self.drop_last:
            return batches, samples, 0
        return batches + self.num_replicas, 0, sum(map(len, self._shared(last))) - samples


class _Samples(torch.utils.data.Sampler[int]):
    """The `sampler` that trainers expect of a batch sampler: has `set_epoch`, and yields the samples of its rank."""

    def __init__(self, batches: PlannedBatchSampler) -> None:
        self._batches = batches

    @property
    def epoch(self) -> int:
        return self._batches.epoch

    def set_epoch(self, epoch: int) -> None:
        self._batches.set_epoch(epoch)

    def __len__(self) -> int:
        """Return about how many samples a rank has in an epoch; the exact number depends on its batches."""
        return -(-self._batches._plan.selection.records // self._batches.num_replicas)

    def __iter__(self) -> Iterator[int]:
        for batch in self._batches:
            yield from batch


class _ExcludedRecords:
    """The records that a pass excludes. Batches that hold nothing else are not in the pass at all."""

    def __init__(self, of: Pass) -> None:
        self._bounds = merged(clipped(of.start.records, LARGEST)).ravel()

    def __bool__(self) -> bool:
        return bool(len(self._bounds))

    def removed(self, batches: list[Int64s]) -> list[Int64s]:
        """Return batches without these records."""
        if not self:
            return batches
        # A record is in a range where an odd number of bounds is not above it.
        return [batch[np.searchsorted(self._bounds, batch, side="right") % 2 == 0] for batch in batches]


def _cut(out: Int64s, ends: Int64s) -> list[Int64s]:
    """Return the records that a reader read as one array for each batch."""
    return [out[begin:end] for begin, end in pairwise([0, *ends.tolist()])]


def _split(batches: list[Int64s], replicas: int, multiple: int) -> list[Int64s]:
    """Return a batch for each rank, where there are fewer batches than ranks.

    Those with many samples are split most. Where there are fewer samples than ranks, some ranks have the same batch.
    """
    parts = [1] * len(batches)
    for _ in range(replicas - len(batches)):
        sizes = [len(batch) / part if part < len(batch) else 0 for batch, part in zip(batches, parts, strict=True)]
        largest = int(np.argmax(sizes))
        if not sizes[largest]:
            break
        parts[largest] += 1
    found = [piece for batch, part in zip(batches, parts, strict=True) for piece in pieces(batch, part, multiple)]
    return [found[rank % len(found)] for rank in range(replicas)]


def known_size(saved: object, own: int) -> int:
    """Return a size that a state has, or the sampler's own where it has none."""
    return saved if type(saved) is int and 1 <= saved < 2**31 else own


def one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    """Refuse a value that is not known.

    Raises:
      OrderError: it is not.
    """
    if value not in known:
        raise OrderError(f"{name} = {value!r}, expected {' or '.join(map(repr, known))}")
