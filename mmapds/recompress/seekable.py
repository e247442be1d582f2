"""`mmapds.seekable()`: recompress text so that any record can be read without those before it."""

import os
from array import array
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from io import FileIO
from itertools import accumulate
from types import ModuleType
from typing import Any, NamedTuple

from .. import formats
from ..build_index import build
from ..compression.codec import memory_checked, zstd
from ..compression.frames import Frames
from ..compression.seek_table import MOST_FRAMES, table_bytes
from ..errors import Error, FormatError, counted, either
from ..formats.jsonl import JsonLines
from ..index.build import check_workers
from ..storage.replaced import replacing
from ..storage.sources import StrPath, make_room, named, reason, working_directory
from ..storage.threads import cores, in_order
from .known_lines import KnownLines, Records, records_of
from .targets import check_target, elsewhere, frames_as_they_are, target_of
from .text import Text

FRAME = 256 << 10
"""Bytes of text in a frame."""
LEVEL = 3
"""Of compression."""
WINDOW_LOG = 27
"""The largest window of a frame that is read, as the logarithm to base 2: 128 MiB."""

_SMALLEST_FRAME, _LARGEST_FRAME = 4 << 10, 256 << 20
_LONGEST_LINE = 1 << 30  # bytes: a frame holds a whole line, and memory holds some frames
_LEVELS = (1, 22)
_WINDOW_LOGS = (10, 31)
_INDEXED = (*JsonLines.suffixes, ".json")


