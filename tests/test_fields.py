"""`Fields`: what it makes of JSON, what it refuses, and what it says then."""

import json
import os

import numpy as np
import pytest
import torch

import mmapds
from mmapds import DecodeError, Fields, FormatError, _native, pad_collate
from tests.support import json_records
from tests.support.commands import python
from tests.support.json_records import dataset, equal

VARIANTS = _native.simd_variants()
CASES = 1500


# ---- against orjson and NumPy ----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(2))
def test_it_agrees_with_orjson_and_numpy(seed):
    good = json_records.compare(seed, CASES)
    assert CASES / 2 < good < CASES * 0.9


@pytest.mark.parametrize("variant", VARIANTS)
def test_it_agrees_with_every_variant_of_the_kernels(variant):
    code = "from tests.support.json_records import compare\nprint(compare(7, 300) > 100)"
    assert python(code, env={**os.environ, "MMAPDS_SIMD": variant}).stdout == "True\n"


def test_batches_are_what_samples_are(tmp_path):
    make = json_records.Maker(5)
    records = [make.record().replace(b"\n", b" ").replace(b"\r", b" ") for _ in range(300)]
    records = [record for record in records if record.strip()]
    fields = Fields(json_records.SCHEMA, defaults=json_records.DEFAULTS)
    ds = dataset(tmp_path / "a.jsonl", records, fields, on_error="skip")
    with pytest.warns(RuntimeWarning, match="left out"):
        batch, kept = ds.take_kept(range(len(ds)))
    good = [k for k in range(len(ds)) if is_good(fields, records[k])]
    assert kept.tolist() == good
    assert ds.skipped == [k for k in range(len(ds)) if k not in good]
    assert 100 < len(good) < len(ds)
    assert equal(list(batch), [ds[k] for k in good])
    assert equal([batch.values(name) for name in batch.names], [[s[name] for s in batch] for name in batch.names])


def is_good(fields, record):
    try:
        fields(record)
    except DecodeError:
        return False
    return True


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"])
def test_integers_are_exact_to_the_last(dtype):
    limits = np.iinfo(dtype)
    numbers = [0, 1, 9, 10, 99, 7, *(n for n in (999_999, 9_999_999, 12_345_678, 123_456_789) if n <= limits.max)]
    numbers += [limits.min, limits.max, limits.min + 1, limits.max - 1]
    fields = Fields({"x": dtype})
    for text in (json.dumps(numbers), json.dumps(numbers, separators=(",", ":")), json.dumps(numbers * 50, indent=1)):
        found = fields(f'{{"x":{text}}}'.encode())["x"]
        assert found.dtype == dtype
        assert found.tolist() == json.loads(text)
    for beyond in (limits.min - 1, limits.max + 1):
        for text in (
            f"[{beyond}]",
            f"[1, {beyond}, 1, 2, 3, 4, 5, 6, 7]",
            f"{[*[1] * 200, beyond, *[1] * 50]}",
            f"{beyond}",
        ):
            with pytest.raises(
                DecodeError, match=f"^expected {dtype} at `x`, found {beyond} at byte {text.find(str(beyond)) + 5} "
            ):
                fields(f'{{"x":{text}}}'.encode())


@pytest.mark.parametrize("separator", [",", ", ", " , ", ",\t", ",  ", ",\n"])
def test_runs_of_tokens_of_every_length(separator):
    """At every place in a block, with what is not a short number among them."""
    generator = np.random.default_rng(0)
    fields = {dtype: Fields({"x": dtype}) for dtype in ("int32", "int64", "uint16")}
    for count in [*range(40), 100, 500, 3000]:
        numbers = (10 ** generator.uniform(0, 9.3, count)).astype(np.int64)
        numbers[generator.random(count) < 0.01] *= -1
        for dtype, each in fields.items():
            wanted = np.abs(numbers) % 60_000 if dtype == "uint16" else numbers
            padding, listed = "x" * int(generator.integers(0, 64)), separator.join(map(str, wanted.tolist()))
            assert np.array_equal(each(f'{{"pad": "{padding}", "x": [{listed}]}}'.encode())["x"], wanted)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_floats_are_those_of_python_and_numpy_by_their_bits(dtype):
    generator = np.random.default_rng(0)
    numbers = [*generator.standard_normal(300).tolist(), 0.0, -0.0, 5e-324, 2.0**-24, 2.0**-25, 3 * 2.0**-25, 65504.0]
    numbers += [2.0**-14, 2.0**-14 - 2.0**-26, 1 + 2.0**-11, 1 + 3 * 2.0**-11, 1 + 2.0**-24, 1 + 3 * 2.0**-24, 65519.0]
    numbers += np.float64(np.arange(0, 65504, 16.1)).tolist()
    found = Fields({"x": dtype})(json.dumps({"x": numbers}).encode())["x"]
    assert found.tobytes() == np.array(numbers).astype(dtype).tobytes()
    one = Fields({"x": dtype})(b'{"x": 0.1}')["x"]
    assert (type(one), one) == (float, float(np.array(0.1, dtype)))


