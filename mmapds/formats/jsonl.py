"""JSON Lines: a record is a line that is not blank.

Bounds are line starts. A record owns the blank lines that follow it, so n records need only n + 1 bounds. The first
record starts after a byte order mark and any blank lines.

Threads scan parts of sources, which begin and end inside lines. The scan of a part assumes that a line begins at its
first byte; the end of the previous part tells whether that is so. Measuring needs whole lines: in a mapped file, the
text extends beyond a part; in other files, the edges of parts are moved to line ends.
"""

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import NamedTuple

from .. import _native
from ..compression.blocks import BlockStart, Data
from ..compression.content import WINDOW, Part, content_of, in_flight, line_number, parts_of, workers_for
from ..storage.sections import IndexedSource
from ..storage.sources import Source, changed, room_of, unreadable
from ..storage.workers import ahead, in_order
from .expressions import Measured, Measuring, UnmeasuredError
from .format import PLAIN_OR_COMPRESSED, End, Format, Layout, Parameters, Piece, Sample, Sources, reserve_words

_BOM = b"\xef\xbb\xbf"
_SMALLEST_PART, _LARGEST_PART = 256 << 10, 4 << 20  # bytes; large enough to hide the cost of queues: see bench_index
_MEMORY = 64 << 20  # bytes of parts in flight; records of two bytes need four times as much


