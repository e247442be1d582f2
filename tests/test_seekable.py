"""`mmapds.seekable`: what it writes, that every reader of zstd reads it, and what it refuses."""

import gzip
import json
import lzma
import os
import re
import shlex
import struct
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from xxhash import xxh64_intdigest

import mmapds
from mmapds import _native
from mmapds.cli.commands import main
from mmapds.compression.zstd import walk
from mmapds.convert import recompress
from tests.support.compressed import CHECKSUM, ZSTD, many_members
from tests.support.files import largest_file
from tests.support.messages import check
from tests.support.zstd_files import RUN, block, frame, raw, zstd

LINES = [b'{"id": %d, "text": "%s"}\n' % (n, b"some words " * (n % 40)) for n in range(1500)]
TEXT = b"".join(LINES)
SOURCES = {"plain.jsonl": bytes, "a.jsonl.gz": gzip.compress, "b.jsonl.gz": many_members}
SOURCES |= {f"{name}.jsonl.zst": write for name, write in ZSTD.items()}


def frames_of(path):
    """The texts of the frames, once it is certain that walk and seek table agree and all checksums are right."""
    frames = walk(_native.Map(str(path)), str(path))
    with open(path, "rb") as opened:
        data = opened.read()
    count, flags, magic = struct.unpack("<IBI", data[-9:])
    end = len(data) - 9 - 12 * count
    assert (flags, magic) == (0x80, 0x8F92EAB1)
    assert struct.unpack("<II", data[end - 8 : end]) == (0x184D2A5E, 12 * count + 9)
    bounds = list(pairwise([*frames.begins[:-1], end - 8]))
    texts = [zstd.decompress(data[begin:end]) for begin, end in bounds]
    checksums = [xxh64_intdigest(text) & 0xFFFFFFFF for text in texts]
    sizes = [end - begin for begin, end in bounds]
    assert list(struct.iter_unpack("<III", data[end:-9])) == list(zip(sizes, map(len, texts), checksums, strict=True))
    assert list(frames.contents) == list(map(len, texts))
    return texts


# ---- what it writes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SOURCES)
def test_the_text_is_that_of_the_source(write, tmp_path, name):
    path, read = write(SOURCES[name](TEXT), name), []
    done = mmapds.seekable(path, tmp_path / "out.zst", frame=5000, workers=3, progress=read.append)
    texts = frames_of(done.path)
    assert b"".join(texts) == TEXT
    assert max(map(len, texts)) <= 5000
    assert done == (str(tmp_path / "out.zst"), len(texts), len(TEXT), os.path.getsize(done.path), True)
    assert 0 <= os.path.getsize(path) - sum(read) <= 100, "but what follows the text"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.sampled_from([0, 1, 30, 4094, 4095, 4096, 5000, 20_000]), st.sampled_from("\n \r"))),
    st.booleans(),
)
@example([], True)
@example([(4095, "\n")] * 3, False)
@example([(4096, "\n"), (1, "\n")], False)
@example([(4094, "\n")], True)
def test_frames_are_as_many_lines_as_fit(tmp_path, lines, is_cut):
    text = b"".join(b"x" * size + b"\n" * (end == "\n") for size, end in lines) + b"y" * is_cut
    (tmp_path / "a").write_bytes(text)
    done = mmapds.seekable(tmp_path / "a", tmp_path / "a.zst", frame=4096, workers=1, force=True)
    expected = [b""]
    for line in text.splitlines(keepends=True):
        if expected[-1] and len(expected[-1]) + len(line) > 4096:
            expected.append(b"")
        expected[-1] += line
    assert frames_of(done.path) == expected
    assert text or str(done).endswith("a.zst: 1 frame, 0 bytes of text in 42 bytes")


NAMES = {"part.jsonl": "part.jsonl.zst", "part.json.bgz": "part.json.zst", "part": "part.zst"}
NAMES |= {"part.jsonl.zst": "part.seekable.jsonl.zst", "part.zst": "part.seekable.zst"}


