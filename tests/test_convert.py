"""Conversion to array files: the command, progress, and what is refused or damaged."""

import json
import os
import sys

import h5py
import numpy as np
import pyarrow as pa
import pytest

import mmapds
from mmapds.convert import SUFFIXES, convert
from mmapds.errors import as_command
from tests.support.commands import run
from tests.support.conversions import save, utterances


@pytest.fixture(autouse=True)
def command_line():
    """Messages name options as the command takes them, so that they can be given to it."""
    with as_command():
        yield


def command(*arguments):
    return run("-m", "mmapds", "convert", *arguments)


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow", "a.h5", "a.jsonl"])
def test_files_that_are_damaged(tmp_path, name):
    path = tmp_path / name
    if name == "a.h5":
        utterances(path, 50)
    elif name == "a.jsonl":
        path.write_bytes(b'{"a": 1}\n' * 1000)
    else:
        save(pa.table({"id": range(5000), "text": ["some text"] * 5000}), path, name[2:])
    good = path.read_bytes()
    rng = np.random.default_rng(0)
    kept, told = tmp_path / "a.mma", []
    kept.write_bytes(b"as it was")
    for trial in range(60):
        data = bytearray(good)
        if trial % 3:
            data = data[: int(rng.integers(len(good)))]
        else:
            data[int(rng.integers(len(good)))] ^= 1 << int(rng.integers(8))
        path.write_bytes(data)
        try:
            convert(path, force=True, **({"records": "groups"} if name == "a.h5" else {}))
        except mmapds.Error as error:
            told.append(str(error))
            assert kept.read_bytes() == b"as it was"
            assert sorted(os.listdir(tmp_path)) == sorted([name, "a.mma"])
        else:
            (tmp_path / "a.mma.mmx").unlink()
            kept.write_bytes(b"as it was")
    assert told
    assert all(message.startswith(str(path)) for message in told)


def test_what_is_refused(tmp_path, write, monkeypatch):
    path = save(pa.table({"x": [1, None], "y": ["a", "b"]}), tmp_path / "a.parquet")
    text = write([{"x": 1}])
    cases = [
        (
            (path,),
            {},
            r"a.parquet: row 1: field 'x': expected int64, found null; give --defaults or --missing skip",
        ),
        ((path,), {"fields": "x"}, "fields = 'x', expected a list of names"),
        ((path,), {"fields": ["z"]}, "fields: expected fields among 'x', 'y', found 'z'"),
        ((path,), {"schema": {"z": "str"}}, "schema: expected fields among 'x', 'y', found 'z'"),
        ((path,), {"schema": {"x": "int9"}}, r"schema\['x'\] = 'int9', expected 'bytes', 'str'"),
        ((path,), {"missing": 3}, "missing = 3, expected 'error' or 'skip'"),
        ((path,), {"length": "y"}, "length = 'y', expected an integer field"),
        ((path,), {"prefix": "u32le"}, "prefix = 'u32le', expected no options for format 'parquet'"),
        ((text,), {"group": "a"}, "group = 'a', expected an option of an indexed format"),
        ((path,), {"decode": "json"}, "decode = 'json', expected None, as records of parquet have types"),
        (
            (path,),
            {"format": "arrow"},
            "a.parquet: not a readable Arrow file: ",
        ),
        ((path,), {"format": "hdf5"}, "a.parquet: not a readable HDF5 file: "),
        ((text,), {"format": "parquet"}, "train.jsonl: not a readable Parquet file: "),
        ((text,), {"format": "no"}, "format = 'no', expected one of 'arrays', 'fixed'"),
        (
            ([path, text], tmp_path / "b.mma"),
            {},
            r"sources: expected one format in one conversion, found .*a.parquet \(parquet\), .*jsonl \(to be indexed\)",
        ),
        (
            ([path, text],),
            {},
            "out: expected the name of one array file for 2 sources, found none$",
        ),
        (([],), {}, "sources: expected one source or more, found 0"),
        ((tmp_path / "no.parquet",), {}, "no.parquet: no such file"),
        ((path, tmp_path / "no" / "b.mma"), {}, "b.mma: expected a file to write in a directory"),
        ((text, tmp_path / "no" / "b.mma"), {}, "b.mma: expected a file to write in a directory"),
        ((text, tmp_path / "b.mmx"), {}, r"b.mmx: expected a file to write that ends in \.mma"),
    ]
    for arguments, options, message in cases:
        with pytest.raises(mmapds.Error, match=message):
            convert(*arguments, **options)
    for name, extra in (("pyarrow", "parquet"), ("h5py", "hdf5")):
        monkeypatch.setitem(sys.modules, name, None)
        for module in ("arrow", "hdf5"):
            monkeypatch.delitem(sys.modules, f"mmapds.convert.{module}", raising=False)
        with pytest.raises(mmapds.Error, match=rf"pip install 'mmapds\[{extra}\]'"):
            convert(path, format=extra)
    assert sorted(os.listdir(tmp_path)) == ["a.parquet", "train.jsonl"]


