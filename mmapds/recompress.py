"""`mmapds.seekable()`: recompress text into zstd, so that any record can be read without those before it.

The file ends with a seek table of zstd's seekable format (contrib/seekable_format in zstd's own repository, 0.1.0): a
skippable frame, number 14, which all decoders pass over. For each frame before it, it has the bytes in the file, the
bytes of text, and where a flag says so the lower half of the XXH64 of the text; then a footer: how many frames there
are, the flag, and a magic number. All are little-endian and of 32 bits but for the byte of the flag.
"""

import os
import re
import struct
from array import array
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from types import ModuleType
from typing import Any, NamedTuple

from . import _native, formats
from .build_index import build
from .compression.content import content_of
from .compression.zstd import codec, memory_checked
from .errors import Error, FormatError, counted, either
from .formats.jsonl import JsonLines
from .index.build import check_workers
from .storage.files import open_file, shrank
from .storage.lock import check_is_free, is_same_file, replacing
from .storage.sources import (
    SEEKABLE,
    Source,
    StrPath,
    check_unchanged,
    inspect,
    named,
    reason,
    unreadable,
    without_codec,
)
from .storage.workers import cores, in_order

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
_PIECE = 1 << 20  # bytes of a plain source that are read at a time
_SUFFIX = ".zst"
_MOST_FRAMES = 0x8000000  # in a seek table
_HEADER, _FOOTER = struct.Struct("<II"), struct.Struct("<IBI")
_SKIPPABLE, _MAGIC = 0x184D2A5E, 0x8F92EAB1
_HAS_CHECKSUMS, _RESERVED = 0x80, 0x7C  # bits of the flag's byte


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
    found = _texts_of_frames(text, frame) if place is None and not force else None
    target = _target_of(text, place) if found is None else text.path
    is_indexed = index and named(target, _INDEXED)
    if found is not None:
        done = Seekable(target, len(found), sum(found), text.size, is_new=False)
    else:
        if not force and (place is None or not is_same_file(target, text.path)):
            check_is_free(target)
        if is_indexed:
            formats.for_path(text.path)  # refuses what is not lines
        frames = _frames(text, frame, level, workers or cores(), 1 << window_log)
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
                    if len(sizes) == _MOST_FRAMES:
                        raise Error(
                            f"{target}: expected at most {_MOST_FRAMES} frames, found more; give larger ones with "
                            f"{either('--frame', 'frame=...')}"
                        )
                    file.write(frame)
                    sizes.append(len(frame))
                    contents.append(content)
                    checksums.append(int.from_bytes(frame[-4:], "little"))  # of its text, as in the seek table
                    progress(read)
            file.write(_table_bytes(sizes, contents, checksums))
            size = file.tell()
    except OSError as error:
        raise Error(
            f"{target}: cannot write the seekable file ({reason(error)}); nothing was changed; give another "
            f"place with {_elsewhere()}"
        ) from None
    return Seekable(target, len(sizes), sum(contents), size, is_new=True)


def _frames(source: Source, frame: int, level: int, workers: int, window: int) -> Generator[_Frame, None, None]:
    """Yield the frames of a text, which threads compress, each with a compressor of its own."""
    module = codec(source.path)

    def work(lines: tuple[bytes, int], compressor: Any) -> _Frame:
        with memory_checked(module):
            return _Frame(compressor.compress(lines[0], compressor.FLUSH_FRAME), len(lines[0]), lines[1])

    options = _options(module, frame, level)
    with memory_checked(module):
        slots = [module.ZstdCompressor(options=options) for _ in range(workers + 2 if workers > 1 else 1)]
    return in_order(work, _lines(source, frame, workers, window), workers=workers, slots=slots)


def _lines(source: Source, frame: int, workers: int, window: int) -> Iterator[tuple[bytes, int]]:
    """Yield the texts of frames, as many lines as fit, and the bytes of the source that were read for each.

    Raises:
      FormatError: a line is too long. What `_text_of` raises.
    """
    waiting, read, done = bytearray(), 0, 0
    searched = 0  # bytes that wait and have no line end behind those of a frame
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
            raise FormatError(
                f"{source.path}: expected lines of at most {_LONGEST_LINE} bytes, found a longer one from byte {done} "
                "of the text on"
            )
    if waiting or not done:
        yield bytes(waiting), read


def _text_of(source: Source, workers: int, window: int) -> Iterator[tuple[bytes, int]]:
    """Yield the text of a file in pieces, each with the bytes of the file that were read for it.

    Args:
      window: bytes of text that a decoder of zstd may keep.
    Raises:
      SourceError: the file cannot be read, or changed meanwhile.
      FormatError: it is damaged, or a frame has a larger window.
    """
    try:
        if source.codec:
            for part, pieces in content_of(source, workers, 1, 1, largest_window=window):
                yield b"".join(pieces), part.scanned
            return
        with open(source.path, "rb") as file:
            while text := file.read(_PIECE):
                yield text, len(text)
    except EOFError:
        raise shrank(source) from None
    except FormatError:
        check_unchanged(source)
        raise
    except OSError as error:
        raise unreadable(source.path, error) from None


