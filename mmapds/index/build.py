"""From sources to an index."""

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from .. import formats
from ..clusters import Engine
from ..errors import (
    ColumnError,
    DecodeError,
    Error,
    FormatError,
    IndexMissingError,
    SourceError,
    StaleIndexError,
    counted,
    either,
    listed,
    option,
    rebuilt_with,
    shortened,
    warn,
)
from ..formats.format import Format, OptionError
from ..formats.measuring import Measuring
from ..storage import current
from ..storage.index_file import NOTHING, Index
from ..storage.lock import locked
from ..storage.sections import SavedViewFoundError
from ..storage.sources import INDEX_SUFFIX, Roots, StrPath, index_path, inspect
from ..storage.workers import cores
from .inspect import Summary, summarise
from .plan import Job, Scan, Stored, described, is_current, new_plan
from .write import Report, written

_NAMED = 3  # sources in a warning

Complete = Callable[[str, str], object]
"""What adds columns to an index. It is called with its place, and with the path of the file that has all the rest: a
new one that is not there yet, or the index itself. It puts the whole index into its place."""


class Request(NamedTuple):
    """How indexes are to be built; None where the user left it open. See `mmapds.build` for what is not said here."""

    format: str | Format | None = None
    options: Mapping[str, Any] = {}
    """Of the format."""
    columns: Mapping[str, str] = {}
    """Name to expression."""
    missing: str | float | None = None
    validate: bool | None = None
    bad: str | None = None
    computed: Collection[str] = ()
    """Names of the columns that `complete` adds."""
    complete: Complete | None = None
    hash: bool = False
    """Store a hash of each source; an index that has them keeps them in any case."""
    force: bool = False
    grown: bool = False
    fresh: bool = False
    """Ignore the index that is there: keep neither its options nor its columns."""
    by_sample: bool = False
    """A source of another time is the same if its fingerprint is; by default it is scanned again."""
    roots: Roots | None = None
    """Where the sources of an index may lie that is itself among the paths."""
    engine: Engine | None = None
    """What scans for one index of all sources; by default, this process does, with its threads."""
    workers: int | None = None
    report: Report = lambda _: None
    """Called with the number of bytes of sources that were done since the last call."""

    def measuring(self, before: Index | None, held: Mapping[str, str] | None = None) -> Measuring:
        """Return what a scan measures: what is asked for, completed from the index `before`.

        Args:
          held: the columns that the sources hold.
        """
        known = before.measuring if before else NOTHING
        held_before = before.parameters.get("columns", {}) if before else {}
        kept = {name: text for name, text in known["expressions"].items() if held_before.get(name) != text}
        inherited = {name: text for name, text in {**(held or {}), **kept}.items() if name not in self.computed}
        bad = known.get("bad", "error") if self.bad is None else self.bad
        if bad == "skip" and self.validate is not None and not self.validate:
            raise ColumnError("validate = False, expected True with bad = 'skip'; give bad='error' too")
        return Measuring(
            {**inherited, **self.columns},
            known["missing"] if self.missing is None else self.missing,
            known["validate"] if self.validate is None else self.validate,
            bad,
        )


class BuildResult(NamedTuple):
    """The outcome for one index."""

    summary: Summary
    fresh: bool
    """False when the index was up to date and is kept."""
    reused: str = ""
    """What was taken from the index before, and what was not; empty where all was scanned."""
    remarks: Sequence[str] = ()
    """Warnings of sources that were scanned now: see `End.remark`."""


def complaints(results: Sequence[BuildResult]) -> list[str]:
    """Return warnings of what indexes lack that somebody may miss."""
    lines = [
        f"{each.first_bad}: expected JSON, found other text ({counted(each.bad, 'such line')} left out of {each.path})"
        for each in (result.summary for result in results if result.fresh)
        if each.bad
    ]
    remarks = [remark for result in results for remark in result.remarks]
    lines += [f"{remark} (and {len(remarks) - 1:,} more)" if remarks[1:] else remark for remark in remarks[:1]]
    empty = [path for result in results for path in result.summary.empty]
    if empty:
        more = f" and {len(empty) - _NAMED:,} more" if len(empty) > _NAMED else ""
        lines.append(f"{', '.join(empty[:_NAMED])}{more}: expected one record or more, found 0 records")
    return lines


def build_and_warn(paths: list[str], request: Request, out: StrPath | None = None) -> list[BuildResult]:
    """Build indexes as `build_each` does; warn of what they lack, also where a later one cannot be built."""
    built: list[BuildResult] = []
    try:
        built.extend(build_each(paths, request, out))
    finally:
        for line in complaints(built):
            warn(line)
    return built


def check_workers(workers: int | None) -> None:
    """Raise Error for a number of threads that is not one."""
    if workers is not None and (type(workers) is not int or workers < 1):
        raise Error(f"workers = {shortened(workers)}, expected 1 or more")


def build_each(paths: list[str], request: Request, out: StrPath | None = None) -> Iterator[BuildResult]:
    """Build the indexes of expanded paths one after another, or one of all of them; yield each as it is done.

    An index that is up to date is left as it is, and nobody waits for a lock. Others are built by one process at a
    time; those that waited find them up to date.

    Args:
      out: the path of the one index of all paths.
    """
    check_workers(request.workers)
    if out is not None:
        yield _built(request, os.fspath(out), paths)
    else:
        for path in paths:
            yield _built(request, index_path(path), path)


def _built(request: Request, place: str, given: str | list[str]) -> BuildResult:
    """Return an index that is up to date, or build it.

    Args:
      given: its sources; or its one source, or its own path.
    """
    if not (os.path.exists(place) and _is_current(request, _job(request, place, given))):
        with locked(place):
            job = _job(request, place, given)  # again, as another process may have built it meanwhile
            if not _is_current(request, job):
                return _build(request, job)
    summary = summarise(Index(place, request.roots))
    request.report(summary.size)
    if request.complete is not None:
        request.complete(place, place)
    return BuildResult(summary, fresh=False)


