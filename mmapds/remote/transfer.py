"""The child process that talks to object stores: it describes, lists, reads and writes objects for its parent.

Clients of object stores have threads, which do not survive a fork. So they live in this process, which never forks. A
line of JSON on stdin is a request, lines on stdout are its answers. The process ends with its parent's pipe.
"""

import errno
import json
import os
import random
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from itertools import islice
from typing import Any, TypeVar

from xxhash import xxh3_128

from .secrets import hidden
from .stores import PART, FailedError, Head, RefusedError, Store, store_of

Result = TypeVar("Result")
_TRANSFERS = 16  # requests at a time
_PARTS = 4  # of an object, fetched at a time
_ATTEMPTS = 6  # of a request
_FIRST_WAIT, _LONGEST_WAIT = 0.2, 10.0  # seconds between attempts: doubled each time, with jitter
_LONGEST_AFTER = 60.0  # seconds that a server may ask to wait
_PROGRESS = 1 << 20  # bytes after which attempts are counted anew
_LISTED = 1000  # objects in an answer
_IDLE = 60.0  # seconds without a request until the process ends


def main() -> None:
    """Answer requests until the parent closes the pipe."""
    global _answers
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's, which then closes the pipe
    _answers = os.dup(1)
    os.dup2(2, 1)  # what a library prints is no answer
    left, active = b"", [0]
    with ThreadPoolExecutor(_TRANSFERS) as pool:
        while select.select([0], [], [], _IDLE)[0] or active[0]:
            read = os.read(0, 1 << 20) if select.select([0], [], [], 0)[0] else None
            if read == b"":
                os._exit(0)  # transfers under way are of no use any more
            *lines, left = (left + (read or b"")).split(b"\n")
            for line in lines:
                with _lock:
                    active[0] += 1
                pool.submit(_serve, json.loads(line), active)


_lock = threading.Lock()  # for answers and the count of requests
_answers = 1  # where they are written


def _answer(number: int, **answer: Any) -> None:
    line = json.dumps({"number": number, **answer}).encode() + b"\n"
    with _lock:
        while line:
            line = line[os.write(_answers, line) :]


def _serve(request: dict[str, Any], active: list[int]) -> None:
    number, work, options = request.pop("number"), _OPERATIONS[request.pop("operation")], request.pop("options")
    try:
        scheme, _, host = request["url"].split("/")[:3]
        store = _store(f"{scheme}//{host}", json.dumps(options))
        for items in work(store, **request):
            _answer(number, items=items)
        _answer(number, done=True)
    except BaseException as error:  # panics of obstore are none of Exception
        kind, text = _described(error)
        _answer(number, kind=kind, text=hidden(text, options))
    finally:
        with _lock:
            active[0] -= 1


def _described(error: BaseException) -> tuple[str, str]:
    """Return the kind of an error, and one line of text."""
    if isinstance(error, RefusedError | FailedError):
        return getattr(error, "kind", "failed"), str(error)
    if isinstance(error, ModuleNotFoundError):
        return "failed", f"{error.name}: not installed; run: pip install {error.name}"
    if isinstance(error, OSError):
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        return "full" if is_full else "failed", error.strerror or str(error)
    return "failed", f"{type(error).__name__}: {error}".partition("\n")[0][:300]


@lru_cache(64)
def _store(root: str, options: str) -> Store:
    return store_of(root, json.loads(options))


# ---- operations: each yields lists of items ------------------------------------------------------------------------


def _head(store: Store, url: str) -> Iterator[list[Head]]:
    yield [_again(lambda: store.head(url))]


def _list(store: Store, url: str) -> Iterator[list[tuple[str, Head]]]:
    """Yield all objects below a URL; a listing that fails begins again, so objects may come twice."""
    attempt, before = 0, None
    while True:
        try:
            listing = store.listing(url)
            while items := list(islice(listing, _LISTED)):
                if items == before:
                    raise RefusedError("failed", "expected an end of the listing, found a page twice")
                before = items
                yield items
            return
        except FailedError as error:
            attempt += 1
            _wait(attempt, error)


def _put(store: Store, url: str, path: str) -> Iterator[list[Head]]:
    _again(lambda: store.write(url, path))
    yield from _head(store, url)


def _get(store: Store, url: str, path: str, size: int, etag: str, hash: str) -> Iterator[list[int]]:  # noqa: A002
    """Write an object into an existing file, and check that it is the one that was indexed."""
    expected, begins = Head(size, 0, etag), iter(range(0, size, PART))

    def copy_parts(_: int) -> None:
        for begin in begins:  # which the threads share
            try:
                _copy(store, url, file.fileno(), begin, expected)
            except BaseException:
                list(begins)  # the others begin no more
                raise

    with open(path, "r+b", buffering=0) as file, ThreadPoolExecutor(_PARTS) as pool:
        list(pool.map(copy_parts, range(_PARTS)))
        os.fdatasync(file.fileno())  # after a power failure, a file of the right size must not have holes
        if hash and _hash(file.fileno(), size) != hash:
            raise RefusedError("stale", "has other bytes than when it was indexed")
    yield [size]


def _copy(store: Store, url: str, file: int, begin: int, expected: Head) -> None:
    """Write the part of an object that begins at a byte; go on after a broken connection."""
    done, end, attempt = begin, min(begin + PART, expected.size), 0
    while done < end:
        before = done
        try:
            for piece in store.read(url, done, end, expected):
                if len(piece) > end - done:
                    raise RefusedError("failed", f"expected {end - done:,} bytes more, found {len(piece):,}")
                left = memoryview(piece)
                while left:
                    written = os.pwrite(file, left, done)
                    done, left = done + written, left[written:]
            if done < end:
                raise FailedError(f"the connection ended {end - done:,} bytes early")
        except FailedError as error:
            attempt = 0 if done - before >= _PROGRESS else attempt + 1
            _wait(attempt, error)


def _hash(file: int, size: int) -> str:
    digest = xxh3_128()
    for begin in range(0, size, _PROGRESS):
        digest.update(os.pread(file, _PROGRESS, begin))
    return digest.hexdigest()


_OPERATIONS: dict[str, Callable[..., Iterator[list[Any]]]] = {"head": _head, "list": _list, "get": _get, "put": _put}


def _again(work: Callable[[], Result]) -> Result:
    """Return the result of a request; repeat it while it fails for a time."""
    attempt = 0
    while True:
        try:
            return work()
        except FailedError as error:
            attempt += 1
            _wait(attempt, error)


def _wait(attempt: int, error: FailedError) -> None:
    """Sleep before another attempt; raise the error after the last one."""
    if attempt >= _ATTEMPTS:
        raise error
    longest = min(_FIRST_WAIT * 2**attempt, _LONGEST_WAIT)
    time.sleep(max(min(error.after, _LONGEST_AFTER), random.uniform(longest / 2, longest)))
