"""One process at a time: locks that have files of their own, and what killed processes leave behind.

The lock of `train.jsonl.mmx` is one on the file `train.jsonl.mmx.lock`. The kernel frees it when its process ends,
however it ends. Whoever releases a lock removes the file first, so a lock file that nobody holds is the sign of a
process that was killed: the next holder removes the temporaries of that process. A temporary is locked too, as long as
it is written.
"""

import fcntl
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from errno import EEXIST, EROFS
from io import BufferedWriter, FileIO
from stat import S_ISREG
from typing import NamedTuple
from weakref import WeakSet

from ..errors import Error
from .processes import seconds_of
from .sources import kind_of_file, reason, working_directory

LOCK_SUFFIX = ".lock"
LIMIT = "MMAPDS_LOCK_SECONDS"
"""The environment variable that says how many seconds to wait for a lock."""
_DEFAULT_LIMIT = 3600.0
_SILENCE = 1.0  # seconds before a message says what is waited for
_POLL = 0.05  # seconds between two attempts
_FOREIGN_AGE = 86400.0  # seconds; see `_clean_up`
_HOLDER = re.compile(r"(\d{1,10}) on ([^\s/]{1,255})")
_OPEN_FILES = "/proc/"
"""Links that begin so are names of what a process has open."""
_NAMED_BY_CHANCE = r"\.[0-9a-f]{8}"
TEMPORARY = rf"{_NAMED_BY_CHANCE}\.tmp"
"""The pattern of what follows the name of a file in that of a temporary."""
_TEMPORARY = re.compile(TEMPORARY)
_SCRATCH = re.compile(rf"{TEMPORARY}{_NAMED_BY_CHANCE}")


class _Hold(NamedTuple):
    """A lock that this process holds."""

    thread: int
    file: FileIO | None
    """None where there are no locks. A file, not a descriptor: nobody loses it without its being closed."""


_held: dict[str, _Hold] = {}
"""By the real path of what is locked."""


_opened: WeakSet[FileIO] = WeakSet()
"""Lock files, which this process holds or waits for."""


_temporaries: WeakSet[BufferedWriter] = WeakSet()
"""What this process writes, and locks."""


def _forget() -> None:
    """Drop, in a forked child, what its parent holds: else a child that outlives its parent keeps the locks."""
    for lock_file in _opened:  # also those that other threads wait for
        lock_file.close()
    _held.clear()
    for file in _temporaries:
        if not file.closed:  # its owner closes it when it is collected, so its number must not become that of another
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, file.fileno(), inheritable=False)
            os.close(null)


os.register_at_fork(after_in_child=_forget)


@contextmanager
def locked(target: str) -> Iterator[bool]:
    """Hold the lock of a file while it is replaced; yield False where there are no locks, and nobody waits.

    One thread of one process at a time holds it; a thread that holds it already goes on. Who waits says so on stderr
    after a second. In a directory that cannot be written to there is no lock, as nothing can be replaced there. A
    signal that raises leaves it free, and no lock file, wherever it comes.

    Raises:
      Error: another process held the lock for longer than the limit, or the lock file is not one.
    """
    real = _real(target)
    hold = _held.get(real)
    if hold is not None and hold.thread == threading.get_ident():
        yield hold.file is not None
        return
    path = real + LOCK_SUFFIX
    try:
        file, is_clean = _acquire(target, path)
        try:
            _held[real] = _Hold(threading.get_ident(), file)
            if file is not None:
                _sign(file.fileno(), real, is_clean)
                is_clean = True
            yield file is not None
        finally:
            try:
                _held.pop(real, None)
            finally:
                if file is not None and not file.closed:  # a child that was forked meanwhile has closed it
                    with file:
                        _release(file, path, is_clean)
    except BaseException:
        clean_up(target)  # a signal that raises may come when the lock file was just made, or was to be removed
        raise


