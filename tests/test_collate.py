"""Padded batches: against plain Python for every dtype and shape, field by field, in workers, and every error."""

import re
from collections import UserDict

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import mmapds
from mmapds import CollateError, Fields, pack_collate, pad_collate
from tests.support.array_files import store
from tests.support.messages import check

INTEGERS = ["uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"]
DTYPES = ["bool", *INTEGERS, "float16", "float32", "float64", "bfloat16"]


def padded(rows, tail, pad, multiple=1, limit=None, left=False):
    """The batch and its lengths as nested lists, said in the plainest Python."""
    if limit is not None:
        rows = [row[max(0, len(row) - limit) :] if left else row[:limit] for row in rows]
    width = max(map(len, rows))
    while width % multiple:
        width += 1
    blank = np.full(tail, pad).tolist()
    return [row + [blank] * (width - len(row)) for row in rows], [len(row) for row in rows]


SOURCES = {
    "tensor": lambda tensor: tensor,
    "scattered tensor": lambda tensor: torch.stack([tensor, torch.ones_like(tensor)], dim=-1)[..., 0],
    "array": lambda tensor: tensor.numpy(),
    "scattered array": lambda tensor: np.repeat(tensor.numpy(), 2, axis=0)[::2],
    "fortran array": lambda tensor: np.asfortranarray(tensor.numpy()),
    "reversed array": lambda tensor: np.ascontiguousarray(tensor.numpy()[::-1])[::-1],
    "big-endian array": lambda tensor: tensor.numpy().astype(tensor.numpy().dtype.newbyteorder(">")),
}


# ---- arrays --------------------------------------------------------------------------------------------------


@given(
    data=st.data(),
    name=st.sampled_from(DTYPES),
    tail=st.sampled_from([(), (1,), (3,), (2, 2), (0,)]),
    lengths=st.lists(st.integers(0, 20) | st.integers(0, 200), min_size=1, max_size=6),
    multiple=st.none() | st.integers(1, 9),
    limit=st.none() | st.integers(1, 21) | st.just(2**70),
    truncate=st.sampled_from(["right", "left"]),
)
def test_a_padded_batch_is_the_oracles(data, name, tail, lengths, multiple, limit, truncate):
    dtype = getattr(torch, name)
    sources = sorted(SOURCES) if dtype is not torch.bfloat16 else ["tensor", "scattered tensor"]
    pads = [False, True] if name == "bool" else [0, 3, 100] if name in INTEGERS else [0, -1.5]
    pad = data.draw(st.sampled_from(pads))
    generator, most = np.random.default_rng(0), 2 if name == "bool" else 100
    tensors = [torch.tensor(generator.integers(0, most, (n, *tail)), dtype=dtype) for n in lengths]
    samples = [SOURCES[data.draw(st.sampled_from(sources))](tensor) for tensor in tensors]
    options = {"pad_value": pad, "pad_to_multiple_of": multiple, "max_length": limit, "truncate": truncate}
    batch, counts = pad_collate(samples, **options)
    expected, lengths = padded([each.tolist() for each in tensors], tail, pad, multiple or 1, limit, truncate == "left")
    assert (batch.tolist(), counts.tolist()) == (expected, lengths)
    assert (batch.dtype, counts.dtype) == (dtype, torch.int64)
    assert batch.shape == (len(lengths), len(expected[0]), *tail)
    assert batch.is_contiguous()


def test_a_pad_value_is_a_number_that_the_dtype_holds():
    for name in DTYPES:
        dtype = getattr(torch, name)
        info = None if name == "bool" else torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
        low, high = (False, True) if info is None else (info.min, info.max)
        odd = [0.1, -0.0, float("nan"), float("inf"), -float("inf")] * dtype.is_floating_point
        for pad in (low, high, *odd):
            batch, _ = pad_collate([torch.tensor([low, high], dtype=dtype), []], pad_value=pad)
            assert batch.dtype == dtype
            assert batch[0].tolist() == [low, high]
            assert str(batch[1]) == str(torch.tensor([pad, pad], dtype=dtype))
        wrong = [10**400] if odd else [low - 1, high + 1, 0.5, float("nan"), float("inf"), 10**400]
        for pad in wrong:
            with pytest.raises(CollateError, match=rf"pad_value = .*, expected .* that {name} holds, for samples"):
                pad_collate([torch.ones(1, dtype=dtype)], pad_value=pad)
    for pad in (np.int64(-100), np.float32(-100), torch.tensor(-100), np.array(-100.0), -100.0):
        assert pad_collate([[1, 2], [3]], pad_value=pad)[0].tolist() == [[1, 2], [3, -100]]


