"""How much of HDF5 is read at once. Loaded only where HDF5 is read."""

import math
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..errors import FormatError, either

_MOST_BYTES, _MOST_TIMES = 1 << 30, 100  # at once, and how many times what the file holds: compression has its limits


def place_of(dataset: Any) -> str:
    """Return what messages call a dataset."""
    return f"{dataset.file.filename}: dataset {dataset.name!r}"


def size_of(dataset: Any, rows: int | None = None) -> int:
    """Return how many bytes some rows of a dataset take, or all of it; text and runs of numbers count as pointers."""
    if dataset.shape is None:
        return 0
    shape = dataset.shape if rows is None else (rows, *dataset.shape[1:])
    return int(dataset.id.get_type().get_size() * math.prod(shape))  # of any type, also one that NumPy lacks


def check_bytes(dataset: Any, size: int, remark: str) -> None:
    """Raise FormatError where reading so many bytes at once makes many times what the file holds of a dataset.

    A chunk is decompressed whole, also where it is larger than the dataset.
    """
    held = dataset.id.get_storage_size()
    size = max(size, math.prod(dataset.chunks or ()) * dataset.id.get_type().get_size())
    if size > max(_MOST_BYTES, _MOST_TIMES * held):
        raise FormatError(
            f"{place_of(dataset)}: expected chunks and records of up to {_MOST_BYTES} bytes, found {size}, where the "
            f"file holds {held}; write it again with smaller chunks{remark}"
        )


def check_together(where: str, datasets: Sequence[Any], rows: int | None, remedy: str) -> None:
    """Raise FormatError where some rows of several datasets, or all of them, are many times what the file holds."""
    size = sum(size_of(dataset, rows) for dataset in datasets)
    if len(datasets) < 2 or size <= _MOST_BYTES:
        return
    held = sum(dataset.id.get_storage_size() for dataset in datasets)
    held = min(held, datasets[0].file.id.get_filesize())  # a dataset may have several names
    if size > _MOST_TIMES * held:
        raise FormatError(
            f"{where}: expected records of up to {_MOST_BYTES} bytes, found {size}, where the file holds {held}; "
            f"choose fewer fields with {either('--fields', 'fields=...')}, or {remedy}"
        )


def loose_of(dtype: Any) -> int:
    """Return how many texts and runs of numbers an element has; they lie elsewhere in the file, and have any length."""
    if dtype.names:
        return sum(loose_of(dtype[name]) for name in dtype.names)
    if dtype.subdtype is not None:
        return int(loose_of(dtype.base) * math.prod(dtype.shape))
    return int(dtype.hasobject)


def loose_rows(datasets: Sequence[Any]) -> int:
    """Return how many rows to read at a time of datasets with texts: those with up to 100 texts together, or one."""
    row: int = sum(loose_of(dataset.dtype) * math.prod(dataset.shape[1:]) for dataset in datasets)
    return max(_MOST_TIMES // max(row, 1), 1)


class Room:
    """What is left for texts and runs of numbers in a record, or in some rows.

    An element that was never written is the fill value of its dataset, and several elements may be the same bytes of
    the file. So up to 100 are read at a time, none of which is longer than the file, and all are counted.
    """

    def __init__(self, file: Any) -> None:
        self._held = file.id.get_filesize()
        self._most = self._left = max(_MOST_BYTES, _MOST_TIMES * self._held)

    def entries(self, dataset: Any, begin: int, end: int, names: Sequence[str]) -> Any:
        """Return some rows of a dataset.

        Args:
          names: the parts of its compounds that are wanted.
        Raises:
          FormatError: they are many times what the file holds.
        """
        if not dataset.dtype.hasobject:
            return dataset[begin:end]
        chosen, dtype, most = self._chosen(dataset, names)
        self._take(dataset, dtype.itemsize * (end - begin) * math.prod(dataset.shape[1:]))
        data = np.empty((end - begin, *dataset.shape[1:]), dtype)
        for first, *others in _pieces([(begin, end), *((0, size) for size in dataset.shape[1:])], most):
            found = chosen[(first, *others)]
            self._take(dataset, _bytes_of(found))
            data[(slice(first.start - begin, first.stop - begin), *others)] = found
        return data

    def whole(self, dataset: Any, names: Sequence[str]) -> Any:
        """Return all of a dataset as the only entry of an array."""
        if dataset.shape:
            return self.entries(dataset, 0, len(dataset), names)[np.newaxis]
        chosen, dtype, _ = self._chosen(dataset, names)
        return alone(chosen[()], dtype, ())

    def _chosen(self, dataset: Any, names: Sequence[str]) -> tuple[Any, Any, int]:
        """Return what gives the wanted parts of a dataset, their dtype, and how many elements to read at a time."""
        dtype, chosen = dataset.dtype, dataset
        if dtype.names:
            dtype, chosen = np.dtype([(name, dtype[name]) for name in names]), dataset.fields(list(names))
        loose = max(loose_of(dtype), 1)
        if loose > _MOST_TIMES and loose * self._held > self._most:
            raise self._error(dataset)
        return chosen, dtype, max(_MOST_TIMES // loose, 1)

    def _take(self, dataset: Any, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise self._error(dataset)

    def _error(self, dataset: Any) -> FormatError:
        return FormatError(
            f"{place_of(dataset)}: expected records with up to {self._most} bytes of text and runs of numbers, found "
            f"more, where the file has {self._held} bytes; choose other fields with {either('--fields', 'fields=...')}"
        )


def alone(value: Any, dtype: Any, shape: tuple[int, ...]) -> Any:
    """Return a value as the only entry of an array."""
    data = np.empty((1, *shape), dtype)
    data[0] = value
    return data


def _pieces(bounds: Sequence[tuple[int, int]], most: int) -> Iterator[tuple[slice, ...]]:
    """Yield selections that cover what lies within some bounds of axes, each of up to `most` elements."""
    (begin, end), *inner = bounds
    within = math.prod(last - first for first, last in inner)
    step = max(most // max(within, 1), 1)
    for first in range(begin, end, step):
        rows = slice(first, min(first + step, end))
        if within <= most:
            yield (rows, *(slice(*each) for each in inner))
        else:
            yield from ((rows, *others) for others in _pieces(inner, most))


def _bytes_of(data: Any) -> int:
    """Return how much memory the objects in an array take."""
    if data.dtype.names:
        return sum(_bytes_of(data[name]) for name in data.dtype.names)
    return sum(map(sys.getsizeof, data.flat)) if data.dtype == object else 0
