"""What a pickled dataset says of the indexes behind it."""

import os
import zlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from .. import formats
from ..errors import IndexMissingError, SourceError, StaleIndexError
from ..storage.index_file import Index
from ..storage.sources import INDEX_SUFFIX, build_command, expand

_SHORT = 512  # bytes of paths that a pickle holds


def expand_indexed(patterns: Sequence[str]) -> list[str]:
    return expand(patterns, (*formats.SUFFIXES, INDEX_SUFFIX))


def open_indexes(paths: Iterable[str], patterns: Sequence[str]) -> list[Index]:
    indexes, missing = [], []
    for path in paths:
        try:
            indexes.append(Index(_index_path(path)))
        except IndexMissingError:
            missing.append(path)
    if missing:
        if os.path.exists(missing[0]):
            formats.check_in_place(missing[0])
        more = f" and {len(missing) - 1:,} more" if len(missing) > 1 else ""
        command = build_command(missing if len(missing) == 1 else list(patterns))
        raise IndexMissingError(f"{missing[0]}{more}: not indexed yet; run: {command} (or open it with build=True)")
    if not indexes:
        raise SourceError("no sources were given")
    return indexes


def _index_path(path: str) -> str:
    """Where the index of a source is: beside it, or beside what it is a link to."""
    if path.endswith(INDEX_SUFFIX):
        return path
    beside = path + INDEX_SUFFIX
    if not os.path.lexists(beside) and os.path.islink(path):
        followed = os.path.realpath(path) + INDEX_SUFFIX
        if os.path.exists(followed):
            return followed
    return beside


class Origin(NamedTuple):
    """What a pickle says of the indexes behind a dataset, in a few hundred bytes however many they are."""

    directory: str
    """The working directory, from which paths may be relative."""
    paths: bytes
    """Paths of the indexes, compressed; empty where even so they are long, and the patterns must do."""
    patterns: tuple[str, ...]
    identity: int
    """Differs when other indexes are found."""

    @classmethod
    def of(cls, patterns: Sequence[str], indexes: Sequence[Index]) -> "Origin":
        directory = os.getcwd()
        known = [index.path if index.opened_in == directory else index.absolute(index.path) for index in indexes]
        paths = zlib.compress("\0".join(known).encode(errors="surrogateescape"))
        identity = zlib.crc32(b"".join(index.checksum.to_bytes(8, "little") for index in indexes))
        if len(paths) <= _SHORT:
            return cls(directory, paths, (), identity)
        return cls(directory, b"", tuple(patterns), identity)

    def given(self) -> list[str]:
        """Return what stands for the indexes: their paths, or patterns."""
        paths = (
            zlib.decompress(self.paths).decode(errors="surrogateescape").split("\0") if self.paths else self.patterns
        )
        if os.getcwd() == self.directory:
            return list(paths)
        # Not normalised: what `..` means depends on links, and braces are no directories.
        return [os.path.join(self.directory, path) for path in paths]

    def open(self) -> list[Index]:
        """Open the indexes again.

        Raises:
          StaleIndexError: they are not what they were.
        """
        given = self.given()
        indexes = open_indexes(given if self.paths else expand_indexed(given), given)
        if Origin.of(given, indexes).identity != self.identity:
            raise StaleIndexError(f"{', '.join(given)}: other indexes than when the dataset was pickled; open it again")
        return indexes
