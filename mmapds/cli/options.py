"""What `info`, `show` and `head` take; nothing here loads what they work with."""

import argparse
import re
from functools import partial
from importlib import import_module

from .. import cli
from .index import add_inspect_options

_NUMBER = r"\d[\d_,]{0,40}"
_POSITION = re.compile(rf"-?{_NUMBER}")
_RANGE = re.compile(rf"(-?{_NUMBER})?(:(-?{_NUMBER})?){{1,2}}")

Position = int | slice
"""What the user means by a number, or by a range like those of Python."""


def add_info_options(parser: cli.Parser) -> None:
    """Add what `info` takes."""
    add_inspect_options(parser)
    parser.add_argument("--all", action="store_true", help="list all sources, also where there are thousands")
    parser.add_argument(
        "--histogram", metavar="NAME", help="column to show the spread of; default: length, or else bytes of records"
    )
    parser.set_defaults(work=partial(_load, "info", "print_info"), info=True, verify=False)


def add_show_options(parser: cli.Parser) -> None:
    """Add what `show` takes."""
    cli.add_sources(parser)
    parser.add_argument(
        "positions",
        nargs="+",
        type=parse_position,
        metavar="POSITION",
        help="number of a record, from 0; -1 is the last; 10:20 are ten records, -3: the last three, ::1000 every "
        "thousandth",
    )
    _add_looks(parser)
    # With a space before it, `-3:` is not taken for an option.
    parser.prepare = lambda text: f" {text}" if text.startswith("-") and is_position(text) else text
    parser.set_defaults(work=partial(_load, "show", "show"))


def add_head_options(parser: cli.Parser) -> None:
    """Add what `head` takes."""
    cli.add_sources(parser)
    parser.add_argument("-n", "--records", type=_count, default=5, metavar="N", help="how many records; default: 5")
    _add_looks(parser)
    parser.set_defaults(work=partial(_load, "show", "head"))


def _add_looks(parser: cli.Parser) -> None:
    parser.add_argument(
        "--decode", metavar="D", help="json, text, bytes, files, wds, pil, tf_example or torch; default: by format"
    )
    parser.add_argument("--full", action="store_true", help="cut nothing: all of long strings, lists, arrays and bytes")
    parser.add_argument("--build", action="store_true", help="build missing and stale indexes first")
    cli.add_roots(parser)
    parser.set_defaults(interrupted="interrupted")


def _load(module: str, name: str, options: argparse.Namespace) -> int:
    """Run a command that stands in a module beside this one."""
    status: int = getattr(import_module(f".{module}", __package__), name)(options)
    return status


def is_position(text: str) -> bool:
    """Whether an argument is a number or a range."""
    return bool(_POSITION.fullmatch(text.strip()) or _RANGE.fullmatch(text.strip()))


def parse_position(text: str) -> Position:
    """Return what a number or a range means; numbers may have the commas that they are printed with."""
    plain = text.strip().replace(",", "").replace("_", "")
    if _POSITION.fullmatch(text.strip()):
        return int(plain)
    parts = [int(part) if part else None for part in plain.split(":")] if is_position(text) else []
    if not parts or parts[2:] == [0]:
        raise argparse.ArgumentTypeError(f"expected a number, or a range such as 10:20, found {text!r}")
    return slice(*parts)


def _count(text: str) -> int:
    if not re.fullmatch(_NUMBER, text):
        raise argparse.ArgumentTypeError(f"expected a number of 0 or more, found {text!r}")
    return int(text.replace(",", "").replace("_", ""))
