"""Converting Parquet and Arrow: every type, nulls, and schemas that are given."""

import decimal
from datetime import date, datetime, time, timedelta

import h5py
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import mmapds
from mmapds.convert import arrow as reading
from mmapds.convert import convert
from tests.support.conversions import WAYS, every_type, samples, save


@pytest.mark.parametrize("way", WAYS)
def test_every_type_of_a_table(tmp_path, way):
    n = 2000
    views = pa.array([f"{i}" * 9 for i in range(n)], pa.string_view())
    columns = every_type(n) | ({} if way == "parquet" else {"view": views})
    table = pa.table(columns)
    done = convert(save(table, tmp_path / "a", way), tmp_path / "a.mma", format=way.replace("stream", "arrow"))
    assert (done.records, done.skipped) == (n, 0)
    found = samples(tmp_path / "a.mma")
    for name in columns:
        assert [sample[name] for sample in found] == table[name].to_pylist(), name
    ds = mmapds.open(tmp_path / "a.mma")
    assert [ds[5][name].dtype for name in ("many", "box", "feats", "mask")] == ["i2", "i2", "f4", "?"]
    assert all(sample["feats"].shape == (i % 4, 3) for i, sample in enumerate(ds))
    assert ds.column("i8").tolist() == columns["i8"].to_pylist()
    assert ds.column("many_length").tolist() == [i % 3 for i in range(n)]


def test_what_arrays_have_no_type_for(tmp_path):
    table = pa.table(
        {
            "image": [{"bytes": b"\xff\xd8", "path": "a.jpg"}, {"bytes": b"", "path": "b"}],
            "deep": [{"x": {"y": 1}}, {"x": {"y": 2}}],
            "tags": [["a", None], []],
            "people": [[{"name": "A"}], [{"name": "B"}, {"name": None}]],
            "map": pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int64())),
            "nothing": pa.nulls(2),
            "price": pa.array([decimal.Decimal("1.10"), decimal.Decimal("-0.01")], pa.decimal128(5, 2)),
            "day": [date(2024, 1, 1), date(1969, 12, 31)],
            "at": pa.array([datetime(2024, 1, 1), datetime(1969, 12, 31)], pa.timestamp("us")),
            "clock": pa.array([time(0, 0, 1), time(1)], pa.time32("ms")),
            "took": pa.array([timedelta(seconds=1), timedelta(0)], pa.duration("ms")),
        }
    )
    convert(save(table, tmp_path / "a.parquet"))
    one, two = samples(tmp_path / "a.mma")
    assert one == {
        "image.bytes": b"\xff\xd8",
        "image.path": "a.jpg",
        "deep.x.y": 1,
        "tags": ["a", None],
        "people": [{"name": "A"}],
        "map": [["k", 1]],
        "nothing": None,
        "price": "1.10",
        "day": 19723,
        "at": 1704067200 * 10**6,
        "clock": 1000,
        "took": 1000,
    }
    assert (two["price"], two["day"], two["at"]) == ("-0.01", -1, -86400 * 10**6)


def test_tensors(tmp_path):
    tensors = np.arange(24, dtype=np.float32).reshape(4, 2, 3)
    kind = pa.fixed_shape_tensor(pa.float32(), [2, 3])
    with_null = pa.ExtensionArray.from_storage(kind, pa.array([None, [1.0] * 6], pa.list_(pa.float32(), 6)))
    for way in WAYS:
        table = pa.table({"x": pa.FixedShapeTensorArray.from_numpy_ndarray(tensors)})
        convert(save(table, tmp_path / way, way, rows=3), format=way.replace("stream", "arrow"))
        ds = mmapds.open(tmp_path / f"{way}.mma")
        np.testing.assert_array_equal([sample["x"] for sample in ds], tensors)
        assert ds[0]["x"].dtype == np.float32
    save(pa.table({"x": with_null}), tmp_path / "a.arrow", "arrow")
    assert convert(tmp_path / "a.arrow", missing="skip")[1:3] == (1, 1)


