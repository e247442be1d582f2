"""What the command lines share: parser, exit codes, signals, one-line errors and the progress bar."""

import argparse
import os
import re
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NoReturn

from .errors import Error, nearest

Options = Mapping[str, tuple[type, str, str]]
"""Options of formats, by name: (type, placeholder, help)."""

_FAILED, _INTERRUPTED, _CLOSED_PIPE, _TERMINATED = 1, 130, 141, 143  # the last three: 128 and the number of the signal


class _Parser(argparse.ArgumentParser):
    """A parser that says of an unknown option which one the user may mean."""

    def error(self, message: str) -> NoReturn:
        """Print a message about the arguments, and exit."""
        unknown = re.search(r"^unrecognized arguments:.* --([\w-]+)", message)
        known = [name[2:] for name in self._option_string_actions if name.startswith("--")]
        near = nearest(unknown[1], known) if unknown else None
        super().error(f"{message} (did you mean --{near})" if near else message)


def new_parser(command: str, description: str) -> argparse.ArgumentParser:
    """Return a parser for `python -m COMMAND SOURCE...`."""
    parser = _Parser(
        prog=f"python -m {command}",
        description=description,
        # To find the width by itself, the default formatter imports half the standard library.
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=20, width=100),
    )
    parser.add_argument("sources", nargs="+", metavar="SOURCE", help="file, directory, glob or brace pattern")
    return parser


def add_format_options(parser: argparse.ArgumentParser, options: Options) -> None:
    """Add the options of formats to a parser."""
    for name, (kind, placeholder, text) in options.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, metavar=placeholder, help=text)


def add_roots(parser: argparse.ArgumentParser) -> None:
    """Add the option for directories that an index may name files of."""
    parser.add_argument(
        "--root",
        action="append",
        default=[],
        metavar="DIR",
        help="a directory outside that of an index in which its sources may lie; may be repeated",
    )


def format_options(arguments: argparse.Namespace, options: Options) -> dict[str, Any]:
    """Return the options of formats that were given."""
    return {name: getattr(arguments, name) for name in options if getattr(arguments, name) is not None}


def run(work: Callable[[], int | None], *, interrupted: str) -> int:
    """Run a command, print an error as one line on stderr, and return the exit status.

    Args:
      work: does it, and returns the exit status, or None for 0. SIGTERM leaves it by SystemExit, so that a half-written
        file is removed.
      interrupted: what to say after Ctrl-C.
    Returns:
      What `work` returns; 1 for an `Error`; 130 after Ctrl-C; 141, without a message, if nobody reads the output any
      more.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(_TERMINATED))
    status, message = 0, ""
    try:
        status = work() or 0
    except Error as error:
        status, message = _FAILED, one_line(error)
    except KeyboardInterrupt:
        status, message = _INTERRUPTED, interrupted
    except BrokenPipeError:
        status = _CLOSED_PIPE
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:  # nobody reads the pipe any more, or the disk is full
        if isinstance(error, BrokenPipeError):
            status = status or _CLOSED_PIPE
        else:
            status, message = status or _FAILED, message or _refused(error)
        with open(os.devnull, "w") as null:  # the interpreter writes the rest of its buffer there when it exits
            os.dup2(null.fileno(), sys.stdout.fileno())
    if message:
        with suppress(BrokenPipeError):
            print(message, file=sys.stderr)
    return status


def one_line(error: Error) -> str:
    """Return the message of an error as a line."""
    return " ".join(str(error).splitlines())


def _refused(error: OSError) -> str:
    return f"standard output: {(error.strerror or str(error)).lower()}"


def print_line(line: str) -> None:
    """Print a line on stdout; raise Error if the system refuses it."""
    try:
        print(line)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise Error(_refused(error)) from None


class Progress:
    """A progress bar on stderr, where that is a terminal, and lines on stdout that do not disturb it.

    Args:
      sources: what the bar is named after.
      unit: what it counts: "B" or " records".
      total: returns how many there are, or None; called only if there is a bar.
      quiet: neither a bar nor lines.
      bar: False for lines alone.
    """

    def __init__(
        self,
        sources: Sequence[str],
        *,
        unit: str,
        quiet: bool,
        total: Callable[[], int | None] = lambda: None,
        bar: bool = True,
    ) -> None:
        self._quiet = quiet
        self._bar: Any = None
        if quiet or not bar or not sys.stderr.isatty():
            return
        from tqdm import tqdm  # start-up time: only a terminal needs it

        name = sources[0] if len(sources) == 1 else f"{len(sources):,} sources"
        self._bar = tqdm(total=total(), desc=name, unit=unit, unit_scale=True, leave=False, file=sys.stderr)

    def update(self, count: int, total: int | None = None) -> None:
        """Advance the bar; set its total, if that is known only now."""
        if self._bar is not None:
            if total is not None:
                self._bar.total = total
            self._bar.update(count)

    def print(self, line: str) -> None:
        """Print a line on stdout, unless quiet."""
        if self._bar is not None:
            self._bar.write(line, file=sys.stdout)
        elif not self._quiet:
            print_line(line)

    def complain(self, line: str) -> None:
        """Print a line on stderr, also if quiet."""
        if self._bar is not None:
            self._bar.write(line, file=sys.stderr)
        else:
            print(line, file=sys.stderr)

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()
