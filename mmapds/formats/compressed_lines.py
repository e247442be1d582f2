"""JSON Lines in a compressed source: its content is decoded in order, and scanned as it comes."""

from collections.abc import Iterable, Iterator
from contextlib import closing
from functools import partial
from typing import NamedTuple

from .. import _native
from ..compression.content import Content, content_of
from ..storage.blocks import BlockStart
from ..storage.files import shrank
from ..storage.sources import Source
from ..storage.threads import ahead, in_order
from .format import End, Piece, reserve_words
from .measuring import Measured, Measuring, UnmeasuredError

_BOM = b"\xef\xbb\xbf"
_STEP = 1 << 20  # bytes of lines that one thread measures at a time


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
        with closing(content_of(source, workers)) as content:
            if measuring:
                yield from _measured(number, source, _lines(content), measuring, kept, workers)
            else:
                yield from _starts(number, content)
    except EOFError:
        raise shrank(source) from None


def _starts(number: int, content: Iterable[Content]) -> Iterator[Piece]:
    """Scan pieces of any size one after another, each from where the one before left off."""
    pending: int | None = 0
    newlines = 0
    for piece in _with_whole_mark(content):
        begin, text = piece.begin, memoryview(piece.data)
        if begin == 0 and piece.data.startswith(_BOM):
            begin = pending = len(_BOM)
            text = text[begin:]
        starts = reserve_words(len(text) // 2 + 2)
        count, pending, found = _native.scan_buffer(None, text, begin, pending, starts)
        newlines += found
        end = _end(newlines, pending, begin + len(text)) if piece.is_last else None
        yield Piece(number, starts[:count], (), 0, piece.scanned, end, blocks=piece.starts)


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
    number: int, source: Source, lines: Iterator[_Lines], measuring: Measuring, kept: int, workers: int
) -> Iterator[Piece]:
    """Measure lines in threads."""
    newlines = 0
    slots = list(range(workers + 2 if workers > 1 else 1))
    scanned = in_order(partial(_measure, source.path, measuring), ahead(lines), workers=workers, slots=slots)
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
