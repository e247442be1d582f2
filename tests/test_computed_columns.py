"""Columns that `mmapds.build` computes by functions: all of them or the old index, and again by another function."""

import gzip
import signal
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

import mmapds
from mmapds.compression.reader import BlockReader
from mmapds.storage.index_file import Index
from tests.support.alive import Counted
from tests.support.commands import SECONDS, command, run
from tests.support.index_file import rewrite
from tests.support.messages import check
from tests.test_locks import names, started


def words(sample):
    return len(sample["text"].split())


def chars(sample):
    return len(sample["text"])


def fails(sample):
    return sample["nope"]


def fails_as_others_do(sample):
    raise mmapds.ColumnError(f"expected a text, found {sample}")


@pytest.fixture
def path(write):
    return write([{"text": "word " * (number % 20)} for number in range(100)])


def lengths(path):
    return mmapds.open(path).lengths.tolist()


def test_samples_are_decoded_one_by_one(path):
    """Each may be an image or a recording, whatever its bytes in the file."""
    mmapds.build(path)
    Counted.begin()
    mmapds.add_column(path, "length", words, decode=Counted, workers=1)
    assert Counted.most <= 3
    assert lengths(path) == [number % 20 for number in range(100)]


@pytest.mark.parametrize("suffix", ["txt", "txt.gz"])
def test_few_bytes_of_large_records_are_in_memory(tmp_path, suffix):
    path = tmp_path / f"train.{suffix}"
    with gzip.open(path, "wb") if suffix.endswith("gz") else path.open("wb") as file:
        for size in [10] * 2000 + [1 << 20] * 32:
            file.write(b"x" * size + b"\n")
    mmapds.build(path)
    tracemalloc.start()
    try:
        mmapds.add_column(path, "length", len, decode="bytes", workers=1)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
    assert lengths(path) == [10] * 2000 + [1 << 20] * 32


def test_records_of_a_block_are_read_together(tmp_path, monkeypatch):
    """As each look for a block takes as long as many records."""
    path, asked, blocks = tmp_path / "train.txt.gz", [], BlockReader.blocks
    path.write_bytes(gzip.compress(b"".join(b"%d\n" % number for number in range(3000))))
    mmapds.build(path)
    monkeypatch.setattr(BlockReader, "blocks", lambda self, wanted: asked.append(wanted) or blocks(self, wanted))
    mmapds.add_column(path, "length", int, workers=1)
    assert len(asked) <= 3000 / 100
    assert lengths(path) == list(range(3000))


# ---- all columns, or the old index ---------------------------------------------------------------------------------


def grow(path):
    with open(path, "a") as file:
        file.write('{"text": "more"}\n')


@pytest.mark.parametrize("how", [{"force": True}, {"columns": {"size": "bytes()"}}, {"hash": True, "force": True}, {}])
@pytest.mark.parametrize("wrong", [fails, fails_as_others_do])
def test_a_function_that_raises_leaves_the_old_index(path, tmp_path, how, wrong):
    mmapds.build(path, length=words)
    if not how:
        grow(path)
    before = Path(f"{path}.mmx").read_bytes()
    with pytest.raises((KeyError, mmapds.ColumnError)) as raised:
        mmapds.build(path, length=wrong, **how)
    assert "computing a column for" in raised.value.__notes__[0]
    assert len(raised.value.__notes__) == 1, "the function ran once"
    assert Path(f"{path}.mmx").read_bytes() == before
    assert names(tmp_path) == ["train.jsonl", "train.jsonl.mmx"]
    mmapds.build(path, length=words, **how)
    assert lengths(path) == [words(sample) for sample in mmapds.open(path)]


def test_columns_come_all_or_none(path, tmp_path):
    with pytest.raises(KeyError):
        mmapds.build(path, length=words, columns={"wrong": fails})
    assert names(tmp_path) == ["train.jsonl"]
    mmapds.build(path)
    before = Path(f"{path}.mmx").read_bytes()
    with pytest.raises(KeyError):
        mmapds.build(path, length=words, columns={"wrong": fails})
    assert Path(f"{path}.mmx").read_bytes() == before


def test_of_several_sources_those_before_a_failure_are_built(write, path, tmp_path):
    other = write([{"nope": 1}], "wrong.jsonl")
    with pytest.raises(KeyError):
        mmapds.build([path, other], length=words)
    assert lengths(path) == [words(sample) for sample in mmapds.open(path)]
    assert names(tmp_path) == ["train.jsonl", "train.jsonl.mmx", "wrong.jsonl"]


def test_an_executor_leaves_the_old_index_too(path, tmp_path):
    out = tmp_path / "all.mmx"
    with ThreadPoolExecutor(2) as pool:
        mmapds.build(path, out=out, length=words, executor=pool)
        before = out.read_bytes()
        with pytest.raises(KeyError):
            mmapds.build(path, out=out, length=fails, executor=pool, force=True)
        assert out.read_bytes() == before
        mmapds.build(path, out=out, length=words, executor=pool, force=True)
    assert out.read_bytes() == before
    assert names(tmp_path) == ["all.mmx", "train.jsonl"]


