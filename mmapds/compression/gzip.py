"""gzip: the content of a file with the places where blocks begin, and what decodes blocks. The GIL is left to others.

A block is a member, several where they are small, or a part of a large one. No library says where blocks of deflate
begin, so the core decodes a file that is indexed (csrc/inflate.c); blocks are read by another decoder, isal or zlib.

A block that begins inside a member begins at any bit of a byte, while decoders begin at the first. They are given empty
blocks of deflate before it, which end at that bit, and as their dictionary the content before it.
"""

import zlib as standard_zlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any, NamedTuple

from .. import _native
from ..errors import check_memory
from ..storage.blocks import Edges
from ..storage.sections import WINDOW
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
_FIRST = 4 << 10  # bytes of a member that are decoded first; as a decoder copies what is behind, tiny ones want few
_READ = 256 << 10  # bytes of a file that are read at a time
_PIECE = 1 << 20  # bytes of content that are decoded at a time
_ANY_MEMBER = 31  # what zlib calls a window of any size, behind the header of gzip
_RAW = -15  # and one without a header
_HEADER = 10  # bytes of the header of a member, without what its flags say that follows
_SHORT = 256  # bytes of a name or a comment that are looked at first
_CHECKED, _EXTRA, _NAME, _COMMENT = 2, 4, 8, 16  # these flags, in byte 3
_TRAILER = 8  # bytes behind the blocks of a member: its checksum, and its size


def inflater() -> ModuleType:
    """Return the module that inflates: isal's, which is several times faster, or the standard library's."""
    try:
        from isal import isal_zlib  # optional: the extra mmapds[gzip]
    except ModuleNotFoundError:
        return standard_zlib
    found: ModuleType = isal_zlib
    return found


# ---- a file that is indexed -------------------------------------------------------------------------------------


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


# ---- blocks -----------------------------------------------------------------------------------------------------


class Stream:
    """The content of a block, in pieces and in order; no piece has content of two members.

    Args:
      zlib: from `inflater`.
      begin, end: where the block lies in the file.
    """

    def __init__(self, zlib: ModuleType, file: _native.Map, begin: int, end: int, edges: Edges) -> None:
        self._zlib, self._file, self._end, self._end_crc = zlib, file, end, edges.end_crc
        self._at = begin  # the byte of the file that is read next
        self._data = memoryview(b"")  # that was read, and not decoded
        self._step = _READ  # bytes that the decoder is given next
        self._crc = edges.crc  # of the content of the member so far
        self._is_open = self._is_resumed = bool(edges.window)  # in a member; in that which the block begins inside
        self._decoder: Any = zlib.decompressobj(_ANY_MEMBER)
        if edges.window:
            self._decoder = zlib.decompressobj(_RAW, zdict=edges.window)
            self._read_on()
        if edges.bit and self._data:
            head, last = _PREAMBLES[edges.bit]
            first = last | self._data[0] >> edges.bit << edges.bit
            self._data = memoryview(b"".join((head, bytes([first]), self._data[1:])))

    def read(self) -> bytes:
        """Return the next piece of content; empty at the end.

        Raises:
          BlockError: it cannot be decoded, or has another checksum.
          EOFError: the file became shorter.
        """
        while True:
            if self._decoder.eof:
                self._end_member()
            has_more = bool(self._data) or self._read_on()
            if not self._is_open:
                if not has_more or not self._data[0]:
                    self._pass_padding()
                    return b""
                self._begin_member()
            piece = self._decoded()
            if piece:
                if self._is_resumed or self._end_crc is not None:
                    self._crc = self._zlib.crc32(piece, self._crc)
                return piece
            # Without more to read, isal may still have had content, of which it gave as much as was asked for.
            if not has_more and not self._decoder.eof:
                if self._end_crc is None:
                    raise BlockError(_WRONG[_native.INFLATE_CUT])
                self._check(self._end_crc)
                return b""

    def _decoded(self) -> bytes:
        """Decode some of the bytes that were read."""
        given = self._data[: self._step]
        piece = self._decompress(given, _PIECE)
        self._step = min(2 * self._step, _READ)
        # At the end of a member zlib has the same bytes in both.
        back = self._decoder.unused_data if self._decoder.eof else self._decoder.unconsumed_tail
        if len(back) > len(given):  # isal gives back bytes that it was given before, too
            self._data = memoryview(b"".join((back, self._data[len(given) :])))
        else:
            self._data = self._data[len(given) - len(back) :]
        return piece

    def _decompress(self, given: "bytes | memoryview", most: int) -> bytes:
        try:
            piece: bytes = self._decoder.decompress(given, most)
        except self._zlib.error as error:
            raise BlockError(_reason_of(error)) from None
        return piece

    def _read_on(self, size: int = _READ) -> bool:
        """Read more of the file, behind what is not decoded; return whether there is more."""
        more = self._file.read(self._at, min(size, self._end - self._at))
        self._at += len(more)
        self._data = memoryview(b"".join((self._data, more)))
        return bool(more)

    def _begin_member(self) -> None:
        self._crc, self._is_open = 0, True
        while (behind := _end_of_odd_header(self._data)) is None and self._read_on(max(_READ, len(self._data))):
            pass
        if behind:
            self._decompress(_plain_header(self._data), 1)
            self._data = self._data[behind:]

    def _end_member(self) -> None:
        """Go on behind a member. That of one which the decoder began is compared with its checksum already."""
        if self._is_resumed:
            if len(self._data) < _TRAILER:
                self._read_on()
            if len(self._data) < _TRAILER:
                raise BlockError(_WRONG[_native.INFLATE_CUT])
            self._check(int.from_bytes(self._data[:4], "little"))
            self._data = self._data[_TRAILER:]
        self._decoder, self._step = self._zlib.decompressobj(_ANY_MEMBER), _FIRST
        self._is_open = self._is_resumed = False

    def _check(self, expected: int) -> None:
        if self._crc != expected:
            raise BlockError(f"expected content with checksum {expected:08x}, found {self._crc:08x}")

    def _pass_padding(self) -> None:
        """Raise BlockError unless zeros are all that is left, with which some writers fill the end of a tape."""
        while self._data:
            if bytes(self._data).strip(b"\0"):
                raise BlockError("something behind zeros")
            self._data = memoryview(b"")
            self._read_on()


