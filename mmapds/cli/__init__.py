"""The command line: exit statuses and printing. `commands` has the options; `inspect` and `work` run commands."""

import io
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Any, Self

from ..errors import Error, as_command, printable

Cell = str | tuple[str, str]  # a text, or a text and its style, as rich names styles

_FAILED, _MISUSED = 1, 2
_INTERRUPTED, _CLOSED_PIPE, _TERMINATED = 130, 141, 143  # 128 + number of the signal
_UNLIMITED = 1 << 20  # columns: long lines are not wrapped, so that they can be copied
_HIGHLIGHTED = 1 << 20  # the most characters of JSON to colour: rich takes a second for each million
_DELAY = 0.3  # seconds without a bar: most commands end before, and rich loads slowly
_EVERY = 0.1  # seconds between two updates of the bar


class UsageError(Error):
    """An option has an invalid value."""


def run(work: Callable[[], int | None]) -> int:
    """Run a command, print an error as one line on stderr, and return the exit status: see docs/command-line.md."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(_TERMINATED))  # so that a half-written file is removed
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # closed: another file must not get its descriptor
            setattr(sys, name, open(os.devnull, "r+"))  # noqa: SIM115 - open until the process ends
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # file names may hold any bytes
    message = ""
    try:
        with as_command(), warnings.catch_warnings():
            warnings.simplefilter("always", UserWarning)
            warnings.showwarning = lambda message, *_, **__: print_aside(f"warning: {message}")
            try:
                status = work() or 0
            except SystemExit as leaving:
                status = leaving.code if isinstance(leaving.code, int) else _FAILED
            sys.stdout.flush()
    except KeyboardInterrupt:
        status, message = _INTERRUPTED, "interrupted"
    except BrokenPipeError:
        status = _CLOSED_PIPE
    except Exception as error:
        status, message = _MISUSED if isinstance(error, UsageError) else _FAILED, one_line(error)
        if not message or not isinstance(error, Error | ImportError | MemoryError):
            if sys.flags.dev_mode:
                raise
            message = f"{type(error).__name__}: {message} (python -X dev -m mmapds shows where)"
    try:
        sys.stdout.flush()
    except OSError:  # at exit, the interpreter then flushes its buffer to /dev/null
        with open(os.devnull, "w") as null:
            os.dup2(null.fileno(), sys.stdout.fileno())
    if message:
        with suppress(BrokenPipeError):
            print(message, file=sys.stderr)
    return status


def one_line(error: Exception) -> str:
    """Return the message of an error as one line."""
    return printable(" ".join(str(error).splitlines()))


def print_aside(line: str) -> None:
    """Print a line on stderr, after flushing stdout, so that both appear in order."""
    sys.stdout.flush()
    print(printable(line), file=sys.stderr)


class Progress:
    """Counts work; draws a bar with amount, rate and remaining time if stderr is a terminal.

    It counts bytes, or another `unit`. It looks sizes up when it first draws the bar. Threads may share it.
    """

    def __init__(
        self, sources: Sequence[str], size_of: Callable[[str], int] | None = None, *, unit: str = "B", quiet: bool
    ) -> None:
        self._is_quiet = quiet
        self._is_hidden = quiet or not sys.stderr.isatty() or os.environ.get("TERM") == "dumb"
        self._sources, self._size_of, self._unit = sources, size_of, unit
        self._total: int | None = None
        self._done = 0
        self._begun = time.perf_counter()
        self._due = self._begun + _DELAY
        self._lock = threading.Lock()
        self._bar: Any = None  # of rich

    def update(self, count: int, total: int | None = None) -> None:
        """Count finished work; set the total if it is given."""
        with self._lock:
            self._done += count
            self._total = self._total if total is None else total
            if not self._is_hidden and time.perf_counter() >= self._due:
                self._due = time.perf_counter() + _EVERY
                self._draw()

    def print(self, line: str) -> None:
        """Print a line on stdout, unless quiet."""
        if not self._is_quiet:
            self.clear()
            print(printable(line))

    def clear(self) -> None:
        """Remove the bar, so that lines can be printed; the next update draws it again."""
        with self._lock:
            if self._bar is not None:
                self._bar.stop()

    def _amount(self, count: float) -> str:
        from rich import filesize  # start-up time: only terminals need it, as below

        return filesize.decimal(int(count)) if self._unit == "B" else f"{int(count):,} {self._unit}"

    def _draw(self) -> None:
        from rich import console, progress  # start-up time

        if self._bar is None:
            title = os.path.basename(self._sources[0]) if len(self._sources) == 1 else f"{len(self._sources):,} sources"
            if self._total is None and self._size_of is not None:
                self._total = 0
                for path in self._sources:
                    with suppress(Error, OSError):  # the command itself reports them
                        self._total += self._size_of(path)
            names = "description", "fields[shown]"
            what, amounts = (progress.TextColumn(f"{{task.{name}}}", markup=False) for name in names)
            columns = what, progress.BarColumn(), amounts, progress.TimeRemainingColumn()
            stderr = console.Console(stderr=True)
            self._bar = progress.Progress(
                *columns, console=stderr, auto_refresh=False, transient=True, redirect_stdout=False
            )
            self._bar.add_task(printable(title), total=self._total, shown="")
        self._bar.start()
        done = self._done if self._total is None else min(self._done, self._total)
        whole = "" if self._total is None else f" of {self._amount(self._total)}"
        shown = f"{self._amount(done)}{whole}, {self._amount(done / (time.perf_counter() - self._begun))}/s"
        self._bar.update(self._bar.task_ids[0], completed=done, total=self._total, shown=shown, refresh=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()


def print_line(text: str, style: str = "") -> None:
    """Print a line in a style."""
    print(_drawn(printable(text), style=style))


def print_json(text: str) -> None:
    """Print lines of JSON from `shown`."""
    print(_drawn(text, highlight=True) if len(text) <= _HIGHLIGHTED else text)


def print_table(rows: Sequence[Sequence[Cell]], *, head: Sequence[str] = (), left: Collection[int] = (0,)) -> None:
    """Print a table; columns in `left` are aligned left, as text, and others right, as numbers."""
    from rich.table import Table  # start-up time, as below
    from rich.text import Text

    table = Table(box=None, show_header=bool(head), header_style="dim", pad_edge=False, padding=(0, 2, 0, 0))
    for at in range(len(rows[0]) if rows else 0):
        table.add_column(head[at] if head else "", justify="left" if at in left else "right")
    for row in rows:
        cells = [(each, "") if isinstance(each, str) else each for each in row]
        table.add_row(*(Text(printable(text), style) for text, style in cells))
    for line in _drawn(table).splitlines():
        print(f"  {line}".rstrip())


def _drawn(shown: Any, **options: Any) -> str:
    """Return the text that rich draws for stdout, with colours if stdout is a terminal."""
    if isinstance(shown, str) and not sys.stdout.isatty():
        return shown
    from rich.console import Console  # start-up time: only tables and terminals need it
    from rich.highlighter import JSONHighlighter

    plain: dict[str, Any] = {"highlight": False, "markup": False, "emoji": False}
    is_terminal = sys.stdout.isatty()  # ignore FORCE_COLOR: scripts read pipes as plain text
    console = Console(width=_UNLIMITED, force_terminal=is_terminal, highlighter=JSONHighlighter(), **plain)
    with console.capture() as captured:
        console.print(shown, no_wrap=True, overflow="ignore", crop=False, end="", **options)
    return captured.get()
