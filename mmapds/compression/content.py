"""Read the content of a file, compressed or not: in parts, for scans of formats, or as a stream from its first byte.

A part of a plain file is mapped, or read through a small window. A part of a compressed file is decoded. If headers
give the content size of each block, threads decode parts in parallel; otherwise in the order of the file.
"""

import gzip as standard_gzip
import os
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from typing import Any, BinaryIO, NamedTuple

from .. import _native
from ..errors import FormatError, check_memory
from ..storage.sections import LARGEST_BLOCK
from ..storage.sources import Source, codec_of, open_regular, open_source, unreadable
from ..storage.workers import ahead, in_order
from . import gzip, zstd
from .blocks import BITS, BlockError, BlockStart, Data, not_decoded, pieces_of

STEP = 1 << 20  # bytes of content: fits the cache of a processor while decoded and scanned
WINDOW = 256 << 10  # bytes of a plain file read at once: fits the second-level cache while scanned
_WORTH_A_THREAD = 256 << 10  # bytes of a compressed file
_READ = 4 << 20  # bytes read at a time from a file that is a stream or cannot be mapped

# ---- in parts ---------------------------------------------------------------------------------------------------


class Part(NamedTuple):
    """A part of the content of a source; a source has one or more."""

    begin: int  # where it begins in the content
    end: int
    scanned: int  # bytes of the file that it covers; the parts of a source cover all of it
    starts: tuple[BlockStart, ...]  # the blocks that begin in it
    is_last: bool
    pieces: int  # pieces of its content, at most
    load: Callable[[memoryview], Iterable[Data]]
    """Yields the content, on any thread. A piece may use the given memory of `WINDOW` bytes until the next one.

    Raises FormatError for a damaged source, and EOFError for one that became shorter.
    """
    file: _native.Map | None = None  # the source, if it is mapped


_Item = tuple[BlockStart | None, int, Callable[[], bytes], int]
"""Content of a compressed source: the start of its block (None: it continues the last block); its bytes; the function
that decodes it; the byte up to which the file was read (0: the begin of the next block says that)."""


