"""The rows of Parquet's row groups as records of an array file, and their columns, by pyarrow.

Imported only to read such files, because pyarrow is optional.
"""

import io
import os
import weakref
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from .. import _native
from ..arrays.packed import Values, cells_of, packed
from ..arrays.schema import Schema
from ..arrays.tables import flat_fields, parts_of, type_of, values_of
from ..compression.blocks import BlockError, Data
from ..errors import ColumnError, Error, FormatError, option
from .expressions import Expression

_ROWS, _BYTES = 4096, 16 << 20  # that are decoded at a time, at most
_FOOTERS = 16  # that are kept parsed in a process


# ---- columns -------------------------------------------------------------------------------------------------------


class Column(NamedTuple):
    """What is measured of each row."""

    measure: int
    field: int = 0  # its number in the schema, unless the whole row is measured

    @classmethod
    def of(cls, schema: Schema, name: str, expression: Expression) -> "Column":
        """Return the column of an expression; raise ColumnError if no field has it."""
        if expression.text == "bytes()":
            return cls(expression.measure)
        path = ".".join((key or b"[*]").decode() for key in expression.path)
        known = {"bytes()": -1}
        for number, field in enumerate(schema.fields):
            measures: tuple[int, ...] = ()
            if field.dtype in ("str", "bytes"):
                measures = (_native.MEASURE_BYTES, _native.MEASURE_CHARS)[: 1 + (field.dtype == "str")]
            elif field.column:
                measures = (_native.MEASURE_NUMBER if field.is_scalar else _native.MEASURE_ITEMS,)
            if field.name == path and expression.measure in measures:
                return cls(expression.measure, number)
            known |= dict.fromkeys((_TEXTS[each].format(field.name) for each in measures), number)
        is_json = any(field.name == path and field.dtype == "json" for field in schema.fields)
        why = f", which has nulls or values of JSON; compute it by mmapds.add_column(path, {name!r}, FUNCTION)"
        expected = f"expected one of {', '.join(known)}, found {expression.text!r}"
        raise ColumnError(f"column {name!r}: {expected}{why * is_json}")

    def cells(self, schema: Schema, sizes: Any, values: Sequence[Any], parts: Mapping[str, Any]) -> tuple[int, Any]:
        """Return the type of the cells of some rows, and the cells."""
        if self.measure == _native.MEASURE_RECORD:
            return _native.NUMBER_U64, sizes
        field, found = schema.fields[self.field], values[self.field]
        if self.measure == _native.MEASURE_CHARS:
            return _native.NUMBER_U64, _chars(parts[field.name])
        if self.measure == _native.MEASURE_BYTES:
            return _native.NUMBER_U64, found.sizes
        return cells_of(field, found)


_TEXTS = {_native.MEASURE_NUMBER: "{}", _native.MEASURE_ITEMS: "items({})"}
_TEXTS |= {_native.MEASURE_BYTES: "bytes({})", _native.MEASURE_CHARS: "chars({})"}


def _chars(array: Any) -> Any:
    """Return the code points of texts."""
    return pc.utf8_length(array).to_numpy(zero_copy_only=False).astype(np.uint64)


def _joined(cells: Sequence[Any]) -> memoryview:
    found: Any = [np.asarray(each).view(np.uint64) for each in cells]
    joined: Any = np.concatenate([*found, np.zeros(0, np.uint64)])
    return memoryview(joined)


def _kind(cells: Sequence[tuple[int, Any]]) -> int:
    """Return the type of the cells of a column: signed if any are."""
    kinds = {kind for kind, _ in cells} or {_native.NUMBER_U64}
    return _native.NUMBER_I64 if _native.NUMBER_I64 in kinds else kinds.pop()


# ---- rows -----------------------------------------------------------------------------------------------------------


class Measured(NamedTuple):
    """The rows of some row groups: shapes (rows,)."""

    sizes: NDArray[np.uint64]
    ends: NDArray[np.uint64]
    columns: tuple[tuple[int, memoryview], ...]


