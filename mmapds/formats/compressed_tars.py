"""Samples of a compressed tar: its content is decoded in order, and its headers are walked as they come."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import NamedTuple

from .. import _native
from ..compression.content import content_of
from ..storage.files import shrank
from ..storage.sources import Source
from .format import End, Piece, reserve_words

LARGEST_HEADERS = 16 << 20
"""Bytes of extended headers before a member, at most: they are kept until the member is known."""
_FINE = (_native.TAR_OK, _native.TAR_MORE, _native.TAR_END, _native.TAR_TRUNCATED)


class Stop(NamedTuple):
    """Where a walk ended."""

    status: int
    """One of TAR_*."""
    at: int
    """The byte of the content that shows it."""
    end: int
    """Where the last whole sample ends."""
    samples: int
    details: tuple[str, str] | tuple[int, int] | None
    """See `TarStream.scan`."""


class StoppedError(Exception):
    """A walk met something that is not a member, or a sample that is not whole.

    Args:
      size: bytes of content, if all of it came.
    """

    def __init__(self, stop: Stop, size: int = 0) -> None:
        super().__init__(stop)
        self.stop, self.size = stop, size


class Walk:
    """A walk from header to header over content that comes in pieces; members are passed over, however large."""

    def __init__(self) -> None:
        self._stream = _native.TarStream()
        self._at = 0  # where the next header begins
        self._held = bytearray()  # bytes from there on, where it began in a piece before
        self._wanted = self._needed = 0  # how far these must reach, and how much content must have come
        self.size = 0
        """Bytes of content that came."""
        self.end: Stop | None = None
        """Where the archive ended."""
        self.starts = self.sizes = self.hashes = memoryview(b"").cast("Q")
        """Of the samples that the last piece ended: where they begin, their sizes, and the hashes of their keys."""

    def add(self, data: bytes, *, is_last: bool) -> None:
        """Take in the next piece of content.

        Raises:
          StoppedError: it has something that is not a member, or a sample with one extension twice.
        """
        begin, self.size = self.size, self.size + len(data)
        room = (len(self._held) + len(data)) // _native.TAR_BLOCK + 2
        out = [reserve_words(room) for _ in range(3)]
        count = 0
        while self.end is None and (is_last or self.size >= self._needed):
            window = self._extended(data, begin) if self._at < begin else memoryview(data)[self._at - begin :]
            rooms = (words[count:] for words in out)
            status, found, at, end, samples, details = self._stream.scan(window, self.size, is_last, *rooms)
            count += found
            del self._held[: at - self._at]
            self._go_on(Stop(status, at, end, samples, details))
        if self._at < begin:
            self._extended(data, begin)
        else:
            self._held = bytearray(data[self._at - begin : self._wanted - begin])
        self.starts, self.sizes, self.hashes = (words[:count] for words in out)

    def _extended(self, data: bytes, begin: int) -> bytearray:
        """Return the bytes that are held, with what they lack of the next piece, which begins at this byte."""
        end = self._at + len(self._held)
        if end < self._wanted:
            self._held += data[end - begin : self._wanted - begin]
        return self._held

    def _go_on(self, stop: Stop) -> None:
        self._at = self._wanted = self._needed = stop.at
        if stop.status in (_native.TAR_END, _native.TAR_TRUNCATED):
            self.end = stop
        elif stop.status == _native.TAR_MORE:
            assert stop.details is not None
            self._wanted, self._needed = map(int, stop.details)
        if stop.status not in _FINE or self._wanted - self._at > LARGEST_HEADERS:
            raise StoppedError(stop)


def scan(number: int, source: Source, kinds: Sequence[int], workers: int, *, drop: bool) -> Iterator[Piece]:
    """Yield where every sample of a source begins, in order, and the hash of its key.

    Args:
      number: of the source.
      kinds: of the columns, which are sizes.
      drop: leave out a last sample that is not whole.
    Raises:
      StoppedError: there is something that is not a member, or a last sample that is not whole.
    """
    walk = Walk()
    try:
        with closing(content_of(source, workers)) as content:
            for piece in content:
                walk.add(piece.data, is_last=piece.is_last)
                columns = tuple((kind, walk.sizes) for kind in kinds)
                end, cut = None, 0
                if piece.is_last:
                    assert walk.end is not None
                    cut = int(walk.end.status == _native.TAR_TRUNCATED)
                    if cut and not drop:
                        raise StoppedError(walk.end, walk.size)
                    end = End(walk.end.samples, walk.end.end, content=walk.size)
                yield Piece(number, walk.starts, columns, cut, piece.scanned, end, walk.hashes, blocks=piece.starts)
    except EOFError:
        raise shrank(source) from None
