"""The origin of a dataset: how a pickle names its indexes, and how they are found and opened."""

import os
import zlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

from .. import formats
from ..errors import IndexMissingError, SourceError, StaleIndexError, build_command, either
from ..storage.files import Io, IoChoice, io_of
from ..storage.index_file import Index, SavedViewFoundError, names_index
from ..storage.sources import INDEX_SUFFIX, Roots, check_name, expand, way_to_index
from ..storage.view_file import SavedView

_SHORT = 512  # bytes of paths that a pickle holds


def expand_indexed(patterns: Sequence[str], report: Callable[[str], object] = lambda _: None) -> list[str]:
    """Return the sources and indexes that patterns match; report what is passed over in directories."""
    return expand(patterns, (*formats.SUFFIXES, INDEX_SUFFIX), report)


def open_stored(path: str, roots: Roots, io: Io) -> Index | SavedView:
    """Open an index or a saved view; raises as they do."""
    try:
        return Index(path, roots, io)
    except SavedViewFoundError:
        return SavedView(path, roots, io)


def open_indexes(paths: Sequence[str], patterns: Sequence[str], roots: Roots, io: IoChoice) -> list[Index | SavedView]:
    """Open the indexes of sources, and saved views.

    Args:
      paths: sources, indexes and saved views.
      patterns: what the user gave for them, for the command in a message.
      roots: where their sources may lie.
      io: how they are read.
    Raises:
      IndexMissingError: a source is not indexed.
      StaleIndexError: the index beside a source is that of another file.
      SourceError: a source is also among those of an index that was given, or one that is not indexed cannot be.
      FormatError: an index is damaged, or a source must be converted.
    """
    indexes: list[Index | SavedView] = []
    missing, directory = [], os.getcwd()
    for path in paths:
        index_path = _index_path(path)
        try:
            index = open_stored(index_path, roots, io_of(io, os.path.join(directory, index_path)))
            check_covers(index, path)
            indexes.append(index)
        except IndexMissingError:
            missing.append(path)
    if missing:
        if os.path.exists(missing[0]):
            formats.check_in_place(missing[0])
        more = f" and {len(missing) - 1:,} more" if len(missing) > 1 else ""
        opened = either("", " (or open it with build=True)")
        if missing[0].endswith(INDEX_SUFFIX):
            raise IndexMissingError(f"{missing[0]}{more}: no such index; {way_to_index(missing[0])}")
        for path in missing:
            check_name(path)
        command = build_command(missing if len(missing) == 1 else list(patterns))
        raise IndexMissingError(f"{missing[0]}{more}: not indexed yet; run: {command}{opened}")
    _check_given_once(paths, indexes)
    return indexes


def check_covers(index: Index | SavedView, given: str) -> None:
    """Raise StaleIndexError if a source was given, and what lies beside it is not its index."""
    if isinstance(index, Index):
        index.check_covers(given)
    elif not given.endswith(INDEX_SUFFIX):
        raise StaleIndexError(
            f"{index.path}: STALE: expected the index of {given}, found a saved view; rename it, or give it by its name"
        )


def _check_given_once(paths: Sequence[str], indexes: Sequence[Index | SavedView]) -> None:
    """Raise SourceError where a source was given by its own name and by an index, as by the shell's `*`."""
    given = {path for path in paths if not path.endswith(INDEX_SUFFIX)}
    if not given or len(given) == len(paths):
        return
    named = {os.path.realpath(path) for path in given}
    for path, index in zip(paths, indexes, strict=True):
        if isinstance(index, SavedView):
            continue
        for number in range(len(index.sources)) if path.endswith(INDEX_SUFFIX) else ():
            source = index.source_path(number)
            if os.path.realpath(index.absolute(source)) in named:
                raise SourceError(
                    f"{path}: expected each source once, found {source} by its name and as one of this index; give one "
                    "of the two"
                )


