"""Tables of Arrow's columns as records, whichever files they come from."""

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ..arrays.schema import Schema
from ..errors import Error, FormatError

_AT_ONCE = 1024  # rows

Values = Sequence[Any]
"""Of a column, None standing for null."""


class Table(NamedTuple):
    """A file that is open."""

    schema: Any
    rows: int | None
    batches: Callable[[list[str]], Iterable[Any]]
    """Given the columns that are wanted, the rows in some batches."""


class Reader(ABC):
    """The rows of some tables as records.

    Numbers, text and bytes become themselves; lists of numbers arrays; structs a field for each part, "image.bytes".
    Dates, times and durations become integers in their own unit, decimals text, lists of anything else and maps JSON.

    Raises:
      Error: pyarrow is missing.
      FormatError: a source cannot be read, or has a field of another type than the first that has it.
    """

    NAME: ClassVar[str]

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = paths
        self._begins: list[int] = []
        self.schema: dict[str, Any] = {}
        rows = []
        for path in paths:
            with self._reading(path) as table:
                rows.append(table.rows)
                for name, found in _fields(path, table.schema):
                    if self.schema.setdefault(name, found) != found:
                        raise FormatError(
                            f"{path}: field {name!r} is {found}, before {path} it was {self.schema[name]}"
                        )
        self.total: int | None = None if None in rows else sum(row or 0 for row in rows)

    @staticmethod
    @abstractmethod
    def open(path: str) -> AbstractContextManager[Table]:
        """Open a file."""

    @contextmanager
    def _reading(self, path: str) -> Iterator[Table]:
        try:
            import pyarrow
        except ImportError:
            raise Error(f"{path}: reading {self.NAME} takes pyarrow; run: pip install 'mmapds[parquet]'") from None
        try:
            with self.open(path) as table:
                yield table
        except Error:
            raise
        except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as error:
            reason = str(error).partition("\n")[0]
            raise FormatError(f"{path}: cannot be read as {self.NAME}, is it whole? {reason}") from error

    def records(self, schema: Schema | None) -> Iterator[Mapping[str, Any]]:
        """Yield every row as a record with the fields of the schema that its file has."""
        described = {field.name: field.dtype for field in schema.fields} if schema else self.schema
        self._begins = [0]
        for path in self._paths:
            done = self._begins[-1]
            with self._reading(path) as table:
                wanted = [field.name for field in table.schema if any(name in described for name, _ in _flat(field))]
                for batch in table.batches(wanted):
                    for begin in range(0, batch.num_rows, _AT_ONCE):
                        part = batch.slice(begin, _AT_ONCE)
                        yield from _rows(part, wanted, described)
                    done += batch.num_rows
            self._begins.append(done)

    def place(self, number: int) -> str:
        """Which row of which file."""
        source = bisect_right(self._begins, number) - 1
        return f"{self._paths[source]}: row {number - self._begins[source]}"

    def close(self) -> None:
        """Forget where sources begin; they are open only while they are read."""
        self._begins.clear()


def _fields(path: str, schema: Any) -> Iterator[tuple[str, Any]]:
    """Name and type of every field, of structs those of their parts.

    Raises:
      FormatError: two have one name.
    """
    seen = set()
    for field in schema:
        for name, found in _flat(field):
            if name in seen:
                raise FormatError(f"{path}: has two fields {name!r}; rename one")
            seen.add(name)
            yield name, found


