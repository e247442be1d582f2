"""Decoders: from the bytes of a record to a sample."""

from __future__ import annotations  # help() shows them as they are written

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, NoReturn

import numpy as np
import orjson

from .. import _native
from ..arrays.schema import Schema
from ..errors import DecodeError, Error, FormatError, add_note, is_command, says_no_memory
from ..formats.format import ArrayOf, FieldsOf, Sample
from ..storage.numbers import plain_dtype
from . import payloads
from .batch import Columns, RecordBatch, Refused, StoredField, as_tensor, expect_read_only, numpy_dtype

Decoder = Callable[..., Any]
"""Takes the bytes of a record and returns a sample; `takes_view` and `takes_location` change what it is given."""


def as_bytes(record: bytes) -> bytes:
    """Return a record as it is."""
    return record


def takes_view(function: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a decoder that takes a read-only memoryview of the file instead of a copy of the bytes.

        @mmapds.takes_view
        def decode(record):
            return np.frombuffer(record, np.uint8).sum()


        sums = mmapds.open("train.jsonl", decode=decode)

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


        placed = mmapds.open("train.jsonl", decode=decode)

    Args:
      function: the decoder.
    """
    function.takes_location = True  # type: ignore[attr-defined]
    return function


class RecordArray(partial[Any]):
    """A decoder: a record as a read-only array that shares memory with the file; `shape` None is one axis with all.

    A partial, so that NumPy's own call makes the array: a function between them would take as long again.
    """

    takes_view = True
    dtype: np.dtype[Any]
    shape: tuple[int, ...] | None

    def __new__(cls, dtype: np.dtype[Any], shape: tuple[int, ...] | None) -> RecordArray:
        dtype = plain_dtype(dtype)
        if shape is None:
            self = super().__new__(cls, np.frombuffer, dtype=dtype)
        else:
            self = super().__new__(cls, np.ndarray, shape, dtype)
        self.dtype, self.shape = dtype, shape
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return RecordArray, (self.dtype, self.shape)

    def __repr__(self) -> str:
        return f"vector(dtype={self.dtype})" if self.shape is None else f"array(dtype={self.dtype}, shape={self.shape})"


@takes_location
def _files(record: bytes, location: Any) -> Any:
    return payloads.members_of(record, location.source)


@takes_location
def _wds(record: bytes, location: Any, *, rgb: bool = False) -> Any:
    return payloads.sample_of(record, location.source, rgb=rgb)


_ROWS: dict[str, tuple[Decoder, str]] = {
    "json": (orjson.loads, "JSON"),
    "text": (bytes.decode, "UTF-8 text"),
    "bytes": (as_bytes, ""),
    "files": (_files, "a sample of a tar"),
    "wds": (_wds, "a sample of valid members"),
    "pil": (partial(_wds, rgb=True), "a sample of valid members"),
    "tf_example": (payloads.tf_example, "a tf.train.Example"),
}
"""The decoders that have a name, and what they expect of a record."""
BY_NAME = {name: decode for name, (decode, _) in _ROWS.items()}


def raise_at(place: str, error: Exception, decode: str | Decoder, way_out: str = "") -> NoReturn:
    """Raise the error of a decoder with the place of the record; an error of the user's decoder keeps its type.

    Args:
      decode: the decoder as the user gave it.
      way_out: what to do, as the end of a message.
    """
    if type(error) is FormatError:
        raise FormatError(f"{place}: {error}") from None
    if type(error) is DecodeError:
        raise DecodeError(f"{place}: {error}{way_out}") from None
    if _expected_by(decode):
        raise DecodeError(f"{place}: {reason_of(error, decode)}{way_out}") from error
    if isinstance(error, StopIteration):  # a loop would take it for the end of the dataset
        raise RuntimeError(f"{place}: the decoder raised StopIteration{way_out}") from error
    add_note(error, f"while decoding {place}{way_out}")
    raise error


def is_short_of_memory(error: Exception) -> bool:
    """Whether memory was short for a decoder: the record may be sound.

    Other errors than orjson's may quote the record, which may say anything.
    """
    if isinstance(error, orjson.JSONDecodeError):
        return says_no_memory(error)
    # Python says SystemError of a function that returns something though there was an error, as orjson does then.
    return isinstance(error, MemoryError) or (
        isinstance(error, SystemError) and isinstance(error.__cause__, MemoryError)
    )


def reason_of(error: Exception, decode: str | Decoder) -> str:
    """Return what a decoder found wrong, as messages say it."""
    if type(error) in (DecodeError, FormatError):
        return str(error)
    expected = _expected_by(decode)
    return f"not {expected}: {error}" if expected else f"{type(error).__name__}: {error}"


def _expected_by(decode: str | Decoder) -> str | None:
    """What a decoder of mmapds expects of a record; None for a decoder of the user's."""
    if callable(decode):
        inner = getattr(decode, "inner", decode)  # of a TensorDecoder
        return "an array of that type" if isinstance(inner, RecordArray) else None
    return _ROWS[decode][1] if decode in _ROWS else None


def wants_view(decode: Decoder) -> bool:
    """Whether a decoder takes a view of the file."""
    return _is_marked(decode, "takes_view")


def wants_location(decode: Decoder) -> bool:
    """Whether a decoder takes the location of the record too."""
    return _is_marked(decode, "takes_location")


def _is_marked(decode: Decoder, mark: str) -> bool:
    if getattr(decode, mark, False) is True:
        return True
    return isinstance(decode, partial) and _is_marked(decode.func, mark)


def is_same_decoder(one: str | Decoder, other: str | Decoder) -> bool:
    """Whether two decoders do the same; two partials do if they give one function the same arguments."""
    if isinstance(one, partial) and isinstance(other, partial):
        return _is_same((one.func, one.args, one.keywords), (other.func, other.args, other.keywords))
    return _is_same(one, other)


def _is_same(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except (ValueError, RuntimeError):  # of arrays and tensors among the arguments
        return one is other


def resolve(decode: str | Decoder) -> Decoder:
    """Return the decoder of a name; a callable is a decoder already."""
    if callable(decode):
        return decode
    if isinstance(decode, str) and decode in BY_NAME:
        return BY_NAME[decode]
    if is_command():
        raise Error(f"--decode {decode}: expected {', '.join(BY_NAME)} or torch")
    raise Error(f"decode = {decode!r}, expected {', '.join(map(repr, BY_NAME))}, 'torch' or a callable")


def decoder_name(decode: str | Decoder) -> str:
    """Return a decoder as messages and reprs show it."""
    if isinstance(decode, partial) and not isinstance(decode, RecordArray):
        return f"{decoder_name(decode.func)}({', '.join(f'{name}={value}' for name, value in decode.keywords.items())})"
    if isinstance(decode, str):
        return repr(decode)
    if type(decode).__repr__ is object.__repr__:  # type: ignore[comparison-overlap]
        return f"{type(decode).__qualname__}()"  # without its address, which is another one in each process
    return getattr(decode, "__qualname__", repr(decode))


# ---- arrays ---------------------------------------------------------------------------------------------------


class ArrayDecoder(Columns):
    """Makes a dict of a record; arrays in it are read-only views of the file, aligned to 64 bytes.

    Arrays of a dtype that NumPy lacks (bfloat16, float8) have a dtype of ml_dtypes, or are tensors if that is not
    installed.

    Args:
      schema: what the file has.
      copied: the fields whose arrays are copies instead, for whoever reads them at once. They are copied under a guard:
        where the file is cut short meanwhile, that is an error, and a view that is read would end the process.
      loads: returns the value of JSON.
    """

    takes_view = True

    def __init__(
        self, schema: Mapping[str, Any], copied: Collection[str] = (), loads: Callable[[bytes], Any] = orjson.loads
    ) -> None:
        self.schema = dict(schema)
        """Field name to type, in the order in which fields lie in a record."""
        self.names = self.schema.keys()
        self.identity = tuple(self.schema.items()), frozenset(copied), loads
        parsed = Schema(schema)
        super().__init__({field.name: field.dtype for field in parsed.fields})
        self._numbered = {field.name: (number, field) for number, field in enumerate(parsed.fields)}
        self.native = parsed.native(numpy_dtype, np.ndarray, loads, copied)

    def __call__(self, record: Any) -> dict[str, Any]:
        return self._finished(self.native(record))

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
        """Return what every record has in a field; arrays are copies."""
        return [self._finished_value(name, value) for value in found.values(self._numbered[name][0])]

    def __reduce__(self) -> tuple[Any, ...]:
        return ArrayDecoder, (self.schema, *self.identity[1:])

    def __repr__(self) -> str:
        return f"arrays({', '.join(self.schema)})"


class TensorDecoder:
    """Turns the arrays of another decoder into tensors: a sample that is an array, or the arrays in a dict.

    The tensors share memory with the file, which is mapped read-only: writing to one kills the process.
    """

    def __init__(self, inner: str | Decoder) -> None:
        self.inner = inner
        self._decode = resolve(inner)
        self.takes_view = wants_view(self._decode)
        import torch  # optional: the extra mmapds[torch]

        expect_read_only()
        self._from_numpy = torch.from_numpy
        if isinstance(inner, RecordArray):
            try:
                self._from_numpy(np.empty(0, inner.dtype))
            except (TypeError, ValueError):
                raise Error(f"decode = 'torch', expected a dtype that torch has, found {inner.dtype}") from None

    def __call__(self, record: Any) -> Any:
        sample = self._decode(record)
        if not isinstance(sample, dict):
            return self._tensor(sample)
        for name, value in sample.items():
            if isinstance(value, np.ndarray):
                sample[name] = self._tensor(value)
        return sample

    def _tensor(self, array: Any) -> Any:
        is_numpys = array.dtype.isbuiltin != 2  # 2 marks the dtypes that other packages add to NumPy
        return self._from_numpy(array) if is_numpys else as_tensor(array, array.dtype.name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TensorDecoder) and is_same_decoder(self.inner, other.inner)

    def __hash__(self) -> int:
        return hash(TensorDecoder)

    def __reduce__(self) -> tuple[Any, ...]:
        return TensorDecoder, (self.inner,)

    def __repr__(self) -> str:
        return "torch"


def format_decoder(sample: Sample) -> str | Decoder:
    """Return the decoder for payloads as a format describes them; its arrays share memory with the file."""
    if isinstance(sample, FieldsOf):
        return ArrayDecoder(sample.schema)
    if isinstance(sample, ArrayOf):
        return RecordArray(sample.dtype, sample.shape)
    return sample


def array_columns(decode: Decoder) -> Any:
    """Return the decoder of named arrays in a decoder, as `Columns`; None for any other decoder."""
    inner = decode.inner if isinstance(decode, TensorDecoder) else decode
    return inner if isinstance(inner, Columns) and wants_view(inner) else None


def array_batch(records: _native.Records, numbers: Any, decode: Decoder, refused: Refused) -> RecordBatch:
    """Find records of named arrays, and return their samples.

    Args:
      numbers: which records of the dataset are the batch: shape (k,).
      decode: one that has `array_columns`.
      refused: raises an error of one of the batch's records, with where that lies and what to do.
    """
    columns = array_columns(decode)
    try:
        found = _native.ArrayBatch(records, numbers, columns.native)
    except FormatError as error:
        if len(error.args) > 1:  # what is damaged, and in which record of the batch
            reason, k = error.args
            refused(k, FormatError(reason))
        raise
    return RecordBatch(found, columns, decode, refused, found.check)
