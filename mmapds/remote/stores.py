"""Object stores for the child process: obstore for most, urllib for plain HTTP, fsspec for every other protocol.

Each store answers for one object with `head` and `read`, for a directory with `listing`, and takes a file with `write`.
"""

import ipaddress
import re
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

PART = 8 << 20  # bytes of a request, at most: a broken one costs little, and several fetch one object
_PIECE = 1 << 20  # bytes in memory at a time
_TIMEOUT = 60.0  # seconds for a part of an object, or without a byte from plain HTTP
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

    def read(self, url: str, begin: int, end: int, etag: str) -> Iterator[bytes]:
        """Yield bytes `begin` to `end` of an object; raise RefusedError if its ETag is another one."""
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
        client: dict[str, Any] = {"timeout": timedelta(seconds=_TIMEOUT), "connect_timeout": timedelta(seconds=10)}
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

    def read(self, url: str, begin: int, end: int, etag: str) -> Iterator[bytes]:
        options: dict[str, Any] = {"range": (begin, end)} if end > begin else {}
        if etag:
            options["if_match"] = f'"{etag}"'
        with _errors_of_obstore():
            found = self._module.get(self._store, self._key(url), options=options)  # type: ignore[arg-type]
            if etag and _head(found.meta).etag != etag:
                raise RefusedError("stale", CHANGED)
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


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects, but none to a private address: a public server must not choose what this network sends."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        there, here = urlsplit(newurl), urlsplit(req.full_url)
        if there.scheme not in ("http", "https") or (here.scheme, there.scheme) == ("https", "http"):
            raise RefusedError(
                "denied", f"expected a redirect to HTTPS, found one to {there.scheme}://{there.hostname} ({code})"
            )
        if (there.hostname, there.port) != (here.hostname, here.port) and _is_private(there.hostname or ""):
            raise RefusedError("denied", f"refused a redirect to a private address, {there.hostname} ({code})")
        made = super().redirect_request(req, fp, code, msg, headers, newurl)
        if made is not None and there.hostname != here.hostname:
            made.remove_header("Authorization")
        return made


def _is_private(host: str) -> bool:
    with suppress(OSError, ValueError):
        found = {each[4][0] for each in socket.getaddrinfo(host, None)}
        return not all(ipaddress.ip_address(str(each).partition("%")[0]).is_global for each in found)
    return False


class _Http(Store):
    def __init__(self, options: dict[str, Any]) -> None:
        self._headers = {"User-Agent": "mmapds", "Accept-Encoding": "identity", **options.get("headers", {})}
        self._opener = urllib.request.build_opener(_Redirects)

    def _answer(self, url: str, method: str = "GET", **headers: str) -> Any:
        parts = urlsplit(url)
        asked = parts._replace(path=quote(parts.path, safe="/%:@+,;=~!$&'()*")).geturl()
        request = urllib.request.Request(asked, headers={**self._headers, **headers}, method=method)
        try:
            return self._opener.open(request, timeout=_TIMEOUT)
        except urllib.error.HTTPError as error:
            text = f"HTTP {error.code} {error.reason}"[:200]
            error.close()
            if error.code in _RETRIED:
                after = error.headers.get("Retry-After", "")
                raise FailedError(text, float(after) if after.isdigit() else 0.0) from None
            kind = {404: "missing", 410: "missing", 401: "denied", 403: "denied", 412: "stale"}.get(
                error.code, "failed"
            )
            raise RefusedError(kind, CHANGED if kind == "stale" else f"expected an object, found {text}") from None
        except (OSError, ValueError) as error:
            raise FailedError(_text(getattr(error, "reason", None) or error)) from None

    def head(self, url: str) -> Head:
        with self._answer(url, "HEAD") as answer:
            return _head_of_http(answer.headers, answer.headers.get("Content-Length"))

    def read(self, url: str, begin: int, end: int, etag: str) -> Iterator[bytes]:
        headers = {"Range": f"bytes={begin}-{end - 1}"} if end > begin else {}
        if etag and not etag.startswith("W/"):
            headers["If-Match"] = etag
        with self._answer(url, **headers) as answer:
            if etag and answer.headers.get("ETag") not in (etag, None):
                raise RefusedError("stale", CHANGED)
            left = end - begin
            try:
                if answer.status == 200 and begin:  # a server that ignores ranges
                    _skipped(answer, begin)
                while left and (piece := answer.read(min(_PIECE, left))):
                    left -= len(piece)
                    yield piece
            except OSError as error:
                raise FailedError(_text(error)) from None
            if left:
                raise FailedError(f"the connection ended {left:,} bytes early")


def _skipped(answer: Any, count: int) -> None:
    while count and (piece := answer.read(min(_PIECE, count))):
        count -= len(piece)


def _head_of_http(headers: Any, size: str | None) -> Head:
    if size is None or not size.isdigit():
        raise RefusedError("failed", "expected a Content-Length, found none")
    try:
        mtime = parsedate_to_datetime(headers["Last-Modified"]).timestamp()
    except (TypeError, ValueError):
        mtime = 0.0
    return Head(int(size), int(mtime) * 10**9, headers.get("ETag") or "")


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

    def read(self, url: str, begin: int, end: int, etag: str) -> Iterator[bytes]:
        system, path = self._found(url)
        with _errors_of_fsspec():
            if etag and _head_of_fsspec(system.info(path)).etag != etag:
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
