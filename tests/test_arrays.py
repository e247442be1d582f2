"""The array store: what is written is read back, as views of the file; what does not fit or is damaged is refused."""

import multiprocessing
import os
import pickle
import resource
import signal
import struct
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from test_index import command
from torch.utils.data import DataLoader

import mmapds
from mmapds.arrays.infer import infer_schema
from mmapds.arrays.schema import ITEM_BYTES
from mmapds.dataset import array_decoder as decoders

DTYPES = [name for name, size in ITEM_BYTES.items() if name not in decoders.EXTENDED]


def store(tmp_path, records, schema=None, name="a.mma", **options):
    path = str(tmp_path / name)
    with mmapds.Writer(path, schema, **options) as writer:
        for record in records:
            writer.write(record)
    return path


def utterances(count, seed=0, shortest=0):
    rng = np.random.default_rng(seed)
    return [
        {
            "feats": rng.normal(size=(int(n), 8)).astype(np.float32),
            "text": f"sätze {i}",
            "id": i - 5,
            "meta": {"speaker": [i, None]},
            "raw": bytes(range(i % 7)),
            "score": i / 3,
            "clean": i % 2 == 0,
        }
        for i, n in enumerate(rng.integers(shortest, 40, count))
    ]


def equal(found, wanted):
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        if isinstance(value, np.ndarray):
            assert found[name].dtype == value.dtype
            np.testing.assert_array_equal(found[name], value)
        else:
            assert type(found[name]) is type(value)
            assert found[name] == value
    return True


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


def test_numbers_and_lengths_are_columns(tmp_path):
    records = utterances(300, shortest=1)
    ds = mmapds.open(store(tmp_path, records, length="feats"))
    lengths = [len(record["feats"]) for record in records]
    assert ds.columns == ["feats_length", "id", "score", "clean", "length"]
    assert ds.lengths.tolist() == ds.column("feats_length").tolist() == lengths
    for name in ("id", "score", "clean"):
        assert ds.column(name).tolist() == [record[name] for record in records]
    order, *_ = ds.length_order
    assert [lengths[i] for i in order] == sorted(lengths, reverse=True)
    sampler = mmapds.TokenBudgetBatchSampler(ds, 200)
    assert sorted(i for batch in sampler for i in batch) == list(range(300))


def test_the_index_can_be_built_again(tmp_path):
    path = store(tmp_path, utterances(50), length="feats")
    before = mmapds.open(path).length_order
    os.unlink(path + ".mmx")
    assert command(path, "--column", "size=bytes()").returncode == 0
    ds = mmapds.open(path)
    assert ds.columns == ["feats_length", "id", "score", "clean", "length", "size"]
    assert ds.column("size").tolist() == [ds.where(i).size for i in range(50)]
    assert (before[0] == ds.length_order[0]).all()
    assert command(path).stdout.count("up to date") == 1
    assert command("--verify", path).returncode == 0
    store(tmp_path, [{"other": 1}], index=False)  # the same name with other fields
    assert command(path).returncode == 0
    assert mmapds.open(path).columns == ["other", "size"]


def test_a_column_that_is_not_held(tmp_path):
    path = store(tmp_path, utterances(3), index=False)
    with pytest.raises(
        mmapds.ColumnError, match=r"'n': array files do not hold 'bytes\(text\)'; expected bytes\(\), it"
    ):
        mmapds.build(path, columns={"n": "bytes(text)"})
    with pytest.raises(mmapds.ColumnError, match="expected JSON"):
        mmapds.build(path, validate=True)


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


@settings(max_examples=100, deadline=None)
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


