"""The rows of Arrow tables as records, whichever files they come from."""

from abc import abstractmethod
from collections.abc import Callable, Container, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

from ..arrays.schema import Schema
from ..errors import Error
from .reader import Block, FileReader, cannot_be_read, too_large

_ROWS = 4096  # made into records, or columns, at a time


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
      Error: pyarrow is missing.
      FormatError: a source cannot be read, or a field has another type than in the sources before.
    """

    RECORD = "row"

    def __init__(self, paths: Sequence[str]) -> None:
        super().__init__(paths)
        rows = []
        units: dict[str, list[str]] = {}
        for path in paths:
            with self._reading(path) as table:
                from .arrow_values import check_units, schema_fields  # pyarrow is optional

                rows.append(table.rows)
                check_units(path, table.schema, units)
                self._add_fields(path, schema_fields(path, table.schema))
        self.total = None if None in rows else sum(count or 0 for count in rows)

    @staticmethod
    @abstractmethod
    def open(path: str) -> AbstractContextManager[Table]:
        """Open a file."""

    @contextmanager
    def _reading(self, path: str) -> Iterator[Table]:
        try:
            import pyarrow  # noqa: F401 - optional: the extra mmapds[parquet]
        except ImportError:
            raise Error(f"{path}: reading {self.TITLE} needs pyarrow; run: pip install 'mmapds[parquet]'") from None
        with self._naming(path), self.open(path) as table:
            yield table

    @contextmanager
    def _naming(self, path: str) -> Iterator[None]:
        """Name the file in errors of pyarrow."""
        import pyarrow  # optional: the extra mmapds[parquet]

        try:
            yield
        except Error:
            raise
        except MemoryError as error:  # an ArrowMemoryError is one too
            raise too_large(path, self.TITLE, error) from error
        except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as error:
            raise cannot_be_read(path, self.TITLE, error) from error

    def _read(
        self, path: str, schema: Schema | None, fields: Container[str] | None
    ) -> Generator[Mapping[str, Any], None, int]:
        types = {field.name: field.dtype for field in schema.fields} if schema else self._types
        count = 0
        for batch, wanted in self._batches(path, types):
            yield from self._rows(path, batch, wanted, types)
            count += batch.num_rows
        return count

    def _batches(self, path: str, types: Mapping[str, Any]) -> Iterator[tuple[Any, list[str]]]:
        """Yield the rows of a file as batches of a few, and the names of their columns."""
        with self._reading(path) as table:
            from .arrow_values import flat_fields  # pyarrow is optional

            wanted = [field.name for field in table.schema if any(name in types for name, _ in flat_fields(field))]
            for batch in table.batches(wanted):
                for begin in range(0, batch.num_rows, _ROWS):
                    yield batch.slice(begin, _ROWS), wanted

    def _rows(self, path: str, batch: Any, wanted: list[str], types: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        from .arrow_values import rows_of  # pyarrow is optional

        with self._naming(path):
            yield from rows_of(batch, wanted, types)

    def blocks(self, schema: Schema, defaults: Container[str]) -> Iterator[Block]:
        """Yield the rows of all files, as columns where they can be such."""
        from .arrow_columns import columns_of  # pyarrow is optional

        types = {field.name: field.dtype for field in schema.fields}
        self._firsts = [0]
        for path in self._paths:
            count = 0
            for batch, wanted in self._batches(path, types):
                with self._naming(path):
                    columns = columns_of(batch, schema, defaults)
                yield Block(self._rows(path, batch, wanted, types), columns)
                count += batch.num_rows
            self._firsts.append(self._firsts[-1] + count)
