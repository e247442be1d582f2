"""Whether a source is still the one that was indexed: copies are, edited ones are not; and --verify, which sees all."""

import json
import os
import pickle
import re
import warnings
from pathlib import Path

import numpy as np
import pytest
import xxhash

import mmapds
from mmapds.index import verify as module
from mmapds.index.verify import examine, work
from mmapds.storage import current
from mmapds.storage.current import check_source, fingerprint, full_hash
from mmapds.storage.digests import BLOCK, BLOCKS, COVERED
from mmapds.storage.index_file import Index
from tests.support.bounds import write_groups
from tests.support.files import patched, same_time
from tests.support.index_file import forge_section, rewrite, verify
from tests.support.tars import archive

RECORDS = 15_000
SAMPLED = 7 * (20 * RECORDS - BLOCK) // (BLOCKS - 1) + 5  # a byte of the eighth block
BETWEEN = SAMPLED + BLOCK + 20


@pytest.fixture
def corpus(write):
    """Records of 20 bytes, a little more than a fingerprint sees."""
    path = write(b"".join(b'{"n":%7d,"m":%d}\n' % (number, number % 10) for number in range(RECORDS)))
    assert COVERED < os.path.getsize(path) == 20 * RECORDS
    mmapds.build(path, length="n")
    return path


def touch(path):
    os.utime(path, ns=(1_234_567_890, 1_234_567_890))


def edit(path, at, *, keep_time=False):
    """Change a digit of the record that has byte `at`, in place: `m` becomes 7 or 8."""
    at = at // 20 * 20 + 17
    patched(path, at, b"8" if Path(path).read_bytes()[at : at + 1] == b"7" else b"7")
    if not keep_time:
        touch(path)


def quiet_open(path, **options):
    """Open without a warning."""
    with warnings.catch_warnings(action="error"):
        return mmapds.open(path, **options)


