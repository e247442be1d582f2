"""gzip: find the blocks of a file while it is decoded, and decode single blocks. Decoding releases the GIL.

A block is a member, several small members, or a part of a large one. Other libraries do not report where blocks of
deflate begin, so the core decodes a file for the index (csrc/inflate.c). Reading a block uses isal or zlib.

A block inside a member may begin at any bit of a byte, but decoders begin at the first bit. So a decoder first gets
empty blocks of deflate that end at that bit. Its dictionary is the content before the block.
"""

import zlib as standard_zlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from .. import _native
from ..errors import FormatError, check_memory
from ..storage.sections import WINDOW
from ..storage.sources import piped
from .blocks import SMALLEST, BlockError, BlockStart, Edges, Extent, not_decoded, packed_point

SPACING = 1 << 20  # bytes of content between access points, at least: then the next deflate block begins a new block
_HELD = 256 << 10  # bytes of content of small members yielded together
_STEP = SPACING + _HELD + _native.INFLATE_SLACK  # bytes of free room that a call needs
_ROOM = 2 * _STEP
_CUT, _NOT_MEMBER = "a member is truncated", "something that is not a member"
_WRONG = {
    _native.INFLATE_CUT: _CUT,
    _native.INFLATE_NOT_MEMBER: _NOT_MEMBER,
    _native.INFLATE_DAMAGED: "a block of deflate is damaged",
}
_FIRST = 4 << 10  # bytes of a member decoded first; few, as a decoder copies the bytes after a tiny member
_READ = 256 << 10  # bytes of a file read at a time
_PIECE = 2 << 20  # bytes of content decoded at a time: covers most blocks
_RAW = -15  # zlib's wbits for raw deflate
_HEADER = 10  # bytes of the header of a member, without its optional fields
_CHECKED, _EXTRA, _NAME, _COMMENT = 2, 4, 8, 16  # flags for the optional fields, in byte 3
_TRAILER = 8  # bytes after the blocks of a member: its checksum and size


def inflater() -> ModuleType:
    """Return isal's module to inflate, which is several times faster, or else the standard library's."""
    try:
        from isal import isal_zlib  # optional: the extra mmapds[gzip]
    except ModuleNotFoundError:
        return standard_zlib
    found: ModuleType = isal_zlib
    return found


def content_of(path: str, file: _native.Map) -> Iterator[tuple[BlockStart | None, bytes]]:
    """Yield the content of a file in pieces, each with the start of its block; None if it continues the last block.

    Raises FormatError if the file is damaged or a checksum differs, EOFError if the file became shorter.
    """
    decoder, crc32 = _native.Inflater(file), inflater().crc32
    out = memoryview(bytearray(_ROOM))
    filled = taken = 0  # bytes of content in the memory, and how many of them were yielded
    content = size = crc = 0  # bytes of content so far; of the current block; checksum of the current member
    begin, number, whole = 0, 0, 0  # bit and number of the block; bytes of whole members
    start: BlockStart | None = BlockStart(0, 0)  # the start of the block, until its first piece is yielded
    status = _native.INFLATE_FULL
    while status != _native.INFLATE_END:
        if filled > _ROOM - _STEP:  # move the window and the bytes not yet yielded to the front
            kept = min(taken, filled - WINDOW)
            out[: filled - kept] = out[kept:filled]
            filled, taken = filled - kept, taken - kept
        before, following = filled, None
        status, filled, at, of_member, expected_crc, expected_size = decoder.read(out, filled, max(SPACING - size, 1))
        crc, size = crc32(out[before:filled], crc), size + filled - before
        content += filled - before
        try:
            rest = file.read(whole, min(_READ, file.size - whole)) if status == _native.INFLATE_NOT_MEMBER else b""
            if rest[:1] == b"\0" and rest.lstrip(b"\0").startswith(b"\x1f\x8b\x08"):  # Python's own gzip skips them
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


def text_of(zlib: ModuleType, file: _native.Map, place: Extent, edges: Edges) -> Iterator[bytes]:
    """Yield the content of a block in order, plus one byte if it is too long; raise BlockError for damage."""
    packed = _Packed(file, place.begin, place.end)
    most = place.size + 1  # bytes of content; one size, so that memory is reused instead of returned to the system
    decoder: Any = zlib.decompressobj(_RAW, zdict=edges.window) if edges.window else None  # in a member
    crc, step = edges.crc, _READ  # CRC of the member's content so far; bytes to give the decoder next
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
        # At the end of a member, zlib returns the same bytes in both attributes.
        packed.give_back(stop, decoder.unused_data if decoder.eof else decoder.unconsumed_tail)
        crc = zlib.crc32(piece, crc)
        if piece:
            most = max(most - len(piece), 1)
            yield piece
        if decoder.eof:
            _check(crc, int.from_bytes(packed.take(_TRAILER)[:4], "little"))
            decoder, crc, step = None, 0, _FIRST
        elif not piece and not has_more:  # isal may have held back content before
            if edges.end_crc is None:
                raise BlockError(_CUT)
            _check(crc, edges.end_crc)
            return


class _Packed:
    """The bytes of a block, read on demand."""

    def __init__(self, file: _native.Map, begin: int, end: int) -> None:
        self._file, self._next, self._end = file, begin, end
        self.data, self.at = b"", 0  # bytes read, and how many of them are decoded

    def reach(self, size: int) -> bool:
        """Read until `size` bytes are available to decode; return whether they are."""
        while len(self.data) < self.at + size:
            more = self._file.read(self._next, min(_READ, self._end - self._next))
            if not more:
                return False
            self._next += len(more)
            self.data, self.at = self.data[self.at :] + more, 0
        return True

    def take(self, size: int) -> bytes:
        """Return the next bytes, and skip them."""
        if not self.reach(size):
            raise BlockError(_CUT)
        self.at += size
        return self.data[self.at - size : self.at]

    def give_back(self, end: int, back: bytes) -> None:
        """Move past the bytes that a decoder got, up to `end`, without those that it returned unused."""
        end = min(end, len(self.data))
        if len(back) > end:  # isal also returns bytes of earlier calls
            self.data, end = back + self.data[end:], len(back)
        self.at = end - len(back)

    def begin_member(self) -> bool:
        """Skip the header of the next member; return whether there is one. Zeros may fill the end of a file.

        Decoders do not get the header: isal 1.9 misreads one that arrives in pieces. Indexing has compared its
        checksum.
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
"""An empty block of fixed codes: its type, and the end-of-block code."""
_EMPTY_DYNAMIC = (
    "001" + "0000000000" + "0111"  # its type; 257 literals, one distance, and the lengths of 18 length codes
    "000000100" + 14 * "000" + "100"  # 1 for the code of many zeros, and for the code of length 1
    "11111111" + "10101011"  # 138 zeros, and 117
    "0001"  # three codes of 1 bit, and the end-of-block code
)
"""An empty block of dynamic codes, of 91 bits: codes for 255, for end-of-block, and for one distance."""


def _preamble(bit: int) -> tuple[bytes, int]:
    """Return empty blocks that end before a bit of a byte: whole bytes, and the low bits of the next one."""
    bits = _EMPTY_DYNAMIC * (bit % 2)
    while len(bits) % 8 != bit:
        bits += _EMPTY_FIXED
    data = int(bits[::-1] or "0", 2).to_bytes(len(bits) // 8 + 1, "little")
    return data[:-1], data[-1]


_PREAMBLES = [_preamble(bit) for bit in range(8)]
