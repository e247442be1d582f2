"""Builds while sources change and disks fill up: an error that says so, the index before it untouched, nothing left."""

import os
import shutil
import subprocess
import sys

import pytest

import mmapds
from mmapds.convert import convert
from mmapds.formats.jsonl import JsonLines
from mmapds.index.build import Request
from mmapds.index.each import build_each
from mmapds.report import report

FULL = "{}: cannot write the index (no space left on device); nothing was changed; give another place\n"


def add_a_line(path):
    with open(path, "ab") as file:
        file.write(b'{"n": 2}\n')


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("change", [add_a_line, os.unlink, lambda path: os.truncate(path, 9)])
def test_an_index_is_never_shorter_than_its_sources(write, tmp_path, workers, change):
    paths = [write([{"n": 1}] * 100, f"{number}.jsonl") for number in range(24)]  # more than threads look at ahead
    out = mmapds.build(paths[:3], out=tmp_path / "all.mmx")
    before = out.read_bytes()

    def interfere(_):
        if os.path.exists(paths[-1]):
            change(paths[-1])

    request = Request(columns={"length": "n"}, workers=workers, force=True, report=interfere)
    with pytest.raises(mmapds.SourceError, match=r"23\.jsonl: "):
        list(build_each(paths, request, out))
    assert out.read_bytes() == before
    assert not list(tmp_path.glob("*.tmp"))


@pytest.fixture
def on_small_disk(tmp_path):
    """Run a command in a file system of its own size, mounted at its working directory; stderr names the files left."""

    def run(megabytes, *command):
        namespace = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]
        if shutil.which("unshare") is None or subprocess.run([*namespace, "true"], check=False).returncode != 0:
            pytest.skip("this machine lets no one mount a file system")
        script = f'mount -t tmpfs -o size={megabytes}m tmpfs "$0" && cd "$0" && "$@"; ended=$?; ls -A >&2; exit $ended'
        started = [*namespace, "sh", "-c", script, tmp_path, *map(str, command)]
        return subprocess.run(started, capture_output=True, text=True, check=False)

    return run


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """So many records that their lengths are sorted in a file, not in memory."""
    path = tmp_path_factory.mktemp("many") / "train.jsonl"
    path.write_bytes(b"".join(b'{"n":%d}\n' % (number % 100) for number in range(1000)) * 5000)
    return path


INDEX, CONVERT = "mmapds.index -o a.mmx --length n", "mmapds convert -o a.mma"


@pytest.mark.parametrize(("megabytes", "command"), [(8, INDEX), (46, INDEX), (76, INDEX), (2, CONVERT)])
def test_a_disk_that_fills_up_is_an_error_at_every_stage(on_small_disk, source, megabytes, command):
    ran = on_small_disk(megabytes, sys.executable, "-m", *command.split(), source)
    assert (ran.returncode, ran.stderr) == (1, FULL.format("a.mmx" if command == INDEX else ".a.mma.sources.mmx"))


def test_a_read_only_directory_with_an_index_that_is_up_to_date(on_small_disk):
    """Nothing is to be written there, so nothing is locked, or waited for."""
    script = """
echo 1 > a.jsonl && "$0" -m mmapds.index a.jsonl && touch a.jsonl.mmx.01234567.tmp || exit 2
mount -o remount,ro . || exit 3
"$0" -m mmapds.index a.jsonl || exit 4
"$0" -c 'import mmapds; assert len(mmapds.open("a.jsonl", build=True)) == 1' || exit 5
"$0" -m mmapds.index a.jsonl --force
"""
    result = on_small_disk(10, "sh", "-c", script, sys.executable)
    refused = "a.jsonl.mmx: cannot write the index here (read-only file system); give another place\n"
    assert (result.returncode, refused in result.stderr) == (1, True), result
    assert result.stdout.count("up to date") == 1


WRITERS = {
    "x.mmx": lambda out: mmapds.build("a.jsonl", out=out, force=True),
    "x.mma": lambda out: convert("a.jsonl", out, force=True),
    "x.jsonl.zst": lambda out: mmapds.seekable("a.jsonl", out, force=True),
    "x.html": lambda out: report("a.jsonl", out, force=True),
}


@pytest.mark.parametrize("out", WRITERS)
def test_what_is_not_a_regular_file_is_never_replaced(write, tmp_path, monkeypatch, out):
    """As a device such as /dev/null, which a process of root would replace."""
    monkeypatch.chdir(tmp_path)
    mmapds.build(write(list(range(20)), "a.jsonl"))
    os.mkfifo(out)
    for _ in ("a FIFO", "a link to an open file"):
        with pytest.raises(mmapds.Error, match=r"expected a regular file, found (another|a FIFO)"):
            WRITERS[out](out)
        assert sorted(os.listdir()) == sorted(["a.jsonl", "a.jsonl.mmx", out])
        os.remove(out)
        os.symlink("/proc/self/fd/1", out)  # as /dev/stdout is


@pytest.mark.parametrize(
    ("forget", "found"),
    [
        (lambda piece: piece if piece.source == 0 else None, "of source 1, found 0 of source 1"),
        (lambda piece: piece if piece.source == 1 else None, "of source 0, found 40 of source 1"),
        (lambda piece: piece._replace(scanned=piece.scanned - 1), "of source 0, found 37 of source 0"),
    ],
)
def test_a_scan_that_forgets_something_is_not_committed(write, tmp_path, monkeypatch, forget, found):
    paths = [write(b'{"a": 1}\n\n' * 4, name) for name in ("a.jsonl", "b.jsonl")]
    index = mmapds.build(paths, out=tmp_path / "all.mmx")
    before, scan = index.read_bytes(), JsonLines.scan
    monkeypatch.setattr(JsonLines, "part_size", 16)
    monkeypatch.setattr(JsonLines, "scan", lambda *given, **how: filter(None, map(forget, scan(*given, **how))))
    message = f"incomplete scan of format 'jsonl': expected 40 bytes {found}; nothing was changed"
    with pytest.raises(mmapds.Error, match=message):
        mmapds.build(paths, out=index, force=True)
    assert index.read_bytes() == before
    assert sorted(os.listdir(tmp_path)) == ["a.jsonl", "all.mmx", "b.jsonl"]
