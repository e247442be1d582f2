"""JSON Lines: a record is a line that is not blank.

Bounds are line starts. A record owns the blank lines that follow it, so n records need n + 1 bounds and no more,
and the first record starts after a byte order mark and any blank lines before it.
"""

import mmap
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from .. import _native
from ..errors import SourceError
from ..storage.index_file import IndexedSource
from ..storage.sources import Source, unreadable
from ..storage.threads import in_order
from .format import End, Layout, Piece
from .measuring import Measured, Measuring

NAME = "jsonl"
SUFFIXES = (".jsonl", ".ndjson")
TEXT = True
OPTIONS: dict[str, Any] = {}

_BOM = b"\xef\xbb\xbf"

# bench/bench_index.py: blocks this large hide the cost of handing them out, and reads this large stay in the
# second-level cache until they are scanned.
_LARGEST_BLOCK = 4 << 20
_SMALLEST_BLOCK = 256 << 10
_READ = 256 << 10

# A two-byte record costs an eight-byte bound, so the blocks in flight may need four times their size.
_MEMORY = 64 << 20


def parameters(given: Mapping[str, Any], sources: Sequence[str]) -> dict[str, Any]:  # noqa: ARG001 - the face of formats
    """JSONL has none."""
    return {}


def layout(parameters: Mapping[str, Any], source: IndexedSource) -> Layout:  # noqa: ARG001
    """How the payload lies between two bounds; records that were skipped lie in the tail of the one before."""
    return Layout(_native.FRAMING_FIRST_LINE if source.skipped else _native.FRAMING_LINES)


def decoder(parameters: Mapping[str, Any]) -> str:  # noqa: ARG001
    """What makes a sample of a record."""
    return "json"


class _Block(NamedTuple):
    number: int
    source: Source
    begin: int
    end: int
    map: _native.Map | None
    """The source, where records are measured too."""


class _Slot:
    """Memory for one block, mapped, so that only what a block fills is ever touched."""

    def __init__(self, block_size: int, columns: int) -> None:
        starts, *cells = (memoryview(_private((block_size // 2 + 2) * 8)).cast("Q") for _ in range(1 + columns))
        self.starts, self.cells = starts, cells
        self.read = _private(_READ)


def _private(size: int) -> mmap.mmap:
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def scan(
    sources: Sequence[Source],
    *,
    parameters: Mapping[str, Any],  # noqa: ARG001
    workers: int,
    measuring: Measuring,
    block_size: int | None = None,
) -> Iterator[Piece]:
    """Yield the start of every record of every source, in order, and its columns.

    Args:
      workers: threads that scan blocks; a large file is cut into blocks too.
      measuring: what is measured of each record.
      block_size: bytes in a block; by default as many as the threads have memory for.
    Raises:
      SourceError: a source became shorter or unreadable.
      ColumnError, DecodeError: a record cannot be measured.
    """
    if block_size is None:
        block_size = min(max(_MEMORY // (4 * (workers + 2)), _SMALLEST_BLOCK), _LARGEST_BLOCK)
    blocks = _blocks(sources, block_size, mapped=bool(measuring))
    workers = min(workers, sum(max(-(-source.size // block_size), 1) for source in sources))
    in_flight = workers + 2 if workers > 1 else 1
    slot_size = min(block_size, max(source.size for source in sources))
    slots = [_Slot(slot_size, len(measuring.columns)) for _ in range(in_flight)]
    pending: int | None = None  # start of the line that is open where the block begins, while it is blank
    newlines = 0
    work = partial(_scan_block, measuring)
    for block, measured in in_order(work, blocks, workers=workers, slots=slots):
        starts, columns, skipped, still_pending, found = measured
        if block.begin == 0:
            newlines = 0
        elif starts and starts[0] == block.begin:
            # The block fell into a line that goes on with something that is not blank.
            if pending is None:
                starts = starts[1:]
            else:
                starts[0] = pending
        if block.begin == 0 or still_pending != block.begin:
            pending = still_pending
        newlines += found
        last = block.end == block.source.size
        # A line without a line end still counts as one; pending == size means there is nothing after the last line end.
        lines = newlines + (pending != block.source.size and block.source.size > 0)
        end = End(lines, block.source.size) if last else None
        yield Piece(block.number, starts, columns, skipped, block.end - block.begin, end)


def _blocks(sources: Sequence[Source], block_size: int, *, mapped: bool) -> Iterator[_Block]:
    for number, source in enumerate(sources):
        view = _map(source) if mapped else None
        for begin in range(0, max(source.size, 1), block_size):
            yield _Block(number, source, begin, min(begin + block_size, source.size), view)


def _map(source: Source) -> _native.Map:
    try:
        view = _native.Map(source.path)
    except OSError as error:
        raise unreadable(source.path, error) from None
    if view.size != source.size:
        raise SourceError(f"{source.path}: was {source.size} bytes and is {view.size} now; is something writing to it?")
    return view


def _scan_block(measuring: Measuring, block: _Block, slot: _Slot) -> tuple[_Block, Measured]:
    if block.map is None:
        return block, _scan_starts(block, slot)
    try:
        found = os.stat(block.source.path).st_size
    except OSError as error:
        raise unreadable(block.source.path, error) from None
    if found < block.end:  # a map of what is no longer there would end the process
        raise SourceError(f"{block.source.path}: became shorter than {block.end} bytes while it was read")
    begin = _first_byte(block, bytes(memoryview(block.map)[: len(_BOM)]))
    cells = tuple(slot.cells)
    return block, measuring.scan(block.source.path, block.map, begin, block.end, slot.starts, cells)


def _first_byte(block: _Block, head: bytes) -> int:
    """Where a block's text begins: after the mark in the first block of a source that has one."""
    return len(_BOM) if block.begin == 0 and head == _BOM else block.begin


def _scan_starts(block: _Block, slot: _Slot) -> Measured:
    try:
        fd = os.open(block.source.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            begin = _first_byte(block, os.pread(fd, len(_BOM), 0))
            count, pending, newlines = _native.scan_lines(fd, begin, block.end, begin, slot.starts, slot.read)
        finally:
            os.close(fd)
    except EOFError:
        raise SourceError(f"{block.source.path}: became shorter than {block.end} bytes while it was read") from None
    except OSError as error:
        raise unreadable(block.source.path, error) from None
    return Measured(slot.starts[:count], (), 0, pending, newlines)
