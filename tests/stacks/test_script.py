"""Two lines are what it takes to change a script from torch's sampler and loader to ours."""

import pytest

from tests.stacks.job_script import PROCESSES, SCRIPT, TWO_LINES
from tests.support.stacks import Results, launch


@pytest.fixture(scope="module")
def results(folder):
    launch("job_script", PROCESSES, folder)
    return Results(folder, "job_script", PROCESSES)


@pytest.mark.parametrize("whose", ["torch's", "ours"])
def test_every_sample_is_read_once(results, whose):
    results.check(whose)


def test_the_steps_are_those_of_torch(results):
    assert results.said("ours") == results.said("torch's") == [[102, 26]] * PROCESSES
    assert all(SCRIPT.count(line) == 1 for line in TWO_LINES)
