"""Lightning: every sample once an epoch at either flag, validation that is exact, and checkpoints within an epoch."""

from collections import Counter

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from torchdata.stateful_dataloader import StatefulDataLoader

import mmapds
from mmapds.integrations.lightning import ResumeAtAnyWorldSize
from tests.stacks.job_lightning import COUNTED, LAUNCHED, OFTEN, PROCESSES, STOPS, Interrupted
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


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", [mmapds.DataLoader, StatefulDataLoader])
def test_a_checkpoint_after_one_of_the_last_step_of_an_epoch_goes_on_exactly(tmp_path, make):
    """Every step is saved. Jobs are killed after the last step of an epoch, and within the next."""

    class Learner(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.weight, self.read = torch.nn.Parameter(torch.zeros(1)), []

        def training_step(self, ids):
            self.read.append((self.current_epoch, ids))
            return self.weight.sum()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    class Killed(Callback):
        def __init__(self, after):
            self.after = after

        def on_train_batch_start(self, trainer, *_):
            if trainer.global_step == self.after:
                raise Interrupted

    def read(first, steps):
        sampler, learner = mmapds.DistributedBatchSampler(range(24), 4, 1, 0), Learner()
        saves = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=1, save_top_k=-1)
        trainer = pl.Trainer(
            accelerator="cpu",
            devices=1,
            max_epochs=4,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            use_distributed_sampler=False,
            callbacks=[saves, ResumeAtAnyWorldSize(), Killed(first + steps)],
        )
        path = tmp_path / f"step={first}.ckpt" if first else None
        with pytest.raises(Interrupted):
            trainer.fit(learner, make(range(24), batch_sampler=sampler, collate_fn=list), ckpt_path=path)
        return learner.read

    expected = []
    sampler = mmapds.DistributedBatchSampler(range(24), 4, 1, 0)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        expected += [(epoch, list(map(int, batch))) for batch in sampler]
    assert read(0, 6) + read(6, 3) + read(9, 4) + read(13, 5) == expected
