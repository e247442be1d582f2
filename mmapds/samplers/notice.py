"""How workers that read a copy of a stream tell the process that chooses the epochs that they have begun a pass."""

import mmap
from multiprocessing.context import get_spawning_popen
from typing import Any

from torch.utils.data import get_worker_info

_NONE, _WITH_STEPS, _EMPTY = range(3)


class Notice:
    """Whether a worker has begun a pass, in a byte that all processes have mapped.

    Without it, what is for the first pass alone would come in every epoch: start_step, and the steps of `exclude`.
    """

    def __init__(self) -> None:
        self._shared = mmap.mmap(-1, 1)

    def give(self, has_steps: bool) -> None:
        """Say in a worker that a pass begins, and whether it has steps."""
        self._shared[0] = _WITH_STEPS if has_steps else _EMPTY

    def taken(self) -> tuple[bool, bool]:
        """Return whether a pass was begun since the last call, and whether it had steps; neither in a worker."""
        if get_worker_info() is not None:
            return False, False
        given = self._shared[0]
        self._shared[0] = _NONE
        return given != _NONE, given == _WITH_STEPS

    def __reduce__(self) -> tuple[Any, ...]:
        if get_spawning_popen() is not None:
            self.give(has_steps=True)  # a spawned worker, which shares no memory, gets the copy to read it
        return Notice, ()
