"""Converting Parquet and Arrow: every type, nulls, and schemas that are given."""

import h5py
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import mmapds
from mmapds.convert import convert
from tests.support.conversions import WAYS, samples, save


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
        with pytest.raises(mmapds.FormatError, match=rf"found 0 of {len(rows)}"):
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
        with pytest.raises(mmapds.FormatError, match="expected records with the fields 'nested', found 0 of"):
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
        match=r"part-0.parquet: row 0: field 'more': expected .*, found nothing; give ",
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
        message = rf"row 0: field 'tokens': expected numbers that fit {wrong}, found int64 from 1 to 65535"
        with pytest.raises(mmapds.FormatError, match=message):
            convert(tmp_path / "a.parquet", schema={"tokens": [wrong, [None]]})
    with pytest.raises(
        mmapds.FormatError,
        match=r"row 0: field 'x': expected numbers that fit int64, found float64 from 0\.1 to 0\.1",
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


def test_tables_that_are_empty(tmp_path):
    for way in WAYS:
        path = save(pa.table({"x": pa.array([], pa.int64())}), tmp_path / "a", way)
        assert convert(path, tmp_path / "a.mma", format=way.replace("stream", "arrow")).records == 0
        assert mmapds.open(tmp_path / "a.mma").column("x").tolist() == []
    with h5py.File(tmp_path / "a.h5", "w"):
        pass
    for records in ("rows", "groups"):
        assert convert(tmp_path / "a.h5", tmp_path / "h5.mma", records=records).records == 0


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
    with pytest.raises(mmapds.FormatError, match=rf"0\.{way}: row 0: field 'n': expected float64, found null; give"):
        convert(paths, tmp_path / "a.mma")
