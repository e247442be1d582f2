"""Lazy batches: they make each sample on access."""

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
"""Raises the error of a record, given its place in the batch."""
_DECODING_ERRORS = ValueError, EOFError, MemoryError, SystemError
"""Errors of decoding a record; orjson raises SystemError if memory is short."""


class StoredField(NamedTuple):
    """A field of numbers or arrays that becomes a tensor without making any sample."""

    batch: _native.ArrayBatch | _native.JsonBatch
    number: int  # number of the field in `batch`
    dtype: str  # of the arrays, by its name in the schema
    numbers: NDArray[Any] | None  # in the dtype of their tensor: shape (samples,); None for arrays
    shapes: NDArray[Any] | None = None  # of each array, int64: shape (samples, axes); None for numbers


class Columns(ABC):
    """A decoder, or a part of one, whose fields the core reads from a whole batch of records."""

    names: Collection[str]
    """The names of the fields; every sample has all of them."""
    ragged: Collection[str] = ()
    """The fields whose values are lists of arrays."""
    identity: tuple[Any, ...]
    """Two objects of a class with equal identities read the same samples."""

    @abstractmethod
    def _stored(self, found: Any, name: str) -> StoredField | None:
        """Return a field of numbers or arrays of equal axes; None for any other."""

    @abstractmethod
    def _values(self, found: Any, name: str) -> list[Any] | None:
        """Return the value of a field in each sample; None if that needs whole samples."""

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.identity == self.identity

    def __hash__(self) -> int:
        return hash(tuple(self.names))


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return the dtype of a name; raise Error if it needs ml_dtypes, and that is not installed."""
    if name not in EXTENDED:
        return plain_dtype(name).newbyteorder("<")
    try:
        import ml_dtypes  # optional
    except ImportError:
        raise Error(f"arrays of {name} need ml_dtypes; run: pip install ml_dtypes") from None
    extended: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
    return extended


def as_tensor(array: Any) -> Any:
    """Return an array with a dtype of ml_dtypes as a tensor that shares its memory."""
    import torch  # optional: the extra mmapds[torch]

    expect_read_only()
    dtype = array.dtype.name
    return torch.from_numpy(array.view(EXTENDED[dtype])).view(getattr(torch, dtype))


@cache
def expect_read_only() -> None:
    """Use up torch's warning of read-only arrays, which comes once in a process, without showing it."""
    import torch  # optional: the extra mmapds[torch]

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        empty = np.empty(1)
        empty.flags.writeable = False
        torch.from_numpy(empty)


class LazyBatch(Sequence[Any]):
    """Samples that are dicts, each made on access. It equals a list of the samples, and pickles as that list."""

    names: Collection[str]
    ragged: Collection[str] = ()
    """Both as in `Columns`."""

    @abstractmethod
    def values(self, name: str) -> Sequence[Any]:
        """Return the value of a field in every sample."""

    @abstractmethod
    def sample(self, k: int) -> Any:
        """Make and return a sample; k may count from the end."""

    def stored(self, name: str) -> StoredField | None:
        """Return a field that becomes a tensor without making samples; None for any other."""
        return None

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            return [self.sample(k) for k in range(*key.indices(len(self)))]
        return self.sample(key)

    def __iter__(self) -> Iterator[Any]:
        # Not Sequence's own: that takes an IndexError of a decoder for the end of the batch.
        for k in range(len(self)):
            yield self.sample(k)

    def __eq__(self, other: object) -> bool:
        return self is other or list(self) == (list(other) if isinstance(other, LazyBatch) else other)

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        try:
            return list, (list(self),)
        except Exception as error:
            # The receiver raises it: in a multiprocessing queue, an error here drops the batch and hangs the trainer.
            return FailedSamples, (sendable(error),)

    def __repr__(self) -> str:
        return repr(list(self))


class FailedSamples(Sequence[Any]):
    """Stands for samples that could not be pickled; raises their error in the process that reads them."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __len__(self) -> int:
        raise self._error

    def __getitem__(self, key: Any) -> Any:
        raise self._error


class ZippedBatch(LazyBatch):
    """Samples of several datasets side by side, from one batch for each name."""

    def __init__(self, parts: Mapping[str, Sequence[Any]]) -> None:
        self.parts = dict(parts)
        self.names = self.parts.keys()

    def __len__(self) -> int:
        return len(next(iter(self.parts.values())))

    def sample(self, k: int) -> Any:
        return {name: part[k] for name, part in self.parts.items()}

    def values(self, name: str) -> Sequence[Any]:
        return self.parts[name]


class StackedBatch(LazyBatch):
    """Samples that are rows of arrays, of shape (samples, ...)."""

    def __init__(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self.arrays, self.names = arrays, arrays.keys()

    def __len__(self) -> int:
        return len(next(iter(self.arrays.values())))

    def sample(self, k: int) -> Any:
        return {name: array[k] for name, array in self.arrays.items()}

    def values(self, name: str) -> Sequence[Any]:
        return list(self.arrays[name])


@dataclass(eq=False, repr=False)
class RecordBatch(LazyBatch):
    """Samples of a batch of the core."""

    _found: _native.ArrayBatch | _native.JsonBatch
    _columns: Columns
    _make: Callable[[Any], Any] | None  # makes a sample from an item of `_found`; None if the item is the sample
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
            values = None  # making the sample raises the error again, with the place of the record
        return [sample[name] for sample in self] if values is None else values
