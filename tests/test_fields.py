"""`Fields`: what it makes of JSON and of array files, sample by sample and in batches, and what it refuses."""

import json
import os
import pickle

import ml_dtypes
import numpy as np
import orjson
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import mmapds
from mmapds import DecodeError, Fields, FormatError, _native, pad_collate
from mmapds.convert import convert
from tests.support import json_records
from tests.support.array_files import store
from tests.support.commands import python
from tests.support.json_records import BATCHED, dataset, equal, records
from tests.support.samples import framed

# ---- JSON, against orjson and NumPy -----------------------------------------------------------------------------


def test_it_agrees_with_orjson_and_numpy():
    good = json_records.compare(0, 1500)
    assert 750 < good < 1350


@pytest.mark.parametrize("variant", _native.simd_variants())
def test_it_agrees_with_every_variant_of_the_kernels(variant):
    code = "from tests.support.json_records import compare\nprint(compare(7, 300) > 100)"
    assert python(code, env={**os.environ, "MMAPDS_SIMD": variant}).stdout == "True\n"


def test_batches_are_what_samples_are(tmp_path):
    make = json_records.Maker(5)
    texts = [make.record().replace(b"\n", b" ").replace(b"\r", b" ") for _ in range(300)]
    texts = [text for text in texts if text.strip()]
    fields = Fields(json_records.SCHEMA, defaults=json_records.DEFAULTS)
    ds = dataset(tmp_path / "a.jsonl", texts, fields, on_error="skip")
    with pytest.warns(RuntimeWarning, match="; skipped"):
        batch, kept = ds.take_kept(range(len(ds)))
    good, bad = kept.tolist(), ds.skipped
    assert sorted(good + bad) == [*range(len(ds))]
    assert min(len(good), len(bad)) > 50
    assert equal(list(batch), [fields(texts[k]) for k in good])
    for k in bad:
        with pytest.raises(DecodeError):
            fields(texts[k])
    assert equal([batch.values(name) for name in batch.names], [[s[name] for s in batch] for name in batch.names])


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"])
def test_integers_are_exact_to_the_last(dtype):
    fields, limits = Fields({"x": dtype}), np.iinfo(dtype)
    numbers = [n for n in (0, 1, 9, 10, 99, 999_999, 9_999_999, 12_345_678, 123_456_789) if n <= limits.max]
    numbers += [limits.min, limits.max, limits.min + 1, limits.max - 1]
    for text in (json.dumps(numbers), json.dumps(numbers * 50, indent=1), json.dumps(numbers).replace(" ", "")):
        found = fields(f'{{"x":{text}}}'.encode())["x"]
        assert (found.dtype, found.tolist()) == (dtype, json.loads(text))
    for beyond in (limits.min - 1, limits.max + 1):
        for text in (f"{beyond}", f"[{beyond}]", f"[1,{beyond},1,2,3,4,5,6,7]", f"{[*[1] * 200, beyond, *[1] * 50]}"):
            where = f"found {beyond} at byte {text.find(str(beyond)) + 5} "
            with pytest.raises(DecodeError, match=f"^expected {dtype} at `x`, {where}"):
                fields(f'{{"x":{text}}}'.encode())


def test_runs_of_tokens_of_every_length_at_every_place_in_a_block():
    generator = np.random.default_rng(0)
    fields = {dtype: Fields({"x": dtype}) for dtype in ("int32", "int64", "uint16")}
    for separator in (",", ", ", " , ", ",\t", ",  ", ",\n"):
        for count in [*range(40), 100, 500, 3000]:
            numbers = (10 ** generator.uniform(0, 9.3, count)).astype(np.int64)
            numbers[generator.random(count) < 0.01] *= -1  # not a short number
            for dtype, each in fields.items():
                wanted = np.abs(numbers) % 60_000 if dtype == "uint16" else numbers
                padding, listed = "x" * int(generator.integers(0, 64)), separator.join(map(str, wanted.tolist()))
                assert np.array_equal(each(f'{{"pad": "{padding}", "x": [{listed}]}}'.encode())["x"], wanted)


