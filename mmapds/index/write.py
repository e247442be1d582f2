"""From the records of sources to the file of an index."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from .. import __version__, _native
from ..errors import ColumnError, DecodeError, Error, FormatError, SourceError
from ..formats.format import End, Format, Piece
from ..formats.measuring import Measuring
from ..storage.fingerprints import fingerprint
from ..storage.index_file import BadLines, Index, IndexedSource, IndexWriter, relative_to_index
from ..storage.numbers import U64
from ..storage.sources import Source, check_unchanged
from ..storage.spool import Spool
from .keep import with_hashes
from .keys import write_keys
from .left_out import check_something_is_left
from .length_order import write_length_order


class Job:
    """One index to write."""

    def __init__(
        self,
        index_path: str,
        sources: list[Source],
        chosen: Format,
        parameters: dict[str, Any],
        measuring: Measuring,
        *,
        before: Index | None,
        hashes: bool,
    ) -> None:
        self.hashes = hashes  # of whole sources
        self.index_path = index_path
        self.sources = sources
        self.chosen = chosen
        self.parameters = parameters  # of the format, checked and completed
        self.measuring = measuring
        self.before = before  # the index that is there; None also if nothing of it is to be kept

    def incomplete(self, expected: str, found: str) -> Error:
        """Return the error to raise for a scan that breaks the contract of formats."""
        return Error(
            f"{self.index_path}: incomplete scan of format {self.chosen.name!r}: expected {expected}, found {found}; "
            "nothing was changed"
        )


def write(job: Job, workers: int, report: Callable[[int], object]) -> None:
    sources, chosen, parameters, measuring = job.sources, job.chosen, job.parameters, job.measuring
    done: list[IndexedSource] = []
    with _watching(sources), IndexWriter(job.index_path) as writer:
        numbers, tally = _Numbers(writer, measuring), Tally()
        if "record_bytes" not in parameters:
            writer.begin_section("offsets", U64.dtype)
        for piece in chosen.scan(sources, parameters, measuring, workers=workers):
            numbers.add(piece)
            tally.add(piece)
            if piece.starts:
                writer.write(piece.starts)
            report(piece.scanned)
            if piece.end is None:
                continue
            source = sources[piece.source]
            check_unchanged(source)
            if piece.source != len(done) or tally.scanned != source.size:
                expected = f"{source.size} bytes of source {len(done)}"
                raise job.incomplete(expected, f"{tally.scanned} of source {piece.source}")
            if piece.end.has_bounds:
                writer.write(piece.end.end.to_bytes(8, "little"))
            done.append(tally.finish(source, piece.end, job))
            tally = Tally()
        if len(done) != len(sources):
            raise job.incomplete(f"{len(sources)} sources", str(len(done)))
        check_something_is_left(chosen, sources, measuring, done, numbers.filled)
        numbers.finish()
        if job.hashes:
            done = with_hashes(done, sources, workers, report)
        metadata = {
            "builder": f"mmapds {__version__}",
            "format": chosen.name,
            "parameters": parameters,
            "sources": [source.describe() for source in done],
            "columns": measuring.describe(),
        }
        writer.commit(metadata, sum(source.records for source in done))


@contextmanager
def reading() -> Iterator[None]:
    """Raise SourceError for a file that ends before it did when it was opened."""
    try:
        yield
    except EOFError as error:
        raise SourceError(f"{error}; run again (it became shorter while it was read, or its disk fails)") from None


@contextmanager
def _watching(sources: list[Source]) -> Iterator[None]:
    """Where reading sources fails because one of them changes meanwhile, raise the SourceError that says so."""
    try:
        with reading():
            yield
    except (SourceError, FormatError, ColumnError, DecodeError):
        for source in sources:
            check_unchanged(source)
        raise


class Tally:
    """Totals over the pieces of one source."""

    def __init__(self) -> None:
        self.scanned = 0
        self._records = self._skipped = 0
        self._smallest, self._largest = 2**64 - 1, 0
        self._bad = BadLines()
        self._previous: int | None = None  # where the last record begins

    def add(self, piece: Piece) -> None:
        self.scanned += piece.scanned
        self._records += piece.records
        self._skipped += piece.skipped
        if piece.bad:
            first = (*self._bad.first, *piece.bad_at)[: _native.MOST_LISTED]
            self._bad = BadLines(self._bad.lines + piece.bad, first)
        if piece.starts:
            self._add_sizes(piece.starts)
            self._previous = piece.starts[-1]

    def finish(self, source: Source, end: End, job: Job) -> IndexedSource:
        """Return what the index holds of the source.

        Raises:
          FormatError: its records do not lie one after another.
        """
        totals = self.totals(end, job.parameters)
        if totals["largest"] > source.size:
            raise FormatError(
                f"{source.path}: DAMAGED: expected records one after another, found one of {totals['largest']} bytes "
                f"in a file of {source.size}; write or copy it again"
            )
        return IndexedSource(
            path=relative_to_index(source.path, job.index_path),
            size=source.size,
            mtime_ns=source.mtime_ns,
            fingerprint=fingerprint(source.path).hex,
            xxh3_128="",
            **totals,
        )

    def totals(self, end: End, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the pieces add up to, by the names that an index gives it."""
        if not end.has_bounds:
            self._smallest = self._largest = parameters["record_bytes"]
        else:
            self._add_sizes(memoryview(end.end.to_bytes(8, "little")).cast("Q"))
        return {
            "records": self._records,
            "lines": end.lines,
            "smallest": self._smallest if self._records else 0,
            "largest": self._largest if self._records else 0,
            "skipped": self._skipped,
            "first": end.first,
            "bad": self._bad,
        }

    def _add_sizes(self, bounds: memoryview) -> None:
        """Take in the sizes of the records that end at these bounds."""
        self._smallest, self._largest = _native.record_sizes(bounds, self._previous, self._smallest, self._largest)


class _Numbers:
    """The columns and the hashes of keys, which become the sections after the offsets."""

    def __init__(self, writer: IndexWriter, measuring: Measuring) -> None:
        self._writer = writer
        self._columns = {name: writer.spool() for name in measuring.columns}
        self._keys: Spool | None = None
        self.filled = [0] * len(measuring.columns)
        """For each column, how many records lack it, and have the number that stands for missing ones."""

    def add(self, piece: Piece) -> None:
        if any(piece.filled):
            self.filled = [sum(each) for each in zip(self.filled, piece.filled, strict=True)]
        with self._writer.writing():
            for spool, (cell, cells) in zip(self._columns.values(), piece.columns, strict=True):
                spool.append(cell, cells)
            if piece.keys is not None:
                self._keys = self._keys or self._writer.spool()
                self._keys.append(U64.cell, piece.keys)

    def finish(self) -> None:
        """Write the columns, the order of lengths, and the keys."""
        for name, spool in self._columns.items():
            self._writer.write_column(name, spool)
        if "length" in self._columns:
            write_length_order(self._writer)
        if self._keys is not None:
            write_keys(self._writer, self._keys)