class JsonLines(Format):
    """Lines of JSON."""

    name = "jsonl"
    suffixes = (".jsonl", ".ndjson")
    is_text = True
    begins_anywhere = True
    codecs = PLAIN_OR_COMPRESSED
    part_size = 0  # bytes that one thread scans at a time; 0 means an equal share of the memory for all threads

    def layout(self, parameters: Parameters, source: IndexedSource) -> Layout:
        """A payload is the first line between two bounds; blank lines and skipped records may follow it."""
        return Layout(_native.FRAMING_FIRST_LINE if source.skipped else _native.FRAMING_LINES)

    def decoder(self, parameters: Parameters) -> Sample:
        return "json"

    def scan(self, sources: Sources, parameters: Parameters, measuring: Measuring, *, workers: int) -> Iterator[Piece]:
        """Yield the start of every record of every source, in order, and its columns; threads scan parts."""
        size = self.part_size or min(max(_MEMORY // (4 * (workers + 2)), _SMALLEST_PART), _LARGEST_PART)
        threads = workers_for(sources, workers, size)
        slots = [_Slot(len(measuring.columns)) for _ in range(in_flight(threads))]
        newlines = kept = 0
        blank: int | None = None  # start of the current line, if it is blank so far
        try:
            with (
                closing(_tasks(sources, workers, size, measuring)) as tasks,
                closing(in_order(partial(_scan, measuring), tasks, workers=threads, slots=slots)) as scanned,
            ):
                for (number, source, part, *_), measured in scanned:
                    starts, columns, skipped, pending, found, filled, bad, bad_lines = measured
                    is_first = part.begin == source.begin
                    newlines = 0 if is_first else newlines
                    if not is_first and starts and starts[0] == part.begin:  # the rest of the current line is not blank
                        if blank is None:
                            starts = starts[1:]
                        else:
                            starts[0] = blank
                    if is_first or pending != part.begin:
                        blank = pending
                    bad_at = tuple((newlines + lines + 1, start) for lines, start in bad_lines)
                    newlines, kept = newlines + found, kept + len(starts)
                    # A last line without a line end counts too; blank == part.end: the file ends with a line end.
                    lines = newlines + (blank != part.end and part.end > 0)
                    end = End(lines, part.end) if part.is_last else None
                    piece = Piece(number, starts, columns, skipped, part.scanned, end, filled=filled)
                    yield piece._replace(bad=bad, bad_at=bad_at, blocks=part.starts)
        except UnmeasuredError as wrong:
            place = f"{wrong.source.path}:{line_number(wrong.source.path, wrong.begin)} (byte {wrong.begin})"
            raise type(wrong.error)(f"{place}: {wrong.error} (record {kept + wrong.kept} of the index)") from None


class _Task(NamedTuple):
    number: int  # of the source
    source: Source
    part: Part
    text: Data = b""  # for measuring: all lines that begin in the part, perhaps with text before and after
    base: int = 0  # where the text begins in the content


class _Slot:
    """Memory for the records of a part."""

    def __init__(self, columns: int) -> None:
        self.starts, *self.cells = [memoryview(b"").cast("Q")] * (1 + columns)
        self.window = room_of(WINDOW)

    def reserve(self, count: int) -> None:
        if len(self.starts) < count:
            self.starts, *self.cells = (reserve_words(count) for _ in range(1 + len(self.cells)))


def _tasks(sources: Sequence[Source], workers: int, size: int, measuring: Measuring) -> Generator[_Task, None, None]:
    for number, source in enumerate(sources):
        try:
            if not measuring:
                with closing(parts_of(source, workers, size)) as parts:
                    yield from map(partial(_Task, number, source), parts)
                continue
            found = _whole_lines(number, source, content_of(source, workers, size), measuring)
            with closing(ahead(found) if source.codec else found) as tasks:
                yield from tasks
        except EOFError:
            raise changed(source) from None


def _whole_lines(
    number: int, source: Source, content: Iterable[tuple[Part, Sequence[Data]]], measuring: Measuring
) -> Generator[_Task, None, None]:
    """Yield parts whose text has the whole of each line that begins there."""
    held: list[Data] = []  # the last line end, and the text after it
    base = begin = scanned = 0
    starts: tuple[BlockStart, ...] = ()
    for part, pieces in content:
        if part.file is not None:
            yield _Task(number, source, part, memoryview(part.file)[: source.stop])
            continue
        if not held:
            base = begin = part.begin
        scanned, starts = scanned + part.scanned, starts + part.starts
        held += pieces
        measuring.check_size(source, part.begin - begin)
        if not part.is_last and not any(b"\n" in bytes(piece) for piece in reversed(pieces)):
            continue
        text = b"".join(held)
        cut = len(text) if part.is_last else text.rfind(b"\n") + 1
        end = part.end - len(text) + cut
        whole = part._replace(begin=begin, end=end, scanned=scanned, starts=starts)
        yield _Task(number, source, whole, memoryview(text)[:cut], base)
        held, base, begin, scanned, starts = [text[cut - 1 :]], end - 1, end, 0, ()


def _scan(measuring: Measuring, task: _Task, slot: _Slot) -> tuple[_Task, Measured]:
    source, part = task.source, task.part
    try:
        return task, _measured(measuring, task, slot) if measuring else _starts(part, slot)
    except EOFError:
        raise changed(source) from None
    except OSError as error:
        raise unreadable(source.path, error) from None


def _measured(measuring: Measuring, task: _Task, slot: _Slot) -> Measured:
    part, text, begin = task.part, task.text, task.part.begin
    if part.file is not None:
        part.file.populate(begin, part.end)
    if begin == 0:
        head = part.file.read(0, min(len(_BOM), part.file.size)) if part.file else text[: len(_BOM)]
        begin = len(_BOM) if head == _BOM else 0
    slot.reserve((part.end - begin) // 2 + 2)
    block, room = (begin, part.end), (slot.starts, *slot.cells)
    return measuring.scan(task.source, memoryview(text), task.base, block, room)


def _starts(part: Part, slot: _Slot) -> Measured:
    slot.reserve((part.end - part.begin) // 2 + 2 * max(part.pieces, 1))
    at, count, newlines = part.begin, 0, 0
    pending: int | None = at
    pieces = part.load(slot.window)
    if part.begin == 0 and part.starts:
        pieces = [b"".join(map(bytes, pieces))]  # joined, as small blocks may cut a byte order mark
    for piece in pieces:
        if at == 0 and piece[: len(_BOM)] == _BOM:
            at = pending = len(_BOM)
            piece = memoryview(piece)[at:]
        found, pending, more = _native.scan_lines(None, piece, at, pending, slot.starts[count:])
        at, count, newlines = at + len(piece), count + found, newlines + more
        del piece  # the next piece reuses its memory
    return Measured(slot.starts[:count], (), 0, pending, newlines)
