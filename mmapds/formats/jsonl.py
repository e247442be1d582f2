"""JSON Lines: a record is a line that is not blank.

Bounds are line starts. A record owns the blank lines that follow it, so n records need n + 1 bounds and no more,
and the first record starts after a byte order mark and any blank lines before it.
"""

import mmap
import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from .. import _native
from ..errors import SourceError
from ..parallel import in_order
from ..sources import Source, unreadable

NAME = "jsonl"
SUFFIXES = (".jsonl", ".ndjson")
FRAMING = _native.FRAMING_LINES

_BOM = b"\xef\xbb\xbf"

# bench/bench_index.py: blocks this large hide the cost of handing them out, and reads this large stay in the
# second-level cache until they are scanned.
_LARGEST_BLOCK = 4 << 20
_SMALLEST_BLOCK = 256 << 10
_READ = 256 << 10

# A two-byte record costs an eight-byte bound, so the blocks in flight may need four times their size.
_MEMORY = 64 << 20


class Piece(NamedTuple):
    """Some consecutive bounds of one source, in file order."""

    source: int
    starts: memoryview
    """uint64 record starts; valid until the next piece."""
    scanned: int
    """Bytes of the source that this piece settles."""
    lines: int | None
    """Lines in the whole source, in its last piece; else None."""


class _Block(NamedTuple):
    number: int
    source: Source
    begin: int
    end: int


class _Slot:
    """Memory for one block, mapped, so that only what a block fills is ever touched."""

    def __init__(self, block_size: int) -> None:
        self.starts = memoryview(_private((block_size // 2 + 2) * 8)).cast("Q")
        self.read = _private(_READ)


def _private(size: int) -> mmap.mmap:
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


class _Scanned(NamedTuple):
    block: _Block
    starts: memoryview
    pending: int | None
    newlines: int


def scan(sources: Sequence[Source], *, workers: int) -> Iterator[Piece]:
    """Yield the start of every record of every source, in order.

    Args:
      workers: threads that scan blocks; a large file is cut into blocks too.
    Raises:
      SourceError: a source became shorter or unreadable.
    """
    block_size = min(max(_MEMORY // (4 * (workers + 2)), _SMALLEST_BLOCK), _LARGEST_BLOCK)
    blocks = _blocks(sources, block_size)
    workers = min(workers, sum(max(-(-source.size // block_size), 1) for source in sources))
    in_flight = workers + 2 if workers > 1 else 1
    slots = [_Slot(min(block_size, max(source.size for source in sources))) for _ in range(in_flight)]
    pending: int | None = None  # start of the line that is open where the block begins, while it is blank
    newlines = 0
    for block, starts, still_pending, found in in_order(_scan_block, blocks, workers=workers, slots=slots):
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
        lines = newlines + (pending != block.source.size and block.source.size > 0) if last else None
        yield Piece(block.number, starts, block.end - block.begin, lines)


def _blocks(sources: Sequence[Source], block_size: int) -> Iterator[_Block]:
    for number, source in enumerate(sources):
        for begin in range(0, max(source.size, 1), block_size):
            yield _Block(number, source, begin, min(begin + block_size, source.size))


def _scan_block(block: _Block, slot: _Slot) -> _Scanned:
    try:
        fd = os.open(block.source.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            begin = block.begin
            if begin == 0 and os.pread(fd, len(_BOM), 0) == _BOM:
                begin = len(_BOM)
            count, pending, newlines = _native.scan_lines(fd, begin, block.end, begin, slot.starts, slot.read)
        finally:
            os.close(fd)
    except EOFError:
        raise SourceError(f"{block.source.path}: became shorter than {block.end} bytes while it was indexed") from None
    except OSError as error:
        raise unreadable(block.source.path, error) from None
    return _Scanned(block, slot.starts[:count], pending, newlines)
