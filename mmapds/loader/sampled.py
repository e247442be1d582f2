"""Whether a sampler is of the dataset that a loader reads, and stands where it belongs."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch.utils.data

from ..dataset.dataset import Dataset
from ..dataset.location import Location
from ..errors import OrderError
from ..samplers.resumable import ResumableSampler

_COMPARED = 64  # positions of two views of the same sources


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
        _check_same_samples(dataset, name, given.sampled)


def _yields_batches(sampler: ResumableSampler) -> bool:
    return isinstance(sampler, torch.utils.data.BatchSampler)


def _check_same_samples(dataset: Any, name: str, sampled: Any) -> None:
    if sampled is dataset:
        return
    try:
        expected = len(dataset)
    except TypeError:  # a dataset of others may have dataset[i] alone
        return
    if len(sampled) != expected:
        raise OrderError(
            f"{name}: expected one of the {expected} samples of the dataset, found one of {len(sampled)}; make both of "
            "the same view"
        )
    if isinstance(dataset, Dataset) and isinstance(sampled, Dataset) and _are_other_rows(dataset, sampled):
        raise OrderError(
            f"{name}: expected one of the {expected} samples of the dataset, found one of {len(sampled)} other samples "
            "of its sources; make both of the same view"
        )


def _are_other_rows(one: Dataset, other: Dataset) -> bool:
    """Return whether two datasets of equal length have a source in common, but not the record at each position.

    Sources that are parallel, such as texts and their translations, may have nothing in common.
    """
    if not len(one) or not set(one.sources) & set(other.sources):
        return False
    positions = np.linspace(0, len(one) - 1, min(len(one), _COMPARED)).astype(np.int64).tolist()
    return any(not _locations(one.where(i)) & _locations(other.where(i)) for i in positions)


def _locations(where: Location | Mapping[str, Any]) -> set[Location]:
    """Return where a sample lies: in one place, or in one for each member of a zip."""
    return set().union(*map(_locations, where.values())) if isinstance(where, Mapping) else {where}
