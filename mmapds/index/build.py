"""From sources to an index: inspect the sources, plan what to scan, write the index.

docs/checks.md says which sources are kept, and where the scan of a grown source begins.
"""

import json
import os
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from .. import _native, formats
from ..errors import (
    ColumnError,
    DecodeError,
    Error,
    FormatError,
    IndexMissingError,
    SourceError,
    StaleIndexError,
    counted,
    listed,
    option,
    rebuilt_with,
    shortened,
)
from ..formats.expressions import LARGEST_RECORD, Measuring
from ..formats.format import PLAIN_OR_COMPRESSED, Format
from ..storage import current
from ..storage.index_file import NOTHING, Index
from ..storage.lock import locked
from ..storage.numbers import F64, I64, U32, U64
from ..storage.places import Files, Places, relative_to_index
from ..storage.sections import LARGEST_BLOCK, IndexedSource, SavedViewFoundError
from ..storage.sources import INDEX_SUFFIX, compressed, inspect, named, open_regular
from ..storage.workers import cores, in_threads
from .executors import Engine
from .write import Grown, Job, Plan, Report, Scan, Stored, written

_NAMED = 3  # sources in a warning

Complete = Callable[[str, str, Plan], object]
"""A function that adds columns to an index and moves the whole index to its place. Its arguments: that place, the path
of a file with everything but these columns (a new temporary file, or the index itself), and the plan of its
records."""


class Request(NamedTuple):
    """How to build indexes; None means that the user gave no value. `mmapds.build` describes the other fields."""

    format: str | Format | None = None
    options: Mapping[str, Any] = {}  # of the format
    columns: Mapping[str, str] = {}
    missing: str | float | None = None
    validate: bool | None = None
    bad: str | None = None
    max_record: int | None = None
    computed: Collection[str] = ()  # names of the columns that `complete` adds
    complete: Complete | None = None
    hash: bool = False
    force: bool = False
    grown: bool = False
    fresh: bool = False  # ignore the existing index: keep neither its options nor its columns
    by_sample: bool = False
    """Take a source as unchanged if its time or its fingerprint is the same. By default, both must be the same;
    otherwise the source is scanned again."""
    places: Places | None = None
    engine: Engine | None = None
    workers: int | None = None
    report: Report = lambda _: None

    def measuring(self, before: Index | None, held: Mapping[str, str] | None = None) -> Measuring:
        """Return what a scan measures: columns of the request, of the previous index, and of the sources."""
        known = before.measuring if before else NOTHING
        held_before = before.parameters.get("columns", {}) if before else {}
        kept = {name: text for name, text in known["expressions"].items() if held_before.get(name) != text}
        inherited = {name: text for name, text in {**(held or {}), **kept}.items() if name not in self.computed}
        return Measuring(
            {**inherited, **self.columns},
            known["missing"] if self.missing is None else self.missing,
            known["validate"] if self.validate is None else self.validate,
            known.get("bad", "error") if self.bad is None else self.bad,
            known.get("max_record", LARGEST_RECORD) if self.max_record is None else self.max_record,
        )


class Summary(NamedTuple):
    """What an index covers."""

    path: str
    size: int  # bytes in the sources, on disk
    content: int  # bytes of their content; differs from `size` for compressed sources
    smallest: int  # bytes in the smallest record, with any gap before the next; 0 without records
    largest: int
    skipped: int  # records that were skipped
    bad: int  # how many of them are bad lines
    first_bad: str  # the place of the first one
    empty: tuple[str, ...]  # the sources that have no record
    in_order: tuple[str, ...]  # compressed sources with a block so large that it is read in file order only
    text: str

    def __str__(self) -> str:
        return self.text


