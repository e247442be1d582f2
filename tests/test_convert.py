"""Conversion to array files: every reader gives what its own library reads; what cannot be is told with its place."""

import decimal
import json
import os
import sys
from datetime import date, datetime, time, timedelta

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import mmapds
from mmapds.convert import SUFFIXES, convert
from tests.support.commands import run
from tests.support.samples import npy, npz, write_tfrecords
from tests.support.tars import archive

WAYS = ["parquet", "arrow", "stream"]


def save(table, path, way="parquet", rows=700):
    """Write a table in some batches."""
    if way == "parquet":
        pq.write_table(table, path, row_group_size=rows)
        return str(path)
    new = pa.ipc.new_file if way == "arrow" else pa.ipc.new_stream
    with pa.OSFile(str(path), "wb") as file, new(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=rows)
    return str(path)


def command(*arguments):
    return run("-m", "mmapds.convert", *arguments)


def listed(value):
    return value.tolist() if isinstance(value, np.ndarray) else value


def samples(path):
    return [{name: listed(value) for name, value in sample.items()} for sample in mmapds.open(path)]


def frames(count):
    rng = np.random.default_rng(0)
    return [rng.random((int(n), 4)).astype(np.float32) for n in rng.integers(0, 9, count)]


@pytest.mark.parametrize("way", WAYS)
def test_every_type_of_a_table(tmp_path, way):
    n = 2000
    feats = frames(n)
    columns = {
        "i8": pa.array([i % 100 - 50 for i in range(n)], pa.int8()),
        "u64": pa.array([2**64 - 1 - i for i in range(n)], pa.uint64()),
        "f16": pa.array(np.arange(n, dtype=np.float16)),
        "f32": pa.array([i / 3 for i in range(n)], pa.float32()),
        "ok": [i % 2 == 0 for i in range(n)],
        "text": [f"zeile {i}" for i in range(n)],
        "large": pa.array([f"{i}" for i in range(n)], pa.large_string()),
        "view": pa.array([f"{i}" * 9 for i in range(n)], pa.string_view()) if way != "parquet" else ["x"] * n,
        "raw": [bytes([i % 256]) * (i % 5) for i in range(n)],
        "sha": pa.array([bytes([i % 256]) * 4 for i in range(n)], pa.binary(4)),
        "kind": pa.array([str(i % 3) for i in range(n)]).dictionary_encode(),
        "tokens": pa.array([list(range(i % 7)) for i in range(n)], pa.list_(pa.int32())),
        "far": pa.array([list(range(i % 3)) for i in range(n)], pa.large_list(pa.uint16())),
        "box": pa.array([[i, i, 0, 1] for i in range(n)], pa.list_(pa.int16(), 4)),
        "feats": pa.array([each.tolist() for each in feats], pa.list_(pa.list_(pa.float32(), 4))),
        "grid": pa.array([[[i] * (i % 3)] * (i % 4) for i in range(n)], pa.list_(pa.list_(pa.int64()))),
        "mask": pa.array([[True, i % 2 == 0] for i in range(n)], pa.list_(pa.bool_())),
    }
    table = pa.table(columns)
    done = convert(save(table, tmp_path / "a", way), tmp_path / "a.mma", format=way.replace("stream", "arrow"))
    assert (done.records, done.skipped) == (n, 0)
    found = samples(tmp_path / "a.mma")
    for name in columns:
        assert [sample[name] for sample in found] == table[name].to_pylist(), name
    ds = mmapds.open(tmp_path / "a.mma")
    assert [ds[5][name].dtype for name in ("tokens", "box", "feats", "mask")] == ["i4", "i2", "f4", "?"]
    assert all(sample["feats"].shape == each.shape for sample, each in zip(ds, feats, strict=True))
    assert ds.column("i8").tolist() == columns["i8"].to_pylist()
    assert ds.column("tokens_length").tolist() == [i % 7 for i in range(n)]


