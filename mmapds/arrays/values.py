"""The values of a record as the bytes that an array file holds."""

import dataclasses
import enum
import math
import operator
import struct
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import chain
from typing import Any

from .. import _native
from ..errors import FormatError, shortened
from .schema import ALIGNMENT, EXTENDED, ITEM_BYTES, Field, Schema, dtype_name

_ROUND = {"float16": "<e", "float32": "<f", "float64": "<d"}
_TEXTS, _LISTS = {str, bytes}, {list, tuple}
_NUMPY_DIMS = 64  # axes of an array at most
_WIDTH = {"b": 0, "i": 1, "u": 1, "f": 2, "c": 3}  # kinds of numbers; a kind can hold all kinds before it


def pack(schema: Schema, record: Mapping[str, Any], out: bytearray) -> list[float]:
    """Append a record to `out`, and return the numbers of its columns.

    The size of `out` is a multiple of 64 before and after.

    Raises:
      FormatError: the record does not fit; nothing was appended.
    """
    if not isinstance(record, Mapping):
        raise FormatError(f"expected a dict of fields, found {shown(record)}")
    if record.keys() != schema.names:
        missing = [name for name in schema.names if name not in record]
        extra = [name for name in record if name not in schema.names]
        expected = ", ".join(repr(field.name) for field in schema.fields)
        found = f"nothing for {missing[0]!r}" if missing else f"{extra[0]!r} too"
        raise FormatError(f"expected the fields {expected}, found {found}")
    words: list[float] = [0]
    runs: list[Any] = []
    arrays: list[Any] = []
    columns: list[float] = []
    for field in schema.fields:
        value = record[field.name]
        if field.shape is not None:
            array = _as_array(field, value)
            arrays.append(array)
            words += [array.shape[axis] for axis in field.ragged]
            if field.column:
                columns.append(array.shape[0])
        elif field.is_scalar:
            number = _as_number(field, value)
            columns.append(number)
            words.append(number)
        else:
            runs.append(as_bytes(field, value))
            words.append(len(runs[-1]))
    begin = len(out)
    size = 8 * len(words) + sum(map(len, runs))
    for array in arrays:
        size += -size % ALIGNMENT + array.nbytes
    words[0] = size
    out += schema.table.pack(*words)
    for run in runs:
        out += run
    for array in arrays:
        out += bytes(-(len(out) - begin) % ALIGNMENT)
        out.extend(array)  # its bytes
    out += bytes(-(len(out) - begin) % ALIGNMENT)
    return columns


def shown(value: Any) -> str:
    """Return what messages call a value."""
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        behind = " with a mask" if hasattr(value, "mask") else ""
        return f"{dtype_name(value.dtype)} of shape {tuple(value.shape)}{behind}"
    if isinstance(value, int | float | str | list | tuple):
        return f"{type(value).__name__} {shortened(value, 40)}"
    return "null" if value is None else type(value).__name__


def _unfit(field: Field, value: Any) -> FormatError:
    beyond = _first_beyond(field, value) if field.shape and isinstance(value, list | tuple) else None
    where = f"{beyond[1]} as item {beyond[0]} of " if beyond else ""
    return FormatError(f"field {field.name!r}: expected {field}, found {where}{shown(value)}")


def _first_beyond(field: Field, value: Sequence[Any]) -> tuple[int, int] | None:
    """Return the place of the first integer of a list that is beyond the type of its field, and the integer."""
    if field.dtype not in ITEM_BYTES or not field.dtype.lstrip("u").startswith("int"):
        return None
    signed = not field.dtype.startswith("u")
    top = 2 ** (8 * ITEM_BYTES[field.dtype] - signed)
    wrong = (at for at, item in enumerate(value) if type(item) is int and not -top * signed <= item < top)
    at = next(wrong, None)
    return None if at is None else (at, value[at])


def as_bytes(field: Field, value: Any) -> bytes | memoryview:
    """Return a value of a field of text, bytes or JSON as it is stored.

    Raises:
      FormatError: it does not fit.
    """
    if field.type == _native.FIELD_STR and isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise FormatError(
                f"field {field.name!r}: expected text that encodes as UTF-8, found {shortened(value, 40)} ({error})"
            ) from None
    if field.type == _native.FIELD_BYTES and isinstance(value, bytes | bytearray | memoryview):
        view = memoryview(value)
        return view.cast("B") if view.c_contiguous and view.nbytes else view.tobytes()
    if field.type == _native.FIELD_JSON:
        try:
            text = _as_json(value)
        except TypeError as error:
            raise FormatError(
                f"field {field.name!r}: expected what JSON can hold, found {shown(value)} ({error})"
            ) from None
        if b"null" in text and not _is_finite(value):  # orjson writes NaN and infinity as null
            raise FormatError(
                f"field {field.name!r}: expected finite numbers, found NaN or infinity, which JSON cannot hold"
            )
        return text
    raise _unfit(field, value)


