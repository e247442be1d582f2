"""Write an index from the records of its sources, with its tables of keys."""

import mmap
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import lru_cache, partial
from typing import Any, NamedTuple

from .. import __version__, _native
from ..compression.blocks import BlocksWriter
from ..errors import ColumnError, DecodeError, Error, FormatError, SourceError
from ..formats.expressions import Measuring
from ..formats.format import Format, Piece
from ..storage.current import fingerprint, full_hash
from ..storage.index_file import OF_COMPRESSED, Index
from ..storage.numbers import BY_DTYPE, U32, U64, Spool, order_type, sort_digits
from ..storage.places import Files, Places, relative_to_index
from ..storage.sections import (
    BOUNDS,
    COLUMN,
    GROUP,
    WIDTHS,
    BadLines,
    IndexedSource,
    records_in_group,
    unpacked,
)
from ..storage.sources import INDEX_SUFFIX, Source, changed, check_unchanged
from ..storage.workers import in_threads
from ..storage.writer import IndexWriter
from .executors import Engine, Task, groups, part_name

Report = Callable[[int], object]  # called with the bytes of sources processed since the last call
_GROWN = 1 << 17  # records of a grown source copied at a time
_KEYS = 1 << 20  # hashes of keys processed at a time


class Job(NamedTuple):
    """One index to write; records may be copied from the existing index."""

    index_path: str
    sources: list[Source]
    chosen: Format
    parameters: dict[str, Any]
    measuring: Measuring
    before: Index | None = None
    hashes: bool = False  # whether the index has a hash of each source
    computed: Sequence[str] = ()
    """Further columns, copied from other indexes that have them for all records, in the order of the file."""
    functions: Mapping[str, str] = {}  # of `computed` columns: see `Index.functions`
    name: str = ""  # of the index, if that is not its path: names of sources are relative to it
    check: Callable[[Source], object] = check_unchanged  # raises SourceError for a source that changed
    is_part: bool = False
    """Whether this index is a part of another one, or only compared with one: then options may skip all records."""

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
    """All records of some consecutive sources, stored in another index; only parts have `filled` and `remarks`."""

    base: Index
    sources: range  # their numbers there
    filled: Sequence[int] = ()  # for each measured column, how many records lack it
    remarks: Sequence[str] = ()

    @property
    def records(self) -> range:
        return range(self.base.firsts[self.sources.start], self.base.firsts[self.sources.stop])


class Grown(NamedTuple):
    """A source that grew after a whole record: old records are copied from an index, new ones scanned."""

    base: Index
    number: int  # of the source there
    source: Source

    @property
    def records(self) -> range:
        return range(self.base.firsts[self.number], self.base.firsts[self.number + 1])

    def pieces(self, job: Job, workers: int) -> Iterator[Piece]:
        """Yield the pieces of the whole source; pieces of kept records have no columns."""
        old = self.base.sources[self.number]
        self.base.verify_sections(BOUNDS)
        none = memoryview(b"").cast("Q")
        columns = tuple((U64.cell, none) for _ in job.measuring.columns)
        yield Piece(0, none, columns, old.skipped, old.size, None, bad=old.bad.lines, bad_at=old.bad.first)
        for at in range(0, old.records, _GROWN):
            bounds = self.base.bounds(self.number, at, min(at + _GROWN, old.records))
            yield Piece(0, bounds, columns, 0, 0, None)
        for piece in job.scan([self.source._replace(begin=old.size)], workers):
            end = piece.end and piece.end._replace(lines=piece.end.lines + old.lines)
            yield piece._replace(end=end, bad_at=tuple((line + old.lines, byte) for line, byte in piece.bad_at))


Plan = Sequence[Scan | Stored | Grown]  # where the records of an index come from, in the order of its sources