def test_what_arrays_have_no_type_for(tmp_path):
    table = pa.table(
        {
            "image": [{"bytes": b"\xff\xd8", "path": "a.jpg"}, {"bytes": b"", "path": "b"}],
            "deep": [{"x": {"y": 1}}, {"x": {"y": 2}}],
            "tags": [["a", None], []],
            "people": [[{"name": "A"}], [{"name": "B"}, {"name": None}]],
            "map": pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int64())),
            "nothing": pa.nulls(2),
            "price": pa.array([decimal.Decimal("1.10"), decimal.Decimal("-0.01")], pa.decimal128(5, 2)),
            "day": [date(2024, 1, 1), date(1969, 12, 31)],
            "at": pa.array([datetime(2024, 1, 1), datetime(1969, 12, 31)], pa.timestamp("us")),
            "clock": pa.array([time(0, 0, 1), time(1)], pa.time32("ms")),
            "took": pa.array([timedelta(seconds=1), timedelta(0)], pa.duration("ms")),
        }
    )
    convert(save(table, tmp_path / "a.parquet"))
    one, two = samples(tmp_path / "a.mma")
    assert one == {
        "image.bytes": b"\xff\xd8",
        "image.path": "a.jpg",
        "deep.x.y": 1,
        "tags": ["a", None],
        "people": [{"name": "A"}],
        "map": [["k", 1]],
        "nothing": None,
        "price": "1.10",
        "day": 19723,
        "at": 1704067200 * 10**6,
        "clock": 1000,
        "took": 1000,
    }
    assert (two["price"], two["day"], two["at"]) == ("-0.01", -1, -86400 * 10**6)


def test_tensors(tmp_path):
    tensors = np.arange(24, dtype=np.float32).reshape(4, 2, 3)
    kind = pa.fixed_shape_tensor(pa.float32(), [2, 3])
    with_null = pa.ExtensionArray.from_storage(kind, pa.array([None, [1.0] * 6], pa.list_(pa.float32(), 6)))
    for way in WAYS:
        table = pa.table({"x": pa.FixedShapeTensorArray.from_numpy_ndarray(tensors)})
        convert(save(table, tmp_path / way, way, rows=3), tmp_path / "a.mma", format=way.replace("stream", "arrow"))
        ds = mmapds.open(tmp_path / "a.mma")
        np.testing.assert_array_equal([sample["x"] for sample in ds], tensors)
        assert ds[0]["x"].dtype == np.float32
    save(pa.table({"x": with_null}), tmp_path / "a.arrow", "arrow")
    assert convert(tmp_path / "a.arrow", missing="skip")[1:3] == (1, 1)


NUMBERS = st.one_of(st.none(), st.integers(-9, 9))
LISTS = st.one_of(st.none(), st.lists(st.integers(-9, 9), max_size=3))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(st.tuples(NUMBERS, LISTS, st.one_of(st.none(), st.lists(LISTS, max_size=3))), max_size=20),
    cut=st.integers(1, 5),
)
def test_rows_with_nulls_are_left_out_and_no_others(tmp_path, rows, cut):
    """Also where batches are slices of others, and lists are null, hold nulls, or make no array."""
    small, lists, nested = zip(*rows, strict=True) if rows else ((), (), ())
    table = pa.table(
        {
            "number": pa.array(small, pa.int16()),
            "list": pa.array(lists, pa.list_(pa.int32())),
            "fixed": pa.array([None if row is None else [1, 2] for row in lists], pa.list_(pa.int8(), 2)),
            "nested": pa.array(nested, pa.list_(pa.list_(pa.int64()))),
        }
    )
    path = save(table, tmp_path / "a.arrow", "arrow", rows=cut)
    done = convert(path, missing="skip", fields=["number", "list", "fixed"])
    whole = [row for row in table.to_pylist() if None not in (row["number"], row["list"], row["fixed"])]
    assert samples(done.path) == [{name: row[name] for name in ("number", "list", "fixed")} for row in whole]
    assert done.skipped == len(rows) - len(whole)
    convert(path, schema=dict.fromkeys(table.column_names, "json"))
    assert samples(done.path) == table.to_pylist()
    jagged = [row for row in nested if row is not None and (None in row or len({len(each) for each in row}) > 1)]
    if jagged:
        with pytest.raises(
            mmapds.FormatError, match=r"a.arrow: row \d+: field 'nested': found list .*, expected int64 of"
        ):
            convert(path, missing="skip", fields=["nested"])
    else:
        convert(path, missing="skip", fields=["nested"])
        assert samples(done.path) == [{"nested": row} for row in nested if row is not None]


