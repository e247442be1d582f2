"""One index from several: byte for byte the one that is built from all sources, or an error, and the old one intact."""

import json
import math
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mmapds
from mmapds.index.build import Request, build_each
from mmapds.index.verify import verify
from mmapds.storage.index_file import Index
from tests.support.commands import command
from tests.support.commands import mmapds as mmapds_command
from tests.support.files import flip
from tests.support.index_file import rewrite
from tests.support.indexes import OPTIONS, built, write_source

COUNTS = (3, 0, 1, 70_000, 12)
"""Records of each source: more than a piece of a scan in one of them."""
RECORDS = {name: [min(count, 300) for count in COUNTS] for name in ("tar", "tfrecord", "arrays")}

numbers = st.one_of(
    st.integers(0, 9),
    st.integers(0, 2**32),
    st.sampled_from([2**63 - 2**10, 2**63, 2**64 - 2**11]),  # float64 holds these
    st.one_of(st.integers(-(2**53), -1), st.just(-(2**63))),
    st.floats(-1e9, 1e9),
)
lines = st.one_of(
    st.builds(lambda n, size: {"n": n, "text": "x" * size}, numbers, st.integers(0, 5)).map(json.dumps),
    st.sampled_from(['{"text": "lacks n"}', '{"n": 1}', '{"n": 1, "te', "nonsense", "", "  "]),
)
sources = st.builds("{}{}".format, st.lists(lines, max_size=8).map("\n".join), st.sampled_from(["", "\n", "\n \n"]))


@pytest.mark.parametrize("name", OPTIONS)
def test_a_merged_index_is_the_one_that_is_built(tmp_path, name):
    counts = RECORDS.get(name, COUNTS)
    paths = [write_source(tmp_path, name, number, count) for number, count in enumerate(counts)]
    direct = built(paths, tmp_path / "all.mmx", **OPTIONS[name])
    parts = [tmp_path / "a.mmx", tmp_path / "b.mmx", tmp_path / "c.mmx"]
    for part, members in zip(parts, (paths[:2], paths[2:3], paths[3:]), strict=True):
        mmapds.build(members, out=part, **OPTIONS[name])
    merged = mmapds.merge(parts, out=tmp_path / "all.mmx")
    assert merged.read_bytes() == direct
    verify(Index(str(merged)))
    assert mmapds.merge([parts[0], tmp_path / "all.mmx"][1:], out=tmp_path / "again.mmx").read_bytes() == direct


@pytest.mark.filterwarnings("ignore:.*such lines? left out")
@settings(max_examples=60)
@given(parts=st.lists(st.lists(sources, min_size=1, max_size=3), min_size=1, max_size=4), skip=st.booleans())
def test_merged_indexes_have_the_types_and_totals_of_one_that_is_built(tmp_path_factory, parts, skip):
    directory = tmp_path_factory.mktemp("parts")
    columns = {"length": "chars(text)", "n": "n", "bytes": "bytes()"}
    options = {"columns": columns, "missing": "skip" if skip else 7, "bad": "skip", "format": "jsonl"}
    indexes, paths = [], []
    for number, texts in enumerate(parts):
        members = []
        for text in texts:
            members.append(directory / f"{len(paths) + len(members)}.jsonl")
            members[-1].write_text('{"n": 1, "text": "there is one"}\n' + text)
        paths += members
        indexes.append(mmapds.build(members, out=directory / f"part-{number}.mmx", **options))
    direct = built(paths, directory / "all.mmx", **options)
    assert mmapds.merge(indexes, out=directory / "all.mmx").read_bytes() == direct


def test_nan_for_missing_numbers_is_the_same_again(write, tmp_path):
    paths = [write([{"x": 1.5}, {}], f"{name}.jsonl") for name in "ab"]
    options = {"columns": {"x": "x"}, "missing": math.nan}
    direct = built(paths, tmp_path / "all.mmx", **options)
    parts = mmapds.build(paths, **options)
    assert [done.fresh for done in build_each(paths, Request(columns={"x": "x"}, missing=math.nan))] == [False, False]
    (again,) = build_each([paths[0]], Request(columns={"x": "x"}, missing=-1.0))
    assert again.fresh
    with pytest.raises(mmapds.ColumnError, match=r"missing: expected -1.0, .* found nan"):
        mmapds.merge(parts, out=tmp_path / "all.mmx")
    mmapds.build(paths, **options)
    assert mmapds.merge(parts, out=tmp_path / "all.mmx").read_bytes() == direct


@pytest.fixture
def two(write):
    """Two sources with an index each; their paths."""
    paths = [write([{"n": n, "text": "x" * n} for n in range(k, 30 + k)], f"{k}.jsonl") for k in range(2)]
    mmapds.build(paths, length="chars(text)")
    return paths


def indexes(paths):
    return [f"{path}.mmx" for path in paths]


