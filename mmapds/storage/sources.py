"""Which files a user means, whether they can be sources, and whether they stay as they are."""

import errno
import glob
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import BinaryIO, NamedTuple

from braceexpand import braceexpand

from ..errors import SourceError, counted, either, shortened
from .hints import another_name, build_command, quoted, tool

StrPath = str | os.PathLike[str]
CODECS: dict[str, tuple[str, ...]] = {"gzip": (".gz", ".bgz"), "zstd": (".zst",)}
"""What sources may be compressed by, and what their names end in."""
_OF_TARS = {".tgz": "gzip", ".tzst": "zstd"}  # short for .tar and the suffix of a codec
# What others are compressed by: a record has no bytes of its own in such a file, and cannot be found there.
_COMPRESSED = [
    (rb"PK\x03\x04", "zip", "unzip", ""),
    (rb"\xfd7zXZ\x00", "xz", "xz -dk", ".xz"),
    (rb"\x04\x22\x4d\x18", "lz4", "lz4 -dkm", ".lz4"),  # without -m it writes to stdout, unless that is a terminal
    (rb"BZh.1AY&", "bzip2", "bzip2 -dk", ".bz2"),
]
CONVERTED: dict[str, tuple[str, ...]] = {
    "parquet": (".parquet", ".pq"),
    "arrow": (".arrow", ".arrows", ".feather", ".ipc"),
    "hdf5": (".h5", ".hdf5", ".hdf", ".he5"),
}
"""What is not read in place, but converted, and what the names of such files end in."""
_IN_PLACE = "expected a file whose records can be read in place"
_HEAD = 32  # bytes that are looked at to tell what a file is
_LFS = b"version https://git-lfs."
INDEX_SUFFIX = ".mmx"
SEEKABLE = ".seekable"
"""What stands before the suffixes of a seekable file whose source is one of zstd, too."""
INDEX_MAGIC = b"\x89MMX\r\n\x1a\n"
"""Damaged by any transfer that takes the file for text."""
_UNFINISHED = re.compile(r"\.mm[ax]\.([0-9a-f]{8}\.tmp(\.[0-9a-f]{8})?|lock)$")
"""The files that writers have while they write, and leave behind when they are killed."""
_NOT_DATA = re.compile(r"^(README|LICENSE|_)|\.(mmx|lock|md)$", re.IGNORECASE)
"""What stands beside data. Engines begin the names of such files with an underscore: `_SUCCESS`."""
_NAMED = 8  # files that a message names


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
    for suffixes in CODECS.values():
        for suffix in suffixes:
            if path.lower().endswith(suffix):
                return path[: -len(suffix)]
    return re.sub(r"\.(tgz|tzst)$", ".tar", path, flags=re.IGNORECASE)


def named_codec(path: str) -> str:
    """Return what a file is compressed by, as its name says; empty if that says nothing. Case does not count."""
    suffixes = {suffix: codec for codec, each in CODECS.items() for suffix in each} | _OF_TARS
    return next((codec for suffix, codec in suffixes.items() if path.lower().endswith(suffix)), "")


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
    patterns: StrPath | Iterable[StrPath],
    suffixes: tuple[str, ...],
    *,
    indexed: bool = True,
    report: Callable[[str], object] = lambda _: None,
) -> list[str]:
    """Return the files that paths, directories, globs and brace patterns name, in order.

    The matches of a pattern are sorted by name, as are the files of a directory, without its subdirectories. Of files
    there that have the same content, by their names, one is taken: the plain one, the one that `mmapds.seekable` made,
    or that of zstd before that of gzip.
    Indexes among them are left out, as they stand beside their sources, unless only indexes match and `suffixes` has
    theirs. So is an index whose source is given, too, as the shell's `*` does. A path that exists is never read as a
    pattern.

    Args:
      suffixes: what the names of files end in that are taken from a directory, whatever their case.
      indexed: take files of other names from there, too, if an index of their own stands beside them.
      report: called with a line on what was passed over in a directory, files or subdirectories that may have some.
    Raises:
      SourceError: there are no patterns, a pattern matches no file, a directory holds no source, or a file is missing,
        which may be one that an index there is of.
    """
    given = [os.fspath(pattern) for pattern in listed(patterns)]
    paths = [path for pattern in given for path in _expand_one(pattern, suffixes, indexed, report)]
    if not paths:
        raise SourceError("sources: expected one source or more, found 0")
    named_ones = set(paths)
    return [path for path in paths if not (path.endswith(INDEX_SUFFIX) and path[: -len(INDEX_SUFFIX)] in named_ones)]


