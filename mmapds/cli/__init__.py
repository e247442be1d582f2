"""What the command lines share: parser, exit codes, signals, one-line errors and progress."""

import argparse
import io
import os
import re
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NoReturn

from .. import progress
from ..errors import EXPECTED_ROOM, RAISE_LIMIT, Error, as_command, did_you_mean
from ..errors import printable as printable  # for the commands of other rooms

Options = Mapping[str, tuple[type, str, str]]
"""Options of formats, by name: (type, placeholder, help)."""

_FAILED, _MISUSED = 1, 2
_INTERRUPTED, _CLOSED_PIPE, _TERMINATED = 130, 141, 143  # 128 and the number of the signal

_WIDEST_HELP = 100
_LONGEST_TITLE = 32  # of a progress bar
_RANGE_FROM_THE_END = re.compile(r"-\d[\d,_]*[:,_].*")


class UsageError(Error):
    """An option has a value that it cannot have, whatever the data are."""


@contextmanager
def checking_options() -> Iterator[None]:
    """Turn errors of a block that looks at options alone into errors of usage."""
    try:
        yield
    except Error as error:
        raise UsageError(str(error)) from None


class Parser(argparse.ArgumentParser):
    """A parser for a command.

    Args:
      prog: what the user types.
      fill: adds its arguments when they are needed: of all commands, only one is parsed.
      examples: lines for the end of `--help`.
      options: as for the base class.
    """

    def __init__(
        self,
        prog: str | None = None,
        *,
        fill: "Callable[[Parser], None] | None" = None,
        examples: Sequence[str] = (),
        **options: Any,
    ) -> None:
        # To find the width by itself, the default formatter imports half the standard library.
        width = min(_terminal_width(), _WIDEST_HELP)
        formatter = partial(argparse.RawDescriptionHelpFormatter, max_help_position=20, width=width)
        epilog = "\n  ".join(["examples:", *examples]) if examples else None
        super().__init__(prog, formatter_class=formatter, epilog=epilog, **options)
        self._fill = fill
        self._is_command = fill is not None

    def fill(self) -> None:
        """Add the arguments, if that was not done yet."""
        if self._fill is not None:
            fill, self._fill = self._fill, None
            fill(self)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse arguments as the base class does, after adding them."""
        self.fill()
        given = sys.argv[1:] if args is None else args
        # With a space before it, `-3:` is not taken for an option.
        given = [f" {each}" if _RANGE_FROM_THE_END.fullmatch(each) else each for each in given]
        found, unknown = super().parse_known_args(given, namespace)
        if unknown and self._is_command:  # else the parser above would say so, which does not have these options
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown

    def error(self, message: str) -> NoReturn:
        """Print a message about the arguments, with the nearest known name, and exit."""
        if unknown := re.search(r"^unrecognized arguments:.* --([\w-]+)", message):
            known = [name[2:] for name in self._option_string_actions if name.startswith("--")]
            message += did_you_mean(unknown[1], known, "--{}".format)
        elif choice := re.search(r"invalid choice: '(.*)' \(choose from (.*)\)$", message):
            message += did_you_mean(choice[1], re.findall(r"[\w-]+", choice[2]), str)
        super().error(printable(message))


def _terminal_width() -> int:
    with suppress(KeyError, ValueError):
        return max(int(os.environ["COLUMNS"]), 1)
    with suppress(AttributeError, ValueError, OSError):  # no stream, a closed one, not a terminal
        return os.get_terminal_size(sys.stdout.fileno()).columns or 80
    return 80


def add_sources(parser: argparse.ArgumentParser) -> None:
    """Add the sources, which all commands take."""
    parser.add_argument("sources", nargs="+", metavar="SOURCE", help="file, directory, glob or brace pattern")


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


def main(parser: argparse.ArgumentParser, arguments: Sequence[str] | None = None) -> int:
    """Parse arguments and run the command that they name; return the exit status.

    `parser` has set, as defaults: `work`, which takes the parsed arguments and returns the exit status, or None for 0;
    and `interrupted`, what to say after Ctrl-C.
    """
    parsed: list[argparse.Namespace] = []
    status = run(lambda: parsed.append(parser.parse_args(arguments)), interrupted="interrupted")
    if not parsed:
        return status
    return run(lambda: parsed[0].work(parsed[0]), interrupted=parsed[0].interrupted)


def run(work: Callable[[], int | None], *, interrupted: str) -> int:
    """Run a command, print an error as one line on stderr, and return the exit status.

    Args:
      work: does it, and returns the exit status, or None for 0. SIGTERM leaves it by SystemExit, so that a half-written
        file is removed.
      interrupted: what to say after Ctrl-C.
    Returns:
      What `work` returns, or exits with; 2 for a `UsageError`, as for unknown options; 1 for another error; 130 after
      Ctrl-C; 141, without a message, if nobody reads the output any more.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(_TERMINATED))
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a name may have characters that the terminal's encoding lacks
            stream.reconfigure(errors="backslashreplace")
    try:
        with as_command(), _warnings_in_lines():
            status, message = work() or 0, ""
    except KeyboardInterrupt:
        status, message = _INTERRUPTED, interrupted
    except BrokenPipeError:
        status, message = _CLOSED_PIPE, ""
    except SystemExit as leaving:
        status, message = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None), ""
    except Exception as error:
        status, message = _MISUSED if isinstance(error, UsageError) else _FAILED, _described(error)
    try:
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


