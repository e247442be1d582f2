"""Hugging Face's Trainer over datasets, and over loaders that `get_train_dataloader` returns."""

import os
import sys
import warnings

import torch
from accelerate.state import AcceleratorState, GradientState
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_pt_utils import LengthGroupedSampler

import mmapds
from mmapds.integrations.transformers import SameSteps
from tests.support import trainers
from tests.support.trainers import BATCH, EPOCHS, KINDS, Job, loader_options

PROCESSES, LAUNCHED = 2, 3
WITH_DATASET = ("dataset", *KINDS)
PARTS = [  # worlds, and the steps that parts end after: within an epoch of 26 steps of two ranks, or at its end
    ([2, 2], [7]),
    ([2, 2, 2], [26, 33]),
    ([2, 3, 2], [5, 30]),
]
LOADERS = [*((kind, True) for kind in KINDS), ("batch", False)]  # of ours and of torch's


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


class ByLength(Trainer):
    """Groups samples of about one length, from the lengths of the index."""

    def _get_train_sampler(self, train_dataset=None):
        lengths = self.train_dataset.lengths.tolist()
        return LengthGroupedSampler(self.args.train_batch_size, lengths=lengths)


class SettableLoader(DataLoader):
    """A torch DataLoader that passes on the epoch."""

    def set_epoch(self, epoch):
        self.batch_sampler.set_epoch(epoch)


def fit(job, name, *, cls=Trainer, loader=None, part=0, stop=None, resume=False, batch=BATCH, callbacks=()):
    """Train for all epochs, or until a step; return the trainer."""
    model = Model(job, name, part)
    folder = os.path.join(job.folder, "trainer", name)
    arguments = TrainingArguments(
        output_dir=folder,
        num_train_epochs=EPOCHS,
        per_device_train_batch_size=batch,
        per_device_eval_batch_size=BATCH,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        remove_unused_columns=False,
        logging_strategy="no",
        use_cpu=True,
    )
    trainer = cls(
        model, arguments, train_dataset=job.ds, data_collator=collate, callbacks=[Epochs(model, stop), *callbacks]
    )
    trainer.loader = loader
    trainer.train(resume_from_checkpoint=os.path.join(folder, f"checkpoint-{stop_of(folder)}") if resume else None)
    return trainer


def stop_of(folder):
    """Return the step of the only checkpoint in a folder."""
    return max(int(each.removeprefix("checkpoint-")) for each in os.listdir(folder))


def loader_of(job, kind, ours, batch=BATCH):
    _, options = loader_options(kind, job.ds, batch=batch)
    make = mmapds.DataLoader if ours else SettableLoader
    return make(job.ds, collate_fn=collate, num_workers=1 if ours else 0, **options)


def join(job, world):
    """Make a world of that size; return whether this process is in it."""
    GradientState._reset_state()
    AcceleratorState._reset_state(reset_partial_state=True)
    return job.join(world)


def resume(job):
    """Jobs that are interrupted after some steps of 12 samples; budgets cut other batches in another world."""
    for kind in WITH_DATASET:
        for worlds, stops in PARTS:
            for part, (world, stop) in enumerate(zip(worlds, [*stops, None], strict=True)):
                world = 2 if kind == "tokens" else world
                if join(job, world):
                    loader = None if kind == "dataset" else loader_of(job, kind, True, 12 // world)
                    cls = Trainer if kind == "dataset" else OwnLoader
                    more = {"resume": part > 0, "batch": 12 // world, "callbacks": [SameSteps()]}
                    fit(job, f"{kind}, {worlds}, {stops}", cls=cls, loader=loader, part=part, stop=stop, **more)


def refuse(job):
    """Checkpoints of steps of another size."""
    for kind in WITH_DATASET:
        for part, world in enumerate((2, 3)):
            if join(job, world):
                loader = None if kind == "dataset" else loader_of(job, kind, True)
                cls = Trainer if kind == "dataset" else OwnLoader
                more = {"resume": True} if part else {"stop": 7}
                try:
                    fit(job, f"{kind}, refused", cls=cls, loader=loader, part=part, callbacks=[SameSteps()], **more)
                except mmapds.StateError as error:
                    job.say(f"{kind}, refused", str(error))


def forget(job):
    """A torch DataLoader is not told the epoch, and neither is its sampler; which says so."""
    _, options = loader_options("batch", job.ds)
    try:
        fit(job, "forgotten", cls=OwnLoader, loader=DataLoader(job.ds, collate_fn=collate, **options))
    except UserWarning as warning:
        job.say("forgotten", str(warning))


def dataset(job):
    trainer = fit(job, "dataset")
    predicted = trainer.predict(job.ds).predictions  # losses, and ids
    job.say("dataset", sorted(predicted[-1].tolist()))
    fit(job, "by length", cls=ByLength)


def main(folder):
    warnings.filterwarnings("ignore", module="torch")
    job = Job(folder)
    torch.manual_seed(0)
    if job.join(PROCESSES):
        dataset(job)
        for kind, ours in LOADERS:
            name = f"{kind}, {'ours' if ours else 'settable'}"
            fit(job, name, cls=OwnLoader, loader=loader_of(job, kind, ours))
        forget(job)
    resume(job)
    refuse(job)
    job.write("job_trainer")


if __name__ == "__main__":
    main(*sys.argv[1:])
