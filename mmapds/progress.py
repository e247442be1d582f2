"""A progress bar on stderr, drawn by rich where that is a terminal."""

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Self

from .errors import printable

_DELAY = 0.3  # seconds without a bar: most commands are done by then, and rich takes a while to load
_EVERY = 0.1  # seconds from one picture to the next


class Progress:
    """Counts work, and draws a bar with the amount, the rate and the time that is left. Threads may share it.

    It counts bytes, or what `unit` says. `total` is called when the bar is drawn first.
    """

    def __init__(
        self, title: str, *, unit: str = "B", total: Callable[[], int | None] = lambda: None, quiet: bool = False
    ) -> None:
        is_terminal = sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._is_quiet, self._is_hidden = quiet, quiet or not is_terminal
        self._title, self._unit, self._find_total = title, unit, total
        self._total: int | None = None
        self._done = 0
        self._begun = time.perf_counter()
        self._due = self._begun + _DELAY
        self._lock = threading.Lock()
        self._bar: Any = None  # of rich

    def update(self, count: int, total: int | None = None) -> None:
        """Count work that was done; set the total, if that is known only now."""
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

    def _draw(self) -> None:
        from rich import console, filesize, progress  # start-up time: only a terminal needs it

        def amount(count: float) -> str:
            return filesize.decimal(int(count)) if self._unit == "B" else f"{int(count):,} {self._unit}"

        if self._bar is None:
            self._total = self._find_total() if self._total is None else self._total
            title, amounts = (
                progress.TextColumn(f"{{task.{name}}}", markup=False) for name in ("description", "fields[shown]")
            )
            columns = (title, progress.BarColumn(), amounts, progress.TimeRemainingColumn())
            # A thread that refreshes it would be copied into workers; stdout is not redirected, as it may be a file.
            how: dict[str, Any] = {"auto_refresh": False, "transient": True, "redirect_stdout": False}
            self._bar = progress.Progress(*columns, console=console.Console(stderr=True), **how)
            self._bar.add_task(self._title, total=self._total, shown="")
        self._bar.start()
        done = self._done if self._total is None else min(self._done, self._total)
        whole = "" if self._total is None else f" of {amount(self._total)}"
        shown = f"{amount(done)}{whole}, {amount(done / (time.perf_counter() - self._begun))}/s"
        self._bar.update(self._bar.task_ids[0], completed=done, total=self._total, shown=shown)
        self._bar.refresh()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()
