"""Read a file of sections: it opens in constant time, and every field is checked. Also the sources of an index.

See docs/index-file.md. `writer.py` writes such files.
"""

import json
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import itemgetter
from sys import intern
from typing import Any, NamedTuple, TypeVar

from xxhash import xxh3_64

from .. import _native
from ..errors import Error, FormatError, shortened
from .numbers import BY_DTYPE, U8, U32, U64
from .sources import CODECS, reason

Read = TypeVar("Read")
VERSION = 1
HEADER = struct.Struct("<8sIIQQQQQQ")
CHECKED = HEADER.size - 8  # bytes of the header before its checksum
ALIGNMENT = 64  # of sections in the file
_PIECE = 1 << 20  # bytes read at a time
COLUMN = "column:"  # prefix of the names of sections that are columns
MALFORMED = (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError, SyntaxError)
"""Exceptions that malformed metadata can cause; the last one if NumPy reads them as a dtype."""


# ---- fields of metadata: untrusted -------------------------------------------------------------------------------

Rule = tuple[str, Callable[[Any], bool]]
"""What messages expect of a field of metadata, and whether a value fits."""


def check_fields(of: str, rules: Mapping[str, Rule], found: Mapping[str, Any]) -> None:
    """Raise KeyError if a field is missing, TypeError if it is wrong."""
    for name, (expected, fits) in rules.items():
        if not fits(value := found[name]):
            raise TypeError(f"{name}{of}: expected {expected}, found {shortened(value)}")


def is_count(value: Any) -> bool:
    """Whether a value is an integer from 0 to 2**63 - 1."""
    return type(value) is int and 0 <= value < 2**63


COUNT: Rule = ("an integer from 0 to 2**63 - 1", is_count)
# `encode` refuses a lone surrogate.
TEXT: Rule = ("a text in UTF-8", lambda value: type(value) is str and "\0" not in value and value.encode() is not None)


# ---- the file ----------------------------------------------------------------------------------------------------


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


class SavedViewFoundError(FormatError):
    """A file is not an index but a saved view: see `SavedView`."""


