"""Collating: from a list of samples to a batch of padded tensors."""

from __future__ import annotations  # help() shows them as they are written

import operator
import re
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch.utils.data
from torch.utils.data._utils.collate import collate, default_collate_fn_map

from ..errors import CollateError, did_you_mean, warn
from ..formats.measuring import keys_of
from .batch import LazyBatch, expect_read_only
from .gather import Arrays, Number, Path, empty, gathered, refuse_masked

Table = Mapping[Any, Callable[..., Any]] | None
"""How torch collates each type."""
ANY_LENGTH = 2**62
"""More entries than any array has: the longest sample where no `max_length` is given."""
LONGEST_EMPTY = 1 << 24
"""Entries that have no items, and still a mask, or what stands beside packs. They take no bytes in a file."""


class PadRule(NamedTuple):
    """How the first axis is cut and rounded up, `left` cuts off the start; and what stands beside padded tensors."""

    max_length: int
    multiple_of: int
    left: bool
    lengths: bool
    mask: str | Mapping[Any, str] | None
    lists: Collection[tuple[Any, ...]]
    """Paths of fields that become lists."""
    numbers: Collection[tuple[Any, ...]]
    """Paths of fields with a pad value of their own."""

    def shown(self, value: Any) -> Any:
        """Return the batch of a field as it is returned: a pair of tensor and lengths, or the tensor alone."""
        return value[0] if isinstance(value, tuple) and not self.lengths else value


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
    """Return the batch of some samples, arrays padded to the longest of them; for DataLoader's `collate_fn`.

    The kind of the batch depends on the kind of the samples, and never on whether their lengths happen to agree:

    - Arrays, tensors and lists of numbers, of shape (n_i, ...), become a pair: the padded tensor of shape (batch,
      longest, ...) and the lengths, int64 of shape (batch,). A list of integers is int64, and a list with floats has
      torch's default dtype. An empty list takes the dtype of the others. Different dtypes are promoted by torch's
      rules. An array without entries may have 0 where the others have the length of an inner axis.
    - Numbers, and arrays without axes, become one tensor of shape (batch,): int64 for ints, float64 if one is a float,
      bool for bools, and the promoted dtype for numbers of NumPy and torch.
    - Dicts become a dict, field by field and at any depth; an array field gives `name` and `name + "_lengths"`.
    - Samples that are tuples, or lists of anything but numbers, become a list with the batch of each position.
    - Everything else (strings, bytes, None, lists and tuples inside a sample, ...) becomes a list of the values.

    Lists that are all empty count as numbers, with a warning: a pad value of the field's own, or `lists`, settles it.
    Every byte of a padded tensor is written once, in a worker of a DataLoader into memory that the trainer shares.

    Args:
      samples: one or more, all of one kind and with the same fields.
      pad_value: a number that every padded dtype can hold, or a dict of field name (or position) to such a number;
        fields that are not in the dict get 0. For a nested dict, give a dict of its fields.
      pad_to_multiple_of: round the longest length up to a multiple of this, even beyond `max_length`.
      max_length: cut longer arrays to this length, which is then their length in the batch.
      truncate: cut off the end ("right") or the start ("left").
      lengths: False leaves out the lengths: an array field is a tensor alone.
      mask: the name of a mask in the batch, of shape (batch, longest), int64, 1 where the padded fields have something
        and 0 where they are padded, as "attention_mask". If their lengths differ within a sample, say which field it is
        of: {"input_ids": "attention_mask"}; several fields can have a mask each. Fields of nested dicts have none.
      lists: fields, or positions of tuples, that become a list of the values whatever these are: ["tags", "meta.tags"].
    Raises:
      CollateError: `samples` is empty; samples differ in kind, fields or shape; a dtype is neither bfloat16 nor common
        to NumPy and torch; or an argument or a pad value does not fit. It is also a ValueError.
    """
    check_samples(samples)
    check_truncate(truncate)
    limit = ANY_LENGTH if max_length is None else min(positive("max_length", max_length), ANY_LENGTH)
    multiple = 1 if pad_to_multiple_of is None else positive("pad_to_multiple_of", pad_to_multiple_of)
    lists = names_of_lists(lists)
    rule = PadRule(limit, multiple, truncate == "left", lengths, mask, paths_of(lists), set(_leaves(pad_value, Path())))
    batch = rule.shown(_padded(gathered(samples, Path(), rule.lists, outermost=True), Path(), pad_value, rule))
    check_lists(batch, lists)
    if mask is not None and not isinstance(batch, dict):
        raise CollateError(f"mask = {mask!r}, expected None for samples that have no fields")
    return batch


# ---- arguments ------------------------------------------------------------------------------------------------


def check_samples(samples: Any) -> None:
    """Raise CollateError unless there are samples, in a list."""
    if not isinstance(samples, list | tuple | LazyBatch):
        raise CollateError(f"samples: expected a list of samples, found {type(samples).__name__}")
    if not samples:
        raise CollateError("samples: expected one sample or more, found 0")


