"""--verify indexes the sources again and compares: sections that were forged, with checksums that hold, are found."""

import fcntl
import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
import xxhash

import mmapds
from mmapds.arrays.array_file import ArrayFile, Head
from mmapds.index import verify as module
from mmapds.index.verify import examine, verify, work
from mmapds.storage.index_file import Index
from tests.support.bounds import records_in, write_groups
from tests.support.commands import command
from tests.support.index_file import rewrite
from tests.support.tars import archive


def forge(path, name, change):
    """Change the numbers of a section, and make its checksum right again."""
    opened = ArrayFile(Head(str(path))) if str(path).endswith(".mma") else Index(str(path))
    section = opened.sections[name]
    with open(path, "r+b") as file:
        file.seek(section.offset)
        numbers = np.frombuffer(file.read(section.size), section.dtype).copy()
        change(numbers)
        file.seek(section.offset)
        file.write(numbers.tobytes())

    def sealed(metadata):
        metadata["sections"][name]["xxh3"] = xxhash.xxh3_64(numbers.tobytes()).hexdigest()
        return metadata

    rewrite(str(path), metadata=sealed)


def assign(at, value):
    def change(numbers):
        numbers[at] = value

    return change


def swap(one, other):
    def change(numbers):
        numbers[[one, other]] = numbers[[other, one]]

    return change


def at_random(numbers):
    numbers[:] = np.random.default_rng(1).integers(0, 2**32, len(numbers)).astype(numbers.dtype)


def forge_metadata(path, change):
    def changed(metadata):
        change(metadata)
        return metadata

    rewrite(str(path), metadata=changed)


def corpus(write, name="train.jsonl"):
    path = write([{"n": n, "text": "x" * n} for n in (5, 3, 3, 9, 1)], name)
    mmapds.build(path, length="n")
    return path


@pytest.fixture
def index(write):
    return f"{corpus(write)}.mmx"


@pytest.fixture
def keyed(tmp_path):
    path = tmp_path / "a.tar"
    path.write_bytes(archive([(f"{number}.txt", b"x") for number in range(20)]))
    mmapds.build(path)
    return f"{path}.mmx"


def only_problem(index):
    """The one problem of an index."""
    (problem,) = examine(Index(str(index))).problems
    assert re.search(r": DAMAGED: .*expected .*; run: python -m mmapds.index", str(problem.error)), problem.error
    return problem


FORGED = [
    ("length_order", assign(0, 0), "length_order", r"length_order\[0\] = 0, expected 3;"),
    ("length_order", swap(2, 3), "length_order", r"length_order\[2\] = 2, expected 1;"),
    ("length_values", assign(1, 9), "length_order", r"length_values\[1\] = 9, expected 5;"),
    ("length_counts", assign(0, 2), "length_order", r"length_counts\[0\] = 2, expected 1;"),
    ("column:length", assign(2, 4), "columns", r"column:length\[2\] = 4, expected 3 \(record 2 of .*train.jsonl\);"),
    ("key_records", swap(0, 1), "keys", r"key_records\[0\] = "),
    ("key_hashes", assign(0, 1), "keys", r"key_hashes\[0\] = 1, expected "),
    *((name, at_random, "length_order", name) for name in ("length_order", "length_values", "length_counts")),
    *((name, at_random, "keys", name) for name in ("key_records", "key_hashes")),
]


@pytest.mark.parametrize(("name", "change", "check", "message"), FORGED)
def test_a_forged_section_is_found(index, keyed, name, change, check, message):
    path = keyed if name.startswith("key_") else index
    verify(Index(path))
    forge(path, name, change)
    problem = only_problem(path)
    assert problem.check == check
    assert re.search(f"DAMAGED: {message}", str(problem.error))


