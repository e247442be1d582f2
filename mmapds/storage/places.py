"""Where bytes lie: the disk here, and other places such as the objects of stores, known by the scheme of a name.

Whoever opens or builds makes `Places` once. What reads an index asks it for the place of a name, and nothing else looks
at a scheme. A place other than the disk implements `Place`; `remote/objects.py` has one.
"""

import glob
import os
import re
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, ClassVar

from braceexpand import braceexpand

from ..errors import SourceError, either, quoted
from .sources import (
    INDEX_SUFFIX,
    UNFINISHED,
    Source,
    StrPath,
    check_unchanged,
    inspect,
    listed,
    named,
    unreadable,
    way_to_index,
)

_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)://", re.IGNORECASE)
_NOT_DATA = re.compile(rf"^(README|LICENSE|_|index\.json$)|\.(mmx|lock|md|idx|parts)$|{UNFINISHED}", re.IGNORECASE)
"""Files beside data that are not data. Engines write `_SUCCESS`, and MDSWriter `index.json`."""
_NAMED = 8  # names in a message
_ROOTS = "MMAPDS_ROOTS"  # environment variable: roots for all calls, separated as in PATH


def scheme_of(name: str) -> str:
    """Return the scheme of a name, in lower case, such as "s3"; empty for the path of a file."""
    found = _SCHEME.match(name) if "://" in name else None
    return found[1].lower() if found else ""


def absolute(name: str, directory: str) -> str:
    """Return a name made absolute: a path by a directory; a name with a scheme already is."""
    return name if name.startswith("/") or scheme_of(name) else os.path.join(directory, name)


def is_below(name: str, directory: str) -> bool:
    """Whether a name lies below a directory, and no name between starts with a dot; both are real, absolute names."""
    below = f"{directory.rstrip('/')}/"
    return name.startswith(below) and "/." not in name[len(below) - 1 :]


def relative_to_index(source: str, index: str) -> str:
    """Return a source's name relative to its index, so that the two can be moved together."""
    if scheme_of(source):
        home = os.path.dirname(index)
        return source[len(home) + 1 :] if scheme_of(index) and is_below(source, home) else source
    directory = os.path.realpath(os.path.dirname(index))
    parent, name = os.path.split(source)
    return os.path.normpath(os.path.join(os.path.relpath(os.path.realpath(parent), directory), name))


class Place(ABC):
    """Where the files of some names lie. Names are absolute, but in `expand`, `inspect` and `publish`."""

    is_disk: ClassVar[bool] = False
    """Whether a name is the path of a file. Elsewhere bytes are fetched into a file, and compared then."""
    generation = 0
    """Increases when files may have been removed; whoever holds them open should open them again."""

    @property
    def roots(self) -> set[str]:
        """The roots that another process needs to open the same indexes by their own names."""
        return set()

    @abstractmethod
    def expand(self, pattern: str, suffixes: tuple[str, ...], report: Callable[[str], object]) -> list[str]:
        """Return the names that a name, a directory or a pattern stands for; raise SourceError for none.

        A directory stands for what has one of the suffixes in it; `report` is called with a line on what is ignored.
        """

    @abstractmethod
    def inspect(self, names: Sequence[str]) -> list[Source]:
        """Return sources to index, as they are now; raise SourceError for one that cannot be a source."""

    @abstractmethod
    def check(self, name: str, index: str, home: str) -> None:
        """Raise SourceError unless the index at `index`, in the directory `home`, may name this source."""

    @abstractmethod
    def file(self, source: Source) -> str:
        """Return the path of the file with a source's bytes, fetched if need be.

        Raises:
          SourceError, StaleIndexError: the bytes cannot be read, or are not those that were indexed.
        """

    @abstractmethod
    def file_of_index(self, name: str) -> str:
        """Return the path of the file of an index, as it is now; raise IndexMissingError if there is none."""

    @abstractmethod
    def publish(self, path: str, name: str) -> None:
        """Put a complete file where a name says."""

    def prepare(self, names: Sequence[str]) -> None:  # noqa: B027 - by default there is nothing to do
        """Get ready to open some indexes together; what is wrong with one is reported when it is opened."""

    def check_unchanged(self, source: Source) -> None:  # noqa: B027 - as above
        """Raise SourceError if a source changed since `inspect`; elsewhere than on the disk, `file` compares it."""

    @contextmanager
    def local(self, source: Source, *, is_fresh: bool) -> Iterator[str]:
        """Yield the path of the file with a source's bytes, which stays until the block ends.

        Args:
          is_fresh: read the bytes again, though a copy of them is there.
        """
        yield self.file(source)

    def status(self, name: str, index: str, home: str) -> os.stat_result | None:
        """Return the status of a source that an index names; None where `file` compares it."""
        return None

    def figures(self) -> dict[str, Any]:
        """Return what reading here has cost, for `DataLoader.stats`."""
        return {}

    def waiting(self) -> str:
        """Return what readers of this process wait for, as text for a message; empty for nothing."""
        return ""


