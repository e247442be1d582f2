"""The loops of a DataLoader: they draw indices, make batches, and count delivered batches."""

import os
import random
import signal
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import torch.utils.data
from torch.utils.data._utils.pin_memory import pin_memory

from .dataset.collate import note_places
from .dataset.dataset import Dataset
from .errors import CollateError, Error, shortened, warn
from .samplers.ahead import Fetching
from .samplers.cursor import Iteration
from .samplers.ranks import World
from .samplers.stored_lengths import exceeds_plan
from .storage.workers import Makers, end_with_parent

THREAD_NAME = "mmapds-loader"
"""How the names of a loader's threads begin."""
_KEPT = 4096  # the last waits, for percentiles
_ENDED, _NOT_IN_TIME = "DataLoader worker (pid", "DataLoader timed out"
"""How torch's messages begin when a worker process has ended, and when a batch is late."""


class Waits:
    """Counts the batches, the records and the trainer's waiting time of one loop."""

    def __init__(self) -> None:
        self.stalls = 0
        self.fetching: Fetching | None = None
        self._begin = self._end = self._total = self._longest = 0.0
        self._batches = self._records = 0
        self._last: deque[float] = deque(maxlen=_KEPT)

    def add(self, begin: float, end: float, records: int) -> None:
        """Count a batch that the trainer requested at `begin` and got at `end`, in seconds."""
        wait = end - begin
        self._begin, self._end = self._begin or begin, end
        self._batches += 1
        self._records += records
        self._total += wait
        self._longest = max(self._longest, wait)
        self._last.append(wait)

    def report(self) -> dict[str, Any]:
        """Return the figures that `DataLoader.stats` describes."""
        seconds, waits = self._end - self._begin, sorted(self._last) or [0.0]
        return {
            "batches": self._batches,
            "records": self._records,
            "seconds": seconds,
            "records_per_second": self._records / seconds if seconds else 0.0,
            "wait": self._total,
            "wait_p50": waits[int(0.5 * len(waits))],
            "wait_p99": waits[int(0.99 * len(waits))],
            "wait_max": self._longest,
            "stalls": self.stalls,
        }


class Drawn(Iterator[Any]):
    """Draws the indices of one loop, and counts delivered batches.

    For torch's own loader it acts as a sampler: each `iter()` returns a new object, kept as `latest`.
    """

    latest: "Drawn"

    def __init__(self, indices: Any, sampler: Any, fetching: "Fetching | None") -> None:
        self._indices, self._sampler = indices, sampler  # keeping the loader would make a cycle
        self._fetching = fetching
        self._in_batches = sampler is indices  # otherwise a step is one sample, and the loader makes batches
        self._source: Iterator[Any] | None = None
        self._iteration: Iteration | None = None  # of a sampler of mmapds
        self._waiting: deque[Any] = deque()  # the indices of prefetched batches
        self._settled = 0
        self.has_failed = False
        """Whether the sampler raised an error."""

    def __iter__(self) -> "Drawn":
        self.latest = Drawn(self._indices, self._sampler, self._fetching)
        return self.latest

    def __next__(self) -> Any:
        try:
            indices = self._begin() if self._source is None else next(self._source)
        except Exception as error:
            self.has_failed = not isinstance(error, StopIteration)
            raise
        self._waiting.append(indices)
        if self._fetching is not None:
            self._fetching.drawn(self._iteration, indices)
        return indices

    def _begin(self) -> Any:
        cursor = getattr(self._sampler, "_cursor", None)
        before = cursor and cursor.latest
        self._source = iter(self._indices)
        indices = next(self._source)
        self._iteration = cursor.latest if cursor and cursor.latest is not before else None
        self._count(0)
        return indices

    def settle(self, *, is_delivered: bool) -> Any:
        """Count the oldest prefetched batch, and return its indices. A failed batch counts with the next one."""
        indices = self._waiting.popleft()
        if self._fetching is not None:
            self._fetching.delivered(indices)
        span = None if self._iteration is None else self._iteration.span
        if self._in_batches or not isinstance(indices, list):
            self._settled += 1
        elif span is None or len(indices) == self._indices.batch_size:
            self._settled += len(indices)
        else:  # without padding, a short batch is the last one on every rank
            self._settled = span.steps
        if is_delivered:
            self._count(self._settled)
        return indices

    def end(self) -> None:
        """Mark the epoch as finished, once the trainer got StopIteration."""
        if self._iteration is not None and self._iteration.span is not None:
            self._count(self._iteration.span.steps)

    def _count(self, steps: int) -> None:
        if self._iteration is not None and self._iteration.span is not None:
            total, batches = self._iteration.span.steps, self._indices
            makes_no_batch = not self._in_batches and batches.drop_last and total - steps < batches.batch_size
            self._iteration.delivered = total if makes_no_batch else steps


