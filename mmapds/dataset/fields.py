"""`Fields`: chosen fields of records, made into arrays by the core without a Python object for each number."""

from __future__ import annotations  # help() shows them as they are written

import operator
import re
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import orjson

from .. import _native
from ..arrays.schema import ITEM_BYTES, check_axes, dtype_name
from ..errors import DecodeError, FormatError, did_you_mean, shortened
from ..formats.measuring import keys_of
from ..formats.unmeasured import instead, kind_of, nearest_path, not_json, parsed, value_at, written
from .batch import Columns, StoredField, numpy_dtype

_KINDS = {
    "b": _native.ITEM_BOOL,
    "i": _native.ITEM_INT,
    "u": _native.ITEM_UINT,
    "f": _native.ITEM_FLOAT,
}
_DTYPES = [name for name in ITEM_BYTES if name[0] in _KINDS and not name.startswith("float8")]
"""The dtypes that fields have, bfloat16 among them."""
_RAGGED = "ragged"
_NUMBER = re.compile(rb"[-+.0-9eE]+")
_LONGEST_NUMBER = 80  # characters that are shown

Shape = tuple[int | None, ...]


class Wanted(NamedTuple):
    """A field that is wanted."""

    name: str
    """As the user wrote it: the path, which is also its name in a sample."""
    keys: tuple[bytes, ...]
    dtype: str
    """"str", or the dtype of its numbers."""
    layout: int
    """One of _native.LAYOUT_*."""
    shape: Shape
    fallback: bytes | None
    """JSON to read where a record lacks the field."""

    @property
    def kind(self) -> int:
        """What its items are: one of _native.ITEM_*."""
        if self.dtype == "bfloat16":
            return _native.ITEM_BFLOAT
        return _native.ITEM_TEXT if self.dtype == "str" else _KINDS[self.dtype[0]]

    @property
    def path(self) -> list[str]:
        """The keys that lead to it."""
        return [key.decode() for key in self.keys]

    @property
    def without_default(self) -> str:
        """What is expected where the field is missing, as messages say it."""
        return f"{self} at `{self.name}`, which has no default (Fields takes defaults={{{self.name!r}: ...}})"

    def __str__(self) -> str:
        if self.layout == _native.LAYOUT_ANY:
            return "a string" if self.dtype == "str" else self.dtype
        return (
            f"lists of {self.dtype}" if self.layout == _native.LAYOUT_RAGGED else f"{self.dtype} of shape {self.shape}"
        )


