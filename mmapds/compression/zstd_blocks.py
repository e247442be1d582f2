"""Blocks of zstd: one frame or, where frames are small, several. Decoding them leaves the GIL to others."""

from collections.abc import Iterator
from functools import partial
from types import ModuleType
from typing import NamedTuple

from .. import _native
from ..errors import check_memory
from ..storage.sections import LARGEST_BLOCK
from .codec import decompressor
from .frames import UNKNOWN, Frames
from .parts import SMALLEST, BlockError, Pieces, content_of_parts

PIECE = 32 << 10
"""Bytes of content that are decoded at a time: as many as the codec decodes without putting pieces together."""
_CUT = "a frame is truncated"
_FIRST = 4 << 10  # bytes of a frame that are decoded first; as a decoder copies what is behind, tiny ones want few
_READ = 256 << 10  # bytes of a large frame that are read at a time
_RATIO = 4  # the content of a frame that does not say how much it is, in times of its bytes


class FileBlock(NamedTuple):
    """Where a block lies in the file."""

    begin: int
    end: int
    content: int
    """Bytes of content, by the headers of its frames; or `UNKNOWN`."""
    is_large: bool
    """Whether it has, or may have, so much content that it is decoded in pieces."""


def blocks_of(frames: Frames) -> Iterator[FileBlock]:
    """Yield the blocks that frames make: each of the fewest frames with `SMALLEST` bytes of content."""
    first, content, is_known = frames.begins[0], 0, True
    for begin, end, size in zip(frames.begins, frames.begins[1:], frames.contents, strict=False):
        likely = _RATIO * (end - begin) if size == UNKNOWN else size
        if content >= SMALLEST or (content and content + likely > LARGEST_BLOCK):
            yield _block(first, begin, content, is_known)
            first, content, is_known = begin, 0, True
        content += likely
        is_known &= size != UNKNOWN
    if frames.contents:
        yield _block(first, frames.begins[-1], content, is_known)


def _block(begin: int, end: int, content: int, is_known: bool) -> FileBlock:
    return FileBlock(begin, end, content if is_known else UNKNOWN, max(content, end - begin) > LARGEST_BLOCK)


def decode(codec: ModuleType, data: bytes, most: int) -> Pieces | None:
    """Return the content of frames; None if it is more than `most` bytes.

    Raises:
      BlockError: the frames cannot be decoded, or the last one is cut short.
    """
    return content_of_parts("frame", len(data), most, partial(_frame, codec, memoryview(data)))


def _frame(codec: ModuleType, data: memoryview, at: int, most: int) -> tuple[list[bytes], int | None]:
    """Decode the frame at a byte; see `content_of_parts`."""
    try:
        end = at + codec.get_frame_size(data[at:])
    except codec.ZstdError:
        end = len(data)  # it is cut short or damaged: decoding it says how
    decoder, pieces = decompressor(codec), []
    given = data[at:end]
    try:
        while most and not decoder.eof and (piece := decoder.decompress(given, min(most, PIECE))):
            pieces.append(piece)
            most -= len(piece)
            given = data[end:end]
    except codec.ZstdError as error:
        raise BlockError(reason_of(error)) from None
    return pieces, end - len(decoder.unused_data) if decoder.eof else None


class Stream:
    """The content of frames that are too large to be decoded at once, in pieces and in order.

    Args:
      begin, end: where the frames lie in the file.
    """

    def __init__(self, codec: ModuleType, file: _native.Map, begin: int, end: int) -> None:
        self._codec, self._file, self._end = codec, file, end
        self._data = memoryview(b"")  # that was read last
        self._given = 0  # bytes of it that a decoder was given
        self._begin_frame()
        self._is_open = False  # inside a frame
        self.at = begin
        """The byte of the file that is read next."""

    def _begin_frame(self) -> None:
        self._decoder = decompressor(self._codec)
        self._step = _FIRST  # bytes that the decoder is given next

    def read(self) -> bytes:
        """Return the next piece of content; empty at the end.

        Raises:
          BlockError: it cannot be decoded.
          EOFError: the file became shorter.
        """
        while True:
            if self._decoder.eof:
                self._given -= len(self._decoder.unused_data)
                self._begin_frame()
            if self._given == len(self._data) and self._decoder.needs_input and not self._read_on():
                return b""
            begin = self._given
            if self._decoder.needs_input:
                self._given = min(begin + self._step, len(self._data))
                self._step *= 2
            try:
                piece: bytes = self._decoder.decompress(self._data[begin : self._given], PIECE)
            except self._codec.ZstdError as error:
                raise BlockError(reason_of(error)) from None
            self._is_open = not self._decoder.eof
            if piece:
                return piece

    def _read_on(self) -> bool:
        """Read more of the file; return whether there is more. The end must not come inside a frame."""
        self._data = memoryview(self._file.read(self.at, min(_READ, self._end - self.at)))
        self._given = 0
        self.at += len(self._data)
        if not self._data and self._is_open:
            raise BlockError(_CUT)
        return bool(self._data)


def reason_of(error: Exception) -> str:
    """Return what the codec says of damaged data, as part of a sentence.

    Raises:
      MemoryError: it says that memory is short.
    """
    check_memory(error)
    return str(error).rpartition(": ")[2].lower()
