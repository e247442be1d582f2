"""Converting columns of Arrow that hold other arrays: structs, runs, maps and lists, in each other and in slices."""

import pyarrow as pa
import pytest

import mmapds
from mmapds.convert import arrow as reading
from mmapds.convert import convert
from tests.support.conversions import samples, save


def of_each_kind(count):
    """Arrays of every kind that is laid out in its own way, and their values."""
    texts = pa.array([str(row) for row in range(count)])
    return {
        "nulls": (pa.nulls(count), [None] * count),
        "dictionary": (texts.dictionary_encode(), texts.to_pylist()),
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
    return {
        "structs": (pa.StructArray.from_arrays([pairs], ["of"]).field(0), rows),
        "lists": (pa.ListArray.from_arrays(bounds, pairs), [[row] for row in rows]),
        "large lists": (pa.LargeListArray.from_arrays(bounds.cast("int64"), pairs), [[row] for row in rows]),
        "lists of one length": (pa.FixedSizeListArray.from_arrays(pairs, 1), [[row] for row in rows]),
        "maps": (
            pa.MapArray.from_arrays(bounds, names, pairs),
            [[[str(number), row]] for number, row in enumerate(rows)],
        ),
    }


@pytest.mark.parametrize("has_nulls", [False, True])
@pytest.mark.parametrize("kind", of_each_kind(1))
def test_dates_beside_arrays_of_each_kind_in_each_other(tmp_path, monkeypatch, kind, has_nulls):
    """In batches of a few rows, which are slices; and once more in lists, of which the first one is sliced off."""
    monkeypatch.setattr(reading, "_ROWS", 7)
    part, values = of_each_kind(30)[kind]
    numbers = [None if row % 5 == 2 and has_nulls else 86_400_000 * row for row in range(30)]
    table, wanted = {}, {}
    for way, (array, expected) in held(part, pa.array(numbers, pa.int64()).view(pa.date64()), values, numbers).items():
        table[way] = pa.ListArray.from_arrays(pa.array([*range(0, 31, 2)], pa.int32()), array).slice(1)
        wanted[way] = [expected[row : row + 2] for row in range(2, 30, 2)]
    found = samples(convert(save(pa.table(table), tmp_path / "a.arrow", "arrow")).path)
    for way, expected in wanted.items():
        assert [sample[way] for sample in found] == expected, way


def test_lists_without_items_of_what_holds_dates(tmp_path):
    days = pa.array([1], pa.int32()).view(pa.date32())
    arrays = {way: array for way, (array, _) in held(pa.nulls(1), days, [None], [1]).items()}
    table = {way: pa.ListArray.from_arrays([0, 0, 0], array.slice(1)) for way, array in arrays.items()}
    path = save(pa.table(table), tmp_path / "a.arrow", "arrow")
    assert samples(convert(path).path) == [{way: [] for way in table}] * 2


def test_unions_are_refused_by_name_and_can_be_left_out(tmp_path):
    union = pa.UnionArray.from_sparse(pa.array([0, 1], pa.int8()), [pa.array([1, 2]), pa.array(["a", "b"])])
    lists = pa.ListArray.from_arrays([0, 1, 2], union)
    path = save(pa.table({"x": lists, "id": [1, 2]}), tmp_path / "a.arrow", "arrow")
    with pytest.raises(mmapds.FormatError, match=r"a\.arrow: field 'x': expected .*, found .*union"):
        convert(path)
    assert samples(convert(path, fields=["id"]).path) == [{"id": 1}, {"id": 2}]
