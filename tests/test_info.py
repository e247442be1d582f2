"""`mmapds info`: what indexes cover, in a screen: sources and their states, statistics of columns, a histogram."""

import gzip
import json
import math
import os
import re
import shlex

import numpy as np
import pytest

import mmapds
from mmapds.index import inspect as numbers
from mmapds.index.inspect import SIZES, histogram, measure
from mmapds.storage.index_file import Index
from tests.support import commands
from tests.support.bounds import bounds_of
from tests.support.files import patched
from tests.support.index_file import rewrite
from tests.support.messages import check
from tests.support.terminals import on_terminal

COLOURS = re.compile(r"\x1b\[[\d;]*m")


def table(text):
    """The statistics of each column, by its name and that of the statistic."""
    head, *rows = text.partition("\ncolumns\n")[2].partition("\n\n")[0].splitlines()
    names = re.split(r" {2,}", head.strip())
    found = {}
    for row in [row for row in rows if "percentiles of " not in row]:
        title, *cells = re.split(r" {2,}", row.strip())
        found.setdefault((title, "made of"), cells[: -len(names)])
        found |= {(title, name): cell for name, cell in zip(names, cells[-len(names) :], strict=True)}
    return found


def spread(text):
    """The bins of the histogram: label, bar and count."""
    lines = text.rstrip("\n").splitlines()[::-1]
    rows = [re.fullmatch(r" +(.+?) +([\d,]+) +[\d.]+ %(?:  (█+))?", line) for line in lines]
    return [(row[1], row[3], int(row[2].replace(",", ""))) for row in rows[: rows.index(None)]][::-1]


def test_the_numbers_of_columns_are_those_of_numpy(write, ran):
    random = np.random.default_rng(0)
    lengths = np.minimum(random.lognormal(4, 1, 3000), 5000).astype(int)
    path = write([{"n": int(length) - 100, "text": "x" * int(length)} for length in lengths])
    mmapds.build(path, length="chars(text)", columns={"n": "n"})
    status, out, err = ran("info", path)
    assert (status, err) == (0, "")
    assert f"{path}.mmx\n  records  3,000\n  sources  1\n  bytes    {os.path.getsize(path):,} (" in out
    found = table(out)
    for name, expected in (("length", lengths), ("n", lengths - 100), ("bytes", np.diff(bounds_of(f"{path}.mmx")))):
        for row, value in (
            ("min", expected.min()),
            ("median", np.quantile(expected, 0.5, method="inverted_cdf")),
            ("99 %", np.quantile(expected, 0.99, method="inverted_cdf")),
            ("max", expected.max()),
            ("total", expected.sum()),
        ):
            assert found[name, row] == f"{value:,}"
    assert [found[name, "made of"] for name in ("length", "n")] == [["chars(text) uint32"], ["n int64"]]
    bins = spread(out)
    assert sum(count for *_, count in bins) == 3000
    assert bins[-1][2] == (lengths >= int(bins[-1][0].removesuffix(" or more"))).sum()
    assert max(len(bar) for _, bar, _ in bins) == len(max(bins, key=lambda each: each[2])[1])


def test_piece_by_piece_the_numbers_are_the_same(write, monkeypatch):
    paths = [write([{"n": (7 * k * k) % 1001} for k in range(count)], f"{count}.jsonl") for count in (1, 300, 0, 77)]
    mmapds.build(paths, columns={"n": "n"})
    indexes = [Index(f"{path}.mmx") for path in paths]
    whole = {name: measure(indexes, name) for name in ("n", SIZES)}
    bins = {name: histogram(indexes, name, whole[name]) for name in whole}
    expected = np.concatenate([np.frombuffer(index.column("n")[1], "<u4") for index in indexes])
    assert (whole["n"]["total"], whole["n"]["sampled"], whole["n"]["is_sample"]) == (expected.sum(), 378, False)
    monkeypatch.setattr(numbers, "_PIECE", 10)
    assert {name: measure(indexes, name) for name in whole} == whole
    assert {name: histogram(indexes, name, whole[name]) for name in whole} == bins
    monkeypatch.setattr(numbers, "_SAMPLE", 50)
    sampled = measure(indexes, "n")
    exact = ("type", "min", "max", "mean", "total")
    assert [sampled[name] for name in exact] == [whole["n"][name] for name in exact]
    assert (sampled["sampled"], sampled["is_sample"]) == (len(expected[::8]), True)
    assert sampled["median"] == np.quantile(expected[::8], 0.5, method="inverted_cdf")


