"""Which files the paths in an index may lead to: nothing has checked them before, so the user has the last word.

What an index names is read if it lies, with links resolved, below the directory of the index and is not hidden; below a
directory that the user gives as a root; or if the user named that very file in the same call.
"""

import os
from collections.abc import Iterable

from .sources import INDEX_SUFFIX, StrPath, listed, real_path, working_directory

VARIABLE = "MMAPDS_ROOTS"
"""The environment variable with roots for all calls, separated like those of PATH."""
_FEW = 3  # directories that a message names one by one


class Roots:
    """What the user allows an index to name outside its own directory.

    Args:
      given: a directory or several, each with all that lies below it; those of the environment are added.
      named: files that the user named, by themselves or by a pattern; indexes among them are not sources.
    """

    def __init__(self, given: StrPath | Iterable[StrPath] = (), named: Iterable[str] = ()) -> None:
        self._working = working_directory()
        self._given = [os.fspath(path) for path in listed(given, "roots")]
        self._named = [path for path in named if not path.endswith(INDEX_SUFFIX)]
        self._directories: list[str] | None = None  # real paths: most indexes have no use for them
        self._files: set[str] | None = None
        self._used: set[str] = set()
        self._real_directories: dict[str, str] = {}  # of indexes, which come by the thousands in one directory

    def admit(self, real: str) -> bool:
        """Whether the user allows a file; its path has no links."""
        if self._directories is None:
            self._directories = [self._real(path) for path in (*self._given, *_from_environment())]
        root = next((directory for directory in self._directories if is_below(real, directory)), None)
        if root is None:
            if self._files is None:
                self._files = {self._real(path) for path in self._named}
            root = os.path.dirname(real) if real in self._files else None
        if root is not None:
            self._used.add(root)
        return root is not None

    def real_directory(self, path: str) -> str:
        """Return the path without links of a directory that holds an index."""
        if path not in self._real_directories:
            self._real_directories[path] = os.path.realpath(path)
        return self._real_directories[path]

    def lasting(self) -> set[str]:
        """Return the roots that a process needs that opens the same indexes by their own paths, as real paths."""
        return {self._real(path) for path in self._given} | self._used

    def _real(self, path: str) -> str:
        return real_path(os.path.join(self._working, path))


def _from_environment() -> list[str]:
    return [path for path in os.environ.get(VARIABLE, "").split(os.pathsep) if path]


def is_below(path: str, directory: str) -> bool:
    """Whether a file lies in a directory or below; neither path has links."""
    return path.startswith(directory if directory == "/" else f"{directory}/")


def is_inside(path: str, directory: str) -> bool:
    """Whether a file lies in a directory or below, and no name on the way to it begins with a dot."""
    return is_below(path, directory) and "/." not in path[len(directory) - (directory == "/") :]


def covering(paths: Iterable[str]) -> list[str]:
    """Return directories that hold these files: their own, or, if these are many, directories above them."""
    directories = {os.path.dirname(path) for path in paths}
    depth = max((path.count("/") for path in directories), default=0)
    while len(directories) > _FEW and depth > 2:  # never a whole file system, nor all of /home
        depth -= 1
        directories = {"/".join(path.split("/")[: depth + 1]) for path in directories}
    return sorted(path for path in directories if not any(is_below(path, other) for other in directories - {path}))
