"""Whole trainings: those of `make demo` show what they claim, and the script of the training page resumes."""

import os
import re
import subprocess

import pytest
import torch

import mmapds
from tests.support.commands import run
from tests.support.docs import blocks
from tests.support.files import ROOT


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("examples")


def test_the_demo_is_killed_resumes_counts_samples_and_names_commands_that_run(folder):
    ran = run(ROOT / "examples" / "train_stdlib.py", "--out", "demo", "--records", "1500", cwd=folder)
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
        done = subprocess.run(command, shell=True, cwd=folder, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, ""), command
        assert done.stdout


def test_packed_and_padded_losses_agree(folder):
    """On the data of the demo, as `make demo` runs it."""
    ran = run(ROOT / "examples" / "train_packed.py", "--seconds", "0.4", cwd=folder)
    assert ran.returncode == 0, ran.stderr
    difference = re.search(r"padded differ by at most (\S+)", ran.stdout)
    assert float(difference[1]) <= 1e-5
    assert re.search(r"bytes/s in packs, .* random texts: [\d.]+ x", ran.stdout)


def test_the_script_of_the_training_page_resumes_with_other_ranks(write, tmp_path):
    path = write([{"tokens": [1] * (5 + i % 195)} for i in range(2000)])
    mmapds.build(path, length="items(tokens)")
    code = blocks("docs/training.md", "python")[0]
    killed = code.replace(
        "                save()\n", "                save()\n                epoch == 1 and os._exit(9)\n"
    )
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "CUDA_VISIBLE_DEVICES": ""}
    for ranks, text in ((2, killed), (1, code)):  # the second one resumes from the last checkpoint of the first
        (tmp_path / "train.py").write_text(text)
        torchrun = ["torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        ran = run("-m", *torchrun, "train.py", env=environment, cwd=tmp_path)
        assert (ran.returncode == 0) == (text == code), ran.stderr
        state = torch.load(tmp_path / "last.pt", weights_only=True)["loader"]
        sampler = mmapds.TokenBudgetBatchSampler(mmapds.open(path), max_tokens=4096, num_replicas=1, rank=0)
        sampler.load_state_dict(state)
        assert (sampler.epoch, sampler.first_step > 0) == ((1, True) if text == killed else (3, False))
