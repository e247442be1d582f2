"""Mapped datasets: the samples of another dataset through a function of the user's, when they are read."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from ..errors import Error, add_note
from ..storage.runs import LengthOrder
from .dataset import Dataset, concat
from .decode import decoder_name, is_same_decoder
from .location import Location
from .views import Rows, is_position


class MappedDataset(Dataset):
    """A dataset whose samples are a function of those of another: what `ds.map` returns. It pickles with the function.

    Args:
      inner: the other dataset.
      function: takes a sample, or a batch of them.
      is_batched: whether it takes a batch and returns a list of as many samples.
    """

    _MADE_BY = "ds.map"

    def __init__(self, inner: Dataset, function: Callable[[Any], Any], is_batched: bool) -> None:
        self._inner = inner
        self._function = function
        self._is_batched = is_batched

    def __len__(self) -> int:
        return len(self._inner)

    def __getitem__(self, key: Any) -> Any:
        if not is_position(key):
            return self._view(key)
        if self._is_batched:
            return self._batch([self._inner[key]], [key])[0]
        return self._one(self._inner[key], key)

    def take(self, positions: Sequence[int] | NDArray[np.integer[Any]]) -> Sequence[Any]:
        samples, _ = self.take_kept(positions)
        if not len(samples):
            self._inner.take(positions)  # which raises, unless there are no positions
        return samples

    __getitems__ = take

    def take_kept(self, positions: Sequence[int] | NDArray[np.integer[Any]]) -> tuple[Sequence[Any], NDArray[np.int64]]:
        samples, kept = self._inner.take_kept(positions)
        if self._is_batched:
            return self._batch(
                samples, positions if len(kept) == len(positions) else [positions[k] for k in kept]
            ), kept
        function = self._function
        mapped: list[Any] = []
        for sample in samples:  # of an array file, made here: an error of its own has its place already
            try:
                made = function(sample)
            except Exception as error:
                self._raise_at(positions[int(kept[len(mapped)])], error)
            if made is None:
                self._refuse_none(positions[int(kept[len(mapped)])])
            mapped.append(made)
        return mapped, kept

    @property
    def _on_error(self) -> str:
        return self._inner._on_error

    @property
    def skipped(self) -> list[int]:
        return self._inner.skipped

    def _one(self, sample: Any, position: SupportsIndex) -> Any:
        try:
            made = self._function(sample)
        except Exception as error:
            self._raise_at(position, error)
        if made is None:
            self._refuse_none(position)
        return made

    def _refuse_none(self, position: SupportsIndex) -> NoReturn:
        """Raise an error for a function that changed its sample and returned nothing, as some libraries allow."""
        raise Error(
            f"function {decoder_name(self._function)!r}: expected a sample, found None; return the sample (of "
            f"{self._inner.place(position)})"
        )

    def _batch(self, samples: Sequence[Any], positions: Any) -> list[Any]:
        """Return what the function makes of a batch."""
        if not len(samples):
            return []
        try:
            mapped = self._function(samples)
        except Exception as error:
            self._raise_at(positions[0], error, len(samples))
        is_sequence = hasattr(mapped, "__len__") and hasattr(mapped, "__getitem__")
        if not is_sequence or isinstance(mapped, Mapping | str | bytes):
            found = f"a {type(mapped).__name__}"
        elif len(mapped) == len(samples):
            return list(mapped)
        else:
            found = str(len(mapped))
        raise Error(
            f"function {decoder_name(self._function)!r}: expected a list of {len(samples)} samples, one for each of a "
            f"batch that it was given, found {found} (the first at {self._inner.place(positions[0])})"
        )

    def _raise_at(self, position: SupportsIndex, error: Exception, count: int = 1) -> NoReturn:
        """Raise an error of the function, which keeps its type, with the place of the record."""
        batch = f"a batch of {count}, the first at " if self._is_batched else ""
        place = f"{batch}{self._inner.place(position)}"
        if isinstance(error, StopIteration):  # a loop would take it for the end of the dataset
            raise RuntimeError(f"function {decoder_name(self._function)!r} raised StopIteration, of {place}") from error
        add_note(error, f"while mapping {place}")
        raise error

    def raw(self, position: SupportsIndex) -> bytes:
        return self._inner.raw(position)

    def where(self, position: SupportsIndex) -> Location:
        return self._inner.where(position)

    def place(self, position: SupportsIndex) -> str:
        return self._inner.place(position)

    def find(self, key: str) -> int:
        return self._inner.find(key)

    @property
    def _has_keys(self) -> bool:
        return self._inner._has_keys

    @property
    def sources(self) -> list[str]:
        return self._inner.sources

    @property
    def indexes(self) -> list[str]:
        return self._inner.indexes

    @property
    def fingerprint(self) -> str:
        return self._inner.fingerprint

    @property
    def source_starts(self) -> NDArray[np.int64]:
        return self._inner.source_starts

    @property
    def block_starts(self) -> NDArray[np.int64]:
        return self._inner.block_starts

    @property
    def columns(self) -> list[str]:
        return self._inner.columns

    def column(self, name: str) -> NDArray[Any]:
        return self._inner.column(name)

    def _columns_named(self, name: str) -> list[str]:
        return self._inner._columns_named(name)

    @property
    def length_order(self) -> LengthOrder | None:
        return self._inner.length_order

    def _select(self, rows: Rows) -> "MappedDataset":
        return MappedDataset(self._inner._select(rows), self._function, self._is_batched)

    @classmethod
    def _chained(cls, parts: Sequence["MappedDataset"]) -> "MappedDataset":
        first = parts[0]
        for k, part in enumerate(parts):
            if not is_same_decoder(part._function, first._function) or part._is_batched != first._is_batched:
                raise Error(
                    f"datasets[{k}]: expected datasets of one function, {first._name()} as in datasets[0], found "
                    f"{part._name()}; use map on what concat returns, or torch.utils.data.ConcatDataset"
                )
        return MappedDataset(concat(part._inner for part in parts), first._function, first._is_batched)

    def _name(self) -> str:
        """Return the function as messages and reprs show it."""
        return decoder_name(self._function) + (" (batched)" if self._is_batched else "")

    def __repr__(self) -> str:
        return f"{repr(self._inner).removesuffix('>')}, map={self._name()}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return MappedDataset, (self._inner, self._function, self._is_batched)
