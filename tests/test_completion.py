"""`mmapds --print-completion`: what shells complete by the script that it prints."""

import shutil
import subprocess

import pytest

from tests.support.commands import mmapds, python

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


def test_bash_completes_commands_options_names_and_files(completed):
    commands = {"bench", "convert", "head", "index", "info", "report", "seekable", "show", "verify"}
    assert completed("mmapds", "") == commands
    assert completed("mmapds", "sh") == {"show"}
    assert {"--decode", "--full", "--build", "--root", "--help"} == completed("mmapds", "show", "--")
    assert completed("mmapds", "index", "--tr") == {"--truncated"}
    assert completed("mmapds", "show", "--decode", "w") == {"wds"}
    assert completed("mmapds", "index", "--format", "tf") == {"tfrecord"}
    assert completed("mmapds", "convert", "--format", "p") == {"parquet", "prefixed"}
    assert completed("mmapds", "head", "t") == {"train.jsonl", "test.jsonl"}
    assert completed("mmapds", "index", "train.jsonl", "-o", "tr") == {"train.jsonl"}
    assert completed("mmapds", "head", "--root", "") == {"shards"}


def test_zsh_takes_the_script():
    script = mmapds("--print-completion", "zsh").stdout
    assert script.startswith("#compdef mmapds\n")
    assert ":(json text bytes files wds" in script
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
