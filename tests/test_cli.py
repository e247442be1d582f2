"""What the command lines share: exit codes, one-line errors, signals."""

import os
import shlex
import subprocess
import sys

import pytest

import mmapds
from mmapds.errors import EXPECTED_ROOM, RAISE_LIMIT
from tests.support.commands import run

WORK = """
import os, signal, sys, time, warnings
from mmapds.cli import screen
from mmapds.errors import Error

def work():
    {work}

sys.exit(screen.run(work))
"""
UNWOUND = "\n    ".join(("try:", "    os.kill(os.getpid(), signal.SIGTERM)", "finally:", "    print('removed')"))
REFUSED = "standard output: no space left on device\n"
ON_A_TERMINAL = """sys.stderr.isatty = lambda: True
    with screen.progress_on(["a.jsonl"]) as progress:
        for number in range(10_000):
            progress.print("a line of an index")
"""


@pytest.mark.parametrize(
    ("work", "status", "stdout", "stderr"),
    [
        ("print('done')", 0, "done\n", ""),
        ("raise Error('a.jsonl: one\\ntwo')", 1, "", "a.jsonl: one two\n"),
        ("raise TypeError('odd')", 1, "", "TypeError: odd (python -X dev -m mmapds shows where)\n"),
        ("raise screen.UsageError('--bad: odd')", 2, "", "--bad: odd\n"),
        ("raise KeyboardInterrupt", 130, "", "interrupted\n"),
        ("raise MemoryError", 1, "", f"{EXPECTED_ROOM}, found none; {RAISE_LIMIT}\n"),
        ("raise MemoryError('cannot allocate 9 GiB')", 1, "", "cannot allocate 9 GiB\n"),
        ("warnings.warn('odd')", 0, "", "warning: odd\n"),
        (UNWOUND, 143, "removed\n", ""),
    ],
)
def test_a_command_ends_with_a_status_and_at_most_one_line(work, status, stdout, stderr):
    ran = run("-c", WORK.format(work=work))
    assert (ran.returncode, ran.stdout, ran.stderr) == (status, stdout, stderr)


@pytest.mark.parametrize(
    ("work", "status", "stderr"),
    [
        ("print('done')", 141, ""),
        ("print('done', flush=True)", 141, ""),
        ("print('help'); sys.exit(0)", 141, ""),
        ("print('half'); raise Error('a.jsonl: wrong')", 1, "a.jsonl: wrong\n"),
    ],
)
def test_output_that_nobody_reads_gives_no_traceback(work, status, stderr):
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w") as closed:
        buffered = {**os.environ, "PYTHONUNBUFFERED": ""}
        ran = run(
            "-c", WORK.format(work=work), capture_output=False, stdout=closed, stderr=subprocess.PIPE, env=buffered
        )
    assert (ran.returncode, ran.stderr) == (status, stderr)


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("more", ["", "screen.print_aside('a.jsonl: wrong')", "warnings.warn('odd')", ON_A_TERMINAL])
def test_a_full_disk_under_the_output_is_one_line(more, unbuffered):
    with open("/dev/full", "w") as full:
        env = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
        work = WORK.format(work=f"print('a line'); {more}")
        ran = run("-c", work, capture_output=False, stdout=full, stderr=subprocess.PIPE, env=env)
    assert (ran.returncode, ran.stderr.rpartition("\r")[2].strip()) == (1, REFUSED.strip())


@pytest.mark.parametrize("closed", ["2>&-", "<&- >&- 2>&-"])
def test_commands_run_where_streams_are_closed(write, tmp_path, closed):
    """As in daemons; nothing that is printed for a person comes into a file."""
    path = write([{"n": 1}, {"n": 2}])
    python = shlex.quote(sys.executable)
    for line in (f"index {path}", f"verify {path}", f"convert {path}", f"seekable {path} --no-index"):
        ran = subprocess.run(
            f"{python} -m mmapds {line} {closed}", shell=True, capture_output=True, text=True, check=False
        )
        assert (ran.returncode, ran.stderr) == (0, ""), line
        assert bool(ran.stdout) == (">&- 2" not in closed)
    ran = subprocess.run(
        f"{python} -m mmapds index {path}.absent {closed}", shell=True, capture_output=True, check=False
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (1, b"", b"")
    names = ("train.jsonl", "train.jsonl.mmx", "train.jsonl.zst", "train.mma", "train.mma.mmx")
    assert sorted(os.listdir(tmp_path)) == sorted(names)
    code = f"import mmapds; mmapds.add_column({path!r}, 'twice', len)"
    assert subprocess.run(f"{python} -c {shlex.quote(code)} {closed}", shell=True, check=False).returncode == 0
    assert mmapds.open(path).column("twice").tolist() == [1, 1]
