"""A directory of whole objects: one download a node, a limit in bytes, and eviction of what is needed last.

A complete object is a file named by its identity. An object under way is a `.part` of the object's size, whose flock
the downloading process holds. Decisions are made under the flock of the directory, from its files alone. So any number
of jobs and ranks share a cache, and a killed process leaves only a part without a lock, which the next one removes.
"""

import fcntl
import math
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from xxhash import xxh3_128

from ..errors import Error, SourceError, counted

_OWN = re.compile(r"[0-9a-f]{32}-.+")  # names of our files; a cache never touches others
_PART, _LOCK, _INDEX = ".part", ".lock", ".mmx"
_POLL = 0.02  # seconds between looks at what another process does
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


class Item(NamedTuple):
    """An object, as an index knows it."""

    url: str
    size: int  # bytes
    mtime_ns: int
    etag: str
    fingerprint: str = ""  # identifies an object without an ETag
    hash: str = ""  # xxh3-128 of all bytes; "" if unknown

    @property
    def name(self) -> str:
        """The name of its file in a cache."""
        identity = "\n".join((self.url, str(self.size), self.etag or self.fingerprint or str(self.mtime_ns)))
        return f"{xxh3_128(identity.encode()).hexdigest()}-{self.url.rpartition('/')[2][-100:]}"


class Entry(NamedTuple):
    """A file of a cache."""

    name: str
    size: int
    used: float  # the time of its last use
    is_part: bool


