"""Seekable zstd files: their size and the time to write them, against the tool `zstd`.

It must be installed, and so must `bible`, for text that people wrote: apt-get install zstd bible-kjv.
"""

import gzip
import itertools
import shutil
import statistics
import subprocess
import sys
from functools import partial

import pytest

import mmapds
from bench.support import texts
from bench.support.indexing import forget_index
from bench.support.timing import processor_ratios, timed
from mmapds import _native
from mmapds.compression.zstd import walk
from tests.support.zstd_files import zstd

SIZE, LARGE = 64_000_000, 512_000_000
FRAMES = 1_000_000


@pytest.fixture(scope="module", params=[("prose", SIZE), ("source code", SIZE), ("source code", LARGE)])
def text(request):
    """Such a file, made once; prose of 4.6 MB, which is all there is."""
    name, size = request.param
    return f"{size // 1_000_000} MB of {name}" if name != "prose" else name, texts.text(name, size)


@pytest.fixture(scope="module")
def large_text():
    return f"{LARGE // 1_000_000} MB of source code", texts.text("source code", LARGE)


def tool(*arguments):
    """Run `zstd`."""
    assert shutil.which("zstd"), "run: apt-get install zstd"
    return subprocess.run(["zstd", "-q", *map(str, arguments)], check=True, capture_output=True).stdout


def recompress(path, out, *options):
    """Run the command, start of the interpreter and fsync and all; it indexes what is called .jsonl.zst."""
    command = [sys.executable, "-m", "mmapds", "seekable", path, "-o", out, "--force", "--quiet", *options]
    subprocess.run(list(map(str, command)), check=True)


@pytest.mark.parametrize("threads", [1, 2])
def test_writing(compare, row, large_text, tmp_path, threads):
    name, path = large_text
    ours, whole = tmp_path / "ours.jsonl.zst", tmp_path / "whole.zst"
    recompress(path, ours, "--workers", threads)
    tool("-t", ours)
    assert tool("-dc", ours) == path.read_bytes()

    def write():
        forget_index(ours)
        recompress(path, ours, "--workers", threads)

    def write_whole():
        tool("-3", f"-T{threads}", "-f", path, "-o", whole)

    what = f"write {name}, {threads} thread{'s' * (threads > 1)}, the whole command, index and all"
    compare(what, write, f"`zstd -3 -T{threads}`", write_whole, "<= 1.25x", rounds=5)
    found = sorted(processor_ratios(write, write_whole, 7))
    row("time of all cores for that", "the same", f"{found[3]:.3g}x ({found[0]:.3g} to {found[-1]:.3g})", "<= 1.25x")


@pytest.mark.parametrize("frame", ["64K", "256K", "1M", "4M"])
def test_size(row, text, tmp_path, frame):
    name, path = text
    ours, whole = tmp_path / "ours.zst", tmp_path / "whole.zst"
    recompress(path, ours, "--frame", frame)
    tool("-3", path, "-o", whole)
    larger = ours.stat().st_size / whole.stat().st_size - 1
    row(f"size of {name} in frames of {frame}", "`zstd -3`", f"{larger:+.1%}", "<= +7 %" if frame == "256K" else "")
    data, frames = ours.read_bytes(), walk(_native.Map(str(ours)), str(ours))
    some = [data[begin:end] for begin, end in itertools.pairwise(frames.begins)][:50]
    seconds = statistics.median(min(timed(partial(zstd.decompress, each)) for _ in range(7)) for each in some)
    rate = statistics.mean(frames.contents[: len(some)]) / seconds
    row(f"decoding such a frame, {frame}", "", f"{seconds * 1e6:,.0f} us, {rate / 1e9:.1f} GB/s", "")


def test_size_at_a_higher_level(row, text, tmp_path):
    name, path = text
    ours, whole = tmp_path / "ours.zst", tmp_path / "whole.zst"
    recompress(path, ours, "--level", "9")
    tool("-3", path, "-o", whole)
    larger = ours.stat().st_size / whole.stat().st_size - 1
    row(f"size of {name} in frames of 256K, `--level 9`", "`zstd -3`", f"{larger:+.1%}", "")


def test_recompressing_gzip(compare, large_text, tmp_path):
    name, path = large_text
    source, whole = tmp_path / "a.jsonl.gz", tmp_path / "whole.zst"
    with open(path, "rb") as plain, gzip.open(source, "wb", 6) as packed:
        shutil.copyfileobj(plain, packed)
    compare(
        f"recompress {name} from gzip, 2 threads, the whole command",
        lambda: recompress(source, tmp_path / "ours.zst", "--workers", 2),
        "`gzip -dc | zstd -3 -T2`",
        lambda: subprocess.run(f"gzip -dc '{source}' | zstd -q -3 -T2 -f -o '{whole}'", shell=True, check=True),
        "",
        rounds=3,
    )


def test_finding_frames(compare, large_text, tmp_path):
    name, path = large_text
    ours = tmp_path / "ours.zst"
    mmapds.seekable(path, ours, index=False)
    compare(
        f"walk over the frames of {name}, warm",
        lambda: walk(_native.Map(str(ours)), str(ours)),
        "`zstd -dc`, to nowhere",
        lambda: tool("-dc", ours, "-o", "/dev/null", "-f"),
        "",
        rounds=5,
    )


def test_finding_a_million_frames(row, tmp_path):
    """The smallest there are, so that nothing else takes time."""
    path, each = tmp_path / "a.zst", zstd.compress(b"{}\n")
    path.write_bytes(each * FRAMES)
    file = _native.Map(str(path))
    assert len(walk(file, str(path)).contents) == FRAMES
    seconds = min(timed(lambda: walk(file, str(path))) for _ in range(5))
    row("walk over 1 M frames", "", f"{seconds * 1e3:.0f} ms", "")
