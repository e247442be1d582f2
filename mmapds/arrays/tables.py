"""Tables of Arrow as values of fields: their types in a schema, and their columns as records store them.

Imported only to read such tables, because pyarrow is optional.
"""

from collections.abc import Container, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.types as is_type
from numpy.typing import NDArray

from ..errors import FormatError
from .packed import Values
from .schema import Field, Schema, unsupported
from .values import as_bytes, cast

# ---- types ----------------------------------------------------------------------------------------------------------


def _storage(found: Any) -> Any:
    """Return the storage type of an extension type; other types and tensors as they are."""
    while isinstance(found, pa.BaseExtensionType) and not isinstance(found, pa.FixedShapeTensorType):
        found = found.storage_type
    return found


def flat_fields(name: str, found: Any) -> Iterator[tuple[str, Any]]:
    """Yield the name and Arrow type of a field, or of each part of a struct."""
    found = _storage(found)
    if is_type.is_struct(found) and found.num_fields:
        for part in found:
            yield from flat_fields(f"{name}.{part.name}", part.type)
    else:
        yield name, found


def _plain(found: Any) -> Any:
    """Return the plain type to which pyarrow casts a type; TypeError if array files lack it.

    Dates, times and durations become integers in their unit, decimals text. Text, bytes and lists get 64-bit offsets.
    """
    found = _storage(found)
    if is_type.is_dictionary(found) and not is_type.is_nested(found.value_type):
        return _plain(found.value_type)
    if is_type.is_decimal(found) or is_type.is_string(found) or is_type.is_string_view(found):
        return pa.large_string()
    if is_type.is_binary(found) or is_type.is_binary_view(found) or is_type.is_fixed_size_binary(found):
        return pa.large_binary()
    if is_type.is_temporal(found) and not is_type.is_interval(found):
        return pa.int32() if found.bit_width == 32 else pa.int64()
    if is_type.is_struct(found):
        return pa.struct([pa.field(part.name, _plain(part.type)) for part in found])
    if is_type.is_map(found):
        return pa.map_(_plain(found.key_type), _plain(found.item_type))
    if _is_list(found):
        return pa.large_list(_plain(found.value_type))
    is_odd = is_type.is_nested(found) or is_type.is_dictionary(found) or isinstance(found, pa.BaseExtensionType)
    if is_odd or str(found) == "month_interval":  # unions, run-end encoded arrays, list views
        raise TypeError(found)
    return found


def type_of(place: str, found: Any) -> Any:
    """Return the schema type of a field, or an error object for a type that array files lack."""
    try:
        return _described(found)
    except TypeError:
        return unsupported(place, found)


def _described(found: Any) -> Any:
    """Return the schema type of a field; TypeError for a type that array files lack."""
    found = _storage(found)
    if isinstance(found, pa.FixedShapeTensorType):
        if found.permutation not in (None, [*range(len(found.shape))]):
            raise TypeError(found)
        return pa.array([], found.value_type).to_numpy(zero_copy_only=False).dtype.name, (*found.shape,)
    plain = _plain(found)
    shape: list[int | None] = []
    while _is_list(found):
        shape.append(found.list_size if is_type.is_fixed_size_list(found) else None)
        plain = found = _storage(found.value_type)
    if is_type.is_null(plain):
        return "null"
    if _is_number(plain):
        dtype = pa.array([], plain).to_numpy(zero_copy_only=False).dtype.name
        return (dtype, tuple(shape)) if shape else dtype
    return "json" if shape else {pa.large_string(): "str", pa.large_binary(): "bytes"}.get(plain, "json")


def _is_list(found: Any) -> bool:
    return bool(is_type.is_list(found) or is_type.is_large_list(found) or is_type.is_fixed_size_list(found))


def _is_number(found: Any) -> bool:
    """Return whether values are integers, floats or booleans."""
    return bool(is_type.is_integer(found) or is_type.is_floating(found) or is_type.is_boolean(found))


def times_of(found: Any) -> Iterator[str]:
    """Yield the name and unit of each date, time or duration in a type."""
    found = _storage(found)
    if is_type.is_temporal(found):
        yield f"timestamp[{found.unit}]" if is_type.is_timestamp(found) else str(found)
    elif is_type.is_dictionary(found):
        yield from times_of(found.value_type)
    for part in range(found.num_fields):
        yield from times_of(found.field(part).type)


# ---- columns and rows -----------------------------------------------------------------------------------------------


def parts_of(name: str, array: Any, wanted: Container[str]) -> Iterator[tuple[str, Any]]:
    """Yield the name of a column, or of each part of a struct, and its values as plain type; only wanted names."""
    while isinstance(array, pa.ExtensionArray) and not isinstance(array, pa.FixedShapeTensorArray):
        array = array.storage
    if is_type.is_struct(array.type) and array.type.num_fields:
        for part, values in zip(array.type, array.flatten(), strict=True):  # null where the struct is null
            yield from parts_of(f"{name}.{part.name}", values, wanted)
    elif name in wanted:
        if isinstance(array, pa.FixedShapeTensorArray):
            array = _lists_of_tensors(array)
        yield name, array.cast(_plain(array.type))


def _lists_of_tensors(array: Any) -> Any:
    shape, storage, size = array.type.shape, array.storage, array.storage.type.list_size
    items = storage.values.slice(storage.offset * size, len(storage) * size)
    for length in reversed(shape[1:]):
        items = pa.FixedSizeListArray.from_arrays(items, length)
    return pa.FixedSizeListArray.from_arrays(items, shape[0], mask=storage.is_null())


