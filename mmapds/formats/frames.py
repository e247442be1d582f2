"""Length-prefixed records, delimited protobuf messages, and TFRecord.

A scan walks from prefix to prefix, and skips payloads of any size.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple

from .. import _native
from ..compression.blocks import Data
from ..compression.content import Part, content_of, head_of
from ..errors import FormatError, option
from ..storage.sections import IndexedSource
from ..storage.sources import piped
from ..storage.workers import cores
from .expressions import Measuring
from .format import (
    PLAIN_OR_COMPRESSED,
    TRUNCATED,
    End,
    Format,
    Layout,
    Option,
    OptionError,
    Parameters,
    Piece,
    Sources,
    Walk,
    walked,
)

_CUT = (_native.FRAMES_PREFIX_CUT, _native.FRAMES_PAYLOAD_CUT)  # the record continues beyond the available bytes
_ZLIB = b"x\x01", b"x\x5e", b"x\x9c", b"x\xda"  # first bytes of zlib streams, one of TensorFlow's compressions
_INFLATE = "python -c 'import sys, zlib; sys.stdout.buffer.write(zlib.decompress(sys.stdin.buffer.read()))'"
_LONGEST_PREFIX = 16  # bytes; more than any prefix has
_PREFIXES = {
    "u32le": _native.FRAMING_U32LE,
    "u32be": _native.FRAMING_U32BE,
    "u64le": _native.FRAMING_U64LE,
    "u64be": _native.FRAMING_U64BE,
    "varint": _native.FRAMING_VARINT,
}
_EXPECTED = {
    _native.FRAMES_PREFIX_CUT: "a whole length prefix",
    _native.FRAMES_PAYLOAD_CUT: "a payload of {payload} bytes",
    _native.FRAMES_NO_VARINT: "a varint of up to 64 bits",
    _native.FRAMES_LENGTH_CRC: "{expected:#010x} as the CRC of the length",
    _native.FRAMES_DATA_CRC: "{expected:#010x} as the CRC of the data",
}


class Stop(NamedTuple):
    """A record at which a walk stops."""

    record: int
    at: int  # where it begins in the content
    status: int  # one of FRAMES_*
    payload: int
    found: int
    expected: int
    """See `frames_scan`."""

    @property
    def end(self) -> int:
        """Where it ends, if its payload is cut."""
        return self.at + self.found + self.payload + self.expected


class Prefixed(Format):
    """Records with a length prefix. That of delimited protobuf messages is a varint."""

    name = "prefixed"
    options: ClassVar[Mapping[str, Option]] = {
        "prefix": Option(str, "P", "prefixed: u32le (the default), u32be, u64le, u64be or varint"),
        **TRUNCATED,
    }
    begins_anywhere = True
    codecs = PLAIN_OR_COMPRESSED
    room = 1 << 17  # records in a piece of a scan, at most
    step = 256 << 20  # bytes in a piece; its last record may extend further

    def parameters(self, given: Mapping[str, Any], sources: Sequence[str]) -> dict[str, Any]:
        prefix = given.get("prefix", "u32le")
        if prefix not in list(_PREFIXES):
            raise OptionError(f"prefix = {prefix!r}, expected one of {', '.join(map(repr, _PREFIXES))}")
        return {"prefix": prefix, **self.truncated(given)}

    def layout(self, parameters: Parameters, source: IndexedSource) -> Layout:
        return Layout(self._framing(parameters))

    def scan(self, sources: Sources, parameters: Parameters, measuring: Measuring, *, workers: int) -> Iterator[Piece]:
        """Yield the start of every record of every source, in order, and its size if a column measures it."""
        new_walk = partial(FramesWalk, self._framing(parameters), self.step)
        yield from walked(sources, parameters, measuring, workers, self.room, new_walk)

    def _framing(self, parameters: Parameters) -> int:
        return _PREFIXES[parameters["prefix"]]


class TFRecord(Prefixed):
    """TFRecords: a u64 length, its masked CRC32C, the data, their masked CRC32C.

    The layout is that of tensorflow/core/lib/io/record_writer.h. A scan checks the CRC of every length, so it never
    takes garbage for a record. `--verify` checks the CRC of the data.
    """

    name = "tfrecord"
    suffixes = (".tfrecord", ".tfrecords")
    options = TRUNCATED

    def recognises(self, path: str, head: bytes) -> bool:
        crc = _native.crc32c(None, 0, head[:8])
        masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32
        return head[8:12] == masked.to_bytes(4, "little")

    def parameters(self, given: Mapping[str, Any], sources: Sequence[str]) -> dict[str, Any]:
        return self.truncated(given)

    def verify(self, sources: Sources, parameters: Parameters) -> None:
        """Check the CRC of every record's data, up to an incomplete last record."""
        for source in sources:
            at = needed = records = 0
            held: list[Data] = []  # the content from `at` on
            for part, pieces in content_of(source, cores(), source.size or 1):
                held += pieces
                if part.end < needed:
                    continue
                text = held[0] if len(held) == 1 else b"".join(held)
                base, status = at, _native.FRAMES_OK
                while at < part.end and status == _native.FRAMES_OK:
                    stop = min(at + self.step, part.end)
                    count, at, status, *details = _native.frames_verify(memoryview(text)[at - base :], at, stop)
                    records += count
                    stopped = Stop(records, at, status, *details)
                    needed = stopped.end if status == _native.FRAMES_PAYLOAD_CUT else 0
                    if status not in (_native.FRAMES_OK, *_CUT):
                        raise _error(source.path, part.end, stopped)
                held = [text[at - base :]]

    def _framing(self, parameters: Parameters) -> int:
        return _native.FRAMING_TFRECORD