def _end_of_odd_header(data: memoryview) -> int | None:
    """Return where the header of a member ends that has a checksum or several fields; 0 for others, None if it is cut.

    isal 1.9 reads these wrongly where it is not given all of the header at once. The checksum was compared when the
    file was indexed, so decoders are given a plain header instead.
    """
    if len(data) < _HEADER:
        return None
    flags, end = data[3], _HEADER
    fields = flags & (_EXTRA | _NAME | _COMMENT)
    if not flags & _CHECKED and not fields & (fields - 1):
        return 0
    if flags & _EXTRA:
        end += 2 + int.from_bytes(data[end : end + 2], "little")
    for flag in (_NAME, _COMMENT):
        if flags & flag:
            end = _behind_zero(data, end)
    end += 2 * bool(flags & _CHECKED)
    return end if end <= len(data) else None


def _behind_zero(data: memoryview, at: int) -> int:
    """Return the byte behind the next zero; one beyond the end of the data without one."""
    step = _SHORT
    while at < len(data):
        zero = bytes(data[at : at + step]).find(b"\0")
        if zero >= 0:
            return at + zero + 1
        at, step = at + step, 2 * step
    return len(data) + 1


def _plain_header(data: memoryview) -> bytes:
    """Return the header of a member without what may follow the first part of it."""
    return bytes([*data[:3], data[3] & ~(_CHECKED | _EXTRA | _NAME | _COMMENT), *data[4:_HEADER]])


def _reason_of(error: Exception) -> str:
    """Return what the module says of damaged data, without the number and the place that isal and zlib add.

    Raises:
      MemoryError: it says that memory is short.
    """
    check_memory(error)
    return str(error).rpartition(": ")[2].partition(" ")[2].lower() if str(error).startswith("Error") else str(error)


# ---- empty blocks of deflate, as bits in the order of the file ---------------------------------------------------


def _bits(value: int, count: int) -> str:
    """Return the bits of a number, the lowest first."""
    return f"{value:0{count}b}"[::-1]


_EMPTY_FIXED = _bits(0b010, 3) + _bits(0, 7)
"""A block of fixed codes, of 10 bits: its kind, and the end of the block."""
_EMPTY_DYNAMIC = "".join(
    [
        _bits(0b100, 3),
        _bits(0, 5 + 5),  # 257 literals, one distance
        _bits(14, 4),  # the lengths of 18 codes of lengths follow: that of 18, the third, and of 1, the last, are 1
        *(_bits(number in (2, 17), 3) for number in range(18)),
        *("1" + _bits(zeros - 11, 7) for zeros in (138, 117)),
        "000",  # three codes of 1 bit
        "1",  # the end of the block
    ]
)
"""A block of codes of its own, of 91 bits: one for 255, one for the end of the block, and one distance."""


def _preamble(bit: int) -> tuple[bytes, int]:
    """Return empty blocks that end before a bit of a byte: whole bytes, and the begin of the next one."""
    bits = _EMPTY_DYNAMIC * (bit % 2)
    while len(bits) % 8 != bit:
        bits += _EMPTY_FIXED
    data = int(bits[::-1] or "0", 2).to_bytes(len(bits) // 8 + 1, "little")
    return data[:-1], data[-1]


_PREAMBLES = [_preamble(bit) for bit in range(8)]
