"""Refusals: what a message begins with, and that it has one of the known forms. What it advises is in its words."""

import os
import re
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import mmapds
from mmapds import (
    DistributedSampler,
    Fields,
    Permutation,
    TokenBudgetBatchSampler,
    Writer,
    add_column,
    build,
    concat,
    orders,
    pack_collate,
    pad_collate,
    seekable,
)
from mmapds.__main__ import main
from mmapds.bench import bench
from mmapds.convert import convert
from mmapds.report import report
from tests.support.files import patched
from tests.support.messages import check, forms
from tests.support.tars import archive


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def message(refused):
    with pytest.raises((mmapds.Error, ValueError, IndexError, TypeError)) as error:
        refused()
    return str(error.value)


# ---- files and calls that users get wrong, in the working directory --------------------------------------------------


def file(name, content):
    Path(name).write_bytes(content)
    return name


def jsonl(content=b'{"n": 1, "s": "one"}\n{"n": 2, "s": "two"}\n{"n": 3, "s": "three"}\n', **options):
    build(file("train.jsonl", content), **options)
    return "train.jsonl"


def dataset(**options):
    return mmapds.open(jsonl(), **options)


def table(name="t.parquet", **columns):
    pq.write_table(pa.table(columns), name)
    return name


def saved(array, name="a.npy"):
    np.save(name, array)
    return name


def tar():
    return file("a.tar", archive([("0.txt", b"x"), ("1.txt", b"x")]))


def another_version():
    patched(f"{jsonl()}.mmx", 8, b"\7")
    return "train.jsonl"


def tokens(lengths=(3, 4, 5, 6), max_tokens=10, **options):
    return list(TokenBudgetBatchSampler(list(lengths), max_tokens, **{"num_replicas": 1, "rank": 0, **options}))


