"""From the records of sources to the file of an index, and to the tables of keys in it."""

import mmap
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import lru_cache, partial
from typing import Any, NamedTuple

from .. import __version__, _native, formats
from ..errors import ColumnError, DecodeError, Error, FormatError, SourceError
from ..executors import Engine, Task, groups, part_name
from ..formats.expressions import Measuring
from ..formats.format import End, Format, Piece
from ..storage.compressed_blocks import BlocksWriter
from ..storage.current import each, fingerprint, full_hash
from ..storage.index_file import OF_COMPRESSED, Index, relative_to_index
from ..storage.numbers import BY_DTYPE, U32, U64, Spool, order_type, sort_digits
from ..storage.sections import BOUNDS, COLUMN, BadLines, Compression, IndexedSource
from ..storage.sources import INDEX_SUFFIX, Roots, Source, changed, check_unchanged
from ..storage.writer import BoundsWriter, IndexWriter

Report = Callable[[int], object]
"""Called with the number of bytes of sources that were done since the last call."""
_GROWN = 1 << 17  # records of a source that grew that are copied at a time
_KEYS = 1 << 20  # hashes of keys that are copied at a time


class Job(NamedTuple):
    """One index to write, perhaps with what the index has that is there."""

    index_path: str
    sources: list[Source]
    chosen: Format
    parameters: dict[str, Any]
    measuring: Measuring
    before: Index | None = None
    hashes: bool = False
    """Whether the index has a hash of each source."""
    computed: Sequence[str] = ()
    """Columns that all records have in other indexes, besides those that are measured, in the order of the file."""
    functions: Mapping[str, str] = {}
    """Of these: see `Index.functions`."""
    is_part: bool = False
    """Whether it is a part of another index, or is compared with one; such a one may leave out everything."""

    @property
    def has_bounds(self) -> bool:
        return "record_bytes" not in self.parameters

    def scan(self, sources: Sequence[Source], workers: int = 1) -> Iterator[Piece]:
        """Yield the records of some sources."""
        return self.chosen.scan(sources, self.parameters, self.measuring, workers=workers)


class Scan(NamedTuple):
    """Consecutive sources that are scanned."""

    sources: list[Source]


class Stored(NamedTuple):
    """All records that an index has of some consecutive sources; `filled` and `remarks` are those of parts alone."""

    base: Index
    sources: range
    """Their numbers there."""
    filled: Sequence[int] = ()
    """For each measured column, how many of the records lack it."""
    remarks: Sequence[str] = ()

    @property
    def records(self) -> range:
        return range(self.base.firsts[self.sources.start], self.base.firsts[self.sources.stop])


class Grown(NamedTuple):
    """A source that grew, which has a number in an index: that has its first records, and the others are scanned."""

    base: Index
    number: int
    source: Source

    @property
    def records(self) -> range:
        """The records that are kept, by their numbers there: all but the last, whose line may have gone on."""
        return range(self.base.firsts[self.number], self.base.firsts[self.number + 1] - 1)

    def pieces(self, job: Job, workers: int) -> Iterator[Piece]:
        """Yield what a scan of the whole source does, without the columns of the records that are kept."""
        old = self.base.sources[self.number]
        self.base.verify_sections(BOUNDS)
        begin = self.base.bounds(self.number, old.records - 1, old.records)[0]
        records = skipped = bad = lines = 0
        for piece in job.scan([self.source._replace(begin=begin, end=old.size)]):
            records, skipped, bad = records + piece.records, skipped + piece.skipped, bad + piece.bad
            lines = old.lines - piece.end.lines if piece.end else 0
        if records != 1:
            raise self.base.damaged(f"expected 1 record behind byte {begin} of {self.source.path}, found {records}")
        bad_at = tuple(at for at in old.bad.first if at[1] < begin)
        none = memoryview(b"").cast("Q")
        columns = tuple((U64.cell, none) for _ in job.measuring.columns)
        yield Piece(0, none, columns, old.skipped - skipped, begin, None, bad=old.bad.lines - bad, bad_at=bad_at)
        for at in range(0, len(self.records), _GROWN):
            end = min(at + _GROWN, len(self.records))
            yield Piece(0, self.base.bounds(self.number, at, end), columns, 0, 0, None)
        for piece in job.scan([self.source._replace(begin=begin)], workers):
            last = piece.end and piece.end._replace(lines=piece.end.lines + lines)
            yield piece._replace(end=last, bad_at=tuple((line + lines, byte) for line, byte in piece.bad_at))


