"""Where the records of an index come from: from the index that it replaces, or from a scan.

A source is the same if it has the size, the time and the fingerprint that it had. Every other one is scanned whole.

With `grown`, the user says that only the end of a source is new. If its first bytes have the old fingerprint, the scan
begins at the last record of then, whose line may have gone on.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ..errors import Error, SourceError, counted
from ..formats.format import Format, Piece
from ..formats.measuring import Measuring
from ..storage.current import WAITING, each, fingerprint
from ..storage.index_file import Index, relative_to_index
from ..storage.numbers import F64, U64
from ..storage.sections import BOUNDS, IndexedSource
from ..storage.sources import Source

_PIECE = 1 << 17  # records of a source that grew that are copied at a time


class Job(NamedTuple):
    """One index to write."""

    index_path: str
    sources: Sequence[Source]
    chosen: Format
    parameters: dict[str, Any]
    """Of the format, checked and completed."""
    measuring: Measuring
    before: Index | None = None
    """The index that is there; None also if nothing of it is to be kept."""
    hashes: bool = False
    """Whether the index has a hash of each source."""
    any_lines: bool = False
    """Whether the user chose the format of text whose first bytes deny it."""
    computed: Sequence[str] = ()
    """Columns that all records have in other indexes, besides those that are measured, in the order of the file."""
    functions: Mapping[str, str] = {}
    """Of these: see `Index.functions`."""
    is_part: bool = False
    """Whether it is a part of another index, or is compared with one; such a one may leave out everything."""

    @property
    def has_bounds(self) -> bool:
        """Whether the index has bounds of records, which then do not all have one size."""
        return "record_bytes" not in self.parameters

    def scan(self, sources: Sequence[Source], workers: int = 1) -> Iterator[Piece]:
        """Yield the records of some sources."""
        return self.chosen.scan(sources, self.parameters, self.measuring, workers=workers)

    def incomplete(self, expected: str, found: str) -> Error:
        """Return the error to raise for a scan that breaks the contract of formats."""
        return Error(
            f"{self.index_path}: incomplete scan of format {self.chosen.name!r}: expected {expected}, found {found}; "
            "nothing was changed"
        )


class Scan(NamedTuple):
    """Consecutive sources that are scanned."""

    sources: Sequence[Source]


class Stored(NamedTuple):
    """All records that an index has of some consecutive sources; its sections are checked as they are read."""

    base: Index
    """The index that has them."""
    sources: range
    """Numbers of their sources there."""
    filled: Sequence[int] = ()
    """For each measured column, how many of them lack it; known of parts of a build alone."""
    remarks: Sequence[str] = ()
    """See `End.remark`; those of parts of a build alone."""

    @property
    def records(self) -> range:
        """Their numbers there."""
        return range(self.base.firsts[self.sources.start], self.base.firsts[self.sources.stop])

    def groups(self) -> Iterator[bytes]:
        """Yield the groups of their bounds."""
        first = self.base.sections[BOUNDS].offset
        begin, end = (self.base.bounds_at(number) - first for number in (self.sources.start, self.sources.stop))
        return self.base.pieces(BOUNDS, begin, end)


class Grown(NamedTuple):
    """A source that grew: an index has its first records, and the others are scanned."""

    base: Index
    number: int
    """Of the source there."""
    source: Source

    @property
    def records(self) -> range:
        """The numbers there of the records that are kept: all but the last, whose line may have gone on."""
        return range(self.base.firsts[self.number], self.base.firsts[self.number + 1] - 1)

    def pieces(self, job: Job, workers: int) -> Iterator[Piece]:
        """Yield what a scan of the whole source does, without the columns of the records that are kept.

        Raises:
          FormatError: the index is damaged.
        """
        old = self.base.sources[self.number]
        self.base.verify_sections(BOUNDS)
        begin = self.base.bounds(self.number, old.records - 1, old.records)[0]
        records = skipped = bad = lines = 0
        for piece in job.scan([self.source._replace(begin=begin, end=old.size)]):
            records, skipped, bad = records + piece.records, skipped + piece.skipped, bad + piece.bad
            lines = old.lines - piece.end.lines if piece.end else 0
        if records != 1:
            raise self.base.damaged(f"expected 1 record behind byte {begin} of {self.source.path}, found {records}")
        bad_at = tuple(at for at in old.bad.first if at[1] < begin)
        none = memoryview(b"").cast("Q")
        columns = tuple((U64.cell, none) for _ in job.measuring.columns)
        yield Piece(0, none, columns, old.skipped - skipped, begin, None, bad=old.bad.lines - bad, bad_at=bad_at)
        for at in range(0, len(self.records), _PIECE):
            end = min(at + _PIECE, len(self.records))
            yield Piece(0, self.base.bounds(self.number, at, end), columns, 0, 0, None)
        for piece in job.scan([self.source._replace(begin=begin)], workers):
            last = piece.end and piece.end._replace(lines=piece.end.lines + lines)
            yield piece._replace(end=last, bad_at=tuple((line + lines, byte) for line, byte in piece.bad_at))


Plan = Sequence[Scan | Stored | Grown]
"""Where the records of an index come from, in the order of its sources."""


def is_current(job: Job, *, by_sample: bool) -> bool:
    """Whether the index that is there has all that a job wants, of sources that are the same.

    Args:
      by_sample: take the fingerprint of a source of another time for proof, as `mmapds.open` does.
    """
    before = job.before
    if before is None or not _measures_the_same(before, job) or before.parameters != job.parameters:
        return False
    if job.hashes and not by_sample and not all(source.xxh3_128 for source in before.sources):
        return False
    then = [(source.path, source.size, by_sample or source.mtime_ns) for source in before.sources]
    paths = [relative_to_index(source.path, job.index_path) for source in job.sources]
    now = [(path, each.size, by_sample or each.mtime_ns) for path, each in zip(paths, job.sources, strict=True)]
    if now != then:  # no need to read any of them
        return False
    return None not in _known(job, before, by_sample=by_sample)


def new_plan(job: Job, *, grown: bool) -> Plan:
    """Return how to write an index with what the index before it knows, which may be of any age, or damaged."""
    before = job.before
    if before is None or not _measures_the_same(before, job):
        return [Scan(job.sources)]
    plan: list[Scan | Stored | Grown] = []
    scanned: list[Source] = []
    for source, number in zip(job.sources, _known(job, before, grown=grown), strict=True):
        last = plan[-1] if plan else None
        if number is None:
            if not isinstance(last, Scan):
                scanned = []
                plan.append(Scan(scanned))
            scanned.append(source)
        elif source.size != before.sources[number].size:
            plan.append(Grown(before, number, source))
        elif isinstance(last, Stored) and last.sources.stop == number:
            plan[-1] = Stored(before, range(last.sources.start, number + 1))
        else:
            plan.append(Stored(before, range(number, number + 1)))
    return [Scan(job.sources)] if _may_narrow(before, job, plan) else plan


def described(plan: Plan) -> str:
    """Return what a plan does, for the summary of an index; nothing if all is scanned."""
    counts = dict.fromkeys(("kept", "appended to", "scanned"), 0)
    for part in plan:
        if isinstance(part, Grown):
            counts["appended to"] += 1
        else:
            counts["kept" if isinstance(part, Stored) else "scanned"] += len(part.sources)
    if not counts["kept"] and not counts["appended to"]:
        return ""
    return ", ".join(f"{done} {counted(count, 'source')}" for done, count in counts.items() if count)


def _known(job: Job, before: Index, *, grown: bool = False, by_sample: bool = False) -> list[int | None]:
    """Return the number that each source has in the index before, if it is the same, or has grown; else None."""
    numbers = {source.path: number for number, source in enumerate(before.sources)}
    found: list[int | None] = []
    asked: list[tuple[int, str, IndexedSource]] = []
    for place, source in enumerate(job.sources):
        number = numbers.get(relative_to_index(source.path, job.index_path))
        if number is not None and _of_source(job, job.parameters, place) != _of_source(job, before.parameters, number):
            number = None
        if number is not None:
            then = before.sources[number]
            has_time = source.mtime_ns == then.mtime_ns
            is_plain = not source.codec and then.compression is None
            can_grow = grown and job.chosen.begins_anywhere and before.has_bounds and is_plain and then.records > 1
            is_longer = can_grow and source.size > then.size
            if not (is_longer or (source.size == then.size and (by_sample or has_time))):
                number = None
            elif not (by_sample and has_time):
                asked.append((place, source.path, then))
        found.append(number)
    for (place, *_), same in zip(asked, each(_has_same_bytes, asked, workers=WAITING), strict=True):
        found[place] = found[place] if same else None
    return found


def _has_same_bytes(asked: tuple[int, str, IndexedSource]) -> bool:
    """Whether the first bytes of a file, as many as there were, have the fingerprint that they had."""
    _, path, then = asked
    try:
        return fingerprint(path, then.size).hex == then.fingerprint
    except SourceError:  # the scan says what is wrong
        return False


def _may_narrow(before: Index, job: Job, plan: Plan) -> bool:
    """Whether a column of floats may be one of integers without the records that are not kept."""
    kept = [part.records for part in plan if not isinstance(part, Scan)]
    if sum(map(len, kept)) == before.records:
        return False
    columns = [before.column(name) for name in job.measuring.columns]
    floats = [data.cast("d") for dtype, data in columns if dtype == F64.dtype]
    return not all(any(number % 1 for rows in kept for number in data[rows.start : rows.stop]) for data in floats)


def _measures_the_same(index: Index, job: Job) -> bool:
    """Whether an index has the format of a job, and all its columns, measured in the same way."""
    before, now = (json.dumps(each, sort_keys=True) for each in (index.measuring, job.measuring.describe()))
    same = index.format == job.chosen.name and before == now  # as texts, where NaN is NaN
    return same and index.has_bounds == job.has_bounds and all(name in index.columns for name in job.measuring.columns)


def _of_source(job: Job, parameters: Mapping[str, Any], number: int) -> dict[str, Any]:
    """Return the parameters of one source: some are lists with an entry for each."""
    return {
        name: value[number : number + 1] if name in job.chosen.per_source and isinstance(value, list) else value
        for name, value in parameters.items()
    }
