"""Converting what is indexed: JSONL, tars, TFRecords, array files."""

import os

import numpy as np
import pytest
import torch

import mmapds
from mmapds.convert import convert
from tests.support.alive import Counted
from tests.support.conversions import samples
from tests.support.samples import npy, npz, write_tfrecords
from tests.support.tars import archive


def test_json(tmp_path, write):
    records = [
        {
            "id": i,
            "tokens": list(range(i % 4)),
            "score": i if i % 2 else i / 4,
            "meta": {"a": [i]},
            "maybe": None if i % 3 else "text",
            "grid": [[1, 2]] * (i % 3 + 1),
            "any": i if i % 2 else "text",
            "text": "grüße",
        }
        for i in range(100)
    ]
    path = write(records)
    done = convert(path, length="tokens")
    assert samples(done.path) == records
    assert done.schema.describe() == {
        "id": "int64",
        "tokens": ["int64", [None]],
        "score": "float64",
        "meta": "json",
        "maybe": "json",
        "grid": ["int64", [None, 2]],
        "any": "json",
        "text": "str",
    }
    assert sorted(os.listdir(tmp_path)) == ["train.jsonl", "train.mma", "train.mma.mmx"]  # and no index of the source
    assert convert(path, missing="skip").records == 34
    assert mmapds.open(done.path).column("score").tolist() == [i if i % 2 else i / 4 for i in range(0, 100, 3)]


def test_samples_are_decoded_one_by_one(write):
    """Each may be an image or a recording, whatever its bytes in the file."""
    path = write([{"id": i} for i in range(1000)])
    Counted.begin()
    assert convert(path, decode=Counted).records == 1000
    assert Counted.most <= 3


@pytest.mark.parametrize("spelled", ["a.mma", "parts/a.mma", "parts//a.mma", ".//a.mma", "a\nb.mma"])
def test_what_a_killed_conversion_left_goes_however_out_is_spelled(write, tmp_path, monkeypatch, spelled):
    path = write([{"id": 0}])
    monkeypatch.chdir(tmp_path)
    out = tmp_path / spelled
    out.parent.mkdir(exist_ok=True)
    left, other = f".{out.name}.sources.mmx", f".b{out.name}.sources.mmx"
    for name in (left, other):
        (out.parent / name).touch()
    convert(path, spelled)
    assert [name for name in os.listdir(out.parent) if name.startswith(".")] == [other]


def test_a_schema_is_inferred_from_the_first_records(write):
    records = [{"id": i} for i in range(50)] + [{"id": 50, "late": 1}, {"id": 51.5}]
    path = write(records)
    with pytest.raises(
        mmapds.FormatError,
        match=r"train.jsonl:51 \(byte \d+\): expected fields among .*, as in the records before it, found 'late'",
    ):
        convert(path, infer=50)
    with pytest.raises(
        mmapds.FormatError, match=r"train.jsonl:52 \(byte \d+\): field 'id': expected int64, found float 51.5"
    ):
        convert(path, fields=["id"], infer=51)
    assert samples(convert(path).path)[-3:] == [
        {"id": 49, "late": None},
        {"id": 50, "late": 1},
        {"id": 51.5, "late": None},
    ]
    with pytest.raises(mmapds.DecodeError, match=r"a.jsonl:2 \(byte 9\): not JSON"):
        convert(write(b'{"id":1}\nno\n', "a.jsonl"))


def test_lists_that_are_empty_at_first(write):
    path = write([{"x": []}, {"x": [[1.5, 2]]}, {"x": []}, {"x": [[1], [2]]}])
    assert [sample["x"].shape for sample in mmapds.open(convert(path).path)] == [(0, 0), (1, 2), (0, 0), (2, 1)]
    assert samples(convert(write([{"x": []}, {"x": ["a"]}, {"x": [1]}])).path)[2] == {"x": [1]}


@pytest.mark.parametrize(
    ("records", "schema"),
    [
        ([{"a": [9007199254740993, 0.5]}], "json"),
        ([{"a": [2**63 + 1, 1]}, {"a": [1, 2]}], "json"),
        ([{"a": [[]]}, {"a": [[1]]}], ["int64", [None, None]]),
        ([{"a": [[], []]}, {"a": [[1, 2], [3, 4]]}], ["int64", [None, None]]),
        ([{"a": [[]]}], "json"),
        ([{"a": [[[[[[[[[1]]]]]]]]]}], "json"),
        ([{"a": 2**64 - 1}], "uint64"),
        ([{"a": 2**64 - 1}, {"a": -1}], "json"),
        ([{}, {"a": 1}], "json"),
        ([{"a": 1}, {}], "json"),
    ],
)
def test_odd_records(write, records, schema):
    done = convert(write(records))
    assert done.schema.describe() == {"a": schema}
    assert samples(done.path) == [{"a": record.get("a")} for record in records]


def test_nothing_to_infer_from(write):
    done = convert(write([{"a": None, "b": 1}, {"a": None, "b": 2}]), missing="skip")
    assert (done.records, done.schema.describe()) == (2, {"b": "int64", "a": "json"})
    for infer in (0, -1):
        with pytest.raises(mmapds.FormatError, match=f"infer = {infer}, expected 1 or more"):
            convert(write([{"a": 1}]), infer=infer)


