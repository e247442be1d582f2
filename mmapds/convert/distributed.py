"""Converting by an executor: which tasks there are, and how the parts that they leave become one array file."""

import os
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from .. import formats
from ..arrays.schema import Schema
from ..dataset.decode import Decoder
from ..errors import FormatError, either
from ..index.distribute import GROUP
from ..index.driver import Driver, directory_of, make_directory, parts_of, remove_dead_parts, remove_parts
from ..index.engine import Engine
from ..storage.sources import INDEX_SUFFIX, Source, StrPath, listed
from ..writer import Writer, bytes_of
from .fit import Rules
from .indexed import remove_hidden
from .limit import too_much
from .parts import Conversion, Part, mark_of
from .reader import Block, Reader
from .records import FILE_READERS, Copied, open_reader


class Reading(NamedTuple):
    """How the records of sources are read, as `mmapds.convert.convert` takes it."""

    format_name: str | None
    decode: str | Decoder | None
    roots: StrPath | Iterable[StrPath]
    options: Mapping[str, Any]

    def open(self, paths: list[str], target: str) -> Reader:
        """Return the reader of some sources; see `open_reader`."""
        return open_reader(paths, target, self.format_name, self.decode, self.roots, self.options)

    def open_first(self, paths: list[str], target: str) -> Reader:
        """Return a reader that shows the schema of sources, and refuses what the reader of all of them refuses."""
        return (
            FirstRecords(paths, partial(self.open, target=target))
            if self.is_indexing(paths)
            else self.open(paths, target)
        )

    def is_indexing(self, paths: list[str]) -> bool:
        """Whether all of these are sources to be indexed in one format."""
        kinds = {self.format_name or formats.convertible(path) or "" for path in paths}
        return not kinds & FILE_READERS.keys() and not any(path.endswith(INDEX_SUFFIX) for path in paths)

    def settled(self, paths: list[str]) -> "Reading":
        """Return it with what all sources decide together, so that a task which has some of them reads them alike.

        Raises:
          FormatError: sources contradict one another, or an option.
        """
        if not self.is_indexing(paths):
            return self
        chosen = [formats.by_name(self.format_name)] if self.format_name else list(map(formats.for_path, paths))
        for path, other in zip(paths, chosen, strict=False):
            if other is not chosen[0]:
                raise FormatError(
                    f"sources: expected one format in one conversion, found {paths[0]} ({chosen[0].name}) and {path} "
                    f"({other.name}); choose with {either('--format F', 'format=...')}"
                )
        formats.check_options(chosen[0].name, chosen[0].options, self.options)
        parameters = chosen[0].parameters(self.options, paths)
        options = {name: parameters[name] for name in chosen[0].options if name in parameters}
        return self._replace(format_name=chosen[0].name, options=options)


class FirstRecords:
    """A reader of sources that are read only as far as a schema needs them, one after another.

    Args:
      paths: of sources that can be indexed, or of indexes.
      open_one: returns the reader of one of them.
    """

    def __init__(self, paths: list[str], open_one: Callable[[list[str]], Reader]) -> None:
        self.total: int | None = None
        self._paths, self._open = paths, open_one
        self._reader = open_one(paths[:1])
        self._before = 0  # records of the sources that are done
        self.schema = self._reader.schema

    def records(self, schema: Schema | None, fields: Container[str] | None = None) -> Iterator[Mapping[str, Any]]:
        """Yield the records of the first source, then of the next one."""
        for number, path in enumerate(self._paths):
            if number:
                self._reader.close()
                self._reader = self._open([path])
            read = 0
            for record in self._reader.records(schema, fields):
                yield record
                read += 1
            self._before += read

    def blocks(self, schema: Schema, defaults: Container[str]) -> Iterator[Block]:
        """Yield the records as one block."""
        yield Block(self.records(schema))

    def place(self, number: int) -> str:
        """Return where a record lies, of the source that is open; its number counts those of all sources."""
        return self._reader.place(number - self._before)

    def close(self) -> None:
        """Release the source that is open."""
        self._reader.close()


def write_parts(
    paths: list[str],
    reading: Reading,
    rules: Rules,
    writer: Writer,
    engine: Engine,
    report: Callable[[int], object],
) -> "Written":
    """Let an engine convert sources, and append the parts that it leaves to an array file, in their order.

    Args:
      report: called with the number of records that were read since the last call.
    Raises:
      Error: what the data did, at once; or an engine that lost a task again and again.
    """
    directory = os.path.abspath(engine.directory or directory_of(writer.path))
    described = [[name, what] for name, what in rules.schema.describe().items()]
    roots, mark = [os.path.abspath(root) for root in listed(reading.roots)], mark_of(reading.decode)
    own = (reading.format_name, dict(reading.options), described, *rules[1:], roots, mark, directory, reading.decode)
    tasks = [Conversion(group, *own) for group in _groups(paths)]
    driver = Driver[Part](engine.executor, lambda _, part: report(part.copied.read))
    make_directory(directory)
    report(0)
    parts = driver.run(tasks)
    copied = Copied(0, 0, "")
    for task in tasks:
        writer.append_file(parts[task.key].file)
        copied += parts[task.key].copied
        if rules.max_bytes is not None and bytes_of(writer) > rules.max_bytes:
            raise too_much(task.title, bytes_of(writer), rules.max_bytes)
    return Written(copied, tasks, directory)


class Written(NamedTuple):
    """What was written to an array file, and the parts that hold it, too."""

    copied: Copied
    tasks: Sequence[Conversion] = ()
    directory: str = ""

    def remove(self, target: str) -> None:
        """Remove the parts, once the array file is in its place, and those of conversions that were killed."""
        own = [task.path for task in self.tasks]
        remove_hidden(*own, *parts_of(target))
        if own:
            remove_parts(own, self.directory)
        remove_dead_parts(target)


def _groups(paths: list[str]) -> Iterator[tuple[Source, ...]]:
    """Yield the sources of each task: small ones together, each index alone."""
    group: list[Source] = []
    size = 0
    for path in paths:
        found = os.stat(path)
        source = Source(os.path.abspath(path), found.st_size, found.st_mtime_ns)
        is_index = path.endswith(INDEX_SUFFIX)
        if group and is_index:
            yield tuple(group)
            group, size = [], 0
        group.append(source)
        size += source.size
        if is_index or size >= GROUP:
            yield tuple(group)
            group, size = [], 0
    if group:
        yield tuple(group)
