"""Writing array files: what fits is written, what does not is refused, and nothing is left of what is not finished."""

import enum
import functools
import os

import numpy as np
import pytest
import torch

import mmapds
from mmapds.arrays.schema import Schema
from mmapds.arrays.values import Inference
from mmapds.storage.index_file import Index
from tests.support.array_files import store, utterances
from tests.support.files import flip, largest_file
from tests.support.index_file import verify
from tests.support.json_records import equal


def inferred(record):
    """The schema that a record alone has."""
    inference = Inference()
    inference.add(record)
    return Schema(inference.described()).describe()


# ---- what is written -----------------------------------------------------------------------------------------


def test_a_schema_is_inferred_from_the_first_record(tmp_path):
    types = {
        "f": (np.zeros((3, 4), np.float32), ["float32", [None, 4]]),
        "t": (torch.zeros(2, dtype=torch.int16), ["int16", [None]]),
        "l": ([1, 2, 3], ["int64", [None]]),
        "w": (["a", "b"], "json"),
        "e": ([], "json"),
        "d": ({"x": 1}, "json"),
        "i": (1, "int64"),
        "u": (2**63, "uint64"),
        "n": (np.uint8(3), "uint8"),
        "b": (True, "bool"),
        "r": (0.5, "float64"),
        "s": ("text", "str"),
        "y": (b"bytes", "bytes"),
        "bf": (torch.tensor(1.5, dtype=torch.bfloat16), ["bfloat16", []]),
        "c": (np.complex64(1j), ["complex64", []]),
    }
    record = {name: value for name, (value, _) in types.items()}
    assert inferred(record) == {name: what for name, (_, what) in types.items()}
    (sample,) = mmapds.open(store(tmp_path, [record]))
    assert (sample["l"].tolist(), sample["c"], sample["u"]) == ([1, 2, 3], 1j, 2**63)
    assert [inferred({"x": value}) for value in LONG] == [{"x": "json"}] * 3
    null = "field 'x': expected a value whose type can be inferred, found null"
    for record, message in ({"x": None}, null), ({}, "expected one field or more, found 0"):
        with pytest.raises(mmapds.FormatError, match=f"record 0: {message}"):
            store(tmp_path, [record])


@pytest.mark.parametrize("schema", [None, {}, {"x": ("int8", (None,)), "n": "int64"}])
def test_no_records(tmp_path, schema):
    path = store(tmp_path, [], schema)
    assert list(mmapds.open(path)) == []
    verify(Index(f"{path}.mmx"))


def test_more_than_is_written_or_indexed_at_once(tmp_path):
    """Of bytes and of records."""
    path = store(tmp_path, ({"id": i - 5, "x": np.full(i % 3, i, np.int32)} for i in range(70_000)))
    ds = mmapds.open(path)
    assert ds.column("id").tolist() == list(range(-5, 70_000 - 5))
    batch = mmapds.pad_collate(ds.take(range(70_000)), pad_value=-1)
    assert batch["x"].tolist() == [[i if k < i % 3 else -1 for k in range(2)] for i in range(70_000)]
    with mmapds.Writer(tmp_path / "b.mma") as writer:
        writer.append_file(path)
    assert (tmp_path / "b.mma").read_bytes() == (tmp_path / "a.mma").read_bytes()
    verify(Index(f"{path}.mmx"))


def test_parallel_writers_and_one_index(tmp_path):
    shards, options = [utterances(30, seed) for seed in range(2)], {"length": "feats", "index": False}
    paths = [store(tmp_path, shard, name=f"shard-{n}.mma", **options) for n, shard in enumerate(shards)]
    assert sorted(os.listdir(tmp_path)) == ["shard-0.mma", "shard-1.mma"]
    mmapds.build(str(tmp_path / "shard-*.mma"), out=tmp_path / "all.mmx")
    ds, records = mmapds.open(tmp_path / "all.mmx"), [*shards[0], *shards[1]]
    assert all(equal(found, wanted) for found, wanted in zip(ds, records, strict=True))
    assert ds.lengths.tolist() == [len(record["feats"]) for record in records]
    other = store(tmp_path, [{"x": 1}], name="other.mma")
    with pytest.raises(mmapds.FormatError, match=r"other.mma: schema: expected .*, as in .*shard-0.mma, found "):
        mmapds.build([paths[0], other], out=tmp_path / "b.mmx")


# ---- what does not fit ---------------------------------------------------------------------------------------


TEXTS = ["x" * 10**7, *["y"] * 1_000_000]
LONG = [TEXTS, [1, *TEXTS], [TEXTS]]  # as an array of NumPy, they would take the room of the longest in each place
FIXED, FLOATS, INTEGERS = ("float32", (2, 3)), ("float32", (None,)), ("int64", (None,))


