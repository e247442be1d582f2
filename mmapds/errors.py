"""The errors that mmapds raises. A message says where, what was expected, what was found, and what to run."""

import os
import re
import shlex
import sys
import warnings
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
"""Control characters, halves of surrogate pairs, and what turns the direction of text or hides a break of lines."""
_NOT_THE_USERS = ("mmapds.", "torch.utils.data", "torchdata.", "accelerate.", "multiprocessing.", "contextlib")
"""Modules that a warning does not point to."""
_LISTED = 400  # characters of names in messages
_NO_MEMORY = "not enough memory", "Not enough memory", "Unable to create ZSTD_", "Error -4 while "
"""What zstd, orjson, zstd of contexts, and zlib say where memory is short. Error -4 of isal is another."""


class Error(Exception):
    """Base of every error that mmapds defines."""


class SourceError(Error):
    """A source is missing, unreadable, compressed, outside the roots, or changed meanwhile."""


class IndexMissingError(Error):
    """A source is not indexed yet; the message has the command."""


class StaleIndexError(Error):
    """The source changed after it was indexed; the message has the command."""


class FormatError(Error, ValueError):
    """An index, a source or a record is damaged, of a newer version, or not as expected."""


class DecodeError(Error, ValueError):
    """A record cannot be decoded; the message has its source, line and byte."""


class ColumnError(Error, ValueError):
    """A column cannot be measured, or a dataset does not have it."""


class KeyMissingError(Error, KeyError):
    """A dataset has no record with the key."""

    __str__ = Exception.__str__  # KeyError's own shows the repr of the message


class OrderError(Error, ValueError):
    """Arguments of an order, a sampler or a loader are wrong or contradict each other."""


class CollateError(Error, ValueError):
    """Samples do not fit into one batch; the message says which one."""


class StateError(Error, ValueError):
    """A state belongs to another sampler; the message says how the two differ."""


_commands = 0  # that run in this process: one, but for a command that runs another


@contextmanager
def as_command() -> Iterator[None]:
    """Make messages of a block name options as a command line takes them."""
    global _commands
    _commands += 1
    try:
        yield
    finally:
        _commands -= 1


def is_command() -> bool:
    """Whether messages name options as a command line takes them."""
    return _commands > 0


def either(option: str, argument: str) -> str:
    """Return how users give an option: `option` to a command, and `argument` in Python."""
    return option if is_command() else argument


def option(name: str, value: str | int) -> str:
    """Return how users give an option with a value: `--bad skip` to a command, and `bad='skip'` in Python."""
    given = "" if value is True else f" {value}"
    return either(f"--{name.replace('_', '-')}{given}", f"{name}={value!r}")


def tool(command: str) -> str:
    """Return how a command begins: as the one that this process was started by, or so that it works in any case."""
    started_as = os.path.basename(sys.argv[0]) if getattr(sys, "argv", None) else ""
    if started_as == "mmapds":
        return f"mmapds {command}"
    return "python -m mmapds.index" if command == "index" else f"python -m mmapds {command}"


def build_command(paths: list[str], *options: str) -> str:
    """Return the shell command that indexes `paths`."""
    return " ".join([tool("index"), *map(quoted, paths), *options])


def quoted(path: str) -> str:
    """Return a path quoted for a shell command."""
    return shlex.quote(f"./{path}" if path.startswith("-") else path)


def another_name(path: str, suffix: str = "", infix: str = ".plain") -> str:
    """Return a name for another file beside one, for commands that write it: one that is not there yet, if possible."""
    stem, own = os.path.splitext(path)
    name = f"{stem}{infix}{suffix or own}"
    return f"{stem}{infix}.new{suffix or own}" if os.path.lexists(name) else name


def rebuilt_with(computed: Iterable[str], *options: str) -> str:
    """Return how to build an index again whose columns were computed in Python, which then are again."""
    columns = ", ".join(f"{name!r}: FUNCTION" for name in computed)
    more = "".join(f", {each.removeprefix('--')}=True" for each in options)
    return f"pass columns={{{columns}}}{more} to mmapds.build"


def counted(count: int, unit: str) -> str:
    """Return how many there are, for people: `1 record`, `12,000 records`."""
    return f"{count:,} {unit}{'s' * (count != 1)}"


def plain_counted(count: int, unit: str) -> str:
    """Return how many there are, for messages, whose numbers can be copied: `12000 records`."""
    return counted(count, unit).replace(",", "")


def printable(text: str) -> str:
    """Return text with what would steer a terminal escaped, as JSON escapes it."""
    return _UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def check_memory(error: Exception) -> None:
    """Raise MemoryError where an error of a library says that memory is short, so that sound data are not blamed."""
    if isinstance(error, MemoryError):
        raise error
    if says_no_memory(error):
        raise MemoryError(str(error)) from None


def says_no_memory(error: Exception) -> bool:
    """Whether an error says that memory is short; it must be of a library whose messages do not quote the data."""
    return any(said in str(error) for said in _NO_MEMORY)


def add_note(error: Exception, note: str) -> None:
    """Add a note to an error of the user's, also where its class refuses attributes, as a frozen dataclass does."""
    with suppress(Exception):  # of a class that has other things for notes: the error itself counts
        vars(error).setdefault("__notes__", []).append(note)


def shortened(value: Any, most: int = 80) -> str:
    """Return the repr of a value for messages, cut where it is longer than `most` characters."""
    if isinstance(value, str | bytes | list | tuple):
        value = value[:most]  # the repr of the rest would be cut off
    try:
        return _cut(repr(value), most)
    except Exception:  # an int of more digits than Python writes, or a repr of the user's
        return object.__repr__(value)


def listed(names: Iterable[Any]) -> str:
    """Return names for messages: `'a', 'b'`; a long list is cut."""
    return _cut(", ".join(map(repr, names)), _LISTED)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."


def refuse_unknown(function: str, given: Iterable[str], known: Collection[str]) -> None:
    """Raise Python's own error for an argument that a function with `**parameters` does not have."""
    for name in given:
        if name not in known:
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}")


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn, at the line of the user that called into mmapds, itself or through a loader; in a thread, at its begin."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and (frame.f_globals.get("__name__") or "").startswith(_NOT_THE_USERS):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