NUMBERS = st.one_of(st.none(), st.integers(-9, 9))
LISTS = st.one_of(st.none(), st.lists(st.integers(-9, 9), max_size=3))


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(st.tuples(NUMBERS, LISTS, st.one_of(st.none(), st.lists(LISTS, max_size=3))), max_size=20),
    cut=st.integers(1, 5),
)
def test_rows_with_nulls_are_left_out_and_no_others(tmp_path, rows, cut):
    """Also where batches are slices of others, and lists are null, hold nulls, or make no array."""
    small, lists, nested = zip(*rows, strict=True) if rows else ((), (), ())
    table = pa.table(
        {
            "number": pa.array(small, pa.int16()),
            "list": pa.array(lists, pa.list_(pa.int32())),
            "fixed": pa.array([None if row is None else [1, 2] for row in lists], pa.list_(pa.int8(), 2)),
            "nested": pa.array(nested, pa.list_(pa.list_(pa.int64()))),
        }
    )
    path = save(table, tmp_path / "a.arrow", "arrow", rows=cut)
    names = ["number", "list", "fixed"]
    whole = [row for row in table.to_pylist() if None not in (row["number"], row["list"], row["fixed"])]
    if rows and not whole:
        with pytest.raises(mmapds.FormatError, match=rf"; 0 of {len(rows)} records have all of them"):
            convert(path, missing="skip", fields=names)
    else:
        done = convert(path, missing="skip", fields=names)
        assert samples(done.path) == [{name: row[name] for name in names} for row in whole]
        assert done.skipped == len(rows) - len(whole)
    done = convert(path, schema=dict.fromkeys(table.column_names, "json"))
    assert samples(done.path) == table.to_pylist()
    jagged = [row for row in nested if row is not None and (None in row or len({len(each) for each in row}) > 1)]
    if jagged:
        with pytest.raises(
            mmapds.FormatError, match=r"a.arrow: row \d+: field 'nested': expected int64 of .*, found list"
        ):
            convert(path, missing="skip", fields=["nested"])
    elif nested and all(row is None for row in nested):
        with pytest.raises(mmapds.FormatError, match="expected fields 'nested', found none; 0 of"):
            convert(path, missing="skip", fields=["nested"])
    else:
        convert(path, missing="skip", fields=["nested"])
        assert samples(done.path) == [{"nested": row} for row in nested if row is not None]


def test_sources_come_one_after_another(tmp_path):
    for shard in range(3):
        save(pa.table({"id": range(10 * shard, 10 * shard + 10)}), tmp_path / f"part-{shard}.parquet")
    done = convert(str(tmp_path / "part-{0..2}.parquet"), tmp_path / "all.mma")
    assert [sample["id"] for sample in mmapds.open(done.path)] == list(range(30))
    save(pa.table({"id": [1], "more": ["x"]}), tmp_path / "part-3.parquet")
    with pytest.raises(
        mmapds.FormatError,
        match=r"part-0.parquet: row 0: field 'more': expected .*, found nothing; leave such records out",
    ):
        convert(str(tmp_path / "part-*.parquet"), tmp_path / "all.mma")
    assert convert(str(tmp_path / "part-*.parquet"), tmp_path / "all.mma", fields=["id"]).records == 31
    assert convert(str(tmp_path / "part-*.parquet"), tmp_path / "all.mma", missing="skip")[1:3] == (1, 30)
    save(pa.table({"id": ["text"]}), tmp_path / "part-4.parquet")
    with pytest.raises(
        mmapds.FormatError, match=r"part-4.parquet: field 'id': expected int64, as in the files before, found str"
    ):
        convert(str(tmp_path / "part-*.parquet"), tmp_path / "all.mma")


