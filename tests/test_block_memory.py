"""Decoded blocks in memory of their own, and zstd's own library, which decodes into it."""

import gzip
import os
import zlib
from types import SimpleNamespace

import pytest

import mmapds
from mmapds import _native
from mmapds.compression import gzip as gzip_codec
from mmapds.compression import zstd
from mmapds.compression.blocks import Edges
from mmapds.compression.reader import BlockCache, BlockReader
from mmapds.storage.index_file import Index
from mmapds.storage.sections import LARGEST_BLOCK
from tests.support.compressed import WRITERS, InMemory, codec, frames, one_frame, skippable, text

PAGE = os.sysconf("SC_PAGESIZE")
DATA = text(3000)
ZSTD = [name for name, (suffix, _) in WRITERS.items() if suffix == ".zst"]
LARGEST_WINDOW = 128 << 20

has_library = pytest.mark.skipif(zstd.library() is None, reason="the system has no libzstd")


@pytest.fixture(params=["library", "codec"])
def engine(request, monkeypatch):
    """What decodes blocks of zstd: the system's library, or Python's codec."""
    if request.param == "codec":
        monkeypatch.setattr(zstd, "library", lambda: None)
    elif zstd.library() is None:
        pytest.skip("the system has no libzstd")
    return request.param


def opened(write, data, **options):
    path = write(data, "a.jsonl.zst")
    mmapds.build(path)
    return mmapds.open(path, decode="bytes", **options)


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("writer", ZSTD)
def test_both_engines_read_the_records_of_the_plain_file(write, writer):
    lines = DATA.splitlines()
    ds = opened(write, WRITERS[writer][1](DATA))
    rows = list(range(0, 3000, 7))[::-1]
    assert [ds[row] for row in range(5)] == lines[:5]
    if Index(ds.indexes[0]).sources[0].compression.largest <= LARGEST_BLOCK:
        assert ds.take(rows) == [lines[row] for row in rows]
        assert ds.take([7, 7, 2999, 0]) == [lines[7], lines[7], lines[2999], lines[0]]
    assert ds.take(range(3000)) == lines


@has_library
def test_the_codec_is_not_asked_where_the_library_decodes(write, monkeypatch):
    ds = opened(write, b"".join(frames(DATA, 4000)))
    monkeypatch.setattr(BlockReader, "_decoding", lambda *_: pytest.fail("asked"))
    assert ds.take([2999, 0, 1500]) == [DATA.splitlines()[row] for row in (2999, 0, 1500)]


def damaged_copies(write, data, step):
    """A dataset whose file is damaged at one byte after another; its time stays."""
    ds = opened(write, data)
    path, found = ds.sources[0], os.stat(ds.sources[0])
    for at in range(0, len(data), step):
        with open(path, "r+b") as file:
            file.seek(at)
            file.write(bytes([data[at] ^ 0x55]))
        os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))
        yield at, mmapds.open(path, decode="bytes")
        with open(path, "r+b") as file:
            file.seek(at)
            file.write(data[at : at + 1])


def test_what_is_damaged_is_an_error_in_the_same_words(write, monkeypatch):
    data = skippable() + b"".join(frames(DATA[:200_000], 1000))

    def read(ds):
        try:
            return ds.take(range(len(ds)))
        except mmapds.Error as error:
            return str(error)

    found = [read(ds) for _, ds in damaged_copies(write, data, 701)]
    monkeypatch.setattr(zstd, "library", lambda: None)
    assert [read(ds) for _, ds in damaged_copies(write, data, 701)] == found
    assert sum("not zstd: " in each for each in found) > len(found) // 2


# ---- the library ----------------------------------------------------------------------------------------------------


def decode(write, data, size, max_window=LARGEST_WINDOW):
    file = _native.Map(str(write(data, "a.zst")))
    block = zstd.library().decode(_native.BlockMemory(), file, 0, len(data), size, max_window)
    return None if block is None else bytes(block)


@has_library
def test_frames_one_after_another_are_one_block(write):
    parts = frames(DATA, 1000)
    assert decode(write, b"".join(parts), len(DATA)) == DATA
    assert decode(write, skippable() + parts[0] + skippable(b"") + b"".join(parts[1:]), len(DATA)) == DATA
    assert decode(write, skippable(), 0) == b""
    assert decode(write, b"", 0) == b""


