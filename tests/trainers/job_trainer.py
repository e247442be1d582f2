"""Hugging Face's Trainer over datasets, and over loaders that `get_train_dataloader` returns."""

import os
import sys
import warnings

import torch
from transformers import Trainer, TrainerCallback, TrainingArguments

import mmapds
from mmapds.integrations.transformers import SameSteps
from tests.support import trainers
from tests.support.trainers import BATCH, EPOCHS, KINDS, PROCESSES, Job, loader_options

WITH_DATASET = ("dataset", *KINDS)
WORLDS, STOPS = [2, 3, 2], [5, 34]  # of parts, and the steps that they end after: within an epoch of 17, or at its end


class Model(trainers.Model):
    """Records the batches of each epoch that it is trained on."""

    def __init__(self, job, name, part):
        super().__init__()
        self.job, self.name, self.part = job, name, part
        self.epoch = 0

    def forward(self, ids):
        if self.training:
            self.job.read(self.name, self.epoch, ids, self.part)
        return {"loss": super().forward(ids), "ids": ids}


class Epochs(TrainerCallback):
    """Tells the model which epoch it is in, and interrupts training after a step, with a checkpoint."""

    def __init__(self, model, stop):
        self.model, self.stop = model, stop

    def on_epoch_begin(self, args, state, control, **_):
        self.model.epoch = int(state.epoch + 1e-6)

    def on_step_end(self, args, state, control, **_):
        if state.global_step == self.stop:
            control.should_save = control.should_training_stop = True


def collate(samples):
    return {"ids": trainers.ids_of(samples)}


class OwnLoader(Trainer):
    """Trains with the loader that it is given."""

    loader = None

    def get_train_dataloader(self):
        return self.loader


def fit(job, name, loader=None, *, part=0, stop=None, batch=BATCH):
    """Train for all epochs, or until a step."""
    model = Model(job, name, part)
    quiet = {"save_strategy": "no", "logging_strategy": "no", "report_to": "none", "disable_tqdm": True}
    arguments = TrainingArguments(
        output_dir=os.path.join(job.folder, "trainer", name),
        num_train_epochs=EPOCHS,
        per_device_train_batch_size=batch,
        remove_unused_columns=False,
        use_cpu=True,
        **quiet,
    )
    cls, callbacks = OwnLoader if loader else Trainer, [Epochs(model, stop), SameSteps()]
    trainer = cls(model, arguments, train_dataset=job.ds, data_collator=collate, callbacks=callbacks)
    trainer.loader = loader
    trainer.train(resume_from_checkpoint=bool(part))


def loader_of(job, kind, batch=BATCH):
    """Return a loader over a sampler of a kind; None for a dataset, which Trainer makes one of."""
    if kind == "dataset":
        return None
    return mmapds.DataLoader(job.ds, collate_fn=collate, num_workers=1, **loader_options(kind, job.ds, batch=batch)[1])


def train(job):
    for kind in WITH_DATASET:
        fit(job, kind, loader_of(job, kind))


def resume(job):
    """Jobs that are interrupted after some steps of 12 samples; budgets cut other batches in another world."""
    for kind in WITH_DATASET:
        for part, world, stop, _, _ in job.parts(f"{kind}, resumed", [2, 2, 2] if kind == "tokens" else WORLDS, STOPS):
            loader = loader_of(job, kind, 12 // world)
            fit(job, f"{kind}, resumed", loader, part=part, stop=stop, batch=12 // world)
        for part, _, stop, _, _ in job.parts(f"{kind}, refused", [2, 3], [7]):  # a checkpoint of other steps
            with job.refused(f"{kind}, refused", mmapds.StateError):
                fit(job, f"{kind}, refused", loader_of(job, kind), part=part, stop=stop)


def main(folder):
    warnings.filterwarnings("ignore", module="torch")
    job = Job(folder)
    torch.manual_seed(0)
    if job.join(PROCESSES):
        train(job)
    resume(job)
    job.write("job_trainer")


if __name__ == "__main__":
    main(*sys.argv[1:])
