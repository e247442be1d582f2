"""Collating: from a list of samples to a batch of padded tensors."""

from __future__ import annotations  # help() shows them as they are written

import functools
import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch.utils.data
from numpy.typing import NDArray

from .. import _native
from ..errors import CollateError
from .array_decoder import as_tensor
from .batch import Batch, LateBatch

Array = NDArray[Any]
Number = int | float | bool
_NUMPY = {
    torch.bool: np.dtype(np.bool_),
    torch.uint8: np.dtype(np.uint8),
    torch.int8: np.dtype(np.int8),
    torch.uint16: np.dtype(np.uint16),
    torch.int16: np.dtype(np.int16),
    torch.uint32: np.dtype(np.uint32),
    torch.int32: np.dtype(np.int32),
    torch.uint64: np.dtype(np.uint64),
    torch.int64: np.dtype(np.int64),
    torch.float16: np.dtype(np.float16),
    torch.float32: np.dtype(np.float32),
    torch.float64: np.dtype(np.float64),
}
_TORCH: dict[Any, torch.dtype] = {
    **{numpys: torchs for torchs, numpys in _NUMPY.items()},
    **{torchs: torchs for torchs in (*_NUMPY, torch.bfloat16)},
    bool: torch.bool,
    int: torch.int64,
    float: torch.float64,
}
"""torch's dtype for one of NumPy, for one of torch, and for a type of Python numbers."""
_STORED = {str(dtype).removeprefix("torch."): dtype for dtype in (*_NUMPY, torch.bfloat16)}
"""torch's dtype by the name that array files have for it."""
_NUMERIC = "biufc"
"""Kinds of NumPy dtypes that are numbers, supported or not."""
_LISTED = (int, float, np.bool_, np.integer, np.floating)
"""Types of the items of a list that counts as an array."""


class _Rule(NamedTuple):
    """How the first axis is cut and rounded up, `left` cuts off the start; and what stands beside padded tensors."""

    max_length: int
    multiple_of: int
    left: bool
    lengths: bool
    mask: str | Mapping[Any, str] | None

    def width(self, longest: int) -> int:
        """Return how long the first axis of a padded sample is."""
        return -(-longest // self.multiple_of) * self.multiple_of

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
) -> Any:
    """Return the batch of some samples, arrays padded to the longest of them; for DataLoader's `collate_fn`.

    The kind of the batch depends on the kind of the samples, and never on whether their lengths happen to agree:

    - Arrays, tensors and lists of numbers, of shape (n_i, ...), become a pair: the padded tensor of shape (batch,
      longest, ...) and the lengths, int64 of shape (batch,). A list of integers is int64, and a list with floats has
      torch's default dtype. An empty list takes the dtype of the others; if all are empty, the pad value decides.
      Different dtypes are promoted by torch's rules.
    - Numbers, and arrays without axes, become one tensor of shape (batch,): int64 for ints, float64 if one is a float,
      bool for bools, and the promoted dtype for numbers of NumPy and torch.
    - Dicts become a dict, field by field and at any depth; an array field gives `name` and `name + "_lengths"`.
    - Samples that are tuples, or lists of anything but numbers, become a list with the batch of each position.
    - Everything else (strings, bytes, None, lists and tuples inside a sample, ...) becomes a list of the values.

    Every byte of a padded tensor is written once. In a worker of a DataLoader it is written into the shared memory that
    the training process reads.

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
    Raises:
      CollateError: `samples` is empty; samples differ in kind, fields or shape; a dtype is neither bfloat16 nor common
        to NumPy and torch; or an argument or a pad value does not fit. It is also a ValueError.
    """
    if not isinstance(samples, list | tuple | LateBatch):
        raise CollateError(f"samples: expected a list of samples, found {type(samples).__name__}")
    if not samples:
        raise CollateError("samples: expected one sample or more, found 0")
    if truncate not in ("right", "left"):
        raise CollateError(f"truncate = {truncate!r}, expected 'right' or 'left'")
    limit = 2**63 - 1 if max_length is None else _positive("max_length", max_length)
    multiple = 1 if pad_to_multiple_of is None else _positive("pad_to_multiple_of", pad_to_multiple_of)
    rule = _Rule(limit, multiple, truncate == "left", lengths, mask)
    batch = rule.shown(_collate(samples, "", pad_value, rule, outermost=True))
    if mask is not None and not isinstance(batch, dict):
        raise CollateError(f"mask = {mask!r}, expected None for samples that have no fields")
    return batch


