"""Which files directories and patterns give, and what is said of the others."""

import gzip
import os
import re
from functools import partial

import pytest

import mmapds
from mmapds import formats
from mmapds.convert import SUFFIXES as CONVERTED
from mmapds.convert import convert
from mmapds.storage.sources import expand
from tests.support import commands
from tests.support.files import opened_to_all, unprivileged
from tests.support.messages import check

SUFFIXES = " ".join(formats.SUFFIXES)
OTHERS = "b.json, below, c, d.txt"


@pytest.fixture
def mixed(write, tmp_path):
    for name in ("a.jsonl", "f.JSONL", "b.json", "c", "d.txt", "below/g.jsonl"):
        write([{"name": name}], f"d/{name}")
    for name in ("README.md", "LICENSE", "_SUCCESS", ".hidden.json", ".git/h.jsonl", "a.jsonl.mmx.lock"):
        write(b"", f"d/{name}")
    return tmp_path / "d"


def names(ds):
    return [sample["name"] for sample in ds]


def line(directory, suffixes=SUFFIXES):
    return f"{directory}: passed over {OTHERS} (expected names that end in {suffixes})"


def test_what_is_passed_over_is_named_in_python(mixed, tmp_path):
    ways = (
        (mmapds.build, SUFFIXES),
        (mmapds.open, f"{SUFFIXES} .mmx"),
        (lambda path: convert(path, tmp_path / "out.mma"), " ".join(CONVERTED)),
    )
    for way, suffixes in ways:
        with pytest.warns(UserWarning, match="passed over") as caught:
            way(mixed)
        assert [(str(each.message), each.filename) for each in caught] == [(line(mixed, suffixes), __file__)]
    with pytest.warns(UserWarning, match="passed over"):
        assert names(mmapds.open(mixed)) == ["a.jsonl", "f.JSONL"], "case does not count"


COMMANDS = {  # what the names end in of files that a command takes
    "info": f"{SUFFIXES} .mmx",
    "seekable": ".jsonl .ndjson .gz .bgz .zst .zstd",
    "head": f"{SUFFIXES} .mmx",
}


@pytest.mark.parametrize("name", COMMANDS)
def test_what_is_passed_over_is_named_by_commands(mixed, name):
    mmapds.build([mixed / "a.jsonl", mixed / "f.JSONL"])
    done = commands.mmapds(name, mixed)
    assert (done.returncode, done.stderr.removeprefix("warning: ")) == (0, f"{line(mixed, COMMANDS[name])}\n")


def test_an_index_alone_may_have_the_other_files_for_sources(write, tmp_path):
    source = write([{"name": "b"}], "d/b.json")
    mmapds.build([source], out=tmp_path / "d/all.mmx")
    assert names(mmapds.open(tmp_path / "d")) == ["b"]
    mmapds.merge(tmp_path / "d", out=tmp_path / "merged.mmx")


def test_a_directory_of_others_alone_names_some(write, tmp_path):
    for number in range(11):
        write([{"n": 0}], f"d/{number:02}.json")
    with pytest.raises(mmapds.SourceError) as caught:
        mmapds.build(tmp_path / "d")
    found = ", ".join(f"{number:02}.json" for number in range(8))
    assert str(caught.value) == f"{tmp_path}/d: expected names that end in {SUFFIXES}, found {found} and 3 more"


# ---- sources that are missing, or come twice --------------------------------------------------------------------


@pytest.fixture
def shards(write, tmp_path):
    """Three sources and their indexes."""
    for name in "abc":
        mmapds.build(write([{"name": name}], f"sh/{name}.jsonl"))
    return tmp_path / "sh"


def test_an_index_whose_source_is_gone_is_an_error(shards, tmp_path):
    (shards / "b.jsonl").unlink()
    expected = f"{shards}/b.jsonl: no such file; delete {shards}/b.jsonl.mmx, which indexes it"
    check(expected)
    for given in (shards, f"{shards}/*", f"{shards}/[abc]*", f"{shards}/*.jsonl*"):
        for way in (mmapds.open, mmapds.build, lambda path: convert(path, tmp_path / "out.mma")):
            with pytest.raises(mmapds.SourceError, match=re.escape(expected)):
                way(given)
    done = commands.mmapds("info", shards)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"{expected}\n")
    assert names(mmapds.open(f"{shards}/*.jsonl")) == ["a", "c"], "which matches no index"
    mmapds.build(f"{shards}/?.jsonl", out=shards / "all.mmx")
    (shards / "b.jsonl.mmx").unlink()
    assert names(mmapds.open(shards)) == names(mmapds.open(f"{shards}/*")) == ["a", "c"]