def summarise(index: Index) -> Summary:
    """Return what an index covers, from its metadata and the bounds at both ends of each source."""
    sources, expressions, skipped, bad = index.sources, index.expressions, 0, 0
    first_bad, empty, in_order = "", [], []
    for number, source in enumerate(sources):
        skipped, bad = skipped + source.skipped, bad + source.bad.lines
        if source.bad.first and not first_bad:
            line, byte = source.bad.first[0]
            first_bad = f"{index.source_path(number)}:{line} (byte {byte})"
        if not source.records:
            empty.append(index.source_path(number))
        if source.compression is not None and source.compression.largest > max(LARGEST_BLOCK, source.largest):
            in_order.append(index.source_path(number))
    size = sum(source.size for source in sources)
    content = sum((source.compression or source).size for source in sources)
    smallest = min((source.smallest for source in sources if source.records), default=0)
    largest = max((source.largest for source in sources), default=0)
    mean = sum(map(index.extent, range(len(sources)))) / max(index.records, 1)
    columns = ", ".join(f"{name} = {expressions[name]}" if name in expressions else name for name in index.columns)
    several = f" in {len(sources):,} sources" if len(sources) > 1 else ""
    decoded = f", {content:,} decoded" if content != size else ""
    text = (
        f"{index.path}: {counted(index.records, 'record')}{several}, {counted(size, 'byte')}{decoded}, "
        f"{mean:.1f} bytes a record ({smallest:,} to {largest:,}){'; ' if columns else ''}{columns}"
    )
    if skipped:
        text += f"; {counted(skipped, 'record')} left out" + (f" ({bad:,} bad)" if bad else "")
    places = tuple(empty), tuple(in_order)
    return Summary(index.path, size, content, smallest, largest, skipped, bad, first_bad, *places, text)


class BuildResult(NamedTuple):
    """The outcome for one index."""

    summary: Summary
    fresh: bool  # false when the index was up to date and is kept
    reused: str = ""  # what was copied from the previous index, and what was scanned; empty if all was scanned
    remarks: Sequence[str] = ()  # warnings about the sources that were scanned: see `End.remark`


def check_workers(workers: int | None) -> None:
    """Raise Error unless the number of threads is 1 or more, or None."""
    if workers is not None and (type(workers) is not int or workers < 1):
        raise Error(f"workers = {shortened(workers)}, expected 1 or more")


def build_files(request: Request, place: str, given: str | list[str]) -> BuildResult:
    """Return an index of files that is up to date, or build it.

    Args:
      given: its sources, its only source, or its own path.
    """
    job, plan = planned(request, place, given)
    if not (os.path.exists(place) and _is_current(request, job, plan)):
        with locked(place):
            job, plan = planned(request, place, given)  # again, as another process may have built it meanwhile
            if not _is_current(request, job, plan):
                return _build(request, job, plan)
    summary = summarise(Index(place, request.places))
    request.report(summary.size)
    if request.complete is not None:
        request.complete(place, place, plan)
    return BuildResult(summary, fresh=False)


def _is_current(request: Request, job: Job, plan: Plan) -> bool:
    """Whether the existing index has everything that a job wants, and its sources are unchanged."""
    before = job.before
    if before is None or plan != [Stored(before, range(len(before.sources)))] or before.parameters != job.parameters:
        return False
    return request.by_sample or not job.hashes or all(source.xxh3_128 for source in before.sources)


def planned(request: Request, place: str, given: str | list[str]) -> tuple[Job, Plan]:
    """Return the job for an index at a place, and the plan of where its records come from.

    For a single source or a given index, the existing index supplies the format and the options that the user did not
    give. A given index also supplies the sources.
    """
    is_index = isinstance(given, str) and given.endswith(INDEX_SUFFIX)
    members = [given] if isinstance(given, str) else given
    before = Index(place, request.places) if is_index else readable_index(place, Places(Files().allow(members)))
    name, options = request.format, request.options
    if request.fresh:
        before = None
    if isinstance(given, str) and before is not None and name in (None, before.format):
        name = before.format
        if options.keys() <= {"truncated"}:  # which does not change how records are framed
            kept = _inherited(before, is_same=not request.force and (is_index or before.covers(given)))
            options = {**kept, **options}
    if is_index and before is not None:
        members = formats.readable_sources(before, format_of([], name or before.format))
    sources = [inspect(path) for path in members]
    chosen = format_of(members, name)
    formats.check_options(chosen.name, chosen.options, options)
    for source in sources:
        if source.codec in chosen.codecs:
            continue
        if source.codec in PLAIN_OR_COMPRESSED and "" in chosen.codecs:
            raise compressed(source.path, source.codec, chosen.name)
        found = source.codec or "another"
        raise FormatError(f"{source.path}: expected a file of format {chosen.name!r}, found {found}")
    parameters = chosen.parameters(options, members)
    measuring = request.measuring(before, parameters.get("columns"))
    hashes = request.hash or (before is not None and any(source.xxh3_128 for source in before.sources))
    job = Job(place, sources, chosen, parameters, measuring, before, hashes)
    return job, [Scan(sources)] if request.force else new_plan(job, request)


