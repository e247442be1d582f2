"""Converting sources to array files, also those that cannot be read in place: `convert()`, `python -m mmapds.convert`.

Parquet, Arrow and HDF5 are read by libraries of their own, each by a `FileReader`; see `reader`. Whatever mmapds can
index is read through an index that is removed afterwards; see `indexed`. `formats.CONVERTIBLE` has the names and first
bytes that Parquet, Arrow and HDF5 files are recognised by, because indexing needs them too.
"""

from __future__ import annotations  # help() shows them as they are written

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import formats
from ..arrays.array_file import SUFFIX, Head
from ..arrays.infer import infer_schema
from ..arrays.schema import Schema
from ..dataset.decode import Decoder
from ..errors import Error, FormatError, counted, unknown_argument
from ..index.engine import Engine
from ..storage.lock import create_temporary, locked
from ..storage.sources import INDEX_SUFFIX, StrPath, check_unchanged, expand, inspect, reason, working_directory
from ..writer import Writer
from .distributed import Reading, Written, write_parts
from .indexed import remove_hidden
from .reader import Reader
from .records import FILE_READERS, Rules, copy_records

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
    **{name: option for reader in FILE_READERS.values() for name, option in reader.OPTIONS.items()},
}
"""Options of all formats, by name: (type, placeholder, help), for the command line."""

_ELSEWHERE = f"-o OUT{SUFFIX} (out= in Python)"


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
    fields: Iterable[str] | None = None,
    length: str | None = None,
    missing: str = "error",
    infer: int = 1000,
    decode: str | Decoder | None = None,
    index: bool = True,
    progress: Callable[[int, int | None], object] = lambda done, total: None,  # noqa: ARG005
    roots: StrPath | Iterable[StrPath] = (),
    executor: Executor | Callable[[], Executor] | None = None,
    parts: StrPath | None = None,
    **options: Any,
) -> Converted:
    """Convert sources to one array file, record by record; the file appears only when it is whole.

    Args:
      sources: paths, directories, globs or brace patterns of Parquet, Arrow (files and streams), HDF5, and all that can
        be indexed. Records keep their order.
      out: the array file (`.mma`); by default beside a single source: `train.parquet` becomes `train.mma`.
      format: "parquet", "arrow", "hdf5", or a format that can be indexed; by default a file's name decides, or else its
        first bytes.
      schema: the fields to write and their types, as `mmapds.Writer` takes them. Numbers in arrays are converted where
        only the last digits of fractions are lost. By default the schema of the sources, or one that suits their first
        records.
      fields: names of the fields to write, in this order; all by default. Fields of structs and groups have dotted
        names.
      length: the field that token budgets are planned by; by default that of the file which is replaced, if there is
        one and the new file has the field too.
      missing: what to do with a record that lacks a field or has null there: "error", or "skip" to leave the record
        out. A field of type "json" may be null.
      infer: how many records to infer a schema from, where the sources have none.
      decode: the decoder of records that can be indexed, as in `mmapds.open`. By default that of the format; members of
        tars are decoded by extension, except images. A sample that is not a dict becomes the field "data".
      index: write the index too. False where one index will cover several files.
      progress: called with the number of records read since the last call, and the number of all records or None.
      roots: directories in which the sources of an index may lie that is given, as in `mmapds.open`.
      executor: what converts, as in `mmapds.build`: a task for each source, or for some small ones. Workers must be
        able to load `decode`, a function of a module or an object that pickles; see docs/clusters.md.
      parts: where tasks leave what they wrote; by default `out` with `.parts` behind it.
      **options: of the format; see docs/formats.md.
    Raises:
      SourceError: a source is missing, unreadable, compressed or outside the roots, or changes meanwhile.
      FormatError: a source or the schema is malformed, a record does not fit, or `missing` leaves out all of them; the
        message has the record's place.
      DecodeError: a record cannot be decoded.
      Error: the library that a format needs is missing, or the file cannot be written.
    """
    check_arguments(fields, missing, infer, options)
    paths = expand(sources, SUFFIXES)
    target = _target(paths, out)
    wanted = _Wanted(schema, fields, length, missing == "skip", infer)
    engine = None if executor is None else Engine(executor, None if parts is None else os.fspath(parts))
    reading = Reading(format, decode, roots, options)
    return _convert(paths, target, reading, wanted, engine, index=index, progress=progress)


class _Wanted(NamedTuple):
    """What the user wants of the records; see `convert`."""

    schema: Mapping[str, Any] | None
    fields: Iterable[str] | None
    length: str | None
    skip: bool
    infer: int

    def rules(self, reader: Reader, target: str) -> Rules:
        """Return what is written of each record."""
        is_whole = self.schema is None and self.fields is None  # so that a field beyond the schema is an error
        schema = _schema(reader, self.schema, self.fields, self.skip, self.infer)
        return Rules(schema, self.length or _length_before(target, schema), self.skip, is_whole)


