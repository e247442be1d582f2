"""Columns of Arrow as columns of array files, or as Python's objects where a value does not fit.

Loaded only where Arrow is read, as pyarrow is optional.
"""

from collections.abc import Container, Iterator
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.types as is_type
from numpy.typing import NDArray

from ..arrays.columns import Columns, Values
from ..arrays.schema import EXTENDED, Field, Schema
from ..arrays.values import as_bytes, cast
from ..errors import FormatError
from .reader import UNDECIDED

# ---- types ----------------------------------------------------------------------------------------------------------


def described(found: Any) -> Any:
    """Return a type as a schema describes it."""
    found = storage_type(found)
    if _is_tensor(found):
        axes = found.permutation or range(len(found.shape))
        return np.dtype(found.value_type.to_pandas_dtype()).name, [found.shape[axis] for axis in axes]
    if is_type.is_dictionary(found) or is_type.is_run_end_encoded(found):
        return described(found.value_type)
    if _is_number(found):
        return np.dtype(found.to_pandas_dtype()).name
    if is_temporal(found):
        return f"int{found.bit_width}"
    if is_type.is_null(found):
        return UNDECIDED
    for dtype, kinds in (("str", _TEXTS), ("bytes", _BYTES)):
        if any(is_kind(found) for is_kind in kinds):
            return dtype
    shape: list[int | None] = []
    while _is_list(found) or _is_view(found):
        shape.append(found.list_size if is_type.is_fixed_size_list(found) else None)
        found = storage_type(found.value_type)
    if shape and is_type.is_null(found):
        return UNDECIDED
    return (np.dtype(found.to_pandas_dtype()).name, shape) if shape and _is_number(found) else "json"


_TEXTS = (is_type.is_string, is_type.is_large_string, is_type.is_string_view, is_type.is_decimal)
_BYTES = (is_type.is_binary, is_type.is_large_binary, is_type.is_binary_view, is_type.is_fixed_size_binary)


def storage_type(found: Any) -> Any:
    """Return the type that an extension type is stored as; tensors are left as they are."""
    while isinstance(found, pa.BaseExtensionType) and not _is_tensor(found):
        found = found.storage_type
    return found


def stored(array: Any) -> Any:
    """Return what an array of an extension type is stored as; tensors are left as they are."""
    while isinstance(array, pa.ExtensionArray) and not _is_tensor(array.type):
        array = array.storage
    return array


def _is_number(found: Any) -> bool:
    """Whether values are integers, floats or booleans."""
    return bool(is_type.is_integer(found) or is_type.is_floating(found) or is_type.is_boolean(found))


def is_temporal(found: Any) -> bool:
    """Whether values are dates, times or durations, which are one number each."""
    return bool(is_type.is_temporal(found) and not is_type.is_interval(found))


def _is_list(found: Any) -> bool:
    return bool(is_type.is_list(found) or is_type.is_large_list(found) or is_type.is_fixed_size_list(found))


def _is_view(found: Any) -> bool:
    """Whether lists may lie in any order and overlap."""
    return bool(is_type.is_list_view(found) or is_type.is_large_list_view(found))


def _is_tensor(found: Any) -> bool:
    """Whether values are tensors of one shape."""
    return isinstance(found, pa.FixedShapeTensorType)


# ---- plain arrays ---------------------------------------------------------------------------------------------------


@cache
def _is_plain(found: Any) -> bool:
    """Whether arrays of a type are what `_plain` returns."""
    if isinstance(found, pa.BaseExtensionType) or _is_view(found) or is_type.is_run_end_encoded(found):
        return False
    if is_type.is_dictionary(found) or is_temporal(found) or is_type.is_decimal(found):
        return False
    if is_type.is_string_view(found) or is_type.is_binary_view(found):
        return False
    return all(_is_plain(found.field(part).type) for part in range(found.num_fields))


