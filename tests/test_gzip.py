"""Gzip as it is: decoding begins at access points inside members, and every record is that of the plain file."""

import gzip
import itertools
import random
import sys
import zlib
from types import SimpleNamespace

import hypothesis.strategies as st
import pytest
from hypothesis import given
from isal import isal_zlib

import mmapds
from mmapds.compression import gzip as gzip_codec
from mmapds.compression.blocks import BlockError, BlockTable, Edges, Extent
from mmapds.storage.index_file import Index
from mmapds.storage.sources import open_file
from tests.support import oracle
from tests.support.compressed import bgzf, many_members, text
from tests.support.index_file import verify

LINES = text(4000, longest=300)
MODULES = [isal_zlib, zlib]


@pytest.fixture(autouse=True)
def narrow(monkeypatch):
    """Access points that lie close together, so that small files have many."""
    monkeypatch.setattr(gzip_codec, "SPACING", 20_000)


def build(write, data, **options):
    path = write(data, "a.jsonl.gz")
    mmapds.build(path, force=True, **options)
    return path


def decode(zlib_, data, edges=Edges(), size=1 << 30):  # noqa: B008 - a named tuple
    """The content of a block, of some bytes at most."""
    file = SimpleNamespace(size=len(data), read=lambda at, size: data[at : at + size])
    return b"".join(gzip_codec.text_of(zlib_, file, Extent(0, len(data), 0, size), edges))


def blocks_of(path):
    """What the reader decodes each block by: its bytes, its edges, and the size of its content."""
    table, file = BlockTable(Index(f"{path}.mmx"), 0), open_file(str(path))
    for block in range(table.count):
        place = table.place(block)
        yield file.read(place.begin, place.end - place.begin), table.edges(block), place.size


# ---- every record ---------------------------------------------------------------------------------------------------


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


