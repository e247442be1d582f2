"""Blocks that are too large to be decoded at once: their content is read in order, and the last pieces stay cached."""

import os
import threading
from collections.abc import Callable
from typing import Protocol

from .. import _native
from .cache import BlockCache

PIECE = 1 << 20
"""Bytes of content that are kept as one; a block ends with a smaller piece."""


class Decoding(Protocol):
    """The content of a block as it is decoded."""

    def read(self) -> bytes:
        """Return the next bytes, as many as there are at once; none at the end."""


class _State:
    """What a process has. A forked child begins with nothing: its parent's lock may be held."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.lock = threading.Lock()
        self.decoding: Decoding | None = None
        self.next = 0
        """The piece that is decoded next."""
        self.last = b""
        """The piece before it: the one that is being read, whatever the cache keeps."""
        self.rest = b""
        """Bytes of the next piece."""


class Forward:
    """A block that is read in order.

    Args:
      begin: begins to decode it.
      cache: keeps its pieces, by `key` and their numbers.
    """

    def __init__(self, begin: Callable[[], Decoding], cache: BlockCache, key: tuple[int, int]) -> None:
        self._begin, self._cache, self._key = begin, cache, key
        self._state = _State()

    def piece(self, number: int) -> "bytes | _native.Block | None":
        """Return a piece; None if it lies behind, and is not kept. The first one can be read again at any time."""
        if self._state.process != os.getpid():
            self._state = _State()
        state, key = self._state, (*self._key, number)
        if (kept := self._cache.find(key)) is not None:
            return kept[0]
        with state.lock:
            if (kept := self._cache.find(key)) is not None:  # another thread may have decoded it meanwhile
                return kept[0]
            if state.decoding is None or (number == 0 and state.next):
                state.decoding, state.next, state.rest = self._begin(), 0, b""
            if state.next and number == state.next - 1:
                return state.last
            if number < state.next:
                return None
            while state.next <= number:
                self._next(state)
            return state.last

    def _next(self, state: _State) -> None:
        """Decode the next piece, and keep it; it is empty behind the end."""
        assert state.decoding is not None
        parts = [state.rest]
        size = len(state.rest)
        try:
            while size < PIECE and (part := state.decoding.read()):
                parts.append(part)
                size += len(part)
        except BaseException:
            state.decoding = None
            raise
        content = b"".join(parts)
        piece, state.rest = content[:PIECE], content[PIECE:]
        self._cache.put((*self._key, state.next), (piece,))
        state.last, state.next = piece, state.next + 1
