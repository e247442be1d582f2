"""Build on a cluster: an executor runs tasks, and each task writes a part of the file.

Pools of processes, Dask's `Client.get_executor()`, loky, Parsl and mpi4py are executors: pass them directly.

A task covers one or several whole sources. The name of its part is a hash of everything that decides its content. A
part gets this name when it is complete. So an existing part is kept, and a task may run twice, even at the same time.
The engine behind the executor retries lost tasks; this module does not.
"""

import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from importlib import import_module
from operator import methodcaller
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from xxhash import xxh3_128

from .. import __version__
from ..errors import ColumnError, DecodeError, Error, FormatError, as_command, either, is_command, shortened
from ..storage.sources import StrPath, reason
from ..storage.workers import fulfil, sendable

if TYPE_CHECKING:
    from concurrent.futures import Future

GROUP = 256 << 20  # bytes of sources in a task, at least; see `groups`
_TASKS = 1000  # tasks for one file, at most (about)


def dask(address: str) -> Any:
    """Return an executor of a Dask cluster.

    Args:
      address: of its scheduler, such as "tcp://10.0.0.1:8786".
    Raises:
      ModuleNotFoundError: distributed is not installed; the message has the command.
    """
    return _imported("distributed").Client(address).get_executor()


def ray(address: str | None = None, **options: Any) -> Any:
    """Return an executor of a Ray cluster.

    Args:
      address: of the cluster, such as "auto"; by default the cluster of this process, or a new local one.
      **options: for `ray.remote`, for every task: `num_cpus`, `resources`, `max_retries`, `runtime_env`.
    Raises:
      ModuleNotFoundError: ray is not installed; the message has the command.
    """
    engine = _imported("ray")
    if not engine.is_initialized():
        engine.init(address=address)
    remote = engine.remote(**options) if options else engine.remote
    return SimpleNamespace(submit=lambda function, *arguments: remote(function).remote(*arguments).future())


def submitit(folder: str, **parameters: Any) -> Any:
    """Return an executor whose tasks are jobs of Slurm, each submitted by submitit. Jobs are not cancelled.

    Args:
      folder: for logs and results; all nodes must share it.
      **parameters: of the jobs, for `AutoExecutor.update_parameters`: `timeout_min`, `slurm_partition`.
    Raises:
      ModuleNotFoundError: submitit is not installed; the message has the command.
    """
    engine = _imported("submitit").AutoExecutor(folder=folder)
    engine.update_parameters(**parameters)
    return SimpleNamespace(submit=lambda function, *arguments: _future(engine.submit(function, *arguments)))


def _future(job: Any) -> "Future[Any]":
    """Return a future with the result or the error of a job's `result()`."""
    from concurrent.futures import Future  # start-up time: most builds have no engine

    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()
    threading.Thread(target=fulfil, args=(future, methodcaller("result"), job), daemon=True).start()
    return future


def _imported(package: str) -> Any:
    try:
        return import_module(package)
    except ModuleNotFoundError:
        raise ModuleNotFoundError(f"{package}: not installed; run: pip install {package}", name=package) from None


class Task(NamedTuple):
    """The work of one worker."""

    path: str  # of the part to write, absolute
    function: Callable[..., object]
    """Writes the part, from the path and the arguments. A function of a module, so that workers can import it."""
    arguments: tuple[Any, ...]  # picklable; the first one is the sequence of sources