def test_a_source_without_records_is_named(write):
    path = write(b"", "empty.jsonl")
    with pytest.warns(UserWarning, match="found 0 records$") as caught:
        assert convert(path).records == 0
    assert [str(each.message) for each in caught] == [f"{path}: expected one record or more, found 0 records"]


def test_tars(write, tmp_path):
    picture = b"\x89PNG not decoded"
    arrays = npz(a=np.arange(3), b=np.ones((2, 2), np.float32))
    one = npy(np.arange(5, dtype=np.int16))
    files = []
    for i in range(5):
        members = {"json": b'{"k": [%d]}' % i, "txt": b"t", "cls": b"%d" % i, "png": picture}
        files += [(f"d/{i}.{name}", data) for name, data in {**members, "npy": one, "x.npz": arrays}.items()]
    write(archive(files), "a.tar")
    done = convert(tmp_path / "a.tar")
    assert list(done.schema.describe()) == ["__key__", "json", "txt", "cls", "png", "npy", "x.npz.a", "x.npz.b"]
    sample = mmapds.open(done.path)[3]
    assert (sample["__key__"], sample["json"], sample["txt"], sample["cls"]) == ("d/3", {"k": [3]}, "t", 3)
    assert sample["png"] == picture
    assert (sample["npy"].dtype, sample["x.npz.b"].tolist()) == (np.int16, [[1, 1], [1, 1]])
    raw = convert(tmp_path / "a.tar", decode="files", fields=["npy"])
    assert mmapds.open(raw.path)[0] == {"npy": one}
    write(archive([("0.cls", b"x")]), "b.tar")
    with pytest.raises(
        mmapds.DecodeError, match=r"b.tar: record 0 \(byte 0\): member 'cls' of sample '0': invalid literal"
    ):
        convert(tmp_path / "b.tar")


def test_all_that_is_indexed(tmp_path):
    examples = [{"image": (b"jpg", "byte"), "label": (i, "int"), "x": ([0.5, i], "float")} for i in range(5)]
    write_tfrecords(tmp_path / "a.tfrecord", examples)
    convert(tmp_path / "a.tfrecord", decode="tf_example")
    assert samples(tmp_path / "a.mma")[3] == {"image": b"jpg", "label": [3], "x": [0.5, 3]}
    convert(tmp_path / "a.tfrecord")
    assert list(mmapds.open(tmp_path / "a.mma")[0]) == ["data"]
    array = np.arange(24, dtype=np.uint16).reshape(4, 3, 2)
    np.save(tmp_path / "b.npy", array)
    assert convert(tmp_path / "b.npy").schema.describe() == {"data": ["uint16", [3, 2]]}
    assert samples(tmp_path / "b.mma") == [{"data": entry.tolist()} for entry in array]
    array.tofile(tmp_path / "c.bin")
    convert(tmp_path / "c.bin", format="fixed", dtype="uint16")
    assert [sample["data"] for sample in mmapds.open(tmp_path / "c.mma")] == list(range(24))
    convert(tmp_path / "c.bin", format="fixed", record_bytes=6)
    assert mmapds.open(tmp_path / "c.mma")[1] == {"data": array.tobytes()[6:12]}


def test_array_files_themselves(tmp_path):
    with mmapds.Writer(tmp_path / "a.mma", {"x": ("bfloat16", (None,)), "y": "int8", "z": "json"}) as writer:
        for i in range(9):
            writer.write({"x": torch.full((i,), i, dtype=torch.bfloat16), "y": i, "z": None})
    done = convert(tmp_path / "a.mma", tmp_path / "b.mma", fields=["z", "x"], length="x")
    ds = mmapds.open(done.path, decode="torch")
    assert [sample["x"].tolist() for sample in ds] == [[i] * i for i in range(9)]
    assert ds.lengths.tolist() == list(range(9))
    assert convert(tmp_path / "a.mma.mmx", tmp_path / "c.mma").records == 9
    with pytest.raises(mmapds.Error, match=r"a\.mma: expected a file to write that is not a source"):
        convert(tmp_path / "a.mma")


def test_an_error_of_a_decoder_names_the_record_and_no_way_that_a_conversion_lacks(tmp_path, write):
    path = write([{"text": "a b"}], "a.jsonl")
    with pytest.raises(TypeError) as error:
        convert(path, tmp_path / "out.mma", decode=lambda sample: {"n": len(sample["text"].split())})
    assert error.value.__notes__[0].startswith(f"while decoding {path}:1 (byte 0)")
    with pytest.raises(mmapds.DecodeError, match="not JSON"):
        convert(write(b'{"text":"a"}\n{"text":\n', "b.jsonl"), tmp_path / "b.mma", decode="json")


def test_a_member_beside_an_array_of_its_name_is_refused(tmp_path):
    files = [("a.x.npz", npz(y=np.arange(3))), ("a.x.npz.y", b"text")]
    (tmp_path / "a.tar").write_bytes(archive(files))
    with pytest.raises(mmapds.Error, match=r"record 0 .*: expected fields of different names, found two 'x\.npz\.y'"):
        convert(tmp_path / "a.tar")


def test_complex_numbers_of_one_axis(tmp_path):
    (tmp_path / "a.npy").write_bytes(npy(np.array([1j, 2])))
    found = samples(convert(tmp_path / "a.npy").path)
    assert [sample["data"] for sample in found] == [1j, 2]
