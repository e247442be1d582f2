"""What --verify and --info print: every problem with its record, JSON, progress, and what was not checked."""

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest

import mmapds
from mmapds.index import verify
from mmapds.index.verify import examine, work
from mmapds.storage.index_file import Index
from tests.support.commands import command
from tests.support.index_file import rewrite
from tests.support.tars import archive
from tests.test_verify import assign, forge

NUMBERS = (5, 3, 3, 9, 1)


def corpus(write, name="train.jsonl"):
    path = write([{"n": n, "text": "x" * n} for n in NUMBERS], name)
    mmapds.build(path, length="n")
    return path


def test_three_problems_are_three_lines(write):
    path = corpus(write)
    forge(f"{path}.mmx", "length_order", assign(1, 4))
    forge(f"{path}.mmx", "column:length", assign(2, 4))

    def changed(metadata):
        metadata["sources"][0]["lines"] = 7
        return metadata

    rewrite(f"{path}.mmx", metadata=changed)
    findings = examine(Index(f"{path}.mmx"))
    assert {problem.check for problem in findings.problems} == {"columns", "totals", "length_order"}
    ran = command("--verify", path)
    assert ran.returncode == 1
    for wanted in (
        r"DAMAGED: length_order\[1\] = 4, expected 0; run: ",
        rf"DAMAGED: column 'length' differs from {path} at record 2: expected 3, found 4; run: ",
        rf"DAMAGED: lines of {path} = 7, expected 5; run: ",
    ):
        assert len(re.findall(wanted, ran.stderr)) == 1
    assert len(ran.stderr.splitlines()) == findings.count
    assert f"; {findings.count} problems\n" in ran.stdout
    quiet = command("--verify", "--quiet", path)
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (1, "", ran.stderr)


@pytest.mark.parametrize("name", ["length_order", "length_values", "offsets", "column:length", "length_counts"])
def test_a_section_of_random_numbers_is_examined_to_the_end(write, name):
    path = corpus(write)
    random = np.random.default_rng(1)

    def change(numbers):
        numbers[:] = random.integers(0, 2**32, len(numbers)).astype(numbers.dtype)

    forge(f"{path}.mmx", name, change)
    assert examine(Index(f"{path}.mmx")).count >= 1


def test_random_keys_are_examined_to_the_end(tmp_path):
    path = tmp_path / "a.tar"
    path.write_bytes(archive([(f"{number}.txt", b"x") for number in range(50)]))
    mmapds.build(path)
    forge(f"{path}.mmx", "key_records", lambda records: np.copyto(records, records[::-1].copy() * 3))
    findings = examine(Index(f"{path}.mmx"))
    assert findings.counts == {"keys": 1}


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
    assert "column 'length' differs" in ran.stderr
    assert command("--verify", good).returncode == 0


def test_sources_that_are_gone_or_changed_are_all_named(write, tmp_path):
    paths = [write([{"n": number}] * 9, f"{number}.jsonl") for number in range(4)]
    out = str(tmp_path / "all.mmx")
    mmapds.build(paths, out=out, columns={"n": "n"})
    os.unlink(paths[0])
    os.truncate(paths[1], 5)
    findings = examine(Index(out))
    assert [problem.source for problem in findings.problems] == paths[:2]
    assert [each[:10] for each in findings.not_checked] == ["parameters", "whether re"]


def test_a_source_that_cannot_be_read_does_not_hide_that_others_changed(write, tmp_path, monkeypatch):
    paths = [write(b"" if number == 1 else b"1\n2\n", f"{number}.jsonl") for number in range(4)]
    out = str(tmp_path / "all.mmx")
    mmapds.build(paths, out=out)
    time = Index(out).sources[1].mtime_ns
    os.unlink(paths[1])
    os.mkfifo(paths[1])
    os.utime(paths[1], ns=(time, time))
    for path in paths[2:]:
        found = os.stat(path)
        Path(path).write_bytes(b"1\n3\n")
        os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))
    findings = examine(Index(out))
    assert [problem.source for problem in findings.problems] == paths[1:]
    assert findings.counts == {"sources": 1, "fingerprints": 2}
    for check in ("stat", "sample"):
        with pytest.raises(mmapds.SourceError, match=r"1\.jsonl: expected a regular file, found a FIFO"):
            mmapds.open(out, check=check)

    def refuse(path):
        raise mmapds.SourceError(f"{path}: input/output error")

    monkeypatch.setattr(verify, "fingerprint", refuse)
    assert examine(Index(out)).counts == {"sources": 1, "fingerprints": 3}


