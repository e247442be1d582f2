"""What the command lines share: exit codes, one-line errors, signals."""

import os
import shlex
import signal
import subprocess
import sys

import pytest

import mmapds
from tests.support.commands import command, run

WORK = """
import os, signal, sys, time
from mmapds import cli
from mmapds.errors import Error

def work():
    {work}

sys.exit(cli.run(work))
"""


@pytest.mark.parametrize(
    ("work", "status", "stderr"),
    [
        ("print('done')", 0, ""),
        ("raise Error('a.jsonl: one\\ntwo')", 1, "a.jsonl: one two\n"),
        ("raise TypeError('odd')", 1, "TypeError: odd (python -X dev -m mmapds shows where)\n"),
        ("raise KeyboardInterrupt", 130, "interrupted\n"),
        ("raise MemoryError('cannot allocate 9 GiB')", 1, "cannot allocate 9 GiB\n"),
        ("os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)", 143, ""),
    ],
)
def test_a_command_ends_with_a_status_and_at_most_one_line(work, status, stderr):
    ran = run("-c", WORK.format(work=work))
    assert (ran.returncode, ran.stderr) == (status, stderr)


@pytest.mark.parametrize(
    ("work", "status", "stderr"),
    [
        ("print('done')", 141, ""),
        ("print('done', flush=True)", 141, ""),
        ("print('half'); raise Error('a.jsonl: wrong')", 1, "a.jsonl: wrong\n"),
    ],
)
def test_output_that_nobody_reads_gives_no_traceback(work, status, stderr):
    reading, writing = os.pipe()
    os.close(reading)
    run = [sys.executable, "-c", WORK.format(work=work)]
    with open(writing, "w") as closed:
        buffered = {**os.environ, "PYTHONUNBUFFERED": ""}
        ran = subprocess.run(run, stdout=closed, stderr=subprocess.PIPE, env=buffered, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (status, stderr)


def test_sigterm_unwinds_the_work():
    work = "\n    ".join(("try:", "    os.kill(os.getpid(), signal.SIGTERM)", "finally:", "    print('removed')"))
    ran = subprocess.run([sys.executable, "-c", WORK.format(work=work)], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (128 + signal.SIGTERM, "removed\n")


FULL = {"capture_output": False, "stderr": subprocess.PIPE}
REFUSED = "standard output: no space left on device\n"


def test_a_full_disk_under_the_output_is_one_line(write):
    path = write([1, 2])
    for unbuffered in ("", "1"):
        with open("/dev/full", "w") as full:
            env = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
            ran = command(path, "--force", **FULL, stdout=full, env=env)
        assert (ran.returncode, ran.stderr) == (1, REFUSED)


ON_A_TERMINAL = """sys.stderr.isatty = lambda: True
    with cli.Progress(["a.jsonl"], unit="B", quiet=False) as progress:
        for number in range(10_000):
            progress.print("a line of an index")
"""


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("aside", ["cli.print_aside('a.jsonl: wrong')", "warnings.warn('odd')", ON_A_TERMINAL])
def test_a_full_disk_under_the_output_is_told_from_what_goes_to_stderr(aside, unbuffered):
    work = WORK.format(work=f"import warnings; print('a line'); {aside}")
    with open("/dev/full", "w") as full:
        env = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
        ran = run("-c", work, **FULL, stdout=full, env=env)
    assert ran.returncode == 1
    assert ran.stderr.rpartition("\r")[2].strip() == REFUSED.strip()
    assert ran.stderr.count("Error") == 0


CLOSED = ("stdin", "stdout", "stderr")


@pytest.mark.parametrize("closed", [CLOSED[2:], CLOSED])
def test_commands_run_where_streams_are_closed(write, tmp_path, closed):
    """As by `2>&-`, and in daemons; nothing that is printed for a person comes into a file."""
    path = write([{"n": 1}, {"n": 2}])
    number = {"stdin": "<&-", "stdout": ">&-", "stderr": "2>&-"}
    python = f"{shlex.quote(sys.executable)} -m mmapds"
    streams = " ".join(number[each] for each in closed)
    for line in (f"index {path}", f"verify {path}", f"convert {path}", f"seekable {path} --no-index"):
        ran = subprocess.run(f"{python} {line} {streams}", shell=True, capture_output=True, text=True, check=False)
        assert (ran.returncode, ran.stderr) == (0, ""), line
        assert bool(ran.stdout) == ("stdout" not in closed)
    ran = subprocess.run(f"{python} index {path}.absent {streams}", shell=True, capture_output=True, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (1, b"", b"")
    names = ("train.jsonl", "train.jsonl.mmx", "train.jsonl.zst", "train.mma", "train.mma.mmx")
    assert sorted(os.listdir(tmp_path)) == sorted(names)


def test_columns_are_added_where_a_stream_is_closed(write):
    path = write([{"n": 1}, {"n": 2}])
    mmapds.build(path)
    code = f"import mmapds; mmapds.add_column({path!r}, 'twice', len)"
    line = f"{shlex.quote(sys.executable)} -c {shlex.quote(code)} 2>&-"
    assert subprocess.run(line, shell=True, check=False).returncode == 0
    assert mmapds.open(path).column("twice").tolist() == [1, 1]
