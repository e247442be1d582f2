"""Arrow's IPC files and streams, which Feather and Hugging Face datasets write too."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .tables import Table, TableReader

_MAGIC = b"ARROW1"  # of a file; a stream has none


class ArrowReader(TableReader):
    """The rows of Arrow files, which are mapped."""

    NAME, TITLE = "arrow", "Arrow"

    @staticmethod
    @contextmanager
    def open(path: str) -> Iterator[Table]:
        """Map a file, or a stream that was written to one."""
        import pyarrow as pa  # optional: the extra mmapds[parquet]

        with pa.memory_map(path) as source:
            is_file = source.read(len(_MAGIC)) == _MAGIC
            source.seek(0)
            opened = pa.ipc.open_file(source) if is_file else pa.ipc.open_stream(source)
            found = (opened.get_batch(k) for k in range(opened.num_record_batches)) if is_file else opened
            yield Table(opened.schema, None, lambda columns: (_checked(batch.select(columns)) for batch in found))


def _checked(batch: Any) -> Any:
    """Return a batch once its offsets are found valid: pyarrow does not check those of a mapped file."""
    from .arrow_values import unjudged  # pyarrow is optional

    batch.validate()
    for array in batch.columns:
        unjudged(array).validate(full=True)
    return batch
