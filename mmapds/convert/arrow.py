"""Read Parquet, and Arrow's IPC files and streams, as Feather and Hugging Face datasets write them.

Imported only to read such files, because pyarrow is optional. Rows are written as columns, without an object for each
value. If a value is null or does not fit its field, the rows of its batch are converted one by one.
"""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import repeat
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ..arrays.tables import columns_of, flat_fields, objects_of, parts_of, times_of, type_of
from ..errors import FormatError
from .reader import Batch, Reader, Rules

_ROWS = 4096  # rows of a batch: with the 65,536 of pyarrow, columns exceed the CPU caches
_MAGIC = b"ARROW1"  # first bytes of an Arrow file; a stream has none


Table = tuple[Any, int | None, Callable[[list[str]], Iterable[Any]]]
"""Of an open file: schema, number of rows or None, and a function from column names to pyarrow.RecordBatches."""


class TableReader(Reader):
    """Reads the rows of tables as records; docs/converting.md lists the types."""

    def __init__(self, paths: Sequence[str], format_name: str) -> None:
        super().__init__(paths, format_name.capitalize(), "row")
        self._open = _parquet if format_name == "parquet" else _arrow
        rows: list[int | None] = []
        units: dict[str, list[str]] = {}
        for path in paths:
            with self._naming(path), self._open(path) as (schema, count, _):
                rows.append(count)
                fields = [each for field in schema for each in flat_fields(field.name, field.type)]
                for name, found in fields:
                    here = [*times_of(found)]
                    before = units.setdefault(name, here) or here
                    if here and here != before:
                        raise FormatError(
                            f"{path}: field {name!r}: expected {', '.join(before)}, as in the files before, found "
                            f"{', '.join(here)}"
                        )
                    units[name] = before
                self._add_fields(path, ((name, type_of(f"{path}: field {name!r}", found)) for name, found in fields))
        self.total = None if None in rows else sum(count or 0 for count in rows)

    def _read(self, path: str, wanted: Container[str] | None, rules: Rules | None) -> Iterator[Batch]:
        assert rules is not None  # the schema of a table is known
        schema = rules.schema
        types = {field.name: field.dtype for field in schema.fields}
        with self._naming(path), self._open(path) as (found, _, batches):
            names = [
                field.name for field in found if any(name in types for name, _ in flat_fields(field.name, field.type))
            ]
            for batch in batches(names):
                for begin in range(0, batch.num_rows, _ROWS):
                    rows = batch.slice(begin, _ROWS)
                    parts = dict(part for name in names for part in parts_of(name, rows.column(name), types))
                    columns = columns_of(parts, schema, rules.defaults)
                    yield Batch(rows.num_rows, self._records(path, parts, types, rows.num_rows), columns)

    def _records(
        self, path: str, parts: Mapping[str, Any], types: Mapping[str, Any], count: int
    ) -> Iterator[Mapping[str, Any]]:
        with self._naming(path):
            values = [objects_of(array, types[name] == "json") for name, array in parts.items()]
            for row in zip(*values, strict=True) if values else repeat((), count):
                yield dict(zip(parts, row, strict=True))


@contextmanager
def _parquet(path: str) -> Iterator[Table]:
    """Open a Parquet file and read its footer."""
    # pre_buffer would hold whole row groups in memory; without it, each page is read when it is decoded.
    with pq.ParquetFile(path, pre_buffer=False, buffer_size=1 << 20) as file:
        yield file.schema_arrow, file.metadata.num_rows, lambda columns: file.iter_batches(_ROWS, columns=columns)


@contextmanager
def _arrow(path: str) -> Iterator[Table]:
    """Map an Arrow file, or a file that holds an Arrow stream."""
    with pa.memory_map(path) as source:
        is_file = source.read(len(_MAGIC)) == _MAGIC
        source.seek(0)
        opened = pa.ipc.open_file(source) if is_file else pa.ipc.open_stream(source)
        found = (opened.get_batch(k) for k in range(opened.num_record_batches)) if is_file else opened
        yield opened.schema, None, lambda columns: (_checked(batch.select(columns)) for batch in found)


def _checked(batch: Any) -> Any:
    batch.validate(full=True)  # pyarrow does not check the offsets of a mapped file
    return batch
