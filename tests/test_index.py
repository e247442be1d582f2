"""Building indexes, from Python and from the command line: every odd input, and nothing lost."""

import os
import re
import signal
import stat
import subprocess
import sys
import tarfile
import threading

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import mmapds
from mmapds.index.build import Request
from mmapds.index.each import build_each
from mmapds.storage.index_file import Index
from tests.support import oracle
from tests.support.bounds import bounds_of
from tests.support.commands import SECONDS
from tests.support.pieces import jsonl_in_blocks
from tests.support.tars import archive, special

LINES = [b'{"n":1}', b'{"n":22}', b' {"n": 3} ', b'{"m":1}', b'{"n":null}', b"", b"  ", b"\t\r", b"x" * 70]
LINES += [b"\x00", b"\xfe", b"\xef\xbb\xbf", b'\xef\xbb\xbf{"n":4}', b" a\r\r"]


def number_in(line):
    """The number of a record, None if it has none or is bad."""
    try:
        return orjson.loads(line).get("n")
    except ValueError:
        return None


@pytest.mark.filterwarnings("ignore:.* such lines? left out")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lines=st.lists(st.sampled_from(LINES)),
    end=st.sampled_from([b"\n", b"\r\n"]),
    cut=st.integers(0, 3),
    block=st.sampled_from([3, 4, 7, 40, 64, 65]),
    workers=st.integers(1, 4),
    measured=st.booleans(),
)
def test_records_are_the_lines_that_are_not_blank_or_left_out(tmp_path, lines, end, cut, block, workers, measured):
    """Wherever blocks are cut, and whatever the number of threads."""
    data = end.join(lines)[: -cut or None]
    path = tmp_path / "t.jsonl"
    path.write_bytes(data)
    path.with_name("t.jsonl.mmx").unlink(missing_ok=True)  # whose options would be kept
    records = oracle.records(data)
    wanted = [(at, line) for at, line in records if not measured or number_in(line) is not None]
    options = {"length": "n", "missing": "skip", "bad": "skip"} if measured else {}
    options |= {"format": jsonl_in_blocks(block), "workers": workers}
    if records and not wanted:
        with pytest.raises(mmapds.Error, match=r"(in|found) 0 of \d"):
            mmapds.build(path, **options)
        return
    index = Index(str(mmapds.build(path, **options)))
    assert bounds_of(index.path) == [*(at for at, _ in wanted), len(data)]
    text = data.removeprefix(b"\xef\xbb\xbf")
    assert index.sources[0].lines == text.count(b"\n") + (text != b"" and not text.endswith(b"\n"))
    ds = mmapds.open(path, decode="bytes")
    assert [(ds.where(i).offset, ds.raw(i)) for i in range(len(ds))] == wanted
    assert not measured or ds.lengths.tolist() == [number_in(line) for _, line in wanted]


def test_a_line_of_gigabytes(tmp_path):
    path = tmp_path / "wide.jsonl"
    with open(path, "wb") as file:
        file.write(b'{"first":1}\n')
        file.seek(3 << 30)
        file.write(b'\n{"last":1}\n')
    ds = mmapds.open(path, build=True)
    assert (len(ds), ds[0], ds[-1]) == (3, {"first": 1}, {"last": 1})
    assert ds.where(1) == (str(path), 12, (3 << 30) - 12)


def test_odd_names_and_links(write, tmp_path):
    for name in ("with space.jsonl", "données-数据.jsonl", "a{b}.jsonl", "[x].jsonl", "-dash.jsonl"):
        assert mmapds.open(write([{"a": 1}], f"names/{name}"), build=True)[0] == {"a": 1}
    (tmp_path / "link.jsonl").symlink_to(write([{"a": 1}], "deep/real.jsonl"))
    assert mmapds.build(tmp_path / "link.jsonl") == tmp_path / "link.jsonl.mmx"
    assert not (tmp_path / "deep/real.jsonl.mmx").exists()


def test_globs_directories_braces_and_lists(write, tmp_path, monkeypatch, index):
    for shard in range(12):
        write([{"shard": shard}], f"d/part-{shard:03}.jsonl")
    folder = tmp_path / "d"
    for pattern, expected in (
        (folder, range(12)),
        (f"{folder}/part-*.jsonl", range(12)),
        (f"{folder}/part-{{000..011}}.jsonl", range(12)),
        ([f"{folder}/part-{{003..005}}.jsonl", folder / "part-000.jsonl"], [3, 4, 5, 0]),
        (f"{folder}/*l*", range(12)),  # the indexes beside the sources are not sources
    ):
        assert [sample["shard"] for sample in mmapds.open(pattern, build=True)] == list(expected)
    assert len(list(folder.glob("*.mmx"))) == 12
    monkeypatch.chdir(folder)
    assert index("*.jsonl", "part-000.jsonl.mmx").returncode == 0
    with pytest.raises(mmapds.SourceError, match=r"000\.jsonl\.mmx: expected a source, found an index"):
        mmapds.build("part-000.jsonl.mmx", out="other.mmx")