def test_sources_come_one_after_another(tmp_path):
    for shard in range(3):
        save(pa.table({"id": range(10 * shard, 10 * shard + 10)}), tmp_path / f"part-{shard}.parquet")
    done = convert(str(tmp_path / "part-{0..2}.parquet"), tmp_path / "all.mma")
    assert [sample["id"] for sample in mmapds.open(done.path)] == list(range(30))
    save(pa.table({"id": [1], "more": ["x"]}), tmp_path / "part-3.parquet")
    with pytest.raises(mmapds.FormatError, match=r"part-0.parquet: row 0: lacks field 'more'; leave such records out"):
        convert(str(tmp_path / "part-*.parquet"), tmp_path / "all.mma")
    assert convert(str(tmp_path / "part-*.parquet"), tmp_path / "all.mma", fields=["id"]).records == 31
    assert convert(str(tmp_path / "part-*.parquet"), tmp_path / "all.mma", missing="skip")[1:3] == (1, 30)
    save(pa.table({"id": ["text"]}), tmp_path / "part-4.parquet")
    with pytest.raises(
        mmapds.FormatError, match=r"part-4.parquet: field 'id' is str, before .*part-4.parquet it was int64"
    ):
        convert(str(tmp_path / "part-*.parquet"), tmp_path / "all.mma")


def test_numbers_take_the_types_of_a_schema(tmp_path):
    save(
        pa.table({"tokens": pa.array([[1, 65535], []], pa.list_(pa.int64())), "x": [[0.1], [0.2]]}),
        tmp_path / "a.parquet",
    )
    schema = {"tokens": ["uint16", [None]], "x": ["float32", [1]]}
    convert(tmp_path / "a.parquet", schema=schema, length="tokens")
    ds = mmapds.open(tmp_path / "a.mma")
    assert [ds[0]["tokens"].dtype, ds[0]["x"].dtype] == ["u2", "f4"]
    assert ds.lengths.tolist() == [2, 0]
    for wrong in ("uint8", "bool"):
        message = rf"row 0: field 'tokens': found int64, 1 to 65535, which {wrong} does not hold; choose another"
        with pytest.raises(mmapds.FormatError, match=message):
            convert(tmp_path / "a.parquet", schema={"tokens": [wrong, [None]]})
    with pytest.raises(
        mmapds.FormatError, match=r"row 0: field 'x': found float64, 0\.1 to 0\.1, which int64 does not"
    ):
        convert(tmp_path / "a.parquet", schema={"x": ["int64", [None]]})


def test_integers_become_floats_only_where_none_is_lost(tmp_path):
    save(pa.table({"id": [16777216, 16777217], "list": [[1], [2**53 + 1]]}), tmp_path / "a.parquet")
    assert convert(tmp_path / "a.parquet", schema={"id": "float64"}).records == 2
    for schema, message in [
        ({"id": "float32"}, "row 1: field 'id': found int 16777217, expected float32"),
        ({"list": ["float64", [None]]}, f"row 1: field 'list': found int64, {2**53 + 1} to {2**53 + 1}, which float64"),
    ]:
        with pytest.raises(mmapds.FormatError, match=message):
            convert(tmp_path / "a.parquet", schema=schema)


