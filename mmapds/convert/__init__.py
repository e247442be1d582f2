"""Converting what cannot be read in place to array files: `convert()` and `python -m mmapds.convert`.

Parquet, Arrow and HDF5 are read by the libraries that own them; whatever mmapds indexes, by way of an index that is
gone afterwards. Each reader of the former is a module with this face:

NAME      the format's name, as `--format` takes it
OPTIONS   what it can be told, by name: (type, placeholder, help), for the command line
Reader    made of paths and options; see below

What the files of each are known by is in `formats.CONVERTIBLE`, as indexing has to know them too.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from itertools import islice
from types import ModuleType
from typing import Any, NamedTuple, Protocol

import numpy as np

from .. import formats
from ..arrays.array_file import SUFFIX
from ..arrays.infer import infer_schema
from ..arrays.schema import EXTENDED, Schema, dtype_name
from ..arrays.values import cast
from ..dataset.decode import Decoder
from ..errors import Error, FormatError, SourceError
from ..storage.sources import INDEX_SUFFIX, StrPath, check_unchanged, expand, inspect
from ..writer import Writer
from . import arrow, hdf5, indexed, parquet

_READERS: dict[str, ModuleType] = {module.NAME: module for module in (parquet, arrow, hdf5)}

SUFFIXES: tuple[str, ...] = (
    *formats.SUFFIXES,
    *(suffix for _, suffixes in formats.CONVERTIBLE.values() for suffix in suffixes),
    INDEX_SUFFIX,
)

OPTIONS: dict[str, tuple[type, str, str]] = {
    **formats.OPTIONS,
    **{name: option for module in _READERS.values() for name, option in module.OPTIONS.items()},
}

_REPORTED = 256  # records between two reports


class Reader(Protocol):
    """The records of some sources, one source after another."""

    total: int | None
    """How many there are, where that is known before they are read."""
    schema: Mapping[str, Any] | None
    """Their fields, as `mmapds.Writer` takes them; None where only the records tell."""

    def records(self, schema: Schema | None) -> Iterator[Mapping[str, Any]]:
        """Yield every record: what it has of the fields of a schema, or all it has."""

    def place(self, number: int) -> str:
        """Where a record lies that was yielded, as messages say it."""

    def close(self) -> None:
        """Let go of the sources."""


class Converted(NamedTuple):
    """The outcome of a conversion."""

    path: str
    records: int
    skipped: int
    """Records that were left out, as they lack a field."""
    schema: Schema

    def __str__(self) -> str:
        fields = ", ".join(f"{field.name} ({field})" for field in self.schema.fields)
        skipped = f"; {self.skipped:,} records left out" if self.skipped else ""
        return f"{self.path}: {self.records:,} records of {fields or 'no fields'}{skipped}"


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
    **options: Any,
) -> Converted:
    """Convert sources to one array file, record by record; the file appears when it is whole.

    Args:
      sources: paths, directories, globs or brace patterns of Parquet, Arrow (files and streams), HDF5, and all that can
        be indexed. Records keep their order.
      out: the array file (`.mma`); by default it lies beside a single source: `train.parquet` becomes `train.mma`.
      format: "parquet", "arrow", "hdf5", or how records are framed; by default names, or else first bytes, decide.
      schema: the fields to write and their types, as `mmapds.Writer` takes them. Numbers of arrays are converted where
        nothing but the last digits of fractions is lost. By default what the sources say, or what suits their
        first records.
      fields: which fields to write, in this order; all by default. Fields of structs and groups have dotted names.
      length: the field that token budgets are planned by.
      missing: what to do with a record that lacks a field or has null there: "error", or "skip" to leave the record
        out. A field of type "json" may be null.
      infer: how many records to look at where only records tell what their fields are.
      decode: what makes a sample of a record that is indexed, as in `mmapds.open`. By default what the format says, and
        members of tars by extension, images excepted. A sample that is no dict becomes a field named "data".
      index: write the index too. False where one index will cover several files.
      progress: called with how many records were read since the last call, and how many there are, if that is known.
      **options: of the format: see docs/formats.md.
    Raises:
      SourceError: a source is missing, unreadable, compressed, or changes meanwhile.
      FormatError: a source is damaged, the schema cannot be understood, or a record, whose place is told, does not fit.
      DecodeError: a record cannot be decoded.
      Error: the library that a format takes is missing, or the file cannot be written.
    """
    if isinstance(fields, str):
        raise FormatError(f"fields = {fields!r}, expected a list of names")
    if missing not in ("error", "skip"):
        raise FormatError(f"missing = {missing!r}, expected 'error' or 'skip'")
    if infer < 1:
        raise FormatError(f"infer = {infer}, expected 1 or more")
    paths = expand(sources, SUFFIXES)
    target = _target(paths, out)
    before = [inspect(path) for path in paths if not path.endswith(INDEX_SUFFIX)]
    with closing(_reader(paths, target, format, decode, options)) as reader:
        chosen = _schema(reader, schema, fields, missing == "skip", infer)
        is_whole = schema is None and fields is None  # and fields beyond the schema must not get lost
        with Writer(target, chosen.describe(), length=length, index=index) as writer:
            done, skipped = _copy(reader, chosen, writer, missing == "skip", is_whole, progress)
            for source in before:
                check_unchanged(source)
        return Converted(target, done - skipped, skipped, chosen)


def _target(paths: list[str], out: StrPath | None) -> str:
    """Where to write, which is none of the sources.

    Raises:
      Error: that cannot be told, or is one of them.
    """
    if not paths:
        raise SourceError("no sources were given")
    if out is None and len(paths) > 1:
        raise Error(f"{len(paths):,} sources become one file; name it with -o OUT{SUFFIX}")
    target = os.path.splitext(paths[0])[0] + SUFFIX if out is None else os.fspath(out)
    if not os.path.isdir(os.path.dirname(target) or "."):
        raise Error(f"{target}: cannot write the array file here (no such directory); give another place with -o")
    if os.path.exists(target) and any(os.path.samefile(path, target) for path in paths):
        raise Error(f"{target}: is a source; name another file with -o OUT{SUFFIX}")
    return target


def _reader(
    paths: list[str], target: str, name: str | None, decode: str | Decoder | None, options: Mapping[str, Any]
) -> Reader:
    """Choose what reads the sources.

    Raises:
      FormatError: they are of several formats, or an option is not one of theirs.
    """
    found = {name or formats.convertible(path) or "": path for path in paths}
    if len(found) > 1:
        listed = ", ".join(f"{path} is {found_name or 'indexed'}" for found_name, path in found.items())
        raise FormatError(f"one conversion reads one format, but {listed}; choose with --format")
    module = _READERS.get(next(iter(found)))
    if module is None:
        return indexed.Reader(paths, target, name, decode, options)
    if decode is not None:
        raise FormatError(f"decode={decode!r} is for records that are indexed; {module.NAME} has fields")
    formats.check_options(module.NAME, module.OPTIONS, options)
    return module.Reader(paths, **options)  # type: ignore[no-any-return]


def _schema(
    reader: Reader, given: Mapping[str, Any] | None, fields: Iterable[str] | None, skip: bool, infer: int
) -> Schema:
    """The fields to write.

    Raises:
      FormatError: a field is chosen that there is not.
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
            raise FormatError(f"{what}: there is no {name!r}; the fields are {', '.join(map(repr, known))}")


