"""One writer at a time: a file is locked while it is replaced, and what a killed writer left is removed.

The lock of `train.jsonl.mmx` is one on the file `train.jsonl.mmx.lock`. The kernel frees it when its process ends,
however it ends. Whoever releases a lock removes that file. So a lock file that nobody holds is the sign of a process
that was killed: the next one removes its temporaries, and that file, and makes its own.
"""

import fcntl
import os
import re
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from errno import EROFS
from io import FileIO
from stat import S_ISREG
from weakref import WeakSet

from ..errors import Error
from .processes import seconds_of
from .sources import reason, working_directory
from .temporary import is_at, remove_leftovers, try_lock

LOCK_SUFFIX = ".lock"
LIMIT = "MMAPDS_LOCK_SECONDS"
"""The environment variable that says how many seconds to wait for a lock."""
_DEFAULT_LIMIT = 3600.0
_SILENCE = 1.0  # seconds before a message says what is waited for
_POLL = 0.05  # seconds between two attempts
_HOLDER = re.compile(r"\d{1,10} on [^\s/]{1,255}")

_held: dict[str, tuple[int, int, bool]] = {}
"""By the real path of what is locked: the process and the thread that hold it, and whether there is a lock."""
_open_files: WeakSet[FileIO] = WeakSet()
"""Lock files that this process has open."""
_spoken: set[str] = set()
"""What is said once."""


def _forget() -> None:
    """Close, in a forked child, the lock files of its parent: a child that outlives it would keep the locks."""
    _held.clear()
    for file in list(_open_files):
        if not file.closed:
            file.close()


os.register_at_fork(after_in_child=_forget)


@contextmanager
def locked(target: str) -> Iterator[bool]:
    """Hold the lock of a file while it is replaced; yield False where there are no locks, and nobody waits.

    One thread of one process at a time holds it; a thread that holds it already goes on. Who waits says so on stderr
    after a second. In a directory that cannot be written to there is no lock, as nothing can be replaced there.

    Raises:
      Error: another process held the lock for longer than the limit, or the lock file is not one.
    """
    real, own = _real(target), (os.getpid(), threading.get_ident())
    held = _held.get(real)
    if held is not None and held[:2] == own:
        yield held[2]
        return
    opened: list[FileIO] = []
    try:
        try:
            _held[real] = *own, _acquire(target, real, opened)
            yield _held[real][2]
        finally:
            _release(real, own, opened)
    except BaseException:  # a signal that raises may come while a lock file is made, or removed
        _release(real, own, opened)
        clean_up(target)
        raise


def _release(real: str, own: tuple[int, int], opened: list[FileIO]) -> None:
    """Remove the lock file, if this thread holds it, and close what was opened; nothing in a forked child."""
    if os.getpid() != own[0]:
        return
    held = _held.get(real)
    if held is not None and held[:2] == own:
        del _held[real]
        if held[2]:
            with suppress(OSError):
                os.unlink(real + LOCK_SUFFIX)
    for file in opened:
        if not file.closed:
            _close(file)


def clean_up(target: str) -> None:
    """Remove what a killed writer of a file left, where a lock file says that there was one; wait for nobody."""
    real = _real(target)
    if real in _held or not os.path.lexists(real + LOCK_SUFFIX):
        return
    with suppress(OSError, Error):  # a read-only directory, or a file of somebody else's: nothing to be done
        file = _open(real + LOCK_SUFFIX)
        try:
            if try_lock(file.fileno()) and is_at(file.fileno(), real + LOCK_SUFFIX):
                _remove(target, real)
        finally:
            _close(file)


def _real(target: str) -> str:
    """Return the real path of the file that is replaced; where it is a link, that is the link."""
    directory, name = os.path.split(os.path.join(working_directory(), target))
    return os.path.join(os.path.realpath(directory) if os.path.isabs(directory) else directory, name)