def _options(module: ModuleType, frame: int, level: int) -> dict[Any, int]:
    """Return how to compress frames.

    For texts as small as a frame, zstd's level 3 looks for matches of 4 bytes, in small tables. What it has for large
    ones, 5 bytes and large tables, makes frames smaller in the same time (bench/bench_seekable.py).
    """
    name = module.CompressionParameter
    options = {name.compression_level: level, name.checksum_flag: 1}
    if level == LEVEL and frame <= FRAME:
        tuned = {name.strategy: module.Strategy.dfast, name.min_match: 5, name.hash_log: 17, name.chain_log: 17}
        options |= tuned
    return options


# ---- where the file is written -----------------------------------------------------------------------------------


def _elsewhere() -> str:
    """Return how users name another place."""
    return either("-o OUT.zst", "out=...")


def _texts_of_frames(source: Source, frame: int) -> "array[int] | None":
    """Return the bytes of text in each frame of a seekable source; None for others, and where they are too large."""
    found = read_table(open_file(source.path, scan=True)) if source.codec == "zstd" else None
    return found if found and sum(found) <= len(found) * frame else None


def _target_of(source: Source, out: str | None) -> str:
    """Return the path to write for a source.

    Raises:
      Error: its name is not that of a zstd file, or its directory is missing.
    """
    target = _beside(source) if out is None else out
    if out is not None and os.path.isdir(out):
        target = os.path.join(out, os.path.basename(_beside(source)))
    if not target.endswith(_SUFFIX) or os.path.isdir(target):
        raise Error(f"{target}: cannot write the seekable file here: expected a file name that ends in {_SUFFIX}")
    if not os.path.isdir(os.path.dirname(target) or "."):
        raise Error(
            f"{target}: cannot write the seekable file here (no such directory); give another place with {_elsewhere()}"
        )
    return target


def check_apart(paths: Sequence[str], out: str | None, frame: int, *, force: bool) -> None:
    """Refuse sources of one command of which one would be replaced by what another becomes, or both become one file.

    Raises:
      Error: there are such. What `seekable` raises.
    """
    taken = {os.path.realpath(path): path for path in paths}
    for source in map(inspect, paths):
        if out is None and not force and _texts_of_frames(source, frame) is not None:
            continue
        target = _target_of(source, out)
        other = taken.setdefault(os.path.realpath(target), source.path)
        if other != source.path:
            raise Error(
                f"{target}: expected one source for it, found {other} and {source.path}; give them one by one, and "
                "another place for each"
            )


def _beside(source: Source) -> str:
    """Return the path of the file to write beside a source."""
    path = source.path
    plain = re.sub(r"\.(zstd|gzip)$", "", without_codec(path)) if source.codec else path
    if plain + _SUFFIX != path:
        return plain + _SUFFIX
    stem, suffix = os.path.splitext(plain)
    return f"{stem}{SEEKABLE}{suffix}{_SUFFIX}"


# ---- seek tables ------------------------------------------------------------------------------------------------


def read_table(file: _native.Map) -> "array[int] | None":
    """Return the bytes of text in each frame, u32, as a seek table says them; None without one of all the file.

    It has frames of less than 4 GiB alone. Where files were joined, the last one's table covers that one alone.

    Raises:
      EOFError: the file became shorter while it was read.
    """
    around = _HEADER.size + _FOOTER.size
    if file.size < around:
        return None
    count, flags, magic = _FOOTER.unpack(file.read(file.size - _FOOTER.size, _FOOTER.size))
    width = 3 if flags & _HAS_CHECKSUMS else 2
    size = 4 * width * count
    begin = file.size - size - around
    if magic != _MAGIC or flags & _RESERVED or count > _MOST_FRAMES or begin < 0:
        return None
    if _HEADER.unpack(file.read(begin, _HEADER.size)) != (_SKIPPABLE, size + _FOOTER.size):
        return None
    words = array("I", file.read(begin + _HEADER.size, size))
    return words[1::width] if sum(words[::width]) == begin else None


def _table_bytes(sizes: "array[int]", contents: "array[int]", checksums: "array[int]") -> bytes:
    """Return a seek table, which ends a file.

    Args:
      sizes: bytes of each frame in the file, u32; at most `_MOST_FRAMES` of them.
      contents: bytes of text in each, u32.
      checksums: the lower half of the XXH64 of each one's text, u32.
    """
    count = len(sizes)
    words = array("I", bytes(12 * count))
    words[::3], words[1::3], words[2::3] = sizes, contents, checksums
    header = _HEADER.pack(_SKIPPABLE, 12 * count + _FOOTER.size)
    return header + words.tobytes() + _FOOTER.pack(count, _HAS_CHECKSUMS, _MAGIC)
