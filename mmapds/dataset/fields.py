"""`Fields`: a decoder of chosen fields of JSON records, in the core, or of array files."""

from __future__ import annotations  # help() shows them as they are written

import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import orjson

from .. import _native
from ..arrays.schema import ITEM_BYTES, NUMBERS, Field, Schema, checked_axes, dtype_name
from ..arrays.values import cast, shown, with_axes_of
from ..errors import DecodeError, FormatError, listed, shortened
from ..formats.expressions import keys_of, kind_of, not_json
from .batch import Columns, StoredField, numpy_dtype
from .decode import ArrayDecoder, Decoder, decoder_name

_KINDS = {
    "b": _native.ITEM_BOOL,
    "i": _native.ITEM_INT,
    "u": _native.ITEM_UINT,
    "f": _native.ITEM_FLOAT,
    "s": _native.ITEM_TEXT,
    "bfloat16": _native.ITEM_BFLOAT,
}
"""The item type of a field, by its dtype or the first letter of that."""
_NUMBER = re.compile(rb"[-+.0-9eE]{1,80}")


class Wanted(NamedTuple):
    """A field of the schema."""

    name: str  # the path as the user wrote it, also its name in a sample
    keys: tuple[str, ...]
    dtype: str  # "str", or the dtype of its numbers
    layout: int  # one of _native.LAYOUT_*
    shape: tuple[int | None, ...]
    fallback: bytes | None  # JSON of the default for records without the field

    def __str__(self) -> str:
        if self.layout == _native.LAYOUT_ANY:
            return "a string" if self.dtype == "str" else self.dtype
        if self.layout == _native.LAYOUT_RAGGED:
            return f"lists of {self.dtype}"
        return f"{self.dtype} of shape {self.shape}"

    def fits(self, shape: Sequence[int | None]) -> bool:
        """Whether all arrays of a shape, with None for axes of any length, fit this field."""
        if self.layout == _native.LAYOUT_ANY:
            return True
        if self.layout == _native.LAYOUT_RAGGED:
            return len(shape) == 2
        return len(shape) == len(self.shape) and all(
            axis in (None, size) for axis, size in zip(self.shape, shape, strict=True)
        )

    def is_stored_as(self, field: Field) -> bool:
        """Whether a field of an array file needs no conversion."""
        if self.dtype != field.dtype or self.layout == _native.LAYOUT_RAGGED:
            return False
        return self.layout == _native.LAYOUT_ANY or (field.shape is not None and self.fits(field.shape))


class Fields(Columns):
    """A decoder of chosen fields, as arrays, numbers and text.

        tokens = mmapds.open("train.jsonl", decode=mmapds.Fields({"tokens": "int32", "text": "str"}))

    A sample is a dict of these fields. The core reads a whole batch of JSON records without the GIL, and `pad_collate`
    fills its tensors directly, without a Python object for each number. The same schema reads array files (`.mma`), so
    code does not change when JSON is converted.

    Like orjson, it checks every record completely. Integers are exact; floats are the nearest doubles, rounded to
    smaller types as by NumPy and torch.

    Args:
      schema: path of a field to its type. Dots separate the keys of a path; a dot in a key is written `\\.`. Types are:

        - a dtype, "bool", "int8" to "uint64", "float16", "bfloat16", "float32" or "float64": a Python number for a
          number, or an array for lists, with one axis for each level;
        - (dtype, shape): an array of that shape; None in it is an axis of any length;
        - (dtype, "ragged"): a list of arrays, for a list of lists of any lengths;
        - "str": a string.
      defaults: name of a field to its value in records without it, or with null. Other fields are required.
    Raises:
      FormatError: the schema or a default is invalid.
    """

    def __init__(self, schema: Mapping[str, Any], *, defaults: Mapping[str, Any] | None = None) -> None:
        for what, value in ("schema", schema), ("defaults", defaults or {}):
            if not isinstance(value, Mapping):
                raise FormatError(f"{what} = {value!r}, expected a dict")
        self.given = dict(schema), dict(defaults or {})
        """The schema and the defaults."""
        for name in self.given[1]:
            if name not in schema:
                raise FormatError(f"defaults: expected fields among {listed(schema) or 'none'}, found {name!r}")
        wanted = [_wanted(name, what, self.given[1]) for name, what in schema.items()]
        self.identity = tuple(wanted)
        self.wanted = {each.name: each for each in wanted}
        """The fields by name, in the order of a sample."""
        self.names = self.wanted.keys()
        self.ragged = {each.name for each in wanted if each.layout == _native.LAYOUT_RAGGED}
        ordered = sorted(wanted, key=lambda each: each.keys)
        for one, other in pairwise(ordered):
            if one.keys == other.keys[: len(one.keys)]:
                raise FormatError(f"schema: expected fields apart, found {other.name!r} inside {one.name!r}")
        self._numbers = {each.name: number for number, each in enumerate(ordered)}
        native = tuple(
            (
                each.name,
                wanted.index(each),
                _KINDS.get(each.dtype, _KINDS[each.dtype[0]]),
                ITEM_BYTES.get(each.dtype, 1),
                each.layout,
                each.shape,
                None if each.dtype == "str" else numpy_dtype(each.dtype),
                tuple(map(str.encode, each.keys)),
                each.fallback,
            )
            for each in ordered
        )
        self.native = _native.JsonFields(native, np.ndarray, _RefusedError)

    def __call__(self, record: Any) -> dict[str, Any]:
        try:
            return self.native(record)
        except _RefusedError as refused:
            raise DecodeError(self._reason(bytes(record), *refused.args)) from None

    def _stored(self, found: Any, name: str) -> StoredField | None:
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

    def _values(self, found: Any, name: str) -> list[Any]:
        values: list[Any] = found.values(self._numbers[name])
        return values

    def _reason(self, record: bytes, status: int, name: str | None, at: int) -> str:
        """Return the reason of a refused record, for messages, from the arguments of a `_RefusedError`."""
        if status == _native.WANTED_INVALID:
            return not_json(record)
        found = kind_of(record, at)
        if name is None:
            return f"expected an object, found {found}"
        if status == _native.WANTED_MISSING:
            return f"expected {self.wanted[name]} at `{name}`, which has no default, found nothing or null"
        if number := _NUMBER.match(record, at):
            found = number[0].decode()
        elif status == _native.WANTED_RAGGED:
            found = "a list of another length"
        elif status == _native.WANTED_SHAPE and found == "an array":
            found = "another shape"
        return f"expected {self.wanted[name]} at `{name}`, found {found} at byte {at} of the record"

    def __reduce__(self) -> tuple[Any, ...]:
        schema, defaults = self.given
        return partial(Fields, schema, defaults=defaults), ()

    def __repr__(self) -> str:
        return f"Fields({', '.join(self.wanted)})"


