"""Writing records of named arrays: `mmapds.Writer`. See docs/arrays.md."""

import json
import os
import warnings
from array import array
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any

from . import __version__
from ._native import NUMBER_F64, NUMBER_I64, NUMBER_U64
from .arrays.array_file import MAGIC, SUFFIX
from .arrays.infer import infer_schema
from .arrays.schema import Field, Schema
from .arrays.values import pack
from .errors import Error, FormatError
from .storage.sections import COLUMN, SectionWriter
from .storage.sources import INDEX_SUFFIX, StrPath
from .storage.spool import Spool

_CODES = ("Q", "q", "d")
_AT_ONCE = 1 << 20  # bytes of records that are written together
_NUMBERS = 1 << 13  # of each column that are spooled together


class _File(SectionWriter):
    MAGIC, SUFFIX = MAGIC, SUFFIX
    NAME, ELSEWHERE = "the array file", ""


class Writer:
    """Writes records of named fields to an array file (`.mma`), from which they are read as views of it, not copied.

        with mmapds.Writer("train.mma", {"feats": ("float32", (None, 80)), "text": "str"}, length="feats") as writer:
            writer.write({"feats": frames, "text": "hello"})
        ds = mmapds.open("train.mma")

    Used as a context manager: the file appears, whole and indexed, when the block ends, and not at all if it ends with
    an error or never. Holds a few MB, however much is written. Parallel writers write a file each; one index then
    covers all: `mmapds.build("shard-*.mma", out="train.mmx")`.

    Args:
      path: ends in `.mma`; a file that is there is replaced at the end.
      schema: name of each field to "bytes", "str", "json", the type of a number ("bool", "int8" to "int64", "uint8" to
        "uint64", "float16" to "float64"), or (dtype, shape) for arrays, None standing for an axis that may have any
        length: `("float32", (None, 80))`. An array's dtype may also be "complex64", "complex128", "bfloat16" or one of
        the "float8" of torch. By default what the first record has, the first axis of its arrays taken as ragged.
      length: the field that token budgets are planned by: an integer, or an array whose first axis counts.
      index: write the index too, with numbers and lengths as columns. False where one index will cover several files.
    Raises:
      FormatError: the schema cannot be understood.
      Error: the file cannot be written.
    """

    def __init__(
        self,
        path: StrPath,
        schema: Mapping[str, Any] | None = None,
        *,
        length: str | None = None,
        index: bool = True,
    ) -> None:
        self.path = os.fspath(path)
        self._length = length
        self._index = index
        self._schema: Schema | None = None
        self._buffer = bytearray()
        self._records = 0
        self._state = "open"
        planned = None if schema is None else self._checked(Schema(schema))
        self._file = _File(self.path)
        if planned is not None:
            self._begin(planned)

    def _checked(self, schema: Schema) -> Schema:
        """A schema in which there is the column of lengths that was asked for."""
        fields = {field.name: field for field in schema.fields}
        if self._length is not None:
            field = fields.get(self._length)
            if field is None or field.column is None or field.number_type == NUMBER_F64:
                raise FormatError(
                    f"{self.path}: length = {self._length!r}, expected an integer field or one with a ragged first "
                    f"axis; the fields are {schema.describe()}"
                )
            if field.name != "length" and any(other.column == "length" for other in schema.fields):
                raise FormatError(f"{self.path}: length = {self._length!r}, but there is a field 'length' too")
        elif "length" in fields and fields["length"].is_scalar and fields["length"].number_type == NUMBER_F64:
            raise FormatError(
                f"{self.path}: field 'length' is {fields['length']}; lengths are integers, name it otherwise"
            )
        return schema

    def _begin(self, schema: Schema) -> None:
        try:
            self._begin_records(schema)
        except BaseException:
            self._abandon("closed: an earlier write failed")
            raise
        self._schema = schema

    def _begin_records(self, schema: Schema) -> None:
        self._columns: list[Field] = [field for field in schema.fields if field.column]
        self._numbers: list[list[float]] = [[] for _ in self._columns]
        self._starts: list[int] = []
        self._spools = [self._file.spool() for _ in range(1 + len(self._columns))]
        columns = {field.column: field.expression for field in self._columns}
        if self._length is not None:
            columns["length"] = next(field.expression for field in self._columns if field.name == self._length)
        lengths = [k for k, field in enumerate(self._columns) if field.expression == columns.get("length")]
        self._signed_length = next((k for k in lengths if self._columns[k].number_type == NUMBER_I64), None)
        text = json.dumps({"schema": schema.describe(), "columns": columns}, ensure_ascii=False).encode()
        from xxhash import xxh3_64

        self._file.begin_section("schema", "|u1")
        self._file.write(len(text).to_bytes(8, "little") + xxh3_64(text).intdigest().to_bytes(8, "little") + text)
        self._file.begin_section("records", "|u1")
        self._at = self._file.section_begin

    def write(self, record: Mapping[str, Any]) -> None:
        """Append a record: a dict with a value for each field.

        Arrays are NumPy's or torch's, of just the dtype and shape that the schema says, or lists of numbers that fit.

        Raises:
          FormatError: the record does not fit the schema; it is left out, and writing may go on.
          Error: the disk is full or otherwise refuses, and the file is lost; or the writer is closed.
        """
        if self._state != "open":
            raise Error(f"{self.path}: the writer is {self._state}")
        before = len(self._buffer)
        try:
            planned = self._schema or self._checked(_inferred(record))
            numbers = pack(planned, record, self._buffer)
            if self._schema is None:
                self._begin(planned)
            if self._signed_length is not None and numbers[self._signed_length] < 0:
                name = self._columns[self._signed_length].name
                raise FormatError(f"field {name!r}: found {numbers[self._signed_length]}, expected a length, 0 or more")
        except FormatError as error:
            del self._buffer[before:]
            raise FormatError(f"{self.path}: record {self._records}: {error}") from None
        except BaseException:
            del self._buffer[before:]  # of whatever the record raised while it was looked at
            raise
        self._starts.append(self._at)
        self._at += len(self._buffer) - before
        self._records += 1
        for column, number in zip(self._numbers, numbers, strict=True):
            column.append(number)
        if len(self._buffer) >= _AT_ONCE or len(self._starts) >= _NUMBERS:
            self._flush()

    def _flush(self) -> None:
        try:
            self._file.write(self._buffer)
            with self._file.writing():
                _spool(self._spools[0], NUMBER_U64, self._starts)
                for spool, field, numbers in zip(self._spools[1:], self._columns, self._numbers, strict=True):
                    _spool(spool, field.number_type, numbers)
        except BaseException:
            self._abandon("closed: an earlier write failed")
            raise
        self._buffer = bytearray()

    def close(self) -> None:
        """Finish the file, put it in its place, and index it; does nothing to a writer that is closed.

        Raises:
          Error: the disk is full or otherwise refuses, now or in an earlier write; there is no file then.
        """
        if self._state == "closed":
            return
        if self._state != "open":
            raise Error(f"{self.path}: nothing was written; the writer is {self._state}")
        if self._schema is None:
            self._begin(Schema({}) if self._length is None else self._checked(Schema({})))
        self._flush()
        try:
            for name, spool in zip(
                ["offsets", *(f"{COLUMN}{field.column}" for field in self._columns)], self._spools, strict=True
            ):
                self._file.begin_section(name, spool.dtype)
                for chunk in spool.chunks():
                    self._file.write(chunk)
            self._file.commit({"writer": f"mmapds {__version__}"}, self._records)
        except BaseException:
            self._abandon("closed: an earlier write failed")
            raise
        self._abandon("closed")
        if self._index:
            from .build_index import build

            with suppress(FileNotFoundError):
                os.unlink(self._file.target + INDEX_SUFFIX)  # which is of another file, and may be measured otherwise
            build(self._file.target, force=True)

    def _abandon(self, state: str) -> None:
        """Give up what is left of the temporary file, which after a commit is nothing."""
        self._state = state
        self._file.__exit__(None, None, None)

    def __del__(self) -> None:
        if getattr(self, "_state", "") == "open" and hasattr(self, "_file"):
            self._abandon("closed: it was forgotten")
            warnings.warn(
                f"{self.path}: a writer was not closed; nothing was written", ResourceWarning, stacklevel=2, source=self
            )

    def __enter__(self) -> "Writer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        elif self._state == "open":
            self._abandon("closed: its block ended with an error")


def _inferred(record: Mapping[str, Any]) -> Schema:
    if not record:
        raise FormatError("found no fields, which does not tell what a record has; give a schema")
    schema = infer_schema([record])
    for name, value in record.items():
        if value is None:
            raise FormatError(f"field {name!r}: found null, which does not tell how to store it; give a schema")
    return schema


def _spool(spool: Spool, number_type: int, numbers: list[Any]) -> None:
    """Move numbers into a spool."""
    if numbers:
        kind = number_type if number_type != NUMBER_I64 or min(numbers) < 0 else NUMBER_U64
        spool.append(kind, memoryview(array(_CODES[kind], numbers)).cast("B").cast("Q"))
        numbers.clear()
