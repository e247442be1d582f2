"""What an index keeps of sources that are the same, so that only the others are scanned.

Records come from the index that is replaced, or from the index that a source has of its own. A source is the same if it
has the size, the time and the fingerprint that it had there. Every other one is scanned whole.

With `grown`, the user says that only the end of a source is new. If its first bytes have the old fingerprint, the scan
begins at the last record of then, whose line may have gone on.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..errors import ColumnError, DecodeError, FormatError, IndexMissingError, SourceError
from ..storage.current import WAITING, each, fingerprint
from ..storage.index_file import Index, alike, relative_to_index
from ..storage.numbers import F64
from ..storage.sections import BadLines
from ..storage.sources import INDEX_SUFFIX, Source
from .stored import Stored, sizes_before_last
from .write import Job, Plan, Scan, Tally


class Reuse(NamedTuple):
    """A plan for an index, and what it takes from others."""

    plan: Plan
    kept: int = 0
    """Sources that are taken from the index that is replaced."""
    used: int = 0
    """Sources that are taken from indexes of their own."""
    scanned: int = 0
    """Sources that are scanned whole."""
    grown: Mapping[int, int] = {}
    """Numbers of sources that grew, each with the records that are known."""

    def is_all_of(self, before: Index | None) -> bool:
        """Whether the records are just those of the index that is replaced."""
        return before is not None and list(self.plan) == [Stored.of(before, range(len(before.sources)))]

    def describe(self, built: Index) -> str:
        """Return what was done, for the summary of an index; nothing if all was scanned."""
        if self.scanned == len(built.sources):
            return ""
        appended = sum(built.sources[number].records - known for number, known in self.grown.items())
        parts = [
            f"used {_plural(self.used, 'index', 'indexes')}" if self.used else "",
            f"kept {_plural(self.kept, 'source', 'sources')}" if self.kept else "",
            f"appended {_plural(appended, 'record', 'records')}" if self.grown else "",
            f"scanned {_plural(self.scanned, 'source', 'sources')}" if self.scanned else "",
        ]
        return ", ".join(part for part in parts if part)


def _plural(count: int, one: str, more: str) -> str:
    return f"{count:,} {one if count == 1 else more}"


class _Known(NamedTuple):
    """What an index knows of a source."""

    base: Index
    number: int
    """Of the source there."""

    def same(self, now: Source, *, time: bool = True) -> bool:
        """Whether the source has the size that it had and, with `time`, the time."""
        then = self.base.sources[self.number]
        return now.size == then.size and (not time or now.mtime_ns == then.mtime_ns)


def is_current(job: Job, *, by_sample: bool) -> bool:
    """Whether the index that is there has all that a job wants, of sources that are the same.

    Args:
      by_sample: take the fingerprint of a source of another time for proof, as `mmapds.open` does.
    """
    before = job.before
    if before is None or not _measures_the_same(before, job) or before.parameters != job.parameters:
        return False
    if [source.path for source in before.sources] != [
        relative_to_index(source.path, before.path) for source in job.sources
    ]:
        return False
    known = {number: _Known(before, number) for number in range(len(job.sources))}
    if not all(found.same(job.sources[number], time=not by_sample) for number, found in known.items()):
        return False
    if by_sample:
        known = {number: found for number, found in known.items() if not found.same(job.sources[number])}
    elif job.hashes and lacking_hashes(before):
        return False
    return len(_with_same_bytes(job, known)) == len(known)


def lacking_hashes(index: Index) -> int:
    """Return how many sources an index has no hash of."""
    return sum(not source.xxh3_128 for source in index.sources)


def reuse(job: Job, *, grown: bool = False) -> Reuse:
    """Return how to write an index with what other indexes know; they may be of any age, or damaged."""
    known = _with_same_bytes(job, _find(job, grown=grown))
    if _may_be_narrower(job, known):
        known = {number: found for number, found in known.items() if found.base is not job.before}
    kept = used = scanned = 0
    begun: dict[int, int] = {}
    plan: list[Scan | Stored] = []
    for number, source in enumerate(job.sources):
        found = known.get(number)
        first = _first_records(job, source, found) if found is not None and not found.same(source) else None
        if first is not None and found is not None:
            plan += [first, Scan([source._replace(begin=first.size)])]
            begun[number] = found.base.sources[found.number].records
        elif found is None or not found.same(source):
            _append_scan(plan, source)
            scanned += 1
        else:
            _append_stored(plan, found)
            kept += found.base is job.before
            used += found.base is not job.before
    return Reuse(plan, kept, used, scanned, begun)


def _may_be_narrower(job: Job, known: Mapping[int, _Known]) -> bool:
    """Whether a column of the index that is replaced may have floats for a source alone that is not kept."""
    numbers = [found.number for found in known.values() if found.base is job.before]
    if job.before is None or sum(job.before.sources[number].records for number in numbers) == job.before.records:
        return False
    return any(job.before.columns[name].dtype == F64.dtype for name in job.measuring.columns if numbers)


def _append_stored(plan: list[Scan | Stored], found: _Known) -> None:
    """Append a whole source to a plan; neighbours in an index become one part of it."""
    base, sources, last = found.base, range(found.number, found.number + 1), plan[-1] if plan else None
    if isinstance(last, Stored) and last.base is base and last.totals is None and last.sources.stop == sources.start:
        sources = range(last.sources.start, sources.stop)
        plan.pop()
    plan.append(Stored.of(base, sources))


def _append_scan(plan: list[Scan | Stored], source: Source) -> None:
    last = plan[-1] if plan else None
    if isinstance(last, Scan):
        plan[-1] = Scan([*last.sources, source])
    else:
        plan.append(Scan([source]))


def _find(job: Job, *, grown: bool) -> dict[int, _Known]:
    """Return, by the number of a source, an index that knows the source, or how it began."""
    before = {}
    if job.before is not None and _measures_the_same(job.before, job):
        before = {source.path: number for number, source in enumerate(job.before.sources)}
    known = {}
    for number, source in enumerate(job.sources):
        path = relative_to_index(source.path, job.index_path)
        if job.before is not None and path in before:
            found = _Known(job.before, before[path])
        elif (own := _own_index(source.path, job)) is not None:
            found = _Known(own, 0)
        else:
            continue
        has_grown = grown and source.size > found.base.sources[found.number].size
        if (found.same(source) or has_grown) and _has_same_parameters(job, number, found):
            known[number] = found
    return known


def _with_same_bytes(job: Job, known: Mapping[int, _Known]) -> dict[int, _Known]:
    """Return the sources whose first bytes, as many as there were, have the fingerprint that they had."""
    tasks = [(job.sources[number].path, found.base.sources[found.number].size) for number, found in known.items()]
    digests = each(lambda task: _fingerprint(*task), tasks, workers=WAITING)
    pairs = zip(known.items(), digests, strict=True)
    return {
        number: found for (number, found), digest in pairs if digest == found.base.sources[found.number].fingerprint
    }


def _fingerprint(path: str, size: int) -> str:
    try:
        return fingerprint(path, size).hex
    except SourceError:  # the scan says what is wrong
        return ""


def _own_index(path: str, job: Job) -> Index | None:
    """Return the index that a source has of its own, if it is one of this source alone, made in the same way."""
    own = path + INDEX_SUFFIX
    if not os.path.exists(own):
        return None
    try:
        index = Index(own)
    except (IndexMissingError, FormatError):
        return None
    return index if index.covers(path) and _measures_the_same(index, job) else None


def _measures_the_same(index: Index, job: Job) -> bool:
    """Whether an index has the format of a job, and all its columns, measured in the same way."""
    same = index.format == job.chosen.name and alike(index.measuring, job.measuring.describe())
    return same and index.has_bounds == job.has_bounds and all(name in index.columns for name in job.measuring.columns)


def _has_same_parameters(job: Job, number: int, found: _Known) -> bool:
    listed = job.chosen.per_source
    return of_source(job.parameters, number, listed) == of_source(found.base.parameters, found.number, listed)


def of_source(parameters: Mapping[str, Any], number: int, listed: Sequence[str]) -> dict[str, Any]:
    """Return the parameters of one source among others.

    Args:
      listed: parameters that have an entry for each source.
    """
    return {
        name: value[number : number + 1] if name in listed and isinstance(value, list) else value
        for name, value in parameters.items()
    }


def _first_records(job: Job, source: Source, found: _Known) -> Stored | None:
    """Return all records but the last that an index has of a source that grew; None if it must be scanned whole."""
    index, number = found
    old = index.sources[number]
    if not job.chosen.begins_anywhere or not index.has_bounds or old.records < 2:
        return None
    if source.codec or old.compression is not None:
        return None
    begin = index.bounds(number, old.records - 1, old.records)[0]
    if not 0 < begin < old.size:
        return None
    try:
        last = _totals(job, source._replace(begin=begin, end=old.size))
    except (FormatError, ColumnError, DecodeError):
        return None
    smallest, largest = sizes_before_last(index, number, old.records - 1)
    first = old._replace(
        records=old.records - 1,
        lines=old.lines - last["lines"],
        skipped=old.skipped - last["skipped"],
        smallest=smallest,
        largest=largest,
        bad=BadLines(old.bad.lines - last["bad"].lines, tuple(at for at in old.bad.first if at[1] < begin)),
    )
    records = Stored.of(index, range(number, number + 1)).records
    return Stored(index, range(number, number + 1), records[:-1], first, size=begin) if last["records"] == 1 else None


def _totals(job: Job, source: Source) -> dict[str, Any]:
    """Return the totals of the end of a source."""
    tally, totals = Tally(), {"records": 0, "lines": 0, "skipped": 0, "bad": BadLines()}
    for piece in job.chosen.scan([source], job.parameters, job.measuring, workers=1):
        tally.add(piece)
        if piece.end is not None:
            totals = tally.totals(piece.end, job.parameters)
    return totals
