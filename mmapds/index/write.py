"""From the records of sources to the file of an index."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from .. import __version__, _native
from ..errors import ColumnError, DecodeError, Error, FormatError, SourceError, shortened
from ..formats.format import End, Format, Piece, room_for
from ..formats.measuring import Measuring
from ..storage.blocks import BlocksWriter, end_of
from ..storage.current import each, fingerprint, full_hash
from ..storage.index_file import OF_COMPRESSED, Index, relative_to_index
from ..storage.numbers import U64
from ..storage.sections import BadLines, Compression, IndexedSource
from ..storage.sources import Source, changed, check_unchanged
from ..storage.spool import Spool
from ..storage.writer import BoundsWriter, IndexWriter, PartWriter
from .keys import has_keys, hashes_by_record, write_keys
from .left_out import check_something_is_left
from .length_order import write_length_order
from .stored import Stored

Report = Callable[[int], object]
"""Called with the number of bytes of sources that were done since the last call."""


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
        self.functions: Mapping[str, str] = {}  # of columns that stored records have: see `Index.functions`
        self.any_lines = False
        """Whether the user chose the format of text whose first bytes deny it."""
        self.names: Mapping[str, str] = {}
        """Where sources will be that are not in their places yet, by where they are."""
        self.place: Callable[[], object] = lambda: None
        """Called right before the index is put into its place; if it raises, nothing is replaced."""
        self.complete: Callable[[str], object] | None = None
        """Called with the path of the index once all is in it that a scan finds; puts one with more into its place."""
        self.is_scanned = False
        """Whether that was called."""

    @property
    def has_bounds(self) -> bool:
        """Whether the index has bounds of records, which then do not all have one size."""
        return "record_bytes" not in self.parameters

    def incomplete(self, expected: str, found: str) -> Error:
        """Return the error to raise for a scan that breaks the contract of formats."""
        return Error(
            f"{self.index_path}: incomplete scan of format {self.chosen.name!r}: expected {expected}, found {found}; "
            "nothing was changed"
        )


class Scan(NamedTuple):
    """Consecutive sources that are to be scanned; the first of them may begin where stored records end."""

    sources: Sequence[Source]


Plan = Sequence[Scan | Stored]
"""Where the records of an index come from, in the order of its sources."""


def write(job: Job, plan: Plan, workers: int, report: Report, *, computed: Sequence[str] = (), part: str = "") -> None:
    """Write an index, and put it in its place once it is complete.

    Args:
      workers: threads that scan.
      report: called with the number of bytes of sources that were done since the last call.
      computed: columns that all stored records have besides those that are measured, in the order of the file.
      part: what the index is called as a part of another; such a one may leave out everything.
    """
    with _watching(job.sources), _writer(job, part) as writer, room_for(job.index_path):
        writing = _Writing(job, writer, report, computed)
        for records in plan:
            if isinstance(records, Stored):
                writing.copy(records)
            else:
                writing.scan(records, workers)
        writing.commit(workers, part)


def _writer(job: Job, part: str) -> IndexWriter:
    return PartWriter(job.index_path) if part else IndexWriter(job.index_path)


def check_target(job: Job) -> None:
    """Raise Error where the index of a job cannot be written, for those that do much before they write it."""
    with _writer(job, ""):
        pass


class _Writing:
    """An index of which some sources are written."""

    def __init__(self, job: Job, writer: IndexWriter, report: Report, computed: Sequence[str]) -> None:
        self._job, self._writer, self._report = job, writer, report
        self._numbers, self._tally = _Numbers(writer, job.measuring, computed), Tally()
        self._done: list[IndexedSource] = []
        self._bounds = BoundsWriter(writer) if job.has_bounds else None
        self._blocks = BlocksWriter(writer)

    def scan(self, scan: Scan, workers: int) -> None:
        """Append what a scan finds."""
        job, first = self._job, len(self._done)
        for piece in job.chosen.scan(scan.sources, job.parameters, job.measuring, workers=workers):
            self._numbers.add(piece)
            self._tally.add(piece)
            if self._bounds is not None:
                self._bounds.append(piece.starts)
            self._blocks.append(piece.blocks)
            self._report(piece.scanned)
            if piece.end is None:
                continue
            source, number = scan.sources[piece.source], len(self._done) - first
            if piece.source != number or self._tally.scanned != source.stop - source.begin:
                expected = f"{source.stop - source.begin} bytes of source {number}"
                raise job.incomplete(expected, f"{self._tally.scanned} of source {piece.source}")
            self._end_source(piece.end)
        if len(self._done) - first != len(scan.sources):
            raise job.incomplete(f"{len(scan.sources)} sources", str(len(self._done) - first))

    def copy(self, stored: Stored) -> None:
        """Append what another index has."""
        self._numbers.copy(stored)
        if self._bounds is not None and stored.totals is None:
            self._bounds.copy(stored.groups())
        elif self._bounds is not None:
            for starts in stored.starts():
                self._bounds.append(starts)
        if stored.totals is None:
            self._blocks.copy(stored.base, stored.sources)
            for number in stored.sources:
                self._adopt(stored.base.sources[number])
            return
        self._tally.add_stored(stored, stored.totals)
        self._report(stored.size)
        if stored.end is not None:
            self._end_source(End(0, stored.end))

    def _adopt(self, found: IndexedSource) -> None:
        """Take over what another index has of a whole source."""
        source = self._job.sources[len(self._done)]
        check_unchanged(source)
        path = relative_to_index(source.path, self._job.index_path)
        self._done.append(found._replace(path=path, xxh3_128=found.xxh3_128 if self._job.hashes else ""))
        self._report(source.size)

    def _end_source(self, end: End) -> None:
        source = self._job.sources[len(self._done)]
        check_unchanged(source)
        width = self._bounds.finish(end.end) if self._bounds is not None else 0
        compression = None
        if source.codec:
            compression = self._blocks.finish(source.codec, end_of(source.codec, source.size, end.content or end.end))
        finished = self._tally.finish(source, end, self._job, compression)
        self._done.append(finished._replace(width=width))
        self._tally = Tally()

    def commit(self, workers: int, part: str) -> None:
        """Finish the index, once all sources are written, and put it in its place."""
        job, sources = self._job, self._job.sources
        if len(self._done) != len(sources):
            raise job.incomplete(f"{len(sources)} sources", str(len(self._done)))
        if not part:
            check_something_is_left(job.chosen, sources, job.measuring, self._done, self._numbers.filled)
        self._numbers.finish()
        self._blocks.write()
        self._writer.kind = OF_COMPRESSED if any(source.codec for source in sources) else 0
        done = _with_hashes(self._done, sources, workers, self._report) if job.hashes else self._done
        metadata = {
            "builder": f"mmapds {__version__}",
            "format": job.chosen.name,
            "parameters": job.parameters,
            "sources": [source.describe() for source in done],
            "columns": job.measuring.describe(),
            **({"functions": job.functions} if job.functions else {}),
            **({"any_lines": True} if job.any_lines else {}),
            **({"part": {"key": part, "filled": self._numbers.filled}} if part else {}),
        }
        records = sum(source.records for source in done)
        if job.complete is None:
            self._writer.commit(metadata, records, job.place)
            return
        job.is_scanned = True
        job.complete(self._writer.complete(metadata, records))


def _with_hashes(
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
        self._records = self._skipped = self._lines = 0
        self._smallest, self._largest = 2**64 - 1, 0
        self._bad = BadLines()
        self._previous: int | None = None  # where the last record begins

    def add(self, piece: Piece) -> None:
        self.scanned += piece.scanned
        self._records += piece.records
        self._skipped += piece.skipped
        if piece.bad:
            self._add_bad(BadLines(piece.bad, piece.bad_at))
        if piece.starts:
            self._add_sizes(piece.starts)
            self._previous = piece.starts[-1]

    def add_stored(self, stored: Stored, totals: IndexedSource) -> None:
        """Take in what an index has of the first records of the source, or of the next ones.

        Args:
          totals: of these; the sizes are those of all but the last, which ends where the next record is found.
        """
        self._records += totals.records
        if totals.records:
            first, last = stored.ends()
            self._add_sizes(first)
            self._smallest, self._largest = min(self._smallest, totals.smallest), max(self._largest, totals.largest)
            self._previous = last[0]
        self._skipped += totals.skipped
        self._add_bad(totals.bad)
        self._lines += totals.lines

    def _add_bad(self, bad: BadLines) -> None:
        """Take in bad lines, whose numbers are counted from the end of what was taken in by `add_stored`."""
        first = (*self._bad.first, *((line + self._lines, byte) for line, byte in bad.first))
        self._bad = BadLines(self._bad.lines + bad.lines, first[: _native.MOST_LISTED])

    def finish(self, source: Source, end: End, job: Job, compression: Compression | None) -> IndexedSource:
        """Return what the index holds of the source.

        Raises:
          FormatError: its records do not lie one after another.
        """
        totals = self.totals(end, job.parameters)
        size = source.size if compression is None else compression.size
        if totals["largest"] > size:
            raise FormatError(
                f"{source.path}: DAMAGED: expected records one after another, found one of {totals['largest']} bytes "
                f"in {'a file' if compression is None else 'content'} of {size}; write or copy it again"
            )
        return IndexedSource(
            path=relative_to_index(job.names.get(source.path, source.path), job.index_path),
            size=source.size,
            mtime_ns=source.mtime_ns,
            fingerprint=fingerprint(source.path).hex,
            xxh3_128="",
            compression=compression,
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
            "lines": self._lines + end.lines,
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

    def __init__(self, writer: IndexWriter, measuring: Measuring, computed: Sequence[str]) -> None:
        self._writer = writer
        self._columns = {name: writer.spool() for name in (*measuring.columns, *computed)}
        self._computed = computed
        self._keys: Spool | None = None
        self._hashes: dict[str, memoryview] = {}  # of keys, by the path of the index that has them
        self.filled = [0] * len(measuring.columns)
        """For each measured column, how many records that were scanned lack it, and have the number for missing."""

    def add(self, piece: Piece) -> None:
        """Append the numbers of records that were scanned."""
        if any(piece.filled):
            self.filled = [sum(each) for each in zip(self.filled, piece.filled, strict=True)]
        with self._writer.writing():
            for spool, (cell, cells) in zip(self._columns.values(), piece.columns, strict=True):
                spool.append(cell, cells)
            if piece.keys is not None:
                self._keys = self._keys or self._writer.spool()
                self._keys.append(U64.cell, piece.keys)

    def copy(self, stored: Stored) -> None:
        """Append the numbers of records that another index has."""
        if stored.is_whole and "part" in stored.base.metadata:
            with stored.base.reporting_malformed_metadata():
                filled = stored.base.metadata["part"]["filled"]
                if not all(type(each) is int and 0 <= each <= stored.base.records for each in filled):
                    raise ValueError(f"part: expected numbers of records, found {shortened(filled)}")
                self.filled = [sum(each) for each in zip(self.filled, filled, strict=True)]
        for name, spool in self._columns.items():
            stored.add_column(name, spool)
        if has_keys(stored.base):
            self._keys = self._keys or self._writer.spool()
            if stored.records:
                with self._writer.writing():
                    stored.add_keys(self._hashes_of(stored), self._keys)

    def _hashes_of(self, stored: Stored) -> memoryview:
        """Return the hash of every record's key of an index; kept where more of its records may come."""
        base = stored.base
        if stored.is_whole:
            return memoryview(hashes_by_record(base, self._writer.scratch))
        if base.path not in self._hashes:
            self._hashes[base.path] = memoryview(hashes_by_record(base, self._writer.scratch))
        return self._hashes[base.path]

    def finish(self) -> None:
        """Write the columns, the order of lengths, and the keys; those that were computed last, as they were added."""
        measured = [name for name in self._columns if name not in self._computed]
        for name in measured:
            self._writer.write_column(name, self._columns[name])
        if "length" in measured:
            write_length_order(self._writer)
        if self._keys is not None:
            write_keys(self._writer, self._keys)
        for name in self._computed:
            self._writer.write_column(name, self._columns[name])
            if name == "length":
                write_length_order(self._writer)
