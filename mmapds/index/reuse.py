"""What other indexes know of the sources of an index that is to be written, so that only the rest is scanned.

These are the index that is to be replaced, and the indexes that the sources have of their own. A source is taken from
there if it has the size and the time that it had then, and the same fingerprint. For one that grew, see `append`.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..errors import FormatError, IndexMissingError, SourceError
from ..storage.fingerprints import WAITING, each, fingerprint
from ..storage.index_file import Index, alike, relative_to_index
from ..storage.numbers import F64
from ..storage.sections import COLUMN
from ..storage.sources import INDEX_SUFFIX, Source
from .append import first_records
from .stored import Stored
from .write import Job, Plan, Scan


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


def reuse(job: Job) -> Reuse:
    """Return how to write an index with what other indexes know; they may be of any age, or damaged."""
    found = {number: _records(job, number, source) for number, source in _find(job).items()}
    known = {number: records for number, records in found.items() if records is not None}
    if not _have_certain_types(job, known):
        known = {number: records for number, records in known.items() if records.base is not job.before}
    kept = used = scanned = 0
    grown: dict[int, int] = {}
    plan: list[Scan | Stored] = []
    for number, source in enumerate(job.sources):
        records = known.get(number)
        if records is None:
            _append_scan(plan, source)
            scanned += 1
        elif records.totals is None:
            _append_stored(plan, records)
            kept += records.base is job.before
            used += records.base is not job.before
        else:
            plan += [records, Scan([source._replace(begin=records.size)])]
            grown[number] = records.base.sources[records.sources.start].records
    return Reuse(plan, kept, used, scanned, grown)


def _records(job: Job, number: int, found: _Known) -> Stored | None:
    """Return the records of a source that are known: all, or the first of one that grew; None if it must be scanned."""
    if found.base.sources[found.number].size == job.sources[number].size:
        return Stored.of(found.base, range(found.number, found.number + 1))
    return first_records(job, job.sources[number], found.base, found.number)


def _have_certain_types(job: Job, known: Mapping[int, Stored]) -> bool:
    """Whether known records of the index that is replaced say which types a scan of their sources finds.

    Where a column has floats and those of these records are all whole, it may have them for other sources, and integers
    here. A damaged index says nothing.
    """
    own = [records for records in known.values() if records.base is job.before]
    if not own:
        return True
    before = own[0].base
    if sum(before.sources[records.sources.start].records for records in own) == before.records:
        return True
    floats = [name for name in job.measuring.columns if before.columns[name].dtype == F64.dtype]
    try:
        return all(any(records.has_fractions(COLUMN + name) for records in own) for name in floats)
    except FormatError:
        return False


def _append_stored(plan: list[Scan | Stored], records: Stored) -> None:
    """Append a whole source to a plan; neighbours in an index become one part of it."""
    base, sources, last = records.base, records.sources, plan[-1] if plan else None
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


def _find(job: Job) -> dict[int, _Known]:
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
        if _may_be_used(job, number, found):
            known[number] = found
    paths = [job.sources[number].path for number in known]
    sizes = [found.base.sources[found.number].size for found in known.values()]
    digests = each(lambda task: _fingerprint(*task), list(zip(paths, sizes, strict=True)), workers=WAITING)
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


def _may_be_used(job: Job, number: int, found: _Known) -> bool:
    """Whether a source seems to be as it was, by size and time, or to have grown, and has the same parameters."""
    listed = job.chosen.per_source
    if of_source(job.parameters, number, listed) != of_source(found.base.parameters, found.number, listed):
        return False
    now, then = job.sources[number], found.base.sources[found.number]
    return (now.size, now.mtime_ns) == (then.size, then.mtime_ns) or (now.size > then.size and then.records > 1)


def of_source(parameters: Mapping[str, Any], number: int, listed: Sequence[str]) -> dict[str, Any]:
    """Return the parameters of one source among others.

    Args:
      listed: parameters that have an entry for each source.
    """
    return {
        name: value[number : number + 1] if name in listed and isinstance(value, list) else value
        for name, value in parameters.items()
    }
