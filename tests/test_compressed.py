"""Compressed files: every record is that of the plain file, whatever wrote the file and however it is read."""

import gzip
import io
import itertools
import os
import pickle
import random
import re
import shutil
import struct
import subprocess
import warnings
from contextlib import ExitStack
from functools import partial
from itertools import chain, pairwise
from unittest.mock import patch

import hypothesis.strategies as st
import numpy as np
import pytest
from fsspec.compression import compr
from hypothesis import HealthCheck, example, given, settings

import mmapds
from mmapds import _native, orders
from mmapds.compression import content, reader, zstd
from mmapds.compression import gzip as gzip_codec
from mmapds.compression.content import Part
from mmapds.compression.reader import BlockReader
from mmapds.errors import OrderError
from mmapds.formats.expressions import Measuring
from mmapds.formats.format import reserve_words
from mmapds.formats.frames import FramesWalk
from mmapds.formats.tar import TarWalk
from mmapds.storage.index_file import Index
from mmapds.storage.sections import LARGEST_BLOCK
from mmapds.storage.sources import Source
from tests.support import oracle
from tests.support.compressed import NO_SIZE, WRITERS, codec, frames, one_block, one_frame, streamed, text
from tests.support.index_file import verify
from tests.support.messages import check
from tests.support.tars import DIALECTS, archive, members_of, pax, special

# ---- files ----------------------------------------------------------------------------------------------------------


def by_fsspec(data):
    """As datatrove and others write: record by record, into one frame without its size."""
    out = io.BytesIO()
    with compr["zstd"](out, mode="wb") as file:
        for line in data.splitlines(keepends=True):
            file.write(line)
    return out.getvalue()


def by(command):
    def write(data):
        program, *arguments = command.split()
        if not shutil.which(program):
            pytest.skip(f"no {program} here; apt-get install -y zstd pigz tabix")
        return subprocess.run([program, *arguments, "-c"], input=data, capture_output=True, check=True).stdout

    return write


ALL = {
    **WRITERS,
    "fsspec": (".zst", by_fsspec),
    **{command: (".zst", by(command)) for command in ("zstd -q", "zstd -q -T0 --long=27", "pzstd -q -p 2")},
    **{command: (".gz", by(command)) for command in ("gzip", "pigz -p 2", "pigz -p 2 -i", "bgzip")},
}


def masked(data):
    crc = _native.crc32c(None, 0, data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32)


def varint(number, width):
    """A varint of this many bytes at least."""
    out = []
    while number > 127 or len(out) + 1 < width:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def tfrecord(data):
    size = struct.pack("<Q", len(data))
    return size + masked(size) + data + masked(data)


FRAMINGS = {
    "u32le": (_native.FRAMING_U32LE, lambda data: struct.pack("<I", len(data)) + data),
    "u32be": (_native.FRAMING_U32BE, lambda data: struct.pack(">I", len(data)) + data),
    "u64le": (_native.FRAMING_U64LE, lambda data: struct.pack("<Q", len(data)) + data),
    "u64be": (_native.FRAMING_U64BE, lambda data: struct.pack(">Q", len(data)) + data),
    "varint": (_native.FRAMING_VARINT, lambda data: varint(len(data), 1 + len(data) % 4) + data),
    "tfrecord": (_native.FRAMING_TFRECORD, tfrecord),
}
NAMES = {"jsonl": "train.jsonl", "tar": "a.tar", "tfrecord": "a.tfrecord"}


def made(kind, count=60, seed=0):
    """A plain file of some records, of all sizes."""
    random_ = random.Random(seed)
    if kind == "tar":
        more = [special("d", b"5"), ("__note__", b"has no key"), (f"{seed}/z.bin", bytes(90_000))]
        return archive([*members_of(count, f"{seed}/"), *more], "gnu")
    if kind == "jsonl":
        return text(count, seed)
    return b"".join(FRAMINGS[kind][1](random_.randbytes(random_.choice([0, 1, 7, 100, 40_000]))) for _ in range(count))


