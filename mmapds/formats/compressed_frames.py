"""Length-prefixed records in a compressed source: its content is decoded in order, and walked as it comes."""

from collections.abc import Iterator
from contextlib import closing
from typing import NamedTuple

from .. import _native
from ..compression.content import content_of
from ..storage.files import shrank
from ..storage.sources import Source
from .format import End, Piece, reserve_words
from .measuring import Measuring

CUT = (_native.FRAMES_PREFIX_CUT, _native.FRAMES_PAYLOAD_CUT)
"""What a walk says of a record that the bytes at hand do not hold whole."""
_AROUND = {
    _native.FRAMING_U32LE: (4, 0),
    _native.FRAMING_U32BE: (4, 0),
    _native.FRAMING_U64LE: (8, 0),
    _native.FRAMING_U64BE: (8, 0),
    _native.FRAMING_TFRECORD: (12, 4),
    _native.FRAMING_VARINT: (1, 0),
}
"""Bytes before a payload, and behind it; a varint may take more."""


class Stop(NamedTuple):
    """A record at which a walk cannot go on."""

    record: int
    at: int
    """Where it begins in the content."""
    status: int
    """One of FRAMES_*."""
    payload: int
    found: int
    expected: int
    """See `frames_scan`."""


class StoppedError(Exception):
    """A walk met something that is not a record."""

    def __init__(self, stop: Stop) -> None:
        super().__init__(stop)
        self.stop = stop


class _Open(NamedTuple):
    """A record that has begun; its payload is passed over, however large."""

    start: int
    end: int
    stop: Stop


class Walk:
    """A walk from length to length over content that comes in pieces.

    Args:
      framing: one of the core's.
      measured: whether sizes of payloads are wanted.
    """

    def __init__(self, framing: int, *, measured: bool) -> None:
        self._framing, self._measured = framing, measured
        self._open: _Open | None = None
        self._rest = b""  # the begin of a record whose length is not whole
        self._stop: Stop | None = None  # what the content ends in, if not behind a record
        self.at = 0
        """Where the last whole record ends."""
        self.size = 0
        """Bytes of content that came."""
        self.records = 0
        self.starts = self.sizes = memoryview(b"").cast("Q")
        """Of the records that the last piece ended: where they begin, and how large their payloads are."""

    @property
    def cut(self) -> Stop | None:
        """The record that the content so far ends inside, if it does."""
        return self._open.stop if self._open else self._stop

    def add(self, data: bytes) -> None:
        """Take in the next piece of content.

        Raises:
          StoppedError: it has something that is not a record.
        """
        begin, self.size = self.size, self.size + len(data)
        room = len(data) // sum(_AROUND[self._framing]) + 2
        self.starts = reserve_words(room)
        self.sizes = reserve_words(room) if self._measured else self.starts[:0]
        count, rest = 0, memoryview(data)
        if self._open is None:
            rest = memoryview(self._rest + data) if self._rest else rest
        elif self._open.end > self.size:
            self.starts, self.sizes = self.starts[:0], self.sizes[:0]
            return
        else:
            self.starts[0] = self._open.start
            if self._measured:
                self.sizes[0] = self._open.stop.payload
            count, rest = 1, rest[self._open.end - begin :]
            self.at, self._open = self._open.end, None
        count += self._scan(rest, count)
        self.records += count
        self.starts, self.sizes = self.starts[:count], self.sizes[:count]

    def _scan(self, data: memoryview, first: int) -> int:
        """Find the records that end in the data, which begin at `self.at`; return how many."""
        sizes = self.sizes[first:] if self._measured else None
        count, end, status, *details = _native.frames_scan_buffer(
            data, self._framing, self.at, self.starts[first:], sizes
        )
        self.at += end
        self._rest, self._stop = bytes(data[end : end + 16]), None
        if status == _native.FRAMES_OK:
            return count
        stop = Stop(self.records + first + count, self.at, status, *details)
        if status not in CUT:
            raise StoppedError(stop)
        if status == _native.FRAMES_PREFIX_CUT:
            self._stop = stop
        else:
            before, behind = self._around(data[end:])
            self._open, self._rest = _Open(self.at, self.at + before + stop.payload + behind, stop), b""
        return count

    def _around(self, record: memoryview) -> tuple[int, int]:
        if self._framing != _native.FRAMING_VARINT:
            return _AROUND[self._framing]
        return next(k for k, byte in enumerate(record[:10], 1) if byte < 128), 0


def scan(
    number: int, source: Source, framing: int, measuring: Measuring, workers: int, *, drop: bool
) -> Iterator[Piece]:
    """Yield the start of every record of a source, in order, and its size where that is measured.

    Args:
      number: of the source.
      drop: leave out a last record that is not whole.
    Raises:
      StoppedError: there is something that is not a record, or a last one that is not whole.
    """
    walk = Walk(framing, measured=bool(measuring.columns))
    try:
        with closing(content_of(source, workers)) as content:
            for piece in content:
                walk.add(piece.data)
                columns = measuring.sizes(walk.sizes)
                end, cut = None, 0
                if piece.is_last:
                    if walk.cut and not drop:
                        raise StoppedError(walk.cut._replace(expected=walk.size))
                    end, cut = End(walk.records, walk.at, content=walk.size), int(walk.cut is not None)
                yield Piece(number, walk.starts, columns, cut, piece.scanned, end, blocks=piece.starts)
    except EOFError:
        raise shrank(source) from None


class _Read(NamedTuple):
    """What pieces of content had of a record of TFRecord."""

    crc: int = 0
    """Of its payload so far."""
    stored: bytes = b""
    """Bytes of the masked CRC behind it."""


def check_payloads(source: Source, workers: int) -> None:
    """Compare the CRC of every payload of a TFRecord file, up to a last record that is not whole.

    Raises:
      StoppedError: one does not match.
    """
    walk, read = Walk(_native.FRAMING_TFRECORD, measured=True), _Read()
    with closing(content_of(source, workers)) as content:
        for piece in content:
            before = walk.records
            walk.add(piece.data)
            for record, (start, size) in enumerate(zip(walk.starts, walk.sizes, strict=True), before):
                _compare(record, start, size, _with(read, piece.data, piece.begin, start, size))
                read = _Read()
            if walk.cut and walk.cut.status == _native.FRAMES_PAYLOAD_CUT:
                read = _with(read, piece.data, piece.begin, walk.cut.at, walk.cut.payload)


def _with(read: _Read, data: bytes, begin: int, start: int, size: int) -> _Read:
    """Return what was read of a record with what a piece has of it, which begins at this byte of the content."""
    payload, behind, end = (start + 12 - begin, start + 12 + size - begin, start + 16 + size - begin)
    crc = _native.crc32c(None, read.crc, memoryview(data)[max(payload, 0) : max(behind, 0)])
    return _Read(crc, read.stored + data[max(behind, 0) : max(end, 0)])


def _compare(record: int, start: int, size: int, read: _Read) -> None:
    expected, found = (read.crc >> 15 | read.crc << 17) + 0xA282EAD8, int.from_bytes(read.stored, "little")
    if found != expected % 2**32:
        raise StoppedError(Stop(record, start, _native.FRAMES_DATA_CRC, size, found, expected % 2**32))
