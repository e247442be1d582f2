"""`Fields`: chosen fields of JSON records, read by the core, or of the records of array files."""

from __future__ import annotations  # help() shows them as they are written

import operator
import re
from collections.abc import Callable, Hashable, Mapping
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from .. import _native
from ..arrays.schema import EXTENDED, ITEM_BYTES, TO_ONE_SCHEMA, Field, Schema, check_axes, dtype_name
from ..arrays.values import with_axes_of
from ..errors import DecodeError, Error, FormatError, listed, shortened
from ..formats.expressions import keys_of, kind_of, not_json
from .batch import Columns, StoredField, numpy_dtype
from .decode import ArrayDecoder, TensorDecoder

_KINDS = {
    "b": _native.ITEM_BOOL,
    "i": _native.ITEM_INT,
    "u": _native.ITEM_UINT,
    "f": _native.ITEM_FLOAT,
}
_DTYPES = [name for name in ITEM_BYTES if name[0] in _KINDS and not name.startswith("float8")]
"""The dtypes that fields have, bfloat16 among them."""
_NUMBER = re.compile(rb"[-+.0-9eE]{1,80}")


class Wanted(NamedTuple):
    """A field that is wanted."""

    name: str
    """As the user wrote it: the path, which is also its name in a sample."""
    keys: tuple[bytes, ...]
    dtype: str
    """"str", or the dtype of its numbers."""
    layout: int
    """One of _native.LAYOUT_*."""
    shape: tuple[int | None, ...]
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

    def __str__(self) -> str:
        if self.layout == _native.LAYOUT_ANY:
            return "a string" if self.dtype == "str" else self.dtype
        if self.layout == _native.LAYOUT_RAGGED:
            return f"lists of {self.dtype}"
        return f"{self.dtype} of shape {self.shape}"


