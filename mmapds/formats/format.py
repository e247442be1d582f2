"""What every format is made of: the class that it derives from, and what its scan yields."""

import mmap
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from ..errors import Error, FormatError
from ..storage.blocks import BlockStart
from ..storage.sections import IndexedSource
from ..storage.sources import Source, reason
from .measuring import Measuring

if TYPE_CHECKING:
    import numpy as np


class OptionError(FormatError):
    """An option of a format is missing, or not one of its values; told apart from what is wrong with a source."""


class Option(NamedTuple):
    """An option of a format."""

    type: type
    placeholder: str
    """What `--help` shows for its value."""
    help: str


class Layout(NamedTuple):
    """How the core finds the payload of a record in a source."""

    framing: int
    first: int = 0
    stride: int = 0
    """The byte where record 0 begins, and the size of a record, where all have one size; else 0."""


class Piece(NamedTuple):
    """Some consecutive records of one source, in file order."""

    source: int
    starts: memoryview
    """uint64: where each begins; valid until the next piece. Empty where all records have one size."""
    columns: tuple[tuple[int, memoryview], ...]
    """For each column, the type of its numbers in this piece, and a 64-bit cell for each record."""
    skipped: int
    """Records left out because they lack a column, or are incomplete."""
    scanned: int
    """How many bytes of the source this piece covers; the pieces of a source cover all of it."""
    end: "End | None"
    """In the last piece of a source, the totals of the whole source; else None."""
    keys: memoryview | None = None
    """uint64: the 32-bit hash of each record's key, where records have keys: see `mmapds.index.keys`."""
    fixed: int = 0
    """How many records there are, where all have one size, and so no starts."""
    filled: tuple[int, ...] = ()
    """For each column, how many of the records lack it, and have the number that stands for missing ones."""
    bad: int = 0
    """How many of the records that were left out are bad lines."""
    bad_at: tuple[tuple[int, int], ...] = ()
    """The line and the byte of the first of them."""
    blocks: tuple[BlockStart, ...] = ()
    """Of a compressed source: the blocks that begin in this piece."""

    @property
    def records(self) -> int:
        """How many records there are."""
        return len(self.starts) + self.fixed


class End(NamedTuple):
    """The totals of a scanned source."""

    lines: int
    """How many lines a text has; in other formats, how many records."""
    end: int
    """The byte where the last record ends, with all that it owns."""
    first: int = 0
    """Where the first record begins, where all have one size."""
    content: int = 0
    """Bytes of content of a compressed source, where more of them follow the last record."""
    has_bounds: bool = True
    """False where all records have one size, and so no starts."""
    remark: str = ""
    """A warning about the source."""


class ArrayOf(NamedTuple):
    """A payload is an array of plain numbers, or of strings of one size."""

    dtype: "np.dtype[Any]"
    """By `storage.numbers.plain_dtype`."""
    shape: tuple[int, ...] | None
    """None means one axis, of all numbers in the payload."""

    @property
    def has_numbers(self) -> bool:
        """Whether it has numbers, and not strings of one size."""
        return self.dtype.kind not in "SUV"


class FieldsOf(NamedTuple):
    """A payload is a record of named fields; see `mmapds.arrays.schema`."""

    schema: Mapping[str, Any]


Sample = str | ArrayOf | FieldsOf
"""What a payload is: the name of a decoder, or an array, or fields."""