@pytest.mark.parametrize(
    ("dtype", "beyond"), [("float16", "65520"), ("float32", "3.4028236e38"), ("bfloat16", "3.3962e38")]
)
def test_floats_beyond_the_dtype_are_refused(dtype, beyond):
    fields = Fields({"x": dtype})
    for text in (beyond, f"-{beyond}"):
        with pytest.raises(DecodeError, match=f"expected {dtype} at `x`, found -?{beyond} at byte"):
            fields(f'{{"x": [1, {text}]}}'.encode())


@pytest.mark.parametrize("dtype", ["float16", "float32", "bfloat16"])
def test_stored_floats_beyond_the_dtype_are_refused(tmp_path, dtype):
    with mmapds.Writer(tmp_path / "a.mma", {"x": "float64", "y": ("float64", (None,))}) as writer:
        writer.write({"x": -1e39, "y": np.array([1.5, 1e300])})
        writer.write({"x": float("inf"), "y": np.array([-np.inf])})
    for name, found in ("x", "float64 from -1e\\+39 to -1e\\+39"), ("y", "float64 from 1.5 to 1e\\+300"):
        ds = mmapds.open(tmp_path / "a.mma", decode=Fields({name: dtype}))
        for read in (lambda: ds[0], lambda: pad_collate(ds.take([0, 1]))):  # noqa: B023
            with pytest.raises(DecodeError, match=f"expected {dtype} at `{name}`, found {found} "):
                read()
        assert np.isinf(np.asarray(ds[1][name], float)).all()


def test_stored_nan_stays_nan_in_bfloat16(tmp_path):
    odd = np.array([0x7FFFFFFF, 0xFFFFFFFF, 0x7FFF8000, 0x7FC00000, 0x7F800001], np.uint32).view(np.float32)
    with mmapds.Writer(tmp_path / "a.mma", {"x": ("float32", (None,))}) as writer:
        writer.write({"x": odd})
    for sample in (
        mmapds.open(tmp_path / "a.mma", decode=Fields({"x": "bfloat16"}))[0],
        mmapds.open(tmp_path / "a.mma", decode=Fields({"x": "bfloat16"})).take([0])[0],
    ):
        assert np.isnan(np.asarray(sample["x"], np.float32)).all()


def test_bfloat16_is_that_of_torch():
    numbers = [*np.random.default_rng(0).standard_normal(500).tolist(), 1.0, 3.38e38, -0.0, 1e-40]
    found = Fields({"x": "bfloat16"})(json.dumps({"x": numbers}).encode())["x"]
    wanted = torch.tensor(numbers, dtype=torch.float64).to(torch.float32).to(torch.bfloat16)
    assert np.asarray(found).view(np.int16).tolist() == wanted.view(torch.int16).tolist()
    assert Fields({"x": "bfloat16"})(b'{"x": 0.1}')["x"] == wanted.new_tensor(0.1).item()


# ---- values ----------------------------------------------------------------------------------------------------


