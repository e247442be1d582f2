"""Opening files to read: mapped or, where that is not wanted or fails, by pread."""

import os
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any, Literal

from .. import _native
from ..errors import Error, SourceError, warn
from .sources import Source, changed, reason, unreadable

Io = Literal["mmap", "pread"]
"""How the bytes of a file are read."""
IoChoice = Io | Mapping[str, Io]
"""For all files, or by shell patterns of absolute paths: the first that matches counts, and others are mapped."""

_warned: list[str] = []  # one warning is enough for a process


def check_io(given: Any) -> None:
    """Raise Error unless this is an `IoChoice`."""
    for value in given.values() if isinstance(given, Mapping) else [given]:
        if value not in ("mmap", "pread"):
            raise Error(f"io = {given!r}, expected 'mmap' or 'pread', or a dict of path pattern to one of them")


def io_of(choice: IoChoice, path: str) -> Io:
    """Return how the file of an absolute path is to be read."""
    if isinstance(choice, str):
        return choice
    return next((io for pattern, io in choice.items() if fnmatchcase(path, pattern)), "mmap")


def open_file(path: str, io: Io = "mmap", *, scan: bool = False) -> _native.Map:
    """Open a regular file. One that cannot be mapped is read by pread, which is slower; the first such file warns.

    Args:
      scan: the file must be a buffer: one that cannot be mapped is read into memory.
    Raises:
      OSError: it cannot be opened, or there is no memory for it.
      ValueError: it is not a regular file.
      EOFError: it became shorter while it was read into memory.
    """
    if io == "pread":
        return _native.Map(path, _native.IO_PREAD)
    try:
        return _native.Map(path)
    except FileNotFoundError:
        raise
    except OSError as error:
        try:
            opened = _native.Map(path, _native.IO_COPY if scan else _native.IO_PREAD)
        except OSError:
            raise error from None
        if not _warned:
            _warned.append(path)
            instead = "reading it into memory" if scan else "reading it by pread, which is slower"
            warn(f"{path}: cannot be mapped ({reason(error)}); {instead}; other files may follow", RuntimeWarning)
        return opened


def open_source(source: Source, *, scan: bool = True) -> _native.Map:
    """Open a source to index it; raise SourceError where it is unreadable, or has another size than when inspected."""
    try:
        opened = open_file(source.path, scan=scan)
    except OSError as error:
        raise unreadable(source.path, error) from None
    except EOFError:
        raise shrank(source) from None
    if opened.size != source.size:
        raise changed(source, opened.size)
    return opened


def shrank(source: Source) -> SourceError:
    """Return the error to raise for a source that became shorter while it was read."""
    try:
        return changed(source, os.path.getsize(source.path))
    except OSError as error:
        return unreadable(source.path, error)
