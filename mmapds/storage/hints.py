"""What messages tell users to run or to pass: commands, options and arguments, quoted so that they can be pasted."""

import os
import re
import shlex
import sys
from collections.abc import Iterable

from ..errors import UNPRINTABLE


def tool(command: str) -> str:
    """Return how a command begins: as the one that this process was started by, or so that it works in any case."""
    started_as = os.path.basename(sys.argv[0]) if getattr(sys, "argv", None) else ""
    return f"mmapds {command}" if started_as == "mmapds" else f"python -m mmapds.{command}"


def build_command(paths: list[str], *options: str) -> str:
    """Return the shell command that indexes `paths`."""
    return " ".join([tool("index"), *map(quoted, paths), *options])


def quoted(path: str) -> str:
    """Return a path quoted for a shell command."""
    return word(f"./{path}" if path.startswith("-") else path)


def word(text: str) -> str:
    """Return a text as one word of a shell command that can be printed and pasted.

    What would steer a terminal, and bytes that are not UTF-8, are escaped as bash, zsh and ksh read them: `$'a\\012b'`.
    """
    if not UNPRINTABLE.search(text):
        return shlex.quote(text)
    escaped = re.sub(r"['\\]", r"\\\g<0>", text)
    return f"$'{UNPRINTABLE.sub(_octal, escaped)}'"


def _octal(found: re.Match[str]) -> str:
    is_byte = "\udc80" <= found[0] <= "\udcff"  # of a name that is not UTF-8
    encoded = found[0].encode(errors="surrogateescape" if is_byte else "surrogatepass")
    return "".join(f"\\{byte:03o}" for byte in encoded)


def another_name(path: str, suffix: str = "", infix: str = ".plain") -> str:
    """Return a name for another file beside one, for commands that write it: one that is not there yet, if possible."""
    stem, own = os.path.splitext(path)
    names = (f"{stem}{each}{suffix or own}" for each in (infix, f"{infix}.lines"))
    return next((name for name in names if not os.path.lexists(name)), f"{stem}{infix}.new{suffix or own}")


def rebuilt_with(computed: Iterable[str]) -> str:
    """Return how to build an index again whose columns were computed in Python, which then are again."""
    columns = ", ".join(f"{name!r}: FUNCTION" for name in computed)
    return f"pass columns={{{columns}}} to mmapds.build"


def column_option(name: str, expression: str) -> str:
    """Return the option of the command that measures a column."""
    return f"--length {word(expression)}" if name == "length" else f"--column {word(f'{name}={expression}')}"
