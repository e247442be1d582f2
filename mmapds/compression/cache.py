"""The cache of decoded blocks: bounded in bytes, and shared by the threads of a process."""

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable

DEFAULT_SIZE = 64 << 20
"""Bytes."""


class _Flight:
    """A block that a thread decodes, for which others wait."""

    def __init__(self) -> None:
        self._landed = threading.Event()
        self._block: bytes | None = None
        self._error: BaseException | None = None

    def land(self, block: bytes | None, error: BaseException | None) -> None:
        self._block, self._error = block, error
        self._landed.set()

    def wait(self) -> bytes:
        self._landed.wait()
        if self._block is None:
            assert self._error is not None
            raise self._error
        return self._block


class _State:
    """What a process has. A forked child begins with nothing: its parent's lock may be held, and blocks cost memory."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.lock = threading.Lock()
        self.blocks: OrderedDict[Hashable, bytes] = OrderedDict()
        self.flights: dict[Hashable, _Flight] = {}
        self.size = 0


class BlockCache:
    """Decoded blocks; the least recently used ones are dropped.

    Args:
      limit: bytes that they take at most. A block that is larger is not kept.
    """

    def __init__(self, limit: int = DEFAULT_SIZE) -> None:
        self.limit = limit
        self._state = _State()

    def _own(self) -> _State:
        if self._state.process != os.getpid():
            self._state = _State()
        return self._state

    def find(self, key: Hashable) -> bytes | None:
        """Return a block, if it is there."""
        state = self._own()
        with state.lock:
            block = state.blocks.get(key)
            if block is not None:
                state.blocks.move_to_end(key)
            return block

    def get(self, key: Hashable, decode: Callable[[], bytes]) -> bytes:
        """Return a block; where it is not there, decode it, or wait for a thread that does. Raises what that raises."""
        state = self._own()
        with state.lock:
            block, flight = state.blocks.get(key), state.flights.get(key)
            if block is not None:
                state.blocks.move_to_end(key)
                return block
            if flight is None:
                own = state.flights[key] = _Flight()
        if flight is not None:
            return flight.wait()
        error = None
        try:
            block = decode()
        except BaseException as caught:
            error = caught
            raise
        finally:
            with state.lock:
                del state.flights[key]
                if block is not None:
                    self._keep(state, key, block)
            own.land(block, error)
        return block

    def put(self, key: Hashable, block: bytes) -> None:
        """Keep a block that was decoded by other means."""
        state = self._own()
        with state.lock:
            if key not in state.blocks:
                self._keep(state, key, block)

    def _keep(self, state: _State, key: Hashable, block: bytes) -> None:
        if len(block) > self.limit:
            return
        state.blocks[key] = block
        state.size += len(block)
        while state.size > self.limit:
            state.size -= len(state.blocks.popitem(last=False)[1])

    @property
    def size(self) -> int:
        """Bytes that the blocks take."""
        return self._own().size
