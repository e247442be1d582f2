"""Read HDF5: each dataset is a column, or each dataset or group of datasets is a record.

Imported only to read HDF5, because h5py is optional.
"""

import math
import re
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import h5py
import numpy as np

from ..arrays.schema import ITEM_BYTES, unsupported
from ..errors import FormatError, either, option
from .reader import Batch, Reader, Rules

_BYTES, _ROWS = 8 << 20, 1024  # the most to read at a time, unless a chunk has more
_MOST_BYTES, _MOST_TIMES = 1 << 30, 100  # limits against decompression bombs: bytes, and times the stored size


class Hdf5Reader(Reader):
    """Reads HDF5 files: a record is a row of all datasets in a group, or a group or dataset in it; see `_groups`."""

    def __init__(self, paths: Sequence[str], records: str = "rows", group: str = "/") -> None:
        super().__init__(paths, "HDF5")
        if records not in ("rows", "groups", "members"):
            raise FormatError(f"records = {records!r}, expected 'rows', 'groups' or 'members'")
        self._group, self._are_rows, self._are_members = group, records == "rows", records == "members"
        if self._are_rows:
            self.total = 0
            for path in paths:
                with self._reading(path) as root:
                    datasets = list(_datasets(root))
                    parts = [part for name, dataset in datasets for part in _parts_of_dataset(name, dataset, 1)]
                    self._add_fields(path, [(part.field, part.type()) for part in parts])
                    self.total += max((dataset.shape[0] for _, dataset in datasets if dataset.shape), default=0)

    @contextmanager
    def _reading(self, path: str) -> Iterator[Any]:
        """Open a file; yield the group with the records, and add the path to errors of h5py."""
        with self._naming(path), h5py.File(path, "r", rdcc_nbytes=_BYTES) as file:  # text is read in parts of a chunk
            root = file["/"]
            for name in filter(None, self._group.split("/")):
                root = _member(root, name) if isinstance(root, h5py.Group) and name in root else None
            if not isinstance(root, h5py.Group):
                raise FormatError(f"{path}: expected a group {self._group!r}, found none among {[*file]}")
            yield root

    def _read(self, path: str, wanted: Container[str] | None, rules: Rules | None) -> Iterator[Batch]:
        with self._reading(path) as root:
            groups = partial(_groups, are_members=self._are_members)
            for records in _rows(path, root, wanted) if self._are_rows else groups(root, wanted):
                yield Batch(len(records), records)


# ---- what a file holds ----------------------------------------------------------------------------------------------


def _walk(group: Any, prefix: str = "", seen: set[int] | None = None) -> Iterator[tuple[str, Any]]:
    """Yield the path and object of every dataset and group below a group; a group comes after its members."""
    seen = set() if seen is None else seen
    _enter(group, seen)
    for name in group:
        found = _member(group, name)
        if isinstance(found, h5py.Group):
            yield from _walk(found, f"{prefix}{name}/", seen)
        if isinstance(found, h5py.Group | h5py.Dataset):
            yield prefix + name, found


def _enter(group: Any, seen: set[int]) -> None:
    """Raise FormatError for a group that was entered before: hard links make cycles, or exponentially many paths."""
    address = h5py.h5o.get_info(group.id).addr
    if address in seen:
        raise FormatError(
            f"{group.file.filename}: expected groups that have one name each, found another, {group.name!r}"
        )
    seen.add(address)


def _datasets(root: Any) -> Iterator[tuple[str, Any]]:
    return ((path, found) for path, found in _walk(root) if isinstance(found, h5py.Dataset))


def _member(group: Any, name: str) -> Any:
    """Return a member of a group; refuse links and data in other files, which could expose any file."""
    link = group.get(name, getlink=True)
    where = f"{group.file.filename}: {group.name.rstrip('/')}/{name}"
    if not isinstance(link, h5py.HardLink):
        raise FormatError(f"{where}: expected data in this group, found a link to {link.path!r}")
    found = group[name]
    if isinstance(found, h5py.Dataset) and (found.external or found.is_virtual):
        raise FormatError(f"{where}: expected data in this file, found them in others")
    return found