@has_library
@pytest.mark.parametrize("size", [0, 1, len(DATA) - 1, len(DATA) + 1, 1 << 22])
def test_another_size_than_that_of_the_text_is_refused(write, size):
    assert decode(write, b"".join(frames(DATA, 1000)), size) is None


@has_library
def test_frames_that_are_not_whole_or_not_current_are_refused(write):
    good = b"".join(frames(DATA, 1000))
    for cut in range(1, len(good), 97):
        assert decode(write, good[:cut], len(DATA)) is None
    for magic in (0x22, 0x25, 0x27):  # of versions that a library may still know
        assert decode(write, bytes([magic]) + good[1:], len(DATA)) is None
    assert decode(write, good + b"\n", len(DATA)) is None


@has_library
def test_a_dictionary_and_a_large_window_are_refused(write):
    words = codec.train_dict([text(5, seed) for seed in range(200)], 4096)
    assert decode(write, codec.compress(DATA, zstd_dict=words), len(DATA)) is None
    compressor = codec.ZstdCompressor(options={codec.CompressionParameter.window_log: 20})
    data = compressor.compress(DATA) + compressor.flush()
    assert decode(write, data, len(DATA), 1 << 20) == DATA
    assert decode(write, data, len(DATA), (1 << 20) - 1) is None


@has_library
def test_bytes_beyond_the_file_are_refused(write):
    file = _native.Map(str(write(b"x" * 10, "a.zst")))
    with pytest.raises(ValueError, match="expected bytes within 0 to 10, found 0 to 11"):
        zstd.library().decode(_native.BlockMemory(), file, 0, 11, 10, LARGEST_WINDOW)


def test_a_library_that_is_not_there(tmp_path):
    for name in ("libzstd-of-nobody.so", str(tmp_path)):
        with pytest.raises(OSError, match=r"expected zstd's library, 1\.4\.0 or later"):
            _native.Zstd(name)


# ---- memory ---------------------------------------------------------------------------------------------------------


def test_a_block_is_a_read_only_copy_of_its_pieces():
    memory = _native.BlockMemory()
    for pieces in ((), (b"",), (b"a",), (b"ab", b"", b"cde"), (bytes(PAGE), b"x"), (bytes(3 << 20),)):
        block = memory.copy(pieces)
        assert bytes(block) == b"".join(pieces)
        assert len(block) == len(b"".join(pieces))
        assert memoryview(block).readonly
        assert block.room == max(-(-len(block) // PAGE), 1) * PAGE


def test_a_block_that_is_in_use_keeps_its_bytes():
    memory = _native.BlockMemory()
    views = [memoryview(memory.copy((bytes([k]) * (40_000 + 100 * k),))) for k in range(50)]
    for k in range(100):
        memory.copy((b"\xff" * (1000 * k),))
    assert [bytes(view) for view in views] == [bytes([k]) * (40_000 + 100 * k) for k in range(50)]
    del memory
    assert views[7][-1] == 7


def test_the_cache_counts_the_memory_of_blocks_and_makes_room_before_the_next():
    cache = BlockCache(10 * PAGE)
    for key in range(8):
        cache.put(key, cache.memory.copy((bytes(PAGE + 1),)))
    assert cache.size == 10 * PAGE
    assert [key for key in range(8) if cache.find([key])[0]] == [3, 4, 5, 6, 7]
    kept = []
    for size in (3, 11):  # a block that is not kept needs no room
        cache.get("a", lambda: kept.append(cache.size) or bytes(100 * PAGE), size * PAGE)
    assert kept == [6 * PAGE, 6 * PAGE]


def test_memory_that_is_short_is_a_memory_error_and_no_damage():
    def refuse(said):
        raise error(said)

    error, said = codec.ZstdError, "Unable to decompress Zstandard data: Allocation error : not enough memory"
    decoder = SimpleNamespace(eof=False, needs_input=True, decompress=lambda *_: refuse(said))
    refusing = SimpleNamespace(**{**vars(codec), "ZstdDecompressor": lambda *_: decoder})
    with pytest.raises(MemoryError):
        next(iter(zstd.Stream(refusing, InMemory(one_frame(DATA)), 0, 100)))
    error, said = zlib.error, "Error -4 while decompressing data: out of memory"
    refusing = SimpleNamespace(**{**vars(zlib), "decompressobj": lambda *_: decoder})
    with pytest.raises(MemoryError):
        next(gzip_codec.text_of(refusing, InMemory(gzip.compress(DATA)), 0, 100, Edges()))
