"""Blocks of gzip: one member or, where members are small, several. Decoding them leaves the GIL to others."""

from functools import partial
from types import ModuleType
from typing import Any

from .. import _native
from .parts import Block, BlockError, content_of_parts

_CUT = "a member is truncated"
_FIRST = 4 << 10  # bytes of a member that are decoded first; as it copies what is behind, tiny ones want few
_READ = 256 << 10  # bytes of a file that are read at a time
_PIECE = 1 << 20  # bytes of content that are decoded at a time
_ANY_MEMBER = 31  # what zlib calls a window of any size, behind the header of gzip


def inflater() -> ModuleType:
    """Return the module that inflates: isal's, which is several times faster, or the standard library's."""
    try:
        from isal import isal_zlib
    except ModuleNotFoundError:
        import zlib

        return zlib
    found: ModuleType = isal_zlib
    return found


def decode(zlib: ModuleType, data: bytes, most: int) -> Block | None:
    """Return the content of members; None if it is more than `most` bytes.

    Raises:
      BlockError: the members cannot be decoded, or the last one is cut short.
    """
    return content_of_parts("member", len(data), most, partial(_member, zlib, memoryview(data)))


def _member(zlib: ModuleType, data: memoryview, at: int, most: int) -> tuple[list[bytes], int | None]:
    """Decode the member at a byte, or pass over what fills up the end; see `content_of_parts`."""
    if not data[at] and is_padding(bytes(data[at:])):
        return [], len(data)
    decoder, pieces, step = zlib.decompressobj(_ANY_MEMBER), [], _FIRST
    while most and at < len(data) and not decoder.eof:
        given = data[at : at + step]
        pieces.append(_inflated(zlib, decoder, given, most))
        most -= len(pieces[-1])
        at += len(given) - len(decoder.unconsumed_tail) - len(decoder.unused_data)
        step *= 2
    return pieces, at if decoder.eof else None


class Stream:
    """The content of members, in pieces and in order; no piece has content of two.

    Args:
      begin, end: where the members lie in the file.
    """

    def __init__(self, zlib: ModuleType, file: _native.Map, begin: int, end: int) -> None:
        self._zlib, self._file, self._at, self._end = zlib, file, begin, end
        self._decoder = zlib.decompressobj(_ANY_MEMBER)
        self._rest = b""  # bytes that were read and not yet decoded
        self._is_open = False
        self.member = begin
        """The byte of the file at which the member of the last piece begins."""

    def read(self) -> bytes:
        """Return the next piece of content; empty at the end.

        Raises:
          BlockError: it cannot be decoded.
          EOFError: the file became shorter.
        """
        while True:
            if self._decoder.eof:
                self._rest, self._is_open = self._decoder.unused_data, False
                self._decoder = self._zlib.decompressobj(_ANY_MEMBER)
            if not self._rest:
                self._rest = self._file.read(self._at, min(_READ, self._end - self._at))
                self._at += len(self._rest)
            if not self._rest and self._is_open:
                raise BlockError(_CUT)
            if not self._is_open and is_padding(self._rest):
                self._pass_padding()
                return b""
            if not self._is_open:
                self.member, self._is_open = self._at - len(self._rest), True
            piece = _inflated(self._zlib, self._decoder, self._rest, _PIECE)
            self._rest = self._decoder.unconsumed_tail
            if piece:
                return piece

    def _pass_padding(self) -> None:
        """Raise BlockError unless zeros are all that is left."""
        while self._at < self._end:
            size = min(_READ, self._end - self._at)
            if self._file.read(self._at, size).strip(b"\0"):
                raise BlockError(f"something behind zeros, in the {size} bytes from byte {self._at} on")
            self._at += size


def is_padding(data: bytes) -> bool:
    """Whether nothing but zeros is left, which some writers fill the last block of a tape or a disk with."""
    return not data or (data[:1] == b"\0" and not data.strip(b"\0"))


def _inflated(zlib: ModuleType, decoder: Any, data: "bytes | memoryview", most: int) -> bytes:
    try:
        found: bytes = decoder.decompress(data, most)
    except zlib.error as error:
        raise BlockError(_reason_of(error)) from None
    return found


def _reason_of(error: Exception) -> str:
    """Return what the module says, as part of a sentence: isal and zlib say it with a number, and a place."""
    return str(error).rpartition(": ")[2].partition(" ")[2].lower() if str(error).startswith("Error") else str(error)