def test_a_schema_is_inferred_from_the_first_record(tmp_path):
    record = {
        "f": np.zeros((3, 4), np.float32),
        "t": torch.zeros(2, dtype=torch.int16),
        "l": [1, 2, 3],
        "w": ["a", "b"],
        "e": [],
        "d": {"x": 1},
        "i": 1,
        "n": np.uint8(3),
        "b": True,
        "r": 0.5,
        "s": "text",
        "y": b"bytes",
    }
    assert infer_schema([record]).describe() == {
        "f": ["float32", [None, 4]],
        "t": ["int16", [None]],
        "l": ["int64", [None]],
        "w": "json",
        "e": "json",
        "d": "json",
        "i": "int64",
        "n": "uint8",
        "b": "bool",
        "r": "float64",
        "s": "str",
        "y": "bytes",
    }
    (sample,) = mmapds.open(store(tmp_path, [record]))
    assert sample["l"].tolist() == [1, 2, 3]
    with pytest.raises(mmapds.FormatError, match="record 0: field 'x': found null, which does not tell"):
        store(tmp_path, [{"x": None}])


def test_no_records(tmp_path):
    for schema in (None, {}, {"x": ("int8", (None,)), "n": "int64"}):
        path = store(tmp_path, [], schema)
        assert list(mmapds.open(path)) == []
        assert command("--verify", path).returncode == 0


def test_many_records_flow_through_small_buffers(tmp_path, monkeypatch):
    monkeypatch.setattr("mmapds.writer._AT_ONCE", 1000)
    monkeypatch.setattr("mmapds.writer._NUMBERS", 7)
    monkeypatch.setattr("mmapds.storage.spool._IN_MEMORY", 100)
    monkeypatch.setattr("mmapds.formats.mma._AT_ONCE", 10)
    records = utterances(101)
    path = store(tmp_path, records)
    ds = mmapds.open(path)
    assert all(equal(found, wanted) for found, wanted in zip(ds, records, strict=True))
    assert ds.column("id").tolist() == [record["id"] for record in records]
    mmapds.build(path, columns={"size": "bytes()"})
    ds = mmapds.open(path)
    assert ds.column("size").tolist() == [ds.where(i).size for i in range(101)]
    assert command("--verify", path).returncode == 0


# ---- tensors -------------------------------------------------------------------------------------------------


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
    with pytest.raises(mmapds.Error, match="decode='torch' is for records of arrays"):
        opened([1], decode="torch")


@pytest.mark.parametrize("dtype", sorted(decoders.EXTENDED))
@pytest.mark.parametrize("installed", [True, False])
def test_numbers_that_numpy_lacks(tmp_path, monkeypatch, dtype, installed):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    tensor = torch.randn(5, 3).to(getattr(torch, dtype))
    array = tensor.float().numpy().astype(getattr(ml_dtypes, dtype))
    monkeypatch.setattr(decoders, "_has_ml_dtypes", lambda: installed)
    path = store(tmp_path, [{"x": tensor}, {"x": array}])
    for sample in mmapds.open(path):
        if installed:
            assert sample["x"].dtype == array.dtype
            assert (sample["x"].astype(np.float32) == tensor.float().numpy()).all()
        else:
            assert sample["x"].dtype is tensor.dtype
            assert torch.equal(sample["x"].float(), tensor.float())
    for sample in mmapds.open(path, decode="torch"):
        assert sample["x"].dtype is tensor.dtype
        assert torch.equal(sample["x"].float(), tensor.float())
    if dtype == "bfloat16":
        for decode in (None, "torch"):
            batch = mmapds.pad_collate(mmapds.open(path, decode=decode).__getitems__([0, 1]))
            assert torch.equal(batch["x"], torch.stack([tensor, tensor]))
    with pytest.raises(mmapds.FormatError, match=f"found float32 of shape .*, expected {dtype} of shape"):
        store(tmp_path, [{"x": tensor}, {"x": tensor.float()}])


