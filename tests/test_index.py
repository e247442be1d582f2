"""Building indexes, from Python and from the command line: every odd input, and nothing lost."""

import os
import re
import signal
import stat
import subprocess
import sys
import tarfile
import threading
import time
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import mmapds
from mmapds.index.build import Request, build_each
from mmapds.storage.index_file import Index
from mmapds.storage.writer import IndexWriter
from tests.support import oracle
from tests.support.bounds import bounds_of, grouped
from tests.support.commands import SECONDS, command, python
from tests.support.files import opened_to_all, patched, unprivileged
from tests.support.messages import check
from tests.support.pieces import jsonl_in_blocks
from tests.support.tars import archive, special

LINES = st.lists(st.sampled_from([b'{"a":1}', b"", b"  ", b"\t\r", b"x" * 70, b"\x00", b"\xfe", b"\xef\xbb\xbf"]))
ENDS = st.sampled_from([b"\n", b"\r\n"])


def raws(path):
    mmapds.build(path, format="jsonl")  # lines of any kind
    ds = mmapds.open(path, decode="bytes")
    return [(ds.where(i).offset, ds.raw(i)) for i in range(len(ds))]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n",
        b"\n \n\t\n",
        b"\xef\xbb\xbf",
        b"\xef\xbb\xbf\n",
        b'\xef\xbb\xbf{"a":1}\n',
        b'{"a":1}',
        b'{"a":1}\n',
        b'{"a":1}\r\n{"b":2}\r\n',
        b'\n\n{"a":1}\n\n\n{"b":2}\n  \n',
        b'{"a":1}  \n{"b":2}\t\n',
        b'  {"a":1}\n',
        b"a\x00b\n\x00\n",
        b"\xfe\n\x80\n",
        b"a\r\r\nb\r",
        b"a\n   ",
        b"a\n   b",
    ],
)
def test_odd_text(write, data):
    path = write(data)
    assert raws(path) == oracle.records(data)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lines=LINES, end=ENDS, cut=st.integers(0, 3), block=st.sampled_from([3, 4, 7, 64, 65]), workers=st.integers(1, 4)
)
def test_blocks_and_workers_change_nothing(tmp_path, lines, end, cut, block, workers):
    data = end.join(lines)[: -cut or None]
    path = tmp_path / "t.jsonl"
    path.write_bytes(data)
    index = Index(str(mmapds.build(path, format=jsonl_in_blocks(block), workers=workers, force=True)))
    assert bounds_of(index.path) == [*oracle.starts(data), len(data)]
    text = data.removeprefix(b"\xef\xbb\xbf")
    assert index.sources[0].lines == text.count(b"\n") + (text != b"" and not text.endswith(b"\n"))


def test_a_line_of_gigabytes(tmp_path):
    path = tmp_path / "wide.jsonl"
    with open(path, "wb") as file:
        file.write(b'{"first":1}\n')
        file.seek(3 << 30)
        file.write(b'\n{"last":1}\n')
    ds = mmapds.open(path, build=True)
    assert len(ds) == 3
    assert (ds[0], ds[-1]) == ({"first": 1}, {"last": 1})
    assert ds.where(1) == (str(path), 12, (3 << 30) - 12)


@pytest.mark.parametrize("name", ["with space.jsonl", "données-数据.jsonl", "a{b}.jsonl", "[x].jsonl", "-dash.jsonl"])
def test_odd_names(write, name):
    path = write([{"a": 1}], name)
    assert mmapds.open(path, build=True)[0] == {"a": 1}
    result = command("--info", "--", path)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith(f"{path}.mmx\n  records  1\n")


def test_a_symlink_is_indexed_where_it_is(write, tmp_path):
    real = write([{"a": 1}], "deep/real.jsonl")
    link = tmp_path / "link.jsonl"
    link.symlink_to(real)
    assert mmapds.build(link) == tmp_path / "link.jsonl.mmx"
    assert mmapds.open(link)[0] == {"a": 1}
    assert not os.path.exists(real + ".mmx")


