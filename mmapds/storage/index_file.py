"""The two kinds of .mmx files: an index of sources, and a saved view of other indexes. See docs/index-file.md."""

import json
import os
import re
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from xxhash import xxh3_64

from ..errors import (
    ColumnError,
    Error,
    IndexMissingError,
    SourceError,
    StaleIndexError,
    build_command,
    listed,
    quoted,
    rebuilt_with,
)
from .lock import TEMPORARY, is_same_file
from .numbers import COLUMN_TYPES, U32, U64
from .places import Place, Places, absolute, is_below, scheme_of
from .sections import (
    BLOCK_SECTIONS,
    BOUNDS,
    COLUMN,
    COUNT,
    GROUP,
    POINT_BOUNDS,
    POINTS,
    TEXT,
    IndexedSource,
    Rule,
    SavedViewFoundError,
    SectionFile,
    check_fields,
    is_count,
    records_in_group,
    unpacked,
)
from .sources import (
    INDEX_MAGIC,
    INDEX_SUFFIX,
    Io,
    Source,
    check_name,
    open_file,
    reason,
    way_to_index,
)

RECORD_NUMBERS = (U32.dtype, U64.dtype)
LENGTH_SECTIONS: dict[str, tuple[str, ...]] = {
    "length_order": RECORD_NUMBERS,
    "length_values": (U64.dtype,),
    "length_counts": (U64.dtype,),
}
"""The types of these sections; an index or a saved view with a column `length` has all of them, others none."""
_KEY_SECTIONS = {"key_records": RECORD_NUMBERS, "key_hashes": (U32.dtype,)}  # with types; both or none
SECTIONS = {BOUNDS, *LENGTH_SECTIONS, *BLOCK_SECTIONS, *_KEY_SECTIONS}  # that an index may have besides columns
_COLUMN_DTYPES = tuple(each.dtype for each in COLUMN_TYPES)
OF_COMPRESSED = 2  # the kind of an index with a compressed source
BITS_BLOCK = 2048  # records for each entry of the directory of bits
NOTHING: dict[str, Any] = {"expressions": {}, "missing": "error", "validate": False}
"""The measuring of an index without columns; see `Measuring.describe`."""


_INDEX_NAME = re.compile(rf"{re.escape(INDEX_SUFFIX)}({TEMPORARY})?\Z")
_TEXTS: Rule = ("an object of texts", lambda value: type(value) is dict and {*map(type, value.values())} <= {str})
_METADATA: dict[str, Rule] = {"format": TEXT, "functions": _TEXTS}
_PARAMETERS: dict[str, Rule] = {
    "record_bytes": ("an integer from 1 to 2**63 - 1", lambda value: is_count(value) and value > 0),
    "columns": _TEXTS,
}
_MEASURING: dict[str, Rule] = {
    "expressions": _TEXTS,
    "missing": ("error, skip or a number", lambda value: type(value) in (int, float) or value in ("error", "skip")),
    "validate": ("true or false", lambda value: type(value) is bool),
    "bad": ("error or skip", lambda value: value in ("error", "skip")),
    "max_record": ("a number of bytes", lambda value: is_count(value) and value > 0),
}
_BASE: dict[str, Rule] = {"path": TEXT, "records": COUNT, "mark": TEXT}


def names_index(path: str) -> bool:
    """Whether a path is that of an index or of an unfinished index, not of a source."""
    return _INDEX_NAME.search(path) is not None


