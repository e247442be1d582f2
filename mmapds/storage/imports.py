"""The lock that is held while a module is imported later than its package."""

import os
from _thread import RLock  # start-up time: threading's is the same

importing = RLock()
"""Hold it around an import in a function that threads may call: a child that another thread forks meanwhile would wait
for that import for ever."""
os.register_at_fork(before=importing.acquire, after_in_parent=importing.release, after_in_child=importing.release)
