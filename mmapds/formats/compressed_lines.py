"""JSON Lines in a compressed source: its content is decoded in order, and scanned as it comes."""

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import accumulate, islice
from typing import NamedTuple

from .. import _native
from ..compression.content import Content, content_of
from ..compression.zstd import PIECE, FileBlock, ZstdSource
from ..storage.blocks import BlockStart
from ..storage.files import shrank
from ..storage.sections import LARGEST_BLOCK
from ..storage.sources import Source
from ..storage.threads import ahead, in_order
from .format import End, Piece, reserve_words
from .measuring import Measured, Measuring, UnmeasuredError
from .seams import Seam

_BOM = b"\xef\xbb\xbf"
_STEP = 1 << 20  # bytes of lines that one thread scans or measures at a time
_PIECES = 64  # of content, which make one of an index


class _Lines(NamedTuple):
    """Whole lines of the content of a source."""

    text: bytes
    """They and, by which a scan knows that they begin a line, the end of the line before."""
    base: int
    """Where the text begins in the content."""
    begin: int
    """Where the lines begin there: at its first byte, after a byte order mark, or after a line end."""
    end: int
    scanned: int
    starts: tuple[BlockStart, ...]
    is_last: bool
    """See `Content`."""


def scan(number: int, source: Source, measuring: Measuring, kept: int, workers: int) -> Iterator[Piece]:
    """Yield the start of every record of a source, in order, and its columns.

    Args:
      number: of the source.
      kept: records before it.
    """
    try:
        if measuring:
            with closing(ahead(_lines(content_of(source, workers)))) as lines:
                yield from _measured(number, source, lines, measuring, kept, workers)
        elif source.codec == "zstd" and (zstd := ZstdSource(source)).is_known and _has_whole_mark(zstd):
            yield from _in_runs(number, source, zstd, workers)
        else:
            with closing(ahead(_in_order(number, content_of(source, workers)))) as pieces:
                yield from pieces
    except EOFError:
        raise shrank(source) from None


# ---- records whose place headers of frames say beforehand: threads find them, each in blocks of its own


class _Run(NamedTuple):
    """Neighbouring blocks that one thread decodes and scans, while their content is in its cache."""

    first: int
    """The number of the first one."""
    begin: int
    """Where their content begins."""
    size: int
    """Bytes of content."""
    blocks: Sequence[FileBlock]

    @property
    def starts(self) -> tuple[BlockStart, ...]:
        """Where the blocks begin."""
        contents = accumulate((block.content for block in self.blocks), initial=self.begin)
        return tuple(BlockStart(block.begin, content) for block, content in zip(self.blocks, contents, strict=False))


def _runs(blocks: Iterable[FileBlock]) -> Iterator[_Run]:
    """Yield runs of the fewest blocks with `_STEP` bytes of content."""
    first = begin = size = 0
    held: list[FileBlock] = []
    for block in blocks:
        held.append(block)
        size += block.content
        if size >= _STEP:
            yield _Run(first, begin, size, held)
            first, begin, size, held = first + len(held), begin + size, 0, []
    if held:
        yield _Run(first, begin, size, held)


def _has_whole_mark(zstd: ZstdSource) -> bool:
    """Whether a byte order mark would stand in one block."""
    first = [block.content for block in islice(zstd.blocks(), 2)]
    return len(first) < 2 or first[0] >= len(_BOM)


def _in_runs(number: int, source: Source, zstd: ZstdSource, workers: int) -> Iterator[Piece]:
    """Scan runs of blocks, which threads share out."""
    workers = max(min(workers, zstd.frames), 1)
    slots = list(range(workers + 2 if workers > 1 else 1))
    seam, newlines, stop, scanned = Seam(), 0, 0, 0
    for run, found in in_order(partial(_scan_run, zstd), _runs(zstd.blocks()), workers=workers, slots=slots):
        starts = seam.join(run.begin, found.starts, found.pending, is_first=not run.begin)
        newlines, stop, end = newlines + found.newlines, found.end, run.blocks[-1].end
        yield Piece(number, starts, (), 0, end - scanned, None, blocks=run.starts)
        scanned = end
    yield Piece(number, memoryview(b"").cast("Q"), (), 0, source.size - scanned, _end(newlines, seam.pending, stop))


