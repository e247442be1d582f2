"""Which files a user means or an index may name, whether they can be sources, and whether they stay as they are."""

import glob
import os
import re
import stat
from collections.abc import Callable, Iterable
from typing import BinaryIO, NamedTuple

from braceexpand import braceexpand

from ..errors import SourceError, another_name, build_command, either, quoted, shortened, tool

StrPath = str | os.PathLike[str]
CODECS: dict[str, tuple[str, ...]] = {"gzip": (".gz", ".bgz"), "zstd": (".zst",)}
"""What sources may be compressed by, and what their names end in."""
_NAMED_CODECS = {suffix: codec for codec, each in CODECS.items() for suffix in each} | {".tgz": "gzip", ".tzst": "zstd"}
_REFUSED = {rb"PK\x03\x04": "zip", rb"\xfd7zXZ\x00": "xz", rb"\x04\x22\x4d\x18": "lz4", rb"BZh[1-9]1AY&": "bzip2"}
"""Patterns of the first bytes of compressed files that are not read, and what the tool is called."""
CONVERTED: dict[str, tuple[str, ...]] = {
    "parquet": (".parquet", ".pq"),
    "arrow": (".arrow", ".arrows", ".feather", ".ipc"),
    "hdf5": (".h5", ".hdf5", ".hdf", ".he5"),
}
"""What is not read in place, but converted, and what the names of such files end in."""
_HEAD = 32  # bytes that are looked at to tell what a file is
_LFS = b"version https://git-lfs."
INDEX_SUFFIX = ".mmx"
SEEKABLE = ".seekable"
"""What stands before the suffixes of a seekable file whose source is one of zstd, too."""
INDEX_MAGIC = b"\x89MMX\r\n\x1a\n"
"""Damaged by any transfer that takes the file for text."""
_UNFINISHED = re.compile(r"\.mm[ax]\.([0-9a-f]{8}\.tmp|lock)$")
"""Files that writers have while they write, and leave behind when they are killed."""
_NOT_DATA = re.compile(r"^(README|LICENSE|_)|\.(mmx|lock|md|idx|parts)$", re.IGNORECASE)
"""What stands beside data. Engines begin the names of such files with an underscore: `_SUCCESS`."""
_NAMED = 8  # files that a message names
_ROOTS = "MMAPDS_ROOTS"
"""The environment variable with roots for all calls, separated like those of PATH."""
_KINDS = {stat.S_IFDIR: "a directory", stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket"}


class Source(NamedTuple):
    """A file to index, with the size and time it had when it was inspected."""

    path: str
    size: int
    mtime_ns: int
    begin: int = 0
    """Where a scan begins: at a record, unless it is the first byte."""
    end: int | None = None
    """Where a scan ends, also at a record; by default at the end of the file."""

    codec: str = ""
    """What it is compressed by, one of `CODECS`; empty if it is read as it is."""

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
        path.encode()
    except UnicodeEncodeError:
        raise SourceError(f"{os.fsencode(path)!r}: expected a name in UTF-8; rename the file") from None


# ---- files that are given ---------------------------------------------------------------------------------------


def expand(
    patterns: StrPath | Iterable[StrPath], suffixes: tuple[str, ...], report: Callable[[str], object] = lambda _: None
) -> list[str]:
    """Return the files that paths, directories, globs and brace patterns name, in order.

    The matches of a pattern are sorted by name, as are the files of a directory, without its subdirectories. Indexes
    among them are left out, as they stand beside their sources, unless only indexes match and `suffixes` has theirs. So
    is an index whose source is given, too, as the shell's `*` does. A path that exists is never read as a pattern.

    Args:
      suffixes: what the names of files end in that are taken from a directory, whatever their case.
      report: called with a line on what was passed over in a directory.
    Raises:
      SourceError: there are no patterns, a pattern matches no file, a directory holds no source or two forms of one, or
        a file is missing, which may be one that an index there is of.
    """
    paths = [path for pattern in listed(patterns) for path in _expand_one(os.fspath(pattern), suffixes, report)]
    if not paths:
        raise SourceError("sources: expected one source or more, found 0")
    given = set(paths)
    return [path for path in paths if not (path.endswith(INDEX_SUFFIX) and path.removesuffix(INDEX_SUFFIX) in given)]


def listed(given: StrPath | Iterable[StrPath], name: str = "sources") -> list[StrPath]:
    """Return one path, or several, as a list.

    Args:
      name: what to call them in an error.
    Raises:
      SourceError: it is something else.
    """
    if isinstance(given, str | os.PathLike):
        return [given]
    if not isinstance(given, Iterable):
        raise SourceError(f"{name} = {shortened(given)}, expected a path, or a list of paths")
    paths: list[StrPath] = []
    for path in given:
        if not isinstance(path, str | os.PathLike):
            raise SourceError(f"{name}[{len(paths)}] = {shortened(path)}, expected a path")
        paths.append(path)
    return paths


def _expand_one(pattern: str, suffixes: tuple[str, ...], report: Callable[[str], object]) -> list[str]:
    if os.path.isdir(pattern):
        return _files_of(pattern, suffixes, report)
    if "{" not in pattern or _is_there(pattern):
        return _matches(pattern, suffixes)
    try:
        return [path for each in braceexpand(pattern) for path in _matches(each, suffixes)]
    except ValueError as error:
        raise SourceError(f"{pattern}: no such file (and not a brace pattern: {error})") from None


def _matches(pattern: str, suffixes: tuple[str, ...]) -> list[str]:
    if _is_there(pattern):
        return [pattern]
    if not glob.has_magic(pattern):
        way = f"; {way_to_index(pattern)}" if pattern.endswith(INDEX_SUFFIX) else ""
        raise SourceError(f"{pattern}: no such file{way}")
    _check_listed(pattern)
    matches = _without_indexes(sorted(glob.glob(pattern, recursive=True)), suffixes)
    if not matches:
        raise SourceError(f"{pattern}: expected a pattern that matches files, found no match")
    return matches


def _is_there(path: str) -> bool:
    """Whether a path is that of a file, a directory or a link; raise SourceError where nobody may know."""
    try:
        os.lstat(path)
    except PermissionError as error:
        raise unreadable(path, error) from None
    except (OSError, ValueError):
        return False
    return True


def _check_listed(pattern: str) -> None:
    """Raise SourceError if a directory to which a pattern leads cannot be listed: glob passes over it."""
    directory, name = os.path.split(pattern)
    if not name:  # at the root, or the pattern is one of directories
        return
    _check_listed(directory)
    if not glob.has_magic(name):
        return
    within = pattern if name == "**" else directory
    for each in glob.glob(os.path.join(within, ""), recursive=True) if within else ["."]:
        try:
            os.scandir(each).close()
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise unreadable(each.rstrip("/") or "/", error) from None


def _files_of(directory: str, suffixes: tuple[str, ...], report: Callable[[str], object]) -> list[str]:
    """Return the files that are taken from a directory; report what is passed over."""
    try:
        names = sorted(name for name in os.listdir(directory) if not name.startswith("."))
    except OSError as error:
        raise unreadable(directory, error) from None
    sources = [name for name in names if named(name, (*suffixes, INDEX_SUFFIX))]
    taken, known = _without_indexes([os.path.join(directory, name) for name in sources], suffixes), set(sources)
    others = [name for name in names if not (name in known or _NOT_DATA.search(name) or _UNFINISHED.search(name))]
    found = ", ".join(others[:_NAMED]) + (f" and {len(others) - _NAMED} more" if len(others) > _NAMED else "")
    expected = f"names that end in {' '.join(suffixes)}"
    if not taken:
        convertible = tuple(suffix for each in CONVERTED.values() for suffix in each)
        command = f"{tool('convert')} {quoted(directory)} -o {quoted(os.path.join(directory, 'all.mma'))}"
        way = f"; run: {command}" if any(named(name, convertible) for name in others) else ""
        raise SourceError(f"{directory}: expected {expected}, found {found or 'no files'}{way}")
    if twice := _repeated(taken, _content):
        names_of_both = " and ".join(map(os.path.basename, twice))
        raise SourceError(
            f"{directory}: expected one file of each content, found {names_of_both}; give one by its name, or by a glob"
        )
    if others and not taken[0].endswith(INDEX_SUFFIX):  # indexes may have the other files for sources
        report(f"{directory}: passed over {found} (expected {expected}); give them by name, or by a glob")
    return taken


def _without_indexes(paths: list[str], suffixes: tuple[str, ...]) -> list[str]:
    """Return paths without indexes; where there are no others, and `suffixes` has that of indexes, all of them.

    Raises:
      SourceError: the source of an index that is left out is missing: its records would be, without a word.
    """
    paths = [path for path in paths if not _UNFINISHED.search(path)]
    others = [path for path in paths if not path.endswith(INDEX_SUFFIX)]
    if not others:
        return paths if INDEX_SUFFIX in suffixes else []
    for source in sorted({path.removesuffix(INDEX_SUFFIX) for path in paths}.difference(others)):
        if named(os.path.basename(source), suffixes) and not os.path.lexists(source):
            index = quoted(source + INDEX_SUFFIX)
            raise SourceError(f"{source}: no such file; delete {index}, which indexes it, or put the file back")
    return others


def given_twice(paths: list[str]) -> str:
    """Return a warning if a file is among paths twice, by any names, or in two forms of one content; else ""."""
    twice = _repeated(paths, _identity) or _repeated(paths, _content)
    return f"{twice[1]}: its records come twice, as {twice[0]} is given, too; give one of the two" if twice else ""


def _repeated(paths: list[str], key: Callable[[str], object]) -> tuple[str, str] | None:
    """Return the first two paths that have the same key; None if there are none."""
    known: dict[object, str] = {}
    for path in paths:
        each = key(path)
        if each in known:
            return known[each], path
        known[each] = path
    return None


def _content(path: str) -> str:
    """Return what names of files with the same content have in common."""
    plain = without_codec(path)
    return plain.replace(SEEKABLE, "") if plain != path else path


def _identity(path: str) -> object:
    """Return what is the same for all names of a file."""
    try:
        return os.stat(path)[1:3]  # its inode and device
    except OSError:  # which whoever reads it says
        return path


def named(path: str, suffixes: tuple[str, ...]) -> bool:
    """Whether a file's name has one of these suffixes, before the number of a shard: `x.tfrecord-00000-of-00010`.

    Case does not count.
    """
    return re.sub(r"-\d+-of-\d+$", "", without_codec(path)).lower().endswith(suffixes)


# ---- files that an index names -----------------------------------------------------------------------------------
# Nothing has checked its paths before, so the user has the last word. A file is read if it lies, with links resolved,
# below the directory of the index and is not hidden; below a directory that the user gives as a root; or if the user
# named that very file in the same call.


class Roots:
    """What the user allows an index to name outside its own directory.

    Args:
      given: a directory or several, each with all that lies below it; those of the environment are added.
      named: files that the user named, by themselves or by a pattern; indexes among them are not sources.
    """

    def __init__(self, given: StrPath | Iterable[StrPath] = (), named: Iterable[str] = ()) -> None:
        self._working = os.getcwd()
        self._given = [os.fspath(path) for path in listed(given, "roots")]
        self._named = [path for path in named if not path.endswith(INDEX_SUFFIX)]
        self._allowed: tuple[list[str], set[str]] | None = None  # real paths: most indexes have no use for them
        self._used: set[str] = set()

    def admit(self, real: str) -> bool:
        """Whether the user allows a file; its path has no links."""
        if self._allowed is None:
            everywhere = [path for path in os.environ.get(_ROOTS, "").split(os.pathsep) if path]
            self._allowed = [*map(self._real, (*self._given, *everywhere))], {*map(self._real, self._named)}
        directories, files = self._allowed
        roots = [directory for directory in directories if is_below(real, directory)]
        roots += [os.path.dirname(real)] * (real in files)
        self._used.update(roots[:1])
        return bool(roots)

    def lasting(self) -> set[str]:
        """Return the roots that a process needs that opens the same indexes by their own paths, as real paths."""
        return {*map(self._real, self._given), *self._used}

    def _real(self, path: str) -> str:
        return os.path.realpath(os.path.join(self._working, path))


def is_below(path: str, directory: str) -> bool:
    """Whether a file lies in a directory or below; neither path has links."""
    return path.startswith(directory if directory == "/" else f"{directory}/")


def is_inside(path: str, directory: str) -> bool:
    """Whether a file lies in a directory or below, and no name on the way to it begins with a dot."""
    return is_below(path, directory) and "/." not in path[len(directory) - (directory == "/") :]


# ---- a file as a source -----------------------------------------------------------------------------------------


def inspect(path: str) -> Source:
    """Return a file to index, with its size and time.

    Raises:
      SourceError: the file is missing, unreadable, not a regular file, an index, or compressed by none of `CODECS`;
        or it is compressed by nothing though its name says so.
    """
    check_name(path)
    try:
        with open_regular(path) as file:
            found, head = os.fstat(file.fileno()), file.read(_HEAD)
    except OSError as error:
        raise unreadable(path, error) from None
    if head and not found.st_size:  # as files of the kernel, of which no record would be found
        raise SourceError(f"{path}: expected a file with a size, found one of 0 bytes with content; copy it to a disk")
    if head.startswith(INDEX_MAGIC):
        alone = either("-o", "out=...")
        raise SourceError(f"{path}: expected a source, found an index; give the source, or the index without {alone}")
    for magic, tool_name in _REFUSED.items():
        if re.match(magic, head):
            raise compressed(path, tool_name)
    if head.startswith(_LFS):
        raise SourceError(f"{path}: expected data, found what Git LFS keeps in its place; run: git lfs pull")
    codec = codec_of(head)
    expected = _NAMED_CODECS.get(os.path.splitext(path)[1].lower())
    if expected and not codec:
        what = "other bytes" if head else "an empty file"
        raise SourceError(
            f"{path}: expected {expected}, as its name says, found {what}; copy the file again, or rename it if it is "
            "not compressed"
        )
    return Source(path, found.st_size, found.st_mtime_ns, codec=codec)


def open_regular(path: str) -> BinaryIO:
    """Open a file to read it; one that is not a regular file is refused, and a FIFO not waited for.

    Raises:
      SourceError: it is not a regular file.
      OSError: it cannot be opened.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return open(descriptor, "rb")
    os.close(descriptor)
    raise SourceError(f"{path}: expected a regular file, found {kind_of_file(mode)}")


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
    return f"run: {build_command(['SOURCE...'], '-o', quoted(path))} (or put it back)"


def compressed(path: str, codec: str, format_name: str = "") -> SourceError:
    """Return the error to raise for a source whose compression is not read, at all or in a format."""
    plain = another_name(re.sub(r"\.(gz|bgz|zst|xz|lz4|bz2)$", "", path))
    command = f"unzip {quoted(path)}" if codec == "zip" else f"{codec} -dc < {quoted(path)} > {quoted(plain)}"
    why = f", as format {format_name!r} needs" if format_name else ""
    expected = f"expected a file whose records can be read in place{why}"
    return SourceError(f"{path}: compressed ({codec}): {expected}; run: {command}")


def check_unchanged(source: Source) -> None:
    """Raise SourceError if a source's size or time has changed since it was inspected."""
    try:
        now = os.stat(source.path)
    except OSError as error:
        raise unreadable(source.path, error) from None
    if (now.st_size, now.st_mtime_ns) != (source.size, source.mtime_ns):
        raise changed(source, now.st_size)


def changed(source: Source, size: int) -> SourceError:
    """Return the error to raise for a source that changed while it was read, and has `size` bytes now."""
    how = f"expected {source.size} bytes, found {size}" if size != source.size else "same size, another time"
    return SourceError(f"{source.path}: changed while it was read: {how}; run again when nothing writes to it")


def kind_of_file(mode: int) -> str:
    """Return what a file is that is not a regular one."""
    return _KINDS.get(stat.S_IFMT(mode), "a special file")
