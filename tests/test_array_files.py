"""Array files: what was written comes back, as views of the file, as columns, tensors and batches."""

import os
import pickle
import sys
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch.utils.data import DataLoader

import mmapds
from mmapds.arrays.schema import EXTENDED, ITEM_BYTES
from mmapds.index.verify import verify
from mmapds.storage.index_file import Index
from tests.support.array_files import equal, store, utterances
from tests.support.commands import command
from tests.support.index_file import arrays, rewrite

# ---- there and back ------------------------------------------------------------------------------------------


def test_records_come_back_as_views_of_the_file(tmp_path):
    records = utterances(100)
    path = store(tmp_path, records)
    ds = mmapds.open(path)
    assert len(ds) == 100
    assert all(equal(found, wanted) for found, wanted in zip(ds, records, strict=True))
    assert all(equal(found, records[i]) for i, found in zip([7, 3, -1], ds.__getitems__([7, 3, -1]), strict=True))
    feats = ds[50]["feats"]
    assert not feats.flags.writeable
    assert not feats.flags.owndata
    assert np.shares_memory(feats, ds[50]["feats"])
    assert np.shares_memory(feats, np.asarray(ds._records[50]))
    assert all(sample["feats"].ctypes.data % 64 == 0 for sample in ds)
    assert equal(pickle.loads(pickle.dumps(ds[10:]))[0], records[10])
    assert sorted(os.listdir(tmp_path)) == ["a.mma", "a.mma.mmx"]


def test_a_sample_keeps_its_file_alive(tmp_path):
    path = store(tmp_path, [{"x": np.arange(10)}])
    array = mmapds.open(path)[0]["x"]
    os.unlink(path)
    assert array.tolist() == list(range(10))


DTYPES = [name for name, size in ITEM_BYTES.items() if name not in EXTENDED]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (5,), (2, 0, 3), (3, 1, 2, 2)])
def test_every_dtype_and_shape(tmp_path, dtype, shape):
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    for axes in (shape, (None,) * len(shape)):
        ds = mmapds.open(store(tmp_path, [{"x": array}, {"x": torch.from_numpy(array.copy())}], {"x": (dtype, axes)}))
        for sample in ds:
            assert equal(sample, {"x": array})
            assert sample["x"].shape == shape


def scalars(dtype):
    if dtype == "bool":
        return st.booleans()
    if dtype.startswith("float"):
        return st.floats(width=int(dtype[5:]))
    info = np.iinfo(dtype)
    return st.integers(int(info.min), int(info.max))


@st.composite
def schemas_and_records(draw):
    """A schema, and records that fit it."""
    schema, values = {}, {}
    for name in draw(st.lists(st.sampled_from(["a", "b.c", "été", "x y", "#", "length_"]), max_size=6, unique=True)):
        kind = draw(st.sampled_from(["bytes", "str", "json", "number", "array"]))
        if kind == "number":
            schema[name] = draw(st.sampled_from([dtype for dtype in DTYPES if not dtype.startswith("complex")]))
            values[name] = scalars(schema[name])
        elif kind == "array":
            dtype = draw(st.sampled_from(DTYPES))
            shape = draw(st.lists(st.none() | st.integers(0, 4), max_size=3))
            schema[name] = (dtype, tuple(shape))
            sizes = st.tuples(*(st.integers(0, 5) if axis is None else st.just(axis) for axis in shape))
            values[name] = hnp.arrays(np.dtype(dtype), sizes)
        else:
            schema[name] = kind
            plain = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5)
            values[name] = {
                "bytes": st.binary(max_size=100),
                "str": st.text(max_size=50),
                "json": st.recursive(
                    plain, lambda s: st.lists(s, max_size=3) | st.dictionaries(st.text(), s, max_size=3)
                ),
            }[kind]
    return schema, draw(st.lists(st.fixed_dictionaries(values), max_size=5))


@settings(max_examples=100)
@given(schemas_and_records())
def test_round_trips(tmp_path_factory, given):
    schema, records = given
    path = store(tmp_path_factory.mktemp("round"), records, schema)
    ds = mmapds.open(path)
    assert len(ds) == len(records)
    for found, wanted in zip(ds, records, strict=True):
        assert list(found) == list(schema)
        for name, value in wanted.items():
            np.testing.assert_equal(found[name], value)
    for name, kind in schema.items():
        if kind in DTYPES:
            np.testing.assert_equal(ds.column(name).astype(float), np.array([float(r[name]) for r in records]))


