"""Signals that raise, and processes that die: no lock stays, and what is written or read afterwards is right."""

import gc
import inspect
import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import mmapds
from mmapds.compression import reader
from mmapds.compression.reader import BlockCache, Forward
from mmapds.storage import lock
from mmapds.storage.lock import replacing
from tests.support.commands import SECONDS, run

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
anywhere = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


class Interrupted(BaseException):
    """What a handler of a signal raises."""


def interrupted(work, number):
    """Do some work, and raise an error where Python would handle a signal: the `number`th time that a function is
    entered, or that one of C returns. Where an object is destroyed, Python drops it.

    Generators are not interrupted where they go on: what a profiler raises there escapes their `finally`, unlike a
    signal's.
    """
    left = itertools.count(-number)

    def profile(frame, event, argument):
        entered = event == "call" and not frame.f_code.co_flags & inspect.CO_GENERATOR
        if (entered or event == "c_return") and argument is not sys.setprofile and next(left) == 0:
            raise Interrupted

    sys.setprofile(profile)
    try:
        work()
    except Interrupted:
        pass
    finally:
        sys.setprofile(None)
        gc.collect()


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(lock.LIMIT, "0")
    gc.collect()
    gc.freeze()  # so that collections are quick
    yield
    gc.unfreeze()


def write_arrays(value):
    with mmapds.Writer("a.mma", {"x": "int64"}, force=True) as writer:
        for _ in range(value):
            writer.write({"x": value})


@anywhere
@given(st.integers(0, 2600))
def test_an_array_file_is_the_old_one_or_the_new_one(number):
    """While the new one is indexed in its place, opening it is an error."""
    write_arrays(3)
    interrupted(lambda: write_arrays(5), number)
    try:
        ds = mmapds.open("a.mma")
    except mmapds.StaleIndexError:
        write_arrays(5)
        ds = mmapds.open("a.mma")
    assert [len(ds), ds[0]["x"], ds[-1]["x"]] in ([3, 3, 3], [5, 5, 5])


def use_lock():
    with lock.locked("a"):
        os.getpid()


def replace():
    with replacing(os.path.abspath("a.txt"), "train.jsonl", lambda: None) as file:
        file.write(b"a")


@anywhere
@given(st.sampled_from([use_lock, replace]), st.integers(0, 190))
def test_a_lock_is_free_again(work, number):
    with open("a.txt.lock", "w") as left:
        left.write(f"{os.getpid()} on {os.uname().nodename}")  # of one that was killed
    interrupted(work, number)
    assert not lock._held
    use_lock()
    replace()
    assert "a.txt.lock" not in os.listdir()


@anywhere
@given(st.integers(0, 250))
def test_a_block_is_read_on(monkeypatch, number):
    monkeypatch.setattr(reader, "PIECE", 4)
    content = bytes(range(30))
    block = Forward(lambda: (content[at : at + 6] for at in range(0, len(content), 6)), 30, BlockCache(), (0, 0))
    block.piece(0)
    interrupted(lambda: block.piece(2), number)
    assert [block.piece(k) for k in range(2, 8)] == [content[4 * k : 4 * k + 4] for k in range(2, 8)]


@given(st.integers(0, 60))
def test_a_sampler_knows_its_step(number):
    """A trainer that is interrupted saves its state."""
    sampler = mmapds.DistributedSampler(range(8300), num_replicas=1, rank=0)
    sampler.load_state_dict(sampler.state_dict() | {"position": 8192})
    steps = iter(sampler)
    interrupted(lambda: next(steps), number)
    assert sampler.state_dict()["position"] in (8192, 8193)


JOB = """
import multiprocessing, os, signal, sys, time
import mmapds

def dies(sample):
    if sample["n"] == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return 1

def raises_first_in_the_second_piece(sample):
    if sample["n"] == 4096:
        open("raised", "w").close()
        raise RuntimeError("second piece")
    while sample["n"] == 0 and not os.path.exists("raised"):
        time.sleep(0.01)
    if sample["n"] == 4095:
        raise RuntimeError("first piece") from KeyError("its cause")
    return 1

def waits(sample):
    print("began", flush=True)
    signal.pause()

if __name__ == "__main__":
    for job in sys.argv[1:]:
        method, name = job.split()
        if name != "waits":
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # as trainers set it; forked workers inherit it
        multiprocessing.set_start_method(method, force=True)
        try:
            mmapds.add_column("train.jsonl", "x", globals()[name], workers=2)
        except (mmapds.Error, RuntimeError) as error:
            print(type(error).__name__, error, *["KeyError"] * ("KeyError: 'its cause'" in str(error.__cause__)))
"""


@pytest.fixture
def job(write, tmp_path):
    path = write([{"n": number} for number in range(5000)])
    mmapds.build(path)
    (tmp_path / "job.py").write_text(JOB)
    return path


def test_the_first_failure_in_the_order_of_records_is_raised(job, tmp_path):
    """Whatever becomes of workers, forked or spawned."""
    done = run("job.py", "fork dies", "spawn dies", "fork raises_first_in_the_second_piece", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    died = "ColumnError column 'x': a worker process died, killed or out of memory; use workers=1 to see why"
    assert done.stdout.splitlines() == [died, died, "RuntimeError first piece KeyError"]
    assert sorted(os.listdir(tmp_path)) == ["job.py", "raised", "train.jsonl", "train.jsonl.mmx"]
    assert mmapds.open(job).columns == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_workers_end_with_the_process_that_started_them(job, tmp_path, number):
    before = Path(f"{job}.mmx").read_bytes()
    process = subprocess.Popen([sys.executable, "job.py", "fork waits"], cwd=tmp_path, stdout=-1, stderr=-1)
    began = process.stdout.readline()
    process.send_signal(number)
    _, said = process.communicate(timeout=SECONDS)  # the pipes are open as long as any of them lives
    assert began.startswith(b"began"), said
    assert Path(f"{job}.mmx").read_bytes() == before
    mmapds.add_column(job, "x", np.arange(5000))
    assert sorted(os.listdir(tmp_path)) == ["job.py", "train.jsonl", "train.jsonl.mmx"]