Plan = Sequence[Scan | Stored | Grown]
"""Where the records of an index come from, in the order of its sources."""


def written(
    job: Job, plan: Plan, workers: int, report: Report = lambda _: None, engine: Engine | None = None
) -> "_Writing":
    """Write an index beside its place; it is removed unless its `writer` puts it there.

    Args:
      workers: threads that scan.
      engine: what scans whole sources in the place of these threads; the end of a source that grew is scanned here.
    Raises:
      Error: see `Engine.run`; or the index cannot be written.
    """
    tasks: list[Task] = []
    if engine is not None:
        with IndexWriter(job.index_path):
            pass  # a place that cannot be written to is an error before the work
        steps: list[Stored | Grown | Task] = []
        first = 0
        for step in plan:
            sources = range(first, first + (1 if isinstance(step, Grown) else len(step.sources)))
            steps += _tasks(job, sources, engine) if isinstance(step, Scan) else [step]
            first = sources.stop
        tasks = [step for step in steps if isinstance(step, Task)]
        engine.run(tasks, job.index_path, lambda task: report(sum(source.size for source in task.arguments[0])))
        plan, report = [_stored(step) if isinstance(step, Task) else step for step in steps], lambda _: None
    with ExitStack() as on_error, _watching(job.sources):
        writer = on_error.enter_context(IndexWriter(job.index_path))
        writing = _Writing(job, writer, tasks, report)
        for step in plan:
            if isinstance(step, Stored):
                writing.copy(step)
            elif isinstance(step, Grown):
                writing.copy_columns(step)
                writing.scan([step.source], step.pieces(job, workers))
            else:
                writing.scan(step.sources, job.scan(step.sources, workers))
        writing.complete(workers)
        on_error.pop_all()
    return writing


