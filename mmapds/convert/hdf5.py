"""HDF5: datasets as columns, or every dataset or group of them as a record.

Loaded only where HDF5 is read, as h5py is optional.
"""

from collections.abc import Callable, Container, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import Any

import h5py
import numpy as np

from ..arrays.schema import Schema
from ..errors import Error, FormatError, either, option
from .hdf5_values import TEXTS, Part, Room, alone, check_sizes, dtype_of, parts_of, place_of, size_of, texts_in
from .reader import Batch, FileReader, Refused, cannot_be_read

_SHOWN = 8  # names in a message
_CHUNK_BYTES = 8 << 20  # of a dataset's chunks, kept as decompressed: text is read in parts of a chunk
_BYTES, _ROWS = 8 << 20, 1024  # read at a time, unless a chunk has more
_LINK_BYTES = 4  # fewer than any link takes in a file: groups may have several names
_MAX_DEPTH = 32  # of groups and links, which may form a circle


class Hdf5Reader(FileReader):
    """The records of some HDF5 files.

    With "rows", record k has entry k of every dataset below the group, and a field's name is the path of its dataset.
    With "groups", every dataset in the group is a record, its values being the field "data". So is every group below
    that holds datasets, which are its fields. Attributes are fields too, and the path is the field "__key__".

    Raises:
      FormatError: a source cannot be read, or the group is not there.
    """

    TITLE = "HDF5"

    def __init__(self, paths: Sequence[str], records: str = "rows", group: str = "/") -> None:
        super().__init__(paths)
        if records not in ("rows", "groups"):
            raise FormatError(f"records = {records!r}, expected 'rows' or 'groups'")
        self._group, self._are_rows = group, records == "rows"
        if self._are_rows:
            self.total = sum(self._describe(path) for path in paths)

    def _describe(self, path: str) -> int:
        """Add the fields of a file's rows to the schema; return how many rows it has."""
        with self._reading(path) as root:
            datasets = list(_datasets(root))
            parts = [(dataset, part) for name, dataset in datasets for part in _row_parts(name, dataset)]
            self._add_fields(path, [(part.field, part.type(place_of(dataset))) for dataset, part in parts])
            return max((dataset.shape[0] for _, dataset in datasets if dataset.shape), default=0)

    @contextmanager
    def _reading(self, path: str) -> Iterator[Any]:
        """Open a file; yield the group that holds its records, and name the file in errors of h5py."""
        try:
            with h5py.File(path, "r", rdcc_nbytes=_CHUNK_BYTES) as file:
                try:
                    root = _member(file, self._group)
                except KeyError:
                    root = None
                if not isinstance(root, h5py.Group):
                    shown = [*islice(file, _SHOWN), *(["..."] if len(file) > _SHOWN else [])]
                    found = "a dataset" if root is not None else ", ".join(shown) or "an empty file"
                    raise FormatError(
                        f"{path}: expected a group {self._group!r}, found {found}; choose one with "
                        f"{either('--group PATH', 'group=...')}"
                    )
                yield root
        except Error:
            raise
        except (MemoryError, OSError, KeyError, RuntimeError, TypeError, ValueError) as error:
            raise cannot_be_read(path, self.TITLE, error) from error

    def _read(
        self, path: str, schema: Schema | None, fields: Container[str] | None, defaults: Container[str]
    ) -> Generator[Batch, None, int]:
        wanted = fields if schema is None else schema.names
        count = 0
        with self._reading(path) as root:
            for records in _rows(path, root, wanted) if self._are_rows else _groups(root, wanted):
                if schema is not None:
                    _check_types(records, schema)
                yield Batch(records)
                count += len(records)
        return count


def _check_types(records: Sequence[Mapping[str, Any]], schema: Schema) -> None:
    """Raise FormatError if array files lack the type of a field of the first record; the others have the same types."""
    refused = {name: value for name, value in records[0].items() if isinstance(value, Refused)}
    if refused:
        raise next(iter(refused.values())).error(sorted(schema.names - refused.keys()))


def _check_names(place: str, names: Container[str], parts: Iterable[Part]) -> None:
    """Raise FormatError if two parts of a record make fields of one name."""
    for part in parts:
        if part.field in names:
            raise FormatError(f"{place}: expected fields of different names, found two {part.field!r}; rename one")


