"""accelerate: prepared loaders over samplers of one process, and samplers that would be shared out twice."""

from collections import Counter

import pytest

from tests.support.messages import check
from tests.support.trainers import BATCH, EPOCHS, KINDS, MAX_TOKENS, N, Results, launch
from tests.trainers.job_accelerate import CONFIGURATIONS, LAUNCHED, LOADERS, PROCESSES

PADDING = {"sampler": 3 * BATCH - 1, "batch": 3 * BATCH - 1, "tokens": MAX_TOKENS}  # accelerate repeats whole batches


@pytest.fixture(scope="module")
def results(folder):
    launch("job_accelerate", LAUNCHED, folder)
    return Results(folder, "job_accelerate", LAUNCHED)


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("configuration", CONFIGURATIONS)
def test_a_prepared_loader(results, configuration, kind, loader):
    name = f"{configuration}, {kind}, {loader}"
    if kind == "tokens" and configuration not in ("plain", "stateful"):  # whose batches would be cut
        assert results.batches(name) == []
        said = results.said(name)
        assert len(said) == PROCESSES
        assert "dispatch_batches = True, expected False with" in said[0] or "split_batches==True" in said[0]
        return
    results.check(name, padding=PADDING[kind])
    for gathered in results.batches(f"{name}, gathered"):
        for epoch in range(EPOCHS):
            found = Counter(each for _, e, ids in gathered if e == epoch for each in ids)
            assert found == dict.fromkeys(range(N), 1), "metrics are of every sample once"


@pytest.mark.parametrize("kind", KINDS)
def test_a_loader_that_is_not_prepared(results, kind):
    results.check(f"not prepared, {kind}")


@pytest.mark.parametrize(
    "name", ["skip, {}, [2, 2]", "state, {}, [2, 2]", "state, {}, [2, 3]", "state, {}, [3, 2]"], ids=str
)
@pytest.mark.parametrize("kind", KINDS)
def test_an_interrupted_epoch_goes_on_exactly(results, kind, name):
    results.check(f"resumed by {name.format(kind)}", padding=PADDING[kind])


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize(
    ("configuration", "kind"),
    [*((each, kind) for each in ("plain", "stateful") for kind in KINDS), ("dispatched", "batch")],
)
def test_a_sampler_that_is_shared_out_twice_is_an_error(results, configuration, kind, loader):
    name = f"twice, {configuration}, {kind}, {loader}"
    assert results.batches(name) == []
    said = results.said(name)
    assert len(said) == PROCESSES
    for each in said:
        assert "num_replicas = 2, expected 1 under accelerate's prepare(), which shares batches among 2 " in each
        check(each)
