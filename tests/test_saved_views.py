"""Saved views: a selection of records as an index of its own."""

import json
import os
import pickle
import re
import shlex
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import mmapds
from mmapds import TokenBudgetBatchSampler
from mmapds.dataset.saving import examine_view
from mmapds.errors import FormatError, SourceError, StaleIndexError
from mmapds.storage.index_file import SavedView
from mmapds.storage.lock import locked
from tests.support.commands import command
from tests.support.commands import mmapds as main
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


def views(folder):
    one, three = mmapds.open(folder / "all.mmx"), many(folder)
    short = one[one.lengths < 30]
    return {
        "mask": short,
        "mask of many": three[three.lengths < 30],
        "array": one[[5, 900, 5, 3]],
        "split": three.split([0.2, 0.8])[1],
        "slice": one[100:1900:3],
        "reversed": three[::-1],
        "few": one[[3, 900]],
        "view of a view": short[short.column("size") > 18][20:400],
        "concat": mmapds.concat([short, three[5:100], one.split([0.5, 0.5])[0]]),
        "all": three,
        "none": one[5:5],
    }


NAMES = [
    "mask",
    "mask of many",
    "array",
    "split",
    "slice",
    "reversed",
    "few",
    "view of a view",
    "concat",
    "all",
    "none",
]


@pytest.mark.parametrize("name", NAMES)
def test_a_saved_view_is_the_view(folder, name):
    view = views(folder)[name]
    view.save(folder / "v.mmx")
    saved = mmapds.open(folder / "v.mmx")
    assert list(saved) == list(view)
    assert (saved.columns, saved.fingerprint, saved.source_starts.tolist()) == (
        view.columns,
        view.fingerprint,
        [0, len(view)],
    )
    for column in view.columns:
        assert np.array_equal(saved.column(column), view.column(column))
        assert saved.column(column).dtype == view.column(column).dtype
    for i in range(0, len(view), 97):
        assert (saved.where(i), saved.place(i), saved.raw(i)) == (view.where(i), view.place(i), view.raw(i))
    assert arrays(saved.length_order)[0].tolist() == np.argsort(-view.lengths.astype(int), kind="stable").tolist()
    if len(view):
        assert list(TokenBudgetBatchSampler(saved, 300)) == list(TokenBudgetBatchSampler(view, 300))
    again = pickle.loads(pickle.dumps(saved))
    assert list(again) == list(view)
    assert len(pickle.dumps(saved)) < 1500
    assert command("--verify", folder / "v.mmx").returncode == 0


def test_views_of_saved_views(folder):
    base = mmapds.open(folder / "all.mmx")
    view = base[base.lengths < 30]
    view.save(folder / "v.mmx")
    saved = mmapds.open(folder / "v.mmx")
    for key in (slice(5, 300), slice(300, 5, -2), [7, 3, 3], saved.lengths > 10):
        assert list(saved[key]) == list(view[key])
        assert np.array_equal(saved[key].lengths, view[key].lengths)
        saved[key].save(folder / "w.mmx")  # of the base, not of v.mmx
        (folder / "v2.mmx").unlink(missing_ok=True)
        assert list(mmapds.open(folder / "w.mmx")) == list(view[key])
    assert [len(part) for part in saved.split([0.5, 0.5])] == [len(part) for part in view.split([0.5, 0.5])]
    assert list(saved.split([0.9, 0.1])[1]) == list(view.split([0.9, 0.1])[1])
    joined = mmapds.concat([saved, base[:9], saved[5:50]])
    assert list(joined) == list(mmapds.concat([view, base[:9], view[5:50]]))
    expected = np.argsort(-joined.lengths.astype(int), kind="stable")
    assert arrays(joined.length_order)[0].tolist() == expected.tolist()
    (folder / "v.mmx").unlink()
    assert list(mmapds.open(folder / "w.mmx")) == list(view[view.lengths > 10])


def test_saved_views_open_among_others(folder):
    base = mmapds.open(folder / "all.mmx")
    base[base.lengths < 30].save(folder / "v.mmx")
    base[[1, 5]].save(folder / "w.mmx")
    given = [str(folder / "v.mmx"), str(folder / "a.jsonl"), str(folder / "w.mmx")]
    found = mmapds.open(given)
    assert list(found) == [*base[base.lengths < 30], *mmapds.open(given[1]), *base[[1, 5]]]
    assert arrays(found.length_order)[0].tolist() == np.argsort(-found.lengths.astype(int), kind="stable").tolist()
    assert list(pickle.loads(pickle.dumps(found))) == list(found)
    assert list(mmapds.open(given, build=True)) == list(found)


