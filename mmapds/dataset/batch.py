"""Batches that are made into samples only when these are asked for."""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from .. import _native
from ..arrays.schema import EXTENDED
from ..errors import Error
from ..formats.format import plain_dtype
from ..storage.workers import sendable

Refused = Callable[[int, Exception], NoReturn]
"""Raises the error of a batch's record, which is given by its place in the batch."""
_DECODING_ERRORS = ValueError, EOFError, MemoryError, SystemError
"""What is raised of a record that is decoded; where memory is short, orjson makes it SystemError."""


class StoredField(NamedTuple):
    """A field of numbers or arrays that becomes a tensor without making any sample."""

    batch: _native.ArrayBatch | _native.JsonBatch
    number: int  # by which `batch` calls it
    dtype: str  # of the arrays, as the schema calls it
    numbers: NDArray[Any] | None  # as their tensor has them: shape (samples,); None for arrays
    shapes: NDArray[Any] | None = None  # of each array, int64: shape (samples, axes); None for numbers


class Columns(ABC):
    """The fields of records that the core reads as a batch; a decoder, or a part of one."""

    names: Collection[str]
    """The names of the fields, which every sample has."""
    ragged: Collection[str] = ()
    """The fields whose values are lists of arrays."""
    identity: tuple[Any, ...]
    """What two of a class have in common that read the same."""

    @abstractmethod
    def _stored(self, found: Any, name: str) -> StoredField | None:
        """Return a field of numbers or arrays of equal axes; None for any other."""

    @abstractmethod
    def _values(self, found: Any, name: str) -> list[Any] | None:
        """Return the value of a field in each sample; None where samples have to be made for it."""

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.identity == self.identity

    def __hash__(self) -> int:
        return hash(tuple(self.names))


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return the dtype of a name; raise Error where it is one of ml_dtypes, which is not installed."""
    if name not in EXTENDED:
        return plain_dtype(name).newbyteorder("<")
    try:
        import ml_dtypes  # optional
    except ImportError:
        raise Error(f"arrays of {name} need ml_dtypes; run: pip install ml_dtypes") from None
    extended: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
    return extended


def as_tensor(array: Any) -> Any:
    """Return an array of a dtype of ml_dtypes as a tensor that shares its memory."""
    import torch  # optional: the extra mmapds[torch]

    expect_read_only()
    dtype = array.dtype.name
    return torch.from_numpy(array.view(EXTENDED[dtype])).view(getattr(torch, dtype))


@cache
def expect_read_only() -> None:
    """Provoke and hide the warning that torch gives once in a process, for the first read-only array."""
    import torch  # optional: the extra mmapds[torch]

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        empty = np.empty(1)
        empty.flags.writeable = False
        torch.from_numpy(empty)


class LazyBatch(Sequence[Any]):
    """Samples that are dicts, each made when it is asked for. Equal to a list of the samples; pickled as that list."""

    names: Collection[str]
    ragged: Collection[str] = ()
    """Both as those of `Columns`."""

    @abstractmethod
    def values(self, name: str) -> Sequence[Any]:
        """Return the value of a field in every sample."""

    @abstractmethod
    def sample(self, k: int) -> Any:
        """Return a sample, made now; k may count from the end."""

    def stored(self, name: str) -> StoredField | None:
        """Return a field that becomes a tensor without making samples; None for any other."""
        return None

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            return [self.sample(k) for k in range(*key.indices(len(self)))]
        return self.sample(key)

    def __iter__(self) -> Iterator[Any]:
        # By the length: that of sequences takes an IndexError while a sample is made for the end.
        for k in range(len(self)):
            yield self.sample(k)

    def __eq__(self, other: object) -> bool:
        return self is other or list(self) == (list(other) if isinstance(other, LazyBatch) else other)

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        try:
            return list, (list(self),)
        except Exception as error:
            # Raised where the samples are read: a queue of multiprocessing would drop the batch, and a trainer wait.
            return FailedSamples, (sendable(error),)

    def __repr__(self) -> str:
        return repr(list(self))


class FailedSamples(Sequence[Any]):
    """An error in the place of samples, which another process raises where it looks for the samples."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __len__(self) -> int:
        raise self._error

    def __getitem__(self, key: Any) -> Any:
        raise self._error


class ZippedBatch(LazyBatch):
    """Samples of several datasets side by side, made of their batches by name."""

    def __init__(self, parts: Mapping[str, Sequence[Any]]) -> None:
        self.parts = dict(parts)
        self.names = self.parts.keys()

    def __len__(self) -> int:
        return len(next(iter(self.parts.values())))

    def sample(self, k: int) -> Any:
        return {name: part[k] for name, part in self.parts.items()}

    def values(self, name: str) -> Sequence[Any]:
        return self.parts[name]


@dataclass(eq=False, repr=False)
class RecordBatch(LazyBatch):
    """Samples of records that the core has found or read."""

    _found: _native.ArrayBatch | _native.JsonBatch
    _columns: Columns
    _make: Callable[[Any], Any] | None  # makes a sample of an item of `_found`; None where that is one
    _refused: Refused
    _check: Callable[[int], None] | None = None  # raises an error if the source was cut short since a record was found

    def __post_init__(self) -> None:
        self.names, self.ragged = self._columns.names, self._columns.ragged

    def __len__(self) -> int:
        return len(self._found)

    def sample(self, k: int) -> Any:
        try:
            sample = self._found[k] if self._make is None else self._make(self._found[k])
        except _DECODING_ERRORS as error:
            self._refused(k, error)
        if self._check is not None:
            self._check(k)
        return sample

    def stored(self, name: str) -> StoredField | None:
        return self._columns._stored(self._found, name)

    def values(self, name: str) -> list[Any]:
        try:
            values = self._columns._values(self._found, name)
        except _DECODING_ERRORS:
            values = None  # a sample raises it with the place of the record
        return [sample[name] for sample in self] if values is None else values
