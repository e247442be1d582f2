"""Samples as fields: arrays of one dtype, numbers, and lists of anything else; what padding and packing begin with."""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch.utils.data
from numpy.typing import NDArray

from .. import _native
from ..arrays.values import masked_count
from ..errors import CollateError, listed, shortened
from .batch import LazyBatch, StoredField, as_tensor

Array = NDArray[Any]
Number = int | float | bool
_NUMERIC = "biufc"
"""Kinds of NumPy dtypes that are numbers, supported or not."""
_NAMES = [
    "bool",
    *(f"{sign}int{bits}" for bits in (8, 16, 32, 64) for sign in ("u", "")),
    "float16",
    "float32",
    "float64",
]
_NUMPY = {getattr(torch, name): np.dtype(name) for name in _NAMES}
_STORED: dict[str, torch.dtype] = {name: getattr(torch, name) for name in (*_NAMES, "bfloat16")}
"""torch's dtype by the name that array files have for it."""
_TORCH: dict[Any, torch.dtype] = {
    **{numpys: torchs for torchs, numpys in _NUMPY.items()},
    **{dtype: dtype for dtype in _STORED.values()},
    bool: torch.bool,
    int: torch.int64,
    float: torch.float64,
}
"""torch's dtype for one of NumPy, for one of torch, and for a type of Python numbers."""
_LISTED = (int, float, np.bool_, np.integer, np.floating)
"""Types of the items of a list that counts as an array."""
_KINDS = {
    "array": "an array or a list of numbers",
    "number": "a number",
    "fields": "a dict",
    "empty": "an empty list",
    "list": "a list that holds other things than numbers",
    "tuple": "a tuple",
}


class Path(tuple[Any, ...]):
    """How a sample is indexed to reach a field; without keys it is the sample itself."""

    __slots__ = ()

    def __str__(self) -> str:
        return "".join(f"[{key!r}]" for key in self)

    def to(self, key: Any) -> Path:
        """Return the path of a field inside this one."""
        return Path((*self, key))


class Arrays:
    """A field of arrays of one dtype, which differ in their first axis alone.

    Args:
      path: how a sample is indexed to reach it.
      dtype: torch's.
      lengths: of the first axes: int64, shape (samples,).
      tail: the shape beyond the first axis.
      held: the arrays, or where they are stored.
      are_empty_lists: whether nothing has a dtype: `dtype` is a guess.
    """

    def __init__(
        self,
        path: Path,
        dtype: torch.dtype,
        lengths: NDArray[np.int64],
        tail: tuple[int, ...],
        held: list[Array] | StoredField,
        *,
        are_empty_lists: bool = False,
    ) -> None:
        self.path = path
        self.dtype = dtype
        self.lengths = lengths
        self.longest = int(lengths.max())
        self.tail = tail
        self.are_empty_lists = are_empty_lists
        self._held = held

    @classmethod
    def of_values(cls, values: Sequence[Any], path: Path) -> Arrays:
        """Make one of arrays, tensors and empty lists.

        Raises:
          CollateError: their dtypes or their shapes differ.
        """
        dtypes = [getattr(value, "dtype", None) for value in values]
        given = set(dtypes)
        are_empty_lists = given == {None}
        dtype = torch.int64 if are_empty_lists else _dtype(dtypes, path)
        if not given <= {dtype, _NUMPY.get(dtype, dtype)}:
            values = [_cast(value, dtype) for value in values]
        arrays = [_memory(value, dtype, i, path) for i, value in enumerate(values)]
        tail = arrays[0].shape[1:]
        if any(array.shape[1:] != tail for array in arrays):
            tail = _tail_of([array.shape for array in arrays], path)
        lengths = np.array([len(array) for array in arrays], np.int64)
        return cls(path, dtype, lengths, tail, arrays, are_empty_lists=are_empty_lists)

    @classmethod
    def of_stored(cls, field: StoredField, path: Path) -> Arrays:
        """Make one of arrays in a file, of which none is made.

        Raises:
          CollateError: their shapes differ.
        """
        assert field.shapes is not None
        return cls(path, _STORED[field.dtype], field.shapes[:, 0], common_tail(field.shapes, path), field)

    def joined(
        self, entries: tuple[int, ...], begins: NDArray[np.int64] | None, pad: Any, longest: int, *, left: bool
    ) -> torch.Tensor:
        """Return the arrays in one tensor, of shape (*entries, *tail).

        Args:
          begins: the entry at which each array begins, ascending; None for one in each row.
          pad: the number between them and up to the end.
          longest: longer arrays are cut to this length.
          left: cut off the start instead of the end.
        Raises:
          CollateError: the dtype cannot hold `pad`.
        """
        pad = _pad_number(pad, self.path)
        dtype = torch.get_default_dtype() if self.are_empty_lists and isinstance(pad, float) else self.dtype
        fill = _fill_of(pad, dtype, self.path)
        tensor = empty((*entries, *self.tail), dtype)
        row = math.prod(self.tail) * dtype.itemsize
        bytes_ = None if begins is None else (begins * row).astype(np.uint64)
        out = _memory(tensor, dtype, 0, self.path)
        if isinstance(self._held, StoredField):
            self._held.batch.join(self._held.number, (longest, left), row, bytes_, fill, out)
        elif self.are_empty_lists:
            tensor.fill_(pad)
        elif tensor.numel():
            arrays = self._held
            if self.longest > longest:
                arrays = [array[-longest:] if left else array[:longest] for array in arrays]
            _native.join_pieces(arrays, bytes_, fill, out)
        return tensor


