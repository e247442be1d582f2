"""The commands of `mmapds`, their options, and the parser. A command imports its function when it runs."""

import argparse
import os
import re
import sys
from collections.abc import Collection, Sequence
from contextlib import suppress
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from typing import Any, NoReturn

from .. import __version__
from ..errors import Error, printable
from ..remote.urls import checked
from ..storage.places import scheme_of
from . import UsageError, run

_OTHER_NAMES = {"window_log": "long", "roots": "root"}  # options named unlike their arguments
_FILES = {"bash": "_shtab_compgen_files", "zsh": "_files"}  # functions of shells that complete file names


class Parser(argparse.ArgumentParser):
    """A parser that escapes control characters in its messages."""

    def __init__(self, prog: str | None = None, *, examples: Sequence[str] = (), **options: Any) -> None:
        options |= {"epilog": "\n  ".join(["examples:", *examples])}
        super().__init__(prog, formatter_class=argparse.RawDescriptionHelpFormatter, **options)
        self._negative_number_matcher = re.compile(r"-\d.*")  # a range such as `-3:` is not an option

    def error(self, message: str) -> NoReturn:
        """Print a usage error, and exit."""
        super().error(printable(message))


# ---- types of options; argparse shows the names of these functions in its messages


def number_or_word(text: str) -> str | float:
    """Return a number if the text is one, else the text."""
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text


def size(text: str) -> int:
    """Return a number of bytes, such as 256K, 1M or 1G."""
    shift = {"K": 10, "M": 20, "G": 30}.get(text[-1:].upper(), 0)
    return int(text[:-1] if shift else text) << shift


def count(text: str) -> int:
    """Return a number of 0 or more."""
    number = int(text)
    if number < 0:
        raise ValueError
    return number


def numbers(text: str) -> list[int]:
    """Return the numbers in a list such as 0,2,4."""
    return [count(part) for part in text.split(",")]


def shares(text: str) -> list[float]:
    """Return the numbers in a list such as 0.7,0.3."""
    return [float(part) for part in text.split(",")]


# ---- the commands

_PATHS: dict[str, Any] = {"action": "append", "default": []}
_FLAG: dict[str, Any] = {"action": "store_true", "default": None}
_NOT: dict[str, Any] = {"action": "store_false", "default": None}
_N: dict[str, Any] = {"type": int, "metavar": "N"}

