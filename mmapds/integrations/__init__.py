"""What trainers and loaders of others need to be exact, one file for each of them.

Here are accelerate, whose prepared loaders share out batches themselves, so that a sampler must not do it as well, and
Fabric, whose loaders count epochs themselves.
"""

import sys
from typing import Any

from ..errors import OrderError


def refuse_second_sharding(sampler: Any, num_replicas: int, *, cuts: bool) -> None:
    """Raise OrderError for a loader that accelerate prepared over a sampler that shares the samples already.

    Args:
      cuts: whether batches may be cut into equal parts, as they all have one size.
    """
    accelerate = sys.modules.get("accelerate.state")
    if accelerate is None or not accelerate.is_initialized() or (num_replicas == 1 and cuts):
        return
    processes = accelerate.PartialState().num_processes
    loader = accelerate.GradientState().active_dataloader
    found = getattr(loader, "batch_sampler", None)
    while found is not None and found is not sampler:  # a sampler around it
        inner = getattr(found, "batch_sampler", None)
        found = getattr(found, "sampler", None) if inner is None else inner
    if processes == 1 or found is None:
        return
    if num_replicas > 1:
        raise OrderError(
            f"num_replicas = {num_replicas}, expected 1 under accelerate's prepare(), which shares batches among "
            f"{processes} processes itself"
        )
    if isinstance(loader, sys.modules["accelerate.data_loader"].DataLoaderDispatcher):
        raise OrderError("dispatch_batches = True, expected False with batches of different sizes, which it cuts")


def refuse_counted_epochs(epoch: int, expected: int) -> None:
    """Raise OrderError where a loader of Fabric's `setup_dataloaders` sets the epoch, which it counts from 0 in a job.

    Args:
      epoch: the epoch that is set.
      expected: that of a loaded state.
    """
    frame = sys._getframe().f_back
    while frame is not None:
        if frame.f_globals.get("__name__") in ("lightning.fabric.wrappers", "lightning_fabric.wrappers"):
            raise OrderError(
                f"epoch = {epoch}, expected {expected}, that of the loaded state; a loader of Fabric's "
                "setup_dataloaders counts epochs from 0: use the loader as it is, and fabric.to_device(batch)"
            )
        frame = frame.f_back
