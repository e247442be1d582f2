"""Blocks of compressed sources: who decodes them, what is kept, and what is refused of damaged files and tables."""

import multiprocessing
import os
import random
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from unittest.mock import Mock

import pytest

import mmapds
from mmapds import _native
from mmapds.compression import content, reader, zstd
from mmapds.compression import gzip as gzip_codec
from mmapds.compression.reader import BlockCache, BlockReader
from mmapds.storage.index_file import Index
from mmapds.storage.sections import BLOCK_SECTIONS
from tests.support.compressed import NO_SIZE, WRITERS, codec, frames, one_block, one_frame, text
from tests.support.files import patched
from tests.support.forged import COMPRESSED, REFUSED, Forgery, make_source, observe, small_blocks
from tests.support.index_file import rewrite, verify

DATA = text(3000)
LINES = DATA.splitlines()


@pytest.fixture
def small(monkeypatch):
    """Make blocks of more than 200 kB be read in order."""
    for module in (zstd, content, reader):
        monkeypatch.setattr(module, "LARGEST_BLOCK", 200_000)
    monkeypatch.setattr(reader, "PIECE", 50_000)


@pytest.fixture
def packed(write, monkeypatch):
    """Write DATA by a writer, with access points that lie close together, and index it."""
    monkeypatch.setattr(gzip_codec, "SPACING", 50_000)

    def packed(writer):
        suffix, compress = WRITERS[writer]
        path = write(compress(DATA), f"a.jsonl{suffix}")
        mmapds.build(path)
        return path

    return packed


# ---- who decodes them -----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small")
def test_threads_read_the_same_and_decode_a_block_once(write, tmp_path, monkeypatch):
    decoded, decode, found = [], BlockReader._decode, []
    monkeypatch.setattr(BlockReader, "_decode", lambda *given: (decoded.append(1), decode(*given))[1])
    for name, make in {"a.jsonl.zst": WRITERS["many"][1], "b.jsonl.zst": one_frame, "c.jsonl.gz": one_block}.items():
        ds = mmapds.open(write(make(DATA), name), decode="bytes", build=True)

        def read(seed, ds=ds):
            rows = random.Random(seed).sample(range(3000), 1500)
            return [*ds.take(rows), *ds] == [*(LINES[row] for row in rows), *LINES]

        with ThreadPoolExecutor(4) as pool:
            found += pool.map(read, range(4))
    assert found == [True] * 12
    assert len(decoded) == Index(f"{tmp_path}/a.jsonl.zst.mmx").sources[0].compression.blocks


def _read(ds, rows, found):
    found.put(ds.take(rows))


@pytest.mark.usefixtures("small")
def test_a_forked_child_reads_though_threads_of_its_parent_held_all_locks(write):
    paths = [write(one_frame(DATA), "a.jsonl.zst"), write(WRITERS["members"][1](DATA), "b.jsonl.gz")]
    ds = mmapds.open(paths, decode="bytes", build=True)
    assert ds.take([5, 3005]) == [LINES[5]] * 2
    forwards = [each for owner in reader._live if isinstance(owner, BlockReader) for each in owner._forward.values()]
    assert forwards
    context = multiprocessing.get_context("fork")
    found = context.Queue()
    process = context.Process(target=_read, args=(ds, [5, 3005], found), daemon=True)
    with ExitStack() as held:
        for each in (ds._catalog.blocks, *forwards):
            held.enter_context(each._lock)
        process.start()
    assert found.get(timeout=60) == ds.take([5, 3005]) == [LINES[5]] * 2
    process.join()


# ---- what is kept ---------------------------------------------------------------------------------------------------


def test_the_cache_keeps_what_was_used_last_within_its_limit(opened):
    cache, made = BlockCache(100), []
    for key in "abcabd":
        cache.get(key, lambda key=key: (made.append(key), bytes(30))[1], 30)
    assert made == ["a", "b", "c", "d"]
    assert [block is not None for block in cache.find("abcd")] == [True, True, False, True]
    cache.get("large", lambda: bytes(101), 101)
    assert (cache.size, cache.find(["d", "large"])) == (101, [None, bytes(101)]), "the last block is always kept"
    ds = opened(WRITERS["many"][1](DATA), "a.jsonl.zst", decode="bytes", block_cache=150_000)
    rows = random.Random(1).sample(range(3000), 500)
    assert ds.take(rows) == [ds[row] for row in rows] == [LINES[row] for row in rows]
    assert 0 < ds._catalog.blocks.size <= 150_000


def test_an_interrupt_while_a_block_is_decoded_leaves_nobody_waiting():
    cache = BlockCache()
    with pytest.raises(KeyboardInterrupt):
        cache.get(1, Mock(side_effect=KeyboardInterrupt))
    assert cache.get(1, lambda: b"block") == b"block"


