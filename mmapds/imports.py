"""The lock that is held while a module is imported later than its package."""

# Forks take locks of these two, too, which other imports need. They are loaded here, before the lock below is
# registered: what is registered last is called first, so a fork waits for imports before it has their locks.
import concurrent.futures.thread  # noqa: F401
import logging  # noqa: F401
import os
import threading
from functools import partial

_PATIENCE = 60.0  # seconds; a fork that waited for ever would be worse than a child that may not import


# Of a class in C: a signal that raises finds no moment between the lock and its `with`.
class _Importing(type(threading.RLock())):  # type: ignore[misc]
    """Hold it around an import in a function that threads may call: a child that another thread forks meanwhile would
    wait for that import for ever. So a fork waits for the end of such imports."""

    def is_held(self) -> bool:
        """Whether this thread holds it."""
        return bool(self._is_owned())

    def begin_again(self) -> None:
        """Free it in a forked child."""
        if self.is_held():  # else the fork lost patience, and the thread that held it is not here
            self.release()
        else:
            self._at_fork_reinit()


importing = _Importing()
# In C, too, in the parent: a handler that raised in a function of Python would leave it locked.
os.register_at_fork(
    before=partial(importing.acquire, True, _PATIENCE),
    after_in_parent=importing.release,
    after_in_child=importing.begin_again,
)
