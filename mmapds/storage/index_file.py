"""The .mmx file: what an index says of its sources and records. See docs/index-file.md."""

import os
from functools import cached_property
from itertools import accumulate
from typing import Any, NamedTuple

from .. import _native
from ..errors import ColumnError, Error, FormatError, IndexMissingError, SourceError, StaleIndexError
from .sections import COLUMN, MALFORMED, Section, SectionFile, SectionWriter
from .sources import INDEX_MAGIC, INDEX_SUFFIX, build_command, quoted, reason


class IndexedSource(NamedTuple):
    """A source as it was when it was indexed."""

    path: str
    """Relative to the directory that holds the index."""
    size: int
    """Bytes."""
    mtime_ns: int
    fingerprint: str
    """See `sources.fingerprint`."""
    records: int
    lines: int
    smallest: int
    """Bytes in the smallest record, framing included; 0 when there are no records."""
    largest: int
    skipped: int
    """Records left out because they lack a column, or are cut short."""
    first: int
    """Where the first record begins, where all have one size and there are no bounds; else 0."""

    @classmethod
    def parse(cls, fields: dict[str, Any]) -> "IndexedSource":
        """Make one of a JSON object; unknown keys are skipped.

        Raises:
          KeyError, TypeError: a field is missing or has the wrong type.
        """
        added = {name: fields.get(name, 0) for name in ("skipped", "first")}
        source = cls(**{name: fields[name] for name in cls._fields if name not in added}, **added)
        counts = (source.size, source.records, source.lines, source.smallest, source.largest, *added.values())
        if not all(type(n) is int and n >= 0 for n in counts) or type(source.mtime_ns) is not int:
            raise TypeError(f"{source.path}: a number is negative or no integer")
        if type(source.path) is not str or type(source.fingerprint) is not str:
            raise TypeError("path or fingerprint is no string")
        return source


class IndexWriter(SectionWriter):
    """Writes an index."""

    MAGIC, SUFFIX = INDEX_MAGIC, INDEX_SUFFIX
    NAME, ELSEWHERE = "the index", " with -o OUT.mmx (out= in Python)"

    def replace(self, before: "Index", metadata: dict[str, Any]) -> None:
        """Finish the file and put it in the place of an index of the same records.

        Raises:
          StaleIndexError: what is there now is another index.
        """

        def check() -> None:
            if Index(self.target).checksum != before.checksum:
                raise StaleIndexError(f"{self.path}: was built again meanwhile; nothing was changed, run again")

        self.commit(metadata, before.records, check)


def relative_to_index(source: str, index: str) -> str:
    """Return a source's path as an index stores it, so that the two can be moved together."""
    directory = os.path.realpath(os.path.dirname(index))
    parent, name = os.path.split(source)
    return os.path.normpath(os.path.join(os.path.relpath(os.path.realpath(parent), directory), name))


