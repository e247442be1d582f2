"""Many records at once: columns of values as the bytes that an array file holds, put together in C."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from .. import _native
from .schema import Field, Schema

_PIECE = 1 << 20  # bytes of records that wait in memory


class Values(NamedTuple):
    """The values of one field in some records, all arrays u64 of shape (records,)."""

    words: Sequence[Any] = ()
    """What stands in the tables, except sizes of runs: numbers as they are stored, or the lengths of ragged axes."""
    data: Any = None
    """The bytes of all records, one buffer; None for numbers."""
    begins: Any = None
    """Where the bytes of each record begin in it."""
    sizes: Any = None
    """How many bytes each record has."""

    def chosen(self, rows: Any) -> "Values":
        """Return those of some records, shape (k,), which may repeat."""
        taken = [None if each is None else each[rows] for each in (self.begins, self.sizes)]
        return Values([word[rows] for word in self.words], self.data, *taken)


class Columns:
    """The values of all fields of a schema in some records.

    Args:
      schema: one field or more.
      values: those of each field, in the order of the schema.
      count: how many records there are.
    """

    def __init__(self, schema: Schema, values: Sequence[Values], count: int) -> None:
        self.count = count
        words: list[Any] = []
        runs: list[Any] = []
        arrays: list[Any] = []
        self._numbers: list[Any] = []
        for field, found in zip(schema.fields, values, strict=True):
            if field.column:
                self._numbers.append(found.words[0])
            is_run = field.shape is None and not field.is_scalar
            words += [found.sizes] if is_run else found.words
            if found.data is not None:
                (runs if is_run else arrays).append((found.data, found.begins, found.sizes, not is_run))
        self._words, self._parts = tuple(words), (*runs, *arrays)

    @property
    def nbytes(self) -> float:
        """About how many bytes the runs and arrays of all records have."""
        return float(sum(sizes.sum(dtype=np.float64) for _, _, sizes, _ in self._parts))

    def numbers(self, fields: Sequence[Field]) -> Iterator[tuple[int, memoryview]]:
        """Yield, for each field that has a column, the type of its cells for a spool, and the cells."""
        for field, words in zip(fields, self._numbers, strict=True):
            kind = field.number_type
            if kind == _native.NUMBER_I64 and words.view(np.int64).min(initial=0) >= 0:
                kind = _native.NUMBER_U64
            yield kind, memoryview(words)

    def pieces(self, at: int) -> Iterator[tuple[memoryview, memoryview]]:
        """Yield the records, some at a time: their bytes, and where each begins in a file that has the first at `at`.

        A piece holds until the next is asked for.
        """
        first, room = 0, bytearray(_PIECE)
        while first < self.count:
            ends = np.empty(self.count - first, np.uint64)
            packed, needed = _native.pack_array_records(self._words, self._parts, first, room, ends)
            if not packed:
                room = bytearray(needed)
                continue
            size = int(ends[packed - 1])
            starts: Any = np.empty(packed, np.uint64)
            starts[0], starts[1:] = at, ends[: packed - 1] + np.uint64(at)
            yield memoryview(room)[:size], memoryview(starts)
            first, at = first + packed, at + size
