"""Decoders of arrays: records of named arrays as views of their file, and arrays of any format as tensors."""

import warnings
from collections.abc import Callable, Collection, Mapping
from functools import cache
from typing import Any

import numpy as np
import orjson

from ..arrays.schema import EXTENDED, Schema
from ..errors import Error
from ..formats.format import ArrayOf, FieldsOf, Sample
from ..storage.numbers import plain_dtype
from .decode import Decoder, RecordArray, is_same_decoder, resolve, wants_view


class ArrayDecoder:
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
        self._given = self.schema, frozenset(copied), loads
        parsed = Schema(schema)
        extended = {field.name: field.dtype for field in parsed.fields if field.dtype in EXTENDED}
        self._as_tensors = extended if not _has_ml_dtypes() else {}
        self.numbered = {field.name: (number, field) for number, field in enumerate(parsed.fields)}
        """Number and description of each field, by name."""
        self.fields = parsed.native(numpy_dtype, np.ndarray, loads, copied)

    def __call__(self, record: Any) -> dict[str, Any]:
        sample: dict[str, Any] = self.fields(record)
        for name in self._as_tensors:
            sample[name] = self.finished_value(name, sample[name])
        return sample

    def finished_value(self, name: str, value: Any) -> Any:
        """Return the value of a field, as a tensor where NumPy lacks the dtype."""
        dtype = self._as_tensors.get(name)
        return value if dtype is None else as_tensor(value, dtype)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ArrayDecoder) or self._given != other._given:
            return False
        return list(self.schema) == list(other.schema)  # dicts are equal in any order

    def __hash__(self) -> int:
        return hash(repr(self._given[0]))

    def __reduce__(self) -> tuple[Any, ...]:
        return ArrayDecoder, self._given

    def __repr__(self) -> str:
        return f"arrays({', '.join(map(str, self._given[0]))})"


class TensorDecoder:
    """Turns the arrays of another decoder into tensors: a sample that is an array, or the arrays in a dict.

    The tensors share memory with the file, which is mapped read-only: writing to one kills the process.
    """

    def __init__(self, inner: str | Decoder) -> None:
        self.inner = inner
        self._decode = resolve(inner)
        self.takes_view = wants_view(self._decode)
        import torch  # optional: the extra mmapds[torch]

        _expect_read_only()
        self._from_numpy = torch.from_numpy
        if isinstance(inner, RecordArray):
            try:
                self._from_numpy(np.empty(0, inner.dtype))
            except (TypeError, ValueError) as error:
                found = f"{inner.dtype} ({error})"
                raise Error(f"decode = 'torch', expected a dtype that torch has, found {found}") from None

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
    """Return the decoder for payloads as a format describes them; its arrays share memory with the file.

    Raises:
      FormatError, TypeError, ValueError: the description is damaged.
    """
    if isinstance(sample, FieldsOf):
        return ArrayDecoder(sample.schema)
    if isinstance(sample, ArrayOf):
        return RecordArray(sample.dtype, sample.shape)
    return sample


def array_decoder(decode: Decoder) -> ArrayDecoder | None:
    """Return the decoder of named arrays that `decode` is or wraps; None for any other decoder."""
    inner = getattr(decode, "inner", decode)  # of a TensorDecoder, and of StoredFields
    return inner if isinstance(inner, ArrayDecoder) else None


def _has_ml_dtypes() -> bool:
    try:
        import ml_dtypes  # noqa: F401 - optional
    except ImportError:
        return False
    return True


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return the dtype of a name; one of integers of the same size where NumPy lacks it and ml_dtypes is missing."""
    if name not in EXTENDED:
        return plain_dtype(name).newbyteorder("<")
    if not _has_ml_dtypes():
        return np.dtype(EXTENDED[name])
    import ml_dtypes  # optional

    extended: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
    return extended


def as_tensor(array: Any, dtype: str) -> Any:
    """Return an array as a tensor that shares its memory.

    Args:
      dtype: name of the tensor's dtype, where NumPy may show the memory as another.
    """
    import torch  # optional: the extra mmapds[torch]

    _expect_read_only()
    if dtype not in EXTENDED:
        return torch.from_numpy(array)
    return torch.from_numpy(array.view(EXTENDED[dtype])).view(getattr(torch, dtype))


@cache
def _expect_read_only() -> None:
    """Provoke and hide the warning that torch gives once in a process, for the first read-only array."""
    import torch  # optional: the extra mmapds[torch]

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        empty = np.empty(1)
        empty.flags.writeable = False
        torch.from_numpy(empty)
