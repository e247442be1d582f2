"""The base class of formats, the pieces that a scan yields, and scans that walk from record to record."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from .. import _native
from ..compression.blocks import BlockStart, Data
from ..compression.content import Part, content_of, in_flight
from ..errors import FormatError
from ..storage.sections import IndexedSource
from ..storage.sources import Source, changed, room_of
from ..storage.workers import in_order
from .expressions import Measuring

if TYPE_CHECKING:
    import numpy as np

_WHOLE = 2**62  # bytes in a part of a plain file: all of them
_PIECE = 256 << 10  # bytes in a part of a compressed file, at least: the output of one decoder call
_PLAIN_KINDS = "biufcmMSUV"
"""NumPy's kinds of types whose values lie in the array itself: numbers, times, strings of one size."""

Slot = Sequence[memoryview]


class OptionError(FormatError):
    """An option of a format is missing or invalid."""


class Option(NamedTuple):
    """An option of a format."""

    type: type
    placeholder: str  # for its value in `--help`
    help: str


class Layout(NamedTuple):
    """How the core finds the payload of a record in a source."""

    framing: int = _native.FRAMING_NONE
    first: int = 0  # the byte where record 0 begins, if all records have one size
    stride: int = 0  # that size


class End(NamedTuple):
    """The totals of a scanned source."""

    lines: int  # of a text; in other formats, the number of records
    end: int  # the byte where the last record ends, with any bytes that belong to it
    first: int = 0  # where the first record begins, if all have one size
    content: int = 0  # bytes of content of a compressed source, if some follow the last record
    remark: str = ""  # a warning about the source


class Piece(NamedTuple):
    """Some consecutive records of one source, in file order."""

    source: int
    starts: memoryview  # uint64: where each begins; valid until the next piece; empty if all records have one size
    columns: tuple[tuple[int, memoryview], ...]  # for each column, the type and a 64-bit cell for each record
    skipped: int  # records skipped because they lack a column, or are incomplete
    scanned: int  # bytes of the source that this piece covers; the pieces of a source cover all of it
    end: End | None  # the totals of the whole source, in its last piece
    keys: memoryview | None = None  # uint64: the 32-bit hash of each record's key, if records have keys
    fixed: int = 0  # number of records, if all have one size and so no starts
    filled: tuple[int, ...] = ()  # for each column, records that lack it and get the number for missing ones
    bad: int = 0  # how many of the skipped records are bad lines
    bad_at: tuple[tuple[int, int], ...] = ()  # the line and the byte of the first of them
    blocks: tuple[BlockStart, ...] = ()  # blocks of a compressed source that begin in this piece

    @property
    def records(self) -> int:
        """The number of records."""
        return len(self.starts) + self.fixed


def plain_dtype(given: Any) -> "np.dtype[Any]":
    """Return the dtype that a file names; raise ValueError unless it is of plain numbers, or of strings of one size.

    An object dtype is unsafe: NumPy would follow the bytes of a file as pointers.
    """
    import numpy as np  # start-up time: indexing does not need it

    try:
        if given is None:  # NumPy takes None for float64
            raise TypeError
        dtype: np.dtype[Any] = np.dtype(given)
    except (TypeError, ValueError, SyntaxError, OverflowError):
        raise ValueError(f"dtype = {given!r}, expected a name that NumPy knows, such as 'uint16'") from None
    if dtype.hasobject or dtype.fields or dtype.subdtype or dtype.kind not in _PLAIN_KINDS:
        raise ValueError(f"dtype = {given!r}, expected plain numbers, or strings of one size")
    return dtype


class ArrayOf(NamedTuple):
    """A payload is an array of plain numbers, or of strings of one size."""

    dtype: "np.dtype[Any]"  # by `plain_dtype`
    shape: tuple[int, ...] | None  # None means one axis with all numbers of the payload


class FieldsOf(NamedTuple):
    """A payload is a record of named fields; see `mmapds.arrays.schema`."""

    schema: Mapping[str, Any]


