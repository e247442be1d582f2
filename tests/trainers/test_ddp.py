"""A job with DistributedDataParallel whose processes are killed, and that other numbers of processes go on with."""

import pytest

from tests.support.trainers import EPOCHS, N, launch, results_of
from tests.trainers.job_ddp import EVERY, NAMES


@pytest.fixture(scope="module")
def killed(folder):
    launch("job_ddp", 2, folder, 3 * EVERY + 2, killed=1)
    launch("job_ddp", 3, folder, 2 * EVERY + 3, killed=1)


results = results_of("job_ddp", 2, 0, after="killed")


@pytest.mark.parametrize("name", NAMES)
def test_a_killed_job_trains_on_every_sample_once_in_equal_steps(results, name):
    counts = results.counts(name)
    assert {epoch: set(found) for epoch, found in counts.items()} == {epoch: set(range(N)) for epoch in range(EPOCHS)}
    assert all(found.total() - N <= 2 for found in counts.values())  # three processes pad the last step with two
    first, second = (sum(epoch == EPOCHS - 1 for _, epoch, _ in batches) for batches in results.batches(name))
    assert first == second
