"""The content of a compressed source, decoded from its first byte to its last, with the blocks that it is found in."""

from collections.abc import Generator, Iterator
from contextlib import closing
from typing import NamedTuple

from ..storage.blocks import LARGEST_BLOCK, BlockStart
from ..storage.files import open_source
from ..storage.sources import Source
from ..storage.threads import ahead, in_order
from . import gzip_blocks, zstd_blocks
from .codec import zstd
from .parts import SMALLEST, Block, BlockError, not_decoded
from .zstd_blocks import FileBlock
from .zstd_frames import walk

_HELD = 256 << 10  # bytes of content of small members that are yielded at once


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


def content_of(source: Source, workers: int) -> Generator[Content, None, None]:
    """Yield the content of a source, in order, decoded by threads where it has several blocks.

    Raises:
      FormatError: the source is damaged.
      EOFError: it became shorter.
    """
    begin = scanned = 0
    last: Content | None = None
    found = _gzip(source) if source.codec == "gzip" else _zstd(source, workers)
    with closing(ahead(found)) as pieces:
        for block, data in pieces:
            starts = () if block is None or not data else (BlockStart(block, begin),)
            if last is not None:
                # What a block has in the file counts once the next one begins.
                before = 0 if block is None else block - scanned
                scanned += before
                yield last._replace(scanned=before)
            last = Content(data, begin, 0, starts, is_last=False)
            begin += len(data)
    last = last or Content(b"", 0, 0, (), is_last=True)
    yield last._replace(scanned=source.size - scanned, is_last=True)


def _zstd(source: Source, workers: int) -> Iterator[tuple[int | None, bytes]]:
    """Yield where each block begins in the file, and its content; of a large one in pieces, the others with None."""
    codec, file = zstd(source.path), open_source(source)
    frames = walk(file, source.path).with_text()
    blocks = enumerate(zstd_blocks.blocks_of(frames))
    workers = max(min(workers, len(frames.contents)), 1)

    def decode(task: tuple[int, FileBlock], _: int) -> tuple[int, FileBlock, Block | None]:
        number, block = task
        if block.is_large:
            return number, block, None
        try:
            data = file.read(block.begin, block.end - block.begin)
            return number, block, zstd_blocks.decode(codec, data, LARGEST_BLOCK)
        except BlockError as error:
            raise not_decoded(source.path, number, block.begin, "zstd", error) from None

    slots = list(range(workers + 2 if workers > 1 else 1))
    for number, block, data in in_order(decode, blocks, workers=workers, slots=slots):
        if data is not None:
            yield block.begin, b"".join(data)
            continue
        stream = zstd_blocks.Stream(codec, file, block.begin, block.end)
        first: int | None = block.begin
        try:
            while piece := stream.read():
                yield first, piece
                first = None
        except BlockError as error:
            raise not_decoded(source.path, number, block.begin, "zstd", error) from None


def _gzip(source: Source) -> Iterator[tuple[int | None, bytes]]:
    """Yield the content of each block of members, as `_zstd` does; where members begin shows as they are decoded."""
    file = open_source(source)
    stream = gzip_blocks.Stream(gzip_blocks.inflater(), file, 0, source.size)
    number, member, size = -1, -1, SMALLEST
    begin: int | None = None
    held = bytearray()
    try:
        while piece := stream.read():
            if size >= SMALLEST and stream.member != member:
                if held:
                    yield begin, bytes(held)
                number, size, begin, held = number + 1, 0, stream.member, bytearray()
            member = stream.member
            held += piece
            size += len(piece)
            if len(held) >= _HELD:
                yield begin, bytes(held)
                begin, held = None, bytearray()
    except BlockError as error:
        raise not_decoded(source.path, max(number, 0), stream.member, "gzip", error) from None
    if held:
        yield begin, bytes(held)