def test_one_index_of_several_sources(write, tmp_path, index):
    """It moves with its sources, and is built again of them by its own name."""
    paths = [write([[shard, i] for i in range(shard)], f"old/d/{shard}.jsonl") for shard in range(3)]
    ds = mmapds.open(mmapds.build(tmp_path / "old/d", out=tmp_path / "old/all.mmx"))
    assert (list(ds), ds.source_starts.tolist()) == ([[1, 0], [2, 0], [2, 1]], [0, 0, 1, 3])
    os.rename(tmp_path / "old", tmp_path / "new")
    (tmp_path / "link").symlink_to(tmp_path / "new")
    assert list(mmapds.open(tmp_path / "new/all.mmx")) == list(mmapds.open(tmp_path / "link/all.mmx")) == list(ds)
    write([7, 8], paths[1].replace("/old/", "/new/"))
    assert "kept 2 sources, scanned 1 source" in index(tmp_path / "new/all.mmx").stdout
    assert list(mmapds.open(tmp_path / "new/all.mmx")) == [7, 8, [2, 0], [2, 1]]


@pytest.mark.parametrize(
    ("name", "make", "message"),
    [
        ("part-{1..3}.jsonl", None, "no such file"),
        ("*.jsonl", None, "no such file"),
        ("train.jsonl", os.mkdir, "expected names that end in .jsonl .* found no files"),
        ("train.jsonl", os.mkfifo, "expected a regular file, found a FIFO"),
    ],
)
def test_what_cannot_be_a_source(tmp_path, index, name, make, message):
    if make:
        make(tmp_path / name)
    with pytest.raises(mmapds.SourceError, match=f": {message}") as caught:
        mmapds.build(tmp_path / name)
    assert str(caught.value).startswith(str(tmp_path / name.replace("{1..3}", "1")))
    refused = index(tmp_path / name)
    assert (refused.returncode, refused.stdout, refused.stderr) == (1, "", f"{caught.value}\n")


@pytest.mark.filterwarnings("always")
def test_sources_without_records_are_a_warning(write, index):
    no_sample = archive([special("d", tarfile.DIRTYPE), ("nodot", b"1"), (".hidden", b"2")])
    paths = [write(no_sample, "d.tar"), *(write(b"", f"{name}.jsonl") for name in "abce")]
    line = f"{', '.join(paths[:3])} and 2 more: expected one record or more, found 0 records"
    done = index(*paths)
    assert (done.returncode, done.stderr) == (0, f"warning: {line}\n")
    with pytest.warns(UserWarning, match="found 0 records$") as caught:
        mmapds.build(paths, force=True)
    assert [(str(each.message), each.filename) for each in caught] == [(line, __file__)]


def test_an_unchanged_source_is_left_alone_and_force_builds_again(write, index):
    path = write([1, 2])
    first = index(path).stdout
    assert re.search(r"train.jsonl.mmx: 2 records, 4 bytes, 2.0 bytes a record \(2 to 2\), \d+.\d\d s, ", first)
    before = os.stat(path + ".mmx")
    assert index(path).stdout.endswith("; up to date, --force builds it again\n")
    assert os.stat(path + ".mmx").st_ino == before.st_ino
    assert index(path, "--force", "--quiet").stdout == ""
    assert os.stat(path + ".mmx").st_ino != before.st_ino


def test_the_index_takes_the_place_of_nothing_else(write, tmp_path, monkeypatch, index):
    monkeypatch.chdir(tmp_path)
    path = write([1])
    (tmp_path / "other.txt").write_text("precious")
    for out, message in (
        ("train.jsonl", "train.jsonl: cannot write the index here: expected a file name that ends in .mmx"),
        ("other.txt", "other.txt: cannot write the index here: expected a file name that ends in .mmx"),
        ("", f"{tmp_path}/: expected a regular file, found a directory"),
        ("gone/x.mmx", "gone/x.mmx: cannot write the index here (no such file or directory); give another place"),
    ):
        refused = index(path, "-o", out)
        assert (refused.returncode, refused.stderr) == (1, f"{message}\n")
    assert sorted(os.listdir()) == ["other.txt", "train.jsonl"]
    assert (tmp_path / "other.txt").read_text() == "precious"


def test_an_index_may_be_read_by_whoever_may_read_its_source(write):
    mask = os.umask(0o022)
    assert stat.S_IMODE(os.stat(mmapds.build(write([1]))).st_mode) == 0o644
    os.umask(mask)


def test_a_source_that_changes_while_it_is_hashed_is_not_indexed(write):
    path, other = write(b"1\n" * 1000), write(b"1\n2\n", "b.jsonl")

    def change(reported):
        if reported == 4:  # the other is scanned, and so is the whole source before it
            write(b"1\n" * 1001)

    with pytest.raises(mmapds.SourceError, match=r"train\.jsonl: changed while it was read"):
        list(build_each([path, other], Request(hash=True, report=change), out=f"{path}.mmx"))
    assert not os.path.exists(path + ".mmx")


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_build_leaves_the_old_index(write, tmp_path, number, status):
    path = write(b"[1]\n")
    old = mmapds.build(path).read_bytes()
    os.truncate(path, 200 << 30)  # sparse, and far too long to finish
    process = subprocess.Popen(
        [sys.executable, "-m", "mmapds.index", path],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # jobs in the background of a shell ignore it
    )
    while not list(tmp_path.glob("*.tmp")) and process.poll() is None:
        threading.Event().wait(0.01)
    process.send_signal(number)
    errors = process.communicate(timeout=SECONDS)[1]
    assert (process.returncode, "Traceback" in errors) == (status, False)
    assert (tmp_path / "train.jsonl.mmx").read_bytes() == old
    assert sorted(os.listdir(tmp_path)) == ["train.jsonl", "train.jsonl.mmx"]
