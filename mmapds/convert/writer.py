"""Write records of named arrays: `mmapds.Writer`. See docs/arrays.md."""

from __future__ import annotations  # help() shows them as they are written

import os
import warnings
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Any, Self

import numpy as np

from .. import __version__
from .._native import NUMBER_I64, NUMBER_U64
from ..arrays.array_file import ArrayFile, ArrayFileWriter, Head
from ..arrays.packed import Values, cells_of, packed
from ..arrays.schema import Field, Schema
from ..arrays.values import Inference, pack
from ..errors import Error, FormatError
from ..storage.lock import check_is_free, locked
from ..storage.numbers import BY_CELL, BY_DTYPE, Spool
from ..storage.sections import COLUMN
from ..storage.sources import INDEX_SUFFIX, StrPath

_FLUSH_BYTES = 1 << 20  # bytes of records to buffer
_FLUSH_RECORDS = 1 << 13


class Writer:
    """Writes records of named fields to an array file (`.mma`).

        with mmapds.Writer("train.mma", {"feats": ("float32", (None, 80)), "text": "str"}, length="feats") as writer:
            writer.write({"feats": np.zeros((170, 80), np.float32), "text": "hello"})
        features = mmapds.open("train.mma")

    Use it as a context manager: the complete file and its index appear when the block ends. If the block raises, no
    file appears. A writer needs a few MB of memory for a file of any size. Parallel writers write one file each, and
    one index covers all files: `mmapds.build("shard-*.mma", out="train.mmx")`.

    Args:
      path: ends in `.mma`.
      schema: name of each field to "bytes", "str", "json", the type of a number ("bool", "int8" to "int64", "uint8" to
        "uint64", "float16" to "float64"), or (dtype, shape) for arrays, with None for a ragged axis:
        `("float32", (None, 80))`. An array's dtype may also be "complex64", "complex128", "bfloat16" or one of torch's
        "float8" types. By default, the schema is inferred from the first record; the first axis of arrays is ragged.
      length: the field with the lengths for token budgets: an integer, or an array with a ragged first axis.
      index: write the index too, with numbers and lengths as columns. Give False if one index will cover several files.
      force: replace an existing file when the new one is complete.
    Warns:
      UserWarning: the writer was never closed, so nothing was written.
    Raises:
      FormatError: the schema is malformed.
      Error: the file cannot be written, or exists.
    """

    def __init__(
        self,
        path: StrPath,
        schema: Mapping[str, Any] | None = None,
        *,
        length: str | None = None,
        index: bool = True,
        force: bool = False,
    ) -> None:
        self.path = os.fspath(path)
        if not force:
            check_is_free(self.path)
        self._length = length
        self._index = index
        self._schema: Schema | None = None
        self._buffer = bytearray()
        self._records = 0
        self._state = "open"
        self._metadata: dict[str, Any] = {"writer": f"mmapds {__version__}"}
        planned = None if schema is None else self._checked(Schema(schema))
        self._file = ArrayFileWriter(self.path)
        if planned is not None:
            self._begin(planned)

    def _checked(self, schema: Schema) -> Schema:
        """Return the schema; raise FormatError unless it has a column for the `length` of the user."""
        fields = {field.name: field for field in schema.fields}
        if self._length is not None:
            field = fields.get(self._length)
            if field is None or not field.gives_lengths:
                expected = f"an integer field or one with a ragged first axis, found {field or 'none'}; cast it first"
                raise FormatError(f"{self.path}: length = {self._length!r}, expected {expected}")
            if field.name != "length" and any(other.column == "length" for other in schema.fields):
                raise FormatError(
                    f"{self.path}: length = {self._length!r}, expected 'length', as the schema has a field of that name"
                )
        elif "length" in fields and fields["length"].is_scalar and not fields["length"].gives_lengths:
            raise FormatError(f"{self.path}: field 'length': expected integers, found {fields['length']}")
        return schema

    def _begin(self, schema: Schema) -> None:
        self._columns: list[Field] = [field for field in schema.fields if field.column]
        self._numbers: list[list[float]] = [[] for _ in self._columns]
        self._starts: list[int] = []
        self._spools = [self._file.spool() for _ in range(1 + len(self._columns))]
        columns = {str(field.column): field.expression for field in self._columns}
        if self._length is not None:
            columns["length"] = next(field.expression for field in self._columns if field.name == self._length)
        lengths = [k for k, field in enumerate(self._columns) if field.expression == columns.get("length")]
        self._signed_length = next((k for k in lengths if self._columns[k].number_type == NUMBER_I64), None)
        self._described, self._expressions = schema.describe(), columns
        with self._losing_the_file():
            self._at = self._file.begin_records(self._described, columns)
        self._schema = schema

    @contextmanager
    def _losing_the_file(self) -> Iterator[None]:
        """Close the writer if the block raises, because the state of the file is then unknown."""
        try:
            yield
        except BaseException:
            self._abandon("closed: an earlier write failed")
            raise

    def write(self, record: Mapping[str, Any]) -> None:
        """Append a record: a dict with a value for each field.

        An array is one of NumPy or torch with the dtype and shape of the schema, or a list of numbers that fit.

        Raises:
          FormatError: the record does not fit the schema. It is skipped; later records can be written.
          Error: a system call failed, and the file is lost; or the writer is closed.
        """
        self._check_open()
        before = len(self._buffer)
        try:
            planned = self._schema or self._checked(_inferred(record))
            numbers = pack(planned, record, self._buffer)
            if self._schema is None:
                self._begin(planned)
            if self._signed_length is not None and (found := numbers[self._signed_length]) < 0:
                name = self._columns[self._signed_length].name
                raise FormatError(f"field {name!r}: expected a length of 0 or more, found {found}")
        except BaseException as error:  # a value of the record may raise anything
            del self._buffer[before:]
            if isinstance(error, FormatError):
                raise FormatError(f"{self.path}: record {self._records}: {error}") from None
            raise
        self._starts.append(self._at)
        self._at += len(self._buffer) - before
        self._records += 1
        for column, number in zip(self._numbers, numbers, strict=True):
            column.append(number)
        if len(self._buffer) >= _FLUSH_BYTES or len(self._starts) >= _FLUSH_RECORDS:
            self._flush()

    def _check_open(self) -> None:
        if self._state != "open":
            raise Error(f"{self.path}: the writer is {self._state}; make a new Writer")

    def append_file(self, path: StrPath | ArrayFile) -> int:
        """Append all records of another array file; return their number.

        Raises:
          FormatError: the file is damaged, or has another schema or other lengths; no record was appended.
          SourceError: the file cannot be read.
          Error: a system call failed, and this writer's file is lost; or the writer is closed.
        """
        self._check_open()
        file = path if isinstance(path, ArrayFile) else ArrayFile(Head(os.fspath(path)))
        if self._schema is None:
            self._begin(self._checked(file.schema))
        for what, expected, found in (
            ("schema", self._described, file.schema.describe()),
            ("columns", self._expressions, file.expressions),
        ):
            if list(found.items()) != list(expected.items()):
                raise FormatError(f"{file.path}: {what}: expected {expected}, as in {self.path}, found {found}")
        file.check_records()
        self._flush()
        offsets, *columns = self._spools
        moved = self._at - file.sections["records"].offset
        with self._losing_the_file():
            for piece in file.pieces("records"):
                self._file.write(piece)
            for begin in range(0, file.records, _FLUSH_RECORDS):
                _, starts = file.cells("offsets", begin, min(begin + _FLUSH_RECORDS, file.records))
                offsets.append(NUMBER_U64, memoryview(array("Q", [start + moved for start in starts])))
            for field, spool in zip(self._columns, columns, strict=True):
                name = f"{COLUMN}{field.column}"
                spool.append_stored(BY_DTYPE[file.sections[name].dtype], file.records, partial(file.pieces, name))
        self._at += file.sections["records"].size
        self._records += file.records
        return file.records

    def append_columns(self, values: Sequence[Values], count: int) -> bool:
        """Append `count` records, given as the values of all fields; append nothing if a length is negative.

        Returns:
          Whether the records were appended; `write` names the record of a negative length.
        """
        schema = self._schema
        assert schema is not None  # a writer of columns is given one
        fields = zip(schema.fields, values, strict=True)
        numbers = [cells_of(field, found) for field, found in fields if field.column]
        if self._signed_length is not None and numbers[self._signed_length][0] == NUMBER_I64:
            return False
        self._flush()
        with self._losing_the_file():
            for piece, ends in packed(schema, values, count):
                self._file.write(piece)
                starts: Any = np.zeros(len(ends), np.uint64)
                starts[1:] = ends[:-1]
                self._spools[0].append(NUMBER_U64, memoryview(starts + np.uint64(self._at)))
                self._at += len(piece)
            for spool, (kind, cells) in zip(self._spools[1:], numbers, strict=True):
                spool.append(kind, cells)
        self._records += count
        return True

    @property
    def bytes_written(self) -> int:
        """Bytes of the file so far."""
        return self._at

    def note_metadata(self, **metadata: Any) -> None:
        """Add entries to the metadata of the file."""
        self._metadata |= metadata

    def restrict_to(self, paths: Iterable[str]) -> None:
        """Restrict the mode of the file to readers of all files in `paths`."""
        self._file.restrict(paths)

    def _flush(self) -> None:
        with self._losing_the_file():
            self._file.write(self._buffer)
            _spool(self._spools[0], NUMBER_U64, self._starts)
            for spool, field, numbers in zip(self._spools[1:], self._columns, self._numbers, strict=True):
                _spool(spool, field.number_type, numbers)
        self._buffer = bytearray()

    def close(self) -> None:
        """Finish the file and index it; do nothing if the writer is closed.

        Raises:
          Error: this write or an earlier one failed, and no file appears. Or another process held the lock of the
            index for too long: then call `close` again.
        """
        if self._state == "closed":
            return
        self._check_open()
        if self._schema is None:
            self._begin(self._checked(Schema({})))
        self._flush()
        offsets, *spools = self._spools
        with locked(self._file.target + INDEX_SUFFIX):  # no other process indexes or replaces the file
            with self._losing_the_file():
                self._file.write_spool("offsets", offsets)
                for field, spool in zip(self._columns, spools, strict=True):
                    self._file.write_column(str(field.column), spool)
                self._file.complete(self._metadata, self._records)
                self._file.place()
            self._abandon("closed")
            if self._index:
                self._build_index()

    def _build_index(self) -> None:
        from ..index.build import Request  # start-up time: only `index=True` needs these
        from ..index.each import build_each

        try:
            list(build_each([self._file.target], Request(fresh=True)))
        except Error as error:
            raise Error(f"{self.path}: the array file is in its place, but not indexed: {error}") from error

    def _abandon(self, state: str) -> None:
        """Close the writer; remove the temporary file unless it was renamed to its target."""
        self._state = state
        self._file.__exit__(None, None, None)

    def __del__(self) -> None:
        if getattr(self, "_state", "") == "open" and hasattr(self, "_file"):
            self._abandon("closed: it was forgotten")
            warnings.warn(
                f"{self.path}: the writer was not closed and nothing was written; use it in a with block",
                stacklevel=2,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        elif self._state == "open":
            self._abandon("closed: its block ended with an error")


def _inferred(record: Mapping[str, Any]) -> Schema:
    inference = Inference()
    inference.add(record)
    if not record:
        raise FormatError("expected one field or more, found 0")
    for name, value in record.items():
        if value is None:
            raise FormatError(f"field {name!r}: expected a value whose type can be inferred, found null")
    return Schema(inference.described())


def _spool(spool: Spool, number_type: int, numbers: list[Any]) -> None:
    """Move numbers into a spool; signed numbers become unsigned if none is negative."""
    if numbers:
        cell = number_type if number_type != NUMBER_I64 or min(numbers) < 0 else NUMBER_U64
        spool.append(cell, memoryview(array(BY_CELL[cell].code, numbers)).cast("B").cast("Q"))
        numbers.clear()
