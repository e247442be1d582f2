"""Converting columns of Arrow that hold other arrays: structs, unions, runs and lists, in each other and in slices."""

from decimal import Decimal

import pyarrow as pa
import pytest

import mmapds
from mmapds.convert import arrow_values, convert, tables
from tests.support.conversions import samples, save


def of_each_kind(count):
    """Arrays of every kind that is laid out in its own way, and their values."""
    numbers, texts = pa.array(range(count)), pa.array([str(row) for row in range(count)])
    codes = pa.array([row % 2 for row in range(count)], pa.int8())
    places = pa.array(range(count), pa.int32())
    mixed = [str(row) if row % 2 else row for row in range(count)]
    ends = [*range(3, count, 3), count]
    boxes = pa.FixedSizeListArray.from_arrays(pa.array(range(6 * count), pa.int32()), 6)
    tensor = pa.fixed_shape_tensor(pa.int32(), [2, 3], permutation=[1, 0])
    return {
        "sparse union": (pa.UnionArray.from_sparse(codes, [numbers, texts]), mixed),
        "dense union": (pa.UnionArray.from_dense(codes, places, [numbers, texts]), mixed),
        "runs": (
            pa.RunEndEncodedArray.from_arrays(pa.array(ends, pa.int32()), texts.slice(0, len(ends))),
            [str(row // 3) for row in range(count)],
        ),
        "nulls": (pa.nulls(count), [None] * count),
        "tensors": (
            pa.ExtensionArray.from_storage(tensor, boxes),
            [[[6 * row + k, 6 * row + k + 3] for k in range(3)] for row in range(count)],
        ),
        "dictionary": (texts.dictionary_encode(), texts.to_pylist()),
        "view of lists": (
            pa.array([[row] for row in range(count)], pa.list_view(pa.int64())),
            [[row] for row in range(count)],
        ),
        "lists": (pa.array([[row] for row in range(count)]), [[row] for row in range(count)]),
    }


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("kind", of_each_kind(1))
def test_parts_of_a_struct_that_is_null_are_null(tmp_path, kind, depth):
    part, values = of_each_kind(20)[kind]
    is_null = pa.array([row % 4 == 1 for row in range(20)])
    for _ in range(depth):
        part = pa.StructArray.from_arrays([part], ["part"], mask=is_null)
    path = save(pa.table({"x": part.slice(3), "n": range(3, 20)}), tmp_path / "a.arrow", "arrow")
    name = "x" + ".part" * depth
    expected = [{name: None if row % 4 == 1 else values[row], "n": row} for row in range(3, 20)]
    assert samples(convert(path, types={name: "json"}).path) == expected
    filled = [{**sample, name: 0 if sample[name] is None else sample[name]} for sample in expected]
    assert samples(convert(path, force=True, types={name: "json"}, defaults={name: 0}).path) == filled


def held(part, days, values, numbers):
    """Arrays that hold two others in every way, and their values."""
    count = len(part)
    pairs = pa.StructArray.from_arrays([part, days], ["part", "day"])
    rows = [{"part": value, "day": number} for value, number in zip(values, numbers, strict=True)]
    bounds, names = pa.array(range(count + 1), pa.int32()), pa.array([str(row) for row in range(count)])
    codes = pa.array([row % 2 for row in range(count)], pa.int8())
    mixed = [numbers[row] if row % 2 else values[row] for row in range(count)]
    back = pa.array(range(count)[::-1], pa.int32())
    ones = pa.array([1] * count, pa.int32())
    return {
        "structs": (pa.StructArray.from_arrays([pairs], ["of"]).field(0), rows),
        "lists": (pa.ListArray.from_arrays(bounds, pairs), [[row] for row in rows]),
        "large lists": (pa.LargeListArray.from_arrays(bounds.cast("int64"), pairs), [[row] for row in rows]),
        "lists of one length": (pa.FixedSizeListArray.from_arrays(pairs, 1), [[row] for row in rows]),
        "views of lists": (pa.ListViewArray.from_arrays(back, ones, pairs), [[row] for row in rows[::-1]]),
        "maps": (
            pa.MapArray.from_arrays(bounds, names, pairs),
            [[[str(number), row]] for number, row in enumerate(rows)],
        ),
        "sparse unions": (pa.UnionArray.from_sparse(codes, [part, days]), mixed),
        "dense unions": (pa.UnionArray.from_dense(codes, bounds.slice(0, count), [part, days]), mixed),
        "runs": (
            pa.Array.from_buffers(
                pa.run_end_encoded(pa.int32(), pairs.type), count, [None], children=[bounds.slice(1), pairs]
            ),
            rows,
        ),
    }


@pytest.mark.parametrize("has_nulls", [False, True])
@pytest.mark.parametrize("way", held(pa.nulls(1), pa.nulls(1), [None], [None]))
@pytest.mark.parametrize("kind", of_each_kind(1))
def test_dates_beside_arrays_of_each_kind_in_each_other(tmp_path, monkeypatch, kind, way, has_nulls):
    """In blocks of a few rows, which are slices. The dates are no whole days, as other writers leave them."""
    monkeypatch.setattr(tables, "_ROWS", 7)
    part, values = of_each_kind(30)[kind]
    numbers = [None if row % 5 == 2 and has_nulls else row for row in range(30)]
    array, expected = held(part, pa.array(numbers, pa.int64()).view(pa.date64()), values, numbers)[way]
    if has_nulls:
        numbers = pa.array([None if row % 3 == 1 else row for row in range(30)], pa.int32())
        array = pa.DictionaryArray.from_arrays(numbers, array)
        expected = [None if row % 3 == 1 else expected[row] for row in range(30)]
    column = pa.ListArray.from_arrays(pa.array([*range(0, 31, 2)], pa.int32()), array)
    path = save(pa.table({"x": column.slice(1)}), tmp_path / "a.arrow", "arrow")
    assert samples(convert(path).path) == [{"x": expected[row : row + 2]} for row in range(2, 30, 2)]


@pytest.mark.parametrize("way", held(pa.nulls(1), pa.nulls(1), [None], [None]))
def test_lists_without_items_of_what_holds_dates(tmp_path, way):
    days = pa.array([1], pa.int64()).view(pa.date64())
    array, _ = held(pa.nulls(1), days, [None], [1])[way]
    path = save(pa.table({"x": pa.ListArray.from_arrays([0, 0, 0], array.slice(1))}), tmp_path / "a.arrow", "arrow")
    assert samples(convert(path).path) == [{"x": []}, {"x": []}]


def test_parts_of_one_name_are_refused(tmp_path):
    days = pa.array([1], pa.int32()).view(pa.date32())
    pairs = pa.StructArray.from_arrays([days, days], ["day", "day"])
    path = save(pa.table({"x": pa.ListArray.from_arrays([0, 1], pairs)}), tmp_path / "a.arrow", "arrow")
    with pytest.raises(mmapds.FormatError, match=r"a\.arrow: not a readable Arrow file: .*different names"):
        convert(path)


def test_a_batch_that_uses_little_of_a_dictionary_looks_at_little_of_it(monkeypatch):
    count = 100_000
    dictionary = pa.array([Decimal(entry) for entry in range(count)], pa.decimal128(18, 2))
    places = [99_999, 5, 70_000, 5, 20, 70_001, None, 50_000]
    array = pa.DictionaryArray.from_arrays(pa.array(places, pa.int32()), dictionary)
    looked_at, values_of = [], arrow_values.json_values

    def counted(array):
        looked_at.append(len(array))
        return values_of(array)

    monkeypatch.setattr(arrow_values, "json_values", counted)
    assert counted(array) == [None if place is None else f"{place}.00" for place in places]
    assert sum(looked_at) < 100