def _copy(
    reader: Reader,
    schema: Schema,
    writer: Writer,
    skip: bool,
    is_whole: bool,
    progress: Callable[[int, int | None], object],
) -> tuple[int, int]:
    """Write all records; return how many were read, and how many of these were left out."""
    done = skipped = 0
    progress(0, reader.total)
    for record in reader.records(schema):
        try:
            fitted = _fitted(record, schema, skip, is_whole)
            if fitted is None:
                skipped += 1
            else:
                writer.write(fitted)
        except FormatError as error:
            reason = str(error).removeprefix(f"{writer.path}: record {done - skipped}: ")
            raise FormatError(f"{reader.place(done)}: {reason}") from None
        done += 1
        if done % _REPORTED == 0:
            progress(_REPORTED, reader.total)
    progress(done % _REPORTED, reader.total)
    return done, skipped


def _fitted(record: Mapping[str, Any], schema: Schema, skip: bool, is_whole: bool) -> Mapping[str, Any] | None:
    """What the schema names of a record, numbers in arrays converted; None where something is missing.

    Raises:
      FormatError: it is missing and must not be, or there is more.
    """
    fitted = {}
    for field in schema.fields:
        value = record.get(field.name)
        if value is None and field.dtype != "json":
            if skip:
                return None
            raise FormatError(
                f"{'null for' if field.name in record else 'lacks'} field {field.name!r}; leave such records out with "
                f"--missing skip, or allow null with the type json in --schema"
            )
        if isinstance(value, np.ndarray) and field.shape is not None and dtype_name(value.dtype) != field.dtype:
            converted = None if field.dtype in EXTENDED else cast(value, field.dtype)
            if converted is None and value.size and value.dtype.kind in "iuf":
                raise FormatError(
                    f"field {field.name!r}: found {value.dtype}, {value.min()} to {value.max()}, which {field.dtype} "
                    "does not hold; choose another type with --schema"
                )
            value = value if converted is None else converted  # which the writer refuses
        fitted[field.name] = value
    if is_whole and len(record) > len(fitted):
        more = [name for name in record if name not in fitted]
        if more:
            raise FormatError(
                f"has a field {more[0]!r} that the records before it lack; choose fields with --fields or --schema, or "
                "look at more records with --infer"
            )
    return fitted