@pytest.mark.parametrize("dtype", ["int64", "str", ("int64", (2,))], ids=str)
def test_files_whose_fields_lie_in_another_order_are_not_alike(tmp_path, dtype):
    """Their records would be read as those of the first file, each field as another one."""
    value = {"int64": [1, 2], "str": ["a", "b"]}.get(dtype, [[1, 1], [2, 2]])
    record = dict(zip("xy", value, strict=True))
    paths = [store(tmp_path, [record], dict.fromkeys(names, dtype), f"{names}.mma") for names in ("xy", "yx")]
    for decode in (None, "torch", mmapds.Fields({"x": dtype})):
        with pytest.raises(mmapds.Error, match=r"yx\.mma\.mmx: expected records "):
            mmapds.open(paths, decode=decode)
        with pytest.raises(mmapds.Error, match=r"datasets\[1\]: expected "):
            mmapds.concat([mmapds.open(path, decode=decode) for path in paths])
    with pytest.raises(mmapds.Error, match=r"yx\.mma\.mmx: (schema|columns): expected "):
        mmapds.merge(paths, out=tmp_path / "all.mmx")


def test_an_index_whose_fields_lie_in_another_order_is_damaged(tmp_path):
    def turned(metadata):
        schema = metadata["parameters"]["schema"]
        metadata["parameters"]["schema"] = dict(reversed(schema.items()))
        return metadata

    path = store(tmp_path, [{"x": "a", "y": "b"}])
    verify(Index(f"{path}.mmx"))
    rewrite(f"{path}.mmx", metadata=turned)
    with pytest.raises(mmapds.FormatError, match=r"a\.mma\.mmx: DAMAGED: schema = \{'y': .*, expected \{'x': "):
        verify(Index(f"{path}.mmx"))


# ---- the index of an array file ------------------------------------------------------------------------------


def test_numbers_and_lengths_are_columns(tmp_path):
    records = utterances(300, shortest=1)
    ds = mmapds.open(store(tmp_path, records, length="feats"))
    lengths = [len(record["feats"]) for record in records]
    assert ds.columns == ["feats_length", "id", "score", "clean", "length"]
    assert ds.lengths.tolist() == ds.column("feats_length").tolist() == lengths
    for name in ("id", "score", "clean"):
        assert ds.column(name).tolist() == [record[name] for record in records]
    order = arrays(ds.length_order)[0]
    assert [lengths[i] for i in order] == sorted(lengths, reverse=True)
    sampler = mmapds.TokenBudgetBatchSampler(ds, 200)
    assert sorted(i for batch in sampler for i in batch) == list(range(300))


def test_more_columns_than_json_has(tmp_path):
    names = [f"c{i}" for i in range(100)]
    path = store(tmp_path, [dict.fromkeys(names, i) for i in range(3)], length="c99")
    assert mmapds.open(path).column("c98").tolist() == [0, 1, 2]
    assert command(path, "--column", "size=bytes()").returncode == 0
    assert command("--verify", path).returncode == 0


def test_a_column_that_is_not_held(tmp_path):
    path = store(tmp_path, utterances(3), index=False)
    with pytest.raises(mmapds.ColumnError, match=r"column 'n': expected one of bytes\(\), it.*, found 'bytes\(text\)'"):
        mmapds.build(path, columns={"n": "bytes(text)"})
    with pytest.raises(mmapds.ColumnError, match="validate = True, expected False for records of a binary format"):
        mmapds.build(path, validate=True)


def test_a_column_that_the_file_has_is_not_replaced(tmp_path):
    path = store(tmp_path, [{"x": 1}])
    with pytest.raises(mmapds.ColumnError, match="column 'x' comes from the sources; give the new column another name"):
        mmapds.add_column(path, "x", [3])
    mmapds.add_column(path, "y", [3])
    assert command("--verify", path).returncode == 0


def test_the_index_can_be_built_again(tmp_path):
    path = store(tmp_path, utterances(50), length="feats")
    before = mmapds.open(path).length_order
    os.unlink(path + ".mmx")
    assert command(path, "--column", "size=bytes()").returncode == 0
    ds = mmapds.open(path)
    assert ds.columns == ["feats_length", "id", "score", "clean", "length", "size"]
    assert ds.column("size").tolist() == [ds.where(i).size for i in range(50)]
    assert (arrays(before)[0] == arrays(ds.length_order)[0]).all()
    assert command(path).stdout.count("up to date") == 1
    assert command("--verify", path).returncode == 0
    store(tmp_path, [{"other": 1}], index=False)  # the same name with other fields
    assert command(path).returncode == 0
    assert mmapds.open(path).columns == ["other", "size"]


