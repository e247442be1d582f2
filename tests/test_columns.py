"""Columns: measured while indexing, computed by functions, given as arrays; all of one call, or the old index."""

import math
import os
import random
import re
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

import mmapds
from mmapds.dataset.saving import examine_view
from mmapds.storage import numbers
from mmapds.storage.index_file import Index, SavedView
from tests.support.index_file import arrays, verify
from tests.support.pieces import jsonl_in_blocks

WIDE = 2**53 + 1  # the first integer that float64 does not hold
MANY = 5000  # records that two workers share out


@pytest.fixture
def corpus(write):
    rng = random.Random(0)
    records = [
        {"id": i, "text": "é " * rng.randrange(50), "ids": [0] * rng.randrange(9), "meta": {"n": rng.randrange(900)}}
        for i in range(MANY)
    ]
    return write(records), records


@pytest.fixture
def path(write):
    return write([{"text": "word " * (number % 20)} for number in range(100)])


@contextmanager
def spilled():
    """Numbers that wait are in scratch files, a few in each piece."""
    with patch.object(numbers, "_IN_MEMORY", 1), patch.object(numbers, "_COPY", 16):
        yield


def words(sample):
    return len(sample["text"].split())


def chars(sample):
    return len(sample["text"])


def half(sample):
    return sample["id"] / 2 - 1


def fails(sample):
    return sample["nope"]


def refuse(sample):
    return {}["speaker"] if sample["id"] == 4500 else 1


def first_of_none(_):
    return next(iter([]))


def lengths(path):
    return mmapds.open(path).lengths.tolist()


def names(folder):
    return sorted(os.listdir(folder))


# ---- expressions -----------------------------------------------------------------------------------------------------


def test_columns_are_what_their_expressions_say(corpus, index):
    path, records = corpus
    expressions = {"chars": "chars(text)", "bytes": "bytes(text)", "items": "items(ids)", "size": "bytes()"}
    options = [each for name, text in expressions.items() for each in ("--column", f"{name}={text}")]
    done = index(path, "--length", "meta.n", *options, "--validate")
    assert "; length = meta.n, chars = chars(text), bytes = bytes(text), items = items(ids)" in done.stdout
    ds = mmapds.open(path)
    assert {name: ds.column(name).tolist() for name in ds.columns} == {
        "length": [record["meta"]["n"] for record in records],
        "chars": [len(record["text"]) for record in records],
        "bytes": [len(record["text"].encode()) for record in records],
        "items": [len(record["ids"]) for record in records],
        "size": [ds.where(i).size for i in range(MANY)],
    }
    assert (ds.lengths.dtype, ds.lengths.flags.writeable) == (np.uint32, False)


COUNTS = [0, 1, 2**32 - 1, 2**32, 2**53, WIDE, 2**63 - 1]
NUMBERS = [
    COUNTS,
    [*COUNTS, 2**63, 2**64 - 1],
    [*COUNTS, -1, -(2**63)],
    [7, 2**53, -(2**53), 2**64 - 2**11, 0.5, 1e300],
]
NUMBERS += [[number for numbers in NUMBERS for number in numbers]]


def expected_of(column):
    """The smallest type that holds all numbers, and the first integer that it does not hold exactly; else None."""
    if all(type(number) is int for number in column):
        low, high = min(column, default=0), max(column, default=0)
        if low >= 0 or high < 2**63:
            return ("<i8" if low < 0 else "<u8" if high >= 2**32 else "<u4"), None
    return "<f8", next(
        (at for at, number in enumerate(column) if int(float(number)) != number and number % 1 == 0), None
    )


def check_column(make, expected):
    """What makes a column gives these numbers in the smallest type, or an error that names what it would round."""
    dtype, at = expected_of(expected)
    if at is None:
        found = make()
        assert (found.dtype, found.tolist()) == (dtype, [*map(np.dtype(dtype).type, expected)])
    else:
        with pytest.raises(mmapds.ColumnError, match="expected an integer that float64 holds exactly") as caught:
            make()
        inexact = [number for number in expected if number % 1 == 0 and int(float(number)) != number]
        found = str(caught.value)  # of several indexes, it may be that of any
        assert f"(record {at} of the index)" in found or any(f" {number} " in found for number in inexact)