class IndexFile(SectionFile):
    """The base of both kinds of .mmx files.

    Raises:
      IndexMissingError: the file does not exist.
      FormatError: it is not of this kind, is damaged, or needs a newer mmapds.
    """

    MAGIC = INDEX_MAGIC

    def __init__(self, path: str, places: Places | None = None, io: Io = "mmap") -> None:
        self.opened_in = os.getcwd()
        self.places = places or Places()
        self.io = io
        self._real_home: str | None = None
        try:
            opened = open_file(self.places.of(path).file_of_index(self.absolute(path)), io)
        except FileNotFoundError:
            raise IndexMissingError(f"{path}: no such index; {way_to_index(path)}") from None
        except OSError as error:
            raise Error(f"{path}: {reason(error)}") from None
        super().__init__(path, opened)

    def _take(self, metadata: dict[str, Any]) -> None:
        self.columns = {
            name.removeprefix(COLUMN): section for name, section in self.sections.items() if name.startswith(COLUMN)
        }
        """The columns by name."""

    def _check_columns(self, wanted: Iterable[str] = ()) -> None:
        """Raise FormatError unless columns have a number for each record, and the sections of the length order fit."""
        ordered = not self.sections.keys().isdisjoint(LENGTH_SECTIONS)
        for name in (*wanted, *self.columns, *["length"] * ordered):
            self.check_numbers(COLUMN + name, _COLUMN_DTYPES, self.records)
        if ordered:
            self.check_numbers("length_order", RECORD_NUMBERS, self.records)
            self.check_numbers("length_values", (U64.dtype,))
            self.check_numbers("length_counts", (U64.dtype,), self.sections["length_values"].items)

    def column(self, name: str) -> tuple[str, memoryview]:
        """Return the type and the mapped bytes of a column; raise ColumnError if the file lacks it."""
        if name not in self.columns:
            way = "build it with mmapds index --length, or " * (name == "length")
            raise ColumnError(
                f"{self.path}: expected column {name!r}, found {listed(self.columns) or 'none'}; {way}add it with "
                f"mmapds.add_column({self.path!r}, {name!r}, FUNCTION)"
            )
        return self.sections[COLUMN + name].dtype, self.section(COLUMN + name)

    @property
    def home(self) -> str:
        """The real path of the directory that holds the file."""
        if self._real_home is None:  # not a cached_property: in Python 3.11 a fork may copy its held lock
            self._real_home = self.directory if scheme_of(self.directory) else os.path.realpath(self.directory)
        return self._real_home

    @property
    def directory(self) -> str:
        """The directory that holds the file; links on the way to it are not followed."""
        return os.path.dirname(self.absolute(self.path))

    def absolute(self, path: str) -> str:
        """Return a path made absolute by the working directory in which the file was opened."""
        return absolute(path, self.opened_in)

    def path_of(self, relative: str) -> str:
        """Return the path of a file that this one names, for messages; it is unchecked, so do not open it."""
        if not relative.isascii():
            check_name(relative)  # Python may read the name in another encoding
        if scheme_of(relative):
            return relative
        if "/" not in relative:
            return self.path[: self.path.rfind("/") + 1] + relative
        # `..` starts from the real directory of this file, even if it was opened through a link.
        home = self.home
        while relative.startswith("../"):  # home is a real path, so dirname is its parent
            home, relative = os.path.dirname(home), relative[3:].lstrip("/")  # otherwise `..//etc` would be `/etc`
        return os.path.join(home, relative)

    def check_reach(self, path: str) -> None:
        """Raise SourceError unless the roots allow this file to name the one at `path`."""
        self.places.of(path).check(self.absolute(path), self.path, self.directory)


