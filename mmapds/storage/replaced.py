"""A file that is written beside its place, and moved there when it is whole."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedWriter

from .lock import create_temporary, locked
from .sections import sync_directory


@contextmanager
def replacing(target: str, check: Callable[[], object]) -> Iterator[BufferedWriter]:
    """Yield a file to write; when the block ends, it is flushed to the disk and moved to `target`.

    If the block raises, nothing is left behind. What killed writers of the same file left is removed.

    Args:
      target: absolute.
      check: called before the file is moved; if it raises, nothing is replaced.
    Raises:
      OSError: it cannot be written.
      Error: another process writes it for too long.
    """
    with locked(target):
        temporary, file = create_temporary(target)
        try:
            yield file
            file.flush()
            os.fsync(file.fileno())
            check()
            os.replace(temporary, target)
            file.close()  # not before it is in its place, as it is locked until then
            sync_directory(os.path.dirname(target))
        finally:
            with suppress(OSError):
                file.close()
            with suppress(FileNotFoundError):
                os.unlink(temporary)