def clean_up(target: str, remove: Callable[[str], object] | None = None) -> None:
    """Remove what a killed writer of a file left behind, where a lock file says that one was; wait for nobody.

    Args:
      remove: called with the target while nobody else holds its lock, whether there is a lock file or not; removes
        what else such a writer left.
    """
    if (remove is None and not os.path.lexists(target + LOCK_SUFFIX)) or (real := _real(target)) in _held:
        return
    path = real + LOCK_SUFFIX
    with suppress(OSError, Error):  # a read-only directory, or a file of somebody else's: nothing to be done
        file, is_new = _open(path)
        try:
            if _try(file.fileno()) and _is_at(file.fileno(), path):
                if not (is_new and _is_unsigned(file.fileno())):
                    _clean_up(file.fileno(), real)
                if remove is not None:
                    remove(target)
                os.unlink(path)
        finally:
            _close(file)


def _real(target: str) -> str:
    """Return the real path of the file that is replaced; where it is a link, that is the link."""
    directory, name = os.path.split(os.path.join(working_directory(), target))
    return os.path.join(os.path.realpath(directory) if os.path.isabs(directory) else directory, name)


def _release(file: FileIO, path: str, is_clean: bool) -> None:
    """Unlock a lock file, and remove it; leave it where a signal came before all was removed that it is the sign of."""
    try:
        if is_clean:
            with suppress(OSError):
                os.unlink(path)
    finally:
        _close(file)


def _close(file: FileIO) -> None:
    """Close a lock file, and unlock it first: a child that another thread forked just now may have a copy."""
    with file, suppress(OSError):
        fcntl.flock(file.fileno(), fcntl.LOCK_UN)


def _acquire(target: str, path: str) -> tuple[FileIO | None, bool]:
    """Return a lock file that is locked, None where that is impossible; and whether nobody had it locked before."""
    began, has_spoken = time.monotonic(), False
    while True:
        try:
            file, is_new = _open(path)
        except OSError as error:
            if error.errno != EROFS and os.path.lexists(path):
                raise Error(
                    f"{target}{LOCK_SUFFIX}: cannot lock it ({reason(error)}); remove this file unless a process "
                    f"writes {os.path.basename(target)}"
                ) from None
            return None, True  # nothing can be written here, which the writer says better
        try:
            fd = file.fileno()
            was_free = _try(fd)
            if not was_free:
                has_spoken = _wait(fd, target, path, began, has_spoken)
            if _is_at(fd, path):
                return file, is_new and was_free and _is_unsigned(fd)
        except OSError as error:
            _close(file)
            _say_without_locks(target, error)
            if is_new:
                with suppress(OSError):
                    os.unlink(path)
            return None, True
        except BaseException:
            _close(file)
            raise
        _close(file)  # its holder removed it meanwhile: the lock is that on the next file of this name


def _open(path: str) -> tuple[FileIO, bool]:
    """Open a lock file; return whether it is new.

    Raises:
      OSError: it cannot be opened.
      Error: it is not a lock file.
    """
    while True:
        with suppress(FileExistsError):
            file = FileIO(path, "x+")
            _opened.add(file)
            return file, True
        with suppress(FileNotFoundError):  # its holder removed it just now
            try:
                file = FileIO(path, "r+", opener=_open_existing)
            except PermissionError:  # of another user, who lets others read it
                file = FileIO(path, "r", opener=_open_existing)
            _opened.add(file)
            break
    found = os.fstat(file.fileno())
    if not S_ISREG(found.st_mode) or (found.st_size and _signature(file.fileno()) is None):
        file.close()
        raise Error(f"{path}: not a lock file: expected the name of a process in it; rename it")
    return file, False


