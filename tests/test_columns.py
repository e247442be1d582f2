"""Columns: measured while indexing, computed by functions, given as arrays; all of one call, or the old index."""

import gzip
import math
import os
import random
import re
import traceback
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import orjson
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import mmapds
from mmapds.compression.reader import BlockReader
from mmapds.storage import numbers
from mmapds.storage.index_file import Index
from tests.support.alive import Counted
from tests.support.index_file import arrays
from tests.support.messages import check
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


@pytest.fixture
def spilled(monkeypatch):
    """Numbers that wait are in scratch files, a few in each piece."""
    monkeypatch.setattr(numbers, "_IN_MEMORY", 1)
    monkeypatch.setattr(numbers, "_COPY", 16)


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
    options = ("--column", "bytes=bytes(text)", "--column", "items=items(ids)", "--column", "size=bytes()")
    done = index(path, "--length", "meta.n", "--column", "chars=chars(text)", *options, "--validate")
    assert "; length = meta.n, chars = chars(text), bytes = bytes(text), items = items(ids)" in done.stdout
    ds = mmapds.open(path)
    assert ds.columns == ["length", "chars", "bytes", "items", "size"]
    assert ds.lengths.tolist() == [record["meta"]["n"] for record in records]
    assert ds.column("chars").tolist() == [len(record["text"]) for record in records]
    assert ds.column("bytes").tolist() == [len(record["text"].encode()) for record in records]
    assert ds.column("items").tolist() == [len(record["ids"]) for record in records]
    assert ds.column("size").tolist() == [ds.where(i).size for i in range(len(ds))]
    assert (ds.lengths.dtype, ds.lengths.flags.writeable) == (np.uint32, False)
    assert index("--verify", path).returncode == 0


TYPES = [
    ([1, 2**32 - 1], "u4"),
    ([2**64 - 1, 7, 2**32], "u8"),
    ([3, -1, 5], "i8"),
    ([7, 2**40, -1, 2**63 - 1], "i8"),
    ([2**63, -1], "f8"),
    ([0.5, -(2**40), 7, 2**33], "f8"),
    ([2**53, -(2**60), 2**63, 0.5, 2**64 - 2**11, -(2**63)], "f8"),
    ([], "u4"),
]


@pytest.mark.usefixtures("spilled")
@pytest.mark.parametrize(("column", "dtype"), TYPES)
def test_a_column_has_the_smallest_type_that_holds_it(write, column, dtype):
    """Also where each record is in a block of its own, so that types differ from block to block."""
    path = write([{"x": number} for number in column])
    expected = [float(number) if dtype == "f8" else number for number in column]
    for make in (
        lambda: mmapds.build(path, columns={"x": "x"}),
        lambda: mmapds.build(path, format=jsonl_in_blocks(16), columns={"x": "x"}, workers=2, force=True),
        lambda: mmapds.add_column(path, "x", column),
        lambda: mmapds.add_column(path, "x", lambda sample: sample["x"]),
    ):
        make()
        found = mmapds.open(path).column("x")
        assert (found.dtype, found.tolist()) == (dtype, expected)
    assert names(Path(path).parent) == ["train.jsonl", "train.jsonl.mmx"]


RECORDS = [b'{"n":1}', b'{"n":22}', b"", b"  ", b'{"m":1}', b"\t", b'  {"n": 333}  ', b'{"n":null}']


@given(st.lists(st.sampled_from(RECORDS)), st.integers(3, 40), st.booleans(), st.booleans())
def test_columns_and_records_stay_together_wherever_blocks_are_cut(tmp_path_factory, lines, block, end, bom):
    path = tmp_path_factory.mktemp("blocks") / "x.jsonl"
    path.write_bytes((b"\xef\xbb\xbf" if bom else b"") + b"\n".join(lines) + (b"\n" if end else b""))
    wanted = [sample for sample in map(orjson.loads, filter(bytes.strip, lines)) if sample.get("n") is not None]
    options = {"format": jsonl_in_blocks(block), "length": "n", "missing": "skip", "workers": 3}
    if not wanted and any(line.strip() for line in lines):
        with pytest.raises(mmapds.ColumnError, match=f"found 0 of {sum(bool(line.strip()) for line in lines)}"):
            mmapds.build(path, **options)
        return
    mmapds.build(path, **options)
    ds = mmapds.open(path)
    assert list(ds) == ds.__getitems__(range(len(ds))) == wanted
    assert ds.lengths.tolist() == [record["n"] for record in wanted]


