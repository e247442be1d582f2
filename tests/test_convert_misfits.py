"""Records that do not fit their fields, or lack them: what a message says to do about it mends it."""

import json
import os

import h5py
import numpy as np
import pyarrow as pa
import pytest

import mmapds
from mmapds import convert as target
from mmapds.convert import convert
from mmapds.errors import as_command
from tests.support.commands import run
from tests.support.conversions import samples, save


@pytest.fixture(autouse=True)
def command_line():
    """Messages name options as the command takes them, so that they can be given to it."""
    with as_command():
        yield


def jsonl(tmp_path, records):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def parquet(tmp_path, records):
    return save(pa.Table.from_pylist(records), tmp_path / "a.parquet")


def arrow(tmp_path, records):
    return save(pa.Table.from_pylist(records), tmp_path / "a.arrow", "stream")


def groups(tmp_path, records):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        for number, record in enumerate(records):
            group = file.create_group(f"{number}")
            group["number"] = number
            for name, value in record.items():
                if value is not None:
                    group[name] = value
    return path


# ---- fields that some records lack ----------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [jsonl, groups])
@pytest.mark.parametrize(
    "values", [[[1, 2], None], [None, [1, 2]], [[[1.5], [2]], None], [5, None], ["a", None], [None, "a", None]], ids=str
)
def test_a_field_that_some_records_lack_becomes_json(tmp_path, make, values):
    path = make(tmp_path, [{"x": value} for value in values])
    done = convert(path, tmp_path / "b.mma", **({"records": "groups"} if make is groups else {}))
    assert done.schema.describe()["x"] == "json"
    assert [sample["x"] for sample in samples(done.path)] == values


@pytest.mark.parametrize("make", [jsonl, parquet, arrow, groups])
def test_a_default_stands_for_what_is_missing(tmp_path, make):
    records = [{"x": [1, 2], "n": 5, "t": "a"}, {"x": None, "n": None, "t": None}, {"x": [3], "n": 7, "t": "b"}]
    path = make(tmp_path, records)
    options = {"records": "groups"} if make is groups else {}
    done = convert(path, tmp_path / "b.mma", defaults={"x": [], "t": "none", "n": -1}, length="x", **options)
    described = done.schema.describe()
    assert (described["x"], described["n"], described["t"]) == (["int64", [None]], "int64", "str")
    ds = mmapds.open(done.path)
    filled = [[1, 2], [], [3]], [5, -1, 7], ["a", "none", "b"]
    assert tuple([sample[name] for sample in samples(done.path)] for name in ("x", "n", "t")) == filled
    assert ds.lengths.tolist() == [2, 0, 1]
    for batch in (mmapds.pad_collate(ds.take([0, 1, 2])), mmapds.pad_collate([ds[0], ds[1], ds[2]])):
        assert batch["x"].tolist() == [[1, 2], [0, 0], [3, 0]]
        assert (batch["x_lengths"].tolist(), batch["n"].tolist()) == ([2, 0, 1], [5, -1, 7])


def test_an_integer_that_the_inferred_floats_do_not_hold_is_an_error(tmp_path):
    path = jsonl(tmp_path, [{"x": 0.5}, {"x": 2**53 + 1}])
    with pytest.raises(mmapds.FormatError, match=f"field 'x': expected float64, found int {2**53 + 1}"):
        convert(path)
    assert [sample["x"] for sample in samples(convert(path, types={"x": "json"}).path)] == [0.5, 2**53 + 1]


KINDS = {  # two values that are there, and the default
    "numbers": ([1, 2], -1),
    "fractions": ([0.5, 1.5], -1.0),
    "booleans": ([True, False], True),
    "text": (["a", "b"], "none"),
    "bytes": ([b"a", b"b"], "none"),
    "arrays": ([[1, 2], [3]], [7]),
    "tables": ([[[1, 2]], [[3, 4]]], [[7, 8]]),
    "texts": ([["a", "b"], ["c"]], []),
    "structs": ([[{"a": 1}], [{"a": 2}]], [{"a": 3}]),
    "nothing": ([None, None], 0),
}
GIVEN = {
    "inferred": {},
    "skip": {"missing": "skip"},
    "json": {"fields": ["row", "x"], "types": {"x": "json"}},
}


LACKED = {jsonl: {"bytes"}, groups: {"bytes", "structs", "nothing"}}
"""Kinds that a format does not have."""


