"""Measuring a field of every record: against `wc -l` of the file, and against parsing the records with orjson."""

import orjson
import pytest

from bench.support.data import GB, jsonl
from bench.support.indexing import count_lines, index
from bench.support.memory import peak_of_indexing
from mmapds import _native
from mmapds.formats.expressions import Expression
from mmapds.storage.index_file import Index


@pytest.mark.parametrize(
    ("size", "options", "target"),
    [
        (GB, ["--length", "source_len"], "<= 2.5x"),
        (2 * GB, ["--length", "source_len"], "<= 2.5x"),
        (4 * GB, ["--length", "source_len"], "<= 1.5x"),
        (4 * GB, ["--length", "chars(target)"], "<= 2x"),
        (2 * GB, ["--length", "chars(target)"], ""),
        (2 * GB, ["--length", "source_len", "--column", "chars=chars(target)", "--column", "size=bytes()"], ""),
        (2 * GB, ["--validate"], ""),
    ],
    ids=["number, 1 GB", "number", "number, 4 GB", "chars, 4 GB", "chars", "three columns", "validate"],
)
def test_whole_command(compare, size, options, target):
    path = str(jsonl(size))
    index(path, *options)
    assert Index(path + ".mmx").records == count_lines(path)
    what = f"index {size // GB} GB of JSONL {' '.join(options)}"
    compare(what, lambda: index(path, *options), "wc -l", lambda: count_lines(path), target, rounds=11)
    index(path)


def test_peak_memory(row):
    path = str(jsonl(2 * GB))
    peak = peak_of_indexing(path, "--length", "source_len")
    row("peak anonymous memory, --length source_len", "", f"{peak / 1e6:.0f} MB", "<= 150 MB")
    index(path)


@pytest.mark.parametrize("text", ["source_len", "chars(target)", "bytes(target)"])
@pytest.mark.parametrize("variant", _native.simd_variants())
def test_one_core(compare, text, variant):
    with open(jsonl(GB), "rb") as file:
        records = [file.readline().rstrip(b"\n") for _ in range(20_000)]
    expression = Expression.parse("length", text)
    field = ((expression.measure, expression.path),)
    key = expression.path[0].decode()
    of = {"source_len": int, "chars(target)": len, "bytes(target)": lambda value: len(value.encode())}[text]
    assert [_native.measure_record(variant, field, r)[3] for r in records] == [
        of(orjson.loads(r)[key]) for r in records
    ]
    compare(
        f"{text} of 20,000 records, a call each ({variant})",
        lambda: [_native.measure_record(variant, field, record) for record in records],
        "orjson.loads",
        lambda: [of(orjson.loads(record)[key]) for record in records],
        "",
    )
