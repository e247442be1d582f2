"""The types and values of Arrow's columns as those of array files. Loaded only where Arrow's files are read."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as is_type
from numpy.typing import NDArray

from ..errors import FormatError
from .reader import Refused

_SPELLED_OUT = 1 << 30  # bytes that the values of a dictionary may take at most, if every row has the longest
_GAP = 16  # values that are made in vain rather than those on both sides apart
_LISTS = {
    pa.lib.Type_LIST: pa.list_,
    pa.lib.Type_LARGE_LIST: pa.large_list,
    pa.lib.Type_LIST_VIEW: pa.list_view,
    pa.lib.Type_LARGE_LIST_VIEW: pa.large_list_view,
}
Values = Sequence[Any]
"""The values of a column; None stands for null."""


def schema_fields(path: str, schema: Any) -> Iterator[tuple[str, Any]]:
    """Yield the name and type of every field; of a struct, those of its parts.

    Raises:
      FormatError: two fields have the same name.
    """
    seen = set()
    for field in schema:
        for name, found in flat_fields(field):
            if name in seen:
                raise FormatError(f"{path}: expected fields of different names, found two {name!r}; rename one")
            seen.add(name)
            is_known = not _holds(found, _is_months)
            yield name, described(found) if is_known else Refused(f"{path}: field {name!r}", str(found))


def check_units(path: str, schema: Any, units: dict[str, list[str]]) -> None:
    """Raise FormatError if dates, times or durations have another unit than those of the files before.

    Args:
      units: those of each field, at any depth; the fields of this file are added.
    """
    for name, found in (each for field in schema for each in flat_fields(field)):
        here = _units(found)
        before = units.setdefault(name, here)
        if here and before and here != before:
            raise FormatError(
                f"{path}: field {name!r}: expected {', '.join(before)}, as in the files before, found "
                f"{', '.join(here)}; convert them one by one"
            )


def _units(found: Any) -> list[str]:
    """Return the dates, times and durations that a type has in it, without time zones."""
    units: list[str] = []

    def add(leaf: Any) -> Any:
        if is_temporal(leaf):
            units.append(f"timestamp[{leaf.unit}]" if is_type.is_timestamp(leaf) else str(leaf))
        return leaf

    _replaced(found, is_temporal, add)
    return units


def flat_fields(field: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the name and Arrow type of a field, or of the parts of a struct."""

    found, name = _storage(field.type), prefix + field.name
    if is_type.is_struct(found) and found.num_fields:
        for part in found:
            yield from flat_fields(part, f"{name}.")
    else:
        yield name, found


def _holds(found: Any, is_meant: Callable[[Any], bool]) -> bool:
    """Whether a type, or one of its parts at any depth, is one that is meant."""
    parts = [found.field(part).type for part in range(found.num_fields)]
    if is_type.is_dictionary(found):
        parts.append(found.value_type)
    elif isinstance(found, pa.BaseExtensionType):
        parts.append(found.storage_type)
    return is_meant(found) or any(_holds(part, is_meant) for part in parts)


def _is_months(found: Any) -> bool:
    """Whether a type is an interval of months, which pyarrow can name but not read."""
    return bool(found.id == pa.lib.Type_INTERVAL_MONTHS)


def _storage(found: Any) -> Any:
    """Return the type that an extension type is stored as; tensors are left as they are."""
    while isinstance(found, pa.BaseExtensionType) and not _is_tensor(found):
        found = found.storage_type
    return found