def check_truncate(truncate: str) -> None:
    """Raise CollateError unless a side to cut off is known."""
    if truncate not in ("right", "left"):
        raise CollateError(f"truncate = {truncate!r}, expected 'right' or 'left'")


def positive(name: str, value: int) -> int:
    """Return an integer of 1 or more; raise CollateError if it is something else."""
    try:
        if operator.index(value) >= 1 and not isinstance(value, bool):
            return operator.index(value)
    except TypeError:
        pass
    raise CollateError(f"{name} = {value!r}, expected an integer of 1 or more")


def names_of_lists(lists: Iterable[Any]) -> list[Any]:
    """Return the names of the fields that are to become lists."""
    if isinstance(lists, str):
        raise CollateError(f"lists = {lists!r}, expected a list of names; give lists=[{lists!r}]")
    names = list(lists)
    if not all(isinstance(name, Hashable) for name in names):
        raise CollateError(f"lists = {lists!r}, expected a list of names")
    return names


def paths_of(lists: Iterable[Any]) -> set[tuple[Any, ...]]:
    """Return the paths of fields: of one of that very name, and of one where the keys in its name lead to."""
    return {(name,) for name in lists} | {_keys_of(name) for name in lists}


def _keys_of(name: Any) -> tuple[Any, ...]:
    return tuple(key.decode() for key in keys_of(name)) if isinstance(name, str) else (name,)


def check_lists(batch: Any, lists: Iterable[Any]) -> None:
    """Raise CollateError if a field that is to become a list is not in the batch."""
    for name in lists:
        found = batch
        if isinstance(batch, dict) and name in batch:
            continue
        for key in _keys_of(name):
            if found is not batch and not isinstance(found, dict):
                raise CollateError(f"lists: expected a field, found {name!r} inside one that has no fields")
            names = found if isinstance(found, dict) else range(len(found))
            if key not in names:
                raise CollateError(f"lists: expected fields {_among(names, key)}")
            found = found[key]


def _leaves(pad: Any, path: Path) -> Iterator[Path]:
    """Yield the paths of the fields that a pad value is given for."""
    if isinstance(pad, Mapping):
        for name, own in pad.items():
            yield from _leaves(own, path.to(name))
    elif path:
        yield path


def pad_values(names: Any, path: Path, pad: Any) -> list[tuple[Any, Any]]:
    """Return (name, pad value) for every field."""
    if not isinstance(pad, Mapping):
        return [(name, pad) for name in names]
    for name in pad:
        if name not in names:
            what = "positions" if isinstance(names, range) else "fields"
            raise CollateError(f"pad_value{path}: expected {what} {_among(names, name)}")
    return [(name, pad.get(name, 0)) for name in names]


def _among(names: Iterable[Any], found: Any) -> str:
    """Return the end of a message: the names that there are, and the one that was found instead."""
    names = list(names)
    near = did_you_mean(found, [name for name in names if isinstance(name, str)]) if isinstance(found, str) else ""
    return f"among {', '.join(map(repr, names))}, found {found!r}{near}"


# ---- padding --------------------------------------------------------------------------------------------------


