"""Where a record lies, as `ds.where` says it."""

from typing import NamedTuple, Self


class Location(NamedTuple):
    """Where a record lies."""

    source: str
    """Path of the file."""
    offset: int
    """Byte of the file at which the payload begins; of a compressed file, byte of its content."""
    size: int
    """Bytes in the payload."""


class BlockLocation(Location):
    """Where a record of a compressed file lies: also where in the file."""

    block: int
    """Byte of the file at which the block begins that has the first byte of the payload."""

    @classmethod
    def of(cls, source: str, offset: int, size: int, block: int) -> Self:
        """Make one."""
        found = cls(source, offset, size)
        found.block = block
        return found
