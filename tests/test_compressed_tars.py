"""Tars in compressed files, sample by sample as the plain file has them."""

import json
import os
import random

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

import mmapds
from mmapds import _native
from mmapds.formats import tar
from mmapds.formats.tar import TarWalk
from mmapds.index.verify import verify
from mmapds.storage.index_file import Index
from tests.support.compressed import WRITERS, frames
from tests.support.pieces import walked
from tests.support.tars import DIALECTS, archive, members_of, pax, special

NAMES = {
    name: ".tar.zst" if suffix == ".zst" else ".tgz" if name == "gzip" else ".tar" + suffix
    for name, (suffix, _) in WRITERS.items()
}


def samples(count, seed=0, *, largest=40_000):
    """Members of samples of all sizes: (name, bytes) pairs, directories and members without a key between them."""
    random_ = random.Random(seed)
    for number in range(count):
        if number % 7 == 0:
            yield special(f"d{number}", b"5")
        if number % 11 == 0:
            yield f"__note__{number}", random_.randbytes(700)
        name = ("d" * random_.choice([0, 0, 0, 90, 300]) + "/" if number % 5 == 0 else "") + f"s{number:04}"
        yield f"{name}.json", json.dumps({"n": number, "text": "x" * random_.randrange(900)}).encode()
        yield f"{name}.bin", random_.randbytes(random_.choice([0, 1, 511, 512, 513, 3000, largest]))
        if number % 3 == 0:
            yield f"{name}.seg.cls", str(number).encode()


def compressed(data, name):
    return WRITERS[name][1](data)


def same(path, plain):
    """Check that a dataset has what another one has, whose file is plain; return both."""
    ds, expected = mmapds.open(path), mmapds.open(plain)
    wanted = [{**sample, "__url__": path} for sample in expected]
    assert list(ds) == wanted
    rows = random.Random(1).sample(range(len(wanted)), len(wanted))
    assert list(ds.take(rows)) == [wanted[row] for row in rows]
    assert [ds.where(row)[1:] for row in rows] == [expected.where(row)[1:] for row in rows]
    assert all(ds.find(sample["__key__"]) == expected.find(sample["__key__"]) for sample in wanted)
    return ds, expected


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("writer", sorted(set(WRITERS) - {"records"}))
def test_every_sample_is_that_of_the_plain_file(write, writer, dialect):
    files = [each for each in samples(60) if dialect != "ustar" or (isinstance(each, tuple) and len(each[0]) < 200)]
    data = archive(files, dialect)
    plain = write(data, "plain.tar")
    path = write(compressed(data, writer), "a" + NAMES[writer])
    for each in (plain, path):
        mmapds.build(each, length="bytes()")
    ds, expected = same(path, plain)
    assert len(ds) > 50
    assert (ds.lengths == expected.lengths).all()
    decoded = mmapds.open(path, decode="wds")
    assert [sample["json"]["n"] for sample in decoded] == [
        sample["json"]["n"] for sample in mmapds.open(plain, decode="wds")
    ]
    verify(Index(f"{path}.mmx"))
    one, other = (Index(f"{each}.mmx").sources[0] for each in (path, plain))
    assert (one.records, one.smallest, one.largest, one.lines) == (
        other.records,
        other.smallest,
        other.largest,
        other.lines,
    )


@pytest.mark.parametrize("writer", ["many", "one", "streamed", "gzip", "bgzf"])
def test_members_larger_than_any_block(write, writer):
    """A sample may lie in many blocks; and in one that is too large to be decoded at once, which is read in order."""
    big = random.Random(0).randbytes(9 << 20)
    data = archive([("a.txt", b"1"), ("b.bin", big), ("b.txt", b"2"), ("c.txt", b"3")])
    pack = (lambda data: b"".join(frames(data, 1 << 20))) if writer == "many" else WRITERS[writer][1]
    path = write(pack(data), "a" + NAMES[writer])
    ds = mmapds.open(path, build=True)
    assert [sample["__key__"] for sample in ds] == ["a", "b", "c"]
    assert ds[1]["bin"] == big
    assert ds[2]["txt"] == b"3"
    verify(Index(f"{path}.mmx"))


