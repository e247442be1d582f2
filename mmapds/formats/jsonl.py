"""JSON Lines: a record is a line that is not blank.

Bounds are line starts. A record owns the blank lines that follow it, so n records need only n + 1 bounds. The first
record starts after a byte order mark and any blank lines.

Threads share out the parts of all sources, which cut lines anywhere. Each part is scanned as if a line began at its
first byte; the end of the part before says whether one does. To be measured, a line must be whole: the text of a mapped
file goes on beyond a part, and the edges of other parts are moved to the ends of lines.
"""

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import NamedTuple

from .. import _native
from ..compression.blocks import BlockStart
from ..compression.content import WINDOW, Data, Part, content_of, in_flight, line_number, parts_of, workers_for
from ..storage.sections import IndexedSource
from ..storage.sources import Source, changed, unreadable
from ..storage.workers import ahead, in_order
from .expressions import Measured, Measuring, UnmeasuredError
from .format import End, Format, Layout, Parameters, Piece, Sample, Sources, reserve_words

_BOM = b"\xef\xbb\xbf"
_SMALLEST_PART, _LARGEST_PART = 256 << 10, 4 << 20  # bytes, which hide the cost of handing parts out: see bench_index
_MEMORY = 64 << 20  # bytes of the parts in flight, which need four times their size if a record has two bytes


class JsonLines(Format):
    """Lines of JSON."""

    name = "jsonl"
    suffixes = (".jsonl", ".ndjson")
    is_text = True
    begins_anywhere = True
    reads_compressed = True
    part_size = 0  # bytes of a file that one thread scans at a time; 0 means as many as fit the memory for all threads

    def layout(self, parameters: Parameters, source: IndexedSource) -> Layout:
        """A payload is the first line between two bounds; blank lines and skipped records may follow it."""
        return Layout(_native.FRAMING_FIRST_LINE if source.skipped else _native.FRAMING_LINES)

    def decoder(self, parameters: Parameters) -> Sample:
        return "json"

    def scan(self, sources: Sources, parameters: Parameters, measuring: Measuring, *, workers: int) -> Iterator[Piece]:
        """Yield the start of every record of every source, in order, and its columns; threads share out parts."""
        size = self.part_size or min(max(_MEMORY // (4 * (workers + 2)), _SMALLEST_PART), _LARGEST_PART)
        threads = workers_for(sources, workers, size)
        slots = [_Slot(len(measuring.columns)) for _ in range(in_flight(threads))]
        newlines = kept = 0
        blank: int | None = None  # where the line begins that holds the next byte, if it is blank so far
        try:
            with (
                closing(_tasks(sources, workers, size, measuring)) as tasks,
                closing(in_order(partial(_scan, measuring), tasks, workers=threads, slots=slots)) as scanned,
            ):
                for (number, source, part, *_), measured in scanned:
                    starts, columns, skipped, pending, found, filled, bad, bad_lines = measured
                    is_first = part.begin == source.begin
                    newlines = 0 if is_first else newlines
                    if not is_first and starts and starts[0] == part.begin:  # the rest of that line is not blank
                        if blank is None:
                            starts = starts[1:]
                        else:
                            starts[0] = blank
                    if is_first or pending != part.begin:
                        blank = pending
                    bad_at = tuple((newlines + lines + 1, start) for lines, start in bad_lines)
                    newlines, kept = newlines + found, kept + len(starts)
                    # A line without a line end counts as one; blank == part.end means that nothing follows the last.
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
    text: Data = b""  # to be measured: all bytes of the lines that begin in the part, and what lies before and after
    base: int = 0  # where the text begins in the content


class _Slot:
    """Memory for the records of a part."""

    def __init__(self, columns: int) -> None:
        self.starts, *self.cells = [memoryview(b"").cast("Q")] * (1 + columns)
        self.window = memoryview(bytearray(WINDOW))

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
    """Yield parts whose text has all bytes of the lines that begin there."""
    held: list[Data] = []  # the end of the line before, and what came after it
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
        pieces = [b"".join(map(bytes, pieces))]  # as small blocks may cut a byte order mark
    for piece in pieces:
        if at == 0 and piece[: len(_BOM)] == _BOM:
            at = pending = len(_BOM)
            piece = memoryview(piece)[at:]
        found, pending, more = _native.scan_lines(None, piece, at, pending, slot.starts[count:])
        at, count, newlines = at + len(piece), count + found, newlines + more
        del piece  # its memory is used again for the next one
    return Measured(slot.starts[:count], (), 0, pending, newlines)