def gathered(
    values: Sequence[Any],
    path: Path,
    lists: Collection[tuple[Any, ...]],
    omitted: Collection[Any] = (),
    *,
    outermost: bool = False,
) -> Any:
    """Return what the values of a field are: `Arrays`, a tensor of numbers, a dict of fields, or a list of the values.

    Args:
      lists: the paths of fields that are lists, whatever they hold.
      omitted: the names of fields to leave out, at any depth.
      outermost: whether tuples, and lists of anything but numbers, are a tuple of fields by position.
    Raises:
      CollateError: the values differ in kind, fields, dtype or shape.
    """
    if path in lists:
        return list(values)
    if isinstance(values, LazyBatch):
        return {name: _of_batch(values, name, path, lists, omitted) for name in values.names if name not in omitted}
    values = as_arrays(values, path)
    kinds = set(map(kind_of, values))
    if kinds == {"fields"}:
        names = [name for name in _names_of(values, path) if name not in omitted]
        return {name: gathered([each[name] for each in values], path.to(name), lists, omitted) for name in names}
    if outermost and kinds <= {"tuple", "list", "empty"} and kinds != {"empty"}:
        return tuple(gathered(each, path.to(k), lists) for k, each in enumerate(_positions(values)))
    if kinds <= {"array", "empty"}:
        return Arrays.of_values(values, path)
    if kinds == {"number"}:
        return _number_tensor(values, path)
    if kinds & {"array", "number", "fields"}:
        raise CollateError(_mixed_message(values, path))
    return list(values)


def _of_batch(
    batch: LazyBatch, name: str, path: Path, lists: Collection[tuple[Any, ...]], omitted: Collection[Any]
) -> Any:
    """Return what a field of a batch is, without making samples where it is stored."""
    path = path.to(name)
    if path in lists or name in batch.ragged:
        return list(batch.values(name))
    stored = batch.stored(name)
    if stored is not None and stored.numbers is not None:
        return torch.from_numpy(stored.numbers)
    if stored is not None and stored.dtype in _STORED:
        return Arrays.of_stored(stored, path)
    return gathered(batch.values(name), path, lists, omitted)


def _names_of(samples: Sequence[Mapping[Any, Any]], path: Path) -> Collection[Any]:
    """Return the names of the fields, which all samples share.

    Raises:
      CollateError: a sample lacks a field of another one.
    """
    names = samples[0].keys()
    for i, sample in enumerate(samples):
        if sample.keys() != names:
            name = next(name for name in (*names, *sample) if name not in names or name not in sample)
            lacks, has = (i, 0) if name in names else (0, i)
            found = listed(samples[lacks]) or "no fields"
            raise CollateError(
                f"samples[{lacks}]{path}: expected a field {shortened(name)}, as in samples[{has}]{path}, found "
                f"{found}; add it with ds.map(function), or give a default of it to mmapds.Fields(schema, defaults=...)"
            )
    return names


def _positions(samples: Sequence[Sequence[Any]]) -> list[list[Any]]:
    """Return the values of each position of samples that are tuples or lists."""
    count = len(samples[0])
    for i, sample in enumerate(samples):
        if len(sample) != count:
            raise CollateError(f"samples[{i}]: expected {count} items, as in samples[0], found {len(sample)}")
    return [[sample[k] for sample in samples] for k in range(count)]


