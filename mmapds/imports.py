"""The lock that is held while a module is imported later than its package."""

# Forks take locks of these two, too, which other imports need. They are loaded here, before the lock below is
# registered: what is registered last is called first, so a fork waits for imports before it has their locks.
import concurrent.futures.thread  # noqa: F401
import logging  # noqa: F401
import os
import threading

_PATIENCE = 60.0  # seconds; a fork that waited for ever would be worse than a child that may not import


class _Importing:
    """Hold it around an import in a function that threads may call: a child that another thread forks meanwhile would
    wait for that import for ever. So a fork waits for the end of such imports."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._taken = 0  # times, by a fork
        os.register_at_fork(before=self._take, after_in_parent=self._give_back, after_in_child=self._begin_again)

    def is_held(self) -> bool:
        """Whether this thread holds it."""
        return self._lock._is_owned()  # type: ignore[no-any-return, attr-defined]

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def _take(self) -> None:
        if self._lock.acquire(True, _PATIENCE):
            self._taken += 1

    def _give_back(self) -> None:
        if self._taken and self.is_held():  # not where this fork lost patience while another one had it
            self._taken -= 1
            self._lock.release()

    def _begin_again(self) -> None:
        if self.is_held():
            self._give_back()
        else:
            self._lock._at_fork_reinit()  # type: ignore[attr-defined]
            self._taken = 0


importing = _Importing()