def parts_of(
    source: Source, workers: int, step: int, least: int = STEP, *, largest_window: int = zstd.LARGEST_WINDOW
) -> Generator[Part, None, None]:
    """Yield the parts of a source, in order.

    Args:
      workers: threads that decode, if parts cannot be decoded independently.
      step: bytes in a part of a plain file; a part of a compressed source has `least` or more.
      largest_window: bytes of content that a decoder of zstd may keep.
    """
    if not source.codec:
        for begin in range(source.begin, max(source.stop, 1), step):
            end = min(begin + step, source.stop)
            load = partial(_read, source.path, begin, end)
            yield Part(begin, end, end - begin, (), end == source.stop, -(-(end - begin) // WINDOW), load)
        return
    if source.codec == "gzip":
        text = gzip.content_of(source.path, open_source(source))
        found: Generator[_Item, None, None] = ahead((start, len(data), partial(bytes, data), 0) for start, data in text)
    else:
        found = _zstd(source, workers, largest_window)
    with closing(found) as items:
        yield from _parts(source, items, least)


def content_of(
    source: Source, workers: int, step: int, least: int = STEP, *, largest_window: int = zstd.LARGEST_WINDOW
) -> Generator[tuple[Part, Sequence[Data]], None, None]:
    """Yield the parts of a source with their content, mapped or decoded by threads; see `parts_of`."""
    if not source.codec:
        yield from _mapped(source, step)
        return

    def load(part: Part, _: int) -> tuple[Part, Sequence[Data]]:
        return part, list(part.load(memoryview(b"")))

    threads = workers_for([source], workers, step)
    with closing(parts_of(source, workers, step, least, largest_window=largest_window)) as parts:
        yield from in_order(load, parts, workers=threads, slots=list(range(in_flight(threads))))


def workers_for(sources: Sequence[Source], workers: int, step: int) -> int:
    """Return how many threads are worth it for parts of these sources; for `step`, see `parts_of`."""
    sizes = ((source.stop - source.begin, _WORTH_A_THREAD if source.codec else step) for source in sources)
    return min(workers, sum(max(-(-size // each), 1) for size, each in sizes))


def in_flight(workers: int) -> int:
    """Return how many results of threads exist at a time."""
    return workers + 2 if workers > 1 else 1


def _read(path: str, begin: int, end: int, window: memoryview) -> Iterator[Data]:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while begin < end:
            size = os.preadv(file, [window[: end - begin]], begin)
            if not size:
                raise EOFError
            yield window[:size]
            begin += size
    finally:
        os.close(file)


def _mapped(source: Source, step: int) -> Iterator[tuple[Part, Sequence[Data]]]:
    file = open_source(source, scan=False)
    for part in parts_of(source, 1, step if file.is_mapped else min(step, _READ)):
        if file.is_mapped:
            yield part._replace(file=file), (memoryview(file)[part.begin : part.end],)
            continue
        try:
            data = file.read(part.begin, part.end - part.begin)
        except OSError as error:
            raise unreadable(source.path, error) from None
        yield part, (data,)


def _parts(source: Source, items: Iterable[_Item], least: int) -> Iterator[Part]:
    """Make parts of the fewest neighbouring items that have so much content."""
    begin = end = scanned = read = 0
    starts: list[BlockStart] = []
    held: list[Callable[[], bytes]] = []
    for start, size, load, read_for_it in items:
        if end - begin >= least:
            # Bytes of a block in the file count when the next block begins; those of a large block as they are read.
            now = max(scanned, read) if start is None else start.file // BITS[source.codec]
            yield Part(begin, end, now - scanned, tuple(starts), False, len(held), partial(_load, held))
            begin, scanned, starts, held = end, now, [], []
        starts += [start] if start else []
        held.append(load)
        end, read = end + size, read_for_it
    yield Part(begin, end, source.size - scanned, tuple(starts), True, len(held), partial(_load, held))


def _load(loads: Sequence[Callable[[], bytes]], _: memoryview) -> Iterator[bytes]:
    return (load() for load in loads)


_Task = tuple[int, zstd.FileBlock]


def _zstd(source: Source, workers: int, largest_window: int) -> Generator[_Item, None, None]:
    """Yield blocks. Large blocks, and blocks whose headers do not give the content size, are decoded here."""
    file, module = open_source(source), zstd.codec(source.path)
    frames = zstd.walk(file, source.path, largest_window=largest_window)

    def pieces(task: _Task) -> Iterator[tuple[bytes, int]]:
        number, block = task
        stream = zstd.Stream(module, file, block.begin, block.end, largest_window)
        try:
            for piece in pieces_of(stream, None if block.content == zstd.UNKNOWN else block.content):
                yield piece, stream.at
        except BlockError as error:
            raise not_decoded(source.path, number, block.begin, "zstd", error) from None

    def decoded(task: _Task) -> bytes:
        """Return the content of a block; empty if it is too large to be decoded at once."""
        found, size = [], 0
        for piece, _ in () if task[1].is_large else pieces(task):
            size += len(piece)
            if size > LARGEST_BLOCK:
                return b""
            found.append(piece)
        return b"".join(found)

    at = 0
    if all(block.content != zstd.UNKNOWN and not block.is_large for block in zstd.blocks_of(frames)):
        for task in enumerate(zstd.blocks_of(frames)):
            yield BlockStart(task[1].begin, at), task[1].content, partial(decoded, task), 0
            at += task[1].content
        return

    def decode(task: _Task, _: int) -> tuple[_Task, bytes]:
        return task, decoded(task)

    workers = max(min(workers, len(frames.contents)), 1)
    tasks, slots = enumerate(zstd.blocks_of(frames)), list(range(in_flight(workers)))
    with closing(in_order(decode, tasks, workers=workers, slots=slots)) as found:
        for task, data in found:
            start: BlockStart | None = BlockStart(task[1].begin, at)
            for piece, read in ((data, 0),) if data else pieces(task):
                yield start, len(piece), partial(bytes, piece), read
                start, at = None, at + len(piece)


# ---- from the first byte on ---------------------------------------------------------------------------------------


@contextmanager
def opened(path: str) -> Iterator[BinaryIO]:
    """Open a file as a stream of its content, decompressed if needed.

    Raises:
      SourceError: it is missing, unreadable, or not a regular file.
      FormatError: it is damaged; raised while it is read.
    """
    damage: tuple[type[Exception], ...] = EOFError, zlib.error, standard_gzip.BadGzipFile
    with open_regular(path) as file:
        codec = codec_of(file.read(4))
        file.seek(0)
        content: Any = file
        if codec == "zstd":
            module = zstd.codec(path)
            damage += (module.ZstdError,)
            content = module.ZstdFile(file)
        elif codec == "gzip":
            content = standard_gzip.GzipFile(fileobj=file)
        try:
            with content:
                yield content
        except damage as error:
            check_memory(error)
            raise FormatError(f"{path}: not {codec}: {error}; copy the file again") from None


def head_of(path: str, size: int) -> bytes:
    """Return the first bytes of the content of a file; b"" for a damaged file."""
    with suppress(FormatError), opened(path) as file:
        return file.read(size)
    return b""


def line_number(path: str, offset: int) -> int:
    """Return the line of the content of a file, counted from 1, that holds the byte at `offset`."""
    lines, left = 1, offset
    with opened(path) as file:
        while left and (piece := file.read(min(left, _READ))):
            lines += piece.count(b"\n")
            left -= len(piece)
    return lines
