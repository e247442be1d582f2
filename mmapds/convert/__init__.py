"""Convert sources to one array file: `convert()` and `python -m mmapds convert`.

pyarrow reads Parquet and Arrow, and h5py reads HDF5. Other sources are read through a temporary index.
"""

from __future__ import annotations  # help() shows them as they are written

import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import formats
from ..arrays.array_file import SUFFIX, ArrayFile, Head
from ..arrays.schema import Schema
from ..dataset.decode import Decoder
from ..errors import FormatError, counted, refuse_unknown, warn
from ..index.executors import GROUP, Engine, Task, groups, part_name
from ..storage.places import Places
from ..storage.sources import INDEX_SUFFIX, Source, StrPath, check_unchanged, inspect
from .reader import Rules
from .records import (
    HDF5_OPTIONS,
    Reading,
    Wanted,
    alone,
    check_written,
    copy_records,
    origin_of,
    target_of,
)
from .writer import Writer

if TYPE_CHECKING:
    from concurrent.futures import Executor

SUFFIXES: tuple[str, ...] = (
    *formats.SUFFIXES,
    *(suffix for _, suffixes in formats.CONVERTIBLE.values() for suffix in suffixes),
    INDEX_SUFFIX,
)
"""Suffixes of the files to convert in a directory."""

OPTIONS: dict[str, tuple[type, str, str]] = {**formats.OPTIONS, **HDF5_OPTIONS}
"""Options of all formats, by name: (type, placeholder, help), for the command line."""
_LEAST, _TIMES = 4 << 30, 100  # the default of `max_bytes`: the larger of so many bytes and times the sources


class Converted(NamedTuple):
    """The outcome of a conversion.

        done = mmapds.convert.convert("train.jsonl", "train.mma", force=True)
        print(done)

    `str(done)` is the line that the command prints.
    """

    path: str
    records: int
    skipped: int
    """Number of records that were skipped because they lack a field."""
    schema: Schema
    kept_length: str | None = None
    """The field of lengths, if it was taken from the file that was replaced."""

    def __str__(self) -> str:
        fields = ", ".join(f"{field.name} ({field})" for field in self.schema.fields)
        skipped = f"; {counted(self.skipped, 'record')} left out" if self.skipped else ""
        kept = f"; length of {self.kept_length!r}, as before" if self.kept_length else ""
        return f"{self.path}: {counted(self.records, 'record')} of {fields or 'no fields'}{skipped}{kept}"


def convert(
    sources: StrPath | Iterable[StrPath],
    out: StrPath | None = None,
    *,
    format: str | None = None,  # noqa: A002 - the field's word, and what the command line calls it
    schema: Mapping[str, Any] | None = None,
    types: Mapping[str, Any] | None = None,
    fields: Iterable[str] | None = None,
    defaults: Mapping[str, Any] | None = None,
    length: str | None = None,
    missing: str = "error",
    infer: int = 1000,
    max_bytes: int | None = None,
    decode: str | Decoder | None = None,
    index: bool = True,
    force: bool = False,
    progress: Callable[[int, int | None], object] = lambda done, total: None,  # noqa: ARG005
    roots: StrPath | Iterable[StrPath] = (),
    executor: Executor | None = None,
    parts: StrPath | None = None,
    **options: Any,
) -> Converted:
    """Convert sources to one array file.

    The file appears when it is complete.

        mmapds.convert.convert("train.jsonl", "train.mma", types={"tokens": ("uint16", (None,))})

    Args:
      sources: paths, directories, globs or brace patterns: Parquet, Arrow, HDF5, files of one record each, or any
        format that can be indexed.
      out: the array file (`.mma`); by default beside a single source: `train.parquet` becomes `train.mma`.
      format: "parquet", "arrow", "hdf5"; "pt", "npz" or "safetensors", of which each file is a record; or a format that
        can be indexed. By default by suffix or first bytes.
      schema: the fields to write and their types, as `mmapds.Writer` takes them; by default those of the sources.
      types: the types of some fields; other fields keep theirs.
      fields: names of the fields to write, in this order. A part of a struct or group has a dotted name.
      defaults: values for fields that are missing or null in a record, as in `mmapds.Fields`: `{"tokens": []}`.
      length: the field for token budgets; by default that of the file which is replaced.
      missing: "error" or "skip", for a record that lacks a field without a default. Fields of JSON may be null.
      infer: how many records to infer a schema from, if the sources have none.
      max_bytes: the largest size of all records, in bytes; more are an error. The default is 100 times the sources, and
        at least 4 GiB. There is no limit for an index as source, or a function as `decode`.
      decode: the decoder of records that can be indexed, as in `mmapds.open`. The default is that of the format, and
        members of tars are decoded by extension, except images. A sample that is not a dict becomes the field "data".
        For files of one record a function of their bytes; None loads no pickled objects.
      index: write the index too. Give False if one index will cover several files.
      force: replace any file. Without it, only a file that was converted from the same first source is replaced.
      progress: called with the number of records read since the last call, and the number of all records or None.
      roots: directories that may hold the sources of a given index, as in `mmapds.open`.
      executor: what runs tasks, as in `mmapds.build`; its workers must be able to load `decode`. See docs/clusters.md.
      parts: the directory for the files that tasks write; by default `out` with `.parts` appended.
      **options: options of the format; see docs/formats.md.
    Raises:
      SourceError: a source is missing, unreadable, compressed, outside the roots, or changes during the conversion.
      FormatError: a source or the schema is malformed, a record does not fit, all are skipped, or too large.
      DecodeError: a record cannot be decoded.
      Error: a library is missing, the disk is full, or the file cannot be written or has another origin.
    """
    check_arguments(schema, types, fields, defaults, missing, infer, max_bytes, options)
    engine = Engine.of(executor, parts)
    suffixes = formats.CONVERTIBLE.get(format or "", ("", SUFFIXES))[1]  # of files in a directory
    paths = Places().expand(sources, suffixes, warn)
    target = target_of(paths, out)
    before = [inspect(path) for path in paths if not path.endswith(INDEX_SUFFIX)]
    if max_bytes is None and len(before) == len(paths) and not callable(decode):
        max_bytes = max(_LEAST, _TIMES * sum(source.size for source in before))  # a function may load files of any size
    names = None if fields is None else list(fields)
    wanted = Wanted(schema, types or {}, names, defaults or {}, length, missing == "skip", infer, max_bytes)
    reading = Reading(format, decode, roots, options)
    enough = None  # with an executor, the number of records that this process reads to infer the schema
    if engine is not None:
        reading, enough = reading.settled(paths), 0 if schema is not None else infer
    with alone(target, [] if force else paths):
        reader = reading.open_first(paths, target, enough)
        rules = wanted.rules(reader, target)
        with Writer(target, rules.described, length=rules.length, index=index, force=True) as writer:
            writer.restrict_to(paths)
            writer.note_metadata(origin=origin_of(target, paths))
            if engine is None:
                read, skipped = copy_records(reader, rules, writer, progress)
            else:
                tasks = _tasks(paths, reading, rules, engine.directory_for(target))
                read, skipped = _write_parts(tasks, rules, writer, engine, lambda done: progress(done, reader.total))
            if skipped == read > 0:
                shown = ", ".join(map(repr, rules.described))
                raise FormatError(f"{target}: expected records with the fields {shown}, found 0 of {read:,}")
            for source in before:
                check_unchanged(source)
        if engine is not None:
            engine.remove_parts(tasks, target)
    kept = None if length is not None else rules.length
    return Converted(target, read - skipped, skipped, rules.schema, kept)


