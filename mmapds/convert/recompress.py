"""`mmapds.seekable()`: recompress text into zstd, so that a record can be read without decoding those before it.

The file ends with a seek table of zstd's seekable format (contrib/seekable_format in zstd's own repository, 0.1.0): a
skippable frame, number 14, which all decoders skip. It has an entry for each frame: the bytes in the file, the bytes
of text, and the lower half of the XXH64 of the text. A footer follows: the number of frames, a flag for checksums,
and a magic number. The flag is one byte; all other numbers are little-endian and of 32 bits.
"""

import os
import struct
from array import array
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from types import ModuleType
from typing import Any, NamedTuple

from .. import formats
from ..build_index import build
from ..compression.blocks import Data
from ..compression.content import WINDOW, Part, content_of, in_flight, parts_of
from ..compression.zstd import codec, walk
from ..errors import Error, FormatError, counted
from ..formats.jsonl import JsonLines
from ..index.build import check_workers
from ..storage.lock import check_is_free, is_same_file, replacing
from ..storage.sections import LARGEST_BLOCK
from ..storage.sources import (
    SEEKABLE,
    Source,
    StrPath,
    changed,
    check_unchanged,
    inspect,
    named,
    open_source,
    reason,
    room_of,
    unreadable,
    without_codec,
)
from ..storage.workers import cores, in_order

FRAME = 256 << 10  # bytes of text in a frame
LEVEL = 3  # of compression
WINDOW_LOG = 27  # the largest window of a source's frame, as log2 of bytes: 128 MiB
_RANGES = {"frame": (4 << 10, 256 << 20), "level": (1, 22), "window_log": (10, 31)}
_LONGEST_LINE = 1 << 30  # bytes; a frame holds whole lines, and memory holds several frames
_INDEXED = (*JsonLines.suffixes, ".json")
_SUFFIX = ".zst"
_HEADER, _FOOTER = struct.Struct("<II"), struct.Struct("<IBI")
_SKIPPABLE, _MAGIC, _HAS_CHECKSUMS = 0x184D2A5E, 0x8F92EAB1, 0x80


class Seekable(NamedTuple):
    """The outcome."""

    path: str
    frames: int
    text: int  # bytes of text
    size: int  # bytes of the file
    is_new: bool  # False if the source was seekable already, and nothing was written

    def __str__(self) -> str:
        share = f" ({self.size / self.text:.1%})" if self.text else ""
        already = "" if self.is_new else "already seekable, "
        frames, text = counted(self.frames, "frame"), counted(self.text, "byte")
        return f"{self.path}: {already}{frames}, {text} of text in {counted(self.size, 'byte')}{share}"


def seekable(
    source: StrPath,
    out: StrPath | None = None,
    *,
    frame: int = FRAME,
    level: int = LEVEL,
    workers: int | None = None,
    window_log: int = WINDOW_LOG,
    index: bool = True,
    force: bool = False,
    progress: Callable[[int], object] = lambda read: None,  # noqa: ARG005
) -> Seekable:
    """Recompress lines of text into a zstd file whose records can be read in any order.

        mmapds.seekable("part-0.jsonl", "part-0.jsonl.zst")

    The file has many frames, each of whole lines and with a checksum, and a seek table, which other decoders skip. See
    docs/compressed.md. The file appears only when it is complete; the source is unchanged unless `out` names it.

    Args:
      source: JSON Lines or other lines: plain, gzip or zstd.
      out: the file to write, or the directory to write it in; by default that of the source. There,
        `part.jsonl.gz` becomes `part.jsonl.zst`, `part.jsonl.zst` becomes `part.seekable.jsonl.zst`, and `part.tgz`
        becomes `part.tar.zst`.
      frame: bytes of text in a frame, at most; a longer line gets its own frame. Reading a record decodes its whole
        frame; small frames take more space.
      level: of compression, 1 to 22, as in `zstd -3`.
      workers: threads that compress; by default all cores.
      window_log: log2 of the largest window of a source, as in `zstd --long=27`; decoding takes that much memory.
      index: index the file too, if its name says JSON (`.jsonl.zst`, `.ndjson.zst`, `.json.zst`). An existing index
        keeps its options. Pass False if one index will cover several files.
      force: replace an existing file, and recompress a source that is seekable already.
      progress: called with the bytes of the source that were read since the last call.
    Returns:
      The path of the file, and its contents. Without `out`, a source that is already seekable, with frames of this size
      or less, is not changed.
    Raises:
      SourceError: the source is missing, unreadable, compressed in another way, or changes while it is read.
      FormatError: it is damaged, or has a line of more than 1 GiB.
      Error: an argument is out of range, the file exists or cannot be written. Also the errors of `mmapds.build`.
    """
    for (name, (least, most)), value in zip(_RANGES.items(), (frame, level, window_log), strict=True):
        if type(value) is not int or not least <= value <= most:
            raise Error(f"{name} = {value!r}, expected {least} to {most}")
    check_workers(workers)
    path, text = os.fspath(source), inspect(os.fspath(source))
    window = 1 << window_log
    found = None
    if out is None and not force and text.codec == "zstd":
        found = walk(open_source(text), path, largest_window=window).contents
    if found and max(found) <= max(frame, LARGEST_BLOCK) and sum(found) <= len(found) * frame:
        done = Seekable(path, len(found), sum(found), text.size, is_new=False)
    else:
        target = target_of(path, out)
        if not force and not is_same_file(target, path):
            check_is_free(target)
        if index and named(target, _INDEXED):
            formats.for_path(path)  # raises if it is not lines
        done = _write(text, target, _frames(text, frame, level, workers or cores(), window), progress)
    if index and named(done.path, _INDEXED):
        build(done.path, workers=workers)
    return done


