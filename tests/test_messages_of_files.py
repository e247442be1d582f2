"""Messages about files follow the forms too: indexes, sources, columns, and what writes them."""

import os
import re

import numpy as np
import pytest

import mmapds
from mmapds import orders
from mmapds.convert import convert
from tests.support.messages import check
from tests.support.mistakes import (
    archive,
    arrays,
    build_as,
    closed,
    command,
    cut,
    dataset,
    distributed,
    file,
    groups,
    grown,
    grown_again,
    index_of,
    indexed,
    inferred,
    jsonl,
    linked,
    megatron,
    message,
    opened,
    outside,
    overwrite,
    saved,
    table,
    with_a_shard_missing,
    writer,
    written,
    written_again,
    zipped,
)


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


WITH_NUMBERS = {
    # Indexes: stale, damaged, of another version
    "grown": lambda: mmapds.open(grown()),
    "truncated index": lambda: mmapds.open(cut(f"{jsonl()}.mmx", -5)),
    "size in a header": lambda: mmapds.open(index_of(jsonl(), 40, b"\xff")),
    "version of an index": lambda: mmapds.open(index_of(jsonl(), 8, b"\x07")),
    "bounds": lambda: mmapds.open(index_of(jsonl(), 64, b"\xff" * 8))[0],
    "version of an array file": lambda: mmapds.build(overwrite(arrays(index=False), 8, b"\x07")),
    "truncated array file": lambda: mmapds.build(cut(arrays(index=False), 1000)),
    "array file without its end": lambda: mmapds.build(cut(arrays(index=False), -5)),
    # Sources
    "record that is not whole": lambda: mmapds.build(file("r.bin", bytes(10)), format="fixed", record_bytes=4),
    "prefix at the end": lambda: mmapds.build(file("r.pb", b"\2\0\0\0hi\0\0"), format="prefixed"),
    "size beyond the end": lambda: mmapds.build(file("r.pb", b"\x09\0\0\0hi"), format="prefixed"),
    "long varint": lambda: mmapds.build(file("r.pb", b"\xff" * 12), format="prefixed", prefix="varint"),
    "crc": lambda: mmapds.build(file("r.tfrecord", bytes(32))),
    "record_bytes": lambda: mmapds.build(file("r.bin", bytes(8)), format="fixed", record_bytes=0),
    "record_bytes and dtype": lambda: mmapds.build(
        file("r.bin", bytes(8)), format="fixed", record_bytes=3, dtype="uint16"
    ),
    "shape": lambda: mmapds.build(file("r.bin", bytes(8)), format="fixed", dtype="uint16", shape="0"),
    "npy with too few": lambda: mmapds.build(cut(saved(np.ones((9, 4))), -64)),
    "truncated tar": lambda: mmapds.build(cut(archive(), 1300)),
    "garbage in a tar": lambda: mmapds.build(overwrite(archive(), 1030, b"!!!!")),
    "extension twice": lambda: mmapds.build(archive("0.txt", "0.txt")),
    "sequence that begins elsewhere": lambda: mmapds.build(megatron(begin=6)),
    "type of tokens": lambda: mmapds.build(megatron(code=99)),
    "more tokens than bytes": lambda: mmapds.build(cut(megatron(), 6)),
    "fewer tokens than bytes": lambda: mmapds.build(overwrite(megatron(), 8, b"more")),
    "version of megatron": lambda: mmapds.build(megatron(version=2)),
    "workers": lambda: mmapds.build(file("a.jsonl", b"1\n"), workers=0),
    # Columns
    "field that is missing": lambda: mmapds.build(file("a.jsonl", b'{"n": 1}\n{}\n'), length="n"),
    "field of another type": lambda: mmapds.build(file("a.jsonl", b'{"n": "x"}\n'), length="n"),
    "field of no object": lambda: mmapds.build(file("a.jsonl", b"7\n"), length="n"),
    "not JSON": lambda: mmapds.build(file("a.jsonl", b'{"n": 1}\n{"n": \n'), length="n"),
    "long path": lambda: mmapds.build(file("a.jsonl", b"{}\n"), length=".".join("a" * 99)),
    "values": lambda: mmapds.add_column(jsonl(), "x", [1, 2]),
    "negative lengths": lambda: mmapds.add_column(jsonl(), "length", [1, -1, 2]),
    "column workers": lambda: mmapds.add_column(jsonl(), "x", len, workers=0),
    "two indexes": lambda: mmapds.add_column([jsonl(), indexed("b.jsonl")], "x", [1]),
    "not a number": lambda: mmapds.add_column(jsonl(), "x", repr),
    # Records that cannot be decoded
    "column that no record has": lambda: mmapds.build(file("a.jsonl", b'{"n": 1}\n'), length="m", missing="skip"),
    "bad lines alone": lambda: mmapds.build(file("a.jsonl", b"bad\nworse\n"), bad="skip", format="jsonl"),
    "field of JSON": lambda: dataset(decode=mmapds.Fields({"s": "int32"}))[1],
    "field without a default": lambda: dataset(decode=mmapds.Fields({"m": "int32"})).take([1]),
    "field of a range": lambda: mmapds.open(jsonl(b'{"n": [300]}\n'), decode=mmapds.Fields({"n": "int8"}))[0],
    "field of a shape": lambda: mmapds.open(jsonl(b'{"n": [3]}\n'), decode=mmapds.Fields({"n": ("int8", (2,))}))[0],
    "ragged field": lambda: mmapds.open(jsonl(b'{"n": [[3], []]}\n'), decode=mmapds.Fields({"n": "int8"}))[0],
    "field in a number": lambda: dataset(decode=mmapds.Fields({"n.m": "int8"}))[0],
    "fields of no object": lambda: mmapds.open(jsonl(b"[3]\n"), decode=mmapds.Fields({"n": "int8"}))[0],
    "fields of what is not JSON": lambda: mmapds.open(jsonl(b"1\n[3\n"), decode=mmapds.Fields({"n": "int8"}))[1],
    "line with a computed column": lambda: (mmapds.add_column(jsonl(b"1\nbad\n"), "x", [1, 2]), opened()[1])[1],
    "line of a decoder": lambda: mmapds.open(jsonl(b"1\n\xff\n"), decode="text")[1],
    "bound inside a record": lambda: mmapds.open(index_of(jsonl(), 72, b"\x03" + bytes(7)))[0],
    "dataset with a share and no records": lambda: mmapds.MixtureSampler([0, 5], [1, 1]),
    "order beside a seed": lambda: distributed(1, 0, order=orders.Sequential(10), seed=3),
    "order of other records": lambda: distributed(1, 0, order=orders.Resampled(9, 10)),
    "broken line": lambda: mmapds.open(jsonl(b'{"n": 1}\n{"n": \n'))[1],
    "broken text": lambda: mmapds.open(jsonl(b"1\n\xff\n"), decode="text")[1],
    "broken example": lambda: mmapds.open(
        mmapds.build(file("r.pb", b"\2\0\0\0\x0a\x7f"), format="prefixed"), decode="tf_example"
    )[0],
    "samples of a mapped batch": lambda: dataset().map(lambda _: [1, 2], batched=True).take([0, 1, 2]),
    "samples of a mapped zip": lambda: zipped().map(lambda _: [1, 2], batched=True).take([0]),
    "zip of other lengths": lambda: mmapds.zip(a=dataset(), b=dataset()[1:]),
    "zip nothing": lambda: mmapds.zip(),
    "columns of one name": lambda: zipped(mmapds.open(jsonl(length="n"))).lengths,
    # Writer and convert
    "field too large": lambda: written({"id": 2**70, "name": "a"}),
    "field of a type": lambda: written({"id": 1, "name": 2}),
    "field missing in a record": lambda: written({"id": 1}),
    "record that is a list": lambda: written([1, 2]),
    "axes": lambda: written({"x": np.ones((2, 3))}, {"x": ("float64", (None, 4))}),
    "too many axes": lambda: writer({"x": ("float32", (1,) * 9)}),
    "infinity in JSON": lambda: written({"x": [float("inf")]}, {"x": "json"}),
    "infer": lambda: convert(jsonl(), "b.mma", infer=0),
    "rows": lambda: convert(groups(), "b.mma"),
    "null": lambda: convert(table(x=[1, None]), "b.mma"),
    "numbers that do not fit": lambda: convert(table(x=[[1, 70000]]), "b.mma", schema={"x": ("uint16", (None,))}),
    "several sources": lambda: convert([jsonl(), arrays()]),
}

