"""What every format is made of: the class that it derives from, what its scan yields, and scans that walk."""

import mmap
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from .. import _native
from ..compression.blocks import BlockStart
from ..compression.content import Data, Part, content_of, in_flight
from ..errors import FormatError
from ..storage.sections import IndexedSource
from ..storage.sources import Source, changed
from ..storage.workers import in_order
from .expressions import Measuring

if TYPE_CHECKING:
    import numpy as np

_WHOLE = 2**62  # bytes in a part of a plain file: as many as there are
_PIECE = 256 << 10  # bytes in one of a compressed file, at least: as many as decoders give at once
_PLAIN_KINDS = "biufcmMSUV"
"""What NumPy calls the kinds of types whose values are all in the array: numbers, times, strings of one size."""

Slot = Sequence[memoryview]


class OptionError(FormatError):
    """An option of a format is missing, or not one of its values."""


class Option(NamedTuple):
    """An option of a format."""

    type: type
    placeholder: str  # what `--help` shows for its value
    help: str


class Layout(NamedTuple):
    """How the core finds the payload of a record in a source."""

    framing: int = _native.FRAMING_NONE
    first: int = 0  # the byte where record 0 begins, where all records have one size
    stride: int = 0  # that size


class End(NamedTuple):
    """The totals of a scanned source."""

    lines: int  # of a text; in other formats, the number of records
    end: int  # the byte where the last record ends, with all that it owns
    first: int = 0  # where the first record begins, where all have one size
    content: int = 0  # bytes of content of a compressed source, where more of them follow the last record
    remark: str = ""  # a warning about the source


class Piece(NamedTuple):
    """Some consecutive records of one source, in file order."""

    source: int
    starts: memoryview  # uint64: where each begins, until the next piece; empty where all records have one size
    columns: tuple[tuple[int, memoryview], ...]  # the type of the numbers of each, and a 64-bit cell for each record
    skipped: int  # records left out because they lack a column, or are incomplete
    scanned: int  # bytes of the source that this piece covers; the pieces of a source cover all of it
    end: End | None  # the totals of the whole source, in its last piece
    keys: memoryview | None = None  # uint64: the 32-bit hash of each record's key, where records have keys
    fixed: int = 0  # how many records there are, where all have one size, and so no starts
    filled: tuple[int, ...] = ()  # how many records lack each column, and have the number for missing ones
    bad: int = 0  # how many of the records that were left out are bad lines
    bad_at: tuple[tuple[int, int], ...] = ()  # the line and the byte of the first of them
    blocks: tuple[BlockStart, ...] = ()  # of a compressed source: the blocks that begin in this piece

    @property
    def records(self) -> int:
        """How many records there are."""
        return len(self.starts) + self.fixed


def plain_dtype(given: Any) -> "np.dtype[Any]":
    """Return the dtype that a file names; raise ValueError unless it is of plain numbers, or of strings of one size.

    NumPy makes an array of objects of any bytes, and follows them as pointers when an entry is looked at.
    """
    import numpy as np  # which indexing does without

    try:
        if given is None:  # which NumPy takes for float64
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
    shape: tuple[int, ...] | None  # None means one axis, of all numbers in the payload


class FieldsOf(NamedTuple):
    """A payload is a record of named fields; see `mmapds.arrays.schema`."""

    schema: Mapping[str, Any]


Parameters = Mapping[str, Any]
"""The options of a format, checked and completed, as an index stores them."""
Sources = Sequence[Source]
Sample = str | ArrayOf | FieldsOf
"""What a payload is: the name of a decoder, or an array, or fields."""

TRUNCATED = {"truncated": Option(str, "error|drop", "what to do with an incomplete last record: error, or drop it")}
"""The option that binary formats share."""


