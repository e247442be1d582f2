"""The records of a text, found while it is recompressed, so that nothing is decoded to index what is written."""

import os
from collections.abc import Iterator, Mapping, Sequence
from io import FileIO
from itertools import islice
from typing import Any, NamedTuple

from .. import _native
from ..compression.frames import Frames
from ..compression.zstd_blocks import blocks_of
from ..formats.format import End, Piece, reserve_words
from ..formats.jsonl import JsonLines
from ..formats.measuring import Measuring
from ..index.build import build_each
from ..storage.blocks import BlockStart
from ..storage.numbers import U32, U64, converted
from ..storage.roots import Roots
from ..storage.sources import Source
from ..storage.spool import Spool

_BOM = b"\xef\xbb\xbf"
_SPOOLED = 1 << 20  # bytes of numbers that are spooled at a time
_BLOCKS = 1 << 14  # blocks in a piece of an index, at most
_NONE = memoryview(b"").cast("Q")


class Records(NamedTuple):
    """Those of a frame."""

    starts: memoryview
    """Where they begin in the text, uint64."""
    pending: int | None
    """Where the line behind the frame begins; None if the last one has no end."""
    newlines: int


def records_of(text: bytes, begin: int) -> Records:
    """Return the records of a frame, which begins where a line does.

    Args:
      begin: where its text begins in all text.
    """
    skipped = len(_BOM) if not begin and text.startswith(_BOM) else 0
    starts = reserve_words(len(text) // 2 + 2)
    first = begin + skipped
    count, pending, newlines = _native.scan_buffer(None, memoryview(text)[skipped:], first, first, starts)
    return Records(starts[:count], pending, newlines)


class KnownLines(JsonLines):
    """JSON Lines of which one source was scanned as it was written.

    Args:
      file: the source, which is being written.
    """

    def __init__(self, file: FileIO) -> None:
        super().__init__()
        self._spool = Spool(os.path.dirname(str(file.name)))
        self._file = file
        self._held = bytearray()
        self._newlines = 0
        self._pending: int | None = None

    def add(self, records: Records) -> None:
        """Append the records of the next frame."""
        self._held += records.starts
        self._newlines, self._pending = self._newlines + records.newlines, records.pending
        if len(self._held) >= _SPOOLED:
            self._flush()

    def _flush(self) -> None:
        self._spool.append(U64.cell, memoryview(self._held).cast("Q"))
        self._held = bytearray()

    def finish(self, frames: Frames) -> None:
        """End the source, once it is written."""
        self._flush()
        found = os.fstat(self._file.fileno())
        self._written = found.st_size, found.st_mtime_ns
        self._frames = frames

    def build(self, path: str, workers: int | None) -> None:
        """Index the file, once it is in its place; as `mmapds.build` does, and it raises what that raises."""
        try:
            for done in build_each([path], format_name=self, workers=workers, roots=Roots(named=[path])):
                done.warn()
        finally:
            self._spool.close()

    def scan(
        self, sources: Sequence[Source], parameters: Mapping[str, Any], measuring: Measuring, *, workers: int
    ) -> Iterator[Piece]:
        """Yield what is known; columns are measured by another scan, and so is a file that was replaced meanwhile."""
        if measuring or [(source.size, source.mtime_ns, source.begin) for source in sources] != [(*self._written, 0)]:
            yield from super().scan(sources, parameters, measuring, workers=workers)
            return
        blocks, stop = self._blocks(), sum(self._frames.contents)
        for starts in self._starts():
            yield Piece(0, starts, (), 0, 0, None, blocks=tuple(islice(blocks, _BLOCKS)))
        while some := tuple(islice(blocks, _BLOCKS)):
            yield Piece(0, _NONE, (), 0, 0, None, blocks=some)
        # A line without a line end counts as one.
        end = End(self._newlines + (self._pending != stop and stop > 0), stop)
        yield Piece(0, _NONE, (), 0, sources[0].size, end)

    def _blocks(self) -> Iterator[BlockStart]:
        begin = 0
        for block in blocks_of(self._frames.with_text()):
            yield BlockStart(block.begin, begin)
            begin += block.content

    def _starts(self) -> Iterator[memoryview]:
        kind = self._spool.number_type
        for piece in self._spool.chunks():
            yield (piece if kind is U64 else converted(piece, U32, U64)).cast("Q")