class Index(SectionFile):
    """An open .mmx file.

    Raises:
      IndexMissingError: there is no such file.
      FormatError: it is not an index, is damaged, or needs a newer mmapds.
    """

    MAGIC, NAME = INDEX_MAGIC, "AN INDEX"

    def __init__(self, path: str) -> None:
        self.opened_in = os.getcwd()
        try:
            opened = _native.Map(path)
        except FileNotFoundError:
            command = build_command([path.removesuffix(INDEX_SUFFIX)])
            raise IndexMissingError(f"{path}: no such index; run: {command}") from None
        except OSError as error:
            raise Error(f"{path}: {reason(error)}") from None
        except ValueError as error:
            raise FormatError(f"{path}: NOT AN INDEX: {error}") from None
        self.sources: list[IndexedSource] = []
        super().__init__(path, opened)
        self._check_measuring()
        try:
            self.format: str = self.metadata["format"]
            self.parameters: dict[str, Any] = dict(self.metadata.get("parameters", {}))
            self.sources = [IndexedSource.parse(source) for source in self.metadata["sources"]]
        except MALFORMED as error:
            raise self._not_as_specified(error) from None
        held = sum(source.records for source in self.sources)
        if held != self.records:
            raise self.damaged(f"its sources hold {held} records, its header says {self.records}")
        for name, wanted in (("length_order", self.records), ("length_counts", None)):
            found, values = self.sections.get(name), self.sections.get("length_values")
            if found is not None and (values is None or found.items != (values.items if wanted is None else wanted)):
                raise self.damaged(f"its section {name!r} has {found.items} numbers")
        for name, section in self.columns.items():
            if section.items != self.records:
                raise self.damaged(f"its column {name!r} has {section.items} numbers for {self.records} records")
        offsets = self.sections.get("offsets")
        self.has_bounds = offsets is not None or "record_bytes" not in self.parameters
        if self.has_bounds and not self._fit(offsets):
            raise self.damaged("it has not as many offsets as its records need")

    def _check_measuring(self) -> None:
        found = self.metadata.get("columns", NOTHING)
        kinds = {"expressions": dict, "missing": str | int | float, "validate": bool}
        whole = isinstance(found, dict) and all(isinstance(found.get(name), kind) for name, kind in kinds.items())
        if not whole or not all(isinstance(text, str) for text in found["expressions"].values()):
            raise self.damaged(f"its metadata say of columns {found!r}")

    def _fit(self, offsets: Section | None) -> bool:
        wanted = self.records + len(self.sources)
        return offsets is not None and offsets.dtype == "<u8" and offsets.items == wanted

    def source_path(self, number: int) -> str:
        """Where a source lies, now that the index lies where it does."""
        relative = self.sources[number].path
        directory = os.path.dirname(self.path)
        # A path that climbs is meant from where the index really lies, not from a link to that place.
        return os.path.join(directory if "/" not in relative else os.path.realpath(directory), relative)

    def absolute(self, path: str) -> str:
        """A path as it was meant when the index was opened, whatever the working directory is now."""
        return os.path.join(self.opened_in, path)

    @cached_property
    def _first_bounds(self) -> list[int]:
        return list(accumulate((source.records + 1 for source in self.sources), initial=0))

    def bounds(self, number: int) -> memoryview:
        """The uint64 bounds of a source's records: one more than it has records; none where they have one size."""
        if not self.has_bounds:
            return memoryview(b"").cast("Q")
        first = self._first_bounds[number]
        return self.section("offsets")[first * 8 : (first + self.sources[number].records + 1) * 8].cast("Q")

    @property
    def columns(self) -> dict[str, Section]:
        """The columns by name."""
        return {
            name.removeprefix(COLUMN): section for name, section in self.sections.items() if name.startswith(COLUMN)
        }

    def column(self, name: str) -> tuple[str, memoryview]:
        """The type and the bytes of a column, mapped.

        Raises:
          ColumnError: there is no such column.
        """
        if name not in self.columns:
            known = ", ".join(map(repr, self.columns)) or "none"
            option = "--length EXPR" if name == "length" else f"--column {name}=EXPR"
            raise ColumnError(
                f"{self.path}: no column {name!r}, it has {known}; run: {self.rebuild_command()} {option} "
                "(or use mmapds.add_column)"
            )
        return self.sections[COLUMN + name].dtype, self.section(COLUMN + name)

    @property
    def measuring(self) -> dict[str, Any]:
        """How the columns were measured: see `Measuring.describe`."""
        return dict(self.metadata.get("columns") or NOTHING)

    @property
    def computed_columns(self) -> list[str]:
        """Names of the columns that only Python can make again: neither an expression nor the sources have them."""
        known = {*self.measuring["expressions"], *self.parameters.get("columns", {})}
        return [name for name in self.columns if name not in known]

    def check_current(self) -> None:
        """Raise StaleIndexError unless every source has the size and time it had when it was indexed."""
        for number in range(len(self.sources)):
            path = self.source_path(number)
            try:
                found = os.stat(path)
            except OSError as error:
                raise SourceError(f"{path}: {reason(error)}; it is a source of {self.path}") from None
            self.check_source(number, found.st_size, found.st_mtime_ns)

    def check_source(self, number: int, size: int, mtime_ns: int) -> None:
        """Raise StaleIndexError unless a source's size and time are those it had when it was indexed."""
        source = self.sources[number]
        name = os.path.basename(source.path)
        if size != source.size:
            changed = f"{name} was {source.size} bytes when indexed and is {size} now"
        elif mtime_ns != source.mtime_ns:
            changed = f"{name} was written again after it was indexed (same size, another time)"
        else:
            return
        raise StaleIndexError(f"{self.path}: STALE: {changed}; {self.remedy(force=False)}")

    def remedy(self, *, force: bool = True) -> str:
        """Return the one command that mends this index, as the end of a message.

        Args:
          force: its sources have the size and time they had, so that it passes for up to date; False where they differ.
        """
        if not self.sources:  # which damaged metadata do not tell
            source = self.path.removesuffix(INDEX_SUFFIX)
            if os.path.exists(source):
                return f"run: {build_command([source])} (with the options that it was built with)"
            return f"run: {build_command(['SOURCE...'], '-o', quoted(self.path))}"
        if computed := self.computed_columns:
            lost = ", ".join(map(repr, computed))
            return f"run: {self.rebuild_command('--force')} (and add again what was computed in Python: {lost})"
        return f"run: {self.rebuild_command(*['--force'] * force)}"

    def rebuild_command(self, *options: str) -> str:
        """Return the shell command that builds this index again."""
        paths = [self.source_path(number) for number in range(len(self.sources))]
        return build_command(paths if [self.path] == [path + INDEX_SUFFIX for path in paths] else [self.path], *options)


NOTHING: dict[str, Any] = {"expressions": {}, "missing": "error", "validate": False}
"""How columns are measured where there are none; see `Measuring.describe`."""
