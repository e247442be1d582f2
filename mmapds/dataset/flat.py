"""Tokens of records that lie one after another in their files, read without a look at each record."""

from __future__ import annotations

from bisect import bisect_right
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .. import _native, formats
from .dataset import Dataset
from .decode import RecordArray
from .indexed import IndexedDataset
from .sums import Int64s, Sums


class Flat:
    """The tokens of a dataset, by their numbers over all records.

    Args:
      dataset: all records of its indexes, as arrays of tokens.
      sums: of the tokens of records.
    """

    def __init__(self, dataset: IndexedDataset, sums: Sums) -> None:
        self._dataset, self._records = dataset, dataset._catalog.starts.astype(np.int64)
        self._bounds = sums.before(self._records)
        """The number of the first token of each file, then the number of all tokens."""
        self._starts = self._bounds.tolist()
        self._files: dict[int, _File | None] = {}

    @classmethod
    def of(cls, dataset: Dataset, field: str | None, sums: Sums) -> Flat | None:
        """Return the tokens of a dataset; None if records do not lie one after another, or are no arrays."""
        if field is not None or not isinstance(dataset, IndexedDataset) or dataset._rows is not None:
            return None
        if not isinstance(dataset._decode, RecordArray):
            return None
        catalog = dataset._catalog
        is_flat = all(formats.of_index(index).is_contiguous for index in catalog.indexes)
        # A cache of objects removes files, whose space a map would keep.
        return cls(dataset, sums) if is_flat and catalog.members and catalog.place_of_sources.is_disk else None

    def read(self, begins: Int64s, width: int) -> NDArray[Any] | None:
        """Return the runs of tokens that begin somewhere: shape (runs, width); None if one crosses files."""
        found = begins.tolist()
        member = bisect_right(self._starts, min(found)) - 1
        if max(found) + width <= self._starts[member + 1]:
            return self._runs(member, begins, width)
        members = self._bounds.searchsorted(begins, side="right") - 1
        groups = [members == member for member in np.unique(members)]
        parts = [None if len(groups) == 1 else self.read(begins[group], width) for group in groups]
        arrays = [part for part in parts if part is not None]
        if len(arrays) < len(groups):
            return None
        out = np.empty((len(begins), width), np.result_type(*arrays))
        for group, array in zip(groups, arrays, strict=True):
            out[group] = array
        return out

    def _runs(self, member: int, begins: Int64s, width: int) -> NDArray[Any] | None:
        """Return the runs that begin at some tokens of a file; None if its bytes are not those of the tokens."""
        file = self._files[member] if member in self._files else self._opened(member)
        if file is None:
            return None
        out, size = np.empty((len(begins), width), file.dtype), file.dtype.itemsize
        try:
            file.map.read_runs(file.begin + (begins - self._starts[member]) * size, width * size, out)
        except (EOFError, OSError) as error:
            self._dataset._catalog.lost(member, error.errno or 0 if isinstance(error, OSError) else 0)
        return out

    def _opened(self, member: int) -> _File | None:
        """Return a file; None if its bytes are not those of the tokens."""
        catalog, first, end = self._dataset._catalog, int(self._records[member]), int(self._records[member + 1])
        (_, _, begin, _), (_, _, _, stop) = (self._dataset._records.locate(each) for each in (first, end - 1))
        dtype, tokens = self._dataset[first].dtype, self._starts[member + 1] - self._starts[member]
        file: Any = catalog.open(member, None)[0]
        is_flat = isinstance(file, _native.Map) and stop - begin == tokens * dtype.itemsize
        found = self._files[member] = _File(file, begin, dtype) if is_flat else None
        return found


class _File(NamedTuple):
    """A file of tokens: where its first record begins."""

    map: _native.Map
    begin: int
    dtype: np.dtype[Any]