def _acquire(target: str, real: str, opened: list[FileIO]) -> bool:
    """Lock a new lock file; return whether there are locks.

    Args:
      opened: gets the lock files that are opened; the last one stays open.
    """
    path, began, has_spoken = real + LOCK_SUFFIX, time.monotonic(), False
    while True:
        is_new = not os.path.lexists(path)
        try:
            opened.append(FileIO(path, "x+") if is_new else _open(path))
            _open_files.add(opened[-1])
        except OSError as error:
            if isinstance(error, FileExistsError if is_new else FileNotFoundError):
                continue  # it was made, or removed, just now
            _check_is_read_only(target, path, error)
            return False  # nothing can be written here, which the writer says better
        file = opened[-1]
        try:
            while not (is_locked := try_lock(file.fileno())) and is_at(file.fileno(), path):
                has_spoken = _wait(file, target, began, has_spoken)
        except OSError as error:
            _say_without_locks(target, error)
            if is_new:
                with suppress(OSError):
                    os.unlink(path)
            return False
        if is_locked and is_at(file.fileno(), path):
            if is_new:
                with suppress(OSError):  # a full disk
                    file.write(f"{os.getpid()} on {os.uname().nodename}".encode())
                return True
            if not _remove(target, real):
                return False
        _close(opened.pop())


def _check_is_read_only(target: str, path: str, error: OSError) -> None:
    """Raise Error for a lock file that is there, but cannot be opened, unless nothing can be written here."""
    if error.errno != EROFS and os.path.lexists(path):
        raise Error(
            f"{target}{LOCK_SUFFIX}: cannot lock it ({reason(error)}); remove this file unless a process "
            f"writes {os.path.basename(target)}"
        ) from None


def _open(path: str) -> FileIO:
    """Open a lock file that is there.

    Raises:
      OSError: it cannot be opened.
      Error: it is not a lock file.
    """
    file = FileIO(path, "r", opener=lambda path, flags: os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK))
    found = os.fstat(file.fileno())
    if not S_ISREG(found.st_mode) or (found.st_size and not _holder(file)):
        file.close()
        raise Error(f"{path}: not a lock file: expected the name of a process in it; rename it")
    return file


def _remove(target: str, real: str) -> bool:
    """Remove what the last holder of a lock left, and its lock file, which is locked now.

    Returns:
      False in a file system that is read-only.
    Raises:
      Error: the lock file belongs to another user.
    """
    remove_leftovers(real)
    try:
        os.unlink(real + LOCK_SUFFIX)
    except OSError as error:
        _check_is_read_only(target, real + LOCK_SUFFIX, error)
        return error.errno != EROFS
    return True


def _close(file: FileIO) -> None:
    """Close a lock file, and unlock it first: a child that another thread forked just now may have a copy."""
    with file, suppress(OSError):
        fcntl.flock(file.fileno(), fcntl.LOCK_UN)


def _wait(file: FileIO, target: str, began: float, has_spoken: bool) -> bool:
    """Wait a little for the holder of a lock file; return whether a message has said so.

    Raises:
      Error: that takes longer than the limit.
    """
    given = seconds_of(LIMIT)
    limit, waited = _DEFAULT_LIMIT if given is None else given, time.monotonic() - began
    holder = f"process {found}" if (found := _holder(file)) else "another process"
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


def _holder(file: FileIO) -> str:
    """Return who holds a lock file, or held it last, as it says; "" if it does not say."""
    text = os.pread(file.fileno(), 300, 0).decode("latin-1").rstrip()
    return text if _HOLDER.fullmatch(text) else ""


def _say_without_locks(target: str, error: OSError) -> None:
    text = f"this file system has no locks ({reason(error)}); build each index in one process at a time"
    if text not in _spoken:
        _spoken.add(text)
        _say(f"{target}: {text}")


def _say(line: str) -> None:
    if sys.stderr is not None:
        with suppress(OSError, ValueError):
            sys.stderr.write(f"{line}\n")  # in one piece, as many processes may wait