def oracle(data):
    size = len(data).to_bytes(8, "little")
    if len(data) <= 262_144:
        return xxhash.xxh3_64(size + data).hexdigest()
    begins = [block * (len(data) - 16_384) // 15 for block in range(16)]
    return xxhash.xxh3_64(size + b"".join(data[at : at + 16_384] for at in begins)).hexdigest()


def test_digests_are_what_the_specification_says(tmp_path):
    path = tmp_path / "x"
    for size in (0, 1, COVERED - 1, COVERED, COVERED + 1, 5 * COVERED):
        path.write_bytes(np.random.default_rng(size).bytes(size))
        found = fingerprint(str(path))
        assert (found.hex, found.size, found.mtime_ns) == (oracle(path.read_bytes()), size, os.stat(path).st_mtime_ns)
        assert full_hash(str(path)).hex == xxhash.xxh3_128(path.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("at", "keep_time", "refusing"),
    [
        *((at, True, ["sample", "full"]) for at in (0, SAMPLED, 20 * RECORDS - 1)),
        (BETWEEN, True, ["full"]),
        (SAMPLED, False, ["stat", "sample", "full"]),
        (BETWEEN, False, ["full"]),
    ],
)
@pytest.mark.filterwarnings("ignore:.*mtime changed")
def test_each_check_sees_what_it_says(corpus, at, keep_time, refusing):
    mmapds.build(corpus, hash=True)
    edit(corpus, at, keep_time=keep_time)
    for check in ("stat", "sample", "full", "none"):
        if check in refusing:
            with pytest.raises(mmapds.StaleIndexError, match="has other content"):
                mmapds.open(corpus, check=check)
        else:
            assert mmapds.open(corpus, check=check)[at // 20]["m"] in (7, 8)
    assert ("hashes" in examine(Index(f"{corpus}.mmx")).describe()["counts"]) == ("full" in refusing)


def test_another_size_is_refused_unless_nothing_is_compared(corpus):
    with open(corpus, "ab") as file:
        file.write(b'{"n":1}\n')
    for check in ("stat", "sample", "full"):
        with pytest.raises(mmapds.StaleIndexError, match="was 300000 bytes when indexed and is 300008 now"):
            mmapds.open(corpus, check=check)
    assert pickle.loads(pickle.dumps(quiet_open(corpus, check="none")))[1]["n"] == 1
    os.truncate(corpus, 30)
    ds = quiet_open(corpus, check="none")
    assert ds[0] == {"n": 0, "m": 0}
    with pytest.raises(mmapds.FormatError, match=r"record 2 of .*: expected bytes within 0 to 30, found 40 to 60"):
        ds[2]


def test_full_says_how_to_store_hashes_and_builds_keep_them(corpus, index):
    with pytest.raises(mmapds.Error, match=r"check = 'full': expected a hash of each source") as error:
        mmapds.open(corpus, check="full")
    (before,) = Index(f"{corpus}.mmx").sources
    assert index(*str(error.value).partition("; run: python -m mmapds.index ")[2].split()).returncode == 0
    (after,) = Index(f"{corpus}.mmx").sources
    assert after == before._replace(xxh3_128=xxhash.xxh3_128(Path(corpus).read_bytes()).hexdigest())
    with open(corpus, "ab") as file:
        file.write(b'{"n": 1}\n')
    for force in (False, True):
        mmapds.build(corpus, force=force)
        assert len(quiet_open(corpus, check="full")) == RECORDS + 1


# ---- copies ------------------------------------------------------------------------------------------------------


def test_a_copy_without_times_opens_with_a_warning_that_its_command_ends(corpus, index):
    mmapds.add_column(corpus, "square", np.arange(RECORDS) ** 2)
    touch(corpus)
    before = Path(f"{corpus}.mmx").read_bytes()
    with pytest.warns(UserWarning, match="mtime changed, sampled bytes are equal") as found:
        assert mmapds.open(corpus)[777] == {"n": 777, "m": 7}
    assert [each.filename for each in found] == [__file__]
    for options in ({"check": "sample"}, {"check": "none"}, {"check": "sample", "build": True}):
        assert int(quiet_open(corpus, **options).column("square")[99]) == 99**2
    with pytest.raises(mmapds.ColumnError, match="column 'square' was computed in Python and a rebuild loses it"):
        mmapds.build(corpus)
    assert Path(f"{corpus}.mmx").read_bytes() == before
    run = str(found[0].message).partition(" run: python -m mmapds.index ")[2].partition(" (")[0]
    assert index(*run.split()).returncode == 0
    assert quiet_open(corpus)[3]["n"] == 3
    verify(Index(f"{corpus}.mmx"))


def test_copies_that_are_compared_whole_need_no_warning_and_others_one_for_all(write, tmp_path):
    paths, small = [write(b"1\n" * COVERED, f"{number}.jsonl") for number in range(5)], write(b"1\n" * 100, "small")
    for path in (*paths, small):
        mmapds.build(path, format="jsonl")
        touch(path)
    with pytest.warns(UserWarning, match=rf"0.jsonl and 4 more: .*; run: python -m mmapds.index {tmp_path}") as found:
        mmapds.open(paths)
    assert (len(found), len(quiet_open(small))) == (1, 100)
    patched(small, 198, b"2\n")
    touch(small)
    with pytest.raises(mmapds.StaleIndexError, match="has other content"):
        mmapds.open(small)


# ---- when sources are compared -----------------------------------------------------------------------------------


def test_a_dataset_from_a_pickle_compares_a_source_again_only_if_it_changed(corpus, monkeypatch):
    digests, opened = [], current.open_regular
    monkeypatch.setattr(current, "open_regular", lambda path: digests.append(path) or opened(path))
    mmapds.build(corpus, hash=True)
    for check, compared in (("stat", 0), ("sample", 1), ("full", 1), ("none", 0)):
        digests.clear()
        ds = mmapds.open(corpus, check=check)
        assert ds[0]["n"] == 0
        assert pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(ds))))[6]["n"] == 6
        assert len(digests) == compared


def test_a_source_that_is_replaced_before_it_is_first_read_is_stale(corpus):
    datasets = mmapds.open(corpus), pickle.loads(pickle.dumps(mmapds.open(corpus)))
    edit(corpus, 0)
    for ds in datasets:
        with pytest.raises(mmapds.StaleIndexError, match=r"has other content \(same size, another time"):
            ds[1]
    with pytest.raises(mmapds.StaleIndexError, match="was replaced while it was opened; run: "):
        check_source(Index(str(mmapds.build(corpus))), 0, os.path.getsize(corpus), 1)
    ds = mmapds.open(corpus)
    with same_time(corpus), open(corpus, "ab") as file:
        file.write(b"{}\n")
    with pytest.raises(mmapds.StaleIndexError, match="was 300000 bytes when indexed and is 300003 now"):
        ds[1]


# ---- --verify: sections that were forged, with checksums that hold, are found ------------------------------------


def forge(path, name, change):
    """Change the numbers of a section, and make its checksum right again."""
    section = Index(str(path)).sections[name]
    numbers = np.frombuffer(Index(str(path)).section(name), section.dtype).copy()
    change(numbers)
    forge_section(path, name, numbers)
    forge_metadata(path, lambda found: found["sections"][name].update(xxh3=xxhash.xxh3_64(numbers).hexdigest()))