class Format(ABC):
    """How records are framed in a source.

    A format is a subclass in a file of its own, and one line in `mmapds.formats`. It must define the abstract methods;
    all else has defaults.
    """

    name: ClassVar[str]
    """The name for `--format`, which an index stores too."""
    suffixes: ClassVar[tuple[str, ...]] = ()
    """A file whose name ends in one of these is of this format."""
    is_text: ClassVar[bool] = False
    """Whether records are lines, so that messages give line numbers."""
    begins_anywhere: ClassVar[bool] = False
    """Whether a scan can begin and end at any record, so that one goes on where another ended."""
    reads_compressed: ClassVar[bool] = False
    """Whether a scan takes sources with a `codec`; `scanned` of its pieces then counts bytes of the file."""
    per_source: ClassVar[tuple[str, ...]] = ()
    """Parameters that are lists with an entry for each source."""
    options: ClassVar[Mapping[str, Option]] = {}
    """Its options, by name."""
    decoders: ClassVar[tuple[str, ...]] = ("json", "text", "bytes", "tf_example")
    """The named decoders that fit its records, where these are not arrays."""

    def recognises(self, head: bytes) -> bool:
        """Whether a file is of this format, by its first 4,096 bytes; asked where its name says nothing."""
        return False

    def claims(self, path: str) -> bool:
        """Whether a file is of this format, by its name and by the files beside it."""
        return False

    def beside(self, path: str) -> list[str]:
        """Return the files beside a source that a scan of it reads too."""
        return []

    @abstractmethod
    def parameters(self, given: Mapping[str, Any], sources: Sequence[str]) -> dict[str, Any]:
        """Return the options, checked and completed, as an index stores them.

        Raises:
          OptionError: an option is missing or out of range.
          FormatError: a source does not fit.
        """

    @abstractmethod
    def layout(self, parameters: Mapping[str, Any], source: IndexedSource) -> Layout:
        """Return how the core finds a payload."""

    def decoder(self, parameters: Mapping[str, Any]) -> Sample:
        """Return what a payload is, where the user does not say."""
        return "bytes"

    @abstractmethod
    def scan(
        self, sources: Sequence[Source], parameters: Mapping[str, Any], measuring: Measuring, *, workers: int
    ) -> Iterator[Piece]:
        """Yield the records of every source, in order: where each begins, and its columns.

        The last piece of each source has an `end`, and the pieces of a source cover all of its bytes.

        Raises:
          FormatError: a source is damaged or truncated.
          SourceError: a source became shorter or unreadable.
          ColumnError, DecodeError: a record cannot be measured.
        """

    def verify(  # noqa: B027 - most formats have no checksums
        self, sources: Sequence[Source], parameters: Mapping[str, Any]
    ) -> None:
        """Check what a scan does not read, such as the checksums in the sources.

        Raises:
          FormatError: a record is damaged.
        """

    def lacks_checksums(self, source: Source) -> bool:
        """Whether `verify` finds no checksums in a source, as it was truncated; of formats that have them."""
        return False

    def key(self, record: bytes | memoryview) -> str:
        """Return the key of a record; of formats whose pieces have keys.

        Raises:
          FormatError: records of this format have no keys.
        """
        raise FormatError(f"expected records with keys, found format {self.name!r}")


TRUNCATED = {"truncated": Option(str, "error|drop", "what to do with an incomplete last record: error, or drop it")}
"""The option that binary formats share."""


def check_truncated(given: Mapping[str, Any]) -> str:
    """Return the option `truncated`.

    Raises:
      OptionError: it is neither "error" nor "drop".
    """
    truncated = given.get("truncated", "error")
    if truncated not in ("error", "drop"):
        raise OptionError(f"truncated = {truncated!r}, expected 'error' or 'drop'")
    return str(truncated)


def drops_truncated(parameters: Mapping[str, Any]) -> bool:
    """Whether the parameters of an index leave out a last record that is cut short."""
    return bool(parameters.get("truncated", "error") == "drop")


def reserve_words(count: int) -> memoryview:
    """Return room for 64-bit words, mapped, so that only pages that are written take memory.

    Raises:
      Error: the system has no room, as where the address space is limited.
    """
    try:
        return memoryview(mmap.mmap(-1, 8 * count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)).cast("Q")
    except OSError as error:
        raise Error(
            f"scan: expected room for {8 * count} bytes of memory, found none ({reason(error)}); raise the limit of "
            "the address space, which ulimit -v shows, or index with fewer workers"
        ) from None


def is_same_parameter(one: Any, other: Any) -> bool:
    """Whether two values of a parameter say the same; that of a schema says by its order where its fields lie."""
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one.items()) == list(other.items())
    return bool(one == other)
