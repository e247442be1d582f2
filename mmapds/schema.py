"""Schemas of records of named arrays: what fields they have, whether a record fits, and its bytes: docs/arrays.md."""

import json
import math
import operator
import re
import struct
from collections.abc import Callable, Iterable, Mapping
from functools import cache, cached_property
from typing import Any

from . import _native
from .errors import FormatError

ITEM_BYTES = {
    "bool": 1,
    **{f"{kind}{8 * size}": size for kind in ("int", "uint") for size in (1, 2, 4, 8)},
    **{f"float{8 * size}": size for size in (2, 4, 8)},
    "complex64": 8,
    "complex128": 16,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
}
"""dtype of an array to the bytes of an element."""

EXTENDED = {"bfloat16": "int16", "float8_e4m3fn": "int8", "float8_e5m2": "int8"}
"""Those that NumPy has only with ml_dtypes, and what it shows their memory as without."""

_TEXT = {"bytes": _native.FIELD_BYTES, "str": _native.FIELD_STR, "json": _native.FIELD_JSON}
_NUMBERS = {"b": _native.FIELD_BOOL, "u": _native.FIELD_UINT, "i": _native.FIELD_INT, "f": _native.FIELD_FLOAT}
_NUMBER_TYPES = {_native.FIELD_INT: _native.NUMBER_I64, _native.FIELD_FLOAT: _native.NUMBER_F64}
_PYTHON = {bool: "bool", int: "int64", float: "float64", bytes: "bytes", str: "str", dict: "json"}
_ROUND = {"float16": "<e", "float32": "<f", "float64": "<d"}
_WIDTH = {"b": 0, "i": 1, "u": 1, "f": 2, "c": 3}  # kinds of numbers, each of which holds those before
_NULL, _EMPTY = "null", ("null", (None,))  # of values that do not tell their type
_IN_JSON = {_NULL, "bool", "int64", "uint64", "float64", "str", "json"}
_DIMS = 8
_NAME = re.compile(r"[^()\\]+")
_ALIGNMENT = 64


class Field:
    """A named part of every record.

    Args:
      dtype: "bytes", "str", "json", or that of a number or of an array's elements.
      shape: of an array, None standing for a ragged axis; of anything else None.
    """

    def __init__(self, name: str, dtype: str, shape: tuple[int | None, ...] | None) -> None:
        self.name = name
        self.dtype = dtype
        self.shape = shape

    @cached_property
    def type(self) -> int:
        """What the core makes of it."""
        if self.shape is not None:
            return _native.FIELD_ARRAY
        if self.dtype in _TEXT:
            return _TEXT[self.dtype]
        return _NUMBERS[self.dtype[0]]

    @cached_property
    def is_scalar(self) -> bool:
        """Whether it is one number."""
        return self.type <= _native.FIELD_BOOL

    @cached_property
    def ragged(self) -> tuple[int, ...]:
        """Its axes that may have any length."""
        return tuple(axis for axis, length in enumerate(self.shape or ()) if length is None)

    @cached_property
    def column(self) -> str | None:
        """The column that holds it, or its first length where that differs between records."""
        if self.is_scalar:
            return self.name
        return f"{self.name}_length" if self.shape and self.shape[0] is None else None

    @property
    def expression(self) -> str:
        """What `python -m mmapds.index` calls what the column holds."""
        name = self.name.replace(".", r"\.")
        return name if self.is_scalar else f"items({name})"

    @cached_property
    def number_type(self) -> int:
        """How to read the 64 bits of its number."""
        return _NUMBER_TYPES.get(self.type, _native.NUMBER_U64)

    def __str__(self) -> str:
        return self.dtype if self.shape is None else f"{self.dtype} of shape {self.shape}".replace(",)", ",)")


