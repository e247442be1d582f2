"""The .mma file around records of named arrays. See docs/array-file.md."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .. import _native
from ..errors import FormatError, SourceError
from ..storage.numbers import BY_DTYPE, U8, U32
from ..storage.sections import COLUMN, SectionFile, SectionWriter
from ..storage.sources import unreadable

if TYPE_CHECKING:
    from ..storage.spool import Spool

SUFFIX = ".mma"
MAGIC = b"\x89MMA\r\n\x1a\n"
"""Damaged by any transfer that takes the file for text."""
_HEADER = 64
_SIZES = 16  # of the schema: how many bytes, and their checksum
RECORD_ALIGNMENT = 64
Cells = tuple[int, memoryview]


class Head:
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
        self.first = -(-(_HEADER + _SIZES + size) // RECORD_ALIGNMENT) * RECORD_ALIGNMENT
        text = bytes(view[_HEADER + _SIZES : _HEADER + _SIZES + size]) if size <= len(view) else b""
        from xxhash import xxh3_64

        if xxh3_64(text).digest() != bytes(view[_HEADER + 8 : _HEADER + 16])[::-1] or len(text) != size:
            raise FormatError(f"{path}: DAMAGED: its schema does not match its checksum; write or copy it again")
        from .schema import parse  # which indexes of other formats do without

        try:
            self.schema, self.columns = parse(text)
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise FormatError(f"{path}: DAMAGED: its schema is not as specified ({error!r}); write it again") from None


class ArrayFile(SectionFile):
    """A whole array file."""

    MAGIC, NAME = MAGIC, "AN ARRAY FILE"
    TYPES = (U8, *SectionFile.TYPES)

    def __init__(self, head: Head) -> None:
        super().__init__(head.path, head.map)
        names = ["offsets", *(COLUMN + field.column for field in head.schema.fields if field.column)]
        if not all(name in self.sections and self.sections[name].items == self.records for name in names):
            raise self.damaged("it has not an offset, and a number of each column, for each record")
        dtypes = {self.sections[name].dtype for name in names}
        if "records" not in self.sections or "|u1" in dtypes or self.sections["offsets"].dtype not in ("<u4", "<u8"):
            raise self.damaged("its sections are not as specified")
        for name in names:
            self.verify_section(name)

    @property
    def end(self) -> int:
        """Where the last record ends."""
        return self.sections["records"].offset + self.sections["records"].size

    def cells(self, name: str, begin: int, end: int) -> Cells:
        """The type of a section's numbers, and some of them as 64-bit cells."""
        number_type = BY_DTYPE[self.sections[name].dtype]
        data = self.section(name)[begin * number_type.width : end * number_type.width]
        if number_type is U32:
            wide = memoryview(bytearray(2 * len(data)))
            _native.cells_widen(data, wide)
            data = wide
        return number_type.cell, data.cast("Q")


class ArrayFileWriter(SectionWriter):
    """Writes an array file: `begin_records`, `write` for records at multiples of RECORD_ALIGNMENT, then `finish`."""

    MAGIC, SUFFIX = MAGIC, SUFFIX
    NAME, ELSEWHERE = "the array file", ""

    def begin_records(self, schema: Mapping[str, Any], columns: Mapping[str, str]) -> int:
        """Write the schema; return the offset in the file of the first record.

        Args:
          schema: see `Schema.describe`.
          columns: name of each column to its expression.
        """
        text = json.dumps({"schema": schema, "columns": columns}, ensure_ascii=False).encode()
        from xxhash import xxh3_64  # which opening a file does without

        self.begin_section("schema", U8.dtype)
        self.write(len(text).to_bytes(8, "little") + xxh3_64(text).intdigest().to_bytes(8, "little") + text)
        self.begin_section("records", U8.dtype)
        return self.section_begin

    def finish(self, offsets: "Spool", columns: "Mapping[str, Spool]", metadata: dict[str, Any]) -> None:
        """Write where each record begins, and the columns by name; then `commit`."""
        self.write_spool("offsets", offsets)
        for name, spool in columns.items():
            self.write_column(name, spool)
        self.commit(metadata, offsets.count)