def _plain(array: Any) -> Any:
    """Return an array with values as array files have them, at any depth.

    Dates, times and durations become integers in their own unit, decimals text, tensors lists in lists. Dictionaries,
    runs, views and extensions become what they stand for.
    """
    found = array.type
    if _is_plain(found):
        return array
    if _is_tensor(found):
        return _lists_of_tensors(array)
    if isinstance(array, pa.ExtensionArray):
        return _plain(array.storage)
    if is_type.is_dictionary(found) or is_type.is_run_end_encoded(found):
        values, rows = _entries(array)
        return values.take(pa.array(rows))
    if is_temporal(found):
        return array.view(f"int{found.bit_width}")
    if is_type.is_decimal(found):
        return array.cast(pa.string())
    if is_type.is_string_view(found) or is_type.is_binary_view(found):
        return array.cast(pa.large_string() if is_type.is_string_view(found) else pa.large_binary())
    if is_type.is_struct(found):
        parts = [_plain(array.field(number)) for number in range(found.num_fields)]
        fields = [pa.field(part.name, made.type) for part, made in zip(found, parts, strict=True)]
        return pa.StructArray.from_arrays(parts, fields=fields, mask=array.is_null())
    if is_type.is_fixed_size_list(found):
        items = _plain(array.values.slice(array.offset * found.list_size, len(array) * found.list_size))
        return pa.FixedSizeListArray.from_arrays(items, found.list_size, mask=array.is_null())
    if _is_view(found):
        sizes = np.where(array.is_valid(), array.sizes, 0)
        bounds = np.concatenate([[0], np.cumsum(sizes)])
        places = np.arange(bounds[-1]) + np.repeat(array.offsets.to_numpy() - bounds[:-1], sizes)
        items = _plain(array.values).take(pa.array(places))
    else:
        bounds, items = _bounds(array)
        items = _plain(items)
    if is_type.is_map(found):
        offsets = pa.array(bounds, pa.int32())
        return pa.MapArray.from_arrays(offsets, items.field(0), items.field(1), mask=array.is_null())
    return pa.LargeListArray.from_arrays(pa.array(bounds), items, mask=array.is_null())


def _bounds(array: Any) -> tuple[NDArray[Any], Any]:
    """Return where each list begins and the last one ends in an array of their items, and this array."""
    if is_type.is_fixed_size_list(array.type):
        size = array.type.list_size
        return np.arange(len(array) + 1) * size, array.values.slice(array.offset * size, len(array) * size)
    # Arrays without lists may be stored without an offset.
    bounds = array.offsets.to_numpy().astype(np.int64) if len(array) else np.zeros(1, np.int64)
    return bounds - bounds[0], array.values.slice(bounds[0], bounds[-1] - bounds[0])


def _lists_of_tensors(array: Any) -> Any:
    """Return tensors as lists in lists, in the order of axes that their type says."""
    shape, storage = array.type.shape, array.storage
    axes = array.type.permutation or [*range(len(shape))]
    size = int(np.prod(shape))
    items = _plain(storage.values.slice(storage.offset * size, len(storage) * size))
    if axes != [*range(len(shape))]:
        places = np.arange(len(items)).reshape(-1, *shape).transpose(0, *(axis + 1 for axis in axes))
        items = items.take(pa.array(places.ravel()))
    first, *inner = (shape[axis] for axis in axes)
    for length in reversed(inner):
        items = pa.FixedSizeListArray.from_arrays(items, length)
    return pa.FixedSizeListArray.from_arrays(items, first, mask=storage.is_null())


def _entries(array: Any) -> tuple[Any, NDArray[Any] | None]:
    """Return values, and which of them each row has, as rows may share one; None where row k has value k."""
    if is_type.is_dictionary(array.type):
        codes = array.indices.cast(pa.int64(), safe=False).fill_null(-1).to_numpy(zero_copy_only=False)
        used, rows = np.unique(codes, return_inverse=True)
        return _taken(array.dictionary, pa.array(used, mask=used < 0)), rows
    if is_type.is_run_end_encoded(array.type):
        ends, rows = array.run_ends.to_numpy(), np.arange(array.offset, array.offset + len(array))
        used, rows = np.unique(np.searchsorted(ends, rows, side="right"), return_inverse=True)
        return _taken(array.values, pa.array(used)), rows
    return _plain(array), None


