"""`mmapds --print-completion SHELL`: a script by which a shell completes commands, options, names and files."""

import argparse
from collections.abc import Iterable, Iterator

from .. import cli, formats
from ..dataset.decode import BY_NAME
from ..errors import Error

_FILES = ("SOURCE", "JSON", "OUT.mmx", "OUT.mma")
"""Placeholders of arguments that are files."""


def completion(parser: argparse.ArgumentParser, shell: str) -> str:
    """Return the script.

    Raises:
      Error: shtab, which makes it, is missing.
    """
    try:
        import shtab  # optional: the extra mmapds[completion]
    except ImportError:
        raise Error("completion needs shtab; run: pip install 'mmapds[completion]'") from None
    for action in _actions([parser]):
        if action.metavar in _FILES:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
        elif action.metavar == "DIR":
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
        elif action.dest in _NAMES:
            action.choices = _NAMES[action.dest]
    return shtab.complete(parser, shell)


_NAMES = {
    "format": sorted({*formats.FORMATS, *formats.CONVERTIBLE}),
    "decode": [*BY_NAME, "torch"],
    "missing": ["error", "skip"],
    "truncated": ["error", "drop"],
}
"""What options take, by their name; that a parser does not know it leaves errors about it to those who do."""


def _actions(parsers: Iterable[argparse.ArgumentParser]) -> Iterator[argparse.Action]:
    """Yield the arguments of parsers and of their commands."""
    for parser in parsers:
        if isinstance(parser, cli.Parser):
            parser.fill()
        for action in parser._actions:
            yield action
            if isinstance(action, argparse._SubParsersAction):
                action.help = None  # shtab leaves out what --help does
                yield from _actions(action.choices.values())