@given(LAYOUT, st.sampled_from([0, 1000, 300_000]), st.booleans())
def test_members_and_blocks_of_any_kind_are_read_wherever_they_begin(tmp_path_factory, layout, zeros, has_isal):
    packed, lines, packer = [], [], None
    flushes = {"block": zlib.Z_BLOCK, "sync": zlib.Z_SYNC_FLUSH, "full": zlib.Z_FULL_FLUSH}
    for what, level, strategy, window, times, line in [("member", 6, 0, 15, 1, b"{}\n"), *layout]:
        if what == "member":
            packed.append(packer.flush() if packer else b"")
            packer = zlib.compressobj(level, zlib.DEFLATED, window + 16, 8, strategy)
        lines.append(line * (times * 20 // len(line)))
        packed += [packer.compress(lines[-1]), packer.flush(flushes[what]) if what in flushes else b""]
    content, path = b"".join(lines), tmp_path_factory.mktemp("layout") / "a.jsonl.gz"
    path.write_bytes(b"".join(packed) + packer.flush() + bytes(zeros))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gzip_codec, "SPACING", 3000)
        patch.setitem(sys.modules, "isal", sys.modules["isal"] if has_isal else None)
        mmapds.build(path)
        verify(Index(f"{path}.mmx"))
    ds, expected = mmapds.open(path), oracle.records(content)
    assert [(ds.where(i).offset, ds.raw(i)) for i in range(len(ds))] == expected
    rows = random.Random(0).sample(range(len(ds)), min(len(ds), 50))
    assert [ds.raw(row) for row in rows] == [expected[row][1] for row in rows]
    for module in MODULES:
        assert b"".join(decode(module, *each) for each in blocks_of(path)) == content


# ---- what decoders hold back, and what they were given too much -----------------------------------------------------


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize(("piece", "read"), [(4096, 100), (4096, 5000), (4096, 1 << 18), (1, 3), (1, 7)])
def test_what_a_decoder_held_back_is_read_and_what_it_gives_back_goes_to_the_next(monkeypatch, module, piece, read):
    """isal may have read all of its input when it has given as much as was asked for."""
    monkeypatch.setattr(gzip_codec, "_PIECE", piece)
    monkeypatch.setattr(gzip_codec, "_READ", read)
    for seed in range(8):
        random_ = random.Random(seed)
        words = [random_.randbytes(4).hex().encode() for _ in range(200)]
        size = piece * random_.randint(1, 5) + random_.choice((0, 1, 2, 3, 100))
        data = b" ".join(random_.choice(words) for _ in range(size))[:size]
        packer = isal_zlib.compressobj(0, isal_zlib.DEFLATED, 31)
        packed = packer.compress(data) + packer.flush(zlib.Z_SYNC_FLUSH)
        assert decode(module, packed, Edges(end_crc=zlib.crc32(data))) == data
        for first in (data, b"7" * size, random_.randbytes(size)):
            assert decode(module, gzip.compress(first) + gzip.compress(data) + gzip.compress(b"")) == first + data


@pytest.mark.parametrize("module", MODULES)
def test_headers_of_any_kind_may_lie_anywhere_in_what_is_read(write, monkeypatch, module):
    extra, name, comment = b"\3\0abc", b"name\0", b"comment\0"
    headers = {4: extra, 8: name, 28: extra + name + comment, 24: b"n" * 9000 + b"\0" + b"c" * 9000 + b"\0", 0: b""}
    packed, plain = b"", LINES[:9000]
    for flags, fields in itertools.product((0, 2), headers):  # 2: a checksum of the header
        head = b"\x1f\x8b\x08" + bytes([flags | fields]) + bytes(6) + headers[fields]
        packed += head + (zlib.crc32(head) & 0xFFFF).to_bytes(2, "little") * bool(flags) + gzip.compress(plain)[10:]
    build(write, packed)
    for read in (gzip_codec._READ, 5, 11):
        monkeypatch.setattr(gzip_codec, "_READ", read)
        assert decode(module, packed) == plain * 10


# ---- damage ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", MODULES)
def test_damaged_blocks_are_refused_or_have_their_content(write, module):
    """Whatever is changed in the bytes of a block: what is decoded is what was written."""
    blocks = [block for level in (0, 6) for block in blocks_of(build(write, gzip.compress(LINES, level)))]
    random_, caught = random.Random(5), 0
    for _ in range(200):
        data, edges, _ = random_.choice(blocks)
        bad = bytearray(data)
        for _ in range(random_.choice([1, 1, 2, 9])):
            at = random_.randrange(len(bad))
            bad[at : at + random_.choice([0, 1, 1, 3])] = random_.randbytes(random_.choice([0, 1, 1, 2]))
        good = decode(module, data, edges)
        try:
            found = decode(module, bytes(bad), edges)
        except BlockError:
            caught += 1
        else:
            assert found == good or len(found) != len(good), "the reader compares the size"
    assert caught > 120


def flipped(data, at):
    return data[:at] + bytes([data[at] ^ 1]) + data[at:][1:]


GOOD, CHECKED = gzip.compress(LINES), b"\x1f\x8b\x08\x02" + bytes(6) + b"\0\0" + gzip.compress(LINES)[10:]
REFUSED = {
    "cut": ([GOOD[:-cut] for cut in (*range(1, 30), *range(31, len(GOOD) - 1, 5000))], "a member is truncated"),
    "garbage": ([GOOD + b"garbage", GOOD + LINES[:999], GOOD + b"\x1f\x8b\x09" + bytes(30)], "something .* at byte "),
    "zeros, garbage": ([GOOD + bytes(size) + b"x" for size in (1, 300_000)], "something that is not a member at "),
    "checksum": ([flipped(GOOD, -8), flipped(GOOD, -5)], r"expected content with checksum \w{8}, found \w{8}"),
    "size": ([flipped(GOOD, -4)], r"expected \d+ bytes of content, found \d+ \(modulo 2\^32\)"),
    "checksum of a header": ([GOOD + CHECKED], "a block of deflate is damaged"),
    "a later member": ([many_members(LINES)[:-103], bgzf(LINES)[:-3]], "a member is truncated"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_damaged_is_refused_when_it_is_indexed(write, case):
    files, message = REFUSED[case]
    expected = rf"a.jsonl.gz: block \d+ \(byte \d+\): not gzip: {message}.*; copy the file again"
    for data in files:
        with pytest.raises(mmapds.FormatError, match=expected):
            build(write, data)
