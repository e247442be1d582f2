"""The lock that is held while a module is imported later than its package."""

# Forks take locks of these two, too, which other imports need. They are loaded here, before the lock below is
# registered: what is registered last is called first, so a fork waits for imports before it has their locks.
import concurrent.futures.thread  # noqa: F401
import logging  # noqa: F401
import os
from functools import partial

try:
    from ._native import ImportLock
except ModuleNotFoundError:
    package = os.path.dirname(__file__)
    raise ImportError(
        f"{package}: the core is not built here; run: pip install -e {os.path.dirname(package)} (or install mmapds and "
        f"leave the source tree)"
    ) from None

_PATIENCE = 60  # seconds; a fork that waited for ever would be worse than a child that may not import

importing = ImportLock()
"""Hold it around an import in a function that threads may call: a child that another thread forks meanwhile would wait
for that import for ever. So a fork waits for the end of such imports."""

# All in C: what a signal handler raised in a function of Python would end the hook, but not the fork.
os.register_at_fork(
    before=partial(importing.before_fork, _PATIENCE),
    after_in_parent=importing.after_fork,
    after_in_child=importing.after_fork_in_child,
)