# ---- kinds of values ------------------------------------------------------------------------------------------


def kind_of(value: Any) -> str:
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


def as_arrays(values: Sequence[Any], path: Path) -> Sequence[Any]:
    """Return values, of which lists of numbers have become arrays, and ml_dtypes' bfloat16 tensors.

    Raises:
      CollateError: a number is behind a mask, or beyond its dtype.
    """
    if any(issubclass(each, np.ndarray | list) for each in set(map(type, values))):
        return [_as_array(value, i, path) for i, value in enumerate(values)]
    return values


def _as_array(value: Any, i: int, path: Path) -> Any:
    if isinstance(value, np.ndarray):
        if value.dtype.kind == "V":  # not a dtype of NumPy's own
            return as_tensor(value, "bfloat16") if value.dtype.name == "bfloat16" else value
        if value.dtype.kind in _NUMERIC:
            refuse_masked(value, i, path)
        return value
    if not isinstance(value, list) or not value:
        return value
    types = set(map(type, value))
    if not all(issubclass(each, _LISTED) and not issubclass(each, np.timedelta64) for each in types):
        return value
    if any(issubclass(each, float | np.floating) for each in types):
        dtype = _NUMPY.get(torch.get_default_dtype(), np.dtype(np.float32))
    else:
        dtype = np.dtype(np.bool_ if types <= {bool, np.bool_} else np.int64)
    try:
        return np.array(value, dtype)
    except OverflowError:
        raise CollateError(
            f"samples[{i}]{path}: expected numbers that fit {dtype}, found {max(value, key=abs)}"
        ) from None


def refuse_masked(value: Array, i: int, path: Path) -> None:
    """Raise CollateError if numbers of an array are behind its mask, so that they are no values."""
    if type(value) is not np.ndarray and (count := masked_count(value)):
        raise CollateError(
            f"samples[{i}]{path}: expected numbers without a mask, found {count} of {value.size} masked; give what "
            "stands for them with array.filled(number)"
        )


def _mixed_message(values: Sequence[Any], path: Path) -> str:
    kinds = [kind_of(value) for value in values]
    one = next(i for i, kind in enumerate(kinds) if kind in ("array", "number", "fields"))
    alike = {"array", "empty"} if kinds[one] == "array" else {kinds[one]}
    other = next(i for i, kind in enumerate(kinds) if kind not in alike)
    value = values[other]
    found = "None" if value is None else _KINDS.get(kinds[other], type(value).__name__)
    hint = _hint_for_none(path, kinds[one]) if value is None else ""
    return f"samples[{other}]{path}: expected {_KINDS[kinds[one]]}, as in samples[{one}]{path}, found {found}{hint}"


def _hint_for_none(path: Path, kind: str) -> str:
    """Return what to do about null where other samples have a value of a kind, as the end of a message."""
    if not path or not all(isinstance(key, str) and key for key in path):
        return "; give what stands for it with ds.map(function)"
    name = ".".join(key.replace(".", r"\.") for key in path)
    instead = {"array": "[]", "number": "0"}.get(kind)
    default = f"what stands for it with mmapds.Fields(schema, defaults={{{name!r}: {instead}}})"
    other = default if instead else "another with ds.map(function)"
    return f"; give lists=[{name!r}] for a list of the values, or {other}"


# ---- dtypes ---------------------------------------------------------------------------------------------------


def _number_tensor(values: Sequence[Any], path: Path) -> torch.Tensor:
    """Return numbers as one tensor; raise CollateError if its dtype cannot hold them."""
    types = set(map(type, values))
    if types <= {bool, int, float}:
        dtype = torch.float64 if float in types else torch.int64 if int in types else torch.bool
    else:
        dtype = _dtype([_number_dtype(value) for value in values], path)
    numbers = [value.item() if hasattr(value, "item") else value for value in values]
    try:
        return torch.tensor(numbers, dtype=dtype)
    except (RuntimeError, OverflowError, ValueError) as error:
        i = max(range(len(numbers)), key=lambda k: abs(numbers[k]))
        hint = "; give those of all samples as numpy.uint64" if min(numbers) >= 0 and max(numbers) < 2**64 else ""
        raise CollateError(
            f"samples[{i}]{path}: expected numbers that fit {_name(dtype)}, found {shortened(numbers[i])}{hint}"
        ) from error


def _number_dtype(value: Any) -> Any:
    """Return the dtype of a number, or its type in Python."""
    if hasattr(value, "dtype"):
        return value.dtype
    return bool if isinstance(value, bool) else int if isinstance(value, int) else float