def test_lists_are_arrays_and_dtypes_are_promoted_by_torchs_rules():
    odd = np.ones(2, ml_dtypes.bfloat16)
    for samples, dtype in [
        ([[1, 2], [3]], torch.int64),
        ([[1, True], [False]], torch.int64),
        ([[1.5, 2], [3]], torch.float32),
        ([[True, False], [True]], torch.bool),
        ([[np.int16(1), 2], [3]], torch.int64),
        ([[np.float64(1), 2], [3]], torch.float32),
        ([[], [3]], torch.int64),
        ([[True], np.array([3, 4], np.uint8)], torch.uint8),
        (list(map(np.ones, (1, 2), ("uint8", "int8"))), torch.int16),
        (list(map(np.ones, (1, 2), ("int64", "float16"))), torch.float16),
        ([np.arange(3), odd, []], torch.bfloat16),
        ([odd, np.ones(1, np.float32)], torch.float32),
    ]:
        batch, lengths = pad_collate(samples)
        assert batch.dtype == dtype
        assert batch.tolist() == padded([list(map(float, sample)) for sample in samples], (), 0)[0]
        assert lengths.tolist() == list(map(len, samples))
        batch.zero_()  # is a copy
        assert odd.tolist() == [1, 1]
    for values, dtype in [([1, 2], torch.int64), ([True, False], torch.bool), ([np.int8(1)] * 2, torch.int8)]:
        batch = pad_collate([{"x": value} for value in values])["x"]
        assert (batch.tolist(), batch.dtype) == (values, dtype)


# ---- other samples -------------------------------------------------------------------------------------------


def test_dicts_are_batched_field_by_field():
    samples = [
        {"ids": [1, 2], "audio": np.ones((3, 2)), "text": "a", "n": 1, "tags": ["x"], "meta": {"at": [0.5], "b": b"1"}},
        {"ids": [3], "audio": np.ones((1, 2)), "text": "b", "n": 2, "tags": [], "meta": {"at": [], "b": b"2"}},
    ]
    for each in (samples, list(map(UserDict, samples))):
        batch = pad_collate(each, pad_value={"ids": -100, "meta": {"at": 7}})
        assert list(batch) == ["ids", "ids_lengths", "audio", "audio_lengths", "text", "n", "tags", "meta"]
        assert batch["ids"].tolist() == [[1, 2], [3, -100]]
        assert batch["ids_lengths"].tolist() == [2, 1]
        assert batch["audio"].tolist() == [[[1, 1]] * 3, [[1, 1], [0, 0], [0, 0]]]
        assert (batch["n"].tolist(), batch["text"], batch["tags"]) == ([1, 2], ["a", "b"], [["x"], []])
        meta = batch["meta"]
        assert (meta["at"].tolist(), meta["at_lengths"].tolist(), meta["b"]) == ([[0.5], [7]], [1, 0], [b"1", b"2"])


