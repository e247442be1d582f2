"""The parent's side of `transfer`: one child process for each process that needs objects, started at first need."""

import io
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from ..errors import SourceError, StaleIndexError
from ..storage.workers import uninterrupted
from .secrets import check_environment, environment
from .urls import MissingObjectError, ObjectHead

_STARTS = 3  # children for a request, if they are killed


def head(url: str, options: dict[str, Any]) -> ObjectHead:
    """Return the size, the time and the ETag of an object."""
    found: list[Any] = []
    _ask("head", found.extend, url=url, options=options)
    return ObjectHead(url, *found[0])


def listing(url: str, options: dict[str, Any], report: Callable[[int], object] = lambda _: None) -> list[ObjectHead]:
    """Return all objects whose URLs begin with `url`, sorted; call `report` with the number of those found."""
    found: dict[str, ObjectHead] = {}

    def add(items: list[Any]) -> None:
        found.update((name, ObjectHead(name, *each)) for name, each in items)
        report(len(found))

    _ask("list", add, url=url, options=options)
    return [found[name] for name in sorted(found)]


def get(url: str, options: dict[str, Any], *, path: str, size: int, etag: str, hash: str) -> None:  # noqa: A002
    """Write an object into an existing file; raise StaleIndexError if it is not the one of this size, ETag and hash."""
    _ask("get", lambda _: None, url=url, options=options, path=path, size=size, etag=etag, hash=hash)


def put(url: str, options: dict[str, Any], *, path: str) -> ObjectHead:
    """Write a file as an object."""
    found: list[Any] = []
    _ask("put", found.extend, url=url, options=options, path=path)
    return ObjectHead(url, *found[0])


def _ask(operation: str, items: Callable[[list[Any]], object], **request: Any) -> None:
    """Send a request, and pass on its items; raise the error that it ends with."""
    for start in range(_STARTS):
        try:
            # An interrupt would leave half a request in the pipe.
            answer = uninterrupted(lambda: _child().ask({"operation": operation, **request}, items))
        except (BrokenPipeError, EOFError):  # the child was killed, or ended just now as it was idle
            if start + 1 == _STARTS:
                raise SourceError(f"{request['url']}: the process that reads objects ended; see its message") from None
            continue
        if "kind" in answer:
            raise _error(request["url"], answer["kind"], answer["text"])
        return


def _error(url: str, kind: str, text: str) -> SourceError | StaleIndexError:
    if kind == "stale":
        return StaleIndexError(f"{url}: STALE: {text}; build the index again")
    if kind == "full":
        return SourceError(f"{url}: {text}, in the cache; free space, or give a smaller cache_bytes")
    return (MissingObjectError if kind == "missing" else SourceError)(f"{url}: {text}")


# ---- the child -----------------------------------------------------------------------------------------------------


class _Child:
    def __init__(self) -> None:
        self.environment = environment()
        check_environment(self.environment)
        work = f"import sys; sys.path[:] = {sys.path!r}; from {__package__}.transfer import main; main()"
        command = [sys.executable, "-P", "-c", work]
        variables = {**os.environ, "MALLOC_ARENA_MAX": "1"}  # glibc keeps megabytes in the arena of each thread
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, env=variables
        )
        self._lock = threading.Lock()
        self._waiting: dict[int, tuple[Future[dict[str, Any]], Callable[[list[Any]], object]]] = {}
        self._number = 0
        self.has_ended = False
        threading.Thread(target=self._receive, name="mmapds-objects", daemon=True).start()

    def ask(self, request: dict[str, Any], items: Callable[[list[Any]], object]) -> dict[str, Any]:
        """Send a request and wait for the end of its answer; raise EOFError or BrokenPipeError if the child ends."""
        future: Future[dict[str, Any]] = Future()
        with self._lock:
            self._number += 1
            number = self._number
            if self.has_ended:
                raise EOFError
            self._waiting[number] = future, items
            line = memoryview(json.dumps({"number": number, **request}).encode() + b"\n")
            while line:
                line = line[self._process.stdin.write(line) :]  # type: ignore[union-attr]
        return future.result()

    def _receive(self) -> None:
        stdout = io.BufferedReader(self._process.stdout)  # type: ignore[type-var]
        try:
            with suppress(ValueError), stdout:  # closed after a fork
                for line in stdout:
                    answer = json.loads(line)
                    future, items = self._waiting[answer["number"]]
                    if "items" in answer:
                        items(answer["items"])
                    else:
                        del self._waiting[answer["number"]]
                        future.set_result(answer)
        finally:
            with self._lock:
                self.has_ended = True
                for future, _ in self._waiting.values():
                    future.set_exception(EOFError())
                self.close()
            self._process.wait()

    def close(self) -> None:
        """Close the pipes; a forked process must not keep its parent's child alive."""
        for pipe in (self._process.stdin, self._process.stdout):
            pipe.close()  # type: ignore[union-attr]


_current: _Child | None = None
_starting = threading.Lock()


def _child() -> _Child:
    global _current
    with _starting:
        if _current is None or _current.has_ended or _current.environment != environment():
            _current = _Child()
        return _current


def _after_fork() -> None:
    global _current, _starting
    if _current is not None:
        _current.close()
    _current, _starting = None, threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
