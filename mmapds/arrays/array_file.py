"""The .mma file around records of named arrays. See docs/array-file.md."""

from .. import _native
from ..errors import FormatError, SourceError
from ..storage.numbers import NUMBER_TYPES, WIDTHS
from ..storage.sections import COLUMN, SectionFile
from ..storage.sources import unreadable

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
    DTYPES = ("|u1", "<u4", "<u8", "<i8", "<f8")

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
        dtype = self.sections[name].dtype
        width = WIDTHS[dtype]
        data = self.section(name)[begin * width : end * width]
        if width == 4:
            wide = memoryview(bytearray(2 * len(data)))
            _native.cells_widen(data, wide)
            data = wide
        return NUMBER_TYPES[dtype], data.cast("Q")