def build(write, kind, data, writer=None, **options):
    """Write a file, compressed by a writer, and index it; return its path."""
    suffix, compress = ALL[writer] if writer else ("", bytes)
    options |= {} if kind in NAMES else {"format": "prefixed", "prefix": kind}
    path = write(compress(data), NAMES.get(kind, "a.bin") + suffix)
    mmapds.build(path, force=True, **options)
    return path


def both(write, data, writer="many", kind="jsonl", **options):
    """The dataset of a plain file, and that of the same in a compressed one."""
    return [mmapds.open(build(write, kind, data, each, **options)) for each in (None, writer)]


# ---- the records of the plain file ----------------------------------------------------------------------------------


def assert_same(plain, packed):
    """That all that can be asked of two datasets is the same, but where they lie."""
    rows = list(range(len(plain)))
    assert without_source(packed) == without_source(plain)
    assert [packed.raw(i) for i in rows] == [plain.raw(i) for i in rows]
    assert [packed.where(i)[1:] for i in rows] == [plain.where(i)[1:] for i in rows]
    places = [packed.place(i).partition(":")[2] for i in rows]
    assert places == [plain.place(i).partition(":")[2] for i in rows]
    random.Random(3).shuffle(rows)
    for some in (rows, rows[:3] * 2):
        assert without_source(packed.take(some)) == without_source(plain.take(some))
    if plain.sources[0].endswith(".tar"):
        assert all(packed.find(each["__key__"]) == plain.find(each["__key__"]) for each in plain)
    assert packed.columns == plain.columns
    for name in plain.columns:
        assert np.array_equal(packed.column(name), plain.column(name))
        assert packed.column(name).dtype == plain.column(name).dtype
    assert summary(packed) == summary(plain)
    verify(Index(packed.indexes[0]))


def without_source(samples):
    return [{**each, "__url__": ""} if isinstance(each, dict) and "__url__" in each else each for each in samples]


def summary(ds):
    """What an index says of its source, but how its bytes lie."""
    source = Index(ds.indexes[0]).sources[0]._asdict()
    return [source[each] for each in ("records", "lines", "smallest", "largest", "skipped", "first", "bad", "width")]


@pytest.mark.parametrize("writer", ALL)
def test_every_line_is_that_of_the_plain_file(write, writer):
    for records in (0, 1, 1500) if writer in WRITERS else (1500,):
        assert_same(*both(write, text(records), writer, length="chars(text)", columns={"id": "id"}))


PAIRS = [("tar", "gzip"), ("tar", "mixed"), ("tar", "bgzf"), ("tfrecord", "members"), ("tfrecord", "streamed")]


@pytest.mark.parametrize(("kind", "writer"), [*PAIRS, ("u32le", "pzstd"), ("varint", "gzip")])
def test_every_record_is_that_of_the_plain_file(write, kind, writer):
    assert_same(*both(write, made(kind), writer, kind, length="bytes()"))


@pytest.mark.parametrize("option", ["missing", "bad"])
def test_lines_that_are_left_out_are_those_of_the_plain_file(write, option):
    lines = text(900).splitlines(keepends=True)
    lines[5::9] = [b'{"id": oh\n' if option == "bad" else b'{"text":"none"}\n'] * len(lines[5::9])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that lines are left out
        assert_same(*both(write, b"".join(lines), "mixed", columns={"id": "id"}, **{option: "skip"}))


# ---- blocks of a few bytes ------------------------------------------------------------------------------------------


def cut(data, sizes, pack):
    """Frames or members of content of these sizes, again and again."""
    ends = itertools.takewhile(lambda end: end < len(data), itertools.accumulate(itertools.cycle(sizes)))
    return b"".join(pack(data[begin:end]) for begin, end in itertools.pairwise([0, *ends, len(data)]))


