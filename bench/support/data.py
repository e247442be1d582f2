"""Data that is made once, and kept for the next run."""

import json
import os
import random
import struct
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from xxhash import xxh3_64

from mmapds.index.write import BoundsWriter
from mmapds.storage.sections import IndexedSource
from mmapds.storage.writer import IndexWriter

DATA = Path(os.environ.get("MMAPDS_BENCH_DIR", "/tmp/mmapds-bench"))
GB = 10**9


@contextmanager
def once(path):
    """Yield a file to write `path` in, which appears when the block ends."""
    DATA.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    with open(part, "wb") as file:
        yield file
    part.rename(path)


def drop_cached(*paths):
    """Put files out of the page cache; the kernel keeps what is mapped, so open after this."""
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def jsonl(size: int) -> Path:
    """A file of at least `size` bytes of JSON records of 306 bytes on average."""
    path = DATA / f"{size}.jsonl"
    if path.exists():
        return path
    generator = random.Random(0)
    letters = "abcdefghijklmnopqrstuvwxyz     "
    lines = []
    for number in range(20_000):
        text = "".join(generator.choices(letters, k=generator.randint(40, 420)))
        length = generator.randint(50, 2000)
        record = {"id": number, "source": f"corpus/{number:05}.wav", "source_len": length, "target": text}
        lines.append(json.dumps(record).encode() + b"\n")
    with once(path) as file:
        while file.tell() < size:
            generator.shuffle(lines)
            file.write(b"".join(lines))
    return path


def features(count):
    """Frames of 80 numbers, as many as 2 to 16 seconds of speech have."""
    generator = np.random.default_rng(0)
    return [generator.random((int(n), 80), np.float32) for n in generator.integers(200, 1601, count)]


def sparse_array_file(path, records, frames):
    """Write an array file of `records` records of (frames, 80) float32 and an integer, only their tables on the disk.

    Made by hand, as docs/arrays.md says, because a writer writes all bytes. The checksum of the records is not theirs.
    """
    sections = {}
    stride = 64 + frames * 80 * 4
    with once(path) as file:

        def section(name, dtype, data, width):
            file.seek(-(-file.tell() // 64) * 64)
            shape, digest = [len(data) // width], xxh3_64(data).hexdigest()
            sections[name] = {"dtype": dtype, "shape": shape, "offset": file.tell(), "xxh3": digest}
            file.write(data)

        text = json.dumps({"schema": {"feats": ["float32", [None, 80]], "id": "int64"}, "columns": {}}).encode()
        file.seek(64)
        section("schema", "|u1", struct.pack("<QQ", len(text), xxh3_64(text).intdigest()) + text, 1)
        section("records", "|u1", b"", 1)
        first = file.tell()
        sections["records"]["shape"] = [records * stride]
        for i in range(records):
            file.seek(first + i * stride)
            file.write(struct.pack("<QQq", stride, frames, i))
        file.seek(first + records * stride)
        starts = first + np.arange(records, dtype=np.uint64) * np.uint64(stride)
        section("offsets", "<u8", starts.tobytes(), 8)
        for column in ("feats_length", "id"):
            section(f"column:{column}", "<u8", bytes(8 * records), 8)
        text = json.dumps({"sections": sections}).encode()
        offset = file.tell()
        file.write(text)
        magic = b"\x89MMA\r\n\x1a\n"
        head = struct.pack("<8sIIQQQQQ", magic, 1, 64, records, offset, len(text), offset + len(text), 0)
        file.seek(0)
        file.write(head + struct.pack("<Q", xxh3_64(head + text).intdigest()))


def log_normal(n, seed=0):
    """Lengths as speech and text have them: mean of log 5.5, sd 0.8, clipped to 1..2048."""
    lengths = np.empty(n, np.uint32)
    rng = np.random.default_rng(seed)
    for begin in range(0, n, 10**7):
        part = lengths[begin : begin + 10**7]
        part[:] = np.clip(np.exp(rng.normal(5.5, 0.8, len(part))), 1, 2048)
    return lengths


def sparse_jsonl(path, records, size):
    """Make a sparse source of `records` records of `size` bytes with its index, unless it is there; return its path."""
    if not path.exists():
        DATA.mkdir(parents=True, exist_ok=True)
        path.touch()
        os.truncate(path, records * size)
        with IndexWriter(f"{path}.mmx") as writer:
            bounds = BoundsWriter(writer)
            for begin in range(0, records, 10**5):
                bounds.append(memoryview(np.arange(begin, begin + 10**5, dtype=np.uint64) * size))
            (width, *_), whole = bounds.finish(records * size), records * size
            time_ns = path.stat().st_mtime_ns
            source = IndexedSource(path.name, whole, time_ns, "", records, records, size, size, 0, 0, width=width)
            writer.commit({"format": "jsonl", "sources": [source.describe()]}, records)
    return str(path)
