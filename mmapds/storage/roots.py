"""Which files the paths in an index may lead to: nothing has checked them before, so the user has the last word.

What an index names is read if it lies, with links resolved, below the directory of the index and is not hidden; below a
directory that the user gives as a root; or if the user named that very file in the same call.
"""

import os
from collections.abc import Iterable

from .sources import INDEX_SUFFIX, StrPath, listed

VARIABLE = "MMAPDS_ROOTS"
"""The environment variable with roots for all calls, separated like those of PATH."""


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
            everywhere = [path for path in os.environ.get(VARIABLE, "").split(os.pathsep) if path]
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
