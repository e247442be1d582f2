"""Compressed files, as their writers write them."""

import random
import struct

from mmapds.compression.codec import zstd

codec = zstd("tests")
CHECKSUM = {codec.CompressionParameter.checksum_flag: 1}
NO_SIZE = {codec.CompressionParameter.content_size_flag: 0}


def skippable(content=b"left by another tool", number=3):
    return struct.pack("<II", 0x184D2A50 + number, len(content)) + content


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
    found = frames(data, 3000)
    return b"".join(skippable(struct.pack("<I", len(frame)), 0) + frame for frame in found)


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


ZSTD = {"one": one_frame, "streamed": streamed, "many": many_frames, "pzstd": pzstd, "mixed": mixed}
"""Writers of .zst files, by name."""
WRITERS = {name: (".zst", write) for name, write in ZSTD.items()}
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
