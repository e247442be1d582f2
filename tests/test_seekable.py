"""`mmapds.seekable`: what it writes, that every reader of zstd reads it, and what it refuses."""

import gzip
import json
import lzma
import os
import random
import re
import shlex
import subprocess
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from xxhash import xxh64_intdigest

import mmapds
from mmapds import _native
from mmapds import recompress as module
from mmapds.compression.zstd import walk
from tests.support.commands import mmapds as command
from tests.support.commands import python, run
from tests.support.docs import blocks
from tests.support.messages import check
from tests.support.zstd_files import RUN, block, entries_of, frame, raw, skippable, zstd

LINES = [b'{"id": %d, "text": "%s"}\n' % (n, b"some words " * (n % 40)) for n in range(1500)]
TEXT = b"".join(LINES)


def in_parts(text, size=10_000):
    return [text[at : at + size] for at in range(0, len(text), size)]


def streamed(text):
    writer = zstd.ZstdCompressor()
    return writer.compress(text) + writer.flush()


SOURCES = {
    "part.jsonl": lambda text: text,
    "part.jsonl.gz": gzip.compress,
    "members.jsonl.gz": lambda text: b"".join(map(gzip.compress, in_parts(text))),
    "padded.jsonl.gz": lambda text: gzip.compress(text) + bytes(100),
    "part.jsonl.zst": zstd.compress,
    "streamed.jsonl.zst": streamed,
    "frames.jsonl.zst": lambda text: b"".join(skippable(b"size") + zstd.compress(part) for part in in_parts(text)),
    "name-of-another": lambda text: zstd.compress(b"") + streamed(text),
}


def frames_of(path):
    """The texts of the frames, once it is certain that walk and seek table agree and all checksums are right."""
    frames = walk(_native.Map(str(path)), str(path))
    with open(path, "rb") as opened:
        data = opened.read()
    begins = [*frames.begins[:-1], sum(size for size, _, _ in entries_of(data))]
    texts = [zstd.decompress(data[begin:end]) for begin, end in pairwise(begins)]
    checksums = [xxh64_intdigest(text) & 0xFFFFFFFF for text in texts]
    sizes = [end - begin for begin, end in pairwise(begins)]
    assert entries_of(data) == list(zip(sizes, map(len, texts), checksums, strict=True))
    assert list(frames.contents) == list(map(len, texts))
    return texts


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("name", SOURCES)
def test_the_text_is_that_of_the_source(write, tmp_path, name, workers):
    path = write(SOURCES[name](TEXT), name)
    done = mmapds.seekable(path, tmp_path / "out.zst", frame=5000, workers=workers)
    texts = frames_of(done.path)
    assert b"".join(texts) == TEXT
    assert all(text.endswith(b"\n") for text in texts)
    assert max(map(len, texts)) <= 5000
    assert min(map(len, texts[:-1])) > 5000 - max(map(len, LINES))
    assert done == (str(tmp_path / "out.zst"), len(texts), len(TEXT), os.path.getsize(done.path), True)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(
    lines=st.lists(st.tuples(st.sampled_from([0, 1, 30, 4094, 4095, 4096, 5000, 20_000]), st.sampled_from("\n \r"))),
    ends=st.booleans(),
)
@example(lines=[], ends=False)
@example(lines=[(4095, "\n")] * 3, ends=True)
@example(lines=[(4096, "\n"), (1, "\n")], ends=True)
def test_frames_are_as_many_lines_as_fit(tmp_path, lines, ends):
    text = b"".join(b"x" * size + b"\n" * (end == "\n") for size, end in lines) + b"y" * (not ends)
    (tmp_path / "a").write_bytes(text)
    texts = frames_of(mmapds.seekable(tmp_path / "a", tmp_path / "a.zst", frame=4096, workers=1, force=True).path)
    expected = [b""]
    for line in text.splitlines(keepends=True):
        if expected[-1] and len(expected[-1]) + len(line) > 4096:
            expected.append(b"")
        expected[-1] += line
    assert texts == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("part.jsonl", "part.jsonl.zst"),
        ("part.jsonl.gz", "part.jsonl.zst"),
        ("part.json.bgz", "part.json.zst"),
        ("part.jsonl.zst", "part.seekable.jsonl.zst"),
        ("part.zst", "part.seekable.zst"),
        ("part", "part.zst"),
    ],
)
def test_the_file_stands_beside_its_source(write, tmp_path, name, expected):
    make = gzip.compress if name.endswith("gz") else zstd.compress if name.endswith("zst") else bytes
    data = make(TEXT)  # gzip says when
    path = write(data, name)
    done = mmapds.seekable(path)
    assert done.path == path.removesuffix(name) + expected
    assert (tmp_path / name).read_bytes() == data, "the source stays as it was"
    index = [f"{expected}.mmx"] * expected.endswith((".jsonl.zst", ".json.zst"))
    assert sorted(os.listdir(tmp_path)) == sorted([name, expected, *index]), "no lock, and nothing half-written"


