"""How sources are read, and their records, fitted to a schema and written."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from .. import formats
from ..arrays.schema import Schema
from ..dataset.decode import Decoder
from ..errors import Error, FormatError, either
from ..storage.sources import INDEX_SUFFIX, StrPath, listed
from ..writer import Writer, append_columns, bytes_of
from .fit import LacksFieldError, Rules, fit, missing, remedy
from .indexed import IndexedReader
from .reader import FileReader, Reader
from .target import hidden_index, too_much

OTHER_OPTIONS: dict[str, dict[str, tuple[type, str, str]]] = {
    "parquet": {},
    "arrow": {},
    "hdf5": {
        "records": (str, "rows|groups", "hdf5: a record is a row of all datasets, or each group (or dataset)"),
        "group": (str, "PATH", "hdf5: the group that holds the records; default: the root"),
    },
}
"""Options of the formats that another library reads, by name: (type, placeholder, help), for the command line."""
_TITLES = {"parquet": "Parquet", "arrow": "Arrow", "hdf5": "HDF5"}
_REPORTED = 256  # records between two calls of `progress`
_AT_ONCE = 64 << 20  # bytes of records that are written as columns; more are written, and reported, one by one


class Copied(NamedTuple):
    """What became of the records of some sources."""

    read: int
    skipped: int
    """How many of them were left out."""
    first: str
    """Where the first of these lies, and what it has."""

    @property
    def left(self) -> int:
        """How many were written."""
        return self.read - self.skipped

    def __add__(self, other: "Copied") -> "Copied":  # type: ignore[override]
        return Copied(self.read + other.read, self.skipped + other.skipped, self.first or other.first)

    def check_something_is_left(self) -> None:
        """Raise FormatError if all records were left out."""
        if self.skipped == self.read > 0:
            raise FormatError(
                f"{self.first}; 0 of {self.read:,} records have all of them: choose others with "
                f"{either('--fields or --schema', 'fields=... or schema=...')}"
            )


class Reading(NamedTuple):
    """How the records of sources are read, as `mmapds.convert.convert` takes it."""

    format_name: str | None
    decode: str | Decoder | None
    roots: StrPath | Iterable[StrPath]
    options: Mapping[str, Any]

    def open(self, paths: list[str], target: str) -> Reader:
        """Return the reader of some sources.

        Args:
          target: the file to write, beside which an index may be made.
        Raises:
          FormatError: they have several formats, or their format lacks an option.
        """
        found = {self.format_name or formats.convertible(path) or "": path for path in paths}
        if len(found) > 1:
            shown = ", ".join(f"{path} ({found_name or 'to be indexed'})" for found_name, path in found.items())
            raise FormatError(
                f"sources: expected one format in one conversion, found {shown}; convert them one by one, or choose "
                f"one with {either('--format F', 'format=...')}"
            )
        chosen = next(iter(found))
        if chosen not in OTHER_OPTIONS:
            if others := [option for option in self.options if option not in formats.OPTIONS]:
                known = ", ".join(formats.OPTIONS)
                raise FormatError(f"{others[0]} = {self.options[others[0]]!r}, expected one of the options {known}")
            return IndexedReader(paths, hidden_index(target), self.format_name, self.decode, self.roots, self.options)
        if self.decode is not None:
            raise FormatError(f"decode = {self.decode!r}, expected None, as records of {_TITLES[chosen]} have types")
        formats.check_options(chosen, OTHER_OPTIONS[chosen], self.options)
        return _file_reader(chosen, paths[0])(paths, **self.options)

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


def _file_reader(name: str, path: str) -> type[FileReader]:
    """Return the reader of a format that another library reads.

    Raises:
      Error: the library is missing.
    """
    try:
        if name == "hdf5":
            from .hdf5 import Hdf5Reader  # h5py is optional

            return Hdf5Reader
        from .arrow import ArrowReader, ParquetReader  # pyarrow is optional

        return ParquetReader if name == "parquet" else ArrowReader
    except ImportError:
        library, extra = ("h5py", "hdf5") if name == "hdf5" else ("pyarrow", "parquet")
        raise Error(f"{path}: reading {_TITLES[name]} needs {library}; run: pip install 'mmapds[{extra}]'") from None


def copy_records(reader: Reader, rules: Rules, writer: Writer, progress: Callable[[int, int | None], object]) -> Copied:
    """Write all records that a reader has, fitted to a schema.

    Args:
      progress: see `mmapds.convert.convert`.
    Raises:
      FormatError: a record does not fit, or more is written than may be; the message has its place.
      DecodeError: a record cannot be decoded.
    """
    done = skipped = 0
    first = ""
    progress(0, reader.total)
    for block in reader.batches(rules.schema, None, rules.defaults):
        is_small = block.columns is not None and block.columns.nbytes <= _AT_ONCE
        if block.columns is not None and is_small and append_columns(writer, block.columns):
            done += block.columns.count
            _check_written(reader, done, rules, writer)
            progress(block.columns.count, reader.total)
            continue
        before, records = done, iter(block.records)
        for record in records:
            if not _write(record, records, rules, writer, done - skipped, partial(reader.place, done)):
                first = first or _described(reader.place(done), record, rules.schema)
                skipped += 1
            done += 1
            _check_written(reader, done, rules, writer)
            if (done - before) % _REPORTED == 0:
                progress(_REPORTED, reader.total)
        progress((done - before) % _REPORTED, reader.total)
    return Copied(done, skipped, first)


def _check_written(reader: Reader, done: int, rules: Rules, writer: Writer) -> None:
    """Raise FormatError if more was written than may be, now that so many records are done."""
    written = bytes_of(writer)
    if rules.max_bytes is not None and written > rules.max_bytes:
        raise too_much(reader.place(done - 1), written, rules.max_bytes)


def _write(
    record: Mapping[str, Any],
    rest: Iterator[Mapping[str, Any]],
    rules: Rules,
    writer: Writer,
    number: int,
    place: Callable[[], str],
) -> bool:
    """Write a record; return whether it was written, and not left out.

    Args:
      rest: the records after it, for an error.
      number: how many were written before it.
      place: returns where it lies.
    """
    try:
        fitted = fit(record, rules)
        if fitted is not None:
            _write_fitted(fitted, rules, writer, number)
    except LacksFieldError:
        where = place()
        raise FormatError(f"{where}: {missing(record, rest, rules)}") from None
    except FormatError as error:
        raise FormatError(f"{place()}: {error}") from None
    except MemoryError:
        raise FormatError(
            f"{place()}: expected a record that fits into memory, found no room; convert it on a machine with more "
            "memory"
        ) from None
    return fitted is not None


def _write_fitted(fitted: Mapping[str, Any], rules: Rules, writer: Writer, number: int) -> None:
    """Write a record; an error says what to do about it."""
    try:
        writer.write(fitted)
    except FormatError as error:
        reason = str(error).removeprefix(f"{writer.path}: record {number}: ")
        raise FormatError(f"{reason}; {remedy(fitted, rules.schema)}") from None


def _described(place: str, record: Mapping[str, Any], schema: Schema) -> str:
    expected = ", ".join(repr(field.name) for field in schema.fields)
    found = ", ".join(repr(name) for name, value in record.items() if value is not None) or "none"
    return f"{place}: expected fields {expected}, found {found}"
