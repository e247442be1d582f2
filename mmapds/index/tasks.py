"""Parts of an index that other processes build: a task covers some sources, or a stretch of one, and leaves an index.

A task is a JSON text, and `run_task` is a function of a module, so any engine can send both. A part lies under a name
that follows from what it covers, is written beside its place and renamed, and says what it is of. So a task may run
twice, or at the same time as another run of it.
"""

import errno
import json
import os
import platform
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

from xxhash import xxh3_128

from .. import __version__, errors, formats
from ..errors import Error, FormatError
from ..formats.measuring import Measuring
from ..storage.index_file import Index
from ..storage.processes import end_with_parent
from ..storage.roots import Roots
from ..storage.sources import INDEX_SUFFIX, Source, changed, inspect, reason
from .write import Job, Scan, write

_LOST = (errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EHOSTDOWN)
"""What a system says where a disk or a server of files fails, not the data."""


class Task(NamedTuple):
    """What a part is to cover, and how."""

    sources: tuple[Source, ...]
    """Consecutive ones, with absolute paths; a single one may begin and end at a line."""
    format_name: str
    parameters: dict[str, Any]
    measuring: dict[str, Any]
    """See `Measuring.describe`."""
    hashes: bool
    workers: int
    directory: str
    """Where the part is to lie."""

    @classmethod
    def of(cls, job: Job, numbers: range, stretch: tuple[int, int] | None, workers: int, directory: str) -> "Task":
        """Return the task for some sources of a job, or for a stretch of one."""
        sources = [job.sources[number]._replace(path=os.path.abspath(job.sources[number].path)) for number in numbers]
        if stretch is not None:
            sources = [source._replace(begin=stretch[0], end=stretch[1]) for source in sources]
        listed, whole = job.chosen.per_source, dict(job.parameters)
        for name in listed:
            whole[name] = whole[name][numbers.start : numbers.stop]
        hashes = job.hashes and stretch is None
        described = job.measuring.describe()
        return cls(tuple(sources), job.chosen.name, whole, described, hashes, workers, directory)

    @property
    def size(self) -> int:
        """Bytes that a scan reads."""
        return sum(source.stop - source.begin for source in self.sources)

    @property
    def key(self) -> str:
        """The name of the part, which follows from all that decides what is in it."""
        return key_of(self[:-2])

    @property
    def path(self) -> str:
        """The path of the part."""
        return os.path.join(self.directory, self.key + INDEX_SUFFIX)

    def part(self) -> Index | None:
        """Return the part, if it is there and whole."""
        try:
            index = Index(self.path, Roots(named=[source.path for source in self.sources]))
            with index.reporting_malformed_metadata():
                if index.metadata["part"]["key"] != self.key:
                    return None
            index.verify_sections()
        except Error:
            return None
        return index

    @property
    def title(self) -> str:
        """What messages call the task."""
        return self.sources[0].path

    def call(self) -> tuple[Callable[[str], str], str]:
        """Return the function that builds the part elsewhere, and its argument."""
        return run_task, self.encode()

    def encode(self) -> str:
        """Return the task as a text."""
        return encoded(self)

    @classmethod
    def decode(cls, text: str) -> "Task":
        """Return the task of a text.

        Raises:
          Error: this process has another mmapds than the one that wrote it.
        """
        sources, *rest = decoded(text)
        return cls(tuple(Source(*source) for source in sources), *rest)


def key_of(covered: Iterable[Any]) -> str:
    """Return the name of the part that a task leaves, from all that decides what is in it."""
    return xxh3_128(json.dumps([*covered, __version__], sort_keys=True).encode()).hexdigest()


def encoded(task: Sequence[Any]) -> str:
    """Return a task as a text."""
    return json.dumps({"version": __version__, "command": errors.is_command(), "task": task})


def decoded(text: str) -> list[Any]:
    """Return what a task has, of its text.

    Raises:
      Error: this process has another mmapds than the one that wrote it.
    """
    given = json.loads(text)
    if given["version"] != __version__:
        raise Error(
            f"mmapds: expected version {given['version']}, as where the build was started, found {__version__} in "
            f"{os.path.dirname(__file__)}; install the same version there"
        )
    found: list[Any] = given["task"]
    return found


class Outcome(NamedTuple):
    """What a task says when it ends."""

    key: str = ""
    error: str = ""
    """A message; empty if the part is there."""
    kind: str = ""
    """The class of the error; see `mmapds.errors`."""
    is_lost: bool = False
    """Whether the machine failed, so that another run may do better."""

    def encode(self) -> str:
        """Return the outcome as a text."""
        return json.dumps(self)

    @classmethod
    def decode(cls, text: str) -> "Outcome":
        """Return the outcome of a text."""
        return cls(*json.loads(text))

    def raise_error(self) -> None:
        """Raise the error that a task met, if it met one."""
        if self.error:
            kind = getattr(errors, self.kind, Error)
            raise kind(self.error)


def run_task(text: str) -> str:
    """Build the part of a task, unless it is there; return the outcome. This runs in other processes, on any host."""

    def work() -> str:
        task = Task.decode(text)
        if task.part() is None:
            _build(task)
        return task.key

    return outcome_of(text, work)


def outcome_of(text: str, work: Callable[[], str]) -> str:
    """Build a part, and return the outcome as a text; its error names options as the user gives them.

    Args:
      text: of the task, which says whether a command sent it.
      work: builds the part, and returns its key.
    """
    end_with_parent()  # of a pool of processes, whose driver may be killed
    try:
        with errors.as_command() if json.loads(text)["command"] else nullcontext():
            return Outcome(work()).encode()
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        is_lost = error.errno in _LOST
        return Outcome(error=f"{where}{reason(error)}{_here()}", kind="Error", is_lost=is_lost).encode()
    except Error as error:
        of_data = isinstance(error, FormatError | errors.ColumnError | errors.DecodeError)
        message = str(error).replace(" of the index)", " of a part)")
        return Outcome(error=message if of_data else message + _here(), kind=type(error).__name__).encode()


def _here() -> str:
    return f" (on host {platform.node()})"


def as_sent(sources: Sequence[Source]) -> list[Source]:
    """Return the sources of a task as this host sees them.

    Raises:
      SourceError: one is missing here, or has another size.
    """
    seen = []
    for wanted in sources:
        found = inspect(wanted.path)
        if found.size != wanted.size:
            raise changed(wanted, found.size)
        seen.append(found._replace(begin=wanted.begin, end=wanted.end))
    return seen


def _build(task: Task) -> None:
    """Write a part."""
    sources = as_sent(task.sources)
    chosen = formats.by_name(task.format_name)
    os.makedirs(task.directory, exist_ok=True)
    job = Job(
        task.path, sources, chosen, task.parameters, Measuring.of(task.measuring), before=None, hashes=task.hashes
    )
    write(job, [Scan(sources)], task.workers, lambda _: None, part=task.key)