def test_numbers_take_the_types_of_a_schema(tmp_path):
    save(
        pa.table({"tokens": pa.array([[1, 65535], []], pa.list_(pa.int64())), "x": [[0.1], [0.2]]}),
        tmp_path / "a.parquet",
    )
    schema = {"tokens": ["uint16", [None]], "x": ["float32", [1]]}
    convert(tmp_path / "a.parquet", schema=schema, length="tokens")
    ds = mmapds.open(tmp_path / "a.mma")
    assert [ds[0]["tokens"].dtype, ds[0]["x"].dtype] == ["u2", "f4"]
    assert ds.lengths.tolist() == [2, 0]
    for wrong in ("uint8", "bool"):
        message = rf"row 0: field 'tokens': expected numbers that fit {wrong}, found int64 from 1 to 65535; choose"
        with pytest.raises(mmapds.FormatError, match=message):
            convert(tmp_path / "a.parquet", schema={"tokens": [wrong, [None]]})
    with pytest.raises(
        mmapds.FormatError,
        match=r"row 0: field 'x': expected numbers that fit int64, found float64 from 0\.1 to 0\.1; choose",
    ):
        convert(tmp_path / "a.parquet", schema={"x": ["int64", [None]]})


def test_integers_become_floats_only_where_none_is_lost(tmp_path):
    save(pa.table({"id": [16777216, 16777217], "list": [[1], [2**53 + 1]]}), tmp_path / "a.parquet")
    assert convert(tmp_path / "a.parquet", schema={"id": "float64"}).records == 2
    for schema, message in [
        ({"id": "float32"}, "row 1: field 'id': expected float32, found int 16777217"),
        (
            {"list": ["float64", [None]]},
            f"row 1: field 'list': expected numbers that fit float64, found int64 from {2**53 + 1} to",
        ),
    ]:
        with pytest.raises(mmapds.FormatError, match=message):
            convert(tmp_path / "a.parquet", schema=schema)


def test_lists_in_any_order(tmp_path):
    values = pa.array([1, 2, 3, 4, 5])
    views = pa.ListViewArray.from_arrays(pa.array([3, 0, 2], pa.int32()), pa.array([2, 3, 1], pa.int32()), values)
    table = pa.table(
        {"view": views, "in": pa.array([[1, 2], [3], [4, 5, 6]], pa.large_list_view(pa.int16())), "e": [{}] * 3}
    )
    convert(save(table, tmp_path / "a.arrow", "arrow", rows=2))
    assert samples(tmp_path / "a.mma") == table.to_pylist()
    assert [sample["view"] for sample in samples(tmp_path / "a.mma")] == [[4, 5], [1, 2, 3], [3]]


def test_numbers_that_do_not_fit_are_found_among_others(tmp_path):
    save(pa.table({"a": [[1e300, float("inf")]], "b": [[2**63 - 1]]}), tmp_path / "a.parquet")
    for schema in ({"a": ["float32", [None]]}, {"b": ["float64", [None]]}):
        with pytest.raises(
            mmapds.FormatError, match=r"row 0: field '.': expected numbers that fit float.., found .*64 from .*; choose"
        ):
            convert(tmp_path / "a.parquet", schema=schema)


def test_names_that_a_table_has_not(tmp_path):
    save(pa.table({"s": [{"x": 1}]}), tmp_path / "a.parquet")
    with pytest.raises(mmapds.FormatError, match=r"schema: expected fields among 's\.x'.*, found 's'"):
        convert(tmp_path / "a.parquet", schema={"s": "json"})


def test_tables_that_are_empty(tmp_path):
    for way in WAYS:
        path = save(pa.table({"x": pa.array([], pa.int64())}), tmp_path / "a", way)
        assert convert(path, tmp_path / "a.mma", format=way.replace("stream", "arrow")).records == 0
        assert mmapds.open(tmp_path / "a.mma").column("x").tolist() == []
    with h5py.File(tmp_path / "a.h5", "w"):
        pass
    for records in ("rows", "groups"):
        assert convert(tmp_path / "a.h5", tmp_path / "h5.mma", records=records).records == 0


