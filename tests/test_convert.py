"""Conversion to array files: the command, what is refused, damaged or replaced, and how much may be written."""

import json
import os
import random
import re
import sys

import numpy as np
import pyarrow as pa
import pytest

import mmapds
from mmapds import convert as target
from mmapds.convert import convert
from tests.support.conversions import save, utterances
from tests.support.files import largest_file

# ---- the command ----------------------------------------------------------------------------------------------------


def test_the_command(tmp_path, index):
    path = save(pa.table({"tokens": [[1, 2], [3]], "x": [1, None]}), tmp_path / "a.parquet")
    types = '{"tokens": ["uint8", [null]], "x": "int8"}'
    ran = index(path, "--length", "tokens", "--missing", "skip", "--schema", types, tool="convert")
    assert ran.returncode == 0
    assert "a.mma: 1 record of tokens (uint8 of shape (None,)), x (int8); 1 record left out; " in ran.stdout
    assert mmapds.open(tmp_path / "a.mma").lengths.tolist() == [2]
    out, schema = tmp_path / "b.mma", tmp_path / "schema.json"
    schema.write_text(json.dumps({"tokens": ["uint16", [None]]}))
    assert index(path, "-o", out, "--schema", schema, "--no-index", "--quiet", tool="convert").stdout == ""
    assert not os.path.exists(f"{out}.mmx")
    assert len(mmapds.open(out, build=True)) == 2
    schema.write_text("[" * 100_000)
    ran = index(path, "--schema", schema, tool="convert")
    assert (ran.returncode, ran.stdout, "--schema: expected a JSON object, or a file" in ran.stderr) == (2, "", True)


def test_progress_counts_every_record_and_a_format_chooses_files_of_a_directory(tmp_path):
    (tmp_path / "notes.jsonl").write_text('{"y": 1}\n')
    for number in range(2):
        save(pa.table({"x": [number] * 300}), tmp_path / f"{number}.parquet")
    told = []
    with pytest.warns(UserWarning, match=r"ignored notes\.jsonl "):
        convert(tmp_path, tmp_path / "all.mma", format="parquet", progress=lambda *done: told.append(done))
    assert told == [(0, 600), (300, 600), (300, 600)]
    convert(tmp_path / "notes.jsonl", progress=lambda *done: told.append(done))
    assert told[3:] == [(0, 1), (1, 1)]


def test_indexing_what_must_be_converted_is_an_error_that_says_so(tmp_path):
    utterances(tmp_path / "a.h5", 1)
    for name, way in (("a", "arrow"), ("b.arrow", "stream"), ("b.jsonl", "arrow")):
        save(pa.table({"x": [1]}), tmp_path / name, way)
    for name in ("a", "a.h5", "b.arrow", "b.jsonl"):
        with pytest.raises(mmapds.FormatError, match=r"not read in place: .*run: python -m mmapds convert"):
            mmapds.open(tmp_path / name, build=True)


# ---- what is refused ------------------------------------------------------------------------------------------------

FIELDS = "expected fields among 'x', 'y'"
REFUSED = [  # options beside a.parquet, or sources, out and options; and the message
    ({"fields": ["z"]}, f"fields: {FIELDS}, found 'z'"),
    ({"schema": {"x": "int9"}}, r"schema\['x'\] = 'int9', expected 'bytes', 'str'"),
    ({"schema": "x"}, "schema = 'x', expected a dict of names"),
    ({"types": {"z": "json"}}, f"types: {FIELDS}, found 'z'"),
    ({"defaults": {"z": 1}}, f"defaults: {FIELDS}, found 'z'"),
    ({"defaults": {"x": 0.5}}, r"defaults\['x'\]: field 'x': expected int64, found float 0\.5"),
    ({"defaults": {"x": None}}, r"defaults\['x'\]: field 'x': expected int64, found null"),
    ({"defaults": {"x": np.int64(1)}}, r"defaults\['x'\]: Object of type int64 is not JSON serializable"),
    ({"missing": 3}, "missing = 3, expected 'error' or 'skip'"),
    ({"length": "y"}, "length = 'y', expected an integer field"),
    ({"prefix": "u32le"}, "prefix = 'u32le', expected no options for format 'parquet'"),
    ({"decode": "json"}, "decode = 'json', expected None, as records of parquet have types"),
    ({"format": "arrow"}, "a.parquet: not a readable Arrow file: "),
    ({"format": "hdf5"}, "a.parquet: not a readable HDF5 file: "),
    ({"sources": "a.jsonl", "group": "a"}, "group = 'a', expected an option of an indexed format"),
    ({"sources": ["a.parquet", "a.jsonl"], "out": "b.mma"}, r"found a.parquet \(parquet\), a.jsonl \(to be indexed\)"),
    ({"sources": ["a.parquet", "a.jsonl"]}, "out: expected the name of one array file for 2 sources, found none$"),
    ({"out": "no/b.mma"}, "b.mma: expected a file to write in a directory"),
    ({"sources": "a.jsonl", "out": "b.mmx"}, r"b.mmx: expected a file to write that ends in \.mma"),
]


