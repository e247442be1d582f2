"""Parse column expressions, and measure them for every record while it is indexed.

An expression names a field of a JSON record by its path, and the quantity to measure:

  meta.frames     the number in the field
  bytes(text)     bytes of the string, in UTF-8
  chars(text)     code points of the string
  items(tokens)   elements of the array
  bytes()         bytes of the whole record
  items()         tokens of the whole record, in formats of tokens

Dots separate the keys of a path; a dot inside a key is written `\\.`. `[*]` after a key stands for every item of
that list: the quantities of all items are added up, as in chars(messages[*].content).
"""

import codecs
import json
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from itertools import pairwise
from typing import Any, NamedTuple

from .. import _native
from ..errors import ColumnError, DecodeError, FormatError, option, shortened
from ..storage.numbers import EXACT
from ..storage.sources import Source

LARGEST_RECORD = 1 << 30
"""Default limit for a record of a compressed source, in bytes: a small file may decompress to any size."""
_LONGEST = 64 << 20  # bytes of a line that are copied for an error message
_NAMED = 8  # fields that a message names

MEASURES = {"bytes": _native.MEASURE_BYTES, "chars": _native.MEASURE_CHARS, "items": _native.MEASURE_ITEMS}
"""The quantities that an expression can measure, by name."""

_MISSING = {"error": _native.MISSING_ERROR, "skip": _native.MISSING_SKIP}
_EXPECTED = {
    _native.MEASURE_NUMBER: "a number",
    _native.MEASURE_BYTES: "a string",
    _native.MEASURE_CHARS: "a string",
    _native.MEASURE_ITEMS: "an array",
}
_ENCODINGS = {
    "UTF-8": ".",
    "CP1252": "(?<=[A-Za-z])[\u00c0-\u00ff]|[\u00c0-\u00ff](?=[A-Za-z])",
    "SHIFT_JIS": "[\u3000-\u9fff\uff01-\uff60]",
    "EUC-KR": "[\u3000-\u303f\uac00-\ud7a3]",
    "GB18030": "[\u3000-\u303f\u4e00-\u9fff\uff01-\uff60]",
    "CP1251": "(?<=[\u0400-\u04ff])[\u0400-\u04ff]|[\u0400-\u04ff](?=[\u0400-\u04ff])",
}
"""Encodings, with the letters beyond ASCII of their texts. If several fit, the first is likelier."""
_FOUND = {b'"': "a string", b"[": "an array", b"{": "an object", b"t": "true", b"f": "false", b"n": "null"}