def written(
    job: Job, plan: Plan, workers: int, report: Report = lambda _: None, engine: Engine | None = None
) -> "_Writing":
    """Write an index beside its place; it is removed unless its `writer` moves it there.

    Without an engine, threads scan. An engine scans whole sources; this process scans the new end of a grown source.
    """
    tasks: list[Task] = []
    if engine is not None:
        with IndexWriter(job.index_path):
            pass  # fail before the work if the place is not writable
        steps: list[Stored | Grown | Task] = []
        first = 0
        for step in plan:
            sources = range(first, first + (1 if isinstance(step, Grown) else len(step.sources)))
            steps += _tasks(job, sources, engine) if isinstance(step, Scan) else [step]
            first = sources.stop
        tasks = [step for step in steps if isinstance(step, Task)]
        engine.run(tasks, job.index_path, lambda task: report(sum(source.size for source in task.arguments[0])))
        plan, report = [_stored(step) if isinstance(step, Task) else step for step in steps], lambda _: None
    with ExitStack() as on_error, _watching(job):
        writer = on_error.enter_context(IndexWriter(job.index_path))
        writer.restrict(source.path for source in job.sources)
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
    """An index that is being written, source by source."""

    def __init__(self, job: Job, writer: IndexWriter, tasks: list[Task], report: Report) -> None:
        self.writer, self.tasks = writer, tasks
        self.path = ""  # where the complete index lies
        self.remarks: list[str] = []
        self._job, self._report = job, report
        self._done: list[IndexedSource] = []
        self._bounds = BoundsWriter(writer) if job.has_bounds else None
        self._blocks = BlocksWriter(writer)
        self._columns = {name: writer.spool() for name in (*job.measuring.columns, *job.computed)}
        self._keys: Spool | None = None
        self._hashes = lru_cache(1)(partial(_hashes_by_record, scratch=writer.scratch))
        self._filled: Counter[int] = Counter()  # by column number: see `Piece.filled`

    def scan(self, sources: Sequence[Source], pieces: Iterable[Piece]) -> None:
        """Append what a scan of some sources finds."""
        left = iter(pieces)
        for number, source in enumerate(sources):
            self._done.append(self._scanned(number, source, left))
        for piece in left:
            raise self._incomplete("no more", piece.source, piece.scanned)

    def _scanned(self, number: int, source: Source, pieces: Iterator[Piece]) -> IndexedSource:
        """Append the pieces of one source; return its description for the index."""
        records = skipped = bad = scanned = 0
        bad_at: tuple[tuple[int, int], ...] = ()
        last = None
        for last in pieces:
            self._add(last)
            self._report(last.scanned)
            records, skipped, bad = records + last.records, skipped + last.skipped, bad + last.bad
            bad_at = (*bad_at, *last.bad_at)[: _native.MOST_LISTED]
            scanned += last.scanned
            if last.end is not None:
                break
        if last is None or last.end is None or last.source != number or scanned != source.size:
            raise self._incomplete(f"{source.size} bytes of source {number}", last.source if last else number, scanned)
        self._job.check(source)
        end = last.end
        self.remarks += [end.remark] if end.remark else []
        compression = None
        if source.codec:
            compression = self._blocks.finish(source.codec, source.size, end.content or end.end)
        if self._bounds is not None:
            width, smallest, largest = self._bounds.finish(end.end)
        else:
            width, smallest = 0, self._job.parameters["record_bytes"]
            largest = smallest
        size = source.size if compression is None else compression.size
        if records:
            self._job.measuring.check_size(source, largest)
        if records and largest > size:
            raise FormatError(
                f"{source.path}: DAMAGED: expected records one after another, found one of {largest} bytes "
                f"in {'a file' if compression is None else 'content'} of {size}; write or copy it again"
            )
        return IndexedSource(
            path=relative_to_index(source.path, self._job.name or self._job.index_path),
            size=source.size,
            mtime_ns=source.mtime_ns,
            fingerprint=fingerprint(source.path).hex,
            records=records,
            lines=end.lines,
            smallest=smallest if records else 0,
            largest=largest if records else 0,
            skipped=skipped,
            first=end.first,
            bad=BadLines(bad, bad_at),
            width=width,
            compression=compression,
        )

    def _incomplete(self, expected: str, number: int, scanned: int) -> Error:
        what = f"incomplete scan of format {self._job.chosen.name!r}"
        found = f"expected {expected}, found {scanned} of source {number}"
        return Error(f"{self._job.index_path}: {what}: {found}; nothing was changed")

    def _add(self, piece: Piece) -> None:
        self._filled.update(dict(enumerate(piece.filled)))
        for spool, (cell, cells) in zip(self._columns.values(), piece.columns, strict=True):
            spool.append(cell, cells)
        if piece.keys is not None:
            self._keys = self._keys or self.writer.spool()
            self._keys.append(U64.cell, piece.keys)
        if self._bounds is not None:
            self._bounds.append(piece.starts)
        self._blocks.append(piece.blocks)

    def copy(self, stored: Stored) -> None:
        """Append records of another index."""
        base, job, records = stored.base, self._job, stored.records
        self._filled.update(dict(enumerate(stored.filled)))
        self.remarks += stored.remarks
        self.copy_columns(stored)
        if "key_hashes" in base.sections:
            self._keys = self._keys or self.writer.spool()
            hashes = memoryview(self._hashes(base))[: records.stop * U32.width]
            for begin in range(records.start * U32.width, len(hashes), _KEYS):
                self._keys.append_bytes(hashes[begin : begin + _KEYS], U32)
        if self._bounds is not None:
            first = base.sections[BOUNDS].offset
            begin, end = (base.bounds_at(number) - first for number in (stored.sources.start, stored.sources.stop))
            self._bounds.copy(base.pieces(BOUNDS, begin, end))
        self._blocks.copy(base, stored.sources)
        for number in stored.sources:
            source, found = job.sources[len(self._done)], base.sources[number]
            job.check(source)
            path = relative_to_index(source.path, job.name or job.index_path)
            hash_ = found.xxh3_128 if job.hashes else ""
            self._done.append(found._replace(path=path, xxh3_128=hash_, etag=source.etag))
            self._report(source.size)

    def copy_columns(self, kept: Stored | Grown) -> None:
        """Append the columns of records of another index."""
        base, records = kept.base, kept.records
        for name, spool in self._columns.items():
            kind = BY_DTYPE[base.sections[COLUMN + name].dtype]
            pieces = partial(base.pieces, COLUMN + name, records.start * kind.width, records.stop * kind.width)
            spool.append_stored(kind, len(records), pieces)

    def complete(self, workers: int) -> None:
        """Finish the index, once all sources are written."""
        job = self._job
        filled = [self._filled[number] for number in range(len(job.measuring.columns))]
        if job.chosen.is_text and not job.is_part:
            _check_something_is_left(job, self._done, filled)
        self._finish_columns()
        self._blocks.write()
        if job.hashes:
            self._hash_sources(workers)
        self.writer.kind = OF_COMPRESSED if any(source.codec for source in job.sources) else 0
        metadata = {
            "builder": f"mmapds {__version__}",
            "format": job.chosen.name,
            "parameters": job.parameters,
            "sources": [source.describe() for source in self._done],
            "columns": job.measuring.describe(),
            **({"functions": job.functions} if job.functions else {}),
            **({"part": {"filled": filled, "remarks": self.remarks}} if job.is_part else {}),
        }
        self.path = self.writer.complete(metadata, sum(source.records for source in self._done))

    def _finish_columns(self) -> None:
        """Write the measured columns, the order of lengths, the keys, then the computed columns."""
        measured = self._job.measuring.columns
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

    def _hash_sources(self, workers: int) -> None:
        """Add the hash of each source that lacks it; each thread hashes whole sources."""
        lacking = [number for number, source in enumerate(self._done) if not source.xxh3_128]
        sources = [self._job.sources[number] for number in lacking]
        digests = in_threads(lambda source: full_hash(source.path, self._report), sources, workers=workers)
        for number, source, digest in zip(lacking, sources, digests, strict=True):
            if (digest.size, digest.mtime_ns) != (source.size, source.mtime_ns):
                raise changed(source)
            self._done[number] = self._done[number]._replace(xxh3_128=digest.hex)


