"""Frames of zstd and seek tables: found as they were written, and what is refused."""

import os
import re
import struct
import sys
from array import array
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from xxhash import xxh64_intdigest

import mmapds
from mmapds import _native
from mmapds.compression.zstd import UNKNOWN, codec, walk
from tests.support.commands import python
from tests.support.messages import check
from tests.support.zstd_files import (
    COMPRESSED,
    RESERVED,
    RUN,
    block,
    frame,
    plain_walk,
    raw,
    seek_table,
    skippable,
    zstd,
)

TEXT = b"".join(b'{"id": %d, "text": "some words"}\n' % number for number in range(3000))
CHECKED = {zstd.CompressionParameter.checksum_flag: True}


@pytest.fixture
def found(tmp_path):
    """Write a file and return its frames."""

    def found(data, **options):
        path = tmp_path / "a.jsonl.zst"
        path.write_bytes(data)
        return walk(_native.Map(str(path)), str(path), **options)

    return found


@pytest.fixture
def refused(found, tmp_path):
    """Return the message about a file, without its path, once it is certain that it is one."""

    def refused(data):
        with pytest.raises(mmapds.FormatError) as error:
            found(data)
        check(str(error.value))
        return str(error.value).replace(f"{tmp_path}/", "")

    return refused


def streamed(text, **options):
    """A frame by a writer that did not know the size."""
    writer = zstd.ZstdCompressor(options=options or None)
    return writer.compress(text[:100]) + writer.compress(text[100:]) + writer.flush()


def listed(frames):
    return list(frames.begins), list(frames.contents)


def with_table(parts, **options):
    """Frames of these texts, each checked, and a seek table."""
    frames = [zstd.compress(part, options=CHECKED) for part in parts]
    entries = [
        (len(each), len(part), xxh64_intdigest(part) & 2**32 - 1) for each, part in zip(frames, parts, strict=True)
    ]
    return b"".join(frames) + seek_table(entries, **options)


WRITERS = {
    "one frame": lambda text: zstd.compress(text),
    "a streamed frame": streamed,
    "many frames": lambda text: b"".join(zstd.compress(text[at : at + 7000]) for at in range(0, len(text), 7000)),
    "many streamed frames": lambda text: b"".join(streamed(text[at : at + 7000]) for at in range(0, len(text), 7000)),
    "a size before each frame, as pzstd": lambda text: b"".join(
        skippable(struct.pack("<I", len(part))) + part
        for part in (zstd.compress(text[at : at + 7000]) for at in range(0, len(text), 7000))
    ),
    "a seek table": lambda text: with_table([text[at : at + 7000] for at in range(0, len(text), 7000)]),
    "frames without text between": lambda text: b"".join(
        [zstd.compress(b""), zstd.compress(text[:9]), skippable(b"x" * 50, 3), zstd.compress(b"")] * 2
        + [zstd.compress(text[9:])]
    ),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_every_frame_decodes_between_its_bounds(found, writer):
    data = WRITERS[writer](TEXT)
    frames = found(data)
    texts = [zstd.ZstdDecompressor().decompress(data[a:b]) for a, b in pairwise(frames.begins)]
    assert b"".join(texts) == zstd.decompress(data)
    assert all(said in (len(text), UNKNOWN) for said, text in zip(frames.contents, texts, strict=True))
    if "streamed" in writer:
        assert set(frames.contents) == {UNKNOWN}
    else:
        assert list(frames.contents) == list(map(len, texts))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    parts=st.lists(
        st.one_of(
            st.binary(max_size=300).map(zstd.compress),
            st.binary(max_size=300).map(streamed),
            st.builds(skippable, st.binary(max_size=20), st.integers(0, 15)),
            st.builds(
                frame,
                st.just(block(RUN, 100, b"x", last=False)),
                st.builds(raw, st.binary(max_size=9)),
                size=st.one_of(st.none(), st.integers(0, 2**64 - 1), st.integers(95, 110)),
                window=st.one_of(st.none(), st.integers(0, 255)),
                dictionary=st.sampled_from([0, 0, 0, 7]),
                checksum=st.sampled_from([b"", b"sums"]),
            ),
            st.binary(max_size=5),
        ),
        max_size=6,
    ),
    changes=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=2),
)
@example(parts=[], changes=[])
@example(parts=[b"\x28\xb5\x2f"], changes=[])
def test_a_walk_finds_what_a_plain_one_does(found, parts, changes):
    data = bytearray(b"".join(parts))
    for at, byte in changes:
        if data:
            data[at % len(data)] = byte
    expected, wrong = plain_walk(bytes(data))
    try:
        frames = found(bytes(data))
    except mmapds.FormatError as error:
        check(str(error))
        place = re.search(r"frame (\d+) \(byte (\d+)\)", str(error))
        assert (int(place[1]), int(place[2])) == (len(expected), wrong)
    else:
        assert wrong is None
        assert listed(frames) == ([begin for begin, _ in expected] + [len(data)], [size for _, size in expected])


def test_a_walk_goes_on_wherever_a_piece_ends(tmp_path):
    data = WRITERS["frames without text between"](os.urandom(300_000)) + streamed(TEXT)
    (tmp_path / "a").write_bytes(data)
    file = _native.Map(str(tmp_path / "a"))
    expected = walk(file, "a")
    for step in (1, 7, 100_000):
        begins, contents, state = array("Q"), array("Q"), array("Q", bytes(56))
        room = array("Q", bytes(16)), array("Q", bytes(16))
        while state[0] < file.size:
            count, status = _native.zstd_walk(file, state[0] + step, 1 << 27, state, *room)
            assert status == _native.ZSTD_OK
            begins.extend(room[0][:count])
            contents.extend(room[1][:count])
        assert (begins, contents) == (expected.begins[:-1], expected.contents)


