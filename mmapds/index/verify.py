"""Verify an index: check its checksums, index its sources again beside it, and compare."""

import json
import os
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from .. import formats
from ..compression.blocks import BlockTable, unpacked_point
from ..errors import Error
from ..formats.expressions import Measuring
from ..formats.format import Format, OptionError
from ..storage.current import check_content, fingerprint, full_hash, stat_source
from ..storage.digests import COVERED
from ..storage.index_file import Index, SavedView
from ..storage.lock import locked
from ..storage.numbers import BY_DTYPE
from ..storage.sections import BLOCK_SECTIONS, BOUNDS, COLUMN, SectionFile
from ..storage.sources import Source
from ..storage.workers import cores, in_threads
from .write import Job, Report, Scan, reading, written

_TOTALS = ("records", "lines", "smallest", "largest", "skipped", "first", "bad", "width")
_CHECKS = {BOUNDS: "records", COLUMN: "columns", "length_": "length_order", "key_": "keys", "row": "rows"}
"""The name of the check for sections whose names begin so."""
_PIECE = 1 << 20  # bytes compared at a time
_RECORDS = 1 << 17  # records compared at a time


class Problem(NamedTuple):
    """Something that is wrong with an index or its sources."""

    check: str  # the name of the check; docs/checks.md lists them
    error: Error  # with the message
    source: str | None = None  # path, if the problem is in one source
    record: int | None = None  # number in the source, or in the view, if the problem is in one record