class Engine(NamedTuple):
    """An executor with its settings."""

    executor: Any  # has `submit(function, *arguments)`, which returns a future of `concurrent.futures`
    directory: StrPath | None = None  # for the parts; by default the file's name plus `.parts`
    workers: int = 1  # threads of a task

    @classmethod
    def of(cls, executor: Any, directory: StrPath | None, workers: int = 1) -> "Engine | None":
        """Check the user's arguments, and return an engine; None without an executor."""
        if executor is None and directory is not None:
            raise Error(f"parts = {shortened(directory)}, expected an executor with it, found none")
        if executor is None:
            return None
        if isinstance(executor, type) or not hasattr(executor, "submit"):
            raise Error(f"executor = {shortened(executor)}, expected an object with submit(), such as a pool")
        return cls(executor, directory, workers)

    def directory_for(self, target: str) -> str:
        """Return the directory for the parts of a file."""
        return os.path.abspath(self.directory or f"{target}.parts")

    def run(self, tasks: Iterable[Task], target: str, report: Callable[[Task], object]) -> None:
        """Run tasks until the parts of all exist; call `report` with each task when its part exists."""
        from concurrent.futures import as_completed  # start-up time: most builds have no engine

        directory, run = self.directory_for(target), os.urandom(8).hex()
        try:
            os.makedirs(directory, exist_ok=True)
        except OSError as error:
            what = f"cannot make a directory for parts ({reason(error)}); give another place"
            raise Error(f"{directory}: {what}") from None
        running: dict[Any, Task] = {}
        try:
            for task in tasks:
                if os.path.exists(task.path):
                    report(task)
                    continue
                with _errors_of_engine(task):
                    running[self.executor.submit(run_task, __version__, run, *task, is_command())] = task
            for future in as_completed(running):
                task = running.pop(future)  # drop it: Dask computes a held future again if its worker dies
                with _errors_of_engine(task):
                    failure = future.result()
                if failure is not None:
                    raise failure
                if not os.path.exists(task.path):
                    shared = f"give a directory that all hosts share with {either('--parts DIR', 'parts=...')}"
                    raise Error(f"{task.path}: expected the part that a worker wrote, found none; {shared}")
                report(task)
        finally:
            for future in running:
                future.cancel()

    def remove_parts(self, tasks: Iterable[Task], target: str) -> None:
        """Remove the parts of a finished file; in the user's own directory, only the parts of these tasks."""
        directory = self.directory_for(target)
        own = [os.path.basename(task.path) for task in tasks]
        for name in os.listdir(directory) if self.directory is None else own:
            with suppress(OSError):  # a second run of the task may have renamed it just now
                os.unlink(os.path.join(directory, name))
        with suppress(OSError):  # it holds other files
            os.rmdir(directory)


def run_task(version: str, _run: str, path: str, function: Any, arguments: Any, is_of_command: bool = False) -> Any:
    """Run a task in a worker, on any host; return its error, as an engine would retry after a raised one.

    `_run` is unique to each build: Dask would merge equal calls.
    """
    host = f" (on host {os.uname().nodename})"
    if version != __version__:
        return Error(f"mmapds: expected version {version}, found {__version__}; install the same version there{host}")
    try:
        if not os.path.exists(path):  # an earlier run may have written it, with its answer lost
            with as_command() if is_of_command else nullcontext():
                function(path, *arguments)
    except (FormatError, ColumnError, DecodeError) as error:  # from the data, which are the same on all hosts
        return error
    except Error as error:
        return type(error)(f"{error}{host}")
    except OSError as error:
        return Error(f"{error.filename or path}: {reason(error)}{host}")
    except Exception as error:  # from a user's decoder
        return sendable(error)
    return None


@contextmanager
def _errors_of_engine(task: Task) -> Iterator[None]:
    """Turn an error of the block into an Error that blames the engine."""
    try:
        yield
    except Exception as error:
        source, said = task.arguments[0][0].path, str(error).partition("\n")[0]
        what = f"executor: lost the task of {source}: {type(error).__name__}: {said}"
        raise Error(f"{what}; run again, which builds only missing parts") from error


def part_name(covered: Sequence[Any], suffix: str) -> str:
    """Return the name of a part: a hash of `covered`, as JSON, which decides the content of the part."""
    return xxh3_128(json.dumps([*covered, __version__]).encode()).hexdigest() + suffix


def groups(sizes: Sequence[int]) -> Iterator[range]:
    """Yield the sources of each task: neighbours with `GROUP` bytes, or a thousandth of all bytes if that is more."""
    least, begin, size = max(GROUP, sum(sizes) // _TASKS), 0, 0
    for number, each in enumerate(sizes):
        size += each
        if size >= least:
            yield range(begin, number + 1)
            begin, size = number + 1, 0
    if begin < len(sizes):
        yield range(begin, len(sizes))