def _convert(
    paths: list[str],
    target: str,
    reading: Reading,
    wanted: _Wanted,
    engine: Engine | None,
    *,
    index: bool,
    progress: Callable[[int, int | None], object],
) -> Converted:
    """Convert expanded sources, here or by an engine."""
    before = [inspect(path) for path in paths if not path.endswith(INDEX_SUFFIX)]
    if engine is not None:
        reading = reading.settled(paths)
    open_all = reading.open if engine is None else reading.open_first
    with _alone(target), closing(open_all(paths, target)) as reader:
        rules = wanted.rules(reader, target)
        with Writer(target, rules.schema.describe(), length=rules.length, index=index) as writer:
            if engine is None:
                written = Written(copy_records(reader, rules, writer, progress))
            else:
                report = partial(_report, progress, reader.total)
                written = write_parts(paths, reading, rules, writer, engine, report)
            written.copied.check_something_is_left()
            for source in before:
                check_unchanged(source)
        written.remove()
        kept = None if wanted.length is not None else rules.length
        return Converted(target, written.copied.left, written.copied.skipped, rules.schema, kept)


def _report(progress: Callable[[int, int | None], object], total: int | None, count: int) -> None:
    """Report records that parts have."""
    progress(count, total)


def _length_before(target: str, schema: Schema) -> str | None:
    """Return the field of a schema that gives the lengths of the array file that will be replaced; None without one."""
    try:
        expression = Head(target).columns.get("length")
    except (Error, OSError):  # no file, or not one of arrays
        return None
    fields = [] if any(field.column == "length" for field in schema.fields) else schema.fields
    return next((field.name for field in fields if field.gives_lengths and field.expression == expression), None)


def check_arguments(fields: Iterable[str] | None, missing: str, infer: int, options: Mapping[str, Any]) -> None:
    """Raise an error for arguments that are wrong whatever the sources are."""
    own = [name for name in convert.__annotations__ if name not in ("options", "return")]
    for name, value in options.items():
        if name not in OPTIONS:
            raise unknown_argument("convert", name, value, [*own, *OPTIONS], {})
    if isinstance(fields, str):
        raise FormatError(f"fields = {fields!r}, expected a list of names")
    if missing not in ("error", "skip"):
        raise FormatError(f"missing = {missing!r}, expected 'error' or 'skip'")
    if infer < 1:
        raise FormatError(f"infer = {infer}, expected 1 or more")


def _target(paths: list[str], out: StrPath | None) -> str:
    """Return the path to write.

    Raises:
      Error: several sources need `out`, its directory is missing or cannot be written to, or it is one of the sources.
    """
    if out is None and len(paths) > 1:
        raise Error(
            f"out: expected the name of one array file for {len(paths)} sources, found none; give it with {_ELSEWHERE}"
        )
    target = os.path.splitext(paths[0])[0] + SUFFIX if out is None else os.fspath(out)
    if not os.path.isdir(os.path.dirname(target) or "."):
        raise Error(
            f"{target}: cannot write the array file here (no such directory); give another place with {_ELSEWHERE}"
        )
    try:
        probe, file = create_temporary(os.path.join(working_directory(), target))
        file.close()
        os.unlink(probe)
    except OSError as error:
        raise Error(
            f"{target}: cannot write the array file here ({reason(error)}); give another place with {_ELSEWHERE}"
        ) from None
    if os.path.exists(target) and any(os.path.samefile(path, target) for path in paths):
        raise Error(f"{target}: the file to write is a source; name another file with {_ELSEWHERE}")
    return target


@contextmanager
def _alone(target: str) -> Iterator[None]:
    """Hold the lock of the file to write, and of its index; remove what killed conversions left behind."""
    with locked(target + INDEX_SUFFIX) as is_locked:
        if is_locked:
            remove_hidden(target)
        yield


def _schema(
    reader: Reader, given: Mapping[str, Any] | None, fields: Iterable[str] | None, skip: bool, infer: int
) -> Schema:
    """Return the schema of the fields to write.

    Raises:
      FormatError: the sources lack a field that was asked for.
    """
    described = given if given is not None else reader.schema
    if given is not None and reader.schema is not None:
        _check_names("schema", given, reader.schema)
    if described is None:
        described = infer_schema(islice(reader.records(None), infer), nulls=not skip).describe()
    if fields is not None:
        fields = list(fields)
        _check_names("fields", fields, described)
        described = {name: described[name] for name in fields}
    return Schema(described)


def _check_names(what: str, names: Iterable[str], known: Iterable[str]) -> None:
    for name in names:
        if name not in known:
            raise FormatError(f"{what}: expected fields among {', '.join(map(repr, known))}, found {name!r}")
