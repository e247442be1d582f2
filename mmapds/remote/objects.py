"""The objects that a call of mmapds may read: their listing, and their files in a cache."""

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from braceexpand import braceexpand

from ..digests import fingerprint_of
from ..errors import Error, IndexMissingError, SourceError, StaleIndexError, either, is_command
from . import urls
from .cache import Cache, Item, parse_bytes

_INDEX = ".mmx"
_TOGETHER = 16  # small requests at a time
_REPORTED = 10_000  # objects of a listing between two lines of a command


class ObjectHead(NamedTuple):
    """An object as its store describes it."""

    url: str
    size: int  # bytes
    mtime_ns: int
    etag: str


class MissingObjectError(SourceError):
    """A store has no such object; it is also a SourceError."""


class Objects:
    """Reads objects as files of a cache.

    Args:
      cache: the directory of the cache; None refuses to read, with the way out.
      limit: bytes of the cache, as `parse_bytes` takes them; None is no limit.
      options: of the store, such as its endpoint and region; by default the store's own environment variables.
    """

    def __init__(
        self,
        cache: str | os.PathLike[str] | None = None,
        limit: int | str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self._given = None if cache is None else os.path.abspath(cache), limit, dict(options or {})
        self._limit = parse_bytes(limit)
        if cache is None and limit is not None:
            raise Error(f"cache_bytes = {limit!r}, expected a cache with it, found none; give cache=DIRECTORY")
        self._cache: Cache | None = None
        self._heads: dict[str, ObjectHead] = {}  # of listed objects
        self._waiting: dict[int, Item] = {}  # by thread
        self._lock = threading.Lock()  # of the numbers below
        self.fetched = 0
        """Bytes that this process has downloaded."""
        self.waited = 0.0
        """Seconds in which readers of this process waited for objects."""
        self._active, self._since, self._spent = 0, 0.0, 0.0  # downloads, when the first began, seconds before that

    def __reduce__(self) -> tuple[Any, ...]:
        return Objects, self._given

    @property
    def has_cache(self) -> bool:
        """Whether the user gave a directory."""
        return self._given[0] is not None

    def cached_in(self, directory: str) -> "Objects":
        """Return objects of the same stores with another cache, without a limit."""
        return Objects(directory, None, self._given[2])

    @property
    def cache(self) -> Cache:
        """The cache of the user's directory."""
        if self._cache is None:
            self._cache = Cache(str(self._given[0]), self._limit)
        return self._cache

    @property
    def _client(self) -> Any:
        from . import client  # start-up time: only objects need it

        return client

    # ---- names -------------------------------------------------------------------------------------------------

    def expand(
        self, pattern: str, suffixes: tuple[str, ...], is_named: Callable[[str, tuple[str, ...]], bool]
    ) -> list[str]:
        """Return the URLs that a URL, a pattern, or a URL that ends with a slash stands for."""
        found: list[str] = []
        for each in braceexpand(pattern) if "{" in pattern else [pattern]:
            url = urls.checked(each)
            if url.endswith("/"):
                names = self.listing(url)
                found += _preferred(
                    [name for name in names if is_named(name, suffixes) and "/" not in name[len(url) :]]
                )
            elif urls.is_pattern(url):
                matches = urls.matcher(url).match
                found += _preferred([name for name in self.listing(urls.prefix_of(url)) if matches(name)])
            else:
                found.append(url)
        if not found:
            raise SourceError(f"{pattern}: expected one object or more, found none")
        return [urls.checked(url) for url in found]

    def listing(self, url: str) -> list[str]:
        """Return the URLs of all objects below one."""
        heads = self._client.listing(url, self._given[2], partial(_report, url))
        self._heads.update((head.url, head) for head in heads)
        return [head.url for head in heads]

    def head(self, url: str) -> ObjectHead:
        """Return what the store says of an object."""
        if url not in self._heads:
            self._heads[url] = self._client.head(url, self._given[2])
        return self._heads[url]

    # ---- files -------------------------------------------------------------------------------------------------

    def index(self, url: str) -> str:
        """Return the file of the index at a URL, as it is now; raise IndexMissingError if there is none."""
        try:
            return self.fetch(Item(*self.head(urls.checked(url))))
        except MissingObjectError:
            raise IndexMissingError(f"{url}: no such index") from None

    def bring(self, paths: Sequence[str]) -> None:
        """Fetch the indexes among some paths together; opening them reports what is wrong."""
        found = [path for path in paths if urls.is_url(path)]
        if len(found) > 1 and self.has_cache:
            self.together(self.index, found)

    def together(self, work: Callable[[str], object], paths: Sequence[str]) -> None:
        """Call `head` or `index` for URLs in threads; later calls report what is wrong."""
        from concurrent.futures import ThreadPoolExecutor  # start-up time: as `_client`

        def quietly(url: str) -> None:
            with suppress(Error):
                work(url)

        with ThreadPoolExecutor(_TOGETHER) as pool:
            list(pool.map(quietly, paths))

    def fetch(self, item: Item, gives_up: Callable[[], bool] | None = None) -> str:
        """Return the file of an object, downloaded if it is not in the cache; see `Cache.fetch` for `gives_up`.

        Raises:
          SourceError: it cannot be read; the message has the URL and the status of the store.
          StaleIndexError: the object changed after it was indexed.
          Error: the limit of the cache is too small.
        """
        if not self.has_cache:
            way = either("give --cache DIRECTORY", "give cache=DIRECTORY")
            raise SourceError(f"{item.url}: expected a directory on a local disk to fetch it into, found none; {way}")
        begun, cache = time.perf_counter(), self.cache
        if gives_up is None:
            self._waiting[threading.get_ident()] = item
        try:
            return cache.fetch(item, lambda path: self._download(item, path), gives_up)
        finally:
            if self._waiting.pop(threading.get_ident(), None):
                with self._lock:
                    self.waited += time.perf_counter() - begun

    @property
    def rate(self) -> float:
        """Bytes a second of the downloads, while any ran."""
        with self._lock:
            spent = self._spent + (time.perf_counter() - self._since if self._active else 0.0)
        return self.fetched / spent if spent else 0.0

    def _count(self, change: int) -> None:
        """Count a download that begins or ends."""
        with self._lock:
            now = time.perf_counter()
            if self._active:
                self._spent += now - self._since
            self._active, self._since = self._active + change, now

    def _download(self, item: Item, path: str) -> None:
        self._count(1)
        try:
            self._checked_download(item, path)
        finally:
            self._count(-1)

    def _checked_download(self, item: Item, path: str) -> None:
        self._client.get(item.url, self._given[2], path=path, size=item.size, etag=item.etag, hash=item.hash)
        if item.fingerprint and not item.hash:
            with open(path, "rb") as file:
                if fingerprint_of(file.fileno(), item.size) != item.fingerprint:
                    raise StaleIndexError(
                        f"{item.url}: STALE: has other bytes than when it was indexed; index it again"
                    )
        with self._lock:
            self.fetched += item.size

    def put(self, path: str, url: str) -> None:
        """Write a file as an object."""
        self._client.put(urls.checked(url), self._given[2], path=path)

    def waiting(self) -> str:
        """Return what readers of this process wait for, as text for a message; "" for nothing."""
        for item in list(self._waiting.values()):
            return f"waits for {item.url} ({self.cache.done(item) / 1e6:,.0f} of {item.size / 1e6:,.0f} MB)"
        return ""


def _report(url: str, count: int) -> None:
    if is_command() and count % _REPORTED == 0:
        print(f"{url}: listed {count:,} objects", file=sys.stderr)


def _preferred(names: list[str]) -> list[str]:
    """Return names without those of indexes; but all, if there are no others."""
    return [name for name in names if not name.endswith(_INDEX)] or names
