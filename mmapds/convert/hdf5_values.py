"""The datasets and groups of HDF5 as records. Loaded only where HDF5 is read."""

import math
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any

import h5py
import numpy as np

from ..errors import FormatError

_BYTES, _ROWS = 8 << 20, 1024  # read at a time, unless a chunk has more
_MAX_DEPTH = 32  # of groups and links, which may form a circle
_MOST_BYTES, _MOST_TIMES = 1 << 30, 100  # at once, and how many times what the file holds: compression has its limits


def datasets_below(group: Any, prefix: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield the path and dataset of everything below a group."""
    _check_depth(group, depth)
    for name in group:
        found = member(group, name)
        if isinstance(found, h5py.Group):
            yield from datasets_below(found, f"{prefix}{name}/", depth + 1)
        elif isinstance(found, h5py.Dataset):
            yield prefix + name, found


def member(group: Any, path: str, hops: int = 0) -> Any:
    """Return what a path leads to, from a group or, if it begins with a slash, from the root.

    Links are followed here and not by the library, which would open whatever file an external link names.

    Raises:
      FormatError: the path leads into another file, or in circles; or the data of a dataset lie in another file.
      KeyError: nothing is there.
    """
    found = group.file["/"] if path.startswith("/") else group
    for name in filter(None, path.split("/")):
        if not isinstance(found, h5py.Group):
            raise KeyError(path)
        if (link := found.get(name, getlink=True)) is None:
            raise KeyError(path)
        if isinstance(link, h5py.SoftLink) and hops < _MAX_DEPTH:
            found = member(found, link.path, hops + 1)
        elif isinstance(link, h5py.HardLink):
            found = found[name]
        else:
            elsewhere = getattr(link, "filename", None)
            where = f"in {elsewhere}" if elsewhere is not None else f"beyond {hops} links"
            raise _outside(group, f"{path!r}", where)
    if isinstance(found, h5py.Dataset):
        _check_storage(found)
    return found


def _check_storage(dataset: Any) -> None:
    """Raise FormatError for a dataset whose data lie in other files, or that declares far more than the file holds."""
    if dataset.external:
        raise _outside(dataset, f"{dataset.name!r}", f"in {dataset.external[0][0]}")
    if dataset.is_virtual:
        raise _outside(dataset, f"{dataset.name!r}", f"in {dataset.virtual_sources()[0].file_name}")


def _outside(found: Any, name: str, where: str) -> FormatError:
    return FormatError(
        f"{found.file.filename}: {name}: expected data in this file, found them {where}; convert the files that hold "
        "the data (or copy the data into one file, if you trust who made it)"
    )


def _check_bytes(dataset: Any, size: int) -> None:
    """Raise FormatError where reading so many bytes at once makes many times what the file holds of a dataset."""
    if size > max(_MOST_BYTES, _MOST_TIMES * dataset.id.get_storage_size()):
        raise FormatError(
            f"{dataset.file.filename}: dataset {dataset.name!r}: expected chunks and records of up to {_MOST_BYTES} "
            f"bytes, found {size}, where the file holds {dataset.id.get_storage_size()}; write it again with smaller "
            "chunks"
        )


def _check_depth(group: Any, depth: int) -> None:
    if depth > _MAX_DEPTH:
        raise FormatError(
            f"{group.file.filename}: expected groups up to {_MAX_DEPTH} deep, found deeper ones; choose a group with "
            "--group PATH (links may form a circle)"
        )


def dataset_fields(name: str, dtype: Any, shape: tuple[int, ...]) -> dict[str, Any]:
    """Return the fields that a dataset makes, by name; schemas refuse the "HDF5 ..." type of those with no other."""
    if dtype.subdtype is not None:  # an array in a compound
        dtype, inner = dtype.subdtype
        shape = (*shape, *inner)
    if dtype.names:
        fields: dict[str, Any] = {}
        for part in dtype.names:
            fields |= dataset_fields(f"{name}.{part}", dtype[part], shape)
        return fields
    axes = shape[1:]
    if h5py.check_string_dtype(dtype):
        return {name: "json" if axes else "str"}
    ragged = h5py.check_vlen_dtype(dtype)
    # In another byte order, h5py gives the bytes unchanged and a native dtype, which is wrong.
    if ragged is not None and np.dtype(ragged).kind in "biufc" and np.dtype(ragged).isnative and not axes:
        return {name: (np.dtype(ragged).name, [None])}
    if dtype.kind in "biufc":
        return {name: (dtype.name, list(axes)) if axes else dtype.name}
    return {name: "bytes" if dtype.kind == "V" and not axes else f"HDF5 {dtype}"}


def rows(path: str, root: Any, wanted: set[str] | None) -> Generator[dict[str, Any], None, int]:
    """Yield row k of every dataset below a group as record k; return how many rows there are.

    Args:
      wanted: fields to read; None for all.
    Raises:
      FormatError: datasets have different numbers of rows.
    """
    datasets = {
        name: dataset
        for name, dataset in datasets_below(root)
        if wanted is None or not wanted.isdisjoint(dataset_fields(name, dataset.dtype, dataset.shape or ()))
    }
    count = _count_rows(path, datasets)
    step = _step(list(datasets.values()))
    for dataset in datasets.values():
        _check_bytes(dataset, min(step, count) * dataset.dtype.itemsize * math.prod(dataset.shape[1:]))
    for begin in range(0, count, step):
        columns: dict[str, Any] = {}
        for name, dataset in datasets.items():
            columns |= _columns(name, dataset[begin : begin + step], dataset.dtype)
        names = [name for name in columns if wanted is None or name in wanted]
        for row in zip(*(columns[name] for name in names), strict=True):
            yield dict(zip(names, row, strict=True))
    return count


def _count_rows(path: str, datasets: Mapping[str, Any]) -> int:
    """Return how many rows all datasets have.

    Raises:
      FormatError: one has a single value, or another number of rows.
    """
    first, expected = "", 0
    for name, dataset in datasets.items():
        if dataset.shape and not first:
            first, expected = name, dataset.shape[0]
        if not dataset.shape or dataset.shape[0] != expected:
            found = f"{dataset.shape[0]}" if dataset.shape else "a single value"
            wanted = f"{expected} rows, as in {first!r}" if first else "rows"
            raise FormatError(
                f"{path}: dataset {name!r}: expected {wanted}, found {found}; choose datasets with --fields, or make "
                "each group a record with --records groups"
            )
    return expected


def _step(datasets: Sequence[Any]) -> int:
    """Return how many rows to read at a time: whole chunks, so that each is decompressed once."""
    row = sum(dataset.dtype.itemsize * math.prod(dataset.shape[1:]) for dataset in datasets)
    chunk: int = max((dataset.chunks[0] for dataset in datasets if dataset.chunks), default=1)
    fitting: int = min(_BYTES // max(row, 1), _ROWS) // chunk
    return chunk * max(fitting, 1)


def _columns(name: str, data: Any, dtype: Any) -> dict[str, Any]:
    """Return what h5py read as the values of each field, one a row."""
    if dtype.subdtype is not None:
        dtype = dtype.subdtype[0]
    if dtype.names:
        columns: dict[str, Any] = {}
        for part in dtype.names:
            columns |= _columns(f"{name}.{part}", data[part], dtype[part])
        return columns
    if h5py.check_string_dtype(dtype):
        return {name: _text(data.tolist())}
    if dtype.kind == "V":
        return {name: [value.tobytes() for value in data]}
    return {name: data.tolist() if data.ndim == 1 and dtype.kind != "O" else data}


def _text(values: Any) -> Any:
    return [_text(value) for value in values] if isinstance(values, list) else values.decode()


def group_records(group: Any, wanted: set[str] | None, path: str = "", depth: int = 0) -> Iterator[dict[str, Any]]:
    """Yield each dataset of a group as a record, and each group below it that has datasets, the innermost first."""
    _check_depth(group, depth)
    datasets = {}
    for name in group:
        found = member(group, name)
        if isinstance(found, h5py.Group):
            yield from group_records(found, wanted, f"{path}{name}/", depth + 1)
        elif isinstance(found, h5py.Dataset) and depth:
            datasets[name] = found
        elif isinstance(found, h5py.Dataset):
            yield _record(name, found, {"data": found}, wanted)
    if datasets:
        yield _record(path[:-1], group, datasets, wanted)


def _record(path: str, found: Any, datasets: Mapping[str, Any], wanted: set[str] | None) -> dict[str, Any]:
    """Return a record of datasets, and of the attributes of the group or dataset that `path` names."""
    record = {"__key__": path}
    for name, value in found.attrs.items():
        if name in datasets or name in record:
            raise FormatError(f"{found.file.filename}: {path!r} has both an attribute and a field {name!r}; rename one")
        record[name] = _attribute(value)
    for name, dataset in datasets.items():
        if wanted is None or not wanted.isdisjoint(dataset_fields(name, dataset.dtype, (1, *(dataset.shape or ())))):
            record |= _values(name, dataset)
    return record


def _values(name: str, dataset: Any) -> dict[str, Any]:
    """Return what a whole dataset holds, by field."""
    if dataset.shape is None:
        return {name: None}
    _check_bytes(dataset, dataset.nbytes)
    data = np.empty((1, *dataset.shape), dataset.dtype)
    data[0] = dataset[()]
    return {field: values[0] for field, values in _columns(name, data, dataset.dtype).items()}


def _attribute(value: Any) -> Any:
    """Return an attribute as a value of a record."""
    if isinstance(value, h5py.Empty):
        return None
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, np.ndarray) and value.dtype.kind not in "biufc":
        return value.tolist()
    return value.item() if isinstance(value, np.generic) else value