def _dtype(dtypes: Sequence[Any], path: Path) -> torch.dtype:
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


def _cast(value: Any, dtype: torch.dtype) -> Array | torch.Tensor:
    if isinstance(value, torch.Tensor):
        return value.to(dtype)
    if dtype in _NUMPY:
        return np.asarray(value, _NUMPY[dtype])
    return torch.from_numpy(np.asarray(value, np.float32)).to(dtype)


def _pad_number(pad: Any, path: Path) -> Number:
    if isinstance(pad, np.generic | np.ndarray | torch.Tensor) and pad.ndim == 0:
        pad = pad.item()
    if not isinstance(pad, int | float):
        raise CollateError(f"pad_value = {pad!r}, expected a number for samples[...]{path}")
    return pad


def _fill_of(pad: Number, dtype: torch.dtype, path: Path) -> int:
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


# ---- memory and shapes ----------------------------------------------------------------------------------------


def _memory(value: Any, dtype: torch.dtype, i: int, path: Path) -> Array:
    """Return the memory of an array or a tensor, contiguous; NumPy has no bfloat16 and shows it as int16.

    Raises:
      CollateError: a tensor has no memory to read.
    """
    if isinstance(value, torch.Tensor):
        try:
            value = value.view(torch.int16).numpy() if dtype is torch.bfloat16 else value.numpy()
        except (TypeError, RuntimeError) as error:  # on a device, sparse, needs a gradient: torch says what to do
            raise CollateError(
                f"samples[{i}]{path}: expected a dense tensor on the CPU, without a gradient ({error})"
            ) from error
    return np.ascontiguousarray(value)


def _tail_of(shapes: list[tuple[int, ...]], path: Path) -> tuple[int, ...]:
    """Return the shape beyond the first axis of arrays of these shapes; an empty list, (0,), has none of its own.

    Raises:
      CollateError: they differ in it.
    """
    alike = next((k for k, shape in enumerate(shapes) if shape[0]), None)
    if alike is None:
        alike = max(range(len(shapes)), key=lambda k: len(shapes[k]))
    axes = len(shapes[alike])
    shapes = [(0,) * axes if shape == (0,) else shape for shape in shapes]
    for i, shape in enumerate(shapes):
        if len(shape) != axes:
            raise CollateError(_shapes_message(i, shape, alike, shapes[alike][1:], path))
    return common_tail(np.array(shapes), path)


def common_tail(shapes: Array, path: Path) -> tuple[int, ...]:
    """Return the shape beyond the first axis of arrays of these shapes, (arrays, axes).

    It is that of the arrays with entries. Where none has any, each axis has the length that is not 0, if there is one.

    Raises:
      CollateError: they differ in it, and not only as axes are 0 in an array without entries.
    """
    if shapes.shape[1] == 1:
        return ()
    has_entries = shapes[:, 0] != 0
    tails = shapes[:, 1:]
    lengths = tails[has_entries.argmax()] if has_entries.any() else tails.max(axis=0)
    is_wrong = (tails != lengths) & (has_entries[:, None] | (tails != 0))
    tail: tuple[int, ...] = tuple(lengths.tolist())
    if is_wrong.any():
        i, axis = map(int, np.argwhere(is_wrong)[0])
        alike = int(has_entries.argmax() if has_entries.any() else tails[:, axis].argmax())
        raise CollateError(_shapes_message(i, tuple(shapes[i].tolist()), alike, tail, path))
    return tail


def _shapes_message(i: int, shape: tuple[int, ...], alike: int, tail: tuple[int, ...], path: Path) -> str:
    expected = f"(n, {', '.join(map(str, tail))})" if tail else "(n,)"
    return (
        f"samples[{i}]{path}: expected shape {expected}, as in samples[{alike}]{path}, found {shape}; "
        "only first axes may differ: make samples alike with ds.map(function)"
    )


def empty(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor to fill; in a worker of a DataLoader in shared memory, so that sending it copies nothing."""
    size = math.prod(shape) * dtype.itemsize
    if size == 0 or torch.utils.data.get_worker_info() is None:
        return torch.empty(shape, dtype=dtype)
    storage: torch.UntypedStorage = torch.UntypedStorage._new_shared(size, device="cpu")  # type: ignore[no-untyped-call]
    return torch.empty(0, dtype=dtype).set_(storage).view(shape)
