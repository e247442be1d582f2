"""Processes that compute a column: whenever one of them dies, the process that waits for them goes on, and says so."""

import sys
from pathlib import Path

import pytest

import mmapds
from tests.support.commands import run
from tests.test_locks import names

RECORDS = 20_000  # five pieces
METHODS = ["fork", "spawn", "forkserver"]
JOB = """
import multiprocessing, os, signal, sys, time
from multiprocessing.connection import Connection
import mmapds

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

def die_in_the_middle(self, data, send=Connection._send):
    send(self, data if len(data) <= 4 else data[: len(data) // 2])  # the size of a large message goes before it
    if len(data) > 4:
        die()

def dies_as_it_computes(sample):
    if sample["n"] == 0:
        die()
    return 1

def dies_as_it_sends(sample):
    if sample["n"] == 0:
        Connection._send = die_in_the_middle
    return 1

def dies_as_it_waits(sample):
    if sample["n"] == 0:
        Connection._recv_bytes = die
    return 1

def dies_after_the_last(sample):
    if sample["n"] == RECORDS - 1:
        Connection._recv_bytes = die
    return 1

def dies_beside_its_child(sample):
    if sample["n"] == 0:
        if (child := os.fork()) == 0:
            signal.pause()
        with open("child", "w") as file:
            file.write(str(child))
        die()
    return 1

class OddError(Exception):
    def __init__(self, text, number):
        super().__init__(text)

def raises_what_cannot_be_pickled(sample):
    raise OddError("odd", 1)

def raises_first_in_the_second_piece(sample):
    if sample["n"] == 4096:
        open("raised", "w").close()
        raise RuntimeError("second piece")
    while sample["n"] == 0 and not os.path.exists("raised"):
        time.sleep(0.01)
    if sample["n"] == 4095:
        raise RuntimeError("first piece")
    return 1

def prints_and_raises(sample):
    if sample["n"] == 0:  # the other worker may be ended while it prints
        print("a sample was seen")
        raise RuntimeError("odd")
    return 1

def in_a_daemon(sample):
    return 2

def add_in_a_daemon():
    mmapds.add_column("train.jsonl", "x", in_a_daemon)

class Large:
    def __init__(self):
        self.text = "x" * (1 << 20)

    def __call__(self, sample):
        return len(self.text)

if __name__ == "__main__":
    multiprocessing.set_start_method(sys.argv[1])
    try:
        mmapds.add_column("train.jsonl", "x", eval(sys.argv[2]), workers=2)
        print("added")
    except (mmapds.Error, RuntimeError) as error:
        print(type(error).__name__, error)
elif len(sys.argv) > 3:
    die()
"""
DIED = "ColumnError column 'x': a worker process died, killed or out of memory; use workers=1 to see why"


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("columns")
    (folder / "job.py").write_text(JOB.replace("RECORDS", str(RECORDS)))
    (folder / "train.jsonl").write_text("".join(f'{{"n":{n}}}\n' for n in range(RECORDS)))
    mmapds.build(folder / "train.jsonl")
    return folder


def said(folder, *arguments):
    """What a job says that ends by itself, and leaves nothing."""
    before = Path(folder / "train.jsonl.mmx").read_bytes()
    ran = run("job.py", *arguments, cwd=folder)
    assert ran.returncode == 0, ran.stderr
    assert set(names(folder)) - {"__pycache__", "child", "raised"} == {"job.py", "train.jsonl", "train.jsonl.mmx"}
    if "added" not in ran.stdout:
        assert Path(folder / "train.jsonl.mmx").read_bytes() == before
    return ran.stdout.strip()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("when", ["computes", "sends", "waits"])
def test_a_worker_that_dies_is_said_whatever_it_is_about(built, method, when):
    assert said(built, method, f"dies_as_it_{when}") == DIED


@pytest.mark.parametrize("method", METHODS)
def test_a_worker_that_dies_when_all_is_computed_is_not_missed(built, method):
    assert said(built, method, "dies_after_the_last") == "added"
    assert set(mmapds.open(built / "train.jsonl").column("x").tolist()) == {1}


def test_a_worker_that_dies_before_it_has_a_large_function_is_said(built):
    assert said(built, "spawn", "Large()", "workers die as they begin") == DIED


@pytest.mark.parametrize("method", METHODS)
def test_a_large_function_reaches_workers(built, method):
    assert said(built, method, "Large()") == "added"
    assert set(mmapds.open(built / "train.jsonl").column("x").tolist()) == {1 << 20}


@pytest.mark.skipif(sys.platform != "linux", reason="a function that forks may fail elsewhere")
def test_a_worker_that_dies_is_said_though_its_child_has_its_pipe(built):
    job = "import os, runpy, signal; runpy.run_path('job.py', run_name='__main__'); "
    ending = "os.kill(int(open('child').read()), signal.SIGKILL)"  # it has the pipes of this process too
    ran = run("-c", job + ending, "fork", "dies_beside_its_child", cwd=built)
    assert ran.stdout.strip() == DIED, ran.stderr


@pytest.mark.parametrize("method", METHODS)
def test_an_error_that_cannot_be_pickled_is_said(built, method):
    assert said(built, method, "raises_what_cannot_be_pickled") == "RuntimeError OddError: odd"


def test_workers_need_no_semaphores(built):
    """There are none where there is no /dev/shm, as in some containers."""
    code = "import _multiprocessing, runpy; del _multiprocessing.SemLock; runpy.run_path('job.py', run_name='__main__')"
    ran = run("-c", code, "fork", "dies_after_the_last", cwd=built)
    assert ran.stdout.strip() == "added", ran.stderr


@pytest.mark.parametrize("method", METHODS)
def test_the_error_of_the_first_piece_is_said_whichever_comes_first(built, method):
    try:
        assert said(built, method, "raises_first_in_the_second_piece") == "RuntimeError first piece"
    finally:
        (built / "raised").unlink(missing_ok=True)


@pytest.mark.parametrize("method", METHODS)
def test_what_a_function_printed_before_it_raised_is_not_lost(built, method):
    assert said(built, method, "prints_and_raises").splitlines() == ["a sample was seen", "RuntimeError odd"]


def test_a_process_that_may_have_no_children_computes_by_itself(built):
    code = "import job, multiprocessing; multiprocessing.Pool(1).apply(job.add_in_a_daemon)"
    ran = run("-c", code, cwd=built)
    assert ran.returncode == 0, ran.stderr
    assert set(mmapds.open(built / "train.jsonl").column("x").tolist()) == {2}