# ---- loops -----------------------------------------------------------------------------------------------------


class Loop(Iterator[Any]):
    """Yields the batches of an epoch. The sampler and the workers start with the first `next()`."""

    def __init__(self, loader: Any, waits: Waits) -> None:
        self._loader = loader
        self._waits = waits
        self._drawn = loader._new_drawn(waits)
        self._stall_after = float("inf") if loader.stall_after is None else loader.stall_after
        self._number = 0  # of the next batch
        self._process = os.getpid()

    def __len__(self) -> int:
        return len(self._loader)

    def __next__(self) -> Any:
        """Return the next batch, or raise the error of its worker; the loop can continue after that."""
        if os.getpid() != self._process:
            raise Error(
                f"loader: expected process {self._process}, which began this loop, found process {os.getpid()}, which "
                "was forked from it; make another iterator with iter(loader)"
            )
        begin, indices, batch = self._next()
        self._waits.add(begin, time.perf_counter(), len(indices) if isinstance(indices, list | tuple) else 1)
        if (plan := self._loader._checked_plan) is not None and exceeds_plan(batch, indices, plan):
            self._loader._checked_plan = None  # one warning is enough
        return batch

    @abstractmethod
    def _next(self) -> tuple[float, Any, Any]:
        """Return the time at which the trainer began to wait, the indices of the next batch, and the batch."""

    def _check_stall(self, begin: float, indices: Any, what: str = "delivered") -> None:
        """Warn of a batch that takes longer than `stall_after`."""
        seconds = time.perf_counter() - begin
        if seconds < self._stall_after:
            return
        self._waits.stalls += 1
        sampler, after = self._loader._resumable, f"{self._stall_after:g}"
        rank = World.of(None, None).rank if sampler is None else sampler._sharding.rank
        warn(
            f"stall_after = {after}, expected batch {self._number} within {after} s, found it {what} after "
            f"{seconds:.1f} s on rank {rank}: the trainer waits for data, {_shown(indices)}{_fetching(self._loader)}",
            RuntimeWarning,
        )


class DirectLoop(Loop):
    """Makes each batch in `next()`."""

    def __init__(self, loader: Any, waits: Waits) -> None:
        super().__init__(loader, waits)
        self._make = _Batches(loader)

    def _next(self) -> tuple[float, Any, Any]:
        if not self._number:
            self._loader._begin_epoch()
        begin = time.perf_counter()
        try:
            indices = next(self._drawn)
        except StopIteration:
            self._drawn.end()
            raise
        if not self._number:
            begin = time.perf_counter()  # ranks have waited for one another
        is_made = False
        try:
            batch = self._make(indices)
            is_made = True
        finally:
            self._check_stall(begin, indices)
            self._drawn.settle(is_delivered=is_made)
            self._number += 1
        return begin, indices, batch


