"""Large members of gzip: decoding begins at access points inside them, and every record is that of the plain file."""

import gzip
import itertools
import os
import random
import shutil
import subprocess
import sys
import zlib
from types import SimpleNamespace

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from isal import isal_zlib
from xxhash import xxh3_64

import mmapds
from mmapds.compression import gzip as gzip_codec
from mmapds.compression.blocks import BlockError, BlockTable, Edges
from mmapds.index.verify import verify
from mmapds.storage.index_file import Index
from mmapds.storage.sections import LARGEST_BLOCK, POINT_BOUNDS, POINTS, WINDOW
from mmapds.storage.sources import open_file
from tests.support import oracle
from tests.support.compressed import InMemory, bgzf, many_members, one_block, one_member, text
from tests.support.index_file import forge_section, rewrite

LINES = text(4000, longest=300)


@pytest.fixture(autouse=True)
def narrow(monkeypatch):
    """Access points that lie close together, so that small files have many."""
    monkeypatch.setattr(gzip_codec, "SPACING", 20_000)


def member(data, *, level=6, strategy=zlib.Z_DEFAULT_STRATEGY, window=15, memory=8, flush=None, step=7001):
    """One member, which is flushed after each `step` bytes."""
    packer = zlib.compressobj(level, zlib.DEFLATED, window + 16, memory, strategy)
    out = []
    for at in range(0, len(data), step):
        out.append(packer.compress(data[at : at + step]))
        if flush is not None:
            out.append(packer.flush(flush))
    return b"".join([*out, packer.flush()])


def by_isal(level):
    def write(data):
        packer = isal_zlib.compressobj(level, isal_zlib.DEFLATED, 31)
        return packer.compress(data) + packer.flush()

    return write


@pytest.mark.parametrize("module", [isal_zlib, zlib])
@pytest.mark.parametrize("step", [100, 5000, 1 << 20])
def test_what_a_decoder_held_back_is_read_though_there_is_no_more_input(monkeypatch, module, step):
    """isal may have read all of its input when it has given as much as was asked for."""
    monkeypatch.setattr(gzip_codec, "_READ", step)
    monkeypatch.setattr(gzip_codec, "_PIECE", 4096)
    for seed in range(20):
        chosen = random.Random(seed)
        words = [chosen.randbytes(4).hex().encode() for _ in range(200)]
        size = 4096 * chosen.randint(1, 20) + chosen.choice((1, 2, 3, 100))
        data = b" ".join(chosen.choice(words) for _ in range(size))[:size]
        packer = isal_zlib.compressobj(0, isal_zlib.DEFLATED, 31)
        packed = packer.compress(data) + packer.flush(zlib.Z_SYNC_FLUSH)
        text = gzip_codec.text_of(module, InMemory(packed), 0, len(packed), Edges(end_crc=zlib.crc32(data)))
        assert b"".join(text) == data


@pytest.mark.parametrize("module", [isal_zlib, zlib])
def test_a_member_that_ends_soon_after_a_full_piece_gives_back_what_follows(monkeypatch, module):
    """The decoder has then been given bytes of the next member already."""
    monkeypatch.setattr(gzip_codec, "_PIECE", 4096)
    for more, read in itertools.product((0, 1, 10, 1000), (100, 4096, 1 << 18)):
        monkeypatch.setattr(gzip_codec, "_READ", read)
        for data in (b"7" * (4096 + more), random.Random(more).randbytes(4096 + more)):
            packed = member(data) + member(data[::-1]) + member(b"")
            assert decode(module, packed, Edges()) == data + data[::-1]


def by(*command):
    def write(data):
        if not shutil.which(command[0]):
            pytest.skip(f"no {command[0]} here; apt-get install -y gzip pigz")
        return subprocess.run(command, input=data, capture_output=True, check=True).stdout

    return write


