"""What conversions give today: types of Parquet, Arrow and HDF5, options, and errors, to be frozen.

Sources are made here from fixed values. Freeze the answers anew with
`python -c "from tests.support.converted import freeze; freeze()"`.
"""

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path
from uuid import UUID

import h5py
import numpy as np
import pyarrow as pa

import mmapds
from mmapds.convert import convert
from tests.support import mistakes
from tests.support.answers import Cases, answer, text
from tests.support.conversions import save
from tests.support.frozen_sources import prepare, write_lines

CASES = Cases("conversions")


def converted(sources, *, anew=True, **options):
    """Convert, and return what the converted file gives; unless it is made anew, one that is there gives its length."""
    if anew:
        Path("converted.mma").unlink(missing_ok=True)
    done = convert(sources, "converted.mma", force=True, **options)
    ds = mmapds.open(done.path)
    counts = [done.records, done.skipped, done.kept_length] if done.skipped or done.kept_length else done.records
    return [counts, done.schema.describe(), [list(sample.values()) for sample in ds]]


# ---- Parquet and Arrow ------------------------------------------------------------------------------------------

MOMENT = datetime(2024, 2, 29, 12, 30, 1, 234567)
VALUES = {
    "int8": (pa.int8(), [-128, 0, 127]),
    "int16": (pa.int16(), [-(2**15), 1, 2]),
    "int32": (pa.int32(), [-(2**31), 1, 2]),
    "int64": (pa.int64(), [-(2**63), 1, 2**63 - 1]),
    "uint8": (pa.uint8(), [0, 1, 255]),
    "uint16": (pa.uint16(), [0, 1, 2**16 - 1]),
    "uint32": (pa.uint32(), [0, 1, 2**32 - 1]),
    "uint64": (pa.uint64(), [0, 1, 2**64 - 1]),
    "float16": (pa.float16(), [0.5, -2.0, 65504.0]),
    "float32": (pa.float32(), [0.1, float("inf"), -0.0]),
    "float64": (pa.float64(), [0.1, float("nan"), 1e300]),
    "bool": (pa.bool_(), [True, False, True]),
    "string": (pa.string(), ["a", "", "ä漢\0"]),
    "large_string": (pa.large_string(), ["a", "", "b"]),
    "string_view": (pa.string_view(), ["a", "", "a text of more than twelve bytes"]),
    "binary": (pa.binary(), [b"a", b"", b"\0\xff"]),
    "large_binary": (pa.large_binary(), [b"a", b"", b"b"]),
    "binary_view": (pa.binary_view(), [b"a", b"", b"more than twelve bytes"]),
    "fixed binary": (pa.binary(3), [b"abc", b"\0\0\0", b"def"]),
    "list": (pa.list_(pa.int32()), [[1, 2], [], [3]]),
    "large_list": (pa.large_list(pa.uint16()), [[1, 2], [], [3]]),
    "list_view": (pa.list_view(pa.int16()), [[1, 2], [], [3]]),
    "fixed list": (pa.list_(pa.float32(), 2), [[1.5, 2], [3, 4], [5, 6]]),
    "list of bools": (pa.list_(pa.bool_()), [[True], [], [False, True]]),
    "list of lists": (pa.list_(pa.list_(pa.int64())), [[[1, 2], [3, 4]], [], [[5]]]),
    "list of ragged lists": (pa.list_(pa.list_(pa.int8())), [[[1], [2, 3]], [], [[]]]),
    "list of fixed lists": (pa.list_(pa.list_(pa.float32(), 2)), [[[1, 2]], [], [[3, 4], [5, 6]]]),
    "fixed list of lists": (pa.list_(pa.list_(pa.int8()), 2), [[[1], [2]], [[], []], [[3, 4], [5, 6]]]),
    "list of strings": (pa.list_(pa.string()), [["a"], [], ["b", "c"]]),
    "list of binaries": (pa.list_(pa.binary()), [[b"a"], [], [b"b"]]),
    "list of structs": (pa.list_(pa.struct({"a": pa.int8(), "b": pa.string()})), [[{"a": 1, "b": "x"}], [], []]),
    "list of dates": (pa.list_(pa.date32()), [[date(1970, 1, 2)], [], []]),
    "struct": (
        pa.struct({"a": pa.int8(), "b": pa.list_(pa.float64())}),
        [{"a": k, "b": [k / 2] * k} for k in range(3)],
    ),
    "struct in a struct": (
        pa.struct({"s": pa.struct({"t": pa.string()})}),
        [{"s": {"t": "x"}}, {"s": {"t": ""}}, {"s": {"t": "y"}}],
    ),
    "struct without parts": (pa.struct([]), [{}, {}, {}]),
    "map": (pa.map_(pa.string(), pa.int64()), [[("k", 1)], [], [("l", 2), ("m", 3)]]),
    "dictionary of text": (pa.dictionary(pa.int8(), pa.string()), ["a", "b", "a"]),
    "dictionary of numbers": (pa.dictionary(pa.int32(), pa.int64()), [7, 7, 9]),
    "decimal32": (pa.decimal32(5, 2), [Decimal("1.10"), Decimal("-0.01"), Decimal("0.00")]),
    "decimal128": (pa.decimal128(20, 4), [Decimal("1.1000"), Decimal("-0.0001"), Decimal("9999999999.0000")]),
    "decimal256": (pa.decimal256(60, 1), [Decimal("1.1"), Decimal("-0.1"), Decimal("9" * 40 + ".0")]),
    "date32": (pa.date32(), [date(1970, 1, 1), date(1969, 12, 31), date(2024, 2, 29)]),
    "date64": (pa.date64(), [date(1970, 1, 1), date(1969, 12, 31), date(2024, 2, 29)]),
    "time32[s]": (pa.time32("s"), [time(0), time(0, 0, 1), time(23, 59, 59)]),
    "time32[ms]": (pa.time32("ms"), [time(0), time(0, 0, 1), time(23, 59, 59, 999000)]),
    "time64[us]": (pa.time64("us"), [time(0), time(0, 0, 1), time(23, 59, 59, 999999)]),
    "time64[ns]": (pa.time64("ns"), [0, 1, 86399999999999]),
    "timestamp[s]": (pa.timestamp("s"), [datetime(1970, 1, 1), datetime(1969, 12, 31), datetime(2024, 2, 29)]),
    "timestamp[ms]": (pa.timestamp("ms"), [1, -1, 10**12]),
    "timestamp[us]": (pa.timestamp("us"), [MOMENT, MOMENT, MOMENT]),
    "timestamp[ns]": (pa.timestamp("ns"), [1, -1, 10**18]),
    "timestamp with a zone": (pa.timestamp("us", "Europe/Berlin"), [MOMENT.replace(tzinfo=UTC)] * 3),
    "duration[s]": (pa.duration("s"), [timedelta(0), timedelta(seconds=-1), timedelta(days=1)]),
    "duration[ns]": (pa.duration("ns"), [0, -1, 10**15]),
    "interval": (pa.month_day_nano_interval(), [(1, 2, 3), (0, 0, 0), (-1, 0, 5)]),
    "null": (pa.null(), [None, None, None]),
    "run ends": (pa.run_end_encoded(pa.int32(), pa.int64()), [5, 5, 6]),
    "uuid": (pa.uuid(), [UUID(int=k).bytes for k in (1, 2, 3)]),
    "json": (pa.json_(), ['{"a": 1}', "null", "[]"]),
    "tensor": (pa.fixed_shape_tensor(pa.float32(), [2, 2]), [[1, 2, 3, 4], [5, 6, 7, 8], [0, 0, 0, 0]]),
}
DEFAULTS = {"int32": -1, "uint64": 2**64 - 1, "float32": 0.5, "bool": True, "string": "none", "binary": "b"}
DEFAULTS |= {"list": [], "fixed list": [0, 1], "list of lists": [], "list of strings": ["x"], "struct": 1, "map": []}
DEFAULTS |= {"dictionary of text": "none", "decimal128": "0", "date32": -1, "timestamp[us]": 0}
DEFAULTS |= {"tensor": [[0, 0], [0, 0]]}


