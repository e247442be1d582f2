"""Records of an array file that are given as columns, packed without an object for each value."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from .._native import NUMBER_I64, NUMBER_U64, pack_array_records
from .schema import Field, Schema

_PIECE = 1 << 20  # bytes of records that are packed at a time


class Values(NamedTuple):
    """The values of one field in some records. All arrays are u64, shape (records,)."""

    words: Sequence[Any] = ()  # numbers, or lengths of ragged axes, as the tables of records store them
    data: Any = None  # one buffer with the bytes of all records; None for numbers
    begins: Any = None  # where the bytes of each record begin in `data`
    sizes: Any = None  # how many bytes each record has


def cells_of(field: Field, values: Values) -> tuple[int, memoryview]:
    """Return the column of a field: the type of its cells, and the cells."""
    is_signed = field.number_type == NUMBER_I64 and values.words[0].view(np.int64).min(initial=0) < 0
    kind = NUMBER_U64 if field.number_type == NUMBER_I64 and not is_signed else field.number_type
    return kind, memoryview(values.words[0])


def packed(schema: Schema, values: Sequence[Values], count: int) -> Iterator[tuple[memoryview, Any]]:
    """Yield the bytes of records in pieces, valid until the next one, and where each record of a piece ends there.

    Args:
      values: those of all fields, in the order of the schema.
      count: number of records.
    """
    words: list[Any] = []
    runs: list[Any] = []
    arrays: list[Any] = []
    for field, found in zip(schema.fields, values, strict=True):
        is_run = field.shape is None and not field.is_scalar
        words += [found.sizes] if is_run else found.words
        if found.data is not None:
            (runs if is_run else arrays).append((found.data, found.begins, found.sizes, not is_run))
    first, room = 0, bytearray(_PIECE)
    while first < count:
        ends = np.empty(count - first, np.uint64)
        done, needed = pack_array_records(tuple(words), (*runs, *arrays), first, room, ends)
        if not done:
            room = bytearray(needed)
            continue
        yield memoryview(room)[: int(ends[done - 1])], ends[:done]
        first += done
