"""Run tasks in threads and processes. The core releases the GIL, so indexing needs only threads."""

import atexit
import os
import pickle
import signal
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from itertools import cycle, repeat
from operator import call
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

Task = TypeVar("Task")
Slot = TypeVar("Slot")
Result = TypeVar("Result")
_AT_EXIT = 5.0  # seconds to wait, at the end of the process, for a thread to finish its task
_POLL = 1.0  # seconds between two checks of the parent
_AHEAD = 4  # tasks computed ahead for each process, at most
_END = object()


def cores() -> int:
    """Return the number of cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def uninterrupted(work: Callable[[], Result]) -> Result:
    """Return the result of work that Ctrl-C does not break off: it interrupts the main thread, which only waits."""
    if threading.current_thread() is not threading.main_thread():
        return work()
    found: Future[Result] = Future()
    threading.Thread(target=fulfil, args=(found, call, work), name="mmapds-uninterrupted", daemon=True).start()
    return found.result()


# ---- threads ----------------------------------------------------------------------------------------------------


def in_order(
    work: Callable[[Task, Slot], Result], tasks: Iterable[Task], *, workers: int, slots: list[Slot]
) -> Generator[Result, None, None]:
    """Yield `work(task, slot)` for every task, in the order of the tasks, computed by `workers` threads.

    A slot is memory for a task, to which its result may refer. It is reused when the consumer asks for the next result,
    so at most `len(slots)` results exist. An exception is raised in place of its task's result.
    """
    if workers == 1:
        for task in tasks:
            yield work(task, slots[0])
        return
    makers: Makers[tuple[Task, Slot], Result] = Makers(lambda given: work(*given), workers, "mmapds-worker")
    try:
        yield from _results(makers.give, zip(tasks, cycle(slots), strict=False), len(slots))
    finally:
        makers.end()


def in_threads(work: Callable[[Task], Result], tasks: Sequence[Task], *, workers: int) -> Iterator[Result]:
    """Yield `work(task)` for every task, in order, computed by threads."""
    workers = max(min(workers, len(tasks)), 1)
    return in_order(lambda task, _: work(task), tasks, workers=workers, slots=[None] * (workers + 2))


def ahead(items: Iterable[Result], most: int = 4) -> Generator[Result, None, None]:
    """Yield items; a thread prefetches up to `most`. An exception of the iterator is raised in its turn."""
    iterator = iter(items)
    makers: Makers[None, Any] = Makers(lambda _: next(iterator, _END), 1, "mmapds-ahead")
    try:
        yield from iter(partial(next, _results(makers.give, repeat(None), most)), _END)
    finally:
        makers.end()
        if isinstance(items, Generator):
            items.close()


def _results(give: "Callable[[Task], Future[Result]]", tasks: Iterable[Task], most: int) -> Iterator[Result]:
    """Yield the results of tasks, in order, with `most` tasks in flight; raise an error of their iterator last."""
    waiting: deque[Future[Result]] = deque()
    left, failure = iter(tasks), None
    try:
        while failure is None:
            if len(waiting) == most:
                yield waiting.popleft().result()
            try:
                waiting.append(give(next(left)))
            except StopIteration:
                break
            except Exception as error:
                failure = error
        while waiting:
            yield waiting.popleft().result()
        if failure is not None:
            raise failure
    finally:
        failure = None  # break the cycle: its traceback holds this frame


_Tasks = SimpleQueue["tuple[Future[Any], Any] | None"]


class Makers(Generic[Task, Result]):
    """A pool of threads that call `make` for each task. They end when this object is deleted.

    Threads are daemons: a task may never end. Each first calls `start` with its number; its errors are raised here.
    """

    def __init__(
        self, make: Callable[[Task], Result], count: int, name: str, start: Callable[[int], object] = lambda _: None
    ) -> None:
        self._todo: _Tasks = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self.stop = weakref.finalize(self, _stop, self._todo)  # threads end after their task; nothing joins them
        try:
            for number in range(count):
                started: Future[Any] = Future()
                arguments = started, start, number, make, self._todo  # not self, which threads would keep alive
                thread = threading.Thread(target=_make_all, args=arguments, name=f"{name}-{number}", daemon=True)
                thread.start()
                self._threads.append(thread)
                _running[thread] = self.stop
                started.result()
        except BaseException:
            self.stop()
            raise

    def give(self, task: Task) -> "Future[Result]":
        """Queue a task; return its future."""
        future: Future[Result] = Future()
        self._todo.put((future, task))
        return future

    def end(self) -> None:
        """End the threads, and wait until they have."""
        self.stop()
        for thread in self._threads:
            thread.join()


_running: "weakref.WeakKeyDictionary[threading.Thread, Callable[[], object]]" = weakref.WeakKeyDictionary()
"""The function that stops each running thread."""


@atexit.register
def _join_all() -> None:
    # A thread that runs while the interpreter shuts down may crash the process. Finalizers run too late if another
    # module, such as torch, registered one before this import.
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
        del given  # free its memory while this thread waits
    todo.put(None)  # for the next thread


def _stop(todo: _Tasks) -> None:
    with suppress(Empty):
        while True:
            todo.get_nowait()
    todo.put(None)


def fulfil(future: "Future[Result]", make: Callable[[Task], Result], task: Task) -> None:
    """Set the result of a future to `make(task)`, or its exception to the error."""
    try:
        future.set_result(make(task))
    except BaseException as error:  # future.result() raises it
        future.set_exception(error)
        del future, task  # the error's traceback would keep them


# ---- processes --------------------------------------------------------------------------------------------------


def in_processes(work: Callable[[Task], Result], tasks: Sequence[Task], count: int) -> Generator[Result, None, None]:
    """Yield `work(task)` for every task, in order, from processes; raise BrokenExecutor if a process dies."""
    from concurrent.futures import ProcessPoolExecutor  # start-up time: few users need processes

    with ProcessPoolExecutor(count, initializer=_begin, initargs=(work,)) as pool:
        try:  # few at a time, as `pool.map` would hold all tasks of a large dataset in memory
            yield from _results(lambda task: pool.submit(_compute, task), tasks, _AHEAD * count)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


_work: Callable[[Any], Any]  # the function of this process, if it is a worker


def _begin(work: Callable[[Any], Any]) -> None:
    global _work
    _work = work
    # A broken pool sends its workers SIGTERM. The parent's handler may raise, which would not end a sending worker.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    end_with_parent()


def _compute(task: Any) -> Any:
    try:
        return _work(task)
    except Exception as error:
        sent = sendable(error)
        if sent is error:
            raise
        raise sent from error


def sendable(error: BaseException) -> BaseException:
    """Return an error that can be pickled: itself, or a replacement."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def is_worker() -> bool:
    """Return whether multiprocessing started this process, such as a worker of a loader."""
    process = sys.modules.get("multiprocessing.process")  # every such process has loaded it
    # parent_process() is unset until the arguments of the process are unpickled.
    return process is not None and process.current_process().name != "MainProcess"


def end_with_parent() -> None:
    """End this worker process when its parent ends. Otherwise it would wait for ever for a killed parent."""
    import multiprocessing  # start-up time: only workers need it, and they have it loaded

    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent, os.getppid()), daemon=True).start()


def _end_with(parent: Any, number: int) -> None:
    # The parent seems alive while a later fork of it lives, so compare the process number too.
    while parent.is_alive() and os.getppid() == number:
        time.sleep(_POLL)
    os._exit(1)