# ---- batches -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
def test_padded_batches(tmp_path, workers):
    records = utterances(60, shortest=1)
    ds = mmapds.open(store(tmp_path, records, length="feats"))
    sampler = mmapds.TokenBudgetBatchSampler(ds, 150)
    loader = DataLoader(ds, batch_sampler=sampler, collate_fn=mmapds.pad_collate, num_workers=workers)
    for rows, batch in zip(list(sampler), loader, strict=True):
        wanted = mmapds.pad_collate([records[i] for i in rows])
        assert torch.equal(batch["feats"], wanted["feats"])
        assert torch.equal(batch["feats_lengths"], wanted["feats_lengths"])
        assert batch["id"].tolist() == [records[i]["id"] for i in rows]
        assert batch["text"] == [records[i]["text"] for i in rows]


# ---- several writers -----------------------------------------------------------------------------------------


def write_shard(path, seed):
    with mmapds.Writer(path, length="feats", index=False) as writer:
        for record in utterances(30, seed):
            writer.write(record)


def test_parallel_writers_and_one_index(tmp_path):
    paths = [str(tmp_path / f"shard-{n}.mma") for n in range(3)]
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=write_shard, args=each) for each in zip(paths, range(3), strict=True)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert sorted(os.listdir(tmp_path)) == [os.path.basename(path) for path in paths]
    mmapds.build(str(tmp_path / "shard-*.mma"), out=tmp_path / "all.mmx")
    ds = mmapds.open(tmp_path / "all.mmx")
    records = [record for seed in range(3) for record in utterances(30, seed)]
    assert all(equal(found, wanted) for found, wanted in zip(ds, records, strict=True))
    assert ds.lengths.tolist() == [len(record["feats"]) for record in records]
    assert ds.length_order is not None
    assert command("--verify", str(tmp_path / "all.mmx")).returncode == 0
    other = store(tmp_path, [{"x": 1}], name="other.mma")
    with pytest.raises(mmapds.FormatError, match=r"other.mma: has schema .*, .*shard-0.mma .*; expected the same"):
        mmapds.build([paths[0], other], out=tmp_path / "b.mmx")


# ---- what does not fit ---------------------------------------------------------------------------------------


FIXED = {"x": ("float32", (2, 3)), "n": "int8", "t": "str"}
GOOD = {"x": np.ones((2, 3), np.float32), "n": 1, "t": "a"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"x": np.ones((4, 3), np.float32)},
            r"field 'x': found float32 of shape \(4, 3\), expected float32 of shape \(2, 3\)",
        ),
        ({"x": np.ones((2, 3))}, r"field 'x': found float64 of shape \(2, 3\), expected float32 of shape \(2, 3\)"),
        (
            {"x": np.ones(6, np.float32)},
            r"found float32 of shape \(6\), expected float32 of shape \(2, 3\)|shape \(6,\)",
        ),
        ({"x": np.array([[{}] * 3] * 2, object)}, "field 'x': found object of shape"),
        ({"x": [[1, 2], [3]]}, r"field 'x': found list \[\[1, 2\], \[3\]\], expected float32"),
        ({"x": ["a"]}, "field 'x': found list"),
        ({"x": [1, 2]}, r"field 'x': found int64 of shape \(2,\)|found float32 of shape"),
        ({"x": None}, "field 'x': found null, expected float32"),
        ({"n": float("nan")}, "field 'n': found float nan, expected int8"),
        ({"n": 1.0}, "field 'n': found float 1.0, expected int8"),
        ({"n": 128}, "field 'n': found int 128, expected int8"),
        ({"n": "1"}, "field 'n': found str '1', expected int8"),
        ({"t": b"a"}, "field 't': found bytes, expected str"),
        ({"t": "\ud800"}, "field 't': found text that is not Unicode"),
        ({"y": 1}, "has a field 'y'; expected 'x', 'n', 't'"),
    ],
)
def test_a_record_that_does_not_fit_is_left_out(tmp_path, change, message):
    path = str(tmp_path / "a.mma")
    with mmapds.Writer(path, FIXED) as writer:
        writer.write(GOOD)
        with pytest.raises(mmapds.FormatError, match=message) as refused:
            writer.write(GOOD | change)
        assert str(refused.value).startswith(f"{path}: record 1: ")
        with pytest.raises(mmapds.FormatError, match="record 1: lacks field 't'; expected 'x', 'n', 't'"):
            writer.write({name: GOOD[name] for name in ("x", "n")})
        with pytest.raises(mmapds.FormatError, match="record 1: found int 3, expected a dict"):
            writer.write(3)
        writer.write(GOOD | {"n": 2})
    assert mmapds.open(path).column("n").tolist() == [1, 2]