class Schema:
    """The fields of a file, in their order.

    Args:
      given: name to "bytes", "str", "json", the dtype of a number ("int64", "float32", "bool", ...), or (dtype, shape)
        for arrays, in whose shape None stands for a ragged axis.
    Raises:
      FormatError: it cannot be understood.
    """

    def __init__(self, given: Mapping[str, Any]) -> None:
        if not isinstance(given, Mapping):
            raise FormatError(f"schema = {given!r}, expected a dict of field name to type")
        self.fields = tuple(_field(name, what) for name, what in given.items())
        columns = [field.column for field in self.fields if field.column]
        for name in columns:
            if columns.count(name) > 1:
                raise FormatError(f"schema: two fields would fill the column {name!r}; rename one")

    @classmethod
    def of(cls, records: Iterable[Mapping[str, Any]], *, nulls: bool = True) -> "Schema":
        """Infer a schema that records fit: the first axis of their arrays is ragged, and every other that differs.

        What differs in more than that is "json", if JSON can hold it; with `nulls`, so is what some have null or lack.

        Raises:
          FormatError: a field has a value that does not tell, or values that no type holds.
        """
        found: dict[str, Any] = {}
        only_null: dict[str, Any] = {}
        for number, record in enumerate(records):
            if not isinstance(record, Mapping):
                raise FormatError(f"found {_shown(record)}, expected a dict of fields")
            if nulls:
                for name in found.keys() - record.keys():
                    found[name] = _joined(name, found[name], _NULL)
            for name, value in record.items():
                if value is not None or nulls:
                    inferred = _inferred(name, value)
                    before = found.get(name, _NULL if number and nulls else inferred)
                    found[name] = _joined(name, before, inferred)
                else:
                    only_null[name] = _NULL
        described = found | {name: what for name, what in only_null.items() if name not in found}
        return cls({name: "json" if _is_untold(what) else what for name, what in described.items()})

    def describe(self) -> dict[str, Any]:
        """Return the schema as JSON holds it."""
        return {
            field.name: field.dtype if field.shape is None else [field.dtype, list(field.shape)]
            for field in self.fields
        }

    def native(self, dtype: Callable[[str], Any], make_array: Any, loads: Any) -> _native.ArrayFields:
        """Return what reads records; `dtype` makes array types of their names."""
        fields = tuple(
            (field.name, field.type, ITEM_BYTES.get(field.dtype, 1), field.shape or (), dtype(field.dtype))
            if field.shape is not None
            else (field.name, field.type, 1, (), None)
            for field in self.fields
        )
        return _native.ArrayFields(fields, make_array, loads, FormatError)

    @cached_property
    def _table(self) -> struct.Struct:
        """The words that a record begins with."""
        codes = {_native.FIELD_INT: "q", _native.FIELD_FLOAT: "d"}
        words = (
            "Q" * len(field.ragged) if field.shape is not None else codes.get(field.type, "Q") for field in self.fields
        )
        return struct.Struct("<Q" + "".join(words))

    @cached_property
    def _names(self) -> set[str]:
        return {field.name for field in self.fields}

    def pack(self, record: Mapping[str, Any], out: bytearray) -> list[float]:
        """Append a record to `out`, whose size is a multiple of 64 before and after; return the numbers of its columns.

        Raises:
          FormatError: the record does not fit; nothing was appended.
        """
        if not isinstance(record, Mapping):
            raise FormatError(f"found {_shown(record)}, expected a dict of fields")
        if record.keys() != self._names:
            missing = [name for name in self._names if name not in record]
            extra = [name for name in record if name not in self._names]
            raise FormatError(
                f"{f'lacks field {missing[0]!r}' if missing else f'has a field {extra[0]!r}'}; "
                f"expected {', '.join(repr(field.name) for field in self.fields)}"
            )
        words: list[float] = [0]
        runs: list[Any] = []
        arrays: list[Any] = []
        columns: list[float] = []
        for field in self.fields:
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
                runs.append(_as_bytes(field, value))
                words.append(len(runs[-1]))
        begin = len(out)
        size = 8 * len(words) + sum(map(len, runs))
        for array in arrays:
            size += -size % _ALIGNMENT + array.nbytes
        words[0] = size
        out += self._table.pack(*words)
        for run in runs:
            out += run
        for array in arrays:
            out += bytes(-(len(out) - begin) % _ALIGNMENT)
            out.extend(array)  # its bytes
        out += bytes(-(len(out) - begin) % _ALIGNMENT)
        return columns


