"""Hugging Face's Trainer over datasets, and over loaders that `get_train_dataloader` returns."""

import os
import random
import sys
import warnings

import torch
from accelerate.state import AcceleratorState, GradientState
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_pt_utils import LengthGroupedSampler

import mmapds
from mmapds.integrations.transformers import SameSteps
from tests.support import stacks
from tests.support.stacks import BATCH, EPOCHS, KINDS, Job, loader_options

PROCESSES, LAUNCHED = 2, 3
WITH_DATASET = ("dataset", *KINDS)
OFTEN = [  # which loader, how often it is interrupted, and whether for other worlds; budgets cut other batches there
    *(("dataset", times, True) for times in (1, 2, 5)),
    *(("batch", times, True) for times in (1, 2, 5)),
    *(("tokens", times, False) for times in (1, 2, 5)),
    ("sampler", 2, True),
]
STOPS = (7, 26, 33)  # of 26 steps with batches of a fixed size: within an epoch, at its end, and within the next
LOADERS = [*((kind, True) for kind in KINDS), ("batch", False)]  # of ours and of torch's


class Model(stacks.Model):
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
    return {"ids": stacks.ids_of(samples)}


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


def own_loaders(job):
    for kind, ours in LOADERS:
        name = f"{kind}, {'ours' if ours else 'settable'}"
        fit(job, name, cls=OwnLoader, loader=loader_of(job, kind, ours))
        for stop in STOPS:
            for part in range(2):
                more = {"resume": True} if part else {"stop": stop}
                loader = loader_of(job, kind, ours)
                fit(job, f"{name}, interrupted after {stop}", cls=OwnLoader, loader=loader, part=part, **more)


def join(job, world):
    """Make a world of that size; return whether this process is in it."""
    GradientState._reset_state()
    AcceleratorState._reset_state(reset_partial_state=True)
    return job.join(world)


def interrupt_often(job):
    """Jobs of two processes, or of two and three in turn, that are interrupted at random steps."""
    for kind, times, in_other_worlds in OFTEN:
        go_on(job, f"{kind}, {times} times", kind, times, [2, 3 if in_other_worlds else 2] * 3)


def go_on(job, name, kind, times, worlds):
    """Train in parts: 12 samples a step in any world."""
    chance = random.Random(name)
    stops = [*sorted(chance.sample(range(1, 45), times)), None]
    for part, (stop, world) in enumerate(zip(stops, worlds, strict=False)):
        if join(job, world):
            batch = 12 // world
            loader = None if kind == "dataset" else loader_of(job, kind, True, batch)
            cls = Trainer if kind == "dataset" else OwnLoader
            more = {"part": part, "stop": stop, "resume": part > 0, "batch": batch, "callbacks": [SameSteps()]}
            fit(job, name, cls=cls, loader=loader, **more)


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
    for part in range(2):
        fit(job, "dataset, interrupted", part=part, **({"resume": True} if part else {"stop": 33}))
    fit(job, "by length", cls=ByLength)


def main(folder):
    warnings.filterwarnings("ignore", module="torch")
    job = Job(folder)
    torch.manual_seed(0)
    if job.join(PROCESSES):
        dataset(job)
        own_loaders(job)
        forget(job)
    interrupt_often(job)
    refuse(job)
    job.write("job_trainer")


if __name__ == "__main__":
    main(*sys.argv[1:])
