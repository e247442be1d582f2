"""Compressed files by the writers that people use, and made seekable: every record is that of the plain file."""

import random
import shutil
import subprocess

import fsspec
import numpy as np
import pyarrow
import pytest

import mmapds
from tests.support.compressed import mixed, pzstd, text
from tests.support.zstd_files import seek_table, skippable, zstd

LINES = text(4000, longest=900).splitlines(keepends=True)
TEXT = b"".join(LINES)


def by_fsspec(path):
    """As datatrove and others write: record by record, into one frame without its size."""
    with fsspec.open(path, "wb", compression="zstd") as file:
        for line in LINES:
            file.write(line)


def by_fsspec_as_text(path):
    with fsspec.open(path, "wt", compression="zstd", encoding="utf-8", newline="") as file:
        for line in LINES:
            file.write(line.decode())


def by_python(path):
    with zstd.open(path, "wb", level=19) as file:
        for line in LINES:
            file.write(line)


def by_python_again_and_again(path):
    """Files that are appended to: a frame each time."""
    for at in range(0, len(LINES), 700):
        with zstd.open(path, "ab") as file:
            file.writelines(LINES[at : at + 700])


def by_pyarrow(path):
    with pyarrow.output_stream(path, compression="zstd") as file:
        for at in range(0, len(TEXT), 9999):
            file.write(TEXT[at : at + 9999])


def flushed(path):
    """As a logger writes: blocks that are flushed, in one frame."""
    with zstd.ZstdFile(path, "wb") as file:
        for at in range(0, len(LINES), 50):
            file.writelines(LINES[at : at + 50])
            file.flush(zstd.ZstdFile.FLUSH_BLOCK)


def with_long_windows(path):
    name = zstd.CompressionParameter
    options = {name.window_log: 27, name.enable_long_distance_matching: 1, name.checksum_flag: 1}
    with open(path, "wb") as file:
        file.write(zstd.compress(TEXT, options=options))


def in_frames_cut_anywhere(path):
    """As t2sz does: frames of a size in bytes, which cut records; and a seek table."""
    frames = [zstd.compress(TEXT[at : at + 70_001]) for at in range(0, len(TEXT), 70_001)]
    sizes = [(len(frame), min(70_001, len(TEXT) - 70_001 * number)) for number, frame in enumerate(frames)]
    with open(path, "wb") as file:
        file.write(b"".join(frames) + seek_table(sizes))


def written(make):
    def write(path):
        with open(path, "wb") as file:
            file.write(make(TEXT))

    return write


WRITERS = {
    "zstd": written(zstd.compress),
    "pzstd": written(pzstd),
    "frames of all kinds": written(mixed),
    "skippable frames around": written(lambda data: skippable(b"head") + zstd.compress(data) + skippable(b"tail" * 99)),
    "fsspec": by_fsspec,
    "fsspec, as text": by_fsspec_as_text,
    "compression.zstd": by_python,
    "compression.zstd, appended": by_python_again_and_again,
    "compression.zstd, flushed": flushed,
    "pyarrow": by_pyarrow,
    "long windows": with_long_windows,
    "frames that cut records": in_frames_cut_anywhere,
}


def check(path):
    """Open a file and compare its records with the lines: in order, at random, and in batches."""
    ds = mmapds.open(path, decode="bytes", build=True)
    expected = [line.removesuffix(b"\n") for line in LINES]
    assert list(ds) == expected
    rows = random.Random(0).choices(range(len(LINES)), k=300)
    assert [ds[row] for row in rows] == [expected[row] for row in rows]
    assert list(ds.take(np.array(rows))) == [expected[row] for row in rows]


@pytest.mark.parametrize("writer", WRITERS)
def test_every_record_is_that_of_the_plain_file(tmp_path, writer):
    path = str(tmp_path / "part.jsonl.zst")
    WRITERS[writer](path)
    check(path)
    again = mmapds.seekable(path, frame=64 << 10, force=True)
    assert again.frames > 5
    check(again.path)


TOOLS = {
    "zstd": ["zstd -q -c", ".zst"],
    "zstd, all cores": ["zstd -q -T0 -c", ".zst"],
    "zstd, long": ["zstd -q -19 --long=27 -c", ".zst"],
    "pzstd": ["pzstd -q -p 2 -c", ".zst"],
    "gzip": ["gzip -c", ".gz"],
    "pigz": ["pigz -p 2 -c", ".gz"],
    "pigz, blocks by themselves": ["pigz -p 2 -i -c", ".gz"],
    "bgzip": ["bgzip -c", ".bgz"],
    "bgzip, as .gz": ["bgzip -l 9 -c", ".gz"],
}


@pytest.mark.parametrize("tool", TOOLS)
def test_every_record_of_a_file_by_the_tool_itself(tmp_path, tool):
    command, suffix = TOOLS[tool]
    if not shutil.which(command.split()[0]):
        pytest.skip(f"no {command.split()[0]} here; apt-get install -y zstd pigz tabix")
    (tmp_path / "plain").write_bytes(TEXT)
    path = tmp_path / f"part.jsonl{suffix}"
    ran = subprocess.run([*command.split(), tmp_path / "plain"], check=True, capture_output=True)
    path.write_bytes(ran.stdout)
    check(str(path))
