"""What the command lines share: exit codes, one-line errors, signals."""

import os
import signal
import subprocess
import sys

import pytest

from tests.support.commands import run

WORK = """
import os, signal, sys, time
from mmapds import cli
from mmapds.errors import Error

def work():
    {work}

sys.exit(cli.run(work, interrupted="interrupted: nothing was written"))
"""


@pytest.mark.parametrize(
    ("work", "status", "stderr"),
    [
        ("print('done')", 0, ""),
        ("raise Error('a.jsonl: one\\ntwo')", 1, "a.jsonl: one two\n"),
        ("raise KeyboardInterrupt", 130, "interrupted: nothing was written\n"),
        (
            "raise MemoryError('of a map')",
            1,
            "expected room in memory, found none (of a map); raise the limit, as with ulimit -v or of the container\n",
        ),
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


def test_a_full_disk_under_the_output_is_one_line(write):
    path = write([1, 2])
    for options in ({}, {"PYTHONUNBUFFERED": "1"}):
        with open("/dev/full", "w") as full:
            command = [sys.executable, "-m", "mmapds.index", path, "--force"]
            env = {**os.environ, **options}
            ran = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, env=env, text=True, check=False)
        assert (ran.returncode, ran.stderr) == (1, "standard output: no space left on device\n")