class Expression(NamedTuple):
    """A column expression."""

    text: str
    measure: int
    path: tuple[bytes | None, ...]  # None stands for `[*]`

    @classmethod
    def parse(cls, column: str, text: str) -> "Expression":
        """Parse the expression of a column; raise ColumnError if it is not valid."""
        place = f"column {column!r}"
        if text in ("bytes()", "items()"):
            return cls(text, _native.MEASURE_RECORD, ())
        call = re.fullmatch(r"(\w+)\((.*)\)", text)
        if call and call[1] not in MEASURES:
            raise ColumnError(
                f"{place}: expected a path, bytes(path), chars(path), items(path), bytes() or items(), found {text!r}"
            )
        measure = MEASURES[call[1]] if call else _native.MEASURE_NUMBER
        try:
            path = _path_of(call[2] if call else text)
        except UnicodeEncodeError:
            path = (b"",)
        if b"" in path or path.count(None) > 1 or len(path) - path.count(None) > _native.LONGEST_PATH:
            raise ColumnError(
                f"{place}: expected a path of 1 to {_native.LONGEST_PATH} keys in UTF-8, none empty, separated by "
                f"dots, one of them with [*] behind it or none, found {text!r}"
            )
        return cls(text, measure, path)

    def misfit(self, status: int, record: bytes, at: int) -> str:
        """Return the message for a record that does not fit: expected and found; see `JSON_*` and `UnmeasuredError`."""
        shown = re.sub(r"^\w+\((.*)\)$", r"\1", self.text)
        if status == ROUNDED:
            return f"expected {EXACT} found another at `{shown}`"
        expected = f"expected {_EXPECTED[self.measure]}"
        if status in (_native.JSON_PARTIAL, _native.JSON_MISSING):
            way = f"count such items as 0 with {option('missing', 0)}, or " * (status == _native.JSON_PARTIAL)
            way += f"leave such records out with {option('missing', 'skip')}"
            return f"{expected} at `{shown}`, found null or no field{self._beside(record)}; {way}"
        inside = len(self.path) > 1 or not record.lstrip().startswith(b"{")
        where, place = " inside objects" * inside, ""
        if None in self.path:
            where, place = " in every item of a list", f" at byte {at} of the record"
        found = kind_of(record, at)
        to_number = self.measure == _native.MEASURE_NUMBER and found == "a string"
        way = "compute numbers by mmapds.add_column(path, NAME, FUNCTION), or " * to_number
        way += f"leave such lines out with {option('bad', 'skip')}"
        return f"{expected}{where} at `{shown}`, found {found}{place}; {way}"

    def _beside(self, record: bytes) -> str:
        """Return the fields of a record where this one is missing, the nearest first, as text for a message."""
        try:
            value = json.loads(record)
        except (ValueError, RecursionError):  # a long record is cut
            return ""
        for key in (None if key is None else key.decode() for key in self.path):
            if isinstance(value, dict) and value.get(key) is None:
                near = get_close_matches(str(key), value, _NAMED, 0)
                return f" (fields: {', '.join(near)}{', ...' if len(value) > len(near) else ''})" if near else ""
            value = value.get(key) if isinstance(value, dict) else next(iter(value or [None]))
        return ""


def keys_of(path: str) -> tuple[bytes, ...]:
    """Return the keys of a path, in UTF-8: dots separate them, and `\\.` is a dot in a key.

    Raises:
      UnicodeEncodeError: the path cannot be written in UTF-8.
    """
    return tuple(key.replace(r"\.", ".").encode() for key in re.split(r"(?<!\\)\.", path))


