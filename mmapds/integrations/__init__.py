"""Support for trainers and loaders of other libraries, one file for each.

This file has accelerate, whose prepared loaders shard batches themselves, so that a sampler must not shard them too.
"""

import sys
from typing import Any

from ..errors import OrderError


def refuse_second_sharding(sampler: Any, num_replicas: int, *, cuts: bool) -> None:
    """Raise OrderError if accelerate prepared a loader whose sampler already shares the samples among ranks.

    Args:
      cuts: whether accelerate may cut the batches into equal parts, because they all have one size.
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