class Odd(enum.Enum):
    NOTHING = float("nan")


@pytest.mark.parametrize(
    ("what", "value", "message"),
    [
        (FIXED, np.ones((4, 3), "f4"), r"expected float32 of shape \(2, 3\), found float32 of shape \(4, 3\)"),
        (FIXED, np.ones((2, 3)), r"expected float32 of shape \(2, 3\), found float64 of shape \(2, 3\)"),
        (FIXED, np.array([[{}] * 3] * 2, object), "expected float32 .*, found object of shape"),
        (FIXED, [[1, 2], [3]], r"expected float32 .*, found list \[\[1, 2\], \[3\]\]"),
        (FLOATS, torch.eye(3).to_sparse(), "expected float32 .*, found float32 of shape"),
        (FLOATS, [torch.ones((), requires_grad=True)], r"found list \[tensor\(1\., requires_grad=True\)\]"),
        (FLOATS, [1.0, 1e300], r"expected float32 .*, found list \[1.0, 1e\+300\]"),
        (FLOATS, np.ma.array([1, 2], np.float32, mask=[0, 1]), r"found float32 of shape \(2,\) with a mask"),
        (("float16", (None,)), [2**11 + 1, 0.5], "expected float16"),
        (("float64", (None,)), [np.int64(2**53 + 1), 0.5, float("inf")], "expected float64"),
        (("complex128", (None,)), [2**53 + 1, 1j], "expected complex128"),
        (INTEGERS, [1.5], "expected int64"),
        (("int8", (None,)), [128], "expected int8"),
        (("uint64", (None,)), [2**63, 0.5], "expected uint64"),
        (("bool", (None,)), [2], "expected bool"),
        *((INTEGERS, value, "expected int64 of shape .*, found list ") for value in LONG),
        ("float32", "1", "expected float32, found str '1'"),
        ("int8", 1.0, "expected int8, found float 1.0"),
        ("int8", [*range(1000, 1100)], r"expected int8, found list \[1000, 1001, 1002, 1003, 1004, 1005, \.\.\.$"),
        ("bool", torch.arange(3), "expected bool, found int64 of shape"),
        ("str", b"a", "expected str, found bytes"),
        ("str", "\ud800", "expected text that encodes as UTF-8, found '.*' .*surrogates"),
        ("json", {"x": [1.0, float("nan")], "y": None}, "expected finite numbers, found NaN or infinity, which JSON"),
        ("json", np.array([np.inf, 1], np.float32), "expected finite numbers, found NaN or infinity"),
        ("json", Odd.NOTHING, "expected finite numbers, found NaN or infinity"),
        ("json", [np.zeros(2, "m8[ns]")], "expected what JSON can hold, found list"),
        ("json", functools.reduce(lambda value, _: [value], range(2000), 1), r"expected what JSON can hold, .* \("),
    ],
)
def test_a_value_that_does_not_fit_costs_nothing_else(tmp_path, what, value, message):
    path = str(tmp_path / "a.mma")
    good = {"json": None, "bool": True, "int8": 1, "float32": 1, "str": "a", FIXED: [[1] * 3] * 2}.get(what, [True])
    with mmapds.Writer(path, {"n": "int64", "v": what}) as writer:
        writer.write({"n": 0, "v": good})
        with pytest.raises(mmapds.FormatError, match=message) as refused:
            writer.write({"n": 1, "v": value})
        assert str(refused.value).startswith(f"{path}: record 1: field 'v': ")
        writer.write({"n": 2, "v": good})
    for sample, n in zip(mmapds.open(path), (0, 2), strict=True):
        np.testing.assert_equal(sample, {"n": n, "v": good})


def test_a_record_of_other_fields_or_without_a_length_is_left_out(tmp_path):
    with mmapds.Writer(tmp_path / "a.mma", {"x": "int8", "t": "str"}, length="x") as writer:
        for record, message in (
            ({"x": -1, "t": "a"}, "record 0: field 'x': expected a length of 0 or more, found -1"),
            ({"x": 1, "t": "a", "y": 1}, "record 0: expected the fields 'x', 't', found 'y' too"),
            ({"x": 1}, "record 0: expected the fields 'x', 't', found nothing for 't'"),
            (3, "record 0: expected a dict of fields, found int 3"),
        ):
            with pytest.raises(mmapds.FormatError, match=message):
                writer.write(record)
        writer.write({"x": 7, "t": "a"})
    ds = mmapds.open(writer.path)
    assert (list(ds), ds.lengths.tolist()) == ([{"x": 7, "t": "a"}], [7])