def test_the_first_record_that_lies_elsewhere_is_named(write):
    """The edit lies between the blocks of the fingerprint, and keeps size and time."""
    lines = [b'{"n": %d}\n' % (number % 100) for number in range(100_000)]
    path = write(b"".join(lines))
    mmapds.build(path, columns={"n": "n"})
    times = os.stat(path)
    lines[5009], lines[5010] = lines[5010], lines[5009]
    write(b"".join(lines))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    problem = only_problem(f"{path}.mmx")
    assert (problem.check, problem.source, problem.record) == ("records", path, 5010)
    assert re.search(r"DAMAGED: record 5010 of .* begins at byte", str(problem.error))
    assert sorted(os.listdir(os.path.dirname(path))) == ["train.jsonl", "train.jsonl.mmx"]


def test_the_record_of_a_combined_index_is_counted_in_its_source(write, tmp_path):
    paths = [write([{"n": n} for n in range(9)], f"{name}.jsonl") for name in "ab"]
    out = mmapds.build(paths, out=tmp_path / "all.mmx", columns={"n": "n"})
    forge(out, "column:n", assign(11, 4))
    problem = only_problem(out)
    assert (problem.check, problem.source, problem.record) == ("columns", paths[1], 2)


def test_an_index_that_kept_only_sources_without_a_column_is_right(write, tmp_path):
    paths = [write([{name: 1}] * 2, f"{name}.jsonl") for name in "ab"]
    out = mmapds.build(paths, out=tmp_path / "all.mmx", columns={"a": "a"}, missing=0)
    mmapds.build(paths[1], out=out)
    verify(Index(str(out)))


