"""A file of sections: opened in constant time, checked in every field; and what an index says of a source.

See docs/index-file.md. `writer.py` writes such files.
"""

import json
import struct
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from sys import intern
from typing import Any, NamedTuple

from xxhash import xxh3_64

from .. import _native
from ..errors import Error, FormatError
from .numbers import BY_DTYPE, COLUMN_TYPES, U8, U32, U64, NumberType
from .sources import CODECS, reason

VERSION = 1
HEADER = struct.Struct("<8sIIQQQQQQ")
CHECKED = HEADER.size - 8
"""Bytes of the header before its checksum."""
ALIGNMENT = 64
"""Of sections in the file."""
_PIECE = 1 << 20  # bytes read at a time
COLUMN = "column:"
"""Prefix of the name of a section that is a column."""


class Section(NamedTuple):
    """An array in the file."""

    dtype: str
    items: int
    offset: int
    xxh3: str

    @property
    def size(self) -> int:
        """Bytes."""
        return self.items * BY_DTYPE[self.dtype].width


MALFORMED = (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError, SyntaxError)
"""Exceptions that malformed metadata can cause; the last one if they are a dtype for NumPy."""


class SectionFile:
    """An open file of sections: header and metadata are read and checked, sections are mapped."""

    MAGIC: bytes
    KINDS: Sequence[int] = (0,)
    """Those that it may be of; see `SectionWriter`."""
    NAME: str
    """What messages call such a file, after NOT."""
    TYPES: Collection[NumberType] = COLUMN_TYPES
    """What its sections may hold."""

    def __init__(self, path: str, opened: _native.Map) -> None:
        self.path = path
        self.map = opened
        self._verified: set[str] = set()  # sections that have their checksums
        self.records, self.checksum, self.kind, text = self._read_header()
        try:
            self._metadata: dict[str, Any] | None = json.loads(text)
            sections = self.metadata["sections"]
            self.sections = {intern(name): self._check_section(name, **each) for name, each in sections.items()}
        except Error:
            raise
        except MALFORMED as error:
            raise self.malformed(error) from None

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata as JSON has them; read from the file again where the object does not keep them."""
        found: dict[str, Any] = self._metadata if self._metadata is not None else json.loads(self._read_header()[3])
        return found

    def _read_header(self) -> tuple[int, int, int, bytes]:
        size = self.map.size
        header = self.read(0, min(size, HEADER.size))
        if size < HEADER.size or header[:8] != self.MAGIC:
            found = header[:8]
            wrong = f"expected {self.MAGIC!r} at byte 0, found {found!r}"
            if found == self.MAGIC:
                wrong = f"expected a header of {HEADER.size} bytes, found {size}"
            raise FormatError(f"{self.path}: NOT {self.NAME}: {wrong}; {self.remedy()}")
        fields = HEADER.unpack(header)
        _, version, header_size, records, offset, length, file_size, kind, checksum = fields
        if version != VERSION:
            raise FormatError(f"{self.path}: VERSION: expected format {VERSION}, found {version}; upgrade mmapds")
        if file_size != size:
            raise self.damaged(f"expected {file_size} bytes, as the header says, found {size}")
        if other := self.other_kind(kind):
            raise other
        if header_size != HEADER.size or kind not in self.KINDS:
            known = " or ".join(map(str, self.KINDS))
            raise self.damaged(
                f"expected a header of {HEADER.size} bytes and kind {known}, found {header_size} and {kind}"
            )
        if offset < HEADER.size or length > size or offset > size - length:
            raise self.damaged(
                f"expected metadata within bytes {HEADER.size} to {size}, found bytes {offset} to {offset + length}"
            )
        text = self.read(offset, length)
        digest = xxh3_64(header[:CHECKED])
        digest.update(text)
        if digest.intdigest() != checksum:
            raise self.damaged(
                f"header and metadata do not match their checksum: expected {checksum:016x}, found {digest.hexdigest()}"
            )
        return records, checksum, kind, text

    def other_kind(self, kind: int) -> FormatError | None:
        """Return the error for a file of another kind that this mmapds knows."""
        return None

    def _check_section(self, name: str, dtype: str, shape: list[int], offset: int, xxh3: str, **_: Any) -> Section:
        (count,) = shape
        number_type = BY_DTYPE.get(dtype)
        if number_type is None or number_type not in self.TYPES:
            known = ", ".join(each.dtype for each in self.TYPES)
            raise self.damaged(f"section {name!r}: expected one of {known}, found {dtype!r}")
        section = Section(number_type.dtype, count, offset, xxh3)
        if type(count) is not int or type(offset) is not int or count < 0 or offset < 0 or offset % ALIGNMENT:
            raise self.damaged(
                f"section {name!r}: expected 0 items or more at a multiple of {ALIGNMENT} bytes, found {count!r} at "
                f"{offset!r}"
            )
        if offset + section.size > self.map.size:
            raise self.damaged(
                f"section {name!r} does not fit the file: expected up to {self.map.size} bytes, found its end at byte "
                f"{offset + section.size}"
            )
        return section

    @contextmanager
    def reporting_malformed_metadata(self) -> Iterator[None]:
        """Report malformed metadata, wherever it is first used, as FormatError."""
        try:
            yield
        except Error:
            raise
        except MALFORMED as error:
            raise self.malformed(error) from error

    def malformed(self, error: Exception) -> FormatError:
        """Return the error to raise for metadata that caused `error` when they were used."""
        return self.damaged(f"malformed metadata, or from a newer mmapds: {error!r}")

    def damaged(self, what: str) -> FormatError:
        """Return the error to raise for a file that differs from what its writer wrote."""
        return FormatError(f"{self.path}: DAMAGED: {what}; {self.remedy()}")

    def remedy(self) -> str:
        """Return what the user can do about a damaged file, as the end of a message."""
        return "write or copy it again"

    def read(self, begin: int, size: int) -> bytes:
        """Return a copy of some bytes of the file.

        Raises:
          FormatError: the file was cut short since it was opened.
          Error: the system cannot read it.
        """
        try:
            return self.map.read(begin, size)
        except (EOFError, OSError) as error:
            raise self._unread(error) from None

    def count_above(self, name: str, wanted: int) -> int:
        """Return how many words of a section are above `wanted`: u32, falling. Reads few of them.

        Raises as `read` does.
        """
        section = self.sections[name]
        try:
            return self.map.count_above(section.offset, section.size // 4, wanted)
        except (EOFError, OSError) as error:
            raise self._unread(error) from None

    def _unread(self, error: EOFError | OSError) -> Error:
        return self.cut_short() if isinstance(error, EOFError) else Error(f"{self.path}: {reason(error)}")

    def cut_short(self) -> FormatError:
        """Return the error to raise for a file that ends before it did when it was opened."""
        return self.damaged(f"expected {self.map.size} bytes, as when it was opened, found fewer")

    def section(self, name: str) -> memoryview:
        """Return the bytes of a section: mapped, or a copy where the file is read by pread."""
        section = self.sections[name]
        return self.part(section.offset, section.size)

    def part(self, begin: int, size: int) -> memoryview:
        """Return some bytes of the file: mapped, or a copy where it is read by pread."""
        if not self.map.is_mapped:
            return memoryview(self.read(begin, size))
        return memoryview(self.map)[begin : begin + size]

    def pieces(self, name: str, begin: int = 0, end: int | None = None) -> Iterator[bytes]:
        """Yield a copy of the bytes of a section, or of some of them, a MB at a time."""
        section = self.sections[name]
        stop = section.offset + (section.size if end is None else end)
        for at in range(section.offset + begin, stop, _PIECE):
            yield self.read(at, min(_PIECE, stop - at))

    def checked_pieces(self, name: str, begin: int = 0, end: int | None = None) -> Iterator[bytes]:
        """Yield what `pieces` does; the first time, read all of the section and compare its checksum in the end.

        Raises:
          FormatError: the section is damaged, so what was yielded may be.
        """
        if name in self._verified:
            yield from self.pieces(name, begin, end)
            return
        stop = self.sections[name].size if end is None else end
        digest, at = xxh3_64(), 0
        for piece in self.pieces(name):
            digest.update(piece)
            wanted = piece[max(begin - at, 0) : max(stop - at, 0)]
            if wanted:
                yield wanted
            at += len(piece)
        self.check_digest(name, digest.hexdigest())

    def verify_sections(self) -> None:
        """Read every section and check it against its checksum."""
        for name in self.sections:
            self.verify_section(name)

    def verify_section(self, name: str) -> None:
        """Read a section and check it against its checksum."""
        digest = xxh3_64()
        for piece in self.pieces(name):
            digest.update(piece)
        self.check_digest(name, digest.hexdigest())

    def check_digest(self, name: str, found: str) -> None:
        """Raise FormatError unless the bytes of a section have the checksum that the file says."""
        expected = self.sections[name].xxh3
        if found != expected:
            raise self.damaged(f"section {name!r} does not match its checksum: expected {expected}, found {found}")
        self._verified.add(name)


# ---- bounds: where records begin, in groups as narrow as the records of a source allow ---------------------------

BOUNDS = "offsets"
"""The section that holds them."""
GROUP = 64
"""Bytes of a group: a bound of 8 bytes, and the distances from there to those that follow."""
WIDTHS = (2, 3, 4, 8)
"""How many bytes a distance may have; in a source, the fewest that all of its distances fit."""


def records_in_group(width: int) -> int:
    """Return how many records have both their bounds in a group."""
    return (GROUP - U64.width) // width


def groups_of(width: int, records: int) -> int:
    """Return how many groups the bounds of a source take."""
    return records // records_in_group(width) + 1


def unpacked(width: int, groups: "bytes | memoryview") -> memoryview:
    """Return the bounds at which the records of whole groups begin, uint64."""
    return memoryview(_native.unpack_bounds(width, groups)).cast("Q")


# ---- sources as an index describes them --------------------------------------------------------------------------

BLOCK_BEGINS, BLOCK_BOUNDS = "block_begins", "block_bounds"
POINT_BOUNDS, POINTS = "point_bounds", "access_points"
BLOCK_SECTIONS: dict[str, tuple[str, ...]] = {
    BLOCK_BEGINS: (U32.dtype, U64.dtype),
    BLOCK_BOUNDS: (U32.dtype, U64.dtype),
    POINT_BOUNDS: (U32.dtype, U64.dtype),
    POINTS: (U8.dtype,),
}
"""What these sections hold, in an index of compressed sources; the last two where some have access points."""
LARGEST_BLOCK = 8 << 20
"""Bytes of content: what a block of more has is read in order alone."""
WINDOW = 32 << 10
"""Bytes of content that deflate looks back at, at most."""
CRC_SIZE = 4  # bytes of an access point before its window
LARGEST_POINT = CRC_SIZE + WINDOW + 64  # bytes: deflate adds less to what it cannot make smaller
_MOST_TIMES = 1 << 17  # what a byte of a file can be the content of, at most


class Compression(NamedTuple):
    """How a source is compressed."""

    codec: str
    """One of `sources.CODECS`."""
    size: int
    """Bytes of content: what the source is without compression."""
    blocks: int
    """How many; each is decoded on its own."""
    largest: int
    """Bytes of content in the largest block."""
    points: int
    """Bytes of its access points in the index."""

    @classmethod
    def parse(cls, fields: Any, size: int) -> "Compression":
        """Read it from its JSON object.

        Args:
          size: of the file.
        Raises:
          KeyError, TypeError: a field is missing, or has the wrong type or range.
        """
        found = cls(*(fields[name] for name in cls._fields))
        numbers = found[1:]
        if found.codec not in CODECS or {*map(type, numbers)} != {int} or min(numbers) < 0:
            raise TypeError(
                f"compression of a source: expected {' or '.join(CODECS)}, and integers of 0 or more, found {fields}"
            )
        few = found.largest > found.size or found.blocks > found.size or (found.size and not found.blocks)
        if few or found.size > size * _MOST_TIMES or found.points > found.blocks * LARGEST_POINT:
            raise TypeError(f"compression of a source: expected what a file of {size} bytes can hold, found {fields!r}")
        return found

    @property
    def is_random(self) -> bool:
        """Whether its records can be read in any order, as no block is too large for that."""
        return self.largest <= LARGEST_BLOCK


def numbers_in(compressed: Sequence[Compression]) -> dict[str, int]:
    """Return how many numbers each of `BLOCK_SECTIONS` has for some sources."""
    blocks, points = sum(each.blocks + 1 for each in compressed), sum(each.points for each in compressed)
    return {BLOCK_BEGINS: blocks, BLOCK_BOUNDS: blocks, POINT_BOUNDS: blocks if points else 0, POINTS: points}


class BadLines(NamedTuple):
    """Lines of a source that were left out because they are not JSON."""

    lines: int = 0
    """How many; they count among those that were skipped."""
    first: tuple[tuple[int, int], ...] = ()
    """Of the first of them, the line, counted from 1, and the byte where it begins."""

    @classmethod
    def parse(cls, fields: Any) -> "BadLines":
        """Read them from a JSON object.

        Raises:
          KeyError, TypeError, ValueError: a field is missing or has the wrong type.
        """
        found = cls(fields["lines"], tuple((line, byte) for line, byte in fields["first"]))
        numbers = [found.lines, *(number for place in found.first for number in place)]
        if not all(type(number) is int and 0 <= number < 2**63 for number in numbers):
            raise TypeError(f"bad of a source: expected integers from 0 to 2**63 - 1, found {fields!r}")
        return found

    def __str__(self) -> str:
        return f"{self.lines} from {', '.join(str(line) for line, _ in self.first[:1]) or 'none'} on"


class IndexedSource(NamedTuple):
    """A source as it was when it was indexed."""

    path: str
    """Relative to the directory that holds the index."""
    size: int
    """Bytes."""
    mtime_ns: int
    fingerprint: str
    """See `fingerprints.fingerprint`."""
    records: int
    lines: int
    smallest: int
    """Bytes in the smallest record, framing included; 0 when there are no records."""
    largest: int
    skipped: int
    """Records left out because they lack a column, or are truncated."""
    first: int
    """Where the first record begins, if all records have one size and the index has no bounds; else 0."""
    xxh3_128: str = ""
    """See `fingerprints.full_hash`; empty where it was not asked for."""
    bad: BadLines = BadLines()
    width: int = 0
    """Bytes of a distance in the groups of its bounds; 0 if the index has no bounds."""
    compression: Compression | None = None
    """None if the source is read as it is."""

    @property
    def content_size(self) -> int:
        """Bytes in which its records lie: those of the file, or of what is compressed there."""
        return self.size if self.compression is None else self.compression.size

    def describe(self) -> dict[str, Any]:
        """Return the JSON object that an index holds."""
        bad = self.bad._asdict() if self.bad.lines else None
        compression = None if self.compression is None else self.compression._asdict()
        fields = self._asdict() | {"bad": bad, "compression": compression}
        return {name: value for name, value in fields.items() if value or name not in _OPTIONAL}

    @classmethod
    def parse(cls, fields: dict[str, Any]) -> "IndexedSource":
        """Read a source from its JSON object; unknown keys are skipped.

        Raises:
          KeyError, TypeError: a field is missing or has the wrong type.
        """
        path, mtime_ns, fingerprint = fields["path"], fields["mtime_ns"], fields["fingerprint"]
        numbers = [fields[name] for name in _NUMBERS] + [fields.get("skipped", 0), fields.get("first", 0)]
        xxh3_128, width = fields.get("xxh3_128", ""), fields.get("width", 0)
        size, records, lines, smallest, largest, skipped, first = numbers
        sizes = smallest, largest, skipped, first
        source = cls(path, size, mtime_ns, fingerprint, records, lines, *sizes, xxh3_128, _NO_BAD_LINES, width)
        # Fast path: a dataset may have thousands of indexes.
        texts = type(path) is type(fingerprint) is type(xxh3_128) is str and f"{path}{fingerprint}{xxh3_128}".isascii()
        if (
            not (texts and "\0" not in path)
            or {*map(type, numbers), type(mtime_ns), type(width)} != {int}
            or width not in _WIDTHS
            or not (min(numbers) >= 0 and max(numbers) < 2**63 and -(2**63) <= mtime_ns < 2**63)
        ):
            source._check()
        if "bad" in fields:
            source = source._replace(bad=BadLines.parse(fields["bad"]))
        if "compression" in fields:
            source = source._replace(compression=Compression.parse(fields["compression"], source.size))
        return source

    def _check(self) -> None:
        """Raise TypeError unless every field has the type and the range it should."""
        for name, value in self._asdict().items():
            if name in ("bad", "compression"):
                continue
            if name == "path":
                expected, fits = "a path in UTF-8", is_path(value)
            elif name in ("fingerprint", "xxh3_128"):
                expected, fits = "hex digits", type(value) is str and value.isascii()
            elif name == "mtime_ns":
                expected, fits = "an integer of 64 bits", type(value) is int and -(2**63) <= value < 2**63
            elif name == "width":
                expected, fits = "2, 3, 4 or 8", type(value) is int and value in _WIDTHS
            else:
                expected, fits = "an integer from 0 to 2**63 - 1", type(value) is int and 0 <= value < 2**63
            if not fits:
                raise TypeError(f"{name} of a source: expected {expected}, found {value!r}")


_NUMBERS = ("size", "records", "lines", "smallest", "largest")
"""Keys of a source that every index has, of integers of 0 or more."""
_OPTIONAL = ("xxh3_128", "bad", "width", "compression")
"""Keys of a source that an index has only where they say something."""
_NO_BAD_LINES = BadLines()
_WIDTHS = (0, *WIDTHS)


def is_path(value: Any) -> bool:
    """Whether a value can be the path of a file in metadata: a text that UTF-8 can hold, without NUL."""
    if type(value) is not str or "\0" in value:
        return False
    try:
        value.encode()
    except UnicodeEncodeError:  # a lone surrogate
        return False
    return True
