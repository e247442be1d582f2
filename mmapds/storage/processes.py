"""Worker processes: they end with the process that started them, and what the environment says to all of them."""

import os
import pickle
import sys
import threading

from ..errors import Error

_POLL = 1.0  # seconds between two looks at the parent

_watched_in = 0
"""The process in which a thread waits for the end of its parent."""


def is_worker() -> bool:
    """Return whether this process was started by multiprocessing, as loaders start theirs."""
    process = sys.modules.get("multiprocessing.process")  # which every such process has loaded
    # Its parent_process() is known only when what it was given has been unpickled.
    return process is not None and process.current_process().name != "MainProcess"


def is_spawning() -> bool:
    """Return whether what is pickled now is for a process that multiprocessing starts on this machine."""
    context = sys.modules.get("multiprocessing.context")
    return context is not None and context.get_spawning_popen() is not None


def end_with_parent() -> None:
    """From now on, end this worker process when its parent ends, which may be killed: it would wait for it for ever."""
    import multiprocessing  # start-up time: only workers come here, and they have it loaded

    global _watched_in
    parent = multiprocessing.parent_process()
    if parent is not None and _watched_in != os.getpid():
        _watched_in = os.getpid()
        threading.Thread(target=_end_with, args=(parent.sentinel, parent.pid), daemon=True).start()


def _end_with(sentinel: int, parent: int) -> None:
    """End this process when its parent ends.

    The sentinel alone does not say so as long as another process lives that was forked of the parent later.
    """
    from multiprocessing import connection

    started_by = os.getppid()  # the parent, or the server that forks for it; another process when that ends
    while not connection.wait([sentinel], _POLL) and os.getppid() == started_by and _exists(parent):
        pass
    os._exit(1)


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it has another user now
        pass
    return True


def seconds_of(variable: str, error: type[Error] = Error) -> float | None:
    """Return the seconds that a variable of the environment has, or None where it is empty.

    Raises:
      Error, as `error`: it has something else.
    """
    text = os.environ.get(variable, "")
    if not text:
        return None
    try:
        seconds = float(text)
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
