"""One writer at a time: a file is locked while it is replaced, and what a killed writer left is removed.

The lock of `train.jsonl.mmx` is one on the file `train.jsonl.mmx.lock`, which names its holder and goes with the lock.
The kernel frees the lock when its process ends, however it ends. So a lock file with a name that is not locked is the
sign of a killed process, whose temporaries the next holder removes.

A temporary is locked while it is open. Its name holds the host, as some network file systems have locks that other
hosts do not see. What another host left stays.
"""

import fcntl
import os
import re
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from errno import EEXIST
from functools import cache
from io import FileIO
from stat import S_ISREG
from typing import Any
from weakref import WeakSet
from zlib import crc32

from ..errors import Error, warn
from .processes import seconds_of
from .sources import kind_of_file, reason

LOCK_SUFFIX = ".lock"
LIMIT = "MMAPDS_LOCK_SECONDS"
"""The environment variable that says how many seconds to wait for a lock."""
TEMPORARY = r"\.[0-9a-f]{8}\.tmp"
"""The pattern of what follows the name of a file in that of a temporary."""
_DEFAULT_LIMIT = 3600.0
_SILENCE = 1.0  # seconds before a message says what is waited for
_POLL = 0.05  # seconds between two attempts
_OPEN_FILES = "/proc/"
"""Links that begin so are names of what a process has open."""


class OwnFile(FileIO):
    """A file of a writer, never at the end of a link. Its writes are whole.

    A forked child closes it: a worker that outlives a killed writer would keep its lock.
    """

    def __init__(self, path: str, mode: str) -> None:
        super().__init__(path, mode, opener=_open_no_link)
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


def _open_no_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


# ---- locks ------------------------------------------------------------------------------------------------------

_held: dict[str, tuple[OwnFile, int, int]] = {}
"""By the real path of what is locked: the lock file, and the process and thread that hold it."""


@contextmanager
def locked(target: str) -> Iterator[None]:
    """Hold the lock of a file while it is replaced.

    One thread of one process at a time holds it; a thread that holds it already goes on. Who waits says so on stderr
    after a second. In a directory that cannot be written to there is no lock, as nothing can be replaced there.

    Raises:
      Error: another process held the lock for longer than the limit, or the lock file cannot be opened.
    """
    directory, name = os.path.split(target)
    real, me = os.path.join(os.path.realpath(directory or "."), name), (os.getpid(), threading.get_ident())
    held = _held.get(real)  # once, as another thread may release it meanwhile
    if held is not None and held[1:] == me and not held[0].closed:
        yield
        return
    file = _acquire(target, real)
    if file is None:
        yield
        return
    with file:
        _held[real] = file, *me
        try:
            yield
        finally:
            if os.getpid() == me[0]:  # not in a child that was forked meanwhile
                del _held[real]
                with suppress(OSError):
                    os.unlink(real + LOCK_SUFFIX)


def _acquire(target: str, real: str) -> OwnFile | None:
    """Wait for the lock; return the lock file, or None where nothing can be written, which the writer says better."""
    path, began, limit, has_spoken = real + LOCK_SUFFIX, time.monotonic(), seconds_of(LIMIT, _DEFAULT_LIMIT), False
    while True:
        try:
            file = OwnFile(path, "a+")
        except OSError as error:
            if not os.path.lexists(path):
                return None
            raise Error(
                f"{target}{LOCK_SUFFIX}: cannot lock it ({reason(error)}); remove this file unless a process writes "
                f"{os.path.basename(target)}"
            ) from None
        if _may_write(file, real):
            if not is_at(file.fileno(), path):  # its last holder has removed it
                file.close()
                continue
            with suppress(OSError):  # a full disk
                if os.fstat(file.fileno()).st_size:
                    remove_leftovers(real)
                    file.truncate(0)  # never of an empty file: ext4 would write it to the disk when it is closed
                file.write(f"{os.getpid()} on {os.uname().nodename}".encode())
            return file
        holder = os.pread(file.fileno(), 300, 0).decode("latin-1")
        file.close()
        who = f"process {holder}" if holder and holder.isprintable() else "another process"
        waited = time.monotonic() - began
        if waited >= limit:
            raise Error(
                f"{target}: waited {limit:g} s for {who}, which holds {target}{LOCK_SUFFIX}; set {LIMIT}=N to wait "
                "longer, or end that process"
            )
        if waited >= _SILENCE and not has_spoken:
            with suppress(OSError, ValueError, AttributeError):  # stderr is closed, or None
                sys.stderr.write(f"{target}: waiting for {who}, which writes this file and holds {target}.lock\n")
            has_spoken = True
        time.sleep(min(_POLL, limit - waited))


def _may_write(file: OwnFile, real: str) -> bool:
    """Try to lock a lock file; return whether that is done, or whether there are no locks."""
    try:
        return try_lock(file.fileno())
    except OSError as error:
        _warn_of_no_locks(os.path.dirname(real), reason(error))
        return True


@cache  # as a directory may have thousands of files
def _warn_of_no_locks(directory: str, why: str) -> None:
    warn(f"{directory}: this file system has no locks ({why}); write each file in one process only")


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


# ---- temporaries ------------------------------------------------------------------------------------------------


def create_temporary(target: str) -> tuple[str, OwnFile]:
    """Create a file that is to replace `target`, and lock it as long as it is open; return its path, and the file.

    Raises:
      OSError: the directory cannot be written to, or a device or another special file would be replaced.
    """
    if found := special_file(target):
        raise FileExistsError(EEXIST, f"expected a regular file, found {found}")
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


def _host() -> str:
    return f"{crc32(os.uname().nodename.encode()) & 0xFFFF:04x}"


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
