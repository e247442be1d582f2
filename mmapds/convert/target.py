"""The array file to write: where it may lie, what it may replace, how large it may become.

It says what it was converted from, so that a conversion replaces only what it can write again. Small sources stay
small, and a disk does not run full before anybody knows.
"""

import os
import shutil
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from ..arrays.array_file import SUFFIX, ArraySections
from ..arrays.schema import Schema
from ..errors import Error, FormatError, either, option
from ..storage.files import open_file
from ..storage.lock import Replacement, is_same_file, locked
from ..storage.sources import INDEX_SUFFIX, Source, StrPath, reason
from ..writer import Writer

_LEAST, _TIMES = 4 << 30, 100  # bytes that any sources may become, and how many times their own


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


def _check_replaces_its_own(target: str, paths: Sequence[str]) -> None:
    """Refuse to replace a file that was not converted from these sources; of several, the first one counts.

    A file without a byte may be replaced.

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
            f"{what}; give another place with {_place()}, or replace it with {option('force', True)}"
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


def _place() -> str:
    """Return how users give the file to write."""
    return either(f"-o OUT{SUFFIX}", "out=...")


def target_of(paths: list[str], out: StrPath | None) -> str:
    """Return the path to write.

    Raises:
      Error: several sources need `out`, its directory is missing or cannot be written to, or it is one of the sources.
    """
    if out is None and len(paths) > 1:
        raise Error(
            f"out: expected the name of one array file for {len(paths)} sources, found none; give it with {_place()}"
        )
    target = os.path.splitext(paths[0])[0] + SUFFIX if out is None else os.fspath(out)
    if not os.path.isdir(os.path.dirname(target) or "."):
        raise Error(
            f"{target}: cannot write the array file here (no such directory); give another place with {_place()}"
        )
    try:
        with Replacement(os.path.join(os.getcwd(), target)):
            pass
    except OSError as error:
        raise Error(
            f"{target}: cannot write the array file here ({reason(error)}); give another place with {_place()}"
        ) from None
    if any(is_same_file(path, target) for path in paths):
        raise Error(f"{target}: the file to write is a source; name another file with {_place()}")
    return target


@contextmanager
def alone(target: str, paths: list[str]) -> Iterator[None]:
    """Hold the lock of the file to write, and of its index; remove what killed conversions left behind.

    Args:
      paths: the sources from which a file that is there must have been converted; empty for any file.
    Raises:
      Error: it was not, or another process writes it for too long.
    """
    with locked(target + INDEX_SUFFIX):
        if paths:  # now, as another conversion may have written the file while this one waited
            _check_replaces_its_own(target, paths)
        with suppress(OSError):  # of a killed conversion; the writer says better what cannot be written here
            os.unlink(hidden_index(target))
        yield


def hidden_index(target: str) -> str:
    """Return the path of the index of sources that are read to write a file."""
    directory, name = os.path.split(target)
    return os.path.join(directory, f".{name}.sources{INDEX_SUFFIX}")


def default_bytes(sources: Sequence[Source]) -> int:
    """Return how many bytes of records sources may become where the user does not say."""
    return max(_LEAST, _TIMES * sum(source.size for source in sources))


def check_ahead(target: str, schema: Schema, records: int, most: int | None) -> None:
    """Raise an error if so many records cannot be written, before any is read.

    Args:
      most: bytes of records; None for any.
    """
    least = records * schema.least_bytes
    if most is not None and least > most:
        raise FormatError(
            f"{target}: expected up to {most} bytes of records, found {records} records of {schema.least_bytes} bytes "
            f"or more; write them with {option('max_bytes', least)} (sources declare records that they hardly store)"
        )
    free = shutil.disk_usage(os.path.dirname(target) or ".").free
    if least > free:
        raise Error(
            f"{target}: expected room for {least} bytes or more, found {free} bytes free; give another place with "
            f"{_place()}"
        )


def too_much(place: str, written: int, most: int) -> FormatError:
    """Return the error where more was written than may be.

    Args:
      place: where the record lies that was written last.
    """
    return FormatError(
        f"{place}: expected up to {most} bytes of records, found {written}; write more with "
        f"{option('max_bytes', 2 * written)}"
    )