class _RefusedError(Exception):
    """A record that the core refuses: (one of _native.WANTED_*, name of the field or None, byte of the record)."""


def _wanted(name: Any, what: Any, defaults: Mapping[str, Any]) -> Wanted:
    """Parse a field of a schema, and its default if it has one."""
    keys = tuple(map(bytes.decode, keys_of(name))) if isinstance(name, str) else ()
    if not keys or not all(keys) or len(keys) > _native.LONGEST_PATH:
        raise FormatError(
            f"schema: {name!r} is not a valid path: expected 1 to {_native.LONGEST_PATH} keys, none empty"
        )
    given, shape = what if isinstance(what, tuple | list) and len(what) == 2 else (what, None)
    dtype = given if isinstance(given, str) else dtype_name(given) if isinstance(given, Hashable) else ""
    if dtype not in NUMBERS and what != "str":
        raise FormatError(
            f"schema[{name!r}] = {what!r}, expected 'str', a dtype among {', '.join(NUMBERS)}, (dtype, shape) or "
            "(dtype, 'ragged')"
        )
    wanted = Wanted(name, keys, dtype, _native.LAYOUT_ANY, (), None)
    if isinstance(shape, str) and shape == "ragged":
        wanted = wanted._replace(layout=_native.LAYOUT_RAGGED)
    elif shape is not None:
        axes = checked_axes(f"schema[{name!r}] = {what!r}", shape, ITEM_BYTES[dtype])
        wanted = wanted._replace(layout=_native.LAYOUT_SHAPE, shape=axes)
    if name not in defaults:
        return wanted
    value = defaults[name]
    try:
        fallback = orjson.dumps(value.tolist() if hasattr(value, "tolist") else value)
        record: Any = orjson.Fragment(fallback)
        for key in reversed(keys):
            record = {key: record}
        Fields({name: what})(orjson.dumps(record))
    except (TypeError, DecodeError):
        raise FormatError(f"defaults[{name!r}] = {shortened(value)}, expected {wanted}") from None
    return wanted._replace(fallback=fallback)


# ---- array files ----------------------------------------------------------------------------------------------