@pytest.mark.parametrize("name", NAMES)
def test_the_file_and_its_index_stand_beside_the_source(write, tmp_path, name):
    data = gzip.compress(TEXT) if name.endswith("gz") else zstd.compress(TEXT) if name.endswith("zst") else TEXT
    done = mmapds.seekable(write(data, name))
    assert done.path == str(tmp_path / NAMES[name])
    assert (tmp_path / name).read_bytes() == data, "the source stays as it was"
    index = [f"{NAMES[name]}.mmx"] * NAMES[name].endswith((".jsonl.zst", ".json.zst"))
    assert sorted(os.listdir(tmp_path)) == sorted([name, NAMES[name], *index]), "no lock, and nothing half-written"


def test_a_file_is_replaced_if_that_is_said_and_its_index_keeps_its_options(write):
    path = write(TEXT)
    first = mmapds.seekable(path, frame=8192).path
    mmapds.build(first, length="id")
    with pytest.raises(mmapds.Error, match=r"train.jsonl.zst: expected a name that is free, found a file; give anot"):
        mmapds.seekable(path)
    write(b"".join(LINES[:9]))
    assert mmapds.seekable(path, force=True).path == first
    assert mmapds.open(first).lengths.tolist() == list(range(9))
    named = write(zstd.compress(TEXT), "part.jsonl.zst")
    assert mmapds.seekable(named, named, frame=4096, index=False).path == named
    assert b"".join(frames_of(named)) == TEXT


def test_a_file_of_small_frames_is_left_as_it_is(write):
    first = mmapds.seekable(write(TEXT), frame=8192, index=False)
    assert mmapds.seekable(first.path, index=False) == first._replace(is_new=False)
    assert mmapds.seekable(first.path, frame=4096).frames > first.frames
    assert mmapds.seekable(first.path, force=True).is_new
    large = write(zstd.compress(bytes(9 << 20)) + zstd.compress(b"{}\n") * 2, "large.zst")
    assert mmapds.seekable(large, frame=4 << 20).is_new, "one frame is too large, though they are not on average"


def test_a_source_with_long_windows_is_read_if_that_is_said(write):
    path = write(frame(raw(TEXT[:1000]), window=18 << 3), "part.jsonl.zst")
    with pytest.raises(mmapds.FormatError, match=r"found one of 268435456; run: .* --long 28 ") as error:
        mmapds.seekable(path)
    assert main(shlex.split(re.search(r"run: python -m mmapds (.*)", str(error.value))[1])) == 0
    assert frames_of(path.replace(".jsonl.zst", ".seekable.jsonl.zst")) == [TEXT[:1000]]


# ---- what is refused ------------------------------------------------------------------------------------------------


