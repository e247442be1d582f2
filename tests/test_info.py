"""`mmapds info`: what indexes cover, in a screen: sources and their states, statistics of columns, a histogram."""

import gzip
import json
import math
import os
import platform
import re
import shlex

import numpy as np
import pytest

import mmapds
from mmapds._native import SIMD
from mmapds.index import inspect as numbers
from mmapds.index.inspect import measure
from mmapds.storage.index_file import Index
from tests.support import commands
from tests.support.bounds import bounds_of
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


def test_versions_tell_what_is_installed(index):
    shown = json.loads(index("--json", tool="versions").stdout)
    assert shown["mmapds"] == f"{mmapds.__version__}, SIMD {SIMD}"
    assert (shown["numpy"], shown["Python"].split(",")[0]) == (np.__version__, platform.python_version())
    assert re.search(rf"^  numpy +{re.escape(np.__version__)}$", index(tool="versions").stdout, re.MULTILINE)


VALUES = {
    "lengths": np.minimum(np.random.default_rng(0).lognormal(4, 1, 3000), 5000).astype(int),
    "largest": np.arange(2**64 - 6, 2**64, dtype=np.uint64),
    "above the integers of float64": np.arange(2**53, 2**53 + 6),
    "smallest": np.arange(-(2**63), -(2**63) + 6),
    "all of int64": np.array([-(2**63), -(2**62), -1, 0, 2**62, 2**63 - 1]),
    "all of uint64": np.array([0, 1, 2**63, 2**63 + 1, 2**64 - 2, 2**64 - 1], np.uint64),
    "at the end of a bin": np.array([*range(12)] * 15 + [12]),
    "fractions": np.array([-0.25, 0.03, 0.13, 0.23, 0.33, 1.53]),
    "not finite": np.array([0.5, np.nan, np.inf]),
    "tiny": np.array([1.1e-300, 2.3e-300, 3.1e-300]),
}


@pytest.mark.parametrize("name", VALUES)
def test_the_numbers_of_a_column_and_its_bins_are_those_of_loops(write, ran, monkeypatch, name):
    monkeypatch.setattr(numbers, "_PIECE", 50)  # numbers that are looked at together
    values = VALUES[name]
    path = write(values.tolist() if np.isfinite(values).all() else [0] * len(values))
    mmapds.build(path)
    mmapds.add_column(path, "x", values)
    status, out, err = ran("info", path, "--histogram", "x")
    assert (status, err) == (0, "")
    assert f"{path}.mmx\n  records  {len(values):,}\n  sources  1\n  bytes    {os.path.getsize(path):,}" in out
    number, found = (float if values.dtype.kind == "f" else int), table(out)
    finite = sorted(each for each in values.tolist() if math.isfinite(each))
    for row, expected in (
        ("min", finite[0]),
        ("median", finite[math.ceil(0.5 * len(finite)) - 1]),
        ("99 %", finite[math.ceil(0.99 * len(finite)) - 1]),
        ("max", finite[-1]),
        ("total", sum(finite)),
    ):
        shown = number(found["x", row].replace(",", ""))
        assert shown == (expected if number is int else pytest.approx(expected, rel=1e-5)), row
    assert found["x", "made of"] == [mmapds.open(path).column("x").dtype.name]
    sizes = np.diff(bounds_of(f"{path}.mmx"))
    assert (found["bytes", "max"], found["bytes", "total"]) == (f"{sizes.max():,}", f"{sizes.sum():,}")
    bins = spread(out)
    for label, _, count in bins:
        low, *ends = map(number, re.findall(r"-?\d[\d.]*(?:e[+-]\d+)?", label.replace(",", "")))
        end = ends[0] + (number is int) if ends else math.inf
        assert count == sum(low <= each < end or each == low for each in finite), label
    assert sum(count for *_, count in bins) == len(finite)
    assert max(len(bar or "") for _, bar, _ in bins) == len(max(bins, key=lambda each: each[2])[1]) == 40


def test_a_column_without_a_finite_number_has_no_histogram(write, ran):
    path = write([1, 2, 3])
    mmapds.build(path)
    mmapds.add_column(path, "x", np.full(3, np.nan))
    status, out, err = ran("info", path, "--histogram", "x")
    assert (status, err, table(out)["x", "median"], table(out)["x", "total"]) == (0, "", "0", "0")


def test_percentiles_of_many_records_are_those_of_a_sample(write, monkeypatch):
    monkeypatch.setattr(numbers, "_SAMPLE", 50)
    monkeypatch.setattr(numbers, "_PIECE", 10)
    paths = [write([{"n": (7 * k * k) % 1001} for k in range(count)], f"{count}.jsonl") for count in (1, 300, 0, 77)]
    mmapds.build(paths, columns={"n": "n"})
    found, expected = measure([Index(f"{path}.mmx") for path in paths], "n"), mmapds.open(paths).column("n")
    assert (found["is_sample"], found["sampled"], found["total"]) == (True, len(expected[::8]), expected.sum())
    assert found["median"] == np.quantile(expected[::8], 0.5, method="inverted_cdf")


