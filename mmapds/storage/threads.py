"""Sharing work over threads. The core releases the GIL, so threads are all the parallelism indexing needs."""

import atexit
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Generic, NoReturn, TypeVar

from ..errors import Error

Task = TypeVar("Task")
Slot = TypeVar("Slot")
Result = TypeVar("Result")
_AT_EXIT = 5.0  # seconds that the end of the process waits for a thread to finish its task


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
    for the next result, so at most `len(slots)` results exist, however far ahead a thread is.

    An exception of `work`, or of the iterator of `tasks`, is raised in place of the result of that task.
    """
    if workers == 1:
        for task in tasks:
            yield work(task, slots[0])
    else:
        yield from _Pool(work, tasks, workers, slots)


class _Pool(Generic[Task, Slot, Result]):
    """The consumer's thread shares nothing with the others but queues in C: a signal that raises there, wherever it
    comes, leaves no lock behind for which they would wait."""

    def __init__(
        self, work: Callable[[Task, Slot], Result], tasks: Iterable[Task], workers: int, slots: list[Slot]
    ) -> None:
        self._work = work
        self._tasks = iter(tasks)
        self._free: SimpleQueue[Slot | None] = SimpleQueue()
        self._made: SimpleQueue[tuple[int, tuple[Callable[[], Result], Slot] | None]] = SimpleQueue()
        """Numbers of tasks with their results; None for the number of tasks that there are."""
        self._taking = threading.Lock()  # of the workers alone
        self._taken = 0
        self._is_over = False
        self._entered: set[threading.Thread] = set()
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(workers)]
        for slot in slots:
            self._free.put(slot)

    def __iter__(self) -> Iterator[Result]:
        started: list[threading.Thread] = []
        try:
            for thread in self._threads:
                try:
                    thread.start()
                except RuntimeError as error:
                    if not started or not is_refused(error):
                        raise no_thread(error) from None
                    break  # those there are do all of it
                started.append(thread)
            for result, slot in self._finished():
                yield result()
                self._free.put(slot)
        finally:
            self._is_over = True
            for _ in self._threads:
                self._free.put(None)
            # Where a signal cut a start short, that thread may wait for ever, but then it never came to `_run`.
            for thread in {*started, *self._entered.copy()}:
                thread.join()

    def _finished(self) -> Iterator[tuple[Callable[[], Result], Slot]]:
        """Yield results in the order of their tasks."""
        waiting: dict[int, tuple[Callable[[], Result], Slot]] = {}
        wanted, count = 0, None
        while wanted != count:
            number, finished = self._made.get()
            if finished is None:
                count = number
            else:
                waiting[number] = finished
            while wanted in waiting:
                yield waiting.pop(wanted)
                wanted += 1

    def _run(self) -> None:
        self._entered.add(threading.current_thread())
        # A thread takes its slot before its task, so that the oldest unfinished task always has one.
        while not self._is_over and (slot := self._free.get()) is not None:
            with self._taking:
                if self._is_over:
                    return
                number, last = self._taken, False
                try:
                    task = next(self._tasks)
                except StopIteration:
                    self._made.put((number, None))
                    return
                except BaseException as error:  # the last task: the consumer raises it in its turn
                    self._made.put((number, (partial(_fail, [error]), slot)))
                    last = True
                self._taken += 1
                if last:
                    self._made.put((self._taken, None))
                    return
            result: Callable[[], Result]
            try:
                result = partial(_value, self._work(task, slot))
            except BaseException as error:  # the consumer raises it
                result = partial(_fail, [error])
            self._made.put((number, (result, slot)))


def _value(value: Result) -> Result:
    return value


def _fail(error: list[BaseException]) -> NoReturn:
    raise error.pop()  # which no frame keeps: it keeps the frames, with all that they hold, and a cycle is freed late


def is_refused(error: RuntimeError) -> bool:
    """Return whether the system refused a thread, where its start raised an error."""
    return "new thread" in str(error)


def no_thread(error: RuntimeError) -> BaseException:
    """Return the error to raise where the system refuses a thread, or where a signal's handler raised as it started."""
    if not is_refused(error):  # Python's own start of threads then fails at a lock, and hides what was raised
        return error.__context__ or error
    return Error(
        f"expected room for a thread, found none ({error}); raise the limit of memory (ulimit -v) or of processes "
        "(ulimit -u), or use fewer workers"
    )


