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
"""Control characters, halves of surrogate pairs, marks of text direction, and unusual line breaks."""
_NOT_THE_USERS = ("mmapds.", "torch.utils.data", "torchdata.", "accelerate.", "multiprocessing.", "contextlib")
"""Modules that a warning skips to find the user's line."""
_LISTED = 400  # characters of a list of names in messages
_NO_MEMORY = "not enough memory", "Not enough memory", "Unable to create ZSTD_", "Error -4 while "
"""Texts of out-of-memory errors: zstd, orjson, contexts of zstd, zlib. isal's error -4 has another meaning."""


class Error(Exception):
    """Base of every error that mmapds defines."""


class SourceError(Error):
    """A source is missing, unreadable, compressed, outside the roots, or changed while it was read."""


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

    __str__ = Exception.__str__  # KeyError would show the repr of the message


class OrderError(Error, ValueError):
    """Arguments of an order, a sampler or a loader are wrong or contradict each other."""


class CollateError(Error, ValueError):
    """Samples do not fit into one batch; the message says which one."""


class StateError(Error, ValueError):
    """A state belongs to another sampler; the message says how the two differ."""


_commands = 0  # commands that run in this process: a command may run another


@contextmanager
def as_command() -> Iterator[None]:
    """Make messages in a block name options in the form of the command line."""
    global _commands
    _commands += 1
    try:
        yield
    finally:
        _commands -= 1


def is_command() -> bool:
    """Whether messages name options in the form of the command line."""
    return _commands > 0


def either(option: str, argument: str) -> str:
    """Return the form of an option for messages: `option` in a command, `argument` in Python."""
    return option if is_command() else argument


def option(name: str, value: str | int) -> str:
    """Return an option with its value for messages: `--bad skip` in a command, `bad='skip'` in Python."""
    given = "" if value is True else f" {value}"
    return either(f"--{name.replace('_', '-')}{given}", f"{name}={value!r}")


def way_to_seekable(*paths: str) -> str:
    """Return the advice that makes compressed files seekable; objects of a store need a copy on a disk."""
    if any("://" in path for path in paths):
        return f"copy each object, run {tool('seekable')} on the copy, and put that in its place"
    if paths[0].lower().endswith((".parquet", ".pq")):
        return f"write smaller row groups, or run: {tool('convert')} {quoted(paths[0])}"
    return f"run: {tool('seekable')} {' '.join(map(quoted, paths))}"


def tool(command: str) -> str:
    """Return the start of a command: `mmapds` if that started this process, otherwise `python -m`."""
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
    """Return a name for a new file beside another, for commands that write it; the name is free if possible."""
    stem, own = os.path.splitext(path)
    name = f"{stem}{infix}{suffix or own}"
    return f"{stem}{infix}.new{suffix or own}" if os.path.lexists(name) else name


def rebuilt_with(computed: Iterable[str], *options: str) -> str:
    """Return the advice for rebuilding an index with its columns that Python computed."""
    columns = ", ".join(f"{name!r}: FUNCTION" for name in computed)
    more = "".join(f", {each.removeprefix('--')}=True" for each in options)
    return f"pass columns={{{columns}}}{more} to mmapds.build"


def counted(count: int, unit: str) -> str:
    """Format a count for people: `1 record`, `12,000 records`."""
    return f"{count:,} {unit}{'s' * (count != 1)}"


def plain_counted(count: int, unit: str) -> str:
    """Format a count for messages, whose numbers can be copied: `12000 records`."""
    return counted(count, unit).replace(",", "")


def printable(text: str) -> str:
    """Escape characters that would control a terminal, in the style of JSON."""
    return _UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def check_memory(error: Exception) -> None:
    """Raise MemoryError if an error of a library means out of memory, so that good data are not blamed."""
    if isinstance(error, MemoryError):
        raise error
    if says_no_memory(error):
        raise MemoryError(str(error)) from None


def says_no_memory(error: Exception) -> bool:
    """Whether an error means out of memory; only for libraries whose messages do not quote the data."""
    return any(said in str(error) for said in _NO_MEMORY)


def add_note(error: Exception, note: str) -> None:
    """Add a note to a user's error, even if its class refuses attributes, such as a frozen dataclass."""
    with suppress(Exception):  # the class uses __notes__ differently: drop the note
        vars(error).setdefault("__notes__", []).append(note)


def shortened(value: Any, most: int = 80) -> str:
    """Return the repr of a value for messages, cut to `most` characters."""
    if isinstance(value, str | bytes | list | tuple):
        value = value[:most]  # the repr of the rest would be cut off
    try:
        return _cut(repr(value), most)
    except Exception:  # an int with too many digits for Python, or a user's own repr
        return object.__repr__(value)


def listed(names: Iterable[Any]) -> str:
    """Format names for messages: `'a', 'b'`; a long list is cut."""
    return _cut(", ".join(map(repr, names)), _LISTED)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."


def refuse_unknown(function: str, given: Iterable[str], known: Collection[str]) -> None:
    """Raise Python's own TypeError for an argument that a function with `**parameters` does not know."""
    for name in given:
        if name not in known:
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}")


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the user's line that called mmapds, directly or through a loader; in a thread, at its first line."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and (frame.f_globals.get("__name__") or "").startswith(_NOT_THE_USERS):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
