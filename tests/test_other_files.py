"""An index that stands beside another file than its own or was moved, and files that are given twice."""

import os
import pickle
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import mmapds

ROWS = [{"n": n} for n in range(15)]


@pytest.fixture(autouse=True)
def source(write, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(ROWS, "d/a.jsonl")
    mmapds.build("d/a.jsonl", length="n")
    return "d/a.jsonl"


# ---- another file in the place of its own ------------------------------------------------------------------------


def test_a_copied_index_reads_no_other_file(source, index):
    other = "d/b.jsonl"
    Path(other).write_text('{"n": 99}\n')
    shutil.copy(f"{source}.mmx", f"{other}.mmx")
    found = f"STALE: expected the index of {other}, found one of {source}; run: python -m mmapds.index {other}"
    for io in ("mmap", "pread"):
        with pytest.raises(mmapds.StaleIndexError) as error:
            mmapds.open(other, io=io)
        assert str(error.value) == f"{other}.mmx: {found}"
    for ran in (index("--verify", other), index("--info", other), index(other, tool="head")):
        assert (ran.returncode, ran.stderr) == (1, f"{other}.mmx: {found}\n")
    assert len(mmapds.open(f"{other}.mmx")) == 15  # the index itself was asked for
    assert index(*str(error.value).partition("; run: python -m mmapds.index ")[2].split()).returncode == 0
    assert list(mmapds.open(other)) == [{"n": 99}]
    assert mmapds.open(other).lengths.tolist() == [99]
    mmapds.build([source, other], out=f"{source}.mmx")
    with pytest.raises(mmapds.StaleIndexError, match=r"found one of 2 sources; run: .*index d/a\.jsonl$"):
        mmapds.open(source)
    assert len(mmapds.open(f"{source}.mmx")) == 16


def test_a_file_and_its_index_renamed_or_copied(source):
    mmapds.add_column(source, "twice", [2 * row["n"] for row in ROWS])
    for name in ("", ".mmx"):
        shutil.copy(source + name, "d/b.jsonl" + name)
        os.rename(source + name, "d/c.jsonl" + name)
    for path in ("d/b.jsonl", "d/c.jsonl"):
        with pytest.raises(mmapds.StaleIndexError, match=rf"found one of d/a\.jsonl; run: .*index {path}$"):
            mmapds.open(path)
        with pytest.raises(mmapds.Error, match="column 'twice' was computed in Python and a rebuild loses it"):
            mmapds.build(path)
        mmapds.build(path, force=True)
        assert list(mmapds.open(path)) == ROWS


OTHERS = [
    (b"\x93NUMPY\x01\x00" + bytes(120), "found other text"),
    (b'[{"n": 1}, {"n": 2}]', "found one JSON array"),
    (b"a,b\n1,2\n", "found other text"),
]


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize(("content", "found"), OTHERS)
def test_another_kind_of_file_in_the_place_of_lines(source, content, found, force):
    before = Path(f"{source}.mmx").read_bytes()
    Path(source).write_bytes(content)
    message = f"expected a JSON value a line, {found}; give format='jsonl' to"
    for build in (mmapds.build, partial(mmapds.build, force=force), partial(mmapds.open, build=True)):
        for path in (source, f"{source}.mmx"):
            with pytest.raises(mmapds.FormatError, match=message):
                build(path)
    assert Path(f"{source}.mmx").read_bytes() == before
    mmapds.build(source, format="jsonl", length="bytes()", force=force)
    assert b"\n".join(mmapds.open(source, decode="bytes")) == content.rstrip(b"\n")
    mmapds.open(source, build=True)  # an index that is up to date is not built


def test_columns_of_lines_are_not_asked_of_other_formats_in_their_place():
    with mmapds.Writer("x.mma", {"x": "int64"}, index=False) as writer:
        writer.write({"x": 1})
    np.save("a.npy", np.arange(3))
    Path("a.jsonl").write_bytes(b'{"x": 1}\n')
    for out in ("t.mmx", "u.mmx"):
        mmapds.build("a.jsonl", out=out, columns={"x": "x"})
    mmapds.build("x.mma", out="t.mmx")
    assert mmapds.open("t.mmx").column("x").tolist() == [1]
    with pytest.raises(mmapds.ColumnError, match=r"column 'x': expected bytes\(\) for records that are not JSON"):
        mmapds.build("a.npy", out="u.mmx")
    mmapds.build("a.npy", out="u.mmx", columns={"x": "bytes()"})


# ---- files by several names --------------------------------------------------------------------------------------


def test_links_and_directories_that_move(source, index):
    os.symlink("a.jsonl", "d/link.jsonl")
    os.link(source, "d/hard.jsonl")
    shutil.copy(f"{source}.mmx", "d/hard.jsonl.mmx")
    os.symlink("d", "e")
    for name in ("d/link.jsonl", "d/hard.jsonl", "e/link.jsonl", os.path.abspath(source), "d/../d/a.jsonl"):
        assert list(mmapds.open(name)) == ROWS
    os.symlink("a.jsonl.mmx", "d/link.jsonl.mmx")
    assert index("--verify", "e/link.jsonl").returncode == 0
    os.unlink("e")
    os.rename("d", "f")
    mmapds.build("f/a.jsonl", force=True)
    os.rename("f", "g")
    assert list(mmapds.open("g/a.jsonl")) == list(mmapds.open("g/link.jsonl")) == ROWS


def test_sources_and_their_indexes_are_given_together_but_each_source_once(source, write, index):
    write(ROWS[:5], "d/b.jsonl")
    mmapds.build("d/b.jsonl")
    files = sorted(f"d/{name}" for name in os.listdir("d"))  # what the shell makes of a star
    assert len(files) == 4
    for given in (files, "d/*", files[1::2]):
        assert len(mmapds.open(given)) == 20
    assert index("-n", 16, *files, tool="head").stdout.count('"n"') == 16
    assert index("--verify", *files).stdout.count("verified") == 2
    mmapds.build([source, "d/b.jsonl"], out="d/all.mmx")
    for given in ([source, "d/all.mmx"], [f"./{source}.mmx", source]):
        with pytest.raises(mmapds.SourceError, match=r"expected each source once, found .*a\.jsonl by its name and as"):
            mmapds.open(given)
    assert len(mmapds.open(["d/all.mmx", f"{source}.mmx"])) == 35


# ---- what was moved, or is gone ----------------------------------------------------------------------------------


def test_an_index_that_was_moved_away_from_its_sources(write, index):
    sources = [write([1, 2], "m/a.jsonl"), write([3], "m/b.jsonl")]
    mmapds.build(sources, out="m/all.mmx")
    mmapds.open("m/all.mmx")[1:].save("m/v.mmx")
    os.rename("m/all.mmx", "all.mmx")
    for roots in ([], ["m"]):
        with pytest.raises(mmapds.SourceError, match=r"a\.jsonl: no such file or directory \(a source of all\.mmx\)$"):
            mmapds.open("all.mmx", roots=roots)
    os.mkdir("i")
    mmapds.build(sources, out="i/all.mmx")
    assert list(mmapds.open("i/all.mmx", roots="m")) == [1, 2, 3]
    os.rename("all.mmx", "m/all.mmx")
    shutil.move("m", "n")
    assert (list(mmapds.open("n/all.mmx")), list(mmapds.open("n/v.mmx"))) == ([1, 2, 3], [2, 3])
    os.unlink("n/all.mmx")
    with pytest.raises(mmapds.IndexMissingError, match=r"n/all\.mmx: no such index; run: .*index SOURCE\.\.\. -o \S+$"):
        mmapds.open("n/v.mmx")
    assert index("n/a.jsonl", "n/b.jsonl", "-o", "n/all.mmx").returncode == 0
    assert list(mmapds.open("n/v.mmx")) == [2, 3]


def test_an_index_that_is_gone_names_the_command(write, index):
    mmapds.build([write([1], "a.jsonl"), write([2], "b.jsonl")], out="all.mmx")
    pickled = pickle.dumps(mmapds.open("all.mmx"))
    os.unlink("all.mmx")
    way = r"run: python -m mmapds\.index SOURCE\.\.\. -o all\.mmx$"
    for attempt in (lambda: mmapds.open("all.mmx"), lambda: mmapds.build("all.mmx"), lambda: pickle.loads(pickled)[0]):
        with pytest.raises(mmapds.Error, match=rf"^all\.mmx: no such (file|index); {way}"):
            attempt()
    assert index("a.jsonl", "b.jsonl", "-o", "all.mmx").returncode == 0
    assert list(pickle.loads(pickled)) == [1, 2]
