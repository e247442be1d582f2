"""Whether an index is right: its checksums, and its sources scanned again."""

from .. import formats
from ..errors import StaleIndexError
from ..storage.index_file import Index
from ..storage.numbers import numbers, same_numbers
from ..storage.sources import Source, fingerprint
from ..storage.threads import cores
from .build import Asked


def verify(index: Index) -> None:
    """Check what an index says of its sources: its checksums, their sizes and times, and by a new scan every bound.

    What it says of a source's content is checked in the first and last 64 KiB, in where every record begins, and by
    the checksums of a format that has some.

    Raises:
      FormatError: a section is damaged, or a scan of the sources finds other records.
      StaleIndexError: a source changed.
    """
    index.check_current()
    index.verify_sections()
    with index.understood():
        _verify_records(index)


def _verify_records(index: Index) -> None:
    stored = index.section("offsets").cast("Q") if index.has_bounds else memoryview(b"").cast("Q")
    sources = []
    for number, (_, size, mtime_ns, mark, *_) in enumerate(index.sources):
        path = index.source_path(number)
        sources.append(Source(path, size, mtime_ns))
        if fingerprint(path, size) != mark:
            raise StaleIndexError(f"{index.path}: STALE: {path} has other content; {index.remedy()}")
    at = 0
    measuring = Asked().after(index)
    columns = [(name, _cells(index, name)) for name in measuring.columns]
    records = 0
    chosen = formats.by_name(index.format)
    for piece in chosen.scan(sources, index.parameters, measuring, workers=cores()):
        found_records = len(piece.starts)
        if piece.end is not None and piece.end.fixed is not None:
            found_records = piece.end.fixed
            if found_records != index.sources[piece.source].records:
                raise index.damaged(f"its records are not those of {sources[piece.source].path}")
        for (name, (dtype, cells)), (kind, found) in zip(columns, piece.columns, strict=True):
            if not same_numbers(dtype, cells[records : records + found_records], kind, found):
                raise index.damaged(f"its column {name!r} is not that of {sources[piece.source].path}")
        records += found_records
        end = [piece.end.end] if piece.end is not None and index.has_bounds else []
        stop = at + len(piece.starts) + len(end)
        if stored[at:stop] != piece.starts if not end else list(stored[at:stop]) != [*piece.starts, *end]:
            raise index.damaged(f"its records are not those of {sources[piece.source].path}")
        at = stop
    if at != len(stored):
        raise index.damaged(f"it holds {len(stored)} bounds, its sources have {at}")
    chosen.verify(sources, index.parameters)


def _cells(index: Index, name: str) -> tuple[str, memoryview]:
    dtype, data = index.column(name)
    return dtype, numbers(dtype, data)
