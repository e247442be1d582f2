"""A directory of whole objects: one download a node, a limit in bytes, and eviction of what is needed last.

A complete object is a file named by its identity. An object under way is a part of the object's size, whose flock the
downloading process holds. Decisions are made under the flock of the directory, from its files alone. So any number of
jobs and ranks share a cache, and a killed process leaves only a part without a lock, which the next one removes.
Nothing here runs in the main thread: no place is free of Ctrl-C there, between a lock and what guards it.
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
from ..storage.workers import uninterrupted

_OWN = re.compile(r"[0-9a-f]{32}(-.+|\.part)", re.DOTALL)  # names of our files; a cache never touches others
_PART, _LOCK = ".part", ".lock"
_NAMED = 100  # bytes of an object's own name in the name of its file
_POLL = 0.02  # seconds between looks at what another process does
_STALLED = 900.0  # seconds until a reader waits no longer for downloads without progress: above those of one request
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
        identity = "\n".join((self.url, str(self.size), self.etag or str(self.mtime_ns or self.fingerprint)))
        own = self.url.rpartition("/")[2].encode()[-_NAMED:].decode(errors="ignore")
        return f"{xxh3_128(identity.encode()).hexdigest()}-{own}"

    @property
    def is_known(self) -> bool:
        """Whether the store tells one version of the object from another."""
        return bool(self.etag or self.mtime_ns)


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


class Cache:
    """Keeps objects as files of a directory; evicts down to its limit, and what loops need last."""

    def __init__(self, directory: str, limit: float = math.inf) -> None:
        self.directory, self.limit = os.path.abspath(directory), limit
        try:
            os.makedirs(self.directory, mode=0o700, exist_ok=True)
            uninterrupted(self._fit)
        except OSError as error:
            raise SourceError(f"cache = {directory!r}: {(error.strerror or str(error)).lower()}") from None

    @staticmethod
    def is_at(directory: str) -> bool:
        """Return whether a directory is a cache."""
        return os.path.isfile(os.path.join(directory, _LOCK))

    def path(self, item: Item) -> str:
        """Return where the complete file of an object lies."""
        return os.path.join(self.directory, item.name)

    def part(self, item: Item) -> str:
        """Return where the file of an object lies while it is under way."""
        return os.path.join(self.directory, _part_of(item.name))

    def fetch(
        self,
        item: Item,
        check: Callable[[], object],
        download: Callable[[str], object],
        gives_up: Callable[[], bool] | None = None,
    ) -> str:
        """Return the path of an object's file, once this or another process has downloaded it.

        Args:
          check: raises an error unless the store has the object; called before anything is reserved.
          download: writes the object into an existing file.
          gives_up: whether to return early, instead of waiting for room; None for a reader, which cannot wait.
        Raises:
          Error: the limit has no room for the object beside those that are needed before it.
          SourceError: the disk is full, or the process that downloads the object does nothing.
        """
        path = self.path(item)
        if not _touched(path, item.mtime_ns):
            uninterrupted(lambda: self._fetch(item, check, download, gives_up))
        return path

    def _fetch(
        self,
        item: Item,
        check: Callable[[], object],
        download: Callable[[str], object],
        gives_up: Callable[[], bool] | None,
    ) -> None:
        path, part, is_checked = self.path(item), self.part(item), False
        seen, since = self.done(item), time.monotonic()
        while not _touched(path, item.mtime_ns):
            if not is_checked and not os.path.exists(part):
                check()
                is_checked = True
            with self._reserved(item, is_urgent=gives_up is None) as is_ours:
                if is_ours:
                    download(part)
                    os.utime(part, ns=(time.time_ns(), item.mtime_ns))
                    with self._locked():
                        os.rename(part, path)
                    return
            if gives_up is not None and gives_up():
                return
            time.sleep(_POLL)
            now = self.done(item)
            if now != seen:
                seen, since = now, time.monotonic()
            elif time.monotonic() - since > _STALLED:
                raise SourceError(
                    f"{item.url}: expected another process to download it, found no progress for {_STALLED:.0f} s; "
                    f"end that process, which has {part} open"
                )

    def done(self, item: Item) -> int:
        """Return how many bytes of an object are on the disk."""
        for path in (self.part(item), self.path(item)):
            with suppress(OSError):
                return min(os.stat(path).st_blocks * 512, item.size)
        return 0

    @property
    def evictions(self) -> int:
        """A number that changes when a process evicts an object."""
        return os.stat(os.path.join(self.directory, _LOCK)).st_mtime_ns

    def entries(self) -> list[Entry]:
        """Return the files of the cache, after the removal of what killed processes left."""

        def entries() -> list[Entry]:
            with self._locked():
                return self._entries()

        return uninterrupted(entries)

    def clear(self) -> list[Entry]:
        """Remove and return all complete objects; processes that read them keep their maps."""

        def clear() -> list[Entry]:
            with self._locked():
                removed = [entry for entry in self._entries() if not entry.is_part]
                self._remove(removed)
            return removed

        return uninterrupted(clear)

    def forget(self, item: Item) -> None:
        """Remove an object, so that the next reader downloads it."""

        def forget() -> None:
            with self._locked(), suppress(FileNotFoundError):
                os.unlink(self.path(item))

        uninterrupted(forget)

    # ---- under the lock of the directory -----------------------------------------------------------------------

    @contextmanager
    def _locked(self) -> Iterator[None]:
        descriptor = os.open(os.path.join(self.directory, _LOCK), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            _unlock(descriptor)

    def _fit(self) -> None:
        """Evict what exceeds the limit, which may be lower than that of an earlier job."""
        with self._locked():
            entries = self._entries()
            self._remove(self._victims(entries, sum(entry.size for entry in entries) - self.limit))

    def _entries(self) -> list[Entry]:
        """Return all own files; remove the parts whose process is gone."""
        found = []
        with os.scandir(self.directory) as files:
            for file in files:
                if _OWN.fullmatch(file.name) and file.is_file(follow_symlinks=False):
                    is_part = file.name.endswith(_PART) and len(file.name) == len(_part_of(file.name))
                    if is_part and not _is_locked(file.path):
                        os.unlink(file.path)
                        continue
                    status = file.stat(follow_symlinks=False)
                    found.append(Entry(file.name, status.st_size, status.st_atime, is_part))
        return found

    @contextmanager
    def _reserved(self, item: Item, *, is_urgent: bool) -> Iterator[bool]:
        """Reserve room for an object: its part exists, and is locked, until the block ends.

        Yield whether that is so; another process may have been faster, or there is no room now.
        """
        path, part, descriptor = self.path(item), self.part(item), -1
        try:
            with self._locked():
                if not os.path.exists(path) and self._make_room(item, is_urgent):
                    descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
                    fcntl.flock(descriptor, fcntl.LOCK_EX)
                    os.ftruncate(descriptor, item.size)  # reserves its bytes of the limit
            yield descriptor >= 0
        except OSError as error:
            raise SourceError(f"{item.url}: {error.strerror or error}, in the cache; free space") from None
        finally:
            if descriptor >= 0:
                with self._locked(), suppress(FileNotFoundError):  # complete objects have another name
                    os.unlink(part)
                _unlock(descriptor)

    def _make_room(self, item: Item, is_urgent: bool) -> bool:
        """Evict what is needed last, until an object fits; return False if that must wait, or it is under way."""
        if self.limit == math.inf:  # then the directory, which may be large, is not read
            if _is_locked(self.part(item)):
                return False
            with suppress(FileNotFoundError):
                os.unlink(self.part(item))
            return True
        entries = self._entries()
        if _part_of(item.name) in {entry.name for entry in entries}:
            return False
        over = sum(entry.size for entry in entries) + item.size - self.limit
        if over <= 0:
            return True
        victims = self._victims(entries, over, None if is_urgent else item)
        left = over - sum(entry.size for entry in victims)
        if left <= 0:
            self._remove(victims)
        elif is_urgent and not any(entry.is_part for entry in entries):
            raise Error(
                f"cache_bytes = {self.limit:,.0f}, expected {self.limit + left:,.0f} or more for {item.url}, "
                f"{counted(item.size, 'byte')}, and what is in use; give more, or mix fewer chunks"
            )
        return left <= 0

    def _victims(self, entries: list[Entry], over: float, item: Item | None = None) -> list[Entry]:
        """Return what to evict for some bytes: what is needed last, and after `item`; then what was used first."""
        if over <= 0:
            return []
        names = [entry.name for entry in entries] + ([item.name] if item else [])
        from .uses import seconds_until_use  # numpy, which indexing does without

        uses, found = seconds_until_use(self.directory, names).tolist(), []
        own = uses.pop() if item else -1.0
        for use, entry in sorted(zip(uses, entries, strict=True), key=lambda each: (-each[0], each[1].used)):
            if over <= 0 or use <= own:
                break
            if not entry.is_part and not _is_locked(os.path.join(self.directory, entry.name)):
                found.append(entry)
                over -= entry.size
        return found

    def _remove(self, entries: list[Entry]) -> None:
        for entry in entries:
            with suppress(FileNotFoundError):
                os.unlink(os.path.join(self.directory, entry.name))
        if entries:
            os.utime(os.path.join(self.directory, _LOCK))


@contextmanager
def held(path: str) -> Iterator[bool]:
    """Hold a complete object, so that it is not evicted in the block; yield whether it was there."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        yield False
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield os.path.exists(path) and os.path.samestat(os.stat(path), os.fstat(descriptor))
    finally:
        _unlock(descriptor)


def _part_of(name: str) -> str:
    """Return the name of the part of an object, which no complete object has."""
    return name[:32] + _PART


def _touched(path: str, mtime_ns: int) -> bool:
    """Whether a file is there; note its use."""
    try:
        os.utime(path, ns=(time.time_ns(), mtime_ns))
    except FileNotFoundError:
        return False
    except PermissionError:  # a cache that is shared for reading
        return os.path.exists(path)
    return True


def _is_locked(path: str) -> bool:
    """Whether a process holds the lock of a file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _unlock(descriptor: int) -> None:
    fcntl.flock(descriptor, fcntl.LOCK_UN)  # a process that was forked meanwhile has the descriptor, too
    os.close(descriptor)