class Seekable(NamedTuple):
    """The outcome."""

    path: str
    frames: int
    text: int
    """Bytes of text."""
    size: int
    """Bytes of the file."""
    is_new: bool
    """Whether it was written, and not the source, which is seekable already."""

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

    It has many frames, each of whole lines and with a checksum, and a seek table, which other decoders pass over. See
    docs/compressed.md. The file appears only when it is whole; the source stays as it is, unless `out` names it.

    Args:
      source: JSON Lines or other lines, plain, of gzip or of zstd.
      out: the file to write, or the directory to write it in; by default that of the source. There,
        `part.jsonl.gz` becomes `part.jsonl.zst`, `part.jsonl.zst` becomes `part.seekable.jsonl.zst`, and `part.tgz`
        becomes `part.tar.zst`.
      frame: bytes of text in a frame, at most; a longer line has a frame of its own. To read a record, its frame is
        decoded; small frames take more space.
      level: of compression, 1 to 22, as in `zstd -3`.
      workers: threads that compress; by default all cores.
      window_log: how large a window of a source may be, as in `zstd --long=27`; it takes as much memory.
      index: index the file too, if its name is that of JSON (`.jsonl.zst`, `.ndjson.zst`, `.json.zst`): from the text
        that is recompressed, so that nothing is decoded for it. An index that it has already keeps its options; columns
        are measured once the file is there. False where one index will cover several files.
      force: replace a file that is there already, and recompress a source that is seekable already.
      progress: called with the bytes of the source that were read since the last call.
    Returns:
      The path that was written, and what it has. A source that is seekable already, with frames of this size or less,
      is left as it is where `out` is not given.
    Raises:
      SourceError: the source is missing, unreadable, compressed in another way, or changes meanwhile.
      FormatError: it is damaged, or has a line of more than 1 GiB.
      Error: an argument is out of range, the file is there already or cannot be written. What `mmapds.build` raises.
    """
    check_arguments(frame, level, workers, window_log)
    path = os.fspath(source)
    text = Text(path, window_log=window_log)
    done = None if out is not None or force else _as_it_is(text, frame)
    if done is None:
        place = None if out is None else os.fspath(out)
        target = target_of(path, text.codec, place)
        if not force:
            check_target(target, path, place)
        is_indexed = index and named(target, _INDEXED)
        if is_indexed:
            formats.for_path(path)  # refuses what is not lines
        done, lines = _recompress(text, target, frame, level, workers or cores(), progress, is_indexed=is_indexed)
        if lines is not None:
            lines.build(done.path, workers)
    elif index and named(done.path, _INDEXED):
        build(done.path, workers=workers)
    return done


def _recompress(
    text: Text,
    target: str,
    frame: int,
    level: int,
    workers: int,
    progress: Callable[[int], object],
    *,
    is_indexed: bool,
) -> tuple[Seekable, KnownLines | None]:
    """Write the file; return the outcome, and the records if they are wanted. See `seekable`."""
    codec = zstd(text.path)
    try:
        with replacing(os.path.join(working_directory(), target), text.check) as file:
            lines = KnownLines(file) if is_indexed else None
            written = _Written(target, file, lines)
            frames = _compressed(codec, text, frame, level, workers, is_indexed=is_indexed)
            with closing(frames):  # here, as its threads end then
                for compressed in frames:
                    written.add(compressed)
                    progress(compressed.read)
            written.finish()
    except OSError as error:
        raise Error(
            f"{target}: cannot write the seekable file ({reason(error)}); nothing was changed; {make_room(error)}give "
            f"another place with {elsewhere()}"
        ) from None
    return Seekable(target, len(written.sizes), sum(written.contents), written.size, is_new=True), lines


def check_arguments(frame: int, level: int, workers: int | None, window_log: int) -> None:
    """Raise Error for an argument that is out of range."""
    ranges = {"frame": (frame, _SMALLEST_FRAME, _LARGEST_FRAME), "level": (level, *_LEVELS)}
    ranges["window_log"] = (window_log, *_WINDOW_LOGS)
    for name, (value, least, most) in ranges.items():
        if type(value) is not int or not least <= value <= most:
            raise Error(f"{name} = {value!r}, expected {least} to {most}")
    check_workers(workers)


def _as_it_is(text: Text, frame: int) -> Seekable | None:
    """Return a source that is seekable already; None if it is not, or its frames are larger than is wanted."""
    found = frames_as_they_are(text.source, text.codec, frame)
    if found is None:
        return None
    return Seekable(text.path, len(found.contents), sum(found.contents), text.source.size, is_new=False)


# ---- frames


class _Lines(NamedTuple):
    """The text of a frame."""

    text: bytes
    begin: int
    """Where it begins in all text."""
    read: int
    """Bytes of the source that were read for it, since the frame before."""


class _Compressed(NamedTuple):
    """A frame."""

    frame: bytes
    text: int
    read: int
    records: Records | None
    """Those of its text, if they are wanted."""


def _lines(text: Text, frame: int) -> Iterator[_Lines]:
    """Cut a text behind line ends: as many lines as fit into a frame, one at least.

    Raises:
      FormatError: a line is too long.
    """
    waiting, read, done = bytearray(), 0, 0
    searched = 0  # bytes that wait and have no line end behind those of a frame
    for piece in text.pieces():
        waiting += piece.text
        read += piece.read
        while len(waiting) > frame:
            end = waiting.rfind(b"\n", 0, frame) + 1 or waiting.find(b"\n", max(searched, frame)) + 1
            if not end:
                searched = len(waiting)
                break
            yield _Lines(bytes(memoryview(waiting)[:end]), done, read)
            del waiting[:end]
            done, read, searched = done + end, 0, 0
        if len(waiting) > _LONGEST_LINE:
            raise FormatError(
                f"{text.path}: expected lines of at most {_LONGEST_LINE} bytes, found a longer one from byte {done} of "
                "the text on"
            )
    if waiting or not done:
        yield _Lines(bytes(waiting), done, read)


def _compressed(
    codec: ModuleType, text: Text, frame: int, level: int, workers: int, *, is_indexed: bool
) -> Generator[_Compressed, None, None]:
    """Yield the frames of a text, which threads compress, each with a compressor of its own."""

    def work(lines: _Lines, compressor: Any) -> _Compressed:
        records = records_of(lines.text, lines.begin) if is_indexed else None
        with memory_checked(codec):
            compressed = compressor.compress(lines.text, compressor.FLUSH_FRAME)
        return _Compressed(compressed, len(lines.text), lines.read, records)

    options = _options(codec, frame, level)
    with memory_checked(codec):
        slots = [codec.ZstdCompressor(options=options) for _ in range(workers + 2 if workers > 1 else 1)]
    return in_order(work, _lines(text, frame), workers=workers, slots=slots)


def _options(codec: ModuleType, frame: int, level: int) -> dict[Any, int]:
    """Return how to compress frames.

    For texts as small as a frame, zstd's level 3 looks for matches of 4 bytes, in small tables. What it has for large
    ones, 5 bytes and large tables, makes frames smaller in the same time (bench/bench_seekable.py).
    """
    name = codec.CompressionParameter
    options = {name.compression_level: level, name.checksum_flag: 1}
    if level == LEVEL and frame <= FRAME:
        tuned = {name.strategy: codec.Strategy.dfast, name.min_match: 5, name.hash_log: 17, name.chain_log: 17}
        options |= tuned
    return options


@dataclass
class _Written:
    """The frames that were written, for their seek table."""

    target: str
    file: FileIO
    lines: KnownLines | None
    size: int = 0
    sizes: "array[int]" = field(default_factory=lambda: array("I"))
    contents: "array[int]" = field(default_factory=lambda: array("I"))
    checksums: "array[int]" = field(default_factory=lambda: array("I"))

    def add(self, compressed: _Compressed) -> None:
        """Write a frame. Its last 4 bytes are the checksum of its text, which is that of the seek table too."""
        if len(self.sizes) == MOST_FRAMES:
            raise Error(
                f"{self.target}: expected at most {MOST_FRAMES} frames, found more; give larger ones with "
                f"{either('--frame', 'frame=...')}"
            )
        self.file.write(compressed.frame)
        self.size += len(compressed.frame)
        self.sizes.append(len(compressed.frame))
        self.contents.append(compressed.text)
        self.checksums.append(int.from_bytes(compressed.frame[-4:], "little"))
        if self.lines is not None and compressed.records is not None:
            self.lines.add(compressed.records)

    def finish(self) -> None:
        """Write the seek table."""
        table = table_bytes(self.sizes, self.contents, self.checksums)
        self.file.write(table)
        if self.lines is not None:
            begins = array("Q", accumulate(self.sizes, initial=0))
            self.lines.finish(Frames(begins, array("Q", self.contents)))
        self.size += len(table)