def with_long_header(data):
    """A member whose header has all parts that there are."""
    head = b"\x1f\x8b\x08\x1f" + bytes(6) + b"\x03\x00abc" + b"name\0" + b"comment\0"
    head += (zlib.crc32(head) & 0xFFFF).to_bytes(2, "little")
    packer = zlib.compressobj(6, zlib.DEFLATED, -15)
    body = packer.compress(data) + packer.flush()
    return head + body + zlib.crc32(data).to_bytes(4, "little") + len(data).to_bytes(4, "little")


def members_of_all_sizes(data):
    """Small members, large ones, and empty ones, side by side; zeros behind."""
    third = len(data) // 3
    parts = [many_members(data[:third])[:-100], one_member(b""), member(data[third : 2 * third])]
    parts += [one_member(b"") * 3, bgzf(data[2 * third : -90_000]), member(data[-90_000:], flush=zlib.Z_FULL_FLUSH)]
    return b"".join(parts) + bytes(700)


WRITERS = {
    **{f"level {level}": lambda data, level=level: member(data, level=level) for level in range(10)},
    **{f"isal, level {level}": by_isal(level) for level in range(1, 4)},
    "fixed codes": lambda data: member(data, strategy=zlib.Z_FIXED),
    "no matches": lambda data: member(data, strategy=zlib.Z_HUFFMAN_ONLY),
    "runs": lambda data: member(data, strategy=zlib.Z_RLE),
    "small window": lambda data: member(data, window=9, memory=1),
    "sync flushes": lambda data: member(data, flush=zlib.Z_SYNC_FLUSH),
    "full flushes": lambda data: member(data, flush=zlib.Z_FULL_FLUSH),
    "block flushes": lambda data: member(data, flush=zlib.Z_BLOCK),
    "tiny blocks": lambda data: member(data, flush=zlib.Z_BLOCK, step=17),
    "long header": with_long_header,
    "all sizes": members_of_all_sizes,
    **{" ".join(tool): by(*tool) for tool in (["gzip"], ["pigz", "-p2"], ["pigz", "-p2", "-i"])},
}


def build(write, data, name="a.jsonl.gz", **options):
    path = write(data, name)
    mmapds.build(path, force=True, **options)
    return path


def decode(zlib_, data, edges):
    """The content of a block."""
    return b"".join(gzip_codec.text_of(zlib_, InMemory(data), 0, len(data), edges))


def blocks_of(path):
    """What the reader decodes each block by: its bytes, and its edges."""
    index, file = Index(f"{path}.mmx"), open_file(str(path))
    table = BlockTable(index, 0)
    for block in range(table.count):
        place = table.place(block)
        yield file.read(place.begin, place.end - place.begin), table.edges(block)


# ---- every record


@pytest.mark.parametrize("writer", WRITERS)
def test_every_record_is_that_of_the_plain_file(write, writer, monkeypatch):
    path = build(write, WRITERS[writer](LINES), length="chars(text)")
    plain = LINES.splitlines()
    rows = random.Random(1).sample(range(len(plain)), 200)
    for has_isal in (True, False):
        if not has_isal:
            monkeypatch.setitem(sys.modules, "isal", None)
        ds = mmapds.open(path, decode="bytes", access="random")
        assert list(ds) == plain
        assert list(ds.take(rows)) == [ds[row] for row in rows] == [plain[row] for row in rows]
    verify(Index(f"{path}.mmx"))
    compression = Index(f"{path}.mmx").sources[0].compression
    assert compression.blocks > 1
    assert compression.points > 0


EXTRA, NAME, COMMENT = b"\3\0abc", b"name\0", b"comment\0"
HEADERS = {
    "extra": (4, EXTRA),
    "name": (8, NAME),
    "all": (28, EXTRA + NAME + COMMENT),
    "long ones": (24, b"n" * 70_000 + b"\0" + b"c" * 70_000 + b"\0"),
}


def with_header(flags, fields, compressed):
    """A member with a header of these flags and fields, and the checksum of the header if there is a flag for it."""
    header = compressed[:3] + bytes([flags]) + compressed[4:10] + fields
    crc = (zlib.crc32(header) & 0xFFFF).to_bytes(2, "little") if flags & 2 else b""
    return header + crc + compressed[10:]