# The name of an option, or its `dest`, is the argument of the function to call. An option that is not given is None,
# so that the function chooses the default.
_OPTIONS: dict[str, dict[str, Any]] = {
    "all": _FLAG | {"help": "list all sources, even thousands"},
    "bad": {
        "metavar": "skip|error",
        "help": "lines that are not JSON, or of another type in a column",
    },
    "batch-size": _N | {"help": "batches of a size; the default, with 32"},
    "build": _FLAG | {"help": "build missing and stale indexes first"},
    "cache": {"metavar": "DIR", "help": "directory for objects of stores, which URLs name"},
    "cache-bytes": {"metavar": "SIZE", "help": "the limit of the cache, such as 200GB"},
    "clear": _FLAG | {"help": "remove all objects; processes that read them go on"},
    "chunk-size": _N | {"help": "shuffle chunks of neighbouring records, not single records"},
    "collate": {"metavar": "list|pad", "help": "samples as they are, or pad_collate"},
    "column": _PATHS | {"metavar": "NAME=EXPR", "help": "path, bytes(path), chars(path), items(path) or bytes()"},
    "compare": _PATHS | {"metavar": "PLAN", "help": "another plan: pack=8192,ranks=16"},
    "dask": {"metavar": "ADDRESS", "help": "work on a Dask cluster: the address of its scheduler"},
    "decode": {"metavar": "D", "help": "json, text, bytes, files, wds, pil, tf_example or torch; default: by format"},
    "defaults": {"metavar": "JSON", "help": "values for fields that are missing or null"},
    "fields": {"metavar": "A,B", "help": "fields to write, in this order; default: all"},
    "force": _FLAG | {"help": "replace existing files, even if they are up to date"},
    "format": {"metavar": "F", "help": "how records are framed, or parquet, arrow, hdf5; default: by suffix"},
    "frame": {"type": size, "metavar": "SIZE", "help": "size of the text in a frame; default: 256K"},
    "full": _FLAG | {"help": "show long strings, lists, arrays and bytes in full"},
    "grown": _FLAG | {"help": "scan only the new end of a source that has grown"},
    "hash": _FLAG | {"help": "store a hash of each source, for verify and check='full'"},
    "histogram": {"metavar": "NAME", "help": "column to show as a histogram; default: length, or bytes"},
    "infer": _N | {"help": "records of JSON to infer a schema from; default: 1000"},
    "json": _FLAG | {"help": "print one JSON document instead"},
    "length": {"metavar": "EXPR", "help": "lengths for token budgets: an expression as in --column, or a field"},
    "level": _N | {"help": "compression level, as zstd -N; default: 3"},
    "loader": _FLAG | {"help": "measure loaders too, as bench does: a minute or two"},
    "long": _N | {"dest": "window_log", "help": "largest window of sources, as zstd --long=N"},
    "max-bytes": _N | {"help": "most bytes to write; default: 100 times the sources, or 4 GiB"},
    "max-record": {"type": size, "metavar": "SIZE", "help": "largest record of a compressed source; default: 1G"},
    "max-tokens": _N | {"help": "batches under a budget of tokens"},
    "merge": _FLAG | {"help": "merge indexes into OUT, without reading records"},
    "missing": {
        "type": number_or_word,
        "metavar": "skip|N|error",
        "help": "records that lack a field; with N, such items of a sum count 0",
    },
    "mix": {"type": shares, "metavar": "A,B", "help": "a mixture of the sources, by these shares"},
    "mix-chunks": _N | {"help": "chunks that are shuffled together; default: 16"},
    "no-cold": _NOT | {"dest": "cold", "help": "keep pages in memory; warm passes only"},
    "no-index": _NOT | {"dest": "index", "help": "write no index; for files that one index will cover"},
    "no-processes": _NOT | {"dest": "processes", "help": "try threads only"},
    "no-samples": _NOT | {"dest": "samples", "help": "read and show no samples"},
    "index out": {"metavar": "OUT", "help": "one index of all sources, or a view; default: an index beside each"},
    "convert out": {"metavar": "OUT", "help": "the array file; default: beside its source"},
    "report out": {"metavar": "OUT", "help": "the page; default: report.html, or none with --json"},
    "seekable out": {"metavar": "OUT", "help": "a file, or a directory; default: beside each source"},
    "pack": _N | {"help": "plan packs of this many tokens"},
    "parts": {"metavar": "DIR", "help": "with --dask or --ray: directory for files of tasks; default: OUT.parts"},
    "quiet": _FLAG | {"help": "print nothing but errors"},
    "ranks": _N | {"help": "processes that share an epoch; default: 8"},
    "ray": {"metavar": "ADDRESS", "help": "work on a Ray cluster: its address, or auto"},
    "records": _N | {"type": count, "default": 5, "help": "how many records; default: 5"},
    "root": _PATHS | {"dest": "roots", "metavar": "DIR", "help": "another directory that may hold sources of an index"},
    "schema": {"metavar": "JSON", "help": "fields and their types, or a file that has them"},
    "seconds": {"type": float, "metavar": "S", "help": "seconds of each pass; default: 2"},
    "seed": _N | {"help": "seed of the order; default: 0"},
    "types": {"metavar": "JSON", "help": "types of some fields; other fields keep theirs"},
    "validate": _FLAG | {"help": "check that every record is JSON"},
    "waits": _PATHS | {"metavar": "FILE", "help": "JSON file with the waits of ranks"},
    "where": {"metavar": "FILTER", "help": "save a view of indexed records as OUT, or over it: 'length <= 4096'"},
    "workers": _N | {"help": "threads; default: all cores"},
    "bench workers": {"type": numbers, "metavar": "A,B", "help": "numbers of workers to try; default: by cores"},
}
_SHORT = {"out": ["-o"], "records": ["-n"]}

_COMMANDS: dict[str, tuple[str, str, list[str]]] = {
    "index": (
        "index files where they lie",
        "out format length column missing validate bad max-record hash workers dask ray parts root cache cache-bytes "
        "grown merge force where quiet",
        ["train.jsonl --length 'chars(text)'", "'shards/part-{000..099}.jsonl' -o corpus.mmx"],
    ),
    "info": (
        "what an index covers: records, columns, sources",
        "all histogram root cache json quiet",
        ["train.jsonl", "corpus.mmx --all"],
    ),
    "verify": ("compare an index and its records with the sources", "workers root cache json quiet", ["train.jsonl"]),
    "convert": (
        "make an array file of Parquet, Arrow, HDF5 and the rest",
        "out format schema types fields defaults length missing infer max-bytes decode dask ray parts root no-index "
        "force quiet",
        ["corpus.parquet", "'part-*.parquet' -o corpus.mma --length tokens"],
    ),
    "report": (
        "lengths, batches, shuffle and samples on an HTML page",
        "out max-tokens pack batch-size chunk-size mix-chunks mix ranks seed compare loader waits no-samples decode "
        "root json force quiet",
        ["corpus.mmx --max-tokens 16384", "train.jsonl --pack 4096 --ranks 64 -o p.html"],
    ),
    "seekable": (
        "recompress text so that any record can be read",
        "out frame level long workers no-index force quiet",
        ["part-00.jsonl.gz", "'part-*.jsonl.zst' -o seekable/ --frame 256K --level 3"],
    ),
    "bench": (
        "how fast your data are read, and by which loader",
        "max-tokens batch-size workers no-processes seconds no-cold collate decode root json quiet",
        ["train.jsonl", "corpus.mmx --max-tokens 16384 --collate pad --workers 0,2,4"],
    ),
    "show": (
        "print records by number, and where they lie",
        "full build decode root cache",
        ["train.jsonl 0 10:13 -1", "a.tar -1 --decode wds"],
    ),
    "cache": ("what a cache of objects holds", "clear json quiet", ["/nvme/mmapds", "/nvme/mmapds --clear"]),
    "head": (
        "print the first records",
        "records full build decode root cache",
        ["train.jsonl -n 3", "corpus.mmx --full"],
    ),
    "versions": ("print what is installed, for a report of a fault", "json", [""]),
}
"""Of each command: what it does, its options, and examples."""
_TAKES = {"cache": "DIR", "versions": ""}  # other commands take sources
_OF_INSPECT = ("info", "verify", "show", "head", "cache", "versions")  # commands in `inspect`; others are in `work`
_FORMATS = {"index": "mmapds.formats", "convert": "mmapds.convert"}  # modules with options of formats
_POSITIONS = "record from 0; -1 is the last; 10:20 are ten records, -3: the last three, ::1000 every thousandth"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    return run(partial(_work, sys.argv[1:] if arguments is None else arguments))


