"""Whether the sources of indexes are what they were when they were indexed."""

import os
import stat
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from ..errors import Error, SourceError, StaleIndexError
from .fingerprints import COVERED, WAITING, Digest, each, fingerprint, full_hash
from .index_file import Index
from .sources import kind_of_file, reason
from .threads import cores

CHECKS = ("stat", "sample", "full", "none")
"""How sources can be compared: see `check`."""


def check(indexes: Iterable[Index], how: str = "stat") -> list[tuple[Index, int]]:
    """Compare every source with what it was when it was indexed; `check_source` then knows which are the same.

    Args:
      how: "stat" compares sizes and times and, where a time is another, the fingerprint; "sample" compares all
        fingerprints; "full" the hashes of whole sources; "none" nothing.
    Returns:
      The sources of another time of which no more than a sample was compared: an index, and the number there.
    Raises:
      StaleIndexError: a source changed.
      SourceError: a source is missing or unreadable.
      Error: an index has no hashes of whole sources.
    """
    touched: list[tuple[Index, int]] = []
    others: list[tuple[Index, int]] = []
    for index in indexes:
        index.check = how
        for number, source in enumerate(index.sources if how != "none" else ()):
            found = stat_source(index, number)
            index.check_size(number, found.st_size)
            (others if found.st_mtime_ns == source.mtime_ns else touched).append((index, number))
    compare(touched if how == "stat" else touched + others, full=how == "full")
    return [(index, number) for index, number in touched if how == "stat" and index.sources[number].size > COVERED]


def compare(
    sources: Sequence[tuple[Index, int]],
    *,
    full: bool = False,
    workers: int | None = None,
    report: Callable[[int], object] = lambda _: None,
) -> None:
    """Compare the content of sources, each an index and the number there, with what it was.

    Args:
      full: compare the hashes of whole sources, not fingerprints.
      workers: threads.
      report: called with the number of bytes that were hashed since the last call.
    Raises:
      StaleIndexError: it is another.
      SourceError: a source is missing or unreadable.
      Error: an index has no hash of one of these sources.
    """
    for index, number in sources if full else ():
        if not index.sources[number].xxh3_128:
            raise Error(
                f"{index.path}: check = 'full': expected a hash of each source, found none of "
                f"{index.source_path(number)}; run: {index.rebuild_command('--hash')}"
            )
    paths = [index.absolute(index.readable_path(number)) for index, number in sources]
    work = partial(full_hash, report=report) if full else fingerprint
    workers = workers or (cores() if full else WAITING)
    for (index, number), found in zip(sources, each(work, paths, workers=workers), strict=True):
        if error := other_content(index, number, found, full=full):
            raise error
        index.recognised[number] = found.mtime_ns


def check_source(index: Index, number: int, size: int, mtime_ns: int) -> None:
    """Raise StaleIndexError unless a source that was opened, with this size and time, is the one that was indexed.

    Where the time is another, and `check` has not met it, the fingerprint decides.

    Raises:
      SourceError: it is missing or unreadable.
    """
    if index.check == "none":
        return
    index.check_size(number, size)
    if mtime_ns in (index.sources[number].mtime_ns, index.recognised.get(number)):
        return
    compare([(index, number)])
    if mtime_ns != index.recognised[number]:
        path = index.source_path(number)
        raise StaleIndexError(
            f"{index.path}: STALE: {path} was replaced while it was opened; {index.remedy(force=False)}"
        )


def other_content(index: Index, number: int, found: Digest, *, full: bool = False) -> StaleIndexError | None:
    """Return the error to raise for a source whose content is not what it was; None if it is.

    Raises:
      StaleIndexError: its size is not what it was.
    """
    source = index.sources[number]
    index.check_size(number, found.size)
    what, expected = ("hash", source.xxh3_128) if full else ("fingerprint", source.fingerprint)
    if found.hex == expected:
        return None
    same_time = found.mtime_ns == source.mtime_ns
    return StaleIndexError(
        f"{index.path}: STALE: {index.source_path(number)} has other content (same size, "
        f"{'same' if same_time else 'another'} time, {what} {expected} when indexed and {found.hex} now); "
        f"{index.remedy(force=same_time)}"
    )


def stat_source(index: Index, number: int) -> os.stat_result:
    """Return the status of a source.

    Raises:
      SourceError: it is missing, unreadable or not a regular file (reading a FIFO would wait for its writer), or lies
        where the user has not allowed it.
    """
    path = index.source_path(number)
    try:
        # One call of the system, as most sources are not links.
        found = os.lstat(index.absolute(path)) if index.is_inside(number) else None
        if found is None or stat.S_ISLNK(found.st_mode):
            found = os.stat(index.absolute(index.readable_path(number)))
    except OSError as error:
        raise index.unreadable(number, reason(error)) from None
    if not stat.S_ISREG(found.st_mode):
        kind = kind_of_file(found.st_mode)
        raise SourceError(f"{path}: expected a regular file, found {kind} (a source of {index.path})")
    return found