def check_arguments(
    schema: Any,
    types: Any,
    fields: Any,
    defaults: Any,
    missing: str,
    infer: int,
    max_bytes: int | None,
    options: Mapping[str, Any],
) -> None:
    """Raise an error for arguments that are wrong with any sources."""
    refuse_unknown("convert", options, OPTIONS)
    for argument, given in (("schema", schema), ("types", types), ("defaults", defaults)):
        if given is not None and not isinstance(given, Mapping):
            raise FormatError(f"{argument} = {given!r}, expected a dict of names")
    if isinstance(fields, str) or not isinstance(fields, Iterable | None):
        raise FormatError(f"fields = {fields!r}, expected a list of names")
    if missing not in ("error", "skip"):
        raise FormatError(f"missing = {missing!r}, expected 'error' or 'skip'")
    for argument, number in (("infer", infer), ("max_bytes", 1 if max_bytes is None else max_bytes)):
        if not isinstance(number, int) or number < 1:
            raise FormatError(f"{argument} = {number!r}, expected 1 or more")


# ---- files that workers of an executor write ------------------------------------------------------------------------


def _tasks(paths: list[str], reading: Reading, rules: Rules, directory: str) -> list[Task]:
    """Return the tasks of workers: one for several small sources, and one for each index."""
    found = [(os.path.abspath(path), os.stat(path)) for path in paths]
    sources = [Source(path, each.st_size, each.st_mtime_ns) for path, each in found]
    # A random mark, because the next run cannot tell whether a function has changed.
    mark = reading.decode if isinstance(reading.decode, str | None) else os.urandom(16).hex()
    covered = reading.format_name, reading.roots, reading.options, repr(rules), mark
    tasks = []
    for group in groups([GROUP if source.path.endswith(INDEX_SUFFIX) else source.size for source in sources]):
        chosen = sources[group.start : group.stop]
        name = part_name([chosen, *covered], SUFFIX)
        tasks.append(Task(os.path.join(directory, name), convert_part, (chosen, reading, rules)))
    return tasks


def _write_parts(
    tasks: list[Task], rules: Rules, writer: Writer, engine: Engine, report: Callable[[int], object]
) -> tuple[int, int]:
    """Convert sources with an engine, and append the resulting files to an array file, in order.

    Return the number of records in the sources, and the number of skipped ones.
    """
    report(0)
    engine.run(tasks, writer.path, lambda task: report(_part(task)[1]))
    read = skipped = 0
    begin = writer.bytes_written
    for task in tasks:
        file, found, left_out = _part(task)
        writer.append_file(file)
        read, skipped = read + found, skipped + left_out
        check_written(writer.bytes_written - begin, rules, str, task.arguments[0][0].path)
    return read, skipped


def convert_part(path: str, sources: list[Source], reading: Reading, rules: Rules) -> None:
    """Write the array file of some sources. Runs in a worker."""
    for source in sources:
        check_unchanged(source)
    hidden = f"{path}.{os.urandom(4).hex()}"  # random: the same task may run twice at once
    reader = reading.open([source.path for source in sources], hidden)
    with Writer(path, rules.described, length=rules.length, index=False, force=True) as writer:
        writer.note_metadata(part=copy_records(reader, rules, writer, lambda *_: None))
        for source in sources:
            check_unchanged(source)


def _part(task: Task) -> tuple[ArrayFile, int, int]:
    """Return the file that a task wrote, the number of records in its sources, and the number of skipped ones."""
    file = ArrayFile(Head(task.path))
    with file.reporting_malformed_metadata():
        read, skipped = map(int, file.metadata["part"])
    return file, read, skipped