def test_keys_are_found_in_saved_views(tmp_path):
    (tmp_path / "a.tar").write_bytes(archive([(f"k{i}.txt", b"x" * i) for i in range(200)]))
    mmapds.build(tmp_path / "a.tar")
    ds = mmapds.open(tmp_path / "a.tar")
    for name, key in (("bits", np.arange(200) % 3 > 0), ("rows", [7, 100, 3])):
        ds[key].save(tmp_path / f"{name}.mmx")
        saved = mmapds.open(tmp_path / f"{name}.mmx")
        assert saved.raw(saved.find("k100")) == ds.raw(100)
    with pytest.raises(mmapds.KeyMissingError):
        saved.find("k99")


def test_a_view_moves_with_its_base(folder, tmp_path_factory):
    (folder / "views").mkdir()
    view = many(folder)[::7]
    view.save(folder / "views" / "v.mmx")
    elsewhere = tmp_path_factory.mktemp("moved") / "corpus"
    shutil.move(folder, elsewhere)
    with pytest.raises(
        SourceError,
        match=r"v.mmx: expected files below its own directory .* found .*a.jsonl.mmx; open it ",
    ):
        mmapds.open(elsewhere / "views" / "v.mmx")
    assert len(mmapds.open(elsewhere / "views" / "v.mmx", roots=elsewhere)) == len(view)
    many(elsewhere)[::7].save(elsewhere / "v.mmx")
    assert len(mmapds.open(elsewhere / "v.mmx")) == len(view)


@pytest.mark.parametrize("build", [False, True])
def test_a_view_whose_source_grew_says_what_is_to_be_done(folder, build):
    ds = mmapds.open(folder / "a.jsonl")
    ds[:3].save(folder / "v.mmx")
    with open(folder / "a.jsonl", "a") as file:
        file.write('{"n": 7, "id": "x"}\n')
    with pytest.raises(StaleIndexError) as error:
        mmapds.open(folder / "v.mmx", build=build)
    check(str(error.value))
    command_line = str(error.value).partition("; run: python ")[2]
    subprocess.run([sys.executable, *shlex.split(command_line)], check=True)
    with pytest.raises(StaleIndexError, match="than when the view was saved"):
        mmapds.open(folder / "v.mmx", build=build)
    mmapds.open(folder / "a.jsonl")[:3].save(folder / "v.mmx")
    assert len(mmapds.open(folder / "v.mmx", build=build)) == 3


def test_a_view_in_the_place_of_an_index(folder):
    mmapds.open(folder / "a.jsonl")[:3].save(folder / "v.mmx")
    os.replace(folder / "v.mmx", folder / "a.jsonl.mmx")
    for call in (
        lambda: mmapds.open(folder / "a.jsonl", build=True),
        lambda: mmapds.build(folder / "a.jsonl"),
        lambda: mmapds.build(folder / "b.jsonl", out=folder / "a.jsonl.mmx"),
    ):
        with pytest.raises(FormatError, match="NOT AN INDEX: expected one of sources, found a saved view") as error:
            call()
        check(str(error.value))
    os.rename(folder / "a.jsonl.mmx", folder / "v.mmx")
    assert mmapds.open(folder / "a.jsonl", build=True).columns == []


def test_a_view_leads_to_no_other_files(folder, tmp_path_factory):
    """What its metadata name is opened only below its own directory, or below a root."""
    other = tmp_path_factory.mktemp("other")
    mmapds.open(folder / "all.mmx")[:5].save(other / "v.mmx")
    for path in (other / "v.mmx", [str(other / "v.mmx"), str(folder / "all.mmx")]):
        with pytest.raises(SourceError, match="expected files below its own directory that are not hidden"):
            mmapds.open(path)
    assert command("--verify", other / "v.mmx").returncode == 1
    assert "--root" in command("--verify", other / "v.mmx").stderr
    assert command("--verify", other / "v.mmx", "--root", folder).returncode == 0
    assert list(mmapds.open(other / "v.mmx", roots=folder)) == list(mmapds.open(folder / "all.mmx")[:5])
    (folder / ".hidden").mkdir()
    shutil.copy(folder / "all.mmx", folder / ".hidden" / "all.mmx")
    mmapds.open(folder / "all.mmx")[:5].save(folder / "v.mmx")
    rewrite(
        folder / "v.mmx", metadata=lambda found: {**found, "bases": [{**found["bases"][0], "path": ".hidden/all.mmx"}]}
    )
    with pytest.raises(SourceError, match="not hidden"):
        mmapds.open(folder / "v.mmx")