def test_an_index_and_its_sources_move_together(write, tmp_path):
    write([{"a": 1}], "old/data/a.jsonl")
    write([{"a": 2}], "old/data/b.jsonl")
    mmapds.build(tmp_path / "old/data", out=tmp_path / "old/corpus.mmx")
    os.rename(tmp_path / "old", tmp_path / "new")
    (tmp_path / "link").symlink_to(tmp_path / "new")
    assert [s["a"] for s in mmapds.open(tmp_path / "new/corpus.mmx")] == [1, 2]
    assert [s["a"] for s in mmapds.open(tmp_path / "link/corpus.mmx")] == [1, 2]


def test_globs_directories_braces_and_lists(write, tmp_path):
    for shard in range(12):
        write([{"shard": shard}], f"d/part-{shard:03}.jsonl")
    write(b"not a source", "d/readme.md")
    everything = list(range(12))

    def shards(pattern):
        return [sample["shard"] for sample in mmapds.open(pattern, build=True)]

    assert shards(tmp_path / "d") == everything
    assert shards(f"{tmp_path}/d/part-*.jsonl") == everything
    assert shards(f"{tmp_path}/d/part-{{000..011}}.jsonl") == everything
    assert shards([f"{tmp_path}/d/part-{{003..005}}.jsonl", tmp_path / "d/part-000.jsonl"]) == [3, 4, 5, 0]
    assert len(list((tmp_path / "d").glob("*.mmx"))) == 12
    assert shards(tmp_path / "d") == everything, "indexes beside the sources are not sources"


def test_one_combined_index(write, tmp_path):
    for shard in range(3):
        write([{"shard": shard, "i": i} for i in range(shard)], f"d/{shard}.jsonl")
    out = tmp_path / "corpus.mmx"
    assert mmapds.build(tmp_path / "d", out=out) == out
    ds = mmapds.open(out)
    assert list(ds) == [{"shard": 1, "i": 0}, {"shard": 2, "i": 0}, {"shard": 2, "i": 1}]
    assert ds.source_starts.tolist() == [0, 0, 1, 3]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda _: None, "no such file"),
        (lambda path: path.mkdir(), "expected names that end in .jsonl .* found no files"),
        (lambda path: os.mkfifo(path), "expected a regular file, found a FIFO"),
        (lambda path: path.symlink_to("nowhere"), "no such file or directory"),
        (lambda path: path.write_bytes(b"PK\x03\x04...."), r"compressed \(zip\): .*; run: unzip"),
    ],
)
def test_what_cannot_be_a_source(tmp_path, make, message):
    path = tmp_path / "train.jsonl"
    make(path)
    with pytest.raises(mmapds.SourceError, match=message) as caught:
        mmapds.build(path)
    assert str(caught.value).startswith(str(path))
    result = command(path)
    assert (result.returncode, result.stdout, result.stderr) == (1, "", f"{caught.value}\n")
    assert not list(tmp_path.glob("*.mmx*"))


def test_patterns_that_match_nothing(tmp_path):
    with pytest.raises(mmapds.SourceError, match=r"\*.jsonl: no such file"):
        mmapds.build(tmp_path / "*.jsonl")
    with pytest.raises(mmapds.SourceError, match=r"part-1.jsonl: no such file"):
        mmapds.build(tmp_path / "part-{1..3}.jsonl")
    with pytest.raises(mmapds.SourceError, match=r"part-\{1\.\.3\.jsonl: no such file"):
        mmapds.build(tmp_path / "part-{1..3.jsonl")
    with pytest.raises(mmapds.SourceError, match="sources: expected one source or more, found 0"):
        mmapds.build([])


def test_an_unreadable_source_and_an_unwritable_place(tmp_path):
    opened_to_all(tmp_path)
    secret, plain = tmp_path / "secret.jsonl", tmp_path / "plain.jsonl"
    for path in (secret, plain):
        path.write_bytes(b'{"a":1}\n')
    secret.chmod(0)
    assert unprivileged(lambda: mmapds.build(secret)) == f"SourceError: {secret}: permission denied"
    refused = unprivileged(lambda: mmapds.build(plain))
    assert re.match(
        r"Error: .*plain.jsonl.mmx: cannot write the index here \(permission denied\); give another place", refused
    )


def test_a_directory_that_can_be_written_to_and_not_be_read(tmp_path):
    opened_to_all(tmp_path)
    closed = tmp_path / "closed"
    closed.mkdir()
    (closed / "a.jsonl").write_bytes(b'{"a":1}\n')
    closed.chmod(0o333)
    assert unprivileged(lambda: str(mmapds.build(closed / "a.jsonl"))) == f"{closed}/a.jsonl.mmx"


