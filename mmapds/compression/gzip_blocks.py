"""Blocks of gzip: members, several where they are small, or parts of large ones. Decoding them leaves the GIL free.

A block that begins inside a member begins at any bit of a byte, while decoders begin at the first. They are given empty
blocks of deflate before it, which end at that bit, and as their dictionary the content before it.
"""

import zlib as standard_zlib
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

from .. import _native
from ..errors import check_memory
from ..storage.blocks import Edges
from .parts import BlockError, Pieces, content_of_parts

_CUT = "a member is truncated"
_FIRST = 4 << 10  # bytes of a member that are decoded first; as it copies what is behind, tiny ones want few
_PART = 64 << 10  # bytes that a decoder is given at a time; at the end of a tiny member it copies the rest of them
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
        from isal import isal_zlib
    except ModuleNotFoundError:
        return standard_zlib
    found: ModuleType = isal_zlib
    return found


def decode(zlib: ModuleType, data: bytes, most: int, edges: Edges) -> Pieces | None:
    """Return the content of a block; None if it is more than `most` bytes.

    Raises:
      BlockError: it cannot be decoded, or is cut short, or has another checksum.
    """
    if edges == Edges():
        return content_of_parts("member", len(data), most, partial(_member, zlib, memoryview(data)))
    parts = (data[at : at + _PART] for at in range(0, len(data), _PART))
    found = Stream(zlib, partial(next, parts, b""), edges)
    pieces: list[bytes] = []
    left = most + 1
    while left and (piece := found.read(left)):
        pieces.append(piece)
        left -= len(piece)
    return tuple(pieces) if left else None


def _member(zlib: ModuleType, data: memoryview, at: int, most: int) -> tuple[list[bytes], int | None]:
    """Decode the member at a byte, or pass over what fills up the end; see `content_of_parts`."""
    if not data[at] and _is_padding(bytes(data[at:])):
        return [], len(data)
    decoder, pieces, step = zlib.decompressobj(_ANY_MEMBER), [], _FIRST
    if behind := _end_of_odd_header(data[at:]):
        _inflated(zlib, decoder, _plain_header(data[at:]), 1)
        at += behind
    while most and at < len(data) and not decoder.eof:
        given = data[at : at + step]
        pieces.append(_inflated(zlib, decoder, given, most))
        most -= len(pieces[-1])
        at += len(given) - len(decoder.unconsumed_tail) - len(decoder.unused_data)
        step *= 2
    return pieces, at if decoder.eof else None


def stream(zlib: ModuleType, file: _native.Map, begin: int, end: int, edges: Edges) -> "Stream":
    """Return the content of a block that lies at these bytes of a file."""
    pieces = (file.read(at, min(_READ, end - at)) for at in range(begin, end, _READ))
    return Stream(zlib, partial(next, pieces, b""), edges)


class Stream:
    """The content of a block, in pieces and in order; no piece has content of two members.

    Args:
      take: returns the next bytes of the file; none at the end of the block.
    """

    def __init__(self, zlib: ModuleType, take: Callable[[], bytes], edges: Edges) -> None:
        self._zlib, self._take, self._end_crc = zlib, take, edges.end_crc
        self._rest = b""  # bytes that were taken and not yet decoded
        self._crc = 0  # of the content of the member so far
        self._is_open = self._is_resumed = bool(edges.window)  # in a member; in that which the block begins inside
        if not edges.window:
            self._decoder = zlib.decompressobj(_ANY_MEMBER)
        else:
            self._decoder = zlib.decompressobj(_RAW, zdict=edges.window)
            self._resume(edges)

    def _resume(self, edges: Edges) -> None:
        self._crc = edges.crc
        first = self._take()
        if edges.bit and first:
            head, last = _PREAMBLES[edges.bit]
            self._rest = b"".join((head, bytes([last | first[0] >> edges.bit << edges.bit]), first[1:]))
        else:
            self._rest = first

    def read(self, most: int = _PIECE) -> bytes:
        """Return the next piece of content; empty at the end.

        Raises:
          BlockError: it cannot be decoded, or has another checksum.
          EOFError: the file became shorter.
        """
        while True:
            if self._decoder.eof:
                self._end_member()
            self._rest = self._rest or self._take()
            if not self._is_open and _is_padding(self._rest):
                self._pass_padding()
                return b""
            if not self._is_open:
                self._begin_member()
            given = self._rest
            piece = _inflated(self._zlib, self._decoder, given, most)
            self._rest = self._decoder.unconsumed_tail
            if piece:
                if self._is_resumed or self._end_crc is not None:
                    self._crc = self._zlib.crc32(piece, self._crc)
                return piece
            # Without more to read, isal may still have had content, of which it gave as much as was asked for.
            if not given and not self._decoder.eof:
                self._end_inside()
                return b""

    def _begin_member(self) -> None:
        self._crc, self._is_open = 0, True
        while (behind := _end_of_odd_header(self._rest)) is None and self._take_as_many():
            pass
        if behind:
            _inflated(self._zlib, self._decoder, _plain_header(self._rest), 1)
            self._rest = self._rest[behind:] or self._take()

    def _take_as_many(self) -> bool:
        """Take as many bytes as there are, so that long headers take linear time; return whether there were any."""
        pieces, size = [self._rest], len(self._rest)
        while size < 2 * len(self._rest) + 1 and (more := self._take()):
            pieces.append(more)
            size += len(more)
        self._rest = b"".join(pieces)
        return len(pieces) > 1

    def _end_member(self) -> None:
        """Go on behind a member. That of one which the decoder began is compared with its checksum already."""
        self._rest = self._decoder.unused_data
        if self._is_resumed:
            while len(self._rest) < _TRAILER and (more := self._take()):
                self._rest += more
            if len(self._rest) < _TRAILER:
                raise BlockError(_CUT)
            self._check(int.from_bytes(self._rest[:4], "little"))
            self._rest = self._rest[_TRAILER:]
        self._decoder = self._zlib.decompressobj(_ANY_MEMBER)
        self._is_open = self._is_resumed = False

    def _end_inside(self) -> None:
        """End inside a member."""
        if self._end_crc is None:
            raise BlockError(_CUT)
        self._check(self._end_crc)

    def _check(self, expected: int) -> None:
        if self._crc != expected:
            raise BlockError(f"expected content with checksum {expected:08x}, found {self._crc:08x}")

    def _pass_padding(self) -> None:
        """Raise BlockError unless zeros are all that is left."""
        while more := self._take():
            if more.strip(b"\0"):
                raise BlockError("something behind zeros")