alone = partial(DistributedSampler, range(10), 1, 0)
fixed = partial(build, format="fixed")
REFUSALS = {
    # Sources of each format
    "record_bytes = 3": lambda: fixed(file("r.bin", bytes(8)), record_bytes=3, dtype="uint16"),
    "r.bin: record 2 (byte 8): expected": lambda: fixed(file("r.bin", bytes(10)), record_bytes=4),
    "dtype = 'uint17', expected": lambda: fixed(file("r.bin", bytes(8)), dtype="uint17"),
    "b.npy: dtype: expected float64": lambda: build([saved(np.ones(3)), saved(np.ones(3, int), "b.npy")], out="b.mmx"),
    "a.jsonl:1 (byte 0): expected a number inside objects at": lambda: build(file("a.jsonl", b"7\n"), length="n"),
    "a.jsonl: expected JSON": lambda: build(file("a.jsonl", b"bad\nworse\n"), bad="skip", format="jsonl"),
    "a.jsonl: expected one record": lambda: build(file("a.jsonl", b'{"n": 1}\n'), length="m", missing="skip"),
    "a.jsonl:2 (byte 9): not JSON: unexpected end": lambda: build(file("a.jsonl", b'{"n": 1}\n{"n": \n'), length="n"),
    "a.jsonl:2 (byte 9): expected a number at": lambda: build(file("a.jsonl", b'{"n": 1}\n{}\n'), length="n"),
    "a.npy: not an .npy file: EOF: reading magic string, expected": lambda: build(file("a.npy", b"hello")),
    "r.pb: record 1 (byte 6): expected": lambda: build(file("r.pb", b"\2\0\0\0hi\0\0"), format="prefixed"),
    "/proc/self/stat: expected a file with a size": lambda: build("/proc/self/stat", out="a.mmx", format="jsonl"),
    "format = 'csv', expected": lambda: build(jsonl(), format="csv"),
    "missing = 'drop', expected": lambda: build(jsonl(), length="n", missing="drop"),
    "workers = '4', expected": lambda: build(jsonl(), workers="4", force=True),
    "version = True, expected": lambda: build(jsonl(), length=len, version=True),
    "frame = '256K', expected": lambda: seekable(jsonl(), frame="256K"),
    "b'\\xff.jsonl': expected a name in UTF-8": lambda: build(file(os.fsdecode(b"\xff.jsonl"), b"{}\n")),
    # Indexes, and where they lie
    "sources: expected one source or more": lambda: mmapds.open([]),
    "a.mmx: NOT AN INDEX: expected": lambda: mmapds.open(file("a.mmx", b"hello" * 20)),
    "train.jsonl.mmx: VERSION: expected format": lambda: mmapds.open(another_version()),
    "train.jsonl.mmx: expected column": lambda: dataset().lengths,
    # Columns
    "name = '', expected": lambda: add_column(jsonl(), "", [1, 2, 3]),
    "values: expected shape": lambda: add_column(jsonl(), "x", [1, 2]),
    "values = 'n', expected": lambda: add_column(jsonl(), "x", "n"),
    "train.jsonl:1 (byte 0): expected a number from the callable": lambda: add_column(jsonl(), "x", repr),
    "column 'x': expected numbers, one for each record, found list (": lambda: add_column(jsonl(), "x", [[1], [1, 2]]),
    "column 'x': expected numbers": lambda: add_column(jsonl(), "x", np.ma.array([1, 2, 3], mask=[0, 1, 0])),
    "column 'length': expected a path of": lambda: build(file("a.jsonl", b"{}\n"), length=".".join("a" * 99)),
    "column 'length': expected a path": lambda: build(jsonl(), length="words(s)"),
    "length = 5, expected": lambda: build(jsonl(), length=5),
    "columns['n'] = [1], expected": lambda: build(jsonl(), columns={"n": [1]}),
    "columns = ['n'], expected": lambda: build(jsonl(), columns=["n"]),
    "columns = {5: 'n'}, expected": lambda: build(jsonl(), columns={5: "n"}),
    # Array files and conversions
    "schema = [1], expected": lambda: Writer("out.mma", [1]),
    "out.mma: length = 'b', expected": lambda: Writer("out.mma", {"a": "str"}, length="b"),
    "schema['a'] = 'text', expected": lambda: Writer("out.mma", {"a": "text"}),
    "sources: expected one format in one conversion": lambda: convert([table(x=[1]), jsonl()], "b.mma"),
    "a.mma: expected a file to write that is not a source": lambda: convert(convert(jsonl(), "a.mma").path, "a.mma"),
    "t.parquet: row 1: field 'x': expected int64": lambda: convert(table(x=[1, None]), "b.mma"),
    "infer = 0, expected": lambda: convert(jsonl(), "b.mma", infer=0),
    "max_bytes = '5', expected": lambda: convert(jsonl(), "b.mma", max_bytes="5"),
    "fields = 'x', expected": lambda: convert(table(x=[1]), "b.mma", fields="x"),
    # Datasets and samples
    "function = 'upper', expected": lambda: dataset().map("upper"),
    f"fractions = [{'0.5, ' * 15}0..., expected": lambda: dataset().split([0.5] * 99),
    "seed = 1.5, expected": lambda: dataset().split([0.5, 0.5], seed=1.5),
    "access = 'fast', expected": lambda: dataset(access="fast"),
    "block_cache = '1GB', expected": lambda: dataset(block_cache="1GB"),
    "check = None, expected": lambda: dataset(check=None),
    "on_error = 'ignore', expected": lambda: dataset(on_error="ignore"),
    "decode = 'xml', expected": lambda: dataset(decode="xml"),
    "decode = {'n': 'int32'}, expected": lambda: dataset(decode={"n": "int32"}),
    "decode = <function <lambda>": lambda: bench(jsonl(), decode=lambda record: record),
    "train.jsonl:2 (byte 21): expected int32 at": lambda: dataset(decode=Fields({"s": "int32"}))[1],
    "train.jsonl:2 (byte 2): not UTF-8 text": lambda: mmapds.open(jsonl(b"1\n\xff\n"), decode="text")[1],
    "schema = ['x'], expected": lambda: Fields(["x"]),
    "schema['x'] = ('int32', 'rows'), expected": lambda: Fields({"x": ("int32", "rows")}),
    "defaults['x'] = 'one', expected": lambda: Fields({"x": "int32"}, defaults={"x": "one"}),
    "key = 'x', expected": lambda: mmapds.open(build(tar())).find("x"),
    "key = 3, expected": lambda: mmapds.open(build(tar())).find(3),
    "train.jsonl: expected a compressed source, which has blocks, found": lambda: dataset().block_starts,
    # Several datasets
    "datasets: expected a list of datasets, found one dataset": lambda: concat(dataset()),
    "datasets: expected one dataset or more, found 0": lambda: concat([]),
    "datasets[0]: expected a dataset of mmapds.open, found list": lambda: concat([[1]]),
    "datasets[1]: expected IndexedDataset, as in datasets[0], found list": lambda: concat([dataset(), [1]]),
    "datasets[1]: expected MappedDataset, as in datasets[0], found": lambda: dataset().map(len) + dataset(),
    "datasets[1]: expected function <lambda>": lambda: dataset().map(lambda _: 1) + dataset().map(lambda _: 2),
    "datasets[1]: expected function len, as in datasets[0], found len (batched)": lambda: (
        dataset().map(len) + dataset().map(len, batched=True)
    ),
    "datasets: expected one or more by name, as in zip(a=..., b=...), found 0": mmapds.zip,
    "datasets['b']: expected a dataset of mmapds.open": lambda: mmapds.zip(a=dataset(), b=[1, 2, 3]),
    "datasets['b']: expected 3 records, as in datasets['a'], found 2": lambda: mmapds.zip(a=dataset(), b=dataset()[1:]),
    "datasets['b']: expected 2 records, as in datasets['a'], found 3": lambda: mmapds.zip(a=dataset()[1:], b=dataset()),
    "datasets[1]: expected names ['a'], as in datasets[0], found ['b']": lambda: (
        mmapds.zip(a=dataset()) + mmapds.zip(b=dataset())
    ),
    "save: expected a dataset of mmapds.open, found a MappedDataset": lambda: dataset().map(len).save("v.mmx"),
    "v.view: cannot write the view here: expected a file name that ends in .mmx": lambda: dataset().save("v.view"),
    "none/v.mmx: cannot write the view here": lambda: dataset().save("none/v.mmx"),
    # Batches
    "samples[1]: expected": lambda: pad_collate([([1], 2), ([1], 2, 3)]),
    "max_length = 0, expected": lambda: pad_collate([[1]], max_length=0),
    "pad_to = 1, expected": lambda: pack_collate([[1, 2]], pad_to=1),
    "layout = 'thd', expected": lambda: pack_collate([[1]], layout="thd"),
    "samples[0]['b']: expected": lambda: pack_collate([{"a": [1], "b": [1, 2]}]),
    # Orders and samplers
    "step = 11, expected": lambda: alone().state_dict(step=11),
    "exclude[0] = True, expected a number": lambda: alone(exclude=[True, False]),
    "exclude = a mask, expected record numbers": lambda: alone(exclude=np.array([False, True])),
    "position 5 is out of range for a permutation of 5": lambda: Permutation(5)[5],
    "positions: expected an array of integers": lambda: Permutation(5)[np.array([0.5])],
    "weights = [0, 0], expected": lambda: orders.Mixture([5, 5], [0, 0]),
    "lengths[0] = 0, expected": lambda: tokens([0, 3]),
    "max_tokens = 10, expected": lambda: tokens([3, 50]),
    "cost = 'mean', expected": lambda: tokens(cost="mean"),
    "num_replicas = 9, expected": lambda: tokens(num_replicas=9, rank=0),
    # Reports
    "max_tokens = 0, expected an integer of 1 or more": lambda: report(jsonl(), max_tokens=0),
    "dataset: expected 5000 records or more, one for each rank": lambda: report(jsonl(), ranks=5000),
    "compare = 'pick=8', expected NAME=NUMBER with one of": lambda: report(jsonl(), compare="pick=8"),
}


