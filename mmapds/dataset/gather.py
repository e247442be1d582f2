"""The first step of padding and packing: turn samples into fields of arrays, of numbers, or of other values."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch.utils.data
from numpy.typing import NDArray

from .. import _native
from ..arrays.schema import NUMBERS, dtype_name
from ..arrays.values import masked_count
from ..errors import CollateError, listed, shortened
from ..formats.expressions import keys_of
from .batch import LazyBatch, StoredField, as_tensor

Array = NDArray[Any]
Number = int | float | bool
_NUMERIC = "biufc"
"""Kinds of NumPy dtypes that are numbers, supported or not."""
_DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in NUMBERS}
"""The dtypes of batches, by their names in torch, NumPy and array files."""
_NUMPY = {dtype: np.dtype(name) for name, dtype in _DTYPES.items() if name != "bfloat16"}
_LISTED = (int, float, np.bool_, np.integer, np.floating)
"""Types of the items of a list that counts as an array."""
_KINDS = {"array": "an array or a list of numbers", "number": "a number", "fields": "a dict"}
_NUMPYS = (np.ndarray, np.generic)
_ARRAYS = (*_NUMPYS, torch.Tensor)  # tuples: making a union for each value is slower than the isinstance test
_Lists = dict[tuple[Any, ...], bool]
"""The paths of `lists`, and whether a field was found there."""
_LONGEST_EMPTY = 1 << 20
"""Most entries without items: they take no bytes in a file, but masks and the bounds of packs would take memory."""


class Path(tuple[Any, ...]):
    """The keys that lead from a sample to a field; empty for the sample itself."""

    __slots__ = ()

    def __str__(self) -> str:
        return "".join(f"[{key!r}]" for key in self)

    def to(self, key: Any) -> Path:
        """Return the path of a field inside this one."""
        return Path((*self, key))


@dataclass(slots=True)
class Arrays:
    """A field of arrays of one dtype, whose shapes differ only in the first axis."""

    path: Path
    dtype: torch.dtype
    lengths: NDArray[np.int64]  # of the first axes, shape (samples,)
    tail: tuple[int, ...]  # the shape beyond the first axis
    held: list[Array] | StoredField  # the arrays, or their place in a batch of the core
    are_empty_lists: bool = False  # whether all are empty lists, so that `dtype` is a guess

    def __post_init__(self) -> None:
        if 0 in self.tail and self.longest > _LONGEST_EMPTY:
            raise CollateError(
                f"samples[{int(self.lengths.argmax())}]{self.path}: expected up to {_LONGEST_EMPTY} entries without "
                f"items, found {self.longest}"
            )

    @property
    def longest(self) -> int:
        return int(self.lengths.max())

    @classmethod
    def of_values(cls, values: Sequence[Any], path: Path) -> Arrays:
        """Make a field from arrays, tensors and empty lists."""
        dtypes = [getattr(value, "dtype", None) for value in values]
        given = set(dtypes)
        are_empty_lists = given == {None}
        dtype = torch.int64 if are_empty_lists else _promoted(dtypes, path)
        if not given <= {dtype, _NUMPY.get(dtype, dtype)}:
            values = [_cast(value, dtype) for value in values]
        arrays = [_memory(value, dtype) for value in values]
        lengths = np.array([len(array) for array in arrays], np.int64)
        return cls(path, dtype, lengths, _tail_of([array.shape for array in arrays], path), arrays, are_empty_lists)

    @classmethod
    def of_stored(cls, field: StoredField, path: Path) -> Arrays:
        """Make a field from a batch of the core, without making its arrays."""
        shapes = field.shapes
        assert shapes is not None
        alike = shapes.shape[1] == 1 or (shapes[:, 1:] == shapes[0, 1:]).all()
        tail = _tail_of(list(map(tuple, (shapes[:1] if alike else shapes).tolist())), path)
        return cls(path, _DTYPES[field.dtype], shapes[:, 0], tail, field)

    def joined(
        self, entries: tuple[int, ...], begins: NDArray[np.int64] | None, pad: Any, longest: int, *, left: bool
    ) -> torch.Tensor:
        """Copy the arrays into one tensor of shape (*entries, *tail), with `pad` in all gaps.

        Args:
          begins: first entry of each array, ascending; None puts each array into a row of its own.
          longest: cut longer arrays to this length, at their start if `left`, or else at their end.
        """
        pad = pad.item() if getattr(pad, "ndim", None) == 0 else pad
        dtype = torch.get_default_dtype() if self.are_empty_lists and isinstance(pad, float) else self.dtype
        fill = _fill_of(pad, dtype, self.path)
        tensor = empty((*entries, *self.tail), dtype)
        row = math.prod(self.tail) * dtype.itemsize
        bytes_ = None if begins is None else (begins * row).astype(np.uint64)
        out = _memory(tensor, dtype)
        if isinstance(self.held, StoredField):
            self.held.batch.join(self.held.number, (longest, left), row, bytes_, fill, out)
        elif self.are_empty_lists:
            tensor.fill_(pad)
        elif tensor.numel():
            arrays = self.held
            if self.longest > longest:
                arrays = [array[-longest:] if left else array[:longest] for array in arrays]
            _native.join_pieces(arrays, bytes_, fill, out)
        return tensor


def gather(samples: Sequence[Any], lists: Iterable[Any], omitted: Collection[Any] = ()) -> Any:
    """Return the fields of samples: a dict for dicts, a tuple for tuples, or a single field.

    A field is `Arrays`, a tensor of numbers, a dict of fields, or a list of the values; a list if `lists` has its name
    or path. Fields with `omitted` names are dropped, at any depth.
    """
    lists = [lists] if isinstance(lists, str) else list(lists)
    if not all(isinstance(name, Hashable) for name in lists):
        raise CollateError(f"lists = {lists!r}, expected a list of names")
    paths = {name: {(name,), _keys_of(name)} for name in lists}
    is_found = dict.fromkeys(itertools.chain(*paths.values()), False)
    fields = _gathered(samples, Path(), is_found, omitted)
    for name, given in paths.items():
        if not any(is_found[path] for path in given):
            raise CollateError(f"lists: expected names of fields, found {name!r}")
    return fields


def _keys_of(name: Any) -> tuple[Any, ...]:
    return tuple(key.decode() for key in keys_of(name)) if isinstance(name, str) else (name,)


def _gathered(values: Sequence[Any], path: Path, lists: _Lists, omitted: Collection[Any]) -> Any:
    """Return a field from its values; see `gather`."""
    if path in lists:
        lists[path] = True
        return list(values)
    if isinstance(values, LazyBatch):
        return {name: _of_batch(values, name, path, lists, omitted) for name in values.names if name not in omitted}
    values = _as_arrays(values, path)
    kinds = set(map(_kind_of, values))
    if kinds == {"fields"}:
        names = [name for name in _names_of(values, path) if name not in omitted]
        return {name: _gathered([each[name] for each in values], path.to(name), lists, omitted) for name in names}
    if not path and kinds <= {"tuple", "list", "empty"} and kinds != {"empty"}:
        return tuple(_gathered(each, path.to(k), lists, ()) for k, each in enumerate(_positions(values)))
    if kinds <= {"array", "empty"}:
        return Arrays.of_values(values, path)
    if kinds == {"number"}:
        return _number_tensor(values, path)
    if kinds & _KINDS.keys():
        raise CollateError(_mixed_message(values, path))
    return list(values)


def _of_batch(batch: LazyBatch, name: str, path: Path, lists: _Lists, omitted: Collection[Any]) -> Any:
    """Return a field of a lazy batch, if possible without making samples."""
    path = path.to(name)
    if path not in lists:
        if name in batch.ragged:
            return list(batch.values(name))
        stored = batch.stored(name)
        if stored is not None and stored.numbers is not None:
            return torch.from_numpy(stored.numbers)
        if stored is not None and stored.dtype in _DTYPES:
            return Arrays.of_stored(stored, path)
    return _gathered(batch.values(name), path, lists, omitted)


def _names_of(samples: Sequence[Mapping[Any, Any]], path: Path) -> Collection[Any]:
    """Return the names of the fields; raise CollateError if samples differ in them."""
    names = samples[0].keys()
    for i, sample in enumerate(samples):
        if sample.keys() != names:
            name = next(name for name in (*names, *sample) if name not in names or name not in sample)
            lacks, has = (i, 0) if name in names else (0, i)
            raise CollateError(
                f"samples[{lacks}]{path}: expected a field {shortened(name)}, as in samples[{has}]{path}, found "
                f"{listed(samples[lacks]) or 'no fields'}"
            )
    return names


def _positions(samples: Sequence[Sequence[Any]]) -> list[tuple[Any, ...]]:
    """Transpose samples that are tuples or lists: return the values of each position."""
    count = len(samples[0])
    for i, sample in enumerate(samples):
        if len(sample) != count:
            raise CollateError(f"samples[{i}]: expected {count} items, as in samples[0], found {len(sample)}")
    return list(zip(*samples, strict=True))


# ---- kinds of values ------------------------------------------------------------------------------------------


def _kind_of(value: Any) -> str:
    """Return the kind of a value: "array", "number", "fields", "list", "empty" (a list), "tuple" or "other"."""
    if isinstance(value, _ARRAYS):
        if isinstance(value, _NUMPYS) and value.dtype.kind not in _NUMERIC:
            return "other"
        return "array" if value.ndim else "number"
    if isinstance(value, (int, float)):
        return "number"
    if isinstance(value, Mapping):
        return "fields"
    if isinstance(value, list):
        return "list" if value else "empty"
    return "tuple" if isinstance(value, tuple) else "other"


def _as_arrays(values: Sequence[Any], path: Path) -> Sequence[Any]:
    """Return the values, with lists of numbers as arrays, and bfloat16 arrays of ml_dtypes as tensors."""
    if any(issubclass(each, np.ndarray | list) for each in set(map(type, values))):
        return [_as_array(value, i, path) for i, value in enumerate(values)]
    return values


def _as_array(value: Any, i: int, path: Path) -> Any:
    if isinstance(value, np.ndarray):
        if value.dtype.kind == "V":  # a dtype that NumPy lacks; checked first, as `dtype.name` is slow
            return as_tensor(value) if value.dtype.name == "bfloat16" else value
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
        found = max(value, key=abs)
        raise CollateError(f"samples[{i}]{path}: expected numbers that fit {dtype}, found {found}") from None


def refuse_masked(value: Array, i: int, path: Path) -> None:
    """Raise CollateError if an array has masked numbers: these are not values."""
    if type(value) is not np.ndarray and (count := masked_count(value)):
        raise CollateError(f"samples[{i}]{path}: expected numbers without a mask, found {count} masked")


def _mixed_message(values: Sequence[Any], path: Path) -> str:
    kinds = [_kind_of(value) for value in values]
    one = next(i for i, kind in enumerate(kinds) if kind in _KINDS)
    alike = {"array", "empty"} if kinds[one] == "array" else {kinds[one]}
    other = next(i for i, kind in enumerate(kinds) if kind not in alike)
    found = type(values[other]).__name__
    return f"samples[{other}]{path}: expected {_KINDS[kinds[one]]}, as in samples[{one}]{path}, found {found}"


# ---- dtypes ---------------------------------------------------------------------------------------------------


def _number_tensor(values: Sequence[Any], path: Path) -> torch.Tensor:
    """Return numbers as one tensor; raise CollateError if its dtype cannot hold them."""
    numbers, dtypes = values, list(map(type, values))
    if not {bool, int, float}.issuperset(dtypes):
        numbers = [value.item() if hasattr(value, "item") else value for value in values]
        dtypes = [getattr(value, "dtype", type(value)) for value in values]
    dtype = _promoted(dtypes, path)
    try:
        return torch.tensor(numbers, dtype=dtype)
    except (RuntimeError, OverflowError, ValueError) as error:
        i = max(range(len(numbers)), key=lambda k: abs(numbers[k]))
        raise CollateError(
            f"samples[{i}]{path}: expected numbers that fit {_name(dtype)}, found {shortened(numbers[i])}"
        ) from error


def _promoted(dtypes: Sequence[Any], path: Path) -> torch.dtype:
    """Return the dtype to which torch promotes dtypes and Python's number types; ignore None."""
    names = {_name(dtype): dtype for dtype in dict.fromkeys(dtypes) if dtype is not None}
    for name, dtype in names.items():
        if name not in _DTYPES:
            raise CollateError(
                f"samples[{dtypes.index(dtype)}]{path}: expected bool, an integer of 8 to 64 bits, a float of 16 to 64 "
                f"bits or bfloat16, found {name}"
            )
    try:
        return functools.reduce(torch.promote_types, map(_DTYPES.__getitem__, names))
    except RuntimeError:
        found = ", ".join(names)
        raise CollateError(f"samples[...]{path}: expected dtypes that torch promotes to one, found {found}") from None


