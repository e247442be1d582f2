"""What `info`, `verify`, `show` and `head` take; nothing here loads what they work with."""

import argparse
from functools import partial
from importlib import import_module

from . import Parser, add_roots, add_sources

Position = int | slice
"""What the user means by a number, or by a range like those of Python."""


def add_info_options(parser: Parser) -> None:
    """Add what `info` takes."""
    _add_inspect_options(parser)
    parser.add_argument("--all", action="store_true", help="list all sources, also where there are thousands")
    parser.add_argument(
        "--histogram", metavar="NAME", help="column to show the spread of; default: length, or else bytes of records"
    )
    parser.set_defaults(work=partial(_run, "info", "print_info"), info=True, verify=False)


def add_verify_options(parser: Parser) -> None:
    """Add what `verify` takes."""
    _add_inspect_options(parser)
    parser.set_defaults(work=partial(_run, "inspect", "inspect"), info=False, verify=True)


def add_show_options(parser: Parser) -> None:
    """Add what `show` takes."""
    add_sources(parser)
    parser.add_argument(
        "positions",
        nargs="+",
        type=parse_position,
        metavar="POSITION",
        help="number of a record, from 0; -1 is the last; 10:20 are ten records, -3: the last three, ::1000 every "
        "thousandth",
    )
    _add_looks(parser)
    parser.set_defaults(work=partial(_run, "show", "show"))


def add_head_options(parser: Parser) -> None:
    """Add what `head` takes."""
    add_sources(parser)
    parser.add_argument("-n", "--records", type=_count, default=5, metavar="N", help="how many records; default: 5")
    _add_looks(parser)
    parser.set_defaults(work=partial(_run, "show", "head"))


def _add_inspect_options(parser: Parser) -> None:
    add_sources(parser)
    add_common(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document instead")
    parser.set_defaults(interrupted="interrupted")


def add_common(parser: argparse.ArgumentParser) -> None:
    """Add what building and checking indexes take alike."""
    parser.add_argument("--workers", type=int, metavar="N", help="threads that scan; default: all cores")
    add_roots(parser)
    parser.add_argument("--quiet", action="store_true", help="print nothing but errors")


def _add_looks(parser: Parser) -> None:
    parser.add_argument(
        "--decode", metavar="D", help="json, text, bytes, files, wds, pil, tf_example or torch; default: by format"
    )
    parser.add_argument("--full", action="store_true", help="cut nothing: all of long strings, lists, arrays and bytes")
    parser.add_argument("--build", action="store_true", help="build missing and stale indexes first")
    add_roots(parser)
    parser.set_defaults(interrupted="interrupted")


def _run(module: str, name: str, options: argparse.Namespace) -> int:
    """Run a command that stands in a module beside this one."""
    status: int = getattr(import_module(f".{module}", __package__), name)(options)
    return status


def parse_position(text: str) -> Position:
    """Return what a number or a range means; numbers may have the commas that they are printed with."""
    try:
        parts = [int(part) if part.strip() else None for part in text.replace(",", "").split(":")]
        if len(parts) == 1 and parts[0] is not None:
            return parts[0]
        if len(parts) in (2, 3) and parts[2:] != [0]:
            return slice(*parts)
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"expected a number, or a range such as 10:20, found {text!r}")


def is_position(text: str) -> bool:
    """Whether an argument is a number or a range."""
    try:
        return parse_position(text) is not None
    except argparse.ArgumentTypeError:
        return False


def _count(text: str) -> int:
    plain = text.replace(",", "")
    if not (plain.isascii() and plain.isdecimal() and len(plain) < 20):
        raise argparse.ArgumentTypeError(f"expected a number of 0 or more, found {text!r}")
    return int(plain)