class _Part(NamedTuple):
    """The source of a field: a dataset or attribute, or a part of its compound type."""

    place: str  # of the dataset or attribute, for messages
    field: str
    within: tuple[str, ...]  # path of names through compound types
    dtype: Any  # of an element, not a compound or array type; None if NumPy lacks it
    axes: tuple[int, ...]  # the shape of the value in one record

    def type(self) -> Any:
        """Return the schema type of the field, or an error object if array files lack it."""
        dtype, axes = self.dtype, self.axes
        items = None if dtype is None else h5py.check_vlen_dtype(dtype)
        if dtype is None:
            return unsupported(self.place, "a type that NumPy lacks")
        if h5py.check_string_dtype(dtype) is not None:
            return "json" if axes else "str"
        if isinstance(items, np.dtype) and _is_number(items) and items.isnative and (items.kind != "c" or not axes):
            return "json" if axes else (items.name, (None,))
        if dtype.kind == "V":
            return ("uint8", (*axes, dtype.itemsize)) if axes else "bytes"
        if _is_number(dtype) or dtype.kind in "mM":
            name = "int64" if dtype.kind in "mM" else dtype.name
            return (name, axes) if axes or dtype.kind == "c" else name
        found = (
            "references" if h5py.check_ref_dtype(dtype) is not None else dtype if items is None else f"runs of {items}"
        )
        return unsupported(".".join((self.place, *self.within)), found)

    def values(self, data: Any) -> Any:
        """Return a value for each record, from the data that h5py has read."""
        for name in self.within:
            data = data[name]
        if h5py.check_string_dtype(self.dtype) is not None:
            try:
                return _text(data.tolist())
            except UnicodeDecodeError as error:
                raise FormatError(f"{self.place}: expected text in UTF-8, found {error.object[:20]!r}") from None
        if self.dtype.kind == "O":
            return data.tolist()
        if self.dtype.kind == "V":
            if data.ndim == 1:
                return [value.tobytes() for value in data]
            return np.ascontiguousarray(data).view(np.uint8).reshape(*data.shape, self.dtype.itemsize)
        native = np.ascontiguousarray(data, data.dtype.newbyteorder("="))
        return native.view(np.int64) if self.dtype.kind in "mM" else native


def _is_number(dtype: Any) -> bool:
    return dtype.kind in "biufc" and dtype.name in ITEM_BYTES


def _text(values: Any) -> Any:
    if isinstance(values, list):
        return [_text(value) for value in values]
    return values.decode() if isinstance(values, bytes) else values


def _parts_of(place: str, field: str, found: Any, axes: tuple[int, ...]) -> list[_Part]:
    """Return a dataset or attribute as the source of a field, or each part of its compound, such as "box.width"."""
    try:
        dtype = found.dtype
    except TypeError:
        dtype = None
    return [*_flat_parts(_Part(place, field, (), dtype, axes))]


def _flat_parts(part: _Part) -> Iterator[_Part]:
    dtype, axes = part.dtype, part.axes
    if dtype is not None and dtype.subdtype is not None:  # an array dtype
        dtype, inner = dtype.subdtype
        axes = (*axes, *inner)
    if dtype is None or not dtype.names:
        yield part._replace(dtype=dtype, axes=axes)
        return
    for name in dtype.names:
        yield from _flat_parts(_Part(part.place, f"{part.field}.{name}", (*part.within, name), dtype[name], axes))


def _parts_of_dataset(name: str, dataset: Any, first: int) -> list[_Part]:
    """Return the sources of fields in a dataset; the value of a record has the axes from `first` on."""
    return _parts_of(f"{dataset.file.filename}: dataset {dataset.name!r}", name, dataset, (dataset.shape or ())[first:])


