"""The parser of `mmapds`: its commands, each of which is loaded when it is the one to run."""

import argparse
import os
import sys
from collections.abc import Iterable, Iterator
from functools import partial
from importlib import import_module
from typing import NamedTuple

from .. import __version__
from ..errors import Error
from . import Parser, print_line
from . import main as run_command


class _Command(NamedTuple):
    """A command."""

    module: str
    """Where, from the package, `add_NAME_options` stands, which adds its arguments; imported when the command runs."""
    help: str
    """What it does, in a line."""
    examples: tuple[str, ...]
    arguments: str = "SOURCE..."


_COMMANDS = {
    "index": _Command(
        "cli.index",
        "index files where they lie",
        (
            "mmapds index train.jsonl",
            "mmapds index train.jsonl --length 'chars(text)'",
            "mmapds index 'shards/part-{000..099}.jsonl' -o corpus.mmx",
        ),
    ),
    "info": _Command(
        "cli.options",
        "what an index covers: records, columns, sources",
        ("mmapds info train.jsonl", "mmapds info corpus.mmx --all", "mmapds info --json train.jsonl"),
    ),
    "verify": _Command(
        "cli.options",
        "compare an index in full with its sources",
        ("mmapds verify train.jsonl", "mmapds verify --json 'shards/*.jsonl'"),
    ),
    "convert": _Command(
        "convert.__main__",
        "make an array file of Parquet, Arrow, HDF5 and the rest",
        ("mmapds convert corpus.parquet", "mmapds convert 'part-*.parquet' -o corpus.mma --length tokens"),
    ),
    "report": _Command(
        "report.__main__",
        "lengths, batches, shuffle and samples on an HTML page",
        (
            "mmapds report corpus.mmx --max-tokens 16384",
            "mmapds report train.jsonl --pack 4096 --ranks 64 -o packs.html",
            "mmapds report train.jsonl --max-tokens 16384 --compare pack=16384 --no-samples",
        ),
    ),
    "seekable": _Command(
        "cli.seekable",
        "recompress text so that any record can be read",
        ("mmapds seekable part-00.jsonl.gz", "mmapds seekable 'part-*.jsonl.zst' -o seekable/ --frame 256K --level 3"),
    ),
    "bench": _Command(
        "bench.__main__",
        "how fast your data are read, and by which loader",
        (
            "mmapds bench train.jsonl",
            "mmapds bench corpus.mmx --max-tokens 16384 --collate pad --workers 0,2,4",
            "mmapds bench train.jsonl --json --no-cold --seconds 5",
        ),
    ),
    "show": _Command(
        "cli.options",
        "print records by number, and where they lie",
        (
            "mmapds show train.jsonl 12345",
            "mmapds show train.jsonl 0 10:13 -1",
            "mmapds show shards-000.tar -1 --decode wds",
        ),
        "SOURCE... POSITION...",
    ),
    "head": _Command(
        "cli.options",
        "print the first records",
        ("mmapds head -n 3 train.jsonl", "mmapds head corpus.mmx --full"),
    ),
}

_FILES = ("SOURCE", "JSON", "OUT.mmx", "OUT.mma")
"""Placeholders of arguments that are files."""


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    return run_command(new_parser(), arguments)


def new_parser(prog: str | None = None) -> Parser:
    """Return the parser of `mmapds`, whose commands have no arguments until they are filled.

    Args:
      prog: what the user types; by default as it was typed.
    """
    is_module = os.path.basename(sys.argv[0]) == "__main__.py"
    lines = "\n".join(f"  {name:<8}  {command.help}" for name, command in _COMMANDS.items())
    parser = Parser(
        prog or ("python -m mmapds" if is_module else "mmapds"),
        usage="%(prog)s COMMAND [options] SOURCE...",
        description=f"Datasets in files where they lie: index them, look at them, check them.\n\ncommands:\n{lines}",
        examples=[command.examples[0] for command in _COMMANDS.values()],
    )
    parser.add_argument("--version", action="version", version=f"mmapds {__version__}", help="print the version")
    parser.add_argument(
        "--print-completion", choices=("bash", "zsh"), metavar="SHELL", help="print a completion script: bash or zsh"
    )
    # The list of commands stands above, as that of argparse has a line that says nothing.
    commands = parser.add_subparsers(metavar="COMMAND", prog=parser.prog, help=argparse.SUPPRESS)
    for name, command in _COMMANDS.items():
        commands.add_parser(
            name,
            help=command.help,
            description=f"{command.help[0].upper()}{command.help[1:]}.",
            usage=f"%(prog)s [options] {command.arguments}",
            examples=command.examples,
            fill=partial(_fill, name, command.module),
        )

    def no_command(options: argparse.Namespace) -> int:
        if options.print_completion:
            print_line(_completion(new_parser("mmapds"), options.print_completion))
            return 0
        parser.print_help(sys.stderr)
        return 2

    parser.set_defaults(work=no_command, interrupted="interrupted")
    return parser


def _fill(name: str, module: str, parser: Parser) -> None:
    """Add the arguments of a command to its parser."""
    getattr(import_module(f"..{module}", __package__), f"add_{name}_options")(parser)


def _completion(parser: Parser, shell: str) -> str:
    """Return a script by which a shell completes commands, options, names and files.

    Raises:
      Error: shtab, which makes it, is missing.
    """
    try:
        import shtab  # optional: the extra mmapds[completion]
    except ImportError:
        raise Error("completion needs shtab; run: pip install 'mmapds[completion]'") from None
    from .. import formats
    from ..dataset.decode import BY_NAME  # start-up time, as above

    # A parser does not know these names, which leaves errors about them to those who do.
    names = {
        "format": sorted({*formats.FORMATS, *formats.CONVERTIBLE}),
        "decode": [*BY_NAME, "torch"],
        "missing": ["error", "skip"],
        "truncated": ["error", "drop"],
    }
    for action in _actions([parser]):
        if action.metavar in _FILES:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
        elif action.metavar == "DIR":
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
        elif action.dest in names:
            action.choices = names[action.dest]
    script: str = shtab.complete(parser, shell)
    return script


def _actions(parsers: Iterable[argparse.ArgumentParser]) -> Iterator[argparse.Action]:
    """Yield the arguments of parsers and of their commands."""
    for parser in parsers:
        if isinstance(parser, Parser):
            parser.fill()
        for action in parser._actions:
            yield action
            if isinstance(action, argparse._SubParsersAction):
                action.help = None  # shtab leaves out what --help does
                yield from _actions(action.choices.values())