WITHOUT_NUMBERS = {
    "JSON array": lambda: mmapds.build(file("a.json", b'[\n{"n": 1},\n{"n": 2}\n]\n')),
    "JSON over lines": lambda: mmapds.build(file("a.json", b'{\n "n": 1\n}\n')),
    "table": lambda: mmapds.build(file("a.csv", b"a,b\n1,2\n")),
    "tabs": lambda: mmapds.build(file("a.tsv", b"a\tb\n1\t2\n")),
    "ends of old Macs": lambda: mmapds.build(file("a.jsonl", b'{"n": 1}\r{"n": 2}\r')),
    "UTF-16": lambda: mmapds.build(file("a.jsonl", '{"n": 1}\n'.encode("utf-16"))),
    "compressed by another name": lambda: mmapds.build(file("a.txt", b"BZh91AY&")),
    "missing shard": lambda: mmapds.open(with_a_shard_missing())[0],
    "bad": lambda: mmapds.build(jsonl(), bad="drop"),
    "bad of a tar": lambda: mmapds.build(archive(), bad="skip"),
    "open nothing": lambda: mmapds.open([]),
    "open a missing file": lambda: mmapds.open("absent.jsonl"),
    "open an empty directory": lambda: mmapds.open("."),
    "open a pattern": lambda: mmapds.open("*.jsonl"),
    "open without an index": lambda: mmapds.open(file("a.jsonl", b"1\n")),
    "open a missing index": lambda: mmapds.open("absent.mmx"),
    "open what is converted": lambda: mmapds.open(table(x=[1])),
    "index that is text": lambda: mmapds.open(file("a.mmx", b"hello" * 20)),
    "index that is a directory": lambda: (os.mkdir("d.mmx"), mmapds.open(["d.mmx"]))[1],
    "written again": lambda: mmapds.open(written_again()),
    "source outside": lambda: mmapds.open(outside()),
    "checksum of an index": lambda: mmapds.open(index_of(jsonl(), -2, b"!")),
    "reserved": lambda: mmapds.open(index_of(jsonl(), 48, b"\2")),
    "no such key": lambda: mmapds.open(mmapds.build(archive())).find("x"),
    "a key that is a number": lambda: mmapds.open(mmapds.build(archive())).find(3),
    "build nothing": lambda: mmapds.build([]),
    "build a missing file": lambda: mmapds.build("absent.jsonl"),
    "build a directory": lambda: (os.mkdir("d"), mmapds.build([file("d/a.jsonl", b"1\n"), "d/none"]))[1],
    "build a compressed file": lambda: mmapds.build(file("a.jsonl", b"PK\x03\x04")),
    "build an index": lambda: mmapds.build(f"{jsonl()}.mmx", out="b.mmx"),
    "build into a directory": lambda: mmapds.build(jsonl(), out="."),
    "build into nowhere": lambda: mmapds.build(jsonl(), out="absent/a.mmx"),
    "format": lambda: mmapds.build(jsonl(), format="csv"),
    "format that is converted": lambda: mmapds.build(jsonl(), format="parquet"),
    "unknown bytes": lambda: mmapds.build(file("a.bin", bytes(9))),
    "option": lambda: mmapds.build(jsonl(), prefix="varint"),
    "prefix": lambda: mmapds.build(file("r.pb", b""), format="prefixed", prefix="u16"),
    "truncated": lambda: mmapds.build(archive(), truncated="keep"),
    "dtype": lambda: mmapds.build(file("r.bin", bytes(8)), format="fixed", dtype="uint17"),
    "dtype of objects": lambda: mmapds.build(file("r.bin", bytes(8)), format="fixed", dtype="O"),
    "two formats": lambda: mmapds.build([jsonl(), archive()], out="b.mmx"),
    "npy in Fortran order": lambda: mmapds.build(saved(np.asfortranarray(np.ones((3, 4))))),
    "npy of one number": lambda: mmapds.build(saved(np.float64(1))),
    "not an npy": lambda: mmapds.build(file("a.npy", b"hello")),
    "npy files that differ": lambda: mmapds.build([saved(np.ones(3)), saved(np.ones(3, int), "b.npy")], out="b.mmx"),
    "megatron without its idx": lambda: (os.unlink(megatron()[:-3] + "idx"), build_as("corpus.bin", "megatron"))[1],
    "idx itself": lambda: (megatron(), mmapds.build("corpus.idx"))[1],
    "idx of something else": lambda: build_as(megatron(magic=b"MMXXXXX\0\0"), "megatron"),
    "array file that is text": lambda: mmapds.build(file("a.mma", b"hello" * 20)),
    "unfinished array file": lambda: mmapds.build(file("a.mma", bytes(200))),
    "schema of an array file": lambda: mmapds.build(overwrite(arrays(index=False), 90, b"!!")),
    "array files that differ": lambda: mmapds.build(
        [arrays(index=False), arrays("b.mma", {"x": ("float32", (None, 2)), "id": "int32"}, index=False)], out="b.mmx"
    ),
    "home": lambda: mmapds.open("~/a.jsonl"),
    "expression": lambda: mmapds.build(jsonl(), length="words(s)"),
    "missing": lambda: mmapds.build(jsonl(), length="n", missing="drop"),
    "column of what is not JSON": lambda: mmapds.build(archive(), length="n"),
    "column of an array file": lambda: mmapds.build(arrays(index=False), columns={"y": "y"}),
    "validate what is not JSON": lambda: mmapds.build(archive(), validate=True),
    "computed column is lost": lambda: (mmapds.add_column(jsonl(), "x", [1, 2, 3]), mmapds.build(grown_again()))[1],
    "column without a name": lambda: mmapds.add_column(jsonl(), "", [1, 2, 3]),
    "column of text": lambda: mmapds.add_column(jsonl(), "x", ["a", "b", "c"]),
    "column of the sources": lambda: mmapds.add_column(arrays(), "id", [1] * 20),
    "length that may be negative": lambda: mmapds.build(file("a.jsonl", b'{"n": -1}\n'), length="n"),
    "field name": lambda: writer({"a(b)": "str"}),
    "field type": lambda: writer({"a": "text"}),
    "array type": lambda: writer({"a": ("float31", (None,))}),
    "field neither": lambda: writer({"a": 3}),
    "schema": lambda: mmapds.Writer("out.mma", [1]),
    "columns that clash": lambda: writer({"a": ("int8", (None,)), "a_length": "int8"}),
    "length field": lambda: writer({"a": "str"}, length="b"),
    "float length": lambda: writer({"length": "float32"}),
    "suffix of an array file": lambda: mmapds.Writer("out.bin", {"a": "str"}),
    "closed writer": closed,
    "record without fields": lambda: inferred({}),
    "record of null": lambda: inferred({"a": None}),
    "record of an object": lambda: inferred({"a": object()}),
    "bytes in JSON": lambda: written({"x": [b"a"]}, {"x": "json"}),
    "convert nothing": lambda: convert([]),
    "convert into the source": lambda: convert(arrays(), "a.mma"),
    "convert into nowhere": lambda: convert(jsonl(), "absent/b.mma"),
    "convert fields": lambda: convert(table(x=[1]), "b.mma", fields=["y"]),
    "convert a list of fields": lambda: convert(table(x=[1]), "b.mma", fields="x"),
    "convert missing": lambda: convert(table(x=[1]), "b.mma", missing="drop"),
    "convert decode": lambda: convert(table(x=[1]), "b.mma", decode="json"),
    "convert two formats": lambda: convert([table(x=[1]), jsonl()], "b.mma"),
    "convert what is damaged": lambda: convert(file("a.parquet", b"PAR1 PAR1"), "b.mma"),
    "convert damaged HDF5": lambda: convert(file("a.h5", b"\x89HDF\r\n\x1a\n"), "b.mma"),
    "convert tables that differ": lambda: convert([table(x=[1]), table("u.parquet", x=["a"])], "b.mma"),
    "convert what lies elsewhere": lambda: convert(linked(), "b.mma"),
    "convert a group": lambda: convert(groups(), "b.mma", group="c"),
    "convert records": lambda: convert(groups(), "b.mma", records="columns"),
    "command: column": lambda: command("mmapds.index", jsonl(), "--column", "n"),
    "command: missing": lambda: command("mmapds.index", jsonl(), "--missing", "few"),
    "command: verify": lambda: command("mmapds.index", overwrite(jsonl(), 6, b"9"), "--verify"),
    "command: schema": lambda: command("mmapds", "convert", jsonl(), "--schema", "absent.json"),
}


@pytest.mark.parametrize("name", WITH_NUMBERS)
def test_an_error_about_sizes_and_places_has_a_number(name):
    found = message(WITH_NUMBERS[name])
    check(found)
    assert re.search(r"\d", found), found


@pytest.mark.parametrize("name", WITHOUT_NUMBERS)
def test_an_error_has_a_form(name):
    check(message(WITHOUT_NUMBERS[name]))
