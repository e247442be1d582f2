"""Lists of lists with no list inside: nothing says how long those would be, so they go with any length."""

import itertools
import json

import numpy as np
import pyarrow as pa
import pytest
import torch

import mmapds
from mmapds import CollateError, Fields, pack_collate, pad_collate
from mmapds.convert import convert
from tests.support.conversions import save

PAIRS = [[], [[0, 0]], [[0, 0], [1, 1]]]


def table(tmp_path, name, rows=PAIRS):
    found = pa.table({"id": range(len(rows)), "x": pa.array(rows, pa.list_(pa.list_(pa.int32())))})
    return save(found, tmp_path / name, *(["stream"] if name.endswith(".arrow") else []))


def shapes(path, decode=None):
    return [sample["x"].shape for sample in mmapds.open(path, decode=decode).take([0, 1, 2])]


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow", "a.jsonl"])
@pytest.mark.parametrize("dtype", ["int32", "float32"])
def test_conversions_give_them_the_shape_of_the_field(tmp_path, name, dtype):
    if name == "a.jsonl":
        path = tmp_path / name
        path.write_text("".join(json.dumps({"id": i, "x": x}) + "\n" for i, x in enumerate(PAIRS)))
    else:
        path = table(tmp_path, name)
    done = convert(path, fields=["id", "x"], types={"x": [dtype, [None, 2]]})
    assert shapes(done.path) == [(0, 2), (1, 2), (2, 2)]


def test_axes_inside_an_empty_one_are_those_of_the_field(tmp_path):
    rows = [[[], []], [[[1, 2]], [[3, 4]]], []]
    deep = pa.table({"x": pa.array(rows, pa.list_(pa.list_(pa.list_(pa.int32()))))})
    done = convert(save(deep, tmp_path / "a.parquet"), types={"x": ["int32", [None, None, 2]]})
    assert shapes(done.path) == [(2, 0, 2), (2, 1, 2), (0, 0, 2)]
    fixed = pa.table({"x": pa.array([[], [[1, 2, 3]]], pa.list_(pa.list_(pa.int32(), 3)))})
    with pytest.raises(mmapds.FormatError, match=r"row 1: field 'x': expected .* \(None, 2\), found .* \(1, 3\)"):
        convert(save(fixed, tmp_path / "b.parquet"), types={"x": ["int32", [None, 2]]})


@pytest.mark.parametrize("dtype", ["int32", "float32", "bfloat16"])
def test_fields_of_array_files_have_the_shape_that_is_wanted(tmp_path, dtype):
    path = convert(table(tmp_path, "a.parquet")).path
    wanted = Fields({"x": (dtype, (None, 2))})
    assert shapes(path, wanted) == [(0, 2), (1, 2), (2, 2)]
    batch = pad_collate(mmapds.open(path, decode=wanted).take([0, 1, 2]))
    assert batch["x"][0].tolist() == [[0, 0], [0, 0]]
    with pytest.raises(mmapds.DecodeError, match=r"expected .* at `x`, found shape \(1, 2\)"):
        mmapds.open(path, decode=Fields({"x": (dtype, (None, 3))}))[1]


@pytest.mark.parametrize("rows", [[0, 1, 2], [2, 0, 1], [1, 2, 0], [0, 0, 2]])
@pytest.mark.parametrize("late", [True, False])
def test_batches_take_them_beside_any(tmp_path, rows, late):
    ds = mmapds.open(convert(table(tmp_path, "a.parquet")).path)
    samples = ds.take(rows) if late else [ds[row] for row in rows]
    padded = pad_collate(samples)
    longest = max(len(PAIRS[row]) for row in rows)
    expected = [PAIRS[row] + [[0, 0]] * (longest - len(PAIRS[row])) for row in rows]
    assert padded["x"].tolist() == expected
    assert padded["x_lengths"].tolist() == [len(PAIRS[row]) for row in rows]
    packed = pack_collate([{"x": sample["x"]} for sample in samples] if not late else ds.map(only_x).take(rows))
    assert packed["x"].tolist() == [pair for row in rows for pair in PAIRS[row]]


def only_x(sample):
    return {"x": sample["x"]}


@pytest.mark.parametrize("kind", [np.zeros, torch.zeros])
def test_others_must_agree(kind):
    assert pad_collate([kind((0, 0, 3)), kind((2, 1, 3)), []])[0].shape == (3, 2, 1, 3)
    assert pad_collate([kind((0, 0)), kind((0, 0))])[0].shape == (2, 0, 0)
    assert pad_collate([kind(0), kind((2, 1, 3))])[0].shape == (2, 2, 1, 3)  # as `Fields` reads an empty list
    for other in (0, 3), (2, 0), (1,), (0, 0, 0):
        with pytest.raises(CollateError, match=r"samples\[2\]: expected shape \(n, 2\), as in samples\[1\], found "):
            pad_collate([kind((0, 0)), kind((1, 2)), kind(other)])


@pytest.mark.parametrize("kind", [np.zeros, torch.zeros])
@pytest.mark.parametrize("sizes", [[(0, 0), (0, 5)], [(0, 0, 3), (0, 5, 0), (0, 0, 0)], [(0, 0), (0, 5), (0, 0)]])
def test_a_batch_without_entries_has_the_axes_that_any_of_them_has(kind, sizes):
    for order in itertools.permutations(sizes):
        tail = np.max(sizes, axis=0).tolist()[1:]
        assert list(pad_collate([kind(each) for each in order])[0].shape) == [len(sizes), 0, *tail]
        assert list(pack_collate([{"x": kind(each)} for each in order])["x"].shape) == [0, *tail]
    for order in itertools.permutations([(0, 4), (0, 0), (0, 5)]):
        with pytest.raises(CollateError, match=r": expected shape \(n, 5\), as in samples\[\d\], found \(0, 4\); "):
            pad_collate([kind(each) for each in order])


def test_records_without_entries_are_a_batch_in_any_order(tmp_path):
    with mmapds.Writer(tmp_path / "a.mma", {"x": ("float32", (None, None))}) as writer:
        for value in [], np.zeros((0, 80), np.float32), []:
            writer.write({"x": value})
    ds = mmapds.open(tmp_path / "a.mma")
    for rows in itertools.permutations(range(3)):
        for samples in ds.take(rows), [ds[row] for row in rows]:
            assert pad_collate(samples)["x"].shape == (3, 0, 80)
            assert pack_collate(samples)["x"].shape == (0, 80)


def test_others_must_agree_in_array_files(tmp_path):
    ds = mmapds.open(convert(table(tmp_path, "a.parquet", [[], [[1, 2]], [[1, 2, 3]], [[], []]])).path)
    for row, shape in ((2, r"\(1, 3\)"), (3, r"\(2, 0\)")):
        message = rf"samples\[2\]\['x'\]: expected shape \(n, 2\), as in samples\[1\]\['x'\], found {shape}"
        for collate in pad_collate, pack_collate:
            with pytest.raises(CollateError, match=message):
                collate(ds.take([0, 1, row]))
