"""Columns that `mmapds.build` computes by functions: all of them or the old index, and again by another function."""

import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import mmapds
from tests.support.commands import SECONDS, run
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
