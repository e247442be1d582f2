"""Source files: their names, what they are, and how they are read: mapped or, if that fails, by pread."""

import mmap
import os
import re
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from typing import Any, BinaryIO, Literal, NamedTuple

from .. import _native
from ..errors import Error, SourceError, another_name, build_command, quoted, warn

StrPath = str | os.PathLike[str]
Io = Literal["mmap", "pread"]  # how the bytes of a file are read
IoChoice = Io | Mapping[str, Io]
"""For all files, or by shell patterns of absolute paths: the first match counts; other files are mapped."""
CODECS: dict[str, tuple[str, ...]] = {"gzip": (".gz", ".bgz"), "zstd": (".zst", ".zstd"), "parquet": ()}
"""Codecs of sources, and the suffixes of their names; the content of Parquet is its rows as an array file has them."""
_NAMED_CODECS = {suffix: codec for codec, each in CODECS.items() for suffix in each} | {".tgz": "gzip", ".tzst": "zstd"}
_REFUSED = {rb"PK\x03\x04": "zip", rb"\xfd7zXZ\x00": "xz", rb"\x04\x22\x4d\x18": "lz4", rb"BZh[1-9]1AY&": "bzip2"}
"""Patterns of the first bytes of compressed files that cannot be read, and the names of the tools."""
_ZIPS = (".npz", ".pt", ".pth")  # files of arrays, which can be converted
_LFS = b"version https://git-lfs."
INDEX_SUFFIX = ".mmx"
SEEKABLE = ".seekable"  # before the suffixes of a seekable file whose source is zstd too
INDEX_MAGIC = b"\x89MMX\r\n\x1a\n"  # a transfer in text mode would damage these bytes
UNFINISHED = r"\.mm[ax]\.([0-9a-f]{8}\.tmp|lock)$"
"""Temporary files of writers, which stay behind if the writer is killed."""
_warned: list[str] = []  # at most one warning a process
_KINDS = {stat.S_IFDIR: "a directory", stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket"}


class Source(NamedTuple):
    """A file to index, with the size and time it had when it was inspected."""

    path: str
    size: int
    mtime_ns: int
    begin: int = 0  # where a scan begins: the first byte, or a record
    end: int | None = None  # where a scan ends: a record, or by default the end of the file
    codec: str = ""  # one of `CODECS`; empty if not compressed
    etag: str = ""  # of an object, whose path is its URL
    fingerprint: str = ""  # as in an index; empty if unknown, as is the hash
    xxh3_128: str = ""

    @property
    def stop(self) -> int:
        """Where a scan ends, as a number."""
        return self.size if self.end is None else self.end


def without_codec(path: str) -> str:
    """Return a file's name without the suffix of a codec, in any case."""
    stem, suffix = os.path.splitext(path)
    if suffix.lower() in (".tgz", ".tzst"):
        return f"{stem}.tar"
    return stem if suffix.lower() in _NAMED_CODECS else path


def codec_of(head: bytes) -> str:
    """Return the codec of a file by its first 4 bytes; empty if it is not one of `CODECS`."""
    if head.startswith(b"\x1f\x8b"):
        return "gzip"
    if head.startswith((b"PAR1", b"PARE")):  # the latter with an encrypted footer
        return "parquet"
    is_skippable = len(head) >= 4 and 0x184D2A50 <= int.from_bytes(head[:4], "little") <= 0x184D2A5F
    return "zstd" if is_skippable or head.startswith(b"\x28\xb5\x2f\xfd") else ""


def check_name(path: str) -> None:
    """Raise SourceError for a name that is not UTF-8: an index cannot store it."""
    try:
        os.fsencode(path.encode().decode())
    except UnicodeEncodeError:
        name, found = path.encode(errors="surrogateescape"), sys.getfilesystemencoding()
        way = "" if found == "utf-8" else f", found {found} as Python's encoding of names; set PYTHONUTF8=1"
        raise SourceError(f"{name!r}: expected a name in UTF-8{way}") from None


# ---- names -----------------------------------------------------------------------------------------------------------


def listed(given: StrPath | Iterable[StrPath]) -> list[StrPath]:
    """Return one path or several paths as a list."""
    return [given] if isinstance(given, str | os.PathLike) else list(given)


def given_twice(paths: list[str]) -> str:
    """Return a warning if a file is given twice, under any names, or compressed and plain; otherwise ""."""
    known: dict[object, str] = {}
    for path in paths:
        plain = without_codec(path)
        keys: list[object] = [plain.replace(SEEKABLE, "") if plain != path else path]
        with suppress(OSError):  # opening it reports what is wrong
            keys.append(os.stat(path)[1:3])  # its inode and device
        for key in keys:
            if key in known:
                return f"{path}: its records come twice, as {known[key]} is also given"
        known.update(dict.fromkeys(keys, path))
    return ""


def named(path: str, suffixes: tuple[str, ...]) -> bool:
    """Whether a file's name has one of these suffixes, in any case, before a number: `x.tfrecord-00000-of-00010`."""
    return re.sub(r"-\d+-of-\d+$", "", without_codec(path)).lower().endswith(suffixes)


# ---- a file as a source ------------------------------------------------------------------------------------------


def inspect(path: str) -> Source:
    """Return a file to index, with its size and time; raise SourceError if it cannot be a source."""
    check_name(path)
    with open_regular(path) as file:
        found, head = os.fstat(file.fileno()), file.read(32)
    if head and not found.st_size:  # such as files of /proc, in which a scan finds no record
        raise SourceError(f"{path}: expected a file with a size, found one of 0 bytes with content")
    if head.startswith(INDEX_MAGIC):
        raise SourceError(f"{path}: expected a source, found an index")
    for magic, tool_name in _REFUSED.items():
        if re.match(magic, head) and not path.lower().endswith(_ZIPS):
            raise compressed(path, tool_name)
    if head.startswith(_LFS):
        raise SourceError(f"{path}: expected data, found what Git LFS keeps in its place; run: git lfs pull")
    codec = codec_of(head)
    expected = _NAMED_CODECS.get(os.path.splitext(path)[1].lower())
    if expected and not codec:
        raise SourceError(f"{path}: expected {expected}, as its name says, found {'other' if head else 'no'} bytes")
    return Source(path, found.st_size, found.st_mtime_ns, codec=codec)


@contextmanager
def open_regular(path: str) -> Iterator[BinaryIO]:
    """Open a regular file to read it, without waiting for a FIFO; raise SourceError if that fails."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            os.close(descriptor)
            raise not_regular(path, mode)
        with open(descriptor, "rb") as file:
            yield file
    except OSError as error:
        raise unreadable(path, error) from None


def not_regular(path: str, mode: int) -> SourceError:
    """Return the error for a path that is not a regular file."""
    return SourceError(f"{path}: expected a regular file, found {_KINDS.get(stat.S_IFMT(mode), 'a special file')}")


def unreadable(path: str, error: OSError) -> SourceError:
    """Return the error for a source that the system cannot read."""
    return SourceError(f"{path}: {reason(error)}")


def reason(error: OSError) -> str:
    """Return the system's text for an error, to be part of a sentence."""
    text = error.strerror or str(error)
    return text[:1].lower() + text[1:]


def index_path(path: str) -> str:
    """Return the path of the index beside a source, or that of an index itself."""
    return path if path.endswith(INDEX_SUFFIX) else path + INDEX_SUFFIX


def way_to_index(path: str) -> str:
    """Return the command that makes a missing index. Without a source beside it, the user must fill in the sources."""
    source = path.removesuffix(INDEX_SUFFIX)
    if os.path.exists(source):
        check_name(source)
        return f"run: {build_command([source])}"
    return f"run: {build_command(['SOURCE...'], '-o', quoted(path))}"


def compressed(path: str, codec: str, format_name: str = "") -> SourceError:
    """Return the error for a source whose compression cannot be read, in general or in a format."""
    command = f"unzip {quoted(path)}" if codec == "zip" else piped(path, f"{codec} -dc")
    why = f", as format {format_name!r} needs" if format_name else ""
    expected = f"expected a file whose records can be read in place{why}"
    return SourceError(f"{path}: compressed ({codec}): {expected}; run: {command}")


def piped(path: str, command: str, *more: str) -> str:
    """Return a shell command that pipes a file through commands into a new file beside it."""
    plain = another_name(re.sub(r"\.(gz|bgz|zstd?|xz|lz4|bz2)$", "", path))
    return f"{' | '.join([f'{command} < {quoted(path)}', *more])} > {quoted(plain)}"


def check_unchanged(source: Source) -> None:
    """Raise SourceError if the size or time of a file changed since `inspect`."""
    with suppress(OSError):
        now = os.stat(source.path)
        if (now.st_size, now.st_mtime_ns) == (source.size, source.mtime_ns):
            return
    raise changed(source)


def changed(source: Source) -> SourceError:
    """Return the error for a source that changed while it was read."""
    try:
        size = os.path.getsize(source.path)
    except OSError as error:
        return unreadable(source.path, error)
    how = f"expected {source.size} bytes, found {size}" if size != source.size else "same size, another time"
    return SourceError(f"{source.path}: changed while it was read: {how}")


# ---- opening files to read ---------------------------------------------------------------------------------------


def check_io(given: Any) -> None:
    """Raise Error unless this is an `IoChoice`."""
    for value in given.values() if isinstance(given, Mapping) else [given]:
        if value not in ("mmap", "pread"):
            raise Error(f"io = {given!r}, expected 'mmap' or 'pread', or a dict of path pattern to one of them")


def io_of(choice: IoChoice, path: str) -> Io:
    """Return how to read the file at an absolute path."""
    if isinstance(choice, str):
        return choice
    return next((io for pattern, io in choice.items() if fnmatchcase(path, pattern)), "mmap")


def room_of(size: int) -> memoryview:
    """Return memory to read a file into; only pages that are written take memory.

    It begins with a page, as the file's pages do: some processors copy five times as slow to 16 bytes beyond one.
    """
    return memoryview(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))


def open_file(path: str, io: Io = "mmap", *, scan: bool = False) -> _native.Map:
    """Open a regular file. One that cannot be mapped is read by pread, which is slower; the first such file warns.

    With `scan`, the file is a buffer: one that cannot be mapped is read into memory.
    """
    try:
        return _native.Map(path, _native.IO_PREAD if io == "pread" else _native.IO_MAP)
    except ValueError:
        raise not_regular(path, os.stat(path).st_mode) from None
    except OSError as error:
        if io == "pread" or isinstance(error, FileNotFoundError):
            raise
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
    """Open a source to index it; raise SourceError if it is unreadable, or its size changed since `inspect`."""
    try:
        opened = open_file(source.path, scan=scan)
    except OSError as error:
        raise unreadable(source.path, error) from None
    except EOFError:
        raise changed(source) from None
    if opened.size != source.size:
        raise changed(source)
    return opened
