"""The commands of `mmapds`, their options, and the parser; what does the work is imported when its command runs."""

import argparse
import os
import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple, NoReturn, cast

from .. import __version__
from ..errors import Error, did_you_mean, printable
from . import position
from .screen import run

_RANGE_FROM_THE_END = re.compile(r"-\d+:.*")
_FILES = ("SOURCE", "JSON", "OUT.mmx", "OUT.mma")
"""Placeholders of arguments that are files."""

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
    """A parser for a command.

    Args:
      prog: what the user types.
      examples: lines for the end of `--help`.
      options: as for the base class.
    """

    def __init__(self, prog: str | None = None, *, examples: Sequence[str] = (), **options: Any) -> None:
        # Without a width, the formatter imports shutil, which takes longer than all of argparse.
        formatter = partial(argparse.RawDescriptionHelpFormatter, max_help_position=20, width=80)
        epilog = "\n  ".join(["examples:", *examples]) if examples else None
        super().__init__(prog, formatter_class=formatter, epilog=epilog, **options)
        self.set_defaults(parser=self)

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Return the options of a command line."""
        # With a space before it, `-3:` is not taken for an option.
        given = [f" {each}" if _RANGE_FROM_THE_END.fullmatch(each) else each for each in arguments]
        options, unknown = self.parse_known_args(given)
        if unknown:
            options.parser.error(f"unrecognized arguments: {' '.join(unknown)}")  # of the command, which knows names
        return options

    def error(self, message: str) -> NoReturn:
        """Print a message about the arguments, with the nearest known name, and exit."""
        if unknown := re.search(r"^unrecognized arguments:.* --([\w-]+)", message):
            known = [name[2:] for name in self._option_string_actions if name.startswith("--")]
            message += did_you_mean(unknown[1], known, "--{}".format)
        elif choice := re.search(r"invalid choice: '(.*)' \(choose from (.*)\)$", message):
            message += did_you_mean(choice[1], re.findall(r"[\w-]+", choice[2]), str)
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
    parser.add_argument("--missing", type=_number_or_word, metavar="skip|N|error", help="records that lack a field")
    parser.add_argument("--validate", action="store_true", default=None, help="check that every record is JSON")
    parser.add_argument("--bad", metavar="skip|error", help="lines that are not JSON; skip validates")
    parser.add_argument("--hash", action="store_true", help="store a hash of each source, for verify and check='full'")
    _add_cluster_options(parser)
    parser.add_argument("--grown", action="store_true", help="scan but the new end of a source that has grown")
    parser.add_argument("--merge", action="store_true", help="make OUT.mmx of indexes, without a look at their records")


def _info(parser: Parser) -> None:
    parser.set_defaults(info=True, verify=False)
    parser.add_argument("--all", action="store_true", help="list all sources, also where there are thousands")
    parser.add_argument("--histogram", metavar="NAME", help="column whose spread is shown; default: length, or bytes")


def _verify(parser: Parser) -> None:
    parser.set_defaults(info=False, verify=True)


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
    parser.add_argument("--frame", type=_size, default="256K", metavar="SIZE", help="text in a frame; default: 256K")
    parser.add_argument("--level", type=int, default=3, metavar="N", help="as zstd -N; default: 3")
    window = "as zstd --long=N, for sources"
    parser.add_argument("--long", type=int, default=27, dest="window_log", metavar="N", help=window)


def _bench(parser: Parser) -> None:
    parser.add_argument("--batch-size", type=int, default=32, metavar="N", help="else batches of a size; default: 32")
    parser.add_argument("--workers", type=_numbers, metavar="A,B", help="numbers of workers to try; default: by cores")
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
    parser.add_argument("-n", "--records", type=_count, default=5, metavar="N", help="how many records; default: 5")
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


# ---- values of options


def _number_or_word(text: str) -> str | float:
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text


def _size(text: str) -> int:
    found = re.fullmatch(r"(\d{1,9})([KM]?)(?:i?B)?", text, re.IGNORECASE)
    if not found:
        raise argparse.ArgumentTypeError(f"expected a number of bytes, such as 256K or 1M, found {text!r}")
    return int(found[1]) << {"": 0, "K": 10, "M": 20}[found[2].upper()]


def _numbers(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdecimal() for part in parts):
        raise argparse.ArgumentTypeError(f"expected numbers such as 0,2,4, found {text!r}")
    return [int(part) for part in parts]


def _count(text: str) -> int:
    if not re.fullmatch("[0-9]{1,19}", text):
        raise argparse.ArgumentTypeError(f"expected a number of 0 or more, found {text!r}")
    return int(text)


# ---- the commands


class _Command(NamedTuple):
    work: str
    """What runs it: a module beside this one, and a function of the parsed options."""
    help: str
    common: tuple[str, ...]
    """Names of options in `_COMMON`."""
    add_options: Callable[[Parser], None]
    """Adds its own options."""
    examples: tuple[str, ...]


_COMMANDS = {
    "index": _Command(
        "index.index",
        "index files where they lie",
        ("workers", "root", "force", "quiet"),
        _index,
        (
            "mmapds index train.jsonl",
            "mmapds index train.jsonl --length 'chars(text)'",
            "mmapds index 'shards/part-{000..099}.jsonl' -o corpus.mmx",
        ),
    ),
    "info": _Command(
        "inspect.inspect",
        "what an index covers: records, columns, sources",
        ("workers", "root", "json", "quiet"),
        _info,
        ("mmapds info train.jsonl", "mmapds info corpus.mmx --all", "mmapds info --json train.jsonl"),
    ),
    "verify": _Command(
        "inspect.inspect",
        "compare an index in full with its sources",
        ("workers", "root", "json", "quiet"),
        _verify,
        ("mmapds verify train.jsonl", "mmapds verify --json 'shards/*.jsonl'"),
    ),
    "convert": _Command(
        "tools.run_convert",
        "make an array file of Parquet, Arrow, HDF5 and the rest",
        ("decode", "root", "no-index", "force", "quiet"),
        _convert,
        ("mmapds convert corpus.parquet", "mmapds convert 'part-*.parquet' -o corpus.mma --length tokens"),
    ),
    "report": _Command(
        "tools.run_report",
        "lengths, batches, shuffle and samples on an HTML page",
        ("max-tokens", "decode", "root", "json", "force", "quiet"),
        _report,
        ("mmapds report corpus.mmx --max-tokens 16384", "mmapds report train.jsonl --pack 4096 --ranks 64 -o p.html"),
    ),
    "seekable": _Command(
        "tools.run_seekable",
        "recompress text so that any record can be read",
        ("workers", "no-index", "force", "quiet"),
        _seekable,
        ("mmapds seekable part-00.jsonl.gz", "mmapds seekable 'part-*.jsonl.zst' -o seekable/ --frame 256K --level 3"),
    ),
    "bench": _Command(
        "tools.run_bench",
        "how fast your data are read, and by which loader",
        ("max-tokens", "decode", "root", "json", "quiet"),
        _bench,
        ("mmapds bench train.jsonl", "mmapds bench corpus.mmx --max-tokens 16384 --collate pad --workers 0,2,4"),
    ),
    "show": _Command(
        "show.show",
        "print records by number, and where they lie",
        ("decode", "root"),
        _show,
        ("mmapds show train.jsonl 12345", "mmapds show train.jsonl 0 10:13 -1", "mmapds show a.tar -1 --decode wds"),
    ),
    "head": _Command(
        "show.head",
        "print the first records",
        ("decode", "root"),
        _head,
        ("mmapds head -n 3 train.jsonl", "mmapds head corpus.mmx --full"),
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    given = sys.argv[1:] if arguments is None else arguments
    prog = "mmapds" if os.path.basename(sys.argv[0]) == "mmapds" else "python -m mmapds"
    return run(lambda: _work(new_parser(prog, given).parse(given)))


def index_main(arguments: Sequence[str] | None = None) -> int:
    """Run `python -m mmapds.index`, which indexes, and with `--info` or `--verify` inspects; return the exit status."""
    given = sys.argv[1:] if arguments is None else arguments
    description = "Index JSONL, tars, TFRecords, arrays and other records in place, for mmapds.open() to read."

    def work() -> int | None:
        parser = Parser("python -m mmapds.index", description=description)
        _add_options(parser, "index")
        parser.add_argument("--info", action="store_true", help="print what indexes cover, as mmapds info does")
        parser.add_argument("--verify", action="store_true", help="check each index in full against its sources")
        parser.add_argument("--json", action="store_true", help="with --info or --verify: print one JSON document")
        parser.set_defaults(work="index.index_or_inspect", all=False, histogram=None)
        return _work(parser.parse(given))

    return run(work)


def _work(options: argparse.Namespace) -> int | None:
    if options.work is None:
        if not options.print_completion:
            options.parser.print_help(sys.stderr)
            return 2
        print(_completion(options.print_completion))
        return 0
    module, _, function = options.work.partition(".")
    status: int | None = getattr(import_module(f".{module}", __package__), function)(options)
    return status


def _add_options(parser: Parser, name: str) -> None:
    command = _COMMANDS[name]
    parser.add_argument("sources", nargs="+", metavar="SOURCE", help="file, directory, glob or brace pattern")
    for common in command.common:
        parser.add_argument(f"--{common}", **_COMMON[common])
    command.add_options(parser)
    parser.set_defaults(work=command.work)


def new_parser(prog: str, wanted: Collection[str]) -> Parser:
    """Return the parser of `mmapds`.

    Args:
      prog: what the user types.
      wanted: the commands that have arguments; the options of others need imports that take time.
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
    parser.set_defaults(work=None)
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
            _add_options(own, name)
    return parser


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
