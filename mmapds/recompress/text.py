"""The text of a file, plain or compressed, from its beginning to its end."""

import gzip
import os
import stat
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from .. import _native
from ..compression.codec import decompressor, zstd
from ..compression.frames import Frames
from ..compression.zstd_blocks import reason_of
from ..compression.zstd_frames import walk
from ..errors import FormatError, check_memory
from ..storage.files import open_file
from ..storage.hints import another_name, quoted
from ..storage.sources import Source, changed, check_unchanged, inspect, unreadable

_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
_SKIPPABLE = b"\x2a\x4d\x18"  # after a byte of 0x50 to 0x5f
_PIECE = 1 << 20  # bytes of text, or of a file, that are read at a time
_LONGEST_HEADER = 512 << 10  # bytes of the header of a member, with its name and comment, that isal reads


class Piece(NamedTuple):
    """Some of a text."""

    text: bytes
    read: int
    """Bytes of the file that were read since the piece before."""


class Text:
    """A file of text.

    Args:
      path: plain, or of gzip members, or of zstd frames.
      window_log: the largest window of a frame, as the logarithm to base 2.
    Raises:
      SourceError: it is missing, unreadable, not a regular file, or compressed in another way.
      FormatError: it has something that is not a frame, or a frame that cannot be read.
    """

    def __init__(self, path: str, *, window_log: int) -> None:
        self.path = path
        self.source, self.codec = inspected(path)
        self._window_log = window_log
        self._file: _native.Map | None = None
        self._frames: Frames | None = None
        if self.codec == "zstd":
            self._file = mapped(self.source)
            self._frames = walk(self._file, path, largest_window=1 << window_log)

    def pieces(self) -> Iterator[Piece]:
        """Yield the text.

        Raises:
          SourceError: it cannot be read, or became shorter.
          FormatError: it is damaged.
        """
        try:
            yield from {"": self._plain, "gzip": self._gzip, "zstd": self._zstd}[self.codec]()
        except EOFError:
            raise changed(self.source, os.path.getsize(self.path)) from None
        except OSError as error:
            raise unreadable(self.path, error) from None

    def check(self) -> None:
        """Raise SourceError if the file has changed since it was opened."""
        check_unchanged(self.source)

    def _plain(self) -> Iterator[Piece]:
        with open(self.path, "rb", buffering=0) as file:
            while text := file.read(_PIECE):
                yield Piece(text, len(text))

    def _gzip(self) -> Iterator[Piece]:
        opened, errors = _gzip_reader()
        before = 0
        with open(self.path, "rb") as file, opened(fileobj=file) as reader:
            while True:
                try:
                    text = reader.read(_PIECE)
                except OverflowError:  # isal's
                    raise self._header_too_long() from None
                except errors as error:
                    check_memory(error)
                    reason = str(error).partition("\n")[0].lower()
                    raise FormatError(f"{self.path}: not whole gzip members: {reason}; copy the file again") from None
                if not text:
                    return
                yield Piece(text, file.tell() - before)
                before = file.tell()

    def _header_too_long(self) -> FormatError:
        command = f"gzip -dc < {quoted(self.path)} | gzip > {quoted(another_name(self.path))}"
        what = f"expected headers of members of up to {_LONGEST_HEADER} bytes, found a longer one"
        return FormatError(f"{self.path}: {what}; run: {command}")

    def _zstd(self) -> Iterator[Piece]:
        codec = zstd(self.path)
        options = {codec.DecompressionParameter.window_log_max: self._window_log}
        assert self._file is not None
        assert self._frames is not None
        for number, begin in enumerate(self._frames.begins[:-1]):
            at, end = begin, self._frames.begins[number + 1]
            decoder = decompressor(codec, options)
            while not decoder.eof:
                data = self._file.read(at, min(_PIECE, end - at)) if decoder.needs_input else b""
                at += len(data)
                try:
                    text = decoder.decompress(data, _PIECE)
                except codec.ZstdError as error:
                    place = f"{self.path}: frame {number} (byte {begin})"
                    raise FormatError(f"{place}: not zstd: {reason_of(error)}; copy the file again") from None
                yield Piece(text, len(data))


def mapped(source: Source) -> _native.Map:
    """Return a source, mapped.

    Raises:
      SourceError: it cannot be read, or became shorter.
    """
    try:
        return open_file(source.path, scan=True)
    except OSError as error:
        raise unreadable(source.path, error) from None
    except EOFError:
        raise changed(source, os.path.getsize(source.path)) from None


def inspected(path: str) -> tuple[Source, str]:
    """Return a file, and what it is compressed by: "gzip", "zstd" or nothing.

    Raises:
      SourceError: see `Text`.
    """
    try:
        found = os.stat(path)
        if not stat.S_ISREG(found.st_mode):
            return inspect(path), ""  # which refuses it
        with open(path, "rb", buffering=0) as file:
            head = file.read(4)
    except OSError as error:
        raise unreadable(path, error) from None
    is_skippable = head[1:] == _SKIPPABLE and head[0] >> 4 == 5
    codec = "gzip" if head.startswith(_GZIP) else "zstd" if head == _ZSTD or is_skippable else ""
    return (Source(path, found.st_size, found.st_mtime_ns) if codec else inspect(path)), codec


def _gzip_reader() -> tuple[Any, tuple[Any, ...]]:
    """Return what reads gzip: isal, which is several times faster, or else the standard library; and what it raises."""
    errors = (EOFError, gzip.BadGzipFile, zlib.error)
    try:
        from isal import igzip, isal_zlib
    except ImportError:
        return gzip.GzipFile, errors
    return igzip.IGzipFile, (*errors, isal_zlib.error)
