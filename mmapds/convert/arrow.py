"""Parquet, and Arrow's IPC files and streams, which Feather and Hugging Face datasets write too.

Loaded only where such files are read, as pyarrow is optional. Rows go into array files as columns, without an object
for each value. Where a value is null or does not fit its field, the rows of its batch are looked at one by one.
"""

from abc import abstractmethod
from collections.abc import Callable, Container, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as is_type

from ..arrays.schema import Schema
from ..errors import Error, FormatError
from .arrow_columns import Part, columns_of, described, is_temporal, objects_of, parts_of, storage_type, stored
from .reader import Batch, FileReader, Refused, cannot_be_read

_ROWS = 4096  # at a time: of 65,536, as pyarrow decodes Parquet by default, caches do not hold the columns
_MAGIC = b"ARROW1"  # of a file of Arrow; a stream has none


class Table(NamedTuple):
    """An open file."""

    schema: Any
    """A pyarrow.Schema."""
    rows: int | None
    """How many there are; None if the file does not say."""
    batches: Callable[[list[str]], Iterable[Any]]
    """Takes the names of columns; returns their rows as pyarrow.RecordBatches."""


class TableReader(FileReader):
    """The rows of tables as records.

    Numbers, text and bytes stay what they are. Lists of numbers become arrays, and each part of a struct a field,
    "image.bytes". Dates, times and durations become integers in their own unit, decimals text, also in JSON, which maps
    and lists of anything else become.

    Raises:
      FormatError: a source cannot be read, or a field has another type than in the sources before.
    """

    RECORD = "row"

    def __init__(self, paths: Sequence[str]) -> None:
        super().__init__(paths)
        rows: list[int | None] = []
        units: dict[str, list[str]] = {}
        for path in paths:
            with self._naming(path), self.open(path) as table:
                rows.append(table.rows)
                fields = [each for field in table.schema for each in _flat_fields(field.name, field.type)]
                _check_units(path, fields, units)
                self._add_fields(path, ((name, _type_of(path, name, found)) for name, found in fields))
        self.total = None if None in rows else sum(count or 0 for count in rows)

    @staticmethod
    @abstractmethod
    def open(path: str) -> AbstractContextManager[Table]:
        """Open a file."""

    @contextmanager
    def _naming(self, path: str) -> Iterator[None]:
        """Name the file in errors of pyarrow."""
        try:
            yield
        except Error:
            raise
        except (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError) as error:
            raise cannot_be_read(path, self.TITLE, error) from error

    def _read(
        self, path: str, schema: Schema | None, _: Container[str] | None, defaults: Container[str]
    ) -> Generator[Batch, None, int]:
        types = {field.name: field.dtype for field in schema.fields} if schema else self._types
        count = 0
        with self._naming(path), self.open(path) as table:
            wanted = [
                field.name
                for field in table.schema
                if any(name in types for name, _ in _flat_fields(field.name, field.type))
            ]
            for batch in table.batches(wanted):
                for begin in range(0, batch.num_rows, _ROWS):
                    rows = batch.slice(begin, _ROWS)
                    parts = [part for name in wanted for part in parts_of(name, rows.column(name), types)]
                    columns = None if schema is None else columns_of(parts, schema, defaults, rows.num_rows)
                    yield Batch(self._records(path, parts, types, rows.num_rows), columns)
                count += batch.num_rows
        return count

    def _records(
        self, path: str, parts: list[Part], types: Mapping[str, Any], count: int
    ) -> Iterator[Mapping[str, Any]]:
        with self._naming(path):
            names = [part.name for part in parts]
            if not names:
                yield from ({} for _ in range(count))
            for row in zip(*(objects_of(part, types[part.name] == "json") for part in parts), strict=True):
                yield dict(zip(names, row, strict=True))


class ParquetReader(TableReader):
    """The rows of Parquet files, a part of a row group at a time."""

    TITLE = "Parquet"

    @staticmethod
    @contextmanager
    def open(path: str) -> Iterator[Table]:
        """Open a file and read its footer."""
        # Without pre_buffer, pages are read as they are decoded; with it, whole row groups are held.
        open_file = partial(pq.ParquetFile, path, pre_buffer=False, buffer_size=1 << 20)
        with open_file() as file:
            schema, rows, repeating = file.schema_arrow, file.metadata.num_rows, _dictionaries(file)
        with open_file(read_dictionary=repeating) as file:
            yield Table(schema, rows, lambda columns: file.iter_batches(_ROWS, columns=columns))