def test_a_view_is_stale_when_its_base_has_other_records(folder):
    view = mmapds.open(folder / "a.jsonl")[::2]
    view.save(folder / "v.mmx")
    saved = mmapds.open(folder / "v.mmx")
    kept = pickle.dumps(saved)
    mmapds.build(folder / "a.jsonl", force=True)  # the same sources
    mmapds.add_column(folder / "a.jsonl", "more", len)
    assert list(mmapds.open(folder / "v.mmx")) == list(view)
    assert mmapds.open(folder / "v.mmx").column("more").tolist() == [2] * len(view)
    with open(folder / "a.jsonl", "a") as file:
        file.write('{"n":1,"id":"new"}\n')
    with pytest.raises(StaleIndexError, match=r"a.jsonl was .* bytes when indexed"):
        mmapds.open(folder / "v.mmx")
    mmapds.build(folder / "a.jsonl", force=True)
    message = r"v.mmx: STALE: .*a.jsonl.mmx has other .* \(records: 700 then, 701 now\)$"
    with pytest.raises(StaleIndexError, match=message):
        mmapds.open(folder / "v.mmx")
    with pytest.raises(StaleIndexError):
        pickle.loads(kept)
    assert "STALE" in command("--info", folder / "v.mmx").stdout
    assert "STALE" in command("--verify", folder / "v.mmx").stderr
    mmapds.open(folder / "a.jsonl")[::2].save(folder / "v.mmx")  # as the message says
    assert len(mmapds.open(folder / "v.mmx")) == 351


def test_a_view_of_sources_that_changed_is_a_problem(folder):
    many(folder)[::2].save(folder / "v.mmx")
    assert command("--verify", folder / "v.mmx").returncode == 0
    with open(folder / "b.jsonl", "a") as file:
        file.write('{"n":1,"id":"new"}\n')
    size = os.path.getsize(folder / "b.jsonl")
    with pytest.raises(StaleIndexError, match=f"{size} now") as caught:
        mmapds.open(folder / "v.mmx")
    found = main("verify", folder / "v.mmx")
    assert (found.returncode, found.stdout.count("; 1 problem\n")) == (1, 1)
    wanted = str(caught.value).replace("python -m mmapds.index", "mmapds index")
    assert found.stderr.replace("python -m mmapds.index", "mmapds index") == f"{wanted}\n"
    check(found.stderr.strip())
    document = json.loads(command("--verify", "--json", folder / "v.mmx").stdout)["indexes"][0]
    assert (document["verified"], document["counts"]) == (False, {"sources": 1})
    assert document["problems"][0]["source"] == str(folder / "b.jsonl")
    assert [base["state"] for base in document["indexes"]] == ["unchanged", "stale", "unchanged"]
    for ran in (command("--info", folder / "v.mmx"), main("info", folder / "v.mmx")):
        shown = ran.stdout
        assert (ran.returncode, ran.stderr.replace("python -m mmapds.index", "mmapds index")) == (1, f"{wanted}\n")
        assert f"{folder}/a.jsonl.mmx: 700 records; unchanged" in shown
        assert f"{folder}/b.jsonl.mmx: 700 records; STALE: b.jsonl was" in shown
    os.unlink(folder / "c.jsonl")
    assert "c.jsonl: no such file" in command("--info", folder / "v.mmx").stdout
    found = command("--verify", folder / "v.mmx")
    assert (found.returncode, found.stderr.count("\n")) == (1, 2)


def test_a_view_is_stale_when_its_columns_changed(folder):
    mmapds.open(folder / "a.jsonl")[::2].save(folder / "v.mmx")
    mmapds.build(folder / "a.jsonl", length="bytes()")
    with pytest.raises(StaleIndexError, match="other records or columns"):
        mmapds.open(folder / "v.mmx")


def test_a_base_that_is_missing(folder):
    mmapds.open(folder / "a.jsonl")[::2].save(folder / "v.mmx")
    (folder / "a.jsonl.mmx").unlink()
    with pytest.raises(
        mmapds.IndexMissingError, match=r"a.jsonl.mmx: no such index; run: python -m mmapds.index .*a.jsonl"
    ):
        mmapds.open(folder / "v.mmx")
    mmapds.build(folder / "a.jsonl", length="n", columns={"size": "bytes()"})
    assert len(mmapds.open(folder / "v.mmx")) == 350