def column(name, nulls=()):
    what, values = VALUES[name]
    values = [None if row in nulls else value for row, value in enumerate(values)]
    if isinstance(what, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(what, pa.array(values, what.storage_type))
    if pa.types.is_run_end_encoded(what):
        return pa.RunEndEncodedArray.from_arrays(pa.array([2, 3], pa.int32()), pa.array([5, 6], pa.int64()))
    return pa.array(values, what)


def saved(table, way):
    """Save a table; None where pyarrow cannot write such a type."""
    try:
        return save(pa.table(table), f"source.{way}", way, rows=2)
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        return None


def in_each_way(table, **options):
    """Convert a table as Parquet and as Arrow; what both give alike is frozen once."""
    found = {}
    for way in ("parquet", "arrow"):
        path = saved(table, way)
        found[way] = "pyarrow does not write it" if path is None else answer(partial(converted, path, **options))
    same = text(found["parquet"]).replace("source.parquet", "source.arrow") == text(found["arrow"])
    return {"both": found["arrow"]} if same else found


for _name in VALUES:
    CASES[f"type: {_name}"] = lambda name=_name: in_each_way({"x": column(name)})


def with_nulls(name):
    table, part = {"x": column(name, [1]), "k": pa.array([0, 1, 2])}, "x.a" if name == "struct" else "x"
    path = saved(table, "parquet") or saved(table, "arrow")
    return {
        "as it is": partial(converted, path),
        "missing='skip'": lambda: converted(path, missing="skip")[0],
        "defaults": lambda: converted(path, defaults={part: DEFAULTS[name]})[2][1],
        "as JSON": lambda: converted(path, types={part: "json"})[2][1],
    }


for _name in DEFAULTS:
    CASES[f"nulls: {_name}"] = partial(with_nulls, _name)


@CASES.case("tables")
def _():
    table = {
        "id": pa.array(range(4)),
        "tokens": pa.array([[1, 2], [], [3], [300]]),
        "x": pa.array([0.5, None, 1.5, 2.0]),
        "s": pa.array([{"t": str(k), "u": [k]} for k in range(4)]),
    }
    path, stream = saved(table, "parquet"), save(pa.table(table), "source.stream", "stream", rows=3)
    other = save(pa.table({"id": [7], "tokens": [[0]], "x": [1.0], "s": [{"t": "z", "u": [0]}]}), "other.parquet")
    given = {
        "as it is": {},
        "fields": {"fields": ["s.u", "id"]},
        "schema": {"schema": {"id": "int16", "tokens": ["uint16", [None]]}},
        "schema in another order": {"schema": {"tokens": ("float32", (None,)), "id": "float64"}},
        "types": {"fields": ["id", "x"], "types": {"x": "json"}},
        "length": {"fields": ["id", "tokens"], "length": "tokens"},
        "length of numbers": {"fields": ["id", "tokens"], "length": "id"},
        "missing": {"missing": "skip"},
        "defaults": {"defaults": {"x": 9}},
        "types that do not fit": {"fields": ["tokens"], "types": {"tokens": ["uint8", [None]]}},
        "a type of another kind": {"fields": ["tokens"], "types": {"tokens": "str"}},
        "missing of another kind": {"missing": "drop"},
        "infer": {"infer": 0},
    }
    times = [("s.arrow", pa.timestamp("s")), ("ms.arrow", pa.timestamp("ms"))]
    found = {name: partial(converted, path, **options) for name, options in given.items()}
    return found | {
        "stream": partial(converted, stream, format="arrow", missing="skip"),
        "several": partial(converted, [path, other], missing="skip"),
        "over itself": partial(convert, "typed.mma", "typed.mma", force=True),
        "no such directory": partial(convert, path, "none/a.mma"),
        "units that differ": lambda: converted([save(pa.table({"t": pa.array([1], t)}), n, "arrow") for n, t in times]),
        "damaged": lambda: convert(mistakes.file("bad.parquet", b"PAR1" + bytes(30)), "bad.mma"),
    }


# ---- HDF5 -------------------------------------------------------------------------------------------------------

BOX = np.dtype([("id", ">i4"), ("name", "S3"), ("corner", ">f4", (2,)), ("inner", [("k", "<u2")], (2,))])
SWITCH = h5py.enum_dtype({"no": 0, "yes": 1}, "i1")


def boxes():
    data = np.zeros(3, BOX)
    data["id"], data["name"], data["corner"], data["inner"]["k"] = [1, 2, 3], b"ab", 0.5, 7
    return data


def runs(dtype):
    def make(file, name):
        file.create_dataset(name, (3,), h5py.vlen_dtype(np.dtype(dtype)))
        for row, run in enumerate(([1, 2], [], [3])):
            file[name][row] = np.array(run, dtype)

    return make


def array_type(file, name):
    file.create_dataset(name, (3,), np.dtype(("f4", (2,))))[...] = np.arange(6).reshape(3, 2)


def with_attributes(file, name):
    dataset = file.create_dataset(name, data=np.arange(3))
    dataset.attrs["gain"] = np.float32(0.5)
    dataset.attrs["names"] = ["a", "ä"]
    dataset.attrs["shape"] = np.arange(2)
    dataset.attrs["nothing"] = h5py.Empty("f4")


DATASETS = {
    **{f"{kind}": np.array([0, 1, 2], kind) for kind in ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8")},
    **{f"{kind}": np.array([0.5, -2, np.inf], kind) for kind in ("f2", "f4", "f8", ">f4", ">f8")},
    ">i2": np.array([1, -2, 3], ">i2"),
    "bool": np.array([True, False, True]),
    "complex": np.array([1j, 2, 0], "c8"),
    "two axes": np.arange(6, dtype="i2").reshape(3, 2),
    "three axes": np.arange(12, dtype=">u4").reshape(3, 2, 2),
    "no rows": np.empty((0, 2)),
    "no columns": np.empty((3, 0)),
    "fixed text": np.array([b"ab", b"", b"c"], "S2"),
    "text": lambda file, name: file.create_dataset(name, data=["a", "", "ä漢"], dtype=h5py.string_dtype()),
    "ascii": lambda file, name: file.create_dataset(name, data=["a", "", "b"], dtype=h5py.string_dtype("ascii")),
    "fixed UTF-8": np.array([b"a", b"", "ä".encode()], h5py.string_dtype("utf-8", 4)),
    "rows of text": lambda file, name: file.create_dataset(name, data=[["a", "b"], ["", ""], ["c", "d"]]),
    "text that is not UTF-8": np.array([b"\xff", b"", b"c"], "S2"),
    "compound": boxes(),
    "enum": lambda file, name: file.create_dataset(name, data=[0, 1, 1], dtype=SWITCH),
    "array type": array_type,
    "opaque": np.array([b"abc", b"\0\0\0", b"de"], "V3"),
    "opaque rows": np.array([[b"ab"], [b"cd"], [b"ef"]], "V2"),
    "dates": np.arange(3).astype("M8[us]").astype(h5py.opaque_dtype("M8[us]")),
    "durations": np.arange(3).astype("m8[s]").astype(h5py.opaque_dtype("m8[s]")),
    "runs": runs("u2"),
    "big-endian runs": runs(">f4"),
    "bool runs": runs("?"),
    "compressed": lambda file, name: file.create_dataset(
        name, data=np.arange(3), chunks=(2,), compression="gzip", shuffle=True
    ),
    "never written": lambda file, name: file.create_dataset(name, (3, 2), "i4", fillvalue=7),
    "scalar": lambda file, name: file.create_dataset(name, data=np.float32(1.5)),
    "scalar text": lambda file, name: file.create_dataset(name, data="ä"),
    "empty": lambda file, name: file.create_dataset(name, data=h5py.Empty("i4")),
    "reference": lambda file, name: file.create_dataset(name, data=[file.ref] * 3, dtype=h5py.ref_dtype),
    "runs of text": lambda file, name: file.create_dataset(name, (3,), h5py.vlen_dtype(h5py.string_dtype())),
    "attributes": with_attributes,
    "soft link": lambda file, name: file.__setitem__(name, h5py.SoftLink("/k")),
    "external link": lambda file, name: file.__setitem__(name, h5py.ExternalLink("other.h5", "/k")),
}


def in_hdf5(name):
    make = DATASETS[name]
    for path, inside in (("rows.h5", "x"), ("groups.h5", "speaker/x")):
        with h5py.File(path, "w") as file:
            file["k"] = np.arange(3)
            if inside != "x":
                file.create_group("speaker").attrs["kind"] = "north"
            if isinstance(make, np.ndarray):
                file[inside] = make
            else:
                make(file, inside)
    return {
        "rows": partial(converted, "rows.h5", fields=None if name == "compound" else ["x"]),
        "groups": partial(converted, "groups.h5", records="groups", group="/speaker"),
    }


for _name in DATASETS:
    CASES[f"HDF5: {_name}"] = partial(in_hdf5, _name)


@CASES.case("HDF5")
def _():
    with h5py.File("some.h5", "w") as file:
        file.attrs["title"] = "none"
        file["a/x"], file["a/b/x"] = np.arange(2), np.arange(3)
        file["a"].attrs["n"] = 1
        file["c/x"], file["y"] = np.ones(2), np.zeros(2)
    with h5py.File("circle.h5", "w") as file:
        file["g/x"] = np.arange(2)
        file["g/again"] = h5py.SoftLink("/g")
    return {
        "rows": partial(converted, "some.h5"),
        "rows of a group": partial(converted, "some.h5", group="c"),
        "groups": partial(converted, "some.h5", records="groups"),
        "groups, some fields": partial(converted, "some.h5", records="groups", fields=["__key__", "x"]),
        "groups of a group": partial(converted, "some.h5", records="groups", group="/a"),
        "fields": partial(converted, "some.h5", fields=["c/x", "y"]),
        "types": partial(converted, "some.h5", fields=["y"], types={"y": "float32"}),
        "records of another kind": partial(converted, "some.h5", records="files"),
        "a circle": partial(converted, "circle.h5"),
    }


# ---- sources that can be indexed --------------------------------------------------------------------------------

INDEXED = {
    "JSON": ("typed.jsonl", {}),
    "JSON, fields": ("typed.jsonl", {"fields": ["id", "some"]}),
    "JSON, schema": ("typed.jsonl", {"schema": {"id": "int8", "tokens": ["int16", [None]]}}),
    "JSON, types": (
        "typed.jsonl",
        {"fields": ["tokens", "pair"], "types": {"pair": ["float32", [2]]}, "length": "tokens"},
    ),
    "JSON, defaults": ("typed.jsonl", {"fields": ["some"], "types": {"some": "int8"}, "defaults": {"some": -1}}),
    "JSON, null": ("typed.jsonl", {"fields": ["some"], "types": {"some": "int8"}}),
    "JSON, missing": ("typed.jsonl", {"fields": ["id", "some"], "missing": "skip"}),
    "JSON, infer": ("widening.jsonl", {"infer": 2}),
    "JSON, inferred": ("widening.jsonl", {}),
    "JSON that is not JSON": ("bad.jsonl", {}),
    "lines of numbers": ("part-1.jsonl", {"decode": len}),
    "Fields": ("typed.jsonl", {"decode": mmapds.Fields({"id": "int16", "rows": ("int8", "ragged")})}),
    "text": ("part-0.jsonl", {"decode": "text"}),
    "gzip": ("one.jsonl.gz", {"fields": ["id", "x"]}),
    "an index": ("zstd.mmx", {"fields": ["n"]}),
    "a saved view": ("view-array.mmx", {"fields": ["id", "n"]}),
    "records of one size": ("bytes.fixed", {"format": "fixed", "dtype": ">u2", "shape": "5"}),
    "bytes of one size": ("bytes.fixed", {"format": "fixed", "record_bytes": 20}),
    "npy": ("halves.npy", {}),
    "npy of scalars": ("scalars.npy", {}),
    "npy of text": ("text.npy", {}),
    "complex npy": ("complex.npy", {}),
    "prefixed": ("varint", {"format": "prefixed", "prefix": "varint"}),
    "tokens": ("megatron.bin", {"length": "data"}),
    "examples": ("features.tfrecord", {"decode": "tf_example"}),
    "TFRecords": ("features.tfrecord", {}),
    "members": ("real.tar", {}),
    "members, fields": ("real.tar", {"fields": ["__key__", "npz.x", "cls"]}),
    "members as they are": ("real.tar", {"decode": "files", "fields": ["txt", "png"]}),
    "array file": ("typed.mma", {"fields": ["id", "tokens"]}),
    "array file by Fields": ("json.mma", {"decode": mmapds.Fields({"id": "int8", "meta.n": "int16"})}),
    "no records": ("empty.jsonl", {}),
}


def from_index(name):
    path, options = INDEXED[name]
    if path == "widening.jsonl":
        write_lines(
            path, [{"a": 1, "b": [1], "c": "x"}, {"a": 2.5, "b": [], "c": None}, {"a": "x", "b": [0.5], "c": 3}]
        )
    return converted(path, **options)


for _name in INDEXED:
    CASES[f"indexed: {_name}"] = partial(from_index, _name)


def freeze():
    CASES.freeze(prepare)
