"""A lock on a directory: one process at a time replaces files in it."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def alone(directory: str) -> Iterator[None]:
    """Hold the lock of a directory, which one process of this machine at a time can have, while its files are replaced.

    Some network file systems have no locks; there, processes do not wait for each other.

    Raises:
      OSError: the directory does not exist.
    """
    handle = os.open(directory or ".", os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