GZIP, PACKED = gzip.compress(TEXT), zstd.compress(TEXT, options=CHECKSUM)
REFUSED = {
    "gzip that is cut": (GZIP[:-20], r"block 0 \(byte 0\): not gzip: a member is truncated; "),
    "zstd that is cut": (PACKED[:-9], r"frame 0 \(byte 0\): expected a whole frame, found the end of the file "),
    "zstd, checksum": (PACKED[:-4] + b"sums", r"block 0 \(byte 0\): not zstd: restored data doesn"),
    "a frame that has more text than its header says": (
        frame(*[block(RUN, 128 << 10, b"\n", last=number == 99) for number in range(100)], size=1 << 20, window=56),
        r"block 0 \(byte 0\): not zstd: expected 1048576 bytes of content, found more than 1048576; ",
    ),
    "xz": (lzma.compress(TEXT), r"compressed \(xz\): expected "),
    "a long line": (gzip.compress(b'"sho"\n' + b"x" * (3 << 20)), "expected lines of at most 1048576 bytes, f.* 6 "),
    "JSON": (zstd.compress(json.dumps([{"n": 1}], indent=1).encode()), "not JSON Lines: expected a JSON value a line"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_source_is_refused_and_nothing_is_left(write, tmp_path, monkeypatch, case):
    monkeypatch.setattr(recompress, "_LONGEST_LINE", 1 << 20)
    data, expected = REFUSED[case]
    path = write(data, "part.jsonl.zst")
    for workers in (1, 2):
        with pytest.raises(mmapds.Error, match=f"^{re.escape(path)}: ({expected})") as error:
            mmapds.seekable(path, workers=workers, frame=4096)
        check(str(error.value))
    assert os.listdir(tmp_path) == ["part.jsonl.zst"]


@pytest.mark.parametrize("change", [lambda file: file.truncate(len(TEXT)), lambda file: file.write(b"{}\n")])
def test_a_source_that_changes_meanwhile_is_refused(write, tmp_path, change):
    path = write(TEXT * 3)
    with pytest.raises(mmapds.SourceError, match="changed while it was read"), open(path, "ab", 0) as file:
        mmapds.seekable(path, frame=4096, workers=1, progress=lambda _: change(file))
    assert os.listdir(tmp_path) == ["train.jsonl"]


ARGUMENTS = {
    "frame = 4095, expected 4096 to 268435456": {"frame": 4095},
    "level = 0, expected 1 to 22": {"level": 0},
    "workers = 0, expected 1 or more": {"workers": 0},
    "window_log = 32, expected 10 to 31": {"window_log": 32},
    "out.jsonl: expected a file name that ends in .zst, found another": {"out": "out.jsonl"},
    "none/out.zst: cannot write the seekable file (no such file or directory)": {"out": "none/out.zst"},
    "train.jsonl.zst: cannot write the seekable file (file too large)": {},
}


def test_arguments_and_places_are_checked(write, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = write(b'"%s"' % os.urandom(200_000).hex().encode())
    for message, options in ARGUMENTS.items():
        with largest_file(10_000), pytest.raises(mmapds.Error, match=re.escape(message)) as error:
            mmapds.seekable(path, **options)
        check(str(error.value))
        assert os.listdir() == ["train.jsonl"]


# ---- the command ----------------------------------------------------------------------------------------------------


def test_the_command_recompresses_every_source(write, tmp_path, index):
    paths = [write(SOURCES[name](TEXT), f"in/{name}") for name in ("plain.jsonl", "b.jsonl.gz")]
    out = tmp_path / "out"
    out.mkdir()
    done = index(*paths, "-o", out, "--frame", "8k", "--level", "1", "--workers", "2", tool="seekable")
    assert (done.returncode, done.stderr) == (0, "")
    line = r".*/out/(plain|b).jsonl.zst: 4\d frames, \S+ bytes of text in \S+ bytes \([\d.]+%\); [\d.]+ s\n"
    assert re.fullmatch(f"({line}){{2}}", done.stdout)
    for name in ("plain", "b"):
        assert b"".join(frames_of(out / f"{name}.jsonl.zst")) == TEXT
    assert index(out, "--frame", "8K", tool="seekable").stdout.count("already seekable, 4") == 2


def test_two_sources_of_a_command_do_not_become_one_file(write, tmp_path, monkeypatch, index):
    """As the shell's `*` gives them; nothing is written, whichever of the two comes first."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    sources = {"part.jsonl.zst": PACKED, "part.jsonl": TEXT, "a/part.jsonl.gz": GZIP, "b/part.jsonl.gz": GZIP}
    for name, data in sources.items():
        write(data, name)
    for arguments in ("part.jsonl.zst part.jsonl --force", "a b -o out --force", "part.jsonl a -o part.jsonl.zst"):
        done = index(*arguments.split(), tool="seekable")
        assert (done.returncode, done.stdout) == (1, "")
        assert re.search("part.jsonl.zst: expected (one source for it, found 2|a name that is free)", done.stderr)
    assert {str(each.relative_to(tmp_path)) for each in tmp_path.rglob("*.*")} == set(sources)
