"""What array files have no type for in HDF5, and fields of groups; frozen answers hold the other types."""

import h5py
import numpy as np
import pytest

import mmapds
from mmapds.convert import convert
from mmapds.errors import as_command
from tests.support.conversions import samples


@pytest.fixture(autouse=True)
def command_line():
    """Messages name options as the command takes them, so that they can be given to it."""
    with as_command():
        yield


def low_level_time(file):
    space = h5py.h5s.create_simple((2,))
    h5py.h5d.create(file.id, b"x", h5py.h5t.UNIX_D32LE, space)


LACKING = {
    "references": (lambda file: file.create_dataset("x", (2,), h5py.ref_dtype), "references"),
    "regions": (lambda file: file.create_dataset("x", (2,), h5py.regionref_dtype), "references"),
    "runs of compounds": (
        lambda file: file.create_dataset("x", (2,), h5py.vlen_dtype(np.dtype([("a", "i4")]))),
        r"runs of \[\('a', '<i4'\)\]",
    ),
    "runs of complex numbers in arrays": (
        lambda file: file.create_dataset("x", (2, 2), h5py.vlen_dtype(np.dtype("c8"))),
        "runs of complex64",
    ),
    "wide floats": (lambda file: file.create_dataset("x", data=np.ones(2, np.longdouble)), "float128"),
    "times of its own": (low_level_time, "a type that NumPy lacks"),
}


@pytest.mark.parametrize("records", ["rows", "groups"])
@pytest.mark.parametrize("name", LACKING)
def test_types_that_array_files_lack_are_named_and_can_be_left_out(tmp_path, name, records):
    make, found = LACKING[name]
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        group = file.create_group("g")
        group["y"] = [1, 2]
        make(file)
        file.move("x", "g/x")
    wanted = rf"{path}: dataset '/g/x': expected numbers, text, bytes, or arrays .*, found {found}"
    options = {"records": records, **({"group": "g"} if records == "rows" else {})}
    with pytest.raises(mmapds.FormatError, match=wanted):
        convert(path, **options)
    done = samples(convert(path, fields=["y"], **options).path)
    assert [sample["y"] for sample in done] == ([1, 2] if records == "rows" else [[1, 2]])
    with pytest.raises(mmapds.FormatError, match="found "):
        convert(path, records=records, schema={"g/x" if records == "rows" else "x": "json"})


def test_attributes_of_scales_can_be_left_out(tmp_path):
    """As netCDF has them: the scale refers to the datasets that it is of."""
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["x"], file["time"] = [1, 2], [0.5, 1]
        file["time"].make_scale("t")
        file["x"].dims[0].attach_scale(file["time"])
    with pytest.raises(mmapds.FormatError, match=r"a\.h5: '/\w+': attribute '\w+'.*: expected .*, found "):
        convert(path, records="groups")
    done = samples(convert(path, records="groups", fields=["__key__", "data"]).path)
    assert [(sample["__key__"], sample["data"]) for sample in done] == [("time", [0.5, 1]), ("x", [1, 2])]


def test_fields_of_one_name_are_refused(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["g/x"] = np.zeros(2, [("a", "i4")])
        file["g/x.a"] = [1, 2]
    for options in ({"group": "g"}, {"records": "groups"}):
        with pytest.raises(mmapds.FormatError, match=r"expected fields of different names, found two 'x\.a'"):
            convert(path, **options)
    with h5py.File(path, "w") as file:
        file["g/__key__"] = 1
    with pytest.raises(mmapds.FormatError, match="expected fields of different names, found two '__key__'"):
        convert(path, records="groups")


def test_datasets_beyond_those_of_the_first_groups_are_an_error(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["a/x"], file["b/x"], file["b/late"] = 1, 2, 3
    with pytest.raises(mmapds.FormatError, match=r"record 1: expected fields among .*, found 'late'"):
        convert(path, records="groups", infer=1)
    done = convert(path, records="groups", infer=1, fields=["__key__", "x"])
    assert samples(done.path) == [{"__key__": "a", "x": 1}, {"__key__": "b", "x": 2}]