@pytest.mark.parametrize("checked", [0, 2], ids=["", "checked"])
@pytest.mark.parametrize("fields", HEADERS)
def test_headers_of_any_kind_may_lie_anywhere_in_what_is_read(write, monkeypatch, fields, checked):
    flags, content = HEADERS[fields]
    odd = with_header(flags | checked, content, one_member(LINES))
    assert gzip.decompress(odd) == LINES
    ds = mmapds.open(build(write, one_member(LINES) + odd))
    for size in (gzip_codec._READ, 5, 11):
        monkeypatch.setattr(gzip_codec, "_READ", size)
        ds = mmapds.open(ds.sources)
        assert [ds.raw(number) for number in range(3600, 4400, 40)] == (LINES.splitlines() * 2)[3600:4400:40]
    if checked:
        bad = odd[:4] + bytes([odd[4] ^ 64]) + odd[5:]
        with pytest.raises(
            mmapds.FormatError, match=r"block \d+ \(byte \d+\): not gzip: a block of deflate is damaged; "
        ):
            build(write, one_member(LINES) + bad)


def test_all_bits_of_a_byte_begin_blocks(write):
    found = set()
    for writer in ("level 1", "level 6", "level 9", "fixed codes", "no matches"):
        path = build(write, WRITERS[writer](LINES))
        for data, edges in blocks_of(path):
            contents = {decode(zlib_, data, edges) for zlib_ in (zlib, isal_zlib)}
            assert len(contents) == 1
            found.add(edges.bit if edges.window else None)
    assert found == {None, *range(8)}


LAYOUT = st.lists(
    st.tuples(
        st.sampled_from(["append", "block", "sync", "full", "member"]),
        st.integers(0, 9),
        st.sampled_from([zlib.Z_DEFAULT_STRATEGY, zlib.Z_FIXED, zlib.Z_HUFFMAN_ONLY, zlib.Z_RLE]),
        st.sampled_from([9, 12, 15]),
        st.integers(0, 400),
        st.sampled_from([b'{"a":1}\n', b"\n", b'"' + b"ab" * 500 + b'"\n', b"7" * 40, b'{"text":"x y z"}\r\n']),
    ),
    max_size=30,
)