@pytest.mark.parametrize("start", REFUSALS)
def test_a_refusal_says_where_and_what_was_expected(start):
    found = message(REFUSALS[start])
    assert found.startswith(start)
    check(found)


def test_every_form_has_an_example():
    assert len(forms()) > 10
    for form, found, example in forms():
        assert found.fullmatch(example), form
        check(example)


# ---- options in the words of the user: arguments in Python, flags to whoever runs a command ------------------------

WORDS = {
    "bad.jsonl": (b'{"n": 1}\nbad\n', {"validate": True}, {"bad": "skip"}, "bad='skip'", "--bad skip"),
    "lacks.jsonl": (b'{"n": 1}\n{}\n', {"length": "n"}, {"missing": "skip"}, "missing='skip' ", "--missing skip "),
    "cut.bin": (b"\1\0\0\0a\5", {"format": "prefixed"}, {"truncated": "drop"}, "truncated='drop'", "--truncated drop"),
    "unknown.bin": (bytes(8), {}, {"format": "jsonl"}, "format=...", "--format F"),
    "a.parquet": ([1, None], {}, {"missing": "skip"}, "defaults= or missing='skip'", "--defaults or --missing skip"),
    "b.parquet": (range(9), {"max_bytes": 1}, {"max_bytes": 9999}, "max_bytes=", "--max-bytes "),
}


