"""What workers that read copies of a stream tell one another, and the process that chooses the epochs."""

import ctypes
import json
import operator
import os
import struct
import time
from collections.abc import Mapping
from itertools import zip_longest
from multiprocessing import current_process
from multiprocessing.context import get_spawning_popen
from multiprocessing.queues import Queue
from multiprocessing.sharedctypes import RawArray
from typing import Any, NamedTuple

from torch.utils.data import get_worker_info

from ..errors import StateError, warn
from ..storage.processes import end_with_parent
from .exclusions import Ranges
from .stream_shares import read_by_all

_WORKERS = 1 << 10  # later ones share the place of the last
_PASSES = 8  # of each worker, the last ones: loops choose an epoch before so many
_STATE = 1 << 16  # bytes of a state that fits
_LONGEST_START = 120.0  # seconds between the starts of the first worker and of the last one
_NOTHING, _EMPTY, _BEGUN = range(3)
_WITHIN, _AT_END = 1, 2
_LOADED = _WORKERS * _PASSES  # where it begins: a byte for each worker
_READERS = _LOADED + _WORKERS  # where it begins: how many workers share the pass that was begun last
_COUNT = struct.Struct("=q")
_READ = _READERS + _COUNT.size  # where that begins: what each worker has read, as below
_SHARE = struct.Struct("=5q")  # items, workers, steps in a block, how far that is, and what tells loops apart
_STATES = {_WITHIN: _READ + _WORKERS * _SHARE.size, _AT_END: _READ + _WORKERS * _SHARE.size + _STATE}
_SIZE = _READ + _WORKERS * _SHARE.size + len(_STATES) * _STATE


