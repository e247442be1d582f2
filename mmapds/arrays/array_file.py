"""The .mma file around records of named arrays. See docs/array-file.md."""

from .. import _native
from ..errors import FormatError, SourceError
from ..storage.numbers import NUMBER_TYPES, WIDTHS
from ..storage.sections import COLUMN, SectionFile
from ..storage.sources import unreadable

SUFFIX = ".mma"
MAGIC = b"\x89MMA\r\n\x1a\n"
"""The first bytes of a file. A transfer that takes the file for text damages them."""
_HEADER = 64
_SIZES = 16  # the size of the schema in bytes, then its checksum
RECORD_ALIGNMENT = 64
Cells = tuple[int, memoryview]


class Head:
    """What stands before the records. A truncated file still has it.

    Raises:
      FormatError: the file is not an array file, its writer did not finish, or it needs a newer mmapds.
      SourceError: the file cannot be read.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            self.map = _native.Map(path)
        except OSError as error:
            raise unreadable(path, error) from None
        except ValueError:
            raise SourceError(f"{path}: expected a regular file, found another kind") from None
        view = memoryview(self.map)
        self._check_magic(view)
        version = int.from_bytes(view[8:12], "little")
        if version != 1:
            raise FormatError(f"{path}: VERSION: expected format 1, found {version}; upgrade mmapds")
        self.records = int.from_bytes(view[16:24], "little")
        self.size = int.from_bytes(view[40:48], "little")
        size = int.from_bytes(view[_HEADER : _HEADER + 8], "little")
        self.first = -(-(_HEADER + _SIZES + size) // RECORD_ALIGNMENT) * RECORD_ALIGNMENT
        text = self._checked_schema(view, size)
        from .schema import parse  # here, as indexes of other formats do without it

        try:
            self.schema, self.columns = parse(text)
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise FormatError(f"{path}: DAMAGED: the schema is malformed ({error!r}); write the file again") from None

    def _check_magic(self, view: memoryview) -> None:
        if view[:8] == MAGIC and len(view) >= _HEADER + _SIZES:
            return
        if view[:8] == MAGIC:
            what = f"expected {_HEADER + _SIZES} bytes or more, found {len(view)}; copy the file again"
        elif not any(view[:_HEADER]):
            what = "its writer did not finish; write it again"
        else:
            what = f"expected {MAGIC!r} at byte 0, found {bytes(view[:8])!r}; give a file that mmapds.Writer made"
        raise FormatError(f"{self.path}: NOT AN ARRAY FILE: {what}")

    def _checked_schema(self, view: memoryview, size: int) -> bytes:
        from xxhash import xxh3_64

        text = bytes(view[_HEADER + _SIZES : _HEADER + _SIZES + size])
        expected, found = int.from_bytes(view[_HEADER + 8 : _HEADER + 16], "little"), xxh3_64(text).intdigest()
        if len(text) != size:
            what = f"expected a schema of {size} bytes, found {len(text)}"
        elif found != expected:
            what = f"expected {expected:#018x} as the checksum of the schema, found {found:#018x}"
        else:
            return text
        raise FormatError(f"{self.path}: DAMAGED: {what}; copy or write the file again")


class ArrayFile(SectionFile):
    """A whole array file.

    Raises:
      FormatError: the file is damaged.
    """

    MAGIC, NAME = MAGIC, "AN ARRAY FILE"
    DTYPES = ("|u1", "<u4", "<u8", "<i8", "<f8")

    def __init__(self, head: Head) -> None:
        super().__init__(head.path, head.map)
        if "records" not in self.sections:
            raise self.damaged("expected a section 'records', found none")
        self._check_numbers("offsets", ("<u4", "<u8"))
        for field in head.schema.fields:
            if field.column:
                self._check_numbers(COLUMN + field.column, tuple(NUMBER_TYPES))

    def _check_numbers(self, name: str, dtypes: tuple[str, ...]) -> None:
        """Check a section that holds a number for each record."""
        section = self.sections.get(name)
        if section is None or section.items != self.records:
            found = "no such section" if section is None else section.items
            raise self.damaged(f"section {name!r}: expected {self.records} numbers, found {found}")
        if section.dtype not in dtypes:
            raise self.damaged(f"section {name!r}: expected numbers of {' or '.join(dtypes)}, found {section.dtype}")
        self.verify_section(name)

    @property
    def end(self) -> int:
        """The byte where the last record ends."""
        return self.sections["records"].offset + self.sections["records"].size

    def cells(self, name: str, begin: int, end: int) -> Cells:
        """Return the type of a section's numbers, and those of records `begin` to `end` as 64-bit cells."""
        dtype = self.sections[name].dtype
        width = WIDTHS[dtype]
        data = self.section(name)[begin * width : end * width]
        if width == 4:
            wide = memoryview(bytearray(2 * len(data)))
            _native.cells_widen(data, wide)
            data = wide
        return NUMBER_TYPES[dtype], data.cast("Q")