def _size_of(dataset: Any, rows: int | None = None) -> int:
    """Return the size of some rows of a dataset, or of all, in bytes; text and ragged arrays count as pointers."""
    if dataset.shape is None:
        return 0
    shape = dataset.shape if rows is None else (rows, *dataset.shape[1:])
    return int(dataset.id.get_type().get_size() * math.prod(shape))  # works for types that NumPy lacks


def _check_sizes(where: str, datasets: Sequence[Any], rows: int | None) -> None:
    """Raise FormatError if some rows of datasets, or all, decompress to many times their stored size.

    A chunk is decompressed as a whole, and may be larger than its dataset.
    """
    chunks = [math.prod(each.chunks) * each.id.get_type().get_size() for each in datasets if each.chunks]
    size = max(sum(_size_of(dataset, rows) for dataset in datasets), *chunks, 0)
    if size <= _MOST_BYTES:
        return
    held = sum(dataset.id.get_storage_size() for dataset in datasets)
    held = min(held, datasets[0].file.id.get_filesize())  # a dataset may have several names
    if size > _MOST_TIMES * held:
        raise FormatError(
            f"{where}: expected chunks and records of up to {_MOST_BYTES} bytes, found {size}, where the file holds "
            f"{held}"
        )


# ---- rows -----------------------------------------------------------------------------------------------------------


def _rows(path: str, root: Any, wanted: Container[str] | None) -> Iterator[list[dict[str, Any]]]:
    """Yield batches of records: record k is row k of every dataset below a group. `wanted` None means all fields."""
    columns = {}
    for name, dataset in _datasets(root):
        if parts := [part for part in _parts_of_dataset(name, dataset, 1) if wanted is None or part.field in wanted]:
            columns[name] = dataset, parts
    datasets = [dataset for dataset, _ in columns.values()]
    count = _count_rows(path, {name: dataset for name, (dataset, _) in columns.items()})
    step = _step(datasets, count)
    _check_sizes(path, datasets, min(step, count))
    for begin in range(0, count, step):
        values: dict[str, Any] = {}
        for dataset, parts in columns.values():
            data = dataset[begin : begin + step]
            for part in parts:
                found = part.values(data)
                # Python numbers are written faster than those of NumPy. Complex numbers stay arrays.
                is_plain = isinstance(found, np.ndarray) and found.ndim == 1 and found.dtype.kind != "c"
                values[part.field] = found.tolist() if is_plain else found
        yield [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]


def _count_rows(path: str, datasets: Mapping[str, Any]) -> int:
    """Return the number of rows; FormatError if datasets differ, or one is a single value."""
    counts = {name: dataset.shape[0] if dataset.shape else None for name, dataset in datasets.items()}
    expected: int | None = next(iter(counts.values()), 0)
    for name, found in counts.items():
        if found is None or found != expected:
            wanted = "rows" if expected is None else f"{expected} rows, as in the datasets before"
            shown = "a single value" if found is None else found
            raise FormatError(f"{path}: dataset {name!r}: expected {wanted}, found {shown}")
    return expected or 0


