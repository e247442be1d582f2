"""Array files: records of named fields, written by `mmapds.Writer`. See docs/array-file.md.

A file stores the starts of its records, and its columns. Indexing copies these without reading records.
"""

from array import array
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from .. import _native
from .._native import NUMBER_U64
from ..arrays.array_file import MAGIC, SUFFIX, ArrayFile, Cells, Head
from ..errors import ColumnError, FormatError
from ..storage.sections import COLUMN
from ..storage.sources import Source
from .expressions import Measuring
from .format import End, FieldsOf, Format, Parameters, Piece, Sample, Sources

if TYPE_CHECKING:
    from ..arrays.schema import Field, Schema

_AT_ONCE = 1 << 16  # records in a piece


class ArrayFiles(Format):
    """Records of named fields, written by `mmapds.Writer`."""

    name = "arrays"
    suffixes = (SUFFIX,)

    def recognises(self, path: str, head: bytes) -> bool:
        return head.startswith(MAGIC)

    def parameters(self, given: Mapping[str, Any], sources: Sequence[str]) -> dict[str, Any]:
        """Return the `schema` and the `columns`, name to expression, which all sources must share."""

        def describe(path: str) -> dict[str, Any]:
            head = Head(path)
            return {"schema": head.schema.describe(), "columns": head.columns}

        return {**self.shared(sources, describe), **self.truncated({})}

    def decoder(self, parameters: Parameters) -> Sample:
        return FieldsOf(parameters["schema"])

    def scan(self, sources: Sources, parameters: Parameters, measuring: Measuring, *, workers: int) -> Iterator[Piece]:
        """Yield the start and the columns of every record of every source, copied from the source."""
        measuring.check_binary()
        for number, source in enumerate(sources):
            head = Head(source.path)
            if head.size > source.size:
                raise FormatError(f"{source.path}: expected a file of {head.size} bytes, found {source.size}")
            yield from _stored(number, source, ArrayFile(head), _wanted(head.schema, measuring))

    def verify(self, sources: Sources, parameters: Parameters) -> None:
        """Check all sections of the sources against their checksums, and that records have no gaps between them."""
        for source in sources:
            file = ArrayFile(Head(source.path))
            file.verify_sections()
            file.check_records()


def _wanted(schema: "Schema", measuring: Measuring) -> "list[Field | None]":
    """Return the field behind each column; None for a column of the sizes of records."""
    held: dict[tuple[int, tuple[bytes | None, ...]], Field | None] = {(_native.MEASURE_RECORD, ()): None}
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
