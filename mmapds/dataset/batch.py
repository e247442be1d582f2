"""Batches that are made into samples only when these are asked for."""

import math
import sys
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator, KeysView, Mapping, Sequence
from typing import Any, NoReturn, overload

import numpy as np
from numpy.typing import NDArray

from .. import _native
from ..arrays.schema import Field
from ..errors import FormatError
from ..storage.processes import sendable
from .array_decoder import array_decoder
from .decode import Decoder

Refused = Callable[[int, Exception], NoReturn]
"""Raises the error of a batch's record, which is given by its place in the batch."""
DECODING_ERRORS = ValueError, EOFError, MemoryError, SystemError
"""What is raised of a record that is decoded; where memory is short, orjson makes it SystemError."""


class LateBatch(Sequence[Any]):
    """Samples that are dicts, each made when it is asked for. Equal to a list of the samples; pickled as that list."""

    @property
    @abstractmethod
    def names(self) -> KeysView[str]:
        """The names of the fields that every sample has."""

    @abstractmethod
    def values(self, name: str) -> Sequence[Any]:
        """Return the value of a field in every sample."""

    @abstractmethod
    def sample(self, k: int) -> Any:
        """Return a sample, made now; k may count from the end.

        Raises:
          IndexError: there is no such sample.
        """

    @overload
    def __getitem__(self, key: int) -> Any: ...
    @overload
    def __getitem__(self, key: slice) -> list[Any]: ...
    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            return [self.sample(k) for k in range(*key.indices(len(self)))]
        return self.sample(key)

    def __iter__(self) -> Iterator[Any]:
        # By the length: that of sequences takes an IndexError while a sample is made for the end.
        for k in range(len(self)):
            yield self[k]

    def __eq__(self, other: object) -> bool:
        return self is other or list(self) == (list(other) if isinstance(other, LateBatch) else other)

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        try:
            return list, (list(self),)
        except Exception as error:
            # A queue of multiprocessing would print the error and drop the batch, for which a trainer waits for ever.
            if threading.current_thread().name != "QueueFeederThread":
                raise
            if "torch" not in sys.modules:
                return FailedSamples, (sendable(error),)
            from .failed_batch import FailedBatch, wrapped  # which import torch

            return FailedBatch, (wrapped(error),)

    def __repr__(self) -> str:
        return repr(list(self))


class FailedSamples(Sequence[Any]):
    """An error in the place of samples, which is sent to another process like these.

    It is raised for whoever looks for the samples: where an argument of a task raised it as it is received, a pool of
    processes would break.
    """

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __len__(self) -> int:
        raise self._error

    def __getitem__(self, key: Any) -> Any:
        raise self._error

    def __iter__(self) -> NoReturn:  # that of sequences takes an IndexError for the end
        raise self._error


class ZippedBatch(LateBatch):
    """Samples of several datasets side by side.

    Args:
      parts: the batches of these datasets by name, one or more and all of one length.
    """

    def __init__(self, parts: Mapping[str, Sequence[Any]]) -> None:
        self.parts = dict(parts)

    def __len__(self) -> int:
        return len(next(iter(self.parts.values())))

    def sample(self, k: int) -> Any:
        return {name: part[k] for name, part in self.parts.items()}

    @property
    def names(self) -> KeysView[str]:
        return self.parts.keys()

    def values(self, name: str) -> Sequence[Any]:
        return self.parts[name]


