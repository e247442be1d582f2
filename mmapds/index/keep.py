"""Keeping an index whose sources have another time of change, or no hashes yet, but are the same."""

from collections.abc import Callable, Sequence

from ..errors import SourceError, StaleIndexError
from ..storage.current import compare
from ..storage.fingerprints import COVERED, each, full_hash
from ..storage.index_file import Index, IndexWriter
from ..storage.indexed_source import IndexedSource
from ..storage.sources import Source, changed, check_unchanged

Report = Callable[[int], object]
"""Called with the number of bytes of sources that were done since the last call."""


def keep(
    index: Index,
    sources: Sequence[Source],
    *,
    hashes: bool,
    settle: bool,
    workers: int,
    report: Report,
    way_elsewhere: str = "",
) -> bool:
    """Keep an index if its sources are the same, and write it again with the times and the hashes that it lacks.

    Args:
      sources: those of the index, by name and size, as they are now.
      hashes: whether the index shall have a hash of each source.
      settle: where a time is another, and a fingerprint does not cover all of the source, compare its hash or, without
        one, scan it. If false, the fingerprint decides, and the index is left as it is.
      way_elsewhere: what to do where it cannot be written again; see `IndexWriter`.
    Returns:
      False if it must be built again.
    """
    touched = _touched(index, sources)
    if not touched and not (settle and _lacks(index, hashes)):
        report(sum(source.size for source in sources))
        return True
    if not _are_same(index, touched):
        return False
    if not settle:
        return True
    sampled = [number for number in touched if sources[number].size > COVERED]
    hashed = [number for number in sampled if index.sources[number].xxh3_128]
    if not _are_same(index, hashed, full=True, workers=workers, report=report):
        return False
    if unhashed := [number for number in sampled if number not in set(hashed)]:
        from .verify import has_records  # start-up time: only a source of another time needs it

        if not has_records(index, unhashed, workers=workers, report=report):
            return False
    _write_again(index, sources, hashes, workers, report, way_elsewhere)
    return True


def is_as_it_was(index: Index, sources: Sequence[Source], *, hashes: bool) -> bool:
    """Whether `keep` needs to look at no source, and to write nothing."""
    return len(sources) == len(index.sources) and not _touched(index, sources) and not _lacks(index, hashes)


def _touched(index: Index, sources: Sequence[Source]) -> list[int]:
    pairs = zip(sources, index.sources, strict=True)
    return [number for number, (now, then) in enumerate(pairs) if now.mtime_ns != then.mtime_ns]


def lacking_hashes(index: Index) -> int:
    """Return how many sources an index has no hash of."""
    return sum(not source.xxh3_128 for source in index.sources)


def _lacks(index: Index, hashes: bool) -> bool:
    return hashes and lacking_hashes(index) > 0


def _are_same(
    index: Index,
    numbers: Sequence[int],
    *,
    full: bool = False,
    workers: int | None = None,
    report: Report = lambda _: None,
) -> bool:
    try:
        compare([(index, number) for number in numbers], full=full, workers=workers, report=report)
    except (StaleIndexError, SourceError):
        return False
    return True


def _write_again(
    index: Index, sources: Sequence[Source], hashes: bool, workers: int, report: Report, way_elsewhere: str
) -> None:
    """Write an index again for sources of other times, its sections as they are."""
    with IndexWriter(index.path, way_elsewhere) as writer:
        for name in index.sections:
            writer.copy_section(index, name)
        pairs = zip(index.sources, sources, strict=True)
        kept = [then._replace(mtime_ns=now.mtime_ns) for then, now in pairs]
        if hashes:
            kept = with_hashes(kept, sources, workers, report)
        for source in sources:
            check_unchanged(source)
        described = index.metadata["sources"]
        described = [{**before, **source.describe()} for before, source in zip(described, kept, strict=True)]
        metadata = {key: value for key, value in index.metadata.items() if key != "sections"}
        writer.replace(index, {**metadata, "sources": described})


def with_hashes(
    indexed: Sequence[IndexedSource], sources: Sequence[Source], workers: int, report: Report
) -> list[IndexedSource]:
    """Return indexed sources, each with the hash of the source if it has none; threads share out whole sources.

    Raises:
      SourceError: a source is not the one that was inspected.
    """
    hashed = list(indexed)
    lacking = [number for number, source in enumerate(indexed) if not source.xxh3_128]
    paths = [sources[number].path for number in lacking]
    digests = each(lambda path: full_hash(path, report), paths, workers=workers)
    for number, digest in zip(lacking, digests, strict=True):
        if (digest.size, digest.mtime_ns) != sources[number][1:3]:
            raise changed(sources[number], digest.size)
        hashed[number] = hashed[number]._replace(xxh3_128=digest.hex)
    return hashed
