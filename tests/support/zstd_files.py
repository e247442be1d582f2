"""Files of zstd: frames said byte by byte, and a walk over them in the plainest way."""

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


def frame(*blocks, size=None, window=None, dictionary=0, checksum=b"", reserved=False):
    """A frame of blocks.

    Args:
      size: bytes of text, by the header; None to leave that out.
      window: the byte that says how large the window is; None for that of a frame with its size, without such a byte.
    """
    is_single = window is None and size is not None
    window = 0 if window is None else window
    widths = [1 if is_single else 0, 2, 4, 8]
    flag = 0 if size is None or (is_single and size < 256) else 1 if 256 <= size < 65792 else 2 if size < 2**32 else 3
    descriptor = flag << 6 | is_single << 5 | bool(reserved) << 3 | bool(checksum) << 2 | 3 * bool(dictionary)
    header = bytes([descriptor]) + (b"" if is_single else bytes([window]))
    header += struct.pack("<I", dictionary) if dictionary else b""
    header += (0 if size is None else size - 256 * (flag == 1)).to_bytes(widths[flag], "little")
    return b"\x28\xb5\x2f\xfd" + header + b"".join(blocks) + checksum


def skippable(content, number=0):
    return struct.pack("<II", 0x184D2A50 + number, len(content)) + content


def seek_table(entries, *, flags=None, magic=0x8F92EAB1, number=14):
    """A seek table of (bytes in the file, bytes of text[, checksum]), or one that lies."""
    content = b"".join(struct.pack(f"<{len(entry)}I", *entry) for entry in entries)
    flags = (0x80 if entries and len(entries[0]) == 3 else 0) if flags is None else flags
    content += struct.pack("<IBI", len(entries), flags, magic)
    return skippable(content, number)


def entries_of(data):
    """The entries of the seek table with checksums that ends a file: (bytes in the file, bytes of text, checksum)."""
    count, flags, magic = struct.unpack("<IBI", data[-9:])
    assert (flags, magic) == (0x80, 0x8F92EAB1)
    begin = len(data) - 9 - 12 * count
    assert struct.unpack("<II", data[begin - 8 : begin]) == (0x184D2A5E, 12 * count + 9)
    return list(struct.iter_unpack("<III", data[begin:-9]))


def plain_walk(data, largest_window=128 << 20):
    """The frames: [(begin, bytes of text or UNKNOWN)]; and where the first begins that is wrong, None without one."""
    at, found = 0, []
    while at < len(data):
        begin = at
        magic = data[at : at + 4]
        if len(magic) == 4 and 0x184D2A50 <= int.from_bytes(magic, "little") <= 0x184D2A5F:
            size = data[at + 4 : at + 8]
            at += 8 + int.from_bytes(size, "little")
            if len(size) < 4 or at > len(data):
                return found, begin
            continue
        end_and_text = plain_frame(data, at, largest_window) if magic == b"\x28\xb5\x2f\xfd" else None
        if end_and_text is None:
            return found, begin
        found.append((begin, end_and_text[1]))
        at = end_and_text[0]
    return found, None


def plain_frame(data, at, largest_window):
    """Where a frame ends, and the bytes of text that its header says; None if it is wrong."""
    try:
        descriptor = data[at + 4]
        is_single = descriptor & 32
        at += 5
        window = 0
        if not is_single:
            exponent, mantissa = data[at] >> 3, data[at] & 7
            window = 2 ** (10 + exponent) * (8 + mantissa) // 8
            at += 1
        width = [0, 1, 2, 4][descriptor & 3]
        dictionary = data[at : at + width]
        at += width
        width = [1 if is_single else 0, 2, 4, 8][descriptor >> 6]
        size = data[at : at + width]
        at += width
        if at > len(data) or descriptor & 8 or any(dictionary):
            return None
        text = int.from_bytes(size, "little") + (256 if width == 2 else 0) if width else UNKNOWN
        if (text if is_single else window) > largest_window:
            return None
        room, last = 0, False
        while not last:
            header = data[at] | data[at + 1] << 8 | data[at + 2] << 16
            last, kind, size = header & 1, header >> 1 & 3, header >> 3
            if kind == RESERVED:
                return None
            at += 3 + (1 if kind == RUN else size)
            room += 128 << 10 if kind == COMPRESSED else size
        at += 4 if descriptor & 4 else 0
    except IndexError:
        return None
    fits = text == UNKNOWN or (text <= room if text else room == 0)
    return (at, text) if fits and at <= len(data) else None
