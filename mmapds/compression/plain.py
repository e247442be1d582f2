"""The content of a file read from its beginning, compressed or not: for messages, which need a few of its bytes."""

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from ..errors import SourceError
from ..storage import files
from ..storage.sources import Source, codec_of, open_regular, unreadable
from .codec import zstd

_PIECE = 1 << 20  # bytes read at a time


@contextmanager
def opened(path: str, codec: str | None = None) -> Iterator[BinaryIO]:
    """Open a file to read its content from its first byte on.

    Args:
      codec: what it is compressed by, one of `sources.CODECS`; empty if by nothing. None looks.
    Raises:
      SourceError: it is missing, unreadable, or not a regular file.
    """
    try:
        with open_regular(path) as file:
            if codec is None:
                codec = codec_of(file.read(4))
                file.seek(0)
            if codec == "zstd":
                with zstd(path).ZstdFile(file) as content:
                    yield content
            elif codec == "gzip":
                with gzip.GzipFile(fileobj=file) as content:
                    yield content  # type: ignore[misc]
            else:
                yield file
    except OSError as error:
        raise unreadable(path, error) from None


def codec_at(path: str) -> str:
    """Return what a file is compressed by, one of `sources.CODECS`; empty if by none of them.

    Raises:
      SourceError: it is missing or unreadable.
    """
    with opened(path, "") as file:
        return codec_of(file.read(4))


def damage_of(path: str, codec: str) -> tuple[type[Exception], ...]:
    """Return what reading the content of a damaged file raises."""
    found = (SourceError, EOFError, ValueError, zlib.error)
    return (*found, zstd(path).ZstdError) if codec == "zstd" else found


def head_of(path: str, size: int) -> bytes:
    """Return the first bytes of the content of a file; those that can be decoded, and none of a damaged file.

    Raises:
      SourceError: it is missing or unreadable.
    """
    codec = codec_at(path)
    if not codec:
        with opened(path, "") as file:
            return file.read(size)
    try:
        with opened(path, codec) as file:
            return file.read(size)
    except damage_of(path, codec):
        return b""


def line_number(source: Source, offset: int) -> int:
    """Return the line of the content of a source, counted from 1, that holds the byte at `offset`.

    Raises:
      SourceError: the source is unreadable.
    """
    if not source.codec:
        return files.line_number(source.path, offset)
    lines, left = 1, offset
    with opened(source.path, source.codec) as file:
        while left and (piece := file.read(min(left, _PIECE))):
            lines += piece.count(b"\n")
            left -= len(piece)
    return lines