def test_a_place_that_does_not_exist_is_an_error(write, tmp_path):
    with pytest.raises(mmapds.Error, match=r"cannot write the index here .*; give another place$"):
        mmapds.build(write([1]), out=tmp_path / "missing" / "x.mmx")


def test_an_unchanged_source_is_left_alone_and_force_builds_again(write):
    path = write([1, 2])
    first = command(path)
    assert re.search(r"train.jsonl.mmx: 2 records, 4 bytes, 2.0 bytes a record \(2 to 2\), \d+.\d\d s, ", first.stdout)
    before = os.stat(path + ".mmx")
    again = command(path)
    assert again.stdout.endswith("; up to date, --force builds it again\n")
    assert os.stat(path + ".mmx").st_ino == before.st_ino
    assert command(path, "--force", "--quiet").stdout == ""
    assert os.stat(path + ".mmx").st_ino != before.st_ino


def test_verify_finds_what_size_and_time_do_not_show(write):
    data = b"1\n2\n" * 50_000
    path = write(data)
    mmapds.build(path)

    def replace(at, new):
        patched(path, 0, data[:at] + new + data[at + len(new) :])

    replace(0, b"3")
    wanted = (
        r"STALE: .* has other content \(.*, fingerprint \w{16} when indexed and \w{16} now\); run: python -m mmapds"
    )
    assert re.search(wanted, command("--verify", path).stderr)
    replace(100_000, b"12")
    assert (
        f"record 50001 of {path} begins at byte 100002, expected byte 100004; run: " in command("--verify", path).stderr
    )
    replace(0, b"1")
    assert command("--verify", path).returncode == 0


def written_again(index, records=None, **changes):
    """Write an index again with other sections or counts of records, and right checksums; return what verify says."""
    sources = index.metadata["sources"]
    if records is not None:
        sources = [source | {"records": count} for source, count in zip(sources, records, strict=True)]
    with IndexWriter(index.path) as writer:
        for name, section in index.sections.items():
            dtype, data = changes.get(name, (section.dtype, index.section(name)))
            writer.write_array(name, dtype, data)
        writer.commit({**index.metadata, "sources": sources}, index.records)
    return command("--verify", index.path).stderr


def test_verify_compares_each_source_with_its_own_records(write, tmp_path):
    first, second = write(b"1\n2\n", "a.jsonl"), write(b"3\n", "b.jsonl")
    index = Index(str(mmapds.build([first, second], out=tmp_path / "all.mmx")))
    assert f"DAMAGED: records of {first} = 1, expected 2; run: " in written_again(index, [1, 2])
    assert f"DAMAGED: records of {first} = 3, expected 2; run: " in written_again(index, [3, 0])
    found = written_again(index, offsets=("<u8", grouped([0, 2, 3], 2) + grouped([0, 2], 2)))
    assert f"DAMAGED: the last record of {first} ends at byte 3, expected byte 4; run: " in found
    assert written_again(index, offsets=("<u8", grouped([0, 2, 4], 2) + grouped([0, 2], 2))) == ""


def test_a_source_that_changes_meanwhile_is_not_indexed(write):
    path = write(b"1\n" * 1000)

    def append(_):
        with open(path, "ab") as file:
            file.write(b"2\n")

    with pytest.raises(mmapds.SourceError, match="changed while it was read"):
        list(build_each([path], Request(report=append)))
    path = write(b"1\n" * 1000)
    with pytest.raises(mmapds.SourceError, match=r"changed while it was read: expected 2000 bytes, found 10$"):
        list(build_each([path], Request(jsonl_in_blocks(16), workers=2, report=lambda _: os.truncate(path, 10))))
    assert not os.path.exists(path + ".mmx")