def _path_of(text: str) -> tuple[bytes | None, ...]:
    """Return the keys of a path, with None after a key with `[*]`; `\\[*]` stands for the characters themselves."""
    path: list[bytes | None] = []
    for key in keys_of(text):
        name = re.sub(rb"((?<!\\)\[\*\])+$", b"", key)
        path += [name.replace(rb"\[*]", b"[*]"), *[None] * ((len(key) - len(name)) // len("[*]"))]
    return tuple(path)


ROUNDED = -1
"""The status of a record whose integer float64 would round, in a column that needs float64; see `JSON_OK`."""


class UnmeasuredError(Exception):
    """A record cannot be measured: its first byte, the number of kept records before it in the block, and the error."""

    def __init__(self, source: Source, begin: int, kept: int, error: ColumnError | DecodeError) -> None:
        self.source, self.begin, self.kept, self.error = source, begin, kept, error


class Measured(NamedTuple):
    """The records that begin in a block of a source."""

    starts: memoryview  # of kept records; fields as in `Piece`
    columns: tuple[tuple[int, memoryview], ...]
    skipped: int
    pending: int | None  # for this and `newlines` see mds_lines in csrc/mmapds.h
    newlines: int
    filled: tuple[int, ...] = ()
    bad: int = 0
    bad_at: tuple[tuple[int, int], ...] = ()  # line numbers from 0, within the block


class Measuring:
    """The columns that a scan measures, and the treatment of records that lack one.

    Args:
      columns: name to expression.
      missing: for records that lack a field, or have null: "error", "skip" to skip them, or a number for the
        column; then items of a sum count 0.
      validate: check that every record is JSON from its first byte to its last.
      bad: "error", or "skip" to skip records that are not JSON, or whose field has another type. "skip" validates all
        records.
      max_record: limit for a record of a compressed source, in bytes.
    Raises:
      ColumnError: an expression, `missing` or `bad` is invalid.
    """

    def __init__(
        self,
        columns: Mapping[str, str],
        missing: str | float,
        validate: bool,
        bad: str = "error",
        max_record: int = LARGEST_RECORD,
    ) -> None:
        if type(max_record) is not int or not 1 <= max_record < 2**63:
            raise ColumnError(f"max_record = {shortened(max_record)}, expected a number of bytes, 1 or more")
        if bad not in ("error", "skip"):
            raise ColumnError(f"bad = {bad!r}, expected 'error' or 'skip'")
        self.columns = {name: Expression.parse(name, text) for name, text in columns.items()}
        self.missing, self.max_record = missing, max_record
        self.skips_bad = bad == "skip"
        self.validate = bool(validate) or self.skips_bad
        self._missing, self._fill = _parse_missing(missing)
        self._core: _native.Measuring | None = None  # made on first use

    @classmethod
    def of(cls, described: Mapping[str, Any]) -> "Measuring":
        """Return the measuring from a result of `describe`."""
        optional = {name: described[name] for name in ("bad", "max_record") if name in described}
        return cls(described["expressions"], described["missing"], described["validate"], **optional)

    def __bool__(self) -> bool:
        return bool(self.columns) or self.validate

    def describe(self) -> dict[str, Any]:
        """Return what an index stores about how its columns were measured."""
        texts = {name: each.text for name, each in self.columns.items()}
        described: dict[str, Any] = {"expressions": texts, "missing": self.missing, "validate": self.validate}
        described |= {"bad": "skip"} if self.skips_bad else {}
        return described | ({"max_record": self.max_record} if self.max_record != LARGEST_RECORD else {})

    def check_size(self, source: Source, size: int) -> None:
        """Raise FormatError if a record of a compressed source is too large."""
        if source.codec and size > self.max_record:
            raise FormatError(
                f"{source.path}: expected records of up to {self.max_record:,} bytes, found one of {size:,} or more; "
                f"allow more with {option('max_record', 2 * size)}"
            )

    def scan(
        self, source: Source, text: memoryview, base: int, block: tuple[int, int], room: Sequence[memoryview]
    ) -> Measured:
        """Find and measure the records that begin in a block of a source.

        Args:
          text: the block, with enough text before it to find its first line, and with the whole of its last line.
          base: byte of the source where the text begins.
          block: bytes of the source where the block begins and ends.
          room: memory for the starts of records, and for each column.
        """
        if len(self.columns) > _native.MOST_COLUMNS:
            raise ColumnError(f"columns: expected up to {_native.MOST_COLUMNS} for JSON, found {len(self.columns)}")
        if self._core is None:
            self._refuse("items()", "of JSON")
            self._core = _native.Measuring(
                fields=tuple((each.measure, each.path) for each in self.columns.values()),
                missing=self._missing,
                fill=self._fill,
                validate=self.validate,
                skip_bad=self.skips_bad,
            )
        starts, *cells = room
        found, kept, described, bad, failure = self._core.lines(text, base, *block, starts, tuple(cells))
        status, begin, column, at = failure
        for number, (_, _, row) in enumerate(described):
            if row >= 0 and status == _native.JSON_OK:
                status, begin, column, at, kept = ROUNDED, starts[row], number, starts[row], row
        if status != _native.JSON_OK:
            record = bytes(text[begin - base :][:_LONGEST]).partition(b"\n")[0]
            error: ColumnError | DecodeError
            if status == _native.JSON_INVALID:
                error = DecodeError(f"{not_json(record)}; leave such lines out with {option('bad', 'skip')}")
            else:
                error = ColumnError(list(self.columns.values())[column].misfit(status, record, at - begin))
            raise UnmeasuredError(source, begin, kept, error)
        records, pending, newlines = found
        columns = tuple((kind, each[:kept]) for (kind, _, _), each in zip(described, cells, strict=True))
        filled = tuple(count for _, count, _ in described)
        places = tuple(_places(text, base, block[0], bad[1]))
        return Measured(starts[:kept], columns, records - kept, pending, newlines, filled, bad[0], places)

    def _refuse(self, text: str, what: str) -> None:
        for name, expression in self.columns.items():
            if expression.text == text:
                raise ColumnError(f"column {name!r}: expected another expression for records {what}, found {text!r}")

    def sizes(self, cells: memoryview, tokens: memoryview | None = None) -> tuple[tuple[int, memoryview], ...]:
        """Return the columns of records that are not JSON: `bytes()`, their sizes, and `items()`, their tokens."""
        self.check_binary()
        if tokens is None:
            self._refuse("items()", "without tokens")
        for name, expression in self.columns.items():
            if expression.measure != _native.MEASURE_RECORD:
                raise ColumnError(
                    f"column {name!r}: expected bytes() for records that are not JSON, found {expression.text!r}"
                )
        each = {"bytes()": cells, "items()": cells if tokens is None else tokens}
        return tuple((_native.NUMBER_U64, each[expression.text]) for expression in self.columns.values())

    def check_binary(self) -> None:
        """Raise ColumnError for an option that only makes sense for JSON."""
        if self.validate:
            given = "bad = 'skip', expected 'error'" if self.skips_bad else "validate = True, expected False"
            raise ColumnError(f"{given} for records of a binary format")


def not_json(record: bytes) -> str:
    """Return what is wrong with a record that is not JSON."""
    import orjson  # start-up time: only an error needs it

    if names := encodings_of(record):
        return f"not JSON: expected UTF-8, found {' or '.join(names[:3])}; convert it by iconv -f {names[0]} -t UTF-8"
    advice = f", which has {name}; open it with decode=json.loads" if (name := constant_in(record)) else ""
    try:
        orjson.loads(record.decode())
    except ValueError as error:
        return f"not JSON: {error}{advice}"
    return f"not JSON: unexpected byte: char {_native.json_error(None, record)}"


def encodings_of(text: bytes) -> list[str] | None:
    """Return the encodings that text may be in, the likeliest first; None for UTF-8."""
    found = {"UTF-16": 2.0} if text.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else {}
    for name, letters in _ENCODINGS.items():
        with suppress(UnicodeDecodeError):  # except for a character cut off at the end
            beyond = re.sub("[\0-\x7f]", "", decoded := codecs.getincrementaldecoder(name)().decode(text))
            found[name] = len(re.findall(letters, decoded)) / max(len(beyond), 1)
    names = sorted((name for name in found if found[name] > 0.5), key=found.__getitem__, reverse=True)
    return None if "UTF-8" in found else names


def constant_in(record: bytes) -> str:
    """Return the constant, NaN or Infinity, that alone keeps a record from being JSON; "" if there is none."""
    found: list[str] = []
    with suppress(ValueError, RecursionError):
        json.loads(record, parse_constant=found.append)
        return "".join(found[:1])
    return ""


def kind_of(record: bytes, at: int) -> str:
    """Return the kind of value that begins at a byte of a record, for messages."""
    return _FOUND.get(record[at : at + 1], "a number")


def _places(text: memoryview, base: int, begin: int, starts: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Yield the line number, from 0 within the block, and the byte of each of some records."""
    lines = 0
    for before, start in pairwise((begin, *starts)):
        lines += bytes(text[before - base : max(start, before) - base]).count(b"\n")
        yield lines, start


def _parse_missing(missing: str | float) -> tuple[int, tuple[int, int]]:
    if isinstance(missing, str) and missing in _MISSING:
        return _MISSING[missing], (_native.NUMBER_U64, 0)
    if isinstance(missing, int) and not isinstance(missing, bool) and -(2**63) <= missing < 2**64:
        number_type = _native.NUMBER_I64 if missing < 0 else _native.NUMBER_U64
        return _native.MISSING_FILL, (number_type, missing % 2**64)
    if isinstance(missing, float):
        return _native.MISSING_FILL, (_native.NUMBER_F64, int.from_bytes(struct.pack("<d", missing), "little"))
    raise ColumnError(f"missing = {missing!r}, expected 'error', 'skip' or a number of up to 64 bits")
