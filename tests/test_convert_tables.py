"""Converting Parquet and Arrow: as columns where nothing is null, else row by row; frozen answers hold more types."""

import re

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import mmapds
from mmapds.arrays import packed
from mmapds.convert import arrow, convert
from tests.support.conversions import samples, save

WAYS = {"parquet": "parquet", "arrow": "arrow", "stream": "arrow"}
N = 500
EVERY = {  # type of Arrow: values, and how Python has them where that differs
    "n": pa.array(range(N)),
    "i8": pa.array([i % 100 - 50 for i in range(N)], pa.int8()),
    "u64": pa.array([2**64 - 1 - i for i in range(N)], pa.uint64()),
    "f16": pa.array(np.arange(N, dtype=np.float16)),
    "f32": pa.array([i / 4 for i in range(N)], pa.float32()),
    "ok": pa.array([i % 2 == 0 for i in range(N)]),
    "text": pa.array([f"zeile \u00e9 {i}" * (i % 3) for i in range(N)]),
    "raw": pa.array([bytes([i % 256]) * (i % 5) for i in range(N)]),
    "sha": pa.array([bytes([i % 256]) * 4 for i in range(N)], pa.binary(4)),
    "kind": pa.array([str(i % 3) for i in range(N)]).dictionary_encode(),
    "many": pa.array([[i % 3] * (i % 3) for i in range(N)], pa.list_(pa.int16())),
    "box": pa.array([[i, i, 0, 1] for i in range(N)], pa.list_(pa.int16(), 4)),
    "feats": pa.array([[[i, k, 0] for k in range(i % 4)] for i in range(N)], pa.list_(pa.list_(pa.float32(), 3))),
    "grid": pa.array([[[i] * (i % 3)] * (i % 4) for i in range(N)], pa.large_list(pa.list_(pa.int64()))),
    "mask": pa.array([[True, i % 2 == 0] for i in range(N)], pa.list_(pa.bool_())),
    "tags": pa.array([[{"a": i}, None] for i in range(N)]),
}
SHAPES = {"feats": lambda value: (len(value), 3), "grid": lambda value: (len(value), len(value[0]) if value else 0)}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("count", "room"), [(60, 1), (N, 1 << 20), (0, 1 << 20)])
def test_columns_are_written_as_records_are_and_no_row_is_looked_at(tmp_path, monkeypatch, way, count, room):
    table = pa.table(EVERY).slice(0, count)
    path = save(table, tmp_path / "a", way, rows=170)
    monkeypatch.setattr(arrow, "_ROWS", 100)
    monkeypatch.setattr(packed, "_PIECE", room)
    monkeypatch.setattr(arrow, "objects_of", None)
    done = convert(path, tmp_path / "a.mma", format=WAYS[way], length="many")
    with mmapds.Writer(tmp_path / "b.mma", done.schema.describe(), length="many") as writer:
        writer._metadata["origin"] = "a"
        for row in table.to_pylist():
            arrays = {name: np.array(row[name], np.float32 if name == "feats" else np.int64) for name in SHAPES}
            writer.write(row | {name: array.reshape(SHAPES[name](row[name])) for name, array in arrays.items()})
    assert (tmp_path / "a.mma").read_bytes() == (tmp_path / "b.mma").read_bytes()


