"""`Fields` over array files: the fields that are stored, converted where their types differ."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from .. import _native
from ..arrays.schema import EXTENDED, TO_ONE_SCHEMA, Field, Schema, dtype_name
from ..arrays.values import with_axes_of
from ..errors import DecodeError, FormatError, did_you_mean
from ..formats.unmeasured import not_json
from .batch import Columns, StoredField, as_tensor, numpy_dtype
from .decode import ArrayDecoder, TensorDecoder
from .fields import Fields, Wanted

_AS_TEXT = ("json", "str")
_KINDS = {
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
    is read as a JSON record is. Each field of which no record can be as it is wanted is an error at once.

    Args:
      fields: what the user wants.
      schema: what the file has.
      place: what messages call the file.
    Raises:
      FormatError: the file lacks a field, or has one of another type.
    """

    takes_view = True

    def __init__(self, fields: Fields, schema: Mapping[str, Any], place: str) -> None:
        self.fields = fields
        self.schema = dict(schema)
        """What the file has, in the order in which it lies in a record."""
        self._given = fields, self.schema, place
        self.identity = fields, tuple(self.schema.items())
        super().__init__({})
        stored = {field.name: field for field in Schema(schema).fields}
        wanted = fields.reader.wanted
        sources = {name: _source(each, stored, place) for name, each in wanted.items()}
        found = [(wanted[name], source) for name, source in sources.items() if source is not None]
        read = {source.name for _, source in found}
        # Text that is not wanted is not decoded.
        taken = {name: what if name in read or what not in _AS_TEXT else "bytes" for name, what in schema.items()}
        converted = {source.name for each, source in found if source.dtype != each.dtype}
        self._file = ArrayDecoder(taken, copied=converted, loads=_checked)
        self.native = self._file.native
        self.names, self.ragged = fields.reader.names, fields.reader.ragged
        self._sources = {name: None if source is None else source.name for name, source in sources.items()}
        self._as_stored = {each.name: source.name for each, source in found if _is_as_stored(each, source)}
        self._converters = {
            name: _converter(fields, wanted[name], source)
            for name, source in sources.items()
            if name not in self._as_stored
        }
        self.converts = bool(self._converters)
        """Whether a value may turn out to be one that does not fit."""

    def __call__(self, record: Any) -> dict[str, Any]:
        stored = self._file(record)
        sample = {name: None if source is None else stored[source] for name, source in self._sources.items()}
        for name, convert in self._converters.items():
            sample[name] = convert(sample[name])
        return sample

    def stored(self, found: Any, name: str) -> StoredField | None:
        source = self._as_stored.get(name)
        return None if source is None else self._file.stored(found, source)

    def values(self, found: Any, name: str) -> list[Any]:
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


def _converter(fields: Fields, wanted: Wanted, source: Field | None) -> Callable[[Any], Any]:
    """Return what makes the value of a wanted field of a stored one; with no source, of None.

    It raises DecodeError for a value that does not fit.
    """
    if source is None or source.dtype == "json":
        schema, defaults = fields.given
        name, key = wanted.name, orjson.dumps(wanted.path[0])
        alone = Fields({name: schema[name]}, defaults={name: defaults[name]} if name in defaults else {})

        def read(text: bytes | None) -> Any:
            return alone(b"{}" if text is None else b"{" + key + b":" + text + b"}")[name]

        return read
    return _as_it_is if source.dtype == "str" else partial(_converted, wanted=wanted)


def _as_it_is(value: Any) -> Any:
    return value


def _source(wanted: Wanted, stored: Mapping[str, Field], place: str) -> Field | None:
    """Return the field of the file that a wanted one comes from; None if its default has to do.

    Raises:
      FormatError: there is none, or none of its type.
    """
    name = wanted.path[0]
    found = stored.get(name)
    if found is None and wanted.fallback is not None:
        return None
    if found is None:
        known = ", ".join(f"`{each}`" for each in stored) or "no fields"
        raise FormatError(f"{place}: expected {wanted.without_default}, found {known}{did_you_mean(name, stored)}")
    fits = found.dtype == "json" or (len(wanted.keys) == 1 and _may_fit(wanted, found))
    if not fits:
        raise FormatError(f"{place}: expected {wanted} at `{wanted.name}`, found {found}")
    return found


