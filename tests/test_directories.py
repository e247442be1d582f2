"""Which files of a directory are taken, and what is said of the others."""

import gzip
import os
import re
import warnings
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import mmapds
from mmapds import formats
from mmapds.convert import SUFFIXES as CONVERTED
from mmapds.convert import convert
from mmapds.storage.sources import expand
from tests.support import commands
from tests.support.files import opened_to_all, unprivileged
from tests.support.messages import check

SUFFIXES = f"{' '.join(formats.SUFFIXES)} (or .gz .bgz .zst behind these)"
OTHERS = ["b.json", "c", "d.json.gz"]


@pytest.fixture
def mixed(write, tmp_path):
    for name in ("a.jsonl", "f.JSONL", *OTHERS):
        write([{"name": name}], f"d/{name}")
    for name in ("README.md", "LICENSE", "_SUCCESS", ".hidden.json", "a.jsonl.mmx.lock"):
        write(b"", f"d/{name}")
    (tmp_path / "d/below").mkdir()
    return tmp_path / "d"


def names(ds):
    return [sample["name"] for sample in ds]


def line(directory, others, suffixes=SUFFIXES):
    found = f"{len(others)} file{'s' * (len(others) > 1)} (expected names that end in {suffixes}): {', '.join(others)}"
    return f"{directory}: passed over {found}; give them by name, or by a glob"


def test_what_is_passed_over_is_named_by_open_build_and_the_command(mixed):
    with pytest.warns(UserWarning, match="passed over") as caught:
        mmapds.build(mixed)
    assert [(str(each.message), each.filename) for each in caught] == [(line(mixed, OTHERS), __file__)]
    with pytest.warns(UserWarning, match="passed over") as caught:
        ds = mmapds.open(mixed)
    expected = line(mixed, OTHERS, SUFFIXES.replace(" (or", " .mmx (or"))
    assert [(str(each.message), each.filename) for each in caught] == [(expected, __file__)]
    assert names(ds) == ["a.jsonl", "f.JSONL"], "case does not count"
    done = commands.command(mixed, "-o", mixed / "all.mmx")
    assert (done.returncode, done.stderr) == (0, f"{line(mixed, OTHERS)}\n")


INDEXES_TOO = SUFFIXES.replace(" (or", " .mmx (or")
COMMANDS = {  # what the names end in of files that a command takes
    "info": INDEXES_TOO,
    "verify": INDEXES_TOO,
    "convert": f"{' '.join(CONVERTED)} (or .gz .bgz .zst behind these)",
    "seekable": ".jsonl .ndjson .gz .bgz .zst .zstd",
}


@pytest.mark.parametrize("name", COMMANDS)
def test_other_commands_name_what_they_pass_over_too(mixed, name):
    (mixed / "d.json.gz").rename(mixed / "d.txt")  # which no command takes
    mmapds.build([mixed / "a.jsonl", mixed / "f.JSONL"])
    out = ["-o", mixed / "out.mma"] if name == "convert" else []
    done = commands.mmapds(name, mixed, *out)
    assert (done.returncode, done.stderr) == (0, f"{line(mixed, ['b.json', 'c', 'd.txt'], COMMANDS[name])}\n")


@pytest.mark.parametrize("name", ["head", "report", "bench"])
def test_commands_print_warnings_as_lines(mixed, tmp_path, name):
    mmapds.build([mixed / "a.jsonl", mixed / "f.JSONL"])
    options = {"report": ["--ranks", 1, "-o", tmp_path / "a.html"], "bench": ["--seconds", 0.1, "--no-processes"]}
    done = commands.mmapds(name, mixed, *options.get(name, []))
    assert (done.returncode, done.stderr) == (0, f"warning: {line(mixed, OTHERS, INDEXES_TOO)}\n")


def test_convert_warns_of_what_it_passes_over(mixed, tmp_path):
    with pytest.warns(UserWarning, match="passed over") as caught:
        convert(mixed, tmp_path / "out.mma")
    assert [(str(each.message), each.filename) for each in caught] == [
        (line(mixed, OTHERS, COMMANDS["convert"]), __file__)
    ]


def test_a_file_with_an_index_beside_it_is_taken_whatever_its_name(mixed):
    for name in ("b.json", "c"):
        mmapds.build(mixed / name)
    with pytest.warns(UserWarning, match=r"passed over 1 file .*: d\.json\.gz; give"):
        assert names(mmapds.open(mixed, build=True)) == ["a.jsonl", "b.json", "c", "f.JSONL"]
    (mixed / "d.json.gz").write_bytes(gzip.compress(b'{"name": "d.json.gz"}\n'))
    mmapds.build(mixed / "d.json.gz")
    assert names(mmapds.open(mixed)) == ["a.jsonl", "b.json", "c", "d.json.gz", "f.JSONL"]