def test_a_batch_as_models_take_it():
    samples = [{"input_ids": [7] * k, "labels": [8] * k, "id": k} for k in range(1, 6)]
    batch = pad_collate(samples, mask="attention_mask", lengths=False, pad_to_multiple_of=4, max_length=3)
    assert list(batch) == ["input_ids", "labels", "id", "attention_mask"]
    assert batch["attention_mask"].dtype == torch.int64
    assert batch["attention_mask"].tolist() == [[int(k < min(each, 3)) for k in range(4)] for each in range(1, 6)]
    assert torch.equal(batch["input_ids"], 7 * batch["attention_mask"])
    with_lengths = pad_collate(samples, mask={"input_ids": "a", "labels": "b"}, max_length=3)
    assert torch.equal(with_lengths["a"].sum(1), with_lengths["labels_lengths"])
    assert torch.equal(with_lengths["a"], with_lengths["b"])
    tensor, names = pad_collate([([1], "a"), ([2, 3], "b")], lengths=False)
    assert (tensor.tolist(), names) == ([[1, 0], [2, 3]], ["a", "b"])


def test_arrays_without_items_have_a_limit(tmp_path):
    """They take no bytes in a file, whatever length they say."""
    records = [{"x": np.empty((length, 0), np.int32)} for length in (1 << 42, 3)]
    ds = mmapds.open(store(tmp_path, records, {"x": ("int32", (None, None))}))
    for collate in (pad_collate, pack_collate):
        with pytest.raises(CollateError, match=r"^samples\[1\]\['x'\]: expected up to 1048576 entries without"):
            collate(ds.take([1, 0]))
    assert pad_collate(ds.take([1]), mask="m")["m"].tolist() == [[1, 1, 1]]


def test_all_else_is_passed_through():
    for values in (["a", "b"], [b"a", b"b"], [None, "a"], [{1}, {2}], [np.str_("a")], [1j], [np.timedelta64(1)]):
        assert pad_collate([{"x": value} for value in values]) == {"x": values}
        assert pad_collate(values) == values
    durations = [np.timedelta64(5, "s"), np.timedelta64(5, "m")]
    words = [np.array(["a"]), np.array(["b", "c"])]
    for values in ([["a"], []], [durations], [[1, "a"], ["b"]], [[[1], [2]]], [({},), ()], [[{}], [{}, {}]], words):
        assert pad_collate([{"x": value} for value in values]) == {"x": values}


# ---- errors --------------------------------------------------------------------------------------------------

MASK = {"mask": "m"}


@pytest.mark.parametrize(
    ("samples", "options", "message"),
    [
        ({"x": [1]}, {}, "samples: expected a list of samples, found dict"),
        ([[1]], {"truncate": "middle"}, "truncate = 'middle', expected 'right' or 'left'"),
        ([{"x": [1]}], {"pad_value": {"x": "0"}}, "pad_value = '0', expected an integer that int64 holds, for samples"),
        ([{"x": {"y": [1]}}], {"pad_value": {"x": {"z": 1}}}, "pad_value['x']: expected fields among 'y', found 'z'"),
        ([np.zeros(2), np.zeros((2, 3))], {}, "samples[1]: expected shape (n,), as in samples[0], found (2, 3)"),
        ([{"x": [1]}, {"x": [1], "y": 1}], {}, "samples[0]: expected a field 'y', as in samples[1], found 'x'"),
        ([(1, 2), (1,)], {}, "samples[1]: expected 2 items, as in samples[0], found 1"),
        ([{"x": [1], "x_lengths": 1}], {}, "samples[0]: expected another name than x_lengths, the lengths of 'x'"),
        ([[], {"x": 1}], {}, "samples[0]: expected a dict, as in samples[1], found list"),
        ([[1], ["a"]], {}, "samples[1]: expected an array or a list of numbers, as in samples[0], found list"),
        ([(1, "a"), (2, 3)], {}, "samples[0][1]: expected a number, as in samples[1][1], found str"),
        ([[1.0, 10**400]], {}, "samples[0]: expected numbers that fit float32, found 1000"),
        ([[], np.zeros(1, complex)], {}, "samples[1]: expected bool, an integer of 8 to 64 bits, a float of 16 to 64 "),
        ([np.zeros(1, np.uint16), [1]], {}, "expected dtypes that torch promotes to one, found uint16, int64"),
        ([np.ma.array([1, 2, 3], mask=[0, 1, 1])], {}, "samples[0]: expected numbers without a mask, found 2 masked"),
        ([([1], 2)], MASK, "mask = 'm', expected None for samples that have no fields"),
        ([{"x": [1]}], {"mask": "x_lengths"}, "mask = 'x_lengths', expected a new name, found the field 'x_lengths'"),
        ([{"x": [1], "y": 1}], {"mask": {"y": "m"}}, "mask: expected fields of arrays among 'x', found 'y'"),
        ([{"x": [1], "y": [1, 2]}], MASK, "mask = 'm', expected arrays of the same lengths, found others at 'x' and"),
        ([{"x": [1], "meta": {"t": 1}}], {"lists": ["meta.n"]}, "lists: expected names of fields, found 'meta.n'"),
    ],
)
def test_errors_say_where_and_what(samples, options, message):
    with pytest.raises(CollateError, match=re.escape(message)) as caught:
        pad_collate(samples, **options)
    check(str(caught.value))
    assert isinstance(caught.value, ValueError)


