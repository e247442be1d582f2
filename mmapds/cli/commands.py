"""The commands of `mmapds`, their options, and the parser; what does the work is imported when its command runs."""

import argparse
import os
import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import Any, NoReturn

from .. import __version__
from ..errors import Error, printable
from . import UsageError, run

POSITION = re.compile(r"-?\d{1,19}|(-?\d{1,19})?(:(-?\d{1,19})?){1,2}")
"""The number of a record, or a range of numbers."""

_OTHER_NAMES = {"window_log": "long", "roots": "root"}
"""Options whose names are not those of the arguments that they are."""
_FILES = {"bash": "_shtab_compgen_files", "zsh": "_files"}
"""What completes the names of files."""

# An option has the name of the argument that it is, or has it as its `dest`: see `arguments_of`.
_COMMON: dict[str, dict[str, Any]] = {
    "decode": {"metavar": "D", "help": "json, text, bytes, files, wds, pil, tf_example or torch; default: by format"},
    "force": {"action": "store_true", "help": "replace files that are there, also those that are up to date"},
    "json": {"action": "store_true", "help": "print one JSON document instead"},
    "max-tokens": {"type": int, "metavar": "N", "help": "batches under a budget of tokens"},
    "no-index": {
        "action": "store_false",
        "dest": "index",
        "help": "write no index; for files that one index will cover",
    },
    "quiet": {"action": "store_true", "help": "print nothing but errors"},
    "root": {
        "action": "append",
        "dest": "roots",
        "default": [],
        "metavar": "DIR",
        "help": "a directory outside that of an index in which its sources may lie; may be repeated",
    },
    "workers": {"type": int, "metavar": "N", "help": "threads; default: all cores"},
}
"""Options that several commands take."""


class Parser(argparse.ArgumentParser):
    """A parser whose messages cannot steer a terminal."""

    def __init__(self, prog: str | None = None, *, examples: Sequence[str] = (), **options: Any) -> None:
        # Without a width, the formatter imports shutil, which takes longer than all of argparse.
        formatter = partial(argparse.RawDescriptionHelpFormatter, max_help_position=20, width=80)
        super().__init__(prog, formatter_class=formatter, epilog="\n  ".join(["examples:", *examples]), **options)
        self._negative_number_matcher = re.compile(r"-\d.*")  # ranges too, such as `-3:`, are no options

    def error(self, message: str) -> NoReturn:
        """Print a message about the arguments, and exit."""
        super().error(printable(message))


# ---- options of each command


def _index(parser: Parser) -> None:
    from ..formats import OPTIONS  # start-up time: other commands do without

    parser.add_argument("-o", "--out", metavar="OUT.mmx", help="one combined index; default: SOURCE.mmx for each")
    parser.add_argument("--format", metavar="F", help="how records are framed; default: by suffix")
    _add_format_options(parser, OPTIONS)
    parser.add_argument("--length", metavar="EXPR", help="column for token budgets: the same as --column length=EXPR")
    expressions = "number of each record: path, bytes(path), chars(path), items(path) or bytes()"
    parser.add_argument("--column", action="append", default=[], metavar="NAME=EXPR", help=expressions)
    parser.add_argument("--missing", type=number_or_word, metavar="skip|N|error", help="records that lack a field")
    parser.add_argument("--validate", action="store_true", default=None, help="check that every record is JSON")
    parser.add_argument("--bad", metavar="skip|error", help="lines that are not JSON; skip validates")
    parser.add_argument("--hash", action="store_true", help="store a hash of each source, for verify and check='full'")
    _add_cluster_options(parser)
    parser.add_argument("--grown", action="store_true", help="scan but the new end of a source that has grown")
    parser.add_argument("--merge", action="store_true", help="make OUT.mmx of indexes, without a look at their records")


def _info(parser: Parser) -> None:
    parser.add_argument("--all", action="store_true", help="list all sources, also where there are thousands")
    parser.add_argument("--histogram", metavar="NAME", help="column whose spread is shown; default: length, or bytes")


def _convert(parser: Parser) -> None:
    from ..convert import OPTIONS  # start-up time: other commands do without

    parser.add_argument("-o", "--out", metavar="OUT.mma", help="default, for one source: beside it")
    parser.add_argument("--format", metavar="F", help="parquet, arrow, hdf5, or a format that can be indexed")
    parser.add_argument("--schema", metavar="JSON", help="fields and their types, or a file that has them")
    parser.add_argument("--types", metavar="JSON", help="types of some fields; the others keep theirs")
    parser.add_argument("--fields", metavar="A,B", help="fields to write, in this order; default: all")
    parser.add_argument("--defaults", metavar="JSON", help="what stands for fields that are missing or null")
    parser.add_argument("--length", metavar="FIELD", help="field that token budgets are planned by")
    parser.add_argument("--missing", default="error", metavar="skip|error", help="records that lack a field")
    parser.add_argument("--infer", type=int, default=1000, metavar="N", help="records of JSON to infer a schema from")
    most = "most to write; default: 100 times the sources, or 4 GiB"
    parser.add_argument("--max-bytes", type=int, metavar="N", help=most)
    _add_format_options(parser, OPTIONS)
    _add_cluster_options(parser)


