"""The datasets and groups of HDF5 as records. Loaded only where HDF5 is read."""

from collections.abc import Callable, Container, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import h5py

from ..errors import FormatError, either, option
from .hdf5_limits import Room, alone, check_bytes, check_together, loose_rows, place_of, size_of
from .hdf5_types import Part, dtype_of, parts_of
from .reader import Refused

_BYTES, _ROWS = 8 << 20, 1024  # read at a time, unless a chunk has more
Column = tuple[Any, list[Part]]
"""A dataset, and which of its parts become fields."""
_LINK_BYTES = 4  # fewer than any link takes in a file: groups may have several names
_MAX_DEPTH = 32  # of groups and links, which may form a circle


class _Walk:
    """Goes through all groups below one. Few links can make many paths, where groups share groups."""

    def __init__(self, file: Any) -> None:
        self._links = file.id.get_filesize() // _LINK_BYTES

    def enter(self, group: Any, depth: int) -> None:
        """Raise FormatError for a group that is too deep, or where more links were met than the file can hold."""
        self._links -= 1 + len(group)
        if depth > _MAX_DEPTH or self._links < 0:
            found = f"groups up to {_MAX_DEPTH} deep, found deeper ones"
            if depth <= _MAX_DEPTH:
                found = "groups that do not share groups, found more paths than the file can hold"
            raise FormatError(
                f"{group.file.filename}: expected {found}; choose a group with {either('--group PATH', 'group=...')} "
                "(links may form a circle)"
            )


def datasets_below(
    group: Any, prefix: str = "", depth: int = 0, walk: _Walk | None = None
) -> Iterator[tuple[str, Any]]:
    """Yield the path and dataset of everything below a group."""
    walk = walk or _Walk(group.file)
    walk.enter(group, depth)
    for name in group:
        found = member(group, name)
        if isinstance(found, h5py.Group):
            yield from datasets_below(found, f"{prefix}{name}/", depth + 1, walk)
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
        found = {part.field: part.type(place_of(dataset)) for part in dataset_parts(name, dataset, shape[1:])}
        _check_names(path, fields, found)
        fields |= found
        count = max(count, shape[0] if shape else 0)
    return fields, count


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


def rows(path: str, root: Any, wanted: Container[str] | None) -> Generator[dict[str, Any], None, int]:
    """Yield row k of every dataset below a group as record k; return how many rows there are.

    Args:
      wanted: fields to read; None for all.
    Raises:
      FormatError: datasets have different numbers of rows.
    """
    columns: dict[str, Column] = {}
    for name, dataset in datasets_below(root):
        parts = dataset_parts(name, dataset, (dataset.shape or ())[1:])
        if parts := [part for part in parts if wanted is None or part.field in wanted]:
            columns[name] = dataset, parts
    count = _count_rows(path, {name: dataset for name, (dataset, _) in columns.items()})
    loose = [column for column in columns.values() if column[0].dtype.hasobject]
    steady = [column for column in columns.values() if not column[0].dtype.hasobject]
    step, few = _step([dataset for dataset, _ in steady]), loose_rows([dataset for dataset, _ in loose])
    for some, rows_at_once in ((steady, step), (loose, few)):
        for dataset, _ in some:
            check_bytes(dataset, size_of(dataset, min(rows_at_once, count)), "")
    check_together(path, [dataset for dataset, _ in steady], min(step, count), "write it again with smaller chunks")
    for begin, end in _ranges(0, count, step):
        values = _read(root, steady, begin, end)
        for first, last in _ranges(begin, end, few):
            found = {name: column[first - begin : last - begin] for name, column in values.items()}
            found |= _read(root, loose, first, last)
            for row in zip(*found.values(), strict=True):
                yield dict(zip(found, row, strict=True))
    return count


def _ranges(begin: int, end: int, step: int) -> Iterator[tuple[int, int]]:
    return ((first, min(first + step, end)) for first in range(begin, end, step))


def _read(root: Any, columns: Iterable[Column], begin: int, end: int) -> dict[str, Any]:
    """Return the values that each field has in some rows."""
    room = Room(root.file)
    values: dict[str, Any] = {}
    for dataset, parts in columns:
        data = room.entries(dataset, begin, end, _tops(parts))
        with _decoding(place_of(dataset)):
            values |= {part.field: part.values(data) for part in parts}
    return values