def target_of(source: str, out: StrPath | None) -> str:
    """Return the path of the file to write: `out`, a file in the directory `out`, or a file beside the source."""
    target = without_codec(source) + _SUFFIX
    if target == source:
        stem, suffix = os.path.splitext(without_codec(source))
        target = f"{stem}{SEEKABLE}{suffix}{_SUFFIX}"
    if out is not None:
        target = os.path.join(out, os.path.basename(target)) if os.path.isdir(out) else os.fspath(out)
    if not target.endswith(_SUFFIX):
        raise Error(f"{target}: expected a file name that ends in {_SUFFIX}, found another")
    return target


def _write(
    text: Source, target: str, frames: Generator[tuple[bytes, int, int], None, None], progress: Callable[[int], object]
) -> Seekable:
    """Write the frames and a seek table. Each item: a frame, its bytes of text, and the bytes read for it."""
    table = array("I")
    try:
        place = os.path.join(os.getcwd(), target)
        with replacing(place, text.path, lambda: check_unchanged(text)) as file, closing(frames):
            for frame, content, read in frames:
                file.write(frame)
                table.extend((len(frame), content, int.from_bytes(frame[-4:], "little")))  # checksum of the text
                progress(read)
            file.write(_HEADER.pack(_SKIPPABLE, 4 * len(table) + _FOOTER.size))
            file.write(table.tobytes() + _FOOTER.pack(len(table) // 3, _HAS_CHECKSUMS, _MAGIC))
            size = file.tell()
    except OSError as error:
        raise Error(f"{target}: cannot write the seekable file ({reason(error)}); give another place") from None
    return Seekable(target, len(table) // 3, sum(table[1::3]), size, is_new=True)


def _frames(
    source: Source, frame: int, level: int, workers: int, window: int
) -> Generator[tuple[bytes, int, int], None, None]:
    """Yield the frames of a text, compressed by threads, each with its own compressor; see `_write`."""
    module = codec(source.path)

    def work(lines: tuple[bytes, int], compressor: Any) -> tuple[bytes, int, int]:
        return compressor.compress(lines[0], compressor.FLUSH_FRAME), len(lines[0]), lines[1]

    options = _options(module, frame, level)
    slots = [module.ZstdCompressor(options=options) for _ in range(in_flight(workers))]
    return in_order(work, _lines(source, frame, workers, window), workers=workers, slots=slots)


def _lines(source: Source, frame: int, workers: int, window: int) -> Iterator[tuple[bytes, int]]:
    """Yield the text of each frame, as many lines as fit, and the bytes of the source read for it."""
    waiting, read, done = bytearray(), 0, 0
    searched = 0  # bytes already searched for a line end beyond the size of a frame
    for piece, more in _text_of(source, workers, window):
        waiting += piece
        read += more
        while len(waiting) > frame:
            end = waiting.rfind(b"\n", 0, frame) + 1 or waiting.find(b"\n", max(searched, frame)) + 1
            if not end:
                searched = len(waiting)
                break
            yield bytes(memoryview(waiting)[:end]), read
            del waiting[:end]
            done, read, searched = done + end, 0, 0
        if len(waiting) > _LONGEST_LINE:
            found = f"found a longer one from byte {done} of the text on"
            raise FormatError(f"{source.path}: expected lines of at most {_LONGEST_LINE} bytes, {found}")
    if waiting or not done:
        yield bytes(waiting), read


def _text_of(source: Source, workers: int, window: int) -> Iterator[tuple[bytes, int]]:
    """Yield the text of a file in pieces, each with the bytes of the file read for it."""
    memory = room_of(WINDOW)
    content: Iterator[tuple[Part, Iterable[Data]]] = content_of(source, workers, 1, 1, largest_window=window)
    if not source.codec:  # each part has one piece
        content = ((part, part.load(memory)) for part in parts_of(source, 1, WINDOW))
    try:
        for part, pieces in content:
            yield b"".join(pieces), part.scanned
    except EOFError:
        raise changed(source) from None
    except OSError as error:
        raise unreadable(source.path, error) from None


def _options(module: ModuleType, frame: int, level: int) -> dict[Any, int]:
    """Return the options of the compressor.

    For texts as small as a frame, zstd's level 3 uses matches of 4 bytes and small tables. Its settings for large
    texts, 5 bytes and large tables, make frames smaller in the same time (bench/bench_seekable.py).
    """
    name = module.CompressionParameter
    options = {name.compression_level: level, name.checksum_flag: 1}
    if level == LEVEL and frame <= FRAME:
        options |= {name.strategy: module.Strategy.dfast, name.min_match: 5, name.hash_log: 17, name.chain_log: 17}
    return options
