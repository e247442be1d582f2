"""Build and merge indexes: `mmapds.build` and `mmapds.merge`."""

from __future__ import annotations  # help() shows them as they are written

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import formats
from .errors import ColumnError, Error, SourceError, listed, refuse_unknown, shortened, warn
from .formats.format import Format
from .index.build import Request, readable_index
from .index.each import build_and_warn
from .index.executors import Engine
from .index.merged import merged_job
from .index.write import Stored, written
from .remote.objects import places as places_of
from .storage.current import check
from .storage.index_file import Index
from .storage.lock import locked
from .storage.places import scheme_of
from .storage.sources import INDEX_SUFFIX, Source, StrPath, given_twice, index_path
from .storage.workers import cores

if TYPE_CHECKING:
    from concurrent.futures import Executor

Column = str | Callable[[Any], float]
"""How to compute a column: an expression, or a callable that takes a sample."""


def build(
    sources: StrPath | Iterable[StrPath],
    *,
    out: StrPath | None = None,
    format: str | None = None,  # noqa: A002 - the field's word, and what the command line calls it
    length: Column | None = None,
    columns: Mapping[str, Column] | None = None,
    version: str | int | None = None,
    missing: str | float | None = None,
    validate: bool | None = None,
    bad: str | None = None,
    max_record: int | None = None,
    hash: bool = False,  # noqa: A002 - what the command line calls it
    workers: int | None = None,
    force: bool = False,
    grown: bool = False,
    roots: StrPath | Iterable[StrPath] = (),
    executor: Executor | None = None,
    parts: StrPath | None = None,
    cache: StrPath | None = None,
    cache_bytes: int | str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    **parameters: Any,
) -> Path | str | list[Path | str]:
    """Index sources in place; what `out` has of unchanged sources is not scanned again.

        mmapds.build("train.jsonl", length="items(tokens)", columns={"characters": "chars(text)"})
        mmapds.build("part-*.jsonl", out="corpus.mmx")

    Args:
      sources: paths, directories, globs or brace patterns (`part-{000..099}.jsonl`), or URLs of objects, with `out`:
        see docs/remote.md. The path of an index means that index, which is built again if its sources changed.
      out: one combined index for all sources; by default each source has its own: `train.jsonl.mmx`.
      format: how records are framed; by default the suffix decides.
      length: the column for token budgets, as `columns={"length": ...}`: integers of 0 or more. Their order is stored.
      columns: name to an expression, measured during the scan; or to a picklable callable that takes a decoded sample
        and returns a number. Callables run in other processes: see docs/datasets.md.
      version: of these callables. Numbers computed by the same module, name and version are reused.
      missing: for a record that lacks a field of an expression: "error" (the default), "skip", or a number to store.
        With a number, an item of a summed list that lacks the field counts 0.
      validate: check that every record is valid JSON as a whole.
      bad: "skip" validates records, and skips lines that are not JSON or have a wrong type in a column, with a warning.
      max_record: largest size of a record in a compressed source, in bytes; 1 GiB by default.
      hash: store a hash of each source, now and in later builds, for `open(..., check="full")` and `mmapds verify`.
      workers: threads that scan, within one file too; all cores by default.
      force: scan and compute everything again. Drops computed columns that are not given, with a warning. Columns of
        expressions stay until the index is deleted.
      grown: trust that sources only grew at their end: if the first bytes have the old fingerprint, scan the rest.
      roots: as in `mmapds.open`, for the sources of an index among `sources`.
      executor: runs tasks that scan for `out`, each in one thread: an object with `submit(function, *arguments)` that
        returns a future of `concurrent.futures`; see docs/clusters.md.
      parts: the directory for the files that tasks write; by default `out` with `.parts` appended.
      cache, cache_bytes: for URLs: the directory that keeps the objects, as `open` finds them, and its limit; by
        default none is kept.
      storage_options: as in `mmapds.open`.
      **parameters: options of the format, such as `record_bytes`; see docs/formats.md.
    Returns:
      The path of the index; a list of paths for several sources without `out`; a URL as a text.
    Raises:
      SourceError: a source is missing, unreadable, not a file, outside the roots, or changes during the build.
      ColumnError: a column cannot be measured; the message names the place of the record.
      DecodeError: a record to measure or validate is not JSON, or no record is.
      Error: an index cannot be written, or another process holds its lock for too long.
      TypeError: an argument is unknown.
    """
    refuse_unknown("build", parameters, formats.OPTIONS)
    expressions, computed = _by_kind(length, columns)
    request = Request(format, parameters, expressions, missing, validate, bad, max_record, tuple(computed), hash=hash)
    if computed:
        from .computed_columns import complete, identities  # start-up time: it loads NumPy and datasets

        request = request._replace(complete=partial(complete, computed, identities(computed, version), workers))
    engine = Engine.of(executor, parts, workers or 1)
    places = places_of(roots, cache, cache_bytes, storage_options)
    paths = places.expand(sources, formats.SUFFIXES, warn)
    if out is not None and (line := given_twice(paths)):
        warn(line)
    if engine is not None and out is None:
        raise Error("executor: expected the place of one index with it, found none; give out=...")
    request = request._replace(force=force, grown=grown, places=places, engine=engine, workers=workers)
    built = [each.summary.path for each in build_and_warn(paths, request, out)]
    found = [each if scheme_of(each) else Path(each) for each in built]
    return found[0] if len(found) == 1 else found


