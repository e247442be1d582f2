"""The content of a block, whose parts are frames or members one after another; and why it cannot be decoded."""

from collections.abc import Callable

from .. import _native
from ..errors import FormatError, another_name, quoted

SMALLEST = 64 << 10
"""Bytes of content that a block has at least, unless it is the last one."""
COPY = "copy the file again"
"""The remedy for a file that is damaged."""

Pieces = tuple[bytes, ...]
"""The content of a block as it is decoded, in one piece or several."""

Block = tuple[bytes | _native.Block, ...]
"""The content of a block as it is kept."""


class BlockError(Exception):
    """A block cannot be decoded; its message is the reason."""


def content_of_parts(
    unit: str, size: int, most: int, decode: Callable[[int, int], tuple[list[bytes], int | None]]
) -> Pieces | None:
    """Return the content of the parts of a block; None if it is more than `most` bytes.

    Args:
      unit: what a part is called.
      size: bytes that all parts take.
      decode: takes where a part begins, and how much content is wanted at most; returns that in pieces, and where the
        part ends, or None if it goes on.
    Raises:
      BlockError: a part cannot be decoded, or the last one is cut short.
    """
    content: list[bytes] = []
    at, left, parts = 0, most + 1, 0
    while at < size and left:
        pieces, end = decode(at, left)
        content += pieces
        left -= sum(map(len, pieces))
        if end is None and left > 1:  # else what is cut off behind the content has none
            raise BlockError(f"a {unit} is truncated")
        at, parts = size if end is None else end, parts + 1
    if not left:
        return None
    return tuple(content) if parts == 1 else (b"".join(content),)


def not_decoded(
    path: str, block: int, begin: int, codec: str, error: BlockError, remark: str = "", remedy: str = COPY
) -> FormatError:
    """Return the error to raise for a block that cannot be decoded.

    Args:
      begin: the byte of the file where it begins.
    """
    return FormatError(f"{path}: block {block} (byte {begin}): not {codec}: {error}; {remedy}{remark}")


def kept(path: str, end: int) -> str:
    """Return the remedy that keeps a file up to a byte."""
    return f"run: head -c {end} {quoted(path)} > {quoted(another_name(path, infix='.whole'))}"