def _as_json(value: Any) -> bytes:
    """Return a value as JSON, arrays in it as lists.

    Raises:
      TypeError: JSON cannot hold it.
    """
    import orjson  # start-up time: records without JSON do without

    try:
        return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY, default=_plain)
    except TypeError:  # orjson asks for no other form of an array of another byte order
        try:
            value = _swapped(value)
        except RecursionError:
            raise TypeError("it is nested too deep") from None
        return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY, default=_plain)


def _plain(value: Any) -> Any:
    """Return another form of an array that orjson does not take; it takes contiguous ones of one axis or more."""
    if dtype_name(getattr(value, "dtype", "")) not in ITEM_BYTES or value.dtype.kind not in "biuf":
        raise TypeError(f"no JSON for {shown(value)}")
    return value.tolist() if value.ndim == 0 or value.flags.c_contiguous else value.copy("C")


def _swapped(value: Any) -> Any:
    """Return a value with its arrays in the byte order of this machine."""
    if isinstance(value, Mapping):
        return {name: _swapped(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_swapped(each) for each in value]
    is_foreign = getattr(getattr(value, "dtype", None), "isnative", True) is False
    return value.astype(value.dtype.newbyteorder("=")) if is_foreign else value


def fits(field: Field, value: Any) -> bool:
    """Whether a record can have a value in a field."""
    try:
        if field.shape is not None:
            _as_array(field, value)
        elif field.is_scalar:
            _as_number(field, value)
        else:
            as_bytes(field, value)
    except FormatError:
        return False
    return True


def _is_finite(value: Any) -> bool:
    """Whether all numbers in a value are finite."""
    if isinstance(value, Mapping):
        return all(map(_is_finite, value.values()))
    if isinstance(value, list | tuple):
        return all(map(_is_finite, value))
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, enum.Enum):
        return _is_finite(value.value)
    if dataclasses.is_dataclass(value):
        return all(_is_finite(getattr(value, each.name, None)) for each in dataclasses.fields(value))
    if getattr(getattr(value, "dtype", None), "kind", "") == "f":
        import numpy as np  # start-up time: records without arrays do without

        return bool(np.isfinite(value).all())
    return True


def _as_number(field: Field, value: Any) -> float:
    try:
        if field.type == _native.FIELD_FLOAT:
            if isinstance(value, str | bytes):
                raise TypeError
            layout = _ROUND[field.dtype]
            rounded: float = struct.unpack(layout, struct.pack(layout, float(value)))[0]
            if not isinstance(value, float) and _is_integer(value) and operator.index(value) != rounded:
                raise TypeError
            return rounded
        number = operator.index(value.item() if field.type == _native.FIELD_BOOL and hasattr(value, "item") else value)
    except (TypeError, ValueError, OverflowError):
        raise _unfit(field, value) from None
    bits = 1 if field.type == _native.FIELD_BOOL else 8 * ITEM_BYTES[field.dtype]
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1)) if field.type == _native.FIELD_INT else (0, 2**bits)
    if not low <= number < high:
        raise _unfit(field, value)
    return number


def _as_array(field: Field, value: Any) -> Any:
    """Return a value as a contiguous little-endian array that fits the field."""
    import numpy as np  # start-up time: records without arrays do without

    found = as_array(value)
    array = list_as_array(value) if found is None and isinstance(value, list | tuple) else found
    if array is None:
        raise _unfit(field, value)
    wanted = EXTENDED.get(field.dtype, field.dtype)
    if found is None and array.size == 0 and field.shape and field.shape[0] is None and array.ndim == 1:
        array = array.reshape(0, *(axis or 0 for axis in field.shape[1:]))  # an empty list has no axes of its own
    if found is None:  # a list has no dtype of its own
        array = _of_list(value, array, wanted) if field.dtype not in EXTENDED else None
    elif dtype_name(value.dtype) != field.dtype:
        array = None
    fits = array is not None and array.ndim == len(field.shape or ())
    if not fits or any(axis not in (None, size) for axis, size in zip(field.shape or (), array.shape, strict=True)):
        raise _unfit(field, value if found is not None or array is None else array)
    return np.asarray(array, order="C", dtype=_little(array.dtype))


def with_axes_of(shape: Sequence[int], wanted: Sequence[int | None]) -> tuple[int, ...]:
    """Return the shape of an array, where it has no entries, with the lengths wanted of axes inside that axis.

    They are 0 in an array that was made of lists, as no list was there to tell them.
    """
    if 0 not in shape or len(shape) != len(wanted):
        return tuple(shape)
    known = shape.index(0) + 1
    return (*shape[:known], *(size or axis or 0 for size, axis in zip(shape[known:], wanted[known:], strict=True)))


@cache
def _little(dtype: Any) -> Any:
    return dtype.newbyteorder("<")


