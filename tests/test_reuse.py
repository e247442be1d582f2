"""A build keeps what the index before it knows, --merge joins indexes: both write what a scan of everything writes."""

import json
import math
import os
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mmapds
from mmapds.index.build import Request, build_each
from mmapds.storage import current
from mmapds.storage.index_file import Index
from tests.support.commands import command
from tests.support.files import flip
from tests.support.index_file import rewrite, verify
from tests.support.indexes import OPTIONS, built, write_source

LINES = [json.dumps({"n": n, "text": "x" * (n % 50)}).encode() + b"\n" for n in range(2_000)]
TEXT = {"length": "chars(text)"}


def scanned(paths, **options):
    """How many bytes of sources a build scans, after which the index is the one that is built from them alone."""
    scans = []

    def spy(sources, *args, **more):
        scans.extend(source.stop - source.begin for source in sources)
        return scan(sources, *args, **more)

    jsonl = mmapds.formats.FORMATS["jsonl"]
    scan = jsonl.scan
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jsonl, "scan", spy, raising=False)
        built_now = mmapds.build(paths, **options)
    return sum(scans), Path(built_now).read_bytes()


def sizes(paths):
    return sum(map(os.path.getsize, paths))


# ---- sources come, go, grow and change ---------------------------------------------------------------------------

FIRST = '{"n": 1, "text": "there is one"}\n'

numbers = st.one_of(
    st.integers(0, 99),
    st.sampled_from([2**32, 2**63 - 2**10, 2**63, 2**64 - 2**11, -1, -(2**53), -(2**63), 5.0, 0.5]),
)
lines = st.one_of(
    st.builds(lambda n, size: json.dumps({"n": n, "text": "x" * size}), numbers, st.integers(0, 40)),
    st.sampled_from(['{"text": "lacks n"}', '{"n": 1}', '{"n": 1, "te', "nonsense", "", "  "]),
)
texts = st.builds("{}{}".format, st.lists(lines, max_size=6).map("\n".join), st.sampled_from(["", "\n", "\n \n"]))
"""What may end without a newline, so that what is appended goes on with its last line."""


def append(sources, at, text):
    sources[at].write_text(sources[at].read_text() + text)


def replace(sources, at, text):
    sources[at].write_text(FIRST + text)


def add(sources, at, text):
    path = sources[at].with_name(f"{len(list(sources[at].parent.iterdir()))}.jsonl")
    path.write_text(FIRST + text)
    sources.insert(at, path)


def remove(sources, at, _):
    if len(sources) > 1:
        del sources[at]


changes = st.tuples(st.sampled_from([append, append, replace, add, remove]), st.integers(0, 9), texts)


def check(directory, begin, steps, options):
    """Build after each step with what the last index knows, and compare that with a build of everything."""
    sources, out = [directory / f"{number}.jsonl" for number in range(len(begin))], directory / "all.mmx"
    for path, text in zip(sources, begin, strict=True):
        path.write_text(FIRST + text)
    for step in [(), *steps]:
        for change, at, text in step:
            change(sources, at % len(sources), text)
        mmapds.build(sources, out=out, grown=True, **options)
        found = out.read_bytes()
        verify(Index(str(out)))
        assert found == built(sources, directory / "direct.mmx", **options)


@pytest.mark.filterwarnings("ignore:.*such lines? left out")
@given(
    begin=st.lists(texts, min_size=1, max_size=4),
    steps=st.lists(st.lists(changes, min_size=1, max_size=2), min_size=1, max_size=4),
    skip=st.booleans(),
)
def test_each_is_the_index_of_a_build_of_everything(tmp_path_factory, begin, steps, skip):
    columns = {"length": "bytes()", "n": "n"}
    options = {"format": "jsonl", "columns": columns, "missing": "skip" if skip else 7, "bad": "skip"}
    check(tmp_path_factory.mktemp("steps"), begin, steps, options)


@pytest.mark.filterwarnings("ignore:.*left out")
@pytest.mark.parametrize("number", [2**32, 2**63, -1, 0.5, 5.0])
def test_a_column_becomes_as_narrow_as_the_records_need_that_are_left(tmp_path, number):
    options = {"columns": {"n": "n"}, "bad": "skip"}
    begin = [f'{{"n": {n}}}\n' for n in (-7, number, 4)]
    check(tmp_path, begin, [[(remove, 1, "")], [(add, 1, begin[1])], [(replace, 1, "")]], options)
    longest = '{"n": 2, "text": "the largest of all"}\n'
    for last in (f'{{"n": {number}}}', '{"n": 3}'):  # which is a record no more, and belongs to the one before it
        check(tmp_path, [longest + last], [[(append, 0, 'x\n{"n": 5}\n')]], options)