def described(found: Any) -> Any:
    """Return a type as a schema describes it."""
    found = _storage(found)
    if _is_tensor(found):
        axes = found.permutation or range(len(found.shape))
        return np.dtype(found.value_type.to_pandas_dtype()).name, [found.shape[axis] for axis in axes]
    if is_type.is_dictionary(found):
        return described(found.value_type)
    if is_number(found):
        return np.dtype(found.to_pandas_dtype()).name
    if is_type.is_string(found) or is_type.is_large_string(found) or is_type.is_string_view(found):
        return "str"
    if is_type.is_binary(found) or is_type.is_large_binary(found) or is_type.is_binary_view(found):
        return "bytes"
    if is_type.is_fixed_size_binary(found):
        return "bytes"
    if is_type.is_decimal(found):
        return "str"
    if is_temporal(found):
        return f"int{found.bit_width}"
    leaf, shape = _listed(found)
    return (np.dtype(leaf.to_pandas_dtype()).name, shape) if shape and is_number(leaf) else "json"


def is_number(found: Any) -> bool:
    """Whether values are integers, floats or booleans."""
    return bool(is_type.is_integer(found) or is_type.is_floating(found) or is_type.is_boolean(found))


def is_temporal(found: Any) -> bool:
    """Whether values are dates, times or durations, which are one number each."""
    return bool(is_type.is_temporal(found) and not is_type.is_interval(found))


def _is_ragged(found: Any) -> bool:

    return bool(is_type.is_list(found) or is_type.is_large_list(found) or _is_view(found))


def _is_view(found: Any) -> bool:
    """Whether lists may lie in any order and overlap."""
    return bool(is_type.is_list_view(found) or is_type.is_large_list_view(found))


def _listed(found: Any) -> tuple[Any, list[int | None]]:
    """Return the type of the innermost items of lists, and the shape that the lists make."""
    shape: list[int | None] = []
    while is_type.is_fixed_size_list(found) or _is_ragged(found):
        shape.append(found.list_size if is_type.is_fixed_size_list(found) else None)
        found = _storage(found.value_type)
    return found, shape


def _replaced(found: Any, is_meant: Callable[[Any], bool], leaf: Callable[[Any], Any]) -> Any:
    """Return the type that arrays of a type can be rebuilt as, with others in place of some types of single values.

    Whether it is another type, `_holds` says: in PyArrow 26, dictionaries of any two types are equal where an extension
    type is among their parts.

    Args:
      is_meant: which types of single values are replaced.
      leaf: returns what stands for such a type, a type of the same width.
    """
    if not _holds(found, is_meant):
        return found
    if isinstance(found, pa.BaseExtensionType):
        return _replaced(found.storage_type, is_meant, leaf)
    if is_type.is_dictionary(found):
        return pa.dictionary(found.index_type, _replaced(found.value_type, is_meant, leaf), found.ordered)
    if is_type.is_run_end_encoded(found):
        return pa.run_end_encoded(found.run_end_type, _replaced(found.value_type, is_meant, leaf))
    parts = [part.with_type(_replaced(part.type, is_meant, leaf)) for part in map(found.field, range(found.num_fields))]
    if is_type.is_struct(found):
        return pa.struct(parts)
    if is_type.is_map(found):
        return pa.map_(*parts[0].type, found.keys_sorted)
    if is_type.is_fixed_size_list(found):
        return pa.list_(parts[0], found.list_size)
    if is_type.is_union(found):
        return pa.union(parts, found.mode, found.type_codes)
    return _LISTS[found.id](parts[0]) if found.id in _LISTS else leaf(found)


def json_values(array: Any) -> Values:
    """Return values as JSON has them: at any depth, dates, times and durations are integers, decimals are text, and
    tensors are lists in lists.

    What pyarrow makes of the former has microseconds at best, or depends on whether pandas is installed. What holds
    such is taken apart here: PyArrow 26 views nulls and run-end encoded arrays in others without their offset and with
    the length of what they are in, as other rows.
    """
    found = array.type
    if not _holds(found, _is_spelled):
        return array.to_pylist()  # type: ignore[no-any-return]
    if isinstance(array, pa.ExtensionArray):
        values = json_values(array.storage)
        return [_with_axes(value, found) for value in values] if _is_tensor(found) else values
    if is_type.is_run_end_encoded(found):
        rows = np.arange(array.offset, array.offset + len(array))
        return _values_at(array.values, np.searchsorted(array.run_ends.to_numpy(), rows, side="right"))
    if is_type.is_union(found):
        return _of_union(array)
    if is_type.is_dictionary(found):
        return _of_dictionary(array)
    if is_temporal(found):
        return array.view(f"int{found.bit_width}").to_pylist()  # type: ignore[no-any-return]
    if is_type.is_decimal(found):
        return [None if value is None else str(value) for value in array.to_pylist()]
    values = _of_struct(array) if is_type.is_struct(found) else _of_lists(array)
    return _masked(values, array.is_valid().to_pylist()) if array.null_count else values


