"""accelerate: prepared loaders over samplers of one process, and samplers that would be shared out twice."""

import pytest

from tests.support.messages import check
from tests.support.trainers import BATCH, EPOCHS, KINDS, MAX_TOKENS, N, results_of
from tests.trainers.job_accelerate import CONFIGURATIONS, LOADERS, RESUMED, TWICE

PADDING = {"sampler": 3 * BATCH - 1, "batch": 3 * BATCH - 1, "tokens": MAX_TOKENS}  # accelerate repeats whole batches

results = results_of("job_accelerate")


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("configuration", CONFIGURATIONS)
def test_a_prepared_loader(results, configuration, kind, loader):
    name = f"{configuration}, {kind}, {loader}"
    if kind == "tokens" and configuration not in ("plain", "stateful"):  # whose batches would be cut
        results.check_refused(name, "dispatch_batches = True, expected False with", "split_batches==True")
        return
    results.check(name, padding=PADDING[kind])
    if kind != "tokens":
        whole = dict.fromkeys(range(EPOCHS), dict.fromkeys(range(N), 1))
        assert results.counts(f"{name}, gathered") == whole, "metrics are of every sample once"


@pytest.mark.parametrize("kind", KINDS)
def test_a_loader_that_is_not_prepared_and_an_interrupted_epoch_go_on_exactly(results, kind):
    results.check(f"not prepared, {kind}")
    for way, worlds in RESUMED:
        results.check(f"{way}, {kind}, {worlds}", padding=PADDING[kind], parts=2)


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize(("configuration", "kind"), TWICE)
def test_a_sampler_that_is_shared_out_twice_is_an_error(results, configuration, kind, loader):
    name = f"twice, {configuration}, {kind}, {loader}"
    text = "num_replicas = 2, expected 1 under accelerate's prepare(), which shares batches among 2 "
    results.check_refused(name, text)
    check(results.said(name)[0])