class Format(ABC):
    """How records are framed in a source.

    A format is a subclass in a file of its own, and one line in `mmapds.formats`. It must define `name` and `scan`; all
    else has defaults.
    """

    name: ClassVar[str]  # for `--format`; an index stores it too
    suffixes: ClassVar[tuple[str, ...]] = ()  # of names of files
    is_text: ClassVar[bool] = False  # whether records are lines, so that messages give line numbers
    begins_anywhere: ClassVar[bool] = False  # whether a scan can begin at any record, where another ended
    reads_compressed: ClassVar[bool] = False  # whether a scan takes sources with a `codec`
    per_source: ClassVar[tuple[str, ...]] = ()  # parameters that are lists with an entry for each source
    options: ClassVar[Mapping[str, Option]] = {}
    decoders: ClassVar[tuple[str, ...]] = ("json", "text", "bytes", "tf_example")
    """The named decoders that fit its records, where these are not arrays."""

    def recognises(self, path: str, head: bytes) -> bool:
        """Whether a file is of this format, by its first 4,096 bytes or the files beside it; where no suffix fits."""
        return False

    def beside(self, path: str) -> list[str]:
        """Return the files beside a source that a scan of it reads too."""
        return []

    def parameters(self, given: Mapping[str, Any], sources: Sequence[str]) -> dict[str, Any]:
        """Return the options, checked and completed, as an index stores them; by default `truncated` alone.

        Raises:
          OptionError: an option is missing or out of range.
          FormatError: a source does not fit.
        """
        return self.truncated(given) if "truncated" in self.options else {}

    def layout(self, parameters: Parameters, source: IndexedSource) -> Layout:
        """Return how the core finds a payload: by default, it is all that lies between two bounds."""
        return Layout()

    def decoder(self, parameters: Parameters) -> Sample:
        """Return what a payload is, where the user does not say."""
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

    def verify(self, sources: Sources, parameters: Parameters) -> None:  # noqa: B027 - most have no checksums
        """Raise FormatError for damage that a scan does not see, such as a wrong checksum in a source."""

    def key(self, record: bytes | memoryview) -> str:
        """Return the key of a record; FormatError in a format whose records have none."""
        raise FormatError(f"expected records with keys, found format {self.name!r}")

    def shared(self, sources: Sequence[str], describe: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
        """Return what describes the first of some sources; raise FormatError where it does not describe another one."""
        first, *others = sources
        wanted = describe(first)
        for other in others:
            for name, found in describe(other).items():
                if repr(found) != repr(wanted[name]):  # as the order of fields counts too
                    raise FormatError(f"{other}: {name}: expected {wanted[name]}, as in {first}, found {found}")
        return wanted

    def truncated(self, given: Mapping[str, Any]) -> dict[str, str]:
        """Return the option `truncated` as a parameter."""
        truncated = given.get("truncated", "error")
        if truncated not in ("error", "drop"):
            raise OptionError(f"truncated = {truncated!r}, expected 'error' or 'drop'")
        return {"truncated": truncated}


def reserve_words(count: int) -> memoryview:
    """Return room for 64-bit words, mapped, so that only pages that are written take memory."""
    return memoryview(mmap.mmap(-1, 8 * count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)).cast("Q")


# ---- scans that walk from record to record, as only a record says where the next one begins ------------------------
# Threads share out plain files, as whole ones: they make the first piece of each, and most shards have no other. The
# parts of a compressed file are decoded by threads, and walked in order.


class Walk(ABC):
    """A walk over the content of a source, which comes in parts.

    Args:
      slot: room for where records begin, for their sizes, and for the hashes of their keys.
      drop: leave out a last record that is not whole.
    """

    has_keys: ClassVar[bool] = False

    def __init__(self, source: Source, slot: Slot, measuring: Measuring, *, drop: bool) -> None:
        self.source, self.slot, self.measuring, self.drop = source, slot, measuring, drop
        self.at = self.size = source.begin
        """Where the next record begins, or what is next in it; and how many bytes of content came."""
        self.found = 0
        """Records in the slot."""

    @abstractmethod
    def scan(self, part: Part, data: Data) -> Iterator[None]:
        """Take in the next part, and put into the slot the records that end there. Yield to have the slot emptied."""

    @abstractmethod
    def end(self) -> tuple[End, int]:
        """Return the totals, once all parts came, and how many incomplete records are left out."""

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