class SectionFile:
    """An open file of sections: header and metadata are read and checked, sections are mapped."""

    MAGIC: bytes
    KINDS: Sequence[int] = (0,)  # accepted values of `SectionWriter.kind`
    NAME: str  # for messages, after NOT

    def __init__(self, path: str, opened: _native.Map) -> None:
        self.path = path
        self.map = opened
        self._verified: set[str] = set()  # sections whose checksums were verified
        self.records, self.checksum, self.kind, text = self._read_header()
        with self.reporting_malformed_metadata():
            metadata = json.loads(text)
            sections = metadata["sections"].items()
            self.sections = {intern(name): self._section_of(name, **each) for name, each in sections}
            self._take(metadata)

    def _take(self, metadata: dict[str, Any]) -> None:
        """Read from the metadata the fields of this kind of file."""

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata as JSON, read from the file on each access: a dataset may have thousands of indexes."""
        found: dict[str, Any] = json.loads(self._read_header()[3])
        return found

    def _read_header(self) -> tuple[int, int, int, bytes]:
        """Check the header; return the number of records, the checksum, the kind, and the metadata."""
        size = self.map.size
        header = self.read(0, min(size, HEADER.size))
        if header[:8] != self.MAGIC or size < HEADER.size:
            raise FormatError(
                f"{self.path}: NOT {self.NAME}: expected {self.MAGIC!r} at byte 0, found {header[:8]!r}{self._way()}"
            )
        _, version, header_size, records, offset, length, file_size, kind, checksum = HEADER.unpack(header)
        if version != VERSION:
            raise FormatError(f"{self.path}: VERSION: expected format {VERSION}, found {version}; upgrade mmapds")
        if file_size != size:
            raise self.damaged(f"expected {file_size} bytes, as the header says, found {size}")
        if kind not in self.KINDS:
            if kind == 1:
                raise SavedViewFoundError(f"{self.path}: NOT {self.NAME}: expected one of sources, found a saved view")
            raise self.damaged(f"expected kind {' or '.join(map(str, self.KINDS))}, found {kind}")
        if header_size != HEADER.size or not HEADER.size <= offset <= offset + length <= size:
            raise self.damaged(f"metadata: expected bytes {HEADER.size} to {size}, found {offset} to {offset + length}")
        text = self.read(offset, length)
        found = xxh3_64(header[:CHECKED] + text).intdigest()
        if found != checksum:
            what = "header and metadata do not match their checksum"
            raise self.damaged(f"{what}: expected {checksum:016x}, found {found:016x}")
        return records, checksum, kind, text

    def _section_of(self, name: str, dtype: str, shape: list[int], offset: int, xxh3: str, **_: Any) -> Section:
        (count,) = shape
        section = Section(BY_DTYPE[dtype].dtype, count, offset, xxh3)
        fits = is_count(count) and is_count(offset) and not offset % ALIGNMENT
        if not fits or offset + section.size > self.map.size:
            found = f"{shortened(count)} of type {dtype} from byte {shortened(offset)}"
            raise self.damaged(f"section {name!r}: expected numbers within {self.map.size} bytes, found {found}")
        return section

    def check_numbers(self, name: str, dtypes: Sequence[str], items: int | None = None) -> None:
        """Raise FormatError unless a section has one of these types and, if given, this number of items."""
        section = self.sections.get(name)
        if section is None or section.dtype not in dtypes or items not in (None, section.items):
            found = "none" if section is None else f"{section.items} of type {section.dtype}"
            expected = f"{'' if items is None else f'{items} '}numbers of type {' or '.join(dtypes)}"
            raise self.damaged(f"section {name!r}: expected {expected}, found {found}")

    @contextmanager
    def reporting_malformed_metadata(self) -> Iterator[None]:
        """Raise FormatError for errors of malformed metadata in a block."""
        try:
            yield
        except Error:
            raise
        except MALFORMED as error:
            raise self.damaged(f"malformed metadata, or from a newer mmapds: {error!r}") from error

    def damaged(self, what: str) -> FormatError:
        """Return the error for a damaged file."""
        return FormatError(f"{self.path}: DAMAGED: {what}{self._way()}")

    def _way(self) -> str:
        return ""  # end of a message on a damaged file: the command that rebuilds it, if any

    def read(self, begin: int, size: int) -> bytes:
        """Return a copy of some bytes; raise FormatError if the file was cut short, Error if reading fails."""
        return self._guarded(self.map.read, begin, size)

    def count_above(self, name: str, wanted: int) -> int:
        """Return how many numbers of a section of falling u32 are above `wanted`."""
        section = self.sections[name]
        return self._guarded(self.map.count_above, section.offset, section.size // 4, wanted)

    def _guarded(self, read: Callable[..., Read], *arguments: int) -> Read:
        try:
            return read(*arguments)
        except EOFError:
            raise self.cut_short() from None
        except OSError as error:
            raise Error(f"{self.path}: {reason(error)}") from None

    def cut_short(self) -> FormatError:
        """Return the error for a file that became shorter after it was opened."""
        return FormatError(f"{self.path}: DAMAGED: expected {self.map.size} bytes, as when it was opened, found fewer")

    def section(self, name: str) -> memoryview:
        """Return the bytes of a section: mapped, or a copy if the file is read by pread."""
        section = self.sections[name]
        if not self.map.is_mapped:
            return memoryview(self.read(section.offset, section.size))
        return memoryview(self.map)[section.offset : section.offset + section.size]

    def pieces(self, name: str, begin: int = 0, end: int | None = None) -> Iterator[bytes]:
        """Yield a copy of some bytes of a section, a MB at a time; at the end raise FormatError if it is damaged.

        The first call reads the whole section for its checksum.
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
        if digest is not None and (found := digest.hexdigest()) != section.xxh3:
            raise self.damaged(f"section {name!r} does not match its checksum: expected {section.xxh3}, found {found}")
        self._verified.add(name)

    def verify_sections(self, *names: str) -> None:
        """Check sections, by default all, against their checksums, unless already checked."""
        for name in names or self.sections:
            for _ in self.pieces(name, 0, 0):
                pass


# ---- bounds: where records begin, in groups as narrow as the records of a source allow ---------------------------

BOUNDS = "offsets"  # the section that holds them
GROUP = 64  # bytes: a bound of 8 bytes, then the distances from it to the next bounds
WIDTHS = (2, 3, 4, 8)  # bytes of a distance; each source has the smallest width that fits


def records_in_group(width: int) -> int:
    """Return the number of records that have both bounds in one group."""
    return (GROUP - U64.width) // width


def unpacked(width: int, groups: "bytes | memoryview") -> memoryview:
    """Return where the records of whole groups begin, uint64."""
    return memoryview(_native.unpack_bounds(width, groups)).cast("Q")


# ---- sources in an index -----------------------------------------------------------------------------------------

BLOCK_BEGINS, BLOCK_BOUNDS = "block_begins", "block_bounds"
POINT_BOUNDS, POINTS = "point_bounds", "access_points"
BLOCK_SECTIONS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys((BLOCK_BEGINS, BLOCK_BOUNDS, POINT_BOUNDS), (U32.dtype, U64.dtype)),
    POINTS: (U8.dtype,),
}
"""Types of the sections of blocks, in an index of compressed sources; the last two only with access points."""
LARGEST_BLOCK = 8 << 20  # bytes of content; a larger block is read in order only
WINDOW = 32 << 10  # bytes of content that deflate refers back to, at most
_MOST_TIMES = 1 << 17  # bytes of content for each byte of a file, at most


