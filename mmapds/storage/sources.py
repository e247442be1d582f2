"""Which files a user means, and whether they can be sources."""

import glob
import os
import re
import shlex
import stat
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from .. import _native
from ..errors import SourceError

StrPath = str | os.PathLike[str]
# A source is read in place, so a compressed one cannot be: its records have no place.
_COMPRESSED = {
    b"\x1f\x8b": ("gzip", "gzip -dk"),
    b"\x28\xb5\x2f\xfd": ("zstd", "zstd -dk"),
    b"PK\x03\x04": ("zip", "unzip"),
    b"\xfd7zXZ\x00": ("xz", "xz -dk"),
    b"\x04\x22\x4d\x18": ("lz4", "lz4 -dk"),
}
_BZIP2 = (b"BZh", b"1AY&")  # with a digit between them
_FINGERPRINT_BYTES = 65536
INDEX_SUFFIX = ".mmx"
INDEX_MAGIC = b"\x89MMX\r\n\x1a\n"
"""Damaged by any transfer that takes the file for text."""


class Source(NamedTuple):
    """A file to index, as it was when it was first looked at."""

    path: str
    size: int
    mtime_ns: int


def expand(patterns: StrPath | Iterable[StrPath], suffixes: tuple[str, ...]) -> list[str]:
    """Return the files that paths, directories, globs and brace patterns stand for, in order.

    A pattern's matches come sorted by name, a directory's too (not its subdirectories'). Indexes among them are left
    out, as they lie beside what they are of, unless there is nothing else and `suffixes` has theirs. A path that exists
    as it is written is never read as a pattern.

    Raises:
      SourceError: a pattern matches nothing, a directory holds no source, or a file is missing.
    """
    if isinstance(patterns, str | os.PathLike):
        patterns = [patterns]
    return [path for pattern in patterns for path in _expand_one(os.fspath(pattern), suffixes)]


def _expand_one(pattern: str, suffixes: tuple[str, ...]) -> Iterator[str]:
    if os.path.isdir(pattern):
        names = sorted(name for name in os.listdir(pattern) if named(name, suffixes) and not name.startswith("."))
        if not names:
            raise SourceError(f"{pattern}: a directory with no source; expected names ending in {' '.join(suffixes)}")
        yield from (os.path.join(pattern, name) for name in _without_indexes(names, suffixes))
        return
    if os.path.lexists(pattern):
        yield pattern
        return
    for path in _expand_braces(pattern):
        if os.path.lexists(path):
            yield path
        elif glob.has_magic(path):
            matches = _without_indexes(sorted(glob.glob(path, recursive=True)), suffixes)
            if not matches:
                raise SourceError(f"{path}: the pattern matches no file")
            yield from matches
        else:
            raise SourceError(f"{path}: no such file")


def named(path: str, suffixes: tuple[str, ...]) -> bool:
    """Whether a file's name has one of these suffixes, whichever shard it is: `x.tfrecord-00000-of-00010`."""
    return re.sub(r"-\d+-of-\d+$", "", path).endswith(suffixes)


_UNFINISHED = re.compile(r"\.mm[ax]\.[0-9a-f]{8}\.tmp$")
"""What writers that were killed leave behind."""


def _without_indexes(paths: list[str], suffixes: tuple[str, ...]) -> list[str]:
    paths = [path for path in paths if not _UNFINISHED.search(path)]
    others = [path for path in paths if not path.endswith(INDEX_SUFFIX)]
    return others or (paths if INDEX_SUFFIX in suffixes else [])


def _expand_braces(pattern: str) -> Iterable[str]:
    if "{" not in pattern:
        return [pattern]
    from braceexpand import braceexpand

    try:
        expanded: list[str] = list(braceexpand(pattern))
    except ValueError as error:
        raise SourceError(f"{pattern}: no such file, and not a brace pattern: {error}") from None
    return expanded