def test_kinds_of_values():
    fields = Fields(
        {
            "n": "int32",
            "list": "int16",
            "matrix": "float32",
            "zero": ("uint8", ()),
            "fixed": ("int64", (2,)),
            "ragged": ("int8", "ragged"),
            "flag": "bool",
            "flags": "bool",
            "a.b": "str",
            r"c\.d": "int32",
        }
    )
    record = {
        "n": 5,
        "list": [1, 2],
        "matrix": [[1, 2], [3, 4.5]],
        "zero": 3,
        "fixed": [7, 8],
        "ragged": [[1], [], [2, 3]],
    }
    record |= {"flag": True, "flags": [False, True], "a": {"b": 'é"😀', "c": 1}, "c.d": 9, "more": [{"n": "x"}]}
    found = fields(json.dumps(record).encode())
    assert list(found) == ["n", "list", "matrix", "zero", "fixed", "ragged", "flag", "flags", "a.b", r"c\.d"]
    assert (type(found["n"]), found["n"]) == (int, 5)
    assert (found["list"].dtype, found["list"].tolist()) == (np.int16, [1, 2])
    assert (found["matrix"].shape, found["matrix"].tolist()) == ((2, 2), [[1.0, 2.0], [3.0, 4.5]])
    assert (found["zero"].shape, found["zero"].dtype, int(found["zero"])) == ((), np.uint8, 3)
    assert found["fixed"].tolist() == [7, 8]
    assert [row.tolist() for row in found["ragged"]] == [[1], [], [2, 3]]
    assert all(row.dtype == np.int8 for row in found["ragged"])
    assert found["flag"] is True
    assert found["flags"].tolist() == [False, True]
    assert found["a.b"] == 'é"😀'
    assert found[r"c\.d"] == 9
    found["list"][0] = 7  # the arrays are the sample's own
    assert fields(json.dumps(record).encode())["list"].tolist() == [1, 2]


def test_empty_lists():
    fields = Fields(
        {"a": "int32", "b": ("float32", (None, 80)), "c": ("int8", (None, None, 2)), "d": ("bool", "ragged")}
    )
    found = fields(b'{"a":[], "b":[ ], "c":[], "d":[]}')
    assert [found[name].shape for name in "abc"] == [(0,), (0, 80), (0, 0, 2)]
    assert found["d"] == []
    assert fields(b'{"a":[[],[]], "b":[], "c":[], "d":[[],[]]}')["a"].shape == (2, 0)


def test_the_last_of_duplicate_keys_counts_and_keys_may_have_escapes():
    fields = Fields({"x": "int32", "a.b": "int32"}, defaults={"a.b": 0})
    assert fields(b'{"x":"no","x":[1.5],"x":3,"a":{"b":"no","b":4}}') == {"x": 3, "a.b": 4}
    assert fields(b'{"\\u0078":[1],"\\u0061":{"\\u0062":2}}')["a.b"] == 2
    assert fields(b'{"x":1,"a":{"b":1},"a":{}}') == {"x": 1, "a.b": 0}
    assert fields(b'{"x":1,"a":7,"a":null}') == {"x": 1, "a.b": 0}
    with pytest.raises(DecodeError, match=r"^expected int32 at `x`, which has no default, found nothing or null$"):
        fields(b'{"x":1,"x":null}')


@pytest.mark.parametrize(
    ("schema", "defaults", "message"),
    [
        (["x"], None, r"^schema = \['x'\], expected a dict$"),
        ({"x": "int32"}, ["x"], r"^defaults = \['x'\], expected a dict$"),
        ({"x": "int"}, None, r"^schema\['x'\] = 'int', expected 'str', a dtype among"),
        ({"x": ("str", (None,))}, None, r"^schema\['x'\] = \('str', \(None,\)\), expected"),
        ({"x": ["int32", None, 3]}, None, r"^schema\['x'\] = \['int32', None, 3\], expected 'str', a dtype among"),
        (
            {"x": ("int8", (None, *[2**31 - 1] * 3))},
            None,
            r"^schema\['x'\] = .*, expected axes of less than 2\^63 bytes",
        ),
        ({"x": ("int32", (-1,))}, None, r"^schema\['x'\] = .*, expected up to 8 axes, each None or 0 to"),
        ({"": "int32"}, None, r"^schema: '' is not a valid path: expected 1 to 16 keys"),
        ({7: "int32"}, None, r"^schema: 7 is not a valid path"),
        ({"x": "int32"}, {"y": 1}, r"^defaults: expected fields among 'x', found 'y'$"),
        ({"x": "int32", "x.y": "int8"}, None, r"^schema: expected fields apart, found 'x.y' inside 'x'$"),
        ({"x": "int8"}, {"x": 128}, r"^defaults\['x'\] = 128, expected int8$"),
        ({"x": "float32"}, {"x": float("nan")}, r"^defaults\['x'\] = nan, expected float32$"),
        ({"x": "float32"}, {"x": None}, r"^defaults\['x'\] = None, expected float32$"),
    ],
)
def test_schemas_that_are_refused(schema, defaults, message):
    with pytest.raises(FormatError, match=message):
        Fields(schema, defaults=defaults)


