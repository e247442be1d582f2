"""The parts of an array file: what a worker of an executor converts, and how they are appended."""

import os
import pickle
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any, NamedTuple

from xxhash import xxh3_128

from ..arrays.array_file import SUFFIX, ArrayFile, Head
from ..arrays.schema import Schema
from ..clusters import GROUP, Engine, Task, groups, part_name
from ..dataset.decode import Decoder
from ..errors import Error
from ..storage.sources import INDEX_SUFFIX, Source, check_unchanged
from ..writer import Writer, bytes_of
from .fit import Rules
from .records import Copied, Reading, copy_records
from .target import too_much


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
