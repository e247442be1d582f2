"""Tensors of a batch: which dtype samples share, where their numbers lie, and what pads them."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch.utils.data
from numpy.typing import NDArray

from ..arrays.masks import masked_count
from ..errors import CollateError, shortened
from .array_decoder import as_tensor

Array = NDArray[Any]
Number = int | float | bool
NUMERIC = "biufc"
"""Kinds of NumPy dtypes that are numbers, supported or not."""
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
STORED = {str(dtype).removeprefix("torch."): dtype for dtype in (*_NUMPY, torch.bfloat16)}
"""torch's dtype by the name that array files have for it."""
_LISTED = (int, float, np.bool_, np.integer, np.floating)
"""Types of the items of a list that counts as an array."""


def _listed(value: list[Any], i: int, path: str) -> Array | list[Any]:
    """Return a list of numbers as an array, and any other list as it is."""
    types = set(map(type, value))
    if not all(issubclass(each, _LISTED) and not issubclass(each, np.timedelta64) for each in types):
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


def _native(value: Any) -> Any:
    """Return an array of ml_dtypes' bfloat16 as a tensor that shares its memory, and any other value as it is."""
    known = isinstance(value, np.ndarray) and value.dtype.name == "bfloat16"
    return as_tensor(value, "bfloat16") if known else value


def as_arrays(values: Sequence[Any], path: str) -> Sequence[Any]:
    """Return values, of which lists of numbers have become arrays, and ml_dtypes' bfloat16 tensors.

    Raises:
      CollateError: a number is behind a mask, or beyond its dtype.
    """
    for i, value in enumerate(values):
        if isinstance(value, np.ndarray) and value.dtype.kind in NUMERIC:
            refuse_masked(value, f"samples[{i}]{path}")
    if any(isinstance(value, np.ndarray) and value.dtype.kind == "V" for value in values):  # not a dtype of NumPy's own
        values = [_native(value) for value in values]
    if any(issubclass(each, list) for each in set(map(type, values))):
        values = [_listed(value, i, path) if isinstance(value, list) else value for i, value in enumerate(values)]
    return values


def refuse_masked(value: Array, place: str) -> None:
    """Raise CollateError if numbers of an array are behind its mask, so that they are no values."""
    if count := masked_count(value):
        raise CollateError(
            f"{place}: expected numbers without a mask, found {count} of {value.size} masked; give what stands for "
            "them with array.filled(number)"
        )


def number_tensor(values: Sequence[Any], path: str) -> torch.Tensor:
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
        i = next(i for i, number in enumerate(numbers) if not _fits(number, dtype))
        remedy = "; give those of all samples as numpy.uint64" if min(numbers) >= 0 and max(numbers) < 2**64 else ""
        raise CollateError(
            f"samples[{i}]{path}: expected numbers that fit {_name(dtype)}, found {shortened(numbers[i])}{remedy}"
        ) from error


def _fits(number: Number, dtype: torch.dtype) -> bool:
    """Whether a dtype can hold a number."""
    try:
        torch.tensor(number, dtype=dtype)
    except (RuntimeError, OverflowError, ValueError):
        return False
    return True


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


def pad_number(pad: Any, path: str) -> Number:
    if isinstance(pad, np.generic | np.ndarray | torch.Tensor) and pad.ndim == 0:
        pad = pad.item()
    if not isinstance(pad, int | float):
        raise CollateError(f"pad_value = {pad!r}, expected a number for samples[...]{path}")
    return pad


def fill_of(pad: Number, dtype: torch.dtype, path: str) -> int:
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


def typed(values: Sequence[Any], path: str, pad: Number) -> tuple[Sequence[Any], torch.dtype]:
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


def memories(values: Sequence[Any], dtype: torch.dtype, path: str) -> list[Array]:
    """Return the memory of arrays and tensors of one dtype, contiguous; NumPy has no bfloat16 and shows it as int16.

    Those without entries get the shape of the others, beyond the first axis.

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
    shapes = [array.shape for array in arrays]
    if all(shape[1:] == shapes[0][1:] for shape in shapes):
        return arrays
    alike = next((k for k, array in enumerate(arrays) if len(array)), 0)
    for i, shape in enumerate(shapes):
        if len(shape) != len(shapes[alike]):
            raise CollateError(_shapes_message(i, shape, alike, shapes[alike][1:], path))
    tail = common_tail(np.array(shapes), path)
    return [array if len(array) else array.reshape(0, *tail) for array in arrays]


def common_tail(shapes: Array, path: str) -> tuple[int, ...]:
    """Return the shape beyond the first axis of arrays of these shapes, (arrays, axes).

    It is that of the arrays with entries. Where none has any, each axis has the length that is not 0, if there is one.

    Raises:
      CollateError: they differ in it, and not only as axes are 0 in an array without entries.
    """
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


def _shapes_message(i: int, shape: tuple[int, ...], alike: int, tail: tuple[int, ...], path: str) -> str:
    expected = f"(n, {', '.join(map(str, tail))})" if tail else "(n,)"
    return (
        f"samples[{i}]{path}: expected shape {expected}, as in samples[{alike}]{path}, found {shape}; "
        "only first axes may differ: make samples alike with ds.map(function)"
    )


def int64_tensor(lengths: Array | list[int]) -> torch.Tensor:
    tensor = empty((len(lengths),), torch.int64)
    tensor.numpy()[:] = lengths
    return tensor


def empty(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor to fill; in a worker of a DataLoader in shared memory, so that sending it copies nothing."""
    size = math.prod(shape) * dtype.itemsize
    if size == 0 or torch.utils.data.get_worker_info() is None:
        return torch.empty(shape, dtype=dtype)
    storage: torch.UntypedStorage = torch.UntypedStorage._new_shared(size, device="cpu")  # type: ignore[no-untyped-call]
    return torch.empty(0, dtype=dtype).set_(storage).view(shape)
