"""The lock that is held while a module is imported later than its package."""

import os
from _thread import RLock  # start-up time: threading's is the same

_PATIENCE = 60.0  # seconds; a fork that waited for ever would be worse than a child that may not import


class _Importing:
    """Hold it around an import in a function that threads may call: a child that another thread forks meanwhile would
    wait for that import for ever. So a fork waits for the end of such imports."""

    def __init__(self) -> None:
        self._lock = RLock()
        self._taken = 0  # times, by a fork
        self._is_ready = False
        self._watch_forks()

    def is_held(self) -> bool:
        """Whether this thread holds it."""
        return self._lock._is_owned()  # type: ignore[no-any-return, attr-defined]

    def __enter__(self) -> None:
        self._lock.acquire()
        try:
            if not self._is_ready:
                # Forks take locks of these modules, too, which imports need. What is registered last is called first:
                # so a fork waits here before it has theirs.
                import concurrent.futures.thread  # noqa: F401
                import logging  # noqa: F401

                self._watch_forks()
                self._is_ready = True
        except BaseException:
            self._lock.release()
            raise

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def _watch_forks(self) -> None:
        os.register_at_fork(before=self._take, after_in_parent=self._give_back, after_in_child=self._begin_again)

    def _take(self) -> None:
        self._taken += self._lock.acquire(True, _PATIENCE)

    def _give_back(self) -> None:
        if self._taken:
            self._taken -= 1
            self._lock.release()

    def _begin_again(self) -> None:
        if self._taken:
            self._give_back()
        elif not self.is_held():
            self._lock._at_fork_reinit()  # type: ignore[attr-defined]


importing = _Importing()
