"""Every type of HDF5 by rows and by groups: shape and values as h5py reads them, or an error that helps."""

import h5py
import numpy as np
import pytest

import mmapds
from mmapds.convert import convert
from mmapds.errors import as_command
from tests.support.conversions import listed, samples

N = 40
rng = np.random.default_rng(0)
BOX = np.dtype(
    [
        ("id", ">i4"),
        ("name", "S3"),
        ("corner", ">f4", (2, 3)),
        ("inner", [("k", "<u2"), ("raw", "V2", (2,))], (2,)),
        ("gain", "<f2"),
    ]
)


@pytest.fixture(autouse=True)
def command_line():
    """Messages name options as the command takes them, so that they can be given to it."""
    with as_command():
        yield


def boxes(*shape):
    data = np.zeros(shape, BOX)
    data["id"], data["name"] = rng.integers(0, 99, shape), b"ab"
    data["corner"], data["gain"] = rng.random((*shape, 2, 3)), 0.5
    data["inner"]["k"] = rng.integers(0, 99, (*shape, 2))
    data["inner"]["raw"] = np.frombuffer(rng.bytes(data["inner"]["raw"].nbytes), "V2").reshape(*shape, 2, 2)
    return data


def opaque(*shape):
    return np.frombuffer(rng.bytes(3 * int(np.prod(shape))), "V3").reshape(shape)


def fixed(data):
    """A dataset of NumPy's memory."""
    return lambda file, name: file.create_dataset(name, data=data, chunks=(7, *data.shape[1:]))


def typed(values, dtype, shape=(N,)):
    """A dataset of a type that NumPy has only by h5py's help."""

    def make(file, name):
        dataset = file.create_dataset(name, shape, dtype)
        for k in np.ndindex(shape):
            dataset[k] = values(k)

    return make


def spread(dtype):
    """A dataset of an array type."""

    def make(file, name):
        dataset = file.create_dataset(name, (N,), dtype)
        dataset[...] = rng.integers(0, 99, dataset[...].shape)

    return make


DATASETS = {
    "big": fixed(rng.random((N, 3, 2)).astype(">f4")),
    "big scalars": fixed(np.arange(N, dtype=">i2")),
    "bools": fixed(rng.random((N, 3)) < 0.5),
    "halves": fixed(rng.random((N, 2)).astype(">f2")),
    "complex": fixed((rng.random(N) * 1j).astype(">c8")),
    "complex arrays": fixed(rng.random((N, 2)).astype("c16") * 1j),
    "enum": typed(lambda k: sum(k) % 2, h5py.enum_dtype({"no": 0, "yes": 1}, ">i4"), (N, 2)),
    "array type": spread(np.dtype((">i2", (2, 3)))),
    "boxes": fixed(boxes(N)),
    "arrays of boxes": fixed(boxes(N, 2)),
    "boxes in an array type": lambda file, name: file.create_dataset(name, (N,), np.dtype((BOX, (2,)))),
    "opaque": fixed(opaque(N)),
    "opaque arrays": fixed(opaque(N, 2, 2)),
    "times": fixed(np.arange(N).astype("M8[us]").astype(h5py.opaque_dtype("M8[us]"))),
    "durations": fixed(np.arange(2 * N).reshape(N, 2).astype("m8[s]").astype(h5py.opaque_dtype("m8[s]"))),
    "text": typed(lambda k: f"grün {k}", h5py.string_dtype()),
    "text arrays": typed(lambda k: f"grün {k}", h5py.string_dtype(), (N, 2, 2)),
    "short text": fixed(np.array([["a", "bc"]] * N, "S2")),
    "runs": typed(lambda k: np.arange(k[0] % 4), h5py.vlen_dtype(np.uint16)),
    "runs in arrays": typed(lambda k: np.arange(k[0] % 4), h5py.vlen_dtype(np.dtype("i4")), (N, 2)),
    "bool runs": typed(lambda k: [True] * (k[0] % 3), h5py.vlen_dtype(bool)),
}


def plain(value):
    """What h5py reads, as what an array file should hold: lists, numbers, text and bytes."""
    if isinstance(value, bytes):
        return value.decode()
    array = np.asarray(value)
    if array.dtype.kind in "mM":
        return array.view("i8").tolist()
    if array.dtype.kind == "V":
        return list_of_bytes(array) if array.ndim else array.tobytes()
    if array.dtype.kind in "OS" and array.ndim:
        return [plain(each) for each in array]
    return array.item().decode() if array.dtype.kind == "S" else array.tolist()


def list_of_bytes(array):
    """Opaque values as one more axis of bytes."""
    return [list(each.tobytes()) for each in array] if array.ndim == 1 else [list_of_bytes(each) for each in array]


def flat(name, value):
    """The fields of a value: of a compound one, those of its parts."""
    if getattr(value, "dtype", None) is not None and value.dtype.names:
        for part in value.dtype.names:
            yield from flat(f"{name}.{part}", value[part])
    else:
        yield name, plain(value)


@pytest.fixture
def path(tmp_path, request):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        DATASETS[request.param](file, "x")
    return path


def read(path):
    """What h5py reads of the dataset."""
    with h5py.File(path) as file:
        return file["x"][()]


def shapes(sample):
    return {name: value.shape for name, value in sample.items() if isinstance(value, np.ndarray)}


@pytest.mark.parametrize("path", DATASETS, indirect=True)
def test_rows_are_what_h5py_reads(path):
    wanted = [dict(flat("x", value)) for value in read(path)]
    done = convert(path)
    assert samples(done.path) == wanted
    for sample, row in zip(mmapds.open(done.path), wanted, strict=True):
        assert all(np.shape(row[name]) == shape for name, shape in shapes(sample).items())


@pytest.mark.parametrize("path", DATASETS, indirect=True)
def test_groups_are_what_h5py_reads(path):
    with h5py.File(path, "a") as file:
        for k in range(3):
            group = file.create_group(f"g/{k}")
            value = file["x"][k]
            file.copy("x", group, "all")
            if file["x"].dtype.kind not in "OmM":  # h5py cannot write all that it reads
                group["one"] = value
                group.attrs.create("noted", value, dtype=value.dtype)
    wanted = dict(flat("all", read(path)))
    done = convert(path, records="groups", group="g")
    for k, sample in enumerate(mmapds.open(done.path)):
        found = {name: listed(value) for name, value in sample.items()}
        one = dict(flat("one", read(path)[k])) | dict(flat("noted", read(path)[k])) if "noted" in str(found) else {}
        assert found == {"__key__": str(k)} | wanted | one


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
