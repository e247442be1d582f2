"""Converting sources to array files, also those that cannot be read in place: `convert()`, `python -m mmapds.convert`.

Parquet, Arrow and HDF5 are read by libraries of their own, each by a `FileReader`; see `reader`. Whatever mmapds can
index is read through an index that is removed afterwards; see `indexed`. `formats.CONVERTIBLE` has the names and first
bytes that Parquet, Arrow and HDF5 files are recognised by, because indexing needs them too.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from .. import formats
from ..arrays.array_file import SUFFIX, Head
from ..arrays.infer import infer_schema
from ..arrays.schema import EXTENDED, Field, Schema, dtype_name
from ..arrays.values import cast
from ..dataset.decode import Decoder
from ..errors import Error, FormatError, counted, unknown_argument
from ..storage.lock import create_temporary, locked
from ..storage.sources import INDEX_SUFFIX, StrPath, check_unchanged, expand, inspect, reason, working_directory
from ..writer import Writer
from .arrow import ArrowReader
from .hdf5 import Hdf5Reader
from .indexed import IndexedReader, remove_hidden
from .parquet import ParquetReader
from .reader import FileReader, Reader

_FILE_READERS: dict[str, type[FileReader]] = {each.NAME: each for each in (ParquetReader, ArrowReader, Hdf5Reader)}

SUFFIXES: tuple[str, ...] = (
    *formats.SUFFIXES,
    *(suffix for _, suffixes in formats.CONVERTIBLE.values() for suffix in suffixes),
    INDEX_SUFFIX,
)
"""What the names of files end in that are taken from a directory."""

OPTIONS: dict[str, tuple[type, str, str]] = {
    **formats.OPTIONS,
    **{name: option for reader in _FILE_READERS.values() for name, option in reader.OPTIONS.items()},
}
"""Options of all formats, by name: (type, placeholder, help), for the command line."""

_ELSEWHERE = f"-o OUT{SUFFIX} (out= in Python)"
_REPORTED = 256  # records between two calls of `progress`


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
    before = [inspect(path) for path in paths if not path.endswith(INDEX_SUFFIX)]
    with _alone(target), closing(_reader(paths, target, format, decode, roots, options)) as reader:
        chosen = _schema(reader, schema, fields, missing == "skip", infer)
        is_whole = schema is None and fields is None  # so that a field beyond the schema is an error
        kept = _length_before(target, chosen) if length is None else None
        with Writer(target, chosen.describe(), length=length or kept, index=index) as writer:
            done, skipped = _copy(reader, chosen, writer, missing == "skip", is_whole, progress)
            for source in before:
                check_unchanged(source)
        return Converted(target, done - skipped, skipped, chosen, kept)


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


def _reader(
    paths: list[str],
    target: str,
    name: str | None,
    decode: str | Decoder | None,
    roots: StrPath | Iterable[StrPath],
    options: Mapping[str, Any],
) -> Reader:
    """Return the reader of the sources.

    Raises:
      FormatError: they have several formats, or their format lacks an option.
    """
    found = {name or formats.convertible(path) or "": path for path in paths}
    if len(found) > 1:
        listed = ", ".join(f"{path} ({found_name or 'to be indexed'})" for found_name, path in found.items())
        raise FormatError(
            f"sources: expected one format in one conversion, found {listed}; convert them one by one, or choose one "
            "with --format F"
        )
    reader = _FILE_READERS.get(next(iter(found)))
    if reader is None:
        return IndexedReader(paths, target, name, decode, roots, options)
    if decode is not None:
        raise FormatError(f"decode = {decode!r}, expected None, as records of {reader.TITLE} have types")
    formats.check_options(reader.NAME, reader.OPTIONS, options)
    return reader(paths, **options)


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


def _copy(
    reader: Reader,
    schema: Schema,
    writer: Writer,
    skip: bool,
    is_whole: bool,
    progress: Callable[[int, int | None], object],
) -> tuple[int, int]:
    """Write all records; return how many were read, and how many of them were left out."""
    done = skipped = 0
    first = ""  # where the first record lies that is left out, and what it has
    progress(0, reader.total)
    for record in reader.records(schema):
        try:
            fitted = _fitted(record, schema, skip, is_whole)
            if fitted is None:
                first = first or _described(reader.place(done), record, schema)
                skipped += 1
            else:
                writer.write(fitted)
        except FormatError as error:
            reason = str(error).removeprefix(f"{writer.path}: record {done - skipped}: ")
            raise FormatError(f"{reader.place(done)}: {reason}") from None
        except MemoryError:
            raise FormatError(
                f"{reader.place(done)}: expected a record that fits into memory, found no room; convert it on a "
                "machine with more memory"
            ) from None
        done += 1
        if done % _REPORTED == 0:
            progress(_REPORTED, reader.total)
    progress(done % _REPORTED, reader.total)
    if skipped == done > 0:
        raise FormatError(f"{first}; 0 of {done:,} records have all of them: choose others with --fields or --schema")
    return done, skipped


def _described(place: str, record: Mapping[str, Any], schema: Schema) -> str:
    expected = ", ".join(repr(field.name) for field in schema.fields)
    found = ", ".join(repr(name) for name, value in record.items() if value is not None) or "none"
    return f"{place}: expected fields {expected}, found {found}"


def _fitted(record: Mapping[str, Any], schema: Schema, skip: bool, is_whole: bool) -> Mapping[str, Any] | None:
    """Return the fields of a record that the schema names, numbers in arrays converted; None to leave the record out.

    Args:
      skip: leave records out that lack a field.
      is_whole: the record must not have fields beyond the schema.
    Raises:
      FormatError: a field is missing, does not fit, or is beyond the schema.
    """
    fitted: dict[str, Any] = {}
    for field in schema.fields:
        value = record.get(field.name)
        if value is None and field.dtype != "json":
            if skip:
                return None
            raise FormatError(
                f"field {field.name!r}: expected {field}, found {'null' if field.name in record else 'nothing'}; leave "
                "such records out with --missing skip, or give the field the type json in --schema"
            )
        if isinstance(value, np.ndarray) and field.shape is not None and dtype_name(value.dtype) != field.dtype:
            value = _converted(value, field)
        fitted[field.name] = value
    if is_whole and len(record) > len(fitted):
        more = [name for name in record if name not in fitted]
        if more:
            known = ", ".join(map(repr, fitted))
            raise FormatError(
                f"expected fields among {known}, as in the records before it, found {more[0]!r}; choose fields with "
                "--fields or --schema, or look at more records with --infer N"
            )
    return fitted


def _converted(array: Any, field: Field) -> Any:
    """Return an array as the dtype of a field; the array itself if that is impossible, which the writer refuses.

    Raises:
      FormatError: its numbers do not fit the dtype.
    """
    converted = None if field.dtype in EXTENDED else cast(array, field.dtype)
    if converted is None and array.size and array.dtype.kind in "iuf":
        raise FormatError(
            f"field {field.name!r}: expected numbers that fit {field.dtype}, found {array.dtype} from {array.min()} to "
            f"{array.max()}; choose another type with --schema"
        )
    return array if converted is None else converted
