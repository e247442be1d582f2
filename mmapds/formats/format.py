"""What every format is made of."""

from collections.abc import Mapping
from typing import Any, NamedTuple


class Layout(NamedTuple):
    """How the core finds the payload of a record in a source."""

    framing: int
    first: int = 0
    stride: int = 0
    """Where record 0 begins, and the size of every record, where they have one; else 0."""


class Piece(NamedTuple):
    """Some consecutive records of one source, in file order."""

    source: int
    starts: memoryview
    """uint64: where each begins; valid until the next piece. Empty where all records have one size."""
    columns: tuple[tuple[int, memoryview], ...]
    """For each column, the type of its numbers in this piece, and a 64-bit cell for each record."""
    skipped: int
    """Records left out because they lack a column, or are cut short."""
    scanned: int
    """Bytes of the source that this piece settles."""
    end: "End | None"
    """In the last piece of a source, what is known at its end."""
    keys: memoryview | None = None
    """uint64: the 32-bit hash of each record's key, where records have keys: see `mmapds.keys`."""


class End(NamedTuple):
    """What a scan says of a whole source."""

    lines: int
    """In text, how many; else how many records."""
    end: int
    """Where the last record ends, with all that it owns."""
    first: int = 0
    """Where the first record begins, where all have one size."""
    fixed: int | None = None
    """How many records there are, where all have one size and none has a bound."""


class ArrayOf(NamedTuple):
    """What a payload is: an array of plain numbers."""

    dtype: str
    shape: tuple[int, ...] | None
    """None: one axis, with as many numbers as the payload holds."""


class FieldsOf(NamedTuple):
    """What a payload is: named arrays and values; see `mmapds.arrays.schema`."""

    schema: Mapping[str, Any]


Sample = str | ArrayOf | FieldsOf
"""What a payload is: the name of a decoder, or an array, or fields."""
