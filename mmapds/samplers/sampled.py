"""What samplers and loaders ask of a dataset: whether it is the sampler's own, and what an order costs there."""

import operator
import os
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np
import torch.utils.data

from ..dataset.dataset import Dataset
from ..errors import Error, OrderError, warn, way_to_seekable
from ..orders.basic import Int64s

_COMPARED = 64  # positions compared between two datasets


def are_ours(datasets: Sequence[Any]) -> bool:
    """Whether all datasets belong to mmapds."""
    return all(isinstance(each, Dataset) for each in datasets)


def joined(datasets: Sequence[Any]) -> Any:
    """Concatenate datasets of mmapds; return a ConcatDataset if `mmapds.concat` refuses them."""
    try:
        return reduce(operator.add, datasets)
    except Error:  # they differ in decoder or kind
        return torch.utils.data.ConcatDataset(datasets)


def members_of(dataset: Any) -> list[Any]:
    """Return the parts of a ConcatDataset that `mmapds.concat` refuses, or else a list of one dataset."""
    if not isinstance(dataset, torch.utils.data.ConcatDataset):
        return [dataset]
    members = [member for part in dataset.datasets for member in members_of(part)]
    whole = joined(members) if are_ours(members) else dataset
    return members if isinstance(whole, torch.utils.data.ConcatDataset) else [whole]


def check_same_samples(dataset: Any, name: str, sampled: Any) -> None:
    """Raise OrderError unless a sampler was made for the samples of a dataset.

    Args:
      name: the argument that holds the sampler, for messages.
      sampled: the dataset of the sampler.
    Raises:
      OrderError: the lengths differ; or both belong to mmapds, share a source, and have different records.
    """
    if sampled is dataset:
        return
    parts, others = members_of(dataset), members_of(sampled)
    if len(parts) == len(others) > 1:
        for d, (part, other) in enumerate(zip(parts, others, strict=True)):
            check_same_samples(part, f"{name}: datasets[{d}]", other)
        return
    if len(parts) == len(others):
        (dataset,), (sampled,) = parts, others
    try:
        expected = len(dataset)
    except TypeError:  # a dataset of the user's may lack a length
        return
    found = f"{len(sampled)}"
    if len(sampled) == expected:
        if not (are_ours([dataset, sampled]) and _are_other_rows(dataset, sampled)):
            return
        found = f"{expected} other samples of its sources"
    raise OrderError(
        f"{name}: expected a sampler of the {expected} samples of the dataset, found one of {found}; make both of the "
        "same view"
    )


def _are_other_rows(one: Any, other: Any) -> bool:
    """Return whether two datasets of equal length share a source, but differ in the record at some position.

    Datasets without a common source may be parallel, such as texts and their translations; they are not refused.
    """
    if not len(one) or not set(one.sources) & set(other.sources):
        return False
    spread = np.linspace(0, len(one) - 1, min(len(one), _COMPARED)).astype(np.int64)
    firsts = other.source_starts[:_COMPARED]
    positions = np.union1d(spread, firsts[firsts < len(one)]).tolist()
    return any(not _locations(other.where(i)) & _locations(one.where(i)) for i in positions)


def _locations(where: Any) -> set[Any]:
    """Return the location of a sample, or those in all members of a zip."""
    return set().union(*map(_locations, where.values())) if isinstance(where, Mapping) else {where}


def refuse_path(name: str, dataset: object) -> None:
    """Raise OrderError for a path instead of a dataset: a string has a length too, so nothing later would fail."""
    if isinstance(dataset, str | bytes | os.PathLike):
        shown = os.fspath(dataset)
        raise OrderError(f"{name} = {shown!r}, expected a dataset; open it first: mmapds.open({shown!r})")


# ---- the cost of an order over compressed blocks ---------------------------------------------------------------------


LOOKED_AT = 4096
"""Records at the beginning of an epoch that serve to estimate its cost."""
_MANY = 3  # acceptable decodes of a block in an epoch
_MUCH = 256 << 10  # acceptable decoded bytes for a record: a quarter of a millisecond
_TOO_MUCH = 4 << 20  # refused, as it takes several milliseconds
_LARGER = tuple(2**k for k in range(1, 7))  # factors of the cache size to suggest


def check_decoding(dataset: Any, records: Int64s) -> None:
    """Warn if an epoch that begins with `records` decodes blocks many times; raise OrderError for far too many."""
    (times, size), limit = dataset._decodes(records), max(dataset._indexed._block_cache, 1)
    if _is_cheap(times, size):
        return
    enough = next((limit * n for n in _LARGER if _is_cheap(*dataset._decodes(records, limit * n))), None)
    cache = "" if enough is None else f"give block_cache={enough} or more to mmapds.open, or "
    message = (
        f"each block of the compressed sources would be decoded about {times:,.0f} times an epoch, expected about "
        f"once; {cache}read fewer chunks at a time, as in ChunkedSampler(ds, 'block', mix_chunks=2), for a budget in "
        "order=orders.Chunked(ds, 'block', mix_chunks=2) with planner='window', or make smaller blocks; "
        f"{way_to_seekable(*dataset.sources[:1])}"
    )
    if size > _TOO_MUCH:
        raise OrderError(message)
    warn(message)


def _is_cheap(times: float, size: float) -> bool:
    return times <= _MANY or size <= _MUCH