def test_formats_are_chosen_and_refused(write):
    path = write([1], "data.bin")
    assert len(mmapds.open(mmapds.build(path, format="jsonl"))) == 1
    with pytest.raises(mmapds.FormatError, match=r"format = 'yaml', expected one of .*'fixed', 'jsonl', "):
        mmapds.build(path, format="yaml")
    with pytest.raises(mmapds.Error, match="workers = 0, expected 1 or more"):
        mmapds.build(path, workers=0)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_an_interrupted_build_leaves_the_old_index(tmp_path, number, status):
    path = tmp_path / "big.jsonl"
    path.write_bytes(b"[1]\n")
    mmapds.build(path)
    old = (tmp_path / "big.jsonl.mmx").read_bytes()
    os.truncate(path, 200 << 30)  # sparse, and far too long to finish
    process = subprocess.Popen(
        [sys.executable, "-m", "mmapds.index", str(path)],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # jobs in the background of a shell ignore it
    )
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("*.tmp")) and time.monotonic() < deadline:
        threading.Event().wait(0.01)
    process.send_signal(number)
    errors = process.communicate(timeout=SECONDS)[1]
    assert process.returncode == status
    assert "Traceback" not in errors
    assert (tmp_path / "big.jsonl.mmx").read_bytes() == old
    left = {"big.jsonl", "big.jsonl.mmx"}
    if number != signal.SIGKILL:
        assert set(os.listdir(tmp_path)) == left


def test_an_index_has_ordinary_permissions(write):
    mask = os.umask(0o022)
    try:
        mode = os.stat(mmapds.build(write([1]))).st_mode
    finally:
        os.umask(mask)
    assert stat.S_IMODE(mode) == 0o644


# ---- what must never be overwritten, and what goes wrong while writing ----------------------------------------


@pytest.mark.parametrize("out", ["train.jsonl", "other.txt", "."])
def test_the_index_never_takes_the_place_of_something_else(write, tmp_path, out):
    path = write([1])
    (tmp_path / "other.txt").write_text("precious")
    with pytest.raises(mmapds.Error, match=r"cannot write the index here: expected a file name that ends in \.mmx"):
        mmapds.build(path, out=tmp_path / out)
    assert (tmp_path / "other.txt").read_text() == "precious"
    assert Path(path).read_bytes() == b"1\n"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["other.txt", "train.jsonl"]