def _is_current(request: Request, job: Job) -> bool:
    return not request.force and is_current(job, by_sample=request.by_sample)


def _job(request: Request, place: str, given: str | list[str]) -> Job:
    """Return what is to be at a place.

    For one source, and for an index that is given itself, the format and the options that are left open are those of
    the index there. For such an index, so are the sources.
    """
    is_index = isinstance(given, str) and given.endswith(INDEX_SUFFIX)
    members = [given] if isinstance(given, str) else given
    before = Index(place, request.roots) if is_index else readable_index(place, Roots(named=members))
    name, options = request.format, request.options
    if request.fresh or (request.force and not is_index and before and before.format not in formats.FORMATS):
        before = None
    if isinstance(given, str) and before is not None and name in (None, before.format):
        name, options = before.format, options or _inherited(request, before, is_index or before.covers(given))
    if is_index and before is not None:
        members = formats.readable_sources(before, _format([], name or before.format))
        for number in range(len(members)):
            current.stat_source(before, number)  # whose error says how to go on without a source that is missing
    sources = [inspect(path) for path in members]
    chosen = _format(members, name)
    formats.check_options(chosen.name, chosen.options, options)
    formats.check_codecs(chosen, sources)
    try:
        parameters = chosen.parameters(options, members)
    except OptionError as error:
        if before is None or request.options:
            raise
        raise FormatError(f"{before.path}: {error}; give the option with another value") from None
    measuring = request.measuring(before, parameters.get("columns"))
    hashes = request.hash or (before is not None and any(source.xxh3_128 for source in before.sources))
    return Job(place, sources, chosen, parameters, measuring, before, hashes)


def _inherited(request: Request, before: Index, is_of_these: bool) -> dict[str, Any]:
    """Return the options of an index; `truncated` only while its sources are what they were."""
    options = {name: before.parameters[name] for name in formats.of_index(before).options if name in before.parameters}
    if "truncated" in options and is_of_these and not request.force:
        with suppress(SourceError, StaleIndexError):
            current.check([before])
            return options
    options.pop("truncated", None)
    return options


def _build(request: Request, job: Job) -> BuildResult:
    """Build an index; the caller holds its lock."""
    before, place, workers, engine = job.before, job.index_path, request.workers or cores(), request.engine
    plan = [Scan(job.sources)] if request.force else new_plan(job, grown=request.grown)
    job = job._replace(any_lines=_takes_any_lines(job, is_given=request.format is not None))
    if before is not None and plan == [Stored(before, range(len(before.sources)))]:  # hashes alone are lacking
        kept = [name for name in before.computed_columns if name not in request.computed]
        functions = {name: function for name, function in before.functions.items() if name in kept}
        job = job._replace(computed=kept, functions=functions)
    elif before is not None and not request.force:
        _check_nothing_is_lost(before, request.computed)
    try:
        done = written(job, plan, workers, request.report, engine)
    except (FormatError, ColumnError, DecodeError):
        if job.computed or not described(plan):
            raise
        # The index before is damaged; or a record is bad, whose number a scan of all records knows.
        plan = [Scan(job.sources)]
        done = written(job, plan, workers, request.report, engine)
    if request.complete is None:
        done.put()
    else:
        with done.writer:
            request.complete(place, done.path)
    if engine is not None:
        engine.remove_parts(done.parts, place)
    return BuildResult(summarise(Index(place)), True, described(plan), done.remarks)


def _takes_any_lines(job: Job, *, is_given: bool) -> bool:
    """Whether the user chose the format of a source whose first bytes deny it, now or when the index was built.

    Raises:
      FormatError: the format is that of the index before, and its source is another file now, whose bytes deny it.
    """
    if not is_given and (job.before is None or job.before.metadata.get("any_lines") is True):
        return job.before is not None  # a format that was found by the first bytes agrees with them
    try:
        for source in job.sources:
            formats.check_name(source.path, job.chosen)
    except FormatError:
        if not is_given:
            raise
        return True
    return False


def _format(paths: list[str], name: str | Format | None) -> Format:
    if name is not None:
        return name if isinstance(name, Format) else formats.by_name(name)
    found = {formats.for_path(path).name: path for path in paths}
    if len(found) > 1:
        shown = ", ".join(f"{path} ({name})" for name, path in found.items())
        raise FormatError(
            f"sources: expected one format in one index, found {shown}; leave out {either('-o', 'out=...')}, so that "
            f"each has an index of its own, or choose with {either('--format F', 'format=...')}, where a name misleads"
        )
    return formats.by_name(next(iter(found)))


def readable_index(index_path: str, roots: Roots | None = None) -> Index | None:
    """Return an index, None where there is none, or none that can be read."""
    try:
        return Index(index_path, roots)
    except SavedViewFoundError:
        place = either("-o OUT.mmx", "out=...")
        raise FormatError(
            f"{index_path}: expected an index, or nothing yet, found a saved view; rename it, or give another place "
            f"with {place}"
        ) from None
    except (IndexMissingError, FormatError):
        return None


def _check_nothing_is_lost(before: Index, computed: Collection[str]) -> None:
    """Raise ColumnError if an index has columns that were computed in Python, and that are not computed again."""
    if lost := [name for name in before.computed_columns if name not in computed]:
        shown = listed(lost)
        raise ColumnError(
            f"{before.path}: column {shown} was computed in Python and a rebuild loses it; {rebuilt_with(lost)}, "
            f"or drop {shown} with {option('force', True)}"
        )
