"""Array files: records of named fields, written by `mmapds.Writer`. See docs/array-file.md.

A file stores where its records begin, and its columns. Indexing copies these and reads no record. Only in a truncated
file, whose end is missing, does it walk from record to record.
"""

from array import array
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from .. import _native
from .._native import NUMBER_F64, NUMBER_I64, NUMBER_U64
from ..arrays.array_file import MAGIC, RECORD_ALIGNMENT, SUFFIX, ArrayFile, Cells, Head
from ..arrays.schema import TO_ONE_SCHEMA
from ..errors import ColumnError, FormatError, option
from ..storage.numbers import BY_CELL, BY_DTYPE, F64, NumberType
from ..storage.sections import COLUMN, IndexedSource
from ..storage.sources import Source
from .format import TRUNCATED, End, FieldsOf, Format, Layout, Piece, Sample, check_truncated, drops_truncated
from .measuring import Measuring

if TYPE_CHECKING:
    from ..arrays.schema import Field, Schema

_AT_ONCE = 1 << 16  # records in a piece


class ArrayFiles(Format):
    """Records of named fields, written by `mmapds.Writer`."""

    name = "arrays"
    suffixes = (SUFFIX,)
    options = TRUNCATED

    def recognises(self, head: bytes) -> bool:
        """Whether a file begins with the magic bytes of array files."""
        return head.startswith(MAGIC)

    def parameters(self, given: Mapping[str, Any], sources: Sequence[str]) -> dict[str, Any]:
        """Return `truncated`, and the `schema` and the `columns`, name to expression, which all sources must share.

        Raises:
          FormatError: a source is not an array file, or differs from another.
        """
        truncated = check_truncated(given)
        first, *others = map(Head, sources)
        described = {"schema": first.schema.describe(), "columns": first.columns}
        for other in others:
            for part, found in (("schema", other.schema.describe()), ("columns", other.columns)):
                if list(found.items()) != list(described[part].items()):
                    raise FormatError(
                        f"{other.path}: {part}: expected {described[part]}, as in {first.path}, found {found}; "
                        + (TO_ONE_SCHEMA if part == "schema" else "index the files apart")
                    )
        return {**described, "truncated": truncated}

    def layout(self, parameters: Mapping[str, Any], source: IndexedSource) -> Layout:
        """A payload is all that lies between two bounds."""
        return Layout(_native.FRAMING_NONE)

    def decoder(self, parameters: Mapping[str, Any]) -> Sample:
        """A payload is a dict of fields."""
        return FieldsOf(parameters["schema"])

    def scan(
        self, sources: Sequence[Source], parameters: Mapping[str, Any], measuring: Measuring, *, workers: int
    ) -> Iterator[Piece]:
        """Yield where every record of every source begins, and its columns, both copied from the source."""
        measuring.check_binary()
        for number, source in enumerate(sources):
            head = Head(source.path)
            wanted = _wanted(head.schema, measuring)
            if head.size <= source.size:
                yield from _stored(number, source, ArrayFile(head), wanted)
            else:
                yield from _walked(number, source, head, wanted, drop=drops_truncated(parameters))

    def verify(self, sources: Sequence[Source], parameters: Mapping[str, Any]) -> None:
        """Check all sections of the sources against their checksums, and offsets and columns against the records."""
        for source in sources:
            head = Head(source.path)
            if head.size <= head.map.size:
                file = ArrayFile(head)
                file.verify_sections()
                _check_records(source, head, file)

    def lacks_checksums(self, source: Source) -> bool:
        """Whether the source was truncated: its checksums come last."""
        return Head(source.path).size > source.size


