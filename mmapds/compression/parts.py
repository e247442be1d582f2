"""Blocks, of frames or members: how small they are, and why they cannot be decoded."""

from ..errors import FormatError, another_name, quoted

SMALLEST = 64 << 10
"""Bytes of content that a block has at least, unless it is the last one."""
COPY = "copy the file again"
"""The remedy for a file that is damaged."""


class BlockError(Exception):
    """A block cannot be decoded; its message is the reason."""


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
