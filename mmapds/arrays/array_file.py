"""Array files (`.mma`) of records of named arrays. See docs/array-file.md."""

import json
import struct
from collections.abc import Mapping
from operator import lt
from typing import Any

from xxhash import xxh3_64

from .. import _native
from ..errors import FormatError
from ..storage.lock import remove_leftovers
from ..storage.numbers import BY_DTYPE, COLUMN_TYPES, F64, I64, U8, U32, U64
from ..storage.sections import COLUMN, HEADER, SectionFile
from ..storage.sources import open_file, unreadable
from ..storage.writer import SectionWriter
from .schema import Schema

SUFFIX = ".mma"
MAGIC = b"\x89MMA\r\n\x1a\n"
"""The first bytes of a file. A transfer in text mode damages them, which shows the error."""
_SIZES = struct.Struct("<QQ")  # after the header: size of the schema in bytes, and its checksum
_TEXT = HEADER.size + _SIZES.size  # where the schema begins
_AT_ONCE = 1 << 16  # records to check at a time
Cells = tuple[int, memoryview]


class Head:
    """The part of the file before the records. A truncated file still has it."""

    size: int  # of the complete file, in bytes

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            self.map = open_file(path, scan=True)
        except OSError as error:
            raise unreadable(path, error) from None
        view = self.map.read(0, min(self.map.size, _TEXT))
        if view[:8] != MAGIC or len(view) < _TEXT:
            raise FormatError(
                f"{path}: NOT AN ARRAY FILE: expected {MAGIC!r} at byte 0 of {_TEXT} bytes or more, found "
                f"{view[:8]!r} of {self.map.size} bytes"
            )
        _, version, _, _, _, _, self.size, _, _ = HEADER.unpack(view[: HEADER.size])
        if version != 1:
            raise FormatError(f"{path}: VERSION: expected format 1, found {version}; upgrade mmapds")
        size, checksum = _SIZES.unpack(view[HEADER.size :])
        text = self.map.read(_TEXT, min(size, self.map.size - _TEXT))
        found = xxh3_64(text).intdigest()
        if len(text) != size or found != checksum:
            raise FormatError(
                f"{path}: DAMAGED: expected a schema of {size} bytes and checksum {checksum:#018x}, found {len(text)} "
                f"bytes and {found:#018x}; copy or write the file again"
            )
        try:
            described = json.loads(text)
            self.schema, self.columns = Schema(described["schema"]), dict(described["columns"])
            if not all(isinstance(part, str) for pair in self.columns.items() for part in pair):
                raise TypeError("expected columns as text: name to expression")
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise FormatError(f"{path}: DAMAGED: the schema is malformed ({error!r}); write the file again") from None


class ArraySections(SectionFile):
    """The sections and metadata of an array file. Reads neither records nor columns."""

    MAGIC, NAME = MAGIC, "AN ARRAY FILE"


class ArrayFile(ArraySections):
    """A whole array file; FormatError if it is damaged."""

    def __init__(self, head: Head) -> None:
        super().__init__(head.path, head.map)
        self.schema = head.schema
        self.expressions = head.columns
        """Expression of each column, by name."""
        if "records" not in self.sections:
            raise self.damaged("expected a section 'records', found none")
        self.check_numbers("offsets", ("<u4", "<u8"), self.records)
        self.verify_sections("offsets")
        for field in head.schema.fields:
            if field.column:
                held = (F64,) if field.is_scalar and field.number_type == F64.cell else (U32, U64, I64)
                allowed = held if self.records else COLUMN_TYPES  # an empty column may have any type
                self.check_numbers(COLUMN + field.column, [each.dtype for each in allowed], self.records)
                self.verify_sections(COLUMN + field.column)

    @property
    def end(self) -> int:
        """The byte where the last record ends."""
        return self.sections["records"].offset + self.sections["records"].size

    def check_records(self) -> None:
        """Raise FormatError unless the checksum of the records is right, and their offsets ascend."""
        self.verify_sections("records")
        last = self.sections["records"].offset - 1
        for begin in range(0, self.records, _AT_ONCE):
            _, starts = self.cells("offsets", begin, min(begin + _AT_ONCE, self.records))
            if not all(map(lt, (last, *starts), (*starts, self.end))):
                raise self.damaged("section 'offsets': expected numbers that ascend within 'records', found others")
            last = starts[-1]

    def cells(self, name: str, begin: int, end: int) -> Cells:
        """Return the type and the 64-bit cells of a section, for records `begin` to `end`."""
        section = self.sections[name]
        number_type = BY_DTYPE[section.dtype]
        width = number_type.width
        data = memoryview(self.map.read(section.offset + begin * width, (end - begin) * width))
        if number_type is U32:
            wide = memoryview(bytearray(2 * len(data)))
            _native.cells_widen(data, wide)
            data = wide
        return number_type.cell, data.cast("Q")


class ArrayFileWriter(SectionWriter):
    """Writes an array file: `begin_records`, `write` for records at multiples of 64 bytes, then sections."""

    MAGIC, SUFFIX = MAGIC, SUFFIX
    NAME = "the array file"

    def __init__(self, path: str) -> None:
        super().__init__(path)
        remove_leftovers(self.target)  # always: a writer that is killed among its records leaves no lock file

    def begin_records(self, schema: Mapping[str, Any], columns: Mapping[str, str]) -> int:
        """Write the schema and the expressions of columns; return the offset of the first record."""
        text = json.dumps({"schema": schema, "columns": columns}, ensure_ascii=False).encode()
        self.begin_section("schema", U8.dtype)
        self.write(len(text).to_bytes(8, "little") + xxh3_64(text).intdigest().to_bytes(8, "little") + text)
        self.begin_section("records", U8.dtype)
        return self.section_begin
