"""Whether an index is right: its checksums, and its sources scanned again."""

from .. import formats
from ..errors import FormatError, StaleIndexError
from ..formats.format import OptionError, Piece
from ..storage.index_file import Index
from ..storage.numbers import BY_CELL, first_difference, numbers, same_numbers
from ..storage.sources import Source, fingerprint
from ..storage.threads import cores
from .build import ColumnRequest, Tally
from .keys import check_keys
from .length_order import check_length_order


def verify(index: Index) -> None:
    """Check an index against its sources: all that can be derived from them is derived again and compared.

    That is every bound and every column with an expression, the parameters and the totals of sources, the order of
    lengths, and keys. The content of a source is checked in its first and last 64 KiB, by where every record begins,
    and by the checksums of formats that have them. Columns that were computed in Python have a checksum alone.

    Raises:
      FormatError: a section is damaged, or a scan of the sources finds other records.
      StaleIndexError: a source changed.
    """
    index.check_current()
    index.verify_sections()
    with index.reporting_malformed_metadata():
        sources = [
            Source(index.source_path(number), source.size, source.mtime_ns)
            for number, source in enumerate(index.sources)
        ]
        _verify_fingerprints(index, sources)
        _verify_parameters(index)
        _verify_records(index, sources)
        check_length_order(index)
        formats.of_index(index).verify(sources, index.parameters)


def _verify_fingerprints(index: Index, sources: list[Source]) -> None:
    for source, indexed in zip(sources, index.sources, strict=True):
        found = fingerprint(source.path, source.size)
        if found != indexed.fingerprint:
            raise StaleIndexError(
                f"{index.path}: STALE: {source.path} has other content (same size and time, fingerprint "
                f"{indexed.fingerprint} when indexed and {found} now); {index.remedy()}"
            )


def _verify_parameters(index: Index) -> None:
    chosen = formats.of_index(index)
    given = {name: index.parameters[name] for name in chosen.options if name in index.parameters}
    paths = [index.source_path(number) for number in range(len(index.sources))]
    try:
        expected = chosen.parameters(given, paths)
    except OptionError as error:
        raise FormatError(
            f"{index.path}: DAMAGED: {error}, or it is from a newer mmapds; {index.remedy()} (with the options that it "
            "was built with)"
        ) from error
    for name, value in expected.items():
        if name in {**index.parameters, **given} and index.parameters[name] != value:
            raise index.damaged(f"{name} = {index.parameters[name]!r}, expected {value!r}, as {paths[0]} has it")


def _verify_records(index: Index, sources: list[Source]) -> None:
    measuring = ColumnRequest().measuring(index)
    comparison = _Comparison(index, list(measuring.columns))
    chosen = formats.of_index(index)
    for piece in chosen.scan(sources, index.parameters, measuring, workers=cores()):
        comparison.check(piece, sources[piece.source].path)
    if comparison.sources != len(sources):
        raise index.damaged(f"expected {comparison.sources} sources, as a scan finds, found {len(sources)}")
    if comparison.hashes:
        import numpy as np  # start-up time: most formats have no keys

        check_keys(index, np.frombuffer(comparison.hashes, np.uint64).astype(np.uint32))


class _Comparison:
    """Compares an index with the pieces of a new scan, one after another."""

    def __init__(self, index: Index, columns: list[str]) -> None:
        self.sources = 0
        """Sources that were compared to their end."""
        self.hashes = bytearray()
        """Of the keys of all records, u64 each; empty in formats without keys."""
        self._tally = Tally()
        self._index = index
        self._columns = [
            (name, dtype, numbers(dtype, data)) for name in columns for dtype, data in [index.column(name)]
        ]
        self._first = 0  # records in those sources
        self._record = 0  # records of the source at hand that were compared

    def check(self, piece: Piece, path: str) -> None:
        """Raise FormatError unless the index has the bounds and the numbers of a piece of the source at `path`."""
        count = piece.records
        self._check_bounds(piece, path)
        self._check_count(piece, path, self._record + count)
        self._check_columns(piece, path, count)
        self._record += count
        self._tally.add(piece)
        if piece.keys is not None:
            self.hashes += piece.keys.cast("B")
        if piece.end is not None:
            self._check_totals(self._tally.totals(piece.end, self._index.parameters), piece.source, path)
            self._tally = Tally()
            self.sources += 1
            self._first += self._record
            self._record = 0

    def _check_bounds(self, piece: Piece, path: str) -> None:
        """Check where records begin, of those that the index has."""
        end = min(self._record + len(piece.starts), self._index.sources[piece.source].records)
        stored = self._index.bounds(piece.source)[self._record : end]
        if stored == piece.starts:
            return
        for record, (found, expected) in enumerate(zip(stored, piece.starts, strict=False), self._record):
            if found != expected:
                raise self._index.damaged(f"record {record} of {path} begins at byte {found}, expected byte {expected}")

    def _check_count(self, piece: Piece, path: str, count: int) -> None:
        """Check how many records there are so far, and at the end of a source how many in all, and where they end."""
        index, records = self._index, self._index.sources[piece.source].records
        if count > records or (piece.end is not None and count != records):
            more = " or more" if piece.end is None else ""
            raise index.damaged(f"expected {count}{more} records of {path}, found {records}")
        if piece.end is None:
            return
        if index.has_bounds != piece.end.has_bounds:
            kinds = "records of one size", "bounds of records"
            expected, found = kinds if index.has_bounds else kinds[::-1]
            raise index.damaged(f"expected {expected} for {path}, found {found}")
        if index.has_bounds and (end := index.bounds(piece.source)[-1]) != piece.end.end:
            raise index.damaged(f"the last record of {path} ends at byte {end}, expected byte {piece.end.end}")

    def _check_totals(self, expected: dict[str, int], number: int, path: str) -> None:
        """Check what the index says of a whole source."""
        found = self._index.sources[number]._asdict()
        for name, value in expected.items():
            if found[name] != value:
                raise self._index.damaged(f"{name} of {path} = {found[name]}, expected {value}")

    def _check_columns(self, piece: Piece, path: str, count: int) -> None:
        begin = self._first + self._record
        for (name, dtype, values), (cell, cells) in zip(self._columns, piece.columns, strict=True):
            stored = values[begin : begin + count]
            if same_numbers(dtype, stored, cell, cells):
                continue
            at = first_difference(dtype, stored, cell, cells)
            expected = cells.cast("B").cast(BY_CELL[cell].code)[at]
            raise self._index.damaged(
                f"column {name!r} differs from {path} at record {self._record + at}: expected {expected}, found "
                f"{stored[at]}"
            )
