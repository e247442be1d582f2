"""Schemas of records: the names and types of their fields. See docs/array-file.md."""

import math
import operator
import re
import struct
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from functools import cache
from typing import Any

from .. import _native
from ..errors import FormatError, shortened
from ..storage.numbers import BY_CELL

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
"""Bytes of an element, by dtype of an array."""
NUMBERS = [name for name in ITEM_BYTES if not name.startswith(("complex", "float8"))]
"""The dtypes that JSON fields and batches may have."""
EXTENDED = {"bfloat16": "int16", "float8_e4m3fn": "int8", "float8_e5m2": "int8"}
"""Dtypes that NumPy has only with ml_dtypes, and an integer dtype of the same size."""
_TEXT = {"bytes": _native.FIELD_BYTES, "str": _native.FIELD_STR, "json": _native.FIELD_JSON}
_FIELDS = {"b": _native.FIELD_BOOL, "u": _native.FIELD_UINT, "i": _native.FIELD_INT, "f": _native.FIELD_FLOAT}
_NUMBER_TYPES = {_native.FIELD_INT: _native.NUMBER_I64, _native.FIELD_FLOAT: _native.NUMBER_F64}
MAX_DIMS = 8
ALIGNMENT = 64
"""Records, and arrays in them, begin at multiples of this number of bytes."""
_NAME = re.compile(r"[^()\\]+")


class Field:
    """A named part of every record.

    Args:
      dtype: "bytes", "str", "json", or the dtype of a number or of the elements of an array.
      shape: the lengths of the axes of an array, None for a ragged axis. None if the field is not an array.
    """

    def __init__(self, name: str, dtype: str, shape: tuple[int | None, ...] | None) -> None:
        self.name = name
        self.dtype = dtype
        self.shape = shape
        self.type = _native.FIELD_ARRAY if shape is not None else _TEXT.get(dtype) or _FIELDS[dtype[0]]
        """The type of the field in the native core."""
        self.is_scalar = self.type in _FIELDS.values()
        """Whether the field is a single number."""
        self.ragged = tuple(axis for axis, length in enumerate(shape or ()) if length is None)
        """The axes of any length."""
        self.column = name if self.is_scalar else f"{name}_length" if 0 in self.ragged else None
        """The column for the number, or for the length of a ragged first axis; else None."""
        self.number_type = _NUMBER_TYPES.get(self.type, _native.NUMBER_U64)
        """How the column stores a number in 64 bits."""

    @property
    def expression(self) -> str:
        """The column expression for `column`, as `python -m mmapds.index` takes it."""
        name = self.name.replace(".", r"\.")
        return name if self.is_scalar else f"items({name})"

    @property
    def gives_lengths(self) -> bool:
        """Whether the column can be the lengths for token budgets."""
        return self.column is not None and self.type not in (_native.FIELD_BOOL, _native.FIELD_FLOAT)

    def __str__(self) -> str:
        return self.dtype if self.shape is None else f"{self.dtype} of shape {self.shape}"


class Schema:
    """The fields of a file, in their order.

    Args:
      given: name to "bytes", "str", "json", the dtype of a number ("int64", "float32", "bool", ...), or (dtype, shape)
        for arrays; None in a shape means a ragged axis.
    """

    def __init__(self, given: Mapping[str, Any]) -> None:
        if not isinstance(given, Mapping):
            raise FormatError(f"schema = {shortened(given)}, expected a dict of field name to type")
        self.fields = tuple(_field(name, what) for name, what in given.items())
        columns = Counter(field.column for field in self.fields if field.column)
        for name, count in columns.items():
            if count > 1:
                raise FormatError(f"schema: expected one field for column {name!r}, found {count}; rename one")
        self.names = {field.name for field in self.fields}
        """The names of the fields."""
        counts = (1 if field.shape is None else len(field.ragged) for field in self.fields)
        words = (BY_CELL[field.number_type].code * count for field, count in zip(self.fields, counts, strict=True))
        self.table = struct.Struct("<Q" + "".join(words))
        """The layout of the 64-bit words at the start of a record."""

    def describe(self) -> dict[str, Any]:
        """Return the schema as a dict for JSON."""
        return {
            field.name: field.dtype if field.shape is None else [field.dtype, list(field.shape)]
            for field in self.fields
        }

    def native(
        self, dtype: Callable[[str], Any], make_array: Any, loads: Any, copied: Collection[str] = ()
    ) -> _native.ArrayFields:
        """Return the native reader of records. The arrays of fields in `copied` are copies; others are views."""
        fields = tuple(
            (
                field.name,
                _native.FIELD_COPY if field.name in copied else field.type,
                ITEM_BYTES.get(field.dtype, 1),
                field.shape or (),
                dtype(field.dtype),
            )
            if field.shape is not None
            else (field.name, field.type, 1, (), None)
            for field in self.fields
        )
        return _native.ArrayFields(fields, make_array, loads, FormatError)


def _field(name: Any, what: Any) -> Field:
    if not isinstance(name, str) or not _NAME.fullmatch(name) or not name.isprintable():
        raise FormatError(
            f"schema: {name!r} is not a valid field name: expected printable text without parentheses and backslashes"
        )
    place = f"schema[{name!r}] = {shortened(what)}"
    if isinstance(what, str):
        if what in _TEXT or (what in ITEM_BYTES and what not in EXTENDED and what[0] != "c"):
            return Field(name, what, None)
        raise FormatError(
            f"{place}, expected 'bytes', 'str', 'json', a number type such as 'int64' or 'float32', or (dtype, shape)"
        )
    try:
        dtype, shape = what
        dtype = dtype if isinstance(dtype, str) else dtype_name(dtype)
    except (TypeError, ValueError):
        raise FormatError(f"{place}, expected a type or (dtype, shape)") from None
    if dtype not in ITEM_BYTES:
        raise FormatError(f"{place}, expected a dtype among {', '.join(ITEM_BYTES)}")
    return Field(name, dtype, checked_axes(place, shape, ITEM_BYTES[dtype]))


def checked_axes(place: str, shape: Any, item_bytes: int) -> tuple[int | None, ...]:
    """Return a valid shape as a tuple, None for ragged axes; raise FormatError for an impossible one."""
    try:
        axes = tuple(axis if axis is None else operator.index(axis) for axis in shape)
    except TypeError:
        raise FormatError(f"{place}, expected a shape, such as (None, 80)") from None
    if len(axes) > MAX_DIMS or any(axis is not None and not 0 <= axis < 2**31 for axis in axes):
        raise FormatError(f"{place}, expected up to {MAX_DIMS} axes, each None or 0 to 2^31 - 1")
    if item_bytes * math.prod(axis or 1 for axis in axes) >= 2**63:  # array libraries refuse it, even without elements
        raise FormatError(f"{place}, expected axes of less than 2^63 bytes together")
    return axes


@cache
def dtype_name(dtype: Any) -> str:
    """Return the name of a dtype of NumPy, ml_dtypes or torch."""
    return str(getattr(dtype, "name", None) or dtype).removeprefix("torch.")


def unsupported(place: str, found: object) -> FormatError:
    """Return the error for a field whose type array files lack."""
    return FormatError(f"{place}: expected numbers, text, bytes, or arrays or structs of these, found {found}")