def _name(dtype: Any) -> str:
    if isinstance(dtype, type):
        return "bool" if issubclass(dtype, bool) else "int64" if issubclass(dtype, int) else "float64"
    return dtype_name(dtype)


def _cast(value: Any, dtype: torch.dtype) -> Array | torch.Tensor:
    if isinstance(value, torch.Tensor):
        return value.to(dtype)
    if dtype in _NUMPY:
        return np.asarray(value, _NUMPY[dtype])
    return torch.from_numpy(np.asarray(value, np.float32)).to(dtype)


def _fill_of(pad: Any, dtype: torch.dtype, path: Path) -> int:
    """Return a pad value in `dtype`, floats rounded, repeated to 8 bytes and read as one integer."""
    with suppress(RuntimeError, OverflowError, ValueError, TypeError):
        filled = torch.full((8 // dtype.itemsize,), pad, dtype=dtype)
        held = filled.tolist()[0]
        if held == pad or (dtype.is_floating_point and math.isinf(held) == math.isinf(pad)):
            return int(filled.view(torch.int64).item()) & (2**64 - 1)
    what = "a number" if dtype.is_floating_point else "an integer"
    raise CollateError(
        f"pad_value = {shortened(pad)}, expected {what} that {_name(dtype)} holds, for samples[...]{path}"
    )


# ---- memory and shapes ----------------------------------------------------------------------------------------


def _memory(value: Any, dtype: torch.dtype) -> Array:
    """Return an array or a tensor as a contiguous NumPy array; bfloat16, which NumPy lacks, as int16."""
    if isinstance(value, torch.Tensor):
        value = value.view(torch.int16).numpy() if dtype is torch.bfloat16 else value.numpy()
    return np.ascontiguousarray(value)


def _tail_of(shapes: list[tuple[int, ...]], path: Path) -> tuple[int, ...]:
    """Return the shape beyond the first axis; raise CollateError if arrays with entries differ in it.

    Arrays without entries count only if all are empty: each axis then has the greatest length.
    """
    tails = {shape[1:] for shape in shapes}
    if len(tails) == 1:
        return tails.pop()
    first = next((i for i, shape in enumerate(shapes) if shape[0]), None)
    if first is None:
        axes = max(map(len, tails))
        return tuple(map(max, zip(*(tail for tail in tails if len(tail) == axes), strict=True)))
    tail = shapes[first][1:]
    for i, shape in enumerate(shapes):
        if shape[0] and shape[1:] != tail:
            expected = f"(n, {', '.join(map(str, tail))})" if tail else "(n,)"
            raise CollateError(
                f"samples[{i}]{path}: expected shape {expected}, as in samples[{first}]{path}, found {shape}"
            )
    return tail


def shared(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor; in a DataLoader worker, its copy in shared memory."""
    if torch.utils.data.get_worker_info() is None:
        return tensor
    return empty(tuple(tensor.shape), tensor.dtype).copy_(tensor)


def empty(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return an uninitialised tensor; in a DataLoader worker, in shared memory, so that sending it copies nothing."""
    size = math.prod(shape) * dtype.itemsize
    if size == 0 or torch.utils.data.get_worker_info() is None:
        return torch.empty(shape, dtype=dtype)
    storage: torch.UntypedStorage = torch.UntypedStorage._new_shared(size, device="cpu")  # type: ignore[no-untyped-call]
    return torch.empty(0, dtype=dtype).set_(storage).view(shape)
