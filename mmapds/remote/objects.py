"""The objects that a call of mmapds may read: their listing, and their files in a cache."""

import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from braceexpand import braceexpand

from ..errors import Error, IndexMissingError, SourceError, StaleIndexError, counted, either, is_command
from ..storage.digests import fingerprint_of
from ..storage.places import Files, Place, Places, is_below, outside, scheme_of
from ..storage.sources import INDEX_SUFFIX, Source, StrPath, listed, named
from . import urls
from .cache import Cache, Item, held, parse_bytes
from .secrets import check_options
from .urls import MissingObjectError, ObjectHead

_TOGETHER = 16  # small requests at a time
_REPORTED = 10_000  # objects of a listing between two lines of a command


def places(
    roots: StrPath | Iterable[StrPath] = (),
    cache: StrPath | None = None,
    limit: int | str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Places:
    """Return the disk and the stores, for one call; see `Files` and `Objects` for the arguments."""
    given = [os.fspath(each) for each in listed(roots)]
    directories, below = ([each for each in given if bool(scheme_of(each)) == is_url] for is_url in (False, True))
    return Places(Files(directories), Objects(cache, limit, options, below))


class Objects(Place):
    """Objects of stores, read as files of a cache.

    Args:
      cache: the directory of the cache; None refuses to read, with the way out.
      limit: bytes of the cache, as `parse_bytes` takes them; None is no limit.
      options: of the store, such as its endpoint and region; by default the store's own environment variables.
      roots: URLs below which an index may name objects, besides its own directory.
    """

    def __init__(
        self,
        cache: StrPath | None = None,
        limit: int | str | None = None,
        options: Mapping[str, Any] | None = None,
        roots: Iterable[str] = (),
    ) -> None:
        self._roots = list(map(urls.checked, roots))
        self._given = None if cache is None else os.path.abspath(cache), limit, check_options(options or {})
        self._limit = parse_bytes(limit)
        if cache is None and limit is not None:
            raise Error(f"cache_bytes = {limit!r}, expected a cache with it, found none; give cache=DIRECTORY")
        self._cache: Cache | None = None
        self._heads: dict[str, ObjectHead] = {}  # of listed objects
        self._indexes: dict[str, str] = {}  # that were opened: the file in the cache by URL
        self._waiting: dict[int, Item] = {}  # by thread
        self._lock = threading.Lock()  # of the numbers below
        self.fetched = 0
        """Bytes that this process has downloaded."""
        self.waited = 0.0
        """Seconds in which readers of this process waited for objects."""
        self._active, self._since, self._spent = 0, 0.0, 0.0  # downloads, when the first began, seconds before that

    def __reduce__(self) -> tuple[Any, ...]:
        return Objects, (*self._given, self._roots)

    @property
    def has_cache(self) -> bool:
        """Whether the user gave a directory."""
        return self._given[0] is not None

    @contextmanager
    def local(self, source: Source, *, is_fresh: bool) -> Iterator[str]:
        if not self.has_cache:
            with tempfile.TemporaryDirectory(prefix="mmapds-") as directory:
                yield Objects(directory, None, self._given[2], self._roots).file(source)
            return
        item = item_of(source)
        if is_fresh or not item.is_known:
            self.cache.forget(item)
        while True:
            path = self.fetch(item)
            with held(path) as is_there:
                if is_there:
                    yield path
                    return

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

    @property
    def roots(self) -> set[str]:
        return set(self._roots)

    def expand(self, pattern: str, suffixes: tuple[str, ...], report: Callable[[str], object]) -> list[str]:
        """Return the URLs that a URL, a pattern, or a URL that ends with a slash stands for."""
        found: list[str] = []
        suffixes = (*suffixes, INDEX_SUFFIX)
        for each in braceexpand(pattern) if "{" in pattern else [pattern]:
            url = urls.checked(each)
            if url.endswith("/"):
                names = self.listing(url)
                found += _preferred([name for name in names if named(name, suffixes) and "/" not in name[len(url) :]])
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

    def inspect(self, names: Sequence[str]) -> list[Source]:
        self._together(self.head, names)
        heads = map(self.head, names)
        return [Source(head.url, head.size, head.mtime_ns, etag=head.etag) for head in heads]

    def check(self, name: str, index: str, home: str) -> None:
        real = _real(urls.checked(name))
        if not any(is_below(real, _real(root)) for root in (home, *self._roots) if scheme_of(root)):
            raise outside(index, "objects below its own URL", name, name[: name.rfind("/") + 1])

    # ---- files -------------------------------------------------------------------------------------------------

    @property
    def generation(self) -> int:  # type: ignore[override]
        """How many objects were evicted: a process that maps one keeps its space on the disk."""
        return self._cache.evictions if self._cache else 0

    def file_of_index(self, name: str) -> str:
        try:
            path = self.fetch(Item(*self.head(urls.checked(name))))
        except MissingObjectError:
            raise IndexMissingError(f"{name}: no such index") from None
        self._indexes[name] = os.path.basename(path)
        return path

    @property
    def indexes(self) -> list[str]:
        """The names in the cache of the indexes that were opened."""
        return list(self._indexes.values())

    def prepare(self, names: Sequence[str]) -> None:
        if len(names) > 1 and self.has_cache:
            self._together(self.file_of_index, names)

    def _together(self, work: Callable[[str], object], names: Sequence[str]) -> None:
        """Do some work for URLs in threads; later calls report what is wrong."""
        from concurrent.futures import ThreadPoolExecutor  # start-up time: as `_client`

        def quietly(url: str) -> None:
            with suppress(Error):
                work(url)

        with ThreadPoolExecutor(_TOGETHER) as pool:
            list(pool.map(quietly, names))

    def file(self, source: Source) -> str:
        return self.fetch(item_of(source))

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
            return cache.fetch(item, partial(self._check_there, item), partial(self._download, item), gives_up)
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

    def _check_there(self, item: Item) -> None:
        """Raise an error unless the store has this object: an index that claims another size takes no room."""
        found = self._client.head(item.url, self._given[2])
        if found.size != item.size or (item.etag and found.etag not in (item.etag, "")):
            raise StaleIndexError(
                f"{item.url}: STALE: was {counted(item.size, 'byte')} when indexed, and is another object of "
                f"{found.size:,} now; build the index again"
            )

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

    def publish(self, path: str, name: str) -> None:
        self._client.put(urls.checked(name), self._given[2], path=path)

    def figures(self) -> dict[str, Any]:
        return {"fetched_bytes": self.fetched, "fetch_rate": self.rate, "fetch_wait": self.waited, "ahead_bytes": 0}

    def waiting(self) -> str:
        for item in list(self._waiting.values()):
            return f"waits for {item.url} ({self.cache.done(item) / 1e6:,.0f} of {item.size / 1e6:,.0f} MB)"
        return ""


def item_of(source: Source) -> Item:
    """Return a source as its cache knows it."""
    return Item(source.path, source.size, source.mtime_ns, source.etag, source.fingerprint, source.xxh3_128)


def _real(url: str) -> str:
    """Return a URL as it is compared: without escapes and, for files, with links resolved."""
    if scheme_of(url) == "file":
        return f"file://{os.path.realpath(url[len('file://') :])}"
    return urls.unquoted(url)


def _report(url: str, count: int) -> None:
    if is_command() and count % _REPORTED == 0:
        print(f"{url}: listed {count:,} objects", file=sys.stderr)


def _preferred(names: list[str]) -> list[str]:
    """Return names without those of indexes; but all, if there are no others."""
    return [name for name in names if not name.endswith(INDEX_SUFFIX)] or names