def utterances(path, count=200):
    feats = frames(count)
    with h5py.File(path, "w") as file:
        for i in range(count):
            group = file.create_group(f"speaker{i % 3}/{i:04}")
            group["feats"] = feats[i]
            group["id"] = i
            group["text"] = f"grüße {i}"
            group.attrs["dialect"] = "north" if i % 2 else "south"
            group.attrs["gain"] = np.float32(i / 2)
    return feats


def test_groups_of_hdf5(tmp_path):
    feats = utterances(tmp_path / "a.h5")
    done = convert(tmp_path / "a.h5", records="groups", length="feats")
    assert done.records == 200
    for sample in mmapds.open(tmp_path / "a.mma"):
        i = sample["id"]
        np.testing.assert_array_equal(sample["feats"], feats[i])
        assert sample["__key__"] == f"speaker{i % 3}/{i:04}"
        assert (sample["text"], sample["dialect"], sample["gain"]) == (
            f"grüße {i}",
            "north" if i % 2 else "south",
            i / 2,
        )
    ours = convert(tmp_path / "a.h5", records="groups", group="speaker1", fields=["id", "__key__"])
    assert [sample["__key__"] for sample in mmapds.open(ours.path)] == [f"{i:04}" for i in range(1, 200, 3)]
    assert ours.records == 67


def test_datasets_of_hdf5_as_records(tmp_path):
    arrays = {f"{i:03}": np.full((i, 3), i, np.int16) for i in range(20)}
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name, array in arrays.items():
            file[f"train/{name}"] = array
    convert(tmp_path / "a.h5", records="groups", group="train")
    assert samples(tmp_path / "a.mma") == [{"__key__": name, "data": array.tolist()} for name, array in arrays.items()]


