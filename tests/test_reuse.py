"""A build keeps what the index before it knows, --merge joins indexes: both write what a scan of everything writes."""

import json
import math
import os
import struct
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mmapds
from mmapds.index.build import Request
from mmapds.index.each import build_each
from mmapds.storage import current, sections
from mmapds.storage.index_file import Index
from tests.support.files import flip
from tests.support.formats import KINDS, built, write_source
from tests.support.index_file import verify

LINES = [json.dumps({"n": n, "text": "x" * (n % 50)}).encode() + b"\n" for n in range(2_000)]
TEXT = {"length": "chars(text)"}


@pytest.fixture(autouse=True, scope="module")
def small_pieces():
    """Sections are copied piece by piece, and these tests have small ones."""
    with patch.object(sections, "_PIECE", 256):
        yield


def scanned(paths, **options):
    """How many bytes of sources a build scans, after which the index is the one that is built from them alone."""
    jsonl, scans = mmapds.formats.FORMATS["jsonl"], []

    def spy(sources, *args, scan=jsonl.scan, **more):
        scans.extend(source.stop - source.begin for source in sources)
        return scan(sources, *args, **more)

    with patch.object(jsonl, "scan", spy, create=True):
        found = mmapds.build(paths, **options).read_bytes()
    return sum(scans), found


def sizes(paths):
    return sum(map(os.path.getsize, paths))


# ---- sources come, go, grow and change ---------------------------------------------------------------------------

FIRST = '{"n": 1, "text": "there is one"}\n'


def append(sources, at, text):
    sources[at].write_text(sources[at].read_text() + text)


def replace(sources, at, text):
    sources[at].write_text(FIRST + text)


def add(sources, at, text):
    sources.insert(at, sources[at].with_name(f"{len(list(sources[at].parent.iterdir()))}.jsonl"))
    replace(sources, at, text)


def remove(sources, at, _):
    del sources[at : at + (len(sources) > 1)]


SMALL = st.integers(0, 99)
ANY = SMALL | st.sampled_from([2**32, 2**63 - 2**10, 2**63, 2**64 - 2**11, -1, -(2**53), -(2**63), 5.0, 0.5])


def histories(numbers):
    """What sources hold, and what becomes of them; where they end without a newline, more goes on with that line."""
    line = st.builds(lambda n, size: json.dumps({"n": n, "text": "x" * size}), numbers, st.integers(0, 40))
    lines = line | st.sampled_from(['{"text": "lacks n"}', '{"n": 1}', '{"n": 1, "te', "nonsense", "", "  "])
    texts = st.builds("{}{}".format, st.lists(lines, max_size=6).map("\n".join), st.sampled_from(["", "\n", "\n \n"]))
    changes = st.tuples(st.sampled_from([append, append, replace, add, remove]), st.integers(0, 9), texts)
    steps = st.lists(st.lists(changes, min_size=1, max_size=2), min_size=1, max_size=4)
    return st.tuples(st.lists(texts, min_size=1, max_size=4), steps)


def check(directory, begin, steps, options, mark=""):
    """Build after each step with what the last index knows, and merge; compare both with a build of everything."""
    sources, out = [directory / f"{number}.jsonl" for number in range(len(begin))], directory / "all.mmx"
    for path, text in zip(sources, begin, strict=True):
        path.write_text(f"{mark}{FIRST}{text}")
    for step in [(), *steps]:
        for change, at, text in step:
            change(sources, at % len(sources), text)
        mmapds.build(sources, out=out, grown=True, **options)
        found = out.read_bytes()
        verify(Index(str(out)))
        direct = built(sources, directory / "direct.mmx", **options)
        assert found == direct
        parts = mmapds.build(sources[:1], **options), mmapds.build(sources[1:] or sources, out=out, **options)
        assert len(sources) == 1 or mmapds.merge(parts, out=directory / "merged.mmx").read_bytes() == direct
        out.write_bytes(found)


@pytest.mark.filterwarnings("ignore:.*such lines? left out")
@given(
    history=histories(SMALL) | histories(SMALL) | histories(ANY),  # of large numbers and others, all is scanned
    missing=st.sampled_from(["skip", 7, math.nan]),
    mark=st.sampled_from(["", "\ufeff"]),
    hashed=st.booleans(),
)
def test_each_is_the_index_of_a_build_of_everything(tmp_path_factory, history, missing, mark, hashed):
    """Sources may grow inside a line, a blank line or a line that is not JSON."""
    columns = {"length": "bytes()", "n": "n", "chars": "chars(text)"}
    options = {"format": "jsonl", "columns": columns, "missing": missing, "bad": "skip", "hash": hashed}
    check(tmp_path_factory.mktemp("steps"), *history, options, mark)


