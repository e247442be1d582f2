"""The frames of a zstd file: where they begin, and how much text they have. Nothing is decoded for that.

A file is frames one after another, by one writer or several. Skippable frames, in which tools keep what is not text,
may lie between them.
"""

from array import array

from .. import _native
from ..errors import FormatError, quoted, tool
from .frames import UNKNOWN, Frames
from .parts import COPY, kept
from .seek_table import read_table

LARGEST_WINDOW = 128 << 20
"""Bytes of text that a decoder keeps at most, by default: as `zstd` without `--long`."""

_LARGEST_WINDOW_LOG = 31  # of any decoder
_ROOM = 1 << 14  # frames that a piece of a walk finds at most
_STEP = 256 << 20  # bytes that it goes on at most: between two of them, signals are handled
_STATE = 7  # words


def find_frames(file: _native.Map, path: str, *, largest_window: int = LARGEST_WINDOW) -> Frames:
    """Return the frames of a zstd file that have text, and what a seek table adds: checksums, and sizes of text.

    All frames are walked, table or not, which costs little beside decoding them. A table that cannot be used is passed
    over, see `read_table`; one that contradicts the frames is refused.

    Args:
      file: mapped.
      path: its name in messages.
      largest_window: bytes of text that a decoder may keep.
    Raises:
      FormatError: there is a frame that cannot be read, something that is not a frame, or a seek table that lies.
      EOFError: the file became shorter while it was read.
    """
    frames, table = walk(file, path, largest_window=largest_window), read_table(file)
    return (frames if table is None else _with_table(path, frames, table)).with_text()


def walk(file: _native.Map, path: str, *, largest_window: int = LARGEST_WINDOW) -> Frames:
    """Return all frames of a zstd file but skippable ones. That reads the header of each of their blocks.

    A header that claims more text than its blocks can hold is refused, and so is a frame that cannot be decoded for
    want of memory or of a dictionary. The arguments and errors are those of `find_frames`.
    """
    begins, contents = array("Q"), array("Q")
    state = array("Q", bytes(8 * _STATE))
    room = [memoryview(bytearray(8 * _ROOM)) for _ in range(2)]
    while state[0] < file.size:
        count, status = _native.zstd_walk(file, state[0] + _STEP, largest_window, state, *room)
        for found, words in zip((begins, contents), room, strict=True):
            found.frombytes(words[: 8 * count])
        if status != _native.ZSTD_OK:
            raise _error(file, path, len(begins), state, status, largest_window)
    begins.append(file.size)
    return Frames(begins, contents)


def _error(
    file: _native.Map, path: str, frame: int, state: "array[int]", status: int, largest_window: int
) -> FormatError:
    begin, found = state[1], state[-1]
    expected, remedy = _expected(file, begin, status, found, largest_window), COPY
    if status in (_native.ZSTD_CUT, _native.ZSTD_NOT_FRAME) and frame:
        remedy = f"{kept(path, begin)} (or {COPY})"
    elif status == _native.ZSTD_DICTIONARY:
        remedy = f"decompress it with zstd -dk -D DICTIONARY {quoted(path)}"
    elif status == _native.ZSTD_WINDOW and (log := (found - 1).bit_length()) <= _LARGEST_WINDOW_LOG:
        remedy = f"run: {tool('seekable')} --long {log} {quoted(path)}"
    return FormatError(f"{path}: frame {frame} (byte {begin}): {expected}; {remedy}")


def _expected(file: _native.Map, begin: int, status: int, found: int, largest_window: int) -> str:
    """Return what was expected of a frame, and what was found."""
    if status == _native.ZSTD_CUT:
        return f"expected a whole frame, found the end of the file {file.size - begin} bytes into it"
    if status == _native.ZSTD_NOT_FRAME:
        head = file.read(begin, min(4, file.size - begin))
        return f"expected a zstd frame{' or the end of the file' * (begin > 0)}, found bytes {head.hex(' ')}"
    if status == _native.ZSTD_RESERVED:
        return "expected bits and types of blocks that zstd uses, found reserved ones"
    if status == _native.ZSTD_DICTIONARY:
        return f"expected a frame without a dictionary, found one that needs dictionary {found}"
    if status == _native.ZSTD_WINDOW:
        return f"expected a window of {largest_window} bytes or less, found one of {found}"
    if status == _native.ZSTD_CONTENT:
        return f"expected blocks that hold {found} bytes of text, as its header says, found others"
    raise AssertionError(f"expected a status that is one of ZSTD_*, found {status}")


def _with_table(path: str, frames: Frames, table: Frames) -> Frames:
    """Return frames with what a seek table says of them. It covers the file, so frames that it lacks have no text.

    Raises:
      FormatError: it contradicts them.
    """
    import numpy as np  # start-up time: few files have a seek table

    begins, known = np.frombuffer(frames.begins, "<u8"), np.frombuffer(frames.contents, "<u8")
    sizes = np.frombuffer(table.contents, "<u8")
    has_text = sizes > 0
    entries, sizes = np.frombuffer(table.begins, "<u8")[:-1][has_text], sizes[has_text]
    numbers = np.searchsorted(begins[:-1], entries)
    if (begins[numbers] != entries).any():
        entry = entries[np.argmax(begins[numbers] != entries)]
        raise _lie(path, table, f"seek table: expected where frames begin, found byte {entry}")
    contents = np.zeros_like(known)
    contents[numbers] = sizes
    if (wrong := (known != UNKNOWN) & (known != contents)).any():
        number = int(np.argmax(wrong))
        place = f"frame {number} (byte {begins[number]})"
        found = f"{contents[number]} in the seek table"
        raise _lie(path, table, f"{place}: expected {known[number]} bytes of text, as its header says, found {found}")
    checksums = None
    if table.checksums is not None:
        sums = np.zeros(len(known), "<u4")
        sums[numbers] = np.frombuffer(table.checksums, "<u4")[has_text]
        checksums = array("I", sums.tobytes())
    return Frames(frames.begins, array("Q", contents.tobytes()), checksums)


def _lie(path: str, table: Frames, found: str) -> FormatError:
    return FormatError(f"{path}: {found}; {kept(path, table.begins[-1])}")
