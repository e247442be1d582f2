"""A source of zstd that is indexed: its blocks, in the order of the file, and their content."""

from collections.abc import Iterator

from ..storage.files import open_source
from ..storage.sections import LARGEST_BLOCK
from ..storage.sources import Source
from . import zstd_blocks
from .codec import zstd
from .frames import UNKNOWN
from .parts import BlockError, Pieces, not_decoded
from .zstd_blocks import FileBlock
from .zstd_frames import walk


class ZstdSource:
    """A source of zstd.

    Raises:
      FormatError: there is a frame that cannot be read, or something that is not a frame.
      SourceError: it cannot be read, or changed since it was inspected.
    """

    def __init__(self, source: Source) -> None:
        self._path = source.path
        self._codec, self._file = zstd(source.path), open_source(source)
        self._frames = walk(self._file, source.path).with_text()

    @property
    def frames(self) -> int:
        """How many frames have content, or may have some."""
        return len(self._frames.contents)

    @property
    def is_known(self) -> bool:
        """Whether headers say how much content each block has, and none is large."""
        return UNKNOWN not in self._frames.contents and not any(block.is_large for block in self.blocks())

    def blocks(self) -> Iterator[FileBlock]:
        """Yield the blocks."""
        return zstd_blocks.blocks_of(self._frames)

    def decode(self, number: int, block: FileBlock) -> Pieces | None:
        """Return the content of a block; None if it is more than that of a block that is decoded at once may be.

        Raises:
          FormatError: it is damaged.
          EOFError: the source became shorter.
        """
        data = self._file.read(block.begin, block.end - block.begin)
        try:
            return zstd_blocks.decode(self._codec, data, LARGEST_BLOCK)
        except BlockError as error:
            raise not_decoded(self._path, number, block.begin, "zstd", error) from None

    def pieces(self, number: int, block: FileBlock) -> Iterator[bytes]:
        """Yield the content of a block, however large, in pieces; the errors are those of `decode`."""
        stream = zstd_blocks.Stream(self._codec, self._file, block.begin, block.end)
        try:
            while piece := stream.read():
                yield piece
        except BlockError as error:
            raise not_decoded(self._path, number, block.begin, "zstd", error) from None