def test_another_file_in_the_place_of_one_that_was_measured(tmp_path):
    """The index of the first has a length of a field that the second has not."""
    path = store(tmp_path, [{"x": np.ones(3)}])
    mmapds.build(path, length="items(x)", columns={"size": "bytes()"})
    store(tmp_path, [{"y": 1}])
    assert mmapds.open(path).columns == ["y"]


# ---- tensors and batches -------------------------------------------------------------------------------------


def test_tensors(tmp_path):
    records = utterances(20)
    path = store(tmp_path, records)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ds = mmapds.open(path, decode="torch")
        for sample, record in zip(pickle.loads(pickle.dumps(ds)), records, strict=True):
            assert sample["feats"].dtype is torch.float32
            assert torch.equal(sample["feats"], torch.from_numpy(record["feats"]))
            assert sample["text"] == record["text"]
    assert ds[3]["feats"].data_ptr() == ds[3]["feats"].data_ptr()
    assert len(mmapds.concat([ds, mmapds.open(path, decode="torch")])) == 40


def test_tensors_of_other_formats(write, opened):
    path = write(np.arange(12, dtype=np.float32).tobytes(), "x.bin")
    mmapds.build(path, format="fixed", dtype="float32", shape=(2, 3))
    ds = mmapds.open(path, decode="torch")
    assert torch.equal(ds[1], torch.arange(6, 12, dtype=torch.float32).view(2, 3))
    assert len(mmapds.concat([ds, mmapds.open(path, decode="torch")])) == 4
    with pytest.raises(
        mmapds.FormatError,
        match=r"^decode = 'torch', expected 'json', 'text', 'bytes', 'tf_example' or None for .*\.jsonl.*, whose "
        r"format is 'jsonl'$",
    ):
        opened([1], decode="torch")


@pytest.mark.parametrize("dtype", sorted(EXTENDED))
def test_numbers_that_numpy_lacks(tmp_path, monkeypatch, dtype):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    tensor = torch.randn(5, 3).to(getattr(torch, dtype))
    array = tensor.float().numpy().astype(getattr(ml_dtypes, dtype))
    path = store(tmp_path, [{"x": tensor}, {"x": array}])
    for sample in mmapds.open(path):
        assert sample["x"].dtype == array.dtype
        assert (sample["x"].astype(np.float32) == tensor.float().numpy()).all()
    for sample in mmapds.open(path, decode="torch"):
        assert sample["x"].dtype is tensor.dtype
        assert torch.equal(sample["x"].float(), tensor.float())
    if dtype == "bfloat16":
        for decode in (None, "torch"):
            batch = mmapds.pad_collate(mmapds.open(path, decode=decode).__getitems__([0, 1]))
            assert torch.equal(batch["x"], torch.stack([tensor, tensor]))
    with pytest.raises(mmapds.FormatError, match=f"expected {dtype} of shape .*, found float32 of shape"):
        store(tmp_path, [{"x": tensor}, {"x": tensor.float()}])
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(mmapds.Error, match=f"^arrays of {dtype} need ml_dtypes; run: pip install ml_dtypes$"):
        mmapds.open(path)


@pytest.mark.parametrize("workers", [0, 2])
def test_padded_batches(tmp_path, workers):
    records = utterances(60, shortest=1)
    ds = mmapds.open(store(tmp_path, records, length="feats"))
    sampler = mmapds.TokenBudgetBatchSampler(ds, 150)
    loader = DataLoader(ds, batch_sampler=sampler, collate_fn=mmapds.pad_collate, num_workers=workers)
    read = list(sampler)
    sampler.set_epoch(0)  # again
    for rows, batch in zip(read, loader, strict=True):
        wanted = mmapds.pad_collate([records[i] for i in rows])
        assert torch.equal(batch["feats"], wanted["feats"])
        assert torch.equal(batch["feats_lengths"], wanted["feats_lengths"])
        assert batch["id"].tolist() == [records[i]["id"] for i in rows]
        assert batch["text"] == [records[i]["text"] for i in rows]