@pytest.mark.parametrize("name", OPTIONS)
def test_the_sources_that_did_not_change_are_kept(tmp_path, name):
    """However many runs of them there are: orders and keys are not read for each."""
    paths = [write_source(tmp_path, name, number, 40) for number in range(30)]
    out = mmapds.build(paths, out=tmp_path / "all.mmx", **OPTIONS[name])
    for number, path in enumerate(map(Path, paths[::2])):
        os.replace(write_source(tmp_path, name, 100 + number, 35), path)
        if name == "megatron":
            os.replace(path.with_name(f"megatron-{100 + number}.idx"), path.with_suffix(".idx"))
    direct, read = built(paths, tmp_path / "direct.mmx", **OPTIONS[name]), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Index, "read", lambda *args, whole=Index.read: read.append(args[2]) or whole(*args))
        (done,) = build_each([str(out)], Request())
    assert done.reused == "kept 15 sources, scanned 15 sources"
    assert out.read_bytes() == direct
    assert sum(read) < 4 * len(direct) or name not in ("jsonl", "tar")
    assert not Index(str(out)).computed_columns
    verify(Index(str(out)))


@pytest.fixture
def shards(write, tmp_path):
    """Three sources, and the path of an index of all."""
    paths = [write(b"".join(LINES[k::3]), f"{k}.jsonl") for k in range(3)]
    return paths, mmapds.build(paths, out=tmp_path / "all.mmx", **TEXT)


SPOILED = {
    "changed": lambda path: Path(path).write_bytes(b"".join(LINES[5:9])),
    "of another time": lambda path: os.utime(path, ns=(0, 0)),
    "with other bytes": lambda path: flip(path, 100),
}


@pytest.mark.parametrize("how", SPOILED)
def test_a_source_that_changed_is_scanned_alone(shards, tmp_path, how):
    paths, out = shards
    SPOILED[how](paths[1])
    direct = built(paths, tmp_path / "direct.mmx", **TEXT)
    assert scanned(paths, out=out) == (os.path.getsize(paths[1]), direct)


def test_all_is_scanned_where_something_else_is_asked_for_or_the_index_is_damaged(shards, tmp_path):
    paths, out = shards
    for count, section in enumerate(("offsets", "column:length")):
        flip(out, Index(str(out)).sections[section].offset)
        Path(paths[1]).write_bytes(b"".join(LINES[5 : 9 + count]))
        direct = built(paths, tmp_path / "direct.mmx", **TEXT)
        size, found = scanned(paths, out=out)
        assert (size >= sizes(paths), found) == (True, direct)
    for options in ({"length": "bytes(text)"}, {"missing": "skip"}, {"validate": True}, {"force": True}):
        assert scanned(paths, out=out, **options)[0] == sizes(paths)


@pytest.mark.filterwarnings("ignore:.*records come twice")
def test_sources_that_are_added_are_scanned_alone(shards, tmp_path, write, monkeypatch):
    paths, out = shards
    more = [write(b"".join(LINES[:9]), "first.jsonl"), *paths[1:], write(b"".join(LINES[9:20]), "last.jsonl")]
    direct = built(more, tmp_path / "direct.mmx", **TEXT)
    assert scanned(more, out=out, **TEXT) == (sizes([more[0], more[-1]]), direct)
    done = command(*more, write(b'{"text": ""}\n', "one.jsonl"), "-o", out)
    assert ", kept 4 sources, scanned 1 source, " in done.stdout
    assert scanned([more[0], *more], out=out, **TEXT)[0] == 0, "one that is given twice is not"
    monkeypatch.setattr(current, "fingerprint", None)
    mmapds.open(out, build=True)  # which does not read sources of the same time


# ---- sources that grew -------------------------------------------------------------------------------------------


@pytest.fixture
def grown(write):
    """A source that was indexed, and has one record more."""
    path = write(b"".join(LINES[:-1]))
    mmapds.build(path, **TEXT)
    with open(path, "ab") as file:
        file.write(LINES[-1])
    return path


def test_of_a_source_that_grew_only_the_end_is_scanned_where_the_user_says_so(grown):
    direct, before = built([grown], Path(f"{grown}.direct.mmx"), **TEXT), Path(f"{grown}.mmx").read_bytes()
    assert scanned(grown, grown=True) == (len(LINES[-1]), direct)
    Path(f"{grown}.mmx").write_bytes(before)
    assert scanned(grown) == (os.path.getsize(grown), direct)
    Path(f"{grown}.mmx").write_bytes(before)
    flip(f"{grown}.mmx", Index(f"{grown}.mmx").sections["offsets"].offset + 80)
    assert scanned(grown, grown=True)[1] == direct, "a damaged index is not gone on with"