def assign(at, value):
    return lambda numbers: numbers.__setitem__(at, value)


def swap(one, other):
    return lambda numbers: numbers.__setitem__([one, other], numbers[[other, one]])


def forge_metadata(path, change):
    rewrite(str(path), metadata=lambda found: change(found) or found)


def built(write, name="train.jsonl"):
    path = write([{"n": n, "i": n - 3, "f": n + 0.5, "u": 2**63 + n} for n in (5, 3, 3, 9, 1)], name)
    mmapds.build(path, length="n", columns={name: name for name in "ifu"})
    return path


@pytest.fixture
def measured(write):
    return f"{built(write)}.mmx"


@pytest.fixture
def keyed(write):
    return str(mmapds.build(write(archive([(f"{number}.txt", b"x") for number in range(20)]), "a.tar")))


def only_problem(index):
    """The one problem of an index."""
    (problem,) = examine(Index(str(index))).problems
    assert re.search(r": DAMAGED: .*expected .*; run: python -m mmapds.index", str(problem.error)), problem.error
    return problem


@pytest.mark.parametrize(
    ("name", "change", "check", "message"),
    [
        ("length_order", assign(0, 0), "length_order", r"length_order\[0\] = 0, expected 3;"),
        ("length_order", swap(2, 3), "length_order", r"length_order\[2\] = 2, expected 1;"),
        ("length_values", assign(1, 9), "length_order", r"length_values\[1\] = 9, expected 5;"),
        ("length_counts", swap(0, 2), "length_order", "length_counts"),
        ("column:length", assign(2, 4), "columns", r"column:length\[2\] = 4, expected 3 \(record 2 of .*train"),
        ("key_records", swap(0, 1), "keys", r"key_records\[0\] = "),
        ("key_hashes", assign(0, 1), "keys", r"key_hashes\[0\] = 1, expected "),
    ],
)
def test_a_forged_section_is_found(measured, keyed, monkeypatch, name, change, check, message):
    monkeypatch.setattr(module, "_PIECE", 8)  # bytes that are compared at a time
    path = keyed if name.startswith("key_") else measured
    verify(Index(path))
    forge(path, name, change)
    problem = only_problem(path)
    assert problem.check == check
    assert re.search(f"DAMAGED: {message}", str(problem.error))


def test_the_record_of_a_combined_index_is_counted_in_its_source(write, tmp_path):
    paths = [write([{name: n} for n in range(9)], f"{name}.jsonl") for name in "ab"]
    out = mmapds.build(paths, out=tmp_path / "all.mmx", columns={"a": "a"}, missing=0)
    forge(out, "column:a", assign(11, 4))
    problem = only_problem(out)
    assert (problem.check, problem.source, problem.record) == ("columns", paths[1], 2)


OTHER_TYPES = {"column:i": "<u8", "column:f": "<i8", "column:u": "<f8"}  # as wide, so bytes and checksums stay


@pytest.mark.parametrize("name", ["records", "lines", "smallest", "largest", "skipped", *OTHER_TYPES])
def test_a_forged_total_of_a_source_or_type_of_a_column_is_found(measured, name):
    def change(metadata):
        if name in OTHER_TYPES:
            metadata["sections"][name]["dtype"] = OTHER_TYPES[name]
        else:
            metadata["sources"][0][name] += 1

    forge_metadata(measured, change)
    with pytest.raises(mmapds.FormatError, match=r"DAMAGED: .*expected"):
        verify(Index(measured))


def test_forged_parameters_are_found(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(64, dtype=np.int32))
    for forged in ({"dtype": "<i2"}, {"dtype": None}, {"shape": [4]}, {"record_bytes": 2}):
        index = mmapds.build(tmp_path / "a.npy", force=True)
        forge_metadata(index, lambda metadata, forged=forged: metadata["parameters"].update(forged))
        assert only_problem(index).check == "parameters"


def test_every_byte_of_the_bounds_is_compared(write):
    """Also the end of the last record of each group, which the next group has once more."""
    path = write(b"".join(b'"%s"\n' % (b"x" * (50 if n == 20 else n % 7)) for n in range(60)))
    index = str(mmapds.build(path))
    section = Index(index).sections["offsets"]
    whole, found = Path(index).read_bytes()[section.offset : section.offset + section.size], []
    for at in range(len(whole)):
        write_groups(index, whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :], seal=True)
        found += [(str(problem.error), problem.record) for problem in examine(Index(index)).problems[:1]]
        assert re.search("DAMAGED: .*expected ", found[at][0])
    assert "DAMAGED: offsets[7] = " in found[62][0]
    assert {record for said, record in found if "the last record of" in said} == {59}


