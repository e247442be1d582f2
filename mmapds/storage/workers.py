"""Processes that compute one piece after another, each over a pipe of its own.

The processes of a pool of `concurrent.futures` share queues. One that is killed while it takes a task or sends a result
leaves a queue locked, or a result half written, and those who wait for it wait for ever. The pipe of a process that was
killed is closed, wherever that process was.
"""

from __future__ import annotations  # the names of multiprocessing are for type checkers alone

import multiprocessing
import os
import pickle
import signal
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from multiprocessing import connection
from multiprocessing.util import Finalize
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from .processes import end_with_parent, sendable

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess
    from types import TracebackType

P = TypeVar("P")
R = TypeVar("R")

_AT_A_TIME = 2  # pieces that a worker has: it computes the second while the answer to the first is on its way
_AHEAD = 4  # pieces for each worker that are computed before their turn, at most
_POLL = 1.0  # seconds between two looks at workers that say nothing


class WorkerDiedError(Exception):
    """A worker ended before it had computed what it was given."""


class RemoteError(Exception):
    """The cause of an error that a worker sent: the traceback that it has there, as a text."""


class _Failure(NamedTuple):
    """How the function failed on a piece."""

    error: BaseException
    notes: list[str]
    """Of the error, which some classes do not send."""
    traceback: str


class Workers(Generic[P, R]):
    """Processes that compute pieces; after the `with`, none of them is left.

    Args:
      work: called in the processes with a piece; pickled, where they are not forked.
    Raises:
      OSError: there is no room for one of them.
      WorkerDiedError: one ended before it had the function.
    """

    def __init__(self, work: Callable[[P], R], count: int) -> None:
        self._processes: dict[Connection, BaseProcess] = {}
        # A signal that raises may keep `__exit__` from ending all of them, and this process would wait for the others.
        Finalize(self, _kill, [self._processes], exitpriority=0)
        is_forked = multiprocessing.get_start_method() == "fork"
        try:
            for _ in range(count):
                self._start(work if is_forked else None)
            if not is_forked:
                pickled = pickle.dumps(work)
                for pipe in self._processes:
                    _send(pipe, pickled)
        except BaseException:
            _kill(self._processes)
            raise

    def _start(self, work: Callable[[P], R] | None) -> None:
        pipe, theirs = multiprocessing.Pipe()
        with theirs:  # and then only the worker has it, so that its end is seen
            ours = [] if work is None else [*self._processes, pipe]  # which a forked process has, too
            self._processes[pipe] = process = multiprocessing.Process(target=_serve, args=(theirs, ours, work))
            try:
                process.start()
            except EOFError:  # said by the server that forks, of a worker that is gone
                raise WorkerDiedError from None

    def __enter__(self) -> Workers[P, R]:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            if kind is None:  # let them write what they have printed, and so on
                for pipe in self._processes:
                    with suppress(WorkerDiedError):
                        _send(pipe, pickle.dumps(None))
                for process in self._processes.values():
                    process.join()
        finally:
            _kill(self._processes)

    def compute(self, pieces: Sequence[P]) -> Iterator[R]:
        """Yield what comes of each piece, in their order.

        Raises:
          WorkerDiedError: a worker ended, and its piece is lost.
          Exception: as the function raised it, of the first piece where it did.
        """
        answers: dict[int, tuple[R, _Failure | None]] = {}
        asked: dict[Connection, deque[int]] = {pipe: deque() for pipe in self._processes}
        free = deque([*self._processes] * _AT_A_TIME)
        sent = done = 0
        while done < len(pieces):
            while free and sent < min(len(pieces), done + _AHEAD * len(self._processes)):
                pipe = free.popleft()
                _send(pipe, pickle.dumps(pieces[sent]))
                asked[pipe].append(sent)
                sent += 1
            busy = [pipe for pipe, numbers in asked.items() if numbers]
            for pipe in self._answering(busy, is_waited_for=done not in answers):
                answers[asked[pipe].popleft()] = _received(pipe)
                free.append(pipe)
            if done in answers:
                result, failure = answers.pop(done)
                if failure is not None:
                    if not hasattr(failure.error, "__notes__"):
                        failure.error.__notes__ = failure.notes
                    raise failure.error from RemoteError(f"\n{failure.traceback}")
                yield result
                done += 1

    def _answering(self, busy: list[Connection], *, is_waited_for: bool) -> list[Connection]:
        """Return those pipes that have an answer, or were closed."""
        found: list[Any] = connection.wait(busy, _POLL if is_waited_for else 0)
        # A process that was forked meanwhile, of a worker or by another thread, keeps the pipe of a dead one open.
        if is_waited_for and not found and not all(self._processes[pipe].is_alive() for pipe in busy):
            raise WorkerDiedError
        return found


def _kill(processes: dict[Connection, BaseProcess]) -> None:
    """End processes, wherever they are, and close their pipes."""
    for process in processes.values():
        if process.pid is not None:  # it was started
            process.kill()
    while processes:
        pipe, process = processes.popitem()
        pipe.close()
        if process.pid is not None:
            process.join()


def _send(pipe: Connection, pickled: bytes) -> None:
    try:
        pipe.send_bytes(pickled)
    except ConnectionError:
        raise WorkerDiedError from None


def _received(pipe: Connection) -> Any:
    """Return the answer of a worker: a result, and a failure or None."""
    try:
        pickled = pipe.recv_bytes()
    except TimeoutError:  # raised by a signal handler
        raise
    except (EOFError, OSError):  # the latter in the middle of a message
        raise WorkerDiedError from None
    return pickle.loads(pickled)


def _serve(pipe: Connection, others: list[Connection], work: Callable[[Any], Any] | None) -> None:
    """Compute pieces until there is no other, in a worker.

    Args:
      others: ends of pipes that only the parent is to have, so that its end is seen.
    """
    for other in others:
        other.close()
    if hasattr(os, "register_at_fork"):  # what the function starts is not to hold the pipe of a dead worker
        os.register_at_fork(after_in_child=pipe.close)
    # A handler of the parent's that raises, as commands and trainers have, would keep a worker from being ended.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    end_with_parent()
    with suppress(EOFError, ConnectionError):  # the parent was interrupted
        if work is None:
            work = pickle.loads(pipe.recv_bytes())
        while (piece := pickle.loads(pipe.recv_bytes())) is not None:
            pipe.send_bytes(_answer(work, piece))


def _answer(work: Callable[[Any], Any], piece: Any) -> bytes:
    """Return what comes of a piece, or an error and its traceback, pickled."""
    try:
        return pickle.dumps((work(piece), None))
    except BaseException as error:
        said = traceback.format_exc()
        for stream in (sys.stdout, sys.stderr):  # as the parent ends the processes when it has the error
            with suppress(Exception):
                stream.flush()
        return pickle.dumps((None, _Failure(sendable(error), getattr(error, "__notes__", []), said)))