def merge(
    indexes: StrPath | Iterable[StrPath],
    *,
    out: StrPath,
    workers: int | None = None,
    roots: StrPath | Iterable[StrPath] = (),
) -> Path:
    """Merge indexes into one, without reading records.

    The result is byte for byte the index that `build` writes for all sources.

        mmapds.build("part-*.jsonl")
        mmapds.merge(["part-0.jsonl.mmx", "part-1.jsonl.mmx"], out="corpus.mmx")

    Args:
      indexes: paths, directories, globs or brace patterns; the path of a source means the index beside it. They must
        have one format, the same columns and options, and no source in common.
      out: the path of the new index; it may be one of `indexes`.
      workers: threads that hash sources, if only some indexes have hashes; all cores by default.
      roots: as in `mmapds.open`, for the sources of these indexes.
    Returns:
      The path of the new index.
    Raises:
      IndexMissingError, StaleIndexError: an index must be built first.
      FormatError: an index is damaged or from another version, or indexes differ in format or parameters.
      ColumnError: indexes differ in columns, or in how columns were measured.
      SourceError: a source is missing, outside the roots, or in two indexes.
      Error: the new index cannot be written.
    """
    places, target = places_of(roots), os.fspath(out)
    found = [Index(index_path(path), places) for path in places.expand(indexes, (INDEX_SUFFIX,))]
    parts = [Stored(each, range(len(each.sources))) for each in found]
    job = merged_job(parts, target)
    job = job._replace(sources=list(_sources(found, job.chosen)), check=places.check_unchanged)
    check(found)
    with locked(target):
        if before := readable_index(target):
            lost = set(before.computed_columns).difference(found[0].computed_columns)
            lost |= set(before.columns).difference(found[0].columns)
            if lost:
                raise ColumnError(
                    f"{target}: columns: expected those of the indexes to merge, found {listed(sorted(lost))}, too"
                )
        with written(job, parts, workers or cores()).writer as writer:
            writer.place()
    return Path(out)


def _sources(parts: Iterable[Index], chosen: Format) -> Iterator[Source]:
    """Yield the current sources of all indexes; raise SourceError for a missing or duplicate source."""
    holders: dict[str, Index] = {}
    for part in parts:
        for number, path in enumerate(formats.readable_sources(part, chosen)):
            real = os.path.realpath(part.absolute(path))
            if real in holders:
                raise SourceError(f"{part.path}: expected each source once, found {path} in {holders[real].path}, too")
            holders[real] = part
            place = part.place(number)
            yield place.inspect([path])[0] if place.is_disk else part.described(number)


def _by_kind(
    length: Column | None, columns: Mapping[str, Column] | None
) -> tuple[dict[str, str], dict[str, Callable[[Any], float]]]:
    """Return columns of expressions, and columns of callables; raise ColumnError for any other value."""
    named = {} if columns is None else columns
    if not isinstance(named, Mapping) or not all(isinstance(name, str) for name in named):
        raise ColumnError(f"columns = {shortened(columns)}, expected a dict of names")
    expressions: dict[str, str] = {}
    computed: dict[str, Callable[[Any], float]] = {}
    for name, column in {**({"length": length} if length is not None else {}), **named}.items():
        if isinstance(column, str):
            expressions[name] = column
        elif callable(column):
            computed[name] = column
        else:
            where = "length" if name == "length" and "length" not in named else f"columns[{name!r}]"
            raise ColumnError(f"{where} = {shortened(column)}, expected an expression or a function of a sample")
    return expressions, computed
