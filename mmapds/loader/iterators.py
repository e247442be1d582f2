"""Iterators of a DataLoader: batches made by the trainer's own thread, by threads beside it, or by processes."""

import os
import random
import re
import time
import traceback
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import torch.utils.data
from torch._utils import ExceptionWrapper
from torch.utils.data._utils.pin_memory import pin_memory

from ..dataset.dataset import Dataset
from ..errors import CollateError, Error, warn
from ..storage.processes import end_with_parent
from .default import default_collate
from .delivery import Delivery, Position, draw_base_seed
from .pool import Pool, Task
from .waits import Waits

_LOOK = 5.0  # seconds after which the trainer looks whether the threads are still there
_SHOWN = 8  # records that a message names
_SAMPLE = re.compile(r"\bsamples\[(\d+)\]")  # as messages of collate functions name one


_NOTES: dict[type[Exception], str] = {
    RuntimeError: "give collate_fn=mmapds.pad_collate for samples whose first axes differ, or make samples alike with "
    "ds.map(function), as images of one size",
    TypeError: "give collate_fn=mmapds.pad_collate, which keeps values that are not numbers in lists, or make "
    "tensors of them with ds.map(function)",
    KeyError: "give the samples of a batch the same fields, with ds.map(function), or with the defaults of "
    "mmapds.Fields",
}
"""What to do where torch's own collate function raises an error, which names neither collate functions nor datasets."""


class Batches:
    """Makes batches from indices, as torch's DataLoader does.

    Args:
      is_batched: indices are a list, whose samples are collated; else one index, whose sample is converted.
      pin: copy tensors into memory that a device reads without another copy.
    """

    def __init__(self, dataset: Any, collate: Callable[[Any], Any], *, is_batched: bool, pin: bool) -> None:
        self._dataset = dataset
        self._collate = collate
        self._is_batched = is_batched
        self._pin = pin

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
                with suppress(Error):  # of a record that cannot be read any more: the first error counts
                    _note_places(error, self._dataset, samples, indices)
            raise
        except tuple(_NOTES) as error:
            if self._collate in (default_collate, torch.utils.data.default_collate) and type(error) in _NOTES:
                error.add_note(_NOTES[type(error)])
            raise


def _note_places(error: CollateError, dataset: Dataset, samples: Any, indices: Any) -> None:
    """Add to an error where the records lie whose samples its message names by their places in the batch."""
    if len(samples) != len(indices):  # some records are left out
        indices = [indices[k] for k in dataset.take_kept(indices)[1].tolist()]
    for k in dict.fromkeys(map(int, _SAMPLE.findall(str(error)))):
        if k < len(indices):
            error.add_note(f"samples[{k}] is at position {int(indices[k])}: {dataset.place(indices[k])}")


class Stalls:
    """Reports waits that are too long, with the rank and the records.

    Args:
      after: seconds, or None for never.
      rank: of this process, when it is asked for.
    """

    def __init__(self, after: float | None, rank: Callable[[], int]) -> None:
        self.after = float("inf") if after is None else after
        self._rank = rank

    def warn(self, batch: int, indices: Any, seconds: float, *, delivered: bool) -> None:
        """Warn of a batch that was waited for some seconds so far, or in all."""
        found = f"delivered after {seconds:.1f} s" if delivered else f"not ready after {seconds:.1f} s"
        warn(
            f"stall_after = {self.after:g}, expected batch {batch} within {self.after:g} s, found it {found} on rank "
            f"{self._rank()}: the trainer waits for data, {shown(indices)}",
            RuntimeWarning,
        )


def shown(indices: Any) -> str:
    """Return the records of a batch, as messages name them."""
    if not isinstance(indices, list | tuple):
        return f"record {indices}"
    first = ", ".join(map(str, indices[:_SHOWN]))
    return f"records {first}" + (f", ... ({len(indices)} in all)" if len(indices) > _SHOWN else "")