def test_a_file_that_is_there_is_replaced_if_that_is_said(write):
    path = write(TEXT)
    first = mmapds.seekable(path).path
    with pytest.raises(mmapds.Error, match=r"train.jsonl.zst: expected a name that is free, found a file$") as error:
        mmapds.seekable(path)
    check(str(error.value))
    write(LINES[0])
    assert mmapds.seekable(path, force=True).path == first
    assert frames_of(first) == [LINES[0]]


def test_a_source_is_replaced_if_it_is_named(write):
    path = write(zstd.compress(TEXT), "part.jsonl.zst")
    assert mmapds.seekable(path, path, frame=4096, index=False).path == path
    assert b"".join(frames_of(path)) == TEXT
    assert os.listdir(os.path.dirname(path)) == ["part.jsonl.zst"]


def test_the_file_is_indexed_if_its_name_is_that_of_json_lines(write, tmp_path):
    path = mmapds.seekable(write(TEXT), frame=8192).path
    ds = mmapds.open(path)
    assert [ds.raw(number) + b"\n" for number in range(len(ds))] == LINES
    mmapds.build(path, length="id")
    write(b"".join(LINES[:9]))
    mmapds.seekable(tmp_path / "train.jsonl", force=True)
    assert mmapds.open(path).lengths.tolist() == list(range(9)), "the index keeps its options"
    for name, options in (("lines.txt", {}), ("other.jsonl", {"index": False})):
        assert not os.path.exists(f"{mmapds.seekable(write(TEXT, name), **options).path}.mmx")


def test_a_file_of_small_frames_is_left_as_it_is(write, tmp_path):
    first = mmapds.seekable(write(TEXT), frame=8192, index=False)
    assert mmapds.seekable(first.path, index=False) == first._replace(is_new=False)
    assert sorted(os.listdir(tmp_path)) == ["train.jsonl", "train.jsonl.zst"]
    smaller = mmapds.seekable(first.path, frame=4096)
    assert smaller.path.endswith("train.seekable.jsonl.zst")
    assert smaller.frames > first.frames
    assert b"".join(frames_of(smaller.path)) == TEXT
    assert mmapds.seekable(first.path, force=True).is_new
    others = write(b"".join(map(zstd.compress, in_parts(TEXT))), "others.jsonl.zst")
    assert mmapds.seekable(others) == (others, len(in_parts(TEXT)), len(TEXT), os.path.getsize(others), False)
    assert len(mmapds.open(others, access="random")) == len(LINES)


@pytest.mark.parametrize("name", ["a.json", "a.json.gz"])
def test_a_json_array_is_refused_before_anything_is_written(write, tmp_path, name):
    data = json.dumps([{"n": 1}, {"n": 2}], indent=1).encode()
    path = write(gzip.compress(data) if name.endswith("gz") else data, name)
    with pytest.raises(mmapds.FormatError, match="expected a JSON value a line, found other text; give "):
        mmapds.seekable(path)
    assert os.listdir(tmp_path) == [name]
    assert mmapds.seekable(path, index=False).text == len(data)


@pytest.mark.parametrize("make", [bytes, gzip.compress, zstd.compress])
def test_an_empty_text_is_one_empty_frame(write, make):
    done = mmapds.seekable(write(make(b""), "part.jsonl.x"), force=True)
    assert frames_of(done.path) == [b""]
    assert str(done).endswith("part.jsonl.x.zst: 1 frame, 0 bytes of text in 42 bytes")


def test_progress_is_in_bytes_of_the_source(write, tmp_path):
    for name, make in SOURCES.items():
        path, read = write(make(TEXT), name), []
        mmapds.seekable(path, tmp_path / "out.zst", frame=4096, force=True, progress=read.append)
        assert 0 <= os.path.getsize(path) - sum(read) <= 100, name


