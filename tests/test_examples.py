"""The examples that `make demo` runs: they leave files, name commands that run, and show what they claim."""

import re
import subprocess

from tests.support.commands import run
from tests.support.files import ROOT


def test_the_demo_is_killed_resumes_counts_samples_and_names_commands_that_run(tmp_path):
    ran = run(ROOT / "examples" / "train_stdlib.py", "--out", "demo", "--records", "1500", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    found = re.search(r"Killing this process at step (\d+),.*\nResuming in epoch 0 at step (\d+)\.", ran.stdout)
    assert (int(found[1]) // 10 * 10, "step 0." in ran.stdout) == (int(found[2]), False)
    for epoch in (0, 1):
        assert f"Epoch {epoch}: every sample came once, 1,500 in all." in ran.stdout
    first, last = (float(re.findall(r"([\d.]+) bits a byte", ran.stdout)[k]) for k in (0, -1))
    assert last < first
    commands = [line.strip() for line in ran.stdout.partition("left for you to look at:\n")[2].splitlines() if line]
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