@pytest.mark.parametrize(
    ("dtype", "beyond"),
    [("float16", "65520"), ("float32", "3.4028236e38"), ("bfloat16", "3.3962e38"), ("float64", "1e309")],
)
def test_floats_are_those_of_numpy_and_torch_by_their_bits(dtype, beyond):
    numbers = [*np.random.default_rng(0).standard_normal(300).tolist(), 0.0, -0.0, 5e-324, 2.0**-24, 2.0**-25, 65504.0]
    numbers += [2.0**-14, 2.0**-14 - 2.0**-26, 1 + 2.0**-11, 1 + 3 * 2.0**-11, 1 + 2.0**-24, 1 + 3 * 2.0**-24, 65519.0]
    numbers += [3 * 2.0**-25, *np.float64(np.arange(0, 65504, 16.1)).tolist()]
    fields, numpys = Fields({"x": dtype}), np.float32 if dtype == "bfloat16" else dtype
    found = np.asarray(fields(json.dumps({"x": numbers}).encode())["x"])
    wanted = torch.from_numpy(np.array(numbers).astype(numpys)).to(getattr(torch, dtype))
    assert found.tobytes() == wanted.view(torch.uint8).numpy().tobytes()
    one = fields(b'{"x": 0.1}')["x"]
    assert (type(one), one) == (float, wanted.new_tensor(np.array(0.1, numpys)).item())
    for text in (beyond, f"-{beyond}"):
        with pytest.raises(DecodeError, match=rf"expected {dtype} at `x`, found {text} at byte|number is infinity"):
            fields(f'{{"x": [1, {text}]}}'.encode())


# ---- values of JSON ---------------------------------------------------------------------------------------------


def test_the_last_of_duplicate_keys_counts_and_keys_may_have_dots_and_escapes():
    fields = Fields({"x": "int32", "a.b": "int32", r"c\.d": "str"}, defaults={"a.b": 0, r"c\.d": "none"})
    for record, *wanted in (
        (b'{"x":"no","x":[1.5],"x":3,"a":{"b":"no","b":4}}', 3, 4, "none"),
        (b'{"\\u0078":1,"\\u0061":{"\\u0062":2},"c.d":"\xc3\xa9","c":{"d":"no"}}', 1, 2, "é"),
        (b'{"x":1,"a":{"b":1},"a":{}}', 1, 0, "none"),
        (b'{"x":1,"a":7,"a":null,"c.d":null}', 1, 0, "none"),
    ):
        assert list(fields(record).values()) == wanted


def test_a_million_numbers_in_one_record_and_rows_without_numbers(tmp_path):
    numbers = np.random.default_rng(0).integers(0, 10**6, 10**6)
    ds = dataset(tmp_path / "a.jsonl", [{"x": numbers.tolist()}, {"x": [1]}], Fields({"x": "int32"}))
    batch = pad_collate(ds.take([1, 0, 1]))
    assert batch["x_lengths"].tolist() == [1, 10**6, 1]
    assert np.array_equal(batch["x"][1].numpy(), numbers)
    ragged = [[number % 5] * (number % 31 == 0) for number in range(400)]
    fields = Fields({"n": "int32", "x": ("int16", "ragged")}, defaults={"x": [[]] * 400})
    made = [{"n": number, "x": ragged} if number % 3 else {"n": number} for number in range(300)]
    for number, sample in enumerate(dataset(tmp_path / "b.jsonl", made, fields).take(range(300))):
        assert [row.tolist() for row in sample["x"]] == (ragged if number % 3 else [[]] * 400)