def _flat(field: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    import pyarrow.types as is_type

    found, name = _storage(field.type), prefix + field.name
    if is_type.is_struct(found) and found.num_fields:
        for part in found:
            yield from _flat(part, f"{name}.")
    else:
        yield name, _described(found)


def _storage(found: Any) -> Any:
    """What a type is stored as, tensors excepted, which are known."""
    import pyarrow as pa

    while isinstance(found, pa.BaseExtensionType) and not isinstance(found, pa.FixedShapeTensorType):
        found = found.storage_type
    return found


def _described(found: Any) -> Any:
    """A type as a schema has it."""
    import pyarrow as pa
    import pyarrow.types as is_type

    found = _storage(found)
    if isinstance(found, pa.FixedShapeTensorType):
        axes = found.permutation or range(len(found.shape))
        return np.dtype(found.value_type.to_pandas_dtype()).name, [found.shape[axis] for axis in axes]
    if is_type.is_dictionary(found):
        return _described(found.value_type)
    if _is_number(found):
        return np.dtype(found.to_pandas_dtype()).name
    if is_type.is_string(found) or is_type.is_large_string(found) or is_type.is_string_view(found):
        return "str"
    if is_type.is_binary(found) or is_type.is_large_binary(found) or is_type.is_binary_view(found):
        return "bytes"
    if is_type.is_fixed_size_binary(found):
        return "bytes"
    if is_type.is_decimal(found):
        return "str"
    if is_type.is_temporal(found) and not is_type.is_interval(found):
        return f"int{found.bit_width}"
    leaf, shape = _listed(found)
    return (np.dtype(leaf.to_pandas_dtype()).name, shape) if shape and _is_number(leaf) else "json"


def _is_number(found: Any) -> bool:
    import pyarrow.types as is_type

    return bool(is_type.is_integer(found) or is_type.is_floating(found) or is_type.is_boolean(found))


def _is_ragged(found: Any) -> bool:
    import pyarrow.types as is_type

    return bool(is_type.is_list(found) or is_type.is_large_list(found) or _is_view(found))


def _is_view(found: Any) -> bool:
    """Whether lists may lie in any order, and share what they hold."""
    import pyarrow.types as is_type

    return bool(is_type.is_list_view(found) or is_type.is_large_list_view(found))


def _listed(found: Any) -> tuple[Any, list[int | None]]:
    """What lists hold in the end, and the shape that they make."""
    import pyarrow.types as is_type

    shape: list[int | None] = []
    while is_type.is_fixed_size_list(found) or _is_ragged(found):
        shape.append(found.list_size if is_type.is_fixed_size_list(found) else None)
        found = _storage(found.value_type)
    return found, shape


def _rows(batch: Any, wanted: list[str], described: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    columns: dict[str, Values] = {}
    for name in wanted:
        columns |= _columns(batch.column(name), name, described)
    if not columns:
        yield from ({} for _ in range(batch.num_rows))
    for row in zip(*columns.values(), strict=True):
        yield dict(zip(columns, row, strict=True))


def _columns(array: Any, name: str, described: Mapping[str, Any]) -> Iterator[tuple[str, Values]]:
    """The values of a column, or of each part of a struct's."""
    import pyarrow.types as is_type

    array = _stored(array)
    if is_type.is_struct(array.type) and array.type.num_fields:
        for part, values in zip(array.type, array.flatten(), strict=True):  # in which a null struct has null parts
            yield from _columns(values, f"{name}.{part.name}", described)
    elif name in described:
        yield name, array.to_pylist() if described[name] == "json" else _values(array)


def _stored(array: Any) -> Any:
    import pyarrow as pa

    while isinstance(array, pa.ExtensionArray) and not isinstance(array, pa.FixedShapeTensorArray):
        array = array.storage
    return array


def _values(array: Any) -> Values:
    import pyarrow as pa
    import pyarrow.types as is_type

    if isinstance(array, pa.FixedShapeTensorArray):
        if not array.null_count:
            return array.to_numpy_ndarray()  # type: ignore[no-any-return]
        return [each.to_numpy() if each.is_valid else None for each in array]
    if is_type.is_dictionary(array.type):
        return _values(array.dictionary_decode())
    if is_type.is_decimal(array.type):
        array = array.cast(pa.string())
    elif is_type.is_temporal(array.type) and not is_type.is_interval(array.type):
        array = array.view(f"int{array.type.bit_width}")
    leaf, shape = _listed(array.type)
    if shape and _is_number(leaf):
        return _arrays(array)
    if array.null_count or not _is_number(leaf):
        return array.to_pylist()  # type: ignore[no-any-return]
    return array.to_numpy(zero_copy_only=False).tolist()  # type: ignore[no-any-return]


def _arrays(array: Any) -> Values:
    """The lists of a column as arrays that share its memory; those that are no array as nested lists."""
    if _is_view(array.type):
        return array.to_pylist()  # type: ignore[no-any-return]
    begins, ends, parts = _bounds(array)
    elements = _elements(parts)
    if elements is None:
        return array.to_pylist()  # type: ignore[no-any-return]
    is_valid = array.is_valid().to_pylist()
    return [
        None if not valid else array[row].as_py() if (found := elements(begin, end)) is None else found
        for row, (valid, begin, end) in enumerate(zip(is_valid, begins.tolist(), ends.tolist(), strict=True))
    ]


def _bounds(array: Any) -> tuple[Any, Any, Any]:
    """Where each list begins and ends, in an array of what they hold."""
    import pyarrow.types as is_type

    if is_type.is_fixed_size_list(array.type):
        size = array.type.list_size
        bounds = np.arange(len(array) + 1) * size
        return bounds[:-1], bounds[1:], _stored(array.values.slice(array.offset * size, len(array) * size))
    bounds = array.offsets.to_numpy()
    return bounds[:-1], bounds[1:], _stored(array.values)


def _elements(array: Any) -> Callable[[int, int], Any] | None:
    """What gives a range of an array as one of numpy's, or None if its lists differ in length; none where nulls are."""
    if array.null_count or _is_view(array.type):
        return None
    if _is_number(array.type):
        values = array.to_numpy(zero_copy_only=False)
        return lambda begin, end: values[begin:end]
    begins, ends, parts = _bounds(array)
    inner = _elements(parts)
    if inner is None:
        return None
    of_none = 0 if _is_ragged(array.type) else array.type.list_size

    def stacked(begin: int, end: int) -> Any:
        sizes = ends[begin:end] - begins[begin:end]
        size = int(sizes[0]) if len(sizes) else of_none
        if (sizes != size).any():
            return None
        found = inner(int(begins[begin]), int(ends[end - 1])) if len(sizes) else inner(0, 0)
        return None if found is None else found.reshape(end - begin, size, *found.shape[1:])

    return stacked
