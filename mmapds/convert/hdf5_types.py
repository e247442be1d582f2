"""HDF5's types as those of array files, and the values of both. Loaded only where HDF5 is read."""

from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import h5py
import numpy as np

from ..arrays.schema import ITEM_BYTES
from .reader import Refused

_TIMES = "int64"  # what dates and durations of NumPy, which h5py writes as opaque values, are


class Part(NamedTuple):
    """What becomes a field: a dataset or an attribute, or one of the parts of its compound type."""

    field: str
    within: tuple[str, ...]
    """The parts of compounds that lead to it."""
    dtype: Any
    """The dtype of its elements, which is neither a compound nor an array type; None if NumPy has no such type."""
    axes: tuple[int, ...]
    """The shape of the value in one record."""

    def type(self, place: str) -> Any:
        """Return the type of the field as schemas have it; a Refused if array files have none.

        Args:
          place: what messages call the dataset or attribute.
        """
        found = _described(self.dtype, self.axes)
        within = ".".join(self.within)
        return found or Refused(f"{place}, part {within!r}" if within else place, _named(self.dtype))

    def values(self, data: Any) -> Any:
        """Return the values of some records, one a record, from what h5py read of them; the type is not Refused."""
        for name in self.within:
            data = data[name]
        return _values(data, self.dtype, is_scalar=data.ndim == 1)


def parts_of(field: str, dtype: Any, axes: tuple[int, ...], within: tuple[str, ...] = ()) -> Iterator[Part]:
    """Yield what becomes a field of a type: itself, or each part of a compound, "box.width".

    Args:
      axes: the shape that elements of this type have in one record.
    """
    if dtype is not None and dtype.subdtype is not None:  # an array type
        dtype, inner = dtype.subdtype
        axes = (*axes, *inner)
    if dtype is not None and dtype.names:
        for name in dtype.names:
            yield from parts_of(f"{field}.{name}", dtype[name], axes, (*within, name))
    else:
        yield Part(field, within, dtype, axes)


def dtype_of(found: Any) -> Any:
    """Return the dtype of a dataset or an attribute; None if NumPy has no such type."""
    try:
        return found.dtype
    except TypeError:
        return None


def _items(dtype: Any) -> Any:
    """Return the dtype of the items of runs of numbers, each of a length of its own; None for other types."""
    if h5py.check_string_dtype(dtype) is not None:
        return None
    found = h5py.check_vlen_dtype(dtype)
    return found if isinstance(found, np.dtype) and _is_number(found) else None


def _is_number(dtype: Any) -> bool:
    return dtype.kind in "biufc" and dtype.name in ITEM_BYTES


def _described(dtype: Any, axes: tuple[int, ...]) -> Any:
    """Return the type of a field as schemas have it; None if array files have none."""
    if dtype is None:
        return None
    if h5py.check_string_dtype(dtype) is not None:
        return "json" if axes else "str"
    items = _items(dtype)
    if items is not None:
        return (items.name, [None]) if not axes else "json" if items.kind != "c" else None
    if dtype.kind in "mM":
        return (_TIMES, list(axes)) if axes else _TIMES
    if dtype.kind == "V":
        return ("uint8", [*axes, dtype.itemsize]) if axes else "bytes"
    if _is_number(dtype):
        return (dtype.name, list(axes)) if axes or dtype.kind == "c" else dtype.name
    return None


def _named(dtype: Any) -> str:
    """Return what messages call a type that array files lack."""
    if dtype is None:
        return "a type that NumPy lacks"
    if h5py.check_ref_dtype(dtype) is not None:
        return "references"
    if h5py.check_string_dtype(dtype) is not None:
        return "text"
    items = h5py.check_vlen_dtype(dtype)
    return str(dtype) if items is None else f"runs of {_named(items)}"


def _values(data: Any, dtype: Any, is_scalar: bool) -> Any:
    """Return one value a record: a number, text, bytes, an array, or what becomes JSON."""
    if h5py.check_string_dtype(dtype) is not None:
        return _text(data.tolist())
    if dtype.kind == "O":
        return _runs(data.tolist(), is_swapped=not _items(dtype).isnative and _leaves_bytes())
    if dtype.kind == "V":
        if is_scalar:
            return [value.tobytes() for value in data]
        return np.ascontiguousarray(data).view(np.uint8).reshape(*data.shape, dtype.itemsize)
    native = np.ascontiguousarray(data, data.dtype.newbyteorder("="))
    if dtype.kind in "mM":
        native = native.view(_TIMES)
    return native.tolist() if is_scalar and dtype.kind != "c" else native


def _runs(values: Any, is_swapped: bool) -> Any:
    if isinstance(values, list):
        return [_runs(value, is_swapped) for value in values]
    return values.byteswap() if is_swapped else values


@cache
def _leaves_bytes() -> bool:
    """Whether h5py gives runs of numbers in another byte order as they lie, with a dtype that is wrong for them."""
    foreign = np.dtype("u2").newbyteorder("S")
    with h5py.File("probe", "w", driver="core", backing_store=False) as file:
        dataset = file.create_dataset("runs", (1,), h5py.vlen_dtype(foreign))
        dataset[0] = np.ones(1, foreign)
        return int(dataset[0][0]) != 1


def _text(values: Any) -> Any:
    if isinstance(values, list):
        return [_text(value) for value in values]
    return values.decode() if isinstance(values, bytes) else values