def test_json_is_one_document_of_what_people_read(write):
    good, bad = corpus(write, "good.jsonl"), corpus(write, "bad.jsonl")
    forge(f"{bad}.mmx", "column:length", assign(2, 4))
    ran = command("--verify", "--info", "--json", good, bad, "--quiet")
    assert (ran.returncode, ran.stderr) == (1, "")
    right, wrong = json.loads(ran.stdout)["indexes"]
    assert (right["path"], right["verified"], right["problems"], right["counts"]) == (f"{good}.mmx", True, [], {})
    assert (right["records"], right["columns"], right["format"]) == (5, {"length": "n"}, "jsonl")
    size = os.path.getsize(good)
    state = {"state": "unchanged", "message": "unchanged"}
    assert right["sources"] == [{"path": good, "records": 5, "bytes": size, **state}]
    assert wrong["verified"] is False
    assert wrong["counts"] == {"columns": 1}
    lines = command("--verify", bad).stderr.splitlines()
    assert [problem["message"] for problem in wrong["problems"]] == lines
    problem = wrong["problems"][0]
    assert (problem["check"], problem["source"], problem["record"]) == ("columns", bad, 2)
    gone = json.loads(command("--info", "--json", good, write([1], "new.jsonl")).stdout)["indexes"]
    assert "no such index" in gone[1]["error"]
    assert set(gone[1]) == {"path", "error"}
    alone = command("--json", good)
    assert (alone.returncode, alone.stdout) == (2, "")
    assert alone.stderr == "--json: expected --info or --verify with it, found neither; give one of them\n"


def test_info_tells_copies_from_sources_that_changed(write):
    path = corpus(write)
    os.utime(path, ns=(5, 5))
    shown = command("--info", path).stdout
    assert f"\n  {path}  5 records  " in shown
    assert "  another time, the same fingerprint\n" in shown
    (index,) = json.loads(command("--info", "--json", path).stdout)["indexes"]
    assert index["sources"][0]["state"] == "touched"
    with open(path, "r+b") as file:
        file.write(b"[")
    assert json.loads(command("--info", "--json", path).stdout)["indexes"][0]["sources"][0]["state"] == "stale"
    os.unlink(path)
    (index,) = json.loads(command("--info", "--json", f"{path}.mmx").stdout)["indexes"]
    assert (index["sources"][0]["state"], index["sources"][0]["message"]) == (
        "missing",
        "MISSING: no such file or directory",
    )


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
    assert findings.counts == {"hashes": 1}
    assert "has other content (same size, same time, hash " in str(findings.problems[0].error)


def test_the_bytes_to_read_are_known_before(write, tmp_path):
    tfrecords = tmp_path / "a.tar"
    tfrecords.write_bytes(archive([(f"{number}.txt", b"x" * 1000) for number in range(20)]))
    for path, options in ((write(b"1\n" * 300_000), {"hash": True}), (tfrecords, {})):
        mmapds.build(path, **options)
        index = Index(f"{path}.mmx")
        reported = []
        examine(index, report=reported.append)
        assert sum(reported) == work(index) > 0


def test_checksums_that_were_cut_off_are_not_checked(tmp_path):
    path = str(tmp_path / "a.mma")
    with mmapds.Writer(path) as writer:
        for number in range(100):
            writer.write({"x": np.full(50, number)})
    assert examine(Index(f"{path}.mmx")).not_checked == []
    os.truncate(path, os.path.getsize(path) // 2)
    mmapds.build(path, truncated="drop", force=True)
    findings = examine(Index(f"{path}.mmx"))
    assert (findings.count, findings.not_checked) == (
        0,
        [f"checksums of the records of {path}, cut off with the file's end"],
    )
    assert f"not checked: checksums of the records of {path}" in command("--verify", path).stdout