def listed(given: StrPath | Iterable[StrPath], name: str = "sources") -> list[StrPath]:
    """Return one path, or several, as a list.

    Args:
      name: what to call them in an error.
    Raises:
      SourceError: it is something else, or a dataset, which is not to be read record by record for this.
    """
    if isinstance(given, str | os.PathLike):
        return [given]
    if hasattr(given, "indexes"):
        raise SourceError(
            f"{name}: expected paths, found a dataset; give ds.sources, or of a view the file of ds.save('VIEW.mmx')"
        )
    # A dict and an open file can be iterated over, but not as paths.
    is_no_list = isinstance(given, bytes | Mapping) or hasattr(given, "read")
    if is_no_list or not isinstance(given, Iterable):
        raise SourceError(f"{name} = {shortened(given)}, expected a path, or a list of paths")
    paths = list(given)
    for k, path in enumerate(paths):
        if not isinstance(path, str | os.PathLike):
            raise SourceError(f"{name}[{k}] = {path!r}, expected a path")
    return paths


def _expand_one(
    pattern: str, suffixes: tuple[str, ...], indexed: bool, report: Callable[[str], object]
) -> Iterator[str]:
    if os.path.isdir(pattern):
        try:
            found = list(_files_of(pattern, suffixes, indexed, report))
        except OSError as error:  # it cannot be listed, or what its links lead to cannot be looked at
            raise unreadable(pattern, error) from None
        yield from found
        return
    if _is_there(pattern):
        yield pattern
        return
    for path in _expand_braces(pattern):
        if _is_there(path):
            yield path
        elif glob.has_magic(path):
            _check_listed(path)
            there = sorted(glob.glob(path, recursive=True))
            matches = _without_indexes(there, suffixes)
            if not matches:
                raise SourceError(f"{path}: expected a pattern that matches files, found no match")
            if indexed:
                _check_left_out(there, matches, suffixes)
            yield from matches
        else:
            way = f"; {way_to_index(path, '')}" if path.endswith(INDEX_SUFFIX) else ""
            raise SourceError(f"{path}: no such file{way}")


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


def _is_there(path: str) -> bool:
    """Whether a path is that of a file, a directory or a link.

    Raises:
      SourceError: nobody may know, as a directory of the path cannot be searched.
    """
    try:
        os.lstat(path)
    except PermissionError as error:
        raise unreadable(path, error) from None
    except (OSError, ValueError):
        return False
    return True


def _files_of(
    directory: str, suffixes: tuple[str, ...], indexed: bool, report: Callable[[str], object]
) -> Iterator[str]:
    """Yield the files that are taken from a directory; report the others."""
    with os.scandir(directory) as entries:
        there = {entry.name: entry for entry in entries if not entry.name.startswith(".")}
    names = {name for name in there if named(name, suffixes) or (indexed and name + INDEX_SUFFIX in there)}
    taken = _without_indexes(sorted(_one_of_each_content(names)), suffixes)
    if not taken:
        raise _nothing_to_take(directory, sorted(there), suffixes)
    if not all(name.endswith(INDEX_SUFFIX) for name in taken):  # indexes may have the other files for sources
        others = sorted(name for name in there.keys() - names if _may_be_data(name, there) and _is(there[name].is_file))
        if others:
            report(_passed_over(directory, others, suffixes))
        below = sorted(
            name for name, entry in there.items() if _is(entry.is_dir) and _has_sources(entry.path, suffixes)
        )
        if below:
            pattern = quoted(os.path.join(directory, "**", "*.jsonl"))
            report(
                f"{directory}: passed over what lies below it in {_some(below)}; give it by a glob, such as {pattern}"
            )
    paths = [os.path.join(directory, name) for name in taken]
    if indexed:
        _check_left_out([os.path.join(directory, name) for name in sorted(there)], paths, suffixes)
    yield from paths