def _step(datasets: Sequence[Any], count: int) -> int:
    """Return how many rows to read at a time: whole chunks, so that each chunk is decompressed once."""
    row = sum(_size_of(dataset, 1) for dataset in datasets)
    if any(dataset.dtype.hasobject for dataset in datasets):  # text and ragged arrays lie elsewhere in the file
        row += datasets[0].file.id.get_filesize() // max(count, 1)
    chunk: int = max((dataset.chunks[0] for dataset in datasets if dataset.chunks), default=1)
    fitting: int = min(_BYTES // max(row, 1), _ROWS) // chunk
    return chunk * max(fitting, 1)


# ---- groups ---------------------------------------------------------------------------------------------------------


class _Found(NamedTuple):
    """A record that was found: a dataset in the root, or a group with all below it."""

    path: str
    holder: Any
    datasets: dict[str, Any]  # by the name of the field
    groups: dict[str, Any]  # that hold attributes, by the prefix of their names


def _groups(root: Any, wanted: Container[str] | None, *, are_members: bool) -> Iterator[list[dict[str, Any]]]:
    """Yield each record of a group: a dataset in it; and each outermost group with a dataset of its own.

    Groups inside a record are its fields, such as "obs.eef".

    Args:
      wanted: the fields that the user chose; without a choice, records must share a field with the first.
      are_members: whether every group in `root` is a record, even without a dataset of its own.
    """
    first: _Found | None = None
    for found in _found(root, "", set(), are_members=are_members):
        first = first or found
        if wanted is None and not are_members and not found.datasets.keys() & first.datasets.keys():
            one, other = (f"{each.path!r} with {next(iter(each.datasets))!r}" for each in (first, found))
            raise FormatError(
                f"{root.file.filename}: expected records that share a field, found {one} and {other}; give "
                f"{option('records', 'members')} for a record of each group in {root.name!r}, such as "
                f"{found.path.partition('/')[0]!r}, with all below it; {either('--group', 'group=')} for those in "
                f"another group; or {either('--fields', 'fields=')} for both as they are"
            )
        yield [_record(found, wanted)]


def _found(group: Any, prefix: str, seen: set[int], *, are_members: bool) -> Iterator[_Found]:
    """Yield the records below a group, in natural order of their names: "demo_2" before "demo_10"."""
    for name in sorted(group, key=_natural):
        member, path = _member(group, name), prefix + name
        if isinstance(member, h5py.Dataset):
            yield _Found(path, member, {"data": member}, {"": member})
        elif isinstance(member, h5py.Group) and (are_members or _has_dataset(member)):
            below = [(field.replace("/", "."), each) for field, each in _walk(member, "", seen)]
            datasets = {field: each for field, each in below if isinstance(each, h5py.Dataset)}
            groups = {f"{field}.": each for field, each in below if isinstance(each, h5py.Group)}
            if datasets:
                yield _Found(path, member, datasets, {"": member, **groups})
        elif isinstance(member, h5py.Group):
            _enter(member, seen)
            yield from _found(member, f"{path}/", seen, are_members=False)


def _has_dataset(group: Any) -> bool:
    return any(isinstance(_member(group, name), h5py.Dataset) for name in group)


def _natural(name: str) -> list[tuple[str, int]]:
    """Return a key that sorts numbers in names by value."""
    return [(text, int(digits or -1)) for text, digits in re.findall(r"(\D*)(\d*)", name)]


def _record(found: _Found, wanted: Container[str] | None) -> dict[str, Any]:
    """Return a record of datasets and attributes; unwanted fields are None."""
    record: dict[str, Any] = {"__key__": found.path}
    where = f"{found.holder.file.filename}: {found.holder.name!r}"
    held: list[tuple[Any, Callable[[], Any], list[_Part]]] = []
    for prefix, holder in found.groups.items():
        for name in holder.attrs:
            attribute = holder.attrs.get_id(name)
            parts = _parts_of(f"{where}: attribute {name!r}", prefix + name, attribute, attribute.shape or ())
            held.append((attribute, partial(holder.attrs.__getitem__, name), parts))
    for name, dataset in found.datasets.items():
        parts = _parts_of_dataset(name, dataset, 0)
        held.append((dataset, partial(dataset.__getitem__, ()), parts))
    chosen = []
    for holder, read, parts in held:
        for part in parts:
            if part.field in record:
                raise FormatError(f"{where}: expected fields of different names, found two {part.field!r}")
            record[part.field] = None
        if parts := [part for part in parts if wanted is None or part.field in wanted]:
            chosen.append((holder, read, parts))
    _check_sizes(where, [holder for holder, _, _ in chosen if isinstance(holder, h5py.Dataset)], None)
    for holder, read, parts in chosen:
        for part in parts:
            if isinstance(refused := part.type(), FormatError):
                raise refused
        value = read()
        if not isinstance(value, h5py.Empty):
            data = np.empty((1, *holder.shape), holder.dtype)
            data[0] = value
            record |= {part.field: part.values(data)[0] for part in parts}
    return record
