"""An index of sources that are fetched: a task fetches each one and indexes its file, and the parts are merged."""

import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

from ..errors import ColumnError, Error, SourceError, counted, option
from ..storage.index_file import Index
from ..storage.lock import locked
from ..storage.places import Places
from ..storage.sources import INDEX_SUFFIX, Source, StrPath
from .build import BuildResult, Request, planned, readable_index, summarise
from .executors import Engine, Task, part_name
from .merged import merged_job
from .write import Scan, Stored, written

_FETCHED = 4  # sources fetched and indexed at a time


def build_fetched(paths: list[str], request: Request, places: Places, out: StrPath | None) -> BuildResult:
    """Build the index of some sources at `out`, wherever they lie. Those with the same ETag are not read again."""
    if out is None:
        raise Error(
            f"{paths[0]}: expected the place of one index of all objects, found none; give {option('out', 'OUT.mmx')}"
        )
    if request.complete is not None:
        raise ColumnError(
            "columns: expected expressions for objects, found functions; copy the objects to a disk first"
        )
    name, place = os.fspath(out), places.of(os.fspath(out))
    if request.engine is not None and request.engine.directory is None and not place.is_disk:
        raise Error(
            f"out = {name!r}, expected a directory for the parts that workers write; give {option('parts', 'DIR')}"
        )
    sources = places.inspect(paths)
    with ExitStack() as stack:
        target, before = name, None
        if place.is_disk:
            stack.enter_context(locked(name))
        else:
            target = os.path.join(stack.enter_context(tempfile.TemporaryDirectory(prefix="mmapds-")), "index.mmx")
        with suppress(SourceError):  # without a cache, an index elsewhere cannot be read
            before = readable_index(name, places)
        known = _known(before, sources, request) if before is not None else {}
        tasks, engine = _tasks([each for each in sources if each not in known], request, places, target, stack)
        engine.run(tasks, target, lambda task: request.report(sum(each.size for each in task.arguments[0])))
        parts = {task.arguments[0][0]: Index(task.path) for task in tasks}
        plan = [
            Stored(before, range(known[each], known[each] + 1))
            if before is not None and each in known
            else Stored(parts[each], range(1), **parts[each].metadata["part"])
            for each in sources
        ]
        if before is not None and plan == [Stored(before, range(n, n + 1)) for n in range(len(before.sources))]:
            return BuildResult(summarise(before), fresh=False)
        codecs = [each.base.sources[each.sources.start].compression for each in plan]
        found = [each._replace(codec=codec.codec if codec else "") for each, codec in zip(sources, codecs, strict=True)]
        job = merged_job(plan, target)._replace(sources=found, name=name, check=places.check_unchanged)
        done = written(job, plan, request.workers or 1)
        done.writer.place()
        engine.remove_parts(tasks, target)
        counts = counted(len(known), "source"), counted(len(tasks), "source")
        reused = f"kept {counts[0]}, scanned {counts[1]}" if known else ""
        index = Index(target)
        index.path = name
        if target != name:
            place.publish(target, name)
        return BuildResult(summarise(index), True, reused, done.remarks)


def _known(before: Index, sources: list[Source], request: Request) -> dict[Source, int]:
    """Return the sources that are in an index, with the same ETag and columns, as their numbers there."""
    same = request.measuring(before).describe() == before.measuring and request.format in (None, before.format)
    if request.force or not same or any(before.parameters.get(name) != each for name, each in request.options.items()):
        return {}
    numbers = {(before.source_path(n), each.size, each.etag): n for n, each in enumerate(before.sources) if each.etag}
    found = {each: numbers.get((each.path, each.size, each.etag)) for each in sources}
    return {each: number for each, number in found.items() if number is not None}


def _tasks(
    sources: list[Source], request: Request, places: Places, target: str, stack: ExitStack
) -> tuple[list[Task], Engine]:
    """Return a task for each source, and the engine that runs them: threads, unless the user gave one."""
    engine = request.engine
    if engine is None:
        engine = Engine(stack.enter_context(ThreadPoolExecutor(_FETCHED)), workers=request.workers or 1)
    plain = request._replace(engine=None, places=None, report=_ignored, hash=True, fresh=True, workers=engine.workers)
    described = plain.measuring(None).describe()
    tasks = []
    for source in sources:
        covered = source, plain.format, dict(plain.options), described
        path = os.path.join(engine.directory_for(target), part_name(covered, INDEX_SUFFIX))
        tasks.append(Task(path, build_part, ([source], plain, places)))
    return tasks, engine


def _ignored(_: int) -> None:
    pass


def build_part(path: str, sources: list[Source], request: Request, places: Places) -> None:
    """Fetch a source, and write the index of its file; a worker may run this on any host."""
    [source] = sources
    with places.of(source.path).local(source, is_fresh=request.force) as local:
        try:
            job, _ = planned(request, path, [local])
            with written(job._replace(is_part=True), [Scan(job.sources)], request.workers or 1).writer as writer:
                writer.place()
        except Error as error:
            raise type(error)(str(error).replace(local, source.path)) from None
