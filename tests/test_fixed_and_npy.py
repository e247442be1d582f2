"""Records of one size and .npy files: arrays that share memory with their file, and what is refused."""

import os
import pickle
import sys
from functools import partial

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import mmapds
from mmapds.dataset.decode import RecordArray, TensorDecoder, takes_view
from tests.support.commands import command, run


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
    assert "25 records, 250 bytes, 10.0 bytes a record (10 to 10); verified" in command("--verify", path).stdout


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
    with pytest.raises(
        mmapds.FormatError,
        match=r"other.npy: shape: expected \(4,\), as in .*0.npy, found \(5,\)",
    ):
        mmapds.build([paths[0], other], out=tmp_path / "b.mmx")


def test_a_source_that_is_cut_short(write, tmp_path):
    path = write(bytes(25), "x.bin")
    with pytest.raises(mmapds.FormatError) as short:
        mmapds.build(path, format="fixed", record_bytes=10)
    assert str(short.value) == (
        f"{path}: record 2 (byte 20): expected 10 bytes, found 5; leave it out with truncated='drop'"
    )
    mmapds.build(path, format="fixed", record_bytes=10, truncated="drop")
    assert len(mmapds.open(path)) == 2
    array = save(tmp_path, "y.npy", np.zeros((10, 4)))
    with open(array, "r+b") as file:
        file.truncate(os.path.getsize(array) - 64)
    with pytest.raises(mmapds.FormatError, match=r"y\.npy: expected 10 records, as its header says, found 8"):
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
        ({"format": "fixed"}, "record_bytes = None, expected an integer of 1 to 2.*63 - 1, or dtype and shape"),
        ({"format": "fixed", "record_bytes": 0}, "record_bytes = 0, expected an integer of 1 to 2.*63 - 1"),
        ({"format": "fixed", "record_bytes": "ten"}, "record_bytes = 'ten', expected an integer of 1 to 2.*63 - 1"),
        (
            {"format": "fixed", "shape": (3,)},
            "record_bytes = None, expected an integer of .*, or dtype and shape",
        ),
        ({"format": "fixed", "dtype": "no", "shape": 3}, "dtype = 'no', expected a name that NumPy knows"),
        ({"format": "fixed", "dtype": "O"}, "dtype = 'O', expected plain numbers"),
        ({"format": "fixed", "dtype": "i4", "shape": "2,x"}, "shape = '2,x', expected sizes of 1 or more"),
        ({"format": "fixed", "dtype": "i4", "shape": [0]}, "expected sizes of 1 or more"),
        (
            {"format": "fixed", "dtype": "i4", "shape": 2, "record_bytes": 7},
            r"record_bytes = 7, expected 8, the bytes of <i4 of shape \(2,\)",
        ),
        ({"format": "fixed", "record_bytes": 2, "truncated": "x"}, "truncated = 'x', expected 'error' or 'drop'"),
        (
            {"format": "fixed", "record_bytes": 2, "prefix": "x"},
            "prefix = 'x', expected options among record_bytes, dtype",
        ),
        ({"record_bytes": 2}, "x.bin: format not recognised by its name or its first bytes; choose one with format="),
        ({"format": "jsonl", "record_bytes": 2}, "record_bytes = 2, expected no options for format 'jsonl'"),
        (
            {"format": "fixed", "record_bytes": 2, "length": "n"},
            r"column 'length': expected bytes\(\) for records that are not JSON, found 'n'",
        ),
        (
            {"format": "fixed", "record_bytes": 2, "validate": True},
            "validate = True, expected False for records of a binary",
        ),
        ({"format": "npy"}, "x.bin: not an .npy file"),
    ],
)
def test_what_is_refused(write, options, message):
    with pytest.raises((mmapds.FormatError, mmapds.ColumnError), match=message):
        mmapds.build(write(bytes(20), "x.bin"), **options)


