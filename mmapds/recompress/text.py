"""The text of a file, plain or compressed, from its beginning to its end."""

import gzip
import zlib
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, BinaryIO

from ..compression.codec import memory_checked, zstd
from ..compression.parts import COPY
from ..compression.zstd_blocks import reason_of
from ..compression.zstd_frames import walk
from ..errors import FormatError, another_name, quoted
from ..storage.files import open_file
from ..storage.sources import Source, check_unchanged, unreadable

_PIECE = 1 << 20  # bytes of text that are read at a time
_LONGEST_HEADER = 512 << 10  # bytes of the header of a member, with its name and comment, that isal reads


def text_of(source: Source, window_log: int) -> Iterator[tuple[bytes, int]]:
    """Yield the text of a file in pieces, each with the bytes of the file that were read for it.

    Args:
      source: plain, or of gzip members, or of zstd frames.
      window_log: the largest window of a frame, as the logarithm to base 2.
    Raises:
      SourceError: the file cannot be read, or changed meanwhile.
      FormatError: it is damaged, or a frame has a larger window.
    """
    damage: tuple[type[Exception], ...] = (EOFError,)
    try:
        with open(source.path, "rb") as file:
            content, errors = _content(file, source, window_log)
            damage, before = (EOFError, *errors), 0
            while text := content.read(_PIECE):
                yield text, file.tell() - before
                before = file.tell()
    except OverflowError:  # isal's: the file is sound
        what = f"expected headers of members of up to {_LONGEST_HEADER} bytes, found a longer one"
        command = f"gzip -dc < {quoted(source.path)} | gzip > {quoted(another_name(source.path))}"
        raise FormatError(f"{source.path}: {what}; run: {command}") from None
    except damage as error:
        said = reason_of(error).partition("\n")[0]
        check_unchanged(source)
        raise FormatError(f"{source.path}: not {source.codec}: {said}; {COPY}") from None
    except OSError as error:
        raise unreadable(source.path, error) from None


def _content(file: BinaryIO, source: Source, window_log: int) -> tuple[Any, tuple[type[Exception], ...]]:
    """Return what reads the text of a file, and the errors of damage that it raises."""
    if source.codec == "zstd":
        walk(open_file(source.path, scan=True), source.path, largest_window=1 << window_log)
        codec = zstd(source.path)
        options = {codec.DecompressionParameter.window_log_max: window_log}
        with memory_checked(codec):
            return codec.ZstdFile(file, options=options), (codec.ZstdError,)
    if not source.codec:
        return file, ()
    reader: Any = gzip.GzipFile
    errors: tuple[Any, ...] = (gzip.BadGzipFile, zlib.error)
    with suppress(ImportError):
        from isal import igzip, isal_zlib  # several times faster

        reader = igzip.IGzipFile
        errors += (isal_zlib.error,)
    return reader(fileobj=file), errors