def _dictionaries(file: Any) -> list[str]:
    """Return the columns of text and bytes to read as indices into a dictionary, as the file has them.

    Spelled out, a long value that every row repeats takes its size times the rows: a file of 1 KB can hold terabytes.
    """
    binary = {
        column.path: number
        for number, column in enumerate(file.schema)
        if column.physical_type == "BYTE_ARRAY" and not column.max_repetition_level and "." not in column.path
    }
    groups = [file.metadata.row_group(group) for group in range(file.metadata.num_row_groups)]
    return [
        name
        for name, number in binary.items()
        if any("DICTIONARY" in encoding for group in groups for encoding in group.column(number).encodings)
    ]


class ArrowReader(TableReader):
    """The rows of Arrow files, which are mapped."""

    TITLE = "Arrow"

    @staticmethod
    @contextmanager
    def open(path: str) -> Iterator[Table]:
        """Map a file, or a stream that was written to one."""
        with pa.memory_map(path) as source:
            is_file = source.read(len(_MAGIC)) == _MAGIC
            source.seek(0)
            opened = pa.ipc.open_file(source) if is_file else pa.ipc.open_stream(source)
            found = (opened.get_batch(k) for k in range(opened.num_record_batches)) if is_file else opened
            yield Table(opened.schema, None, lambda columns: (_checked(batch.select(columns)) for batch in found))


def _checked(batch: Any) -> Any:
    """Return a batch once its offsets are found valid: pyarrow does not check those of a mapped file."""
    batch.validate()
    for array in batch.columns:
        _check(array)
    return batch


def _check(array: Any) -> None:
    """Raise pa.ArrowInvalid for offsets or text that are not valid.

    Dates and decimals have neither. Others write dates that are not whole days, and more digits than the type says.
    """
    array = stored(array)
    array.validate()
    if is_type.is_struct(array.type):
        for number in range(array.type.num_fields):
            _check(array.field(number))
    elif not (is_temporal(array.type) or is_type.is_decimal(array.type)):
        array.validate(full=True)


# ---- fields ---------------------------------------------------------------------------------------------------------


def _flat_fields(name: str, found: Any) -> Iterator[tuple[str, Any]]:
    """Yield the name and Arrow type of a field, or of the parts of a struct."""
    found = storage_type(found)
    if is_type.is_struct(found) and found.num_fields:
        for part in found:
            yield from _flat_fields(f"{name}.{part.name}", part.type)
    else:
        yield name, found


def _type_of(path: str, name: str, found: Any) -> Any:
    """Return the type of a field as schemas have it; a Refused for what pyarrow does not read well."""
    is_refused = any(is_type.is_union(part) or part.id == pa.lib.Type_INTERVAL_MONTHS for part in _within(found))
    return Refused(f"{path}: field {name!r}", str(found)) if is_refused else described(found)


def _within(found: Any) -> Iterator[Any]:
    """Yield a type, and those of its parts at any depth."""
    yield found
    parts = [found.field(part).type for part in range(found.num_fields)]
    if is_type.is_dictionary(found):
        parts.append(found.value_type)
    elif isinstance(found, pa.BaseExtensionType):
        parts.append(found.storage_type)
    for part in parts:
        yield from _within(part)


def _check_units(path: str, fields: Iterable[tuple[str, Any]], units: dict[str, list[str]]) -> None:
    """Raise FormatError if dates, times or durations have another unit than those of the files before.

    Args:
      units: those of each field, at any depth and without time zones; the fields of this file are added.
    """
    for name, found in fields:
        here = [
            f"timestamp[{part.unit}]" if is_type.is_timestamp(part) else str(part)
            for part in _within(found)
            if is_temporal(part)
        ]
        before = units.setdefault(name, here)
        if here and before and here != before:
            raise FormatError(
                f"{path}: field {name!r}: expected {', '.join(before)}, as in the files before, found "
                f"{', '.join(here)}; convert them one by one"
            )
        units[name] = before or here