PACKS = {
    "sizes": (".zst", codec.compress),
    "no sizes": (".zst", lambda data: codec.compress(data, options=NO_SIZE)),
    "members": (".gz", gzip.compress),
}
LINES = [b"{}", b"", b" ", b"\r", b"[1]\r", b"\t", b"[1, 2]", b'"' + b"x" * 300 + b'"']


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.sampled_from(LINES), max_size=12),
    st.lists(st.sampled_from([1, 2, 3, 4, 7, 50, 200]), min_size=1, max_size=8),
    st.sampled_from(sorted(PACKS)),
    st.sampled_from([100, LARGEST_BLOCK]),
    st.tuples(st.booleans(), st.booleans(), st.booleans()),
)
@example([b"[1]"] * 99, [1, 200], "sizes", 200, (True, True, False))
@example([b"[1]"] * 49, [2, 100], "no sizes", 100, (True, True, True))
def test_lines_that_blocks_cut_anywhere(tmp_path, lines, sizes, pack, largest, switches):
    has_mark, is_ended, is_measured = switches
    data = (b"\xef\xbb\xbf" if has_mark else b"") + b"\n".join(lines) + (b"\n" if is_ended else b"")
    suffix, compress = PACKS[pack]
    plain, path = tmp_path / "a.jsonl", tmp_path / f"a.jsonl{suffix}"
    plain.write_bytes(data)
    path.write_bytes(cut(data, sizes, compress))
    options = {"columns": {"size": "bytes()"} if is_measured else None, "force": True}
    with ExitStack() as stack:
        smallest, places = (4, (zstd, gzip_codec)), (largest, (zstd, content, reader))
        for name, (value, modules) in {"SMALLEST": smallest, "LARGEST_BLOCK": places, "PIECE": (16, [reader])}.items():
            for module in modules:
                stack.enter_context(patch.object(module, name, value))
        for function in (content.parts_of, content.content_of):
            stack.enter_context(patch.object(function, "__defaults__", (3,)))  # `least`
        one, other = (mmapds.open(mmapds.build(each, workers=1 + 2 * is_ended, **options)) for each in (plain, path))
        expected = oracle.records(data)
        assert [(other.where(i).offset, other.raw(i)) for i in range(len(other))] == expected
        found = mmapds.open(path, decode="bytes").take(range(len(expected)))
        assert [bytes(record) for record in found] == [record for _, record in expected]
        assert summary(other) == summary(one)
        compression = Index(other.indexes[0]).sources[0].compression
        assert pack != "sizes" or max(sizes) > largest or compression.largest <= largest
        assert not is_measured or other.column("size").tolist() == [len(record) for _, record in expected]
        verify(Index(f"{path}.mmx"))


def test_what_lies_within_a_block_may_be_larger_than_what_is_read_at_once(write):
    """As the seek table of a file that another was appended to."""
    lines = text(100).splitlines(keepends=True)
    for suffix, compress, between in (
        (".zst", codec.compress, b"\x50\x2a\x4d\x18" + (2 << 20).to_bytes(4, "little") + bytes(2 << 20)),
        (".zst", codec.compress, codec.compress(b"") * 30_000),
        (".gz", gzip.compress, gzip.compress(b"") * 14_000),
    ):
        parts = [compress(b"".join(lines[begin:end])) for begin, end in ((0, 60), (60, 70), (70, 100))]
        data = parts[0] + between + parts[1] + parts[2] + between
        ds = mmapds.open(write(data, f"train.jsonl{suffix}"), build=True, decode="bytes")
        assert [line + b"\n" for line in ds] == lines


def walked(new_walk, data, cuts):
    """Walk over content that is cut at some bytes; return the walk and, of all its pieces, the numbers of records.

    Args:
      new_walk: called as `mmapds.formats.format.walked` calls it, with a compressed source.
    """
    slot, measuring = [reserve_words(4) for _ in range(3)], Measuring({"size": "bytes()"}, "error", False)
    walk = new_walk(Source("a", 0, 0, codec="gzip"), slot, measuring, drop=True)
    found = [[], [], []]
    for begin, end in pairwise([0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]):
        part = Part(begin, end, 0, (), end == len(data), 1, lambda _: ())
        for _ in chain(walk.scan(part, data[begin:end]), [None]):
            piece = walk.piece()
            for numbers, more in zip(found, [piece.starts, piece.columns[0][1], piece.keys or ()], strict=True):
                numbers += more
            walk.found = 0
    return walk, found


