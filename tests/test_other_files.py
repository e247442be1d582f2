"""An index that stands beside another file than its own or was moved, and files that are given twice."""

import os
import shutil
from functools import partial
from pathlib import Path

import pytest

import mmapds

ROWS = [{"n": n} for n in range(15)]


@pytest.fixture(autouse=True)
def source(write, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(ROWS, "d/a.jsonl")
    mmapds.build("d/a.jsonl", length="n")
    return "d/a.jsonl"


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


@pytest.mark.parametrize("force", [False, True])
def test_another_kind_of_file_in_the_place_of_lines(source, force):
    before = Path(f"{source}.mmx").read_bytes()
    Path(source).write_bytes(b"a,b\n1,2\n")
    for build in (partial(mmapds.build, force=force), partial(mmapds.open, build=True)):
        for path in (source, f"{source}.mmx"):
            with pytest.raises(
                mmapds.FormatError, match="expected a JSON value a line, found other text; give format="
            ):
                build(path)
    assert Path(f"{source}.mmx").read_bytes() == before
    mmapds.build(source, format="jsonl", length="bytes()", force=force)
    assert list(mmapds.open(source, decode="text", build=True)) == ["a,b", "1,2"]


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


def test_an_index_that_was_moved_away_from_its_sources(write, index):
    sources = [write([1, 2], "m/a.jsonl"), write([3], "m/b.jsonl")]
    mmapds.build(sources, out="m/all.mmx")
    mmapds.open("m/all.mmx")[1:].save("m/v.mmx")
    os.rename("m/all.mmx", "all.mmx")
    for roots in ([], ["m"]):
        with pytest.raises(mmapds.SourceError, match=r"a\.jsonl: no such file or directory \(a source of all\.mmx\)$"):
            mmapds.open("all.mmx", roots=roots)
    os.rename("all.mmx", "m/all.mmx")
    shutil.move("m", "n")
    assert (list(mmapds.open("n/all.mmx")), list(mmapds.open("n/v.mmx"))) == ([1, 2, 3], [2, 3])
    os.unlink("n/all.mmx")
    with pytest.raises(mmapds.IndexMissingError, match=r"n/all\.mmx: no such index; run: .*index SOURCE\.\.\. -o \S+$"):
        mmapds.open("n/v.mmx")
    assert index("n/a.jsonl", "n/b.jsonl", "-o", "n/all.mmx").returncode == 0
    assert list(mmapds.open("n/v.mmx")) == [2, 3]