def test_an_empty_place_for_an_index_is_refused(write, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = write([1])
    mmapds.build(path)
    before = sorted(os.listdir())
    message = "cannot write the index here: expected a file name that ends in .mmx"
    for build in (mmapds.build, mmapds.merge):
        with pytest.raises(mmapds.Error, match=re.escape(message)):
            build(path, out="")
    for options in ([], ["--merge"]):
        ran = command(path, *options, "-o", "")
        assert (ran.returncode, ran.stderr) == (1, f": {message}\n")
    assert sorted(os.listdir()) == before


def test_a_full_disk_is_said_and_leaves_nothing(write, tmp_path):
    path = write(b"1\n" * 100_000)
    code = f"import resource, mmapds; resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)); mmapds.build({path!r})"
    ran = python(code, check=False)
    assert "mmapds.errors.Error" in ran.stderr
    assert "train.jsonl.mmx: cannot write the index (file too large); nothing was changed" in ran.stderr
    assert [each.name for each in tmp_path.iterdir()] == ["train.jsonl"]


def test_a_source_that_goes_away_is_said(write):
    path = write([1])
    with pytest.raises(mmapds.SourceError, match=r"train.jsonl: no such file or directory"):
        list(build_each([path], Request(report=lambda _: os.unlink(path))))


# ---- the path of an index stands for the index -------------------------------------------------------------------


def test_an_index_is_built_again_from_its_own_sources(write, tmp_path):
    paths = [write([n], f"{n}.jsonl") for n in range(5)]
    combined = mmapds.build(paths, out=tmp_path / "all.mmx")
    write([7, 8], "3.jsonl")
    with pytest.raises(mmapds.StaleIndexError, match=re.escape(f"run: python -m mmapds.index {combined}")):
        mmapds.open(combined)
    assert command(combined).returncode == 0
    assert list(mmapds.open(combined)) == [0, 1, 2, 7, 8, 4]
    write([9], "0.jsonl")
    assert list(mmapds.open(combined, build=True)) == [9, 1, 2, 7, 8, 4]


def test_indexes_are_no_sources(write, tmp_path):
    write([1])
    assert command("*", cwd=tmp_path).returncode == 0
    assert command("*", cwd=tmp_path).returncode == 0
    assert sorted(each.name for each in tmp_path.iterdir()) == ["train.jsonl", "train.jsonl.mmx"]
    with pytest.raises(mmapds.SourceError, match=r"train.jsonl.mmx: expected a source, found an index"):
        mmapds.build(tmp_path / "train.jsonl.mmx", out=tmp_path / "all.mmx")


def test_a_directory_means_its_sources(write, tmp_path):
    paths = [write([1], "d/a.jsonl"), write([2], "d/b.jsonl")]
    write(b"{}", "d/meta.json")
    mmapds.build(paths, out=tmp_path / "d/all.mmx")
    with pytest.warns(UserWarning, match=r"passed over meta\.json "):
        mmapds.build(tmp_path / "d")
    with pytest.warns(UserWarning, match=r"passed over meta\.json "):
        assert list(mmapds.open(tmp_path / "d")) == [1, 2]
    assert list(mmapds.open(tmp_path / "d/*l*")) == [1, 2]


def test_commands_in_messages_can_be_run(write, tmp_path):
    write([1], "-n.jsonl")
    with pytest.raises(mmapds.IndexMissingError) as missing:
        mmapds.open(tmp_path / "-n.jsonl")
    assert "run: python -m mmapds.index" in str(missing.value)
    asked = python("import mmapds; mmapds.open('-n.jsonl')", cwd=tmp_path, check=False)
    assert "run: python -m mmapds.index ./-n.jsonl" in asked.stderr
    assert command("./-n.jsonl", cwd=tmp_path).returncode == 0


def test_text_that_begins_like_bzip2_is_text(write):
    assert list(mmapds.open(write(b"BZhello\n", "train.txt"), build=True, decode="text")) == ["BZhello"]
    with pytest.raises(mmapds.SourceError, match=r"compressed \(bzip2\)"):
        mmapds.build(write(b"BZh91AY&SY1234"))


def test_info_says_what_changed(write, tmp_path):
    paths = [write([1], "a.jsonl"), write([2], "b.jsonl"), write([3], "c.jsonl")]
    mmapds.build(paths, out=tmp_path / "all.mmx")
    write([4, 5], "a.jsonl")
    os.unlink(paths[2])
    shown = command("--info", "all.mmx", cwd=tmp_path).stdout.partition("\nsources\n")[2].splitlines()
    assert shown[0].startswith("  a.jsonl  1 record  2 bytes  STALE: a.jsonl was 2 bytes when indexed and is 4 now")
    assert shown[1] == "  c.jsonl  1 record  2 bytes  MISSING: no such file or directory"
    assert shown[2] == "  b.jsonl  1 record  2 bytes  unchanged"


def test_an_index_that_is_damaged_and_stands_for_its_sources(write):
    path = write([1])
    mmapds.build(path)
    Path(f"{path}.mmx").write_bytes(Path(f"{path}.mmx").read_bytes()[:200])
    ran = command(f"{path}.mmx", "--force")
    assert ran.stderr.endswith(f"; run: python -m mmapds.index {path}\n")
    assert command(path).returncode == 0


# ---- nothing found ---------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("always")
@pytest.mark.parametrize("names", [["a.jsonl"], ["a.jsonl", "b.jsonl", "c.jsonl", "d.jsonl", "e.jsonl"]])
def test_sources_without_records_are_a_warning(write, names):
    paths = [write(b"", name) for name in names]
    more = " and 2 more" if len(paths) > 1 else ""
    line = f"{', '.join(paths[:3])}{more}: expected one record or more, found 0 records"
    check(line)
    ran = command(*paths)
    assert (ran.returncode, ran.stderr) == (0, f"warning: {line}\n")
    for call in (mmapds.build, partial(mmapds.open, build=True)):
        with pytest.warns(UserWarning, match="found 0 records$") as caught:
            call(paths)
        assert [(str(each.message), each.filename) for each in caught] == [(line, __file__)]
    assert command(*paths, write(b"{}\n", "full.jsonl")).stderr == f"warning: {line}\n"


@pytest.mark.filterwarnings("always")
def test_a_tar_without_a_sample_is_a_warning(write):
    content = archive([special("d", tarfile.DIRTYPE), ("nodot", b"1"), (".hidden", b"2")])
    path, full = write(content, "a.tar"), write(archive([("a.txt", b"1")]), "full.tar")
    with pytest.warns(UserWarning, match="found 0 records$") as caught:
        mmapds.build([full, path], out=f"{full}.all.mmx")
    assert [str(each.message) for each in caught] == [f"{path}: expected one record or more, found 0 records"]
    assert len(mmapds.open(f"{full}.all.mmx")) == 1