def _wanted(schema: "Schema", measuring: Measuring) -> "list[Field | None]":
    """Return the field behind each column; None for a column of the sizes of records."""
    held: dict[tuple[int, tuple[bytes, ...]], Field | None] = {
        (_native.MEASURE_NUMBER if field.is_scalar else _native.MEASURE_ITEMS, (field.name.encode(),)): field
        for field in schema.fields
        if field.column
    } | {(_native.MEASURE_RECORD, ()): None}
    for name, expression in measuring.columns.items():
        if (expression.measure, expression.path) not in held:
            known = ", ".join(["bytes()", *(field.expression for field in held.values() if field)])
            raise ColumnError(
                f"column {name!r}: expected one of {known}, found {expression.text!r}; compute others with "
                "mmapds.add_column"
            )
    return [held[expression.measure, expression.path] for expression in measuring.columns.values()]


def _stored(number: int, source: Source, file: ArrayFile, wanted: "list[Field | None]") -> Iterator[Piece]:
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


def _walked(number: int, source: Source, head: Head, wanted: "list[Field | None]", *, drop: bool) -> Iterator[Piece]:
    """Yield the whole records of a truncated file."""
    fields = head.schema.native(str, None, None)
    view = memoryview(head.map)
    places = [head.schema.fields.index(field) + 1 if field else 0 for field in wanted]
    starts, cells = array("Q"), [array("Q") for _ in wanted]
    at, done = head.first, 0
    piece = partial(_piece, number, wanted)
    while done < head.records and (words := fields.words(view, at)) is not None:
        done += 1
        starts.append(at)
        stop = min(at + words[0] + -words[0] % RECORD_ALIGNMENT, source.size)
        words = (stop - at, *words[1:])
        for column, place in zip(cells, places, strict=True):
            column.append(words[place])
        at = stop
        if len(starts) == _AT_ONCE and drop:
            yield piece(starts, cells)
            starts, cells = array("Q"), [array("Q") for _ in wanted]
    if not drop:
        if done < head.records:
            what, remedy = f"record {done} (byte {at})", "drop the incomplete records"
        else:
            what, remedy = f"truncated after its {done} records", "keep these"
        raise FormatError(
            f"{source.path}: {what}: expected a file of {head.size} bytes, found {source.size}; copy it again, or "
            f"{remedy} with {option('truncated', 'drop')}"
        )
    yield piece(starts, cells, head.records - done, source.size, End(done, at))


def _check_records(source: Source, head: Head, file: ArrayFile) -> None:
    """Raise FormatError unless the records of a whole file lie where its offsets say, and have what its columns say."""
    fields: list[Field | None] = [field for field in head.schema.fields if field.column]
    names = ["offsets", *(f"{COLUMN}{field.column}" for field in fields if field)]
    first = 0
    for piece in _walked(0, source, head, fields, drop=True):
        last = first + len(piece.starts)
        for name, (cell, expected) in zip(names, [(NUMBER_U64, piece.starts), *piece.columns], strict=True):
            dtype, stored = file.sections[name].dtype, file.numbers(name, first, last)
            if wrong := _first_difference(BY_DTYPE[dtype], stored, BY_CELL[cell], expected):
                at, found, right = wrong
                raise file.damaged(f"{name}[{first + at}] = {found}, expected {right}, as the records have it")
        first = last
    if first != head.records:
        raise file.damaged(f"expected {head.records} records, found {first} one after another")


def _first_difference(
    own: NumberType, stored: memoryview, other: NumberType, expected: memoryview
) -> tuple[int, float, float] | None:
    """Return where numbers of a column first differ from as many others, and both; None if all are the same.

    Args:
      own: the type of the column, which may be wider than the numbers need; `other` is that of the others.
    """
    import numpy as np  # start-up time: indexing does without

    if not len(expected):
        return None
    one, two = np.frombuffer(stored, own.dtype), np.frombuffer(expected, other.dtype)
    if F64 in (own, other):
        wrong = one.astype("<f8").view("<u8") != two.astype("<f8").view("<u8")  # bits, as NaN equals itself here
    else:
        wrong = (one.astype("<u8") != two.astype("<u8")) | ((one < 0) != (two < 0))
    at = int(wrong.argmax())
    return (at, one[at].item(), two[at].item()) if wrong[at] else None


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