# ---- what is refused --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "defaults", "message"),
    [
        (["x"], None, r"^schema = \['x'\], expected a dict$"),
        ({"x": "int32"}, ["x"], r"^defaults = \['x'\], expected a dict$"),
        ({"x": "int"}, None, r"^schema\['x'\] = 'int', expected 'str', a dtype among"),
        ({"x": ["int32", None, 3]}, None, r"^schema\['x'\] = \['int32', None, 3\], expected 'str', a dtype among"),
        ({7: "int32"}, None, r"^schema: 7 is not a valid path"),
        ({"x": "int32"}, {"y": 1}, r"^defaults: expected fields among 'x', found 'y'$"),
        ({"x": "int32", "x.y": "int8"}, None, r"^schema: expected fields apart, found 'x.y' inside 'x'$"),
        ({"x": "int8"}, {"x": 128}, r"^defaults\['x'\] = 128, expected int8$"),
    ],
)
def test_schemas_that_are_refused(schema, defaults, message):
    with pytest.raises(FormatError, match=message):
        Fields(schema, defaults=defaults)


INT32 = "expected int32 at `x`, "
REFUSED = [
    ("int32", b'{"x":[[1,2],[3]]}', f"{INT32}found a list of another length at byte 12"),
    ("int32", b'{"x":1,"y":"\xff"}', "not JSON: "),
    ("int32", b'{"x":1,"x":null}', f"{INT32}which has no default, found nothing or null"),
    ("int32", b'{"x":[1,"7"]}', f"{INT32}found a string at byte 8 of the record"),
    ("int32", b'{"x":[[1],2]}', f"{INT32}found 2 at byte 10"),
    ("int32", b'{"x":' + b"[" * 9 + b"1" + b"]" * 9 + b"}", f"{INT32}found another shape at byte"),
    ("int32", b'{"x":-%d.5}' % 10**99, f"{INT32}found -{10**78} at byte 5"),
    ("int32", b" 7", "expected an object, found a number"),
    ("int32", b'{"x":[1,1e999]}', "not JSON: number is infinity when parsed as double: line 1 column 9 (char 8)"),
    ("int32", b'{"x":1,"y":' + b"[" * 1024 + b"]" * 1024 + b"}", "not JSON: "),
    (("int32", (None,)), b'{"x": 7}', "expected int32 of shape (None,) at `x`, found 7 at byte 6 of the record"),
    (("int32", (2,)), b'{"x": [1]}', "expected int32 of shape (2,) at `x`, found another shape at byte 6 of"),
    (("int32", "ragged"), b'{"x": [[[1]]]}', "expected lists of int32 at `x`, found an array at byte 8 of the record"),
    ("bool", b'{"x": [true, 0]}', "expected bool at `x`, found 0 at byte 13 of the record"),
]


@pytest.mark.parametrize(("what", "record", "message"), REFUSED)
def test_records_that_are_refused_are_named(tmp_path, what, record, message):
    fields, good = Fields({"x": what}), b'{"y":0}'
    ds, place = dataset(tmp_path / "a.jsonl", [good, good, record, good], fields), f"{tmp_path}/a.jsonl:3 (byte 16): "
    for where, read in (("", lambda: fields(record)), (place, lambda: ds[2]), (place, lambda: ds[::-1].take([1]))):
        with pytest.raises(DecodeError) as refused:
            read()
        assert str(refused.value).startswith(f"{where}{message}")


# ---- batches ----------------------------------------------------------------------------------------------------


@pytest.fixture
def ds(tmp_path):
    return dataset(tmp_path / "a.jsonl", records(50), Fields(BATCHED))


def test_what_no_batch_can_be_is_refused_as_of_samples(tmp_path):
    for values, dtype, message in (
        ([2**63, 1], "uint64", r"samples\[0\]\['x'\]: expected numbers that fit int64"),
        ([[1], [[1]]], "int32", r"samples\[1\]\['x'\]: expected shape"),
        ([[1], 1], "int32", r"samples\[1\]\['x'\]: expected an array"),
    ):
        batch = dataset(tmp_path / "a.jsonl", [{"x": value} for value in values], Fields({"x": dtype})).take([0, 1])
        for samples in (batch, list(batch)):
            with pytest.raises(mmapds.CollateError, match=message):
                pad_collate(samples)


def test_batches_are_sequences(ds):
    batch = ds.take([4, 5, 6])
    assert equal(list(batch), [ds[4], ds[5], ds[6]])
    assert equal([batch[-1], *batch[1:]], [ds[6], ds[5], ds[6]])
    assert (len(batch), list(batch.names), ds.take([])[:]) == (3, list(BATCHED), [])
    assert equal(pickle.loads(pickle.dumps(batch)), list(batch))
    for beyond in (lambda: batch[3], lambda: ds.take([50])):
        with pytest.raises(IndexError):
            beyond()