# ---- what is refused -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (b'{"id":1}', "expected int32 at `x`, which has no default, found nothing or null"),
        (b'{"x":null}', "expected int32 at `x`, which has no default, found nothing or null"),
        (b'{"x":[1,"7"]}', "expected int32 at `x`, found a string at byte 8 of the record"),
        (b'{"x":[1,null]}', "expected int32 at `x`, found null at byte 8 of the record"),
        (b'{"x":[1,[2]]}', "expected int32 at `x`, found an array at byte 8 of the record"),
        (b'{"x":[1,1.5]}', "expected int32 at `x`, found 1.5 at byte 8 of the record"),
        (b'{"x":[1,1e2]}', "expected int32 at `x`, found 1e2 at byte 8 of the record"),
        (
            b'{"x":[[1,2],[3]]}',
            "expected int32 at `x`, found a list of another length at byte 12",
        ),
        (b'{"x":[[1],2]}', "expected int32 at `x`, found 2 at byte 10"),
        (b'{"x":' + b"[" * 9 + b"1" + b"]" * 9 + b"}", "expected int32 at `x`, found another shape at byte"),
        (b'{"x":-%d.5}' % 10**99, f"expected int32 at `x`, found -{10**78} at byte 5"),
        (b" 7", "expected an object, found a number"),
        (b'{"x":[1,1e999]}', "not JSON: number is infinity when parsed as double: line 1 column 9 (char 8)"),
        (b'{"x":[1,NaN]}', "not JSON: "),
        (b"", "not JSON: "),
        (b'{"x":1,"y":"\xff"}', "not JSON: "),
        (b'{"x":1,"y":' + b"[" * 1024 + b"]" * 1024 + b"}", "not JSON: "),
    ],
)
def test_records_that_are_refused(tmp_path, record, message):
    fields = Fields({"x": "int32"})
    with pytest.raises(DecodeError) as refused:
        fields(record)
    assert str(refused.value).startswith(message)
    if not record:
        return
    ds = dataset(tmp_path / "a.jsonl", [b'{"x":1}', b'{"x":2}', record, b'{"x":3}'], fields)
    place = f"{tmp_path}/a.jsonl:3 (byte 16): {message}"
    for read in (lambda: ds[2], lambda: ds.take([0, 2, 1]), lambda: ds[::-1].take([1])):
        with pytest.raises(DecodeError) as refused:
            read()
        assert str(refused.value).startswith(place)
        assert str(refused.value).endswith("])")
    skipping = mmapds.open(tmp_path / "a.jsonl", decode=fields, on_error="skip")
    with pytest.warns(RuntimeWarning, match=r"a\.jsonl:3 \(byte 16\): .*; left out"):
        batch = skipping.take([0, 2, 3])
    assert pad_collate(batch)["x"].tolist() == [1, 3]
    assert skipping.skipped == [2]


@pytest.mark.filterwarnings("ignore:.*; left out:RuntimeWarning")
def test_records_are_skipped_where_one_was_ever_read(tmp_path):
    records = [b'{"id":1}', *[b'{"n":1}'] * 150]
    ds = dataset(tmp_path / "a.jsonl", records, Fields({"id": "int32"}), on_error="skip")
    assert [sample["id"] for sample in ds] == [1]
    assert ds.skipped == list(range(1, 151))


@pytest.mark.parametrize(
    ("what", "text", "found"),
    [
        (("int32", (None,)), "7", "expected int32 of shape (None,) at `x`, found 7 at byte 6"),
        (("int32", (2,)), "[1]", "expected int32 of shape (2,) at `x`, found another shape at byte 6"),
        (("int32", "ragged"), "[[[1]]]", "expected lists of int32 at `x`, found an array at byte 8"),
        ("bool", "1", "expected bool at `x`, found 1 at byte 6"),
        ("bool", "[true, 0]", "expected bool at `x`, found 0 at byte 13"),
    ],
)
def test_shapes_and_types_that_differ(what, text, found):
    with pytest.raises(DecodeError) as refused:
        Fields({"x": what})(f'{{"x": {text}}}'.encode())
    assert str(refused.value) == f"{found} of the record"


def test_a_refusal_names_the_field_that_comes_first_in_the_record_or_is_wrong():
    fields = Fields({"b": "int8", "a": "int8"})
    with pytest.raises(DecodeError, match="at `a`, found 300 "):
        fields(b'{"a":300,"b":1}')
