"""Replace a file: one writer at a time writes a temporary file, and moves it into place when it is complete.

The lock of `a.mmx` is on the file `a.mmx.lock`, which names its holder. The kernel frees it when the process ends. So
an unlocked lock file was left by a killed process: the next holder removes the temporaries of this host.
"""

import fcntl
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from errno import EEXIST
from functools import reduce
from io import FileIO
from operator import and_
from typing import Any, Self
from weakref import WeakSet
from zlib import crc32

from ..errors import Error, option
from .sources import reason

LOCK_SUFFIX = ".lock"
LIMIT = "MMAPDS_LOCK_SECONDS"  # environment variable: seconds to wait for a lock
TEMPORARY = r"\.[0-9a-f]{8}\.tmp"  # pattern of the suffix of a temporary file
_HOST = f"{crc32(os.uname().nodename.encode()) & 0xFFFF:04x}"
_SILENCE, _POLL = 1.0, 0.05  # seconds until a message names the holder, and between attempts


class OwnFile(FileIO):
    """A file of a writer. It refuses links, and writes whole buffers.

    A forked child closes it: otherwise a worker that outlives a killed writer would keep its lock.
    """

    def __init__(self, path: str, mode: str) -> None:
        super().__init__(path, mode, opener=lambda path, flags: os.open(path, flags | os.O_NOFOLLOW, 0o666))
        _open_files.add(self)

    def write(self, data: Any) -> int:
        """Write all bytes of a buffer; return their number."""
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

_held: dict[str, tuple[int, int]] = {}  # by the real path of a lock file: the process and the thread that hold it


@contextmanager
def locked(target: str) -> Iterator[None]:
    """Hold the lock of a file while it is replaced; raise Error if another process holds it for too long.

    A thread may lock a file that it has locked already. A directory that is not writable has no lock.
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
            if os.getpid() == me[0]:  # only here: a forked child does not hold the lock
                with suppress(OSError):
                    os.unlink(path)


def _limit() -> float:
    text = os.environ.get(LIMIT) or "3600"
    with suppress(ValueError):
        if (seconds := float(text)) >= 0:  # False for NaN
            return seconds
    raise Error(f"{LIMIT} = {text!r}, expected a number of seconds, 0 or more")


def _acquire(target: str, path: str) -> OwnFile | None:
    began, limit, has_spoken = time.monotonic(), _limit(), False
    while True:
        try:
            file = OwnFile(path, "a+")
            is_locked = _is_locked(file, path)
        except OSError as error:
            if not os.path.lexists(path):  # the directory is not writable: the writer has the better message
                return None
            raise Error(f"{target}{LOCK_SUFFIX}: cannot lock it ({reason(error)})") from None
        if is_locked:
            with suppress(OSError):  # a full disk
                if os.fstat(file.fileno()).st_size:  # left by a killed process
                    remove_leftovers(path.removesuffix(LOCK_SUFFIX))
                    file.truncate(0)  # only a file with content: ext4 flushes a truncated file on close
                file.write(f"{os.getpid()} on {os.uname().nodename}".encode())
            return file
        holder = os.pread(file.fileno(), 300, 0).decode("latin-1")
        who = f"process {ascii(holder)[1:-1]}" if holder else "another process"
        file.close()
        if _is_importing_main():
            raise Error(
                f"{target}: its builder started this process, which runs the same script again; build only under "
                "if __name__ == '__main__':"
            )
        waited = time.monotonic() - began
        if waited >= limit:
            raise Error(f"{target}{LOCK_SUFFIX}: waited {limit:g} s ({LIMIT}) for {who}, which holds it")
        if waited >= _SILENCE and not has_spoken:
            with suppress(Exception):  # stderr is closed, or None
                sys.stderr.write(f"{target}: waiting for {who}, which holds {target}{LOCK_SUFFIX}\n")
            has_spoken = True
        time.sleep(min(_POLL, limit - waited))


def _is_importing_main() -> bool:
    """Whether this is a spawned process that imports the main module of its parent."""
    multiprocessing = sys.modules.get("multiprocessing.process")
    return multiprocessing is not None and getattr(multiprocessing.current_process(), "_inheriting", False)


def _is_locked(file: FileIO, path: str) -> bool:
    """Try to lock an open file; return whether it is locked and still has this path."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except (BlockingIOError, PermissionError, FileNotFoundError):  # PermissionError: on SMB
        return False