class _Lists(NamedTuple):
    """Lists of numbers at any depth, flattened into one array."""

    values: Any
    begins: NDArray[Any]  # begin and end of each row's numbers in `values`
    ends: NDArray[Any]
    lengths: list[NDArray[Any]]  # for each axis, the length of the lists of each row; 0 without lists
    is_array: NDArray[Any]  # of each row: nothing is null, and all lists of an axis have one length


def _lists_of(array: Any) -> _Lists | None:
    """Return lists of numbers, flattened; None for other values."""
    begins = np.arange(len(array), dtype=np.int64)
    ends, is_array, lengths = begins + 1, np.ones(len(array), bool), []
    while is_type.is_large_list(array.type):
        is_array &= ~_has_null(array, begins, ends)
        # An empty array may have no offsets at all.
        bounds = array.offsets.to_numpy() if len(array) else np.zeros(1, np.int64)
        array = array.values.slice(bounds[0], bounds[-1] - bounds[0])
        bounds = bounds - bounds[0]
        sizes, length = np.diff(bounds), np.zeros(len(begins), np.int64)
        rows = np.flatnonzero(ends > begins)
        first, last = begins[rows], ends[rows] - 1
        length[rows] = sizes[first]
        changes = np.concatenate([[0], np.cumsum(sizes[1:] != sizes[:-1])])
        is_array[rows] &= changes[first] == changes[last]
        lengths.append(length)
        begins, ends = bounds[begins], bounds[ends]
    if not lengths or not _is_number(array.type):
        return None
    is_array &= ~_has_null(array, begins, ends)
    if array.null_count and not is_type.is_floating(array.type):  # NumPy has no null: integers would become floats
        array = array.fill_null(pa.scalar(0).cast(array.type))
    return _Lists(array.to_numpy(zero_copy_only=False), begins, ends, lengths, is_array)


def _has_null(array: Any, begins: NDArray[Any], ends: NDArray[Any]) -> Any:
    """Return which rows have a null among the entries from `begins` to `ends`."""
    if not array.null_count:
        return np.zeros(len(begins), bool)
    nulls = np.concatenate([[0], np.cumsum(array.is_null().to_numpy(zero_copy_only=False))])
    return nulls[ends] > nulls[begins]


def columns_of(arrays: Mapping[str, Any], schema: Schema, defaults: Container[str]) -> list[Values] | None:
    """Return rows as columns; None if a value is null or does not fit, so that rows are converted one by one.

    A null in a JSON field is a value, unless the field has a default.
    """
    values = []
    for field in schema.fields:
        array = arrays.get(field.name)
        found = None if array is None else values_of(field, array, field.name in defaults)
        if found is None:
            return None
        values.append(found)
    return values or None


def values_of(field: Field, array: Any, has_default: bool) -> Values | None:
    """Return the values of a field; None if they must be converted one by one."""
    if field.dtype == "json":
        values = array.to_pylist()
        if has_default and None in values:
            return None
        try:
            texts = [as_bytes(field, value) for value in values]
        except FormatError:
            return None
        sizes = np.fromiter(map(len, texts), np.uint64, len(texts))
        return Values(data=b"".join(texts), begins=np.cumsum(sizes) - sizes, sizes=sizes)
    if array.null_count:
        return None
    if field.shape is not None:
        return _arrays(field, array)
    if field.is_scalar:
        return _numbers(field, array)
    return _runs(array) if _described(array.type) == field.dtype else None


def _numbers(field: Field, array: Any) -> Values | None:
    """Return numbers as 64-bit words."""
    values = cast(array.to_numpy(zero_copy_only=False), field.dtype) if _is_number(array.type) else None
    if values is None:
        return None
    wide = {"i": np.int64, "f": np.float64}.get(values.dtype.kind, np.uint64)
    return Values([values.astype(wide).view(np.uint64)])


def _runs(array: Any) -> Values | None:
    """Return text or bytes; None for text that is not UTF-8."""
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        return None
    _, offsets, data = array.buffers()
    if offsets is None:  # an empty array
        offsets = bytes(8)
    bounds = np.frombuffer(offsets, np.uint64, len(array) + 1, 8 * array.offset)
    return Values(data=data or b"", begins=bounds[:-1], sizes=np.diff(bounds))


def _arrays(field: Field, array: Any) -> Values | None:
    """Return lists as arrays; None if a list does not have the field's shape."""
    lists, shape = _lists_of(array), field.shape or ()
    if lists is None or len(lists.lengths) != len(shape) or not lists.is_array.all():
        return None
    values, words = cast(lists.values, field.dtype), []
    if values is None:
        return None
    has_lists = np.ones(len(array), bool)
    for axis, length in zip(shape, lists.lengths, strict=True):
        if axis is None:
            words.append(length.astype(np.uint64))
        elif ((length != axis) & (has_lists | (length != 0))).any():
            return None
        has_lists &= length != 0
    item = values.dtype.itemsize
    begins, sizes = lists.begins * item, (lists.ends - lists.begins) * item
    data = np.ascontiguousarray(values).view(np.uint8)
    return Values(words, data, begins.astype(np.uint64), sizes.astype(np.uint64))


def objects_of(array: Any, is_json: bool) -> list[Any]:
    """Return the values of all rows. Regular lists of numbers become arrays, unless the field is JSON."""
    lists = None if is_json else _lists_of(array)
    if lists is None:
        return list(array.to_pylist())
    bounds = zip(lists.begins.tolist(), lists.ends.tolist(), strict=True)
    shapes = zip(*(length.tolist() for length in lists.lengths), strict=True)
    return [
        lists.values[begin:end].reshape(shape) if is_array else array[row].as_py()
        for row, ((begin, end), shape, is_array) in enumerate(zip(bounds, shapes, lists.is_array, strict=True))
    ]