def test_other_indexes_of_a_directory_are_passed_over(shards, write, tmp_path):
    mmapds.build(write([{"name": "d"}], "d.jsonl"), out=shards / "elsewhere.mmx")
    mmapds.open(shards)[1:].save(shards / "some.mmx")
    (shards / "text.mmx").write_text("not an index")
    (tmp_path / "d.jsonl").unlink()
    assert names(mmapds.open(shards, build=True)) == ["a", "b", "c"]


TWICE = "its records come twice"


def test_a_source_that_is_given_twice_is_named(write, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for n in range(3):
        write([{"name": n}], f"d/{n}.jsonl")
    for name in ("a.jsonl", "a.jsonl.gz", "a.seekable.jsonl.gz"):
        write(gzip.compress(b'{"name": 1}\n') if name.endswith(".gz") else b'{"name": 1}\n', name)
    os.symlink("1.jsonl", "d/link.jsonl")
    os.symlink("d", "e")
    mmapds.build(["d", "a.jsonl", "a.jsonl.gz", "a.seekable.jsonl.gz"])
    for given, first, again in (
        (["d/?.jsonl", "d/1.jsonl"], "d/1.jsonl", "d/1.jsonl"),
        (["d/1.jsonl", "d/link.jsonl"], "d/1.jsonl", "d/link.jsonl"),
        (["d/1.jsonl", "e/1.jsonl", "d/0.jsonl"], "d/1.jsonl", "e/1.jsonl"),
        (["d/{0..2}.jsonl", "e/?.jsonl"], "d/0.jsonl", "e/0.jsonl"),
        (["a.jsonl", "d/0.jsonl", "a.jsonl.gz"], "a.jsonl", "a.jsonl.gz"),
        (["a.jsonl", "a.seekable.jsonl.gz"], "a.jsonl", "a.seekable.jsonl.gz"),
    ):
        line = f"{again}: {TWICE}, as {first} is given, too"
        ways = mmapds.open, partial(mmapds.build, out="t.mmx"), lambda given: convert(given, "t.mma", force=True)
        for way in ways:
            with pytest.warns(UserWarning, match=TWICE) as caught:
                way(given)
            assert [str(each.message) for each in caught] == [line]
        assert names(mmapds.open("t.mmx")) == names(mmapds.open("t.mma"))
    assert commands.command("d/1.jsonl", "d/link.jsonl", "-o", "t.mmx").stderr.startswith("warning: d/link.jsonl: its ")
    assert commands.command("d/1.jsonl", "d/link.jsonl").stderr == ""  # an index of its own for each


def test_two_forms_of_one_source_in_a_directory_are_named(write, tmp_path):
    """As `mmapds.seekable` leaves them."""
    mmapds.seekable(write(gzip.compress(b'{"name": 1}\n'), "part.jsonl.gz"))
    mmapds.build(tmp_path)
    with pytest.warns(UserWarning, match=TWICE):
        assert names(mmapds.open(tmp_path)) == [1, 1]
    assert names(mmapds.open(tmp_path / "*.zst", build=True)) == [1]


def test_indexes_of_a_directory_that_have_the_same_source_are_named(write, tmp_path):
    sources = [write([{"name": n}], f"shards/{n}.jsonl") for n in range(3)]
    out = mmapds.build(sources, out=tmp_path / "corpus.mmx")
    mmapds.open(out)[:2].save(tmp_path / "view.mmx")
    expected = r"0\.jsonl: its records may come more than once, as .*corpus\.mmx and .*view"
    for given in (tmp_path, tmp_path / "*.mmx"):
        with pytest.warns(UserWarning, match=expected):
            assert len(mmapds.open(given)) == 5
    assert len(mmapds.open([out, tmp_path / "view.mmx"])) == 5  # as the list says


def test_a_directory_that_cannot_be_listed(tmp_path):
    opened_to_all(tmp_path)
    closed = tmp_path / "closed"
    closed.mkdir()
    (closed / "a.jsonl").write_bytes(b'{"a":1}\n')
    closed.chmod(0o311)
    for way in (mmapds.build, mmapds.open, partial(mmapds.open, build=True), convert):
        assert unprivileged(partial(way, closed)) == f"SourceError: {closed}: permission denied"


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
        found = unprivileged(lambda known=known: expand(tmp_path / known, (".jsonl",)))
        assert found[0] == f"{tmp_path}/e0/sub/a.jsonl"
