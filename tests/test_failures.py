"""Builds while sources change and disks fill up: an error that says so, the index before it untouched, nothing left."""

import errno
import itertools
import os
import shutil
import subprocess
import sys
import tempfile

import pytest

import mmapds
from mmapds.compression import content
from mmapds.convert import convert
from mmapds.formats.jsonl import JsonLines
from mmapds.index.build import Request, build_each
from mmapds.report import report
from tests.support.commands import run
from tests.support.index_file import rewrite

RECORDS = 5_000_000  # whose lengths are sorted in a file, not in memory


@pytest.fixture
def shards(tmp_path):
    """Sources that are small, and more of them than threads look at ahead."""
    paths = [tmp_path / f"part-{number:02}.jsonl" for number in range(24)]
    for path in paths:
        path.write_bytes(b'{"n": 1}\n' * 100)
    return [str(path) for path in paths]


class Failing:
    """A file of some bytes that cannot be mapped, on a disk that fails."""

    is_mapped, size = False, 9

    def read(self, *_):
        raise OSError(errno.EIO, "Input/output error")


@pytest.mark.parametrize("options", [{"columns": {"length": "n"}}, {"format": "prefixed"}, {"format": "tar"}])
def test_a_file_that_cannot_be_mapped_on_a_disk_that_fails(tmp_path, monkeypatch, options):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"n": 1}\n')
    monkeypatch.setattr(content, "open_source", lambda *_, **__: Failing())
    with pytest.raises(mmapds.SourceError, match=r"a\.jsonl: .*input/output error"):
        mmapds.build(path, **options)
    assert os.listdir(tmp_path) == ["a.jsonl"]


def add_a_line(path):
    with open(path, "ab") as file:
        file.write(b'{"n": 2}\n')


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("change", [add_a_line, os.unlink, lambda path: os.truncate(path, 9)])
def test_an_index_is_never_shorter_than_its_sources(shards, tmp_path, workers, change):
    out = tmp_path / "all.mmx"
    mmapds.build(shards[:3], out=out)
    before = out.read_bytes()

    def interfere(_):
        if os.path.exists(shards[-1]):
            change(shards[-1])

    request = Request(columns={"length": "n"}, workers=workers, force=True, report=interfere)
    with pytest.raises(mmapds.SourceError, match=r"part-23\.jsonl: "):
        list(build_each(shards, request, out))
    assert out.read_bytes() == before
    assert not list(tmp_path.glob("*.tmp"))


@pytest.fixture
def small_disk():
    """Run a command in a file system of its own size, which is mounted at the command's working directory."""

    def run(megabytes, *command):
        directory = tempfile.mkdtemp()
        namespace = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]
        if shutil.which("unshare") is None or subprocess.run([*namespace, "true"], check=False).returncode != 0:
            pytest.skip("this machine lets no one mount a file system")
        script = (
            f'mount -t tmpfs -o size={megabytes}m tmpfs "$0" && cd "$0" && "$@"; status=$?; ls -A >&2; exit $status'
        )
        try:
            return subprocess.run(
                [*namespace, "sh", "-c", script, directory, *command], capture_output=True, text=True, check=False
            )
        finally:
            os.rmdir(directory)

    return run