class Fields(Columns):
    """A decoder of chosen fields: `mmapds.open(path, decode=Fields({"input_ids": "int32", "text": "str"}))`.

        tokens = mmapds.open("train.jsonl", decode=mmapds.Fields({"tokens": "int32", "text": "str"}))

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
        for what, value in ("schema", schema), ("defaults", defaults or {}):
            if not isinstance(value, Mapping):
                raise FormatError(f"{what} = {value!r}, expected a dict")
        self.given = dict(schema), dict(defaults or {})
        """The schema and the defaults."""
        for name in self.given[1]:
            if name not in schema:
                raise FormatError(f"defaults: expected fields among {listed(schema) or 'none'}, found {name!r}")
        wanted = [_wanted(name, what, self.given[1]) for name, what in schema.items()]
        super().__init__({each.name: each.dtype for each in wanted})
        self.identity = tuple(wanted)
        self.wanted = {each.name: each for each in wanted}
        """The fields by name, in the order in which a sample has them."""
        self.names = self.wanted.keys()
        self.ragged = {each.name for each in wanted if each.layout == _native.LAYOUT_RAGGED}
        ordered = sorted(wanted, key=lambda each: each.keys)
        for one, other in pairwise(ordered):
            if one.keys == other.keys[: len(one.keys)]:
                raise FormatError(f"schema: expected fields apart, found {other.name!r} inside {one.name!r}")
        self._numbers = {each.name: number for number, each in enumerate(ordered)}
        places = {name: place for place, name in enumerate(self.wanted)}
        native = tuple(
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
        self.native = _native.JsonFields(native, np.ndarray, _RefusedError)

    def __call__(self, record: Any) -> dict[str, Any]:
        try:
            sample: dict[str, Any] = self.native(record)
        except _RefusedError as refused:
            raise DecodeError(self._reason(bytes(record), *refused.args)) from None
        return self._finished(sample)

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
        return [self._finished_value(name, value) for value in found.values(self._numbers[name])]

    def _reason(self, record: bytes, status: int, name: str | None, at: int) -> str:
        """Return why a record is refused, as messages say it.

        Args:
          status: one of _native.WANTED_*.
          name: of the field that it is refused for; None for the record itself.
          at: the byte of the record that shows it.
        """
        if status == _native.WANTED_INVALID:
            return not_json(record)
        found = kind_of(record, at)
        if name is None:
            return f"expected an object, found {found}"
        wanted, place = self.wanted[name], f"at byte {at} of the record"
        if status == _native.WANTED_MISSING:
            return f"expected {wanted} at `{name}`, which has no default, found nothing or null"
        if status == _native.WANTED_NOT_OBJECT:
            return f"expected {wanted} inside objects at `{name}`, found {found} {place}"
        if status == _native.WANTED_RAGGED:
            return f"expected lists of one length inside `{name}`, which is not 'ragged', found another {place}"
        if status == _native.WANTED_SHAPE and found == "an array":
            found = "another shape"
        number = _NUMBER.match(record, at)
        return f"expected {wanted} at `{name}`, found {number[0].decode() if number else found} {place}"

    def __reduce__(self) -> tuple[Any, ...]:
        schema, defaults = self.given
        return partial(Fields, schema, defaults=defaults), ()

    def __repr__(self) -> str:
        return f"Fields({', '.join(self.wanted)})"


class _RefusedError(Exception):
    """A record that the core refuses: (one of _native.WANTED_*, name of the field or None, byte of the record)."""


def _wanted(name: Any, what: Any, defaults: Mapping[str, Any]) -> Wanted:
    """Parse a field of a schema, and its default if it has one."""
    try:
        keys = keys_of(name) if isinstance(name, str) else ()
    except UnicodeEncodeError:
        keys = ()
    if not keys or not all(keys) or len(keys) > _native.LONGEST_PATH:
        raise FormatError(
            f"schema: {name!r} is not a valid path: expected 1 to {_native.LONGEST_PATH} keys, none empty"
        )
    given, shape = what if isinstance(what, tuple | list) and len(what) == 2 else (what, None)
    dtype = given if isinstance(given, str) else dtype_name(given) if isinstance(given, Hashable) else ""
    if dtype not in _DTYPES and what != "str":
        raise FormatError(
            f"schema[{name!r}] = {what!r}, expected 'str', a dtype among {', '.join(_DTYPES)}, (dtype, shape) or "
            "(dtype, 'ragged')"
        )
    wanted = Wanted(name, keys, dtype, _native.LAYOUT_ANY, (), None)
    if isinstance(shape, str) and shape == "ragged":
        wanted = wanted._replace(layout=_native.LAYOUT_RAGGED)
    elif shape is not None:
        try:
            axes = tuple(axis if axis is None else operator.index(axis) for axis in shape)
        except TypeError:
            raise FormatError(f"schema[{name!r}] = {what!r}, expected a shape or 'ragged' after the dtype") from None
        check_axes(f"schema[{name!r}] = {what!r}", axes, ITEM_BYTES[dtype])
        wanted = wanted._replace(layout=_native.LAYOUT_SHAPE, shape=axes)
    if name not in defaults:
        return wanted
    value = defaults[name]
    try:
        fallback = orjson.dumps(value.tolist() if hasattr(value, "tolist") else value)
        text = fallback
        for key in reversed(wanted.path):
            text = b"{" + orjson.dumps(key) + b":" + text + b"}"
        Fields({name: what})(text)
    except (TypeError, DecodeError):
        raise FormatError(f"defaults[{name!r}] = {shortened(value)}, expected {wanted}") from None
    return wanted._replace(fallback=fallback)


# ---- array files ----------------------------------------------------------------------------------------------

_FITTING = {
    "boo": ("boo",),
    "int": ("int", "uin"),
    "uin": ("int", "uin"),
    "flo": ("int", "uin", "flo"),
    "bfl": ("int", "uin", "flo"),
}
"""The first letters of the dtypes whose numbers may be ones of a dtype."""


class StoredFields(Columns):
    """A decoder of records of named arrays, which gives the fields that are wanted of them.

    Arrays that are stored as they are wanted are views of the file; others are copied and converted. A field of "json"
    is read as a JSON record is.

    Args:
      fields: what the user wants.
      schema: what the file has.
      place: what messages call the file.
    Raises:
      FormatError: the file lacks a field, or has one of which no value can be as it is wanted.
    """

    takes_view = True

    def __init__(self, fields: Fields, schema: Mapping[str, Any], place: str) -> None:
        super().__init__({})
        self.fields = fields
        self.schema = dict(schema)
        """What the file has, in the order in which it lies in a record."""
        self._given = fields, self.schema, place
        self.identity = fields, tuple(self.schema.items())
        self.names, self.ragged = fields.names, fields.ragged
        stored = {field.name: field for field in Schema(schema).fields}
        self._sources: dict[str, str | None] = {}
        self._converters: dict[str, Callable[[Any], Any]] = {}
        copied = set()
        for name, wanted in fields.wanted.items():
            source = _source(wanted, stored, place)
            self._sources[name] = None if source is None else source.name
            if source is None or source.dtype == "json":
                self._converters[name] = _reader_of_json(fields, wanted)
            elif not _is_as_stored(wanted, source):
                self._converters[name] = partial(_converted, wanted=wanted, dtype=numpy_dtype(wanted.dtype))
                if source.dtype != wanted.dtype:
                    copied.add(source.name)
        # Text that is not wanted is not decoded.
        read = set(self._sources.values())
        taken = {
            name: "bytes" if what in ("json", "str") and name not in read else what for name, what in schema.items()
        }
        self._file = ArrayDecoder(taken, copied=copied, loads=_checked)
        self.native = self._file.native
        self.converts = bool(self._converters)
        """Whether a value may turn out to be one that does not fit."""

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


def differing_records(one: Any, other: Any, place: str) -> str | None:
    """Return how messages say that two decoders read records of different schemas; None if those are the same.

    Args:
      place: where the records of the first one are.
    """
    expected, found = _records_of(one), _records_of(other)
    if expected is None or found is None or expected == found:
        return None
    return f"expected records of {expected}, as in {place}, found {found}; {TO_ONE_SCHEMA}"


def _records_of(decode: Any) -> str | None:
    """Return what a decoder reads named fields of; None for other decoders."""
    decode = decode.inner if isinstance(decode, TensorDecoder) else decode
    if isinstance(decode, ArrayDecoder | StoredFields):
        return f"the fields {Schema(decode.schema).describe()}"
    return "JSON" if isinstance(decode, Fields) else None


def _source(wanted: Wanted, stored: Mapping[str, Field], place: str) -> Field | None:
    """Return the field of the file that a wanted one comes from; None if its default has to do."""
    name = wanted.path[0]
    found = stored.get(name)
    if found is None and wanted.fallback is not None:
        return None
    if found is None:
        known = listed(stored) or "no fields"
        raise FormatError(f"{place}: expected {wanted} at `{wanted.name}`, which has no default, found {known}")
    if found.dtype != "json" and (len(wanted.keys) > 1 or not _may_fit(wanted, found)):
        raise FormatError(f"{place}: expected {wanted} at `{wanted.name}`, found {found}")
    return found


def _may_fit(wanted: Wanted, found: Field) -> bool:
    """Whether some value of a stored field is one that is wanted."""
    if wanted.dtype == "str" or found.dtype == "str" or found.dtype in EXTENDED:
        return wanted.dtype == found.dtype
    if found.dtype[:3] not in _FITTING.get(wanted.dtype[:3], ()):
        return False
    axes = None if found.shape is None else len(found.shape)
    if wanted.layout == _native.LAYOUT_RAGGED:
        return axes == 2
    return wanted.layout == _native.LAYOUT_ANY or axes == len(wanted.shape) or (axes is None and not wanted.shape)


def _is_as_stored(wanted: Wanted, found: Field) -> bool:
    """Whether the value of a stored field is always the one that is wanted."""
    if wanted.dtype != found.dtype or wanted.layout == _native.LAYOUT_RAGGED:
        return False
    if wanted.layout == _native.LAYOUT_ANY:
        return True
    return found.shape is not None and all(
        axis in (None, stored) for axis, stored in zip(wanted.shape, found.shape, strict=True)
    )


def _reader_of_json(fields: Fields, wanted: Wanted) -> Callable[[Any], Any]:
    """Return what reads the value of a field of its JSON, or its default of None."""
    schema, defaults = fields.given
    name, key = wanted.name, orjson.dumps(wanted.path[0])
    alone = Fields({name: schema[name]}, defaults={name: defaults[name]} if name in defaults else {})

    def read(text: bytes | None) -> Any:
        return alone(b"{}" if text is None else b"{" + key + b":" + text + b"}")[name]

    return read


def _checked(text: bytes) -> bytes:
    """Return the text of JSON, for the core to read what is wanted of it.

    Text that is not JSON may close the object that it is put into, and would pass for more than a value.
    """
    if _native.json_error(None, text) is not None:
        raise ValueError(not_json(text).removeprefix("not JSON: "))
    return text


def _converted(value: Any, wanted: Wanted, dtype: np.dtype[Any]) -> Any:
    """Return a stored number or array as it is wanted; raise DecodeError if it does not fit."""
    is_array = hasattr(value, "shape")
    array = value if is_array and dtype_name(value.dtype) == wanted.dtype else _cast(np.asarray(value), wanted, dtype)
    if wanted.layout == _native.LAYOUT_RAGGED:
        return list(array)
    if wanted.layout == _native.LAYOUT_ANY:
        return array if is_array else array.item()
    if 0 in array.shape:
        array = array.reshape(with_axes_of(tuple(array.shape), wanted.shape))
    if not all(axis in (None, size) for axis, size in zip(wanted.shape, array.shape, strict=True)):
        raise DecodeError(f"expected {wanted} at `{wanted.name}`, found shape {tuple(array.shape)}")
    return array


def _cast(array: NDArray[Any], wanted: Wanted, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return numbers in the dtype that is wanted, floats rounded to it; raise DecodeError for a number beyond it."""
    if wanted.dtype == "bfloat16" and dtype.kind == "i":
        raise Error(f"{array.dtype} as bfloat16 at `{wanted.name}` needs ml_dtypes; run: pip install ml_dtypes")
    if np.can_cast(array.dtype, dtype):  # no number can be beyond the dtype
        return array.astype(dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        found = array.astype(dtype)
    fits = found == array if dtype.kind in "iu" else np.isfinite(found) | ~np.isfinite(array)
    if not fits.all():
        raise DecodeError(
            f"expected {wanted} at `{wanted.name}`, found {array[~fits].flat[0] if array.shape else array}"
        )
    return found
