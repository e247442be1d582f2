"""The datasets and groups of HDF5 as records. Loaded only where HDF5 is read."""

import math
from collections.abc import Callable, Container, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import h5py
import numpy as np

from ..errors import FormatError, either, option
from .hdf5_types import Part, dtype_of, parts_of
from .reader import Refused

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


def _check_bytes(dataset: Any, size: int, remark: str) -> None:
    """Raise FormatError where reading so many bytes at once makes many times what the file holds of a dataset.

    A chunk is decompressed whole, also where it is larger than the dataset.
    """
    size = max(size, math.prod(dataset.chunks or ()) * dataset.dtype.itemsize)
    if size > max(_MOST_BYTES, _MOST_TIMES * dataset.id.get_storage_size()):
        raise FormatError(
            f"{_place(dataset)}: expected chunks and records of up to {_MOST_BYTES} bytes, found {size}, where the "
            f"file holds {dataset.id.get_storage_size()}; write it again with smaller chunks{remark}"
        )


def _check_record(where: str, datasets: Iterable[Any]) -> None:
    """Raise FormatError where all datasets of a record are many times what the file holds of them."""
    held, size = 0, 0
    for dataset in datasets:
        held += dataset.id.get_storage_size()
        if dataset.shape is not None:  # of any type, also one that NumPy lacks
            size += dataset.id.get_type().get_size() * math.prod(dataset.shape)
    if size > max(_MOST_BYTES, _MOST_TIMES * held):
        raise FormatError(
            f"{where}: expected records of up to {_MOST_BYTES} bytes, found {size}, where the file holds {held}; "
            f"convert rows, with {option('records', 'rows')}, or write the file again with fewer datasets in a group"
        )


def _check_depth(group: Any, depth: int) -> None:
    if depth > _MAX_DEPTH:
        raise FormatError(
            f"{group.file.filename}: expected groups up to {_MAX_DEPTH} deep, found deeper ones; choose a group with "
            f"{either('--group PATH', 'group=...')} (links may form a circle)"
        )


def dataset_parts(name: str, dataset: Any, shape: tuple[int, ...]) -> list[Part]:
    """Return what of a dataset becomes a field.

    Args:
      shape: that of its part in one record.
    """
    return list(parts_of(name, dtype_of(dataset), shape))


def row_fields(path: str, root: Any) -> tuple[dict[str, Any], int]:
    """Return the fields that the rows of all datasets below a group have, and how many rows there are.

    Raises:
      FormatError: two datasets make fields of one name.
    """
    fields: dict[str, Any] = {}
    count = 0
    for name, dataset in datasets_below(root):
        shape = dataset.shape or ()
        found = {part.field: part.type(_place(dataset)) for part in dataset_parts(name, dataset, shape[1:])}
        _check_names(path, fields, found)
        fields |= found
        count = max(count, shape[0] if shape else 0)
    return fields, count


def _place(dataset: Any) -> str:
    """Return what messages call a dataset."""
    return f"{dataset.file.filename}: dataset {dataset.name!r}"


def _check_names(place: str, names: Container[str], more: Iterable[str]) -> None:
    """Raise FormatError if two parts of a record make fields of one name."""
    for name in more:
        if name in names:
            raise FormatError(f"{place}: expected fields of different names, found two {name!r}; rename one")


@contextmanager
def _decoding(place: str) -> Iterator[None]:
    """Name what holds text that is not UTF-8."""
    try:
        yield
    except UnicodeDecodeError as error:
        found = f"byte 0x{error.object[error.start]:02x}"
        raise FormatError(
            f"{place}: expected text in UTF-8, found {found}; choose other fields with "
            f"{either('--fields', 'fields=...')}"
        ) from None


