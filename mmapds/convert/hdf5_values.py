"""HDF5's types and values as those of array files, and how much is read at once. Loaded only where HDF5 is read."""

import math
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

import h5py
import numpy as np

from ..arrays.schema import ITEM_BYTES
from ..errors import FormatError, either
from .reader import Refused

_TIMES = "int64"  # what dates and durations of NumPy, which h5py writes as opaque values, are
_MOST_BYTES, _MOST_TIMES = 1 << 30, 100  # at once, and how many times what the file holds: compression has its limits
TEXTS = 100
"""Texts and runs of numbers that are read at a time, as each may be as long as the file."""


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
        return _values(data, self.dtype)


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


def _values(data: Any, dtype: Any) -> Any:
    """Return one value a record: a number, text, bytes, an array, or what becomes JSON."""
    if h5py.check_string_dtype(dtype) is not None:
        return _text(data.tolist())
    if dtype.kind == "O":
        return _runs(data.tolist(), is_swapped=not _items(dtype).isnative and _leaves_bytes())
    if dtype.kind == "V":
        if data.ndim == 1:
            return [value.tobytes() for value in data]
        return np.ascontiguousarray(data).view(np.uint8).reshape(*data.shape, dtype.itemsize)
    native = np.ascontiguousarray(data, data.dtype.newbyteorder("="))
    return native.view(_TIMES) if dtype.kind in "mM" else native


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


# ---- how much is read at once ---------------------------------------------------------------------------------------


def place_of(dataset: Any) -> str:
    """Return what messages call a dataset."""
    return f"{dataset.file.filename}: dataset {dataset.name!r}"


def size_of(dataset: Any, rows: int | None = None) -> int:
    """Return how many bytes some rows of a dataset take, or all of it; text and runs of numbers count as pointers."""
    if dataset.shape is None:
        return 0
    shape = dataset.shape if rows is None else (rows, *dataset.shape[1:])
    return int(dataset.id.get_type().get_size() * math.prod(shape))  # of any type, also one that NumPy lacks


def check_sizes(where: str, datasets: Sequence[Any], rows: int | None) -> None:
    """Raise FormatError where some rows of datasets, or all of them, are many times what the file holds.

    A chunk is decompressed whole, also where it is larger than its dataset.
    """
    chunks = [math.prod(each.chunks) * each.id.get_type().get_size() for each in datasets if each.chunks]
    size = max(sum(size_of(dataset, rows) for dataset in datasets), *chunks, 0)
    if size <= _MOST_BYTES:
        return
    held = sum(dataset.id.get_storage_size() for dataset in datasets)
    held = min(held, datasets[0].file.id.get_filesize())  # a dataset may have several names
    if size > _MOST_TIMES * held:
        raise FormatError(
            f"{place_of(datasets[0]) if len(datasets) == 1 else where}: expected chunks and records of up to "
            f"{_MOST_BYTES} bytes, found {size}, where the file holds {held}; write it again with smaller chunks, or "
            f"choose fewer fields with {either('--fields', 'fields=...')}"
        )


def texts_in(dtype: Any) -> int:
    """Return how many texts and runs of numbers an element has; they lie elsewhere in the file, and have any length."""
    if dtype.names:
        return sum(texts_in(dtype[name]) for name in dtype.names)
    if dtype.subdtype is not None:
        return int(texts_in(dtype.base) * math.prod(dtype.shape))
    return int(dtype.hasobject)


class Room:
    """What is left for texts and runs of numbers in a record, or in some rows.

    An element that was never written is the fill value of its dataset, and several elements may be the same bytes of
    the file. So few are read at a time, none of which is longer than the file, and all are counted.
    """

    def __init__(self, file: Any) -> None:
        self._held = file.id.get_filesize()
        self._most = self._left = max(_MOST_BYTES, _MOST_TIMES * self._held)

    def rows(self, dataset: Any, begin: int, end: int) -> Any:
        """Return some rows of a dataset.

        Raises:
          FormatError: their texts and runs are many times what the file holds.
        """
        if not dataset.dtype.hasobject:
            return dataset[begin:end]
        texts = texts_in(dataset.dtype)
        if texts > TEXTS and texts * self._held > self._most:
            raise self._error(dataset)
        data = np.empty((end - begin, *dataset.shape[1:]), dataset.dtype)
        self._take(dataset, data.nbytes)
        *outer, inner = data.shape
        step = max(TEXTS // texts, 1)
        for index in np.ndindex(*outer):
            for first in range(0, inner, step):
                place = (*index, slice(first, min(first + step, inner)))
                shift = slice(begin + place[0].start, begin + place[0].stop) if not index else begin + index[0]
                data[place] = dataset[(shift, *place[1:])]
                self._take(dataset, _bytes_of(data[place]))
        return data

    def whole(self, dataset: Any) -> Any:
        """Return all of a dataset as the only entry of an array; None if it is empty."""
        if dataset.shape is None:
            return None
        return self.rows(dataset, 0, len(dataset))[np.newaxis] if dataset.shape else alone(dataset[()], dataset.dtype)

    def _take(self, dataset: Any, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise self._error(dataset)

    def _error(self, dataset: Any) -> FormatError:
        return FormatError(
            f"{place_of(dataset)}: expected records with up to {self._most} bytes of text and runs of numbers, found "
            f"more, where the file has {self._held} bytes; choose other fields with {either('--fields', 'fields=...')}"
        )


def alone(value: Any, dtype: Any, shape: tuple[int, ...] = ()) -> Any:
    """Return a value as the only entry of an array."""
    data = np.empty((1, *shape), dtype)
    data[0] = value
    return data


def _bytes_of(data: Any) -> int:
    """Return how much memory the objects in an array take."""
    if data.dtype.names:
        return sum(_bytes_of(data[name]) for name in data.dtype.names)
    return sum(map(sys.getsizeof, data.flat)) if data.dtype == object else 0