def test_missing_fields(write, tmp_path, index):
    path = write(b'{"n":1}\n{"m":2}\n\n{"n":null}\n{"n":4}\n')
    with pytest.raises(mmapds.ColumnError) as missing:
        mmapds.build(path, length="n")
    assert str(missing.value) == (
        f"{path}:2 (byte 8): expected a number at `n`, found null or nothing; leave such records out with "
        "missing='skip' (record 1 of the index)"
    )
    assert names(tmp_path) == ["train.jsonl"]
    mmapds.build(path, length="n", missing=9)
    assert lengths(path) == [1, 9, 9, 4]
    mmapds.build(path, missing="skip")
    assert list(mmapds.open(path, decode="bytes")) == [b'{"n":1}', b'{"n":4}']
    assert "2 records left out" in index("--verify", path).stdout
    other = write(b'{"n":1}\n{}\n', "other.jsonl")
    assert index(other, "--column", "n=n", "--missing", "nan").returncode == 0
    assert np.isnan(mmapds.open(other).column("n")).tolist() == [False, True]
    assert index("--verify", other).returncode == 0


WRONG = {
    (b'{"n":"x"}', "n"): "a number at `n`, found a string",
    (b'{"n": true}', "n"): "a number at `n`, found true",
    (b'{"a":1,"n":5}', "chars(n)"): "a string at `n`, found a number",
    (b'{"n":{}}', "items(n)"): "an array at `n`, found an object",
    (b'{"n":7}', "n.m"): "a number inside objects at `n.m`, found a number",
    (b"[1]", "n"): "a number inside objects at `n`, found an array",
}


def test_a_wrong_type_is_always_an_error(write):
    for (line, expression), message in WRONG.items():
        path = write(b"{}\n" + line + b"\n")
        for missing, number in (("skip", 0), (0, 1)):  # the record before is left out, or has the number
            with pytest.raises(mmapds.ColumnError) as wrong:
                mmapds.build(path, columns={"x": expression}, missing=missing)
            assert str(wrong.value) == f"{path}:2 (byte 3): expected {message} (record {number} of the index)"


def test_lengths_are_counts(write):
    for number in (-1, 1.5, 1e-300):
        with pytest.raises(mmapds.ColumnError) as caught:
            mmapds.build(write([{"n": 3}, {"n": number}, {"n": 5.0}]), length="n", force=True)
        what = f"column 'length': expected integers of 0 or more, found {float(number)} (record 1 of the index)"
        assert str(caught.value) == what
    path, sizes = write([{"n": 5.0}, {"n": 7}]), []
    mmapds.build(path, force=True)
    for values, expected in (
        (lambda sample: sample["n"], [5, 7]),
        (lambda sample: np.int64(sample["n"]) > 5, [0, 1]),
        (np.array([True, False]), [1, 0]),
        ([3.0, 4.0], [3, 4]),
        ([1, 2], [1, 2]),
        ([1, 2**63], [1, 2**63]),
    ):
        mmapds.add_column(path, "length", values)
        found = mmapds.open(path).lengths
        assert (found.dtype.kind, found.tolist()) == ("u", expected)
        sizes.append(os.path.getsize(path + ".mmx"))
    assert len({*sizes[3:5]}) == 1, "what is replaced takes no room"


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


@pytest.mark.usefixtures("spilled")
@pytest.mark.parametrize(
    ("column", "at"), [([1, WIDE, 0.5], 1), ([-WIDE, 3, 1e300], 0), ([2**63 + 1, -1], 0), ([2**64 - 1, 7, -1, 0.5], 0)]
)
def test_integers_are_not_rounded_beside_floats(write, column, at):
    path = write([{"x": number} for number in column])
    what = "expected an integer that float64 holds exactly, as the column has floats or negative numbers, too,"
    begin = sum(map(len, Path(path).read_bytes().splitlines(keepends=True)[:at]))
    blocks = {"format": jsonl_in_blocks(8), "workers": 2}
    for options, message in (
        ({}, f"{path}:{at + 1} (byte {begin}): {what} found another at `x` (record {at} of the index)"),
        (blocks, f"column 'x': {what} found {column[at]} (record {at} of the index)"),
    ):
        with pytest.raises(mmapds.ColumnError, match=f"^{re.escape(message)}$"):
            mmapds.build(path, columns={"x": "x"}, **options)
    mmapds.build(path)
    for values in (column, lambda sample: sample["x"]):
        with pytest.raises(mmapds.ColumnError, match=f"{what} found {column[at]} at record {at}"):
            mmapds.add_column(path, "x", values)
    mmapds.add_column(path, "x", [float(number) for number in column])
    assert mmapds.open(path).column("x").tolist() == [float(number) for number in column]


