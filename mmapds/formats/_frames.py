"""Length-prefixed records: the scan that all formats of them share."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from .. import _native
from ..errors import FormatError, either, option
from ..storage.files import open_source
from ..storage.sections import IndexedSource
from ..storage.sources import Source
from ..storage.threads import cores, in_order
from . import compressed_frames
from .compressed_frames import CUT, Stop
from .format import End, Format, Layout, Piece, drops_truncated, reserve_words
from .measuring import Measuring

_CHECKED = {_native.FRAMES_LENGTH_CRC: "length", _native.FRAMES_DATA_CRC: "data"}


class Framed(Format):
    """A format of length-prefixed records.

    Args:
      room: records in a piece of a scan, at most.
      step: bytes in a piece; the last record of a piece may reach further. Without it, a scan of large records could
        not be interrupted and would not report its progress.
    """

    begins_anywhere = True
    reads_compressed = True

    def __init__(self, room: int = 1 << 17, step: int = 256 << 20) -> None:
        self._room = room
        self._step = step

    @abstractmethod
    def framing(self, parameters: Mapping[str, Any]) -> int:
        """Return which of the core's framings the records have."""

    def layout(self, parameters: Mapping[str, Any], source: IndexedSource) -> Layout:
        """The framing finds a payload between two bounds."""
        return Layout(self.framing(parameters))

    def scan(
        self, sources: Sequence[Source], parameters: Mapping[str, Any], measuring: Measuring, *, workers: int
    ) -> Iterator[Piece]:
        """Yield the start of every record of every source, in order, and its size where that is measured.

        Threads share out neighbouring files that are plain; they decode those that are compressed, one after another.
        """
        first = 0
        for codec, run in groupby(sources, lambda source: source.codec):
            group = list(run)
            pieces = self._scan_compressed if codec else self._scan_files
            for piece in pieces(group, parameters, measuring, workers):
                yield piece._replace(source=first + piece.source) if first else piece
            first += len(group)

    def _scan_compressed(
        self, sources: Sequence[Source], parameters: Mapping[str, Any], measuring: Measuring, workers: int
    ) -> Iterator[Piece]:
        framing, drop = self.framing(parameters), drops_truncated(parameters)
        for number, source in enumerate(sources):
            try:
                yield from compressed_frames.scan(number, source, framing, measuring, workers, drop=drop)
            except compressed_frames.StoppedError as error:
                raise _error_in_content(source, error.stop) from None

    def _scan_files(
        self, sources: Sequence[Source], parameters: Mapping[str, Any], measuring: Measuring, workers: int
    ) -> Iterator[Piece]:
        """Scan files as they lie there.

        A source is one walk from length to length, so threads share out whole sources. They scan the first piece of
        each, and most shards are no larger; the other pieces are scanned here.
        """
        workers = min(workers, len(sources))
        slots = [_Slot(self._room, bool(measuring.columns)) for _ in range(workers + 2 if workers > 1 else 1)]
        framing, drop = self.framing(parameters), drops_truncated(parameters)

        def begin(task: tuple[int, Source], slot: _Slot) -> tuple[Piece, _Walk]:
            return _Walk(*task, framing, slot, self._step).piece(measuring, drop=drop)

        for piece, walk in in_order(begin, enumerate(sources), workers=workers, slots=slots):
            yield piece
            while piece.end is None:
                piece, _ = walk.piece(measuring, drop=drop)
                yield piece

    def verify_checksums(self, source: Source) -> None:
        """Check every CRC of a TFRecord file, up to an incomplete last record.

        Raises:
          FormatError: a CRC does not match.
        """
        if source.codec:
            try:
                compressed_frames.check_payloads(source, cores())
            except compressed_frames.StoppedError as error:
                raise _error_in_content(source, error.stop) from None
            return
        view = open_source(source)
        at = records = 0
        while at < source.size:
            count, at, status, *details = _native.frames_verify(view, at, min(at + self._step, source.size))
            records += count
            if status in CUT:
                return
            if status != _native.FRAMES_OK:
                raise _error(source, records, at, status, *details)


class _Slot:
    """Memory for one piece."""

    def __init__(self, room: int, measured: bool) -> None:
        self.starts = reserve_words(room)
        self.sizes = reserve_words(room) if measured else None


class _Walk:
    """A scan of one source, a piece at a time."""

    def __init__(self, number: int, source: Source, framing: int, slot: _Slot, step: int) -> None:
        self._number, self._source, self._framing, self._slot, self._step = number, source, framing, slot, step
        self._map = open_source(source)
        self._at, self._records = source.begin, 0

    def piece(self, measuring: Measuring, *, drop: bool) -> tuple[Piece, "_Walk"]:
        """Scan the next piece; return it and this walk."""
        begin, stop, slot = self._at, self._source.stop, self._slot
        end = min(begin + self._step, stop)
        count, at, status, *details = _native.frames_scan(self._map, self._framing, begin, end, slot.starts, slot.sizes)
        self._at = at
        self._records += count
        cut = drop and status in CUT
        if status != _native.FRAMES_OK and not cut:
            raise _error(self._source, self._records, at, status, *details)
        done = cut or at >= stop
        columns = measuring.sizes(slot.starts[:0] if slot.sizes is None else slot.sizes[:count])
        scanned = (stop if done else at) - begin
        last = End(self._records, at) if done else None
        return Piece(self._number, slot.starts[:count], columns, int(cut), scanned, last), self


def _error_in_content(source: Source, stop: Stop) -> FormatError:
    size = stop.expected if stop.status in CUT else source.size
    return _error(source._replace(size=size), *stop)


def _error(source: Source, record: int, at: int, status: int, payload: int, found: int, expected: int) -> FormatError:
    place = f"{source.path}: record {record} (byte {at})"
    end = f"found the end of the file {source.size - at} bytes into the record"
    if status == _native.FRAMES_PREFIX_CUT:
        return FormatError(f"{place}: expected a whole length prefix, {end}; {_drop()}")
    if status == _native.FRAMES_PAYLOAD_CUT:
        return FormatError(f"{place}: expected a payload of {payload} bytes, {end}; {_drop()}")
    if status == _native.FRAMES_NO_VARINT:
        return FormatError(f"{place}: expected a varint of up to 64 bits, found a longer one; {_copy()}")
    if status in _CHECKED:
        what = f"the CRC of the {_CHECKED[status]}"
        return FormatError(f"{place}: expected {expected:#010x} as {what}, found {found:#010x}; {_copy()}")
    raise AssertionError(f"{place}: expected a status that is one of FRAMES_*, found {status}")


def _drop() -> str:
    return f"leave it out with {option('truncated', 'drop')} (if the file was truncated)"


def _copy() -> str:
    return f"copy the file again, or choose its format with {either('--format F', 'format=...')}"