def _padded(field: Any, path: Path, pad: Any, rule: PadRule) -> Any:
    """Return the batch of what was gathered; of arrays a pair of the padded tensor and their lengths."""
    if isinstance(field, dict):
        return _padded_fields(field, path, pad, rule)
    if isinstance(field, tuple):
        own = pad_values(range(len(field)), path, pad)
        return [rule.shown(_padded(field[k], path.to(k), each, rule)) for k, each in own]
    if isinstance(pad, Mapping) and path not in rule.lists:
        raise CollateError(f"pad_value{path} = {pad!r}, expected a number, as samples[0]{path} has no fields")
    if not isinstance(field, Arrays):
        return field
    if field.are_empty_lists and path and path not in rule.numbers:
        warn(
            f"samples[...]{path}: expected a list that is not empty, found none in a batch, which now has numbers "
            "there; give the field a pad value of its own, in a dict, if it has numbers, or name it in lists=[...] if "
            "it has none",
        )
    width = -(-min(field.longest, rule.max_length) // rule.multiple_of) * rule.multiple_of
    padded = field.joined((len(field.lengths), width), None, pad, rule.max_length, left=rule.left)
    lengths = empty((len(field.lengths),), torch.int64)
    np.minimum(field.lengths, rule.max_length, out=lengths.numpy())
    return padded, lengths


def _padded_fields(fields: Mapping[Any, Any], path: Path, pad: Any, rule: PadRule) -> dict[Any, Any]:
    batch: dict[Any, Any] = {}
    padded: dict[Any, tuple[torch.Tensor, torch.Tensor]] = {}
    for name, own in pad_values(fields, path, pad):
        value = _padded(fields[name], path.to(name), own, rule)
        batch[name] = value[0] if isinstance(value, tuple) else value
        if not isinstance(value, tuple):
            continue
        padded[name] = value
        if rule.lengths:
            lengths = f"{name}_lengths"
            if lengths in fields:
                raise CollateError(
                    f"samples[0]{path}: field {lengths!r} clashes with the lengths of {name!r} in the batch; rename it"
                )
            batch[lengths] = value[1]
    if rule.mask is not None and not path:
        for name, mask in _masked(rule.mask, padded).items():
            if mask in batch:
                raise CollateError(
                    f"mask = {rule.mask!r}, expected a new name, found the field {mask!r}; leave mask out"
                )
            batch[mask] = _mask(name, *padded[name])
    return batch


def _masked(mask: str | Mapping[Any, str], padded: Mapping[Any, tuple[torch.Tensor, torch.Tensor]]) -> dict[Any, str]:
    """Return the name of the mask of each padded field that has one.

    Raises:
      CollateError: a field is not padded, or fields that should share a mask differ in length.
    """
    known = ", ".join(map(repr, padded)) or "none"
    if isinstance(mask, Mapping):
        for name in mask:
            if name not in padded:
                raise CollateError(f"mask: expected fields of arrays among {known}, found {name!r}")
        return dict(mask)
    if not isinstance(mask, str):
        raise CollateError(f"mask = {mask!r}, expected a name, or a dict of a name for each field")
    if not padded:
        raise CollateError(f"mask = {mask!r}, expected None for samples that have no field of arrays")
    first = next(iter(padded))
    for name, (_, lengths) in padded.items():
        if not torch.equal(lengths, padded[first][1]):
            raise CollateError(
                f"mask = {mask!r}, expected fields of arrays of the same lengths, found {first!r} and {name!r}, which "
                f"differ; give the field that it is of: mask={{{first!r}: {mask!r}}}"
            )
    return {first: mask}


def _mask(name: Any, padded: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Return 1 where a padded tensor has something, and 0 elsewhere: shape (batch, longest).

    Raises:
      CollateError: it would be large for arrays without items, which may say that they are of any length.
    """
    if not padded.numel() and padded.shape[1] > LONGEST_EMPTY:
        raise CollateError(
            f"mask: expected arrays with items at {name!r}, or of up to {LONGEST_EMPTY} entries, found shape "
            f"{tuple(padded.shape)}; leave the mask of {name!r} out"
        )
    mask = empty((padded.shape[0], padded.shape[1]), torch.int64)
    np.less(np.arange(padded.shape[1]), lengths.numpy()[:, None], out=mask.numpy())
    return mask


# ---- without pad_collate --------------------------------------------------------------------------------------


def note_places(error: CollateError, dataset: Any, samples: Any, indices: Any) -> None:
    """Add to an error where the records lie whose samples its message names by their places in the batch.

    Args:
      dataset: of mmapds, of which the samples were taken at some indices.
    """
    if len(samples) != len(indices):  # some records are left out
        indices = [indices[k] for k in dataset.take_kept(indices)[1].tolist()]
    for k in dict.fromkeys(map(int, _SAMPLE.findall(str(error)))):
        if k < len(indices):
            error.add_note(f"samples[{k}] is at position {int(indices[k])}: {dataset.place(indices[k])}")


_SAMPLE = re.compile(r"\bsamples\[(\d+)\]")  # as messages name one
_HINTS: dict[type[Exception], str] = {
    RuntimeError: "give collate_fn=mmapds.pad_collate for samples whose first axes differ, or make samples alike with "
    "ds.map(function), as images of one size",
    TypeError: "give collate_fn=mmapds.pad_collate, which keeps values that are not numbers in lists, or make "
    "tensors of them with ds.map(function)",
    KeyError: "give the samples of a batch the same fields, with ds.map(function), or with the defaults of "
    "mmapds.Fields",
}
"""What to do where torch's own collate function raises an error, which names neither collate functions nor datasets."""


def default_collate(samples: Any) -> Any:
    """Return the batch that torch's `default_collate` makes; its errors say what to use instead."""
    try:
        return collate(samples, collate_fn_map=_TABLE)
    except tuple(_HINTS) as error:
        if type(error) in _HINTS:
            error.add_note(_HINTS[type(error)])
        raise


def _arrays(batch: Any, *, collate_fn_map: Table = None) -> Any:
    """Return the tensor of some arrays of one shape.

    Raises:
      CollateError: a number is behind a mask.
    """
    for i, array in enumerate(batch):
        refuse_masked(array, i, Path())
    expect_read_only()  # a batch is a copy, to which anyone may write
    return default_collate_fn_map[np.ndarray](batch, collate_fn_map=collate_fn_map)


_TABLE = {**default_collate_fn_map, np.ndarray: _arrays}
