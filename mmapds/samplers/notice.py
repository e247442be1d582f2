"""What workers that read copies of a stream tell the process that chooses the epochs."""

import ctypes
import json
import operator
import os
from collections.abc import Mapping
from itertools import zip_longest
from multiprocessing.context import get_spawning_popen
from multiprocessing.sharedctypes import RawArray
from typing import Any, NamedTuple

from torch.utils.data import get_worker_info

from ..errors import warn

_WORKERS = 1 << 10  # later ones share the place of the last
_PASSES = 8  # of each worker, the last ones: loops choose an epoch before so many
_STATE = 1 << 16  # bytes of a state that fits
_NOTHING, _EMPTY, _BEGUN, _READ = range(4)
_WITHIN, _AT_END = 1, 2
_LOADED = _WORKERS * _PASSES  # where it begins: a byte for each worker
_STATES = {_WITHIN: _LOADED + _WORKERS, _AT_END: _LOADED + _WORKERS + _STATE}
_SIZE = _LOADED + _WORKERS + len(_STATES) * _STATE


class BegunPass(NamedTuple):
    """A pass that workers have begun."""

    has_steps: bool
    is_read: bool


class News(NamedTuple):
    """What workers have said."""

    state: dict[str, Any] | None = None
    """The state of the sampler that they have loaded."""
    passes: tuple[BegunPass, ...] = ()
    """The passes that they have begun since, in order."""


class Notice:
    """Memory that a stream and its copies in workers share.

    Without it, what is for the first pass alone would come in every epoch, as each loop begins with a new copy of what
    the trainer's process has: start_step, the steps of `exclude`, and what StatefulDataLoader loads in workers only.

    Args:
      shared: memory of the process that made it, whose id is `of`; new memory by default.
    """

    def __init__(self, shared: Any = None, of: int | None = None) -> None:
        self._shared = _memory() if shared is None else shared
        self._of = os.getpid() if of is None else of

    def begun(self, *, has_steps: bool, instead: bool = False) -> None:
        """Say in a worker that a pass begins.

        Args:
          has_steps: whether it has any.
          instead: that the worker was wrong about the last one.
        """
        passes = self._passes(_own()).rstrip(bytes([_NOTHING]))
        passes = (passes[:-1] if instead else passes) + bytes([_BEGUN if has_steps else _EMPTY])
        self._set_passes(_own(), passes[-_PASSES:])

    def read(self) -> None:
        """Say in a worker that it has come to the end of its pass."""
        passes = self._passes(_own()).rstrip(bytes([_NOTHING]))
        if passes.endswith(bytes([_BEGUN])):
            self._set_passes(_own(), passes[:-1] + bytes([_READ]))

    def loaded(self, state: Mapping[str, Any], *, is_end: bool) -> None:
        """Say in a worker which state of the sampler it has loaded: workers with the same `is_end` say the same.

        Args:
          is_end: whether nothing is left for this worker.
        Warns:
          UserWarning: it does not fit.
        """
        try:
            data = json.dumps(state, default=_plain).encode() + b"\0"
        except (TypeError, ValueError, RecursionError):
            data = b""
        if not 0 < len(data) <= _STATE:
            found = f"{len(data)} bytes" if data else "what JSON cannot hold"
            warn(
                f"state: expected up to {_STATE} bytes of JSON, found {found}; name steps in exclude only in the job "
                "that leaves them out (the trainer's process does not learn what its workers have loaded)"
            )
            return
        kind = _AT_END if is_end else _WITHIN
        self._shared[_STATES[kind] : _STATES[kind] + len(data)] = data
        self._shared[_LOADED + _own()] = bytes([kind])
        self._set_passes(_own(), b"")  # those before it

    def state(self) -> dict[str, Any] | None:
        """Return the state of the sampler that workers have loaded since the last news."""
        kinds = set(self._shared[_LOADED : _LOADED + _WORKERS]) - {_NOTHING}
        if not kinds:
            return None
        first = _STATES[min(kinds)]  # an end only where it is one for all of them
        state: dict[str, Any] = json.loads(self._shared[first : first + _STATE].split(b"\0", 1)[0])
        return state if _WITHIN in kinds else {**state, "position": state["epoch_size"]}

    def is_end_for(self, workers: int) -> bool:
        """Return whether nothing is left for any of so many workers."""
        return set(self._shared[_LOADED : _LOADED + min(workers, _WORKERS)]) == {_AT_END}

    def own_news(self) -> News:
        """Return in a worker what the one before it in its place has loaded, and begun since.

        Nothing where that has loaded nothing. It may have read all of a pass of which others have not.
        """
        state = self.state()
        if state is None:
            return News()
        passes = _in_order([self._passes(_own())])
        return News(state, tuple(each._replace(is_read=False) for each in passes))

    def news(self) -> News:
        """Return what was said since the last call; nothing in a worker."""
        if get_worker_info() is not None:
            return News()
        if self._of != os.getpid():  # a process with workers of its own, and a copy of what another one shares with its
            self._shared, self._of = _memory(), os.getpid()
        begun = [self._passes(place) for place in range(_WORKERS)] if any(self._shared[:_LOADED]) else []
        found = News(self.state(), _in_order(begun))
        self._shared[: _LOADED + _WORKERS] = bytes(_LOADED + _WORKERS)
        return found

    def _passes(self, place: int) -> bytes:
        found: bytes = self._shared[place * _PASSES : (place + 1) * _PASSES]
        return found

    def _set_passes(self, place: int, passes: bytes) -> None:
        self._shared[place * _PASSES : (place + 1) * _PASSES] = passes.ljust(_PASSES, bytes([_NOTHING]))

    def __reduce__(self) -> tuple[Any, ...]:
        return Notice, (self._shared, self._of) if get_spawning_popen() is not None else ()


def _memory() -> Any:
    return RawArray(ctypes.c_char, _SIZE)


def _own() -> int:
    """Return the place of this worker."""
    worker = get_worker_info()
    return 0 if worker is None else min(worker.id, _WORKERS - 1)


def _in_order(begun: list[bytes]) -> tuple[BegunPass, ...]:
    """Return the passes that workers have begun; each is the same for all of them, and read if it is for all."""
    each = (set(codes) - {_NOTHING} for codes in zip_longest(*begun, fillvalue=_NOTHING))
    return tuple(BegunPass(codes != {_EMPTY}, _BEGUN not in codes) for codes in each if codes)


def _plain(value: Any) -> Any:
    """Return a value of a state as JSON has it: states may be any mappings, and have NumPy's integers."""
    return dict(value) if isinstance(value, Mapping) else operator.index(value)
