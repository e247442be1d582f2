"""The parser of `mmapds`: its commands, each of which is loaded when it is the one to run."""

import argparse
import os
import sys
from collections.abc import Collection
from importlib import import_module
from typing import Any, NamedTuple, cast

from .. import __version__
from ..errors import Error
from . import Parser, run


class _Command(NamedTuple):
    module: str
    """Beside this one; it has `add_NAME_options`, and is imported when the command runs."""
    help: str
    examples: tuple[str, ...]


_COMMANDS = {
    "index": _Command(
        "index",
        "index files where they lie",
        (
            "mmapds index train.jsonl",
            "mmapds index train.jsonl --length 'chars(text)'",
            "mmapds index 'shards/part-{000..099}.jsonl' -o corpus.mmx",
        ),
    ),
    "info": _Command(
        "inspect",
        "what an index covers: records, columns, sources",
        ("mmapds info train.jsonl", "mmapds info corpus.mmx --all", "mmapds info --json train.jsonl"),
    ),
    "verify": _Command(
        "inspect",
        "compare an index in full with its sources",
        ("mmapds verify train.jsonl", "mmapds verify --json 'shards/*.jsonl'"),
    ),
    "convert": _Command(
        "convert",
        "make an array file of Parquet, Arrow, HDF5 and the rest",
        ("mmapds convert corpus.parquet", "mmapds convert 'part-*.parquet' -o corpus.mma --length tokens"),
    ),
    "report": _Command(
        "report",
        "lengths, batches, shuffle and samples on an HTML page",
        ("mmapds report corpus.mmx --max-tokens 16384", "mmapds report train.jsonl --pack 4096 --ranks 64 -o p.html"),
    ),
    "seekable": _Command(
        "seekable",
        "recompress text so that any record can be read",
        ("mmapds seekable part-00.jsonl.gz", "mmapds seekable 'part-*.jsonl.zst' -o seekable/ --frame 256K --level 3"),
    ),
    "bench": _Command(
        "bench",
        "how fast your data are read, and by which loader",
        ("mmapds bench train.jsonl", "mmapds bench corpus.mmx --max-tokens 16384 --collate pad --workers 0,2,4"),
    ),
    "show": _Command(
        "show",
        "print records by number, and where they lie",
        ("mmapds show train.jsonl 12345", "mmapds show train.jsonl 0 10:13 -1", "mmapds show a.tar -1 --decode wds"),
    ),
    "head": _Command(
        "show",
        "print the first records",
        ("mmapds head -n 3 train.jsonl", "mmapds head corpus.mmx --full"),
    ),
}

_FILES = ("SOURCE", "JSON", "OUT.mmx", "OUT.mma")
"""Placeholders of arguments that are files."""


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    given = sys.argv[1:] if arguments is None else arguments
    prog = "mmapds" if os.path.basename(sys.argv[0]) == "mmapds" else "python -m mmapds"

    return run(lambda: new_parser(prog, given).run(given))


def new_parser(prog: str, wanted: Collection[str]) -> Parser:
    """Return the parser of `mmapds`.

    Args:
      prog: what the user types.
      wanted: the commands that have arguments; the modules of others are not imported.
    """
    lines = "\n".join(f"  {name:<8}  {command.help}" for name, command in _COMMANDS.items())
    parser = Parser(
        prog,
        usage="%(prog)s COMMAND [options] SOURCE...",
        description=f"Datasets in files where they lie: index them, look at them, check them.\n\ncommands:\n{lines}",
        examples=[command.examples[0] for command in _COMMANDS.values()],
    )
    parser.add_argument("--version", action="version", version=f"mmapds {__version__}", help="print the version")
    parser.add_argument(
        "--print-completion", choices=("bash", "zsh"), metavar="SHELL", help="print a completion script: bash or zsh"
    )
    parser.set_defaults(work=_without_command)
    # The list of commands stands above, as that of argparse has a line that says nothing.
    commands = parser.add_subparsers(metavar="COMMAND", prog=prog, help=argparse.SUPPRESS)
    for name, command in _COMMANDS.items():
        own = commands.add_parser(
            name,
            help=command.help,
            description=f"{command.help[0].upper()}{command.help[1:]}.",
            usage="%(prog)s [options] SOURCE...",
            examples=command.examples,
        )
        if name in wanted:
            module = import_module(f".{command.module}", __package__)
            getattr(module, f"add_{name}_options")(own)
    return parser


def _without_command(options: argparse.Namespace) -> int:
    if options.print_completion:
        print(_completion(options.print_completion))
        return 0
    options.parser.print_help(sys.stderr)
    return 2


def _completion(shell: str) -> str:
    """Return a script by which a shell completes commands, options, names and files.

    Raises:
      Error: shtab, which makes it, is missing.
    """
    try:
        import shtab  # optional: the extra mmapds[completion]
    except ImportError:
        raise Error("completion needs shtab; run: pip install 'mmapds[completion]'") from None
    from .. import formats  # start-up time: only completion needs these
    from ..dataset.decode import BY_NAME

    # A parser does not know these names, which leaves errors about them to those who do.
    names = {
        "format": sorted({*formats.FORMATS, *formats.CONVERTIBLE}),
        "decode": [*BY_NAME, "torch"],
        "missing": ["error", "skip"],
        "truncated": ["error", "drop"],
    }
    parser = new_parser("mmapds", _COMMANDS)
    *_, commands = parser._actions
    commands.help = None  # shtab leaves out what --help does
    for each in (parser, *cast(Any, commands.choices).values()):
        for action in each._actions:
            if action.metavar in _FILES:
                action.complete = shtab.FILE
            elif action.metavar == "DIR":
                action.complete = shtab.DIRECTORY
            elif action.dest in names:
                action.choices = names[action.dest]
    script: str = shtab.complete(parser, shell)
    return script