class _Writing:
    """An index of which some sources are written."""

    def __init__(self, job: Job, writer: IndexWriter, tasks: list[Task], report: Report) -> None:
        self.writer, self.tasks = writer, tasks
        self.path = ""
        """Where the complete index lies."""
        self._job, self._report = job, report
        self._done: list[IndexedSource] = []
        self._bounds = BoundsWriter(writer) if job.has_bounds else None
        self._blocks = BlocksWriter(writer)
        self._columns = {name: writer.spool() for name in (*job.measuring.columns, *job.computed)}
        self._keys: Spool | None = None
        self._hashes = lru_cache(1)(partial(_hashes_by_record, scratch=writer.scratch))
        self._filled = [0] * len(job.measuring.columns)  # see `Piece.filled`
        self.remarks: list[str] = []

    def scan(self, sources: Sequence[Source], pieces: Iterable[Piece]) -> None:
        """Append what a scan of some sources finds."""
        first, tally = len(self._done), _Tally()
        for piece in pieces:
            tally.add(piece)
            self._add(piece)
            self._report(piece.scanned)
            if piece.end is None:
                continue
            number, size = len(self._done) - first, sources[piece.source].size
            if piece.source != number or tally.scanned != size:
                expected, found = f"{size} bytes of source {number}", f"{tally.scanned} of source {piece.source}"
                raise self._incomplete(expected, found)
            self._done.append(self._finished(sources[number], tally, piece.end))
            tally = _Tally()

    def _incomplete(self, expected: str, found: str) -> Error:
        what = f"incomplete scan of format {self._job.chosen.name!r}: expected {expected}, found {found}"
        return Error(f"{self._job.index_path}: {what}; nothing was changed")

    def _add(self, piece: Piece) -> None:
        self._add_filled(piece.filled)
        with self.writer.writing():
            for spool, (cell, cells) in zip(self._columns.values(), piece.columns, strict=True):
                spool.append(cell, cells)
            if piece.keys is not None:
                self._spool_of_keys().append(U64.cell, piece.keys)
        if self._bounds is not None:
            self._bounds.append(piece.starts)
        self._blocks.append(piece.blocks)

    def _add_filled(self, filled: Sequence[int]) -> None:
        if any(filled):
            self._filled = [sum(each) for each in zip(self._filled, filled, strict=True)]

    def _spool_of_keys(self) -> Spool:
        self._keys = self._keys or self.writer.spool()
        return self._keys

    def _finished(self, source: Source, tally: "_Tally", end: End) -> IndexedSource:
        """Return what the index holds of a source, all records of which are written."""
        check_unchanged(source)
        width = self._bounds.finish(end.end) if self._bounds is not None else 0
        compression = None
        if source.codec:
            compression = self._blocks.finish(source.codec, source.size, end.content or end.end)
        if end.remark:
            self.remarks.append(end.remark)
        return tally.finish(source, end, self._job, compression)._replace(width=width)

    def copy(self, stored: Stored) -> None:
        """Append what another index has."""
        base, job = stored.base, self._job
        self._add_filled(stored.filled)
        self.remarks.extend(stored.remarks)
        self.copy_columns(stored)
        if "key_hashes" in base.sections:
            spool = self._spool_of_keys()
            hashes = memoryview(self._hashes(base))
            for begin in range(stored.records.start, stored.records.stop, _KEYS):
                end = min(begin + _KEYS, stored.records.stop)
                with self.writer.writing():
                    spool.append_bytes(hashes[begin * U32.width : end * U32.width], U32)
        if self._bounds is not None:
            first = base.sections[BOUNDS].offset
            begin, end = (base.bounds_at(number) - first for number in (stored.sources.start, stored.sources.stop))
            self._bounds.copy(base.pieces(BOUNDS, begin, end))
        self._blocks.copy(base, stored.sources)
        for number in stored.sources:
            source, found = job.sources[len(self._done)], base.sources[number]
            check_unchanged(source)
            path = relative_to_index(source.path, job.index_path)
            self._done.append(found._replace(path=path, xxh3_128=found.xxh3_128 if job.hashes else ""))
            self._report(source.size)

    def copy_columns(self, kept: Stored | Grown) -> None:
        """Append the numbers of records that another index has."""
        base, records = kept.base, kept.records
        for name, spool in self._columns.items():
            kind = BY_DTYPE[base.sections[COLUMN + name].dtype]
            pieces = partial(base.pieces, COLUMN + name, records.start * kind.width, records.stop * kind.width)
            spool.append_stored(kind, len(records), pieces)

    def complete(self, workers: int) -> None:
        """Finish the index, once all sources are written."""
        job, sources = self._job, self._job.sources
        if len(self._done) != len(sources):
            raise self._incomplete(f"{len(sources)} sources", str(len(self._done)))
        if job.chosen.is_text and not job.is_part:
            _check_something_is_left(job, self._done, self._filled)
        self._finish_columns()
        self._blocks.write()
        self.writer.kind = OF_COMPRESSED if any(source.codec for source in sources) else 0
        done = _with_hashes(self._done, sources, workers, self._report) if job.hashes else self._done
        metadata = {
            "builder": f"mmapds {__version__}",
            "format": job.chosen.name,
            "parameters": job.parameters,
            "sources": [source.describe() for source in done],
            "columns": job.measuring.describe(),
            **({"functions": job.functions} if job.functions else {}),
            **({"part": {"filled": self._filled, "remarks": self.remarks}} if job.is_part else {}),
        }
        self.path = self.writer.complete(metadata, sum(source.records for source in done))

    def _finish_columns(self) -> None:
        """Write the columns, the order of lengths, and the keys; those that were computed last, as they were added."""
        measured = [name for name in self._columns if name not in self._job.computed]
        for name in measured:
            self.writer.write_column(name, self._columns[name])
        if "length" in measured:
            self.writer.write_length_order()
        if self._keys is not None:
            _write_keys(self.writer, self._keys)
        for name in self._job.computed:
            self.writer.write_column(name, self._columns[name])
            if name == "length":
                self.writer.write_length_order()


