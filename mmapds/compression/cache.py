"""The cache of decoded blocks: bounded in bytes, and shared by the threads of a process."""

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence

from .. import _native
from .parts import Block

DEFAULT_SIZE = 64 << 20
"""Bytes."""


class _State:
    """What a process has. A forked child begins with nothing: its parent's lock may be held, and blocks cost memory."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.lock = threading.Lock()
        self.blocks: OrderedDict[Hashable, Block] = OrderedDict()
        self.decoding: dict[Hashable, threading.Lock] = {}
        """Of blocks that a thread decodes; others wait for it."""
        self.size = 0
        self.memory = _native.BlockMemory()


class BlockCache:
    """Decoded blocks; the least recently used ones are dropped.

    Args:
      limit: bytes of memory that they take at most. A block that is larger is not kept.
    """

    def __init__(self, limit: int = DEFAULT_SIZE) -> None:
        self.limit = limit
        self._state = _State()

    def _own(self) -> _State:
        if self._state.process != os.getpid():
            self._state = _State()
        return self._state

    def find(self, key: Hashable) -> Block | None:
        """Return a block, if it is there."""
        state = self._own()
        with state.lock:
            block = state.blocks.get(key)
            if block is not None:
                state.blocks.move_to_end(key)
            return block

    def find_all(self, keys: Sequence[Hashable]) -> list[Block | None]:
        """Return those of some blocks that are there, and None for others."""
        state = self._own()
        with state.lock:
            for key in keys:
                if key in state.blocks:
                    state.blocks.move_to_end(key)
            return [state.blocks.get(key) for key in keys]

    def get(self, key: Hashable, decode: Callable[[], Block]) -> Block:
        """Return a block; where it is not there, decode it, or wait for a thread that does. Raises what that raises."""
        state = self._own()
        with state.lock:
            turn = state.decoding.setdefault(key, threading.Lock())
        try:
            with turn:  # and no event: an interrupt at any place lets the next one go on
                block = self.find(key)
                if block is None:
                    block = decode()
                    self.put(key, block)
                return block
        finally:
            with state.lock:
                state.decoding.pop(key, None)

    @property
    def memory(self) -> _native.BlockMemory:
        """What blocks are made in: the memory of those that were dropped is used again."""
        return self._own().memory

    def make_room(self, size: int) -> None:
        """Drop what is in the way of a block of `size` bytes, so that the block gets its memory."""
        state = self._own()
        if size <= self.limit:
            with state.lock:
                self._drop(state, size)

    def put(self, key: Hashable, block: Block) -> None:
        """Keep a block that was decoded by other means."""
        state = self._own()
        with state.lock:
            if key not in state.blocks:
                self._keep(state, key, block)

    def _keep(self, state: _State, key: Hashable, block: Block) -> None:
        size = _size(block)
        if size > self.limit:
            return
        state.blocks[key] = block
        state.size += size
        self._drop(state, 0)

    def _drop(self, state: _State, more: int) -> None:
        while state.blocks and state.size > self.limit - more:
            key, block = next(iter(state.blocks.items()))
            size = _size(block)
            # No call between the two: a signal may raise after any, and the block would still be counted.
            del state.blocks[key]
            state.size -= size

    @property
    def size(self) -> int:
        """Bytes that the blocks take."""
        return self._own().size


def _size(block: Block) -> int:
    return sum(piece.room if isinstance(piece, _native.Block) else len(piece) for piece in block)
