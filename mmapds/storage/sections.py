"""A file of sections: opened in constant time, checked in every field; and what an index says of a source.

See docs/index-file.md. `writer.py` writes such files.
"""

import json
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import itemgetter
from sys import intern
from typing import Any, NamedTuple

from xxhash import xxh3_64

from .. import _native
from ..errors import Error, FormatError, shortened
from .numbers import BY_DTYPE, U8, U32, U64
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
MALFORMED = (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError, SyntaxError)
"""Exceptions that malformed metadata can cause; the last one if they are a dtype for NumPy."""


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


class SectionFile:
    """An open file of sections: header and metadata are read and checked, sections are mapped."""

    MAGIC: bytes
    KINDS: Sequence[int] = (0,)
    """Those that it may be of; see `SectionWriter`."""
    NAME: str
    """What messages call such a file, after NOT."""
    AGAIN = "write or copy it again"
    """What the user can do about a damaged file."""

    def __init__(self, path: str, opened: _native.Map) -> None:
        self.path = path
        self.map = opened
        self._verified: set[str] = set()  # sections that have their checksums
        self.records, self.checksum, self.kind, text = self._read_header()
        with self.reporting_malformed_metadata():
            self._metadata: dict[str, Any] | None = json.loads(text)
            sections = self.metadata["sections"]
            self.sections = {intern(name): self._check_section(name, **each) for name, each in sections.items()}

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata as JSON has them; read from the file again where the object does not keep them."""
        found: dict[str, Any] = self._metadata if self._metadata is not None else json.loads(self._read_header()[3])
        return found

    def _read_header(self) -> tuple[int, int, int, bytes]:
        """Return the number of records, the checksum, the kind, and the metadata."""
        size = self.map.size
        header = self.read(0, min(size, HEADER.size))
        if size < HEADER.size or header[:8] != self.MAGIC:
            expected = f"{HEADER.size} bytes that begin with {self.MAGIC!r}"
            if header[:8] != self.MAGIC:
                expected = f"{self.MAGIC!r} at byte 0"
            raise FormatError(f"{self.path}: NOT {self.NAME}: expected {expected}, found {header[:8]!r}; {self.hint()}")
        fields = HEADER.unpack(header)
        _, version, header_size, records, offset, length, file_size, kind, checksum = fields
        if version != VERSION:
            raise FormatError(f"{self.path}: VERSION: expected format {VERSION}, found {version}; upgrade mmapds")
        if file_size != size:
            raise self.damaged(f"expected {file_size} bytes, as the header says, found {size}")
        self._check_kind(kind)
        if header_size != HEADER.size or not HEADER.size <= offset <= offset + length <= size:
            raise self.damaged(
                f"expected a header of {HEADER.size} bytes, and metadata from there to byte {size}, found "
                f"{header_size}, and bytes {offset} to {offset + length}"
            )
        text = self.read(offset, length)
        digest = xxh3_64(header[:CHECKED])
        digest.update(text)
        if digest.intdigest() != checksum:
            raise self.damaged(
                f"header and metadata do not match their checksum: expected {checksum:016x}, found {digest.hexdigest()}"
            )
        return records, checksum, kind, text

    def _check_kind(self, kind: int) -> None:
        if kind not in self.KINDS:
            raise self.damaged(f"expected kind {' or '.join(map(str, self.KINDS))}, found {kind}")

    def _check_section(self, name: str, dtype: str, shape: list[int], offset: int, xxh3: str, **_: Any) -> Section:
        (count,) = shape
        section = Section(BY_DTYPE[dtype].dtype, count, offset, xxh3)
        fits = type(count) is type(offset) is int and count >= 0 <= offset and not offset % ALIGNMENT
        if not fits or offset + section.size > self.map.size:
            raise self.damaged(
                f"section {name!r}: expected 0 numbers or more from a multiple of {ALIGNMENT} to byte {self.map.size}, "
                f"found {shortened(count)} of type {dtype} from byte {shortened(offset)}"
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
            raise self.damaged(f"malformed metadata, or from a newer mmapds: {error!r}") from error

    def damaged(self, what: str) -> FormatError:
        """Return the error to raise for a file that differs from what its writer wrote."""
        return FormatError(f"{self.path}: DAMAGED: {what}; {self.hint()}")

    def hint(self) -> str:
        """Return what the user can do about a damaged file, as the end of a message."""
        return self.AGAIN

    def read(self, begin: int, size: int) -> bytes:
        """Return a copy of some bytes; raise FormatError where the file was cut short, Error where reading fails."""
        try:
            return self.map.read(begin, size)
        except (EOFError, OSError) as error:
            raise self._unread(error) from None

    def count_above(self, name: str, wanted: int) -> int:
        """Return how many words of a section, u32 that fall, are above `wanted`; raises as `read` does."""
        section = self.sections[name]
        try:
            return self.map.count_above(section.offset, section.size // 4, wanted)
        except (EOFError, OSError) as error:
            raise self._unread(error) from None

    def _unread(self, error: EOFError | OSError) -> Error:
        return self.cut_short() if isinstance(error, EOFError) else Error(f"{self.path}: {reason(error)}")

    def cut_short(self) -> FormatError:
        """Return the error to raise for a file that ends before it did when it was opened."""
        return FormatError(  # with no command: what names the sources may be gone
            f"{self.path}: DAMAGED: expected {self.map.size} bytes, as when it was opened, found fewer; {self.AGAIN}"
        )

    def section(self, name: str) -> memoryview:
        """Return the bytes of a section: mapped, or a copy where the file is read by pread."""
        section = self.sections[name]
        if not self.map.is_mapped:
            return memoryview(self.read(section.offset, section.size))
        return memoryview(self.map)[section.offset : section.offset + section.size]

    def pieces(self, name: str, begin: int = 0, end: int | None = None) -> Iterator[bytes]:
        """Yield a copy of the bytes of a section, or of some of them, a MB at a time.

        The first time, all of it is read. The last piece is followed by a FormatError if the section is damaged.
        """
        section = self.sections[name]
        stop, digest = section.size if end is None else end, None if name in self._verified else xxh3_64()
        first, last = (begin, stop) if digest is None else (0, section.size)
        for at in range(first, last, _PIECE):
            piece = self.read(section.offset + at, min(_PIECE, last - at))
            if digest is not None:
                digest.update(piece)
            if wanted := piece[max(begin - at, 0) : max(stop - at, 0)]:
                yield wanted
        if digest is not None and digest.hexdigest() != section.xxh3:
            raise self.damaged(
                f"section {name!r} does not match its checksum: expected {section.xxh3}, found {digest.hexdigest()}"
            )
        self._verified.add(name)

    def verify_sections(self) -> None:
        """Read every section and check it against its checksum."""
        for name in self.sections:
            self.verify_section(name)

    def verify_section(self, name: str) -> None:
        """Read a section and check it against its checksum, unless that is done."""
        if name not in self._verified:
            for _ in self.pieces(name):
                pass


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


# ---- fields of metadata -----------------------------------------------------------------------------------------


class Rule(NamedTuple):
    """What a field of metadata may be, which anybody may have written."""

    expected: str
    """As messages say it."""
    kind: type
    """The type; `object` where `fits` decides that, too."""
    fits: Callable[[Any], bool]
    """Whether a value of this type is in range."""


def _is_utf8(text: str) -> bool:
    """Whether a text can be the name of a file."""
    try:
        return "\0" not in text and (text.isascii() or bool(text.encode()))
    except UnicodeEncodeError:  # a lone surrogate
        return False


def _has_texts(found: dict[str, Any]) -> bool:
    return {*map(type, found.values())} <= {str}


COUNT = Rule("an integer from 0 to 2**63 - 1", int, range(2**63).__contains__)
SIZE = Rule("an integer from 1 to 2**63 - 1", int, range(1, 2**63).__contains__)
TIME = Rule("an integer of 64 bits", int, range(-(2**63), 2**63).__contains__)
TEXT = Rule("a text in UTF-8", str, _is_utf8)
TEXTS = Rule("an object of texts", dict, _has_texts)


class Fields:
    """A table of the fields of a JSON object: what each may be, and the values of those that may be left out.

    Messages say `of` what they are, such as ` of a source`.
    """

    def __init__(self, of: str, rules: Mapping[str, Rule], defaults: Mapping[str, Any] = {}) -> None:
        self._of, self._rules, self._defaults = of, [(name, *rule) for name, rule in rules.items()], defaults

    def read(self, found: Any) -> dict[str, Any]:
        """Return the fields of an object, with defaults for those that it lacks; those without a rule may be anything.

        Raises:
          KeyError, TypeError: a field is missing, or has the wrong type or range.
        """
        fields = {**self._defaults, **found}
        for name, expected, kind, fits in self._rules:
            value = fields[name]
            if (type(value) is not kind and kind is not object) or not fits(value):
                raise TypeError(f"{name}{self._of}: expected {expected}, found {shortened(value)}")
        return fields


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
    def parse(cls, found: Any, size: int) -> "Compression":
        """Read it from its JSON object, for a file of `size` bytes; raises as `Fields.read` does."""
        fields = _COMPRESSION.read(found)
        parsed = cls(*(fields[name] for name in cls._fields))
        if parsed.size > size * _MOST_TIMES:  # a record of all of it would take all memory
            raise TypeError(
                f"compression of a source: expected what a file of {size} bytes can hold, found {shortened(found)}"
            )
        if parsed.largest > parsed.size or (parsed.size and not parsed.blocks):
            raise TypeError(f"compression of a source: expected blocks of all content, found {shortened(found)}")
        return parsed

    @property
    def is_random(self) -> bool:
        """Whether its records can be read in any order, as no block is too large for that."""
        return self.largest <= LARGEST_BLOCK


_COMPRESSION = Fields(
    " of a compression",
    {
        "codec": Rule(" or ".join(CODECS), str, CODECS.__contains__),
        **dict.fromkeys(("size", "blocks", "largest", "points"), COUNT),
    },
)


class BadLines(NamedTuple):
    """Lines of a source that were left out because they are not JSON."""

    lines: int = 0
    """How many; they count among those that were skipped."""
    first: tuple[tuple[int, int], ...] = ()
    """Of the first of them, the line, counted from 1, and the byte where it begins."""

    @classmethod
    def parse(cls, found: Any) -> "BadLines":
        """Read them from a JSON object; raises as `Fields.read` does."""
        parsed = cls(found["lines"], tuple((line, byte) for line, byte in found["first"]))
        for number in (parsed.lines, *(number for place in parsed.first for number in place)):
            if type(number) is not int or not COUNT.fits(number):
                raise TypeError(f"bad of a source: expected {COUNT.expected}, found {shortened(number)}")
        return parsed


class IndexedSource(NamedTuple):
    """A source as it was when it was indexed."""

    path: str
    """Relative to the directory that holds the index."""
    size: int
    """Bytes."""
    mtime_ns: int
    fingerprint: str
    """See `current.fingerprint`."""
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
    """See `current.full_hash`; empty where it was not asked for."""
    bad: BadLines = BadLines()
    width: int = 0
    """Bytes of a distance in the groups of its bounds; 0 if the index has no bounds."""
    compression: Compression | None = None
    """None if the source is read as it is."""

    @property
    def groups(self) -> int:
        """How many groups its bounds take."""
        return groups_of(self.width, self.records) if self.width else 0

    @property
    def block_bounds(self) -> int:
        """How many numbers it has in each section of the bounds of blocks."""
        return 0 if self.compression is None else self.compression.blocks + 1

    @property
    def points(self) -> int:
        """Bytes of its access points in the index."""
        return 0 if self.compression is None else self.compression.points

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
    def parse(cls, found: dict[str, Any]) -> "IndexedSource":
        """Read a source from its JSON object; unknown keys are skipped, and it raises as `Fields.read` does."""
        fields = _SOURCE.read(found)
        if "bad" in found:
            fields["bad"] = BadLines.parse(fields["bad"])
        if "compression" in found:
            fields["compression"] = Compression.parse(fields["compression"], fields["size"])
        return cls._make(_VALUES(fields))


_SOURCE = Fields(
    " of a source",
    {
        **dict.fromkeys(("size", "records", "lines", "smallest", "largest", "skipped", "first"), COUNT),
        **dict.fromkeys(("path", "fingerprint", "xxh3_128"), TEXT),
        "mtime_ns": TIME,
        "width": Rule("2, 3, 4 or 8", int, (0, *WIDTHS).__contains__),
    },
    {"skipped": 0, "first": 0, **IndexedSource._field_defaults},
)
_VALUES = itemgetter(*IndexedSource._fields)
_OPTIONAL = ("xxh3_128", "bad", "width", "compression")
"""Keys of a source that an index has only where they say something."""