def test_an_index_in_a_directory_that_cannot_be_written_to_is_verified(index, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert not examine(Index(index)).problems
    forge(index, "column:length", assign(2, 4))
    assert only_problem(index).check == "columns"


def test_an_index_that_another_process_builds_is_not_called_damaged(index, monkeypatch):
    monkeypatch.setenv("MMAPDS_LOCK_SECONDS", "0")
    with open(f"{index}.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(mmapds.Error, match=r"\.lock: waited 0 s"):
            examine(Index(index))


def retype(path, name, dtype):
    """Let a section be numbers of another type of the same width, whose bytes and checksum stay."""
    forge_metadata(path, lambda metadata: metadata["sections"][name].update(dtype=dtype))


@pytest.mark.parametrize(("name", "dtype"), [("i", "<u8"), ("f", "<i8"), ("u", "<f8")])
def test_a_column_of_another_type_is_found(write, name, dtype):
    path = write([{"i": n - 3, "f": n + 0.5, "u": 2**63 + n} for n in range(9)])
    mmapds.build(path, columns={"i": "i", "f": "f", "u": "u"})
    retype(f"{path}.mmx", f"column:{name}", dtype)
    message = f"section 'column:{name}': expected 9 numbers of type .*, found 9 of type {dtype}"
    assert re.search(message, str(only_problem(f"{path}.mmx").error))


@pytest.mark.parametrize("name", ["records", "lines", "smallest", "largest", "skipped"])
def test_a_forged_total_of_a_source_is_found(index, name):
    forge_metadata(index, lambda metadata: metadata["sources"][0].update({name: metadata["sources"][0][name] + 1}))
    with pytest.raises(mmapds.FormatError, match=r"DAMAGED: .*expected"):
        verify(Index(index))


@pytest.mark.parametrize(
    ("name", "value"), [("first", 64), ("dtype", "<i2"), ("dtype", None), ("shape", [4]), ("record_bytes", 2)]
)
def test_a_forged_header_of_npy_is_found(tmp_path, name, value):
    path = tmp_path / "a.npy"
    np.save(path, np.arange(64, dtype=np.int32))
    mmapds.build(path)
    verify(Index(f"{path}.mmx"))

    def change(metadata):
        within = metadata["sources"][0] if name == "first" else metadata["parameters"]
        within[name] = value
        if value is None:
            del within[name]

    forge_metadata(f"{path}.mmx", change)
    with pytest.raises(mmapds.FormatError, match=f"DAMAGED: {name}.*expected"):
        verify(Index(f"{path}.mmx"))


@pytest.mark.parametrize(("largest", "width"), [(50, 2), (70_000, 3), (17_000_000, 4)])
def test_every_byte_of_the_bounds_is_compared(tmp_path, largest, width):
    """Also the end of the last record of each group, which the next group has once more."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"".join(b'"%s"\n' % (b"x" * (largest if n == 20 else n % 7)) for n in range(60)))
    mmapds.build(path)
    index = f"{path}.mmx"
    assert Index(index).sources[0].width == width
    whole, each = Path(index).read_bytes(), records_in(width)
    section = Index(index).sections["offsets"]
    groups = whole[section.offset : section.offset + section.size]
    ends = [begin + 8 + each * width - 1 for begin in range(0, len(groups) - 64, 64)]  # of a distance, its highest byte
    for at in range(len(groups)) if width == 2 else [*ends, *(end - width + 1 for end in ends)]:
        forged = bytearray(groups)
        forged[at] ^= 1
        Path(index).write_bytes(whole)
        write_groups(index, forged, seal=True)
        with pytest.raises(mmapds.FormatError):
            verify(Index(index))


@pytest.mark.parametrize("hashed", [False, True])
def test_where_the_last_record_of_a_group_ends(write, hashed):
    path = write([{"n": n} for n in range(100)])
    mmapds.build(path, hash=hashed)
    section = Index(f"{path}.mmx").sections["offsets"]
    forged = bytearray(Path(f"{path}.mmx").read_bytes()[section.offset :][: section.size])
    forged[62] -= 3
    write_groups(f"{path}.mmx", forged, seal=True)
    with pytest.raises(mmapds.FormatError, match=r"DAMAGED: offsets\[7\] = \d+, expected \d+"):
        verify(Index(f"{path}.mmx"))


# ---- reports -------------------------------------------------------------------------------------------------


def test_two_problems_are_two_lines(write):
    path = corpus(write)
    forge(f"{path}.mmx", "length_order", assign(1, 4))
    forge(f"{path}.mmx", "column:length", assign(2, 4))
    findings = examine(Index(f"{path}.mmx"))
    assert findings.describe()["counts"] == {"columns": 1, "length_order": 1}
    ran = command("--verify", path)
    assert (ran.returncode, len(ran.stderr.splitlines())) == (1, 2)
    assert "; 2 problems\n" in ran.stdout
    quiet = command("--verify", "--quiet", path)
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (1, "", ran.stderr)


def test_all_indexes_are_verified_before_the_status_is_given(write):
    good, bad, gone, torn = (corpus(write, f"{name}.jsonl") for name in ("good", "bad", "gone", "torn"))
    forge(f"{bad}.mmx", "column:length", assign(0, 6))
    os.unlink(f"{gone}.mmx")
    os.truncate(f"{torn}.mmx", 100)
    ran = command("--verify", bad, gone, torn, good)
    assert ran.returncode == 1
    assert f"{good}.mmx: 5 records" in ran.stdout
    assert (
        f"; verified\n  not checked: whether records are JSON; run: python -m mmapds.index {good} --validate\n"
        in ran.stdout
    )
    assert f"{gone}.mmx: no such index" in ran.stderr
    assert f"{torn}.mmx: DAMAGED" in ran.stderr
    assert "column:length[0] = 6, expected 5" in ran.stderr
    assert command("--verify", good).returncode == 0


def test_sources_that_are_gone_or_changed_are_all_named(write, tmp_path, monkeypatch):
    paths = [write([{"n": 1}] * 9, f"{number}.jsonl") for number in range(4)]
    out = str(tmp_path / "all.mmx")
    mmapds.build(paths, out=out)
    os.unlink(paths[0])
    os.mkfifo(paths[0])
    os.truncate(paths[1], 5)
    found = os.stat(paths[2])
    Path(paths[2]).write_bytes(Path(paths[2]).read_bytes().replace(b"1", b"2"))
    os.utime(paths[2], ns=(found.st_atime_ns, found.st_mtime_ns))
    findings = examine(Index(out))
    assert [problem.source for problem in findings.problems] == paths[:3]
    assert findings.describe()["counts"] == {"sources": 2, "fingerprints": 1}
    assert [each[:10] for each in findings.not_checked] == ["parameters", "whether re"]

    def refuse(path):
        raise mmapds.SourceError(f"{path}: input/output error")

    monkeypatch.setattr(module, "fingerprint", refuse)
    assert examine(Index(out)).describe()["counts"] == {"sources": 2, "fingerprints": 2}


def test_json_is_one_document_of_what_people_read(write):
    good, bad = corpus(write, "good.jsonl"), corpus(write, "bad.jsonl")
    forge(f"{bad}.mmx", "column:length", assign(2, 4))
    ran = command("--verify", "--json", good, bad, "--quiet")
    assert (ran.returncode, ran.stderr) == (1, "")
    right, wrong = json.loads(ran.stdout)["indexes"]
    assert (right["path"], right["verified"], right["problems"], right["counts"]) == (f"{good}.mmx", True, [], {})
    assert (right["records"], right["columns"], right["format"]) == (5, {"length": "n"}, "jsonl")
    size = os.path.getsize(good)
    state = {"state": "unchanged", "message": "unchanged"}
    assert right["sources"] == [{"path": good, "records": 5, "bytes": size, **state}]
    assert (wrong["verified"], wrong["counts"]) == (False, {"columns": 1})
    (problem,) = wrong["problems"]
    assert (problem["check"], problem["source"], problem["record"]) == ("columns", bad, 2)
    assert [problem["message"]] == command("--verify", bad).stderr.splitlines()
    gone = json.loads(command("--info", "--json", good, write([1], "new.jsonl")).stdout)["indexes"]
    assert "no such index" in gone[1]["error"]
    assert set(gone[1]) == {"path", "error"}
    alone = command("--json", good)
    assert (alone.returncode, alone.stdout) == (2, "")
    assert "--json" in alone.stderr


def test_what_was_not_checked_is_said(write):
    path = write(b'{"n": 1}\n' * 100_000)
    mmapds.build(path)
    (json, _) = command("--verify", path).stdout.splitlines()[1:]
    assert json.startswith("  not checked: whether records are JSON; run: python ")
    assert command(*json.partition("; run: python -m mmapds.index ")[2].split()).returncode == 0
    mmapds.add_column(path, "square", np.arange(100_000) ** 2)
    ran = command("--verify", path)
    assert ran.returncode == 0
    summary, column, content = ran.stdout.splitlines()
    assert summary.endswith("; verified")
    assert column == "  not checked: column 'square', which was computed in Python, beyond its checksum"
    assert content.startswith("  not checked: bytes of a source between the blocks of the fingerprint")
    _, *run = content.partition("; run: python ")[2].split()
    assert command(*run[1:]).returncode == 0
    assert command("--verify", path).stdout.splitlines()[1:] == [column]
    assert mmapds.open(path, check="full").columns == ["square"]


def test_a_hash_sees_what_nothing_else_does(write):
    path = write(b'{"n": 1}\n' * 100_000)
    mmapds.build(path, hash=True)
    found = os.stat(path)
    with open(path, "r+b") as file:
        file.seek(450_000 + 6)
        file.write(b"2")
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))
    findings = examine(Index(f"{path}.mmx"))
    assert findings.describe()["counts"] == {"hashes": 1}
    assert "has other content (same size, same time, hash " in str(findings.problems[0].error)


def test_the_bytes_to_read_are_known_before(write, keyed):
    hashed = mmapds.build(write(b"1\n" * 300_000), hash=True)
    for path in (hashed, keyed):
        index, reported = Index(str(path)), []
        examine(index, report=reported.append)
        assert sum(reported) == work(index) > 0