def test_the_command_merges(two, tmp_path):
    direct = built(two, tmp_path / "all.mmx", length="chars(text)")
    done = command(*indexes(two), "--merge", "-o", tmp_path / "all.mmx")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{tmp_path}/all.mmx: 60 records in 2 sources, ")
    assert ", merged, " in done.stdout
    assert (tmp_path / "all.mmx").read_bytes() == direct
    (tmp_path / "all.mmx").unlink()
    assert mmapds_command("index", tmp_path / "*.mmx", "--merge", "-o", tmp_path / "all.mmx").returncode == 0
    assert (tmp_path / "all.mmx").read_bytes() == direct


def test_an_index_can_be_merged_into_itself(two, tmp_path):
    direct = built(two, tmp_path / "all.mmx", length="chars(text)")
    mmapds.merge(indexes(two)[:1], out=tmp_path / "all.mmx")
    mmapds.merge([tmp_path / "all.mmx", indexes(two)[1]], out=tmp_path / "all.mmx")
    assert (tmp_path / "all.mmx").read_bytes() == direct


def test_hashes_are_kept_and_completed(two, tmp_path):
    direct = built(two, tmp_path / "all.mmx", length="chars(text)", hash=True)
    mmapds.build(two[1], hash=True)
    assert mmapds.merge(two, out=tmp_path / "all.mmx").read_bytes() == direct
    mmapds.build(two[0], hash=True)
    assert mmapds.merge(two, out=tmp_path / "all.mmx").read_bytes() == direct


def test_columns_that_were_computed_are_merged(two, tmp_path):
    for path in two:
        mmapds.add_column(path, "double", lambda sample: 2 * sample["n"], workers=1)
        mmapds.add_column(path, "length", lambda sample: sample["n"], workers=1)
    out = mmapds.merge(two, out=tmp_path / "all.mmx")
    verify(Index(str(out)))
    ds = mmapds.open(out)
    assert ds.column("double").tolist() == [2 * sample["n"] for sample in ds]
    assert ds.lengths.tolist() == [sample["n"] for sample in ds]


def test_a_source_of_another_time_keeps_the_time_that_it_had(two, tmp_path):
    direct = built(two, tmp_path / "all.mmx", length="chars(text)")
    os.utime(two[0], ns=(0, 0))
    assert mmapds.merge(two, out=tmp_path / "all.mmx").read_bytes() == direct
    assert len(mmapds.open(tmp_path / "all.mmx")) == 60


def change(path, text=b'{"n": 1, "text": "another"}\n'):
    Path(path).write_bytes(text)


def other_columns(paths):
    mmapds.build(paths[1], columns={"more": "n"})


def other_expression(paths):
    mmapds.build(paths[1], length="bytes(text)")


def other_format(paths):
    os.unlink(f"{paths[1]}.mmx")
    mmapds.build(paths[1], format="fixed", record_bytes=1, columns={"length": "bytes()"})


def other_version(paths):
    rewrite(f"{paths[1]}.mmx", header={"version": 2})


def unknown_section(paths):
    def more(metadata):
        sections = metadata["sections"]
        return metadata | {"sections": sections | {"blocks": sections["offsets"]}}

    rewrite(f"{paths[1]}.mmx", metadata=more)


def unknown_format(paths):
    rewrite(f"{paths[0]}.mmx", metadata=lambda metadata: metadata | {"format": "of tomorrow"})


def source_is_an_index(paths):
    data = Path(f"{paths[0]}.mmx").read_bytes()
    os.replace(f"{paths[0]}.mmx", paths[1])
    size = os.path.getsize(paths[1])
    Path(f"{paths[0]}.mmx").write_bytes(data)

    def forged(metadata):
        (source,) = metadata["sources"]
        return metadata | {"sources": [source | {"size": size}]}

    rewrite(f"{paths[1]}.mmx", metadata=forged)


