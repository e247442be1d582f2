"""A source that grew: its first records are those that an index has, and the rest is scanned.

Its first bytes still are what they were if they have the fingerprint, or the hash, that the whole source had. The last
record is scanned again, as its line may have gone on.
"""

from typing import Any

from ..errors import ColumnError, DecodeError, FormatError
from ..formats.format import Piece
from ..storage.fingerprints import full_hash
from ..storage.index_file import Index
from ..storage.indexed_source import BadLines, IndexedSource
from ..storage.numbers import U32, numbers, same_numbers
from ..storage.sources import Source, open_regular
from .stored import Stored, sizes_before_last
from .write import Job, Tally


def first_records(job: Job, source: Source, index: Index, number: int) -> Stored | None:
    """Return all records but the last that an index has of a source that grew; None if it must be scanned whole.

    Its first bytes have the fingerprint that the source had. Where there is a hash of these, and the new index is to
    have one, too, that is compared. The last record is compared with a scan that ends where the source ended.

    Args:
      number: of the source in the index.
    """
    old = index.sources[number]
    if not job.chosen.begins_anywhere or not index.has_bounds or old.records < 2:
        return None
    if source.codec or old.compression is not None:
        return None
    if old.xxh3_128 and job.hashes and full_hash(source.path, size=old.size).hex != old.xxh3_128:
        return None
    records = Stored.of(index, range(number, number + 1)).records
    begin = index.bounds(number, old.records - 1, old.records)[0]
    if not 0 < begin < old.size:
        return None
    try:
        totals = _scan_last(job, source._replace(begin=begin, end=old.size), index, records[-1])
    except (FormatError, ColumnError, DecodeError):
        return None
    if totals is None or not (_ends_for_good(source.path, old.size, job) or _is_narrow(index, job)):
        return None
    first = _without(index, number, totals)
    return Stored(index, range(number, number + 1), records[:-1], first, size=begin)


def _scan_last(job: Job, source: Source, index: Index, record: int) -> dict[str, Any] | None:
    """Scan the end of a source, in which one record begins; return its totals, None if it is not what an index has.

    Args:
      source: begins at that record.
      record: its number in the index.
    """
    tally, totals = Tally(), None
    for piece in job.chosen.scan([source], job.parameters, job.measuring, workers=1):
        tally.add(piece)
        if piece.records and not _is_record(piece, job, source.begin, index, record):
            return None
        if piece.end is not None:
            totals = tally.totals(piece.end, job.parameters)
    return totals if totals is not None and totals["records"] == 1 else None


def _is_record(piece: Piece, job: Job, begin: int, index: Index, record: int) -> bool:
    """Whether a piece has one record, which begins there, and has the numbers of a record of an index."""
    if piece.records != 1 or piece.starts[0] != begin:
        return False
    for name, (cell, cells) in zip(job.measuring.columns, piece.columns, strict=True):
        dtype, data = index.column(name)
        if not same_numbers(dtype, numbers(dtype, data)[record : record + 1], cell, cells):
            return False
    return True


def _ends_for_good(path: str, size: int, job: Job) -> bool:
    """Whether the last record of the first bytes of a source cannot go on behind them."""
    if not job.chosen.is_text:
        return True
    with open_regular(path) as file:
        file.seek(size - 1)
        return file.read(1) == b"\n"


def _is_narrow(index: Index, job: Job) -> bool:
    """Whether the columns would have the same type without the last record."""
    return all(index.columns[name].dtype == U32.dtype for name in job.measuring.columns)


def _without(index: Index, number: int, last: dict[str, Any]) -> IndexedSource:
    """Return the totals of a source without its last record, and all that follows it.

    Args:
      last: totals of these.
    """
    old = index.sources[number]
    begin = index.bounds(number, old.records - 1, old.records)[0]
    smallest, largest = sizes_before_last(index, number, old.records - 1)
    bad = BadLines(old.bad.lines - last["bad"].lines, tuple(place for place in old.bad.first if place[1] < begin))
    return old._replace(
        records=old.records - 1,
        lines=old.lines - last["lines"],
        skipped=old.skipped - last["skipped"],
        smallest=smallest,
        largest=largest,
        bad=bad,
    )
