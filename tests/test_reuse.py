"""A build keeps what the index before it knows, and scans the rest: byte for byte what a scan of everything writes."""

import json
import os
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mmapds
from mmapds.index.build import Request, build_each
from mmapds.index.verify import verify
from mmapds.storage import current
from mmapds.storage.index_file import Index
from tests.support.commands import command
from tests.support.files import flip
from tests.support.indexes import OPTIONS, built, write_source
from tests.test_merge import lines

LINES = [json.dumps({"n": n, "text": "x" * (n % 50)}).encode() + b"\n" for n in range(20_000)]


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


@pytest.fixture
def shards(write, tmp_path):
    """Three sources, and the path of an index of all."""
    paths = [write(b"".join(LINES[k::3]), f"{k}.jsonl") for k in range(3)]
    return paths, mmapds.build(paths, out=tmp_path / "all.mmx", length="chars(text)")


@pytest.mark.parametrize("name", OPTIONS)
def test_the_sources_that_did_not_change_are_kept(tmp_path, name):
    """However many runs of them there are: orders and keys are not read for each."""
    paths = [write_source(tmp_path, name, number, 100) for number in range(30)]
    out = mmapds.build(paths, out=tmp_path / "all.mmx", **OPTIONS[name])
    for number, path in enumerate(paths[::2]):
        os.replace(write_source(tmp_path, name, 100 + number, 90), path)
        if name == "megatron":
            os.replace(path_of_idx(paths[0], 100 + number), path_of_idx(paths[0], 2 * number))
    direct, read = built(paths, tmp_path / "direct.mmx", **OPTIONS[name]), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Index, "read", lambda *args, whole=Index.read: read.append(args[2]) or whole(*args))
        (done,) = build_each([str(out)], Request())
    assert done.reused == "kept 15 sources, scanned 15 sources"
    assert out.read_bytes() == direct
    assert sum(read) < 4 * len(direct) or name not in ("jsonl", "tar")
    verify(Index(str(out)))


def path_of_idx(path, number):
    return Path(path).with_name(f"megatron-{number}.idx")


@pytest.mark.filterwarnings("ignore:.*records come twice")
def test_a_source_that_is_given_twice_is_kept(shards):
    paths, out = shards
    twice = [paths[0], *paths]
    assert scanned(twice, out=out, length="chars(text)")[0] == 0
    built_now = os.stat(out)
    assert scanned(twice, out=out, length="chars(text)")[0] == 0
    assert os.path.samestat(os.stat(out), built_now)


@pytest.mark.filterwarnings("ignore:.*records come twice")
def test_many_records_of_one_source_do_not_need_the_type_of_another(write, tmp_path):
    paths, out = [write([{"n": n}], f"{n}.jsonl") for n in (1, 2**40)], tmp_path / "all.mmx"
    mmapds.build(paths, out=out, columns={"n": "n"})
    twice = [paths[0], paths[0]]
    found = mmapds.build(twice, out=out, columns={"n": "n"}).read_bytes()
    assert found == built(twice, tmp_path / "direct.mmx", columns={"n": "n"})


def test_an_open_that_builds_does_not_read_sources_of_the_same_time(shards, monkeypatch):
    _, out = shards
    monkeypatch.setattr(current, "fingerprint", None)
    assert len(mmapds.open(out, build=True)) == len(LINES)


OTHERS = {
    "changed": lambda path: Path(path).write_bytes(b"".join(LINES[5:9])),
    "another time": lambda path: os.utime(path, ns=(0, 0)),
    "other bytes": lambda path: flip(path, 100),
}


@pytest.mark.parametrize("case", OTHERS)
def test_a_source_that_changed_is_scanned(shards, tmp_path, case):
    paths, out = shards
    OTHERS[case](paths[1])
    direct = built(paths, tmp_path / "direct.mmx", length="chars(text)")
    assert scanned(paths, out=out) == (os.path.getsize(paths[1]), direct)


ALL_OTHERS = {
    "another expression": {"length": "bytes(text)"},
    "another answer to missing fields": {"missing": "skip"},
    "validated": {"validate": True},
    "forced": {"force": True},
}


@pytest.mark.parametrize("case", ALL_OTHERS)
def test_all_is_scanned_where_something_else_is_asked_for(shards, case):
    paths, out = shards
    assert scanned(paths, out=out, **ALL_OTHERS[case])[0] == sum(map(os.path.getsize, paths))


