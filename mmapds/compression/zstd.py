"""zstd: find the frames of a file, group them into blocks, and decode blocks. Decoding releases the GIL.

Several writers may have appended to one file. Between frames there may be skippable frames, with data of tools.
"""

import sys
from array import array
from collections.abc import Iterator
from functools import cache
from itertools import chain, pairwise
from types import ModuleType
from typing import Any, NamedTuple

from .. import _native
from ..errors import Error, FormatError, check_memory, quoted, tool
from ..storage.sections import LARGEST_BLOCK
from .blocks import SMALLEST, BlockError

UNKNOWN = 2**64 - 1  # text size of a frame whose header does not give it
LARGEST_WINDOW = 128 << 20  # bytes of text that a decoder keeps, at most; the default of `zstd` without `--long`
_PIECE = 32 << 10  # bytes of text decoded at a time: as many as the codec decodes without joining pieces
_ROOM = 1 << 14  # frames found by one step of a walk, at most
_STEP = 256 << 20  # bytes walked by one step, at most: signals are handled between steps
_STATE = 7  # words
_FIRST = 4 << 10  # bytes of a frame decoded first; few, as a decoder copies the bytes after a tiny frame
_READ = 256 << 10  # bytes read at a time
_RATIO = 4  # guessed ratio of text to bytes, for a frame that does not give its text size
_LIBRARIES = "libzstd.so.1", "libzstd.1.dylib", "/opt/homebrew/lib/libzstd.1.dylib", "/usr/local/lib/libzstd.1.dylib"


# ---- codecs -----------------------------------------------------------------------------------------------------


def codec(path: str) -> ModuleType:
    """Return `compression.zstd`, or its backport before Python 3.14; Error names the file if both are missing."""
    try:
        if sys.version_info >= (3, 14):
            from compression import zstd as module
        else:
            from backports import zstd as module
    except ImportError as error:
        raise Error(f"{path}: reading zstd needs backports.zstd, from Python 3.14 on libzstd, found {error}") from None
    return module


@cache
def library() -> _native.Zstd | None:
    """Return libzstd, which decodes a block in one call; None if the system lacks it."""
    for name in _LIBRARIES:
        try:
            return _native.Zstd(name)
        except OSError:
            continue
    return None


# ---- frames -----------------------------------------------------------------------------------------------------


class Frames(NamedTuple):
    """Frames in the order of the file, each with any skippable frames after it. Arrays: there may be millions."""

    begins: "array[int]"  # u64: where each begins in the file, then where the last one ends
    contents: "array[int]"  # u64: bytes of text in each, or `UNKNOWN`; untrusted: a decoder must check them


def walk(file: _native.Map, path: str, *, largest_window: int = LARGEST_WINDOW) -> Frames:
    """Return all frames of a zstd file except skippable ones, by the headers of their blocks.

    Seek tables are not read: walking costs little beside decoding.

    Raises:
      FormatError: a frame is damaged or cannot be read, or claims more text than it can hold.
      EOFError: the file became shorter while it was read.
    """
    begins, contents = array("Q"), array("Q")
    state = array("Q", bytes(8 * _STATE))
    room = [memoryview(bytearray(8 * _ROOM)) for _ in range(2)]
    while state[0] < file.size:
        count, status = _native.zstd_walk(file, state[0] + _STEP, largest_window, state, *room)
        for found, words in zip((begins, contents), room, strict=True):
            found.frombytes(words[: 8 * count])
        if status != _native.ZSTD_OK:
            raise _refused(file, path, len(begins), state, status, largest_window)
    begins.append(file.size)
    return Frames(begins, contents)