def test_a_source_among_many_that_grew(shards, tmp_path):
    paths, out = shards
    with open(paths[1], "ab") as file:
        file.write(b"".join(LINES[:12]))
    direct, reported = built(paths, tmp_path / "direct.mmx", **TEXT), []
    before = out.read_bytes()
    list(build_each(paths, Request(grown=True, report=reported.append), out))
    assert sum(reported) == sizes(paths)
    out.write_bytes(before)
    done = command(*paths, "-o", out, "--grown")
    assert ", kept 2 sources, appended to 1 source, " in done.stdout
    assert out.read_bytes() == direct


REWRITTEN = {
    "its first record": lambda path: path.write_bytes(path.read_bytes().replace(b'{"n": 0', b'{"n": 5', 1)),
    "an insertion": lambda path: path.write_bytes(path.read_bytes().replace(LINES[900], LINES[900] + b"\n")),
    "other content": lambda path: path.write_bytes(b"".join(LINES[::-1]) + LINES[0]),
    "a longer last line": lambda path: path.write_bytes(b"".join(LINES)[:-1].removesuffix(b"}") + b', "m": 1}\n'),
}


@pytest.mark.parametrize("case", REWRITTEN)
def test_a_source_that_grew_and_is_another_is_scanned_whole(write, case):
    path = write(b"".join(LINES)[:-1])
    mmapds.build(path, **TEXT)
    REWRITTEN[case](Path(path))
    direct = built([path], Path(f"{path}.direct.mmx"), **TEXT)
    assert scanned(path, grown=True) == (os.path.getsize(path), direct)


def test_a_bad_record_at_the_new_end_has_its_place(grown):
    with open(grown, "ab") as file:
        file.write(b'{"n": 1, "text": 5}\n')
    done = command(grown, "--grown")
    assert done.returncode == 1
    place = f"{grown}:2001 (byte {os.path.getsize(grown) - 20})"
    assert done.stderr.startswith(f"{place}: expected a string at `text`, found a number")
    assert done.stderr.endswith("(record 2000 of the index)\n")


@given(
    text=st.lists(lines, max_size=12).map("\n".join), cut=st.integers(0, 400), skip=st.booleans(), hashed=st.booleans()
)
def test_it_may_grow_from_anywhere(tmp_path_factory, hashed, text, cut, skip):
    """Also inside a line, a blank line or a line that is not JSON."""
    data = b'\xef\xbb\xbf{"n": 1, "text": "there is one"}\n\n{"n": 2, "text": "or two"}\n' + text.encode()
    path = tmp_path_factory.mktemp("grown") / "train.jsonl"
    columns = {"length": "bytes()", "n": "n"}
    options = {"format": "jsonl", "columns": columns, "missing": "skip" if skip else -7, "bad": "skip"}
    with pytest.WarningsRecorder(_ispytest=True):
        path.write_bytes(data[: len(data) - cut] if cut < len(data) - 40 else data[:40])
        mmapds.build(path, hash=hashed, **options)
        path.write_bytes(data)
        mmapds.build(path, format="jsonl", grown=True)
        found = Path(f"{path}.mmx").read_bytes()
        assert found == built([path], path.with_name("direct.mmx"), hash=hashed, **options)


@given(
    sizes=st.lists(st.sampled_from([2, 30, 3_000, 70_000]), min_size=2, max_size=90),
    more=st.lists(st.sampled_from([2, 3_000, 70_000]), min_size=1, max_size=30),
)
def test_bounds_of_any_width_are_appended_to(tmp_path_factory, sizes, more):
    directory = tmp_path_factory.mktemp("widths")
    path, out = directory / "a.txt", directory / "all.mmx"
    first, rest = (b"".join(b"1" * (size - 1) + b"\n" for size in each) for each in (sizes, more))
    path.write_bytes(first)
    mmapds.build(path, out=out)
    path.write_bytes(first + rest)
    mmapds.build(path, out=out, grown=True)
    assert out.read_bytes() == built([path], directory / "direct.mmx")