class ThreadLoop(Loop):
    """Prefetches batches in threads.

    Only the trainer's thread draws indices, so samplers need not be thread-safe.
    """

    def __init__(self, loader: Any, waits: Waits) -> None:
        super().__init__(loader, waits)
        self._make = _Batches(loader)
        self._tasks: deque[tuple[Any, Future[Any]]] = deque()  # the indices and the future of each prefetched batch
        self._ahead = loader.prefetch or (loader.prefetch_factor or 1) * loader.num_workers
        self._threads: Makers[Any, Any] | None = None

    def _next(self) -> tuple[float, Any, Any]:
        begin = time.perf_counter()
        if not self._tasks:
            if not self._number:
                self._loader._begin_epoch()
            self._draw()
            begin = time.perf_counter()  # ranks have waited for one another
        if not self._tasks:
            self._drawn.end()
            if self._threads is not None:
                self._threads.end()
            raise StopIteration
        indices, batch = self._tasks[0]
        if not batch.done():
            self._wait(begin, indices, batch)
        self._tasks.popleft()
        self._drawn.settle(is_delivered=batch.exception() is None)
        self._number += 1
        self._draw()
        try:
            return begin, indices, batch.result()
        finally:
            del batch  # the traceback of its error holds this frame

    def _draw(self) -> None:
        """Draw indices until enough batches are prefetched."""
        with suppress(StopIteration):
            while len(self._tasks) < self._ahead:
                indices = next(self._drawn)
                if self._threads is None:
                    self._threads = _threads_of(self._loader, self._make)
                self._tasks.append((indices, self._threads.give(indices)))

    def _wait(self, begin: float, indices: Any, batch: "Future[Any]") -> None:
        """Wait for the threads to finish the next batch."""
        timeout = self._loader.timeout or float("inf")
        for limit in sorted({self._stall_after, timeout}):
            with suppress(TimeoutError):
                batch.exception(max(begin + limit - time.perf_counter(), 0) if limit < float("inf") else None)
                return
            if limit == timeout:
                raise RuntimeError(
                    f"timeout = {timeout:g}, expected batch {self._number} within {timeout:g} s, found it not ready: "
                    f"{_shown(indices)}"
                )
            self._check_stall(begin, indices, "not ready")


class ProcessLoop(Loop):
    """Yields and counts the batches of torch's own loader, with worker processes."""

    _inner: Any = None

    def _next(self) -> tuple[float, Any, Any]:
        begin = time.perf_counter()
        if self._inner is None:
            self._inner, self._drawn = self._loader._start_processes()
            begin = time.perf_counter()  # ranks have waited for one another
        try:
            batch = next(self._inner)
        except StopIteration:
            self._drawn.end()
            raise
        except Exception as error:
            if str(error).startswith(_ENDED):
                raise _ended_worker(error, getattr(self._inner, "_workers", ())) from None
            if not self._drawn.has_failed and not str(error).startswith(_NOT_IN_TIME):
                self._drawn.settle(is_delivered=False)
                self._number += 1
            raise
        indices = self._drawn.settle(is_delivered=True)
        self._check_stall(begin, indices)
        self._number += 1
        return begin, indices, batch


class Grouped(Iterator[list[Any]]):
    """Yields lists of `size` batches; the last one may be shorter. An error of a batch keeps those before it."""

    def __init__(self, loop: Iterator[Any], size: int) -> None:
        self._loop, self._size = loop, size
        self._held: list[Any] = []

    def __next__(self) -> list[Any]:
        with suppress(StopIteration):
            while len(self._held) < self._size:
                self._held.append(next(self._loop))
        if not self._held:
            raise StopIteration
        batches, self._held = self._held, []
        return batches


def _ended_worker(error: Exception, workers: Iterable[Any]) -> Error:
    """Return the error for a worker process that has ended, as torch reports."""
    found = str(error)
    for worker in workers:
        if code := worker.exitcode:
            how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            found = f"expected worker process {worker.pid} to make batches, found that it {how}"
    return Error(
        f"num_workers: {found}; make another iterator with iter(loader), from the last state (a worker that the system "
        "kills was often out of memory)"
    )


