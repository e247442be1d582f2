"""`mmapds`: its commands, what they share with the modules, help, and exit statuses."""

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from inspect import signature

import pytest

import mmapds as package
from mmapds import formats
from mmapds.bench import bench
from mmapds.cli.commands import main, new_parser
from mmapds.convert import OPTIONS, convert
from mmapds.index.build import Request
from mmapds.report import report
from tests.support.commands import command, run
from tests.support.terminals import on_terminal

COMMANDS = ("bench", "convert", "head", "index", "info", "report", "seekable", "show", "verify")
RECORDS = [{"n": number, "text": "x" * number} for number in range(10)]


@pytest.fixture
def path(write):
    path = write(RECORDS)
    package.build(path)
    return path


def test_help_names_every_command_and_each_has_examples(ran, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert ran("--version") == (0, f"mmapds {package.__version__}\n", "")
    assert all(f"\n    {name} " in ran("--help")[1] for name in COMMANDS)
    for name in COMMANDS:
        status, text, _ = ran(name, "--help")
        assert status == 0
        assert f"usage: python -m mmapds {name} [options] SOURCE..." in text
        assert f"examples:\n  mmapds {name} " in text
        assert len(max(text.splitlines(), key=len)) <= 80


def test_the_module_of_indexes_runs_the_commands_of_the_script(path):
    script = os.path.join(sysconfig.get_path("scripts"), "mmapds")
    for name in ("verify", "info"):
        ran = subprocess.run([script, name, path], capture_output=True, text=True, check=True)
        assert ran.stdout.splitlines()[0] == command(f"--{name}", path).stdout.splitlines()[0]


def test_exit_statuses(path, write, tmp_path, ran):
    """1 is for data and indexes, 2 for the command line; nothing is written then."""
    bad, empty = write(b'{"n": 1}\n{"n":\n', "bad.jsonl"), write(b"", "empty.jsonl")
    package.build([bad, empty])
    for status, arguments in (
        (0, ["verify", path]),
        (0, ["info", empty]),
        (1, ["verify", write(RECORDS, "new.jsonl")]),
        (1, ["show", bad, "0:2"]),
        (1, ["info", path, "--histogram", "tokens"]),
        (1, ["index", tmp_path / "absent.jsonl"]),
        (1, ["convert", tmp_path / "absent.parquet"]),
        (2, ["index", path, "--length", "words(n)"]),
        (2, ["index", path, "--parts", tmp_path]),
        (2, ["convert", path, "--schema", "{"]),
        (2, ["report", path, "--json", "--compare", "pick=8"]),
        (2, ["head", path, "-n", "-1"]),
        (2, ["show", path, "first"]),
        (2, ["idnex", path]),
        (2, []),
        (2, ["verify", path, "--workers", "0"]),
        (2, ["index", f"{path}.mmx", "--merge", "-o", tmp_path / "all.mmx", "--missing", "0"]),
    ):
        before = sorted(os.listdir(tmp_path))
        found, _, err = ran(*arguments)
        assert (found, bool(err)) == (status, status > 0), arguments
        assert sorted(os.listdir(tmp_path)) == before


def test_a_name_that_steers_a_terminal_is_escaped_in_all_that_is_printed(write):
    path = write(RECORDS, "a\x1b]0;owned\x07\x9b31m\u202e.jsonl")
    for expected, *arguments in ((1, "head", path), (0, "index", path), (0, "info", path), (0, "show", path, "-1")):
        status, text = on_terminal("-m", "mmapds", *arguments, NO_COLOR="1")
        assert status == expected
        assert r"a\u001b]0;owned\u0007\u009b31m\u202e.jsonl" in text
        assert not [each for each in ("\x1b]", "\x07", "\x9b", "\u202e") if each in text]
    status, text = on_terminal("-m", "mmapds", "show", "a.jsonl", "--\x1b[2J", NO_COLOR="1")
    assert (status, "\x1b" in text) == (2, False)


def test_options_have_the_names_of_arguments():
    """So none is parsed and then forgotten; commands look at the others themselves."""
    functions = {"convert": convert, "report": report, "seekable": package.seekable, "bench": bench, "index": Request}
    of_commands = {"command", "print_completion", "sources", "quiet", "json", "dask", "ray", "cache", "roots"}
    of_commands |= {"cache_bytes", "out", "column", "length", "merge", "parts", "where", *OPTIONS, *formats.OPTIONS}
    for name, function in functions.items():
        options = set(vars(new_parser("mmapds", [name]).parse_args([name, "SOURCE"])))
        assert options - of_commands <= set(signature(function).parameters), name


@pytest.mark.parametrize("name", ["convert", "report", "seekable", "bench"])
def test_a_command_without_a_cache_refuses_urls(name, capsys):
    assert main([name, "s3://b/part-0.jsonl"]) == 2
    message = f"s3://b/part-0.jsonl: expected local files for {name}, found a URL; copy the objects first\n"
    assert capsys.readouterr().err == message


# ---- how commands end

WORK = """
import os, signal, sys, time, warnings
from mmapds import cli
from mmapds.errors import Error

def work():
    {work}

sys.exit(cli.run(work))
"""
UNWOUND = "\n    ".join(("try:", "    os.kill(os.getpid(), signal.SIGTERM)", "finally:", "    print('removed')"))
UNREAD, FULL = "a pipe that nobody reads", "a full disk"
NO_SPACE = "OSError: [Errno 28] No space left on device (python -X dev -m mmapds shows where)\n"


@pytest.mark.parametrize(
    ("work", "status", "stdout", "stderr"),
    [
        ("print('done')", 0, "done\n", ""),
        ("raise Error('a.jsonl: one\\ntwo')", 1, "", "a.jsonl: one two\n"),
        ("raise TypeError('odd')", 1, "", "TypeError: odd (python -X dev -m mmapds shows where)\n"),
        ("raise cli.UsageError('--bad: odd')", 2, "", "--bad: odd\n"),
        ("raise KeyboardInterrupt", 130, "", "interrupted\n"),
        ("raise MemoryError('cannot allocate 9 GiB')", 1, "", "cannot allocate 9 GiB\n"),
        ("warnings.warn('odd')", 0, "", "warning: odd\n"),
        (UNWOUND, 143, "removed\n", ""),
        ("print('done')", 141, UNREAD, ""),
        ("print('done', flush=True)", 141, UNREAD, ""),
        ("print('half'); raise Error('a.jsonl: wrong')", 1, UNREAD, "a.jsonl: wrong\n"),
        ("print('a line')", 1, FULL, NO_SPACE),
        ("print('a line'); cli.print_aside('a.jsonl: wrong')", 1, FULL, NO_SPACE),
    ],
)
def test_a_command_ends_with_a_status_and_at_most_one_line(work, status, stdout, stderr):
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w") as unread, open("/dev/full", "w") as full:
        to = {UNREAD: unread, FULL: full}.get(stdout, subprocess.PIPE)
        how = {"capture_output": False, "stdout": to, "stderr": subprocess.PIPE}
        ran = run("-c", WORK.format(work=work), env={**os.environ, "PYTHONUNBUFFERED": ""}, **how)
    assert (ran.returncode, stdout if ran.stdout is None else ran.stdout, ran.stderr) == (status, stdout, stderr)


def test_commands_run_where_streams_are_closed(write, tmp_path):
    """As in daemons; nothing that is printed for a person comes into a file."""
    path = write([{"n": 1}, {"n": 2}])
    for line in (f"index {path}", f"convert {path}", f"seekable {path} --no-index"):
        closed = f"{shlex.quote(sys.executable)} -m mmapds {line} <&- >&- 2>&-"
        assert subprocess.run(closed, shell=True, check=False).returncode == 0, line
    names = {"train.jsonl", "train.jsonl.mmx", "train.jsonl.zst", "train.mma", "train.mma.mmx"}
    assert set(os.listdir(tmp_path)) == names
    assert package.open(path)[1] == package.open(f"{tmp_path}/train.mma")[1] == {"n": 2}


# ---- completion


@pytest.mark.parametrize(("shell", "files"), [("bash", "_shtab_compgen_files"), ("zsh", "_files")])
def test_a_shell_takes_the_script_that_completes_commands_options_and_files(shell, files, ran):
    status, script, _ = ran("--print-completion", shell)
    assert status == 0
    assert not [each for each in (*COMMANDS, "--histogram", "--truncated", files) if each not in script]
    if path := shutil.which(shell):
        assert subprocess.run([path, "-n"], input=script, capture_output=True, text=True, check=True).stderr == ""
