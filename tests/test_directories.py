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
from mmapds.storage.places import Places
from tests.support import commands
from tests.support.files import opened_to_all, unprivileged

SUFFIXES = " ".join(formats.SUFFIXES)
READ = f"{SUFFIXES} .mmx"


def names(ds):
    return [sample["name"] for sample in ds]


def test_what_is_passed_over_is_named(write, tmp_path):
    mixed = tmp_path / "d"
    for name in ("a.jsonl", "f.JSONL", "b.json", "c", "d.txt", "below/g.jsonl"):
        write([{"name": name}], f"d/{name}")
    for name in ("README.md", "LICENSE", "_SUCCESS", ".hidden.json", ".git/h.jsonl", "a.jsonl.mmx.lock"):
        write(b"", f"d/{name}")

    def line(suffixes):
        way = f"give '{mixed}/**/*.jsonl' for those below"
        return f"{mixed}: ignored b.json, below, c, d.txt; {way} (expected names that end in {suffixes})"

    def into(path):
        return convert(path, tmp_path / "out.mma")

    for way, suffixes in ((mmapds.build, SUFFIXES), (mmapds.open, READ), (into, " ".join(CONVERTED))):
        with pytest.warns(UserWarning, match="ignored") as caught:
            found = way(mixed)
        assert [(str(each.message), each.filename) for each in caught] == [(line(suffixes), __file__)]
        assert way is not mmapds.open or names(found) == ["a.jsonl", "f.JSONL"], "case does not count"
    done = commands.mmapds("info", mixed)
    assert (done.returncode, done.stderr.removeprefix("warning: ")) == (0, f"{line(READ)}\n")


def test_a_directory_of_others_alone_names_some_unless_an_index_has_them_for_sources(write, tmp_path):
    sources = [write([{"name": number}], f"d/{number:02}.json") for number in range(11)]
    with pytest.raises(mmapds.SourceError) as caught:
        mmapds.build(tmp_path / "d")
    found = ", ".join(f"{number:02}.json" for number in range(8))
    assert str(caught.value) == f"{tmp_path}/d: expected names that end in {SUFFIXES}, found {found} and 3 more"
    mmapds.build(sources, out=tmp_path / "d/all.mmx")
    assert names(mmapds.open(tmp_path / "d")) == list(range(11))
    mmapds.merge(tmp_path / "d", out=tmp_path / "merged.mmx")


@pytest.fixture
def shards(write, tmp_path):
    """Three sources and their indexes."""
    for name in "abc":
        mmapds.build(write([{"name": name}], f"sh/{name}.jsonl"))
    return tmp_path / "sh"


def test_an_index_whose_source_is_gone_is_an_error(shards, tmp_path):
    (shards / "b.jsonl").unlink()
    expected = f"{shards}/b.jsonl: no such file; delete {shards}/b.jsonl.mmx, which indexes it"
    for given in (shards, f"{shards}/[abc]*", f"{shards}/*.jsonl*"):
        for way in (mmapds.open, mmapds.build, lambda path: convert(path, tmp_path / "out.mma")):
            with pytest.raises(mmapds.SourceError, match=re.escape(expected)):
                way(given)
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
    for name in ("d/0.jsonl", "d/1.jsonl", "a.jsonl", "a.jsonl.gz", "a.seekable.jsonl.gz"):
        data = b'{"name": "%b"}\n' % name.encode()
        write(gzip.compress(data) if name.endswith(".gz") else data, name)
    os.symlink("1.jsonl", "d/link.jsonl")
    os.symlink("d", "e")
    mmapds.build(["d", "a.jsonl", "a.jsonl.gz", "a.seekable.jsonl.gz"])  # an index for each, without a warning
    for given, first, again in (
        (["d/1.jsonl", "d/link.jsonl"], "d/1.jsonl", "d/link.jsonl"),
        (["d/{0..1}.jsonl", "e/?.jsonl"], "d/0.jsonl", "e/0.jsonl"),
        (["a.jsonl", "d/0.jsonl", "a.jsonl.gz"], "a.jsonl", "a.jsonl.gz"),
        (["a.jsonl", "a.seekable.jsonl.gz"], "a.jsonl", "a.seekable.jsonl.gz"),
    ):
        for way in (mmapds.open, partial(mmapds.build, out="t.mmx"), partial(convert, out="t.mma", force=True)):
            with pytest.warns(UserWarning, match=TWICE) as caught:
                way(given)
            assert [str(each.message) for each in caught] == [f"{again}: {TWICE}, as {first} is also given"]
        assert names(mmapds.open("t.mmx")) == names(mmapds.open("t.mma"))


def test_a_directory_that_has_records_twice_is_named(write, tmp_path):
    """In two forms of one source, as `mmapds.seekable` leaves them, or in two indexes."""
    mmapds.seekable(write(gzip.compress(b'{"name": 1}\n'), "f/part.jsonl.gz"))
    mmapds.build(tmp_path / "f")
    with pytest.warns(UserWarning, match=TWICE):
        assert names(mmapds.open(tmp_path / "f")) == [1, 1]
    assert names(mmapds.open(tmp_path / "f/*.zst", build=True)) == [1]
    sources = [write([{"name": n}], f"shards/{n}.jsonl") for n in range(3)]
    out = mmapds.build(sources, out=tmp_path / "corpus.mmx")
    mmapds.open(out)[:2].save(tmp_path / "view.mmx")
    expected = r"0\.jsonl: its records may come more than once, as .*corpus\.mmx and .*view"
    for given in (tmp_path, tmp_path / "*.mmx"):
        with pytest.warns(UserWarning, match=expected):
            assert len(mmapds.open(given)) == 5
    assert len(mmapds.open([out, tmp_path / "view.mmx"])) == 5  # as the list says


def test_a_directory_that_cannot_be_listed(tmp_path):
    """The files of others alone would be an index without the records there."""
    opened_to_all(tmp_path)
    for name in ("e0/sub", "e1/sub"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "a.jsonl").write_bytes(b"1\n")
    closed = tmp_path / "e1"
    closed.chmod(0o311)
    ways = [partial(way, closed) for way in (mmapds.build, mmapds.open, convert)]
    for pattern in ("*/*.jsonl", "**/*.jsonl", "e?/*/a.jsonl", "**"):
        ways.append(partial(Places().expand, tmp_path / pattern, (".jsonl",)))
    known = [partial(Places().expand, tmp_path / name, (".jsonl",)) for name in ("e*/sub/a.jsonl", "e0/**/*.jsonl")]

    def said(way):
        try:
            return way()
        except mmapds.SourceError as error:
            return str(error)

    with unprivileged():
        refused, found = [[said(way) for way in each] for each in (ways, known)]
    assert refused == [f"{closed}: permission denied"] * len(ways)
    assert [first for first, *_ in found] == [f"{tmp_path}/e0/sub/a.jsonl"] * 2
