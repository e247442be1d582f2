"""From the records of sources to the file of an index."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import lru_cache, partial
from typing import Any, NamedTuple

from .. import __version__, _native, formats
from ..clusters import Engine, Task, groups, part_name
from ..errors import ColumnError, DecodeError, FormatError, SourceError, either
from ..formats.format import End, Piece
from ..formats.measuring import Measuring
from ..storage.blocks import BlocksWriter
from ..storage.current import each, fingerprint, full_hash
from ..storage.index_file import OF_COMPRESSED, Index, relative_to_index
from ..storage.numbers import BY_DTYPE, U64, Spool
from ..storage.sections import COLUMN, BadLines, Compression, IndexedSource
from ..storage.sources import INDEX_SUFFIX, Roots, Source, changed, check_unchanged
from ..storage.writer import BoundsWriter, IndexWriter
from .keys import copy_hashes, has_keys, hashes_by_record, write_keys
from .plan import Grown, Job, Plan, Scan, Stored

Report = Callable[[int], object]
"""Called with the number of bytes of sources that were done since the last call."""


class Written(NamedTuple):
    """A complete index that lies beside its place; it is removed unless `put` moves it there."""

    writer: IndexWriter
    path: str
    """Where it lies."""
    remarks: list[str]
    """Warnings of its sources: see `End.remark`."""
    parts: list[Task]
    """What an engine wrote for it."""

    def put(self) -> None:
        """Flush it to the disk, and move it to its place, the lock of which the caller holds if others write there."""
        with self.writer:
            self.writer.flush()
            self.writer.place()


def written(
    job: Job, plan: Plan, workers: int, report: Report = lambda _: None, engine: Engine | None = None
) -> Written:
    """Write an index beside its place.

    Args:
      workers: threads that scan.
      report: called with the number of bytes of sources that were done since the last call.
      engine: what scans whole sources in the place of these threads; the end of a source that grew is scanned here.
    Raises:
      Error: see `Engine.run`; or the index cannot be written.
    """
    tasks: list[Task] = []
    if engine is not None:
        with IndexWriter(job.index_path):
            pass  # a place that cannot be written to is an error before the work
        layout = list(_layout(job, plan, engine))
        tasks = [each for each in layout if isinstance(each, Task)]
        engine.run(tasks, job.index_path, lambda task: report(sum(source.size for source in task.arguments[0])))
        plan, report = [_stored(each) if isinstance(each, Task) else each for each in layout], lambda _: None
    with ExitStack() as on_error, _watching(job.sources):
        writer = on_error.enter_context(IndexWriter(job.index_path))
        writing = _Writing(job, writer, report)
        for records in plan:
            if isinstance(records, Stored):
                writing.copy(records)
            elif isinstance(records, Grown):
                writing.copy_columns(records)
                writing.scan([records.source], records.pieces(job, workers))
            else:
                writing.scan(records.sources, job.scan(records.sources, workers))
        path = writing.complete(workers)
        on_error.pop_all()
    return Written(writer, path, writing.remarks, tasks)


class _Writing:
    """An index of which some sources are written."""

    def __init__(self, job: Job, writer: IndexWriter, report: Report) -> None:
        self._job, self._writer, self._report = job, writer, report
        self._done: list[IndexedSource] = []
        self._bounds = BoundsWriter(writer) if job.has_bounds else None
        self._blocks = BlocksWriter(writer)
        self._columns = {name: writer.spool() for name in (*job.measuring.columns, *job.computed)}
        self._keys: Spool | None = None
        self._hashes = lru_cache(1)(partial(hashes_by_record, scratch=writer.scratch))
        self._filled = [0] * len(job.measuring.columns)  # see `Piece.filled`
        self.remarks: list[str] = []
        """See `End.remark`."""

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
                found = f"{tally.scanned} of source {piece.source}"
                raise self._job.incomplete(f"{size} bytes of source {number}", found)
            self._done.append(self._finished(sources[number], tally, piece.end))
            tally = _Tally()

    def _add(self, piece: Piece) -> None:
        self._add_filled(piece.filled)
        with self._writer.writing():
            for spool, (cell, cells) in zip(self._columns.values(), piece.columns, strict=True):
                spool.append(cell, cells)
            if piece.keys is not None:
                self._keys = self._keys or self._writer.spool()
                self._keys.append(U64.cell, piece.keys)
        if self._bounds is not None:
            self._bounds.append(piece.starts)
        self._blocks.append(piece.blocks)

    def _add_filled(self, filled: Sequence[int]) -> None:
        if any(filled):
            self._filled = [sum(each) for each in zip(self._filled, filled, strict=True)]

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
        if has_keys(base):
            self._keys = self._keys or self._writer.spool()
            if stored.records:
                with self._writer.writing():
                    copy_hashes(self._hashes(base), stored.records, self._keys)
        if self._bounds is not None:
            self._bounds.copy(stored.groups())
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
            number_type = BY_DTYPE[base.sections[COLUMN + name].dtype]
            begin, end = records.start * number_type.width, records.stop * number_type.width
            pieces = partial(base.pieces, COLUMN + name, begin, end)
            spool.append_stored(number_type, len(records), pieces, is_part=len(records) < base.records)

    def complete(self, workers: int) -> str:
        """Finish the index, once all sources are written; return where it lies."""
        job, sources = self._job, self._job.sources
        if len(self._done) != len(sources):
            raise job.incomplete(f"{len(sources)} sources", str(len(self._done)))
        if job.chosen.is_text and not job.is_part:
            _check_something_is_left(job, self._done, self._filled)
        self._finish_columns()
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
            **({"part": {"filled": self._filled, "remarks": self.remarks}} if job.is_part else {}),
        }
        return self._writer.complete(metadata, sum(source.records for source in done))

    def _finish_columns(self) -> None:
        """Write the columns, the order of lengths, and the keys; those that were computed last, as they were added."""
        measured = [name for name in self._columns if name not in self._job.computed]
        for name in measured:
            self._writer.write_column(name, self._columns[name])
        if "length" in measured:
            self._writer.write_length_order()
        if self._keys is not None:
            write_keys(self._writer, self._keys)
        for name in self._job.computed:
            self._writer.write_column(name, self._columns[name])
            if name == "length":
                self._writer.write_length_order()


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
        """Add the sizes of the records that end at these bounds."""
        self._smallest, self._largest = _native.record_sizes(bounds, self._previous, self._smallest, self._largest)

    def finish(self, source: Source, end: End, job: Job, compression: Compression | None) -> IndexedSource:
        """Return what the index holds of the source.

        Raises:
          FormatError: its records do not lie one after another.
        """
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


# ---- parts, which workers of an engine write ----------------------------------------------------------------------


def _layout(job: Job, plan: Plan, engine: Engine) -> Iterator[Stored | Grown | Task]:
    """Yield a plan with tasks in the place of scans."""
    numbers = {source.path: number for number, source in enumerate(job.sources)}
    for step in plan:
        if not isinstance(step, Scan):
            yield step
            continue
        for group in groups([source.size for source in step.sources]):
            sources = step.sources[group.start : group.stop]
            yield _task(job, sources, numbers[sources[0].path], engine)


def _task(job: Job, sources: Sequence[Source], first: int, engine: Engine) -> Task:
    """Return the task for some sources of a job, the first of which has a number there."""
    listed, end = job.chosen.per_source, first + len(sources)
    parameters = {name: each[first:end] if name in listed else each for name, each in job.parameters.items()}
    absolute = [source._replace(path=os.path.abspath(source.path)) for source in sources]
    arguments = absolute, job.chosen.name, parameters, job.measuring.describe(), job.hashes
    path = os.path.join(engine.directory_for(job.index_path), part_name(arguments, INDEX_SUFFIX))
    return Task(path, build_part, (*arguments, engine.workers))


def build_part(
    path: str,
    sources: list[Source],
    format_name: str,
    parameters: dict[str, Any],
    measuring: Mapping[str, Any],
    hashes: bool,
    workers: int,
) -> None:
    """Write the index of some sources, in a worker.

    Raises:
      SourceError: one is missing on this host, or has another size or time.
    """
    for source in sources:
        check_unchanged(source)
    chosen = formats.by_name(format_name)
    job = Job(path, sources, chosen, parameters, Measuring.of(measuring), hashes=hashes, is_part=True)
    written(job, [Scan(sources)], workers).put()


def _stored(task: Task) -> Stored:
    """Return the records of a part."""
    sources = task.arguments[0]
    index = Index(task.path, Roots(named=[source.path for source in sources]))
    with index.reporting_malformed_metadata():
        return Stored(index, range(len(sources)), **index.metadata["part"])


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
    """Raise an error where the options leave out all records of a text, or none has a column.

    Args:
      done: the sources as the index will have them.
      filled: see `Piece.filled`.
    """
    records, skipped = sum(source.records for source in done), sum(source.skipped for source in done)
    columns = list(job.measuring.columns.values())
    empty = [column for column, count in zip(columns, filled, strict=True) if count == records > 0]
    if not empty and (records or not skipped):
        return
    bad, path = sum(source.bad.lines for source in done), job.sources[0].path
    if bad == skipped and not records:
        raise DecodeError(
            f"{path}: expected JSON in one line or more, found it in 0 of {bad:,}; give "
            f"{either('--format F', 'format=...')} if it is not JSON Lines"
        )
    wanted = " and ".join(repr(column.text) for column in empty or columns)
    raise ColumnError(f"{path}: expected one record or more with {wanted}, found 0 of {records or skipped - bad:,}")
