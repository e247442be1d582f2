"""Collating: from a list of samples to a batch of padded tensors."""

from __future__ import annotations  # help() shows them as they are written

import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch.utils.data._utils.collate import collate, default_collate_fn_map

from ..errors import CollateError, listed, warn
from .batch import LazyBatch, StackedBatch, expect_read_only
from .gather import Arrays, Number, Path, empty, gather, refuse_masked, shared

ANY_LENGTH = 2**62
"""More entries than any array has: the default of `max_length`."""


class _Rule(NamedTuple):
    """How to cut and round up the first axis, and whether to add lengths and a mask."""

    max_length: int
    multiple_of: int
    left: bool
    lengths: bool
    mask: str | Mapping[Any, str] | None


def pad_collate(
    samples: Sequence[Any],
    *,
    pad_value: Number | Mapping[Any, Any] = 0,
    pad_to_multiple_of: int | None = None,
    max_length: int | None = None,
    truncate: Literal["right", "left"] = "right",
    lengths: bool = True,
    mask: str | Mapping[Any, str] | None = None,
    lists: Iterable[Any] = (),
) -> Any:
    """Collate samples into a batch, arrays padded to the longest of them.

        batch = mmapds.pad_collate(tokens.take([0, 1, 2]))

    The type of the batch depends on the type of the samples, not on whether their lengths happen to be equal:

    - Arrays, tensors and lists of numbers, of shape (n_i, ...), become a pair: the padded tensor of shape (batch,
      longest, ...) and the lengths, int64 of shape (batch,). A list of integers is int64, and a list with floats has
      torch's default dtype. An empty list takes the dtype of the other samples. Different dtypes are promoted by
      torch's rules. An array without entries takes the inner axes of the other samples.
    - Numbers, and arrays without axes, become one tensor of shape (batch,): int64 for ints, float64 if one is a float,
      bool for bools, and the promoted dtype for numbers of NumPy and torch.
    - Dicts become a dict, field by field and at any depth; an array field gives `name` and `name + "_lengths"`.
    - Samples that are tuples or lists, except lists of numbers, become a list with the batch of each position.
    - Other values (strings, bytes, None, lists and tuples inside a sample, ...) become a list.

    If all lists of a field are empty, they count as numbers, with a warning; to avoid it, give the field a pad value or
    name it in `lists`. Every byte of a padded tensor is written once; workers of a DataLoader write to shared memory.

    Args:
      samples: one or more, all of one kind and with the same fields.
      pad_value: a number that every padded dtype can hold, or a dict of field name (or position) to such a number;
        fields that are not in the dict get 0. For a nested dict, give a dict of its fields.
      pad_to_multiple_of: round the longest length up to a multiple of this, even beyond `max_length`.
      max_length: cut longer arrays to this length; the lengths in the batch are those after the cut.
      truncate: cut off the end ("right") or the start ("left").
      lengths: False returns no lengths: an array field gives only a tensor.
      mask: name of a mask to add, such as "attention_mask": int64 of shape (batch, longest), 1 for entries and 0 for
        padding. If the fields of a sample differ in length, name the field of the mask, or of several masks:
        {"input_ids": "attention_mask"}. Fields of nested dicts cannot have a mask.
      lists: fields, or positions of tuples, to return as lists of their values: ["tags", "meta.tags"].
    Raises:
      CollateError: `samples` is empty; samples differ in type, fields or shape; a dtype is neither bfloat16 nor common
        to NumPy and torch; or an argument or a pad value does not fit. It is also a ValueError.
    """
    limit = check_arguments(samples, truncate, max_length)
    multiple = positive("pad_to_multiple_of", 1 if pad_to_multiple_of is None else pad_to_multiple_of)
    rule = _Rule(limit, multiple, truncate == "left", lengths, mask)
    if isinstance(samples, StackedBatch) and multiple == 1 and not (lists or mask or isinstance(pad_value, Mapping)):
        return _stacked(samples, rule)
    batch = _padded(gather(samples, lists), Path(), pad_value, rule)
    if mask is not None and not isinstance(batch, dict):
        raise CollateError(f"mask = {mask!r}, expected None for samples that have no fields")
    return batch[0] if isinstance(batch, tuple) and not lengths else batch


def _stacked(samples: StackedBatch, rule: _Rule) -> dict[str, torch.Tensor]:
    """Return samples of one length as a batch; nothing is padded."""
    batch: dict[str, torch.Tensor] = {}
    for name, rows in samples.arrays.items():
        cut = rows[:, -rule.max_length :] if rule.left else rows[:, : rule.max_length]
        batch[name] = shared(torch.from_numpy(cut))
        if rule.lengths:
            batch[f"{name}_lengths"] = torch.full((len(rows),), cut.shape[1])
    return batch


# ---- arguments ------------------------------------------------------------------------------------------------


def check_arguments(samples: Any, truncate: str, max_length: int | None) -> int:
    """Check arguments of `pad_collate` and `pack_collate`; return the length to which they cut samples."""
    if not isinstance(samples, list | tuple | LazyBatch):
        raise CollateError(f"samples: expected a list of samples, found {type(samples).__name__}")
    if not samples:
        raise CollateError("samples: expected one sample or more, found 0")
    if truncate not in ("right", "left"):
        raise CollateError(f"truncate = {truncate!r}, expected 'right' or 'left'")
    return min(positive("max_length", ANY_LENGTH if max_length is None else max_length), ANY_LENGTH)


