"""Threads and processes that work for this one. The core releases the GIL, so indexing needs threads alone."""

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
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

Task = TypeVar("Task")
Slot = TypeVar("Slot")
Result = TypeVar("Result")
_AT_EXIT = 5.0  # seconds that the end of the process waits for a thread to finish its task
_POLL = 1.0  # seconds between two checks of the parent
_AHEAD = 4  # tasks for each process that are computed before their turn, at most
_END = object()


def cores() -> int:
    """Return the number of cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# ---- threads ----------------------------------------------------------------------------------------------------


def in_order(
    work: Callable[[Task, Slot], Result], tasks: Iterable[Task], *, workers: int, slots: list[Slot]
) -> Generator[Result, None, None]:
    """Yield `work(task, slot)` for every task, in the order of the tasks, computed by `workers` threads.

    A slot is memory in which a task works and to which its result may refer. It is free again when the consumer asks
    for the next result, so at most `len(slots)` results exist. An exception is raised in place of its task's result.
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
    """Yield items, of which a thread makes up to `most` ahead; an exception of the iterator is raised in its turn."""
    iterator = iter(items)
    makers: Makers[None, Any] = Makers(lambda _: next(iterator, _END), 1, "mmapds-ahead")
    try:
        yield from iter(partial(next, _results(makers.give, repeat(None), most)), _END)
    finally:
        makers.end()
        if isinstance(items, Generator):
            items.close()


def _results(give: "Callable[[Task], Future[Result]]", tasks: Iterable[Task], most: int) -> Iterator[Result]:
    """Yield what is made of tasks, in their order, `most` of them at a time; raise what their iterator raises last."""
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
        failure = None  # its traceback holds this frame


_Tasks = SimpleQueue["tuple[Future[Any], Any] | None"]


class Makers(Generic[Task, Result]):
    """Threads that make one thing of each task, until nobody refers to this. Daemons, as a task may never end.

    Each thread first calls `start` with its number, one thread after another; what that raises is raised here.
    """

    def __init__(
        self, make: Callable[[Task], Result], count: int, name: str, start: Callable[[int], object] = lambda _: None
    ) -> None:
        self._todo: _Tasks = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self.stop = weakref.finalize(self, _stop, self._todo)  # threads end after their task; nobody waits for them
        try:
            for number in range(count):
                started: Future[Any] = Future()
                arguments = started, start, number, make, self._todo  # not this object, which threads would keep
                thread = threading.Thread(target=_make_all, args=arguments, name=f"{name}-{number}", daemon=True)
                thread.start()
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

    def end(self) -> None:
        """End the threads, and wait until they have."""
        self.stop()
        for thread in self._threads:
            thread.join()


_running: "weakref.WeakKeyDictionary[threading.Thread, Callable[[], object]]" = weakref.WeakKeyDictionary()
"""What stops each thread that may run."""


@atexit.register
def _join_all() -> None:
    # A thread that runs while the interpreter is taken down may end the process with an error. Finalizers come too late
    # if anything had one before this module was imported, as torch has.
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


# ---- processes --------------------------------------------------------------------------------------------------


def in_processes(work: Callable[[Task], Result], tasks: Sequence[Task], count: int) -> Generator[Result, None, None]:
    """Yield `work(task)` for every task, in order, computed by processes; BrokenExecutor if one of these ends."""
    from concurrent.futures import ProcessPoolExecutor  # start-up time: most processes compute nothing in others

    with ProcessPoolExecutor(count, initializer=_begin, initargs=(work,)) as pool:
        try:  # few at a time, as `pool.map` would hold all tasks of a large dataset in memory
            yield from _results(lambda task: pool.submit(_compute, task), tasks, _AHEAD * count)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


_work: Callable[[Any], Any]  # what this process computes, if it is a worker


def _begin(work: Callable[[Any], Any]) -> None:
    global _work
    _work = work
    # A broken pool ends its workers by SIGTERM. A handler of the parent's that raises would not end one that sends.
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
    """Return an error as one that another process can have: some cannot be pickled."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def is_worker() -> bool:
    """Return whether this process was started by multiprocessing, as loaders start theirs."""
    process = sys.modules.get("multiprocessing.process")  # which every such process has loaded
    # Its parent_process() is known only when what it was given has been unpickled.
    return process is not None and process.current_process().name != "MainProcess"


def end_with_parent() -> None:
    """From now on, end this worker process when its parent ends, which may be killed: it would wait for it for ever."""
    import multiprocessing  # start-up time: only workers come here, and they have it loaded

    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent, os.getppid()), daemon=True).start()


def _end_with(parent: Any, number: int) -> None:
    # The parent seems alive while a process is that was forked of it later, so the number counts too.
    while parent.is_alive() and os.getppid() == number:
        time.sleep(_POLL)
    os._exit(1)
