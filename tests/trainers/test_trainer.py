"""Hugging Face's Trainer: its own samplers over our dataset, and our loaders from `get_train_dataloader`."""

import pytest

from tests.support.messages import check
from tests.support.trainers import BATCH, KINDS, PROCESSES, N, results_of
from tests.trainers.job_trainer import PARTS, WITH_DATASET

WHOLE_BATCHES = PROCESSES * BATCH - 1  # accelerate fills up the last batches


results = results_of("job_trainer")


@pytest.mark.parametrize("name", ["dataset", "by length"])
def test_a_dataset(results, name):
    results.check(name, padding=WHOLE_BATCHES)


def test_predictions_are_of_every_sample_once(results):
    assert results.said("dataset") == [list(range(N))] * PROCESSES


def test_groups_by_length_are_of_about_one_length(results):
    """Of batches in random order, lengths would differ by some 14 of 23."""
    batches = [ids for read in results.batches("by length") for _, _, ids in read]
    spread = [max(lengths) - min(lengths) for lengths in ([1 + i * 7919 % 23 for i in ids] for ids in batches)]
    assert sum(spread) / len(spread) < 4


@pytest.mark.parametrize("name", KINDS)
def test_a_loader(results, name):
    results.check(name)


@pytest.mark.parametrize(("worlds", "stops"), PARTS)
@pytest.mark.parametrize("kind", WITH_DATASET)
def test_checkpoints_go_on_exactly(results, kind, worlds, stops):
    results.check(f"{kind}, {worlds}, {stops}", padding=11, parts=len(worlds))  # of 12 samples a step


@pytest.mark.parametrize("kind", WITH_DATASET)
def test_a_checkpoint_of_steps_of_another_size_is_refused(results, kind):
    name = f"{kind}, refused"
    said = results.said(name)
    assert len(said) == 3
    sizes = "3 processes in each, found 2" if kind == "tokens" else "12 samples in each, found 8"
    for each in said:
        assert each.startswith(f"resume_from_checkpoint: of other steps: expected {sizes}; use 2 processes")
        check(each)
    assert {part for read in results.batches(name) for part, _, _ in read} == {0}


def test_a_loader_that_keeps_the_epoch_to_itself_warns(results):
    said = results.said("forgotten")
    assert len(said) == PROCESSES
    for each in said:
        assert each.startswith("epoch = 0, expected a new one in a second pass; set it with set_epoch()")