def index_main(arguments: Sequence[str] | None = None) -> int:
    """Run `python -m mmapds.index`: `mmapds index`, or `info` or `verify` with that option."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    command = next((name for name in ("info", "verify") if f"--{name}" in given), "index")
    return main([command, *(each for each in given if each != f"--{command}")])


def _work(given: Sequence[str]) -> int | None:
    """Run a command line; an error that begins with an option becomes a UsageError."""
    prog = "mmapds" if os.path.basename(sys.argv[0]) == "mmapds" else "python -m mmapds"
    parser = new_parser(prog, given)
    if given and not given[0].startswith("-") and given[0] not in _COMMANDS:
        near = get_close_matches(given[0], _COMMANDS, 1)
        way = f"; the nearest is {near[0]}" if near else ""
        parser.error(f"COMMAND = {given[0]!r}, expected {', '.join(_COMMANDS)}{way}")
    options = parser.parse_args(given)
    if options.print_completion:
        try:
            import shtab  # optional: the extra mmapds[completion]
        except ImportError:
            raise Error("completion needs shtab; run: pip install shtab") from None
        print(shtab.complete(new_parser("mmapds", _COMMANDS), options.print_completion))
        return 0
    if options.command is None:
        parser.print_help(sys.stderr)
        return 2
    for url in filter(scheme_of, () if hasattr(options, "cache") else getattr(options, "sources", ())):
        message = f"expected local files for {options.command}, found a URL; copy the objects first"
        raise UsageError(f"{checked(url)}: {message}")
    module = import_module("." + ("inspect" if options.command in _OF_INSPECT else "work"), __package__)
    try:
        status: int | None = getattr(module, options.command)(options)
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
      wanted: the commands to add options for; the imports for all options would take time.
    """
    parser = Parser(
        prog,
        usage="%(prog)s COMMAND [options] SOURCE...",
        description="Index datasets in place, look at them, and check them.",
        examples=[f"mmapds {name} {examples[0]}".rstrip() for name, (*_, examples) in _COMMANDS.items()],
    )
    parser.add_argument("--version", action="version", version=f"mmapds {__version__}", help="print the version")
    parser.add_argument("--print-completion", choices=_FILES, help="print a completion script")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command", prog=prog)
    for name, (does, known, examples) in _COMMANDS.items():
        takes = _TAKES.get(name, "SOURCE"), "POSITION" * (name == "show")
        own = commands.add_parser(
            name,
            help=does,
            description=f"{does[0].upper()}{does[1:]}.",
            usage=" ".join(["%(prog)s [options]", *(f"{each}..." for each in takes if each)]),
            examples=[f"mmapds {name} {example}".rstrip() for example in examples],
        )
        if name in wanted:
            what = f"file, {'URL, ' * ('cache' in known.split())}directory, glob or brace pattern"
            if takes[0]:
                what = "directory" if takes[0] == "DIR" else what
                sources = own.add_argument("sources", nargs="+", metavar=takes[0], help=what)
                setattr(sources, "complete", _FILES)  # noqa: B010 - an attribute of shtab's
            if name == "show":
                own.add_argument("positions", nargs="+", metavar="POSITION", help=_POSITIONS)
            for each in known.split():
                given = _OPTIONS.get(f"{name} {each}") or _OPTIONS[each]
                own.add_argument(*_SHORT.get(each, []), f"--{each}", **given)
            of_formats = import_module(_FORMATS[name]).OPTIONS if name in _FORMATS else {}
            for each, (kind, placeholder, text) in of_formats.items():
                own.add_argument(f"--{each.replace('_', '-')}", type=kind, metavar=placeholder, help=text)
    return parser