@pytest.mark.parametrize(
    ("values", "row", "expected"),
    [
        (np.array([2**64 - 1] * 3, np.uint64), "total", f"{3 * (2**64 - 1):,}"),
        (np.array([0.5, np.nan, np.inf]), "max", "0.5"),
        (np.array([np.nan] * 3), "max", "0"),
        (np.array([1.7e308] * 3), "total", "too large"),
        (np.array([1.7e308, -1.7e308, -1.7e308]), "mean", "-5.66667e+307"),
    ],
)
def test_extreme_numbers(write, ran, values, row, expected):
    path = write([1, 2, 3])
    mmapds.build(path)
    mmapds.add_column(path, "x", values)
    status, out, err = ran("info", path, "--histogram", "x")
    assert (status, err) == (0, "")
    assert table(out)["x", row] == expected


@pytest.mark.parametrize(
    "values",
    [
        np.arange(2**64 - 6, 2**64, dtype=np.uint64),
        np.arange(2**53, 2**53 + 6),
        np.arange(-(2**63), -(2**63) + 6),
        np.array([-(2**63), -(2**62), -1, 0, 2**62, 2**63 - 1]),
        np.array([0, 1, 2**63, 2**63 + 1, 2**64 - 2, 2**64 - 1], np.uint64),
        np.array([-0.25, 0.03, 0.13, 0.23, 0.33, 1.53]),
    ],
)
def test_each_number_lies_in_the_bin_that_its_label_says(write, ran, values):
    path = write([0] * 6)
    mmapds.build(path)
    mmapds.add_column(path, "x", values)
    bins = spread(ran("info", path, "--histogram", "x")[1])
    number = float if values.dtype.kind == "f" else int
    begins = [number(re.match(r"[-\d.e+]+", label.replace(",", ""))[0]) for label, *_ in bins]
    ends = [*begins[1:], math.inf]
    each = values.tolist()
    expected = [sum(low <= value < high for value in each) for low, high in zip(begins, ends, strict=True)]
    assert [count for *_, count in bins] == expected


def test_a_forged_index_is_described_as_it_is(write, tmp_path, ran):
    """`info` describes, at once however many records are claimed; `verify` is what finds damage."""
    np.save(tmp_path / "a.npy", np.zeros((5, 4), np.int16))
    mmapds.build(tmp_path / "a.npy")

    def claim(metadata):
        metadata["sources"][0]["records"] = 2**62
        return metadata

    rewrite(tmp_path / "a.npy.mmx", metadata=claim, header={"records": 2**62})
    status, out, _ = ran("info", tmp_path / "a.npy")
    assert (status, table(out)["bytes", "total"]) == (0, f"{8 * 2**62:,}")
    assert [(label, count) for label, _, count in spread(out)] == [("8 to 8", 2**62)]
    path = write([{"n": 1}] * 10)
    mmapds.build(path)
    patched(f"{path}.mmx", Index(f"{path}.mmx").sections["offsets"].offset + 8, b"\xff" * 16)
    assert (ran("info", path)[0], ran("verify", path)[0]) == (0, 1)


def test_an_empty_index_and_an_unknown_column(write, ran):
    path = write(b"", "empty.jsonl")
    mmapds.build(path)
    assert ran("info", path)[1].splitlines()[1] == "  records  0"
    expected = f"{path}.mmx: expected --histogram with one of 'bytes', found 'length'\n"
    assert ran("info", path, "--histogram", "length") == (1, "", expected)


def test_sizes_of_compressed_sources_say_which_they_are(tmp_path, ran):
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"n": 1}\n' * 1000))
    size = path.stat().st_size
    line = f"{path}.mmx: 1,000 records, {size} bytes, 9,000 decoded, 9.0 bytes a record (9 to 9)"
    assert ran("index", path)[1].startswith(line)
    assert f"\n  bytes    {size}\n  decoded  9,000 (9.0 kB)\n" in ran("info", path)[1]


