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


def test_the_driver_keeps_the_input_that_it_fails_with(tmp_path, core):
    source = tmp_path / "fuzz_fails.c"
    source.write_text(
        "#include <stdint.h>\n#include <stdlib.h>\n"
        "int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) { if (n > 3 && data[0] == 'x') abort(); return 0; }"
    )
    program = build_target(tmp_path, source.with_suffix(""), core)
    seed = tmp_path / "seed"
    seed.write_bytes(b"good")
    command = [program, "-runs=1000000", f"-artifact_prefix={tmp_path}/", seed]
    assert subprocess.run(command, check=False).returncode != 0
    assert (tmp_path / "finding").read_bytes()[:1] == b"x"
