"""Tar archives of samples, as WebDataset writes them: a record is all the members in a row that share a key.

The key and the extension are the two groups of `^((?:.*/|)[^.]+)[.]([^/]*)$`, as in WebDataset: nearly always the path
up to the first dot of the base name, directories included, and what follows that dot. Directories, links, names that
do not match, such as `a` and `a.b/.txt`, and names that match `__[^/]*__($|/)` at their beginning have no key: so
`__meta__/x.json` has none, but `__meta__.json` and `x/__meta__.json` have one. Members without a key lie in the record
before them, and decoders skip them. A bound is the byte where the first header of a sample begins.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any

from .. import _native
from ..errors import FormatError, counted, option
from ..storage.files import open_source
from ..storage.sections import IndexedSource
from ..storage.sources import Source, unreadable
from ..storage.threads import in_order
from . import compressed_tars
from .compressed_tars import Stop
from .format import TRUNCATED, End, Format, Layout, Piece, Sample, check_truncated, drops_truncated, reserve_words
from .measuring import Measuring

_DAMAGE = {
    _native.TAR_GARBAGE: "expected a tar header, found a wrong header checksum; copy the archive again",
    _native.TAR_NUMBER: "expected a size of 0 to 2**63 - 1 in the header, found another value; copy the archive again",
    _native.TAR_EXTENDED: (
        'expected "LENGTH KEY=VALUE" on each line of the pax header, found another line; copy the archive again'
    ),
    _native.TAR_GLOBAL: (
        "expected a global pax header without path and size, found one with them; write the archive without it "
        "(records are read on their own)"
    ),
    _native.TAR_SPARSE: "expected whole members, found a sparse one; write the archive without --sparse",
    _native.TAR_ZEROS: (
        "expected two blocks of zeros at the end of the archive, found one with data after it; copy the archive again"
    ),
}

_AT_ONCE = 1 << 16  # samples; threads scan that much of several sources at the same time
_PIECE = 1 << 20  # bytes behind the end of an archive that are read at a time


class Tar(Format):
    """Samples in tar archives."""

    name = "tar"
    suffixes = (".tar",)
    reads_compressed = True
    options = TRUNCATED
    decoders = ("files", "wds", "pil", "bytes")

    def recognises(self, head: bytes) -> bool:
        """Whether a file begins with a header of POSIX or GNU tar."""
        return head[257:262] == b"ustar"

    def parameters(self, given: Mapping[str, Any], sources: Sequence[str]) -> dict[str, Any]:
        """Return `truncated`."""
        return {"truncated": check_truncated(given)}

    def layout(self, parameters: Mapping[str, Any], source: IndexedSource) -> Layout:
        """A payload is all that lies between two bounds."""
        return Layout(_native.FRAMING_NONE)

    def decoder(self, parameters: Mapping[str, Any]) -> Sample:
        """A payload is a dict of the members' bytes."""
        return "files"

    def scan(
        self, sources: Sequence[Source], parameters: Mapping[str, Any], measuring: Measuring, *, workers: int
    ) -> Iterator[Piece]:
        """Yield where every sample of every source begins, in order, and the hash of its key.

        Threads share out neighbouring files that are plain; they decode those that are compressed, one after another.
        """
        kinds = [kind for kind, _ in measuring.constant(0, 0)]
        drop, first = drops_truncated(parameters), 0
        for codec, run in groupby(sources, lambda source: source.codec):
            group = list(run)
            pieces = _scan_compressed if codec else _scan_files
            for piece in pieces(group, kinds, workers, drop=drop):
                yield piece._replace(source=first + piece.source) if first else piece
            first += len(group)

    def key(self, record: bytes | memoryview) -> str:
        """Return the key of a record."""
        return members(record, 1)[0]


def _scan_compressed(sources: Sequence[Source], kinds: Sequence[int], workers: int, *, drop: bool) -> Iterator[Piece]:
    for number, source in enumerate(sources):
        try:
            yield from compressed_tars.scan(number, source, kinds, workers, drop=drop)
        except compressed_tars.StoppedError as error:
            raise _error(source.path, error.stop, error.size) from None


