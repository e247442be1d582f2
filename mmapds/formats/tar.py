"""Tar archives of samples, as WebDataset writes them: a record is a run of members with the same key.

As in WebDataset, the key and the extension are the two groups of `^((?:.*/|)[^.]+)[.]([^/]*)$`: mostly the path up to
the first dot of the base name, and the rest after that dot. Directories, links, names that do not match, such as `a`
and `a.b/.txt`, and names that begin with a match of `__[^/]*__($|/)` have no key. So `__meta__/x.json` has none, but
`__meta__.json` and `x/__meta__.json` have one. A member without a key belongs to the record before it; decoders skip
it. A bound is the byte of the first header of a sample.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from .. import _native
from ..compression.blocks import Data
from ..compression.content import Part
from ..errors import FormatError, counted, option
from ..storage.sources import Source, unreadable
from .expressions import Measuring
from .format import PLAIN_OR_COMPRESSED, TRUNCATED, End, Format, Parameters, Piece, Sample, Sources, Walk, walked

LARGEST_HEADERS = 16 << 20  # bytes of headers before a member of a compressed archive, which must be buffered

_FOUND = {
    _native.TAR_GARBAGE: "a tar header, found a wrong header checksum",
    _native.TAR_NUMBER: "a size of 0 to 2**63 - 1 in the header, found another value",
    _native.TAR_EXTENDED: '"LENGTH KEY=VALUE" on each line of the pax header, found another line',
    _native.TAR_GLOBAL: "a global pax header without path and size, found one with them",
    _native.TAR_SPARSE: "whole members, found a sparse one",
    _native.TAR_ZEROS: "two blocks of zeros at the end of the archive, found one with data after it",
    _native.TAR_TRUNCATED: "a whole sample, found the end of the file at byte {size}; leave it out with {drop}",
    _native.TAR_MORE: "extended headers of up to {limit} bytes in a compressed archive, found larger ones",
    _native.TAR_DUPLICATE: "each extension of sample {details[0]!r} once, found {details[1]!r} twice",
}
"""The expected and found parts of messages, by the status of a scan."""

_AT_ONCE = 1 << 16  # samples in a piece; threads scan several sources at a time
_PIECE = 1 << 20  # bytes read at a time after the end of an archive


class Tar(Format):
    """Samples in tar archives."""

    name = "tar"
    suffixes = (".tar",)
    codecs = PLAIN_OR_COMPRESSED
    options = TRUNCATED
    decoders = ("files", "wds", "pil", "bytes")

    def recognises(self, path: str, head: bytes) -> bool:
        return head[257:262] == b"ustar"

    def decoder(self, parameters: Parameters) -> Sample:
        return "files"

    def scan(self, sources: Sources, parameters: Parameters, measuring: Measuring, *, workers: int) -> Iterator[Piece]:
        """Yield the start of every sample of every source, in order, and the hash of its key."""
        yield from walked(sources, parameters, measuring, workers, _AT_ONCE, TarWalk)

    def key(self, record: bytes | memoryview) -> str:
        return members(record, 1)[0]


class Stop(NamedTuple):
    """The state of a walk when it stopped."""

    status: int  # one of TAR_*
    at: int  # the byte of the archive with the cause
    end: int  # where the last whole sample ends
    samples: int
    details: tuple[str, str] | tuple[int, int] | None  # see `TarScanner.scan`


class TarWalk(Walk):
    """A walk from header to header; it skips members of any size."""

    has_keys = True

    def __init__(self, source: Source, *arguments: Any, **options: Any) -> None:
        super().__init__(source, *arguments, **options)
        try:
            self._scanner = _native.TarScanner() if source.codec else _native.TarScanner(source.path)
        except OSError as error:
            raise unreadable(source.path, error) from None
        self._held = bytearray()  # bytes from `at` on, if `at` lies in an earlier part
        self._wanted = self._needed = 0  # the end that `_held` must reach; bytes that must have been seen
        self._end: Stop | None = None
        self._behind: int | None = None  # the first nonzero byte after the end of the archive

    def scan(self, part: Part, data: Data) -> Iterator[None]:
        view, begin, self.size = memoryview(data), part.begin, part.end
        while self._end is None and (part.is_last or self.size >= self._needed):
            window = self._extended(view, begin) if self.at < begin else view[self.at - begin :]
            rooms = (words[self.found :] for words in self.slot)
            status, more, at, end, samples, details = self._scanner.scan(window, self.size, part.is_last, *rooms)
            self.found += more
            self._go_on(Stop(status, at, end, samples, details))
            if status == _native.TAR_OK:
                yield
        if self.at < begin:
            self._extended(view, begin)
        else:
            self._held = bytearray(view[self.at - begin : self._wanted - begin])
        if self._end and self._behind is None:
            self._behind = _first_not_zero(part, data, self._end.at)

    def end(self) -> tuple[End, int]:
        stop, remark = self._end, ""
        assert stop is not None
        is_cut = stop.status == _native.TAR_TRUNCATED
        if is_cut and not self.drop:
            raise _error(self.source.path, stop, self.size)
        if self._behind is not None and not is_cut:
            remark = (
                f"{self.source.path}: ignored {counted(self.size - self._behind, 'byte')} after the end of the "
                f"archive, from byte {self._behind} on; give archives that cat joined as separate files"
            )
        content = self.size if self.source.codec else 0
        return End(stop.samples, stop.end, content=content, remark=remark), int(is_cut)

    def _extended(self, data: memoryview, begin: int) -> bytearray:
        """Return the held bytes, extended as needed by the next part, which begins at byte `begin`."""
        end = self.at + len(self._held)
        if end < self._wanted:
            self._held += data[end - begin : self._wanted - begin]
        return self._held

    def _go_on(self, stop: Stop) -> None:
        del self._held[: stop.at - self.at]
        self.at = self._wanted = self._needed = stop.at
        if stop.status in (_native.TAR_END, _native.TAR_TRUNCATED):
            self._end = stop
        elif stop.status == _native.TAR_MORE:
            assert stop.details is not None
            self._wanted, self._needed = map(int, stop.details)
            if self._wanted - self.at > LARGEST_HEADERS:
                raise _error(self.source.path, stop, self.size)
        elif stop.status != _native.TAR_OK:
            raise _error(self.source.path, stop, self.size)


def _first_not_zero(part: Part, data: Data, end: int) -> int | None:
    """Return the first nonzero byte of a part at or after the end of an archive; None if all are zero."""
    for begin in range(max(end, part.begin), part.end, _PIECE):
        stop = min(begin + _PIECE, part.end)
        piece = part.file.read(begin, stop - begin) if part.file else data[begin - part.begin : stop - part.begin]
        if rest := bytes(piece).lstrip(b"\0"):
            return stop - len(rest)
    return None


def _error(path: str, stop: Stop, size: int) -> FormatError:
    """Return the error for a walk that stopped in an archive of `size` bytes."""
    expected = _FOUND[stop.status].format(
        size=size, drop=option("truncated", "drop"), limit=LARGEST_HEADERS, details=stop.details
    )
    return FormatError(f"{path}: record {stop.samples} (byte {stop.at}): expected {expected}")


def members(record: "memoryview | bytes", limit: int = 2**62) -> tuple[str, list[tuple[str, int, int]]]:
    """Return the key of a record and, for each member, its extension and the begin and end of its bytes in the record.

    Raises:
      FormatError: the record is not one sample of a tar.
    """
    status, at, key, found = _native.tar_members(record, limit)
    if key is None or status not in (_native.TAR_OK, _native.TAR_END):
        raise FormatError(f"expected a sample of a tar, found another header at byte {at} of the record")
    return key, found
