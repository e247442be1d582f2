"""HDF5: datasets as columns, or every dataset or group of them as a record."""

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

import numpy as np

from ..arrays.schema import Schema
from ..errors import Error, FormatError

NAME = "hdf5"
OPTIONS = {
    "records": (str, "rows|groups", "hdf5: a record is a row of all datasets, or a group (or a dataset) of its own"),
    "group": (str, "PATH", "hdf5: the group that holds the records; default: the root"),
}

_BYTES, _ROWS = 8 << 20, 1024  # that are read at once, unless a chunk has more
_SHOWN = 8  # names in a message
_DEPTH = 32  # of groups: links may lead in circles


class Reader:
    """The records of some HDF5 files.

    Of "rows", record k has entry k of every dataset below the group; a dataset's path is the field. Of "groups", every
    dataset that lies in the group is a record, with its values as the field "data", and so is every group below it that
    holds datasets, which are its fields; attributes are fields too, and the path is "__key__".

    Parts of compound types become fields, "boxes.width"; strings text, opaque values bytes.

    Raises:
      Error: h5py is missing.
      FormatError: a source cannot be read, or has no such group.
    """

    def __init__(self, paths: Sequence[str], records: str = "rows", group: str = "/") -> None:
        if records not in ("rows", "groups"):
            raise FormatError(f"records = {records!r}, expected 'rows' or 'groups'")
        self._paths, self._root, self._are_rows = paths, group, records == "rows"
        self._begins: list[int] = []
        self.schema: dict[str, Any] | None = None
        self.total: int | None = None
        if self._are_rows:
            self.schema, self.total = {}, 0
            for path in paths:
                with self._reading(path) as root:
                    datasets = dict(_datasets(root))
                    self.total += max((dataset.shape[0] for dataset in datasets.values() if dataset.shape), default=0)
                    for name, dataset in datasets.items():
                        self._describe(path, _fields(name, dataset.dtype, dataset.shape or ()))

    def _describe(self, path: str, fields: dict[str, Any]) -> None:
        assert self.schema is not None
        for name, found in fields.items():
            if self.schema.setdefault(name, found) != found:
                raise FormatError(f"{path}: field {name!r} is {found}, before {path} it was {self.schema[name]}")

    @contextmanager
    def _reading(self, path: str) -> Iterator[Any]:
        try:
            import h5py
        except ImportError:
            raise Error(f"{path}: reading HDF5 takes h5py; run: pip install 'mmapds[hdf5]'") from None
        try:
            with h5py.File(path, "r") as file:
                root = file.get(self._root)
                if not isinstance(root, h5py.Group):
                    shown = [*islice(file, _SHOWN), *(["..."] if len(file) > _SHOWN else [])]
                    raise FormatError(f"{path}: has no group {self._root!r}; it has {', '.join(shown)}")
                yield root
        except Error:
            raise
        except (OSError, KeyError, RuntimeError, TypeError, ValueError, MemoryError) as error:
            raise FormatError(f"{path}: cannot be read as HDF5, is it whole? {error}") from error

    def records(self, schema: Schema | None) -> Iterator[Mapping[str, Any]]:
        """Yield every record: what it has of the fields of a schema, or all it has.

        Raises:
          FormatError: datasets have different numbers of rows, or something cannot be read.
        """
        wanted = None if schema is None else {field.name for field in schema.fields}
        self._begins = [0]
        for path in self._paths:
            done = self._begins[-1]
            with self._reading(path) as root:
                for record in _rows(path, root, wanted) if self._are_rows else _groups(root, wanted):
                    yield record
                    done += 1
            self._begins.append(done)

    def place(self, number: int) -> str:
        """Which record of which file."""
        source = bisect_right(self._begins, number) - 1
        return f"{self._paths[source]}: record {number - self._begins[source]}"

    def close(self) -> None:
        """Files are open only while they are read."""


