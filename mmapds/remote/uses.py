"""When loops of all processes need the objects of a cache: a file for each loop, in the directory of the cache.

A loop writes once when its order reads each object, as the bytes that it reads before it, and then how far it is. Its
process holds a lock on the file, so that a file without one is of a process that is gone.
"""

import fcntl
import mmap
import os
import time
import weakref
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

_PREFIX = ".uses-"
_BEGUN, _ENDED, _FIRST, _DONE, _HEADER = 0, 1, 2, 3, 32  # numbers of the header, each of 8 bytes; its bytes
_MADE = 60.0  # seconds after which an empty file is one of a process that is gone
_RATE = 1e8  # bytes a second, until a loop has run for a second


class Uses:
    """The uses of one loop, for all processes to see; see the module.

    Args:
      directory: of the cache.
      names: of the objects in the cache, one for each use.
      times: bytes that the loop reads before each use.
      pinned: names of files that it needs all the time.
    """

    def __init__(self, directory: str, names: list[str], times: NDArray[np.float64], pinned: list[str]) -> None:
        ids = np.fromiter(map(_id, names), np.uint64, len(names))
        order = np.lexsort((times, ids))
        path = os.path.join(directory, f"{_PREFIX}{os.urandom(8).hex()}")
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)  # open as long as the loop is known
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        head = np.array([time.monotonic(), 0, np.nan, 0])
        counts = np.array([len(pinned), len(names)], np.uint64)
        of_pinned = np.fromiter(map(_id, pinned), np.uint64, len(pinned))
        with open(descriptor, "wb", closefd=False) as file:
            file.write(b"".join(each.tobytes() for each in (head, counts, of_pinned, ids[order], times[order])))
        self._head = np.frombuffer(mmap.mmap(descriptor, _HEADER), np.float64)
        self.remove = weakref.finalize(self, _remove, path, descriptor, os.getpid())
        """Forget the loop."""

    def reach(self, done: float) -> None:
        """Note how many bytes the loop has read."""
        if np.isnan(self._head[_FIRST]):
            self._head[_FIRST] = done
        self._head[_DONE] = done

    def end(self) -> None:
        """Note that the loop rests. Another one like it is expected after as long as it has rested."""
        self._head[_ENDED] = time.monotonic()


def _remove(path: str, descriptor: int, owner: int) -> None:
    os.close(descriptor)
    if os.getpid() == owner:  # a forked process has this, too
        with suppress(OSError):
            os.unlink(path)


def seconds_until_use(directory: str, names: list[str]) -> NDArray[np.float64]:
    """Return after how many seconds a loop needs each object of a cache next; infinity if none is known to need it."""
    ids = np.fromiter(map(_id, names), np.uint64, len(names))
    found = np.full(len(names), np.inf)
    with os.scandir(directory) as files:
        paths = [file.path for file in files if file.name.startswith(_PREFIX)]
    for path in paths:
        with suppress(OSError, ValueError), open(path, "rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                found = np.minimum(found, _seconds(file.read(), ids))
            else:
                found_now = os.fstat(file.fileno())
                if found_now.st_size or time.time() - found_now.st_mtime > _MADE:  # or else it is being made
                    os.unlink(path)
    return found


def _seconds(data: bytes, ids: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Return `seconds_until_use` for one loop, which may just now be writing its file."""
    begun, ended, first, done = np.frombuffer(data, np.float64, 4)
    pinned, count = np.frombuffer(data, np.uint64, 2, _HEADER).tolist()
    begin = _HEADER + 16
    of_pinned = np.frombuffer(data, np.uint64, pinned, begin)
    of_uses = np.frombuffer(data, np.uint64, count, begin + 8 * pinned)
    times = np.frombuffer(data, np.float64, count, begin + 8 * (pinned + count))
    live = np.flatnonzero(times >= done)
    of_live = of_uses[live]
    is_first = np.append(True, of_live[1:] != of_live[:-1])[: len(live)]
    keys, ahead = of_live[is_first], times[live][is_first] - done
    now, rate = time.monotonic(), _RATE
    if (ended or now) - begun > 1 and done > first:
        rate = (done - first) / ((ended or now) - begun)
    places = np.searchsorted(keys, ids)
    is_known = np.append(keys, 0)[places] == ids
    is_known &= places < len(keys)
    seconds = np.where(is_known, np.append(ahead, 0)[places] / rate, np.inf)
    seconds[np.isin(ids, of_pinned)] = 0
    return seconds + (now - ended if ended else 0)


def _id(name: str) -> int:
    """Return the first 64 bits of the hash that begins the name of an object in a cache."""
    return int(name[:16], 16)