def ahead(items: Iterable[Result], most: int = 4) -> Generator[Result, None, None]:
    """Yield items, of which a thread makes up to `most` ahead of whoever takes them.

    An exception of the iterator is raised in its turn.
    """
    room: SimpleQueue[None] = SimpleQueue()
    made: SimpleQueue[Callable[[], Result] | None] = SimpleQueue()
    is_begun = ended = False  # no threading.Event: a signal that raises in one leaves its lock taken

    def run() -> None:
        nonlocal is_begun
        is_begun = True
        if ended:
            return
        try:
            for item in items:
                room.get()
                if ended:
                    break
                made.put(partial(_value, item))
        except BaseException as error:  # the consumer raises it
            made.put(partial(_fail, [error]))
        else:
            made.put(None)
        if isinstance(items, Generator):
            items.close()  # here, as its own threads end then

    thread = threading.Thread(target=run, daemon=True)
    try:
        try:
            thread.start()
        except RuntimeError as error:
            raise no_thread(error) from None
        for _ in range(most):
            room.put(None)
        while (result := made.get()) is not None:
            yield result()
            room.put(None)
    finally:
        ended = True
        room.put(None)
        if is_begun:  # else a signal cut its start short, and it may wait for ever
            thread.join()


class Makers(Generic[Task, Result]):
    """Threads that make one thing of each task, in the order in which tasks are given.

    They stop when nobody refers to this any more, and finish what they are at.

    Args:
      make: makes something of a task; called by several threads at a time.
      name: how the names of the threads begin.
      start: called first by every thread with its number, by one thread at a time; what it raises is raised here.
    """

    def __init__(self, make: Callable[[Task], Result], count: int, name: str, start: Callable[[int], object]) -> None:
        self._todo: SimpleQueue[tuple[int, Task] | None] = SimpleQueue()
        self._made: SimpleQueue[Any] = SimpleQueue()
        self._ready: dict[int, tuple[Result | None, BaseException | None]] = {}
        self._process = os.getpid()
        # Nothing of this goes to the threads. Daemons, as the end of the process would wait for others before it asked
        # them to stop.
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
                except RuntimeError as refused:
                    raise no_thread(refused) from None
                _running.add(thread)
            for error in filter(None, [self._made.get() for _ in self._threads]):
                raise error
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
                made, *result = self._made.get(timeout=left) if left > 0 else self._made.get_nowait()
            except Empty:
                return False
            self._ready[made] = result[0], result[1]
        return True

    def take(self, number: int) -> tuple[Result | None, BaseException | None]:
        """Return the result of a task that is done, or its error."""
        return self._ready.pop(number)

    @property
    def are_alive(self) -> bool:
        """Whether there is a thread left that does tasks."""
        return any(thread.is_alive() for thread in self._threads)

    def stop(self) -> None:
        """Have the threads end after the task that they are at; does not wait for them."""
        if os.getpid() == self._process:
            with suppress(Empty):
                while True:
                    self._todo.get_nowait()
            for _ in self._threads:
                self._todo.put(None)

    def join(self) -> None:
        """Wait until the threads have ended."""
        for thread in self._threads:
            thread.join()

    def __del__(self, is_ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if hasattr(self, "_threads") and not is_ending():  # when Python ends, modules are gone, and threads were told
            self.stop()


_makers: "weakref.WeakSet[Makers[Any, Any]]" = weakref.WeakSet()
_running: "weakref.WeakSet[threading.Thread]" = weakref.WeakSet()
"""Threads of makers, which may be at a task when nobody refers to their makers any more."""


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
    made.put(error)
    while error is None and (task := todo.get()) is not None:
        made.put((task[0], *tried(make, task[1])))


def tried(make: Callable[[Task], Result], task: Task) -> tuple[Result | None, BaseException | None]:
    """Return what a function makes of a task, or the error that it raises."""
    try:
        return make(task), None
    except BaseException as error:  # who asked for the result raises it
        return None, error