class Compression(NamedTuple):
    """How a source is compressed."""

    codec: str  # one of `sources.CODECS`
    size: int  # bytes of content, without compression
    blocks: int  # number of blocks; each is decoded independently
    largest: int  # bytes of content in the largest block
    points: int  # bytes of its access points in the index


class BadLines(NamedTuple):
    """Lines of a source that were skipped: not JSON, or with a measured field of another type."""

    lines: int = 0  # their number; `skipped` of the source includes them
    first: tuple[tuple[int, int], ...] = ()  # of the first ones, the line, from 1, and the byte where it begins


class IndexedSource(NamedTuple):
    """A source as it was when it was indexed."""

    path: str  # relative to the directory that holds the index
    size: int  # bytes
    mtime_ns: int
    fingerprint: str  # see `current.fingerprint`
    records: int
    lines: int
    smallest: int  # bytes in the smallest record, with framing; 0 without records
    largest: int
    skipped: int  # records skipped because they lack a column, or are truncated
    first: int  # where the first record begins, if the index has no bounds; otherwise 0
    xxh3_128: str = ""  # see `current.full_hash`; empty without `hash=True`
    bad: BadLines = BadLines()
    width: int = 0  # bytes of a distance in its groups of bounds; 0 if the index has no bounds
    compression: Compression | None = None  # None if the source is not compressed
    etag: str = ""  # of an object of a store; empty for a file

    @property
    def groups(self) -> int:
        """The number of groups of its bounds."""
        return self.records // records_in_group(self.width) + 1 if self.width else 0

    @property
    def block_bounds(self) -> int:
        """Its share of numbers in each section of bounds of blocks."""
        return 0 if self.compression is None else self.compression.blocks + 1

    @property
    def points(self) -> int:
        """Bytes of its access points in the index."""
        return 0 if self.compression is None else self.compression.points

    def describe(self) -> dict[str, Any]:
        """Return the JSON object that an index holds."""
        bad = self.bad._asdict() if self.bad.lines else None
        compression = None if self.compression is None else self.compression._asdict()
        fields = self._asdict() | {"bad": bad, "compression": compression}
        return {name: value for name, value in fields.items() if value or name not in _OPTIONAL}

    @classmethod
    def parse(cls, found: dict[str, Any]) -> "IndexedSource":
        """Read a source from its JSON object; ignore unknown keys, and raise as `check_fields` does."""
        fields = _DEFAULTS | found
        check_fields(" of a source", _SOURCE, fields)
        if "bad" in found:
            check_fields(" of bad lines", _BAD, found["bad"])
            fields["bad"] = BadLines(found["bad"]["lines"], tuple(map(tuple, found["bad"]["first"])))
        if "compression" in found:
            check_fields(" of a compression", _COMPRESSION, found["compression"])
            packed = Compression(*map(found["compression"].__getitem__, Compression._fields))
            is_whole = packed.largest <= packed.size and bool(packed.blocks) >= bool(packed.size)
            if not is_whole or packed.size > fields["size"] * _MOST_TIMES:  # a record of it would take all memory
                raise TypeError(f"compression of a source: expected blocks of its content, found {shortened(packed)}")
            fields["compression"] = packed
        return cls._make(_VALUES(fields))


_DEFAULTS = {"skipped": 0, "first": 0, **IndexedSource._field_defaults}
_SOURCE: dict[str, Rule] = {
    **dict.fromkeys(("size", "records", "lines", "smallest", "largest", "skipped", "first"), COUNT),
    **dict.fromkeys(("path", "fingerprint", "xxh3_128", "etag"), TEXT),
    "mtime_ns": ("an integer of 64 bits", lambda value: type(value) is int and -(2**63) <= value < 2**63),
    "width": ("2, 3, 4 or 8", lambda value: type(value) is int and value in (0, *WIDTHS)),
}
_BAD: dict[str, Rule] = {
    "lines": COUNT,
    "first": (
        "pairs of integers from 0 to 2**63 - 1",
        lambda value: all(is_count(line) and is_count(byte) for line, byte in value),
    ),
}
_COMPRESSION: dict[str, Rule] = {
    "codec": (" or ".join(CODECS), lambda value: type(value) is str and value in CODECS),
    **dict.fromkeys(("size", "blocks", "largest", "points"), COUNT),
}
_VALUES = itemgetter(*IndexedSource._fields)
_OPTIONAL = ("xxh3_128", "bad", "width", "compression", "etag")
"""Keys of a source that an index stores only if they differ from their defaults."""