SMALL = st.integers(-9, 9)
LISTS = st.none() | st.lists(SMALL | SMALL | st.none(), max_size=3)
ROWS = st.tuples(st.none() | SMALL, st.text(max_size=3), LISTS, st.none() | st.lists(LISTS, max_size=3))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(ROWS, min_size=1, max_size=12), begin=st.integers(0, 5), cut=st.integers(1, 5))
@example([(1, "a", [1], [[1], [2, 3]])], 0, 1)
@example([(1, "a", [1], [[1, 2], [3, 4]]), (2, "b", [], [[5]])], 0, 2)
def test_rows_with_nulls_are_left_out_and_no_others(tmp_path, rows, begin, cut):
    """Also where batches are slices of others, and lists are null, hold nulls, or make no array."""
    number, text, flat, nested = zip(*rows, strict=True)
    table = pa.table(
        {
            "number": pa.array(number, pa.int16()),
            "text": pa.array(text, pa.string()).dictionary_encode(),
            "flat": pa.array(flat, pa.list_(pa.int32())),
            "fixed": pa.array([None if row is None else [1, 2] for row in flat], pa.list_(pa.int8(), 2)),
            "nested": pa.array(nested, pa.list_(pa.list_(pa.int64()))),
        }
    ).slice(begin)
    path, wanted = save(table, tmp_path / "a.arrow", "arrow", rows=cut), table.to_pylist()
    assert samples(convert(path, schema=dict.fromkeys(table.column_names, "json")).path) == wanted
    for names in (["number", "text", "fixed"], ["flat"], ["nested"]):
        kept = [{name: row[name] for name in names} for row in wanted]
        kept = [row for row in kept if None not in row.values()]
        lists = [row.get("flat", row.get("nested", [])) for row in kept]
        bad = [each for each in lists if None in each or len({len(x) for x in each if isinstance(x, list)}) > 1]
        bad += [each for each in lists for inner in each if isinstance(inner, list) and None in inner]
        if bad or (wanted and not kept):
            with pytest.raises(mmapds.FormatError, match="found list" if bad else f"found 0 of {len(wanted)}"):
                convert(path, missing="skip", fields=names)
        else:
            done = convert(path, missing="skip", fields=names)
            assert (samples(done.path), done.skipped) == (kept, len(wanted) - len(kept))


BIG, INF = 2**63, float("inf")
CASTS = [  # type, values, type asked for, and whether they fit
    ("int64", [1, 255], "uint8", True),
    ("int64", [1, 256], "uint8", False),
    ("int64", [-1], "uint64", False),
    ("uint64", [BIG - 1], "int64", True),
    ("uint64", [BIG], "int64", False),
    ("int64", [2**24], "float32", True),
    ("int64", [2**24 + 1], "float32", False),
    ("uint64", [2 * BIG - 1], "float64", False),
    ("float64", [0.1, INF, 1e-320, -0.0], "float32", True),
    ("float64", [1e300], "float32", False),
    ("float64", [65520.0], "float16", False),
    ("float64", [1.0], "int64", False),
    ("bool", [True, False], "uint8", True),
]


@pytest.mark.parametrize(("kind", "values", "dtype", "fits"), CASTS)
def test_numbers_take_a_type_that_is_asked_for_if_they_fit_it(tmp_path, kind, values, dtype, fits):
    """As numbers and as lists; in columns, and row by row where there is a null."""
    lists = [[value] for value in values]
    for nulls in ([], [None]):
        table = {
            "x": pa.array(values + nulls, pa.type_for_alias(kind)),
            "ragged": pa.array(lists + nulls, pa.list_(pa.type_for_alias(kind))),
            "fixed": pa.array(lists + nulls, pa.list_(pa.type_for_alias(kind))),
        }
        path = save(pa.table(table), tmp_path / "a.arrow", "arrow")
        for name, what in (("x", dtype), ("ragged", (dtype, (None,))), ("fixed", (dtype, (1,)))):
            asked = {"fields": [name], "types": {name: what}, "missing": "skip"}
            if not fits:
                with pytest.raises(mmapds.FormatError, match=rf"row \d: field '{name}': expected (numbers .*)?{dtype}"):
                    convert(path, **asked)
                continue
            stored = np.array(values).astype(dtype).tolist()
            found = samples(convert(path, **asked).path)
            assert [sample[name] for sample in found] == (stored if name == "x" else [[each] for each in stored])


def test_errors_have_the_place_of_the_row(tmp_path):
    path = save(pa.table({"n": [*range(N - 1), -1]}), tmp_path / "a.arrow", "arrow")
    with pytest.raises(mmapds.FormatError, match=rf"a\.arrow: row {N - 1}: field 'n': expected a length of 0 or more"):
        convert(path, length="n")
    bad = save(pa.table({"text": pa.array([b"ok", b"\xff"]).view(pa.string())}), tmp_path / "b.parquet")
    with pytest.raises(mmapds.FormatError, match=r"b\.parquet: not a readable Parquet file: .*utf-8"):
        convert(bad)


# ---- several files --------------------------------------------------------------------------------------------------


