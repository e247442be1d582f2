"""One index from several, without a look at the records of their sources."""

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from .. import formats
from ..arrays.schema import TO_ONE_SCHEMA
from ..errors import ColumnError, FormatError, SourceError, either
from ..formats.format import Format
from ..formats.measuring import Measuring
from ..storage import current
from ..storage.index_file import SECTION_TYPES, Index
from ..storage.lock import locked
from ..storage.sections import BOUNDS, COLUMN
from ..storage.sources import Roots, Source, inspect
from .build import readable_index
from .inspect import Summary, summarise
from .plan import Job, Stored
from .write import Report, written

_HINTS = {"format": "merge indexes of one format", "schema": TO_ONE_SCHEMA}
_MEASURED = ("expressions", "missing", "validate", "bad")
"""What indexes say of the measuring of their columns."""


def merge(
    paths: Sequence[str], out: str, *, roots: Roots, workers: int = 1, report: Report = lambda _: None
) -> Summary:
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
    sources = list(_sources(parts, chosen))
    current.check(parts)
    functions = [part.functions.items() for part in parts]
    job = Job(
        out,
        sources,
        chosen,
        {**first.parameters, **{name: list(_listed(parts, name)) for name in chosen.per_source}},
        Measuring.of(first.measuring),
        hashes=any(source.xxh3_128 for part in parts for source in part.sources),
        any_lines=any(part.metadata.get("any_lines") is True for part in parts),
        computed=[name for name in first.columns if name not in first.expressions],
        functions=dict(each for each in functions[0] if all(each in others for others in functions)),
    )
    with locked(out):
        before = readable_index(out, roots)
        if before is not None:
            _check_nothing_is_lost(before, first)
        written(job, [Stored(part, range(len(part.sources))) for part in parts], workers, report).put()
    return summarise(Index(out))


def _check_sections(index: Index) -> None:
    """Raise FormatError for an index with sections that a merge would lose."""
    for name in index.sections:
        if name not in (BOUNDS, *SECTION_TYPES) and not name.startswith(COLUMN):
            raise FormatError(
                f"{index.path}: VERSION: expected sections that this mmapds knows, found {name!r}; upgrade mmapds"
            )


def _check_alike(first: Index, other: Index, chosen: Format) -> None:
    """Raise unless two indexes were made in the same way, so that one index can have the records of both."""
    parameters = sorted({*first.parameters, *other.parameters}.difference(chosen.per_source, ["schema"]))
    functions = sorted(first.functions.keys() & other.functions)
    expected, found = (
        [
            (FormatError, "format", index.format),
            (FormatError, "schema", index.parameters.get("schema")),  # first, as columns follow from it
            *((FormatError, name, index.parameters.get(name)) for name in parameters),
            (ColumnError, "columns", list(index.columns)),
            *((ColumnError, name, index.measuring.get(name)) for name in _MEASURED),
            (ColumnError, "functions", {name: index.functions[name] for name in functions}),
        ]
        for index in (first, other)
    )
    for (kind, name, one), (_, _, another) in zip(expected, found, strict=True):
        if json.dumps(one) != json.dumps(another):  # in which NaN is NaN, and fields have an order
            hint = _HINTS.get(name, "build both with the same options and columns")
            raise kind(f"{other.path}: {name}: expected {one!r}, as in {first.path}, found {another!r}; {hint}")
    if other.has_bounds != first.has_bounds:
        raise other.damaged("expected bounds of records in both indexes or in neither")


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


def _listed(parts: Iterable[Index], name: str) -> Iterator[Any]:
    """Yield a parameter of each source."""
    for part in parts:
        found = part.parameters.get(name)
        if not isinstance(found, list) or len(found) != len(part.sources):
            raise part.damaged(f"{name} = {found!r}, expected one for each of {len(part.sources)} sources")
        yield from found


def _sources(parts: Iterable[Index], chosen: Format) -> Iterator[Source]:
    """Yield the sources of all indexes as they are now.

    Raises:
      SourceError: one is missing, or is there twice.
    """
    holders: dict[str, Index] = {}
    for part in parts:
        for path in formats.readable_sources(part, chosen):
            real = os.path.realpath(part.absolute(path))
            if real in holders:
                where = "twice" if holders[real] is part else f"which {holders[real].path} has, too"
                raise SourceError(f"{part.path}: expected sources of its own, found {path}, {where}; leave one out")
            holders[real] = part
            yield inspect(path)
