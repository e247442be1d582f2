"""What decodes the blocks of a source, by the name of its codec."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from .. import _native
from ..storage.blocks import Edges
from . import gzip_blocks, libzstd, zstd_blocks
from .codec import zstd
from .forward import Decoding
from .parts import Pieces


class Decoder(NamedTuple):
    """What decodes blocks."""

    decode: Callable[[bytes, int, Edges], Pieces | None]
    """Takes the bytes of a block, and how much content it may have at most; None if it has more."""
    stream: Callable[[_native.Map, int, int, Edges], Decoding]
    """Takes a file, and where a block begins and ends there."""
    library: _native.Zstd | None = None
    """What decodes a whole block at once, if there is such a thing; where that fails, `decode` says why."""


def decoder_of(codec: str, path: str) -> Decoder:
    """Return what decodes the blocks of a source.

    Args:
      codec: one of `sources.CODECS`.
      path: of the source, for messages.
    """
    if codec == "gzip":
        zlib = gzip_blocks.inflater()
        return Decoder(partial(gzip_blocks.decode, zlib), partial(gzip_blocks.stream, zlib))
    module = zstd(path)
    return Decoder(
        lambda data, most, _: zstd_blocks.decode(module, data, most),
        lambda file, begin, end, _: zstd_blocks.Stream(module, file, begin, end),
        libzstd.library(),
    )
