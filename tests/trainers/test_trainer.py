"""Hugging Face's Trainer: its own samplers over our dataset, and our loaders from `get_train_dataloader`."""

import pytest

from tests.support.messages import check
from tests.support.trainers import BATCH, PROCESSES, results_of
from tests.trainers.job_trainer import WITH_DATASET, WORLDS

results = results_of("job_trainer")


@pytest.mark.parametrize("kind", WITH_DATASET)
def test_a_dataset_or_a_loader(results, kind):
    filled = PROCESSES * BATCH - 1  # accelerate fills up the last batches of a dataset
    results.check(kind, padding=filled if kind == "dataset" else None)


@pytest.mark.parametrize("kind", WITH_DATASET)
def test_checkpoints_go_on_exactly_or_are_refused_where_steps_have_another_size(results, kind):
    results.check(f"{kind}, resumed", padding=11, parts=len(WORLDS))  # of 12 samples a step
    name = f"{kind}, refused"
    said = results.said(name)
    assert len(said) == 3
    sizes = "3 processes in each, found 2" if kind == "tokens" else "12 samples in each, found 8"
    for each in said:
        assert each.startswith(f"resume_from_checkpoint: of other steps: expected {sizes}; use 2 processes")
        check(each)
    assert {part for read in results.batches(name) for part, _, _ in read} == {0}
