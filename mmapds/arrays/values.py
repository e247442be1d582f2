"""Pack the values of a record into bytes for an array file, and infer schemas from values."""

import enum
import json
import operator
import struct
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from typing import Any

from .. import _native
from ..errors import FormatError, shortened
from .schema import ALIGNMENT, EXTENDED, ITEM_BYTES, MAX_DIMS, Field, Schema, dtype_name

_ROUND = {"float16": "<e", "float32": "<f", "float64": "<d"}
_TEXTS = {str, bytes}
_WIDTH = {"b": 0, "i": 1, "u": 1, "f": 2, "c": 3}  # kinds of numbers, the narrowest first: each holds those before it


def pack(schema: Schema, record: Mapping[str, Any], out: bytearray) -> list[float]:
    """Append a record to `out`, and return the numbers of its columns.

    The size of `out` is a multiple of 64 bytes, before and after. Raises FormatError, and appends nothing, if the
    record does not fit.
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
        out.extend(array)  # the bytes of the array
    out += bytes(-(len(out) - begin) % ALIGNMENT)
    return columns


def shown(value: Any) -> str:
    """Return a short description of a value, for messages."""
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        behind = " with a mask" if hasattr(value, "mask") else ""
        return f"{dtype_name(value.dtype)} of shape {tuple(value.shape)}{behind}"
    if isinstance(value, int | float | str | list | tuple):
        return f"{type(value).__name__} {shortened(value, 40)}"
    return "null" if value is None else type(value).__name__


def _unfit(field: Field, value: Any) -> FormatError:
    return FormatError(f"field {field.name!r}: expected {field}, found {shown(value)}")


# ---- text and JSON --------------------------------------------------------------------------------------------------


def as_bytes(field: Field, value: Any) -> bytes | memoryview:
    """Return the stored bytes of a value of text, bytes or JSON; FormatError if it does not fit."""
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
        return _as_json(field, value)
    raise _unfit(field, value)


def _as_json(field: Field, value: Any) -> bytes:
    import orjson  # start-up time: only JSON fields need it

    try:
        text = orjson.dumps(value, _unnamed, orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_PASSTHROUGH_DATACLASS)
        if b"null" in text:  # orjson writes NaN and infinity as null
            json.dumps(value, allow_nan=False, default=_simple)
    except TypeError as error:
        raise FormatError(
            f"field {field.name!r}: expected what JSON can hold, found {shown(value)} ({error})"
        ) from None
    except ValueError:
        raise FormatError(
            f"field {field.name!r}: expected finite numbers, found NaN or infinity, which JSON cannot hold"
        ) from None
    return text


def _unnamed(value: Any) -> Any:
    """Return a named tuple as a list, for orjson."""
    if isinstance(value, tuple):
        return [*value]
    raise TypeError(f"no JSON for {shown(value)}")


def _simple(value: Any) -> Any:
    """Convert a value that orjson accepts and json does not; exact for numbers only."""
    if isinstance(value, enum.Enum):
        return value.value
    return value.tolist() if hasattr(value, "tolist") else str(value)


# ---- numbers and arrays ---------------------------------------------------------------------------------------------


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
    except (TypeError, ValueError, OverflowError, RuntimeError):  # RuntimeError: a tensor of several numbers
        raise _unfit(field, value) from None
    bits = 1 if field.type == _native.FIELD_BOOL else 8 * ITEM_BYTES[field.dtype]
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1)) if field.type == _native.FIELD_INT else (0, 2**bits)
    if not low <= number < high:
        raise _unfit(field, value)
    return number


def _is_integer(value: Any) -> bool:
    """Return whether a value is an integer, of Python or of a library."""
    try:
        operator.index(value)
    except TypeError:
        return False
    return True


def _as_array(field: Field, value: Any) -> Any:
    """Return a value as a contiguous little-endian array that fits the field."""
    import numpy as np  # start-up time: only arrays need it

    shape = field.shape or ()
    array = as_array(value)
    if array is not None:
        if dtype_name(value.dtype) != field.dtype:
            raise _unfit(field, value)
    elif isinstance(value, list | tuple) and field.dtype not in EXTENDED:  # a list has no dtype of its own
        array = list_as_array(value)
        array = cast(array, field.dtype) if array is not None and _is_exact(value, array, field.dtype) else None
        if array is not None and array.size == 0:
            array = array.reshape(with_axes_of((*array.shape, *[0] * (len(shape) - array.ndim)), shape))
    if array is None:
        raise _unfit(field, value)
    if array.ndim != len(shape) or any(axis not in (None, size) for axis, size in zip(shape, array.shape, strict=True)):
        raise _unfit(field, array if isinstance(value, list | tuple) else value)
    return np.asarray(array, order="C", dtype=array.dtype.newbyteorder("<"))


def with_axes_of(shape: Sequence[int], wanted: Sequence[int | None]) -> tuple[int, ...]:
    """Return the shape of an empty array, with lengths 0 after its first empty axis replaced by wanted ones.

    An array made of empty lists has length 0 there, because the lists do not show the inner shape.
    """
    if 0 not in shape or len(shape) != len(wanted):
        return tuple(shape)
    known = shape.index(0) + 1
    return (*shape[:known], *(size or axis or 0 for size, axis in zip(shape[known:], wanted[known:], strict=True)))


def as_array(value: Any) -> Any:
    """Return the NumPy array of an array or a tensor, sharing its memory; None for anything else.

    Elements of a dtype that NumPy lacks become integers of the same size.
    """
    import numpy as np  # start-up time: only arrays need it

    if isinstance(value, np.generic):
        value = np.asarray(value)
    if masked_count(value):
        return None  # a masked entry has no value
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
    import numpy as np  # start-up time: only arrays need it

    first = value
    while isinstance(first, list | tuple) and first:
        if not _TEXTS.isdisjoint(map(type, first)):  # NumPy would pad each text to the longest
            return None
        first = first[0]
    try:
        array = np.asarray(value)
        if array.dtype.kind == "f" and (np.abs(array) >= 2**63).any():
            items = np.array(value, object)
            if all(map(_is_integer, items.flat)):
                array = items.astype(np.uint64)  # NumPy makes floats of integers on both sides of 2**63
    except (TypeError, ValueError, OverflowError, RuntimeError):  # RuntimeError: a tensor that needs a gradient
        return None
    return array if array.dtype.kind in "biufc" and _is_exact(value, array, array.dtype) else None


def _is_exact(value: Any, array: Any, dtype: Any) -> bool:
    """Return whether `dtype` holds all integers of a list exactly; `array` was made of the list."""
    import numpy as np  # start-up time: only arrays need it

    to = np.dtype(dtype)
    if array.dtype.kind not in "fc" or to.kind not in "fc":
        return True
    to = np.empty(0, to).real.dtype
    if not (np.abs(array) >= 2 ** (np.finfo(to).nmant + 1)).any():
        return True
    integers = filter(_is_integer, np.array(value, object).flat)
    with np.errstate(over="ignore"):
        return all(float(to.type(item)) == operator.index(item) for item in integers)


def cast(array: Any, dtype: Any) -> Any:
    """Cast numbers to a dtype. None for other arrays, and if more than the precision of fractions is lost."""
    import numpy as np  # start-up time: only arrays need it

    if array.dtype.kind not in _WIDTH or dtype in EXTENDED:
        return None
    to = np.dtype(dtype)
    if array.dtype == to or array.size == 0:
        return array.astype(to, copy=False)
    if _WIDTH[array.dtype.kind] > _WIDTH.get(to.kind, _WIDTH["f"]):  # `get`, as bfloat16 is of ml_dtypes
        return None
    if to.kind in "iu" and array.dtype.kind in "iu":
        limits = np.iinfo(to)
        return array.astype(to) if limits.min <= int(array.min()) and int(array.max()) <= limits.max else None
    with np.errstate(over="ignore", invalid="ignore"):
        converted = array.astype(to)
        if to.kind not in "biu" and (np.isfinite(array) > np.isfinite(converted)).any():
            return None
        if to.kind in "fc" and array.dtype.kind in "iu":
            beyond = converted.real >= (2.0**63 if array.dtype.kind == "i" else 2.0**64)  # cannot be cast back
            if beyond.any() or not (converted.real.astype(array.dtype) == array).all():
                return None
    return converted


def masked_count(value: Any) -> int:
    """Return the number of masked entries of a value; 0 without a mask."""
    # Avoid the name `np.ma`: it starts a lazy import, which can deadlock in a forked process.
    if not (hasattr(value, "mask") and hasattr(value, "filled")):
        return 0
    import numpy as np  # start-up time: only arrays need it

    return int(np.count_nonzero(np.ma.getmaskarray(value))) if isinstance(value, np.ma.MaskedArray) else 0


# ---- types of values ------------------------------------------------------------------------------------------------

_NULL, _EMPTY = "null", ("null", (None,))  # types of null and of an empty list: they join with other types
_PYTHON = {bool: "bool", int: "int64", float: "float64", bytes: "bytes", str: "str", dict: "json", type(None): _NULL}


class Inference:
    """Infers a schema that fits all given records.

    The first axis of an array is ragged, and so is any axis whose length differs between records. A field whose values
    have several types becomes "json", if JSON can hold them.

    Args:
      nulls: whether a field that is missing or null in some records becomes "json" too. If not, it is ignored.
      defaults: fields with a default, for which missing values and nulls are ignored.
    """

    def __init__(self, *, nulls: bool = True, defaults: Container[str] = ()) -> None:
        self._nulls, self._defaults = nulls, defaults
        self._count = 0
        self._present = Counter[str]()  # number of records with a value, by field
        self._found: dict[str, Any] = {}

    def add(self, record: Mapping[str, Any]) -> None:
        """Add a record; FormatError if no type holds a value, or no single type holds all values of a field."""
        if not isinstance(record, Mapping):
            raise FormatError(f"expected a dict of fields, found {shown(record)}")
        for name, value in record.items():
            inferred = _inferred(name, value)
            self._found[name] = _joined(name, self._found.get(name, inferred), inferred)
            self._present[name] += value is not None
        self._count += 1

    def described(self) -> dict[str, Any]:
        """Return the schema, as `Schema` takes it."""
        described = dict(self._found)
        for name, what in self._found.items():
            lacks = self._nulls and name not in self._defaults and self._present[name] < self._count
            if _NULL in (what, what[0]) or (lacks and _is_in_json(what)):  # so that writing accepts a missing value
                described[name] = "json"
        return described


def common_type(one: Any, other: Any) -> Any:
    """Return the schema type that holds numbers or arrays of two types; None if there is none."""
    if one == other or other == _NULL:
        return one
    if one == _NULL:
        return other
    if isinstance(one, tuple) and isinstance(other, tuple):
        dtype = common_type(one[0], other[0]) if len(one[1]) == len(other[1]) else None
        return dtype and (dtype, tuple(a if a == b else None for a, b in zip(one[1], other[1], strict=True)))
    if isinstance(one, tuple) or isinstance(other, tuple):
        return None
    kinds = {one[0], other[0]}
    if not kinds <= set("iufc") or not {one, other} <= ITEM_BYTES.keys() - EXTENDED.keys():
        return None
    import numpy as np  # start-up time: only arrays need it

    found = np.promote_types(one, other)
    return None if found.kind == "f" and "f" not in kinds else found.name  # integers never become floats


def _joined(name: Any, one: Any, other: Any) -> Any:
    """Return the type that holds values of two types; FormatError if none does."""
    if isinstance(one, tuple) and isinstance(other, tuple) and _EMPTY in (one, other):
        return other if one == _EMPTY else one
    if (found := common_type(one, other)) is not None:
        return found
    if not (_is_in_json(one) and _is_in_json(other)):
        raise FormatError(f"field {name!r}: expected one type in all records, found {one} and {other}")
    return "json"


def _is_in_json(what: Any) -> bool:
    """Return whether JSON can hold the values of a type."""
    dtype = what[0] if isinstance(what, tuple) else what
    return dtype != "bytes" and dtype not in EXTENDED and not dtype.startswith("complex")


def _inferred(name: Any, value: Any) -> Any:
    if type(value) is int and not -(2**63) <= value < 2**63:
        return "uint64" if 0 <= value < 2**64 else "json"
    if type(value) in _PYTHON:
        return _PYTHON[type(value)]
    if isinstance(value, list):
        array = list_as_array(value)
        if array is None or array.ndim > MAX_DIMS:
            return "json"
        return array.dtype.name if array.size else _NULL, (None, *array.shape[1:])
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        dtype = dtype_name(value.dtype)
        if value.shape:
            return dtype, (None, *value.shape[1:])
        return (dtype, ()) if dtype in EXTENDED or dtype.startswith("complex") else dtype
    raise FormatError(
        f"field {name!r}: expected a number, text, bytes, a list, a dict or an array, found {shown(value)}"
    )