def _end_of_odd_header(data: "bytes | memoryview") -> int | None:
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


def _behind_zero(data: "bytes | memoryview", at: int) -> int:
    """Return the byte behind the next zero; one beyond the end of the data without one."""
    step = _SHORT
    while at < len(data):
        zero = bytes(data[at : at + step]).find(b"\0")
        if zero >= 0:
            return at + zero + 1
        at, step = at + step, 2 * step
    return len(data) + 1


def _plain_header(data: "bytes | memoryview") -> bytes:
    """Return the header of a member without what may follow the first part of it."""
    return bytes([*data[:3], data[3] & ~(_CHECKED | _EXTRA | _NAME | _COMMENT), *data[4:_HEADER]])


def _is_padding(data: bytes) -> bool:
    """Whether nothing but zeros is left, which some writers fill the last block of a tape or a disk with."""
    return not data or (data[:1] == b"\0" and not data.strip(b"\0"))


def _inflated(zlib: ModuleType, decoder: Any, data: "bytes | memoryview", most: int) -> bytes:
    try:
        found: bytes = decoder.decompress(data, most)
    except zlib.error as error:
        raise BlockError(_reason_of(error)) from None
    return found


def _reason_of(error: Exception) -> str:
    """Return what the module says of damaged data, as part of a sentence: isal and zlib say it with a number, and a
    place.

    Raises:
      MemoryError: it says that memory is short.
    """
    check_memory(error)
    return str(error).rpartition(": ")[2].partition(" ")[2].lower() if str(error).startswith("Error") else str(error)


# ---- empty blocks of deflate


class _Bits:
    """Bits, the first one the lowest of a number."""

    def __init__(self) -> None:
        self.number = self.count = 0

    def add(self, value: int, count: int) -> None:
        self.number |= value << self.count
        self.count += count


def _add_empty_fixed(bits: _Bits) -> None:
    """Add a block of fixed codes, of 10 bits: its kind, and the end of the block."""
    bits.add(0b010, 3)
    bits.add(0, 7)


def _add_empty_dynamic(bits: _Bits) -> None:
    """Add a block of codes of its own, of 91 bits: one for 255, one for the end of the block, and one distance."""
    bits.add(0b100, 3)
    bits.add(0, 5 + 5)  # 257 literals, one distance
    bits.add(14, 4)  # the lengths of 18 codes of lengths follow: that of 18, the third, and of 1, the last, are 1
    for number in range(18):
        bits.add(number in (2, 17), 3)
    for zeros in (138, 117):
        bits.add(1, 1)
        bits.add(zeros - 11, 7)
    bits.add(0, 3)  # three codes of 1 bit
    bits.add(1, 1)


def _preamble(bit: int) -> tuple[bytes, int]:
    """Return empty blocks that end before a bit of a byte: whole bytes, and the begin of the next one."""
    bits = _Bits()
    if bit % 2:
        _add_empty_dynamic(bits)
    while bits.count % 8 != bit:
        _add_empty_fixed(bits)
    data = bits.number.to_bytes(bits.count // 8 + 1, "little")
    return data[:-1], data[-1]


_PREAMBLES = [_preamble(bit) for bit in range(8)]
