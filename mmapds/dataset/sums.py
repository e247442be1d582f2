"""Running sums of numbers of records: what windows, blocks and repeated records are found by."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_128

from ..errors import Error
from ..storage.lock import replacing
from ..storage.numbers import scratch
from ..storage.sources import StrPath, reason

Int64s = NDArray[np.int64]
_PIECE = 1 << 20  # records at a time


class Sums:
    """The sums of integers of 0 or more, one for each record, up to each record.

    Args:
      ends: these sums; None if all numbers are equal.
      each: the number of every record, if `ends` is None.
      records: how many there are.
      path: the file in which the sums lie, if they are saved.
    """

    def __init__(self, ends: Int64s | None, each: int, records: int, path: str | None = None) -> None:
        self._ends, self._each, self._records, self._path = ends, each, records, path

    @classmethod
    def even(cls, each: int, records: int) -> Sums:
        """Return the sums of equal numbers, which take no memory."""
        return cls(None, each, records)

    @classmethod
    def of(
        cls,
        numbers: NDArray[Any],
        counts: Callable[[NDArray[Any]], NDArray[Any]],
        saved: StrPath | None = None,
        what: object = "",
    ) -> Sums:
        """Return the sums of what a function makes of numbers; 8 bytes a record.

        Args:
          numbers: shape (records,).
          counts: returns integers of 0 or more for some of them.
          saved: the directory of a file with the sums, which is made if it is not there; None makes no file.
          what: tells apart functions, in the name of the file.
        Raises:
          Error: the file cannot be made.
        """
        if saved is None:
            return cls(_running(numbers, counts), 0, len(numbers))
        digest = xxh3_128(repr((what, numbers.dtype.str)).encode())
        for begin in range(0, len(numbers), _PIECE):
            digest.update(np.ascontiguousarray(numbers[begin : begin + _PIECE]).data)
        # The name follows from all that the sums depend on, so a file of this name is never out of date.
        path = os.path.join(os.path.abspath(saved), f"{digest.hexdigest()}.npy")
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            if not os.path.exists(path):
                with replacing(path, os.path.dirname(path), lambda: None) as file:
                    np.save(file, _running(numbers, counts))
            return cls.mapped(path)
        except (OSError, ValueError) as error:
            why = reason(error) if isinstance(error, OSError) else error
            raise Error(f"{path}: cannot keep running sums here ({why}); give another directory") from None

    @classmethod
    def mapped(cls, path: str) -> Sums:
        """Return the sums in a file."""
        ends = np.load(path, mmap_mode="r").view(np.ndarray)
        return cls(ends, 0, len(ends), path)

    def __len__(self) -> int:
        return self._records

    @property
    def total(self) -> int:
        """The sum of all numbers."""
        if self._ends is None:
            return self._each * self._records
        return int(self._ends[-1]) if self._records else 0

    def records_at(self, places: Int64s) -> Int64s:
        """Return the record to which each place below `total` belongs."""
        if self._ends is None:
            return places // self._each
        return self._ends.searchsorted(places, side="right").astype(np.int64, copy=False)

    def of_each(self, records: Int64s) -> list[int]:
        """Return the number of each record."""
        if self._ends is None:
            return [self._each] * len(records)
        found: list[int] = (self._ends[records] - self.before(records)).tolist()
        return found

    def before(self, records: Int64s) -> Int64s:
        """Return the sum of the numbers before each record."""
        if self._ends is None:
            return records * self._each
        return np.where(records > 0, self._ends[np.maximum(records, 1) - 1], 0)

    def __reduce__(self) -> tuple[Any, ...]:
        if self._path is not None:
            return Sums.mapped, (self._path,)
        return Sums, (self._ends, self._each, self._records)


def _running(numbers: NDArray[Any], counts: Callable[[NDArray[Any]], NDArray[Any]]) -> Int64s:
    """Return the sums up to each number, in scratch memory."""
    ends, last = np.frombuffer(scratch(8 * len(numbers)), np.int64, len(numbers)), 0
    for begin in range(0, len(numbers), _PIECE):
        piece = slice(begin, begin + _PIECE)
        ends[piece] = last + np.cumsum(counts(numbers[piece]), dtype=np.int64)
        last = int(ends[piece][-1])
    return ends