class LoaderIterator(Iterator[Any]):
    """Yields the batches of one pass. Nothing is drawn, and no worker starts, before the first of them is asked for."""

    def __init__(self, position: Position, waits: Waits, stalls: Stalls, length: Callable[[], int]) -> None:
        self._delivery = Delivery(position)
        self._waits = waits
        self._stalls = stalls
        self._length = length
        self._number = 0  # of the batch that is next
        self._process = os.getpid()
        self._is_broken = False

    def __len__(self) -> int:
        return self._length()

    def __next__(self) -> Any:
        """Return the next batch. An error that making it raised is raised in its place; the next call goes on after it.

        Raises:
          Error: the loop was begun in another process; or a signal has ended it, or an error outside its batches.
        """
        begin = time.perf_counter()
        if os.getpid() != self._process:
            raise Error(
                f"loader: expected process {self._process}, which began this loop, found process {os.getpid()}, which "
                "was forked from it; make another iterator with iter(loader)"
            )
        if self._is_broken:
            raise Error(
                "loader: expected a loop that can go on, found one that a signal, or an error outside its batches, has "
                "ended; make another with iter(loader)"
            )
        self._is_broken = True  # until the batch is counted: a signal's handler may raise anywhere
        try:
            indices, batch = self._next(begin)
        except StopIteration:
            self._delivery.end()
            self._is_broken = False
            raise
        self._waits.add(begin, time.perf_counter(), len(indices) if isinstance(indices, list | tuple) else 1)
        self._number += 1
        self._delivery.settle(True)
        self._is_broken = False
        return batch

    @abstractmethod
    def _next(self, begin: float) -> tuple[Any, Any]:
        """Return the indices of the next batch, and the batch."""

    def _fail(self) -> None:
        """Take note that the batch that is next failed, and that the loop can go on after it."""
        self._number += 1
        self._delivery.settle(False)
        self._is_broken = False

    def _late(self, begin: float, indices: Any) -> None:
        """Report a batch that took too long, after it was delivered."""
        seconds = time.perf_counter() - begin
        if seconds >= self._stalls.after:
            self._waits.add_stall()
            self._stalls.warn(self._number, indices, seconds, delivered=True)


class _DrawingIterator(LoaderIterator):
    """Draws the indices of its batches itself, some batches ahead: without them, nobody knew which is the last."""

    def __init__(self, generator: torch.Generator | None, ahead: int, *common: Any) -> None:
        super().__init__(*common)
        self._generator = generator
        self._ahead = ahead
        self._tasks: deque[Task] = deque()
        self._drawn_all = False

    def _draw(self) -> None:
        """Draw indices until as many batches are on their way as there may be; an error is raised in its turn."""
        while len(self._tasks) < self._ahead and not self._drawn_all:
            try:
                task = Task(next(self._delivery))
            except StopIteration:
                self._drawn_all = True
            except Exception as error:
                self._drawn_all = True
                self._tasks.append(Task.failed(error))
            else:
                self._tasks.append(task)
                self._give(task)

    def _draw_first(self, begin: float) -> float:
        """Draw where nothing is on its way; return from when on data was waited for: before that, for other ranks."""
        if self._tasks:
            return begin
        self._draw()
        return time.perf_counter()

    def _give(self, task: Task) -> None:
        """Have a task done; by default nobody does it yet."""

    def _taken(self, task: Task) -> tuple[Any, Any]:
        own = task.error
        try:
            return task.indices, task.take()
        except Exception as error:
            if error is own and task.is_drawn:
                self._fail()
            raise
        finally:
            del own  # its traceback holds this frame


class SerialIterator(_DrawingIterator):
    """Makes each batch when it is asked for."""

    def __init__(self, batches: Batches, generator: torch.Generator | None, *common: Any) -> None:
        super().__init__(generator, 1, *common)
        self._batches = batches
        self._begun = False

    def _next(self, begin: float) -> tuple[Any, Any]:
        if not self._begun:
            self._begun = True
            self._delivery.expect_pass()
            draw_base_seed(self._generator)
        begin = self._draw_first(begin)
        if not self._tasks:
            raise StopIteration
        task = self._tasks.popleft()
        if not task.finished:
            task.run(self._batches)
            self._late(begin, task.indices)
        self._draw()
        return self._taken(task)


