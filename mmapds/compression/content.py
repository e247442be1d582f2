"""The content of a compressed source, decoded from its first byte to its last, with the blocks that it is found in."""

from collections.abc import Generator
from contextlib import closing
from typing import NamedTuple

from ..storage.blocks import BlockStart
from ..storage.files import open_source
from ..storage.sources import Source
from ..storage.threads import in_order
from . import gzip_blocks
from .parts import SMALLEST, BlockError, not_decoded
from .zstd_blocks import FileBlock
from .zstd_source import ZstdSource

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
    found = _gzip(source) if source.codec == "gzip" else _zstd(ZstdSource(source), workers)
    with closing(found) as pieces:
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


def _zstd(zstd: ZstdSource, workers: int) -> Generator[tuple[int | None, bytes], None, None]:
    """Yield where each block begins in the file, and its content; of a large one in pieces, the others with None."""

    def decode(task: tuple[int, FileBlock], _: int) -> tuple[int, FileBlock, bytes | None]:
        number, block = task
        pieces = None if block.is_large else zstd.decode(number, block)
        return number, block, None if pieces is None else b"".join(pieces)

    workers = max(min(workers, zstd.frames), 1)
    slots = list(range(workers + 2 if workers > 1 else 1))
    for number, block, data in in_order(decode, enumerate(zstd.blocks()), workers=workers, slots=slots):
        if data is not None:
            yield block.begin, data
            continue
        first: int | None = block.begin
        for piece in zstd.pieces(number, block):
            yield first, piece
            first = None


def _gzip(source: Source) -> Generator[tuple[int | None, bytes], None, None]:
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
