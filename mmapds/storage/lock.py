"""One process at a time."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def alone(directory: str) -> Iterator[None]:
    """Let one process of this machine at a time do what replaces files of a directory.

    Where locks are not to be had, as on some network file systems, all of them do at once.

    Raises:
      OSError: there is no such directory.
    """
    handle = os.open(directory or ".", os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
