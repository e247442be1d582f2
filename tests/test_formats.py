"""What all formats share: how they are chosen and told, and which decoders go with which."""

import os
import pickle
from ast import literal_eval

import numpy as np
import pytest
from torch.utils.data import DataLoader

import mmapds
from mmapds.convert import convert
from mmapds.storage.index_file import Index
from mmapds.storage.writer import IndexWriter
from tests.support.commands import command
from tests.support.messages import check
from tests.support.samples import npy, write_tfrecords
from tests.support.tars import archive


def test_errors_of_decoders_name_the_record(write):
    path = write(bytes(20), "x.bin")
    mmapds.build(path, format="fixed", record_bytes=10)
    with pytest.raises(mmapds.DecodeError, match=r"x.bin: record 1 \(byte 10\): not JSON"):
        mmapds.open(path, decode="json")[1]


def test_formats_that_differ_have_no_common_decoder(write, tmp_path):
    write([1], "a.jsonl")
    mmapds.build(write(b"2\n", "b.bin"), format="fixed", record_bytes=2)
    mmapds.build(tmp_path / "a.jsonl")
    with pytest.raises(
        mmapds.Error, match=r"expected records for decode = 'json', as in .*, found records for decode = 'bytes'$"
    ):
        mmapds.open([tmp_path / "a.jsonl", tmp_path / "b.bin"])
    assert list(mmapds.open([tmp_path / "a.jsonl", tmp_path / "b.bin"], decode="json")) == [1, 2]


@pytest.mark.parametrize(
    ("first", "second"),
    [("a.mma", "b.mma"), ("a.mma", "c.jsonl"), ("c.jsonl", "b.mma"), ("a.mma", "d.mma"), ("b.mma", "e.mma")],
)
def test_fields_of_different_schemas_are_told_apart_and_converted(write, tmp_path, first, second):
    records = {
        "a.mma": "the fields {'x': 'int32'}",
        "b.mma": "the fields {'y': 'str', 'x': 'int32'}",
        "c.jsonl": "JSON",
        "d.mma": "the fields {'x': 'int64'}",
        "e.mma": "the fields {'x': 'int32', 'y': 'str'}",
    }
    for name in ("a.mma", "b.mma", "d.mma", "e.mma"):
        schema = literal_eval(records[name].removeprefix("the fields "))
        with mmapds.Writer(tmp_path / name, schema) as writer:
            writer.write({field: {"x": 1, "y": "a"}[field] for field in schema})
    mmapds.build(write([{"x": 3}], "c.jsonl"))
    paths = [tmp_path / first, tmp_path / second]
    fields = mmapds.Fields({"x": "int32"})
    expected = f"expected records of {records[first]}, as in "
    found = f", found records of {records[second]}"
    with pytest.raises(mmapds.Error) as error:
        mmapds.open(paths, decode=fields)
    check(str(error.value))
    assert str(error.value) == f"{paths[1]}.mmx: {expected}{paths[0]}.mmx{found}"
    with pytest.raises(mmapds.Error, match=r"^datasets\[1\]: expected decode, "):
        mmapds.concat([mmapds.open(path, decode=fields) for path in paths])
    alike = [convert(path, f"{path}.x.mma", schema={"x": "int32"}, fields=["x"]).path for path in paths]
    assert len(mmapds.open(alike, decode=fields)) == len(mmapds.open(alike)) == 2


def test_files_are_known_by_their_first_bytes_too(tmp_path, write):
    array = np.arange(12.0).reshape(3, 4)
    write(npy(array), "features")
    write(archive([("a.txt", b"")]), "shard")
    with mmapds.Writer(tmp_path / "x.mma", index=False) as writer:
        writer.write({"id": 3})
    os.rename(tmp_path / "x.mma", tmp_path / "store")
    write_tfrecords(tmp_path / "events", [{"x": (5, "int")}])
    for name in ("features", "shard", "store", "events"):
        mmapds.build(tmp_path / name)
    assert mmapds.open(tmp_path / "features")[1].tolist() == [4, 5, 6, 7]
    assert mmapds.open(tmp_path / "shard")[0]["__key__"] == "a"
    assert mmapds.open(tmp_path / "store")[0] == {"id": 3}
    assert mmapds.open(tmp_path / "events", decode="tf_example")[0]["x"].tolist() == [5]
    with pytest.raises(
        mmapds.FormatError, match="format not recognised by its name or its first bytes; choose one with"
    ):
        mmapds.build(write(bytes(100), "x.bin"))
    assert len(mmapds.open(write([1, 2], "x.text"), build=True)) == 2