@pytest.mark.parametrize("name", ["prefixed", "tfrecord", "fixed", "npy", "tar", "megatron", "arrays"])
def test_sources_of_every_format_may_grow(tmp_path, name):
    """Those whose records follow one another are gone on with, others are scanned whole."""
    whole, path = (Path(write_source(tmp_path, name, number, count)) for number, count in ((1, 300), (0, 250)))
    if name in ("prefixed", "tfrecord"):
        end = Index(str(mmapds.build(whole, **OPTIONS[name]))).bounds(0, 250, 251)[0]
        path.write_bytes(whole.read_bytes()[:end])
    mmapds.build(path, **OPTIONS[name])
    for suffix in {path.suffix, ".idx"} if name == "megatron" else {path.suffix}:
        os.replace(whole.with_suffix(suffix), path.with_suffix(suffix))
    (done,) = build_each([str(path)], Request(grown=True))
    assert ("appended" in done.reused) == (name in ("prefixed", "tfrecord"))
    assert Path(f"{path}.mmx").read_bytes() == built([path], tmp_path / "direct.mmx", **OPTIONS[name])


def test_an_incomplete_record_that_was_dropped_may_be_complete_now(tmp_path):
    path = tmp_path / "a.bin"
    records = b"".join(struct.pack("<I", size) + b"x" * size for size in range(50))
    for data, count in ((records[:-7], 49), (records, 50)):
        path.write_bytes(data)
        mmapds.build(path, format="prefixed", truncated="drop", grown=True)
        assert len(mmapds.open(path)) == count
        verify(Index(f"{path}.mmx"))


# ---- indexes that are merged -------------------------------------------------------------------------------------

COUNTS = (3, 0, 1, 70_000, 12)
"""Records of each source: more than a piece of a scan in one of them."""


@pytest.mark.parametrize("name", OPTIONS)
def test_a_merged_index_is_the_one_that_is_built(tmp_path, name):
    counts = COUNTS if name in ("jsonl", "prefixed") else [min(count, 300) for count in COUNTS]
    paths = [write_source(tmp_path, name, number, count) for number, count in enumerate(counts)]
    direct = built(paths, tmp_path / "all.mmx", **OPTIONS[name])
    parts = [tmp_path / "a.mmx", tmp_path / "b.mmx", tmp_path / "c.mmx"]
    for part, members in zip(parts, (paths[:2], paths[2:3], paths[3:]), strict=True):
        mmapds.build(members, out=part, **OPTIONS[name])
    merged = mmapds.merge(parts, out=tmp_path / "all.mmx")
    assert merged.read_bytes() == direct
    verify(Index(str(merged)))
    assert mmapds.merge(merged, out=tmp_path / "again.mmx").read_bytes() == direct


@pytest.mark.filterwarnings("ignore:.*such lines? left out")
@given(
    parts=st.lists(st.lists(texts, min_size=1, max_size=3), min_size=1, max_size=4),
    missing=st.sampled_from(["skip", 7, math.nan]),
)
def test_merged_indexes_have_the_types_and_totals_of_one_that_is_built(tmp_path_factory, parts, missing):
    directory = tmp_path_factory.mktemp("parts")
    columns = {"length": "bytes()", "n": "n", "chars": "chars(text)"}
    options = {"columns": columns, "missing": missing, "bad": "skip", "format": "jsonl"}
    indexes, paths = [], []
    for number, members in enumerate(parts):
        first = len(paths)
        for text in members:
            paths.append(directory / f"{len(paths)}.jsonl")
            paths[-1].write_text(FIRST + text)
        indexes.append(mmapds.build(paths[first:], out=directory / f"part-{number}.mmx", **options))
    direct = built(paths, directory / "all.mmx", **options)
    assert mmapds.merge(indexes, out=directory / "all.mmx").read_bytes() == direct


@pytest.fixture
def two(write):
    """Two sources with an index each; their paths."""
    paths = [write([{"n": n, "text": "x" * n} for n in range(k, 30 + k)], f"{k}.jsonl") for k in range(2)]
    mmapds.build(paths, **TEXT)
    return paths


def indexes(paths):
    return [f"{path}.mmx" for path in paths]


def test_the_command_merges(two, tmp_path):
    out = tmp_path / "all.mmx"
    direct = built(two, out, **TEXT)
    done = command(tmp_path / "*.mmx", "--merge", "-o", out)
    assert (done.returncode, done.stderr, out.read_bytes()) == (0, "", direct)
    assert done.stdout.startswith(f"{out}: 60 records in 2 sources, ")
    assert ", merged, " in done.stdout
    done = command(*indexes(two), "--merge", "-o", out, "--missing", "0")
    assert done.returncode == 2
    assert done.stderr.startswith("--missing: expected no option for how to index with --merge")