class Batch(LateBatch):
    """Samples whose fields are arrays and numbers; `pad_collate` fills its tensors without making any."""

    @abstractmethod
    def dtype(self, name: str) -> str:
        """Return the dtype of a field as the schema calls it; "str", "bytes" or "json" where it holds no numbers."""

    @abstractmethod
    def numbers(self, name: str) -> NDArray[Any] | None:
        """Return the numbers of a field as its tensor has them: shape (len(self),).

        None if the field does not hold one number per sample, or if one of them does not fit.
        """

    @abstractmethod
    def shapes(self, name: str) -> NDArray[np.int64] | None:
        """Return the shape of every array of a field: shape (len(self), axes).

        None if it has no arrays or no axes, or if arrays differ in how many they have.
        """

    @abstractmethod
    def pad(self, name: str, out: NDArray[Any], longest: int, *, left: bool, fill: int) -> None:
        """Copy the arrays of a field, which differ in the first axis alone, into a padded array; write all of it.

        Args:
          out: C-contiguous, of the field's item size and of shape (len(self), width, ...), width >= longest.
          longest: longer arrays are cut to this length.
          left: cut off the start instead of the end.
          fill: the padding: the bytes of an item, repeated until they are 8, as one integer.
        """

    @abstractmethod
    def join(
        self, name: str, begins: NDArray[np.uint64], out: NDArray[Any], longest: int, *, left: bool, fill: int
    ) -> None:
        """Copy the arrays of a field, which differ in the first axis alone, one after another; write all of `out`.

        Args:
          begins: where each array begins in `out`, in bytes, shape (len(self),); they do not overlap.
          out: C-contiguous, of the field's item size and of shape (entries, ...).
          longest, left, fill: as for `pad`.
        """

    @staticmethod
    def _row(out: NDArray[Any], axes: int) -> int:
        """Return how many bytes an entry of `out` has after its first axes."""
        return math.prod(out.shape[axes:]) * out.itemsize


class StoredBatch(Batch):
    """Samples of named arrays, found and measured in the file.

    Args:
      records: all records of the dataset.
      numbers: which of them are the batch; shape (k,).
      decode: makes a sample of a record; an `ArrayDecoder`, or one around it.
      refused: raises an error of one of the batch's records, with where that lies and what to do.
    Raises:
      IndexError: a number is out of range.
      FormatError: a record is damaged.
    """

    def __init__(self, records: _native.Records, numbers: Any, decode: Decoder, refused: Refused) -> None:
        decoder = array_decoder(decode)
        assert decoder is not None
        self._decode = decode
        self._decoder = decoder
        self._refused = refused
        self._fields: dict[str, tuple[int, Field]] = decoder.numbered
        try:
            self._found = _native.ArrayBatch(records, numbers, decoder.fields)
        except FormatError as error:
            if len(error.args) > 1:  # what is damaged, and in which record of the batch
                reason, k = error.args
                refused(k, FormatError(reason))
            raise

    def __len__(self) -> int:
        return len(self._found)

    def sample(self, k: int) -> Any:
        try:
            sample = self._decode(self._found[k])
        except DECODING_ERRORS as error:
            self._refused(k, error)
        self._found.check(k)
        return sample

    @property
    def names(self) -> KeysView[str]:
        """The names of the fields, in the order of the schema."""
        return self._fields.keys()

    def dtype(self, name: str) -> str:
        return self._fields[name][1].dtype

    def numbers(self, name: str) -> NDArray[Any] | None:
        number, field = self._fields[name]
        if not field.is_scalar:
            return None
        found = np.frombuffer(self._found.words(number), np.float64 if field.dtype[0] == "f" else np.int64)
        if field.dtype == "bool":
            return found.astype(np.bool_)
        return None if field.dtype == "uint64" and (found < 0).any() else found

    def shapes(self, name: str) -> NDArray[np.int64] | None:
        number, field = self._fields[name]
        return np.frombuffer(self._found.shapes(number), np.int64).reshape(len(self), -1) if field.shape else None

    def pad(self, name: str, out: NDArray[Any], longest: int, *, left: bool, fill: int) -> None:
        self._found.pad(self._fields[name][0], longest, left, self._row(out, 2), fill, out)

    def join(
        self, name: str, begins: NDArray[np.uint64], out: NDArray[Any], longest: int, *, left: bool, fill: int
    ) -> None:
        self._found.join(self._fields[name][0], (longest, left), self._row(out, 1), begins, fill, out)

    def values(self, name: str) -> list[Any]:
        if self._fields[name][1].shape is not None:
            return [sample[name] for sample in self]
        try:
            return self.copies(name)
        except DECODING_ERRORS:
            return [sample[name] for sample in self]  # raises with the place of the record

    def copies(self, name: str) -> list[Any]:
        """Return what every record has in a field, whatever is made of it; arrays are copies.

        Raises:
          FormatError: text is damaged; the message does not say where.
          MemoryError: there is no room for all of them; the message does not say where.
        """
        return [self._decoder.finished_value(name, value) for value in self._found.values(self._fields[name][0])]