def inspect(path: str) -> Source:
    """Look at a file before it is indexed.

    Raises:
      SourceError: it is missing, unreadable, not a regular file, or compressed.
    """
    try:
        path.encode()
        found = os.stat(path)
        if not stat.S_ISREG(found.st_mode):
            raise SourceError(f"{path}: {_kind(found.st_mode)}; expected a regular file")
        with open(path, "rb", buffering=0) as file:
            head = file.read(8)
    except UnicodeEncodeError:
        raise SourceError(f"{os.fsencode(path)!r}: the name is not UTF-8, which the index needs; rename it") from None
    except OSError as error:
        raise unreadable(path, error) from None
    if head == INDEX_MAGIC:
        raise SourceError(f"{path}: an index, not a source")
    for magic, (name, command) in _COMPRESSED.items():
        if head.startswith(magic):
            raise _compressed(path, name, command)
    if head.startswith(_BZIP2[0]) and head[4:].startswith(_BZIP2[1]):
        raise _compressed(path, "bzip2", "bzip2 -dk")
    return Source(path, found.st_size, found.st_mtime_ns)


def unreadable(path: str, error: OSError) -> SourceError:
    """Return the error to raise for a source that the system refuses."""
    return SourceError(f"{path}: {reason(error)}")


def reason(error: OSError) -> str:
    """Return what the system says of an error, as part of a sentence."""
    return (error.strerror or str(error)).lower()


def quoted(path: str) -> str:
    """Return a path as one writes it in a shell command."""
    return shlex.quote(f"./{path}" if path.startswith("-") else path)


def build_command(paths: list[str], *options: str) -> str:
    """Return the shell command that indexes `paths`."""
    return " ".join(["python -m mmapds.index", *map(quoted, paths), *options])


def _compressed(path: str, name: str, command: str) -> SourceError:
    return SourceError(
        f"{path}: compressed ({name}); records are read in place, so decompress it first: {command} {quoted(path)}"
    )


def check_unchanged(source: Source) -> None:
    """Raise SourceError if the file is not as it was when it was inspected."""
    try:
        now = os.stat(source.path)
    except OSError as error:
        raise SourceError(f"{source.path}: went away while it was read ({reason(error)})") from None
    if (now.st_size, now.st_mtime_ns) != (source.size, source.mtime_ns):
        raise SourceError(
            f"{source.path}: changed while it was read (was {source.size} bytes, is {now.st_size} now); "
            "run again when nothing writes to it"
        )


def map_source(source: Source) -> _native.Map:
    """Map a source that is to be scanned.

    Raises:
      SourceError: it is unreadable, or has another size than when it was first looked at.
    """
    try:
        view = _native.Map(source.path)
    except OSError as error:
        raise unreadable(source.path, error) from None
    if view.size != source.size:
        raise SourceError(
            f"{source.path}: expected {source.size} bytes, found {view.size} now; run again when nothing writes to it"
        )
    return view


def fingerprint(path: str, size: int) -> str:
    """xxh3-64 of a file's size and of its first and last 64 KiB, in hexadecimal."""
    from xxhash import xxh3_64

    digest = xxh3_64(size.to_bytes(8, "little"))
    try:
        with open(path, "rb", buffering=0) as file:
            digest.update(os.pread(file.fileno(), _FINGERPRINT_BYTES, 0))
            digest.update(os.pread(file.fileno(), _FINGERPRINT_BYTES, max(size - _FINGERPRINT_BYTES, 0)))
    except OSError as error:
        raise unreadable(path, error) from None
    return digest.hexdigest()


def line_number(text: memoryview, offset: int) -> int:
    """Return the line, counted from 1, on which a byte of a source stands."""
    step = 1 << 20  # so that a source of any size takes little memory
    return 1 + sum(bytes(text[at : min(at + step, offset)]).count(b"\n") for at in range(0, offset, step))


def _kind(mode: int) -> str:
    names = [(stat.S_ISDIR, "a directory"), (stat.S_ISFIFO, "a FIFO"), (stat.S_ISSOCK, "a socket")]
    names += [(stat.S_ISCHR, "a character device"), (stat.S_ISBLK, "a block device")]
    return next((name for test, name in names if test(mode)), "a special file")