def test_maps_zips_and_loaders(ds):
    assert ds[::-1].map(lambda sample: sample["n"]).take([0, 1]) == [49, 48]
    assert pad_collate(mmapds.zip(a=ds, b=ds).take([1, 2]))["a"]["n"].tolist() == [1, 2]
    for workers in ("threads", "processes"):
        loader = mmapds.DataLoader(ds, batch_size=2, num_workers=2, collate_fn=pad_collate, workers=workers)
        for k, batch in enumerate(loader):
            assert same_batch(batch, pad_collate([ds[2 * k], ds[2 * k + 1]]))
    assert repr(pickle.loads(pickle.dumps(ds))).endswith(f"decode=Fields({', '.join(BATCHED)})>")


def test_it_compares_by_schema_and_defaults(tmp_path):
    schema = {"x": "int32", "y": "str"}
    one, other = Fields(schema), pickle.loads(pickle.dumps(Fields(schema)))
    assert (one, hash(one)) == (other, hash(other))
    assert one not in (Fields(schema | {"x": "int64"}), Fields(schema, defaults={"x": 1}))
    assert one != Fields({"y": "str", "x": "int32"})
    both = dataset(tmp_path / "a.jsonl", [{"x": 1, "y": "a"}], one) + dataset(tmp_path / "b.jsonl", [b"{}"], other)
    assert both[0] == {"x": 1, "y": "a"}


def same_batch(one, other):
    rows, others = ([[row.tolist() for row in each] for each in batch.pop("rows")] for batch in (one, other))
    return rows == others and equal(one, other)


def test_other_formats_that_hold_json(tmp_path):
    lines = [orjson.dumps({"x": [1, 2, n], "y": n / 2}) for n in range(5)]
    (tmp_path / "a.bin").write_bytes(b"".join(framed(line, "u32le") for line in lines))
    mmapds.build(tmp_path / "a.bin", format="prefixed")
    batch = pad_collate(mmapds.open(tmp_path / "a.bin", decode=Fields({"x": "int32", "y": "bfloat16"})).take([4, 0]))
    assert (batch["x"].tolist(), batch["y"].tolist()) == ([[1, 2, 4], [1, 2, 0]], [2.0, 0.0])


# ---- array files ------------------------------------------------------------------------------------------------

STORED = ["int8", "uint8", "int16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64"]
EDGES = [0, 1, -1, 127, 128, -129, 255, 256, 2**15, 65519, 65520, 2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**63 - 1]
EDGES += [-(2**63), 2**63, 2**64 - 1, -0.0, 0.1, 1.5, 1e-45, 3.4e38, 3.5e38, 1e300]
EDGES += [float("nan"), float("inf"), -float("inf")]


def as_wanted(numbers, dtype):
    """Numbers as the rules of JSON have them in a dtype; None where one of them does not fit."""
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        fit = numbers.dtype.kind in "iu" and all(limits.min <= each <= limits.max for each in numbers.tolist())
        return np.array(numbers.tolist(), dtype) if fit or not numbers.size else None
    doubles = numbers.astype(np.float64)
    with np.errstate(over="ignore"):
        found = doubles.astype(dtype)
    return None if (np.isinf(found.astype(float)) & np.isfinite(doubles)).any() else found