def test_lists_tensors_and_bytes_of_any_buffer(tmp_path):
    lists = {"int8": [-128], "int64": [], "uint16": [True], "uint64": [2**63, np.uint64(5)], "float16": [2048, 0.5]}
    (sample,) = mmapds.open(store(tmp_path, [lists], {dtype: (dtype, (None,)) for dtype in lists}))
    for dtype, found in sample.items():
        assert (found.dtype, found.tolist()) == (dtype, lists[dtype])
    records = [{"x": [], "y": [[], []]}]
    (sample,) = mmapds.open(store(tmp_path, records, {"x": ("int8", (None, 3)), "y": ("int8", (2, None, 3))}))
    assert (sample["x"].shape, sample["y"].shape) == ((0, 3), (2, 0, 3))
    conjugate = torch.tensor([1 + 2j, 3 - 1j], dtype=torch.complex64).conj()
    (sample,) = mmapds.open(store(tmp_path, [{"c": conjugate, "n": conjugate.imag}]))
    assert (sample["c"].tolist(), sample["n"].tolist()) == ([1 - 2j, 3 + 1j], [-2, 1])
    values = [bytearray(b"x"), memoryview(b"abcdef")[::2], memoryview(np.empty((0, 3)))]
    path = store(tmp_path, [{"y": value} for value in values], {"y": "bytes"})
    assert [sample["y"] for sample in mmapds.open(path)] == [b"x", b"ace", b""]


def test_no_integer_is_rounded_whoever_made_it(tmp_path):
    for dtype, exact in ("float16", 2**11), ("float32", 2**24), ("float64", 2**53):
        with mmapds.Writer(tmp_path / "a.mma", {"x": dtype}, force=True) as writer:
            for make in (int, np.int64, np.array, torch.tensor):
                writer.write({"x": make(exact)})
                with pytest.raises(mmapds.FormatError, match=f"field 'x': expected {dtype}, found int"):
                    writer.write({"x": make(exact + 1)})
            writer.write({"x": float(exact + 1)})  # digits of floats may be lost
            writer.write({"x": np.float64(0.1)})
        assert mmapds.open(writer.path).column("x")[:5].tolist() == [exact] * 5


@pytest.mark.parametrize(
    ("schema", "options", "message"),
    [
        ({"x": "no"}, {}, r"schema\['x'\] = 'no', expected 'bytes', 'str', 'json'"),
        ({"x": "complex64"}, {}, r"schema\['x'\] = 'complex64', expected 'bytes'"),
        ({"x": ("object", (1,))}, {}, r"schema\['x'\] = \('object', \(1,\)\), expected a dtype among bool, int8"),
        ({"x": ("int8", (2**31,))}, {}, "expected up to 8 axes, each None or 0 to"),
        ({"x": ("int32", (0, 2**31 - 1, 2**31 - 1))}, {}, "expected axes of less than 2\\^63 bytes together"),
        ({"x": 3}, {}, "expected a type or"),
        ({"a(b)": "str"}, {}, "is not a valid field name: expected printable text"),
        ({"a": INTEGERS, "a_length": "int8"}, {}, "schema: expected one field for column 'a_length', found 2; rename"),
        ({"length": "float32"}, {}, "field 'length': expected integers, found float32"),
        ({"a": "str"}, {"length": "a"}, "length = 'a', expected an integer field"),
        ({"a": "int8", "length": "int8"}, {"length": "a"}, "length = 'a', expected 'length', as the schema has a f"),
        ([("a", "str")], {}, "expected a dict of field name to type"),
    ],
)
def test_schemas_that_are_refused(tmp_path, schema, options, message):
    with pytest.raises(mmapds.FormatError, match=message):
        mmapds.Writer(tmp_path / "a.mma", schema, **options)
    assert os.listdir(tmp_path) == []


def test_places_that_are_refused(tmp_path):
    for name, message in (("a.bin", r"name that ends in \.mma"), ("no/a.mma", r"here \(no such file or directory\)")):
        with pytest.raises(mmapds.Error, match=message):
            mmapds.Writer(tmp_path / name)


# ---- writers that do not finish ------------------------------------------------------------------------------


def test_a_closed_writer_takes_no_record(tmp_path):
    writer = mmapds.Writer(tmp_path / "a.mma")
    writer.write({"n": 1})
    writer.close()
    writer.close()
    for write in (lambda: writer.write({"n": 1}), lambda: writer.append_file(tmp_path / "a.mma")):
        with pytest.raises(mmapds.Error, match=r"a\.mma: the writer is closed"):
            write()
    assert len(mmapds.open(tmp_path / "a.mma")) == 1


