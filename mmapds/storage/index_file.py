"""The .mmx file: where the records of some sources are, with columns of numbers. See docs/index-file.md."""

import json
import os
import re
from collections.abc import Iterable, Sequence
from itertools import accumulate, islice
from typing import Any

from .. import _native
from ..errors import (
    ColumnError,
    Error,
    FormatError,
    IndexMissingError,
    SourceError,
    StaleIndexError,
    either,
    nearest,
    plain_counted,
)
from .files import Io, open_file
from .hints import build_command, column_option, measuring_options, quoted
from .numbers import U8, U64
from .roots import Roots, covering, is_below, is_inside
from .sections import (
    BLOCK_SECTIONS,
    BOUNDS,
    COLUMN,
    GROUP,
    MALFORMED,
    IndexedSource,
    Section,
    SectionFile,
    groups_of,
    numbers_in,
    records_in_group,
    unpacked,
)
from .sources import INDEX_MAGIC, INDEX_SUFFIX, kind_of_file, real_path, reason, way_to_index, working_directory
from .temporary import TEMPORARY

_UNFINISHED = re.compile(rf"{re.escape(INDEX_SUFFIX)}{TEMPORARY}\Z")
NAMED = 20
"""Sources that a command names; of more it says that there are some."""
_WITH_OPTIONS = ("fixed", "prefixed")
"""Formats that cannot be indexed without options of their own."""
LENGTH_SECTIONS: dict[str, tuple[str, ...]] = {
    "length_order": ("<u4", "<u8"),
    "length_values": ("<u8",),
    "length_counts": ("<u8",),
}
"""What these sections hold, where an index or a saved view has them."""
SECTION_TYPES = {
    **LENGTH_SECTIONS,
    **BLOCK_SECTIONS,
    "key_records": ("<u4", "<u8"),
    "key_hashes": ("<u4",),
}
"""What these sections hold, where an index has them."""


OF_COMPRESSED = 2
"""The kind of an index of which a source is compressed, or more; readers that do not know it refuse it."""
NOTHING: dict[str, Any] = {"expressions": {}, "missing": "error", "validate": False}
"""The measuring of an index without columns; see `Measuring.describe`."""
_NONE: dict[str, str] = {}


def alike(one: Any, other: Any) -> bool:
    """Whether two things that `Measuring.describe` says are the same; NaN in the place of missing numbers is NaN."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def relative_to_index(source: str, index: str) -> str:
    """Return a source's path as an index stores it, so that the two can be moved together."""
    directory = real_path(os.path.dirname(index))
    parent, name = os.path.split(source)
    if not directory:  # the working directory was deleted, and nothing can be written there
        return source
    return os.path.normpath(os.path.join(os.path.relpath(os.path.realpath(parent), directory), name))


class SavedViewFoundError(FormatError):
    """A file is not an index but a saved view: see `SavedView`."""


def open_index_file(path: str, directory: str, io: Io) -> _native.Map:
    """Open the file of an index or of a saved view.

    Raises:
      IndexMissingError: it does not exist.
      FormatError: it is not a regular file.
    """
    try:
        return open_file(os.path.join(directory, path), io)
    except FileNotFoundError:
        raise IndexMissingError(f"{path}: no such index; {way_to_index(path, directory)}") from None
    except OSError as error:
        raise Error(f"{path}: {reason(error)}") from None
    except ValueError:
        kind = kind_of_file(os.stat(os.path.join(directory, path)).st_mode)
        raise FormatError(f"{path}: NOT AN INDEX: expected a regular file, found {kind}") from None


def names_index(path: str) -> bool:
    """Whether a path is that of an index, or of one that is written and not in its place yet, not that of a source."""
    return path.endswith(INDEX_SUFFIX) or (INDEX_SUFFIX in path and _UNFINISHED.search(path) is not None)


def roots_to_give(roots: Sequence[str]) -> str:
    """Return how the user allows these directories, as a message says it."""
    options = " ".join(f"--root {quoted(root)}" for root in roots)
    return either(f"add {options}", f"open it with roots={list(roots)}")