class FieldsReader(Columns):
    """Reads fields of JSON records by the core.

    Args:
      wanted: the fields, in the order in which a sample has them.
    Raises:
      FormatError: a field lies inside another one.
    """

    def __init__(self, wanted: Sequence[Wanted]) -> None:
        self.wanted = {each.name: each for each in wanted}
        """The fields by name."""
        self.names = self.wanted.keys()
        self.ragged = {each.name for each in wanted if each.layout == _native.LAYOUT_RAGGED}
        ordered = sorted(wanted, key=lambda each: each.keys)
        for one, other in pairwise(ordered):
            if one.keys == other.keys[: len(one.keys)]:
                raise FormatError(f"schema: expected fields apart, found {other.name!r} inside {one.name!r}")
        super().__init__({each.name: each.dtype for each in wanted})
        self.identity = tuple(wanted)
        self._numbers = {each.name: number for number, each in enumerate(ordered)}
        places = {name: place for place, name in enumerate(self.wanted)}
        fields = tuple(
            (
                each.name,
                places[each.name],
                each.kind,
                ITEM_BYTES.get(each.dtype, 1),
                each.layout,
                each.shape,
                None if each.dtype == "str" else numpy_dtype(each.dtype),
                each.keys,
                each.fallback,
            )
            for each in ordered
        )
        self.native = _native.JsonFields(fields, np.ndarray, _RefusedError)

    def read(self, record: Any) -> dict[str, Any]:
        """Return the sample of a record.

        Raises:
          DecodeError: a field cannot be read; the message does not say where the record lies.
        """
        try:
            sample: dict[str, Any] = self.native(record)
        except _RefusedError as refused:
            raise DecodeError(self.reason(bytes(record), *refused.args)) from None
        return self.finished(sample)

    def stored(self, found: Any, name: str) -> StoredField | None:
        wanted, number = self.wanted[name], self._numbers[name]
        shaped = None if wanted.dtype == "str" or name in self.ragged else found.shapes(number)
        if shaped is None:
            return None
        axes, shapes = shaped
        if axes:
            return StoredField(found, number, wanted.dtype, None, np.frombuffer(shapes, np.int64).reshape(-1, axes))
        if wanted.dtype == "bfloat16":
            return None
        numbers = np.frombuffer(found.items(number), numpy_dtype(wanted.dtype))
        if wanted.layout != _native.LAYOUT_SHAPE and wanted.dtype != "bool":  # as of Python's numbers
            if wanted.dtype == "uint64" and numbers.max() >= 2**63:
                return None
            numbers = numbers.astype(np.float64 if numbers.dtype.kind == "f" else np.int64)
        return StoredField(found, number, wanted.dtype, numbers)

    def values(self, found: Any, name: str) -> list[Any]:
        return [self.finished_value(name, value) for value in found.values(self._numbers[name])]

    def reason(self, record: bytes, status: int, name: str | None, at: int) -> str:
        """Return why a record is refused, as messages say it.

        Args:
          status: one of _native.WANTED_*.
          name: of the field that it is refused for; None for the record itself.
          at: the byte of the record that shows it.
        """
        if status == _native.WANTED_INVALID:
            return not_json(record)
        kind = kind_of(record, at)
        if name is None:
            return f"expected an object, found {kind}"
        each, byte = self.wanted[name], f" at byte {at} of the record"
        if status == _native.WANTED_MISSING:
            value = parsed(record)
            near = nearest_path(value, each.keys)
            remark = f" (did you mean {written(near)!r})" if near != list(each.keys) else ""
            return f"expected {each.without_default}, found {instead(value, each.keys)}{remark}"
        if status == _native.WANTED_NOT_OBJECT:
            return f"expected {each} inside objects at `{name}`, found {kind}{byte}"
        if status == _native.WANTED_RAGGED:
            return f"expected lists of one length inside `{name}`, which is not 'ragged', found another{byte}"
        if status == _native.WANTED_SHAPE and kind == "an array":
            return f"expected {each} at `{name}`, found shape {_shape_of(value_at(parsed(record), each.keys))}{byte}"
        digits = _NUMBER.match(record, at)
        number = digits[0].decode() if digits else ""
        is_integer = number.removeprefix("-").isdigit()  # of any size: those beyond 64 bits are parsed as floats
        if len(number) > _LONGEST_NUMBER:
            number = f"{number[:_LONGEST_NUMBER]}..."
        fitting = "" if is_integer else _type_of(value_at(parsed(record), each.keys))
        remark = f" (its type is {fitting!r} here)" if fitting and fitting != each.dtype else ""
        return f"expected {each} at `{name}`, found {number or kind}{byte}{remark}"


class Fields:
    """A decoder of chosen fields: `mmapds.open(path, decode=Fields({"input_ids": "int32", "text": "str"}))`.

    A sample is a dict of these fields. The core reads them from the bytes of JSON records, those of a batch at once and
    without the GIL, and `pad_collate` fills its tensors from there; there is no Python object for a number. The same
    schema reads array files (`.mma`), so that code stays as it is when JSON is converted.

    Every record is checked from its first byte to its last, as by orjson. Integers are exact; floats are the nearest
    doubles, rounded to smaller types as NumPy and torch round them.

    Args:
      schema: path of a field to its type. Dots separate the keys of a path; a dot in a key is written `\\.`. Types are:

        - a dtype, "bool", "int8" to "uint64", "float16", "bfloat16", "float32" or "float64": a Python number where the
          record has a number, else an array of as many axes as the lists there have;
        - (dtype, shape): an array of that shape; None in it is an axis of any length;
        - (dtype, "ragged"): lists of any lengths in a list: a list of arrays;
        - "str": a string.
      defaults: name of a field to its value where a record lacks it or has null. Other fields must be there.
    Raises:
      FormatError: the schema or a default is invalid.
    """

    def __init__(self, schema: Mapping[str, Any], *, defaults: Mapping[str, Any] | None = None) -> None:
        if not isinstance(schema, Mapping):
            raise FormatError(f"schema = {schema!r}, expected a dict of field name to type")
        if defaults is not None and not isinstance(defaults, Mapping):
            raise FormatError(f"defaults = {defaults!r}, expected a dict of field name to value")
        self.given = dict(schema), dict(defaults or {})
        """The schema and the defaults."""
        for name in self.given[1]:
            if name not in schema:
                known = ", ".join(map(repr, schema)) or "none"
                raise FormatError(
                    f"defaults: expected fields among {known}, found {name!r}{did_you_mean(name, schema)}"
                )
        wanted = [_wanted(name, what, self.given[1]) for name, what in schema.items()]
        self.reader = FieldsReader(wanted)
        """What reads them."""
        for name, value in self.given[1].items():
            each = self.reader.wanted[name]
            text = each.fallback or b""
            for key in reversed(each.path):
                text = b"{" + orjson.dumps(key) + b":" + text + b"}"
            try:
                FieldsReader([each._replace(fallback=None)]).read(text)
            except DecodeError:
                raise FormatError(f"defaults[{name!r}] = {shortened(value)}, expected {each}") from None

    def __call__(self, record: Any) -> dict[str, Any]:
        return self.reader.read(record)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Fields) and self.reader == other.reader

    def __hash__(self) -> int:
        return hash(self.reader)

    def __reduce__(self) -> tuple[Any, ...]:
        schema, defaults = self.given
        return partial(Fields, schema, defaults=defaults), ()

    def __repr__(self) -> str:
        return f"Fields({', '.join(self.reader.wanted)})"


