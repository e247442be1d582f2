"""Hugging Face's Trainer: a check that a resumed job has the same steps."""

from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState

from ..errors import StateError


class SameSteps(TrainerCallback, ExportableState):
    """Refuses a checkpoint whose steps had another number of samples.

    A Trainer resumes by skipping as many steps as the checkpoint counts. If steps now have another number of samples,
    that would skip or repeat samples. For batches under a token budget, the number of processes must be the same.

    Raises:
      StateError: when training begins from such a checkpoint.
    """

    def __init__(self) -> None:
        self.processes: int | None = None
        self.samples: int | None = None

    def state(self) -> dict[str, Any]:
        """Return the values to save in a checkpoint."""
        return {"args": {}, "attributes": {"processes": self.processes, "samples": self.samples}}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any
    ) -> None:
        """Compare the steps of this job with those of the loaded checkpoint."""
        batch_sampler = getattr(others.get("train_dataloader"), "batch_sampler", None)
        batch_size = getattr(batch_sampler, "batch_size", None)
        self.processes = args.world_size
        self.samples = batch_size and batch_size * args.world_size * args.gradient_accumulation_steps
        stored: Any = state.stateful_callbacks or {}  # by class name
        before = stored.get(type(self).__name__, {}).get("attributes", {}) if state.global_step else {}
        name = "samples" if self.samples else "processes"
        found, own = before.get(name), getattr(self, name)
        if found is not None and found != own:
            raise StateError(
                f"resume_from_checkpoint: of other steps: expected {own} {name} in each, found {found}; use "
                f"{before['processes']} processes"
            )
