"""The content of a compressed source, decoded from its first byte to its last, with the blocks that it is found in."""

from collections.abc import Generator
from contextlib import closing
from typing import NamedTuple

from ..storage.blocks import BlockStart, byte_of, packed_point
from ..storage.files import open_source
from ..storage.sources import Source
from ..storage.threads import ahead, in_order
from .gzip import Found, GzipContent
from .parts import COPY, BlockError, kept, not_decoded
from .zstd import LARGEST_WINDOW, FileBlock, ZstdSource


class Content(NamedTuple):
    """A piece of the content of a source; a source has one or more."""

    data: bytes
    begin: int
    """Where it begins in the content."""
    scanned: int
    """Bytes of the file that it covers; the pieces of a source cover all of it."""
    starts: tuple[BlockStart, ...]
    """The blocks that begin in it."""
    is_last: bool


def content_of(source: Source, workers: int, *, largest_window: int = LARGEST_WINDOW) -> Generator[Content, None, None]:
    """Yield the content of a source, in order, decoded by threads where it has several blocks.

    Args:
      largest_window: bytes of content that a decoder of zstd may keep.
    Raises:
      FormatError: the source is damaged.
      EOFError: it became shorter.
    """
    begin = scanned = 0
    last: Content | None = None
    found = ahead(_gzip(source)) if source.codec == "gzip" else _zstd(ZstdSource(source, largest_window), workers)
    with closing(found) as pieces:
        for block, point, data in pieces:
            start = None
            if block is not None and data:
                start = BlockStart(block, begin, packed_point(*point) if point else b"")
            starts = () if start is None else (start,)
            if last is not None:
                # What a block has in the file counts once the next one begins.
                before = 0 if start is None else byte_of(source.codec, start) - scanned
                scanned += before
                yield last._replace(scanned=before)
            last = Content(data, begin, 0, starts, is_last=False)
            begin += len(data)
    last = last or Content(b"", 0, 0, (), is_last=True)
    yield last._replace(scanned=source.size - scanned, is_last=True)


def _zstd(zstd: ZstdSource, workers: int) -> Generator[Found, None, None]:
    """Yield the content of each block, of a large one in pieces."""

    def decode(task: tuple[int, FileBlock], _: int) -> tuple[int, FileBlock, bytes | None]:
        number, block = task
        return number, block, None if block.is_large else zstd.decode(number, block)

    workers = max(min(workers, zstd.frames), 1)
    slots = list(range(workers + 2 if workers > 1 else 1))
    for number, block, data in in_order(decode, enumerate(zstd.blocks()), workers=workers, slots=slots):
        if data is not None:
            yield Found(block.begin, None, data)
            continue
        first: int | None = block.begin
        for piece in zstd.pieces(number, block):
            yield Found(first, None, piece)
            first = None


def _gzip(source: Source) -> Generator[Found, None, None]:
    """Yield the content of each block, in pieces."""
    content = GzipContent(open_source(source))
    try:
        yield from content.pieces()
    except BlockError as error:
        remedy = f"{kept(source.path, content.whole)} (or {COPY})" if content.whole else COPY
        raise not_decoded(source.path, content.block, content.begin // 8, "gzip", error, remedy=remedy) from None
