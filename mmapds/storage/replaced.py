"""A file that is written beside its place, and moved there when it is whole."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from ..errors import Error, option
from .lock import OwnFile, create_temporary, locked, special_file
from .writer import sync_directory


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
    if found := special_file(path):
        raise Error(f"{path}: expected a name that is free, found {found}; give another place with {elsewhere}")
    if os.path.lexists(path):
        raise Error(
            f"{path}: expected a name that is free, found a file; give another place with {elsewhere}, or replace it "
            f"with {option('force', True)}"
        )


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
    with locked(target):
        temporary, file = create_temporary(target)
        try:
            yield file
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