def test_truncated_is_not_inherited_by_a_source_that_has_changed(write):
    path = write(b"\1\0\0\0a\5\0\0\0ab", "p.bin")
    mmapds.build(path, format="prefixed", truncated="drop")
    mmapds.build(path)
    assert len(mmapds.open(path, build=True)) == 1
    with pytest.raises(mmapds.FormatError, match="leave it out with truncated='drop'"):
        mmapds.build(path, force=True)
    write(b"\1\0\0\0a\1\0\0\0b\xff\xff\0\0c" + b"\1\0\0\0d" * 1000, "p.bin")
    with pytest.raises(mmapds.FormatError, match="leave it out with truncated='drop'"):
        mmapds.build(path)
    ran = command(path, "--truncated", "drop")
    assert "; 1 record left out," in ran.stdout
    write([1, 2], "p.bin")
    with pytest.raises(
        mmapds.FormatError, match=r"record 0 \(byte 0\): expected a payload of \d+ bytes, found the end"
    ):
        mmapds.build(path)


def test_parameters_that_a_newer_version_may_write(write):
    path = write(b"\1\0\0\0a", "p.bin")
    mmapds.build(path, format="prefixed")
    index = Index(path + ".mmx")
    for parameters in ({"prefix": "u16le", "truncated": "error"}, {}, {"prefix": 3}):
        with IndexWriter(index.path) as writer:
            writer.write_array("offsets", "<u8", index.section("offsets"))
            writer.commit({**index.metadata, "parameters": parameters}, index.records)
        with pytest.raises(
            mmapds.FormatError, match=r"p.bin.mmx: DAMAGED: malformed metadata, or from a newer mmapds: "
        ):
            mmapds.open(path)[0]
        ran = command("--verify", path)
        assert ran.returncode == 1
        assert all(line.startswith(f"{path}.mmx: DAMAGED: ") for line in ran.stderr.splitlines())
        assert "from a newer mmapds" in ran.stderr
        if parameters:
            ran = command("--force", path)
            assert ran.returncode == 2
            assert ran.stderr.startswith(f"--prefix = {parameters['prefix']!r}, expected one of 'u32le'")
        ran = command("--force", "--prefix", "u32le", path)
        assert (ran.returncode, command("--verify", path).returncode) == (0, 0), ran.stderr


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_paths_are_the_same_in_workers(write, tmp_path, monkeypatch, method):
    monkeypatch.chdir(tmp_path)
    write(archive([("0.txt", b"")]), "a.tar")
    ds = mmapds.open("a.tar", build=True)
    loader = DataLoader(ds, num_workers=1, collate_fn=list, multiprocessing_context=method)
    assert next(iter(loader))[0]["__url__"] == ds[0]["__url__"] == "a.tar"
    data = pickle.dumps(ds)
    (tmp_path / "in").mkdir()
    monkeypatch.chdir("in")
    assert pickle.loads(data)[0]["__url__"] == str(tmp_path / "a.tar")
    both = mmapds.concat([ds, pickle.loads(data)])
    assert [sample["__url__"] for sample in pickle.loads(pickle.dumps(both))] == [str(tmp_path / "a.tar")] * 2


def test_decoders_that_are_not_for_a_format(write, tmp_path):
    with mmapds.Writer(tmp_path / "a.mma") as writer:
        writer.write({"x": 1})
    write(archive([("0.txt", b"")]), "a.tar")
    mmapds.build(tmp_path / "a.tar")
    mma = "'bytes', 'torch'"
    for name, decode, message in [
        ("a.mma", "json", f"decode = 'json', expected {mma} or None for .*a.mma.*, whose format is 'arrays'"),
        ("a.mma", "wds", f"decode = 'wds', expected {mma} or None for .*a.mma.*, whose format is 'arrays'"),
        (
            "a.tar",
            "json",
            "decode = 'json', expected 'files', 'wds', 'pil', 'bytes' or None for .*a.tar.*, whose format is 'tar'",
        ),
    ]:
        with pytest.raises(mmapds.FormatError, match=message):
            mmapds.open(tmp_path / name, decode=decode)
    assert mmapds.open(tmp_path / "a.mma", decode="bytes").raw(0)
    assert mmapds.open(tmp_path / "a.mma", decode=mmapds.Fields({"x": "int64"}))[0] == {"x": 1}
    with pytest.raises(
        mmapds.FormatError,
        match=r"decode = 'files', expected 'json', 'text', .* or None for .*, whose format is 'jsonl'",
    ):
        mmapds.open(write([1]), decode="files", build=True)


def test_info_says_what_the_records_are(write):
    path = write(bytes(8), "x.bin")
    mmapds.build(path, format="fixed", dtype="uint16", shape=2)
    told = command("--info", path).stdout.splitlines()
    assert told[4] == "  format   fixed, record_bytes 4, dtype <u2, shape [2], truncated error"


def test_sources_of_two_formats_open_together_without_one_index(write, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write([{"n": 1}], "a.jsonl")
    np.save("n.npy", np.arange(6, dtype=np.uint8).reshape(2, 3))
    found = command("n.npy", "a.jsonl", "-o", "mix.mmx")
    message = "sources: expected one format in one index, found n.npy (npy), a.jsonl (jsonl); build an index of each"
    assert found.stderr == f"{message}\n"
    check(message)
    assert command("n.npy", "a.jsonl").returncode == 0
    ds = mmapds.open(["n.npy", "a.jsonl"], decode="bytes")
    assert list(ds) == [bytes([0, 1, 2]), bytes([3, 4, 5]), b'{"n": 1}']