def _is_spelled(found: Any) -> bool:
    """Whether values are another in JSON than pyarrow makes of them."""
    return is_temporal(found) or bool(is_type.is_decimal(found)) or _is_tensor(found)


def _values_at(array: Any, places: NDArray[Any]) -> Values:
    """Return the values of an array at places; few others are looked at, as a batch may use little of a dictionary."""
    used = np.unique(places)
    found: dict[int, Any] = {}
    for run in np.split(used, np.flatnonzero(np.diff(used) > _GAP) + 1) if len(used) else []:
        first = int(run[0])
        values = json_values(array.slice(first, int(run[-1]) + 1 - first))
        found.update((place, values[place - first]) for place in run.tolist())
    return [found[place] for place in places.tolist()]


def _of_dictionary(array: Any) -> Values:

    found = iter(_values_at(array.dictionary, array.indices.drop_null().to_numpy()))
    return [next(found) if is_there else None for is_there in array.indices.is_valid().to_pylist()]


def _of_struct(array: Any) -> Values:

    names = [part.name for part in array.type]
    if len(set(names)) < len(names):
        raise pa.ArrowInvalid(f"expected parts of different names, found {array.type}")
    parts = [json_values(array.field(number)) for number in range(len(names))]
    return [dict(zip(names, row, strict=True)) for row in zip(*parts, strict=True)]


def _of_union(array: Any) -> Values:
    """Return the values of a union. Its buffers are taken as they are: what pyarrow gives lacks the offset."""
    _, codes, *places = array.buffers()[: array.type.num_buffers]
    if not len(array):
        return []
    of_rows = np.frombuffer(codes, np.int8, len(array), array.offset)
    rows_of_parts = np.arange(len(array))
    if places:  # it is dense
        rows_of_parts = np.frombuffer(places[0], np.int32, len(array), array.offset * 4)
    values: list[Any] = [None] * len(array)
    for number, code in enumerate(array.type.type_codes):
        rows = np.flatnonzero(of_rows == code)
        for row, value in zip(rows.tolist(), _values_at(array.field(number), rows_of_parts[rows]), strict=True):
            values[row] = value
    return values


def _of_lists(array: Any) -> Values:
    """Return lists of any kind, or maps as lists of pairs; those that are null have any value."""
    begins, ends, parts = _bounds(array)
    if not len(begins):
        return []
    first, last = int(begins.min()), int(ends.max())
    parts = parts.slice(first, last - first)
    if is_type.is_map(array.type):
        items: Values = list(zip(json_values(parts.field(0)), json_values(parts.field(1)), strict=True))
    else:
        items = json_values(parts)
    bounds = zip((begins - first).tolist(), (ends - first).tolist(), strict=True)
    return [items[begin:end] for begin, end in bounds]


def _with_axes(value: Any, found: Any) -> Any:
    """Return a tensor as lists in lists, in the order of axes that its type says; pyarrow has one list for all axes."""
    if value is None:
        return None
    items = np.array(value, object).reshape(found.shape)  # objects, as one may be None
    return items.transpose(found.permutation or range(len(found.shape))).tolist()


def _is_tensor(found: Any) -> bool:
    """Whether values are tensors of one shape."""
    return isinstance(found, pa.FixedShapeTensorType)


