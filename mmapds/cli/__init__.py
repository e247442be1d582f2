"""What the command lines share: parser, common options, exit statuses, one-line errors and progress."""

import argparse
import errno
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

from ..errors import EXPECTED_ROOM, RAISE_LIMIT, Error, as_command, did_you_mean, printable
from ..progress import Progress

Options = Mapping[str, tuple[type, str, str]]
"""Options of formats, by name: (type, placeholder, help)."""

_FAILED, _MISUSED = 1, 2
_INTERRUPTED, _CLOSED_PIPE, _TERMINATED = 130, 141, 143  # 128 and the number of the signal

_OF_OUTPUT = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG)  # an engine's file is named by an Error of its own
_RANGE_FROM_THE_END = re.compile(r"-\d+:.*")


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
      examples: lines for the end of `--help`.
      options: as for the base class.
    """

    def __init__(self, prog: str | None = None, *, examples: Sequence[str] = (), **options: Any) -> None:
        # Without a width, the formatter imports shutil, which takes longer than all of argparse.
        formatter = partial(argparse.RawDescriptionHelpFormatter, max_help_position=20, width=80)
        epilog = "\n  ".join(["examples:", *examples]) if examples else None
        super().__init__(prog, formatter_class=formatter, epilog=epilog, **options)
        self.set_defaults(parser=self)

    def run(self, arguments: Sequence[str]) -> int | None:
        """Parse arguments, and do what they say: call the default `work` that the parser has set; return its status."""
        options = self.parse(arguments)
        return options.work(options)  # type: ignore[no-any-return]

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


_COMMON: dict[str, dict[str, Any]] = {
    "decode": {"metavar": "D", "help": "json, text, bytes, files, wds, pil, tf_example or torch; default: by format"},
    "force": {"action": "store_true", "help": "replace files that are there, also those that are up to date"},
    "json": {"action": "store_true", "help": "print one JSON document instead"},
    "max-tokens": {"type": int, "metavar": "N", "help": "batches under a budget of tokens"},
    "no-index": {"action": "store_true", "help": "write no index; for files that one index will cover"},
    "quiet": {"action": "store_true", "help": "print nothing but errors"},
    "root": {
        "action": "append",
        "default": [],
        "metavar": "DIR",
        "help": "a directory outside that of an index in which its sources may lie; may be repeated",
    },
    "workers": {"type": int, "metavar": "N", "help": "threads; default: all cores"},
}


def add_common(parser: argparse.ArgumentParser, *names: str) -> None:
    """Add the sources, which all commands take, and options that several take."""
    parser.add_argument("sources", nargs="+", metavar="SOURCE", help="file, directory, glob or brace pattern")
    for name in names:
        parser.add_argument(f"--{name}", **_COMMON[name])


def add_format_options(parser: argparse.ArgumentParser, options: Options) -> None:
    """Add the options of formats to a parser."""
    for name, (kind, placeholder, text) in options.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, metavar=placeholder, help=text)


def format_options(arguments: argparse.Namespace, options: Options) -> dict[str, Any]:
    """Return the options of formats that were given."""
    return {name: getattr(arguments, name) for name in options if getattr(arguments, name) is not None}


def add_cluster_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for clusters to a parser."""
    clusters = parser.add_mutually_exclusive_group()
    clusters.add_argument("--dask", metavar="ADDRESS", help="work on a Dask cluster: the address of its scheduler")
    clusters.add_argument("--ray", metavar="ADDRESS", help="work on a Ray cluster: its address, or auto")
    parser.add_argument("--parts", metavar="DIR", help="with these: what tasks leave; default: OUT.parts")


def executor_of(options: argparse.Namespace) -> Any:
    """Return an executor of the cluster that options choose; None without one.

    Raises:
      Error: there is no such cluster, or a package is missing.
    """
    if "" in (options.dask, options.ray):  # as of a variable that is not set
        options.parser.error(f"--{'ray' if options.dask is None else 'dask'}: expected an address, found none")
    if options.parts is not None and not (options.dask or options.ray):
        options.parser.error("--parts: expected --dask or --ray with it, found neither")
    for name in ("dask", "ray"):
        if address := getattr(options, name):
            from .. import executors  # start-up time: most commands have no cluster

            try:
                return getattr(executors, name)(address)
            except (ModuleNotFoundError, OSError, TimeoutError) as error:
                raise Error(f"--{name}: {error}") from None
    return None


def run(work: Callable[[], int | None]) -> int:
    """Run a command, print an error as one line on stderr, and return the exit status.

    Args:
      work: does it, and returns the exit status, or None for 0. SIGTERM leaves it by SystemExit, so that a half-written
        file is removed.
    Returns:
      What `work` returns, or exits with; 2 for a `UsageError`, as for unknown options; 1 for another error; 130 after
      Ctrl-C; 141, without a message, if nobody reads the output any more.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(_TERMINATED))
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a name may have characters that the terminal's encoding lacks
            stream.reconfigure(errors="backslashreplace")
    message = ""
    try:
        with as_command(), _warnings_in_lines():
            status = _status_of(work)
            sys.stdout.flush()
    except KeyboardInterrupt:
        status, message = _INTERRUPTED, "interrupted"
    except BrokenPipeError:
        status = _CLOSED_PIPE
    except Exception as error:
        status, message = _MISUSED if isinstance(error, UsageError) else _FAILED, _described(error)
    try:
        sys.stdout.flush()
    except OSError:  # the interpreter writes the rest of its buffer to nowhere when it exits
        with open(os.devnull, "w") as null:
            os.dup2(null.fileno(), sys.stdout.fileno())
    if message:
        with suppress(BrokenPipeError):
            print(message, file=sys.stderr)
    return status


def _status_of(work: Callable[[], int | None]) -> int:
    try:
        return work() or 0
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else _FAILED


def _described(error: Exception) -> str:
    """Return an error in a line; what mmapds does not expect is raised again under `python -X dev`."""
    line = one_line(error)
    if not line and isinstance(error, MemoryError):  # Python's own says nothing
        return f"{EXPECTED_ROOM}, found none; {RAISE_LIMIT}"
    if line and isinstance(error, Error | ImportError | MemoryError):
        return line
    if isinstance(error, OSError) and error.errno in _OF_OUTPUT:
        return f"standard output: {str(error.strerror).lower()}"
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


def print_aside(line: str) -> None:
    """Print a line on stderr, behind all that was printed on stdout before."""
    sys.stdout.flush()
    print(printable(line), file=sys.stderr)


def progress_on(sources: Sequence[str], **options: Any) -> Progress:
    """Return a progress bar that is named after sources.

    Args:
      options: as for the class.
    """
    title = os.path.basename(sources[0]) if len(sources) == 1 else f"{len(sources):,} sources"
    return Progress(printable(title), **options)