def test_what_cannot_be_saved_or_replaced(folder):
    ds = mmapds.open(folder / "a.jsonl")
    index = (folder / "a.jsonl.mmx").read_bytes()
    for path in ("a.jsonl.mmx", "all.mmx"):
        with pytest.raises(mmapds.Error, match="expected a new path, or a saved view to replace, found another file"):
            ds[:5].save(folder / path)
    assert (folder / "a.jsonl.mmx").read_bytes() == index
    with pytest.raises(mmapds.Error, match=r"expected a file name that ends in .mmx"):
        ds[:5].save(folder / "v.view")
    with pytest.raises(mmapds.Error, match=r"save: expected a dataset of mmapds.open, found a MappedDataset$"):
        ds.map(str).save(folder / "v.mmx")
    with pytest.raises(mmapds.Error, match=r"found a ZippedDataset"):
        mmapds.zip(x=ds, y=ds).save(folder / "v.mmx")
    with pytest.raises(mmapds.Error, match="cannot write the view here"):
        ds[:5].save(folder / "none" / "v.mmx")
    assert not [path for path in folder.iterdir() if "tmp" in path.name]
    ds[:5].save(folder / "v.mmx")
    mmapds.open(folder / "v.mmx")[1:].save(folder / "v.mmx")
    assert len(mmapds.open(folder / "v.mmx")) == 4


def test_an_index_that_was_built_while_a_view_waited_stays(folder):
    ds, path = mmapds.open(folder / "a.jsonl"), folder / "v.mmx"
    with ThreadPoolExecutor(1) as pool, locked(str(path)):
        saving = pool.submit(ds[:2].save, path)
        time.sleep(0.3)
        mmapds.build(folder / "b.jsonl", out=path)
    with pytest.raises(mmapds.Error, match="expected a new path, or a saved view to replace, found another file"):
        saving.result(60)
    assert len(mmapds.open(path)) == 700


def test_what_wants_an_index_refuses_a_view(folder):
    ds = mmapds.open(folder / "a.jsonl")
    ds[:5].save(folder / "v.mmx")
    message = "v.mmx: NOT AN INDEX: expected one of sources, found a saved view"
    with pytest.raises(mmapds.ColumnError, match="source_or_index: expected one index of sources, found a saved view"):
        mmapds.add_column(folder / "v.mmx", "x", len)
    with pytest.raises(FormatError, match=message):
        mmapds.build(folder / "v.mmx")
    (folder / "d.jsonl").write_text('{"n":1}\n')
    os.rename(folder / "v.mmx", folder / "d.jsonl.mmx")
    with pytest.raises(FormatError, match="NOT AN INDEX: expected one of sources, found a saved view"):
        mmapds.build(folder / "d.jsonl")
    with pytest.raises(
        StaleIndexError, match=r"d.jsonl.mmx: STALE: expected the index of .*d.jsonl, found a saved view"
    ):
        mmapds.open(folder / "d.jsonl")


def test_info_of_a_view(folder):
    many(folder)[:50].save(folder / "v.mmx")
    shown = command("--info", folder / "v.mmx").stdout
    assert "v.mmx: a saved view, 50 of the 2,100 records of 3 indexes; length, size" in shown
    assert "b.jsonl.mmx: 700 records; unchanged" in shown
    document = json.loads(command("--info", "--json", folder / "v.mmx").stdout)["indexes"][0]
    assert (document["format"], document["records"], list(document["columns"])) == ("view", 50, ["length", "size"])
    assert [base["state"] for base in document["indexes"]] == ["unchanged"] * 3
    assert "a saved view, 50 of" in main("info", folder / "v.mmx").stdout


def damaged(folder, name, change):
    forge_section(folder / "v.mmx", name, change)
    return mmapds.open(folder / "v.mmx")


def test_a_view_verifies_whose_index_has_more_columns_now(folder):
    (folder / "n.jsonl").write_text('{"n": 1}\n{"n": 2}\n')
    mmapds.build(folder / "n.jsonl")
    mmapds.open(folder / "n.jsonl")[:1].save(folder / "v.mmx")
    mmapds.add_column(folder / "n.jsonl", "length", [2, 1])
    assert not examine_view(SavedView(str(folder / "v.mmx"))).problems


