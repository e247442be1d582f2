"""Sending tasks to an executor, and those again that it lost, until the parts of all are there.

An executor is anything with `submit(function, *arguments)` that returns a future of `concurrent.futures`, or a function
that returns such an executor, which is called again where one broke.
"""

import os
import re
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, Future, wait
from contextlib import suppress
from typing import Any, Generic, Protocol, TypeVar

from ..errors import Error, either
from ..storage.lock import clean_up, remove_leftovers
from ..storage.sources import INDEX_SUFFIX, reason
from .tasks import Outcome

P = TypeVar("P")
P_co = TypeVar("P_co", covariant=True)

_WINDOW = 256  # tasks that an engine has at a time
_ATTEMPTS = 3
_FAREWELL = 5.0  # seconds that the workers of a pool have to end
_PATIENCE = 5.0  # seconds after which parts are looked for whose futures say nothing
_ENGINES_FAIL_WITH = {
    *("KilledWorker", "CommClosedError", "FutureCancelledError"),  # Dask
    *("WorkerCrashedError", "NodeDiedError", "ObjectLostError", "OwnerDiedError", "RayActorError"),  # Ray
    *("TerminatedWorkerError", "WorkerLost", "ManagerLost"),  # loky, and Parsl
    "UncompletedJobError",  # submitit
}
"""What engines raise for a worker that is gone, by name, as they are not imported here."""
_REFUSALS = (OSError, RuntimeError)
"""What executors raise where there are too few descriptors, processes, threads or semaphores; and after their end."""
_PART = re.compile(r"\.?([0-9a-f]{32}\.mm[ax])")
"""The name of a part, which begins those of its temporaries and, behind a dot, of the hidden index of a conversion."""


class Sendable(Protocol[P_co]):
    """What a driver sends out: see `tasks.Task`."""

    @property
    def key(self) -> str:
        """The name of the part, which follows from all that decides what is in it."""

    @property
    def path(self) -> str:
        """The path of the part."""

    @property
    def title(self) -> str:
        """What messages call the task."""

    def part(self) -> P_co | None:
        """Return the part, if it is there and whole."""

    def call(self) -> tuple[Any, ...]:
        """Return the function that builds the part elsewhere, and its arguments; it returns an `Outcome` as a text."""


class Driver(Generic[P]):
    """Sends tasks to an executor, as many at a time as a window holds, and those again that it lost.

    Args:
      taken: called with each task whose part is there, and the part.
    """

    def __init__(self, executor: Any, taken: Callable[[Any, P], object]) -> None:
        is_one = hasattr(executor, "submit") and not isinstance(executor, type)  # a class is a function that makes one
        self._make = None if is_one else executor
        self._executor = executor if self._make is None else _made(executor)
        self._taken = taken
        self._parts: dict[str, P] = {}
        self._running: dict[Future[str], tuple[Sendable[P], int]] = {}
        self._left: deque[tuple[Sendable[P], int]] = deque()

    def run(self, tasks: Sequence[Sendable[P]]) -> dict[str, P]:
        """Return the part of each task, by its key."""
        self._left.extend((task, 1) for task in tasks if not self._take(task))
        try:
            while self._left or self._running:
                while self._left and len(self._running) < _WINDOW:
                    self._submit(*self._left.popleft())
                self._collect()
        finally:
            for future in self._running:
                future.cancel()
            if self._make is not None and hasattr(self._executor, "shutdown"):
                workers = _workers(self._executor)
                self._executor.shutdown(wait=False)
                if not self._running:
                    _see_ended(workers)
        return self._parts

    def _take(self, task: Sendable[P]) -> bool:
        """Take the part of a task, if it is there; tasks that cover the same have one part."""
        if task.key not in self._parts:
            part = task.part()
            if part is None:
                return False
            self._parts[task.key] = part
            self._taken(task, part)
        return True

    def _submit(self, task: Sendable[P], attempt: int) -> None:
        """Send a task; where the executor broke for good, as pools of processes do, to the next one."""
        try:
            future = self._executor.submit(*task.call())
        except BrokenExecutor as error:
            if self._make is None:
                raise Error(
                    f"executor: {type(error).__name__}: {error}; run again, which builds only missing parts (or give "
                    "a function that makes an executor)"
                ) from error
            self._executor = _made(self._make)
            self._lost(task, attempt, error)
            return
        except BaseException as error:  # also of a signal, while a pool starts its workers
            if self._make is not None:
                # Of a pool that cannot start all of them, this process would wait for those that it has for ever.
                for process in _workers(self._executor):
                    process.kill()
            if isinstance(error, _REFUSALS):
                raise _refused(error) from error
            raise
        self._running[future] = task, attempt

    def _collect(self) -> None:
        """Wait until a task ends, and take its part."""
        done, _ = wait(self._running, timeout=_PATIENCE, return_when=FIRST_COMPLETED)
        for future in done:
            task, attempt = self._running.pop(future)
            try:
                outcome = Outcome.decode(future.result())
            except (Exception, CancelledError) as error:
                if not _is_of_engine(error):
                    raise
                self._lost(task, attempt, error)
                continue
            if outcome.is_lost:
                self._lost(task, attempt, Error(outcome.error))
                continue
            outcome.raise_error()
            if not self._take(task):
                self._lost(task, attempt, Error(f"{task.path}: expected the part of a task, found none that is whole"))
        if not done:
            for future, (task, _) in list(self._running.items()):
                if os.path.exists(task.path) and self._take(task):
                    del self._running[future]

    def _lost(self, task: Sendable[P], attempt: int, error: BaseException) -> None:
        """Send a task again that the engine lost; a few times."""
        if self._take(task):  # it was done, and only the answer was lost
            return
        if attempt >= _ATTEMPTS:
            raise Error(
                f"executor: lost the task of {task.title} {attempt} times, the last time with "
                f"{type(error).__name__}: {error}; run again, which builds only missing parts"
            ) from error
        self._left.append((task, attempt + 1))


