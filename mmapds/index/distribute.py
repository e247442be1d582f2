"""Building an index by an executor: which tasks there are, and how the parts that they leave become the index."""

import os
from collections.abc import Iterator, Sequence
from io import FileIO
from typing import NamedTuple

from ..storage.index_file import Index
from ..storage.sources import Source, unreadable
from .driver import Driver, directory_of, make_directory, remove_parts
from .engine import Engine
from .stored import Stored, sizes_before_last
from .tasks import Task
from .write import Job, Plan, Report, Scan, check_target

GROUP = 256 << 20
"""Bytes of small sources that are one task."""
STRETCH = 2 << 30
"""Bytes of a text that are one task."""
_LINE = 1 << 20  # bytes that are read at a time to find the end of a line


class _Piece(NamedTuple):
    """A task, and where its part belongs."""

    task: Task
    numbers: range
    """Of the sources that it covers in the new index."""


def distribute(job: Job, plan: Plan, engine: Engine, report: Report) -> "Distributed":
    """Let an engine scan what a plan would scan; return the plan with stored records in the place of that.

    Parts that are there from a build before are not built again.

    Args:
      report: called with the number of bytes of sources that were done since the last call.
    Raises:
      Error: what the data did, at once; or an engine that lost a task again and again.
    """
    directory = os.path.abspath(engine.directory or directory_of(job.index_path))
    pieces: list[_Piece] = []
    layout: list[Stored | Scan | list[_Piece]] = []
    number = 0
    for each in plan:
        if isinstance(each, Stored):
            layout.append(each)
            number += len(each.sources) if each.totals is None else 0
            continue
        for scan, numbers in _parted(each, number):
            if scan is not None:
                layout.append(scan)
            else:
                own = list(_pieces(job, numbers, engine.workers, directory))
                layout.append(own)
                pieces += own
        number += len(each.sources)
    check_target(job)
    driver = Driver[Index](engine.executor, lambda task, _: report(task.size))
    make_directory(directory)
    tasks = [piece.task for piece in pieces]
    parts = driver.run(tasks)
    found: list[Scan | Stored] = []
    for part in layout:
        found += _stored(job, part, parts) if isinstance(part, list) else [part]
    return Distributed(found, tasks, directory)


class Distributed(NamedTuple):
    """A plan whose parts are built."""

    plan: Plan
    tasks: list[Task]
    directory: str

    def remove(self) -> None:
        """Remove the parts, once the index is in its place."""
        remove_parts([task.path for task in self.tasks], self.directory)


def _parted(scan: Scan, first: int) -> "Iterator[tuple[Scan | None, range]]":
    """Yield what of a scan stays here, the end of a source that grew, and what is sent out: None, and the sources."""
    begin = first
    if scan.sources[0].begin:
        yield Scan(scan.sources[:1]), range(first, first + 1)
        begin += 1
    if begin < first + len(scan.sources):
        yield None, range(begin, first + len(scan.sources))


def _pieces(job: Job, numbers: range, workers: int, directory: str) -> Iterator[_Piece]:
    """Yield tasks for some sources: a few of them at a time or, of a large text, one for each stretch."""
    begin, size = numbers.start, 0
    for number in numbers:
        source = job.sources[number]
        if job.chosen.is_text and job.chosen.begins_anywhere and source.size > STRETCH and not source.codec:
            if begin < number:
                yield _Piece(Task.of(job, range(begin, number), None, workers, directory), range(begin, number))
            own = range(number, number + 1)
            for stretch in _stretches(source):
                yield _Piece(Task.of(job, own, stretch, workers, directory), own)
            begin, size = number + 1, 0
            continue
        size += source.size
        if size >= GROUP:
            own = range(begin, number + 1)
            yield _Piece(Task.of(job, own, None, workers, directory), own)
            begin, size = number + 1, 0
    if begin < numbers.stop:
        own = range(begin, numbers.stop)
        yield _Piece(Task.of(job, own, None, workers, directory), own)


def _stretches(source: Source) -> Iterator[tuple[int, int]]:
    """Yield where stretches of a text begin and end, each at a line but the last."""
    begin = 0
    try:
        with open(source.path, "rb", buffering=0) as file:
            while begin < source.size:
                end = _line_after(file, begin + STRETCH, source.size)
                yield begin, end
                begin = end
    except OSError as error:
        raise unreadable(source.path, error) from None


def _line_after(file: FileIO, at: int, size: int) -> int:
    """Return where the first line begins that begins at a byte or after it; the size if there is none."""
    at -= 1  # a line begins there, if the byte before is the end of one
    file.seek(at)
    while at < size and (piece := file.read(_LINE)):
        if (newline := piece.find(b"\n")) >= 0:
            return min(at + newline + 1, size)
        at += len(piece)
    return size


def _stored(job: Job, pieces: Sequence[_Piece], parts: dict[str, Index]) -> Iterator[Stored]:
    """Yield the records of parts, in the order of their sources."""
    at = 0
    while at < len(pieces):
        first = pieces[at]
        if first.task.sources[0].end is None:
            yield Stored.of(_seen(job, first, parts), range(len(first.numbers)))
            at += 1
            continue
        same = [piece for piece in pieces[at:] if piece.numbers == first.numbers]
        yield from _joined([(piece.task, _seen(job, piece, parts)) for piece in same])
        at += len(same)


def _seen(job: Job, piece: _Piece, parts: dict[str, Index]) -> Index:
    """Return a part, whose sources have the times that this host sees."""
    part = parts[piece.task.key]
    times = [job.sources[number].mtime_ns for number in piece.numbers]
    part.sources = [source._replace(mtime_ns=time) for source, time in zip(part.sources, times, strict=True)]
    return part


def _joined(stretches: Sequence[tuple[Task, Index]]) -> list[Stored]:
    """Return the records of the stretches of one source."""
    joined: list[Stored] = []
    for task, part in stretches:
        source = task.sources[0]
        smallest, largest = sizes_before_last(part, 0, part.records)
        totals = part.sources[0]._replace(smallest=smallest, largest=largest)
        joined.append(Stored(part, range(1), range(part.records), totals, source.stop - source.begin))
    joined[-1] = joined[-1]._replace(end=stretches[-1][0].sources[0].stop)
    return joined