@pytest.mark.parametrize("layout", [{}, {"chunks": True}, {"chunks": True, "compression": "gzip"}])
def test_rows_of_hdf5(tmp_path, layout):
    n = 3000
    rng = np.random.default_rng(0)
    columns = {
        "id": np.arange(n, dtype=">i4"),
        "x/feats": rng.random((n, 4, 3)).astype(np.float32),
        "x/half": rng.random(n).astype(np.float16),
        "ok": rng.random(n) < 0.5,
        "z": (rng.random((n, 2)) * 1j).astype(np.complex64),
    }
    box = np.zeros(n, [("width", "<i4"), ("name", "S5"), ("corner", "<f4", (2,))])
    box["width"], box["name"], box["corner"] = np.arange(n), b"ab", rng.random((n, 2))
    words = [f"wörter {i}" for i in range(n)]
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        for name, array in columns.items():
            file.create_dataset(name, data=array, **layout)
        file.create_dataset("box", data=box, **layout)
        file.create_dataset("words", data=words, dtype=h5py.string_dtype(), **layout)
        file.create_dataset("short", data=np.array([b"abc", b"de"] * (n // 2)), **layout)
        file.create_dataset("pair", data=[["a", "b"]] * n, dtype=h5py.string_dtype(), **layout)
        file.create_dataset("raw", data=np.array([b"\0\1"] * n, "V2"), **layout)
        ragged = file.create_dataset("tokens", (n,), h5py.vlen_dtype(np.uint16), **layout)
        for i in range(n):
            ragged[i] = np.arange(i % 5)
    done = convert(tmp_path / "a.hdf5", length="tokens")
    ds = mmapds.open(done.path)
    assert len(ds) == n
    for i in [*range(10), 1023, 1024, 1025, n - 1]:
        sample = ds[i]
        for name, array in columns.items():
            np.testing.assert_array_equal(sample[name], array[i])
            assert array.ndim == 1 or sample[name].dtype == array.dtype
        assert (sample["words"], sample["short"], sample["pair"]) == (words[i], ["abc", "de"][i % 2], ["a", "b"])
        assert (sample["box.width"], sample["box.name"], sample["raw"]) == (i, "ab", b"\0\1")
        np.testing.assert_array_equal(sample["box.corner"], box["corner"][i])
        assert sample["tokens"].tolist() == list(range(i % 5))
    assert ds.lengths.tolist() == [i % 5 for i in range(n)]
    assert ds.column("id").tolist() == list(range(n))
    assert convert(tmp_path / "a.hdf5", fields=["id", "box.width"]).schema.describe() == {
        "id": "int32",
        "box.width": "int32",
    }


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


def test_a_schema_is_inferred_from_the_first_records(write):
    records = [{"id": i} for i in range(50)] + [{"id": 50, "late": 1}, {"id": 51.5}]
    path = write(records)
    with pytest.raises(
        mmapds.FormatError, match=r"train.jsonl:51 \(byte \d+\): has a field 'late' that the records before"
    ):
        convert(path, infer=50)
    with pytest.raises(
        mmapds.FormatError, match=r"train.jsonl:52 \(byte \d+\): field 'id': found float 51.5, expected int64"
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
    with pytest.raises(mmapds.DecodeError, match=r"b.tar: record 0 \(byte 0\): 0.cls: invalid literal"):
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
    assert convert(tmp_path / "a.mma.mmx", tmp_path / "b.mma").records == 9
    with pytest.raises(mmapds.Error, match=r"a\.mma: is a source; name another file with -o"):
        convert(tmp_path / "a.mma")


def test_tables_that_are_empty(tmp_path):
    for way in WAYS:
        path = save(pa.table({"x": pa.array([], pa.int64())}), tmp_path / "a", way)
        assert convert(path, tmp_path / "a.mma", format=way.replace("stream", "arrow")).records == 0
        assert mmapds.open(tmp_path / "a.mma").column("x").tolist() == []
    with h5py.File(tmp_path / "a.h5", "w"):
        pass
    for records in ("rows", "groups"):
        assert convert(tmp_path / "a.h5", records=records).records == 0


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
            convert(path, **({"records": "groups"} if name == "a.h5" else {}))
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
        ((path,), {}, r"a.parquet: row 1: null for field 'x'; leave such records out with --missing skip, or allow"),
        ((path,), {"fields": "x"}, "fields = 'x', expected a list of names"),
        ((path,), {"fields": ["z"]}, "fields: there is no 'z'; the fields are 'x', 'y'"),
        ((path,), {"schema": {"z": "str"}}, "schema: there is no 'z'; the fields are 'x', 'y'"),
        ((path,), {"schema": {"x": "int9"}}, "schema: field 'x' has type 'int9'"),
        ((path,), {"missing": 3}, "missing = 3, expected 'error' or 'skip'"),
        ((path,), {"length": "y"}, "length = 'y', expected an integer field"),
        ((path,), {"prefix": "u32le"}, "format 'parquet' has no option 'prefix'; its options: none"),
        ((path,), {"decode": "json"}, "decode='json' is for records that are indexed; parquet has fields"),
        ((path,), {"format": "arrow"}, "a.parquet: cannot be read as Arrow"),
        ((path,), {"format": "hdf5"}, "a.parquet: cannot be read as HDF5"),
        ((text,), {"format": "parquet"}, "train.jsonl: cannot be read as Parquet"),
        ((text,), {"format": "no"}, "format 'no' is unknown"),
        (
            ([path, text], tmp_path / "b.mma"),
            {},
            "one conversion reads one format, but .*a.parquet is parquet, .*jsonl is",
        ),
        (([path, path],), {}, "2 sources become one file; name it with -o OUT.mma"),
        (([],), {}, "no sources were given"),
        ((tmp_path / "no.parquet",), {}, "no.parquet: no such file"),
        ((path, tmp_path / "b.parquet"), {}, "b.parquet: cannot write the array file here"),
        ((path, tmp_path / "no" / "b.mma"), {}, "b.mma: cannot write the array file here"),
        ((text, tmp_path / "no" / "b.mma"), {}, "b.mma: cannot write the array file here"),
    ]
    for arguments, options, message in cases:
        with pytest.raises(mmapds.Error, match=message):
            convert(*arguments, **options)
    for name, extra in (("pyarrow", "parquet"), ("h5py", "hdf5")):
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(mmapds.Error, match=rf"pip install 'mmapds\[{extra}\]'"):
            convert(path, format=extra)
    assert sorted(os.listdir(tmp_path)) == ["a.parquet", "train.jsonl"]


def test_what_hdf5_is_refused(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["a"], file["b"], file["one"] = [1, 2], [1, 2, 3], 5
        file["loop"] = h5py.SoftLink("/")
    for options, message in [
        ({}, "groups more than 32 deep; do links lead in circles?"),
        ({"group": "no"}, "a.h5: has no group 'no'; it has a, b, loop, one"),
        ({"group": "a"}, "has no group 'a'"),
        ({"records": "columns"}, "records = 'columns', expected 'rows' or 'groups'"),
    ]:
        with pytest.raises(mmapds.FormatError, match=message):
            convert(path, **options)
    with h5py.File(path, "a") as file:
        del file["loop"]
        file["ref"] = file["a"].ref
        file["gone"] = h5py.SoftLink("/nowhere")
    with pytest.raises(mmapds.FormatError, match="cannot be read as HDF5"):
        convert(path)
    with h5py.File(path, "a") as file:
        del file["gone"]
    with pytest.raises(mmapds.FormatError, match="field 'ref' has type 'HDF5 object'"):
        convert(path)
    with pytest.raises(mmapds.FormatError, match="dataset 'b' has 3 rows, 'a' has 2 rows; choose some with --fields"):
        convert(path, fields=["a", "b"])
    with pytest.raises(mmapds.FormatError, match="dataset 'one' has no rows but one value, 'a' has 2 rows"):
        convert(path, fields=["a", "one"])
    assert samples(convert(path, fields=["b"]).path) == [{"b": 1}, {"b": 2}, {"b": 3}]
    save(pa.table([[1], [2]], names=["x", "x"]), tmp_path / "a.arrow", "arrow")
    with pytest.raises(mmapds.FormatError, match=r"a\.arrow: has two fields 'x'; rename one"):
        convert(tmp_path / "a.arrow")


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
    assert "a.mma: 1 records of tokens (uint8 of shape (None,)), x (int8); 1 records left out; " in ran.stdout
    assert mmapds.open(tmp_path / "a.mma").lengths.tolist() == [2]
    (tmp_path / "schema.json").write_text(json.dumps({"tokens": ["uint8", [None]]}))
    out = tmp_path / "b.mma"
    assert command(path, "-o", out, "--schema", tmp_path / "schema.json", "--no-index", "--quiet").stdout == ""
    assert not os.path.exists(f"{out}.mmx")
    assert len(mmapds.open(out, build=True)) == 2
    for arguments, message in [
        ((path,), "a.parquet: row 1: null for field 'x'; leave such records out with --missing skip"),
        ((path, "--schema", "{"), "--schema: expected a JSON object, or a file that holds one: "),
        ((path, "--schema", "no.json"), "--schema: expected a JSON object, or a file that holds one: "),
    ]:
        ran = command(*arguments)
        assert (ran.returncode, ran.stdout) == (1, "")
        assert message in ran.stderr
        assert len(ran.stderr.splitlines()) == 1


def test_indexing_what_must_be_converted(tmp_path):
    save(pa.table({"x": [1]}), tmp_path / "a.parquet")
    save(pa.table({"x": [1]}), tmp_path / "a", "arrow")
    with h5py.File(tmp_path / "a.h5", "w"):
        pass
    for name, kind in (("a.parquet", "parquet"), ("a", "arrow"), ("a.h5", "hdf5")):
        with pytest.raises(
            mmapds.FormatError, match=f"{kind}, whose records cannot be read in place; run: python -m mmapds.conv"
        ):
            mmapds.build(tmp_path / name)
    save(pa.table({"x": [1]}), tmp_path / "b.arrow", "stream")
    save(pa.table({"x": [1]}), tmp_path / "b.jsonl")
    for name in ("b.arrow", "b.jsonl"):
        for attempt in (mmapds.build, mmapds.open, lambda path: mmapds.open(path, build=True)):
            with pytest.raises(mmapds.FormatError, match=r"cannot be read in place; run: python -m mmapds\.convert"):
                attempt(tmp_path / name)
    with pytest.raises(mmapds.FormatError, match=r"arrow cannot be read in place; run: python -m mmapds\.convert"):
        mmapds.build(tmp_path / "b.arrow", format="arrow")
    assert {".parquet", ".arrow", ".h5", ".jsonl", ".tar", ".mmx"} <= set(SUFFIXES)


def test_lists_in_any_order(tmp_path):
    values = pa.array([1, 2, 3, 4, 5])
    views = pa.ListViewArray.from_arrays(pa.array([3, 0, 2], pa.int32()), pa.array([2, 3, 1], pa.int32()), values)
    table = pa.table(
        {"view": views, "in": pa.array([[1, 2], [3], [4, 5, 6]], pa.large_list_view(pa.int16())), "e": [{}] * 3}
    )
    convert(save(table, tmp_path / "a.arrow", "arrow", rows=2))
    assert samples(tmp_path / "a.mma") == table.to_pylist()
    assert [sample["view"] for sample in samples(tmp_path / "a.mma")] == [[4, 5], [1, 2, 3], [3]]


def test_numbers_that_do_not_fit_are_found_among_others(tmp_path):
    save(pa.table({"a": [[1e300, float("inf")]], "b": [[2**63 - 1]]}), tmp_path / "a.parquet")
    for schema in ({"a": ["float32", [None]]}, {"b": ["float64", [None]]}):
        with pytest.raises(mmapds.FormatError, match=r"row 0: field '.': found .*64, .* does not hold"):
            convert(tmp_path / "a.parquet", schema=schema)


def test_names_that_a_table_has_not(tmp_path):
    save(pa.table({"s": [{"x": 1}]}), tmp_path / "a.parquet")
    with pytest.raises(mmapds.FormatError, match=r"schema: there is no 's'; the fields are 's\.x'"):
        convert(tmp_path / "a.parquet", schema={"s": "json"})


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


def test_odd_parts_of_hdf5(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        ragged = file.create_dataset("v", (2,), dtype=h5py.vlen_dtype(np.dtype(">f4")))
        ragged[0] = np.array([1, 2], ">f4")
    with pytest.raises(mmapds.FormatError, match="field 'v' has type 'HDF5 object'"):
        convert(tmp_path / "a.h5")
    with h5py.File(tmp_path / "b.h5", "w") as file:
        group = file.create_group("g")
        group["x"] = 1
        group.attrs["empty"] = h5py.Empty("f4")
    assert samples(convert(tmp_path / "b.h5", records="groups").path) == [{"__key__": "g", "empty": None, "x": 1}]
    with h5py.File(tmp_path / "b.h5", "a") as file:
        file["g"].attrs["x"] = 2
    with pytest.raises(mmapds.FormatError, match=r"b\.h5: 'g' has an attribute 'x', which is a field already"):
        convert(tmp_path / "b.h5", records="groups")
    for name, value in (("c", [1, 2]), ("d", [0.5])):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file["x"] = value
    with pytest.raises(mmapds.FormatError, match=r"d\.h5: field 'x' is float64, before .*d\.h5 it was int64"):
        convert([tmp_path / "c.h5", tmp_path / "d.h5"], tmp_path / "o.mma")
