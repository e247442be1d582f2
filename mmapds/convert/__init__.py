"""Converting sources to array files, also those that cannot be read in place: `convert()`, `python -m mmapds.convert`.

Parquet, Arrow and HDF5 are read by libraries of their own, each by a `FileReader`; see `reader`. Whatever mmapds can
index is read through an index that is removed afterwards; see `indexed`. `formats.CONVERTIBLE` has the names and first
bytes that Parquet, Arrow and HDF5 files are recognised by, because indexing needs them too.
"""

from __future__ import annotations  # help() shows them as they are written

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import formats
from ..arrays.schema import Schema
from ..clusters import Engine
from ..dataset.decode import Decoder
from ..errors import FormatError, counted, refuse_unknown, warn
from ..storage.sources import (
    INDEX_SUFFIX,
    StrPath,
    check_unchanged,
    expand,
    given_twice,
    inspect,
    listed,
)
from .fit import Wanted
from .parts import Written, write_parts
from .records import OTHER_OPTIONS, Reading, copy_records
from .target import ConvertedWriter, alone, check_ahead, default_bytes, target_of, without_converted

if TYPE_CHECKING:
    from concurrent.futures import Executor

SUFFIXES: tuple[str, ...] = (
    *formats.SUFFIXES,
    *(suffix for _, suffixes in formats.CONVERTIBLE.values() for suffix in suffixes),
    INDEX_SUFFIX,
)
"""What the names of files end in that are taken from a directory."""

OPTIONS: dict[str, tuple[type, str, str]] = {
    **formats.OPTIONS,
    **{name: option for options in OTHER_OPTIONS.values() for name, option in options.items()},
}
"""Options of all formats, by name: (type, placeholder, help), for the command line."""


class Converted(NamedTuple):
    """The outcome of a conversion."""

    path: str
    records: int
    skipped: int
    """Records that were left out because they lack a field."""
    schema: Schema
    kept_length: str | None = None
    """The field of lengths, where it is that of the file that was replaced."""

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
    """Convert sources to one array file, record by record; the file appears only when it is whole.

    Args:
      sources: paths, directories, globs or brace patterns of Parquet, Arrow, HDF5, and all that can be indexed.
      out: the array file (`.mma`); by default beside a single source: `train.parquet` becomes `train.mma`.
      format: "parquet", "arrow", "hdf5", or one that can be indexed; by default by name, or else by first bytes.
      schema: the fields to write and their types, as `mmapds.Writer` takes them; by default those of the sources.
      types: the types of some fields; the others keep theirs.
      fields: names of the fields to write, in this order; those of parts of structs and groups are dotted.
      defaults: what stands for fields that a record lacks or has as null, as in `mmapds.Fields`: `{"tokens": []}`.
      length: the field that token budgets are planned by; by default that of the file which is replaced.
      missing: a record that lacks a field, without a default, is an "error", or "skip" leaves it out. JSON may be null.
      infer: how many records to infer a schema from, where the sources have none.
      max_bytes: how many bytes of records to write at most; more are an error, at once where the sources show it. By
        default 100 times the sources or 4 GiB, and any number from an index or with a function as `decode`.
      decode: the decoder of records that can be indexed, as in `mmapds.open`. By default that of the format; members of
        tars are decoded by extension, except images. A sample that is not a dict becomes the field "data".
      index: write the index too. False where one index will cover several files.
      force: replace any file. One that was converted from the same source, the first of several, is always replaced.
      progress: called with the number of records read since the last call, and the number of all records or None.
      roots: directories in which the sources of an index may lie that is given, as in `mmapds.open`.
      executor: what runs tasks, as in `mmapds.build`; its workers must be able to load `decode`. See docs/clusters.md.
      parts: the directory where tasks leave what they wrote; by default `out` with `.parts` behind it.
      **options: of the format; see docs/formats.md.
    Raises:
      SourceError: a source is missing, unreadable, compressed or outside the roots, or changes meanwhile.
      FormatError: a source or the schema is malformed, a record does not fit, or all are left out, or too many bytes.
      DecodeError: a record cannot be decoded.
      Error: the library that a format needs is missing, or the file cannot be written, has no room or another origin.
    """
    check_arguments(types, fields, defaults, missing, infer, max_bytes, options)
    paths = _expanded(sources, format)
    target = target_of(paths, out)
    names = None if fields is None else list(fields)
    wanted = Wanted(schema, types or {}, names, defaults or {}, length, missing == "skip", infer, max_bytes)
    reading = Reading(format, decode, roots, options)
    engine = Engine.of(executor, parts)
    return _convert(paths, target, reading, wanted, engine, index=index, force=force, progress=progress)