# ---- from array files, where no sample is made ---------------------------------------------------------------


STORED = {
    "feats": ("float32", (None, 3)),
    "tokens": ("int32", (None,)),
    "grid": ("uint8", (None, None, 2)),
    "bf": ("bfloat16", (None,)),
    "odd": ("complex64", ()),
    "none": ("float64", (None, 0)),
    "id": "int64",
    "huge": "uint64",
    "clean": "bool",
    "text": "str",
    "meta": "json",
}


@pytest.fixture(scope="module")
def records():
    rng, found = np.random.default_rng(0), []
    for i, n in enumerate(rng.integers(0, 7, 60)):
        arrays = {
            "feats": rng.normal(size=(n, 3)).astype(np.float32),
            "tokens": rng.integers(-9, 9, n).astype(np.int32),
            "grid": rng.integers(0, 9, (n, 3 if i < 50 else i % 3, 2)).astype(np.uint8),
            "bf": torch.arange(n, dtype=torch.bfloat16),
            "odd": np.complex64(1j),
            "none": np.empty((n, 0)),
        }
        numbers = {"id": i - 2, "huge": i, "clean": i % 2 == 0}
        found.append({**arrays, **numbers, "text": f"text {i}", "meta": {"x": [i]}})
    return found


def outcome(collate, samples, **options):
    try:
        return collate(samples, **options)
    except CollateError as error:
        return str(error)


def alike(one, other):
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(alike(value, other[name]) for name, value in one.items())
    return one == other


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(st.integers(0, 59), min_size=1, max_size=9),
    names=st.sets(st.sampled_from(list(STORED)), min_size=1, max_size=3),
    decode=st.sampled_from([None, "torch"]),
    cut=st.sampled_from([{}, {"max_length": 2}, {"max_length": 2, "truncate": "left"}]),
    options=st.fixed_dictionaries(
        {},
        optional={
            "pad_value": st.sampled_from([0, -1, 2.5, True, {"tokens": 7}, {"no": 1}, {"meta": {"x": -1}}, "x"]),
            "pad_to_multiple_of": st.sampled_from([1, 4, 8]),
            "lengths": st.booleans(),
            "mask": st.sampled_from(["mask", {"tokens": "mask"}, {"no": "mask"}]),
        },
    ),
)
def test_array_files_make_the_batches_that_their_samples_make(records, tmp_path, rows, names, decode, cut, options):
    """With any of the fields, so that what one cannot be in a batch does not hide the others."""
    kept = [name for name in STORED if name in names]
    path = tmp_path / f"{'-'.join(kept)}.mma"
    if not path.exists():
        some = [{name: record[name] for name in kept} for record in records]
        store(tmp_path, some, {name: STORED[name] for name in kept}, path.name)
    samples = mmapds.open(path, decode=decode).__getitems__(rows)
    assert not isinstance(samples, list)
    assert alike(outcome(pad_collate, samples, **cut, **options), outcome(pad_collate, list(samples), **cut, **options))
    assert alike(outcome(pack_collate, samples, **cut), outcome(pack_collate, list(samples), **cut))


# ---- lists without entries, and lists that are all empty -----------------------------------------------------------


