"""What messages tell users to run or to pass: commands, options and arguments, quoted so that they can be pasted."""

import os
import shlex
import sys
from collections.abc import Iterable


def tool(command: str) -> str:
    """Return how a command begins: as the one that this process was started by, or so that it works in any case."""
    started_as = os.path.basename(sys.argv[0]) if getattr(sys, "argv", None) else ""
    return f"mmapds {command}" if started_as == "mmapds" else f"python -m mmapds.{command}"


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


def rebuilt_with(computed: Iterable[str]) -> str:
    """Return how to build an index again whose columns were computed in Python, which then are again."""
    columns = ", ".join(f"{name!r}: FUNCTION" for name in computed)
    return f"pass columns={{{columns}}} to mmapds.build"


def column_option(name: str, expression: str) -> str:
    """Return the option of the command that measures a column."""
    option, value = ("--length", expression) if name == "length" else ("--column", f"{name}={expression}")
    return f"{option} {shlex.quote(value)}"