def test_progress_goes_on_inside_a_large_frame(write, tmp_path):
    data = zstd.compress(random.Random(1).randbytes(9 << 20))
    read = []
    mmapds.seekable(write(data, "part.zst"), tmp_path / "out.zst", progress=read.append)
    assert sum(read[: len(read) // 2]) > len(data) // 4
    assert 0 <= len(data) - sum(read) <= 100


def test_a_source_with_long_windows_is_read_if_that_is_said(write):
    path = write(frame(raw(TEXT[:1000]), window=18 << 3), "part.jsonl.zst")
    with pytest.raises(mmapds.FormatError, match=r"found one of 268435456; run: .* --long 28 ") as error:
        mmapds.seekable(path)
    mended = run(*re.search(r"run: python (.*)", str(error.value))[1].split())
    assert mended.returncode == 0, mended.stderr
    assert frames_of(path.replace(".jsonl.zst", ".seekable.jsonl.zst")) == [TEXT[:1000]]


# ---- what is refused


GZIP, ZSTD = gzip.compress(TEXT), zstd.compress(TEXT, options={zstd.CompressionParameter.checksum_flag: True})
PACKED = zstd.compress(TEXT[:100_000], options={zstd.CompressionParameter.content_size_flag: False})[6:]
"""A block that is compressed, as a decoder says nothing of its size where an empty one follows."""
REFUSED = {
    "a gzip file that is cut": (GZIP[:-20], r"block 0 \(byte 0\): not gzip: a member is truncated; "),
    "a gzip file with a wrong checksum": (
        GZIP[:-8] + b"sums" + GZIP[-4:],
        ".*: not gzip: expected content with checksum ",
    ),
    "a gzip file with garbage behind": (
        GZIP + b"garbage",
        "block 1 .*: not gzip: something that is not a member ",
    ),
    "a zstd file that is cut": (ZSTD[:-9], r"frame 0 \(byte 0\): expected a whole frame, found the end of the file "),
    "a zstd file with a wrong checksum": (ZSTD[:-4] + b"sums", r"block 0 \(byte 0\): not zstd: restored data doesn"),
    "a zstd file that is damaged": (
        ZSTD[:90] + bytes(9) + ZSTD[99:],
        r"not JSON Lines: |block 0 \(byte 0\): not zstd: ",
    ),
    "garbage behind zstd": (ZSTD + b"garbage", r"frame 1 \(byte \d+\): expected a zstd frame or the end of the file, "),
    "a frame that has more text than its header says": (
        frame(*[block(RUN, 128 << 10, b"\n", last=number == 99) for number in range(100)], size=1 << 20, window=56),
        r"block 0 \(byte 0\): not zstd: expected 1048576 bytes of content, found more than 1048576; ",
    ),
    "a frame that has less text than its header says": (
        frame(bytes([PACKED[0] & 0xFE]) + PACKED[1:], raw(b""), size=100_005, window=56),
        r"block 0 \(byte 0\): not zstd: expected 100005 bytes of content, found 100000; ",
    ),
    "a dictionary": (frame(raw(b"x"), dictionary=5), r"frame 0 .* found one that needs dictionary 5"),
    "xz": (lzma.compress(TEXT), r"compressed \(xz\): expected "),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("workers", [1, 2])
def test_a_damaged_source_is_refused_and_nothing_is_left(write, tmp_path, case, workers):
    data, expected = REFUSED[case]
    path = write(data, "part.jsonl.zst")
    with pytest.raises(mmapds.Error) as error:
        mmapds.seekable(path, workers=workers, frame=4096)
    assert re.match(f"{re.escape(path)}: ({expected})", str(error.value)), error.value
    check(str(error.value))
    assert os.listdir(tmp_path) == ["part.jsonl.zst"]


def test_places_that_cannot_be_written(write, tmp_path):
    path = write(TEXT)
    for out, expected in (("out.jsonl", "ends in .zst, found"), ("none/out.zst", r"cannot write .* \(no such file")):
        with pytest.raises(mmapds.Error, match=expected) as error:
            mmapds.seekable(path, tmp_path / out)
        check(str(error.value))
    assert os.listdir(tmp_path) == ["train.jsonl"]


def test_a_full_disk_leaves_nothing(write, tmp_path):
    path = write(b'"%s"' % os.urandom(200_000).hex().encode())
    code = (
        f"import resource, mmapds; resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)); mmapds.seekable({path!r})"
    )
    said = python(code, check=False).stderr.splitlines()[-1]
    assert (
        said == f"mmapds.errors.Error: {path}.zst: cannot write the seekable file (file too large); give another place"
    )
    assert os.listdir(tmp_path) == ["train.jsonl"]


def test_a_source_that_changes_meanwhile_is_refused(write, tmp_path):
    path = write(TEXT)

    def grow(_):
        with open(path, "ab") as file:
            file.write(b"{}\n")

    with pytest.raises(mmapds.SourceError, match="changed while it was read"):
        mmapds.seekable(path, frame=4096, workers=1, progress=grow)
    assert os.listdir(tmp_path) == ["train.jsonl"]


def test_a_line_that_is_too_long_is_refused(write, monkeypatch):
    monkeypatch.setattr(module, "_LONGEST_LINE", 1 << 20)
    path = write(b'"sho"\n' + b"x" * (3 << 20) + b"\nshort\n")
    with pytest.raises(
        mmapds.FormatError, match=r"of at most 1048576 bytes, found a longer one from byte 6 of the "
    ) as error:
        mmapds.seekable(path)
    check(str(error.value))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"frame": 4095}, "frame = 4095, expected 4096 to 268435456"),
        ({"level": 0}, "level = 0, expected 1 to 22"),
        ({"level": 23}, "level = 23, expected 1 to 22"),
        ({"workers": 0}, "workers = 0, expected 1 or more"),
        ({"window_log": 32}, "window_log = 32, expected 10 to 31"),
    ],
)
def test_arguments_are_checked(write, options, expected):
    with pytest.raises(mmapds.Error, match=re.escape(expected)) as error:
        mmapds.seekable(write(TEXT), **options)
    check(str(error.value))


