"""Write a file of sections, such as an index, beside its place; move it there when it is complete."""

import json
import mmap
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from xxhash import xxh3_64

from ..errors import ColumnError, Error
from .lock import Replacement
from .numbers import BY_DTYPE, U32, U64, Spool, not_a_length, scratch, sort_lengths
from .sections import ALIGNMENT, CHECKED, COLUMN, HEADER, VERSION
from .sources import INDEX_MAGIC, INDEX_SUFFIX, open_file, reason

_PIECE = 1 << 20  # bytes written at a time: the checksum then finds them in the cache
_WRITE_OUT = 8 << 20  # bytes after which the kernel is told to start writing out


class SectionWriter(Replacement):
    """Writes a file of sections beside its final place, and moves it there when it is complete."""

    MAGIC: bytes
    kind = 0  # number of the kind of file, in the header; readers refuse unknown kinds
    SUFFIX: str
    NAME: str  # for messages

    def __init__(self, path: str) -> None:
        if not path.endswith(self.SUFFIX) or os.path.isdir(path):
            raise Error(f"{path}: cannot write {self.NAME} here: expected a file name that ends in {self.SUFFIX}")
        self.path = path
        self._sections: dict[str, dict[str, Any]] = {}
        self._name = self._dtype = ""  # of the current section
        self.section_begin = 0  # byte of the file where that section begins
        self._digest = xxh3_64()
        try:
            super().__init__(os.path.join(os.getcwd(), path))  # absolute: the working directory may change
        except OSError as error:
            raise Error(f"{path}: cannot write {self.NAME} here ({reason(error)}); give another place") from None
        self.file.seek(HEADER.size)  # the header is written last
        self._written_out = 0  # the kernel was told to write out up to this byte

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Turn an OSError of the block into an Error that names the file."""
        try:
            yield
        except OSError as error:
            raise Error(
                f"{self.path}: cannot write {self.NAME} ({reason(error)}); nothing was changed; give another place"
            ) from None

    def begin_section(self, name: str, dtype: str) -> None:
        """Start a section, to which `write` appends."""
        self._end_section()
        with self.writing():
            self.file.write(bytes(-self.file.tell() % ALIGNMENT))
        self._name, self._dtype, self.section_begin, self._digest = name, dtype, self.file.tell(), xxh3_64()

    def spool(self) -> Spool:
        """Return a spool for numbers of a section, beside the file."""
        return Spool(self.directory, self.writing)

    def scratch(self, size: int) -> mmap.mmap:
        """Return scratch memory; above 16 MB it is an unnamed file in the directory of this one."""
        with self.writing():
            return scratch(size, self.directory)

    def write_column(self, name: str, spool: Spool) -> None:
        """Append a column as a section; raise ColumnError if it would round an integer."""
        try:
            self.write_spool(COLUMN + name, spool)
        except ColumnError as error:
            raise ColumnError(f"column {name!r}: {error}") from None

    def write_spool(self, name: str, spool: Spool) -> None:
        """Append the numbers of a spool as a section."""
        self.write_section(name, spool.number_type.dtype, spool.chunks())

    def write_array(self, name: str, dtype: str, data: "memoryview | bytes | mmap.mmap") -> None:
        """Append a section from one buffer."""
        view = memoryview(data)
        self.write_section(name, dtype, (view[begin : begin + _PIECE] for begin in range(0, len(view), _PIECE)))

    def write_section(self, name: str, dtype: str, pieces: Iterable["memoryview | bytes"]) -> None:
        """Append a section from pieces."""
        self.begin_section(name, dtype)
        for piece in pieces:
            self.write(piece)

    def write_length_order(self) -> None:
        """Append the sections of `sort_lengths` to a file that has a column 'length'.

        Raises:
          ColumnError: the column has negative or fractional numbers.
        """
        self._end_section()
        column = self._sections[COLUMN + "length"]
        kind, (count,), offset = BY_DTYPE[column["dtype"]], column["shape"], column["offset"]
        with self.writing():
            opened, size = open_file(self.temporary), count * kind.width
            data = memoryview(opened)[offset:][:size] if opened.is_mapped else memoryview(opened.read(offset, size))
        if kind not in (U32, U64):
            numbers = data.cast(kind.code)
            wrong = ((record, each) for record, each in enumerate(numbers) if not each >= 0 or each % 1)
            record, number = next(wrong, (0, numbers[0]))
            raise not_a_length(number, record)
        for name, section in sort_lengths(data, kind.width, self.scratch).items():
            self.write_array(name, *section)

    def write(self, data: "memoryview | bytes | bytearray") -> None:
        """Append to the current section."""
        self._digest.update(data)
        with self.writing():
            self.file.write(data)
            begin, end = self._written_out, self.file.tell()
            # On this advice Linux starts to write dirty pages, so the flush at the end waits less.
            if end - begin >= _WRITE_OUT and hasattr(os, "posix_fadvise"):  # macOS lacks it
                os.posix_fadvise(self.file.fileno(), begin, end - begin, os.POSIX_FADV_DONTNEED)
                self._written_out = end

    def mark(self) -> tuple[int, Any]:
        """Return the current position in the section, and the checksum up to there, for `take_back`."""
        return self.file.tell(), self._digest.copy()

    def take_back(self, mark: tuple[int, Any]) -> Spool:
        """Remove the bytes written since a mark from the section, and return them."""
        begin, self._digest = mark
        taken, end = self.spool(), self.file.tell()
        with self.writing():
            for at in range(begin, end, _PIECE):
                taken.append_bytes(os.pread(self.file.fileno(), min(_PIECE, end - at), at))
            self.file.seek(begin)
            self.file.truncate()
        self._written_out = min(self._written_out, begin)
        return taken

    def _end_section(self) -> None:
        if self._name:
            begin, xxh3 = self.section_begin, self._digest.hexdigest()
            count = (self.file.tell() - begin) // BY_DTYPE[self._dtype].width
            self._sections[self._name] = {"dtype": self._dtype, "shape": [count], "offset": begin, "xxh3": xxh3}
            self._name = ""

    def commit(self, metadata: dict[str, Any], records: int) -> None:
        """Finish the file, and move it to its place; the caller must hold its lock."""
        self.complete(metadata, records)
        self.place()

    def place(self) -> None:
        """Flush a complete file to the disk, and move it to its place; the caller must hold its lock."""
        with self.writing():
            os.fsync(self.file.fileno())
            super().place()

    def complete(self, metadata: dict[str, Any], records: int) -> str:
        """Finish the file without moving it; return its path. `close` removes it unless `place` was called.

        Raises:
          Error: a column does not have a number for each record.
        """
        self._end_section()
        for section, each in self._sections.items():
            if section.startswith(COLUMN) and each["shape"] != [records]:
                name = section.removeprefix(COLUMN)
                raise Error(
                    f"{self.path}: incomplete column {name!r}: expected {records} numbers, found {each['shape'][0]}; "
                    "nothing was changed"
                )
        described = metadata | {"sections": self._sections}
        try:
            text = json.dumps(described, ensure_ascii=False).encode()
        except UnicodeEncodeError:  # a lone surrogate: JSON needs an escape
            text = json.dumps(described).encode()
        offset, size = self.file.tell(), len(text)
        fields = (self.MAGIC, VERSION, HEADER.size, records, offset, size, offset + size, self.kind, 0)
        header = HEADER.pack(*fields)[:CHECKED]
        checksum = xxh3_64(header + text).intdigest()
        with self.writing():
            self.file.write(text)
            self.file.seek(0)
            self.file.write(header + checksum.to_bytes(8, "little"))
        return self.temporary


class IndexWriter(SectionWriter):
    """Writes an index."""

    MAGIC, SUFFIX, NAME = INDEX_MAGIC, INDEX_SUFFIX, "the index"


class ViewWriter(SectionWriter):
    """Writes a saved view."""

    MAGIC, SUFFIX, NAME = INDEX_MAGIC, INDEX_SUFFIX, "the view"
    kind = 1