def _positive(name: str, value: int) -> int:
    try:
        if operator.index(value) >= 1:
            return operator.index(value)
    except TypeError:
        pass
    raise CollateError(f"{name} = {value!r}, expected an integer of 1 or more")


_KINDS = {
    "array": "an array or a list of numbers",
    "number": "a number",
    "fields": "a dict",
    "empty": "an empty list",
    "list": "a list that holds other things than numbers",
    "tuple": "a tuple",
}


def _collate(values: Sequence[Any], path: str, pad: Any, rule: _Rule, outermost: bool = False) -> Any:
    """Return the batch of one field. `path` is how a sample is indexed to reach it; "" is the sample itself."""
    if isinstance(values, LateBatch):
        return _fields(values, path, pad, rule)
    if any(isinstance(value, np.ndarray) and value.dtype.kind == "V" for value in values):  # not a dtype of NumPy's own
        values = [_bfloat16(value) for value in values]
    if any(issubclass(each, list) for each in set(map(type, values))):
        values = [_as_array(value, i, path) if isinstance(value, list) else value for i, value in enumerate(values)]
    found = set(map(_kind, values))
    if found == {"fields"}:
        return _fields(values, path, pad, rule)
    if outermost and found <= {"tuple", "list", "empty"} and found != {"empty"}:
        return _positions(values, pad, rule)
    if isinstance(pad, Mapping):
        raise CollateError(f"pad_value{path} = {pad!r}, expected a number, as samples[0]{path} has no fields")
    if found <= {"array", "empty"}:
        return _padded(values, path, pad, rule)
    if found == {"number"}:
        return _numbers(values, path)
    if found & {"array", "number", "fields"}:
        raise CollateError(_mixed_message(values, path))
    return list(values)


def _bfloat16(value: Any) -> Any:
    """Return an array of ml_dtypes' bfloat16 as a tensor that shares its memory, and any other value as it is."""
    known = isinstance(value, np.ndarray) and value.dtype.name == "bfloat16"
    return as_tensor(value, "bfloat16") if known else value


def _as_array(value: list[Any], i: int, path: str) -> Array | list[Any]:
    """Return a list of numbers as an array, and any other list as it is."""
    types = set(map(type, value))
    if not all(issubclass(each, _LISTED) for each in types):
        return value
    if not types:
        return []
    if any(issubclass(each, float | np.floating) for each in types):
        dtype = _NUMPY.get(torch.get_default_dtype(), np.dtype(np.float32))
    else:
        dtype = np.dtype(np.bool_ if types <= {bool, np.bool_} else np.int64)
    try:
        return np.array(value, dtype)
    except OverflowError:
        found = max(value, key=abs)
        raise CollateError(f"samples[{i}]{path}: expected numbers that fit {dtype}, found {found}") from None


def _kind(value: Any) -> str:
    """Return what a value counts as: a key of `_KINDS`, or "other"."""
    if isinstance(value, np.ndarray):
        return "other" if value.dtype.kind not in _NUMERIC else "array" if value.ndim else "number"
    if isinstance(value, torch.Tensor):
        return "array" if value.ndim else "number"
    if isinstance(value, np.generic):
        return "number" if value.dtype.kind in _NUMERIC else "other"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, Mapping):
        return "fields"
    if isinstance(value, list):
        return "list" if value else "empty"
    return "tuple" if isinstance(value, tuple) else "other"


def _mixed_message(values: Sequence[Any], path: str) -> str:
    kinds = [_kind(value) for value in values]
    one = next(i for i, kind in enumerate(kinds) if kind in ("array", "number", "fields"))
    alike = {"array", "empty"} if kinds[one] == "array" else {kinds[one]}
    other = next(i for i, kind in enumerate(kinds) if kind not in alike)
    found = _KINDS.get(kinds[other], type(values[other]).__name__)
    return f"samples[{other}]{path}: expected {_KINDS[kinds[one]]}, as in samples[{one}]{path}, found {found}"


