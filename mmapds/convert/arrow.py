"""Arrow's IPC files and streams, which are also what Feather and Hugging Face datasets write."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from . import tables

NAME = "arrow"
OPTIONS: dict[str, tuple[type, str, str]] = {}

_FILE = b"ARROW1"


class Reader(tables.Reader):
    """The rows of Arrow files, which are mapped."""

    NAME = "Arrow"

    @staticmethod
    @contextmanager
    def open(path: str) -> Iterator[tables.Table]:
        """Map a file, or a stream that was written to one."""
        import pyarrow as pa

        with pa.memory_map(path) as source:
            is_file = source.read(len(_FILE)) == _FILE
            source.seek(0)
            opened = pa.ipc.open_file(source) if is_file else pa.ipc.open_stream(source)
            found = (opened.get_batch(k) for k in range(opened.num_record_batches)) if is_file else opened
            yield tables.Table(
                opened.schema, None, lambda columns: (_checked(batch.select(columns)) for batch in found)
            )


def _checked(batch: Any) -> Any:
    """Nothing in a file that is mapped has been looked at: offsets may lead anywhere."""
    batch.validate(full=True)
    return batch