def test_dates_and_decimals_beyond_their_types_are_converted(tmp_path):
    """As other writers leave them: dates that are no whole days, and more digits than the precision."""
    dates = pa.array([86_400_005, -1], pa.int64()).view(pa.date64())
    wide = pa.array([decimal.Decimal("123.45"), decimal.Decimal("-99999.99")]).cast(pa.decimal128(9, 2))
    narrow = pa.Array.from_buffers(pa.decimal128(3, 2), 2, wide.buffers())
    for array in (dates, narrow):
        with pytest.raises(pa.ArrowInvalid):
            array.validate(full=True)
    path = save(pa.table({"day": dates, "price": narrow}), tmp_path / "a.arrow", "arrow")
    assert samples(convert(path).path) == [{"day": 86_400_005, "price": "123.45"}, {"day": -1, "price": "-99999.99"}]


@pytest.mark.parametrize("is_nested", [False, True])
def test_months_are_refused_by_name_and_can_be_left_out(tmp_path, is_nested):
    """pyarrow cannot write an interval of months, so one of months, days and nanoseconds is changed to it."""
    kind = pa.month_day_nano_interval()
    value, kind = ([(1, 2, 3)], pa.list_(kind)) if is_nested else ((1, 2, 3), kind)
    path = tmp_path / "a.arrow"
    save(pa.table({"span": pa.array([value], kind), "id": [7]}), path, "arrow")
    data = path.read_bytes()
    changed = (data[:at] + b"\0" + data[at + 1 :] for at in range(len(data)) if data[at] == 2)
    path.write_bytes(next(each for each in changed if "month_interval" in named(each)))
    with pytest.raises(mmapds.FormatError, match=r"a\.arrow: field 'span': expected .*, found .*month_interval"):
        convert(path)
    assert samples(convert(path, fields=["id"]).path) == [{"id": 7}]


def named(data):
    """The types in the schema of an Arrow file, or nothing for a damaged one."""
    try:
        return str(pa.ipc.open_file(pa.py_buffer(data)).schema)
    except (pa.ArrowException, KeyError, OSError):
        return ""


@pytest.mark.parametrize("lost", [None, 3])
@pytest.mark.parametrize(("shape", "axes"), [((2, 3), [1, 0]), ((3, 4, 5), [2, 0, 1]), ((2, 3, 4, 5), [3, 0, 2, 1])])
def test_tensors_whose_axes_are_permuted(tmp_path, lost, shape, axes):
    """The logical axis k is the stored one axes[k], by the specification of Arrow."""
    expected = np.arange(5000 * np.prod(shape), dtype=np.int32).reshape(5000, *shape)
    kind = pa.fixed_shape_tensor(pa.int32(), shape, permutation=axes)
    rows = [None if row == lost else tensor.ravel() for row, tensor in enumerate(expected)]
    storage = pa.array(rows, kind.storage_type)
    path = save(pa.table({"t": pa.ExtensionArray.from_storage(kind, storage)}), tmp_path / "a.arrow", "arrow")
    convert(path, tmp_path / "a.mma", missing="skip")
    found = np.stack([sample["t"] for sample in mmapds.open(tmp_path / "a.mma")])
    kept = [row for row in range(5000) if row != lost]
    assert (found == expected[kept].transpose(0, *(axis + 1 for axis in axes))).all()


