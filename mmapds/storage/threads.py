"""Work shared over threads. The core releases the GIL, so threads are all the parallelism that indexing needs."""

import atexit
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future
from contextlib import closing, suppress
from functools import partial
from itertools import cycle, repeat
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from ..errors import Error

Task = TypeVar("Task")
Slot = TypeVar("Slot")
Result = TypeVar("Result")
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
    yield from _results(makers, zip(tasks, cycle(slots), strict=False), len(slots))


def ahead(items: Iterable[Result], most: int = 4) -> Generator[Result, None, None]:
    """Yield items, of which a thread makes up to `most` ahead of whoever takes them.

    An exception of the iterator is raised in its turn.
    """
    iterator = iter(items)
    makers: Makers[None, Any] = Makers(lambda _: next(iterator, _END), 1, "mmapds-ahead")
    try:
        with closing(_results(makers, repeat(None), most)) as found:
            yield from iter(partial(next, found), _END)
    finally:
        if isinstance(items, Generator):
            items.close()


def _results(makers: "Makers[Task, Result]", tasks: Iterable[Task], most: int) -> Generator[Result, None, None]:
    """Yield what is made of tasks, in their order, `most` of them at a time; then end the threads."""
    waiting: deque[Future[Result]] = deque()
    left, failure = iter(tasks), None
    try:
        while True:
            if len(waiting) == most:
                yield waiting.popleft().result()
            try:
                waiting.append(makers.give(next(left)))
            except StopIteration:
                break
            except Exception as error:
                failure = error
                break
        while waiting:
            yield waiting.popleft().result()
        if failure is not None:
            raise failure
    finally:
        failure = None  # its traceback holds this frame
        makers.stop()
        makers.join()


class Makers(Generic[Task, Result]):
    """Threads that make one thing of each task.

    They stop when nobody refers to this any more, and finish the task that they have begun. They are daemons, as a task
    may never end.

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
        self._todo: _Tasks = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self.stop = weakref.finalize(self, _stop, self._todo)
        """Has the threads end after the task that they are at; does not wait for them."""
        try:
            for number in range(count):
                started: Future[Any] = Future()
                arguments = started, start, number, make, self._todo  # not this object, which threads would keep
                thread = threading.Thread(target=_make_all, args=arguments, name=f"{name}-{number}", daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:
                    raise Error(f"expected room for a thread, found none ({error}); use fewer workers") from None
                self._threads.append(thread)
                _running[thread] = self.stop
                started.result()
        except BaseException:
            self.stop()
            raise

    def give(self, task: Task) -> "Future[Result]":
        """Have a task done, after those that were given before."""
        future: Future[Result] = Future()
        self._todo.put((future, task))
        return future

    def join(self) -> None:
        """Wait until the threads have ended."""
        for thread in self._threads:
            thread.join()


_Tasks = SimpleQueue["tuple[Future[Any], Any] | None"]
_running: "weakref.WeakKeyDictionary[threading.Thread, Callable[[], object]]" = weakref.WeakKeyDictionary()
"""What stops each thread that may run."""


@atexit.register
def _join_all() -> None:
    # A thread that runs while the interpreter is taken down may end the process with an error.
    # Finalizers come later if anything had one before this module was imported, as torch has.
    for thread, stop in list(_running.items()):
        stop()
        thread.join(_AT_EXIT)


def _make_all(
    started: "Future[Any]", start: Callable[[int], Any], number: int, make: Callable[[Any], Any], todo: _Tasks
) -> None:
    fulfil(started, start, number)
    del started
    while (given := todo.get()) is not None:
        fulfil(given[0], make, given[1])
        del given  # its memory is not kept while this thread waits
    todo.put(None)  # for the next thread


def _stop(todo: _Tasks) -> None:
    with suppress(Empty):
        while True:
            todo.get_nowait()
    todo.put(None)


def fulfil(future: "Future[Result]", make: Callable[[Task], Result], task: Task) -> None:
    """Give a future what a function makes of a task, or the error that it raises."""
    try:
        future.set_result(make(task))
    except BaseException as error:  # who asks for the result raises it
        future.set_exception(error)
        del future, task  # which the error's traceback would keep