# ---- what --verify says ------------------------------------------------------------------------------------------


def test_all_indexes_are_verified_and_every_problem_is_a_line_or_an_object_of_json(write, index):
    good, bad, gone, torn = (built(write, f"{name}.jsonl") for name in ("good", "bad", "gone", "torn"))
    forge(f"{bad}.mmx", "length_order", assign(1, 4))
    forge(f"{bad}.mmx", "column:length", assign(0, 6))
    os.unlink(f"{gone}.mmx")
    os.truncate(f"{torn}.mmx", 100)
    ran = index("--verify", bad, gone, torn, good)
    said = f"; verified\n  not checked: whether records are JSON; run: python -m mmapds.index {good} --validate\n"
    for text in (f"{good}.mmx: 5 records", said, "; 2 problems\n"):
        assert text in ran.stdout
    lines = ran.stderr.splitlines()
    found = ("column:length[0] = 6, expected 5", "length_order[1] = 4, exp", f"{torn}.mmx: DAM", f"{gone}: not indexed")
    assert [text in line for text, line in zip(found, lines, strict=True)] == [True] * 4
    quiet = index("--verify", "--quiet", bad, gone, torn, good)
    assert (ran.returncode, quiet.returncode, quiet.stdout, quiet.stderr) == (1, 1, "", ran.stderr)
    ran = index("--verify", "--json", good, bad, gone, "--quiet")
    assert (ran.returncode, ran.stderr) == (1, "")
    right, wrong, missing = json.loads(ran.stdout)["indexes"]
    assert (right["path"], right["verified"], right["problems"], right["counts"]) == (f"{good}.mmx", True, [], {})
    assert (right["records"], right["columns"]["length"], right["format"]) == (5, "n", "jsonl")
    state = {"state": "unchanged", "message": "unchanged"}
    assert right["sources"] == [{"path": good, "records": 5, "bytes": os.path.getsize(good), **state}]
    assert (wrong["verified"], wrong["counts"]) == (False, {"columns": 1, "length_order": 1})
    assert wrong["problems"][0] == {"check": "columns", "source": bad, "record": 0, "message": lines[0]}
    said = f"{gone}.mmx: no such index; run: python -m mmapds.index {gone}"
    assert missing == {"path": f"{gone}.mmx", "error": said}


def test_sources_that_are_gone_or_changed_are_all_named(write, tmp_path):
    paths = [write([{"n": 1}] * 9, f"{number}.jsonl") for number in range(4)]
    out = str(mmapds.build(paths, out=tmp_path / "all.mmx"))
    os.unlink(paths[0])
    os.mkfifo(paths[0])
    os.truncate(paths[1], 5)
    with same_time(paths[2]):
        Path(paths[2]).write_bytes(Path(paths[2]).read_bytes().replace(b"1", b"2"))
    findings = examine(Index(out))
    assert [problem.source for problem in findings.problems] == paths[:3]
    assert findings.describe()["counts"] == {"sources": 2, "fingerprints": 1}
    assert [each[:10] for each in findings.not_checked] == ["parameters", "whether re"]


def test_what_was_not_checked_is_said_with_the_command_that_checks_it(corpus, index):
    def not_checked():
        summary, *lines = index("--verify", corpus).stdout.splitlines()
        assert summary.endswith("; verified")
        return [line.removeprefix("  not checked: ").partition("; run: python -m mmapds.index ") for line in lines]

    (text, _, validate), _ = not_checked()
    assert text == "whether records are JSON"
    assert index(*validate.split()).returncode == 0
    mmapds.add_column(corpus, "square", np.arange(RECORDS) ** 2)
    (column, *_), (text, _, store_hashes) = not_checked()
    assert column == "column 'square', which was computed in Python, beyond its checksum"
    assert text.startswith("bytes of a source between the blocks of the fingerprint")
    assert index(*store_hashes.split()).returncode == 0
    assert [said for said, *_ in not_checked()] == [column]
    assert mmapds.open(corpus, check="full").columns == ["length", "square"]


def test_where_nothing_can_be_written(measured, keyed, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_: False)
    for path in (measured, keyed):
        reported = []
        assert not examine(Index(path), report=reported.append).problems
        assert sum(reported) == work(Index(path)) > 0
    forge(measured, "column:length", assign(2, 4))
    assert only_problem(measured).check == "columns"