def _report(parser: Parser) -> None:
    parser.add_argument("-o", "--out", metavar="FILE", help="the page; default: report.html, without --json")
    parser.add_argument("--pack", type=int, metavar="N", help="plan packs of this many tokens")
    parser.add_argument("--batch-size", type=int, metavar="N", help="batches of a size; the default, with 32")
    parser.add_argument("--chunk-size", type=int, metavar="N", help="shuffle chunks of neighbours, not all records")
    parser.add_argument("--ranks", type=int, default=8, metavar="N", help="processes that share an epoch; default: 8")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the order; default: 0")
    another = "another plan: pack=8192,ranks=16"
    parser.add_argument("--compare", action="append", default=[], metavar="PLAN", help=another)
    parser.add_argument("--loader", action="store_true", help="measure loaders too, as bench does: a minute or two")
    parser.add_argument("--waits", action="append", default=[], metavar="FILE", help="JSON of what ranks waited")
    parser.add_argument("--no-samples", action="store_false", dest="samples", help="show no sample, and read none")


def _seekable(parser: Parser) -> None:
    parser.add_argument("-o", "--out", metavar="OUT", help="OUT.zst, or a directory; default: beside each source")
    parser.add_argument("--frame", type=size, default="256K", metavar="SIZE", help="text in a frame; default: 256K")
    parser.add_argument("--level", type=int, default=3, metavar="N", help="as zstd -N; default: 3")
    window = "as zstd --long=N, for sources"
    parser.add_argument("--long", type=int, default=27, dest="window_log", metavar="N", help=window)


def _bench(parser: Parser) -> None:
    parser.add_argument("--batch-size", type=int, default=32, metavar="N", help="else batches of a size; default: 32")
    parser.add_argument("--workers", type=numbers, metavar="A,B", help="numbers of workers to try; default: by cores")
    parser.add_argument("--no-processes", action="store_false", dest="processes", help="try threads alone")
    parser.add_argument("--seconds", type=float, default=2.0, metavar="S", help="of each pass; default: 2")
    warm = "drop no pages from memory; warm passes alone"
    parser.add_argument("--no-cold", action="store_false", dest="cold", help=warm)
    parser.add_argument("--collate", default="list", metavar="list|pad", help="samples as they are, or pad_collate")


def _show(parser: Parser) -> None:
    meant = "record from 0; -1 is the last; 10:20 are ten records, -3: the last three, ::1000 every thousandth"
    parser.usage = f"{parser.usage} POSITION..."
    parser.add_argument("positions", nargs="+", type=position, metavar="POSITION", help=meant)
    _add_how_to_show(parser)


def _head(parser: Parser) -> None:
    parser.add_argument("-n", "--records", type=int, default=5, metavar="N", help="how many records; default: 5")
    _add_how_to_show(parser)


def _add_how_to_show(parser: Parser) -> None:
    parser.add_argument("--full", action="store_true", help="cut nothing: all of long strings, lists, arrays and bytes")
    parser.add_argument("--build", action="store_true", help="build missing and stale indexes first")


def _add_format_options(parser: Parser, options: Mapping[str, tuple[type, str, str]]) -> None:
    for name, (kind, placeholder, text) in options.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, metavar=placeholder, help=text)


def _add_cluster_options(parser: Parser) -> None:
    clusters = parser.add_mutually_exclusive_group()
    clusters.add_argument("--dask", metavar="ADDRESS", help="work on a Dask cluster: the address of its scheduler")
    clusters.add_argument("--ray", metavar="ADDRESS", help="work on a Ray cluster: its address, or auto")
    parser.add_argument("--parts", metavar="DIR", help="with these: what tasks leave; default: OUT.parts")


# ---- values of options; argparse says the names of these functions in its messages


def number_or_word(text: str) -> str | float:
    """Return a number, or else the text."""
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text


def size(text: str) -> int:
    """Return a number of bytes, such as 256K or 1M."""
    shift = {"K": 10, "M": 20}.get(text[-1:].upper(), 0)
    return int(text[:-1] if shift else text) << shift


def numbers(text: str) -> list[int]:
    """Return the numbers in a list such as 0,2,4."""
    return [int(part) for part in text.split(",")]


def position(text: str) -> int | slice:
    """Return the number of a record, or a range like those of Python."""
    if not POSITION.fullmatch(text):
        raise ValueError
    parts = [int(part) if part else None for part in text.split(":")]
    return slice(*parts) if len(parts) > 1 else int(text)


# ---- the commands


