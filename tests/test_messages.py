"""Refusals: what a message begins with, and that it has a form of CONTRIBUTING.md. What it advises is in its words."""

import os
import re
import struct
from functools import partial

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import mmapds
from mmapds import Fields, add_column, build, orders
from mmapds.__main__ import main
from mmapds.bench import bench
from mmapds.convert import convert
from mmapds.errors import as_command, either, option, shortened
from mmapds.report import report
from tests.support.messages import check, forms
from tests.support.mistakes import (
    archive,
    cut,
    dataset,
    file,
    grown,
    index_of,
    jsonl,
    message,
    overwrite,
    with_a_shard_missing,
    written_again,
)


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


distributed = partial(mmapds.DistributedSampler, range(10))


def indexed(name):
    build(file(name, b"1\n"))
    return name


def arrays(name="a.mma", schema=None, **options):
    schema = schema or {"x": ("float32", (None, 2)), "id": "int64"}
    with mmapds.Writer(name, schema, **options) as writer:
        for number in range(20):
            writer.write({"x": np.zeros((number, 2), np.float32), "id": number})
    return name


def megatron(code=8, begin=4, version=1, magic=b"MMIDIDX\0\0"):
    file("corpus.bin", bytes(8))
    body = struct.pack("<QBQQ", version, code, 2, 2) + struct.pack("<2i2q2q", 2, 2, 0, begin, 0, 2)
    file("corpus.idx", magic + body)
    return "corpus.bin"


def writer(schema=None, **options):
    return mmapds.Writer("out.mma", schema or {"id": "int64", "name": "str"}, **options)


def written(record, schema=None):
    with writer(schema) as out:
        out.write(record)


def closed():
    out = writer()
    out.close()
    out.write({"id": 1, "name": "a"})


def collate(*samples, **options):
    return mmapds.pad_collate(list(samples), **options)


def table(name="t.parquet", **columns):
    pq.write_table(pa.table(columns), name)
    return name


def groups():
    with h5py.File("g.h5", "w") as out:
        out["a"], out["b"] = np.ones(3), np.ones(4)
    return "g.h5"


def state(**changes):
    sampler = mmapds.DistributedSampler(range(10), 1, 0)
    found = sampler.state_dict() | changes
    mmapds.DistributedSampler(range(10), 1, 0).load_state_dict(found)


def tokens(lengths=(3, 4, 5, 6), max_tokens=10, **options):
    sampler = mmapds.TokenBudgetBatchSampler(list(lengths), max_tokens, **({"num_replicas": 1, "rank": 0} | options))
    return list(sampler)


def pack(*samples, **options):
    return mmapds.pack_collate(list(samples), **options)


def packs(lengths=(3, 4, 5, 6), pack_length=10, **options):
    return list(mmapds.PackingBatchSampler(lengths, pack_length, **({"num_replicas": 1, "rank": 0} | options)))


def saved(array, name="a.npy"):
    np.save(name, array)
    return name


def build_as(name, chosen):
    return build(name, format=chosen)


def grown_again():
    with open("train.jsonl", "ab") as out:
        out.write(b'{"n": 4}\n')
    return "train.jsonl"