def _fields(samples: Sequence[Mapping[Any, Any]], path: str, pad: Any, rule: _Rule) -> dict[Any, Any]:
    late = samples if isinstance(samples, LateBatch) else None
    names = _names(samples, path) if late is None else late.names
    batch: dict[Any, Any] = {}
    padded: dict[Any, tuple[torch.Tensor, torch.Tensor]] = {}
    for name, each in _pads(names, path, pad):
        where = f"{path}[{name!r}]"
        if late is None:
            value = _collate([sample[name] for sample in samples], where, each, rule)
        else:
            value = _field(late, name, where, each, rule)
        if isinstance(value, tuple):
            padded[name] = value
        if isinstance(value, tuple) and rule.lengths:
            lengths = f"{name}_lengths"
            if lengths in names:
                raise CollateError(
                    f"samples[0]{path}: field {lengths!r} clashes with the lengths of {name!r} in the batch; rename it"
                )
            batch[name], batch[lengths] = value
        else:
            batch[name] = rule.shown(value)
    if rule.mask is not None and path == "":
        for name, mask in _masked(rule.mask, padded).items():
            if mask in batch:
                raise CollateError(
                    f"mask = {rule.mask!r}, expected a new name, found the field {mask!r}; leave mask out"
                )
            batch[mask] = _mask(*padded[name])
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