class News(NamedTuple):
    """What workers have said."""

    state: dict[str, Any] | None = None
    """The state of the sampler that they have loaded."""
    read: tuple[int, Ranges] = (0, ())
    """What they had read of the pass that begins there: see `read_by_all`."""
    passes: tuple[bool, ...] = ()
    """For each pass that they have begun since, in order, whether it has any steps."""


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
        worker = get_worker_info()
        self._shared[_READERS:_READ] = _COUNT.pack(1 if worker is None else worker.num_workers)

    def loads(self, state: Mapping[str, Any], *, is_end: bool, given: int, block_size: int) -> None:
        """Say in a worker how much it has read of a state that it loads, before it is known whether that is refused.

        Args:
          state: that of the sampler.
          is_end: whether nothing is left for this worker.
          given: the items that it has read of the pass which begins there.
          block_size: how many it reads at a time.
        """
        kind = (_AT_END if is_end else _WITHIN) if _fits(_encoded(state)) else _NOTHING
        worker = get_worker_info()
        share = _SHARE.pack(given, 1 if worker is None else worker.num_workers, block_size, kind, _loop())
        begin, end = _READ + _own() * _SHARE.size, _READ + (_own() + 1) * _SHARE.size
        self._shared[_LOADED + _own()] = bytes([_NOTHING])
        self._shared[begin : end - _COUNT.size] = share[: -_COUNT.size]
        self._shared[end - _COUNT.size : end] = share[-_COUNT.size :]  # what makes the others believe the rest

    def loaded(self, state: Mapping[str, Any], *, is_end: bool) -> None:
        """Say in a worker which state it has loaded, after `loads`: workers with the same `is_end` say the same.

        Warns:
          UserWarning: it does not fit.
        """
        data = _encoded(state)
        if not _fits(data):
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

    def readers(self) -> int:
        """Return how many workers share the pass that they have begun since the last news; 0 in a worker."""
        if get_worker_info() is not None or self._of != os.getpid():
            return 0
        readers: int = _COUNT.unpack(self._shared[_READERS:_READ])[0]
        return readers

    def is_told(self) -> bool:
        """Return whether workers have loaded a state since the last news."""
        return any(self._shared[_LOADED:_READERS])

    def state(self) -> dict[str, Any] | None:
        """Return the state of the sampler that workers have loaded since the last news."""
        kinds = set(self._shared[_LOADED:_READERS]) - {_NOTHING}
        if not kinds:
            return None
        first = _STATES[min(kinds)]  # an end only where it is one for all of them
        state: dict[str, Any] = json.loads(self._shared[first : first + _STATE].split(b"\0", 1)[0])
        return state if _WITHIN in kinds else {**state, "position": state["epoch_size"]}

    def is_end_for(self, workers: int) -> bool:
        """Return in a worker whether nothing is left for any of them, once all have said how much they have read.

        Raises:
          StateError: not all of them have, after minutes.
        """
        return {kind for _, kind in self._loaded_by(workers)} == {_AT_END}

    def items_of(self, workers: int) -> list[int]:
        """Return in a worker how many items each of them had read, once all have said so.

        Raises:
          StateError: not all of them have, after minutes.
        """
        return [items for items, _ in self._loaded_by(workers)]

    def _loaded_by(self, workers: int) -> list[tuple[int, int]]:
        """Return in a worker for each of them what it had read, and how far that is."""
        loop, deadline = _loop(), time.monotonic() + _LONGEST_START
        pause = 0.0005
        while True:
            shares = self._shares()[:workers]
            if all(of == loop and count for _, count, _, _, of in shares):
                shares = self._shares()[:workers]  # all of each of them: the mark is written last
                return [(items, kind) for items, _, _, kind, _ in shares]
            end_with_parent()  # torch looks for it only when this is over
            if time.monotonic() >= deadline:
                found = sum(of == loop for *_, of in shares)
                raise StateError(
                    f"state: expected {workers} workers of one loop to load theirs within {_LONGEST_START:g} seconds, "
                    f"found {found}; load it with StatefulDataLoader, and begin one loop at a time over a stream"
                )
            time.sleep(pause)
            pause = min(2 * pause, 0.05)

    def _read(self) -> tuple[int, Ranges]:
        """Return what workers had read of the pass that they have loaded; nothing where some have not loaded it yet."""
        shares = self._shares()
        _, workers, block_size, *_ = shares[0]
        if not 0 < workers <= _WORKERS or _NOTHING in self._shared[_LOADED : _LOADED + workers]:
            return 0, ()
        return read_by_all([items for items, *_ in shares[:workers]], block_size)

    def _shares(self) -> list[tuple[int, ...]]:
        return list(_SHARE.iter_unpack(self._shared[_READ : _STATES[_WITHIN]]))

    def own_news(self) -> News:
        """Return in a worker what the one before it in its place has loaded, and begun since.

        Nothing where that has loaded nothing.
        """
        state = self.state()
        if state is None:
            return News()
        return News(state, self._read(), _in_order([self._passes(_own())]))

    def news(self) -> News:
        """Return what was said since the last call; nothing in a worker."""
        if get_worker_info() is not None:
            return News()
        if self._of != os.getpid():  # a process with workers of its own, and a copy of what another one shares with its
            self._shared, self._of = _memory(), os.getpid()
        begun = [self._passes(place) for place in range(_WORKERS)] if any(self._shared[:_LOADED]) else []
        state = self.state()
        found = News(state, (0, ()) if state is None else self._read(), _in_order(begun))
        self._shared[:_READ] = bytes(_READ)
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


def _loop() -> int:
    """Return what the workers of one loop have, and those of another one do not: the number of the pipe they answer in.

    It is not their seed, which StatefulDataLoader takes from the state.
    """
    # A worker is given the queue in which it is asked, and then the one in which all of them answer.
    queues: list[Any] = [each for each in getattr(current_process(), "_args", ()) if isinstance(each, Queue)]
    return os.fstat(queues[-1]._writer.fileno()).st_ino % 2**63 if queues else 0


def _encoded(state: Mapping[str, Any]) -> bytes:
    """Return a state as it is handed on; nothing where it cannot be."""
    try:
        return json.dumps(state, default=_plain).encode() + b"\0"
    except (TypeError, ValueError, RecursionError):
        return b""


def _fits(data: bytes) -> bool:
    return 0 < len(data) <= _STATE


def _in_order(begun: list[bytes]) -> tuple[bool, ...]:
    """Return the passes that workers have begun; each is the same for all of them."""
    each = (set(codes) - {_NOTHING} for codes in zip_longest(*begun, fillvalue=_NOTHING))
    return tuple(codes != {_EMPTY} for codes in each if codes)


def _plain(value: Any) -> Any:
    """Return a value of a state as JSON has it: states may be any mappings, and have NumPy's integers."""
    return dict(value) if isinstance(value, Mapping) else operator.index(value)
