"""Check that a source is unchanged since it was indexed: size, time, fingerprint, hash. See docs/checks.md."""

import os
import stat
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from xxhash import xxh3_128

from ..errors import Error, StaleIndexError
from .digests import COVERED, fingerprint_of
from .index_file import Index
from .sources import Source, check_unchanged, not_regular, open_regular, reason, room_of
from .workers import cores, in_threads

CHECKS = ("stat", "sample", "full", "none")  # how sources can be compared: see `check`
WAITING = 16  # threads that sample sources; many, as they mostly wait for the disk or the network
_PIECE = 1 << 20


class Digest(NamedTuple):
    """A digest of a source's content, with the size and time of the source when it was read."""

    size: int
    mtime_ns: int
    hex: str


def fingerprint(path: str, size: int | None = None) -> Digest:
    """Return the fingerprint of a file, or of its first `size` bytes."""
    with open_regular(path) as file:
        found = os.fstat(file.fileno())
        size = found.st_size if size is None else size
        return Digest(size, found.st_mtime_ns, fingerprint_of(file.fileno(), size))


def full_hash(path: str, report: Callable[[int], object] = lambda _: None) -> Digest:
    """Return xxh3-128 of all bytes of a file; call `report` with the bytes read since the last call."""
    digest, piece = xxh3_128(), room_of(_PIECE)
    with open_regular(path) as file:
        found = os.fstat(file.fileno())
        while count := os.readv(file.fileno(), [piece]):
            digest.update(piece[:count])
            report(count)
    check_unchanged(Source(path, found.st_size, found.st_mtime_ns))
    return Digest(found.st_size, found.st_mtime_ns, digest.hexdigest())


def check(indexes: Iterable[Index], how: str = "stat") -> list[tuple[Index, int]]:
    """Compare every source with its state when it was indexed, and store the result for `check_source`.

    See docs/checks.md for `how`. Return the sources whose time differs and of which only samples were compared, each
    as an index and the number there.
    """
    touched: list[tuple[Index, int]] = []
    others: list[tuple[Index, int]] = []
    for index in indexes:
        index.check = how
        for number, source in enumerate(index.sources if how != "none" else ()):
            found = stat_source(index, number)
            if found is None:
                continue
            index.check_size(number, found.st_size)
            if how == "full" and not source.xxh3_128:
                raise Error(
                    f"{index.path}: check = 'full': expected a hash of each source, found none of "
                    f"{index.source_path(number)}; {index.way_to_rebuild('--hash')}"
                )
            (others if found.st_mtime_ns == source.mtime_ns else touched).append((index, number))
    _compare(touched if how == "stat" else touched + others, full=how == "full")
    return [(index, number) for index, number in touched if how == "stat" and index.sources[number].size > COVERED]


def _compare(sources: Sequence[tuple[Index, int]], *, full: bool = False) -> None:
    """Compare fingerprints or, if `full`, hashes; raise as `check` does."""
    paths = [index.local_path(number) for index, number in sources]
    digests = in_threads(full_hash if full else fingerprint, paths, workers=cores() if full else WAITING)
    for (index, number), found in zip(sources, digests, strict=True):
        check_content(index, number, found, full=full)
        index.recognised[number] = found.mtime_ns


def check_source(index: Index, number: int, size: int, mtime_ns: int) -> None:
    """Raise StaleIndexError unless an open source of this size and time is the one that was indexed."""
    if index.check == "none":
        return
    index.check_size(number, size)
    if mtime_ns not in (index.sources[number].mtime_ns, index.recognised.get(number)):  # the fingerprint decides
        _compare([(index, number)])
        if mtime_ns != index.recognised[number]:
            raise StaleIndexError(
                f"{index.path}: STALE: {index.source_path(number)} was replaced while it was opened; "
                f"{index.way_to_rebuild()}"
            )


def check_now(index: Index, number: int) -> os.stat_result | None:
    """Return the status of a source, or None if reading it compares it.

    Raises:
      StaleIndexError, SourceError: it is not the one that was indexed.
    """
    found = stat_source(index, number)
    if found is not None:
        check_source(index, number, found.st_size, found.st_mtime_ns)
    return found


def check_content(index: Index, number: int, found: Digest, *, full: bool = False) -> None:
    """Raise StaleIndexError unless size and fingerprint of a source are unchanged; with `full`, size and hash."""
    source = index.sources[number]
    index.check_size(number, found.size)
    what, expected = ("hash", source.xxh3_128) if full else ("fingerprint", source.fingerprint)
    if found.hex != expected:
        same_time = found.mtime_ns == source.mtime_ns
        raise StaleIndexError(
            f"{index.path}: STALE: {index.source_path(number)} has other content (same size, "
            f"{'same' if same_time else 'another'} time, {what} {expected} when indexed and {found.hex} now); "
            f"{index.way_to_rebuild(*['--force'] * same_time)}"
        )


def stat_source(index: Index, number: int) -> os.stat_result | None:
    """Return the status of a source, or None if reading it compares it.

    Raises:
      SourceError: it is missing, not a regular file, or not allowed.
    """
    try:
        found = index.status(number)
    except OSError as error:
        raise index.unreadable(number, reason(error)) from None
    if found is not None and not stat.S_ISREG(found.st_mode):
        raise not_regular(index.source_path(number), found.st_mode)
    return found