def _may_fit(wanted: Wanted, found: Field) -> bool:
    """Whether some value of a stored field is one that is wanted."""
    if wanted.dtype == "str" or found.dtype == "str" or found.dtype in EXTENDED:
        return wanted.dtype == found.dtype
    if found.dtype[:3] not in _KINDS.get(wanted.dtype[:3], ()):
        return False
    axes = None if found.shape is None else len(found.shape)
    if wanted.layout == _native.LAYOUT_RAGGED:
        return axes == 2
    return wanted.layout == _native.LAYOUT_ANY or axes == len(wanted.shape) or (axes is None and not wanted.shape)


def _is_as_stored(wanted: Wanted, found: Field) -> bool:
    """Whether the value of a stored field is always the one that is wanted."""
    if wanted.dtype != found.dtype or wanted.layout == _native.LAYOUT_RAGGED or wanted.dtype == "str":
        return False
    if wanted.layout == _native.LAYOUT_ANY:
        return True
    return found.shape is not None and all(
        axis in (None, stored) for axis, stored in zip(wanted.shape, found.shape, strict=True)
    )


def _checked(text: bytes) -> bytes:
    """Return the text of JSON, for the core to read what is wanted of it.

    Raises:
      ValueError: it is not JSON. Text that closes the object that it is put into would pass for more than a value.
    """
    if _native.json_error(None, text) is not None:
        raise ValueError(not_json(text).removeprefix("not JSON: "))
    return text


def _converted(value: Any, wanted: Wanted) -> Any:
    """Return a stored number or array as it is wanted.

    Raises:
      DecodeError: it does not fit.
    """
    if wanted.layout == _native.LAYOUT_RAGGED:
        return [_of_dtype(row, wanted) for row in value]
    if wanted.layout == _native.LAYOUT_ANY and not hasattr(value, "shape"):
        return _rounded(np.asarray(value), wanted).item()
    array = _of_dtype(value if hasattr(value, "shape") else np.asarray(value), wanted)
    if wanted.layout == _native.LAYOUT_SHAPE and 0 in array.shape:
        array = array.reshape(with_axes_of(tuple(array.shape), wanted.shape))
    if wanted.layout == _native.LAYOUT_SHAPE and not all(
        axis in (None, size) for axis, size in zip(wanted.shape, array.shape, strict=True)
    ):
        raise DecodeError(f"expected {wanted} at `{wanted.name}`, found shape {tuple(array.shape)}")
    return array


def _of_dtype(array: Any, wanted: Wanted) -> Any:
    """Return an array in the dtype that is wanted; one of bfloat16, without ml_dtypes, is a tensor.

    Raises:
      DecodeError: a number is beyond the dtype.
    """
    if dtype_name(array.dtype) == wanted.dtype:
        return array
    if wanted.dtype != "bfloat16" and np.can_cast(array.dtype, wanted.dtype):  # no number can be beyond the dtype
        return array.astype(wanted.dtype)
    rounded = _rounded(array, wanted)
    if wanted.dtype != "bfloat16":
        return rounded
    dtype = numpy_dtype(wanted.dtype)
    halves = np.asarray(rounded.view(np.uint32) >> 16).astype(np.uint16).view(dtype)  # NumPy's 0 axes become a number
    return as_tensor(halves, wanted.dtype) if dtype.kind == "i" else halves


def _rounded(array: NDArray[Any], wanted: Wanted) -> NDArray[Any]:
    """Return numbers in the dtype that is wanted, floats rounded to it; those for bfloat16 as float32.

    Raises:
      DecodeError: a number is beyond the dtype.
    """
    with np.errstate(over="ignore"):
        found = array.astype("float32" if wanted.dtype == "bfloat16" else wanted.dtype)
    if wanted.dtype == "bfloat16":
        bits = found.view(np.uint32)
        rounded = ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).view(np.float32)
        found = np.where(np.isnan(found), np.float32("nan"), rounded)
    fits = np.isfinite(found) | ~np.isfinite(array) if found.dtype.kind == "f" else found == array
    if not fits.all():
        number = array[~fits].flat[0] if array.shape else array
        raise DecodeError(f"expected {wanted} at `{wanted.name}`, found {number}")
    return found
