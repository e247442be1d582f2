"""Files that are written beside their place: named after it, locked while they are written, removed by the next writer.

The name of a temporary holds the host, as some network file systems have locks that other hosts do not see. What
another host left stays.
"""

import fcntl
import os
import re
from contextlib import suppress
from errno import EEXIST
from io import BufferedWriter
from stat import S_ISREG
from weakref import WeakSet
from zlib import crc32

from .sources import kind_of_file

TEMPORARY = r"\.[0-9a-f]{8}\.tmp"
"""The pattern of what follows the name of a file in that of a temporary."""
_SCRATCH = re.compile(rf"({TEMPORARY})(\.[0-9a-f]{{8}})?")
_OPEN_FILES = "/proc/"
"""Links that begin so are names of what a process has open."""


_written: WeakSet[BufferedWriter] = WeakSet()
"""What this process writes."""


def _drop() -> None:
    """Drop, in a forked child, what its parent writes: else the child would write what its copy has in memory."""
    for file in _written:
        if not file.closed:  # its owner closes it when it is collected, so its number must not become that of another
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, file.fileno(), inheritable=False)
            os.close(null)


os.register_at_fork(after_in_child=_drop)


def _host() -> str:
    return f"{crc32(os.uname().nodename.encode()) & 0xFFFF:04x}"


def create_temporary(target: str) -> tuple[str, BufferedWriter]:
    """Create a file beside `target` to write it to, and lock it as long as it is open; return its path, and the file.

    A signal that raises leaves no file, wherever it comes; the caller makes no call before the `try` that removes it.

    Raises:
      OSError: the directory cannot be written to.
    """
    while True:
        path = f"{target}.{_host()}{os.urandom(2).hex()}.tmp"
        try:
            file = open(path, "xb")  # noqa: SIM115 - the caller closes it
            try:
                _written.add(file)
                if try_lock(file.fileno()) and is_at(file.fileno(), path):
                    return path, file
            except OSError:  # no locks: nobody removes it
                return path, file
            file.close()  # another process took it for one of a dead writer, and removes it
        except FileExistsError:
            continue
        except BaseException:
            with suppress(OSError):
                os.unlink(path)
            raise


def create_replacement(target: str) -> tuple[str, BufferedWriter]:
    """Create a file that is to replace `target`, as `create_temporary` does.

    Raises:
      OSError: also where a device or another special file would be replaced.
    """
    check_is_file(target)
    return create_temporary(target)


def check_is_file(path: str) -> None:
    """Raise OSError where something lies that is not a regular file."""
    found = special_file(path)
    if found:
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
    """Remove the temporaries of a file, and their scratch files, whose writers on this host are dead."""
    directory, name = os.path.split(target)
    try:
        names = [each for each in os.listdir(directory or ".") if each.startswith(f"{name}.{_host()}")]
    except OSError:
        return
    for each in sorted(names):  # a temporary before its scratch files
        found = _SCRATCH.fullmatch(each, len(name))
        if found and not (found[2] and os.path.lexists(os.path.join(directory, name + found[1]))):
            remove_dead(os.path.join(directory, each))


def remove_dead(path: str) -> None:
    """Remove a file unless a process has it locked."""
    with suppress(OSError):  # it is gone; or there are no locks, so nobody knows
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            if try_lock(fd) and is_at(fd, path):
                os.unlink(path)
        finally:
            os.close(fd)


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
        return os.path.samestat(os.fstat(fd), os.lstat(path))
    except FileNotFoundError:
        return False
