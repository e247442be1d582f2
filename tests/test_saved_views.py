"""Saved views: a selection of records as an index of its own."""

import json
import math
import os
import pickle
import re
import shlex
import shutil
import subprocess
import sys
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mmapds
from mmapds.cli.commands import index_main
from mmapds.dataset import views
from mmapds.dataset.saving import examine_view
from mmapds.errors import ColumnError, FormatError, IndexMissingError, KeyMissingError, SourceError, StaleIndexError
from mmapds.storage import numbers
from mmapds.storage.index_file import SavedView
from tests.support.index_file import arrays, forge_section, rewrite
from tests.support.messages import check
from tests.support.tars import archive


@pytest.fixture
def folder(tmp_path):
    """Three sources with an index each, and one of all."""
    random = np.random.default_rng(0)
    for name in "abc":
        lines = [f'{{"n":{n},"id":"{name}{i}"}}\n' for i, n in enumerate(random.integers(1, 60, 700).tolist())]
        (tmp_path / f"{name}.jsonl").write_text("".join(lines))
    paths = [str(tmp_path / f"{name}.jsonl") for name in "abc"]
    mmapds.build(paths, length="n", columns={"size": "bytes()"})
    mmapds.build(paths, out=tmp_path / "all.mmx", length="n", columns={"size": "bytes()"})
    return tmp_path


def many(folder):
    return mmapds.open([str(folder / f"{name}.jsonl") for name in "abc"])


def grow(folder, name="a"):
    with open(folder / f"{name}.jsonl", "a") as file:
        file.write('{"n": 7, "id": "x"}\n')


def test_saved_views_open_among_others(folder):
    base = mmapds.open(folder / "all.mmx")
    base[base.lengths < 30].save(folder / "v.mmx")
    base[[1, 5]].save(folder / "w.mmx")
    given = [str(folder / "v.mmx"), str(folder / "a.jsonl"), str(folder / "w.mmx")]
    found = mmapds.open(given)
    assert list(found) == [*base[base.lengths < 30], *mmapds.open(given[1]), *base[[1, 5]]]
    assert arrays(found.length_order)[0].tolist() == np.argsort(-found.lengths.astype(int), kind="stable").tolist()
    assert list(pickle.loads(pickle.dumps(found))) == list(mmapds.open(given, build=True)) == list(found)
    mmapds.open(folder / "v.mmx")[5:9].save(folder / "x.mmx")  # of the base, not of v.mmx
    (folder / "v.mmx").unlink()
    assert list(mmapds.open(folder / "x.mmx")) == list(base[base.lengths < 30][5:9])


def test_keys_are_found_in_saved_views_and_in_what_is_mapped_or_zipped(tmp_path):
    (tmp_path / "a.tar").write_bytes(archive([(f"k{i}.txt", b"x" * i) for i in range(200)]))
    ds = mmapds.open(tmp_path / "a.tar", build=True)
    for key in (np.arange(200) % 3 > 0, [7, 100, 3]):
        ds[key].save(tmp_path / "v.mmx")
        saved = mmapds.open(tmp_path / "v.mmx")
        for view in (saved, saved[::-1], ds[key].map(len)):
            assert view.raw(view.find("k100")) == ds.raw(100)
    assert mmapds.zip(a=ds[1:], b=ds[:-1]).find("k100") == 99
    with pytest.raises(KeyMissingError, match="key = 'k99', expected the key of one of the 3 records"):
        saved.find("k99")


# ---- filters -------------------------------------------------------------------------------------------------------

