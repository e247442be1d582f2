"""From sources to an index."""

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
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
    option,
    shortened,
    warn,
)
from ..formats.format import Format, OptionError
from ..formats.measuring import Measuring
from ..formats.mma import ArrayFiles
from ..storage import current
from ..storage.hints import column_arguments, column_option, rebuilt_with
from ..storage.index_file import NOTHING, Index, SavedViewFoundError
from ..storage.lock import locked
from ..storage.roots import Roots
from ..storage.sources import INDEX_SUFFIX, Source, StrPath, index_path, inspect
from ..storage.threads import cores
from .left_out import bad_lines, behind_ends, without_samples
from .reuse import Reuse, is_current, lacking_hashes, reuse
from .summary import Summary, summarise
from .write import Job, Scan, write

_NAMED = 3  # sources in a warning


class ColumnRequest(NamedTuple):
    """The columns and checks that a user asked for; None where the user left it open."""

    columns: Mapping[str, str] = {}
    """Name to expression."""
    missing: str | float | None = None
    validate: bool | None = None
    computed: Collection[str] = ()
    """Names of the columns that the caller computes once an index is built."""
    hash: bool = False
    """Store a hash of each source; an index that has them keeps them in any case."""
    bad: str | None = None
    length_apart: bool = False
    """Whether the column `length` was given as the argument of that name, and not among the columns."""

    def hashes(self, before: Index | None) -> bool:
        """Whether an index that replaces `before` has a hash of each source."""
        return self.hash or (before is not None and any(source.xxh3_128 for source in before.sources))

    def measuring(self, before: Index | None, held: Mapping[str, str] | None = None) -> Measuring:
        """Return what a scan measures: the request, completed from the index `before`.

        Columns that will be `computed` are not measured. `held` are the columns that the sources hold; by default those
        they held when `before` was built.
        """
        known = before.measuring if before else NOTHING
        held_before = before.parameters.get("columns", {}) if before else {}
        kept = {name: text for name, text in known["expressions"].items() if held_before.get(name) != text}
        inherited = {**(held_before if held is None else held), **kept}
        bad = known.get("bad", "error") if self.bad is None else self.bad
        if bad == "skip" and self.validate is not None and not self.validate:
            raise ColumnError("validate = False, expected True with bad = 'skip'; give bad='error' too")
        return Measuring(
            {**{name: text for name, text in inherited.items() if name not in self.computed}, **self.columns},
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
    """What was taken from other indexes, and what was not; empty where all was scanned."""
    bad_lines: Sequence[str] = ()
    """A message for each of the first lines that were left out now as they are not JSON, and one for the others."""
    without_samples: Sequence[str] = ()
    """The tars that have members, but no sample, of those that were scanned now."""
    behind_ends: Sequence[str] = ()
    """A message for each tar that has more than zeros behind its end, of those that were scanned now."""
    hashed: int = 0
    """Sources whose hash was added now to an index that is kept otherwise."""

    def warn(self) -> None:
        """Warn of lines that are left out as they are not JSON."""
        if self.bad_lines:
            what = self.bad_lines[0].removesuffix("; left out")
            warn(
                f"{what}; {self.summary.bad:,} such lines are left out of {self.summary.path}",
            )


def complaints(results: Sequence[BuildResult], *, of_each: bool = False) -> list[str]:
    """Return warnings of what indexes lack that somebody may miss.

    Args:
      of_each: also of sources without a record where others have some. A program may mean to give these, and filters of
        warnings may stop it; to a command it is a line.
    """
    behind = [line for result in results for line in result.behind_ends]
    others = len(behind) - 1
    more = f" ({counted(others, 'more archive')} {'has' if others == 1 else 'have'} such bytes)" if others > 0 else ""
    emptiness = _emptiness(results, of_each=of_each)
    return [line for line in (emptiness, f"{behind[0]}{more}" if behind else "") if line]


def _emptiness(results: Sequence[BuildResult], *, of_each: bool) -> str:
    """Return a warning of tars without a sample, or else of sources without a record; "" without either."""
    tars = [path for result in results for path in result.without_samples]
    if tars:
        more = f" and {len(tars) - 1:,} more" if len(tars) > 1 else ""
        return f"{tars[0]}{more}: expected members whose names make samples, such as 000.jpg, found 0 records"
    empty = [path for result in results for path in result.summary.empty]
    if not empty or not (of_each or all(not result.summary.records for result in results)):
        return ""
    more = f" and {len(empty) - _NAMED:,} more" if len(empty) > _NAMED else ""
    return f"{', '.join(empty[:_NAMED])}{more}: expected one record or more, found 0 records"


Complete = Callable[[str, str | None], object]
"""What adds columns to an index. It is called with its path and, where it is being built, with that of a file that has
all the rest: it then puts the whole index into its place."""


class _Wanted(NamedTuple):
    """What the indexes of one call are to be like, and how they are built; see `build_each`."""

    format_name: str | Format | None
    options: dict[str, Any]
    request: ColumnRequest
    roots: Roots | None
    force: bool
    grown: bool
    inherit: bool
    by_sample: bool
    engine: Engine | None
    workers: int
    report: Callable[[int], object]
    complete: Complete | None


def check_workers(workers: int | None) -> None:
    """Raise Error for a number of threads that is not one."""
    if workers is not None and (type(workers) is not int or workers < 1):
        raise Error(f"workers = {shortened(workers)}, expected 1 or more")


def build_each(
    paths: list[str],
    *,
    out: StrPath | None = None,
    format_name: str | Format | None = None,
    options: Mapping[str, Any] | None = None,
    request: ColumnRequest | None = None,
    workers: int | None = None,
    force: bool = False,
    grown: bool = False,
    inherit: bool = True,
    by_sample: bool = False,
    roots: Roots | None = None,
    engine: Engine | None = None,
    report: Callable[[int], object] = lambda _: None,
    complete: Complete | None = None,
) -> Iterator[BuildResult]:
    """Build the indexes of expanded paths one after another; yield each as it is done.

    An index that is up to date is left as it is, and nobody waits for a lock. Others are built by one process at a
    time; those that waited find them up to date.

    Args:
      options: of the format.
      inherit: take the options and the columns that are not given from the index that is there; False replaces it.
      by_sample: a source of another time is the same if its fingerprint is; by default it is scanned again.
      roots: where the sources of an index may lie that is itself among the paths.
      engine: what scans for `out`; by default, this process does, with its threads.
      report: called with the number of bytes of sources that were done since the last call.
      complete: adds the columns that the caller computes.

    See `mmapds.build` for the others.
    """
    check_workers(workers)
    given, how = dict(options or {}), (force, grown, inherit, by_sample, engine, workers or cores(), report, complete)
    wanted = _Wanted(format_name, given, request or ColumnRequest(), roots, *how)
    if out is not None:
        yield _built(wanted, os.fspath(out), paths)
    else:
        for path in paths:
            yield _built(wanted, index_path(path), path)


def _built(wanted: _Wanted, place: str, given: str | list[str]) -> BuildResult:
    """Return an index that is up to date, or build it.

    Args:
      given: its sources; or its one source, or its own path.
    """
    result = _current(wanted, place, given)[1] if os.path.exists(place) else None
    if result is None:
        with locked(place):
            job, result = _current(wanted, place, given)  # again, as another process may have built it meanwhile
            result = result or _build(job, wanted)
    if wanted.complete is not None and not result.fresh:
        wanted.complete(place, None)
    return result


def _current(wanted: _Wanted, place: str, given: str | list[str]) -> tuple[Job, BuildResult | None]:
    """Return what is to be there, and the outcome if it is there."""
    job = _job(wanted, given) if isinstance(given, str) else _checked(wanted, place, given)
    if wanted.force or not is_current(job, by_sample=wanted.by_sample):
        return job, None
    wanted.report(sum(source.size for source in job.sources))
    return job, BuildResult(summarise(Index(job.index_path)), fresh=False)


def _job(wanted: _Wanted, path: str) -> Job:
    """Look at the index of a source, or at one that is given itself, and return what is to be there.

    Without a format and options of the user's, those of the index are inherited; so are its sources, where it is given.
    `truncated` is not inherited when the sources have changed.
    """
    place, members, is_index = index_path(path), [path], path.endswith(INDEX_SUFFIX)
    format_name, options = wanted.format_name, wanted.options
    before = Index(place, wanted.roots) if is_index else _before(wanted, place, members)
    known = before
    if known is not None and wanted.force and known.format not in formats.FORMATS:
        known = None  # from a newer mmapds: nothing of it can be understood, and the user says to replace it
    if known is not None and format_name in (None, known.format):
        own = formats.of_index(known).options
        kept = {name: value for name, value in known.parameters.items() if name in own}
        if wanted.force or not (is_index or known.covers(path)) or not _has_its_sources(known):
            kept.pop("truncated", None)
        format_name, options = known.format, options or kept
    if is_index and known is not None:
        members = formats.readable_sources(known, _format([], format_name or known.format))
    return _checked(wanted._replace(format_name=format_name, options=options), place, members)


def _before(wanted: _Wanted, place: str, members: list[str]) -> Index | None:
    """Return the index that is there, if it is to be taken into account; its sources may be `members`."""
    return readable_index(place, Roots(named=members)) if wanted.inherit else None


def _checked(wanted: _Wanted, place: str, members: list[str]) -> Job:
    """Return the job for an index, whose format, options and columns fit its sources."""
    before = _before(wanted, place, members)
    format_name, options = wanted.format_name, wanted.options
    request = wanted.request
    sources = [_inspected(before, number, path) for number, path in enumerate(members)]
    chosen = _format(members, format_name)
    formats.check_options(chosen.name, chosen.options, options)
    formats.check_codecs(chosen, sources)
    parameters = _parameters(chosen, options, members, before)
    held = parameters.get("columns", {})
    measuring = request.measuring(before, held)
    if before is not None:
        _check_kept_columns(before, chosen, request, given=format_name is not None)
    return Job(place, sources, chosen, parameters, measuring, before=before, hashes=request.hashes(before))


def _check_kept_columns(before: Index, chosen: Format, request: ColumnRequest, *, given: bool) -> None:
    """Raise ColumnError for columns of JSON that are kept, where the format is now one whose records have no fields.

    Args:
      given: whether the user gave the format.
    """
    was = formats.FORMATS.get(before.format)
    if was is None or not was.is_text or chosen.is_text or chosen.name == "arrays":
        return
    known = before.measuring["expressions"]
    named = {*request.columns, *request.computed}
    kept = {name: text for name, text in known.items() if name not in named and text != "bytes()"}
    if not kept:
        return
    options = " ".join(column_option(name, "bytes()") for name in kept)
    anew = either(options, column_arguments(dict.fromkeys(kept, "'bytes()'")))
    stay = f"{either(f'--format {chosen.name}', f'format={chosen.name!r}')} out to keep the format {before.format!r}"
    what = f"column{'s' * (len(kept) > 1)} {', '.join(f'{name!r} = {text}' for name, text in kept.items())}"
    raise ColumnError(
        f"{before.path}: its {what} {'is' if len(kept) == 1 else 'are'} kept, which records of format {chosen.name!r} "
        f"do not have; {f'leave {stay}, or ' if given else ''}give {anew}"
    )


def _inspected(before: Index | None, number: int, path: str) -> Source:
    """Return a source; where it is missing, and the index is built again by its own name, say how without it."""
    try:
        return inspect(path)
    except SourceError as error:
        is_known = before is not None and number < len(before.sources) and before.source_path(number) == path
        if before is None or not is_known or os.path.lexists(path):
            raise
        raise before.unreadable(number, str(error).removeprefix(f"{path}: ")) from None


def _build(job: Job, wanted: _Wanted) -> BuildResult:
    looks, workers, report = not wanted.format_name, wanted.workers, wanted.report
    known = reuse(job, grown=wanted.grown) if wanted.inherit and not wanted.force else None
    job.any_lines = _takes_any_lines(job, looks=looks)
    if known is not None and known.is_all_of(job.before):
        return _with_hashes(job, known, workers, report)
    job.complete = partial(wanted.complete, job.index_path) if wanted.complete is not None else None
    if job.before is not None and not wanted.force:
        _check_nothing_is_replaced(job.before, wanted.request)
        kept = {*job.measuring.columns, *wanted.request.computed, *job.before.parameters.get("columns", {})}
        check_nothing_is_lost(job.before, kept, job.measuring.describe()["expressions"])
    if looks and job.before is not None and not job.any_lines:  # its format may be that of another file that was here
        scans = [part for part in known.plan if isinstance(part, Scan)] if known is not None else [Scan(job.sources)]
        for source in (source for scan in scans for source in scan.sources if not source.begin):
            formats.check_name(source.path, job.chosen)
    if wanted.engine is not None:
        known = _write_by(wanted.engine, job, known, workers, report)
    elif known is None or known.scanned == len(job.sources) or not _write_known(job, known, workers, report):
        known = None
        write(job, [Scan(job.sources)], workers, report)
    return result_of(job, known)


def _with_hashes(job: Job, known: Reuse, workers: int, report: Callable[[int], object]) -> BuildResult:
    """Write an index again that lacks nothing but hashes, with the columns that were computed in Python."""
    before = job.before
    assert before is not None
    job.functions = before.functions
    hashed = lacking_hashes(before) if job.hashes else 0
    write(job, known.plan, workers, report, computed=before.computed_columns)
    return BuildResult(summarise(Index(job.index_path)), fresh=False, hashed=hashed)


def _takes_any_lines(job: Job, *, looks: bool) -> bool:
    """Whether the user chose the format of a source whose first bytes deny it, now or when the index was built."""
    if looks:
        return job.before is not None and job.before.metadata.get("any_lines") is True
    try:
        for source in job.sources:
            formats.check_name(source.path, job.chosen)
    except FormatError:
        return True
    return False


def _write_known(job: Job, known: Reuse, workers: int, report: Callable[[int], object]) -> bool:
    """Write an index with what others know; return False where that fails, and a scan of everything decides."""
    try:
        write(job, known.plan, workers, report)
    except (FormatError, ColumnError, DecodeError):  # a damaged index; or a record, whose number a whole scan knows
        if job.is_scanned:  # of a function that computes a column
            raise
        return False
    return True


def _write_by(
    engine: Engine, job: Job, known: Reuse | None, workers: int, report: Callable[[int], object]
) -> Reuse | None:
    """Write an index whose sources an engine scans; return what was known of them, None where that was of no use."""
    from .parts import build_parts  # start-up time: most builds have no engine

    built = build_parts(job, known.plan if known is not None else [Scan(job.sources)], engine, report)
    try:
        write(job, built.plan, workers, lambda _: None)
    except (FormatError, ColumnError, DecodeError):  # as in `_write_known`
        if known is None or job.is_scanned:
            raise
        known = _write_by(engine, job, None, workers, report)
    engine.remove_parts(built.tasks, job.index_path)
    return known


def result_of(job: Job, known: Reuse | None = None, *, scanned: bool = True) -> BuildResult:
    """Return the outcome for an index that was written just now.

    Args:
      scanned: whether its sources were scanned, those that are not `known`.
    """
    built = Index(job.index_path)
    summary = summarise(built)
    reused = known.describe(built) if known is not None else ""
    lines = bad_lines(built) if summary.bad else ()
    plan = known.plan if known is not None else [Scan(job.sources)] * scanned
    read = {source.path for part in plan if isinstance(part, Scan) for source in part.sources}
    behind = behind_ends(built, [number for number, source in enumerate(job.sources) if source.path in read])
    lacking: dict[str, Any] = {"without_samples": without_samples(built), "behind_ends": behind}
    return BuildResult(summary, fresh=True, reused=reused, bad_lines=lines, **lacking)


def _parameters(chosen: Format, options: Mapping[str, Any], members: list[str], before: Index | None) -> dict[str, Any]:
    """Return the parameters of an index; say so where an option that is refused is that of the index."""
    try:
        return chosen.parameters(options, members)
    except OptionError as error:
        if before is None or not options or not options.items() <= before.parameters.items():
            raise
        raise FormatError(f"{before.path}: {error}; the index has this value: give the option, with another") from None


def _format(paths: list[str], name: str | Format | None) -> Format:
    if name is not None:
        return name if isinstance(name, Format) else formats.by_name(name)
    found = {formats.for_path(path).name: path for path in paths}
    if len(found) > 1:
        listed = ", ".join(f"{path} ({name})" for name, path in found.items())
        raise FormatError(
            f"sources: expected one format in one index, found {listed}; leave out {either('-o', 'out=...')}, so that "
            "each has an index of its own (mmapds.open with decode='bytes' takes them together; or choose with "
            f"{either('--format F', 'format=...')}, where a name misleads)"
        )
    return formats.by_name(next(iter(found)))


def _has_its_sources(index: Index) -> bool:
    try:
        current.check([index])
    except (SourceError, StaleIndexError):
        return False
    return True


def readable_index(index_path: str, roots: Roots | None = None) -> Index | None:
    """Return an index, None where there is none, or none that can be read."""
    try:
        return Index(index_path, roots)
    except SavedViewFoundError:
        place = either("-o OUT.mmx", "out=...")
        raise SavedViewFoundError(
            f"{index_path}: expected an index, or nothing yet, found a saved view; rename it, or give another place "
            f"with {place}"
        ) from None
    except (IndexMissingError, FormatError):
        return None


def check_nothing_is_lost(index: Index, columns: Collection[str], expressions: Mapping[str, str] | None = None) -> None:
    """Raise ColumnError if the index has other columns than these.

    Args:
      expressions: of the columns to measure; those that the index lacks are named in the message.
    """
    lost = [name for name in index.columns if name not in columns]
    if lost:
        new = {name: text for name, text in (expressions or {}).items() if name not in index.columns}
        ways = [rebuilt_with(new, lost)]
        if new:
            ways.append(f"add only {', '.join(map(repr, new))} with mmapds.add_column")
        shown = ", ".join(map(repr, lost))
        ways.append(f"drop {shown} with {option('force', True)}")
        raise ColumnError(
            f"{index.path}: column {shown} was computed in Python and a rebuild loses it; {', '.join(ways[:-1])}, or "
            f"{ways[-1]}"
        )


def _check_nothing_is_replaced(index: Index, request: ColumnRequest) -> None:
    """Raise ColumnError if the index has a column, computed in Python, that is to be measured now."""
    replaced = {name: text for name, text in request.columns.items() if name in index.computed_columns}
    if not replaced:
        return
    arguments = column_arguments({name: repr(text) for name, text in replaced.items()}, length=request.length_apart)
    given = either(" ".join(column_option(name, text) for name, text in replaced.items()), arguments)
    dropped = ", ".join(repr(name) for name in index.computed_columns if name not in request.computed)
    raise ColumnError(
        f"{index.path}: column {', '.join(map(repr, replaced))} was computed in Python and a rebuild replaces it; "
        f"leave {given} out to keep it, {rebuilt_with({}, replaced)}, or drop {dropped} with {option('force', True)}"
    )


def index_unplaced(target: str, unplaced: str, place: Callable[[], object]) -> None:
    """Index an array file that is complete, but lies beside its place, and put both into their places, one right after
    the other; the caller holds the lock of the index.

    Args:
      target: where the array file will be.
      unplaced: where it is.
      place: called once the index is on the disk; it moves the array file, and the index follows at once.
    """
    chosen, source = ArrayFiles(), inspect(unplaced)
    parameters = chosen.parameters({}, [unplaced])
    measuring = ColumnRequest().measuring(None, parameters["columns"])
    job = Job(target + INDEX_SUFFIX, [source], chosen, parameters, measuring, before=None, hashes=False)
    job.names, job.place = {unplaced: target}, place
    write(job, [Scan([source])], cores(), lambda _: None)
