"""Files that are written beside their place, and removed by the next writer where theirs was killed.

A temporary is locked while it is open. Its name holds the host, as some network file systems have locks that other
hosts do not see. What another host left stays.
"""

import fcntl
import os
import re
from contextlib import suppress
from errno import EEXIST
from io import FileIO
from stat import S_ISREG
from typing import Any
from weakref import WeakSet
from zlib import crc32

from .sources import kind_of_file

TEMPORARY = r"\.[0-9a-f]{8}\.tmp"
"""The pattern of what follows the name of a file in that of a temporary."""
_OPEN_FILES = "/proc/"
"""Links that begin so are names of what a process has open."""


class OwnFile(FileIO):
    """A file of one process: a forked child closes it, as it would hold its lock. Its writes are whole."""

    def __init__(self, path: str, mode: str) -> None:
        super().__init__(path, mode)
        _open_files.add(self)

    def write(self, data: Any) -> int:
        """Write all bytes of a buffer; return how many they are."""
        view = memoryview(data)
        left = view.cast("B") if view.nbytes else view
        while left.nbytes:
            left = left[super().write(left) :]
        return view.nbytes


_open_files: WeakSet[OwnFile] = WeakSet()


def _close_all() -> None:
    for file in list(_open_files):
        file.close()


os.register_at_fork(after_in_child=_close_all)


def _host() -> str:
    return f"{crc32(os.uname().nodename.encode()) & 0xFFFF:04x}"


def create_temporary(target: str) -> tuple[str, OwnFile]:
    """Create a file that is to replace `target`, and lock it as long as it is open; return its path, and the file.

    Raises:
      OSError: the directory cannot be written to, or a device or another special file would be replaced.
    """
    check_is_file(target)
    while True:
        path = f"{target}.{_host()}{os.urandom(2).hex()}.tmp"
        try:
            file = OwnFile(path, "x+")
        except FileExistsError:
            continue
        try:
            if try_lock(file.fileno()) and is_at(file.fileno(), path):
                return path, file
        except OSError:  # no locks: nobody removes it
            return path, file
        file.close()  # another process took it for one of a dead writer, and removes it


def check_is_file(path: str) -> None:
    """Raise OSError where something lies that is not a regular file."""
    if found := special_file(path):
        raise FileExistsError(EEXIST, f"expected a regular file, found {found}")


def special_file(path: str) -> str:
    """Return what lies at a path, or what a link there leads to; "" for a regular file, and for nothing."""
    with suppress(OSError):
        if os.readlink(path).startswith(_OPEN_FILES):  # as /dev/stdout does
            return "a link to an open file"
    with suppress(OSError):
        mode = os.stat(path).st_mode
        return "" if S_ISREG(mode) else kind_of_file(mode)
    return ""


def remove_leftovers(target: str) -> None:
    """Remove the temporaries of a file whose writers on this host are dead."""
    directory, name = os.path.split(target)
    own = re.compile(rf"{re.escape(name)}(?=\.{_host()}){TEMPORARY}")
    with suppress(OSError):  # of a directory that can be written to, and not be read
        for found in filter(own.fullmatch, os.listdir(directory or ".")):
            remove_dead(os.path.join(directory, found))


def remove_dead(path: str) -> None:
    """Remove a file unless a process has it locked."""
    with suppress(OSError), FileIO(path, "r+") as file:  # it is gone; or there are no locks, so nobody knows
        if try_lock(file.fileno()) and is_at(file.fileno(), path):
            os.unlink(path)


def try_lock(fd: int) -> bool:
    """Try to lock a descriptor; return whether that is done.

    Raises:
      OSError: the file system has no locks.
    """
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True


def is_at(fd: int, path: str) -> bool:
    """Whether a descriptor is that of the file which has this path now."""
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False
