"""Threads that make batches, and what happens to them at the end of a loop, of a thread and of the process."""

import atexit
import os
import sys
import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from ..storage.threads import no_thread

NAME = "mmapds-loader"
"""How the names of the threads begin."""
_AT_EXIT = 5.0  # seconds that the end of the process waits for a thread to finish its batch


class Task:
    """The indices of a batch, and what came of them.

    Attributes:
      is_drawn: whether there are any: else the error is that of the sampler.
    """

    __slots__ = ("_ready", "error", "finished", "indices", "is_drawn", "result")

    def __init__(self, indices: Any) -> None:
        self.indices = indices
        self.is_drawn = True
        self.result: Any = None
        self.error: BaseException | None = None
        self.finished = False
        self._ready = threading.Lock()
        self._ready.acquire()

    @classmethod
    def failed(cls, error: BaseException) -> "Task":
        """Return a task whose indices could not be drawn."""
        task = cls(None)
        task.is_drawn = False
        task.error = error
        task.finished = True
        return task

    def run(self, work: Callable[[Any], Any]) -> None:
        """Do the work, and wake the thread that waits for it."""
        try:
            self.result = work(self.indices)
        except BaseException as error:  # the thread that waits raises it
            self.error = error
        finally:
            self.finished = True
            self._ready.release()

    def wait(self, seconds: float) -> bool:
        """Wait until the work is done, for some seconds at most; return whether it is."""
        if not self.finished:
            self._ready.acquire(timeout=seconds)
        return self.finished

    def take(self) -> Any:
        """Return the result of finished work, or raise its error. The task keeps neither."""
        error, result = self.error, self.result
        self.error = self.result = None
        if error is None:
            return result
        try:
            raise error
        finally:
            del error  # its traceback holds this frame


class _Stop:
    """Whether threads are to end. No threading.Event: a signal that raises in one leaves its lock taken."""

    is_asked = False


class Pool:
    """Threads that do one task after another, in the order in which tasks are given.

    A pool that nobody refers to any more stops: its threads do not refer to it. They finish the batch that they are at.

    Args:
      work: makes a batch from its indices; called by several threads at a time.
      start: called first by every thread with its number, by one thread at a time; what it raises is raised here.
    """

    def __init__(self, work: Callable[[Any], Any], threads: int, start: Callable[[int], None]) -> None:
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()
        self._stop = _Stop()
        self._process = os.getpid()
        started: SimpleQueue[BaseException | None] = SimpleQueue()
        turn = threading.Lock()
        arguments = (work, self._tasks, self._stop, started, turn, start)
        # Daemons, because the end of the process would wait for others before it asked them to stop.
        self._threads = [
            threading.Thread(target=_run, args=(number, *arguments), name=f"{NAME}-{number}", daemon=True)
            for number in range(threads)
        ]
        _pools.add(self)
        try:
            for thread in self._threads:
                try:
                    thread.start()
                except RuntimeError as refused:
                    raise no_thread(refused) from None
                _running.add(thread)
            errors = [started.get() for _ in self._threads]
            for error in filter(None, errors):
                raise error
        except BaseException:
            self.stop()
            raise

    def give(self, task: Task) -> None:
        """Have a task done."""
        self._tasks.put(task)

    @property
    def alive(self) -> bool:
        """Whether there is a thread left that does tasks."""
        return any(thread.is_alive() for thread in self._threads)

    def stop(self) -> None:
        """Have the threads end after the batch that they are at; does not wait for them."""
        if os.getpid() == self._process:
            self._stop.is_asked = True
            for _ in self._threads:
                self._tasks.put(None)

    def join(self, seconds: float | None = None) -> None:
        """Wait until the threads have ended, each for some seconds at most."""
        if os.getpid() == self._process:
            for thread in self._threads:
                thread.join(seconds)

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if hasattr(self, "_threads") and not ending():  # when Python ends, modules are gone, and threads were told
            self.stop()


_pools: "weakref.WeakSet[Pool]" = weakref.WeakSet()
_running: "weakref.WeakSet[threading.Thread]" = weakref.WeakSet()
"""Threads, which may be at a batch when their pool is gone."""


@atexit.register
def _stop_all() -> None:
    # A thread that runs while the interpreter is taken down may end the process with an error.
    for pool in list(_pools):
        pool.stop()
    for thread in list(_running):
        thread.join(_AT_EXIT)


def _run(
    number: int,
    work: Callable[[Any], Any],
    tasks: "SimpleQueue[Task | None]",
    stop: _Stop,
    started: "SimpleQueue[BaseException | None]",
    turn: threading.Lock,
    start: Callable[[int], None],
) -> None:
    try:
        with turn:
            start(number)
    except BaseException as error:  # the thread that makes the pool raises it
        started.put(error)
        return
    started.put(None)
    task = tasks.get()
    while task is not None and not stop.is_asked:
        task.run(work)
        task = None  # the batch is the trainer's alone while this thread waits
        task = tasks.get()
