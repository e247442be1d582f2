"""Tars, TFRecords and length-prefixed records in compressed files: as those of the plain file, in any pieces."""

import json
import os
import random
import re
import struct
from functools import partial
from itertools import chain, pairwise

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

import mmapds
from mmapds import _native
from mmapds.compression.content import Part
from mmapds.formats import tar
from mmapds.formats.expressions import Measuring
from mmapds.formats.format import reserve_words
from mmapds.formats.frames import FramesWalk
from mmapds.formats.tar import TarWalk
from mmapds.index.verify import verify
from mmapds.storage.index_file import Index
from mmapds.storage.sources import Source
from tests.support.compressed import WRITERS, frames
from tests.support.tars import DIALECTS, archive, members_of, pax, special


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
NAMES = {"tar": "a.tar", "tfrecord": "a.tfrecord"}


def sample_of(number):
    """Members of a sample of any size; directories and members without a key between them."""
    random_ = random.Random(number)
    if number % 7 == 0:
        yield special(f"d{number}", b"5")
    if number % 11 == 0:
        yield f"__note__{number}", random_.randbytes(700)
    name = ("d" * random_.choice([0, 90, 300]) + "/" if number % 5 == 0 else "") + f"s{number:04}"
    yield f"{name}.json", json.dumps({"n": number, "text": "x" * random_.randrange(900)}).encode()
    yield f"{name}.bin", random_.randbytes(random_.choice([0, 1, 511, 512, 513, 3000, 40_000]))


def made(kind, count=60, seed=0):
    """A plain file of some records, of all sizes."""
    if kind == "tar":
        return archive(chain.from_iterable(map(sample_of, range(seed, seed + count))), "gnu")
    random_ = random.Random(seed)
    sizes = random_.choices([0, 1, 7, 100, 3000, 40_000], k=count)
    return b"".join(FRAMINGS[kind][1](random_.randbytes(size)) for size in sizes)


def build(write, kind, data, writer=None, **options):
    """Write a file of some framing, compressed by a writer; index it, and return its path."""
    suffix, compress = WRITERS[writer] if writer else ("", bytes)
    options |= {} if kind in NAMES else {"format": "prefixed", "prefix": kind}
    path = write(compress(data), NAMES.get(kind, "a.bin") + suffix)
    mmapds.build(path, force=True, **options)
    return path


def assert_same(path, plain):
    """That a dataset has what another one has, whose file is plain."""
    ds, expected = mmapds.open(path), mmapds.open(plain)
    wanted = [{**sample, "__url__": path} if isinstance(sample, dict) else sample for sample in expected]
    assert list(ds) == wanted
    rows = random.Random(1).sample(range(len(wanted)), len(wanted))
    assert list(ds.take(rows)) == [wanted[row] for row in rows]
    assert [ds.where(row)[1:] for row in rows] == [expected.where(row)[1:] for row in rows]
    if "tar" in path:
        assert all(ds.find(sample["__key__"]) == expected.find(sample["__key__"]) for sample in wanted)
    assert "length" not in ds.columns or (ds.lengths == expected.lengths).all()
    one, other = (Index(f"{each}.mmx").sources[0]._asdict() for each in (path, plain))
    for name in ("records", "smallest", "largest", "lines", "skipped"):
        assert one[name] == other[name]
    verify(Index(f"{path}.mmx"))


PAIRS = [("tar", "gzip"), ("tar", "mixed"), ("tar", "bgzf"), ("tfrecord", "members"), ("tfrecord", "streamed")]


@pytest.mark.parametrize(("kind", "writer"), [*PAIRS, ("tfrecord", "many"), ("u32le", "pzstd"), ("varint", "gzip")])
def test_every_record_is_that_of_the_plain_file(write, kind, writer):
    paths = [build(write, kind, made(kind), each, length="bytes()") for each in (writer, None)]
    assert_same(*paths)


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


