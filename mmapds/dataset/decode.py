"""Decoders: from the bytes of a record to a sample; and samples as text for people."""

from __future__ import annotations  # help() shows them as they are written

import codecs
import json
import math
import re
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

import numpy as np
import orjson

from ..arrays.schema import Schema
from ..errors import DecodeError, Error, FormatError, counted, printable, says_no_memory
from ..formats.expressions import not_json
from ..formats.format import plain_dtype
from . import payloads
from .batch import Columns, StoredField, as_tensor, expect_read_only, numpy_dtype

Decoder = Callable[..., Any]
"""Takes the bytes of a record and returns a sample; `takes_view` and `takes_location` change its arguments."""


def as_bytes(record: bytes) -> bytes:
    """Return a record unchanged."""
    return record


def takes_view(function: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a decoder that takes a read-only memoryview of the file instead of a copy of the bytes.

        @mmapds.takes_view
        def decode(record):
            return np.frombuffer(record, np.uint8)

    Args:
      function: the decoder.
    """
    function.takes_view = True  # type: ignore[attr-defined]
    return function


def takes_location(function: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a decoder that takes the `Location` of the record as its second argument.

        @mmapds.takes_location
        def decode(record, location):
            return location.source, location.offset, record

    Args:
      function: the decoder.
    """
    function.takes_location = True  # type: ignore[attr-defined]
    return function


class RecordArray(partial[Any]):
    """A decoder: a record as a read-only array that shares memory with the file; with `shape` None, of one axis.

    A partial, so that the core calls NumPy directly: a Python function in between would double the time.
    """

    takes_view = True

    def __new__(cls, dtype: np.dtype[Any], shape: tuple[int, ...] | None) -> RecordArray:
        dtype = plain_dtype(dtype)
        if shape is None:
            return super().__new__(cls, np.frombuffer, dtype=dtype)
        return super().__new__(cls, np.ndarray, shape, dtype)

    def __reduce__(self) -> tuple[Any, ...]:
        shape, dtype = self.args or (None, self.keywords["dtype"])
        return RecordArray, (dtype, shape)

    def __repr__(self) -> str:
        dtype, shape = self.__reduce__()[1]
        return f"vector(dtype={dtype})" if shape is None else f"array(dtype={dtype}, shape={shape})"


_ROWS: dict[str, tuple[Decoder, str]] = {
    "json": (orjson.loads, "JSON"),
    "text": (bytes.decode, "UTF-8 text"),
    "bytes": (as_bytes, ""),
    "files": (takes_location(payloads.members_of), "a sample of a tar"),
    "wds": (takes_location(payloads.sample_of), "a sample of valid members"),
    "pil": (partial(payloads.sample_of, rgb=True), "a sample of valid members"),
    "tf_example": (payloads.tf_example, "a tf.train.Example"),
}
"""The named decoders, and the records that they expect, for messages."""
BY_NAME = {name: decode for name, (decode, _) in _ROWS.items()}


def is_short_of_memory(error: Exception) -> bool:
    """Whether a decoder failed because memory was short, so that the record may be sound.

    Only orjson's message is read: messages of other decoders may quote the record.
    """
    if isinstance(error, orjson.JSONDecodeError):
        return says_no_memory(error)
    # Short of memory, orjson may return a value with an error set; Python turns that into a SystemError.
    return isinstance(error.__cause__ if isinstance(error, SystemError) else error, MemoryError)


def reason_of(error: Exception, decode: str | Decoder, read: Callable[[], bytes]) -> str | None:
    """Return the reason of an error of mmapds' decoders, for messages; None for an error of a user's decoder."""
    if decode == "json":
        try:
            return not_json(read())
        except Error:  # the record cannot be read again: its large block was decoded past it
            return f"not JSON: {error}"
    if type(error) in (DecodeError, FormatError):
        return str(error)
    inner = decode.inner if isinstance(decode, TensorDecoder) else decode
    expected = "an array of that type" if isinstance(inner, RecordArray) else ""
    if isinstance(inner, str) and inner in _ROWS:
        expected = _ROWS[inner][1]
    return f"not {expected}: {error}" if expected else None


def is_marked(decode: Decoder, mark: str) -> bool:
    """Whether a decoder, or the one in a partial, has a mark: `takes_view` or `takes_location`."""
    if getattr(decode, mark, False) is True:
        return True
    return isinstance(decode, partial) and is_marked(decode.func, mark)


def is_same_decoder(one: Any, other: Any) -> bool:
    """Whether two decoders are equal; partials are if they have equal functions and arguments."""
    if isinstance(one, TensorDecoder) and isinstance(other, TensorDecoder):
        one, other = one.inner, other.inner
    if isinstance(one, partial) and isinstance(other, partial):
        one, other = ((each.func, each.args, each.keywords) for each in (one, other))
    try:
        return bool(one == other)
    except (ValueError, RuntimeError):  # from arrays and tensors among the arguments
        return one is other


def resolve(decode: str | Decoder) -> Decoder:
    """Return the decoder of a name, or a callable unchanged."""
    if callable(decode):
        return decode
    if isinstance(decode, str) and decode in BY_NAME:
        return BY_NAME[decode]
    raise Error(f"decode = {decode!r}, expected {', '.join(map(repr, BY_NAME))}, 'torch' or a callable")


def decoder_name(decode: str | Decoder) -> str:
    """Return a decoder as text for messages and reprs."""
    if isinstance(decode, partial) and not isinstance(decode, RecordArray):
        return f"{decoder_name(decode.func)}({', '.join(f'{name}={value}' for name, value in decode.keywords.items())})"
    if isinstance(decode, str):
        return repr(decode)
    if type(decode).__repr__ is object.__repr__:  # type: ignore[comparison-overlap]
        return f"{type(decode).__qualname__}()"  # without its address, which differs between processes
    return getattr(decode, "__qualname__", repr(decode))


# ---- arrays ---------------------------------------------------------------------------------------------------


class ArrayDecoder(Columns):
    """Makes a dict from a record of named arrays: read-only views of the file, aligned to 64 bytes.

    Arrays of a dtype that NumPy lacks (bfloat16, float8) have a dtype of ml_dtypes.

    Args:
      copied: fields whose arrays are copied, for callers that read them immediately. If the file is cut short
        meanwhile, a guarded copy raises an error, but reading a view would kill the process.
      loads: parses JSON fields.
    """

    takes_view = True

    def __init__(
        self, schema: Mapping[str, Any], copied: Collection[str] = (), loads: Callable[[bytes], Any] = orjson.loads
    ) -> None:
        self.schema = dict(schema)
        """Field name to type, in the order of the fields in a record."""
        self.names = self.schema.keys()
        self.identity = tuple(self.schema.items()), frozenset(copied), loads
        parsed = Schema(schema)
        self._numbered = {field.name: (number, field) for number, field in enumerate(parsed.fields)}
        self.native = parsed.native(numpy_dtype, np.ndarray, loads, copied)

    def __call__(self, record: Any) -> dict[str, Any]:
        return self.native(record)

    def _stored(self, found: Any, name: str) -> StoredField | None:
        number, field = self._numbered[name]
        if field.is_scalar:
            numbers = np.frombuffer(found.words(number), np.float64 if field.dtype[0] == "f" else np.int64)
            if field.dtype == "bool":
                numbers = numbers.astype(np.bool_)
            beyond = field.dtype == "uint64" and (numbers < 0).any()
            return None if beyond else StoredField(found, number, field.dtype, numbers)
        if not field.shape:
            return None
        shapes = np.frombuffer(found.shapes(number), np.int64).reshape(len(found), -1)
        return StoredField(found, number, field.dtype, None, shapes)

    def _values(self, found: Any, name: str) -> list[Any] | None:
        return None if self._numbered[name][1].shape is not None else self.copies(found, name)

    def copies(self, found: Any, name: str) -> list[Any]:
        """Return the value of a field in every record; arrays are copies."""
        values: list[Any] = found.values(self._numbered[name][0])
        return values

    def __reduce__(self) -> tuple[Any, ...]:
        return ArrayDecoder, (self.schema, *self.identity[1:])

    def __repr__(self) -> str:
        return f"arrays({', '.join(self.schema)})"


class TensorDecoder:
    """Turns the arrays of another decoder into tensors: a sample that is an array, or arrays in a dict.

    The tensors share memory with the file, which is mapped read-only: writing to one kills the process.
    """

    takes_view = True

    def __init__(self, inner: Decoder) -> None:
        import torch  # optional: the extra mmapds[torch]

        expect_read_only()
        self.inner, self._from_numpy = inner, torch.from_numpy

    def __call__(self, record: Any) -> Any:
        sample = self.inner(record)
        if not isinstance(sample, dict):
            return self._tensor(sample)
        for name, value in sample.items():
            if isinstance(value, np.ndarray):
                sample[name] = self._tensor(value)
        return sample

    def _tensor(self, array: Any) -> Any:
        is_numpys = array.dtype.isbuiltin != 2  # 2 marks the dtypes that other packages add to NumPy
        return self._from_numpy(array) if is_numpys else as_tensor(array)

    def __reduce__(self) -> tuple[Any, ...]:
        return TensorDecoder, (self.inner,)

    def __repr__(self) -> str:
        return "torch"


def array_columns(decode: Decoder) -> Any:
    """Return the decoder of named arrays, unwrapped, as `Columns`; None for any other decoder."""
    inner = decode.inner if isinstance(decode, TensorDecoder) else decode
    return inner if isinstance(inner, Columns) and is_marked(inner, "takes_view") else None


def shown_apart(name: str, one: Any, other: Any) -> tuple[str, str, str]:
    """Return the name of an argument and its two unequal values as text: of arrays that look alike, a field's types."""
    if (shown := decoder_name(one)) == (others := decoder_name(other)):
        types, found = (getattr(array_columns(each), "schema", {}) for each in (one, other))
        differing = (field for field, each in types.items() if each != found.get(field))
        if (field := next(differing, None)) is not None:
            return repr(field), repr(types[field]), repr(found.get(field))
    return name, shown, others


# ---- samples as text, without control characters for the terminal -----------------------------------------------

_STRING, _TEXT = 240, 2_000  # most characters of a string, and of a record of text
_NUMBERS, _ITEMS = 40, 8  # most items of lists of numbers, and of other lists
_ARRAY, _BYTES, _DUMPED = 6, 40, 256  # most numbers of an array, bytes of a value, bytes of a record

_LETTERS = bytes(byte if 0x20 <= byte < 0x7F else 0x2E for byte in range(256))  # of a hex dump
_NOTE = "\ue000"  # marks a string that describes a value that JSON lacks: it is printed without quotes
_NOTES = re.compile(rf'"{_NOTE}(?:[^"\\]|\\.)*"')
_LISTS_OF_NUMBERS = re.compile(r'\[\n\s+([^][{}"]*?)\n\s*\]')  # real line ends come from the layout only


def printed(sample: Any, *, full: bool = False) -> str:
    """Return a sample as lines of text: bytes as UTF-8 text or a hex dump, other samples as JSON.

    Long strings, lists and bytes are cut; arrays are shown by type, shape and first numbers.

    Args:
      full: cut nothing.
    Raises:
      Exception: JSON cannot hold the sample: text beyond Unicode, too long numbers, too deep nesting.
    """
    size = len(sample) if isinstance(sample, str | bytes | memoryview) else 0
    shown, unit = size if full else _TEXT, "characters" if isinstance(sample, str) else "bytes"
    if isinstance(sample, str):
        text = sample[:shown]
    elif isinstance(sample, bytes | memoryview):
        found = _as_text(sample, shown)
        shown = shown if found is not None or full else _DUMPED
        rows = [bytes(sample[at : min(at + 16, shown)]) for at in range(0, min(size, shown), 16)]
        dump = "\n".join(
            f"{16 * number:08x}  {row[:8].hex(' '):<23}  {row[8:].hex(' '):<23}  {row.translate(_LETTERS).decode()}"
            for number, row in enumerate(rows)
        )
        text = dump if found is None else found
    else:
        text = json.dumps(_short(sample, full), indent=2, ensure_ascii=False)
        text = _NOTES.sub(lambda found: printable(json.loads(found[0])[1:]), text)
        text = _LISTS_OF_NUMBERS.sub(lambda found: f"[{' '.join(found[1].split())}]", text)
    rest = f"\n… {size:,} {unit} in all; --full prints them" if size > shown else ""
    return "\n".join(map(printable, text.split("\n"))) + rest


def _short(value: Any, full: bool) -> Any:
    """Return a value in a form that JSON can write, cut unless `full`."""
    if isinstance(value, str):
        short = f"{json.dumps(value[:_STRING], ensure_ascii=False)}… {len(value):,} characters"
        return value if full or len(value) <= _STRING else _NOTE + short
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, Mapping):
        return {str(name): _short(each, full) for name, each in value.items()}
    if isinstance(value, list | tuple):
        most = _NUMBERS if all(isinstance(each, int | float) for each in value) else _ITEMS
        shown = [_short(each, full) for each in (value if full else value[:most])]
        return shown + [f"{_NOTE}… {len(value):,} items in all"] * (len(value) > len(shown))
    if isinstance(value, bytes | memoryview):
        beginning = _as_text(value, len(value) if full else _BYTES)
        if beginning is None:
            beginning = bytes(value if full else value[: _BYTES // 2]).hex(" ")
        return f"{_NOTE}{counted(len(value), 'byte')} {beginning}".rstrip()
    if hasattr(value, "dtype") and hasattr(value, "shape") and hasattr(value, "reshape"):
        return _NOTE + _array(value, full)
    return _NOTE + repr(value)[:_STRING]


def _array(array: Any, full: bool) -> str:
    kind = f"{str(array.dtype).removeprefix('torch.')} {tuple(array.shape)}"
    if full:
        return f"{kind} {json.dumps(array.tolist(), default=str)}"
    first = array.reshape(-1)[:_ARRAY].tolist()
    shown = [f"{each:.6g}" if isinstance(each, float) else json.dumps(each, default=str) for each in first]
    more = ["…"] * (math.prod(array.shape) > _ARRAY)
    return f"{kind} [{', '.join(shown + more)}]" if array.shape else f"{kind} {shown[0]}"


def _as_text(data: bytes | memoryview, limit: int) -> str | None:
    """Return the first `limit` bytes as text; None if they are not UTF-8 text."""
    head = bytes(data[:limit])
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(head, len(head) == len(data))
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text