class _RefusedError(Exception):
    """A record that the core refuses: (one of _native.WANTED_*, name of the field or None, byte of the record)."""


def _wanted(name: Any, what: Any, defaults: Mapping[str, Any]) -> Wanted:
    """Parse a field of a schema.

    Raises:
      FormatError: its path or its type is invalid.
    """
    try:
        keys = keys_of(name) if isinstance(name, str) else ()
    except UnicodeEncodeError:
        keys = ()
    if not keys or not all(keys) or len(keys) > _native.LONGEST_PATH:
        raise FormatError(
            f"schema: {name!r} is not a valid path: expected 1 to {_native.LONGEST_PATH} keys, none empty, separated "
            "by dots"
        )
    fallback = _as_json(name, defaults[name]) if name in defaults else None
    if what == "str":
        return Wanted(name, keys, "str", _native.LAYOUT_ANY, (), fallback)
    dtype, shape = what if isinstance(what, tuple | list) and len(what) == 2 else (what, None)
    try:
        dtype = dtype if isinstance(dtype, str) else dtype_name(dtype)
    except TypeError:  # a list or a dict, which has no name
        dtype = ""
    if dtype not in _DTYPES:
        near = [f"{dtype}64"] if f"{dtype}64" in _DTYPES else ["str", *_DTYPES]  # as in Python
        raise FormatError(
            f"schema[{name!r}] = {what!r}, expected 'str', a dtype among {', '.join(_DTYPES)}, (dtype, shape) or "
            f"(dtype, 'ragged'){did_you_mean(dtype, near)}"
        )
    if shape is None:
        return Wanted(name, keys, dtype, _native.LAYOUT_ANY, (), fallback)
    if isinstance(shape, str) and shape == _RAGGED:
        return Wanted(name, keys, dtype, _native.LAYOUT_RAGGED, (), fallback)
    return Wanted(name, keys, dtype, _native.LAYOUT_SHAPE, _axes(name, what, shape, ITEM_BYTES[dtype]), fallback)


def _axes(name: str, what: Any, shape: Any, item_bytes: int) -> Shape:
    try:
        if isinstance(shape, str):
            raise TypeError
        axes = tuple(axis if axis is None else operator.index(axis) for axis in shape)
    except TypeError:
        raise FormatError(f"schema[{name!r}] = {what!r}, expected a shape or 'ragged' after the dtype") from None
    check_axes(f"schema[{name!r}] = {what!r}", axes, item_bytes)
    return axes


def _as_json(name: str, value: Any) -> bytes:
    """Return a default as JSON, which the core reads like that of a record."""
    try:
        return orjson.dumps(value.tolist() if hasattr(value, "tolist") else value)
    except TypeError as error:
        raise FormatError(f"defaults[{name!r}] = {shortened(value)}, expected what JSON can hold ({error})") from None


def _type_of(value: Any) -> str:
    """Return the type that a schema gives to a value of JSON; "" for those that several types fit, or none."""
    while isinstance(value, list) and value and len({type(each) for each in value}) == 1:
        value = value[0]
        if isinstance(value, str):
            return ""  # lists of strings have no type
    return {str: "str", bool: "bool", float: "float32"}.get(type(value), "")


def _shape_of(value: Any) -> tuple[int, ...]:
    """Return the shape that lists have."""
    shape: list[int] = []
    while isinstance(value, list):
        shape.append(len(value))
        value = value[0] if value else None
    return tuple(shape)
