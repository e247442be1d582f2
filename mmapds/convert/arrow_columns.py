"""Columns of Arrow as columns of array files, without an object for each value. Loaded only where Arrow is read."""

from collections.abc import Container, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as is_type

from ..arrays.columns import Columns, Values
from ..arrays.schema import Field, Schema
from ..arrays.values import as_bytes
from ..errors import FormatError
from .arrow_values import described, is_temporal, json_values, offsets, stored

_OFFSETS = {"large_string": np.int64, "large_binary": np.int64, "string": np.int32, "binary": np.int32}


def columns_of(batch: Any, schema: Schema, defaults: Container[str]) -> Columns | None:
    """Return the rows of a RecordBatch as columns; None where its values must be looked at one by one.

    That is so where a value or a struct is null or a list does not make an array, where the schema has another type
    than the batch, and for types that are not made of one run of bytes a row. A null of a field of JSON is a value,
    unless the field is among those with `defaults`.
    """
    arrays = dict(_flat(batch))
    values = []
    for field in schema.fields:
        array = arrays.get(field.name)
        found = None if array is None else _values(field, array, field.name in defaults)
        if found is None:
            return None
        values.append(found)
    return Columns(schema, values, batch.num_rows) if values else None


def _flat(batch: Any) -> Iterator[tuple[str, Any]]:
    """Yield the name and array of every column; of a struct without nulls, those of its parts."""
    for name, array in zip(batch.schema.names, batch.columns, strict=True):
        yield from _parts(name, array)


def _parts(name: str, array: Any) -> Iterator[tuple[str, Any]]:
    array = stored(array)
    if is_type.is_struct(array.type) and array.type.num_fields and not array.null_count:
        for number, part in enumerate(array.type):
            yield from _parts(f"{name}.{part.name}", array.field(number))
    else:
        yield name, array


def _values(field: Field, array: Any, has_default: bool) -> Values | None:
    """Return the values of a field; None where they must be looked at one by one."""
    if field.dtype == "json":
        values = json_values(array)
        if has_default and any(value is None for value in values):
            return None
        try:
            return _joined([as_bytes(field, value) for value in values])
        except FormatError:
            return None
    if array.null_count or described(array.type) != (field.dtype if field.shape is None else _listed(field)):
        return None
    if is_type.is_dictionary(array.type):
        used, rows = np.unique(array.indices.to_numpy(zero_copy_only=False), return_inverse=True)
        found = _values(field, stored(array.dictionary.take(pa.array(used))), has_default)
        return found and found.chosen(rows)
    if field.shape is not None:
        return _lists(field, array)
    return _numbers(array) if field.is_scalar else _runs(array)


def _listed(field: Field) -> tuple[str, list[int | None]]:
    return field.dtype, list(field.shape or ())


def _joined(texts: list[Any]) -> Values:
    """Return runs of bytes that lie apart."""
    sizes = np.fromiter(map(len, texts), np.uint64, len(texts))
    return Values(data=b"".join(texts), begins=np.cumsum(sizes) - sizes, sizes=sizes)


def _numbers(array: Any) -> Values:
    """Return numbers as 64-bit words."""
    if is_temporal(array.type):
        array = array.view(f"int{array.type.bit_width}")
    values = array.to_numpy(zero_copy_only=False)
    wide = {"i": np.int64, "f": np.float64}.get(values.dtype.kind, np.uint64)
    return Values([values.astype(wide).view(np.uint64)])


def _runs(array: Any) -> Values | None:
    """Return text or bytes; None for text that is not UTF-8."""
    if is_type.is_decimal(array.type):
        array = array.cast(pa.string())
    elif is_type.is_string_view(array.type) or is_type.is_binary_view(array.type):
        array = array.cast(pa.large_string() if is_type.is_string_view(array.type) else pa.large_binary())
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
    dtype = np.dtype(_OFFSETS[str(array.type)])
    bounds = np.frombuffer(offsets, dtype, len(array) + 1, array.offset * dtype.itemsize).astype(np.uint64)
    return Values(data=data or b"", begins=bounds[:-1], sizes=np.diff(bounds))


def _lists(field: Field, array: Any) -> Values | None:
    """Return lists as arrays; None where one does not make an array of the field's shape."""
    if isinstance(array, pa.FixedShapeTensorArray):
        if array.type.permutation not in (None, [*range(len(array.type.shape))]):
            return None
        values, size = array.storage.flatten().to_numpy(zero_copy_only=False), int(np.prod(array.type.shape))
        begins = np.arange(len(array), dtype=np.int64) * size
        return None if array.storage.flatten().null_count else _elements(values, [], begins, begins + size)
    begins = np.arange(len(array), dtype=np.int64)
    ends = begins + 1
    words = []
    for axis in field.shape or ():
        inner = _inner(array, begins, ends)
        if inner is None:
            return None
        lengths, array, begins, ends = inner
        if axis is None:
            words.append(lengths.astype(np.uint64))
    return None if array.null_count else _elements(array.to_numpy(zero_copy_only=False), words, begins, ends)


def _elements(values: Any, words: list[Any], begins: Any, ends: Any) -> Values:
    """Return arrays of the elements from `begins` to `ends`."""
    item = values.dtype.itemsize
    data = np.ascontiguousarray(values).view(np.uint8)
    return Values(words, data, (begins * item).astype(np.uint64), ((ends - begins) * item).astype(np.uint64))


def _inner(array: Any, begins: Any, ends: Any) -> tuple[Any, Any, Any, Any] | None:
    """Go down an axis: each row has the lists of an array from `begins` to `ends`.

    Returns:
      How long these lists are in each row, 0 where it has none; the array of their items, and where those of each row
      begin and end in it. None where a row has lists of different lengths, or one is null.
    """
    if array.null_count:
        return None
    if is_type.is_fixed_size_list(array.type):
        size = array.type.list_size
        items = array.values.slice(array.offset * size, len(array) * size)
        return np.full(len(begins), size), stored(items), begins * size, ends * size
    if not (is_type.is_list(array.type) or is_type.is_large_list(array.type)):  # but a view, whose lists may overlap
        return None
    bounds = offsets(array).astype(np.int64)
    items = array.values.slice(bounds[0], bounds[-1] - bounds[0])
    bounds -= bounds[0]
    sizes = np.diff(bounds)
    lengths = np.zeros(len(begins), np.int64)
    rows = np.flatnonzero(ends > begins)
    first, last = begins[rows], ends[rows] - 1
    lengths[rows] = sizes[first]
    changes = np.concatenate([[0], np.cumsum(sizes[1:] != sizes[:-1])])
    if (changes[first] != changes[last]).any():
        return None
    return lengths, stored(items), bounds[begins], bounds[ends]