@pytest.mark.parametrize("kind", KINDS)
def test_indexes_of_every_format_are_kept_and_merged(tmp_path, kind):
    counts = [3, 0, 1, 70_000 if kind in ("jsonl", "prefixed") else 300, *[40] * 26]  # one is many pieces of a scan
    paths = [write_source(tmp_path, kind, count, 40, number)[0] for number, count in enumerate(counts)]
    options = {"length": "bytes()", "columns": {"size": "bytes()"}, **KINDS[kind].options}
    out = mmapds.build(paths, out=tmp_path / "all.mmx", **options)
    for number in range(4, 30, 2):
        write_source(tmp_path, kind, 35, 40, number)
    direct = built(paths, tmp_path / "direct.mmx", **options)
    (done,) = build_each([str(out)], Request())
    assert (done.reused, out.read_bytes()) == ("kept 17 sources, scanned 13 sources", direct)
    parts = [(paths[:2], "a.mmx"), (paths[2:3], "b.mmx"), (paths[3:], "c.mmx")]
    indexes = [mmapds.build(members, out=tmp_path / part, **options) for members, part in parts]
    for those in (indexes, out):
        assert mmapds.merge(those, out=tmp_path / "merged.mmx").read_bytes() == direct
    verify(Index(str(out)))


@pytest.fixture
def shards(write, tmp_path):
    """Three sources, and the path of an index of all."""
    paths = [write(b"".join(LINES[k::3]), f"{k}.jsonl") for k in range(3)]
    return paths, mmapds.build(paths, out=tmp_path / "all.mmx", **TEXT)


def of(data):
    return lambda path, _: path.write_bytes(data)


def flip_section(index, name="offsets"):
    flip(index, Index(str(index)).sections[name].offset)


def damaged(section):
    """Damage the index, and change the source, so that it is looked at."""
    return lambda path, out: (flip_section(out, section), path.write_bytes(LINES[5]))


def unchanged(*_):
    pass


SECOND, MORE, GROWN = b"".join(LINES[1::3]), b"".join(LINES[:12]), {"grown": True}


@pytest.mark.parametrize(
    ("change", "options", "scans"),
    [
        (of(b"".join(LINES[5:9])), {}, "the source"),
        (lambda path, _: os.utime(path, ns=(0, 0)), {}, "the source"),
        (lambda path, _: flip(path, 100), {}, "the source"),
        (of(SECOND + MORE), {}, "the source"),
        (of(SECOND + MORE), GROWN, "its end"),
        (of(SECOND.replace(b'"n": 1,', b'"n": 5,', 1) + MORE), GROWN, "the source"),
        (of(SECOND.replace(LINES[400], LINES[400] + b"\n")), GROWN, "the source"),
        (damaged("offsets"), {}, "all"),
        (damaged("column:length"), {}, "all"),
        (unchanged, {"length": "bytes(text)"}, "all"),
        (unchanged, {"missing": "skip"}, "all"),
        (unchanged, {"validate": True}, "all"),
        (unchanged, {"force": True}, "all"),
    ],
)
def test_what_is_scanned_again(shards, tmp_path, change, options, scans):
    paths, out = shards
    change(Path(paths[1]), out)
    direct = built(paths, tmp_path / "direct.mmx", **{**TEXT, **options, "force": True})
    size, found = scanned(paths, out=out, **options)
    assert found == direct
    assert size == {"its end": len(MORE), "the source": os.path.getsize(paths[1])}.get(scans, size)
    assert (size >= sizes(paths)) == (scans == "all")


@pytest.mark.filterwarnings("ignore:.*records come twice")
def test_sources_that_are_added_are_scanned_alone(shards, tmp_path, write, monkeypatch, index):
    paths, out = shards
    more = [write(b"".join(LINES[:9]), "first.jsonl"), *paths[1:], write(b"".join(LINES[9:20]), "last.jsonl")]
    direct = built(more, tmp_path / "direct.mmx", **TEXT)
    assert scanned(more, out=out, **TEXT) == (sizes([more[0], more[-1]]), direct)
    done = index(*more, write(b'{"text": ""}\n', "one.jsonl"), "-o", out)
    assert ", kept 4 sources, scanned 1 source, " in done.stdout
    append(list(map(Path, more)), 1, LINES[0].decode())
    reported, (done,) = [], build_each(more, Request(grown=True, report=lambda count: reported.append(count)), out)
    assert (done.reused, sum(reported)) == ("kept 3 sources, appended to 1 source", sizes(more))
    assert scanned([more[0], *more], out=out, **TEXT)[0] == 0, "one that is given twice is not"
    monkeypatch.setattr(current, "fingerprint", None)
    mmapds.open(out, build=True)  # which does not read sources of the same time


# ---- sources that grew -------------------------------------------------------------------------------------------


