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
from mmapds.dataset.decode import BY_NAME
from mmapds.index.build import Request
from mmapds.report import report
from tests.support.commands import command, mmapds, python, run
from tests.support.files import ROOT
from tests.support.terminals import on_terminal

COMMANDS = ("index", "info", "verify", "convert", "report", "bench", "show", "head")
RECORDS = [{"n": number, "text": "x" * number} for number in range(10)]


def indexed(write, name="train.jsonl", records=RECORDS, **options):
    path = write(records, name)
    package.build(path, **options)
    return path


def loaded_by(*arguments):
    """Modules that a command has loaded when it ends."""
    code = "import sys; from mmapds.cli.commands import main; main(sys.argv[1:]); print(*sys.modules, file=sys.stderr)"
    return set(run("-c", code, *arguments).stderr.split())


def test_help_and_indexing_load_nothing_heavy(write):
    for arguments in (["--help"], ["--version"], ["index", "--help"], ["index", write(RECORDS)]):
        loaded = loaded_by(*arguments)
        assert "mmapds.cli.commands" in loaded
        assert not {"torch", "numpy", "orjson", "rich"} & loaded


def test_the_command_is_a_script_and_a_module(write):
    path = indexed(write)
    script = os.path.join(sysconfig.get_path("scripts"), "mmapds")
    ran = subprocess.run([script, "head", "-n", "2", path], capture_output=True, text=True, check=True)
    assert ran.stdout == mmapds("head", "-n", "2", path).stdout
    assert subprocess.run([script, "--version"], capture_output=True, text=True, check=True).stdout == (
        f"mmapds {package.__version__}\n"
    )


