"""Own loops with DDP over torch's, torchdata's and our loaders, interrupted often, at other numbers of processes."""

import pytest

from tests.stacks.job_loops import PROCESSES, scenarios
from tests.support.stacks import Results, launch


@pytest.fixture(scope="module")
def results(folder):
    launch("job_loops", PROCESSES, folder)
    return Results(folder, "job_loops", PROCESSES)


@pytest.mark.parametrize(("name", "times"), [(each[0], each[3]) for each in scenarios()])
def test_a_loop_that_is_interrupted_reads_every_sample_once(results, name, times):
    results.check(name, padding=PROCESSES - 1)
    assert {part for part, _, _ in results.batches(name)[0]} == set(range(times + 1))
