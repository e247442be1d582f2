"""Build an index for each source, or one for all, and warn of what is wrong with the sources."""

import os
from collections.abc import Iterator, Sequence

from ..errors import counted, warn, way_to_seekable
from ..storage.places import Places
from ..storage.sources import StrPath, index_path
from .build import BuildResult, Request, build_files, check_workers
from .fetched import build_fetched

_NAMED = 3  # sources in a warning


def complaints(results: Sequence[BuildResult]) -> list[str]:
    """Return warnings about bad lines, remarks and empty sources of indexes."""
    lines = [
        f"{each.first_bad}: expected JSON with fields of the right type, found a bad line "
        f"({counted(each.bad, 'such line')} left out of {each.path})"
        for each in (result.summary for result in results if result.fresh)
        if each.bad
    ]
    remarks = [remark for result in results for remark in result.remarks]
    lines += [f"{remark} (and {len(remarks) - 1:,} more)" if remarks[1:] else remark for remark in remarks[:1]]
    if empty := [path for result in results for path in result.summary.empty]:
        lines.append(f"{_some(empty)}: expected one record or more, found 0 records")
    if in_order := [path for result in results if result.fresh for path in result.summary.in_order]:
        way = f"to shuffle, {way_to_seekable(*in_order[:_NAMED])}"
        why = "a block of over 8 MiB is read in file order only, unless block_cache holds it"
        lines.append(f"{_some(in_order)}: {why}; {way}")
    return lines


def _some(paths: Sequence[str]) -> str:
    """Return the first paths, for a message."""
    return ", ".join(paths[:_NAMED]) + (f" and {len(paths) - _NAMED:,} more" if len(paths) > _NAMED else "")


def build_and_warn(paths: list[str], request: Request, out: StrPath | None = None) -> list[BuildResult]:
    """Build indexes as `build_each` does; warn of their bad lines and empty sources, even if a later index fails."""
    built: list[BuildResult] = []
    try:
        built.extend(build_each(paths, request, out))
    finally:
        for line in complaints(built):
            warn(line)
    return built


def build_each(paths: list[str], request: Request, out: StrPath | None = None) -> Iterator[BuildResult]:
    """Build one index for each expanded path, or a single one at `out`; yield each result when it is done.

    An index that is up to date is kept, and takes no lock. One process at a time builds an index.
    """
    check_workers(request.workers)
    places = request.places or Places()
    if not all(places.of(os.fspath(name)).is_disk for name in [*paths, *([] if out is None else [out])]):
        yield build_fetched(paths, request, places, out)
    elif out is not None:
        yield build_files(request, os.fspath(out), paths)
    else:
        for path in paths:
            yield build_files(request, index_path(path), path)