def test_sources_come_one_after_another_and_take_the_types_of_all(tmp_path):
    def part(number, **columns):
        return save(pa.table(columns), tmp_path / f"part-{number}.parquet")

    part(0, n=pa.array(range(5), pa.int32()), x=pa.array([[1]] * 5, pa.list_(pa.int16())), z=pa.nulls(5))
    part(1, n=pa.array([2**40]), x=pa.array([[0.5]], pa.list_(pa.float32())), z=pa.nulls(1))
    part(2, n=pa.nulls(1), x=pa.array([[]], pa.list_(pa.null())), z=pa.nulls(1))
    whole, out = str(tmp_path / "part-{0..2}.parquet"), tmp_path / "all.mma"
    done = convert(whole, out, defaults={"n": -1})
    assert done.schema.describe() == {"n": "int64", "x": ["float32", [None]], "z": "json"}
    rows = [*((n, [1]) for n in range(5)), (2**40, [0.5]), (-1, [])]
    assert samples(done.path) == [{"n": n, "x": x, "z": None} for n, x in rows]
    assert convert(whole, out, missing="skip")[1:3] == (6, 1)
    with pytest.raises(mmapds.FormatError, match=r"part-2\.parquet: row 0: field 'n': expected int64, found null"):
        convert(whole, out)
    part(3, n=[1], more=["x"])
    with pytest.raises(mmapds.FormatError, match=r"part-\d\.parquet: row 0: .*field 'more': expected .*, found no"):
        convert(str(tmp_path / "part-{0,3}.parquet"), out)


@pytest.mark.parametrize("options", [{}, {"types": {"t": "json"}}])
def test_a_column_of_nulls_in_one_file_takes_the_type_of_the_others(tmp_path, options):
    for name, texts in (("a", pa.nulls(2)), ("b", pa.array(["x", "y"]))):
        save(pa.table({"t": texts, "n": [1, 2]}), tmp_path / f"{name}.parquet")
    for order, wanted in (("ab", ["", "", "x", "y"]), ("ba", ["x", "y", "", ""])):
        paths = [tmp_path / f"{name}.parquet" for name in order]
        done = convert(paths, tmp_path / "all.mma", defaults={"t": ""}, force=True, **options)
        assert done.schema.describe() == {"t": options.get("types", {}).get("t", "str"), "n": "int64"}
        assert [sample["t"] for sample in samples(done.path)] == wanted


def test_files_whose_types_no_type_holds_are_not_mixed(tmp_path):
    for name, unit, other in (("a", "us", 1), ("b", "us", 2), ("units", "ns", 3), ("kinds", "us", "text")):
        times = pa.ListArray.from_arrays([0, 1], pa.array([1]).view(pa.time64(unit)))
        save(pa.table({"t": times, "other": [other]}), tmp_path / f"{name}.parquet")
    times = re.escape("'t': expected time64[us], as in the files before, found time64[ns]")
    for name, message in (("units", times), ("kinds", "'other': expected int64, .*, found str")):
        with pytest.raises(mmapds.FormatError, match=rf"{name}\.parquet: field {message}$"):
            convert([tmp_path / "a.parquet", tmp_path / f"{name}.parquet"], tmp_path / "o.mma")
    done = convert(str(tmp_path / "{a,b}.parquet"), tmp_path / "o.mma")
    assert samples(done.path) == [{"t": [1], "other": 1}, {"t": [1], "other": 2}]


def test_lists_without_lists_that_are_stored_without_an_offset(tmp_path):
    """As other writers leave them: the inner array has no list, and its buffer of offsets is empty."""
    kind, bounds = pa.list_(pa.int32()), [None, pa.py_buffer(np.zeros(3, np.int32))]
    inner = pa.ListArray.from_buffers(kind, 0, [None, pa.py_buffer(b"")], 0, 0, [pa.array([], pa.int32())])
    outer = pa.ListArray.from_buffers(pa.list_(kind), 2, bounds, 0, 0, [inner])
    done = convert(save(pa.table({"x": outer}), tmp_path / "a.arrow"), tmp_path / "a.mma")
    assert [sample["x"].size for sample in mmapds.open(done.path)] == [0, 0]