def _refused(
    file: _native.Map, path: str, frame: int, state: "array[int]", status: int, largest_window: int
) -> FormatError:
    """Return the error for the frame at which a walk ended."""
    begin, found = state[1], state[-1]
    head = file.read(begin, min(4, file.size - begin)).hex(" ")
    expected = {
        _native.ZSTD_CUT: f"a whole frame, found the end of the file {file.size - begin} bytes into it",
        _native.ZSTD_NOT_FRAME: f"a zstd frame{' or the end of the file' * (begin > 0)}, found bytes {head}",
        _native.ZSTD_RESERVED: "bits and types of blocks that zstd uses, found reserved ones",
        _native.ZSTD_DICTIONARY: f"a frame without a dictionary, found one that needs dictionary {found}",
        _native.ZSTD_WINDOW: f"a window of {largest_window} bytes or less, found one of {found}",
        _native.ZSTD_CONTENT: f"blocks that hold {found} bytes of text, as its header says, found others",
    }[status]
    remedy = "copy the file again"
    if status == _native.ZSTD_WINDOW:
        remedy = f"run: {tool('seekable')} --long {(found - 1).bit_length()} {quoted(path)}"
    return FormatError(f"{path}: frame {frame} (byte {begin}): expected {expected}; {remedy}")


# ---- blocks -----------------------------------------------------------------------------------------------------


class FileBlock(NamedTuple):
    """Where a block lies in the file: one frame, or several small ones."""

    begin: int
    end: int
    content: int  # bytes of text, from the headers of its frames; or `UNKNOWN`
    is_large: bool  # whether it is, or may be, so large that it is decoded in pieces


def blocks_of(frames: Frames) -> Iterator[FileBlock]:
    """Group frames into blocks, each of the fewest frames with `SMALLEST` bytes of text; yield the blocks."""
    with_text = ((begin, size) for begin, size in zip(frames.begins, frames.contents, strict=False) if size)
    first, content, is_known = 0, 0, True
    for (begin, size), (end, _) in pairwise(chain(with_text, [(frames.begins[-1], 0)])):
        likely = _RATIO * (end - begin) if size == UNKNOWN else size
        if content >= SMALLEST or (content and content + likely > LARGEST_BLOCK):
            yield _block(first, begin, content, is_known)
            content, is_known = 0, True
        first = first if content else begin
        content += likely
        is_known &= size != UNKNOWN
    if content:
        yield _block(first, frames.begins[-1], content, is_known)


def _block(begin: int, end: int, content: int, is_known: bool) -> FileBlock:
    return FileBlock(begin, end, content if is_known else UNKNOWN, max(content, end - begin) > LARGEST_BLOCK)


class Stream:
    """Iterate over the text of the block from byte `begin` to `end` of a file, in pieces; BlockError for damage."""

    def __init__(
        self, module: ModuleType, file: _native.Map, begin: int, end: int, largest_window: int = LARGEST_WINDOW
    ) -> None:
        self._module, self._file, self._end, self._largest_window = module, file, end, largest_window
        self.at = begin
        """The next byte of the file to read."""

    def __iter__(self) -> Iterator[bytes]:
        options = {self._module.DecompressionParameter.window_log_max: (self._largest_window - 1).bit_length()}
        data, given = memoryview(b""), 0  # bytes read last, and how many of them a decoder got
        decoder: Any = None
        is_open = False  # inside a frame
        while True:
            if decoder is None or decoder.eof:
                given -= len(decoder.unused_data) if decoder else 0
                decoder, step = self._module.ZstdDecompressor(None, options), _FIRST
            if given == len(data) and decoder.needs_input:
                data, given = memoryview(self._file.read(self.at, min(_READ, self._end - self.at))), 0
                self.at += len(data)
                if not data and is_open:
                    raise BlockError("a frame is truncated")
                if not data:
                    return
            begin = given
            if decoder.needs_input:
                given, step = min(begin + step, len(data)), min(2 * step, _READ)
            try:
                piece: bytes = decoder.decompress(data[begin:given], _PIECE)
            except self._module.ZstdError as error:
                check_memory(error)
                raise BlockError(str(error).rpartition(": ")[2].lower()) from None
            is_open = not decoder.eof
            if piece:
                yield piece