class IndexFile(SectionFile):
    """What the two kinds of .mmx files have in common: an index of sources, and a saved view."""

    MAGIC = INDEX_MAGIC

    def __init__(self, path: str, roots: Roots | None, io: Io) -> None:
        self.opened_in = working_directory()
        self.roots = roots or Roots()
        self._real_home: str | None = None
        super().__init__(path, open_index_file(path, self.opened_in, io))
        self.columns = {
            name.removeprefix(COLUMN): section for name, section in self.sections.items() if name.startswith(COLUMN)
        }
        """The columns by name."""

    def column(self, name: str) -> tuple[str, memoryview]:
        """Return the type and the bytes of a column, mapped.

        Raises:
          ColumnError: the file does not have it.
        """
        if name not in self.columns:
            known = ", ".join(map(repr, self.columns)) or "none"
            raise ColumnError(f"{self.path}: expected column {name!r}, found {known}; {self.way_to_column(name)}")
        return self.sections[COLUMN + name].dtype, self.section(COLUMN + name)

    def _has_now(self, name: str) -> bool:
        """Whether the index was written again meanwhile, and has a column that it lacked when it was opened."""
        try:
            return name in Index(self.absolute(self.path), self.roots).columns
        except Error:
            return False

    def way_to_column(self, name: str) -> str:
        """Return how to get a column that is missing, as the end of a message."""
        return self.remedy()

    @property
    def home(self) -> str:
        """The real path of the directory that holds the file."""
        if self._real_home is None:
            self._real_home = self.roots.real_directory(os.path.dirname(self.absolute(self.path)))
        return self._real_home

    def absolute(self, path: str) -> str:
        """Return a path relative to the working directory in which the file was opened."""
        return path if path.startswith("/") else os.path.join(self.opened_in, path)