def test_help_names_every_command_and_each_has_examples(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")

    def shown(*arguments):
        assert main([*arguments, "--help"]) == 0
        return capsys.readouterr().out

    assert all(f"\n    {name} " in shown() for name in COMMANDS)
    for name in COMMANDS:
        text = shown(name)
        assert f"usage: python -m mmapds {name} [options] SOURCE..." in text
        assert f"examples:\n  mmapds {name} " in text
        assert len(max(text.splitlines(), key=len)) <= 80
    text = " ".join(shown("show").split())
    decoders = text.partition("--decode D ")[2].partition(";")[0].replace(" or ", ", ").split(", ")
    assert decoders == [*BY_NAME, "torch"]


def test_the_module_of_indexes_runs_the_same_commands(write):
    path = indexed(write)
    assert run("-m", "mmapds.index", path, "--force", "--length", "n").stdout.startswith(f"{path}.mmx: 10 records, ")
    assert package.open(path).lengths.tolist() == list(range(10))
    for name in ("verify", "info"):
        assert mmapds(name, path, "--json").stdout == command(f"--{name}", path, "--json").stdout


def test_exit_statuses(write, tmp_path, capsys):
    path = indexed(write)
    bad = write(b'{"n": 1}\n{"n":\n', "bad.jsonl")
    package.build(bad)
    for status, arguments in (
        (0, ["verify", path]),
        (0, ["head", path, "-n", "0"]),
        (1, ["verify", write(RECORDS, "new.jsonl")]),
        (1, ["show", path, "10"]),
        (1, ["show", bad, "0:2"]),
        (1, ["head", tmp_path / "absent.jsonl"]),
        (1, ["info", path, "--histogram", "tokens"]),
        (1, ["report", path, "--json", "--ranks", "11"]),
        (1, ["index", tmp_path / "absent.jsonl"]),
        (1, ["index", path, "--length", "m"]),
        (1, ["convert", tmp_path / "absent.parquet"]),
        (2, ["index", path, "--missing", "few"]),
        (2, ["index", path, "--length", "words(n)"]),
        (2, ["index", path, "--wrkers", "1"]),
        (2, ["convert", path, "--schema", "{"]),
        (2, ["report", path, "--json", "--compare", "pick=8"]),
        (2, ["bench", path, "--workers", "-1"]),
        (2, ["index", path, "--parts", tmp_path]),
        (2, ["convert", path, "--parts", tmp_path]),
        (2, ["head", path, "-n", "-1"]),
        (2, ["head", path, "-n", "few"]),
        (2, ["show", path]),
        (2, ["show", path, "first"]),
        (2, ["heads", path]),
        (2, ["idnex", path]),
        (2, ["index"]),
        (2, []),
        (2, ["verify", path, "--workers", "0"]),
        (2, ["index", f"{path}.mmx", "--merge", "-o", tmp_path / "all.mmx", "--missing", "0"]),
        (2, ["index", f"{path}.mmx", "--merge", "-o", tmp_path / "all.mmx", "--workers", "-1"]),
    ):
        before = sorted(os.listdir(tmp_path))
        assert main(list(map(str, arguments))) == status, arguments
        assert bool(capsys.readouterr().err) == (status > 0)
        assert sorted(os.listdir(tmp_path)) == before


def test_a_name_that_steers_a_terminal_is_escaped_in_all_that_is_printed(write):
    name = "a\x1b]0;owned\x07\x9b31m\u202e.jsonl"
    path = write(RECORDS, name)
    shown = r"a\u001b]0;owned\u0007\u009b31m\u202e.jsonl"
    for arguments in (["head"], ["index"], ["info"], ["show", "-1"]):
        status, text = on_terminal("-m", "mmapds", arguments[0], path, *arguments[1:], NO_COLOR="1")
        assert shown in text
        assert not set("\x07\x9b\u202e") & set(text)
        assert "\x1b]" not in text
        assert status == int("not indexed yet" in text)
    status, text = on_terminal("-m", "mmapds", "show", "a.jsonl", "--\x1b[2J", NO_COLOR="1")
    assert (status, "\x1b" in text) == (2, False)


def test_a_source_whose_name_is_not_utf_8_is_to_be_renamed(tmp_path, capsys):
    path = os.fsencode(tmp_path) + b"/\xff.jsonl"
    with open(path, "w") as file:
        file.write("{}\n")
    for name, ending in (("index", ""), ("head", ""), ("info", ".mmx"), ("verify", ".mmx")):
        assert main([name, os.fsdecode(path) + ending]) == 1
        assert capsys.readouterr().err == f"{path!r}: expected a name in UTF-8\n"


def test_a_terminal_without_the_characters_of_a_name_gets_escapes(write):
    path = indexed(write, "ä🙂.jsonl")
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii"}
    ran = mmapds("head", "-n", "1", path, env=ascii_only)
    assert ran.returncode == 0
    assert r"\xe4\U0001f642.jsonl:1 (byte 0), 20 bytes" in ran.stdout


def test_every_command_of_the_page_runs(write, tmp_path, monkeypatch):
    """In the order of docs/command-line.md, on data like those it speaks of."""
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs/command-line.md").read_text()
    lines = [line for block in text.split("```sh\n")[1:] for line in block.partition("```")[0].splitlines()]
    lines = [line for line in lines if line.startswith("mmapds ")]
    assert len(lines) >= 8
    assert {line.split()[1] for line in lines} >= set(COMMANDS)
    page_files(write)
    environment = {**os.environ, "COLUMNS": "80", "PYTHONIOENCODING": "utf-8"}
    environment["PATH"] = f"{sysconfig.get_path('scripts')}:{os.environ['PATH']}"
    printed = []
    for line in lines:
        run = ["bash", "-c", line]
        ran = subprocess.run(run, capture_output=True, encoding="utf-8", env=environment, check=False)
        assert (ran.returncode, ran.stderr) == (0, ""), line
        printed.append(ran.stdout)
    screens = [block.partition("```")[0] for block in text.split("```text\n")[1:]]
    assert len(screens) == 2
    assert set(screens) <= set(printed)


def page_files(write):
    """What the page speaks of: a file of JSON, shards of JSON and of a tar, and Parquet."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from tests.support.tars import archive

    records = [{"id": number, "text": "x" * (number % 20 * (number % 17))} for number in range(20_000)]
    write(records, "train.jsonl")
    for shard in range(3):
        write(records[:100], f"shards/part-{shard:03}.jsonl")
    write(archive([(f"{number:03}.txt", b"hello") for number in range(20)]), "shards-000.tar")
    pq.write_table(pa.table({"id": range(9), "tokens": [[i] * i for i in range(9)]}), "corpus.parquet")


@pytest.mark.parametrize(
    ("name", "function", "others"),
    [
        ("index", Request, {"out", "column", "length", "merge", "dask", "ray", "parts", *formats.OPTIONS}),
        ("convert", convert, {"dask", "ray", *OPTIONS}),
        ("report", report, set()),
        ("seekable", package.seekable, set()),
        ("bench", bench, set()),
    ],
)
def test_options_have_the_names_of_arguments(name, function, others):
    """So none is parsed and then forgotten; the command looks at the others by itself."""
    options = set(vars(new_parser("mmapds", [name]).parse_args([name, "SOURCE"])))
    of_the_command = {"command", "print_completion", "sources", "quiet", "json"}
    assert options - of_the_command - others <= set(signature(function).parameters)


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
REFUSED = "OSError: [Errno 28] No space left on device (python -X dev -m mmapds shows where)"
ON_A_TERMINAL = """sys.stderr.isatty = lambda: True
    with cli.Progress(["a.jsonl"], quiet=False) as progress:
        for number in range(10_000):
            progress.print("a line of an index")
"""


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


@pytest.mark.parametrize("more", ["", "cli.print_aside('a.jsonl: wrong')", "warnings.warn('odd')", ON_A_TERMINAL])
def test_a_full_disk_under_the_output_is_one_line(more):
    with open("/dev/full", "w") as full:
        work = WORK.format(work=f"print('a line'); {more}")
        ran = run("-c", work, capture_output=False, stdout=full, stderr=subprocess.PIPE)
    assert (ran.returncode, ran.stderr.rpartition("\r")[2].strip()) == (1, REFUSED)


def test_commands_run_where_streams_are_closed(write, tmp_path):
    """As in daemons; nothing that is printed for a person comes into a file."""
    path = write([{"n": 1}, {"n": 2}])
    for line in (f"index {path}", f"verify {path}", f"convert {path}", f"seekable {path} --no-index"):
        closed = f"{shlex.quote(sys.executable)} -m mmapds {line} <&- >&- 2>&-"
        assert subprocess.run(closed, shell=True, check=False).returncode == 0, line
    names = ("train.jsonl", "train.jsonl.mmx", "train.jsonl.zst", "train.mma", "train.mma.mmx")
    assert sorted(os.listdir(tmp_path)) == sorted(names)
    assert package.open(path)[1] == package.open(f"{tmp_path}/train.mma")[1] == {"n": 2}


# ---- completion

COMPLETE = r"""
source ./script
wanted=$(complete -p mmapds | sed 's/.*-F \([^ ]*\).*/\1/')
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
$wanted mmapds "${!#}" "${@: -2:1}"
printf '%s\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def completed(tmp_path):
    """Returns what bash completes at the end of some words."""
    (tmp_path / "script").write_text(mmapds("--print-completion", "bash").stdout)
    for name in ("train.jsonl", "test.jsonl"):
        (tmp_path / name).touch()
    (tmp_path / "shards").mkdir()

    def completed(*words):
        run = ["bash", "-c", COMPLETE, "bash", *words]
        ran = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=True)
        assert ran.stderr == ""
        return set(ran.stdout.split())

    return completed


def test_bash_completes_commands_options_and_files(completed):
    commands = {"bench", "convert", "head", "index", "info", "report", "seekable", "show", "verify"}
    assert completed("mmapds", "") == commands
    assert completed("mmapds", "sh") == {"show"}
    assert {"--decode", "--full", "--build", "--root", "--help"} == completed("mmapds", "show", "--")
    assert completed("mmapds", "index", "--tr") == {"--truncated"}
    assert completed("mmapds", "head", "t") == {"train.jsonl", "test.jsonl"}


def test_zsh_takes_the_script():
    script = mmapds("--print-completion", "zsh").stdout
    assert script.startswith("#compdef mmapds\n")
    if zsh := shutil.which("zsh"):
        assert subprocess.run([zsh, "-n"], input=script, capture_output=True, text=True, check=True).stderr == ""


def test_without_shtab_the_command_says_what_to_install():
    code = """
import sys
sys.modules["shtab"] = None
from mmapds.cli.commands import main
assert main(["--print-completion", "bash"]) == 1
"""
    assert python(code).stderr == "completion needs shtab; run: pip install 'mmapds[completion]'\n"
