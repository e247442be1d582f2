"""`DataLoader`: a torch DataLoader with worker threads, whose state counts delivered batches."""

from __future__ import annotations  # help() shows them as they are written

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from numbers import Real
from typing import Any, Literal, cast

import numpy as np
import torch.utils.data

from .dataset.collate import default_collate
from .dataset.dataset import Dataset
from .dataset.pack import check_plan
from .errors import OrderError, StateError, counted, shortened
from .orders.basic import integer
from .prefetch import DirectLoop, Drawn, Grouped, ProcessLoop, ThreadLoop, Waits, start_process
from .samplers.ahead import fetching_of
from .samplers.cursor import Sharding
from .samplers.ordered import OrderedRecords
from .samplers.planned import PlannedBatchSampler
from .samplers.ranks import World, process_group
from .samplers.resumable import ResumableSampler
from .samplers.sampled import check_same_samples
from .samplers.samplers import DistributedSampler, OrderSampler, order_of


class DataLoader(torch.utils.data.DataLoader[Any]):
    """A torch DataLoader with threads for workers, whose state counts delivered batches.

        loader = mmapds.DataLoader(ds, batch_size=32, shuffle=True, num_workers=4, collate_fn=list)
        for batch in loader:
            checkpoint = loader.state_dict()

    Arguments and attributes are torch's. For a dataset of mmapds, threads are faster than processes: they read the
    mapped file directly, so no batch is copied between processes. docs/loader.md says how to choose.

    Args:
      dataset: a dataset with a length and `dataset[i]`; `__getitems__`, if it exists, reads a whole batch.
      shuffle: a new order every epoch, in a single process; several processes of torch.distributed need a sampler.
      num_workers: how many threads or processes make batches; 0 makes them in the trainer's own thread.
      prefetch_factor: batches that each worker prefetches; 2 by default.
      timeout: seconds to wait for a batch; 0 waits without a limit.
      worker_init_fn: called first in every worker, with its number. A thread shares its random state with the trainer,
        so the loader restores that state afterwards.
      generator: its seed is that of `shuffle=True`; 0 by default.
      persistent_workers: keep processes from one epoch to the next; threads always start anew.
      in_order: False needs `workers="processes"`; the loader then has no state.
      workers: "threads", or "processes" (torch's own workers) for decoders and collate functions in Python that take
        longer than the trainer's step.
      prefetch: batches that all workers prefetch together; it overrides `prefetch_factor`.
      stall_after: seconds of waiting for a batch after which the loader warns; None never warns.
      mesh: the data-parallel ranks, for a `mmapds.DistributedSampler` that the loader makes itself.
    The other arguments are those of torch's DataLoader.
    Raises:
      OrderError: an argument is out of range or contradicts another one, as a sampler of another view of the dataset
        does; it is also a ValueError.
    """

    _checked_plan: PlannedBatchSampler | None
    """The sampler whose plan batches are compared with; None after a warning."""

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Any] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        in_order: bool = True,
        workers: Literal["threads", "processes"] = "threads",
        prefetch: int | None = None,
        stall_after: float | None = 60.0,
        mesh: Any = None,
    ) -> None:
        self.workers, self.stall_after = workers, stall_after
        self.prefetch = None if prefetch is None else integer("prefetch", prefetch, 1)
        _check_options(self, integer("num_workers", num_workers, 0), timeout, multiprocessing_context, in_order)
        if self.prefetch is not None:
            prefetch_factor = -(-self.prefetch // max(num_workers, 1))
        elif prefetch_factor is not None:
            prefetch_factor = integer("prefetch_factor", prefetch_factor, 1)
        _check_samplers(dataset, sampler, batch_sampler, mesh, is_batched=batch_size is not None)
        check_plan(batch_sampler, collate_fn)
        self._shuffles = bool(shuffle) and mesh is None
        if sampler is None and batch_sampler is None:
            sampler, shuffle = _new_sampler(dataset, bool(shuffle), generator, mesh), None
        is_batched = batch_size is not None or batch_sampler is not None
        super().__init__(
            _with_own_epoch(dataset, sampler if batch_sampler is None else batch_sampler),
            batch_size=batch_size,
            shuffle=shuffle,
            sampler=sampler,
            batch_sampler=batch_sampler,
            num_workers=num_workers,
            collate_fn=default_collate if collate_fn is None and is_batched else collate_fn,
            pin_memory=pin_memory,
            drop_last=bool(drop_last),
            timeout=timeout,
            worker_init_fn=worker_init_fn,
            multiprocessing_context=multiprocessing_context,
            generator=generator,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
        )
        self.in_order = in_order  # torch 2.6 and later have it too
        if batch_sampler is None and batch_size is not None and hasattr(sampler, "set_epoch"):
            # After a resume, Hugging Face's Trainer looks for `set_epoch` only here.
            self.batch_sampler.set_epoch = sampler.set_epoch  # type: ignore[union-attr]
        self._waits = Waits()
        self._checked_plan = batch_sampler if isinstance(batch_sampler, PlannedBatchSampler) else None

    @property
    def _resumable(self) -> ResumableSampler | None:
        """The sampler of the indices, if it belongs to mmapds."""
        found = _innermost(self._index_sampler)
        return found if isinstance(found, ResumableSampler) else None

    def check_worker_number_rationality(self) -> None:
        """Warn of too many processes; threads that wait for a disk may outnumber the cores."""
        if self.workers == "processes":
            super().check_worker_number_rationality()

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        """Return an iterator over the batches of an epoch; it starts with the first `next()`.

        Several iterators can run at a time. `state_dict` and `stats` describe the one that started last.

        Raises:
          OrderError: with `shuffle=True`, in one of several processes of torch.distributed.
        """
        group = process_group() if self._shuffles else None
        if group is not None and (processes := group.get_world_size()) > 1:
            # Checked only here: trainers may still replace the sampler of a loader made with shuffle=True.
            raise OrderError(
                f"shuffle = True, expected a sampler that shares the samples among the {processes} processes of "
                "torch.distributed; give sampler=mmapds.DistributedSampler(dataset), or "
                "sampler=torch.utils.data.RandomSampler(dataset) where each of them has to read everything"
            )
        if self._resumable is not None and self._resumable is not self._index_sampler:
            self._resumable.loader_options = {"loader.batch_size": self.batch_size, "loader.drop_last": self.drop_last}
        self._waits = Waits()
        if not self.num_workers:
            return DirectLoop(self, self._waits)
        return (ProcessLoop if self.workers == "processes" else ThreadLoop)(self, self._waits)

    def _new_drawn(self, waits: Waits) -> Drawn:
        """Return the indices of one loop; as they are drawn, objects of the dataset are fetched ahead."""
        if isinstance(self.dataset, Dataset) and self._resumable is not None:
            waits.fetching = fetching_of(self.dataset, self._resumable)
        return Drawn(self._index_sampler, self._resumable, waits.fetching)

    def _begin_epoch(self) -> None:
        """Set the epoch of the dataset, for the random numbers of `map(seed=...)`."""
        if isinstance(self.dataset, Dataset) and self._resumable is not None:
            self.dataset.set_epoch(self._resumable.epoch)

    def _start_processes(self) -> tuple[Any, Drawn]:
        """Return torch's own iterator, and the indices that it draws."""
        self._begin_epoch()
        processes: Any = super().__iter__()  # a new one, or with persistent workers the same one, restarted
        return processes, processes._index_sampler.latest  # torch asks for indices once or twice, and uses the latest

    def _get_iterator(self) -> Any:
        """Return a new iterator of torch's over this loader; its workers end with this process."""
        inner, drawn = copy.copy(self), self._new_drawn(self._waits)
        indices = "sampler" if self.batch_sampler is None else "batch_sampler"
        inner.__dict__ |= {indices: drawn, "worker_init_fn": partial(start_process, self.worker_init_fn)}
        return torch.utils.data.DataLoader._get_iterator(inner)

    def epochs(self, end: int) -> Iterator[int]:
        """Set and yield each remaining epoch before `end`.

        After `load_state_dict`, the first one is the epoch of the state.
        """
        for epoch in range(self._stateful().epoch, end):
            self.set_epoch(epoch)
            yield epoch

    def steps(self, *, accumulate: int | None = None, total: str | None = None) -> Iterator[tuple[Any, ...]]:
        """Yield the number and the batch of each remaining step of this epoch.

            for step, batches in loader.steps(accumulate=4):
                checkpoint = loader.state_dict()  # behind the last of these batches

        After `load_state_dict`, the first number is the step at which the state was saved.

        Args:
          accumulate: the batches of an optimizer step; they come as a list, and steps count lists. The last list of an
            epoch may be shorter.
          total: a column, such as "length". Its sum over the step on all ranks comes as a third item: see `total_at`.
        """
        span, size = self._stateful()._next_span(), 1 if accumulate is None else integer("accumulate", accumulate, 1)
        batches, left = (self._batches_in(steps) for steps in (span._replace(start=0).steps, span.steps))
        first = -(-batches // size) - -(-left // size)
        steps = enumerate(iter(self) if accumulate is None else Grouped(iter(self), size), first)
        if total is None:
            return steps
        begin = batches - left - first * size
        return ((step, found, self.total_at(begin + step * size, size, total)) for step, found in steps)

    def total_at(self, step: int, steps: int = 1, column: str = "length") -> int | float:
        """Return the sum of a column over some batches that `steps` numbers, on all ranks.

            tokens = loader.total_at(step, 4)  # of four batches on each rank

        The arguments and errors are those of `total_at` of a sampler.
        """
        sampler, size = self._stateful(), self._samples_of_a_batch
        if size is None:
            return sampler.total_at(step, steps, column)
        samples = self._samples_in(step, steps)
        return sampler.total_at(samples.start, len(samples), column)

    def indices_at(self, step: int) -> Any:
        """Return the records of a step that `steps` numbers: a batch for each rank.

            print(loader.indices_at(2))

        The step is one of the loop that began last, or else of the next one. A loader numbers batches, even if its
        sampler numbers single samples.

        Returns:
          An array of shape (num_replicas, batch), or a list of arrays if batches may differ in size.
        Raises:
          IndexError: the epoch does not have so many steps.
        """
        sampler, size = self._stateful(), self._samples_of_a_batch
        if size is None:
            return sampler.indices_at(step)
        samples: list[Any] = [sampler.indices_at(each) for each in self._samples_in(step, 1)]
        if all(len(each) == len(samples[0]) for each in samples):
            return np.stack(samples, axis=1)
        rows = [[int(each[rank]) for each in samples if rank < len(each)] for rank in range(len(samples[0]))]
        return list(map(np.array, rows))

    def _samples_in(self, step: int, steps: int) -> range:
        """Return the steps of a sampler of single samples that are in some batches.

        Raises:
          IndexError: the epoch does not have the first batch.
        """
        sampler, size = self._stateful(), cast(Any, self._samples_of_a_batch)
        step, span = integer("step", step), sampler._cursor.span(sampler._sharding)
        whole = span._replace(start=0).steps
        if not 0 <= step < (batches := self._batches_in(whole)):
            raise IndexError(f"step {step} is out of range for the {batches} steps of an epoch")
        first = batches - self._batches_in(span.steps)
        begin = span.first_step + (step - first) * size if step >= first else step * size
        return range(begin, min(begin + min(integer("steps", steps, 1), batches - step) * size, whole))

    @property
    def _samples_of_a_batch(self) -> int | None:
        """The samples that torch puts into a batch; None if the sampler makes the batches, or there are none."""
        return None if self._index_sampler is self._resumable else cast(Any, self._index_sampler).batch_size

    def _batches_in(self, steps: int) -> int:
        """Return the batches of this loader in some steps of the sampler."""
        size = self._samples_of_a_batch
        if size is None:
            return steps
        return steps // size if cast(Any, self._index_sampler).drop_last else -(-steps // size)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next loop: the current one keeps its position."""
        samplers: tuple[Any, ...] = (self.batch_sampler, getattr(self.batch_sampler, "sampler", None), self.sampler)
        for sampler in samplers:
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)
                return

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the last delivered batch: a small dict for JSON.

        Prefetched batches do not count: a loader that loads the state resumes with the next batch of this loop. After
        the last batch of an epoch, it resumes with the next epoch. The state is the sampler's: a sampler can load it
        too, with any number of replicas and any batch size.

        Raises:
          StateError: the sampler does not belong to mmapds, or `in_order` is False.
        """
        return self._stateful().state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Resume from a state in the next loop.

        A loop that already runs does not change.

        Raises:
          StateError: the state belongs to another sampler, or is not a state.
        """
        self._stateful().load_state_dict(state_dict)

    def _stateful(self) -> ResumableSampler:
        if not self.in_order:
            raise StateError("in_order = False, expected True for states; give in_order=True")
        if self._resumable is None:
            found = type(_innermost(self._index_sampler)).__name__
            raise StateError(
                f"sampler: expected one of mmapds, found {found}, which has no state; give "
                "sampler=mmapds.DistributedSampler(dataset), with order=... for an order of your own"
            )
        return self._resumable

    def stats(self) -> dict[str, Any]:
        """Return how long the trainer waited for data in the last loop.

        Returns:
          A dict: delivered `batches`, and their `records`, including skipped ones; `seconds` from the first request to
          the last delivery, and `records_per_second` in that time; `wait`, the seconds that the trainer waited in all;
          `wait_p50`, `wait_p99` and `wait_max`, the seconds that it waited for one batch (percentiles of the last
          4,096); `stalls`, the number of stall warnings; `decoded_blocks`, the blocks of compressed sources that this
          process decoded since the dataset was opened. For objects of a store also `fetched_bytes` in that time, and
          `fetch_rate`, in bytes a second while downloads ran; `fetch_wait`, the seconds that batches waited for
          objects; `ahead_bytes`, those fetched for later batches.
        """
        found = self._waits.report() | {"decoded_blocks": 0}
        if isinstance(self.dataset, Dataset):
            found |= self.dataset._indexed._figures()
        if (fetching := self._waits.fetching) and fetching.ahead:
            found["ahead_bytes"] = fetching.ahead.bytes
        return found

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_waits": None, "_iterator": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._waits = Waits()


# ---- samplers --------------------------------------------------------------------------------------------------


def _seed(generator: torch.Generator | None) -> int:
    return 0 if generator is None else generator.initial_seed()


class _OwnSampler(OrderSampler):
    """The default sampler of a loader."""

    _shuffles = False

    def __init__(self, dataset: Any, generator: torch.Generator | None) -> None:
        self.data_source, self._seed = dataset, _seed(generator)
        order = order_of(dataset, self._shuffles, self._seed)
        self._sample(dataset, OrderedRecords(order, None), Sharding(1, 0, 1, False), World(1, 0, "given"), 0)

    def _what(self) -> str:
        return f"{counted(len(self._contents), 'sample')}, seed {self._seed}"


class _Shuffled(_OwnSampler, torch.utils.data.RandomSampler):
    """Shuffles; a RandomSampler, so that trainers replace it as they replace torch's own."""

    _shuffles = True

    def __init__(self, dataset: Any, generator: torch.Generator | None) -> None:
        torch.utils.data.RandomSampler.__init__(self, dataset, generator=generator)  # trainers read its attributes
        super().__init__(dataset, generator)


class _InOrder(_OwnSampler, torch.utils.data.SequentialSampler):
    """Reads in order."""


def _new_sampler(dataset: Any, shuffle: bool, generator: torch.Generator | None, mesh: Any) -> OrderSampler:
    """Return the sampler of a loader that was given none: of one process, or of the places of a mesh."""
    if mesh is not None:
        return DistributedSampler(dataset, shuffle=shuffle, seed=_seed(generator), mesh=mesh)
    return (_Shuffled if shuffle else _InOrder)(dataset, generator)


# ---- arguments -------------------------------------------------------------------------------------------------


def _check_options(
    loader: DataLoader, num_workers: int, timeout: float, multiprocessing_context: Any, in_order: bool
) -> None:
    """Raise OrderError for options that are out of range, or contradict each other."""
    workers, stall_after = loader.workers, loader.stall_after
    if workers not in ("threads", "processes"):
        raise OrderError(f"workers = {workers!r}, expected 'threads' or 'processes'")
    if stall_after is not None and not (_is_number(stall_after) and stall_after > 0):
        raise OrderError(f"stall_after = {shortened(stall_after)}, expected seconds above 0, or None")
    if not (_is_number(timeout) and timeout >= 0):
        raise OrderError(f"timeout = {shortened(timeout)}, expected seconds, or 0 for any time")
    if timeout > 0 and num_workers == 0:
        raise OrderError(f"timeout = {timeout!r}, expected 0 with num_workers = 0, as there is no worker to wait for")
    if workers == "threads" and num_workers > 0:
        if multiprocessing_context is not None:
            raise OrderError(
                f"multiprocessing_context = {multiprocessing_context!r}, expected None with workers = 'threads'; "
                "give workers='processes'"
            )
        if not in_order:
            raise OrderError("in_order = False, expected True with workers = 'threads'; give workers='processes'")


def _is_number(seconds: object) -> bool:
    return isinstance(seconds, Real) and not isinstance(seconds, bool) and seconds == seconds  # not NaN


def _check_samplers(dataset: Any, sampler: Any, batch_sampler: Any, mesh: Any, *, is_batched: bool) -> None:
    """Raise OrderError for an iterable dataset, or a sampler of mmapds in the wrong argument or of other data.

    Args:
      is_batched: whether the loader groups indices of the sampler into batches.
    """
    if isinstance(dataset, torch.utils.data.IterableDataset):
        raise OrderError(
            f"dataset: expected a length and dataset[i], found {type(dataset).__name__}, an IterableDataset; use "
            "torch.utils.data.DataLoader"
        )
    if mesh is not None and not (sampler is None and batch_sampler is None):
        raise OrderError("mesh: expected None beside a sampler; give it to the sampler")
    batches = torch.utils.data.BatchSampler
    if is_batched and isinstance(sampler, ResumableSampler) and isinstance(sampler, batches):
        raise OrderError(
            f"sampler: expected one of single samples, found {type(sampler).__name__}, which yields batches; give it "
            "as batch_sampler="
        )
    if isinstance(batch_sampler, ResumableSampler) and not isinstance(batch_sampler, batches):
        raise OrderError(
            f"batch_sampler: expected one of batches, found {type(batch_sampler).__name__}, which yields single "
            "samples; give it as sampler=, with a batch_size="
        )
    name, given = ("sampler", sampler) if batch_sampler is None else ("batch_sampler", _innermost(batch_sampler))
    if isinstance(given, ResumableSampler):
        check_same_samples(dataset, name, given.sampled)


def _with_own_epoch(dataset: Any, sampler: Any) -> Any:
    """Return the dataset with an epoch of its own if its sampler sets one, so that other loaders do not change it."""
    has_epochs = isinstance(dataset, Dataset) and isinstance(_innermost(sampler), ResumableSampler)
    return dataset._with_own_epoch() if has_epochs else dataset


def _innermost(sampler: Any) -> Any:
    """Return the sampler inside a BatchSampler of torch's; any other sampler unchanged."""
    return sampler.sampler if type(sampler) is torch.utils.data.BatchSampler else sampler
