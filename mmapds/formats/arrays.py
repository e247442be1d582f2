"""mmapds's own array files: records of named fields, written by `mmapds.Writer`. See docs/arrays.md.

A file holds where its records begin, and its columns, so that indexing copies these and reads no record. Only of a file
that is cut short the records themselves are walked through.
"""

from array import array
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from .. import _native
from .._native import NUMBER_F64, NUMBER_I64, NUMBER_U64
from ..errors import ColumnError, FormatError, SourceError
from ..measure import Measuring
from ..sources import Source, unreadable
from ..store import COLUMN, IndexedSource, Layout, SectionFile
from . import truncation
from .piece import End, Piece

if TYPE_CHECKING:
    from ..schema import Field, Schema

NAME = "arrays"
SUFFIX = ".mma"
SUFFIXES = (SUFFIX,)
TEXT = False
DECODERS = ("bytes",)
OPTIONS = truncation.OPTIONS

MAGIC = b"\x89MMA\r\n\x1a\n"
"""Damaged by any transfer that takes the file for text."""


_HEADER = 64
_SIZES = 16  # of the schema: how many bytes, and their checksum
_ALIGNMENT = 64
_AT_ONCE = 1 << 16  # records in a piece
_NUMBER_TYPES = {"<u4": NUMBER_U64, "<u8": NUMBER_U64, "<i8": NUMBER_I64, "<f8": NUMBER_F64}

Cells = tuple[int, memoryview]


class _Head:
    """What stands before the records, which is all that is left where a file is cut short.

    Raises:
      FormatError: the file is no array file, was not finished, or needs a newer mmapds.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            self.map = _native.Map(path)
        except OSError as error:
            raise unreadable(path, error) from None
        except ValueError:
            raise SourceError(f"{path}: not a regular file") from None
        view = memoryview(self.map)
        if len(view) < _HEADER + _SIZES or view[:8] != MAGIC:
            found = f"it begins with {bytes(view[:8])!r}, expected {MAGIC!r}"
            if not any(view[:_HEADER]):
                found = "it was not finished; write it again"
            raise FormatError(f"{path}: NOT AN ARRAY FILE: {found}")
        version = int.from_bytes(view[8:12], "little")
        if version != 1:
            raise FormatError(f"{path}: VERSION: file is format {version}, this mmapds reads 1; upgrade mmapds")
        self.records = int.from_bytes(view[16:24], "little")
        self.size = int.from_bytes(view[40:48], "little")
        size = int.from_bytes(view[_HEADER : _HEADER + 8], "little")
        self.first = -(-(_HEADER + _SIZES + size) // _ALIGNMENT) * _ALIGNMENT
        text = bytes(view[_HEADER + _SIZES : _HEADER + _SIZES + size]) if size <= len(view) else b""
        from xxhash import xxh3_64

        if xxh3_64(text).digest() != bytes(view[_HEADER + 8 : _HEADER + 16])[::-1] or len(text) != size:
            raise FormatError(f"{path}: DAMAGED: its schema does not match its checksum; write or copy it again")
        from ..schema import parse  # which indexes of other formats do without

        try:
            self.schema, self.columns = parse(text)
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise FormatError(f"{path}: DAMAGED: its schema is not as specified ({error!r}); write it again") from None


class _File(SectionFile):
    """A whole array file."""

    MAGIC, NAME, REMEDY = MAGIC, "AN ARRAY FILE", "write or copy it again"
    DTYPES = ("|u1", "<u4", "<u8", "<i8", "<f8")

    def __init__(self, head: _Head) -> None:
        super().__init__(head.path, head.map)
        names = ["offsets", *(COLUMN + field.column for field in head.schema.fields if field.column)]
        if not all(name in self.sections and self.sections[name].items == self.records for name in names):
            raise self._damaged("it has not an offset, and a number of each column, for each record")
        dtypes = {self.sections[name].dtype for name in names}
        if "records" not in self.sections or "|u1" in dtypes or self.sections["offsets"].dtype not in ("<u4", "<u8"):
            raise self._damaged("its sections are not as specified")
        for name in names:
            self.verify_section(name)

    @property
    def end(self) -> int:
        """Where the last record ends."""
        return self.sections["records"].offset + self.sections["records"].size

    def cells(self, name: str, begin: int, end: int) -> Cells:
        """The type of a section's numbers, and some of them as 64-bit cells."""
        dtype = self.sections[name].dtype
        width = int(dtype[-1])
        data = self.section(name)[begin * width : end * width]
        if width == 4:
            wide = memoryview(bytearray(2 * len(data)))
            _native.cells_widen(data, wide)
            data = wide
        return _NUMBER_TYPES[dtype], data.cast("Q")


def recognises(head: bytes) -> bool:
    """Whether a file is of this format, by its first bytes."""
    return head.startswith(MAGIC)


def parameters(given: Mapping[str, Any], sources: Sequence[str]) -> dict[str, Any]:
    """Return the schema and the columns that the sources hold, name to expression, which all must share.

    Raises:
      FormatError: a source is no array file, or differs from another.
    """
    truncated = truncation.check(given)
    first, *others = map(_Head, sources)
    described = {"schema": first.schema.describe(), "columns": first.columns}
    for other in others:
        for part, found in (("schema", other.schema.describe()), ("columns", other.columns)):
            if list(found.items()) != list(described[part].items()):
                raise FormatError(
                    f"{other.path}: has {part} {found}, {first.path} {described[part]}; expected the same in one index"
                )
    return {**described, "truncated": truncated}