def test_hashes_and_times_are_kept_and_hashes_completed(two, tmp_path):
    plain, hashed = (built(two, tmp_path / "all.mmx", hash=each, **TEXT) for each in (False, True))
    times = os.stat(two[0])
    os.utime(two[0], ns=(0, 0))
    out = mmapds.merge(indexes(two)[:1], out=tmp_path / "all.mmx")
    assert mmapds.merge([out, indexes(two)[1]], out=out).read_bytes() == plain, "an index is merged into itself"
    os.utime(two[0], ns=(times.st_atime_ns, times.st_mtime_ns))
    for path in two[::-1]:
        mmapds.build(path, hash=True)
        assert mmapds.merge(two, out=out).read_bytes() == hashed


def test_columns_that_were_computed_are_merged_and_not_lost(two, tmp_path):
    for path in two:
        mmapds.add_column(path, "double", lambda sample: 2 * sample["n"], workers=1)
        mmapds.add_column(path, "length", lambda sample: sample["n"], workers=1)
    out = mmapds.merge(two, out=tmp_path / "all.mmx")
    verify(Index(str(out)))
    ds = mmapds.open(out)
    assert ds.column("double").tolist() == [2 * sample["n"] for sample in ds]
    assert ds.lengths.tolist() == [sample["n"] for sample in ds]
    mmapds.build(two, force=True, **TEXT)
    for column in ("z", "length"):
        mmapds.build(two, out=out, force=True, columns={"length": "chars(text)"} if column == "z" else {})
        mmapds.add_column(out, column, np.arange(60))
        with pytest.raises(
            mmapds.ColumnError, match=f"{out}: columns: expected those .* to merge, found '{column}', too"
        ):
            mmapds.merge(two, out=out)
        assert mmapds.open(out).column(column).tolist() == list(range(60))


def forged(at, **metadata):
    """Forge the index of a source."""
    return lambda paths: rewrite(f"{paths[at]}.mmx", metadata=lambda found: found | metadata)


def unknown_section(paths):
    sections = Index(f"{paths[1]}.mmx").metadata["sections"]
    forged(1, sections=sections | {"blocks": sections["offsets"]})(paths)


def of_another_format(**options):
    """Index the second source as another format, or both with other options."""

    def make(paths):
        for path in paths[0 if options else 1 :]:
            os.unlink(f"{path}.mmx")
            Path(path).write_bytes(b"\0\0\0\0" * 9)
            mmapds.build(path, format="prefixed", **(options if path == paths[1] else {}))

    return make


def measured_otherwise(paths):
    mmapds.build(paths[1], length="bytes(text)")


def of_both(paths):
    mmapds.build(paths, out=f"{paths[0]}.mmx", force=True, **TEXT)


def flipped(paths):
    flip(f"{paths[1]}.mmx", Index(f"{paths[1]}.mmx").sections["offsets"].offset)


@pytest.mark.parametrize(
    ("spoil", "kind", "message"),
    [
        (lambda paths: Path(paths[1]).write_bytes(b""), mmapds.StaleIndexError, r"1\.jsonl\.mmx: STALE: 1\.jsonl was "),
        (lambda paths: os.unlink(paths[1]), mmapds.SourceError, r"1\.jsonl: no such file"),
        (lambda paths: os.unlink(f"{paths[1]}.mmx"), mmapds.SourceError, r"1\.jsonl\.mmx: no such file"),
        (unknown_section, mmapds.FormatError, "VERSION: expected sections that .* found 'blocks'"),
        (forged(0, format="of tomorrow"), mmapds.FormatError, "VERSION: expected one of the formats"),
        (of_another_format(), mmapds.FormatError, "format: expected 'jsonl', as in .*, found 'prefixed'"),
        (of_another_format(truncated="drop"), mmapds.FormatError, r"truncated: expected .*, found 'drop'"),
        (measured_otherwise, mmapds.ColumnError, "expressions: expected .*chars.* found .*bytes"),
        (flipped, mmapds.FormatError, r"1\.jsonl\.mmx: DAMAGED: section 'offsets' does not match its checksum"),
        (of_both, mmapds.SourceError, r"expected each source once, found .*1\.jsonl in"),
    ],
)
def test_what_cannot_be_merged_is_an_error_and_the_old_index_stays(two, tmp_path, spoil, kind, message):
    out = mmapds.merge(two[:1], out=tmp_path / "all.mmx")
    before = out.read_bytes()
    spoil(two)
    there = sorted(os.listdir(tmp_path))
    with pytest.raises(kind, match=message):
        mmapds.merge(indexes(two), out=out)
    assert out.read_bytes() == before
    assert sorted(os.listdir(tmp_path)) == there