@pytest.mark.parametrize(
    ("key", "section", "numbers", "message"),
    [
        ([5, 3], "rows", np.array([5, 2100], np.uint32), "record 2100 is out of range for 2100 records"),
        (slice(0, 2000), "column:length", None, r"column:length\[0\] = 2147483648, expected "),
        (slice(0, 2000), "length_order", None, r"length_order\[0\]"),
        (slice(0, 2000), "row_bits", None, "'row_ranks': expected the counts of 'row_bits', found others"),
    ],
)
def test_damaged_sections_of_a_view(folder, key, section, numbers, message):
    mmapds.open(folder / "all.mmx")[key].save(folder / "v.mmx")
    if numbers is None:
        metadata = {}
        rewrite(folder / "v.mmx", metadata=lambda found: metadata.update(found) or found)
        described = metadata["sections"][section]
        numbers = np.full(described["shape"][0], 2**31, described["dtype"])
    forge_section(folder / "v.mmx", section, numbers)
    found = command("--verify", folder / "v.mmx")
    assert found.returncode == 1
    assert f"section {section!r} does not match its checksum" in found.stderr
    assert re.search(message, found.stderr), found.stderr


def test_rows_that_are_damaged_read_nothing_else(folder):
    base = mmapds.open(folder / "all.mmx")
    base[[5, 3]].save(folder / "v.mmx")
    saved = damaged(folder, "rows", np.array([5, 2100], np.uint32))
    assert saved[0] == base[5]
    for read in (lambda: saved[1], lambda: saved.take([0, 1]), lambda: list(saved), lambda: saved[[1]]):
        with pytest.raises(
            FormatError, match=r"v.mmx: DAMAGED: section 'rows': record 2100 is out of range for 2100 records$"
        ):
            read()
    base[base.lengths < 30].save(folder / "v.mmx")
    count = len(base[base.lengths < 30])
    saved = damaged(folder, "row_ranks", np.array([1, count, count], np.uint64))
    with pytest.raises(
        FormatError, match=r"v.mmx: DAMAGED: section 'row_ranks': expected the counts of 'row_bits', found others"
    ):
        saved[0]
    with pytest.raises(
        FormatError, match=r"v.mmx: DAMAGED: section 'row_ranks': expected .* records of 2100 at its end, found 7"
    ):
        damaged(folder, "row_ranks", np.array([0, count, 7], np.uint64))


@pytest.mark.parametrize(
    ("header", "metadata", "message"),
    [
        ({"reserved": 4}, None, "expected kind 0 or 2, found 4"),
        ({"records": 3}, None, "section 'rows': expected 3 numbers of type"),
        (None, lambda found: {**found, "bases": []}, "expected 1 to 2.*63 - 1 records of 1 base or more, found 0"),
        (None, lambda found: {key: found[key] for key in ("sections", "builder")}, "malformed metadata"),
        (None, lambda found: {**found, "bases": [{**found["bases"][0], "records": -1}]}, "malformed metadata"),
        (None, lambda found: {**found, "bases": [{**found["bases"][0], "path": "a\0b"}]}, "malformed metadata"),
        (None, lambda found: {**found, "bases": [{**found["bases"][0], "path": "\ud800"}]}, "malformed metadata"),
        (None, lambda found: {**found, "bases": [{**found["bases"][0], "mark": "\ud800"}]}, "malformed metadata"),
        (
            None,
            lambda found: {**found, "bases": [{**found["bases"][0], "records": 2**62}] * 2},
            f"expected 1 to 2.*63 - 1 records of 1 base or more, found {2**63}",
        ),
        (
            None,
            lambda found: {**found, "sections": {}},
            "section 'rows': expected 2 numbers .* found none",
        ),
    ],
)
def test_fields_of_a_view_that_are_damaged(folder, header, metadata, message):
    mmapds.open(folder / "a.jsonl")[[5, 3]].save(folder / "v.mmx")
    rewrite(folder / "v.mmx", header=header, metadata=metadata)
    with pytest.raises(FormatError, match=f"v.mmx: DAMAGED: {message}"):
        mmapds.open(folder / "v.mmx")


def test_a_view_cut_at_any_place_does_not_open(folder):
    mmapds.open(folder / "a.jsonl")[[5, 3]].save(folder / "v.mmx")
    whole = (folder / "v.mmx").read_bytes()
    for size in range(0, len(whole), 7):
        (folder / "v.mmx").write_bytes(whole[:size])
        with pytest.raises(FormatError):
            mmapds.open(folder / "v.mmx")


def test_a_view_saved_again_ends_pickles_of_the_one_before(folder):
    ds = mmapds.open(folder / "a.jsonl")
    ds[[5, 3]].save(folder / "v.mmx")
    kept = pickle.dumps(mmapds.open(folder / "v.mmx"))
    ds[[5, 4]].save(folder / "v.mmx")
    with pytest.raises(
        StaleIndexError, match=r"v.mmx: not the saved view of the pickled dataset; open the dataset again"
    ):
        pickle.loads(kept)