def _fetching(loader: Any) -> str:
    """Return which object of a store the batches wait for, as text for a message."""
    dataset = loader.dataset
    return f"; {text}" if isinstance(dataset, Dataset) and (text := dataset._indexed._waiting()) else ""


def _shown(indices: Any) -> str:
    """Return the records of a batch as text for a message."""
    if not isinstance(indices, list | tuple):
        return f"record {indices}"
    return f"records {shortened(list(indices))[1:-1]} ({len(indices)} in all)"


# ---- batches and workers ---------------------------------------------------------------------------------------


class _Batches:
    """Makes batches from indices, as torch's DataLoader does."""

    def __init__(self, loader: Any) -> None:
        self._dataset, self._collate = loader.dataset, loader.collate_fn
        self._is_batched = loader.batch_sampler is not None
        self._pin = loader.pin_memory and torch.cuda.is_available()
        if loader.pin_memory and not self._pin:
            warn("pin_memory = True, expected a CUDA device, found none; batches are not pinned")

    def __call__(self, indices: Any) -> Any:
        dataset = self._dataset
        try:
            if not self._is_batched:
                samples = dataset[indices]
            elif getattr(dataset, "__getitems__", None):
                samples = dataset.__getitems__(indices)
            else:
                samples = [dataset[index] for index in indices]
            batch = self._collated(samples, indices)
        except StopIteration as error:  # it would end the trainer's loop
            raise RuntimeError("a dataset or a collate_fn raised StopIteration") from error
        return pin_memory(batch) if self._pin else batch  # type: ignore[no-untyped-call]

    def _collated(self, samples: Any, indices: Any) -> Any:
        try:
            return self._collate(samples)
        except CollateError as error:
            if self._is_batched and isinstance(self._dataset, Dataset):
                with suppress(Error):  # a record that can no longer be read must not hide the first error
                    note_places(error, self._dataset, samples, indices)
            raise


def _uses_cuda() -> bool:
    return torch.cuda.is_available() and bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def _threads_of(loader: Any, make: Callable[[Any], Any]) -> Makers[Any, Any]:
    """Return the threads of a loader."""
    device = torch.cuda.current_device() if _uses_cuda() else None
    count = torch.get_num_threads()
    threads = Makers(make, loader.num_workers, THREAD_NAME, partial(_start_thread, device, loader.worker_init_fn))
    torch.set_num_threads(count)  # the loader's threads have changed the default for all later threads
    return threads


def _start_thread(device: int | None, start: Callable[[int], None] | None, number: int) -> None:
    """Set up a thread of a loader."""
    torch.set_num_threads(1)  # as in torch's own workers: the loader's threads already use the cores
    torch.get_num_threads()  # fixes the number for this thread, so that the trainer cannot change it later
    if device is not None:
        torch.cuda.set_device(device)
    if start is not None:
        # worker_init_fn often seeds random numbers, whose state a thread shares with the trainer.
        pythons, numpys = random.getstate(), np.random.get_state()
        try:
            with torch.random.fork_rng(devices=range(torch.cuda.device_count()) if _uses_cuda() else []):
                _call(start, number)
        finally:
            random.setstate(pythons)
            np.random.set_state(numpys)


def start_process(start: Callable[[int], None] | None, number: int) -> None:
    """Set up a worker process; from now on it ends with the trainer, even if that is killed.

    torch's own check runs only between batches: a worker that waits to send a batch to a killed trainer would never
    end.
    """
    end_with_parent()
    if start is not None:
        _call(start, number)


def _call(start: Callable[[int], None], number: int) -> None:
    try:
        start(number)
    except StopIteration as error:  # it would end the trainer's loop
        raise RuntimeError("worker_init_fn raised StopIteration") from error