@pytest.mark.parametrize(
    ("dtype", "value", "fits"),
    [
        ("int8", [1, 127], True),
        ("int8", [128], False),
        ("int64", [1.5], False),
        ("int64", [float("nan")], False),
        ("float32", [1, 2], True),
        ("uint16", [True], True),
        ("bool", [2], False),
        ("uint8", [-1], False),
        ("int64", [], True),
        ("int64", [2**70], False),
    ],
)
def test_lists_lose_nothing_but_digits(tmp_path, dtype, value, fits):
    schema = {"x": (dtype, (None,))}
    if fits:
        (sample,) = mmapds.open(store(tmp_path, [{"x": value}], schema))
        assert sample["x"].dtype == dtype
        assert sample["x"].tolist() == value
    else:
        with pytest.raises(mmapds.FormatError, match=f"expected {dtype}"):
            store(tmp_path, [{"x": value}], schema)


@pytest.mark.parametrize(
    ("schema", "options", "message"),
    [
        ({"x": "no"}, {}, "field 'x' has type 'no'; expected 'bytes', 'str', 'json'"),
        ({"x": ("no", (1,))}, {}, "field 'x' has dtype 'no'"),
        ({"x": ("object", (1,))}, {}, "field 'x' has dtype 'object'"),
        ({"x": "complex64"}, {}, "has type 'complex64'"),
        ({"x": ("int8", (-1,))}, {}, "expected up to 8 axes of 0 to"),
        ({"x": ("int8", (1,) * 9)}, {}, "expected up to 8 axes"),
        ({"x": ("int8", ("a",))}, {}, "expected a type or"),
        ({"x": 3}, {}, "expected a type or"),
        ({"": "str"}, {}, "is no name of a field"),
        ({"a(b)": "str"}, {}, "is no name of a field"),
        ({"a": ("int8", (None,)), "a_length": "int8"}, {}, "two fields would fill the column 'a_length'"),
        ({"length": "float32"}, {}, "lengths are integers"),
        ({"a": "str"}, {"length": "a"}, "length = 'a', expected an integer field"),
        ({"a": "str"}, {"length": "b"}, "length = 'b', expected an integer field"),
        ({"a": "int8", "length": "int8"}, {"length": "a"}, "but there is a field 'length' too"),
        ([("a", "str")], {}, "expected a dict of field name to type"),
    ],
)
def test_schemas_that_are_refused(tmp_path, schema, options, message):
    with pytest.raises(mmapds.FormatError, match=message):
        mmapds.Writer(tmp_path / "a.mma", schema, **options)
    assert os.listdir(tmp_path) == []


def test_lengths_are_not_negative(tmp_path):
    with (
        mmapds.Writer(tmp_path / "a.mma", {"n": "int64"}, length="n") as writer,
        pytest.raises(mmapds.FormatError, match="record 0: field 'n': found -1, expected a length, 0 or more"),
    ):
        writer.write({"n": -1})
    assert len(mmapds.open(tmp_path / "a.mma")) == 0


# ---- writers that do not finish ------------------------------------------------------------------------------


def test_an_error_leaves_nothing(tmp_path):
    path = store(tmp_path, [{"n": 1}])

    def broken():
        yield {"n": 2}
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        store(tmp_path, broken())
    assert sorted(os.listdir(tmp_path)) == ["a.mma", "a.mma.mmx"]
    assert mmapds.open(path)[0] == {"n": 1}


