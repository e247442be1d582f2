"""Work shared over threads. The core releases the GIL, so threads are all the parallelism that indexing needs."""

import atexit
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from itertools import count
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from ..errors import Error

Task = TypeVar("Task")
Slot = TypeVar("Slot")
Result = TypeVar("Result")
Outcome = tuple[Result | None, BaseException | None]
"""What a function returned, or the error that it raised."""
_AT_EXIT = 5.0  # seconds that the end of the process waits for a thread to finish its task
_END = object()


def cores() -> int:
    """Return the number of cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def in_order(
    work: Callable[[Task, Slot], Result], tasks: Iterable[Task], *, workers: int, slots: list[Slot]
) -> Generator[Result, None, None]:
    """Yield `work(task, slot)` for every task, in the order of the tasks, computed by `workers` threads.

    A slot is memory in which a task works and to which its result may refer. It is free again when the consumer asks
    for the next result, so at most `len(slots)` results exist.

    An exception of `work`, or of the iterator of `tasks`, is raised in place of the result of that task.
    """
    if workers == 1:
        for task in tasks:
            yield work(task, slots[0])
        return
    makers: Makers[tuple[Task, Slot], Result] = Makers(lambda given: work(*given), workers, "mmapds-worker")
    left, given, done = iter(tasks), 0, 0
    failure: list[Exception] = []
    is_over = False
    try:
        while not is_over or done < given:
            if not is_over and given - done < len(slots):
                try:
                    makers.give(given, (next(left), slots[given % len(slots)]))
                    given += 1
                except StopIteration:
                    is_over = True
                except Exception as error:
                    failure.append(error)
                    is_over = True
                continue
            yield makers.result(done)
            done += 1
        if failure:
            raise failure.pop()
    finally:
        makers.stop()
        makers.join()


def ahead(items: Iterable[Result], most: int = 4) -> Generator[Result, None, None]:
    """Yield items, of which a thread makes up to `most` ahead of whoever takes them.

    An exception of the iterator is raised in its turn.
    """
    iterator = iter(items)
    makers: Makers[None, Any] = Makers(lambda _: next(iterator, _END), 1, "mmapds-ahead")
    try:
        for number in range(most):
            makers.give(number, None)
        for number in count():
            item = makers.result(number)
            if item is _END:
                break
            yield item
            del item
            makers.give(number + most, None)
    finally:
        makers.stop()
        makers.join()
        if isinstance(items, Generator):
            items.close()


class Makers(Generic[Task, Result]):
    """Threads that make one thing of each task, in the order in which tasks are given.

    They stop when nobody refers to this any more, and finish the task that they have begun.

    Args:
      make: makes something of a task; called by several threads at a time.
      name: how the names of the threads begin.
      start: called first by every thread with its number, by one thread at a time; what it raises is raised here.
    """

    def __init__(
        self,
        make: Callable[[Task], Result],
        count: int,
        name: str,
        start: Callable[[int], object] = lambda _: None,
    ) -> None:
        self._todo: SimpleQueue[tuple[int, Task] | None] = SimpleQueue()
        self._made: SimpleQueue[tuple[int, Outcome[Result]]] = SimpleQueue()
        self._ready: dict[int, Outcome[Result]] = {}
        self._process = os.getpid()
        # The threads do not refer to this object. They are daemons, as the end of the process has to stop them.
        shared = (make, self._todo, self._made, threading.Lock(), start)
        self._threads = [
            threading.Thread(target=_make_all, args=(number, *shared), name=f"{name}-{number}", daemon=True)
            for number in range(count)
        ]
        _makers.add(self)
        try:
            for thread in self._threads:
                try:
                    thread.start()
                except RuntimeError as error:
                    raise Error(f"expected room for a thread, found none ({error}); use fewer workers") from None
                _running.add(thread)
            for _ in self._threads:
                _, (_, failure) = self._made.get()
                if failure is not None:
                    raise failure
        except BaseException:
            self.stop()
            raise

    def give(self, number: int, task: Task) -> None:
        """Have a task done, and keep the result under a number."""
        self._todo.put((number, task))

    def wait(self, number: int, seconds: float) -> bool:
        """Wait until a task is done, for some seconds at most; return whether it is."""
        deadline = time.monotonic() + seconds
        while number not in self._ready:
            left = deadline - time.monotonic()
            try:
                made, outcome = self._made.get(timeout=left) if left > 0 else self._made.get_nowait()
            except Empty:
                return False
            self._ready[made] = outcome
        return True

    def take(self, number: int) -> Outcome[Result]:
        """Return the result of a task that is done, or its error."""
        return self._ready.pop(number)

    def result(self, number: int) -> Result:
        """Wait for the result of a task, and return it; raise its error."""
        while number not in self._ready:
            made, outcome = self._made.get()
            self._ready[made] = outcome
        result, error = self.take(number)
        try:
            if error is not None:
                raise error
            return result  # type: ignore[return-value]
        finally:
            del error  # its traceback holds this frame, and with it the result

    @property
    def are_alive(self) -> bool:
        """Whether there is a thread left that does tasks."""
        return any(thread.is_alive() for thread in self._threads)

    def stop(self) -> None:
        """Have the threads end after the task that they are at; does not wait for them."""
        if os.getpid() != self._process:  # a forked child has none of them
            return
        with suppress(Empty):
            while True:
                self._todo.get_nowait()
        for _ in self._threads:
            self._todo.put(None)

    def join(self) -> None:
        """Wait until the threads have ended."""
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def __del__(self, is_ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if hasattr(self, "_threads") and not is_ending():  # when Python ends, modules are missing
            self.stop()


_makers: "weakref.WeakSet[Makers[Any, Any]]" = weakref.WeakSet()
_running: "weakref.WeakSet[threading.Thread]" = weakref.WeakSet()
"""Threads of makers, which may finish a task when nobody refers to their makers any more."""


@atexit.register
def _stop_all() -> None:
    # A thread that runs while the interpreter is taken down may end the process with an error.
    for makers in list(_makers):
        makers.stop()
    for thread in list(_running):
        thread.join(_AT_EXIT)


def _make_all(
    number: int,
    make: Callable[[Task], Result],
    todo: "SimpleQueue[tuple[int, Task] | None]",
    made: "SimpleQueue[Any]",
    turn: threading.Lock,
    start: Callable[[int], object],
) -> None:
    with turn:
        _, error = tried(start, number)
    made.put((-1, (None, error)))
    while error is None and (task := todo.get()) is not None:
        made.put((task[0], tried(make, task[1])))
        del task  # its memory is not kept while this thread waits


def tried(make: Callable[[Task], Result], task: Task) -> Outcome[Result]:
    """Return what a function makes of a task, or the error that it raises."""
    try:
        return make(task), None
    except BaseException as error:  # who asked for the result raises it
        return None, error