def test_a_source_that_changes_meanwhile(tmp_path):
    path = save(pa.table({"x": range(5000)}), tmp_path / "a.parquet")

    def touch(*_):
        os.utime(path, ns=(0, 0))

    with pytest.raises(mmapds.SourceError, match=r"a\.parquet: changed while it was read"):
        convert(path, progress=touch)
    assert os.listdir(tmp_path) == ["a.parquet"]


def test_progress_counts_every_record(write):
    path = write([{"x": i} for i in range(1000)])
    calls = []
    convert(path, progress=lambda done, total: calls.append((done, total)))
    assert sum(done for done, _ in calls) == 1000
    assert {total for _, total in calls} == {1000}


def test_the_command(tmp_path):
    path = save(pa.table({"tokens": [[1, 2], [3]], "x": [1, None]}), tmp_path / "a.parquet")
    ran = command(
        path, "--length", "tokens", "--missing", "skip", "--schema", '{"tokens": ["uint8", [null]], "x": "int8"}'
    )
    assert ran.returncode == 0
    assert "a.mma: 1 record of tokens (uint8 of shape (None,)), x (int8); 1 record left out; " in ran.stdout
    assert mmapds.open(tmp_path / "a.mma").lengths.tolist() == [2]
    (tmp_path / "schema.json").write_text(json.dumps({"tokens": ["uint8", [None]]}))
    out = tmp_path / "b.mma"
    assert command(path, "-o", out, "--schema", tmp_path / "schema.json", "--no-index", "--quiet").stdout == ""
    assert not os.path.exists(f"{out}.mmx")
    assert len(mmapds.open(out, build=True)) == 2
    deep = tmp_path / "deep.json"
    deep.write_text("[" * 100_000)
    for arguments, message in [
        (
            (path,),
            "a.parquet: row 1: field 'x': expected int64, found null; give --defaults or --missing skip",
        ),
        (
            (path, "--schema", "{"),
            "--schema: expected a JSON object, or a file that holds one, found ",
        ),
        (
            (path, "--schema", deep),
            "--schema: expected a JSON object, or a file that holds one, found ",
        ),
        (
            (path, "--schema", '{"x": [' + "[" * 500 + "]" * 500 + "]}"),
            f"schema['x'] = {'[' * 77}..., expected a type or (dtype, shape)",
        ),
        (
            (path, "--schema", "no.json"),
            "--schema: expected a JSON object, or ",
        ),
    ]:
        ran = command(*arguments)
        assert (ran.returncode, ran.stdout) == (2 if "--schema" in message else 1, "")
        assert message in ran.stderr
        assert len(ran.stderr.splitlines()) == 1


def test_indexing_what_must_be_converted(tmp_path):
    save(pa.table({"x": [1]}), tmp_path / "a.parquet")
    save(pa.table({"x": [1]}), tmp_path / "a", "arrow")
    with h5py.File(tmp_path / "a.h5", "w"):
        pass
    for name, kind in (("a.parquet", "parquet"), ("a", "arrow"), ("a.h5", "hdf5")):
        with pytest.raises(mmapds.FormatError, match=f"{kind} is not read in place: .*; run: python -m mmapds convert"):
            mmapds.build(tmp_path / name)
    save(pa.table({"x": [1]}), tmp_path / "b.arrow", "stream")
    save(pa.table({"x": [1]}), tmp_path / "b.jsonl")
    for name in ("b.arrow", "b.jsonl"):
        for attempt in (mmapds.build, mmapds.open, lambda path: mmapds.open(path, build=True)):
            with pytest.raises(
                mmapds.FormatError,
                match=r"not read in place: convert it, and open .*b\.mma; run: python -m mmapds convert",
            ):
                attempt(tmp_path / name)
    assert {".parquet", ".arrow", ".h5", ".jsonl", ".tar", ".mmx"} <= set(SUFFIXES)


