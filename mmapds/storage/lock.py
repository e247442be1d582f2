"""One writer at a time: a file is locked while it is replaced, and what a killed writer left is removed.

The lock of `train.jsonl.mmx` is one on the file `train.jsonl.mmx.lock`, which its holder makes and removes. The kernel
frees the lock when its process ends, however it ends. So a lock file that nobody holds is the sign of a killed process:
the next one removes its temporaries, and that file, and makes its own.
"""

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from weakref import WeakValueDictionary

from ..errors import Error
from .processes import seconds_of
from .sources import real_path, reason
from .temporary import OwnFile, is_at, remove_leftovers, try_lock

LOCK_SUFFIX = ".lock"
LIMIT = "MMAPDS_LOCK_SECONDS"
"""The environment variable that says how many seconds to wait for a lock."""
_DEFAULT_LIMIT = 3600.0
_SILENCE = 1.0  # seconds before a message says what is waited for
_POLL = 0.05  # seconds between two attempts


@dataclass
class _Lock:
    """A lock, which is free when nobody refers to it any more, as where a signal raised while it was released."""

    thread: int
    """Who holds it."""
    file: OwnFile | None
    """The lock file; None where there are no locks."""


_held: WeakValueDictionary[str, _Lock] = WeakValueDictionary()
"""By the real path of what is locked."""


os.register_at_fork(after_in_child=_held.clear)


@contextmanager
def locked(target: str) -> Iterator[bool]:
    """Hold the lock of a file while it is replaced; yield False where there are no locks, and nobody waits.

    One thread of one process at a time holds it; a thread that holds it already goes on. Who waits says so on stderr
    after a second. In a directory that cannot be written to there is no lock, as nothing can be replaced there.

    Raises:
      Error: another process held the lock for longer than the limit, or the lock file cannot be opened or removed.
    """
    directory, name = os.path.split(target)
    real, thread = os.path.join(real_path(directory or "."), name), threading.get_ident()
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
    """Lock a new lock file, and return it; None where there are no locks."""
    path, began, has_spoken = real + LOCK_SUFFIX, time.monotonic(), False
    while True:
        is_new = not os.path.lexists(path)
        try:
            file = OwnFile(path, "x+" if is_new else "r+" if os.access(path, os.W_OK) else "r")
        except OSError as error:
            if isinstance(error, FileExistsError if is_new else FileNotFoundError):
                continue  # it was made, or removed, just now
            if is_new:
                return None  # nothing can be written here, which the writer says better
            raise _not_locked(target, error) from None
        try:
            is_locked = try_lock(file.fileno())
        except OSError as error:
            place = os.path.dirname(real)
            _say_once(f"{place}: this file system has no locks ({reason(error)}); write each file in one process only")
            file.close()
            if is_new:
                os.unlink(path)
            return None
        if not is_locked:
            holder = _holder(file)
            file.close()
            has_spoken = _wait(holder, target, began, has_spoken)
        elif is_new and is_at(file.fileno(), path):
            with suppress(OSError):  # a full disk
                file.write(f"{os.getpid()} on {os.uname().nodename}".encode())
            return file
        else:
            with file:
                if is_at(file.fileno(), path):
                    _clean_up(target, real)


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


def _holder(file: OwnFile) -> str:
    """Return who holds a lock file, as it says."""
    found = os.pread(file.fileno(), 300, 0).decode("latin-1")
    return f"process {found}" if found else "another process"


def _wait(holder: str, target: str, began: float, has_spoken: bool) -> bool:
    """Wait a little for the holder of a lock file; return whether a message has said so.

    Raises:
      Error: that takes longer than the limit.
    """
    given = seconds_of(LIMIT)
    limit, waited = _DEFAULT_LIMIT if given is None else given, time.monotonic() - began
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
