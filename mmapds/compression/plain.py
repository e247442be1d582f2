"""The content of a file read from its beginning, compressed or not: for messages, which need a few of its bytes."""

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO

from ..errors import SourceError, check_memory
from ..storage.sources import Source, codec_of, open_regular, unreadable
from . import zstd
from .parts import COPY

_PIECE = 4 << 20  # bytes read at a time


@contextmanager
def opened(path: str, codec: str | None = None) -> Iterator[BinaryIO]:
    """Open a file to read its content from its first byte on.

    Args:
      codec: what it is compressed by, one of `sources.CODECS`; empty if by nothing. None looks.
    Raises:
      SourceError: it is missing, unreadable, or not a regular file; or what is read of it is damaged.
    """
    try:
        with open_regular(path) as file:
            if codec is None:
                codec = codec_of(file.read(4))
                file.seek(0)
            if codec == "zstd":
                module = zstd.codec(path)
                with _reporting_damage(path, codec, module.ZstdError), module.ZstdFile(file) as content:
                    yield content
            elif codec == "gzip":
                errors = zlib.error, gzip.BadGzipFile
                with _reporting_damage(path, codec, *errors), gzip.GzipFile(fileobj=file) as content:
                    yield content  # type: ignore[misc]
            else:
                yield file
    except OSError as error:
        raise unreadable(path, error) from None


@contextmanager
def _reporting_damage(path: str, codec: str, *errors: type[Exception]) -> Iterator[None]:
    """Raise SourceError for what a codec raises of a damaged file, which is one of `errors` or an early end."""
    damage: tuple[type[Exception], ...] = (EOFError, *errors)
    try:
        yield
    except damage as error:
        check_memory(error)
        raise SourceError(f"{path}: not {codec}: {error}; {COPY}") from None


def codec_at(path: str) -> str:
    """Return what a file is compressed by, one of `sources.CODECS`; empty if by none of them.

    Raises:
      SourceError: it is missing or unreadable.
    """
    with opened(path, "") as file:
        return codec_of(file.read(4))


def head_of(path: str, size: int) -> bytes:
    """Return the first bytes of the content of a file; those that can be decoded, and none of a damaged file.

    Raises:
      SourceError: it is missing or unreadable.
    """
    if not (codec := codec_at(path)):
        with opened(path, "") as file:
            return file.read(size)
    with suppress(SourceError), opened(path, codec) as file:
        return file.read(size)
    return b""


def line_number(source: Source, offset: int) -> int:
    """Return the line of the content of a source, counted from 1, that holds the byte at `offset`.

    Raises:
      SourceError: the source is unreadable, or damaged before that byte.
    """
    lines, left = 1, offset
    with opened(source.path, source.codec) as file:
        while left and (piece := file.read(min(left, _PIECE))):
            lines += piece.count(b"\n")
            left -= len(piece)
    return lines