class Index(IndexFile):
    """An open .mmx file of sources.

    Args:
      path: of the file.
      roots: where its sources may lie besides its own directory.
      io: how its sections are read: mapped, or by pread, which copies those that are asked for.
    Raises:
      IndexMissingError: the file does not exist.
      FormatError: the file is not an index, is damaged, or needs a newer mmapds.
    """

    NAME, KINDS = "AN INDEX", (0, OF_COMPRESSED)
    TYPES = (U8, *SectionFile.TYPES)

    def other_kind(self, kind: int) -> FormatError | None:
        if kind != 1:
            return None
        return SavedViewFoundError(
            f"{self.path}: NOT AN INDEX: expected one of sources, found a saved view; give the indexes that it was "
            "saved of"
        )

    def __init__(self, path: str, roots: Roots | None = None, io: Io = "mmap") -> None:
        self._folders: dict[str, bool] | None = None  # of sources: whether all plain files there lie inside
        self.sources: list[IndexedSource] = []
        self.check = "stat"
        """How sources were compared, one of `current.CHECKS`; with "none", they are not when they are first read."""
        self.recognised: dict[int, int] = {}
        """Number of a source whose content was compared and is the same, to the time of change that it had."""
        self._starts: dict[str, list[int]] = {}
        # What messages say of all sources, of which there may be thousands, each with a message of its own:
        self._found_outside: list[str] | None = None
        self._refused: list[str] | None = None
        self._there: list[str] | None = None
        super().__init__(path, roots, io)
        metadata = self.metadata
        self._check_measuring(metadata)
        self.functions: dict[str, str] = metadata.get("functions", _NONE)
        """What the functions that computed columns are known by, by column: see `mmapds.add_column`."""
        if not isinstance(self.functions, dict) or not all(isinstance(mark, str) for mark in self.functions.values()):
            raise self.damaged(f"malformed metadata: expected functions by name, found {self.functions!r}")
        try:
            self.format: str = metadata["format"]
            self.parameters: dict[str, Any] = dict(metadata.get("parameters", {}))
            self._check_parameters()
            self.sources = [IndexedSource.parse(source) for source in metadata["sources"]]
        except MALFORMED as error:
            raise self.malformed(error) from None
        self.firsts = list(accumulate((source.records for source in self.sources), initial=0))
        """The number of the first record of each source, and that of all records."""
        if (held := self.firsts[-1]) != self.records:
            raise self.damaged(f"expected {self.records} records, as the header says, found {held} in the sources")
        self.has_bounds = "offsets" in self.sections or "record_bytes" not in self.parameters
        self._check_sections()
        self._metadata = None  # what is needed of them is held already, and a dataset may have thousands of indexes

    def _check_parameters(self) -> None:
        """Raise TypeError for what every reader of the index takes for granted; formats check the rest."""
        if type(self.format) is not str:
            raise TypeError(f"format = {self.format!r}, expected a string")
        size = self.parameters.get("record_bytes", 1)
        if type(size) is not int or not 1 <= size < 2**63:
            raise TypeError(f"record_bytes = {size!r}, expected an integer of 1 to 2**63 - 1")
        held = self.parameters.get("columns", {})
        if not isinstance(held, dict) or not all(isinstance(text, str) for text in held.values()):
            raise TypeError(f"columns = {held!r} among the parameters, expected a dict of name to expression")

    def _check_measuring(self, metadata: dict[str, Any]) -> None:
        found = self._measuring = metadata.get("columns", NOTHING)
        kinds = {"expressions": dict, "missing": str | int | float, "validate": bool}
        fits = isinstance(found, dict) and all(isinstance(found.get(name), kind) for name, kind in kinds.items())
        fits = fits and found.get("bad", "error") in ("error", "skip")
        if not fits or not all(isinstance(text, str) for text in found["expressions"].values()):
            raise self.damaged(f"malformed metadata: expected columns like {NOTHING}, found {found!r}")

    def _check_sections(self) -> None:
        """Raise FormatError unless every section has as many numbers as there are records, or distinct lengths."""
        if self.has_bounds:
            self._check_bounds()
        self._check_blocks()
        missing = [name for name in LENGTH_SECTIONS if name not in self.sections]
        has_order = len(missing) < len(LENGTH_SECTIONS)
        if has_order and missing:
            raise self.damaged(f"expected sections {', '.join(LENGTH_SECTIONS)} together, found no {missing[0]}")
        lengths = self.sections["length_values"].items if has_order else 0
        for name in (*self.expressions, *(["length"] if has_order else [])):
            if name not in self.columns:
                raise self.damaged(f"expected a section of column {name!r}, which the index says it has, found none")
        for name, types in SECTION_TYPES.items():
            if name in self.sections and self.sections[name].dtype not in types:
                found_type = self.sections[name].dtype
                raise self.damaged(f"section {name!r}: expected type {' or '.join(types)}, found {found_type}")
        wanted_items = {"length_order": self.records, "length_counts": lengths}
        for name, section in self.sections.items():
            items = self.records if name.startswith(COLUMN) else wanted_items.get(name, section.items)
            if name.startswith(COLUMN) and section.dtype == U8.dtype:
                raise self.damaged(f"column {name.removeprefix(COLUMN)!r}: expected numbers, found bytes")
            if section.items != items:
                kind = "column" if name.startswith(COLUMN) else "section"
                raise self.damaged(
                    f"{kind} {name.removeprefix(COLUMN)!r}: expected {items} numbers, found {section.items}"
                )

    def _check_bounds(self) -> None:
        wanted = 0
        for source in self.sources:
            if not source.width:
                raise self.damaged(f"width of a source: expected 2, 3, 4 or 8, as it has bounds, found {source.width}")
            wanted += groups_of(source.width, source.records) * GROUP // U64.width
        found = self.sections.get(BOUNDS, Section(U64.dtype, 0, 0, ""))
        if found.dtype != U64.dtype or found.items != wanted:
            raise self.damaged(
                f"expected {wanted} numbers of type {U64.dtype} in section {BOUNDS!r}, found {found.items} of type "
                f"{found.dtype}"
            )

    def _check_blocks(self) -> None:
        """Raise FormatError unless the sections of blocks have as many numbers as the sources have blocks."""
        compressed = [source.compression for source in self.sources if source.compression is not None]
        if bool(compressed) != (self.kind == OF_COMPRESSED):
            raise self.damaged(
                f"expected kind {OF_COMPRESSED} if a source is compressed, and no other, found kind {self.kind} and "
                f"{len(compressed)} of {len(self.sources)} sources compressed"
            )
        for name, wanted in numbers_in(compressed).items() if compressed else ():
            found = self.sections[name].items if name in self.sections else 0
            if found != wanted:
                raise self.damaged(f"section {name!r}: expected {wanted} numbers, found {found}")

    def blocks_at(self, number: int) -> int:
        """Return the number of the first entry that a source has in the sections of blocks."""
        return self._start("blocks", number)

    def points_at(self, number: int) -> int:
        """Return where the access points of a source begin in their section."""
        return self._start("points", number)

    def _start(self, what: str, number: int) -> int:
        """Return where a source begins among the groups, blocks or access points of all."""
        if what not in self._starts:  # not a cached_property: that of Python 3.11 has a lock, which a fork may copy
            counts: Iterable[int] = (groups_of(source.width, source.records) for source in self.sources)
            if what != "groups":
                compressed = [source.compression for source in self.sources]
                counts = (each.blocks + 1 if each else 0 for each in compressed)
                if what == "points":
                    counts = (each.points if each else 0 for each in compressed)
            self._starts[what] = list(accumulate(counts, initial=0))
        return self._starts[what][number]

    def source_path(self, number: int) -> str:
        """Return where a source is, relative to where the index is now, as messages say it.

        Nothing has checked where it leads: `readable_path` does, and all that read a source ask that.
        """
        relative = self.sources[number].path
        # `..` starts from the real place of the index, not from that of a link to it.
        if "/" not in relative:
            return self.path[: self.path.rfind("/") + 1] + relative
        home = self.home
        while relative.startswith("../"):  # up from a real path, so that is its parent; not so behind a name
            home, relative = os.path.dirname(home), relative[3:]
        return os.path.join(home, relative)

    def readable_path(self, number: int) -> str:
        """Return where a source is, once it is certain that it may be read.

        Raises:
          SourceError: it lies outside the directory of the index, and the user has not named it or a root above it.
        """
        path = self.source_path(number)
        # A file that is not a link needs nothing more, and indexes have them by the thousands.
        if not self.is_inside(number) or os.path.islink(self.absolute(path)):
            self.check_reach(path)
        return path

    def is_inside(self, number: int) -> bool:
        """Whether a source lies below the directory of the index, and is not hidden; unless it is a link itself."""
        relative = self.sources[number].path
        cut = relative.rfind("/") + 1
        folder = relative[:cut]
        if not folder:
            return relative[:1] not in ("", ".")
        if self._folders is None:
            self._folders = {}
        if folder not in self._folders:
            self._folders[folder] = is_inside(os.path.realpath(os.path.join(self.home, folder)) + "/x", self.home)
        return self._folders[folder] and relative[cut : cut + 1] not in ("", ".")

    def check_reach(self, path: str) -> None:
        """Raise SourceError unless a file that this index leads to may be read; see `mmapds.storage.roots`."""
        real = os.path.realpath(self.absolute(path))
        if is_inside(real, self.home) or self.roots.admit(real):
            return
        if self._refused is None:
            self._refused = covering(path for path in self._outside() if not self.roots.admit(path))
        roots = self._refused
        if not any(is_below(real, root) for root in roots):  # a file beside a source
            roots = sorted({*roots, os.path.dirname(real)})
        raise SourceError(
            f"{self.path}: expected sources below its own directory that are not hidden, found {real}; "
            f"{roots_to_give(roots)} (if you trust who made the index, and they are still there; else index them where "
            "they are now)"
        )

    def roots_needed(self) -> list[str]:
        """Return directories that hold the sources which lie outside, whether or not the user allows them."""
        return covering(self._outside())

    def _outside(self) -> list[str]:
        """Return the real paths of the sources that lie outside, as they are when this is first asked for."""
        if self._found_outside is None:
            paths = map(self.absolute, map(self.source_path, range(len(self.sources))))
            self._found_outside = [real for real in map(os.path.realpath, paths) if not is_inside(real, self.home)]
        return self._found_outside

    def bounds(self, number: int, begin: int, end: int) -> memoryview:
        """Return some of the bounds of a source, uint64: where its records `begin` to `end - 1` begin.

        That of the record after the last one is where the last one ends. Empty if all records have one size.
        """
        width = self.sources[number].width
        if not self.has_bounds or begin >= end:
            return memoryview(b"").cast("Q")
        each = records_in_group(width)
        first, last = begin // each, (end - 1) // each
        groups = self.read(self.bounds_at(number) + first * GROUP, (last - first + 1) * GROUP)
        return unpacked(width, groups)[begin - first * each : end - first * each]

    def end(self, number: int) -> int:
        """Return the byte where the last record of a source ends, or where the first one would begin."""
        source = self.sources[number]
        if not self.has_bounds:
            return source.first + source.records * int(self.parameters["record_bytes"])
        found: int = self.bounds(number, source.records, source.records + 1)[0]
        return found

    def extent(self, number: int) -> int:
        """Return how many bytes the records of a source take, framing included, without what lies before and after."""
        first = self.bounds(number, 0, 1)[0] if self.has_bounds else self.sources[number].first
        return self.end(number) - first

    def bounds_at(self, number: int) -> int:
        """Return the byte of the index where the groups of a source begin; 0 if all records have one size."""
        if not self.has_bounds:
            return 0
        return self.sections[BOUNDS].offset + self._start("groups", number) * GROUP

    def _has_now(self, name: str) -> bool:
        """Whether the index was written again meanwhile, and has a column that it lacked when it was opened."""
        try:
            return name in Index(self.absolute(self.path), self.roots).columns
        except Error:
            return False

    def way_to_column(self, name: str) -> str:
        """Return how to get a column that is missing: by a command, where an expression may measure it."""
        if self._has_now(name):
            return "open the dataset again, as the index on disk has this column now"
        near = nearest(name, self.columns)
        meant = f"did you mean {near!r}" if near else ""
        expression = "EXPR" if self.format == "jsonl" else ""
        if name == "length" and not expression:
            measured = map(str, self.parameters.get("columns", {}).values())
            expression = next((text for text in measured if text.startswith("items(")), "bytes()")
        if not expression or self.computed_columns:  # which a command would lose
            return f"use mmapds.add_column{f' ({meant})' if meant else ''}"
        others = "; ".join(["or use mmapds.add_column", *filter(None, [meant])])
        return f"run: {self.rebuild_command()} {column_option(name, expression)} ({others})"

    @property
    def measuring(self) -> dict[str, Any]:
        """How the columns were measured: see `Measuring.describe`."""
        return dict(self._measuring or NOTHING)

    @property
    def expressions(self) -> dict[str, str]:
        """The columns that were measured, each with its expression."""
        found: dict[str, str] = self._measuring["expressions"]
        return found

    def meaning(self, name: str) -> str:
        """Return the expression or the function that made a column; "" where its numbers were given."""
        function = self.functions.get(name, "").rpartition(":")[0]
        return self.expressions.get(name) or (f"function {function}" if function else "")

    @property
    def computed_columns(self) -> list[str]:
        """Names of the columns that a rebuild loses: they come neither from an expression nor from the sources."""
        known = {*self.measuring["expressions"], *self.parameters.get("columns", {})}
        return [name for name in self.columns if name not in known]

    def covers(self, path: str) -> bool:
        """Whether it is the index of one source, and that is this file, by its name or through links."""
        if len(self.sources) != 1:
            return False
        found = self.source_path(0)
        try:  # the name first, as datasets have indexes by the thousands
            return found == path or os.path.samefile(self.absolute(found), self.absolute(path))
        except OSError:
            return False

    def check_covers(self, given: str) -> None:
        """Raise StaleIndexError if a source was given, not this index, and the index is not of that source alone."""
        if names_index(given) or self.covers(given):
            return
        is_one, computed = len(self.sources) == 1, ", ".join(map(repr, self.computed_columns))
        found = self.source_path(0) if is_one else f"{len(self.sources):,} sources"
        command = build_command([given], *["--force"] * bool(computed))
        more = f" (and add again what was computed in Python: {computed})" if computed else ""
        if not is_one:
            more = f" (or give {self.path} for all of them)"
        raise StaleIndexError(
            f"{self.path}: STALE: expected the index of {given}, found one of {found}; run: {command}{more}"
        )

    def check_size(self, number: int, size: int) -> None:
        """Raise StaleIndexError unless a source has the size that it had when it was indexed."""
        source = self.sources[number]
        if size != source.size:
            name = os.path.basename(source.path)
            raise StaleIndexError(
                f"{self.path}: STALE: {name} was {plain_counted(source.size, 'byte')} when indexed and is {size} now; "
                f"{self.remedy(force=False)}"
            )

    def remedy(self, *options: str, force: bool = True) -> str:
        """Return the one command that mends this index, as the end of a message.

        Args:
          options: more than the index was built with.
          force: build it even if it seems up to date; needed where the sources have the size and time they had.
        """
        if not self.sources:  # the metadata that name them are damaged
            source = self.path.removesuffix(INDEX_SUFFIX)
            if os.path.exists(source):
                return f"run: {build_command([source])} (with the options that it was built with)"
            return f"run: {build_command(['SOURCE...'], '-o', quoted(self.path))}"
        if computed := self.computed_columns:
            lost = ", ".join(map(repr, computed))
            return (
                f"run: {self.rebuild_command(*options, '--force')} (and add again what was computed in Python: {lost})"
            )
        return f"run: {self.rebuild_command(*options, *['--force'] * force)}"

    def rebuild_command(self, *options: str) -> str:
        """Return the shell command that builds this index again."""
        if self.is_beside_its_source:
            return build_command([self.source_path(0)], *options)
        # Roots that the user gave, and no others: the command must not go further than the user did.
        roots = sorted(self.roots.lasting()) if self._outside() else []
        return build_command([self.path], *options, *(f"--root {quoted(root)}" for root in roots))

    def new_command(self) -> str:
        """Return the shell command that makes an index of the sources that are there, when this is first asked for.

        Empty where none is there, or where the options of the format have to be given too.
        """
        if self._there is None:
            paths = map(self.source_path, range(len(self.sources)))
            self._there = list(islice((path for path in paths if os.path.lexists(self.absolute(path))), NAMED + 1))
        there = self._there
        if not there or self.format in _WITH_OPTIONS:
            return ""
        options = measuring_options(self.measuring)
        place = [] if self.is_beside_its_source else [f"-o {quoted(self.path)}"]
        return build_command(there if len(there) <= NAMED else ["SOURCE..."], *place, *options)

    def unreadable(self, number: int, problem: str) -> SourceError:
        """Return the error for a source that cannot be opened; where others are there, it says how to go on with them.

        Args:
          problem: what the system says.
        """
        path = self.source_path(number)
        is_missing = not os.path.lexists(self.absolute(path))
        if is_missing and len(self.sources) > 1 and (command := self.new_command()):
            return SourceError(f"{path}: {problem}; run: {command} (which indexes what is left of {self.path})")
        return SourceError(f"{path}: {problem} (a source of {self.path})")

    @property
    def is_beside_its_source(self) -> bool:
        """Whether it is the index that a source of its own has, so that naming the source is naming the index."""
        return len(self.sources) == 1 and self.path == self.source_path(0) + INDEX_SUFFIX
