"""The content of a gzip file from its beginning on, and where its blocks begin: at members, and inside large ones.

No library says where blocks of deflate begin, so the core decodes it here (csrc/inflate.c). Blocks are read by another
decoder, that of `gzip_blocks`.
"""

from collections.abc import Iterator
from typing import NamedTuple

from .. import _native
from ..storage.sections import WINDOW
from .gzip_blocks import inflater
from .parts import SMALLEST, BlockError

SPACING = 1 << 20
"""Bytes of content between two access points, at least: the next block of deflate then begins a block."""
_HELD = 256 << 10  # bytes of content of small members that are yielded at once
_STEP = SPACING + _HELD + _native.INFLATE_SLACK  # bytes that there is room for
_ROOM = 2 * _STEP
_WRONG = {
    _native.INFLATE_CUT: "a member is truncated",
    _native.INFLATE_NOT_MEMBER: "something that is not a member",
    _native.INFLATE_DAMAGED: "a block of deflate is damaged",
}


class Found(NamedTuple):
    """A piece of content."""

    begin: int | None
    """The bit of the file at which its block begins; None if that is the block of the piece before."""
    point: "Point | None"
    """None also if the block begins with a member."""
    data: bytes


class Point(NamedTuple):
    """An access point inside a member."""

    crc: int
    """CRC-32 of the content of the member before it."""
    window: bytes
    """The last bytes of that, up to `WINDOW`."""


class _Start(NamedTuple):
    """Where a block begins; see `Found`."""

    begin: int
    point: Point | None = None


class GzipContent:
    """The content of a gzip file, once.

    Args:
      file: mapped.
    """

    def __init__(self, file: _native.Map) -> None:
        self._inflater = _native.Inflater(file)
        self._crc32 = inflater().crc32
        self._out = memoryview(bytearray(_ROOM))
        self._filled = self._yielded = 0  # bytes of content there
        self._crc = 0  # of the content of the member so far
        self._size = 0  # bytes of content of the block so far
        self._start: _Start | None = _Start(0)  # of the block, until it has content
        self.block = 0
        """The number of the block at hand."""
        self.begin = 0
        """The bit of the file at which it begins."""
        self.whole = 0
        """The bytes of the file that are whole members."""

    def pieces(self) -> Iterator[Found]:
        """Yield it.

        Raises:
          BlockError: it cannot be decoded, or has another checksum.
          EOFError: the file became shorter.
        """
        status = _native.INFLATE_FULL
        while status != _native.INFLATE_END:
            status, start = self._decode()
            if start is not None or self._filled - self._yielded >= _HELD or status == _native.INFLATE_END:
                yield from self._take()
            if start is not None:
                self.block += self._start is None
                self._start, self.begin, self._size = start, start.begin, 0

    def _decode(self) -> tuple[int, _Start | None]:
        """Decode some content; return why that ended, and where the next block begins if it begins here."""
        self._make_room()
        before = self._filled
        enough = max(SPACING - self._size, 1)
        status, self._filled, at, content, crc, size = self._inflater.read(self._out, before, enough)
        piece = self._out[before : self._filled]
        self._crc, self._size = self._crc32(piece, self._crc), self._size + len(piece)
        if status in _WRONG:
            place = f" at byte {self.whole}" if status == _native.INFLATE_NOT_MEMBER else ""
            raise BlockError(_WRONG[status] + place)
        if status == _native.INFLATE_MEMBER:
            self._check(content, crc, size)
            self._crc, self.whole = 0, at // 8
            return status, _Start(at) if self._size >= SMALLEST or not self._size else None
        if status == _native.INFLATE_BLOCK and self._size >= SPACING:
            window = self._out[self._filled - min(content, WINDOW) : self._filled]
            return status, _Start(at, Point(self._crc, bytes(window)))
        return status, None

    def _check(self, content: int, crc: int, size: int) -> None:
        """Compare the content of a member with what stands behind it."""
        if self._crc != crc:
            raise BlockError(f"expected content with checksum {crc:08x}, found {self._crc:08x}")
        if content % 2**32 != size:
            raise BlockError(f"expected {size} bytes of content, found {content} (modulo 2^32)")

    def _make_room(self) -> None:
        """Move what is needed to the front: what waits to be yielded, and the window."""
        if self._filled <= _ROOM - _STEP:
            return
        kept = min(self._yielded, self._filled - WINDOW)
        self._out[: self._filled - kept] = self._out[kept : self._filled]
        self._filled, self._yielded = self._filled - kept, self._yielded - kept

    def _take(self) -> Iterator[Found]:
        """Yield what waits."""
        data = bytes(self._out[self._yielded : self._filled])
        self._yielded = self._filled
        if data:
            begin, point = self._start or (None, None)
            self._start = None
            yield Found(begin, point, data)
