"""accelerate: prepared loaders over samplers of one process, and samplers that would be shared out twice."""

from collections import Counter

import pytest

from tests.stacks.job_accelerate import CUTTING, LAUNCHED, LOADERS, PROCESSES, TIMES
from tests.support.messages import check
from tests.support.stacks import BATCH, EPOCHS, KINDS, MAX_TOKENS, N, Results, launch

PADDING = {"sampler": 2 * BATCH - 1, "batch": 2 * BATCH - 1, "tokens": MAX_TOKENS}  # accelerate repeats whole batches


@pytest.fixture(scope="module")
def results(folder):
    launch("job_accelerate", LAUNCHED, folder)
    return Results(folder, "job_accelerate", LAUNCHED)


@pytest.mark.parametrize("stateful", ["", ", stateful"])
@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_prepared_loader(results, kind, loader, stateful):
    results.check(f"prepared, {kind}, {loader}{stateful}", padding=PADDING[kind])


@pytest.mark.parametrize("stateful", ["", ", stateful"])
@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("kind", ["sampler", "batch"])
def test_gathered_metrics_are_of_every_sample_once(results, kind, loader, stateful):
    (gathered,) = results.batches(f"prepared, {kind}, {loader}{stateful}, gathered")
    for epoch in range(EPOCHS):
        assert Counter(each for _, e, ids in gathered if e == epoch for each in ids) == dict.fromkeys(range(N), 1)


@pytest.mark.parametrize("way", ["skip", "state"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_interrupted_epoch_goes_on_exactly(results, kind, way):
    results.check(f"resumed by {way}, {kind}", padding=PADDING[kind])


@pytest.mark.parametrize("times", TIMES)
@pytest.mark.parametrize("way", ["skip", "state"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_job_that_is_interrupted_often_goes_on_exactly(results, kind, way, times):
    name = f"{way}, {kind}, {times} times"
    results.check(name, padding=max(PADDING[kind], 3 * BATCH - 1))
    assert {part for part, _, _ in results.batches(name)[0]} == set(range(times + 1))


@pytest.mark.parametrize("how", CUTTING)
@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("kind", ["sampler", "batch"])
def test_batches_of_one_size_may_be_cut(results, kind, loader, how):
    name = f"{how}, {kind}, {loader}"
    results.check(name, padding=2 * BATCH - 1)
    (gathered,) = results.batches(f"{name}, gathered")
    for epoch in range(EPOCHS):
        assert Counter(each for _, e, ids in gathered if e == epoch for each in ids) == dict.fromkeys(range(N), 1)


@pytest.mark.parametrize("how", CUTTING)
@pytest.mark.parametrize("loader", LOADERS)
def test_batches_of_a_budget_that_would_be_cut_are_an_error(results, loader, how):
    name = f"{how}, tokens, {loader}"
    assert results.batches(name) == []
    said = results.said(name)
    assert len(said) == PROCESSES
    expected = (
        "dispatch_batches = True, expected False with"
        if how == "dispatched"
        else "In order to use `split_batches==True` you must have a `batch_size`"
    )
    assert all(each.startswith(expected) for each in said), said
    if how == "dispatched":
        check(said[0])


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_loader_that_is_not_prepared(results, kind, loader):
    results.check(f"not prepared, {kind}, {loader}")


@pytest.mark.parametrize(
    ("how", "kind"),
    [*((how, kind) for how in ("prepare", "stateful") for kind in KINDS), ("dispatched", "batch")],
)
@pytest.mark.parametrize("loader", LOADERS)
def test_a_sampler_that_is_shared_out_twice_is_an_error(results, kind, loader, how):
    name = f"twice, {how}, {kind}, {loader}"
    assert results.batches(name) == []
    said = results.said(name)
    assert len(said) == PROCESSES
    for each in said:
        assert "num_replicas = 2, expected 1 under accelerate's prepare(), which shares batches among 2 " in each