@given(st.sampled_from(STORED), st.sampled_from([*STORED, "bfloat16"]), st.lists(st.sampled_from(EDGES), max_size=3))
def test_stored_numbers_are_exact_or_rounded_floats_or_refused(tmp_path_factory, stored, wanted, drawn):
    kind = np.dtype(stored)
    limits = np.iinfo(kind) if kind.kind in "iu" else np.finfo(kind)
    drawn = [each for each in drawn if kind.kind == "f" or (type(each) is int and limits.min <= each <= limits.max)]
    with np.errstate(over="ignore"):
        numbers = np.array(drawn, kind)
    record = {"x": numbers, **{f"n{k}": number.item() for k, number in enumerate(numbers)}}
    schema = {"x": (stored, (None,)), **{name: stored for name in record if name != "x"}}
    path = store(tmp_path_factory.mktemp("cast"), [record], schema)
    dtype = np.dtype(ml_dtypes.bfloat16 if wanted == "bfloat16" else wanted)
    for name, value in (("x", numbers), *((f"n{k}", numbers[k : k + 1]) for k in range(len(numbers)))):
        ds, expected = mmapds.open(path, decode=Fields({name: wanted})), as_wanted(value, dtype)
        for read in (lambda ds=ds: ds[0], lambda ds=ds: ds.take([0])[0]):
            if expected is None:
                with pytest.raises(DecodeError, match=rf"a\.mma: record 0 \(byte \d+\): expected {wanted} at `{name}`"):
                    read()
            else:
                found = np.asarray(read()[name])
                assert name != "x" or found.dtype == dtype
                assert np.array_equal(found.ravel().astype(dtype).astype(float), expected.astype(float), equal_nan=True)
                assert (np.signbit(found.ravel().astype(float)) == np.signbit(expected.astype(float))).all()
                assert dtype.kind not in "iu" or found.ravel().tolist() == expected.tolist()


def test_the_same_schema_reads_an_array_file_that_was_converted(tmp_path):
    fields, path = Fields(BATCHED), tmp_path / "a.jsonl"
    ds = dataset(path, records(30), fields)
    schema = {name: fields.wanted[name].dtype for name in ("n", "flag", "text", "big")} | {"exact": "float32"}
    schema |= {"ids": ("int32", (None,)), "feats": ("float32", (None, 3)), "rows": "json", "bf": "json"}
    for options in ({}, {"schema": schema}):
        stored = mmapds.open(convert(path, force=True, **options).path, decode=fields)
        assert equal(list(map(plain, stored.take(range(30)))), list(map(plain, ds.take(range(30)))))
        assert equal([plain(stored[k]) for k in (0, 29)], [plain(ds[k]) for k in (0, 29)])
        assert same_batch(pad_collate(stored.take([3, 1, 2])), pad_collate(ds.take([3, 1, 2])))
        assert repr(pickle.loads(pickle.dumps(stored))).endswith(f"decode={fields!r}>")
    with pytest.raises(mmapds.Error, match=r"expected records of JSON, as in .*, found records of the fields "):
        mmapds.open([path, *stored.sources], decode=fields)
    some = convert(path, tmp_path / "some.mma", decode=Fields({"ids": "int32", "text": "str"})).path
    assert equal(mmapds.open(some)[2], {name: ds[2][name] for name in ("ids", "text")})


def plain(sample):
    """A sample with its bfloat16 as integers, which compare."""
    return {name: np.asarray(value).view(np.int16) if name == "bf" else value for name, value in sample.items()}


def test_an_array_file_gives_fields_by_the_rules_of_paths(tmp_path):
    schema = {"meta": "json", "a.b": "int64", "x": ("int64", (None,))}
    records = [
        {"meta": {"seconds": 1.5, "name": "é"}, "a.b": 3, "x": np.arange(3)},
        {"meta": {"seconds": None, "name": "f"}, "a.b": 4, "x": np.arange(2)},
    ]
    path = store(tmp_path, records, schema)
    wanted = {"meta.seconds": "float32", "meta.name": "str", r"a\.b": "int8", "x": "int16", "none": "int32"}
    ds = mmapds.open(path, decode=Fields(wanted, defaults={"meta.seconds": 9, "none": [5]}))
    given = [1.5, "é", 3, [0, 1, 2], [5]], [9.0, "f", 4, [0, 1], [5]]
    for sample, values in zip(ds.take([0, 1]), given, strict=True):
        found = {name: value.tolist() if hasattr(value, "tolist") else value for name, value in sample.items()}
        assert found == dict(zip(wanted, values, strict=True))
        assert sample["x"].dtype == np.int16
    batch = pad_collate(ds.take([0, 1]))
    assert (batch["x"].tolist(), batch["none"].tolist()) == ([[0, 1, 2], [0, 1, 0]], [[5], [5]])
    for refused, message in (
        ({"no": "int32"}, r"expected int32 at `no`, which has no default, found 'meta', 'a\.b', 'x'$"),
        ({"x": "str"}, r"expected a string at `x`, found int64 of shape \(None,\)$"),
        ({"x": "bool"}, r"expected bool at `x`, found int64 of shape \(None,\)$"),
        ({"x.y": "int64"}, r"expected int64 at `x\.y`, found int64 of shape \(None,\)$"),
    ):
        with pytest.raises(FormatError, match=rf"a\.mma\.mmx: {message}"):
            mmapds.open(path, decode=Fields(refused))


