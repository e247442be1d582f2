"""The parts of an array file: what a worker of an executor converts, and how they are appended."""

import os
import pickle
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, NamedTuple

from xxhash import xxh3_128

from .. import formats
from ..arrays.array_file import SUFFIX, ArrayFile, Head
from ..arrays.schema import Schema
from ..clusters import GROUP, Engine, Task, groups, part_name
from ..dataset.decode import Decoder
from ..errors import Error, FormatError, either
from ..storage.sources import INDEX_SUFFIX, Source, StrPath, check_unchanged, listed
from ..writer import Writer, bytes_of
from .fit import Rules
from .reader import Reader
from .records import OTHER_OPTIONS, Copied, copy_records, open_reader
from .target import too_much


class Reading(NamedTuple):
    """How the records of sources are read, as `mmapds.convert.convert` takes it."""

    format_name: str | None
    decode: str | Decoder | None
    roots: StrPath | Iterable[StrPath]
    options: Mapping[str, Any]

    def open(self, paths: list[str], target: str) -> Reader:
        """Return the reader of some sources; see `open_reader`."""
        return open_reader(paths, target, self.format_name, self.decode, self.roots, self.options)

    def open_first(self, paths: list[str], target: str, records: int | None) -> Reader:
        """Return the reader of all sources; or of the first ones with so many records, if all must be indexed."""
        count = len(paths) if records is None or not self.is_indexing(paths) else 1
        while True:
            reader = self.open(paths[:count], target)
            if count >= len(paths) or reader.schema is not None or (reader.total or 0) >= (records or 0):
                return reader
            reader.close()
            count *= 2

    def is_indexing(self, paths: list[str]) -> bool:
        """Whether all of these are sources to be indexed in one format."""
        kinds = {self.format_name or formats.convertible(path) or "" for path in paths}
        return not kinds & OTHER_OPTIONS.keys() and not any(path.endswith(INDEX_SUFFIX) for path in paths)

    def settled(self, paths: list[str]) -> "Reading":
        """Return it with what all sources decide together, so that a task which has some of them reads them alike.

        Raises:
          FormatError: sources contradict one another, or an option.
        """
        roots = [os.path.abspath(root) for root in listed(self.roots)]
        if not self.is_indexing(paths):
            return self._replace(roots=roots)
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
        return self._replace(format_name=chosen[0].name, options=options, roots=roots)


class Written(NamedTuple):
    """What was written to an array file, and the tasks whose parts hold it, too."""

    copied: Copied
    tasks: Sequence[Task] = ()


def write_parts(
    paths: list[str],
    reading: Reading,
    rules: Rules,
    writer: Writer,
    engine: Engine,
    report: Callable[[int], object],
) -> Written:
    """Let an engine convert sources, and append the parts that it leaves to an array file, in their order.

    Args:
      reading: one that is settled.
      report: called with the number of records that were read since the last call.
    Raises:
      Error: see `Engine.run`; or more is written than may be.
    """
    directory, mark = engine.directory_for(writer.path), mark_of(reading.decode)
    how = reading, rules.schema.describe(), rules[1:]
    covered = reading.format_name, reading.roots, reading.options, list(how[1].items()), how[2], mark
    tasks = []
    for sources in _grouped(paths):
        name = part_name([sources, *covered], SUFFIX)
        tasks.append(Task(os.path.join(directory, name), convert_part, (sources, *how)))
    report(0)
    engine.run(tasks, writer.path, lambda task: report(_read(task.path)[1].read))
    copied = Copied(0, 0, "")
    for task in tasks:
        file, of_part = _read(task.path)
        writer.append_file(file)
        copied += of_part
        if rules.max_bytes is not None and bytes_of(writer) > rules.max_bytes:
            raise too_much(task.arguments[0][0].path, bytes_of(writer), rules.max_bytes)
    return Written(copied, tasks)


def _grouped(paths: list[str]) -> Iterator[list[Source]]:
    """Yield the sources of each task: small ones together, each index alone."""
    sources = []
    for path in paths:
        found = os.stat(path)
        sources.append(Source(os.path.abspath(path), found.st_size, found.st_mtime_ns))
    sizes = [GROUP if source.path.endswith(INDEX_SUFFIX) else source.size for source in sources]
    for group in groups(sizes):
        yield sources[group.start : group.stop]


def convert_part(
    path: str, sources: list[Source], reading: Reading, schema: dict[str, Any], rules: tuple[Any, ...]
) -> None:
    """Write the array file of some sources, in a worker.

    Args:
      rules: all but the schema of `Rules`.
    Raises:
      SourceError: a source is missing on this host, or has another size or time.
    """
    for source in sources:
        check_unchanged(source)
    given = Rules(Schema(schema), *rules)
    alone = f"{path}.{os.urandom(4).hex()}"  # as the same task may run twice at the same time
    opened = reading.open([source.path for source in sources], alone)
    with closing(opened) as reader, _PartWriter(path, schema, length=given.length, index=False) as writer:
        writer.copied = copy_records(reader, given, writer, lambda *_: None)
        for source in sources:
            check_unchanged(source)


class _PartWriter(Writer):
    """Writes a part, which says what became of the records of its sources."""

    copied = Copied(0, 0, "")

    def _metadata(self) -> dict[str, Any]:
        return {**super()._metadata(), "part": self.copied._asdict()}


def _read(path: str) -> tuple[ArrayFile, Copied]:
    """Return a part, and what became of the records of its sources."""
    file = ArrayFile(Head(path))
    with file.reporting_malformed_metadata():
        found = file.metadata["part"]
        return file, Copied(int(found["read"]), int(found["skipped"]), str(found["first"]))


def mark_of(decode: str | Decoder | None) -> str:
    """Return what tells one decoder from another: its pickle, and the file of its module.

    Raises:
      Error: other processes cannot import it.
    """
    if decode is None or isinstance(decode, str):
        return str(decode)
    try:
        mark = xxh3_128(pickle.dumps(decode, protocol=4))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise Error(
            f"decode = {decode!r}, expected a decoder that workers can load ({error}); define the function in a module"
        ) from None
    made_of = getattr(decode, "func", decode)  # of a partial
    module = sys.modules.get(getattr(made_of, "__module__", None) or type(made_of).__module__)
    path = getattr(module, "__file__", None)
    if path is None:  # as in a notebook: nobody sees what changed, so no part is kept
        return os.urandom(16).hex()
    with open(path, "rb") as file:
        mark.update(file.read())
    return mark.hexdigest()