def _inherited(before: Index, *, is_same: bool) -> dict[str, Any]:
    """Return the options of an index; `truncated` only while its sources are unchanged."""
    options = {name: before.parameters[name] for name in formats.of_index(before).options if name in before.parameters}
    with suppress(SourceError, StaleIndexError):
        if is_same and "truncated" in options:
            current.check([before])
            return options
    options.pop("truncated", None)
    return options


def format_of(paths: list[str], name: str | Format | None) -> Format:
    """Return the format of this name or, without a name, the format of all sources."""
    if name is not None:
        return name if isinstance(name, Format) else formats.by_name(name)
    found = {formats.for_path(path).name: path for path in paths}
    if len(found) > 1:
        shown = ", ".join(f"{path} ({name})" for name, path in found.items())
        raise FormatError(f"sources: expected one format in one index, found {shown}; build an index of each")
    return formats.by_name(next(iter(found)))


def readable_index(name: str, places: Places | None = None) -> Index | None:
    """Return an index; None if it is missing or unreadable. Raise FormatError for a saved view."""
    try:
        return Index(name, places)
    except SavedViewFoundError:
        raise
    except (IndexMissingError, FormatError):
        return None


def _build(request: Request, job: Job, plan: Plan) -> BuildResult:
    """Build an index; the caller holds its lock."""
    before, place, workers, engine = job.before, job.index_path, request.workers or cores(), request.engine
    if before is not None and request.format is None:  # the format came from the index, and this may be another file
        for source in job.sources:
            if job.chosen.is_text and named(source.path, job.chosen.suffixes):
                formats.for_path(source.path)
    kept = [name for name in before.computed_columns if name not in request.computed] if before is not None else []
    gone = [name for name in kept if request.force and name not in request.columns]
    dropped = [f"{place}: column {listed(gone)}, which was computed in Python, is dropped"] if gone else []
    if before is not None and not request.force:
        if plan == [Stored(before, range(len(before.sources)))]:  # only hashes are missing
            functions = {name: function for name, function in before.functions.items() if name in kept}
            job = job._replace(computed=kept, functions=functions)
        elif kept:
            raise ColumnError(
                f"{before.path}: column {listed(kept)} was computed in Python and a rebuild loses it; "
                f"{rebuilt_with(kept)}, or drop {listed(kept)} with {option('force', True)}"
            )
    try:
        done = written(job, plan, workers, request.report, engine)
    except (FormatError, ColumnError, DecodeError):
        if job.computed or plan == [Scan(job.sources)]:
            raise
        # Scan all: the previous index is damaged, or a record is bad, and only a full scan knows its number.
        plan = [Scan(job.sources)]
        done = written(job, plan, workers, request.report, engine)
    with done.writer:
        if request.complete is None:
            done.writer.place()
        else:
            request.complete(place, done.path, plan)
    if engine is not None:
        engine.remove_parts(done.tasks, place)
    return BuildResult(summarise(Index(place)), True, described(plan), [*done.remarks, *dropped])


# ---- what is known about the sources -----------------------------------------------------------------------------


