"""gzip: the content of a file with the places where blocks begin, and what decodes blocks. The GIL is left to others.

A block is a member, several where they are small, or a part of a large one. No library says where blocks of deflate
begin, so the core decodes a file that is indexed (csrc/inflate.c); blocks are read by another decoder, isal or zlib.

A block that begins inside a member begins at any bit of a byte, while decoders begin at the first. They are given empty
blocks of deflate before it, which end at that bit, and as their dictionary the content before it.
"""

import zlib as standard_zlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from .. import _native
from ..errors import FormatError, check_memory
from ..storage.sections import WINDOW
from ..storage.sources import piped
from .blocks import SMALLEST, BlockError, BlockStart, Edges, Place, not_decoded, packed_point

SPACING = 1 << 20  # bytes of content between access points, at least: the next block of deflate then begins a block
_HELD = 256 << 10  # bytes of content of small members that are yielded at once
_STEP = SPACING + _HELD + _native.INFLATE_SLACK  # bytes that there is room for
_ROOM = 2 * _STEP
_CUT, _NOT_MEMBER = "a member is truncated", "something that is not a member"
_WRONG = {
    _native.INFLATE_CUT: _CUT,
    _native.INFLATE_NOT_MEMBER: _NOT_MEMBER,
    _native.INFLATE_DAMAGED: "a block of deflate is damaged",
}
_FIRST = 4 << 10  # bytes of a member that are decoded first; as a decoder copies what is behind, tiny ones want few
_READ = 256 << 10  # bytes of a file that are read at a time
_PIECE = 2 << 20  # bytes of content that are decoded at a time: most blocks at once
_RAW = -15  # what zlib calls blocks of deflate without a header
_HEADER = 10  # bytes of the header of a member, without what its flags say that follows
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