# ---- functions and arrays --------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("spilled")
@pytest.mark.parametrize("workers", [1, 2])
def test_a_function_sees_every_sample(corpus, workers):
    """Workers that are forked have the numbers of a column before, and lose none when they end."""
    path, records = corpus
    done = []
    mmapds.build(path, length=words, columns={"half": half}, workers=workers)
    mmapds.add_column(path, "chars", chars, workers=workers, progress=done.append)
    ds = mmapds.open(path)
    assert ds.lengths.tolist() == [len(record["text"].split()) for record in records]
    assert ds.column("half").tolist() == [half(record) for record in records]
    assert arrays(ds.length_order)[0].tolist() == sorted(range(MANY), key=lambda i: -words(records[i]))
    assert list(ds) == records
    assert (sum(done), len(done)) == (MANY, 2)


def test_columns_from_arrays(corpus, index):
    path, records = corpus
    mmapds.build(path, length="id")
    before = mmapds.open(path)
    mmapds.add_column(path, "score", np.linspace(-1, 1, MANY))
    mmapds.add_column(path, "flag", np.arange(MANY, dtype=np.uint8) % 2)
    mmapds.add_column(path, "length", [1] * MANY)
    for make in (torch.tensor, np.array):
        for column in ([math.nan, 0.5, 1], [3, 4, 5]):
            mmapds.add_column(path, "x", [make(number) for number in column] + [0] * (MANY - 3))
            np.testing.assert_array_equal(mmapds.open(path).column("x")[:3], column)
        with pytest.raises(mmapds.ColumnError, match=f"float64 holds exactly, .* found {WIDE} at record 1"):
            mmapds.add_column(path, "x", [make(0.5), make(WIDE)])
    ds = mmapds.open(path)
    assert ds.columns == ["score", "flag", "length", "x"]
    assert ds.column("score").tolist() == np.linspace(-1, 1, MANY).tolist()
    assert arrays(ds.length_order)[0].tolist() == list(range(MANY))
    assert before.lengths.tolist() == [record["id"] for record in records]
    assert index("--verify", path).returncode == 0


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_of_a_function_says_where_the_record_is(corpus, workers):
    path, _ = corpus
    mmapds.build(path)
    before = Path(path + ".mmx").read_bytes()
    with pytest.raises(KeyError) as refused:
        mmapds.add_column(path, "x", refuse, workers=workers)
    shown = "".join(traceback.format_exception(refused.value))
    assert re.search(r"while computing a column for .*train.jsonl:4501 \(byte \d+\)\n", shown)
    with pytest.raises(mmapds.ColumnError, match=r"jsonl:1 \(byte 0\): expected a number, found StopIteration"):
        mmapds.add_column(path, "x", first_of_none, workers=workers)
    assert Path(path + ".mmx").read_bytes() == before
    assert names(Path(path).parent) == ["train.jsonl", "train.jsonl.mmx"]


def test_a_column_that_the_function_itself_adds_is_not_lost(write):
    path = write([1, 2])
    mmapds.build(path)

    def compute(sample):
        mmapds.add_column(path, "inner", [3, 4])
        return sample

    with pytest.raises(mmapds.StaleIndexError, match="it was replaced while columns were computed"):
        mmapds.add_column(path, "outer", compute, workers=1)
    assert list(mmapds.open(path).columns) == ["inner"]


def test_a_column_goes_to_the_index_that_was_opened(write, tmp_path):
    paths = [write([{"n": 1}, {"n": 2}], "d/a.jsonl"), write([{"n": 3}], "d/b.jsonl")]
    mmapds.build(tmp_path / "d")
    mmapds.build(paths[::-1], out=tmp_path / "d.mmx")
    with pytest.raises(mmapds.ColumnError, match="source_or_index: expected one index of sources, found 2"):
        mmapds.add_column(tmp_path / "d", "n", [1, 2, 3])
    (tmp_path / "link.jsonl").symlink_to(paths[0])
    (tmp_path / "link.mmx").symlink_to(tmp_path / "d.mmx")
    mmapds.add_column(tmp_path / "link.jsonl", "n", [1, 2])
    mmapds.add_column(tmp_path / "link.mmx", "n", [3, 1, 2])
    assert (tmp_path / "link.mmx").is_symlink()
    assert mmapds.open(paths[0]).column("n").tolist() == [1, 2]
    assert mmapds.open(tmp_path / "d.mmx").column("n").tolist() == [3, 1, 2]


def test_few_samples_are_in_memory(tmp_path, monkeypatch):
    """Of a compressed file, too, whose blocks are looked for once for many records."""
    asked, blocks = [], BlockReader.blocks
    monkeypatch.setattr(BlockReader, "blocks", lambda self, wanted: asked.append(wanted) or blocks(self, wanted))
    sizes = [10] * 2000 + [1 << 20] * 32
    for name, pack in (("a.jsonl", open), ("a.jsonl.gz", gzip.open)):
        with pack(tmp_path / name, "wb") as file:
            file.writelines(b'{"text":"%b"}\n' % (b"x" * size) for size in sizes)
        mmapds.build(tmp_path / name)
        Counted.begin()
        mmapds.add_column(tmp_path / name, "length", chars, decode=Counted, workers=1)
        assert Counted.most <= 3
        assert lengths(tmp_path / name) == sizes
    assert 0 < len(asked) < 200