def laid_out(layout):
    """A file of members as a layout says, and its content."""
    out, content, packer = [], [], None
    flushes = {"block": zlib.Z_BLOCK, "sync": zlib.Z_SYNC_FLUSH, "full": zlib.Z_FULL_FLUSH}
    for what, level, strategy, window, times, line in [("member", 6, 0, 15, 1, b"{}\n"), *layout]:
        if what == "member":
            out.append(packer.flush() if packer else b"")
            packer = zlib.compressobj(level, zlib.DEFLATED, window + 16, 8, strategy)
        content.append(line * (times * 20 // len(line)))
        out.append(packer.compress(content[-1]))
        if what in flushes:
            out.append(packer.flush(flushes[what]))
    return b"".join([*out, packer.flush()]), b"".join(content)


@settings(max_examples=60)
@given(LAYOUT, st.sampled_from([0, 1000]))
def test_members_and_blocks_of_any_kind(tmp_path_factory, layout, zeros):
    packed, content = laid_out(layout)
    path = tmp_path_factory.mktemp("layout") / "a.jsonl.gz"
    path.write_bytes(packed + bytes(zeros))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gzip_codec, "SPACING", 3000)
        mmapds.build(path)
        verify(Index(f"{path}.mmx"))
    ds = mmapds.open(path)
    assert [(ds.where(i).offset, ds.raw(i)) for i in range(len(ds))] == oracle.records(content)
    rows = random.Random(0).sample(range(len(ds)), min(len(ds), 50))
    assert [ds.raw(row) for row in rows] == [oracle.records(content)[row][1] for row in rows]
    assert b"".join(decode(zlib, *each) for each in blocks_of(path)) == content


# ---- blocks of deflate that are too large


def test_a_block_of_deflate_that_is_too_large_is_read_in_order(write):
    long = text(70_000, 1, longest=260)
    assert len(long) > LARGEST_BLOCK
    path = build(write, member(LINES) + one_block(long) + member(LINES))
    index, expected = Index(f"{path}.mmx"), [*LINES.splitlines(), *long.splitlines(), *LINES.splitlines()]
    assert index.sources[0].compression.largest > LARGEST_BLOCK
    ds = mmapds.open(path, decode="bytes", block_cache=1 << 20)
    assert list(ds) == expected
    for row in (5, len(ds) - 1, 6000, 3, 40_000, 40_001, 999, len(ds) - 999):
        assert ds[row] == expected[row]
    with pytest.raises(
        mmapds.Error, match=r"in the order of the file, as block \d+ has \d+ .*run: .*seekable .*a.jsonl.gz"
    ):
        ds[20_000]
    verify(index)


# ---- damage


@pytest.mark.parametrize("zlib_", [zlib, isal_zlib])
def test_damaged_blocks_are_refused_or_have_their_content(write, zlib_):
    """Whatever is changed in the bytes of a block: what is decoded is what was written."""
    random_, caught = random.Random(5), 0
    blocks = [
        each for name in ("level 6", "all sizes", "level 0") for each in blocks_of(build(write, WRITERS[name](LINES)))
    ]
    for _ in range(1500):
        data, edges = random_.choice(blocks)
        good = decode(zlib_, data, edges)
        bad = bytearray(data)
        for _ in range(random_.choice([1, 1, 2, 9])):
            at = random_.randrange(len(bad))
            bad[at : at + random_.choice([0, 1, 1, 3])] = random_.randbytes(random_.choice([0, 1, 1, 2]))
        try:
            found = decode(zlib_, bytes(bad), edges)
        except BlockError:
            found = None
        caught += found is None
        assert found in (None, good) or len(found) != len(good), "the reader compares the size"
    assert caught > 1000


def test_windows_and_checksums_that_lie_are_refused(write):
    path = build(write, WRITERS["level 6"](LINES))
    caught = 0
    for data, edges in blocks_of(path):
        good = decode(zlib, data, edges)
        if edges.window:
            window = edges.window
            for other in (b"", bytes(len(window)), window[::-1], window[100:], window + b"x", bytes(WINDOW)):
                try:
                    found = decode(zlib, data, edges._replace(window=other))
                except BlockError:
                    caught += 1
                else:
                    assert found == good, "a block may look back at few bytes of its window"
            with pytest.raises(BlockError, match="expected content with checksum"):
                decode(zlib, data, edges._replace(crc=edges.crc ^ 1))
        if edges.end_crc is not None:
            with pytest.raises(BlockError, match="expected content with checksum"):
                decode(zlib, data, edges._replace(end_crc=edges.end_crc ^ 1))
        if edges.window and edges.end_crc is not None:
            with pytest.raises(BlockError, match="a member is truncated"):
                decode(zlib, data, edges._replace(end_crc=None))
    assert caught > 20


@pytest.mark.parametrize("name", ["level 6", "all sizes"])
def test_every_cut_is_refused(write, name):
    data = WRITERS[name](LINES[:200_000])
    data = data[:-700] if name == "all sizes" else data
    for cut in [*range(1, 30), *range(31, len(data) - 1, len(data) // 30)]:
        try:
            mmapds.build(write(data[:-cut], "a.jsonl.gz"), force=True)
        except mmapds.FormatError as error:
            assert "not gzip: a member is truncated; copy the file again" in str(error)  # noqa: PT017
        else:
            assert name == "all sizes", "a file may end behind a member"
            assert zlib.decompressobj(31).decompress(data)


@pytest.mark.parametrize("garbage", [b"x", bytes(30) + b"\x1f\x8b", LINES[:999], b"\x1f\x8b\x09" + bytes(30)])
def test_garbage_behind_members_is_refused(write, garbage):
    message = r"block \d+ \(byte \d+\): not gzip: something that is not a member at byte \d+; copy the file again"
    with pytest.raises(mmapds.FormatError, match=message):
        build(write, member(LINES) + garbage)


def test_a_wrong_checksum_or_size_of_a_large_member_is_found_when_it_is_indexed(write):
    data = member(LINES)
    for at in (-8, -5):
        bad = bytearray(data)
        bad[at] ^= 1
        message = r"not gzip: expected content with checksum \w{8}, found \w{8}; copy"
        with pytest.raises(mmapds.FormatError, match=message):
            build(write, bytes(bad))
    bad = bytearray(data)
    bad[-4] ^= 1
    message = r"not gzip: expected \d+ bytes of content, found \d+ \(modulo 2\^32\)"
    with pytest.raises(mmapds.FormatError, match=message):
        build(write, bytes(bad))


def test_a_file_that_is_damaged_later(write):
    path = build(write, member(LINES))
    found = os.stat(path)
    ds = mmapds.open(path, decode="bytes")
    middle = found.st_size // 2
    with open(path, "r+b") as file:
        file.seek(middle)
        file.write(b"\x55" * 9)
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))
    expected, refused = LINES.splitlines(), 0
    for row in range(0, len(expected), 50):
        try:
            assert ds[row] == expected[row]
        except mmapds.FormatError as error:
            assert "a.jsonl.gz: block " in str(error)  # noqa: PT017
            refused += 1
    assert 0 < refused < 20
    with pytest.raises(mmapds.Error):
        verify(Index(f"{path}.mmx"))


def test_a_file_that_is_replaced_or_cut_short(write):
    path = build(write, member(LINES))
    ds = mmapds.open(path)
    os.truncate(path, os.path.getsize(path) // 2)
    with pytest.raises(mmapds.StaleIndexError, match=r"STALE: a.jsonl.gz was \d+ bytes when indexed and is \d+ now"):
        ds.take([1, len(ds) - 1])
    write(member(LINES[::-1]), "a.jsonl.gz")
    with pytest.raises(mmapds.StaleIndexError):
        mmapds.open(path)[0]


# ---- indexes that lie


def forged(path, name, change):
    """Change the numbers of a section of an index, and the checksum that it then has."""
    index = Index(f"{path}.mmx")
    numbers = np.frombuffer(index.section(name), index.sections[name].dtype).copy()
    change(numbers)
    forge_section(f"{path}.mmx", name, numbers)

    def seal(metadata):
        metadata["sections"][name]["xxh3"] = xxh3_64(numbers.tobytes()).hexdigest()
        return metadata

    rewrite(f"{path}.mmx", metadata=seal)


def refused_or_same(path):
    """Read an index that may lie: nothing but errors that name it, and the right records."""
    expected, refused = LINES.splitlines(), 0
    ds = mmapds.open(path, decode="bytes")
    for row in range(0, len(expected), 300):
        try:
            assert ds[row] == expected[row]
        except mmapds.FormatError as error:
            assert "a.jsonl.gz" in str(error)  # noqa: PT017
            refused += 1
    return refused


@pytest.mark.parametrize("value", [0, 5, 9000, 2**32 - 1])
@pytest.mark.parametrize("at", [2, -1])
def test_bounds_of_access_points_that_lie(write, at, value):
    path = build(write, member(LINES))
    forged(path, POINT_BOUNDS, lambda numbers: numbers.__setitem__(at, value))
    refused_or_same(path)
    with pytest.raises(mmapds.Error, match=r"DAMAGED|block"):
        verify(Index(f"{path}.mmx"))


@pytest.mark.parametrize("bytes_", [1, 30, 5000])
def test_access_points_that_lie(write, bytes_):
    path = build(write, member(LINES))
    random_ = random.Random(bytes_)

    def change(numbers):
        for _ in range(max(len(numbers) // (20 * bytes_), 40)):
            at = random_.randrange(len(numbers) - bytes_)
            numbers[at : at + bytes_] = np.frombuffer(random_.randbytes(bytes_), np.uint8)

    forged(path, POINTS, change)
    assert refused_or_same(path) > 0
    with pytest.raises(mmapds.Error):
        verify(Index(f"{path}.mmx"))


def test_a_window_that_is_a_bomb_is_refused(write):
    path = build(write, member(LINES))
    index = Index(f"{path}.mmx")
    first, second = (each.point for each in list(BlockTable(index, 0).starts())[1:3])
    bomb = zlib.compress(bytes(len(first) * 900), 9)
    assert len(bomb) < len(first) - 4

    def change(numbers):
        numbers[4 : 4 + len(bomb)] = np.frombuffer(bomb, np.uint8)

    forged(path, POINTS, change)
    ds = mmapds.open(path)
    row = int(ds.block_starts[1]) + 1
    with pytest.raises(mmapds.FormatError, match=rf"DAMAGED: block 1 of .*: expected a window of 1 to {WINDOW} bytes"):
        ds[row]
    assert second


@pytest.mark.parametrize("points", [-1, 0, 1, 2**62, "many"])
def test_a_count_of_access_points_that_lies(write, points):
    path = build(write, member(LINES))

    def change(metadata):
        (source,) = metadata["sources"]
        return metadata | {"sources": [source | {"compression": source["compression"] | {"points": points}}]}

    rewrite(f"{path}.mmx", metadata=change)
    with pytest.raises(mmapds.FormatError, match=r"DAMAGED: .*(expected|malformed)"):
        mmapds.open(path)


# ---- all that datasets do


def test_where_blocks_and_chunks(write):
    path = build(write, WRITERS["all sizes"](LINES))
    ds = mmapds.open(path)
    starts = ds.block_starts
    assert starts[0] == 0
    assert starts[-1] == len(ds)
    blocks = [ds.where(i).block for i in range(len(ds))]
    assert blocks == sorted(blocks)
    assert 10 < len(set(blocks)) <= len(starts) - 1
    assert blocks[-1] < os.path.getsize(path)
    rows = list(mmapds.ChunkedSampler(ds, "block", num_replicas=1, rank=0, mix_chunks=3, seed=1))
    assert sorted(rows) == list(range(len(ds)))
    for at in range(0, len(rows), 64):
        assert [sample["id"] for sample in ds.take(rows[at : at + 64])] == rows[at : at + 64]


@pytest.mark.parametrize("behind", [bytes(3 << 20), one_member(b"") * 150_000], ids=["zeros", "empty members"])
def test_what_follows_the_last_block_may_be_large(write, behind):
    path = build(write, member(LINES) + behind)
    ds = mmapds.open(path, decode="bytes")
    assert [ds[row] for row in (-1, 0, -9)] == [LINES.splitlines()[row] for row in (-1, 0, -9)]


def test_a_block_of_tiny_members_is_read_once():
    """What follows each of them is not copied for it."""
    given = []

    def decoder(*arguments, **options):
        found = zlib.decompressobj(*arguments, **options)
        return Counting(found, given)

    parts = [b"%d\n" % number if number % 3 == 0 else b"" for number in range(20_000)]
    data = b"".join(map(gzip.compress, parts))
    counted = SimpleNamespace(**{**vars(zlib), "decompressobj": decoder})
    assert decode(counted, data, Edges()) == b"".join(parts)
    assert sum(given) < 2 * len(data) + 4096 * len(parts)


class Counting:
    """A decoder that keeps how many bytes it was given."""

    def __init__(self, decoder, given):
        self.decoder, self.given = decoder, given

    def decompress(self, data, most):
        self.given.append(len(data))
        return self.decoder.decompress(data, most)

    def __getattr__(self, name):
        return getattr(self.decoder, name)