class ThreadIterator(_DrawingIterator):
    """Has threads make the next batches while the trainer works on one.

    Indices are drawn by the thread that asks for batches, so samplers need not be safe in threads.

    Args:
      prefetch: batches that exist or are made at a time, without the one that the trainer has.
      timeout: seconds to wait for a batch; 0 for any time.
      start: what each thread calls first, with its number.
    """

    def __init__(
        self,
        batches: Batches,
        generator: torch.Generator | None,
        workers: int,
        prefetch: int,
        timeout: float,
        start: Callable[[int], None] | None,
        *common: Any,
    ) -> None:
        super().__init__(generator, prefetch, *common)
        self._make_pool = partial(Pool, batches, workers, partial(_start_thread, current_device(), start))
        self._pool: Pool | None = None
        self._timeout = timeout or float("inf")

    def _next(self, begin: float) -> tuple[Any, Any]:
        if self._pool is None:
            self._delivery.expect_pass()
            draw_base_seed(self._generator)
            threads = torch.get_num_threads()
            self._pool = self._make_pool()
            torch.set_num_threads(threads)  # what the threads have set counts for all threads that start later
        begin = self._draw_first(begin)
        if not self._tasks:
            self._pool.stop()
            self._pool.join()
            raise StopIteration
        task = self._tasks[0]
        self._is_broken = False  # what ends a wait leaves all as it is
        self._wait(task, begin, self._pool)
        self._is_broken = True
        self._tasks.popleft()
        self._draw()
        return self._taken(task)

    def _give(self, task: Task) -> None:
        assert self._pool is not None
        self._pool.give(task)

    def _wait(self, task: Task, begin: float, pool: Pool) -> None:
        waited, stall = 0.0, self._stalls.after
        while not task.wait(max(min(self._timeout, stall, waited + _LOOK) - waited, 0)):
            waited = time.perf_counter() - begin
            if waited >= stall:
                stall = float("inf")
                self._waits.add_stall()
                self._stalls.warn(self._number, task.indices, waited, delivered=False)
            if waited >= self._timeout:
                raise RuntimeError(
                    f"timeout = {self._timeout:g}, expected batch {self._number} within {self._timeout:g} s, found it "
                    f"not ready: {shown(task.indices)}"
                )
            if not pool.alive and not task.finished:
                raise RuntimeError(
                    f"num_workers: the threads ended before batch {self._number}, {shown(task.indices)}; use "
                    "num_workers=0 to see why"
                )


class ProcessIterator(LoaderIterator):
    """Counts the batches of torch's own loader, whose processes make them.

    Args:
      begin: takes the position of the loader; returns torch's iterator, and what its batches are drawn from.
    """

    def __init__(self, begin: Callable[[], tuple[Iterator[Any], "Recorder"]], *common: Any) -> None:
        super().__init__(*common)
        self._start = begin
        self._inner: Iterator[Any] | None = None
        self._recorder: Recorder | None = None

    def _next(self, begin: float) -> tuple[Any, Any]:
        if self._inner is None:
            self._delivery.expect_pass()
            self._inner, self._recorder = self._start()
            self._delivery = self._recorder.delivery
            begin = time.perf_counter()  # ranks have waited for one another
        assert self._recorder is not None
        try:
            batch = next(self._inner)
        except Exception as error:
            if _is_of_worker(error):
                self._recorder.indices.popleft()
                self._fail()
            elif _is_timeout(error):
                self._is_broken = False  # torch goes on where it was; not so where a worker died
            raise
        indices = self._recorder.indices.popleft()
        self._late(begin, indices)
        return indices, batch


def _is_of_worker(error: Exception) -> bool:
    """Whether an error is one that a worker sent in the place of a batch, and not one of the trainer's process."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return frame.f_code is ExceptionWrapper.reraise.__code__


def _is_timeout(error: Exception) -> bool:
    return type(error) is RuntimeError and str(error).startswith("DataLoader timed out")


def _call(start: Callable[[int], None], number: int) -> None:
    """Call what the user gave as `worker_init_fn`."""
    try:
        start(number)
    except StopIteration as error:  # it would end the trainer's loop
        raise RuntimeError("worker_init_fn raised StopIteration") from error


class WorkerStart:
    """What a worker process calls first: from then on it ends with the trainer, however that ends.

    By itself, a worker of torch's looks for the trainer only between batches: one that waits to send a batch when the
    trainer is killed would stay for ever.
    """

    def __init__(self, start: Callable[[int], None] | None) -> None:
        self._start = start

    def __call__(self, number: int) -> None:
        end_with_parent()
        if self._start is not None:
            _call(self._start, number)


class Recorder:
    """An iterator over the indices of a pass that keeps those of batches that were not delivered yet."""

    def __init__(self, position: Position) -> None:
        self.delivery = Delivery(position)
        self.indices: deque[Any] = deque()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        indices = next(self.delivery)
        self.indices.append(indices)
        return indices


def current_device() -> int | None:
    """Return the number of the accelerator that this thread uses, or None without one."""
    return torch.cuda.current_device() if _uses_cuda() else None


def _uses_cuda() -> bool:
    return torch.cuda.is_available() and bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def _start_thread(device: int | None, start: Callable[[int], None] | None, number: int) -> None:
    torch.set_num_threads(1)  # as in torch's own workers: the loader's threads share the cores as they are
    torch.get_num_threads()  # makes it this thread's own number, which the trainer's later ones do not change
    if device is not None:
        torch.cuda.set_device(device)
    if start is None:
        return
    # It often seeds random numbers, which in a thread are those of the trainer.
    pythons, numpys = random.getstate(), np.random.get_state()
    devices = range(torch.cuda.device_count()) if _uses_cuda() else []
    try:
        with torch.random.fork_rng(devices=devices):
            _call(start, number)
    finally:
        random.setstate(pythons)
        np.random.set_state(numpys)