def _is(asked: Callable[[], bool]) -> bool:
    """Return what an entry of a directory says of itself; False for one that cannot be read, as a circle of links."""
    try:
        return asked()
    except OSError:
        return False


def _nothing_to_take(directory: str, names: Sequence[str], suffixes: tuple[str, ...]) -> SourceError:
    """Return the error for a directory without sources; where files there can be converted, it says how."""
    expected = f"{directory}: expected files whose names end in {_listed_suffixes(suffixes)}, found"
    for kind, ends in CONVERTED.items():
        if count := sum(named(name, ends) for name in names):
            out = quoted(os.path.join(directory, "all.mma"))
            return SourceError(
                f"{expected} {counted(count, 'file')} of {kind}, which are not read in place; run: {tool('convert')} "
                f"{quoted(directory)} -o {out} --format {kind}"
            )
    return SourceError(f"{expected} none")


def _one_of_each_content(names: Iterable[str]) -> Iterable[str]:
    """Return the names of which no other one has the same content, and the best of those that others share."""
    best: dict[str, str] = {}
    for name in names:
        content = _content_of(name)
        if content not in best or _rank(name) < _rank(best[content]):
            best[content] = name
    return best.values()


def given_twice(paths: Iterable[str], remark: str = "") -> str:
    """Return a warning if a file is among paths twice, by any names, or in two forms of one content; else "".

    Args:
      remark: what else to do, as the end of the warning.
    """
    directories: dict[str, str] = {}
    known: dict[str, str] = {}
    again = []
    for path in paths:
        content = _content_of(_real(path, directories))
        if content in known:
            again.append((path, known[content]))
        else:
            known[content] = path
    if not again:
        return ""
    path, first = again[0]
    more = f" (and {counted(len(again) - 1, 'more such source')})" if len(again) > 1 else ""
    return f"{path}: its records come twice{more}, as {first} is given, too; give one of the two{remark}"


def _real(path: str, directories: dict[str, str]) -> str:
    """Return a path without links; those of directories are followed once."""
    directory, name = os.path.split(path)
    if name in ("", "..") or os.path.islink(path):
        return os.path.realpath(path)
    if directory not in directories:
        directories[directory] = os.path.realpath(directory)
    return os.path.join(directories[directory], name)


def _content_of(name: str) -> str:
    """Return what names of files with the same content have in common."""
    plain = without_codec(name)
    return plain.replace(SEEKABLE, "") if plain != name else name


def _rank(name: str) -> tuple[bool, bool, bool, str]:
    """Return what sorts names of the same content, the best one first."""
    return without_codec(name) != name, SEEKABLE not in name, not name.lower().endswith(".zst"), name


def _has_sources(directory: str, suffixes: tuple[str, ...]) -> bool:
    """Whether a directory has files that would be taken from it."""
    if directory.endswith(".parts"):  # of a file that is being written
        return False
    sources = tuple(suffix for suffix in suffixes if suffix != INDEX_SUFFIX)
    try:
        return any(named(name, sources) for name in os.listdir(directory) if not name.startswith("."))
    except OSError:
        return False