def _open_existing(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def _is_unsigned(fd: int) -> bool:
    """Whether nobody signed a lock file; another process may do so before the one that made it locks it."""
    return not os.fstat(fd).st_size


def _sign(fd: int, real: str, is_clean: bool) -> None:
    """Write into a lock file who holds it. Where its last holder was killed, remove what that left behind."""
    if not is_clean:
        _clean_up(fd, real)
    with suppress(OSError):  # a full disk; or a file of another user, who lets others only read it
        # Over all that is there, not truncated first: ext4 would wait for the disk then, when the file is closed.
        os.pwrite(fd, f"{os.getpid()} on {os.uname().nodename}".encode().ljust(os.fstat(fd).st_size), 0)


def _signature(fd: int) -> re.Match[str] | None:
    """Return who holds a lock file, or held it last: the process, then the host; None if it does not say."""
    return _HOLDER.fullmatch(os.pread(fd, 300, 0).decode("latin-1").rstrip())


def _try(fd: int) -> bool:
    """Try to lock a descriptor; return whether that is done.

    Raises:
      OSError: the file system has no locks.
    """
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True


def _wait(fd: int, target: str, path: str, began: float, has_spoken: bool) -> bool:
    """Wait until a descriptor is locked, or has no longer the path; return whether a message has said so.

    Raises:
      Error: that takes longer than the limit.
      OSError: the file system has no locks.
    """
    given = seconds_of(LIMIT)
    limit = _DEFAULT_LIMIT if given is None else given
    while not _try(fd) and _is_at(fd, path):
        waited = time.monotonic() - began
        if waited >= limit:
            raise Error(
                f"{target}: waited {limit:g} s for {_holder(fd)}, which holds {target}{LOCK_SUFFIX}; set {LIMIT}=N to "
                "wait longer, or end that process"
            )
        if waited >= _SILENCE and not has_spoken:
            _say(f"{target}: waiting for {_holder(fd)}, which writes this file and holds {target}{LOCK_SUFFIX}")
            has_spoken = True
        time.sleep(min(_POLL, limit - waited))
    return has_spoken


def _holder(fd: int) -> str:
    found = _signature(fd)
    return f"process {found[0]}" if found else "another process"


_spoken: set[str] = set()
"""What is said once."""


def _say_without_locks(target: str, error: OSError) -> None:
    text = f"this file system has no locks ({reason(error)}); build each index in one process at a time"
    if text not in _spoken:
        _spoken.add(text)
        _say(f"{target}: {text}")


def _say(line: str) -> None:
    if sys.stderr is not None:
        with suppress(OSError, ValueError):
            sys.stderr.write(f"{line}\n")  # in one piece, as many processes may wait


def _is_at(fd: int, path: str) -> bool:
    """Whether a descriptor is that of the file which has this path now."""
    try:
        return os.path.samestat(os.fstat(fd), os.lstat(path))
    except FileNotFoundError:
        return False


def create_temporary(target: str) -> tuple[str, BufferedWriter]:
    """Create a file beside `target` to write it to, and lock it as long as it is open; return its path, and the file.

    A signal that raises leaves no file, wherever it comes; the caller makes no call before the `try` that removes it.

    Raises:
      OSError: the directory cannot be written to.
    """
    while True:
        path = f"{target}.{os.urandom(4).hex()}.tmp"
        try:
            file = open(path, "xb")  # noqa: SIM115 - the caller closes it
            try:
                if _try(file.fileno()) and _is_at(file.fileno(), path):
                    _temporaries.add(file)
                    return path, file
            except OSError:  # no locks: nobody removes it
                return path, file
            file.close()  # another process took it for one of a dead writer, and removes it
        except FileExistsError:  # of somebody else
            raise
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


def remove_leftovers(target: str, *, age: float = 0) -> None:
    """Remove the temporaries of a file, and their scratch files, whose writers are dead.

    Args:
      age: leave those that were written to within as many seconds.
    """
    directory, name = os.path.split(target)
    try:
        names = [each for each in os.listdir(directory or ".") if each.startswith(name)]
    except OSError:
        return
    temporaries = [os.path.join(directory, each) for each in names if _TEMPORARY.fullmatch(each, len(name))]
    for path in temporaries:
        remove_dead(path, age=age)
    for path in (os.path.join(directory, each) for each in names if _SCRATCH.fullmatch(each, len(name))):
        if not os.path.lexists(path.rpartition(".")[0]):  # the temporary that it belongs to
            remove_dead(path, age=age)


def remove_dead(path: str, *, age: float = 0) -> None:
    """Remove a file unless a process has it locked, or wrote to it within `age` seconds."""
    with suppress(OSError):  # it is gone; or there are no locks, so nobody knows
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            if _try(fd) and _is_at(fd, path) and time.time() - os.fstat(fd).st_mtime >= age:
                os.unlink(path)
        finally:
            os.close(fd)


def _clean_up(fd: int, real: str) -> None:
    """Remove what the last holder of a lock left behind.

    Some network file systems have locks that other hosts do not see. So what another host wrote stays for a day.
    """
    last = _signature(fd)
    is_foreign = last is not None and last[2] != os.uname().nodename
    remove_leftovers(real, age=_FOREIGN_AGE if is_foreign else 0)
