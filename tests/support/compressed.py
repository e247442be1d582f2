"""Compressed files, as their writers write them."""

import gzip
import random
import struct
import zlib

from isal import isal_zlib

from tests.support.zstd_files import skippable
from tests.support.zstd_files import zstd as codec

CHECKSUM = {codec.CompressionParameter.checksum_flag: 1}
NO_SIZE = {codec.CompressionParameter.content_size_flag: 0}


def frames(data, size, options=CHECKSUM):
    """Frames of `size` bytes of content each, one at least."""
    return [codec.compress(data[at : at + size], options=options) for at in range(0, max(len(data), 1), size)]


def one_frame(data):
    """What `zstd` writes: one frame, with its size."""
    return codec.compress(data, options=CHECKSUM)


def streamed(data):
    """What fsspec and others write: one frame, without its size."""
    compressor = codec.ZstdCompressor()
    return compressor.compress(data) + compressor.flush()


def many_frames(data):
    return b"".join(frames(data, 1000))


def pzstd(data):
    """Each frame behind a skippable one, which says how large it is."""
    return b"".join(skippable(struct.pack("<I", len(frame)), 0) + frame for frame in frames(data, 3000))


def mixed(data):
    """Frames of all sizes, with and without sizes and checksums, some empty, and skippable ones between and behind."""
    random_ = random.Random(len(data))
    out, at = [skippable()], 0
    while at < len(data):
        size = random_.choice([1, 7, 300, 70_000])
        out.append(codec.compress(data[at : at + size], options=random_.choice([None, CHECKSUM, NO_SIZE])))
        out.append(random_.choice([b"", codec.compress(b""), skippable(b""), skippable()]))
        at += size
    return b"".join([*out, codec.compress(b"")])


def one_block(data):
    """What igzip writes at level 0: one member of one block of deflate."""
    return isal_zlib.compress(data, 0, 31)


def many_members(data):
    return b"".join(gzip.compress(data[at : at + 3000]) for at in range(0, max(len(data), 1), 3000)) + bytes(100)


def bgzf(data, size=5000):
    """What bgzip writes: members with their size in an extra field, and an empty one behind."""
    out = []
    for at in range(0, len(data) + size, size):
        content = data[at : at + size]
        body = zlib.compress(content, 6, -15)
        head = b"\x1f\x8b\x08\x04" + bytes(5) + b"\xff\x06\0BC\2\0" + struct.pack("<H", len(body) + 25)
        out.append(head + body + struct.pack("<II", zlib.crc32(content), len(content)))
    return b"".join(out)


def member_a_record(data):
    return b"".join(map(gzip.compress, data.splitlines(keepends=True))) or gzip.compress(b"")


ZSTD = {"one": one_frame, "streamed": streamed, "many": many_frames, "pzstd": pzstd, "mixed": mixed}
GZIP = {"gzip": gzip.compress, "members": many_members, "bgzf": bgzf, "records": member_a_record}
WRITERS = {name: (".zst", write) for name, write in ZSTD.items()}
WRITERS |= {name: (".bgz" if name == "bgzf" else ".gz", write) for name, write in GZIP.items()}
"""By name: what the files' names end in, and the writer."""


def text(records, seed=0, *, longest=400):
    """Lines of JSON that compress as text does."""
    random_ = random.Random(seed)
    words = ["".join(random_.choices("abcdefgh", k=random_.randint(2, 9))) for _ in range(500)]
    lines = []
    for number in range(records):
        said = " ".join(random_.choices(words, k=random_.randint(0, longest // 6)))
        lines.append(b'{"id":%d,"text":"%s","n":[%d,2]}\n' % (number, said.encode(), number % 7))
    return b"".join(lines)