def _made(make: Callable[[], Any]) -> Any:
    """Return an executor of a function that makes one.

    Raises:
      Error: the system refuses it something.
    """
    try:
        return make()
    except _REFUSALS as error:
        raise _refused(error) from error


def _refused(error: OSError | RuntimeError) -> Error:
    return Error(f"executor: {type(error).__name__}: {error}; give another one, or leave it out")


def _workers(executor: Any) -> list[Any]:
    """Return the workers of a pool of processes; none of another executor."""
    return list((getattr(executor, "_processes", None) or {}).values())


def _see_ended(workers: list[Any]) -> None:
    """Let the workers of a pool that was shut down, and has no task left, end, and end those that do not.

    One that was killed may have locked the queue that the others wait for, and this process would wait for them.
    """
    if not workers:
        return
    from multiprocessing import connection  # start-up time: who has workers has it loaded

    left, until = {process.sentinel for process in workers}, time.monotonic() + _FAREWELL
    while left and (seconds := until - time.monotonic()) > 0:
        left.difference_update(connection.wait(left, seconds))
    for process in workers:
        process.kill()


def make_directory(directory: str) -> None:
    """Make the directory for parts, if it is not there.

    Raises:
      Error: the system refuses it.
    """
    try:
        os.makedirs(directory, exist_ok=True)
    except OSError as error:
        raise Error(
            f"{directory}: cannot make a directory for parts ({reason(error)}); give another place with "
            f"{either('--parts DIR', 'parts=...')}"
        ) from None


def directory_of(target: str) -> str:
    """Return the directory beside a file where its parts lie, unless the user gives another."""
    return f"{os.path.abspath(target)}.parts"


def parts_of(target: str) -> list[str]:
    """Return the paths of the parts in the directory beside a file, those of builds that were killed among them."""
    return sorted(_parts_in(directory_of(target)))


def _parts_in(directory: str) -> set[str]:
    """Return the paths of parts of which a directory has anything."""
    try:
        names = os.listdir(directory)
    except OSError:  # there is none
        return set()
    return {os.path.join(directory, part[1]) for part in map(_PART.match, names) if part is not None}


def remove_parts(paths: Collection[str], directory: str) -> None:
    """Remove parts, which lie in a directory, and what killed workers left of them, once nothing needs them any more.

    Args:
      paths: of the parts, as the directory and a name.
    """
    for path in paths:
        with suppress(OSError):  # it was never written, or may not be removed
            os.unlink(path)
    for path in _parts_in(directory).intersection(paths):  # few: each takes a look at all of the directory
        clean_up(path)
        if not path.endswith(INDEX_SUFFIX):  # an array file, whose index is locked, too
            clean_up(path + INDEX_SUFFIX)
        remove_leftovers(path)
    with suppress(OSError):  # it was there before, and has other files
        os.rmdir(directory)


def remove_dead_parts(target: str) -> None:
    """Remove what builds by an engine left beside a file when they were killed; the caller holds its lock."""
    if has_parts(target):
        remove_parts(parts_of(target), directory_of(target))


def has_parts(target: str) -> bool:
    """Whether there is a directory for parts beside a file; it may be empty."""
    return os.path.isdir(directory_of(target))


def _is_of_engine(error: BaseException) -> bool:
    """Whether an error says that a task was dropped, or a worker or a node is gone."""
    named = any(kind.__name__ in _ENGINES_FAIL_WITH for kind in type(error).__mro__)
    return named or isinstance(error, BrokenExecutor | CancelledError)