def _tops(parts: Iterable[Part]) -> list[str]:
    """Return the parts of the outermost compound that have some parts; each once."""
    return list(dict.fromkeys(part.within[0] for part in parts if part.within))


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
    row = sum(size_of(dataset, 1) for dataset in datasets)
    chunk: int = max((dataset.chunks[0] for dataset in datasets if dataset.chunks), default=1)
    fitting: int = min(_BYTES // max(row, 1), _ROWS) // chunk
    return chunk * max(fitting, 1)


def group_records(
    group: Any, wanted: Container[str] | None, path: str = "", depth: int = 0, walk: _Walk | None = None
) -> Iterator[dict[str, Any]]:
    """Yield each dataset of a group as a record, and each group below it that has datasets, the innermost first."""
    walk = walk or _Walk(group.file)
    walk.enter(group, depth)
    datasets = {}
    for name in group:
        found = member(group, name)
        if isinstance(found, h5py.Group):
            yield from group_records(found, wanted, f"{path}{name}/", depth + 1, walk)
        elif isinstance(found, h5py.Dataset) and depth:
            datasets[name] = found
        elif isinstance(found, h5py.Dataset):
            yield _record(name, found, {"data": found}, wanted)
    if datasets:
        yield _record(path[:-1], group, datasets, wanted)


def _record(path: str, found: Any, datasets: Mapping[str, Any], wanted: Container[str] | None) -> dict[str, Any]:
    """Return a record of datasets, and of the attributes of the group or dataset that `path` names.

    A field that is not wanted is None and is not read; one whose type array files lack is a Refused.
    """
    record: dict[str, Any] = {"__key__": path}
    where = f"{found.file.filename}: {found.name!r}"
    for name in found.attrs:
        attribute = found.attrs.get_id(name)
        parts = list(parts_of(name, dtype_of(attribute), attribute.shape or ()))
        _check_names(where, record, (part.field for part in parts))
        place = f"{found.file.filename}: attribute {name!r} of {found.name!r}"
        record |= _values(place, parts, wanted, partial(_attribute, found, name))
    columns: list[Column] = []
    for name, dataset in datasets.items():
        parts = dataset_parts(name, dataset, dataset.shape or ())
        _check_names(where, record, (part.field for part in parts))
        record |= dict.fromkeys(part.field for part in parts)
        columns.append((dataset, parts))
    read = [dataset for dataset, parts in columns if any(_is_wanted(part, wanted) for part in parts)]
    check_together(where, read, None, f"convert rows, with {option('records', 'rows')}")
    room = Room(found.file)
    for dataset, parts in columns:
        record |= _values(place_of(dataset), parts, wanted, partial(_whole, dataset, room))
    return record


def _is_wanted(part: Part, wanted: Container[str] | None) -> bool:
    return wanted is None or part.field in wanted


def _values(
    place: str, parts: Sequence[Part], wanted: Container[str] | None, read: Callable[[Sequence[Part]], Any]
) -> Iterator[tuple[str, Any]]:
    """Yield the fields that a dataset or an attribute makes, and their values.

    Args:
      read: takes the parts that are meant; returns what the place holds of them as the only entry of an array, or None
        if it is empty.
    """
    types = {part.field: part.type(place) for part in parts}
    chosen = [part for part in parts if _is_wanted(part, wanted)]
    readable = [part for part in chosen if not isinstance(types[part.field], Refused)]
    data = read(readable) if readable else None
    for part in parts:
        if part in readable and data is not None:
            with _decoding(place):
                value = part.values(data)[0]
            yield part.field, value
        else:
            yield part.field, types[part.field] if part in chosen and part not in readable else None


def _whole(dataset: Any, room: Room, parts: Sequence[Part]) -> Any:
    """Return what a dataset holds as the only entry of an array; None if it is empty."""
    if dataset.shape is None:
        return None
    check_bytes(dataset, size_of(dataset), f" (or convert each of its rows, with {option('records', 'rows')})")
    return room.whole(dataset, _tops(parts))


def _attribute(found: Any, name: str, _: Sequence[Part]) -> Any:
    """Return what an attribute holds as the only entry of an array; None if it is empty."""
    attribute, value = found.attrs.get_id(name), found.attrs[name]
    return None if isinstance(value, h5py.Empty) else alone(value, attribute.dtype, attribute.shape)