class _Tally:
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
            first = (*self._bad.first, *piece.bad_at)
            self._bad = BadLines(self._bad.lines + piece.bad, first[: _native.MOST_LISTED])
        if piece.starts:
            self._add_sizes(piece.starts)
            self._previous = piece.starts[-1]

    def _add_sizes(self, bounds: memoryview) -> None:
        self._smallest, self._largest = _native.record_sizes(bounds, self._previous, self._smallest, self._largest)

    def finish(self, source: Source, end: End, job: Job, compression: Compression | None) -> IndexedSource:
        """Return what the index holds of the source; raise FormatError where records overlap."""
        if end.has_bounds:
            self._add_sizes(memoryview(end.end.to_bytes(8, "little")).cast("Q"))
        else:
            self._smallest = self._largest = job.parameters["record_bytes"]
        size = source.size if compression is None else compression.size
        if self._records and self._largest > size:
            raise FormatError(
                f"{source.path}: DAMAGED: expected records one after another, found one of {self._largest} bytes "
                f"in {'a file' if compression is None else 'content'} of {size}; write or copy it again"
            )
        return IndexedSource(
            path=relative_to_index(source.path, job.index_path),
            size=source.size,
            mtime_ns=source.mtime_ns,
            fingerprint=fingerprint(source.path).hex,
            records=self._records,
            lines=end.lines,
            smallest=self._smallest if self._records else 0,
            largest=self._largest if self._records else 0,
            skipped=self._skipped,
            first=end.first,
            bad=self._bad,
            compression=compression,
        )


def _with_hashes(
    indexed: Sequence[IndexedSource], sources: Sequence[Source], workers: int, report: Report
) -> list[IndexedSource]:
    """Return indexed sources, each with the hash of the source if it has none; threads share out whole sources."""
    hashed = list(indexed)
    lacking = [number for number, source in enumerate(indexed) if not source.xxh3_128]
    paths = [sources[number].path for number in lacking]
    digests = each(lambda path: full_hash(path, report), paths, workers=workers)
    for number, digest in zip(lacking, digests, strict=True):
        if (digest.size, digest.mtime_ns) != sources[number][1:3]:
            raise changed(sources[number], digest.size)
        hashed[number] = hashed[number]._replace(xxh3_128=digest.hex)
    return hashed


# ---- parts, which workers of an engine write ----------------------------------------------------------------------


def _tasks(job: Job, numbers: range, engine: Engine) -> Iterator[Task]:
    """Yield the tasks for some neighbouring sources of a job."""
    for group in groups([job.sources[number].size for number in numbers]):
        own = slice(numbers.start + group.start, numbers.start + group.stop)
        in_turn = job.chosen.per_source
        parameters = {name: each[own] if name in in_turn else each for name, each in job.parameters.items()}
        absolute = [source._replace(path=os.path.abspath(source.path)) for source in job.sources[own]]
        arguments = absolute, job.chosen.name, parameters, job.measuring.describe(), job.hashes
        path = os.path.join(engine.directory_for(job.index_path), part_name(arguments, INDEX_SUFFIX))
        yield Task(path, build_part, (*arguments, engine.workers))


def build_part(
    path: str,
    sources: list[Source],
    format_name: str,
    parameters: dict[str, Any],
    measuring: Mapping[str, Any],
    hashes: bool,
    workers: int,
) -> None:
    """Write the index of some sources, in a worker; they must be there with the size and time that they had."""
    for source in sources:
        check_unchanged(source)
    chosen = formats.by_name(format_name)
    job = Job(path, sources, chosen, parameters, Measuring.of(measuring), hashes=hashes, is_part=True)
    with written(job, [Scan(sources)], workers).writer as writer:
        writer.place()


def _stored(task: Task) -> Stored:
    """Return the records of a part."""
    sources = task.arguments[0]
    index = Index(task.path, Roots(named=[source.path for source in sources]))
    with index.reporting_malformed_metadata():
        return Stored(index, range(len(sources)), **index.metadata["part"])


# ---- keys: the index holds hashes, the sources hold the keys ------------------------------------------------------


