"""Worker processes: they end with the process that started them, and what the environment says to all of them."""

import os
import pickle
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from ..errors import Error

P = TypeVar("P")
R = TypeVar("R")

_POLL = 1.0  # seconds between two checks of the parent
_AHEAD = 4  # pieces for each worker that are computed before their turn, at most


def in_processes(work: Callable[[P], R], pieces: Sequence[P], count: int) -> Iterator[R]:
    """Yield what `work` returns for each piece, in their order, computed by `count` processes.

    Args:
      work: called in the processes; pickled, where they are not forked.
    Raises:
      OSError: there is no room for one of the processes.
      BrokenExecutor: a worker ended, and its piece is lost.
      Exception: as the function raised it, of the first piece where it did.
    """
    from concurrent.futures import ProcessPoolExecutor  # start-up time: most processes compute nothing in others

    with ProcessPoolExecutor(count, initializer=_begin, initargs=(work,)) as pool:
        waiting: deque[Any] = deque()  # few, as `pool.map` would hold all pieces of a large dataset in memory
        try:
            for piece in pieces:
                waiting.append(pool.submit(_compute, piece))
                if len(waiting) > _AHEAD * count:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


_work: Callable[[Any], Any] | None = None
"""What this process computes, if it is a worker."""


def _begin(work: Callable[[Any], Any]) -> None:
    global _work
    _work = work
    # A broken pool ends its workers by SIGTERM. A handler of the parent's that raises would not end one that sends.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    end_with_parent()


def _compute(piece: Any) -> Any:
    assert _work is not None
    try:
        return _work(piece)
    except Exception as error:
        sent = sendable(error)
        if sent is error:
            raise
        raise sent from error


def is_worker() -> bool:
    """Return whether this process was started by multiprocessing, as loaders start theirs."""
    process = sys.modules.get("multiprocessing.process")  # which every such process has loaded
    # Its parent_process() is known only when what it was given has been unpickled.
    return process is not None and process.current_process().name != "MainProcess"


def end_with_parent() -> None:
    """From now on, end this worker process when its parent ends, which may be killed: it would wait for it for ever."""
    import multiprocessing  # start-up time: only workers come here, and they have it loaded

    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent, os.getppid()), daemon=True).start()


def _end_with(parent: Any, number: int) -> None:
    """End this process when its parent ends, or the server of this number that forks for it.

    The parent seems alive while a process is that was forked of it later, so the number counts too.
    """
    while parent.is_alive() and os.getppid() == number:
        time.sleep(_POLL)
    os._exit(1)


def seconds_of(variable: str, default: float, error: type[Error] = Error) -> float:
    """Return the seconds that a variable of the environment has, or the default where it is empty.

    Raises:
      Error, as `error`: it has something else.
    """
    text = os.environ.get(variable, "")
    try:
        seconds = float(text) if text else default
    except ValueError:
        seconds = -1.0
    if not seconds >= 0:
        raise error(f"{variable} = {text!r}, expected a number of seconds, 0 or more")
    return seconds


def sendable(error: BaseException) -> BaseException:
    """Return an error as one that another process can have.

    An error of a class that is made in a function, or whose arguments are not those of its class, cannot be sent.
    """
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        try:
            said = str(error)
        except Exception:
            said = "an error without a text"
        return RuntimeError(f"{type(error).__name__}: {said}")
    return error
