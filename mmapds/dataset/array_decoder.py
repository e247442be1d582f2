"""Decoders of arrays: records of named arrays as views of their file, and arrays of any format as tensors."""

import warnings
from collections.abc import Mapping
from functools import cache, partial
from typing import Any

import numpy as np
import orjson

from ..arrays.schema import EXTENDED, Schema
from ..errors import Error
from ..formats.format import ArrayOf, FieldsOf, Sample
from .decode import Decoder, array, resolve, same, vector, wants_view


class ArrayDecoder:
    """Makes a dict of a record: its arrays are read-only views of the file, aligned to 64 bytes.

    Arrays of numbers that NumPy lacks have the types of ml_dtypes where that is installed, and are tensors where not.
    """

    takes_view = True

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._described = dict(schema)
        parsed = Schema(schema)
        extended = {field.name: field.dtype for field in parsed.fields if field.dtype in EXTENDED}
        self._as_tensors = extended if not _has_ml_dtypes() else {}
        self.schema = parsed
        self.fields = parsed.native(_dtype, np.ndarray, orjson.loads)

    def __call__(self, record: Any) -> dict[str, Any]:
        sample: dict[str, Any] = self.fields(record)
        for name, dtype in self._as_tensors.items():
            sample[name] = tensor(sample[name], dtype)
        return sample

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ArrayDecoder) and self._described == other._described

    def __hash__(self) -> int:
        return hash(repr(self._described))

    def __reduce__(self) -> tuple[Any, ...]:
        return ArrayDecoder, (self._described,)

    def __repr__(self) -> str:
        return f"arrays({', '.join(map(str, self._described))})"


class Tensors:
    """Makes tensors of the arrays that another decoder gives, alone or in a dict.

    They share memory with the file, which cannot be written to: writing to such a tensor ends the process.
    """

    def __init__(self, inner: str | Decoder) -> None:
        if isinstance(inner, str):
            raise Error(f"decode='torch' is for records of arrays; these are {inner!r}")
        self.inner = inner
        self._decode = resolve(inner)
        self.takes_view = wants_view(self._decode)
        import torch

        _expect_read_only()
        self._from_numpy = torch.from_numpy
        if isinstance(inner, partial) and "dtype" in inner.keywords:
            try:
                self._from_numpy(np.empty(0, inner.keywords["dtype"]))
            except (TypeError, ValueError) as error:
                raise Error(f"decode='torch': torch has no arrays of {inner.keywords['dtype']}: {error}") from None

    def __call__(self, record: Any) -> Any:
        sample = self._decode(record)
        if not isinstance(sample, dict):
            return self._tensor(sample)
        for name, value in sample.items():
            if isinstance(value, np.ndarray):
                sample[name] = self._tensor(value)
        return sample

    def _tensor(self, array: Any) -> Any:
        known = array.dtype.isbuiltin != 2  # the mark of types that others add to NumPy
        return self._from_numpy(array) if known else tensor(array, array.dtype.name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tensors) and same(self.inner, other.inner)

    def __hash__(self) -> int:
        return hash(Tensors)

    def __reduce__(self) -> tuple[Any, ...]:
        return Tensors, (self.inner,)

    def __repr__(self) -> str:
        return "torch"


def of_format(sample: Sample) -> str | Decoder:
    """Return what makes a sample of a payload that a format describes; arrays share memory with the file.

    Raises:
      FormatError, TypeError, ValueError: the description is not one that the format writes.
    """
    if isinstance(sample, FieldsOf):
        return ArrayDecoder(sample.schema)
    if isinstance(sample, ArrayOf):
        dtype = np.dtype(sample.dtype)
        return partial(vector, dtype=dtype) if sample.shape is None else partial(array, dtype=dtype, shape=sample.shape)
    return sample


def of_fields(decode: Decoder) -> ArrayDecoder | None:
    """The decoder of named arrays that is behind a decoder, if there is one."""
    found = decode.inner if isinstance(decode, Tensors) else decode
    return found if isinstance(found, ArrayDecoder) else None


def _has_ml_dtypes() -> bool:
    try:
        import ml_dtypes  # noqa: F401
    except ImportError:
        return False
    return True


def _dtype(name: str) -> np.dtype[Any]:
    if name not in EXTENDED:
        return np.dtype(name).newbyteorder("<")
    if not _has_ml_dtypes():
        return np.dtype(EXTENDED[name])
    import ml_dtypes

    extended: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
    return extended


def tensor(array: Any, dtype: str) -> Any:
    """An array, whose elements may be of a type that NumPy shows as another, as a tensor that shares its memory."""
    import torch

    _expect_read_only()
    if dtype not in EXTENDED:
        return torch.from_numpy(array)
    return torch.from_numpy(array.view(EXTENDED[dtype])).view(getattr(torch, dtype))


@cache
def _expect_read_only() -> None:
    """Have torch say now, unheard, what it says once in a process of an array that cannot be written to."""
    import torch

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        empty = np.empty(1)
        empty.flags.writeable = False
        torch.from_numpy(empty)
