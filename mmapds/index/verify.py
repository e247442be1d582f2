"""Whether an index is right: its checksums, and its sources indexed again beside it."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any

from .. import _native, formats
from ..errors import ColumnError, DecodeError, Error, FormatError, SourceError
from ..formats.format import Format, OptionError, is_same_parameter
from ..storage.blocks import BlockStart, BlockTable, unpacked_point
from ..storage.current import other_content, stat_source
from ..storage.fingerprints import COVERED, WAITING, Digest, each, fingerprint, full_hash
from ..storage.index_file import LENGTH_SECTIONS, Index
from ..storage.lock import locked
from ..storage.numbers import BY_CELL, BY_DTYPE, U32, U64, differences, same_numbers
from ..storage.sections import COLUMN, GROUP, gaps, groups_of, records_in_group
from ..storage.sources import Source
from ..storage.spool import scratch
from ..storage.threads import cores
from .build import ColumnRequest
from .findings import Findings
from .length_order import sort
from .write import Job, Report, Scan, reading, write

_WHERE_MISSING = {"truncated": "error", "columns": {}}  # what an index means that lacks a parameter
_NEEDLESS = ("idx",)  # parameters that no reader needs
_TOTALS = ("lines", "smallest", "largest", "skipped", "first", "bad")
_KEYS = ("key_hashes", "key_records")
_PIECE = 1 << 17  # records, or groups of bounds, that are compared at a time


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
    for name, section in index.sections.items():
        with findings.catching("sections"):
            index.verify_section(name)
        report(section.size)
    sources = _check_sources(findings, workers, report)
    if len(sources) < len(index.sources):
        findings.not_checked.append("parameters, keys, and records, as a source is missing or has another size")
    else:
        _check_records(findings, sources, workers, report)
    if "length" not in index.expressions:
        with findings.catching("length_order"):
            check_length_order(findings)
    for source in sources:
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


def _has_checksums(chosen: Format | None) -> bool:
    return chosen is not None and type(chosen).verify is not Format.verify


def _check_sources(findings: Findings, workers: int, report: Report) -> list[Source]:
    """Compare sizes, fingerprints and hashes; return the sources that may be read and have the size that they had."""
    index, there = findings.index, {}
    for number, source in enumerate(index.sources):
        path = index.source_path(number)
        with findings.catching("sources", path):
            formats.check_beside(index, index.readable_path(number))
            found = stat_source(index, number)
            index.check_size(number, found.st_size)
            codec = source.compression.codec if source.compression else ""
            there[number] = Source(path, found.st_size, found.st_mtime_ns, codec=codec)

    def attempt(digest: Callable[[str], Digest], path: str) -> Digest | Error:
        try:
            return digest(path)
        except Error as error:
            return error

    def compare(numbers: Sequence[int], check: str, digest: Callable[[str], Digest], threads: int) -> None:
        paths = [there[number].path for number in numbers]
        for number, found in zip(numbers, each(partial(attempt, digest), paths, workers=threads), strict=True):
            with findings.catching(check, index.source_path(number)):
                if isinstance(found, Error):
                    raise found
                if error := other_content(index, number, found, full=check == "hashes"):
                    raise error

    compare(list(there), "fingerprints", fingerprint, WAITING)
    hashed = [number for number in there if index.sources[number].xxh3_128]
    compare(hashed, "hashes", partial(full_hash, report=report), workers)
    return list(there.values())


def _check_records(findings: Findings, sources: list[Source], workers: int, report: Report) -> None:
    """Index the sources again, as this index was made, and compare the two."""
    index, job = findings.index, None
    with findings.catching("parameters"), index.reporting_malformed_metadata():
        chosen = formats.of_index(index)
        parameters = _parameters(findings, chosen)
        measuring = ColumnRequest().measuring(index)
        if not findings.counts.get("parameters"):
            job = Job("", sources, chosen, parameters, measuring, before=None, hashes=False)
    if job is None:  # a scan would stumble over the same
        findings.not_checked.append("records and keys, as the parameters are damaged")
        return
    with _place_beside(index) as job.index_path:
        job.complete = lambda path: _compare(findings, Index(path))
        try:
            write(job, [Scan(sources)], workers, report)
        except (FormatError, ColumnError, DecodeError, SourceError) as error:
            path = next((source.path for source in sources if str(error).startswith(source.path)), None)
            findings.add("records", error, path)


@contextmanager
def _place_beside(index: Index) -> Iterator[str]:
    """Yield the path of an index that is never put there, but written beside it; hold its lock."""
    directory = os.path.dirname(index.absolute(index.path))
    if os.access(directory, os.W_OK):
        with locked(index.absolute(index.path)):
            yield index.absolute(index.path)
    else:
        with TemporaryDirectory() as temporary:
            yield os.path.join(temporary, os.path.basename(index.path))


def _parameters(findings: Findings, chosen: Format) -> dict[str, Any]:
    """Return the parameters that the sources have; compare them with those of the index.

    Raises:
      FormatError: options are malformed, or of a newer mmapds.
    """
    index = findings.index
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
        found = index.parameters.get(name, _WHERE_MISSING.get(name))
        if not is_same_parameter(value, found) and (found is not None or name not in _NEEDLESS):
            what = f"{name} = {found!r}, expected {value!r}, as {paths[0]} has it, or it is from a newer mmapds"
            findings.add("parameters", index.damaged(what))
    return expected


def _compare(findings: Findings, again: Index) -> None:
    """Compare an index with one that was just made of the same sources."""
    index = findings.index
    same = []
    for number in range(len(index.sources)):
        path = index.source_path(number)
        if _check_bounds(findings, again, number, path) & _check_totals(findings, again, number, path):
            same.append(number)
        _check_blocks(findings, again, number, path)
    for name in again.columns:
        for number in same:
            _check_column(findings, again, name, number)
    if len(same) < len(index.sources):
        findings.not_checked.append("keys and the order of lengths, as records lie elsewhere")
        return
    for check, names in (("length_order", tuple(LENGTH_SECTIONS)), ("keys", _KEYS)):
        for name in names:
            if name in again.sections:
                findings.compare(check, name, *again.sections[name][:2], again.pieces(name))


def _check_totals(findings: Findings, again: Index, number: int, path: str) -> bool:
    """Compare what the indexes say of a source; return whether it has as many records, with bounds in both or none."""
    index = findings.index
    found, expected = index.sources[number], again.sources[number]
    what = ""
    if index.has_bounds != again.has_bounds:
        kinds = ("bounds of records", "records of one size")[:: 1 if again.has_bounds else -1]
        what = f"expected {kinds[0]} for {path}, found {kinds[1]}"
    elif found.records != expected.records:
        what = f"expected {expected.records} records of {path}, found {found.records}"
    if what:
        findings.add("totals", index.damaged(what), path)
    for name in _TOTALS:
        if getattr(found, name) != getattr(expected, name):
            text = f"{name} of {path} = {getattr(found, name)}, expected {getattr(expected, name)}"
            findings.add("totals", index.damaged(text), path)
    return not what


def _check_bounds(findings: Findings, again: Index, number: int, path: str) -> bool:
    """Compare where the records of a source begin and end; return whether that is the same."""
    index = findings.index
    records = min(each.sources[number].records for each in (index, again))
    for begin in range(0, records + 1 if index.has_bounds and again.has_bounds else 0, _PIECE):
        end = min(begin + _PIECE, records + 1)
        found, expected = (each.bounds(number, begin, end) for each in (index, again))
        if found != expected:
            at = _first(found, expected)
            record = begin + at
            what = f"record {record} of {path} begins" if record < records else f"the last record of {path} ends"
            what = f"{what} at byte {found[at]}, expected byte {expected[at]}"
            findings.add("records", index.damaged(what), path, min(record, records - 1))
            return False
    return _check_gaps(findings, number, path)


def _check_gaps(findings: Findings, number: int, path: str) -> bool:
    """Check where the last record of each group of bounds ends; all others end where the next one begins."""
    index, source = findings.index, findings.index.sources[number]
    groups = groups_of(source.width, source.records) if source.width else 0
    for first in range(0, groups, _PIECE):
        count = min(_PIECE + 1, groups - first)  # with the first of the next piece
        found = gaps(source.width, index.read(index.bounds_at(number) + first * GROUP, count * GROUP))
        for place, end, expected in found[:1]:
            record = (first + place + 1) * records_in_group(source.width) - 1
            what = f"record {record} of {path} ends at byte {end}, expected byte {expected}"
            findings.add("records", index.damaged(what), path, record)
            return False
    return True


def _first(found: Sequence[Any], expected: Sequence[Any]) -> int:
    """Return the first place where two sequences differ."""
    return next(at for at, (one, other) in enumerate(zip(found, expected, strict=True)) if one != other)


def _check_column(findings: Findings, again: Index, name: str, number: int) -> None:
    """Compare the numbers that a column has for a source; its type may be wider than they need."""
    index, path = findings.index, findings.index.source_path(number)
    begin, end = index.firsts[number], index.firsts[number + 1]
    own, other = (BY_DTYPE[each.sections[COLUMN + name].dtype] for each in (index, again))
    for first in range(begin, end, _PIECE):
        last = min(first + _PIECE, end)
        found, expected = (
            each.part(each.sections[COLUMN + name].offset + first * kind.width, (last - first) * kind.width)
            for each, kind in ((index, own), (again, other))
        )
        if own is other and found == expected:
            continue
        cell, cells = other.cell, expected
        if other is U32:
            cell, cells = U64.cell, memoryview(bytearray((last - first) * U64.width))
            _native.cells_widen(expected, cells.cast("Q"))
        stored: memoryview[Any] = found.cast("B").cast(own.code)
        cells = cells.cast("B").cast("Q")
        if same_numbers(own.dtype, stored, cell, cells):
            continue
        at = differences(own.dtype, stored, cell, cells)[0]
        shown, record = cells.cast("B").cast(BY_CELL[cell].code)[at], first + at - begin
        what = f"column {name!r} differs from {path} at record {record}: expected {shown}, found {stored[at]}"
        findings.add("columns", index.damaged(what), path, record)
        return


def _check_blocks(findings: Findings, again: Index, number: int, path: str) -> None:
    """Compare where the blocks of a compressed source begin, in the file and in the content."""
    index = findings.index
    found, expected = index.sources[number].compression, again.sources[number].compression
    if found is None or expected is None:
        return
    # The same windows take other bytes where another zlib deflates them.
    if found._replace(points=0) != expected._replace(points=0):
        what = f"compression of {path} = {found._asdict()}, expected {expected._asdict()}"
        findings.add("blocks", index.damaged(what), path)
        return
    pairs = zip(BlockTable(again, number).starts(0), BlockTable(index, number).starts(0), strict=True)
    for block, (start, other) in enumerate(pairs):
        if what := _difference(expected.codec, start, other):
            findings.add("blocks", index.damaged(f"block {block} of {path} {what}"), path)
            return


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


def check_length_order(findings: Findings) -> None:
    """Compare the order of lengths with that of the column of lengths, which is sorted again for this."""
    index = findings.index
    if "length_order" not in index.sections:
        return
    number_type = BY_DTYPE[index.sections[COLUMN + "length"].dtype]
    if number_type not in (U32, U64):
        raise index.damaged(f"column 'length': expected integers of 0 or more, found type {number_type.dtype}")
    expected = sort(index.section(COLUMN + "length"), number_type.width, scratch)._asdict()
    for name, (dtype, numbers) in expected.items():
        pieces = (memoryview(numbers)[begin : begin + _PIECE] for begin in range(0, len(numbers), _PIECE))
        findings.compare("length_order", name, dtype, len(numbers) // BY_DTYPE[dtype].width, pieces)


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