def test_npy_files_that_have_no_records(tmp_path):
    for array, message in (
        (np.float64(1), "expected an array in C order, of one axis or more, found one number"),
        (np.asfortranarray(np.ones((3, 4))), "expected an array in C order, of one axis or more, found Fortran order"),
        (np.array([{}, 1], object), r"x\.npy: dtype = dtype\('O'\), expected plain numbers"),
    ):
        with pytest.raises(mmapds.FormatError, match=message):
            mmapds.build(save(tmp_path, "x.npy", array), force=True)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("{'descr': '<f4' \n", "not an .npy file"),
        ("  {'descr': '<f4'}\n", "not an .npy file"),
        ("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}", "x.npy: dtype = .*, expected plain numbers"),
        (
            "{'descr': '<f4', 'fortran_order': False, 'shape': (5, 0)}",
            r"x.npy: shape = \(0,\), expected .* records of 1 byte or more, found 1 axes and 0 bytes of float32",
        ),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (1,)}", "expected 1 records, as its header says, found 4$"),
        (
            "{'descr': '<f4', 'fortran_order': False, 'shape': (9,)}",
            "expected 9 records, as its header says, found 4$",
        ),
    ],
)
def test_odd_headers_of_npy(write, header, message):
    text = header.ljust(118).encode()
    with pytest.raises(mmapds.FormatError, match=message):
        mmapds.build(write(b"\x93NUMPY\x01\0" + len(text).to_bytes(2, "little") + text + bytes(16), "x.npy"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "(2,"}, r"dtype = '\(2,', expected a name"),
        ({"dtype": "i4,,i4"}, "dtype = 'i4,,i4', expected a name|expected plain"),
        ({"dtype": "\ud800"}, "expected a name that NumPy knows"),
        ({"dtype": None}, "dtype = None, expected a name"),
        ({"dtype": "u1", "shape": [2**40, 2**40]}, f"records of 1 byte or more, found 2 axes and {2**80} bytes"),
        ({"dtype": "u1", "shape": [1] * 33}, "expected up to 32 axes .* found 33 axes and 1 bytes"),
        ({"dtype": "u1", "shape": [2.7]}, "expected sizes of 1 or more"),
    ],
)
def test_odd_types_of_arrays(write, options, message):
    with pytest.raises(mmapds.FormatError, match=message):
        mmapds.build(write(bytes(64), "x.bin"), format="fixed", truncated="drop", **options)


@pytest.mark.parametrize("decode", ["json", "text", "tf_example", "wds"])
def test_decoders_that_are_not_for_numbers(write, tmp_path, decode):
    np.save(tmp_path / "a.npy", np.arange(6.0).reshape(3, 2))
    path = write(bytes(16), "x.bin")
    mmapds.build(path, format="fixed", dtype="u2")
    for each, name in ((tmp_path / "a.npy", "npy"), (path, "fixed")):
        found = rf"{decode}', expected 'bytes', 'torch' or None for {each}.*, whose format is '{name}'$"
        with pytest.raises(mmapds.FormatError, match=found):
            mmapds.open(each, decode=decode, build=name == "npy")
        assert len(mmapds.open(each, decode="bytes")[0]) == (16 if name == "npy" else 2)
        assert mmapds.open(each, decode="torch")[0].numel() == (2 if name == "npy" else 1)


@pytest.mark.parametrize("options", [{"dtype": "S4"}, {"record_bytes": 4}])
def test_text_in_records_of_one_size(write, options):
    path = write(b"ab\n7null", "x.bin")
    mmapds.build(path, format="fixed", **options)
    assert mmapds.open(path, decode="text")[0] == "ab\n7"
    assert mmapds.open(path, decode="json")[1] is None


@pytest.mark.parametrize("dtype", [">f4", "S4"])
def test_types_that_torch_has_not(write, dtype):
    path = write(bytes(64), "x.bin")
    mmapds.build(path, format="fixed", dtype=dtype)
    assert len(mmapds.open(path)) == 16
    with pytest.raises(
        mmapds.DecodeError, match=r"x.bin: record 3 \(byte .*\): not an array of that type: .*\(ds\[3\]\)"
    ):
        mmapds.open(path, decode="torch")[3]


def test_records_that_are_no_array(write):
    """An index may be damaged where nobody looks; mmapds's own decoders say where."""
    path = write(bytes(10), "x.bin")
    mmapds.build(path, format="fixed", record_bytes=5)
    for of_a_user in (takes_view(lambda record: np.frombuffer(record, "u2")), partial(np.frombuffer, dtype="u2")):
        with pytest.raises(ValueError, match="buffer size") as told:
            mmapds.open(path, decode=of_a_user)[1]
        assert type(told.value) is ValueError
    message = r"x.bin: record 1 \(byte 5\): not an array of that type: buffer size"
    own = RecordArray(np.dtype("i2"), None)
    for decode in (own, TensorDecoder(own)):
        with pytest.raises(mmapds.DecodeError, match=message):
            mmapds.open(path, decode=decode)[1]


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_records_of_one_size_take_no_memory_to_index_however_many_there_are(tmp_path):
    path = tmp_path / "sparse.bin"
    with open(path, "wb") as file:
        file.truncate(2**43)
    script = """
import re, sys
import mmapds
from mmapds.index.verify import verify
from mmapds.storage.index_file import Index
path = sys.argv[1]
mmapds.build(path, format="fixed", record_bytes=1)
verify(Index(path + ".mmx"))
peak = re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]
print(Index(path + ".mmx").records, peak)
"""
    ran = run("-c", script, path)
    assert ran.returncode == 0, ran.stderr
    records, kilobytes = map(int, ran.stdout.split())
    assert records == 2**43
    assert kilobytes < 200_000


@pytest.mark.parametrize("records", [0, 1, 65_535, 65_536, 65_537, 200_000])
def test_columns_of_records_of_one_size(tmp_path, records):
    path = tmp_path / "a.bin"
    path.write_bytes(bytes(3 * records))
    mmapds.build(path, format="fixed", record_bytes=3, length="bytes()")
    assert mmapds.open(path).lengths.tolist() == [3] * records
    assert command(path, "--verify").returncode == 0