@given(
    st.sampled_from(sorted(FRAMINGS)),
    st.lists(st.sampled_from([0, 1, 2, 9, 127, 128, 400]), max_size=12),
    st.lists(st.integers(0, 3000), max_size=12),
)
def test_frames_in_pieces_of_any_size(framing, sizes, cuts):
    code, frame = FRAMINGS[framing]
    framed = [frame(bytes(size)) for size in sizes]
    data, starts = b"".join(framed), [sum(map(len, framed[:k])) for k in range(len(framed))]
    for end in (len(data), max(len(data) - 1, 0)):
        walk, (found, measured, _) = walked(partial(FramesWalk, code, 1 << 20), data[:end], cuts)
        whole = len(sizes) if end == len(data) else len(sizes) - 1
        assert (found, measured) == (starts[:whole], sizes[:whole])
        total, cut = walk.end()
        assert (total.lines, total.content) == (max(whole, 0), end)
        assert cut == (end != len(data) and end not in starts)
        assert total.end == (len(data) if whole == len(sizes) else starts[-1] if starts else 0)


NAME = st.sampled_from(
    ["a.x", "a.y", "b.x", "b.Y", "nodot", "d/b.x", "d" * 120 + "/c.x", "é" * 200 + ".x", "__m__/a.x"]
)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.tuples(NAME, st.sampled_from([0, 1, 511, 512, 513, 2000])), max_size=8),
    st.sampled_from(["pax", "gnu"]),
    st.lists(st.integers(0, 12_000), max_size=12),
    st.integers(0, 12_000) | st.none(),
    st.integers(0, 12_000) | st.none(),
)
def test_tars_in_pieces_of_any_size(files, dialect, cuts, end, damaged):
    """What is found is what the core finds in the whole archive, also in one that is cut or damaged."""
    data = bytearray(archive([(name, bytes(size)) for name, size in files], dialect))[:end]
    if damaged is not None and damaged < len(data):
        data[damaged] ^= 1
    words = [memoryview(bytearray(8 * (len(data) // 512 + 2))).cast("Q") for _ in range(3)]
    status, records, at, last, count, _ = _native.TarScanner().scan(bytes(data), len(data), True, *words)
    if status not in (_native.TAR_END, _native.TAR_TRUNCATED):
        with pytest.raises(mmapds.FormatError, match=rf"record {count} \(byte {at}\)"):
            walked(TarWalk, bytes(data), cuts)
        return
    walk, found = walked(TarWalk, bytes(data), cuts)
    total, cut = walk.end()
    assert found == [list(each[:records]) for each in words]
    assert (total.lines, total.end, cut) == (count, last, status == _native.TAR_TRUNCATED)


# ---- blocks that are too large, which are read in order -------------------------------------------------------------


LONG = text(400)[:80_000].split(b"\n")


@pytest.fixture
def large(write, monkeypatch):
    """Files of one block that is too large, of 19 pieces and a smaller one."""
    monkeypatch.setattr(reader, "PIECE", 4096)
    for module in (zstd, content, reader):
        monkeypatch.setattr(module, "LARGEST_BLOCK", 20_000)
    made = {"one.jsonl.zst": one_frame, "streamed.jsonl.zst": streamed, "block.jsonl.gz": one_block}
    paths = [write(make(b"\n".join(LONG)), name) for name, make in made.items()]
    for path in paths:
        mmapds.build(path)
    return paths


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(0, 10**6), max_size=8), st.booleans())
def test_a_large_block_is_read_forward_and_from_its_beginning(large, rows, is_kept):
    """What is decoded may be passed over, and read again while it is the last piece or the cache has it."""
    for path in large:
        ds = mmapds.open(path, decode="bytes", block_cache=80_000 if is_kept else 0)
        done = 0  # pieces that are decoded
        for row in (each % len(LONG) for each in rows):
            begin = sum(map(len, LONG[:row])) + row
            pieces = range(begin // 4096, (begin + len(LONG[row]) - 1) // 4096 + 1)
            done = done if pieces[0] or is_kept else 0
            if pieces[0] >= done - 1 or is_kept:
                assert ds[row] == LONG[row]
                done = max(done, pieces[-1] + 1)
                continue
            message = r"expected records in the order of the file, as block 0 has 80000 bytes .*run: .*seekable "
            with pytest.raises(mmapds.Error, match=message):
                ds[row]


def test_passes_over_a_large_block_are_those_of_the_plain_file(large):
    for path in large:
        ds = mmapds.open(path, decode="bytes", block_cache=8192)
        assert list(ds) == LONG
        assert [ds.take(range(row, row + 9))[0] for row in range(0, 300, 9)] == LONG[:300:9]
        assert list(ds.stream()) == LONG
        rows = random.Random(0).sample(range(len(ds)), len(ds))
        assert mmapds.open(path, decode="bytes").take(rows) == [LONG[row] for row in rows]
        verify(Index(f"{path}.mmx"))


@pytest.mark.parametrize("writer", ["many", "one", "gzip"])
def test_a_sample_may_be_larger_than_a_block_may_be(write, writer):
    """It lies in many blocks; or in one that is too large to be decoded at once, which `seekable` makes small ones."""
    big = random.Random(0).randbytes(9 << 20)
    data = archive([("a.txt", bytes(2 << 20)), ("b.txt", bytes(2 << 20)), ("c.bin", big), ("c.txt", b"3")])
    pack = (lambda data: b"".join(frames(data, 1 << 20))) if writer == "many" else WRITERS[writer][1]
    path = write(pack(data), "a.tgz" if writer == "gzip" else "a.tzst")
    ds = mmapds.open(path, build=True, block_cache=10 << 20)
    assert [sample["__key__"] for sample in ds] == ["a", "b", "c"]
    verify(Index(f"{path}.mmx"))
    if writer == "one":
        with pytest.raises(mmapds.Error, match=r"expected records in the order of the file.*; run: .* seekable"):
            ds[1]
        done = mmapds.seekable(path)
        assert done.path == path.replace(".tzst", ".tar.zst")
        ds = mmapds.open(done.path, build=True)
    assert ds[1]["txt"] == bytes(2 << 20)
    assert (ds[2]["bin"], ds[2]["txt"]) == (big, b"3")


# ---- what is wrong --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["gz", "zst"])
def test_a_bad_line_is_named_while_a_thread_decodes_on(write, suffix):
    """With content behind the lines that threads hold when they meet it."""
    rest = b"".join(b'{"id":%d,"h":"%s"}\n' % (n, os.urandom(32).hex().encode()) for n in range(30_000))
    data = text(2400) + b'{"id":1, oops\n' + rest
    path = write(gzip.compress(data, 1) if suffix == "gz" else b"".join(frames(data, 50_000)), f"a.jsonl.{suffix}")
    for _ in range(3):
        with pytest.raises(mmapds.DecodeError, match=r"a\.jsonl\.\w+:2401 "):
            mmapds.build(path, length="id", workers=2)


@pytest.mark.parametrize("writer", ["many", "gzip"])
def test_a_line_that_is_not_json_is_named_when_it_is_read(write, writer):
    data = text(500) + b'\n\n{"id": oh}\n' + text(10)
    messages = []
    for ds in both(write, data, writer):
        with pytest.raises(mmapds.DecodeError) as error:
            ds[500]
        messages.append(str(error.value).partition("; leave")[0].removeprefix(ds.sources[0]))
    assert messages[0] == messages[1]
    assert messages[0].startswith(f":503 (byte {len(text(500)) + 2}): not JSON")


@pytest.mark.parametrize(("kind", "writer"), [("tar", "gzip"), ("tfrecord", "one"), ("varint", "gzip")])
def test_content_that_ends_inside_a_record_is_refused_or_the_record_is_left_out(write, kind, writer):
    good = archive(members_of(8), "gnu").rstrip(b"\0") if kind == "tar" else made(kind, 8)
    good += bytes(-len(good) % 512) if kind == "tar" else b""
    more = archive([("z.txt", bytes(700))], "gnu")[:1536] if kind == "tar" else FRAMINGS[kind][1](bytes(70_000))
    for kept in (1, 2, 500, len(more) - 1):
        messages = []
        for each in (writer, None):
            with pytest.raises(mmapds.FormatError) as error:
                build(write, kind, good + more[:kept], each, truncated="error")
            messages.append(str(error.value).partition(": ")[2])
        assert messages[0] == messages[1]
        end = "; leave it out with truncated='drop'"
        assert re.fullmatch(rf"record [78] \(byte {len(good)}\): expected a .*{re.escape(end)}", messages[0]), messages
        plain, packed = both(write, good + more[:kept], writer, kind, truncated="drop")
        assert_same(plain, packed)
        assert Index(packed.indexes[0]).sources[0].skipped == 1
        assert len(packed) == 8 - ("record 7" in messages[0]), "a sample whose end is unknown"


TAR, TFRECORDS, PREFIXED = archive([("a.txt", b"1")], "gnu")[:1024], made("tfrecord"), made("u64le")
HUGE = special("a.x", b"x", size=2**32).tobuf(DIALECTS["ustar"]) + bytes(3 << 20)
REFUSED = [
    ("tar", TAR + b"x" * 2000, r"record 0 \(byte 1024\): .*expected a tar header, found a wrong header checksum"),
    ("tar", TAR + bytes(512) + TAR, r"record 0 \(byte 1024\): .*expected two blocks of zeros"),
    ("tar", TAR + archive([("a.TXT", b"1")], "gnu"), "expected each extension of sample 'a' once, found 'TXT' twice"),
    ("tar", TAR + archive([special("a.bin", b"S")], "gnu"), r"record 0 \(byte 1024\): .*found a sparse one"),
    ("tar", TAR + pax(b"11 path=b.t\n"), r"record 0 \(byte 1024\): .*each line of the pax header"),
    ("tar", HUGE, r"record 0 \(byte 0\): expected extended headers of up to 16777216 bytes"),
    ("tar", special("a.x", b"0", size=2**40).tobuf(DIALECTS["gnu"]) + bytes(3 << 20), "expected a whole sample, found"),
    ("u64le", PREFIXED + struct.pack("<Q", 2**64 - 5) + bytes(3 << 20), f"expected a payload of {2**64 - 5} bytes"),
    ("tfrecord", TFRECORDS + b"not a record" * 9, rf"record 60 \(byte {len(TFRECORDS)}\): .* CRC of the length"),
    ("varint", b"\xff" * 12, "expected a varint of up to 64 bits, found a longer one"),
]


@pytest.mark.parametrize(("kind", "data", "message"), REFUSED, ids=range(len(REFUSED)))
def test_what_is_wrong_stands_at_its_byte_of_the_content(write, kind, data, message):
    """A size that lies takes no memory: 4 GiB of headers, 1 TiB of a member, 16 EiB of a record."""
    for writer in ("gzip", "many"):
        with pytest.raises(mmapds.FormatError, match=message):
            build(write, kind, data, writer, truncated="error")


def test_verify_compares_the_checksum_of_every_payload(write):
    data = bytearray(TFRECORDS + tfrecord(bytes(40_000)) + tfrecord(b"last"))
    data[len(TFRECORDS) + 30_000] ^= 1
    path = build(write, "tfrecord", bytes(data), "many")
    message = rf"record 60 \(byte {len(TFRECORDS)}\): expected \w+ as the CRC of the data"
    with pytest.raises(mmapds.FormatError, match=message):
        verify(Index(f"{path}.mmx"))


def test_a_scanner_of_tars_says_which_bytes_it_needs():
    words = [memoryview(bytearray(80)).cast("Q") for _ in range(3)]
    assert _native.TarScanner().scan(b"", 0, False, *words) == (_native.TAR_MORE, 0, 0, 0, 0, (512, 512))
    with pytest.raises(ValueError, match="data: expected up to 3 bytes, found 4"):
        _native.TarScanner().scan(b"1234", 3, False, *words)


# ---- datasets of them -----------------------------------------------------------------------------------------------


def test_where_has_the_place_in_the_content_and_the_block_in_the_file(write):
    plain, packed = both(write, text(3000))
    where = packed.where(2000)
    assert where == (packed.sources[0], *plain.where(2000)[1:])
    assert pickle.loads(pickle.dumps(where)).block == where.block
    assert not hasattr(plain.where(2000), "block")
    blocks = [packed.where(i).block for i in range(3000)]
    assert blocks == sorted(blocks)
    assert (blocks[0], len(set(blocks))) == (0, Index(packed.indexes[0]).sources[0].compression.blocks)


def test_views_concatenations_maps_and_fields(write):
    plain, packed = both(write, text(900))
    fields = mmapds.Fields({"id": "int64", "text": "str"})
    for make in (
        lambda ds: ds[100:800:3],
        lambda ds: mmapds.concat([ds, plain, ds[5:10]]),
        lambda ds: mmapds.zip(a=ds.map(len), b=ds),
        lambda ds: mmapds.open(ds.sources, io="pread", decode=fields),
        lambda ds: pickle.loads(pickle.dumps(mmapds.open(ds.sources, block_cache=0))),
    ):
        one, other = make(plain), make(packed)
        rows = list(range(0, len(one), 7))[::-1]
        assert list(other.take(rows)) == list(one.take(rows))
        assert [other[i] for i in rows[:9]] == [one[i] for i in rows[:9]]


@pytest.mark.parametrize("kind", NAMES)
def test_an_index_of_many_files_is_built_or_merged(write, tmp_path, kind):
    """Of gzip with access points, of members, which have none, of zstd, and plain."""
    count, paths, expected = 700 if kind == "jsonl" else 40, [], []
    with patch.object(gzip_codec, "SPACING", 20_000):
        for number, writer in enumerate([None, "gzip", "many", "members", None]):
            data = made(kind, count, number)
            suffix, compress = WRITERS[writer] if writer else ("", bytes)
            expected += list(mmapds.open(build(write, kind, data), decode="bytes"))
            paths.append(write(compress(data), f"{number}.{kind}{suffix}"))
        for workers, order in ((1, slice(None, None, -1)), (3, slice(None))):
            built = mmapds.build(paths[order], out=tmp_path / "all.mmx", workers=workers, force=True)
            merged = mmapds.merge([mmapds.build(path) for path in paths[order]], out=tmp_path / f"{workers}.mmx")
            assert merged.read_bytes() == built.read_bytes()
        verify(Index(str(merged)))
    ds = mmapds.open(merged, decode="bytes")
    assert list(ds) == expected
    ds[::3].save(tmp_path / "v.mmx")
    assert list(mmapds.open(tmp_path / "v.mmx", decode="bytes")) == expected[::3]


def test_names_say_what_they_are(write, tmp_path):
    data = archive(members_of(5))
    for name in ("a.tar.gz", "b.TGZ", "c.tar.zst", "d.tzst", "e.tar.bgz", "f"):
        write(WRITERS["one" if "zst" in name else "gzip"][1](data), name)
        assert len(mmapds.open(mmapds.build(tmp_path / name))) == 5
    with pytest.warns(UserWarning, match=r"passed over f\b|: f\b"):
        ds = mmapds.open(tmp_path)
    assert [os.path.basename(path) for path in ds.sources] == ["a.tar.gz", "b.TGZ", "c.tar.zst", "d.tzst", "e.tar.bgz"]


def test_a_directory_has_compressed_files_too_and_warns_of_two_forms_of_one(write, tmp_path):
    write(text(10), "d/a.jsonl")
    write(one_frame(text(10)), "d/b.jsonl.zst")
    ds = mmapds.open(tmp_path / "d", build=True)
    assert [os.path.basename(path) for path in ds.sources] == ["a.jsonl", "b.jsonl.zst"]
    write(one_frame(text(10)), "d/a.jsonl.zst")
    with pytest.warns(UserWarning, match=r"a\.jsonl\.zst: its records come twice, as .*a\.jsonl is given, too"):
        assert len(mmapds.open(tmp_path / "d", build=True)) == 30


# ---- chunks of blocks -----------------------------------------------------------------------------------------------


@pytest.fixture
def packed(write):
    """Two sources of many blocks, in one of which a record lies in several."""
    data = text(600) + b'{"id":600,"text":"%s"}\n' % (b"x" * 200_000)
    return mmapds.open([write(WRITERS["many"][1](data), f"{k}.jsonl.zst") for k in range(2)], build=True)


def test_blocks_start_with_the_first_record_that_begins_in_them(packed):
    blocks = [packed.where(i)[0] + str(packed.where(i).block) for i in range(1202)]
    starts = packed.block_starts
    assert np.unique(starts).tolist() == [*(i for i in range(1202) if not i or blocks[i] != blocks[i - 1]), 1202]
    assert len(starts) > len(np.unique(starts)), "some have no record that begins there"
    assert mmapds.zip(a=packed.map(len), b=packed).block_starts.tolist() == starts.tolist()
    inside = starts[(starts > 100) & (starts < 1000)] - 100
    assert packed[100:1000].block_starts.tolist() == [0, *inside.tolist(), 900]
    with pytest.raises(mmapds.Error, match="expected all records or a slice of neighbours, found another view"):
        packed[::2].block_starts  # noqa: B018


def test_chunks_end_with_blocks_and_sources(packed, write):
    starts = packed.block_starts
    for size, most in (("block", None), (100, 100)):
        order = orders.Chunked(packed, size, mix_chunks=4, seed=3)
        sampler = mmapds.ChunkedSampler(packed, size, num_replicas=1, rank=0, mix_chunks=4, seed=3)
        assert order.at(0, np.arange(1202)).tolist() == list(sampler)
        assert set(packed.source_starts.tolist()) <= set(order.chunk_starts.tolist())
        assert most is None or np.diff(order.chunk_starts).max() == most
    assert orders.Chunked(packed, "block").chunk_starts.tolist() == np.unique(starts).tolist()
    assert set(starts.tolist()) < set(orders.Chunked(starts, 100).chunk_starts.tolist())
    plain = mmapds.open(write(text(10)), build=True)
    with pytest.raises(mmapds.Error, match=r"train.jsonl: expected a compressed source, .*, found another"):
        mmapds.ChunkedSampler(plain, "block")
    for make in (mmapds.ChunkedSampler, orders.Chunked):
        with pytest.raises(OrderError, match=r"chunk_size = 'block', expected a dataset .*, found list") as error:
            make([1, 2, 3], "block")
        check(str(error.value))


def test_an_epoch_in_chunks_of_blocks_decodes_a_block_about_once(packed, monkeypatch):
    ds = mmapds.open(packed.sources, decode="bytes", block_cache=6 * 100_000)
    decoded, decode = [], BlockReader._decode
    monkeypatch.setattr(BlockReader, "_decode", lambda *given: (decoded.append(1), decode(*given))[1])
    rows = list(mmapds.ChunkedSampler(ds, "block", num_replicas=1, rank=0, mix_chunks=4, seed=3))
    assert sorted(rows) == list(range(len(ds)))
    assert rows != sorted(rows)
    for at in range(0, len(rows), 64):
        assert ds.take(rows[at : at + 64]) == [packed.raw(row) for row in rows[at : at + 64]]
    assert len(decoded) <= 2 * len(packed.block_starts), "a record over two blocks has both decoded"