class StoredFields(Columns):
    """A decoder of records of named arrays that returns the fields of a `Fields` schema.

    Arrays of the right dtype and shape are views of the file; other arrays are copied and converted. A field of type
    "json" is parsed like a JSON record. It raises FormatError if the file, `place` in messages, lacks a field, or if
    only one of file and schema has text or bools.
    """

    takes_view = True

    def __init__(self, fields: Fields, schema: Mapping[str, Any], place: str) -> None:
        self.fields = fields
        self.schema = dict(schema)
        """Field name to type in the file, in the order of a record."""
        self._given = fields, self.schema, place
        self.identity = fields, tuple(self.schema.items())
        self.names, self.ragged = fields.names, fields.ragged
        stored = {field.name: field for field in Schema(schema).fields}
        self._sources: dict[str, str | None] = {}
        self._converters: dict[str, Callable[[Any], Any]] = {}
        for name, wanted in fields.wanted.items():
            source = _source(wanted, stored, place)
            self._sources[name] = None if source is None else source.name
            if source is None or source.dtype == "json":
                self._converters[name] = _reader_of_json(fields, wanted)
            elif not wanted.is_stored_as(source):
                self._converters[name] = partial(_converted, wanted=wanted, dtype=numpy_dtype(wanted.dtype))
        # Skip the decoding of text that no field needs.
        read = set(self._sources.values())
        taken = {
            name: "bytes" if what in ("json", "str") and name not in read else what for name, what in schema.items()
        }
        copied = {wanted.keys[0] for name, wanted in fields.wanted.items() if name in self._converters}
        self._file = ArrayDecoder(taken, copied, _checked)
        self.native = self._file.native
        self.converts = bool(self._converters)
        """Whether a stored value may fail to convert."""

    def __call__(self, record: Any) -> dict[str, Any]:
        stored = self._file(record)
        sample = {name: None if source is None else stored[source] for name, source in self._sources.items()}
        for name, convert in self._converters.items():
            sample[name] = convert(sample[name])
        return sample

    def _stored(self, found: Any, name: str) -> StoredField | None:
        source = self._sources[name]
        return None if source is None or name in self._converters else self._file._stored(found, source)

    def _values(self, found: Any, name: str) -> list[Any]:
        source, convert = self._sources[name], self._converters.get(name)
        stored = [None] * len(found) if source is None else self._file.copies(found, source)
        return stored if convert is None else [convert(each) for each in stored]

    def __reduce__(self) -> tuple[Any, ...]:
        return StoredFields, self._given

    def __repr__(self) -> str:
        return repr(self.fields)


def records_of(decode: str | Decoder) -> str:
    """Return the records that a decoder reads, as text for messages."""
    if isinstance(decode, ArrayDecoder | StoredFields):
        return f"records of the fields {decode.schema}"
    return "records of JSON" if isinstance(decode, Fields) else f"records for decode = {decoder_name(decode)}"


def _source(wanted: Wanted, stored: Mapping[str, Field], place: str) -> Field | None:
    """Return the field of the file for a field of the schema; None to use its default."""
    found = stored.get(wanted.keys[0])
    if found is None and wanted.fallback is None:
        known = listed(stored) or "no fields"
        raise FormatError(f"{place}: expected {wanted} at `{wanted.name}`, which has no default, found {known}")
    if found is None or found.dtype == "json":
        return found
    differ = wanted.dtype != found.dtype and not {"bool", "str"}.isdisjoint([wanted.dtype, found.dtype])
    if len(wanted.keys) > 1 or differ:
        raise FormatError(f"{place}: expected {wanted} at `{wanted.name}`, found {found}")
    return found


def _reader_of_json(fields: Fields, wanted: Wanted) -> Callable[[Any], Any]:
    """Return a function that reads a field from its JSON; for None it returns the default."""
    schema, defaults = fields.given
    name, key = wanted.name, orjson.dumps(wanted.keys[0])
    alone = Fields({name: schema[name]}, defaults={name: defaults[name]} if name in defaults else {})

    def read(text: bytes | None) -> Any:
        return alone(b"{}" if text is None else b"{" + key + b":" + text + b"}")[name]

    return read


def _checked(text: bytes) -> bytes:
    """Return JSON text; raise ValueError for other text, which could close the object around it."""
    if _native.json_error(None, text) is not None:
        raise ValueError(not_json(text).removeprefix("not JSON: "))
    return text


def _converted(value: Any, wanted: Wanted, dtype: np.dtype[Any]) -> Any:
    """Convert a stored number or array to the schema; raise DecodeError if it does not fit."""
    stored = np.asarray(value)
    if np.can_cast(stored.dtype, dtype):  # all numbers fit the dtype
        array = stored.astype(dtype, copy=False)
    else:
        if stored.dtype.kind in "iu" and dtype.kind not in "iu":
            stored = stored.astype(np.float64)  # may round, as with numbers of JSON
        array = cast(stored, dtype)
    if array is not None and not array.size:
        array = array.reshape(with_axes_of(array.shape, wanted.shape))
    if array is None or not wanted.fits(array.shape):
        is_beyond = array is None and stored.size and stored.dtype.kind in "iuf"
        found = f"{stored.dtype} from {stored.min()} to {stored.max()}" if is_beyond else shown(value)
        raise DecodeError(f"expected {wanted} at `{wanted.name}`, found {found}")
    if wanted.layout == _native.LAYOUT_RAGGED:
        return list(array)
    return array if array.ndim or wanted.layout == _native.LAYOUT_SHAPE else array.item()
