"""Parquet files."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from .tables import Table, TableReader

_ROWS = 4096  # decoded at a time: of 65,536, as pyarrow decodes by default, caches do not hold the columns


class ParquetReader(TableReader):
    """The rows of Parquet files, a part of a row group at a time."""

    NAME, TITLE = "parquet", "Parquet"

    @staticmethod
    @contextmanager
    def open(path: str) -> Iterator[Table]:
        """Open a file and read its footer."""
        import pyarrow.parquet as pq  # optional: the extra mmapds[parquet]

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