def _expanded(sources: StrPath | Iterable[StrPath], format_name: str | None) -> list[str]:
    """Return the sources that are meant; warn of what is passed over in directories, and of sources given twice."""
    paths = expanded(sources, format_name, warn)
    is_read_here = format_name in OTHER_OPTIONS or (format_name is None and formats.convertible(paths[0]))
    if is_read_here and (line := given_twice(paths)):  # building the index of others warns
        warn(line)
    return paths


def expanded(
    sources: StrPath | Iterable[StrPath], format_name: str | None, report: Callable[[str], object]
) -> list[str]:
    """Return the sources that are meant; report what is passed over in directories.

    Array files that were converted from others of them are left out, unless they are named: to convert a directory
    again, or into itself, is to convert what was there first. With a format that is only converted, its files alone
    are taken from directories.
    """
    given = listed(sources)
    suffixes = formats.CONVERTIBLE[format_name][1] if format_name in formats.CONVERTIBLE else SUFFIXES
    return without_converted(expand(given, suffixes, report), {os.fspath(path) for path in given})


def _convert(
    paths: list[str],
    target: str,
    reading: Reading,
    wanted: Wanted,
    engine: Engine | None,
    *,
    index: bool,
    force: bool,
    progress: Callable[[int, int | None], object],
) -> Converted:
    """Convert expanded sources, here or by an engine."""
    before = [inspect(path) for path in paths if not path.endswith(INDEX_SUFFIX)]
    if wanted.max_bytes is None and len(before) == len(paths) and not callable(reading.decode):
        wanted = wanted._replace(max_bytes=default_bytes(before))  # others name files, or load files, of any size
    enough = None  # records, where this process reads no more than it takes to know the schema
    if engine is not None:
        reading, enough = reading.settled(paths), 0 if wanted.schema is not None else wanted.infer
    opened = partial(reading.open_first, paths, target, enough)
    with alone(target, [] if force else paths), closing(opened()) as reader:
        rules = wanted.rules(reader, target)
        if reader.total and not rules.skip:
            check_ahead(target, rules.schema, reader.total, rules.max_bytes)
        with ConvertedWriter(target, rules.schema.describe(), paths, length=rules.length, index=index) as writer:
            if engine is None:
                written = Written(copy_records(reader, rules, writer, progress))
            else:
                total = None if reading.is_indexing(paths) else reader.total
                written = write_parts(paths, reading, rules, writer, engine, lambda done: progress(done, total))
            written.copied.check_something_is_left()
            for source in before:
                check_unchanged(source)
        if engine is not None:
            engine.remove_parts(written.tasks, target)
        kept = None if wanted.length is not None else rules.length
        return Converted(target, written.copied.left, written.copied.skipped, rules.schema, kept)


def check_arguments(
    types: Any,
    fields: Any,
    defaults: Any,
    missing: str,
    infer: int,
    max_bytes: int | None,
    options: Mapping[str, Any],
) -> None:
    """Raise an error for arguments that are wrong whatever the sources are."""
    refuse_unknown("convert", options, OPTIONS)
    for argument, given in (("types", types), ("defaults", defaults)):
        if given is not None and not isinstance(given, Mapping):
            raise FormatError(f"{argument} = {given!r}, expected a dict of names")
    if isinstance(fields, str) or not isinstance(fields, Iterable | None):
        raise FormatError(f"fields = {fields!r}, expected a list of names")
    if max_bytes is not None and (not isinstance(max_bytes, int) or max_bytes < 1):
        raise FormatError(f"max_bytes = {max_bytes!r}, expected 1 or more")
    if missing not in ("error", "skip"):
        raise FormatError(f"missing = {missing!r}, expected 'error' or 'skip'")
    if not isinstance(infer, int) or infer < 1:
        raise FormatError(f"infer = {infer!r}, expected 1 or more")