@pytest.mark.parametrize("section", ["offsets", "column:length"])
def test_all_is_scanned_where_the_index_is_damaged(shards, tmp_path, section):
    paths, out = shards
    flip(out, Index(str(out)).sections[section].offset)
    Path(paths[1]).write_bytes(b"".join(LINES[5:9]))
    direct = built(paths, tmp_path / "direct.mmx", length="chars(text)")
    size, found = scanned(paths, out=out)
    assert (size >= sum(map(os.path.getsize, paths)), found) == (True, direct)


def test_sources_that_are_added_are_scanned_alone(shards, tmp_path, write):
    paths, out = shards
    more = [write(b"".join(LINES[:9]), "first.jsonl"), *paths[1:], write(b"".join(LINES[9:20]), "last.jsonl")]
    direct = built(more, tmp_path / "direct.mmx", length="chars(text)")
    size, found = scanned(more, out=out, length="chars(text)")
    assert (size, found) == (os.path.getsize(more[0]) + os.path.getsize(more[-1]), direct)
    done = command(*more, write(b"{}", "one.jsonl"), "-o", out, "--missing", "skip")
    assert "scanned" not in done.stdout  # as everything is, for another answer to missing fields
    assert command(*more[1:], "-o", out, "--missing", "skip").stdout.count(", kept 3 sources, ") == 1


# Sources that grew


@pytest.fixture
def grown(write):
    """A source that was indexed, and has one record more."""
    path = write(b"".join(LINES[:-1]))
    mmapds.build(path, length="chars(text)")
    with open(path, "ab") as file:
        file.write(LINES[-1])
    return path


def test_a_source_that_grew_is_scanned_from_its_old_end_on(grown):
    direct = built([grown], Path(f"{grown}.direct.mmx"), length="chars(text)")
    done = command(grown, "--grown")
    assert f"20,000 records, {os.path.getsize(grown):,} bytes" in done.stdout
    assert ", appended to 1 source, " in done.stdout
    assert Path(f"{grown}.mmx").read_bytes() == direct
    verify(Index(f"{grown}.mmx"))


def test_only_the_end_is_read(grown):
    assert scanned(grown, grown=True)[0] == len(LINES[-1])


def test_a_text_that_grew_in_its_last_line_is_scanned_whole(write):
    path = write(b"".join(LINES[:9])[:-1])
    mmapds.build(path, length="chars(text)")
    with open(path, "ab") as file:
        file.write(b"\n" + LINES[9])
    direct = built([path], Path(f"{path}.direct.mmx"), length="chars(text)")
    assert scanned(path, grown=True) == (os.path.getsize(path), direct)


def test_a_source_that_grew_is_scanned_whole_unless_the_user_says_so(grown):
    assert scanned(grown)[0] == os.path.getsize(grown)


def test_an_open_dataset_keeps_its_length(grown):
    with open(grown, "r+b") as file:
        file.truncate(os.path.getsize(grown) - len(LINES[-1]))
    mmapds.build(grown)
    ds = mmapds.open(grown)
    last = ds[-1]
    with open(grown, "ab") as file:
        file.write(LINES[-1])
    mmapds.build(grown)
    assert (len(ds), ds[-1], len(ds.lengths)) == (len(LINES) - 1, last, len(LINES) - 1)
    assert len(mmapds.open(grown)) == len(LINES)


def test_a_source_among_many_that_grew(shards, tmp_path):
    paths, out = shards
    with open(paths[1], "ab") as file:
        file.write(b"".join(LINES[:12]))
    direct = built(paths, tmp_path / "direct.mmx", length="chars(text)")
    done = command(*paths, "-o", out, "--grown")
    assert ", kept 2 sources, appended to 1 source, " in done.stdout
    assert out.read_bytes() == direct


def edit(path, at, data):
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(data)


REWRITTEN = {
    "its first record": lambda path: edit(path, 6, b"5"),
    "an insertion in its middle": lambda path: Path(path).write_bytes(
        Path(path).read_bytes().replace(LINES[9_000], LINES[9_000] + b"\n")
    ),
    "other content": lambda path: Path(path).write_bytes(b"".join(LINES[::-1]) + LINES[0]),
}


@pytest.mark.parametrize("case", REWRITTEN)
def test_a_source_that_grew_and_is_another_is_scanned_whole(grown, case):
    REWRITTEN[case](grown)
    direct = built([grown], Path(f"{grown}.direct.mmx"), length="chars(text)")
    size, found = scanned(grown, grown=True)
    assert (size, found) == (os.path.getsize(grown), direct)


