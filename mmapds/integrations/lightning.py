"""Lightning: resume a checkpoint within an epoch with another number of processes."""

from typing import Any, cast

import lightning.pytorch as pl


class ResumeAtAnyWorldSize(pl.Callback):
    """Resumes a checkpoint within an epoch with another number of processes.

    Lightning resumes by the number of finished batches, which depends on the number of processes. This callback sets
    Lightning's counts from the sampler. After a checkpoint at the end of an epoch, it also counts the new epoch, so
    that later checkpoints resume inside the right epoch. Lightning does not load the loader's state if
    `configure_optimizers` reads `trainer.estimated_stepping_batches`; the callback then loads it. The loader must be
    a `mmapds.DataLoader`, or torchdata's `StatefulDataLoader`.
    """

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Set the numbers of started epochs, finished batches and batches in an epoch, after a resume."""
        epochs, loader = cast("Any", trainer.fit_loop), cast("Any", trainer.train_dataloader)
        if epochs.restarting and epochs._combined_loader_states_to_load:
            # Lightning set up its loaders before it read the state; Lightning 2.6 then never loads it.
            epochs._load_combined_loader_states()
            iter(epochs._data_fetcher)
        for progress in (epochs.epoch_progress.total, epochs.epoch_progress.current):
            # After a checkpoint at the end of an epoch, Lightning 2.6 does not count the new epoch.
            if epochs.restarted_mid_epoch and progress.ready <= progress.processed:
                progress.ready = progress.started = progress.processed + 1
        loop = epochs.epoch_loop
        left = _batches_left(loader)
        if not loop.restarting or left is None:
            return
        found, limit = len(loader), trainer.limit_train_batches
        _expect(trainer, int(found * limit) if isinstance(limit, float) else min(found, limit))
        # Lightning itself adds the batch of a checkpoint that was saved in on_train_batch_end.
        loop.batch_progress.current.completed = found - left - loop.restarted_on_train_batch_end


def _expect(trainer: pl.Trainer, batches: int) -> None:
    """Set the number of batches in an epoch everywhere that Lightning stores it."""
    loop = trainer.fit_loop
    if batches == loop.max_batches:
        return
    loop.max_batches = batches
    loaders, fetcher = cast("Any", loop._combined_loader), cast("Any", loop._data_fetcher)
    loaders.limits[:] = [batches]  # in place: its iterator shares the list
    fetcher.length = batches
    if isinstance(trainer.val_check_interval, float):
        trainer.val_check_batch = max(1, int(batches * trainer.val_check_interval))


def _batches_left(loader: Any) -> int | None:
    """Return the number of remaining batches of the epoch, or None without a sampler of mmapds."""
    batches: Any = getattr(loader, "batch_sampler", None)
    samples: Any = getattr(loader, "sampler", None)
    if hasattr(batches, "first_step"):
        return len(batches) - int(batches.first_step)
    if batches is not None and hasattr(samples, "first_step"):
        whole, rest = divmod(len(samples) - int(samples.first_step), int(batches.batch_size))
        return whole + (rest > 0 and not batches.drop_last)
    return None
