"""Parquet."""

from collections.abc import Iterator
from contextlib import contextmanager

from . import tables

NAME = "parquet"
OPTIONS: dict[str, tuple[type, str, str]] = {}


class Reader(tables.Reader):
    """The rows of Parquet files, a part of a row group at a time."""

    NAME = "Parquet"

    @staticmethod
    @contextmanager
    def open(path: str) -> Iterator[tables.Table]:
        """Read a file's footer."""
        import pyarrow.parquet as pq

        # Without pre_buffer, pages are read as they are decoded, where it would hold whole row groups.
        with pq.ParquetFile(path, pre_buffer=False, buffer_size=1 << 20) as file:
            yield tables.Table(
                file.schema_arrow, file.metadata.num_rows, lambda columns: file.iter_batches(columns=columns)
            )