@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize(
    ("make", "kind"),
    [(make, kind) for make in (jsonl, parquet, groups) for kind in KINDS if kind not in LACKED.get(make, ())],
)
def test_a_default_stands_for_nulls_of_every_kind(tmp_path, make, kind, given):
    (first, second), default = KINDS[kind]
    values = [None, first, None, second]
    path = make(tmp_path, [{"row": row, "x": value} for row, value in enumerate(values)])
    options = {} if kind == "bytes" else GIVEN[given]  # JSON cannot hold bytes
    options = options | ({"records": "groups"} if make is groups else {})
    done = convert(path, tmp_path / "b.mma", defaults={"x": default}, **options)
    stored = default.encode() if kind == "bytes" else default
    wanted = [stored if value is None else value for value in values]
    assert [(sample["row"], sample["x"]) for sample in samples(done.path)] == list(enumerate(wanted))


@pytest.mark.parametrize(
    ("defaults", "message"),
    [
        ({"y": 1}, "defaults: expected fields among 'n', 'x', found 'y'"),
        ({"x": 5}, r"defaults\['x'\]: field 'x': expected int64 of shape \(None,\), found int 5"),
        ({"n": 0.5}, r"defaults\['n'\]: field 'n': expected int64, found float 0\.5"),
        ({"n": None}, r"defaults\['n'\]: field 'n': expected int64, found null"),
        ({"n": np.int64(1)}, r"defaults\['n'\]: Object of type int64 is not JSON serializable"),
        ([1], r"defaults = \[1\], expected a dict of names"),
    ],
)
def test_defaults_that_do_not_fit(tmp_path, defaults, message):
    path = jsonl(tmp_path, [{"n": 1, "x": [1]}])
    with pytest.raises(mmapds.FormatError, match=message):
        convert(path, defaults=defaults)


@pytest.mark.parametrize("save_as", [parquet, arrow, jsonl])
@pytest.mark.parametrize("values", [[3, None], [[1, 2, 3], None]])
def test_a_null_in_the_field_of_lengths(tmp_path, save_as, values):
    """It cannot be kept as JSON, which gives no lengths; a type that is inferred stays that of the other records."""
    path = save_as(tmp_path, [{"x": value} for value in values])
    with pytest.raises(
        mmapds.FormatError, match=r"x': expected int64.*, found null; give --defaults or --missing skip"
    ):
        convert(path, length="x")
    assert convert(path, length="x", missing="skip").records == 1
    done = convert(path, length="x", defaults={"x": [] if isinstance(values[0], list) else 0})
    assert mmapds.open(done.path).lengths.tolist() == [3, 0]


@pytest.mark.parametrize("make", [jsonl, groups])
@pytest.mark.parametrize("last", [{"b": "y", "c": "late"}, {"a": 3, "c": "late"}, {"a": 3, "b": "y", "c": "late"}])
def test_a_field_that_comes_late_is_an_error_whatever_else_its_record_lacks(tmp_path, make, last):
    path = make(tmp_path, [{"a": 1, "b": "x"}, {"a": 2, "b": "x"}, last])
    options = {"records": "groups"} if make is groups else {}
    for missing in ({"defaults": {"a": 0, "b": ""}}, {"types": {"a": "json", "b": "json"}}):
        with pytest.raises(
            mmapds.FormatError, match=r"expected fields among .*, as in the records before it, found 'c'"
        ):
            convert(path, infer=2, **missing, **options)


# ---- values of other types ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "types"),
    [
        ([1, 0.5], {"x": "float64"}),
        ([1, 2**63], {"x": "json"}),
        ([1, "a"], {"x": "json"}),
        (["a", [1]], {"x": "json"}),
        ([[1], [0.5]], {"x": ["float64", [None]]}),
        ([[[1]], [[1], [2, 3]]], {"x": "json"}),
        ([[[1]], [[1, 2]]], {"x": ["int64", [None, None]]}),
        ([[1], [None]], {"x": "json"}),
        ([[1], 5], {"x": "json"}),
        ([[1], None], {"x": "json"}),
    ],
    ids=str,
)
def test_values_of_another_type_than_the_first_ones(tmp_path, values, types):
    path = jsonl(tmp_path, [{"x": value, "id": 7} for value in values])
    with pytest.raises(mmapds.FormatError, match=r"a\.jsonl:2 \(byte \d+\): field 'x': expected .*, found "):
        convert(path, infer=1)
    assert [sample["x"] for sample in samples(convert(path, infer=1, types=types).path)] == values
    assert [sample["x"] for sample in samples(convert(path).path)] == values