def rows(path: str, root: Any, wanted: set[str] | None) -> Generator[dict[str, Any], None, int]:
    """Yield row k of every dataset below a group as record k; return how many rows there are.

    Args:
      wanted: fields to read; None for all.
    Raises:
      FormatError: datasets have different numbers of rows.
    """
    columns: dict[str, tuple[Any, list[Part]]] = {}
    for name, dataset in datasets_below(root):
        parts = dataset_parts(name, dataset, (dataset.shape or ())[1:])
        if parts := [part for part in parts if wanted is None or part.field in wanted]:
            columns[name] = dataset, parts
    datasets = {name: dataset for name, (dataset, _) in columns.items()}
    count = _count_rows(path, datasets)
    step = _step(list(datasets.values()))
    for dataset in datasets.values():
        _check_bytes(dataset, min(step, count) * dataset.dtype.itemsize * math.prod(dataset.shape[1:]), "")
    for begin in range(0, count, step):
        values: dict[str, Any] = {}
        for dataset, parts in columns.values():
            data = dataset[begin : begin + step]
            with _decoding(_place(dataset)):
                values |= {part.field: part.values(data) for part in parts}
        for row in zip(*values.values(), strict=True):
            yield dict(zip(values, row, strict=True))
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
                f"{path}: dataset {name!r}: expected {wanted}, found {found}; choose datasets with "
                f"{either('--fields', 'fields=...')}, or make each group a record with {option('records', 'groups')}"
            )
    return expected


def _step(datasets: Sequence[Any]) -> int:
    """Return how many rows to read at a time: whole chunks, so that each is decompressed once."""
    row = sum(dataset.dtype.itemsize * math.prod(dataset.shape[1:]) for dataset in datasets)
    chunk: int = max((dataset.chunks[0] for dataset in datasets if dataset.chunks), default=1)
    fitting: int = min(_BYTES // max(row, 1), _ROWS) // chunk
    return chunk * max(fitting, 1)


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
    """Return a record of datasets, and of the attributes of the group or dataset that `path` names.

    A field that is not wanted is None, and one whose type array files lack a Refused.
    """
    record: dict[str, Any] = {"__key__": path}
    where = f"{found.file.filename}: {found.name!r}"
    for name in found.attrs:
        attribute = found.attrs.get_id(name)
        parts = list(parts_of(name, dtype_of(attribute), attribute.shape or ()))
        place = f"{found.file.filename}: attribute {name!r} of {found.name!r}"
        _check_names(where, record, (part.field for part in parts))
        record |= _values(place, parts, wanted, partial(_attribute, found, name))
    if len(datasets) > 1:
        _check_record(where, datasets.values())
    for name, dataset in datasets.items():
        parts = dataset_parts(name, dataset, dataset.shape or ())
        _check_names(where, record, (part.field for part in parts))
        record |= _values(_place(dataset), parts, wanted, partial(_whole, dataset))
    return record


def _values(
    place: str, parts: Sequence[Part], wanted: set[str] | None, read: Callable[[], Any]
) -> Iterator[tuple[str, Any]]:
    """Yield the fields that a dataset or an attribute makes, and their values.

    Args:
      read: returns what it holds as the only entry of an array; None if it is empty.
    Raises:
      FormatError: array files lack the type of a field that is wanted.
    """
    types = {part.field: part.type(place) for part in parts}
    chosen = [part.field for part in parts if wanted is None or part.field in wanted]
    refused = {name: types[name] for name in chosen if isinstance(types[name], Refused)}
    if refused and wanted is not None:
        raise next(iter(refused.values())).error(sorted(wanted - refused.keys()))
    data = read() if len(refused) < len(chosen) else None
    for part in parts:
        if part.field in refused:
            yield part.field, refused[part.field]
        elif data is None or part.field not in chosen:
            yield part.field, None
        else:
            with _decoding(place):
                value = part.values(data)[0]
            yield part.field, value


def _whole(dataset: Any) -> Any:
    """Return what a dataset holds as the only entry of an array; None if it is empty."""
    if dataset.shape is None:
        return None
    _check_bytes(dataset, dataset.nbytes, f" (or convert each of its rows, with {option('records', 'rows')})")
    return _alone(dataset[()], dataset.dtype, dataset.shape)


def _attribute(found: Any, name: str) -> Any:
    """Return what an attribute holds as the only entry of an array; None if it is empty."""
    attribute, value = found.attrs.get_id(name), found.attrs[name]
    return None if isinstance(value, h5py.Empty) else _alone(value, attribute.dtype, attribute.shape)


def _alone(value: Any, dtype: Any, shape: tuple[int, ...]) -> Any:
    """Return a value as the only entry of an array."""
    data = np.empty((1, *shape), dtype)
    data[0] = value
    return data