def _scan_files(sources: Sequence[Source], kinds: Sequence[int], workers: int, *, drop: bool) -> Iterator[Piece]:
    """Scan files as they lie there. Threads share out whole ones, as only a header says where the next one is."""
    workers = min(workers, len(sources))
    slots = [_Slot() for _ in range(workers + 2 if workers > 1 else 1)]
    for number, source, slot, scanner, first in in_order(_begin, enumerate(sources), workers=workers, slots=slots):
        (count, found), before = first, 0
        while True:
            end = None
            cut = found.status == _native.TAR_TRUNCATED
            if found.status == _native.TAR_END or (cut and drop):
                end = End(found.samples, found.end, remark="" if cut else _remark_on_rest(scanner, source, found.at))
            elif found.status != _native.TAR_OK:
                raise _error(source.path, found, source.size)
            scanned = (source.size if end else min(found.at, source.size)) - before
            before += scanned
            columns = tuple((kind, slot.sizes[:count]) for kind in kinds)
            yield Piece(number, slot.begins[:count], columns, int(cut), scanned, end, keys=slot.hashes[:count])
            if end:
                break
            count, found = _go_on(scanner, slot)


class _Slot:
    """Memory for some samples."""

    def __init__(self) -> None:
        self.begins, self.sizes, self.hashes = (reserve_words(_AT_ONCE) for _ in range(3))


def _begin(task: tuple[int, Source], slot: _Slot) -> tuple[int, Source, _Slot, "_Scanner", tuple[int, Stop]]:
    number, source = task
    scanner = _Scanner(source)
    return number, source, slot, scanner, _go_on(scanner, slot)


class _Scanner:
    """A scan of one source."""

    def __init__(self, source: Source) -> None:
        self.map = open_source(source)
        try:
            self.scan = partial(_native.TarScanner.scan, _native.TarScanner(self.map, source.path))
        except OSError as error:
            raise unreadable(source.path, error) from None


def _remark_on_rest(scanner: "_Scanner", source: Source, end: int) -> str:
    """Return a warning of bytes behind the end of an archive, as of one that was joined with another; "" of zeros."""
    for begin in range(end, source.size, _PIECE):
        piece = scanner.map.read(begin, min(_PIECE, source.size - begin))
        if rest := piece.lstrip(b"\0"):
            at = begin + len(piece) - len(rest)
            return (
                f"{source.path}: passed over {counted(source.size - at, 'byte')} behind the end of the archive, from "
                f"byte {at} on, as tar and webdataset do; give archives that cat joined as files of their own"
            )
    return ""


def _go_on(scanner: _Scanner, slot: _Slot) -> tuple[int, Stop]:
    """Scan until the slot is full or the source ends; return how many samples the slot has, and where that was."""
    count, found = 0, Stop(_native.TAR_OK, 0, 0, 0, None)
    while found.status == _native.TAR_OK and count < _AT_ONCE:
        rooms = slot.begins[count:], slot.sizes[count:], slot.hashes[count:]
        status, more, at, end, samples, details = scanner.scan(*rooms)
        count, found = count + more, Stop(status, at, end, samples, details)
    return count, found


def _error(path: str, stop: Stop, size: int) -> FormatError:
    """Return the error to raise where a walk over an archive of `size` bytes stopped."""
    place = f"{path}: record {stop.samples} (byte {stop.at})"
    if stop.status == _native.TAR_TRUNCATED:
        return FormatError(
            f"{place}: expected a whole sample, found the end of the file at byte {size}; leave it out with "
            f"{option('truncated', 'drop')}"
        )
    if stop.status == _native.TAR_MORE:
        return FormatError(
            f"{place}: expected extended headers of up to {compressed_tars.LARGEST_HEADERS} bytes in a compressed "
            "archive, found larger ones; decompress it"
        )
    if stop.status == _native.TAR_DUPLICATE:
        assert stop.details is not None
        key, extension = stop.details
        return FormatError(f"{place}: sample {key!r}: expected each extension once, found {extension!r} twice")
    return FormatError(f"{place}: {_DAMAGE[stop.status]}")


def members(record: "memoryview | bytes", limit: int = 2**62) -> tuple[str, list[tuple[str, int, int]]]:
    """Return the key of a record, and for each member its extension and where in the record its bytes begin and end.

    Raises:
      FormatError: the record is not one sample of a tar.
    """
    status, at, key, found = _native.tar_members(record, limit)
    if key is None or status not in (_native.TAR_OK, _native.TAR_END):
        raise FormatError(f"expected a sample of a tar, found another header at byte {at} of the record")
    return key, found