def new_plan(job: Job, request: Request) -> Plan:
    """Return a plan that copies what it can from the previous index, which may be of any age, or damaged."""
    before = job.before
    if before is None or not _measures_the_same(before, job):
        return [Scan(job.sources)]
    plan: list[Scan | Stored | Grown] = []
    for source, number in zip(job.sources, _known(job, before, request), strict=True):
        last = plan[-1] if plan else None
        if number is None and isinstance(last, Scan):
            last.sources.append(source)
        elif number is None:
            plan.append(Scan([source]))
        elif source.size != before.sources[number].size:
            plan.append(Grown(before, number, source))
        elif isinstance(last, Stored) and last.sources.stop == number:
            plan[-1] = Stored(before, range(last.sources.start, number + 1))
        else:
            plan.append(Stored(before, range(number, number + 1)))
    whole = {number for step in plan if isinstance(step, Stored) for number in step.sources}
    kept = [step.records for step in plan if not isinstance(step, Scan)]
    columns = [] if len(whole) == len(before.sources) else [before.column(name) for name in job.measuring.columns]
    return plan if all(_needs(dtype, data, kept) for dtype, data in columns) else [Scan(job.sources)]


def _needs(dtype: str, data: memoryview, kept: Sequence[range]) -> bool:
    """Whether the kept records alone still need the type of a column."""
    if dtype == F64.dtype:
        return any(number % 1 for rows in kept for number in data.cast("d")[rows.start : rows.stop])
    least = {U32.dtype: 0, U64.dtype: 2**32, I64.dtype: 2**63}[dtype]  # the bits of a negative number
    return not least or any(_native.cells_largest(data.cast("Q")[rows.start : rows.stop]) >= least for rows in kept)


def described(plan: Plan) -> str:
    """Return what a plan does, for the summary of an index; "" if all is scanned."""
    counts: Counter[str] = Counter()
    for step in plan:
        if isinstance(step, Grown):
            counts["appended to"] += 1
        else:
            counts["kept" if isinstance(step, Stored) else "scanned"] += len(step.sources)
    order = [name for name in ("kept", "appended to", "scanned") if counts[name]]
    return "" if order == ["scanned"] else ", ".join(f"{name} {counted(counts[name], 'source')}" for name in order)


def _known(job: Job, before: Index, request: Request) -> list[int | None]:
    """Return for each source its number in the previous index; None unless it is unchanged or has grown."""
    numbers = {source.path: number for number, source in enumerate(before.sources)}
    found: list[int | None] = []
    asked: list[tuple[int, str, IndexedSource, bool]] = []
    for place, source in enumerate(job.sources):
        path = relative_to_index(source.path, job.index_path)
        is_there = place < len(before.sources) and before.sources[place].path == path
        number = place if is_there else numbers.get(path)  # a source may be listed twice: prefer its own place
        found.append(None)
        if number is None or _of_source(job, job.parameters, place) != _of_source(job, before.parameters, number):
            continue
        then = before.sources[number]
        is_plain = not source.codec and then.compression is None and job.chosen.begins_anywhere
        can_grow = request.grown and is_plain and then.records > 0 and before.end(number) == then.size
        same_size, same_time = source.size == then.size, source.mtime_ns == then.mtime_ns
        if (same_size and (same_time or request.by_sample)) or (can_grow and source.size > then.size):
            found[place] = number
            if not (same_size and same_time and request.by_sample):
                asked.append((place, source.path, then, job.chosen.is_text and not same_size))
    for (place, *_), same in zip(asked, in_threads(_is_same, asked, workers=current.WAITING), strict=True):
        found[place] = found[place] if same else None
    return found


def _is_same(asked: tuple[int, str, IndexedSource, bool]) -> bool:
    """Whether the first bytes of a file still have their fingerprint and, on request, end with a line."""
    _, path, then, must_end_line = asked
    with suppress(SourceError, OSError):  # the scan says what is wrong
        if current.fingerprint(path, then.size).hex == then.fingerprint:
            with open_regular(path) as file:
                return not must_end_line or os.pread(file.fileno(), 1, then.size - 1) == b"\n"
    return False


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
