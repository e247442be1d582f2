"""JSON Lines: a record is a line that is not blank.

Bounds are line starts. A record owns the blank lines that follow it, so n records need only n + 1 bounds. The first
record starts after a byte order mark and any blank lines.
"""

import mmap
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from .. import _native
from ..errors import SourceError
from ..storage.index_file import IndexedSource
from ..storage.sources import Source, map_source, unreadable
from ..storage.threads import in_order
from .format import End, Format, Layout, Piece, Sample, reserve_words
from .measuring import Measured, Measuring

_BOM = b"\xef\xbb\xbf"

# Measured by bench/bench_index.py: blocks of this size hide the cost of handing them out, and reads of this size stay
# in the second-level cache until they are scanned.
_LARGEST_BLOCK = 4 << 20
_SMALLEST_BLOCK = 256 << 10
_READ = 256 << 10

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
        block_size = self._block_size or min(max(_MEMORY // (4 * (workers + 2)), _SMALLEST_BLOCK), _LARGEST_BLOCK)
        blocks = _blocks(sources, block_size, mapped=bool(measuring))
        workers = min(workers, sum(max(-(-source.size // block_size), 1) for source in sources))
        in_flight = workers + 2 if workers > 1 else 1
        slot_size = min(block_size, max(source.size for source in sources))
        slots = [_Slot(slot_size, len(measuring.columns)) for _ in range(in_flight)]
        pending: int | None = None  # start of the line that the block begins in, while that is blank so far
        newlines = 0
        work = partial(_scan_block, measuring)
        for block, measured in in_order(work, blocks, workers=workers, slots=slots):
            starts, columns, skipped, still_pending, found = measured
            if block.begin == 0:
                newlines = 0
            elif starts and starts[0] == block.begin:
                # The block begins inside a line, whose rest is not blank.
                if pending is None:
                    starts = starts[1:]
                else:
                    starts[0] = pending
            if block.begin == 0 or still_pending != block.begin:
                pending = still_pending
            newlines += found
            last = block.end == block.source.size
            # A line without a line end counts as one; pending == size means that nothing follows the last line end.
            lines = newlines + (pending != block.source.size and block.source.size > 0)
            end = End(lines, block.source.size) if last else None
            yield Piece(block.number, starts, columns, skipped, block.end - block.begin, end)


class _Block(NamedTuple):
    number: int
    source: Source
    begin: int
    end: int
    map: _native.Map | None
    """The source, where records are measured too."""


class _Slot:
    """Memory for one block."""

    def __init__(self, block_size: int, columns: int) -> None:
        self.starts, *self.cells = (reserve_words(block_size // 2 + 2) for _ in range(1 + columns))
        self.read = mmap.mmap(-1, _READ, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def _blocks(sources: Sequence[Source], block_size: int, *, mapped: bool) -> Iterator[_Block]:
    for number, source in enumerate(sources):
        view = map_source(source) if mapped else None
        for begin in range(0, max(source.size, 1), block_size):
            yield _Block(number, source, begin, min(begin + block_size, source.size), view)


def _scan_block(measuring: Measuring, block: _Block, slot: _Slot) -> tuple[_Block, Measured]:
    if block.map is None:
        return block, _scan_starts(block, slot)
    try:
        found = os.stat(block.source.path).st_size
    except OSError as error:
        raise unreadable(block.source.path, error) from None
    if found < block.end:  # reading a map beyond the end of its file would end the process
        raise _shrank(block.source, found)
    begin = _first_byte(block, bytes(memoryview(block.map)[: len(_BOM)]))
    cells = tuple(slot.cells)
    return block, measuring.scan(block.source.path, block.map, begin, block.end, slot.starts, cells)


def _first_byte(block: _Block, head: bytes) -> int:
    """Return where the text of a block begins: after a byte order mark at the start of a source."""
    return len(_BOM) if block.begin == 0 and head == _BOM else block.begin


def _scan_starts(block: _Block, slot: _Slot) -> Measured:
    try:
        fd = os.open(block.source.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            begin = _first_byte(block, os.pread(fd, len(_BOM), 0))
            count, pending, newlines = _native.scan_lines(fd, begin, block.end, begin, slot.starts, slot.read)
        except EOFError:
            raise _shrank(block.source, os.fstat(fd).st_size) from None
        finally:
            os.close(fd)
    except OSError as error:
        raise unreadable(block.source.path, error) from None
    return Measured(slot.starts[:count], (), 0, pending, newlines)


def _shrank(source: Source, found: int) -> SourceError:
    return SourceError(
        f"{source.path}: expected {source.size} bytes, found {found} while reading; run again when nothing writes to it"
    )
