"""What conversions give today: types of Parquet, Arrow and HDF5, options, and errors, to be frozen.

Sources are made here from fixed values. Freeze the answers anew with
`python -c "from tests.support.converted import CASES; CASES.freeze()"`.
"""

from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from uuid import UUID

import h5py
import numpy as np
import pyarrow as pa

import mmapds
from mmapds.convert import convert
from tests.support.answers import Cases, answer, text
from tests.support.conversions import save

CASES = Cases("conversions")


def converted(sources, **options):
    """Convert, and return what the converted file gives: how many records, their types and their values."""
    Path("converted.mma").unlink(missing_ok=True)  # which would give its length
    done = convert(sources, "converted.mma", force=True, **options)
    return [done.records, done.schema.describe(), [list(sample.values()) for sample in mmapds.open(done.path)]]


# ---- Parquet and Arrow ------------------------------------------------------------------------------------------

MOMENT = datetime(2024, 2, 29, 12, 30, 1, 234567)
VALUES = {  # what Arrow has; numbers, text and lists of numbers are in test_convert_tables
    "string_view": (pa.string_view(), ["a", "", "a text of more than twelve bytes"]),
    "list_view": (pa.list_view(pa.int16()), [[1, 2], [], [3]]),
    "list of ragged lists": (pa.list_(pa.list_(pa.int8())), [[[1], [2, 3]], [], [[]]]),
    "list of strings": (pa.list_(pa.string()), [["a"], [], ["b", "c"]]),
    "list of decimals": (pa.list_(pa.decimal128(5, 2)), [[Decimal("1.10"), None], [], [Decimal("-123.45")]]),
    "lists of dates": (pa.list_(pa.list_(pa.date64(), 1)), [[[date(1970, 1, 2)]], [], [[None], [date(1969, 12, 31)]]]),
    "list of structs": (pa.list_(pa.struct({"at": pa.time32("ms")})), [[{"at": 86_399_999}], [], [{"at": None}, None]]),
    "map of times": (pa.map_(pa.string(), pa.timestamp("ns")), [[("a", 2**63 - 1)], [], [("b", None), ("c", -5)]]),
    "struct": (pa.struct({"a": pa.int8(), "b": pa.list_(pa.float64())}), [{"a": k, "b": [0.5] * k} for k in range(3)]),
    "map": (pa.map_(pa.string(), pa.int64()), [[("k", 1)], [], [("l", 2), ("m", 3)]]),
    "decimal128": (pa.decimal128(20, 4), [Decimal("1.1000"), Decimal("-0.0001"), Decimal("9999999999.0000")]),
    "date32": (pa.date32(), [date(1970, 1, 1), date(1969, 12, 31), date(2024, 2, 29)]),
    "date64": (pa.date64(), [date(1970, 1, 1), date(1969, 12, 31), date(2024, 2, 29)]),
    "time64[ns]": (pa.time64("ns"), [0, 1, 86399999999999]),
    "timestamp[ns]": (pa.timestamp("ns"), [1, -1, 10**18]),
    "timestamp with a zone": (pa.timestamp("us", "Europe/Berlin"), [MOMENT.replace(tzinfo=UTC)] * 3),
    "interval": (pa.month_day_nano_interval(), [(1, 2, 3), (0, 0, 0), (-1, 0, 5)]),
    "null": (pa.null(), [None, None, None]),
    "run ends": (pa.run_end_encoded(pa.int32(), pa.int64()), [5, 5, 6]),
    "uuid": (pa.uuid(), [UUID(int=k).bytes for k in (1, 2, 3)]),
    "json": (pa.json_(), ['{"a": 1}', "null", "[]"]),
    "tensor": (pa.fixed_shape_tensor(pa.float32(), [2, 2]), [[1, 2, 3, 4], [5, 6, 7, 8], [0, 0, 0, 0]]),
}


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


def with_a_null(name):
    """A column whose rows are looked at one by one."""
    return converted(saved({"x": column(name, [1])}, "arrow"), missing="skip")[2]


CASES["nulls"] = lambda: {name: partial(with_a_null, name) for name in VALUES}


# ---- HDF5 -------------------------------------------------------------------------------------------------------

INNER = np.dtype([("k", "<u2")])
BOX = np.dtype([("id", ">i4"), ("name", "S3"), ("corner", ">f4", (2,)), ("inner", INNER, (2,))])
RUNS = np.array([[1, 2], [], [3]], object)
DATASETS = {  # types of HDF5, and three rows; None for what h5py fills them with
    **{kind: (kind, [0, 1, 2]) for kind in ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", ">i2")},
    **{kind: (kind, [0.5, -2, np.inf]) for kind in ("f2", "f4", "f8", ">f4")},
    "bool": ("?", [True, False, True]),
    "complex": ("c8", [1j, 2, 0]),
    "fixed text": ("S2", [b"ab", b"", b"c"]),
    "text": (h5py.string_dtype(), ["a", "", "ä漢"]),
    "compound": (BOX, np.array([(k, b"ab", (0.5, k), np.array([(7,), (8,)], INNER)) for k in range(3)], BOX)),
    "enum": (h5py.enum_dtype({"no": 0, "yes": 1}, "i1"), [0, 1, 1]),
    "array type": (("f4", (2,)), np.arange(6).reshape(3, 2)),
    "opaque": ("V3", np.array([b"abc", b"\0\0\0", b"de"], "V3")),
    "dates": (h5py.opaque_dtype("M8[us]"), np.arange(3).astype("M8[us]").astype(h5py.opaque_dtype("M8[us]"))),
    "runs": (h5py.vlen_dtype(np.uint16), RUNS),
    "big-endian runs": (h5py.vlen_dtype(np.dtype(">f4")), RUNS),
    "reference": (h5py.ref_dtype, None),
    "runs of text": (h5py.vlen_dtype(h5py.string_dtype()), None),
}


def in_hdf5(name):
    dtype, values = DATASETS[name]
    for path, inside in (("rows.h5", "x"), ("groups.h5", "speaker/x")):
        with h5py.File(path, "w") as file:
            dataset = file.create_dataset(inside, (3,), dtype)
            if values is not None:
                dataset[...] = values
    return {
        "rows": partial(converted, "rows.h5"),
        "groups": partial(converted, "groups.h5", records="groups", group="/speaker"),
    }


for _name in DATASETS:
    CASES[f"HDF5: {_name}"] = partial(in_hdf5, _name)


# ---- sources that can be indexed --------------------------------------------------------------------------------

INDEXED = {  # tests/test_formats.py converts every format
    "Fields": ("typed.jsonl", {"decode": mmapds.Fields({"id": "int16", "rows": ("int8", "ragged")})}),
    "a saved view": ("view-array.mmx", {"fields": ["id", "n"]}),
    "records of one size": ("bytes.fixed", {"format": "fixed", "dtype": ">u2", "shape": "5"}),
    "npy of text": ("text.npy", {}),
}


for _name, (_path, _options) in INDEXED.items():
    CASES[f"indexed: {_name}"] = partial(converted, _path, **_options)