class Index(IndexFile):
    """An open .mmx file of sources."""

    NAME, KINDS = "AN INDEX", (0, OF_COMPRESSED)
    sources: Sequence[IndexedSource] = ()
    check = "stat"
    """How sources were compared, one of `current.CHECKS`; with "none", the first read does not compare them either."""

    def _take(self, metadata: dict[str, Any]) -> None:
        self._starts: dict[str, list[int]] = {}
        self.recognised: dict[int, int] = {}
        """By source number: the modification time at which its content was compared and found the same."""
        super()._take(metadata)
        metadata = {"functions": {}, "parameters": {}, "columns": NOTHING} | metadata
        check_fields("", _METADATA, metadata)
        self.format: str = metadata["format"]
        self.parameters: dict[str, Any] = metadata["parameters"]
        check_fields(" among parameters", _PARAMETERS, {"record_bytes": 1, "columns": {}} | self.parameters)
        self.functions: dict[str, str] = metadata["functions"]
        """The identity of the function behind each computed column: see `mmapds.add_column`."""
        self.measuring: dict[str, Any] = metadata["columns"]  # how the columns were measured: see `Measuring.describe`
        check_fields(" among columns", _MEASURING, {"bad": "error", "max_record": 1} | self.measuring)
        self.expressions: dict[str, str] = self.measuring["expressions"]
        """The measured columns, with their expressions."""
        self.sources = [IndexedSource.parse(source) for source in metadata["sources"]]
        self.firsts = list(accumulate((source.records for source in self.sources), initial=0))
        """The number of the first record of each source; then the number of records."""
        if (held := self.firsts[-1]) != self.records:
            raise self.damaged(f"expected {self.records} records, as the header says, found {held} in the sources")
        self.has_bounds = BOUNDS in self.sections or "record_bytes" not in self.parameters
        self._check_columns(self.expressions)
        self._check_sections()

    def _check_sections(self) -> None:
        """Raise FormatError unless the sections fit the sources."""
        if self.has_bounds:
            if not all(source.width for source in self.sources):
                raise self.damaged("width of a source: expected 2, 3, 4 or 8, as it has bounds, found 0")
            self.check_numbers(BOUNDS, (U64.dtype,), sum(each.groups for each in self.sources) * GROUP // U64.width)
        compressed = any(source.compression for source in self.sources)
        if compressed != (self.kind == OF_COMPRESSED):
            raise self.damaged(f"expected kind {OF_COMPRESSED if compressed else 0}, found {self.kind}")
        if compressed:
            blocks, points = (sum(getattr(each, what) for each in self.sources) for what in ("block_bounds", "points"))
            for name, dtypes in BLOCK_SECTIONS.items():
                if points or name in self.sections or name not in (POINTS, POINT_BOUNDS):
                    self.check_numbers(name, dtypes, points if name == POINTS else blocks)
        if not self.sections.keys().isdisjoint(_KEY_SECTIONS):
            for name, dtypes in _KEY_SECTIONS.items():
                self.check_numbers(name, dtypes, self.records)

    # ---- where records lie in the file -------------------------------------------------------------------------

    def bounds_at(self, number: int) -> int:
        """Return the byte of the index where the groups of a source begin; 0 if all records have one size."""
        return self.sections[BOUNDS].offset + self.start("groups", number) * GROUP if self.has_bounds else 0

    def start(self, what: str, number: int) -> int:
        """Return the sum of a property of `IndexedSource` over the sources before this one."""
        if what not in self._starts:
            self._starts[what] = list(accumulate((getattr(source, what) for source in self.sources), initial=0))
        return self._starts[what][number]

    def bounds(self, number: int, begin: int, end: int) -> memoryview:
        """Return bounds `begin` to `end - 1` of a source, uint64; empty if all records have one size."""
        width = self.sources[number].width
        if not self.has_bounds or begin >= end:
            return memoryview(b"").cast("Q")
        each = records_in_group(width)
        first, last = begin // each, (end - 1) // each
        groups = self.read(self.bounds_at(number) + first * GROUP, (last - first + 1) * GROUP)
        return unpacked(width, groups)[begin - first * each : end - first * each]

    def end(self, number: int) -> int:
        """Return the byte where the last record of a source ends; without records, where the first would begin."""
        source = self.sources[number]
        if not self.has_bounds:
            return source.first + source.records * int(self.parameters["record_bytes"])
        return int(self.bounds(number, source.records, source.records + 1)[0])

    def extent(self, number: int) -> int:
        """Return the bytes from the first record of a source to the end of its last one, with framing."""
        first = self.bounds(number, 0, 1)[0] if self.has_bounds else self.sources[number].first
        return self.end(number) - first

    # ---- where sources lie -------------------------------------------------------------------------------------

    def source_path(self, number: int) -> str:
        """Return the path of a source, for messages; it is unchecked: see `readable_path`."""
        return self.path_of(self.sources[number].path)

    def place(self, number: int) -> Place:
        """Return the place of a source."""
        return self.places.of(self.source_path(number))

    def readable_path(self, number: int) -> str:
        """Return the path of a source; raise SourceError if it lies outside this file's directory and the roots."""
        path = self.source_path(number)
        self.check_reach(path)
        return path

    def local_path(self, number: int) -> str:
        """Return the absolute path of the file with the bytes of a source, to read it.

        Raises:
          SourceError: the roots do not allow it, or it cannot be fetched.
          StaleIndexError: an object changed since it was indexed.
        """
        self.readable_path(number)
        return self.place(number).file(self.described(number))

    def status(self, number: int) -> os.stat_result | None:
        """Return the status of a source; None if reading it compares it."""
        return self.place(number).status(self.absolute(self.source_path(number)), self.path, self.directory)

    def described(self, number: int) -> Source:
        """Return a source as it was when it was indexed, under its absolute name."""
        known, path = self.sources[number], self.absolute(self.source_path(number))
        codec = known.compression.codec if known.compression else ""
        found = Source(path, known.size, known.mtime_ns, codec=codec, etag=known.etag)
        return found._replace(fingerprint=known.fingerprint, xxh3_128=known.xxh3_128)

    def roots_needed(self) -> list[str]:
        """Return the directories of sources outside the index's own directory, allowed or not."""
        paths = [os.path.realpath(self.absolute(self.source_path(number))) for number in range(len(self.sources))]
        return sorted({os.path.dirname(real) for real in paths if not is_below(real, self.home)})

    def covers(self, path: str) -> bool:
        """Whether this is the index of a single source, and `path` is that file, by name or through links."""
        if len(self.sources) != 1:
            return False
        found = self.source_path(0)  # fast path: names first, as a dataset may have thousands of indexes
        return found == path or is_same_file(self.absolute(found), self.absolute(path))

    def check_size(self, number: int, size: int) -> None:
        """Raise StaleIndexError unless the size of a source is unchanged since it was indexed."""
        source = self.sources[number]
        if size != source.size:
            raise StaleIndexError(
                f"{self.path}: STALE: {os.path.basename(source.path)} was {source.size} bytes when indexed and is "
                f"{size} now; {self.way_to_rebuild()}"
            )

    # ---- columns, and messages ---------------------------------------------------------------------------------

    @property
    def computed_columns(self) -> list[str]:
        """Names of the columns that a rebuild loses: those without an expression that are not in the sources."""
        known = {*self.expressions, *self.parameters.get("columns", {})}
        return [name for name in self.columns if name not in known]

    def meaning(self, name: str) -> str:
        """Return the expression or the function that made a column; "" if the user gave its numbers."""
        function, _, version = self.functions.get(name, "").rpartition(":")
        made = f"function {function}" + f", version {version}" * bool(version) if function else ""
        return self.expressions.get(name) or made

    def _way(self) -> str:
        if not self.sources:  # the metadata that name the sources are damaged
            return f"; {way_to_index(self.path)}"
        return f"; {self.way_to_rebuild('--force')}"

    def way_to_rebuild(self, *options: str) -> str:
        """Return the advice for building this index again: a command or, to keep columns of Python, a call."""
        given, roots = [self.path], [f"--root {quoted(root)}" for root in sorted(self.places.roots)]
        # Only roots that the user gave: the command must not allow more than the user did.
        if len(self.sources) == 1 and self.path == self.source_path(0) + INDEX_SUFFIX:  # the source names the index
            given, roots = [self.source_path(0)], []
        lost = [] if "--hash" in options else self.computed_columns  # hashes alone keep all columns
        if not lost:
            return f"run: {build_command(given, *options, *roots)}"
        command = build_command(given, *dict.fromkeys([*options, "--force"]), *roots)
        return f"{rebuilt_with(lost, *options)}, or run: {command} (which loses {listed(lost)}, computed in Python)"

    def unreadable(self, number: int, problem: str) -> SourceError:
        """Return the error for a source that cannot be opened."""
        return SourceError(f"{self.source_path(number)}: {problem} (a source of {self.path})")


# ---- saved views ------------------------------------------------------------------------------------------------


class Base(NamedTuple):
    """An index whose records a view holds, as it was when the view was saved."""

    path: str  # relative to the directory that holds the view
    records: int
    mark: str  # see `mark_of`


def mark_of(index: Index, columns: Sequence[str]) -> str:
    """Return a digest of the records of an index, their order, and some of its columns: 16 hex digits.

    A rebuilt index of the same sources has the same mark, even with more columns.
    """
    mark = xxh3_64(json.dumps([index.format, index.parameters], sort_keys=True).encode())
    for source in index.sources:
        mark.update(f" {source.fingerprint} {source.size} {source.records} {source.first}".encode())
    kept = {name for name in index.sections if not name.startswith((COLUMN, "length_", "key_"))}
    for name in sorted(kept | {COLUMN + column for column in columns}):
        section = index.sections.get(name)
        mark.update(f" {name} {section and (section.dtype, section.items, section.xxh3)}".encode())
    return mark.hexdigest()


class SavedView(IndexFile):
    """An open file of a saved view: some records of other indexes, in any order."""

    NAME, KINDS = "A SAVED VIEW", (1,)

    def _take(self, metadata: dict[str, Any]) -> None:
        super()._take(metadata)
        self.bases: list[Base] = []
        for base in metadata["bases"]:
            check_fields(" of a base", _BASE, base)
            self.bases.append(Base(*map(base.__getitem__, Base._fields)))
        self.total = sum(base.records for base in self.bases)  # records of all bases; each row is one of their numbers
        if not self.bases or self.total >= 2**63:
            raise self.damaged(f"expected 1 to 2**63 - 1 records of 1 base or more, found {self.total}")
        self.is_bits = "row_bits" in self.sections  # whether rows are stored as bits; otherwise as an array
        words, blocks = -(-self.total // 64), -(-self.total // BITS_BLOCK)
        if not self.is_bits:
            self.check_numbers("rows", RECORD_NUMBERS, self.records)
        else:
            self.check_numbers("row_bits", (U64.dtype,), words)
            self.check_numbers("row_ranks", (U64.dtype,), blocks + 1)
            ones = int.from_bytes(self.read(self.sections["row_ranks"].offset + 8 * blocks, 8), "little")
            if ones != self.records or ones > self.total:
                raise self.damaged(
                    f"section 'row_ranks': expected {self.records} records of {self.total} at its end, found {ones}"
                )
        self._check_columns()

    def base_path(self, number: int) -> str:
        """Return the path of a base, for messages; it is unchecked."""
        return self.path_of(self.bases[number].path)

    def open_bases(self) -> list[Index]:
        """Open all bases of the view; see `open_base`."""
        return [self.open_base(number) for number in range(len(self.bases))]

    def open_base(self, number: int) -> Index:
        """Open one base; raise StaleIndexError if its records or columns changed since the view was saved."""
        path, base = self.base_path(number), self.bases[number]
        self.check_reach(path)
        index = Index(path, self.places, self.io)
        if index.records != base.records or mark_of(index, list(self.columns)) != base.mark:
            counts = f" ({base.records} records then, {index.records} now)" if index.records != base.records else ""
            raise StaleIndexError(
                f"{self.path}: STALE: {path} has other records or columns than when the view was saved{counts}; "
                f"save it again, with --where or ds[mask].save({self.path!r})"
            )
        return index


def is_saved_view(path: str) -> bool:
    """Whether a path is that of a saved view, sound or damaged."""
    if path.endswith(INDEX_SUFFIX):
        try:
            Index(path)
        except SavedViewFoundError:
            return True
        except Error:
            pass
    return False


def open_stored(path: str, places: Places | None = None, io: Io = "mmap", *, given: str) -> Index | SavedView:
    """Open an index or a saved view; raise StaleIndexError unless it is `given`, or the index of `given`."""
    try:
        index = Index(path, places, io)
    except SavedViewFoundError:
        if not names_index(given):
            raise StaleIndexError(
                f"{path}: STALE: expected the index of {given}, found a saved view; rename it"
            ) from None
        return SavedView(path, places, io)
    if not names_index(given) and not index.covers(given):
        found = index.source_path(0) if len(index.sources) == 1 else f"{len(index.sources):,} sources"
        raise StaleIndexError(
            f"{path}: STALE: expected the index of {given}, found one of {found}; run: {build_command([given])}"
        )
    return index