class Files(Place):
    """The disk. Paths in an index are untrusted.

    With links resolved, an index may name a file if one of these is true: it lies below the directory of the index and
    is not hidden; it lies below a root of the user; the user named that very file in the same call.

    Args:
      roots: directories that the user gave.
    """

    is_disk = True

    def __init__(self, roots: Iterable[str] = ()) -> None:
        working = os.getcwd()
        self._given = [os.path.join(working, path) for path in roots]
        everywhere = os.environ.get(_ROOTS, "").split(os.pathsep)
        self._everywhere = [os.path.join(working, path) for path in everywhere if path]
        self._named: list[str] = []
        self._allowed: tuple[list[str], set[str]] | None = None  # real paths, lazy: few indexes need them
        self._used: set[str] = set()
        self._folders: dict[tuple[str, str], bool] = {}  # whether they lie inside a home

    def allow(self, named: Iterable[str]) -> "Files":
        """Allow files that the user named in this call; return these files."""
        working = os.getcwd()
        self._named += [os.path.join(working, path) for path in named if not path.endswith(INDEX_SUFFIX)]
        self._allowed = None
        return self

    def expand(self, pattern: str, suffixes: tuple[str, ...], report: Callable[[str], object]) -> list[str]:
        if os.path.isdir(pattern):
            return _files_of(pattern, suffixes, report)
        return _matches(pattern, suffixes)

    def inspect(self, names: Sequence[str]) -> list[Source]:
        return list(map(inspect, names))

    def check(self, name: str, index: str, home: str) -> None:
        # Fast path: an index may have thousands of sources, and few are links.
        if not self._is_inside(name, home) or os.path.islink(name):
            self._check_real(name, index, home)

    def _is_inside(self, name: str, home: str) -> bool:
        """Whether a file lies below a directory and is not hidden; its last name may be a link."""
        folder, _, own = name.rpartition("/")
        if (folder, home) not in self._folders:
            real = os.path.join(os.path.realpath(folder), "x")
            self._folders[folder, home] = folder == home or is_below(real, os.path.realpath(home))
        return own[:1] not in ("", ".") and self._folders[folder, home]

    def _check_real(self, name: str, index: str, home: str) -> None:
        real = os.path.realpath(name)
        if is_below(real, os.path.realpath(home)):
            return
        if self._allowed is None:
            given, named = (map(os.path.realpath, paths) for paths in (self._given + self._everywhere, self._named))
            self._allowed = list(given), set(named)
        directories, files = self._allowed
        roots = [directory for directory in directories if real.startswith(os.path.join(directory, ""))]
        roots += [os.path.dirname(real)] * (real in files)
        if not roots:
            raise outside(index, "files below its own directory that are not hidden", real, os.path.dirname(real))
        self._used.add(roots[0])

    def file(self, source: Source) -> str:
        return source.path

    def file_of_index(self, name: str) -> str:
        return name

    def publish(self, path: str, name: str) -> None:
        os.replace(path, name)

    def check_unchanged(self, source: Source) -> None:
        check_unchanged(source)

    def status(self, name: str, index: str, home: str) -> os.stat_result:
        # Fast path: one system call, as most sources are not links.
        found = os.lstat(name) if self._is_inside(name, home) else None
        if found is None or stat.S_ISLNK(found.st_mode):
            self._check_real(name, index, home)
            found = os.stat(name)
        return found

    @property
    def roots(self) -> set[str]:
        return {*map(os.path.realpath, self._given), *self._used}


def outside(index: str, expected: str, found: str, root: str) -> SourceError:
    """Return the error for a name that an index may not have; `root` would allow it."""
    return SourceError(
        f"{index}: expected {expected}, found {found}; "
        f"{either(f'add --root {quoted(root)}', f'open it with roots={[root]}')} (if you trust it)"
    )


# ---- files that the user gives -----------------------------------------------------------------------------------