class FramesWalk(Walk):
    """A walk from prefix to prefix; the core walks `step` bytes in one call."""

    def __init__(self, framing: int, step: int, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._framing, self._step = framing, step
        self._head: Data = b""  # bytes of a record that began in an earlier part
        self._cut: Stop | None = None  # the record that continues in the next part, if any
        self._records = 0

    def scan(self, part: Part, data: Data) -> Iterator[None]:
        self.size = part.end
        if self.at < part.begin:
            head = bytes(self._head) + bytes(data[:_LONGEST_PREFIX])
            self._find(head, self.at, self.at + 1)
            if self._cut and (self._cut.status == _native.FRAMES_PREFIX_CUT or self._cut.end > self.size):
                self._head = head[:_LONGEST_PREFIX]
                return
            if self._cut:
                self.slot[0][0], self.slot[1][0] = self.at, self._cut.payload
                self.found, self.at, self._records, self._cut = 1, self._cut.end, self._records + 1, None
        while self.at < self.size and not self._cut:
            self._find(data, part.begin, min(self.at + self._step, self.size))
            if self.at < self.size and not self._cut:
                yield
        self._head = data[self.at - part.begin :][:_LONGEST_PREFIX]

    def end(self) -> tuple[End, int]:
        if self._cut and not self.drop:
            raise _error(self.source.path, self.size, self._cut)
        content = self.size if self.source.codec else 0
        return End(self._records, self.at, content=content), int(self._cut is not None)

    def _find(self, data: Data, base: int, stop: int) -> None:
        """Find the records that begin before byte `stop`; `data` begins at byte `base` of the content."""
        starts, sizes, _ = (words[self.found :] for words in self.slot)
        measured = sizes if self.measuring.columns else None
        count, self.at, status, *details = _native.frames_scan(
            memoryview(data)[self.at - base :], self._framing, self.at, stop, starts, measured
        )
        self.found, self._records = self.found + count, self._records + count
        stopped = Stop(self._records, self.at, status, *details)
        self._cut = stopped if status in _CUT else None
        if status != _native.FRAMES_OK and not self._cut:
            raise _error(self.source.path, self.size, stopped)


def _error(path: str, size: int, stop: Stop) -> FormatError:
    """Return the error for the record at which a walk over `size` bytes of content stopped."""
    if stop.status == _native.FRAMES_LENGTH_CRC and not stop.at and head_of(path, 2) in _ZLIB:
        what = "compressed (zlib): expected a file whose records can be read in place"
        return FormatError(f"{path}: {what}; run: {piped(path, _INFLATE)}")
    found = f"{stop.found:#010x}"
    if stop.status in _CUT:
        drop = option("truncated", "drop")
        found = f"the end of the file {size - stop.at} bytes into the record; leave it out with {drop}"
    elif stop.status == _native.FRAMES_NO_VARINT:
        found = "a longer one"
    expected = _EXPECTED[stop.status].format(payload=stop.payload, expected=stop.expected)
    return FormatError(f"{path}: record {stop.record} (byte {stop.at}): expected {expected}, found {found}")