class BoundsWriter:
    """Writes the section of bounds, source by source, in one pass.

    The first groups of a source have the smallest width. If a group does not fit, all groups of the source are removed
    and written again with the next width. This mostly happens early, as records of a source are alike.
    """

    def __init__(self, writer: IndexWriter) -> None:
        self._writer = writer
        writer.begin_section(BOUNDS, U64.dtype)
        self._begin_source()

    def _begin_source(self) -> None:
        self._begin(WIDTHS[0])
        self._previous: int | None = None  # where the last record begins
        self._sizes = 2**64 - 1, 0  # of the smallest record, and of the largest

    def _begin(self, width: int) -> None:
        self._width, self._mark = width, self._writer.mark()
        self._held = memoryview(b"").cast("Q")  # bounds of an incomplete group

    def append(self, bounds: memoryview) -> None:
        """Append where the next records of the current source begin, uint64."""
        if len(bounds):
            self._sizes = _native.record_sizes(bounds, self._previous, *self._sizes)
            self._previous = bounds[-1]
            self._pack(bounds)

    def _pack(self, bounds: memoryview) -> None:
        groups, records = _native.pack_bounds(self._width, self._held, bounds), records_in_group(self._width)
        if groups:
            self._writer.write(groups)
            bounds = bounds[len(groups) // GROUP * records - len(self._held) :]
            self._held = self._held[:0]
        if len(self._held) + len(bounds) > records:
            self._widen()
            self._pack(bounds)
        else:
            self._held = memoryview(self._held.tobytes() + bounds.tobytes()).cast("Q")

    def _widen(self) -> None:
        """Write the groups of the current source again, with the next width."""
        width, held, groups = self._width, self._held, self._writer.take_back(self._mark)
        self._begin(WIDTHS[WIDTHS.index(width) + 1])
        for piece in groups.chunks():
            self._pack(unpacked(width, piece))
        self._pack(held)

    def finish(self, end: int) -> tuple[int, int, int]:
        """End the current source at byte `end`; return its width, and the sizes of its smallest and largest records."""
        last = end.to_bytes(U64.width, "little")
        self.append(memoryview(last).cast("Q"))
        while not (group := self._last_group(last)):
            self._widen()
        found = self._width, *self._sizes
        self.copy([group])
        return found

    def copy(self, groups: Iterable[bytes | bytearray]) -> None:
        """Append the groups of whole sources of another index, or the last group of the current source."""
        for piece in groups:
            self._writer.write(piece)
        self._begin_source()

    def _last_group(self, last: bytes) -> bytearray:
        """Return the held bounds as a group, padded with the last one; empty if the width does not fit."""
        return _native.pack_bounds(
            self._width, self._held, last * (records_in_group(self._width) + 1 - len(self._held))
        )


# ---- parts, which workers of an engine write ----------------------------------------------------------------------


def _tasks(job: Job, numbers: range, engine: Engine) -> Iterator[Task]:
    """Yield the tasks for some neighbouring sources of a job."""
    for group in groups([job.sources[number].size for number in numbers]):
        own = slice(numbers.start + group.start, numbers.start + group.stop)
        in_turn = job.chosen.per_source
        parameters = {name: each[own] if name in in_turn else each for name, each in job.parameters.items()}
        absolute = [source._replace(path=os.path.abspath(source.path)) for source in job.sources[own]]
        described = job.measuring.describe()
        covered = absolute, job.chosen.name, parameters, described, job.hashes
        path = os.path.join(engine.directory_for(job.index_path), part_name(covered, INDEX_SUFFIX))
        part = Job(path, absolute, job.chosen, parameters, Measuring.of(described), hashes=job.hashes, is_part=True)
        yield Task(path, build_part, (absolute, part, engine.workers))


def build_part(path: str, sources: list[Source], job: Job, workers: int) -> None:
    """Write the index of some sources, in a worker; their sizes and times must be unchanged."""
    for source in sources:
        check_unchanged(source)
    with written(job._replace(index_path=path), [Scan(sources)], workers).writer as writer:
        writer.place()


def _stored(task: Task) -> Stored:
    """Return the records of a part."""
    sources = task.arguments[0]
    index = Index(task.path, Places(Files().allow(source.path for source in sources)))
    with index.reporting_malformed_metadata():
        return Stored(index, range(len(sources)), **index.metadata["part"])


# ---- keys: the index holds hashes, the sources hold the keys ------------------------------------------------------


def _write_keys(writer: IndexWriter, spool: Spool) -> None:
    """Append the tables that find records by the u32 hash of their key: see docs/index-file.md."""
    import numpy as np  # start-up time: most formats have no keys

    by_record = np.frombuffer(writer.scratch(U32.width * spool.count), U32.dtype, spool.count)
    done = 0
    for chunk in spool.chunks():
        by_record[done : done + len(chunk) // U32.width] = chunk.cast(U32.code)
        done += len(chunk) // U32.width
    dtype, order = order_type(spool.count).dtype, sort_digits(by_record, U32.width, 32, writer.scratch)
    ordered = np.frombuffer(order, dtype, spool.count)
    writer.write_array("key_records", dtype, memoryview(order)[: ordered.nbytes])
    pieces = (by_record[ordered[begin : begin + _KEYS]].data for begin in range(0, spool.count, _KEYS))
    writer.write_section("key_hashes", U32.dtype, pieces)


def _hashes_by_record(index: Index, scratch: Callable[[int], mmap.mmap]) -> mmap.mmap:
    """Return the hash of every record's key, in the order of records; `scratch` allocates the memory."""
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
    """Yield the records whose keys have the same hash as `key`, ascending, without a list of them."""
    if "key_hashes" not in index.sections:
        raise FormatError(f"{index.path}: expected records with keys (format 'tar'), found format {index.format!r}")
    hashes, records = index.sections["key_hashes"], index.sections["key_records"]
    width = BY_DTYPE[records.dtype].width
    try:
        wanted = _native.tar_hash(key.encode(errors="surrogateescape"))
    except UnicodeEncodeError:  # a lone surrogate: no key in UTF-8 has it
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
    """Raise SourceError for a file that became shorter after it was opened."""
    try:
        yield
    except EOFError as error:
        raise SourceError(f"{error}; run again (it became shorter while it was read, or its disk fails)") from None


@contextmanager
def _watching(job: Job) -> Iterator[None]:
    """If the block fails because a source changed meanwhile, raise a SourceError that says so."""
    try:
        with reading():
            yield
    except (SourceError, FormatError, ColumnError, DecodeError):
        for source in job.sources:
            job.check(source)
        raise


def _check_something_is_left(job: Job, done: Sequence[IndexedSource], filled: Sequence[int]) -> None:
    """Raise an error if options skip all records of a text, or no record has a column; see `Piece.filled`."""
    records, skipped = sum(source.records for source in done), sum(source.skipped for source in done)
    bad = sum(source.bad.lines for source in done)
    path, columns = job.sources[0].path, job.measuring.columns.values()
    if skipped and not records and bad == skipped:
        what = "JSON with fields of the right type" if columns else "JSON"
        raise DecodeError(f"{path}: expected {what} in one line or more, found it in 0 of {bad:,}")
    lacking = [column.text for column, count in zip(columns, filled, strict=True) if count == records > 0]
    if lacking or (skipped and not records):
        wanted = " and ".join(map(repr, lacking or [column.text for column in columns]))
        raise ColumnError(f"{path}: expected one record or more with {wanted}, found 0 of {records or skipped - bad:,}")