def _check_left_out(found: Sequence[str], taken: Sequence[str], suffixes: tuple[str, ...]) -> None:
    """Raise SourceError where an index is left out whose source is missing: its records would be, without a word.

    That is `X.mmx` where X has the name of a source. A source that was compressed or decompressed has another name.
    """
    if taken[0].endswith(INDEX_SUFFIX):  # indexes alone, which are all taken
        return
    for path in found:
        source = path.removesuffix(INDEX_SUFFIX)
        if source == path or not named(os.path.basename(source), suffixes):
            continue
        forms = [source, without_codec(source), *(source + suffix for each in CODECS.values() for suffix in each)]
        if not any(map(os.path.lexists, forms)):
            raise SourceError(f"{source}: no such file; delete {quoted(path)}, which indexes it, or put the file back")


def _may_be_data(name: str, there: Iterable[str]) -> bool:
    """Whether a file of a directory may be one to read, as far as its name says."""
    is_part = name.endswith(".idx") and f"{name.removesuffix('.idx')}.bin" in there
    return not (is_part or _NOT_DATA.search(name) or _UNFINISHED.search(name))


def _passed_over(directory: str, names: list[str], suffixes: tuple[str, ...]) -> str:
    return (
        f"{directory}: passed over {counted(len(names), 'file')} (expected names that end in "
        f"{_listed_suffixes(suffixes)}): {_some(names)}; give them by name, or by a glob"
    )


def _some(names: list[str]) -> str:
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else "")


def _listed_suffixes(suffixes: tuple[str, ...]) -> str:
    """Return suffixes as messages list them; those of codecs follow those read in place, or stand among them."""
    if suffixes == (INDEX_SUFFIX,):
        return INDEX_SUFFIX
    codecs = [suffix for each in CODECS.values() for suffix in each]
    is_of_one = set(codecs) <= set(suffixes) or suffixes in CONVERTED.values()
    behind = "" if is_of_one else f" (or {' '.join(codecs)} behind these)"
    return f"{' '.join(suffixes)}{behind}"


def named(path: str, suffixes: tuple[str, ...]) -> bool:
    """Whether a file's name has one of these suffixes, before the number of a shard: `x.tfrecord-00000-of-00010`.

    Case does not count.
    """
    return re.sub(r"-\d+-of-\d+$", "", without_codec(path)).lower().endswith(suffixes)


def _without_indexes(paths: list[str], suffixes: tuple[str, ...]) -> list[str]:
    paths = [path for path in paths if not _UNFINISHED.search(path)]
    others = [path for path in paths if not path.endswith(INDEX_SUFFIX)]
    return others or (paths if INDEX_SUFFIX in suffixes else [])


def _expand_braces(pattern: str) -> Iterable[str]:
    if "{" not in pattern:
        return [pattern]
    try:
        expanded: list[str] = list(braceexpand(pattern))
    except ValueError as error:
        raise SourceError(f"{pattern}: no such file (and not a brace pattern: {error})") from None
    return expanded


# ---- a file as a source -----------------------------------------------------------------------------------------


def inspect(path: str) -> Source:
    """Return a file to index, with its size and time.

    Raises:
      SourceError: the file is missing, unreadable, not a regular file, an index, or compressed by none of `CODECS`;
        or it is compressed by nothing though its name says so.
    """
    check_name(path)
    try:
        found = os.stat(path)
        if not stat.S_ISREG(found.st_mode):
            raise SourceError(f"{path}: expected a regular file, found {kind_of_file(found.st_mode)}")
        with open(path, "rb", buffering=0) as file:
            head = file.read(_HEAD)
    except OSError as error:
        raise unreadable(path, error) from None
    if head and not found.st_size:
        raise SourceError(f"{path}: expected a file with a size, found one of 0 bytes with content; copy it to a disk")
    if head.startswith(INDEX_MAGIC):
        raise SourceError(
            f"{path}: expected a source, found an index; give the source, or the index without "
            f"{either('-o', 'out=...')}"
        )
    for magic, name, command, suffix in _COMPRESSED:
        if re.match(magic, head, re.DOTALL):
            raise _refused(path, name, command, suffix)
    if head.startswith(_LFS):
        raise SourceError(f"{path}: expected data, found what Git LFS keeps in its place; run: git lfs pull")
    codec = codec_of(head)
    if not codec and (expected := named_codec(path)):
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
    file = open(path, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK))  # noqa: SIM115
    mode = os.fstat(file.fileno()).st_mode
    if stat.S_ISREG(mode):
        return file
    file.close()
    raise SourceError(f"{path}: expected a regular file, found {kind_of_file(mode)}")