def _described(error: Exception) -> str:
    """Return an error in a line; what mmapds does not expect is raised again under `python -X dev`."""
    line = one_line(error)
    if isinstance(error, Error | ImportError):
        return line
    if isinstance(error, MemoryError):
        what = f" ({line})" if line else ""
        return line if EXPECTED_ROOM in line else f"{EXPECTED_ROOM}, found none{what}; {RAISE_LIMIT}"
    if sys.flags.dev_mode:
        raise error
    return f"{type(error).__name__}: {line} (python -X dev -m mmapds shows where)"


def _open_closed_streams() -> None:
    """Let what is printed go nowhere where a stream is closed, as by `2>&-`, and no file of ours get its number."""
    for name, mode in {"stdin": "r", "stdout": "w", "stderr": "w"}.items():
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - open as long as the process


@contextmanager
def _warnings_in_lines() -> Iterator[None]:
    """Print warnings as lines of their own, without the place in the code that Python adds."""

    def print_warning(message: Warning | str, *_: object, **__: object) -> None:
        print_aside(f"warning: {message}")

    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = print_warning
        yield


def one_line(error: Exception) -> str:
    """Return the message of an error as a line."""
    return printable(" ".join(str(error).splitlines()))


def _refused(error: OSError) -> str:
    return f"standard output: {(error.strerror or str(error)).lower()}"


@contextmanager
def printing() -> Iterator[None]:
    """Raise Error where the system refuses what the block prints on stdout; BrokenPipeError as it is."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise Error(_refused(error)) from None


def print_line(line: str) -> None:
    """Print a line on stdout; raise Error if the system refuses it."""
    with printing():
        print(line)


def print_aside(line: str) -> None:
    """Print a line on stderr, behind all that was printed on stdout before; raise Error if the system refuses that."""
    with printing():
        sys.stdout.flush()
    print(printable(line), file=sys.stderr)


class Progress(progress.Progress):
    """A progress bar, and lines that do not disturb it.

    Args:
      sources: what the bar is named after.
      unit: what it counts: "B" for bytes, or a noun in the plural.
      total: returns how many there are, or None; called only if there is a bar.
      quiet: neither a bar nor lines.
    """

    def __init__(
        self,
        sources: Sequence[str],
        *,
        unit: str = "B",
        quiet: bool = False,
        total: Callable[[], int | None] = lambda: None,
    ) -> None:
        title = printable(sources[0]) if len(sources) == 1 else f"{len(sources):,} sources"
        if len(title) > _LONGEST_TITLE:
            title = f"...{title[3 - _LONGEST_TITLE :]}"
        super().__init__(title, unit=unit, total=total, hidden=quiet)
        self._quiet = quiet

    def print(self, line: str) -> None:
        """Print a line on stdout, unless quiet; raise Error if the system refuses it."""
        if not self._quiet:
            self.clear()
            print_line(printable(line))

    def complain(self, line: str) -> None:
        """Print a line on stderr, also if quiet."""
        self.clear()
        print(printable(line), file=sys.stderr)
