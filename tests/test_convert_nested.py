"""Converting columns of Arrow that hold other arrays: structs, unions, runs and lists, in each other and in slices."""

import pyarrow as pa
import pytest

from mmapds.convert import convert
from tests.support.conversions import samples, save


def of_each_kind(count):
    """Arrays of every kind that is laid out in its own way, and their values."""
    numbers, texts = pa.array(range(count)), pa.array([str(row) for row in range(count)])
    codes = pa.array([row % 2 for row in range(count)], pa.int8())
    places = pa.array(range(count), pa.int32())
    mixed = [str(row) if row % 2 else row for row in range(count)]
    ends = [*range(3, count, 3), count]
    boxes = pa.FixedSizeListArray.from_arrays(pa.array(range(2 * count), pa.int32()), 2)
    return {
        "sparse union": (pa.UnionArray.from_sparse(codes, [numbers, texts]), mixed),
        "dense union": (pa.UnionArray.from_dense(codes, places, [numbers, texts]), mixed),
        "runs": (
            pa.RunEndEncodedArray.from_arrays(pa.array(ends, pa.int32()), texts.slice(0, len(ends))),
            [str(row // 3) for row in range(count)],
        ),
        "nulls": (pa.nulls(count), [None] * count),
        "tensors": (
            pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(pa.int32(), [2]), boxes),
            [[2 * row, 2 * row + 1] for row in range(count)],
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