# ---- temporaries ------------------------------------------------------------------------------------------------


def remove_leftovers(target: str) -> None:
    """Remove the temporaries of a file whose writers on this host are dead."""
    directory, name = os.path.split(target)
    own = re.compile(rf"{re.escape(name)}(?=\.{_HOST}){TEMPORARY}")
    with suppress(OSError):  # a directory that can be written to but not listed
        for found in filter(own.fullmatch, os.listdir(directory or ".")):
            path = os.path.join(directory, found)
            with suppress(OSError), FileIO(path, "r+") as file:
                if _is_locked(file, path):
                    os.unlink(path)


class Replacement:
    """A temporary file beside its target, an absolute path. `close` removes it unless `place` was called."""

    def __init__(self, target: str) -> None:
        self.target, self.directory = target, os.path.dirname(target)
        is_open = os.path.islink(target) and os.readlink(target).startswith("/proc/")  # such as /dev/stdout
        if is_open or (os.path.exists(target) and not os.path.isfile(target)):
            raise FileExistsError(EEXIST, "expected a regular file, found another")
        while True:
            self.temporary = f"{target}.{_HOST}{os.urandom(2).hex()}.tmp"
            with suppress(FileExistsError):
                self.file = OwnFile(self.temporary, "x+")
                if _is_locked(self.file, self.temporary):
                    break
                self.file.close()  # another process took it for a leftover of a dead writer, and removed it

    def restrict(self, paths: Iterable[str]) -> None:
        """Restrict the mode of the file to readers of all files in `paths`."""
        with suppress(OSError):  # a file system without modes
            modes = (os.stat(path).st_mode for path in paths)
            os.fchmod(self.file.fileno(), reduce(and_, modes, os.fstat(self.file.fileno()).st_mode) & 0o777)

    def place(self) -> None:
        """Move the file to its place, with the mode of the file that it replaces. Flush it to the disk before."""
        with suppress(OSError):
            os.fchmod(self.file.fileno(), os.stat(self.target).st_mode & 0o777)
        os.replace(self.temporary, self.target)
        with suppress(OSError):  # some network file systems cannot flush a directory
            fd = os.open(self.directory, os.O_RDONLY)
            with suppress(OSError):
                os.fsync(fd)
            os.close(fd)

    def close(self) -> None:
        """Close the file, and remove it unless it was moved to its place. Does nothing in a forked child."""
        if hasattr(self, "file") and not self.file.closed:
            with suppress(OSError):  # it was moved, or the next writer removes it
                os.unlink(self.temporary)
            with suppress(OSError):
                self.file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


@contextmanager
def replacing(target: str, made_of: str, check: Callable[[], object]) -> Iterator[OwnFile]:
    """Yield a file to write; at the end of the block call `check`, then move the file to `target`, an absolute path."""
    with locked(target), Replacement(target) as new:
        new.restrict([made_of])
        yield new.file
        os.fsync(new.file.fileno())
        check()
        new.place()


def is_same_file(path: str, other: str) -> bool:
    """Whether two paths lead to one file; False if one of them cannot be read, as its reader will say why."""
    try:
        return os.path.samefile(path, other)
    except OSError:
        return False


def check_is_free(path: str) -> None:
    """Raise Error if the path exists."""
    if os.path.lexists(path):
        way = f"give another place, or replace it with {option('force', True)}"
        raise Error(f"{path}: expected a name that is free, found a file; {way}")
