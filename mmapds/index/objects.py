"""An index of objects: each object is fetched once and indexed as a file, and the parts are merged."""

import os
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import cast

from ..errors import ColumnError, Error, SourceError, counted, option
from ..remote.cache import Item
from ..remote.objects import Objects
from ..remote.urls import is_url
from ..storage.index_file import Index
from ..storage.lock import locked
from ..storage.sources import INDEX_SUFFIX, Roots, Source, StrPath
from .build import BuildResult, Request, planned, readable_index, summarise
from .executors import Engine, Task, part_name
from .merged import merged_job
from .write import Scan, Stored, written

_FETCHED = 4  # objects fetched and indexed at a time


def build_objects(paths: list[str], request: Request, out: StrPath | None) -> BuildResult:
    """Build the index of objects at `out`, a path or a URL. Objects with the same ETag are not read again."""
    if out is None:
        raise Error(
            f"{paths[0]}: expected the place of one index of all objects, found none; give {option('out', 'OUT.mmx')}"
        )
    if request.complete is not None:
        raise ColumnError(
            "columns: expected expressions for objects, found functions; copy the objects to a disk first"
        )
    place, objects = os.fspath(out), cast(Roots, request.roots).objects
    if request.engine is not None and request.engine.directory is None and is_url(place):
        raise Error(
            f"out = {place!r}, expected a directory for the parts that workers write; give {option('parts', 'DIR')}"
        )
    for path in paths:
        if not is_url(path):
            raise SourceError(f"{path}: expected objects alone, as {paths[0]} is one, found a file")
    objects.together(objects.head, paths)
    heads = map(objects.head, paths)
    sources = [Source(head.url, head.size, head.mtime_ns, etag=head.etag) for head in heads]
    with ExitStack() as stack:
        target = place
        if is_url(place):
            target = os.path.join(stack.enter_context(tempfile.TemporaryDirectory(prefix="mmapds-")), "index.mmx")
        else:
            stack.enter_context(locked(place))
        before = readable_index(place, request.roots) if objects.has_cache or not is_url(place) else None
        known = _known(before, sources, request) if before is not None else {}
        tasks, engine = _tasks([each for each in sources if each not in known], request, target, stack)
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
        job = merged_job(plan, target)
        codecs = [each.base.sources[each.sources.start].compression for each in plan]
        found = [each._replace(codec=codec.codec if codec else "") for each, codec in zip(sources, codecs, strict=True)]
        done = written(job._replace(sources=found, url=place if is_url(place) else ""), plan, request.workers or 1)
        done.writer.place()
        engine.remove_parts(tasks, target)
        counts = counted(len(known), "source"), counted(len(tasks), "source")
        reused = f"kept {counts[0]}, scanned {counts[1]}" if known else ""
        index = Index(target)
        index.path = place
        if is_url(place):
            objects.put(target, place)
        return BuildResult(summarise(index), True, reused, done.remarks)


def _known(before: Index, sources: list[Source], request: Request) -> dict[Source, int]:
    """Return the objects that are in an index, with the same ETag and columns, as their numbers there."""
    same = request.measuring(before).describe() == before.measuring and request.format in (None, before.format)
    if request.force or not same or any(before.parameters.get(name) != each for name, each in request.options.items()):
        return {}
    numbers = {(before.source_path(n), each.size, each.etag): n for n, each in enumerate(before.sources) if each.etag}
    found = {each: numbers.get((each.path, each.size, each.etag)) for each in sources}
    return {each: number for each, number in found.items() if number is not None}


def _tasks(sources: list[Source], request: Request, target: str, stack: ExitStack) -> tuple[list[Task], Engine]:
    """Return a task for each object, and the engine that runs them: threads, unless the user gave one."""
    engine = request.engine
    if engine is None:
        engine = Engine(stack.enter_context(ThreadPoolExecutor(_FETCHED)), workers=request.workers or 1)
    plain = request._replace(engine=None, roots=None, report=_ignored, hash=True, fresh=True, workers=engine.workers)
    described = plain.measuring(None).describe()
    tasks = []
    for source in sources:
        covered = source, plain.format, dict(plain.options), described
        path = os.path.join(engine.directory_for(target), part_name(covered, INDEX_SUFFIX))
        objects = cast(Roots, request.roots).objects
        tasks.append(Task(path, build_object, ([source], plain, objects)))
    return tasks, engine


def _ignored(_: int) -> None:
    pass


def build_object(path: str, sources: list[Source], request: Request, objects: Objects) -> None:
    """Fetch an object, and write the index of its file; a worker may run this on any host."""
    [source] = sources
    with _cached(objects) as here:
        local = here.fetch(Item(source.path, source.size, source.mtime_ns, source.etag))
        try:
            job, _ = planned(request, path, [local])
            with written(job._replace(is_part=True), [Scan(job.sources)], request.workers or 1).writer as writer:
                writer.place()
        except Error as error:
            raise type(error)(str(error).replace(local, source.path)) from None


@contextmanager
def _cached(objects: Objects) -> Iterator[Objects]:
    """Yield objects with a cache: their own, or one in a temporary directory for the block."""
    if objects.has_cache:
        yield objects
        return
    with tempfile.TemporaryDirectory(prefix="mmapds-") as directory:
        yield objects.cached_in(directory)
