"""Whether a sampler is of the dataset that a loader reads, and stands where it belongs."""

from typing import Any

import torch.utils.data

from ..errors import OrderError
from ..samplers.data import check_same_samples
from ..samplers.resumable import ResumableSampler


def check_samplers(dataset: Any, sampler: Any, batch_sampler: Any, *, batched: bool) -> None:
    """Refuse samplers of mmapds that yield batches where indices are drawn, or the reverse, or indices of other data.

    Args:
      batched: whether indices of the sampler are made into batches.
    Raises:
      OrderError: it is such a sampler.
    """
    if batched and isinstance(sampler, ResumableSampler) and _yields_batches(sampler):
        raise OrderError(
            f"sampler: expected one of single samples, found {type(sampler).__name__}, which yields batches; give it "
            "as batch_sampler="
        )
    if isinstance(batch_sampler, ResumableSampler) and not _yields_batches(batch_sampler):
        raise OrderError(
            f"batch_sampler: expected one of batches, found {type(batch_sampler).__name__}, which yields single "
            "samples; give it as sampler=, with a batch_size="
        )
    name, given = ("sampler", sampler) if batch_sampler is None else ("batch_sampler", batch_sampler)
    if type(given) is torch.utils.data.BatchSampler:
        given = given.sampler
    if isinstance(given, ResumableSampler):
        check_same_samples(dataset, name, given.sampled)


def _yields_batches(sampler: ResumableSampler) -> bool:
    return isinstance(sampler, torch.utils.data.BatchSampler)
