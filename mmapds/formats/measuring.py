"""Column expressions, and measuring them for every record while it is indexed.

An expression names a field of a JSON record by its path, and says what to measure:

  meta.frames     the number there
  bytes(text)     how many bytes the string there has in UTF-8
  chars(text)     how many code points it has
  items(tokens)   how many elements the array there has
  bytes()         how many bytes the whole record has

Dots separate the keys of a path; a dot inside a key is written `\\.`.
"""

import re
import struct
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

from .. import _native
from ..errors import ColumnError, option
from ..storage.sources import Source

_LONGEST = 64 << 20  # bytes of a line that are copied to say what is wrong

MEASURES = {"bytes": _native.MEASURE_BYTES, "chars": _native.MEASURE_CHARS, "items": _native.MEASURE_ITEMS}
"""What an expression can measure, by its name there."""


class Expression(NamedTuple):
    """A column expression."""

    text: str
    measure: int
    path: tuple[bytes, ...]

    @classmethod
    def parse(cls, column: str, text: str) -> "Expression":
        """Parse the expression that a user wrote for a column.

        Raises:
          ColumnError: the text is not an expression.
        """
        place = f"column {column!r}"
        if text == "bytes()":
            return cls(text, _native.MEASURE_RECORD, ())
        call = re.fullmatch(r"(\w+)\((.*)\)", text)
        if call and call[1] not in MEASURES:
            raise ColumnError(
                f"{place}: expected a path, bytes(path), chars(path), items(path) or bytes(), found {text!r}"
            )
        measure = MEASURES[call[1]] if call else _native.MEASURE_NUMBER
        try:
            keys = keys_of(call[2] if call else text)
        except UnicodeEncodeError:
            raise ColumnError(f"{place}: expected a path in UTF-8, found {text!r}") from None
        if not all(keys) or len(keys) > _native.LONGEST_PATH:
            raise ColumnError(
                f"{place}: expected a path of 1 to {_native.LONGEST_PATH} keys, none empty, separated by dots, found "
                f"{len(keys)} in {text!r}"
            )
        return cls(text, measure, keys)


def keys_of(path: str) -> tuple[bytes, ...]:
    """Return the keys of a path, as JSON has them: dots separate them, and `\\.` is a dot in a key.

    Raises:
      UnicodeEncodeError: the path cannot be written in UTF-8.
    """
    return tuple(key.replace(r"\.", ".").encode() for key in re.split(r"(?<!\\)\.", path))


ROUNDED = -1
"""The status of a record whose integer float64 does not hold, which the column needs for others; see `JSON_OK`."""


class UnmeasuredError(Exception):
    """A record of a block that cannot be measured; see `mmapds.formats.unmeasured`."""

    def __init__(self, source: Source, status: int, begin: int, kept: int, column: int, record: bytes, at: int) -> None:
        self.source = source
        self.status = status  # one of _native.JSON_*, or ROUNDED
        self.begin = begin
        """Where the record begins in the source."""
        self.kept = kept
        """How many records of the block are kept before it."""
        self.column = column
        self.record = record
        self.at = at
        """The byte of the record that shows what is wrong."""