_COMMANDS: dict[str, tuple[str, str, Callable[[Parser], None], list[str]]] = {
    "index": (
        "index files where they lie",
        "workers root force quiet",
        _index,
        ["train.jsonl --length 'chars(text)'", "'shards/part-{000..099}.jsonl' -o corpus.mmx"],
    ),
    "info": (
        "what an index covers: records, columns, sources",
        "workers root json quiet",
        _info,
        ["train.jsonl", "corpus.mmx --all"],
    ),
    "verify": ("compare an index in full with its sources", "workers root json quiet", lambda _: None, ["train.jsonl"]),
    "convert": (
        "make an array file of Parquet, Arrow, HDF5 and the rest",
        "decode root no-index force quiet",
        _convert,
        ["corpus.parquet", "'part-*.parquet' -o corpus.mma --length tokens"],
    ),
    "report": (
        "lengths, batches, shuffle and samples on an HTML page",
        "max-tokens decode root json force quiet",
        _report,
        ["corpus.mmx --max-tokens 16384", "train.jsonl --pack 4096 --ranks 64 -o p.html"],
    ),
    "seekable": (
        "recompress text so that any record can be read",
        "workers no-index force quiet",
        _seekable,
        ["part-00.jsonl.gz", "'part-*.jsonl.zst' -o seekable/ --frame 256K --level 3"],
    ),
    "bench": (
        "how fast your data are read, and by which loader",
        "max-tokens decode root json quiet",
        _bench,
        ["train.jsonl", "corpus.mmx --max-tokens 16384 --collate pad --workers 0,2,4"],
    ),
    "show": (
        "print records by number, and where they lie",
        "decode root",
        _show,
        ["train.jsonl 0 10:13 -1", "a.tar -1 --decode wds"],
    ),
    "head": ("print the first records", "decode root", _head, ["train.jsonl -n 3", "corpus.mmx --full"]),
}
"""Of each: what it does, its options in `_COMMON`, what adds its own ones, and examples."""
_OF_INSPECT = ("info", "verify", "show", "head")
"""Commands whose functions are in `inspect`; the others are in `work`."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    given = sys.argv[1:] if arguments is None else arguments
    prog = "mmapds" if os.path.basename(sys.argv[0]) == "mmapds" else "python -m mmapds"
    return run(lambda: _work(new_parser(prog, given), given))


def index_main(arguments: Sequence[str] | None = None) -> int:
    """Run `python -m mmapds.index`: `mmapds index`, or with `--info` or `--verify` these commands."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    command = next((name for name in ("info", "verify") if f"--{name}" in given), "index")
    return main([command, *(each for each in given if each != f"--{command}")])


def _work(parser: Parser, given: Sequence[str]) -> int | None:
    """Run what a command line asks for; an error that begins with an option is one of usage."""
    options = parser.parse_args(given)
    if options.print_completion:
        print(_completion(options.print_completion))
        return 0
    if options.command is None:
        parser.print_help(sys.stderr)
        return 2
    module = "inspect" if options.command in _OF_INSPECT else "work"
    try:
        status: int | None = getattr(import_module(f".{module}", __package__), options.command)(options)
    except Error as error:
        message = str(error)
        name, equals, rest = message.partition(" = ")
        if equals and hasattr(options, name):
            message = f"--{_OTHER_NAMES.get(name, name).replace('_', '-')}{equals}{rest}"
        if message.startswith("--"):
            raise UsageError(message) from None
        raise
    return status


def new_parser(prog: str, wanted: Collection[str]) -> Parser:
    """Return the parser of `mmapds`.

    Args:
      wanted: the commands that have arguments; the options of others need imports that take time.
    """
    parser = Parser(
        prog,
        usage="%(prog)s COMMAND [options] SOURCE...",
        description="Datasets in files where they lie: index them, look at them, check them.",
        examples=[f"mmapds {name} {examples[0]}" for name, (*_, examples) in _COMMANDS.items()],
    )
    parser.add_argument("--version", action="version", version=f"mmapds {__version__}", help="print the version")
    parser.add_argument("--print-completion", choices=_FILES, help="print a completion script")
    what = "file, directory, glob or brace pattern"
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command", prog=prog)
    for name, (does, common, add_options, examples) in _COMMANDS.items():
        own = commands.add_parser(
            name,
            help=does,
            description=f"{does[0].upper()}{does[1:]}.",
            usage="%(prog)s [options] SOURCE...",
            examples=[f"mmapds {name} {example}" for example in examples],
        )
        if name in wanted:
            sources = own.add_argument("sources", nargs="+", metavar="SOURCE", help=what)
            setattr(sources, "complete", _FILES)  # noqa: B010 - an attribute of shtab's
            for each in common.split():
                own.add_argument(f"--{each}", **_COMMON[each])
            add_options(own)
    return parser


def _completion(shell: str) -> str:
    """Return a script by which a shell completes commands, options and files; raise Error if shtab is missing."""
    try:
        import shtab  # optional: the extra mmapds[completion]
    except ImportError:
        raise Error("completion needs shtab; run: pip install 'mmapds[completion]'") from None
    script: str = shtab.complete(new_parser("mmapds", _COMMANDS), shell)
    return script