@pytest.mark.parametrize("kind", ["tar", "tfrecord"])
def test_plain_and_compressed_files_share_an_index(write, tmp_path, kind):
    paths, expected = [], []
    for number, writer in enumerate([None, "gzip", "many", "one", None]):
        data = made(kind, 10 * number, 100 * number)
        suffix, compress = WRITERS[writer] if writer else ("", bytes)
        expected += list(mmapds.open(build(write, kind, data), decode="bytes"))
        paths.append(write(compress(data), f"{number}.{kind}{suffix}"))
    for workers in (1, 3):
        ds = mmapds.open(mmapds.build(paths, out=tmp_path / "all.mmx", workers=workers, force=True), decode="bytes")
        assert list(ds) == expected
    merged = mmapds.merge([mmapds.build(path) for path in paths], out=tmp_path / "merged.mmx")
    assert merged.read_bytes() == (tmp_path / "all.mmx").read_bytes()


def test_names_say_what_they_are(write, tmp_path):
    data = archive(members_of(5))
    for name in ("a.tar.gz", "b.TGZ", "c.tar.zst", "d.tzst", "e.tar.bgz", "f"):
        write(WRITERS["one" if "zst" in name else "gzip"][1](data), name)
        assert len(mmapds.open(mmapds.build(tmp_path / name))) == 5
    with pytest.warns(UserWarning, match=r"passed over f\b|: f\b"):
        ds = mmapds.open(tmp_path)
    assert [os.path.basename(path) for path in ds.sources] == ["a.tar.gz", "b.TGZ", "c.tar.zst", "d.tzst", "e.tar.bgz"]


# ---- pieces that are cut anywhere -----------------------------------------------------------------------------------


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


# ---- content that ends inside a record, or is none ------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "writer"), [("tar", "gzip"), ("tfrecord", "one"), ("varint", "gzip")])
def test_content_that_ends_inside_a_record_is_refused_or_the_record_is_left_out(write, kind, writer):
    good = made(kind, 8).rstrip(b"\0") if kind == "tar" else made(kind, 8)
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
        paths = [build(write, kind, good + more[:kept], each, truncated="drop") for each in (writer, None)]
        assert_same(*paths)
        assert Index(f"{paths[0]}.mmx").sources[0].skipped == 1
        assert len(mmapds.open(paths[0])) == 8 - ("record 7" in messages[0]), "a sample whose end is unknown"


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


def test_extended_headers_are_kept_up_to_a_limit(monkeypatch):
    monkeypatch.setattr(tar, "LARGEST_HEADERS", 1024)
    data = archive([("a.txt", b"1"), ("é" * 2000 + ".txt", b"2")], "pax")
    with pytest.raises(mmapds.FormatError, match=r"record 0 \(byte 1024\): expected extended headers of up to 1024"):
        walked(TarWalk, data, [1600])


@pytest.mark.parametrize("writer", ["gzip", "many"])
def test_verify_compares_the_checksum_of_every_payload(write, writer):
    data = bytearray(TFRECORDS + tfrecord(bytes(40_000)) + tfrecord(b"last"))
    data[len(TFRECORDS) + 30_000] ^= 1
    path = build(write, "tfrecord", bytes(data), writer)
    message = rf"record 60 \(byte {len(TFRECORDS)}\): expected \w+ as the CRC of the data"
    with pytest.raises(mmapds.FormatError, match=message):
        verify(Index(f"{path}.mmx"))


def test_a_scanner_of_tars_says_which_bytes_it_needs():
    words = [memoryview(bytearray(80)).cast("Q") for _ in range(3)]
    with pytest.raises(ValueError, match="data: expected up to 3 bytes, found 4"):
        _native.TarScanner().scan(b"1234", 3, False, *words)
    assert _native.TarScanner().scan(b"", 0, False, *words) == (_native.TAR_MORE, 0, 0, 0, 0, (512, 512))
    assert _native.TarScanner().scan(b"", 0, True, *words) == (_native.TAR_END, 0, 0, 0, 0, None)
    with pytest.raises(TypeError):
        _native.TarScanner(1)