tensor = torch.ones(3, requires_grad=True)
REFUSALS = {
    # Sources of each format
    "record_bytes = 3": lambda: build(file("r.bin", bytes(8)), format="fixed", record_bytes=3, dtype="uint16"),
    "sources: expected one format in one index": lambda: build([jsonl(), archive()], out="b.mmx"),
    "b.npy: dtype: expected float64": lambda: build([saved(np.ones(3)), saved(np.ones(3, int), "b.npy")], out="b.mmx"),
    "a.tar: record 0 (byte 1024): expected a whole sample": lambda: build(cut(archive(), 1300)),
    "a.bin: format not recognised by its name or its first bytes": lambda: build(file("a.bin", bytes(9))),
    "a.json: not JSON Lines: expected": lambda: build(file("a.json", b'[\n{"n": 1},\n{"n": 2}\n]\n')),
    "workers = 0, expected": lambda: build(file("a.jsonl", b"1\n"), workers=0),
    "a.jsonl:1 (byte 0): expected a number inside objects at": lambda: build(file("a.jsonl", b"7\n"), length="n"),
    "a.jsonl: expected JSON": lambda: build(file("a.jsonl", b"bad\nworse\n"), bad="skip", format="jsonl"),
    "a.jsonl: expected one record": lambda: build(file("a.jsonl", b'{"n": 1}\n'), length="m", missing="skip"),
    "a.jsonl:2 (byte 9): not JSON: unexpected end": lambda: build(file("a.jsonl", b'{"n": 1}\n{"n": \n'), length="n"),
    "a.jsonl:2 (byte 9): expected a number at": lambda: build(file("a.jsonl", b'{"n": 1}\n{}\n'), length="n"),
    "a.npy: not an .npy file: EOF: reading magic string, expected": lambda: build(file("a.npy", b"hello")),
    "r.bin: record 2 (byte 8): expected": lambda: build(file("r.bin", bytes(10)), format="fixed", record_bytes=4),
    "dtype = 'uint17', expected": lambda: build(file("r.bin", bytes(8)), format="fixed", dtype="uint17"),
    "record_bytes = 0, expected": lambda: build(file("r.bin", bytes(8)), format="fixed", record_bytes=0),
    "r.pb: record 1 (byte 6): expected": lambda: build(file("r.pb", b"\2\0\0\0hi\0\0"), format="prefixed"),
    "bad = 'drop', expected": lambda: build(jsonl(), bad="drop"),
    "format = 'csv', expected": lambda: build(jsonl(), format="csv"),
    "missing = 'drop', expected": lambda: build(jsonl(), length="n", missing="drop"),
    "prefix = 'varint', expected": lambda: build(jsonl(), prefix="varint"),
    "corpus.idx: expected version": lambda: build(megatron(code=99)),
    "corpus.bin: expected": lambda: build(overwrite(megatron(), 8, b"more")),
    "t.parquet: parquet is not read in place: convert it, and open t.mma": lambda: mmapds.open(table(x=[1])),
    "workers = '4', expected": lambda: build(jsonl(), workers="4", force=True),
    "length = 5, expected": lambda: build(jsonl(), length=5),
    "columns['n'] = [1], expected": lambda: build(jsonl(), columns={"n": [1]}),
    "columns = ['n'], expected": lambda: build(jsonl(), columns=["n"]),
    "columns = {5: 'n'}, expected": lambda: build(jsonl(), columns={5: "n"}),
    "version = True, expected": lambda: build(jsonl(), length=len, version=True),
    "frame = '256K', expected": lambda: mmapds.seekable(jsonl(), frame="256K"),
    "window_log = 27.0, expected": lambda: mmapds.seekable(jsonl(), window_log=27.0),
    "workers = 1.5, expected": lambda: mmapds.seekable(jsonl(), workers=1.5),
    # Indexes, and where they lie
    "corpus.idx: no such file or directory": lambda: (
        os.unlink(megatron()[:-3] + "idx"),
        build_as("corpus.bin", "megatron"),
    )[1],
    "train.jsonl.mmx: expected a source": lambda: build(f"{jsonl()}.mmx", out="b.mmx"),
    "a.txt: compressed (bzip2): expected": lambda: build(file("a.txt", b"BZh91AY&")),
    "absent.jsonl: no such file": lambda: mmapds.open("absent.jsonl"),
    "sources: expected one source or more": lambda: mmapds.open([]),
    "train.jsonl.mmx: DAMAGED: expected": lambda: mmapds.open(cut(f"{jsonl()}.mmx", -5)),
    "a.mmx: NOT AN INDEX: expected": lambda: mmapds.open(file("a.mmx", b"hello" * 20)),
    "train.jsonl.mmx: STALE: train.jsonl was 65 bytes when indexed and is 74": lambda: mmapds.open(grown()),
    "train.jsonl.mmx: DAMAGED: header and metadata": lambda: mmapds.open(index_of(jsonl(), -2, b"!")),
    "train.jsonl.mmx: VERSION: expected format": lambda: mmapds.open(index_of(jsonl(), 8, b"\x07")),
    "train.jsonl.mmx: expected column": lambda: mmapds.open(jsonl()).lengths,
    "0.jsonl: no such file or directory (a source of all.mmx)": lambda: mmapds.open(with_a_shard_missing())[0],
    "train.jsonl.mmx: STALE: train.jsonl has other content (same size": lambda: mmapds.open(written_again()),
    # Columns
    "train.jsonl.mmx: column 'x' was computed": lambda: (
        add_column(jsonl(), "x", [1, 2, 3]),
        build(grown_again()),
    )[1],
    "train.jsonl:2 (byte 2): not JSON: unexpected character": lambda: (
        add_column(jsonl(b"1\nbad\n"), "x", [1, 2]),
        mmapds.open("train.jsonl")[1],
    )[1],
    "source_or_index: expected one index of sources": lambda: add_column([jsonl(), indexed("b.jsonl")], "x", [1]),
    "name = '', expected": lambda: add_column(jsonl(), "", [1, 2, 3]),
    "column 'length': expected integers of": lambda: add_column(jsonl(), "length", [1, -1, 2]),
    "values: expected shape": lambda: add_column(jsonl(), "x", [1, 2]),
    "train.jsonl:1 (byte 0): expected a number from the callable": lambda: add_column(jsonl(), "x", repr),
    "column 'y': expected one of bytes()": lambda: build(arrays(index=False), columns={"y": "y"}),
    "column 'length': expected a path of": lambda: build(file("a.jsonl", b"{}\n"), length=".".join("a" * 99)),
    "column 'length': expected a path": lambda: build(jsonl(), length="words(s)"),
    "values = 'n', expected": lambda: add_column(jsonl(), "x", "n"),
    "column 'x': expected numbers, one for each record, found list (": lambda: add_column(jsonl(), "x", [[1], [1, 2]]),
    "column 'x': expected numbers, one for each record, found T": lambda: add_column(jsonl(), "x", tensor),
    "column 'x': expected numbers": lambda: add_column(jsonl(), "x", np.ma.array([1, 2, 3], mask=[0, 1, 0])),
    # Array files and conversions
    "out.mma: the writer is closed": closed,
    "out: expected the name of one array file for": lambda: convert([jsonl(), arrays()]),
    "sources: expected one format in one conversion": lambda: convert([table(x=[1]), jsonl()], "b.mma"),
    "a.mma: expected a file to write that is not a source": lambda: convert(arrays(), "a.mma"),
    "a.h5: not a readable HDF5 file: Unable": lambda: convert(file("a.h5", b"\x89HDF\r\n\x1a\n"), "b.mma"),
    "g.h5: dataset 'b': expected": lambda: convert(groups(), "b.mma"),
    "infer = 0, expected": lambda: convert(jsonl(), "b.mma", infer=0),
    "t.parquet: row 1: field 'x': expected int64": lambda: convert(table(x=[1, None]), "b.mma"),
    "fields = 'x', expected": lambda: convert(table(x=[1]), "b.mma", fields="x"),
    "out.bin: cannot write the array file here: expected a file n": lambda: mmapds.Writer("out.bin", {"a": "str"}),
    "schema = [1], expected": lambda: mmapds.Writer("out.mma", [1]),
    "a.mma: NOT AN ARRAY FILE: expected": lambda: build(file("a.mma", b"hello" * 20)),
    "out.mma: length = 'b', expected": lambda: writer({"a": "str"}, length="b"),
    "schema['a'] = 'text', expected": lambda: writer({"a": "text"}),
    "schema['a'] = 3, expected": lambda: writer({"a": 3}),
    "schema: 'a(b)' is not a valid field name: expected printable": lambda: writer({"a(b)": "str"}),
    "out.mma: record 0: field 'id': expected int64": lambda: written({"id": 2**70, "name": "a"}),
    "max_bytes = '5', expected": lambda: convert(jsonl(), "b.mma", max_bytes="5"),
    "out.mma: length = 'ok', expected": lambda: writer({"ok": "bool"}, length="ok"),
    # Datasets, samples and batches
    "samples[1]: expected": lambda: collate(([1], 2), ([1], 2, 3)),
    "max_length = 0, expected": lambda: collate([1], max_length=0),
    "truncate = 'middle', expected": lambda: collate([1], truncate="middle"),
    "samples[1]: expected a field": lambda: collate({"a": 1}, {"b": 1}),
    "samples[0]: expected another name than a_lengths": lambda: collate({"a": [1], "a_lengths": 1}),
    "function = 'upper', expected": lambda: dataset().map("upper"),
    "fractions = [0.5, 0.6], expected": lambda: dataset().split([0.5, 0.6]),
    "index 2 is out of range for 2 records": lambda: dataset()[1:][2],
    "index 3 is out of range for 3 records": lambda: dataset()[3],
    "index[1] = 7 is out of range for 3 records": lambda: dataset()[[0, 7]],
    "mask: expected": lambda: dataset()[np.array([True, False])],
    "positions: expected integers of one axis": lambda: dataset()[np.zeros((2, 2), int)],
    "access = 'fast', expected": lambda: dataset(access="fast"),
    "decode = 'xml', expected": lambda: dataset(decode="xml"),
    "train.jsonl:2 (byte 21): expected int32 at": lambda: dataset(decode=Fields({"s": "int32"}))[1],
    "on_error = 'ignore', expected": lambda: dataset(on_error="ignore"),
    "schema = ['x'], expected": lambda: Fields(["x"]),
    "defaults['x'] = 'one', expected": lambda: Fields({"x": "int32"}, defaults={"x": "one"}),
    "schema['x'] = ('int32', 'rows'), expected": lambda: Fields({"x": ("int32", "rows")}),
    "schema: 'x..y' is not a valid path: expected": lambda: Fields({"x..y": "int32"}),
    "datasets: expected one dataset or more": lambda: mmapds.concat([]),
    "a.jsonl: not indexed yet": lambda: mmapds.open(file("a.jsonl", b"1\n")),
    "train.jsonl.mmx: DAMAGED: record 0 of": lambda: mmapds.open(index_of(jsonl(), 72, b"\x03" + bytes(7)))[0],
    "train.jsonl:2 (byte 2): not UTF-8 text": lambda: mmapds.open(jsonl(b"1\n\xff\n"), decode="text")[1],
    "train.jsonl:2 (byte 9): not JSON: unexpected end": lambda: mmapds.open(jsonl(b'{"n": 1}\n{"n": \n'))[1],
    "key = 'x', expected": lambda: mmapds.open(build(archive())).find("x"),
    "key = 3, expected": lambda: mmapds.open(build(archive())).find(3),
    "samples: expected a list of samples": lambda: mmapds.pad_collate({"a": 1}),
    "datasets: expected one or more by name": lambda: mmapds.zip(),
    "datasets['b']: expected a dataset of mmapds.open": lambda: mmapds.zip(a=dataset(), b=[1, 2, 3]),
    "datasets['b']: expected": lambda: mmapds.zip(a=dataset(), b=dataset()[1:]),
    "pad_to = 1, expected": lambda: pack([1, 2], pad_to=1),
    "layout = 'thd', expected": lambda: pack([1], layout="thd"),
    "samples[0]['b']: expected": lambda: pack({"a": [1], "b": [1, 2]}),
    "decode = {'n': 'int32'}, expected": lambda: dataset(decode={"n": "int32"}),
    "block_cache = '1GB', expected": lambda: dataset(block_cache="1GB"),
    "datasets: expected a list of datasets": lambda: mmapds.concat(dataset()),
    "seed = 1.5, expected": lambda: dataset().split([0.5, 0.5], seed=1.5),
    "decode = <function <lambda>": lambda: bench(jsonl(), decode=lambda record: record),
    # Orders and samplers
    "sampler: expected a sampler of mmapds": lambda: dataset().stream(range(3)),
    "state: expected the dict that state_dict() returned": lambda: distributed(1, 0).load_state_dict([1]),
    "step = 11, expected": lambda: distributed(1, 0).state_dict(step=11),
    "exclude = {'records': [1]}, expected": lambda: distributed(1, 0, exclude={"records": [1]}),
    "order: expected an order with at()": lambda: distributed(1, 0, order=[1, 2]),
    "start_step = 11, expected": lambda: distributed(1, 0, start_step=11),
    "rank = 2, expected": lambda: distributed(2, 2),
    "dataset: expected one sample or more": lambda: mmapds.DistributedSampler([]),
    "n = 0, expected": lambda: mmapds.Permutation(0),
    "position 5 is out of range for a permutation of 5": lambda: mmapds.Permutation(5)[5],
    "positions: expected an array of integers": lambda: mmapds.Permutation(5)[np.array([0.5])],
    "dataset_or_lengths = 'abc', expected": lambda: mmapds.TokenBudgetBatchSampler("abc", 10),
    "chunk_size = 0, expected": lambda: orders.Chunked(10, 0),
    "weights = [0, 0], expected": lambda: orders.Mixture([5, 5], [0, 0]),
    "lengths[0] = 0, expected": lambda: tokens([0, 3]),
    "max_tokens = 10, expected": lambda: tokens([3, 50]),
    "cost = 'mean', expected": lambda: tokens(cost="mean"),
    "absent/cache: cannot write the order cache": lambda: tokens(np.arange(1, 9), order_cache="absent/cache"),
    "num_replicas = 9, expected": lambda: tokens(num_replicas=9, rank=0),
    "order: expected": lambda: tokens(planner="window", order=orders.Shuffled(7)),
    "target_lengths: expected": lambda: tokens(target_lengths=[1]),
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


def test_what_is_not_a_path_is_pythons_own_error():
    merge, converted = partial(mmapds.merge, out="x.mmx"), partial(convert, out="x.mma")
    for take in (mmapds.open, build, merge, converted, report, bench):
        for given in (5, None, b"a.jsonl", [{"n": 1}], [5]):
            with pytest.raises(TypeError):
                take(given)


def test_an_argument_that_is_misspelt_is_pythons_own_error():
    for function in (build, convert):
        with pytest.raises(TypeError, match=rf"^{function.__name__}\(\) got an unexpected keyword argument 'lenght'$"):
            function(jsonl(), lenght="n")


# ---- options in the words of the user: arguments in Python, flags to whoever runs a command ------------------------

WORDS = {
    "bad.jsonl": ({"validate": True}, {"bad": "skip"}, "bad='skip'", "--bad skip"),
    "lacks.jsonl": ({"length": "n"}, {"missing": "skip"}, "missing='skip' ", "--missing skip "),
    "cut.bin": ({"format": "prefixed"}, {"truncated": "drop"}, "truncated='drop'", "--truncated drop"),
    "unknown.bin": ({}, {"format": "jsonl"}, "format=...", "--format F"),
    "nulls.parquet": ({}, {"missing": "skip"}, "defaults= or missing='skip'", "--defaults or --missing skip"),
    "large.parquet": ({"max_bytes": 1}, {"max_bytes": 9999}, "max_bytes=", "--max-bytes "),
}
FILES = {
    "bad.jsonl": b'{"n": 1}\nbad\n',
    "lacks.jsonl": b'{"n": 1}\n{"m": 1}\n',
    "cut.bin": b"\1\0\0\0a\5\0\0\0ab",
    "unknown.bin": bytes(8),
}


@pytest.mark.filterwarnings("ignore:.* left out of")
@pytest.mark.parametrize("name", WORDS)
def test_what_a_message_advises_is_in_the_words_of_the_user_and_works(name, capsys):
    if name in FILES:
        file(name, FILES[name])
    else:
        pq.write_table(pa.table({"x": pa.array([1, None] if name == "nulls.parquet" else range(9))}), name)
    verb, call = ("index", build) if name in FILES else ("convert", convert)
    options, mends, in_python, in_command = WORDS[name]

    def run(options):
        flags = [(f"--{key.replace('_', '-')}", value) for key, value in options.items()]
        return main(
            [verb, name, *(word for flag, value in flags for word in ([flag] if value is True else [flag, str(value)]))]
        )

    said = message(lambda: call(name, **options))
    assert run(options) == 1
    printed = capsys.readouterr().err.strip()
    check(said)
    check(printed)
    assert in_python in said
    assert printed.replace(in_command, in_python) == said
    assert not re.search(r"(?<![\w-])--?[a-z]", said.partition("run: ")[0]), said
    call(name, **{**options, **mends})
    assert run({**options, **mends, "force": True}) == 0


@pytest.mark.parametrize(
    ("line", "start"),
    [
        ("seekable train.jsonl --long 99", "--long = 99, expected 10 to 31"),
        ("index train.jsonl --workers 0", "--workers = 0, expected 1 or more"),
        ("index train.jsonl --column n", "--column n: expected NAME=EXPR, and every name once"),
        ("index train.jsonl --column a=b --column a=c", "--column "),
        ("index train.jsonl --missing few", "--missing = 'few', expected 'error', 'skip' or a number of up to 64 bits"),
        ("convert train.jsonl --format foo", "--format = 'foo', expected one of 'arrays', 'fixed', "),
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


def test_a_command_ends_with_its_block():
    with as_command():
        assert option("bad", "skip") == "--bad skip"
        with as_command():
            assert option("record_bytes", True) == "--record-bytes"
        assert either("-o", "out=") == "-o"
    with pytest.raises(ValueError, match="x"), as_command():
        raise ValueError("x")
    assert option("force", True) == "force=True"


def test_a_long_value_is_cut():
    assert shortened([1, 2], 20) == "[1, 2]"
    assert shortened([16234, 24935, 14728, 15474], 20) == "[16234, 24935, 14..."
    assert shortened("x" * 30, 20) == "'xxxxxxxxxxxxxxxx..."
    assert "int object" in shortened(10**5000)


def test_one_of_a_thing_is_not_counted_as_several(capsys):
    ds = mmapds.open(jsonl(b'{"n": 5}\n', length="n"))
    sampler = mmapds.TokenBudgetBatchSampler(ds, max_tokens=8)
    assert str(sampler.summary()).startswith("1 sample in 1 batch, 1 step\n")
    assert repr(sampler).endswith(" 1 step>")
    ds[:1].save("one.mmx")
    assert main(["info", "one.mmx"]) == 0
    assert "a saved view, 1 of the 1 record of 1 index" in capsys.readouterr().out
    file("train.jsonl", b'{"n": 5}\nbad\n')
    assert main(["index", "train.jsonl", "--bad", "skip"]) == 0
    assert "(1 such line left out" in capsys.readouterr().err
