"""The example that `make demo` runs: it leaves files, and names commands that run on them."""

import subprocess

import mmapds
from tests.support.commands import run
from tests.support.files import ROOT


def test_the_demo_leaves_files_and_names_commands_that_run(tmp_path):
    ran = run(ROOT / "examples" / "train_stdlib.py", "--out", "demo", "--seconds", "0.1", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert len(mmapds.open(tmp_path / "demo" / "stdlib.jsonl").lengths) > 1000
    commands = [line.strip() for line in ran.stdout.partition("are there to be looked at:\n")[2].splitlines() if line]
    assert len(commands) == 5
    for command in commands:
        done = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, ""), command
        assert done.stdout