def test_a_bad_record_at_the_new_end_has_its_place(shards):
    path = shards[0][1]
    mmapds.build(path, **TEXT)
    Path(path).write_bytes(SECOND + b'{"n": 1, "text": 5}\n')
    with pytest.raises(mmapds.ColumnError) as wrong:
        mmapds.build(path, grown=True)
    records = SECOND.count(b"\n")
    what = "expected a string at `text`, found a number; leave such lines out with bad='skip'"
    assert str(wrong.value) == f"{path}:{records + 1} (byte {len(SECOND)}): {what} (record {records} of the index)"


def test_an_incomplete_record_that_was_dropped_may_be_complete_now(tmp_path):
    path = tmp_path / "a.bin"
    records = b"".join(struct.pack("<I", size) + b"x" * size for size in range(50))
    for data, count in ((records[:-7], 49), (records, 50)):
        path.write_bytes(data)
        mmapds.build(path, format="prefixed", truncated="drop", grown=True)
        assert len(mmapds.open(path)) == count
        verify(Index(f"{path}.mmx"))


# ---- indexes that are merged -------------------------------------------------------------------------------------


@pytest.fixture
def two(write):
    """Two sources with an index each; their paths."""
    paths = [write([{"n": n, "text": "x" * n} for n in range(k, 30 + k)], f"{k}.jsonl") for k in range(2)]
    mmapds.build(paths, **TEXT)
    return paths


def indexes(paths):
    return [f"{path}.mmx" for path in paths]


def test_hashes_and_times_are_kept_and_hashes_completed(two, tmp_path):
    plain, hashed = (built(two, tmp_path / "all.mmx", hash=each, **TEXT) for each in (False, True))
    times = os.stat(two[0])
    os.utime(two[0], ns=(0, 0))
    out = mmapds.merge(indexes(two)[:1], out=tmp_path / "all.mmx")
    assert mmapds.merge([out, indexes(two)[1]], out=out).read_bytes() == plain, "an index is merged into itself"
    os.utime(two[0], ns=(times.st_atime_ns, times.st_mtime_ns))
    mmapds.build(two[1], hash=True)
    assert mmapds.merge(two, out=out).read_bytes() == hashed


def test_columns_that_were_computed_are_merged_and_not_lost(two, tmp_path):
    for name in ("double", "length"):
        for path in two:
            mmapds.add_column(path, name, lambda sample: 2 * sample["n"], workers=1)
    out = mmapds.merge(two, out=tmp_path / "all.mmx")
    verify(Index(str(out)))
    ds = mmapds.open(out)
    assert ds.column("double").tolist() == ds.lengths.tolist() == [2 * sample["n"] for sample in ds]
    with pytest.warns(UserWarning, match="computed in Python, is dropped"):
        mmapds.build(two, force=True)
    with pytest.raises(mmapds.ColumnError, match=f"{out}: columns: expected those .* to merge, found 'double', "):
        mmapds.merge(two, out=out)
    assert mmapds.open(out).columns == ds.columns


def of_another_format(**options):
    """Index the second source as another format, or both with other options."""

    def make(paths):
        for path in paths[0 if options else 1 :]:
            os.unlink(f"{path}.mmx")
            Path(path).write_bytes(b"\0\0\0\0" * 9)
            mmapds.build(path, format="prefixed", **(options if path == paths[1] else {}))

    return make


def build_each_by(*expressions):
    return lambda paths: [mmapds.build(path, length=each) for path, each in zip(paths, expressions, strict=True)]


@pytest.mark.parametrize(
    ("spoil", "kind", "message"),
    [
        (lambda paths: Path(paths[1]).write_bytes(b""), mmapds.StaleIndexError, r"1\.jsonl\.mmx: STALE: 1\.jsonl was "),
        (lambda paths: os.unlink(paths[1]), mmapds.SourceError, r"1\.jsonl: no such file"),
        (lambda paths: os.unlink(f"{paths[1]}.mmx"), mmapds.SourceError, r"1\.jsonl\.mmx: no such file"),
        (of_another_format(), mmapds.FormatError, "format: expected 'jsonl', as in .*, found 'prefixed'"),
        (of_another_format(truncated="drop"), mmapds.FormatError, r"truncated: expected .*, found 'drop'"),
        (build_each_by("n", "chars(text)"), mmapds.ColumnError, "expressions: expected .*'n'.* found .*chars"),
        (build_each_by(len, any), mmapds.ColumnError, "functions: expected"),
        (
            lambda paths: flip_section(f"{paths[1]}.mmx"),
            mmapds.FormatError,
            r"1\.jsonl\.mmx: DAMAGED: section 'off",
        ),
        (
            lambda paths: mmapds.merge(paths, out=f"{paths[0]}.mmx"),
            mmapds.SourceError,
            "each source once, found ",
        ),
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
