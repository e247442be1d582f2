"""Converting HDF5: groups, datasets and rows as records."""

import h5py
import numpy as np
import pyarrow as pa
import pytest

import mmapds
from mmapds.convert import convert
from mmapds.errors import as_command
from tests.support.conversions import samples, save, utterances


@pytest.fixture(autouse=True)
def command_line():
    """Messages name options as the command takes them, so that they can be given to it."""
    with as_command():
        yield


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


def test_what_hdf5_is_refused(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["a"], file["b"], file["one"] = [1, 2], [1, 2, 3], 5
        file["g/loop"] = file["/"]
    for options, message in [
        ({}, "expected groups that have one name each, found another"),
        ({"group": "no"}, r"a.h5: expected a group 'no', found none among \['a', 'b', 'g', 'one'\]"),
        ({"group": "a"}, "expected a group 'a', found none among"),
        ({"records": "columns"}, "records = 'columns', expected 'rows' or 'groups'"),
    ]:
        with pytest.raises(mmapds.FormatError, match=message):
            convert(path, **options)
    with h5py.File(path, "a") as file:
        del file["g"]
        file["ref"] = file["a"].ref
        file["gone"] = h5py.SoftLink("/nowhere")
    with pytest.raises(mmapds.FormatError, match="expected data in this group, found a link to '/nowhere'"):
        convert(path)
    with h5py.File(path, "a") as file:
        del file["gone"]
    with pytest.raises(mmapds.FormatError, match=r"dataset '/ref': expected .*, found references"):
        convert(path)
    with pytest.raises(mmapds.FormatError, match="dataset 'b': expected 2 rows, as in the datasets before, found 3"):
        convert(path, fields=["a", "b"])
    with pytest.raises(
        mmapds.FormatError, match="dataset 'one': expected 2 rows, as in the datasets before, found a single value"
    ):
        convert(path, fields=["a", "one"])
    assert samples(convert(path, fields=["b"]).path) == [{"b": 1}, {"b": 2}, {"b": 3}]
    with h5py.File(path, "a") as file:
        file["none"] = np.zeros(0)
        file["g/text"] = np.array([b"ok", b"gr\xfcn"])
        file["g"].attrs["noted"] = np.bytes_(b"gr\xfcn")
    with pytest.raises(mmapds.FormatError, match="dataset 'none': expected 2 rows, as in the datasets before, found 0"):
        convert(path, fields=["a", "none"])
    for options, place in (({}, "dataset '/g/text'"), ({"records": "groups"}, "'/g': attribute 'noted'")):
        with pytest.raises(mmapds.FormatError, match=rf"a\.h5: {place}: expected text in UTF-8, found b'gr"):
            convert(path, fields=["g/text"] if not options else ["noted"], **options)
    save(pa.table([[1], [2]], names=["x", "x"]), tmp_path / "a.arrow", "arrow")
    with pytest.raises(mmapds.FormatError, match=r"a\.arrow: expected fields of different names, found two 'x'"):
        convert(tmp_path / "a.arrow", tmp_path / "b.mma")


def test_odd_parts_of_hdf5(tmp_path):
    with h5py.File(tmp_path / "b.h5", "w") as file:
        group = file.create_group("g")
        group["x"] = 1
        group.attrs["empty"] = h5py.Empty("f4")
    assert samples(convert(tmp_path / "b.h5", records="groups").path) == [{"__key__": "g", "empty": None, "x": 1}]
    with h5py.File(tmp_path / "b.h5", "a") as file:
        file["g"].attrs["x"] = 2
    with pytest.raises(mmapds.FormatError, match=r"b\.h5: '/g': expected fields of different names, found two 'x'"):
        convert(tmp_path / "b.h5", records="groups")
    for name, value in (("c", [1, 2]), ("d", [[0.5]])):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file["x"] = value
    with pytest.raises(mmapds.FormatError, match=r"d\.h5: field 'x': expected int64, as in .*, found \('float64'"):
        convert([tmp_path / "c.h5", tmp_path / "d.h5"], tmp_path / "o.mma")
