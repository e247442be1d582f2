"""What the command lines share: parser, exit codes, signals, one-line errors and the progress bar."""

import argparse
import io
import os
import re
import signal
import sys
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NoReturn

from ..errors import EXPECTED_ROOM, RAISE_LIMIT, Error, as_command, did_you_mean
from ..errors import printable as printable  # for the commands of other rooms

Options = Mapping[str, tuple[type, str, str]]
"""Options of formats, by name: (type, placeholder, help)."""

_FAILED, _MISUSED = 1, 2
_INTERRUPTED, _CLOSED_PIPE, _TERMINATED = 130, 141, 143  # 128 and the number of the signal

_WIDEST_HELP = 100
_LONGEST_TITLE = 32  # of a progress bar


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
      description: what the command does, in lines that are printed as they are.
      fill: adds its arguments, once they are needed: of all commands, only one is parsed.
      examples: lines for the end of `--help`.
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
        formatter = partial(
            argparse.RawDescriptionHelpFormatter, max_help_position=20, width=min(terminal_width(), _WIDEST_HELP)
        )
        lines = "\n".join(f"  {line}" for line in examples)
        epilog = f"examples:\n{lines}" if lines else None
        super().__init__(prog, formatter_class=formatter, epilog=epilog, **options)
        self._fill = fill
        self._is_command = fill is not None
        self.prepare: Callable[[str], str] = str
        """Applied to each argument before it is parsed."""
        self.siblings: Collection[str] = ()
        """The commands beside this one, which a user may take for an option of it."""

    def fill(self) -> None:
        """Add the arguments, if that was not done yet."""
        if self._fill is not None:
            fill, self._fill = self._fill, None
            fill(self)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse arguments as the base class does, once they are added."""
        self.fill()
        given = sys.argv[1:] if args is None else args
        found, unknown = super().parse_known_args(list(map(self.prepare, given)), namespace)
        if unknown and self._is_command:  # else the parser above would say so, which does not have these options
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown

    def error(self, message: str) -> NoReturn:
        """Print a message about the arguments, and exit."""
        unknown = re.search(r"^unrecognized arguments:.* --([\w-]+)", message)
        if unknown and unknown[1] in self.siblings:
            message += f" (did you mean the command {unknown[1]})"
        elif unknown:
            known = [name[2:] for name in self._option_string_actions if name.startswith("--")]
            message += did_you_mean(unknown[1], known, "--{}".format)
        elif choice := re.search(r"invalid choice: '(.*)' \(choose from (.*)\)$", message):
            message += did_you_mean(choice[1], re.findall(r"[\w-]+", choice[2]), str)
        super().error(printable(message))


def terminal_width() -> int:
    """Return how many columns standard output has: by COLUMNS, or the terminal; 80 where neither says so."""
    given = os.environ.get("COLUMNS", "")
    if given.isdecimal() and int(given) > 0:
        return int(given)
    for stream in (sys.__stdout__, sys.__stderr__):
        with suppress(AttributeError, ValueError, OSError):  # no stream, a closed one, not a terminal
            if (columns := os.get_terminal_size(stream.fileno()).columns) > 0:  # type: ignore[union-attr]
                return columns
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
      What `work` returns, or exits with; 2 for a `UsageError`, as for unknown options; 1 for another `Error`, or where
      memory is full; 130 after Ctrl-C; 141, without a message, if nobody reads the output any more.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(_TERMINATED))
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a name may have characters that the terminal's encoding lacks
            stream.reconfigure(errors="backslashreplace")
    status, message = 0, ""
    try:
        with as_command(), _warnings_in_lines():
            status = work() or 0
    except Error as error:
        status, message = _MISUSED if isinstance(error, UsageError) else _FAILED, one_line(error)
    except MemoryError as error:
        status, message = _FAILED, one_line(error)
        if EXPECTED_ROOM not in message:
            what = f" ({message})" if message else ""
            message = f"{EXPECTED_ROOM}, found none{what}; {RAISE_LIMIT}"
    except KeyboardInterrupt:
        status, message = _INTERRUPTED, interrupted
    except BrokenPipeError:
        status = _CLOSED_PIPE
    except SystemExit as leaving:
        status = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
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
def _printing() -> Iterator[None]:
    """Raise Error where the system refuses what the block prints on stdout; BrokenPipeError as it is."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise Error(_refused(error)) from None


def print_line(line: str) -> None:
    """Print a line on stdout; raise Error if the system refuses it."""
    with _printing():
        print(line)


def print_aside(line: str) -> None:
    """Print a line on stderr, behind all that was printed on stdout before; raise Error if the system refuses that."""
    with _printing():
        sys.stdout.flush()
    print(printable(line), file=sys.stderr)


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

        with _printing():
            sys.stdout.flush()  # as tqdm does
        self._bar = tqdm(total=total(), desc=_title(sources), unit=unit, unit_scale=True, leave=False, file=sys.stderr)

    def update(self, count: int, total: int | None = None) -> None:
        """Advance the bar, never beyond its end; set its total, if that is known only now."""
        if self._bar is not None:
            if total is not None:
                self._bar.total = total
            left = count if self._bar.total is None else self._bar.total - self._bar.n
            self._bar.update(max(min(count, left), 0))

    def reach(self, done: int) -> None:
        """Set the bar to what is done in all, as where a part of the work was not necessary."""
        if self._bar is not None:
            self._bar.n = done
            self._bar.refresh()

    def print(self, line: str) -> None:
        """Print a line on stdout, unless quiet; raise Error if the system refuses it."""
        line = printable(line)
        if self._bar is not None:
            with _printing():
                self._bar.write(line, file=sys.stdout)
        elif not self._quiet:
            print_line(line)

    def complain(self, line: str) -> None:
        """Print a line on stderr, also if quiet."""
        line = printable(line)
        if self._bar is not None:
            self._bar.write(line, file=sys.stderr)
        else:
            print(line, file=sys.stderr)

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()


def _title(sources: Sequence[str]) -> str:
    """Return what a bar is named after: a file, its end if it is long, or how many there are."""
    name = printable(sources[0]) if len(sources) == 1 else f"{len(sources):,} sources"
    return name if len(name) <= _LONGEST_TITLE else f"...{name[3 - _LONGEST_TITLE :]}"