def _mask(padded: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Return 1 where a padded tensor has something, and 0 elsewhere: shape (batch, longest)."""
    mask = _empty((padded.shape[0], padded.shape[1]), torch.int64)
    np.less(np.arange(padded.shape[1]), lengths.numpy()[:, None], out=mask.numpy())
    return mask


def _names(samples: Sequence[Mapping[Any, Any]], path: str) -> Any:
    """Return the names of the fields, which all samples share.

    Raises:
      CollateError: a sample lacks a field of another one.
    """
    names = samples[0].keys()
    for i, sample in enumerate(samples):
        if sample.keys() != names:
            name = next(name for name in (*names, *sample) if name not in names or name not in sample)
            lacks, has = (i, 0) if name in names else (0, i)
            found = ", ".join(map(repr, samples[lacks])) or "no fields"
            raise CollateError(
                f"samples[{lacks}]{path}: expected a field {name!r}, as in samples[{has}]{path}, found {found}"
            )
    return names


def _positions(samples: Sequence[Sequence[Any]], pad: Any, rule: _Rule) -> list[Any]:
    count = len(samples[0])
    for i, sample in enumerate(samples):
        if len(sample) != count:
            raise CollateError(f"samples[{i}]: expected {count} items, as in samples[0], found {len(sample)}")
    return [
        rule.shown(_collate([sample[k] for sample in samples], f"[{k}]", each, rule))
        for k, each in _pads(range(count), "", pad)
    ]


def _pads(names: Any, path: str, pad: Any) -> list[tuple[Any, Any]]:
    """Return (name, pad value) for every field."""
    if not isinstance(pad, Mapping):
        return [(name, pad) for name in names]
    for name in pad:
        if name not in names:
            what = "positions" if isinstance(names, range) else "fields"
            known = ", ".join(map(repr, names))
            raise CollateError(f"pad_value{path}: expected {what} among {known}, found {name!r}")
    return [(name, pad.get(name, 0)) for name in names]


def _numbers(values: Sequence[Any], path: str) -> torch.Tensor:
    types = set(map(type, values))
    if types <= {bool, int, float}:
        dtype = torch.float64 if float in types else torch.int64 if int in types else torch.bool
    else:
        dtype = _dtype([_number_dtype(value) for value in values], path)
    try:
        return torch.tensor([value.item() if hasattr(value, "item") else value for value in values], dtype=dtype)
    except (RuntimeError, OverflowError, ValueError) as error:
        raise CollateError(f"samples[...]{path}: expected numbers that fit {_name(dtype)} ({error})") from error


def _number_dtype(value: Any) -> Any:
    """Return the dtype of a number, or its type in Python."""
    if hasattr(value, "dtype"):
        return value.dtype
    return bool if isinstance(value, bool) else int if isinstance(value, int) else float


def _dtype(dtypes: Sequence[Any], path: str) -> torch.dtype:
    """Return the dtype to which torch promotes the dtypes of the samples; None does not count."""
    found = []
    for dtype in dict.fromkeys(dtypes):
        if dtype is None:
            continue
        native = dtype.newbyteorder("=") if isinstance(dtype, np.dtype) else dtype
        if native not in _TORCH:
            raise CollateError(
                f"samples[{dtypes.index(dtype)}]{path}: expected bool, an integer of 8 to 64 bits, a float of 16 to 64 "
                f"bits or bfloat16, found {_name(dtype)}"
            )
        found.append(_TORCH[native])
    try:
        return functools.reduce(torch.promote_types, found)
    except RuntimeError:
        names = ", ".join(map(_name, found))
        raise CollateError(
            f"samples[...]{path}: expected dtypes that torch can promote to one, found {names}; cast them to one dtype"
        ) from None


def _name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _fill(pad: Number, dtype: torch.dtype, path: str) -> int:
    """Return the bytes of a pad value in `dtype`, repeated until they are 8, as one integer.

    Raises:
      CollateError: `dtype` cannot hold it. A float may be rounded; an integer dtype takes only integers in its range.
    """
    low: float
    high: float
    if dtype.is_floating_point:
        low, high = torch.finfo(dtype).min, torch.finfo(dtype).max
        fits = low <= pad <= high or pad in (math.inf, -math.inf) or pad != pad
        what = "a number"
    else:
        low, high = (0, 1) if dtype is torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
        fits = low <= pad <= high and pad == int(pad)
        what = "an integer"
    if not fits:
        hint = "; give each field its own: pad_value={name: number}" if path else ""
        raise CollateError(
            f"pad_value = {pad!r}, expected {what} from {low} to {high} for the {_name(dtype)} numbers of "
            f"samples[...]{path}{hint}"
        )
    value = float(pad) if dtype.is_floating_point else int(pad)
    return int(torch.full((8 // dtype.itemsize,), value, dtype=dtype).view(torch.int64).item()) & (2**64 - 1)


def _number(pad: Any, path: str) -> Number:
    if isinstance(pad, np.generic | np.ndarray | torch.Tensor) and pad.ndim == 0:
        pad = pad.item()
    if not isinstance(pad, int | float):
        raise CollateError(f"pad_value = {pad!r}, expected a number for samples[...]{path}")
    return pad


def _padded(values: Sequence[Any], path: str, pad: Any, rule: _Rule) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the padded tensor of `values`, arrays, tensors and empty lists, and their lengths."""
    pad = _number(pad, path)
    values, dtype = _typed(values, path, pad)
    fill = _fill(pad, dtype, path)
    arrays = _memories(values, dtype, path)
    lengths = [len(array) for array in arrays]
    longest = max(lengths)
    if longest > rule.max_length:
        longest = rule.max_length
        arrays = [array[-longest:] if rule.left else array[:longest] for array in arrays]
        lengths = [len(array) for array in arrays]
    padded = _empty((len(arrays), rule.width(longest), *arrays[0].shape[1:]), dtype)
    _native.pad_rows(arrays, fill, _memories([padded], dtype, path)[0])
    return padded, _lengths(lengths)


def _field(batch: LateBatch, name: str, path: str, pad: Any, rule: _Rule) -> Any:
    """Return the batch of a field: what `_collate` makes of its values, of array files mostly without making these."""
    if not isinstance(batch, Batch):
        return _collate(batch.values(name), path, pad, rule)
    if not isinstance(pad, Mapping):
        numbers = batch.numbers(name)
        if numbers is not None:
            return torch.from_numpy(numbers)
        dtype, shapes = _STORED.get(batch.dtype(name)), batch.shapes(name)
        if dtype is not None and shapes is not None:
            return _padded_field(batch, name, path, dtype, shapes, _number(pad, path), rule)
    return _collate(batch.values(name), path, pad, rule)


def _padded_field(
    batch: Batch, name: str, path: str, dtype: torch.dtype, shapes: Array, pad: Number, rule: _Rule
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the padded tensor of a field of arrays, copied from where they lie in the file, and their lengths."""
    fill = _fill(pad, dtype, path)
    differs = (shapes[:, 1:] != shapes[0, 1:]).any(axis=1)
    if differs.any():
        i = int(differs.argmax())
        raise CollateError(_shapes_message(i, tuple(shapes[i].tolist()), tuple(shapes[0].tolist()), path))
    lengths = np.minimum(shapes[:, 0], rule.max_length)
    longest = int(lengths.max())
    padded = _empty((len(batch), rule.width(longest), *shapes[0, 1:].tolist()), dtype)
    (out,) = _memories([padded], dtype, path)
    batch.pad(name, out, longest, left=rule.left, fill=fill)
    return padded, _lengths(lengths)


def _lengths(lengths: Array | list[int]) -> torch.Tensor:
    tensor = _empty((len(lengths),), torch.int64)
    tensor.numpy()[:] = lengths
    return tensor


def _typed(values: Sequence[Any], path: str, pad: Number) -> tuple[Sequence[Any], torch.dtype]:
    """Return `values` as arrays and tensors of one dtype, empty lists included, and that dtype as torch calls it."""
    dtypes = [getattr(value, "dtype", None) for value in values]
    given = dict.fromkeys(dtypes)
    if given.keys() != {None}:
        dtype = _dtype(dtypes, path)
    else:  # only empty lists: nothing but the pad value has a dtype
        dtype = torch.get_default_dtype() if isinstance(pad, float) else torch.int64
    if given.keys() <= {dtype, _NUMPY.get(dtype, dtype)}:
        return values, dtype
    tail = next((value.shape[1:] for value in values if not isinstance(value, list)), ())
    empty = np.empty((0, *tail))
    return [_cast(empty if isinstance(value, list) else value, dtype) for value in values], dtype


def _cast(value: Array | torch.Tensor, dtype: torch.dtype) -> Array | torch.Tensor:
    if isinstance(value, torch.Tensor):
        return value.to(dtype)
    if dtype in _NUMPY:
        return value.astype(_NUMPY[dtype], copy=False)
    return torch.from_numpy(value.astype(np.float32)).to(dtype)


def _memories(values: Sequence[Any], dtype: torch.dtype, path: str) -> list[Array]:
    """Return the memory of arrays and tensors of one dtype, contiguous; NumPy has no bfloat16 and shows it as int16.

    Raises:
      CollateError: shapes differ beyond the first axis, or a tensor has no memory to read.
    """
    arrays: list[Array] = []
    try:
        for value in values:
            if not isinstance(value, np.ndarray):
                value = value.view(torch.int16).numpy() if dtype is torch.bfloat16 else value.numpy()
            arrays.append(np.ascontiguousarray(value))
    except (TypeError, RuntimeError) as error:  # on a device, sparse, needs a gradient: torch says what to do
        raise CollateError(
            f"samples[{len(arrays)}]{path}: expected a dense tensor on the CPU, without a gradient ({error})"
        ) from error
    shape = arrays[0].shape
    for i, array in enumerate(arrays):
        if array.shape[1:] != shape[1:]:
            raise CollateError(_shapes_message(i, array.shape, shape, path))
    return arrays


def _shapes_message(i: int, shape: tuple[int, ...], first: tuple[int, ...], path: str) -> str:
    expected = f"(n, {', '.join(map(str, first[1:]))})" if first[1:] else "(n,)"
    return f"samples[{i}]{path}: expected shape {expected}, as in samples[0]{path}, found {shape}"


def _empty(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor to fill; in a worker of a DataLoader in shared memory, so that sending it copies nothing."""
    size = math.prod(shape) * dtype.itemsize
    if size == 0 or torch.utils.data.get_worker_info() is None:
        return torch.empty(shape, dtype=dtype)
    storage: torch.UntypedStorage = torch.UntypedStorage._new_shared(size, device="cpu")  # type: ignore[no-untyped-call]
    return torch.empty(0, dtype=dtype).set_(storage).view(shape)