def unreadable(path: str, error: OSError) -> SourceError:
    """Return the error to raise for a source that the system cannot read."""
    return SourceError(f"{path}: {reason(error)}")


def reason(error: OSError) -> str:
    """Return the system's text for an error, as part of a sentence."""
    text = error.strerror or str(error)
    return text[:1].lower() + text[1:]


def make_room(error: OSError) -> str:
    """Return the remedy that comes first for what cannot be written, where the disk is full; else nothing."""
    return "make room, or " if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) else ""


def index_path(path: str) -> str:
    """Return the path of the index beside a source, or that of an index itself."""
    return path if path.endswith(INDEX_SUFFIX) else path + INDEX_SUFFIX


def way_to_index(path: str, directory: str) -> str:
    """Return how to get an index that is missing: the command that makes it; what it is of, only the user knows.

    Args:
      directory: the one from which the path leads.
    Raises:
      SourceError: it would be that of a source whose name is not UTF-8.
    """
    if os.path.exists(os.path.join(directory, source := path.removesuffix(INDEX_SUFFIX))):
        check_name(source)
        return f"run: {build_command([source])}"
    return f"run: {build_command(['SOURCE...'], '-o', quoted(path))} (or put it back)"


def compressed(path: str, codec: str, format_name: str) -> SourceError:
    """Return the error to raise for a source that is compressed by one of `CODECS`, of a format that is not read so."""
    suffix = next((each for each in CODECS[codec] if path.endswith(each)), CODECS[codec][0])
    what = f"expected a file whose records can be read in place, as format {format_name!r} needs"
    return _refused(path, codec, f"{codec} -dk", suffix, what)


def _refused(path: str, name: str, command: str, suffix: str, what: str = _IN_PLACE) -> SourceError:
    command = f"{command} {quoted(path)}"
    if not path.endswith(suffix):  # the tool would refuse the name
        command = f"{name} -dc < {quoted(path)} > {quoted(another_name(path))}"
    kind = "an archive" if name == "zip" else "compressed"
    return SourceError(f"{path}: {kind} ({name}): {what}; run: {command}")


def check_unchanged(source: Source) -> None:
    """Raise SourceError if a source's size or time has changed since it was inspected."""
    try:
        now = os.stat(source.path)
    except OSError as error:
        raise SourceError(
            f"{source.path}: {reason(error)}; run again when nothing changes it (the file was there before)"
        ) from None
    if (now.st_size, now.st_mtime_ns) != (source.size, source.mtime_ns):
        raise changed(source, now.st_size)


def changed(source: Source, size: int) -> SourceError:
    """Return the error to raise for a source that changed while it was read, and has `size` bytes now."""
    how = f"expected {source.size} bytes, found {size}" if size != source.size else "same size, another time"
    return SourceError(f"{source.path}: changed while it was read: {how}; run again when nothing writes to it")


def working_directory() -> str:
    """Return the working directory; nothing where it was deleted, as absolute paths need none."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return ""


def real_path(path: str) -> str:
    """Return a path without links; as it is where it is relative and the working directory was deleted."""
    try:
        return os.path.realpath(path)
    except FileNotFoundError:
        return path


def kind_of_file(mode: int) -> str:
    """Return what a file is that is not a regular one."""
    names = [(stat.S_ISDIR, "a directory"), (stat.S_ISFIFO, "a FIFO"), (stat.S_ISSOCK, "a socket")]
    names += [(stat.S_ISCHR, "a character device"), (stat.S_ISBLK, "a block device")]
    return next((name for test, name in names if test(mode)), "a special file")