def test_many_sources_are_summarised(write, ran, tmp_path):
    paths = [write([number], f"many/{number:04}.jsonl") for number in range(60)]
    mmapds.build(paths, out=tmp_path / "many.mmx")
    os.unlink(paths[3])
    os.utime(paths[4], ns=(5, 5))
    write([1, 2], "many/0005.jsonl")
    status, out, err = ran("info", tmp_path / "many.mmx")
    assert (status, err.count("\n")) == (1, 1)
    assert err.startswith(f"{paths[3]}: no such file or directory (a source of ")
    assert len(out.splitlines()) < 40
    assert "\n  1 missing, 1 stale, 1 touched, 57 unchanged; --all lists them\n" in out
    listed = out.partition("\nsources\n")[2].splitlines()
    assert [os.path.basename(line.split()[0]) for line in listed[:3]] == ["0003.jsonl", "0004.jsonl", "0005.jsonl"]
    assert "MISSING: no such file" in listed[0]
    assert "another time, the same fingerprint" in listed[1]
    assert "STALE: 0005.jsonl was 2 bytes when indexed and is 4 now; run: " in listed[2]
    everything = ran("info", "--all", tmp_path / "many.mmx")[1]
    assert len(everything.partition("\nsources\n")[2].partition("\n\n")[0].splitlines()) == 60


def test_several_indexes_are_taken_together(write, ran):
    one, two = write([{"n": 1}], "one.jsonl"), write([{"n": 5}, {"n": 6}], "two.jsonl")
    mmapds.build(one, columns={"n": "n"})
    mmapds.build(two, columns={"n": "n", "m": "n"})
    gone = write([1], "gone.jsonl")
    status, out, err = ran("info", one, two, gone)
    assert status == 1
    assert err == f"{gone}.mmx: no such index; run: python -m mmapds.index {gone}\n"
    assert out.startswith(f"2 indexes, {one}.mmx to {two}.mmx\n  records  3\n  sources  2\n")
    assert table(out)["n", "total"] == "12"
    assert ran("info", "--quiet", one, gone) == (1, "", err)


def test_a_source_that_changed_or_is_gone_fails(write, ran):
    grown, gone, same = (write([1], name) for name in ("grown.jsonl", "gone.jsonl", "same.jsonl"))
    mmapds.build([grown, gone, same])
    os.utime(same, ns=(5, 5))
    assert ran("info", same)[::2] == (0, "")
    write([1, 2], "grown.jsonl")
    os.unlink(gone)
    status, out, err = ran("info", *[f"{path}.mmx" for path in (grown, gone, same)])
    assert status == 1
    assert "STALE: grown.jsonl was 2 bytes when indexed and is 4 now" in out
    assert "MISSING: no such file or directory" in out
    stale, missing = err.splitlines()
    assert stale.startswith(f"{grown}.mmx: STALE: grown.jsonl was 2 bytes when indexed and is 4 now; run: ")
    assert missing.startswith(f"{gone}: no such file or directory (a source of ")
    for line in (stale, missing):
        check(line)
    status, out, err = ran("info", "--json", f"{grown}.mmx")
    assert (status, err) == (1, "")
    assert json.loads(out)["indexes"][0]["sources"][0]["state"] == "stale"
    assert commands.run(*shlex.split(stale.partition("; run: python ")[2])).returncode == 0
    assert ran("info", f"{grown}.mmx")[0] == 0


def test_a_terminal_has_colours_and_every_column(write):
    path = write([{f"c{name}": name * number for name in range(9)} for number in range(100)])
    mmapds.build(path, columns={f"c{name}": f"c{name}" for name in range(9)}, length="c3")
    status, text = on_terminal("-m", "mmapds", "info", path, columns=60)
    assert status == 0
    assert "\x1b[1msources\x1b[0m" in text
    plain = [line.rstrip() for line in COLOURS.sub("", text).splitlines()]
    piped = commands.mmapds("info", path, env={**os.environ, "FORCE_COLOR": "1"}).stdout
    assert plain == piped.splitlines()