def _field(name: Any, what: Any) -> Field:
    if not isinstance(name, str) or not _NAME.fullmatch(name) or not name.isprintable():
        raise FormatError(
            f"schema: {name!r} is no name of a field; expected printable text without parentheses and backslashes"
        )
    if isinstance(what, str):
        if what in _TEXT or (what in ITEM_BYTES and what not in EXTENDED and what[0] != "c"):
            return Field(name, what, None)
        raise FormatError(
            f"schema: field {name!r} has type {what!r}; expected 'bytes', 'str', 'json', a number type such as 'int64' "
            "or 'float32', or (dtype, shape) for arrays"
        )
    try:
        dtype, shape = what
        dtype = dtype if isinstance(dtype, str) else dtype_name(dtype)
        axes = tuple(axis if axis is None else operator.index(axis) for axis in shape)
    except (TypeError, ValueError):
        raise FormatError(f"schema: field {name!r} is {what!r}; expected a type or (dtype, shape)") from None
    if dtype not in ITEM_BYTES:
        raise FormatError(f"schema: field {name!r} has dtype {dtype!r}; expected one of {', '.join(ITEM_BYTES)}")
    if len(axes) > _DIMS or any(axis is not None and not 0 <= axis < 2**31 for axis in axes):
        raise FormatError(f"schema: field {name!r} has shape {axes}; expected up to {_DIMS} axes of 0 to 2^31, or None")
    return Field(name, dtype, axes)


def _is_untold(what: Any) -> bool:
    return bool(what == _NULL or what[0] == _NULL)


def _inferred(name: Any, value: Any) -> Any:
    if type(value) is int and not -(2**63) <= value < 2**63:
        return "uint64" if 0 <= value < 2**64 else "json"
    if type(value) in _PYTHON:
        return _PYTHON[type(value)]
    if value is None:
        return _NULL
    if isinstance(value, list):
        array = _listed(value)
        if array is None or array.ndim > _DIMS:
            return "json"
        return array.dtype.name if array.size else _NULL, (None, *array.shape[1:])
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        dtype = dtype_name(value.dtype)
        if value.shape:
            return dtype, (None, *value.shape[1:])
        return (dtype, ()) if dtype in EXTENDED or dtype.startswith("complex") else dtype
    raise FormatError(f"field {name!r}: found {_shown(value)}, whose type does not tell how to store it; give a schema")


def _joined(name: Any, one: Any, other: Any) -> Any:
    """The type of what has values of two types.

    Raises:
      FormatError: there is none.
    """
    if one == other or (other == _NULL and one not in _IN_JSON):
        return one  # and a record without it is told when it comes
    if one == _NULL and other not in _IN_JSON:
        return other
    if {one, other} == {"int64", "float64"}:
        return "float64"
    arrays = [what for what in (one, other) if isinstance(what, tuple)]
    if _EMPTY in arrays and len(arrays) == 2:
        return one if other == _EMPTY else other
    if len(arrays) == 2:
        told = [what[0] for what in arrays if what[0] != _NULL] or [_NULL]
        dtype = _joined(name, told[0], told[-1])
        if (dtype in ITEM_BYTES or dtype == _NULL) and len(one[1]) == len(other[1]):
            return dtype, tuple(a if a == b else None for a, b in zip(one[1], other[1], strict=True))
    if "bytes" in (one, other):
        raise FormatError(
            f"field {name!r}: found bytes in some records and {one if other == 'bytes' else other} in others"
        )
    return "json"


@cache
def dtype_name(dtype: Any) -> str:
    """The name of a dtype of NumPy's, ml_dtypes' or torch's."""
    return str(getattr(dtype, "name", None) or dtype).removeprefix("torch.")


def _shown(value: Any) -> str:
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"{dtype_name(value.dtype)} of shape {tuple(value.shape)}"
    if isinstance(value, int | float | str | list | tuple):
        return f"{type(value).__name__} {value!r:.40}"
    return "null" if value is None else type(value).__name__


def _unfit(field: Field, value: Any) -> FormatError:
    return FormatError(f"field {field.name!r}: found {_shown(value)}, expected {field}")


def _as_bytes(field: Field, value: Any) -> bytes | memoryview:
    if field.type == _native.FIELD_STR and isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise FormatError(f"field {field.name!r}: found text that is not Unicode: {error}") from None
    if field.type == _native.FIELD_BYTES and isinstance(value, bytes | bytearray | memoryview):
        view = memoryview(value)
        return view.cast("B") if view.c_contiguous and view.nbytes else view.tobytes()
    if field.type == _native.FIELD_JSON:
        import orjson

        try:
            text = orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
        except TypeError as error:
            raise FormatError(f"field {field.name!r}: found {_shown(value)}, which is not JSON: {error}") from None
        if b"null" in text and not _is_finite(value):  # which orjson writes as null
            raise FormatError(f"field {field.name!r}: found a number that is not finite, which JSON has not")
        return text
    raise _unfit(field, value)


