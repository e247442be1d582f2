"""Scratch memory: where it is large, an unlinked file that the kernel may write out, and that forked children share."""

import errno
import mmap
import os
from contextlib import suppress
from io import FileIO

_IN_MEMORY = 16 << 20  # bytes
_PIECE = 4 << 20  # bytes written at a time


def scratch(size: int) -> mmap.mmap:
    """Return scratch memory, all zeros.

    Above 16 MB it is a file in the directory for temporary files (`TMPDIR`), unlinked at once; in memory where there is
    no room for it.
    """
    if size > _IN_MEMORY:
        import tempfile  # start-up time: few need it

        with suppress(OSError), tempfile.TemporaryFile(prefix="mmapds-") as file:
            allocate(file.fileno(), size)
            return mmap.mmap(file.fileno(), size)
    return anonymous(size)


def scratch_beside(path: str, size: int) -> mmap.mmap:
    """Return scratch memory that, above 16 MB, is a file called `path`, unlinked at once.

    Raises:
      OSError: the file cannot be made.
    """
    if size <= _IN_MEMORY:
        return anonymous(size)
    with unlinked(path) as file:
        allocate(file.fileno(), size)
        return mmap.mmap(file.fileno(), size)


def unlinked(path: str) -> FileIO:
    """Return a new file that is unlinked once it is open; none stays where a signal raises in between.

    Raises:
      OSError: it cannot be made.
    """
    try:
        file = FileIO(path, "x+")
        os.unlink(path)
    except BaseException:
        with suppress(OSError):
            os.unlink(path)
        raise
    return file


def anonymous(size: int) -> mmap.mmap:
    """Return memory of this process; a child that is forked has a copy."""
    return mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def allocate(fd: int, size: int) -> None:
    """Give an empty file all its blocks; without them, a store to its map ends in SIGBUS where the disk is full.

    Raises:
      OSError: the disk is full.
    """
    try:
        os.posix_fallocate(fd, 0, size)
    except (AttributeError, OSError) as error:  # macOS has no such call, and some file systems refuse it
        if isinstance(error, OSError) and error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            raise
        zeros = bytes(_PIECE)
        for begin in range(0, size, _PIECE):
            left = memoryview(zeros)[: size - begin]
            while left:  # a write may take only a part
                left = left[os.write(fd, left) :]