# ---- the command


def test_the_command_recompresses_every_source(write, tmp_path):
    paths = [write(SOURCES[name](TEXT), f"in/{name}") for name in ("part.jsonl", "members.jsonl.gz")]
    (tmp_path / "out").mkdir()
    done = command("seekable", *paths, "-o", tmp_path / "out", "--frame", "8k", "--level", "1", "--workers", "2")
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(
        r"(.*/out/(part|members).jsonl.zst: 4\d frames, \S+ bytes of text in \S+ bytes \([\d.]+%\); [\d.]+ s\n){2}",
        done.stdout,
    )
    for name in ("part", "members"):
        assert b"".join(frames_of(tmp_path / "out" / f"{name}.jsonl.zst")) == TEXT
    again = command("seekable", tmp_path / "out", "--frame", "8K")
    assert again.stdout.count("already seekable, 4") == 2, again.stderr


@pytest.mark.parametrize(
    ("sources", "place"),
    [
        (["part.jsonl", "part.jsonl.zst"], []),
        (["part.jsonl.zst", "part.jsonl"], ["--force"]),
        (["a/part.jsonl.gz", "b/part.jsonl.gz"], ["-o", "out", "--force"]),
        (["a.jsonl", "b.jsonl"], ["-o", "part.jsonl.zst"]),
    ],
)
def test_two_sources_of_a_command_do_not_become_one_file(write, tmp_path, sources, place):
    """As the shell's `*` gives them; nothing is written, whichever of the two comes first."""
    (tmp_path / "out").mkdir()
    for name in sources:
        write(GZIP if name.endswith("gz") else ZSTD if name.endswith("zst") else TEXT, name)
    done = command("seekable", *sources, *place, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert re.search("part.jsonl.zst: expected (one source for it, found 2|a name that is free)", done.stderr)
    assert sorted(str(each.relative_to(tmp_path)) for each in tmp_path.rglob("*.*")) == sorted(sources)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--frame", "1K"], "--frame = 1024, expected 4096 to 268435456"),
        (["--level", "99"], "level = 99, expected 1 to 22"),
    ],
)
def test_wrong_options_are_errors_of_usage(write, arguments, expected):
    path = write(TEXT)
    done = command("seekable", *(each.format(path) for each in arguments), path)
    assert (done.returncode, done.stderr.endswith(f"{expected}\n")) == (2, True)
    check(expected)


def test_the_commands_of_the_document_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shards").mkdir()
    for path, data in {"part-00.jsonl.gz": GZIP, "part-01.jsonl.zst": ZSTD, "shards/0.jsonl": TEXT}.items():
        (tmp_path / path).write_bytes(data)
    for line in "".join(blocks("docs/compressed.md", "sh")).splitlines():
        words = shlex.split(line)
        done = command(*words[1:]) if words[0] == "mmapds" else subprocess.run(words, check=False)
        assert done.returncode == 0, done.stderr
    for path in ("part-00.jsonl.zst", "train.jsonl.zst", "seekable/0.jsonl.zst"):
        assert b"".join(frames_of(path)) == TEXT