def _taken(values: Any, places: Any) -> Any:
    """Return some entries of an array, as a plain one."""
    try:
        return _plain(values.take(places))  # first, as a few rows may use few entries of many
    except pa.ArrowNotImplementedError:  # of runs, and of views of text
        return _plain(values).take(places)


# ---- columns and rows -----------------------------------------------------------------------------------------------


class Part(NamedTuple):
    """A column, or a part of a struct in one."""

    name: str
    array: Any
    """Plain."""
    rows: NDArray[Any] | None
    """Which entry of the array each row has; None where row k has entry k."""
    is_valid: NDArray[Any] | None
    """Which rows have a value; None where no struct around it is null."""


def parts_of(name: str, array: Any, wanted: Container[str], is_valid: NDArray[Any] | None = None) -> Iterator[Part]:
    """Yield a column, or each part of a struct, if its name is wanted.

    Args:
      is_valid: which rows are not null in a struct around it. pyarrow 26 does not put these nulls into all parts.
    """
    array = stored(array)
    if is_type.is_struct(array.type) and array.type.num_fields:
        if array.null_count:
            here = array.is_valid().to_numpy(zero_copy_only=False)
            is_valid = here if is_valid is None else here & is_valid
        for number, part in enumerate(array.type):
            yield from parts_of(f"{name}.{part.name}", array.field(number), wanted, is_valid)
    elif name in wanted:
        yield Part(name, *_entries(array), is_valid)


class _Lists(NamedTuple):
    """Lists of numbers at any depth, as one array of all numbers."""

    values: Any
    begins: NDArray[Any]
    """Where the numbers of each row begin in it."""
    ends: NDArray[Any]
    lengths: list[NDArray[Any]]
    """How long the lists of each row are, by axis; 0 where it has none."""
    is_array: NDArray[Any]
    """Which rows make an array: none of their lists and numbers is null, and the lists of an axis have one length."""


def _lists_of(array: Any) -> _Lists | None:
    """Return lists; None if they are not of numbers."""
    begins = np.arange(len(array), dtype=np.int64)
    ends, is_array, lengths = begins + 1, np.ones(len(array), bool), []
    while _is_list(array.type):
        is_array &= ~_has_null(array, begins, ends)
        bounds, items = _bounds(array)
        sizes = np.diff(bounds)
        length = np.full(len(begins), array.type.list_size if is_type.is_fixed_size_list(array.type) else 0)
        rows = np.flatnonzero(ends > begins)
        first, last = begins[rows], ends[rows] - 1
        length[rows] = sizes[first]
        changes = np.concatenate([[0], np.cumsum(sizes[1:] != sizes[:-1])])
        is_array[rows] &= changes[first] == changes[last]
        lengths.append(length)
        begins, ends, array = bounds[begins], bounds[ends], items
    if not lengths or not _is_number(array.type):
        return None
    is_array &= ~_has_null(array, begins, ends)
    if array.null_count and not is_type.is_floating(array.type):  # NumPy has no null: they would become floats
        array = array.fill_null(pa.scalar(0).cast(array.type))
    return _Lists(array.to_numpy(zero_copy_only=False), begins, ends, lengths, is_array)


def _has_null(array: Any, begins: NDArray[Any], ends: NDArray[Any]) -> Any:
    """Return which rows have a null among the entries from `begins` to `ends`."""
    if not array.null_count:
        return np.zeros(len(begins), bool)
    nulls = np.concatenate([[0], np.cumsum(array.is_null().to_numpy(zero_copy_only=False))])
    return nulls[ends] > nulls[begins]