BAD = {
    "changed": (lambda paths: change(paths[1]), mmapds.StaleIndexError, r"1\.jsonl\.mmx: STALE: 1\.jsonl was "),
    "gone": (lambda paths: os.unlink(paths[1]), mmapds.SourceError, r"1\.jsonl: no such file"),
    "not indexed": (lambda paths: os.unlink(f"{paths[1]}.mmx"), mmapds.SourceError, r"1\.jsonl\.mmx: no such file"),
    "another version": (other_version, mmapds.FormatError, r"1\.jsonl\.mmx: VERSION: expected format 1, found 2"),
    "unknown section": (unknown_section, mmapds.FormatError, "VERSION: expected sections that .* found 'blocks'"),
    "unknown format": (unknown_format, mmapds.FormatError, "VERSION: expected one of the formats"),
    "other columns": (other_columns, mmapds.ColumnError, r"1\.jsonl\.mmx: columns: expected \['length'\], as in "),
    "another expression": (other_expression, mmapds.ColumnError, "expressions: expected .*chars.* found .*bytes"),
    "another format": (other_format, mmapds.FormatError, "format: expected 'jsonl', as in .*, found 'fixed'"),
    "an index as source": (source_is_an_index, mmapds.SourceError, "expected a source, found an index"),
    "damaged bounds": (
        lambda paths: flip(f"{paths[1]}.mmx", Index(f"{paths[1]}.mmx").sections["offsets"].offset),
        mmapds.FormatError,
        r"1\.jsonl\.mmx: DAMAGED: section 'offsets' does not match its checksum",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_merged_is_an_error_and_the_old_index_stays(two, tmp_path, case):
    spoil, kind, message = BAD[case]
    out = mmapds.merge(two[:1], out=tmp_path / "all.mmx")
    before = out.read_bytes()
    spoil(two)
    there = sorted(os.listdir(tmp_path))
    with pytest.raises(kind, match=message):
        mmapds.merge(indexes(two), out=out)
    assert out.read_bytes() == before
    assert sorted(os.listdir(tmp_path)) == there


@pytest.mark.parametrize("option", [{"truncated": "drop"}, {"prefix": "u32be"}])
def test_parameters_must_be_the_same(write, tmp_path, option):
    paths = [write(b"\0\0\0\0" * 9, name) for name in ("a.bin", "b.bin")]
    mmapds.build(paths[0], format="prefixed")
    mmapds.build(paths[1], format="prefixed", **option)
    ((name, value),) = option.items()
    with pytest.raises(mmapds.FormatError, match=rf"b\.bin\.mmx: {name}: expected .*, found '{value}'"):
        mmapds.merge(paths, out=tmp_path / "all.mmx")


def test_overlapping_indexes_are_refused(two, tmp_path):
    both = mmapds.build(two, out=tmp_path / "both.mmx", length="chars(text)")
    with pytest.raises(mmapds.SourceError, match=r"expected each source once, found .*1\.jsonl in"):
        mmapds.merge([both, f"{two[1]}.mmx"], out=tmp_path / "all.mmx")
    (tmp_path / "link.jsonl").symlink_to(two[1])
    linked = mmapds.build(tmp_path / "link.jsonl", length="chars(text)")
    with pytest.raises(mmapds.SourceError, match="expected each source once"):
        mmapds.merge([both, linked], out=tmp_path / "all.mmx")


def test_a_computed_column_is_not_replaced_by_a_measured_one_of_its_name(two, tmp_path):
    out = tmp_path / "all.mmx"
    mmapds.build(two, length="chars(text)")
    mmapds.merge(two, out=out)
    mmapds.build(two, out=out, force=True)
    mmapds.add_column(out, "length", np.arange(60))
    with pytest.raises(mmapds.ColumnError, match="found 'length', too"):
        mmapds.merge(two, out=out)
    assert mmapds.open(out).column("length").tolist() == list(range(60))


def test_sources_outside_the_roots_are_not_touched(two, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    mmapds.build(two, out=tmp_path / "elsewhere" / "both.mmx", length="chars(text)")
    with pytest.raises(mmapds.SourceError, match="expected files below its own directory"):
        mmapds.merge(tmp_path / "elsewhere" / "both.mmx", out=tmp_path / "all.mmx")
    direct = built(two, tmp_path / "all.mmx", length="chars(text)")
    out = mmapds.merge(tmp_path / "elsewhere" / "both.mmx", out=tmp_path / "all.mmx", roots=tmp_path)
    assert out.read_bytes() == direct


@pytest.mark.parametrize(
    "options",
    [
        ["--length", "n"],
        ["--force"],
        ["--hash"],
        ["--missing", "0"],
        ["--truncated", "drop"],
        ["--dask", "a:1"],
        ["--ray", "auto"],
        ["--parts", "d"],
    ],
)
def test_options_of_building_are_refused(two, tmp_path, options):
    done = command(*indexes(two), "--merge", "-o", tmp_path / "all.mmx", *options)
    assert done.returncode == 2
    assert done.stderr.startswith(f"{options[0]}: expected no option for how to index with --merge")


def test_an_index_with_more_columns_is_not_replaced(write, tmp_path):
    a, b = (write([{"n": n}], f"{n}.jsonl") for n in range(2))
    mmapds.build([a, b])
    out = mmapds.build([a, b], out=tmp_path / "all.mmx")
    mmapds.add_column(out, "z", [1, 2])
    with pytest.raises(mmapds.ColumnError) as error:
        mmapds.merge([a, b], out=out)
    assert str(error.value) == f"{out}: columns: expected those of the indexes to merge, found 'z', too"
    assert list(mmapds.open(out).column("z")) == [1, 2]
    mmapds.merge([a, b], out=tmp_path / "other.mmx")
    out.unlink()
    assert len(mmapds.open(mmapds.merge([a, b], out=out))) == 2