@given(
    parts=st.sampled_from(NUMBERS).flatmap(
        lambda pool: st.lists(st.lists(st.sampled_from(pool), max_size=5), min_size=1, max_size=3)
    )
)
@example([[-1], [2**63]])
def test_a_column_has_the_smallest_type_that_holds_it_and_no_integer_is_rounded(tmp_path_factory, parts):
    """Also where each record is in a block of its own, and types differ from block to block, or in other indexes."""
    folder = tmp_path_factory.mktemp("numbers")
    path, *paths = [folder / f"{number}.jsonl" for number in range(len(parts) + 1)]
    column = [number for part in parts for number in part]
    for each, numbers_of_each in zip([path, *paths], [column, *parts], strict=True):
        each.write_text("".join(f'{{"x":{number}}}\n' for number in numbers_of_each))
    mmapds.build(path)

    def read(index=path):
        return mmapds.open(index).column("x")

    with spilled():
        for make in (
            lambda: mmapds.build(path, columns={"x": "x"}),
            lambda: mmapds.build(path, format=jsonl_in_blocks(8), columns={"x": "x"}, workers=2, force=True),
            lambda: mmapds.add_column(path, "x", column),
            lambda: mmapds.add_column(path, "x", lambda sample: sample["x"], workers=1),
        ):
            check_column(lambda make=make: (make(), read())[1], column)
        if any(expected_of(part)[1] is not None for part in parts):
            return
        mmapds.build(paths, columns={"x": "x"})
        many, view = mmapds.open(paths), folder / "view.mmx"
        check_column(lambda: many.column("x"), column)
        check_column(lambda: many[::-1].column("x"), column[::-1])
        check_column(lambda: (many[::-1].save(view), read(view))[1], column[::-1])
        check_column(lambda: read(mmapds.merge(paths, out=folder / "all.mmx")), column)
    assert not view.exists() or not examine_view(SavedView(str(view))).problems
    assert not list(folder.glob("*.tmp"))


def test_missing_fields(write, tmp_path, index):
    path = write(b'{"n":1}\n{"m":2}\n\n{"n":null}\n{"n":4}\n')
    with pytest.raises(mmapds.ColumnError) as missing:
        mmapds.build(path, length="n")
    assert str(missing.value) == (
        f"{path}:2 (byte 8): expected a number at `n`, found null or no field (fields: m); leave such records out with "
        "missing='skip' (record 1 of the index)"
    )
    assert names(tmp_path) == ["train.jsonl"]
    mmapds.build(path, length="n", missing=9)
    assert lengths(path) == [1, 9, 9, 4]
    os.unlink(f"{path}.mmx")
    assert index(path, "--column", "x=n", "--missing", "nan").returncode == 0
    np.testing.assert_array_equal(mmapds.open(path).column("x"), [1, math.nan, math.nan, 4])


EVERY = "in every item of a list at"


@pytest.mark.parametrize(
    ("line", "expression", "message"),
    [
        (b'{"n": true}', "n", "a number at `n`, found true"),
        (b'{"a":1,"n":5}', "chars(n)", "a string at `n`, found a number"),
        (b'{"n":{}}', "items(n)", "an array at `n`, found an object"),
        (b"[1]", "n", "a number inside objects at `n`, found an array"),
        (b'{"n":[{"t":{}},{}]}', "n[*].t", f"a number {EVERY} `n[*].t`, found an object at byte 11 of the record"),
        (b'{"n":"x"}', "chars(n[*])", f"a string {EVERY} `n[*]`, found a string at byte 5 of the record"),
    ],
)
def test_a_wrong_type_is_always_an_error(write, line, expression, message):
    path = write(b"{}\n" + line + b"\n")
    for missing, number in (("skip", 0), (0, 1)):  # the record before is left out, or has the number
        with pytest.raises(mmapds.ColumnError) as wrong:
            mmapds.build(path, columns={"x": expression}, missing=missing)
        hint = f"leave such lines out with bad='skip' (record {number} of the index)"
        assert str(wrong.value) == f"{path}:2 (byte 3): expected {message}; {hint}"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"missing": "skip", "bad": "skip"}, [3, 0]),
        ({"missing": 9, "bad": "skip"}, [3, 0, 3, 9, 4]),
        ({"missing": "skip"}, f"expected a number {EVERY} `n[*].t`, found a string"),
        ({"bad": "skip"}, "at `n[*].t`, found null or no field; count such items as 0 with missing=0, or leave such"),
    ],
)
def test_items_that_lack_a_number_count_0_where_missing_is_a_number(write, options, expected):
    lists = [[{"t": 1}, {"t": 2}], [], [{"t": 3}, {}], None, [{"t": 3}, {"t": "x"}, {}], [None, {"t": 4}]]
    path = write([{"n": each} for each in lists])
    if isinstance(expected, str):
        with pytest.raises(mmapds.ColumnError, match=re.escape(expected)):
            mmapds.build(path, length="n[*].t", **options)
        return
    with pytest.warns(UserWarning, match=r"train.jsonl:5 \(byte 72\): .* found a bad line \(1 such line left out"):
        mmapds.build(path, length="n[*].t", **options)
    assert (lengths(path), Index(f"{path}.mmx").expressions) == (expected, {"length": "n[*].t"})
    verify(Index(f"{path}.mmx"))


