"""Object stores for the child process: obstore for most, urllib3 for plain HTTP, fsspec for every other protocol.

Each store answers for one object with `head` and `read`, for a directory with `listing`, and takes a file with `write`.
"""

import ipaddress
import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import partial
from http.client import HTTPException, responses
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, urljoin, urlsplit
from urllib.request import getproxies, proxy_bypass

PART = 8 << 20  # bytes of a request, at most: a broken one costs little, and several fetch one object
_PIECE = 1 << 18  # bytes in memory at a time
_CONNECT, _TIMEOUT = 10.0, 60.0  # seconds for a connection, and for a part of an object, or without a byte of HTTP
_SLOWEST = 16_384  # bytes a second of HTTP
_CONNECTIONS = 64  # that HTTP keeps open
_REDIRECTS = 10
_NUMBER = re.compile(r"[0-9]{1,18}")
_RANGE = re.compile(r"bytes ([0-9]{1,18})-[0-9]{1,18}/([0-9]{1,18}|\*)")
_RETRIED = {408, 425, 429, 500, 502, 503, 504}
_ROLES = re.compile(r"//(169\.254\.169\.254|metadata\.google\.internal)\b")  # services that name a machine's role
_SCHEMES = {"s3a": "s3", "gcs": "gs", "azure": "az"}  # names that obstore does not know, and those that it knows
_NO_RETRIES = {
    "max_retries": 0,  # of obstore, which would resume without a check of the ETag
    "retry_timeout": timedelta(seconds=_TIMEOUT),
    "backoff": {"init_backoff": timedelta(seconds=1), "max_backoff": timedelta(seconds=1), "base": 2},
}