def _datasets(group: Any, prefix: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Every dataset below a group, by path."""
    import h5py

    _check_depth(group, depth)
    for name in group:
        found = group[name]
        if isinstance(found, h5py.Group):
            yield from _datasets(found, f"{prefix}{name}/", depth + 1)
        elif isinstance(found, h5py.Dataset):
            yield prefix + name, found


def _check_depth(group: Any, depth: int) -> None:
    if depth > _DEPTH:
        raise FormatError(f"{group.file.filename}: groups more than {_DEPTH} deep; do links lead in circles?")


def _fields(name: str, dtype: Any, shape: tuple[int, ...]) -> dict[str, Any]:
    """The fields that a dataset makes, and their types; of what there is no type for, one that a schema refuses."""
    import h5py

    if dtype.subdtype is not None:  # an array in a compound
        dtype, inner = dtype.subdtype
        shape = (*shape, *inner)
    if dtype.names:
        fields: dict[str, Any] = {}
        for part in dtype.names:
            fields |= _fields(f"{name}.{part}", dtype[part], shape)
        return fields
    axes = shape[1:]
    if h5py.check_string_dtype(dtype):
        return {name: "json" if axes else "str"}
    ragged = h5py.check_vlen_dtype(dtype)
    # Of another byte order h5py gives the bytes as they are, and says that they are not.
    if ragged is not None and np.dtype(ragged).kind in "biufc" and np.dtype(ragged).isnative and not axes:
        return {name: (np.dtype(ragged).name, [None])}
    if dtype.kind in "biufc":
        return {name: (dtype.name, list(axes)) if axes else dtype.name}
    return {name: "bytes" if dtype.kind == "V" and not axes else f"HDF5 {dtype}"}


def _rows(path: str, root: Any, wanted: set[str] | None) -> Iterator[dict[str, Any]]:
    datasets = {
        name: dataset
        for name, dataset in _datasets(root)
        if wanted is None or not wanted.isdisjoint(_fields(name, dataset.dtype, dataset.shape or ()))
    }
    counts = {name: dataset.shape[0] if dataset.shape else None for name, dataset in datasets.items()}
    for name, count in counts.items():
        first = next(iter(counts))
        if count is None or count != counts[first]:
            raise FormatError(
                f"{path}: dataset {name!r} has {_counted(count)}, {first!r} has {_counted(counts[first])}; choose some "
                "with --fields, or take each group for a record with --records groups"
            )
    rows = next(iter(counts.values()), None) or 0
    step = _step(list(datasets.values()))
    for begin in range(0, rows, step):
        columns: dict[str, Any] = {}
        for name, dataset in datasets.items():
            columns |= _columns(name, dataset[begin : begin + step], dataset.dtype)
        names = [name for name in columns if wanted is None or name in wanted]
        for row in zip(*(columns[name] for name in names), strict=True):
            yield dict(zip(names, row, strict=True))


def _counted(rows: int | None) -> str:
    return "no rows but one value" if rows is None else f"{rows} rows"


def _step(datasets: Sequence[Any]) -> int:
    """How many rows to read at once: whole chunks, which would be decompressed again and again otherwise."""
    row = sum(dataset.dtype.itemsize * math.prod(dataset.shape[1:]) for dataset in datasets)
    chunk: int = max((dataset.chunks[0] for dataset in datasets if dataset.chunks), default=1)
    fitting: int = min(_BYTES // max(row, 1), _ROWS) // chunk
    return chunk * max(fitting, 1)


def _columns(name: str, data: Any, dtype: Any) -> dict[str, Any]:
    """What h5py read as values for each row, by field."""
    import h5py

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


def _groups(group: Any, wanted: set[str] | None, path: str = "", depth: int = 0) -> Iterator[dict[str, Any]]:
    """Yield the datasets of a group as records, and every group below it that has some, after those below that."""
    import h5py

    _check_depth(group, depth)
    datasets = {}
    for name in group:
        found = group[name]
        if isinstance(found, h5py.Group):
            yield from _groups(found, wanted, f"{path}{name}/", depth + 1)
        elif isinstance(found, h5py.Dataset) and depth:
            datasets[name] = found
        elif isinstance(found, h5py.Dataset):
            yield _record(name, found, {"data": found}, wanted)
    if datasets:
        yield _record(path[:-1], group, datasets, wanted)


def _record(path: str, found: Any, datasets: Mapping[str, Any], wanted: set[str] | None) -> dict[str, Any]:
    """A record made of datasets, and of the attributes of what holds them."""
    record = {"__key__": path}
    for name, value in found.attrs.items():
        if name in datasets or name in record:
            raise FormatError(f"{found.file.filename}: {path!r} has an attribute {name!r}, which is a field already")
        record[name] = _value(value)
    for name, dataset in datasets.items():
        if wanted is None or not wanted.isdisjoint(_fields(name, dataset.dtype, (1, *(dataset.shape or ())))):
            record |= _one(name, dataset)
    return record


def _one(name: str, dataset: Any) -> dict[str, Any]:
    """What a dataset holds, by field."""
    if dataset.shape is None:
        return {name: None}
    data = np.empty((1, *dataset.shape), dataset.dtype)
    data[0] = dataset[()]
    return {field: values[0] for field, values in _columns(name, data, dataset.dtype).items()}


def _value(value: Any) -> Any:
    """An attribute."""
    import h5py

    if isinstance(value, h5py.Empty):
        return None
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, np.ndarray) and value.dtype.kind not in "biufc":
        return value.tolist()
    return value.item() if isinstance(value, np.generic) else value