def _is_finite(value: Any) -> bool:
    """Whether all numbers in a value are finite, as those of JSON are."""
    if isinstance(value, Mapping):
        return all(map(_is_finite, value.values()))
    if isinstance(value, list | tuple):
        return all(map(_is_finite, value))
    if isinstance(value, float):
        return math.isfinite(value)
    if getattr(getattr(value, "dtype", None), "kind", "") == "f":
        import numpy as np

        return bool(np.isfinite(value).all())
    return True


def _as_number(field: Field, value: Any) -> float:
    try:
        if field.type == _native.FIELD_FLOAT:
            if isinstance(value, str | bytes):
                raise TypeError
            layout = _ROUND[field.dtype]
            rounded: float = struct.unpack(layout, struct.pack(layout, float(value)))[0]
            if isinstance(value, int) and rounded != value:
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
    """A contiguous little-endian array that fits the field."""
    import numpy as np

    found = _memory(value)
    array = _listed(value) if found is None and isinstance(value, list | tuple) else found
    if array is None:
        raise _unfit(field, value)
    wanted = EXTENDED.get(field.dtype, field.dtype)
    if found is None and array.size == 0 and field.shape and field.shape[0] is None and array.ndim == 1:
        array = array.reshape(0, *(axis or 0 for axis in field.shape[1:]))  # an empty list has no axes of its own
    if found is None:  # a list has no dtype of its own
        array = cast(array, wanted) if field.dtype not in EXTENDED else None
    elif dtype_name(value.dtype) != field.dtype:
        array = None
    fits = array is not None and array.ndim == len(field.shape or ())
    if not fits or any(axis not in (None, size) for axis, size in zip(field.shape or (), array.shape, strict=True)):
        raise _unfit(field, value if found is not None or array is None else array)
    return np.asarray(array, order="C", dtype=_little(array.dtype))


@cache
def _little(dtype: Any) -> Any:
    return dtype.newbyteorder("<")


def _memory(value: Any) -> Any:
    """An array of numpy's, or the memory of a tensor; numbers that numpy lacks are shown as integers of their size."""
    import numpy as np

    if isinstance(value, np.generic):
        value = np.asarray(value)
    if isinstance(value, np.ndarray):
        shown = EXTENDED.get(dtype_name(value.dtype))
        return value if shown is None else np.ascontiguousarray(value).reshape(value.shape).view(shown)
    if not (hasattr(value, "detach") and hasattr(value, "numpy")):
        return None
    import torch

    try:
        tensor = value.detach().cpu().resolve_conj().resolve_neg()
        name = dtype_name(tensor.dtype)
        if name in EXTENDED:
            tensor = tensor.contiguous().view(getattr(torch, EXTENDED[name]))
        return tensor.numpy()
    except (RuntimeError, TypeError, NotImplementedError):  # sparse, quantized, without memory
        return None


def _listed(value: Any) -> Any:
    """A list of numbers, at any depth, as an array; None if it is none."""
    import numpy as np

    try:
        array = np.asarray(value)
    except (TypeError, ValueError, OverflowError):
        return None
    if array.dtype.kind == "f" and array.size and np.abs(array).max() >= 2**53 and not _is_exact(value):
        return None
    return array if array.dtype.kind in "biufc" else None


def _is_exact(value: Any) -> bool:
    """Whether the integers in a list are the same as floats."""
    if isinstance(value, list | tuple):
        return all(map(_is_exact, value))
    return not isinstance(value, int) or float(value) == value


def cast(array: Any, dtype: str) -> Any:
    """Numbers as another dtype; None where that would lose more than the last digits of fractions."""
    import numpy as np

    to = np.dtype(dtype)
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
            beyond = converted.real >= (2.0**63 if array.dtype.kind == "i" else 2.0**64)  # what no cast back may see
            if beyond.any() or not (converted.real.astype(array.dtype) == array).all():
                return None
    return converted


def parse(text: bytes) -> tuple[Schema, dict[str, str]]:
    """Read what a file says of its records: their schema, and the columns to index them with, name to expression.

    Raises:
      KeyError, TypeError, ValueError: it is not as specified.
    """
    described = json.loads(text)
    columns = described["columns"]
    if not all(isinstance(part, str) for pair in columns.items() for part in pair):
        raise TypeError("columns are not text")
    return Schema(described["schema"]), dict(columns)
