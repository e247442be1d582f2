"""JSON Lines: a record is a line that is not blank.

Bounds are line starts. A record owns the blank lines that follow it, so n records need only n + 1 bounds. The first
record starts after a byte order mark and any blank lines.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

from .. import _native
from ..storage.files import line_number, open_source, shrank
from ..storage.sections import IndexedSource
from ..storage.sources import Source, unreadable
from ..storage.threads import in_order
from .compressed_lines import scan as scan_compressed
from .format import End, Format, Layout, Piece, Sample, reserve_bytes, reserve_words
from .measuring import Measured, Measuring, UnmeasuredError
from .seams import Seam

_BOM = b"\xef\xbb\xbf"

# Measured by bench/bench_index.py: blocks of this size hide the cost of handing them out, and reads of this size stay
# in the second-level cache until they are scanned.
_LARGEST_BLOCK = 4 << 20
_SMALLEST_BLOCK = 256 << 10
_READ = 256 << 10

# A source that cannot be mapped is read block by block, with bytes before it, to see whether its first line begins
# there, and bytes after it, for the end of its last record. Where these are too few, more are read.
_BEFORE = 4 << 10
_AFTER = 64 << 10

# A two-byte record costs an eight-byte bound, so the blocks in flight may need four times their size.
_MEMORY = 64 << 20


class JsonLines(Format):
    """Lines of JSON.

    Args:
      block_size: bytes that one thread scans at a time; by default as many as fit the memory for all threads.
    """

    name = "jsonl"
    suffixes = (".jsonl", ".ndjson")
    is_text = True
    begins_anywhere = True
    reads_compressed = True

    def __init__(self, block_size: int | None = None) -> None:
        self._block_size = block_size

    def parameters(self, given: Mapping[str, Any], sources: Sequence[str]) -> dict[str, Any]:
        """Return no parameters: JSONL has no options."""
        return {}

    def layout(self, parameters: Mapping[str, Any], source: IndexedSource) -> Layout:
        """A payload is the first line between two bounds; blank lines and skipped records may follow it."""
        return Layout(_native.FRAMING_FIRST_LINE if source.skipped else _native.FRAMING_LINES)

    def decoder(self, parameters: Mapping[str, Any]) -> Sample:
        """A payload is JSON."""
        return "json"

    def scan(
        self, sources: Sequence[Source], parameters: Mapping[str, Any], measuring: Measuring, *, workers: int
    ) -> Iterator[Piece]:
        """Yield the start of every record of every source, in order, and its columns; threads share out blocks."""
        kept = first = 0
        for codec, run in groupby(sources, lambda source: source.codec):
            group = list(run)
            pieces = self._scan_compressed if codec else self._scan_files
            for piece in pieces(group, measuring, kept, workers):
                kept += piece.records
                yield piece._replace(source=first + piece.source) if first else piece
            first += len(group)

    def _scan_compressed(
        self, sources: Sequence[Source], measuring: Measuring, kept: int, workers: int
    ) -> Iterator[Piece]:
        """Scan sources one after another; threads share out the blocks of each.

        Args:
          kept: records before them.
        """
        for number, source in enumerate(sources):
            for piece in scan_compressed(number, source, measuring, kept, workers):
                kept += piece.records
                yield piece

    def _scan_files(self, sources: Sequence[Source], measuring: Measuring, kept: int, workers: int) -> Iterator[Piece]:
        """Scan files as they lie there; see `_scan_compressed`."""
        block_size = self._block_size or min(max(_MEMORY // (4 * (workers + 2)), _SMALLEST_BLOCK), _LARGEST_BLOCK)
        blocks = _blocks(sources, block_size, measured=bool(measuring))
        workers = min(workers, sum(max(-(-(source.stop - source.begin) // block_size), 1) for source in sources))
        in_flight = workers + 2 if workers > 1 else 1
        slot_size = min(block_size, max(source.stop - source.begin for source in sources))
        slots = [_Slot(slot_size, len(measuring.columns)) for _ in range(in_flight)]
        seam, newlines = Seam(), 0  # of the source
        work = partial(_scan_block, measuring)
        scanned = in_order(work, blocks, workers=workers, slots=slots)
        while (item := _next(scanned, kept, measuring)) is not None:
            block, measured = item
            starts, columns, skipped, still_pending, found = measured[:5]
            is_first = block.begin == block.source.begin
            newlines = 0 if is_first else newlines
            starts = seam.join(block.begin, starts, still_pending, is_first=is_first)
            bad_at = tuple((newlines + lines + 1, start) for lines, start in measured.bad_at)
            newlines += found
            kept += len(starts)
            stop = block.source.stop
            # A line without a line end counts as one; pending == stop means that nothing follows the last line end.
            end = End(newlines + (seam.pending != stop and stop > 0), stop) if block.end == stop else None
            piece = Piece(block.number, starts, columns, skipped, block.end - block.begin, end)
            yield piece._replace(filled=measured.filled, bad=measured.bad, bad_at=bad_at)


def _next(
    scanned: Iterator[tuple["_Block", Measured]], kept: int, measuring: Measuring
) -> tuple["_Block", Measured] | None:
    """Return the next block, None after the last.

    Args:
      kept: records before it.
    Raises:
      ColumnError, DecodeError: it has a record that cannot be measured.
    """
    try:
        return next(scanned, None)
    except UnmeasuredError as found:
        from .unmeasured import error_of  # start-up time: only an error needs it

        place = f"{found.path}:{line_number(found.path, found.begin)} (byte {found.begin})"
        raise error_of(found, place, kept + found.kept, measuring.columns) from None


class _Block(NamedTuple):
    number: int
    source: Source
    begin: int
    end: int
    file: _native.Map | None
    """The source, where records are measured too."""


class _Slot:
    """Memory for one block."""

    def __init__(self, block_size: int, columns: int) -> None:
        self.starts, *self.cells = (reserve_words(block_size // 2 + 2) for _ in range(1 + columns))
        self.read = reserve_bytes(_READ)


def _blocks(sources: Sequence[Source], block_size: int, *, measured: bool) -> Iterator[_Block]:
    for number, source in enumerate(sources):
        file = open_source(source, scan=False) if measured else None
        for begin in range(source.begin, max(source.stop, 1), block_size):
            yield _Block(number, source, begin, min(begin + block_size, source.stop), file)


def _scan_block(measuring: Measuring, block: _Block, slot: _Slot) -> tuple[_Block, Measured]:
    try:
        return block, _scan_starts(block, slot) if block.file is None else _measure(measuring, block, slot, block.file)
    except EOFError:
        raise shrank(block.source) from None
    except OSError as error:
        raise unreadable(block.source.path, error) from None


def _scan_starts(block: _Block, slot: _Slot) -> Measured:
    fd = os.open(block.source.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        begin = _first_byte(block, os.pread(fd, len(_BOM), 0))
        count, pending, newlines = _native.scan_lines(fd, begin, block.end, begin, slot.starts, slot.read)
    finally:
        os.close(fd)
    return Measured(slot.starts[:count], (), 0, pending, newlines)


def _measure(measuring: Measuring, block: _Block, slot: _Slot, file: _native.Map) -> Measured:
    begin = _first_byte(block, file.read(0, min(len(_BOM), file.size)))
    if file.is_mapped:
        file.populate(block.begin, block.end)
        text, base = memoryview(file)[: block.source.stop], 0
    else:
        text, base = _read_text(block, file)
    return measuring.scan(block.source.path, text, base, (begin, block.end), slot.starts, tuple(slot.cells))


def _read_text(block: _Block, file: _native.Map) -> tuple[memoryview, int]:
    """Read a block, the end of the line before it, and its last line to the end.

    Returns:
      The text, and where it begins in the source.
    Raises:
      EOFError: the source was cut short.
    """
    before, after, stop = _BEFORE, _AFTER, block.source.stop
    while True:
        base, end = max(block.begin - before, 0), min(block.end + after, stop)
        text = file.read(base, end - base)
        last = max(block.end - 1, block.begin) - base  # a line that goes on after the block holds this byte
        if end < stop and text.find(b"\n", last) < 0:
            after *= 4
        elif base and not text[: block.begin - base].strip(b" \t\r"):
            before *= 16
        else:
            return memoryview(text), base


def _first_byte(block: _Block, head: bytes) -> int:
    """Return where the text of a block begins: after a byte order mark at the start of a source."""
    return len(_BOM) if block.begin == 0 and head == _BOM else block.begin