def content_of(path: str, file: _native.Map) -> Iterator[tuple[BlockStart | None, bytes]]:
    """Yield the content of a file in pieces, each with where its block begins; None if that is the one before.

    Raises FormatError where it cannot be decoded or has another checksum, EOFError where the file became shorter.
    """
    decoder, crc32 = _native.Inflater(file), inflater().crc32
    out = memoryview(bytearray(_ROOM))
    filled = taken = 0  # bytes of content there, and of those how many were yielded
    content = size = crc = 0  # bytes of content so far, and of the block; of the member, its checksum
    begin, number, whole = 0, 0, 0  # of the block, its bit and its number; bytes of whole members
    start: BlockStart | None = BlockStart(0, 0)  # of the block, until it has content
    status = _native.INFLATE_FULL
    while status != _native.INFLATE_END:
        if filled > _ROOM - _STEP:  # move what is needed to the front: what waits to be yielded, and the window
            kept = min(taken, filled - WINDOW)
            out[: filled - kept] = out[kept:filled]
            filled, taken = filled - kept, taken - kept
        before, following = filled, None
        status, filled, at, of_member, expected_crc, expected_size = decoder.read(out, filled, max(SPACING - size, 1))
        crc, size = crc32(out[before:filled], crc), size + filled - before
        content += filled - before
        try:
            rest = file.read(whole, min(_READ, file.size - whole)) if status == _native.INFLATE_NOT_MEMBER else b""
            if rest[:1] == b"\0" and rest.lstrip(b"\0").startswith(b"\x1f\x8b\x08"):  # Python's own passes over them
                way = piped(path, "python -m gzip -d -")
                raise FormatError(f"{path}: expected no zeros between members, found some at byte {whole}; run: {way}")
            if status in _WRONG:
                raise BlockError(_WRONG[status] + f" at byte {whole}" * (status == _native.INFLATE_NOT_MEMBER))
            if status == _native.INFLATE_MEMBER:
                _check(crc, expected_crc)
                if of_member % 2**32 != expected_size:
                    raise BlockError(f"expected {expected_size} bytes of content, found {of_member} (modulo 2^32)")
                crc, whole = 0, at // 8
                if size >= SMALLEST or not size:
                    following = BlockStart(at, content)
            elif status == _native.INFLATE_BLOCK and size >= SPACING:
                following = BlockStart(at, content, packed_point(crc, out[filled - min(of_member, WINDOW) : filled]))
        except BlockError as error:
            raise not_decoded(path, number, begin // 8, "gzip", error) from None
        is_enough = following or filled - taken >= _HELD or status == _native.INFLATE_END
        if is_enough and filled > taken:
            yield start, bytes(out[taken:filled])
            start, taken = None, filled
        if following:
            number += start is None
            start, begin, size = following, following.file, 0


def text_of(zlib: ModuleType, file: _native.Map, place: Place, edges: Edges) -> Iterator[bytes]:
    """Yield the content of a block in order, with one byte more if it has more; raise BlockError for damage."""
    packed = _Packed(file, place.begin, place.end)
    most = place.size + 1  # bytes of content: memory of one size is used again, and not given back to the system
    decoder: Any = zlib.decompressobj(_RAW, zdict=edges.window) if edges.window else None  # in a member
    crc, step = edges.crc, _READ  # of the content of the member so far; bytes that the decoder is given next
    if edges.bit and packed.reach(1):
        head, last = _PREAMBLES[edges.bit]
        first = last | packed.data[0] >> edges.bit << edges.bit
        packed.data = b"".join((head, bytes([first]), packed.data[1:]))
    while decoder is not None or packed.begin_member():
        decoder = decoder or zlib.decompressobj(_RAW)
        has_more, stop = packed.reach(1), packed.at + step
        step = min(2 * step, _READ)
        try:
            piece: bytes = decoder.decompress(memoryview(packed.data)[packed.at : stop], min(_PIECE, most))
        except zlib.error as error:
            check_memory(error)
            raise BlockError(str(error)) from None
        # At the end of a member zlib has the same bytes in both.
        packed.give_back(stop, decoder.unused_data if decoder.eof else decoder.unconsumed_tail)
        crc = zlib.crc32(piece, crc)
        if piece:
            most = max(most - len(piece), 1)
            yield piece
        if decoder.eof:
            _check(crc, int.from_bytes(packed.take(_TRAILER)[:4], "little"))
            decoder, crc, step = None, 0, _FIRST
        elif not piece and not has_more:  # isal may still have had content that was not asked for
            if edges.end_crc is None:
                raise BlockError(_CUT)
            _check(crc, edges.end_crc)
            return


class _Packed:
    """The bytes of a block, which are read as they are needed."""

    def __init__(self, file: _native.Map, begin: int, end: int) -> None:
        self._file, self._next, self._end = file, begin, end
        self.data, self.at = b"", 0  # what was read, and how much of it is decoded

    def reach(self, size: int) -> bool:
        """Read until so many bytes are there that are not decoded; return whether they are."""
        while len(self.data) < self.at + size:
            more = self._file.read(self._next, min(_READ, self._end - self._next))
            if not more:
                return False
            self._next += len(more)
            self.data, self.at = self.data[self.at :] + more, 0
        return True

    def take(self, size: int) -> bytes:
        """Return the next bytes, which no decoder needs."""
        if not self.reach(size):
            raise BlockError(_CUT)
        self.at += size
        return self.data[self.at - size : self.at]

    def give_back(self, end: int, back: bytes) -> None:
        """Go on behind what a decoder was given, which ends at a byte, but for what it gives back."""
        end = min(end, len(self.data))
        if len(back) > end:  # isal gives back bytes that it was given before, too
            self.data, end = back + self.data[end:], len(back)
        self.at = end - len(back)

    def begin_member(self) -> bool:
        """Pass over the header of the next member; return whether there is one. Zeros may fill the end of a file.

        It is not given to decoders: isal 1.9 misreads one that is cut anywhere. Its checksum was compared when the file
        was indexed.
        """
        if not self.reach(1) or not self.data[self.at]:
            return False
        header = self.take(_HEADER)
        if not header.startswith(b"\x1f\x8b\x08"):
            raise BlockError(_NOT_MEMBER)
        if header[3] & _EXTRA:
            self.take(int.from_bytes(self.take(2), "little"))
        for flag in (_NAME, _COMMENT):
            while header[3] & flag and self.take(1) != b"\0":
                pass
        self.take(2 * bool(header[3] & _CHECKED))
        return True


def _check(crc: int, expected: int) -> None:
    if crc != expected:
        raise BlockError(f"expected content with checksum {expected:08x}, found {crc:08x}")


# ---- empty blocks of deflate, as bits in the order of the file ---------------------------------------------------


_EMPTY_FIXED = "010" + "0000000"
"""A block of fixed codes: its kind, and the end of the block."""
_EMPTY_DYNAMIC = (
    "001" + "0000000000" + "0111"  # its kind; 257 literals, one distance, and the lengths of 18 codes of lengths
    "000000100" + 14 * "000" + "100"  # which are 1 for that of many zeros, and for that of 1
    "11111111" + "10101011"  # 138 zeros, and 117
    "0001"  # three codes of 1 bit, and the end of the block
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