def test_types_of_some_fields_leave_the_others(tmp_path):
    path = jsonl(tmp_path, [{"id": 1, "x": [1, 2], "t": "a"}, {"id": 2, "x": [3], "t": "b"}])
    done = convert(path, types={"x": ("uint16", (None,))})
    assert done.schema.describe() == {"id": "int64", "x": ["uint16", [None]], "t": "str"}
    schema = {"t": "str", "x": "json"}
    assert convert(path, schema=schema, types={"x": "json"}).schema.describe() == schema
    for given, message in (
        ({"y": "json"}, "types: expected fields among 'id', 'x', 't', found 'y'"),
        ({"x": "list"}, r"schema\['x'\] = 'list', expected 'bytes'"),
        ("x", "types = 'x', expected a dict of names"),
    ):
        with pytest.raises(mmapds.FormatError, match=message):
            convert(path, types=given)
    ran = run("-m", "mmapds", "convert", path, "--types", "x")
    assert (ran.returncode, ran.stderr[:31]) == (2, "--types: expected a JSON object")


def test_numbers_of_files_that_differ_take_the_type_of_both(tmp_path):
    tables = [
        {"n": pa.array([1], pa.int32()), "x": pa.array([[1]], pa.list_(pa.int16()))},
        {"n": pa.array([2**40], pa.int64()), "x": pa.array([[0.5]], pa.list_(pa.float32()))},
    ]
    paths = [save(pa.table(table), tmp_path / f"{k}.parquet") for k, table in enumerate(tables)]
    done = convert(paths, tmp_path / "a.mma")
    assert done.schema.describe() == {"n": "int64", "x": ["float32", [None]]}
    assert samples(done.path) == [{"n": 1, "x": [1]}, {"n": 2**40, "x": [0.5]}]
    other = save(pa.table({"n": ["text"], "x": [[1]]}), tmp_path / "2.parquet")
    with pytest.raises(mmapds.FormatError, match=r"2\.parquet: field 'n': expected int64, .*, found str$"):
        convert([*paths, other], tmp_path / "a.mma")


# ---- more than there is room for ------------------------------------------------------------------------------------


def declared(path, rows=10**9):
    """An HDF5 file of rows that were never written."""
    with h5py.File(path, "w") as file:
        file.create_dataset("x", (rows,), "f4", chunks=(1000,), fillvalue=7)
        file.create_dataset("y", (rows, 3), "f8", chunks=(1000, 3))
    return path


def test_rows_that_were_never_written_are_converted_if_the_user_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(target, "_LEAST", 1 << 10)
    path = declared(tmp_path / "a.h5", 10_000)
    with pytest.raises(mmapds.FormatError, match=r"a\.h5: record \d+: expected up to \d+ bytes of records, found "):
        convert(path)
    assert os.listdir(tmp_path) == ["a.h5"]
    done = samples(convert(path, max_bytes=1_280_000).path)
    assert len(done) == 10_000
    assert done[-1] == {"x": 7, "y": [0, 0, 0]}


@pytest.mark.parametrize("way", ["parquet", "arrow"])
def test_a_table_that_makes_much_of_little_is_stopped(tmp_path, monkeypatch, way):
    monkeypatch.setattr(target, "_LEAST", 1 << 16)
    values = pa.DictionaryArray.from_arrays(pa.array(np.zeros(3000, np.int32)), pa.array(["x" * 10_000]))
    path = save(pa.table({"s": values}), tmp_path / f"a.{way}", way, rows=500)
    with pytest.raises(
        mmapds.FormatError, match=rf"a\.{way}: row \d+: expected up to \d+ bytes of records, found "
    ) as error:
        convert(path)
    assert os.listdir(tmp_path) == [f"a.{way}"]
    message, tries = str(error.value), 0
    while message:
        message, tries = outcome(path, int(message.rpartition(" ")[2])), tries + 1
    assert tries < 10
    assert len(mmapds.open(tmp_path / "a.mma")) == 3000


def outcome(path, most):
    """What a conversion says that may write some bytes; nothing if they are enough."""
    try:
        convert(path, max_bytes=most)
    except mmapds.FormatError as error:
        return str(error)
    return ""


def test_indexes_and_functions_may_make_any_size(tmp_path, monkeypatch):
    monkeypatch.setattr(target, "_LEAST", 1 << 10)
    monkeypatch.setattr(target, "_TIMES", 0)
    path = jsonl(tmp_path, [{"x": [0] * 100}] * 100)
    with pytest.raises(mmapds.FormatError, match="write "):
        convert(path)
    assert convert(path, decode=json.loads).records == 100
    assert convert(mmapds.build(path), tmp_path / "b.mma").records == 100
    with pytest.raises(mmapds.FormatError, match="max_bytes = 0, expected 1 or more"):
        convert(path, max_bytes=0)