def positive(name: str, value: int) -> int:
    """Return an argument as an int; raise CollateError unless it is an integer of 1 or more."""
    if isinstance(value, bool) or not hasattr(value, "__index__") or operator.index(value) < 1:
        raise CollateError(f"{name} = {value!r}, expected an integer of 1 or more")
    return operator.index(value)


def pad_values(names: Any, path: Path, pad: Any) -> list[tuple[Any, Any]]:
    """Return (name, pad value) for every field."""
    if not isinstance(pad, Mapping):
        return [(name, pad) for name in names]
    for name in pad:
        if name not in names:
            what = "positions" if isinstance(names, range) else "fields"
            raise CollateError(f"pad_value{path}: expected {what} among {listed(names)}, found {name!r}")
    return [(name, pad.get(name, 0)) for name in names]


# ---- padding --------------------------------------------------------------------------------------------------


def _padded(field: Any, path: Path, pad: Any, rule: _Rule) -> Any:
    """Return the batch of gathered fields; arrays become a pair of padded tensor and lengths."""
    if isinstance(field, dict | tuple):
        names: Any = field.keys() if isinstance(field, dict) else range(len(field))
        parts = {}
        for name, own in pad_values(names, path, pad):
            part, has_own = field[name], isinstance(pad, Mapping) and name in pad
            if isinstance(part, Arrays) and part.are_empty_lists and not has_own:
                warn(
                    f"samples[...]{path.to(name)}: expected a list that is not empty, found none in a batch, which now "
                    "has numbers there; give the field a pad value of its own, or name it in lists=[...]"
                )
            parts[name] = _padded(part, path.to(name), own, rule)
        if isinstance(field, dict):
            return _with_lengths(parts, path, rule)
        return [each[0] if isinstance(each, tuple) and not rule.lengths else each for each in parts.values()]
    if not isinstance(field, Arrays):
        return field
    width = -(-min(field.longest, rule.max_length) // rule.multiple_of) * rule.multiple_of
    padded = field.joined((len(field.lengths), width), None, pad, rule.max_length, left=rule.left)
    lengths = empty((len(field.lengths),), torch.int64)
    np.minimum(field.lengths, rule.max_length, out=lengths.numpy())
    return padded, lengths


def _with_lengths(parts: Mapping[Any, Any], path: Path, rule: _Rule) -> dict[Any, Any]:
    """Return padded fields with their lengths and, at the top level, their masks."""
    batch: dict[Any, Any] = {}
    padded = {name: part for name, part in parts.items() if isinstance(part, tuple)}
    for name, part in parts.items():
        batch[name] = part[0] if name in padded else part
        if name in padded and rule.lengths:
            if f"{name}_lengths" in parts:
                raise CollateError(
                    f"samples[0]{path}: expected another name than {name}_lengths, the lengths of {name!r}"
                )
            batch[f"{name}_lengths"] = part[1]
    if rule.mask is None or path:
        return batch
    for name, mask in _masked(rule.mask, padded).items():
        if mask in batch:
            raise CollateError(f"mask = {rule.mask!r}, expected a new name, found the field {mask!r}")
        tensor, lengths = padded[name]
        batch[mask] = empty(tuple(tensor.shape[:2]), torch.int64)
        np.less(np.arange(tensor.shape[1]), lengths.numpy()[:, None], out=batch[mask].numpy())
    return batch


def _masked(mask: str | Mapping[Any, str], padded: Mapping[Any, tuple[torch.Tensor, torch.Tensor]]) -> dict[Any, str]:
    """Return a dict from padded field to the name of its mask."""
    if isinstance(mask, Mapping):
        for name in mask:
            if name not in padded:
                raise CollateError(f"mask: expected fields of arrays among {listed(padded) or 'none'}, found {name!r}")
        return dict(mask)
    if not isinstance(mask, str):
        raise CollateError(f"mask = {mask!r}, expected a name, or a dict of a name for each field")
    if not padded:
        raise CollateError(f"mask = {mask!r}, expected None for samples that have no field of arrays")
    first = next(iter(padded))
    for name, (_, lengths) in padded.items():
        if not torch.equal(lengths, padded[first][1]):
            raise CollateError(
                f"mask = {mask!r}, expected arrays of the same lengths, found others at {first!r} and {name!r}"
            )
    return {first: mask}


# ---- errors, and torch's own collate --------------------------------------------------------------------------


def note_places(error: CollateError, dataset: Any, samples: Any, indices: Any) -> None:
    """Add notes to an error: the locations of the records that its message calls `samples[k]`."""
    if len(samples) != len(indices):  # some records were skipped
        indices = [indices[k] for k in dataset.take_kept(indices)[1].tolist()]
    for k in dict.fromkeys(map(int, re.findall(r"\bsamples\[(\d+)\]", str(error)))):
        if k < len(indices):
            error.add_note(f"samples[{k}] is at position {int(indices[k])}: {dataset.place(indices[k])}")


def _arrays(batch: Any, *, collate_fn_map: Any = None) -> Any:
    """Return the tensor of arrays of one shape; refuse masked numbers."""
    for i, array in enumerate(batch):
        refuse_masked(array, i, Path())
    expect_read_only()  # no warning: torch copies the read-only arrays
    return default_collate_fn_map[np.ndarray](batch, collate_fn_map=collate_fn_map)


def default_collate(samples: Any) -> Any:
    """Call torch's `default_collate` without its warning of read-only arrays; rows of arrays are a batch already."""
    if isinstance(samples, StackedBatch):
        return {name: shared(torch.from_numpy(rows)) for name, rows in samples.arrays.items()}
    return collate(samples, collate_fn_map={**default_collate_fn_map, np.ndarray: _arrays})