def test_writing_after_the_end(tmp_path):
    writer = mmapds.Writer(tmp_path / "a.mma")
    writer.write({"n": 1})
    writer.close()
    writer.close()
    with pytest.raises(mmapds.Error, match=r"a.mma: the writer is closed"):
        writer.write({"n": 1})
    assert len(mmapds.open(tmp_path / "a.mma")) == 1
    with pytest.raises(mmapds.Error, match=r"expected the name of a file that ends in \.mma"):
        mmapds.Writer(tmp_path / "a.bin")
    with pytest.raises(mmapds.Error, match=r"cannot write the array file here \(no such file or directory\)"):
        mmapds.Writer(tmp_path / "no" / "a.mma")


def test_a_killed_writer_leaves_nothing_that_opens(tmp_path):
    path = str(tmp_path / "a.mma")
    code = f"""
import os, signal, mmapds, numpy as np
writer = mmapds.Writer({path!r})
for i in range(20):
    writer.write({{"x": np.full(100_000, i)}})
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGKILL
    (left,) = os.listdir(tmp_path)
    assert left.endswith(".tmp")
    with pytest.raises(mmapds.SourceError, match="no such file"):
        mmapds.open(path, build=True)
    with pytest.raises(mmapds.FormatError, match="NOT AN ARRAY FILE: it was not finished"):
        mmapds.build(tmp_path / left, format="arrays", truncated="drop")


def test_a_full_disk(tmp_path):
    path = str(tmp_path / "a.mma")
    code = f"""
import os, resource, mmapds, numpy as np
resource.setrlimit(resource.RLIMIT_FSIZE, (3_000_000, 3_000_000))
writer = mmapds.Writer({path!r})
try:
    for i in range(20):
        writer.write({{"x": np.full(100_000, i)}})
    writer.close()
except mmapds.Error as error:
    print(error)
for use in (lambda: writer.write({{"x": np.full(1, 0)}}), writer.close):
    try:
        use()
    except mmapds.Error as error:
        print(error)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    first, second, third = ran.stdout.splitlines()
    refused = "cannot write the array file (file too large); nothing was changed; make room, or give another place"
    assert first == f"{path}: {refused}"
    assert second == f"{path}: the writer is closed: an earlier write failed"
    assert third.startswith(f"{path}: nothing was written")
    assert os.listdir(tmp_path) == []
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 3_000_000


# ---- damaged files -------------------------------------------------------------------------------------------


def patched(path, at, data):
    """Change bytes of a file, and keep its time, so that its index does not know."""
    found = os.stat(path)
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(data)
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))


@pytest.mark.parametrize(
    ("word", "value", "message"),
    [
        (0, 2**64 - 1, "its size does not fit its fields"),
        (0, 0, "field 'x' does not fit the record's"),
        (0, 33, "field 't' does not fit"),
        (1, 6, "field 'x' does not fit"),
        (1, 4, "its size does not fit its fields"),
        (1, 2**62, "field 'x' does not fit"),
        (1, 2**63, "field 'x' does not fit"),
        (1, 2**64 - 1, "field 'x' does not fit"),
        (2, 2**64 - 1, "field 't' does not fit"),
        (2, 2**63 - 1, "field 't' does not fit"),
        (3, 2, "field 'j' does not fit|field 'j' is damaged|its size"),
    ],
)
def test_a_damaged_record_is_named(tmp_path, word, value, message):
    records = [{"x": np.ones((5, 3)), "t": "text", "j": {"a": 1}}] * 3
    path = store(tmp_path, records)
    ds = mmapds.open(path)
    at = ds.where(1).offset
    patched(path, at + 8 * word, value.to_bytes(8, "little"))
    for decode in (None, "torch"):
        ds = mmapds.open(path, decode=decode)
        assert ds[0]["t"] == ds[2]["t"] == "text"
        for read in (
            lambda ds=ds: ds[1],
            lambda ds=ds: list(ds.__getitems__([0, 1])),
            lambda ds=ds: mmapds.pad_collate(ds.__getitems__([0, 1])),
        ):
            with pytest.raises(mmapds.FormatError, match=message) as damaged:
                read()
            assert str(damaged.value).startswith(f"{path}: record 1 (byte {at}): ")


