"""Tar archives of samples, as WebDataset writes them: a record is all the members in a row that share a key.

The key is the path up to the first dot of the base name, directories included; what follows the dot is the extension.
Bounds are where the first header of each sample begins. Members that belong to none - directories, links, names without
a dot, `__meta__` members - lie in the record before them, and are passed over again when it is read.
"""

import mmap
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from .. import _native
from ..errors import FormatError, SourceError
from ..storage.index_file import IndexedSource
from ..storage.sources import Source, unreadable
from ..storage.threads import in_order
from . import truncation
from .format import End, Layout, Piece
from .measuring import Measuring

NAME = "tar"
SUFFIXES = (".tar",)
TEXT = False
DECODERS = ("files", "wds", "bytes")
OPTIONS = truncation.OPTIONS

_FOUND = {
    _native.TAR_GARBAGE: "no header of a tar (its checksum is wrong); is something missing, or is this no tar?",
    _native.TAR_NUMBER: "a header whose size is no number from 0 to 2**63 - 1",
    _native.TAR_EXTENDED: 'an extended header that is not as pax has it, "LENGTH KEY=VALUE" on each line',
    _native.TAR_GLOBAL: (
        "a global header that gives all members after it one path or size, which no record could be read without"
    ),
    _native.TAR_SPARSE: "a sparse member, whose bytes are not all there; write the archive without --sparse",
    _native.TAR_ZEROS: "one block of zeros and then more, where an archive ends with two; is it damaged?",
}

_AT_ONCE = 1 << 16  # samples; a shard that has no more is scanned by one thread while others scan others


def recognises(head: bytes) -> bool:
    """Whether a file is of this format, by its first bytes."""
    return head[257:262] == b"ustar"


def parameters(given: Mapping[str, Any], sources: Sequence[str]) -> dict[str, Any]:  # noqa: ARG001 - the face of formats
    """Return what to do with a last sample that is cut short."""
    return {"truncated": truncation.check(given)}


def layout(parameters: Mapping[str, Any], source: IndexedSource) -> Layout:  # noqa: ARG001
    """All that lies between two bounds."""
    return Layout(_native.FRAMING_NONE)


def decoder(parameters: Mapping[str, Any]) -> str:  # noqa: ARG001
    """A dict of the members' bytes."""
    return "files"


class _Slot:
    """Memory for some samples, mapped, so that only what is filled is ever touched."""

    def __init__(self) -> None:
        size = 8 * _AT_ONCE
        self.begins, self.sizes, self.hashes = (
            memoryview(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)).cast("Q") for _ in range(3)
        )


class _Found(NamedTuple):
    """Some consecutive samples of a source, and where the scan stands."""

    number: int
    status: int
    at: int
    end: int
    samples: int


def scan(
    sources: Sequence[Source],
    *,
    parameters: Mapping[str, Any],
    workers: int,
    measuring: Measuring,
) -> Iterator[Piece]:
    """Yield where every sample of every source begins, in order, and the hash of its key.

    Args:
      workers: threads, each of which scans a source: where the next header is, only the one before says.
    Raises:
      FormatError: a source is no tar, is damaged or cut short, or a sample has an extension twice.
      SourceError: a source became shorter or unreadable.
      ColumnError: a column is asked for that only JSON has.
    """
    kinds = [kind for kind, _ in measuring.constant(0, 0)]
    workers = min(workers, len(sources))
    slots = [_Slot() for _ in range(workers + 2 if workers > 1 else 1)]
    for number, source, slot, scanner, first in in_order(_begin, enumerate(sources), workers=workers, slots=slots):
        found, before = first, 0
        while True:
            end = None
            cut = found.status == _native.TAR_TRUNCATED
            if found.status == _native.TAR_END or (cut and parameters["truncated"] == "drop"):
                end = End(found.samples, found.end)
            elif found.status != _native.TAR_OK:
                raise _error(source, scanner, found)
            scanned = (source.size if end else min(found.at, source.size)) - before
            before += scanned
            columns = tuple((kind, slot.sizes[: found.number]) for kind in kinds)
            starts, keys = slot.begins[: found.number], slot.hashes[: found.number]
            yield Piece(number, starts, columns, int(cut), scanned, end, keys=keys)
            if end:
                break
            found = _go_on(scanner, slot)


def _begin(task: tuple[int, Source], slot: _Slot) -> tuple[int, Source, _Slot, "_Scanner", _Found]:
    number, source = task
    scanner = _Scanner(source)
    return number, source, slot, scanner, _go_on(scanner, slot)


class _Scanner:
    """A scan of one source."""

    def __init__(self, source: Source) -> None:
        try:
            self.map = _native.Map(source.path)
            scanner = _native.TarScanner(self.map, source.path)
        except OSError as error:
            raise unreadable(source.path, error) from None
        if self.map.size != source.size:
            raise SourceError(
                f"{source.path}: was {source.size} bytes and is {self.map.size} now; is something writing to it?"
            )
        self.scan = partial(_native.TarScanner.scan, scanner)


def _go_on(scanner: _Scanner, slot: _Slot) -> _Found:
    """Fill a slot as far as the source does."""
    count, status, at, end, samples = 0, _native.TAR_OK, 0, 0, 0
    while status == _native.TAR_OK and count < _AT_ONCE:
        status, more, at, end, samples = scanner.scan(slot.begins[count:], slot.sizes[count:], slot.hashes[count:])
        count += more
    return _Found(count, status, at, end, samples)


def _error(source: Source, scanner: _Scanner, found: _Found) -> FormatError:
    place = f"{source.path}: record {found.samples} (byte {found.at})"
    if found.status == _native.TAR_TRUNCATED:
        return FormatError(
            f"{place}: is cut short, the file has {source.size} bytes; leave it out with --truncated drop"
        )
    if found.status == _native.TAR_DUPLICATE:
        _, _, key, ((extension, _, _),) = _native.tar_members(memoryview(scanner.map)[found.at :], 1)
        return FormatError(f"{place}: {key!r} has a second member {extension!r}, expected every extension once")
    return FormatError(f"{place}: found {_FOUND[found.status]}")


def members(record: "memoryview | bytes", limit: int = 2**62) -> tuple[str, list[tuple[str, int, int]]]:
    """Return the key of a record, and for each member its extension and where in the record its bytes begin and end.

    Raises:
      FormatError: the record is not one sample of a tar.
    """
    status, at, key, found = _native.tar_members(record, limit)
    if key is None or status not in (_native.TAR_OK, _native.TAR_END):
        raise FormatError(f"not a sample of a tar, at byte {at} of the record; is the index of another file?")
    return key, found


def key(record: "memoryview | bytes") -> str:
    """Return the key of a record."""
    return members(record, 1)[0]