class RefusedError(Exception):
    """An answer that another attempt would not change. `kind` says what it means: see `transfer`."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


class FailedError(Exception):
    """A request that may succeed later; `after` is how many seconds the server asks to wait."""

    def __init__(self, text: str, after: float = 0.0) -> None:
        super().__init__(text)
        self.after = after


class Head(NamedTuple):
    """An object as its store describes it."""

    size: int  # bytes
    mtime_ns: int
    etag: str  # or generation, or version; "" if the store has none


MISSING = "expected an object, found none (404)"
CHANGED = "is another object than the one that was indexed (412)"


def store_of(url: str, options: dict[str, Any]) -> "Store":
    """Return the store of a URL."""
    scheme = urlsplit(url).scheme.lower()
    if scheme in ("http", "https"):
        return _Http(options)
    if scheme in ("s3", "s3a", "gs", "gcs", "az", "azure", "abfs", "abfss", "file"):
        return _Obstore(url, options)
    return _Fsspec(options)


class Store:
    """The interface of a store. Methods raise RefusedError or FailedError."""

    def head(self, url: str) -> Head:
        """Return the size, the time and the ETag of an object."""
        raise NotImplementedError

    def read(self, url: str, begin: int, end: int, expected: Head) -> Iterator[bytes]:
        """Yield bytes `begin` to `end` of an object; raise RefusedError if its size or ETag is another one."""
        raise NotImplementedError

    def listing(self, url: str) -> Iterator[tuple[str, Head]]:
        """Yield all objects whose URLs begin with `url`."""
        raise RefusedError("failed", "expected a store that lists objects, found plain HTTP; name each object")

    def write(self, url: str, path: str) -> None:
        """Write a file as an object."""
        raise RefusedError("failed", "expected a store to write to, found one for reading alone")


# ---- obstore -----------------------------------------------------------------------------------------------------


class _Obstore(Store):
    def __init__(self, url: str, options: dict[str, Any]) -> None:
        import obstore.store  # an extra, which plain HTTP does not need

        parts = urlsplit(url)
        scheme = _SCHEMES.get(parts.scheme, parts.scheme)
        self._root = f"{scheme}://{parts.netloc}" if scheme != "file" else "file:///"
        self._begin = len(f"{parts.scheme}://{parts.netloc}/")  # of a key in a URL
        given = {name: each for name, each in options.items() if name != "allow_http"}
        client: dict[str, Any] = {
            "timeout": timedelta(seconds=_TIMEOUT),
            "connect_timeout": timedelta(seconds=_CONNECT),
        }
        client |= {"allow_http": True, **given.pop("client_options", {})}  # only an endpoint that says http:// uses it
        extra: dict[str, Any] = {"client_options": client, "retry_config": _NO_RETRIES, "config": given}
        if scheme == "file":
            extra = {}
        self._module = obstore
        try:
            self._store = obstore.store.from_url(self._root, **extra)
        except Exception as error:
            raise RefusedError("failed", _text(error)) from None

    def _key(self, url: str) -> str:
        return url[self._begin :]

    def head(self, url: str) -> Head:
        with _errors_of_obstore():
            return _head(self._module.head(self._store, self._key(url)))

    def read(self, url: str, begin: int, end: int, expected: Head) -> Iterator[bytes]:
        options: dict[str, Any] = {"range": (begin, end)} if end > begin else {}
        if expected.etag:
            options["if_match"] = f'"{expected.etag}"'
        with _errors_of_obstore():
            found = self._module.get(self._store, self._key(url), options=options)  # type: ignore[arg-type]
            head = _head(found.meta)
            if head.size != expected.size or (expected.etag and head.etag != expected.etag):
                raise RefusedError("stale", CHANGED)
            if end > begin and found.range != (begin, end):
                raise RefusedError("failed", f"expected bytes {begin} to {end}, found {found.range}")
            yield from found.stream(min_chunk_size=_PIECE)

    def listing(self, url: str) -> Iterator[tuple[str, Head]]:
        with _errors_of_obstore():
            for batch in self._module.list(self._store, self._key(url).rpartition("/")[0] or None, chunk_size=1000):
                for meta in batch:
                    yield url[: self._begin] + meta["path"], _head(meta)

    def write(self, url: str, path: str) -> None:
        with _errors_of_obstore(), open(path, "rb") as file:
            self._module.put(self._store, self._key(url), file)


def _head(meta: Any) -> Head:
    etag = (meta["e_tag"] or "").strip('"')  # listings of Azure have none of the quotes that headers have
    return Head(meta["size"], int(meta["last_modified"].timestamp() * 1e6) * 1000, etag)


class _errors_of_obstore:  # noqa: N801 - used as a function
    """Turn errors of obstore into RefusedError and FailedError."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if error is None or not isinstance(error, Exception) or isinstance(error, RefusedError | FailedError):
            return
        name, text = type(error).__name__, _text(error)
        if isinstance(error, FileNotFoundError) or name == "NotFoundError":
            raise RefusedError("missing", MISSING) from None
        if _ROLES.search(text):
            raise RefusedError(
                "denied",
                f"expected credentials in the environment, found none, and no role of this machine ({text}); "
                "public objects need AWS_SKIP_SIGNATURE=true, or so for GOOGLE_ and AZURE_",
            ) from None
        if name in ("PermissionDeniedError", "UnauthenticatedError"):
            raise RefusedError("denied", f"permission denied (403): {text}") from None
        if name == "PreconditionError":
            raise RefusedError("stale", CHANGED) from None
        if "invalid path" in text:
            raise RefusedError("failed", f"{text}; remove that object, or name the others: part-{{000..099}}.jsonl")
        status = re.search(r"HTTP (\d{3})", text)
        if isinstance(error, ValueError | TypeError) or (status and int(status[1]) not in _RETRIED):
            raise RefusedError("failed", text) from None
        raise FailedError(text) from None


def _text(error: BaseException) -> str:
    """Return the first line of an error, without queries, which may be signed, and bodies of answers."""
    line = str(error).partition("\n")[0]
    line = re.sub(r"(status code: \d{3}[^:]*):.*", r"\1", line)
    line = re.sub(r".*Error performing ([A-Z]+ \S+) in .*? - ", r"\1: ", line)
    line = line.replace("Server returned non-2xx status code:", "HTTP")
    line = re.sub(r"\?[^\s\"')]*", "", line)
    line = re.sub(r"//[^/\s@]*@", "//", line)
    return re.sub(r"[\x00-\x1f\x7f-\x9f]", " ", line)[:300] or type(error).__name__


# ---- HTTP --------------------------------------------------------------------------------------------------------


