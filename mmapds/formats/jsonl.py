"""JSON Lines: a record is a line that is not blank.

Bounds are line starts. A record owns the blank lines that follow it, so n records need only n + 1 bounds. The first
record starts after a byte order mark and any blank lines.

Threads share out the parts of all sources, which cut lines anywhere. Each part is scanned as if a line began at its
first byte; `_Seam` then says whether one does. To be measured, a line must be whole: the text of a mapped file goes on
beyond a part, and the edges of other parts are moved to the ends of lines.
"""

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

from .. import _native
from ..compression.content import WINDOW, Data, Part, content_of, in_flight, line_number, parts_of, workers_for
from ..storage.blocks import BlockStart
from ..storage.files import shrank
from ..storage.sections import IndexedSource
from ..storage.sources import Source, unreadable
from ..storage.workers import ahead, in_order
from .format import End, Format, Layout, Piece, Sample, reserve_words
from .measuring import Measured, Measuring, UnmeasuredError

_BOM = b"\xef\xbb\xbf"

# Measured by bench/bench_index.py: parts of this size hide the cost of handing them out.
_LARGEST_PART = 4 << 20
_SMALLEST_PART = 256 << 10

# A two-byte record costs an eight-byte bound, so the parts in flight may need four times their size.
_MEMORY = 64 << 20