def test_nothing_opens_what_a_forgotten_or_killed_writer_leaves_and_the_next_one_removes_it(tmp_path):
    writer = mmapds.Writer(tmp_path / "a.mma")
    writer.write({"x": 1})
    (left,) = tmp_path.iterdir()
    with pytest.warns(UserWarning, match="a.mma: the writer was not closed and nothing was written"):
        del writer
    assert os.listdir(tmp_path) == []
    left.write_bytes(bytes(200))  # as one that was killed does: the header is written last
    with pytest.raises(mmapds.SourceError, match="no such file"):
        mmapds.open(tmp_path / "a.mma", build=True)
    with pytest.raises(mmapds.FormatError, match=r"NOT AN ARRAY FILE: expected .*, found b'\\x00"):
        mmapds.build(left, format="arrays")
    store(tmp_path, [{"x": 1}])
    assert sorted(os.listdir(tmp_path)) == ["a.mma", "a.mma.mmx"]
    left.write_bytes(b"unfinished")
    assert len(mmapds.open(str(tmp_path / "a*"), build=True)) == 1


def test_a_full_disk(tmp_path):
    writer = mmapds.Writer(tmp_path / "a.mma")

    def fill():
        for i in range(20):
            writer.write({"x": np.full(100_000, i)})
        writer.close()

    full = r"cannot write the array file \(file too large\); nothing was changed; give another place"
    closed = "the writer is closed: an earlier write failed; make a new Writer"
    with largest_file(3_000_000):
        for use, message in ((fill, full), (lambda: writer.write({"x": np.ones(1)}), closed), (writer.close, closed)):
            with pytest.raises(mmapds.Error, match=f"a.mma: {message}$"):
                use()
    assert os.listdir(tmp_path) == []


def test_a_file_written_again_inherits_nothing_of_its_older_index(tmp_path):
    path = tmp_path / "a.mma"
    for schema in ({"n": "int64", "x": "float32"}, {"m": "int64"}):
        store(tmp_path, [dict.fromkeys(schema, 1)], schema)
        assert mmapds.open(path).columns == [*schema]
        mmapds.build(path, columns={"size": "bytes()"})
        mmapds.add_column(path, "more", [1])


def files(tmp_path, *counts):
    samples = [[{"tokens": np.arange(k % 7, dtype=np.uint16), "id": k - 3} for k in range(count)] for count in counts]
    schema = {"tokens": ("uint16", (None,)), "id": "int64"}
    paths = [store(tmp_path, each, schema, name=f"{k}.mma", length="tokens") for k, each in enumerate(samples)]
    return samples, schema, paths


def test_a_writer_appends_whole_files_between_records(tmp_path):
    samples, schema, paths = files(tmp_path, 5, 0, 9)
    with mmapds.Writer(tmp_path / "direct.mma", schema, length="tokens") as writer:
        for record in [*samples[0], samples[0][1], *samples[2]]:
            writer.write(record)
    with mmapds.Writer(tmp_path / "all.mma", length="tokens") as writer:
        assert writer.append_file(paths[0]) == 5
        writer.write(samples[0][1])
        assert [writer.append_file(path) for path in paths[1:]] == [0, 9]
    assert (tmp_path / "all.mma").read_bytes() == (tmp_path / "direct.mma").read_bytes()


def test_a_writer_refuses_files_of_other_records_and_damaged_ones(tmp_path):
    samples, schema, paths = files(tmp_path, 5, 3)
    store(tmp_path, samples[0], schema, name="other.mma")
    store(tmp_path, samples[0], dict(reversed(schema.items())), name="turned.mma", length="tokens")
    flip(paths[1], 500)
    with mmapds.Writer(tmp_path / "all.mma", schema, length="tokens") as writer:
        writer.append_file(paths[0])
        for name, message in (
            ("other.mma", "columns: expected .*, as in .*all\\.mma, found "),
            ("turned.mma", "schema: expected .*, found "),
            ("1.mma", "DAMAGED: section 'records' does not match its checksum"),
            ("nothing.mma", "no such file"),
        ):
            with pytest.raises(mmapds.Error, match=f"{name}: {message}"):
                writer.append_file(tmp_path / name)
    assert len(mmapds.open(tmp_path / "all.mma")) == 5


def test_an_index_that_cannot_be_written_costs_no_record(tmp_path):
    (tmp_path / "a.mma.mmx").mkdir()
    message = r"a\.mma: the array file is in its place, but not indexed: .*\.mmx: expected a regular file, found a"
    with pytest.raises(mmapds.Error, match=message):
        store(tmp_path, [{"x": 1}])
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.mma", "a.mma.mmx"]
    mmapds.build(tmp_path / "a.mma", out=tmp_path / "b.mmx")
    assert mmapds.open(tmp_path / "b.mmx")[0]["x"] == 1