def rows_of(batch: Any, wanted: list[str], types: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the rows of a RecordBatch.

    Args:
      wanted: its columns.
      types: the fields that a row gets, and their types.
    """
    columns: dict[str, Values] = {}
    for name in wanted:
        columns.update(_columns(batch.column(name), name, types))
    if not columns:
        yield from ({} for _ in range(batch.num_rows))
    for row in zip(*columns.values(), strict=True):
        yield dict(zip(columns, row, strict=True))


def _columns(array: Any, name: str, types: Mapping[str, Any]) -> Iterator[tuple[str, Values]]:
    """Yield the name and values of a column, or of each part of a struct; a null struct has null parts.

    The nulls are put in here: PyArrow 26's `flatten` puts none into run-end encoded parts, and ends the process where a
    part is a union.
    """
    array = stored(array)
    if is_type.is_struct(array.type) and array.type.num_fields:
        is_valid = array.is_valid().to_pylist() if array.null_count else []
        for number, part in enumerate(array.type):
            for each, values in _columns(array.field(number), f"{name}.{part.name}", types):
                yield each, _masked(values, is_valid) if is_valid else values
    elif name in types:
        yield name, json_values(array) if types[name] == "json" else _values(array)


def _masked(values: Values, is_valid: list[bool]) -> Values:
    """Return values with None for those that are not valid."""
    return [value if is_there else None for value, is_there in zip(values, is_valid, strict=True)]


def unjudged(array: Any) -> Any:
    """Return an array as one that may have any values.

    Others write dates that are no whole days, and decimals of more digits than their type says, which pyarrow refuses
    where it checks an array in full; they have a meaning all the same. What holds such is built again around views of
    single values, as `json_values` says.
    """
    if not _holds(array.type, _is_judged):
        return array
    wanted = _replaced(array.type, _is_judged, _unjudged)
    while isinstance(array, pa.ExtensionArray):
        array = array.storage
    found = array.type
    if is_type.is_dictionary(found):
        values = unjudged(array.dictionary)
        return pa.DictionaryArray.from_arrays(array.indices, values, ordered=found.ordered, safe=False)
    own, offset = array.buffers()[: wanted.num_buffers], array.offset
    if is_type.is_struct(found) or is_type.is_union(found):
        parts = [unjudged(array.field(number)) for number in range(found.num_fields)]
        if is_type.is_struct(found):
            return pa.StructArray.from_arrays(parts, fields=list(wanted), mask=array.is_null())
        widths = (1, 4)  # of codes, and of places in dense unions; sparse parts are slices of the same rows
        own[1:] = [buffer and buffer.slice(offset * width) for buffer, width in zip(own[1:], widths, strict=False)]
        return pa.Array.from_buffers(wanted, len(array), own, 0, 0, parts)
    if is_type.is_run_end_encoded(found):
        parts = [array.run_ends, unjudged(array.values)]
    elif is_type.is_map(found) or is_type.is_fixed_size_list(found) or _is_ragged(found):
        parts = [unjudged(array.values)]
    else:
        return array.view(wanted)
    return pa.Array.from_buffers(wanted, len(array), own, array.null_count, offset, parts)


def _is_judged(found: Any) -> bool:
    """Whether pyarrow refuses some values of a type."""
    return bool(is_type.is_decimal(found) or is_type.is_date64(found))


def _unjudged(found: Any) -> Any:
    return pa.binary(found.bit_width // 8) if is_type.is_decimal(found) else pa.int64()


def stored(array: Any) -> Any:
    """Return what an array of an extension type is stored as; tensors are left as they are."""
    while isinstance(array, pa.ExtensionArray) and not isinstance(array, pa.FixedShapeTensorArray):
        array = array.storage
    return array


def _values(array: Any) -> Values:

    if isinstance(array, pa.FixedShapeTensorArray):
        return _tensors(array)
    if is_type.is_dictionary(array.type):
        is_small = array.dictionary.nbytes * len(array) <= _SPELLED_OUT
        return _values(array.dictionary_decode()) if is_small else _repeated(array)
    if is_type.is_decimal(array.type):
        array = array.cast(pa.string())
    elif is_temporal(array.type):
        array = array.view(f"int{array.type.bit_width}")
    leaf, shape = _listed(array.type)
    if shape and is_number(leaf):
        return _arrays(array)
    if array.null_count or not is_number(leaf):
        return array.to_pylist()  # type: ignore[no-any-return]
    return array.to_numpy(zero_copy_only=False).tolist()  # type: ignore[no-any-return]


def _tensors(array: Any) -> Values:
    """Return tensors with their axes in the order that their type says.

    The items are taken from the storage: PyArrow 26 gives other strides to tensors whose axes are permuted.
    """
    shape, storage = array.type.shape, array.storage
    size = math.prod(shape)
    items = storage.values.slice(storage.offset * size, len(storage) * size)
    lacks = items.is_null().to_numpy(zero_copy_only=False).reshape(len(array), size).any(axis=1)
    if items.null_count and not pa.types.is_floating(items.type):  # NumPy has no null: they would become floats
        items = items.fill_null(pa.scalar(0).cast(items.type))
    axes = [0, *(axis + 1 for axis in array.type.permutation or range(len(shape)))]
    numbers: Values = items.to_numpy(zero_copy_only=False).reshape(len(array), *shape).transpose(axes)
    if not storage.null_count and not lacks.any():
        return numbers
    rows: list[Any] = []
    for row, is_there in enumerate(storage.is_valid().to_pylist()):
        found = storage[row].as_py() if lacks[row] else numbers[row]  # with None in it, which fits nowhere
        rows.append(found if is_there else None)
    return rows


def _repeated(array: Any) -> Values:
    """Return the values of a dictionary-encoded column; rows with the same value share it, however long it is."""
    indices = array.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    used, places = np.unique(indices, return_inverse=True)
    has_null = bool(used.size) and used[0] < 0
    found = _values(array.dictionary.take(pa.array(used[int(has_null) :])))
    values = [None, *found] if has_null else found
    return [values[place] for place in places.tolist()]


def _arrays(array: Any) -> Values:
    """Return the lists of a column as arrays that share its memory; a list that does not make an array stays a list."""
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
    """Return where each list begins and ends, and the array of their items that these bounds are for."""
    if is_type.is_fixed_size_list(array.type):
        size = array.type.list_size
        bounds = np.arange(len(array) + 1) * size
        return bounds[:-1], bounds[1:], stored(array.values.slice(array.offset * size, len(array) * size))
    if _is_view(array.type):
        begins = array.offsets.to_numpy()
        return begins, begins + array.sizes.to_numpy(), stored(array.values)
    bounds = offsets(array)
    return bounds[:-1], bounds[1:], stored(array.values)


def offsets(array: Any) -> NDArray[Any]:
    """Return where lists begin and where the last one ends. Arrays without lists may be stored without an offset."""
    return array.offsets.to_numpy() if len(array) else np.zeros(1, np.int64)


def _elements(array: Any) -> Callable[[int, int], Any] | None:
    """Return a function that gives a range of an array as one of NumPy, or None for lists of different lengths.

    None if the array has nulls, or lists in any order.
    """
    if array.null_count or _is_view(array.type):
        return None
    if is_number(array.type):
        values = array.to_numpy(zero_copy_only=False)
        return lambda begin, end: values[begin:end]
    begins, ends, parts = _bounds(array)
    inner = _elements(parts)
    if inner is None:
        return None
    size_of_none = 0 if _is_ragged(array.type) else array.type.list_size

    def stacked(begin: int, end: int) -> Any:
        sizes = ends[begin:end] - begins[begin:end]
        size = int(sizes[0]) if len(sizes) else size_of_none
        if (sizes != size).any():
            return None
        found = inner(int(begins[begin]), int(ends[end - 1])) if len(sizes) else inner(0, 0)
        return None if found is None else found.reshape(end - begin, size, *found.shape[1:])

    return stacked
