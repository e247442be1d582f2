"""A lock on a directory: one process at a time replaces files in it."""

import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_held = threading.local()


@contextmanager
def alone(directory: str) -> Iterator[None]:
    """Hold the lock of a directory, which one process of this machine at a time can have, while its files are replaced.

    A thread that holds it already goes on. Some network file systems have no locks; there, processes do not wait for
    each other.

    Raises:
      OSError: the directory does not exist.
    """
    handle = os.open(directory or ".", os.O_RDONLY)
    mine: set[tuple[int, int]] = _held.__dict__.setdefault("directories", set())
    found = os.fstat(handle)
    key = found.st_dev, found.st_ino
    is_new = key not in mine
    try:
        if is_new:
            mine.add(key)
            with suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        if is_new:
            mine.remove(key)
        os.close(handle)