@pytest.fixture(scope="session")
def many_lengths(tmp_path_factory):
    path = tmp_path_factory.mktemp("many") / "train.jsonl"
    path.write_bytes(b"".join(b'{"n":%d}\n' % (number % 100) for number in range(1000)) * (RECORDS // 1000))
    return path


INDEX = ["-m", "mmapds.index", "SOURCE", "-o", "train.mmx", "--length", "n"]
CONVERT = ["-m", "mmapds", "convert", "SOURCE", "-o", "train.mma"]
MERGE = ["-m", "mmapds.index", "INDEX", "--merge", "-o", "train.mmx"]


@pytest.mark.parametrize(
    ("command", "megabytes", "written"),
    [
        *((INDEX, megabytes, "train.mmx") for megabytes in (8, 32, 46, 61, 76)),
        (CONVERT, 2, ".train.mma.sources.mmx"),
        *((MERGE, megabytes, "train.mmx") for megabytes in (10, 48)),
    ],
)
def test_a_disk_that_fills_up_is_an_error_at_every_stage(small_disk, many_lengths, command, megabytes, written):
    given = {"SOURCE": many_lengths}
    if "INDEX" in command:
        given["INDEX"] = mmapds.build(many_lengths, out=many_lengths.with_name("part.mmx"), length="n")
    result = small_disk(megabytes, sys.executable, *(str(given.get(each, each)) for each in command))
    assert (result.returncode, result.stderr) == (
        1,
        f"{written}: cannot write the index (no space left on device); nothing was changed; give another place\n",
    )


def test_a_read_only_directory_with_an_index_that_is_up_to_date(small_disk):
    """Nothing is to be written there, so nothing is locked, or waited for."""
    script = """
echo 1 > a.jsonl && "$0" -m mmapds.index a.jsonl && touch a.jsonl.mmx.01234567.tmp || exit 2
mount -o remount,ro . || exit 3
"$0" -m mmapds.index a.jsonl || exit 4
"$0" -c 'import mmapds; assert len(mmapds.open("a.jsonl", build=True)) == 1' || exit 5
"$0" -m mmapds.index a.jsonl --force
"""
    result = small_disk(10, "sh", "-c", script, sys.executable)
    refused = "a.jsonl.mmx: cannot write the index here (read-only file system); give another place\n"
    assert (result.returncode, refused in result.stderr) == (1, True), result
    assert result.stdout.count("up to date") == 1


@pytest.mark.parametrize("name", ["a.jsonl", "b.mma"])
def test_what_cannot_be_removed_does_not_undo_what_is_written(write, tmp_path, monkeypatch, name):
    path = write(b'{"n": 1}\n{"n": 2}\n', "a.jsonl")

    probed = itertools.count(name == "a.jsonl")  # `convert` tries first whether it can write, and remove

    def refuse(path, **_):
        if next(probed):
            raise PermissionError(errno.EPERM, "Operation not permitted")
        remove(path)

    remove = os.unlink
    with monkeypatch.context() as patched:
        patched.setattr(os, "unlink", refuse)
        made = mmapds.build(path) if name == "a.jsonl" else convert(path, tmp_path / name, force=True)
    assert list(mmapds.open(tmp_path / name)) == [{"n": 1}, {"n": 2}], made
    mmapds.build(path, force=True)  # and removes what was left
    convert(path, tmp_path / "b.mma", force=True)
    assert not list(tmp_path.glob("*.tmp"))
    assert not list(tmp_path.glob(".*"))


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="looks at /proc")
def test_files_of_the_system_that_have_no_size_are_refused(tmp_path):
    with pytest.raises(mmapds.SourceError, match="expected a file with a size, found one of 0 bytes with content"):
        mmapds.build("/proc/self/stat", out=tmp_path / "a.mmx", format="jsonl")


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


def test_very_many_columns(write):
    path = write([1])
    mmapds.build(path)
    index = f"{path}.mmx"

    def widened(metadata):
        metadata["sections"] |= {f"column:{n}": metadata["sections"]["offsets"] | {"shape": [1]} for n in range(20_000)}
        return metadata

    rewrite(index, metadata=widened)
    assert len(mmapds.open(path).columns) == 20_000


class Forgetful(JsonLines):
    """Scans, and leaves out what `forget` says."""

    part_size = 16

    def __init__(self, forget):
        self._forget = forget

    def scan(self, sources, parameters, measuring, *, workers):
        yield from filter(None, map(self._forget, super().scan(sources, parameters, measuring, workers=workers)))


@pytest.mark.parametrize(
    ("forget", "found"),
    [
        (lambda piece: piece if piece.source == 0 else None, "expected 40 bytes of source 1, found 0 of source 1"),
        (lambda piece: piece if piece.source == 1 else None, "expected 40 bytes of source 0, found 40 of source 1"),
        (
            lambda piece: piece._replace(scanned=piece.scanned - 1),
            "expected 40 bytes of source 0, found 37 of source 0",
        ),
    ],
    ids=["the last source", "the first source", "bytes"],
)
def test_a_scan_that_forgets_something_is_not_committed(tmp_path, forget, found):
    paths = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    for path in paths:
        path.write_bytes(b'{"a": 1}\n\n' * 4)
    index = mmapds.build(paths, out=tmp_path / "all.mmx")
    before = index.read_bytes()
    with pytest.raises(mmapds.Error, match=f"incomplete scan of format 'jsonl': {found}; nothing was changed"):
        list(build_each(list(map(str, paths)), Request(Forgetful(forget), force=True), index))
    assert index.read_bytes() == before
    assert sorted(os.listdir(tmp_path)) == ["a.jsonl", "all.mmx", "b.jsonl"]


def test_descriptors_that_run_out(tmp_path):
    script = """
import os, resource, sys
import mmapds

with open("a.jsonl", "w") as file:
    file.write('{"n": 1}\\n' * 100)
mmapds.build("a.jsonl", length="n")
TASKS = {
    "save": lambda ds: ds[::3].save("v.mmx"),
    "merge": lambda ds: mmapds.merge(["a.jsonl"], out="m.mmx"),
    "add_column": lambda ds: mmapds.add_column("a.jsonl", "q", ds.lengths, workers=1),
}
for name, task in TASKS.items():
    task(mmapds.open("a.jsonl"))  # which loads what is loaded once, and makes the file
    used, failed = len(os.listdir("/proc/self/fd")) - 1, 0
    for more in range(12):
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + more, 4096))
        try:
            task(mmapds.open("a.jsonl"))
        except mmapds.Error as error:
            failed += "too many open files" in str(error).lower()
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
    print(name, failed > 0)
"""
    ran = run("-c", script, cwd=tmp_path)
    assert (ran.returncode, ran.stdout) == (0, "save True\nmerge True\nadd_column True\n"), ran.stderr
