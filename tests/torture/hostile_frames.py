"""Compressed files that mean harm: frames of zstd beside a plain walk, seek tables that lie, recompressing, and reading
records through an index, also one whose tables of blocks are forged."""

import gzip
import itertools
import shutil
import struct
import tempfile
import zlib
from functools import partial
from pathlib import Path
from unittest.mock import patch

import numpy as np

import mmapds
from mmapds import _native
from mmapds.compression import zstd as frames_of_zstd
from mmapds.compression.zstd import LARGEST_WINDOW, UNKNOWN, library, walk
from mmapds.storage.index_file import Index
from mmapds.storage.sections import BLOCK_BEGINS, BLOCK_BOUNDS
from tests.support import oracle
from tests.support.index_file import forge_section
from tests.support.torture import is_refused, repeat
from tests.support.zstd_files import frame, plain_walk, raw, skippable, zstd
from tests.torture.hostile_sources import damaged

FILES = 40
"""In a case."""
RECOMPRESSED = 5
"""Of these, as that takes longer; and as many are read through an index."""
SMALLEST = 64
"""Bytes of content that a block has at least, so that small files have several."""


def text(random):
    return b"".join(b'{"n": %d}\n' % random.randrange(10**6) for _ in range(random.randrange(60)))


def seek_table(entries, *, flags=None):
    """A seek table of (bytes in the file, bytes of text[, checksum]), or one that lies."""
    content = b"".join(struct.pack(f"<{len(entry)}I", *entry) for entry in entries)
    flags = (0x80 if entries and len(entries[0]) == 3 else 0) if flags is None else flags
    content += struct.pack("<IBI", len(entries), flags, 0x8F92EAB1)
    return skippable(content, 14)


def part(random):
    """What a file is made of, and its bytes of text."""
    content = text(random)
    writer = zstd.ZstdCompressor(options={zstd.CompressionParameter.checksum_flag: random.random() < 0.5})
    made = {
        "one": lambda: zstd.compress(content, random.choice([1, 3, 9])),
        "streamed": lambda: writer.compress(content) + writer.flush(),
        "said": lambda: frame(raw(content), size=random.choice([None, len(content), 7]), window=random.randrange(256)),
        "skippable": lambda: skippable(content[:50], random.randrange(16)),
    }
    kind = random.choice(list(made))
    return made[kind](), 0 if kind == "skippable" else len(content)


def compressed(random):
    """A file of zstd, or of gzip, perhaps with a seek table, and perhaps damaged."""
    if random.random() < 0.2:
        data = b"".join(gzip.compress(text(random), random.randrange(10)) for _ in range(random.randrange(1, 4)))
        return damaged(random, data) if random.random() < 0.7 else data
    parts = [part(random) for _ in range(random.randrange(5))]
    data = b"".join(each for each, _ in parts)
    if random.random() < 0.6:
        entries = [(len(each), size) for each, size in parts]
        if random.random() < 0.4 and entries:
            entries[random.randrange(len(entries))] = (random.choice([0, 2**32 - 1]), random.choice([0, 1, 2**31]))
        data += seek_table(entries, flags=random.choice([None, None, 0x80, 0x04]))
    return damaged(random, data) if random.random() < 0.5 else data


def decoded(data):
    """The text of a file by the codecs themselves; None if they refuse it."""
    try:
        return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else zstd.decompress(data)
    except (zstd.ZstdError, OSError, EOFError, zlib.error):
        return None


def check_frames(file, path, data):
    """Walk a file: what a plain walk finds, and no frame whose text is not as much as its header says."""
    expected, wrong = plain_walk(data)
    if is_refused(lambda: walk(file, path)):
        assert wrong is not None
        return
    frames = walk(file, path)
    assert wrong is None
    assert list(frames.begins) == [begin for begin, _ in expected] + [len(data)]
    assert list(frames.contents) == [size for _, size in expected]
    for (begin, end), size in zip(itertools.pairwise(frames.begins), frames.contents, strict=True):
        content = decoded(data[begin:end])
        assert content is None or size in (UNKNOWN, len(content))


