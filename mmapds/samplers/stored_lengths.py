"""A check of collated batches against their plan: the lengths in an index may be those of another tokenizer."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ..errors import warn
from ..orders.basic import Int64s
from .planned import PlannedBatchSampler

_BOUNDS = "cu_seqlens"
_RESTARTING = ("position_ids", "positions")  # numbers of tokens, 0 where a sample of a pack begins


def exceeds_plan(batch: Any, records: Sequence[int], sampler: PlannedBatchSampler) -> bool:
    """Warn if a batch has more tokens than its plan allows; return whether it has.

    It knows the packs of `pack_collate`, and padded batches whose fields of tokens are all too large. It looks at
    shapes, so that a large batch costs no more than a small one.

    Args:
      batch: what a collate function returned.
      records: the records of the batch.
      sampler: planned the batch.
    """
    if not isinstance(batch, Mapping) or not len(records):
        return False
    name, limit = sampler.limit_of(records)
    is_packed = name == "pack_length" or _BOUNDS in batch
    tokens = _tokens_of_packs(batch) if is_packed else _padded_tokens(batch, len(records))
    if tokens <= limit:
        return False
    found = _lengths_in_packs(batch) if is_packed else _padded_lengths(batch)
    stored = sampler.lengths_of(records)
    count = min(len(found), len(stored))
    longer = np.flatnonzero(found[:count] > stored[:count])
    if not len(longer):  # padding alone is over the limit: the collate function was told so
        return False
    first = int(longer[0])
    warn(
        f"record {records[first]}: expected {int(stored[first])} tokens, its stored length, found {int(found[first])}; "
        f"for another tokenizer, index again with another version= (a batch has {tokens:,} tokens, {name} = {limit:,})"
    )
    return True


def _tokens_of_packs(batch: Mapping[Any, Any]) -> int:
    """Return the tokens of packs; 0 if the batch does not tell."""
    if _BOUNDS in batch:
        return int(batch[_BOUNDS][-1])
    return max((batch[key].numel() for key in _RESTARTING if key in batch), default=0)


def _lengths_in_packs(batch: Mapping[Any, Any]) -> Int64s:
    """Return the length of each sample, and of padding."""
    if _BOUNDS in batch:
        bounds: Int64s = batch[_BOUNDS].cpu().numpy().astype(np.int64)
        return np.diff(bounds)
    numbers = next(batch[key] for key in _RESTARTING if key in batch).cpu().numpy().ravel()
    begins: Int64s = np.append(np.flatnonzero(numbers == 0), len(numbers))
    return np.diff(begins)


def _padded_tokens(batch: Mapping[Any, Any], samples: int) -> int:
    """Return the tokens, with padding, of the smallest field that may hold tokens or frames; 0 if there is none."""
    return min((each.shape[0] * each.shape[1] for _, each in _padded(batch) if len(each) == samples), default=0)


def _padded(batch: Mapping[Any, Any]) -> list[tuple[Any, torch.Tensor]]:
    """Return the fields of integers of shape (batch, length), and those of shape (batch, length, ...)."""
    fields = [(name, field) for name, field in batch.items() if isinstance(field, torch.Tensor)]
    return [(name, each) for name, each in fields if each.ndim > 2 or (each.ndim == 2 and not each.is_floating_point())]


def _padded_lengths(batch: Mapping[Any, Any]) -> Int64s:
    """Return the length of each sample in the first field that tells; an empty array if none does."""
    for name, field in _padded(batch):
        lengths = batch.get(f"{name}_lengths")
        if lengths is None and str(name).endswith("mask"):
            lengths = field.sum(1)
        if isinstance(lengths, torch.Tensor):
            found: Int64s = lengths.cpu().numpy().astype(np.int64)
            return found
    return np.empty(0, np.int64)
