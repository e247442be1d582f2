"""Batches of the fields that `Fields` wants: of JSON records, and of named arrays."""

from collections.abc import KeysView
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import _native
from .array_decoder import numpy_dtype
from .batch import DECODING_ERRORS, Batch, Refused, StoredBatch
from .fields import Fields
from .stored_fields import StoredFields


class FieldsBatch(Batch):
    """Fields of JSON records; `pad_collate` fills its tensors without making samples.

    Args:
      found: what the core has read.
      fields: the decoder.
      refused: raises an error of one of the records that the core was asked for, with where that lies.
    """

    def __init__(self, found: _native.JsonBatch, fields: Fields, refused: Refused) -> None:
        self._found = found
        self._reader = fields.reader
        self._refused = refused

    def __len__(self) -> int:
        return len(self._found)

    def sample(self, k: int) -> Any:
        try:
            return self._reader.finished(self._found[k])
        except MemoryError as error:
            self._refused(int(self.places[k]), error)

    @property
    def places(self) -> NDArray[np.int64]:
        """Which of the records that the core was asked for are the samples: shape (len(self),)."""
        return np.frombuffer(self._found.places, np.uint64).astype(np.int64)

    @property
    def names(self) -> KeysView[str]:
        return self._reader.wanted.keys()

    def dtype(self, name: str) -> str:
        return self._reader.wanted[name].dtype

    def numbers(self, name: str) -> NDArray[Any] | None:
        wanted = self._reader.wanted[name]
        axes, _ = self._axes(name)
        if axes != 0 or wanted.dtype == "bfloat16":
            return None
        found = np.frombuffer(self._found.items(self._reader.numbers[name]), numpy_dtype(wanted.dtype))
        if wanted.layout == _native.LAYOUT_SHAPE or wanted.dtype == "bool":
            return found
        if wanted.dtype == "uint64" and len(found) and found.max() >= 2**63:
            return None
        return found.astype(np.float64 if found.dtype.kind == "f" else np.int64)

    def shapes(self, name: str) -> NDArray[np.int64] | None:
        axes, shapes = self._axes(name)
        return np.frombuffer(shapes, np.int64).reshape(len(self), axes) if axes else None

    def _axes(self, name: str) -> tuple[int | None, bytes]:
        """Return how many axes the arrays of a field have, 0 for numbers, and their shapes; None where they differ."""
        wanted = self._reader.wanted[name]
        if wanted.layout == _native.LAYOUT_RAGGED or wanted.dtype == "str" or not len(self):
            return None, b""
        return self._found.shapes(self._reader.numbers[name]) or (None, b"")

    def pad(self, name: str, out: NDArray[Any], longest: int, *, left: bool, fill: int) -> None:
        self._found.pad(self._reader.numbers[name], longest, left, self._row(out, 2), fill, out)

    def join(
        self, name: str, begins: NDArray[np.uint64], out: NDArray[Any], longest: int, *, left: bool, fill: int
    ) -> None:
        self._found.join(self._reader.numbers[name], (longest, left), self._row(out, 1), begins, fill, out)

    def values(self, name: str) -> list[Any]:
        number = self._reader.numbers[name]
        try:
            return [self._reader.finished_value(name, value) for value in self._found.values(number)]
        except MemoryError:
            return [sample[name] for sample in self]  # raises with the place of the record


class ChosenBatch(Batch):
    """Fields of named arrays; `pad_collate` fills its tensors from the file where they are stored as wanted."""

    def __init__(self, stored: StoredBatch, decode: StoredFields) -> None:
        self._stored = stored
        self._decode = decode

    def __len__(self) -> int:
        return len(self._stored)

    def sample(self, k: int) -> Any:
        return self._stored.sample(k)

    @property
    def names(self) -> KeysView[str]:
        return self._decode.fields.reader.wanted.keys()

    def dtype(self, name: str) -> str:
        return self._decode.fields.reader.wanted[name].dtype

    def numbers(self, name: str) -> NDArray[Any] | None:
        stored = self._decode.as_stored.get(name)
        return None if stored is None else self._stored.numbers(stored)

    def shapes(self, name: str) -> NDArray[np.int64] | None:
        stored = self._decode.as_stored.get(name)
        return None if stored is None else self._stored.shapes(stored)

    def pad(self, name: str, out: NDArray[Any], longest: int, *, left: bool, fill: int) -> None:
        self._stored.pad(self._decode.as_stored[name], out, longest, left=left, fill=fill)

    def join(
        self, name: str, begins: NDArray[np.uint64], out: NDArray[Any], longest: int, *, left: bool, fill: int
    ) -> None:
        self._stored.join(self._decode.as_stored[name], begins, out, longest, left=left, fill=fill)

    def values(self, name: str) -> list[Any]:
        source = self._decode.sources[name]
        try:
            stored = [None] * len(self) if source is None else self._stored.copies(source.name)
            return [self._decode.value(name, each) for each in stored]
        except DECODING_ERRORS:
            return [sample[name] for sample in self]  # raises with the place of the record
