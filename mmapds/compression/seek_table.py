"""Seek tables of zstd's seekable format: a last skippable frame that says where the other frames of a file are.

It is skippable frame 14, which all decoders pass over. It has, for each frame before it, its bytes in the file, its
bytes of text, and where a flag says so a checksum of its text, the lower half of an XXH64; then a footer: how many
frames there are, the flag, and a magic number. All are little-endian and of 32 bits but for the byte of the flag. The
format is that of contrib/seekable_format in zstd's own repository, version 0.1.0.
"""

import struct
from array import array
from itertools import accumulate

from .. import _native
from .frames import Frames

MOST_FRAMES = 0x8000000
"""In a table."""
LARGEST_FRAME = 2**32 - 1
"""Bytes of a frame in a table, in the file and as text."""

_HEADER, _FOOTER = struct.Struct("<II"), struct.Struct("<IBI")
_SKIPPABLE, _MAGIC = 0x184D2A5E, 0x8F92EAB1
_HAS_CHECKSUMS, _RESERVED = 0x80, 0x7C  # bits of the flag's byte


def read_table(file: _native.Map) -> Frames | None:
    """Return what a seek table says; None if there is none, or none that can be used.

    A table that does not cover the file before it, to the byte, cannot be used, and its frames must be walked: where
    files were joined, the last one's table covers that one alone, and sizes of 4 GiB and more do not fit. Whether the
    table is right about each frame, `find_frames` says. It may have entries without text, such as skippable frames.

    Raises:
      EOFError: the file became shorter while it was read.
    """
    around = _HEADER.size + _FOOTER.size
    if file.size < around:
        return None
    count, flags, magic = _FOOTER.unpack(file.read(file.size - _FOOTER.size, _FOOTER.size))
    width = 3 if flags & _HAS_CHECKSUMS else 2
    size = 4 * width * count
    begin = file.size - size - around
    if magic != _MAGIC or flags & _RESERVED or count > MOST_FRAMES or begin < 0:
        return None
    if _HEADER.unpack(file.read(begin, _HEADER.size)) != (_SKIPPABLE, size + _FOOTER.size):
        return None
    words = array("I", file.read(begin + _HEADER.size, size))
    begins, contents = array("Q", accumulate(words[::width], initial=0)), array("Q", words[1::width])
    return Frames(begins, contents, words[2::width] if width == 3 else None) if begins[-1] == begin else None


def table_bytes(sizes: "array[int]", contents: "array[int]", checksums: "array[int]") -> bytes:
    """Return a seek table, which ends a file.

    Args:
      sizes: bytes of each frame in the file, u32; at most `MOST_FRAMES` of them.
      contents: bytes of text in each, u32.
      checksums: the lower half of the XXH64 of each one's text, u32.
    """
    count = len(sizes)
    words = array("I", bytes(12 * count))
    words[::3], words[1::3], words[2::3] = sizes, contents, checksums
    header = _HEADER.pack(_SKIPPABLE, 12 * count + _FOOTER.size)
    return header + words.tobytes() + _FOOTER.pack(count, _HAS_CHECKSUMS, _MAGIC)
