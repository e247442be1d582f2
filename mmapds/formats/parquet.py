"""Parquet: a row is a record of named fields, and a row group is a block of records.

The content of a source is what an array file of its rows would hold. So a row group is decoded, cached and waited for
as a block of a compressed source, and all that reads array files reads it. pyarrow decodes; it is optional.
"""

import io
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import _native
from ..compression.blocks import BlockError, BlockStart
from ..compression.content import Data, in_flight
from ..errors import ColumnError, Error, FormatError, option
from ..storage.workers import in_order
from .expressions import Expression, Measuring
from .format import End, FieldsOf, Format, Option, OptionError, Parameters, Piece, Sample, Sources

if TYPE_CHECKING:
    import numpy as np

    from ..arrays.schema import Schema

_ROWS, _BYTES = 4096, 16 << 20  # that are decoded at a time, at most
_FOOTERS = 16  # that are kept parsed in a process


class Parquet(Format):
    """Rows of Parquet files."""

    name = "parquet"
    suffixes = (".parquet", ".pq")
    reads_compressed = True
    options = {
        "select": Option(str, "A,B", "parquet: the fields to read; default: all"),
        "as_json": Option(str, "A,B", "parquet: fields whose values come as in JSON: nulls, and lists of any shape"),
    }

    def recognises(self, path: str, head: bytes) -> bool:
        return head.startswith((b"PAR1", b"PARE"))

    def parameters(self, given: Mapping[str, Any], sources: Sequence[str]) -> dict[str, Any]:
        """Return the `schema` of all sources."""
        select, as_json = (_names(given, name) for name in ("select", "as_json"))
        found: dict[str, Any] = {}
        nulls = set(as_json or ())
        for path in sources:
            with _opened(path) as file:
                types = _types(path, file)
                nulls |= _with_nulls(file)
            found = found or dict(types)
            for name, kind in types.items():
                before = found.get(name, kind)
                if "null" in (before, kind):  # a file without rows, or with nulls alone
                    nulls.add(name)
                    found[name] = kind if before == "null" else before
                elif repr(before) != repr(kind) and not isinstance(kind, FormatError):
                    expected = f"expected {before}, as in {sources[0]}, found {kind}"
                    raise FormatError(f"{path}: field {name!r}: {expected}")
            for one, other, where in ((found, types, path), (types, found, sources[0])):
                if missing := one.keys() - other.keys():
                    also = sources[0] if where == path else path
                    raise FormatError(f"{where}: expected a field {min(missing)!r}, as in {also}, found none")
        for what, names in (("select", select), ("as_json", as_json)):
            for name in names or ():
                if name not in found:
                    known = ", ".join(map(repr, found))
                    raise OptionError(f"{what} = {name!r}, expected fields among {known}")
        schema: dict[str, Any] = {}
        for name in select or found:
            kind = "json" if name in nulls and not isinstance(found[name], tuple) else found[name]
            schema[name] = "json" if name in (as_json or ()) or kind == "null" else kind
            if isinstance(schema[name], FormatError):
                others = [other for other in found if other != name]
                raise FormatError(f"{schema[name]}; leave it out with {option('select', ','.join(others))}")
        from ..arrays.schema import Schema  # start-up time

        chosen = {"select": select, "as_json": as_json}
        return {"schema": Schema(schema).describe(), **{name: names for name, names in chosen.items() if names}}

    def decoder(self, parameters: Parameters) -> Sample:
        return FieldsOf(parameters["schema"])

    def scan(self, sources: Sources, parameters: Parameters, measuring: Measuring, *, workers: int) -> Iterator[Piece]:
        """Yield the rows of every row group: the sizes that they have as records of an array file, and columns."""
        from ..arrays.schema import Schema  # start-up time

        measuring.check_binary()
        schema = Schema(parameters["schema"])
        columns = [_Column.of(schema, name, each) for name, each in measuring.columns.items()]
        for number, source in enumerate(sources):
            with _opened(source.path) as file:
                metadata = file.metadata
            begins = [0, *_begins(metadata)[1:], source.size]
            counts = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
            tasks, read = list(_runs(metadata)), Rows(source.path, schema, metadata=metadata)

            def load(groups: range, _: Any, read: Rows = read) -> tuple[range, "_Rows"]:
                return groups, read.measured(groups, columns)

            done = content = 0
            threads = min(workers, max(len(tasks), 1))
            slots = list(range(in_flight(threads)))
            for groups, found in in_order(load, tasks, workers=threads, slots=slots):
                starts: Any = content + found.ends - found.sizes
                *firsts, rows = accumulate(counts[groups.start : groups.stop], initial=0)
                if rows != len(starts):
                    raise FormatError(
                        f"{source.path}: row group {groups.start}: expected {rows} rows, found {len(starts)}"
                    )
                before = (content + int(found.ends[row - 1]) if row else content for row in firsts)
                blocks = tuple(BlockStart(begins[group], at) for group, at in zip(groups, before, strict=True))
                content, done = content + int(found.sizes.sum()), done + rows
                end = End(done, content, content=content) if groups.stop == len(counts) else None
                scanned = begins[groups.stop] - begins[groups.start]
                yield Piece(number, memoryview(starts), found.columns, 0, scanned, end, blocks=blocks)
            if not tasks:
                none = memoryview(b"").cast("Q")
                empty = tuple((_native.NUMBER_U64, none) for _ in columns)
                yield Piece(number, none, empty, 0, source.size, End(0, 0))

    def blocks(self, parameters: Parameters, path: str, known: _native.Map) -> Callable[[int], Iterator[Data]]:
        """Return what yields the content of each row group of a source; see `Format.blocks`."""
        from ..arrays.schema import Schema  # start-up time

        rows = Rows(path, Schema(parameters["schema"]), known)
        return rows.content