@pytest.mark.parametrize("suffix", ["arrow", "parquet"])
@pytest.mark.parametrize("axes", [None, [1, 0]])
def test_tensors_are_lists_in_lists_as_json(tmp_path, suffix, axes):
    kind = pa.fixed_shape_tensor(pa.int32(), [2, 3], permutation=axes)
    storage = pa.array([[0, 1, 2, 3, 4, None], None, [6, 7, 8, 9, 10, 11]], kind.storage_type)
    tensors = pa.ExtensionArray.from_storage(kind, storage)
    columns = {
        "t": tensors,
        "part": pa.StructArray.from_arrays([tensors], ["of"]),
        "listed": pa.ListArray.from_arrays(pa.array([0, 2, 2, 3]), tensors),
        "inside": pa.ListArray.from_arrays(pa.array([0, 1, 1, 3]), pa.StructArray.from_arrays([tensors], ["of"])),
    }
    path = save(pa.table(columns), tmp_path / f"a.{suffix}")
    done = convert(path, tmp_path / "a.mma", types={"t": "json", "part.of": "json"})
    first, last = [[0, 1, 2], [3, 4, None]], [[6, 7, 8], [9, 10, 11]]
    if axes:
        first, last = [list(row) for row in zip(*first, strict=True)], [list(row) for row in zip(*last, strict=True)]
    found = list(mmapds.open(done.path))
    assert [sample["t"] for sample in found] == [sample["part.of"] for sample in found] == [first, None, last]
    assert [sample["listed"] for sample in found] == [[first, None], [], [last]]
    assert [sample["inside"] for sample in found] == [[{"of": first}], [], [{"of": None}, {"of": last}]]


@pytest.mark.parametrize("is_large", [False, True])
def test_lists_without_lists_that_are_stored_without_an_offset(tmp_path, is_large):
    """As other writers leave them: the inner array has no list, and its buffer of offsets is empty."""
    kind, made, offsets = (
        (pa.large_list, pa.LargeListArray, np.int64) if is_large else (pa.list_, pa.ListArray, np.int32)
    )
    inner = made.from_buffers(kind(pa.int32()), 0, [None, pa.py_buffer(b"")], 0, 0, [pa.array([], pa.int32())])
    bounds = [None, pa.py_buffer(np.zeros(3, offsets))]
    outer = made.from_buffers(kind(kind(pa.int32())), 2, bounds, 0, 0, [inner])
    convert(save(pa.table({"x": outer}), tmp_path / "a.arrow"), tmp_path / "a.mma")
    assert [sample["x"].size for sample in mmapds.open(tmp_path / "a.mma")] == [0, 0]


IN_RUNS = {
    "numbers": [5, 6],
    "text": ["first", "second"],
    "nulls": [None, 6],
    "times": pa.array([5, 6], pa.timestamp("ns")),
    "days": pa.array([0, 86_400_000], pa.date64()),
    "prices": pa.array([decimal.Decimal("1.50"), decimal.Decimal("2.00")]),
    "lists of times": pa.array([[5], [6]], pa.list_(pa.time64("ns"))),
}
AS_JSON = {"times": [5, 6], "days": [0, 86_400_000], "prices": ["1.50", "2.00"], "lists of times": [[5], [6]]}


def in_places(array):
    """Columns that hold an array at different depths."""
    records = len(array) // 2
    pairs = pa.array(range(0, len(array) + 1, 2), pa.int32())
    lacks = pa.array([i % 3 == 0 for i in range(records)])
    lists = pa.ListArray.from_arrays(pairs, array)
    return {
        "alone": array.slice(0, records),
        "part": pa.StructArray.from_arrays([array], ["x"]).slice(0, records),
        "lists": lists,
        "lists and nulls": pa.ListArray.from_arrays(pairs, array, mask=lacks),
        "lists of one size": pa.FixedSizeListArray.from_arrays(array, 2),
        "views": pa.ListViewArray.from_arrays(pairs.slice(0, records), pa.array([2] * records, pa.int32()), array),
        "lists of parts": pa.ListArray.from_arrays(pairs, pa.StructArray.from_arrays([array], ["x"])),
        "lists of lists": pa.ListArray.from_arrays(pa.array(range(records + 1), pa.int32()), lists),
    }