def overlap(paths: Sequence[str], patterns: Sequence[str], indexes: Sequence[Index | SavedView]) -> str | None:
    """Return a warning if indexes that a directory or a glob named have the same source. A list means what it says."""
    named, holders = set(patterns), dict[str, str]()
    found = [(path, index) for path, index in zip(paths, indexes, strict=True) if path not in named]
    for path, index in found if len(found) > 1 and found[0][0].endswith(INDEX_SUFFIX) else ():
        for base in index.open_bases() if isinstance(index, SavedView) else [index]:
            for number in range(len(base.sources)):
                source = base.source_path(number)
                holder = holders.setdefault(os.path.normpath(base.absolute(source)), path)
                if holder != path:
                    return (
                        f"{source}: its records may come more than once, as {holder} and {path} both have some; give "
                        "the index that you mean by its name"
                    )
    return None


def _index_path(path: str) -> str:
    """Return the path of a source's index: beside it or, for a link, beside the file that it leads to."""
    if names_index(path):
        return path
    beside = path + INDEX_SUFFIX
    if not os.path.lexists(beside) and os.path.islink(path):
        followed = os.path.realpath(path) + INDEX_SUFFIX
        if os.path.exists(followed):
            return followed
    return beside


class Origin(NamedTuple):
    """How a pickle names the indexes behind a dataset: a few hundred bytes for any number of them."""

    directory: str
    """The working directory, which relative paths start from."""
    paths: bytes
    """Paths of the indexes, compressed; empty if they are too long; `patterns` then find them."""
    patterns: tuple[str, ...]
    identity: int
    """A checksum over the checksums of the indexes: it changes when one of them is built again."""
    roots: tuple[str, ...]
    """Directories outside those of the indexes whose files they may name: the user allowed it when they were opened."""
    parts: tuple["Origin", ...] = ()
    """Of joined datasets whose paths are too long, the origin of each; the patterns of all may mean other files."""

    @classmethod
    def of(cls, patterns: Sequence[str] | None, indexes: Sequence[Index]) -> "Origin":
        """Describe open indexes, which were found by these patterns; None where saved views led to them."""
        directory = os.getcwd()
        known = [index.path if index.opened_in == directory else index.absolute(index.path) for index in indexes]
        paths = zlib.compress("\0".join(known).encode(errors="surrogateescape"))
        identity = zlib.crc32(b"".join(index.checksum.to_bytes(8, "little") for index in indexes))
        roots = tuple(sorted(set().union(*(each.lasting() for each in {index.roots for index in indexes}))))
        if len(paths) <= _SHORT:
            return cls(directory, paths, (), identity, roots)
        return cls(directory, b"", tuple(known if patterns is None else patterns), identity, roots)

    @classmethod
    def joined(cls, origins: Sequence["Origin"], indexes: Sequence[Index]) -> "Origin":
        """Describe the open indexes of joined datasets, of which these are the origins."""
        known = cls.of(None, indexes)
        if known.paths:
            return known
        return known._replace(patterns=(), parts=tuple(part for each in origins for part in each.parts or (each,)))

    def given(self) -> list[str]:
        """Return the paths of the indexes, or the patterns that find them."""
        paths = (
            zlib.decompress(self.paths).decode(errors="surrogateescape").split("\0") if self.paths else self.patterns
        )
        if os.getcwd() == self.directory:
            return list(paths)
        # Not normalised: `..` may follow a link, and braces are not directories.
        return [os.path.join(self.directory, path) for path in paths]

    def open(self, io: IoChoice) -> list[Index]:
        """Open the indexes again.

        Raises:
          StaleIndexError: they were built again meanwhile.
        """
        if self.parts:
            return [index for part in self.parts for index in part.open(io)]
        given = self.given()
        opened = open_indexes(given if self.paths else expand_indexed(given), given, Roots(self.roots), io)
        indexes = [index for index in opened if isinstance(index, Index)]
        if Origin.of(given, indexes).identity != self.identity:
            raise StaleIndexError(f"{', '.join(given)}: not the indexes of the pickled dataset; open the dataset again")
        return indexes