class JsonLines(Format):
    """Lines of JSON.

    Args:
      part_size: bytes of a file that one thread scans at a time; by default as many as fit the memory for all threads.
    """

    name = "jsonl"
    suffixes = (".jsonl", ".ndjson")
    is_text = True
    begins_anywhere = True
    reads_compressed = True

    def __init__(self, part_size: int | None = None) -> None:
        self._part_size = part_size

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
        """Yield the start of every record of every source, in order, and its columns; threads share out parts."""
        size = self._part_size or min(max(_MEMORY // (4 * (workers + 2)), _SMALLEST_PART), _LARGEST_PART)
        threads = workers_for(sources, workers, size)
        slots = [_Slot(len(measuring.columns)) for _ in range(in_flight(threads))]
        seam, newlines, kept = _Seam(), 0, 0
        with (
            closing(_tasks(sources, workers, size, measured=bool(measuring))) as tasks,
            closing(in_order(partial(_scan, measuring), tasks, workers=threads, slots=slots)) as scanned,
        ):
            while (item := _next(scanned, kept, measuring)) is not None:
                (number, source, part), (starts, columns, skipped, pending, found, filled, bad, bad_lines) = item
                is_first = part.begin == source.begin
                newlines = 0 if is_first else newlines
                starts = seam.join(part.begin, starts, pending, is_first=is_first)
                bad_at = tuple((newlines + lines + 1, start) for lines, start in bad_lines)
                newlines, kept = newlines + found, kept + len(starts)
                # A line without a line end counts as one; pending == part.end means that nothing follows the last one.
                lines = newlines + (seam.pending != part.end and part.end > 0)
                end = End(lines, part.end) if part.is_last else None
                yield Piece(
                    number,
                    starts,
                    columns,
                    skipped,
                    part.scanned,
                    end,
                    filled=filled,
                    bad=bad,
                    bad_at=bad_at,
                    blocks=part.starts,
                )


class _Task(NamedTuple):
    number: int
    """Of the source."""
    source: Source
    part: Part


class _Slot:
    """Memory for the records of a part."""

    def __init__(self, columns: int) -> None:
        self.starts, *self.cells = [memoryview(b"").cast("Q")] * (1 + columns)
        self.window = memoryview(bytearray(WINDOW))

    def reserve(self, count: int) -> None:
        if len(self.starts) < count:
            self.starts, *self.cells = (reserve_words(count) for _ in range(1 + len(self.cells)))


class _Seam:
    """The end of a part, where a line may go on that is blank so far."""

    def __init__(self) -> None:
        self.pending: int | None = None
        """Where the line begins that holds the next byte, if it is blank so far; else it is a record already."""

    def join(self, begin: int, starts: memoryview, pending: int | None, *, is_first: bool) -> memoryview:
        """Return where the records begin that the next part adds.

        Args:
          begin: of the part.
          starts: of the records that a scan of it found; changed.
          pending: as the scan says it for the end of the part.
          is_first: whether it is the first part of a source.
        """
        if not is_first and starts and starts[0] == begin:  # the rest of the line is not blank
            if self.pending is None:
                starts = starts[1:]
            else:
                starts[0] = self.pending
        if is_first or pending != begin:
            self.pending = pending
        return starts


def _tasks(sources: Sequence[Source], workers: int, size: int, *, measured: bool) -> Generator[_Task, None, None]:
    for number, source in enumerate(sources):
        try:
            found = _with_lines(source, workers, size) if measured else parts_of(source, workers, size)
            with closing(found) as parts:
                for part in parts:
                    yield _Task(number, source, part)
        except EOFError:
            raise shrank(source) from None


def _with_lines(source: Source, workers: int, size: int) -> Generator[Part, None, None]:
    parts = _whole_lines(source, content_of(source, workers, size))
    return ahead(parts) if source.codec else parts


def _whole_lines(source: Source, content: Iterable[tuple[Part, Sequence[Data]]]) -> Generator[Part, None, None]:
    """Yield parts whose text has all bytes of the lines that begin there."""
    held: list[Data] = []  # the end of the line before, and what came after it
    base = begin = scanned = 0
    starts: tuple[BlockStart, ...] = ()
    for part, pieces in content:
        if part.file is not None:
            yield _with_text(part, memoryview(part.file)[: source.stop])
            continue
        if not held:
            base = begin = part.begin
        scanned, starts = scanned + part.scanned, starts + part.starts
        held += pieces
        if not part.is_last and not any(b"\n" in bytes(piece) for piece in reversed(pieces)):
            continue
        text = b"".join(held)
        cut = len(text) if part.is_last else text.rfind(b"\n") + 1
        end = part.end - len(text) + cut
        part = part._replace(begin=begin, end=end, scanned=scanned, starts=starts, base=base)
        yield _with_text(part, memoryview(text)[:cut])
        held, base, begin, scanned, starts = [text[cut - 1 :]], end - 1, end, 0, ()


def _with_text(part: Part, text: memoryview) -> Part:
    return part._replace(load=lambda _: (text,))


def _next(scanned: Iterator[tuple[_Task, Measured]], kept: int, measuring: Measuring) -> tuple[_Task, Measured] | None:
    """Return the next part, None after the last.

    Args:
      kept: records before it.
    Raises:
      ColumnError, DecodeError: it has a record that cannot be measured.
    """
    try:
        return next(scanned, None)
    except UnmeasuredError as found:
        from .unmeasured import error_of  # start-up time: only an error needs it

        place = f"{found.source.path}:{line_number(found.source.path, found.begin)} (byte {found.begin})"
        raise error_of(found, place, kept + found.kept, measuring.columns) from None


def _scan(measuring: Measuring, task: _Task, slot: _Slot) -> tuple[_Task, Measured]:
    source, part = task.source, task.part
    try:
        return task, _measured(measuring, task, slot) if measuring else _starts(part, slot)
    except EOFError:
        raise shrank(source) from None
    except OSError as error:
        raise unreadable(source.path, error) from None


def _measured(measuring: Measuring, task: _Task, slot: _Slot) -> Measured:
    source, part = task.source, task.part
    (text,) = part.load(slot.window)
    begin = part.begin
    if part.file is not None:
        part.file.populate(begin, part.end)
    if begin == 0:
        head = part.file.read(0, min(len(_BOM), part.file.size)) if part.file else text[: len(_BOM)]
        begin = len(_BOM) if head == _BOM else 0
    slot.reserve((part.end - begin) // 2 + 2)
    block = begin, part.end
    return measuring.scan(source, memoryview(text), part.base, block, slot.starts, tuple(slot.cells))


def _starts(part: Part, slot: _Slot) -> Measured:
    slot.reserve((part.end - part.begin) // 2 + 2 * max(part.pieces, 1))
    at, count, newlines = part.begin, 0, 0
    pending: int | None = at
    for piece in _with_whole_mark(part, part.load(slot.window)):
        if at == 0 and piece[: len(_BOM)] == _BOM:
            at = pending = len(_BOM)
            piece = memoryview(piece)[at:]
        found, pending, more = _native.scan_lines(None, piece, at, pending, slot.starts[count:])
        at, count, newlines = at + len(piece), count + found, newlines + more
        del piece  # its memory is used again for the next one
    return Measured(slot.starts[:count], (), 0, pending, newlines)


def _with_whole_mark(part: Part, pieces: Iterable[Data]) -> Iterator[Data]:
    """Yield the pieces, the first of a text with as many bytes as a byte order mark has, if there are so many."""
    rest = iter(pieces)
    first = next(rest, b"")
    if part.begin == 0 and len(first) < len(_BOM):
        return iter([b"".join([bytes(first), *map(bytes, rest)])])
    return chain([first], rest)
