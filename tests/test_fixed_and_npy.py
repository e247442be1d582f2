"""Records of one size and .npy files: arrays that share memory with their file, and what is refused."""

import os
import pickle
from functools import partial

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import mmapds
from mmapds.dataset.decode import takes_view, vector
from tests.support.commands import command


def save(tmp_path, name, array):
    np.save(tmp_path / name, array)
    return str(tmp_path / name)


def test_records_of_one_size(write):
    path = write(bytes(range(250)), "tokens.bin")
    assert command(path, "--format", "fixed", "--record-bytes", "10").returncode == 0
    ds = mmapds.open(path)
    assert list(ds) == [bytes(range(i, i + 10)) for i in range(0, 250, 10)]
    assert ds.where(3) == (path, 30, 10)
    assert os.path.getsize(path + ".mmx") < 1000
    assert ds.__getitems__([24, 0]) == [bytes(range(240, 250)), bytes(range(10))]
    assert command(path).stdout.count("up to date") == 1
    assert command("--verify", path).returncode == 0
    assert "25 records, 250 bytes, 10.0 bytes a record (10 to 10)" in command("--info", path).stdout


@pytest.mark.parametrize("dtype", ["uint16", "<f4", ">i8", "S3", "bool"])
@pytest.mark.parametrize("shape", [(), (4,), (2, 3)])
def test_arrays_of_one_shape_share_memory_with_the_file(write, dtype, shape):
    rng = np.random.default_rng(0)
    array = rng.integers(0, 2, (50, *shape)).astype(dtype)
    path = write(array.tobytes(), "x.bin")
    mmapds.build(path, format="fixed", dtype=dtype, shape=shape)
    ds = mmapds.open(path)
    assert len(ds) == 50
    for i, record in enumerate(ds):
        assert record.dtype == array.dtype
        assert record.shape == shape
        assert (record == array[i]).all()
        assert not record.flags.writeable
        assert not record.flags.owndata
    assert all((one == array[i]).all() for i, one in zip([7, 3], ds.__getitems__([7, 3]), strict=True))
    assert ds.raw(5) == array[5:6].tobytes()
    again = pickle.loads(pickle.dumps(ds[10:]))
    assert (again[0] == array[10]).all()
    assert mmapds.open(path, decode="bytes")[5] == array[5:6].tobytes()


def test_a_record_keeps_its_file_alive(write):
    path = write(np.arange(100, dtype=np.int64).tobytes(), "x.bin")
    mmapds.build(path, format="fixed", dtype="int64", shape=10)
    record = mmapds.open(path)[9]
    os.unlink(path)
    assert record.tolist() == list(range(90, 100))


@pytest.mark.parametrize("shape", [(30,), (30, 5), (30, 2, 3), (0, 4)])
@pytest.mark.parametrize("dtype", ["float32", "int8", ">u2", "complex64"])
def test_npy(tmp_path, shape, dtype):
    array = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    path = save(tmp_path, "x.npy", array)
    mmapds.build(path)
    ds = mmapds.open(path)
    assert len(ds) == shape[0]
    assert all((record == wanted).all() and record.shape == shape[1:] for record, wanted in zip(ds, array, strict=True))
    assert command("--verify", path).returncode == 0


def test_npy_shards_in_one_index_feed_a_loader(tmp_path):
    arrays = [np.random.default_rng(i).normal(size=(i + 3, 4)).astype(np.float32) for i in range(4)]
    paths = [save(tmp_path, f"{i}.npy", array) for i, array in enumerate(arrays)]
    mmapds.build(paths, out=tmp_path / "all.mmx", length="bytes()")
    ds = mmapds.open(tmp_path / "all.mmx")
    assert ds.lengths.tolist() == [16] * len(ds)
    whole = np.concatenate(arrays)

    def stack(samples):
        return torch.from_numpy(np.stack(samples))

    loader = DataLoader(ds, batch_size=5, num_workers=2, collate_fn=stack)
    assert torch.equal(torch.cat(list(loader)), torch.from_numpy(whole))
    other = save(tmp_path, "other.npy", np.zeros((2, 5), np.float32))
    with pytest.raises(mmapds.FormatError, match=r"other.npy: records are float32 of shape \(5,\), those of .*0.npy"):
        mmapds.build([paths[0], other], out=tmp_path / "b.mmx")


def test_a_source_that_is_cut_short(write, tmp_path):
    path = write(bytes(25), "x.bin")
    with pytest.raises(mmapds.FormatError) as short:
        mmapds.build(path, format="fixed", record_bytes=10)
    assert str(short.value) == (
        f"{path}: record 2 (byte 20) has 5 bytes, expected 10; leave it out with --truncated drop"
    )
    mmapds.build(path, format="fixed", record_bytes=10, truncated="drop")
    assert len(mmapds.open(path)) == 2
    array = save(tmp_path, "y.npy", np.zeros((10, 4)))
    with open(array, "r+b") as file:
        file.truncate(os.path.getsize(array) - 64)
    with pytest.raises(mmapds.FormatError, match=r"y\.npy: has 8 records, its header says 10"):
        mmapds.build(array)
    mmapds.build(array, truncated="drop")
    assert len(mmapds.open(array)) == 8