SLOW = """
import signal, sys
import mmapds

def slow(sample):
    print("began", flush=True)
    signal.pause()

mmapds.build(sys.argv[1], length=slow, force=True)
"""


def test_a_process_that_is_killed_leaves_the_old_index(path, tmp_path):
    mmapds.build(path, length=words)
    before = Path(f"{path}.mmx").read_bytes()
    with started("-c", SLOW, path) as process:
        assert process.stdout.readline() == "began\n", process.communicate()
        assert Path(f"{path}.mmx").read_bytes() == before
        process.send_signal(signal.SIGKILL)
        assert process.wait(SECONDS) == -signal.SIGKILL
    assert Path(f"{path}.mmx").read_bytes() == before
    mmapds.build(path, length=words)
    assert Path(f"{path}.mmx").read_bytes() == before
    assert names(tmp_path) == ["train.jsonl", "train.jsonl.mmx"]


SPAWNS = """
import multiprocessing, operator, sys
import mmapds
if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    mmapds.build(sys.argv[1], length=operator.itemgetter("n"), workers=2)
"""


def test_workers_that_are_not_forked_read_the_index_before_it_is_in_its_place(write):
    path = write([{"n": number % 7} for number in range(9000)])
    done = run("-c", SPAWNS, path)
    assert done.returncode == 0, done.stderr
    assert lengths(path) == [number % 7 for number in range(9000)]


# ---- what a function is known by -----------------------------------------------------------------------------------


class Counter:
    def __call__(self, sample):
        return len(sample["text"])


KNOWN = {
    "a function": (words, {}, "tests.test_computed_columns.words:"),
    "a version": (words, {"version": 2}, "tests.test_computed_columns.words:2"),
    "a lambda": (lambda sample: len(sample), {}, None),
    "a lambda with a version": (lambda sample: len(sample), {"version": "a"}, "tests.test_computed_columns.<lambda>:a"),
    "a partial function": (partial(words), {}, None),
    "a partial function with a version": (partial(words), {"version": 1}, "tests.test_computed_columns.words:1"),
    "an object": (Counter(), {}, None),
    "an object with a version": (Counter(), {"version": 1}, "tests.test_computed_columns.Counter:1"),
    "a method of an object": (Counter().__call__, {}, None),
    "a builtin function": (len, {}, "builtins.len:"),
}


@pytest.mark.parametrize("case", KNOWN)
def test_a_function_is_known_by_its_name_and_a_version(path, case):
    function, version, expected = KNOWN[case]
    mmapds.build(path, columns={"n": function}, workers=1, **version)
    assert Index(f"{path}.mmx").functions.get("n") == expected
    mmapds.build(path, force=True)
    mmapds.add_column(path, "n", function, workers=1, **version)
    assert Index(f"{path}.mmx").functions.get("n") == expected


@pytest.mark.parametrize("version", [1.5, "a:b", True])
def test_other_versions_are_refused(path, version):
    with pytest.raises(mmapds.ColumnError, match=r"version = .*, expected a text without a colon, or an integer"):
        mmapds.build(path, columns={"n": words}, version=version)


def test_a_build_computes_columns_again(path):
    mmapds.build(path, length=words)
    mmapds.build(path, length=chars)
    assert lengths(path) == [chars(sample) for sample in mmapds.open(path)]
    mmapds.build(path, columns={"size": words})
    assert mmapds.open(path).columns == ["length", "size"]
    mmapds.add_column(path, "length", [5] * 100)
    assert list(Index(f"{path}.mmx").functions) == ["size"]
    mmapds.build(path, columns={"length": words, "size": words})
    assert lengths(path) == [words(sample) for sample in mmapds.open(path)]
    assert command(path, "--length", "bytes(text)", "--force").returncode == 0
    assert "length" not in Index(f"{path}.mmx").functions


def test_indexes_of_one_function_are_merged_and_those_of_two_are_not(write, tmp_path):
    paths = [write([{"text": "a b"}] * 3, f"{name}.jsonl") for name in "ab"]
    mmapds.build(paths, length=words)
    merged = mmapds.merge(paths, out=tmp_path / "all.mmx").read_bytes()
    mmapds.build(paths, out=tmp_path / "all.mmx", length=words, force=True)
    assert (tmp_path / "all.mmx").read_bytes() == merged
    mmapds.build(paths[1], length=chars)
    with pytest.raises(mmapds.ColumnError, match="functions: expected") as refused:
        mmapds.merge(paths, out=tmp_path / "all.mmx")
    check(str(refused.value))
    mmapds.build(paths, length=chars)
    mmapds.merge(paths, out=tmp_path / "all.mmx")
    assert lengths(tmp_path / "all.mmx") == [3] * 6


@pytest.mark.parametrize("functions", [3, ["length"], {"length": 3}])
def test_functions_in_metadata_are_checked(path, functions):
    mmapds.build(path, length=words)
    rewrite(f"{path}.mmx", metadata=lambda found: {**found, "functions": functions})
    with pytest.raises(mmapds.FormatError, match="functions: expected an object of texts, found"):
        mmapds.open(path)