class _Rows(NamedTuple):
    """The rows of some row groups: shapes (rows,)."""

    sizes: "np.ndarray[Any, np.dtype[np.uint64]]"
    ends: "np.ndarray[Any, np.dtype[np.uint64]]"
    columns: tuple[tuple[int, memoryview], ...]


class Rows:
    """The rows of a file as records of an array file.

    Args:
      opened: the file, read by guarded copies: it stays what it was if another one gets its name. None opens the path.
      metadata: its footer, if it is known.
    """

    def __init__(self, path: str, schema: "Schema", opened: _native.Map | None = None, metadata: Any = None) -> None:
        self._path, self._schema, self._opened, self._metadata = path, schema, opened, metadata

    def content(self, group: int) -> Iterator[bytes | memoryview]:
        """Yield the bytes of the rows of a row group; a piece is valid until the next one."""
        from ..arrays.packed import packed

        try:
            for count, values, _ in self._read(range(group, group + 1)):
                for piece, _ in packed(self._schema, values, count):
                    yield piece
        except FormatError as error:
            raise BlockError(str(error).removeprefix(f"{self._path}: ")) from None

    def measured(self, groups: range, columns: Sequence["_Column"]) -> _Rows:
        """Return the sizes of the rows of some row groups, and their columns."""
        import numpy as np  # start-up time

        from ..arrays.packed import packed

        sizes: list[Any] = [np.zeros(0, np.uint64)]
        cells: list[list[Any]] = [[] for _ in columns]
        for count, values, parts in self._read(groups):
            own = [np.diff(ends, prepend=np.uint64(0)) for _, ends in packed(self._schema, values, count)]
            sizes += own
            for column, measure in zip(cells, columns, strict=True):
                column.append(measure.cells(self._schema, np.concatenate(own), values, parts))
        found = np.concatenate(sizes)
        made = tuple((_kind(each), _joined([of for _, of in each])) for each in cells)
        return _Rows(found, np.cumsum(found, dtype=np.uint64), made)

    def _read(self, groups: range) -> Iterator[tuple[int, Sequence[Any], Mapping[str, Any]]]:
        """Yield some rows at a time: their number, the values of all fields, and these as arrays of pyarrow."""
        import pyarrow.parquet as pq

        from ..arrays.tables import columns_of, flat_fields, parts_of

        wanted = set(self._schema.names)
        source: Any = self._path if self._opened is None else _MapFile(self._opened)
        how: Any = {"pre_buffer": False, "buffer_size": 1 << 20, "page_checksum_verification": True}
        with _naming(self._path), pq.ParquetFile(source, metadata=self._metadata, **how) as file:
            self._keep(file.metadata)
            held = [file.metadata.row_group(group) for group in groups]
            size = sum(each.total_byte_size for each in held)
            rows = min(max(_BYTES * sum(each.num_rows for each in held) // max(size, 1), 1), _ROWS)
            fields = ((each.name, flat_fields(each.name, each.type)) for each in file.schema_arrow)
            names = [name for name, flat in fields if any(part in wanted for part, _ in flat)]
            for batch in file.iter_batches(rows, row_groups=list(groups), columns=names, use_threads=False):
                parts = dict(part for name in names for part in parts_of(name, batch.column(name), wanted))
                values = columns_of(parts, self._schema, ())
                if values is None:
                    raise self._misfit(groups.start, parts)
                yield batch.num_rows, values, parts

    def _keep(self, metadata: Any) -> None:
        """Keep the footer, and forget that of the file that was read longest ago."""
        if self._metadata is None:
            self._metadata = metadata
            _parsed.append(self)
            if len(_parsed) > _FOOTERS:
                _parsed.popleft()._metadata = None

    def _misfit(self, group: int, parts: Mapping[str, Any]) -> FormatError:
        """Return the error for the first field whose values do not fit."""
        from ..arrays.tables import values_of

        misfits = (field for field in self._schema.fields if values_of(field, parts[field.name], False) is None)
        field = next(misfits)
        found = "a null" if parts[field.name].null_count else "a list of another shape, or text that is not UTF-8"
        what = f"row group {group}: field {field.name!r}: expected {field}, found {found}"
        return FormatError(f"{self._path}: {what}; give {option('as_json', field.name)}, or convert the file")


_parsed: deque[Rows] = deque()
"""Those whose footers are kept."""


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


# ---- the schema ------------------------------------------------------------------------------------------------------


def _names(given: Mapping[str, Any], name: str) -> list[str] | None:
    """Return the names in an option, a list or a text with commas; None if it is not given."""
    found = given.get(name)
    names = found.split(",") if isinstance(found, str) else found
    if names is not None and (not isinstance(names, list | tuple) or not names or "" in names):
        raise OptionError(f"{name} = {found!r}, expected names of fields")
    return names if names is None else list(names)


def _types(path: str, file: Any) -> dict[str, Any]:
    """Return the type of each field of a file, or an error object for a type that array files lack."""
    from ..arrays.tables import flat_fields, type_of

    found: dict[str, Any] = {}
    for field in file.schema_arrow:
        for name, kind in flat_fields(field.name, field.type):
            if name in found:
                raise FormatError(f"{path}: expected fields of different names, found two {name!r}")
            found[name] = type_of(f"{path}: field {name!r}", kind)
    return found


def _with_nulls(file: Any) -> set[str]:
    """Return the names of columns whose statistics count nulls."""
    groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
    found = set()
    for number in range(file.metadata.num_columns):
        columns = (group.column(number) for group in groups)
        if any(each.statistics is not None and each.statistics.null_count for each in columns):
            found.add(file.metadata.schema.column(number).path)
    return found


def _runs(metadata: Any) -> Iterator[range]:
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


def _begins(metadata: Any) -> list[int]:
    """Return the byte of the file where each row group begins, rising."""
    begins, last = [], 0
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        columns = [group.column(column) for column in range(group.num_columns)]
        offsets = [each.dictionary_page_offset or each.data_page_offset for each in columns]
        last = max(last, min(offsets, default=0))
        begins.append(last)
    return begins


@contextmanager
def _opened(path: str) -> Iterator[Any]:
    """Open a file and read its footer."""
    try:
        import pyarrow.parquet as pq
    except ImportError:
        raise Error(f"{path}: reading parquet needs pyarrow; run: pip install pyarrow") from None
    with _naming(path), pq.ParquetFile(path, pre_buffer=False) as file:
        yield file


@contextmanager
def _naming(path: str) -> Iterator[None]:
    """Turn errors of pyarrow into FormatError."""
    try:
        yield
    except (Error, MemoryError):
        raise
    except (OSError, ValueError) as error:  # those of pyarrow are both
        said = str(error).partition("\n")[0].rstrip(".")
        raise FormatError(f"{path}: not a readable Parquet file: {said}") from None


# ---- columns -------------------------------------------------------------------------------------------------------


class _Column(NamedTuple):
    """What is measured of each row."""

    measure: int
    field: int = 0  # its number in the schema, unless the whole row is measured

    @classmethod
    def of(cls, schema: "Schema", name: str, expression: Expression) -> "_Column":
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

    def cells(self, schema: "Schema", sizes: Any, values: Sequence[Any], parts: Mapping[str, Any]) -> tuple[int, Any]:
        """Return the type of the cells of some rows, and the cells."""
        from ..arrays.packed import cells_of

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
    import numpy as np
    import pyarrow.compute as pc

    return pc.utf8_length(array).to_numpy(zero_copy_only=False).astype(np.uint64)


def _joined(cells: Sequence[Any]) -> memoryview:
    import numpy as np

    found: Any = [np.asarray(each).view(np.uint64) for each in cells]
    joined: Any = np.concatenate([*found, np.zeros(0, np.uint64)])
    return memoryview(joined)


def _kind(cells: Sequence[tuple[int, Any]]) -> int:
    """Return the type of the cells of a column: signed if any are."""
    kinds = {kind for kind, _ in cells} or {_native.NUMBER_U64}
    return _native.NUMBER_I64 if _native.NUMBER_I64 in kinds else kinds.pop()
