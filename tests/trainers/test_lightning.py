"""Lightning: every sample once an epoch at either flag, validation that is exact, and checkpoints within an epoch."""

import pytest

from tests.support.trainers import EPOCHS, KINDS, N, results_of
from tests.trainers.job_lightning import FABRIC, PARTS, RESUMED, SCHEDULED

results = results_of("job_lightning")


@pytest.mark.parametrize("loader", ["plain", "ours"])
@pytest.mark.parametrize(
    ("kind", "flag"), [("sampler", True), ("dataset", True), *((kind, False) for kind in KINDS)]
)  # of a dataset the samples are shared by Lightning's own sampler
def test_every_sample_comes_once_an_epoch(results, kind, loader, flag):
    results.check(f"{kind}, {loader}, {flag}")


@pytest.mark.parametrize("loader", ["plain", "ours"])
@pytest.mark.parametrize("kind", ["batch", "tokens"])
def test_a_batch_sampler_refuses_lightnings_own(results, kind, loader):
    results.check_refused(f"{kind}, {loader}, True", "use_distributed_sampler=False")


@pytest.mark.parametrize(("worlds", "stops"), PARTS)
@pytest.mark.parametrize("loader", RESUMED)
@pytest.mark.parametrize(
    ("kind", "is_scheduled"), [*((kind, False) for kind in KINDS), *((kind, True) for kind in SCHEDULED)]
)
def test_checkpoints_go_on_exactly_in_any_world(results, kind, loader, is_scheduled, worlds, stops):
    name = f"{kind}, {loader}, {worlds}, {stops}, {is_scheduled}"
    results.check(name, padding=max(worlds) - 1, parts=len(worlds))


@pytest.mark.parametrize("flag", [True, False])
def test_validation_sees_every_sample_once(results, flag):
    results.check(f"exact, {flag}")
    assert results.counts(f"exact, {flag}, validation") == dict.fromkeys(range(EPOCHS), dict.fromkeys(range(N), 1))


@pytest.mark.parametrize("kind", KINDS)
def test_fabric_goes_on_exactly_with_the_loader_as_it_is(results, kind):
    worlds, _ = FABRIC
    results.check(f"{kind}, fabric", padding=max(worlds) - 1, parts=2)
    results.check_refused(f"{kind}, fabric, set up", "epoch = 0, expected 1, that of the loaded state", ranks=3)
