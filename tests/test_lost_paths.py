"""Columns that no index has, and indexes that lie elsewhere: messages say what does mend it."""

import os
import pickle
import shutil

import pytest

import mmapds
from mmapds.storage.index_file import Index
from tests.support.commands import command
from tests.support.messages import check


def run(error):
    """Run the command of a message."""
    words = str(error).partition("; run: python -m mmapds.index ")[2].partition(" (")[0].split()
    done = command(*words)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def moved(write, tmp_path, monkeypatch):
    """An index that was moved away from its sources."""
    monkeypatch.chdir(tmp_path)
    sources = [write([1, 2], "m/a.jsonl"), write([3], "m/b.jsonl")]
    mmapds.build(sources, out="m/all.mmx")
    os.rename("m/all.mmx", "all.mmx")


@pytest.mark.usefixtures("moved")
def test_roots_find_no_sources():
    for roots in ([], ["m"]):
        with pytest.raises(mmapds.SourceError) as error:
            mmapds.open("all.mmx", roots=roots)[0]
        assert str(error.value).endswith("a.jsonl: no such file or directory (a source of all.mmx)")
    os.rename("all.mmx", "m/all.mmx")
    assert list(mmapds.open("m/all.mmx")) == [1, 2, 3]
    os.mkdir("i")
    mmapds.build(["m/a.jsonl", "m/b.jsonl"], out="i/all.mmx")
    os.rename("m", "o")  # whether what lies outside is still there is not looked at
    with pytest.raises(mmapds.SourceError) as error:
        mmapds.open("i/all.mmx")
    assert str(error.value).endswith(
        f"; open it with roots=['{os.getcwd()}/m'] (if you trust who made the index, and they are still there; else "
        "index them where they are now)"
    )
    check(str(error.value))
    with pytest.raises(mmapds.SourceError, match="no such file or directory"):
        mmapds.open("i/all.mmx", roots=f"{os.getcwd()}/m")
    mmapds.build(["o/a.jsonl", "o/b.jsonl"], out="i/all.mmx")
    assert list(mmapds.open("i/all.mmx", roots="o")) == [1, 2, 3]
    os.rename("o", "m")
    shutil.move("m", "n")
    assert list(mmapds.open("n/all.mmx")) == [1, 2, 3]


@pytest.mark.parametrize("way", ["copy the source", "index it where it is", "only the index was moved"])
def test_an_index_that_was_copied_away_from_its_source(write, tmp_path, monkeypatch, way):
    monkeypatch.chdir(tmp_path)
    mmapds.build(write([1, 2], "here/a.jsonl"))
    os.mkdir("there")
    (shutil.move if way.startswith("only") else shutil.copy)("here/a.jsonl.mmx", "there")
    for given in ("there/a.jsonl.mmx", "there"):
        with pytest.raises(mmapds.SourceError) as error:
            mmapds.open(given)
        assert str(error.value) == ("there/a.jsonl: no such file or directory (a source of there/a.jsonl.mmx)")
        check(str(error.value))
    if way == "copy the source":
        shutil.copy("here/a.jsonl", "there")
        assert list(mmapds.open("there/a.jsonl.mmx")) == list(mmapds.open("there/a.jsonl")) == [1, 2]
    else:
        mmapds.build("here/a.jsonl")
        assert list(mmapds.open("here/a.jsonl")) == [1, 2]


@pytest.mark.usefixtures("moved")
def test_a_saved_view_whose_index_is_gone():
    os.rename("all.mmx", "m/all.mmx")
    mmapds.open("m/all.mmx")[1:].save("m/v.mmx")
    os.rename("m/all.mmx", "gone")
    with pytest.raises(mmapds.IndexMissingError) as error:
        mmapds.open("m/v.mmx")
    assert str(error.value).removeprefix(f"{os.getcwd()}/") == (
        "m/all.mmx: no such index; run: python -m mmapds.index SOURCE... -o m/all.mmx (or put it back)"
    )
    assert command("m/a.jsonl", "m/b.jsonl", "-o", "m/all.mmx").returncode == 0
    assert list(mmapds.open("m/v.mmx")) == [2, 3]


def test_a_missing_index_is_built_only_where_its_source_is_beside_it(write, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write([1, 2])
    with pytest.raises(
        mmapds.IndexMissingError, match=r"^train.jsonl.mmx: no such index; run: .* train.jsonl$"
    ) as error:
        Index("train.jsonl.mmx")
    run(error.value)
    assert Index("train.jsonl.mmx").records == 2
    with pytest.raises(mmapds.IndexMissingError, match=r"no such index; run: .* SOURCE\.\.\. -o nix\.mmx \(or"):
        Index("nix.mmx")


def test_an_index_of_several_sources_that_is_gone_names_the_command(write, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    mmapds.build([write([1], "a.jsonl"), write([2], "b.jsonl")], out="all.mmx")
    pickled = pickle.dumps(mmapds.open("all.mmx"))
    os.unlink("all.mmx")
    way = r"run: python -m mmapds\.index SOURCE\.\.\. -o all\.mmx \(or put it back\)$"
    for attempt in (lambda: mmapds.open("all.mmx"), lambda: mmapds.build("all.mmx"), lambda: pickle.loads(pickled)[0]):
        with pytest.raises(mmapds.Error, match=rf"^all\.mmx: no such (file|index); {way}"):
            attempt()
    assert command("a.jsonl", "b.jsonl", "-o", "all.mmx").returncode == 0
    assert list(pickle.loads(pickled)) == [1, 2]