def _scan_run(zstd: ZstdSource, run: _Run, _: int) -> tuple[_Run, "_Records"]:
    records = _Records(run.begin, run.begin, run.size, 2 * len(run.blocks) + run.size // PIECE)
    for number, block in enumerate(run.blocks, run.first):
        content = zstd.decode(number, block)
        assert content is not None  # which block.is_large would say
        records.add(content)
    return run, records


# ---- content that is scanned as it comes


def _in_order(number: int, content: Iterable[Content]) -> Generator[Piece, None, None]:
    """Scan pieces of any size one after another, each from where the one before left off."""
    records = _Records(0, 0, LARGEST_BLOCK, 1)
    newlines = scanned = 0
    blocks: tuple[BlockStart, ...] = ()
    for piece in _with_whole_mark(content):
        if not records.has_room(piece.data):
            yield Piece(number, records.starts, (), 0, scanned, None, blocks=blocks)
            newlines, scanned, blocks = newlines + records.newlines, 0, ()
            records = _Records(records.end, records.pending, _STEP + len(piece.data), _PIECES)
        records.add(piece.data)
        scanned, blocks = scanned + piece.scanned, blocks + piece.starts
    end = _end(newlines + records.newlines, records.pending, records.end)
    yield Piece(number, records.starts, (), 0, scanned, end, blocks=blocks)


class _Records:
    """Where the records of neighbouring pieces of content begin.

    Args:
      begin: of the first piece.
      pending: where the line begins that goes on there, while it is blank so far.
      size: bytes of content, at most.
      pieces: how many there may be.
    """

    def __init__(self, begin: int, pending: int | None, size: int, pieces: int) -> None:
        self._stop, self._room, self._count = begin + size, reserve_words(size // 2 + 2 * pieces), 0
        self.end, self.pending, self.newlines = begin, pending, 0

    def has_room(self, data: bytes) -> bool:
        """Whether a piece can be added, whatever its records."""
        return self.end + len(data) <= self._stop and self._count + len(data) // 2 + 2 <= len(self._room)

    def add(self, data: bytes) -> None:
        """Find the records of the next piece; a byte order mark stands in one piece."""
        text = memoryview(data)
        if self.end == 0 and data.startswith(_BOM):
            self.end = self.pending = len(_BOM)
            text = text[len(_BOM) :]
        found, self.pending, newlines = _native.scan_buffer(
            None, text, self.end, self.pending, self._room[self._count :]
        )
        self._count, self.end, self.newlines = self._count + found, self.end + len(text), self.newlines + newlines

    @property
    def starts(self) -> memoryview:
        """Where they begin."""
        return self._room[: self._count]


def _with_whole_mark(content: Iterable[Content]) -> Iterator[Content]:
    """Yield the pieces, the first of them with as many bytes as a byte order mark has, if there are so many."""
    held: Content | None = None
    for piece in content:
        if held is not None:
            scanned, starts = held.scanned + piece.scanned, held.starts + piece.starts
            piece = Content(held.data + piece.data, 0, scanned, starts, piece.is_last)
        held = piece if piece.begin == 0 and len(piece.data) < len(_BOM) and not piece.is_last else None
        if held is None:
            yield piece


def _end(newlines: int, pending: int | None, stop: int) -> End:
    # A line without a line end counts as one; pending == stop means that nothing follows the last line end.
    return End(newlines + (pending != stop and stop > 0), stop)


def _lines(content: Iterable[Content]) -> Iterator[_Lines]:
    """Yield whole lines, about a MB at a time; the last piece may end without a line end."""
    held: list[bytes] = []  # the end of the line before, and what came after it
    base = begin = scanned = 0
    starts: tuple[BlockStart, ...] = ()
    for piece in _with_whole_mark(content):
        data = piece.data
        if piece.begin == 0 and data.startswith(_BOM):
            begin = len(_BOM)
        scanned, starts = scanned + piece.scanned, starts + piece.starts
        end = piece.begin + len(data)
        if not piece.is_last:
            end = piece.begin + data.rfind(b"\n") + 1 if end - begin >= _STEP else begin
        if end <= max(begin, piece.begin) and not piece.is_last:
            held.append(data)
            continue
        cut = end - piece.begin
        text = b"".join((*held, data[:cut]))
        yield _Lines(text, base, begin, end, scanned, starts, piece.is_last)
        held, base, begin, scanned, starts = [b"\n", data[cut:]], end - 1, end, 0, ()


def _measured(
    number: int, source: Source, lines: Iterable[_Lines], measuring: Measuring, kept: int, workers: int
) -> Iterator[Piece]:
    """Measure lines in threads."""
    newlines = 0
    slots = list(range(workers + 2 if workers > 1 else 1))
    with closing(in_order(partial(_measure, source.path, measuring), lines, workers=workers, slots=slots)) as scanned:
        while (item := _next(scanned, source, kept, measuring)) is not None:
            piece, measured = item
            bad_at = tuple((newlines + before + 1, start) for before, start in measured.bad_at)
            newlines += measured.newlines
            kept += len(measured.starts)
            pending = measured.pending if piece.end > piece.begin else piece.end
            yield Piece(
                number,
                measured.starts,
                measured.columns,
                measured.skipped,
                piece.scanned,
                _end(newlines, pending, piece.end) if piece.is_last else None,
                filled=measured.filled,
                bad=measured.bad,
                bad_at=bad_at,
                blocks=piece.starts,
            )


def _next(
    scanned: Iterator[tuple[_Lines, Measured]], source: Source, kept: int, measuring: Measuring
) -> tuple[_Lines, Measured] | None:
    """Return the next lines, None after the last.

    Raises:
      ColumnError, DecodeError: they have a record that cannot be measured.
    """
    try:
        return next(scanned, None)
    except UnmeasuredError as found:
        from ..compression.plain import line_number
        from .unmeasured import error_of  # start-up time: only an error needs them

        place = f"{source.path}:{line_number(source, found.begin)} (byte {found.begin})"
        raise error_of(found, place, kept + found.kept, measuring.columns) from None


def _measure(path: str, measuring: Measuring, piece: _Lines, _: int) -> tuple[_Lines, Measured]:
    room = len(piece.text) // 2 + 2
    starts, *cells = (reserve_words(room) for _ in range(1 + len(measuring.columns)))
    block = piece.begin, piece.end
    return piece, measuring.scan(path, memoryview(piece.text), piece.base, block, starts, tuple(cells))
