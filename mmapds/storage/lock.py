"""One writer at a time: a file is locked while it is replaced, and what a killed writer left is removed.

The lock of `train.jsonl.mmx` is one on the file `train.jsonl.mmx.lock`, which names its holder, who makes and removes
it. The kernel frees the lock when its process ends, however it ends. So a lock file that nobody holds is the sign of a
killed process: the next one removes its temporaries, and that file, and makes its own.

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
from dataclasses import dataclass
from errno import EEXIST
from functools import cache
from io import FileIO
from stat import S_ISREG
from typing import Any
from weakref import WeakSet, WeakValueDictionary
from zlib import crc32

from ..errors import Error
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
    """A file of one process: a forked child closes it, as it would hold its lock. Its writes are whole."""

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


def _open_no_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


@dataclass
class _Lock:
    """A lock, which is free when nobody refers to it any more, as where a signal raised while it was released."""

    thread: int
    """Who holds it."""
    file: OwnFile | None
    """The lock file; None where there are no locks."""


_held: WeakValueDictionary[str, _Lock] = WeakValueDictionary()
"""By the real path of what is locked."""


def _forget_all() -> None:
    _held.clear()
    for file in list(_open_files):
        file.close()


os.register_at_fork(after_in_child=_forget_all)


# ---- locks ------------------------------------------------------------------------------------------------------


@contextmanager
def locked(target: str) -> Iterator[bool]:
    """Hold the lock of a file while it is replaced; yield False where there are no locks, and nobody waits.

    One thread of one process at a time holds it; a thread that holds it already goes on. Who waits says so on stderr
    after a second. In a directory that cannot be written to there is no lock, as nothing can be replaced there.

    Raises:
      Error: another process held the lock for longer than the limit, or the lock file cannot be opened or removed.
    """
    directory, name = os.path.split(target)
    real, thread = os.path.join(os.path.realpath(directory or "."), name), threading.get_ident()
    lock = _held.get(real)
    if lock is not None and lock.thread == thread:
        yield lock.file is not None
        return
    lock = _Lock(thread, _acquire(target, real))
    _held[real] = lock
    try:
        yield lock.file is not None
    finally:
        if _held.pop(real, None) is lock and lock.file is not None:  # not in a child that was forked meanwhile
            with lock.file, suppress(OSError):
                os.unlink(real + LOCK_SUFFIX)


def _acquire(target: str, real: str) -> OwnFile | None:
    """Lock the lock file, and return it; None where there are no locks."""
    path, began, has_spoken = real + LOCK_SUFFIX, time.monotonic(), False
    while True:
        is_read_only = os.path.lexists(path) and not os.access(path, os.W_OK)  # as that of another user
        try:
            file = OwnFile(path, "r" if is_read_only else "a+")
        except OSError as error:
            if os.path.lexists(path):
                raise _not_locked(target, error) from None
            if is_read_only:
                continue  # it was removed just now
            return None  # nothing can be written here, which the writer says better
        try:
            is_locked = try_lock(file.fileno())
        except OSError as error:
            place = os.path.dirname(real)
            _say_once(f"{place}: this file system has no locks ({reason(error)}); write each file in one process only")
            with file, suppress(OSError):  # another process removed it
                if not os.fstat(file.fileno()).st_size:
                    os.unlink(path)
            return None
        if not is_locked:
            holder = os.pread(file.fileno(), 300, 0).decode("latin-1")
            file.close()
            who = f"process {holder}" if holder and holder.isprintable() else "another process"
            has_spoken = _wait(who, target, began, has_spoken)
        elif not is_at(file.fileno(), path):
            file.close()
        elif os.fstat(file.fileno()).st_size:
            with file:
                _clean_up(target, real)
        else:
            with suppress(OSError):  # a full disk
                file.write(f"{os.getpid()} on {os.uname().nodename}".encode())
            return file


def _clean_up(target: str, real: str) -> None:
    """Remove what the last holder of a lock left, and its lock file, which is locked now."""
    remove_leftovers(real)
    try:
        os.unlink(real + LOCK_SUFFIX)
    except OSError as error:
        raise _not_locked(target, error) from None


def _not_locked(target: str, error: OSError) -> Error:
    return Error(
        f"{target}{LOCK_SUFFIX}: cannot lock it ({reason(error)}); remove this file unless a process writes "
        f"{os.path.basename(target)}"
    )


def _wait(holder: str, target: str, began: float, has_spoken: bool) -> bool:
    """Wait a little for the holder of a lock file; return whether a message has said so.

    Raises:
      Error: that takes longer than the limit.
    """
    limit, waited = seconds_of(LIMIT, _DEFAULT_LIMIT), time.monotonic() - began
    if waited >= limit:
        raise Error(
            f"{target}: waited {limit:g} s for {holder}, which holds {target}{LOCK_SUFFIX}; set {LIMIT}=N to wait "
            "longer, or end that process"
        )
    if waited >= _SILENCE and not has_spoken:
        _say(f"{target}: waiting for {holder}, which writes this file and holds {target}{LOCK_SUFFIX}")
        has_spoken = True
    time.sleep(min(_POLL, limit - waited))
    return has_spoken


def _say(line: str) -> None:
    with suppress(OSError, ValueError, AttributeError):  # stderr is closed, or None
        sys.stderr.write(f"{line}\n")  # in one piece, as many processes may wait


_say_once = cache(_say)


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