def _write_keys(writer: IndexWriter, spool: Spool) -> None:
    """Append the tables by which records are found by key, which are sorted in scratch memory.

      key_records   u32 or u64: record numbers, sorted by the hash of their key, falling; equal hashes by record number
      key_hashes    u32: those hashes, in the same order

    Args:
      spool: the hash of every record's key, 32 bits.
    """
    import numpy as np  # start-up time: most formats have no keys

    count = spool.count
    dtype, width, *_ = order_type(count)
    hashes = writer.scratch(U32.width * count)
    with writer.writing():
        for chunk in spool.chunks():
            hashes.write(chunk)
    order, spare = (writer.scratch(count * width) for _ in range(2))
    if count:
        sort_digits(hashes, U32.width, 32, order, width, spare)
    writer.write_array("key_records", dtype, memoryview(order)[: count * width])
    writer.begin_section("key_hashes", U32.dtype)
    by_record, ordered = np.frombuffer(hashes, U32.dtype, count), np.frombuffer(order, dtype, count)
    for begin in range(0, count, _KEYS):
        writer.write(by_record[ordered[begin : begin + _KEYS]].data)


def _hashes_by_record(index: Index, scratch: Callable[[int], mmap.mmap]) -> mmap.mmap:
    """Return the hash of every record's key, u32, in memory that `scratch` returns."""
    import numpy as np  # start-up time: most formats have no keys

    hashes, records = index.sections["key_hashes"], index.sections["key_records"]
    kind = BY_DTYPE[records.dtype]
    index.verify_sections("key_hashes", "key_records")
    memory = scratch(index.records * U32.width)
    by_record = np.frombuffer(memory, U32.dtype, index.records)
    for begin in range(0, index.records, _KEYS):
        count = min(_KEYS, index.records - begin)
        numbers = np.frombuffer(index.read(records.offset + begin * kind.width, count * kind.width), kind.dtype)
        if (largest := int(numbers.max())) >= index.records:
            raise index.damaged(f"key_records: {largest} is out of range for {index.records} records")
        by_record[numbers] = np.frombuffer(index.read(hashes.offset + begin * U32.width, count * U32.width), U32.dtype)
    return memory


def candidates(index: Index, key: str) -> Iterator[int]:
    """Yield the records whose keys have the same hash as `key`, in ascending order; this takes no memory."""
    if "key_hashes" not in index.sections:
        raise FormatError(f"{index.path}: expected records with keys (format 'tar'), found format {index.format!r}")
    hashes, records = index.sections["key_hashes"], index.sections["key_records"]
    width = BY_DTYPE[records.dtype].width
    try:
        wanted = _native.tar_hash(key.encode(errors="surrogateescape"))
    except UnicodeEncodeError:  # a lone surrogate that no bytes decode to
        return
    for at in range(index.count_above("key_hashes", wanted), index.records):
        if index.read(hashes.offset + at * U32.width, U32.width) != wanted.to_bytes(U32.width, sys.byteorder):
            return
        record = int.from_bytes(index.read(records.offset + at * width, width), sys.byteorder)
        if record >= index.records:
            raise index.damaged(f"key_records[{at}] = {record} is out of range for {index.records} records")
        yield record


# ---- errors -------------------------------------------------------------------------------------------------------


@contextmanager
def reading() -> Iterator[None]:
    """Raise SourceError for a file that ends before it did when it was opened."""
    try:
        yield
    except EOFError as error:
        raise SourceError(f"{error}; run again (it became shorter while it was read, or its disk fails)") from None


@contextmanager
def _watching(sources: Sequence[Source]) -> Iterator[None]:
    """Where reading sources fails because one of them changes meanwhile, raise the SourceError that says so."""
    try:
        with reading():
            yield
    except (SourceError, FormatError, ColumnError, DecodeError):
        for source in sources:
            check_unchanged(source)
        raise


def _check_something_is_left(job: Job, done: Sequence[IndexedSource], filled: Sequence[int]) -> None:
    """Raise an error where the options leave out all records of a text, or none has a column; see `Piece.filled`."""
    records, skipped = sum(source.records for source in done), sum(source.skipped for source in done)
    bad = sum(source.bad.lines for source in done)
    path, columns = job.sources[0].path, job.measuring.columns.values()
    if skipped and not records and bad == skipped:
        raise DecodeError(f"{path}: expected JSON in one line or more, found it in 0 of {bad:,}")
    lacking = [column.text for column, count in zip(columns, filled, strict=True) if count == records > 0]
    if lacking or (skipped and not records):
        wanted = " and ".join(map(repr, lacking or [column.text for column in columns]))
        raise ColumnError(f"{path}: expected one record or more with {wanted}, found 0 of {records or skipped - bad:,}")
