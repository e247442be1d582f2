"""Whether an index is right: its checksums, and its sources indexed again beside it."""

import os
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from .. import formats
from ..errors import ColumnError, DecodeError, Error, FormatError, SourceError
from ..formats.format import Format, OptionError, is_same_parameter
from ..formats.measuring import Measuring
from ..storage.blocks import BlockTable, unpacked_point
from ..storage.current import COVERED, WAITING, Digest, each, fingerprint, full_hash, other_content, stat_source
from ..storage.index_file import Index
from ..storage.lock import locked
from ..storage.numbers import BY_DTYPE, U32, U64
from ..storage.sections import BLOCK_SECTIONS, BOUNDS, COLUMN, GROUP, groups_of, records_in_group
from ..storage.sources import Source
from ..storage.spool import scratch
from ..storage.threads import cores
from ..storage.view_file import SavedView
from .length_order import sort
from .plan import Job, Scan
from .write import Report, reading, write

_TOTALS = ("records", "lines", "smallest", "largest", "skipped", "first", "bad", "width")
_CHECKS = ((COLUMN, "columns"), ("length_", "length_order"), ("key_", "keys"), ("row", "rows"))
"""How names of sections begin, and the check of these."""
_PIECE = 1 << 20  # bytes, or bounds, that are compared at a time


