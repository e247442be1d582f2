"""`mmapds.seekable()`: recompress text so that any record can be read without those before it."""

import os
from array import array
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from types import ModuleType
from typing import Any, NamedTuple

from .. import formats
from ..build_index import build
from ..compression.codec import memory_checked, zstd
from ..compression.seek_table import MOST_FRAMES, table_bytes
from ..errors import Error, FormatError, counted, either
from ..formats.jsonl import JsonLines
from ..index.build import check_workers
from ..storage.replaced import replacing
from ..storage.sources import (
    Source,
    StrPath,
    check_unchanged,
    inspect,
    named,
    reason,
)
from ..storage.threads import cores, in_order
from .targets import check_target, elsewhere, frames_as_they_are, target_of
from .text import text_of

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
      index: index the file too, if its name is that of JSON (`.jsonl.zst`, `.ndjson.zst`, `.json.zst`). An index that
        it has already keeps its options. False where one index will cover several files.
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
    text, place = inspect(os.fspath(source)), None if out is None else os.fspath(out)
    found = frames_as_they_are(text, frame) if place is None and not force else None
    target = target_of(text, place) if found is None else text.path
    is_indexed = index and named(target, _INDEXED)
    if found is not None:
        done = Seekable(target, len(found.contents), sum(found.contents), text.size, is_new=False)
    else:
        if not force:
            check_target(target, text.path, place)
        if is_indexed:
            formats.for_path(text.path)  # refuses what is not lines
        frames = _frames(text, frame, level, workers or cores(), window_log)
        done = _write(text, target, frames, progress)
    if is_indexed:
        build(target, workers=workers)
    return done


def check_arguments(frame: int, level: int, workers: int | None, window_log: int) -> None:
    """Raise Error for an argument that is out of range."""
    ranges = {"frame": (frame, _SMALLEST_FRAME, _LARGEST_FRAME), "level": (level, *_LEVELS)}
    ranges["window_log"] = (window_log, *_WINDOW_LOGS)
    for name, (value, least, most) in ranges.items():
        if type(value) is not int or not least <= value <= most:
            raise Error(f"{name} = {value!r}, expected {least} to {most}")
    check_workers(workers)


class _Frame(NamedTuple):
    """A frame of the new file."""

    frame: bytes
    text: int
    """Bytes of text in it."""
    read: int
    """Bytes of the source that were read for it, since the frame before."""


def _write(
    text: Source, target: str, frames: Generator[_Frame, None, None], progress: Callable[[int], object]
) -> Seekable:
    """Write the file: frames and a seek table."""
    sizes, contents, checksums = array("I"), array("I"), array("I")
    try:
        with replacing(os.path.join(os.getcwd(), target), lambda: check_unchanged(text)) as file:
            with closing(frames):  # here, as its threads end then
                for frame, content, read in frames:
                    if len(sizes) == MOST_FRAMES:
                        raise Error(
                            f"{target}: expected at most {MOST_FRAMES} frames, found more; give larger ones with "
                            f"{either('--frame', 'frame=...')}"
                        )
                    file.write(frame)
                    sizes.append(len(frame))
                    contents.append(content)
                    checksums.append(int.from_bytes(frame[-4:], "little"))  # of its text, as in the seek table
                    progress(read)
            file.write(table_bytes(sizes, contents, checksums))
            size = file.tell()
    except OSError as error:
        raise Error(
            f"{target}: cannot write the seekable file ({reason(error)}); nothing was changed; give another "
            f"place with {elsewhere()}"
        ) from None
    return Seekable(target, len(sizes), sum(contents), size, is_new=True)


def _frames(source: Source, frame: int, level: int, workers: int, window_log: int) -> Generator[_Frame, None, None]:
    """Yield the frames of a text, which threads compress, each with a compressor of its own."""
    codec = zstd(source.path)

    def work(lines: tuple[bytes, int], compressor: Any) -> _Frame:
        with memory_checked(codec):
            return _Frame(compressor.compress(lines[0], compressor.FLUSH_FRAME), len(lines[0]), lines[1])

    options = _options(codec, frame, level)
    with memory_checked(codec):
        slots = [codec.ZstdCompressor(options=options) for _ in range(workers + 2 if workers > 1 else 1)]
    return in_order(work, _lines(source, frame, window_log), workers=workers, slots=slots)


def _lines(source: Source, frame: int, window_log: int) -> Iterator[tuple[bytes, int]]:
    """Yield the texts of frames, as many lines as fit, and the bytes of the source that were read for each.

    Raises:
      FormatError: a line is too long.
    """
    waiting, read, done = bytearray(), 0, 0
    searched = 0  # bytes that wait and have no line end behind those of a frame
    for piece, more in text_of(source, window_log):
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
            raise FormatError(
                f"{source.path}: expected lines of at most {_LONGEST_LINE} bytes, found a longer one from byte {done} "
                "of the text on"
            )
    if waiting or not done:
        yield bytes(waiting), read


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