def parse_bytes(given: int | str | None) -> float:
    """Return a limit in bytes: a number, a text such as "200GB", or no limit for None."""
    if given is None:
        return math.inf
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?\s*", str(given), re.IGNORECASE)
    if isinstance(given, bool) or not found:
        raise Error(f"cache_bytes = {given!r}, expected bytes, such as 200_000_000_000 or '200GB'")
    power = _UNITS[found[2].upper()]
    return float(found[1]) * (2 ** (round(math.log10(power)) // 3 * 10) if found[3] else power)


def _never(_: str) -> float:
    return math.inf


class Cache:
    """Keeps objects as files of a directory."""

    def __init__(self, directory: str, limit: float = math.inf) -> None:
        self.directory, self.limit = os.path.abspath(directory), limit
        self.next_use: Callable[[str], float] = _never
        """When an order needs the object of a name again; later ones are evicted first."""
        try:
            os.makedirs(self.directory, mode=0o700, exist_ok=True)
            with self._locked():
                self._entries()
        except OSError as error:
            raise SourceError(f"cache = {directory!r}: {(error.strerror or str(error)).lower()}") from None

    def path(self, item: Item) -> str:
        """Return where the complete file of an object lies."""
        return os.path.join(self.directory, item.name)

    def fetch(self, item: Item, download: Callable[[str], object], gives_up: Callable[[], bool] | None = None) -> str:
        """Return the path of an object's file, once this or another process has downloaded it.

        Args:
          download: writes the object into an existing file.
          gives_up: whether to return early, instead of waiting for room; None for a reader, which cannot wait.
        Raises:
          Error: the limit has no room for the object beside those that are needed before it.
        """
        path = self.path(item)
        while not _touched(path, item.mtime_ns):
            part = self._reserved(item, is_urgent=gives_up is None)
            if part is None:
                if gives_up is not None and gives_up():
                    break
                time.sleep(_POLL)
                continue
            try:
                download(path + _PART)
                os.utime(path + _PART, ns=(time.time_ns(), item.mtime_ns))
                with self._locked():
                    os.rename(path + _PART, path)
            except BaseException:
                with self._locked(), suppress(OSError):
                    os.unlink(path + _PART)
                raise
            finally:
                _unlock(part)
        return path

    def done(self, item: Item) -> int:
        """Return how many bytes of an object are on the disk."""
        for path in (self.path(item) + _PART, self.path(item)):
            with suppress(OSError):
                return min(os.stat(path).st_blocks * 512, item.size)
        return 0

    @property
    def evictions(self) -> int:
        """A number that changes when a process evicts an object."""
        return os.stat(os.path.join(self.directory, _LOCK)).st_mtime_ns

    def entries(self) -> list[Entry]:
        """Return the files of the cache, after the removal of what killed processes left."""
        with self._locked():
            return self._entries()

    def clear(self) -> list[Entry]:
        """Remove and return all complete objects; processes that read them keep their maps."""
        with self._locked():
            removed = [entry for entry in self._entries() if not entry.is_part]
            self._remove(removed)
        return removed

    # ---- under the lock of the directory -----------------------------------------------------------------------

    @contextmanager
    def _locked(self) -> Iterator[None]:
        descriptor = os.open(os.path.join(self.directory, _LOCK), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            _unlock(descriptor)

    def _entries(self) -> list[Entry]:
        """Return all own files; remove the parts whose process is gone."""
        found = []
        with os.scandir(self.directory) as files:
            for file in files:
                if _OWN.fullmatch(file.name) and file.is_file(follow_symlinks=False):
                    is_part = file.name.endswith(_PART)
                    if is_part and _is_abandoned(file.path):
                        os.unlink(file.path)
                        continue
                    status = file.stat(follow_symlinks=False)
                    found.append(Entry(file.name, status.st_size, status.st_atime, is_part))
        return found

    def _reserved(self, item: Item, *, is_urgent: bool) -> int | None:
        """Return the locked descriptor of a new part; None if another process was faster, or there is no room now."""
        path = self.path(item)
        with self._locked():
            if os.path.exists(path):
                return None
            if self.limit < math.inf:
                if not self._make_room(item, is_urgent):
                    return None
            elif os.path.exists(path + _PART) and not _is_abandoned(path + _PART):
                return None
            with suppress(FileNotFoundError):  # a new file: a killed process may still write into the old one
                os.unlink(path + _PART)
            part = os.open(path + _PART, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            fcntl.flock(part, fcntl.LOCK_EX)
            os.ftruncate(part, item.size)  # reserves its bytes of the limit
            return part

    def _make_room(self, item: Item, is_urgent: bool) -> bool:
        """Evict what is needed last, until an object fits; return False if that must wait, or it is under way."""
        entries = self._entries()
        if item.name + _PART in {entry.name for entry in entries}:
            return False
        over = sum(entry.size for entry in entries) + item.size - self.limit
        own = -1.0 if is_urgent else self.next_use(item.name)
        uses = {entry: -1.0 if entry.name.endswith(_INDEX) else self.next_use(entry.name) for entry in entries}
        victims = []
        for entry in sorted(entries, key=lambda entry: (-uses[entry], entry.used)):
            if over <= 0 or uses[entry] <= own:
                break
            if not entry.is_part:
                victims.append(entry)
                over -= entry.size
        if over > 0:
            if is_urgent and not any(entry.is_part for entry in entries):
                needed = item.size + sum(entry.size for entry in entries if uses[entry] <= own)
                raise Error(
                    f"cache_bytes = {self.limit:,.0f}, expected {needed:,} or more for {item.url}, "
                    f"{counted(item.size, 'byte')}, and what is needed with it; give more, or mix fewer chunks"
                )
            return False
        self._remove(victims)
        return True

    def _remove(self, entries: list[Entry]) -> None:
        for entry in entries:
            with suppress(FileNotFoundError):
                os.unlink(os.path.join(self.directory, entry.name))
        if entries:
            os.utime(os.path.join(self.directory, _LOCK))


def _touched(path: str, mtime_ns: int) -> bool:
    """Whether a file is there; note its use."""
    try:
        os.utime(path, ns=(time.time_ns(), mtime_ns))
    except FileNotFoundError:
        return False
    except PermissionError:  # a cache that is shared for reading
        return os.path.exists(path)
    return True


def _is_abandoned(path: str) -> bool:
    """Whether no process holds the lock of a part."""
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


def _unlock(descriptor: int) -> None:
    fcntl.flock(descriptor, fcntl.LOCK_UN)  # a process that was forked meanwhile has the descriptor, too
    os.close(descriptor)