@contextmanager
def _decoding(place: str) -> Iterator[None]:
    """Name what holds text that is not UTF-8."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise FormatError(
            f"{place}: expected text in UTF-8, found byte 0x{error.object[error.start]:02x}; choose other fields with "
            f"{either('--fields', 'fields=...')}"
        ) from None


# ---- what a file holds ----------------------------------------------------------------------------------------------


def _walk(root: Any) -> Iterator[tuple[str, Any]]:
    """Yield the path and object of every dataset and group below a group; each group after all that it holds.

    Raises:
      FormatError: groups are too deep, or more links are met than the file can hold: few make many paths, where groups
        share groups.
    """
    left = root.file.id.get_filesize() // _LINK_BYTES

    def walk(group: Any, prefix: str, depth: int) -> Iterator[tuple[str, Any]]:
        nonlocal left
        left -= 1 + len(group)
        if depth > _MAX_DEPTH or left < 0:
            found = "groups that do not share groups, found more paths than the file can hold"
            if depth > _MAX_DEPTH:
                found = f"groups up to {_MAX_DEPTH} deep, found deeper ones"
            raise FormatError(
                f"{group.file.filename}: expected {found}; choose a group with {either('--group PATH', 'group=...')} "
                "(links may form a circle)"
            )
        for name in group:
            found = _member(group, name)
            if isinstance(found, h5py.Group):
                yield from walk(found, f"{prefix}{name}/", depth + 1)
            if isinstance(found, h5py.Group | h5py.Dataset):
                yield prefix + name, found

    return walk(root, "", 0)


def _datasets(root: Any) -> Iterator[tuple[str, Any]]:
    return ((path, found) for path, found in _walk(root) if isinstance(found, h5py.Dataset))


def _member(group: Any, path: str, hops: int = 0) -> Any:
    """Return what a path leads to, from a group or, if it begins with a slash, from the root.

    Links are followed here and not by the library, which would open whatever file an external link names.

    Raises:
      FormatError: the path leads into another file, or in circles; or the data of a dataset lie in another file.
      KeyError: nothing is there.
    """
    found = group.file["/"] if path.startswith("/") else group
    for name in filter(None, path.split("/")):
        link = found.get(name, getlink=True) if isinstance(found, h5py.Group) else None
        if link is None:
            raise KeyError(path)
        if isinstance(link, h5py.SoftLink) and hops < _MAX_DEPTH:
            found = _member(found, link.path, hops + 1)
        elif isinstance(link, h5py.HardLink):
            found = found[name]
        else:
            elsewhere = getattr(link, "filename", None)
            raise _outside(group, path, f"in {elsewhere}" if elsewhere is not None else f"beyond {hops} links")
    if isinstance(found, h5py.Dataset) and found.external:
        raise _outside(found, found.name, f"in {found.external[0][0]}")
    if isinstance(found, h5py.Dataset) and found.is_virtual:
        raise _outside(found, found.name, f"in {found.virtual_sources()[0].file_name}")
    return found


def _outside(found: Any, name: str, where: str) -> FormatError:
    return FormatError(
        f"{found.file.filename}: {name!r}: expected data in this file, found them {where}; convert the files that hold "
        "the data (or copy the data into one file, if you trust who made it)"
    )


# ---- rows -----------------------------------------------------------------------------------------------------------


def _row_parts(name: str, dataset: Any) -> Iterator[Part]:
    return parts_of(name, dtype_of(dataset), (dataset.shape or ())[1:])


def _rows(path: str, root: Any, wanted: Container[str] | None) -> Iterator[list[dict[str, Any]]]:
    """Yield row k of every dataset below a group as record k, some at a time.

    Args:
      wanted: fields to read; None for all.
    Raises:
      FormatError: datasets have different numbers of rows, or rows are too large.
    """
    columns = {}
    for name, dataset in _datasets(root):
        if parts := [part for part in _row_parts(name, dataset) if wanted is None or part.field in wanted]:
            columns[name] = dataset, parts
    count = _count_rows(path, {name: dataset for name, (dataset, _) in columns.items()})
    texts = [(dataset, parts) for dataset, parts in columns.values() if dataset.dtype.hasobject]
    others = [(dataset, parts) for dataset, parts in columns.values() if not dataset.dtype.hasobject]
    step = _step([dataset for dataset, _ in others])
    few = _few([dataset for dataset, _ in texts]) if texts else step
    check_sizes(path, [dataset for dataset, _ in columns.values()], min(step, count))
    for begin in range(0, count, step):
        end = min(begin + step, count)
        values = _read_rows(Room(root.file), others, begin, end)
        for first in range(begin, end, few):
            last = min(first + few, end)
            found = {name: column[first - begin : last - begin] for name, column in values.items()}
            found |= _read_rows(Room(root.file), texts, first, last)
            rows = zip(*map(_as_list, found.values()), strict=True)
            yield [dict(zip(found, row, strict=True)) for row in rows]


def _read_rows(room: Room, columns: Iterable[tuple[Any, list[Part]]], begin: int, end: int) -> dict[str, Any]:
    """Return the values that each field of some datasets has in some rows."""
    values: dict[str, Any] = {}
    for dataset, parts in columns:
        data = room.rows(dataset, begin, end)
        with _decoding(place_of(dataset)):
            values |= {part.field: part.values(data) for part in parts}
    return values


def _as_list(values: Any) -> Any:
    """Return numbers as Python has them, which are written faster; arrays and complex numbers as they are."""
    return (
        values.tolist() if isinstance(values, np.ndarray) and values.ndim == 1 and values.dtype.kind != "c" else values
    )


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


def _few(datasets: Sequence[Any]) -> int:
    """Return how many rows to read at a time of datasets with texts: those with a few texts together, or one."""
    texts = sum(texts_in(dataset.dtype) * int(np.prod(dataset.shape[1:])) for dataset in datasets)
    return max(TEXTS // max(texts, 1), 1)


# ---- groups ---------------------------------------------------------------------------------------------------------


def _groups(root: Any, wanted: Container[str] | None) -> Iterator[list[dict[str, Any]]]:
    """Yield each dataset of a group as a record, and each group below it that has datasets, the innermost first."""
    datasets: dict[str, dict[str, Any]] = {}  # of the groups around, by path
    for path, found in _walk(root):
        above, _, name = path.rpartition("/")
        if isinstance(found, h5py.Group):
            if path in datasets:
                yield [_record(path, found, datasets.pop(path), wanted)]
        elif above:
            datasets.setdefault(above, {})[name] = found
        else:
            yield [_record(name, found, {"data": found}, wanted)]


def _record(path: str, found: Any, datasets: Mapping[str, Any], wanted: Container[str] | None) -> dict[str, Any]:
    """Return a record of datasets, and of the attributes of the group or dataset that `path` names.

    A field that is not wanted is None and is not read; one whose type array files lack is a Refused.
    """
    record: dict[str, Any] = {"__key__": path}
    where, room = f"{found.file.filename}: {found.name!r}", Room(found.file)
    sources: list[tuple[str, list[Part], Callable[[], Any]]] = []
    for name in found.attrs:
        attribute = found.attrs.get_id(name)
        parts = list(parts_of(name, dtype_of(attribute), attribute.shape or ()))
        place = f"{found.file.filename}: attribute {name!r} of {found.name!r}"
        sources.append((place, parts, partial(_attribute, found, name)))
    read = []
    for name, dataset in datasets.items():
        parts = list(parts_of(name, dtype_of(dataset), dataset.shape or ()))
        sources.append((place_of(dataset), parts, partial(room.whole, dataset)))
        if any(_is_wanted(part, wanted) for part in parts):
            read.append(dataset)
    for _, parts, _ in sources:
        _check_names(where, record, parts)
        record |= {part.field: None for part in parts}
    check_sizes(where, read, None)
    for place, parts, read_all in sources:
        record |= _values(place, [part for part in parts if _is_wanted(part, wanted)], read_all)
    return record


def _is_wanted(part: Part, wanted: Container[str] | None) -> bool:
    return wanted is None or part.field in wanted


def _values(place: str, parts: Sequence[Part], read: Callable[[], Any]) -> dict[str, Any]:
    """Return the values of the fields that a dataset or an attribute makes.

    Args:
      read: returns what the place holds as the only entry of an array; None if it is empty.
    """
    values = {part.field: part.type(place) for part in parts}
    readable = [part for part in parts if not isinstance(values[part.field], Refused)]
    data = read() if readable else None
    for part in readable:
        with _decoding(place):
            value = None if data is None else part.values(data)[0]
        values[part.field] = bool(value) if isinstance(value, np.bool_) else value
    return values


def _attribute(found: Any, name: str) -> Any:
    """Return what an attribute holds as the only entry of an array; None if it is empty."""
    attribute, value = found.attrs.get_id(name), found.attrs[name]
    return None if isinstance(value, h5py.Empty) else alone(value, attribute.dtype, attribute.shape)
