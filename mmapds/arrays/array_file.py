"""The .mma file around records of named arrays. See docs/array-file.md."""

import json
from collections.abc import Iterator, Mapping
from operator import lt
from typing import Any

from xxhash import xxh3_64

from .. import _native
from ..errors import FormatError
from ..storage.lock import remove_leftovers
from ..storage.numbers import BY_DTYPE, COLUMN_TYPES, F64, I64, U8, U32, U64, Spool
from ..storage.sections import COLUMN, SectionFile
from ..storage.sources import open_file, unreadable
from ..storage.writer import SectionWriter
from .schema import Schema

SUFFIX = ".mma"
MAGIC = b"\x89MMA\r\n\x1a\n"
"""The first bytes of a file. A transfer that takes the file for text damages them."""
_HEADER = 64
_SIZES = 16  # the size of the schema in bytes, then its checksum
RECORD_ALIGNMENT = 64
_AT_ONCE = 1 << 16  # records whose places are read at a time
Cells = tuple[int, memoryview]


class Head:
    """The part of the file before the records. A truncated file still has it."""

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            self.map = open_file(path, scan=True)
        except OSError as error:
            raise unreadable(path, error) from None
        view = self.map.read(0, min(self.map.size, _HEADER + _SIZES))
        self._check_magic(view)
        version = int.from_bytes(view[8:12], "little")
        if version != 1:
            raise FormatError(f"{path}: VERSION: expected format 1, found {version}; upgrade mmapds")
        self.records = int.from_bytes(view[16:24], "little")
        self.size = int.from_bytes(view[40:48], "little")
        size = int.from_bytes(view[_HEADER : _HEADER + 8], "little")
        self.first = -(-(_HEADER + _SIZES + size) // RECORD_ALIGNMENT) * RECORD_ALIGNMENT
        text = self._checked_schema(view, size)
        try:
            described = json.loads(text)
            self.schema, self.columns = Schema(described["schema"]), dict(described["columns"])
            if not all(isinstance(part, str) for pair in self.columns.items() for part in pair):
                raise TypeError("expected columns as text: name to expression")
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise FormatError(f"{path}: DAMAGED: the schema is malformed ({error!r}); write the file again") from None

    def _check_magic(self, view: bytes) -> None:
        if view[:8] == MAGIC and len(view) >= _HEADER + _SIZES:
            return
        if view[:8] == MAGIC:
            what = f"expected {_HEADER + _SIZES} bytes or more, found {self.map.size}; copy the file again"
        elif not any(view[:_HEADER]):
            what = "its writer did not finish; write it again"
        else:
            what = f"expected {MAGIC!r} at byte 0, found {view[:8]!r}; give a file that mmapds.Writer made"
        raise FormatError(f"{self.path}: NOT AN ARRAY FILE: {what}")

    def _checked_schema(self, view: bytes, size: int) -> bytes:
        begin = _HEADER + _SIZES
        text = self.map.read(begin, min(size, self.map.size - begin))
        expected, found = int.from_bytes(view[_HEADER + 8 : _HEADER + 16], "little"), xxh3_64(text).intdigest()
        if len(text) != size:
            what = f"expected a schema of {size} bytes, found {len(text)}"
        elif found != expected:
            what = f"expected {expected:#018x} as the checksum of the schema, found {found:#018x}"
        else:
            return text
        raise FormatError(f"{self.path}: DAMAGED: {what}; copy or write the file again")


class ArraySections(SectionFile):
    """The sections of an array file, and what it says of itself. Reads neither records nor numbers."""

    MAGIC, NAME = MAGIC, "AN ARRAY FILE"


class ArrayFile(ArraySections):
    """A whole array file; FormatError if it is damaged."""

    def __init__(self, head: Head) -> None:
        super().__init__(head.path, head.map)
        self.schema = head.schema
        self.expressions = head.columns
        """Name of each column to its expression."""
        if "records" not in self.sections:
            raise self.damaged("expected a section 'records', found none")
        self.check_numbers("offsets", ("<u4", "<u8"), self.records)
        self.verify_sections("offsets")
        for field in head.schema.fields:
            if field.column:
                held = (F64,) if field.is_scalar and field.number_type == F64.cell else (U32, U64, I64)
                allowed = held if self.records else COLUMN_TYPES  # no numbers have no type of their own
                self.check_numbers(COLUMN + field.column, [each.dtype for each in allowed], self.records)
                self.verify_sections(COLUMN + field.column)

    @property
    def end(self) -> int:
        """The byte where the last record ends."""
        return self.sections["records"].offset + self.sections["records"].size

    def starts(self) -> Iterator[memoryview]:
        """Yield where the records begin, uint64, some at a time."""
        for begin in range(0, self.records, _AT_ONCE):
            yield self.cells("offsets", begin, min(begin + _AT_ONCE, self.records))[1]

    def check_records(self) -> None:
        """Raise FormatError unless records have their checksum, and lie one behind the other in their section."""
        self.verify_sections("records")
        section = self.sections["records"]
        last = -1
        for starts in self.starts():
            if (last < 0 and starts[0] != section.offset) or starts[0] <= last or not all(map(lt, starts, starts[1:])):
                break
            last = starts[-1]
        else:
            if last < self.end and bool(section.size) == bool(self.records):
                return
        raise self.damaged(
            f"section 'offsets': expected the first record at byte {section.offset}, and each behind the one before it "
            f"up to byte {self.end}, found others"
        )

    def cells(self, name: str, begin: int, end: int) -> Cells:
        """Return the type of a section's numbers, and those of records `begin` to `end` as 64-bit cells."""
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
    """Writes an array file: `begin_records`, `write` for records at multiples of RECORD_ALIGNMENT, then `finish`."""

    MAGIC, SUFFIX = MAGIC, SUFFIX
    NAME = "the array file"

    def __init__(self, path: str) -> None:
        super().__init__(path)
        remove_leftovers(self.target)  # always, as no lock file says that a writer was killed while it wrote records

    def begin_records(self, schema: Mapping[str, Any], columns: Mapping[str, str]) -> int:
        """Write the schema, and each column's expression by name; return the offset of the first record."""
        text = json.dumps({"schema": schema, "columns": columns}, ensure_ascii=False).encode()
        self.begin_section("schema", U8.dtype)
        self.write(len(text).to_bytes(8, "little") + xxh3_64(text).intdigest().to_bytes(8, "little") + text)
        self.begin_section("records", U8.dtype)
        return self.section_begin

    def finish(self, offsets: Spool, columns: Mapping[str, Spool], metadata: dict[str, Any]) -> None:
        """Write where each record begins, and the columns by name; `place` then moves the file."""
        self.write_spool("offsets", offsets)
        for name, spool in columns.items():
            self.write_column(name, spool)
        self.complete(metadata, offsets.count)