class _Http(Store):
    """Redirects are followed here: a public server must not choose what this network sends to whom."""

    def __init__(self, options: dict[str, Any]) -> None:
        import urllib3  # an extra, as obstore is

        self._own = {"User-Agent": "mmapds", "Accept-Encoding": "identity"}
        self._given = dict(options.get("headers", {}))  # for the host of the URL alone
        self._module = urllib3
        self._pools: dict[str, Any] = {}  # by proxy

    def _pool(self, scheme: str, host: str) -> Any:
        """Return the connections to a host, through the proxy of the environment, if any."""
        proxy = "" if proxy_bypass(host) else getproxies().get(scheme, "")
        if proxy not in self._pools:
            settings: dict[str, Any] = {"maxsize": _CONNECTIONS, "timeout": self._module.Timeout(_CONNECT, _TIMEOUT)}
            auth = urlsplit(proxy)
            if auth.username:
                basic = f"{unquote(auth.username)}:{unquote(auth.password or '')}"
                settings["proxy_headers"] = self._module.make_headers(proxy_basic_auth=basic)
            make = self._module.PoolManager if not proxy else partial(self._module.ProxyManager, proxy)
            self._pools[proxy] = make(**settings)
        return self._pools[proxy]

    @contextmanager
    def _answer(self, url: str, method: str = "GET", **headers: str) -> Iterator[Any]:
        """Yield the answer to a request, after redirects; close it if its body was not read to the end."""
        parts = urlsplit(url)
        there = parts._replace(path=quote(parts.path, safe="/%:@+,;=~!$&'()*")).geturl()
        sent = {**self._own, **self._given, **headers}
        try:
            for _ in range(_REDIRECTS):
                parts = urlsplit(there)
                found = self._pool(parts.scheme, parts.hostname or "").request(
                    method, there, headers=sent, redirect=False, retries=False, preload_content=False
                )
                if not (location := found.get_redirect_location()):
                    break
                found.close()
                there, before = urljoin(there, location), there
                if _checked_redirect(before, there, found.status):
                    sent = {**self._own, **headers}
            else:
                raise RefusedError("failed", f"expected an object, found {_REDIRECTS} redirects")
            with found:
                if found.status not in (200, 206):
                    raise _error_of_http(found)
                yield found
        except (self._module.exceptions.HTTPError, HTTPException, OSError, ValueError) as error:
            raise FailedError(_text(error)) from None

    def head(self, url: str) -> Head:
        with self._answer(url, "HEAD") as answer:
            size = answer.headers.get("Content-Length", "")
            if not _NUMBER.fullmatch(size):
                raise RefusedError("failed", "expected a Content-Length, found none")
            try:
                mtime = parsedate_to_datetime(answer.headers["Last-Modified"]).timestamp()
            except (KeyError, TypeError, ValueError, OverflowError):
                mtime = 0.0
            return Head(int(size), int(mtime) * 10**9, answer.headers.get("ETag") or "")

    def read(self, url: str, begin: int, end: int, expected: Head) -> Iterator[bytes]:
        headers, etag = {"Range": f"bytes={begin}-{end - 1}"} if end > begin else {}, expected.etag
        if etag and not etag.startswith("W/"):
            headers["If-Match"] = etag
        with self._answer(url, **headers) as answer:
            if etag and answer.headers.get("ETag") not in (etag, None):
                raise RefusedError("stale", CHANGED)
            skipped = _skipped_by(answer, begin, expected.size)
            left, received, begun = skipped + end - begin, 0, time.monotonic()
            while left and (piece := answer.read1(min(_PIECE, left))):
                left, received, passed = left - len(piece), received + len(piece), time.monotonic() - begun
                if passed > _TIMEOUT and received < _SLOWEST * passed:
                    raise FailedError(f"the server sends less than {_SLOWEST:,} bytes a second")
                if len(piece) > skipped:
                    yield piece[skipped:]
                skipped -= min(skipped, len(piece))
            if left:
                raise FailedError(f"the connection ended {left:,} bytes early")


def _checked_redirect(before: str, url: str, status: int) -> bool:
    """Return whether a redirect leads to another host; raise RefusedError if it may not be followed."""
    here, there = urlsplit(before), urlsplit(url)
    if there.scheme not in ("http", "https") or (here.scheme, there.scheme) == ("https", "http"):
        shown = f"{there.scheme}://{there.hostname}"
        raise RefusedError("denied", f"expected a redirect to HTTPS, found one to {shown} ({status})")
    if (there.hostname, there.port) != (here.hostname, here.port) and _is_private(there.hostname or ""):
        raise RefusedError("denied", f"refused a redirect to a private address, {there.hostname} ({status})")
    return (there.scheme, there.hostname, there.port) != (here.scheme, here.hostname, here.port)