@pytest.mark.parametrize("kind", IN_RUNS)
def test_runs_are_as_their_values_in_every_batch_of_rows(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(reading, "_ROWS", 40)
    values, ends = IN_RUNS[kind], [45, 90, 91, 200]
    runs = pa.RunEndEncodedArray.from_arrays(pa.array(ends, pa.int32()), pa.concat_arrays([pa.array(values)] * 2))
    wanted = [AS_JSON.get(kind, values)[i % 2] for i in range(4) for _ in range(ends[i] - [0, *ends][i])]
    columns = in_places(runs)
    names = ["part.x" if name == "part" else name for name in columns]
    path = save(pa.table(columns), tmp_path / "a", "arrow")
    found = samples(convert(path, format="arrow", types=dict.fromkeys(names, "json")).path)
    for name, column in in_places(pa.array(wanted)).items():
        expected = [value["x"] for value in column.to_pylist()] if name == "part" else column.to_pylist()
        assert [sample["part.x" if name == "part" else name] for sample in found] == expected, name


def test_runs_have_the_type_of_their_values(tmp_path):
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([2, 3], pa.int32()), pa.array([5, 6], pa.int16()))
    done = convert(save(pa.table({"x": runs}), tmp_path / "a.arrow", "arrow"))
    assert done.schema.describe() == {"x": "int16"}
    assert samples(done.path) == [{"x": 5}, {"x": 5}, {"x": 6}]


@pytest.mark.parametrize("ends", [[10, 20], [45, 99], [45, 45], [100, 45], [-1, 100]])
@pytest.mark.parametrize("kind", ["numbers", "times", "prices"])
def test_runs_that_do_not_end_where_the_rows_end_are_refused(tmp_path, kind, ends):
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([45, 100], pa.int32()), pa.array(IN_RUNS[kind]))
    path = tmp_path / "a"
    save(pa.table({"x": runs}), path, "arrow")
    good, bad = (np.array(each, "<i4").tobytes() for each in ([45, 100], ends))
    assert path.read_bytes().count(good) == 1
    path.write_bytes(path.read_bytes().replace(good, bad))
    with pytest.raises(mmapds.FormatError, match="a: not a readable Arrow file: "):
        convert(path, format="arrow")


@pytest.mark.parametrize("way", ["parquet", "arrow"])
def test_a_column_of_nulls_takes_the_type_of_other_files(tmp_path, way):
    nulls = {"n": pa.nulls(1), "list": pa.array([[]], pa.list_(pa.null())), "never": pa.nulls(1)}
    values = {"n": pa.array([0.5]), "list": pa.array([[1, 2]], pa.list_(pa.int16())), "never": pa.nulls(1)}
    paths = [save(pa.table(table), tmp_path / f"{k}.{way}", way) for k, table in enumerate((nulls, values, nulls))]
    done = convert(paths, tmp_path / "a.mma", defaults={"n": -1})
    assert done.schema.describe() == {"n": "float64", "list": ["int16", [None]], "never": "json"}
    wanted = [{"n": -1, "list": [], "never": None}, {"n": 0.5, "list": [1, 2], "never": None}]
    assert samples(done.path) == [*wanted, wanted[0]]
    assert convert(paths, tmp_path / "a.mma", missing="skip")[1:3] == (1, 2)
    done = convert(paths, tmp_path / "a.mma", types={"n": "json"})
    assert [sample["n"] for sample in samples(done.path)] == [None, 0.5, None]
    with pytest.raises(mmapds.FormatError, match=rf"0\.{way}: row 0: field 'n': expected float64, found null; leave"):
        convert(paths, tmp_path / "a.mma")


def test_times_in_runs_in_maps(tmp_path):
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([2, 4], pa.int32()), pa.array([5, 6], pa.timestamp("ns")))
    maps = pa.MapArray.from_arrays(pa.array(range(5), pa.int32()), pa.array(range(4)), runs)
    path = save(pa.table({"x": maps}), tmp_path / "a.arrow", "arrow")
    assert [sample["x"] for sample in samples(convert(path).path)] == [[[0, 5]], [[1, 5]], [[2, 6]], [[3, 6]]]