def test_a_file_cut_at_any_byte_is_refused_or_whole_up_to_there(found):
    parts = [zstd.compress(b"one" * 50, options=CHECKED), skippable(b"abc"), streamed(b"two" * 60), zstd.compress(b"3")]
    data = b"".join(parts)
    seams = {len(b"".join(parts[:k])) for k in range(5)}
    for end in range(len(data) + 1):
        if end in seams:
            assert found(data[:end]).begins[-1] == end
        else:
            with pytest.raises(mmapds.FormatError):
                found(data[:end])


def test_frames_above_4_gib(tmp_path):
    """A file with a hole, of 8 GiB; and a frame of 5 GiB of text, in runs."""
    path = tmp_path / "a.zst"
    runs = [block(RUN, 128 << 10, b"x", last=k == 40_959) for k in range(40_960)]
    with open(path, "wb") as file:
        for _ in range(2):
            file.write(struct.pack("<II", 0x184D2A50, 2**32 - 1))
            file.seek(2**32 - 1, os.SEEK_CUR)
        begin = file.tell()
        file.write(frame(*runs, size=5 << 30, window=56) + zstd.compress(b"text"))
    frames = walk(_native.Map(str(path)), "a.zst")
    assert begin > 2**33
    assert listed(frames) == ([begin, begin + 4 * 40_960 + 14, os.path.getsize(path)], [5 << 30, 4])


GOOD = zstd.compress(b"good")
REFUSALS = {
    "text": (b'{"a": 1}\n', r"frame 0 \(byte 0\): expected a zstd frame, found bytes 7b 22 61 22; copy the file again"),
    "gzip": (b"\x1f\x8b\x08\x00", r"frame 0 \(byte 0\): expected a zstd frame, found bytes 1f 8b 08 00; "),
    "trailing garbage": (
        GOOD + b"\0\0\0",
        r"frame 1 \(byte 13\): expected a zstd frame or the end of the file, found ",
    ),
    "a frame cut in its header": (
        GOOD + GOOD[:5],
        r"frame 1 \(byte 13\): expected a whole frame, found the end of the ",
    ),
    "a frame cut between blocks": (frame(raw(b"x", last=False)), r"frame 0 .* found the end of the file 10 bytes into"),
    "a skippable frame that is cut": (GOOD + skippable(b"abc")[:-1], r"frame 1 \(byte 13\): expected a whole frame"),
    "a skippable frame of 4 GiB that is not there": (b"\x50\x2a\x4d\x18\xff\xff\xff\xff", r"expected a whole frame"),
    "a reserved block": (
        frame(block(RESERVED, 1)),
        r"expected bits and types of blocks that zstd uses, found reserved",
    ),
    "a reserved bit": (frame(raw(b"x"), reserved=True), r"expected bits and types of blocks"),
    "a dictionary": (frame(raw(b"x"), dictionary=99), r"found one that needs dictionary 99; copy"),
    "a window of 129 MiB": (
        frame(raw(b"x"), window=17 << 3 | 1),
        r"of 134217728 bytes or less, found one of 150994944",
    ),
    "a window of 2 GiB": (
        frame(raw(b"x"), window=21 << 3),
        r"found one of 2147483648; run: .* --long 31 a",
    ),
    "a window of 3 TiB": (frame(raw(b"x"), window=31 << 3 | 4), r"found one of 3298534883328; run: .* --long 42 a"),
    "a window that is all text": (
        frame(raw(b"x"), size=2**27 + 1),
        r"found one of 134217729; run: .* --long 28 a",
    ),
    "a bomb that lies": (frame(raw(b"x"), size=2**60, window=0), r"hold 1152921504606846976 bytes of text, as its hea"),
    "text where its header says none": (frame(raw(b"x"), size=0), r"hold 0 bytes of text"),
    "a block too few": (frame(block(COMPRESSED, 1, b"x"), size=2**17 + 1), r"hold 131073 bytes of text"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_what_is_not_a_frame_is_refused(refused, case):
    data, expected = REFUSALS[case]
    message = refused(data)
    assert re.search(expected, message), message
    assert message.startswith("a.jsonl.zst: frame ")


def test_larger_windows_can_be_allowed(found):
    data = frame(raw(b"x"), window=21 << 3)
    assert listed(found(data, largest_window=2**31)) == ([0, len(data)], [UNKNOWN])


def test_a_file_that_becomes_shorter_is_an_end_of_file(tmp_path):
    path = tmp_path / "a.zst"
    path.write_bytes(b"".join(zstd.compress(os.urandom(5000)) for _ in range(20)))
    file = _native.Map(str(path))
    os.truncate(path, 50_000)
    with pytest.raises(EOFError, match="found fewer"):
        walk(file, str(path))


def test_a_file_read_by_pread_cannot_be_walked(tmp_path):
    (tmp_path / "a").write_bytes(GOOD)
    with pytest.raises(ValueError, match="expected a file that is mapped"):
        walk(_native.Map(str(tmp_path / "a"), _native.IO_PREAD), "a")


# ---- the codec


def test_the_codec_is_imported_when_it_is_asked_for():
    code = "import sys, mmapds.compression.zstd as c\n"
    code += f"assert not {{{zstd.__name__!r}, 'numpy'}} & set(sys.modules)\nprint(c.codec('a').compress(b'x'))"
    assert python(code).stdout == f"{zstd.compress(b'x')}\n"


def test_a_missing_codec_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, zstd.__name__.partition(".")[0], None)
    with pytest.raises(mmapds.Error, match=r"^a\.jsonl\.zst: reading zstd needs backports\.zstd, .*, found import of "):
        codec("a.jsonl.zst")
