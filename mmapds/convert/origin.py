"""What an array file was converted from, so that a conversion replaces only what it can write again."""

import os
from collections.abc import Container, Mapping, Sequence
from typing import Any

from ..arrays.array_file import SUFFIX, ArraySections
from ..errors import Error, option
from ..storage.files import open_file
from ..writer import Writer


class ConvertedWriter(Writer):
    """Writes an array file that says what it was converted from.

    Args:
      schema: of the records.
      paths: the sources.
    """

    def __init__(
        self, path: str, schema: Mapping[str, Any], paths: Sequence[str], *, length: str | None, index: bool
    ) -> None:
        super().__init__(path, schema, length=length, index=index)
        self._origin = _origin(path, paths)

    def _metadata(self) -> dict[str, Any]:
        return {**super()._metadata(), "origin": self._origin}


def check_replaces_its_own(target: str, paths: Sequence[str], elsewhere: str) -> None:
    """Refuse to replace a file that was not converted from these sources; of several, the first one counts.

    A file without a byte may be replaced.

    Args:
      elsewhere: how the user names another place.
    Raises:
      Error: the file to write is there, and is of something else, or does not say of what.
    """
    if not os.path.exists(target) or not os.path.getsize(target):
        return
    expected, found = _origin(target, paths), _found(target)
    if found != expected:
        what = f"one from {found!r}" if found else "another file"
        raise Error(
            f"{target}: expected a name that is free, or an array file that was converted from {expected!r}, found "
            f"{what}; give another place with {elsewhere}, or replace it with {option('force', True)}"
        )


def without_converted(paths: Sequence[str], given: Container[str]) -> list[str]:
    """Return paths without those of array files that were converted from others of them.

    Args:
      given: those that the user named, which stay.
    """
    found = [path for path in paths if path.endswith(SUFFIX) and path not in given]
    if not found or len(found) == len(paths):
        return list(paths)
    known = set(map(os.path.realpath, paths))
    converted = {
        path
        for path in found
        if (origin := _found(path)) and os.path.realpath(os.path.join(os.path.dirname(path), origin)) in known
    }
    return [path for path in paths if path not in converted]


def _origin(target: str, paths: Sequence[str]) -> str:
    """Return the path of the first source from the directory of the array file, so that both can move."""
    return os.path.relpath(os.path.realpath(paths[0]), os.path.dirname(os.path.realpath(target)))


def _found(target: str) -> str:
    """Return what a file was converted from, for a message; "" if it does not say so, or is not an array file."""
    try:
        found = ArraySections(target, open_file(target, scan=True)).metadata.get("origin")
    except (Error, OSError, ValueError):
        return ""
    return found if isinstance(found, str) else ""