class Rows:
    """The rows of a file as records of an array file.

    Args:
      opened: the file, read by guarded copies: it stays what it was if another one gets its name. None opens the path.
      metadata: its footer, if it is known.
    """

    def __init__(self, path: str, schema: Schema, opened: _native.Map | None = None, metadata: Any = None) -> None:
        self._path, self._schema, self._opened, self._metadata = path, schema, opened, metadata

    def content(self, group: int) -> Iterator[Data]:
        """Yield the bytes of the rows of a row group; a piece is valid until the next one."""
        try:
            for count, values, _ in self._read(range(group, group + 1)):
                for piece, _ in packed(self._schema, values, count):
                    yield piece
        except FormatError as error:
            raise BlockError(str(error).removeprefix(f"{self._path}: ")) from None

    def measured(self, groups: range, columns: Sequence[Column]) -> Measured:
        """Return the sizes of the rows of some row groups, and their columns."""
        sizes: list[Any] = [np.zeros(0, np.uint64)]
        cells: list[list[Any]] = [[] for _ in columns]
        for count, values, parts in self._read(groups):
            own = [np.diff(ends, prepend=np.uint64(0)) for _, ends in packed(self._schema, values, count)]
            sizes += own
            for column, measure in zip(cells, columns, strict=True):
                column.append(measure.cells(self._schema, np.concatenate(own), values, parts))
        found = np.concatenate(sizes)
        made = tuple((_kind(each), _joined([of for _, of in each])) for each in cells)
        return Measured(found, np.cumsum(found, dtype=np.uint64), made)

    def _read(self, groups: range) -> Iterator[tuple[int, Sequence[Values], Mapping[str, Any]]]:
        """Yield some rows at a time: their number, the values of all fields, and these as arrays of pyarrow."""
        wanted = set(self._schema.names)
        source: Any = self._path if self._opened is None else _MapFile(self._opened)
        how: Any = {"pre_buffer": False, "buffer_size": 1 << 20, "page_checksum_verification": True}
        with naming(self._path), pq.ParquetFile(source, metadata=self._metadata, **how) as file:
            self._keep(file.metadata)
            held = [file.metadata.row_group(group) for group in groups]
            size = sum(each.total_byte_size for each in held)
            rows = min(max(_BYTES * sum(each.num_rows for each in held) // max(size, 1), 1), _ROWS)
            fields = ((each.name, flat_fields(each.name, each.type)) for each in file.schema_arrow)
            names = [name for name, flat in fields if any(part in wanted for part, _ in flat)]
            for batch in file.iter_batches(rows, row_groups=list(groups), columns=names, use_threads=False):
                parts = dict(part for name in names for part in parts_of(name, batch.column(name), wanted))
                yield batch.num_rows, self._values(groups.start, parts), parts

    def _values(self, group: int, parts: Mapping[str, Any]) -> list[Values]:
        """Return the values of all fields; raise FormatError for the first one whose values do not fit."""
        found = []
        for field in self._schema.fields:
            values = values_of(field, parts[field.name], False)
            if values is None:
                has_null = parts[field.name].null_count > 0
                other = "a null" if has_null else "a list of another shape, or text that is not UTF-8"
                what = f"row group {group}: field {field.name!r}: expected {field}, found {other}"
                raise FormatError(f"{self._path}: {what}; give {option('as_json', field.name)}, or convert the file")
            found.append(values)
        return found

    def _keep(self, metadata: Any) -> None:
        """Keep the footer, and forget that of the file that was read longest ago."""
        if self._metadata is None:
            self._metadata = metadata
            _parsed.append(weakref.ref(self))
            if len(_parsed) > _FOOTERS and (oldest := _parsed.popleft()()) is not None:
                oldest._metadata = None


_parsed: deque[weakref.ref[Rows]] = deque()
"""Those whose footers are kept; a dataset that is dropped takes its files with it."""


class _MapFile(io.RawIOBase):
    """A file for pyarrow, over one that the core has opened."""

    def __init__(self, opened: _native.Map) -> None:
        self._opened, self._at = opened, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + (0, self._at, self._opened.size)[whence]
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        left = max(self._opened.size - self._at, 0)
        found = self._opened.read(self._at, left if size is None or size < 0 else min(size, left))
        self._at += len(found)
        return found


# ---- footers -------------------------------------------------------------------------------------------------------


@contextmanager
def opened(path: str) -> Iterator[Any]:
    """Open a file and read its footer."""
    with naming(path), pq.ParquetFile(path, pre_buffer=False) as file:
        yield file


@contextmanager
def naming(path: str) -> Iterator[None]:
    """Turn errors of pyarrow into FormatError."""
    try:
        yield
    except (Error, MemoryError):
        raise
    except (OSError, ValueError) as error:  # those of pyarrow are both
        said = str(error).partition("\n")[0].rstrip(".")
        raise FormatError(f"{path}: not a readable Parquet file: {said}") from None


def types_of(path: str, file: Any) -> dict[str, Any]:
    """Return the type of each field of a file, or an error object for a type that array files lack."""
    found: dict[str, Any] = {}
    for field in file.schema_arrow:
        for name, kind in flat_fields(field.name, field.type):
            if name in found:
                raise FormatError(f"{path}: expected fields of different names, found two {name!r}")
            found[name] = type_of(f"{path}: field {name!r}", kind)
    return found


def with_nulls(file: Any) -> set[str]:
    """Return the names of columns whose statistics count nulls."""
    groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
    found = set()
    for number in range(file.metadata.num_columns):
        columns = (group.column(number) for group in groups)
        if any(each.statistics is not None and each.statistics.null_count for each in columns):
            found.add(file.metadata.schema.column(number).path)
    return found


def rows_of(metadata: Any) -> list[int]:
    """Return the number of rows of each row group."""
    return [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]


def runs_of(metadata: Any) -> Iterator[range]:
    """Yield runs of row groups that are decoded together: one, or several small ones."""
    first = rows = size = 0
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        rows, size = rows + group.num_rows, size + group.total_byte_size
        if number > first and (rows > _ROWS or size > _BYTES):
            yield range(first, number)
            first, rows, size = number, group.num_rows, group.total_byte_size
    if metadata.num_row_groups:
        yield range(first, metadata.num_row_groups)


def begins_of(metadata: Any) -> list[int]:
    """Return the byte of the file where each row group begins, rising."""
    begins, last = [], 0
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        columns = [group.column(column) for column in range(group.num_columns)]
        offsets = [each.dictionary_page_offset or each.data_page_offset for each in columns]
        last = max(last, min(offsets, default=0))
        begins.append(last)
    return begins
