"""Lightning: every sample once an epoch at either flag, and checkpoints within an epoch."""

import pytest

from tests.support.trainers import KINDS, results_of
from tests.trainers.job_lightning import FABRIC, PARTS, RESUMED

results = results_of("job_lightning")


@pytest.mark.parametrize("loader", ["plain", "ours"])
@pytest.mark.parametrize(
    ("kind", "flag"), [("sampler", True), ("dataset", True), *((kind, False) for kind in KINDS)]
)  # of a dataset the samples are shared by Lightning's own sampler
def test_every_sample_comes_once_an_epoch(results, kind, loader, flag):
    results.check(f"{kind}, {loader}, {flag}")


@pytest.mark.parametrize("kind", ["batch", "tokens"])
def test_a_batch_sampler_refuses_lightnings_own(results, kind):
    results.check_refused(f"{kind}, ours, True", "use_distributed_sampler=False")


@pytest.mark.parametrize(("worlds", "stops"), PARTS)
@pytest.mark.parametrize("loader", RESUMED)
@pytest.mark.parametrize("kind", KINDS)
def test_checkpoints_go_on_exactly_in_any_world(results, kind, loader, worlds, stops):
    results.check(f"{kind}, {loader}, {worlds}, {stops}", padding=max(worlds) - 1, parts=len(worlds))


@pytest.mark.parametrize("kind", KINDS)
def test_fabric_goes_on_exactly_with_the_loader_as_it_is(results, kind):
    worlds, _ = FABRIC
    results.check(f"{kind}, fabric", padding=max(worlds) - 1, parts=2)
    results.check_refused(f"{kind}, fabric, set up", "epoch = 0, expected 1, that of the loaded state", ranks=3)
