"""The C core under address and undefined-behaviour sanitizers, with inputs that mean harm; `make fuzz` goes on."""

import os
import subprocess

import pytest

from tests.support.fuzzing import CORPUS, TARGETS, build_core, build_target

pytestmark = pytest.mark.nightly  # it compiles each target

SECONDS = os.environ.get("MMAPDS_FUZZ_SECONDS", "2")


@pytest.fixture(scope="module")
def core(tmp_path_factory):
    """The objects that all targets are linked with: the core, compiled once, and the driver."""
    return build_core(tmp_path_factory.mktemp("core"))


@pytest.mark.parametrize("target", TARGETS)
def test_replay_and_mutate(tmp_path, core, target):
    program = build_target(tmp_path, target, core)
    assert sorted(path.name for path in CORPUS.iterdir()) == TARGETS
    assert len(list((CORPUS / target).iterdir())) >= 5
    command = [program, f"-max_total_time={SECONDS}", "-seed=1", f"-artifact_prefix={tmp_path}/", CORPUS / target]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    finding = tmp_path / "finding"
    assert result.returncode == 0, f"{finding.read_bytes() if finding.exists() else None}: {result.stderr}"
    assert int(result.stdout.split()[1]) > 100
