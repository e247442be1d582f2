"""Whether an index is right: its checksums, and its sources scanned again."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from .. import formats
from ..errors import Error, FormatError
from ..formats.format import Format, OptionError, Piece, is_same_parameter
from ..storage.blocks import BlockStart, BlockTable, BlockTally, end_of, unpacked_point
from ..storage.current import other_content, stat_source
from ..storage.fingerprints import COVERED, WAITING, Digest, each, fingerprint, full_hash
from ..storage.index_file import Index
from ..storage.numbers import BY_CELL, differences, numbers, same_numbers
from ..storage.sections import GROUP, gaps, groups_of, records_in_group
from ..storage.sources import Source
from ..storage.threads import cores
from .build import ColumnRequest
from .findings import Findings
from .keys import check_keys, has_hashes, has_keys
from .length_order import check_length_order
from .write import Tally, reading

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Report = Callable[[int], object]

_WHERE_MISSING = {"truncated": "error", "columns": {}}  # what an index means that lacks a parameter
_GROUPS = 1 << 14  # of bounds, that are compared at a time
_NEEDLESS = ("idx",)  # parameters that no reader needs


def verify(index: Index) -> None:
    """Check an index as `examine` does.

    Raises:
      FormatError, StaleIndexError, SourceError: the first problem.
    """
    for problem in examine(index).problems:
        raise problem.error


def examine(index: Index, *, workers: int | None = None, report: Report = lambda _: None) -> Findings:
    """Compare an index with its sources: all that can be derived from them is derived again.

    That is every bound and every column with an expression, the parameters and the totals of sources, the order of
    lengths, and keys. The content of a source is compared by its hash, if the index has it; else in the blocks of its
    fingerprint, by where every record begins, and by the checksums of formats that have them. Columns that were
    computed in Python have a checksum alone.

    Args:
      workers: threads; all cores by default.
      report: called with the number of bytes that were read since the last call, of `work(index)` in all.
    """
    workers = workers or cores()
    findings = Findings(index)
    for name, section in index.sections.items():
        with findings.catching("sections"):
            index.verify_section(name)
        report(section.size)
    found = _check_sources(findings, workers, report)
    whole, usable = len(found) == len(index.sources), True
    if whole:
        usable = False
        with findings.catching("parameters"):
            usable = _check_parameters(findings)
    else:
        findings.not_checked.append("parameters, keys, and the records of the sources named above")
    if not usable:  # a scan would stumble over the same
        findings.not_checked.append("records and keys, as the parameters are damaged")
        found = []
    hashes = _check_records(findings, found, workers, report) if usable else None
    with findings.catching("length_order"):
        check_length_order(findings)
    if hashes is not None and whole:
        with findings.catching("keys"):
            check_keys(findings, hashes)
    for source in (_source(index, number) for number in found):
        with findings.catching("content", source.path), reading():
            chosen = formats.of_index(index)
            chosen.verify([source], index.parameters)
            report(source.size if _has_checksums(chosen) else 0)
            if chosen.lacks_checksums(source):
                findings.not_checked.append(f"checksums of the records of {source.path}, cut off with the file's end")
    _note_unchecked(findings)
    return findings


def work(index: Index) -> int:
    """Return how many bytes `examine` reads."""
    size = sum(source.size for source in index.sources)
    hashed = sum(source.size for source in index.sources if source.xxh3_128)
    checked = size if _has_checksums(formats.FORMATS.get(index.format)) else 0
    return sum(section.size for section in index.sections.values()) + size + hashed + checked


def has_records(index: Index, members: Sequence[int], *, workers: int, report: Report) -> bool:
    """Whether a scan of some sources finds just the records, columns and keys that the index has of them."""
    findings = Findings(index)
    hashes = _check_records(findings, members, workers, report)
    if findings.count:
        return False
    try:
        return hashes is None or not has_keys(index) or has_hashes(index, members, hashes)
    except FormatError:  # the keys of the index are damaged
        return False


def _has_checksums(chosen: Format | None) -> bool:
    return chosen is not None and type(chosen).verify is not Format.verify


def _source(index: Index, number: int) -> Source:
    source = index.sources[number]
    codec = source.compression.codec if source.compression else ""
    return Source(index.source_path(number), source.size, source.mtime_ns, codec=codec)


def _check_sources(findings: Findings, workers: int, report: Report) -> list[int]:
    """Compare sizes, fingerprints and hashes; return the sources that may be read and have the size that they had."""
    index, there = findings.index, []
    for number in range(len(index.sources)):
        path = index.source_path(number)
        try:
            formats.check_beside(index, index.readable_path(number))
            index.check_size(number, stat_source(index, number).st_size)
        except Error as error:
            findings.add("sources", error, path)
        else:
            there.append(number)

    def attempt(digest: Callable[[str], Digest], path: str) -> Digest | Error:
        try:
            return digest(path)
        except Error as error:
            return error

    def compare(members: Sequence[int], *, full: bool) -> None:
        paths = [_source(index, number).path for number in members]
        check, digest, threads = "fingerprints", fingerprint, WAITING
        if full:
            check, digest, threads = "hashes", partial(full_hash, report=report), workers
        for number, found in zip(members, each(partial(attempt, digest), paths, workers=threads), strict=True):
            with findings.catching(check, index.source_path(number)):
                if isinstance(found, Error):
                    raise found
                if error := other_content(index, number, found, full=full):
                    raise error

    compare(there, full=False)
    compare([number for number in there if index.sources[number].xxh3_128], full=True)
    return there


def _check_parameters(findings: Findings) -> bool:
    """Compare the parameters with those of the sources; return whether a scan can use them.

    Raises:
      FormatError: they are malformed, or of a format that this mmapds does not have.
    """
    index = findings.index
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
    except Error as error:  # of a source; the scan tells the others apart
        findings.add("parameters", error)
        return True
    for name, value in expected.items():
        found = index.parameters.get(name, _WHERE_MISSING.get(name))
        if not is_same_parameter(value, found) and (found is not None or name not in _NEEDLESS):
            what = f"{name} = {found!r}, expected {value!r}, as {paths[0]} has it"
            findings.add("parameters", index.damaged(what))
    return True


def _check_records(
    findings: Findings, members: Sequence[int], workers: int, report: Report
) -> "NDArray[np.uint32] | None":
    """Scan some sources again and compare their records; return the hashes of all keys, if there are some.

    A scan ends where a source is damaged; it then goes on with the next one.
    """
    import numpy as np  # start-up time: building an index does without

    index = findings.index
    comparison = None
    with findings.catching("parameters"):
        chosen = formats.of_index(index)
        measuring = ColumnRequest().measuring(index)
        comparison = _Comparison(findings, list(measuring.columns))
    if comparison is None:
        return None
    left, is_whole = list(members), True
    while left:
        scanned = 0
        try:
            with index.reporting_malformed_metadata(), reading():
                sources = [_source(index, number) for number in left]
                for piece in chosen.scan(sources, index.parameters, measuring, workers=workers):
                    comparison.check(piece, left[piece.source])
                    report(piece.scanned)
                    scanned += piece.end is not None
                if scanned < len(left):
                    raise index.damaged(f"expected a scan of {len(left)} sources, found one of {scanned}")
        except Error as error:
            findings.add("records", error, index.source_path(left[scanned]))
            comparison.forget()
            is_whole = False
        left = left[scanned + 1 :]
    if not is_whole or not comparison.hashes:
        return None
    return np.frombuffer(comparison.hashes, np.uint64).astype(np.uint32)


class _Comparison:
    """Compares an index with the pieces of a new scan, one after another."""

    def __init__(self, findings: Findings, columns: list[str]) -> None:
        self.hashes = bytearray()
        """Of the keys of all records, u64 each; empty in formats without keys."""
        self._findings = findings
        self._index = index = findings.index
        self._columns = [
            (name, dtype, numbers(dtype, data)) for name in columns for dtype, data in [index.column(name)]
        ]
        self.forget()

    def forget(self) -> None:
        """Begin with another source."""
        self._tally = Tally()
        self._record = 0  # records of the source at hand that were met
        self._blocks = BlockTally()

    def check(self, piece: Piece, number: int) -> None:
        """Compare a piece of source `number` with the bounds and the numbers of the index."""
        path = self._index.source_path(number)
        known = max(self._index.sources[number].records - self._record, 0)
        count = min(piece.records, known)
        wrong = self._check_bounds(piece, number, path, known)
        self._check_columns(piece, number, path, count, wrong)
        self._check_blocks(piece, number, path)
        self._record += piece.records
        self._tally.add(piece)
        if piece.keys is not None:
            self.hashes += piece.keys.cast("B")
        if piece.end is not None:
            self._check_end(piece, number, path)
            self._check_totals(self._tally.totals(piece.end, self._index.parameters), number, path)
            self.forget()

    def _check_bounds(self, piece: Piece, number: int, path: str, known: int) -> set[int]:
        """Check where records begin; return those of the piece that begin elsewhere."""
        count = min(len(piece.starts), known)
        stored, found = self._index.bounds(number, self._record, self._record + count), piece.starts[:count]
        if stored == found:
            return set()
        import numpy as np  # start-up time: keeping an index that is right does without

        wrong = np.flatnonzero(np.frombuffer(stored, np.uint64) != np.frombuffer(found, np.uint64)[: len(stored)])

        def describe(at: int) -> tuple[str, int]:
            record = self._record + at
            return f"record {record} of {path} begins at byte {stored[at]}, expected byte {found[at]}", record

        self._findings.add_each("records", wrong.tolist(), describe, path)
        return set(wrong.tolist())

    def _check_gaps(self, number: int, path: str) -> None:
        """Check where the last record of each group of bounds ends; all others end where the next one begins."""
        index, width = self._index, self._index.sources[number].width
        count, each = groups_of(width, index.sources[number].records), records_in_group(width)
        for first in range(0, count, _GROUPS):
            groups = min(_GROUPS + 1, count - first)  # with the first of the next piece
            found = gaps(width, index.read(index.bounds_at(number) + first * GROUP, groups * GROUP))
            ends = {(first + place + 1) * each - 1: (end, expected) for place, end, expected in found}

            def describe(record: int, ends: dict[int, tuple[int, int]] = ends) -> tuple[str, int]:
                end, expected = ends[record]
                return f"record {record} of {path} ends at byte {end}, expected byte {expected}", record

            self._findings.add_each("records", list(ends), describe, path)

    def _check_blocks(self, piece: Piece, number: int, path: str) -> None:
        """Check where the blocks of a compressed source begin, in the file and in the content, and their totals."""
        compression = self._index.sources[number].compression
        if compression is None:
            return
        first, starts = self._blocks.count, list(piece.blocks)
        self._blocks.add(starts)
        if piece.end is not None:
            size = self._index.sources[number].size
            end = end_of(compression.codec, size, piece.end.content or piece.end.end)
            starts.append(end)
            # The same windows take other bytes where another zlib deflates them.
            expected = self._blocks.finish(compression.codec, end)._replace(points=compression.points)
            if expected != compression:
                what = f"compression of {path} = {compression._asdict()}, expected {expected._asdict()}"
                self._findings.add("blocks", self._index.damaged(what), path)
        pairs = zip(starts, BlockTable(self._index, number).starts(first), strict=False)
        for block, (start, found) in enumerate(pairs, first):
            if what := _difference(compression.codec, start, found):
                self._findings.add("blocks", self._index.damaged(f"block {block} of {path} {what}"), path)

    def _check_end(self, piece: Piece, number: int, path: str) -> None:
        """Check how many records a source has, and where they end."""
        assert piece.end is not None
        index, records = self._index, self._index.sources[number].records
        what = ""
        if index.has_bounds != piece.end.has_bounds:
            kinds = "records of one size", "bounds of records"
            expected, found = kinds if index.has_bounds else kinds[::-1]
            what = f"expected {expected} for {path}, found {found}"
        elif self._record != records:
            what = f"expected {self._record} records of {path}, found {records}"
        elif index.has_bounds and (end := index.end(number)) != piece.end.end:
            what = f"the last record of {path} ends at byte {end}, expected byte {piece.end.end}"
        elif index.has_bounds:
            self._check_gaps(number, path)
        if what:
            self._findings.add("totals", index.damaged(what), path)

    def _check_totals(self, expected: dict[str, Any], number: int, path: str) -> None:
        """Check what the index says of a whole source."""
        found = self._index.sources[number]._asdict()
        for name, value in expected.items():
            if name != "records" and found[name] != value:
                what = f"{name} of {path} = {found[name]}, expected {value}"
                self._findings.add("totals", self._index.damaged(what), path)

    def _check_columns(self, piece: Piece, number: int, path: str, count: int, wrong: set[int]) -> None:
        """Check the numbers of the first records of a piece, but not of those that begin elsewhere."""
        begin = self._index.firsts[number] + self._record
        for (name, dtype, values), (cell, cells) in zip(self._columns, piece.columns, strict=True):
            stored, expected = values[begin : begin + count], cells[:count]
            if same_numbers(dtype, stored, cell, expected):
                continue
            shown = expected.cast("B").cast(BY_CELL[cell].code)
            describe = self._describe_number(name, path, shown, stored)
            places = [at for at in differences(dtype, stored, cell, expected) if at not in wrong]
            self._findings.add_each("columns", places, describe, path)

    def _describe_number(
        self, name: str, path: str, expected: "memoryview[Any]", found: "memoryview[Any]"
    ) -> Callable[[int], tuple[str, int]]:
        first = self._record
        return lambda at: (
            f"column {name!r} differs from {path} at record {first + at}: expected {expected[at]}, found {found[at]}",
            first + at,
        )


def _difference(codec: str, expected: BlockStart, found: BlockStart) -> str:
    """Return what is wrong with the place where a block begins; nothing if it is right."""
    unit = "bit" if codec == "gzip" else "byte"
    if found[:2] != expected[:2]:
        return (
            f"begins at {unit} {found.file}, with byte {found.content} of the content, expected {unit} {expected.file} "
            f"and byte {expected.content}"
        )
    points = found.point, expected.point
    if points[0] != points[1] and (not all(points) or unpacked_point(points[0]) != unpacked_point(points[1])):
        return f"has an access point of other content, expected that of {unit} {expected.file}"
    return ""


def _note_unchecked(findings: Findings) -> None:
    """Say what no comparison saw."""
    index = findings.index
    chosen = formats.FORMATS.get(index.format)
    if chosen is not None and chosen.is_text and not index.measuring["validate"]:
        findings.not_checked.append(f"whether records are JSON; {index.remedy('--validate', force=False)}")
    for name in index.computed_columns:
        findings.not_checked.append(f"column {name!r}, which was computed in Python, beyond its checksum")
    sampled = sum(source.size > COVERED and not source.xxh3_128 for source in index.sources)
    if sampled and not _has_checksums(chosen):
        sources = "a source" if len(index.sources) == 1 else f"{sampled:,} sources"
        findings.not_checked.append(
            f"bytes of {sources} between the blocks of the fingerprint, beyond what a scan reads; run: "
            f"{index.rebuild_command('--hash')}"
        )
