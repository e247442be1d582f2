"""Frames of zstd: found as they were written, decoded by zstd's own library or Python's codec, or refused."""

import os
import re
import struct
import sys
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import mmapds
from mmapds import _native
from mmapds.compression import zstd
from mmapds.compression.zstd import codec, walk
from tests.support.compressed import ZSTD, streamed, text
from tests.support.files import patched
from tests.support.messages import check
from tests.support.zstd_files import RESERVED, RUN, block, frame, plain_walk, raw, skippable
from tests.support.zstd_files import zstd as module

TEXT = text(600)
has_library = pytest.mark.skipif(zstd.library() is None, reason="the system has no libzstd")


@pytest.fixture
def found(tmp_path):
    """Write a file and return its frames: where they begin and the file ends, and how much text each has."""

    def found(data):
        path = tmp_path / "a.jsonl.zst"
        path.write_bytes(data)
        frames = walk(_native.Map(str(path)), str(path))
        return list(frames.begins), list(frames.contents)

    return found


# ---- frames ---------------------------------------------------------------------------------------------------------


BYTE = st.integers(0, 255)
FRAMES = st.builds(
    frame,
    st.just(block(RUN, 100, b"x", last=False)),
    st.builds(raw, st.binary(max_size=9)),
    size=st.one_of(st.none(), st.integers(0, 2**64 - 1), st.integers(95, 110)),
    window=st.none() | BYTE,
    dictionary=st.sampled_from([0, 0, 0, 7]),
    checksum=st.sampled_from([b"", b"sums"]),
)
TEXTS = st.binary(max_size=300)
SKIPPABLE = st.builds(skippable, st.binary(max_size=20), st.integers(0, 15))
PARTS = [TEXTS.map(module.compress), TEXTS.map(streamed), SKIPPABLE, FRAMES, st.binary(max_size=5)]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.one_of(PARTS), max_size=6),
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=2),
    st.none() | st.integers(0, 300),
    st.sampled_from([1, 7, 256 << 20]),
)
@example([], [], None, 1)
@example([b"\x28\xb5\x2f"], [], None, 1)
def test_a_walk_finds_what_a_plain_one_does(found, parts, changes, end, step):
    """Wherever a piece of it ends; in a file that ends early, or has wrong bytes, up to there."""
    data = bytearray(b"".join(parts))[:end]
    for at, byte in changes if data else ():
        data[at % len(data)] = byte
    expected, wrong = plain_walk(bytes(data))
    try:
        with patch.object(zstd, "_STEP", step):
            begins, contents = found(bytes(data))
    except mmapds.FormatError as error:
        check(str(error))
        place = re.search(r"frame (\d+) \(byte (\d+)\)", str(error))
        assert (int(place[1]), int(place[2])) == (len(expected), wrong)
    else:
        assert wrong is None
        assert (begins, contents) == ([begin for begin, _ in expected] + [len(data)], [size for _, size in expected])


def test_frames_above_4_gib(tmp_path):
    """A file with a hole, of 8 GiB; and a frame of 5 GiB of text, in runs."""
    path = tmp_path / "a.zst"
    runs = [block(RUN, 128 << 10, b"x", last=k == 40_959) for k in range(40_960)]
    with open(path, "wb") as file:
        for _ in range(2):
            file.write(struct.pack("<II", 0x184D2A50, 2**32 - 1))
            file.seek(2**32 - 1, os.SEEK_CUR)
        begin = file.tell()
        file.write(frame(*runs, size=5 << 30, window=56) + module.compress(b"text"))
    found = walk(_native.Map(str(path)), "a.zst")
    assert list(found.begins) == [begin, begin + 4 * 40_960 + 14, os.path.getsize(path)]
    assert list(found.contents) == [5 << 30, 4]


GOOD, X = module.compress(b"good"), raw(b"x")
WINDOW = r"0 \(byte 0\): expected a window of 134217728 bytes or less, found one of "
REFUSED = {
    "text": (b'{"a": 1}\n', r"0 \(byte 0\): expected a zstd frame, found bytes 7b 22 61 22; copy the file again"),
    "cut between blocks": (frame(raw(b"x", last=False)), r"0 .* found the end of the file 10 bytes into"),
    "one of 4 GiB that is not there": (b"\x50\x2a\x4d\x18" + b"\xff" * 4, r"0 \(byte 0\): expected a whole frame"),
    "a reserved block": (frame(block(RESERVED, 1)), r"0 .* types of blocks that zstd uses, found reserved ones"),
    "a dictionary": (frame(X, dictionary=99), r"0 .* found one that needs dictionary 99; copy"),
    "a window of 129 MiB": (frame(X, window=17 << 3 | 1), rf"{WINDOW}150994944; run: .* --long 28 "),
    "a window of 3 TiB": (frame(X, window=31 << 3 | 4), rf"{WINDOW}3298534883328; run: .* --long 42 "),
    "a bomb": (frame(X, size=2**60, window=0), r"0 .* hold 1152921504606846976 bytes of text, as its header says"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_a_frame_is_refused(found, case):
    data, expected = REFUSED[case]
    with pytest.raises(mmapds.FormatError, match=f"/a.jsonl.zst: frame {expected}") as error:
        found(data)
    check(str(error.value))


# ---- what decodes them ----------------------------------------------------------------------------------------------


def test_a_missing_codec_or_library_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, module.__name__.partition(".")[0], None)
    with pytest.raises(mmapds.Error, match=r"^a\.jsonl\.zst: reading zstd needs backports\.zstd, .*, found import of "):
        codec("a.jsonl.zst")
    for name in ("libzstd-of-nobody.so", str(tmp_path)):
        with pytest.raises(OSError, match=r"expected zstd's library, 1\.4\.0 or later"):
            _native.Zstd(name)


@has_library
@pytest.mark.parametrize("writer", ZSTD)
def test_both_engines_have_the_same_records_and_words_for_damage(opened, monkeypatch, writer):
    data = ZSTD[writer](TEXT)
    path, found = opened(data, "a.jsonl.zst").sources[0], {}
    for engine in (zstd.library, lambda: None):
        monkeypatch.setattr(zstd, "library", engine)
        found[engine] = [list(mmapds.open(path, decode="bytes"))]
        for at in range(0, len(data), 1009):
            patched(path, at, bytes([data[at] ^ 0x55]))
            try:
                found[engine].append(mmapds.open(path, decode="bytes").take(range(600)))
            except mmapds.Error as error:
                found[engine].append(str(error))
            patched(path, at, data[at : at + 1])
    by_library, by_codec = found.values()
    assert by_library == by_codec
    assert by_library[0] == TEXT.splitlines()
    assert any("not zstd: " in each for each in by_library)
