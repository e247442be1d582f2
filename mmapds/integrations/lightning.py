"""Lightning: checkpoints within an epoch, continued by another number of processes."""

from typing import Any, cast

import lightning.pytorch as pl

from ..errors import StateError
from ..samplers.resumable import ResumableSampler


class ResumeAtAnyWorldSize(pl.Callback):
    """Lets a checkpoint within an epoch go on with another number of processes.

    A checkpoint of Lightning counts the batches that were done, and the job that goes on does as many as are missing in
    an epoch. With more processes, an epoch has fewer batches, so samples at its end would be left out; with fewer
    processes, batches would be missing in the next epoch. This callback sets that count to what the sampler has left.

    The loader needs states: `mmapds.DataLoader`, or torchdata's `StatefulDataLoader`. Over other samplers than those of
    mmapds, the callback does nothing.

    Raises:
      StateError: an epoch has more batches since the state was loaded, which Lightning does not see. Batches of a
        budget stay those of the world that saved the state, and may be more than this one would have.
    """

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Set how many batches are done, where a checkpoint was loaded."""
        loop, loader = trainer.fit_loop.epoch_loop, cast("Any", trainer.train_dataloader)
        left = _batches_left(loader)
        if not loop.restarting or left is None:
            return
        expected, found = trainer.num_training_batches, len(loader)
        if trainer.limit_train_batches == 1.0 and found > expected:
            raise StateError(
                f"ckpt_path: of another number of processes: expected {expected} batches an epoch, found {found}; "
                "resume with the number of processes that saved it"
            )
        # The batch of a checkpoint that was saved in on_train_batch_end is added when the loop begins.
        loop.batch_progress.current.completed = found - left - loop.restarted_on_train_batch_end


def _batches_left(loader: Any) -> int | None:
    """Return the batches of the pass that a loader begins with, or None without a sampler of mmapds."""
    batches, samples = getattr(loader, "batch_sampler", None), getattr(loader, "sampler", None)
    if isinstance(batches, ResumableSampler):
        return batches.current_pass.steps
    if batches is not None and isinstance(samples, ResumableSampler):
        return -(-samples.current_pass.steps // int(batches.batch_size))
    return None
