"""Which files a user means or an index may name, and reading them: mapped or, where that fails, by pread."""

import glob
import os
import re
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from typing import Any, BinaryIO, Literal, NamedTuple

from braceexpand import braceexpand

from .. import _native
from ..errors import Error, SourceError, another_name, build_command, either, quoted, warn

StrPath = str | os.PathLike[str]
Io = Literal["mmap", "pread"]  # how the bytes of a file are read
IoChoice = Io | Mapping[str, Io]
"""For all files, or by shell patterns of absolute paths: the first that matches counts, and others are mapped."""
CODECS: dict[str, tuple[str, ...]] = {"gzip": (".gz", ".bgz"), "zstd": (".zst",)}
"""What sources may be compressed by, and what their names end in."""
_NAMED_CODECS = {suffix: codec for codec, each in CODECS.items() for suffix in each} | {".tgz": "gzip", ".tzst": "zstd"}
_REFUSED = {rb"PK\x03\x04": "zip", rb"\xfd7zXZ\x00": "xz", rb"\x04\x22\x4d\x18": "lz4", rb"BZh[1-9]1AY&": "bzip2"}
"""Patterns of the first bytes of compressed files that are not read, and what the tool is called."""
_LFS = b"version https://git-lfs."
INDEX_SUFFIX = ".mmx"
SEEKABLE = ".seekable"  # stands before the suffixes of a seekable file whose source is one of zstd, too
INDEX_MAGIC = b"\x89MMX\r\n\x1a\n"  # damaged by any transfer that takes the file for text
_UNFINISHED = r"\.mm[ax]\.([0-9a-f]{8}\.tmp|lock)$"
"""Files that writers have while they write, and leave behind when they are killed."""
_NOT_DATA = re.compile(rf"^(README|LICENSE|_)|\.(mmx|lock|md|idx|parts)$|{_UNFINISHED}", re.IGNORECASE)
"""What stands beside data. Engines begin the names of such files with an underscore: `_SUCCESS`."""
_NAMED = 8  # files that a message names
_ROOTS = "MMAPDS_ROOTS"  # the environment variable with roots for all calls, separated like those of PATH
_warned: list[str] = []  # one warning is enough for a process
_KINDS = {stat.S_IFDIR: "a directory", stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket"}


class Source(NamedTuple):
    """A file to index, with the size and time it had when it was inspected."""

    path: str
    size: int
    mtime_ns: int
    begin: int = 0  # where a scan begins: at a record, unless it is the first byte
    end: int | None = None  # where a scan ends, also at a record; by default at the end of the file
    codec: str = ""  # what it is compressed by, one of `CODECS`; empty if it is read as it is

    @property
    def stop(self) -> int:
        """Where a scan ends, as a number."""
        return self.size if self.end is None else self.end


def without_codec(path: str) -> str:
    """Return a file's name without the suffix that says what it is compressed by; case does not count."""
    stem, suffix = os.path.splitext(path)
    if suffix.lower() in (".tgz", ".tzst"):
        return f"{stem}.tar"
    return stem if suffix.lower() in _NAMED_CODECS else path


def codec_of(head: bytes) -> str:
    """Return what a file is compressed by, by its first 4 bytes; empty if by none of `CODECS`."""
    if head.startswith(b"\x1f\x8b"):
        return "gzip"
    is_skippable = len(head) >= 4 and 0x184D2A50 <= int.from_bytes(head[:4], "little") <= 0x184D2A5F
    return "zstd" if is_skippable or head.startswith(b"\x28\xb5\x2f\xfd") else ""


def check_name(path: str) -> None:
    """Raise SourceError for a source whose name is not UTF-8, and cannot be in an index."""
    try:
        os.fsencode(path.encode().decode())
    except UnicodeEncodeError:
        name, found = path.encode(errors="surrogateescape"), sys.getfilesystemencoding()
        way = "" if found == "utf-8" else f", and Python to read names as that, not as {found}; set PYTHONUTF8=1"
        raise SourceError(f"{name!r}: expected a name in UTF-8{way}") from None


# ---- files that are given ---------------------------------------------------------------------------------------


def expand(
    patterns: StrPath | Iterable[StrPath], suffixes: tuple[str, ...], report: Callable[[str], object] = lambda _: None
) -> list[str]:
    """Return the files that paths, directories, globs and brace patterns name: see docs/datasets.md.

    A directory gives files with these suffixes; `report` is called with a line on what was passed over there.
    """
    paths: list[str] = []
    for pattern in [os.fspath(each) for each in listed(patterns)]:
        paths += _files_of(pattern, suffixes, report) if os.path.isdir(pattern) else _matches(pattern, suffixes)
    if not paths:
        raise SourceError("sources: expected one source or more, found 0")
    given = set(paths)
    return [path for path in paths if not (path.endswith(INDEX_SUFFIX) and path.removesuffix(INDEX_SUFFIX) in given)]


def listed(given: StrPath | Iterable[StrPath]) -> list[StrPath]:
    """Return one path, or several, as a list."""
    return [given] if isinstance(given, str | os.PathLike) else list(given)


def _matches(pattern: str, suffixes: tuple[str, ...]) -> list[str]:
    """Return the files that a pattern names, by name; a path that exists is never read as a pattern."""
    patterns, matches = [pattern], list[str]()
    if "{" in pattern and not os.path.lexists(pattern):
        with suppress(ValueError):  # braces that do not match belong to a name
            patterns = list(braceexpand(pattern))
    for each in patterns:
        if os.path.lexists(each):
            matches.append(each)
            continue
        _check_listed(each)
        found = _without_indexes(sorted(glob.glob(each, recursive=True)), suffixes)
        if not found:
            way = f"; {way_to_index(each)}" if each.endswith(INDEX_SUFFIX) else ""
            raise SourceError(f"{each}: no such file{way}")
        matches += found
    return matches


def _check_listed(pattern: str) -> None:
    """Raise SourceError where a pattern leads to a directory that cannot be listed: glob passes over its files."""
    directory, name = os.path.split(pattern)
    if name and glob.has_magic(pattern):
        _check_listed(directory)
        searched = os.path.join(pattern if name == "**" else directory or ".", "")
        for each in glob.glob(searched, recursive=True) if glob.has_magic(name) else ():
            _names_in(os.path.dirname(each))


def _names_in(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError as error:
        raise unreadable(directory, error) from None


def _files_of(directory: str, suffixes: tuple[str, ...], report: Callable[[str], object]) -> list[str]:
    names = sorted(name for name in _names_in(directory) if not name.startswith("."))
    sources = {name for name in names if named(name, (*suffixes, INDEX_SUFFIX))}
    taken = _without_indexes([os.path.join(directory, name) for name in names if name in sources], suffixes)
    others = [name for name in names if not (name in sources or _NOT_DATA.search(name))]
    found = ", ".join(others[:_NAMED]) + (f" and {len(others) - _NAMED} more" if len(others) > _NAMED else "")
    below = (glob.iglob(os.path.join(glob.escape(os.path.join(directory, name)), "*")) for name in others[:_NAMED])
    if endings := [suffix for paths in below for path in paths for suffix in suffixes if named(path, (suffix,))]:
        found += f"; give {quoted(os.path.join(glob.escape(directory), '**', f'*{endings[0]}'))} for those below"
    expected = f"names that end in {' '.join(suffixes)}"
    if not taken:
        raise SourceError(f"{directory}: expected {expected}, found {found or 'no files'}")
    if others and not taken[0].endswith(INDEX_SUFFIX):  # indexes may have the other files for sources
        report(f"{directory}: passed over {found} (expected {expected})")
    return taken


def _without_indexes(paths: list[str], suffixes: tuple[str, ...]) -> list[str]:
    """Return paths without indexes; where there are no others, and `suffixes` has that of indexes, all of them."""
    paths = [path for path in paths if not re.search(_UNFINISHED, path)]
    others = [path for path in paths if not path.endswith(INDEX_SUFFIX)]
    if not others:
        return paths if INDEX_SUFFIX in suffixes else []
    for source in sorted({path.removesuffix(INDEX_SUFFIX) for path in paths}.difference(others)):
        if named(os.path.basename(source), suffixes) and not os.path.lexists(source):
            raise SourceError(f"{source}: no such file; delete {quoted(source + INDEX_SUFFIX)}, which indexes it")
    return others


def given_twice(paths: list[str]) -> str:
    """Return a warning if a file is among paths twice, by any names, or in two forms of one content; else ""."""
    known: dict[object, str] = {}
    for path in paths:
        plain = without_codec(path)
        keys: list[object] = [plain.replace(SEEKABLE, "") if plain != path else path]
        with suppress(OSError):  # whoever opens it says what is wrong
            keys.append(os.stat(path)[1:3])  # its inode and device
        for key in keys:
            if key in known:
                return f"{path}: its records come twice, as {known[key]} is given, too"
        known.update(dict.fromkeys(keys, path))
    return ""


def named(path: str, suffixes: tuple[str, ...]) -> bool:
    """Whether a file's name has one of these suffixes, in any case, before a number: `x.tfrecord-00000-of-00010`."""
    return re.sub(r"-\d+-of-\d+$", "", without_codec(path)).lower().endswith(suffixes)


# ---- files that an index names -----------------------------------------------------------------------------------
# Nothing has checked its paths before, so the user has the last word. A file is read if it lies, with links resolved,
# below the directory of the index and is not hidden; below a directory that the user gives as a root; or if the user
# named that very file in the same call.


class Roots:
    """What the user allows an index to name outside its own directory: all below directories, and named files."""

    def __init__(self, given: StrPath | Iterable[StrPath] = (), named: Iterable[str] = ()) -> None:
        working = os.getcwd()
        self._given = [os.path.join(working, path) for path in listed(given)]
        everywhere = os.environ.get(_ROOTS, "").split(os.pathsep)
        self._everywhere = [os.path.join(working, path) for path in everywhere if path]
        self._named = [os.path.join(working, path) for path in named if not path.endswith(INDEX_SUFFIX)]
        self._allowed: tuple[list[str], set[str]] | None = None  # real paths: most indexes have no use for them
        self._used: set[str] = set()

    def check(self, path: str, index: str, home: str) -> None:
        """Raise SourceError unless a file that an index names may be read; `home` is its real directory."""
        real = os.path.realpath(path)
        if is_inside(real, home):
            return
        if self._allowed is None:
            given, named = (map(os.path.realpath, paths) for paths in (self._given + self._everywhere, self._named))
            self._allowed = list(given), set(named)
        directories, files = self._allowed
        roots = [directory for directory in directories if real.startswith(os.path.join(directory, ""))]
        roots += [os.path.dirname(real)] * (real in files)
        if not roots:
            root = os.path.dirname(real)
            raise SourceError(
                f"{index}: expected files below its own directory that are not hidden, found {real}; "
                f"{either(f'add --root {quoted(root)}', f'open it with roots={[root]}')} (if you trust it)"
            )
        self._used.add(roots[0])

    def lasting(self) -> set[str]:
        """Return the roots that a process needs that opens the same indexes by their own paths, as real paths."""
        return {*map(os.path.realpath, self._given), *self._used}


def is_inside(path: str, directory: str) -> bool:
    """Whether a file lies in a directory or below, and no name on the way there has a dot first; both without links."""
    below = os.path.join(directory, "")
    return path.startswith(below) and "/." not in path[len(below) - 1 :]


# ---- a file as a source -----------------------------------------------------------------------------------------


def inspect(path: str) -> Source:
    """Return a file to index, with its size and time; raise SourceError for what cannot be a source."""
    check_name(path)
    with open_regular(path) as file:
        found, head = os.fstat(file.fileno()), file.read(32)
    if head and not found.st_size:  # as files of the kernel, of which no record would be found
        raise SourceError(f"{path}: expected a file with a size, found one of 0 bytes with content")
    if head.startswith(INDEX_MAGIC):
        raise SourceError(f"{path}: expected a source, found an index")
    for magic, tool_name in _REFUSED.items():
        if re.match(magic, head):
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
    """Open a file to read it; raise SourceError where that fails, and do not wait for a FIFO."""
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
    """Return the error to raise for what is not a regular file."""
    return SourceError(f"{path}: expected a regular file, found {_KINDS.get(stat.S_IFMT(mode), 'a special file')}")


def unreadable(path: str, error: OSError) -> SourceError:
    """Return the error to raise for a source that the system cannot read."""
    return SourceError(f"{path}: {reason(error)}")


def reason(error: OSError) -> str:
    """Return the system's text for an error, as part of a sentence."""
    text = error.strerror or str(error)
    return text[:1].lower() + text[1:]


def index_path(path: str) -> str:
    """Return the path of the index beside a source, or that of an index itself."""
    return path if path.endswith(INDEX_SUFFIX) else path + INDEX_SUFFIX


def way_to_index(path: str) -> str:
    """Return the command that makes a missing index. Only the user knows the sources of one that lies beside none."""
    source = path.removesuffix(INDEX_SUFFIX)
    if os.path.exists(source):
        check_name(source)
        return f"run: {build_command([source])}"
    return f"run: {build_command(['SOURCE...'], '-o', quoted(path))}"


def compressed(path: str, codec: str, format_name: str = "") -> SourceError:
    """Return the error to raise for a source whose compression is not read, at all or in a format."""
    command = f"unzip {quoted(path)}" if codec == "zip" else piped(path, f"{codec} -dc")
    why = f", as format {format_name!r} needs" if format_name else ""
    expected = f"expected a file whose records can be read in place{why}"
    return SourceError(f"{path}: compressed ({codec}): {expected}; run: {command}")


def piped(path: str, command: str, *more: str) -> str:
    """Return a shell command that pipes a file through others into a new file beside it."""
    plain = another_name(re.sub(r"\.(gz|bgz|zst|xz|lz4|bz2)$", "", path))
    return f"{' | '.join([f'{command} < {quoted(path)}', *more])} > {quoted(plain)}"


def check_unchanged(source: Source) -> None:
    """Raise SourceError if a source's size or time has changed since it was inspected."""
    with suppress(OSError):
        now = os.stat(source.path)
        if (now.st_size, now.st_mtime_ns) == (source.size, source.mtime_ns):
            return
    raise changed(source)


def changed(source: Source) -> SourceError:
    """Return the error to raise for a source that changed while it was read."""
    try:
        size = os.path.getsize(source.path)
    except OSError as error:
        return unreadable(source.path, error)
    how = f"expected {source.size} bytes, found {size}" if size != source.size else "same size, another time"
    return SourceError(f"{source.path}: changed while it was read: {how}")


# ---- opening files to read --------------------------------------------------------------------------------------


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
    """Open a source to index it; raise SourceError where it is unreadable, or has another size than when inspected."""
    try:
        opened = open_file(source.path, scan=scan)
    except OSError as error:
        raise unreadable(source.path, error) from None
    except EOFError:
        raise changed(source) from None
    if opened.size != source.size:
        raise changed(source)
    return opened
