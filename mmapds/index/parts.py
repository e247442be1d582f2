"""The parts of an index: what a worker of an executor builds, and how they stand for a scan."""

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .. import formats
from ..clusters import Engine, Task, groups, part_name
from ..formats.measuring import Measuring
from ..storage.index_file import Index
from ..storage.sources import INDEX_SUFFIX, Roots, Source, check_unchanged
from ..storage.writer import IndexWriter
from .plan import Grown, Job, Plan, Scan, Stored
from .write import Report, write


def written_by(engine: Engine, job: Job, plan: Plan, workers: int, report: Report) -> list[str]:
    """Write an index as `write` does, but let an engine scan the sources.

    The end of a source that grew is scanned here.

    Raises:
      Error: see `Engine.run`; or the index cannot be written.
    """
    layout = list(_layout(job, plan, engine))
    tasks = [each for each in layout if isinstance(each, Task)]
    with IndexWriter(job.index_path):
        pass  # a place that cannot be written to is an error before the work
    engine.run(tasks, job.index_path, lambda task: report(sum(source.size for source in task.arguments[0])))
    parts = [_stored(each) if isinstance(each, Task) else each for each in layout]
    remarks = write(job, parts, workers, lambda _: None)
    engine.remove_parts(tasks, job.index_path)
    return remarks


def _layout(job: Job, plan: Plan, engine: Engine) -> Iterator[Stored | Grown | Task]:
    """Yield a plan with tasks in the place of scans."""
    numbers = {source.path: number for number, source in enumerate(job.sources)}
    for each in plan:
        if not isinstance(each, Scan):
            yield each
            continue
        for group in groups([source.size for source in each.sources]):
            sources = each.sources[group.start : group.stop]
            yield _task(job, sources, numbers[sources[0].path], engine)


def _task(job: Job, sources: Sequence[Source], first: int, engine: Engine) -> Task:
    """Return the task for some sources of a job, the first of which has a number there."""
    listed, end = job.chosen.per_source, first + len(sources)
    parameters = {name: each[first:end] if name in listed else each for name, each in job.parameters.items()}
    absolute = [source._replace(path=os.path.abspath(source.path)) for source in sources]
    arguments = absolute, job.chosen.name, parameters, job.measuring.describe(), job.hashes
    path = os.path.join(engine.directory_for(job.index_path), part_name(arguments, INDEX_SUFFIX))
    return Task(path, build_part, (*arguments, engine.workers))


def build_part(
    path: str,
    sources: list[Source],
    format_name: str,
    parameters: dict[str, Any],
    measuring: Mapping[str, Any],
    hashes: bool,
    workers: int,
) -> None:
    """Write the index of some sources, in a worker.

    Raises:
      SourceError: one is missing on this host, or has another size or time.
    """
    for source in sources:
        check_unchanged(source)
    job = Job(path, sources, formats.by_name(format_name), parameters, Measuring.of(measuring), hashes=hashes)
    write(job._replace(is_part=True), [Scan(sources)], workers, lambda _: None)


def _stored(task: Task) -> Stored:
    """Return the records of a part."""
    sources = task.arguments[0]
    index = Index(task.path, Roots(named=[source.path for source in sources]))
    with index.reporting_malformed_metadata():
        return Stored(index, range(len(sources)), **index.metadata["part"])
