"""The content of a source, in parts from its first byte to its last. Formats scan it, compressed or not.

A part of a plain file is read through a small window, or mapped. One of a compressed file is decoded: where headers say
how much content each block has, by whichever thread takes the part; else in the order of the file.
"""

import os
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import NamedTuple

from .. import _native
from ..storage.blocks import BlockStart, byte_of, packed_point
from ..storage.files import open_source
from ..storage.sources import Source, unreadable
from ..storage.workers import ahead, in_order
from .gzip import GzipContent
from .parts import COPY, BlockError, kept, not_decoded
from .zstd import LARGEST_WINDOW, FileBlock, ZstdSource

STEP = 1 << 20
"""Bytes of content that fit the cache of a processor while they are decoded and scanned."""
_WORTH_A_THREAD = 256 << 10  # bytes of a compressed file
_READ = 4 << 20  # bytes that a part of a file has which cannot be mapped, at most
_NO_WINDOW = memoryview(b"")
WINDOW = 256 << 10
"""Bytes of a plain file that are read at once: they stay in the second-level cache until they are scanned."""

Data = bytes | memoryview


class Part(NamedTuple):
    """A part of the content of a source; a source has one or more."""

    begin: int
    """Where it begins in the content."""
    end: int
    scanned: int
    """Bytes of the file that it covers; the parts of a source cover all of it."""
    starts: tuple[BlockStart, ...]
    """The blocks that begin in it."""
    is_last: bool
    pieces: int
    """In how many pieces the content comes, at most."""
    load: Callable[[memoryview], Iterable[Data]]
    """Yields the content, given memory of `WINDOW` bytes, where a piece may lie until the next one; for any thread.

    Raises FormatError for a damaged source, and EOFError for one that became shorter.
    """
    file: _native.Map | None = None
    """The source, if it is mapped."""
    base: int = 0
    """Where the text to measure begins: see `mmapds.formats.jsonl`."""


def parts_of(
    source: Source, workers: int, step: int, least: int = STEP, *, largest_window: int = LARGEST_WINDOW
) -> Generator[Part, None, None]:
    """Yield the parts of a source, in order.

    Args:
      workers: threads that decode, where that must be done here.
      step: bytes in a part of a plain file.
      least: bytes of content that a part of a compressed source has at least, unless it is the last one.
      largest_window: bytes of content that a decoder of zstd may keep.
    Raises:
      FormatError: the source is damaged.
      EOFError: it became shorter.
    """
    if not source.codec:
        for begin, end in _ranges(source, step):
            load = partial(_read, source.path, begin, end)
            yield Part(begin, end, end - begin, (), end == source.stop, -(-(end - begin) // WINDOW), load)
        return
    found = ahead(_gzip(source)) if source.codec == "gzip" else _zstd(ZstdSource(source, largest_window), workers)
    with closing(found) as items:
        yield from _parts(source, items, least)


def content_of(
    source: Source, workers: int, step: int, least: int = STEP, *, largest_window: int = LARGEST_WINDOW
) -> Generator[tuple[Part, Sequence[Data]], None, None]:
    """Yield the parts of a source with their content, mapped or decoded by threads; see `parts_of`."""
    if not source.codec:
        yield from _mapped(source, step)
        return

    def load(part: Part, _: int) -> tuple[Part, Sequence[Data]]:
        return part, list(part.load(_NO_WINDOW))

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


def _ranges(source: Source, step: int) -> Iterator[tuple[int, int]]:
    for begin in range(source.begin, max(source.stop, 1), step):
        yield begin, min(begin + step, source.stop)


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
    mapped = file if file.is_mapped else None
    for begin, end in _ranges(source, step if mapped else min(step, _READ)):
        try:
            data = memoryview(file)[begin:end] if mapped else file.read(begin, end - begin)
        except OSError as error:
            raise unreadable(source.path, error) from None
        load = partial(_given, (data,))
        yield Part(begin, end, end - begin, (), end == source.stop, 1, load, mapped), (data,)


def _given(pieces: Sequence[Data], _: memoryview) -> Sequence[Data]:
    return pieces


class _Item(NamedTuple):
    """Some content of a compressed source: a block, or a piece of one."""

    begin: int | None
    """Where its block begins in the file, see `BlockStart`; None if that is the block of the item before."""
    point: bytes
    """The access point of the block."""
    size: int
    load: Callable[[], bytes]
    read: int = 0
    """Up to which byte the file was read for it; 0 if the begin of the next block alone says that."""


def _parts(source: Source, items: Iterable[_Item], least: int) -> Iterator[Part]:
    """Make parts of the fewest neighbouring items that have so much content."""
    begin = end = scanned = read = 0
    starts: list[BlockStart] = []
    held: list[_Item] = []
    for item in items:
        start = BlockStart(item.begin, end, item.point) if item.begin is not None and item.size else None
        if end - begin >= least:
            # What a block has in the file counts once the next one begins; that of a large one as it is read.
            now = max(scanned, read) if start is None else byte_of(source.codec, start)
            yield Part(begin, end, now - scanned, tuple(starts), False, len(held), partial(_load, held))
            begin, scanned, starts, held = end, now, [], []
        starts += [start] if start else []
        held.append(item)
        end, read = end + item.size, item.read
    yield Part(begin, end, source.size - scanned, tuple(starts), True, len(held), partial(_load, held))


def _load(items: Sequence[_Item], _: memoryview) -> Iterator[bytes]:
    return (item.load() for item in items)


def _zstd(zstd: ZstdSource, workers: int) -> Generator[_Item, None, None]:
    """Yield blocks; where headers do not say how much content each has, or one is large, they are decoded here."""
    if zstd.is_known:
        for number, block in enumerate(zstd.blocks()):
            yield _Item(block.begin, b"", block.content, partial(_decoded, zstd, number, block))
        return

    def decode(task: tuple[int, FileBlock], _: int) -> tuple[int, FileBlock, bytes | None]:
        number, block = task
        return number, block, None if block.is_large else zstd.decode(number, block)

    workers = max(min(workers, zstd.frames), 1)
    slots = list(range(in_flight(workers)))
    with closing(in_order(decode, enumerate(zstd.blocks()), workers=workers, slots=slots)) as found:
        for number, block, data in found:
            begin: int | None = block.begin
            for piece, read in zstd.pieces(number, block) if data is None else ((data, 0),):
                yield _Item(begin, b"", len(piece), partial(bytes, piece), read)
                begin = None


def _decoded(zstd: ZstdSource, number: int, block: FileBlock) -> bytes:
    data = zstd.decode(number, block)
    assert data is not None  # which block.is_large would say
    return data


def _gzip(source: Source) -> Generator[_Item, None, None]:
    """Yield the content of each block, in pieces."""
    content = GzipContent(open_source(source))
    try:
        for begin, point, data in content.pieces():
            yield _Item(begin, packed_point(*point) if point else b"", len(data), partial(bytes, data))
    except BlockError as error:
        remedy = f"{kept(source.path, content.whole)} (or {COPY})" if content.whole else COPY
        raise not_decoded(source.path, content.block, content.begin // 8, "gzip", error, remedy=remedy) from None
