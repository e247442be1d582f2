"""Parquet files."""

from collections.abc import Iterator
from contextlib import contextmanager

from .tables import Table, TableReader


class ParquetReader(TableReader):
    """The rows of Parquet files, a part of a row group at a time."""

    NAME, TITLE = "parquet", "Parquet"

    @staticmethod
    @contextmanager
    def open(path: str) -> Iterator[Table]:
        """Open a file and read its footer."""
        import pyarrow.parquet as pq  # optional: the extra mmapds[parquet]

        # Without pre_buffer, pages are read as they are decoded; with it, whole row groups are held.
        with pq.ParquetFile(path, pre_buffer=False, buffer_size=1 << 20) as file:
            yield Table(file.schema_arrow, file.metadata.num_rows, lambda columns: file.iter_batches(columns=columns))
