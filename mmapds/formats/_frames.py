"""Records that say how long they are: what the formats of length-prefixed records share."""

import mmap
from collections.abc import Iterator, Sequence

from .. import _native
from ..errors import FormatError, SourceError
from ..storage.sources import Source, unreadable
from ..storage.threads import in_order
from .format import End, Piece
from .measuring import Measuring

_CUT = (_native.FRAMES_PREFIX_CUT, _native.FRAMES_PAYLOAD_CUT)
_ROOM = 1 << 17  # records in a piece
_STEP = 256 << 20  # bytes in a piece, so that a scan of large records can be interrupted and seen to go on
_DROP = "if it was cut short, leave it out with --truncated drop"


class _Slot:
    """Memory for one piece, mapped, so that only what a piece fills is ever touched."""

    def __init__(self, room: int, measured: bool) -> None:
        self.starts = _private(room)
        self.sizes = _private(room) if measured else None


def _private(words: int) -> memoryview:
    return memoryview(mmap.mmap(-1, 8 * words, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)).cast("Q")


class _Walk:
    """A scan of one source on its way, a piece at a time."""

    def __init__(self, number: int, source: Source, framing: int, slot: _Slot, step: int) -> None:
        self._number, self._source, self._framing, self._slot, self._step = number, source, framing, slot, step
        self._map = mapped(source)
        self._at = self._records = 0

    def piece(self, truncated: str, measuring: Measuring) -> tuple[Piece, "_Walk"]:
        """Go on by one piece."""
        begin, size, slot = self._at, self._source.size, self._slot
        end = min(begin + self._step, size)
        count, at, status, *details = _native.frames_scan(self._map, self._framing, begin, end, slot.starts, slot.sizes)
        self._at = at
        self._records += count
        cut = status in _CUT and truncated == "drop"
        if status != _native.FRAMES_OK and not cut:
            raise _error(self._source, self._records, at, status, *details)
        done = cut or at == size
        columns = measuring.sizes(slot.starts[:0] if slot.sizes is None else slot.sizes[:count])
        scanned = (size if done else at) - begin
        last = End(self._records, at) if done else None
        return Piece(self._number, slot.starts[:count], columns, int(cut), scanned, last), self


def scan(
    sources: Sequence[Source],
    *,
    framing: int,
    truncated: str,
    workers: int,
    measuring: Measuring,
    room: int = _ROOM,
    step: int = _STEP,
) -> Iterator[Piece]:
    """Yield the start of every record of every source, in order, and its size where that is measured.

    A source is one walk from length to length, so threads share out sources: the first piece of each, which is all
    there is of a shard of a usual size.

    Args:
      room: records in a piece, at most.
      step: bytes in a piece; its last record may reach further.
    Raises:
      FormatError: a record is cut short, or its length makes no sense.
      SourceError: a source became unreadable.
      ColumnError: a column is asked for that only JSON has.
    """
    workers = min(workers, len(sources))
    slots = [_Slot(room, bool(measuring.columns)) for _ in range(workers + 2 if workers > 1 else 1)]

    def begin(task: tuple[int, Source], slot: _Slot) -> tuple[Piece, _Walk]:
        return _Walk(*task, framing, slot, step).piece(truncated, measuring)

    for piece, walk in in_order(begin, enumerate(sources), workers=workers, slots=slots):
        yield piece
        while piece.end is None:
            piece, _ = walk.piece(truncated, measuring)
            yield piece


def verify(source: Source) -> None:
    """Check every CRC of a TFRecord file, up to a last record that is cut short.

    Raises:
      FormatError: one is not what it should be.
    """
    view = mapped(source)
    at = records = 0
    while at < source.size:
        count, at, status, *details = _native.frames_verify(view, at, min(at + _STEP, source.size))
        records += count
        if status in _CUT:
            return
        if status != _native.FRAMES_OK:
            raise _error(source, records, at, status, *details)


def mapped(source: Source) -> _native.Map:
    """Map a source.

    Raises:
      SourceError: it is unreadable, or has another size than when it was first looked at.
    """
    try:
        view = _native.Map(source.path)
    except OSError as error:
        raise unreadable(source.path, error) from None
    if view.size != source.size:
        raise SourceError(f"{source.path}: was {source.size} bytes and is {view.size} now; is something writing to it?")
    return view


def _error(source: Source, record: int, at: int, status: int, payload: int, found: int, expected: int) -> FormatError:
    left = source.size - at
    place = f"{source.path}: record {record} (byte {at})"
    if status == _native.FRAMES_PREFIX_CUT:
        return FormatError(f"{place}: the file ends {left} bytes into its prefix; {_DROP}")
    if status == _native.FRAMES_PAYLOAD_CUT:
        return FormatError(f"{place}: is said to hold {payload} bytes, and the file ends {left} bytes on; {_DROP}")
    if status == _native.FRAMES_NO_VARINT:
        return FormatError(
            f"{place}: its prefix is no varint of up to 64 bits; the file is damaged, or of another format"
        )
    what = "length" if status == _native.FRAMES_LENGTH_CRC else "data"
    return FormatError(
        f"{place}: found {found:#010x} as the CRC of its {what}, expected {expected:#010x}; the file is damaged, or no "
        "TFRecord"
    )