# ---- all columns, or the old index -----------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [{"columns": {"size": "bytes()"}}, {"hash": True, "force": True}, {}])
def test_a_function_that_raises_leaves_the_old_index(path, tmp_path, how):
    mmapds.build(path, length=words)
    if not how:
        with open(path, "a") as file:
            file.write('{"text": "more"}\n')
    before = Path(f"{path}.mmx").read_bytes()
    with pytest.raises(KeyError) as raised:
        mmapds.build(path, length=fails, **how)
    assert ["computing a column for" in note for note in raised.value.__notes__] == [True], "the function ran once"
    assert Path(f"{path}.mmx").read_bytes() == before
    assert names(tmp_path) == ["train.jsonl", "train.jsonl.mmx"]
    mmapds.build(path, length=words, **how)
    assert lengths(path) == [words(sample) for sample in mmapds.open(path)]


def test_columns_come_all_or_none(write, path, tmp_path):
    """Of several sources, those before a failure are built."""
    other, out = write([{"nope": 1}], "wrong.jsonl"), tmp_path / "all.mmx"
    with pytest.raises(KeyError):
        mmapds.build(path, length=words, columns={"wrong": fails})
    assert names(tmp_path) == ["train.jsonl", "wrong.jsonl"]
    with pytest.raises(KeyError):
        mmapds.build([path, other], length=words)
    assert names(tmp_path) == ["train.jsonl", "train.jsonl.mmx", "wrong.jsonl"]
    with ThreadPoolExecutor(2) as pool:
        mmapds.build(path, out=out, length=words, executor=pool)
        before = out.read_bytes()
        for wrong in ({"length": fails}, {"length": chars, "columns": {"wrong": fails}}):
            with pytest.raises(KeyError):
                mmapds.build(path, out=out, executor=pool, force=True, **wrong)
            assert out.read_bytes() == before
        mmapds.build(path, out=out, length=words, executor=pool, force=True)
    assert out.read_bytes() == before
    assert names(tmp_path) == ["all.mmx", "train.jsonl", "train.jsonl.mmx", "wrong.jsonl"]


@pytest.mark.parametrize("wanted", [{}, {"columns": {"size": "chars(text)"}}, {"length": "bytes(text)"}])
def test_a_computed_column_is_not_lost_in_silence(write, wanted):
    path, half = write([{"text": "a"}, {"text": "b c"}]), words
    mmapds.build(path, length=words, columns={"half": half})
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
    check(str(lost.value))
    assert Path(path + ".mmx").read_bytes() == before
    columns = {**wanted.get("columns", {}), "half": half}
    mmapds.build(path, **{"length": words, **wanted, "columns": columns}, force=True)
    assert mmapds.open(path).column("half").tolist() == [words(sample) for sample in mmapds.open(path)]


# ---- what a function is known by -------------------------------------------------------------------------------------


class Counter:
    def __call__(self, sample):
        return len(sample["text"])


@pytest.mark.parametrize(
    ("function", "version", "expected"),
    [
        (words, None, "tests.test_columns.words:"),
        (words, 2, "tests.test_columns.words:2"),
        (lambda sample: len(sample), None, None),
        (lambda sample: len(sample), "a", "tests.test_columns.<lambda>:a"),
        (partial(words), None, None),
        (partial(words), 1, "tests.test_columns.words:1"),
        (Counter(), None, None),
        (Counter(), 1, "tests.test_columns.Counter:1"),
        (Counter().__call__, None, None),
        (len, None, "builtins.len:"),
    ],
)
def test_a_function_is_known_by_its_name_and_a_version(path, function, version, expected):
    mmapds.build(path, columns={"n": function}, version=version, workers=1)
    assert Index(f"{path}.mmx").functions.get("n") == expected


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


def test_indexes_of_one_function_are_merged_and_those_of_two_are_not(write, tmp_path):
    paths, out = [write([{"text": "a b"}] * 3, f"{name}.jsonl") for name in "ab"], tmp_path / "all.mmx"
    mmapds.build(paths, length=words)
    merged = mmapds.merge(paths, out=out).read_bytes()
    mmapds.build(paths, out=out, length=words, force=True)
    assert out.read_bytes() == merged
    mmapds.build(paths[1], length=chars)
    with pytest.raises(mmapds.ColumnError, match="functions: expected") as refused:
        mmapds.merge(paths, out=out)
    check(str(refused.value))
    mmapds.build(paths, length=chars)
    mmapds.merge(paths, out=out)
    assert lengths(out) == [3] * 6
