"""Replacing a file: one writer at a time, beside its place, and moved there when it is whole.

The lock of `train.jsonl.mmx` is one on `train.jsonl.mmx.lock`, which names its holder and is removed with the lock. The
kernel frees the lock when its process ends, so a lock file that is not locked is the sign of a killed process: the next
holder removes its temporaries. Those are locked while they are open, and never removed by another host.
"""

import fcntl
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from errno import EEXIST
from io import FileIO
from stat import S_ISREG
from typing import Any, Self
from weakref import WeakSet
from zlib import crc32

from ..errors import Error
from .sources import kind_of_file, reason

LOCK_SUFFIX = ".lock"
LIMIT = "MMAPDS_LOCK_SECONDS"
"""The environment variable that says how many seconds to wait for a lock."""
TEMPORARY = r"\.[0-9a-f]{8}\.tmp"
"""The pattern of what follows the name of a file in that of a temporary."""
_HOST = f"{crc32(os.uname().nodename.encode()) & 0xFFFF:04x}"
_DEFAULT_LIMIT = 3600.0
_SILENCE = 1.0  # seconds before a message says what is waited for
_POLL = 0.05  # seconds between two attempts


class OwnFile(FileIO):
    """A file of a writer, never at the end of a link. Its writes are whole.

    A forked child closes it: a worker that outlives a killed writer would keep its lock.
    """

    def __init__(self, path: str, mode: str) -> None:
        super().__init__(path, mode, opener=lambda path, flags: os.open(path, flags | os.O_NOFOLLOW, 0o666))
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


# ---- locks ------------------------------------------------------------------------------------------------------

_held: dict[str, tuple[int, int]] = {}
"""By the real path of a lock file: the process and the thread that hold it."""


@contextmanager
def locked(target: str) -> Iterator[None]:
    """Hold the lock of a file while it is replaced.

    A thread that holds it already goes on. Who waits says so on stderr after a second. In a directory that cannot be
    written to there is no lock, as nothing can be replaced there.

    Raises:
      Error: another process held the lock for longer than the limit, or the lock file cannot be opened.
    """
    directory, name = os.path.split(target)
    path = os.path.join(os.path.realpath(directory or "."), name) + LOCK_SUFFIX
    me = os.getpid(), threading.get_ident()
    file = None if _held.get(path) == me else _acquire(target, path)
    if file is None:
        yield
        return
    with file:
        try:
            _held[path] = me
            yield
        finally:
            _held.pop(path, None)
            if os.getpid() == me[0]:  # not in a child that was forked meanwhile
                with suppress(OSError):
                    os.unlink(path)


def _acquire(target: str, path: str) -> OwnFile | None:
    """Wait for the lock; return the lock file, or None where nothing can be written, which the writer says better."""
    began, limit, has_spoken = time.monotonic(), float(os.environ.get(LIMIT) or _DEFAULT_LIMIT), False
    while True:
        try:
            file = OwnFile(path, "a+")
            is_locked = _is_locked(file, path)
        except OSError as error:
            if not os.path.lexists(path):
                return None
            raise Error(f"{target}{LOCK_SUFFIX}: cannot lock it ({reason(error)})") from None
        if is_locked:
            with suppress(OSError):  # a full disk
                if os.fstat(file.fileno()).st_size:  # of a killed process
                    remove_leftovers(path.removesuffix(LOCK_SUFFIX))
                    file.truncate(0)  # never of an empty file: ext4 would write it to the disk when it is closed
                file.write(f"{os.getpid()} on {os.uname().nodename}".encode())
            return file
        who = f"process {ascii(os.pread(file.fileno(), 300, 0).decode('latin-1'))[1:-1]}"
        file.close()
        waited = time.monotonic() - began
        if waited >= limit:
            raise Error(f"{target}{LOCK_SUFFIX}: waited {limit:g} s ({LIMIT}) for {who}, which holds it")
        if waited >= _SILENCE and not has_spoken:
            with suppress(Exception):  # stderr is closed, or None
                sys.stderr.write(f"{target}: waiting for {who}, which holds {target}{LOCK_SUFFIX}\n")
            has_spoken = True
        time.sleep(min(_POLL, limit - waited))


def _is_locked(file: FileIO, path: str) -> bool:
    """Try to lock an open file; return whether that is done and it still has this path."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except (BlockingIOError, FileNotFoundError):
        return False


# ---- temporaries ------------------------------------------------------------------------------------------------


def special_file(path: str) -> str:
    """Return what lies at a path, or what a link there leads to; "" for a regular file, and for nothing."""
    with suppress(OSError):
        if os.readlink(path).startswith("/proc/"):  # as /dev/stdout does
            return "a link to an open file"
    with suppress(OSError):
        mode = os.stat(path).st_mode
        return "" if S_ISREG(mode) else kind_of_file(mode)
    return ""


def remove_leftovers(target: str) -> None:
    """Remove the temporaries of a file whose writers on this host are dead."""
    directory, name = os.path.split(target)
    own = re.compile(rf"{re.escape(name)}(?=\.{_HOST}){TEMPORARY}")
    with suppress(OSError):  # of a directory that can be written to, and not be read
        for found in filter(own.fullmatch, os.listdir(directory or ".")):
            path = os.path.join(directory, found)
            with suppress(OSError), FileIO(path, "r+") as file:
                if _is_locked(file, path):
                    os.unlink(path)


class Replacement:
    """A file beside its place. Use it as a context manager: nothing is left behind unless `place` is called.

    Args:
      target: absolute; nothing is there, or the file to replace.
    Raises:
      OSError: it cannot be written, or a device or another special file would be replaced.
    """

    def __init__(self, target: str) -> None:
        self.target, self.directory = target, os.path.dirname(target)
        if found := special_file(target):
            raise FileExistsError(EEXIST, f"expected a regular file, found {found}")
        while True:
            self.temporary = f"{target}.{_HOST}{os.urandom(2).hex()}.tmp"
            with suppress(FileExistsError):
                self.file = OwnFile(self.temporary, "x+")
                if _is_locked(self.file, self.temporary):
                    break
                self.file.close()  # another process took it for one of a dead writer, and removes it

    def place(self) -> None:
        """Move the file to its place; the caller has flushed it to the disk."""
        os.replace(self.temporary, self.target)
        with suppress(OSError):  # some network file systems refuse to flush the new name
            fd = os.open(self.directory, os.O_RDONLY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

    @property
    def is_own(self) -> bool:
        """Whether there is something to close; not in a child that was forked meanwhile, as its parent still writes."""
        return hasattr(self, "file") and not self.file.closed

    def close(self) -> None:
        """Close the file, and remove it unless it was moved to its place."""
        if self.is_own:
            with suppress(OSError):  # it was moved; else the next writer removes it
                os.unlink(self.temporary)
            with suppress(OSError):
                self.file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()  # of a file that nobody closed


@contextmanager
def replacing(target: str, check: Callable[[], object]) -> Iterator[OwnFile]:
    """Yield a file to write; when the block ends, it is flushed to the disk and moved to `target`.

    Args:
      target: absolute.
      check: called before the file is moved; if it raises, nothing is replaced.
    Raises:
      OSError, Error: as `Replacement` and `locked` do.
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


def check_is_free(path: str) -> None:
    """Raise Error where a file, or anything else, is there already."""
    if found := special_file(path) or ("a file" if os.path.lexists(path) else ""):
        raise Error(f"{path}: expected a name that is free, found {found}")
