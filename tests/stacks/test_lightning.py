"""Lightning: every sample once an epoch at either flag, validation that is exact, and checkpoints within an epoch."""

from collections import Counter

import pytest

from tests.stacks.job_lightning import COUNTED, LAUNCHED, OFTEN, PROCESSES, STOPS
from tests.support.stacks import EPOCHS, KINDS, N, Results, launch


@pytest.fixture(scope="module")
def results(folder):
    launch("job_lightning", LAUNCHED, folder)
    return Results(folder, "job_lightning", LAUNCHED)


@pytest.mark.parametrize("flag", [True, False])
@pytest.mark.parametrize("loader", ["plain", "ours"])
def test_a_sampler(results, loader, flag):
    results.check(f"sampler, {loader}, {flag}")


@pytest.mark.parametrize("loader", ["plain", "ours"])
@pytest.mark.parametrize("kind", ["batch", "tokens"])
def test_a_batch_sampler_without_lightnings_own(results, kind, loader):
    results.check(f"{kind}, {loader}, False")


@pytest.mark.parametrize("loader", ["plain", "ours"])
@pytest.mark.parametrize("kind", ["batch", "tokens"])
def test_a_batch_sampler_refuses_lightnings_own(results, kind, loader):
    said = results.said(f"{kind}, {loader}, True")
    assert len(said) == PROCESSES
    for each in said:
        assert "use_distributed_sampler=False" in each
        assert ("sampler: expected None, found " if kind == "batch" else "Lightning can't inject") in each
    assert results.batches(f"{kind}, {loader}, True") == []


@pytest.mark.parametrize("loader", ["plain", "ours"])
def test_a_dataset_with_lightnings_own_sampler(results, loader):
    results.check(f"dataset, {loader}, True")


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("loader", ["ours", "stateful", "stateful with workers"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_goes_on_exactly(results, kind, loader, stop):
    results.check(f"{kind}, {loader}, interrupted after {stop}")


@pytest.mark.parametrize("stop", COUNTED)
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("loader", ["ours", "stateful"])
def test_batches_keep_their_numbers_with_a_last_one_or_without(results, loader, drop_last, stop):
    steps = 25 if drop_last else 26  # of 102 samples of a rank, 4 in each
    expected = [[epoch, number] for epoch in range(EPOCHS) for number in [*range(steps), "validation"]]
    if stop == steps:  # Lightning does not validate after a checkpoint of the last batch
        expected.remove([0, "validation"])
    said = results.said(f"counted, {loader}, {drop_last}, interrupted after {stop}")
    assert said == [expected] * PROCESSES


@pytest.mark.parametrize("flag", [True, False])
def test_validation_sees_every_sample_once(results, flag):
    results.check(f"exact, {flag}")
    read = results.batches(f"exact, {flag}, validation")
    for epoch in range(EPOCHS):
        found = Counter(each for batches in read for _, e, ids in batches if e == epoch for each in ids)
        assert found == dict.fromkeys(range(N), 1)


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("worlds", ["2 to 3", "3 to 2"])
@pytest.mark.parametrize("loader", ["ours", "stateful"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_goes_on_exactly_in_another_world(results, kind, loader, worlds, stop):
    results.check(f"{kind}, {loader}, {worlds}, interrupted after {stop}", padding=2)


@pytest.mark.parametrize(("loader", "times"), OFTEN)
@pytest.mark.parametrize("kind", KINDS)
def test_a_job_that_is_interrupted_often_goes_on_exactly_in_any_world(results, kind, loader, times):
    name = f"{kind}, {loader}, interrupted {times} times"
    results.check(name, padding=2)
    assert {part for part, _, _ in results.batches(name)[0]} == set(range(times + 1))