def test_lengths_are_counts(write):
    for number in (-1, 1.5, 1e-300):
        with pytest.raises(mmapds.ColumnError) as caught:
            mmapds.build(write([{"n": 3}, {"n": number}, {"n": 5.0}]), length="n", force=True)
        said = re.sub("; keep .* add_column", "", str(caught.value))
        what = f"column 'length': expected integers of 0 or more, found {float(number)} (record 1 of the index)"
        assert said == what
    path = write([{"n": 5.0}, {"n": 7}])
    mmapds.build(path, force=True)
    for values, expected in (
        (lambda sample: sample["n"], [5, 7]),
        (lambda sample: np.int64(sample["n"]) > 5, [0, 1]),
        (np.array([True, False]), [1, 0]),
        ([3.0, 4.0], [3, 4]),
        ([1, 2**63], [1, 2**63]),
    ):
        mmapds.add_column(path, "length", values)
        assert (mmapds.open(path).lengths.dtype.kind, lengths(path)) == ("u", expected)


@pytest.mark.parametrize("largest", [0, 300, 2**20 - 1, 2**20, 2**32, 2**63])
def test_the_length_order_is_a_stable_sort(write, largest):
    rng = random.Random(largest)
    expected = [rng.randrange(largest + 1) for _ in range(500)] * 2 + [largest, 0]
    for column in (expected, []):
        path = write([{"n": length} for length in column])
        mmapds.build(path, length="n", force=True)
        order, values, counts = arrays(mmapds.open(path).length_order)
        assert order.tolist() == sorted(range(len(column)), key=lambda i: -column[i])
        assert values.tolist() == sorted(set(column), reverse=True)
        assert counts.tolist() == [column.count(value) for value in values.tolist()]


# ---- functions and arrays --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2])
def test_a_function_sees_every_sample(corpus, workers):
    """Workers that are forked have the numbers of a column before, and lose none when they end."""
    path, records = corpus
    done = []
    with spilled():
        mmapds.build(path, length=words, columns={"half": half}, workers=workers)
        mmapds.add_column(path, "chars", chars, workers=workers, progress=done.append)
    ds = mmapds.open(path)
    assert ds.lengths.tolist() == [len(record["text"].split()) for record in records]
    assert ds.column("half").tolist() == [half(record) for record in records]
    assert arrays(ds.length_order)[0].tolist() == sorted(range(MANY), key=lambda i: -words(records[i]))
    assert list(ds) == records
    assert (sum(done), len(done)) == (MANY, 2)