def test_one_large_frame_is_read_in_any_order_once_it_is_seekable(write):
    data = archive([*samples(40, largest=500_000), ("z.bin", bytes(8 << 20))])
    plain, path = write(data, "plain.tar"), write(compressed(data, "one"), "a.tzst")
    assert len(data) > 8 << 20
    for each in (plain, path):
        mmapds.build(each)
    ds = mmapds.open(path, block_cache=17 << 19)  # which holds the last record, and not those before it
    assert ds[-1]["bin"] == bytes(8 << 20)
    with pytest.raises(
        mmapds.Error, match=r"expected records in the order of the file.*; run: python -m mmapds seekable"
    ):
        ds[30]
    for source in (path, write(compressed(data, "gzip"), "b.tgz")):
        made = mmapds.seekable(source)
        assert made.path == f"{source.rpartition('.')[0]}.tar.zst"
        mmapds.build(made.path)
        same(made.path, plain)


def plain_scan(data):
    """What a scan of a whole archive finds, by the core."""
    stream = _native.TarScanner()
    words = [memoryview(bytearray(8 * (len(data) // 512 + 2))).cast("Q") for _ in range(3)]
    status, count, *place = stream.scan(data, len(data), True, *words)
    return status, [list(each[:count]) for each in words], place


NAME = st.sampled_from(
    ["a.x", "a.y", "b.x", "b.Y", "nodot", "d/b.x", "d" * 120 + "/c.x", "é" * 200 + ".x", "__m__/a.x"]
)
MEMBER = st.tuples(NAME, st.sampled_from([0, 1, 511, 512, 513, 2000]))


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(MEMBER, max_size=8),
    st.sampled_from(sorted(set(DIALECTS) - {"ustar"})),
    st.lists(st.integers(0, 12_000), max_size=12),
    st.integers(0, 12_000) | st.none(),
    st.integers(0, 12_000) | st.none(),
)
def test_content_in_pieces_of_any_size(files, dialect, cuts, end, damaged):
    data = bytearray(archive([(name, bytes(size)) for name, size in files], dialect))[:end]
    if damaged is not None and damaged < len(data):
        data[damaged] ^= 1
    status, expected, (at, last, count, _) = plain_scan(bytes(data))
    if status not in (_native.TAR_END, _native.TAR_TRUNCATED):
        with pytest.raises(mmapds.FormatError, match=rf"record {count} \(byte {at}\)"):
            walked(TarWalk, bytes(data), cuts)
        return
    walk, found = walked(TarWalk, bytes(data), cuts)
    total, cut = walk.end()
    assert (found, total.lines, total.end, cut) == (expected, count, last, status == _native.TAR_TRUNCATED)


@pytest.mark.parametrize("writer", ["gzip", "one", "bgzf"])
def test_an_archive_that_is_cut_short(write, writer):
    data = archive([("a.x", b"1" * 600), ("a.y", b"2" * 600), ("b.x", b"3" * 600), ("b.y", b"4" * 600)], "gnu")
    for cut in (1, 700, 1536, 1800, 2 * 1536 + 100, 2 * 1536 + 600, 4 * 1536 - 1):
        plain, path = write(data[:cut], "plain.tar"), write(compressed(data[:cut], writer), "a" + NAMES[writer])
        messages = []
        for each in (plain, path):
            try:
                mmapds.build(each, force=True, truncated="error")
            except mmapds.FormatError as error:
                messages.append(str(error).removeprefix(each))
        assert len(messages) == (2 if cut != 1536 else 0)
        assert len(set(messages)) <= 1
        for each in (plain, path):
            mmapds.build(each, force=True, truncated="drop")
        same(path, plain)
        one, other = (Index(f"{each}.mmx").sources[0] for each in (path, plain))
        assert (one.skipped, one.records) == (other.skipped, other.records)
        verify(Index(f"{path}.mmx"))


def test_what_is_wrong_stands_at_the_byte_of_the_text(write):
    good = archive([("a.txt", b"1")], "gnu")[:1024]
    cases = {
        "expected a tar header, found a wrong header checksum": good + b"x" * 2000,
        "expected two blocks of zeros": good + bytes(512) + good,
        r"expected each extension of sample 'a' once, found 'TXT' twice": good + archive([("a.TXT", b"1")], "gnu"),
        "found a sparse one": good + archive([special("a.bin", b"S")], "gnu"),
        "each line of the pax header": good + pax(b"11 path=b.t\n"),
    }
    for message, data in cases.items():
        for writer in ("gzip", "many"):
            with pytest.raises(mmapds.FormatError, match=rf"record 0 \(byte 1024\): .*{message}"):
                mmapds.build(write(compressed(data, writer), "a" + NAMES[writer]))


def test_files_that_are_damaged(write):
    data = archive(members_of(300), "gnu")
    packed = compressed(data, "one")
    for damaged in (packed[:-5], packed[: len(packed) // 2]):
        with pytest.raises(mmapds.FormatError, match=r"a\.tar\.zst: frame 0 \(byte 0\): expected a whole frame"):
            mmapds.build(write(damaged, "a.tar.zst"))
    with pytest.raises(mmapds.FormatError, match="expected a zstd frame or the end of the file"):
        mmapds.build(write(packed + b"garbage", "a.tar.zst"))
    packed = compressed(data, "gzip")
    for damaged in (packed[:-5], packed[: len(packed) // 2], packed + b"garbage", packed[:-8] + bytes(8)):
        with pytest.raises(
            mmapds.FormatError, match=r"a\.tgz: block \d+ \(byte \d+\): not gzip: .*(; |\(or )copy the file again"
        ):
            mmapds.build(write(damaged, "a.tgz"))


def test_headers_that_lie_take_no_memory(write, monkeypatch):
    """An extended header that says it is large is kept up to a limit; a member is not kept at all."""
    data = special("a.x", b"x", size=2**32).tobuf(DIALECTS["ustar"]) + bytes(3 << 20)
    with pytest.raises(
        mmapds.FormatError, match=r"record 0 \(byte 0\): expected extended headers of up to 16777216 bytes"
    ):
        mmapds.build(write(compressed(data, "gzip"), "a.tgz"))
    member = special("a.x", b"0", size=2**40).tobuf(DIALECTS["gnu"]) + bytes(3 << 20)
    with pytest.raises(mmapds.FormatError, match="expected a whole sample, found the end of the file at byte"):
        mmapds.build(write(compressed(member, "gzip"), "a.tgz"))
    monkeypatch.setattr(tar, "LARGEST_HEADERS", 1024)
    data = archive([("a.txt", b"1"), ("é" * 2000 + ".txt", b"2")], "pax")
    with pytest.raises(mmapds.FormatError, match=r"record 0 \(byte 1024\): expected extended headers of up to 1024"):
        walked(TarWalk, data, [1600])


def test_plain_and_compressed_archives_in_one_index(write, tmp_path):
    paths, expected = [], []
    for number, writer in enumerate([None, "gzip", "many", "one", None]):
        data = archive(members_of(10 * number, f"{number}/"))
        suffix = NAMES[writer] if writer else ".tar"
        paths.append(write(compressed(data, writer) if writer else data, f"{number}{suffix}"))
        expected += [f"{number}/s{each:04}" for each in range(10 * number)]
    for workers in (1, 3):
        ds = mmapds.open(mmapds.build(paths, out=tmp_path / "all.mmx", workers=workers, force=True))
        assert [sample["__key__"] for sample in ds] == expected
        assert [ds.find(key) for key in expected] == list(range(len(expected)))
    for path in paths:
        mmapds.build(path)
    merged = mmapds.merge([f"{path}.mmx" for path in paths], out=tmp_path / "merged.mmx")
    assert merged.read_bytes() == (tmp_path / "all.mmx").read_bytes()


def test_names_say_what_they_are(write, tmp_path):
    data = archive(members_of(5))
    for name in ("a.tar.gz", "b.TGZ", "c.tar.zst", "d.tzst", "e.tar.bgz", "f"):
        write(compressed(data, "one" if "z" in name and "st" in name else "gzip"), name)
        mmapds.build(tmp_path / name)
        assert len(mmapds.open(tmp_path / name)) == 5
    with pytest.warns(UserWarning, match=r"passed over f\b|: f\b"):
        ds = mmapds.open(tmp_path)
    assert [os.path.basename(path) for path in ds.sources] == ["a.tar.gz", "b.TGZ", "c.tar.zst", "d.tzst", "e.tar.bgz"]


def test_a_stream_takes_what_it_asked_for():
    stream = _native.TarScanner()
    words = [memoryview(bytearray(80)).cast("Q") for _ in range(3)]
    with pytest.raises(ValueError, match="data: expected up to 3 bytes, found 4"):
        stream.scan(b"1234", 3, False, *words)
    assert stream.scan(b"", 0, False, *words) == (_native.TAR_MORE, 0, 0, 0, 0, (512, 512))
    assert stream.scan(b"", 0, True, *words) == (_native.TAR_END, 0, 0, 0, 0, None)
    with pytest.raises(TypeError):
        _native.TarScanner(1)