@pytest.mark.filterwarnings("ignore:.* left out of")
@pytest.mark.parametrize("name", WORDS)
def test_what_a_message_advises_is_in_the_words_of_the_user_and_works(name, capsys):
    content, options, mends, in_python, in_command = WORDS[name]
    verb, call = ("index", build) if isinstance(content, bytes) else ("convert", convert)
    file(name, content) if verb == "index" else table(name, x=content)

    def run(options):
        flags = [(f"--{key.replace('_', '-')}", [str(value)] * (value is not True)) for key, value in options.items()]
        return main([verb, name, *(word for flag, values in flags for word in (flag, *values))])

    assert run(options) == 1
    printed = capsys.readouterr().err.strip()
    said = message(partial(call, name, **options))
    check(said)
    check(printed)
    assert in_python in said
    assert in_command in printed
    assert printed.replace(in_command, in_python) == said
    assert not re.search(r"(?<![\w-])--?[a-z]", said.partition("run: ")[0]), said
    call(name, **options | mends)
    assert run(options | mends | {"force": True}) == 0


@pytest.mark.parametrize(
    ("line", "start"),
    [
        ("seekable train.jsonl --long 99", "--long = 99, expected 10 to 31"),
        ("index train.jsonl --workers 0", "--workers = 0, expected 1 or more"),
        ("index train.jsonl --column n", "--column n: expected NAME=EXPR, such as n=n, and every name once"),
        ("index train.jsonl --column a=b --column a=c", "--column "),
        ("index train.jsonl --missing few", "--missing = 'few', expected 'error', 'skip' or a number of up to 64 bits"),
        ("convert train.jsonl --format foo", "--format = 'foo', expected one of 'arrays', 'datatrove', "),
        ("convert train.jsonl --schema absent.json", "--schema: expected a JSON object, or a file that holds one"),
        ("report train.jsonl --pack 5 --max-tokens 7", "--pack = 5, expected None beside max_tokens"),
    ],
)
def test_a_command_names_its_option(line, start, capsys):
    jsonl()
    assert main(line.split()) == 2
    found = capsys.readouterr().err
    assert found.startswith(start)
    check(found.strip())