class Problem(NamedTuple):
    """Something that is wrong with an index or its sources."""

    check: str
    """What was compared; docs/checks.md lists the names."""
    error: Error
    """Its text is the message."""
    source: str | None = None
    """The path of the source, if it is about one."""
    record: int | None = None
    """The number of the record, in the source or else in the index, if it is about one."""

    def describe(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {"check": self.check, "source": self.source, "record": self.record, "message": str(self.error)}


class Findings:
    """The problems of an index or a saved view: the first one of each check, for each source or section."""

    def __init__(self, index: Index | SavedView) -> None:
        self.index = index
        self.problems: list[Problem] = []
        self.not_checked: list[str] = []
        """What was left out, a sentence each."""

    @property
    def counts(self) -> Counter[str]:
        """How many problems there are, by `Problem.check`."""
        return Counter(problem.check for problem in self.problems)

    def add(self, check: str, what: Error | str, source: str | None = None, record: int | None = None) -> None:
        """Take in a problem: an error, or what is damaged."""
        error = what if isinstance(what, Error) else self.index.damaged(what)
        self.problems.append(Problem(check, error, source, record))

    @contextmanager
    def catching(self, check: str, source: str | None = None) -> Iterator[None]:
        """Take in what the block raises as a problem."""
        try:
            with self.index.reporting_malformed_metadata():
                yield
        except Error as error:
            self.add(check, error, source)

    def check_sections(self, report: Report = lambda _: None) -> None:
        """Compare the checksum of each section."""
        for name, section in self.index.sections.items():
            with self.catching("sections"):
                self.index.verify_section(name)
            report(section.size)

    def compare(self, name: str, dtype: str, items: int, expected: Iterable[bytes | memoryview]) -> None:
        """Take in the first number of a section that is not the expected one.

        Args:
          dtype: of the section.
          items: how many numbers it has.
          expected: these, as bytes in pieces.
        """
        section, number_type, at = self.index.sections.get(name), BY_DTYPE[dtype], 0
        check = next(check for begin, check in _CHECKS if name.startswith(begin))
        if section is None or section.dtype != dtype or section.items != items:
            found = "none" if section is None else f"{section.items} of type {section.dtype}"
            self.add(check, f"section {name!r}: expected {items} numbers of type {dtype}, found {found}")
            return
        for piece in expected:
            stored = self.index.read(section.offset + at, len(piece))
            if stored != piece:
                item = (at + _first_other(stored, piece)) // number_type.width
                one, other = (
                    memoryview(each).cast("B").cast(number_type.code)[item - at // number_type.width]
                    for each in (stored, piece)
                )
                source, record = self._place(item) if check == "columns" else (None, None)
                where = f" (record {record} of {source})" if source else ""
                self.add(check, f"{name}[{item}] = {one}, expected {other}{where}", source, record)
                return
            at += len(piece)

    def _place(self, record: int) -> tuple[str | None, int]:
        """Return the source of a record of an index, and the number there."""
        if isinstance(self.index, SavedView):
            return None, record
        source = bisect_right(self.index.firsts, record) - 1
        return self.index.source_path(source), record - self.index.firsts[source]

    def lines(self) -> list[str]:
        """Return the messages, one a line."""
        return [" ".join(str(problem.error).splitlines()) for problem in self.problems]

    def describe(self) -> dict[str, Any]:
        """Return them as JSON."""
        return {
            "verified": not self.problems,
            "problems": [problem.describe() for problem in self.problems],
            "counts": self.counts,
            "not_checked": self.not_checked,
        }


def _first_other(found: bytes | memoryview, expected: bytes | memoryview) -> int:
    """Return the first byte in which two arrays of one size differ."""
    pairs = zip(found, memoryview(expected).cast("B"), strict=True)
    return next(at for at, (one, other) in enumerate(pairs) if one != other)


def verify(index: Index) -> None:
    """Check an index as `examine` does.

    Raises:
      FormatError, StaleIndexError, SourceError: the first problem.
    """
    for problem in examine(index).problems:
        raise problem.error


def examine(index: Index, *, workers: int | None = None, report: Report = lambda _: None) -> Findings:
    """Check the checksums of an index, and the content of its sources; then index these again, and compare.

    The new index is written beside this one, or to a temporary directory where that is impossible, and removed. Of
    whatever differs, the first record is named. Columns that Python computed have their checksum alone.

    Args:
      workers: threads; all cores by default.
      report: called with the number of bytes that were read since the last call, of `work(index)` in all.
    Raises:
      Error: the new index cannot be written.
    """
    workers = workers or cores()
    findings = Findings(index)
    findings.check_sections(report)
    sources = _check_sources(findings, index, workers, report)
    if len(sources) < len(index.sources):
        findings.not_checked.append("parameters, keys, and records, as a source is missing or has another size")
    else:
        _check_records(findings, index, sources, workers, report)
    if "length" not in index.expressions and "length_order" in index.sections:
        _check_length_order(findings, index)
    for source in sources:
        with findings.catching("content", source.path), reading():
            chosen = formats.of_index(index)
            chosen.verify([source], index.parameters)
            report(source.size if _has_checksums(chosen) else 0)
            if chosen.lacks_checksums(source):
                findings.not_checked.append(f"checksums of the records of {source.path}, cut off with the file's end")
    _note_unchecked(findings, index)
    return findings


def work(index: Index) -> int:
    """Return how many bytes `examine` reads."""
    size = sum(source.size for source in index.sources)
    hashed = sum(source.size for source in index.sources if source.xxh3_128)
    checked = size if _has_checksums(formats.FORMATS.get(index.format)) else 0
    return sum(section.size for section in index.sections.values()) + size + hashed + checked


def _has_checksums(chosen: Format | None) -> bool:
    return chosen is not None and type(chosen).verify is not Format.verify


def _check_sources(findings: Findings, index: Index, workers: int, report: Report) -> list[Source]:
    """Compare sizes, fingerprints and hashes; return the sources that may be read and have the size that they had."""
    there = {}
    for number, source in enumerate(index.sources):
        path = index.source_path(number)
        with findings.catching("sources", path):
            formats.check_beside(index, index.readable_path(number))
            found = stat_source(index, number)
            index.check_size(number, found.st_size)
            codec = source.compression.codec if source.compression else ""
            there[number] = Source(path, found.st_size, found.st_mtime_ns, codec=codec)
    hashed = [number for number in there if index.sources[number].xxh3_128]
    for check, digest, threads, numbers in (
        ("fingerprints", fingerprint, WAITING, list(there)),
        ("hashes", partial(full_hash, report=report), workers, hashed),
    ):
        compare = partial(_other_content, index, digest, full=check == "hashes")
        for number, error in zip(numbers, each(compare, numbers, workers=threads), strict=True):
            if error is not None:
                findings.add(check, error, there[number].path)
    return list(there.values())


def _other_content(index: Index, digest: Callable[[str], Digest], number: int, *, full: bool) -> Error | None:
    try:
        return other_content(index, number, digest(index.source_path(number)), full=full)
    except Error as error:
        return error


def _check_records(findings: Findings, index: Index, sources: list[Source], workers: int, report: Report) -> None:
    """Index the sources again, as this index was made, and compare the two."""
    job = None
    with findings.catching("parameters"):
        chosen = formats.of_index(index)
        job = Job("", sources, chosen, _parameters(index, chosen), Measuring.of(index.measuring))
    if job is None:  # a scan would stumble over the same
        findings.not_checked.append("records and keys, as the parameters are damaged")
        return
    job = job._replace(complete=lambda path: _compare(findings, index, Index(path)))
    with place_beside(index) as place:
        try:
            write(job._replace(index_path=place), [Scan(sources)], workers, report)
        except (FormatError, ColumnError, DecodeError, SourceError) as error:
            path = next((source.path for source in sources if str(error).startswith(source.path)), None)
            findings.add("records", error, path)


@contextmanager
def place_beside(index: Index | SavedView) -> Iterator[str]:
    """Yield the path of a file that is never put there, but written beside it; hold its lock."""
    directory = os.path.dirname(index.absolute(index.path))
    if os.access(directory, os.W_OK):
        with locked(index.absolute(index.path)):
            yield index.absolute(index.path)
    else:
        with TemporaryDirectory() as temporary:
            yield os.path.join(temporary, os.path.basename(index.path))


def _parameters(index: Index, chosen: Format) -> dict[str, Any]:
    """Return the parameters that the sources have.

    Raises:
      FormatError: those of the index are others, malformed, or of a newer mmapds.
    """
    given = {name: index.parameters[name] for name in chosen.options if name in index.parameters}
    paths = [index.source_path(number) for number in range(len(index.sources))]
    try:
        expected = chosen.parameters(given, paths)
    except OptionError as error:
        raise index.damaged(f"{error} among the parameters") from error
    for name, value in expected.items():
        found = index.parameters.get(name)
        if not is_same_parameter(value, found):
            raise index.damaged(f"{name} = {found!r}, expected {value!r}, as {paths[0]} has it")
    return expected


def _compare(findings: Findings, index: Index, again: Index) -> None:
    """Compare an index with one that was just made of the same sources."""
    before = len(findings.problems)
    for number, (found, expected) in enumerate(zip(index.sources, again.sources, strict=True)):
        path = index.source_path(number)
        _check_bounds(findings, index, again, number)
        if name := next((name for name in _TOTALS if getattr(found, name) != getattr(expected, name)), None):
            what = f"{name} of {path} = {getattr(found, name)}, expected {getattr(expected, name)}"
            findings.add("totals", what, path)
        _check_blocks(findings, index, again, number)
    if any(problem.check in ("records", "totals") for problem in findings.problems[before:]):
        findings.not_checked.append("columns, keys and the order of lengths, as records lie elsewhere")
        return
    for name, section in again.sections.items():
        if name != BOUNDS and name not in BLOCK_SECTIONS:
            findings.compare(name, section.dtype, section.items, again.pieces(name))


def _check_bounds(findings: Findings, index: Index, again: Index, number: int) -> None:
    """Compare where the records of a source begin and end; the same records have the same bytes there."""
    path, found, expected = index.source_path(number), index.sources[number], again.sources[number]
    if not found.width or found.width != expected.width:
        return
    width, records = found.width, min(found.records, expected.records)
    size = groups_of(width, records) * GROUP
    begins = [(one, one.bounds_at(number) - one.sections[BOUNDS].offset) for one in (index, again)]
    for piece, pair in enumerate(zip(*(one.pieces(BOUNDS, begin, begin + size) for one, begin in begins), strict=True)):
        if pair[0] == pair[1]:
            continue
        group, byte = divmod(piece * _PIECE + _first_other(*pair), GROUP)
        record = min(group * records_in_group(width) + max(byte - U64.width + width, 0) // width, records)
        own, other = (one.bounds(number, record, record + 1)[0] for one in (index, again))
        if own != other:
            what = f"record {record} of {path} begins" if record < records else f"the last record of {path} ends"
            findings.add("records", f"{what} at byte {own}, expected byte {other}", path, min(record, records - 1))
        elif found.records == expected.records:  # the last bound of a group, which the next one has, too
            what = f"record {record - 1} of {path}: expected its end where record {record} begins, found another"
            findings.add("records", what, path, record - 1)
        return


def _check_blocks(findings: Findings, index: Index, again: Index, number: int) -> None:
    """Compare where the blocks of a compressed source begin, in the file and in the content."""
    path, found, expected = (
        index.source_path(number),
        index.sources[number].compression,
        again.sources[number].compression,
    )
    if found is None or expected is None:
        return
    # The same windows take other bytes where another zlib deflates them.
    if found._replace(points=0) != expected._replace(points=0):
        what = f"compression of {path} = {found._asdict()}, expected {expected._asdict()}"
        findings.add("blocks", what, path)
        return
    unit = "bit" if expected.codec == "gzip" else "byte"
    with findings.catching("blocks", path):
        pairs = zip(BlockTable(index, number).starts(), BlockTable(again, number).starts(), strict=True)
        for block, (one, other) in enumerate(pairs):
            if one[:2] != other[:2]:
                begins = f"begins at {unit} {one.file}, byte {one.content} of the content"
                raise index.damaged(
                    f"block {block} of {path} {begins}, expected {unit} {other.file}, byte {other.content}"
                )
            if one.point != other.point and not (
                other.point and unpacked_point(one.point) == unpacked_point(other.point)
            ):
                raise index.damaged(f"block {block} of {path}: expected the access point of its content, found another")


def _check_length_order(findings: Findings, index: Index) -> None:
    """Sort the lengths that Python computed, which a new index lacks, and compare the order."""
    number_type = BY_DTYPE[index.sections[COLUMN + "length"].dtype]
    if number_type not in (U32, U64):
        findings.add("length_order", f"column 'length': expected integers of 0 or more, found type {number_type.dtype}")
        return
    expected = sort(index.section(COLUMN + "length"), number_type.width, scratch)._asdict()
    for name, (dtype, numbers) in expected.items():
        pieces = (memoryview(numbers)[begin : begin + _PIECE] for begin in range(0, len(numbers), _PIECE))
        findings.compare(name, dtype, len(numbers) // BY_DTYPE[dtype].width, pieces)


def _note_unchecked(findings: Findings, index: Index) -> None:
    """Say what no comparison saw."""
    chosen = formats.FORMATS.get(index.format)
    if chosen is not None and chosen.is_text and not index.measuring["validate"]:
        findings.not_checked.append(f"whether records are JSON; {index.hint('--validate', force=False)}")
    for name in index.computed_columns:
        findings.not_checked.append(f"column {name!r}, which was computed in Python, beyond its checksum")
    sampled = sum(source.size > COVERED and not source.xxh3_128 for source in index.sources)
    if sampled and not _has_checksums(chosen):
        sources = "a source" if len(index.sources) == 1 else f"{sampled:,} sources"
        findings.not_checked.append(
            f"bytes of {sources} between the blocks of the fingerprint, beyond what a scan reads; run: "
            f"{index.rebuild_command('--hash')}"
        )