def test_a_block_is_a_read_only_copy_of_its_pieces_while_it_is_in_use():
    memory = _native.BlockMemory()
    made = [tuple(map(os.urandom, sizes)) for sizes in ((), (0,), (1,), (16384, 1), (2, 0, 3), (3 << 20,)) * 9]
    blocks = [memoryview(memory.copy(sum(map(len, pieces)), pieces)) for pieces in made]
    for k in range(100):
        memory.copy(1000 * k, (b"\xff" * (1000 * k),))
    assert [(bytes(block), block.readonly) for block in blocks] == [(b"".join(pieces), True) for pieces in made]


# ---- files that are damaged, cut or replaced ------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*a block of over 8 MiB is read in file order only")
def test_bombs_are_decoded_in_bounded_memory(write):
    """64 MB of one line, in a few KB; and a frame without a size that is more than a block may have."""
    compressor = codec.ZstdCompressor()
    bomb = b"".join([compressor.compress(b"x" * (1 << 20)) for _ in range(64)] + [compressor.flush()])
    small = codec.compress(b'"' + b"1" * (9 << 20) + b'"\n', options=NO_SIZE)
    path = write(b"".join(frames(DATA, 1000)) + small + bomb, "a.jsonl.zst")
    tracemalloc.start()
    source = Index(str(mmapds.build(path))).sources[0]
    assert tracemalloc.get_traced_memory()[1] < 40 << 20
    tracemalloc.stop()
    assert (source.largest, source.records) == (64 << 20, 3002)
    assert source.compression.largest >= 64 << 20
    ds = mmapds.open(path, decode="bytes", block_cache=1 << 20)
    assert ds[:3000].take(range(3000)) == LINES
    assert len(ds[3000]) == (9 << 20) + 2


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("writer", ["many", "gzip", "members", "one"])
def test_a_block_that_is_damaged_later_is_named_and_others_are_read(packed, writer):
    path = packed(writer)
    block = mmapds.open(path).where(2900).block
    ds = mmapds.open(path, decode="bytes")
    patched(path, os.path.getsize(path) // 2 if writer == "one" else block + 40, bytes(40))
    message = rf"a.jsonl.\w+: block \d+ \(byte {block}\): not {'zstd' if path.endswith('.zst') else 'gzip'}: "
    for read in (lambda: ds[2900], lambda: ds.take([3, 2900, 17]), lambda: ds[2900]):
        with pytest.raises(mmapds.FormatError, match=f"{message}.*; copy the file again"):
            read()
    assert ds[0] == LINES[0]
    with pytest.raises(mmapds.Error):
        verify(Index(f"{path}.mmx"))


@pytest.mark.usefixtures("small")
def test_the_last_piece_of_a_large_block_comes_when_its_checksum_is_compared(write):
    data = DATA[: 5 * reader.PIECE - 1] + b"\n"
    path = write(one_block(data), "a.jsonl.gz")
    ds = mmapds.open(path, decode="bytes", build=True)
    patched(path, os.path.getsize(path) - 8, b"sums")
    assert ds[0] == LINES[0]
    with pytest.raises(mmapds.FormatError, match=r"block 0 .*: not gzip: expected content with checksum"):
        ds[-1]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("writer", ["many", "one", "gzip"])
def test_a_source_that_is_cut_is_stale(packed, writer):
    path = packed(writer)
    opened, size = mmapds.open(path), os.path.getsize(path)
    os.truncate(path, size // 2)
    for ds in (opened, mmapds.open(path, check="none")):
        with pytest.raises(mmapds.StaleIndexError, match=rf"was {size} bytes when indexed and is {size // 2} now"):
            ds.take([1, 2999])


# ---- indexes that lie -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", COMPRESSED)
def test_an_index_that_lies_of_blocks_is_refused_or_does_no_harm(tmp_path, kind):
    with small_blocks():
        path = make_source(tmp_path, kind)
    index, refused = tmp_path / f"{path.name}.mmx", 0
    good, expected = index.read_bytes(), observe(path)
    for seed in range(80):
        forgery, chosen = Forgery(good), random.Random(seed)
        name = chosen.choice([name for name in BLOCK_SECTIONS if name in forgery.metadata["sections"]])
        numbers = forgery.section(name)
        at, near = chosen.randrange(len(numbers)), chosen.choice([-8, -1, 1, 8])
        numbers[at] = chosen.choice([0, 60_000, 2**32 - 1, *[int(numbers[at]) + near] * 4]) % 256**numbers.itemsize
        forgery.replace(name, numbers)
        index.write_bytes(forgery.bytes())
        found = observe(path)
        assert {each for each in found if found[each] not in (REFUSED, expected[each])} == set(), (name, at)
        refused += REFUSED in found.values() or not found
    assert refused > 30


def test_an_index_of_compressed_sources_is_of_a_kind_of_its_own(packed, write):
    plain = mmapds.build(write(DATA, "b.jsonl"))
    for index, kind, other in ((plain, 0, 2), (f"{packed('many')}.mmx", 2, 0)):
        assert Index(str(index)).kind == kind
        rewrite(index, header={"reserved": other})
        with pytest.raises(mmapds.FormatError, match=f"DAMAGED: expected kind {kind}, found {other}"):
            Index(str(index))