def test_stored_arrays_have_the_shape_that_is_wanted(tmp_path):
    rows = torch.tensor([[1.5, 2], [3, 4]], dtype=torch.bfloat16)
    path = store(tmp_path, [{"x": rows, "y": 1.501}] * 2, {"x": ("bfloat16", (None, 2)), "y": "float64"})

    def batch(dtype, shape):
        return mmapds.open(path, decode=Fields({"x": (dtype, shape), "y": "bfloat16"})).take([0, 1])

    for shape in ((None, 2), (2, 2), (2, None)):
        found = batch("bfloat16", shape)
        assert (found[0]["x"].shape, found[0]["y"]) == ((2, 2), 1.5)
        assert torch.equal(pad_collate(found)["x"], torch.stack([rows] * 2))
    assert [row.astype(float).tolist() for row in batch("bfloat16", "ragged")[1]["x"]] == rows.tolist()
    for what in (("bfloat16", (3, None)), ("bfloat16", (None,)), ("float32", (None, 3))):
        for read in (lambda what=what: batch(*what)[1], lambda what=what: pad_collate(batch(*what))):
            with pytest.raises(DecodeError, match=r"a\.mma: record \d .*, found bfloat16 of shape \(2, 2\)"):
                read()


def test_a_default_that_a_sample_changes_stays_as_it_is_in_others(tmp_path):
    schema = {"a": ("int32", (None,)), "r": ("int32", "ragged"), "b": "bfloat16"}
    fields = Fields(schema, defaults={"a": [5], "r": [[1, 2]], "b": [1.5]})
    dataset(tmp_path / "a.jsonl", [{"n": number} for number in range(3)], fields)
    store(tmp_path, [{"n": number} for number in range(3)])
    for name in ("a.jsonl", "a.mma"):
        ds = mmapds.open(tmp_path / name, decode=fields)
        batch = ds.take([1, 2])
        for sample in (ds[0], batch[0], {field: batch.values(field)[0] for field in batch.names}):
            sample["a"][0] = sample["b"][0] = sample["r"][0][0] = 99
            sample["r"].append("more")
        for sample in (ds[0], batch[0], batch[1], {field: batch.values(field)[1] for field in batch.names}):
            assert (sample["a"].tolist(), sample["b"].tolist()) == ([5], [1.5])
            assert [row.tolist() for row in sample["r"]] == [[1, 2]]


def test_arrays_of_an_array_file_are_views_of_it_unless_they_are_converted(tmp_path):
    path = store(tmp_path, [{"x": np.arange(number), "y": np.array([1, 40_000], int)[:number]} for number in range(3)])
    fields = Fields({"x": "int64", "y": ("int16", (None,))})
    ds = mmapds.open(path, decode=fields)
    one, other = ds[1], ds.take([1])[0]
    assert np.shares_memory(one["x"], other["x"])
    assert not np.shares_memory(one["y"], other["y"])
    batch = ds.take([1, 0])
    assert equal([batch.values(name) for name in batch.names], [[s[name] for s in batch] for name in batch.names])
    skipping = mmapds.open(path, decode=fields, on_error="skip")
    with pytest.warns(RuntimeWarning, match=r"record 2 .* expected int16 .*, found int64 from 1 to 40000; skipped"):
        assert len(skipping.take([0, 2])) == 1
