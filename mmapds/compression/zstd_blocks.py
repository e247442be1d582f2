"""Blocks of zstd: one frame or, where frames are small, several. Decoding them leaves the GIL to others."""

from collections.abc import Iterator
from types import ModuleType
from typing import NamedTuple

from .. import _native
from ..storage.blocks import LARGEST_BLOCK
from .frames import UNKNOWN, Frames

SMALLEST = 64 << 10
"""Bytes of content that a block has at least, unless it is the last one."""
_CUT = "a frame is truncated"
_READ = 256 << 10  # bytes of a large frame that are read at a time
_PIECE = 1 << 20  # bytes of its content that are decoded at a time
_RATIO = 4  # the content of a frame that does not say how much it is, in times of its bytes


class BlockError(Exception):
    """A block cannot be decoded; its message is the reason."""


class FileBlock(NamedTuple):
    """Where a block lies in the file."""

    begin: int
    end: int
    is_large: bool
    """Whether it has, or may have, so much content that it is decoded in pieces."""


def blocks_of(frames: Frames) -> Iterator[FileBlock]:
    """Yield the blocks that frames make: each of the fewest frames with `SMALLEST` bytes of content."""
    content, first = 0, frames.begins[0]
    for begin, end, size in zip(frames.begins, frames.begins[1:], frames.contents, strict=False):
        size = _RATIO * (end - begin) if size == UNKNOWN else size
        if content >= SMALLEST or (content and content + size > LARGEST_BLOCK):
            yield FileBlock(first, begin, _is_large(content, begin - first))
            content, first = 0, begin
        content += size
    if frames.contents:
        yield FileBlock(first, frames.begins[-1], _is_large(content, frames.begins[-1] - first))


def _is_large(content: int, size: int) -> bool:
    return content > LARGEST_BLOCK or size > LARGEST_BLOCK


def decode(codec: ModuleType, data: bytes, most: int) -> bytes | None:
    """Return the content of frames; None if it is more than `most` bytes.

    Raises:
      BlockError: the frames cannot be decoded, or the last one is cut short.
    """
    pieces: list[bytes] = []
    left = most + 1
    while data and left:
        decoder = codec.ZstdDecompressor()
        try:
            piece = decoder.decompress(data, left)
        except codec.ZstdError as error:
            raise BlockError(reason_of(error)) from None
        pieces.append(piece)
        left -= len(piece)
        if left > 1 and not decoder.eof:  # else what is cut off behind the content has none
            raise BlockError(_CUT)
        data = decoder.unused_data if decoder.eof else b""
    if not left:
        return None
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


class Stream:
    """The content of frames that are too large to be decoded at once, in pieces and in order.

    Args:
      begin, end: where the frames lie in the file.
    """

    def __init__(self, codec: ModuleType, file: _native.Map, begin: int, end: int) -> None:
        self._codec, self._file, self._end = codec, file, end
        self._decoder = codec.ZstdDecompressor()
        self._rest = b""
        self._is_open = False  # inside a frame
        self.at = begin
        """The byte of the file that is read next."""

    def read(self) -> bytes:
        """Return the next piece of content; empty at the end.

        Raises:
          BlockError: it cannot be decoded.
          EOFError: the file became shorter.
        """
        while True:
            if self._decoder.eof:
                self._rest, self._decoder = self._decoder.unused_data, self._codec.ZstdDecompressor()
            if not self._rest and self._decoder.needs_input:
                self._rest = self._file.read(self.at, min(_READ, self._end - self.at))
                self.at += len(self._rest)
                if not self._rest and self._is_open:
                    raise BlockError(_CUT)
                if not self._rest:
                    return b""
            try:
                piece: bytes = self._decoder.decompress(self._rest, _PIECE)
            except self._codec.ZstdError as error:
                raise BlockError(reason_of(error)) from None
            self._rest, self._is_open = b"", not self._decoder.eof
            if piece:
                return piece


def reason_of(error: Exception) -> str:
    """Return what the codec says, as part of a sentence."""
    return str(error).rpartition(": ")[2].lower()
