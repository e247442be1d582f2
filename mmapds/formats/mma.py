"""Array files: records of named fields, written by `mmapds.Writer`. See docs/array-file.md.

A file stores where its records begin, and its columns. Indexing copies these and reads no record. Only in a truncated
file, whose end is missing, does it walk from record to record.
"""

from array import array
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from .. import _native
from .._native import NUMBER_I64, NUMBER_U64
from ..arrays.array_file import MAGIC, RECORD_ALIGNMENT, SUFFIX, ArrayFile, Cells, Head
from ..arrays.schema import TO_ONE_SCHEMA
from ..errors import ColumnError, FormatError, option
from ..storage.sections import COLUMN
from ..storage.sources import Source
from .expressions import Measuring
from .format import TRUNCATED, End, FieldsOf, Format, Parameters, Piece, Sample, Sources

if TYPE_CHECKING:
    from ..arrays.schema import Field, Schema

_AT_ONCE = 1 << 16  # records in a piece


class ArrayFiles(Format):
    """Records of named fields, written by `mmapds.Writer`."""

    name = "arrays"
    suffixes = (SUFFIX,)
    options = TRUNCATED

    def recognises(self, head: bytes) -> bool:
        return head.startswith(MAGIC)

    def parameters(self, given: Mapping[str, Any], sources: Sequence[str]) -> dict[str, Any]:
        """Return the `schema` and the `columns`, name to expression, which all sources must share, and `truncated`."""
        first, *others = map(Head, sources)
        described = {"schema": first.schema.describe(), "columns": first.columns}
        for other in others:
            for part, found in (("schema", other.schema.describe()), ("columns", other.columns)):
                if list(found.items()) != list(described[part].items()):
                    raise FormatError(
                        f"{other.path}: {part}: expected {described[part]}, as in {first.path}, found {found}; "
                        + (TO_ONE_SCHEMA if part == "schema" else "index the files apart")
                    )
        return {**described, **self.truncated(given)}

    def decoder(self, parameters: Parameters) -> Sample:
        return FieldsOf(parameters["schema"])

    def scan(self, sources: Sources, parameters: Parameters, measuring: Measuring, *, workers: int) -> Iterator[Piece]:
        """Yield where every record of every source begins, and its columns, both copied from the source."""
        measuring.check_binary()
        for number, source in enumerate(sources):
            head = Head(source.path)
            wanted = _wanted(head.schema, measuring)
            if head.size <= source.size:
                yield from _stored(number, source, ArrayFile(head), wanted)
            else:
                yield from _walked(number, source, head, wanted, drop=parameters.get("truncated") == "drop")

    def verify(self, sources: Sources, parameters: Parameters) -> None:
        """Check all sections of the sources against their checksums, and offsets and columns against the records."""
        for source in sources:
            if not self.lacks_checksums(source):
                head = Head(source.path)
                file = ArrayFile(head)
                file.verify_sections()
                _check_records(source, head, file)

    def lacks_checksums(self, source: Source) -> bool:
        return Head(source.path).size > source.size


def _wanted(schema: "Schema", measuring: Measuring) -> "list[Field | None]":
    """Return the field behind each column; None for a column of the sizes of records."""
    held: dict[tuple[int, tuple[bytes, ...]], Field | None] = {(_native.MEASURE_RECORD, ()): None}
    for field in filter(lambda each: each.column, schema.fields):
        measure = _native.MEASURE_NUMBER if field.is_scalar else _native.MEASURE_ITEMS
        held[measure, (field.name.encode(),)] = field
    for name, expression in measuring.columns.items():
        if (expression.measure, expression.path) not in held:
            known = ", ".join(["bytes()", *(field.expression for field in held.values() if field)])
            raise ColumnError(f"column {name!r}: expected one of {known}, found {expression.text!r}")
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
    """Yield the whole records of a truncated file, by walking from record to record."""
    fields, view, end = head.schema.native(str, None, None), memoryview(head.map), head.first
    places = [2 + head.schema.fields.index(field) if field else 1 for field in wanted]
    done, rows = 0, list[tuple[int, ...]]()  # where each begins, its size, and the cells of its fields

    def piece() -> Piece:
        starts, *cells = (memoryview(array("Q", [row[place] for row in rows])) for place in (0, *places))
        kinds = map(_kind, wanted, cells)
        return Piece(number, starts, tuple(zip(kinds, cells, strict=True)), 0, 0, None)

    while done < head.records and (words := fields.words(view, end)) is not None:
        stop = min(end + words[0] + -words[0] % RECORD_ALIGNMENT, source.size)
        rows.append((end, stop - end, *words[1:]))
        done, end = done + 1, stop
        if len(rows) == _AT_ONCE:
            if drop:
                yield piece()
            rows.clear()  # for an error, too, only their number counts
    if not drop:
        where = f"record {done} (byte {end})" if done < head.records else f"truncated after its {done} records"
        raise FormatError(
            f"{source.path}: {where}: expected a file of {head.size} bytes, found {source.size}; keep the whole "
            f"records with {option('truncated', 'drop')}"
        )
    yield piece()._replace(skipped=head.records - done, scanned=source.size, end=End(done, end))


def _check_records(source: Source, head: Head, file: ArrayFile) -> None:
    """Raise FormatError unless records lie where the offsets of a whole file say, and have what its columns say."""
    fields: list[Field | None] = [field for field in head.schema.fields if field.column]
    names = ["offsets", *(f"{COLUMN}{field.column}" for field in fields if field)]
    done = 0
    for piece in _walked(0, source, head, fields, drop=True):
        for name, (kind, cells) in zip(names, [(NUMBER_U64, piece.starts), *piece.columns], strict=True):
            own, stored = file.cells(name, done, done + piece.records)
            for at, (one, other) in enumerate(zip(stored, cells, strict=True)):
                if one != other or (own != kind and one >= 2**63):  # of which one has a sign
                    raise file.damaged(f"section {name!r}: expected what record {done + at} has, found another number")
        done += piece.records
    if done < head.records:
        raise file.damaged(f"expected {head.records} records, found {done} one after another")


def _kind(field: "Field | None", cells: memoryview) -> int:
    """Return the type of the numbers of a field, in cells of 64 bits."""
    if field is None or not field.is_scalar:
        return NUMBER_U64
    is_unsigned = field.number_type == NUMBER_I64 and max(cells, default=0) < 2**63
    return NUMBER_U64 if is_unsigned else field.number_type
