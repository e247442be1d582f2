"""Lightning: checkpoints within an epoch, continued by another number of processes."""

from typing import Any, cast

import lightning.pytorch as pl


class ResumeAtAnyWorldSize(pl.Callback):
    """Resumes a checkpoint within an epoch at another number of processes.

    Lightning resumes by the batches that were done, of which another number of processes has more or fewer. This
    callback sets its counts to what the sampler has. It also counts the epoch that begins after a checkpoint of the
    last step of one, so that later checkpoints go on within their epoch. And it loads the loader's state where
    Lightning does not, as `configure_optimizers` asked for `trainer.estimated_stepping_batches`. The loader needs
    states: `mmapds.DataLoader`, or torchdata's `StatefulDataLoader`.
    """

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Set how many epochs have begun, how many batches are done, and how many there are, after a checkpoint."""
        epochs, loader = cast("Any", trainer.fit_loop), cast("Any", trainer.train_dataloader)
        if epochs.restarting and epochs._combined_loader_states_to_load:
            # Its loaders were set up before there was a state: Lightning 2.6 loads none after that.
            epochs._load_combined_loader_states()
            iter(epochs._data_fetcher)
        for progress in (epochs.epoch_progress.total, epochs.epoch_progress.current):
            # After a checkpoint of the last step of an epoch, Lightning 2.6 does not count the one that begins.
            if epochs.restarted_mid_epoch and progress.ready <= progress.processed:
                progress.ready = progress.started = progress.processed + 1
        loop = epochs.epoch_loop
        left = _batches_left(loader)
        if not loop.restarting or left is None:
            return
        found, limit = len(loader), trainer.limit_train_batches
        _expect(trainer, int(found * limit) if isinstance(limit, float) else min(found, limit))
        # The batch of a checkpoint that was saved in on_train_batch_end is added when the loop begins.
        loop.batch_progress.current.completed = found - left - loop.restarted_on_train_batch_end


def _expect(trainer: pl.Trainer, batches: int) -> None:
    """Give every epoch that many batches, wherever Lightning has kept another number."""
    loop = trainer.fit_loop
    if batches == loop.max_batches:
        return
    loop.max_batches = batches
    loaders, fetcher = cast("Any", loop._combined_loader), cast("Any", loop._data_fetcher)
    loaders.limits[:] = [batches]  # the list that its iterator has too
    fetcher.length = batches
    if isinstance(trainer.val_check_interval, float):
        trainer.val_check_batch = max(1, int(batches * trainer.val_check_interval))


def _batches_left(loader: Any) -> int | None:
    """Return the batches that are left of the epoch, or None without a sampler of mmapds."""
    batches: Any = getattr(loader, "batch_sampler", None)
    samples: Any = getattr(loader, "sampler", None)
    if hasattr(batches, "first_step"):
        return len(batches) - int(batches.first_step)
    if batches is not None and hasattr(samples, "first_step"):
        whole, rest = divmod(len(samples) - int(samples.first_step), int(batches.batch_size))
        return whole + (rest > 0 and not batches.drop_last)
    return None