def test_columns_from_arrays(path, index):
    mmapds.build(path, length="bytes()")
    before = mmapds.open(path)
    for make in (torch.tensor, np.array):
        for column in ([math.nan, 0.5, 1], [3, 4, 5]):
            mmapds.add_column(path, "x", [make(number) for number in column] + [0] * 97)
            np.testing.assert_array_equal(mmapds.open(path).column("x")[:3], column)
    mmapds.add_column(path, "length", np.arange(100) // 3)
    ds = mmapds.open(path)
    assert (ds.columns, ds.lengths.tolist()) == (["x", "length"], [number // 3 for number in range(100)])
    assert arrays(ds.length_order)[0].tolist() == sorted(range(100), key=lambda i: -(i // 3))
    assert before.lengths.tolist() == [before.where(i).size for i in range(100)]
    assert index("--verify", path).returncode == 0


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_of_a_function_says_where_the_record_is(corpus, workers):
    path, _ = corpus
    mmapds.build(path)
    with pytest.raises(KeyError) as refused:
        mmapds.add_column(path, "x", refuse, workers=workers)
    shown = "".join(traceback.format_exception(refused.value))
    assert re.search(r"while computing a column for .*train.jsonl:4501 \(byte \d+\)\n", shown)
    with pytest.raises(mmapds.ColumnError, match=r"jsonl:1 \(byte 0\): expected a number, found StopIteration"):
        mmapds.add_column(path, "x", first_of_none, workers=workers)
    assert (names(Path(path).parent), mmapds.open(path).columns) == (["train.jsonl", "train.jsonl.mmx"], [])


# ---- all columns, or the old index -----------------------------------------------------------------------------------


def test_columns_come_all_or_none(write, path, tmp_path):
    """Of several sources, those before a failure are built."""
    other, out = write([{"nope": 1}], "wrong.jsonl"), tmp_path / "all.mmx"
    with pytest.raises(KeyError):
        mmapds.build([path, other], length=words)
    assert names(tmp_path) == ["train.jsonl", "train.jsonl.mmx", "wrong.jsonl"]
    mmapds.build(path, out=out, length=words)
    before = out.read_bytes()
    with open(path, "a") as file:
        file.write('{"text": "more"}\n')
    with ThreadPoolExecutor(2) as pool:
        for options in ({}, {"force": True, "hash": True}, {"executor": pool}):
            for wrong in ({"length": fails}, {"length": chars, "columns": {"wrong": fails, "size": "bytes()"}}):
                with pytest.raises(KeyError) as raised:
                    mmapds.build(path, out=out, **options, **wrong)
                assert len(raised.value.__notes__) == 1, "the function ran once"
                assert out.read_bytes() == before
        mmapds.build(path, out=out, length=words, executor=pool)
    assert mmapds.open(out).lengths.tolist() == [words(sample) for sample in mmapds.open(out)]
    assert names(tmp_path) == ["all.mmx", "train.jsonl", "train.jsonl.mmx", "wrong.jsonl"]


@pytest.mark.parametrize("wanted", [{}, {"columns": {"size": "chars(text)"}}, {"length": "bytes(text)"}])
def test_a_computed_column_is_not_lost_in_silence(write, wanted):
    path = write([{"text": "a"}, {"text": "b c"}])
    mmapds.build(path, length=words, columns={"half": words})
    before = Path(path + ".mmx").read_bytes()
    if not wanted:
        mmapds.build(path)
        assert Path(path + ".mmx").read_bytes() == before, "nothing changed"
        write([{"text": "a"}])
    with pytest.raises(mmapds.ColumnError) as lost:
        mmapds.build(path, **wanted)
    assert str(lost.value) == (
        f"{path}.mmx: column 'length', 'half' was computed in Python and a rebuild loses it; pass "
        "columns={'length': FUNCTION, 'half': FUNCTION} to mmapds.build, or drop 'length', 'half' with force=True"
    )
    assert Path(path + ".mmx").read_bytes() == before
    with pytest.warns(UserWarning, match="computed in Python, is dropped"):
        mmapds.build(path, **wanted, force=True)
    assert mmapds.open(path).columns == list(wanted.get("columns", {})) + ["length"] * ("length" in wanted)


# ---- what a function is known by -------------------------------------------------------------------------------------


def test_a_function_is_known_by_its_name_and_a_version(path):
    functions = {"def": words, "built in": len, "partial": partial(words), "lambda": lambda _: 1}
    here, inner = "tests.test_columns", functions["lambda"].__qualname__
    mmapds.build(path, columns=functions, workers=1)
    assert Index(f"{path}.mmx").functions == {"def": f"{here}.words:", "built in": "builtins.len:"}
    mmapds.build(path, columns=functions, workers=1, version=2)
    names = {
        "def": f"{here}.words",
        "built in": "builtins.len",
        "partial": f"{here}.words",
        "lambda": f"{here}.{inner}",
    }
    assert Index(f"{path}.mmx").functions == {column: f"{name}:2" for column, name in names.items()}
    assert Index(f"{path}.mmx").meaning("def") == f"function {here}.words, version 2"


def test_a_build_computes_columns_again(path, index):
    mmapds.build(path, length=words)
    mmapds.build(path, length=chars)
    assert lengths(path) == [chars(sample) for sample in mmapds.open(path)]
    mmapds.build(path, columns={"size": words})
    assert mmapds.open(path).columns == ["length", "size"]
    mmapds.add_column(path, "length", [5] * 100)
    assert list(Index(f"{path}.mmx").functions) == ["size"]
    mmapds.build(path, columns={"length": words, "size": words})
    assert lengths(path) == [words(sample) for sample in mmapds.open(path)]
    assert index(path, "--length", "bytes(text)", "--force").returncode == 0
    assert "length" not in Index(f"{path}.mmx").functions