def test_lists_that_are_all_empty_are_numbers_with_a_warning():
    samples = [{"id": 1, "tags": [], "meta": {"tags": []}}] * 2
    with pytest.warns(UserWarning, match="give the field a pad value of its own") as warned:
        assert pad_collate(samples, pad_value=-1)["tags"].shape == (2, 0)
    for where, warning in zip(("['tags']", "['meta']['tags']"), warned, strict=True):
        assert str(warning.message).startswith(f"samples[...]{where}: expected a list that is not empty, found none")
    for pad, dtype in (0, torch.int64), (0.5, torch.float32):
        batch = pad_collate(samples, pad_value={"tags": pad, "meta": {"tags": pad}})
        assert batch["tags"].dtype == batch["meta"]["tags"].dtype == dtype
    assert pad_collate([(1, []), (2, [])], lists=[1])[1] == [[], []]


@pytest.mark.parametrize("collate", [pad_collate, pack_collate])
def test_named_fields_are_lists_in_every_batch(write, collate):
    for tags in (["a"], []), ([], []), ([1], [2, 3]), (["a", 1], [None]):
        samples = [{"tokens": [1, 2], "tags": each, "meta": {"tags": each, "x.y": each}} for each in tags]
        batch = collate(samples, lists=["tags", "meta.tags", r"meta.x\.y"])
        assert batch["tags"] == batch["meta"]["tags"] == batch["meta"]["x.y"] == list(tags)
        assert torch.is_tensor(batch["tokens"])
    path = write([{"meta": {"n": n}, "tokens": [n]} for n in range(2)])
    ds = mmapds.open(path, build=True, decode=Fields({"meta.n": "int32", "tokens": "int32"}))
    assert collate(ds.take([0, 1]), lists=["meta.n"])["meta.n"] == [0, 1]


def test_arrays_without_entries_have_the_shape_of_the_others():
    for shapes, shape in [
        ([(0, 0, 3), (2, 1, 3), (0,)], (3, 2, 1, 3)),
        ([(0, 0), (0, 0)], (2, 0, 0)),
        ([(0, 0, 3), (0, 5, 0), (0,)], (3, 0, 5, 3)),
        ([(0, 7), (1, 2)], (2, 1, 2)),
    ]:
        samples = [make(each) for make, each in zip((np.zeros, torch.zeros, np.zeros), shapes, strict=False)]
        assert pad_collate(samples)[0].shape == pad_collate(samples[::-1])[0].shape == shape
        assert pack_collate([{"x": each} for each in samples])["x"].shape[1:] == shape[2:]
    for other in (1, 3), (2, 0), (1,), (1, 0, 0):
        with pytest.raises(CollateError, match=r"samples\[2\]: expected shape \(n, 2\), as in samples\[1\], found "):
            pad_collate([np.zeros((0, 0)), torch.zeros((1, 2)), np.zeros(other)])


# ---- in a loader ----------------------------------------------------------------------------------------------------


def test_a_loader_names_the_records_that_do_not_fit(write):
    ds = mmapds.open(write([{"id": 0, "n": 1}, {"id": 1}]), build=True)
    batches = iter(mmapds.DataLoader(ds, 2, sampler=[0, 0, 1, 0], num_workers=2, collate_fn=pad_collate))
    assert next(batches)["id"].tolist() == [0, 0]
    with pytest.raises(CollateError, match=r"^samples\[0\]: .* as in samples\[1\]") as error:
        next(batches)
    notes = [f"samples[{k}] is at position {position}: {ds.place(position)}" for k, position in ((0, 1), (1, 0))]
    assert error.value.__notes__ == notes
    ds = mmapds.open(write(b'{"n": 0}\nnot JSON\n{"n": [1]}\n', "b.jsonl"), build=True, on_error="skip")[::-1]
    with pytest.raises(CollateError) as error, pytest.warns(RuntimeWarning, match="; skipped"):
        list(mmapds.DataLoader(ds, 3, collate_fn=pad_collate))
    assert f"samples[1] is at position 2: {ds.place(2)}" in error.value.__notes__
