"""A file that is written beside its place, and moved there when it is whole."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Self

from ..errors import Error, option
from .lock import OwnFile, create_temporary, locked, special_file


class Replacement:
    """A file beside its place. Use it as a context manager: nothing is left behind unless `place` is called.

    Args:
      target: absolute; nothing is there, or the file to replace.
    Raises:
      OSError: it cannot be written, or a device or another special file would be replaced.
    """

    _is_open = False

    def __init__(self, target: str) -> None:
        self.target = target
        self.directory = os.path.dirname(target)
        self._process = os.getpid()
        self.temporary, self.file = create_temporary(target)
        self._is_open = True

    def place(self) -> None:
        """Move the file to its place; the caller has flushed it to the disk."""
        os.replace(self.temporary, self.target)
        # The new name. Some network file systems refuse, and some directories cannot be read; the rename itself is
        # still atomic.
        with suppress(OSError):
            fd = os.open(self.directory, os.O_RDONLY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

    @property
    def is_own(self) -> bool:
        """Whether there is something to close; not in a child that was forked meanwhile, as its parent still writes."""
        return self._is_open and os.getpid() == self._process

    def close(self) -> None:
        """Close the file, and remove it unless it was moved to its place."""
        if not self.is_own:
            return
        with suppress(OSError):
            self.file.close()
        with suppress(OSError):  # it was moved; else the next writer removes it
            os.unlink(self.temporary)
        self._is_open = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()  # of a file that nobody closed


@contextmanager
def replacing(target: str, check: Callable[[], object]) -> Iterator[OwnFile]:
    """Yield a file to write; when the block ends, it is flushed to the disk and moved to `target`.

    If the block raises, nothing is left behind. What killed writers of the same file left is removed.

    Args:
      target: absolute.
      check: called before the file is moved; if it raises, nothing is replaced.
    Raises:
      OSError: it cannot be written, or a device or another special file would be replaced.
      Error: another process writes it for too long.
    """
    with locked(target), Replacement(target) as new:
        yield new.file
        os.fsync(new.file.fileno())
        check()
        new.place()


def is_same_file(path: str, other: str) -> bool:
    """Whether two paths are of one file; not if one of them cannot be read, which whoever reads it says."""
    try:
        return os.path.samefile(path, other)
    except OSError:
        return False


def check_is_free(path: str, elsewhere: str) -> None:
    """Refuse to replace a file that the user may not mean to replace.

    Args:
      elsewhere: how the user names another place.
    Raises:
      Error: it is there already.
    """
    if found := special_file(path) or ("a file" if os.path.lexists(path) else ""):
        force = f", or replace it with {option('force', True)}" if found == "a file" else ""
        raise Error(f"{path}: expected a name that is free, found {found}; give another place with {elsewhere}{force}")
