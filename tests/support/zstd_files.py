"""Files of zstd: frames said byte by byte, and a walk over them in the plainest way."""

import io
import struct

from mmapds.compression.zstd import codec

zstd = codec("tests")
"""What writes frames: `compression.zstd`, or its backport before Python 3.14."""

UNKNOWN = 2**64 - 1
RAW, RUN, COMPRESSED, RESERVED = range(4)


def block(kind, size, content=b"", *, last=True):
    """A block: its header says `size`, whatever its content."""
    return struct.pack("<I", last | kind << 1 | size << 3)[:3] + content


def raw(text, *, last=True):
    return block(RAW, len(text), text, last=last)


def frame(*blocks, size=None, window=None, dictionary=0, checksum=b""):
    """A frame of blocks.

    Args:
      size: bytes of text, by the header; None to leave that out.
      window: the byte that says how large the window is; None for that of a frame with its size, without such a byte.
    """
    is_single = window is None and size is not None
    window = 0 if window is None else window
    widths = [1 if is_single else 0, 2, 4, 8]
    flag = 0 if size is None or (is_single and size < 256) else 1 if 256 <= size < 65792 else 2 if size < 2**32 else 3
    descriptor = flag << 6 | is_single << 5 | bool(checksum) << 2 | 3 * bool(dictionary)
    header = bytes([descriptor]) + (b"" if is_single else bytes([window]))
    header += struct.pack("<I", dictionary) if dictionary else b""
    header += (0 if size is None else size - 256 * (flag == 1)).to_bytes(widths[flag], "little")
    return b"\x28\xb5\x2f\xfd" + header + b"".join(blocks) + checksum


def skippable(content=b"left by another tool", number=3):
    return struct.pack("<II", 0x184D2A50 + number, len(content)) + content


def plain_walk(data, largest_window=128 << 20):
    """The frames: [(begin, bytes of text or UNKNOWN)]; and where the first begins that is wrong, None without one."""
    file, found = io.BytesIO(data), []
    while (begin := file.tell()) < len(data):
        try:
            magic = number(file, 4)
            if magic == 0xFD2FB528:
                found.append((begin, plain_frame(file, largest_window)))
            elif 0x184D2A50 <= magic <= 0x184D2A5F:
                passed(file, number(file, 4))
            else:
                raise EOFError
        except EOFError:
            return found, begin
    return found, None


def plain_frame(file, largest_window):
    """The bytes of text that a frame has by its header; EOFError if it is wrong."""
    descriptor = number(file, 1)
    is_single = descriptor & 32
    byte = 0 if is_single else number(file, 1)
    window = (8 + (byte & 7)) << (7 + (byte >> 3))
    dictionary = number(file, [0, 1, 2, 4][descriptor & 3])
    width = [1 if is_single else 0, 2, 4, 8][descriptor >> 6]
    text = number(file, width) + 256 * (width == 2) if width else UNKNOWN
    room, last = 0, False
    while not last:
        header = number(file, 3)
        last, kind, size = header & 1, header >> 1 & 3, header >> 3
        passed(file, 1 if kind == RUN else size)
        room += 128 << 10 if kind == COMPRESSED else size if kind != RESERVED else 2**70
    passed(file, descriptor & 4)
    fits = text == UNKNOWN or (text <= room if text else room == 0)
    if descriptor & 8 or dictionary or (text if is_single else window) > largest_window or not fits or room >= 2**70:
        raise EOFError
    return text


def number(file, width):
    return int.from_bytes(passed(file, width), "little")


def passed(file, size):
    found = file.read(size)
    if len(found) < size:
        raise EOFError
    return found
