"""Lightning: every sample once an epoch at either flag, validation that is exact, and checkpoints within an epoch."""

from collections import Counter

import pytest

from tests.support.trainers import EPOCHS, KINDS, N, Results, launch
from tests.trainers.job_lightning import LAUNCHED, PARTS, PROCESSES, RESUMED


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


@pytest.mark.parametrize(("worlds", "stops"), PARTS)
@pytest.mark.parametrize("loader", RESUMED)
@pytest.mark.parametrize("kind", KINDS)
def test_checkpoints_go_on_exactly_in_any_world(results, kind, loader, worlds, stops):
    name = f"{kind}, {loader}, {worlds}, {stops}"
    results.check(name, padding=max(worlds) - 1)
    assert {part for part, _, _ in results.batches(name)[0]} == set(range(len(worlds)))


@pytest.mark.parametrize("flag", [True, False])
def test_validation_sees_every_sample_once(results, flag):
    results.check(f"exact, {flag}")
    read = results.batches(f"exact, {flag}, validation")
    for epoch in range(EPOCHS):
        found = Counter(each for batches in read for _, e, ids in batches if e == epoch for each in ids)
        assert found == dict.fromkeys(range(N), 1)