def _matches(pattern: str, suffixes: tuple[str, ...]) -> list[str]:
    """Return the files that match a pattern, sorted by name; an existing path is not a pattern."""
    patterns, matches = [pattern], list[str]()
    if "{" in pattern and not os.path.lexists(pattern):
        with suppress(ValueError):  # unbalanced braces are part of a name
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
    """Raise SourceError if a pattern needs a directory that cannot be listed: glob would ignore its files."""
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
    if others and not taken[0].endswith(INDEX_SUFFIX):  # the other files may be the sources of these indexes
        report(f"{directory}: ignored {found} (expected {expected})")
    return taken


def _without_indexes(paths: list[str], suffixes: tuple[str, ...]) -> list[str]:
    """Return paths without indexes; but all paths if only indexes are given, and `suffixes` includes theirs."""
    paths = [path for path in paths if not re.search(UNFINISHED, path)]
    others = [path for path in paths if not path.endswith(INDEX_SUFFIX)]
    if not others:
        return paths if INDEX_SUFFIX in suffixes else []
    for source in sorted({path.removesuffix(INDEX_SUFFIX) for path in paths}.difference(others)):
        if named(os.path.basename(source), suffixes) and not os.path.lexists(source):
            raise SourceError(f"{source}: no such file; delete {quoted(source + INDEX_SUFFIX)}, which indexes it")
    return others


# ---- the places of a call ----------------------------------------------------------------------------------------


MORE: dict[str, Place] = {}
"""Further places of this process, by scheme."""


class Places:
    """The places that a call may read.

    Args:
      files: the disk, with the roots of the call.
      elsewhere: the place of all other schemes; None refuses them.
    """

    def __init__(self, files: Files | None = None, elsewhere: Place | None = None) -> None:
        self.files = files or Files()
        self._elsewhere = elsewhere

    def of(self, name: str) -> Place:
        """Return the place of a name."""
        scheme = scheme_of(name)
        found = MORE.get(scheme, self._elsewhere) if scheme else self.files
        if found is None:
            raise SourceError(f"{name}: expected the path of a file, found a name with the scheme {scheme!r}")
        return found

    def _by_place(self, names: Iterable[str]) -> dict[Place, list[str]]:
        found: dict[Place, list[str]] = {}
        for name in names:
            found.setdefault(self.of(name), []).append(name)
        return found

    def expand(
        self,
        patterns: StrPath | Iterable[StrPath],
        suffixes: tuple[str, ...],
        report: Callable[[str], object] = lambda _: None,
    ) -> list[str]:
        """Return the names that names, directories, globs and brace patterns stand for: see docs/datasets.md.

        A directory stands for its files with these suffixes; `report` is called with a line on the files ignored there.
        """
        given = [os.fspath(each) for each in listed(patterns)]
        names = [name for pattern in given for name in self.of(pattern).expand(pattern, suffixes, report)]
        if not names:
            raise SourceError("sources: expected one source or more, found 0")
        self.files.allow(names)
        indexes = {name + INDEX_SUFFIX for name in names}  # beside sources that are given, too
        return [name for name in names if name not in indexes]

    def inspect(self, names: Sequence[str]) -> list[Source]:
        """Return sources to index, as they are now, in the order of their names."""
        by_place = self._by_place(names).items()
        found = {each.path: each for place, own in by_place for each in place.inspect(own)}
        return [found[name] for name in names]

    def check_unchanged(self, source: Source) -> None:
        """Raise SourceError if a source changed since `inspect`."""
        self.of(source.path).check_unchanged(source)

    def prepare(self, names: Iterable[str]) -> None:
        """Get ready to open some indexes together."""
        for place, own in self._by_place(names).items():
            place.prepare(own)

    @property
    def roots(self) -> set[str]:
        """The roots that another process needs to open the same indexes by their own names."""
        return self.files.roots | (self._elsewhere.roots if self._elsewhere else set())

    @classmethod
    def joined(cls, parts: Iterable["Places"]) -> "Places":
        """Return places with the roots of all parts."""
        several = list(parts)
        if len(several) == 1:
            return several[0]
        elsewhere = next((each._elsewhere for each in several if each._elsewhere), None)
        return cls(Files(set().union(*(each.files.roots for each in several))), elsewhere)

    def __reduce__(self) -> tuple[Any, ...]:
        return _remade, (sorted(self.files.roots), self._elsewhere)


def _remade(roots: list[str], elsewhere: Place | None) -> Places:
    return Places(Files(roots), elsewhere)
