"""Converting records whose types only their values show, JSON, tars and TFRecords; and HDF5."""

import io
import json
from fractions import Fraction

import h5py
import numpy as np
import pyarrow as pa
import pytest
import safetensors.torch
import torch

import mmapds
from mmapds.convert import convert
from tests.support.alive import Counted
from tests.support.conversions import samples, save, utterances
from tests.support.samples import npy, npz
from tests.support.tars import archive

# ---- what types are inferred ----------------------------------------------------------------------------------------

INTS = ["int64", [None]]
INFERRED = [  # values of a field, or ... where it is missing, and its type
    ([1, 0.5], "float64"),
    ([2**64 - 1], "uint64"),
    ([2**64 - 1, -1], "json"),
    ([1, "a"], "json"),
    (["a", [1]], "json"),
    (["a", "b"], "str"),
    ([True, False], "bool"),
    ([{"a": [1]}, {}], "json"),
    ([[], [1, 2]], INTS),
    ([[1], [0.5]], ["float64", [None]]),
    ([[2**53 + 1, 0.5]], "json"),
    ([[2**63 + 1, 1], [1, 2]], "json"),
    ([[1], [None]], "json"),
    ([[1], 5], "json"),
    ([[], ["a"], [1]], "json"),
    ([[[]], [[1]]], ["int64", [None, None]]),
    ([[[], []], [[1, 2], [3, 4]]], ["int64", [None, None]]),
    ([[[1]], [[1], [2, 3]]], "json"),
    ([[[]]], "json"),
    ([[[[[[[[[[1]]]]]]]]]], "json"),
    ([5, None], "json"),
    ([None, [1, 2]], "json"),
    ([..., 1], "json"),
    ([1, ...], "json"),
]


@pytest.mark.parametrize(("values", "what"), INFERRED, ids=str)
def test_a_type_holds_all_values_and_json_holds_what_no_type_does(write, values, what):
    path = write([{"id": 7} if value is ... else {"id": 7, "x": value} for value in values])
    done = convert(path)
    assert done.schema.describe()["x"] == what
    assert [sample["x"] for sample in samples(done.path)] == [None if value is ... else value for value in values]


def test_records_beyond_the_inferred_ones_must_fit(write):
    path = write([{"id": i, "t": "a"} for i in range(5)] + [{"id": 5, "late": 1}, {"id": 2**53 + 1, "x": 0.5}])
    late = r"expected fields among 'id', 't', as in the records before it, found 'late'"
    for options in ({"types": {"t": "json"}}, {"defaults": {"t": ""}}):
        with pytest.raises(mmapds.FormatError, match=rf"train.jsonl:6 \(byte \d+\): {late}"):
            convert(path, infer=5, **options)
    assert convert(path, infer=5, fields=["id"]).records == 7
    assert convert(path, missing="skip", fields=["t", "id"])[1:3] == (5, 2)
    message = r"train.jsonl:7 \(byte \d+\): field 'id': expected float64, found int 9007199254740993"
    with pytest.raises(mmapds.FormatError, match=message):
        convert(path, infer=5, fields=["id"], types={"id": "float64"})
    wanted = [{"id": 4, "t": "a", "late": None, "x": None}, {"id": 5, "t": None, "late": 1, "x": None}]
    assert samples(convert(path).path)[4:6] == wanted
    with pytest.warns(UserWarning, match="expected one record or more, found 0 records$"):
        assert convert(write(b"", "empty.jsonl")).records == 0


# ---- what stands for missing values ---------------------------------------------------------------------------------