def test_a_damaged_index_is_not_gone_on_with(grown):
    flip(f"{grown}.mmx", Index(f"{grown}.mmx").sections["offsets"].offset + 80)
    direct = built([grown], Path(f"{grown}.direct.mmx"), length="chars(text)")
    assert scanned(grown, grown=True)[1] == direct


def test_a_bad_record_at_the_new_end_has_its_place(grown):
    with open(grown, "ab") as file:
        file.write(b'{"n": 1, "text": 5}\n')
    size = os.path.getsize(grown) - 20
    done = command(grown, "--grown")
    assert done.returncode == 1
    assert done.stderr.startswith(f"{grown}:20001 (byte {size}): expected a string at `text`, found a number")
    assert done.stderr.endswith("(record 20000 of the index)\n")


@pytest.mark.parametrize("hashed", [False, True])
@settings(max_examples=100)
@given(text=st.lists(lines, max_size=12).map("\n".join), cut=st.integers(0, 400), skip=st.booleans())
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


@pytest.mark.parametrize("name", ["prefixed", "tfrecord", "fixed", "npy", "tar", "megatron", "arrays"])
@pytest.mark.parametrize("first", [1, 2, 250])
def test_sources_of_every_format_may_grow(tmp_path, name, first):
    """Those whose records follow one another are gone on with, others are scanned whole."""
    path = Path(write_source(tmp_path, name, 0, 300))
    data, beside = path.read_bytes(), path.with_suffix(".idx")
    ends = Index(str(mmapds.build(path, **OPTIONS[name])))
    direct = Path(f"{path}.mmx").read_bytes()
    if name in ("prefixed", "tfrecord"):
        path.write_bytes(data[: ends.bounds(0, first, first + 1)[0]])
    else:
        write_source(tmp_path, name, 0, first)
    Path(f"{path}.mmx").unlink(missing_ok=True)
    mmapds.build(path, **OPTIONS[name])
    times = os.stat(path)
    write_source(tmp_path, name, 0, 300)
    path.write_bytes(data)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    done = command(path, "--grown")
    assert done.returncode == 0, done.stderr
    assert ("appended" in done.stdout) == (name in ("prefixed", "tfrecord"))
    assert without_times(f"{path}.mmx") == without_times_of(direct, tmp_path)
    assert beside.exists() == (name == "megatron")


def without_times(index):
    found = Index(str(index))
    sources = [source._replace(mtime_ns=0, fingerprint="") for source in found.sources]
    return sources, found.parameters.keys(), [bytes(found.section(name)) for name in found.sections]


def without_times_of(data, tmp_path):
    copy = tmp_path / "copy.mmx"
    copy.write_bytes(data)
    return without_times(copy)


def test_an_incomplete_record_that_was_dropped_may_be_complete_now(tmp_path):
    path = tmp_path / "a.bin"
    records = b"".join(struct.pack("<I", size) + b"x" * size for size in range(50))
    path.write_bytes(records[:-7])
    mmapds.build(path, format="prefixed", truncated="drop")
    path.write_bytes(records)
    mmapds.build(path, format="prefixed", truncated="drop", grown=True)
    assert len(mmapds.open(path)) == 50
    verify(Index(f"{path}.mmx"))


def test_what_is_reported_is_all_of_the_sources(grown, shards):
    for paths, out in (([grown], None), shards):
        reported = []
        list(build_each(paths, Request(columns={"length": "chars(text)"}, grown=True, report=reported.append), out))
        assert sum(reported) == sum(map(os.path.getsize, paths))


@settings(max_examples=40)
@given(
    sizes=st.lists(st.sampled_from([2, 30, 3_000, 70_000]), min_size=2, max_size=90),
    more=st.lists(st.sampled_from([2, 3_000, 70_000]), min_size=1, max_size=30),
)
def test_bounds_of_any_width_are_appended_to(tmp_path_factory, sizes, more):
    directory = tmp_path_factory.mktemp("widths")
    path, out = directory / "a.txt", directory / "all.mmx"
    first = b"".join(b"1" * (size - 1) + b"\n" for size in sizes)
    rest = b"".join(b"1" * (size - 1) + b"\n" for size in more)
    path.write_bytes(first)
    mmapds.build(path, out=out)
    with open(path, "ab") as file:
        file.write(rest)
    mmapds.build(path, out=out, grown=True)
    assert out.read_bytes() == built([path], directory / "direct.mmx")