def check_recompressed(_, path, data):
    """Recompress a file: what it makes has the text that the codecs find, or it is refused."""
    out = f"{path}.out.zst"
    if is_refused(lambda: mmapds.seekable(path, out, frame=4096, workers=1, force=True)):
        return
    expected = data if data[:2] != b"\x1f\x8b" and not is_zstd(data) else decoded(data)
    assert expected is not None
    assert zstd.decompress(Path(out).read_bytes()) == expected


def check_records(random, file, path, data):
    """Index a file and read it: its records are the lines that the codecs find, or it is refused."""
    source = f"{path}.jsonl.zst"
    Path(source).write_bytes(data)
    if is_refused(lambda: mmapds.build(source, force=True, format="jsonl", workers=random.choice([1, 2]))):
        return
    content = data if data[:2] != b"\x1f\x8b" and not is_zstd(data) else decoded(data)
    assert content is not None
    places = oracle.records(content)
    found = read(source, range(len(places)))
    other = content if content is data else text_by_library(file, content)
    ends = [begin for begin, _ in [*places[1:], (len(content), b"")]]  # a record has the empty lines that follow it
    for (begin, record), end, each in zip(places, ends[: len(places)], found, strict=True):
        assert each in (record, payload(other, begin, end))
    if content is not data and places:
        check_forged(random, source, [record for _, record in places])


def text_by_library(file, content):
    """The text that zstd's own library finds where the codec finds `content`; that where there is none, or it refuses.

    A damaged frame without a checksum may be one that no version refuses, and that 1.5.4 and 1.5.7 decode differently.
    """
    found = library()
    if found is None:
        return content
    block = found.decode(_native.BlockMemory(), file, 0, file.size, len(content), LARGEST_WINDOW)
    return content if block is None else bytes(block)


def payload(content, begin, end):
    """What a record is whose line lies there, if its line end is damaged, too: white space is the end alone."""
    line = content[begin:end]
    kept = line.rstrip(b" \t\r\n")
    white = line[len(kept) :]
    line = kept + white.partition(b"\n")[0]
    return line[:-1] if b"\n" in white and line.endswith(b"\r") else line


def check_forged(random, source, expected):
    """Read some records after numbers of a table of blocks were changed: some come, or they are refused; no crash."""
    name = random.choice([BLOCK_BEGINS, BLOCK_BOUNDS])
    index = Index(f"{source}.mmx")
    numbers = np.frombuffer(index.section(name), index.sections[name].dtype).copy()
    for _ in range(random.randrange(1, 4)):
        largest = int(numbers.max()) + 2 if random.random() < 0.7 else np.iinfo(numbers.dtype).max
        numbers[random.randrange(len(numbers))] = random.randrange(largest)
    forge_section(f"{source}.mmx", name, numbers)
    rows = [random.randrange(len(expected)) for _ in range(5)]
    found = []
    if not is_refused(lambda: found.extend(read(source, rows))):
        assert len(found) == len(rows)


def read(source, rows):
    """Read records of an index together, and again one by one, with room for few blocks."""
    ds = mmapds.open(source, decode="bytes", block_cache=1 << 12)
    found = list(ds.take(rows))
    assert [ds[row] for row in rows[:3]] == found[:3]
    return found


def is_zstd(data):
    return data[:4] == b"\x28\xb5\x2f\xfd" or (data[1:4] == b"\x2a\x4d\x18" and data[0] >> 4 == 5)


def one(random):
    folder = Path(tempfile.mkdtemp(prefix="mmapds-torture-"))
    try:
        with patch.object(frames_of_zstd, "SMALLEST", SMALLEST):
            check_files(random, folder)
    finally:
        shutil.rmtree(folder)


def check_files(random, folder):
    for number in range(FILES):
        data = compressed(random)
        path = folder / f"{number}.zst"
        path.write_bytes(data)
        checks = [check_frames]
        if number < RECOMPRESSED:
            checks += [check_recompressed, partial(check_records, random)]
        for check in checks:
            try:
                check(_native.Map(str(path)), str(path), data)
            except Exception as error:
                raise AssertionError(f"{check}: {data!r}: {error!r}") from error


def run(seconds, seed):
    """Read such files until the time is over; see tests/support/torture.py."""
    return f"{FILES * repeat(one, seconds, seed):,} hostile compressed files: refused, or what a plain walk finds"