def layout(parameters: Mapping[str, Any], source: IndexedSource) -> Layout:  # noqa: ARG001 - the face of formats
    """A record tells where its parts are, relative to its beginning."""
    return Layout(_native.FRAMING_NONE)


def decoder(parameters: Mapping[str, Any]) -> Any:
    """A dict of fields, whose arrays share memory with the file."""
    from ..arrays import ArrayDecoder  # which imports numpy; an index does without

    return ArrayDecoder(parameters["schema"])


def scan(
    sources: Sequence[Source],
    *,
    parameters: Mapping[str, Any],
    workers: int,  # noqa: ARG001
    measuring: Measuring,
) -> Iterator[Piece]:
    """Yield where every record of every source begins, and its columns, as the sources themselves say.

    Raises:
      FormatError: a source is damaged, or cut short.
      ColumnError: a column is asked for that the sources do not hold.
    """
    if measuring.validate:
        raise ColumnError("validate: expected JSON, these records have a binary format")
    for number, source in enumerate(sources):
        head = _Head(source.path)
        wanted = _wanted(head.schema, measuring)
        if head.size <= source.size:
            yield from _stored(number, source, _File(head), wanted)
        else:
            yield from _walked(number, source, head, wanted, drop=parameters["truncated"] == "drop")


def verify(sources: Sequence[Source], parameters: Mapping[str, Any]) -> None:  # noqa: ARG001 - the face of formats
    """Check the records of all sources against their checksums.

    Raises:
      FormatError: some are damaged.
    """
    for source in sources:
        head = _Head(source.path)
        if head.size <= head.map.size:
            _File(head).verify_sections()


def _wanted(schema: "Schema", measuring: Measuring) -> "list[Field | None]":
    """The field behind each column; None stands for the bytes of the record."""
    held: dict[tuple[int, tuple[bytes, ...]], Field | None] = {
        (_native.MEASURE_NUMBER if field.is_scalar else _native.MEASURE_ITEMS, (field.name.encode(),)): field
        for field in schema.fields
        if field.column
    } | {(_native.MEASURE_RECORD, ()): None}
    for name, expression in measuring.columns.items():
        if (expression.measure, expression.path) not in held:
            known = ", ".join(field.expression for field in held.values() if field)
            raise ColumnError(
                f"column {name!r}: array files do not hold {expression.text!r}; expected bytes(){known and ', '}{known}"
                ", or use mmapds.add_column"
            )
    return [held[expression.measure, expression.path] for expression in measuring.columns.values()]


def _stored(number: int, source: Source, file: _File, wanted: "list[Field | None]") -> Iterator[Piece]:
    for begin in range(0, max(file.records, 1), _AT_ONCE):
        end = min(begin + _AT_ONCE, file.records)
        _, starts = file.cells("offsets", begin, end)
        last = end == file.records
        after = file.end if last else file.cells("offsets", end, end + 1)[1][0]
        columns = tuple(
            file.cells(f"{COLUMN}{field.column}", begin, end) if field else _sizes(starts, after) for field in wanted
        )
        done = End(file.records, file.end) if last else None
        yield Piece(number, starts, columns, 0, source.size if last else 0, done)


def _sizes(starts: memoryview, after: int) -> Cells:
    sizes = array("Q", ((b - a) % 2**64 for a, b in pairwise([*starts, after])))
    return NUMBER_U64, memoryview(sizes).cast("B").cast("Q")


def _walked(number: int, source: Source, head: _Head, wanted: "list[Field | None]", *, drop: bool) -> Iterator[Piece]:
    """The records before the place where a file is cut short."""
    fields = head.schema.native(str, None, None)
    view = memoryview(head.map)
    places = [head.schema.fields.index(field) + 1 if field else 0 for field in wanted]
    starts, cells = array("Q"), [array("Q") for _ in wanted]
    at, done = head.first, 0
    piece = partial(_piece, number, wanted)
    while done < head.records and (words := fields.words(view, at)) is not None:
        done += 1
        starts.append(at)
        stop = min(at + words[0] + -words[0] % _ALIGNMENT, source.size)
        words = (stop - at, *words[1:])
        for column, place in zip(cells, places, strict=True):
            column.append(words[place])
        at = stop
        if len(starts) == _AT_ONCE and drop:
            yield piece(starts, cells)
            starts, cells = array("Q"), [array("Q") for _ in wanted]
    if not drop:
        cut = (
            f"record {done} (byte {at}) is cut short"
            if done < head.records
            else "the end, after all records, is missing"
        )
        raise FormatError(
            f"{source.path}: {cut}: the file has {source.size} bytes, its header says {head.size}; copy it again, or "
            "leave out what is missing with --truncated drop"
        )
    yield piece(starts, cells, head.records - done, source.size, End(done, at))


def _number_type(field: "Field | None", cells: "array[int]") -> int:
    if field is None or not field.is_scalar:
        return NUMBER_U64
    is_signed = field.number_type == NUMBER_I64 and max(cells, default=0) >= 2**63
    return NUMBER_I64 if is_signed else NUMBER_F64 if field.number_type == NUMBER_F64 else NUMBER_U64


def _piece(
    number: int,
    wanted: "list[Field | None]",
    starts: "array[int]",
    cells: "list[array[int]]",
    skipped: int = 0,
    scanned: int = 0,
    end: End | None = None,
) -> Piece:
    columns = tuple(
        (_number_type(field, column), memoryview(column).cast("B").cast("Q"))
        for field, column in zip(wanted, cells, strict=True)
    )
    return Piece(number, memoryview(starts), columns, skipped, scanned, end)
