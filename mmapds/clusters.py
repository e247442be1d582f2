"""Building on a cluster: an executor runs tasks, and each task leaves a part of the file to write.

A task covers one or several whole sources. The name of its part is a hash of all that decides what is in it, and the
part takes that name when it is complete. So a part that is there is kept, and a task may run twice, also at the same
time. The engine behind the executor retries what it loses; nothing here does.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, NamedTuple

from xxhash import xxh3_128

from . import __version__
from .errors import ColumnError, DecodeError, Error, FormatError, as_command, either, is_command, shortened
from .storage.sources import StrPath, reason
from .storage.workers import sendable

GROUP = 256 << 20
"""Bytes of sources that are one task, at least; see `groups`."""
_TASKS = 1000  # of one file, about, at most


class Task(NamedTuple):
    """What one worker does."""

    path: str
    """Of its part, absolute."""
    function: Callable[..., object]
    """Writes the part: a function of a module, as workers import it. It takes the path, then the arguments."""
    arguments: tuple[Any, ...]
    """Can be pickled. The first one is a sequence of the sources."""


class Engine(NamedTuple):
    """What runs the tasks of a file."""

    executor: Any
    """Has `submit(function, *arguments)`, which returns a future of `concurrent.futures`."""
    directory: str | None = None
    """For the parts; by default that of the file, with `.parts` behind its name."""
    workers: int = 1
    """Threads of a task."""

    @classmethod
    def of(cls, executor: Any, directory: StrPath | None, workers: int = 1) -> "Engine | None":
        """Return an engine of a user's arguments; None without an executor. Raise Error for what is no executor."""
        if executor is None:
            if directory is not None:
                raise Error(f"parts = {shortened(directory)}, expected an executor with it, found none")
            return None
        if isinstance(executor, type) or not hasattr(executor, "submit"):
            raise Error(f"executor = {shortened(executor)}, expected an object with submit(), such as a pool")
        return cls(executor, None if directory is None else os.fspath(directory), workers)

    def directory_for(self, target: str) -> str:
        """Return the directory for the parts of a file."""
        return os.path.abspath(self.directory or f"{target}.parts")

    def run(self, tasks: Iterable[Task], target: str, report: Callable[[Task], object]) -> None:
        """Return when the parts of all tasks are there.

        Args:
          report: called with each task once its part is there.
        Raises:
          Error: what a task raised, at once; the engine lost one; or there can be no directory for parts.
        """
        from concurrent.futures import as_completed  # start-up time: most builds have no engine

        place, directory, run = either("--parts DIR", "parts=..."), self.directory_for(target), os.urandom(8).hex()
        try:
            os.makedirs(directory, exist_ok=True)
        except OSError as error:
            raise Error(
                f"{directory}: cannot make a directory for parts ({reason(error)}); give another place with {place}"
            ) from None
        running: dict[Any, Task] = {}
        try:
            for task in tasks:
                if os.path.exists(task.path):
                    report(task)
                    continue
                with _errors_of_engine(task):
                    running[self.executor.submit(run_task, __version__, run, is_command(), *task)] = task
            for future in as_completed(running):
                task = running.pop(future)  # Dask keeps what is held, and computes it again where its worker died
                with _errors_of_engine(task):
                    failure = future.result()
                if failure is not None:
                    raise failure
                if not os.path.exists(task.path):
                    raise Error(
                        f"{task.path}: expected the part that a worker wrote, found none; give a directory that all "
                        f"hosts share with {place}"
                    )
                report(task)
        finally:
            for future in running:
                future.cancel()

    def remove_parts(self, tasks: Iterable[Task], target: str) -> None:
        """Remove the parts of a file that is in its place; in a directory that the user chose, only these tasks'."""
        directory = self.directory_for(target)
        own = [os.path.basename(task.path) for task in tasks]
        for name in os.listdir(directory) if self.directory is None else own:
            with suppress(OSError):  # a task that runs twice may have renamed it just now
                os.unlink(os.path.join(directory, name))
        with suppress(OSError):  # other files are there
            os.rmdir(directory)


def run_task(version: str, _run: str, as_a_command: bool, path: str, function: Any, arguments: Any) -> Any:
    """Run a task in a worker, on any host; return the error that it met, or None.

    An error is returned, as engines would retry or disguise what is raised.

    Args:
      version: of mmapds where the build was started.
      _run: differs in each build, as Dask takes equal calls for one.
      as_a_command: whether messages name options as a command line takes them.
    """
    host = f" (on host {os.uname().nodename})"
    if version != __version__:
        return Error(f"mmapds: expected version {version}, found {__version__}; install the same version there{host}")
    try:
        with as_command() if as_a_command else nullcontext():
            if not os.path.exists(path):  # it may have been written by a run whose answer was lost
                function(path, *arguments)
    except (FormatError, ColumnError, DecodeError) as error:  # of the data, which are the same on all hosts
        return error
    except Error as error:
        return type(error)(f"{error}{host}")
    except OSError as error:
        return Error(f"{error.filename or path}: {reason(error)}{host}")
    except Exception as error:  # of a decoder of the user's
        return sendable(error)
    return None


@contextmanager
def _errors_of_engine(task: Task) -> Iterator[None]:
    """Say of an error in a block that the engine raised it."""
    try:
        yield
    except Exception as error:
        source, said = task.arguments[0][0].path, str(error).partition("\n")[0]
        raise Error(
            f"executor: lost the task of {source}: {type(error).__name__}: {said}; run again, which builds only "
            "missing parts"
        ) from error


def part_name(covered: Sequence[Any], suffix: str) -> str:
    """Return the name of a part.

    Args:
      covered: all that decides what is in it, as JSON can hold it.
      suffix: of the name.
    """
    return xxh3_128(json.dumps([*covered, __version__]).encode()).hexdigest() + suffix


def groups(sizes: Sequence[int]) -> Iterator[range]:
    """Yield the numbers of the sources of each task: neighbours of `GROUP` bytes together, or a thousandth of all.

    Args:
      sizes: of all sources, in bytes.
    """
    least, begin, size = max(GROUP, sum(sizes) // _TASKS), 0, 0
    for number, each in enumerate(sizes):
        size += each
        if size >= least:
            yield range(begin, number + 1)
            begin, size = number + 1, 0
    if begin < len(sizes):
        yield range(begin, len(sizes))
