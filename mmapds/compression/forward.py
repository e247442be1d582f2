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
                state.next, state.rest, state.decoding = 0, b"", self._begin()
            if state.next and number == state.next - 1:
                return state.last
            if number < state.next:
                return None
            while state.next <= number:
                self._next(state)
            return state.last

    def _next(self, state: _State) -> None:
        """Decode the next piece, and keep it; it is empty behind the end.

        The state has no decoder meanwhile: after an error, or a signal that raises, the next read begins anew.
        """
        decoding, state.decoding = state.decoding, None
        assert decoding is not None
        number, parts, size = state.next, [state.rest], len(state.rest)
        while size <= PIECE and (part := decoding.read()):  # one byte more, so that the last piece ends with the block
            parts.append(part)
            size += len(part)
        content = b"".join(parts)
        piece, rest = content[:PIECE], content[PIECE:]
        state.last, state.next, state.rest, state.decoding = piece, number + 1, rest, decoding
        self._cache.put((*self._key, number), (piece,))