def test_an_index_alone_may_have_the_other_files_for_sources(write, tmp_path):
    source = write([{"name": "b"}], "d/b.json")
    mmapds.build([source], out=tmp_path / "d/all.mmx")
    assert names(mmapds.open(tmp_path / "d")) == ["b"]


def test_many_others_are_counted(write, tmp_path):
    write([{"n": 0}], "d/a.jsonl")
    for number in range(11):
        write([{"n": 1}], f"d/{number:02}.json")
    with pytest.warns(UserWarning, match=r"passed over 11 files .*: 00\.json, .*, 07\.json and 3 more; give"):
        mmapds.build(tmp_path / "d")


def test_a_directory_of_others_alone_lists_all_suffixes(write, tmp_path):
    write([{"n": 0}], "d/a.json")
    with pytest.raises(mmapds.SourceError) as caught:
        mmapds.build(tmp_path / "d")
    found = f"{tmp_path / 'd'}: expected files whose names end in {SUFFIXES}, found none"
    assert str(caught.value).startswith(found)


def test_merging_takes_indexes_only(write, tmp_path):
    for name in ("a", "b.json"):
        mmapds.build(write([{"name": name}], f"d/{name}"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert names(mmapds.open(mmapds.merge(tmp_path / "d", out=tmp_path / "d/all.mmx"))) == ["a", "b.json"]


# ---- sources that are missing -----------------------------------------------------------------------------------


@pytest.fixture
def shards(write, tmp_path):
    """Three sources and their indexes."""
    for name in "abc":
        mmapds.build(write([{"name": name}], f"sh/{name}.jsonl"))
    return tmp_path / "sh"


def refused(function, *given, **options):
    with pytest.raises(mmapds.SourceError) as caught:
        function(*given, **options)
    check(str(caught.value))
    return str(caught.value)


def test_an_index_whose_source_is_gone_is_an_error(shards, tmp_path):
    (shards / "b.jsonl").unlink()
    expected = f"{shards}/b.jsonl: no such file; delete {shards}/b.jsonl.mmx, which indexes it, or put the file back"
    for given in (shards, f"{shards}/*", f"{shards}/[abc]*", f"{shards}/*.jsonl*"):
        assert refused(mmapds.open, given) == expected
        assert refused(mmapds.open, given, build=True) == expected
        assert refused(mmapds.build, given) == expected
    assert refused(convert, shards, tmp_path / "out.mma") == expected
    for name in ("info", "verify", "index", "head"):
        done = commands.mmapds(name, shards)
        assert (done.returncode, done.stdout) == (1, "")
        assert expected in done.stderr
    assert names(mmapds.open(f"{shards}/*.jsonl")) == ["a", "c"], "which matches no index"
    mmapds.build(f"{shards}/?.jsonl", out=shards / "all.mmx")
    (shards / "b.jsonl.mmx").unlink()
    assert names(mmapds.open(shards)) == names(mmapds.open(f"{shards}/*")) == ["a", "c"]


def test_other_files_of_that_suffix_are_passed_over(shards, write, tmp_path):
    elsewhere = write([{"name": "d"}], "d.jsonl")
    mmapds.build(elsewhere, out=shards / "elsewhere.mmx")
    mmapds.open(shards)[1:].save(shards / "some.mmx")
    (shards / "text.mmx").write_text("not an index")
    (tmp_path / "d.jsonl").unlink()
    assert names(mmapds.open(shards)) == ["a", "b", "c"]


def test_a_source_that_was_compressed_is_not_gone(shards):
    plain = shards / "b.jsonl"
    (shards / "b.jsonl.gz").write_bytes(gzip.compress(plain.read_bytes()))
    plain.unlink()
    mmapds.build(shards)
    assert names(mmapds.open(shards)) == ["a", "b", "c"]


def gzipped(path, rows):
    path.write_bytes(gzip.compress(b"".join(b'{"name": %d}\n' % row for row in rows)))


def test_of_files_with_the_same_content_one_is_taken(tmp_path):
    """As `mmapds.seekable` leaves them, first of gzip and then of zstd."""
    gzipped(tmp_path / "part.jsonl.gz", [1, 2])
    mmapds.seekable(tmp_path / "part.jsonl.gz")
    assert names(mmapds.open(tmp_path, build=True)) == [1, 2]
    os.replace(mmapds.seekable(tmp_path / "part.jsonl.zst", frame=4096, force=True).path, tmp_path / "kept.zst")
    os.replace(tmp_path / "kept.zst", tmp_path / "part.seekable.jsonl.zst")
    gzipped(tmp_path / "other.seekable.jsonl.gz", [5])
    ds = mmapds.open(tmp_path, build=True)
    assert [os.path.basename(source) for source in ds.sources] == ["other.seekable.jsonl.gz", "part.seekable.jsonl.zst"]
    assert names(ds) == [5, 1, 2]
    (tmp_path / "part.jsonl").write_text('{"name": 3}\n')
    assert names(mmapds.open(tmp_path, build=True)) == [5, 3]


def test_subdirectories_with_sources_are_named(write, tmp_path):
    write([{"name": 1}], "d/a.jsonl")
    for name in (
        "d/x/b.jsonl",
        "d/y/c.jsonl.gz",
        "d/.git/d.jsonl",
        "d/all.mmx.parts/e.jsonl",
        "d/z/notes.txt",
        "d/z/.cache/f.jsonl",
    ):
        write([{"name": 2}], name)
    expected = (
        f"{tmp_path}/d: passed over what lies below it in x, y; give it by a glob, such as '{tmp_path}/d/**/*.jsonl'"
    )
    with pytest.warns(UserWarning, match="passed over what lies below it") as caught:
        assert names(mmapds.open(tmp_path / "d", build=True)) == [1]
    assert {str(each.message) for each in caught} == {expected}
    check(expected)
    assert expected in commands.mmapds("index", tmp_path / "d").stderr


TWICE = "its records come twice"
OR_CONCAT = " (or name it twice to mmapds.concat)"


def test_a_source_that_is_given_twice_is_named(write, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for n in range(3):
        write([{"name": n}], f"d/{n}.jsonl")
    os.symlink("1.jsonl", "d/link.jsonl")
    os.symlink("d", "e")
    mmapds.build("d")
    same = "is given, too; give one of the two"
    for given, line in {
        ("d/?.jsonl", "d/1.jsonl"): f"d/1.jsonl: {TWICE}, as d/1.jsonl {same}",
        ("d/1.jsonl", "d/link.jsonl"): f"d/link.jsonl: {TWICE}, as d/1.jsonl {same}",
        ("d/1.jsonl", "e/1.jsonl", "d/0.jsonl"): f"e/1.jsonl: {TWICE}, as d/1.jsonl {same}",
        ("d/{0..2}.jsonl", "e/?.jsonl"): f"e/0.jsonl: {TWICE} (and 2 more such sources), as d/0.jsonl {same}",
    }.items():
        with pytest.warns(UserWarning, match=TWICE) as caught:
            opened = mmapds.open(list(given))
        assert [str(each.message) for each in caught] == [line + OR_CONCAT]
        with pytest.warns(UserWarning, match=TWICE) as caught:
            out = mmapds.build(list(given), out="twice.mmx")
        assert [str(each.message) for each in caught] == [line]
        assert names(opened) == names(mmapds.open(out))
        check(line), check(line + OR_CONCAT)
        assert commands.command(*given, "-o", "again.mmx").stderr == f"warning: {line}\n"
        with pytest.warns(UserWarning, match=TWICE) as caught:
            convert(list(given), "twice.mma", force=True)
        assert [str(each.message) for each in caught] == [line]
    assert commands.command("d/1.jsonl", "d/link.jsonl").stderr == ""  # an index of its own for each
    pq.write_table(pa.table({"name": [1, 2]}), "t.parquet")
    with pytest.warns(UserWarning, match=r"t\.parquet: its records come twice, as t\.parquet is given, too;"):
        assert convert(["t.parquet", "t.parquet"], "twice.mma", force=True).records == 4


def test_a_source_that_is_given_in_two_forms_is_named(write, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a.jsonl", "a.jsonl.gz", "a.seekable.jsonl.gz", "b.jsonl.gz"):
        write(gzip.compress(b'{"name": 1}\n') if name.endswith(".gz") else b'{"name": 1}\n', name)
    for given in (["a.jsonl", "b.jsonl.gz", "a.jsonl.gz"], ["a.jsonl", "a.seekable.jsonl.gz"]):
        line = f"{given[-1]}: {TWICE}, as a.jsonl is given, too; give one of the two"
        with pytest.warns(UserWarning, match=TWICE) as caught:
            assert names(mmapds.open(given, build=True)) == [1] * len(given)
        assert [str(each.message) for each in caught] == [line + OR_CONCAT]
        assert commands.command(*given, "-o", "both.mmx").stderr == f"warning: {line}\n"
        check(line)


def test_indexes_of_a_directory_that_have_the_same_source_are_named(write, tmp_path):
    sources = [write([{"name": n}], f"shards/{n}.jsonl") for n in range(3)]
    out = mmapds.build(sources, out=tmp_path / "corpus.mmx")
    mmapds.open(out)[:2].save(tmp_path / "view.mmx")
    for given in (tmp_path, tmp_path / "*.mmx"):
        with pytest.warns(
            UserWarning, match=r"0\.jsonl: its records may come more than once, as .*corpus\.mmx and .*view"
        ):
            assert names(mmapds.open(given)) == [0, 1, 2, 0, 1]
    assert names(mmapds.open([out, tmp_path / "view.mmx"])) == [0, 1, 2, 0, 1]  # as the list says
    mmapds.build(sources)
    assert names(mmapds.open(tmp_path / "shards" / "*.mmx")) == [0, 1, 2]


@pytest.mark.parametrize("mode", [0o000, 0o111, 0o444, 0o666])
def test_a_directory_that_cannot_be_listed_or_searched(tmp_path, mode):
    opened_to_all(tmp_path)
    closed = tmp_path / "closed"
    (closed / "below").mkdir(parents=True)
    for path in (closed / "a.jsonl", closed / "below/b.jsonl"):
        path.write_bytes(b'{"a":1}\n')
    closed.chmod(mode)
    for way in (mmapds.build, mmapds.open, partial(mmapds.open, build=True), convert):
        refused = unprivileged(partial(way, closed))
        assert re.fullmatch(rf"(Source)?Error: {closed}(/a\.jsonl(\.mmx)?)?: permission denied", refused), way
    if not mode & 0o111:
        assert unprivileged(lambda: mmapds.build(closed / "a.jsonl")) == (
            f"SourceError: {closed}/a.jsonl: permission denied"
        )


def test_a_pattern_in_a_directory_that_cannot_be_listed(tmp_path, monkeypatch):
    opened_to_all(tmp_path)
    closed = tmp_path / "closed"
    closed.mkdir()
    (closed / "a.jsonl").write_bytes(b'{"a":1}\n')
    closed.chmod(0o311)
    for pattern in ("*.jsonl", "*/b-{0..9}.jsonl"):
        refused = unprivileged(lambda pattern=pattern: mmapds.build(closed / pattern))
        assert refused == f"SourceError: {closed}: permission denied"
    monkeypatch.chdir(closed)
    assert unprivileged(lambda: mmapds.build("*.jsonl")) == "SourceError: .: permission denied"
    for pattern in ("b*.jsonl", "c/*.jsonl"):
        with pytest.raises(mmapds.SourceError, match="expected a pattern that matches files, found no match"):
            mmapds.build(closed / pattern)


@pytest.mark.parametrize("pattern", ["*/*.jsonl", "**/*.jsonl", "e[01]/*", "*/s*/*.jsonl", "e?/*/a.jsonl", "**"])
def test_a_pattern_that_leads_to_a_directory_that_cannot_be_listed(tmp_path, pattern):
    """The files of the others alone would be an index without the records there."""
    opened_to_all(tmp_path)
    for name in ("e0/sub", "e1/sub"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "a.jsonl").write_bytes(b"1\n")
    (tmp_path / "e1").chmod(0o311)
    refused = unprivileged(lambda: expand(tmp_path / pattern, (".jsonl",)))
    assert refused == f"SourceError: {tmp_path}/e1: permission denied"
    for known in ("e*/sub/a.jsonl", "e0/**/*.jsonl"):  # names that need no list of that directory
        assert (
            unprivileged(lambda known=known: expand(tmp_path / known, (".jsonl",)))[0] == f"{tmp_path}/e0/sub/a.jsonl"
        )


def test_a_directory_where_no_descriptor_is_free(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b"1\n")
    script = """
import mmapds, os, resource, sys
mmapds.build(f"{sys.argv[1]}/*.jsonl")  # which loads what it needs
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
try:
    while True:
        os.dup(0)
except OSError:
    pass
for given in (sys.argv[1], f"{sys.argv[1]}/*.jsonl"):
    try:
        mmapds.build(given)
    except mmapds.SourceError as error:
        print(error)
"""
    ran = commands.run("-c", script, tmp_path, check=True)
    assert ran.stdout.splitlines() == [f"{tmp_path}: too many open files"] * 2


def test_a_circle_of_links_does_not_stop_a_directory(write, tmp_path):
    write([1, 2], "a.jsonl")
    (tmp_path / "circle").symlink_to("circle")
    (tmp_path / "other.csv").symlink_to("other.csv")
    assert len(mmapds.open(tmp_path, build=True)) == 2
    mmapds.build(tmp_path, out=tmp_path / "all.mmx")
