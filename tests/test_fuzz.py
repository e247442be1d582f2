"""The C core under address and undefined-behaviour sanitizers, with inputs that mean harm."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TARGETS = sorted(path.stem for path in (ROOT / "tests" / "fuzz").glob("fuzz_*.c") if path.stem != "fuzz_main")


@pytest.mark.parametrize("target", TARGETS)
def test_replay_and_mutate(tmp_path, target):
    compiler = shutil.which("cc")
    assert compiler, "the tests build the C core, as the package itself does"
    core = sorted((ROOT / "csrc").glob("*.c"))
    fuzz = ROOT / "tests" / "fuzz"
    flags = ["-std=gnu11", "-g", "-O1", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined"]
    flags += ["-fno-sanitize-recover=all"]
    sources = [fuzz / f"{target}.c", fuzz / "fuzz_main.c", *core]
    subprocess.run([compiler, *flags, "-o", tmp_path / target, *sources], check=True)
    corpus = sorted((fuzz / "corpus").glob("*"))
    result = subprocess.run([tmp_path / target, "3", "1", *corpus], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout.split()[0]) > 100
