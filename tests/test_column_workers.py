"""Processes that compute a column: whenever one of them dies, the process that waits for them goes on, and says so."""

from pathlib import Path

import pytest

import mmapds
from tests.support.commands import run
from tests.test_locks import names

RECORDS = 20_000  # five pieces
METHODS = ["fork", "spawn", "forkserver"]
JOB = """
import multiprocessing, os, signal, sys, time
import mmapds

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

def dies_as_it_computes(sample):
    if sample["n"] == 0:
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
        raise RuntimeError("first piece") from KeyError("its cause")
    return 1

if __name__ == "__main__":
    multiprocessing.set_start_method(sys.argv[1])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # as commands and trainers set it; forked workers inherit it
    try:
        mmapds.add_column("train.jsonl", "x", eval(sys.argv[2]), workers=2)
        print("added")
    except (mmapds.Error, RuntimeError) as error:
        print(type(error).__name__, error, *["KeyError"] * ("KeyError: 'its cause'" in str(error.__cause__)))
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
    assert set(names(folder)) - {"__pycache__", "raised"} == {"job.py", "train.jsonl", "train.jsonl.mmx"}
    if "added" not in ran.stdout:
        assert Path(folder / "train.jsonl.mmx").read_bytes() == before
    return ran.stdout.strip()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("function", "expected"),
    [
        ("dies_as_it_computes", DIED),
        ("raises_what_cannot_be_pickled", "RuntimeError OddError: odd"),
        ("raises_first_in_the_second_piece", "RuntimeError first piece KeyError"),
    ],
)
def test_the_first_failure_in_the_order_of_records_is_said(built, method, function, expected):
    assert said(built, method, function) == expected
    (built / "raised").unlink(missing_ok=True)