def _is_private(host: str) -> bool:
    with suppress(OSError, ValueError):
        found = {each[4][0] for each in socket.getaddrinfo(host, None)}
        return not all(ipaddress.ip_address(str(each).partition("%")[0]).is_global for each in found)
    return False


def _error_of_http(answer: Any) -> Exception:
    """Return the error for an answer without an object."""
    status = answer.status
    if status in (412, 416):
        return RefusedError("stale", CHANGED)
    text = f"HTTP {status} {responses.get(status, '')}".rstrip()  # what the server says may be a header that it got
    if status in _RETRIED:
        after = answer.headers.get("Retry-After", "")
        return FailedError(text, float(after) if _NUMBER.fullmatch(after) else 0.0)
    kind = {404: "missing", 410: "missing", 401: "denied", 403: "denied"}.get(status, "failed")
    return RefusedError(kind, f"expected an object, found {text}")


def _skipped_by(answer: Any, begin: int, size: int) -> int:
    """Return how many bytes come before those that were asked for; raise RefusedError for other bytes or sizes."""
    found = answer.headers.get("Content-Range", "")
    if answer.status == 206:
        match = _RANGE.fullmatch(found)
        if not match or int(match[1]) != begin:
            raise RefusedError("failed", f"expected bytes from {begin} on, found another Content-Range")
        total = match[2]
    else:  # a server that ignores ranges
        total = answer.headers.get("Content-Length", "*")
    if _NUMBER.fullmatch(total) and int(total) != size:
        raise RefusedError("stale", f"was {size:,} bytes when indexed and is {int(total):,} now")
    return 0 if answer.status == 206 else begin


# ---- fsspec ------------------------------------------------------------------------------------------------------


class _Fsspec(Store):
    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options

    def _found(self, url: str) -> tuple[Any, str]:
        try:
            # Not at the top: most stores do without it, and it need not be installed.
            from fsspec.core import url_to_fs  # type: ignore[import-untyped]

            return url_to_fs(url, **self._options)  # type: ignore[no-any-return]
        except (ImportError, ValueError) as error:
            raise RefusedError("failed", _text(error)) from None

    def head(self, url: str) -> Head:
        system, path = self._found(url)
        with _errors_of_fsspec():
            return _head_of_fsspec(system.info(path))

    def read(self, url: str, begin: int, end: int, expected: Head) -> Iterator[bytes]:
        system, path = self._found(url)
        with _errors_of_fsspec():
            if expected.etag and _head_of_fsspec(system.info(path)).etag != expected.etag:
                raise RefusedError("stale", CHANGED)
            with system.open(path, "rb") as file:
                file.seek(begin)
                while begin < end and (piece := file.read(min(_PIECE, end - begin))):
                    begin += len(piece)
                    yield piece

    def listing(self, url: str) -> Iterator[tuple[str, Head]]:
        system, path = self._found(url)
        with _errors_of_fsspec():
            for name, found in system.find(path, detail=True).items():
                yield url + name[len(path.rstrip("/")) + 1 :], _head_of_fsspec(found)

    def write(self, url: str, path: str) -> None:
        system, there = self._found(url)
        with _errors_of_fsspec():
            system.put_file(path, there)


class _errors_of_fsspec(_errors_of_obstore):  # noqa: N801 - used as a function
    """Turn errors of fsspec into RefusedError and FailedError."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if isinstance(error, PermissionError):
            raise RefusedError("denied", f"permission denied (403): {_text(error)}") from None
        super().__exit__(kind, error, _)


def _head_of_fsspec(found: dict[str, Any]) -> Head:
    """Read what file systems call by different names."""
    known = (found.get(name) for name in ("ETag", "etag", "blob_id", "generation", "md5Hash", "md5"))
    times = (found.get(name) for name in ("LastModified", "last_modified", "mtime", "updated", "modified"))
    time = next((each for each in times if each is not None), 0)
    if isinstance(time, str):
        time = datetime.fromisoformat(time)
    if isinstance(time, datetime):
        time = (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
    seconds = float(time) if isinstance(time, int | float) else 0.0
    return Head(int(found["size"]), int(seconds * 1e6) * 1000, str(next(filter(None, known), "")))
