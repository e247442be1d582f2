"""The examples that `make demo` runs: they leave files, name commands that run, and show what they claim."""

import re
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


def test_packed_and_padded_losses_agree(tmp_path):
    ran = run(ROOT / "examples" / "train_packed.py", "--seconds", "0.4", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    difference = re.search(r"padded differ by at most (\S+)", ran.stdout)
    assert float(difference[1]) <= 1e-5
    assert re.search(r"bytes/s in packs, .* random texts: [\d.]+ x", ran.stdout)


def test_the_picture_of_packs_is_what_its_script_draws():
    pictures = ROOT / "docs" / "pictures"
    ran = run(pictures / "draw_packs.py", cwd=ROOT)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == (pictures / "packs.svg").read_text()
