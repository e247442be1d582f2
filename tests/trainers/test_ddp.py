"""A job with DistributedDataParallel whose processes are killed, and that other numbers of processes go on with."""

import json
from collections import Counter

import pytest

from tests.support.trainers import EPOCHS, KINDS, N, Results, launch
from tests.trainers.job_ddp import EVERY


@pytest.fixture(scope="module")
def results(folder):
    launch("job_ddp", 2, folder, 3 * EVERY + 2, killed=1)
    launch("job_ddp", 3, folder, 2 * EVERY + 3, killed=1)
    launch("job_ddp", 2, folder, 0)
    return Results(folder, "job_ddp", 2)


@pytest.mark.parametrize("workers", ["processes", "threads"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_job_trains_on_every_sample_once(results, folder, kind, workers):
    read = results.batches(f"{kind}, {workers}")
    for epoch in range(EPOCHS):
        found = Counter(each for batches in read for _, e, ids in batches if e == epoch for each in ids)
        assert set(found) == set(range(N))
        assert found.total() - N <= 2  # three processes pad the last step with two
    saved = json.loads((folder / f"{kind}{'-threads' if workers == 'threads' else ''}.checkpoint").read_text())
    assert saved["state"]["epoch"] == EPOCHS - 1


@pytest.mark.parametrize("workers", ["processes", "threads"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_processes_have_the_same_steps(results, kind, workers):
    first, second = (
        Counter(epoch for _, epoch, _ in batches if epoch) for batches in results.batches(f"{kind}, {workers}")
    )
    assert first[EPOCHS - 1] == second[EPOCHS - 1]