def test_what_is_refused(tmp_path, write, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save(pa.table({"x": [1, None], "y": ["a", "b"]}), "a.parquet")
    write([{"x": 1}], "a.jsonl")
    for options, message in REFUSED:
        with pytest.raises(mmapds.Error, match=message):
            convert(**{"sources": "a.parquet", **options})
    for name, kind in (("pyarrow", "parquet"), ("h5py", "hdf5")):
        monkeypatch.setitem(sys.modules, name, None)
        monkeypatch.delitem(sys.modules, "mmapds.convert.arrow", raising=False)
        monkeypatch.delitem(sys.modules, "mmapds.convert.hdf5", raising=False)
        with pytest.raises(mmapds.Error, match=rf"pip install {name}$"):
            convert("a.parquet", format=kind)
    assert sorted(os.listdir()) == ["a.jsonl", "a.parquet"]


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow", "a.h5", "a.jsonl"])
def test_a_damaged_file_is_named_and_leaves_what_was_there(tmp_path, name):
    path, kept, told = tmp_path / name, tmp_path / "a.mma", []
    if name == "a.h5":
        utterances(path, 8)
    elif name == "a.jsonl":
        path.write_bytes(b'{"a": 1}\n' * 100)
    else:
        save(pa.table({"id": range(900), "text": ["some text"] * 900}), path, name[2:])
    good, rng = path.read_bytes(), random.Random(0)
    for trial in range(24):
        data = bytearray(good)
        data[rng.randrange(len(good))] ^= 1 << rng.randrange(8)
        path.write_bytes(data[: rng.randrange(len(good))] if trial % 3 else data)
        kept.write_bytes(b"as it was")
        try:
            convert(path, force=True, **({"records": "groups"} if name == "a.h5" else {}))
            (tmp_path / "a.mma.mmx").unlink()
        except mmapds.Error as error:
            told.append(str(error))
            assert kept.read_bytes() == b"as it was"
            assert sorted(os.listdir(tmp_path)) == sorted([name, "a.mma"])
    assert told
    assert all(message.startswith(str(path)) for message in told)


def test_a_source_that_changes_meanwhile(tmp_path):
    path = save(pa.table({"x": range(50)}), tmp_path / "a.parquet")
    with pytest.raises(mmapds.SourceError, match=r"a\.parquet: changed while it was read"):
        convert(path, progress=lambda *_: os.utime(path, ns=(0, 0)))
    assert os.listdir(tmp_path) == ["a.parquet"]


# ---- what is replaced and left --------------------------------------------------------------------------------------


def test_leaving_out_every_record_is_an_error_and_keeps_an_older_file(tmp_path, write):
    path, kept = write([{"x": 1}, {"x": 2, "y": None}], "a.jsonl"), tmp_path / "a.mma"
    kept.write_bytes(b"as it was")
    with pytest.raises(mmapds.FormatError, match=rf"{kept}: expected records with the fields 'x', 'y', found 0 of 2"):
        convert(path, missing="skip", schema={"x": "int64", "y": "int64"}, force=True)
    assert (kept.read_bytes(), sorted(os.listdir(tmp_path))) == (b"as it was", ["a.jsonl", "a.mma"])


def test_only_what_was_converted_from_the_same_source_is_replaced(tmp_path, write):
    source, other, out = write([{"x": 1}], "a.jsonl"), write([{"x": 2}], "b.jsonl"), tmp_path / "out.mma"
    with mmapds.Writer(out, {"x": "int64"}) as writer:
        writer.write({"x": 7})
    own = out.read_bytes()
    for content in (own, own[:-9], b"notes"):
        out.write_bytes(content)
        with pytest.raises(mmapds.Error, match=r"from 'a\.jsonl', found another file; replace it with force=True"):
            convert(source, out)
        assert out.read_bytes() == content
    out.write_bytes(b"")  # holds nothing
    assert convert(source, out).records == 1
    write([{"x": 4}, {"x": 5}], "a.jsonl")
    assert convert(source, out).records == 2
    message = "expected no file, or an array file that was converted from 'b.jsonl', found one from 'a.jsonl'; replace "
    with pytest.raises(mmapds.Error, match=message):
        convert([other, source], out)
    assert list(mmapds.open(out).column("x")) == [4, 5]
    assert convert([source, other], out).records == 3
    assert convert(other, out, force=True).records == 1


@pytest.mark.parametrize("spelled", ["a.mma", "parts//a.mma"])
def test_nothing_is_left_beside_the_file_not_even_what_a_killed_conversion_left(write, tmp_path, monkeypatch, spelled):
    monkeypatch.chdir(tmp_path)
    path, folder = write([{"id": 0}], "in/a.jsonl"), (tmp_path / spelled).parent
    folder.mkdir(exist_ok=True)
    for name in (".a.mma.sources.mmx", ".ba.mma.sources.mmx"):
        (folder / name).touch()
    convert(path, spelled)
    assert {*os.listdir(folder)} - {"in"} == {".ba.mma.sources.mmx", "a.mma", "a.mma.mmx"}
    assert os.listdir("in") == ["a.jsonl"]


# ---- more than there is room for ------------------------------------------------------------------------------------


def test_a_file_that_makes_much_of_little_is_stopped(tmp_path, monkeypatch):
    """The number in the message is enough, or leads to one that is."""
    monkeypatch.setattr(target, "_LEAST", 1 << 16)
    values = pa.DictionaryArray.from_arrays(pa.array(np.zeros(900, np.int32)), pa.array(["x" * 10_000]))
    path, most, tries = save(pa.table({"s": values}), tmp_path / "a.parquet", rows=300), None, 0
    while not (tmp_path / "a.mma").exists():
        try:
            convert(path, max_bytes=most)
        except mmapds.FormatError as error:
            found = re.fullmatch(rf"{path}: row \d+: expected up to \d+ bytes .*max_bytes=(\d+)", str(error))
            most, tries = int(found[1]), tries + 1
        assert {*os.listdir(tmp_path)} <= {"a.parquet", "a.mma", "a.mma.mmx"}
    assert 0 < tries < 10
    assert len(mmapds.open(tmp_path / "a.mma")) == 900


def test_indexes_and_functions_may_make_any_size(write, monkeypatch):
    monkeypatch.setattr(target, "_LEAST", 63)
    monkeypatch.setattr(target, "_TIMES", 0)
    path = write([{"x": 1}])
    with pytest.raises(mmapds.FormatError, match="expected up to 63 bytes of records, found 64; write more with max_"):
        convert(path)
    for source, options in ((path, {"max_bytes": 64}), (path, {"decode": json.loads}), (mmapds.build(path), {})):
        assert convert(source, force=True, **options).records == 1


def test_what_cannot_be_written_is_an_error_that_names_the_file_and_leaves_none(tmp_path, write):
    sources = [save(pa.table({"x": range(50_000)}), tmp_path / "a.parquet"), write([{"x": i} for i in range(2000)])]
    for path in sources:
        full = r"out\.mma: cannot write the array file \(file too l"
        with largest_file(10_000), pytest.raises(mmapds.Error, match=full):
            convert(path, tmp_path / "out.mma", schema={"x": "int64"})
    assert sorted(os.listdir(tmp_path)) == ["a.parquet", "train.jsonl"]
