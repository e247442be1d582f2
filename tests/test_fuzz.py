"""The C core under address and undefined-behaviour sanitizers, with inputs that mean harm."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FUZZ = ROOT / "tests" / "fuzz"
TARGETS = sorted(path.stem for path in FUZZ.glob("fuzz_*.c") if path.stem != "fuzz_main")
FLAGS = ["-std=gnu11", "-g", "-O1", "-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Werror"]
FLAGS += ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
SECONDS = os.environ.get("MMAPDS_FUZZ_SECONDS", "3")


@pytest.fixture(scope="module")
def compiler():
    found = shutil.which("cc")
    assert found, "the tests build the C core, as the package itself does"
    return found


@pytest.fixture(scope="module")
def core(compiler, tmp_path_factory):
    """The objects that all targets are linked with: the core, compiled once, and the driver."""
    folder = tmp_path_factory.mktemp("core")
    sources = sorted((ROOT / "csrc").glob("*.c"))
    subprocess.run([compiler, *FLAGS, "-c", *sources, FUZZ / "fuzz_main.c"], cwd=folder, check=True)
    return sorted(folder.glob("*.o"))


@pytest.mark.parametrize("target", TARGETS)
def test_replay_and_mutate(tmp_path, compiler, core, target):
    program = tmp_path / target
    subprocess.run([compiler, *FLAGS, "-o", program, FUZZ / f"{target}.c", *core], check=True)
    seeds = sorted((FUZZ / "corpus" / target).iterdir())
    assert len(seeds) >= 5
    result = subprocess.run([program, SECONDS, "1", *seeds], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout.split()[0]) > 100


def test_every_corpus_has_a_target():
    assert sorted(path.name for path in (FUZZ / "corpus").iterdir()) == TARGETS