def test_damaged_text(tmp_path):
    path = store(tmp_path, [{"t": "text", "j": {"a": 1}}])
    at = mmapds.open(path).where(0).offset
    patched(path, at + 24, b"\xff")
    with pytest.raises(mmapds.FormatError, match=r"record 0 \(byte \d+\): field 't' is damaged: 'utf-8' codec"):
        mmapds.open(path)[0]
    patched(path, at + 24, b"text?")
    with pytest.raises(mmapds.FormatError, match=r"field 'j' is damaged: unexpected character"):
        mmapds.open(path)[0]


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_damage_anywhere_gives_errors_at_most(tmp_path_factory, data):
    path = store(tmp_path_factory.mktemp("damage"), utterances(4), length="feats")
    size = os.path.getsize(path)
    at = data.draw(st.integers(0, size - 8) | st.integers(0, 64) | st.integers(size - 600, size - 8))
    patched(path, at, data.draw(st.binary(min_size=1, max_size=8) | st.just(struct.pack("<q", -1))))
    for work in (
        lambda: list(mmapds.open(path)),
        lambda: mmapds.build(path, force=True),
        lambda: list(mmapds.open(path)),
    ):
        try:
            work()
        except mmapds.Error as error:
            assert path in str(error)  # noqa: PT017 - whether it raises depends on the damage


def test_damage_outside_the_records_is_found_when_indexing(tmp_path):
    path = store(tmp_path, utterances(20))
    good = Path(path).read_bytes()

    def build(at, data):
        with open(path, "wb") as file:
            file.write(good[:at] + data + good[at + len(data) :])
        return mmapds.build(path, force=True)

    for at, data, message in (
        (0, b"x", "NOT AN ARRAY FILE: it begins with"),
        (8, b"\2", "VERSION: file is format 2, this mmapds reads 1; upgrade mmapds"),
        (16, b"\1", "DAMAGED: its header and metadata do not match their checksum"),
        (40, b"\1", "DAMAGED: it has"),
        (64, b"\xff" * 8, "DAMAGED: its schema does not match its checksum"),
        (90, b"\xff", "DAMAGED: its schema does not match its checksum"),
        (len(good) - 3, b"x", "DAMAGED: its header and metadata do not match"),
    ):
        with pytest.raises(mmapds.FormatError, match=message):
            build(at, data)
    offsets = good.rindex(b'"offsets"')
    where = int(good[offsets:].split(b'"offset": ')[1].split(b",")[0])
    with pytest.raises(mmapds.FormatError, match="DAMAGED: section 'offsets' does not match its checksum"):
        build(where + 4, b"\7")