@pytest.fixture
def tables(tmp_path):
    """A directory of two Parquet files of three rows."""
    directory = tmp_path / "tables"
    directory.mkdir()
    for number in range(2):
        save(pa.table({"x": [3 * number + k for k in range(3)]}), directory / f"{number}.parquet")
    return directory


def test_a_format_chooses_files_of_a_directory(tables):
    (tables / "notes.jsonl").write_text('{"y": 1}\n')
    with pytest.warns(UserWarning, match=r"passed over notes\.jsonl "):
        assert convert(tables, tables / "all.mma", format="parquet").records == 6


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl"])
def test_leaving_out_every_record_is_an_error(tmp_path, name):
    path, kept = tmp_path / name, tmp_path / "a.mma"
    if name == "a.jsonl":
        path.write_bytes(b'{"x": 1}\n{"x": 2, "y": null}\n{"x": 3}\n')
    else:
        save(pa.table({"x": [1, 2, 3], "y": pa.array([None] * 3, pa.int64())}), path, "parquet")
    convert(path, fields=["x"])
    before = kept.read_bytes(), (tmp_path / "a.mma.mmx").read_bytes()
    ran = command(path, "--missing", "skip", "--schema", '{"x": "int64", "y": "int64"}')
    assert (ran.returncode, ran.stdout) == (1, "")
    assert f"{kept}: expected records with the fields 'x', 'y', found 0 of 3" in ran.stderr
    assert (kept.read_bytes(), (tmp_path / "a.mma.mmx").read_bytes()) == before
    assert sorted(os.listdir(tmp_path)) == sorted([name, "a.mma", "a.mma.mmx"])


def test_only_what_was_converted_from_the_same_source_is_replaced(tmp_path, write):
    first, second = write([{"x": 1}], "a.jsonl"), save(pa.table({"y": [2, 3]}), tmp_path / "a.parquet")
    out = tmp_path / "a.mma"
    convert(first)
    write([{"x": 4}, {"x": 5}], "a.jsonl")
    assert convert(first).records == 2
    before = out.read_bytes()
    with pytest.raises(mmapds.Error) as error:
        convert(second)
    assert str(error.value) == (
        f"{out}: expected no file, or an array file that was converted from 'a.parquet', found one from 'a.jsonl'; "
        "replace it with --force"
    )
    assert (out.read_bytes(), list(mmapds.open(out).column("x"))) == (before, [4, 5])
    done = command(second, "--quiet")
    assert (done.returncode, out.read_bytes()) == (1, before)
    assert command(second, "--quiet", "--force").returncode == 0
    assert [sample["y"] for sample in mmapds.open(out)] == [2, 3]


def test_a_file_of_another_origin_is_not_replaced(tmp_path, write):
    """One that a user wrote, one that is cut, and one that is something else; an empty one holds nothing."""
    source, out = write([{"x": 1}], "a.jsonl"), tmp_path / "out.mma"
    with mmapds.Writer(out, {"x": "int64"}) as writer:
        writer.write({"x": 7})
    own = out.read_bytes()
    convert(source, tmp_path / "whole.mma")
    cut = (tmp_path / "whole.mma").read_bytes()[:-9]
    for content in (own, own[:-9], cut, b"notes", mmapds.__file__.encode() * 100):
        out.write_bytes(content)
        with pytest.raises(mmapds.Error, match=r"converted from 'a\.jsonl', found another file; replace it"):
            convert(source, out)
        assert out.read_bytes() == content
    out.write_bytes(b"")
    assert convert(source, out).records == 1
    with pytest.raises(mmapds.Error, match=r"found one from 'a\.jsonl'"):
        convert([write([{"x": 2}], "b.jsonl"), source], out)
    assert convert([source, tmp_path / "b.jsonl"], out).records == 2
    assert convert([tmp_path / "b.jsonl"], out, force=True).records == 1
