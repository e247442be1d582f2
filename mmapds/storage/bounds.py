"""The bounds of records as an index holds them: of each source, in groups as narrow as its records allow."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from .. import _native
from .numbers import U64

if TYPE_CHECKING:
    from .sections import SectionWriter

SECTION = "offsets"
GROUP = 64
"""Bytes of a group: a bound of 8 bytes, and the distances from there to those that follow."""
WIDTHS = (2, 3, 4, 8)
"""How many bytes a distance may have; in a source, the fewest that all of its distances fit."""
_PIECE = 1 << 20  # bytes of groups, a multiple of their size


def records_in_group(width: int) -> int:
    """Return how many records have both their bounds in a group."""
    return (GROUP - U64.width) // width


def groups_of(width: int, records: int) -> int:
    """Return how many groups the bounds of a source take."""
    return records // records_in_group(width) + 1


def unpacked(width: int, groups: "bytes | memoryview") -> memoryview:
    """Return the bounds at which the records of whole groups begin, uint64."""
    return memoryview(_native.unpack_bounds(width, groups)).cast("Q")


def gaps(width: int, groups: bytes) -> list[tuple[int, int, int]]:
    """Return where groups that follow each other do not hang together, as the end of one is also its neighbour's begin.

    Returns:
      For each of them its place among `groups`, where its last record ends, and where it should.
    """
    import numpy as np  # start-up time: only `verify` looks

    table = np.frombuffer(groups, np.uint8).reshape(-1, GROUP)
    firsts = np.ascontiguousarray(table[:, : U64.width]).view(U64.dtype)[:, 0]
    last = U64.width + (records_in_group(width) - 1) * width
    cells = np.zeros((len(table), U64.width), np.uint8)
    cells[:, :width] = table[:, last : last + width]
    distances = cells.view(U64.dtype)[:, 0]
    places = np.flatnonzero(distances[:-1] != np.diff(firsts))
    return [(place, int(firsts[place]) + int(distances[place]), int(firsts[place + 1])) for place in places.tolist()]


class BoundsWriter:
    """Writes the section of bounds, source by source, in one pass.

    The bounds of a source begin with the smallest width. Where a group does not fit it, what was written of the source
    is taken back, and written again with the next one. As a rule that is soon, as a source is alike from end to end.
    """

    def __init__(self, writer: "SectionWriter") -> None:
        self._writer = writer
        writer.begin_section(SECTION, U64.dtype)
        self._begin()

    def _begin(self) -> None:
        self._width = WIDTHS[0]
        self._mark = self._writer.mark()
        self._held = memoryview(b"").cast("Q")  # bounds that do not fill a group yet

    def append(self, bounds: memoryview) -> None:
        """Append where the next records of the source at hand begin, uint64."""
        groups = _native.pack_bounds(self._width, self._held, bounds)
        records = records_in_group(self._width)
        if groups:
            self._writer.write(groups)
            bounds = bounds[len(groups) // GROUP * records - len(self._held) :]
            self._held = self._held[:0]
        if len(self._held) + len(bounds) > records:
            self._widen()
            self.append(bounds)
        else:
            self._held = memoryview(self._held.tobytes() + bounds.tobytes()).cast("Q")

    def _widen(self) -> None:
        """Write what there is of the source again, with the next width."""
        width, held = self._width, self._held
        self._width, self._held = WIDTHS[WIDTHS.index(width) + 1], held[:0]
        groups = self._writer.take_back(self._mark)
        for begin in range(0, len(groups), _PIECE):
            self.append(unpacked(width, groups[begin : begin + _PIECE]))
        self.append(held)

    def finish(self, end: int) -> int:
        """End the source at hand where its last record ends; return its width."""
        last = end.to_bytes(U64.width, "little")
        self.append(memoryview(last).cast("Q"))
        while not (group := self._last_group(last)):
            self._widen()
        self._writer.write(group)
        width = self._width
        self._begin()
        return width

    def begin_with(self, width: int, groups: Iterable[bytes]) -> None:
        """Begin a source with whole groups of it, as another index has them.

        Args:
          width: of these. The source has it too, or a larger one, as it has all their records.
        """
        self._width = width
        for piece in groups:
            self._writer.write(piece)

    def copy(self, groups: Iterable[bytes]) -> None:
        """Append the groups of whole sources, as another index has them."""
        for piece in groups:
            self._writer.write(piece)
        self._begin()

    def _last_group(self, last: bytes) -> bytearray:
        """Return the bounds that are held as a group, filled up with the last one; empty if the width does not fit."""
        return _native.pack_bounds(
            self._width, self._held, last * (records_in_group(self._width) + 1 - len(self._held))
        )