class EncodedOf(NamedTuple):
    """A payload is a sample of an MDS shard; see `mmapds.formats.mds`."""

    encodings: Mapping[str, str]  # of each field, by its name


Parameters = Mapping[str, Any]
"""The options of a format, checked and completed, as an index stores them."""
Sources = Sequence[Source]
Sample = str | ArrayOf | FieldsOf | EncodedOf
"""The kind of a payload: the name of a decoder, an array, fields, or encoded values."""

PLAIN_OR_COMPRESSED = ("", "gzip", "zstd")
"""The codecs of formats whose records may be compressed."""
TRUNCATED = {"truncated": Option(str, "error|drop", "what to do with an incomplete last record: error, or drop it")}
"""The option that binary formats share."""


class Format(ABC):
    """How records are framed in a source.

    A format is a subclass in its own file, and one line in `mmapds.formats`. It must define `name` and `scan`; the rest
    has defaults.
    """

    name: ClassVar[str]  # for `--format`; an index stores it too
    suffixes: ClassVar[tuple[str, ...]] = ()  # of names of files
    is_text: ClassVar[bool] = False  # whether records are lines, so that messages give line numbers
    begins_anywhere: ClassVar[bool] = False  # whether a scan can begin at any record, to continue an earlier scan
    is_contiguous: ClassVar[bool] = False  # whether nothing lies between the records of a source
    codecs: ClassVar[tuple[str, ...]] = ("",)  # of the sources that a scan accepts; "" is none
    per_source: ClassVar[tuple[str, ...]] = ()  # parameters that are lists with an entry for each source
    options: ClassVar[Mapping[str, Option]] = {}
    decoders: ClassVar[tuple[str, ...]] = ("json", "text", "bytes", "tf_example")
    """The named decoders that fit its records, unless these are arrays."""

    def recognises(self, path: str, head: bytes) -> bool:
        """Whether a file without a known suffix has this format, by its first 4,096 bytes or the files beside it."""
        return False

    def beside(self, path: str) -> list[str]:
        """Return the files beside a source that its scan reads too."""
        return []

    def parameters(self, given: Mapping[str, Any], sources: Sequence[str]) -> dict[str, Any]:
        """Return the options, checked and completed, as an index stores them; by default `truncated` alone.

        Raises:
          OptionError: an option is missing or out of range.
          FormatError: a source does not fit.
        """
        return self.truncated(given) if "truncated" in self.options else {}

    def layout(self, parameters: Parameters, source: IndexedSource) -> Layout:
        """Return how the core finds a payload: by default, it is everything between two bounds."""
        return Layout()

    def decoder(self, parameters: Parameters) -> Sample:
        """Return the default decoder of a payload."""
        return "bytes"

    @abstractmethod
    def scan(self, sources: Sources, parameters: Parameters, measuring: Measuring, *, workers: int) -> Iterator[Piece]:
        """Yield the records of every source, in order: where each begins, and its columns.

        The last piece of each source has an `end`, and the pieces of a source cover all of its bytes.

        Raises:
          FormatError: a source is damaged or truncated.
          SourceError: a source became shorter or unreadable.
          ColumnError, DecodeError: a record cannot be measured.
        """

    def blocks(self, parameters: Parameters, path: str, known: _native.Map) -> Callable[[int], Iterator[Data]] | None:
        """Return what yields the content of a block by its number; None if the codec of the source tells how.

        A piece of content is valid until the next one.

        Args:
          path: of the source; `known` is it, as it was checked.
        """
        return None

    def verify(self, sources: Sources, parameters: Parameters) -> None:  # noqa: B027 - most have no checksums
        """Raise FormatError for damage that a scan does not check, such as a wrong checksum in a source."""

    def key(self, record: bytes | memoryview) -> str:
        """Return the key of a record; raise FormatError if the format has no keys."""
        raise FormatError(f"expected records with keys, found format {self.name!r}")

    def shared(self, sources: Sequence[str], describe: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
        """Return `describe` of the first source; raise FormatError if it differs for another source."""
        first, *others = sources
        wanted = describe(first)
        for other in others:
            for name, found in describe(other).items():
                if repr(found) != repr(wanted[name]):  # repr, as the order of fields counts too
                    raise FormatError(f"{other}: {name}: expected {wanted[name]}, as in {first}, found {found}")
        return wanted

    def truncated(self, given: Mapping[str, Any]) -> dict[str, str]:
        """Return the option `truncated` as a parameter."""
        truncated = given.get("truncated", "error")
        if truncated not in ("error", "drop"):
            raise OptionError(f"truncated = {truncated!r}, expected 'error' or 'drop'")
        return {"truncated": truncated}


def reserve_words(count: int) -> memoryview:
    """Return memory for 64-bit words: only pages that are written take memory."""
    return room_of(8 * count).cast("Q")


# ---- scans that walk: only a record tells where the next one begins -------------------------------------------------
# Each thread takes a whole plain file and makes its first piece; most shards have only one. Threads decode the parts
# of a compressed file, and one walk scans them in order.


class Walk(ABC):
    """A walk over the content of a source, part by part.

    Args:
      slot: memory for the starts of records, their sizes, and the hashes of their keys.
      drop: skip an incomplete last record.
    """

    has_keys: ClassVar[bool] = False

    def __init__(self, source: Source, slot: Slot, measuring: Measuring, *, drop: bool) -> None:
        self.source, self.slot, self.measuring, self.drop = source, slot, measuring, drop
        self.at = self.size = source.begin
        """Byte of the next record, or of the next thing in it; and bytes of content seen so far."""
        self.found = 0
        """Number of records in the slot."""

    @abstractmethod
    def scan(self, part: Part, data: Data) -> Iterator[None]:
        """Scan the next part: put the records that end there into the slot. Yield when the slot must be emptied."""

    @abstractmethod
    def end(self) -> tuple[End, int]:
        """Return the totals after the last part, and the number of incomplete records skipped."""

    def piece(self) -> Piece:
        """Return the records in the slot."""
        starts, sizes, hashes = (words[: self.found] for words in self.slot)
        return Piece(0, starts, self.measuring.sizes(sizes), 0, 0, None, hashes if self.has_keys else None)


def walked(
    sources: Sources,
    parameters: Parameters,
    measuring: Measuring,
    workers: int,
    room: int,
    new_walk: Callable[..., Walk],
) -> Iterator[Piece]:
    """Yield the records of every source, in order, up to `room` of them in a piece."""
    drop = parameters.get("truncated") == "drop"

    def begin(task: tuple[int, Source], slot: Slot) -> tuple[list[Piece], Iterator[Piece]]:
        number, source = task
        pieces = _pieces(number, source, workers, lambda: new_walk(source, slot, measuring, drop=drop))
        return [] if source.codec else [next(pieces)], pieces

    threads = min(workers, len(sources))
    slots = [[reserve_words(room) for _ in range(3)] for _ in range(in_flight(threads))]
    for first, others in in_order(begin, enumerate(sources), workers=threads, slots=slots):
        yield from first
        yield from others


def _pieces(number: int, source: Source, workers: int, new_walk: Callable[[], Walk]) -> Iterator[Piece]:
    try:
        walk = new_walk()
        for part, pieces in content_of(source, workers, _WHOLE, _PIECE):
            data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            left, before = part.scanned, walk.at
            for _ in walk.scan(part, data):
                scanned = 0 if source.codec else walk.at - before
                left, before = left - scanned, walk.at
                yield walk.piece()._replace(source=number, scanned=scanned)
                walk.found = 0
            end, cut = walk.end() if part.is_last else (None, 0)
            yield walk.piece()._replace(source=number, scanned=left, end=end, skipped=cut, blocks=part.starts)
            walk.found = 0
    except EOFError:
        raise changed(source) from None