def test_verify_reads_the_records(tmp_path):
    records = [{"x": np.zeros(100_000)}, {"x": np.ones(100_000)}]  # the middle is in no fingerprint
    path = store(tmp_path, records)
    assert command("--verify", path).returncode == 0
    patched(path, os.path.getsize(path) // 2, b"\1")
    assert (
        "DAMAGED: section 'records' does not match its checksum; write or copy it again"
        in command("--verify", path).stderr
    )


def test_a_file_that_is_cut_short(tmp_path):
    records = utterances(20)
    path = store(tmp_path, records, length="feats")
    ds = mmapds.open(path)
    places = [ds.where(i) for i in range(20)]
    good = Path(path).read_bytes()
    footer = places[-1].offset + places[-1].size
    for size, whole in ((places[12].offset + 8, 12), (places[12].offset, 12), (footer, 20), (len(good) - 1, 20)):
        with open(path, "wb") as file:
            file.write(good[:size])
        if os.path.exists(path + ".mmx"):
            with pytest.raises(mmapds.StaleIndexError):
                mmapds.open(path)
            os.unlink(path + ".mmx")
        what = (
            "the end, after all records, is missing"
            if whole == 20
            else f"record {whole} \\(byte {places[12].offset}\\)"
        )
        with pytest.raises(mmapds.FormatError, match=f"{what}.*the file has {size} bytes.*--truncated drop"):
            mmapds.build(path)
        ran = command(path, "--truncated", "drop", "--column", "size=bytes()")
        assert ran.returncode == 0, ran.stderr
        assert (f"{20 - whole} records left out" in ran.stdout) == (whole < 20)
        ds = mmapds.open(path)
        assert all(equal(found, wanted) for found, wanted in zip(ds, records[:whole], strict=True))
        assert ds.lengths.tolist() == [len(record["feats"]) for record in records[:whole]]
        assert ds.column("id").tolist() == [record["id"] for record in records[:whole]]
        assert ds.column("score").tolist() == [record["score"] for record in records[:whole]]
        assert ds.column("size").tolist() == [place.size for place in places[:whole]]
        assert command("--verify", path).returncode == 0
    with open(path, "wb") as file:
        file.write(good[:70])
    with pytest.raises(mmapds.FormatError, match=r"NOT AN ARRAY FILE|its schema does not match"):
        mmapds.build(path, truncated="drop")


def test_what_is_no_array_file(write):
    for content in (b"", b"abc", bytes(200), b"\x89MMA\r\n\x1a\n" + bytes(200)):
        with pytest.raises(mmapds.FormatError, match=r"x.mma: (NOT AN ARRAY FILE|VERSION)"):
            mmapds.build(write(content, "x.mma"))


def test_more_columns_than_json_has(tmp_path):
    names = [f"c{i}" for i in range(100)]
    path = store(tmp_path, [dict.fromkeys(names, i) for i in range(3)], length="c99")
    assert mmapds.open(path).column("c98").tolist() == [0, 1, 2]
    assert command(path, "--column", "size=bytes()").returncode == 0
    assert command("--verify", path).returncode == 0


@pytest.mark.parametrize(
    ("schema", "value", "message"),
    [
        (("float32", (None,)), torch.eye(3).to_sparse(), "found float32 of shape"),
        (("float32", (None,)), torch.empty(3, device="meta"), "found float32 of shape"),
        (("float16", (None,)), [1e9], r"found list \[1000000000.0\], expected float16"),
        (("float32", (None,)), [1.0, 1e300], r"found list \[1.0, 1e\+300\], expected float32"),
        ("json", {"x": [1.0, float("nan")], "y": None}, "found a number that is not finite, which JSON has not"),
        ("json", np.array([np.inf, 1], np.float32), "found a number that is not finite"),
    ],
)
def test_a_value_that_does_not_fit_costs_nothing_else(tmp_path, schema, value, message):
    good = {"json": {"x": None}}.get(schema, [1.0])
    with mmapds.Writer(tmp_path / "a.mma", {"v": schema}) as writer:
        writer.write({"v": good})
        with pytest.raises(mmapds.FormatError, match=f"a.mma: record 1: field 'v': {message}"):
            writer.write({"v": value})
        writer.write({"v": good})
    assert [sample["v"] if schema == "json" else sample["v"].tolist() for sample in mmapds.open(writer.path)] == [
        good
    ] * 2


class Broken(dict):
    """A record that fails while it is looked at."""

    def __getitem__(self, name):
        if name == "y":
            raise RuntimeError("broken")
        return super().__getitem__(name)


def test_a_record_that_fails_is_left_out(tmp_path):
    with mmapds.Writer(tmp_path / "a.mma", {"x": "int8", "y": "bytes"}) as writer:
        with pytest.raises(RuntimeError, match="broken"):
            writer.write(Broken(x=1, y=b""))
        writer.write({"x": 2, "y": memoryview(b"abcdef")[::2]})
        writer.write({"x": 3, "y": memoryview(np.empty((0, 3)))})
    assert list(mmapds.open(writer.path)) == [{"x": 2, "y": b"ace"}, {"x": 3, "y": b""}]


def test_tensors_that_are_seen_through_a_conjugate(tmp_path):
    tensor = torch.tensor([1 + 2j, 3 - 1j], dtype=torch.complex64)
    path = store(tmp_path, [{"c": tensor.conj(), "n": tensor.conj().imag}])
    assert mmapds.open(path)[0]["c"].tolist() == [1 - 2j, 3 + 1j]
    assert mmapds.open(path)[0]["n"].tolist() == [-2, 1]


def test_single_numbers_of_odd_types_are_inferred(tmp_path):
    record = {"b": torch.tensor(1.5, dtype=torch.bfloat16), "c": np.complex64(1j)}
    assert infer_schema([record]).describe() == {"b": ["bfloat16", []], "c": ["complex64", []]}
    assert mmapds.open(store(tmp_path, [record]))[0]["c"] == 1j


@pytest.mark.parametrize("count", [3, 1 << 16, (1 << 16) + 1])
def test_what_is_left_of_a_file_is_verified(tmp_path, count):
    """Also where nothing is left, or nothing in the last piece; and a length that could be negative is none."""
    schema = {"n": "int64", "f": "float64", "y": ("float32", (None,))}
    record = np.ones(20, np.float32)
    path = store(tmp_path, [{"n": i, "f": 0.5, "y": record} for i in range(count)], schema, length="n", index=False)
    whole = Path(path).read_bytes()
    first = whole.index(record.tobytes()) - 64
    for kept in (0, count - 1, count):
        Path(path).write_bytes(whole[: first + 192 * kept + 10])
        ran = command(path, "--truncated", "drop", "--force")
        assert ran.returncode == 0, ran.stderr
        left_out = f"{count - kept:,} records left out, the last 10 bytes"
        assert (left_out in ran.stdout) == (kept < count)
        assert command("--verify", path).stderr == ""
        assert mmapds.open(path).lengths.tolist() == list(range(kept))
        assert mmapds.open(path).column("n").dtype == np.uint32


def test_a_writer_that_goes_elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    with mmapds.Writer("a.mma") as writer:
        writer.write({"x": 1})
        monkeypatch.chdir("in")
    assert mmapds.open(tmp_path / "a.mma")[0] == {"x": 1}
    assert sorted(os.listdir(tmp_path)) == ["a.mma", "a.mma.mmx", "in"]


def test_a_writer_that_is_forgotten(tmp_path):
    def forget():
        writer = mmapds.Writer(tmp_path / "a.mma")
        writer.write({"x": 1})

    with pytest.warns(ResourceWarning, match="a.mma: a writer was not closed; nothing was written"):
        forget()
    assert os.listdir(tmp_path) == []


def test_a_column_that_the_file_has_is_not_replaced(tmp_path):
    path = store(tmp_path, [{"x": 1}])
    with pytest.raises(
        mmapds.ColumnError, match="its sources have a column 'x' themselves; give the new one another name"
    ):
        mmapds.add_column(path, "x", [3])
    mmapds.add_column(path, "y", [3])
    assert command("--verify", path).returncode == 0


def test_another_file_in_the_place_of_one_that_was_measured(tmp_path):
    """The index of the first has a length of a field that the second has not."""
    path = store(tmp_path, [{"x": np.ones(3)}])
    mmapds.build(path, length="items(x)", columns={"size": "bytes()"})
    store(tmp_path, [{"y": 1}])
    assert mmapds.open(path).columns == ["y"]


def test_what_killed_writers_leave_is_no_source(tmp_path):
    store(tmp_path, [{"x": 1}])
    (tmp_path / "a.mma.0123abcd.tmp").write_bytes(b"unfinished")
    assert len(mmapds.open(str(tmp_path / "a*"), build=True)) == 1
    assert len(mmapds.open(str(tmp_path / "*.mma*"))) == 1