class Findings:
    """The problems of an index or a saved view: the first one of each check, for each source or section."""

    def __init__(self, index: Index | SavedView) -> None:
        self.index = index
        self.problems: list[Problem] = []
        self.not_checked: list[str] = []  # what no check covers, a phrase each

    def add(self, check: str, what: str, source: str | None = None, record: int | None = None) -> None:
        """Add a problem: `what` is damaged."""
        self.problems.append(Problem(check, self.index.damaged(what), source, record))

    @contextmanager
    def catching(self, check: str, source: str | None = None) -> Iterator[None]:
        """Add an error that the block raises as a problem."""
        try:
            with self.index.reporting_malformed_metadata(), reading():
                yield
        except Error as error:
            if type(error) is Error:  # the temporary index for the comparison cannot be written
                raise
            self.problems.append(Problem(check, error, source))

    def check_sections(self, report: Report = lambda _: None) -> None:
        """Compare the checksum of each section."""
        for name, section in self.index.sections.items():
            with self.catching("sections"):
                self.index.verify_sections(name)
            report(section.size)

    def compare(self, again: SectionFile) -> None:
        """Add the first different number of each section of `again`, except the sections of blocks."""
        for name, section in again.sections.items():
            if name not in BLOCK_SECTIONS:
                check = next(check for begin, check in _CHECKS.items() if name.startswith(begin))
                with self.catching(check):
                    self.index.check_numbers(name, (section.dtype,), section.items)
                    self._compare_section(again, name, check)

    def _compare_section(self, again: SectionFile, name: str, check: str) -> None:
        section, expected = self.index.sections[name], again.sections[name]
        _, width, code, _ = BY_DTYPE[expected.dtype]
        for begin in range(0, expected.size, _PIECE):
            size = min(_PIECE, expected.size - begin)
            own, other = self.index.read(section.offset + begin, size), again.read(expected.offset + begin, size)
            if own != other:
                at = _first_difference(own, other) // width
                one, another = (memoryview(piece).cast(code)[at] for piece in (own, other))
                self._add_item(check, name, begin // width + at, f"{one}, expected {another}")
                return

    def _add_item(self, check: str, name: str, item: int, found: str) -> None:
        source, record, where = None, item if check == "columns" else None, ""
        if record is not None and isinstance(self.index, Index):
            number = bisect_right(self.index.firsts, item) - 1
            source, record = self.index.source_path(number), item - self.index.firsts[number]
            where = f" (record {record} of {source})"
        self.add(check, f"{name}[{item}] = {found}{where}", source, record)

    def describe(self) -> dict[str, Any]:
        """Return the findings as JSON."""
        problems = [
            {"check": each.check, "source": each.source, "record": each.record, "message": str(each.error)}
            for each in self.problems
        ]
        counts = Counter(each.check for each in self.problems)
        return {"verified": not problems, "problems": problems, "counts": counts, "not_checked": self.not_checked}


def _first_difference(one: Iterable[int], other: Iterable[int]) -> int:
    """Return the first place where two different sequences of one length differ."""
    return next(at for at, (own, another) in enumerate(zip(one, other, strict=True)) if own != another)


def examine(index: Index, *, workers: int | None = None, report: Report = lambda _: None) -> Findings:
    """Check an index and the content of its sources; then index the sources again beside it, and compare.

    A finding names the first record that differs. Columns computed in Python are checked by checksum alone. `report`
    is called with the bytes read since the last call; their total is `work(index)`.
    """
    workers = workers or cores()
    findings = Findings(index)
    findings.check_sections(report)
    sources: list[Source] = []
    checked = in_threads(partial(_check_source, index, report), range(len(index.sources)), workers=workers)
    for source, problems in checked:
        findings.problems += problems
        sources += [source] if source else []
    if len(sources) < len(index.sources):
        findings.not_checked.append("parameters, keys, and records, as a source is missing or has another size")
    else:
        _check_records(findings, index, sources, workers, report)
    for source in sources:
        with findings.catching("content", source.path):
            formats.of_index(index).verify([source], index.parameters)
        report(source.size)
    _note_unchecked(findings, index)
    return findings


def work(index: Index) -> int:
    """Return how many bytes `examine` reads."""
    size = sum(source.size * (3 if source.xxh3_128 else 2) for source in index.sources)
    return size + sum(section.size for section in index.sections.values())


def _check_source(index: Index, report: Report, number: int) -> tuple[Source | None, list[Problem]]:
    """Compare size, fingerprint and hash of a source; the source is None if unreadable or of another size."""
    findings, path, there = Findings(index), index.source_path(number), None
    source = index.sources[number]
    with findings.catching("sources", path):
        formats.check_beside(index, index.readable_path(number))
        found = stat_source(index, number)
        local = path if found else index.local_path(number)
        found = found or os.stat(local)
        index.check_size(number, found.st_size)
        codec = source.compression.codec if source.compression else ""
        there = Source(local, found.st_size, found.st_mtime_ns, codec=codec)
    if there:
        with findings.catching("fingerprints", path):
            check_content(index, number, fingerprint(there.path))
    if there and source.xxh3_128:
        with findings.catching("hashes", path):
            check_content(index, number, full_hash(there.path, report), full=True)
    return there, findings.problems


def _check_records(findings: Findings, index: Index, sources: list[Source], workers: int, report: Report) -> None:
    """Index the sources again with the options of this index, and compare."""
    with findings.catching("records"), place_beside(index) as place:
        chosen = formats.of_index(index)
        given = {name: index.parameters[name] for name in chosen.options if name in index.parameters}
        try:
            parameters = chosen.parameters(given, [source.path for source in sources])
        except OptionError as error:
            raise index.damaged(f"malformed metadata, or from a newer mmapds: {error}") from None
        job = Job(place, sources, chosen, parameters, Measuring.of(index.measuring), is_part=True)
        again = written(job, [Scan(sources)], workers, report)
        with again.writer:
            _compare(findings, index, Index(again.path))


@contextmanager
def place_beside(index: Index | SavedView) -> Iterator[str]:
    """Yield a path beside a file, for a temporary index that never replaces one; hold its lock."""
    path = index.absolute(index.path)
    directory, name = os.path.split(path)
    with locked(path) if os.access(directory, os.W_OK) else TemporaryDirectory() as temporary:
        yield os.path.join(temporary or directory, name)


def _compare(findings: Findings, index: Index, again: Index) -> None:
    """Compare an index with a new one of the same sources."""
    for name, value in again.parameters.items():
        found = index.parameters.get(name)
        if json.dumps(value) != json.dumps(found):  # as texts: the order of fields in a schema counts
            what = f"{name} = {found!r}, expected {value!r}, as the sources have it, or it is from a newer mmapds"
            findings.add("parameters", what)
            return
    before = len(findings.problems)
    for number in range(len(index.sources)):
        path, found, expected = index.source_path(number), index.sources[number], again.sources[number]
        _check_bounds(findings, index, again, number)
        for name in _TOTALS:
            one, other = getattr(found, name), getattr(expected, name)
            if one != other:
                findings.add("totals", f"{name} of {path} = {one}, expected {other}", path)
                break
        with findings.catching("blocks", path):
            _check_blocks(index, again, number)
    if any(problem.check in ("records", "totals") for problem in findings.problems[before:]):
        findings.not_checked.append("columns, keys and the order of lengths, as records begin at other bytes")
    else:
        findings.compare(again)


def _check_bounds(findings: Findings, index: Index, again: Index, number: int) -> None:
    """Compare where the records of a source begin and end."""
    path = index.source_path(number)
    records = min(each.sources[number].records for each in (index, again))
    for begin in range(0, records + 1 if index.has_bounds else 0, _RECORDS):
        own, other = (file.bounds(number, begin, min(begin + _RECORDS, records + 1)) for file in (index, again))
        if own != other:
            at = _first_difference(own, other)
            record = begin + at
            what = f"record {record} of {path} begins" if record < records else f"the last record of {path} ends"
            what = f"{what} at byte {own[at]}, expected byte {other[at]}"
            findings.add("records", what, path, min(record, records - 1))
            return


def _check_blocks(index: Index, again: Index, number: int) -> None:
    """Compare where the blocks of a compressed source begin, in the file and in the content."""
    path, found, expected = index.source_path(number), *(each.sources[number].compression for each in (index, again))
    if found is None or expected is None:
        return
    if found._replace(points=0) != expected._replace(points=0):  # the bytes of points depend on the version of zlib
        raise index.damaged(f"compression of {path} = {found._asdict()}, expected {expected._asdict()}")
    pairs = zip(*(BlockTable(each, number).starts() for each in (index, again)), strict=True)
    for block, (one, other) in enumerate(pairs):
        if one[:2] != other[:2] or unpacked_point(one.point) != unpacked_point(other.point):
            what = f"expected {other.content} of the content and {other.file} of the file as its first bytes"
            raise index.damaged(
                f"block {block} of {path}: {what}, found {one.content} and {one.file}, or another window"
            )


def _note_unchecked(findings: Findings, index: Index) -> None:
    """Note what no check covers."""
    chosen = formats.FORMATS.get(index.format)
    if chosen is not None and chosen.is_text and not index.measuring["validate"]:
        findings.not_checked.append(f"whether records are JSON; {index.way_to_rebuild('--validate')}")
    for name in index.computed_columns:
        what = f"column {name!r}" + " and the order of lengths" * (name == "length")
        findings.not_checked.append(f"{what}, which was computed in Python, beyond its checksum")
    sampled = sum(source.size > COVERED and not source.xxh3_128 for source in index.sources)
    if sampled and (chosen is None or type(chosen).verify is Format.verify):  # which has no checksums of its own
        sources = "a source" if len(index.sources) == 1 else f"{sampled:,} sources"
        findings.not_checked.append(
            f"bytes of {sources} between the blocks of the fingerprint, beyond what a scan reads; "
            f"{index.way_to_rebuild('--hash')}"
        )