def columns_of(parts: list[Part], schema: Schema, defaults: Container[str], count: int) -> Columns | None:
    """Return rows as columns; None where their values must be looked at one by one.

    That is so where a value is null or does not fit its field. A null of a field of JSON is a value, unless the field
    is among those with `defaults`.
    """
    named = {part.name: part for part in parts}
    values = []
    for field in schema.fields:
        part = named.get(field.name)
        if part is None or (part.is_valid is not None and not part.is_valid.all()):
            return None
        found = _values(field, part.array, field.name in defaults)
        if found is None:
            return None
        values.append(found if part.rows is None else found.chosen(part.rows))
    return Columns(schema, values, count) if values else None


def _values(field: Field, array: Any, has_default: bool) -> Values | None:
    """Return the values of a field; None where they must be looked at one by one."""
    if field.dtype == "json":
        values = array.to_pylist()
        if has_default and any(value is None for value in values):
            return None
        try:
            return _joined([as_bytes(field, value) for value in values])
        except FormatError:
            return None
    if array.null_count:
        return None
    if field.shape is not None:
        return _arrays(field, array)
    if field.is_scalar:
        return _numbers(field, array)
    return _runs(array) if described(array.type) == field.dtype else None


def _joined(texts: list[Any]) -> Values:
    """Return runs of bytes that lie apart."""
    sizes = np.fromiter(map(len, texts), np.uint64, len(texts))
    return Values(data=b"".join(texts), begins=np.cumsum(sizes) - sizes, sizes=sizes)


def _as_dtype(values: Any, field: Field) -> Any:
    """Return numbers as the dtype of a field; None where they do not fit."""
    if values.dtype.name == field.dtype:
        return values
    return None if field.dtype in EXTENDED else cast(values, field.dtype)


def _numbers(field: Field, array: Any) -> Values | None:
    """Return numbers as 64-bit words."""
    values = _as_dtype(array.to_numpy(zero_copy_only=False), field) if _is_number(array.type) else None
    if values is None:
        return None
    wide = {"i": np.int64, "f": np.float64}.get(values.dtype.kind, np.uint64)
    return Values([values.astype(wide).view(np.uint64)])


def _runs(array: Any) -> Values | None:
    """Return text or bytes; None for text that is not UTF-8."""
    if is_type.is_fixed_size_binary(array.type):
        size = array.type.byte_width
        begins = (np.arange(len(array), dtype=np.uint64) + array.offset) * np.uint64(size)
        return Values(data=array.buffers()[1] or b"", begins=begins, sizes=np.full(len(array), size, np.uint64))
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        return None
    _, offsets, data = array.buffers()
    if offsets is None:  # of an array without values
        return _joined([])
    is_large = is_type.is_large_string(array.type) or is_type.is_large_binary(array.type)
    dtype = np.dtype(np.int64 if is_large else np.int32)
    bounds = np.frombuffer(offsets, dtype, len(array) + 1, array.offset * dtype.itemsize).astype(np.uint64)
    return Values(data=data or b"", begins=bounds[:-1], sizes=np.diff(bounds))


def _arrays(field: Field, array: Any) -> Values | None:
    """Return lists as arrays; None where one does not make an array of the field's shape."""
    lists, shape = _lists_of(array), field.shape or ()
    if lists is None or len(lists.lengths) != len(shape) or not lists.is_array.all():
        return None
    values, words = _as_dtype(lists.values, field), []
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


def objects_of(part: Part, is_json: bool) -> list[Any]:
    """Return the values of all rows: lists of numbers as arrays, unless they do not make one or become JSON."""
    lists = None if is_json else _lists_of(part.array)
    if lists is None:
        values: list[Any] = part.array.to_pylist()
    else:
        bounds = zip(lists.begins.tolist(), lists.ends.tolist(), strict=True)
        shapes = zip(*(length.tolist() for length in lists.lengths), strict=True)
        values = [
            lists.values[begin:end].reshape(shape) if is_array else part.array[row].as_py()
            for row, ((begin, end), shape, is_array) in enumerate(zip(bounds, shapes, lists.is_array, strict=True))
        ]
    if part.rows is not None:
        values = [values[row] for row in part.rows.tolist()]
    if part.is_valid is None:
        return values
    return [value if is_valid else None for value, is_valid in zip(values, part.is_valid.tolist(), strict=True)]
