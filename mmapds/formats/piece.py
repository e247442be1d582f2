"""What a scan yields, whatever the format."""

from typing import NamedTuple


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
