"""One index from several, without a look at the records of their sources."""

import os
from collections.abc import Sequence
from typing import Any

from .. import formats
from ..arrays.schema import TO_ONE_SCHEMA
from ..errors import ColumnError, FormatError, SourceError, either
from ..formats.format import Format, is_same_parameter
from ..formats.measuring import Measuring
from ..storage import current
from ..storage.hints import rebuilt_with
from ..storage.index_file import SECTION_TYPES, Index, alike
from ..storage.lock import locked
from ..storage.roots import Roots
from ..storage.sections import BOUNDS, COLUMN
from ..storage.sources import Source, inspect
from .build import BuildResult, readable_index, result_of
from .stored import Stored
from .write import Job, Report, write

_ALIKE = "build both with the same options"


def merge(
    paths: Sequence[str], out: str, *, roots: Roots, workers: int = 1, report: Report = lambda _: None
) -> BuildResult:
    """Write an index of all sources of some indexes, in their order: byte for byte what building it writes.

    Their sections are copied piece by piece, and checked against their checksums; lengths are sorted again.

    Args:
      paths: of the indexes.
      out: the path of the new one, which may be one of them.
      workers: threads that hash sources, where some indexes have hashes and others do not.
      report: called with the number of bytes of sources that were done since the last call.
    Raises:
      FormatError: an index is damaged or from another version, or the indexes differ in format or parameters.
      ColumnError: they differ in columns.
      SourceError: a source is missing, or in two indexes.
      StaleIndexError: a source changed after it was indexed.
    """
    parts = [Index(path, roots) for path in paths]
    first = parts[0]
    chosen = formats.of_index(first)
    for part in parts:
        _check_sections(part)
        _check_alike(first, part, chosen)
    sources = _sources(parts, chosen)
    current.check(parts)
    measured = list(first.measuring["expressions"])
    job = Job(
        out,
        sources,
        chosen,
        _parameters(parts, chosen),
        Measuring.of(first.measuring),
        before=None,
        hashes=any(source.xxh3_128 for part in parts for source in part.sources),
    )
    job.functions = {
        name: mark for name, mark in first.functions.items() if all(part.functions.get(name) == mark for part in parts)
    }
    job.any_lines = any(part.metadata.get("any_lines") is True for part in parts)
    plan = [Stored.of(part, range(len(part.sources))) for part in parts]
    with locked(out):
        before = readable_index(out, roots)
        if before is not None:
            _check_nothing_is_lost(before, first)
        write(job, plan, workers, report, computed=[name for name in first.columns if name not in measured])
    return result_of(job, scanned=False)


def _check_sections(index: Index) -> None:
    """Raise FormatError for an index with sections that a merge would lose."""
    for name in index.sections:
        if name not in (BOUNDS, *SECTION_TYPES) and not name.startswith(COLUMN):
            raise FormatError(
                f"{index.path}: VERSION: expected sections that this mmapds knows, found {name!r}; upgrade mmapds"
            )


def _check_alike(first: Index, other: Index, chosen: Format) -> None:
    """Raise unless two indexes were made in the same way, so that one index can have the records of both."""
    if other.format != first.format:
        raise FormatError(
            f"{other.path}: expected format {first.format!r}, as in {first.path}, found {other.format!r}; merge "
            "indexes of one format"
        )
    names = {*first.parameters, *other.parameters}.difference(chosen.per_source)
    for name in sorted(names, key=lambda name: (name != "schema", name)):  # of which columns follow
        expected, found = first.parameters.get(name), other.parameters.get(name)
        if not is_same_parameter(expected, found):
            way_out = TO_ONE_SCHEMA if name == "schema" else _ALIKE
            raise FormatError(
                f"{other.path}: {name}: expected {expected!r}, as in {first.path}, found {found!r}; {way_out}"
            )
    if other.has_bounds != first.has_bounds:
        raise other.damaged("expected bounds of records in both indexes or in neither")
    if first.measuring["expressions"] == other.measuring["expressions"]:
        _check_computed(first, other)
        _check_computed(other, first)
        _check_functions(first, other)
    for what, expected, found in (
        ("columns", list(first.columns), list(other.columns)),
        *((name, first.measuring.get(name), other.measuring.get(name)) for name in _MEASURED),
    ):
        if not alike(found, expected):
            raise ColumnError(
                f"{other.path}: {what}: expected {expected!r}, as in {first.path}, found {found!r}; {_ALIKE}"
            )


def _check_computed(has: Index, lacks: Index) -> None:
    """Raise ColumnError if an index lacks columns of another one; no option of indexing makes those of Python."""
    lost = [name for name in has.columns if name not in lacks.columns]
    if lost:
        raise ColumnError(
            f"{lacks.path}: columns: expected {list(has.columns)!r}, as in {has.path}, found {list(lacks.columns)!r}; "
            f"add {', '.join(map(repr, lost))} with mmapds.add_column"
        )


def _check_functions(first: Index, other: Index) -> None:
    """Raise ColumnError if two functions computed a column of one name."""
    for name, mark in first.functions.items():
        found = other.functions.get(name, mark)
        if found != mark:
            raise ColumnError(
                f"{other.path}: column {name!r}: expected what function {mark} computes, as in {first.path}, found "
                f"that of {found}; {rebuilt_with({}, [name])} for both"
            )


_MEASURED = ("expressions", "missing", "validate", "bad")
"""What indexes say of the measuring of their columns."""


def _check_nothing_is_lost(before: Index, first: Index) -> None:
    """Raise ColumnError if the index in the place of the new one has columns that the indexes to merge lack.

    One that was computed in Python is lost, too, where theirs of its name comes from an option of indexing.
    """
    alike = set(first.columns).difference(set(before.computed_columns).difference(first.computed_columns))
    lost = [name for name in before.columns if name not in alike]
    if lost:
        raise ColumnError(
            f"{before.path}: columns: expected those of the indexes to merge, found {', '.join(map(repr, lost))}, too; "
            f"give another place with {either('-o OUT.mmx', 'out=...')}, or delete it"
        )


def _parameters(parts: Sequence[Index], chosen: Format) -> dict[str, Any]:
    """Return the parameters of all sources; those of each source one after another."""
    merged = dict(parts[0].parameters)
    for name in chosen.per_source:
        merged[name] = [value for part in parts for value in _listed(part, name)]
    return merged


def _listed(part: Index, name: str) -> list[Any]:
    found = part.parameters.get(name)
    if not isinstance(found, list) or len(found) != len(part.sources):
        raise part.damaged(
            f"{name} = {found!r} among the parameters, expected one for each of {len(part.sources)} sources"
        )
    return found


def _sources(parts: Sequence[Index], chosen: Format) -> list[Source]:
    """Return the sources of all indexes as they are now, none of them twice."""
    holders: dict[str, Index] = {}
    sources = []
    for part in parts:
        for path in formats.readable_sources(part, chosen):
            real = os.path.realpath(part.absolute(path))
            if real in holders:
                where = "twice" if holders[real] is part else f"which {holders[real].path} has, too"
                raise SourceError(f"{part.path}: expected sources of its own, found {path}, {where}; leave one out")
            holders[real] = part
            sources.append(inspect(path))
    return sources