def jsonl(path, records):
    (path / "a.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return path / "a.jsonl"


def parquet(path, records):
    return save(pa.Table.from_pylist(records), path / "a.parquet")


KINDS = {  # values that are there, and the default
    "numbers": ([1, 2], -1),
    "text": (["a", "b"], "none"),
    "arrays": ([[1, 2], [3]], [7]),
    "tables": ([[[1, 2]], [[3, 4]]], [[7, 8]]),
    "texts": ([["a", "b"], ["c"]], []),
}


@pytest.mark.parametrize("make", [jsonl, parquet])
@pytest.mark.parametrize("kind", KINDS)
def test_a_default_stands_for_nulls_of_every_kind(tmp_path, make, kind):
    (first, second), default = KINDS[kind]
    values = [None, first, None, second]
    path = make(tmp_path, [{"row": row, "x": value} for row, value in enumerate(values)])
    for options in ({}, {"missing": "skip"}, {"types": {"x": "json"}}):
        done = convert(path, defaults={"x": default}, **options)
        wanted = [default if value is None else value for value in values]
        assert [(each["row"], each["x"]) for each in samples(done.path)] == [*enumerate(wanted)]


@pytest.mark.parametrize("make", [jsonl, parquet])
@pytest.mark.parametrize(("value", "default"), [(3, 0), ([1, 2, 3], [])], ids=str)
def test_a_null_in_the_field_of_lengths_needs_a_default(tmp_path, make, value, default):
    """It cannot be kept as JSON, which gives no lengths; a type that is inferred stays that of the other records."""
    path = make(tmp_path, [{"x": value}, {"x": None}])
    with pytest.raises(mmapds.FormatError, match=r"x': expected int64.*, found null; give defaults= or missing='skip'"):
        convert(path, length="x")
    assert convert(path, length="x", missing="skip").records == 1
    done = convert(path, length="x", defaults={"x": default})
    assert mmapds.open(done.path).lengths.tolist() == [3, 0]
    assert convert(path, defaults={"x": default}).kept_length == "x"


# ---- all that is indexed --------------------------------------------------------------------------------------------


def test_tars(write, tmp_path):
    picture, arrays = b"\x89PNG not decoded", npz(a=np.arange(3), b=np.ones((2, 2), np.float32))
    one, files = npy(np.arange(5, dtype=np.int16)), []
    for i in range(5):
        members = {"json": b'{"k": [%d]}' % i, "txt": b"t", "cls": b"%d" % i, "png": picture}
        files += [(f"d/{i}.{name}", data) for name, data in {**members, "npy": one, "x.npz": arrays}.items()]
    done = convert(write(archive(files), "a.tar"))
    assert list(done.schema.describe()) == ["__key__", "json", "txt", "cls", "png", "npy", "x.npz.a", "x.npz.b"]
    expected = {"__key__": "d/3", "json": {"k": [3]}, "txt": "t", "cls": 3, "png": picture, "npy": [0, 1, 2, 3, 4]}
    assert samples(done.path)[3] == expected | {"x.npz.a": [0, 1, 2], "x.npz.b": [[1, 1], [1, 1]]}
    raw = convert(tmp_path / "a.tar", decode="files", fields=["npy"])
    assert mmapds.open(raw.path)[0] == {"npy": one}
    twice = [("a.x.npz", npz(y=np.arange(3))), ("a.x.npz.y", b"text")]
    with pytest.raises(mmapds.Error, match=r"record 0 .*: .* names, found two 'x\.npz\.y'"):
        convert(write(archive(twice), "b.tar"))


def test_decoders_see_one_record_at_a_time_and_their_errors_name_it(write):
    path = write([{"id": i} for i in range(1000)])
    Counted.begin()
    assert convert(path, decode=Counted).records == 1000
    assert Counted.most <= 3
    with pytest.raises(TypeError) as error:
        convert(path, decode=lambda sample: {"n": sample["id"]})  # it is given bytes
    assert error.value.__notes__[0].startswith(f"while decoding {path}:1 (byte 0)")


# ---- HDF5 -----------------------------------------------------------------------------------------------------------


def stored(path, **held):
    """Write a file of HDF5 that holds these, by name."""
    with h5py.File(path, "w") as file:
        for name, value in held.items():
            file[name] = value
    return path


def test_groups_of_hdf5(tmp_path):
    path, feats = tmp_path / "a.h5", utterances(tmp_path / "a.h5", 12)
    done = samples(convert(path, records="groups", length="feats").path)
    for sample, i in zip(done, sorted(range(12), key=lambda i: (i % 3, i)), strict=True):
        assert sample["__key__"] == f"speaker{i % 3}/{i:04}"
        assert (sample["dialect"], sample["gain"]) == ("north" if i % 2 else "south", i / 2)
        assert (sample["feats"], sample["id"], sample["text"]) == (feats[i].tolist(), i, f"grüße {i}")
    some = convert(path, records="groups", group="speaker1", fields=["id", "__key__"])
    assert samples(some.path) == [{"id": i, "__key__": f"{i:04}"} for i in range(1, 12, 3)]
    stored(path, **{"train/b": [1, 2], "train/a": [3], "late/x": 1, "late/y": 2, "first/x": 0, "train/deep/x": 7})
    with h5py.File(path, "a") as file:
        file["late"].attrs["empty"] = h5py.Empty("f4")
    done = samples(convert(path, records="groups", fields=["__key__", "x", "a", "empty"]).path)
    found = [("first", 0, None), ("late", 1, None), ("train", None, [3])]
    assert [tuple(sample.values()) for sample in done] == [(*values, None) for values in found]
    with pytest.raises(mmapds.FormatError, match=r"record 1: expected fields among .*, found 'empty'"):
        convert(path, records="members", infer=1)
    done = samples(convert(stored(path, b=[1, 2], a=[3]), records="groups").path)
    assert done == [{"__key__": "a", "data": [3]}, {"__key__": "b", "data": [1, 2]}]


def test_nested_groups_of_hdf5_are_fields_of_a_record(tmp_path):
    path, demos = tmp_path / "a.h5", [f"demo_{i}" for i in range(12)]
    held = {f"data/{demo}/actions": [i, i] for i, demo in enumerate(demos)}
    held |= {f"data/{demo}/obs/eef": [[i]] for i, demo in enumerate(demos)}
    stored(path, **held)
    for options, prefix in (({}, "data/"), ({"group": "data"}, ""), ({"group": "data", "records": "members"}, "")):
        done = samples(convert(path, force=True, **{"records": "groups", **options}).path)
        wanted = [{"__key__": prefix + demo, "actions": [i, i], "obs.eef": [[i]]} for i, demo in enumerate(demos)]
        assert done == wanted, "in natural order"


def test_groups_of_hdf5_that_may_be_records_or_fields_are_refused_with_both_readings(tmp_path):
    path = stored(tmp_path / "a.h5", **{"e/1/act/x": [1], "e/1/obs/y": [2], "e/2/act/x": [3], "e/2/obs/y": [4]})
    for options in ({}, {"group": "e"}):
        with pytest.raises(
            mmapds.FormatError, match=r"share a field, found '.*1/act' with 'x' and '.*1/obs' with 'y';"
        ):
            convert(path, records="groups", **options)
    whole = samples(convert(path, records="members", group="e").path)
    assert whole == [{"__key__": str(i), "act.x": [2 * i - 1], "obs.y": [2 * i]} for i in (1, 2)]
    parts = samples(convert(path, records="groups", fields=["__key__", "x", "y"], force=True).path)
    assert [each["__key__"] for each in parts] == ["e/1/act", "e/1/obs", "e/2/act", "e/2/obs"]


def test_rows_of_hdf5(tmp_path):
    n, rng = 1100, np.random.default_rng(0)
    tokens = np.empty(n, object)
    tokens[:] = [np.arange(i % 5, dtype=np.uint16) for i in range(n)]
    columns = {"id": np.arange(n, dtype=">i4"), "ok": rng.random(n) < 0.5, "raw": np.array([b"\0\1"] * n, "V2")}
    columns |= {"tokens": tokens, "words": np.array([f"wörter {i}" for i in range(n)], h5py.string_dtype())}
    columns["x/feats"] = rng.random((n, 4, 3)).astype(np.float32)
    for layout in ({}, {"chunks": (500,), "compression": "gzip"}):
        with h5py.File(tmp_path / "a.hdf5", "w") as file:
            for name, data in columns.items():
                chunks = {"chunks": (*layout["chunks"], *data.shape[1:])} if layout else {}
                dtype = h5py.vlen_dtype(np.uint16) if name == "tokens" else data.dtype
                file.create_dataset(name, data=data, dtype=dtype, **layout | chunks)
        done = convert(tmp_path / "a.hdf5", length="tokens")
        assert mmapds.open(done.path).lengths.tolist() == [i % 5 for i in range(n)]
        values = {name: data.tolist() for name, data in columns.items()} | {"tokens": [list(each) for each in tokens]}
        assert samples(done.path) == [{name: values[name][i] for name in columns} for i in range(n)]


BAD = [  # what a file holds, options, and the message
    ({"a": [1, 2], "b": [1, 2, 3]}, {}, "dataset 'b': expected 2 rows, as in the datasets before, found 3"),
    ({"a": [1, 2], "b": 5}, {}, "dataset 'b': expected 2 rows, as in the datasets before, found a single value"),
    ({"a": 5, "b": [1]}, {}, "dataset 'a': expected rows, found a single value"),
    ({"a": [1]}, {"group": "no"}, r"a.h5: expected a group 'no', found none among \['a'\]"),
    ({"a": [1]}, {"group": "a"}, "expected a group 'a', found none among"),
    ({"a": [1]}, {"records": "columns"}, "records = 'columns', expected 'rows', 'groups' or 'members'"),
    ({"a": h5py.SoftLink("/nowhere")}, {}, "expected data in this group, found a link to '/nowhere'"),
    ({"g/t": np.array([b"gr\xfcn"])}, {}, r"a\.h5: dataset '/g/t': expected text in UTF-8, found b'gr"),
    ({"g/__key__": 1}, {"records": "groups"}, "expected fields of different names, found two '__key__'"),
    ({"x": np.zeros(2, [("a", "i4")]), "x.a": [1, 2]}, {}, r"expected fields of different names, found two 'x\.a'"),
]


def test_what_hdf5_is_refused(tmp_path):
    path = tmp_path / "a.h5"
    for held, options, message in BAD:
        with pytest.raises(mmapds.FormatError, match=message):
            convert(stored(path, **held), **options)
    with h5py.File(path, "w") as file:
        file["g/x"], file["g/loop"] = [1], file["/"]
    with pytest.raises(mmapds.FormatError, match="expected groups that have one name each, found another"):
        convert(path)


def test_types_that_array_files_lack_are_named_and_can_be_left_out(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["g/y"] = [1, 2]
        h5py.h5d.create(file["g"].id, b"x", h5py.h5t.UNIX_D32LE, h5py.h5s.create_simple((2,)))
    for options, found in (({"group": "g"}, [1, 2]), ({"records": "groups"}, [[1, 2]])):
        with pytest.raises(mmapds.FormatError, match=r"a\.h5: dataset '/g/x': expected .*, found a type that Nu"):
            convert(tmp_path / "a.h5", **options)
        assert [each["y"] for each in samples(convert(tmp_path / "a.h5", fields=["y"], **options).path)] == found


def test_attributes_of_groups_are_fields_with_names_of_their_own(tmp_path):
    path = stored(tmp_path / "a.h5", x=[1, 2], time=[0.5, 1])
    with h5py.File(path, "a") as file:
        file["time"].make_scale("t")  # as netCDF has them: the scale refers to the datasets that it is of
        file["x"].dims[0].attach_scale(file["time"])
    with pytest.raises(mmapds.FormatError, match=r"a\.h5: '/\w+': attribute '\w+'.*: expected .*, found "):
        convert(path, records="groups")
    done = samples(convert(path, records="groups", fields=["__key__", "data"]).path)
    assert done == [{"__key__": "time", "data": [0.5, 1]}, {"__key__": "x", "data": [1, 2]}]


# ---- files of one sample each ------------------------------------------------------------------------------------


def samples_of_files():
    random = np.random.default_rng(0)
    for number in range(7):
        yield {
            "tokens": random.integers(0, 100, number + 1).astype(np.int32),
            "features": random.normal(size=(2 * number, 3)).astype(np.float32),
            "label": np.array(number),
        }


def write_files(folder, kind):
    folder.mkdir()
    for number, sample in enumerate(samples_of_files()):
        path = folder / f"s{number}.{kind}"
        tensors = {name: torch.from_numpy(array) for name, array in sample.items()}
        if kind == "npz":
            np.savez(path, **sample)
        elif kind == "pt":
            torch.save(tensors | {"text": f"t{number}", "half": torch.ones(2, dtype=torch.bfloat16)}, path)
        else:
            safetensors.torch.save_file(tensors | {"half": torch.ones(2, dtype=torch.bfloat16)}, path)
    return folder


@pytest.mark.parametrize("kind", ["npz", "pt", "safetensors"])
def test_a_folder_of_files_becomes_a_record_each(tmp_path, kind):
    reports = []
    done = convert(
        write_files(tmp_path / "in", kind), tmp_path / "a.mma", length="tokens", progress=lambda *at: reports.append(at)
    )
    assert (done.records, done.skipped) == (7, 0)
    assert [total for _, total in reports] == [7] * len(reports)
    ds = mmapds.open(tmp_path / "a.mma")
    assert ds.lengths.tolist() == [1, 2, 3, 4, 5, 6, 7]
    for number, (found, wanted) in enumerate(zip(ds, samples_of_files(), strict=True)):
        assert found["__key__"] == f"s{number}"
        for name, array in wanted.items():
            assert np.array_equal(found[name], array), name
        if kind != "npz":
            assert str(found["half"].dtype) == "bfloat16"
    again = convert(tmp_path / "in", tmp_path / "b.mma", format=kind, fields=["label", "tokens"])
    assert [field.name for field in again.schema.fields] == ["label", "tokens"]


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.npz", b"PK no", "not a readable npz file"),
        ("a.pt", b"PK no", "expected tensors, .* found other objects of Python, or damage"),
        ("a.safetensors", b"12345678", "not a readable safetensors file"),
        ("a.pt", {"x": Fraction(1, 2)}, "expected tensors, numbers, text and dicts of these, .*; give decode="),
        ("a.npz", {"x": np.array([{}], object)}, "not a readable npz file: Object arrays cannot be loaded"),
        ("a.pt", {"x": {"y": torch.ones(2)}}, "a.pt: field 'x': "),
    ],
)
def test_files_that_cannot_be_read_are_named(tmp_path, name, data, message):
    path = tmp_path / name
    if isinstance(data, bytes):
        path.write_bytes(data)
    elif name == "a.npz":
        np.savez(path, **data)
    else:
        torch.save(data, path)
    with pytest.raises(mmapds.FormatError, match=message) as error:
        convert(path)
    assert str(path) in str(error.value)
    with pytest.raises(mmapds.FormatError, match=f"{name[2:]} is not read in place: convert it"):
        mmapds.build(path)


def test_an_npz_that_decompresses_to_too_much_is_refused(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros(1 << 20))
    monkeypatch.setenv("MMAPDS_MAX_NPZ_BYTES", str(1 << 20))
    with pytest.raises(mmapds.FormatError, match=r"expected arrays of up to 1048576 bytes, found .*; set MMAPDS_MAX"):
        convert(tmp_path / "a.npz")


def test_other_objects_of_pickle_need_a_word_of_the_user(tmp_path):
    for number in range(3):
        torch.save({"ids": {Fraction(number)}}, tmp_path / f"{number}.pt")

    def decode(data):
        return {"ids": [*map(int, torch.load(io.BytesIO(data), weights_only=False)["ids"])]}

    convert(tmp_path, tmp_path / "a.mma", decode=decode)
    assert [each["ids"].tolist() for each in mmapds.open(tmp_path / "a.mma")] == [[0], [1], [2]]
    with pytest.raises(mmapds.FormatError, match="'json', expected a function of the bytes of a file, or None"):
        convert(tmp_path / "0.pt", tmp_path / "b.mma", decode="json")
