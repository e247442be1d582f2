"""`DataLoader`: torch's, with threads that read the map, and with states that count what the trainer has."""

from __future__ import annotations  # help() shows them as they are written

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from numbers import Real
from typing import Any, Literal

import torch.utils.data

from ..errors import OrderError, StateError, names_its_arguments, shortened, warn
from ..orders.basic import integer
from ..samplers.resumable import ResumableSampler
from ..samplers.world import World, refuse_to_repeat
from .default import default_collate
from .delivery import Position, position_of
from .iterators import (
    Batches,
    LoaderIterator,
    ProcessIterator,
    Recorder,
    SerialIterator,
    Stalls,
    ThreadIterator,
    WorkerStart,
)
from .sampled import check_cut, check_samplers, warn_of_collating
from .waits import Waits

_LONGEST_TIMEOUT = 2_000_000  # seconds: their milliseconds are an int of C where worker processes are polled
_OWN = ("_position", "_waits", "_processes")  # what a pickled loader makes anew


class DataLoader(torch.utils.data.DataLoader[Any]):
    """A torch DataLoader whose workers are threads, and whose states count the batches that the trainer has.

    Arguments and attributes are torch's, and so are the batches. Over a dataset of mmapds threads are the faster
    workers: they read the map of the process itself, so nothing is sent and nothing is held twice. docs/loader.md says
    how to choose.

    Args:
      dataset: a dataset with a length and `dataset[i]`; where it has `__getitems__`, that is called for a batch.
      shuffle: a new order every epoch, in a single process; several processes of torch.distributed need a sampler.
      num_workers: how many threads or processes make batches; 0 makes them in the trainer's own thread.
      prefetch_factor: batches for each worker that exist or are made ahead of the trainer; 2 by default.
      timeout: seconds to wait for a batch; 0 for any time.
      worker_init_fn: called in every worker first, with its number. In a thread, random numbers that it seeds are put
        back as they were: they are the trainer's.
      persistent_workers: keep processes from one epoch to the next; threads start in no time.
      in_order: False needs `workers="processes"`, and leaves no states.
      workers: "threads", or "processes" for decoders and collate functions in Python that take longer than the
        trainer's step: those are torch's own workers.
      prefetch: the same as `prefetch_factor`, as a number of batches in all.
      stall_after: seconds after which a wait for a batch is reported by a warning; None for never.
    The other arguments are those of torch's DataLoader.
    Raises:
      OrderError: an argument is out of range, or contradicts another one, such as a sampler of another view of the
        dataset; it is also a ValueError.
    """

    @names_its_arguments("mmapds.DataLoader", error=OrderError)
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
    ) -> None:
        if isinstance(dataset, torch.utils.data.IterableDataset):
            raise OrderError(
                f"dataset: expected a length and dataset[i], found {type(dataset).__name__}, an IterableDataset; use "
                "torch.utils.data.DataLoader"
            )
        self.workers = workers
        self.prefetch = None if prefetch is None else integer("prefetch", prefetch, 1)
        self.stall_after = stall_after
        self._check(integer("num_workers", num_workers, 0), timeout, multiprocessing_context, in_order)
        check_samplers(dataset, sampler, batch_sampler, batched=batch_size is not None)
        check_cut(batch_sampler, collate_fn)
        warn_of_collating(batch_sampler, collate_fn)
        if collate_fn is None and (batch_size is not None or batch_sampler is not None):
            collate_fn = default_collate
        super().__init__(
            dataset,
            batch_size=batch_size,
            shuffle=shuffle,
            sampler=sampler,
            batch_sampler=batch_sampler,
            num_workers=num_workers,
            collate_fn=collate_fn,
            pin_memory=pin_memory,
            drop_last=bool(drop_last),
            timeout=timeout,
            worker_init_fn=worker_init_fn,
            multiprocessing_context=multiprocessing_context,
            generator=generator,
            prefetch_factor=_prefetch_factor(num_workers, prefetch_factor, self.prefetch),
            persistent_workers=persistent_workers,
        )
        self._shuffles = bool(shuffle)
        self.in_order = in_order  # torch 2.6 and later have it too
        if sampler is not None and batch_size is not None and hasattr(sampler, "set_epoch"):
            # The only place where Hugging Face's Trainer looks for it after a resume.
            self.batch_sampler.set_epoch = sampler.set_epoch  # type: ignore[union-attr]
        self._begin_anew()

    def _check(self, num_workers: int, timeout: float, multiprocessing_context: Any, in_order: bool) -> None:
        if self.workers not in ("threads", "processes"):
            is_count = isinstance(self.workers, int) and not isinstance(self.workers, bool)
            remedy = f"; give num_workers={self.workers}" if is_count else ""
            raise OrderError(f"workers = {self.workers!r}, expected 'threads' or 'processes'{remedy}")
        if self.stall_after is not None and not (_is_number(self.stall_after) and self.stall_after > 0):
            raise OrderError(f"stall_after = {shortened(self.stall_after)}, expected seconds above 0, or None")
        if not (_is_number(timeout) and 0 <= timeout <= _LONGEST_TIMEOUT):
            longest = f"{_LONGEST_TIMEOUT:,}"
            raise OrderError(f"timeout = {shortened(timeout)}, expected up to {longest} seconds, or 0 for any time")
        if timeout > 0 and num_workers == 0:
            raise OrderError(f"timeout = {timeout!r}, expected 0 with num_workers = 0, which waits for no worker")
        if self.workers == "threads" and num_workers > 0:
            if multiprocessing_context is not None:
                raise OrderError(
                    f"multiprocessing_context = {multiprocessing_context!r}, expected None with workers = 'threads'; "
                    "give workers='processes'"
                )
            if not in_order:
                raise OrderError("in_order = False, expected True with workers = 'threads'; give workers='processes'")

    def _begin_anew(self) -> None:
        self._position: Position = position_of(self._drawn_from, self.generator, self.dataset)
        self._waits = Waits()
        self._processes: tuple[torch.utils.data.DataLoader[Any], _Indices] | None = None

    @property
    def _drawn_from(self) -> Any:
        return self.sampler if self.batch_sampler is None else self.batch_sampler

    def check_worker_number_rationality(self) -> None:
        """Do nothing: threads that wait for a disk may outnumber the cores; of processes torch's own loader warns."""

    def __iter__(self) -> LoaderIterator:  # type: ignore[override]
        """Return an iterator over the batches of a pass, which begins when the first batch is asked for.

        Several can be used at a time. States and figures are those of the pass that began last.

        Raises:
          OrderError: with `shuffle=True`, in one of several processes of torch.distributed.
        """
        refuse_to_repeat(self._shuffles)  # now, as trainers replace the samplers of loaders that are made with it
        if isinstance(self.sampler, ResumableSampler) and self.batch_size is not None:
            self.sampler.batching = self.batch_size, self.drop_last  # which ranks compare
        self._waits = Waits()
        stalls = Stalls(self.stall_after, partial(_rank, self.batch_sampler, self.sampler))
        common = (self._position, self._waits, stalls, self.__len__)
        if self.num_workers and self.workers == "processes":
            return ProcessIterator(self._begin_processes, *common)
        batched = self.batch_sampler is not None
        batches = Batches(self.dataset, self.collate_fn, is_batched=batched, pin=self.pin_memory and _can_pin())
        if self.num_workers == 0:
            return SerialIterator(batches, self.generator, *common)
        assert self.prefetch_factor is not None
        prefetch = self.prefetch or self.prefetch_factor * self.num_workers
        threads = (self.num_workers, prefetch, self.timeout, self.worker_init_fn)
        return ThreadIterator(batches, self.generator, *threads, *common)

    def _begin_processes(self) -> tuple[Any, Recorder]:
        if self._processes is None:
            indices = _Indices(self._position, self._drawn_from)
            batched = self.batch_sampler is not None
            options: dict[str, Any] = {} if self.in_order else {"in_order": False}
            options |= {"batch_sampler": indices} if batched else {"sampler": indices, "batch_size": None}
            loader = torch.utils.data.DataLoader(
                self.dataset,
                **options,
                num_workers=self.num_workers,
                collate_fn=self.collate_fn,
                pin_memory=self.pin_memory,
                timeout=self.timeout,
                worker_init_fn=WorkerStart(self.worker_init_fn),
                multiprocessing_context=self.multiprocessing_context,
                generator=self.generator,
                prefetch_factor=self.prefetch_factor,
                persistent_workers=self.persistent_workers,
            )
            self._processes = loader, indices
        loader, indices = self._processes
        iterator = iter(loader)  # which asks for the indices once or twice, and uses the latest
        self._position.draws_base_seed = not self.persistent_workers
        return iterator, indices.latest

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next pass, if the sampler has epochs. One other than a loaded state's clears it."""
        samplers: tuple[Any, ...] = (self.batch_sampler, getattr(self.batch_sampler, "sampler", None), self.sampler)
        for sampler in samplers:
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)
                return

    def state_dict(self) -> dict[str, Any]:
        """Return where the epoch is after the batch that was delivered last: a small dict that JSON can hold.

        However far workers are ahead, a loader that loads it goes on with the batch that comes next here. After the
        last batch of an epoch it goes on with the next epoch. Over a sampler of mmapds it is the sampler's state, for
        any number of replicas and any batch size; the sampler alone can load it too.

        Raises:
          StateError: the sampler is neither of mmapds nor of torch's own, or batches come in no order.
        """
        if not self.in_order:
            raise StateError("in_order = False, expected True for states; give in_order=True")
        return self._position.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Begin the next pass where a state was saved, in the epoch of that state. Passes under way go on as they are.

        Raises:
          StateError: the state belongs to another sampler, or is not a state.
        """
        self._position.load_state_dict(state_dict)

    def stats(self) -> dict[str, Any]:
        """Return how long the trainer waited for data in the pass that began last.

        Returns:
          A dict: `batches` delivered, and the `records` asked for in them, skipped ones included; `seconds` from the
          first request to the last delivery, and `records_per_second` of them; `wait`, the seconds of these that the
          trainer waited; `wait_p50`, `wait_p99` and `wait_max`, the seconds that it waited for one batch (percentiles
          are of the last 4,096); `stalls`, how many waits were reported.
        """
        return self._waits.report()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in _OWN}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin_anew()


class _Indices:
    """What torch's loader draws the indices of a pass from: the position of ours.

    Attributes:
      latest: the indices of the pass that was begun last.
    """

    def __init__(self, position: Position, source: Any) -> None:
        self._position = position
        self._source = source
        self.latest = Recorder(position)

    def __iter__(self) -> Recorder:
        self.latest = Recorder(self._position)
        return self.latest

    def __len__(self) -> int:
        return len(self._source)


def _prefetch_factor(num_workers: int, prefetch_factor: int | None, prefetch: int | None) -> int | None:
    """Return the batches that each worker makes ahead; torch checks that there are workers."""
    if prefetch_factor is not None:
        prefetch_factor = integer("prefetch_factor", prefetch_factor, 1)
    if prefetch is None:
        return prefetch_factor
    if num_workers == 0:
        raise OrderError(f"prefetch = {prefetch!r}, expected None with num_workers = 0; give num_workers=1 or more")
    each = -(-prefetch // num_workers)
    if prefetch_factor not in (None, each):  # loaders that are made again from the attributes of another have both
        raise OrderError(
            f"prefetch_factor = {prefetch_factor!r}, expected None or {each} with prefetch = {prefetch} and "
            f"num_workers = {num_workers}; give one of the two"
        )
    return each


def _is_number(seconds: object) -> bool:
    return isinstance(seconds, Real) and not isinstance(seconds, bool) and seconds == seconds  # and no NaN


def _can_pin() -> bool:
    if torch.cuda.is_available():
        return True
    warn(
        "pin_memory = True, expected a CUDA device, found none; batches stay in memory that is not pinned",
    )
    return False


def _rank(*samplers: Any) -> int:
    """Return the rank that messages name: a sampler's, else that of the process."""
    for sampler in samplers:
        rank = getattr(sampler, "rank", getattr(getattr(sampler, "sampler", None), "rank", None))
        if rank is not None:
            return int(rank)
    return World.of(None, None).rank