COLUMNS = {
    "length": [0, 1, 5, 2**32 - 1],
    "big": [0, 5, 2**53 + 1, 2**63, 2**64 - 1],
    "signed": [-(2**63), -1, 0, 5, 2**63 - 1],
    "scores.mean": [-1.5, -0.0, 2.5, 5.0, 1e300, math.nan, math.inf],
}
NUMBERS = "0 1 5 -1 -1.5 2.5 5.0 -5e-1 1e9 9007199254740993 9223372036854775808 18446744073709551616 -1e300 1e999"
SIDES = st.sampled_from([*COLUMNS, *COLUMNS, *NUMBERS.split()])
RIGHT = st.tuples(st.sampled_from(["<", "<=", ">", ">=", "==", "!="]), SIDES).map(" ".join)
COMPARISONS = st.tuples(SIDES, RIGHT, st.one_of(RIGHT, st.just(""))).map(" ".join)
FILTERS = st.recursive(
    COMPARISONS,
    lambda inner: st.one_of(
        st.builds("{} {} {}".format, inner, st.sampled_from(["and", "or"]), inner),
        st.builds("{}({})".format, st.sampled_from(["", "not ", "not not "]), inner),
    ),
    max_leaves=6,
)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Two sources with columns of every type, whose numbers are returned, and a saved view of every third record."""
    folder, random = tmp_path_factory.mktemp("filters"), np.random.default_rng(0)
    paths, columns = [folder / "a.jsonl", folder / "b.jsonl"], {name: [] for name in COLUMNS}
    for path, records in zip(paths, (300, 100), strict=True):
        path.write_text("{}\n" * records)
        mmapds.build(path)
        for name, values in COLUMNS.items():
            chosen = [values[at] for at in random.integers(0, len(values), records)]
            chosen[: len(values)] = values
            mmapds.add_column(path, name, chosen)
            columns[name] += chosen
    mmapds.open(paths)[::3].save(folder / "thirds.mmx")
    return [str(path) for path in paths], columns, folder / "thirds.mmx"


@given(text=FILTERS)
def test_a_filter_chooses_what_python_says(measured, text):
    """In pieces that no word of bits ends with, in memory or in scratch files, and of a view."""
    paths, columns, thirds = measured
    out, wanted = thirds.with_name("out.mmx"), []
    for row in range(400):
        length, big, signed, mean = (column[row] for column in columns.values())
        names = {"length": length, "big": big, "signed": signed, "scores": SimpleNamespace(mean=mean)}
        wanted += [row] if eval(text, names) else []
    with patch.object(views, "_PIECE", 72), patch.object(numbers, "_IN_MEMORY", 1):
        assert index_main([*paths, "--where", text, "-o", str(out), "--quiet"]) == 0
        found, base = mmapds.open(out), mmapds.open(paths)
        assert [found.place(at) for at in range(len(found))] == [base.place(at) for at in wanted]
        assert index_main([str(thirds), "--where", text, "-o", str(out), "--quiet"]) == 0
    found, chosen = mmapds.open(out), [at for at in wanted if at % 3 == 0]
    assert found.column("big").tolist() == [columns["big"][at] for at in chosen]
    assert not examine_view(SavedView(str(out))).problems


NOT_FILTERS = ["", "length", "length =< 3", "length < 3 & size > 4", "not length", "length + 1 < 3", "-length < 3"]
NOT_FILTERS += ["length < True", "length < 'a'", "length < 1j", "length in (1, 2)", "length is 3", "(length < 3) < 3"]
NOT_FILTERS += ["f(length) < 3", "length[0] < 3", "length < 3 if size else 4", "length < 3; size", "length <", "\0"]
NOT_FILTERS += ["length < " + "9" * 400, "(" * 10_000, "not " * 100_000 + "length < 3"]


def test_a_filter_is_comparisons_and_nothing_else(folder, ran):
    path, out = folder / "a.jsonl", folder / "out.mmx"
    before = sorted(os.listdir(folder))
    for text in NOT_FILTERS:
        status, _, err = ran("index", path, "--where", text, "-o", out)
        assert (status, f"--where = {text!r}, expected comparisons of columns"[:200] in err) == (2, True), text[:99]
    for status, message, *arguments in (
        (1, "a.jsonl.mmx: expected column 'tokens', found 'length', 'size'", "tokens < 3", "-o", out),
        (2, "--where: expected -o OUT.mmx with it, found none\n", "size < 3"),
        (2, "--merge: expected no option for how to index with --where\n", "size < 3", "-o", out, "--merge"),
        (1, "a.jsonl.mmx: expected a new path, or a saved view", "size < 3", "-o", f"{path}.mmx"),
    ):
        found, _, err = ran("index", path, "--where", *arguments)
        assert (found, message in err) == (status, True), err
    assert sorted(os.listdir(folder)) == before
    status, said, _ = ran("index", path, "--where", "length < 30", "-o", out)
    ds = mmapds.open(path)
    assert said.startswith(f"{out}: {(ds.lengths < 30).sum():,} of 700 records where length < 30, ")


# ---- bases that move, change or are missing ------------------------------------------------------------------------


def test_a_view_moves_with_its_base_and_leads_to_no_other_files(folder, tmp_path_factory):
    """What its metadata name is opened only below its own directory, or below a root."""
    (folder / "views").mkdir()
    many(folder)[::7].save(folder / "views" / "v.mmx")
    moved = tmp_path_factory.mktemp("moved") / "corpus"
    shutil.move(folder, moved)
    view = moved / "views" / "v.mmx"
    for path in (view, [str(view), str(moved / "all.mmx")]):
        message = r"v.mmx: expected files below its own directory that are not hidden, found .*a.jsonl.mmx; open it "
        with pytest.raises(SourceError, match=message):
            mmapds.open(path)
    assert list(mmapds.open(view, roots=moved)) == list(many(moved)[::7])


@pytest.mark.parametrize("build", [False, True])
def test_a_view_is_stale_when_its_base_has_other_records(folder, build):
    path, other = folder / "v.mmx", mmapds.open(folder / "b.jsonl")[::2]
    other.save(path)
    mmapds.build(folder / "b.jsonl", force=True)  # the same sources
    mmapds.add_column(folder / "b.jsonl", "more", len)
    assert list(mmapds.open(path)) == list(other)
    assert mmapds.open(path).column("more").tolist() == [2] * len(other)
    mmapds.open(folder / "a.jsonl")[::2].save(path)
    kept = pickle.dumps(mmapds.open(path))
    grow(folder)
    with pytest.raises(StaleIndexError, match=r"a.jsonl was .* bytes when indexed") as error:
        mmapds.open(path, build=build)
    check(str(error.value))
    subprocess.run([sys.executable, *shlex.split(str(error.value).partition("; run: python ")[2])], check=True)
    message = (
        r"v.mmx: STALE: .*a.jsonl.mmx has other .* now\); save it again, with --where or ds\[mask\].save\(.*v.mmx.\)$"
    )
    with pytest.raises(StaleIndexError, match=message):
        mmapds.open(path, build=build)
    with pytest.raises(StaleIndexError, match="not the indexes of the pickled dataset; open the dataset again"):
        pickle.loads(kept)
    mmapds.open(folder / "a.jsonl")[::2].save(path)  # as the message says
    assert len(mmapds.open(path, build=build)) == 351


def test_other_columns_a_missing_base_and_another_view(folder):
    path = folder / "v.mmx"
    mmapds.open(folder / "a.jsonl")[::2].save(path)
    kept = pickle.dumps(mmapds.open(path))
    mmapds.open(folder / "a.jsonl")[1::2].save(path)
    with pytest.raises(StaleIndexError, match=r"v.mmx: not the saved view of the pickled dataset; open the dataset ag"):
        pickle.loads(kept)
    (folder / "a.jsonl.mmx").unlink()
    with pytest.raises(IndexMissingError, match=r"a.jsonl.mmx: no such index; run: python -m mmapds.index .*a.jsonl"):
        mmapds.open(path)
    mmapds.build(folder / "a.jsonl", length="bytes()")
    with pytest.raises(StaleIndexError, match="other records or columns"):
        mmapds.open(path)
    assert examine_view(SavedView(str(path))).not_checked[0].startswith("rows and columns, as the indexes are not")
    mmapds.build(folder / "a.jsonl", length="n", columns={"size": "bytes()"})
    assert len(mmapds.open(path)) == 350


def test_info_and_verify_say_what_became_of_a_view(folder, index):
    path = folder / "v.mmx"
    many(folder)[:50].save(path)
    shown = index("--info", path).stdout
    assert "v.mmx: a saved view, 50 of the 2,100 records of 3 indexes; length, size" in shown
    assert "b.jsonl.mmx: 700 records; unchanged" in shown
    assert index("--verify", path).returncode == 0
    grow(folder, "b")
    with pytest.raises(StaleIndexError) as error:
        mmapds.open(path)
    found = index("--verify", path)
    assert (found.returncode, found.stdout.count("; 1 problem\n"), found.stderr) == (1, 1, f"{error.value}\n")
    (document,) = json.loads(index("--verify", "--json", path).stdout)["indexes"]
    assert (document["format"], document["records"], list(document["columns"])) == ("view", 50, ["length", "size"])
    assert (document["verified"], document["counts"]) == (False, {"sources": 1})
    assert document["problems"][0]["source"] == str(folder / "b.jsonl")
    assert [base["state"] for base in document["indexes"]] == ["unchanged", "stale", "unchanged"]
    found = index("--info", path)
    assert (found.returncode, found.stderr) == (1, f"{error.value}\n")
    assert f"{folder}/b.jsonl.mmx: 700 records; STALE: b.jsonl was" in found.stdout
    os.unlink(folder / "c.jsonl")
    assert "c.jsonl: no such file" in index("--info", path).stdout


# ---- what is refused -----------------------------------------------------------------------------------------------


def test_a_saved_view_replaces_no_other_file(folder):
    ds = mmapds.open(folder / "a.jsonl")
    before = (folder / "a.jsonl.mmx").read_bytes()
    for name in ("a.jsonl.mmx", "all.mmx"):
        with pytest.raises(mmapds.Error, match="expected a new path, or a saved view to replace, found another file"):
            ds[:5].save(folder / name)
    assert (folder / "a.jsonl.mmx").read_bytes() == before
    assert not [path for path in folder.iterdir() if "tmp" in path.name]
    ds[:5].save(folder / "v.mmx")
    mmapds.open(folder / "v.mmx")[1:].save(folder / "v.mmx")
    assert len(mmapds.open(folder / "v.mmx")) == 4


def test_what_wants_an_index_refuses_a_view(folder):
    view, place = folder / "v.mmx", folder / "d.jsonl.mmx"
    mmapds.open(folder / "a.jsonl")[:5].save(view)
    with pytest.raises(ColumnError, match="source_or_index: expected one index of sources, found a saved view"):
        mmapds.add_column(view, "x", len)
    (folder / "d.jsonl").write_text('{"n":1}\n')
    shutil.copy(view, place)
    for call in (
        lambda: mmapds.build(view),
        lambda: mmapds.build(folder / "b.jsonl", out=place),
        lambda: mmapds.open(folder / "d.jsonl", build=True),
    ):
        with pytest.raises(FormatError, match="NOT AN INDEX: expected one of sources, found a saved view") as error:
            call()
        check(str(error.value))
    with pytest.raises(StaleIndexError, match=r"STALE: expected the index of .*d.jsonl, found a saved view; rename it"):
        mmapds.open(folder / "d.jsonl")
    os.unlink(place)
    assert len(mmapds.open(folder / "d.jsonl", build=True)) == 1


# ---- damage --------------------------------------------------------------------------------------------------------


RANKS = "section 'row_ranks': expected "


@pytest.mark.parametrize(
    ("key", "section", "numbers", "message"),
    [
        ([5, 3], "rows", [5, 2100], "section 'rows': record 2100 is out of range for 2100 records$"),
        (slice(0, 2000), "row_bits", None, f"{RANKS}the counts of 'row_bits', found others"),
        (slice(0, 2000), "row_ranks", [1, 2000, 2000], f"{RANKS}the counts of 'row_bits', found others"),
        (slice(0, 2000), "column:length", None, r"column:length\[0\] = 2147483648, expected "),
        (slice(0, 2000), "length_order", None, r"length_order\[0\]"),
    ],
)
def test_sections_of_a_view_that_are_damaged(folder, key, section, numbers, message):
    path = folder / "v.mmx"
    mmapds.open(folder / "all.mmx")[key].save(path)
    last, described = len(mmapds.open(path)) - 1, SavedView(str(path)).sections[section]
    forge_section(path, section, np.array(numbers or [2**31] * described.items, described.dtype))
    problems = "\n".join(str(problem.error) for problem in examine_view(SavedView(str(path))).problems)
    assert f"section {section!r} does not match its checksum" in problems
    assert re.search(message, problems, re.MULTILINE), problems
    if "row" in section:  # no other record is read
        for read in (lambda ds: (ds[0], ds[last]), lambda ds: ds.take([0, last]), list, lambda ds: ds[[0, last]]):
            with pytest.raises(FormatError, match=f"v.mmx: DAMAGED: {message}"):
                read(mmapds.open(path))


def test_ranks_of_bits_end_with_the_number_of_records(folder):
    mmapds.open(folder / "all.mmx")[:2000].save(folder / "v.mmx")
    forge_section(folder / "v.mmx", "row_ranks", np.array([0, 2000, 7], np.uint64))
    with pytest.raises(FormatError, match=f"v.mmx: DAMAGED: {RANKS}2000 records of 2100 at its end, found 7"):
        mmapds.open(folder / "v.mmx")


BASES = "expected 1 to 2.*63 - 1 records of 1 base or more, found "


@pytest.mark.parametrize(
    ("header", "changed", "message"),
    [
        ({"reserved": 4}, {}, "expected kind 0 or 2, found 4"),
        ({"records": 3}, {}, "section 'rows': expected 3 numbers of type"),
        (None, {"sections": {}}, "section 'rows': expected 2 numbers .* found none"),
        (None, {"bases": []}, f"{BASES}0"),
        (None, {"records": 2**62}, f"{BASES}{2**63}"),
        (None, {"records": -1}, "malformed metadata"),
        (None, {"path": "a\0b"}, "malformed metadata"),
    ],
)
def test_fields_of_a_view_that_are_damaged(folder, header, changed, message):
    def change(found):
        if changed.keys() & found.keys():
            return found | changed
        return found | {"bases": [base | changed for base in found["bases"] * (1 + ("records" in changed))]}

    mmapds.open(folder / "a.jsonl")[[5, 3]].save(folder / "v.mmx")
    rewrite(folder / "v.mmx", header=header, metadata=change)
    with pytest.raises(FormatError, match=f"v.mmx: DAMAGED: {message}"):
        mmapds.open(folder / "v.mmx")