def as_array(value: Any) -> Any:
    """Return the NumPy array of an array or a tensor, sharing its memory; None for anything else.

    Elements of a dtype that NumPy lacks become integers of the same size.
    """
    import numpy as np  # start-up time: records without arrays do without

    if isinstance(value, np.generic):
        value = np.asarray(value)
    if masked_count(value):
        return None  # what stands behind a mask is no value
    if isinstance(value, np.ndarray):
        as_integers = EXTENDED.get(dtype_name(value.dtype))
        if as_integers is None:
            return value
        return np.ascontiguousarray(value).reshape(value.shape).view(as_integers)
    if not (hasattr(value, "detach") and hasattr(value, "numpy")):
        return None
    import torch  # only a tensor comes here, so it is loaded

    try:
        tensor = value.detach().cpu().resolve_conj().resolve_neg()
        name = dtype_name(tensor.dtype)
        if name in EXTENDED:
            tensor = tensor.contiguous().view(getattr(torch, EXTENDED[name]))
        return tensor.numpy()
    except (RuntimeError, TypeError, NotImplementedError):  # sparse, quantized, without memory
        return None


def list_as_array(value: Any) -> Any:
    """Return a list of numbers, at any depth, as an array; None for any other list."""
    import numpy as np  # start-up time: records without arrays do without

    if _has_text(value):  # of which NumPy would make an array that gives each the room of the longest
        return None
    try:
        array = np.asarray(value)
        if array.dtype.kind == "f" and (np.abs(array) >= 2**63).any() and all(map(_is_integer, _items(value))):
            array = np.asarray(value, np.uint64)  # NumPy has floats for those on both sides of 2**63
    except (TypeError, ValueError, OverflowError, RuntimeError):  # the last of tensors that need a gradient
        return None
    return array if array.dtype.kind in "biufc" and _is_exact(value, array, array.dtype) else None


def _has_text(value: Sequence[Any]) -> bool:
    """Whether a list, in which all lists of a depth are beside lists alone, has text or bytes in it."""
    items = value
    for _ in range(_NUMPY_DIMS):
        kinds = set(map(type, items))
        if not kinds.isdisjoint(_TEXTS):
            return True
        if not kinds or not kinds <= _LISTS:
            return False
        items = list(chain.from_iterable(items))
    return False


def _of_list(value: Any, array: Any, dtype: str) -> Any:
    """Return the array of a list as another dtype; None where `cast` does, or where an integer would be rounded."""
    import numpy as np  # start-up time: records without arrays do without

    return cast(array, dtype) if _is_exact(value, array, np.dtype(dtype)) else None


def _is_exact(value: Any, array: Any, dtype: Any) -> bool:
    """Whether no integer in a list is rounded when the list, of which `array` was made, becomes floats of a dtype."""
    import numpy as np  # start-up time: records without arrays do without

    if array.dtype.kind not in "fc" or dtype.kind not in "fc" or not array.size:
        return True
    to = np.dtype(f"f{dtype.itemsize // 2}") if dtype.kind == "c" else dtype
    if not (np.abs(array) >= 2 ** (np.finfo(to).nmant + 1)).any():
        return True
    with np.errstate(over="ignore"):
        return all(float(to.type(item)) == operator.index(item) for item in _items(value) if _is_integer(item))


def _items(value: Any) -> Iterator[Any]:
    """Yield the items of a list, at any depth."""
    if isinstance(value, list | tuple):
        for item in value:
            yield from _items(item)
    else:
        yield value


def _is_integer(value: Any) -> bool:
    """Whether a value is an integer, of Python or of a library."""
    try:
        operator.index(value)
    except TypeError:
        return False
    return True


def cast(array: Any, dtype: str) -> Any:
    """Return numbers as another dtype; None where more than the last digits of fractions would be lost.

    None for any other array too, as for one of text, dates, objects or structs.
    """
    import numpy as np  # start-up time: records without arrays do without

    to = np.dtype(dtype)
    if array.dtype.kind not in _WIDTH:
        return None
    if array.size == 0:
        return array.astype(to)
    if _WIDTH[array.dtype.kind] > _WIDTH[to.kind]:
        return None
    if to.kind in "iu" and array.dtype.kind in "iu":
        limits = np.iinfo(to)
        if int(array.min()) < limits.min or int(array.max()) > limits.max:
            return None
    with np.errstate(over="ignore", invalid="ignore"):
        converted = array.astype(to)
        if to.kind in "fc" and (np.isfinite(array) & ~np.isfinite(converted)).any():
            return None
        if to.kind in "fc" and array.dtype.kind in "iu":
            beyond = converted.real >= (2.0**63 if array.dtype.kind == "i" else 2.0**64)  # cannot be cast back
            if beyond.any() or not (converted.real.astype(array.dtype) == array).all():
                return None
    return converted


def masked_count(value: Any) -> int:
    """Return how many entries of a value are behind its mask; 0 for what has none.

    NumPy loads the module of masked arrays when it is first named. That may wait for a lock, for ever in a process that
    was forked while another thread held it. So it is named here only where there is such an array.
    """
    if not (hasattr(value, "mask") and hasattr(value, "filled")):
        return 0
    import numpy as np  # start-up time: records without arrays do without

    if not isinstance(value, np.ma.MaskedArray):
        return 0
    mask = np.ascontiguousarray(np.ma.getmaskarray(value))
    return int(mask.reshape(-1).view(bool).sum())  # of records, one for each field
