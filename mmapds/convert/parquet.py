"""Parquet."""

from collections.abc import Iterator
from contextlib import contextmanager

from ..formats import CONVERTIBLE
from . import tables

NAME = "parquet"
SUFFIXES = CONVERTIBLE[NAME][1]
OPTIONS: dict[str, tuple[type, str, str]] = {}


class Reader(tables.Reader):
    """The rows of Parquet files, a part of a row group at a time."""

    NAME = "Parquet"

    @contextmanager
    def open(self, path: str) -> Iterator[tables.Table]:
        """Read a file's footer."""
        import pyarrow.parquet as pq

        # Without pre_buffer, pages are read as they are decoded, where it would hold whole row groups.
        with pq.ParquetFile(path, pre_buffer=False, buffer_size=1 << 20) as file:
            batches = lambda columns: file.iter_batches(columns=columns)  # noqa: E731
            yield tables.Table(file.schema_arrow, file.metadata.num_rows, batches)