class Measuring:
    """The columns that a scan measures, and its answer to records that lack one.

    Args:
      columns: name to expression.
      missing: "error", "skip" to leave such records out of the index, or a number to use for them. A null counts as
        missing; a field of the wrong type is always an error.
      validate: check that every record is JSON from its first byte to its last.
      bad: "error", or "skip" to leave records out of the index that are not JSON, for which all are validated.
    Raises:
      ColumnError: an expression, `missing` or `bad` is invalid.
    """

    def __init__(self, columns: Mapping[str, str], missing: str | float, validate: bool, bad: str = "error") -> None:
        if bad not in ("error", "skip"):
            raise ColumnError(f"bad = {bad!r}, expected 'error' or 'skip'")
        self.columns = {name: Expression.parse(name, text) for name, text in columns.items()}
        self.missing = missing
        self.skips_bad = bad == "skip"
        self.validate = bool(validate) or self.skips_bad
        self._missing, self._fill = _parse_missing(missing)
        self._core: _native.Measuring | None = None  # made when it is first needed

    @classmethod
    def of(cls, described: Mapping[str, Any]) -> "Measuring":
        """Return what `describe` describes."""
        how = described["missing"], described["validate"], described.get("bad", "error")
        return cls(described["expressions"], *how)

    def __bool__(self) -> bool:
        return bool(self.columns) or self.validate

    def describe(self) -> dict[str, Any]:
        """Return what an index stores about the making of its columns."""
        texts = {name: each.text for name, each in self.columns.items()}
        described = {"expressions": texts, "missing": self.missing, "validate": self.validate}
        return {**described, "bad": "skip"} if self.skips_bad else described

    def scan(
        self,
        source: Source,
        text: memoryview,
        base: int,
        block: tuple[int, int],
        starts: memoryview,
        cells: tuple[memoryview, ...],
    ) -> "Measured":
        """Find and measure the records that begin in a block of a source, into memory that has room for them.

        Args:
          text: the block, enough of what comes before to see where its first line begins, and its last line to the end.
          base: where the text begins in the source.
          block: where the block begins and ends there.
        Raises:
          UnmeasuredError: a record lacks a field, or it has the wrong type, or is not JSON, or its number would be
            rounded, as others of the block are floats.
        """
        if len(self.columns) > _native.MOST_COLUMNS:
            raise ColumnError(f"columns: expected up to {_native.MOST_COLUMNS} for JSON, found {len(self.columns)}")
        if self._core is None:
            self._core = _native.Measuring(
                fields=tuple((each.measure, each.path) for each in self.columns.values()),
                missing=self._missing,
                fill=self._fill,
                validate=self.validate,
                skip_bad=self.skips_bad,
            )
        found, kept, described, bad, failure = self._core.lines(text, base, *block, starts, cells)
        status, failed, column, at = failure
        if status != _native.JSON_OK:
            raise UnmeasuredError(source, status, failed, kept, column, _line(text[failed - base :]), at - failed)
        records, pending, newlines = found
        for number, (_, _, row) in enumerate(described):
            if row >= 0:
                begin = starts[row]
                raise UnmeasuredError(source, ROUNDED, begin, row, number, _line(text[begin - base :]), 0)
        columns = tuple((kind, each[:kept]) for (kind, _, _), each in zip(described, cells, strict=True))
        filled = tuple(count for _, count, _ in described)
        places = tuple(_places(text, base, block[0], bad[1]))
        return Measured(starts[:kept], columns, records - kept, pending, newlines, filled, bad[0], places)

    def constant(self, records: int, size: int) -> tuple[tuple[int, memoryview], ...]:
        """Return the columns of records of one size that are not JSON, which can only be `bytes()`.

        Raises:
          ColumnError: a column has another expression, or the records should be validated.
        """
        return self.sizes(memoryview(size.to_bytes(8, "little") * records).cast("Q"))

    def sizes(self, cells: memoryview) -> tuple[tuple[int, memoryview], ...]:
        """Return the columns of records of these sizes that are not JSON; see `constant`."""
        self.check_binary()
        for name, expression in self.columns.items():
            if expression.measure != _native.MEASURE_RECORD:
                raise ColumnError(
                    f"column {name!r}: expected bytes() for records that are not JSON, found {expression.text!r}; "
                    "compute others with mmapds.add_column"
                )
        return tuple((_native.NUMBER_U64, cells) for _ in self.columns)

    def check_binary(self) -> None:
        """Raise ColumnError for an option that makes sense for JSON alone."""
        if self.skips_bad:
            raise ColumnError(
                "bad = 'skip', expected 'error' for records of a binary format; leave out one that is truncated with "
                f"{option('truncated', 'drop')}, and those that cannot be decoded with mmapds.open(path, "
                "on_error='skip')"
            )
        if self.validate:
            raise ColumnError("validate = True, expected False for records of a binary format")


def _line(text: memoryview) -> bytes:
    """Return the first line, without its end; only the beginning of a very long one."""
    return bytes(text[:_LONGEST]).partition(b"\n")[0]


def _places(text: memoryview, base: int, begin: int, starts: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Yield how many lines end between the beginning of a block and each of some records, and where it begins."""
    lines = 0
    for before, start in pairwise((begin, *starts)):
        lines += bytes(text[before - base : max(start, before) - base]).count(b"\n")
        yield lines, start


def _parse_missing(missing: str | float) -> tuple[int, tuple[int, int]]:
    if missing == "error":
        return _native.MISSING_ERROR, (_native.NUMBER_U64, 0)
    if missing == "skip":
        return _native.MISSING_SKIP, (_native.NUMBER_U64, 0)
    if isinstance(missing, int) and not isinstance(missing, bool) and -(2**63) <= missing < 2**64:
        number_type = _native.NUMBER_I64 if missing < 0 else _native.NUMBER_U64
        return _native.MISSING_FILL, (number_type, missing % 2**64)
    if isinstance(missing, float):
        return _native.MISSING_FILL, (_native.NUMBER_F64, int.from_bytes(struct.pack("<d", missing), "little"))
    raise ColumnError(f"missing = {missing!r}, expected 'error', 'skip' or a number of up to 64 bits")


class Measured(NamedTuple):
    """The records that begin in a block of a source."""

    starts: memoryview
    """uint64: where each record that is kept begins."""
    columns: tuple[tuple[int, memoryview], ...]
    """For each column, the type of its numbers, and a 64-bit cell for each record."""
    skipped: int
    pending: int | None
    newlines: int
    """See mds_lines in csrc/mmapds.h."""
    filled: tuple[int, ...] = ()
    """For each column, how many records lack it and have the number for missing ones."""
    bad: int = 0
    """How many of those that were skipped are not JSON."""
    bad_at: tuple[tuple[int, int], ...] = ()
    """Of the first of them: lines that end in the block before it, and where it begins."""