def test_a_forged_index_is_described_as_it_is(tmp_path, ran):
    """At once, however many records are claimed."""
    np.save(tmp_path / "a.npy", np.zeros((5, 4), np.int16))
    mmapds.build(tmp_path / "a.npy")

    def claim(metadata):
        metadata["sources"][0]["records"] = 2**62
        return metadata

    rewrite(tmp_path / "a.npy.mmx", metadata=claim, header={"records": 2**62})
    status, out, _ = ran("info", tmp_path / "a.npy")
    assert (status, table(out)["bytes", "total"]) == (0, f"{8 * 2**62:,}")
    assert [(label, count) for label, _, count in spread(out)] == [("8 to 8", 2**62)]


def test_sizes_of_compressed_sources_say_which_they_are(tmp_path, ran):
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"n": 1}\n' * 1000))
    size = path.stat().st_size
    line = f"{path}.mmx: 1,000 records, {size} bytes, 9,000 decoded, 9.0 bytes a record (9 to 9)"
    assert ran("index", path)[1].startswith(line)
    assert f"\n  bytes    {size}\n  decoded  9,000 (9.0 kB)\n" in ran("info", path)[1]


def test_sources_that_changed_or_are_missing_come_first_and_fail(write, ran, tmp_path):
    paths = [write([number], f"many/{number:04}.jsonl") for number in range(60)]
    index, other = mmapds.build(paths, out=tmp_path / "many.mmx"), mmapds.build(paths[5])
    os.unlink(paths[3])
    os.utime(paths[4], ns=(5, 5))
    write([1, 2], "many/0005.jsonl")
    status, out, err = ran("info", index)
    assert (status, err.startswith(f"{paths[3]}: no such file or directory (a source of ")) == (1, True)
    check(err.strip())
    assert len(out.splitlines()) < 40
    assert "\n  1 missing, 1 stale, 1 touched, 57 unchanged; --all lists them\n" in out
    listed = out.partition("\nsources\n")[2].splitlines()
    assert [os.path.basename(line.split()[0]) for line in listed[:3]] == ["0003.jsonl", "0004.jsonl", "0005.jsonl"]
    assert "MISSING: no such file" in listed[0]
    assert "another time, the same fingerprint" in listed[1]
    assert "STALE: 0005.jsonl was 2 bytes when indexed and is 4 now; run: " in listed[2]
    everything = ran("info", "--all", index)[1]
    assert len(everything.partition("\nsources\n")[2].partition("\n\n")[0].splitlines()) == 60
    status, out, err = ran("info", "--json", other)
    assert (status, err, json.loads(out)["indexes"][0]["sources"][0]["state"]) == (1, "", "stale")
    status, out, stale = ran("info", "--quiet", other)
    assert (status, out) == (1, "")
    check(stale.strip())
    assert commands.run(*shlex.split(stale.partition("; run: python ")[2])).returncode == 0
    assert ran("info", other)[::2] == (0, "")


def test_several_indexes_are_taken_together(write, ran):
    one, two = write([{"n": 1}], "one.jsonl"), write([{"n": 5}, {"n": 6}], "two.jsonl")
    mmapds.build(one, columns={"n": "n"})
    mmapds.build(two, columns={"n": "n", "m": "n"})
    gone, also = write([1], "gone.jsonl"), write([1], "also.jsonl")
    status, out, err = ran("info", one, two, gone, also)
    assert status == 1
    assert err == f"{gone} and 1 more: not indexed yet; run: python -m mmapds.index {one} {two} {gone} {also}\n"
    assert out.startswith(f"2 indexes, {one}.mmx to {two}.mmx\n  records  3\n  sources  2\n")
    assert table(out)["n", "total"] == "12"
    assert ran("info", "--quiet", one, two, gone, also) == (1, "", err)


def test_a_terminal_has_colours_and_every_column(write):
    path = write([{f"c{name}": name * number for name in range(9)} for number in range(100)])
    mmapds.build(path, columns={f"c{name}": f"c{name}" for name in range(9)}, length="c3")
    status, text = on_terminal("-m", "mmapds", "info", path, columns=60)
    assert status == 0
    assert "\x1b[1msources\x1b[0m" in text
    plain = [line.rstrip() for line in COLOURS.sub("", text).splitlines()]
    piped = commands.mmapds("info", path, env={**os.environ, "FORCE_COLOR": "1"}).stdout
    assert plain == piped.splitlines()