def test_an_index_remembers_how_its_source_is_framed(write):
    path = write(bytes(20), "x.bin")
    mmapds.build(path, format="fixed", record_bytes=10)
    write(bytes(40), "x.bin")
    assert "run: python -m mmapds.index" in command(path, "--verify").stderr
    assert command(path).returncode == 0
    assert len(mmapds.open(path)) == 4
    assert command(path, "--record-bytes", "20").returncode == 0
    assert len(mmapds.open(path)) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"format": "fixed"}, "format 'fixed' needs record_bytes of 1 or more, or dtype and shape"),
        ({"format": "fixed", "record_bytes": 0}, "needs record_bytes of 1 or more"),
        ({"format": "fixed", "record_bytes": "ten"}, "needs record_bytes of 1 or more"),
        ({"format": "fixed", "shape": (3,)}, "or dtype and shape"),
        ({"format": "fixed", "dtype": "no", "shape": 3}, "dtype 'no' is unknown"),
        ({"format": "fixed", "dtype": "O"}, "is not one of plain numbers"),
        ({"format": "fixed", "dtype": "i4", "shape": "2,x"}, "shape = '2,x', expected sizes of 1 or more"),
        ({"format": "fixed", "dtype": "i4", "shape": [0]}, "expected sizes of 1 or more"),
        ({"format": "fixed", "dtype": "i4", "shape": 2, "record_bytes": 7}, "record_bytes = 7, but <i4 of shape"),
        ({"format": "fixed", "record_bytes": 2, "truncated": "x"}, "truncated = 'x', expected 'error' or 'drop'"),
        ({"format": "fixed", "record_bytes": 2, "prefix": "x"}, "format 'fixed' has no option 'prefix'"),
        ({"record_bytes": 2}, "x.bin: neither its name nor its first bytes say what it is; choose with --format"),
        ({"format": "jsonl", "record_bytes": 2}, "format 'jsonl' has no option 'record_bytes'; its options: none"),
        (
            {"format": "fixed", "record_bytes": 2, "length": "n"},
            "'n' looks for a field, and these records",
        ),
        ({"format": "fixed", "record_bytes": 2, "validate": True}, "expected JSON, these records have a binary format"),
        ({"format": "npy"}, "x.bin: not an .npy file"),
    ],
)
def test_what_is_refused(write, options, message):
    with pytest.raises((mmapds.FormatError, mmapds.ColumnError), match=message):
        mmapds.build(write(bytes(20), "x.bin"), **options)


def test_npy_files_that_have_no_records(tmp_path):
    for array, message in (
        (np.float64(1), "one number, expected an array of one axis or more"),
        (np.asfortranarray(np.ones((3, 4))), "in Fortran order"),
        (np.array([{}, 1], object), "is not one of plain numbers"),
    ):
        with pytest.raises(mmapds.FormatError, match=message):
            mmapds.build(save(tmp_path, "x.npy", array), force=True)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("{'descr': '<f4' \n", "not an .npy file"),
        ("  {'descr': '<f4'}\n", "not an .npy file"),
        ("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}", r"x.npy: dtype dtype\('O'\) is not one of plain"),
        (
            "{'descr': '<f4', 'fortran_order': False, 'shape': (5, 0)}",
            r"x.npy: records of float32 and shape \(0,\) have 0",
        ),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (1,)}", "has 4 records, its header says 1$"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (9,)}", "header says 9; if it was cut short, leave out"),
    ],
)
def test_odd_headers_of_npy(write, header, message):
    text = header.ljust(118).encode()
    with pytest.raises(mmapds.FormatError, match=message):
        mmapds.build(write(b"\x93NUMPY\x01\0" + len(text).to_bytes(2, "little") + text + bytes(16), "x.npy"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "(2,"}, r"dtype '\(2,' is unknown"),
        ({"dtype": "i4,,i4"}, "is unknown|is not one of plain"),
        ({"dtype": "\ud800"}, "is unknown"),
        ({"dtype": None}, "dtype None is unknown"),
        ({"dtype": "u1", "shape": [2**40, 2**40]}, "expected 1 or more, and up to 32 axes"),
        ({"dtype": "u1", "shape": [1] * 33}, "expected 1 or more, and up to 32 axes"),
        ({"dtype": "u1", "shape": [2.7]}, "expected sizes of 1 or more"),
    ],
)
def test_odd_types_of_arrays(write, options, message):
    with pytest.raises(mmapds.FormatError, match=message):
        mmapds.build(write(bytes(64), "x.bin"), format="fixed", truncated="drop", **options)


@pytest.mark.parametrize("dtype", [">f4", "S4"])
def test_types_that_torch_has_not(write, dtype):
    path = write(bytes(64), "x.bin")
    mmapds.build(path, format="fixed", dtype=dtype)
    assert len(mmapds.open(path)) == 16
    with pytest.raises(mmapds.Error, match="decode = 'torch': torch has no dtype for"):
        mmapds.open(path, decode="torch")


def test_records_that_are_no_array(write):
    """An index may be damaged where nobody looks; mmapds's own decoders say where."""
    path = write(bytes(10), "x.bin")
    mmapds.build(path, format="fixed", record_bytes=5)
    with pytest.raises(ValueError, match="buffer size") as told:
        mmapds.open(path, decode=takes_view(lambda record: vector(record, dtype=np.dtype("u2"))))[1]
    assert type(told.value) is ValueError
    with pytest.raises(mmapds.DecodeError, match=r"x.bin: record 1 \(byte 5\): not an array of that type: buffer size"):
        mmapds.open(path, decode=partial(vector, dtype=np.dtype("u2")))[1]


def test_decoders_are_shown_as_one_would_write_them(write):
    path = write(bytes(8), "x.bin")
    mmapds.build(path, format="fixed", dtype="uint16", shape=2)
    assert repr(mmapds.open(path)).endswith("2 records, decode=array(dtype=uint16, shape=(2,))>")
